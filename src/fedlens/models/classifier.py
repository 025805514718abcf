"""The primary model of an image task: a small convolutional classifier, as a pure function of its parameters."""

import dataclasses
import math
import pathlib

import torch
import torch.nn.functional as F

from fedlens import tensorfiles, trees
from fedlens.trees import Tree


@dataclasses.dataclass(frozen=True, kw_only=True)
class ConvClassifier:
    """Per width a 3x3 convolution, ReLU and pooling by two; a hidden layer; class scores. Images lie in [-1, 1]."""

    side: int
    channels: int = 1
    classes: int = 10
    widths: tuple[int, ...] = (16, 32)
    hidden: int = 64

    def init(self, seed: int) -> Tree:
        rng = torch.Generator().manual_seed(seed)
        shapes: dict[str, tuple[int, ...]] = {}
        before = self.channels
        for layer, width in enumerate(self.widths):
            shapes[f"conv{layer}"] = (width, before, 3, 3)
            before = width
        shapes["hidden"] = (self.hidden, before * (self.side >> len(self.widths)) ** 2)
        shapes["classes"] = (self.classes, self.hidden)
        params: Tree = {}
        for name, shape in shapes.items():
            scale = math.sqrt(2 / math.prod(shape[1:]))
            params |= {
                f"{name}.weight": scale * torch.randn(shape, generator=rng),
                f"{name}.bias": torch.zeros(shape[0]),
            }
        return params

    def scores(self, params: Tree, images: torch.Tensor) -> torch.Tensor:
        x = images
        for layer in range(len(self.widths)):
            x = F.max_pool2d(
                F.relu(F.conv2d(x, params[f"conv{layer}.weight"], params[f"conv{layer}.bias"], padding=1)), 2
            )
        x = F.relu(F.linear(x.flatten(1), params["hidden.weight"], params["hidden.bias"]))
        return F.linear(x, params["classes.weight"], params["classes.bias"])

    def fitted(
        self, images: torch.Tensor, labels: torch.Tensor, *, seed: int, epochs: int = 40, batch: int = 64
    ) -> Tree:
        """Plain Adam on PUBLIC images: nothing here is private, nothing is charged."""
        rng = torch.Generator().manual_seed(seed)
        params = {name: leaf.requires_grad_() for name, leaf in self.init(seed).items()}
        optimizer = torch.optim.Adam(params.values(), lr=2e-3)
        for _ in range(epochs):
            for rows in torch.randperm(len(images), generator=rng).split(batch):
                optimizer.zero_grad()
                F.cross_entropy(self.scores(params, images[rows]), labels[rows].long()).backward()
                optimizer.step()
        return {name: leaf.detach() for name, leaf in params.items()}


@dataclasses.dataclass(frozen=True)
class Primary:
    """A trained classifier with its parameters: public."""

    network: ConvClassifier
    params: Tree

    @property
    def digest(self) -> str:
        return trees.digest(self.params)

    def predictions(self, images: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            return self.network.scores(self.params, images).argmax(1)

    def confidence(self, images: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            return self.network.scores(self.params, images).softmax(1).max(1).values

    def save(self, path: pathlib.Path) -> None:
        tensorfiles.write(path, self.params, {"classifier": dataclasses.asdict(self.network)})

    @classmethod
    def open(cls, path: pathlib.Path) -> "Primary":
        params, about = tensorfiles.read(path)
        if "classifier" not in about:
            raise ValueError(f"Expected a classifier written by fedlens in {path.name}: its header names no network.")
        settings = about["classifier"] | {"widths": tuple(about["classifier"]["widths"])}
        return cls(ConvClassifier(**settings), params)
