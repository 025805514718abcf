"""PRIVATE. idx files, as MNIST has them, with a file of writer ids."""

import math
import pathlib
import struct
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np

from fedlens.data.population import DataError, mapped
from fedlens.data.readers import parts
from fedlens.data.readers.parts import Path, Place, RawData, Rows

_IDX_TYPES = {8: ">u1", 9: ">i1", 11: ">i2", 12: ">i4", 13: ">f4", 14: ">f8"}


def idx(source: Path, users: Path | None = None, labels: Path | None = None) -> RawData:
    """Images, labels and user ids in three files (idx, or .npy for the ids) of one row per example, in any order."""
    if users is None or labels is None:
        raise ValueError("Expected the files of labels and users beside idx images.")
    paths = [pathlib.Path(path) for path in (source, labels, users)]
    if len({_row_count(path) for path in paths}) > 1:
        raise DataError(f"Expected as many rows in each of {', '.join(path.name for path in paths)}.")
    counts: Counter[Any] = Counter()
    for ids in _rows(paths[2], parts.rows_at_once()):
        keys, held = _unique(ids, paths[2], return_counts=True)
        counts.update(dict(zip(keys, held.tolist(), strict=True)))
    numbers, rows = parts.numbered(counts, paths[2].name)
    return RawData(rows, _idx_parts(paths, numbers))


def _idx_parts(paths: list[pathlib.Path], numbers: dict[Any, int]) -> Iterator[Rows]:
    with parts.whole("idx", paths[0]), parts.unzipped(paths[0]) as file:
        dtype, shape = _header(file, paths[0])
    first, step = 0, parts.rows_at_once(math.prod(shape[1:]) * dtype.itemsize)
    for images, labels, ids in zip(*(_rows(path, step) for path in paths), strict=True):
        place = Place(paths[0].name, first)
        keys, codes = _unique(ids, paths[2], return_inverse=True)
        own = np.array([parts.number_of(numbers, key, place) for key in keys], np.int64)[codes]
        whole_labels = parts.as_labels(labels, Place(paths[1].name, first))
        yield parts.of_images(place, own, parts.as_bytes(images, place), whole_labels)
        first += len(ids)


def _unique(ids: np.ndarray, path: pathlib.Path, **more: bool) -> tuple[list[Any], np.ndarray]:
    if ids.ndim != 1 or ids.dtype.kind not in "iuUS":
        raise DataError(f"Expected user ids as one whole number or text per row in {path.name}, got {ids.dtype}.")
    with parts.whole(".npy", path):  # numbers that stand for no letter make numpy fail as they become text
        keys, other = np.unique(ids, **more)  # type: ignore[call-overload]
        return keys.tolist(), other


def _row_count(path: pathlib.Path) -> int:
    if path.suffix == ".npy":
        return len(mapped(path))
    with parts.whole("idx", path), parts.unzipped(path) as file:
        return _header(file, path)[1][0]


def _rows(path: pathlib.Path, step: int) -> Iterator[np.ndarray]:
    """The rows in parts of equal length, so that those of several files lie side by side."""
    if path.suffix == ".npy":
        array = mapped(path)
        yield from (np.asarray(array[start : start + step]) for start in range(0, len(array), step))
        return
    with parts.whole("idx", path), parts.unzipped(path) as file:
        dtype, (count, *shape) = _header(file, path)
        for start in range(0, count, step):
            rows = min(step, count - start)
            array = np.frombuffer(file.read(rows * math.prod(shape) * dtype.itemsize), dtype).reshape(rows, *shape)
            yield array.astype(dtype.newbyteorder("="))
        if file.read(1):
            raise DataError(f"Expected {path.name} to end where its header says; it is longer.")


def _header(file: Any, path: pathlib.Path) -> tuple[np.dtype, list[int]]:
    zero, code, dimensions = struct.unpack(">HBB", file.read(4))
    if zero or code not in _IDX_TYPES or dimensions < 1:
        raise DataError(f"Expected an idx header in {path.name}; it has another.")
    shape = np.frombuffer(file.read(4 * dimensions), ">u4", dimensions).tolist()
    if not 1 <= math.prod(shape[1:]) <= 4 * parts.SIDE**2:  # rows of nothing could be any number
        raise DataError(f"Expected images of at most {parts.SIDE} x {parts.SIDE} pixels in {path.name}.")
    return np.dtype(_IDX_TYPES[code]), shape
