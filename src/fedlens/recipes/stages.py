"""A run is a tuple of stages: what is asked of whom, under which plan, in which order. Plans have names.

A recipe with two groups and learnt thresholds:

    thresholds   of everybody's verdicts    one noisy histogram
    count        of the group "low"         is anybody there?
    first        of the group "low"         what its model starts from, if a recipe wants that
    train        of the group "low"         the model
    count        of the group "high"
    train        of the group "high"

A stage is public: it says nothing about the data, and costs what its plan costs. One engine carries out all of them:
see runs.carrying_out.
"""

import dataclasses
from collections.abc import Callable

from fedlens.algorithms.protocol import Algorithm
from fedlens.core.trees import Tree
from fedlens.privacy import Everyone, L2Clip, Neighbours, Plan, Promise, Unit
from fedlens.recipes.tables import Selection

COUNT, FIRST, TRAIN = "count", "first", "train"
THRESHOLDS = "thresholds"  # the account, the stage and the secret of the release that they are learnt from


@dataclasses.dataclass(frozen=True, kw_only=True)
class Stage:
    """One algorithm, carried out on one group under one plan."""

    name: str  # what the ledger books its releases as
    group: str  # whose account is charged: a selection, or the thresholds
    who: Selection | None  # the rule that selects the units; None: the verdict on each of all
    plan: Promise
    algorithm: Algorithm
    warmed: Callable[[Tree, str], Tree] | None = None  # what the first state learns before the first release
    seed: int = 0  # by which units are dealt to shards, where its plan has any
    waits: bool = False  # its first state follows from the answer to another stage, which `warmed` must know

    def start(self, device: str = "cpu") -> Tree:
        """The public state before the first release; what it learns, it learns on a device."""
        if self.waits:
            raise ValueError("Expected the answer that this stage starts from.")  # it is paid for
        state = self.algorithm.start()
        return self.warmed(state, device) if self.warmed else state


def once(noise_multiplier: float, *, unit: Unit, neighbours: Neighbours) -> Plan:
    """One release that every unit is in, each with a contribution of at most 1."""
    return Plan(
        sampling=Everyone(),
        bound=L2Clip(norm=1.0),
        noise_multiplier=noise_multiplier,
        releases=1,
        expected_contributors=1.0,
        unit=unit,
        neighbours=neighbours,
    )
