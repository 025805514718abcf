"""PRIVATE. Readers of image populations (parquet, idx, LEAF, TFF, folders of PNG) into the canonical mapped form.

Every reader goes over its source twice: once to count each user's rows, once to hand them out part by part, so that
memory grows with the number of users but not of images. Errors name files, row numbers and user indices (a user's
place in the sorted order of keys, which is also its place in the population), never a key, a label or a pixel.
"""

import contextlib
import gzip
import io
import itertools
import json
import math
import mmap
import os
import pathlib
import re
import shutil
import struct
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedlens.population import VERSION, DataError, Population

KINDS = ("parquet", "idx", "leaf", "hdf5", "png")
_ROWS = 512  # in one part, at most
_BYTES = 2**22  # in one part, about, where rows of numbers are read
_SIDE = 1024  # of an image: a damaged or hostile header must not ask for all memory
_LARGE = 2**28  # bytes of a written column beyond which its pages are not kept
_IDX_TYPES = {8: ">u1", 9: ">i1", 11: ">i2", 12: ">i4", 13: ">f4", 14: ">f8"}

Path = pathlib.Path | str


class Place(NamedTuple):
    """Where rows were read, in words that anybody may hear."""

    file: str
    first: int = 0
    user: int | None = None

    def at(self, row: int) -> str:
        user = "" if self.user is None else f"user index {self.user}, "
        return f"{self.file}, {user}row {self.first + row}"


class Part(NamedTuple):
    """Some rows: the index of each one's user, images [n, 1, side, side] in bytes, whole labels."""

    place: Place
    users: np.ndarray
    images: np.ndarray
    labels: np.ndarray


class Source(NamedTuple):
    """How many rows each user holds, all rows part by part, and the numbers of named classes where there are any."""

    counts: np.ndarray
    parts: Iterator[Part]
    classes: Mapping[str, int] | None = None


def convert(
    source: Path,
    folder: Path,
    *,
    kind: str | None = None,
    users: Path | None = None,
    images: Path | None = None,
    labels: Path | None = None,
    name: str | None = None,
    classes: int | None = None,
    inverted: bool = False,
) -> Population:
    """Writes the source as a population folder, whole or not at all, and opens it.

    `users`, `images` and `labels` name columns (parquet: user, image, label), a group and its datasets (hdf5: examples,
    pixels, label) or files (idx: `users` and `labels`, no default). Labels must lie below `classes`, if given.
    Floats in 0..1 become bytes as they are; `inverted` swaps black and white.
    """
    source, folder = pathlib.Path(source), pathlib.Path(folder)
    if os.path.lexists(folder):
        raise DataError(f"Expected a new folder to write to; {folder.name} exists.")
    names = {key: value for key, value in (("users", users), ("images", images), ("labels", labels)) if value}
    opened = _opened(source, kind or detected(source), names)
    if not opened.counts.sum():
        raise DataError(f"Expected at least one image in {source.name}; it is empty.")
    draft = folder.parent / f".{folder.name}.{uuid.uuid4().hex}.part"
    try:
        draft.mkdir(parents=True)
        _write(opened, draft, name or source.name.split(".")[0] or "population", classes, inverted)
        draft.rename(folder)
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise
    return Population.open(folder)


def detected(source: Path) -> str:
    """The kind of a source, by the names of its files."""
    source = pathlib.Path(source)
    if not source.exists():
        raise DataError(f"Expected the file {source.name}; it is missing.")
    inside = sorted(source.iterdir()) if source.is_dir() else [source]
    patterns = {
        "parquet": r"\.parquet$",
        "leaf": r"\.json$",
        "hdf5": r"\.(h5|hdf5)$",
        "idx": r"[.-]idx(\d-ubyte)?(\.gz)?$",
    }
    for kind, pattern in patterns.items():
        if any(re.search(pattern, path.name) for path in inside if path.is_file()):
            return kind
    if source.is_dir() and any(path.is_dir() for path in inside):
        return "png"
    raise DataError(f"Expected {source.name} as one of {', '.join(KINDS)}, by the names of its files; name its kind.")


def _opened(source: pathlib.Path, kind: str, names: dict[str, Path]) -> Source:
    readers: dict[str, Any] = {"parquet": parquet, "idx": idx, "leaf": leaf, "hdf5": hdf5, "png": png}
    if kind not in readers:
        raise ValueError(f"Expected kind {kind!r} among {', '.join(KINDS)}.")
    taken = {
        "parquet": {"users", "images", "labels"},
        "idx": {"users", "labels"},
        "hdf5": {"users", "images", "labels"},
    }
    if extra := sorted(set(names) - taken.get(kind, set())):
        raise ValueError(f"Expected no name of {', '.join(extra)} for {kind}: it has none to choose.")
    if kind == "idx" and len(names) < 2:
        raise ValueError("Expected the files of labels and users beside idx images.")
    return readers[kind](source, **names)


