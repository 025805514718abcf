"""PRIVATE. Units of privacy and the examples each one holds: ragged, memory-mapped, any number of users.

On disk a population is a folder of plain .npy columns, rows clustered by user, with an index:

    population.json    name, version, columns
    offsets.npy        where each user's rows begin, and the end (int64)
    <column>.npy       one row per example

Nothing here may print a user id, an example or a count: errors name columns and row numbers only.
"""

import dataclasses
import hashlib
import json
import mmap
import pathlib
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from fedlens.core import arrayfiles, files
from fedlens.core.randomness import Randomness
from fedlens.core.trees import Tree

VERSION = 1
_LARGE = 2**28  # bytes of a mapped column beyond which its pages are not kept
UserVerdict = Callable[[Tree], bool]
ExampleVerdict = Callable[[Tree], torch.Tensor]


class DataError(ValueError):
    """The data cannot be used as it is."""


class SchemaError(DataError):
    """The same, because of names, types or shapes, which are public: no row is spoken of."""


@dataclasses.dataclass(frozen=True, eq=False)
class Population:
    """Unit u holds the rows starts[u] : starts[u] + counts[u] (through `rows`, where examples were selected).

    >>> users = Population.from_arrays("toy", {"x": np.arange(6)}, np.array([2, 1, 3]))
    >>> len(users), users.take(np.array([0, 1]))["x"].tolist(), users.take(np.array([0, 1]))["mask"].tolist()
    (3, [[0, 1, 0], [2, 0, 0]], [[1.0, 1.0, 0.0], [1.0, 0.0, 0.0]])
    >>> len(users.by_example()), len(users.select("big", users=lambda u: len(u["x"]) > 1))
    (6, 2)
    """

    name: str
    columns: Mapping[str, np.ndarray] = dataclasses.field(repr=False)
    starts: np.ndarray = dataclasses.field(repr=False)
    counts: np.ndarray = dataclasses.field(repr=False)
    rows: np.ndarray | None = dataclasses.field(default=None, repr=False)
    selected: bool = False  # whether private data decided who is in it
    by_examples: bool = False  # whether every unit is one example, or was before it was dealt to a shard
    shards: int | None = None  # whether units were put together, in so many

    def __post_init__(self) -> None:
        if "mask" in self.columns:
            raise DataError("Expected no column named 'mask': fedlens adds it.")
        if not self.columns:
            raise DataError(f"Expected at least one column in population {self.name!r}.")
        if len({len(column) for column in self.columns.values()}) > 1:
            raise DataError(f"Expected columns of one length in population {self.name!r}.")

    def __repr__(self) -> str:
        return f"Population({self.name!r}, columns={sorted(self.columns)})"

    def __len__(self) -> int:
        return len(self.starts)

    @classmethod
    def from_arrays(cls, name: str, columns: Mapping[str, np.ndarray], counts: np.ndarray) -> "Population":
        offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        rows = len(next(iter(columns.values()), ()))
        if offsets[-1] != rows or (np.asarray(counts) < 0).any():
            raise DataError(f"Expected as many rows as the users hold together, in population {name!r}.")
        return cls(name, columns, offsets[:-1], np.diff(offsets))

    @classmethod
    def open(cls, folder: pathlib.Path | str) -> "Population":
        """Maps the files into memory; reads nothing but their headers and the index."""
        folder = pathlib.Path(folder)
        about = _about(folder)
        columns = {key: mapped(folder / f"{key}.npy") for key in about["columns"]}
        offsets = mapped(folder / "offsets.npy")
        if offsets.ndim != 1 or len(offsets) < 1 or not np.issubdtype(offsets.dtype, np.integer):
            raise DataError(f"Expected whole numbers, one more than users, in {folder.name}/offsets.npy.")
        offsets = offsets.astype(np.int64)  # unsigned ones that fall would wrap around
        counts = np.diff(offsets)
        falls = (offsets[1:] < offsets[:-1]).any()  # a difference may wrap around, and look like a rise
        if offsets[0] != 0 or falls or any(int(offsets[-1]) != len(column) for column in columns.values()):
            raise DataError(f"Expected the columns in {folder.name} as long as its index says; a file is damaged.")
        return cls(about["name"], columns, offsets[:-1], counts)

    def save(self, folder: pathlib.Path | str) -> None:
        """Writes the canonical form; population.json comes last, so a folder cut short does not open."""
        rows = len(next(iter(self.columns.values())))
        offsets = np.concatenate([[0], np.cumsum(self.counts)]).astype(np.int64)
        if self.rows is not None or offsets[-1] != rows or not np.array_equal(offsets[:-1], self.starts):
            raise DataError("Expected a whole population to save, got a selection of one.")
        if bad := [key for key in self.columns if not _column_name(key)]:
            raise DataError(f"Expected column names of letters, digits and _ that are not 'offsets', got {bad}.")
        folder = pathlib.Path(folder)
        folder.mkdir(parents=True, exist_ok=False)
        for key, column in (*self.columns.items(), ("offsets", offsets)):
            np.save(folder / f"{key}.npy", column, allow_pickle=False)
        about = {"name": self.name, "version": VERSION, "columns": sorted(self.columns)}
        (folder / "population.json").write_text(json.dumps(about, indent=1))

    def fingerprint(self) -> str:
        """PRIVATE. Changes when the data changes: by content, or for mapped files by their size and time.

        A hash of private data could be used to test guesses about it; use it under a secret key only.
        """
        total = hashlib.sha256()
        arrays = {**self.columns, "/starts": self.starts, "/counts": self.counts}
        for key, array in (arrays | ({} if self.rows is None else {"/rows": self.rows})).items():
            total.update(f"{key} {array.dtype} {array.shape};".encode())
            if isinstance(array, np.memmap) and array.filename is not None:
                status = pathlib.Path(array.filename).stat()
                total.update(f"{status.st_size} {status.st_mtime_ns};".encode())
            else:
                total.update(np.ascontiguousarray(array).data)
        return total.hexdigest()

    @property
    def most_examples(self) -> int:
        return int(self.counts.max(initial=0))

    @property
    def nbytes(self) -> int:
        return sum(column.nbytes for column in self.columns.values())

    def take(
        self, cohort: np.ndarray, limit: int | None = None, randomness: Randomness | None = None, label: str = ""
    ) -> Tree:
        """The cohort's examples as [units, width, ...] with a mask; of more than `limit` a fresh random subset.

        The width is the same for every cohort, so that shapes say nothing about who was drawn.
        """
        rows, mask = self.places(cohort, limit or max(1, self.most_examples), randomness, label)
        tree: dict[str, np.ndarray] = {"mask": mask.astype(np.float32)}
        for key, column in self.columns.items():
            tree[key] = np.zeros((*mask.shape, *column.shape[1:]), column.dtype)
            tree[key][mask] = column[rows[mask]]
            give_back_pages(column)
        return {key: torch.from_numpy(array) for key, array in tree.items()}

    def places(
        self, cohort: np.ndarray, width: int, randomness: Randomness | None = None, label: str = ""
    ) -> tuple[np.ndarray, np.ndarray]:
        """Where the cohort's examples lie, as row numbers [units, width], and which of those places are taken."""
        counts = self.counts[cohort]
        mask = np.arange(width) < counts[:, None]
        within = np.broadcast_to(np.arange(width), mask.shape).copy()
        if randomness is not None and (counts > width).any():
            key = np.uint64(int(randomness.tag(f"examples {label}")[:16], 16))
            for place in np.flatnonzero(counts > width):
                order = np.argpartition(_mixed(key, int(cohort[place]), int(counts[place])), width)
                within[place] = np.sort(order[:width])
        rows = np.zeros(mask.shape, np.int64)
        rows[mask] = (self.starts[cohort][:, None] + within)[mask]
        if self.rows is not None:
            rows[mask] = self.rows[rows[mask]]
        return rows, mask

    def blank(self, width: int = 1) -> Tree:
        """One unit without examples, in the right shapes: what an empty cohort is modelled on."""
        zeros = {key: np.zeros((width, *column.shape[1:]), column.dtype) for key, column in self.columns.items()}
        return {key: torch.from_numpy(column) for key, column in zeros.items()} | {"mask": torch.zeros(width)}

    def only(self, *names: str) -> "Population":
        """The same units with these columns and no others."""
        if missing := [name for name in names if name not in self.columns]:
            raise SchemaError(f"Expected a column {missing[0]!r}, found {', '.join(sorted(self.columns))}.")
        return dataclasses.replace(self, columns={name: self.columns[name] for name in names})

    def select(
        self,
        name: str,
        *,
        users: UserVerdict | None = None,
        examples: ExampleVerdict | None = None,
        at_least: int = 0,
        shown: Sequence[str] = (),
    ) -> "Population":
        """Keeps the users and examples that pass, and of the users those with `at_least` so many examples left.

        Each verdict sees one user's data (the columns `shown`, by default all) and nothing else of the population, so
        that one user's presence never decides about another's.
        """
        visible = self.only(*shown) if shown else self
        units, kept = [], []
        for unit in range(len(self)):
            own = visible.unit(unit)
            if users is not None and not bool(users(own)):
                continue
            chosen = self._row_numbers(unit)
            if examples is not None:
                chosen = chosen[examples(own).bool().numpy()]
            if len(chosen) >= at_least:
                units.append(unit)
                kept.append(chosen)
        if examples is None:
            return self._of(name, units)
        offsets = np.concatenate([[0], np.cumsum([len(rows) for rows in kept])]).astype(np.int64)
        rows = np.concatenate([np.zeros(0, np.int64), *kept])
        return dataclasses.replace(self._of(name, []), starts=offsets[:-1], counts=np.diff(offsets), rows=rows)

    def chosen(self, name: str, verdicts: np.ndarray) -> "Population":
        """Keeps the users with a verdict of true; each must have been made from that user's own data alone."""
        return self._of(name, np.flatnonzero(verdicts))

    def _of(self, name: str, units: Sequence[int] | np.ndarray) -> "Population":
        starts, counts = self.starts[units], self.counts[units]
        return dataclasses.replace(self, name=f"{self.name}/{name}", starts=starts, counts=counts, selected=True)

    def compact(self) -> "Population":
        """The same units in columns that hold their rows and no others."""
        rows = self._all_rows()
        columns = {name: np.ascontiguousarray(column[rows]) for name, column in self.columns.items()}
        whole = Population.from_arrays(self.name, columns, self.counts)
        return dataclasses.replace(whole, selected=self.selected, by_examples=self.by_examples, shards=self.shards)

    def _all_rows(self) -> np.ndarray:
        first = np.cumsum(self.counts) - self.counts  # not unit by unit: there may be a million
        places: np.ndarray = np.arange(self.counts.sum()) + np.repeat(self.starts - first, self.counts)
        return places if self.rows is None else self.rows[places]

    def by_example(self) -> "Population":
        """Every example becomes a unit of its own: example-level privacy."""
        self._check_of_units()
        rows = self._all_rows()
        starts, counts = np.arange(len(rows)), np.ones(len(rows), np.int64)
        name = f"{self.name}/examples"
        return dataclasses.replace(self, name=name, starts=starts, counts=counts, rows=rows, by_examples=True)

    def dealt(self, shards: int, key: int) -> "Population":
        """Units put together in so many shards, each where a hash of the examples that it holds puts it.

        So nobody is in two shards, and one unit more or less changes one shard, and nobody else's place. Not by their
        number in the data: whoever left would move all who come later. A shard without anybody is there all the same.
        """
        self._check_of_units()  # else one of its units would decide where all of a shard go
        places = np.fromiter((self._shard(unit, shards, key) for unit in range(len(self))), np.int64, len(self))
        order = np.argsort(places, kind="stable")
        counts = np.bincount(places, self.counts, shards).astype(np.int64)
        rows = dataclasses.replace(self, starts=self.starts[order], counts=self.counts[order])._all_rows()
        starts = np.cumsum(counts) - counts
        name = f"{self.name}/shards"
        # Who is in which was decided unit by unit, and how many there are is public, whatever was selected before.
        return dataclasses.replace(
            self, name=name, starts=starts, counts=counts, rows=rows, selected=False, shards=shards
        )

    def _check_of_units(self) -> None:
        if self.shards is not None:
            raise ValueError("Expected units, and not shards that they were put together in.")

    def _shard(self, unit: int, shards: int, key: int) -> int:
        content = hashlib.blake2b(f"shard {key} of {shards}".encode(), digest_size=8)
        content.update(np.ascontiguousarray(self.columns["x"][self._rows_of(unit)]).data)  # whatever its labels are
        return int.from_bytes(content.digest(), "big") % shards

    def _rows_of(self, unit: int) -> slice | np.ndarray:
        """Where the unit's examples lie: side by side if they can."""
        own = slice(int(self.starts[unit]), int(self.starts[unit] + self.counts[unit]))
        return own if self.rows is None else self.rows[own]

    def _row_numbers(self, unit: int) -> np.ndarray:
        rows = self._rows_of(unit)
        return np.arange(rows.start, rows.stop) if isinstance(rows, slice) else rows

    def unit(self, unit: int) -> Tree:
        rows = self._rows_of(unit)
        return {key: torch.from_numpy(np.require(held[rows], None, ["C", "W"])) for key, held in self.columns.items()}


