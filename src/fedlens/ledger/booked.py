"""What is booked for a run: its reservations, its releases and its end."""

from collections.abc import Sequence
from typing import Any

from fedlens.curators.protocol import PrivacySpentError
from fedlens.ledger.chain import Entry
from fedlens.ledger.entries import Entries
from fedlens.ledger.facts import fact, plan_of, reservation


class RunClosedError(PrivacySpentError):
    """The run was ended, by itself or by hand: it releases nothing more."""


def reservations(entries: Entries, run: str) -> list[Entry]:
    return entries.where("kind = 'reserve' and run = ?", run)


def of_all_accounts(entries: Entries, name: str) -> list[Entry]:
    """What was reserved for a run, on all its accounts."""
    inside = f"{name}/"
    condition = "kind = 'reserve' and (run = ? or substr(run, 1, ?) = ?)"
    return entries.where(condition, name, len(inside), inside)


def runs(entries: Entries) -> set[str]:
    """The names of all runs there ever were."""
    return {run for (run,) in entries.rows("select distinct run from entries where kind = 'reserve'")}


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


def queries(entries: Entries, run: str, stage: str) -> list[str]:
    """What was asked, by the order of the releases."""
    statement = "select query from entries where kind = 'release' and run = ? and stage = ? order by release, id"
    return [query for (query,) in entries.rows(statement, run, stage)]


def closing(entries: Entries, run: str) -> Entry | None:
    """The entry that ended a run; None while it goes on."""
    closed = entries.where("kind = 'close' and run = ?", run)
    return closed[0] if closed else None


def has_ended(entries: Entries, run: str) -> bool:
    return bool(entries.rows("select 1 from entries where kind = 'close' and run = ?", run))


def must_be_open(entries: Entries, run: str) -> None:
    """Refuses a run that was ended."""
    if has_ended(entries, run):
        raise RunClosedError(f"Run {run!r} is closed: what it had not used was returned.")


def learnt(entries: Entries, run: str) -> frozenset[str]:
    """The short hashes of the words that a run has learnt; none for a run that learnt no words."""
    closed = closing(entries, run)
    return frozenset(closed.facts.get("words", ())) if closed else frozenset()


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
        "why": facts["why"],
        "recipe": facts["recipe"],
        "partition": facts["partition"],
        "part": facts["part"],
        "simulated": facts["simulated"],
        "closed": closed is not None,
        "model": fact(closed, "model", str) if closed else "",
        "stages": [],
    }


def _summed_up(run: dict[str, Any]) -> dict[str, Any]:
    stages = run["stages"]
    used = ", ".join(f"{stage['released']} of {stage['plan']['releases']} {stage['stage']}" for stage in stages)
    ending = f"{'closed' if run['closed'] else 'open'}{', SIMULATED (free)' if run['simulated'] else ''}"
    return {"released": sum(stage["released"] for stage in stages), "told": f"{used} releases, {ending}"}
