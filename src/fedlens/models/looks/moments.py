"""Means and covariances of low frequencies: what a look holds where epsilon is tiny or there is no GPU.

An image is cut to its lowest frequencies (a cosine transform), centred on drawn shapes and scaled into a ball. A class
is then a count, a mean and a second moment; a normal distribution with these is a generator that needs no training.
"""

import dataclasses
import functools
import math

import torch

from fedlens.models.looks import shapes

_REFERENCE = 2000
_WEIGHTS = 0.1, 0.4, 0.5  # squared norms of count, mean and second moment: all of 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class Moments:
    side: int
    channels: int = 1
    frequencies: int = 100  # of each channel
    radius: float = 2.0  # of the ball, in typical distances from the centre

    def __post_init__(self) -> None:
        if not 1 <= self.frequencies <= self.side**2:
            raise ValueError(f"Expected 1 to {self.side**2} frequencies for images of side {self.side}.")
        if self.radius <= 0:
            raise ValueError("Expected a radius above 0.")

    @property
    def coordinates(self) -> int:
        return self.frequencies * self.channels

    @property
    def size(self) -> int:
        return 1 + self.coordinates + self.coordinates * (self.coordinates + 1) // 2

    def __call__(self, images: torch.Tensor) -> torch.Tensor:
        """[n, size] of [n, channels, side, side]; each row has norm 1 at most."""
        v = self.points(images)
        count, mean, second = (math.sqrt(weight) for weight in _WEIGHTS)
        rows, columns, twice = _pairs(self.coordinates, str(images.device))
        products = v[:, rows] * v[:, columns] * twice
        return torch.cat([v.new_full((len(v), 1), count), mean * v, second * products], 1)

    def points(self, images: torch.Tensor) -> torch.Tensor:
        """[n, coordinates] in the unit ball; what lies outside is drawn to its surface."""
        basis, centre, scale = self._frame(str(images.device))
        v = ((images.flatten(2) @ basis.T).flatten(1) - centre) / scale
        return v / v.norm(dim=1, keepdim=True).clamp(min=1.0)

    def images(self, points: torch.Tensor) -> torch.Tensor:
        """The images that lie there, without their high frequencies."""
        basis, centre, scale = self._frame(str(points.device))
        spectra = (points * scale + centre).unflatten(1, (self.channels, self.frequencies))
        return (spectra @ basis).clamp(-1, 1).unflatten(2, (self.side, self.side))

    def read(self, released: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Counts, sums and sums of products, class by class, from mean rows: [k], [k, coordinates], [k, c, c]."""
        count, mean, second = (math.sqrt(weight) for weight in _WEIGHTS)
        rows, columns, twice = _pairs(self.coordinates, str(released.device))
        products = released.new_zeros(len(released), self.coordinates, self.coordinates)
        products[:, rows, columns] = products[:, columns, rows] = released[:, 1 + self.coordinates :] / twice / second
        return released[:, 0] / count, released[:, 1 : 1 + self.coordinates] / mean, products

    @property
    def noise_of_products(self) -> float:
        """The noise of an off-diagonal entry of the second moments, per unit of noise in the released numbers."""
        return 1 / math.sqrt(2 * _WEIGHTS[2])

    def _frame(self, device: str) -> tuple[torch.Tensor, torch.Tensor, float]:
        """Cosines, centre and scale."""
        return _frame(self.side, self.channels, self.frequencies, self.radius, device)


@functools.lru_cache(maxsize=8)
def _frame(
    side: int, channels: int, frequencies: int, radius: float, device: str
) -> tuple[torch.Tensor, torch.Tensor, float]:
    basis = _cosines(side, frequencies)
    points = (shapes.drawn(_REFERENCE, side, channels).flatten(2) @ basis.T).flatten(1)
    centre = points.mean(0)
    scale = float(f"{radius * float((points - centre).norm(dim=1).median()):.2g}")
    return basis.to(device), centre.to(device), scale


def _cosines(side: int, count: int) -> torch.Tensor:
    """[count, side * side]: orthonormal, lowest frequencies first."""
    places, numbers = torch.arange(side) + 0.5, torch.arange(side)
    waves = torch.cos(math.pi * numbers[:, None] * places / side) * math.sqrt(2 / side)
    waves[0] /= math.sqrt(2)
    order = (numbers[:, None] ** 2 + numbers**2).flatten().argsort(stable=True)[:count]
    return (waves[order // side, :, None] * waves[order % side, None, :]).flatten(1)


@functools.lru_cache(maxsize=8)
def _pairs(coordinates: int, device: str) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Rows and columns of a symmetric matrix, each pair once, and the weights that keep its norm."""
    rows, columns = torch.triu_indices(coordinates, coordinates, device=device)
    return rows, columns, torch.where(rows == columns, 1.0, math.sqrt(2))