def _mixed(key: np.uint64, unit: int, count: int) -> np.ndarray:
    """A random-looking number for each example of a unit, under a secret key (splitmix64, Steele et al. 2014)."""
    with np.errstate(over="ignore"):
        z = (
            key
            + np.uint64(unit) * np.uint64(0xD1B54A32D192ED03)
            + np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        )
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return z ^ (z >> np.uint64(31))


def give_back_pages(column: np.ndarray) -> None:
    """Hands the pages of a large mapped column back to the system, so that resident memory does not grow with use."""
    mapped = getattr(column, "_mmap", None)
    if mapped is not None and column.nbytes > _LARGE:
        mapped.madvise(mmap.MADV_DONTNEED)


def _about(folder: pathlib.Path) -> dict[str, Any]:
    try:
        damaged = f"Expected JSON in {folder.name}/population.json; the file is damaged."
        about = files.json_in(folder / "population.json", error=DataError, message=damaged)
    except FileNotFoundError:
        raise DataError(
            f"Expected a population in {folder.name}: population.json is missing (see `fedlens data check`)."
        ) from None
    except OSError:
        raise DataError(damaged) from None
    if not isinstance(about, dict) or about.get("version") != VERSION:
        raise DataError(f"Expected population version {VERSION} in {folder.name}/population.json.")
    names = about.get("columns")
    if not isinstance(about.get("name"), str) or not isinstance(names, list) or not all(map(_column_name, names)):
        raise DataError(f"Expected a name and plain column names in {folder.name}/population.json.")
    return about


def _column_name(name: object) -> bool:
    """Letters, digits and _: a column's name becomes a file's."""
    return isinstance(name, str) and re.fullmatch(r"\w{1,64}", name, re.ASCII) is not None and name != "offsets"


def mapped(path: pathlib.Path) -> np.ndarray:
    with files.readable(".npy", path, DataError):
        column = arrayfiles.mapped(path)
        len(column)  # a single number has none, and is no column
        return column
