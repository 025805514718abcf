"""What do two looks say about two groups: do they differ, and which fault explains it? On data that may be seen.

No model is trained on users. What each would send is computed once; a draw chooses two groups, plants a fault, adds up
what is sent, and adds noise as the plan of a real recipe says.
"""

import dataclasses
import functools
import itertools
import json
import math
import pathlib
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from scipy import sparse

from fedlens.core import arrayfiles, files
from fedlens.experiments.drawing import markdown
from fedlens.media.images import against_public, families, tracing
from fedlens.media.images.faults import FAULTS
from fedlens.media.images.public import PublicSet
from fedlens.models.classifier import ConvClassifier, Primary
from fedlens.models.looks import explaining, two_sample
from fedlens.models.looks.explaining import Explanation, Trace
from fedlens.models.looks.fitting import Release
from fedlens.models.looks.psi import BODY, LABELS, PREDICTED, SIZE, TOGETHER, Psi, even, size_of
from fedlens.models.looks.shapes import strokes
from fedlens.models.looks.statistics import READABLE, sizes
from fedlens.models.looks.two_sample import COUNT, Group
from fedlens.recipes.recipe import Recipe
from fedlens.recipes.stages import TRAIN

Change = Callable[[torch.Tensor], torch.Tensor]
Rows = Mapping[str, np.ndarray]  # [users, numbers] by the block
SHOWN = 128  # of a user's images, as in a look
DEALT, PUBLIC_DEALT = 600, 100  # made-up users
DELTA = 1e-5
DRAWS = 20
EPSILONS = (1.0, 0.5, 0.25)
RARE = 0.1  # of the users of a group
LOW, HIGH = 0.3, 0.7  # of the users, by the accuracy of a classifier
KEPT = 0.8  # of them, in each draw
HIT = 0.5  # of the users have a fault, where a classifier chooses the groups
# Who is compared: users dealt to halves; weak users with strong ones; images that are read wrongly with the others;
# images by the toss of a coin; everybody with everybody, at another time; everybody with a public set.
RELEASE, ACCURACY, EXAMPLE, COIN, TWICE, PUBLIC = "release", "accuracy", "example", "coin", "twice", "public"
JUDGED = "judged"  # halves, and a classifier is named


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
    _known("swapped-labels", "labels-swapped"),
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

    name: str
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

    @property
    def side(self) -> int:
        return int(self.images.shape[-1])

    @property
    def classes(self) -> int:
        """0 where there are no labels."""
        return int(self.labels.max()) + 1 if self.labels.any() else 0

    @functools.cached_property
    def places(self) -> np.ndarray:
        """Of the images that are shown, user by user."""
        places: np.ndarray = self.shown[self.shown >= 0]
        return places

    @functools.cached_property
    def whose(self) -> np.ndarray:
        """The user of each image that is shown."""
        return np.repeat(np.arange(len(self.shown)), (self.shown >= 0).sum(1))

    def part(self, images: np.ndarray) -> "People":
        """With these images only, and the users who have any."""
        owners = np.unique(self.owners[images], return_inverse=True)[1]
        return People(name=self.name, images=self.images[images], labels=self.labels[images], owners=owners)


def dealt(name: str, images: np.ndarray, labels: np.ndarray, users: int) -> People:
    owners = np.random.default_rng(0).permutation(len(images)) % users
    return People(name=name, images=images, labels=labels, owners=owners)


def writers(folder: pathlib.Path, split: str) -> People:
    """Of MNIST, as they are: those of `train`, or the others of `test`."""
    names = [f"{column}_{split}" for column in ("x", "y", "writer")]
    images, labels, owners = _arrays(folder / "mnist_by_writer.npz", names)
    whose = np.unique(owners, return_inverse=True)[1]
    return People(name="writers", images=images.reshape(-1, 28, 28), labels=labels.astype(int), owners=whose)


def fashion(folder: pathlib.Path, split: str, users: int) -> People:
    images, labels = _arrays(folder / "fashion_mnist.npz", [f"x_{split}", f"y_{split}"])
    return dealt("fashion", images.reshape(-1, 28, 28), labels.astype(int), users)


