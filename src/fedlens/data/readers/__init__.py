"""PRIVATE. Readers of populations of images and of text (parquet, idx, JSONL, LEAF, TFF, PNG) into the canonical form.

Every reader goes over its source twice: once to count each user's rows, once to hand them out part by part, so that
memory grows with the number of users but not of images or sentences. Errors name files, rows, lines and user indices
(a user's place in the sorted order of keys, which is also its place in the population), never a key or a value.
A user who holds nothing stays a user.
"""

import inspect
import os
import pathlib
import re
import shutil
import uuid
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fedlens.data.population import DataError, Population
from fedlens.data.readers.docstrings import docstrings
from fedlens.data.readers.hdf5 import hdf5, hdf5_text
from fedlens.data.readers.idx import idx
from fedlens.data.readers.jsonl import jsonl
from fedlens.data.readers.leaf import leaf, leaf_text
from fedlens.data.readers.parquet import parquet, parquet_text
from fedlens.data.readers.parts import Path, Source
from fedlens.data.readers.png import png
from fedlens.data.readers.sentences import checked as checked_text
from fedlens.data.readers.sqlite import sqlite
from fedlens.data.readers.writing import filled, write_images, write_text

__all__ = [
    "KINDS",
    "TEXT_KINDS",
    "checked_text",
    "convert",
    "convert_text",
    "detected",
    "docstrings",
    "text",
]

KINDS = ("parquet", "idx", "leaf", "hdf5", "png")
TEXT_KINDS = ("jsonl", "parquet", "leaf", "sqlite", "hdf5")


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
    source = pathlib.Path(source)
    _check_new(folder)
    names = {key: value for key, value in (("users", users), ("images", images), ("labels", labels)) if value}
    opened = _opened(source, kind or detected(source), names)
    if not opened.counts.sum():
        raise DataError(f"Expected at least one image in {source.name}; it is empty.")
    return _made(folder, lambda draft: write_images(opened, draft, name or _stem(source), classes, inverted))


def convert_text(
    source: Path,
    folder: Path,
    *,
    kind: str | None = None,
    users: str | None = None,
    sentences: str | None = None,
    attributes: Sequence[str] = (),
    split: str | None = None,
    name: str | None = None,
) -> Population:
    """Writes a source of text as a population folder, whole or not at all, and opens it.

    `users` and `sentences` name keys (jsonl: user, text), columns (parquet: user, text), a group and its dataset (hdf5:
    examples, snippets) or a feature (sqlite: tokens). Whole numbers beside them become columns, if named as
    `attributes`. A sentence keeps its first 256 bytes. `split` names one split of sqlite's (all, if it is not given).
    """
    source = pathlib.Path(source)
    _check_new(folder)
    given = {"users": users, "sentences": sentences, "attributes": tuple(attributes), "split": split}
    found = kind or detected(source)
    readers: dict[str, Any] = {
        "jsonl": jsonl,
        "parquet": parquet_text,
        "leaf": leaf_text,
        "sqlite": sqlite,
        "hdf5": hdf5_text,
    }
    if found not in readers:
        raise ValueError(f"Expected kind {found!r} of text among {', '.join(TEXT_KINDS)}.")
    names = {key: value for key, value in given.items() if value}
    if extra := sorted(names.keys() - inspect.signature(readers[found]).parameters.keys()):
        raise ValueError(f"Expected no name of {', '.join(extra)} for {found}: it has none to choose.")
    opened = readers[found](source, **names)
    _check_some(opened.counts, source)
    return _made(folder, lambda draft: write_text(opened, draft, name or _stem(source)))


def text(path: Path, *, user: str = "user", text: str = "text", attributes: Sequence[str] = ()) -> Population:
    """JSONL, or a folder of it, in memory: 256 bytes a sentence."""
    path = pathlib.Path(path)
    opened = jsonl(path, user, text, attributes)
    _check_some(opened.counts, path)
    columns = filled(opened.counts, opened.rows, lambda _, dtype, shape: np.empty(shape, dtype))
    return Population.from_arrays(_stem(path), columns, opened.counts)


def _made(folder: Path, write: Callable[[pathlib.Path], None]) -> Population:
    folder = pathlib.Path(folder)
    draft = folder.parent / f".{folder.name}.{uuid.uuid4().hex}.part"
    try:
        draft.mkdir(parents=True)
        write(draft)
        draft.rename(folder)
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise
    return Population.open(folder)


def _check_new(folder: Path) -> None:
    if os.path.lexists(folder):
        raise DataError(f"Expected a new folder to write to; {pathlib.Path(folder).name} exists.")


def _check_some(counts: np.ndarray, source: pathlib.Path) -> None:
    if not counts.sum():
        raise DataError(f"Expected at least one sentence in {source.name}; it is empty.")


def _stem(source: pathlib.Path) -> str:
    return source.name.split(".")[0] or "population"


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
    opened: Source = readers[kind](source, **names)
    return opened
