"""How much one unit may contribute: callables that bring any contribution to a joint L2 norm of at most `norm`."""

import dataclasses
import math
from typing import Protocol

import torch

from fedlens.core import files, trees
from fedlens.core.trees import Tree


class Bound(Protocol):
    @property
    def norm(self) -> float: ...

    @property
    def text(self) -> str: ...

    def __call__(self, contribution: Tree) -> Tree: ...


@dataclasses.dataclass(frozen=True, kw_only=True)
class L2Clip:
    """One norm over the whole contribution (DP-FedAvg, DP-SGD)."""

    norm: float

    def __post_init__(self) -> None:
        _positive("norm", self.norm)

    @property
    def text(self) -> str:
        return f"L2 norm at most {self.norm:g}"

    def __call__(self, contribution: Tree) -> Tree:
        return trees.clipped(contribution, self.norm)


@dataclasses.dataclass(frozen=True, kw_only=True)
class UpdateAndBit:
    """An update of norm at most 1 and a signed bit of weight `bit`: the joint release of adaptive clipping.

    Andrew et al. 2021 noise the update and the bit "was I within the clip?" separately, with multipliers z_u and
    2 z_b where z^-2 = z_u^-2 + (2 z_b)^-2. Sending (update / clip, +-bit) under one isotropic noise of z * norm is
    the same mechanism with z_u = z sqrt(1 + bit^2), so the bit is inside the promised multiplier by construction.
    """

    bit: float

    def __post_init__(self) -> None:
        _positive("bit", self.bit)

    @property
    def norm(self) -> float:
        return math.sqrt(1 + self.bit**2)

    @property
    def text(self) -> str:
        return f"L2 norm at most {self.norm:g}: update 1 (in units of the current clip) and quantile bit {self.bit:g}"

    def __call__(self, contribution: Tree) -> Tree:
        """An update that is not finite silences its bit too: a broken unit sends all zeros."""
        finite = torch.stack([leaf.isfinite().all() for leaf in contribution.values()]).all()
        update = trees.clipped({key: leaf for key, leaf in contribution.items() if key != "within"}, 1.0)
        within = trees.clipped({"within": contribution["within"]}, self.bit)
        return {key: torch.where(finite, leaf, 0.0) for key, leaf in (update | within).items()}


@dataclasses.dataclass(frozen=True, kw_only=True)
class RowClip:
    """Every one of `rows` rows is clipped, and they are released together (GS-WGAN: one row a fake)."""

    row_norm: float
    rows: int

    def __post_init__(self) -> None:
        _positive("row_norm", self.row_norm)
        at_least_one("rows", self.rows)

    @property
    def norm(self) -> float:
        return self.row_norm * math.sqrt(self.rows)

    @property
    def text(self) -> str:
        return f"L2 norm at most {self.row_norm:g} in each of {self.rows} rows, {self.norm:g} jointly"

    def __call__(self, contribution: Tree) -> Tree:
        rows = _as_rows(contribution, self.rows)
        return torch.func.vmap(lambda row: trees.clipped(row, self.row_norm))(rows)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TopKSign:
    """Of every row the signs of its `k` largest entries, the others zero (DataLens); signs that come in stay."""

    k: int
    rows: int

    def __post_init__(self) -> None:
        at_least_one("k", self.k)
        at_least_one("rows", self.rows)

    @property
    def norm(self) -> float:
        return math.nextafter(math.sqrt(self.k * self.rows), math.inf)  # signs use it up to the last bit

    @property
    def text(self) -> str:
        return f"signs of the {self.k} largest entries in each of {self.rows} rows: L2 norm at most {self.norm:g}"

    def __call__(self, contribution: Tree) -> Tree:
        rows = _as_rows(contribution, self.rows)
        flat = torch.cat([leaf.reshape(self.rows, -1) for leaf in rows.values()], 1)
        finite = flat.isfinite().all(1, keepdim=True)
        flat = torch.where(finite, flat, 0.0)
        top = flat.abs().topk(min(self.k, flat.shape[1]), 1).indices
        signs = torch.zeros_like(flat).scatter(1, top, flat.gather(1, top).sign())
        pieces = signs.split([leaf[0].numel() for leaf in rows.values()], 1)
        return {name: piece.view_as(rows[name]) for name, piece in zip(rows, pieces, strict=True)}


def _as_rows(contribution: Tree, rows: int) -> Tree:
    if any(leaf.dim() == 0 or len(leaf) != rows for leaf in contribution.values()):
        raise ValueError(f"Expected contributions of rows={rows} rows.")
    return contribution


def at_least_one(name: str, value: int) -> None:
    if not value >= 1:
        raise ValueError(f"Expected {name}={value} >= 1.")
    if not files.whole(value, 1, 2**53):
        raise ValueError(f"Expected {name}={value} as a whole number.")


def _positive(name: str, value: float) -> None:
    if not 1e-12 <= value <= 1e12:  # beyond, single precision cannot keep the promise
        raise ValueError(f"Expected 1e-12 <= {name}={value} <= 1e12.")
