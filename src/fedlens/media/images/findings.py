"""Two looks at images in, one report out: do the groups differ, in what, why, and what would be missed?

Everything here reads released numbers, samples of what is fitted to them, and public images: it costs no privacy.
"""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from fedlens.ledger import guarantee
from fedlens.media import looked
from fedlens.media.images import differences, exhibits, tracing
from fedlens.media.images.exhibits import Picture
from fedlens.media.images.looks import Look
from fedlens.media.images.samples import Samples
from fedlens.media.looked import Judged
from fedlens.models.classifier import Primary
from fedlens.models.looks import explaining, resembling, two_sample
from fedlens.models.looks.explaining import Candidate, Explanation, Trace
from fedlens.models.looks.psi import LABELS, SIZE, Psi
from fedlens.models.looks.two_sample import LEVEL, Group, Tested, two_groups
from fedlens.report import comparison
from fedlens.report.charts import Chart
from fedlens.report.comparison import Null, by_place
from fedlens.report.report import Report
from fedlens.report.values import TableRow

USUAL, MOST = 16, 64  # images of a unit, where a look does not say how many; and that faults are tried on
TELLING = 512  # images of each group that are looked through for those that differ most
SHOWN = 12  # of the samples that differ most
TRIED = 8  # faults in the ranking
# By the block: what a chart of it shows, what its numbers stand for, and each n-th of them.
CHARTED = {
    "intensity": ("How bright pixels are: the share of each range.", "brightness", 4),
    "spectrum": ("Roots of the shares of coarse and fine structure.", "pixels", 3),
    "direction": ("Roots of the shares of edges by their direction.", "degrees", 3),
}
Pool = tuple[torch.Tensor, torch.Tensor | None]  # images, with their classes where they are known


@dataclasses.dataclass(frozen=True, kw_only=True)
class Seen:
    """Two groups by what was released of them, and what explains their difference."""

    psi: Psi
    groups: tuple[Group, Group]
    labels: tuple[str, str]
    images: torch.Tensor = dataclasses.field(repr=False)  # that faults are tried on
    alike: bool  # whether these were named as being like the second group's, and do not only stand in

    @functools.cached_property
    def tried(self) -> tracing.Tried:
        return tracing.Tried(self.psi, self.images, together(self.psi, self.groups))

    @functools.cached_property
    def traces(self) -> tuple[Trace, ...]:
        """By the blocks that both groups have: of public images, not all are known."""
        there = self.groups[0].blocks.keys() & self.groups[1].blocks.keys()
        every = (*self.tried.traces(), *tracing.of_labels(self.psi, self.groups))
        return tuple(trace for trace in (one.within(there) for one in every) if trace.moves)

    @functools.cached_property
    def tested(self) -> Tested:
        there = self.groups[0].blocks.keys() & self.groups[1].blocks.keys()
        views = {name: rows for name, rows in self.psi.views.items() if name in there}
        shared = tracing.of_labels(self.psi, self.groups, fitted=False)
        along = tracing.directions([one.within(there) for one in (*self.tried.traces(), *shared)])
        return two_groups(self.groups, views, along)

    @functools.cached_property
    def explanation(self) -> Explanation:
        return tracing.explanation(self.tested, self.traces, self.tried, self.misfit)

    @property
    def misfit(self) -> float:
        return explaining.MISFIT if self.alike else explaining.STANDING_IN

    @functools.cached_property
    def judged(self) -> Judged:
        names = looked.significant(self.tested)
        return Judged(
            tested=self.tested,
            explanation=self.explanation,
            labels=self.labels,
            sentences=tuple(differences.in_words(self.psi, self.tested, name) for name in names),
            traces=self.traces,
            missed=looked.missed(self.traces, self.tested),
            tells=self.tells,
        )

    def tells(self, candidate: Candidate) -> str:
        """ "turned by 29 degrees (25 to 33), on 48% of the units of low (40% to 56%)" """
        joined = "in" if candidate.kind == tracing.CLASS_SHARE else "on"
        return f"{self.fault(candidate)}, {joined} {self.share(candidate)}"

    def fault(self, candidate: Candidate) -> str:
        trace = next((trace for trace in self.traces if trace.kind == candidate.kind), None)
        if not trace or not trace.ordered or candidate.interval[0] == candidate.interval[1]:
            return candidate.summary
        low, high = (trace.figure(end[0]) for end in candidate.interval)
        return f"{candidate.summary} ({low} to {high})"

    def share(self, candidate: Candidate) -> str:
        """Of the units of the group that is hit more, beyond those of the other; shares of a class are of all."""
        low, high = sorted(map(abs, candidate.share_interval))
        where = self.labels[0 if candidate.share > 0 else 1]
        if candidate.kind == tracing.CLASS_SHARE:
            return where
        return f"{abs(candidate.share):.0%} of the units of {where} ({low:.0%} to {high:.0%})"


