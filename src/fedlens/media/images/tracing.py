"""What faults do to the numbers of a look at images: tried on images that everybody may see."""

from collections.abc import Mapping

import numpy as np
import torch

from fedlens.media.images.families import Family, families
from fedlens.models.looks.explaining import Trace
from fedlens.models.looks.psi import Psi
from fedlens.models.looks.statistics import READABLE
from fedlens.models.looks.two_sample import Directions

TRIED_ON = 512  # images


def readable_units(psi: Psi, images: torch.Tensor, owners: torch.Tensor) -> dict[str, torch.Tensor]:
    """[units, numbers] by the readable block: what units of these images send, each block of norm 1 at most."""
    units = int(owners.max()) + 1
    counts = owners.bincount(minlength=units).clamp(min=1)[:, None]
    sums = {name: images.new_zeros(units, _size(psi, name)) for name in psi.varying}
    for part, whose in zip(images.split(TRIED_ON), owners.split(TRIED_ON), strict=True):
        for name, total in sums.items():
            total.index_add_(0, whose, READABLE[name](part))
    return {name: psi.around(name, total / counts) for name, total in sums.items()}


def _size(psi: Psi, name: str) -> int:
    return psi.shapes[name][0]


def traces(psi: Psi, images: torch.Tensor, together: int) -> list[Trace]:
    """Of every family, tried on images of units that hold so many."""
    images = images[:TRIED_ON]
    owners = torch.arange(len(images)) % max(1, len(images) // max(1, together))
    plain = _mean(psi, images, owners)
    return [_trace(psi, family, images, owners, plain) for family in families(psi.body.channels)]


def _mean(psi: Psi, images: torch.Tensor, owners: torch.Tensor) -> dict[str, np.ndarray]:
    return {name: rows.double().mean(0).numpy() for name, rows in readable_units(psi, images, owners).items()}


def _trace(
    psi: Psi, family: Family, images: torch.Tensor, owners: torch.Tensor, plain: Mapping[str, np.ndarray]
) -> Trace:
    amounts, rows = [], []
    for amount in family.amounts:
        changed = _mean(psi, family.change(images, amount), owners)
        amounts.append(amount)
        rows.append({name: changed[name] - plain[name] for name in plain})
    if family.nothing is not None:
        amounts.append((family.nothing,))
        rows.append({name: np.zeros_like(plain[name]) for name in plain})
    order = sorted(range(len(amounts)), key=lambda place: amounts[place]) if _ordered(family) else range(len(amounts))
    moves = {name: np.stack([rows[place][name] for place in order]) for name in plain}
    return Trace(
        kind=family.kind,
        amounts=tuple(amounts[place] for place in order),
        moves=moves,
        says=family.says,
        figure=family.figure,
        ordered=_ordered(family),
    )


def _ordered(family: Family) -> bool:
    return len(family.amounts) > 1 and len(family.amounts[0]) == 1


def directions(tried: list[Trace]) -> Directions:
    """All moves, as rows: where a difference is looked for."""
    blocks = tried[0].moves if tried else {}
    rows = {name: np.concatenate([trace.moves[name] for trace in tried]) for name in blocks}
    moves = np.any([np.any(block != 0, axis=1) for block in rows.values()], axis=0) if rows else np.zeros(0, bool)
    return {name: block[moves] for name, block in rows.items()}
