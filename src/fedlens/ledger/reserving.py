"""The rules of spending: a run is reserved as a whole, booked release by release, and returns what it did not use.

Every function is called within a transaction of the `Ledger`.
"""

from collections.abc import Collection, Sequence

from fedlens.curators.protocol import PrivacySpentError
from fedlens.ledger import booked, clock, requests, reviewers, standings
from fedlens.ledger.chain import Entry, root
from fedlens.ledger.entries import OF_ACCOUNT, Entries, account_of, clock_of, fact, plan_of
from fedlens.ledger.spending import Account, Item, kind_of_plan, owed
from fedlens.ledger.storage import LedgerError
from fedlens.privacy import MatrixPlan, Promise


def must_be_new(entries: Entries, items: Sequence[Item]) -> None:
    known = [item.account.run for item in items if booked.of_all_accounts(entries, root(item.account.run))]
    if known:
        raise ValueError(f"Expected a new run, but the ledger knows {known[0]!r} already; run it again.")


def must_be_reserved(entries: Entries, items: Sequence[Item]) -> None:
    missing = [item.account.run for item in items if not _is_reserved(entries, item)]
    if missing:
        raise ValueError(f"Expected a run of this ledger to go on with; it holds no reservation of {missing[0]!r}.")


def reserve(entries: Entries, items: Sequence[Item], *, recipe: str = "", why: str = "", text: str = "") -> None:
    """Sets aside what was not yet, if the run is as it began, has leave, and its populations have budget for it."""
    new = [item for item in items if not _is_reserved(entries, item)]
    for name in dict.fromkeys(root(item.account.run) for item in (items if recipe else new)):
        _must_be_as_it_began(entries, name, [item for item in items if root(item.account.run) == name], new, recipe)
    for item in new:
        booked.must_be_open(entries, item.account.run)
    approvals = _approvals(entries, new, recipe, text)
    for population in sorted({item.account.population for item in new if not item.account.simulated}):
        _must_keep_time(entries, population)
        mine = [item for item in new if item.account.population == population and not item.account.simulated]
        standings.within_budget(entries, population, mine)
    for item in new:
        account = item.account
        body = {"plan": item.plan.to_dict(), **{name: getattr(account, name) for name in OF_ACCOUNT}}
        body |= {"recipe": recipe, "why": why, "request": approvals.get((root(account.run), account.population))}
        body |= clock.fact(entries.store)
        entries.append("reserve", account.population, run=account.run, stage=item.stage, body=body)


def _is_reserved(entries: Entries, item: Item) -> bool:
    """Whether this was set aside before; a run keeps to one account and, on it, to one kind of guarantee."""
    reserved = booked.reservations(entries, item.account.run)
    same = [entry for entry in reserved if entry.stage == item.stage]
    if any(not _alike(entry, item) for entry in reserved) or any(plan_of(entry) != item.plan for entry in same):
        raise ValueError(f"Expected the account and plan that run {item.account.run!r} began with; they changed.")
    return bool(same)


def _alike(entry: Entry, item: Item) -> bool:
    return account_of(entry) == item.account and kind_of_plan(plan_of(entry)) == kind_of_plan(item.plan)


def _must_be_as_it_began(entries: Entries, name: str, items: Sequence[Item], new: Sequence[Item], recipe: str) -> None:
    """Refuses a run that another recipe was booked for, or that adds to what it set aside when it began.

    Else somebody could stop it after one group, change the recipe and have everybody trained on once more, at a
    price and by a leave that were for something else.
    """
    known = booked.of_all_accounts(entries, name)
    if len({account_of(entry).simulated for entry in known} | {item.account.simulated for item in items}) > 1:
        raise ValueError(f"Expected run {name!r} to be simulated as a whole, or not at all.")
    recipes = {fact(entry, "recipe", str) for entry in known}
    if known and recipe and recipes != {recipe}:
        raise ValueError(
            f"Expected the recipe that run {name!r} was booked with; it, or a public file it names, has changed."
            " Start a new run."
        )
    if known and recipes != {""} and any(item in new for item in items):
        raise ValueError(f"Expected what run {name!r} set aside when it began; it asks for more. Start a new run.")


