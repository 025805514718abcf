"""PRIVATE. Where populations come from, what must hold for them, and bugs planted on purpose.

Errors name files, columns and row numbers, never a user or a value.
"""

import contextlib
import dataclasses
import hashlib
import itertools
import pathlib
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch

from fedlens.core import arrayfiles, pins
from fedlens.core.trees import pixels
from fedlens.data.population import DataError, Population, SchemaError
from fedlens.media.images import faults as transforms
from fedlens.media.images.faults import Change

_SLICE = 4096  # images that are changed together: memory must not grow with what one user holds
_NAMES = 50  # of arrays, in an error


class Public(NamedTuple):
    """Labelled images anybody may see."""

    images: np.ndarray
    labels: np.ndarray


def digits(users: int) -> tuple[Population, Public]:
    """scikit-learn's handwritten digits: 15 each dealt to `users` users in file order, the rest public."""
    from sklearn.datasets import load_digits

    bundle = load_digits()
    images = (bundle.images * 255 / 16).round().astype(np.uint8)[:, None]
    held = 15 * users
    if not 0 < held <= len(images) - 200:
        raise DataError(f"Expected 1 <= users <= {(len(images) - 200) // 15} for the digits, got {users}.")
    population = Population.from_arrays(
        "digits", {"x": images[:held], "y": bundle.target[:held].astype(np.int64)}, np.full(users, 15)
    )
    return population, Public(images[held:], bundle.target[held:])


def from_npz(
    path: pathlib.Path, *, images: str, labels: str | None, users: str | int, attributes: Sequence[str] = ()
) -> Population:
    """An .npz with one row per example and a column of user ids, or a number of users to deal the rows to.

    Rows need not be sorted by user.
    """
    named = (images, labels, *attributes, *([users] if isinstance(users, str) else []))
    arrays = _arrays(path, [name for name in named if name])
    _same_length(path, arrays)
    ids = arrays[users] if isinstance(users, str) else np.arange(len(arrays[images])) % users
    if ids.ndim != 1 or ids.dtype.kind not in "iuUS":
        raise SchemaError(f"Expected one user id per row in {users}, whole numbers or text.")
    order = np.argsort(ids, kind="stable")
    counts = np.unique(ids, return_counts=True)[1]
    columns = {"x": as_images(arrays[images], images)[order]}
    if labels:
        columns["y"] = as_labels(arrays[labels], labels)[order]
    columns |= {name: as_whole_numbers(arrays[name], name)[order] for name in attributes}
    return Population.from_arrays(path.stem, columns, counts)


def images_in(path: pathlib.Path, name: str | None = None, declared: bool = True) -> list[np.ndarray]:
    """Of PUBLIC data: the images of this name, or all arrays of images that a file holds."""
    with pins.opened_public(path) if declared else contextlib.nullcontext(path) as own:
        found = _arrays(own, [name] if name else arrayfiles.names_in(own))
    return [as_images(array, key) for key, array in found.items() if name or array.ndim in (3, 4)]


def public_npz(path: pathlib.Path, *, images: str, labels: str) -> Public:
    with pins.opened_public(path) as own:
        arrays = _arrays(own, [images, labels])
    _same_length(path, arrays)
    return Public(as_images(arrays[images], images), as_labels(arrays[labels], labels))


def as_images(array: np.ndarray, name: str) -> np.ndarray:
    """[n, side, side] or [n, channels, side, side], bytes or finite floats in [-1, 1]."""
    shaped = array[:, None] if array.ndim == 3 else array
    if shaped.ndim != 4 or shaped.shape[1] not in (1, 3) or shaped.shape[2] != shaped.shape[3]:
        raise SchemaError(
            f"Expected {name} as [n, side, side] or [n, channels, side, side], got shape {array.shape[1:]} per row."
        )
    if shaped.dtype == np.uint8:
        return shaped
    if not np.issubdtype(shaped.dtype, np.floating):
        raise SchemaError(f"Expected {name} as bytes (uint8) or floats in [-1, 1], got {shaped.dtype}.")
    bad = ~np.isfinite(shaped).reshape(len(shaped), -1).all(1)
    if bad.any():
        raise DataError(f"Expected finite pixels in {name}; row {int(np.flatnonzero(bad)[0])} holds NaN or infinity.")
    if len(shaped) and (shaped.min() < -1 or shaped.max() > 1):
        raise DataError(f"Expected pixels of {name} in [-1, 1]; bytes would be taken as 0 to 255.")
    return shaped.astype(np.float32)


def check_pixels(column: np.ndarray) -> None:
    """Reads all images, a part at a time."""
    for start in range(0, len(column), 65536):
        as_images(np.asarray(column[start : start + 65536]), f"x (rows from {start})")


def as_labels(array: np.ndarray, name: str) -> np.ndarray:
    labels = as_whole_numbers(array, name)
    if len(labels) and labels.min() < 0:
        raise DataError(f"Expected labels of 0 and above in {name}; row {int(np.argmin(labels))} is below.")
    return labels


def as_whole_numbers(array: np.ndarray, name: str) -> np.ndarray:
    if array.ndim != 1 or not np.issubdtype(array.dtype, np.integer):
        raise SchemaError(f"Expected {name} as one whole number per row, got {array.dtype} {list(array.shape[1:])}.")
    return array.astype(np.int64)


