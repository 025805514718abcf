"""Synthetic images that never travel without the guarantee of the model that made them."""

import dataclasses
import pathlib
from typing import Any, ClassVar

import torch

from fedlens.algorithms.rebuilding import described, from_settings
from fedlens.core import files, tensorfiles
from fedlens.core.trees import Tree
from fedlens.ledger.provenance import damage_of
from fedlens.media import protocol
from fedlens.media.protocol import check_fits
from fedlens.models.gan import ConvCritic, ConvGenerator, Gan
from fedlens.models.projection import ProjectionCritic, ResidualGenerator

KINDS = {"generator": (ConvGenerator, ResidualGenerator), "critic": (ConvCritic, ProjectionCritic)}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Samples(protocol.Samples):
    medium: ClassVar[str] = "images"
    images: torch.Tensor = dataclasses.field(repr=False)  # [n, channels, side, side] in [-1, 1]
    classes: torch.Tensor | None = dataclasses.field(default=None, repr=False)  # what a conditional model was to draw

    def __len__(self) -> int:
        return len(self.images)

    def examples(self) -> Tree:
        return {"x": self.images.clamp(-1, 1)} | ({} if self.classes is None else {"y": self.classes})

    def save(self, path: pathlib.Path) -> None:
        tree = {"images": self.images} | ({} if self.classes is None else {"classes": self.classes})
        tensorfiles.write(path, tree, self._header())

    @classmethod
    def open(cls, path: pathlib.Path) -> "Samples":
        tree, about = tensorfiles.read(path)
        if "spending" not in about or "images" not in tree:
            raise ValueError(f"Expected samples with their guarantee in {path.name}.")
        with damage_of(path):
            _check_images(tree["images"], tree.get("classes"))
            return cls(images=tree["images"], classes=tree.get("classes"), **cls._stated(about))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Model(protocol.Trained):
    """A trained generator with its guarantee: the content of model.safetensors."""

    medium: ClassVar[str] = "images"
    gan: Gan
    generator: Tree = dataclasses.field(repr=False)

    def sampled(self, count: int, seed: int) -> Samples:
        images, classes = self.gan.drawn(self.generator, count, seed)
        return Samples(images=images, classes=classes, **self._of_samples())

    def save(self, path: pathlib.Path) -> None:
        parts = {name: described(getattr(self.gan, name)) for name in KINDS}
        tensorfiles.write(path, self.generator, self._header() | {"gan": parts | {"penalty": self.gan.penalty}})

    @classmethod
    def open(cls, path: pathlib.Path) -> "Model":
        generator, about = tensorfiles.read(path)
        cls._check_header(about, path, ["gan"])
        with damage_of(path):
            opened = cls(gan=gan_from(about["gan"]), generator=generator, **cls._stated(about))
        check_fits(opened.gan.generator, generator, path)
        return opened


def gan_from(values: dict[str, Any]) -> Gan:
    """A pair from its plain settings, as they stand in a file's header."""
    if not files.finite(values["penalty"]):
        raise ValueError
    return Gan(**{name: _network(values[name], KINDS[name]) for name in KINDS}, penalty=values["penalty"])


def _network(values: dict[str, Any], kinds: tuple[Any, Any]) -> Any:
    """Of the first kind, where none is named: as it was before there were others."""
    given = {key: value for key, value in values.items() if key != "kind"}
    kind = {kind.__name__: kind for kind in kinds}[values.get("kind", kinds[0].__name__)]
    return from_settings(kind, given)


def _check_images(images: torch.Tensor, classes: torch.Tensor | None) -> None:
    """Square images of floats, at least one, and a whole number for each if they were to be of classes."""
    square = images.dim() == 4 and images.shape[2] == images.shape[3] and 0 not in images.shape
    if not square or images.dtype != torch.float32:
        raise ValueError
    if classes is not None and (classes.shape != images.shape[:1] or classes.dtype != torch.int64):
        raise ValueError
