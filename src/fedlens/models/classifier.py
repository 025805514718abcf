"""The primary model of an image task: a classifier to be asked, and small convolutional networks to train one of."""

import dataclasses
import math
import pathlib
from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar

import torch
import torch.nn.functional as F

from fedlens.core import files, tensorfiles, trees
from fedlens.core.trees import Tree
from fedlens.models.sizes import MOST_LAYERS, check_sizes, fitting

if TYPE_CHECKING:
    from fedlens.models.primary import Program

Answer = Callable[[Tree, torch.Tensor], torch.Tensor]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ConvClassifier:
    """Per width a 3x3 convolution and ReLU, the first `pooled` (all by default) halved by pooling; a hidden layer."""

    kind: ClassVar[str] = "fedlens"

    side: int
    channels: int = 1
    classes: int = 10
    widths: tuple[int, ...] = (16, 32)
    hidden: int = 64
    pooled: int | None = None
    padded: bool = True

    def __post_init__(self) -> None:
        check_sizes(self.widths, side=self.side, channels=self.channels, classes=self.classes, hidden=self.hidden)
        if not (self.pooled is None or files.whole(self.pooled, 0, MOST_LAYERS)) or type(self.padded) is not bool:
            raise ValueError(f"Expected pooled as a number of layers up to {MOST_LAYERS}, and padded as true or false.")
        if self._edge < 1:
            raise ValueError(
                f"Expected a larger side={self.side}: {len(self.widths)} convolutions leave nothing of it."
            )

    @classmethod
    def paper(cls, side: int = 28, classes: int = 10, channels: int = 1) -> "ConvClassifier":
        """The classifier of Augenstein et al. 2020, whose convolutions are not padded: 36 classes there, side 28.

        >>> sum(leaf.numel() for leaf in ConvClassifier.paper().init(0).values())
        93322
        """
        widths = (32, 64, 64)
        return cls(side=side, channels=channels, classes=classes, widths=widths, pooled=2, padded=False)

    def init(self, seed: int) -> Tree:
        rng = torch.Generator().manual_seed(seed)
        params: Tree = {}
        for name, shape in self._shapes.items():
            scale = math.sqrt(2 / math.prod(shape[1:]))
            params |= {
                f"{name}.weight": scale * torch.randn(shape, generator=rng),
                f"{name}.bias": torch.zeros(shape[0]),
            }
        return params

    def scores(self, params: Tree, images: torch.Tensor) -> torch.Tensor:
        return F.linear(self.features(params, images), params["classes.weight"], params["classes.bias"])

    def probabilities(self, params: Tree, images: torch.Tensor) -> torch.Tensor:
        return self.scores(params, images).softmax(1)

    def features(self, params: Tree, images: torch.Tensor) -> torch.Tensor:
        """The hidden layer."""
        x, padding = images, int(self.padded)
        for layer in range(len(self.widths)):
            x = F.relu(F.conv2d(x, params[f"conv{layer}.weight"], params[f"conv{layer}.bias"], padding=padding))
            x = F.max_pool2d(x, 2) if self._pools(layer) else x
        return F.relu(F.linear(x.flatten(1), params["hidden.weight"], params["hidden.bias"]))

    def digest(self, params: Tree) -> str:
        return trees.digest(params)

    def save(self, path: pathlib.Path, params: Tree) -> None:
        tensorfiles.write(path, params, {"classifier": dataclasses.asdict(self)})

    def fits(self, params: Tree) -> bool:
        wanted = {f"{name}.weight": shape for name, shape in self._shapes.items()}
        wanted |= {f"{name}.bias": shape[:1] for name, shape in self._shapes.items()}
        return fitting(params, wanted)

    def fitted(
        self,
        images: torch.Tensor,
        labels: torch.Tensor,
        *,
        seed: int,
        epochs: int = 40,
        batch: int = 64,
        rate: float = 2e-3,
    ) -> Tree:
        """Plain Adam on PUBLIC images: nothing here is private, nothing is charged."""
        rng = torch.Generator().manual_seed(seed)
        params = {name: leaf.requires_grad_() for name, leaf in self.init(seed).items()}
        optimizer = torch.optim.Adam(params.values(), lr=rate)
        for _ in range(epochs):
            for rows in torch.randperm(len(images), generator=rng).split(batch):
                optimizer.zero_grad()
                F.cross_entropy(self.scores(params, images[rows]), labels[rows].long()).backward()
                optimizer.step()
        return {name: leaf.detach() for name, leaf in params.items()}

    @property
    def _shapes(self) -> dict[str, tuple[int, ...]]:
        """The weights of each layer; their first number is that of its biases."""
        before = (self.channels, *self.widths)
        shapes: dict[str, tuple[int, ...]] = {
            f"conv{layer}": (width, before[layer], 3, 3) for layer, width in enumerate(self.widths)
        }
        shapes["hidden"] = (self.hidden, before[-1] * self._edge**2)
        return shapes | {"classes": (self.classes, self.hidden)}

    @property
    def _edge(self) -> int:
        """The side of what the last convolution leaves."""
        edge = self.side
        for layer in range(len(self.widths)):
            edge = (edge if self.padded else edge - 2) >> self._pools(layer)
        return edge

    def _pools(self, layer: int) -> bool:
        return self.pooled is None or layer < self.pooled


