"""Our own feature network: a small classifier of real images, whose hidden layer is where distances are measured.

Inception's weights cannot be shipped, and say little about 28 x 28 grey pixels. So numbers here compare with others of
the same feature network alone: its hash stands beside every one of them.
"""

import torch
from torch import nn

from fedlens.core import trees
from fedlens.core.trees import Tree
from fedlens.evaluation import networks
from fedlens.evaluation.networks import TrainingRule
from fedlens.models.classifier import ConvClassifier, Primary, slice_rows

EPOCHS = 10
WIDTHS = (32, 64)
FEATURES = 128


class _Parameters(nn.Module):
    """A network that is a function of its weights, as a module that holds them."""

    def __init__(self, network: ConvClassifier, params: Tree) -> None:
        super().__init__()
        self.network, self.names = network, tuple(params)
        self.leaves = nn.ParameterList(params.values())

    @property
    def params(self) -> Tree:
        return dict(zip(self.names, self.leaves, strict=True))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.network.scores(self.params, images)


def trained(
    images: torch.Tensor, labels: torch.Tensor, *, classes: int, seed: int = 0, epochs: int = EPOCHS
) -> Primary:
    """A feature network for images like these, which are real and the evaluator's own; on the device they lie on."""
    channels, side = images.shape[1:3]
    network = ConvClassifier(side=side, channels=channels, classes=classes, widths=WIDTHS, hidden=FEATURES)
    made = networks.trained(
        lambda: _Parameters(network, network.init(seed)), images, labels, TrainingRule(epochs=epochs), seed
    )
    assert isinstance(made, _Parameters)
    return Primary(network, {name: _as_in_a_file(leaf) for name, leaf in made.params.items()})


def _as_in_a_file(leaf: torch.Tensor) -> torch.Tensor:
    """A convolution with weights in another order rounds otherwise."""
    return leaf.detach().cpu().clone(memory_format=torch.contiguous_format)


def answers(network: Primary, images: torch.Tensor, device: str = "cpu") -> tuple[torch.Tensor, torch.Tensor]:
    """Features and class probabilities of each image, a part of them at a time, back on the CPU."""
    there = Primary(network.network, trees.moved(network.params, device))
    pieces = images.split(slice_rows(network.side, network.channels))
    asked = [(there.features(part), there.probabilities(part)) for part in (piece.to(device) for piece in pieces)]
    return torch.cat([one.cpu() for one, _ in asked]), torch.cat([other.cpu() for _, other in asked])
