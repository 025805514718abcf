"""What a report shows of synthetic images: grids of them, round by round, and their average."""

import base64
import dataclasses
import functools
import itertools
import json
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from fedlens.media.images import pictures
from fedlens.media.images.samples import Samples
from fedlens.models.classifier import Primary
from fedlens.report.exhibits import Exhibit, Piece, inside
from fedlens.report.values import TableRow

SHOWN = 64
WEIGHTS = "weights.json"
PICTURE_CHARACTERS = 2_500_000  # leaves room for the words: the page stays under 3 MB, so it can be mailed
Placed = tuple["Picture", str | None]  # with the address that carries it in the page, if there is room for it


@dataclasses.dataclass(frozen=True, kw_only=True)
class Picture:
    """Synthetic images of one run at one round, as a PNG file that is also written beside the report.

    `classes` says, tile by tile, what the primary model takes the image for; the reader can filter by it.
    """

    run: str
    label: str
    file: str
    png: bytes = dataclasses.field(repr=False)
    round: int | None = None
    classes: tuple[int, ...] = ()
    columns: int = 8

    def __post_init__(self) -> None:
        if self.columns < 1:
            raise ValueError(f"Expected columns={self.columns} >= 1.")
        inside(self.file)

    @classmethod
    def of(cls, images: torch.Tensor, *, classes: Iterable[int] = (), columns: int = 8, **about: Any) -> "Picture":
        """The sprite of `images` [n, c, h, w] in [-1, 1], with one class for each of them or none at all."""
        taken = tuple(int(name) for name in classes)
        if taken and len(taken) != len(images):
            raise ValueError("Expected one class for each image, or none at all.")
        return cls(png=pictures.png_bytes(images, columns=columns), classes=taken, columns=columns, **about)

    @functools.cached_property
    def uri(self) -> str:
        """An address that a page can carry inside itself."""
        return "data:image/png;base64," + base64.b64encode(self.png).decode("ascii")

    @property
    def width(self) -> int:
        """In pixels, as the header of a PNG file says."""
        return int.from_bytes(self.png[16:20], "big")

    def to_dict(self) -> dict[str, Any]:
        return {"run": self.run, "label": self.label, "file": self.file, "round": self.round}


@dataclasses.dataclass(frozen=True, kw_only=True)
class _OfPictures(Exhibit):
    pictures: tuple[Picture, ...]

    def content(self) -> list[dict[str, Any]]:
        return [picture.to_dict() for picture in self.pictures]

    def files(self) -> list[tuple[str, bytes]]:
        return [(picture.file, picture.png) for picture in self.pictures]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Grids(_OfPictures):
    """The pictures of each group, round by round, as many of them as the page has room for."""

    key = "images"
    gutter = pictures.GUTTER
    room: int = PICTURE_CHARACTERS

    @property
    def piece(self) -> Piece:
        return Piece.of_package(__package__, template="grids.html", style="grids.css", script="grids.js")

    @property
    def widest(self) -> int:
        return max(picture.width for picture in self.pictures) or 1

    @functools.cached_property
    def grids(self) -> list[list[Placed]]:
        """For each group its pictures, round by round; without an address where even the last rounds have no room.

        Rounds in the middle go first, evenly: where a model began and where it ended matter most.
        """
        whole = self._by_group()
        for most in range(max(map(len, whole)), 0, -1):
            thinned = [_spaced(group, most) for group in whole]
            if sum(len(picture.uri) for group in thinned for picture in group) <= self.room:
                return [[(picture, picture.uri) for picture in group] for group in thinned]
        last = [group[-1] for group in whole]
        totals = itertools.accumulate(len(picture.uri) for picture in last)
        return [
            [(picture, picture.uri if total <= self.room else None)]
            for picture, total in zip(last, totals, strict=True)
        ]

    @property
    def left_out(self) -> list[int]:
        """The rounds of which no group's picture is in the page."""
        return sorted(_rounds(self.pictures) - _rounds(picture for grid in self.grids for picture, _ in grid))

    def _by_group(self) -> list[list[Picture]]:
        groups: dict[tuple[str, ...], list[Picture]] = {}
        for picture in self.pictures:
            alone = () if picture.round is not None else (picture.file,)
            groups.setdefault((picture.run, picture.label, *alone), []).append(picture)
        return [sorted(group, key=lambda picture: picture.round or 0) for group in groups.values()]


class Means(_OfPictures):
    """The average image of each group; of two groups also their difference."""

    key = "means"

    @property
    def piece(self) -> Piece:
        return Piece.of_package(__package__, template="means.html", style="means.css")


class MeansApart(_OfPictures):
    """The mean image of each of two looks, and what of their difference chance does not make."""

    key = "released"

    @property
    def piece(self) -> Piece:
        return Piece.of_package(__package__, template="released.html", style="means.css")


