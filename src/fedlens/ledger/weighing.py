"""What a request asks for, in the words and numbers that a reviewer needs before saying yes."""

import dataclasses
import difflib
from collections.abc import Iterator
from typing import Any

from fedlens.ledger.budgets import Budget
from fedlens.ledger.spending import Account, Item, Spending, guarantee
from fedlens.privacy import Guarantee, Promise, plain, rounded

_DELTA = 1e-5  # where neither the budget nor the request tells one


@dataclasses.dataclass(frozen=True, kw_only=True)
class Weighed:
    """A request beside the budget it would draw on, as it stands now."""

    request: dict[str, Any]  # as `Ledger.requests` tells it
    items: tuple[Item, ...]  # what is asked for
    budget: Budget | None
    before: tuple[Spending, ...]  # spent and reserved
    refusal: str  # why it would not be let in just now; empty if it would
    used: bool  # by a run: then it is a part of what was before
    last_approved: dict[str, Any] | None  # the request that was approved before it, on the same population

    @property
    def asked(self) -> list[Spending]:
        """One spending for each account."""
        accounts = dict.fromkeys(item.account for item in self.items)
        return [Spending(account=one, plans=tuple(self._plans_on(one))) for one in accounts]

    def _plans_on(self, account: Account) -> Iterator[Promise]:
        return (item.plan for item in self.items if item.account == account)

    @property
    def fits(self) -> bool:
        return not self.refusal

    @property
    def delta(self) -> float:
        """At which all epsilons are told: the budget's, so that they can be compared."""
        return self.budget.delta if self.budget else self.request["delta"] or _DELTA

    @property
    def cost(self) -> Guarantee:
        return guarantee(self.asked, self.delta)

    def epsilons(self) -> tuple[float, float | None]:
        """Of the population before and after; None where its units are of several kinds, which do not add up."""
        kinds = {spending.kind for spending in (*self.asked, *self.before)}
        if len(kinds) > 1:
            return 0.0, None
        before = guarantee(self.before, self.delta).epsilon if self.before else 0.0
        return before, before if self.used else guarantee([*self.before, *self.asked], self.delta).epsilon

    @property
    def algorithm(self) -> str:
        """As far as the recipe's text tells."""
        text = self.request["text"] or ""
        wanted = ("task", "algorithm", "model", "tokenizer", "sampling", "rounds", "adaptive_clip", "correlated")
        lines = [line for line in _lines(text) if line.partition(" = ")[0] in wanted]
        return ", ".join(lines) or "not told"

    def difference(self) -> list[str]:
        """From what was approved last, line by line; what is new begins with +."""
        if self.last_approved is None or not self.request["text"] or not self.last_approved["text"]:
            return []
        old, new = self.last_approved["text"], self.request["text"]
        named = f"request {self.last_approved['number']}", f"request {self.request['number']}"
        return list(difflib.unified_diff(_lines(old), _lines(new), *named, lineterm=""))

    def to_dict(self) -> dict[str, Any]:
        before, after = self.epsilons()
        cost = self.cost
        return self.request | {
            "guarantee": cost.to_dict(),
            "budget": self.budget.to_dict() if self.budget else None,
            "before": None if after is None else plain(before),
            "after": None if after is None else plain(after),
            "fits": self.fits,
            "refusal": self.refusal,
            "selections": sorted({spending.account.part for spending in self.asked}),
            "last_approved": self.last_approved["number"] if self.last_approved else None,
            "difference": self.difference(),
        }

    def lines(self) -> list[str]:
        """A few, for a list. Each is one line, with whatever was written in it."""
        asked = "{number}: {name} on {population} by {who}: {verdict}".format(**self.request)
        why = f"; why: {self.request['why']}" if self.request["why"] else ""
        return [f"{asked}{why}", f"  asks for {self.cost.headline}; {self._standing()}", f"  {self._verdict()}"]

    def full(self) -> list[str]:
        """Everything that is asked. Each is one line."""
        request, listed = self.request, self.lines()
        text = _lines(request["text"] or "")
        return [
            *listed,
            f"  asked at {request['at'][:16]}; recipe {request['recipe'][:16]}",
            f"  per {self.cost.unit} ({self.cost.neighbours}); {self.cost.composition}; {self.cost.accountant}",
            f"  algorithm: {self.algorithm}",
            *self._plans(),
            *(["  the recipe:", *(f"    {line}" for line in text)] if text else [_NO_TEXT]),
            *self._compared(),
        ]

    def _standing(self) -> str:
        before, after = self.epsilons()
        budget = f"its budget is {self.budget.text}" if self.budget else "it has no budget, so that nothing is refused"
        if after is None:
            return f"its population counts units or neighbours of another kind; {budget}"
        moved = (
            f"stays at epsilon {rounded(after)}" if self.used else f"goes from {rounded(before)} to {rounded(after)}"
        )
        return f"its population {moved}; {budget}"

    def _verdict(self) -> str:
        if self.used:
            return "a run has used it"
        return "it fits" if self.fits else f"IT DOES NOT FIT AND CANNOT RUN: {self.refusal}"

    def _plans(self) -> list[str]:
        return [
            f"  selection {item.account.part}, {item.stage}: {item.plan.releases} releases, noise multiplier"
            f" {item.plan.noise_multiplier:.6g}, {item.plan.bound.text}, {item.plan.who}"
            for item in self.items
        ]

    def _compared(self) -> list[str]:
        if self.last_approved is None:
            return ["  nothing was approved on this population before"]
        number, changes = self.last_approved["number"], self.difference()
        if not self.last_approved["text"] or not self.request["text"]:
            return [f"  request {number} was approved last; without both texts they cannot be compared"]
        if not changes:
            return [f"  the recipe's text is that of request {number}, which was approved last"]
        return [f"  changed since request {number}, which was approved last:", *(f"    {line}" for line in changes)]


_NO_TEXT = "  the recipe's text was not kept: the request is of an older version"


def _lines(text: str) -> list[str]:
    """Those that the one who wrote it ended: other separators would put lines of their own before a reviewer."""
    return text.removesuffix("\n").split("\n") if text else []
