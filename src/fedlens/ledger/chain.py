"""Entries, each sealed with the hash of the one before it; and what is wrong with a chain of them."""

import contextlib
import dataclasses
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from fedlens.ledger import keys
from fedlens.privacy import Plan

Head = tuple[int, str]  # number and hash of the last entry: written down elsewhere, it pins down all before it


@dataclasses.dataclass(frozen=True)
class Entry:
    id: int
    at: str
    kind: str  # budget, request, review, reserve, release or close
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
    def facts(self) -> dict[str, Any]:
        return dict(json.loads(self.body))

    def hashed(self, previous: str) -> str:
        content = [previous, *dataclasses.astuple(self)[:-2]]  # not the signature, which is made of the hash
        return hashlib.sha256(json.dumps(content).encode()).hexdigest()


def problems(
    entries: Iterable[Entry], head: Head, models: Mapping[str, str], written_down: Mapping[int, str]
) -> Iterator[str]:
    """What was edited, is missing or out of place. Only a head `written_down` elsewhere shows a chain made anew."""
    previous, number, at = "", 0, ""
    planned: dict[tuple[str, str], int] = {}
    for entry in entries:
        if entry.id != number + 1:
            yield f"entries {number + 1} to {entry.id - 1} are missing"
        elif entry.hash != entry.hashed(previous):
            yield f"entry {entry.id} was edited, or is not in its place"
        if (entry.signer or entry.signature) and not keys.verified(entry.signer, entry.signature, entry.hash):
            yield f"the signature of entry {entry.id} does not fit"
        if entry.at < at:
            yield f"entry {entry.id} is older than the one before it"
        if written_down.get(entry.id, entry.hash) != entry.hash:
            yield f"entry {entry.id} is not the one that was written down elsewhere"
        yield from _out_of_place(entry, planned, models)
        previous, number, at = entry.hash, entry.id, entry.at
    if head != (number, previous):
        yield f"entries after {number} are missing"
    for later in sorted(later for later in written_down if later > number):
        yield f"entry {later}, written down elsewhere, is missing"


def _out_of_place(entry: Entry, planned: dict[tuple[str, str], int], models: Mapping[str, str]) -> Iterator[str]:
    """Releases beyond what was reserved, and models that are not the ones that were booked."""
    place = entry.run, entry.stage
    if entry.kind == "reserve":
        with contextlib.suppress(ValueError, KeyError, TypeError):  # an edited entry is reported already
            planned[place] = Plan.from_dict(entry.facts["plan"]).releases
    elif entry.kind == "release":
        planned[place] = planned.get(place, 0) - 1
        if planned[place] < 0:
            yield f"entry {entry.id} is a release that was never reserved"
    elif entry.kind == "close" and entry.run in models:
        with contextlib.suppress(ValueError, KeyError, TypeError):
            if models[entry.run] != entry.facts["model"]:
                yield f"the model of {entry.run!r} is not the one that entry {entry.id} names"
