"""`fedlens ledger`: budgets, requests, reviews, and whether the books are whole."""

import pathlib
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from fedlens.cli.options import (
    FAILED,
    OVER_BUDGET,
    Book,
    Json,
    Key,
    Out,
    RecipeFile,
    Sets,
    Who,
    Why,
    aside,
    modelers,
    say,
    shown,
)
from fedlens.runs.books import DEFAULT_BOOK, book_at, ledger_at

if TYPE_CHECKING:
    from fedlens.ledger import Ledger

ledger_app = typer.Typer(no_args_is_help=True, help="Budgets: what was spent, by whom, on what; and what may be.")


@ledger_app.command("init")
def ledger_init(
    population: Annotated[str, Option(help="Its name in the ledger: that of its file, or data.name.")],
    epsilon: Annotated[float, Option(help="What all runs together may spend.")],
    delta: Annotated[float, Option(help="Well below 1 / size.")],
    size: Annotated[int | None, Option(help="The public number of units, or an upper bound.")] = None,
    unit: Annotated[str, Option(help="user, example or silo.")] = "user",
    neighbours: Annotated[str, Option(help="add/remove or replace-one.")] = "add/remove",
    window: Annotated[float | None, Option(help="Days after which what was spent no longer counts.")] = None,
    review: Annotated[bool, Option("--review/--no-review", help="Runs need an approved request.")] = False,
    reviewer: Annotated[list[str] | None, Option(help="A reviewer's public key; repeatable, implies --review.")] = None,
    ledger: Book = DEFAULT_BOOK,
    key: Key = None,
    who: Who = None,
    why: Why = "",
    as_json: Json = False,
) -> None:
    """Set, or change, the budget of a population. The ledger is made if there is none."""
    from fedlens.ledger import Budget
    from fedlens.privacy import Neighbours, Unit

    budget = Budget(
        population=population,
        epsilon=epsilon,
        delta=delta,
        size=size,
        unit=_one_of(Unit, unit),
        neighbours=_one_of(Neighbours, neighbours),
        window=window,
        review=review or bool(reviewer),
        reviewers=tuple(reviewer or ()),
    )
    if size is not None and delta > 1 / size:
        aside(f"warning: delta {delta:g} is above 1/{size}: one whole record may be published")
    book_at(ledger, who, key, create=True).set_budget(budget, why)
    say(budget.to_dict(), shown(f"{population}: {budget.text}"), as_json)


@ledger_app.command("show")
def ledger_show(ledger: Book = DEFAULT_BOOK, as_json: Json = False) -> None:
    """What was spent, by whom, on what; and what is left."""
    book = book_at(ledger)
    number, head = book.head()
    standings = book.standings()
    runs = book.runs()
    answer = {
        "populations": [standing.to_dict() for standing in standings],
        "runs": runs,
        "entries": number,
        "head": head,
        "witness": book.witness(),
    }
    lines = []
    for name in book.populations():
        own = [line for standing in standings if standing.population == name for line in standing.lines()]
        own += _run_lines(runs, name)
        lines += [*own, ""] if own else []
    seen = f", seen by the witness at {book.witness()}" if book.witness() else ""
    say(answer, _text([*lines, f"{number} entries, head {head[:16]}{seen}"]), as_json)


@ledger_app.command("request")
@modelers
def ledger_request(
    recipe: RecipeFile,
    sets: Sets = None,
    ledger: Book = DEFAULT_BOOK,
    key: Key = None,
    who: Who = None,
    why: Why = "",
    as_json: Json = False,
) -> None:
    """Ask for the leave to run a recipe, as it is now."""
    from fedlens.owner.folder import Owner
    from fedlens.recipes.recipe import Recipe
    from fedlens.recipes.toml import to_toml

    parsed, book = Recipe.open(recipe, sets or []).named, book_at(ledger, who, key)
    known = Owner(ledger_at(ledger), book).known(parsed.data.population or "")
    parsed = known.on(parsed) if known else parsed  # as it will be run
    items = parsed.items(parsed.name, simulated=False)
    delta, text = parsed.privacy.delta, to_toml(parsed)
    number = book.request(parsed.name, items, recipe=parsed.digest, why=why, text=text, delta=delta)
    say_request(book, number, as_json)


