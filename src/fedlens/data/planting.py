"""PRIVATE. Faults planted on purpose, to rehearse: whom they hit follows from each unit's own data and a public seed.

Were it a share of all units, one who left would change what others hold, and a rehearsal on private data would have no
bound. The price: the share is met on average, not exactly.
"""

import dataclasses
import hashlib
from collections.abc import Iterator

import numpy as np

from fedlens.data.population import DataError, Population

_SLICE = 4096  # examples that are hashed together: memory must not grow with what one unit holds


@dataclasses.dataclass(frozen=True, kw_only=True)
class Planting:
    """How many are hit: a `fraction` of the units with a `share` of their examples, or of every unit's examples."""

    fraction: float
    by_unit: bool = True
    share: float = 1.0
    seed: int = 0

    def hits(self, population: Population, column: str) -> Iterator[tuple[int, np.ndarray, bool]]:
        """Of every unit: which of its rows are hit, and whether it is marked as hit; one unit after the other."""
        if population.rows is not None:
            raise DataError("Expected a whole population to plant a bug on, got a selection of one.")
        for unit in range(len(population)):
            rows = population.starts[unit] + np.arange(population.counts[unit])
            struck = self._struck(population.columns[column], rows)
            wrong = self._wrong(population.columns[column], rows, struck)
            yield unit, rows[wrong], struck if self.by_unit else bool(wrong.any())

    def _struck(self, column: np.ndarray, rows: np.ndarray) -> bool:
        if not len(rows) or not self.fraction:  # where nobody is hit, nothing need be read
            return False
        return not self.by_unit or _drawn(f"{self.seed} user", column, rows) < self.fraction

    def _wrong(self, column: np.ndarray, rows: np.ndarray, struck: bool) -> np.ndarray:
        share = self.share if self.by_unit else self.fraction
        if not struck:
            return np.zeros(len(rows), bool)
        if share == 1:
            return np.ones(len(rows), bool)
        # The word is older than images here; with another, other sentences would be hit than in docs/results.
        drawn = [_drawn(f"{self.seed} sentence", column, rows[at : at + 1]) for at in range(len(rows))]
        return np.array(drawn) < share


def _drawn(label: str, column: np.ndarray, rows: np.ndarray) -> float:
    """A number in [0, 1) that looks random, of what these rows hold."""
    digest = hashlib.sha256(label.encode())
    for at in range(0, len(rows), _SLICE):
        digest.update(np.ascontiguousarray(column[rows[at : at + _SLICE]]).data)
    return int.from_bytes(digest.digest()[:7], "big") / 2**56
