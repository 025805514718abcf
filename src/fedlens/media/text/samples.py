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
from fedlens.ledger import Head, Spending
from fedlens.ledger.provenance import as_delta, as_head, as_label, as_number, damage_of
from fedlens.ledger.spending import stated
from fedlens.models.lstm import LanguageModel
from fedlens.models.markov import Markov
from fedlens.models.words import PADDING, SPELLING_END, SPELLING_SYMBOLS, Vocabulary, unspelled
from fedlens.privacy import Guarantee, Promise

KINDS = ("spelling", "words")
NGRAMS = "ngrams"  # the kind of a model that spells without a network
COUNTED = 30_000  # samples: more take long and tell little
MOST_WIDTH = 2**14  # symbols of a row that a model writes: sentences have 256 bytes
Word = tuple[str, bool]  # as it is written, and whether it came to an end


@dataclasses.dataclass(frozen=True, kw_only=True)
class Texts:
    """Unknown words that a character model spelled, or sentences of a word model.

    The vocabulary: the words that sentences are made of, or those that the unknown words are none of. It is public, or
    was learnt at a price; then its release is a part of the spending, and named in `earlier`.
    """

    medium: ClassVar[str] = "text"
    kind: str  # "spelling" or "words"
    sequences: torch.Tensor = dataclasses.field(repr=False)  # [n, width]: rows as in fedlens.models.words
    log_probability: torch.Tensor = dataclasses.field(repr=False)  # [n], joint, END included
    vocabulary: tuple[str, ...] = dataclasses.field(repr=False)  # most frequent first
    label: str  # of the group
    spending: Spending
    delta: float
    earlier: tuple[Spending, ...] = ()  # what other models may share: the first plans of the spending
    tokenizer: str = "plain"  # that split the text which the model learnt from
    round: int | None = None  # after which the model wrote them

    def __post_init__(self) -> None:
        _check_kind(self.kind)
        _check_earlier(self.spending, self.earlier)
        rows = self.sequences
        if (
            rows.ndim != 2
            or 0 in rows.shape
            or rows.is_floating_point()
            or self.log_probability.shape != rows.shape[:1]
        ):
            raise ValueError("Expected rows of whole numbers, at least one, and one log-probability for each.")
        if not PADDING <= int(rows.min()) <= int(rows.max()) < self.symbols:
            raise ValueError(f"Expected symbols from {PADDING} to {self.symbols - 1}.")

    @property
    def symbols(self) -> int:
        return _symbols(self.kind, self.vocabulary)

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

    @property
    def guarantee(self) -> Guarantee:
        return jointly([self])

    def __len__(self) -> int:
        return len(self.sequences)

    def save(self, path: pathlib.Path) -> None:
        about = {
            "kind": self.kind,
            "label": self.label,
            "synthetic": True,
            "round": self.round,
        }
        tree = {"sequences": self.sequences, "log_probability": self.log_probability}
        tensorfiles.write(path, tree, about | _origin(self))

    @classmethod
    def open(cls, path: pathlib.Path) -> "Texts":
        tree, about = tensorfiles.read(path)
        if "spending" not in about or not {"sequences", "log_probability"} <= tree.keys():
            raise ValueError(f"Expected texts with their guarantee in {path.name}.")
        with damage_of(path):
            return cls(
                kind=about["kind"],
                sequences=tree["sequences"],
                log_probability=tree["log_probability"],
                label=as_label(about["label"]),
                round=None if about.get("round") is None else as_number(about["round"]),
                **_read_origin(about),
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class TextModel:
    """A trained language model with its guarantee: the content of model.safetensors."""

    medium: ClassVar[str] = "text"
    kind: str
    model: LanguageModel
    parameters: Tree = dataclasses.field(repr=False)
    vocabulary: tuple[str, ...] = dataclasses.field(repr=False)
    width: int  # of the rows it learnt from, and of those it writes
    label: str
    spending: Spending
    delta: float
    recipe_sha256: str
    rounds: int
    ledger_head: Head  # the last entry of the ledger when the model was made: it pins down all before it
    earlier: tuple[Spending, ...] = ()
    tokenizer: str = "plain"

    def __post_init__(self) -> None:
        _check_kind(self.kind)
        _check_earlier(self.spending, self.earlier)

    def sampled(self, count: int, seed: int, device: str = "cpu") -> Texts:
        """A GPU writes other words for the same seed. A model that has diverged writes empty rows, of a probability
        that is no number: its run ends in a report.
        """
        finite = all(bool(leaf.isfinite().all()) for leaf in self.parameters.values())
        drawn, likely = (
            self.model.sampled(moved(self.parameters, device), count, self.width, seed)
            if finite
            else (self._empty(count), torch.full((count,), torch.nan))
        )
        return _written(self, self.kind, drawn.cpu(), likely.cpu())

    def likeliest(self, count: int, beams: int) -> Texts:
        """By beam search: what samples may have missed."""
        return _written(self, self.kind, *self.model.likeliest(self.parameters, self.width, beams, count))

    def _empty(self, count: int) -> torch.Tensor:
        row = [self.model.start, self.model.end, *[PADDING] * self.width][: self.width]
        return torch.tensor(row).repeat(count, 1)

    def save(self, path: pathlib.Path) -> None:
        about = {
            "kind": self.kind,
            "model": dataclasses.asdict(self.model),
            **_header(self),
        }
        tensorfiles.write(path, self.parameters, about)

    @classmethod
    def open(cls, path: pathlib.Path) -> "TextModel":
        parameters, about = tensorfiles.read(path)
        _check_header(about, {field.name for field in dataclasses.fields(cls)} - {"parameters"}, path)
        with damage_of(path):
            opened = cls(
                kind=about["kind"],
                model=LanguageModel(**about["model"]),
                parameters=parameters,
                **_read(about),
            )
            if opened.model.symbols != _symbols(opened.kind, opened.vocabulary):
                raise ValueError
        if not opened.model.fits(parameters):
            raise ValueError(f"Expected the weights of its network in {path.name}; some are missing or misshapen.")
        return opened


@dataclasses.dataclass(frozen=True, kw_only=True)
class NgramModel:
    """A Markov model of unknown words with its guarantee, from one release of counts: no network was trained.

    Its alphabet is small: what it writes has 0 for every digit, A for every capital, and one sign beyond ASCII.
    """

    medium: ClassVar[str] = "text"
    model: Markov = dataclasses.field(repr=False)
    vocabulary: tuple[str, ...] = dataclasses.field(repr=False)
    width: int
    label: str
    spending: Spending
    delta: float
    recipe_sha256: str
    rounds: int  # 1, or 0 where the release was lost
    ledger_head: Head
    earlier: tuple[Spending, ...] = ()
    tokenizer: str = "plain"

    def __post_init__(self) -> None:
        _check_earlier(self.spending, self.earlier)

    def sampled(self, count: int, seed: int) -> Texts:
        sequences = self.model.sampled(count, self.width, seed)
        return _written(self, "spelling", sequences, self.model.scored(sequences).float())

    def save(self, path: pathlib.Path) -> None:
        tensorfiles.write(path, {"table": self.model.table}, {"kind": NGRAMS, **_header(self)})

    @classmethod
    def open(cls, path: pathlib.Path) -> "NgramModel":
        tree, about = tensorfiles.read(path)
        _check_header(about, {field.name for field in dataclasses.fields(cls)} - {"model"}, path)
        with damage_of(path):
            header = _read(about)
        with files.damage(f"Expected a table of probabilities in {path.name}; it is missing or damaged."):
            return cls(model=Markov(table=tree["table"]), **header)


def _written(model: TextModel | NgramModel, kind: str, sequences: torch.Tensor, log_probability: torch.Tensor) -> Texts:
    """What a model wrote, under the model's own guarantee."""
    return Texts(
        kind=kind,
        sequences=sequences,
        log_probability=log_probability,
        vocabulary=model.vocabulary,
        label=model.label,
        spending=model.spending,
        delta=model.delta,
        earlier=model.earlier,
        tokenizer=model.tokenizer,
        round=model.rounds,
    )


def jointly(groups: Sequence[Texts | TextModel | NgramModel]) -> Guarantee:
    """Of all groups together.

    Formal guarantee: an upper bound, as `guarantee` is. What several groups name as released earlier, by one run with
    the same plans, is one release that all of them look at, and counts once.
    """
    earlier = dict.fromkeys(spending for group in groups for spending in group.earlier)
    return stated([_own(group) for group in groups], list(earlier), max(group.delta for group in groups))


def _own(group: Texts | TextModel | NgramModel) -> Spending:
    """What a group cost on top of what was released earlier."""
    return dataclasses.replace(group.spending, plans=group.spending.plans[len(_plans(group.earlier)) :])


def _plans(spendings: Sequence[Spending]) -> tuple[Promise, ...]:
    return tuple(plan for spending in spendings for plan in spending.plans)


def _header(model: TextModel | NgramModel) -> dict[str, Any]:
    """What the file of every model of text says, whatever it is made of."""
    about = {
        "width": model.width,
        "label": model.label,
        "recipe_sha256": model.recipe_sha256,
        "rounds": model.rounds,
        "ledger_head": model.ledger_head,
    }
    return about | _origin(model)


def _origin(group: Texts | TextModel | NgramModel) -> dict[str, Any]:
    """Whose words, and at what price: of models and of what they write."""
    return {
        "vocabulary": group.vocabulary,
        "tokenizer": group.tokenizer,
        "spending": group.spending.to_dict(),
        "earlier": [spending.to_dict() for spending in group.earlier],
        "delta": group.delta,
        "guarantee": jointly([group]).to_dict(),
    }


def _check_header(about: dict[str, Any], expected: set[str], path: pathlib.Path) -> None:
    if missing := expected - about.keys():
        raise ValueError(
            f"Expected a model with its guarantee in {path.name}; its header lacks {', '.join(sorted(missing))}."
        )


def _read(about: dict[str, Any]) -> dict[str, Any]:
    """The same, from a file."""
    return {
        "width": _as_width(about["width"]),
        "label": as_label(about["label"]),
        "recipe_sha256": as_label(about["recipe_sha256"]),
        "rounds": as_number(about["rounds"]),
        "ledger_head": as_head(about["ledger_head"]),
        **_read_origin(about),
    }


def _read_origin(about: dict[str, Any]) -> dict[str, Any]:
    return {
        "vocabulary": Vocabulary(words=tuple(map(as_label, about["vocabulary"])), provenance="").words,
        "tokenizer": as_label(about["tokenizer"]),
        "spending": Spending.from_dict(about["spending"]),
        "earlier": tuple(map(Spending.from_dict, about["earlier"])),
        "delta": as_delta(about["delta"]),
    }


def _as_width(value: object) -> int:
    if not files.whole(value, 2, MOST_WIDTH):
        raise ValueError
    return value


def _symbols(kind: str, vocabulary: Sequence[str]) -> int:
    return SPELLING_SYMBOLS if kind == "spelling" else len(vocabulary) + 3


def _check_earlier(spending: Spending, earlier: Sequence[Spending]) -> None:
    paid = _plans(earlier)
    if spending.plans[: len(paid)] != paid:
        raise ValueError("Expected a spending that includes what was released earlier, first of all.")
    if any(release.account.simulated for release in earlier) and not spending.account.simulated:
        raise ValueError("Expected a simulated spending: what was released earlier is.")


def _check_kind(kind: str) -> None:
    if kind not in KINDS:
        raise ValueError(f"Expected kind={kind!r} in {KINDS}.")
