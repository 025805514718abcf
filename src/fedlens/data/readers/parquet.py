"""PRIVATE. Parquet: users, labels and images (PNG bytes, as Hugging Face writes them, or lists of numbers), or text."""

import math
import pathlib
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from fedlens.core import files
from fedlens.data.population import DataError
from fedlens.data.readers import parts
from fedlens.data.readers.parts import Path, Place, RawData, Rows
from fedlens.data.readers.sentences import AT_ONCE, Passage, as_text, as_whole, check_names, gathered

_LIMITS = {"thrift_string_size_limit": 2**24, "thrift_container_size_limit": 2**20}  # of what the footer declares


def parquet(source: Path, users: str = "user", images: str = "image", labels: str = "label") -> RawData:
    """One file or a folder of them; images as PNG bytes, {bytes: ...} or lists of numbers; rows in any order."""
    with parts.needed("pyarrow", "parquet"):
        import pyarrow.parquet  # noqa: F401
    paths = parts.files_of(source, ".parquet")
    counts: Counter[Any] = Counter()
    for file in paths:
        for place, batch in _batches(file, [users], [users, images, labels]):
            with parts.whole("parquet", file):
                keys, codes = _encoded(batch.column(0), place)
            counts.update(dict(zip(keys, np.bincount(codes, minlength=len(keys)).tolist(), strict=True)))
    numbers, rows = parts.numbered(counts, pathlib.Path(source).name)
    return RawData(rows, _parquet_parts(paths, numbers, users, images, labels))


def _parquet_parts(
    paths: list[pathlib.Path], numbers: dict[Any, int], users: str, images: str, labels: str
) -> Iterator[Rows]:
    for file in paths:
        for place, batch in _batches(file, [users, images, labels], [users, images, labels]):
            with parts.whole("parquet", file):
                keys, codes = _encoded(batch.column(users), place)
                own = np.array([parts.number_of(numbers, key, place) for key in keys], np.int64)[codes]
                pixels, classes = _arrow_images(batch.column(images), place), _arrow_labels(batch, labels, place)
            yield parts.of_images(place, own, pixels, classes)


def _batches(
    file: pathlib.Path, columns: list[str], needed: list[str], text: bool = False
) -> Iterator[tuple[Place, Any]]:
    import pyarrow.parquet as pq

    # Small buffers: without them a row group's column is read whole, however large it is.
    with parts.whole("parquet", file), pq.ParquetFile(file, buffer_size=2**20, pre_buffer=False, **_LIMITS) as opened:
        _check_declared(opened.metadata, file)
        there = opened.schema_arrow.names
        if missing := [column for column in needed if column not in there]:
            raise DataError(f"Expected {', '.join(missing)} in {file.name}; it holds {', '.join(there)}.")
        one = next(opened.iter_batches(1, columns=columns, use_threads=False), None)
        of_first = parts.rows_at_once(one.nbytes if one is not None else 1)
        step, first = _at_once(opened.metadata) if text else of_first, 0
        for batch in opened.iter_batches(step, columns=columns, use_threads=False):
            yield Place(file.name, first), batch
            first += batch.num_rows


def _check_declared(about: Any, file: pathlib.Path) -> None:
    # Of whole groups of rows: asked about the columns of a damaged one, the library ends the process.
    declared = sum(about.row_group(number).total_byte_size for number in range(about.num_row_groups))
    files.check_declared(max(declared, about.num_rows), file.stat().st_size, file.name, DataError)


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
    return parts.as_labels(batch.column(labels).to_numpy(zero_copy_only=False), place)


def _arrow_images(column: Any, place: Place) -> np.ndarray:
    import pyarrow as pa
    import pyarrow.compute as pc

    column = column.storage if isinstance(column, pa.ExtensionArray) else column
    if pa.types.is_struct(column.type) and column.type.get_field_index("bytes") >= 0:
        column = pc.struct_field(column, "bytes")
    _no_nulls(column, place, "an image")
    if pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type):
        return parts.decoded((scalar.as_buffer() for scalar in column), place)
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
    return parts.as_bytes(numbers.reshape(rows, *shape), place)


def _is_list(kind: Any) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def _no_nulls(column: Any, place: Place, what: str) -> None:
    if column.null_count:
        row = int(np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False))[0])
        raise DataError(f"Expected {what} in every row; {place.at(row)} has none.")


def parquet_text(source: Path, users: str = "user", sentences: str = "text", attributes: Sequence[str] = ()) -> RawData:
    """One file or a folder of them; a row is a sentence, or all sentences of a user, which are read at once."""
    with parts.needed("pyarrow", "parquet"):
        import pyarrow.parquet  # noqa: F401
    check_names(attributes, users, sentences)
    paths, name = parts.files_of(source, ".parquet"), pathlib.Path(source).name
    return gathered(paths, lambda path: _passages(path, users, sentences, attributes), name, attributes)


def _passages(file: pathlib.Path, users: str, sentences: str, attributes: Sequence[str]) -> Iterator[Passage]:
    names = [users, sentences, *attributes]
    for place, batch in _batches(file, names, names, text=True):
        with parts.whole("parquet", file):
            keys, codes = _encoded(batch.column(users), place)
            values = [_whole_numbers(batch.column(name), place) for name in attributes]
            column = _as_arrow_bytes(batch.column(sentences), place)
        for row, code in enumerate(codes.tolist()):
            where, head = place.at(row), (keys[code], *(own[row] for own in values))
            for part in _parts_of_row(column[row]):
                yield Passage(place, [as_text(one.as_py(), where) for one in part], head)


def _at_once(about: Any) -> int:
    """Few rows where they are long on average: the first one says nothing about the others."""
    groups = [about.row_group(number) for number in range(about.num_row_groups)]
    longest = max((group.total_byte_size // max(1, group.num_rows) for group in groups), default=1)
    return min(AT_ONCE, parts.rows_at_once(longest))


def _parts_of_row(held: Any) -> Iterator[list[Any]]:
    """The sentences of one row, as bytes: one, or parts of a list."""
    if not _is_list(held.type):
        yield [held]
        return
    for start in range(0, max(1, len(held.values)), parts.rows_at_once()):
        yield list(held.values[start : start + parts.rows_at_once()])


def _as_arrow_bytes(column: Any, place: Place) -> Any:
    """Bytes or lists of bytes, whether they are UTF-8 or not."""
    import pyarrow as pa

    _no_nulls(column, place, "text")
    column = column.dictionary_decode() if pa.types.is_dictionary(column.type) else column
    kind = column.type.value_type if _is_list(column.type) else column.type
    types = pa.types
    tests = (types.is_string, types.is_large_string, types.is_binary, types.is_large_binary)
    if not any(test(kind) for test in tests):
        raise DataError(f"Expected text or lists of it in {place.file}, got {column.type}.")
    return column.cast(pa.large_list(pa.large_binary()) if _is_list(column.type) else pa.large_binary())


def _whole_numbers(column: Any, place: Place) -> list[int]:
    _no_nulls(column, place, "an attribute")
    return [as_whole(value, place.at(row)) for row, value in enumerate(column.to_pylist())]
