"""PRIVATE. TFF's SQLite: a table of users' examples, each a serialised tf.train.Example."""

import contextlib
import pathlib
import sqlite3
import urllib.parse
from collections.abc import Iterator, Sequence
from typing import Any

from fedlens.data.population import DataError
from fedlens.data.readers.parts import Path, Place, RawData, whole
from fedlens.data.readers.sentences import MOST_SENTENCE, Passage, as_text, check_names, gathered

_Value = int | memoryview
_COLUMNS = ("client_id", "split_name", "serialized_example_proto")
_BYTES, _NUMBERS = 1, 3  # which list of a Feature holds them


def sqlite(
    source: Path, sentences: str = "tokens", attributes: Sequence[str] = (), split: str | None = None
) -> RawData:
    """TensorFlow Federated's SQLite, as StackOverflow comes in; one `split` of it, or all."""
    check_names(attributes)
    path = pathlib.Path(source)
    if not path.is_file():
        raise DataError(f"Expected the file {path.name}; it is missing.")
    return gathered([path], lambda path: _examples(path, sentences, attributes, split), path.name, attributes)


def _examples(path: pathlib.Path, sentences: str, attributes: Sequence[str], split: str | None) -> Iterator[Passage]:
    address = f"file:{urllib.parse.quote(str(path.absolute()))}?mode=ro"
    with whole("SQLite", path), contextlib.closing(sqlite3.connect(address, uri=True)) as database:
        database.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MOST_SENTENCE)  # a longer blob is an error before it is read
        database.execute("PRAGMA trusted_schema = OFF")
        _check_table(database, path)
        query = "SELECT client_id, serialized_example_proto FROM examples"
        chosen = database.execute(*((query,) if split is None else (f"{query} WHERE split_name = ?", (split,))))
        row = -1
        for row, (user, example) in enumerate(chosen):
            place = Place(path.name, row)
            if not isinstance(user, str | int) or not isinstance(example, bytes):
                raise DataError(f"Expected a client id and an example in {place.at(0)}; it holds something else.")
            sentence, *values = _example(example, sentences, attributes, place.at(0))
            yield Passage(place, [as_text(sentence, place.at(0))], (user, *values))
        if row < 0 and split is not None:
            raise DataError(f"Expected examples of the split {split} in {path.name}; there are none.")


def _check_table(database: sqlite3.Connection, path: pathlib.Path) -> None:
    there = [name for _, name, *_ in database.execute("PRAGMA table_info(examples)")]
    if missing := [name for name in _COLUMNS if name not in there]:
        raise DataError(f"Expected {', '.join(missing)} in the table examples of {path.name}.")
    # A view could be a query without an end.
    plain = "SELECT count(*) FROM sqlite_master WHERE name = 'examples' AND type = 'table' AND sql LIKE 'CREATE TABLE%'"
    if database.execute(plain).fetchone() != (1,):
        raise DataError(f"Expected a plain table examples in {path.name}; it is something else.")
    ((page,),) = database.execute("PRAGMA page_size")
    if path.stat().st_size % page:  # SQLite itself takes what is missing of the last page for zeros
        raise EOFError


def _example(example: bytes, sentences: str, attributes: Sequence[str], where: str) -> list[Any]:
    """The sentence, as bytes, and the attributes; tokens that are stored one by one are put apart by spaces."""
    try:
        features = _features(example)
        if missing := [name for name in (sentences, *attributes) if name not in features]:
            raise DataError(f"Expected the features {', '.join(missing)} in {where}; it has none.")
        words = [_message(word) for word in _listed(features[sentences], _BYTES, where)]
        return [b" ".join(words), *(_number(_listed(features[name], _NUMBERS, where), where) for name in attributes)]
    except DataError:
        raise
    except (ValueError, IndexError):
        raise DataError(f"Expected a whole tf.train.Example in {where}; it is cut short or damaged.") from None


def _features(example: bytes) -> dict[str, memoryview]:
    """By their names: Example.features.feature is a map."""
    held: dict[str, memoryview] = {}
    for features in _fields(memoryview(example), 1):
        for entry in _fields(_message(features), 1):
            (name,), (value,) = (list(_fields(_message(entry), number)) for number in (1, 2))
            held[bytes(_message(name)).decode()] = _message(value)
    return held


def _listed(feature: memoryview, kind: int, where: str) -> list[_Value]:
    """What a feature lists, which must be of this kind."""
    lists = list(_all_fields(feature))
    if any(number != kind for number, _ in lists):
        what = "text" if kind == _BYTES else "whole numbers"
        raise DataError(f"Expected {what} in the features of {where}; one holds something else.")
    return [value for _, values in lists for value in _fields(_message(values), 1)]


def _number(values: list[_Value], where: str) -> int:
    numbers = [number for value in values for number in ([value] if isinstance(value, int) else _packed(value))]
    if len(numbers) != 1:
        raise DataError(f"Expected one number as an attribute in {where}; it holds none or several.")
    return numbers[0] if numbers[0] < 2**63 else numbers[0] - 2**64


def _fields(message: memoryview, wanted: int) -> Iterator[_Value]:
    return (value for number, value in _all_fields(message) if number == wanted)


def _all_fields(message: memoryview) -> Iterator[tuple[int, _Value]]:
    """Protocol buffers' wire format: number and value of each field; IndexError or ValueError where it is none."""
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        if key & 7 == 0:
            value, at = _varint(message, at)
            yield key >> 3, value
            continue
        if key & 7 not in (1, 2, 5):
            raise ValueError
        length, at = _varint(message, at) if key & 7 == 2 else (8 if key & 7 == 1 else 4, at)
        if length > len(message) - at:
            raise IndexError
        yield key >> 3, message[at : at + length]
        at += length


def _varint(message: memoryview, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        byte = message[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value & (2**64 - 1), at
    raise ValueError


def _packed(values: memoryview) -> Iterator[int]:
    at = 0
    while at < len(values):
        value, at = _varint(values, at)
        yield value


def _message(value: _Value) -> memoryview:
    if isinstance(value, int):
        raise ValueError
    return value
