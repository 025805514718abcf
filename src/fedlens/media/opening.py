"""Any model of a run folder, whatever it was trained on."""

import pathlib

from fedlens.core import tensorfiles
from fedlens.media.images.samples import Model
from fedlens.media.text.samples import NGRAMS, NgramModel, TextModel

Trained = Model | TextModel | NgramModel


def opened(path: pathlib.Path) -> Trained:
    """A GAN says so in its header; a model of text says of what kind it is."""
    _, about = tensorfiles.read(path)
    if about.get("kind") == NGRAMS:
        return NgramModel.open(path)
    return TextModel.open(path) if "kind" in about else Model.open(path)
