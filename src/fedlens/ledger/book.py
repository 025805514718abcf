"""The ledger itself: reserve the whole plan, book every release before it is made, return the rest, sign and verify.

Entries are never changed and never deleted. Each carries the hash of the one before it, so that an edited, missing or
reordered entry is found; what has been published elsewhere (a model's header names its entry) cannot be rewritten.
Where a witness is named, nothing is released before it has seen the entry, and an older ledger is refused.
"""

import contextlib
import dataclasses
import datetime
import functools
import getpass
import json
import math
import os
import pathlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fedlens.core import pins
from fedlens.curators.protocol import PrivacySpentError
from fedlens.ledger import chain, keys
from fedlens.ledger.allowance import Allowance, Owed
from fedlens.ledger.budgets import Budget, Standing
from fedlens.ledger.chain import BY_DAY, DAMAGE, KINDS, Entry, Head, Place, root
from fedlens.ledger.spending import Account, Kind, Spending, carried_out, guarantee, is_gaussian, owed
from fedlens.ledger.storage import COLUMNS, VERSION, LedgerError, about, opened
from fedlens.ledger.weighing import Weighed, grouped
from fedlens.ledger.witness import PutBackError, Witness, put_back, resolved
from fedlens.privacy import MatrixPlan, Promise, promised

_PAGE = 10_000
_MOST = 2**63 - 1  # the largest number a store can count to
_BUDGETS = "kind = 'budget' and population = ?"
_BACKWARDS = datetime.timedelta(seconds=5)  # clocks are set right by less
_AHEAD = 60.0  # seconds that a clock may gain on the machine's own running time: it drifts, and is set right
_LEARNING = "thresholds"  # the stage of a run that decides who is in which group: every model of it depends on it
WITNESS_VARIABLE = "FEDLENS_WITNESS"
Answer = TypeVar("Answer")


class RunClosedError(PrivacySpentError):
    """The run was ended, by itself or by hand: it releases nothing more."""


