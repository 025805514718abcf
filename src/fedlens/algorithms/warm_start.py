"""A start from public data: what a language model can learn of spelling before it meets anybody's words, for free."""

import torch

from fedlens.algorithms.fedavg import Model
from fedlens.algorithms.optimizers import Adam
from fedlens.trees import Tree

BATCH, OPTIMIZER = 128, Adam(rate=1e-2)


def warmed(model: Model, params: Tree, sequences: torch.Tensor, *, steps: int, seed: int) -> Tree:
    """The weights after so many steps of Adam on random batches of PUBLIC sequences [n, width]."""
    rng = torch.Generator().manual_seed(seed)
    slots, mask = OPTIMIZER.init(params), torch.ones(BATCH)
    for _ in range(steps):
        drawn = sequences[torch.randint(len(sequences), (BATCH,), generator=rng)]
        params, slots = OPTIMIZER(params, torch.func.grad(model.loss)(params, drawn, mask), slots)
    return {name: leaf.detach() for name, leaf in params.items()}