@dataclasses.dataclass(frozen=True)
class Primary:
    """A trained classifier: public. The images it is asked about may be private, and any number of them.

    Images are [n, channels, side, side], floats in [-1, 1] or bytes. An image without a finite answer gets uniform
    probabilities, features of zero and the class -1, which equals no label: an error would tell about the image.
    """

    network: "ConvClassifier | Program"  # pure functions of parameters and images
    params: Tree = dataclasses.field(default_factory=dict, repr=False)

    @property
    def kind(self) -> str:
        """Who made it: fedlens, torchscript or torch.export."""
        return self.network.kind

    @property
    def foreign(self) -> bool:
        """Whether it is somebody else's program, which an owner may not want to run at all."""
        return self.kind != ConvClassifier.kind

    @property
    def side(self) -> int:
        return self.network.side

    @property
    def channels(self) -> int:
        return self.network.channels

    @property
    def classes(self) -> int:
        return self.network.classes

    @property
    def digest(self) -> str:
        """A SHA-256 that pins the model."""
        return self.network.digest(self.params)

    def probabilities(self, images: torch.Tensor) -> torch.Tensor:
        given = self._asked(self.network.probabilities, images)
        return torch.where(_finite(given)[:, None], given, 1 / self.classes)

    def predictions(self, images: torch.Tensor) -> torch.Tensor:
        given = self._asked(self.network.probabilities, images)
        return torch.where(_finite(given), given.argmax(1), -1)

    def confidence(self, images: torch.Tensor) -> torch.Tensor:
        return self.probabilities(images).max(1).values

    def features(self, images: torch.Tensor) -> torch.Tensor:
        given = self._asked(self.network.features, images)
        return torch.where(_finite(given)[:, None], given, 0.0)

    def save(self, path: pathlib.Path) -> None:
        self.network.save(path, self.params)

    @classmethod
    def open(cls, path: pathlib.Path) -> "Primary":
        """One that fedlens wrote; `open_primary` opens all kinds."""
        params, about = tensorfiles.read(path)
        if "classifier" not in about:
            raise ValueError(f"Expected a classifier written by fedlens in {path.name}: its header names no network.")
        with files.damage(f"Expected a network known to this version of fedlens in {path.name}."):
            network = ConvClassifier(**about["classifier"] | {"widths": tuple(about["classifier"]["widths"])})
        if not network.fits(params):
            raise ValueError(f"Expected the weights in {path.name} to fit the network of its header.")
        return cls(network, params)

    def _asked(self, answer: Answer, images: torch.Tensor) -> torch.Tensor:
        """The answers, slice by slice, so that no number of images fills the memory."""
        wanted = (self.channels, self.side, self.side)
        if images.dim() != 4 or images.shape[1:] != wanted:
            raise ValueError(f"Expected images of {wanted} for the primary model, got {tuple(images.shape[1:])}.")
        with torch.no_grad():
            pieces = images.split(slice_rows(self.side, self.channels))
            return torch.cat([answer(self.params, trees.pixels(piece)) for piece in pieces])


def slice_rows(side: int, channels: int) -> int:
    """How many images are asked about at once: 1,024, and fewer large ones.

    >>> slice_rows(28, 1), slice_rows(224, 3)
    (1024, 27)
    """
    return min(1024, max(1, 2**22 // (channels * side**2)))


def _finite(rows: torch.Tensor) -> torch.Tensor:
    return rows.isfinite().all(1)
