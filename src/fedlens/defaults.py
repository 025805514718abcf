"""The settings a recipe gets where it leaves them open: chosen from public numbers, never from private metrics."""

import math
from collections.abc import Callable
from typing import Any

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


def settled(values: dict[str, Any], noise_to_signal: Callable[[dict[str, Any]], float]) -> dict[str, Any]:
    """Where a recipe leaves rounds or clip open, what works without tuning; whatever it says itself stays.

    Chosen from public numbers alone: more rounds the larger epsilon is, about as many generator steps in all, the
    largest critic whose noise stays within ten times the signal, and counts that cost a twentieth of the whole.
    """
    privacy = values.get("privacy")
    if not isinstance(privacy, dict) or not isinstance(privacy.get("epsilon"), int | float):
        return values
    if "rounds" in privacy and ("clip" in privacy or "adaptive_clip" in privacy):
        return values
    given = [privacy["epsilon"], privacy.get("rounds", 1), privacy.get("count_noise", 1)]
    tables = [values.get("model", {}), values.get("training", {})]
    if not all(isinstance(v, int | float) and 1e-3 <= v <= 1e9 for v in given) or given[0] > 1e4:
        return values  # its errors are told as they are
    if not all(isinstance(table, dict) for table in tables):
        return values
    rounds = privacy.get("rounds", _within(20 * privacy["epsilon"] ** 0.8, ROUNDS))
    counting = max(4.0, 16 / privacy["epsilon"])
    open_here: dict[str, Any] = {"count_noise": counting, "threshold_noise": counting}
    floor = 2.4 * privacy.get("count_noise", counting)  # below it, nobody at all would pass for a group
    open_here["minimum_users"] = max(20, math.ceil(floor))
    open_here |= {} if "adaptive_clip" in privacy else {"clip": 0.1}
    steps = {"generator_steps": _within(840 / rounds, GENERATOR_STEPS)}
    for widths in CRITICS:
        model = {"size": "paper", "critic_hidden": 0, "critic_widths": widths} | _generator(values)
        whole = values | {
            "privacy": open_here | privacy | {"rounds": rounds},
            "model": ({} if "size" in tables[0] else model) | tables[0],
            "training": TRAINING | steps | tables[1],
        }
        if noise_to_signal(whole) <= NOISE_TO_SIGNAL:
            break
    return whole


def _generator(values: dict[str, Any]) -> dict[str, Any]:
    """The paper's starts from 7 x 7 for images of 28 x 28; larger images take more steps, not a larger start."""
    side, widths = values.get("side"), [256, 64, 32]
    while isinstance(side, int) and side >> (len(widths) - 1) > 8:
        widths.insert(1, 64)
    return {"generator_widths": widths}


def _within(value: float, limits: tuple[int, int]) -> int:
    return min(max(round(value), limits[0]), limits[1])
