"""Two looks at images in, one report out: do the groups differ, in what, why, and what would be missed?

Everything here reads released numbers, samples of what is fitted to them, and public images: it costs no privacy.
"""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from fedlens.ledger import guarantee
from fedlens.media import looked
from fedlens.media.images import differences, exhibits, tracing
from fedlens.media.images.exhibits import Picture
from fedlens.media.images.looks import Look
from fedlens.media.images.samples import Samples
from fedlens.media.looked import Judged
from fedlens.models.classifier import Primary
from fedlens.models.looks import explaining, resembling
from fedlens.models.looks.explaining import Candidate, Explanation, Trace
from fedlens.models.looks.psi import SIZE, Psi
from fedlens.models.looks.two_sample import LEVEL, Group, Tested, two_groups
from fedlens.report import comparison
from fedlens.report.charts import Chart
from fedlens.report.comparison import by_place
from fedlens.report.report import Report
from fedlens.report.values import TableRow

SHOWN = 12  # of the samples that differ most
TRIED = 8  # faults in the ranking
CHARTED = {
    "intensity": "How bright pixels are: the share of each range, from black to white.",
    "spectrum": "Roots of the shares of coarse and fine structure.",
    "direction": "Roots of the shares of edges by their direction, from level to level again.",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Seen:
    """Two groups by their looks, and what explains their difference."""

    looks: tuple[Look, Look]
    images: torch.Tensor = dataclasses.field(repr=False)  # that faults are tried on
    public: bool  # whether these were named as being alike, and do not only stand in

    @property
    def psi(self) -> Psi:
        return self.looks[0].release.psi

    @functools.cached_property
    def groups(self) -> tuple[Group, Group]:
        left, right = (Group.of(look.release) for look in self.looks)
        return left, right

    @functools.cached_property
    def tried(self) -> tracing.Tried:
        return tracing.Tried(self.psi, self.images, _together(self.psi, self.groups))

    @functools.cached_property
    def traces(self) -> tuple[Trace, ...]:
        return (*self.tried.traces(), *tracing.of_labels(self.psi, self.groups))

    @functools.cached_property
    def tested(self) -> Tested:
        return two_groups(self.groups, self.psi.views, tracing.directions(self.traces))

    @functools.cached_property
    def explanation(self) -> Explanation:
        """Of single faults; where none is named, of any two of the best as well."""
        misfit = explaining.MISFIT if self.public else explaining.STANDING_IN
        alone = explaining.explained(self.tested, self.traces, misfit)
        if alone.named or not self.tested.differ:
            return alone
        both = self.tried.compositions(alone.fits)
        return explaining.explained(self.tested, [*self.traces, *both], misfit)

    @functools.cached_property
    def judged(self) -> Judged:
        names = looked.significant(self.tested)
        return Judged(
            tested=self.tested,
            explanation=self.explanation,
            labels=(self.looks[0].label, self.looks[1].label),
            sentences=tuple(differences.in_words(self.psi, self.tested, name) for name in names),
            traces=self.traces,
            missed=looked.missed(self.traces, self.tested),
            tells=self.tells,
        )

    def tells(self, candidate: Candidate) -> str:
        """ "turned by 29 degrees (25 to 33), on 48% of the units of low (40% to 56%)" """
        return f"{self.fault(candidate)}, on {self.share(candidate)}"

    def fault(self, candidate: Candidate) -> str:
        trace = next((trace for trace in self.traces if trace.kind == candidate.kind), None)
        if not trace or not trace.ordered or candidate.interval[0] == candidate.interval[1]:
            return candidate.summary
        low, high = (trace.figure(end[0]) for end in candidate.interval)
        return f"{candidate.summary} ({low} to {high})"

    def share(self, candidate: Candidate) -> str:
        """Of the units of the group that is hit more, beyond those of the other."""
        low, high = sorted(map(abs, candidate.share_interval))
        where = self.looks[0 if candidate.share > 0 else 1].label
        return f"{abs(candidate.share):.0%} of the units of {where} ({low:.0%} to {high:.0%})"


def _together(psi: Psi, groups: Sequence[Group]) -> int:
    """About how many images a unit shows, as the looks say themselves."""
    if not psi.several:
        return 1
    shares = np.mean([group.blocks[SIZE].mean for group in groups], axis=0).clip(min=0)
    middles = np.minimum(1.5 * 2.0 ** np.arange(len(shares)), psi.examples)
    whole = float(shares.sum())
    return max(1, min(round(float(shares @ middles) / whole) if whole > 0.2 else 16, 64))


def seen(looks: Sequence[Look], samples: Sequence[Samples], public: torch.Tensor | None) -> Seen:
    left, right = looks
    if public is not None and public.shape[1:] != samples[-1].images.shape[1:]:
        raise ValueError("Expected public images of the size and the channels of the looks.")
    drawn = samples[-1].images[: tracing.TRIED_ON].nan_to_num(0, 1, -1)
    images = public if public is not None else resembling.standing_in(right.release, drawn, tracing.TRIED_ON)
    return Seen(looks=(left, right), images=images, public=public is not None)


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
    **about: Any,
) -> Report:
    """The first look is at the suspicious group, the second at the healthy one; `samples` are of what was fitted.

    `public` images look like those of the groups, if there are any; else others stand in. Functions of one's own
    (`kinds`) are no families, and are not tried.
    """
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
    if both.public:
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
    return tuple(_chart(both, name, lead) for name, lead in CHARTED.items())


