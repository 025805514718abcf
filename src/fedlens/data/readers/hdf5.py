"""PRIVATE. TFF's HDF5: one group for each user, of images or of text."""

import contextlib
import math
import pathlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from fedlens.core import files
from fedlens.data.population import DataError
from fedlens.data.readers import parts
from fedlens.data.readers.parts import Path, Place, RawData, Rows
from fedlens.data.readers.sentences import AT_ONCE, MOST_SENTENCE, Passage, as_text, as_whole, check_names, gathered
from fedlens.models.words import SENTENCE_BYTES


def hdf5(source: Path, users: str = "examples", images: str = "pixels", labels: str = "label") -> RawData:
    """TensorFlow Federated's HDF5: a group per user, which holds pixels and labels."""
    source, counts = pathlib.Path(source), []
    with _users(source, users, (images, labels)) as held:
        declared = 0
        for place, _, columns in held:
            counts.append(_paired(columns, place))
            # A dataset may declare rows that nobody wrote; images of a byte a pixel are made of them.
            declared += max(columns[0].size, sum(one.size * one.dtype.itemsize for one in columns))
            files.check_declared(declared, source.stat().st_size, source.name, DataError)
    return RawData(np.array(counts, np.int64), _images(source, users, (images, labels)))


def _images(source: pathlib.Path, users: str, names: tuple[str, str]) -> Iterator[Rows]:
    with _users(source, users, names) as held:
        for first, _, (images, labels) in held:
            step = parts.rows_at_once(math.prod(images.shape[1:]) * images.dtype.itemsize)
            for start in range(0, _paired((images, labels), first), step):
                place, rows = first._replace(first=start), slice(start, start + step)
                own = parts.as_labels(labels[rows], place)
                yield parts.of_images(place, np.full(len(own), place.user), parts.as_bytes(images[rows], place), own)


def _paired(columns: Sequence[Any], place: Place) -> int:
    """How many images there are, each with its label."""
    parts.check_paired(len(columns[0]), len(columns[1]), place)
    if len(columns[0]):
        parts.as_side(columns[0].shape[1:], place)
    return len(columns[0])


@contextlib.contextmanager
def _users(path: pathlib.Path, users: str, names: Sequence[str]) -> Iterator[Iterator[tuple[Place, str, list[Any]]]]:
    """The columns of every user, one after the other, in a file that is open meanwhile."""
    with parts.needed("h5py", "HDF5"):
        import h5py
    with parts.whole("HDF5", path), h5py.File(path, "r") as file:
        if not isinstance(group := file.get(users), h5py.Group):
            raise DataError(f"Expected the group {users} in {path.name}.")
        yield (
            (place, key, _own_columns(file, group[key], names, place))
            for place, key in ((Place(path.name, 0, number), key) for number, key in enumerate(sorted(group)))
        )


def _own_columns(file: Any, group: Any, names: Sequence[str], place: Place) -> list[Any]:
    """What stands in this very file, in pieces that may be read: a link could lead to any file of this machine."""
    import h5py

    held: list[Any] = [group.get(name) if isinstance(group, h5py.Group) else None for name in names]
    if not all(isinstance(one, h5py.Dataset) and one.ndim for one in held):
        raise DataError(f"Expected columns {' and '.join(names)} in {place.file}, user index {place.user}.")
    for one in held:
        elsewhere = one.file.filename != file.filename or one.is_virtual or one.external
        piece = math.prod(one.chunks or (1,)) * one.dtype.itemsize
        if elsewhere or piece > files.MOST_DECLARED or one.dtype.itemsize > MOST_SENTENCE:
            wanted = f"columns of its own, in pieces of at most {files.MOST_DECLARED:,} bytes"
            raise DataError(f"Expected {wanted}, in {place.file}, user index {place.user}; there is something else.")
    return held


def hdf5_text(
    source: Path, users: str = "examples", sentences: str = "snippets", attributes: Sequence[str] = ()
) -> RawData:
    """TensorFlow Federated's HDF5 of text: a group per user, which holds strings, as Shakespeare's does."""
    check_names(attributes, sentences)
    path = pathlib.Path(source)
    return gathered([path], lambda path: _passages(path, users, (sentences, *attributes)), path.name, attributes)


def _passages(path: pathlib.Path, users: str, names: tuple[str, ...]) -> Iterator[Passage]:
    with _users(path, users, names) as held:
        declared = 0
        for first, key, columns in held:
            declared += SENTENCE_BYTES * columns[0].size
            files.check_declared(declared, path.stat().st_size, path.name, DataError)
            for place, values in _pieces(columns, first):
                for row, (text, *numbers) in enumerate(zip(*values, strict=True)):
                    where = place.at(row)
                    yield Passage(place, [as_text(text, where)], (key, *(as_whole(one, where) for one in numbers)))
            if not len(columns[0]):
                yield Passage(first, [], (key,))


def _pieces(columns: list[Any], place: Place) -> Iterator[tuple[Place, list[list[Any]]]]:
    """A few rows at a time."""
    if len({len(one) for one in columns}) > 1 or any(one.ndim != 1 for one in columns):
        raise DataError(f"Expected columns of one length in {place.file}, user index {place.user}.")
    step = min(AT_ONCE, parts.rows_at_once(columns[0].dtype.itemsize))  # of strings in a heap, the size of a pointer
    for start in range(0, len(columns[0]), step):
        yield place._replace(first=start), [one[start : start + step].tolist() for one in columns]
