"""PRIVATE. What units contribute: at once or one by one, bounded, cut to whole steps of a grid, added up exactly."""

import dataclasses
from collections.abc import Callable

import torch

from fedlens.core import trees
from fedlens.core.trees import Tree
from fedlens.curators.protocol import Contribute

Run = Callable[[Contribute, Tree, Tree, Tree, Tree], tuple[Tree, Tree]]
Summed = tuple[Tree, Tree]


def vectorised(contribute: Contribute, message: Tree, examples: Tree, memory: Tree, shape: Tree) -> tuple[Tree, Tree]:
    return torch.func.vmap(contribute, in_dims=(None, 0, 0))(message, examples, memory)


def one_by_one(contribute: Contribute, message: Tree, examples: Tree, memory: Tree, shape: Tree) -> tuple[Tree, Tree]:
    """The same answer in plain Python: the oracle of `vectorised`, and what a chunk of one unit runs as.

    A unit whose contribution fails or is not of the expected `shape` sends zeros and keeps its memory; nobody is told.
    """
    results = []
    for unit in range(len(examples["mask"])):
        kept = trees.row(memory, unit)
        try:
            contribution, new = contribute(message, trees.row(examples, unit), kept)
            fits = trees.same_shape(contribution, shape) and trees.same_shape(new, kept)
        except Exception:
            fits = False
        results.append((contribution, new) if fits else (trees.zeros(shape), kept))
    contributions = trees.stacked([contribution for contribution, _ in results])
    return contributions, trees.stacked([new for _, new in results]) if memory else {}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Work:
    """What a round asks of every unit: contribute, be bounded, be cut to the grid, be added up."""

    contribute: Contribute
    bound: Callable[[Tree], Tree]  # a `Bound`
    grid: float

    def steps(self, message: Tree, examples: Tree, memory: Tree) -> tuple[Tree, Tree]:
        """One unit's bounded contribution, cut towards zero to whole steps of the grid, and its new memory."""
        contribution, memory = self.contribute(message, examples, memory)
        bounded = self.bound({name: leaf.float() for name, leaf in contribution.items()})
        # Exact, since the grid is a power of two. trunc by itself is not vectorised: up to forty times as slow.
        return {name: torch.div(leaf, self.grid, rounding_mode="trunc") for name, leaf in bounded.items()}, memory

    def summed(self, run: Run, message: Tree, examples: Tree, memory: Tree, shape: Tree, real: torch.Tensor) -> Summed:
        """The sum of a chunk in whole steps of the grid, and the new memories; rows that are not `real` count for zero.

        Doubles add up to 2^53 whole steps exactly. So the sum does not depend on the order, and one unit moves it by
        its own bounded contribution and nothing else.
        """
        steps, memory = run(self.steps, message, examples, memory, shape)
        rows = {name: leaf * real.view(-1, *[1] * (leaf.dim() - 1)) for name, leaf in steps.items()}
        return {name: leaf.sum(0, dtype=torch.float64) for name, leaf in rows.items()}, memory


def filled(tree: Tree, rows: int) -> Tree:
    """With rows of zeros, up to so many."""
    return {
        name: torch.cat([leaf, leaf.new_zeros(rows - len(leaf), *leaf.shape[1:])]) if len(leaf) < rows else leaf
        for name, leaf in tree.items()
    }
