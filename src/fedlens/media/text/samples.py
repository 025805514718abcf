"""Synthetic words and sentences that never travel without the guarantee of the model that made them."""

import collections
import dataclasses
import functools
import pathlib
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import torch

from fedlens.core import files, tensorfiles
from fedlens.core.trees import Tree, moved
from fedlens.ledger import Spending
from fedlens.ledger.provenance import as_label, damage_of
from fedlens.ledger.spending import stated
from fedlens.media.protocol import Priced, Readers, Samples, Trained, check_fits
from fedlens.models.lstm import LanguageModel
from fedlens.models.markov import Markov
from fedlens.models.words import PADDING, SPELLING_END, SPELLING_SYMBOLS, Vocabulary, unspelled
from fedlens.privacy import Guarantee, Promise

KINDS = ("spelling", "words")
NGRAMS = "ngrams"  # the kind of a model that spells without a network
COUNTED = 30_000  # samples: more take long and tell little
MOST_WIDTH = 2**14  # symbols of a row that a model writes: sentences have 256 bytes
Word = tuple[str, bool]  # as it is written, and whether it came to an end


def _as_width(value: object) -> int:
    if not files.whole(value, 2, MOST_WIDTH):
        raise ValueError
    return value


@dataclasses.dataclass(frozen=True, kw_only=True)
class OfWords(Priced):
    """Whose words, and at what price: models of text, and what they write.

    The vocabulary: the words that sentences are made of, or those that the unknown words are none of. It is public, or
    was learnt at a price; then its release is a part of the spending, and named in `earlier`.
    """

    medium: ClassVar[str] = "text"
    of_words: ClassVar[Readers] = {
        "vocabulary": lambda words: Vocabulary(words=tuple(map(as_label, words)), provenance="").words,
        "tokenizer": as_label,
        "earlier": lambda spendings: tuple(map(Spending.from_dict, spendings)),
    }
    vocabulary: tuple[str, ...] = dataclasses.field(repr=False)  # most frequent first
    earlier: tuple[Spending, ...] = ()  # what other models may share: the first plans of the spending
    tokenizer: str = "plain"  # that split the text which the model learnt from

    def __post_init__(self) -> None:
        paid = _plans(self.earlier)
        if self.spending.plans[: len(paid)] != paid:
            raise ValueError("Expected a spending that includes what was released earlier, first of all.")
        if any(release.account.simulated for release in self.earlier) and not self.spending.account.simulated:
            raise ValueError("Expected a simulated spending: what was released earlier is.")

    @property
    def guarantee(self) -> Guarantee:
        return jointly([self])

    @property
    def paid_before(self) -> tuple[Spending, ...]:
        return self.earlier

    @property
    def words_digest(self) -> str:
        return Vocabulary(words=self.vocabulary, provenance="").digest if self.vocabulary else ""

    def _header(self) -> dict[str, Any]:
        return super()._header() | {"earlier": [spending.to_dict() for spending in self.earlier]}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Texts(OfWords, Samples):
    """Unknown words that a character model spelled, or sentences of a word model."""

    readers: ClassVar[Readers] = Samples.readers | OfWords.of_words
    kind: str  # "spelling" or "words"
    sequences: torch.Tensor = dataclasses.field(repr=False)  # [n, width]: rows as in fedlens.models.words
    log_probability: torch.Tensor = dataclasses.field(repr=False)  # [n], joint, END included

    def __post_init__(self) -> None:
        super().__post_init__()
        rows, symbols = self.sequences, _symbols(self.kind, self.vocabulary)
        whole = rows.ndim == 2 and 0 not in rows.shape and not rows.is_floating_point()
        if not whole or self.log_probability.shape != rows.shape[:1]:
            raise ValueError("Expected rows of whole numbers, at least one, and one log-probability for each.")
        if not PADDING <= int(rows.min()) <= int(rows.max()) < symbols:
            raise ValueError(f"Expected symbols from {PADDING} to {symbols - 1}.")

    @property
    def rows(self) -> np.ndarray:
        return self.sequences.cpu().numpy()

    @functools.cached_property
    def words(self) -> collections.Counter[Word]:
        """The different words that a character model spelled, in the first of its samples, and how often each came."""
        rows, counts = np.unique(self.rows[:COUNTED], axis=0, return_counts=True)
        spelled: collections.Counter[Word] = collections.Counter()
        for row, ended, count in zip(rows, (rows == SPELLING_END).any(1).tolist(), counts.tolist(), strict=True):
            spelled[unspelled(row), ended] += count
        return spelled

    @property
    def ended(self) -> torch.Tensor:
        """Which rows the model brought to an end, [n]; the others were cut at the width."""
        end = SPELLING_END if self.kind == "spelling" else len(self.vocabulary) + 2
        return (self.sequences == end).any(1)

    def __len__(self) -> int:
        return len(self.sequences)

    def examples(self) -> Tree:
        return {"x": self.sequences}

    def save(self, path: pathlib.Path) -> None:
        tree = {"sequences": self.sequences, "log_probability": self.log_probability}
        tensorfiles.write(path, tree, self._header() | {"kind": self.kind})

    @classmethod
    def open(cls, path: pathlib.Path) -> "Texts":
        tree, about = tensorfiles.read(path)
        if "spending" not in about or not {"sequences", "log_probability"} <= tree.keys():
            raise ValueError(f"Expected texts with their guarantee in {path.name}.")
        with damage_of(path):
            rows, likely = tree["sequences"], tree["log_probability"]
            return cls(kind=about["kind"], sequences=rows, log_probability=likely, **cls._stated(about))


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Writer(OfWords, Trained):
    """A model of text, whatever it is made of."""

    readers: ClassVar[Readers] = Trained.readers | OfWords.of_words | {"width": _as_width}
    width: int  # of the rows it learnt from, and of those it writes

    def _written(self, kind: str, sequences: torch.Tensor, log_probability: torch.Tensor) -> Texts:
        """What it wrote, under its own guarantee."""
        words = {name: getattr(self, name) for name in self.of_words} | self._of_samples()
        return Texts(kind=kind, sequences=sequences, log_probability=log_probability, **words)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TextModel(_Writer):
    """A trained language model with its guarantee: the content of model.safetensors."""

    kind: str
    model: LanguageModel
    parameters: Tree = dataclasses.field(repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        _symbols(self.kind, self.vocabulary)

    def sampled(self, count: int, seed: int, device: str = "cpu") -> Texts:
        """A GPU writes other words for the same seed. A model that has diverged writes empty rows, of a probability
        that is no number: its run ends in a report.
        """
        if not all(bool(leaf.isfinite().all()) for leaf in self.parameters.values()):
            row = [self.model.start, self.model.end, *[PADDING] * self.width][: self.width]
            return self._written(self.kind, torch.tensor(row).repeat(count, 1), torch.full((count,), torch.nan))
        drawn, likely = self.model.sampled(moved(self.parameters, device), count, self.width, seed)
        return self._written(self.kind, drawn.cpu(), likely.cpu())

    def likeliest(self, count: int, beams: int) -> Texts:
        return self._written(self.kind, *self.model.likeliest(self.parameters, self.width, beams, count))

    def save(self, path: pathlib.Path) -> None:
        about = {"kind": self.kind, "model": dataclasses.asdict(self.model)}
        tensorfiles.write(path, self.parameters, self._header() | about)

    @classmethod
    def open(cls, path: pathlib.Path) -> "TextModel":
        parameters, about = tensorfiles.read(path)
        cls._check_header(about, path, ["kind", "model"])
        with damage_of(path):
            network = LanguageModel(**about["model"])
            opened = cls(kind=about["kind"], model=network, parameters=parameters, **cls._stated(about))
            if network.symbols != _symbols(opened.kind, opened.vocabulary):
                raise ValueError
        check_fits(network, parameters, path)
        return opened


@dataclasses.dataclass(frozen=True, kw_only=True)
class NgramModel(_Writer):
    """A Markov model of unknown words with its guarantee, from one release of counts: no network was trained.

    Its alphabet is small: what it writes has 0 for every digit, A for every capital, and one sign beyond ASCII.
    """

    model: Markov = dataclasses.field(repr=False)

    def sampled(self, count: int, seed: int) -> Texts:
        sequences = self.model.sampled(count, self.width, seed)
        return self._written("spelling", sequences, self.model.scored(sequences).float())

    def save(self, path: pathlib.Path) -> None:
        tensorfiles.write(path, {"table": self.model.table}, self._header() | {"kind": NGRAMS})

    @classmethod
    def open(cls, path: pathlib.Path) -> "NgramModel":
        tree, about = tensorfiles.read(path)
        cls._check_header(about, path)
        with damage_of(path):
            header = cls._stated(about)
        with files.damage(f"Expected a table of probabilities in {path.name}; it is missing or damaged."):
            return cls(model=Markov(table=tree["table"]), **header)


def jointly(groups: Sequence[OfWords]) -> Guarantee:
    """Of all groups together.

    Formal guarantee: an upper bound, as `guarantee` is. What several groups name as released earlier, by one run with
    the same plans, is one release that all of them look at, and counts once.
    """
    earlier = dict.fromkeys(spending for group in groups for spending in group.earlier)
    return stated([_own(group) for group in groups], list(earlier), max(group.delta for group in groups))


def _own(group: OfWords) -> Spending:
    """What a group cost on top of what was released earlier."""
    return dataclasses.replace(group.spending, plans=group.spending.plans[len(_plans(group.earlier)) :])


def _plans(spendings: Sequence[Spending]) -> tuple[Promise, ...]:
    return tuple(plan for spending in spendings for plan in spending.plans)


def _symbols(kind: str, vocabulary: Sequence[str]) -> int:
    if kind not in KINDS:
        raise ValueError(f"Expected kind={kind!r} in {KINDS}.")
    return SPELLING_SYMBOLS if kind == "spelling" else len(vocabulary) + 3
