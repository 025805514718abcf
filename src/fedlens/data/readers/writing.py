"""PRIVATE. The canonical form, written in bounded memory: every row beside the others of its user."""

import json
import os
import pathlib
from collections.abc import Callable

import numpy as np

from fedlens.data.population import VERSION, DataError, give_back_pages
from fedlens.data.readers.parts import Place, Source

Column = Callable[[str, np.dtype, tuple[int, ...]], np.ndarray]  # makes one: its name, type and shape


def write(source: Source, folder: pathlib.Path, name: str) -> None:
    columns = filled(source, lambda key, dtype, shape: _mapped(folder / f"{key}.npy", dtype, shape))
    for column in columns.values():
        column.flush()  # type: ignore[attr-defined]
    offsets = np.concatenate([[0], np.cumsum(source.counts)]).astype(np.int64)
    np.save(folder / "offsets.npy", offsets, allow_pickle=False)
    about = {"name": name, "version": VERSION, "columns": sorted(columns)}
    (folder / "population.json").write_text(json.dumps(about, indent=1))
    if source.classes is not None:
        (folder / "classes.json").write_text(json.dumps(source.classes, indent=1), encoding="utf-8")


def filled(source: Source, column: Column) -> dict[str, np.ndarray]:
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
