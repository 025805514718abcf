"""Words as a Markov chain of signs: each depends on the few before it.

The alphabet is public and small, so that counts stand out of the noise: lower-case letters and a few marks as they
are, all digits as 0, all capitals as A, other ASCII marks as *, every byte beyond ASCII as one sign.
"""

import dataclasses
import functools
import heapq
import math
from collections.abc import Sequence

import torch

from fedlens.models.words import PADDING, SPELLING_END, SPELLING_START, SPELLING_SYMBOLS

BEYOND, _BEYOND_BYTE = "\ufffd", b"\xff"  # the sign of a byte beyond ASCII, and such a byte
SIGNS = "abcdefghijklmnopqrstuvwxyz '-.,?!@<>_/0A*" + BEYOND
EDGE = len(SIGNS)  # START where it is read, END where it is written
SYMBOLS = len(SIGNS) + 1
_CLASSES = [
    SIGNS.index("0" if sign.isdigit() else "A" if sign.isupper() else sign if sign in SIGNS else "*")
    for sign in map(chr, range(128))
]
CODES = (*_CLASSES, *[SIGNS.index(BEYOND)] * 128, EDGE, EDGE, PADDING)  # of a row's symbols; the last is of padding
_SPELLINGS = (*SIGNS[:-1].encode(), *_BEYOND_BYTE, SPELLING_END)  # a row's symbol for each of ours


@dataclasses.dataclass(frozen=True, kw_only=True)
class Markov:
    """Words over the small alphabet: `table` holds the probability of a symbol [..., next] after order - 1 others."""

    table: torch.Tensor = dataclasses.field(repr=False)

    def __post_init__(self) -> None:
        table = self.table
        shaped = table.dtype in (torch.float32, torch.float64) and table.dim() >= 2 and set(table.shape) == {SYMBOLS}
        if not shaped or not torch.allclose(sums := table.sum(-1), torch.ones_like(sums)):
            raise ValueError(f"Expected a table of {SYMBOLS} symbols in every direction, each row a distribution.")
        if (table < 0).any():
            raise ValueError("Expected probabilities >= 0.")

    @property
    def reach(self) -> int:
        return self.table.dim() - 1

    def sampled(self, count: int, width: int, seed: int) -> torch.Tensor:
        """Words as spelled rows [count, width]; those without END by then are cut."""
        rng = torch.Generator().manual_seed(seed)
        drawn = torch.full((count, self.reach + width - 1), EDGE)
        rows = torch.full((count, width), PADDING, dtype=torch.int16)
        rows[:, 0] = SPELLING_START
        spellings, alive = torch.tensor(_SPELLINGS, dtype=torch.int16), torch.arange(count)
        for place in range(1, width):
            before = drawn[alive, place - 1 : place - 1 + self.reach].unbind(1)
            signs = torch.multinomial(self.table[before], 1, generator=rng)[:, 0]
            drawn[alive, place - 1 + self.reach] = signs
            rows[alive, place] = spellings[signs]
            alive = alive[signs != EDGE]
            if not len(alive):
                break
        return rows

    def scored(self, rows: torch.Tensor) -> torch.Tensor:
        """The joint log-probability of each spelled row as the alphabet shows it, its END included if it has one."""
        signs = windows(rows, torch.tensor(CODES), self.reach + 1)
        factors = self.table.log()[signs.clamp(min=0).unbind(-1)]
        return torch.where((signs >= 0).all(-1), factors, 0.0).sum(1)

    def log_probability(self, words: Sequence[str]) -> torch.Tensor:
        """Of each word as the alphabet shows it, its end included."""
        contents = [word.encode("utf-8", "replace").replace(BEYOND.encode(), _BEYOND_BYTE) for word in words]
        width = max(map(len, contents), default=0) + 2
        framed = [[SPELLING_START, *content, SPELLING_END] for content in contents]
        return self.scored(torch.tensor([row + [PADDING] * (width - len(row)) for row in framed]).view(-1, width))

    def likeliest(self, count: int, width: int = 18) -> list[tuple[str, float]]:
        """The words of highest probability, with its logarithm: exact, since a word is no likelier than its start."""
        ranked, order = (part.flatten(0, -2).tolist() for part in self.table.log().sort(descending=True))
        words: list[tuple[str, float]] = []
        heap: list[tuple[float, float, tuple[int, ...], int]] = [(-ranked[self._context(())][0], 0.0, (), 0)]
        while heap and len(words) < count:
            cost, before, prefix, rank = heapq.heappop(heap)
            context = self._context(prefix)
            if rank + 1 < SYMBOLS:  # the next best way to go on after the same signs
                heapq.heappush(heap, (before - ranked[context][rank + 1], before, prefix, rank + 1))
            sign = order[context][rank]
            if sign == EDGE:
                words.append(("".join(SIGNS[sign] for sign in prefix), -cost))
            elif len(prefix) < width - 2 and math.isfinite(cost):
                longer = (*prefix, sign)
                heapq.heappush(heap, (cost - ranked[self._context(longer)][0], cost, longer, 0))
        return words

    def _context(self, prefix: tuple[int, ...]) -> int:
        """The place, in a flat table, of what follows these signs."""
        last = ((EDGE,) * self.reach + prefix)[-self.reach :]
        return functools.reduce(lambda total, sign: total * SYMBOLS + sign, last, 0)


def windows(rows: torch.Tensor, codes: torch.Tensor, order: int) -> torch.Tensor:
    """[n, width - 1, order]: every symbol after START with those before it; negative where there is none."""
    symbols = codes[rows.long().clamp(PADDING, SPELLING_SYMBOLS - 1)]
    padded = torch.cat([symbols[:, :1]] * (order - 2) + [symbols], 1)
    return torch.stack([padded[:, place : place + rows.shape[1] - 1] for place in range(order)], -1)
