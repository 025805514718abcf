"""psi: what one unit sends of its images, once. Blocks of stated weights, together of norm 1 at most."""

import dataclasses
import math

import torch

from fedlens.core.trees import Tree, pixels
from fedlens.models.looks.embedding import Embedding
from fedlens.models.looks.moments import Moments
from fedlens.models.looks.statistics import READABLE, sizes
from fedlens.models.sizes import check_sizes

BODY, LABELS, SIZE = "body", "labels", "size"
_SIZES = 8  # bins of how many examples a unit shows: 1, 2-3, 4-7, ... 128 and more
_LABELS, _SIZE = 0.05, 0.005  # of the squared norm
TOGETHER = 512  # of a unit's images, in a body: each is as many numbers as all of a class together


@dataclasses.dataclass(frozen=True, kw_only=True)
class Psi:
    """`body` is what generators are fitted to; `readable` the share of the squared norm that people read from.

    A unit's body has no norm that is known beforehand: one with many images of many classes has a small one. So the
    bodies of units that hold several images are brought to the same norm, as are their histograms of labels, and no
    bound need be chosen. Directions and the proportions of classes are kept; how long the mean is, a generator can do
    without (see `fitting`).
    """

    body: Embedding | Moments
    classes: int = 0  # 0: images without labels
    several: bool = True  # whether a unit may hold several images
    examples: int = 128  # of a unit's images, that are shown, at most
    readable: float = 0.1

    def __post_init__(self) -> None:
        if not 0 <= self.readable <= 0.9:
            raise ValueError("Expected a readable share of 0 to 0.9.")
        check_sizes(classes=self.classes + 1, examples=self.examples)

    @property
    def weights(self) -> dict[str, float]:
        """By their block: the norm that it has at most; the squares add up to 1."""
        squares = {name: self.readable / len(READABLE) for name in READABLE}
        squares |= {LABELS: _LABELS} if self.classes else {}
        squares |= {SIZE: _SIZE} if self.several else {}
        return {name: math.sqrt(share) for name, share in (squares | {BODY: 1 - sum(squares.values())}).items()}

    def __call__(self, examples: Tree) -> Tree:
        """A unit's contribution, from its images `x`, labels `y` if any, and the `mask` of those that are there."""
        images, mask = pixels(examples["x"]), examples["mask"]
        share = mask / mask.sum().clamp(min=1.0)
        blocks = {name: share @ block(images) for name, block in READABLE.items()} if self.readable else {}
        kinds = self.kinds(examples["y"], share) if self.classes else share[None]
        even = _even if self.several else torch.Tensor.clone
        blocks |= {LABELS: even(kinds.sum(1))} if self.classes else {}
        blocks |= {SIZE: _size(mask)} if self.several else {}
        blocks[BODY] = even(self._body(kinds, images))
        weights = self.weights
        return {name: block * weights[name] for name, block in blocks.items()}

    def _body(self, kinds: torch.Tensor, images: torch.Tensor) -> torch.Tensor:
        """Piece by piece, so that a unit of very many images takes no more memory than one of some."""
        (first, *others) = zip(kinds.split(TOGETHER, 1), images.split(TOGETHER), strict=True)
        total: torch.Tensor = first[0] @ self.body(first[1])
        for kind, part in others:
            total = total + kind @ self.body(part)
        return total

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Of the blocks."""
        readable = sizes(self.body.side, self.body.channels) if self.readable else {}
        return {
            **{name: (size,) for name, size in readable.items()},
            **({LABELS: (self.classes,)} if self.classes else {}),
            **({SIZE: (_SIZES,)} if self.several else {}),
            BODY: (max(1, self.classes), self.body.size),
        }

    def kinds(self, labels: torch.Tensor, share: torch.Tensor) -> torch.Tensor:
        """[classes, n]: the shares, sorted by class; a label that is none of the classes counts for none."""
        return (labels == torch.arange(self.classes, device=labels.device)[:, None]) * share


def _even(block: torch.Tensor) -> torch.Tensor:
    """Of norm 1, or nothing."""
    even: torch.Tensor = block / block.norm().clamp(min=1e-12)
    return even


def _size(mask: torch.Tensor) -> torch.Tensor:
    """A one in the bin of how many examples are shown; nothing for none."""
    shown = mask.sum()
    place = shown.clamp(min=1.0).log2().add(1e-4).floor().clamp(max=_SIZES - 1)
    return (torch.arange(_SIZES, device=mask.device) == place) * (shown > 0)
