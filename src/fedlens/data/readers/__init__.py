"""PRIVATE. Readers of populations of images and of text (parquet, idx, JSONL, LEAF, TFF, PNG) into the canonical form.

Every reader goes over its source twice: once to count each user's rows, once to hand them out part by part, so that
memory grows with the number of users but not of images or sentences. Errors name files, rows, lines and user indices
(a user's place in the sorted order of keys, which is also its place in the population), never a key or a value.
A user who holds nothing stays a user.
"""

import inspect
import json
import os
import pathlib
import re
import shutil
import uuid
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fedlens.data.population import VERSION, DataError, Population, give_back_pages
from fedlens.data.readers.docstrings import docstrings
from fedlens.data.readers.hdf5 import hdf5, hdf5_text
from fedlens.data.readers.idx import idx
from fedlens.data.readers.jsonl import jsonl
from fedlens.data.readers.leaf import leaf, leaf_text
from fedlens.data.readers.parquet import parquet, parquet_text
from fedlens.data.readers.parts import Path, Place, RawData, Rows, below
from fedlens.data.readers.png import png
from fedlens.data.readers.sentences import checked as checked_text
from fedlens.data.readers.sqlite import sqlite

__all__ = ["KINDS", "TEXT_KINDS", "checked_text", "convert", "convert_text", "detected", "docstrings", "text"]

Column = Callable[[str, np.dtype, tuple[int, ...]], np.ndarray]  # makes one: its name, type and shape
Readers = dict[str, Callable[..., RawData]]
OF_IMAGES: Readers = {"parquet": parquet, "idx": idx, "leaf": leaf, "hdf5": hdf5, "png": png}
OF_TEXT: Readers = {"jsonl": jsonl, "parquet": parquet_text, "leaf": leaf_text, "sqlite": sqlite, "hdf5": hdf5_text}
KINDS, TEXT_KINDS = tuple(OF_IMAGES), tuple(OF_TEXT)


def convert(
    source: Path,
    folder: Path,
    *,
    kind: str | None = None,
    name: str | None = None,
    classes: int | None = None,
    inverted: bool = False,
    **names: Path | None,
) -> Population:
    """Writes the source as a population folder, whole or not at all, and opens it.

    `users`, `images` and `labels` name columns (parquet: user, image, label), a group and its datasets (hdf5: examples,
    pixels, label) or files (idx: `users` and `labels`, no default). Labels must lie below `classes`, if given.
    Floats in 0..1 become bytes as they are; `inverted` swaps black and white.
    """
    opened = _opened(source, folder, kind, OF_IMAGES, "image", names)
    rows = (_as_asked(part, classes, inverted) for part in opened.rows)
    return _made(opened._replace(rows=rows), folder, name or _stem(source))


def convert_text(
    source: Path, folder: Path, *, kind: str | None = None, name: str | None = None, **names: Any
) -> Population:
    """Writes a source of text as a population folder, whole or not at all, and opens it.

    `users` and `sentences` name keys (jsonl: user, text), columns (parquet: user, text), a group and its dataset (hdf5:
    examples, snippets) or a feature (sqlite: tokens). Whole numbers beside them become columns, if named as
    `attributes`. A sentence keeps its first 256 bytes. `split` names one split of sqlite's (all, if it is not given).
    """
    return _made(_opened(source, folder, kind, OF_TEXT, "sentence", names), folder, name or _stem(source))


def text(path: Path, *, user: str = "user", text: str = "text", attributes: Sequence[str] = ()) -> Population:
    """JSONL, or a folder of it, in memory: 256 bytes a sentence."""
    opened = _some(jsonl(path, user, text, attributes), path, "sentence")
    columns = _filled(opened, lambda _, dtype, shape: np.empty(shape, dtype))
    return Population.from_arrays(_stem(path), columns, opened.counts)


