"""PRIVATE. Where populations come from, what must hold for them, and bugs planted on purpose.

Errors name files, columns and row numbers, never a user or a value.
"""

import pathlib
import zipfile
from typing import NamedTuple

import numpy as np
import torch

from fedlens.population import DataError, Population
from fedlens.transforms import TRANSFORMS
from fedlens.trees import pixels


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


def from_npz(path: pathlib.Path, *, images: str, labels: str | None, users: str) -> Population:
    """An .npz with one row per example and a column of user ids; rows need not be sorted."""
    arrays = _arrays(path, [name for name in (images, labels, users) if name])
    ids = arrays[users]
    _same_length(path, arrays)
    if ids.ndim != 1:
        raise DataError(f"Expected one user id per row in {users}.")
    order = np.argsort(ids, kind="stable")
    counts = np.unique(ids, return_counts=True)[1]
    columns = {"x": as_images(arrays[images], images)[order]}
    if labels:
        columns["y"] = as_labels(arrays[labels], labels)[order]
    return Population.from_arrays(path.stem, columns, counts)


def public_npz(path: pathlib.Path, *, images: str, labels: str) -> Public:
    arrays = _arrays(path, [images, labels])
    _same_length(path, arrays)
    return Public(as_images(arrays[images], images), as_labels(arrays[labels], labels))


def as_images(array: np.ndarray, name: str) -> np.ndarray:
    """[n, side, side] or [n, channels, side, side], bytes or finite floats in [-1, 1]."""
    shaped = array[:, None] if array.ndim == 3 else array
    if shaped.ndim != 4 or shaped.shape[1] not in (1, 3) or shaped.shape[2] != shaped.shape[3]:
        raise DataError(
            f"Expected {name} as [n, side, side] or [n, channels, side, side], got shape {array.shape[1:]} per row."
        )
    if shaped.dtype == np.uint8:
        return shaped
    if not np.issubdtype(shaped.dtype, np.floating):
        raise DataError(f"Expected {name} as bytes (uint8) or floats in [-1, 1], got {shaped.dtype}.")
    bad = ~np.isfinite(shaped).reshape(len(shaped), -1).all(1)
    if bad.any():
        raise DataError(f"Expected finite pixels in {name}; row {int(np.flatnonzero(bad)[0])} holds NaN or infinity.")
    if len(shaped) and (shaped.min() < -1 or shaped.max() > 1):
        raise DataError(f"Expected pixels of {name} in [-1, 1]; bytes would be taken as 0 to 255.")
    return shaped.astype(np.float32)


def as_labels(array: np.ndarray, name: str) -> np.ndarray:
    if array.ndim != 1 or not np.issubdtype(array.dtype, np.integer):
        raise DataError(f"Expected {name} as one whole number per row, got {array.dtype} {list(array.shape[1:])}.")
    if len(array) and array.min() < 0:
        raise DataError(f"Expected labels of 0 and above in {name}; row {int(np.argmin(array))} is below.")
    return array.astype(np.int64)


def planted(population: Population, bug: str, fraction: float, seed: int) -> Population:
    """The population with a bug on a `fraction` of its users, chosen by a public seed."""
    if population.rows is not None:
        raise DataError("Expected a whole population to plant a bug on, got a selection of one.")
    images = np.array(population.columns["x"])
    hit = np.random.default_rng(seed).permutation(len(population))[: round(fraction * len(population))]
    for unit in hit:
        rows = slice(int(population.starts[unit]), int(population.starts[unit] + population.counts[unit]))
        changed = TRANSFORMS[bug][1](pixels(torch.from_numpy(images[rows])))
        images[rows] = ((changed + 1) * 127.5).round().numpy() if images.dtype == np.uint8 else changed.numpy()
    return Population(population.name, {**population.columns, "x": images}, population.starts, population.counts)


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
    for start in range(0, len(population.columns["x"]), 65536):
        try:
            as_images(np.asarray(population.columns["x"][start : start + 65536]), f"x (rows from {start})")
        except DataError as error:
            problems.append(str(error))
            break
    return problems


def _arrays(path: pathlib.Path, names: list[str]) -> dict[str, np.ndarray]:
    try:
        with np.load(path, allow_pickle=False) as archive:
            missing = [name for name in names if name not in archive.files]
            if missing:
                raise DataError(f"Expected {', '.join(missing)} in {path.name}; it holds {', '.join(archive.files)}.")
            return {name: archive[name] for name in names}
    except FileNotFoundError:
        raise DataError(f"Expected the file {path}; it is missing.") from None
    except DataError:
        raise
    except (zipfile.BadZipFile, ValueError, OSError, EOFError):
        raise DataError(f"Expected a whole .npz file in {path.name}; it is cut short or damaged.") from None


def _same_length(path: pathlib.Path, arrays: dict[str, np.ndarray]) -> None:
    if any(array.ndim == 0 for array in arrays.values()) or len({len(array) for array in arrays.values()}) > 1:
        raise DataError(f"Expected columns of one length in {path.name}.")
