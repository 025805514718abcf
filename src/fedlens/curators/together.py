"""PRIVATE. Several curators asked at once, in one vectorised pass."""

import functools
from collections.abc import Sequence

import torch

from fedlens.core import trees
from fedlens.core.replay import Replayed
from fedlens.core.trees import Tree
from fedlens.curators.contributions import Work, filled
from fedlens.curators.protocol import Contribute
from fedlens.curators.simulated import Question, SimulatedCurator


class Together:
    """Several curators asked at once, in one vectorised pass: many seeds of one experiment for little more than one.

    Every curator keeps its own data, plan, ledger, cohort and noise; a sum of one never meets a unit of another.
    """

    def __init__(self, curators: Sequence[SimulatedCurator], chunk: int) -> None:
        if any(curator.memory for curator in curators):
            raise ValueError("Expected curators whose units keep nothing: memories are not stacked.")
        if len({(each._plan.bound, each._plan.grid, each._device) for each in curators}) > 1:
            raise ValueError("Expected curators with one bound, on one device: their units are bounded in one pass.")
        self._curators, self._chunk = curators, chunk
        self._passes: dict[Work, Replayed] = {}  # the last kind of pass, recorded

    @property
    def remaining(self) -> int:
        return min(curator.remaining for curator in self._curators)

    def noisy_means(self, contribute: Contribute, messages: Sequence[Tree]) -> list[Tree]:
        """One answer from each curator."""
        how = f" together {len(self._curators)} x {self._chunk}"
        pairs = zip(self._curators, messages, strict=True)
        asked = [curator._asked(contribute, message, how) for curator, message in pairs]
        try:
            sums = self._stacked_sums(asked)
        except torch.OutOfMemoryError:
            raise  # of shapes, not of data; the other way would take hours without a word
        except Exception:  # whatever it says may quote private data; each curator has its own way with a bad unit
            sums = [each._bounded_sum(question) for each, question in zip(self._curators, asked, strict=True)]
        return [each._released(steps, q.name) for each, steps, q in zip(self._curators, sums, asked, strict=True)]

    def _stacked_sums(self, asked: Sequence[Question]) -> list[Tree]:
        messages = trees.stacked([question.message for question in asked])
        device = next(iter(messages.values())).device
        totals = trees.stacked([{k: v.double() for k, v in trees.zeros(question.shape).items()} for question in asked])
        if asked[0].work not in self._passes:
            self._passes = {asked[0].work: Replayed(functools.partial(_stacked_pass, asked[0].work))}
        run = self._passes[asked[0].work]
        for at in range(0, max(len(question.cohort) for question in asked), self._chunk):
            cohorts = [question.cohort[at : at + self._chunk] for question in asked]
            taken = [each._examples(q, units) for each, q, units in zip(self._curators, asked, cohorts, strict=True)]
            examples = trees.stacked([filled(tree, self._chunk) for tree in taken])
            real = torch.stack([torch.arange(self._chunk) < len(units) for units in cohorts])
            totals = trees.add(totals, run(messages, trees.moved(examples | {"/real": real}, device)))
        return [trees.row(totals, place) for place in range(len(asked))]


def _stacked_pass(work: Work, messages: Tree, examples: Tree) -> Tree:
    """The contributions of [curators, units] in one go, summed over the units that are real."""

    def steps(message: Tree, units: Tree) -> Tree:
        return torch.func.vmap(lambda unit: work.steps(message, unit, {})[0])(units)

    real = examples["/real"]
    with torch.no_grad():
        rows = torch.func.vmap(steps)(messages, {k: v for k, v in examples.items() if k != "/real"})
        kept = {name: leaf * real.view(*real.shape, *[1] * (leaf.dim() - 2)) for name, leaf in rows.items()}
        return {name: leaf.sum(1, dtype=torch.float64) for name, leaf in kept.items()}
