"""Images that everybody may see, weighted until they look like those of a look: free post-processing of its release.

Weights are those nearest to equal ones (in relative entropy) under which the images' readable blocks are, on average,
what was released, as far as its noise lets that be told. They say which public images the private users have more of;
and images drawn by a rule, so weighted, stand in where no public images look alike.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping

import numpy as np
import torch
import torch.nn.functional as F

from fedlens.models.looks.fitting import Release
from fedlens.models.looks.psi import TOGETHER, Psi
from fedlens.models.looks.shapes import drawn, randomness, strokes
from fedlens.models.looks.statistics import READABLE
from fedlens.models.looks.two_sample import Group

_STEPS = 60
_TRUST = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0)  # in what was released, against equal weights: until it fits
_DRAWN = 2000  # of each kind of images that are drawn by a rule
_STRETCHES = ((1.0, 0.0), (1.6, 0.0), (3.0, 0.0), (2.0, 0.3))  # gain and offset: generators draw too little contrast


@dataclasses.dataclass(frozen=True, kw_only=True)
class Weighted:
    """How much each image counts; together 1."""

    weights: np.ndarray = dataclasses.field(repr=False)

    @property
    def effective(self) -> float:
        """As many images of equal weight would say as much (Kish 1965)."""
        return float(1 / (self.weights**2).sum())


def per_image(images: torch.Tensor, names: tuple[str, ...]) -> dict[str, torch.Tensor]:
    """[images, numbers] by the readable block."""
    return {name: torch.cat([READABLE[name](part) for part in images.split(TOGETHER)]).double() for name in names}


def weighted(
    release: Release,
    images: torch.Tensor,
    labels: torch.Tensor | None = None,
    units: Mapping[str, np.ndarray] | None = None,
) -> Weighted:
    """Of images in [-1, 1], perhaps with their classes, to look like those of a release.

    `units` are the means of what units of these images send: each unit is cut, and not the mean of all.
    """
    psi, group = release.psi, Group.of(release)
    rows = per_image(images, psi.varying)
    kinds, shares = None, release.shares.double()
    if labels is not None and psi.classes:
        there = labels.unique()  # no weight mends what is missing altogether
        kinds, shares = F.one_hot(labels, psi.classes)[:, there].double(), shares[there] / shares[there].sum()
    every = torch.cat([*rows.values(), *([] if kinds is None else [kinds])], 1)
    even = (every - every.mean(0)) / (every.std(0) + 1e-3)
    targets = {name: torch.from_numpy(group.blocks[name].mean) for name in psi.varying}
    for name, mean in (units or {}).items():
        targets[name] = targets[name] + psi.around(name, rows[name].mean(0)) - torch.from_numpy(mean)
    leans = torch.zeros(every.shape[1], dtype=torch.double, requires_grad=True)
    size = sum(target.numel() for target in targets.values()) + (0 if kinds is None else kinds.shape[1])

    def off(weights: torch.Tensor) -> torch.Tensor:
        """Squared, in units of the errors."""
        total = weights.new_zeros(())
        for name, target in targets.items():
            error = group.blocks[name].noise ** 2 + group.blocks[name].spread / target.numel()
            total = total + (psi.around(name, weights @ rows[name]) - target).square().sum() / max(error, 1e-9)
        if kinds is not None:
            total = total + (weights @ kinds - shares).square().sum() / max(release.share_error**2, 1e-9)
        return total

    weights = torch.full((len(images),), 1 / len(images), dtype=torch.double)
    for trust in _TRUST:
        if float(off(weights)) <= size + 2 * math.sqrt(2 * size):
            break  # as near as noise lets anybody tell
        next_ones = _leaning(even, leans, off, trust)
        if not bool(next_ones.isfinite().all()):
            break
        weights = next_ones
    return Weighted(weights=weights.numpy())


def _leaning(
    even: torch.Tensor, leans: torch.Tensor, off: Callable[[torch.Tensor], torch.Tensor], trust: float
) -> torch.Tensor:
    """Weights that are a little less equal; `leans` go on from where they were."""
    search = torch.optim.LBFGS([leans], max_iter=_STEPS, line_search_fn="strong_wolfe")

    def loss() -> torch.Tensor:
        search.zero_grad()
        weights = torch.softmax(even @ leans, 0)
        far = (weights * (weights * len(weights) + 1e-12).log()).sum() + trust * off(weights) / 2
        far.backward()
        return far

    search.step(loss)
    with torch.no_grad():
        return torch.softmax(even @ leans, 0)


def standing_in(release: Release, samples: torch.Tensor, count: int, seed: int = 0) -> torch.Tensor:
    """As many images that look like those of a release, of samples of its generator and of images drawn by rules."""
    pool = torch.cat([*(stretched(samples, *by) for by in _STRETCHES), *ruled(release.psi)])
    weights = weighted(release, pool).weights
    places = randomness(seed).choice(len(pool), count, p=weights / weights.sum())
    return pool[torch.from_numpy(places)]


def stretched(images: torch.Tensor, gain: float, offset: float) -> torch.Tensor:
    return ((images + offset) * gain).clamp(-1, 1)


def ruled(psi: Psi) -> tuple[torch.Tensor, ...]:
    form = psi.body.side, psi.body.channels
    return drawn(_DRAWN, *form), strokes(_DRAWN, *form)
