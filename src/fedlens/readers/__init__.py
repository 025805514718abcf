"""PRIVATE. Readers of image populations (parquet, idx, LEAF, TFF, folders of PNG) into the canonical mapped form.

Every reader goes over its source twice: once to count each user's rows, once to hand them out part by part, so that
memory grows with the number of users but not of images. Errors name files, row numbers and user indices (a user's
place in the sorted order of keys, which is also its place in the population), never a key, a label or a pixel.
"""

import os
import pathlib
import re
import shutil
import uuid
from typing import Any

from fedlens.population import DataError, Population
from fedlens.readers.hdf5 import hdf5
from fedlens.readers.idx import idx
from fedlens.readers.leaf import leaf
from fedlens.readers.parquet import parquet
from fedlens.readers.parts import Path, Source
from fedlens.readers.png import png
from fedlens.readers.writing import write

KINDS = ("parquet", "idx", "leaf", "hdf5", "png")


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
        write(opened, draft, name or source.name.split(".")[0] or "population", classes, inverted)
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
