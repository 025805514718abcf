"""DP-FedAvg: users train the model on their own data for a few steps, the server follows the noisy mean of the updates.

Augenstein et al., "Generative Models for Effective ML on Private, Decentralized Datasets", ICLR 2020, Algorithm 2;
first in McMahan et al., "Learning Differentially Private Recurrent Language Models", ICLR 2018.
"""

import dataclasses
import functools
from typing import Annotated, ClassVar, Protocol

import torch

from fedlens.algorithms.clipping import AdaptiveClip
from fedlens.algorithms.optimizers import Adam, Sgd
from fedlens.algorithms.protocol import Answered, Asked, ManyReleases
from fedlens.core import trees
from fedlens.core.replay import Replayed
from fedlens.core.trees import Tree
from fedlens.curators.protocol import Contribute
from fedlens.models.lstm import LanguageModel

NESTEROV = Sgd(rate=1.0, momentum=0.99, nesterov=True)  # the paper's server step for language models
WARM_BATCH, WARM_STEP = 128, Adam(rate=1e-2)


class Network(Protocol):
    """Anything that has a loss: the settings of a network, as a frozen dataclass, and pure functions of its weights."""

    def init(self, seed: int, /) -> Tree:
        """Fresh weights."""

    def loss(self, params: Tree, examples: torch.Tensor, mask: torch.Tensor, /) -> torch.Tensor:
        """The mean over the examples with a mask of 1; where there are none, 0 with a slope of 0."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class FedAvg(ManyReleases):
    model: Annotated[Network, LanguageModel]  # a network, and the kind that can be rebuilt from plain settings
    batch: int = 16
    local_steps: int = 2  # batches in an epoch, at most
    epochs: int = 1
    local_rate: float = 0.5
    server: Sgd | Adam = NESTEROV
    adaptive: AdaptiveClip | None = None
    seed: int = 0  # of the initial weights

    name: ClassVar[str] = "fedavg"
    media: ClassVar[tuple[str, ...]] = ("text",)
    options: ClassVar[frozenset[str]] = frozenset(["batch", "epochs", "local_steps", "local_rate", "server"])

    @classmethod
    def configured(cls, asked: Asked) -> "FedAvg":
        return cls(model=asked.network, adaptive=asked.adaptive, seed=asked.seed, **asked.options(cls.options))

    @property
    def examples_per_unit(self) -> int:
        return self.batch * self.local_steps

    def update(self, message: Tree, examples: Tree, memory: Tree) -> tuple[Tree, Tree]:
        """Beside the data: `epochs` passes of plain SGD over at most `local_steps` batches; how far the model moved."""
        start = params = trees.part(message, "model")
        pieces = zip(examples["x"].split(self.batch), examples["mask"].split(self.batch), strict=True)
        batches = list(pieces)[: self.local_steps]
        for x, mask in batches * self.epochs:
            params = trees.add(params, torch.func.grad(self.model.loss)(params, x, mask), -self.local_rate)
        update = trees.add(params, start, -1.0)
        return self.adaptive.sent(update, message["clip"]) if self.adaptive else update, memory

    def start(self) -> Tree:
        """The public state before the first round: everything a resumed run needs."""
        params = self.model.init(self.seed)
        count = torch.zeros((), dtype=torch.int64)
        state = trees.joined(model=params, server_slots=self.server.init(params), round=count)
        return state | ({"clip": torch.tensor(self.adaptive.start)} if self.adaptive else {})

    def message(self, state: Tree) -> Tree:
        """What travels to the users: the model, and the clip if it adapts."""
        message = trees.joined(model=trees.part(state, "model"))
        return message | ({"clip": state["clip"]} if self.adaptive else {})

    def _advanced(self, state: Tree, mean: Tree) -> Tree:
        """The server's part of a round."""
        state = state | {"round": state["round"] + 1}
        if self.adaptive:
            mean, state["clip"] = self.adaptive.received(mean, state["clip"])
        gradient = trees.scaled(mean, -1.0)  # the mean update is the direction to go, an optimizer wants the way back
        params, slots = self.server(trees.part(state, "model"), gradient, trees.part(state, "server_slots"))
        return state | trees.joined(model=params, server_slots=slots)

    @property
    def seedless(self) -> "FedAvg":
        return dataclasses.replace(self, seed=0)

    @property
    def contribute(self) -> Contribute:
        return self.seedless.update

    def round(self, state: Tree) -> tuple[Tree, Answered]:
        """One round: the message, and what follows from its answer."""
        return self.message(state), functools.partial(self._advanced, state)

    def result(self, state: Tree) -> Tree:
        """The model's weights."""
        return trees.part(state, "model")


def warmed(
    model: Network, params: Tree, sequences: torch.Tensor, *, steps: int, seed: int, device: str = "cpu"
) -> Tree:
    """What a language model can learn of spelling before it meets anybody's words, for free.

    The weights after so many steps of Adam on random batches of PUBLIC sequences [n, width].
    """
    rng = torch.Generator().manual_seed(seed)
    mask = torch.ones(WARM_BATCH, device=device)

    def stepped(state: Tree, batch: Tree) -> Tree:
        params, slots = trees.part(state, "params"), trees.part(state, "slots")
        params, slots = WARM_STEP(params, torch.func.grad(model.loss)(params, batch["x"], mask), slots)
        return {name: leaf.detach() for name, leaf in trees.joined(params=params, slots=slots).items()}

    step = Replayed(stepped)
    state = trees.moved(trees.joined(params=params, slots=WARM_STEP.init(params)), device)
    for _ in range(steps):
        drawn = sequences[torch.randint(len(sequences), (WARM_BATCH,), generator=rng)]
        state = step(state, {"x": drawn.to(device)})
    return trees.moved(trees.part(state, "params"), "cpu")
