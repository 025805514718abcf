"""What do two looks say about two groups: do they differ, and which fault explains it? On data that may be seen.

Nothing is trained. What each user would send is computed once; a draw deals users to two groups, plants a fault in one
of them, adds up what is sent, and adds noise as the plan of a real recipe says.
"""

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch

from fedlens.core.trees import Tree
from fedlens.media.images import families, tracing
from fedlens.media.images.faults import FAULTS
from fedlens.models.looks import explaining, two_sample
from fedlens.models.looks.explaining import Explanation, Trace
from fedlens.models.looks.fitting import Release
from fedlens.models.looks.psi import BODY, Psi

Change = Callable[[torch.Tensor], torch.Tensor]
SHOWN = 128  # of a user's images, as in a look


@dataclasses.dataclass(frozen=True, kw_only=True)
class Planted:
    """A fault, and what should be said about it; a fault that no family holds should be named as none."""

    name: str
    change: Change | None = None  # of images
    labels: Callable[[torch.Tensor], torch.Tensor] | None = None
    kinds: tuple[str, ...] = ()  # the families that hold it
    amount: tuple[float, ...] = ()  # the true one, where there is one
    within: float = 0.0  # of each number of the amount


def _family(kind: str, *amount: float, name: str = "", within: float) -> Planted:
    family = next(one for one in families.FAMILIES if one.kind == kind)
    return Planted(
        name=name or f"{kind} {', '.join(f'{a:g}' for a in amount)}",
        change=lambda x: family.change(x, amount),
        kinds=(kind,),
        amount=amount,
        within=within,
    )


def _known(kind: str, family: str, *amount: float, within: float = 0.0) -> Planted:
    fault = FAULTS.known[kind]
    relabel = fault.labels
    labels = (lambda y: relabel(y, 10)) if relabel else None
    return Planted(name=kind, change=fault.change, labels=labels, kinds=(family,), amount=amount, within=within)


# What has a name since before looks.
LISTED = (
    _known("inverted", "inverted"),
    _known("rotated-90", "turned", 90.0, within=7.5),
    _known("rotated-180", "turned", 180.0, within=7.5),
    _known("rotated-270", "turned", -90.0, within=7.5),
    _known("mirrored", "mirrored"),
    _known("upside-down", "upside-down"),
    _known("shifted", "shifted", 1 / 7, 0.0, within=0.04),
    _known("blurred", "blurred", 5.05, within=1.5),
    _known("low-contrast", "contrast", 0.5, within=0.1),
    _known("dead-band", "region", 0.0, 3 / 7, 1.0, 4 / 7, 0.0, within=0.08),
    _known("noisy", "noisy", 0.25, within=0.05),
    _known("swapped-labels", "labels swapped"),
)


def vignetted(x: torch.Tensor) -> torch.Tensor:
    """Darker towards the corners."""
    axis = torch.linspace(-1, 1, x.shape[-1], device=x.device)
    return (x + 1) * (1 - 0.45 * (axis[:, None] ** 2 + axis**2)).clamp(min=0) - 1


def smeared(x: torch.Tensor) -> torch.Tensor:
    """The camera moved sideways."""
    return torch.nn.functional.avg_pool2d(torch.nn.functional.pad(x, (3, 3, 0, 0), mode="replicate"), (1, 7), stride=1)


def interlaced(x: torch.Tensor) -> torch.Tensor:
    """Every second row is lost."""
    return torch.where(torch.arange(x.shape[-2], device=x.device)[:, None] % 2 == 0, x, -1.0)


def solarised(x: torch.Tensor) -> torch.Tensor:
    """What is bright is turned into dark."""
    return torch.where(x > 0, -x, x)


def waved(x: torch.Tensor) -> torch.Tensor:
    """Rows are moved sideways in waves."""
    side = x.shape[-1]
    steps = [round(side / 7 * math.sin(2 * math.pi * row / side * 2)) for row in range(side)]
    return torch.stack([x[..., row, :].roll(step, -1) for row, step in enumerate(steps)], -2)


