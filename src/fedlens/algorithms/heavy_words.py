"""Frequent words of an open domain: a tree of prefixes, grown by one byte in each release.

After TrieHH (Zhu et al., "Federated Heavy Hitters Discovery with Differential Privacy", AISTATS 2020), with everybody's
words at every depth and Gaussian noise in place of votes: user u marks the cells (prefix, next byte or END) that its
words go through, and the server keeps the cells whose noisy sum no noise alone is likely to reach.
"""

import dataclasses
import functools
import math
import statistics
from collections.abc import Iterator
from typing import ClassVar

import torch

from fedlens.algorithms.protocol import Answered, Forgetful, Unseeded
from fedlens.core.trees import Tree
from fedlens.curators.protocol import Curator
from fedlens.models.words import PADDING, SPELLING_END, SPELLING_START, SPELLING_SYMBOLS, Vocabulary, unspelled

ALL_BYTES = tuple(range(256))
_FACTOR = 0x9E3779B97F4A7C15  # of the polynomial that stands for a prefix, modulo 2^64
_NOBODY = 2**63 - 1  # the key of an empty slot


@dataclasses.dataclass(frozen=True, kw_only=True)
class HeavyWords(Forgetful, Unseeded):
    """Examples: `x` [n, width], spelled words. Pairs with a bound of norm 1; as many releases as bytes, and one.

    A word of b bytes needs b + 1 releases to come out. Memory and time beside the data grow with most x alphabet.
    """

    noise: float  # standard deviation of a cell of an answer: plan.stddev / plan.expected_contributors
    width: int = 18
    most: int = 1000  # prefixes that are followed at a time
    alphabet: tuple[int, ...] = ALL_BYTES  # words with other bytes are not found
    examples_per_unit: int = 512
    first_marks: float = 20.0  # different first bytes of a usual user's words
    spurious: float = 0.1  # cells that come through by noise alone, expected in one release

    name: ClassVar[str] = "heavy-words"

    def __post_init__(self) -> None:
        if not (self.noise >= 0 and math.isfinite(self.noise)):
            raise ValueError(f"Expected noise={self.noise} >= 0 and finite.")
        if self.width < 3 or self.most < 1 or self.examples_per_unit < 1 or self.first_marks < 1:
            raise ValueError("Expected width >= 3, and most, examples_per_unit and first_marks >= 1.")
        if not 0 < self.spurious < 1:
            raise ValueError(f"Expected spurious={self.spurious} between 0 and 1.")
        if not self.alphabet or set(self.alphabet) - set(ALL_BYTES) or len(set(self.alphabet)) < len(self.alphabet):
            raise ValueError("Expected an alphabet of different bytes.")

    @property
    def columns(self) -> int:
        return len(self.alphabet) + 1  # the last is END

    def contribute(self, message: Tree, examples: Tree, memory: Tree) -> tuple[Tree, Tree]:
        """Beside the data: the cells that a user's words go through, each once, with a joint norm of at most 1."""
        x = examples["x"].long()
        key = (message["powers"] * (x + 2)).sum(-1)
        slot = torch.searchsorted(message["keys"], key).clamp(max=self.most - 1)
        column = message["columns"][(message["here"] * x).sum(-1).clamp(PADDING, SPELLING_SYMBOLS - 1)]
        followed = (message["keys"][slot] == key) & (column >= 0) & (examples["mask"] > 0)
        cells = self.most * self.columns
        place = torch.where(followed, slot * self.columns + column, cells)
        marked = torch.zeros(cells + 1, device=x.device).scatter(0, place, 1.0)[:-1]
        weight = torch.maximum(message["usual"], marked.sum()).rsqrt()
        return {"marks": (weight * marked).view(self.most, self.columns)}, memory

    def start(self) -> Tree:
        """The public state before the first release: the empty prefix, and no word."""
        root = torch.full((1, self.width), PADDING, dtype=torch.int16)
        root[0, 0] = SPELLING_START
        nothing = {"words": root[:0], "shares": torch.zeros(0)}
        return nothing | {"prefixes": root, "usual": torch.tensor(self.first_marks), "round": torch.tensor(0)}

    def run(self, curator: Curator, state: Tree) -> Iterator[Tree]:
        """One state per depth, until the plan is spent or there is nothing left to follow."""
        while curator.remaining and len(state["prefixes"]) and int(state["round"]) < self.width - 1:
            message, answered = self.round(state)
            yield (state := answered(curator.noisy_mean(self.contribute, message)))

    def round(self, state: Tree) -> tuple[Tree, Answered]:
        """What tells users where to mark, and what grows from their marks."""
        return self.message(state), functools.partial(self._grown, state)

    def message(self, state: Tree) -> Tree:
        """The keys of the prefixes and how to read a row at this depth: of one shape at every depth."""
        depth = int(state["round"])
        keys = torch.full((self.most,), _NOBODY)
        keys[: len(state["prefixes"])] = _keys(state["prefixes"], depth)
        columns = torch.full((SPELLING_SYMBOLS + 1,), -1)  # the last is that of padding
        columns[[*self.alphabet, SPELLING_END]] = torch.arange(self.columns)
        here = (torch.arange(self.width) == depth + 1).long()
        powers = _powers(self.width, depth)
        return {"keys": keys, "powers": powers, "here": here, "columns": columns, "usual": state["usual"]}

    def _grown(self, state: Tree, answer: Tree) -> Tree:
        """The server's part of a release: the cells it keeps, as words and as longer prefixes."""
        prefixes, depth = state["prefixes"], int(state["round"]) + 1
        mean = answer["marks"].cpu()[: len(prefixes)]
        threshold = self.noise * statistics.NormalDist().inv_cdf(1 - self.spurious / mean.numel())
        kept, shares = mean > threshold, mean * state["usual"].sqrt()
        ended = kept[:, -1]
        slot, column = kept[:, :-1].nonzero(as_tuple=True)
        best = shares[slot, column].argsort(descending=True, stable=True)[: self.most]
        slot, column = slot[best], column[best]
        longer = prefixes[slot]
        longer[:, depth] = torch.tensor(self.alphabet, dtype=torch.int16)[column]
        return {
            "words": torch.cat([state["words"], prefixes[ended]]),
            "shares": torch.cat([state["shares"], shares[ended, -1]]),
            "prefixes": longer[_keys(longer, depth).argsort()],
            "usual": shares[slot, column].sum().clamp(min=1.0),  # marks that a user is expected to make next
            "round": state["round"] + 1,
        }

    def result(self, state: Tree) -> list[tuple[str, float]]:
        """Every word that came out with the noisy share of users who have it, most frequent first."""
        order = state["shares"].argsort(descending=True, stable=True)
        return [(unspelled(state["words"][place].numpy()), float(state["shares"][place])) for place in order]

    def vocabulary(self, state: Tree, guarantee: str) -> Vocabulary:
        """The words found that a vocabulary can hold; the `guarantee` is what their release was charged with."""
        words = [
            word for word, _ in self.result(state) if word and "\ufffd" not in word and not any(map(str.isspace, word))
        ]
        return Vocabulary(words=tuple(words), provenance=f"charged release of frequent words: {guarantee}")


def _keys(rows: torch.Tensor, depth: int) -> torch.Tensor:
    """A number for START and the first `depth` bytes; two prefixes share one with a chance of about 2^-64."""
    return (_powers(rows.shape[1], depth) * (rows.long() + 2)).sum(-1)


def _powers(width: int, depth: int) -> torch.Tensor:
    powers = [pow(_FACTOR, place, 2**64) if place <= depth else 0 for place in range(width)]
    return torch.tensor([power - 2**64 if power >= 2**63 else power for power in powers])
