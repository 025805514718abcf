"""What models of images get where a recipe leaves it open: from public numbers, never from private metrics."""

from collections.abc import Callable
from typing import Any

from fedlens.media.protocol import Values

ROUNDS, GENERATOR_STEPS = (8, 105), (1, 20)
CRITICS = ([24, 48], [16, 32], [8, 16])
NOISE_TO_SIGNAL = 10.0
TRAINING = {
    "batch": 32,
    "local_steps": 2,
    "local_rate": 5e-3,
    "generator_batch": 128,
    "generator": {"kind": "adam", "rate": 1e-3, "beta1": 0.5, "beta2": 0.9},
}


def settled(values: Values, judged: Callable[[Values], Any]) -> Values:
    """More rounds the larger epsilon is, about as many generator steps in all, and the largest critic whose noise stays
    within ten times the signal."""
    privacy, model, training = values["privacy"], values.get("model", {}), values.get("training", {})
    rounds = privacy.get("rounds", _within(20 * privacy["epsilon"] ** 0.8, ROUNDS))
    clip = {} if "adaptive_clip" in privacy else {"clip": 0.1}
    steps = {"generator_steps": _within(840 / rounds, GENERATOR_STEPS)}
    for widths in CRITICS:
        chosen = {"size": "paper", "critic_hidden": 0, "critic_widths": widths} | _generator(values)
        whole = values | {
            "privacy": clip | privacy | {"rounds": rounds},
            "model": ({} if "size" in model else chosen) | model,
            "training": TRAINING | steps | training,
        }
        if judged(whole).noise_to_signal <= NOISE_TO_SIGNAL:
            break
    return whole


def _generator(values: Values) -> Values:
    """The paper's starts from 7 x 7 for images of 28 x 28; larger images take more steps, not a larger start."""
    side, widths = values.get("side"), [256, 64, 32]
    while isinstance(side, int) and side >> (len(widths) - 1) > 8:
        widths.insert(1, 64)
    return {"generator_widths": widths}


def _within(value: float, limits: tuple[int, int]) -> int:
    return min(max(round(value), limits[0]), limits[1])
