"""What is booked for a run: its reservations, its releases, its end, and what it has spent so far."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from fedlens.curators.protocol import PrivacySpentError
from fedlens.ledger import clock
from fedlens.ledger.chain import Entry
from fedlens.ledger.entries import OF_ACCOUNT, Entries, account_of, fact, plan_of, reservation
from fedlens.ledger.spending import Spending, charged_as


class RunClosedError(PrivacySpentError):
    """The run was ended, by itself or by hand: it releases nothing more."""


def reservations(entries: Entries, run: str) -> list[Entry]:
    return entries.where("kind = 'reserve' and run = ?", run)


def of_all_accounts(entries: Entries, name: str) -> list[Entry]:
    """What was reserved for a run, on all its accounts."""
    inside = f"{name}/"
    condition = "kind = 'reserve' and (run = ? or substr(run, 1, ?) = ?)"
    return entries.where(condition, name, len(inside), inside)


def release_counts(
    entries: Entries, condition: str, values: Sequence[Any], since: str = ""
) -> dict[tuple[str, str], tuple[int, int]]:
    """How many releases there are by run and stage, and how many of them `since` a time."""
    counted = entries.rows(
        "select run, stage, count(*), sum(case when at >= ? then 1 else 0 end) from entries"
        f" where kind = 'release' and {condition} group by run, stage",
        since,
        *values,
    )
    return {(run, stage): (int(made), int(recent)) for run, stage, made, recent in counted}


def first_numbers(entries: Entries, kind: str, population: str) -> dict[str, int]:
    """The number of the first entry of a kind, by run."""
    statement = "select run, min(id) from entries where kind = ? and population = ? group by run"
    return {run: int(number) for run, number in entries.rows(statement, kind, population)}


def closing(entries: Entries, run: str) -> Entry | None:
    """The entry that ended a run; None while it goes on."""
    closed = entries.where("kind = 'close' and run = ?", run)
    return closed[0] if closed else None


def must_be_open(entries: Entries, run: str) -> None:
    """Refuses a run that was ended."""
    if closing(entries, run):
        raise RunClosedError(f"Run {run!r} is closed: what it had not used was returned.")


def on_population(
    entries: Entries, population: str, *, reserved: bool = False, window: float | None = None
) -> list[Spending]:
    """Of all runs that are not simulated; with what is `reserved` as if it were spent already."""
    spendings = of_runs(entries, "population = ?", (population,), reserved, window)
    return [spending for spending in spendings if spending.plans and not spending.account.simulated]


def of_runs(
    entries: Entries, condition: str, values: tuple[Any, ...], reserved: bool = False, window: float | None = None
) -> list[Spending]:
    counts = release_counts(entries, condition, values, clock.first_day(entries.store, window))
    ended = {run for (run,) in entries.rows(f"select run from entries where kind = 'close' and {condition}", *values)}
    runs: dict[str, Spending] = {}
    for entry in entries.where(f"kind = 'reserve' and {condition}", *values):
        plan, (made, recent) = plan_of(entry), counts.get((entry.run, entry.stage), (0, 0))
        waiting = plan.releases - made if reserved and entry.run not in ended else 0
        held = runs.setdefault(entry.run, Spending(account=account_of(entry), plans=()))
        if recent + waiting:
            plans = (*held.plans, charged_as(plan, recent + waiting))
            runs[entry.run] = dataclasses.replace(held, plans=plans)
    return list(runs.values())


def listed(entries: Entries) -> list[dict[str, Any]]:
    """All runs: by whom, why, on what, how much of it was used."""
    closed = {entry.run: entry for entry in entries.where("kind = 'close'")}
    counts = release_counts(entries, "1 = 1", ())
    by_name: dict[str, dict[str, Any]] = {}
    for entry in entries.where("kind = 'reserve'"):
        made, _ = counts.get((entry.run, entry.stage), (0, 0))
        run = by_name.setdefault(entry.run, _described(entry, closed.get(entry.run)))
        run["stages"].append({"stage": entry.stage, "released": made, "plan": plan_of(entry).to_dict()})
    return [run | _summed_up(run) for run in by_name.values()]


def _described(entry: Entry, closed: Entry | None) -> dict[str, Any]:
    facts = reservation(entry)
    return {
        "run": entry.run,
        "population": entry.population,
        "who": entry.who,
        "at": entry.at,
        **{name: facts[name] for name in ("why", "recipe", *OF_ACCOUNT)},
        "closed": closed is not None,
        "model": fact(closed, "model", str) if closed else "",
        "stages": [],
    }


def _summed_up(run: dict[str, Any]) -> dict[str, Any]:
    stages = run["stages"]
    used = ", ".join(f"{stage['released']} of {stage['plan']['releases']} {stage['stage']}" for stage in stages)
    ending = f"{'closed' if run['closed'] else 'open'}{', SIMULATED (free)' if run['simulated'] else ''}"
    return {"released": sum(stage["released"] for stage in stages), "told": f"{used} releases, {ending}"}
