"""The one-shot baseline for words: noisy counts of character n-grams in one release, and a Markov model from them."""

import dataclasses
import math
from typing import ClassVar

import torch

from fedlens.algorithms.protocol import Asked, OneRelease
from fedlens.core.trees import Tree
from fedlens.models.markov import CODES, EDGE, SYMBOLS, Markov, windows


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ngrams(OneRelease):
    """Examples: `x` [n, width], spelled words. Pairs with a bound of norm 1 and a plan of one release."""

    noise: float  # standard deviation of a cell of an answer: plan.stddev / plan.expected_contributors
    order: int = 3
    examples_per_unit: int = 512
    deviations: float = 3.0  # of the noise; counts below are taken for nothing

    name: ClassVar[str] = "ngrams"
    media: ClassVar[tuple[str, ...]] = ("text",)
    options: ClassVar[frozenset[str]] = frozenset()

    @classmethod
    def configured(cls, asked: Asked) -> "Ngrams":
        return cls(noise=asked.plan.stddev / asked.plan.expected_contributors, order=asked.network["order"])

    def __post_init__(self) -> None:
        if self.order not in (2, 3):
            raise ValueError(f"Expected order={self.order} to be 2 or 3.")
        if not all(value >= 0 and math.isfinite(value) for value in (self.noise, self.deviations)):
            raise ValueError("Expected noise and deviations >= 0 and finite.")

    def contribute(self, message: Tree, examples: Tree, memory: Tree) -> tuple[Tree, Tree]:
        """Beside the data: how often each n-gram stands in a user's words, scaled down to norm 1."""
        grams = windows(examples["x"], message["codes"], self.order)
        there = (grams >= 0).all(-1) & (examples["mask"] > 0)[:, None]
        cells = SYMBOLS**self.order
        place = sum(grams[..., -1 - power] * SYMBOLS**power for power in range(self.order))
        place = torch.where(there, place, cells).flatten()
        counts = torch.zeros(cells + 1, device=place.device).scatter_add(0, place, torch.ones_like(place).float())[:-1]
        size = counts.square().sum().sqrt().clamp(min=1.0)
        return {"counts": (counts / size).view([SYMBOLS] * self.order)}, memory

    def start(self) -> Tree:
        return {"counts": torch.zeros([SYMBOLS] * self.order), "round": torch.tensor(0)}

    def message(self) -> Tree:
        """The alphabet."""
        return {"codes": torch.tensor(CODES)}

    def result(self, state: Tree) -> Markov:
        """What stands out of the noise, with the rest of each row from the row of one sign less before."""
        floor = self.deviations * self.noise
        counts = torch.where(state["counts"] > floor, state["counts"], 0.0).double()
        table = torch.full((SYMBOLS,), 1 / SYMBOLS, dtype=torch.float64)
        for known in range(1, self.order + 1):
            seen = counts.sum(dim=tuple(range(self.order - known))) if known < self.order else counts
            table = (seen + max(floor, 1e-9) * table) / (seen.sum(-1, keepdim=True) + max(floor, 1e-9))
        table[(EDGE,) * self.order] = 0.0  # a word has a letter
        return Markov(table=table / table.sum(-1, keepdim=True))
