"""Many models side by side: the members of one experiment train in one vectorised run."""

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol, Self

from fedlens.core.trees import Tree
from fedlens.curators.protocol import Contribute, Curators

Answered = Callable[[Tree], Tree]  # the noisy mean of a round -> the next state


class Member(Protocol):
    """An algorithm whose rounds can be run beside those of others."""

    @property
    def beside(self) -> Self:
        """Without its seed: equal, and as a key the same, for members that ask the same question."""

    @property
    def contribute(self) -> Contribute:
        """What runs beside the data."""

    def round(self, state: Tree) -> tuple[Tree, Answered]:
        """What travels to the users, and what the server makes of their answer."""


def run_together(members: Sequence[Member], curators: Curators, states: Sequence[Tree]) -> Iterator[list[Tree]]:
    """Several models that differ by their seed and their data, side by side: what `run` does, for each of them."""
    kinds = {member.beside for member in members}
    if len(kinds) > 1:
        raise ValueError("Expected members that differ by their seed only.")
    contribute, states = kinds.pop().contribute, list(states)
    while curators.remaining:
        rounds = [member.round(state) for member, state in zip(members, states, strict=True)]
        means = curators.noisy_means(contribute, [message for message, _ in rounds])
        states = [answered(mean) for (_, answered), mean in zip(rounds, means, strict=True)]
        yield states