def together(psi: Psi, groups: Sequence[Group]) -> int:
    """About how many images a unit shows, as the looks say themselves."""
    if not psi.several:
        return 1
    shares = np.mean([group.blocks[SIZE].mean for group in groups if SIZE in group.blocks], axis=0).clip(min=0)
    middles = np.minimum(1.5 * 2.0 ** np.arange(len(shares)), psi.examples)
    whole = float(shares.sum())
    return max(1, min(round(float(shares @ middles) / whole) if whole > 0.2 else USUAL, MOST))


def seen(looks: Sequence[Look], samples: Sequence[Samples], public: torch.Tensor | None) -> Seen:
    left, right = looks
    two_sample.check_alike(left.release.psi, right.release.psi)
    drawn = samples[-1].images[: tracing.TRIED_ON].nan_to_num(0, 1, -1)
    return Seen(
        psi=right.release.psi,
        groups=(Group.of(left.release), Group.of(right.release)),
        labels=(left.label, right.label),
        images=resembling.standing_in(right.release, drawn, tracing.TRIED_ON) if public is None else public,
        alike=public is not None,
    )


def report_of(
    looks: Sequence[Look],
    samples: Sequence[Samples],
    *,
    primary: Primary | None = None,
    public: torch.Tensor | None = None,
    coverage: bool = True,
    kinds: Sequence[str] = (),
    glimpses: Sequence[Samples] = (),
    warnings: tuple[str, ...] = (),
    null: Null | None = None,
    **about: Any,
) -> Report:
    """The first look is at the suspicious group, the second at the healthy one; `samples` are of what was fitted.

    `public` images look like those of the groups, if there are any; else others stand in. Functions of one's own
    (`kinds`) are no families, and are not tried.
    """
    if null is not None:
        raise ValueError("Expected no null: the noise of looks is known, and no models are trained to learn it.")
    both = seen(looks, samples, public)
    judged = both.judged
    report = comparison.compared(
        samples,
        guarantee=guarantee([look.spending for look in looks], max(look.delta for look in looks)),
        findings=judged.findings,
        hypotheses=(),
        missed=tuple,
        failures=(),
        exhibits=_exhibits(both, samples, primary),
        numbers=(),
        charts=_charts(both),
        warnings=(*warnings, *_warnings(both, kinds)),
        **about,
    )
    return dataclasses.replace(report, verdict=judged.verdict, coverage=judged.missed if coverage else ())


def _warnings(both: Seen, kinds: Sequence[str]) -> list[str]:
    own = [f"functions of one's own are not tried on looks: {', '.join(kinds)}"] if kinds else []
    if both.alike:
        return own
    return [
        *own,
        "no public images that look alike were named (look.public): faults were tried on images that stand in, so"
        " their amounts and shares may be off",
    ]


def _blocks(both: Seen) -> tuple[TableRow, ...]:
    """Every block with the clearest that can be read off it, whether it differs or not; the clearest block first."""
    return tuple(
        {
            "block": row.name,
            "words": differences.in_words(both.psi, both.tested, row.name),
            "p": float(f"{row.adjusted:.3g}"),
            "differs": row.adjusted <= LEVEL,
            "size": round(row.size, 4),
            "error": round(row.error, 4),
        }
        for row in both.tested.differences
    )


def _charts(both: Seen) -> tuple[Chart, ...]:
    return tuple(_chart(both, name, *about) for name, about in CHARTED.items())