def procedural() -> People:
    """Strokes, each made-up user with a brightness and a contrast of their own."""
    rng, images = np.random.default_rng(1), strokes(60 * DEALT, 28, 1)[:, 0].numpy()
    owners = np.arange(len(images)) % DEALT
    gain, level = rng.uniform(0.6, 1, DEALT)[owners], rng.uniform(-0.2, 0.2, DEALT)[owners]
    bytes_ = ((images * gain[:, None, None] + level[:, None, None]).clip(-1, 1) * 127.5 + 127.5).round()
    return People(name="strokes", images=bytes_.astype(np.uint8), labels=np.zeros(len(images), int), owners=owners)


def _arrays(path: pathlib.Path, names: list[str]) -> list[np.ndarray]:
    held = arrayfiles.archived(path, names, f"Expected a whole .npz file in {path.name}.", ValueError)
    return [held[name] for name in names]


def changed(people: People, fault: Planted | None) -> Iterator[torch.Tensor]:
    """The images that are shown, some at a time, in [-1, 1]."""
    for at in range(0, len(people.places), TOGETHER):
        images = torch.from_numpy(people.images[people.places[at : at + TOGETHER]]).float()[:, None] / 127.5 - 1
        yield fault.change(images) if fault and fault.change else images


def relabelled(people: People, fault: Planted | None) -> np.ndarray:
    """Of the images that are shown."""
    labels = people.labels[people.places]
    return fault.labels(torch.from_numpy(labels)).numpy() if fault and fault.labels else labels


def per_image(people: People, fault: Planted | None, primary: Primary | None = None) -> np.ndarray:
    """[shown, numbers]: readable blocks, a one for the label, one for the label and what it is taken for, and a one."""
    readable = [torch.cat([READABLE[name](part) for name in READABLE], 1) for part in changed(people, fault)]
    columns = [torch.cat(readable).numpy()]
    if people.classes:
        labels = relabelled(people, fault)
        columns.append(np.eye(people.classes, dtype=np.float32)[labels])
        if primary:
            pairs = labels * people.classes + predicted(people, primary, fault)
            columns.append(np.eye(people.classes**2, dtype=np.float32)[pairs])
    return np.concatenate([*columns, np.ones((len(people.places), 1), np.float32)], 1)


def predicted(people: People, primary: Primary, fault: Planted | None) -> np.ndarray:
    """What a classifier takes each image for that is shown."""
    return np.concatenate([primary.predictions(images).numpy() for images in changed(people, fault)])


def summed(people: People, numbers: np.ndarray, seen: np.ndarray | None = None) -> np.ndarray:
    """[users, numbers]: over each user's images, perhaps of some of them; the last number is how many."""
    there = np.ones(len(people.places), np.float32) if seen is None else seen.astype(np.float32)
    users = sparse.csr_matrix((there, (people.whose, np.arange(len(there)))), (len(people.shown), len(there)))
    sums: np.ndarray = users @ numbers
    return sums.astype(float)


def kept_sums(people: People, fault: Planted | None, primary: Primary | None, cache: pathlib.Path) -> np.ndarray:
    """Of whole users, whatever a look counts them from: computed once."""
    judged = "-judged" if primary else ""
    path = cache / f"{people.name}-{fault.name if fault else 'clean'}{judged}.npy".replace(" ", "_")
    if path.exists():
        held: np.ndarray = np.array(arrayfiles.mapped(path))
        return held
    sums = summed(people, per_image(people, fault, primary))
    path.parent.mkdir(parents=True, exist_ok=True)
    np.save(path, sums)
    return sums


