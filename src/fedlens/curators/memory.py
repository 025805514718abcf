"""PRIVATE. What units keep to themselves between releases: a row each, named by its history instead of its bytes.

A question's name must say what the units remember: asked again it meets the same noise, and must then meet the same
data. To hash all rows for each question would cost minutes where units keep critics by the thousand. So only the first
content is hashed, and after an answered question the name becomes H(name before, question's name): its lineage.

Why that is as safe as a hash of the rows. The rows after a question are a function of the rows before it, of the data
and of what was asked: message, code and settings, cohort, chosen examples, engine and the machine's arithmetic. All of
these are in the question's name, or follow from it. So, by induction from the first content, which is hashed, two
memories of one name hold the same rows, as long as the code beside the data follows from its arguments alone (the
contract of an algorithm) and the arithmetic repeats itself (as a question that is asked again needs anyway). The
converse does not hold, and need not: rows that came out alike by two histories have two names, and cost twice. (Of a
simulation, which promises nothing, names leave out engine and machine: a seed repeats a run anywhere.)

While rows are being replaced they are neither the old ones nor the new ones. So for that time, and for good if it is
cut short, the name is a random one: whatever is asked of torn rows is a new question, paid anew, under fresh noise.
"""

import contextlib
import hashlib
import json
import math
import os
import pathlib
import re
import secrets
import shutil
import tempfile
import warnings
from collections.abc import Iterator

import numpy as np
import torch

from fedlens.core import arrayfiles, files
from fedlens.core.trees import Tree

VERSION = 1
_INDEX = "memory.json"
_PIECE = 2**24  # bytes copied, hashed or written at a time


class Memory:
    """A tree with one row per unit: in memory, or in nameless files in the folder `scratch` that end with the process.

    >>> memory = Memory({"asked": torch.zeros(3)})
    >>> with memory.updated_by("a question"):
    ...     memory.replace(np.array([1]), {"asked": torch.ones(1)})
    >>> memory.rows(np.array([0, 1]))["asked"].tolist(), memory.name == Memory({"asked": torch.zeros(3)}).name
    ([0.0, 1.0], False)
    """

    def __init__(self, first: Tree, *, scratch: pathlib.Path | None = None) -> None:
        _check(first)
        self._leaves = {name: _copied(leaf, scratch) for name, leaf in first.items()}  # nobody else may write to them
        self._name, self._updating = _content(self._leaves), False

    @property
    def name(self) -> str:
        """Two memories of one name hold the same rows."""
        return self._name

    def __bool__(self) -> bool:
        return bool(self._leaves)

    def __len__(self) -> int:
        """How many units have a row; none where nothing is kept."""
        return len(next(iter(self._leaves.values()), ()))

    def blank(self, device: str) -> Tree:
        """One row of zeros."""
        kinds = {name: (leaf.shape[1:], leaf.dtype) for name, leaf in self._leaves.items()}
        return {name: torch.zeros(shape, dtype=dtype, device=device) for name, (shape, dtype) in kinds.items()}

    def rows(self, units: np.ndarray) -> Tree:
        """A copy of what these units keep."""
        return {name: leaf[torch.from_numpy(units)] for name, leaf in self._leaves.items()}

    def replace(self, units: np.ndarray, rows: Tree) -> None:
        """While a question is answered, and at no other time: the name would not follow."""
        if self and not self._updating:
            raise ValueError("Expected rows to be replaced while a question is answered.")
        for name, leaf in self._leaves.items():
            leaf[torch.from_numpy(units)] = rows[name].to(leaf)

    @contextlib.contextmanager
    def updated_by(self, question: str) -> Iterator[None]:
        """In here rows are replaced; whoever is stopped in the middle leaves rows that no other memory shares."""
        if not self:
            yield  # nothing is kept, so nothing changes
            return
        before, self._name, self._updating = self._name, f"torn {secrets.token_hex(32)}", True
        try:
            yield
        finally:
            self._updating = False
        self._name = hashlib.sha256(f"{before} {question}".encode()).hexdigest()

    def save(self, folder: pathlib.Path) -> None:
        """Into a private folder, whole or not at all: a crash at any point leaves what was saved there before."""
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        fresh = folder / secrets.token_hex(8)
        fresh.mkdir(mode=0o700)
        for place, leaf in enumerate(self._leaves.values()):
            _write(fresh / f"{place}.npy", leaf)
        files._sync(fresh)
        about = {"name": self._name, "leaves": list(self._leaves), "sha256": _content(self._leaves)}
        files.write(folder / _INDEX, json.dumps({"version": VERSION, "rows": fresh.name} | about))
        for other in folder.iterdir():  # what was saved before, or not to the end
            if other.is_dir() and other != fresh:
                shutil.rmtree(other, ignore_errors=True)

    @classmethod
    def open(cls, folder: pathlib.Path, *, scratch: pathlib.Path | None = None) -> "Memory":
        """What was saved last, under the name it had: a resumed run asks the same questions."""
        damaged = f"Expected a whole memory in {folder.name}; it is damaged."
        fields = {"version": int, "rows": str, "name": str, "leaves": list, "sha256": str}
        try:
            about = files.json_in(folder / _INDEX, fields, message=damaged)
        except FileNotFoundError:
            raise ValueError(f"Expected a saved memory in {folder.name}; there is none.") from None
        named = all(isinstance(name, str) for name in about["leaves"])
        if about["version"] != VERSION or not re.fullmatch("[0-9a-f]{16}", about["rows"]) or not named:
            raise ValueError(damaged)
        rows = folder / about["rows"]
        saved = {name: _read(rows / f"{place}.npy", damaged) for place, name in enumerate(about["leaves"])}
        with files.damage(damaged):
            memory = cls(saved, scratch=scratch)
        if memory._name != about["sha256"]:  # of a first content the name is a hash
            raise ValueError(damaged)
        memory._name = about["name"]
        return memory


