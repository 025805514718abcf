"""What two looks at images differ by, in words: "darker in the upper left, by 0.61 plus or minus 0.03 of the range"."""

import dataclasses
import functools
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from fedlens.media.images.families import place
from fedlens.models.looks.psi import LABELS, PREDICTED, SIZE, Psi, centres
from fedlens.models.looks.statistics import small_image
from fedlens.models.looks.two_sample import CLEAR, LEVEL, Block, Tested

Z = 1.96  # standard errors of an interval: 95%
REGIONS = 3  # a side
SHOWN = 2  # numbers of a block
CUT = 0.9  # of the radius: groups this far out hold units that were cut, and differ by more than is told
CHANNELS = ("red", "green", "blue")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Number:
    """One thing to read off a block: weights over its numbers, and how it is told."""

    weights: np.ndarray = dataclasses.field(repr=False)
    start: float  # what the centre alone reads
    more: str  # "brighter in the upper left"
    less: str
    percent: bool = True
    level: bool = True  # whether the two levels mean something by themselves
    place: str = ""  # on an axis


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReadOff:
    """What is read off two groups."""

    number: Number
    levels: tuple[float, float]
    apart: float
    error: float  # one standard error, at most

    @property
    def clear(self) -> float:
        return abs(self.apart) / max(self.error, 1e-12)

    @property
    def words(self) -> str:
        what = self.number.more if self.apart > 0 else self.number.less
        sizes = [_figure(value, self.number.percent) for value in (abs(self.apart), Z * self.error)]
        ends = [_figure(max(0.0, value), self.number.percent) for value in self.levels]
        levels = f" ({ends[0]} instead of {ends[1]})" if self.number.level else ""
        return f"{what}, by {sizes[0]} plus or minus {sizes[1]}{levels}"


def _figure(value: float, percent: bool) -> str:
    """
    >>> _figure(0.614, True), _figure(0.0312, True), _figure(0.61, False)
    ('61%', '3.1%', '0.61')
    """
    if not percent:
        return f"{value:.2f}"
    return f"{100 * value:.{0 if value >= 0.1 else 1}f}%"


def read(psi: Psi, tested: Tested, name: str) -> list[ReadOff]:
    """All that can be read off a block, the clearest first."""
    blocks = [group.blocks[name] for group in tested.groups]
    lines = [_reading(number, blocks, tested, name) for number in numbers(psi, name)]
    return sorted(lines, key=lambda one: -one.clear)


def _reading(number: Number, blocks: Sequence[Block], tested: Tested, name: str) -> ReadOff:
    length = float(np.linalg.norm(number.weights))
    one, other = (number.start + float(number.weights @ block.mean) for block in blocks)
    error = length * float(np.hypot(tested.noise(name), tested.spread(name) ** 0.5))
    return ReadOff(number=number, levels=(one, other), apart=one - other, error=error)


def in_words(psi: Psi, tested: Tested, name: str) -> str:
    """The clearest of a block; or that it differs as a whole, or not at all."""
    shown = [one for one in read(psi, tested, name)[:SHOWN] if one.clear > CLEAR]
    row = tested.named(name)
    if not shown and row.adjusted > LEVEL:
        return f"{name}: nothing that chance would not make"
    if not shown:
        size = f", by {row.size:.2f} of what a unit may differ" if row.size else ""
        return f"{name}: no number by itself; as a whole{size}"
    return f"{name}: {'; '.join(one.words for one in shown)}{' at least' if cut(psi, tested, name) else ''}"


def cut(psi: Psi, tested: Tested, name: str) -> bool:
    """Whether units lie beyond what is counted, so that groups differ by more than what is read."""
    return name in psi.varying and any(float(np.linalg.norm(group.blocks[name].mean)) > CUT for group in tested.groups)


@functools.lru_cache(maxsize=64)
def numbers(psi: Psi, name: str) -> tuple[Number, ...]:
    return tuple(_NUMBERS[name](psi))


