"""What counts by a reviewer's signature, where a budget names reviewers: budgets, registrations, reviews, witnesses."""

from collections.abc import Collection

from fedlens.ledger import keys
from fedlens.ledger.budgets import Budget
from fedlens.ledger.chain import Entry
from fedlens.ledger.entries import LARGEST, Entries, budget_of
from fedlens.ledger.storage import LedgerError


class NotApprovedError(RuntimeError):
    """The budget asks for an approved request, and there is none for this run."""


def budget(entries: Entries, population: str, before: int = LARGEST) -> Budget | None:
    """The latest; of one that has reviewers, only what they signed is believed."""
    latest = None
    for entry in budget_entries(entries, population, before):
        _must_be_signed(entries, entry, latest)
        latest = budget_of(entry)
    return latest


def budget_entries(entries: Entries, population: str, before: int = LARGEST) -> list[Entry]:
    return entries.where("kind = 'budget' and population = ? and id < ?", population, before)


def populations(entries: Entries) -> list[str]:
    names = entries.rows("select distinct population from entries where kind <> 'witness' order by population")
    return [str(name) for (name,) in names]


def registrations(entries: Entries) -> list[Entry]:
    """The latest of each population, by name; of one that has reviewers, only what they signed is believed."""
    latest: dict[str, Entry] = {}
    for entry in entries.where("kind = 'register'"):
        _must_be_signed(entries, entry, budget(entries, entry.population, before=entry.id))
        latest[entry.population] = entry
    return [latest[population] for population in sorted(latest)]


def _must_be_signed(entries: Entries, entry: Entry, known: Budget | None) -> None:
    """Refuses an entry that the reviewers of the budget before it did not sign."""
    if known and known.reviewers and not signed_by(entries, entry, known.reviewers):
        raise LedgerError(
            f"Expected entry {entry.id}, a {entry.kind}, signed by a reviewer: the ledger was edited (verify it)."
        )


def signed_by(entries: Entries, entry: Entry, reviewers: Collection[str]) -> bool:
    before = entries.where("id = ?", entry.id - 1)
    whole = entry.hash == entry.hashed(before[0].hash if before else "")
    return whole and entry.signer in reviewers and keys.verified(entry.signer, entry.signature, entry.hash)


def must_sign(entries: Entries, population: str, what: str) -> None:
    """Refuses a hand that is none of the reviewers of a population, where its budget has reviewers."""
    known = budget(entries, population)
    if known and known.reviewers and entries.signer not in known.reviewers:
        raise NotApprovedError(f"Expected {what} signed by one of the reviewers of {population!r} (--key).")


def must_sign_for_all(entries: Entries, what: str) -> None:
    """Refuses a hand that is no reviewer of any population, where some budget has reviewers."""
    budgets = (budget(entries, population) for population in populations(entries))
    reviewers = {key for known in budgets if known for key in known.reviewers}
    if reviewers and entries.signer not in reviewers:
        raise NotApprovedError(f"Expected {what} signed by a reviewer of one of the budgets (--key).")