class NotApprovedError(RuntimeError):
    """The budget asks for an approved request, and there is none for this run."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Item:
    """What a run asks for: so many releases of a plan, on an account."""

    account: Account
    stage: str
    plan: Promise


class Ledger:
    """A SQLite file, a PostgreSQL database, or memory when no address is given.

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
        self._who, self._key = who or _user(), key
        pinned = _pinned_witness(address) if witness is None else witness
        self._pinned = resolved(pinned) if pinned else ""
        self._known_witness: Witness | None = None
        if checked:
            with self._store.transaction():
                self._checked_witness(reachable=False)

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
        with self._booking():
            if new and (known := [item.account.run for item in items if self._whole_run(root(item.account.run))]):
                raise ValueError(f"Expected a new run, but the ledger knows {known[0]!r} already; run it again.")
            if resumed and (missing := [item.account.run for item in items if not self._reserved(item)]):
                raise ValueError(
                    f"Expected a run of this ledger to go on with; it holds no reservation of {missing[0]!r}."
                )
            self._reserve(items, recipe, why, text)

    def charge(self, account: Account, stage: str, plan: Promise, *, release: int, query: str) -> bool:
        """Books one release; False if this very question was booked before (a run resumed after a crash).

        A `query` to a matrix plan begins with the name of what all its releases have in common, and a slash.

        Formal guarantee: when this returns the entry is on disk, and a stage never holds more entries than its plan.
        """
        with self._booking():
            self._reserve([Item(account=account, stage=stage, plan=plan)], "", "")
            if self._count("run = ? and stage = ? and release = ? and query = ?", account.run, stage, release, query):
                return False
            self.must_be_open(account.run)
            made = self._count("run = ? and stage = ?", account.run, stage)
            if plan.in_turn and release != made:
                raise PrivacySpentError(
                    f"Expected release {made} of {account.run!r} next: in a balanced schedule every group has its turn"
                    " once, correlated noise needs every row before it, and a release that is asked again with another"
                    " question would be a second one."
                )
            if isinstance(plan, MatrixPlan) and self._began_otherwise(account.run, stage, query):
                raise PrivacySpentError(
                    f"Expected the noise that the releases of {account.run!r} began with: its secret, its data or the"
                    " shape of its contributions changed, and no plan covers what other noise would give away."
                )
            if made >= plan.releases:
                raise PrivacySpentError(
                    f"All {plan.releases} releases of the plan are spent. (A resumed run asks its old questions again"
                    " for free; if its data, secret or engine changed, they are new ones: start a new run.)"
                )
            self._append("release", account.population, run=account.run, stage=stage, release=release, query=query)
        return True

    def _began_otherwise(self, run: str, stage: str, query: str) -> bool:
        common = query.split("/")[0]
        return self._count("run = ? and stage = ? and query not like ?", run, stage, f"{common}/%") > 0

    def close(self, run: str, model: str = "", words: Collection[str] = ()) -> int:
        """Ends a run: what it did not use is returned, the hash of its `model` is kept. Gives the entry's number.

        Of a list of `words` that was learnt, short hashes of the words are kept as well: they are a release.
        """
        with self._booking():
            made = self._reservations(run)
            if not made:
                raise ValueError(f"Expected a run of this ledger, found no reservation of {run!r}.")
            if closed := self._entries("kind = 'close' and run = ?", run):
                return closed[0].id
            counts = self._made("run = ?", (run,))
            left = {entry.stage: _left(_plan(entry), counts.get((run, entry.stage), (0, 0))[0]) for entry in made}
            body = {"model": model, "returned": left} | ({"words": sorted(words)} if words else {})
            return self._append("close", made[0].population, run=run, body=body).id

    def learnt(self, run: str) -> frozenset[str]:
        """The short hashes of the words that a run has learnt; none for a run that learnt no words."""
        closed = self._entries("kind = 'close' and run = ?", run)
        return frozenset(closed[0].facts.get("words", ())) if closed else frozenset()

    def _reserve(self, items: Sequence[Item], recipe: str, why: str, text: str = "") -> None:
        new = [item for item in items if not self._reserved(item)]
        for name in dict.fromkeys(root(item.account.run) for item in (items if recipe else new)):
            self._as_it_began(name, [item for item in items if root(item.account.run) == name], new, recipe)
        for item in new:
            self.must_be_open(item.account.run)
        requests = self._requests_of(new, recipe, text)
        for population in sorted({item.account.population for item in new if not item.account.simulated}):
            self._check_clock(population)
            mine = [item for item in new if item.account.population == population and not item.account.simulated]
            self._within_budget(population, mine)
        for item in new:
            account = item.account
            body = {
                "plan": item.plan.to_dict(),
                "partition": account.partition,
                "part": account.part,
                "simulated": account.simulated,
                "recipe": recipe,
                "why": why,
                "request": requests.get((root(account.run), account.population)),
                **self._clock_fact(),
            }
            self._append("reserve", account.population, run=account.run, stage=item.stage, body=body)

    def _requests_of(self, items: Sequence[Item], recipe: str, text: str) -> dict[tuple[str, str], int | None]:
        """By run and population: one request speaks for all that a run asks of a population, or for none of it."""
        asking: dict[tuple[str, str], list[Item]] = {}
        for item in items:
            if not item.account.simulated:
                asking.setdefault((root(item.account.run), item.account.population), []).append(item)
        return {place: self._approved(*place, found, recipe, text) for place, found in asking.items()}

    def _as_it_began(self, name: str, items: Sequence[Item], new: Sequence[Item], recipe: str) -> None:
        """Refuses a run that another recipe was booked for, or that adds to what it set aside when it began.

        Else somebody could stop it after one group, change the recipe and have everybody trained on once more, at a
        price and by a leave that were for something else.
        """
        known = self._whole_run(name)
        if len({_account(entry).simulated for entry in known} | {item.account.simulated for item in items}) > 1:
            raise ValueError(f"Expected run {name!r} to be simulated as a whole, or not at all.")
        booked = {_fact(entry, "recipe", str) for entry in known}
        if known and recipe and booked != {recipe}:
            raise ValueError(
                f"Expected the recipe that run {name!r} was booked with; it, or a public file it names, has changed."
                " Start a new run."
            )
        if known and booked != {""} and any(item in new for item in items):
            raise ValueError(f"Expected what run {name!r} set aside when it began; it asks for more. Start a new run.")

    def _whole_run(self, name: str) -> list[Entry]:
        """What was reserved for a run, on all its accounts."""
        inside = f"{name}/"
        where = "kind = 'reserve' and (run = ? or substr(run, 1, ?) = ?)"
        return self._entries(where, name, len(inside), inside)

    def _reserved(self, item: Item) -> bool:
        """Whether this was set aside before; a run keeps to one account and, on it, to one kind of guarantee."""
        made = self._reservations(item.account.run)
        same = [entry for entry in made if entry.stage == item.stage]
        if any(_account(entry) != item.account or _kind(_plan(entry)) != _kind(item.plan) for entry in made) or any(
            _plan(entry) != item.plan for entry in same
        ):
            raise ValueError(f"Expected the account and plan that run {item.account.run!r} began with; they changed.")
        return bool(same)

    def _reservations(self, run: str) -> list[Entry]:
        return self._entries("kind = 'reserve' and run = ?", run)

    def must_be_open(self, run: str) -> None:
        """Refuses a run that was ended."""
        if self._ended(run):
            raise RunClosedError(f"Run {run!r} is closed: what it had not used was returned.")

    def _ended(self, run: str) -> bool:
        return bool(self._store.rows("select 1 from entries where kind = 'close' and run = ?", (run,)))

    def _within_budget(self, population: str, items: Sequence[Item]) -> None:
        state = self.allowance(population)
        if state is None:
            return
        for item in items:
            state.budget.covers(item.plan)
        new = [Spending(account=item.account, plans=(item.plan,)) for item in items]
        if not state.fits(new):
            raise PrivacySpentError(state.refusal(new))

    def allowance(self, population: str, kind: Kind | None = None) -> Allowance | None:
        """What decides whether a run on a population may begin; None where it has no budget.

        By default all that counts is looked at, and else what is of one kind.
        """
        budget = self.budget(population)
        if budget is None:
            return None
        closed, released = self._first("close", population), self._first("release", population)
        since = "" if budget.window is None else self._since(budget.window)
        counts = self._made("population = ?", (population,), since)
        held: list[Owed] = []
        whole: list[tuple[int, Owed]] = []
        sampled = 0
        for entry in self._entries("kind = 'reserve' and population = ?", population):
            account, plan = _account(entry), _plan(entry)
            if account.simulated:
                released.pop(entry.run, None)
                continue
            sampled += not is_gaussian(plan)
            if kind is not None and _kind(plan) != kind:
                continue
            found = Owed(account=account, plan=plan, number=0 if is_gaussian(plan) else sampled)
            whole.append((entry.id, found))
            made, recent = counts.get((entry.run, entry.stage), (0, 0))
            if releases := recent + (plan.releases - made if entry.run not in closed else 0):
                held.append(dataclasses.replace(found, plan=owed(plan, releases)))
        first, budgeted = min(released.values(), default=None), self._entries(_BUDGETS, population)[-1].id
        before = self.spendings(population, reserved=True, budget=budget)
        return Allowance(
            budget=budget,
            before=tuple(spending for spending in before if kind in (None, spending.kind)),
            owed=tuple(held),
            committed=None
            if first is None
            else tuple(
                found
                for number, found in whole
                if max(number, budgeted) < first < closed.get(found.account.run, math.inf)
            ),
            sampled=sampled,
        )

    def _first(self, kind: str, population: str) -> dict[str, int]:
        """The number of the first entry of a kind, by run."""
        found = "select run, min(id) from entries where kind = ? and population = ? group by run"
        return {run: int(number) for run, number in self._store.rows(found, (kind, population))}

    def _since(self, window: float) -> str:
        """Releases are dated by the day: one counts until the last moment of its day is older than the window."""
        return _written(self._store.now() - datetime.timedelta(days=window))[:10]

    # What was spent

    def spent(self, run: str, stage: str) -> int:
        return self._count("run = ? and stage = ?", run, stage)

    def queries(self, run: str, stage: str) -> list[str]:
        """What was asked, by the order of the releases."""
        found = "select query from entries where kind = 'release' and run = ? and stage = ? order by release, id"
        return [query for (query,) in self._store.rows(found, (run, stage))]

    def spending(self, run: str) -> Spending:
        """What a run has spent so far, in plain terms that can travel with its model."""
        found = [spending for spending in self._spendings("run = ?", (run,)) if spending.plans]
        if len(found) != 1:
            raise ValueError(f"Expected entries of run {run!r} on one account in the ledger.")
        return found[0]

    def spendings(self, population: str, *, reserved: bool = False, budget: Budget | None = None) -> list[Spending]:
        """Of all runs on a population that are not simulated; with what is `reserved` as if it were spent already."""
        found = self._spendings("population = ?", (population,), reserved, budget.window if budget else None)
        return [spending for spending in found if spending.plans and not spending.account.simulated]

    def _spendings(
        self, where: str, values: tuple[Any, ...], reserved: bool = False, window: float | None = None
    ) -> list[Spending]:
        since = "" if window is None else self._since(window)
        counts = self._made(where, values, since)
        closed = {
            run for (run,) in self._store.rows(f"select run from entries where kind = 'close' and {where}", values)
        }
        runs: dict[str, Spending] = {}
        for entry in self._entries(f"kind = 'reserve' and {where}", *values):
            plan, (made, recent) = _plan(entry), counts.get((entry.run, entry.stage), (0, 0))
            waiting = plan.releases - made if reserved and entry.run not in closed else 0
            held = runs.setdefault(entry.run, Spending(account=_account(entry), plans=()))
            if recent + waiting:
                plans = (*held.plans, carried_out(plan, recent + waiting))
                runs[entry.run] = dataclasses.replace(held, plans=plans)
        return list(runs.values())

    def _made(self, where: str, values: Sequence[Any], since: str = "") -> dict[tuple[str, str], tuple[int, int]]:
        """How many releases there are by run and stage, and how many of them `since` a time."""
        counted = self._store.rows(
            "select run, stage, count(*), sum(case when at >= ? then 1 else 0 end) from entries"
            f" where kind = 'release' and {where} group by run, stage",
            (since, *values),
        )
        return {(run, stage): (int(made), int(recent)) for run, stage, made, recent in counted}

    def reserved(self) -> set[str]:
        """The names of all runs there ever were."""
        return {run for (run,) in self._store.rows("select distinct run from entries where kind = 'reserve'")}

    def populations(self) -> list[str]:
        found = "select distinct population from entries where kind <> 'witness' order by population"
        return [str(name) for (name,) in self._store.rows(found)]

    def standings(self) -> list[Standing]:
        """Of all populations; what protects units or neighbours of another kind is counted apart."""
        found = []
        for population in self.populations():
            budget = self.budget(population)
            kinds = {spending.kind for spending in self.spendings(population, reserved=True)}
            kinds |= {(budget.unit, budget.neighbours)} if budget else set()
            found += [self.standing(population, kind) for kind in sorted(kinds)]
        return found

    def standing(self, population: str, kind: Kind, delta: float = 1e-5) -> Standing:
        """At the budget's delta, if there is a budget for this kind of unit and neighbours."""
        budget = self.budget(population)
        budget = budget if budget and (budget.unit, budget.neighbours) == kind else None
        at = budget.delta if budget else delta
        made = [s for s in self.spendings(population, budget=budget) if s.kind == kind]
        promised = [s for s in self.spendings(population, reserved=True, budget=budget) if s.kind == kind]
        state = self.allowance(population, kind) if budget else None
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

    # Budgets and reviews

    def set_budget(self, budget: Budget, why: str = "") -> None:
        """The latest budget of a population counts; one with reviewers is changed by their signature only."""
        with self._booking():
            self._by_reviewer(self.budget(budget.population), "the change of a budget")
            body = {"budget": budget.to_dict(), "why": why, **self._clock_fact()}
            self._append("budget", budget.population, body=body)

    def budget(self, population: str) -> Budget | None:
        """The latest; of one that has reviewers, only what they signed is believed."""
        return self._budget(population)

    def _budget(self, population: str, before: int = _MOST) -> Budget | None:
        budget = None
        for entry in self._entries(f"{_BUDGETS} and id < ?", population, before):
            if budget and budget.reviewers and not self._signed_by(entry, budget.reviewers):
                raise LedgerError(
                    f"Expected entry {entry.id}, a budget, signed by a reviewer: the ledger was edited (verify it)."
                )
            budget = _budget_of(entry)
        return budget

    def register(self, population: str, body: Mapping[str, Any]) -> int:
        """Writes down what is known of a population's data; where the budget has reviewers, by their signature only."""
        with self._booking():
            self._by_reviewer(self.budget(population), "the registration of a population")
            return self._append("register", population, body=body).id

    def registrations(self) -> list[Entry]:
        """The latest of each population, by name; of one that has reviewers, only what they signed is believed."""
        latest: dict[str, Entry] = {}
        for entry in self._entries("kind = 'register'"):
            budget = self._budget(entry.population, before=entry.id)
            if budget and budget.reviewers and not self._signed_by(entry, budget.reviewers):
                raise LedgerError(
                    f"Expected entry {entry.id}, a register, signed by a reviewer: the ledger was edited (verify it)."
                )
            latest[entry.population] = entry
        return [latest[population] for population in sorted(latest)]

    def _signed_by(self, entry: Entry, reviewers: Sequence[str]) -> bool:
        before = self._entries("id = ?", entry.id - 1)
        whole = entry.hash == entry.hashed(before[0].hash if before else "")
        return whole and entry.signer in reviewers and keys.verified(entry.signer, entry.signature, entry.hash)

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
        with self._booking():
            asked = [_asked(item) for item in items]
            body = {"name": name, "recipe": recipe, "why": why, "asked": asked, "text": text, "delta": delta}
            return self._append("request", population, run=name, body=body).id

    def review(self, number: int, *, approved: bool, note: str = "") -> None:
        with self._booking():
            request = self._entries("kind = 'request' and id = ?", number) if 0 < number < 2**63 else []
            if not request:
                raise ValueError(f"Expected the number of a request, found none with {number}.")
            if self._verdict(number):
                raise ValueError(f"Expected a request that waits for review; {number} is reviewed already.")
            self._by_reviewer(self.budget(request[0].population), "a review")
            body = {"approved": approved, "note": note}
            self._append("review", request[0].population, run=request[0].run, release=number, body=body)

    def requests(self) -> list[dict[str, Any]]:
        """All of them, and what became of each; a `text` that is None was not kept by an older version."""
        return [self._told_request(entry) for entry in self._entries("kind = 'request'")]

    def _told_request(self, entry: Entry) -> dict[str, Any]:
        facts = _read(entry, lambda: entry.facts)
        kinds: dict[str, Any] = {"name": str, "recipe": str, "why": str, "text": str | None, "delta": float | None}
        told = {name: facts.get(name) for name in kinds}
        if not all(isinstance(told[name], kind) for name, kind in kinds.items()):
            raise _damaged(entry)
        asked = [_asked(item) for item in _read(entry, lambda: _items(entry))]
        own = {"number": entry.id, "at": entry.at, "who": entry.who, "population": entry.population}
        return own | told | {"text": told["text"] or None, "asked": asked, "verdict": self._told_verdict(entry)}

    def weighed(self, number: int) -> Weighed:
        """What a request asks for, and what it would do to its population as it stands now."""
        found = self._entries("kind = 'request' and id = ?", number) if 0 < number < _MOST else []
        if not found:
            raise ValueError(f"Expected the number of a request, found none with {number}.")
        entry = found[0]
        items = _read(entry, lambda: _items(entry))
        used, budget = bool(self._used_by(entry)), self.budget(entry.population)
        asked, stages = grouped([(Spending(account=i.account, plans=(i.plan,)), i.stage) for i in items])
        return Weighed(
            request=self._told_request(entry),
            asked=asked,
            stages=stages,
            budget=budget,
            before=tuple(self.spendings(entry.population, reserved=True, budget=budget)),
            refusal="" if used else self._refusal(entry.population, items),
            used=used,
            last_approved=self._last_approved(entry),
        )

    def _refusal(self, population: str, items: Sequence[Item]) -> str:
        """Why this would not be let in just now; empty if it would."""
        try:
            self._within_budget(population, items)
        except (PrivacySpentError, ValueError) as error:
            return str(error)
        return ""

    def _last_approved(self, request: Entry) -> dict[str, Any] | None:
        """What was approved on the population before: of the same name, if anything was."""
        earlier = self._entries("kind = 'request' and population = ? and id < ?", request.population, request.id)
        approved = [
            found for found in earlier if (verdict := self._verdict(found.id)) and _fact(verdict, "approved", bool)
        ]
        alike = [found for found in approved if found.run == request.run]
        last = (alike or approved)[-1:]
        return self._told_request(last[0]) if last else None

    def _told_verdict(self, request: Entry) -> str:
        verdict = self._verdict(request.id)
        if verdict is None:
            return "waiting"
        note, approved = _fact(verdict, "note", str), _fact(verdict, "approved", bool)
        used = "".join(f", used by run {run}" for run in self._used_by(request))
        return f"{'approved' if approved else 'rejected'} by {verdict.who}{f' ({note})' if note else ''}{used}"

    def _used_by(self, request: Entry) -> list[str]:
        """The runs that began by a request; one that ended without any release gave it back.

        Formal guarantee: asked in the transaction that reserves, it keeps two runs from releasing by one approval: a
        run that ended releases nothing more, and one that was interrupted has not ended.
        """
        reserved = self._entries("kind = 'reserve' and population = ?", request.population)
        accounts = dict.fromkeys(entry.run for entry in reserved if _reservation(entry).get("request") == request.id)
        using = (account for account in accounts if self._count("run = ?", account) or not self._ended(account))
        return list(dict.fromkeys(root(account) for account in using))

    def _verdict(self, number: int) -> Entry | None:
        found = self._entries("kind = 'review' and release = ?", number)
        return found[0] if found else None

    def _by_reviewer(self, budget: Budget | None, what: str) -> None:
        if budget and budget.reviewers and (self._key is None or keys.public(self._key) not in budget.reviewers):
            raise NotApprovedError(f"Expected {what} signed by one of the reviewers of {budget.population!r} (--key).")

    def _approved(self, run: str, population: str, items: Sequence[Item], recipe: str, text: str) -> int | None:
        """The one request by which a run may begin, for all that it asks for; None where the budget asks for none."""
        budget = self.budget(population)
        if budget is None or not budget.review:
            return None
        told = "there is no request for it (fedlens ledger request)"
        for request in self._entries("kind = 'request' and population = ?", population):
            verdict, named = self._verdict(request.id), _fact(request, "name", str)
            same = _fact(request, "recipe", str) == recipe and (self._told_request(request)["text"] or text) == text
            if not same or not _held(items, _fact(request, "asked", list)):
                if named in (run, run.rpartition("-")[0]):
                    told = f"the recipe is not the one of request {request.id}: it was edited since"
            elif verdict is None:
                told = f"request {request.id} waits for review"
            elif not _fact(verdict, "approved", bool):
                told = f"request {request.id} was rejected: {_fact(verdict, 'note', str) or 'no note'}"
            elif budget.reviewers and not self._signed_by(verdict, budget.reviewers):
                told = f"the approval of request {request.id} is not signed by a reviewer"
            elif others := [other for other in self._used_by(request) if other != run]:
                told = f"request {request.id} was used by another run ({', '.join(others)}); make a new one"
            else:
                return request.id
        raise NotApprovedError(f"Runs on {population!r} need an approved request, and {told}.")

    # The witness

    def name_witness(self, address: str, *, lost: bool = False) -> None:
        """From now on nothing is released before this witness has seen its entry.

        Where a budget has reviewers, one of them signs: who may exchange the witness may do without one. The one before
        must agree that the ledger is the newest, unless it is `lost`, which is written down.
        """
        address = resolved(address)
        with self._store.transaction() if lost else self._booking():
            self._by_any_reviewer("the choice of a witness")
            witness, head = Witness(address, create=True), about(self._store)
            if head[0]:  # it must know the ledger before the ledger names it: one that does not was lost, or exchanged
                self._must_hold(witness.last(self.identity()), witness)
                witness.keep(self.identity(), head)
            self._append("witness", "", body={"to": address, "lost": lost})
            if not head[0]:
                witness.keep(self.identity(), about(self._store))
        with self._booking():
            pass  # the witness sees the entry that names it

    def witness(self) -> str | None:
        """The address of the one that is named; None for none."""
        found = self._entries("kind = 'witness'")
        return _fact(found[-1], "to", str) if found else None

    @contextlib.contextmanager
    def _booking(self) -> Iterator[None]:
        """A transaction; when it returns, the witness has seen what was booked, if there is a witness.

        Why the ledger first: whoever dies between the two has released nothing, and the witness is behind, which the
        next one makes good. So a ledger behind its witness is never the trace of an accident.
        """
        with self._store.transaction():
            self._checked_witness(reachable=True)
            yield
            witness, head = self._named_witness(reachable=True), about(self._store)
            identity = self.identity()
        if witness:
            witness.keep(identity, head)
            if (last := witness.last(identity)) and last[0] > head[0]:  # somebody else was faster: on the same ledger?
                with self._store.transaction():
                    self._seen(witness)

    def _checked_witness(self, *, reachable: bool) -> None:
        """Within a transaction: compares with what the witness has seen, and lets it see the rest."""
        address = self.witness()
        if self._pinned and self._pinned != address:
            named = "another" if address else "none"
            raise LedgerError(
                f"Expected a ledger whose witness is {self._pinned}; it names {named}: it was put back to a time before"
                " (fedlens ledger witness names one)."
            )
        if witness := self._named_witness(reachable=reachable):
            try:
                self._seen(witness, keep=reachable)
            except PutBackError:
                raise
            except LedgerError:
                if reachable:
                    raise

    def _named_witness(self, *, reachable: bool) -> Witness | None:
        """The one that the ledger names; None where it names none, or where one that cannot be reached need not be."""
        address = self.witness()
        if address is None:
            return None
        if self._known_witness is None or self._known_witness.address != address:
            try:
                self._known_witness = Witness(address)
            except (LedgerError, ValueError):
                if reachable:
                    raise
                return None
        return self._known_witness

    def _seen(self, witness: Witness, keep: bool = True) -> None:
        """Refuses a ledger that does not hold what its witness saw."""
        identity, head = self.identity(), about(self._store)
        last = witness.last(identity)
        if last is None:
            raise put_back(witness.address, head[0])
        self._must_hold(last, witness)
        if keep and last[0] < head[0]:
            witness.keep(identity, head)

    def _must_hold(self, seen: Place | None, witness: Witness) -> None:
        if seen and not self.holds(seen):
            raise put_back(witness.address, seen[0])

    def holds(self, place: Place) -> bool:
        """Whether this very entry is in the ledger."""
        number, digest = place
        if not 0 < number < _MOST:
            return False
        return self._store.rows("select hash from entries where id = ?", (number,)) == [(digest,)]

    def identity(self) -> str:
        """By which a ledger is told from others: the hash of its first entry; empty while there is none."""
        found = self._store.rows("select hash from entries where id = 1")
        return str(found[0][0]) if found else ""

    def _by_any_reviewer(self, what: str) -> None:
        budgets = [budget for population in self.populations() if (budget := self.budget(population))]
        reviewers = {key for budget in budgets for key in budget.reviewers}
        if reviewers and (self._key is None or keys.public(self._key) not in reviewers):
            raise NotApprovedError(f"Expected {what} signed by a reviewer of one of the budgets (--key).")

    # What files claim

    def confirms(self, claimed: Spending, earlier: Sequence[Spending] = (), *, model: str, vocabulary: str = "") -> str:
        """What is missing for the ledger to confirm what a model's header claims; empty if nothing is.

        `model` and `vocabulary` are the hashes of the file and of its words; of what was released `earlier`, the plans
        are the first of those that are claimed. Refuses a header that the ledger contradicts.
        """
        run = claimed.account.run
        booked = self._reservations(run)
        if not booked:
            return f"it knows no run {run!r}"
        held, account = self._spendings("run = ?", (run,))[0].plans, _account(booked[0])
        told = dataclasses.replace(claimed.account, simulated=account.simulated)
        if told != account or (account.simulated and not claimed.account.simulated):
            raise _contradicted(run, "account")
        learning = [_plan(entry) for entry in self._whole_run(root(run)) if entry.stage == _LEARNING]
        before = [plan for found in earlier for plan in found.plans] + learning
        if claimed.plans != (*before, *held):
            raise _contradicted(run, "plans")
        learnt = self._entries("kind = 'close' and run <> ?", run) if vocabulary else []
        sources = {entry.run for entry in learnt if _fact(entry, "model", str) == vocabulary}
        if sources and not sources & {found.account.run for found in earlier}:
            raise _contradicted(run, "price of a vocabulary")
        for found in earlier:
            priced = self._reservations(found.account.run)
            if priced and (_account(priced[0]) != found.account or found.plans != tuple(map(_plan, priced))):
                raise _contradicted(run, "price of a vocabulary")
            if not priced:
                return f"it knows no run {found.account.run!r}, which learnt the vocabulary"
        closed = self._entries("kind = 'close' and run = ?", run)
        kept = _fact(closed[0], "model", str) if closed else ""
        if kept and kept != model:
            raise ValueError(
                f"Expected the model of {run!r} that entry {closed[0].id} of the ledger names; it was changed."
            )
        return "" if kept else f"run {run!r} was not finished: the hash of its model is not booked"

    # The chain

    def _append(
        self,
        kind: str,
        population: str,
        *,
        run: str = "",
        stage: str = "",
        release: int = -1,
        query: str = "",
        body: Mapping[str, Any] | None = None,
    ) -> Entry:
        """To be called within a transaction."""
        count, head = about(self._store)
        last = self._entries("id = ?", count)
        entry = Entry(
            id=count + 1,
            at=self._time(kind, last[0].at if last else ""),
            kind=kind,
            who=self._who,
            population=population,
            run=run,
            stage=stage,
            release=release,
            query=query,
            body=json.dumps(body or {}, sort_keys=True),
            signer=keys.public(self._key) if self._key else "",
            signature="",
            hash="",
        )
        digest = entry.hashed(head)
        signature = keys.signed(self._key, digest) if self._key else ""
        entry = dataclasses.replace(entry, hash=digest, signature=signature)
        marks = ", ".join("?" * len(dataclasses.fields(Entry)))
        self._store.rows(f"insert into entries ({COLUMNS}) values ({marks})", dataclasses.astuple(entry))
        self._store.rows("update about set version = ?, entries = ?, head = ?", (VERSION, entry.id, entry.hash))
        return entry

    def _time(self, kind: str, last: str) -> str:
        """Of a new entry: to the microsecond, or the day alone."""
        now = self._store.now()
        if kind not in BY_DAY:  # the last one may tell the day only
            marks = ", ".join(f"'{known}'" for known in KINDS if known not in BY_DAY)
            last = max(last, self._store.rows(f"select max(at) from entries where kind in ({marks})")[0][0] or "")
        if last and now < _parsed_time(last) - _BACKWARDS:
            raise LedgerError(f"Expected a clock that goes forward: the last entry is of {last}. Nothing was booked.")
        return max(last[:10], _written(now)[:10]) if kind in BY_DAY else max(last, _written(now))

    def _clock_fact(self) -> dict[str, Any]:
        """How far the clock is ahead of the machine's own running time: it stays the same until the clock is set."""
        running = self._store.running()
        if running is None:
            return {}
        boot, seconds = running
        return {"clock": {"boot": boot, "ahead": round(self._store.now().timestamp() - seconds, 1)}}

    def _check_clock(self, population: str) -> None:
        """Where spending is forgotten with time, refuses a clock that was set forward since the budget was set.

        A machine that was started anew, and another one, cannot be compared; PostgreSQL has the server's own clock.
        """
        budget, now = self.budget(population), self._clock_fact().get("clock")
        if budget is None or budget.window is None or now is None:
            return
        last = self._entries("kind = 'budget' and population = ?", population)[-1]
        known = [last, *self._entries("kind = 'reserve' and population = ? and id > ?", population, last.id)]
        same = [clock["ahead"] for clock in map(_clock_of, known) if clock and clock["boot"] == now["boot"]]
        if any(now["ahead"] > ahead + _AHEAD for ahead in same):
            raise LedgerError(
                f"Expected a clock that goes as the machine does: it was set forward, so that what {population!r} spent"
                " would be forgotten. Set it right; or, if it is right now, set the budget anew (fedlens ledger init)."
            )

    def head(self) -> Place:
        """The number and hash of the last entry: written down elsewhere, they pin down everything before."""
        return about(self._store)

    def pin(self) -> Head:
        """The head and, by the hash of its first entry, which ledger it is of: what files carry in their headers."""
        return *about(self._store), self.identity()

    def entries(self) -> Iterator[Entry]:
        """All of them, in the order of their numbers, whatever gaps there are and whatever they hold."""
        page = self._page("id is not null")
        while page:
            yield from page
            if not page[-1].readable:
                return
            page = self._page("id > ?", page[-1].id)

    def _page(self, where: str, *values: Any) -> list[Entry]:
        try:
            return self._raw(where, *values, limit=_PAGE)
        except LedgerError:
            numbers = self._store.rows(f"select id from entries where {where} order by id limit {_PAGE}", values)
            return [self._one(number) for (number,) in numbers]

    def _one(self, number: Any) -> Entry:
        """An entry; of one whose text cannot be decoded, what shows that it cannot be read."""
        try:
            return self._raw("id = ?", number)[0]
        except (LedgerError, IndexError):
            nothing: Any = None
            return Entry(number, *[nothing] * (len(dataclasses.fields(Entry)) - 1))

    def verify(self, models: Mapping[str, str] | None = None, written_down: Iterable[Place] = ()) -> list[str]:
        """Everything that is wrong: entries edited, missing or reordered, signatures, releases beyond their plan.

        `models` are hashes of model files, by run; `written_down` are heads that were kept elsewhere. What the witness
        saw is one of them.
        """
        with self._store.transaction():  # nobody adds an entry between the head and the last one
            seen, unseen = self._witnessed()
            return [*chain.problems(self.entries(), self.head(), models or {}, [*written_down, *seen]), *unseen]

    def _witnessed(self) -> tuple[list[Place], list[str]]:
        """What the witness saw; and what is wrong with the witness."""
        try:
            address = self.witness()
            if self._pinned and self._pinned != address:
                return [], [f"the ledger does not name the witness {self._pinned}: it was put back to a time before"]
            witness = self._named_witness(reachable=True)
            seen = witness.heads(self.identity()) if witness else []
        except (LedgerError, ValueError) as error:
            return [], [f"the witness cannot tell: {error}"]
        unknown = [f"the witness at {address} knows nothing of this ledger"] if witness and not seen else []
        return seen, unknown

    def runs(self) -> list[dict[str, Any]]:
        """All runs: by whom, why, on what, how much of it was used."""
        closed, counts = {entry.run: entry for entry in self._entries("kind = 'close'")}, self._made("1 = 1", ())
        found: dict[str, dict[str, Any]] = {}
        for entry in self._entries("kind = 'reserve'"):
            facts, (made, _) = _reservation(entry), counts.get((entry.run, entry.stage), (0, 0))
            run = found.setdefault(
                entry.run,
                {
                    "run": entry.run,
                    "population": entry.population,
                    "who": entry.who,
                    "at": entry.at,
                    "why": facts["why"],
                    "recipe": facts["recipe"],
                    "partition": facts["partition"],
                    "part": facts["part"],
                    "simulated": facts["simulated"],
                    "closed": entry.run in closed,
                    "model": _fact(closed[entry.run], "model", str) if entry.run in closed else "",
                    "stages": [],
                },
            )
            run["stages"].append({"stage": entry.stage, "released": made, "plan": _plan(entry).to_dict()})
        for run in found.values():
            used = ", ".join(
                f"{stage['released']} of {stage['plan']['releases']} {stage['stage']}" for stage in run["stages"]
            )
            run["released"] = sum(stage["released"] for stage in run["stages"])
            state = "closed" if run["closed"] else "open"
            run["told"] = f"{used} releases, {state}{', SIMULATED (free)' if run['simulated'] else ''}"
        return list(found.values())

    def _entries(self, where: str, *values: Any) -> list[Entry]:
        """Refuses what is not of the kind it was written as: nothing can be told from it."""
        found = self._raw(where, *values)
        for entry in found:
            if not entry.readable:
                raise _damaged(entry)
        return found

    def _raw(self, where: str, *values: Any, limit: int | None = None) -> list[Entry]:
        most = f" limit {limit}" if limit else ""
        found = self._store.rows(f"select {COLUMNS} from entries where {where} order by id{most}", values)
        return [Entry(*row) for row in found]

    def _count(self, where: str, *values: Any) -> int:
        return int(self._store.rows(f"select count(*) from entries where kind = 'release' and {where}", values)[0][0])


