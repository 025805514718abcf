"""What faults do to the numbers of a look at images: tried on images that everybody may see."""

import dataclasses
import itertools
import math
from collections.abc import Sequence

import numpy as np
import torch

from fedlens.media.images.families import Amount, Family, families
from fedlens.models.looks.explaining import Candidate, Explanation, Trace, explained
from fedlens.models.looks.psi import LABELS, PREDICTED, SIZE, Psi
from fedlens.models.looks.statistics import READABLE
from fedlens.models.looks.two_sample import Directions, Group, Tested, common

TRIED_ON = 512  # images
COMBINED = 4  # families of which any two may have come together
REGION, STEPS = "region", (-2 / 28, -1 / 28, 0.0, 1 / 28, 2 / 28)
REFINED = 2  # faults whose amounts are looked at more closely
FINER = 13  # amounts between two neighbours of the best
ALONE = 0.75  # of a difference: one fault that explains more of it leaves no room for a second
CLASS_SHARE = "class-share"
RARER = 0.01  # how much less likely two faults are than one
CLASS_SHARES = (0.0, 0.02, 0.05, 0.08, 0.1, 0.12, 0.15, 0.2, 0.3, 0.4, 0.6)  # that a class may have
MOST_NUMBERS = 2**26  # of what is tried on labels: half a gigabyte
Moves = dict[str, np.ndarray]


def readable_units(psi: Psi, images: torch.Tensor, owners: torch.Tensor) -> dict[str, torch.Tensor]:
    """[units, numbers] by the readable block: what units of these images send, each block of norm 1 at most."""
    units = int(owners.max()) + 1
    counts = owners.bincount(minlength=units).clamp(min=1)[:, None]
    sums = {name: images.new_zeros(units, psi.shapes[name][0]) for name in psi.varying}
    for part, whose in zip(images.split(TRIED_ON), owners.split(TRIED_ON), strict=True):
        for name, total in sums.items():
            total.index_add_(0, whose, READABLE[name](part))
    return {name: psi.around(name, total / counts) for name, total in sums.items()}


