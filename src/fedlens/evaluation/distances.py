"""How far one set of features lies from another, in numbers: none of them sees more than a part of all distances."""

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch

PIECE = 1024  # rows whose distances to all others are held at once
SAME = 1e-12  # of squared norms: below this, two rows are the same but for rounding


class Manifolds(NamedTuple):
    """Precision and recall of Kynkaanniemi et al. 2019; density and coverage of Naeem et al. 2020."""

    precision: float
    recall: float
    density: float
    coverage: float


def inception_score(probabilities: torch.Tensor, splits: int = 10) -> float:
    """exp of the mean divergence between each image's classes and those of all: the mean over parts of the images.

    >>> round(inception_score(torch.eye(4).repeat(10, 1), splits=1), 6)
    4.0
    >>> inception_score(torch.full((20, 5), 0.2))
    1.0
    """
    parts = [part for part in probabilities.double().tensor_split(splits) if len(part)]
    return sum(_score(part) for part in parts) / len(parts)


def _score(probabilities: torch.Tensor) -> float:
    together = probabilities.mean(0)
    terms = torch.xlogy(probabilities, probabilities) - torch.xlogy(probabilities, together)
    return math.exp(max(0.0, float(terms.sum(1).mean())))


def frechet(left: torch.Tensor, right: torch.Tensor) -> float:
    """Between the normal distributions with the means and covariances of both sets of features."""
    return frechet_of(*_moments(left), *_moments(right))


def frechet_of(left: torch.Tensor, spread: torch.Tensor, right: torch.Tensor, other: torch.Tensor) -> float:
    """Of two means, each with its covariance.

    The trace of (A B)^(1/2) is the sum of the singular values of A^(1/2) B^(1/2), which are real and never negative;
    so neither a complex root nor a matrix that is a little indefinite by rounding comes up.

    >>> zero, one = torch.zeros(2), torch.eye(2)
    >>> round(frechet_of(zero, one, torch.tensor([3.0, 4.0]), 4 * one), 9)
    27.0
    """
    a, b = spread.double(), other.double()
    shared = torch.linalg.svdvals(_root(a) @ _root(b)).sum()
    apart = (left.double() - right.double()).square().sum()
    return max(0.0, float(apart + a.trace() + b.trace() - 2 * shared))


def manifolds(real: torch.Tensor, made: torch.Tensor, *, near: int = 3, around: int = 5) -> Manifolds:
    """With the `near` nearest neighbours for precision and recall, and those `around` for density and coverage."""
    near, around = (min(count, len(real) - 1, len(made) - 1) for count in (near, around))
    if near < 1:
        raise ValueError("Expected two images of each kind, at least.")
    of_real, of_made = _radii(real, (near, around)), _radii(made, (near,))
    within, dense, covered = 0, 0, torch.zeros(len(real), dtype=torch.bool, device=real.device)
    for _, distances in squared(made, real):
        within += int((distances <= of_real[0]).any(1).sum())
        inside = distances <= of_real[1]
        dense += int(inside.sum())
        covered |= inside.any(0)
    seen = sum(int((distances <= of_made[0]).any(1).sum()) for _, distances in squared(real, made))
    return Manifolds(
        precision=within / len(made),
        recall=seen / len(real),
        density=dense / (around * len(made)),
        coverage=float(covered.double().mean()),
    )


def nearest(images: torch.Tensor, among: torch.Tensor, count: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    """For each image the rows of those among others that are nearest in pixels, and how far they are."""
    apart = torch.cat([distances for _, distances in squared(among.flatten(1), images.flatten(1))])
    closest = apart.T.topk(count, largest=False)
    return closest.indices, closest.values.sqrt()


def squared(left: torch.Tensor, right: torch.Tensor) -> Iterator[tuple[int, torch.Tensor]]:
    """Squared distances of all pairs, some rows at a time, with the first of them: the whole is never held."""
    right = right.double()
    norms = right.square().sum(1)
    for start in range(0, len(left), PIECE):
        part = left[start : start + PIECE].double()
        sizes = part.square().sum(1, keepdim=True) + norms
        distances = sizes - 2 * part @ right.T
        yield start, torch.where(distances > SAME * sizes, distances, 0.0)


def _radii(rows: torch.Tensor, neighbours: tuple[int, ...]) -> list[torch.Tensor]:
    """The squared distance of each row to so many-th nearest others of its own set."""
    parts = []
    for start, distances in squared(rows, rows):
        at = torch.arange(len(distances), device=rows.device)
        distances[at, start + at] = math.inf
        parts.append(distances.topk(max(neighbours), largest=False).values)
    nearest_others = torch.cat(parts)
    return [nearest_others[:, count - 1] for count in neighbours]


def _moments(features: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    rows = features.double()
    if len(rows) < 2:
        raise ValueError("Expected two images of each kind, at least.")
    return rows.mean(0), rows.T.cov()


def _root(matrix: torch.Tensor) -> torch.Tensor:
    values, vectors = torch.linalg.eigh((matrix + matrix.T) / 2)
    root: torch.Tensor = (vectors * values.clamp(min=0).sqrt()) @ vectors.T
    return root
