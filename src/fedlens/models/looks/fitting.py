"""From a look to a generator: free, at any time, by anyone who has the release."""

import dataclasses
import functools
import math
from collections.abc import Callable

import numpy as np
import torch

from fedlens.core import histograms
from fedlens.core.trees import Tree
from fedlens.models.looks.embedding import Embedding
from fedlens.models.looks.generators import Network
from fedlens.models.looks.moments import Moments
from fedlens.models.looks.psi import BODY, LABELS, Psi

_LEAST_SHARE = 1e-3  # of a class that noise alone would explain: it is not drawn, but has a place
Watch = Callable[[int, int], None]  # steps done, of so many


class DivergedError(ValueError):
    """The fit went astray. The release is not touched: fit again, with another seed or a smaller rate."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Release:
    """A noisy mean of psi, and how noisy it is: all that a fit sees."""

    psi: Psi
    blocks: Tree = dataclasses.field(repr=False)
    noise: float  # the standard deviation of the noise on every number
    units: float = 1.0  # the public number that the sum was divided by

    @property
    def body(self) -> torch.Tensor:
        """[classes, size], as one unit's would be."""
        return self.blocks[BODY] / self.psi.weights[BODY]

    @property
    def body_noise(self) -> float:
        return self.noise / self.psi.weights[BODY]

    @property
    def shares(self) -> torch.Tensor:
        """Of the classes, from all that tells about them: the histogram of labels and, of moments, the counts."""
        return self._shares[0]

    @property
    def share_error(self) -> float:
        """The standard error that noise makes of each."""
        return self._shares[1]

    @functools.cached_property
    def _shares(self) -> tuple[torch.Tensor, float]:
        if not self.psi.classes:
            return torch.ones(1), 0.0
        counted = [(self.blocks[LABELS] / self.psi.weights[LABELS], self.noise / self.psi.weights[LABELS])]
        if isinstance(self.psi.body, Moments):
            counted.append((self.psi.body.read(self.body)[0], self.body_noise * self.psi.body.noise_of_counts))
        totals = [max(float(counts.sum()), 1e-9) for counts, _ in counted]
        errors = np.array([noise / total for total, (_, noise) in zip(totals, counted, strict=True)])
        trust = 1 / np.maximum(errors, 1e-12) ** 2
        means = [counts.double().cpu().numpy() / total for total, (counts, _) in zip(totals, counted, strict=True)]
        shares = sum(weight * mean for weight, mean in zip(trust / trust.sum(), means, strict=True))
        error = float(trust.sum() ** -0.5)
        return torch.from_numpy(nearest_shares(shares, error)).float(), error


def nearest_shares(noisy: np.ndarray, noise: float) -> np.ndarray:
    """Shares that are not negative and add up to 1, as far from equal ones as noise does not explain.

    Drawn towards equal shares (James and Stein 1961), then projected.

    >>> nearest_shares(np.array([0.6, 0.2, -0.1, 0.3]), 0.0).round(3).tolist()
    [0.567, 0.167, 0.0, 0.267]
    >>> nearest_shares(np.array([0.3, 0.2, 0.3, 0.2]), 0.1).tolist()
    [0.25, 0.25, 0.25, 0.25]
    """
    equal = 1 / len(noisy)
    apart = noisy - equal
    explained = max(len(noisy) - 3, 1) * noise**2 / max(float(apart @ apart), 1e-12)
    return histograms.nearest(equal + max(0.0, 1 - explained) * apart, 1.0)


# Normal distributions of low frequencies


