"""Images that everybody may see, weighted until they look like those of a look: free post-processing of its release.

Weights are those nearest to equal ones (in relative entropy) under which the images' readable blocks are, on average,
what was released, as far as its noise lets that be told. They say which public images the private users have more of;
and images drawn by a rule, so weighted, stand in where no public images look alike.
"""

import dataclasses

import numpy as np
import torch

from fedlens.models.looks.fitting import Release
from fedlens.models.looks.psi import TOGETHER, Psi
from fedlens.models.looks.shapes import drawn, randomness, strokes
from fedlens.models.looks.statistics import READABLE
from fedlens.models.looks.two_sample import Group

_STEPS = 300
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


def weighted(release: Release, images: torch.Tensor) -> Weighted:
    """Of images in [-1, 1], to look like those of a release."""
    psi, group = release.psi, Group.of(release)
    rows = per_image(images, psi.varying)
    every = torch.cat([rows[name] for name in psi.varying], 1)
    even = (every - every.mean(0)) / (every.std(0) + 1e-3)
    targets = {name: torch.from_numpy(group.blocks[name].mean) for name in psi.varying}
    leans = torch.zeros(every.shape[1], dtype=torch.double, requires_grad=True)
    search = torch.optim.LBFGS([leans], max_iter=_STEPS, line_search_fn="strong_wolfe")

    def loss() -> torch.Tensor:
        search.zero_grad()
        weights = torch.softmax(even @ leans, 0)
        far = (weights * (weights * len(images) + 1e-12).log()).sum()
        for name, target in targets.items():
            error = group.blocks[name].noise ** 2 + group.blocks[name].spread / target.numel()
            off = psi.around(name, weights @ rows[name]) - target
            far = far + off.square().sum() / (2 * max(error, 1e-9))
        far.backward()
        return far

    search.step(loss)
    with torch.no_grad():
        weights = torch.softmax(even @ leans, 0)
    sound = weights if bool(weights.isfinite().all()) else torch.full_like(weights, 1 / len(weights))
    return Weighted(weights=sound.numpy())


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