# Parquet


def parquet(source: Path, users: str = "user", images: str = "image", labels: str = "label") -> Source:
    """One file or a folder of them; images as PNG bytes, {bytes: ...} or lists of numbers; rows in any order."""
    with _needed("pyarrow", "parquet"):
        import pyarrow.parquet  # noqa: F401
    files = _files(source, ".parquet")
    counts: Counter[Any] = Counter()
    for file in files:
        for place, batch in _batches(file, [users], [users, images, labels]):
            with _whole("parquet", file):
                keys, codes = _encoded(batch.column(0), place)
            counts.update(dict(zip(keys, np.bincount(codes, minlength=len(keys)).tolist(), strict=True)))
    numbers = _numbers(counts, pathlib.Path(source).name)
    return Source(_lengths(counts, numbers), _parquet_parts(files, numbers, users, images, labels))


def _parquet_parts(
    files: list[pathlib.Path], numbers: dict[Any, int], users: str, images: str, labels: str
) -> Iterator[Part]:
    for file in files:
        for place, batch in _batches(file, [users, images, labels], [users, images, labels]):
            with _whole("parquet", file):
                keys, codes = _encoded(batch.column(users), place)
                own = np.array([_number(numbers, key, place) for key in keys], np.int64)[codes]
                part = Part(place, own, _arrow_images(batch.column(images), place), _arrow_labels(batch, labels, place))
            yield part


def _batches(file: pathlib.Path, columns: list[str], needed: list[str]) -> Iterator[tuple[Place, Any]]:
    import pyarrow.parquet as pq

    # Small buffers: without them a row group's column is read whole, however large it is.
    with _whole("parquet", file), pq.ParquetFile(file, buffer_size=2**20, pre_buffer=False) as opened:
        there = opened.schema_arrow.names
        if missing := [column for column in needed if column not in there]:
            raise DataError(f"Expected {', '.join(missing)} in {file.name}; it holds {', '.join(there)}.")
        one = next(opened.iter_batches(1, columns=columns, use_threads=False), None)
        step, first = _step(one.nbytes if one is not None else 1), 0
        for batch in opened.iter_batches(step, columns=columns, use_threads=False):
            yield Place(file.name, first), batch
            first += batch.num_rows


def _encoded(column: Any, place: Place) -> tuple[list[Any], np.ndarray]:
    """The distinct user keys of a batch, and which of them each row has."""
    import pyarrow as pa

    column = column.dictionary_decode() if pa.types.is_dictionary(column.type) else column
    types = pa.types
    tests = (types.is_integer, types.is_string, types.is_large_string, types.is_binary, types.is_large_binary)
    if not any(test(column.type) for test in tests):
        raise DataError(f"Expected user ids as whole numbers or text in {place.file}, got {column.type}.")
    _no_nulls(column, place, "a user id")
    encoded = column.dictionary_encode()
    return encoded.dictionary.to_pylist(), encoded.indices.to_numpy(zero_copy_only=False)


def _arrow_labels(batch: Any, labels: str, place: Place) -> np.ndarray:
    _no_nulls(batch.column(labels), place, "a label")
    return _labels(batch.column(labels).to_numpy(zero_copy_only=False), place)


def _arrow_images(column: Any, place: Place) -> np.ndarray:
    import pyarrow as pa
    import pyarrow.compute as pc

    column = column.storage if isinstance(column, pa.ExtensionArray) else column
    if pa.types.is_struct(column.type) and column.type.get_field_index("bytes") >= 0:
        column = pc.struct_field(column, "bytes")
    _no_nulls(column, place, "an image")
    if pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type):
        return _decoded((scalar.as_buffer() for scalar in column), place)
    if _is_list(column.type):
        return _listed(column, place)
    raise DataError(f"Expected images as PNG bytes or lists of numbers in {place.file}, got {column.type}.")


