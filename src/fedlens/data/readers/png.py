"""PRIVATE. Folders <user>/<label>/*.png."""

import itertools
import os
import pathlib
import re
from collections.abc import Iterable, Iterator

import numpy as np

from fedlens.data.population import DataError
from fedlens.data.readers.parts import Path, Place, RawData, Rows, decoded, number_of, of_images, rows_at_once, whole


def png(source: Path) -> RawData:
    """<source>/<user>/<label>/*.png; names of classes become numbers in sorted order, unless they are numbers."""
    source = pathlib.Path(source)
    with whole("folder", source):
        users = [path.name for path in _visible(source) if path.is_dir()]
        counts, names = [], set()  # type: list[int], set[str]
        for number, user in enumerate(users):
            labels = _visible(source / user)
            if not all(label.is_dir() for label in labels):
                raise DataError(f"Expected folders of labels in {source.name}, user index {number}; it holds a file.")
            counts.append(sum(_png_count(label, Place(source.name, 0, number)) for label in labels))
            names.update(label.name for label in labels)
    classes = _classes(names)
    return RawData(np.array(counts, np.int64), _png_parts(source, users, classes), classes)


def _classes(names: Iterable[str]) -> dict[str, int]:
    numbered = all(re.fullmatch(r"0|[1-9]\d{0,8}", name, re.ASCII) for name in names)
    return {name: int(name) if numbered else place for place, name in enumerate(sorted(names))}


def _png_count(folder: pathlib.Path, place: Place) -> int:
    with os.scandir(folder) as entries:
        names = (entry.name for entry in entries if not entry.name.startswith("."))
        count = 0
        for name in names:
            if not name.lower().endswith(".png"):
                raise DataError(f"Expected .png files only in {place.file}, user index {place.user}.")
            count += 1
    return count


def _png_parts(source: pathlib.Path, users: list[str], classes: dict[str, int]) -> Iterator[Rows]:
    with whole("folder", source):
        for number, user in enumerate(users):
            files = _png_files(source / user)
            for start in itertools.count(0, rows_at_once()):
                if not (rows := list(itertools.islice(files, rows_at_once()))):
                    break
                place = Place(source.name, start, number)
                labels = np.array([number_of(classes, label, place) for _, label in rows], np.int64)
                yield of_images(place, np.full(len(rows), number), decoded((path for path, _ in rows), place), labels)


def _png_files(user: pathlib.Path) -> Iterator[tuple[pathlib.Path, str]]:
    for label in _visible(user):
        names = sorted(name for name in os.listdir(label) if not name.startswith("."))  # lighter than paths
        yield from ((label / name, label.name) for name in names)


def _visible(folder: pathlib.Path) -> list[pathlib.Path]:
    return sorted(path for path in folder.iterdir() if not path.name.startswith("."))
