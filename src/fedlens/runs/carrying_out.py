"""The one engine that carries out stages: for runs, vocabularies and experiments alike.

A stage is begun, or gone on with from what was kept of it; asked round after round; and what it must not lose is kept.
What that is, and where it lies, is for a `Keeper` to say.
"""

import dataclasses
import pathlib
from typing import NamedTuple

from fedlens.core import trees
from fedlens.core.randomness import Randomness
from fedlens.core.trees import Tree
from fedlens.curators.engine import Engine
from fedlens.curators.memory import Memory
from fedlens.curators.protocol import PrivacySpentError
from fedlens.curators.simulated import SimulatedCurator
from fedlens.curators.site import Site, Thresholds
from fedlens.ledger import Account, Ledger, RunClosedError
from fedlens.recipes.stages import Stage


class Kept(NamedTuple):
    """What a stage goes on from."""

    state: Tree
    engine: Engine | None = None  # whose arithmetic its questions were named with
    memory: Memory | None = None  # PRIVATE. What its units remember


class Keeper:
    """Keeps nothing: a stage that is interrupted is asked again, and what was charged is told again for free."""

    scratch: pathlib.Path | None = None  # PRIVATE. The folder of what units remember, where memory is too small for it

    def resumed(self, stage: Stage) -> Kept | None:
        """What was kept last."""
        return None

    def save(self, state: Tree, curator: SimulatedCurator) -> None:
        """So that an interrupted stage can go on from here."""

    def went_on(self, state: Tree, curator: SimulatedCurator) -> None:
        """After every release."""

    def ended_early(self, state: Tree, curator: SimulatedCurator, refusal: PrivacySpentError) -> None:
        """When no further release is to be had."""
        raise refusal


@dataclasses.dataclass(frozen=True, kw_only=True)
class Asking:
    """On whose account a stage is asked, with which noise, and where it is computed."""

    book: Ledger
    account: Account
    randomness: Randomness
    device: str = "cpu"
    engine: Engine | None = None  # None: measured, and kept

    def curator(
        self,
        site: Site,
        stage: Stage,
        thresholds: Thresholds | None = None,
        kept: Kept | None = None,
        scratch: pathlib.Path | None = None,
    ) -> SimulatedCurator:
        """On the units of a stage, to begin it or to go on from what was kept."""
        return site.curator(
            stage,
            thresholds or {},
            ledger=self.book,
            account=self.account,
            randomness=self.randomness,
            engine=(kept and kept.engine) or self.engine,
            device=self.device,
            position=int(kept.state["round"]) if kept else 0,
            memory=kept and kept.memory,
            scratch=scratch,
        )


def carried_out(
    stage: Stage, site: Site, asking: Asking, thresholds: Thresholds | None = None, keeper: Keeper | None = None
) -> Tree:
    """The last state of a stage. Safe to interrupt at any point and to call again with the same keeper."""
    keeper = keeper or Keeper()
    kept = keeper.resumed(stage)
    curator = asking.curator(site, stage, thresholds, kept, keeper.scratch)
    state = trees.moved(kept.state if kept else stage.start(asking.device), asking.device)
    if curator.engine is None:
        # Killed in its first round, it must be able to ask the same again: another engine's is another question.
        curator.settle(stage.algorithm.contribute, stage.algorithm.round(state)[0])
        keeper.save(state, curator)
    remembered = curator.memory.name
    try:
        for state in stage.algorithm.run(curator, state):  # noqa: B020 the latest is what is kept
            remembered = curator.memory.name
            keeper.went_on(state, curator)
    except RunClosedError:
        raise  # somebody gave it up
    except PrivacySpentError as refusal:
        keeper.ended_early(state, curator, refusal)
    except (KeyboardInterrupt, OSError):
        # In the middle of a round units remember more than goes with the state, or are torn. Saved with it, they would
        # be asked something new: what was saved before asks the same again, for free.
        if curator.memory.name == remembered:
            keeper.save(state, curator)
        raise
    keeper.save(state, curator)
    return state