def _listed(column: Any, place: Place) -> np.ndarray:
    """Lists of numbers, or of rows of numbers, as images."""
    import pyarrow.compute as pc

    rows, shape = len(column), []  # type: int, list[int]
    while _is_list(column.type):
        lengths = pc.list_value_length(column).to_numpy(zero_copy_only=False)
        per_image = math.prod(shape)
        if len(lengths) and (odd := np.flatnonzero(lengths != lengths[0])).size:
            raise DataError(f"Expected images of one size; {place.at(int(odd[0]) // per_image)} has another.")
        shape.append(int(lengths[0]) if len(lengths) else 0)
        column = column.flatten()
        if column.null_count:
            row = int(np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False))[0]) // math.prod(shape)
            raise DataError(f"Expected a number for every pixel; {place.at(row)} lacks one.")
    numbers = column.to_numpy(zero_copy_only=False)
    return _images(numbers.reshape(rows, *shape), place)


def _is_list(kind: Any) -> bool:
    import pyarrow as pa

    return pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)


def _no_nulls(column: Any, place: Place, what: str) -> None:
    if column.null_count:
        row = int(np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False))[0])
        raise DataError(f"Expected {what} in every row; {place.at(row)} has none.")


# idx


def idx(source: Path, users: Path, labels: Path) -> Source:
    """Images, labels and user ids in three files (idx, or .npy for the ids) of one row per example, in any order."""
    paths = [pathlib.Path(path) for path in (source, labels, users)]
    if len({_row_count(path) for path in paths}) > 1:
        raise DataError(f"Expected as many rows in each of {', '.join(path.name for path in paths)}.")
    counts: Counter[Any] = Counter()
    for ids in _rows(paths[2], _ROWS):
        keys, held = _unique(ids, paths[2], return_counts=True)
        counts.update(dict(zip(keys, held.tolist(), strict=True)))
    numbers = _numbers(counts, paths[2].name)
    return Source(_lengths(counts, numbers), _idx_parts(paths, numbers))


def _idx_parts(paths: list[pathlib.Path], numbers: dict[Any, int]) -> Iterator[Part]:
    with _whole("idx", paths[0]), _unzipped(paths[0]) as file:
        dtype, shape = _header(file, paths[0])
    first, step = 0, _step(math.prod(shape[1:]) * dtype.itemsize)
    for images, labels, ids in zip(*(_rows(path, step) for path in paths), strict=True):
        place = Place(paths[0].name, first)
        keys, codes = _unique(ids, paths[2], return_inverse=True)
        own = np.array([_number(numbers, key, place) for key in keys], np.int64)[codes]
        yield Part(place, own, _images(images, place), _labels(labels, Place(paths[1].name, first)))
        first += len(ids)


def _unique(ids: np.ndarray, path: pathlib.Path, **more: bool) -> tuple[list[Any], np.ndarray]:
    if ids.ndim != 1 or ids.dtype.kind not in "iuUS":
        raise DataError(f"Expected user ids as one whole number or text per row in {path.name}, got {ids.dtype}.")
    keys, other = np.unique(ids, **more)  # type: ignore[call-overload]
    return keys.tolist(), other


def _row_count(path: pathlib.Path) -> int:
    if path.suffix == ".npy":
        return len(_npy(path))
    with _whole("idx", path), _unzipped(path) as file:
        return _header(file, path)[1][0]


def _rows(path: pathlib.Path, step: int) -> Iterator[np.ndarray]:
    """The rows in parts of equal length, so that those of several files lie side by side."""
    if path.suffix == ".npy":
        array = _npy(path)
        yield from (np.asarray(array[start : start + step]) for start in range(0, len(array), step))
        return
    with _whole("idx", path), _unzipped(path) as file:
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
    if math.prod(shape[1:]) > 4 * _SIDE**2:
        raise DataError(f"Expected images of at most {_SIDE} x {_SIDE} pixels in {path.name}.")
    return np.dtype(_IDX_TYPES[code]), shape


def _unzipped(path: pathlib.Path) -> Any:
    return gzip.open(path) if path.suffix == ".gz" else path.open("rb")


def _npy(path: pathlib.Path) -> np.ndarray:
    with _whole(".npy", path):
        array = np.load(path, mmap_mode="r", allow_pickle=False)
        len(array)  # a single number has none, and is no column
        return array


# LEAF


def leaf(source: Path) -> Source:
    """LEAF's JSON: one file or a folder of them, each of which fits into memory; a user may be in several."""
    files = _files(source, ".json")
    counts: Counter[Any] = Counter()
    for key, held in itertools.chain.from_iterable(map(_leaf_users, files)):
        counts[key] += len(held["y"])
    numbers = _numbers(counts, pathlib.Path(source).name)
    return Source(_lengths(counts, numbers), _leaf_parts(files, numbers))


