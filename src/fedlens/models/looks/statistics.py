"""The readable blocks of a look: numbers of one image that a person can read, each block of norm 1 at most.

All are functions of [n, channels, side, side] in [-1, 1] to [n, numbers]. A bound that holds for every image holds for
the mean of a unit's images, whatever they show.
"""

import functools
import math
from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F

_PICTURE, _CELLS, _LEVELS, _RADII, _ANGLES = 14, 7, 16, 11, 9
_LEVEL = 0.35  # of the mean level, in a picture
_CLOSE = 2.0  # neighbours that differ by half the range on average differ as much as any that are counted


def picture(images: torch.Tensor) -> torch.Tensor:
    """The image itself, small: where, in pixels. Its mean level counts less: histograms tell it as well."""
    small = F.adaptive_avg_pool2d(images, min(_PICTURE, images.shape[-1])).flatten(1)
    return _evened(small - (1 - _LEVEL) * small.mean(1, keepdim=True))


def small_image(block: np.ndarray, side: int, channels: int) -> np.ndarray:
    """[channels, n, n] of what `picture` made of an image, or of a difference of images."""
    numbers = block * math.sqrt(block.size)
    cells = min(_PICTURE, side)
    image: np.ndarray = (numbers + (1 / _LEVEL - 1) * numbers.mean()).reshape(channels, cells, cells)
    return image


def texture(images: torch.Tensor) -> torch.Tensor:
    """How much each cell of the image varies, and how much neighbours differ: noise, blur, compression."""
    cells = min(_CELLS, images.shape[-1])
    mean, square = (F.adaptive_avg_pool2d(x, cells) for x in (images, images.square()))
    varies = (square - mean.square()).clamp(min=0.0).sqrt().flatten(1)
    across, down = ((_CLOSE * images.diff(dim=way).abs().mean((2, 3))).clamp(max=1.0) for way in (3, 2))
    return torch.cat([_evened(varies), _evened(torch.cat([across, down], 1))], 1) / math.sqrt(2)


def intensity(images: torch.Tensor) -> torch.Tensor:
    """How often each level occurs in each channel, and how channels go together: inversion, exposure, swaps.

    A pixel between two levels counts for both, by how near it is: what is a little brighter differs a little.
    """
    place = ((images + 1) * ((_LEVELS - 1) / 2)).clamp(0, _LEVELS - 1).flatten(2)
    # A place that is no number would be no index: on a GPU that ends the process. Its share is no number all the same.
    low = place.nan_to_num().floor().clamp(max=_LEVELS - 2)
    # Whole parts of 256 add up exactly in any order, so that sums on a GPU are the same each time.
    part, low = ((place - low) * 256).round() / 256, low.long()
    none = images.new_zeros(*images.shape[:2], _LEVELS)
    shares = none.scatter_add(2, low, 1 - part).scatter_add(2, low + 1, part).flatten(1) / place.shape[2]
    channels = images.shape[1]
    if channels == 1:
        return shares
    planes = images.flatten(2)
    together = (planes @ planes.transpose(1, 2) / planes.shape[-1]).flatten(1)
    return torch.cat([shares / math.sqrt(channels), together / channels], 1) / math.sqrt(2)


def spectrum(images: torch.Tensor) -> torch.Tensor:
    """Which share of the variation lies at which frequency, as a root: blur, blocks, moire."""
    power = torch.fft.fft2(images.mean(1)).abs().square().flatten(1)
    return _roots(power @ _rings(images.shape[-1], str(images.device)))


def direction(images: torch.Tensor) -> torch.Tensor:
    """Which share of the edges runs in which direction, as a root: rotation, flips."""
    grey = images.mean(1)
    across, down = grey.diff(dim=2)[:, :-1], grey.diff(dim=1)[:, :, :-1]
    strength = (across.square() + down.square() + 1e-12).sqrt() - 1e-6
    angle = (torch.atan2(down, across) / math.pi * _ANGLES).floor().remainder(_ANGLES)
    numbers = torch.arange(_ANGLES, device=images.device)
    return _roots(torch.stack([(strength * (angle == number)).sum((1, 2)) for number in numbers], 1))


READABLE: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "picture": picture,
    "texture": texture,
    "intensity": intensity,
    "spectrum": spectrum,
    "direction": direction,
}


def sizes(side: int, channels: int) -> dict[str, int]:
    """By their block: how many numbers it has; told without an image, since a hostile file may say how large it is."""
    return {
        "picture": channels * min(_PICTURE, side) ** 2,
        "texture": channels * min(_CELLS, side) ** 2 + 2 * channels,
        "intensity": channels * _LEVELS + (channels**2 if channels > 1 else 0),
        "spectrum": _RADII,
        "direction": _ANGLES,
    }


@functools.lru_cache(maxsize=8)
def coarser(side: int, channels: int) -> dict[str, tuple[np.ndarray, ...]]:
    """By their block: orthonormal rows that see less of it, where differences of regions stand out more."""
    cells, across = min(_CELLS, side), min(_PICTURE, side)
    grid = [_pooling(channels, across, least) for least in (7, 2) if least < across]
    levels = np.kron(np.eye(channels), np.kron(np.eye(4), np.ones((1, _LEVELS // 4)))) / math.sqrt(_LEVELS // 4)
    together = channels**2 if channels > 1 else 0
    one = np.zeros((channels, channels * (cells**2 + 2)))
    for channel in range(channels):
        one[channel, channel * cells**2 : (channel + 1) * cells**2] = 1 / cells
    return {
        "picture": tuple(grid),
        "texture": (one,),
        "intensity": (np.pad(levels, ((0, 0), (0, together))),),
        "spectrum": (),
        "direction": (),
    }


def _pooling(channels: int, side: int, cells: int) -> np.ndarray:
    """Rows that span what is left of channels of side x side when they are pooled to fewer cells."""
    every = torch.eye(side**2).reshape(-1, 1, side, side)
    rows = F.adaptive_avg_pool2d(every, cells).flatten(1).T.numpy().astype(float)
    return np.kron(np.eye(channels), np.linalg.qr(rows.T)[0].T)


def _evened(numbers: torch.Tensor) -> torch.Tensor:
    """Numbers in [-1, 1], as a vector of norm 1 at most."""
    return numbers / math.sqrt(numbers.shape[1])


def _roots(amounts: torch.Tensor) -> torch.Tensor:
    """Of the shares in a whole: small ones count as well, and the norm is 1; of nothing, none."""
    shares = amounts.clamp(min=0.0) / amounts.sum(1, keepdim=True).clamp(min=1e-6)
    return shares.sqrt() / shares.sum(1, keepdim=True).sqrt().clamp(min=1.0)


@functools.lru_cache(maxsize=8)
def _rings(side: int, device: str) -> torch.Tensor:
    """[side * side, radii]: which ring of frequencies a coefficient lies in; the mean lies in none."""
    numbers = torch.fft.fftfreq(side) * side
    radius = (numbers[:, None] ** 2 + numbers**2).sqrt().flatten()
    ring = ((radius - 0.5) / (side / 2) * _RADII).floor().clamp(max=_RADII - 1)
    inside: torch.Tensor = (ring[:, None] == torch.arange(_RADII)) & (radius[:, None] > 0)
    return inside.float().to(device)
