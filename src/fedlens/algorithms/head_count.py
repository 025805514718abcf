"""How many units there are: one release, before anything is trained on them."""

import dataclasses
from typing import ClassVar

import torch

from fedlens.algorithms.protocol import OneRelease
from fedlens.core.trees import Tree


@dataclasses.dataclass(frozen=True, kw_only=True)
class HeadCount(OneRelease):
    """Pairs with a bound of norm 1, a plan of one release and one expected contributor, so that sums stay sums."""

    name: ClassVar[str] = "head-count"
    examples_per_unit: ClassVar[int] = 1

    def contribute(self, message: Tree, examples: Tree, memory: Tree) -> tuple[Tree, Tree]:
        """Beside the data: 1 for a unit that holds any example."""
        return {"units": (examples["mask"].sum() > 0).float()}, memory

    def start(self) -> Tree:
        return {"units": torch.zeros(()), "round": torch.tensor(0)}

    def result(self, state: Tree) -> float:
        """The noisy number."""
        return float(state["units"])
