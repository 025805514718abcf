"""What a file made from private data states about itself: written, read back, held against the books."""

import contextlib
import dataclasses
import pathlib
from collections.abc import Sequence
from typing import Any

from fedlens.core import files
from fedlens.ledger import booked
from fedlens.ledger.chain import Entry, Head, root
from fedlens.ledger.entries import Entries, account_of, fact, plan_of
from fedlens.ledger.spending import Spending, guarantee

_LEARNING = "thresholds"  # the stage of a run that decides who is in which group: every model of it depends on it


def provenance(spending: Spending, delta: float) -> dict[str, Any]:
    """What every file made from private data says about itself; the guarantee can be recomputed from the spending."""
    return {"spending": spending.to_dict(), "delta": delta, "guarantee": guarantee([spending], delta).to_dict()}


def damage_of(path: pathlib.Path) -> contextlib.AbstractContextManager[None]:
    """Around the values of a header, each of which may be anything."""
    return files.damage(f"Expected a whole header in {path.name}; it is damaged.")


def as_label(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value


def as_number(value: object) -> int:
    if not files.whole(value, 0, 2**53):
        raise TypeError
    return value


def as_delta(value: object) -> float:
    if not files.finite(value) or not 0 < value < 1:
        raise ValueError
    return float(value)


def as_head(value: Any) -> Head:
    """The number and hash of an entry and, unless an older version wrote it, which ledger it is of."""
    number, digest, *ledger = value
    if len(ledger) > 1:
        raise ValueError
    return (as_number(number), as_label(digest), *map(as_label, ledger))  # type: ignore[return-value]


def missing(entries: Entries, claimed: Spending, earlier: Sequence[Spending], model: str, vocabulary: str) -> str:
    """What is missing for the ledger to confirm a header; empty if nothing is. Refuses one that it contradicts."""
    run = claimed.account.run
    reserved = booked.reservations(entries, run)
    if not reserved:
        return f"it knows no run {run!r}"
    _must_be_its_account(claimed, reserved[0])
    _must_be_its_plans(entries, claimed, earlier)
    _must_price_its_vocabulary(entries, run, earlier, vocabulary)
    for learning in earlier:
        if not _is_priced(entries, run, learning):
            return f"it knows no run {learning.account.run!r}, which learnt the vocabulary"
    kept = _kept_model(entries, run, model)
    return "" if kept else f"run {run!r} was not finished: the hash of its model is not booked"


def _must_be_its_account(claimed: Spending, reserved: Entry) -> None:
    """A header may call simulated what was not: it claims less. It may not call real what was simulated."""
    account = account_of(reserved)
    as_booked = dataclasses.replace(claimed.account, simulated=account.simulated)
    if as_booked != account or (account.simulated and not claimed.account.simulated):
        raise _contradicted(account.run, "account")


def _must_be_its_plans(entries: Entries, claimed: Spending, earlier: Sequence[Spending]) -> None:
    run = claimed.account.run
    held = booked.of_runs(entries, "run = ?", (run,))[0].plans
    whole = booked.of_all_accounts(entries, root(run))
    thresholds = [plan_of(entry) for entry in whole if entry.stage == _LEARNING]
    before = [plan for learning in earlier for plan in learning.plans] + thresholds
    if claimed.plans != (*before, *held):
        raise _contradicted(run, "plans")


def _must_price_its_vocabulary(entries: Entries, run: str, earlier: Sequence[Spending], vocabulary: str) -> None:
    """Words that a run of this ledger learnt were paid for: the header must say so."""
    closed = entries.where("kind = 'close' and run <> ?", run) if vocabulary else []
    sources = {entry.run for entry in closed if fact(entry, "model", str) == vocabulary}
    if sources and not sources & {learning.account.run for learning in earlier}:
        raise _contradicted(run, "price of a vocabulary")


def _is_priced(entries: Entries, run: str, learning: Spending) -> bool:
    """Whether the ledger knows the run that learnt a vocabulary; refuses another price than it booked."""
    reserved = booked.reservations(entries, learning.account.run)
    if reserved and (account_of(reserved[0]) != learning.account or learning.plans != tuple(map(plan_of, reserved))):
        raise _contradicted(run, "price of a vocabulary")
    return bool(reserved)


def _kept_model(entries: Entries, run: str, model: str) -> str:
    """The hash of the model that a run ended with, empty if it kept none; refuses another model."""
    closed = booked.closing(entries, run)
    kept = fact(closed, "model", str) if closed else ""
    if closed and kept and kept != model:
        raise ValueError(f"Expected the model of {run!r} that entry {closed.id} of the ledger names; it was changed.")
    return kept


def _contradicted(run: str, what: str) -> ValueError:
    return ValueError(
        f"Expected the {what} that the ledger booked for {run!r}; the header of the model says otherwise."
    )