def say_request(book: "Ledger", number: int, as_json: bool) -> None:
    """A request that does not fit is kept, for a budget may be raised; but who asks is told at once."""
    weighed = book.weighed(number)
    say(weighed.to_dict(), _text([f"Request {number} waits for review.", *weighed.lines()[1:]]), as_json)
    if not weighed.fits:
        raise typer.Exit(OVER_BUDGET)


@ledger_app.command("review")
def ledger_review(
    number: Annotated[int | None, Argument(help="One request, in full.")] = None,
    ledger: Book = DEFAULT_BOOK,
    as_json: Json = False,
) -> None:
    """What is asked, at which price, and what became of it: all requests in a few lines each, or one in full."""
    book = book_at(ledger)
    if number is not None:
        weighed = book.weighed(number)
        say(weighed.to_dict(), _text(weighed.full()), as_json)
        return
    every = [book.weighed(request["number"]) for request in book.requests()]
    lines = [line for weighed in every for line in weighed.lines()]
    say({"requests": [weighed.to_dict() for weighed in every]}, _text(lines) or "No requests.", as_json)


Number = Annotated[int, Argument(help="The number of the request (fedlens ledger review).")]
Note = Annotated[str, Option(help="For the one who asked.")]


def _verdict(approved: bool) -> Callable[..., None]:
    def reviewed(
        number: Number,
        note: Note = "",
        ledger: Book = DEFAULT_BOOK,
        key: Key = None,
        who: Who = None,
        as_json: Json = False,
    ) -> None:
        book = book_at(ledger, who, key)
        book.review(number, approved=approved, note=note)
        weighed = book.weighed(number)
        lines = [f"Request {number} is {'approved' if approved else 'rejected'}.", *(weighed.lines()[1:] * approved)]
        say({"number": number, "approved": approved, "fits": weighed.fits}, _text(lines), as_json)
        if approved and not weighed.fits:  # it cannot run, whatever was said; unless the budget grows
            raise typer.Exit(OVER_BUDGET)

    return reviewed


ledger_app.command("approve", help="Let a request be run, once, as it was asked.")(_verdict(True))
ledger_app.command("reject", help="Refuse a request.")(_verdict(False))


@ledger_app.command("close")
def ledger_close(
    run: Annotated[str, Argument(help="A run that will not be resumed, such as look-t1-3fa2c1.")],
    ledger: Book = DEFAULT_BOOK,
    out: Out = pathlib.Path("runs"),
    key: Key = None,
    who: Who = None,
    as_json: Json = False,
) -> None:
    """Return what an abandoned run has reserved and not spent. It cannot be resumed then."""
    from fedlens.runs.safeguards import forget_secrets

    book = book_at(ledger, who, key)
    parts = [part["run"] for part in book.runs() if run in (part["run"], part["run"].split("/")[0])]
    if not parts:
        raise ValueError(f"Expected a run of this ledger, found none named {run!r}.")
    for name in parts:
        book.close(name)
        forget_secrets(ledger_at(ledger), name.replace("/", "."))  # nobody needs them any more
    whole = parts[0].split("/")[0]
    if all(part["closed"] for part in book.runs() if part["run"].split("/")[0] == whole):
        forget_secrets(ledger_at(ledger), whole)
    say({"closed": parts}, shown(f"Closed: {', '.join(parts)}"), as_json)