def _pinned_witness(address: pathlib.Path | str | None) -> str:
    """What the owner of the machine says; a ledger that was put back may know of no witness."""
    pin = pins.found() if address is not None else None
    named = pin.witness if pin and pins.same(str(address), pin.ledger) else ""
    return os.environ.get(WITNESS_VARIABLE) or named


def _asked(item: Item) -> dict[str, Any]:
    """Without the name of the run, which a request does not know yet."""
    account = item.account
    partition = account.partition.removeprefix(root(account.run))
    return {"stage": item.stage, "part": account.part, "partition": partition, "plan": item.plan.to_dict()}


def _items(request: Entry) -> list[Item]:
    """What a request asks for; older ones do not tell partitions, and are priced as if they had none in common."""
    found = []
    for asked in request.facts["asked"]:
        partition = f"{request.run}{asked.get('partition', ': ' + asked['part'])}"
        account = Account(
            run=f"{request.run}/{asked['part']}",
            population=request.population,
            partition=partition,
            part=asked["part"],
        )
        found.append(Item(account=account, stage=str(asked["stage"]), plan=_sound(promised(asked["plan"]))))
    return found


def _held(items: Sequence[Item], asked: Any) -> bool:
    """Whether a request asked for all of this, each as often as it is wanted."""
    left = list(asked) if isinstance(asked, list) else []
    for item in items:
        mine = _asked(item)
        # Older requests do not tell the partition.
        same = [one for one in left if isinstance(one, dict) and one == {name: mine.get(name) for name in one} and one]
        if not same:
            return False
        left.remove(same[0])
    return True


