"""Entries, each sealed with the hash of the one before it; and what is wrong with a chain of them."""

import contextlib
import dataclasses
import hashlib
import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from fedlens.ledger import keys
from fedlens.privacy import promised

Head = tuple[int, str]  # number and hash of the last entry: written down elsewhere, it pins down all before it


@dataclasses.dataclass(frozen=True)
class Entry:
    id: int
    at: str
    kind: str  # budget, register, request, review, reserve, release or close
    who: str
    population: str
    run: str
    stage: str
    release: int
    query: str
    body: str
    signer: str
    signature: str
    hash: str

    @property
    def readable(self) -> bool:
        """Whether all values are of the kind they were written as; SQLite keeps whatever it is given."""
        return all(type(getattr(self, field.name)) is field.type for field in dataclasses.fields(self))

    @property
    def facts(self) -> dict[str, Any]:
        return dict(json.loads(self.body))

    def hashed(self, previous: str) -> str:
        content = [previous, *dataclasses.astuple(self)[:-2]]  # not the signature, which is made of the hash
        return hashlib.sha256(json.dumps(content).encode()).hexdigest()


def problems(
    entries: Iterable[Entry], head: Head, models: Mapping[str, str], written_down: Collection[Head]
) -> Iterator[str]:
    """What was edited, is missing or out of place. Only a head `written_down` elsewhere shows a chain made anew."""
    previous, number, at = "", 0, ""
    books = _Books(models)
    for entry in entries:
        if not entry.readable:
            yield f"entry {number + 1} was edited: it holds values of another kind"
            return
        if entry.id != number + 1:
            yield f"entries {number + 1} to {entry.id - 1} are missing"
        elif entry.hash != entry.hashed(previous):
            yield f"entry {entry.id} was edited, or is not in its place"
        if (entry.signer or entry.signature) and not keys.verified(entry.signer, entry.signature, entry.hash):
            yield f"the signature of entry {entry.id} does not fit"
        if entry.at < at:
            yield f"entry {entry.id} is older than the one before it"
        if any(kept == entry.id and digest != entry.hash for kept, digest in written_down):
            yield f"entry {entry.id} is not the one that was written down elsewhere"
        with contextlib.suppress(ValueError, KeyError, TypeError, AttributeError):  # edited, and reported already
            yield from books.out_of_place(entry)
        previous, number, at = entry.hash, entry.id, entry.at
    if head != (number, previous):
        yield f"entries after {number} are missing"
    for later in sorted({kept for kept, _ in written_down if kept > number}):
        yield f"entry {later}, written down elsewhere, is missing"


class _Books:
    """What the entries so far add up to, to tell which of the next ones cannot be."""

    def __init__(self, models: Mapping[str, str]) -> None:
        self._models = models
        self._planned: dict[tuple[str, str], int] = {}
        self._closed: set[str] = set()
        self._reviewers: dict[str, list[str]] = {}

    def out_of_place(self, entry: Entry) -> Iterator[str]:
        place, reviewers = (entry.run, entry.stage), self._reviewers.get(entry.population, [])
        if entry.kind in ("budget", "register", "review") and reviewers and entry.signer not in reviewers:
            yield f"entry {entry.id}, a {entry.kind}, is not signed by a reviewer"
        if entry.kind == "budget":
            self._reviewers[entry.population] = entry.facts["budget"]["reviewers"]
        elif entry.kind == "reserve":
            self._planned[place] = promised(entry.facts["plan"]).releases
        elif entry.kind == "release":
            self._planned[place] = self._planned.get(place, 0) - 1
            if self._planned[place] < 0:
                yield f"entry {entry.id} is a release that was never reserved"
            elif entry.run in self._closed:
                yield f"entry {entry.id} is a release of a run that was closed before"
        elif entry.kind == "close":
            self._closed.add(entry.run)
            booked = entry.facts["model"]
            if booked and self._models.get(entry.run, booked) != booked:  # who gives a run up names no model
                yield f"the model of {entry.run!r} is not the one that entry {entry.id} names"