@ledger_app.command("verify")
def ledger_verify(
    ledger: Book = DEFAULT_BOOK,
    runs: Annotated[pathlib.Path | None, Option(help="Run folders to check as well. Default: those beside it.")] = None,
    head: Annotated[str | None, Option(metavar="NUMBER:HASH", help="A head that was written down elsewhere.")] = None,
    vocabularies: Annotated[
        list[pathlib.Path] | None, Option("--vocabulary", help="A learnt list of words to check as well; repeatable.")
    ] = None,
    witness: Annotated[str | None, Option(help="The witness the ledger must have. Default: $FEDLENS_WITNESS.")] = None,
    as_json: Json = False,
) -> None:
    """Look for entries that were edited, are missing or out of order, and for files that are not the booked ones."""
    from fedlens.ledger import is_remote
    from fedlens.runs.vouching import checked_files

    book = book_at(ledger, witness=witness, checked=False)
    if runs is not None and not runs.is_dir():
        raise ValueError(f"Expected run folders in {runs}; there is no such folder.")
    folder = runs or pathlib.Path(DEFAULT_BOOK if is_remote(ledger) else ledger).parent
    checked = checked_files(book, folder, vocabularies or [])
    problems = book.verify(checked.hashes, [*checked.heads, *([_head(head)] if head else [])]) + checked.problems
    number, last = book.head()
    answer = {
        "problems": problems,
        "entries": number,
        "head": last,
        "models": len(checked.hashes),
        "of_other_ledgers": checked.foreign,
        "witness": book.witness() if not problems else None,
    }
    foreign = f", {checked.foreign} of other ledgers" if checked.foreign else ""
    whole = f"ok: {number} entries, {len(checked.hashes)} models{foreign}, head {number}:{last}"
    say(answer, _text(problems) or whole, as_json)
    if problems:
        raise typer.Exit(FAILED)


@ledger_app.command("witness")
def ledger_witness(
    to: Annotated[str | None, Option(help="A file on another disk, or postgresql://…; made if not there.")] = None,
    lost: Annotated[
        bool, Option("--lost", help="The witness is lost: do without its word; it is written down.")
    ] = False,
    ledger: Book = DEFAULT_BOOK,
    key: Key = None,
    who: Who = None,
    as_json: Json = False,
) -> None:
    """Name a witness, which sees every entry before anything is released: an older ledger is refused then.

    Keep it where who can replace the ledger cannot write, and set FEDLENS_WITNESS to it: a ledger from before it was
    named is refused as well then.
    """
    book = book_at(ledger, who, key, witness="", checked=not lost)
    if to is not None:
        book.name_witness(to, lost=lost)
    say({"witness": book.witness()}, shown(f"The witness is {book.witness() or 'nobody'}."), as_json)


@ledger_app.command("key")
def ledger_key(
    to: Annotated[pathlib.Path, Option(help="The private key; keep it to yourself.")], as_json: Json = False
) -> None:
    """Make an Ed25519 key to sign budgets and reviews with; prints its public half."""
    from fedlens.ledger import keys

    public = keys.public(keys.created(to))
    say({"file": str(to), "public": public}, public, as_json)


def _text(lines: Iterable[str]) -> str:
    """For a terminal: modelers wrote some of it, and reviewers read it."""
    return "\n".join(map(shown, lines))


def _run_lines(runs: list[dict[str, Any]], population: str) -> list[str]:
    return [
        f"  {run['run']}: {run['told']}; reserved by {run['who']} on {run['at'][:16].replace('T', ' ')}"
        + (f", {run['why']}" if run["why"] else "")
        for run in runs
        if run["population"] == population
    ]


def _head(text: str) -> tuple[int, str]:
    number, colon, digest = text.partition(":")
    if not (colon and number.isdecimal()):
        raise ValueError(f"Expected --head NUMBER:HASH, as `fedlens ledger verify` prints it, got {text!r}.")
    return int(number), digest


def _one_of(kinds: Any, text: str) -> Any:
    if text not in list(kinds):
        raise ValueError(f"Expected one of {', '.join(kinds)}, got {text!r}.")
    return kinds(text)