def _kind(plan: Promise) -> Kind:
    return plan.unit, plan.neighbours


def _left(plan: Promise, made: int) -> int:
    """How many releases a run that ends gives back."""
    return plan.releases - (owed(plan, made).releases if made else 0)


def _account(entry: Entry) -> Account:
    facts = _reservation(entry)
    return Account(
        run=entry.run,
        population=entry.population,
        partition=facts["partition"],
        part=facts["part"],
        simulated=facts["simulated"],
    )


def _plan(entry: Entry) -> Promise:
    return _read(entry, lambda: _sound(_parsed(json.dumps(entry.facts["plan"], sort_keys=True))))


def _sound(plan: Promise) -> Promise:
    """Refuses numbers that only an editor's hand writes, and that no accountant can count with."""
    whole = type(plan.releases) is int and 0 < plan.releases < 2**31
    real = all(isinstance(value, int | float) and abs(value) < 2**63 for value in _numbers(plan))
    if not (whole and real):
        raise ValueError("Expected a plan that can be priced.")
    return plan


def _numbers(plan: Promise) -> tuple[Any, ...]:
    return plan.noise_multiplier, plan.expected_contributors


def _reservation(entry: Entry) -> dict[str, Any]:
    """What a reservation says, if it is whole."""
    facts = _read(entry, lambda: entry.facts)
    kinds = {"plan": dict, "partition": str, "part": str, "simulated": bool, "recipe": str, "why": str}
    if not all(isinstance(facts.get(name), kind) for name, kind in kinds.items()):
        raise _damaged(entry)
    return facts


