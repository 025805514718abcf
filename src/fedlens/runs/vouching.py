"""What files say about themselves, held against the ledger: anybody can write a header."""

import dataclasses
import pathlib
from collections.abc import Iterator, Sequence
from typing import Any

from fedlens.core import files
from fedlens.ledger import Ledger, Spending
from fedlens.media import opening
from fedlens.media.protocol import Trained
from fedlens.models.words import Vocabulary
from fedlens.privacy.guarantee import UNVERIFIED
from fedlens.runs.books import DEFAULT_BOOK, book_at
from fedlens.runs.reporting import unconfirmed


@dataclasses.dataclass(frozen=True, kw_only=True)
class Checked:
    """Files whose headers name a ledger: hashes by the name they are booked under, the heads they carry."""

    hashes: dict[str, str]
    heads: list[tuple[int, str]]
    foreign: int  # of other ledgers
    problems: list[str]


def checked_files(book: Ledger, folder: pathlib.Path, vocabularies: Sequence[pathlib.Path]) -> Checked:
    """All models in run folders, of whatever kind, and all lists of words that were learnt."""
    booked, identity = book.reserved(), book.identity()
    hashes: dict[str, str] = {}
    heads: list[tuple[int, str]] = []
    problems: list[str] = []
    foreign = 0
    for run, digest, head in _headers(folder, vocabularies):
        known = run in booked
        if head is None:  # a damaged one: its hash tells, if it is one of ours
            problems += [f"the file of {run!r} cannot be read"] if known else []
        elif not (known or head[2:] == (identity,) or (len(head) == 2 and book.holds(head))):
            foreign += 1
            continue
        elif not known:
            problems.append(f"the file of {run!r} names this ledger, which does not know it: entries were taken back")
        if known and hashes.get(run, digest) != digest:
            problems.append(f"two different files say that they are of {run!r}")
        if known:
            hashes[run] = digest
        heads += [head[:2]] if head else []
    return Checked(hashes=hashes, heads=heads, foreign=foreign, problems=problems)


def _headers(
    folder: pathlib.Path, vocabularies: Sequence[pathlib.Path]
) -> Iterator[tuple[str, str, tuple[Any, ...] | None]]:
    """The name each is booked under, its hash, and the head it carries; None if it cannot be read."""
    parts = {path.parent for name in opening.RESULTS for path in folder.glob(f"*/*/{name}")}
    for path in filter(pathlib.Path.exists, map(opening.result_in, sorted(parts))):
        try:
            model = opening.opened(path)
            yield model.spending.account.run, files.sha256(path), _head(model.ledger_head)
        except ValueError:
            yield f"{path.parent.parent.name}/{path.parent.name}", files.sha256(path), None
    # Files with something beside them that may be what their words cost.
    beside = (path.with_suffix("") for path in (*folder.glob("*.json"), *folder.glob("*/*.json")))
    for path in (*sorted(filter(pathlib.Path.is_file, beside)), *vocabularies):
        if header := _learnt(path, named=path in vocabularies):
            yield header


def _learnt(path: pathlib.Path, named: bool) -> tuple[str, str, tuple[Any, ...] | None] | None:
    """Of a list that was learnt; None for other files, unless somebody `named` it."""
    try:
        words = Vocabulary.open(path)
        if "ledger_head" not in words.facts and not named:
            return None
        run = Spending.from_dict(words.facts["spending"]).account.run
        return run, words.digest, _head(words.facts["ledger_head"])
    except (ValueError, KeyError, TypeError, AttributeError):
        if named:
            raise ValueError(f"Expected a learnt list of words at {path}, with what it cost beside it.") from None
        return None


def _head(written: Any) -> tuple[Any, ...] | None:
    head = tuple(written) if isinstance(written, list | tuple) else ()
    kinds = [type(value) for value in head]
    return head if kinds in ([int, str], [int, str, str]) else None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Vouched:
    """Whether a ledger confirms what models say they cost, and which one."""

    unverified: str  # why not, in a headline; empty if it does
    statement: str  # for the page's provenance
    spent: tuple[Spending, ...] = ()  # by the runs that the models are of, as the ledger knows it


def vouched(address: str | None, folders: Sequence[pathlib.Path]) -> Vouched:
    """Holds the headers of the models in these folders against a ledger; refuses those that it contradicts.

    By default that is the ledger in the folder of the run folders, or the usual one, if either is there. Where a run
    says itself which ledger it is of, nobody listens: whoever forges a header forges that as well.
    """
    of_the_runs = [folder.resolve().parent.parent / "ledger.sqlite" for folder in folders]
    usual = [path for path in (*of_the_runs, pathlib.Path(DEFAULT_BOOK)) if path.exists()]
    if address is None and not usual:
        return Vouched(unverified=UNVERIFIED, statement=f"{UNVERIFIED}: there is none")
    book = book_at(address or str(usual[0]))
    files_of = [opening.result_in(folder) for folder in folders]
    models = [opening.opened(path) for path in files_of]
    doubts = [unconfirmed(book, model, files.sha256(path)) for model, path in zip(models, files_of, strict=True)]
    missing = list(filter(None, doubts))
    number, digest = book.head()
    if missing or not folders:
        return Vouched(unverified=UNVERIFIED, statement="; ".join([UNVERIFIED, *missing]))
    statement = f"confirmed by the ledger at {address or usual[0]}, head {number}:{digest}"
    return Vouched(unverified="", statement=statement, spent=_spent(book, models))


def _spent(book: Ledger, models: Sequence[Trained]) -> tuple[Spending, ...]:
    """By whole runs: groups that were counted, thresholds that were learnt, and what their vocabulary cost before."""
    roots = {model.spending.account.run.split("/")[0] for model in models}
    runs = [run["run"] for run in book.runs() if run["run"].split("/")[0] in roots and run["released"]]
    vocabularies = dict.fromkeys(paid for model in models for paid in model.paid_before)
    return *(book.spending(run) for run in runs), *vocabularies
