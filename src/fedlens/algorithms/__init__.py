"""Published algorithms: settings, methods that run beside the data, and a `run` that never sees it."""

import importlib
from collections.abc import Mapping
from typing import Any

from fedlens.algorithms.clipping import AdaptiveClip
from fedlens.algorithms.fedavg import FedAvg
from fedlens.algorithms.fedavg_gan import FedAvgGan
from fedlens.algorithms.feedback_gan import FeedbackGan
from fedlens.algorithms.head_count import HeadCount
from fedlens.algorithms.heavy_words import HeavyWords
from fedlens.algorithms.histogram import AccuracyHistogram
from fedlens.algorithms.look import OneLook
from fedlens.algorithms.ngrams import Ngrams
from fedlens.algorithms.optimizers import Adam, Sgd
from fedlens.algorithms.protocol import Algorithm, Asked, Trainable, run_together
from fedlens.algorithms.rebuilding import from_settings, settings

# By their files, the classes that a recipe can name. A new algorithm is one file, and one line here.
_TRAINABLE = {
    "fedavg_gan": "FedAvgGan",
    "fedavg": "FedAvg",
    "ngrams": "Ngrams",
    "look": "OneLook",
    "feedback_gan": "FeedbackGan",
}
_kinds = (getattr(importlib.import_module(f"{__name__}.{file}"), kind) for file, kind in _TRAINABLE.items())
ALGORITHMS: dict[str, type[Trainable]] = {kind.name: kind for kind in _kinds}
# All that a curator is ever asked.
QUESTIONS: dict[str, type[Algorithm]] = {
    **ALGORITHMS,
    HeadCount.name: HeadCount,
    AccuracyHistogram.name: AccuracyHistogram,
    HeavyWords.name: HeavyWords,
}

__all__ = [
    "ALGORITHMS",
    "QUESTIONS",
    "AccuracyHistogram",
    "Adam",
    "AdaptiveClip",
    "Algorithm",
    "Asked",
    "FedAvg",
    "FedAvgGan",
    "FeedbackGan",
    "HeadCount",
    "HeavyWords",
    "Ngrams",
    "OneLook",
    "Sgd",
    "rebuilt",
    "run_together",
    "settings",
]


def rebuilt(name: str, values: Mapping[str, Any]) -> Algorithm:
    """The algorithm of that name with these `settings`, which may have come from anywhere: it asks the same question.

    >>> rebuilt("ngrams", settings(Ngrams(noise=0.5, order=2))) == Ngrams(noise=0.5, order=2)
    True
    """
    if name not in QUESTIONS:
        raise ValueError(f"Expected one of the algorithms {', '.join(QUESTIONS)}; got {name!r}.")
    algorithm: Algorithm = from_settings(QUESTIONS[name], values)
    return algorithm
