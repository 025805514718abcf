"""PRIVATE. The half of images that reads: where they come from, what must hold for them, and faults planted on them.

Errors name files, columns and row numbers, never a user or a value.
"""

import contextlib
import dataclasses
import itertools
import pathlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from fedlens.core import arrayfiles, pins
from fedlens.core.trees import pixels
from fedlens.data import readers
from fedlens.data.population import DataError, Population, SchemaError
from fedlens.media.images.faults import FAULTS
from fedlens.media.images.settings import channels, look, networks, side
from fedlens.media.reading import Reading, as_whole_numbers, planting_of, untrusted
from fedlens.models.classifier import ConvClassifier, Primary
from fedlens.recipes.tables import Bug, Data, Settings

_SLICE = 4096  # images that are changed together: memory must not grow with what one user holds
_NAMES = 50  # of arrays, in an error
USERS = 100  # whom the digits are dealt to, unless a recipe says otherwise


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
        arrays = _arrays(own, [name] if name else arrayfiles.names_in(own))
    return [as_images(array, key) for key, array in arrays.items() if name or array.ndim in (3, 4)]


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


def planted(population: Population, bug: Bug) -> Population:
    """The population with a fault on about a fraction of its users, or of each user's examples.

    Where a column is to mark them, it holds 1 in every row of a user whom the fault hit, and 0 elsewhere.
    """
    fault, columns = FAULTS.named(bug.kind), dict(population.columns)
    hits = list(planting_of(bug, population).hits(population, "x"))
    wrong = np.concatenate([np.zeros(0, np.int64), *(rows for _, rows, _ in hits)])
    if fault.change is not None:
        columns["x"] = np.array(columns["x"])
        for _, rows, _ in hits:  # one user after the other: what a fault draws must not depend on who comes before
            for at in range(0, len(rows), _SLICE):
                piece = rows[at : at + _SLICE]
                columns["x"][piece] = _changed_images(columns["x"][piece], bug.kind, fault.change)
    if fault.labels is not None:
        columns["y"] = labels = as_labels(population.only("y").columns["y"], "y")
        if bug.classes is None:
            raise DataError(f"Expected the number of classes for the bug {bug.kind}.")
        labels[wrong] = fault.labels(torch.from_numpy(labels[wrong]), bug.classes).numpy()
    if bug.mark is not None:
        marks = np.array([marked for _, _, marked in hits], np.int64)
        columns[bug.mark] = np.repeat(marks, population.counts)
    return dataclasses.replace(population, columns=columns)


def _changed_images(images: np.ndarray, kind: str, change: Callable[[torch.Tensor], torch.Tensor]) -> np.ndarray:
    """In the type they had."""
    before = pixels(torch.from_numpy(images))
    shape = before.shape
    after = untrusted(change, before, f"Expected {kind} to change images; it failed.")
    if not isinstance(after, torch.Tensor) or after.shape != shape or not after.is_floating_point():
        raise DataError(f"Expected {kind} to give back images of the same shape, as a tensor of floats.")
    if not after.isfinite().all():
        raise DataError(f"Expected {kind} to give back finite pixels; it gave NaN or infinity.")
    after = after.detach().float().cpu().clamp(-1, 1)
    return ((after + 1) * 127.5).round().numpy().astype(np.uint8) if images.dtype == np.uint8 else after.numpy()


def _arrays(path: pathlib.Path, names: list[str]) -> dict[str, np.ndarray]:
    damaged = (
        f"Expected a whole .npz file of plain arrays in {path.name}; it is cut short, damaged, or holds images of"
        " mixed sizes."
    )
    try:
        return arrayfiles.archived(path, names, damaged, DataError)
    except arrayfiles.MissingError as missing:
        there = ", ".join(missing.there[:_NAMES])
        raise SchemaError(f"Expected {', '.join(missing.names)} in {path.name}; it holds {there}.") from None
    except FileNotFoundError:
        raise DataError(f"Expected the file {path}; it is missing.") from None
    except OSError:
        raise DataError(damaged) from None


def _same_length(path: pathlib.Path, arrays: dict[str, np.ndarray]) -> None:
    if any(array.ndim == 0 for array in arrays.values()) or len({len(array) for array in arrays.values()}) > 1:
        raise SchemaError(f"Expected columns of one length in {path.name}.")