def _opened(
    source: Path, folder: Path, kind: str | None, readers: Readers, what: str, names: dict[str, Any]
) -> RawData:
    if os.path.lexists(folder):
        raise DataError(f"Expected a new folder to write to; {pathlib.Path(folder).name} exists.")
    kind = kind or detected(source)
    if kind not in readers:
        raise ValueError(f"Expected kind {kind!r} of {what}s among {', '.join(readers)}.")
    given = {key: value for key, value in names.items() if value}
    if extra := sorted(given.keys() - inspect.signature(readers[kind]).parameters.keys()):
        raise ValueError(f"Expected no name of {', '.join(extra)} for {kind}: it has none to choose.")
    return _some(readers[kind](source, **given), source, what)


def _some(opened: RawData, source: Path, what: str) -> RawData:
    if not opened.counts.sum():
        raise DataError(f"Expected at least one {what} in {pathlib.Path(source).name}; it is empty.")
    return opened


def _as_asked(part: Rows, classes: int | None, inverted: bool) -> Rows:
    images, labels = part.columns["x"], below(part.columns["y"], classes, part.place)
    return part._replace(columns={"x": 255 - images if inverted else images, "y": labels})


def _made(source: RawData, folder: Path, name: str) -> Population:
    folder = pathlib.Path(folder)
    draft = folder.parent / f".{folder.name}.{uuid.uuid4().hex}.part"
    try:
        draft.mkdir(parents=True)
        _write(source, draft, name)
        draft.rename(folder)
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise
    return Population.open(folder)


def _write(source: RawData, folder: pathlib.Path, name: str) -> None:
    """In bounded memory."""
    columns = _filled(source, lambda key, dtype, shape: _mapped(folder / f"{key}.npy", dtype, shape))
    for column in columns.values():
        column.flush()  # type: ignore[attr-defined]
    offsets = np.concatenate([[0], np.cumsum(source.counts)]).astype(np.int64)
    np.save(folder / "offsets.npy", offsets, allow_pickle=False)
    about = {"name": name, "version": VERSION, "columns": sorted(columns)}
    (folder / "population.json").write_text(json.dumps(about, indent=1))
    if source.classes is not None:
        (folder / "classes.json").write_text(json.dumps(source.classes, indent=1), encoding="utf-8")


def _filled(source: RawData, column: Column) -> dict[str, np.ndarray]:
    """Columns, made by `column`, with every row beside the others of its user."""
    columns: dict[str, np.ndarray] = {}
    ends = np.cumsum(source.counts, dtype=np.int64)
    free, total = ends - source.counts, int(source.counts.sum())
    for place, users, values in source.rows:
        if not len(users):
            continue
        columns = columns or {key: column(key, held.dtype, (total, *held.shape[1:])) for key, held in values.items()}
        rows = _claimed(free, ends, users, place)
        for key, held in values.items():
            if held.shape[1:] != columns[key].shape[1:]:
                raise DataError(f"Expected images of one size; {place.at(0)} has another than those before it.")
            columns[key][rows] = held
            give_back_pages(columns[key])
    if not np.array_equal(free, ends):
        raise DataError("Expected the source to stay as it is while it is read; rows went missing.")
    return columns


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


def _mapped(path: pathlib.Path, dtype: np.dtype, shape: tuple[int, ...]) -> np.memmap:
    column = np.lib.format.open_memmap(path, mode="w+", dtype=dtype, shape=shape)
    if hasattr(os, "posix_fallocate"):  # a full disk is an error now, not a signal that kills in the middle
        with path.open("r+b") as file:
            os.posix_fallocate(file.fileno(), 0, path.stat().st_size)
    return column


def _stem(source: Path) -> str:
    return pathlib.Path(source).name.split(".")[0] or "population"


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
        "jsonl": r"\.jsonl(\.gz)?$",
        "sqlite": r"\.(sqlite3?|db)$",
    }
    for kind, pattern in patterns.items():
        if any(re.search(pattern, path.name) for path in inside if path.is_file()):
            return kind
    if source.is_dir() and any(path.is_dir() for path in inside):
        return "png"
    kinds = ", ".join(dict.fromkeys(KINDS + TEXT_KINDS))
    raise DataError(f"Expected {source.name} as one of {kinds}, by the names of its files; name its kind.")
