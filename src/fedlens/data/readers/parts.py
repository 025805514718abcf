"""PRIVATE. What all readers share: parts of a source, images and labels made sure of, keys, damaged files."""

import contextlib
import functools
import gzip
import io
import math
import os
import pathlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedlens.core import files
from fedlens.data.population import DataError

Path = pathlib.Path | str
ROWS = 512  # in one part, at most
_BYTES = 2**22  # in one part, about, where rows of numbers are read
SIDE = 1024  # of an image: a damaged or hostile header must not ask for all memory
whole = functools.partial(files.readable, error=DataError)  # around a file: what libraries say may quote it


class Place(NamedTuple):
    """Where rows were read, in words that anybody may hear."""

    file: str
    first: int = 0
    user: int | None = None

    def at(self, row: int) -> str:
        user = "" if self.user is None else f"user index {self.user}, "
        return f"{self.file}, {user}row {self.first + row}"


class Rows(NamedTuple):
    """Some rows of every column, and the index of each row's user."""

    place: Place
    users: np.ndarray
    columns: Mapping[str, np.ndarray]


class RawData(NamedTuple):
    """How many rows each user holds, all rows part by part, and the numbers of named classes where there are any."""

    counts: np.ndarray
    rows: Iterator[Rows]
    classes: Mapping[str, int] | None = None


def of_images(place: Place, users: np.ndarray, images: np.ndarray, labels: np.ndarray) -> Rows:
    """Images [n, 1, side, side] in bytes, and whole labels."""
    return Rows(place, users, {"x": images, "y": labels})


def decoded(images: Iterable[Any], place: Place) -> np.ndarray:
    decoded: list[np.ndarray] = []
    for row, image in enumerate(images):
        decoded.append(_one_png(image, place.at(row)))
        if decoded[-1].shape != decoded[0].shape:
            raise DataError(f"Expected images of one size; {place.at(row)} has another.")
    return as_bytes(np.stack(decoded) if decoded else np.zeros((0, 0)), place)


def _one_png(image: Any, where: str) -> np.ndarray:
    from PIL import Image

    try:
        with image.open("rb") if isinstance(image, pathlib.Path) else io.BytesIO(image) as stored:
            # Decoding alone checks no checksum of the pixels, and lets a missing end pass.
            Image.open(stored, formats=["PNG"]).verify()
            stored.seek(0)
            opened = Image.open(stored, formats=["PNG"])
            if opened.mode not in ("1", "L"):
                raise DataError(f"Expected grey images of 8 bits; {where} has colour, transparency or more bits.")
            if opened.width != opened.height or opened.width > SIDE:
                raise DataError(f"Expected square images of at most {SIDE} pixels a side; {where} is none.")
            return np.asarray(opened.convert("L"))
    except DataError:
        raise
    except Exception:  # Pillow raises a dozen kinds for damaged files, some with bytes of the file in the text
        raise DataError(f"Expected a whole PNG; {where} is cut short or damaged.") from None


def as_bytes(array: np.ndarray, place: Place) -> np.ndarray:
    """Bytes [n, 1, side, side] of bytes, whole numbers in 0..255 or floats in 0..1."""
    side = as_side(array.shape[1:], place) if len(array) else 0
    if array.dtype.kind not in "uif":
        raise DataError(f"Expected pixels as numbers in {place.file}, got {array.dtype}.")
    top = 1 if array.dtype.kind == "f" else 255
    if array.dtype != np.uint8:
        good = ((array >= 0) & (array <= top)).reshape(len(array), -1).all(1)  # NaN is not good
        if not good.all():
            raise DataError(f"Expected pixels in 0..{top}; {place.at(int(np.argmin(good)))} holds others.")
        array = (array * 255.0).round() if top == 1 else array
    return array.astype(np.uint8, copy=False).reshape(len(array), 1, side, side)


def as_side(shape: Sequence[int], place: Place) -> int:
    if len(shape) == 3 and 1 not in (shape[0], shape[-1]) and {3, 4} & {shape[0], shape[-1]}:
        raise DataError(f"Expected grey images; {place.at(0)} has colour.")
    if len(shape) == 3 and 1 in (shape[0], shape[-1]):
        shape = shape[1:] if shape[0] == 1 else shape[:-1]
    side = math.isqrt(shape[0]) if len(shape) == 1 else shape[0] if shape else 0
    if tuple(shape) not in ((side * side,), (side, side)) or not 0 < side <= SIDE:
        raise DataError(f"Expected square grey images of at most {SIDE} pixels a side; {place.at(0)} is none.")
    return side


def as_labels(array: np.ndarray, place: Place) -> np.ndarray:
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise DataError(f"Expected labels as one whole number per row in {place.file}, got {array.dtype}.")
    return below(array, None, place).astype(np.int64)


def below(labels: np.ndarray, classes: int | None, place: Place) -> np.ndarray:
    limit = 2**63 if classes is None else classes
    bad = (labels < 0) | (labels > limit - 1)
    if bad.any():
        wanted = "of 0 and above" if classes is None else f"in 0..{classes - 1}"
        raise DataError(f"Expected labels {wanted}; that of {place.at(int(np.argmax(bad)))} is not.")
    return labels


def numbered(counts: Mapping[Any, int], name: str) -> tuple[dict[Any, int], np.ndarray]:
    """Each key's place in sorted order, and the counts in that order.

    A user must not become two because its id is text here and a number there.
    """
    if len({type(key) for key in counts}) > 1:
        raise DataError(f"Expected user ids of one type in all of {name}.")
    keys = sorted(counts)
    return {key: number for number, key in enumerate(keys)}, np.array([counts[key] for key in keys], np.int64)


def number_of(numbers: Mapping[Any, int], key: Any, place: Place) -> int:
    if key not in numbers:
        raise DataError(f"Expected {place.file} to stay as it is while it is read; it changed.")
    return numbers[key]


def rows_at_once(row: int = 1) -> int:
    """How many rows of so many bytes make a part."""
    return min(ROWS, max(1, _BYTES // max(1, row)))


def check_paired(images: int, labels: int, place: Place) -> None:
    if images != labels:
        raise DataError(f"Expected a label for every image in {place.file}, user index {place.user}.")


def files_of(source: Path, *suffixes: str) -> list[pathlib.Path]:
    source = pathlib.Path(source)
    if not source.exists():
        raise DataError(f"Expected the file {source.name}; it is missing.")
    inside = (path for suffix in suffixes for path in source.glob(f"*{suffix}"))
    files = sorted(inside) if source.is_dir() else [source]
    if not files:
        raise DataError(f"Expected {' or '.join(suffixes)} files in {source.name}; there are none.")
    return files


@contextlib.contextmanager
def unzipped(path: pathlib.Path) -> Iterator[Any]:
    """A file to `read` from; one that is zipped gives only as much as its size makes plausible."""
    with path.open("rb") as file:
        if path.suffix != ".gz":
            yield file
            return
        with gzip.open(file) as inner:
            yield _Unzipped(inner, path.name, os.fstat(file.fileno()).st_size)


class _Unzipped:
    """What comes out of a zipped file, counted."""

    def __init__(self, file: Any, name: str, size: int) -> None:
        self._file, self._name, self._size, self._given = file, name, size, 0

    def read(self, most: int) -> bytes:
        piece: bytes = self._file.read(most)
        self._given += len(piece)
        files.check_declared(self._given, self._size, self._name, DataError)
        return piece


@contextlib.contextmanager
def needed(name: str, kind: str) -> Iterator[None]:
    try:
        yield
    except ImportError:
        raise ValueError(f"Expected {name} to read {kind}: pip install 'fedlens[readers]'.") from None
