"""psi: what one unit sends of its images, once. Blocks of stated weights, together of norm 1 at most."""

import dataclasses
import functools
import math
from collections.abc import Mapping

import numpy as np
import torch

from fedlens.core.trees import Tree, pixels
from fedlens.models.looks.embedding import Embedding
from fedlens.models.looks.moments import Moments
from fedlens.models.looks.shapes import drawn
from fedlens.models.looks.statistics import READABLE, coarser, sizes
from fedlens.models.looks.two_sample import COUNT, SPREAD
from fedlens.models.sizes import check_sizes

BODY, LABELS, PREDICTED, SIZE = "body", "labels", "predicted", "size"
SIZES = 8  # bins of how many examples a unit shows: 1, 2-3, 4-7, ... 128 and more
_LABELS, _PREDICTED, _COUNT, _SIZE, _SPREAD = 0.05, 0.05, 0.03, 0.005, 0.02  # of the squared norm
MOST_READABLE = 0.8
_DRAWN = 1000  # shapes that centres are taken from
TOGETHER = 512  # of a unit's images, in a body: each is as many numbers as all of a class together


@dataclasses.dataclass(frozen=True, kw_only=True)
class Psi:
    """`body` is what generators are fitted to; `readable` the share of the squared norm that people read from.

    What people read is counted from the means of drawn shapes, and cut to a `radius` around them: units are far more
    like each other than their norm says, and noise grows with what they may differ. Units beyond it keep the direction
    in which they lie: a smaller radius shows smaller differences, and tells less about how large they are.

    A unit's body has no norm that is known beforehand: one with many images of many classes has a small one. So the
    bodies of units that hold several images are brought to the same norm, as are their histograms of labels, and no
    bound need be chosen. Directions and the proportions of classes are kept; how long the mean is, a generator can do
    without (see `fitting`).
    """

    body: Embedding | Moments
    classes: int = 0  # 0: images without labels
    judged: bool = False  # whether units also send what a primary model, of the same classes, takes their images for
    several: bool = True  # whether a unit may hold several images
    examples: int = 128  # of a unit's images, that are shown, at most
    readable: float = 0.1
    radius: float = 0.5  # of each readable block around its centre; no block of an image is longer than 1

    def __post_init__(self) -> None:
        if not 0 <= self.readable <= MOST_READABLE:
            raise ValueError(f"Expected a readable share of 0 to {MOST_READABLE}.")
        if not 0 < self.radius <= 1:
            raise ValueError("Expected a radius above 0, and of 1 at most.")
        if self.judged and not self.classes:
            raise ValueError("Expected classes to count predictions by.")
        check_sizes(classes=self.classes + 1, examples=self.examples)

    @property
    def weights(self) -> dict[str, float]:
        """By their block: the norm that it has at most; the squares add up to 1."""
        squares = {name: self.readable / len(READABLE) for name in self.varying}
        squares |= {LABELS: _LABELS} if self.classes else {}
        squares |= {PREDICTED: _PREDICTED} if self.judged else {}
        squares |= {SIZE: _SIZE} if self.several else {}
        squares |= {COUNT: _COUNT} | ({SPREAD: _SPREAD} if self.readable else {})
        return {name: math.sqrt(share) for name, share in (squares | {BODY: 1 - sum(squares.values())}).items()}

    def __call__(self, examples: Tree) -> Tree:
        """A unit's contribution, from its images `x`, labels `y` and predictions if any, and the `mask` of those that
        are there."""
        images, mask = pixels(examples["x"]), examples["mask"]
        share = mask / mask.sum().clamp(min=1.0)
        there = share.sum().clamp(max=1.0)  # 0 for a unit that holds nothing
        blocks = self.readable_of({name: share @ READABLE[name](images) for name in self.varying}, there)
        kinds = self.kinds(examples["y"], share) if self.classes else share[None]
        evened = even if self.several else torch.Tensor.clone
        blocks |= {LABELS: evened(kinds.sum(1))} if self.classes else {}
        if self.judged:  # row by row of true classes
            taken = self.kinds(examples[PREDICTED], torch.ones_like(share))
            blocks[PREDICTED] = evened(kinds @ taken.T)
        blocks |= {SIZE: size_of(mask)} if self.several else {}
        blocks |= {COUNT: there[None], BODY: evened(self._body(kinds, images))}
        weights = self.weights
        return {name: block * weights[name] for name, block in blocks.items()}

    def readable_of(self, means: Mapping[str, torch.Tensor], there: torch.Tensor) -> dict[str, torch.Tensor]:
        """The readable blocks of a unit, or of units row by row, whose images have these means; none that holds
        nothing."""
        blocks = {name: self.around(name, mean) * there[..., None] for name, mean in means.items()}
        if not blocks:
            return {}
        squares = [block.square().sum(-1) for block in blocks.values()]
        return blocks | {SPREAD: torch.stack(squares, -1) / math.sqrt(len(blocks))}

    def around(self, name: str, block: torch.Tensor) -> torch.Tensor:
        """How far a readable block is from its centre, in units of the radius; along the last dimension, no longer
        than 1."""
        apart: torch.Tensor = (block - self._centre(name, str(block.device))) / self.radius
        within: torch.Tensor = apart / apart.norm(dim=-1, keepdim=True).clamp(min=1.0)
        return within

    def _centre(self, name: str, device: str = "cpu") -> torch.Tensor:
        centre: torch.Tensor = centres(self.body.side, self.body.channels, device)[name]
        return centre

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
            **({PREDICTED: (self.classes, self.classes)} if self.judged else {}),
            **({SIZE: (SIZES,)} if self.several else {}),
            COUNT: (1,),
            **({SPREAD: (len(readable),)} if readable else {}),
            BODY: (max(1, self.classes), self.body.size),
        }

    @property
    def varying(self) -> tuple[str, ...]:
        """The blocks whose mean squared norm stands in SPREAD, in this order."""
        return tuple(READABLE) if self.readable else ()

    @property
    def views(self) -> dict[str, tuple[np.ndarray, ...]]:
        """The blocks that two looks are compared by, each with orthonormal rows that look at it more coarsely."""
        coarse = coarser(self.body.side, self.body.channels) if self.readable else {}
        return coarse | {name: () for name in (LABELS, PREDICTED, SIZE) if name in self.weights}

    @property
    def meaning(self) -> tuple[object, ...]:
        form = self.body.side, self.body.channels
        return *form, self.classes, self.judged, self.several, bool(self.readable), self.radius

    def kinds(self, labels: torch.Tensor, share: torch.Tensor) -> torch.Tensor:
        """[classes, n]: the shares, sorted by class; a label that is none of the classes counts for none."""
        return (labels == torch.arange(self.classes, device=labels.device)[:, None]) * share


@functools.lru_cache(maxsize=8)
def centres(side: int, channels: int, device: str = "cpu") -> dict[str, torch.Tensor]:
    """By the readable block: its mean over drawn shapes."""
    images = drawn(_DRAWN, side, channels)
    return {
        name: torch.cat([block(part) for part in images.split(TOGETHER)]).double().mean(0).float().to(device)
        for name, block in READABLE.items()
    }


def even(block: torch.Tensor) -> torch.Tensor:
    """Of norm 1, or nothing."""
    of_norm_1: torch.Tensor = block / block.norm().clamp(min=1e-12)
    return of_norm_1


def size_of(mask: torch.Tensor) -> torch.Tensor:
    """A one in the bin of how many examples are shown; nothing for none."""
    shown = mask.sum()
    place = shown.clamp(min=1.0).log2().add(1e-4).floor().clamp(max=SIZES - 1)
    return (torch.arange(SIZES, device=mask.device) == place) * (shown > 0)
