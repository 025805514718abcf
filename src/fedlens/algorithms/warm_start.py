"""A start from public data: what a language model can learn of spelling before it meets anybody's words, for free."""

import torch

from fedlens.algorithms.fedavg import Network
from fedlens.algorithms.optimizers import Adam
from fedlens.core import trees
from fedlens.core.replay import Replayed
from fedlens.core.trees import Tree

BATCH, OPTIMIZER = 128, Adam(rate=1e-2)


def warmed(
    model: Network, params: Tree, sequences: torch.Tensor, *, steps: int, seed: int, device: str = "cpu"
) -> Tree:
    """The weights after so many steps of Adam on random batches of PUBLIC sequences [n, width]."""
    rng = torch.Generator().manual_seed(seed)
    mask = torch.ones(BATCH, device=device)

    def stepped(state: Tree, batch: Tree) -> Tree:
        params, slots = trees.part(state, "params"), trees.part(state, "slots")
        params, slots = OPTIMIZER(params, torch.func.grad(model.loss)(params, batch["x"], mask), slots)
        return {name: leaf.detach() for name, leaf in trees.joined(params=params, slots=slots).items()}

    step = Replayed(stepped)
    state = trees.moved(trees.joined(params=params, slots=OPTIMIZER.init(params)), device)
    for _ in range(steps):
        drawn = sequences[torch.randint(len(sequences), (BATCH,), generator=rng)]
        state = step(state, {"x": drawn.to(device)})
    return trees.moved(trees.part(state, "params"), "cpu")
