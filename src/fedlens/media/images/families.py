"""Families of faults: what a camera, a pipeline or a label file may do to all images of a unit, and by how much.

A family is a function of images and of an amount, with the amounts that are tried. They are fitted to what two looks
differ by (`models.looks.explaining`): each is a direction in which the mean of psi moves.
"""

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F

Amount = tuple[float, ...]
LEAST_BLUR = 0.1  # pixels: less changes nothing
COMPASS = ("right", "upper right", "top", "upper left", "left", "lower left", "bottom", "lower right")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Family:
    """`amounts` are ordered where there is one number, so that amounts in between can be read off their neighbours."""

    kind: str
    amounts: tuple[Amount, ...]
    change: Callable[[torch.Tensor, Amount], torch.Tensor]
    says: Callable[[Amount], str]  # "turned by 30 degrees"
    figure: Callable[[float], str] = "{:.2g}".format  # one number of an amount, as people read it
    nothing: float | None = None  # the amount that changes nothing, if there is one between those that are tried
    colour: bool = False  # only where there are channels
    around: bool = False  # the first amount follows on the last: angles


def _one(*numbers: float) -> tuple[Amount, ...]:
    return tuple((float(number),) for number in numbers)


# Levels: x in [-1, 1]


def _unit(x: torch.Tensor) -> torch.Tensor:
    return (x + 1) / 2


def gain(x: torch.Tensor, amount: Amount) -> torch.Tensor:
    return (x * amount[0]).clamp(-1, 1)


def offset(x: torch.Tensor, amount: Amount) -> torch.Tensor:
    return (x + 2 * amount[0]).clamp(-1, 1)


def gamma(x: torch.Tensor, amount: Amount) -> torch.Tensor:
    return 2 * _unit(x).clamp(0, 1) ** amount[0] - 1


def threshold(x: torch.Tensor, amount: Amount) -> torch.Tensor:
    return torch.where(_unit(x) > amount[0], 1.0, -1.0)


# Geometry


def _mapped(x: torch.Tensor, rows: Sequence[Sequence[float]]) -> torch.Tensor:
    """Each image seen through an affine map of places in [-1, 1]; what comes in from outside repeats the edge."""
    theta = torch.tensor(rows, dtype=x.dtype, device=x.device).expand(len(x), 2, 3)
    grid = F.affine_grid(theta, list(x.shape), align_corners=False)
    return F.grid_sample(x, grid, padding_mode="border", align_corners=False)


