"""What do private users have that a public set lacks? One look at them, held against images that anybody may see (T6).

The public side has no noise, and its guarantee costs nothing. Which public images to weight, and which to collect, is
read off the same release.
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from fedlens.ledger import guarantee
from fedlens.media.images import exhibits, findings, tracing
from fedlens.media.images.exhibits import Picture, Weights
from fedlens.media.images.findings import Seen
from fedlens.media.images.looks import Look
from fedlens.media.images.public import PublicSet
from fedlens.media.images.samples import Samples
from fedlens.models.looks import resembling
from fedlens.models.looks.psi import LABELS, Psi, even
from fedlens.models.looks.two_sample import Block, Group
from fedlens.report import comparison
from fedlens.report.comparison import by_place, number
from fedlens.report.report import Report
from fedlens.report.values import TableRow

PUBLIC = "public"
Z = 1.96


def report_of(
    look: Look, samples: Samples, public: PublicSet, *, warnings: tuple[str, ...] = (), **about: Any
) -> Report:
    """`about` is what every report is told with; what goes with pairs of groups alone is not for this one."""
    psi, private = look.release.psi, Group.of(look.release)
    both = Seen(
        psi=psi,
        groups=(private, beside(private, psi, sent(psi, public))),
        labels=(look.label, PUBLIC),
        images=public.images[torch.randperm(len(public.images), generator=torch.Generator().manual_seed(0))],
        alike=True,
    )
    judged = both.judged
    means = {name: both.groups[1].blocks[name].mean for name in psi.varying}
    weights = resembling.weighted(look.release, public.images, public.labels, means)
    report = comparison.compared(
        [samples],
        guarantee=guarantee([look.spending], look.delta),
        findings=judged.findings,
        hypotheses=(),
        missed=tuple,
        failures=(),
        exhibits=_exhibits(both, samples, public, weights.weights),
        numbers=_shares(look, public, weights.weights),
        charts=(),
        warnings=warnings,
        **{name: value for name, value in about.items() if name in ("title", "provenance", "before")},
    )
    held = {"run": PUBLIC, "label": PUBLIC, "guarantee": "public by declaration", "public": True}
    return dataclasses.replace(report, verdict=judged.verdict, coverage=judged.missed, runs=(*report.runs, held))


def sent(psi: Psi, public: PublicSet) -> dict[str, np.ndarray]:
    """[units, numbers] by the block: what units of public images would send. How many images they show says how a set
    was collected, and is not compared."""
    owners = torch.arange(len(public.images)) if public.owners is None else public.owners
    rows = tracing.readable_units(psi, public.images, owners)
    if public.labels is not None and LABELS in psi.weights:
        counts = torch.zeros(int(owners.max()) + 1, psi.classes).index_put_(
            (owners, public.labels), torch.ones(len(owners)), accumulate=True
        )
        shares = counts / counts.sum(1, keepdim=True).clamp(min=1)
        rows[LABELS] = torch.stack([even(row) for row in shares]) if psi.several else shares
    return {name: row.double().numpy() for name, row in rows.items()}


def beside(private: Group, psi: Psi, rows: Mapping[str, np.ndarray]) -> Group:
    """Public units, with a mean histogram of labels as long as the private one: units of fewer images are less alike,
    and that is no other share of any class."""
    if psi.several and LABELS in rows:
        length = float(np.linalg.norm(rows[LABELS].mean(0)))
        rows = {**rows, LABELS: rows[LABELS] * (_length(private.blocks[LABELS]) / max(length, 1e-9))}
    return Group.seen(rows)


def _length(block: Block) -> float:
    """Of a mean, without its noise."""
    return math.sqrt(max(0.0, float(block.mean @ block.mean) - block.mean.size * block.noise**2))


def _exhibits(both: Seen, samples: Samples, public: PublicSet, weights: np.ndarray) -> list[Any]:
    most = torch.from_numpy(weights).argsort(descending=True)[: findings.SHOWN]
    shown = Picture.of(public.images[most], run="", label=PUBLIC, file="samples/weighted.png", columns=6)
    return [
        *findings.answers(both),
        *exhibits.exhibited(exhibits.drawn_by([samples], None), ()),
        exhibits.Lacking(pictures=findings.telling(both, findings.pool(samples), (public.images, public.labels))),
        Weights(weights=tuple(weights.round(9).tolist()), pictures=(shown,)),
    ]


def _shares(look: Look, public: PublicSet, weights: np.ndarray) -> list[TableRow]:
    """Of each class: in private, in public, and in public once it is weighted."""
    if public.labels is None or not look.release.psi.classes:
        return []
    private, classes = look.release.shares, look.release.psi.classes
    plain = public.labels.bincount(minlength=classes).double() / len(public.labels)
    after = public.labels.bincount(torch.from_numpy(weights), minlength=classes)
    error = Z * look.release.share_error
    notes = [f"plus or minus {error:.1%}; {float(share):.1%} of the public images once weighted" for share in after]
    return [
        number(f"class {label}", note, by_place([private[label], plain[label]]).values(), digits=4)
        for label, note in enumerate(notes)
    ]