class Telling(_OfPictures):
    """The samples that lie furthest on either side of what two looks differ by."""

    key = "telling"

    @property
    def piece(self) -> Piece:
        return Piece.of_package(__package__, template="telling.html", style="telling.css")


class Lacking(_OfPictures):
    """Samples of what a public set lacks, and what it has that private users have not."""

    key = "lacking"

    @property
    def piece(self) -> Piece:
        return Piece.of_package(__package__, template="lacking.html", style="telling.css")


@dataclasses.dataclass(frozen=True, kw_only=True)
class _OfRows(Exhibit):
    rows: tuple[TableRow, ...]

    def content(self) -> list[TableRow]:
        return list(self.rows)


class Differences(_OfRows):
    """What two looks differ by, block by block, in words."""

    key = "differences"

    @property
    def piece(self) -> Piece:
        return Piece.of_package(__package__, template="differences.html", style="fits.css")

    def lines(self) -> list[str]:
        return [f"{'differs' if row['differs'] else 'alike'}: {row['words']} (p = {row['p']:g})" for row in self.rows]


class Explanations(_OfRows):
    """Which faults were fitted to a difference, the likeliest first."""

    key = "explanations"

    @property
    def piece(self) -> Piece:
        return Piece.of_package(__package__, template="explanations.html", style="fits.css")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Weights(Exhibit):
    """How much each public image should count to look like private ones, and those that count most."""

    key = "weights"
    weights: tuple[float, ...]
    pictures: tuple[Picture, ...]

    @property
    def effective(self) -> float:
        return 1 / sum(weight**2 for weight in self.weights)

    @property
    def piece(self) -> Piece:
        return Piece.of_package(__package__, template="weights.html", style="telling.css")

    def content(self) -> dict[str, Any]:
        return {"file": WEIGHTS, "images": len(self.weights), "effective": round(self.effective, 1)}

    def lines(self) -> list[str]:
        return [f"{WEIGHTS}: {len(self.weights):,} weights, worth {self.effective:,.0f} images of equal weight"]

    def files(self) -> list[tuple[str, bytes]]:
        text = json.dumps({**self.content(), "weights": self.weights}).encode()
        return [(WEIGHTS, text), *((picture.file, picture.png) for picture in self.pictures)]


def exhibited(drawn: Sequence[Picture], means: Sequence[Picture]) -> tuple[Exhibit, ...]:
    """Both exhibits in one page, which leaves out rounds so that the averages have room too."""
    room = PICTURE_CHARACTERS - sum(len(mean.uri) for mean in means)
    grids: tuple[Exhibit, ...] = (Grids(pictures=tuple(drawn), room=room),) if drawn else ()
    return (*grids, Means(pictures=tuple(means))) if means else grids


def drawn_by(groups: Iterable[Samples], primary: Primary | None) -> tuple[Picture, ...]:
    """One picture for each, with the classes that were to be drawn, or else those that the primary model sees."""
    made: dict[str, Picture] = {}
    for group in groups:
        shown, run = group.images[:SHOWN], group.spending.account.run
        classes = group.classes[:SHOWN] if group.classes is not None else primary.predictions(shown) if primary else ()
        file = "samples/" + run.replace("/", "-") + ("" if group.round is None else f"-round-{group.round}")
        while file in made:  # a model compared with itself
            file += "-again"
        named = f"{file}.png"
        made[file] = Picture.of(shown, run=run, label=group.label, file=named, round=group.round, classes=classes)
    return tuple(made.values())


def averages(groups: Sequence[tuple[str, str, torch.Tensor]]) -> tuple[Picture, ...]:
    """The mean image of each (run, label, images); of two groups also their absolute difference: black is equal."""
    means = [images.float().mean(0, keepdim=True) for _, _, images in groups]
    shown = [(run, label, mean) for (run, label, _), mean in zip(groups, means, strict=True)]
    if len(means) == 2:
        shown.append(("", "difference", (means[0] - means[1]).abs() - 1))
    names = ("left", "right", "difference")
    return tuple(
        Picture.of(mean, run=run, label=label, file=f"samples/mean-{name}.png")
        for (run, label, mean), name in zip(shown, names, strict=False)
    )


def _spaced(group: list[Picture], most: int) -> list[Picture]:
    """At most so many, evenly spaced, the first and the last among them; the last alone if there may be only one."""
    if len(group) <= most:
        return group
    return [group[round(index * (len(group) - 1) / (most - 1))] for index in range(most)] if most > 1 else group[-1:]


def _rounds(shown: Iterable[Picture]) -> set[int]:
    return {picture.round for picture in shown if picture.round is not None}
