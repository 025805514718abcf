"""The one way to private data, as an algorithm sees it: noisy means, and how many are left."""

from collections.abc import Callable, Sequence
from typing import Protocol

from fedlens.core.trees import Tree

# Runs next to one unit's data: (message, examples, memory) -> (contribution, memory).
Contribute = Callable[[Tree, Tree, Tree], tuple[Tree, Tree]]


class PrivacySpentError(RuntimeError):
    """The plan, or the budget, allows no further release."""


class Curator(Protocol):
    @property
    def remaining(self) -> int:
        """How many releases the plan still allows."""

    def noisy_mean(self, contribute: Contribute, message: Tree) -> Tree:
        """The sum of bounded contributions of a cohort plus noise, over the plan's public divisor.

        Formal guarantee: the answer is one release of the plan, charged before any private byte is read.
        """

    def remember(self, contribute: Contribute, message: Tree) -> None:
        """Every unit does this for itself, and keeps what comes of it. Nothing comes back, so that nothing is charged.

        Formal guarantee: what a unit keeps follows from its own data and from messages, and leaves it by `noisy_mean`.
        """


class Curators(Protocol):
    """Several curators that are asked at once."""

    @property
    def remaining(self) -> int:
        """How many releases every one of them still allows."""

    def noisy_means(self, contribute: Contribute, messages: Sequence[Tree]) -> list[Tree]:
        """One answer from each, as `Curator.noisy_mean` would give it."""
