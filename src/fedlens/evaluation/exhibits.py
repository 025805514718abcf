"""What a report shows of an evaluation: the table of classifiers and scores, charts, and a picture of neighbours."""

import base64
import dataclasses
import functools
import math
import statistics
from collections.abc import Sequence
from typing import Any, ClassVar

import torch

from fedlens.evaluation import distances
from fedlens.evaluation.protocol import Evaluation, Learnt, Spread
from fedlens.media.images import pictures
from fedlens.privacy import Guarantee
from fedlens.report.charts import Chart
from fedlens.report.exhibits import Exhibit, Piece
from fedlens.report.report import Finding, Report
from fedlens.report.values import TableRow, figure

ROWS = 8  # of synthetic images in the picture
NEAREST = 7  # real ones beside each
COLUMNS = ("accuracy", "calibrated", "trained on real", "kept back", "seconds", "device", "FLOP")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ScoreTable(Exhibit):
    """Everything that was measured, as it also stands in report.json."""

    key: ClassVar[str] = "evaluation"
    columns: ClassVar[tuple[str, ...]] = COLUMNS
    evaluation: Evaluation

    @property
    def piece(self) -> Piece:
        return Piece.of_package(__package__, template="table.html", style="table.css")

    @property
    def features(self) -> str:
        return self.evaluation.features

    @property
    def rows(self) -> list[list[str]]:
        average = self.evaluation.average
        last = [["average", f"{average[0]:.1%}", f"{average[1]:.0%}", "", "", "", "", ""]] if average else []
        return [*(_row(one) for one in self.evaluation.learnt), *last]

    @property
    def scores(self) -> list[tuple[str, str, str]]:
        return [(score.name, str(score.value), figure(score.real)) for score in self.evaluation.scores]

    def content(self) -> dict[str, Any]:
        return self.evaluation.to_dict()


@dataclasses.dataclass(frozen=True, kw_only=True)
class NearestImages(Exhibit):
    """Synthetic images with their nearest real ones: a picture, and no evidence."""

    key: ClassVar[str] = "neighbours"
    file: ClassVar[str] = "neighbours.png"
    png: bytes = dataclasses.field(repr=False)
    distance: float  # of the nearest, on average

    @classmethod
    def of(cls, images: torch.Tensor, real: torch.Tensor) -> "NearestImages":
        """Of the first of these images; in one row with each of them, its nearest, the second nearest and so on."""
        shown = images[:ROWS]
        rows, apart = distances.nearest(shown, real, min(NEAREST, len(real)))
        tiles = torch.cat([shown[:, None], real[rows]], 1)
        png = pictures.png_bytes(tiles.flatten(0, 1), columns=tiles.shape[1])
        return cls(png=png, distance=float(apart[:, 0].mean()))

    @functools.cached_property
    def uri(self) -> str:
        return "data:image/png;base64," + base64.b64encode(self.png).decode("ascii")

    @property
    def piece(self) -> Piece:
        return Piece.of_package(__package__, template="neighbours.html", style="neighbours.css")

    def content(self) -> dict[str, Any]:
        return {"file": self.file, "mean_distance_of_the_nearest": self.distance, "evidence": False}

    def files(self) -> Sequence[tuple[str, bytes]]:
        return ((self.file, self.png),)


def reported(
    evaluation: Evaluation,
    *,
    title: str,
    guarantee: Guarantee | None = None,
    neighbours: NearestImages | None = None,
    provenance: dict[str, str] | None = None,
) -> Report:
    """A page on one evaluation; images without a guarantee are shown as what they are, unprotected."""
    exhibits: tuple[Exhibit, ...] = (ScoreTable(evaluation=evaluation), *([neighbours] if neighbours else []))
    sizes = evaluation.sizes
    return Report(
        title=title,
        findings=(summary(evaluation),),
        guarantee=guarantee or nobody_knows(),
        # Three rows, of which the first two name the groups.
        runs=(
            {"label": "synthetic", "images": sizes["synthetic"]},
            {"label": "real", "images": sizes["train"]},
            {"label": "real, to test with", "images": sizes["test"]},
        ),
        exhibits=exhibits,
        numbers=_numbers(evaluation),
        charts=_charts(evaluation),
        warnings=evaluation.warnings,
        provenance={
            "protocol": _described(evaluation),
            "feature network": f"{evaluation.features}, right on {evaluation.feature_accuracy:.1%} of the test images",
            **(provenance or {}),
        },
    )


