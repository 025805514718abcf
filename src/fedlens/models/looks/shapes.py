"""Images drawn by a rule: ellipses, or strokes, of random places, sizes, angles and levels.

Bandwidths and radii must not come from private images. They come from these, which look like nothing in particular but
have the smoothness and the contrast of pictures: their distances are within a third of those of digits and of clothes.
"""

import functools
import math

import numpy as np
import torch

MOST_SIDE, MOST_CHANNELS = 512, 4  # a file's header may say anything: what it says is made before it is drawn
_SHAPES = 4  # in one image
_SEED = 5
_POINTS = 40  # of a stroke


def check_form(side: int, channels: int, least: int = 1) -> None:
    """Of images that can be looked at."""
    if not (least <= side <= MOST_SIDE and 1 <= channels <= MOST_CHANNELS):
        raise ValueError(f"Expected images of side {least} to {MOST_SIDE}, in 1 to {MOST_CHANNELS} channels.")


@functools.lru_cache(maxsize=8)
def drawn(count: int, side: int, channels: int) -> torch.Tensor:
    """So many images in [-1, 1], the same ones each time."""
    rng = randomness(_SEED)
    images = torch.full((count, channels, side, side), -1.0)
    for _ in range(_SHAPES):
        inside = _ellipses(count, side, rng)
        levels = _uniform(rng, (count, channels, 1, 1), -1, 1)
        images = images + inside * (levels - images)
    return images


@functools.lru_cache(maxsize=4)
def strokes(count: int, side: int, channels: int) -> torch.Tensor:
    """So many images of one to three curved strokes on black: of random widths, levels and softness."""
    rng, along = randomness(_SEED + 1), np.linspace(0, 1, _POINTS)
    bends = np.stack([(1 - along) ** 3, 3 * along * (1 - along) ** 2, 3 * along**2 * (1 - along), along**3], 1)
    axis, images = np.linspace(-1, 1, side), np.empty((count, channels, side, side), np.float32)
    for image in images:
        lines = np.concatenate([bends @ rng.uniform(-0.6, 0.6, (4, 2)) for _ in range(rng.randint(1, 4))])
        across, down = ((axis[:, None] - lines[:, place]) ** 2 for place in (0, 1))  # [side, points]
        near = np.sqrt((across[None] + down[:, None]).min(-1))
        wide, soft = rng.uniform(0.04, 0.16), rng.uniform(0.02, 0.06)
        inside = 1 / (1 + np.exp(np.minimum((near - wide) / soft, 50.0)))
        image[:] = 2 * rng.uniform(0.3, 1, (channels, 1, 1)) * inside - 1
    return torch.from_numpy(images)


def randomness(seed: int) -> np.random.RandomState:
    """What is drawn for psi: numpy promises the same numbers for all time, so that a seed in a file keeps its meaning;
    and they may be drawn while units are vectorised over, which torch forbids for its own."""
    return np.random.RandomState(seed)


def _uniform(rng: np.random.RandomState, shape: tuple[int, ...], low: float, high: float) -> torch.Tensor:
    return torch.from_numpy(rng.uniform(low, high, shape)).float()


def _ellipses(count: int, side: int, rng: np.random.RandomState) -> torch.Tensor:
    """How far each pixel lies inside one, from 0 to 1."""

    uniform = functools.partial(_uniform, rng, (count, 1, 1, 1))
    axis = torch.linspace(-1, 1, side)
    x, y = axis[None, :] - uniform(-0.6, 0.6), axis[:, None] - uniform(-0.6, 0.6)
    angle, wide, high = uniform(0, math.pi), uniform(0.05, 0.55), uniform(0.05, 0.55)
    along, across = x * angle.cos() + y * angle.sin(), y * angle.cos() - x * angle.sin()
    return torch.sigmoid(4 * (1 - (along / wide) ** 2 - (across / high) ** 2))
