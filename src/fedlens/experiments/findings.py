"""What do two looks say about two groups: do they differ, and which fault explains it? On data that may be seen.

Nothing is trained. What each user would send is computed once; a draw deals users to two groups, plants a fault in one
of them, adds up what is sent, and adds noise as the plan of a real recipe says.
"""

import dataclasses
import functools
import itertools
import json
import math
import pathlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from fedlens.core import arrayfiles, files
from fedlens.experiments.drawing import markdown
from fedlens.media.images import families, tracing
from fedlens.media.images.faults import FAULTS
from fedlens.models.classifier import ConvClassifier, Primary
from fedlens.models.looks import explaining, two_sample
from fedlens.models.looks.explaining import Explanation, Trace
from fedlens.models.looks.fitting import Release
from fedlens.models.looks.psi import BODY, LABELS, SIZE, TOGETHER, Psi, even, size_of
from fedlens.models.looks.shapes import strokes
from fedlens.models.looks.statistics import READABLE, sizes
from fedlens.models.looks.two_sample import COUNT, Group
from fedlens.recipes.recipe import Recipe
from fedlens.recipes.stages import TRAIN

Change = Callable[[torch.Tensor], torch.Tensor]
Rows = Mapping[str, np.ndarray]  # [users, numbers] by the block
SHOWN = 128  # of a user's images, as in a look
DEALT = 600  # made-up users
DELTA = 1e-5
DRAWS = 20
EPSILONS = (1.0, 0.5, 0.25)
RARE = 0.1  # of the users of a group
LOW, HIGH = 0.3, 0.7  # of the users, by the accuracy of a classifier
KEPT = 0.8  # of them, in each draw


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


def dealt(name: str, images: np.ndarray, labels: np.ndarray, users: int) -> People:
    owners = np.random.default_rng(0).permutation(len(images)) % users
    return People(name=name, images=images, labels=labels, owners=owners)


def writers(folder: pathlib.Path, split: str) -> People:
    """Of MNIST, as they are: those of `train`, or the others of `test`."""
    names = [f"{column}_{split}" for column in ("x", "y", "writer")]
    images, labels, owners = _arrays(folder / "mnist_by_writer.npz", names)
    whose = np.unique(owners, return_inverse=True)[1]
    return People(name="writers", images=images.reshape(-1, 28, 28), labels=labels.astype(int), owners=whose)


def fashion(folder: pathlib.Path, split: str) -> People:
    images, labels = _arrays(folder / "fashion_mnist.npz", [f"x_{split}", f"y_{split}"])
    return dealt("fashion", images.reshape(-1, 28, 28), labels.astype(int), DEALT)


def digits(folder: pathlib.Path) -> People:
    """The writers' images, dealt to made-up users."""
    known = writers(folder, "train")
    return dealt("digits, dealt", known.images, known.labels, DEALT)


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


def means(people: People, fault: Planted | None, cache: pathlib.Path) -> dict[str, np.ndarray]:
    """[users, numbers] by the readable block: means over each user's images, whatever a look counts them from."""
    changed = fault is not None and fault.change is not None
    path = cache / f"{people.name}-{fault.name if fault and changed else 'clean'}.npz".replace(" ", "_")
    if path.exists():
        names = list(READABLE)
        return dict(zip(names, _arrays(path, names), strict=True))
    places = people.shown[people.shown >= 0]
    whose = torch.from_numpy(np.repeat(np.arange(len(people.shown)), (people.shown >= 0).sum(1)))
    counts = whose.bincount()[:, None]
    sums = {name: torch.zeros(len(people.shown), size).double() for name, size in sizes(people.side, 1).items()}
    for at in range(0, len(places), TOGETHER):
        images = torch.from_numpy(people.images[places[at : at + TOGETHER]]).float()[:, None] / 127.5 - 1
        images = fault.change(images) if fault and fault.change else images
        for name, total in sums.items():
            total.index_add_(0, whose[at : at + TOGETHER], READABLE[name](images).double())
    rows = {name: (total / counts).numpy() for name, total in sums.items()}
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, **rows)  # type: ignore[arg-type]  # numpy's stubs think of its other argument
    return rows


def sent(psi: Psi, people: People, fault: Planted | None, cache: pathlib.Path) -> dict[str, np.ndarray]:
    """[users, numbers] by the block, but for the body: what psi makes of them, in units of its weights."""
    held = people.shown >= 0
    there = torch.ones(len(held), dtype=torch.double)
    rows = psi.readable_of({n: torch.from_numpy(m) for n, m in means(people, fault, cache).items()}, there)
    if psi.classes:
        labels = torch.from_numpy(people.labels[people.shown.clip(0)])
        labels = fault.labels(labels) if fault and fault.labels else labels
        counts = (F.one_hot(labels, psi.classes) * torch.from_numpy(held)[..., None]).sum(1).double()
        rows[LABELS] = torch.stack([even(row) for row in counts])
    rows[SIZE] = torch.stack([size_of(torch.from_numpy(row).float()) for row in held]).double()
    rows[COUNT] = there[:, None]
    return {name: (block * psi.weights[name]).numpy() for name, block in rows.items()}


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
    def of(cls, people: People, epsilon: float, public: People) -> "Setting":
        """`public` are others' images, which look alike."""
        recipe = _recipe(people, epsilon)
        psi: Psi = recipe.medium.network(recipe)
        picked = np.random.default_rng(5).permutation(len(public.images))[: tracing.TRIED_ON]
        images = torch.from_numpy(public.images[picked]).float()[:, None] / 127.5 - 1
        each = round(float(np.median((people.shown >= 0).sum(1))))
        noise = float(recipe.plans[TRAIN].stddev)
        return cls(people=people, psi=psi, noise=noise, tried=tracing.Tried(psi, images, each))


