"""Means and covariances of low frequencies: what a look holds where epsilon is tiny or there is no GPU.

An image is cut to its lowest frequencies (a cosine transform): its level, its form, whose norm is always the same, and
its contrast. A class is then a count, a mean and a second moment; a normal distribution with these is a generator that
needs no training. As forms are drawn at their norm again, and contrasts apart from them, noise makes neither paler.
"""

import dataclasses
import functools
import math

import torch

from fedlens.models.looks.shapes import check_form

_LEVEL, _CONTRAST = 0.05, 0.03  # of the squared norm of a point; the rest is for the form
_USUAL = 0.15, 0.3  # deviations of levels (of -1 to 1) and of contrasts (doubled, or halved), about as of drawn shapes
_FAINT = 1e-3  # a form of rounding errors is none; one pixel that differs by one in 255 has a norm of 0.008
_RISE = 0.5, 4.0  # a frequency r counts (1 + r / 4)^0.5 times: low ones are strong in every image, and tell little


@dataclasses.dataclass(frozen=True, kw_only=True)
class Moments:
    side: int
    channels: int = 1
    frequencies: int = 100  # of each channel
    contrast: float = 0.45  # standard deviation of pixels; from half to twice of it images keep their own
    count: float = 0.05  # of the squared norm; mean and second moment share the rest
    spread: float = 0.7  # of the squared norm, for the second moment: what noise leaves to be seen

    def __post_init__(self) -> None:
        check_form(self.side, self.channels)
        if not 2 <= self.frequencies <= self.side**2:
            raise ValueError(f"Expected 2 to {self.side**2} frequencies for images of side {self.side}.")
        if not 0 < self.contrast <= 1:
            raise ValueError("Expected a contrast above 0, and of 1 at most.")
        if self.count <= 0 or self.spread <= 0 or self.count + self.spread >= 1:
            raise ValueError("Expected a count and a spread above 0, and together below 1.")

    @property
    def coordinates(self) -> int:
        return self.frequencies * self.channels + 1

    @property
    def size(self) -> int:
        return 1 + self.coordinates + self.coordinates * (self.coordinates + 1) // 2

    def __call__(self, images: torch.Tensor) -> torch.Tensor:
        """[n, size] of [n, channels, side, side]; each row has norm 1 at most."""
        v = self.points(images)
        count, mean, second = self._weights
        rows, columns, twice = _pairs(self.coordinates, str(images.device))
        products = v[:, rows] * v[:, columns] * twice
        return torch.cat([v.new_full((len(v), 1), count), mean * v, second * products], 1)

    def points(self, images: torch.Tensor) -> torch.Tensor:
        """[n, coordinates] in the unit ball: the levels of channels, the form, and the contrast."""
        spectra = images.flatten(2) @ _cosines(self.side, self.frequencies, str(images.device)).T
        levels = spectra[..., 0] * (math.sqrt(_LEVEL) / self._most)
        uneven = spectra[..., 1:]
        contrast = uneven.flatten(1).norm(dim=1, keepdim=True) / (self._most * self.contrast)
        form = (uneven * _rise(self.side, self.frequencies, str(images.device))).flatten(1)
        form = form * (self._form / form.norm(dim=1, keepdim=True).clamp(min=_FAINT))
        return torch.cat([levels, form, math.sqrt(_CONTRAST) * contrast.clamp(0.5, 2.0).log2()], 1)

    def images(self, points: torch.Tensor) -> torch.Tensor:
        """The images that lie there, without their high frequencies."""
        numbers = self.channels * (self.frequencies - 1)
        levels, form, contrast = points.split([self.channels, numbers, 1], 1)
        first = levels[..., None] * (self._most / math.sqrt(_LEVEL))
        others = form.unflatten(1, (self.channels, -1)) / _rise(self.side, self.frequencies, str(points.device))
        norms = self._most * self.contrast * (contrast / math.sqrt(_CONTRAST)).clamp(-1.0, 1.0).exp2()
        others = others * (norms / others.flatten(1).norm(dim=1, keepdim=True).clamp(min=1e-6))[..., None]
        flat = torch.cat([first, others], 2) @ _cosines(self.side, self.frequencies, str(points.device))
        images: torch.Tensor = flat.clamp(-1, 1).unflatten(2, (self.side, self.side))
        return images

    @property
    def _form(self) -> float:
        """The norm of forms."""
        return math.sqrt(1 - _LEVEL - _CONTRAST)

    @property
    def _weights(self) -> tuple[float, float, float]:
        """The norms of count, mean and second moment: together 1."""
        return math.sqrt(self.count), math.sqrt(1 - self.count - self.spread), math.sqrt(self.spread)

    @property
    def _most(self) -> float:
        """The norm of an image that is all white."""
        return self.side * math.sqrt(self.channels)

    def read(self, released: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Counts, sums and sums of products, class by class, from mean rows: [k], [k, coordinates], [k, c, c]."""
        count, mean, second = self._weights
        rows, columns, twice = _pairs(self.coordinates, str(released.device))
        products = released.new_zeros(len(released), self.coordinates, self.coordinates)
        products[:, rows, columns] = products[:, columns, rows] = released[:, 1 + self.coordinates :] / twice / second
        return released[:, 0] / count, released[:, 1 : 1 + self.coordinates] / mean, products

    @property
    def noise_of_counts(self) -> float:
        """The noise of a count, per unit of noise in the released numbers."""
        return 1 / self._weights[0]

    @property
    def noise_of_means(self) -> float:
        """The noise of a sum, per unit of noise in the released numbers."""
        return 1 / self._weights[1]

    @property
    def usual(self) -> dict[int, float]:
        """By their coordinate: how much levels and contrast usually vary, whatever the images."""
        level, contrast = (part * deviation**2 for part, deviation in zip((_LEVEL, _CONTRAST), _USUAL, strict=True))
        return dict.fromkeys(range(self.channels), level / self.channels) | {self.coordinates - 1: contrast}

    @property
    def noise_of_products(self) -> float:
        """The noise of an off-diagonal entry of the second moments, per unit of noise in the released numbers."""
        return 1 / (math.sqrt(2) * self._weights[2])


@functools.lru_cache(maxsize=8)
def _cosines(side: int, count: int, device: str) -> torch.Tensor:
    """[count, side * side]: orthonormal, lowest frequencies first."""
    places, numbers = torch.arange(side) + 0.5, torch.arange(side)
    waves = torch.cos(math.pi * numbers[:, None] * places / side) * math.sqrt(2 / side)
    waves[0] /= math.sqrt(2)
    order = _squares(side).argsort(stable=True)[:count]
    return (waves[order // side, :, None] * waves[order % side, None, :]).flatten(1).to(device)


def _squares(side: int) -> torch.Tensor:
    """Of the frequencies: how often their waves go up and down."""
    numbers = torch.arange(side)
    return (numbers[:, None] ** 2 + numbers**2).flatten()


@functools.lru_cache(maxsize=8)
def _rise(side: int, count: int, device: str) -> torch.Tensor:
    """[count - 1]: what the frequencies above 0 are multiplied by."""
    power, place = _RISE
    return (1 + _squares(side).sort()[0][1:count].sqrt() / place).pow(power).to(device)


@functools.lru_cache(maxsize=8)
def _pairs(coordinates: int, device: str) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Rows and columns of a symmetric matrix, each pair once, and the weights that keep its norm."""
    rows, columns = torch.triu_indices(coordinates, coordinates, device=device)
    return rows, columns, torch.where(rows == columns, 1.0, math.sqrt(2))