def _leaf_parts(files: list[pathlib.Path], numbers: dict[Any, int]) -> Iterator[Part]:
    for file in files:
        for key, held in _leaf_users(file):
            user = _number(numbers, key, Place(file.name))
            place = Place(file.name, 0, user)
            _paired(len(held["x"]), len(held["y"]), place)
            if held["y"]:
                labels, images = _whole_labels(held["y"], place), _leaf_images(held["x"], place)
                yield Part(place, np.full(len(labels), user), images, labels)


def _leaf_users(file: pathlib.Path) -> Iterator[tuple[str, dict[str, list[Any]]]]:
    with _whole("JSON", file):
        about = json.loads(file.read_bytes())
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
    return _labels(np.array(values, np.int64), place)


def _leaf_images(rows: list[Any], place: Place) -> np.ndarray:
    """Always shares of 1, also where a user's pixels happen to be written 0 and 1."""
    for row, values in enumerate(rows):
        if not isinstance(values, list) or not all(type(value) in (int, float) for value in values):
            raise DataError(f"Expected images as lists of numbers; {place.at(row)} holds something else.")
        if len(values) != len(rows[0]):
            raise DataError(f"Expected images of one size; {place.at(row)} has another.")
    with _whole("JSON", pathlib.Path(place.file)):  # a whole number too long for a float
        array = np.array(rows, np.float64)
    return _images(array, place)


# TFF


def hdf5(source: Path, users: str = "examples", images: str = "pixels", labels: str = "label") -> Source:
    """TensorFlow Federated's HDF5: a group per user, which holds pixels and labels."""
    with _needed("h5py", "HDF5"):
        import h5py
    source = pathlib.Path(source)
    with _whole("HDF5", source), h5py.File(source, "r") as file:
        if not isinstance(group := file.get(users), h5py.Group):
            raise DataError(f"Expected the group {users} in {source.name}.")
        keys = sorted(group)
        counts = [
            len(_datasets(group[key], (images, labels), Place(source.name, 0, number))[1])
            for number, key in enumerate(keys)
        ]
    return Source(np.array(counts, np.int64), _hdf5_parts(source, keys, users, (images, labels)))


def _hdf5_parts(source: pathlib.Path, keys: list[str], users: str, names: tuple[str, str]) -> Iterator[Part]:
    import h5py

    with _whole("HDF5", source), h5py.File(source, "r") as file:
        for number, key in enumerate(keys):
            images, labels = _datasets(file[users][key], names, Place(source.name, 0, number))
            step = _step(math.prod(images.shape[1:]) * images.dtype.itemsize)
            for start in range(0, len(labels), step):
                place, rows = Place(source.name, start, number), slice(start, start + step)
                own = _labels(labels[rows], place)
                yield Part(place, np.full(len(own), number), _images(images[rows], place), own)


def _datasets(group: Any, names: tuple[str, str], place: Place) -> list[Any]:
    import h5py

    held: list[Any] = [group.get(name) if isinstance(group, h5py.Group) else None for name in names]
    if not all(isinstance(one, h5py.Dataset) and one.ndim for one in held):
        raise DataError(f"Expected columns {' and '.join(names)} in {place.file}, user index {place.user}.")
    _paired(len(held[0]), len(held[1]), place)
    return held


# Folders of PNG


def png(source: Path) -> Source:
    """<source>/<user>/<label>/*.png; names of classes become numbers in sorted order, unless they are numbers."""
    source = pathlib.Path(source)
    with _whole("folder", source):
        users = [path.name for path in _visible(source) if path.is_dir()]
        counts, names = [], set()  # type: list[int], set[str]
        for number, user in enumerate(users):
            labels = _visible(source / user)
            if not all(label.is_dir() for label in labels):
                raise DataError(f"Expected folders of labels in {source.name}, user index {number}; it holds a file.")
            counts.append(sum(_png_count(label, Place(source.name, 0, number)) for label in labels))
            names.update(label.name for label in labels)
    classes = _classes(names)
    return Source(np.array(counts, np.int64), _png_parts(source, users, classes), classes)


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


def _png_parts(source: pathlib.Path, users: list[str], classes: dict[str, int]) -> Iterator[Part]:
    with _whole("folder", source):
        for number, user in enumerate(users):
            files = _png_files(source / user)
            for start in itertools.count(0, _ROWS):
                if not (rows := list(itertools.islice(files, _ROWS))):
                    break
                place = Place(source.name, start, number)
                labels = np.array([_number(classes, label, place) for _, label in rows], np.int64)
                yield Part(place, np.full(len(rows), number), _decoded((path for path, _ in rows), place), labels)


