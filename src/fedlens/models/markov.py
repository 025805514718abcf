"""Words as a Markov chain of signs: each depends on the few before it.

The alphabet is public and small, so that counts stand out of the noise: lower-case letters and a few marks as they
are, all digits as 0, all capitals as A, other ASCII marks as *, every byte beyond ASCII as one sign.
"""

import dataclasses
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


def windows(rows: torch.Tensor, codes: torch.Tensor, order: int) -> torch.Tensor:
    """[n, width - 1, order]: every symbol after START with those before it; negative where there is none."""
    symbols = codes[rows.long().clamp(PADDING, SPELLING_SYMBOLS - 1)]
    padded = torch.cat([symbols[:, :1]] * (order - 2) + [symbols], 1)
    return torch.stack([padded[:, place : place + rows.shape[1] - 1] for place in range(order)], -1)
