"""What models of text get where a recipe leaves it open: from public numbers, never from private metrics."""

import math
from collections.abc import Callable
from typing import Any

from fedlens.media.protocol import Values
from fedlens.media.text.samples import NGRAMS
from fedlens.privacy import MatrixPlan

# A weight may wander so far by noise alone, over all rounds: more would drown what it has learnt.
WANDERED, MOMENTUM, RATE, ROUNDS = 0.3, 0.9, 2.0, 100
NOISE_TO_SIGNAL = 2.5
TRAINING = {"batch": 16, "local_steps": 2, "local_rate": 0.5}
# Of one-shot counts. On Python's docstrings, 11 of 70 pairs without a bug were given one above this; at 0.09, 0 of 16.
ORDERS, NGRAM_NOISE_TO_SIGNAL = (3, 2), 0.2
LANGUAGES: tuple[dict[str, int], ...] = (
    {},
    {"embedding": 24, "units": 96, "projection": 48},
    {"embedding": 16, "units": 64, "projection": 32},
    {"embedding": 16, "units": 32, "projection": 24},
)


def settled(values: Values, judged: Callable[[Values], Any]) -> Values:
    """The largest model whose noise stays near the signal, and a server step that lets no weight wander far."""
    privacy, text, training = values["privacy"], values["text"], values.get("training", {})
    if text.get("model") == NGRAMS:
        return _ngrams(values, judged)
    clip = {} if "adaptive_clip" in privacy else {"clip": 0.5}
    whole = values | {
        "privacy": clip | {"rounds": ROUNDS} | privacy,
        "training": TRAINING | {"server": _server(RATE)} | training,
    }
    tied = {"projection"} if text.get("model") == "words" else set()  # it follows from the embedding there
    for sizes in LANGUAGES if "size" not in text else ({},):
        smaller = {name: sizes["embedding"] if name in tied else size for name, size in sizes.items()}
        whole = whole | {"text": smaller | text}
        recipe = judged(whole)
        if recipe.noise_to_signal <= NOISE_TO_SIGNAL:
            break
    if "server" in training:
        return whole
    train = recipe.plans["train"]
    unit = recipe.privacy.clip or recipe.privacy.adaptive_clip.start
    step = unit * train.stddev / train.bound.norm / train.expected_contributors  # of every weight, by noise alone
    steps = train.strategy.prefix_variances(train.releases).max() if isinstance(train, MatrixPlan) else train.releases
    rate = min(RATE, WANDERED * (1 - MOMENTUM) / (step * math.sqrt(steps)))
    return whole | {"training": whole["training"] | {"server": _server(float(f"{rate:.2g}"))}}


def _ngrams(values: Values, judged: Callable[[Values], Any]) -> Values:
    """One release, of the longest n-grams that stand out of its noise."""
    for order in ORDERS:
        whole = values | {
            "privacy": {"rounds": 1, "clip": 1.0} | values["privacy"],
            "text": {"order": order} | values["text"],
        }
        if judged(whole).noise_to_signal <= NGRAM_NOISE_TO_SIGNAL:
            break
    return whole


def _server(rate: float) -> dict[str, Any]:
    return {"kind": "sgd", "rate": rate, "momentum": MOMENTUM}