def _centre(psi: Psi, name: str) -> np.ndarray:
    centre: np.ndarray = centres(psi.body.side, psi.body.channels)[name].double().numpy()
    return centre


def _number(psi: Psi, name: str, weights: np.ndarray, more: str, less: str, **about: Any) -> Number:
    return Number(
        weights=weights * psi.radius, start=float(weights @ _centre(psi, name)), more=more, less=less, **about
    )


def _pictures(psi: Psi) -> Iterator[Number]:
    """Mean levels of regions and of the whole, in shares of the range."""
    size = psi.shapes["picture"][0]
    basis = np.stack([small_image(row, psi.body.side, psi.body.channels) for row in np.eye(size)])
    cells = basis.shape[-1]
    for region, where in _regions(cells):
        for channel, colour in enumerate(_colours(psi)):
            weights = (basis[:, channel] * region).sum((1, 2)) / region.sum() / 2
            at = f" {where}" if where else " everywhere"
            yield _number(psi, "picture", weights, f"{colour}brighter{at}", f"{colour}darker{at}", level=False)


def _colours(psi: Psi) -> Sequence[str]:
    return [""] if psi.body.channels == 1 else [f"{name} " for name in CHANNELS]


def _regions(cells: int) -> Iterator[tuple[np.ndarray, str]]:
    """Squares, with where they are; and the whole, which is called nothing."""
    edges = np.linspace(0, cells, min(REGIONS, cells) + 1).round().astype(int)
    for top, bottom in itertools.pairwise(edges):
        for left, right in itertools.pairwise(edges):
            region = np.zeros((cells, cells))
            region[top:bottom, left:right] = 1
            where = place((left + right) / 2 / cells, (top + bottom) / 2 / cells)
            yield region, f"in the {where}" if where == "middle" else f"at the {where}"
    yield np.ones((cells, cells)), ""


def _textures(psi: Psi) -> Iterator[Number]:
    """How much cells vary, and how much neighbours differ."""
    channels, cells = psi.body.channels, round(((psi.shapes["texture"][0] / psi.body.channels) - 2) ** 0.5)
    each = cells**2
    unit = (2 * channels * each) ** 0.5  # of what stands in the block: see statistics.texture
    for region, where in _regions(cells):
        weights = np.concatenate(
            [np.tile(region.flatten() / region.sum() / channels, channels), np.zeros(2 * channels)]
        )
        at = f" {where}" if where else " everywhere"
        yield _number(psi, "texture", weights * unit, f"more contrast{at}", f"less contrast{at}", percent=False)
    for way, (more, less) in enumerate(
        (
            ("rougher from left to right", "smoother from left to right"),
            ("rougher from top to bottom", "smoother from top to bottom"),
        )
    ):
        weights = np.zeros(psi.shapes["texture"][0])
        weights[channels * each + way * channels : channels * each + (way + 1) * channels] = 1 / channels
        yield _number(psi, "texture", weights * (4 * channels) ** 0.5 / 2, more, less, percent=False)


def _levels(psi: Psi) -> Iterator[Number]:
    """Shares of pixels at each level."""
    channels, levels = psi.body.channels, 16
    unit = 1.0 if channels == 1 else (2 * channels) ** 0.5
    for channel, colour in enumerate(_colours(psi)):
        for level in range(levels):
            weights = np.zeros(psi.shapes["intensity"][0])
            weights[channel * levels + level] = unit
            bright = f"{100 * level / (levels - 1):.0f}%"
            near = f"{colour}pixels near {bright} brightness"
            yield _number(psi, "intensity", weights, f"more {near}", f"fewer {near}", place=bright)


def _roots(psi: Psi, name: str, says: Mapping[str, str], less: str = "less") -> Iterator[Number]:
    """By their places on an axis."""
    for at, (where, what) in enumerate(says.items()):
        weights = np.zeros(psi.shapes[name][0])
        weights[at] = 1.0
        yield _number(psi, name, weights, f"more {what}", f"{less} {what}", percent=False, place=where)


