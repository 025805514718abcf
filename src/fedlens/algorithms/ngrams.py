"""The one-shot baseline for words: noisy counts of character n-grams in one release, and a Markov model from them.

The alphabet is public and small, so that counts stand out of the noise: lower-case letters and a few marks as they
are, all digits as 0, all capitals as A, other ASCII marks as *, every byte beyond ASCII as one sign.
"""

import dataclasses
import functools
import heapq
import math
from collections.abc import Iterator, Sequence

import torch

from fedlens.curator import Curator
from fedlens.trees import Tree
from fedlens.words import PADDING, SPELLING_END, SPELLING_START, SPELLING_SYMBOLS

BEYOND, _BEYOND_BYTE = "\ufffd", b"\xff"  # the sign of a byte beyond ASCII, and such a byte
SIGNS = "abcdefghijklmnopqrstuvwxyz '-.,?!@<>_/0A*" + BEYOND
EDGE = len(SIGNS)  # START where it is read, END where it is written
SYMBOLS = len(SIGNS) + 1
_CLASSES = [
    SIGNS.index("0" if sign.isdigit() else "A" if sign.isupper() else sign if sign in SIGNS else "*")
    for sign in map(chr, range(128))
]
_CODES = (*_CLASSES, *[SIGNS.index(BEYOND)] * 128, EDGE, EDGE, PADDING)  # the last is that of padding


@dataclasses.dataclass(frozen=True, kw_only=True)
class Markov:
    """Words over the small alphabet: `table` holds the probability of a symbol [..., next] after order - 1 others."""

    table: torch.Tensor

    @property
    def reach(self) -> int:
        return self.table.dim() - 1

    def sampled(self, count: int, width: int, seed: int) -> list[str]:
        """Words of at most width - 2 signs, as a spelled row would hold them."""
        rng = torch.Generator().manual_seed(seed)
        drawn = torch.full((count, self.reach + width - 2), EDGE)
        alive = torch.arange(count)
        for place in range(self.reach, drawn.shape[1]):
            before = drawn[alive, place - self.reach : place].unbind(1)
            drawn[alive, place] = torch.multinomial(self.table[before], 1, generator=rng)[:, 0]
            alive = alive[drawn[alive, place] != EDGE]
            if not len(alive):
                break
        return ["".join(SIGNS[sign] for sign in row if sign != EDGE) for row in drawn[:, self.reach :].tolist()]

    def log_probability(self, words: Sequence[str]) -> torch.Tensor:
        """Of each word as the alphabet shows it, its end included."""
        contents = [word.encode("utf-8", "replace").replace(BEYOND.encode(), _BEYOND_BYTE) for word in words]
        width = max(map(len, contents), default=0) + 2
        framed = [[SPELLING_START, *content, SPELLING_END] for content in contents]
        rows = torch.tensor([row + [PADDING] * (width - len(row)) for row in framed]).view(-1, width)
        windows = _windows(rows, torch.tensor(_CODES), self.reach + 1)
        factors = self.table.log()[windows.clamp(min=0).unbind(-1)]
        return torch.where((windows >= 0).all(-1), factors, 0.0).sum(1)

    def likeliest(self, count: int, width: int = 18) -> list[tuple[str, float]]:
        """The words of highest probability, with its logarithm: exact, since a word is no likelier than its start."""
        ranked, order = (part.flatten(0, -2).tolist() for part in self.table.log().sort(descending=True))
        found: list[tuple[str, float]] = []
        heap: list[tuple[float, float, tuple[int, ...], int]] = [(-ranked[self._context(())][0], 0.0, (), 0)]
        while heap and len(found) < count:
            cost, before, prefix, rank = heapq.heappop(heap)
            context = self._context(prefix)
            if rank + 1 < SYMBOLS:  # the next best way to go on after the same signs
                heapq.heappush(heap, (before - ranked[context][rank + 1], before, prefix, rank + 1))
            sign = order[context][rank]
            if sign == EDGE:
                found.append(("".join(SIGNS[sign] for sign in prefix), -cost))
            elif len(prefix) < width - 2 and math.isfinite(cost):
                longer = (*prefix, sign)
                heapq.heappush(heap, (cost - ranked[self._context(longer)][0], cost, longer, 0))
        return found

    def _context(self, prefix: tuple[int, ...]) -> int:
        """The place, in a flat table, of what follows these signs."""
        last = ((EDGE,) * self.reach + prefix)[-self.reach :]
        return functools.reduce(lambda total, sign: total * SYMBOLS + sign, last, 0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ngrams:
    """Examples: `x` [n, width], spelled words. Pairs with a bound of norm 1 and a plan of one release."""

    noise: float  # standard deviation of a cell of an answer: plan.stddev / plan.expected_contributors
    order: int = 3
    examples_per_unit: int = 512
    deviations: float = 3.0  # of the noise; counts below are taken for nothing

    def __post_init__(self) -> None:
        if self.order not in (2, 3):
            raise ValueError(f"Expected order={self.order} to be 2 or 3.")
        if not all(value >= 0 and math.isfinite(value) for value in (self.noise, self.deviations)):
            raise ValueError("Expected noise and deviations >= 0 and finite.")

    def counts(self, message: Tree, examples: Tree, memory: Tree) -> tuple[Tree, Tree]:
        """Beside the data: how often each n-gram stands in a user's words, scaled down to norm 1."""
        windows = _windows(examples["x"], message["codes"], self.order)
        there = (windows >= 0).all(-1) & (examples["mask"] > 0)[:, None]
        cells = SYMBOLS**self.order
        place = sum(windows[..., -1 - power] * SYMBOLS**power for power in range(self.order))
        place = torch.where(there, place, cells).flatten()
        counts = torch.zeros(cells + 1, device=place.device).scatter_add(0, place, torch.ones_like(place).float())[:-1]
        size = counts.square().sum().sqrt().clamp(min=1.0)
        return {"counts": (counts / size).view([SYMBOLS] * self.order)}, memory

    def start(self) -> Tree:
        return {"counts": torch.zeros([SYMBOLS] * self.order), "round": torch.tensor(0)}

    def run(self, curator: Curator, state: Tree) -> Iterator[Tree]:
        """One release, and the state after it."""
        if not state["round"]:
            mean = curator.noisy_mean(self.counts, {"codes": torch.tensor(_CODES)})
            yield {"counts": mean["counts"].cpu(), "round": state["round"] + 1}

    def model(self, state: Tree) -> Markov:
        """What stands out of the noise, with the rest of each row from the row of one sign less before."""
        floor = self.deviations * self.noise
        counts = torch.where(state["counts"] > floor, state["counts"], 0.0).double()
        table = torch.full((SYMBOLS,), 1 / SYMBOLS, dtype=torch.float64)
        for known in range(1, self.order + 1):
            seen = counts.sum(dim=tuple(range(self.order - known))) if known < self.order else counts
            table = (seen + max(floor, 1e-9) * table) / (seen.sum(-1, keepdim=True) + max(floor, 1e-9))
        table[(EDGE,) * self.order] = 0.0  # a word has a letter
        return Markov(table=table / table.sum(-1, keepdim=True))


def _windows(rows: torch.Tensor, codes: torch.Tensor, order: int) -> torch.Tensor:
    """[n, width - 1, order]: every symbol after START with those before it; negative where there is none."""
    symbols = codes[rows.long().clamp(PADDING, SPELLING_SYMBOLS - 1)]
    padded = torch.cat([symbols[:, :1]] * (order - 2) + [symbols], 1)
    return torch.stack([padded[:, place : place + rows.shape[1] - 1] for place in range(order)], -1)
