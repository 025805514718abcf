"""One look at text: what is asked of a sentence, and what is kept of the answer. Nothing is drawn from it.

look.safetensors holds all that was ever released, with its noise and its guarantee, and the public list of words that
it counts unknown words by.
"""

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from fedlens.media.looks import KeptLook
from fedlens.media.protocol import Samples
from fedlens.media.text.public import help_topics
from fedlens.media.text.samples import OfWords
from fedlens.media.text.settings import LOOK, Text
from fedlens.models import words
from fedlens.models.looks.sentences import WIDTH, as_symbols
from fedlens.models.looks.texts import TextPsi, TextRelease, typical
from fedlens.models.words import Vocabulary

ROW = WIDTH
NUMBERS = sum(math.prod(shape) for shape in TextPsi().shapes.values())
RUN = 64  # public sentences that stand together, as if one unit had said them
MOST_RUNS, TRIED_RUNS = 64, 32  # to tell what is usual, and to try faults on


def public_sentences(own: Text, runs: int = MOST_RUNS) -> list[str]:
    """Of the public text, runs of sentences that stand together: where speakers take turns, each has more than one.

    Where a recipe names a list of words only, those that come with Python.
    """
    said = [sentence for sentence in own.sentences or help_topics() if sentence.strip()]
    if len(said) <= RUN * runs:
        return said
    starts = [round(at * (len(said) - RUN) / (runs - 1)) for at in range(runs)]
    return [sentence for start in starts for sentence in said[start : start + RUN]]


def tried_on(own: Text) -> list[list[str]]:
    """The tokens of the public sentences that faults are tried on."""
    split = words.tokenizer(own.tokenizer)
    return [split(sentence) for sentence in public_sentences(own, TRIED_RUNS)]


def text_psi(own: Text) -> TextPsi:
    """What every unit sends; counted from what is usual in public text."""
    centres, scales = _typical(tuple(public_sentences(own)), own.tokenizer, own.known)
    return TextPsi(
        words=own.known.digest, tokenizer=own.tokenizer, examples=own.examples, centres=centres, scales=scales
    )


@functools.lru_cache(maxsize=4)
def _typical(
    sentences: tuple[str, ...], tokenizer: str, known: Vocabulary
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    split = words.tokenizer(tokenizer)
    return typical(rows_of([split(sentence) for sentence in sentences], known))


def rows_of(sentences: Sequence[list[str]], known: Vocabulary) -> torch.Tensor:
    """[n, ROW]: public sentences, as a look is shown them."""
    return torch.from_numpy(np.stack([as_symbols(tokens, known) for tokens in sentences]))


@dataclasses.dataclass(frozen=True, kw_only=True)
class TextLook(OfWords, KeptLook):
    """The release, with its guarantee: the content of look.safetensors."""

    readers = KeptLook.readers | OfWords.of_words
    sent, answer = TextPsi, TextRelease
    release: TextRelease

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.release.psi.words != Vocabulary(words=self.vocabulary, provenance="").digest:
            raise ValueError("Expected the list of words that unknown ones are counted by.")

    def sampled(self, count: int, seed: int) -> Samples:
        raise ValueError("Expected a model to draw from: a look at text holds statistics, and no text can be drawn.")

    def _header(self) -> dict[str, Any]:
        return super()._header() | {"kind": LOOK}
