"""PRIVATE. LEAF JSON: users and their flattened images, or their sentences."""

import itertools
import json
import pathlib
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np

from fedlens.core import files
from fedlens.data.population import DataError
from fedlens.data.readers import parts
from fedlens.data.readers.json_pieces import Json
from fedlens.data.readers.parts import Path, Place, RawData, Rows
from fedlens.data.readers.sentences import ID_LENGTH, Passage, as_text, gathered
from fedlens.models.words import SENTENCE_BYTES

_MOST = 2**31  # bytes of one file of images: in memory it takes about eight times as many
_FRAME = {"<BOS>", "<EOS>", "<PAD>"}  # with which LEAF fills Reddit's comments up to pieces of ten tokens


def leaf(source: Path) -> RawData:
    """LEAF's JSON: one file or a folder of them, each of which fits into memory; a user may be in several."""
    paths = parts.files_of(source, ".json")
    counts: Counter[Any] = Counter()
    for key, held in itertools.chain.from_iterable(map(_leaf_users, paths)):
        counts[key] += len(held["y"])
    numbers, rows = parts.numbered(counts, pathlib.Path(source).name)
    return RawData(rows, _leaf_parts(paths, numbers))


def _leaf_parts(paths: list[pathlib.Path], numbers: dict[Any, int]) -> Iterator[Rows]:
    for file in paths:
        for key, held in _leaf_users(file):
            user = parts.number_of(numbers, key, Place(file.name))
            place = Place(file.name, 0, user)
            parts.check_paired(len(held["x"]), len(held["y"]), place)
            if held["y"]:
                labels, images = _whole_labels(held["y"], place), _leaf_images(held["x"], place)
                yield parts.of_images(place, np.full(len(labels), user), images, labels)


def _leaf_users(file: pathlib.Path) -> Iterator[tuple[str, dict[str, list[Any]]]]:
    with parts.whole("JSON", file):
        about = json.loads(files.content(file, _MOST, DataError))
    if not isinstance(about, dict) or not isinstance(data := about.get("user_data"), dict):
        raise DataError(f"Expected users and user_data in {file.name}.")
    users = about.get("users")
    if not isinstance(users, list) or len(users) != len(data) or any(not _known(key, data) for key in users):
        raise DataError(f"Expected as users of {file.name} those of its user_data.")
    for number, held in enumerate(data.values()):
        if not isinstance(held, dict) or not all(isinstance(held.get(key), list) for key in "xy"):
            raise DataError(f"Expected lists x and y in {file.name}, entry {number} of user_data.")
    yield from data.items()


def _known(key: object, data: dict[str, Any]) -> bool:
    return isinstance(key, str) and key in data


def _whole_labels(values: list[Any], place: Place) -> np.ndarray:
    odd = (row for row, value in enumerate(values) if type(value) is not int or abs(value) >= 2**63)
    if (row := next(odd, None)) is not None:
        raise DataError(f"Expected labels as whole numbers; that of {place.at(row)} is none.")
    return parts.as_labels(np.array(values, np.int64), place)


def _leaf_images(rows: list[Any], place: Place) -> np.ndarray:
    """Always shares of 1, also where a user's pixels happen to be written 0 and 1."""
    for row, values in enumerate(rows):
        if not isinstance(values, list) or not all(type(value) in (int, float) for value in values):
            raise DataError(f"Expected images as lists of numbers; {place.at(row)} holds something else.")
        if len(values) != len(rows[0]):
            raise DataError(f"Expected images of one size; {place.at(row)} has another.")
    with parts.whole("JSON", pathlib.Path(place.file)):  # a whole number too long for a float
        array = np.array(rows, np.float64)
    return parts.as_bytes(array, place)


def leaf_text(source: Path) -> RawData:
    """LEAF's JSON of text: one file or a folder of them, of any size; `x` lists strings, tokens or pieces of tokens."""
    paths = parts.files_of(source, ".json")
    return gathered(paths, _passages, pathlib.Path(source).name, ())


def _passages(path: pathlib.Path) -> Iterator[Passage]:
    with parts.whole("JSON", path), path.open("rb") as file:
        json = Json(file, path.name)
        listed: list[str] | None = None
        held: set[str] | None = None
        for key in json.members():
            if key == "users" and listed is None:
                listed = [json.string(ID_LENGTH + 1) for _ in json.items()]
            elif key == "user_data" and held is None:
                held = set()
                for number, user in enumerate(json.members()):
                    json.where = f"{path.name}, entry {number} of user_data"
                    if user in held or len(user) > ID_LENGTH:
                        raise DataError(f"Expected a new user of at most {ID_LENGTH} characters as {json.where}.")
                    held.add(user)
                    yield from (Passage(Place(path.name, number), part, (user,)) for part in _parts_of_user(json))
                json.where = path.name
            else:
                json.skip()
        if json.peek():
            raise json.damaged()
        if listed is None or held is None or len(listed) != len(held) or set(listed) != held:
            raise DataError(f"Expected as users of {path.name} those of its user_data, each once.")


def _parts_of_user(json: Json) -> Iterator[list[str]]:
    part: list[str] = []
    lists = 0
    for key in json.members():
        if key != "x":
            json.skip()
            continue
        lists += 1
        for _ in json.items():
            if len(part) == parts.rows_at_once():
                yield part
                part = []
            part.append(as_text(_sentence(json), json.where))
    if lists != 1:
        raise DataError(f"Expected one list x in {json.where}.")
    yield part


def _sentence(json: Json) -> str:
    if json.peek() != "[":
        return json.string(SENTENCE_BYTES)
    words, length = [], 0  # type: list[str], int
    for word in _words(json):
        if length < SENTENCE_BYTES and word not in _FRAME:
            words.append(word)
            length += len(word) + 1
    return " ".join(words)


def _words(json: Json, pieces: bool = True) -> Iterator[str]:
    for _ in json.items():
        if pieces and json.peek() == "[":
            yield from _words(json, pieces=False)
        else:
            yield json.string(SENTENCE_BYTES)
