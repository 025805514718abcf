"""What an entry says: its account, plan, budget or clock. One that does not say it was edited, and is refused."""

import functools
import json
from collections.abc import Callable
from typing import Any, TypeVar

from fedlens.ledger.budgets import Budget
from fedlens.ledger.chain import DAMAGE, Entry
from fedlens.ledger.spending import Account
from fedlens.ledger.storage import LedgerError
from fedlens.privacy import Promise, promised

Answer = TypeVar("Answer")
OF_ACCOUNT = "partition", "part", "simulated"  # what a reservation says of its account


def read(entry: Entry, work: Callable[[], Answer]) -> Answer:
    """What an entry says; one that does not say it was edited. Its text is never quoted."""
    try:
        return work()
    except DAMAGE:
        raise damaged(entry) from None


def damaged(entry: Entry) -> LedgerError:
    number = entry.id if type(entry.id) is int else "of no number"
    return LedgerError(f"Expected entry {number} as it was written: the ledger was edited (fedlens ledger verify).")


def fact(entry: Entry, name: str, kind: type[Answer]) -> Answer:
    value = read(entry, lambda: entry.facts[name])
    if not isinstance(value, kind):
        raise damaged(entry)
    return value


def reservation(entry: Entry) -> dict[str, Any]:
    """What a reservation says, if it is whole."""
    facts = read(entry, lambda: entry.facts)
    kinds = {"plan": dict, "partition": str, "part": str, "simulated": bool, "recipe": str, "why": str}
    if not all(isinstance(facts.get(name), kind) for name, kind in kinds.items()):
        raise damaged(entry)
    return facts


def account_of(entry: Entry) -> Account:
    facts = reservation(entry)
    return Account(run=entry.run, population=entry.population, **{name: facts[name] for name in OF_ACCOUNT})


def plan_of(entry: Entry) -> Promise:
    return read(entry, lambda: sound(_parsed(json.dumps(entry.facts["plan"], sort_keys=True))))


@functools.lru_cache(maxsize=1024)
def _parsed(text: str) -> Promise:
    return promised(json.loads(text))


def sound(plan: Promise) -> Promise:
    """Refuses numbers that only an editor's hand writes, and that no accountant can count with."""
    whole = type(plan.releases) is int and 0 < plan.releases < 2**31
    numbers = plan.noise_multiplier, plan.expected_contributors
    real = all(isinstance(value, int | float) and abs(value) < 2**63 for value in numbers)
    if not (whole and real):
        raise ValueError("Expected a plan that can be priced.")
    return plan


def budget_of(entry: Entry) -> Budget:
    return read(entry, lambda: Budget.from_dict(entry.facts["budget"]))


def clock_of(entry: Entry) -> dict[str, Any] | None:
    """What an entry says about the clock; those of older versions, and of some machines, say nothing."""
    clock = read(entry, lambda: entry.facts).get("clock")
    if clock is None:
        return None
    return read(entry, lambda: {"boot": str(clock["boot"]), "ahead": float(clock["ahead"])})
