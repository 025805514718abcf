"""Faults of images and labels.

Images are [n, channels, side, side] in [-1, 1], labels whole numbers. A function of one's own is given images, and
named `package.module:function`.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F

from fedlens.media.faults import Fault, Faults


def _turned(quarters: int) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda x: x.rot90(quarters, (2, 3))


def _flipped(along: int) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda x: x.flip(along)


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


FAULTS = Faults(
    of="images",
    known={
        "inverted": Fault(summary="inverted pixels", change=torch.neg, undo=torch.neg),
        "rotated-90": Fault(summary="a rotation by 90 degrees", change=_turned(1), undo=_turned(3)),
        "rotated-180": Fault(summary="a rotation by 180 degrees", change=_turned(2), undo=_turned(2)),
        "rotated-270": Fault(summary="a rotation by 270 degrees", change=_turned(3), undo=_turned(1)),
        "mirrored": Fault(summary="images mirrored left to right", change=_flipped(3), undo=_flipped(3)),
        "upside-down": Fault(summary="images flipped upside down", change=_flipped(2), undo=_flipped(2)),
        "shifted": Fault(summary="images shifted to the right", change=shifted),
        "blurred": Fault(summary="blurred images", change=blurred),
        "low-contrast": Fault(summary="contrast halved", change=lambda x: x / 2),
        "dead-band": Fault(summary="a dead band of pixels", change=dead_band),
        "noisy": Fault(summary="additive noise", change=noisy),
        "swapped-labels": Fault(summary="swapped labels", labels=swapped),
    },
)