def _png_files(user: pathlib.Path) -> Iterator[tuple[pathlib.Path, str]]:
    for label in _visible(user):
        names = sorted(name for name in os.listdir(label) if not name.startswith("."))  # lighter than paths
        yield from ((label / name, label.name) for name in names)


def _visible(folder: pathlib.Path) -> list[pathlib.Path]:
    return sorted(path for path in folder.iterdir() if not path.name.startswith("."))


def _decoded(images: Iterable[Any], place: Place) -> np.ndarray:
    decoded: list[np.ndarray] = []
    for row, image in enumerate(images):
        decoded.append(_one_png(image, place.at(row)))
        if decoded[-1].shape != decoded[0].shape:
            raise DataError(f"Expected images of one size; {place.at(row)} has another.")
    return _images(np.stack(decoded) if decoded else np.zeros((0, 0)), place)


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
            if opened.width != opened.height or opened.width > _SIDE:
                raise DataError(f"Expected square images of at most {_SIDE} pixels a side; {where} is none.")
            return np.asarray(opened.convert("L"))
    except (DataError, MemoryError):
        raise
    except Exception:  # Pillow raises a dozen kinds for damaged files, some with bytes of the file in the text
        raise DataError(f"Expected a whole PNG; {where} is cut short or damaged.") from None


# Images and labels


def _images(array: np.ndarray, place: Place) -> np.ndarray:
    """Bytes [n, 1, side, side] of bytes, whole numbers in 0..255 or floats in 0..1."""
    side = _side(array.shape[1:], place) if len(array) else 0
    if array.dtype.kind not in "uif":
        raise DataError(f"Expected pixels as numbers in {place.file}, got {array.dtype}.")
    top = 1 if array.dtype.kind == "f" else 255
    if array.dtype != np.uint8:
        good = ((array >= 0) & (array <= top)).reshape(len(array), -1).all(1)  # NaN is not good
        if not good.all():
            raise DataError(f"Expected pixels in 0..{top}; {place.at(int(np.argmin(good)))} holds others.")
        array = (array * 255.0).round() if top == 1 else array
    return array.astype(np.uint8, copy=False).reshape(len(array), 1, side, side)


def _side(shape: Sequence[int], place: Place) -> int:
    if len(shape) == 3 and 1 not in (shape[0], shape[-1]) and {3, 4} & {shape[0], shape[-1]}:
        raise DataError(f"Expected grey images; {place.at(0)} has colour.")
    if len(shape) == 3 and 1 in (shape[0], shape[-1]):
        shape = shape[1:] if shape[0] == 1 else shape[:-1]
    side = math.isqrt(shape[0]) if len(shape) == 1 else shape[0] if shape else 0
    if tuple(shape) not in ((side * side,), (side, side)) or not 0 < side <= _SIDE:
        raise DataError(f"Expected square grey images of at most {_SIDE} pixels a side; {place.at(0)} is none.")
    return side


def _labels(array: np.ndarray, place: Place) -> np.ndarray:
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise DataError(f"Expected labels as one whole number per row in {place.file}, got {array.dtype}.")
    return _below(array, None, place).astype(np.int64)


def _below(labels: np.ndarray, classes: int | None, place: Place) -> np.ndarray:
    limit = 2**63 if classes is None else classes
    bad = (labels < 0) | (labels > limit - 1)
    if bad.any():
        told = "of 0 and above" if classes is None else f"in 0..{classes - 1}"
        raise DataError(f"Expected labels {told}; that of {place.at(int(np.argmax(bad)))} is not.")
    return labels


# Keys and files


def _numbers(counts: Mapping[Any, int], name: str) -> dict[Any, int]:
    """Each key's place in sorted order; a user must not become two because its id is text here and a number there."""
    if len({type(key) for key in counts}) > 1:
        raise DataError(f"Expected user ids of one type in all of {name}.")
    return {key: number for number, key in enumerate(sorted(counts))}


def _number(numbers: Mapping[Any, int], key: Any, place: Place) -> int:
    if key not in numbers:
        raise DataError(f"Expected {place.file} to stay as it is while it is read; it changed.")
    return numbers[key]


def _lengths(counts: Mapping[Any, int], numbers: Mapping[Any, int]) -> np.ndarray:
    return np.array([counts[key] for key in numbers], np.int64)


