"""Synthetic images that never travel without the guarantee of the model that made them."""

import dataclasses
import pathlib
from typing import Any, ClassVar

import torch

from fedlens.core import files, tensorfiles
from fedlens.core.trees import Tree
from fedlens.ledger import Head, Spending, guarantee
from fedlens.ledger.provenance import as_delta, as_head, as_label, as_number, damage_of, provenance
from fedlens.models.gan import ConvCritic, ConvGenerator, Gan
from fedlens.privacy import Guarantee


@dataclasses.dataclass(frozen=True, kw_only=True)
class Samples:
    medium: ClassVar[str] = "images"
    images: torch.Tensor = dataclasses.field(repr=False)  # [n, channels, side, side] in [-1, 1]
    label: str  # of the group
    spending: Spending
    delta: float
    classes: torch.Tensor | None = dataclasses.field(default=None, repr=False)  # what a conditional model was to draw
    round: int | None = None  # after which the model drew them

    @property
    def guarantee(self) -> Guarantee:
        return guarantee([self.spending], self.delta)

    def __len__(self) -> int:
        return len(self.images)

    def save(self, path: pathlib.Path) -> None:
        about = {"label": self.label, "synthetic": True, "round": self.round}
        tree = {"images": self.images} | ({} if self.classes is None else {"classes": self.classes})
        tensorfiles.write(path, tree, about | provenance(self.spending, self.delta))

    @classmethod
    def open(cls, path: pathlib.Path) -> "Samples":
        tree, about = tensorfiles.read(path)
        if "spending" not in about or "images" not in tree:
            raise ValueError(f"Expected samples with their guarantee in {path.name}.")
        with damage_of(path):
            _check_images(tree["images"], tree.get("classes"))
            return cls(
                images=tree["images"],
                label=as_label(about["label"]),
                spending=Spending.from_dict(about["spending"]),
                delta=as_delta(about["delta"]),
                classes=tree.get("classes"),
                round=None if about.get("round") is None else as_number(about["round"]),
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Model:
    """A trained generator with its guarantee: the content of model.safetensors."""

    medium: ClassVar[str] = "images"
    gan: Gan
    generator: Tree = dataclasses.field(repr=False)
    label: str
    spending: Spending
    delta: float
    recipe_sha256: str
    rounds: int
    ledger_head: Head  # the last entry of the ledger when the model was made: it pins down all before it

    def sampled(self, count: int, seed: int) -> Samples:
        images, classes = self.gan.drawn(self.generator, count, seed)
        return Samples(
            images=images,
            label=self.label,
            spending=self.spending,
            delta=self.delta,
            classes=classes,
            round=self.rounds,
        )

    def save(self, path: pathlib.Path) -> None:
        about = {
            "gan": dataclasses.asdict(self.gan),
            "label": self.label,
            "recipe_sha256": self.recipe_sha256,
            "rounds": self.rounds,
            "ledger_head": self.ledger_head,
        }
        tensorfiles.write(path, self.generator, about | provenance(self.spending, self.delta))

    @classmethod
    def open(cls, path: pathlib.Path) -> "Model":
        generator, about = tensorfiles.read(path)
        missing = {"gan", "label", "spending", "delta", "recipe_sha256", "rounds", "ledger_head"} - about.keys()
        if missing:
            raise ValueError(
                f"Expected a model with its guarantee in {path.name}; its header lacks {', '.join(sorted(missing))}."
            )
        with damage_of(path):
            opened = cls(
                gan=gan_from(about["gan"]),
                generator=generator,
                label=as_label(about["label"]),
                spending=Spending.from_dict(about["spending"]),
                delta=as_delta(about["delta"]),
                recipe_sha256=as_label(about["recipe_sha256"]),
                rounds=as_number(about["rounds"]),
                ledger_head=as_head(about["ledger_head"]),
            )
        if not opened.gan.generator.fits(generator):
            raise ValueError(f"Expected the weights of its network in {path.name}; some are missing or misshapen.")
        return opened


def gan_from(values: dict[str, Any]) -> Gan:
    """A pair from its plain settings, as they stand in a file's header."""
    parts = {key: values[key] | {"widths": tuple(values[key]["widths"])} for key in ("generator", "critic")}
    if not files.finite(values["penalty"]):
        raise ValueError
    return Gan(
        generator=ConvGenerator(**parts["generator"]), critic=ConvCritic(**parts["critic"]), penalty=values["penalty"]
    )


def _check_images(images: torch.Tensor, classes: torch.Tensor | None) -> None:
    """Square images of floats, at least one, and a whole number for each if they were to be of classes."""
    square = images.dim() == 4 and images.shape[2] == images.shape[3] and 0 not in images.shape
    if not square or images.dtype != torch.float32:
        raise ValueError
    if classes is not None and (classes.shape != images.shape[:1] or classes.dtype != torch.int64):
        raise ValueError
