"""Named transforms of images and labels: bugs to plant on private data, and hypotheses to explain a difference.

Images are [n, channels, side, side] in [-1, 1], labels whole numbers. Somebody else's transform is a function of
images, named `package.module:function`.
"""

import dataclasses
from collections.abc import Callable

import torch
import torch.nn.functional as F

from fedlens.core import functions

Change = Callable[[torch.Tensor], torch.Tensor]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Transform:
    """What a bug does; `images` or `labels` stay as they are where nothing is given."""

    summary: str
    images: Change | None = None
    labels: Callable[[torch.Tensor, int], torch.Tensor] | None = None  # (labels, number of classes)


def shifted(x: torch.Tensor) -> torch.Tensor:
    """A seventh of the side to the right; the left edge is repeated."""
    step = max(1, x.shape[-1] // 7)
    return F.pad(x, (step, 0, 0, 0), mode="replicate")[..., :-step]


def blurred(x: torch.Tensor) -> torch.Tensor:
    """The mean over a square of about a sixth of the side."""
    reach = max(1, x.shape[-1] // 14)
    return F.avg_pool2d(F.pad(x, (reach,) * 4, mode="replicate"), 2 * reach + 1, stride=1)


def dead_band(x: torch.Tensor) -> torch.Tensor:
    """The rows of the middle seventh are black."""
    side = x.shape[-2]
    rows = torch.arange(side, device=x.device)
    alive = (rows - (side - 1) / 2).abs() > max(0.5, side / 14)
    return torch.where(alive[:, None], x, -1.0)


def noisy(x: torch.Tensor) -> torch.Tensor:
    """Normal noise of a quarter of the range, the same whenever it is asked for."""
    rng = torch.Generator().manual_seed(0)
    return (x + 0.5 * torch.randn(x.shape, generator=rng).to(x.device)).clamp(-1, 1)


def swapped(labels: torch.Tensor, classes: int) -> torch.Tensor:
    """Neighbouring classes trade places: 0 and 1, 2 and 3; an odd last one keeps its own."""
    return torch.where((labels ^ 1) < classes, labels ^ 1, labels)


TRANSFORMS: dict[str, Transform] = {
    "inverted": Transform(summary="inverted pixels", images=torch.neg),
    "rotated-90": Transform(summary="a rotation by 90 degrees", images=lambda x: x.rot90(1, (2, 3))),
    "rotated-180": Transform(summary="a rotation by 180 degrees", images=lambda x: x.rot90(2, (2, 3))),
    "rotated-270": Transform(summary="a rotation by 270 degrees", images=lambda x: x.rot90(3, (2, 3))),
    "mirrored": Transform(summary="images mirrored left to right", images=lambda x: x.flip(3)),
    "upside-down": Transform(summary="images flipped upside down", images=lambda x: x.flip(2)),
    "shifted": Transform(summary="images shifted to the right", images=shifted),
    "blurred": Transform(summary="blurred images", images=blurred),
    "low-contrast": Transform(summary="contrast halved", images=lambda x: x / 2),
    "dead-band": Transform(summary="a dead band of pixels", images=dead_band),
    "noisy": Transform(summary="additive noise", images=noisy),
    "swapped-labels": Transform(summary="swapped labels", labels=swapped),
}


def named(kind: str) -> Transform:
    """One of ours, or a function of images of somebody else's: `package.module:function`."""
    if kind in TRANSFORMS:
        return TRANSFORMS[kind]
    found = functions.opened(kind, TRANSFORMS, "images")
    return Transform(summary=functions.summary(found), images=found)
