"""One look: every unit sends bounded statistics once; all that is seen afterwards is made of their mean.

Mean embeddings as a release are those of DP-MERF (Harder, Adamczewski, Park 2021). Three things differ: the features
are of random convolutions instead of pixels; a unit may hold many images, and is bounded by what it is and not by a
clip; and the same release carries statistics that a person can read.
"""

import dataclasses
from typing import ClassVar

import torch

from fedlens.algorithms.protocol import Asked, OneRelease
from fedlens.core.trees import Tree
from fedlens.models.looks.psi import Psi
from fedlens.models.looks.texts import TextPsi


@dataclasses.dataclass(frozen=True, kw_only=True)
class OneLook(OneRelease):
    """Pairs with a plan of one release that everybody is in, and a bound of norm 1."""

    psi: Psi | TextPsi

    name: ClassVar[str] = "look"
    media: ClassVar[tuple[str, ...]] = ("images", "text")
    options: ClassVar[frozenset[str]] = frozenset()

    @classmethod
    def configured(cls, asked: Asked) -> "OneLook":
        return cls(psi=asked.network)

    @property
    def examples_per_unit(self) -> int:
        return self.psi.examples

    def contribute(self, message: Tree, examples: Tree, memory: Tree) -> tuple[Tree, Tree]:
        """Beside the data: the unit's blocks, all zero if it holds nothing."""
        return self.psi(examples), memory

    def start(self) -> Tree:
        return {name: torch.zeros(shape) for name, shape in self.psi.shapes.items()} | {"round": torch.tensor(0)}

    def result(self, state: Tree) -> Tree:
        """The noisy mean of the blocks."""
        return {name: state[name] for name in self.psi.shapes}
