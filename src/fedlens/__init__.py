"""fedlens: look at private, decentralized data through differentially private generative models."""

import importlib
import os
from typing import Any

from fedlens.version import __version__

# Before torch is loaded: its threads wait for each other after every small product, by default in a loop that never
# lets go of the core. Beside one other busy process that took twenty times as long as sleeping does.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

# Where each public name lives. Loaded when first used, so that `import fedlens` costs nothing.
_HOMES = {
    "Account": "ledger",
    "Adam": "algorithms",
    "Algorithm": "algorithms",
    "Balanced": "privacy",
    "Budget": "ledger",
    "Curator": "curators.protocol",
    "DataError": "data.population",
    "Engine": "curators.engine",
    "Everyone": "privacy",
    "Fault": "media.faults",
    "FedAvg": "algorithms",
    "FedAvgGan": "algorithms",
    "FeedbackGan": "algorithms",
    "Finding": "report.report",
    "FixedSize": "privacy",
    "Gan": "models.gan",
    "Guarantee": "privacy",
    "HeavyWords": "algorithms",
    "L2Clip": "privacy",
    "LanguageModel": "models.lstm",
    "Ledger": "ledger",
    "MatrixPlan": "privacy",
    "Medium": "media.protocol",
    "Model": "media.images.samples",
    "NgramModel": "media.text.samples",
    "Ngrams": "algorithms",
    "OneLook": "algorithms",
    "Plan": "privacy",
    "Poisson": "privacy",
    "Population": "data.population",
    "PrivacySpentError": "curators.protocol",
    "Randomness": "core.randomness",
    "Recipe": "recipes.recipe",
    "RecipeError": "recipes.toml",
    "Report": "report.report",
    "RowClip": "privacy",
    "Run": "runs.run",
    "Samples": "media.images.samples",
    "SchemaError": "data.population",
    "Sgd": "algorithms",
    "SimulatedCurator": "curators.simulated",
    "Site": "curators.site",
    "Spending": "ledger",
    "Stage": "recipes.stages",
    "TextModel": "media.text.samples",
    "Texts": "media.text.samples",
    "Together": "curators.together",
    "TopKSign": "privacy",
    "Unit": "privacy",
    "UpdateAndBit": "privacy",
    "Vocabulary": "models.words",
    "contrast": "media.opening",
    "guarantee": "ledger",
    "opened": "media.opening",
    "run_together": "algorithms",
}

__all__ = ["__version__", *_HOMES]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'fedlens' has no attribute {name!r}")
    return getattr(importlib.import_module(f"fedlens.{_HOMES[name]}"), name)
