"""Generators that are fitted to a look: what they draw, and in which proportions of classes."""

import dataclasses
import math
from typing import Protocol

import torch
import torch.nn.functional as F

from fedlens.core.trees import Tree
from fedlens.models.gan import ConvGenerator
from fedlens.models.looks.embedding import Embedding
from fedlens.models.looks.moments import Moments
from fedlens.models.sizes import check_sizes, fitting

Drawn = tuple[torch.Tensor, torch.Tensor | None]
LIKED = "liked"  # among the weights: what was released
_BATCH = 256  # a network's images lean on the statistics of their batch, so batches are full


class Drawing(Protocol):
    """What draws images from weights."""

    @property
    def classes(self) -> int:
        """0: it draws images without labels."""

    def fits(self, params: Tree, /) -> bool:
        """Whether these are its weights; told from the shapes alone, which may be those of a hostile file."""

    def drawn(self, params: Tree, count: int, seed: int, /) -> Drawn:
        """Images in [-1, 1], and labels if it knows classes."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Network:
    """A convolutional generator, and how often it draws which class."""

    generator: ConvGenerator

    @property
    def classes(self) -> int:
        return self.generator.classes

    def fits(self, params: Tree) -> bool:
        weights = {name: leaf for name, leaf in params.items() if name != "shares"}
        return _shares_fit(params, self.classes) and self.generator.fits(weights)

    def drawn(self, params: Tree, count: int, seed: int) -> Drawn:
        rng, device = torch.Generator().manual_seed(seed), params["image.bias"].device
        labels = _labels(params["shares"], -(-count // _BATCH) * _BATCH, rng)
        latents = self.latents(labels, rng)
        with torch.no_grad():
            parts = [self.generator.images(params, part.to(device)).cpu() for part in latents.split(_BATCH)]
        return torch.cat(parts)[:count], labels[:count] if self.classes else None

    def latents(self, labels: torch.Tensor, rng: torch.Generator) -> torch.Tensor:
        """Normal numbers and, if it knows classes, which to draw."""
        normal = torch.randn(len(labels), self.generator.latent, generator=rng, device=rng.device)
        return torch.cat([normal, F.one_hot(labels, self.classes).float()], 1) if self.classes else normal


@dataclasses.dataclass(frozen=True, kw_only=True)
class Picked:
    """What a network draws, without the images of each class that the release likes least.

    A network follows the noise of a release, too: where noise alone asks for images it draws rubbish. The release's
    mean embedding is about how many of a class lie near an image, and there are few near rubbish.
    """

    network: Network
    body: Embedding
    keep: float  # share of the images of a class

    def __post_init__(self) -> None:
        if not 0 < self.keep <= 1:
            raise ValueError("Expected to keep a share above 0, and of 1 at most.")

    @property
    def classes(self) -> int:
        return self.network.classes

    def fits(self, params: Tree) -> bool:
        weights = {name: leaf for name, leaf in params.items() if name != LIKED}
        liked = {name: leaf for name, leaf in params.items() if name == LIKED}
        return fitting(liked, {LIKED: (max(1, self.classes), self.body.size)}) and self.network.fits(weights)

    def drawn(self, params: Tree, count: int, seed: int) -> Drawn:
        many = -(-math.ceil(count / self.keep) // _BATCH) * _BATCH  # enough of each class to choose from
        images, labels = self.network.drawn(params, many, seed)
        rows = torch.zeros(many, dtype=torch.long) if labels is None else labels
        liking = self._liking(params[LIKED], images, rows)
        kept = []
        for row in rows.unique():
            here = (rows == row).nonzero()[:, 0]
            kept.append(here[liking[here].topk(math.ceil(self.keep * len(here))).indices])
        chosen = torch.cat(kept).sort().values[:count]  # in the order in which they were drawn
        return images[chosen], None if labels is None else labels[chosen]

    def _liking(self, liked: torch.Tensor, images: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        """How near each image is to what was released of its class."""
        parts = zip(images.split(_BATCH), rows.split(_BATCH), strict=True)
        with torch.no_grad():
            return torch.cat([(self.body(part.to(liked.device)) * liked[row]).sum(1).cpu() for part, row in parts])


@dataclasses.dataclass(frozen=True, kw_only=True)
class Gaussian:
    """A normal distribution of low frequencies for each class; each image is turned, moved and scaled a little.

    A covariance knows nothing of shapes that keep their form when they move: small random maps give that back.
    """

    moments: Moments
    known: int = 0  # classes
    jitter: float = 0.1

    def __post_init__(self) -> None:
        check_sizes(classes=self.known + 1, coordinates=self.moments.coordinates)
        if not 0 <= self.jitter <= 1:
            raise ValueError("Expected a jitter of 0 to 1.")

    @property
    def classes(self) -> int:
        return self.known

    def fits(self, params: Tree) -> bool:
        rows, size = max(1, self.known), self.moments.coordinates
        shapes = {"shares": (rows,), "mean": (rows, size), "factor": (rows, size, size)}
        return fitting(params, shapes) and _shares_fit(params, self.known)

    def drawn(self, params: Tree, count: int, seed: int) -> Drawn:
        rng = torch.Generator().manual_seed(seed)
        labels = _labels(params["shares"], count, rng)
        parts = [self._images(params, part, rng) for part in labels.split(_BATCH)]
        return torch.cat(parts), labels if self.known else None

    def _images(self, params: Tree, labels: torch.Tensor, rng: torch.Generator) -> torch.Tensor:
        normal = torch.randn(len(labels), self.moments.coordinates, generator=rng)
        points = torch.empty_like(normal)
        for label in labels.unique():
            here = labels == label
            points[here] = normal[here] @ params["factor"][label].T + params["mean"][label]
        return moved(self.moments.images(points), self.jitter, rng)


def moved(images: torch.Tensor, amount: float, rng: torch.Generator) -> torch.Tensor:
    """Each turned, sheared, scaled and shifted by random amounts; what comes in from outside repeats the edge."""
    if not amount:
        return images

    def some(scale: float) -> torch.Tensor:
        return (2 * torch.rand(len(images), generator=rng) - 1) * scale * amount

    angle, size, shear = some(1.5), 1 + some(1.0), some(1.5)
    rows = torch.stack([size * angle.cos(), shear - size * angle.sin(), some(0.8)], 1)
    columns = torch.stack([size * angle.sin(), size * angle.cos(), some(0.8)], 1)
    grid = F.affine_grid(torch.stack([rows, columns], 1), list(images.shape), align_corners=False)
    return F.grid_sample(images, grid, padding_mode="border", align_corners=False)


def _labels(shares: torch.Tensor, count: int, rng: torch.Generator) -> torch.Tensor:
    """As many of each class as its share says, up to one, in random order."""
    ends = (shares.double().cumsum(0) / shares.double().sum() * count).round().long().cpu()
    labels = torch.bucketize(torch.arange(count), ends, right=True).clamp(max=len(shares) - 1)
    return labels[torch.randperm(count, generator=rng)]


def _shares_fit(params: Tree, classes: int) -> bool:
    """One for each class; none below 0, and not all of them 0."""
    shares = params.get("shares")
    if shares is None or shares.shape != (max(1, classes),) or shares.dtype != torch.float32:
        return False
    total = float(shares.sum())
    return bool((shares >= 0).all()) and 0 < total < math.inf