def _spectra(psi: Psi) -> Iterator[Number]:
    count = psi.shapes["spectrum"][0]
    pixels = [f"{2 * count / (2 * at + 1):.1f}" for at in range(count)]
    detail = ["coarse structure", *(f"structure of {size} pixels" for size in pixels[1:])]
    said = {size: f"{what} (root of its share)" for size, what in zip(pixels, detail, strict=True)}
    return _roots(psi, "spectrum", said)


def _directions(psi: Psi) -> Iterator[Number]:
    count = psi.shapes["direction"][0]
    return _roots(
        psi,
        "direction",
        {
            f"{180 * at / count:.0f}": f"edges at {180 * at / count:.0f} to {180 * (at + 1) / count:.0f} degrees"
            " (root of their share)"
            for at in range(count)
        },
        less="fewer",
    )


def _plain(psi: Psi, name: str, says: Sequence[str]) -> Iterator[Number]:
    """Blocks that are read as they are: every number sees a 1 in its own place of one and the same row."""
    size = len(says)
    row = np.zeros(2 * size - 1)
    row[size - 1] = 1.0
    for at, what in enumerate(says):
        weights = row[size - 1 - at : 2 * size - 1 - at]
        yield Number(weights=weights, start=0.0, more=f"more {what}", less=f"fewer {what}", percent=False)


def _labels(psi: Psi) -> Iterator[Number]:
    return _plain(psi, LABELS, [f"images of class {label}" for label in range(psi.classes)])


def _predictions(psi: Psi) -> Iterator[Number]:
    pairs = [(one, other) for one in range(psi.classes) for other in range(psi.classes)]
    says = [f"images of class {one} taken for {other}" for one, other in pairs]
    return _plain(psi, PREDICTED, says)


def _sizes(psi: Psi) -> Iterator[Number]:
    count = psi.shapes[SIZE][0]
    spans = [f"{2**at} to {2 ** (at + 1) - 1}" if at else "1" for at in range(count - 1)] + [
        f"{2 ** (count - 1)} or more"
    ]
    for number in _plain(psi, SIZE, [f"units of {span} images" for span in spans]):
        yield dataclasses.replace(number, percent=True)


_NUMBERS = {
    "picture": _pictures,
    "texture": _textures,
    "intensity": _levels,
    "spectrum": _spectra,
    "direction": _directions,
    LABELS: _labels,
    PREDICTED: _predictions,
    SIZE: _sizes,
}


def mean_picture(psi: Psi, block: Block) -> torch.Tensor:
    """[1, channels, n, n] in [-1, 1]: the mean image of a group, as far as units are not cut."""
    numbers_ = _centre(psi, "picture") + psi.radius * block.mean
    return torch.from_numpy(small_image(numbers_, psi.body.side, psi.body.channels)).float()[None].clamp(-1, 1)


def clear_difference(psi: Psi, tested: Tested) -> torch.Tensor:
    """[1, channels, n, n]: the difference of the mean images; grey where chance may have made it."""
    shape = psi.body.side, psi.body.channels
    size = psi.shapes["picture"][0]
    basis = np.stack([small_image(row, *shape) for row in np.eye(size)]).reshape(size, -1) * psi.radius
    numbers_ = tested.named("picture").numbers
    noise, spread = tested.noise("picture"), tested.spread("picture")
    errors = np.linalg.norm(basis, axis=0) * np.hypot(noise, spread**0.5)
    apart = numbers_ @ basis
    clear = np.where(np.abs(apart) > CLEAR * errors, apart, 0.0)
    picture = clear.reshape(small_image(numbers_, *shape).shape)
    return torch.from_numpy(picture / max(float(np.abs(picture).max()), 1e-9)).float()[None]