def gaussian(release: Release, moments: Moments, unseen: float = 1.0) -> Tree:
    """The weights of a `Gaussian`: means, and covariances without the part that noise explains.

    What all classes share is seen best. Along its axes a class differs from it by as much as noise does not explain.
    Variance that is not seen is shared by all axes, which is too much for levels and contrast, one number each of many:
    samples of small epsilons are black, white, or shrill, unless some of what is unseen is left out.
    """
    counts, sums, products = moments.read(release.body.double())
    total = counts.sum().clamp(min=1e-9)
    shares = release.shares.double().clamp(min=_LEAST_SHARE)
    noises = release.body_noise * moments.noise_of_products / (shares * total)
    means = sums / (shares * total)[:, None]
    covariances = products / (shares * total)[:, None, None] - means[:, :, None] * means[:, None, :]
    pooled = (shares[:, None, None] * covariances).sum(0) / shares.sum()
    values, axes = torch.linalg.eigh(pooled)
    noise_of_all = float((shares * noises).norm() / shares.sum())
    spread, rest = _cleared(values, noise_of_all, unseen)
    factors = torch.stack(
        [
            axes @ _root(_filtered(spread, axes.T @ (own - pooled) @ axes, float(noise)), rest)
            for own, noise in zip(covariances, noises, strict=True)
        ]
    )
    errors = release.body_noise * moments.noise_of_means / (shares * total)
    for place, usual in moments.usual.items() if unseen < 1 else ():
        means[:, place] = _together(means[:, place], errors, shares)
        seen = torch.maximum(_surely(covariances[:, place, place], noises), _surely(pooled[place, place], noise_of_all))
        varies = factors[:, place].square().sum(1)
        factors[:, place] *= (seen.clamp(min=usual) / varies.clamp(min=1e-30)).sqrt().clamp(max=1.0)[:, None]
    return {"shares": release.shares, "mean": means.float(), "factor": factors.float()}


def _surely(variance: torch.Tensor, noise: torch.Tensor | float) -> torch.Tensor:
    """Without two standard deviations of the noise on a diagonal."""
    return variance - 2 * math.sqrt(2) * noise


def _together(numbers: torch.Tensor, errors: torch.Tensor, shares: torch.Tensor) -> torch.Tensor:
    """Those of the classes, drawn together by what noise explains of their differences (James and Stein 1961)."""
    middle = (shares * numbers).sum() / shares.sum()
    apart = numbers - middle
    explained = (shares * errors.square()).sum() / (shares * apart.square()).sum().clamp(min=1e-30)
    drawn: torch.Tensor = middle + (1 - explained).clamp(min=0.0) * apart
    return drawn


def _cleared(values: torch.Tensor, noise: float, unseen: float = 1.0) -> tuple[torch.Tensor, float]:
    """The eigenvalues of a noisy symmetric matrix without its noise, and the least of them.

    Noise alone spreads eigenvalues over a semicircle of radius 2 noise sqrt(n); what sticks out of it was pushed out
    by it, and is drawn back (Gavish and Donoho 2017). The rest share what the trace says is left, evenly, or a part of
    it: nobody sees in which directions it lies.
    """
    edge = 2 * noise * math.sqrt(len(values)) * (1 + len(values) ** (-2 / 3))  # where the largest lies is random, too
    clear = values > edge
    shrunk = torch.where(clear, (values + (values.square() - edge**2).clamp(min=0).sqrt()) / 2, 0.0)
    left = (values.sum() - shrunk.sum()).clamp(min=0) / (~clear).sum().clamp(min=1)
    cleared = torch.where(clear, shrunk, unseen * left)
    return cleared, float(cleared.min())


def _filtered(spread: torch.Tensor, apart: torch.Tensor, noise: float) -> torch.Tensor:
    """A covariance, from that of all classes, `spread` along its axes, and from how far it is noisily seen `apart`.

    Classes differ as samples of the same covariance would, by some amount: an entry varies as the product of the two
    spreads it joins. Each entry is kept by its share of that in what it varies with noise (Wiener's filter).
    """
    twice = 1 + torch.eye(len(spread), dtype=spread.dtype)  # on the diagonal, of samples and of noise
    expected, errors = spread[:, None] * spread * twice, noise**2 * twice
    amount = ((apart.square() - errors) * expected).sum() / expected.square().sum().clamp(min=1e-30)
    expected = amount.clamp(min=0.0) * expected
    return spread.diag() + expected / (expected + errors).clamp(min=1e-30) * apart


