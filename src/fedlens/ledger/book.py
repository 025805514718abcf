"""The ledger itself: reserve the whole plan, book every release before it is made, return the rest, sign and verify.

Entries are never changed and never deleted. Each carries the hash of the one before it, so that an edited, missing or
reordered entry is found; what has been published elsewhere (a model's header names its entry) cannot be rewritten.
Where a witness is named, nothing is released before it has seen the entry, and an older ledger is refused.

Here transactions begin and end; the rules that hold within them are the modules beside this one.
"""

import getpass
import pathlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fedlens.ledger import booked, chain, clock, provenance, requests, reserving, reviewers, standings
from fedlens.ledger.allowance import Allowance
from fedlens.ledger.budgets import Budget, Standing
from fedlens.ledger.chain import Entry, Head, Place
from fedlens.ledger.entries import Entries
from fedlens.ledger.spending import Account, Item, Kind, Spending
from fedlens.ledger.storage import opened
from fedlens.ledger.weighing import Weighed
from fedlens.ledger.witness import Watch, required_by_owner, resolved
from fedlens.privacy import Promise


class Ledger:
    """A SQLite file, a PostgreSQL database, or memory when no address is given.

    >>> from fedlens.curators.protocol import PrivacySpentError
    >>> from fedlens.ledger.spending import Item, guarantee
    >>> from fedlens.privacy import Everyone, L2Clip, Plan
    >>> plan = Plan(
    ...     sampling=Everyone(), bound=L2Clip(norm=1.0), noise_multiplier=5.0, releases=2, expected_contributors=9
    ... )
    >>> account = Account(run="demo", population="toy")
    >>> ledger = Ledger()
    >>> ledger.set_budget(Budget(population="toy", epsilon=1.5, delta=1e-5))
    >>> ledger.charge(account, "train", plan, release=0, query="q0")
    True
    >>> ledger.charge(account, "train", plan, release=0, query="q0")  # asked again: the same answer
    False
    >>> print(guarantee([ledger.spending("demo")], 1e-5).headline)
    epsilon 0.73 at delta 1e-05 per user (add/remove)
    >>> try:
    ...     ledger.charge(Account(run="again", population="toy"), "train", plan, release=0, query="q0")
    ... except PrivacySpentError as error:
    ...     print(error)
    This run would take 'toy' to epsilon 1.56 at delta 1e-05; its budget is 1.5, and 1.07 is spent or reserved.
    """

    def __init__(
        self,
        address: pathlib.Path | str | None = None,
        *,
        who: str | None = None,
        key: Ed25519PrivateKey | None = None,
        witness: str | None = None,
        checked: bool = True,
    ) -> None:
        """Refuses a ledger that is behind its witness, unless it is not to be `checked`: to find out what is wrong.

        The `witness` is the one it must have: else an old ledger, from before it was named, would do without. By
        default it is what the environment says ($FEDLENS_WITNESS), which may be nothing.
        """
        self._store = opened(address)
        self._entries = Entries(self._store, who or _user(), key)
        self._watch = Watch(self._entries, required_by_owner(address) if witness is None else witness)
        if checked:
            with self._store.transaction():
                self._watch.check(reachable=False)

    def close_file(self) -> None:
        self._store.close()

    # Spending

    def reserve(
        self,
        items: Sequence[Item],
        *,
        recipe: str = "",
        why: str = "",
        text: str = "",
        new: bool = False,
        resumed: bool = False,
    ) -> None:
        """Sets the whole of a run aside, in one transaction, before its first release; a run that resumes has done so.

        A `new` run must not be in the ledger yet, a `resumed` one must be. The `text` of the recipe must be the one
        that was approved, where a request holds one: a reviewer has read it, and not its digest.

        Formal guarantee: what is spent and reserved on a population never exceeds its budget, and a run is what it was
        when it began: its recipe, its accounts, their stages and plans, and whether it is simulated.
        """
        with self._watch.booking():
            if new:
                reserving.must_be_new(self._entries, items)
            if resumed:
                reserving.must_be_reserved(self._entries, items)
            reserving.reserve(self._entries, items, recipe=recipe, why=why, text=text)

    def charge(self, account: Account, stage: str, plan: Promise, *, release: int, query: str) -> bool:
        """Books one release; False if this very question was booked before (a run resumed after a crash).

        A `query` to a matrix plan begins with the name of what all its releases have in common, and a slash.

        Formal guarantee: when this returns the entry is on disk, and a stage never holds more entries than its plan.
        """
        with self._watch.booking():
            return reserving.charge(self._entries, account, stage, plan, release, query)

    def close(self, run: str, model: str = "", words: Collection[str] = ()) -> int:
        """Ends a run: what it did not use is returned, the hash of its `model` is kept. Gives the entry's number.

        Of a list of `words` that was learnt, short hashes of the words are kept as well: they are a release.
        """
        with self._watch.booking():
            return reserving.close(self._entries, run, model, words)

    def must_be_open(self, run: str) -> None:
        """Refuses a run that was ended."""
        booked.must_be_open(self._entries, run)

    def allowance(self, population: str, kind: Kind | None = None) -> Allowance | None:
        """What decides whether a run on a population may begin; None where it has no budget.

        By default all that counts is looked at, and else what is of one kind.
        """
        return standings.allowance(self._entries, population, kind)

    # What was spent

    def spent(self, run: str, stage: str) -> int:
        return self._entries.count_releases("run = ? and stage = ?", run, stage)

    def queries(self, run: str, stage: str) -> list[str]:
        """What was asked, by the order of the releases."""
        statement = "select query from entries where kind = 'release' and run = ? and stage = ? order by release, id"
        return [query for (query,) in self._entries.rows(statement, run, stage)]

    def learnt(self, run: str) -> frozenset[str]:
        """The short hashes of the words that a run has learnt; none for a run that learnt no words."""
        closed = booked.closing(self._entries, run)
        return frozenset(closed.facts.get("words", ())) if closed else frozenset()

    def spending(self, run: str) -> Spending:
        """What a run has spent so far, in plain terms that can travel with its model."""
        spendings = [spending for spending in booked.of_runs(self._entries, "run = ?", (run,)) if spending.plans]
        if len(spendings) != 1:
            raise ValueError(f"Expected entries of run {run!r} on one account in the ledger.")
        return spendings[0]

    def spendings(self, population: str, *, reserved: bool = False, budget: Budget | None = None) -> list[Spending]:
        """Of all runs on a population that are not simulated; with what is `reserved` as if it were spent already."""
        window = budget.window if budget else None
        return booked.on_population(self._entries, population, reserved=reserved, window=window)

    def reserved(self) -> set[str]:
        """The names of all runs there ever were."""
        runs = self._entries.rows("select distinct run from entries where kind = 'reserve'")
        return {run for (run,) in runs}

    def runs(self) -> list[dict[str, Any]]:
        """All runs: by whom, why, on what, how much of it was used."""
        return booked.listed(self._entries)

    def populations(self) -> list[str]:
        return reviewers.populations(self._entries)

    def standings(self) -> list[Standing]:
        """Of all populations; what protects units or neighbours of another kind is counted apart."""
        return standings.all_standings(self._entries)

    def standing(self, population: str, kind: Kind, delta: float = 1e-5) -> Standing:
        """At the budget's delta, if there is a budget for this kind of unit and neighbours."""
        return standings.standing(self._entries, population, kind, delta)

    # Budgets and reviews

    def set_budget(self, budget: Budget, why: str = "") -> None:
        """The latest budget of a population counts; one with reviewers is changed by their signature only."""
        with self._watch.booking():
            reviewers.must_sign(self._entries, budget.population, "the change of a budget")
            body = {"budget": budget.to_dict(), "why": why, **clock.fact(self._store)}
            self._entries.append("budget", budget.population, body=body)

    def budget(self, population: str) -> Budget | None:
        """The latest; of one that has reviewers, only what they signed is believed."""
        return reviewers.budget(self._entries, population)

    def register(self, population: str, body: Mapping[str, Any]) -> int:
        """Writes down what is known of a population's data; where the budget has reviewers, by their signature only."""
        with self._watch.booking():
            reviewers.must_sign(self._entries, population, "the registration of a population")
            return self._entries.append("register", population, body=body).id

    def registrations(self) -> list[Entry]:
        """The latest of each population, by name; of one that has reviewers, only what they signed is believed."""
        return reviewers.registrations(self._entries)

    def request(
        self,
        name: str,
        items: Sequence[Item],
        *,
        recipe: str,
        why: str = "",
        text: str = "",
        delta: float | None = None,
    ) -> int:
        """Asks for the leave to run a recipe, as it is now; gives the number to review it by.

        The `text` of the recipe, and the `delta` it speaks of, are for the one who reviews it.
        """
        (population,) = {item.account.population for item in items}
        asked = [requests.written(item) for item in items]
        body = {"name": name, "recipe": recipe, "why": why, "asked": asked, "text": text, "delta": delta}
        with self._watch.booking():
            return self._entries.append("request", population, run=name, body=body).id

    def review(self, number: int, *, approved: bool, note: str = "") -> None:
        with self._watch.booking():
            requests.review(self._entries, number, approved=approved, note=note)

    def requests(self) -> list[dict[str, Any]]:
        """All of them, and what became of each; a `text` that is None was not kept by an older version."""
        return [requests.described(self._entries, entry) for entry in self._entries.where("kind = 'request'")]

    def weighed(self, number: int) -> Weighed:
        """What a request asks for, and what it would do to its population as it stands now."""
        return requests.weighed(self._entries, number)

    # The witness

    def name_witness(self, address: str, *, lost: bool = False) -> None:
        """From now on nothing is released before this witness has seen its entry.

        Where a budget has reviewers, one of them signs: who may exchange the witness may do without one. The one before
        must agree that the ledger is the newest, unless it is `lost`, which is written down.
        """
        address = resolved(address)
        with self._store.transaction() if lost else self._watch.booking():
            reviewers.must_sign_for_all(self._entries, "the choice of a witness")
            self._watch.name(address, lost=lost)
        with self._watch.booking():
            pass  # the witness sees the entry that names it

    def witness(self) -> str | None:
        """The address of the one that is named; None for none."""
        return self._watch.address()

    # What files claim

    def confirms(self, claimed: Spending, earlier: Sequence[Spending] = (), *, model: str, vocabulary: str = "") -> str:
        """What is missing for the ledger to confirm what a model's header claims; empty if nothing is.

        `model` and `vocabulary` are the hashes of the file and of its words; of what was released `earlier`, the plans
        are the first of those that are claimed. Refuses a header that the ledger contradicts.
        """
        return provenance.missing(self._entries, claimed, earlier, model, vocabulary)

    # The chain

    def head(self) -> Place:
        """The number and hash of the last entry: written down elsewhere, they pin down everything before."""
        return self._entries.head()

    def pin(self) -> Head:
        """The head and, by the hash of its first entry, which ledger it is of: what files carry in their headers."""
        return *self._entries.head(), self.identity()

    def holds(self, place: Place) -> bool:
        """Whether this very entry is in the ledger."""
        return self._entries.holds(place)

    def identity(self) -> str:
        """By which a ledger is told from others: the hash of its first entry; empty while there is none."""
        return self._entries.identity()

    def entries(self) -> Iterator[Entry]:
        """All of them, in the order of their numbers, whatever gaps there are and whatever they hold."""
        return self._entries.every()

    def verify(self, models: Mapping[str, str] | None = None, written_down: Iterable[Place] = ()) -> list[str]:
        """Everything that is wrong: entries edited, missing or reordered, signatures, releases beyond their plan.

        `models` are hashes of model files, by run; `written_down` are heads that were kept elsewhere. What the witness
        saw is one of them.
        """
        with self._store.transaction():  # nobody adds an entry between the head and the last one
            seen, unseen = self._watch.seen()
            return [*chain.problems(self.entries(), self.head(), models or {}, [*written_down, *seen]), *unseen]


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return "unknown"