def summary(evaluation: Evaluation) -> Finding:
    """The one sentence: of the CNN, or of whichever classifier was asked first."""
    if not evaluation.learnt:
        score = evaluation.score("frechet distance")
        made, real = figure(score.value.mean), figure(score.real)
        text = f"Frechet distance {made} to real test images; that of real training images is {real}."
        return Finding(kind="evaluation", summary=text, score=score.value.mean, severity="low")
    named = [one for one in evaluation.learnt if one.name == "cnn"]
    one = (named or list(evaluation.learnt))[0]
    text = (
        f"A classifier ({one.name}) that was trained on synthetic images names {one.accuracy.mean:.1%} of the real test"
        f" images; trained on real ones, {one.real.mean:.1%}."
    )
    return Finding(kind="evaluation", summary=text, score=one.accuracy.mean, severity="low")


def _described(evaluation: Evaluation) -> str:
    protocol = evaluation.protocol
    return (
        f"{protocol.samples:,} synthetic images of each of {protocol.seeds} seeds, {protocol.validation:.0%} of them"
        f" kept back; networks: {protocol.epochs} epochs, last model, augmentation {protocol.augmentation};"
        f" {evaluation.seconds:,.0f} s in all"
    )


def nobody_knows() -> Guarantee:
    """Of images that carry none."""
    return Guarantee(
        epsilon=math.inf,
        delta=0.0,
        unit="example",
        neighbours="add/remove",
        sampling="unknown: the images carry no guarantee",
        accountant="none",
    )


def _row(one: Learnt) -> list[str]:
    calibrated = "–" if one.calibrated is None else f"{one.calibrated:.0%}"
    flop = "–" if one.cost.flop is None else f"{one.cost.flop:.2g}"
    kept = "–" if one.validation is None else _percent(one.validation)
    seconds = f"{one.cost.seconds:.1f}"
    return [one.name, _percent(one.accuracy), calibrated, _percent(one.real), kept, seconds, one.cost.device, flop]


def _percent(spread: Spread) -> str:
    deviation = "" if spread.deviation is None else f" ± {100 * spread.deviation:.1f}"
    return f"{100 * spread.mean:.1f}{deviation} %"


def _numbers(evaluation: Evaluation) -> tuple[TableRow, ...]:
    """For a terminal, too."""
    learnt = [
        {
            "name": f"{one.name}, accuracy",
            "left": one.accuracy.mean,
            "right": one.real.mean,
            "note": _note(one),
        }
        for one in evaluation.learnt
    ]
    scores = [
        {"name": score.name, "left": score.value.mean, "right": score.real, "note": _deviation(score.value)}
        for score in evaluation.scores
    ]
    return (*learnt, *_average(evaluation), *scores)


def _average(evaluation: Evaluation) -> list[TableRow]:
    average = evaluation.average
    if average is None or len(evaluation.learnt) == 1:
        return []
    real = statistics.fmean(one.real.mean for one in evaluation.learnt)
    return [{"name": "average accuracy", "left": average[0], "right": real, "note": f"calibrated {average[1]:.0%}"}]


def _note(one: Learnt) -> str:
    calibrated = "" if one.calibrated is None else f"calibrated {one.calibrated:.0%}"
    return ", ".join(filter(None, [calibrated, _deviation(one.accuracy), f"{one.cost.seconds:.1f} s"]))


def _deviation(spread: Spread) -> str:
    return "" if spread.deviation is None else f"± {spread.deviation:.3f} over {len(spread.values)} seeds"


def _charts(evaluation: Evaluation) -> tuple[Chart, ...]:
    charts = []
    if len(evaluation.learnt) > 1:
        made, real = [one.accuracy for one in evaluation.learnt], [one.real for one in evaluation.learnt]
        charts.append(
            Chart(
                title="Accuracy on real test images",
                lead="Trained on synthetic images and on real ones; the ribbon is one deviation over seeds.",
                left=tuple(spread.mean for spread in made),
                right=tuple(spread.mean for spread in real),
                categories=tuple(one.name for one in evaluation.learnt),
                bands=(tuple(map(_band, made)), tuple(map(_band, real))),
            )
        )
    counts = evaluation.counts
    named = [count.seen if count.synthetic is None else count.synthetic for count in counts]
    unlabelled = any(count.synthetic is None for count in counts)
    what = "as the feature network sees them" if unlabelled else "as they are labelled"
    charts.append(
        Chart(
            title="Classes",
            lead=f"Synthetic images {what}, and real training images.",
            left=tuple(map(float, named)),
            right=tuple(float(count.real) for count in counts),
            categories=tuple(str(count.label) for count in counts),
        )
    )
    return tuple(charts)


def _band(spread: Spread) -> tuple[float, float]:
    half = spread.deviation or 0.0
    return max(0.0, spread.mean - half), min(1.0, spread.mean + half)
