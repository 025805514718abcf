"""How populations stand: what decides whether a run may begin, and what is spent and reserved of a budget."""

import dataclasses
import math
from collections.abc import Mapping, Sequence

from fedlens.curators.protocol import PrivacySpentError
from fedlens.ledger import booked, clock, reviewers, spent
from fedlens.ledger.allowance import Allowance, Owed
from fedlens.ledger.budgets import Standing
from fedlens.ledger.entries import Entries
from fedlens.ledger.facts import account_of, plan_of
from fedlens.ledger.items import Item
from fedlens.ledger.spending import Kind, guarantee, is_gaussian, kind_of_plan, owed


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Reserved:
    """A whole plan that was reserved, by the number of its entry and the stage it is of."""

    number: int
    stage: str
    whole: Owed

    @property
    def run(self) -> str:
        return self.whole.account.run

    def still_owed(self, made: int, recent: int, *, closed: bool) -> Owed | None:
        """What it takes from the budget: releases within the window, and those that may still come."""
        releases = recent + (0 if closed else self.whole.plan.releases - made)
        return dataclasses.replace(self.whole, plan=owed(self.whole.plan, releases)) if releases else None


def within_budget(entries: Entries, population: str, items: Sequence[Item]) -> None:
    """Refuses what a population's budget does not hold; without a budget, nothing."""
    state = allowance(entries, population)
    if state is None:
        return
    for item in items:
        state.budget.covers(item.plan)
    new = [item.spending for item in items]
    if not state.fits(new):
        raise PrivacySpentError(state.refusal(new))


def refusal(entries: Entries, population: str, items: Sequence[Item]) -> str:
    """Why this would not be let in just now; empty if it would."""
    try:
        within_budget(entries, population, items)
    except (PrivacySpentError, ValueError) as error:
        return str(error)
    return ""


def allowance(entries: Entries, population: str, kind: Kind | None = None) -> Allowance | None:
    """What decides whether a run on a population may begin; None where it has no budget.

    By default all that counts is looked at, and else what is of one kind.
    """
    budget = reviewers.budget(entries, population)
    if budget is None:
        return None
    closed = booked.first_numbers(entries, "close", population)
    released = booked.first_numbers(entries, "release", population)
    since = clock.first_day(entries.store, budget.window)
    counts = booked.release_counts(entries, "population = ?", (population,), since)
    reserved, simulated = _reserved(entries, population)
    mine = [one for one in reserved if kind in (None, kind_of_plan(one.whole.plan))]
    first = min((number for run, number in released.items() if run not in simulated), default=None)
    budgeted = reviewers.budget_entries(entries, population)[-1].id
    before = spent.on_population(entries, population, reserved=True, window=budget.window)
    return Allowance(
        budget=budget,
        before=tuple(spending for spending in before if kind in (None, spending.kind)),
        owed=_owed(mine, counts, closed),
        committed=None if first is None else _committed(mine, budgeted, first, closed),
        sampled=max((one.whole.number for one in reserved), default=0),
    )


def _reserved(entries: Entries, population: str) -> tuple[list[_Reserved], set[str]]:
    """All plans that were reserved, those that sample numbered; and the runs that are simulated, which are free."""
    reserved: list[_Reserved] = []
    simulated: set[str] = set()
    sampled = 0
    for entry in entries.where("kind = 'reserve' and population = ?", population):
        account, plan = account_of(entry), plan_of(entry)
        if account.simulated:
            simulated.add(entry.run)
            continue
        gaussian = is_gaussian(plan)
        sampled += not gaussian
        whole = Owed(account=account, plan=plan, number=0 if gaussian else sampled)
        reserved.append(_Reserved(number=entry.id, stage=entry.stage, whole=whole))
    return reserved, simulated


def _owed(
    reserved: Sequence[_Reserved], counts: Mapping[tuple[str, str], tuple[int, int]], closed: Mapping[str, int]
) -> tuple[Owed, ...]:
    """What is spent within the window, or still waits."""
    charged = (one.still_owed(*counts.get((one.run, one.stage), (0, 0)), closed=one.run in closed) for one in reserved)
    return tuple(one for one in charged if one)


def _committed(reserved: Sequence[_Reserved], budgeted: int, first: int, closed: Mapping[str, int]) -> tuple[Owed, ...]:
    """What was reserved under the budget before the first release, and not given back before it."""
    return tuple(one.whole for one in reserved if max(one.number, budgeted) < first < closed.get(one.run, math.inf))


def all_standings(entries: Entries) -> list[Standing]:
    """Of all populations; what protects units or neighbours of another kind is counted apart."""
    standings = []
    for population in reviewers.populations(entries):
        budget = reviewers.budget(entries, population)
        kinds = {spending.kind for spending in spent.on_population(entries, population, reserved=True)}
        kinds |= {(budget.unit, budget.neighbours)} if budget else set()
        standings += [standing(entries, population, kind) for kind in sorted(kinds)]
    return standings


def standing(entries: Entries, population: str, kind: Kind, delta: float = 1e-5) -> Standing:
    """At the budget's delta, if there is a budget for this kind of unit and neighbours."""
    budget = reviewers.budget(entries, population)
    budget = budget if budget and (budget.unit, budget.neighbours) == kind else None
    at, window = (budget.delta, budget.window) if budget else (delta, None)
    made = [s for s in spent.on_population(entries, population, window=window) if s.kind == kind]
    promised = [s for s in spent.on_population(entries, population, reserved=True, window=window) if s.kind == kind]
    state = allowance(entries, population, kind) if budget else None
    return Standing(
        population=population,
        budget=budget,
        spent=guarantee(made, at) if made else None,
        promised=guarantee(promised, at) if promised else None,
        runs=len({spending.account.run.split("/")[0] for spending in promised}),
        rule=str(state.rule) if state else None,
        counted=state.counted() if state else None,
        told=state.told() if state else "",
    )