def planted(
    population: Population,
    kind: str,
    fraction: float,
    seed: int,
    *,
    of: str = "users",
    mark: str | None = None,
    classes: int | None = None,
) -> Population:
    """The population with a bug on about a `fraction` of its users, or of each user's examples.

    Whom it hits follows from a public seed and the user's own images: were it a share of all, one user's presence would
    change what others hold, and a rehearsal on private data would break its guarantee. Where a column is to `mark`
    them, it holds 1 in every row of a user whom the bug hit, and 0 elsewhere.
    """
    if population.rows is not None:
        raise DataError("Expected a whole population to plant a bug on, got a selection of one.")
    bug, columns = transforms.named(kind), dict(population.columns)
    if mark in columns:
        raise SchemaError(f"Expected no column named {mark!r} yet: it is to mark whom the bug hit.")
    hit = list(_hit_users(population, fraction, seed) if of == "users" else _hit_examples(population, fraction, seed))
    if bug.images is not None:
        columns["x"] = np.array(columns["x"])
        for piece in itertools.chain.from_iterable(_pieces(rows) for _, rows in hit):
            columns["x"][piece] = _changed_images(columns["x"][piece], kind, bug.images)
    if bug.labels is not None:
        columns["y"] = labels = as_labels(population.only("y").columns["y"], "y")
        if classes is None:
            raise DataError(f"Expected the number of classes for the bug {kind}.")
        for _, rows in hit:
            labels[rows] = bug.labels(torch.from_numpy(labels[rows]), classes).numpy()
    if mark is not None:
        columns[mark] = np.zeros(len(columns["x"]), np.int64)
        for unit, _ in hit:
            columns[mark][_rows(population, unit)] = 1
    return dataclasses.replace(population, columns=columns)


def _hit_users(population: Population, fraction: float, seed: int) -> Iterator[tuple[int, np.ndarray]]:
    for unit in range(len(population)):
        rows = _rows(population, unit)
        if len(rows) and _own_stream(population, rows, seed).random() < fraction:
            yield unit, rows


def _hit_examples(population: Population, fraction: float, seed: int) -> Iterator[tuple[int, np.ndarray]]:
    for unit in range(len(population)):
        rows = _rows(population, unit)
        rng = _own_stream(population, rows, seed)
        share = int(fraction * len(rows) + rng.random())  # rounded at random, so that few examples are hit as well
        if share:
            yield unit, np.sort(rng.permutation(rows)[:share])


def _own_stream(population: Population, rows: np.ndarray, seed: int) -> np.random.Generator:
    """Random numbers that depend on the seed and on what this one user holds, and on nobody else."""
    held = hashlib.sha256(str(seed).encode())
    for piece in _pieces(rows):
        held.update(np.ascontiguousarray(population.columns["x"][piece]).data)
    return np.random.default_rng(int.from_bytes(held.digest()[:16], "big"))


def _rows(population: Population, unit: int) -> np.ndarray:
    return population.starts[unit] + np.arange(population.counts[unit])


def _pieces(rows: np.ndarray) -> Iterator[np.ndarray]:
    return (rows[at : at + _SLICE] for at in range(0, len(rows), _SLICE))


def _changed_images(images: np.ndarray, kind: str, change: Change) -> np.ndarray:
    """In the type they had. Somebody else's function is not trusted, and what it complains of may quote the data."""
    before = pixels(torch.from_numpy(images))
    shape = before.shape
    try:
        with contextlib.redirect_stdout(None), contextlib.redirect_stderr(None):
            after = change(before)
    except (Exception, SystemExit):
        raise DataError(f"Expected {kind} to change images; it failed.") from None
    if not isinstance(after, torch.Tensor) or after.shape != shape or not after.is_floating_point():
        raise DataError(f"Expected {kind} to give back images of the same shape, as a tensor of floats.")
    if not after.isfinite().all():
        raise DataError(f"Expected {kind} to give back finite pixels; it gave NaN or infinity.")
    after = after.detach().float().cpu().clamp(-1, 1)
    return ((after + 1) * 127.5).round().numpy().astype(np.uint8) if images.dtype == np.uint8 else after.numpy()


def checked(population: Population) -> list[str]:
    """Reads everything once and lists what a run would stumble over; empty when all is well."""
    problems = []
    if (population.counts < 1).any():
        problems.append(
            f"user index {int(np.flatnonzero(population.counts < 1)[0])} holds no example; it will contribute nothing"
        )
    if (population.counts < 0).any() or (np.diff(population.starts) < 0).any():
        problems.append("offsets.npy does not grow: users overlap")
    if "x" not in population.columns:
        return [*problems, f"there is no image column 'x'; found {', '.join(sorted(population.columns))}"]
    try:
        check_pixels(population.columns["x"])
    except DataError as error:
        problems.append(str(error))
    if not problems and population.columns["x"].ndim == 4 and population.columns["x"].shape[1] != 1:
        problems.append("the images are in colour; runs read grey ones, [n, 1, side, side]")
    return problems


def _arrays(path: pathlib.Path, names: list[str]) -> dict[str, np.ndarray]:
    told = (
        f"Expected a whole .npz file of plain arrays in {path.name}; it is cut short, damaged, or holds images of"
        " mixed sizes."
    )
    try:
        return arrayfiles.archived(path, names, told, DataError)
    except arrayfiles.MissingError as missing:
        there = ", ".join(missing.there[:_NAMES])
        raise SchemaError(f"Expected {', '.join(missing.names)} in {path.name}; it holds {there}.") from None
    except FileNotFoundError:
        raise DataError(f"Expected the file {path}; it is missing.") from None
    except OSError:
        raise DataError(told) from None


def _same_length(path: pathlib.Path, arrays: dict[str, np.ndarray]) -> None:
    if any(array.ndim == 0 for array in arrays.values()) or len({len(array) for array in arrays.values()}) > 1:
        raise SchemaError(f"Expected columns of one length in {path.name}.")
