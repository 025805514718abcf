"""Whether a run may still begin: by what was planned before anything was seen, and by a filter from then on."""

import collections
import dataclasses
import enum
import math
from collections.abc import Iterable, Sequence

from fedlens.ledger.budgets import Budget, over
from fedlens.ledger.spending import Account, Spending, guarantee, is_gaussian, kind_of, part_of, priced, suffered
from fedlens.privacy import Promise, accounting, filters, rounded
from fedlens.privacy.losses import Gaussian

_COARSE = 20.0


class Rule(enum.StrEnum):
    """What decides, as far as it goes by the population's past: never by an answer."""

    BEFOREHAND = "planned beforehand"  # nothing is released yet: whatever is planned was planned without looking
    FILTER = "filter"  # plans may be chosen after looking
    AS_PLANNED = "as planned"  # what was planned beforehand fills the budget: it may be carried out


@dataclasses.dataclass(frozen=True, kw_only=True)
class Owed:
    """A plan as far as it is charged; of those that sample, the how-many-th of its population it is, else 0."""

    account: Account
    plan: Promise
    number: int = 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Allowance:
    """How a population stands when a run asks to begin. Formal guarantee: see `privacy.filters`, and `rule`."""

    budget: Budget
    before: tuple[Spending, ...]  # spent or reserved, release by release
    owed: tuple[Owed, ...]  # the same, as a filter charges it
    committed: tuple[Owed, ...] | None  # reserved under this budget before the first release; None: there was none
    sampled: int  # how many plans that sample were ever reserved

    @property
    def rule(self) -> Rule:
        """Fixed by what was planned before the first release, so that no answer has a say in it.

        Were it chosen after looking, between two rules that each keep delta, twice the delta could be lost. So where
        what was planned beforehand fits the filter, the filter counts all of it and all that follows. Where it fits
        only because it was planned at once, it may be carried out, and nothing else may be added: as many releases of
        every kind, in whatever order, are covered by the price they had together.
        """
        if self.budget.window is not None:
            return Rule.FILTER  # what was planned before the first release of a window changes as the window moves
        if self.committed is None:
            return Rule.BEFOREHAND
        return Rule.FILTER if not over(self.budget, self._filtered(self.committed)) else Rule.AS_PLANNED

    def fits(self, new: Sequence[Spending], quick: bool = False) -> bool:
        """Whether these may begin; `quick` is never cheaper, where a finer grid of losses might tell."""
        after = [*self.before, *new]
        kind_of([plan for spending in after for plan in spending.plans])
        rule = self.rule
        if rule is Rule.FILTER:
            return not over(self.budget, self.counted(new))
        if rule is Rule.AS_PLANNED:
            return self._held(after)
        coarse = guarantee(after, self.budget.delta, _COARSE).epsilon
        return not over(self.budget, coarse) or (not quick and not over(self.budget, self.planned(new)))

    def planned(self, new: Sequence[Spending] = ()) -> float:
        """What it would all cost had it been planned at once."""
        after = [*self.before, *new]
        return guarantee(after, self.budget.delta).epsilon if after else 0.0

    def counted(self, new: Sequence[Spending] = ()) -> float:
        """What it all takes from the budget, were every plan chosen after looking at the answers before it."""
        plans = ((spending.account, plan) for spending in new for plan in spending.plans)
        return self._filtered([*self.owed, *numbered(plans, self.sampled)])

    def refusal(self, new: Sequence[Spending]) -> str:
        """Why these may not begin."""
        name, budget, at_once = self.budget.population, self.budget, rounded(self.planned(new))
        if self.rule is Rule.AS_PLANNED and self._commitments_fit:
            return (
                f"What was planned on {name!r} before its first answer was seen fits its budget of {budget.epsilon:g}"
                " only because it was planned at once: it may be carried out, and nothing else may be added but"
                " releases of the same kind that it gave back."
            )
        spent, whole, explained = self.planned(), self.planned(new), ""
        if self.rule is Rule.FILTER:
            spent, whole = self.counted(), self.counted(new)
        if self.rule is Rule.FILTER and rounded(whole) != at_once:
            explained = (
                f" (Counted so that plans may be chosen after looking; planned all at once, it would be {at_once}.)"
            )
        return (
            f"This run would take {name!r} to epsilon {rounded(whole)} at delta {budget.delta:g};"
            f" its budget is {budget.epsilon:g}, and {rounded(spent)} is spent or reserved.{explained}"
        )

    def in_words(self, new: Sequence[Spending] = ()) -> str:
        """For plan and show: which rule counts and what it makes of it; empty where no plan samples."""
        rule = self.rule
        if rule is Rule.AS_PLANNED:
            return "what was planned before the first answer fills the budget: nothing else may be added"
        plans = [plan for spending in [*self.before, *new] for plan in spending.plans]
        if all(map(is_gaussian, plans)):
            return ""
        counted = self.counted(new)
        if rule is Rule.BEFOREHAND:
            follow = " (more than the budget: nothing else could follow)" if over(self.budget, counted) else ""
            return (
                "priced as planned at once, before any answer is seen; once one is, plans that sample count as the"
                f" Gaussian that gives away at least as much: epsilon {rounded(counted)}{follow}"
            )
        return (
            "plans may be chosen after looking: those that sample count, whole, as the Gaussian that gives away at"
            f" least as much: epsilon {rounded(counted)} of {self.budget.epsilon:g}; planned all at once it would be"
            f" {rounded(self.planned(new))}"
        )

    def _filtered(self, owed: Sequence[Owed]) -> float:
        """A unit is in one part of every partition: of each, the dearest counts. It was in it before any answer."""
        parts: dict[str, collections.Counter[str]] = {}
        for one in owed:
            plan, left = priced(one.plan), filters.slack(one.number, self.budget.delta) if one.number else 0.0
            part = part_of(Spending(account=one.account, plans=(plan,)))
            charges = parts.setdefault(one.account.partition, collections.Counter())
            charges[part] += filters.square(plan.loss, plan.participations, left)  # type: ignore[assignment]
        return filters.epsilon(math.fsum(max(charges.values()) for charges in parts.values()), self.budget.delta)

    def _held(self, after: Sequence[Spending]) -> bool:
        """Whether all of it is within what was planned beforehand: as many releases of a kind, as much of Gaussians."""
        name = self.budget.population
        asked, planned = suffered(after, name), suffered(self._commitments, name)
        rest = (count <= planned.get(loss, 0) for loss, count in asked.items() if not isinstance(loss, Gaussian))
        return self._commitments_fit and all(rest) and _squares(asked) <= _squares(planned) * (1 + 1e-9)

    @property
    def _commitments(self) -> list[Spending]:
        return [Spending(account=one.account, plans=(one.plan,)) for one in self.committed or ()]

    @property
    def _commitments_fit(self) -> bool:
        """As they did when they were made, unless the budget was lowered between them and the first release."""
        return not over(self.budget, guarantee(self._commitments, self.budget.delta).epsilon)


def numbered(plans: Iterable[tuple[Account, Promise]], sampled: int = 0) -> list[Owed]:
    """Plans as they are charged; those that sample are counted from the number that were `sampled` before on."""
    owed = []
    for account, plan in plans:
        sampled += not is_gaussian(plan)
        owed.append(Owed(account=account, plan=plan, number=0 if is_gaussian(plan) else sampled))
    return owed


def _squares(losses: accounting.Losses) -> float:
    gaussians = [loss for loss in losses if isinstance(loss, Gaussian)]
    if any(loss.multiplier < accounting.NO_NOISE for loss in gaussians):
        return math.inf
    return math.fsum(losses[loss] / loss.multiplier**2 for loss in gaussians)
