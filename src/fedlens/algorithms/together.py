"""Many models side by side: the members of one experiment train in one vectorised run."""

from collections.abc import Iterator, Sequence

from fedlens.algorithms.protocol import Algorithm
from fedlens.core.trees import Tree
from fedlens.curators.protocol import Curators


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
