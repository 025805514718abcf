"""Requests and reviews: what may run, by whose leave, and what became of it."""

from collections.abc import Sequence
from typing import Any

from fedlens.ledger import booked, reviewers, standings
from fedlens.ledger.budgets import Budget
from fedlens.ledger.chain import Entry, root
from fedlens.ledger.entries import LARGEST, Entries, damaged, fact, read, reservation, sound
from fedlens.ledger.reviewers import NotApprovedError
from fedlens.ledger.spending import Account, Item
from fedlens.ledger.weighing import Weighed
from fedlens.privacy import promised


def review(entries: Entries, number: int, *, approved: bool, note: str) -> None:
    request = numbered(entries, number)
    if _verdict(entries, number):
        raise ValueError(f"Expected a request that waits for review; {number} is reviewed already.")
    reviewers.must_sign(entries, request.population, "a review")
    body = {"approved": approved, "note": note}
    entries.append("review", request.population, run=request.run, release=number, body=body)


def numbered(entries: Entries, number: int) -> Entry:
    request = entries.where("kind = 'request' and id = ?", number) if 0 < number < LARGEST else []
    if not request:
        raise ValueError(f"Expected the number of a request, found none with {number}.")
    return request[0]


def described(entries: Entries, request: Entry) -> dict[str, Any]:
    """A request, and what became of it."""
    said = _said(request)
    asked = [written(item) for item in _items_of(request)]
    own = {"number": request.id, "at": request.at, "who": request.who, "population": request.population}
    return own | said | {"asked": asked, "verdict": _verdict_in_words(entries, request)}


def _said(request: Entry) -> dict[str, Any]:
    """What a request says of its recipe, if it is whole; requests of older versions hold no text and no delta."""
    facts = read(request, lambda: request.facts)
    kinds: dict[str, Any] = {"name": str, "recipe": str, "why": str, "text": str | None, "delta": float | None}
    said = {name: facts.get(name) for name in kinds}
    if not all(isinstance(said[name], kind) for name, kind in kinds.items()):
        raise damaged(request)
    return said | {"text": said["text"] or None}


def written(item: Item) -> dict[str, Any]:
    """Without the name of the run, which a request does not know yet."""
    account = item.account
    partition = account.partition.removeprefix(root(account.run))
    return {"stage": item.stage, "part": account.part, "partition": partition, "plan": item.plan.to_dict()}


def _items_of(request: Entry) -> list[Item]:
    """What a request asks for."""
    return read(request, lambda: [_item(request, asked) for asked in request.facts["asked"]])


def _item(request: Entry, asked: dict[str, Any]) -> Item:
    """Older requests do not tell partitions, and are priced as if they had none in common."""
    account = Account(
        run=f"{request.run}/{asked['part']}",
        population=request.population,
        partition=f"{request.run}{asked.get('partition', ': ' + asked['part'])}",
        part=asked["part"],
    )
    return Item(account=account, stage=str(asked["stage"]), plan=sound(promised(asked["plan"])))


def _all_asked(items: Sequence[Item], asked: Sequence[Any]) -> bool:
    """Whether a request asked for all of this, each as often as it is wanted."""
    left = list(asked)
    for item in items:
        mine = written(item)
        # Older requests do not tell the partition.
        same = [one for one in left if isinstance(one, dict) and one == {name: mine.get(name) for name in one} and one]
        if not same:
            return False
        left.remove(same[0])
    return True


def weighed(entries: Entries, number: int) -> Weighed:
    """What a request asks for, and what it would do to its population as it stands now."""
    request = numbered(entries, number)
    items = _items_of(request)
    used, budget = bool(_used_by(entries, request)), reviewers.budget(entries, request.population)
    window = budget.window if budget else None
    return Weighed(
        request=described(entries, request),
        items=tuple(items),
        budget=budget,
        before=tuple(booked.on_population(entries, request.population, reserved=True, window=window)),
        refusal="" if used else standings.refusal(entries, request.population, items),
        used=used,
        last_approved=_last_approved(entries, request),
    )