def _budget_of(entry: Entry) -> Budget:
    return _read(entry, lambda: Budget.from_dict(entry.facts["budget"]))


def _clock_of(entry: Entry) -> dict[str, Any] | None:
    """What an entry says about the clock; those of older versions, and of some machines, say nothing."""
    found = _read(entry, lambda: entry.facts).get("clock")
    if found is None:
        return None
    return _read(entry, lambda: {"boot": str(found["boot"]), "ahead": float(found["ahead"])})


def _fact(entry: Entry, name: str, kind: type[Answer]) -> Answer:
    found = _read(entry, lambda: entry.facts[name])
    if not isinstance(found, kind):
        raise _damaged(entry)
    return found


def _read(entry: Entry, work: Callable[[], Answer]) -> Answer:
    """What an entry says; one that does not say it was edited. Its text is never quoted."""
    try:
        return work()
    except DAMAGE:
        raise _damaged(entry) from None


def _damaged(entry: Entry) -> LedgerError:
    number = entry.id if type(entry.id) is int else "of no number"
    return LedgerError(f"Expected entry {number} as it was written: the ledger was edited (fedlens ledger verify).")


def _contradicted(run: str, what: str) -> ValueError:
    return ValueError(
        f"Expected the {what} that the ledger booked for {run!r}; the header of the model says otherwise."
    )


@functools.lru_cache(maxsize=1024)
def _parsed(text: str) -> Promise:
    return promised(json.loads(text))


def _written(time: datetime.datetime) -> str:
    """So that later times are later in the alphabet too."""
    return time.isoformat(timespec="microseconds")


def _parsed_time(text: str) -> datetime.datetime:
    """A day is its first moment."""
    try:
        found = datetime.datetime.fromisoformat(text)
    except ValueError:
        raise LedgerError("Expected times in the ledger: it was edited (fedlens ledger verify).") from None
    return found if found.tzinfo else found.replace(tzinfo=datetime.UTC)


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return "unknown"
