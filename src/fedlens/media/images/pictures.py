"""Synthetic images as one sprite, small enough to live inside a page."""

import io
import itertools
import math
import zlib

import torch
from PIL import Image

GUTTER = 2
GUTTER_GREY = 128  # visible between black images as well as between white ones, on a light page and on a dark one
# 28x28 images are doubled and 8x8 images grow six times: a PNG file that is opened alone is large enough to look at,
# and no more than a third larger (8x8: twice).
SIDE_ON_SCREEN = 50


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
    # Enlarged pixels are runs: to look for nothing else takes a fiftieth of the time, and a twelfth more space at most.
    buffer = io.BytesIO()
    grid(images, columns=columns).save(buffer, format="PNG", compress_type=zlib.Z_RLE)
    return buffer.getvalue()


def _magnified(images: torch.Tensor) -> torch.Tensor:
    """Whole-number enlargement of small images: every pixel stays a sharp square."""
    factor = max(1, round(SIDE_ON_SCREEN / max(images.shape[2:])))
    return images.repeat_interleave(factor, dim=2).repeat_interleave(factor, dim=3)


def _bytes(images: torch.Tensor) -> torch.Tensor:
    return ((images.nan_to_num(0.0).clamp(-1, 1) + 1) * 127.5).round().to(torch.uint8)
