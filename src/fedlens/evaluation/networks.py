"""The two networks among the classifiers, and the one way in which both are trained: on a CPU or on a GPU.

Nothing is chosen on the way: so many passes over the data, a rate that falls to zero, and the last weights.
"""

import contextlib
import dataclasses
import itertools
import math
from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import nn

BATCH = 256
STEPS = 50  # in one pass, at least: small sets are taken in smaller batches
SMALLEST_BATCH = 16
RATE = 2e-3
AUGMENTATIONS = ("none", "affine")


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainingRule:
    """How a network is trained: the same for every set of images, real or synthetic."""

    epochs: int = 20
    augmentation: str = "none"  # affine: turned by up to 10 degrees, scaled by a tenth, shifted by a twentieth

    def __post_init__(self) -> None:
        if self.epochs < 1:
            raise ValueError(f"Expected epochs={self.epochs} >= 1.")
        if self.augmentation not in AUGMENTATIONS:
            raise ValueError(f"Expected augmentation={self.augmentation!r} to be one of {', '.join(AUGMENTATIONS)}.")


def mlp(shape: tuple[int, ...], classes: int) -> nn.Module:
    """One hidden layer of 100, as in chen2020."""
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), 100), nn.ReLU(), nn.Linear(100, classes))


def cnn(shape: tuple[int, ...], classes: int) -> nn.Module:
    """Two convolutions of 32 and 64 kernels with dropout, as in chen2020, and batch normalisation.

    Pooling comes first, so that what follows has a quarter of the work.
    """
    channels, height, width = shape
    left = 64 * _halved(_halved(height)) * _halved(_halved(width))
    return nn.Sequential(
        *(nn.Conv2d(channels, 32, 3, padding=1, bias=False), _pooling(), nn.BatchNorm2d(32), nn.ReLU()),
        *(nn.Conv2d(32, 64, 3, padding=1, bias=False), _pooling(), nn.BatchNorm2d(64), nn.ReLU()),
        *(nn.Flatten(), nn.Dropout(0.25), nn.Linear(left, 128, bias=False), nn.BatchNorm1d(128), nn.ReLU()),
        *(nn.Dropout(0.5), nn.Linear(128, classes)),
    )


NETWORKS: dict[str, Callable[[tuple[int, ...], int], nn.Module]] = {"mlp": mlp, "cnn": cnn}


def trained(
    make: Callable[[], nn.Module], images: torch.Tensor, labels: torch.Tensor, training: TrainingRule, seed: int
) -> nn.Module:
    """The network after its last step, on the device of the images, where they all lie at once."""
    with seeded(seed, images.device), torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True):
        network: nn.Module = make().to(images.device).train()
        network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # its stubs do not know
        fit(network, images, labels, training, seed)
    return network.eval()


def fit(
    network: nn.Module,
    images: torch.Tensor,
    labels: torch.Tensor,
    training: TrainingRule,
    seed: int,
    rate: float = RATE,
) -> None:
    """Adam, with a short rise and then a cosine down to zero."""
    size, rng = batch_size(len(images)), torch.Generator().manual_seed(seed)
    total = training.epochs * steps_in(len(images))
    optimizer = torch.optim.Adam(network.parameters(), lr=rate, fused=images.is_cuda or None)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, total_steps=total + 1, pct_start=0.1)
    for rows in itertools.islice(_batches(len(images), size, rng, images.device), total):
        seen = augmented(images[rows], training.augmentation, rng)
        optimizer.zero_grad()
        F.cross_entropy(network(seen), labels[rows]).backward()
        optimizer.step()
        schedule.step()


def batch_size(count: int) -> int:
    """256, and less of small sets: a pass has 50 steps or so.

    >>> batch_size(60_000), batch_size(1_000), batch_size(3)
    (256, 20, 3)
    """
    return min(count, max(SMALLEST_BATCH, min(BATCH, count // STEPS)))


def steps_in(count: int) -> int:
    """Of one pass; what does not fill a batch waits for the next pass."""
    return count // batch_size(count)


def augmented(images: torch.Tensor, kind: str, rng: torch.Generator) -> torch.Tensor:
    """Each image turned, scaled and shifted a little, by its own draw; or as it is."""
    if kind == "none":
        return images
    draw = 2 * torch.rand(5, len(images), generator=rng) - 1
    angle, across, along, right, down = draw * torch.tensor([math.pi / 18, 0.1, 0.1, 0.1, 0.1])[:, None]
    sin, cos = angle.sin(), angle.cos()
    rows = [(1 + across) * cos, -(1 + across) * sin, right, (1 + along) * sin, (1 + along) * cos, down]
    maps = torch.stack(rows, 1).view(-1, 2, 3).to(images.device)
    grid = F.affine_grid(maps, list(images.shape), align_corners=False)
    return F.grid_sample(images, grid, padding_mode="border", align_corners=False)


def predictions(network: nn.Module, images: torch.Tensor, size: int = 4096) -> torch.Tensor:
    """The likeliest class of each, a part of the images at a time."""
    device = next(network.parameters()).device
    with torch.no_grad():
        return torch.cat([network(piece.to(device)).argmax(1).cpu() for piece in images.split(size)])


def flop(make: Callable[[], nn.Module], shape: tuple[int, ...], count: int, training: TrainingRule) -> float | None:
    """What training costs, counted in one step: multiplications and additions of layers; None where nobody counts."""
    try:
        from torch.utils.flop_counter import FlopCounterMode
    except ImportError:
        return None
    size = batch_size(count)
    with seeded(0, torch.device("cpu")), FlopCounterMode(display=False) as counter:
        F.cross_entropy(make()(torch.zeros(size, *shape)), torch.zeros(size, dtype=torch.long)).backward()
    return float(counter.get_total_flops()) * training.epochs * steps_in(count)


@contextlib.contextmanager
def seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Weights and dropout follow the seed, and whoever draws afterwards does not notice."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield


def _batches(count: int, size: int, rng: torch.Generator, device: torch.device) -> Iterator[torch.Tensor]:
    """Pass after pass, each in a new order, in whole batches."""
    while True:
        order = torch.randperm(count, generator=rng).to(device)
        yield from (rows for rows in order.split(size) if len(rows) == size)


def _pooling() -> nn.Module:
    return nn.MaxPool2d(2, ceil_mode=True)


def _halved(side: int) -> int:
    return (side + 1) // 2