def _step(row: int) -> int:
    """How many rows of so many bytes make a part."""
    return min(_ROWS, max(1, _BYTES // max(1, row)))


def _paired(images: int, labels: int, place: Place) -> None:
    if images != labels:
        raise DataError(f"Expected a label for every image in {place.file}, user index {place.user}.")


def _files(source: Path, suffix: str) -> list[pathlib.Path]:
    source = pathlib.Path(source)
    if not source.exists():
        raise DataError(f"Expected the file {source.name}; it is missing.")
    files = sorted(source.glob(f"*{suffix}")) if source.is_dir() else [source]
    if not files:
        raise DataError(f"Expected {suffix} files in {source.name}; there are none.")
    return files


@contextlib.contextmanager
def _whole(kind: str, path: pathlib.Path) -> Iterator[None]:
    """Says of whatever goes wrong with a file that it is damaged: what libraries say may quote the file."""
    try:
        yield
    except (DataError, MemoryError):
        raise
    except FileNotFoundError:
        raise DataError(f"Expected the file {path.name}; it is missing.") from None
    except Exception:
        raise DataError(f"Expected a whole {kind} file in {path.name}; it is cut short or damaged.") from None


@contextlib.contextmanager
def _needed(name: str, kind: str) -> Iterator[None]:
    try:
        yield
    except ImportError:
        raise ValueError(f"Expected {name} to read {kind}: pip install 'fedlens[readers]'.") from None


# Writing


def _write(source: Source, folder: pathlib.Path, name: str, classes: int | None, inverted: bool) -> None:
    offsets = np.concatenate([[0], np.cumsum(source.counts)]).astype(np.int64)
    _fill(source.parts, folder, offsets, classes, inverted)
    np.save(folder / "offsets.npy", offsets, allow_pickle=False)
    if source.classes is not None:
        (folder / "classes.json").write_text(json.dumps(source.classes, indent=1), encoding="utf-8")
    about = {"name": name, "version": VERSION, "columns": ["x", "y"]}
    (folder / "population.json").write_text(json.dumps(about, indent=1))


def _fill(
    parts: Iterator[Part], folder: pathlib.Path, offsets: np.ndarray, classes: int | None, inverted: bool
) -> None:
    """Puts every row beside the others of its user."""
    columns: dict[str, np.memmap] = {}
    free, total = offsets[:-1].copy(), int(offsets[-1])
    for place, users, images, labels in parts:
        if not len(users):
            continue
        if not columns:
            columns["x"] = _column(folder / "x.npy", np.uint8, (total, *images.shape[1:]))
            columns["y"] = _column(folder / "y.npy", np.int64, (total,))
        if images.shape[1:] != columns["x"].shape[1:]:
            raise DataError(f"Expected images of one size; {place.at(0)} has another than those before it.")
        rows = _claimed(free, offsets[1:], users, place)
        columns["x"][rows] = 255 - images if inverted else images
        columns["y"][rows] = _below(labels, classes, place)
        _forget(columns)
    if not np.array_equal(free, offsets[1:]):
        raise DataError("Expected the source to stay as it is while it is read; rows went missing.")
    for column in columns.values():
        column.flush()


def _claimed(free: np.ndarray, ends: np.ndarray, users: np.ndarray, place: Place) -> np.ndarray:
    """The next free rows of each user; `free` moves on."""
    order = np.argsort(users, kind="stable")
    units, first, held = np.unique(users[order], return_index=True, return_counts=True)
    if (free[units] + held > ends[units]).any():
        raise DataError(f"Expected {place.file} to stay as it is while it is read; it changed.")
    rows = np.empty(len(users), np.int64)
    rows[order] = np.repeat(free[units] - first, held) + np.arange(len(users))
    free[units] += held
    return rows


def _column(path: pathlib.Path, dtype: type, shape: tuple[int, ...]) -> np.memmap:
    column = np.lib.format.open_memmap(path, mode="w+", dtype=dtype, shape=shape)
    if hasattr(os, "posix_fallocate"):  # a full disk is an error now, not a signal that kills in the middle
        with path.open("r+b") as file:
            os.posix_fallocate(file.fileno(), 0, path.stat().st_size)
    return column


def _forget(columns: Mapping[str, np.memmap]) -> None:
    """Hands written pages back to the system, which keeps their contents in the file."""
    for column in columns.values():
        mapped = getattr(column, "_mmap", None)
        if mapped is not None and column.nbytes > _LARGE:
            mapped.madvise(mmap.MADV_DONTNEED)
