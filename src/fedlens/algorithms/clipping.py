"""Adaptive clipping: the bound follows a quantile of update norms, learnt from one more bit of every user.

Andrew et al., "Differentially Private Learning with Adaptive Clipping", NeurIPS 2021.
"""

import dataclasses

import torch

from fedlens.core import trees
from fedlens.core.trees import Tree


@dataclasses.dataclass(frozen=True, kw_only=True)
class AdaptiveClip:
    """Follows the `quantile` of update norms (Andrew et al. 2021); pairs with the bound `UpdateAndBit(bit=...)`."""

    start: float
    bit: float
    quantile: float = 0.5
    rate: float = 0.2

    def sent(self, update: Tree, clip: torch.Tensor) -> Tree:
        """Beside the data: the update in units of the clip, and the bit that says whether it is within."""
        within = torch.where(trees.norm(update) <= clip, self.bit, -self.bit).float()
        return trees.scaled(update, 1 / clip) | {"within": within}

    def received(self, mean: Tree, clip: torch.Tensor) -> tuple[Tree, torch.Tensor]:
        """The mean update, and the clip of the next round."""
        update = {name: clip * leaf for name, leaf in mean.items() if name != "within"}
        return update, self.followed(clip, mean["within"])

    def followed(self, clip: torch.Tensor, mean_bit: torch.Tensor) -> torch.Tensor:
        within = ((mean_bit / self.bit + 1) / 2).clamp(0, 1)
        return clip * torch.exp(-self.rate * (within - self.quantile))