def sent(psi: Psi, sums: np.ndarray) -> dict[str, np.ndarray]:
    """[users, numbers] by the block, but for the body: what psi makes of them, in units of its weights.

    Who has no image is nobody.
    """
    sums = sums[sums[:, -1] > 0]
    counts, there = sums[:, -1], torch.ones(len(sums), dtype=torch.double)
    lengths = sizes(psi.body.side, psi.body.channels)
    parts = np.split(sums, np.cumsum([*lengths.values(), psi.classes, psi.judged * psi.classes**2]), axis=1)
    means = {name: torch.from_numpy(part / counts[:, None]) for name, part in zip(lengths, parts, strict=False)}
    rows = psi.readable_of(means, there)
    for name, part in zip((LABELS, PREDICTED), parts[len(lengths) :], strict=False):
        if name in psi.weights:
            rows[name] = torch.func.vmap(even)(torch.from_numpy(part))
    rows[SIZE] = torch.stack([_size(int(count)) for count in counts])
    rows[COUNT] = there[:, None]
    return {name: (block * psi.weights[name]).numpy() for name, block in rows.items()}


@functools.cache
def _size(count: int) -> torch.Tensor:
    return size_of(torch.ones(count)).double()


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


@dataclasses.dataclass(frozen=True, kw_only=True)
class Setting:
    """What a look at these people asks at this epsilon, as a recipe says, and what faults are tried on."""

    people: People
    psi: Psi
    noise: float
    tried: tracing.Tried = dataclasses.field(repr=False)

    @functools.cached_property
    def traces(self) -> list[Trace]:
        return self.tried.traces()

    @classmethod
    def of(cls, people: People, epsilon: float, public: People, by: str = RELEASE) -> "Setting":
        """`public` are others' images, which look alike."""
        recipe = _recipe(people, epsilon, by)
        psi: Psi = recipe.medium.network(recipe)
        picked = np.random.default_rng(5).permutation(len(public.images))[: tracing.TRIED_ON]
        images = torch.from_numpy(public.images[picked]).float()[:, None] / 127.5 - 1
        each = round(float(np.median((people.shown >= 0).sum(1))))
        noise = float(recipe.plans[TRAIN].stddev)
        return cls(people=people, psi=psi, noise=noise, tried=tracing.Tried(psi, images, each))


_EVERYONE: dict[str, Any] = {"selections": {"all": {"by": "everyone"}}}
_MODEL: dict[str, Any] = {"primary": {"model": "model.safetensors"}}
_BY_RELEASE: dict[str, Any] = {
    "task": "T4",
    "selections": {
        name: {"by": "attribute", "attribute": "release", "values": [value]} for name, value in (("new", 1), ("old", 0))
    },
}
_BY_EXAMPLE = _MODEL | {"task": "T2", "selections": {name: {"by": name} for name in ("wrong", "right")}}
_ASKED: dict[str, dict[str, Any]] = {
    RELEASE: _BY_RELEASE,
    JUDGED: _BY_RELEASE | _MODEL,
    ACCURACY: _MODEL
    | {
        "task": "T4",
        "selections": {
            "low": {"by": "accuracy", "below": {"quantile": LOW}},
            "high": {"by": "accuracy", "at_least": {"quantile": HIGH}},
        },
    },
    EXAMPLE: _BY_EXAMPLE,
    COIN: _BY_EXAMPLE,
    TWICE: _EVERYONE | {"task": "T1"},
    PUBLIC: _EVERYONE | {"task": "T6", "look": {"public": {"path": "public.npz", "users": "user"}}},
}


