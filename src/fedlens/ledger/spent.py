"""What runs have spent, as far as they got; and what is reserved as if it were spent already."""

import dataclasses
from typing import Any

from fedlens.ledger import booked, clock
from fedlens.ledger.entries import Entries
from fedlens.ledger.facts import account_of, plan_of
from fedlens.ledger.spending import Spending, carried_out


def by_run(entries: Entries, run: str) -> Spending:
    """What a run has spent so far, in plain terms that can travel with its model."""
    spendings = [spending for spending in of_runs(entries, "run = ?", (run,)) if spending.plans]
    if len(spendings) != 1:
        raise ValueError(f"Expected entries of run {run!r} on one account in the ledger.")
    return spendings[0]


def on_population(
    entries: Entries, population: str, *, reserved: bool = False, window: float | None = None
) -> list[Spending]:
    """Of all runs that are not simulated; with what is `reserved` as if it were spent already."""
    spendings = of_runs(entries, "population = ?", (population,), reserved, window)
    return [spending for spending in spendings if spending.plans and not spending.account.simulated]


def of_runs(
    entries: Entries, condition: str, values: tuple[Any, ...], reserved: bool = False, window: float | None = None
) -> list[Spending]:
    counts = booked.release_counts(entries, condition, values, clock.first_day(entries.store, window))
    ended = {run for (run,) in entries.rows(f"select run from entries where kind = 'close' and {condition}", *values)}
    runs: dict[str, Spending] = {}
    for entry in entries.where(f"kind = 'reserve' and {condition}", *values):
        plan, (made, recent) = plan_of(entry), counts.get((entry.run, entry.stage), (0, 0))
        waiting = plan.releases - made if reserved and entry.run not in ended else 0
        held = runs.setdefault(entry.run, Spending(account=account_of(entry), plans=()))
        if recent + waiting:
            plans = (*held.plans, carried_out(plan, recent + waiting))
            runs[entry.run] = dataclasses.replace(held, plans=plans)
    return list(runs.values())