def _recipe(people: People, epsilon: float) -> Recipe:
    """Two groups by an attribute, each at most half of all."""
    users = len(people.shown)
    group = {"by": "attribute", "attribute": "release"}
    return Recipe.validated(
        {
            "name": "findings",
            "task": "T4",
            "algorithm": "look",
            "side": people.side,
            "data": {"source": "npz", "path": "users.npz", "attributes": ["release"]},
            "selections": {"new": group | {"values": [1]}, "old": group | {"values": [0]}},
            "privacy": {"epsilon": epsilon, "delta": DELTA, "units": -(-users // 2), "population": users},
            "model": {"classes": int(people.labels.max()) + 1 if people.labels.any() else 0},
        },
        [],
    )


def said(setting: Setting, left: Mapping[str, np.ndarray], right: Mapping[str, np.ndarray], seed: int) -> Outcome:
    """Of two groups' rows, with fresh noise."""
    rng = np.random.default_rng([seed, 7])
    releases = [released(setting.psi, rows, setting.noise, rng) for rows in (left, right)]
    groups = Group.of(releases[0]), Group.of(releases[1])
    traces = [*setting.traces, *tracing.of_labels(setting.psi, groups)]
    tested = two_sample.two_groups(groups, setting.psi.views, tracing.directions(traces))
    explanation = tracing.explanation(tested, traces, setting.tried, explaining.MISFIT)
    return Outcome(p=tested.p, explanation=explanation)


def planted(setting: Setting, clean: Rows, faulty: Rows, share: float, seed: int) -> Outcome:
    """Users are dealt to two groups of equal size, and a share of the first has the fault."""
    first, second = _halves(len(setting.people.shown), seed)
    hit = round(share * len(first))
    left = {name: np.concatenate([faulty[name][first[:hit]], clean[name][first[hit:]]]) for name in clean}
    return said(setting, left, {name: rows[second] for name, rows in clean.items()}, seed)


def _halves(users: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    order = np.random.default_rng(seed).permutation(users)
    return order[: users // 2], order[users // 2 :]


# Tables


@dataclasses.dataclass(frozen=True, kw_only=True)
class Counted:
    """Some draws of one row, counted."""

    data: str
    fault: str
    epsilon: float
    share: float
    draws: int
    differ: int  # said to
    right: int  # named, with the right amount
    amount: int  # named, with another amount
    wrong: int  # named as something else

    @classmethod
    def of(cls, outcomes: Sequence[Outcome], fault: Planted, **about: Any) -> "Counted":
        names = Counter(outcome.names(fault) for outcome in outcomes)
        differ = sum(outcome.differ for outcome in outcomes)
        right, amount, wrong = (names[key] for key in ("right", "amount", "wrong"))
        counts: dict[str, Any] = {"differ": differ, "right": right, "amount": amount, "wrong": wrong}
        return cls(fault=fault.name, draws=len(outcomes), **counts, **about)


NO_FAULT = Planted(name="none")


def power(
    people: People, public: People, share: float, epsilons: Sequence[float], cache: pathlib.Path, draws: int = DRAWS
) -> list[Counted]:
    """How often each fault is found and named."""
    lines = []
    for epsilon in epsilons:
        setting = Setting.of(people, epsilon, public)
        clean = sent(setting.psi, people, None, cache)
        for fault in (*LISTED, *UNLISTED):
            faulty = sent(setting.psi, people, fault, cache)
            outcomes = [planted(setting, clean, faulty, share, seed) for seed in range(draws)]
            lines.append(Counted.of(outcomes, fault, data=people.name, epsilon=epsilon, share=share))
    return lines


def clean_splits(people: People, public: People, epsilon: float, cache: pathlib.Path, draws: int) -> Counted:
    """Users are dealt to two groups, and nothing is wrong with anybody."""
    setting = Setting.of(people, epsilon, public)
    clean = sent(setting.psi, people, None, cache)
    outcomes = [planted(setting, clean, clean, 0.0, seed) for seed in range(draws)]
    return Counted.of(outcomes, NO_FAULT, data=people.name, epsilon=epsilon, share=0.0)


def judge(public: People) -> Primary:
    """A classifier that is trained on others' images."""
    images = torch.from_numpy(public.images).float()[:, None] / 127.5 - 1
    labels = torch.from_numpy(public.labels)
    network = ConvClassifier(side=public.side, classes=int(labels.max()) + 1, widths=(16, 32))
    return Primary(network, network.fitted(images, labels, seed=0, epochs=3))


def accuracies(people: People, primary: Primary, fault: Planted | None) -> np.ndarray:
    """Of each user's images, the share that is read rightly."""
    places = people.shown[people.shown >= 0]
    whose = np.repeat(np.arange(len(people.shown)), (people.shown >= 0).sum(1))
    right = []
    for part in np.array_split(places, max(1, len(places) // TOGETHER)):
        images = torch.from_numpy(people.images[part]).float()[:, None] / 127.5 - 1
        images = fault.change(images) if fault and fault.change else images
        labels = torch.from_numpy(people.labels[part])
        labels = fault.labels(labels) if fault and fault.labels else labels
        right.append((primary.predictions(images) == labels).numpy())
    return np.bincount(whose, np.concatenate(right)) / np.bincount(whose)


def by_accuracy(
    people: People, public: People, fault: Planted | None, epsilon: float, cache: pathlib.Path, draws: int
) -> Counted:
    """The weakest users against the strongest, with a fault on half of all, or on nobody."""
    setting, primary = Setting.of(people, epsilon, public), judge(public)
    clean, faulty = (sent(setting.psi, people, one, cache) for one in (None, fault))
    plain, hurt = (accuracies(people, primary, one) for one in (None, fault))
    outcomes = []
    for seed in range(draws):
        rng = np.random.default_rng([seed, 3])
        there = rng.permutation(len(plain))[: round(KEPT * len(plain))]
        hit = rng.permutation(len(plain)) < (len(plain) // 2 if fault else 0)
        seen = np.where(hit, hurt, plain)[there]
        rows = {name: np.where(hit[:, None], faulty[name], clean[name])[there] for name in clean}
        low, high = seen <= np.quantile(seen, LOW), seen >= np.quantile(seen, HIGH)
        outcomes.append(said(setting, _of(rows, low), _of(rows, high), seed))
    return Counted.of(outcomes, fault or NO_FAULT, data=people.name, epsilon=epsilon, share=0.5 if fault else 0.0)


def _of(rows: Rows, chosen: np.ndarray) -> dict[str, np.ndarray]:
    return {name: block[chosen] for name, block in rows.items()}


def table(lines: Sequence[Counted]) -> str:
    """One row for each fault and data set; a column for each epsilon: found, named rightly, wrongly."""
    epsilons = sorted({line.epsilon for line in lines}, reverse=True)
    rows: dict[tuple[str, str], dict[float, str]] = {}
    for line in lines:
        cell = f"{line.differ} / {line.right}" + (f" (amount {line.amount})" if line.amount else "")
        cell += f" **wrong {line.wrong}**" if line.wrong else ""
        rows.setdefault((line.data, line.fault), {})[line.epsilon] = cell
    columns = ("data", "fault", *(f"epsilon {epsilon:g}" for epsilon in epsilons))
    return markdown(columns, [[*key, *(cells.get(e, "–") for e in epsilons)] for key, cells in rows.items()])


# All of them


CLEAN_DRAWS = 1000
PLANTED_DRAWS = 20
HARD_TO_READ = ("inverted", "rotated-90", "blurred", "noisy", "dead-band", "shifted")  # by a classifier
PARTS = ("power", "rare", "clean", "accuracy")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ImageBench:
    """Where data lie, and where results go."""

    folder: pathlib.Path
    out: pathlib.Path
    say: Callable[[str], None] = print

    @property
    def cache(self) -> pathlib.Path:
        return self.out / "means"

    @functools.cached_property
    def sets(self) -> dict[str, tuple[People, People]]:
        """Whose images are looked at, and whose are public."""
        others, clothes = writers(self.folder, "test"), fashion(self.folder, "test")
        return {
            "writers": (writers(self.folder, "train"), others),
            "fashion": (fashion(self.folder, "train"), clothes),
            "digits, dealt": (digits(self.folder), others),
            "strokes": (procedural(), others),
        }

    def lines(self, part: str) -> list[Counted]:
        real = [self.sets[name] for name in ("writers", "fashion")]
        if part == "power":
            return [line for pair in real for line in power(*pair, 1.0, EPSILONS, self.cache)]
        if part == "rare":
            return [line for pair in real for line in power(*pair, RARE, (2.0, 1.0), self.cache)]
        if part == "clean":
            return [clean_splits(*pair, 1.0, self.cache, CLEAN_DRAWS) for pair in self.sets.values()]
        clean = [by_accuracy(*pair, None, 1.0, self.cache, CLEAN_DRAWS) for pair in real]
        faults = [fault for fault in LISTED if fault.name in HARD_TO_READ]
        return clean + [by_accuracy(*real[0], fault, 1.0, self.cache, PLANTED_DRAWS) for fault in faults]

    def kept(self, part: str) -> list[Counted]:
        """What was counted before is not counted again."""
        path = self.out / f"{part}.json"
        if not path.exists():
            self.say(f"{part}: minutes on two cores")
            files.write(path, json.dumps([dataclasses.asdict(line) for line in self.lines(part)], indent=1))
        return [Counted(**row) for row in files.json_in(path)]
