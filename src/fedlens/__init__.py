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
    "AdaptiveClip": "algorithms",
    "Algorithm": "algorithms",
    "Balanced": "privacy",
    "Banded": "privacy.matrix",
    "BinaryTree": "privacy.matrix",
    "Budget": "ledger",
    "Chart": "report.charts",
    "ConvCritic": "models.gan",
    "ConvGenerator": "models.gan",
    "Curator": "curators.protocol",
    "DataError": "data.population",
    "Embedding": "models.looks.embedding",
    "Engine": "curators.engine",
    "Everyone": "privacy",
    "Exhibit": "report.exhibits",
    "Fault": "media.faults",
    "FedAvg": "algorithms",
    "FedAvgGan": "algorithms",
    "Finding": "report.report",
    "Fitted": "media.images.looks",
    "FixedSize": "privacy",
    "Gan": "models.gan",
    "Guarantee": "privacy",
    "HeavyWords": "algorithms",
    "Identity": "privacy.matrix",
    "L2Clip": "privacy",
    "LanguageModel": "models.lstm",
    "Ledger": "ledger",
    "Look": "media.images.looks",
    "Markov": "models.markov",
    "MatrixPlan": "privacy",
    "Medium": "media.protocol",
    "Model": "media.images.samples",
    "Moments": "models.looks.moments",
    "Neighbours": "privacy",
    "NgramModel": "media.text.samples",
    "Ngrams": "algorithms",
    "OneLook": "algorithms",
    "Plan": "privacy",
    "Poisson": "privacy",
    "Population": "data.population",
    "Primary": "models.classifier",
    "PrivacySpentError": "curators.protocol",
    "Psi": "models.looks.psi",
    "Randomness": "core.randomness",
    "Recipe": "recipes.recipe",
    "RecipeError": "recipes.toml",
    "Report": "report.report",
    "RowClip": "privacy",
    "Run": "runs.run",
    "Samples": "media.images.samples",
    "SchemaError": "data.population",
    "Selection": "recipes.tables",
    "Sgd": "algorithms",
    "SimulatedCurator": "curators.simulated",
    "Site": "curators.site",
    "Spending": "ledger",
    "Stage": "recipes.stages",
    "TextLook": "media.text.looks",
    "TextModel": "media.text.samples",
    "TextPsi": "models.looks.texts",
    "Texts": "media.text.samples",
    "Together": "curators.together",
    "TopKSign": "privacy",
    "Unit": "privacy",
    "UpdateAndBit": "privacy",
    "Verdict": "report.report",
    "Vocabulary": "models.words",
    "contrast": "media.opening",
    "guarantee": "ledger",
    "open_primary": "models.primary",
    "opened": "media.opening",
    "run_together": "algorithms",
}

__all__ = ["__version__", *_HOMES]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'fedlens' has no attribute {name!r}")
    return getattr(importlib.import_module(f"fedlens.{_HOMES[name]}"), name)