class Tried:
    """Images that stand for those of a group, and what becomes of their numbers."""

    def __init__(self, psi: Psi, images: torch.Tensor, together: int) -> None:
        """`together`: so many of them in a unit."""
        self._psi, self._images = psi, images[:TRIED_ON]
        self._owners = torch.arange(len(self._images)) % max(1, len(self._images) // max(1, together))
        self._plain = self._mean(self._images)
        self._known: dict[tuple[tuple[str, Amount], ...], Moves] = {}

    def _mean(self, images: torch.Tensor) -> Moves:
        rows = readable_units(self._psi, images, self._owners)
        return {name: row.double().mean(0).numpy() for name, row in rows.items()}

    def _move(self, *faults: tuple[Family, Amount]) -> Moves:
        """One after the other; what was tried before is not tried again."""
        key = tuple((family.kind, amount) for family, amount in faults)
        if key not in self._known:
            images = self._images
            for family, amount in faults:
                images = family.change(images, amount)
            changed = self._mean(images)
            self._known[key] = {name: changed[name] - plain for name, plain in self._plain.items()}
        return self._known[key]

    def traces(self) -> list[Trace]:
        """Of every family."""
        return [self._trace(family) for family in families(self._psi.body.channels)]

    def _trace(self, family: Family) -> Trace:
        rows = [(amount, self._move((family, amount))) for amount in family.amounts]
        ordered = len(family.amounts) > 1 and len(family.amounts[0]) == 1
        if family.nothing is not None:
            rows.append(((family.nothing,), {name: np.zeros_like(plain) for name, plain in self._plain.items()}))
        rows = sorted(rows, key=lambda row: row[0]) if ordered else rows
        return Trace(
            kind=family.kind,
            amounts=tuple(amount for amount, _ in rows),
            moves=self._stacked([move for _, move in rows]),
            says=family.says,
            figure=family.figure,
            ordered=ordered,
        )

    def _stacked(self, moves: Sequence[Moves]) -> Moves:
        """Faults of images leave labels alone, and how many images a unit shows.

        Where a model judges, groups may be chosen by that, and differ in both for no other reason.
        """
        whole = {name: np.stack([move[name] for move in moves]) for name in self._plain}
        left_alone = () if self._psi.judged else (LABELS, SIZE)
        same = {name: self._psi.shapes[name][0] for name in left_alone if name in self._psi.weights}
        return whole | {name: np.zeros((len(moves), size)) for name, size in same.items()}

    def refined(self, candidate: Candidate) -> list[Trace]:
        """The same fault, with amounts near the one that does well: tried, and not read off their neighbours."""
        family = next((one for one in families(self._psi.body.channels) if one.kind == candidate.kind), None)
        if family is None or len(family.amounts) == 1:
            return []
        if family.kind == REGION:
            return [self._trace(dataclasses.replace(family, amounts=_nearby(candidate.amount)))]
        if len(family.amounts[0]) > 1:
            return []
        nothing = [] if family.nothing is None else [family.nothing]
        numbers = sorted({*(amount[0] for amount in family.amounts), *nothing})
        at = min(range(len(numbers)), key=lambda place: abs(numbers[place] - candidate.amount[0]))
        ends = numbers[max(0, at - 1)], numbers[min(len(numbers) - 1, at + 1)]
        between = tuple((float(number),) for number in np.linspace(*ends, FINER))
        return [self._trace(dataclasses.replace(family, amounts=between, nothing=None))]

    def compositions(self, candidates: Sequence[Candidate]) -> list[Trace]:
        """One fault after another, of those that do best alone."""
        known = {family.kind: family for family in families(self._psi.body.channels)}
        best = [one for one in candidates if one.kind in known][:COMBINED]
        return [
            self._composition(known[one.kind], one.amount, known[two.kind], two.amount)
            for one, two in itertools.permutations(best, 2)
        ]

    def _composition(self, first: Family, one: Amount, second: Family, two: Amount) -> Trace:
        words = f"{first.says(one)}, then {second.says(two)}"
        return Trace(
            kind=f"{first.kind}+{second.kind}",
            amounts=((*one, *two),),
            moves=self._stacked([self._move((first, one), (second, two))]),
            says=lambda _: words,
            prior=RARER,
        )


def _nearby(rectangle: Amount) -> tuple[Amount, ...]:
    """Any edge but those of the image may lie a little off."""
    *edges, level = rectangle
    steps = STEPS if sum(0 < edge < 1 for edge in edges) <= 2 else STEPS[1:-1]
    moved = [[edge + step for step in steps] if 0 < edge < 1 else [edge] for edge in edges]
    return tuple((*place, level) for place in itertools.product(*moved))


def explanation(tested: Tested, traces: Sequence[Trace], tried: Tried, misfit: float) -> Explanation:
    """Of single faults; where none is named, of amounts between those that were tried, and of any two of the best."""
    alone = explained(tested, traces, misfit)
    if alone.named or not tested.differ or not alone.fits:
        return alone
    finer = [trace for one in alone.fits[:REFINED] for trace in tried.refined(one)]
    if finer:
        again = {trace.kind for trace in finer}
        alone = explained(tested, [*(trace for trace in traces if trace.kind not in again), *finer], misfit)
        if alone.named or not alone.fits:
            return alone
    if alone.fits[0].explains > ALONE:
        return alone
    return explained(tested, [*traces, *tried.compositions(alone.fits)], misfit)


def of_labels(psi: Psi, groups: Sequence[Group], fitted: bool = True) -> list[Trace]:
    """Classes that trade places, and more or fewer of a class: told from what both groups have in common.

    Of groups of which one is swapped and the other not, that is the same when it is swapped. So where they are `fitted`
    and a model judges, whose confusions stand out of the noise, those of the healthy group are swapped.

    Of very many classes not every two are tried, and perhaps no shares: a file's header may say any number. No shares
    either where a model judges: groups may be chosen by that, and some classes are harder to read.
    """
    there = [name for name in (LABELS, PREDICTED) if all(name in group.blocks for group in groups)]
    if not there:
        return []
    level = groups[1:] if fitted and PREDICTED in there else groups
    shown = {name: _level(level, name) for name in there}
    every = list(range(psi.classes))
    neighbours = [label ^ 1 if (label ^ 1) < psi.classes else label for label in every]
    orders: list[tuple[Amount, list[int]]] = [((-1.0, -1.0), neighbours), ((-2.0, -2.0), every[-1:] + every[:-1])]
    still = {name: psi.shapes[name][0] for name in (*psi.varying, SIZE) if name in psi.weights}
    each = sum(row.size for row in shown.values()) + sum(still.values())
    few = math.comb(psi.classes, 2) * each <= MOST_NUMBERS
    for one, other in itertools.combinations(every, 2) if few else ():
        order = every.copy()
        order[one], order[other] = other, one
        orders.append(((float(one), float(other)), order))
    swapped = {name: np.stack([_ordered(row, order) - row for _, order in orders]) for name, row in shown.items()}
    shares = list(shown) == [LABELS] and len(CLASS_SHARES) * psi.classes**2 <= MOST_NUMBERS
    amounts = [(float(label), share) for label in every for share in CLASS_SHARES]
    return [
        Trace(
            kind="labels-swapped",
            amounts=tuple(amount for amount, _ in orders),
            moves=swapped | {name: np.zeros((len(orders), size)) for name, size in still.items()},
            says=_swap_words,
            figure="{:.0f}".format,
        ),
        *([_class_shares(groups[1].blocks[LABELS].mean.clip(min=0), amounts)] if shares else []),
    ]


def _class_shares(healthy: np.ndarray, amounts: Sequence[Amount]) -> Trace:
    """Of images they say nothing: those of a class differ from the rest."""
    return Trace(
        kind=CLASS_SHARE,
        amounts=tuple(amounts),
        moves={LABELS: np.stack([_with_share(healthy, *amount) - healthy for amount in amounts])},
        says=lambda a: f"{'no' if a[1] == 0 else f'{a[1]:.0%} of the'} images are of class {a[0]:.0f}",
        figure="{:.0%}".format,
        shares=(1.0,),
    )


def _level(groups: Sequence[Group], name: str) -> np.ndarray:
    level = common(groups[0].blocks[name], groups[-1].blocks[name])
    return level.clip(min=0)


def _ordered(block: np.ndarray, order: Sequence[int]) -> np.ndarray:
    """Labels are rows, where there are predictions as well."""
    moved: np.ndarray = block.reshape(len(order), -1)[list(order)].flatten()
    return moved


def _with_share(histogram: np.ndarray, label: float, share: float) -> np.ndarray:
    """A class of this share among the others, and the norm as before."""
    others = histogram.copy()
    others[int(label)] = 0.0
    rows = others / max(float(others.sum()), 1e-9) * (1 - share)
    rows[int(label)] = share
    scaled: np.ndarray = rows * (float(np.linalg.norm(histogram)) / max(float(np.linalg.norm(rows)), 1e-9))
    return scaled


def _swap_words(amount: Amount) -> str:
    known = {-1.0: "swapped labels: 0 and 1, 2 and 3, and so on", -2.0: "labels moved on by one"}
    return known.get(amount[0], f"swapped labels: {amount[0]:.0f} and {amount[1]:.0f}")


def directions(tried: Sequence[Trace]) -> Directions:
    """All moves, as rows: where a difference is looked for. Of a block that a fault says nothing about, none.

    Those of shares of a class start from what was released of one group, with its noise: they would find that again.
    """
    tried = [trace for trace in tried if trace.kind != CLASS_SHARE]
    sizes = {name: rows.shape[1] for trace in tried for name, rows in trace.moves.items()}
    rows = {
        name: np.concatenate([trace.moves.get(name, np.zeros((len(trace.amounts), size))) for trace in tried])
        for name, size in sizes.items()
    }
    moves = np.any([np.any(block != 0, axis=1) for block in rows.values()], axis=0) if rows else np.zeros(0, bool)
    return {name: block[moves] for name, block in rows.items()}
