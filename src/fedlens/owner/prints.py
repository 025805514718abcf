"""PRIVATE. Keyed prints of examples: the same data are recognised under another name, order or format.

Whoever has no key can neither compute a print nor test a guess against one.
"""

import dataclasses
import hashlib
import hmac
import pathlib
from collections.abc import Iterator

import numpy as np

from fedlens.data.population import Population
from fedlens.media import reading
from fedlens.media.reading import Reading

_SLICE = 4096  # examples that are read together
MOST = 2**20  # prints that are kept, the smallest ones: a sample of the examples, the same whoever draws it
_TOTAL = 2**128


@dataclasses.dataclass(frozen=True, eq=False)
class Prints:
    """Of the examples of a population, or of a file that is called public."""

    whole: str  # of all examples, in any order, whoever holds them
    grouped: str  # of all examples with their labels, attributes and who holds which; "" where nobody does
    # Of different examples: sorted, 64 bits each, the last one if telling.
    sample: np.ndarray = dataclasses.field(repr=False)

    def shared_with(self, other: "Prints", telling: bool = False) -> float:
        """Which share of these examples the other holds too, as far as the samples of both reach; of all, or of those
        that are `telling`: short sentences and blank images are held by many."""
        reach = min(held[-1] if len(held) == MOST else 2**64 - 1 for held in (self.sample, other.sample))
        own = self.sample[self.sample <= np.uint64(reach)]
        own = own[own % 2 == 1] if telling else own
        return float(np.isin(own, other.sample, assume_unique=True).mean()) if len(own) else 0.0


def overlap(one: Prints, other: Prints) -> float:
    """How much of either lies in the other: a month in its year, too."""
    return max(one.shared_with(other), other.shared_with(one))


def of_population(population: Population, key: bytes) -> Prints:
    """Reads everything once, a part at a time."""
    medium = reading.of_population(population)
    others = sorted(population.columns.keys() - {medium.column})
    whole, grouped, owner, held = 0, 0, 0, 0
    kept = _Sample()
    ends = population.starts + population.counts
    for row, (content, more) in enumerate(_rows(population, medium, others)):
        number = _number(key, content)
        whole += number
        held += _number(key, content + more)
        kept.add(number, medium.telling(content))
        while owner < len(ends) and row + 1 >= ends[owner]:
            grouped += _number(key, b"user %d" % (held % _TOTAL))
            owner, held = owner + 1, 0
    return Prints(_sealed(key, whole), _sealed(key, grouped), kept.sorted())


def of_public(
    path: pathlib.Path, medium: Reading, key: bytes, column: str | None = None, declared: bool = True
) -> Prints:
    """Of a file that is called public."""
    whole, kept = 0, _Sample()
    for content in medium.public_contents(path, column, declared):
        number = _number(key, content)
        whole += number
        kept.add(number, medium.telling(content))
    return Prints(_sealed(key, whole), "", kept.sorted())


def _rows(population: Population, medium: Reading, others: list[str]) -> Iterator[tuple[bytes, bytes]]:
    column = population.columns[medium.column]
    contents = medium.contents(column)
    for start in range(0, len(column), _SLICE):
        more = [np.asarray(population.columns[other][start : start + _SLICE]) for other in others]
        rows = (b"|".join(str(value).encode() for value in values) for values in zip(*more, strict=True))
        for _ in range(min(_SLICE, len(column) - start)):
            yield next(contents), next(rows, b"")


def _number(key: bytes, content: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(content, key=key, digest_size=16).digest(), "big")


def _sealed(key: bytes, total: int) -> str:
    return hmac.new(key, b"total %d" % (total % _TOTAL), hashlib.sha256).hexdigest()


class _Sample:
    """The MOST smallest of different numbers; twice as many are held at the most."""

    def __init__(self) -> None:
        self._held: list[int] = []

    def add(self, number: int, telling: bool) -> None:
        self._held.append((number >> 65 << 1) + telling)
        if len(self._held) >= 2 * MOST:
            self._held = self._smallest()

    def sorted(self) -> np.ndarray:
        return np.array(self._smallest(), np.uint64)

    def _smallest(self) -> list[int]:
        return sorted({*self._held})[:MOST]