def turned(x: torch.Tensor, amount: Amount) -> torch.Tensor:
    """By degrees, counter-clockwise."""
    if amount[0] % 90 == 0:
        return x.rot90(int(amount[0] // 90) % 4, (2, 3))
    angle = math.radians(amount[0])
    cos, sin = math.cos(angle), math.sin(angle)
    return _mapped(x, ((cos, -sin, 0.0), (sin, cos, 0.0)))


def scaled(x: torch.Tensor, amount: Amount) -> torch.Tensor:
    """Around the middle: above 1 enlarged, and what leaves the frame is cut off."""
    return _mapped(x, ((1 / amount[0], 0.0, 0.0), (0.0, 1 / amount[0], 0.0)))


def shifted(x: torch.Tensor, amount: Amount) -> torch.Tensor:
    """Right and down, by shares of the side; the edge is repeated."""
    return _mapped(x, ((1.0, 0.0, -2 * amount[0]), (0.0, 1.0, -2 * amount[1])))


def sheared(x: torch.Tensor, amount: Amount) -> torch.Tensor:
    """The upper half moves right, the lower left."""
    return _mapped(x, ((1.0, amount[0], 0.0), (0.0, 1.0, 0.0)))


# Regions


def covered(x: torch.Tensor, amount: Amount) -> torch.Tensor:
    """A rectangle (left, top, right, bottom, as shares of the side) of one level."""
    left, top, right, bottom, level = amount
    side = x.shape[-1]
    place = (torch.arange(side, device=x.device) + 0.5) / side
    across, down = (place > left) & (place < right), (place > top) & (place < bottom)
    return torch.where(down[:, None] & across, 2 * level - 1, x)


def _rectangles() -> tuple[Amount, ...]:
    halves = [(0, 0, 0.5, 1), (0.5, 0, 1, 1), (0, 0, 1, 0.5), (0, 0.5, 1, 1)]
    corners = [
        (0 if left else 1 - size, 0 if top else 1 - size, size if left else 1, size if top else 1)
        for size in (2 / 7, 3 / 7, 0.5)
        for left in (True, False)
        for top in (True, False)
    ]
    bands = [(at / 7, at / 7 + wide / 7) for wide in (1, 2) for at in range(8 - wide)]
    across, down = [(0, one, 1, end) for one, end in bands], [(one, 0, end, 1) for one, end in bands]
    middle = [(2 / 7, 2 / 7, 5 / 7, 5 / 7)]
    return tuple(
        (*map(float, place), level) for level in (0.0, 1.0) for place in (*halves, *corners, *across, *down, *middle)
    )


def _region(amount: Amount) -> str:
    left, top, right, bottom, level = amount
    word = "dark" if level < 0.5 else "bright"
    if right - left >= 1 or bottom - top >= 1:
        down = right - left >= 1
        one, end, name = (top, bottom, "rows") if down else (left, right, "columns")
        return f"{word} {name} from {one:.0%} to {end:.0%} of the {'height' if down else 'width'}"
    return f"a {word} rectangle, {place((left + right) / 2, (top + bottom) / 2)}, {right - left:.0%} of the side"


def place(across: float, down: float) -> str:
    """Where in an image: shares of the side from the left and from the top.

    >>> place(0.1, 0.1), place(0.5, 0.5), place(0.9, 0.5)
    ('upper left', 'middle', 'right')
    """
    x, y = across - 0.5, 0.5 - down
    if math.hypot(x, y) < 0.17:
        return "middle"
    return COMPASS[round(math.atan2(y, x) / (math.pi / 4)) % 8]


# Filters


def blurred(x: torch.Tensor, amount: Amount) -> torch.Tensor:
    """By a normal kernel, of a standard deviation in percent of the side."""
    deviation = amount[0] / 100 * x.shape[-1]
    if deviation < LEAST_BLUR:
        return x
    reach = max(1, math.ceil(3 * deviation))
    reach = min(reach, x.shape[-1] - 1)
    numbers = torch.arange(-reach, reach + 1, dtype=x.dtype, device=x.device)
    kernel = torch.exp(-(numbers**2) / (2 * deviation**2))
    kernel = (kernel / kernel.sum()).expand(x.shape[1], 1, 1, -1)
    padded = F.pad(x, (reach, reach, reach, reach), mode="replicate")
    across = F.conv2d(padded, kernel, groups=x.shape[1])
    return F.conv2d(across, kernel.transpose(2, 3), groups=x.shape[1])


def sharpened(x: torch.Tensor, amount: Amount) -> torch.Tensor:
    return (x + amount[0] * (x - blurred(x, (100 / x.shape[-1],)))).clamp(-1, 1)


def coarsened(x: torch.Tensor, amount: Amount) -> torch.Tensor:
    """Of fewer pixels, each drawn larger."""
    side = x.shape[-1]
    small = F.adaptive_avg_pool2d(x, max(1, round(side / amount[0])))
    return F.interpolate(small, size=(side, side), mode="nearest")


# Noise: the same whenever it is asked for


def noisy(x: torch.Tensor, amount: Amount) -> torch.Tensor:
    """Normal, of a standard deviation in shares of the range."""
    return (x + 2 * amount[0] * _normal(x)).clamp(-1, 1)


def salted(x: torch.Tensor, amount: Amount) -> torch.Tensor:
    """A share of the pixels black or white."""
    u = _uniform(x)
    return torch.where(u < amount[0] / 2, -1.0, torch.where(u > 1 - amount[0] / 2, 1.0, x))


def _normal(x: torch.Tensor) -> torch.Tensor:
    return torch.randn(x.shape, generator=torch.Generator().manual_seed(1)).to(x.device)


def _uniform(x: torch.Tensor) -> torch.Tensor:
    return torch.rand(x.shape, generator=torch.Generator().manual_seed(2)).to(x.device)


# Colour

_ORDERS = tuple(order for order in itertools.permutations(range(3)) if order != (0, 1, 2))


def reordered(x: torch.Tensor, amount: Amount) -> torch.Tensor:
    return x[:, [int(channel) for channel in amount]]


def tinted(x: torch.Tensor, amount: Amount) -> torch.Tensor:
    """One channel's levels times a factor."""
    channel, factor = int(amount[0]), amount[1]
    factors = torch.ones(3, device=x.device)
    factors[channel] = factor
    return (2 * _unit(x) * factors[:, None, None] - 1).clamp(-1, 1)


def greyed(x: torch.Tensor, amount: Amount) -> torch.Tensor:
    """Colours drawn towards grey."""
    return x + amount[0] * (x.mean(1, keepdim=True) - x)


_CHANNELS = ("red", "green", "blue")


def _shift_words(amount: Amount) -> str:
    right, down = amount
    parts = [f"{abs(right):.0%} {'right' if right > 0 else 'left'}"] if right else []
    parts += [f"{abs(down):.0%} {'down' if down > 0 else 'up'}"] if down else []
    return f"shifted {' and '.join(parts)}"


_SHIFTS = tuple((round(x / 14, 4), round(y / 14, 4)) for x in range(-4, 5) for y in range(-4, 5) if (x, y) != (0, 0))

FAMILIES: tuple[Family, ...] = (
    Family(kind="inverted", amounts=((-1.0,),), change=gain, says=lambda a: "inverted pixels"),
    Family(
        kind="contrast",
        amounts=_one(0.1, 0.2, 0.35, 0.5, 0.65, 0.8, 1.25, 1.6, 2.2, 3.2),
        change=gain,
        nothing=1.0,
        says=lambda a: f"contrast times {a[0]:.2g}",
    ),
    Family(
        kind="brightness",
        amounts=_one(-0.65, -0.5, -0.35, -0.25, -0.15, -0.08, 0.08, 0.15, 0.25, 0.35, 0.5, 0.65),
        change=offset,
        nothing=0.0,
        says=lambda a: f"{'brighter' if a[0] > 0 else 'darker'} by {abs(a[0]):.2g} of the range",
    ),
    Family(
        kind="gamma",
        amounts=_one(0.3, 0.45, 0.6, 0.8, 1.25, 1.6, 2.2, 3.2),
        change=gamma,
        nothing=1.0,
        says=lambda a: f"gamma {a[0]:.2g}",
    ),
    Family(
        kind="binarised",
        amounts=_one(0.2, 0.35, 0.5, 0.65, 0.8),
        change=threshold,
        says=lambda a: f"only black and white, parted at {a[0]:.2g} of the range",
    ),
    Family(
        kind="turned",
        amounts=_one(*range(-165, 181, 15)),
        change=turned,
        nothing=0.0,
        says=lambda a: (
            f"turned by {abs(a[0]):.0f} degrees"
            + ("" if abs(a[0]) > 179 else " to the left" if a[0] > 0 else " to the right")
        ),
        figure="{:.0f}".format,
        around=True,
    ),
    Family(
        kind="mirrored",
        amounts=((0.0,),),
        change=lambda x, a: x.flip(3),
        says=lambda a: "images mirrored left to right",
    ),
    Family(
        kind="upside-down",
        amounts=((0.0,),),
        change=lambda x, a: x.flip(2),
        says=lambda a: "images flipped upside down",
    ),
    Family(
        kind="scaled",
        amounts=_one(0.5, 0.6, 0.7, 0.8, 0.9, 1.1, 1.25, 1.4, 1.6, 1.8, 2.1),
        change=scaled,
        nothing=1.0,
        says=lambda a: f"{'enlarged' if a[0] > 1 else 'shrunk'} to {a[0]:.0%}",
        figure="{:.0%}".format,
    ),
    Family(kind="shifted", amounts=_SHIFTS, change=shifted, says=_shift_words, figure="{:.0%}".format),
    Family(
        kind="sheared",
        amounts=_one(-0.6, -0.4, -0.25, -0.12, 0.12, 0.25, 0.4, 0.6),
        change=sheared,
        nothing=0.0,
        says=lambda a: f"sheared by {a[0]:.2g}",
    ),
    Family(kind="region", amounts=_rectangles(), change=covered, says=_region, figure="{:.0%}".format),
    Family(
        kind="blurred",
        amounts=_one(2.0, 3.0, 4.5, 6.5, 9.0, 13.0),
        change=blurred,
        nothing=0.0,
        says=lambda a: f"blurred by {a[0]:.2g}% of the side",
    ),
    Family(
        kind="sharpened",
        amounts=_one(0.5, 1.0, 2.0, 4.0),
        change=sharpened,
        nothing=0.0,
        says=lambda a: f"sharpened by {a[0]:.2g}",
    ),
    Family(
        kind="coarsened",
        amounts=_one(2.0, 3.0, 4.0, 5.6, 7.0),
        change=coarsened,
        nothing=1.0,
        says=lambda a: f"resolution divided by {a[0]:.2g}",
    ),
    Family(
        kind="noisy",
        amounts=_one(0.05, 0.1, 0.17, 0.25, 0.37, 0.5),
        change=noisy,
        nothing=0.0,
        says=lambda a: f"noise of {a[0]:.2g} of the range",
    ),
    Family(
        kind="salt-and-pepper",
        amounts=_one(0.02, 0.05, 0.1, 0.2, 0.35, 0.5),
        change=salted,
        nothing=0.0,
        says=lambda a: f"{a[0]:.0%} of the pixels black or white",
        figure="{:.0%}".format,
    ),
    Family(
        kind="channels",
        amounts=tuple(tuple(map(float, order)) for order in _ORDERS),
        change=reordered,
        says=lambda a: "channels in the order " + ", ".join(_CHANNELS[int(channel)] for channel in a),
        colour=True,
    ),
    Family(
        kind="tinted",
        amounts=tuple((float(channel), factor) for channel in range(3) for factor in (0.0, 0.3, 0.6, 0.8, 1.4, 2.0)),
        change=tinted,
        says=lambda a: f"{_CHANNELS[int(a[0])]} times {a[1]:.2g}",
        colour=True,
    ),
    Family(
        kind="greyed",
        amounts=_one(0.3, 0.6, 1.0),
        change=greyed,
        nothing=0.0,
        says=lambda a: f"colours drawn towards grey by {a[0]:.0%}",
        figure="{:.0%}".format,
        colour=True,
    ),
)


@functools.cache
def families(channels: int) -> tuple[Family, ...]:
    return tuple(family for family in FAMILIES if channels == 3 or not family.colour)
