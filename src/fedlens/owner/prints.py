"""PRIVATE. Keyed prints of examples: the same data are recognised under another name, order or format.

Whoever has no key can neither compute a print nor test a guess against one.
"""

import dataclasses
import hashlib
import heapq
import hmac
import itertools
from collections.abc import Iterable, Iterator

import numpy as np

from fedlens.data.population import Population
from fedlens.models.words import as_row

_SLICE = 4096  # examples that are read together
MOST = 2**20  # prints that are kept, the smallest ones: a sample of the examples, the same whoever draws it
TELLING = 16  # bytes that a sentence must have: "thank you" is said everywhere
_TOTAL = 2**128


@dataclasses.dataclass(frozen=True, eq=False)
class Prints:
    """Of the examples of a population, or of a file that is called public."""

    whole: str  # of all examples, in any order, whoever holds them
    grouped: str  # of all examples with their labels, attributes and who holds which; "" where nobody does
    sample: np.ndarray = dataclasses.field(
        repr=False
    )  # of different examples: sorted, 64 bits each, the last one if telling

    def shared_with(self, other: "Prints", telling: bool = False) -> float:
        """Which share of these examples the other holds too, as far as the samples of both reach; of all, or of those
        that are `telling`: short sentences and blank images are held by many."""
        reach = min(found[-1] if len(found) == MOST else 2**64 - 1 for found in (self.sample, other.sample))
        own = self.sample[self.sample <= np.uint64(reach)]
        own = own[own % 2 == 1] if telling else own
        return float(np.isin(own, other.sample, assume_unique=True).mean()) if len(own) else 0.0


def overlap(one: Prints, other: Prints) -> float:
    """How much of either lies in the other: a month in its year, too."""
    return max(one.shared_with(other), other.shared_with(one))


def of_population(population: Population, key: bytes) -> Prints:
    """Reads everything once, a part at a time."""
    name = "text" if "text" in population.columns else "x"
    beside = sorted(population.columns.keys() - {name})
    whole, grouped, owner, held = 0, 0, 0, 0
    kept = _Sample()
    ends = population.starts + population.counts
    for row, (content, more) in enumerate(_rows(population, name, beside)):
        number = _number(key, content)
        whole += number
        held += _number(key, content + more)
        kept.add(number, _telling(content, name == "text"))
        while owner < len(ends) and row + 1 >= ends[owner]:
            grouped += _number(key, b"user %d" % (held % _TOTAL))
            owner, held = owner + 1, 0
    return Prints(_sealed(key, whole), _sealed(key, grouped), kept.sorted())


def of_images(arrays: Iterable[np.ndarray], key: bytes) -> Prints:
    return _of(itertools.chain.from_iterable(map(_images_as_bytes, arrays)), key, text=False)


def of_sentences(sentences: Iterable[str], key: bytes) -> Prints:
    """As a population of text would hold them."""
    return _of((bytes(as_row(sentence)).rstrip(b"\0") for sentence in sentences), key, text=True)


def _images_as_bytes(images: np.ndarray) -> Iterator[bytes]:
    """Whether they were kept as bytes or as floats in [-1, 1]: what were the same bytes are the same again."""
    for start in range(0, len(images), _SLICE):
        part = np.asarray(images[start : start + _SLICE])
        if part.dtype != np.uint8:
            part = ((part.astype(np.float64) + 1) * 127.5).round().clip(0, 255).astype(np.uint8)
        yield from (image.tobytes() for image in part)


def _of(contents: Iterable[bytes], key: bytes, text: bool) -> Prints:
    whole, kept = 0, _Sample()
    for content in contents:
        number = _number(key, content)
        whole += number
        kept.add(number, _telling(content, text))
    return Prints(_sealed(key, whole), "", kept.sorted())


def _rows(population: Population, name: str, beside: list[str]) -> Iterator[tuple[bytes, bytes]]:
    column = population.columns[name]
    contents = _sentences_as_bytes(column) if name == "text" else _images_as_bytes(column)
    for start in range(0, len(column), _SLICE):
        others = [np.asarray(population.columns[other][start : start + _SLICE]) for other in beside]
        rows = (b"|".join(str(value).encode() for value in values) for values in zip(*others, strict=True))
        for _ in range(min(_SLICE, len(column) - start)):
            yield next(contents), next(rows, b"")


def _sentences_as_bytes(column: np.ndarray) -> Iterator[bytes]:
    for start in range(0, len(column), _SLICE):
        yield from (row.tobytes().rstrip(b"\0") for row in np.asarray(column[start : start + _SLICE]))


def _telling(content: bytes, text: bool) -> bool:
    """Not a short sentence nor a blank image."""
    return len(content) >= TELLING if text else content.count(content[:1]) < len(content)


def _number(key: bytes, content: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(content, key=key, digest_size=16).digest(), "big")


def _sealed(key: bytes, total: int) -> str:
    return hmac.new(key, b"total %d" % (total % _TOTAL), hashlib.sha256).hexdigest()


class _Sample:
    """The smallest of different numbers; of the largest population no more than MOST are held."""

    def __init__(self) -> None:
        self._heap: list[int] = []  # of negative numbers: the largest comes first
        self._held: set[int] = set()

    def add(self, number: int, telling: bool) -> None:
        short = (number >> 65 << 1) + telling
        if short in self._held:
            return
        if len(self._heap) < MOST:
            heapq.heappush(self._heap, -short)
            self._held.add(short)
        elif short < -self._heap[0]:
            self._held.discard(-heapq.heapreplace(self._heap, -short))
            self._held.add(short)

    def sorted(self) -> np.ndarray:
        return np.array(sorted(self._held), np.uint64)
