"""PRIVATE. Lines of JSON: a user and its sentences, or one sentence of a user, in each."""

import itertools
import pathlib
from collections.abc import Iterator, Sequence
from typing import Any

from fedlens.data.population import DataError
from fedlens.data.readers.json_pieces import Json
from fedlens.data.readers.parts import Path, Place, RawData, files_of, rows_at_once, unzipped, whole
from fedlens.data.readers.sentences import ID_LENGTH, Head, Passage, as_text, check_names, gathered
from fedlens.models.words import SENTENCE_BYTES


def jsonl(source: Path, users: str = "user", sentences: str = "text", attributes: Sequence[str] = ()) -> RawData:
    """One .jsonl or .jsonl.gz or a folder of them; a user may be in any number of lines, in any order."""
    check_names(attributes, users, sentences)
    paths, names = files_of(source, ".jsonl", ".jsonl.gz"), (users, *attributes)
    return gathered(paths, lambda path: _lines(path, names, sentences), pathlib.Path(source).name, attributes)


def _lines(path: pathlib.Path, names: Sequence[str], sentences: str) -> Iterator[Passage]:
    with whole("gzip" if path.suffix == ".gz" else "text", path), unzipped(path) as file:
        json = Json(file, path.name, spaces=" \t\r")
        for line in itertools.count(1):
            json.where = f"{path.name}, line {line}"
            if json.peek() not in ("\n", ""):
                yield from (Passage(Place(path.name, line), *held) for held in _line(json, names, sentences))
            if json.peek() == "":
                return
            json.take("\n")


def _line(json: Json, names: Sequence[str], sentences: str) -> Iterator[tuple[list[str], Head | None]]:
    """The sentences of a line in parts; with the last of them, whose they are."""
    held: list[str] = []
    values: dict[str, Any] = {}
    for key in json.members():
        if key in values:
            raise DataError(f"Expected {key} once in {json.where}; it comes twice.")
        if key == sentences:
            values[key] = None
            for sentence in _sentences(json):
                if len(held) == rows_at_once():
                    yield held, None
                    held = []
                held.append(sentence)
        elif key in names:
            values[key] = _user(json, key) if key == names[0] else json.whole(f"{key} as a whole number")
        else:
            json.skip()
    if missing := [name for name in (*names, sentences) if name not in values]:
        raise DataError(f"Expected {', '.join(missing)} in {json.where}; it has none.")
    yield held, tuple(values[name] for name in names)


def _sentences(json: Json) -> Iterator[str]:
    if json.peek() != "[":
        yield as_text(json.string(SENTENCE_BYTES), json.where)
        return
    for _ in json.items():
        yield as_text(json.string(SENTENCE_BYTES), json.where)


def _user(json: Json, name: str) -> str | int:
    if json.peek() != '"':
        return json.whole(f"{name} as text or a whole number")
    user = json.string(ID_LENGTH + 1)
    if len(user) > ID_LENGTH:
        raise DataError(f"Expected user ids of at most {ID_LENGTH} characters; that of {json.where} is longer.")
    return user