def _approvals(entries: Entries, items: Sequence[Item], recipe: str, text: str) -> dict[tuple[str, str], int | None]:
    """By run and population: one request speaks for all that a run asks of a population, or for none of it."""
    asking: dict[tuple[str, str], list[Item]] = {}
    for item in items:
        if not item.account.simulated:
            asking.setdefault((root(item.account.run), item.account.population), []).append(item)
    return {place: requests.approving(entries, *place, asked, recipe, text) for place, asked in asking.items()}


def _must_keep_time(entries: Entries, population: str) -> None:
    """Where spending is forgotten with time, refuses a clock that was set forward since the budget was set.

    PostgreSQL has the server's own clock, which is not looked at.
    """
    budget, now = reviewers.budget(entries, population), clock.fact(entries.store).get("clock")
    if budget is None or budget.window is None or now is None:
        return
    last = reviewers.budget_entries(entries, population)[-1]
    since = entries.where("kind = 'reserve' and population = ? and id > ?", population, last.id)
    if clock.was_set_forward(now, map(clock_of, [last, *since])):
        raise LedgerError(
            f"Expected a clock that goes as the machine does: it was set forward, so that what {population!r} spent"
            " would be forgotten. Set it right; or, if it is right now, set the budget anew (fedlens ledger init)."
        )


def charge(entries: Entries, account: Account, stage: str, plan: Promise, release: int, query: str) -> bool:
    """Books one release; False if this very question was booked before."""
    reserve(entries, [Item(account=account, stage=stage, plan=plan)])
    same_question = "run = ? and stage = ? and release = ? and query = ?"
    if entries.count_releases(same_question, account.run, stage, release, query):
        return False
    booked.must_be_open(entries, account.run)
    made = entries.count_releases("run = ? and stage = ?", account.run, stage)
    _must_be_its_turn(account.run, plan, release, made)
    if isinstance(plan, MatrixPlan):
        _must_be_the_same_noise(entries, account.run, stage, query)
    _must_be_left(plan, made)
    entries.append("release", account.population, run=account.run, stage=stage, release=release, query=query)
    return True


def _must_be_its_turn(run: str, plan: Promise, release: int, made: int) -> None:
    if plan.in_turn and release != made:
        raise PrivacySpentError(
            f"Expected release {made} of {run!r} next: in a balanced schedule every group has its turn"
            " once, correlated noise needs every row before it, and a release that is asked again with another"
            " question would be a second one."
        )


def _must_be_the_same_noise(entries: Entries, run: str, stage: str, query: str) -> None:
    common = query.split("/")[0]
    if entries.count_releases("run = ? and stage = ? and query not like ?", run, stage, f"{common}/%"):
        raise PrivacySpentError(
            f"Expected the noise that the releases of {run!r} began with: its secret, its data or the"
            " shape of its contributions changed, and no plan covers what other noise would give away."
        )


def _must_be_left(plan: Promise, made: int) -> None:
    if made >= plan.releases:
        raise PrivacySpentError(
            f"All {plan.releases} releases of the plan are spent. (A resumed run asks its old questions again"
            " for free; if its data, secret or engine changed, they are new ones: start a new run.)"
        )


def close(entries: Entries, run: str, model: str, words: Collection[str]) -> int:
    """Ends a run, once; gives the number of the entry that did."""
    reserved = booked.reservations(entries, run)
    if not reserved:
        raise ValueError(f"Expected a run of this ledger, found no reservation of {run!r}.")
    if closed := booked.closing(entries, run):
        return closed.id
    counts = booked.release_counts(entries, "run = ?", (run,))
    left = {entry.stage: _left(plan_of(entry), counts.get((run, entry.stage), (0, 0))[0]) for entry in reserved}
    body = {"model": model, "returned": left} | ({"words": sorted(words)} if words else {})
    return entries.append("close", reserved[0].population, run=run, body=body).id


def _left(plan: Promise, made: int) -> int:
    """How many releases a run that ends gives back."""
    return plan.releases - (owed(plan, made).releases if made else 0)
