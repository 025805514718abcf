"""Images drawn by a rule: ellipses of random places, sizes, angles and levels.

Bandwidths and radii must not come from private images. They come from these, which look like nothing in particular but
have the smoothness and the contrast of pictures: their distances are within a third of those of digits and of clothes.
"""

import functools
import math

import torch

MOST_SIDE, MOST_CHANNELS = 512, 4  # a file's header may say anything: what it says is made before it is drawn
_SHAPES = 4  # in one image
_SEED = 5


def check_form(side: int, channels: int, least: int = 1) -> None:
    """Of images that can be looked at."""
    if not (least <= side <= MOST_SIDE and 1 <= channels <= MOST_CHANNELS):
        raise ValueError(f"Expected images of side {least} to {MOST_SIDE}, in 1 to {MOST_CHANNELS} channels.")


@functools.lru_cache(maxsize=8)
def drawn(count: int, side: int, channels: int) -> torch.Tensor:
    """So many images in [-1, 1], the same ones each time."""
    rng = torch.Generator().manual_seed(_SEED)
    images = torch.full((count, channels, side, side), -1.0)
    for _ in range(_SHAPES):
        inside = _ellipses(count, side, rng)
        levels = 2 * torch.rand(count, channels, 1, 1, generator=rng) - 1
        images = images + inside * (levels - images)
    return images


def _ellipses(count: int, side: int, rng: torch.Generator) -> torch.Tensor:
    """How far each pixel lies inside one, from 0 to 1."""

    def uniform(low: float, high: float) -> torch.Tensor:
        return low + (high - low) * torch.rand(count, 1, 1, 1, generator=rng)

    axis = torch.linspace(-1, 1, side)
    x, y = axis[None, :] - uniform(-0.6, 0.6), axis[:, None] - uniform(-0.6, 0.6)
    angle, wide, high = uniform(0, math.pi), uniform(0.05, 0.55), uniform(0.05, 0.55)
    along, across = x * angle.cos() + y * angle.sin(), y * angle.cos() - x * angle.sin()
    return torch.sigmoid(4 * (1 - (along / wide) ** 2 - (across / high) ** 2))
