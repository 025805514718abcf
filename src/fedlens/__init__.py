"""fedlens: look at private, decentralized data through differentially private generative models."""

import importlib
from typing import Any

from fedlens.version import __version__

# Where each public name lives. Loaded when first used, so that `import fedlens` costs nothing.
_HOMES = {
    "Guarantee": "privacy",
    "L2Clip": "privacy",
    "Plan": "privacy",
    "Poisson": "privacy",
    "Everyone": "privacy",
    "Unit": "privacy",
    "UpdateAndBit": "privacy",
    "Population": "data.population",
    "Ledger": "ledger",
    "Account": "ledger",
    "SimulatedCurator": "curators.simulated",
    "Randomness": "core.randomness",
    "FedAvgGan": "algorithms",
    "Gan": "models.gan",
    "Samples": "media.images.samples",
    "contrast": "media.images.contrast",
    "Recipe": "recipes.recipe",
}

__all__ = ["__version__", *_HOMES]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'fedlens' has no attribute {name!r}")
    return getattr(importlib.import_module(f"fedlens.{_HOMES[name]}"), name)