def posterised(x: torch.Tensor) -> torch.Tensor:
    """Three levels are left."""
    return ((x + 1).round() - 1).clamp(-1, 1)


# Written down before anything was tuned, and never tuned on. The last six lie in no family.
UNLISTED = (
    _family("salt-and-pepper", 0.15, within=0.04),
    _family("scaled", 0.75, within=0.07),
    _family("scaled", 1.3, within=0.1),
    _family("turned", 20.0, within=7.5),
    _family("binarised", 0.4, within=0.1),
    Planted(
        name="left third black",
        change=lambda x: families.covered(x, (0.0, 0.0, 1 / 3, 1.0, 0.0)),
        kinds=("region",),
        amount=(0.0, 0.0, 1 / 3, 1.0, 0.0),
        within=0.1,
    ),
    _family("coarsened", 3.5, within=0.8),
    Planted(
        name="a white corner",
        change=lambda x: families.covered(x, (0.68, 0.68, 1.0, 1.0, 1.0)),
        kinds=("region",),
        amount=(0.68, 0.68, 1.0, 1.0, 1.0),
        within=0.1,
    ),
    _family("gamma", 2.0, within=0.4),
    _family("brightness", 0.2, within=0.06),
    _family("sheared", 0.3, within=0.1),
    _family("sharpened", 1.5, within=0.7),
    Planted(name="vignetted", change=vignetted),
    Planted(name="smeared", change=smeared),
    Planted(name="interlaced", change=interlaced),
    Planted(name="solarised", change=solarised),
    Planted(name="waved", change=waved),
    Planted(name="posterised", change=posterised),
)
# To choose settings on: other amounts, other people.
TUNED = (
    _family("inverted", -1.0, within=0.0),
    _family("contrast", 0.7, within=0.1),
    _family("contrast", 1.8, within=0.4),
    _family("brightness", -0.3, within=0.06),
    _family("turned", -50.0, within=7.5),
    _family("turned", 110.0, within=7.5),
    _family("mirrored", 0.0, within=0.0),
    _family("upside-down", 0.0, within=0.0),
    _family("scaled", 0.85, within=0.07),
    _family("shifted", -2 / 14, 1 / 14, within=0.04),
    _family("sheared", -0.5, within=0.1),
    _family("region", 0.0, 0.0, 1.0, 0.5, 0.0, within=0.1),
    _family("region", 1 / 7, 0.0, 2 / 7, 1.0, 1.0, within=0.1),
    _family("blurred", 7.0, within=1.5),
    _family("coarsened", 2.5, within=0.8),
    _family("noisy", 0.12, within=0.05),
    _family("salt-and-pepper", 0.3, within=0.06),
    _family("gamma", 0.5, within=0.15),
    Planted(name="rows rolled", change=lambda x: x.roll(x.shape[-1] // 3, -1)),
    Planted(name="quarters swapped", change=lambda x: x.roll((x.shape[-1] // 2, x.shape[-1] // 2), (-1, -2))),
    Planted(name="chequered", change=lambda x: torch.where(_chequers(x), x, -x)),
    Planted(name="framed", change=lambda x: torch.where(_frame(x), 1.0, x)),
)


def _chequers(x: torch.Tensor) -> torch.Tensor:
    at = torch.arange(x.shape[-1], device=x.device) // 4
    return (at[:, None] + at) % 2 == 0


def _frame(x: torch.Tensor) -> torch.Tensor:
    at = torch.arange(x.shape[-1], device=x.device)
    edge = (at < 2) | (at >= x.shape[-1] - 2)
    return edge[:, None] | edge


# What users send


@dataclasses.dataclass(frozen=True, kw_only=True)
class People:
    """Images that may be seen, and whose they are."""

    images: np.ndarray = dataclasses.field(repr=False)  # [n, side, side] of bytes
    labels: np.ndarray = dataclasses.field(repr=False)
    owners: np.ndarray = dataclasses.field(repr=False)  # 0, 1, 2, …

    @functools.cached_property
    def shown(self) -> np.ndarray:
        """[users, SHOWN]: the places of each user's images; -1 where there are no more."""
        order = np.argsort(self.owners, kind="stable")
        starts = np.searchsorted(self.owners[order], np.arange(self.owners.max() + 2))
        places = np.full((len(starts) - 1, SHOWN), -1)
        for user, (start, end) in enumerate(itertools.pairwise(starts)):
            mine = order[start:end][:SHOWN]
            places[user, : len(mine)] = mine
        return places


def dealt(images: np.ndarray, labels: np.ndarray, users: int) -> People:
    owners = np.random.default_rng(0).permutation(len(images)) % users
    return People(images=images, labels=labels, owners=owners)


def sent(psi: Psi, people: People, fault: Planted | None = None, at_once: int = 24) -> dict[str, np.ndarray]:
    """[users, numbers] by the block, but for the body."""
    parts: list[Tree] = []
    for places in np.array_split(people.shown, max(1, math.ceil(len(people.shown) / at_once))):
        there = torch.from_numpy(places >= 0)
        images = torch.from_numpy(people.images[places.clip(0)]).float()[:, :, None] / 127.5 - 1
        labels = torch.from_numpy(people.labels[places.clip(0)]).long()
        if fault and fault.change:
            images = fault.change(images.flatten(0, 1)).unflatten(0, places.shape)
        if fault and fault.labels:
            labels = fault.labels(labels)
        examples = {"x": images, "y": labels, "mask": there.float()}
        made = torch.func.vmap(psi)(examples)
        parts.append({name: block.flatten(1) for name, block in made.items() if name != BODY})
    return {name: torch.cat([part[name] for part in parts]).double().numpy() for name in parts[0]}


def released(psi: Psi, rows: Mapping[str, np.ndarray], noise: float, rng: np.random.Generator) -> Release:
    """The noisy mean of what these users sent."""
    units = len(next(iter(rows.values())))
    blocks = {
        name: torch.from_numpy((block.sum(0) + noise * rng.standard_normal(block.shape[1])) / units).reshape(
            psi.shapes[name]
        )
        for name, block in rows.items()
    }
    return Release(psi=psi, blocks=blocks | {BODY: torch.zeros(psi.shapes[BODY])}, noise=noise / units, units=units)


# Draws


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outcome:
    """What was said of one draw."""

    p: float
    explanation: Explanation = dataclasses.field(repr=False)

    @property
    def differ(self) -> bool:
        return self.p <= two_sample.LEVEL

    def names(self, planted: Planted) -> str:
        """right, wrong (another family, or another amount), or nothing."""
        best = self.explanation.named
        if not self.differ or best is None:
            return "nothing"
        if best.kind not in planted.kinds:
            return "wrong"
        off = [abs(a - b) for a, b in zip(best.amount, planted.amount, strict=False)]
        return "right" if all(each <= planted.within + 1e-9 for each in off) else "amount"


def drawn(
    psi: Psi,
    clean: Mapping[str, np.ndarray],
    faulty: Mapping[str, np.ndarray],
    share: float,
    noise: float,
    traces: Sequence[Trace],
    rng: np.random.Generator,
) -> Outcome:
    """Users are dealt to two groups of equal size, and a share of the first has the fault."""
    users = len(next(iter(clean.values())))
    order = rng.permutation(users)
    first, second = order[: users // 2], order[users // 2 :]
    hit = round(share * len(first))
    rows = {name: np.concatenate([faulty[name][first[:hit]], clean[name][first[hit:]]]) for name in clean}
    left = released(psi, rows, noise, rng)
    right = released(psi, {name: clean[name][second] for name in clean}, noise, rng)
    comparison = two_sample.compared(left, right, tracing.directions(list(traces)))
    return Outcome(p=comparison.p, explanation=explaining.explained(comparison, traces))
