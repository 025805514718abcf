"""The readable blocks of a look: numbers of one image that a person can read, each block of norm 1 at most.

All are functions of [n, channels, side, side] in [-1, 1] to [n, numbers]. A bound that holds for every image holds for
the mean of a unit's images, whatever they show.
"""

import functools
import math
from collections.abc import Callable

import torch
import torch.nn.functional as F

_PICTURE, _CELLS, _LEVELS, _RADII, _ANGLES = 14, 7, 16, 11, 9


def picture(images: torch.Tensor) -> torch.Tensor:
    """The image itself, small: where, in pixels."""
    return _evened(F.adaptive_avg_pool2d(images, min(_PICTURE, images.shape[-1])).flatten(1))


def texture(images: torch.Tensor) -> torch.Tensor:
    """How much each cell of the image varies, and how much neighbours differ: noise, blur, compression."""
    cells = min(_CELLS, images.shape[-1])
    mean, square = (F.adaptive_avg_pool2d(x, cells) for x in (images, images.square()))
    varies = (square - mean.square()).clamp(min=0.0).sqrt().flatten(1)
    across, down = (images.diff(dim=way).abs().mean((2, 3)) / 2 for way in (3, 2))
    return torch.cat([_evened(varies), _evened(torch.cat([across, down], 1))], 1) / math.sqrt(2)


def intensity(images: torch.Tensor) -> torch.Tensor:
    """How often each level occurs in each channel, and how channels go together: inversion, exposure, swaps."""
    level = ((images + 1) * (_LEVELS / 2)).floor().clamp(0, _LEVELS - 1)
    numbers = torch.arange(_LEVELS, device=images.device)
    shares = torch.stack([(level == number).float().mean((2, 3)) for number in numbers], 2).flatten(1)
    planes = images.flatten(2)
    together = (planes @ planes.transpose(1, 2) / planes.shape[-1]).flatten(1)
    channels = images.shape[1]
    return torch.cat([shares / math.sqrt(channels), together / channels], 1) / math.sqrt(2)


def spectrum(images: torch.Tensor) -> torch.Tensor:
    """Which share of the variation lies at which frequency: blur, blocks, moire."""
    power = torch.fft.fft2(images.mean(1)).abs().square().flatten(1)
    return _shares(power @ _rings(images.shape[-1], str(images.device)))


def direction(images: torch.Tensor) -> torch.Tensor:
    """Which share of the edges runs in which direction: rotation, flips."""
    grey = images.mean(1)
    across, down = grey.diff(dim=2)[:, :-1], grey.diff(dim=1)[:, :, :-1]
    strength = (across.square() + down.square() + 1e-12).sqrt() - 1e-6
    angle = (torch.atan2(down, across) / math.pi * _ANGLES).floor().remainder(_ANGLES)
    numbers = torch.arange(_ANGLES, device=images.device)
    return _shares(torch.stack([(strength * (angle == number)).sum((1, 2)) for number in numbers], 1))


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
        "intensity": channels * _LEVELS + channels**2,
        "spectrum": _RADII,
        "direction": _ANGLES,
    }


def _evened(numbers: torch.Tensor) -> torch.Tensor:
    """Numbers in [-1, 1], as a vector of norm 1 at most."""
    return numbers / math.sqrt(numbers.shape[1])


def _shares(amounts: torch.Tensor) -> torch.Tensor:
    """Of a whole; of nothing, none. Shares add up to 1 at most, so their norm is 1 at most."""
    return amounts / amounts.sum(1, keepdim=True).clamp(min=1e-6)


@functools.lru_cache(maxsize=8)
def _rings(side: int, device: str) -> torch.Tensor:
    """[side * side, radii]: which ring of frequencies a coefficient lies in; the mean lies in none."""
    numbers = torch.fft.fftfreq(side) * side
    radius = (numbers[:, None] ** 2 + numbers**2).sqrt().flatten()
    ring = ((radius - 0.5) / (side / 2) * _RADII).floor().clamp(max=_RADII - 1)
    inside: torch.Tensor = (ring[:, None] == torch.arange(_RADII)) & (radius[:, None] > 0)
    return inside.float().to(device)
