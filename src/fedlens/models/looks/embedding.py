"""Fourier features of random convolutions: every image has norm exactly 1, so a bound cuts nothing off.

cos and sin of random projections approximate a Gaussian kernel (Rahimi and Recht 2007) between what three layers of
random, never trained convolutions see. The mean of these features over a class pins down the class's distribution: two
that have the same mean embedding under such a kernel are, up to the number of features, the same.
"""

import dataclasses
import functools
import math

import numpy as np
import torch
import torch.nn.functional as F

from fedlens.models.looks import shapes
from fedlens.models.sizes import check_sizes

_WIDTHS = 48, 96, 96  # channels of the layers
_KERNELS = 5, 5, 3
_LARGEST = 8  # pixels a side that the layers are pooled to, at most
_GAINS = 1.0, 1.5, 1.0  # of the layers in the distance
_REFERENCE = 500  # images that the typical distance is measured on
_CHUNK = 1 << 24  # numbers of a projection that are drawn at once
Layers = tuple[torch.Tensor, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Embedding:
    side: int
    channels: int = 1
    features: int = 21_000
    # Of the kernels, in typical distances. Narrow ones tell most; the wide one leads a generator that is still far off.
    widths: tuple[float, ...] = (0.25, 0.5, 1.0)
    seed: int = 0

    def __post_init__(self) -> None:
        shapes.check_form(self.side, self.channels, least=4)  # it is halved twice
        check_sizes(features=self.features)
        if self.features < 2 * len(self.widths) or self.features % (2 * len(self.widths)):
            raise ValueError(f"Expected a multiple of {2 * len(self.widths)} features: cos and sin for every width.")
        if not 0 <= self.seed < 2**32 - 1:
            raise ValueError(f"Expected seed={self.seed} to be a whole number below 2^32 - 1.")
        if not all(width > 0 for width in self.widths) or not self.widths:
            raise ValueError("Expected widths above 0, at least one.")

    @property
    def size(self) -> int:
        return self.features

    @property
    def projection(self) -> int:
        """How many numbers the random projection has."""
        return sum(_WIDTHS) * min(self.side // 4, _LARGEST) ** 2 * (self.features // 2)

    def __call__(self, images: torch.Tensor) -> torch.Tensor:
        """[n, features] of [n, channels, side, side]; each row has norm 1."""
        phases = self.seen(images) @ _projection(self, str(images.device))
        return torch.cat([phases.cos(), phases.sin()], -1) * math.sqrt(2 / self.features)

    def seen(self, images: torch.Tensor) -> torch.Tensor:
        """What the random convolutions make of images."""
        first, second, third = _layers(self.channels, self.seed, str(images.device))
        a = F.avg_pool2d(F.relu(F.conv2d(images, first, padding=2)), 2)
        b = F.avg_pool2d(F.relu(F.conv2d(a, second, padding=2)), 2)
        c = F.relu(F.conv2d(b, third, padding=1))
        side = min(b.shape[-1], _LARGEST)
        pooled = [F.adaptive_avg_pool2d(layer, side).flatten(1) for layer in (a, b, c)]
        return torch.cat([gain * layer for gain, layer in zip(_GAINS, pooled, strict=True)], 1)


@functools.lru_cache(maxsize=4)
def _layers(channels: int, seed: int, device: str) -> Layers:
    rng, into = shapes.randomness(seed), (channels, *_WIDTHS)
    sizes = zip(_WIDTHS, into, _KERNELS, strict=False)
    return tuple((_normal(rng, out, of, k, k) / math.sqrt(of * k * k)).to(device) for out, of, k in sizes)


def _normal(rng: np.random.RandomState, *shape: int) -> torch.Tensor:
    return torch.from_numpy(rng.standard_normal(shape)).float()


@functools.lru_cache(maxsize=4)
def _projection(embedding: Embedding, device: str) -> torch.Tensor:
    """Drawn on the CPU, piece by piece, whatever device uses it: a seed means the same everywhere."""
    rng, (distance, size) = shapes.randomness(embedding.seed + 1), _typical(embedding)
    each = embedding.features // 2 // len(embedding.widths)
    whole = torch.empty(size, embedding.features // 2, device=device)
    step = max(1, _CHUNK // size)
    for number, width in enumerate(embedding.widths):
        for at in range(0, each, step):
            count = min(step, each - at)
            piece = _normal(rng, size, count) / (distance * width)
            whole[:, number * each + at : number * each + at + count] = piece.to(device)
    return whole


@functools.lru_cache(maxsize=8)
def _typical(embedding: Embedding) -> tuple[float, int]:
    """The median distance between drawn shapes, and how many numbers it is a distance of.

    Rounded, so that libraries that add up in another order choose the same.
    """
    images = shapes.drawn(2 * _REFERENCE, embedding.side, embedding.channels)
    seen = torch.cat([embedding.seen(part) for part in images.split(100)])
    return float(f"{float(torch.cdist(seen[:_REFERENCE], seen[_REFERENCE:]).median()):.2g}"), seen.shape[1]