def _last_approved(entries: Entries, request: Entry) -> dict[str, Any] | None:
    """What was approved on the population before: of the same name, if anything was."""
    condition = "kind = 'request' and population = ? and id < ?"
    requests = entries.where(condition, request.population, request.id)
    approved = [one for one in requests if _is_approved(_verdict(entries, one.id))]
    alike = [one for one in approved if one.run == request.run]
    last = (alike or approved)[-1:]
    return described(entries, last[0]) if last else None


def _verdict(entries: Entries, number: int) -> Entry | None:
    reviews = entries.where("kind = 'review' and release = ?", number)
    return reviews[0] if reviews else None


def _is_approved(verdict: Entry | None) -> bool:
    return verdict is not None and fact(verdict, "approved", bool)


def _verdict_in_words(entries: Entries, request: Entry) -> str:
    verdict = _verdict(entries, request.id)
    if verdict is None:
        return "waiting"
    note, approved = fact(verdict, "note", str), _is_approved(verdict)
    used = "".join(f", used by run {run}" for run in _used_by(entries, request))
    return f"{'approved' if approved else 'rejected'} by {verdict.who}{f' ({note})' if note else ''}{used}"


def _used_by(entries: Entries, request: Entry) -> list[str]:
    """The runs that began by a request; one that ended without any release gave it back.

    Formal guarantee: asked in the transaction that reserves, it keeps two runs from releasing by one approval: a
    run that ended releases nothing more, and one that was interrupted has not ended.
    """
    reserved = entries.where("kind = 'reserve' and population = ?", request.population)
    accounts = dict.fromkeys(entry.run for entry in reserved if reservation(entry).get("request") == request.id)
    using = (
        account
        for account in accounts
        if entries.count_releases("run = ?", account) or not booked.closing(entries, account)
    )
    return list(dict.fromkeys(root(account) for account in using))


def approving(entries: Entries, run: str, population: str, items: Sequence[Item], recipe: str, text: str) -> int | None:
    """The one request by which a run may begin, for all that it asks for; None where the budget asks for none."""
    budget = reviewers.budget(entries, population)
    if budget is None or not budget.review:
        return None
    why_not = "there is no request for it (fedlens ledger request)"
    for request in entries.where("kind = 'request' and population = ?", population):
        if not _same_recipe(entries, request, items, recipe, text):
            if fact(request, "name", str) in (run, run.rpartition("-")[0]):
                why_not = f"the recipe is not the one of request {request.id}: it was edited since"
        elif objection := _objection(entries, request, run, budget):
            why_not = objection
        else:
            return request.id
    raise NotApprovedError(f"Runs on {population!r} need an approved request, and {why_not}.")


def _same_recipe(entries: Entries, request: Entry, items: Sequence[Item], recipe: str, text: str) -> bool:
    """Whether a request asked for this: the recipe, its text where one was kept, and all that is asked for."""
    same = fact(request, "recipe", str) == recipe and (described(entries, request)["text"] or text) == text
    return same and _all_asked(items, fact(request, "asked", list))


def _objection(entries: Entries, request: Entry, run: str, budget: Budget) -> str:
    """Why a run may not begin by a request for it; empty if it may."""
    verdict = _verdict(entries, request.id)
    if verdict is None:
        return f"request {request.id} waits for review"
    if not _is_approved(verdict):
        return f"request {request.id} was rejected: {fact(verdict, 'note', str) or 'no note'}"
    if budget.reviewers and not reviewers.signed_by(entries, verdict, budget.reviewers):
        return f"the approval of request {request.id} is not signed by a reviewer"
    if others := [other for other in _used_by(entries, request) if other != run]:
        return f"request {request.id} was used by another run ({', '.join(others)}); make a new one"
    return ""
