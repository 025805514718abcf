"""PRIVATE. TFF's HDF5: one group for each user, of images or of text."""

import math
import pathlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from fedlens.core import files
from fedlens.data.population import DataError
from fedlens.data.readers.parts import (
    Part,
    Path,
    Place,
    Sentences,
    Source,
    as_bytes,
    as_labels,
    as_side,
    check_paired,
    needed,
    rows_at_once,
    whole,
)
from fedlens.data.readers.sentences import AT_ONCE, MOST_SENTENCE, Passage, as_text, as_whole, check_names, gathered
from fedlens.models.words import SENTENCE_BYTES


def hdf5(source: Path, users: str = "examples", images: str = "pixels", labels: str = "label") -> Source:
    """TensorFlow Federated's HDF5: a group per user, which holds pixels and labels."""
    with needed("h5py", "HDF5"):
        import h5py
    source = pathlib.Path(source)
    with whole("HDF5", source), h5py.File(source, "r") as file:
        if not isinstance(group := file.get(users), h5py.Group):
            raise DataError(f"Expected the group {users} in {source.name}.")
        keys, counts, declared = sorted(group), [], 0
        for number, key in enumerate(keys):
            held = _datasets(file, group[key], (images, labels), Place(source.name, 0, number))
            counts.append(len(held[1]))
            # A dataset may declare rows that nobody wrote; images of a byte a pixel are made of them.
            declared += max(held[0].size, sum(one.size * one.dtype.itemsize for one in held))
            files.check_declared(declared, source.stat().st_size, source.name, DataError)
    return Source(np.array(counts, np.int64), _hdf5_parts(source, keys, users, (images, labels)))


def _hdf5_parts(source: pathlib.Path, keys: list[str], users: str, names: tuple[str, str]) -> Iterator[Part]:
    import h5py

    with whole("HDF5", source), h5py.File(source, "r") as file:
        for number, key in enumerate(keys):
            images, labels = _datasets(file, file[users][key], names, Place(source.name, 0, number))
            step = rows_at_once(math.prod(images.shape[1:]) * images.dtype.itemsize)
            for start in range(0, len(labels), step):
                place, rows = Place(source.name, start, number), slice(start, start + step)
                own = as_labels(labels[rows], place)
                yield Part(place, np.full(len(own), number), as_bytes(images[rows], place), own)


def _datasets(file: Any, group: Any, names: tuple[str, str], place: Place) -> list[Any]:
    import h5py

    held: list[Any] = [group.get(name) if isinstance(group, h5py.Group) else None for name in names]
    if not all(isinstance(one, h5py.Dataset) and one.ndim for one in held):
        raise DataError(f"Expected columns {' and '.join(names)} in {place.file}, user index {place.user}.")
    _check_own(file, held, place)
    check_paired(len(held[0]), len(held[1]), place)
    if len(held[0]):
        as_side(held[0].shape[1:], place)
    return held


def _check_own(file: Any, datasets: list[Any], place: Place) -> None:
    """What stands in this very file, in pieces that may be read: a link could lead to any file of this machine."""
    for one in datasets:
        elsewhere = one.file.filename != file.filename or one.is_virtual or one.external
        piece = math.prod(one.chunks or (1,)) * one.dtype.itemsize
        if elsewhere or piece > files.MOST_DECLARED or one.dtype.itemsize > MOST_SENTENCE:
            wanted = f"columns of its own, in pieces of at most {files.MOST_DECLARED:,} bytes"
            raise DataError(f"Expected {wanted}, in {place.file}, user index {place.user}; there is something else.")


def hdf5_text(
    source: Path, users: str = "examples", sentences: str = "snippets", attributes: Sequence[str] = ()
) -> Sentences:
    """TensorFlow Federated's HDF5 of text: a group per user, which holds strings, as Shakespeare's does."""
    with needed("h5py", "HDF5"):
        import h5py  # noqa: F401
    check_names(attributes, sentences)
    path = pathlib.Path(source)
    return gathered(lambda: _passages(path, users, (sentences, *attributes)), path.name, attributes)


def _passages(path: pathlib.Path, users: str, names: tuple[str, ...]) -> Iterator[Passage]:
    import h5py

    with whole("HDF5", path), h5py.File(path, "r") as file:
        if not isinstance(group := file.get(users), h5py.Group):
            raise DataError(f"Expected the group {users} in {path.name}.")
        declared = 0
        for number, key in enumerate(sorted(group)):
            declared += SENTENCE_BYTES * _length(group[key], names[0])
            files.check_declared(declared, path.stat().st_size, path.name, DataError)
            for start, columns in _columns(file, group[key], names, Place(path.name, 0, number)):
                place = Place(path.name, start, number)
                for row, (text, *values) in enumerate(zip(*columns, strict=True)):
                    where = place.at(row)
                    head = (key, *(as_whole(value, where) for value in values))
                    yield Passage(place, [as_text(text, where)], head)
                if not len(columns[0]):
                    yield Passage(place, [], (key,))


def _length(group: Any, name: str) -> int:
    import h5py

    held = group.get(name) if isinstance(group, h5py.Group) else None
    return int(held.size or 0) if isinstance(held, h5py.Dataset) else 0


def _columns(file: Any, group: Any, names: tuple[str, ...], place: Place) -> Iterator[tuple[int, list[list[Any]]]]:
    """The columns of one user, a few rows at a time; at least once."""
    import h5py

    held: list[Any] = [group.get(name) if isinstance(group, h5py.Group) else None for name in names]
    if not all(isinstance(one, h5py.Dataset) and one.ndim == 1 for one in held):
        raise DataError(f"Expected columns {' and '.join(names)} in {place.file}, user index {place.user}.")
    _check_own(file, held, place)
    if len({len(one) for one in held}) > 1:
        raise DataError(f"Expected columns of one length in {place.file}, user index {place.user}.")
    step = min(AT_ONCE, rows_at_once(held[0].dtype.itemsize))  # of strings in a heap, the size of a pointer
    for start in range(0, max(1, len(held[0])), step):
        yield start, [one[start : start + step].tolist() for one in held]