def _check(first: Tree) -> None:
    if len({len(leaf) for leaf in first.values()}) > 1:
        raise ValueError("Expected as many rows of memory in every leaf.")
    if any(not 1 <= _row_bytes(leaf) <= arrayfiles.MOST_ROW for leaf in first.values()):
        raise ValueError(f"Expected rows of memory of 1 to {arrayfiles.MOST_ROW:,} bytes in every leaf.")
    if any(leaf.dtype in (torch.bfloat16, torch.complex32) for leaf in first.values()):
        raise ValueError("Expected memory of a type that numpy knows.")


def _row_bytes(leaf: torch.Tensor) -> int:
    return math.prod(leaf.shape[1:]) * leaf.element_size()


def _pieces(leaf: torch.Tensor) -> Iterator[slice]:
    """Of rows: a leaf that is one row, repeated, is never held in full."""
    step = max(1, _PIECE // _row_bytes(leaf))
    return (slice(at, at + step) for at in range(0, len(leaf), step))


def _bytes(leaf: torch.Tensor) -> memoryview:
    return leaf.detach().cpu().contiguous().numpy().reshape(-1).view(np.uint8).data


def _content(leaves: Tree) -> str:
    """A SHA-256 of names, types, shapes and bytes."""
    total = hashlib.sha256()
    for name, leaf in sorted(leaves.items()):
        total.update(f"{name} {leaf.dtype} {tuple(leaf.shape)};".encode())
        for piece in _pieces(leaf):
            total.update(_bytes(leaf[piece]))
    return total.hexdigest()


def _copied(leaf: torch.Tensor, scratch: pathlib.Path | None) -> torch.Tensor:
    if scratch is not None and leaf.numel():
        room = _mapped(leaf, scratch)
    else:
        room = torch.empty_like(leaf, memory_format=torch.contiguous_format)
    for piece in _pieces(leaf):
        room[piece] = leaf[piece]
    return room


def _mapped(leaf: torch.Tensor, scratch: pathlib.Path) -> torch.Tensor:
    """Room for as much on disk. The file has no name: nothing private is left lying about, however we end."""
    scratch.mkdir(mode=0o700, parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=scratch) as file:
        if hasattr(os, "posix_fallocate"):  # a full disk is told of now, and not by a signal later
            os.posix_fallocate(file.fileno(), 0, len(leaf) * _row_bytes(leaf))
        kind = torch.empty(0, dtype=leaf.dtype).numpy().dtype
        return torch.from_numpy(np.memmap(file, kind, "r+", shape=tuple(leaf.shape)))


def _write(path: pathlib.Path, leaf: torch.Tensor) -> None:
    kind = torch.empty(0, dtype=leaf.dtype).numpy().dtype
    header = {"descr": np.lib.format.dtype_to_descr(kind), "fortran_order": False, "shape": tuple(leaf.shape)}
    with path.open("xb") as file:
        np.lib.format.write_array_header_1_0(file, header)
        for piece in _pieces(leaf):
            file.write(_bytes(leaf[piece]))
        file.flush()
        os.fsync(file.fileno())


def _read(path: pathlib.Path, damaged: str) -> torch.Tensor:
    try:
        with warnings.catch_warnings(), files.damage(damaged):
            warnings.simplefilter("ignore")  # that it cannot be written to: it is copied
            return torch.from_numpy(arrayfiles.mapped(path))
    except FileNotFoundError:
        raise ValueError(damaged) from None
