"""How populations stand: what decides whether a run may begin, and what is spent and reserved of a budget."""

import dataclasses
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

from fedlens.curators.protocol import PrivacySpentError
from fedlens.ledger import booked, clock, reviewers
from fedlens.ledger.allowance import Allowance, Owed, numbered
from fedlens.ledger.budgets import Standing
from fedlens.ledger.chain import Entry, root
from fedlens.ledger.entries import Entries, account_of, plan_of
from fedlens.ledger.spending import Item, Kind, guarantee, kind_of_plan, owed

Counts = Mapping[tuple[str, str], tuple[int, int]]  # by run and stage: releases, and those within the window
_Reserved = tuple[Entry, Owed]  # the reservation of a plan, and what the whole plan is charged as


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
    closed, released = (booked.first_numbers(entries, which, population) for which in ("close", "release"))
    since = clock.first_day(entries.store, budget.window)
    counts = booked.release_counts(entries, "population = ?", (population,), since)
    every = entries.where("kind = 'reserve' and population = ?", population)
    free = {entry.run for entry in every if account_of(entry).simulated}
    first = min((number for run, number in released.items() if run not in free), default=None)
    reserved = _charged(every)
    mine = [(entry, whole) for entry, whole in reserved if kind in (None, kind_of_plan(whole.plan))]
    budgeted = reviewers.budget_entries(entries, population)[-1].id
    before = booked.on_population(entries, population, reserved=True, window=budget.window)
    return Allowance(
        budget=budget,
        before=tuple(spending for spending in before if kind in (None, spending.kind)),
        owed=tuple(_owed(mine, counts, closed)),
        committed=None if first is None else _committed(mine, budgeted, first, closed),
        sampled=max((whole.number for _, whole in reserved), default=0),
    )


def _charged(every: Sequence[Entry]) -> list[_Reserved]:
    """All plans that were reserved, those that sample numbered; simulated ones are free."""
    paying = [entry for entry in every if not account_of(entry).simulated]
    return list(zip(paying, numbered((account_of(entry), plan_of(entry)) for entry in paying), strict=True))


def _owed(reserved: Iterable[_Reserved], counts: Counts, closed: Mapping[str, int]) -> Iterator[Owed]:
    """What is spent within the window, or may still come."""
    for entry, whole in reserved:
        made, recent = counts.get((entry.run, entry.stage), (0, 0))
        releases = recent + (0 if entry.run in closed else whole.plan.releases - made)
        if releases:
            yield dataclasses.replace(whole, plan=owed(whole.plan, releases))


def _committed(mine: Iterable[_Reserved], budgeted: int, first: int, closed: Mapping[str, int]) -> tuple[Owed, ...]:
    """What was reserved under the budget before the first release, and not given back before it."""
    return tuple(whole for entry, whole in mine if max(entry.id, budgeted) < first < closed.get(entry.run, math.inf))


def all_standings(entries: Entries) -> list[Standing]:
    """Of all populations; what protects units or neighbours of another kind is counted apart."""
    standings = []
    for population in reviewers.populations(entries):
        budget = reviewers.budget(entries, population)
        kinds = {spending.kind for spending in booked.on_population(entries, population, reserved=True)}
        kinds |= {(budget.unit, budget.neighbours)} if budget else set()
        standings += [standing(entries, population, kind) for kind in sorted(kinds)]
    return standings


def standing(entries: Entries, population: str, kind: Kind, delta: float = 1e-5) -> Standing:
    """At the budget's delta, if there is a budget for this kind of unit and neighbours."""
    budget = reviewers.budget(entries, population)
    budget = budget if budget and (budget.unit, budget.neighbours) == kind else None
    at, window = (budget.delta, budget.window) if budget else (delta, None)
    made = [s for s in booked.on_population(entries, population, window=window) if s.kind == kind]
    promised = [s for s in booked.on_population(entries, population, reserved=True, window=window) if s.kind == kind]
    state = allowance(entries, population, kind) if budget else None
    return Standing(
        population=population,
        budget=budget,
        spent=guarantee(made, at) if made else None,
        promised=guarantee(promised, at) if promised else None,
        runs=len({root(spending.account.run) for spending in promised}),
        rule=str(state.rule) if state else None,
        counted=state.counted() if state else None,
        in_words=state.in_words() if state else "",
    )
