"""Means and covariances of low frequencies: what a look holds where epsilon is tiny or there is no GPU.

An image is cut to its lowest frequencies (a cosine transform) and scaled into a ball. A class is then a count, a mean
and a second moment; a normal distribution with these is a generator that needs no training.
"""

import dataclasses
import functools
import math

import torch

from fedlens.models.looks.shapes import check_form

_COUNT = 0.05  # of the squared norm; mean and second moment share the rest
_BRIGHTNESS = 0.25  # of the squared norm of a point, for the mean level; the rest is for what is not even


@dataclasses.dataclass(frozen=True, kw_only=True)
class Moments:
    side: int
    channels: int = 1
    frequencies: int = 100  # of each channel
    contrast: float = 0.6  # standard deviation of pixels; images with more are drawn with this much
    spread: float = 0.7  # of the squared norm, for the second moment: what noise leaves to be seen

    def __post_init__(self) -> None:
        check_form(self.side, self.channels)
        if not 2 <= self.frequencies <= self.side**2:
            raise ValueError(f"Expected 2 to {self.side**2} frequencies for images of side {self.side}.")
        if not 0 < self.contrast <= 1:
            raise ValueError("Expected a contrast above 0, and of 1 at most.")
        if not 0 < self.spread < 1 - _COUNT:
            raise ValueError(f"Expected a spread above 0 and below {1 - _COUNT}.")

    @property
    def coordinates(self) -> int:
        return self.frequencies * self.channels

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
        """[n, coordinates] in the unit ball: mean levels first, then what is left when they are taken off."""
        spectra = images.flatten(2) @ _cosines(self.side, self.frequencies, str(images.device)).T
        levels = spectra[..., 0] * (math.sqrt(_BRIGHTNESS) / self._most)
        uneven = spectra[..., 1:].flatten(1) / (self.contrast * self._most)
        uneven = uneven * (math.sqrt(1 - _BRIGHTNESS) / uneven.norm(dim=1, keepdim=True).clamp(min=1.0))
        return torch.cat([levels, uneven], 1)

    def images(self, points: torch.Tensor) -> torch.Tensor:
        """The images that lie there, without their high frequencies."""
        levels, uneven = points.split([self.channels, self.coordinates - self.channels], 1)
        first = levels[..., None] * (self._most / math.sqrt(_BRIGHTNESS))
        others = uneven.unflatten(1, (self.channels, self.frequencies - 1)) * (
            self.contrast * self._most / math.sqrt(1 - _BRIGHTNESS)
        )
        flat = torch.cat([first, others], 2) @ _cosines(self.side, self.frequencies, str(points.device))
        images: torch.Tensor = flat.clamp(-1, 1).unflatten(2, (self.side, self.side))
        return images

    @property
    def _weights(self) -> tuple[float, float, float]:
        """The norms of count, mean and second moment: together 1."""
        return math.sqrt(_COUNT), math.sqrt(1 - _COUNT - self.spread), math.sqrt(self.spread)

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
    def noise_of_products(self) -> float:
        """The noise of an off-diagonal entry of the second moments, per unit of noise in the released numbers."""
        return 1 / (math.sqrt(2) * self._weights[2])


@functools.lru_cache(maxsize=8)
def _cosines(side: int, count: int, device: str) -> torch.Tensor:
    """[count, side * side]: orthonormal, lowest frequencies first."""
    places, numbers = torch.arange(side) + 0.5, torch.arange(side)
    waves = torch.cos(math.pi * numbers[:, None] * places / side) * math.sqrt(2 / side)
    waves[0] /= math.sqrt(2)
    order = (numbers[:, None] ** 2 + numbers**2).flatten().argsort(stable=True)[:count]
    return (waves[order // side, :, None] * waves[order % side, None, :]).flatten(1).to(device)


@functools.lru_cache(maxsize=8)
def _pairs(coordinates: int, device: str) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Rows and columns of a symmetric matrix, each pair once, and the weights that keep its norm."""
    rows, columns = torch.triu_indices(coordinates, coordinates, device=device)
    return rows, columns, torch.where(rows == columns, 1.0, math.sqrt(2))
