"""PRIVATE. TFF's HDF5: one group for each user."""

import math
import pathlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from fedlens.population import DataError
from fedlens.readers.parts import (
    Part,
    Path,
    Place,
    Source,
    as_bytes,
    as_labels,
    check_paired,
    needed,
    rows_at_once,
    whole,
)


def hdf5(source: Path, users: str = "examples", images: str = "pixels", labels: str = "label") -> Source:
    """TensorFlow Federated's HDF5: a group per user, which holds pixels and labels."""
    with needed("h5py", "HDF5"):
        import h5py
    source = pathlib.Path(source)
    with whole("HDF5", source), h5py.File(source, "r") as file:
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

    with whole("HDF5", source), h5py.File(source, "r") as file:
        for number, key in enumerate(keys):
            images, labels = _datasets(file[users][key], names, Place(source.name, 0, number))
            step = rows_at_once(math.prod(images.shape[1:]) * images.dtype.itemsize)
            for start in range(0, len(labels), step):
                place, rows = Place(source.name, start, number), slice(start, start + step)
                own = as_labels(labels[rows], place)
                yield Part(place, np.full(len(own), number), as_bytes(images[rows], place), own)


def _datasets(group: Any, names: tuple[str, str], place: Place) -> list[Any]:
    import h5py

    held: list[Any] = [group.get(name) if isinstance(group, h5py.Group) else None for name in names]
    if not all(isinstance(one, h5py.Dataset) and one.ndim for one in held):
        raise DataError(f"Expected columns {' and '.join(names)} in {place.file}, user index {place.user}.")
    check_paired(len(held[0]), len(held[1]), place)
    return held
