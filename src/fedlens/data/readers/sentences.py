"""PRIVATE. What readers of text share: sentences made sure of, whose they are, and rows of bytes.

A source is gone over twice: once to count each user's sentences, once to hand them out. A user without any stays one.
"""

import itertools
import pathlib
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedlens.data.population import DataError, Population
from fedlens.data.readers.parts import Place, RawData, Rows, number_of, numbered, rows_at_once
from fedlens.models.words import SENTENCE_BYTES, as_row

AT_ONCE = 16  # sentences of unknown length that are read together
MOST_SENTENCE = 2**20  # bytes of one that is read whole, before it is cut: a hostile one must not take all memory
ID_LENGTH = 1000  # characters of a user id, at most
_RESERVED = ("text", "x", "mask", "offsets")

Head = tuple[Any, ...]  # a user's id, then the attributes of some sentences


class Passage(NamedTuple):
    """Some sentences of one user; a source may say only with the last ones of a place whose they are."""

    place: Place
    sentences: list[str]
    head: Head | None


Read = Callable[[pathlib.Path], Iterator[Passage]]  # of one file of a source


def gathered(paths: Sequence[pathlib.Path], read: Read, name: str, attributes: Sequence[str]) -> RawData:
    """What two passes over the files of a source find, as rows; `name` is the source's."""
    counts: Counter[Any] = Counter()
    late: dict[Place, Head] = {}
    before = 0  # sentences of this place that came before its head
    for place, sentences, head in itertools.chain.from_iterable(map(read, paths)):
        before += len(sentences)
        if head is None:
            late[place] = ()
            continue
        counts[head[0]] += before
        before = 0
        if place in late:
            late[place] = head
    numbers, held = numbered(counts, name)
    again = itertools.chain.from_iterable(map(read, paths))
    return RawData(held, _rows(again, numbers, late, attributes))


def _rows(
    passages: Iterable[Passage], numbers: dict[Any, int], late: dict[Place, Head], attributes: Sequence[str]
) -> Iterator[Rows]:
    users: list[int] = []
    texts: list[str] = []
    values: list[Head] = []
    for place, sentences, named in passages:
        head = named or late.get(place, (None,))  # nobody's, where the source has changed
        users += [number_of(numbers, head[0], place)] * len(sentences)
        texts += sentences
        values += [head[1:]] * len(sentences)
        if len(users) >= rows_at_once():
            yield Rows(place, np.array(users), _columns(texts, values, attributes))
            users, texts, values = [], [], []
    if users:
        yield Rows(place, np.array(users), _columns(texts, values, attributes))


def _columns(texts: list[str], values: list[Head], attributes: Sequence[str]) -> dict[str, np.ndarray]:
    columns = {"text": np.stack([as_row(text) for text in texts])}
    numbers = np.array(values, np.int64).reshape(len(texts), len(attributes))
    return columns | {name: numbers[:, place] for place, name in enumerate(attributes)}


def as_text(value: object, where: str) -> str:
    """A sentence as far as it is kept: of text, or of bytes in UTF-8."""
    try:
        text = bytes(value).decode() if isinstance(value, bytes | memoryview) else value
        if not isinstance(text, str):
            raise DataError(f"Expected text in {where}; it holds something else.")
        text = text[:SENTENCE_BYTES]
        text.encode()
    except UnicodeError:
        raise DataError(f"Expected valid UTF-8 in {where}; it holds something else.") from None
    if "\0" in text:
        raise DataError(f"Expected no NUL character in {where}; it holds one.")
    return text


def as_whole(value: object, where: str) -> int:
    if type(value) is not int or not -(2**63) <= value < 2**63:
        raise DataError(f"Expected attributes as whole numbers in {where}; it holds something else.")
    return value


def check_names(attributes: Sequence[str], *others: str) -> None:
    """Attributes become columns, and columns files."""
    good = (re.fullmatch(r"\w{1,64}", name, re.ASCII) and name not in _RESERVED for name in attributes)
    if not all(good) or len({*attributes, *others}) < len(attributes) + len(others):
        taken = ", ".join(_RESERVED)
        raise ValueError(f"Expected distinct names of letters, digits and _ that are not {taken}, as attributes.")


def checked(population: Population) -> list[str]:
    """Reads all sentences once and lists what a run would stumble over; empty when all is well."""
    column, problems = population.columns["text"], []
    if (population.counts < 1).any():
        empty = int(np.flatnonzero(population.counts < 1)[0])
        problems.append(f"user index {empty} holds no sentence; it will contribute nothing")
    if column.dtype != np.uint8 or column.shape[1:] != (SENTENCE_BYTES,):
        return [*problems, f"text is {column.dtype} {list(column.shape[1:])}, not uint8 [{SENTENCE_BYTES}]"]
    for start in range(0, len(column), 2**14):
        rows = np.asarray(column[start : start + 2**14])
        gaps = ((rows[:, :-1] == 0) & (rows[:, 1:] != 0)).any(1)
        if gaps.any():
            problems.append(f"text, row {start + int(np.argmax(gaps))} has zeros before its end")
        if (odd := _not_utf8(rows)) is not None:
            problems.append(f"text, row {start + odd} is not valid UTF-8")
        if gaps.any() or odd is not None:
            break
    return problems


def _not_utf8(rows: np.ndarray) -> int | None:
    """The first such row; a zero after each, lest one that is cut short be made whole by the next."""
    apart = np.pad(rows, ((0, 0), (0, 1)))
    try:
        apart.tobytes().decode()
    except UnicodeDecodeError as error:
        return int(error.start // apart.shape[1])
    return None