def _chart(both: Seen, name: str, lead: str) -> Chart:
    told = differences.numbers(both.psi, name)
    values, bands = [], []
    for group in both.groups:
        block = group.blocks[name]
        levels = np.array([one.start + one.weights @ block.mean for one in told])
        reach = np.array([np.linalg.norm(one.weights) for one in told]) * float(
            np.hypot(block.noise, block.spread**0.5)
        )
        shown = levels.clip(0, 1)
        ends = ((levels - differences.Z * reach).clip(0, 1), (levels + differences.Z * reach).clip(0, 1))
        values.append(tuple(shown.round(5).tolist()))
        bands.append(tuple(zip(ends[0].round(5).tolist(), ends[1].round(5).tolist(), strict=True)))
    return Chart(
        title=name.capitalize(),
        lead=f"{lead} Bands are 95% intervals, for noise and for who the units are.",
        axis=name,
        categories=tuple(str(at + 1) for at in range(len(told))),
        bands=tuple(bands),
        **by_place(values),
    )


def _exhibits(both: Seen, samples: Sequence[Samples], primary: Primary | None) -> list[Any]:
    asked = primary if primary and primary.side == both.psi.body.side else None
    blocks = [group.blocks["picture"] for group in both.groups]
    pictures = [differences.mean_picture(both.psi, block) for block in blocks]
    pictures.append(differences.clear_difference(both.psi, both.tested))
    labels = (*(look.label for look in both.looks), "difference, grey where chance may have made it")
    means = tuple(
        Picture.of(picture, run="", label=label, file=f"samples/released-{name}.png")
        for picture, label, name in zip(pictures, labels, ("left", "right", "difference"), strict=True)
    )
    return [
        exhibits.Differences(rows=_blocks(both)),
        exhibits.Released(pictures=means),
        exhibits.Explanations(rows=_ranking(both)),
        *exhibits.exhibited(exhibits.drawn_by(samples, asked), ()),
        exhibits.Telling(pictures=_telling(both, samples)),
    ]


def _telling(both: Seen, samples: Sequence[Samples]) -> tuple[Picture, ...]:
    """The samples that lie furthest along the difference and against it: the witness, over readable blocks."""
    images = torch.cat([group.images[:512] for group in samples]).nan_to_num(0, 1, -1)
    rows = resembling.per_image(images, both.psi.varying)
    scores = torch.zeros(len(images), dtype=torch.double)
    for name, each in rows.items():
        row = both.tested.named(name)
        scores += both.psi.around(name, each) @ torch.from_numpy(row.clear / max(row.error, 1e-9))
    order = scores.argsort(descending=True)
    ends = {"left": order[:SHOWN], "right": order.flip(0)[:SHOWN]}
    return tuple(
        Picture.of(images[places], run="", label=look.label, file=f"samples/telling-{name}.png", columns=6)
        for (name, places), look in zip(ends.items(), both.looks, strict=True)
    )


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
