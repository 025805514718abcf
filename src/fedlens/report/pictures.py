"""Synthetic images as one sprite, histograms as outlines, classes as bars: small enough to live inside a page."""

import base64
import io
import itertools
import math
from collections.abc import Sequence

import torch
from PIL import Image

GUTTER = 2
GUTTER_GREY = 128  # visible between black images as well as between white ones, on a light page and on a dark one
# 28x28 images are doubled and 8x8 images grow six times: a PNG file that is opened alone is large enough to look at,
# and no more than a third larger (8x8: twice).
SIDE_ON_SCREEN = 50
BAR = 0.36  # of the room of its category; two bars and the air around them fill it
TOPS = (0.01, 0.02, 0.04, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0)  # where an axis may end: easy to halve in one's head


def grid(images: torch.Tensor, *, columns: int = 8) -> Image.Image:
    """One sprite of `images` [n, c, h, w] in [-1, 1], row by row; a value that is not a number is mid grey.

    >>> grid(torch.zeros(10, 1, 28, 28)).size
    (466, 118)
    """
    if images.ndim != 4 or images.shape[1] not in (1, 3) or 0 in images.shape:
        raise ValueError(f"Expected images of shape [n, 1 or 3, h, w] and got {list(images.shape)}.")
    if columns < 1:
        raise ValueError(f"Expected columns={columns} >= 1.")
    tiles = _bytes(_magnified(images.detach().cpu().float()))
    count, channels, height, width = tiles.shape
    columns = min(columns, count)
    rows = math.ceil(count / columns)
    canvas = torch.full(
        (channels, rows * (height + GUTTER) + GUTTER, columns * (width + GUTTER) + GUTTER),
        GUTTER_GREY,
        dtype=torch.uint8,
    )
    for (row, column), tile in zip(itertools.product(range(rows), range(columns)), tiles, strict=False):
        top, left = GUTTER + row * (height + GUTTER), GUTTER + column * (width + GUTTER)
        canvas[:, top : top + height, left : left + width] = tile
    pixels = canvas[0] if channels == 1 else canvas.permute(1, 2, 0)
    return Image.fromarray(pixels.contiguous().numpy())


def png_bytes(images: torch.Tensor, *, columns: int = 8) -> bytes:
    """The sprite as a PNG file."""
    buffer = io.BytesIO()
    grid(images, columns=columns).save(buffer, format="PNG", optimize=True)
    return buffer.getvalue()


def data_uri(png: bytes) -> str:
    """A PNG file as an address that a page can carry inside itself.

    >>> data_uri(b"png")
    'data:image/png;base64,cG5n'
    """
    return "data:image/png;base64," + base64.b64encode(png).decode("ascii")


def width(png: bytes) -> int:
    """How many pixels a PNG file is wide, as its header says.

    >>> width(png_bytes(torch.zeros(2, 1, 28, 28)))
    118
    """
    return int.from_bytes(png[16:20], "big")


def outlines(edges: Sequence[float], sides: Sequence[Sequence[float]]) -> tuple[float, list[str]]:
    """Histograms over shared edges as SVG paths in a box of 100 x 100, and the share of its side that fills the height.

    Each side is divided by its own total: groups of different size stay comparable. The page stretches the box.

    >>> outlines([0, 1, 2], [[1, 1], [0, 9]])
    (1.0, ['M0 100V50H50V50H100V100', 'M0 100V100H50V0H100V100'])
    """
    if not -math.inf < edges[0] < edges[-1] < math.inf or any(len(side) != len(edges) - 1 for side in sides):
        raise ValueError(f"Expected growing edges and one count between each two of {len(edges)}.")
    top, heights = _heights(sides)
    return top, [_outline(edges, side) for side in heights]


def bars(sides: Sequence[Sequence[float]]) -> tuple[float, list[str]]:
    """Shares of categories as SVG paths in the same box: one bar per category and side, the sides beside each other.

    >>> bars([[1, 1], [0, 9]])[0], bars([[1]])[1]
    (1.0, ['M32 100V0H68V100'])
    """
    if len({len(side) for side in sides}) != 1 or not len(sides[0]):
        raise ValueError("Expected one count per category on every side.")
    top, heights = _heights(sides)
    room = 100 / len(sides[0])
    starts = [(index - len(sides) / 2) * BAR + 0.5 for index in range(len(sides))]
    return top, [
        "".join(
            f"M{room * (cell + start):.4g} 100V{100 - 100 * height:.4g}H{room * (cell + start + BAR):.4g}V100"
            for cell, height in enumerate(side)
        )
        for start, side in zip(starts, heights, strict=True)
    ]


def _heights(sides: Sequence[Sequence[float]]) -> tuple[float, list[list[float]]]:
    """Each side as shares of its own total, measured by the share at which the axis ends."""
    counts = [[count if math.isfinite(count) else 0.0 for count in side] for side in sides]  # a model may diverge
    shares = [[count / (sum(side) or 1) for count in side] for side in counts]
    tallest = max(itertools.chain.from_iterable(shares), default=0.0)
    top = next((top for top in TOPS if top >= tallest), 1.0)
    return top, [[share / top for share in side] for side in shares]


def _outline(edges: Sequence[float], heights: Sequence[float]) -> str:
    span = edges[-1] - edges[0]
    ups = (f"V{100 - 100 * height:.4g}" for height in heights)
    alongs = (f"H{100 * (edge - edges[0]) / span:.4g}" for edge in edges[1:])
    return "M0 100" + "".join(itertools.chain.from_iterable(zip(ups, alongs, strict=True))) + "V100"


def _magnified(images: torch.Tensor) -> torch.Tensor:
    """Whole-number enlargement of small images: every pixel stays a sharp square."""
    factor = max(1, round(SIDE_ON_SCREEN / max(images.shape[2:])))
    return images.repeat_interleave(factor, dim=2).repeat_interleave(factor, dim=3)


def _bytes(images: torch.Tensor) -> torch.Tensor:
    return ((images.nan_to_num(0.0).clamp(-1, 1) + 1) * 127.5).round().to(torch.uint8)
