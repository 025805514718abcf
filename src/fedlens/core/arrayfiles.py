"""Plain arrays on disk, .npy and .npz, whoever wrote them: a header is believed where the file is as large as it says.

Nothing is allocated before that, nothing is unpickled, and what numpy or zlib say is not passed on.
"""

import math
import os
import pathlib
import warnings
import zipfile
from collections.abc import Sequence
from typing import IO, Any, NamedTuple

import numpy as np

from fedlens.core import files

_HEADER = 4096  # characters of a .npy header, which is evaluated: that of a plain array has 118
_PIECE = 2**24  # bytes read at a time
# Of one row, at most: an image of 1024 x 1024 in three colours of eight bytes has 24 MiB. Rows nobody has would
# otherwise declare a shape that empty cohorts are modelled on.
MOST_ROW = 2**26


class _Header(NamedTuple):
    dtype: np.dtype
    shape: tuple[int, ...]
    order: Any  # "C" or "F"
    start: int  # of the values, in the file

    @property
    def end(self) -> int:
        return self.start + math.prod(self.shape) * self.dtype.itemsize


class MissingError(KeyError):
    """Arrays that an archive does not hold; `there` are those that it does."""

    def __init__(self, names: Sequence[str], there: Sequence[str]) -> None:
        super().__init__(*names)
        self.names, self.there = names, there


def mapped(path: pathlib.Path) -> np.ndarray:
    """A .npy file, mapped into memory; ValueError, or an OSError, where it is none."""
    with path.open("rb") as file, files.damage(f"Expected a whole .npy file in {path.name}; it is damaged."):
        header = _header(file)
        if header.end != os.fstat(file.fileno()).st_size:
            raise ValueError
        return np.memmap(path, header.dtype, "r", header.start, header.shape, header.order)


def names_in(path: pathlib.Path) -> list[str]:
    """Of the arrays of an .npz; none where it cannot be read, which is told when it is."""
    try:
        with zipfile.ZipFile(path) as archive:
            return [name.removesuffix(".npy") for name in archive.namelist()]
    except Exception:
        return []


def archived(path: pathlib.Path, names: Sequence[str], message: str, error: type[ValueError]) -> dict[str, np.ndarray]:
    """These arrays of an .npz; MissingError, or an error with this `message`, or an OSError, where it has none."""
    with files.damage(message, error), path.open("rb") as file, zipfile.ZipFile(file) as archive:
        members = {member.filename.removesuffix(".npy"): member for member in archive.infolist()}
        if missing := [name for name in names if name not in members]:
            there = list(members)
        else:
            size = os.fstat(file.fileno()).st_size
            files.check_declared(sum(members[name].file_size for name in names), size, path.name, error)
            return {name: _member(archive, members[name]) for name in names}
    raise MissingError(missing, there)


def _member(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> np.ndarray:
    # What other methods unpack to in one step has no limit; numpy writes these.
    if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise ValueError
    with archive.open(member) as file:
        header = _header(file)
        if header.end != member.file_size:
            raise ValueError
        values = np.empty(math.prod(header.shape), header.dtype)
        room = values.view(np.uint8).data if len(values) else memoryview(b"")
        at = 0
        while at < len(room):
            piece = file.read(min(_PIECE, len(room) - at))
            if not piece:
                raise EOFError
            room[at : at + len(piece)] = piece
            at += len(piece)
        file.read(1)  # at the end the checksum is compared
        return values.reshape(header.shape, order=header.order)


def _header(file: IO[bytes]) -> _Header:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        readers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
        shape, fortran, dtype = readers[np.lib.format.read_magic(file)](file, max_header_size=_HEADER)
    row = math.prod(shape[1:]) * dtype.itemsize
    good = all(files.whole(length, 0, 2**62) for length in shape)
    if not good or dtype.hasobject or dtype.names or dtype.subdtype or dtype.itemsize < 1 or not 1 <= row <= MOST_ROW:
        raise ValueError
    return _Header(dtype, shape, "F" if fortran else "C", file.tell())
