"""One look at text: what is asked of a sentence, and what is kept of the answer. Nothing is drawn from it.

look.safetensors holds all that was ever released, with its noise and its guarantee, and the public list of words that
it counts unknown words by.
"""

import dataclasses
import functools
import math
import pathlib
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import torch

from fedlens.algorithms.look import OneLook
from fedlens.algorithms.rebuilding import from_settings, settings
from fedlens.core import files, tensorfiles
from fedlens.core.trees import Tree
from fedlens.ledger.provenance import damage_of
from fedlens.media.protocol import Samples, Trained
from fedlens.media.text.public import help_topics
from fedlens.media.text.samples import OfWords
from fedlens.media.text.settings import LOOK, Text
from fedlens.models import words
from fedlens.models.looks.sentences import WIDTH, as_symbols
from fedlens.models.looks.texts import TextPsi, TextRelease, typical
from fedlens.models.sizes import fitting as fits
from fedlens.models.words import Vocabulary
from fedlens.recipes.tables import Settings

FILE = "look.safetensors"
ROW = WIDTH
NUMBERS = sum(math.prod(shape) for shape in TextPsi().shapes.values())
RUN = 64  # public sentences that stand together, as if one unit had said them
MOST_RUNS, TRIED_RUNS = 64, 32  # to tell what is usual, and to try faults on


def problems(recipe: Settings) -> list[str]:
    """What a plan of one release that everybody is in says otherwise."""
    p = recipe.privacy
    wanted = {"rounds": (p.rounds, 1), "clip": (p.clip, 1.0), "sampling": (p.sampling, "everyone")}
    return [
        f"privacy.{name} is {given}: a look is one release that everybody is in, of norm 1; leave it out"
        for name, (given, expected) in wanted.items()
        if given != expected
    ]


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
class TextLook(OfWords, Trained):
    """The release, with its guarantee: the content of look.safetensors."""

    readers = Trained.readers | OfWords.of_words
    file: ClassVar[str] = FILE
    release: TextRelease

    def sampled(self, count: int, seed: int) -> Samples:
        raise ValueError("Expected a model to draw from: a look at text holds statistics, and no text can be drawn.")

    def save(self, path: pathlib.Path) -> None:
        release = self.release
        about = {"kind": LOOK, "psi": settings(release.psi), "noise": release.noise, "units": release.units}
        tensorfiles.write(path, release.blocks, self._header() | about)

    @classmethod
    def open(cls, path: pathlib.Path) -> "TextLook":
        blocks, about = tensorfiles.read(path)
        cls._check_header(about, path, ["psi", "noise", "units"])
        with damage_of(path):
            noise, units = about["noise"], about["units"]
            if not files.finite(noise) or noise < 0 or not files.finite(units) or units <= 0:
                raise ValueError
            asked: TextPsi = from_settings(TextPsi, about["psi"])
            release = TextRelease(psi=asked, blocks=blocks, noise=float(noise), units=float(units))
            opened = cls(release=release, **cls._stated(about))
            if asked.words != Vocabulary(words=opened.vocabulary, provenance="").digest:
                raise ValueError
        if not fits(blocks, asked.shapes) or not all(leaf.isfinite().all() for leaf in blocks.values()):
            raise ValueError(f"Expected the blocks that its psi describes in {path.name}; some are of another size.")
        return opened


def text_look(algorithm: OneLook, state: Tree, **about: Any) -> TextLook:
    """The release in a state, with the noise that its plan gave it."""
    if not about["rounds"] or not isinstance(algorithm.psi, TextPsi):
        raise ValueError(
            f"Expected the answer to the look at {about['label']}: it is spent, and its checkpoint is gone or of"
            f" another machine. Where there is a {FILE}, it holds the answer; else start a new run."
        )
    plan = about["spending"].plans[-1]
    units = plan.expected_contributors
    blocks = {name: leaf.float().cpu() for name, leaf in algorithm.result(state).items()}
    release = TextRelease(psi=algorithm.psi, blocks=blocks, noise=plan.stddev / units, units=units)
    return TextLook(release=release, **about)