def _recipe(people: People, epsilon: float, by: str) -> Recipe:
    """Halves, and groups by accuracy, hold at most half of all users; every other group may hold all."""
    users, classes = len(people.shown), people.classes
    units = -(-users // 2) if by in (RELEASE, JUDGED, ACCURACY) else users
    attributes = {"attributes": ["release"]} if by in (RELEASE, JUDGED) else {}
    return Recipe.validated(
        {
            "name": "findings",
            "algorithm": "look",
            "side": people.side,
            "data": {"source": "npz", "path": "users.npz"} | attributes,
            "privacy": {"epsilon": epsilon, "delta": DELTA, "units": units, "population": users},
            "model": {"classes": classes},
        }
        | _ASKED[by],
        [],
    )


def said(setting: Setting, left: Rows, right: Rows, seed: int) -> Outcome:
    """Of two groups' rows, with fresh noise."""
    rng = np.random.default_rng([seed, 7])
    return _judged(setting, *(Group.of(released(setting.psi, rows, setting.noise, rng)) for rows in (left, right)))


def _judged(setting: Setting, left: Group, right: Group) -> Outcome:
    groups, there = (left, right), left.blocks.keys() & right.blocks.keys()
    traces, along = (
        [one.within(there) for one in (*setting.traces, *tracing.of_labels(setting.psi, groups, fitted))]
        for fitted in (True, False)
    )
    views = {name: rows for name, rows in setting.psi.views.items() if name in there}
    tested = two_sample.two_groups(groups, views, tracing.directions(along))
    explanation = tracing.explanation(tested, traces, setting.tried, explaining.MISFIT)
    return Outcome(p=tested.p, explanation=explanation)


def planted(setting: Setting, clean: Rows, faulty: Rows, share: float, seed: int) -> Outcome:
    """Users are dealt to two groups of equal size, and a share of the first has the fault."""
    first, second = _halves(len(setting.people.shown), seed)
    hit = round(share * len(first))
    left = {name: np.concatenate([faulty[name][first[:hit]], clean[name][first[hit:]]]) for name in clean}
    return said(setting, left, _of(clean, second), seed)


def _halves(users: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    order = np.random.default_rng(seed).permutation(users)
    return order[: users // 2], order[users // 2 :]


def _of(rows: Rows, chosen: np.ndarray) -> dict[str, np.ndarray]:
    return {name: block[chosen] for name, block in rows.items()}


def by_accuracy(
    setting: Setting, clean: np.ndarray, faulty: np.ndarray, share: float, seeds: Sequence[int]
) -> list[Outcome]:
    """The weakest users against the strongest, with a fault on a share of all."""
    outcomes = []
    for seed in seeds:
        sums = _some(clean, faulty, share, seed)
        right = _right(sums, setting.psi.classes) / sums[:, -1]
        low, high = right <= np.quantile(right, LOW), right >= np.quantile(right, HIGH)
        outcomes.append(said(setting, sent(setting.psi, sums[low]), sent(setting.psi, sums[high]), seed))
    return outcomes


def by_example(
    setting: Setting, clean: np.ndarray, faulty: np.ndarray, share: float, seeds: Sequence[int]
) -> list[Outcome]:
    """Images that a classifier reads wrongly against those it reads rightly, with a fault on a share of all users."""
    sides = []
    for numbers in (clean, faulty):
        right = _right(numbers, setting.psi.classes) > 0
        sides.append([summed(setting.people, numbers, seen) for seen in (~right, right)])
    outcomes = []
    for seed in seeds:
        wrong, right = (_some(one, other, share, seed) for one, other in zip(*sides, strict=True))
        outcomes.append(said(setting, sent(setting.psi, wrong), sent(setting.psi, right), seed))
    return outcomes


def by_coin(
    setting: Setting, clean: np.ndarray, faulty: np.ndarray, share: float, seeds: Sequence[int]
) -> list[Outcome]:
    """Every image on one of two sides, by chance; nothing is wrong with any."""
    whole, outcomes = summed(setting.people, clean), []
    for seed in seeds:
        one = summed(setting.people, clean, np.random.default_rng([seed, 4]).random(len(clean)) < 0.5)
        outcomes.append(said(setting, sent(setting.psi, one), sent(setting.psi, whole - one), seed))
    return outcomes


def _some(clean: np.ndarray, faulty: np.ndarray, share: float, seed: int) -> np.ndarray:
    """Some of the users, of whom a share has the fault."""
    rng = np.random.default_rng([seed, 3])
    there = rng.permutation(len(clean))[: round(KEPT * len(clean))]
    hit = rng.permutation(len(clean)) < round(share * len(clean))
    rows: np.ndarray = np.where(hit[:, None], faulty, clean)[there]
    return rows


def _right(sums: np.ndarray, classes: int) -> np.ndarray:
    """How many images are taken for what they are."""
    pairs = sums[:, -1 - classes**2 : -1].reshape(-1, classes, classes)
    right: np.ndarray = np.einsum("nii->n", pairs)
    return right


def with_public(setting: Setting, rows: Rows, public: People, seeds: Sequence[int]) -> list[Outcome]:
    """Everybody, under fresh noise, against a public set."""
    images = torch.from_numpy(public.images).float()[:, None] / 127.5 - 1
    labels, owners = torch.from_numpy(public.labels), torch.from_numpy(public.owners)
    known = against_public.sent(setting.psi, PublicSet(images=images, labels=labels, owners=owners))
    releases = (released(setting.psi, rows, setting.noise, np.random.default_rng([seed, 7])) for seed in seeds)
    groups = map(Group.of, releases)
    return [_judged(setting, group, against_public.beside(group, setting.psi, known)) for group in groups]


# Tables


NO_FAULT = Planted(name="none")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ImageRow:
    """What is drawn so many times, and counted."""

    data: str
    by: str
    epsilon: float
    share: float  # of the users of the first group, or of all where a classifier chooses, that have the fault
    draws: int
    fault: Planted = NO_FAULT
    lacks: Callable[[People], np.ndarray] | None = None  # which of its images a public set does not have

    @property
    def key(self) -> tuple[str, str, str, float, float]:
        return self.data, self.by, self.fault.name, self.epsilon, self.share


@dataclasses.dataclass(frozen=True, kw_only=True)
class Counted:
    """The draws of one row, counted."""

    data: str
    by: str
    fault: str
    epsilon: float
    share: float
    draws: int
    differ: int  # said to
    right: int  # named, with the right amount
    amount: int  # named, with another amount
    wrong: int  # named as something else
    named: dict[str, int]  # by the kind

    @classmethod
    def of(cls, row: ImageRow, outcomes: Sequence[Outcome]) -> "Counted":
        names = Counter(outcome.names(row.fault) for outcome in outcomes)
        named = dict(Counter(best.kind for one in outcomes if one.differ and (best := one.explanation.named)))
        about = {name: getattr(row, name) for name in ("data", "by", "epsilon", "share", "draws")}
        right, amount, wrong = (names[key] for key in ("right", "amount", "wrong"))
        differ = sum(outcome.differ for outcome in outcomes)
        return cls(fault=row.fault.name, differ=differ, right=right, amount=amount, wrong=wrong, named=named, **about)

    @property
    def key(self) -> tuple[str, str, str, float, float]:
        return self.data, self.by, self.fault, self.epsilon, self.share


def judge(public: People) -> Primary:
    """A classifier that is trained on others' images."""
    images = torch.from_numpy(public.images).float()[:, None] / 127.5 - 1
    labels = torch.from_numpy(public.labels)
    network = ConvClassifier(side=public.side, classes=int(labels.max()) + 1, widths=(16, 32))
    return Primary(network, network.fitted(images, labels, seed=0, epochs=3))


def slants(people: People) -> np.ndarray:
    """Of each image, by its moments: above 0 where strokes lean to the left."""
    light = people.images.astype(float) + 1e-9
    place, whole = np.arange(people.side), light.sum((1, 2))
    down, across = ((light.sum(axis) @ place / whole)[:, None] for axis in (2, 1))
    below, beside = place - down, place - across
    leans: np.ndarray = np.einsum("nij,ni,nj->n", light, below, beside) / np.einsum("nij,ni->n", light, below**2)
    return leans


def left_slanted(people: People) -> np.ndarray:
    return slants(people) > 0


def of_left_slanted_writers(people: People) -> np.ndarray:
    """All images of writers whose strokes lean to the left on average."""
    leans = np.bincount(people.owners, slants(people)) / np.bincount(people.owners)
    slanted: np.ndarray = (leans > 0)[people.owners]
    return slanted


def _lacking() -> Iterator[dict[str, Any]]:
    """Public sets that lack nothing, a class, or what leans to the left."""
    for data in ("writers", "fashion"):
        yield {"data": data, "lacks": None}
        for label in range(10):
            name, amount = f"no class {label}", (float(label), TENTH)
            fault = Planted(name=name, kinds=(tracing.CLASS_SHARE,), amount=amount, within=NEAR)
            yield {"data": data, "fault": fault, "lacks": functools.partial(_of_class, label)}
    for name, lacks in (
        ("no image that leans left", left_slanted),
        ("no writer who leans left", of_left_slanted_writers),
    ):
        yield {"data": "writers", "fault": Planted(name=name, kinds=("sheared",)), "lacks": lacks}


def _of_class(label: int, people: People) -> np.ndarray:
    lacking: np.ndarray = people.labels == label
    return lacking


def table(lines: Sequence[Counted]) -> str:
    """One row for each fault and data set; a column for each epsilon: found, named rightly, wrongly."""
    epsilons = sorted({line.epsilon for line in lines}, reverse=True)
    rows: dict[tuple[str, str, str], dict[float, str]] = {}
    for line in lines:
        cell = f"{line.differ} / {line.right}" + (f" (amount {line.amount})" if line.amount else "")
        cell += f" **wrong {line.wrong}**" if line.wrong else ""
        rows.setdefault((line.data, line.by, line.fault), {})[line.epsilon] = f"{cell} of {line.draws}"
    columns = ("data", "groups", "fault", *(f"epsilon {epsilon:g}" for epsilon in epsilons))
    return markdown(columns, [[*key, *(cells.get(e, "–") for e in epsilons)] for key, cells in rows.items()])


# All of them


CLEAN_DRAWS = 1000
HARD_TO_READ = ("inverted", "rotated-90", "blurred", "noisy", "dead-band", "shifted")  # by a classifier
SETS = ("writers", "fashion", "digits, dealt", "strokes")
PARTS = ("clean", "public", "example", "accuracy", "power", "rare")
OF_EXAMPLE_DRAWS = 100  # without a fault
TENTH, NEAR = 0.1, 0.05  # the share of each class, and how well it is to be told


def rows_of(part: str) -> list[ImageRow]:
    listed = {fault.name: fault for fault in LISTED}
    if part in ("power", "rare"):
        share, epsilons = (1.0, EPSILONS) if part == "power" else (RARE, (2.0, 1.0))
        return [
            ImageRow(data=data, by=RELEASE, fault=fault, share=share, epsilon=epsilon, draws=DRAWS)
            for data in SETS[:2]
            for epsilon in epsilons
            for fault in (*LISTED, *UNLISTED)
        ]
    if part == "clean":
        of_clean = [(data, by) for by in (RELEASE, TWICE, COIN) for data in SETS]
        return [ImageRow(data=data, by=by, epsilon=1.0, share=0.0, draws=CLEAN_DRAWS) for data, by in of_clean]
    if part == "public":
        return [ImageRow(by=PUBLIC, epsilon=1.0, share=1.0, draws=DRAWS, **lacking) for lacking in _lacking()]
    if part == "accuracy":
        none = [ImageRow(data=data, by=ACCURACY, epsilon=1.0, share=0.0, draws=CLEAN_DRAWS) for data in SETS[:2]]
        hit = [listed[name] for name in HARD_TO_READ]
        judged = [
            ImageRow(data=data, by=JUDGED, fault=listed["swapped-labels"], epsilon=epsilon, share=1.0, draws=DRAWS)
            for data in SETS[:2]
            for epsilon in EPSILONS
        ]
        return (
            none
            + judged
            + [ImageRow(data=SETS[0], by=ACCURACY, fault=fault, epsilon=1.0, share=HIT, draws=DRAWS) for fault in hit]
        )
    of_example = [listed[name] for name in ("inverted", "rotated-90")]
    return [
        *(ImageRow(data=SETS[0], by=EXAMPLE, epsilon=e, share=0.0, draws=OF_EXAMPLE_DRAWS) for e in (8.0, 1.0)),
        *(
            ImageRow(data=SETS[0], by=EXAMPLE, fault=fault, epsilon=e, share=HIT, draws=DRAWS)
            for fault in of_example
            for e in (8.0, 2.0, 1.0)
        ),
    ]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ImageBench:
    """Where data lie, and where results go."""

    folder: pathlib.Path
    out: pathlib.Path
    say: Callable[[str], None] = print

    @functools.cached_property
    def sets(self) -> dict[str, tuple[People, People]]:
        """Whose images are looked at, and whose are public."""
        others, clothes = writers(self.folder, "test"), fashion(self.folder, "test", PUBLIC_DEALT)
        real = writers(self.folder, "train")
        return {
            "writers": (real, others),
            "fashion": (fashion(self.folder, "train", DEALT), clothes),
            "digits, dealt": (dealt("digits, dealt", real.images, real.labels, DEALT), others),
            "strokes": (procedural(), others),
        }

    @functools.cached_property
    def _judges(self) -> dict[str, Primary]:
        return {}

    @functools.cached_property
    def _settings(self) -> dict[tuple[str, str, float], Setting]:
        return {}

    def _judge(self, data: str) -> Primary:
        if data not in self._judges:
            self._judges[data] = judge(self.sets[data][1])
        return self._judges[data]

    def _setting(self, row: ImageRow) -> Setting:
        key = row.data, row.by, row.epsilon
        if key not in self._settings:
            self._settings[key] = Setting.of(self.sets[row.data][0], row.epsilon, self.sets[row.data][1], row.by)
        return self._settings[key]

    @functools.cached_property
    def _counted(self) -> dict[tuple[str, str], np.ndarray]:
        return {}

    def _numbers(self, data: str, fault: Planted | None, primary: Primary | None) -> np.ndarray:
        key = data, fault.name if fault else ""
        if key not in self._counted:
            self._counted[key] = per_image(self.sets[data][0], fault, primary)
        return self._counted[key]

    def outcomes(self, row: ImageRow) -> list[Outcome]:
        people, others = self.sets[row.data]
        seeds = range(row.draws)
        if row.by == PUBLIC:
            public = others.part(~row.lacks(others)) if row.lacks else others
            setting = Setting.of(people, row.epsilon, public, PUBLIC)
            rows = sent(setting.psi, kept_sums(people, None, None, self.out / "means"))
            return with_public(setting, rows, public, seeds)
        setting = self._setting(row)
        primary = self._judge(row.data) if setting.psi.judged else None
        faults = (None, row.fault) if row.share else (None,)
        if row.by in (COIN, EXAMPLE):
            numbers = [self._numbers(row.data, fault, primary) for fault in faults]
            drawn = by_coin if row.by == COIN else by_example
            return drawn(setting, numbers[0], numbers[-1], row.share, seeds)
        sums = [kept_sums(people, fault, primary, self.out / "means") for fault in faults]
        if row.by == ACCURACY:
            return by_accuracy(setting, sums[0], sums[-1], row.share, seeds)
        clean, faulty = sent(setting.psi, sums[0]), sent(setting.psi, sums[-1])
        if row.by == TWICE:
            return [said(setting, faulty, clean, seed) for seed in seeds]
        return [planted(setting, clean, faulty, row.share, seed) for seed in seeds]

    def kept(self, part: str) -> list[Counted]:
        """What was counted before is not counted again."""
        path = self.out / f"{part}.json"
        lines = [Counted(**line) for line in files.json_in(path)] if path.exists() else []
        there = {line.key for line in lines}
        for row in rows_of(part):
            if row.key in there:
                continue
            since = time.monotonic()
            lines.append(Counted.of(row, self.outcomes(row)))
            files.write(path, json.dumps([dataclasses.asdict(line) for line in lines], indent=1))
            words = f"{row.data}, {row.by}, {row.fault.name}, epsilon {row.epsilon:g}"
            self.say(f"{words}: {row.draws} draws in {time.monotonic() - since:.0f} s")
        return lines
