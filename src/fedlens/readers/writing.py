"""PRIVATE. The canonical form, written in bounded memory: every row beside the others of its user."""

import json
import os
import pathlib
from collections.abc import Iterator

import numpy as np

from fedlens.population import VERSION, DataError, give_back_pages
from fedlens.readers.parts import Part, Place, Source, below


def write(source: Source, folder: pathlib.Path, name: str, classes: int | None, inverted: bool) -> None:
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
        columns["y"][rows] = below(labels, classes, place)
        for column in columns.values():
            give_back_pages(column)
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
