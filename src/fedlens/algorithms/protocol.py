"""The contract of an algorithm: what runs beside the data, what travels to it, and what is made of the answers.

An algorithm is a frozen dataclass of plain settings. Its `contribute` is the only part that ever meets private data,
and it runs where they lie; all the rest sees noisy means. Here is one that asks a single question, through a stand-in
for a curator that adds no noise:

>>> import torch
>>> from fedlens.core import trees
>>> @dataclasses.dataclass(frozen=True, kw_only=True)
... class Brightness(OneRelease):
...     name: ClassVar[str] = "brightness"
...     examples_per_unit: int = 2
...
...     def contribute(self, message: Tree, examples: Tree, memory: Tree) -> tuple[Tree, Tree]:
...         there = examples["mask"].sum().clamp(min=1.0)  # who holds nothing sends zero
...         return {"mean": (examples["x"] * examples["mask"]).sum() / there}, memory
...
...     def start(self) -> Tree:
...         return {"mean": torch.zeros(()), "round": torch.tensor(0)}
...
...     def result(self, state: Tree) -> float:
...         return round(float(state["mean"]), 3)

>>> class Exact:
...     remaining = 1
...
...     def noisy_mean(self, contribute: Contribute, message: Tree) -> Tree:
...         users = [{"x": torch.tensor(x), "mask": torch.tensor([1.0, 1.0])} for x in ([0.2, 0.4], [0.8, 1.0])]
...         return trees.scaled(trees.add(*(contribute(message, user, {})[0] for user in users)), 1 / len(users))

>>> algorithm = Brightness()
>>> [state] = algorithm.run(Exact(), algorithm.start())
>>> algorithm.result(state), int(state["round"])
(0.6, 1)
"""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Protocol, Self

from fedlens.algorithms.clipping import AdaptiveClip
from fedlens.core import trees
from fedlens.core.trees import Tree
from fedlens.curators.protocol import Contribute, Curator, Curators
from fedlens.privacy import Promise

Answered = Callable[[Tree], Tree]  # the noisy mean of a round -> the next state


class Algorithm(Protocol):
    """Plain settings, as a frozen dataclass, and these; everything public is a function of settings and answers."""

    name: ClassVar[str]

    @property
    def examples_per_unit(self) -> int:
        """How many examples of a unit are shown to `contribute`, at most."""

    @property
    def seedless(self) -> Self:
        """Without its seed: equal, and as a key the same, for members that ask the same question."""

    @property
    def contribute(self) -> Contribute:
        """What runs beside the data: knows no seed, and follows from message, examples and memory alone.

        A question asked again, after a crash, must be answered alike; so whatever is random comes with the message.
        """

    def memory(self, units: int, /) -> Tree:
        """What so many units keep to themselves before the first release, a row each; {} if they keep nothing."""

    def start(self) -> Tree:
        """The public state before the first release: all that a resumed run needs, with `round`, a whole number."""

    def round(self, state: Tree, /) -> tuple[Tree, Answered]:
        """What travels to the units, and what the server makes of their answer: the next state."""

    def run(self, curator: Curator, state: Tree, /) -> Iterator[Tree]:
        """One state per release, until the plan is spent or there is nothing left to ask."""

    def result(self, state: Tree, /) -> Any:
        """What all this is for: weights, words, a number."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Asked:
    """What a recipe asks for: the network that its medium builds, the plan of the releases, and how to train."""

    network: Any
    plan: Promise
    training: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # optimizers are built already
    adaptive: AdaptiveClip | None = None
    seed: int = 0

    def options(self, wanted: frozenset[str]) -> dict[str, Any]:
        """Of `training` what an algorithm uses; what is left out has the algorithm's own default."""
        return {name: value for name, value in self.training.items() if name in wanted}


class Trainable(Algorithm, Protocol):
    """An algorithm that a recipe can name."""

    media: ClassVar[tuple[str, ...]]  # of whose examples it makes models
    options: ClassVar[frozenset[str]]  # of a recipe's [training] that it uses

    @classmethod
    def rows(cls, training: Mapping[str, Any], /) -> int | None:
        """Of what a unit sends, if each row is bounded by itself, with these options; None: bounded as a whole."""

    @classmethod
    def configured(cls, asked: Asked, /) -> Self:
        """As a recipe asks for it."""


class Forgetful:
    """What units keep between releases: nothing."""

    def memory(self, units: int) -> Tree:
        return {}


class Unseeded:
    """Nothing is drawn, so there is no seed to be without."""

    @property
    def seedless(self) -> Self:
        return self


class OneNorm:
    """What a unit sends is bounded as a whole."""

    @classmethod
    def rows(cls, training: Mapping[str, Any]) -> int | None:
        return None


class ManyReleases(Forgetful, OneNorm):
    """Asks the same question in every round."""

    def run(self: Algorithm, curator: Curator, state: Tree) -> Iterator[Tree]:
        """One state per round, until the plan is spent."""
        contribute = self.contribute
        while curator.remaining:
            message, answered = self.round(state)
            yield (state := answered(curator.noisy_mean(contribute, message)))


class OneRelease(Forgetful, Unseeded, OneNorm):
    """Asks one question, and is done: its state is the answer."""

    def message(self) -> Tree:
        """What travels to the units."""
        return {}

    def round(self, state: Tree) -> tuple[Tree, Answered]:
        return self.message(), lambda answer: trees.moved(answer, "cpu") | {"round": state["round"] + 1}

    def run(self: Algorithm, curator: Curator, state: Tree) -> Iterator[Tree]:
        """One release, and the state after it."""
        if curator.remaining and not state["round"]:
            message, answered = self.round(state)
            yield answered(curator.noisy_mean(self.contribute, message))


def run_together(members: Sequence[Algorithm], curators: Curators, states: Sequence[Tree]) -> Iterator[list[Tree]]:
    """Several models that differ by their seed and their data, side by side: what `run` does, for each of them."""
    kinds = {member.seedless for member in members}
    if len(kinds) > 1:
        raise ValueError("Expected members that differ by their seed only.")
    contribute, states = kinds.pop().contribute, list(states)
    while curators.remaining:
        rounds = [member.round(state) for member, state in zip(members, states, strict=True)]
        means = curators.noisy_means(contribute, [message for message, _ in rounds])
        states = [answered(mean) for (_, answered), mean in zip(rounds, means, strict=True)]
        yield states
