"""Entries, each sealed with the hash of the one before it; and what is wrong with a chain of them."""

import dataclasses
import hashlib
import json
import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from fedlens.ledger import keys
from fedlens.privacy import promised

# Number and hash of the last entry: written down elsewhere, it pins down all before it. In the headers of files the
# hash of the first entry follows, by which a ledger is told from others; files of older versions lack it.
Place = tuple[int, str]
Head = Place | tuple[int, str, str]
KINDS = "budget", "register", "request", "review", "reserve", "release", "close", "witness"
# What a run books while it reads private data. To the second, the times would tell how long each release took, and
# thereby how many users were in it.
BY_DAY = "release", "close"
_NAMED = 3  # heads that are missing, one by one
# What reading an edited entry may end in.
DAMAGE = ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError, OverflowError


@dataclasses.dataclass(frozen=True)
class Entry:
    id: int
    at: str
    kind: str  # one of KINDS
    who: str
    population: str
    run: str = ""
    stage: str = ""
    release: int = -1
    query: str = ""
    body: str = "{}"
    signer: str = ""
    signature: str = ""
    hash: str = ""

    @property
    def readable(self) -> bool:
        """Whether all values are of the kind they were written as; SQLite keeps whatever it is given."""
        return all(type(getattr(self, field.name)) is field.type for field in dataclasses.fields(self))

    @property
    def facts(self) -> dict[str, Any]:
        """Numbers that are none, or that nobody can count with, are refused: only an editor's hand writes them."""
        facts = json.loads(self.body, parse_constant=_finite, parse_float=_finite)
        if not isinstance(facts, dict):
            raise TypeError("Expected facts.")
        return facts

    def hashed(self, previous: str) -> str:
        content = [previous, *dataclasses.astuple(self)[:-2]]  # not the signature, which is made of the hash
        return hashlib.sha256(json.dumps(content).encode()).hexdigest()


def _finite(text: str) -> float:
    if not math.isfinite(number := float(text)):
        raise ValueError("Expected a number.")
    return number


def problems(
    entries: Iterable[Entry], head: Place, models: Mapping[str, str], written_down: Collection[Place]
) -> Iterator[str]:
    """What was edited, is missing or out of place. Only a head `written_down` elsewhere shows a chain made anew."""
    previous, number, at = "", 0, ""
    books = _Books(models)
    kept: dict[int, set[str]] = {}
    for place, digest in written_down:
        kept.setdefault(place, set()).add(digest)
    for entry in entries:
        if not entry.readable:
            yield f"entry {number + 1} was edited: it holds values of another kind"
            return  # what comes after it cannot be told apart from it
        if entry.id != number + 1:
            yield f"entries {number + 1} to {entry.id - 1} are missing"
        elif entry.hash != entry.hashed(previous):
            yield f"entry {entry.id} was edited, or is not in its place"
        if (entry.signer or entry.signature) and not keys.verified(entry.signer, entry.signature, entry.hash):
            yield f"the signature of entry {entry.id} does not fit"
        if entry.at < (at[:10] if entry.kind in BY_DAY else at):
            yield f"entry {entry.id} is older than the one before it"
        if kept.pop(entry.id, set()) - {entry.hash}:
            yield f"entry {entry.id} is not the one that was written down elsewhere"
        try:
            yield from books.out_of_place(entry)
        except DAMAGE:
            yield f"entry {entry.id} does not say what an entry of its kind says"
        previous, number, at = entry.hash, entry.id, max(at, entry.at)
    if head != (number, previous):
        yield f"entries after {number} are missing"
    missing = sorted(place for place in kept if place > number)
    yield from (f"entry {later}, written down elsewhere, is missing" for later in missing[:_NAMED])
    if rest := missing[_NAMED:]:
        yield f"{len(rest)} more heads that were written down elsewhere, up to entry {rest[-1]}, are missing"


def root(run: str) -> str:
    """The run that an account belongs to: its models are booked as run/low, run/high, ...

    >>> root("look-3fa2c1/low"), root("look-3fa2c1")
    ('look-3fa2c1', 'look-3fa2c1')
    """
    return run.split("/")[0]


class _Books:
    """What the entries so far add up to, to tell which of the next ones cannot be."""

    def __init__(self, models: Mapping[str, str]) -> None:
        self._models = models
        self._planned: dict[tuple[str, str], int] = {}
        self._closed: set[str] = set()
        self._recipes: dict[str, str] = {}
        self._reviewers: dict[str, list[str]] = {}

    def out_of_place(self, entry: Entry) -> Iterator[str]:
        place, reviewers = (entry.run, entry.stage), self._reviewers.get(entry.population, [])
        if entry.kind == "witness":  # it is everybody's
            reviewers = [key for keys_of_one in self._reviewers.values() for key in keys_of_one]
        signed = "budget", "register", "review", "witness"
        if entry.kind in signed and reviewers and entry.signer not in reviewers:
            yield f"entry {entry.id}, a {entry.kind}, is not signed by a reviewer"
        if entry.kind not in KINDS:
            yield f"entry {entry.id} is of no kind that there is"
        if entry.kind == "budget":
            self._reviewers[entry.population] = entry.facts["budget"]["reviewers"]
        elif entry.kind == "reserve":
            self._planned[place] = promised(entry.facts["plan"]).releases
            recipe = entry.facts["recipe"]
            if self._recipes.setdefault(root(entry.run), recipe) != recipe:
                yield f"entry {entry.id} adds to a run that was booked with another recipe"
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