class ImageReading(Reading):
    name = "images"
    column = "x"
    formats = readers.KINDS
    conversion = frozenset({"users", "images", "labels", "classes", "inverted"})

    def converted(self, source: pathlib.Path, to: pathlib.Path, kind: str, **options: Any) -> Population:
        return readers.convert(source, to, kind=kind, **options)

    def source_at(self, path: pathlib.Path) -> str | None:
        return "npz" if path.suffix == ".npz" else None

    def with_its_labels(self, source: Data) -> Data:
        if source.source != "npz" or source.labels in arrayfiles.names_in(pathlib.Path(source.path or "")):
            return source
        return source.model_copy(update={"labels": None})

    def opened(self, source: Data) -> Population:
        if source.source == "digits":
            return digits(source.deal_to or USERS)[0]
        path, users = pathlib.Path(source.path or ""), source.deal_to or source.users
        images, labels, attributes = source.images, source.labels, source.attributes
        return from_npz(path, images=images, labels=labels, users=users, attributes=attributes)

    def sound(self, population: Population) -> Population:
        """Pixels that a run can use, and labels and attributes in the type it works with."""
        x = population.columns["x"]
        if x.dtype not in (np.uint8, np.float32, np.float64):
            raise DataError(f"Expected x as bytes (uint8) or floats in [-1, 1], got {x.dtype}.")
        if x.dtype != np.uint8:
            check_pixels(x)
        whole = {key: column for key, column in population.columns.items() if key != "x" and column.dtype.kind in "iu"}
        columns = {**population.columns, **{key: column.astype(np.int64) for key, column in whole.items()}}
        return dataclasses.replace(population, columns=columns)

    def prepared(self, recipe: Settings, units: Population) -> Population:
        if "x" not in units.columns:
            raise SchemaError(f"Expected an image column 'x', found {', '.join(sorted(units.columns))}.")
        size, planes, shape = side(recipe), channels(recipe), tuple(units.columns["x"].shape[1:])
        if shape != (planes, size, size):
            colour = len(shape) == 3 and shape[0] != planes
            why = "see `channels`, 1 for grey and 3 for colour" if colour else "see `side`"
            raise SchemaError(f"Expected images of ({planes}, {size}, {size}), got {shape}: {why}.")
        return planted(units, recipe.data.bug) if recipe.data.bug else units

    def check(self, recipe: Settings, units: Population) -> None:
        classes, labels = networks(recipe).classes, units.columns.get("y")
        if classes and labels is None:
            raise SchemaError("Expected labels for a conditional model (model.classes).")
        if classes and labels is not None and labels.max(initial=0) >= classes:
            # Of a registered population it is known that none is.
            raise DataError(f"Expected labels below model.classes = {classes}; the data hold others.")

    def checked(self, population: Population) -> list[str]:
        """Reads everything once and lists what a run would stumble over; empty when all is well."""
        problems = []
        if (population.counts < 1).any():
            first = int(np.flatnonzero(population.counts < 1)[0])
            problems.append(f"user index {first} holds no example; it will contribute nothing")
        if (population.counts < 0).any() or (np.diff(population.starts) < 0).any():
            problems.append("offsets.npy does not grow: users overlap")
        if "x" not in population.columns:
            return [*problems, f"there is no image column 'x'; found {', '.join(sorted(population.columns))}"]
        try:
            check_pixels(population.columns["x"])
        except DataError as error:
            problems.append(str(error))
        return problems

    def facts(self, population: Population) -> dict[str, int]:
        shape = population.columns["x"].shape
        return {"side": int(shape[-1])} | ({"channels": int(shape[1])} if shape[1:2] == (3,) else {})

    def contents(self, column: np.ndarray) -> Iterator[bytes]:
        """Whether they were kept as bytes or as floats in [-1, 1]: what were the same bytes are the same again."""
        for start in range(0, len(column), _SLICE):
            part = np.asarray(column[start : start + _SLICE])
            if part.dtype != np.uint8:
                part = ((part.astype(np.float64) + 1) * 127.5).round().clip(0, 255).astype(np.uint8)
            yield from (image.tobytes() for image in part)

    def telling(self, content: bytes) -> bool:
        """Not a blank image."""
        return content.count(content[:1]) < len(content)

    def reads_public(self, path: pathlib.Path) -> bool:
        return path.suffix == ".npz"

    def public_contents(self, path: pathlib.Path, column: str | None = None, declared: bool = True) -> Iterator[bytes]:
        return itertools.chain.from_iterable(map(self.contents, images_in(path, column, declared)))

    def public_examples(self, recipe: Settings) -> list[tuple[pathlib.Path, str | None]]:
        named = [recipe.primary.public if recipe.primary else None, look(recipe).public]
        return [(pathlib.Path(public.path), public.images) for public in named if public]

    def fitted(self, recipe: Settings, seed: int) -> Primary:
        wanted, public = recipe.primary, self._public(recipe)
        if wanted is None or public is None:
            raise ValueError("Expected primary.model or [primary.public] in the recipe: there is no classifier to ask.")
        classes, size = int(public.labels.max()) + 1, side(recipe)
        small = ConvClassifier(side=size, classes=classes, widths=wanted.widths)
        network = ConvClassifier.paper(size, classes) if wanted.network == "paper" else small
        images, labels = pixels(torch.from_numpy(public.images)), torch.from_numpy(public.labels)
        return Primary(network, network.fitted(images, labels, seed=seed, epochs=wanted.epochs))

    def _public(self, recipe: Settings) -> Public | None:
        """Examples that anybody may see: named by the recipe, or those that come with the digits."""
        columns = recipe.primary.public if recipe.primary else None
        if columns is not None:
            return public_npz(pathlib.Path(columns.path), images=columns.images, labels=columns.labels)
        return digits(recipe.data.deal_to or USERS)[1] if recipe.data.source == "digits" else None


READING = ImageReading()