def _root(covariance: torch.Tensor, rest: float) -> torch.Tensor:
    """A square root of it; where it is flat or, by noise, below 0, at least `rest` is added."""
    values, vectors = torch.linalg.eigh(covariance)
    root: torch.Tensor = vectors * (values.clamp(min=0.0) + rest).sqrt()
    return root


# Networks


@dataclasses.dataclass(frozen=True, kw_only=True)
class Fit:
    """How a generator is fitted: a network in steps; a normal distribution with so much of the variance whose
    directions noise hides."""

    steps: int = 2000
    batch: int = 1000
    rate: float = 1e-3
    seed: int = 0
    unseen: float = 1.0

    def __call__(
        self,
        release: Release,
        network: Network,
        *,
        device: str = "cpu",
        start: Tree | None = None,
        watch: Watch | None = None,
    ) -> Tree:
        """The weights of a network whose mean embedding, class by class, is the released one."""
        if not isinstance(release.psi.body, Embedding):
            raise ValueError("Expected a look with an embedding: moments make a normal distribution, not a network.")
        rng = torch.Generator(device).manual_seed(self.seed)
        first = start or network.generator.init(self.seed)
        params = {name: leaf.to(device, copy=True).requires_grad_() for name, leaf in first.items() if name != "shares"}
        optimizer = torch.optim.Adam(params.values(), self.rate, betas=(0.5, 0.99))
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, self.steps)
        target = _Target(release, self.batch, device)
        for step in range(self.steps):
            loss = target.distance(network.generator.images(params, network.latents(target.labels, rng)))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            if watch and not (step + 1) % max(1, self.steps // 10):
                watch(step + 1, self.steps)
        return self._checked({name: leaf.detach().cpu() for name, leaf in params.items()}) | {"shares": release.shares}

    @staticmethod
    def _checked(params: Tree) -> Tree:
        if not all(leaf.isfinite().all() for leaf in params.values()):
            raise DivergedError(
                "Expected the generator to stay finite; the fit diverged. The release is kept: fit it again, for free,"
                " with another seed or a smaller rate."
            )
        return params


class _Target:
    """The released embedding, and how far the mean embedding of a batch is from it."""

    def __init__(self, release: Release, batch: int, device: str) -> None:
        self._psi, rows = release.psi, max(1, release.psi.classes)
        self._each = max(2, batch // rows)
        self.labels = torch.arange(rows * self._each, device=device) % rows
        self._shares = release.shares.to(device)
        self._body = release.body.to(device)
        # Means of vectors of norm 1 are no longer than 1: at least so much they are stretched, once noise is taken off.
        square = float(self._body.square().sum()) - self._body.numel() * release.body_noise**2
        self._least = math.sqrt(max(square, 1e-6)) / float(self._shares.square().sum().sqrt())

    def distance(self, images: torch.Tensor) -> torch.Tensor:
        """|a m - r|^2 up to a constant, with the best a, and without the bias of a batch.

        How long the mean is depends on the norms that units were brought to, and on a guess at their number.

        A mean over a batch has the square of its own sampling error in its norm, which would reward generators that
        draw the same again and again. Every feature vector has norm 1, so that part is known, and is taken off.
        """
        embedded = self._psi.body(images)
        means = embedded.unflatten(0, (self._each, len(self._shares))).mean(0)  # of each class
        squares = (means.square().sum(1) * self._each - 1) / (self._each - 1)
        square = (self._shares.square() * squares).sum()
        product = (self._shares[:, None] * means * self._body).sum()
        scale = (product / square.clamp(min=1e-9)).detach().clamp(self._least, 1e3)
        distance: torch.Tensor = scale * scale * square - 2 * scale * product
        return distance
