"""The settings a recipe gets where it leaves them open: chosen from public numbers, never from private metrics."""

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from fedlens.privacy import MatrixPlan

if TYPE_CHECKING:
    from fedlens.recipes.recipe import Recipe

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
# Of text. A weight may wander so far by noise alone, over all rounds: more would drown what it has learnt.
WANDERED, MOMENTUM, TEXT_RATE, TEXT_ROUNDS = 0.3, 0.9, 2.0, 100
TEXT_NOISE_TO_SIGNAL = 2.5
TEXT_TRAINING = {"batch": 16, "local_steps": 2, "local_rate": 0.5}
# Of one-shot counts. On Python's docstrings, 11 of 70 pairs without a bug were given one above this; at 0.09, 0 of 16.
NGRAMS, NGRAM_NOISE_TO_SIGNAL = (3, 2), 0.2
LANGUAGES: tuple[dict[str, int], ...] = (
    {},
    {"embedding": 24, "units": 96, "projection": 48},
    {"embedding": 16, "units": 64, "projection": 32},
    {"embedding": 16, "units": 32, "projection": 24},
)


def settled(values: dict[str, Any], judged: Callable[[dict[str, Any]], "Recipe"]) -> dict[str, Any]:
    """Where a recipe leaves rounds or clip open, what works without tuning; whatever it says itself stays.

    Chosen from public numbers alone; `judged` makes a recipe of settings, to see how much noise they mean.
    """
    privacy = values.get("privacy")
    if not isinstance(privacy, dict) or not isinstance(privacy.get("epsilon"), int | float):
        return values
    if "rounds" in privacy and ("clip" in privacy or "adaptive_clip" in privacy):
        return values
    given = [privacy["epsilon"], privacy.get("rounds", 1), privacy.get("count_noise", 1)]
    if not all(isinstance(v, int | float) and 1e-3 <= v <= 1e9 for v in given) or given[0] > 1e4:
        return values  # its errors are told as they are
    if not all(isinstance(values.get(name, {}), dict) for name in ("model", "text", "training")):
        return values
    counting = max(4.0, 16 / privacy["epsilon"])  # costs a twentieth of the whole
    floor = 2.4 * privacy.get("count_noise", counting)  # below it, nobody at all would pass for a group
    open_here = {"count_noise": counting, "threshold_noise": counting, "minimum_users": max(20, math.ceil(floor))}
    values = values | {"privacy": open_here | privacy}
    return _text(values, judged) if "text" in values else _images(values, judged)


def _images(values: dict[str, Any], judged: Callable[[dict[str, Any]], "Recipe"]) -> dict[str, Any]:
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


def _text(values: dict[str, Any], judged: Callable[[dict[str, Any]], "Recipe"]) -> dict[str, Any]:
    """The largest model whose noise stays near the signal, and a server step that lets no weight wander far."""
    privacy, text, training = values["privacy"], values["text"], values.get("training", {})
    if text.get("model") == "ngrams":
        return _ngrams(values, judged)
    clip = {} if "adaptive_clip" in privacy else {"clip": 0.5}
    whole = values | {
        "privacy": clip | {"rounds": TEXT_ROUNDS} | privacy,
        "training": TEXT_TRAINING | {"server": _server(TEXT_RATE)} | training,
    }
    tied = {"projection"} if text.get("model") == "words" else set()  # it follows from the embedding there
    for sizes in LANGUAGES if "size" not in text else ({},):
        smaller = {name: sizes["embedding"] if name in tied else size for name, size in sizes.items()}
        whole = whole | {"text": smaller | text}
        recipe = judged(whole)
        if recipe.noise_to_signal <= TEXT_NOISE_TO_SIGNAL:
            break
    if "server" in training:
        return whole
    train = recipe.plans[1]
    unit = recipe.privacy.clip or recipe.privacy.adaptive_clip.start  # type: ignore[union-attr]
    step = unit * train.stddev / train.bound.norm / train.expected_contributors  # of every weight, by noise alone
    steps = train.strategy.prefix_variances(train.releases).max() if isinstance(train, MatrixPlan) else train.releases
    rate = min(TEXT_RATE, WANDERED * (1 - MOMENTUM) / (step * math.sqrt(steps)))
    return whole | {"training": whole["training"] | {"server": _server(float(f"{rate:.2g}"))}}


def _ngrams(values: dict[str, Any], judged: Callable[[dict[str, Any]], "Recipe"]) -> dict[str, Any]:
    """One release, of the longest n-grams that stand out of its noise."""
    for order in NGRAMS:
        whole = values | {
            "privacy": {"rounds": 1, "clip": 1.0} | values["privacy"],
            "text": {"order": order} | values["text"],
        }
        if judged(whole).noise_to_signal <= NGRAM_NOISE_TO_SIGNAL:
            break
    return whole


def _server(rate: float) -> dict[str, Any]:
    return {"kind": "sgd", "rate": rate, "momentum": MOMENTUM}


def _generator(values: dict[str, Any]) -> dict[str, Any]:
    """The paper's starts from 7 x 7 for images of 28 x 28; larger images take more steps, not a larger start."""
    side, widths = values.get("side"), [256, 64, 32]
    while isinstance(side, int) and side >> (len(widths) - 1) > 8:
        widths.insert(1, 64)
    return {"generator_widths": widths}


def _within(value: float, limits: tuple[int, int]) -> int:
    return min(max(round(value), limits[0]), limits[1])
