"""Samples that look like drawn letters, with what they cost."""

import torch
import torch.nn.functional as F

from fedlens.ledger import Account, Spending
from fedlens.media.images.samples import Samples
from fedlens.privacy import Everyone, L2Clip, Plan

PLAN = Plan(sampling=Everyone(), bound=L2Clip(norm=0.1), noise_multiplier=5.0, releases=10, expected_contributors=9)


def letters(count, seed, side=8):
    """Bright, trembling letters F on a dark ground: no transform leaves an F as it is."""
    rng = torch.Generator().manual_seed(seed)
    letter = torch.zeros(side, side)
    letter[1:7, 2] = letter[1, 2:6] = letter[3, 2:5] = 1.0
    shifts = torch.randint(-1, 2, (count,), generator=rng).tolist()
    strokes = torch.stack([letter.roll(shift, 1) for shift in shifts])
    brightness = 0.7 + 0.3 * torch.rand(count, 1, 1, generator=rng)
    noise = 0.1 * torch.randn(count, side, side, generator=rng)
    return (2 * brightness * strokes - 1 + noise).clamp(-1, 1)[:, None]


def framed(x):
    """A white frame."""
    return F.pad(x[..., 1:-1, 1:-1], (1, 1, 1, 1), value=1.0)


def samples(images, label="left", *, partition="all", plan=PLAN, population="crowd", simulated=False):
    account = Account(run=f"run/{label}", population=population, partition=partition, part=label, simulated=simulated)
    return Samples(images=images, label=label, spending=Spending(account=account, plans=(plan,)), delta=1e-5)


def pair(left, right, **changes):
    return samples(left, "left", **changes), samples(right, "right", **changes)