def _chart(both: Seen, name: str, lead: str, axis: str, every: int) -> Chart:
    lines = differences.numbers(both.psi, name)
    values, bands = [], []
    for group in both.groups:
        block = group.blocks[name]
        levels = np.array([one.start + one.weights @ block.mean for one in lines])
        reach = np.array([np.linalg.norm(one.weights) for one in lines]) * float(
            np.hypot(block.noise, block.spread**0.5)
        )
        shown = levels.clip(0, 1)
        ends = ((levels - differences.Z * reach).clip(0, 1), (levels + differences.Z * reach).clip(0, 1))
        values.append(tuple(shown.round(5).tolist()))
        bands.append(tuple(zip(ends[0].round(5).tolist(), ends[1].round(5).tolist(), strict=True)))
    return Chart(
        title=name.capitalize(),
        lead=f"{lead} Bands are 95% intervals, for noise and for who the units are.",
        axis=axis,
        categories=tuple(one.place for one in lines),
        every=every,
        bands=tuple(bands),
        **by_place(values),
    )


def _exhibits(both: Seen, samples: Sequence[Samples], primary: Primary | None) -> list[Any]:
    asked = primary if primary and primary.side == both.psi.body.side else None
    drawn = pool(*samples)
    return [
        *answers(both),
        *exhibits.exhibited(exhibits.drawn_by(samples, asked), ()),
        exhibits.Telling(pictures=telling(both, drawn, drawn)),
    ]


def answers(both: Seen) -> list[Any]:
    """In what they differ, where, and why."""
    blocks = [group.blocks["picture"] for group in both.groups]
    pictures = [differences.mean_picture(both.psi, block) for block in blocks]
    pictures.append(differences.clear_difference(both.psi, both.tested))
    labels = (*both.labels, "difference, grey where chance may have made it")
    means = tuple(
        Picture.of(picture, run="", label=label, file=f"samples/released-{name}.png")
        for picture, label, name in zip(pictures, labels, ("left", "right", "difference"), strict=True)
    )
    return [
        exhibits.Differences(rows=_blocks(both)),
        exhibits.MeansApart(pictures=means),
        exhibits.Explanations(rows=_ranking(both)),
    ]


def telling(both: Seen, left: Pool, right: Pool) -> tuple[Picture, ...]:
    """Those on the left that lie furthest along the difference, and those on the right that lie furthest against it."""
    ends = (("left", left, True), ("right", right, False))
    chosen = [pool[0][witness(both, *pool).argsort(descending=along)[:SHOWN]] for _, pool, along in ends]
    return tuple(
        Picture.of(images, run="", label=label, file=f"samples/telling-{name}.png", columns=6)
        for (name, *_), images, label in zip(ends, chosen, both.labels, strict=True)
    )


def witness(both: Seen, images: torch.Tensor, classes: torch.Tensor | None) -> torch.Tensor:
    """How far each image lies along the difference, over readable blocks and, where they are known, labels."""
    rows = {name: both.psi.around(name, each) for name, each in resembling.per_image(images, both.psi.varying).items()}
    if classes is not None and LABELS in both.tested.blocks:
        rows[LABELS] = F.one_hot(classes, both.psi.classes).double()
    scores = torch.zeros(len(images), dtype=torch.double)
    for name, each in rows.items():
        row = both.tested.named(name)
        scores += each @ torch.from_numpy(row.clear / max(row.error, 1e-9))
    return scores


def pool(*groups: Samples) -> Pool:
    """What groups drew, with the classes of all or of none."""
    known = [group.classes[:TELLING] for group in groups if group.classes is not None]
    images = torch.cat([group.images[:TELLING] for group in groups]).nan_to_num(0, 1, -1)
    return images, torch.cat(known) if len(known) == len(groups) else None


def _ranking(both: Seen) -> tuple[TableRow, ...]:
    return tuple(
        {
            "kind": one.kind,
            "summary": both.fault(one),
            "units": both.share(one),
            "weight": round(one.weight, 4),
            "share": round(one.share, 3),
            "amount": list(one.amount),
            "interval": [list(end) for end in one.interval],
            "explains": round(one.explains, 4),
            "left_p": float(f"{one.left_p:.3g}"),
            "named": one is both.judged.named,
        }
        for one in both.explanation.fits[:TRIED]
    )
