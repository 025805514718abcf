"""Images that anybody may see: a recipe names them, and faults are tried on them."""

import dataclasses
import pathlib

import numpy as np
import torch

from fedlens.core import arrayfiles, pins, trees
from fedlens.media.images.settings import channels, look, networks, side
from fedlens.recipes.tables import Columns, Settings


@dataclasses.dataclass(frozen=True, kw_only=True)
class PublicSet:
    """Images that anybody may see, with their labels and with whose they are, where that is known."""

    images: torch.Tensor = dataclasses.field(repr=False)
    labels: torch.Tensor | None = dataclasses.field(default=None, repr=False)
    owners: torch.Tensor | None = dataclasses.field(default=None, repr=False)  # 0, 1, 2, …


def whole(recipe: Settings) -> PublicSet:
    """All that a recipe names as look.public."""
    named = look(recipe).public
    if named is None:
        raise ValueError("Expected look.public: the images to compare with.")
    images, classes = images_of(named, side(recipe), channels(recipe)), networks(recipe).classes
    columns = [*([named.labels] if classes else []), *([named.users] if named.users else [])]
    arrays = arrays_of(named, columns) if columns else {}
    if any(array.shape != (len(images),) or array.dtype.kind not in "iu" for array in arrays.values()):
        raise ValueError(f"Expected {' and '.join(columns)} of look.public as one whole number for each image.")
    labels = torch.from_numpy(arrays[named.labels].astype(np.int64)) if classes else None
    if labels is not None and not 0 <= int(labels.min()) <= int(labels.max()) < classes:
        raise ValueError(f"Expected labels of look.public from 0 to {classes - 1}, as in the recipe (model.classes).")
    owners = np.unique(arrays[named.users], return_inverse=True)[1] if named.users else None
    return PublicSet(images=images, labels=labels, owners=None if owners is None else torch.from_numpy(owners))


def examples(recipe: Settings | None) -> torch.Tensor | None:
    """[n, channels, side, side] in [-1, 1], of what a recipe names as look.public; None where it names nothing."""
    named = look(recipe).public if recipe else None
    return images_of(named, side(recipe), channels(recipe)) if named and recipe else None


def images_of(named: Columns, side: int, channels: int) -> torch.Tensor:
    array = arrays_of(named, [named.images])[named.images]
    shaped = array[:, None] if array.ndim == 3 else array
    if shaped.shape[1:] != (channels, side, side) or not len(shaped):
        raise ValueError(
            f"Expected images of ({channels}, {side}, {side}) in look.public, got {tuple(shaped.shape[1:])}."
        )
    if shaped.dtype not in (np.uint8, np.float32, np.float64):
        raise ValueError(f"Expected look.public as bytes (uint8) or floats in [-1, 1], got {shaped.dtype}.")
    images = trees.pixels(torch.from_numpy(shaped))
    if not bool(images.isfinite().all()) or float(images.abs().max()) > 1:
        raise ValueError("Expected finite pixels of look.public in [-1, 1]; bytes would be taken as 0 to 255.")
    return images


def arrays_of(named: Columns, names: list[str]) -> dict[str, np.ndarray]:
    path = pathlib.Path(named.path)
    with pins.opened_public(path) as own:
        try:
            return arrayfiles.archived(own, names, f"Expected a whole .npz file in {path.name}.", ValueError)
        except arrayfiles.MissingError as missing:
            raise ValueError(f"Expected {', '.join(missing.names)} in {path.name}, named by look.public.") from None
        except FileNotFoundError:
            raise ValueError(f"Expected the file {path.name}, named by look.public; it is missing.") from None
