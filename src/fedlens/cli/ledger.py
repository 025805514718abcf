"""`fedlens ledger`: budgets, requests, reviews, and whether the books are whole."""

import contextlib
import pathlib
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedlens.cli.options import DEFAULT_BOOK, FAILED, Book, Json, Key, Out, RecipeFile, Sets, Who, Why, ledger_at, say

if TYPE_CHECKING:
    from fedlens.ledger import Ledger

ledger_app = typer.Typer(no_args_is_help=True, help="Budgets: what was spent, by whom, on what; and what may be.")


@ledger_app.command("init")
def ledger_init(
    population: Annotated[str, typer.Option(help="Its name in the ledger: that of its file, or data.name.")],
    epsilon: Annotated[float, typer.Option(help="What all runs together may spend.")],
    delta: Annotated[float, typer.Option(help="Well below 1 / size.")],
    size: Annotated[int | None, typer.Option(help="The public number of units, or an upper bound.")] = None,
    unit: Annotated[str, typer.Option(help="user, example or silo.")] = "user",
    neighbours: Annotated[str, typer.Option(help="add/remove or replace-one.")] = "add/remove",
    window: Annotated[float | None, typer.Option(help="Days after which what was spent no longer counts.")] = None,
    review: Annotated[bool, typer.Option("--review/--no-review", help="Runs need an approved request.")] = False,
    reviewer: Annotated[
        list[str] | None, typer.Option(help="Public key of one who may approve; repeatable, implies --review.")
    ] = None,
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
        print(f"warning: delta {delta:g} is above 1/{size}: one whole record may be published", file=sys.stderr)
    book_at(ledger, who, key, create=True).set_budget(budget, why)
    say(budget.to_dict(), f"{population}: {budget.text}", as_json)


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
    }
    lines = []
    for name in book.populations():
        lines += [line for standing in standings if standing.population == name for line in standing.lines()]
        lines += [*_run_lines(runs, name), ""]
    say(answer, "\n".join([*lines, f"{number} entries, head {head[:16]}"]), as_json)


@ledger_app.command("request")
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
    from fedlens.recipes import Recipe

    parsed = Recipe.open(recipe, sets or [])
    items = parsed.items(parsed.name, simulated=False)
    number = book_at(ledger, who, key).request(parsed.name, items, recipe=parsed.digest, why=why)
    say({"number": number, "recipe": parsed.digest}, f"Request {number} waits for review.", as_json)


@ledger_app.command("review")
def ledger_review(ledger: Book = DEFAULT_BOOK, as_json: Json = False) -> None:
    """All requests, and what became of them."""
    requests = book_at(ledger).requests()
    lines = [
        f"{r['number']}: {r['name']} on {r['population']} by {r['who']}: {r['verdict']}"
        + (f"; why: {r['why']}" if r["why"] else "")
        for r in requests
    ]
    say({"requests": requests}, "\n".join(lines) or "No requests.", as_json)


Number = Annotated[int, typer.Argument(help="The number of the request (fedlens ledger review).")]
Note = Annotated[str, typer.Option("--note", help="For the one who asked.")]


def _verdict(approved: bool) -> Callable[..., None]:
    def reviewed(
        number: Number,
        note: Note = "",
        ledger: Book = DEFAULT_BOOK,
        key: Key = None,
        who: Who = None,
        as_json: Json = False,
    ) -> None:
        book_at(ledger, who, key).review(number, approved=approved, note=note)
        told = "approved" if approved else "rejected"
        say({"number": number, "approved": approved}, f"Request {number} is {told}.", as_json)

    return reviewed


ledger_app.command("approve", help="Let a request be run, once, as it was asked.")(_verdict(True))
ledger_app.command("reject", help="Refuse a request.")(_verdict(False))


@ledger_app.command("close")
def ledger_close(
    run: Annotated[str, typer.Argument(help="A run that will not be resumed, such as look-t1-3fa2c1.")],
    ledger: Book = DEFAULT_BOOK,
    out: Out = pathlib.Path("runs"),
    key: Key = None,
    who: Who = None,
    as_json: Json = False,
) -> None:
    """Return what an abandoned run has reserved and not spent. It cannot be resumed then."""
    from fedlens.safeguards import forget_secrets

    book = book_at(ledger, who, key)
    parts = [found["run"] for found in book.runs() if run in (found["run"], found["run"].split("/")[0])]
    if not parts:
        raise ValueError(f"Expected a run of this ledger, found none named {run!r}.")
    for part in parts:
        book.close(part)
        forget_secrets(ledger, out, part.replace("/", "."))  # nobody needs them any more
    whole = parts[0].split("/")[0]
    if all(found["closed"] for found in book.runs() if found["run"].split("/")[0] == whole):
        forget_secrets(ledger, out, whole)
    say({"closed": parts}, f"Closed: {', '.join(parts)}", as_json)


@ledger_app.command("verify")
def ledger_verify(
    ledger: Book = DEFAULT_BOOK,
    runs: Annotated[
        pathlib.Path | None,
        typer.Option("--runs", help="Check the models in these run folders too. Default: beside it."),
    ] = None,
    head: Annotated[
        str | None, typer.Option("--head", metavar="NUMBER:HASH", help="A head that was written down elsewhere.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Look for entries that were edited, are missing or out of order, and models that are not the booked ones."""
    from fedlens import ledger as ledgers

    book = book_at(ledger)
    if runs is not None and not runs.is_dir():
        raise ValueError(f"Expected run folders in {runs}; there is no such folder.")
    folder = runs or pathlib.Path(DEFAULT_BOOK if ledgers.is_remote(ledger) else ledger).parent
    models, heads = _models_in(folder, book.reserved())
    problems = book.verify(models, [*heads, *([_head(head)] if head else [])])
    number, last = book.head()
    answer = {"problems": problems, "entries": number, "head": last, "models": len(models)}
    text = "\n".join(problems) or f"ok: {number} entries, {len(models)} models, head {number}:{last}"
    say(answer, text, as_json)
    if problems:
        raise typer.Exit(FAILED)


@ledger_app.command("key")
def ledger_key(
    to: Annotated[pathlib.Path, typer.Option("--to", help="The private key; keep it to yourself.")],
    as_json: Json = False,
) -> None:
    """Make an Ed25519 key to sign budgets and reviews with; prints its public half."""
    from fedlens.ledger import keys

    public = keys.public(keys.created(to))
    say({"file": str(to), "public": public}, public, as_json)


def book_at(address: str, who: str | None = None, key: pathlib.Path | None = None, create: bool = False) -> "Ledger":
    from fedlens.ledger import Ledger, is_remote, keys

    address = ledger_at(address)
    if address and not create and not is_remote(address) and not pathlib.Path(address).exists():
        raise ValueError(f"Expected a ledger at {address}; there is none (fedlens ledger init makes one).")
    return Ledger(address, who=who, key=keys.opened(key) if key else None)


def book_if_there(address: str | None) -> "Ledger | None":
    found = ledger_at(address)
    return None if address is None and not pathlib.Path(found).exists() and "://" not in found else book_at(found)


def _run_lines(runs: list[dict[str, Any]], population: str) -> list[str]:
    return [
        f"  {run['run']}: {run['told']} by {run['who']} on {run['at'][:16].replace('T', ' ')}"
        + (f", {run['why']}" if run["why"] else "")
        for run in runs
        if run["population"] == population
    ]


def _models_in(folder: pathlib.Path, booked: set[str]) -> tuple[dict[str, str], list[tuple[int, str]]]:
    """Hashes of the models in run folders, by the name they are booked under, and the heads they carry."""
    from fedlens import files
    from fedlens.inspection import Model

    models, heads = {}, []
    for path in sorted(folder.glob("*/*/model.safetensors")):
        name = f"{path.parent.parent.name}/{path.parent.name}"
        if name not in booked:
            continue  # of another ledger
        models[name] = files.sha256(path)
        with contextlib.suppress(ValueError):  # a damaged model: its hash tells
            heads.append(Model.open(path).ledger_head)
    return models, heads


def _head(text: str) -> tuple[int, str]:
    number, found, digest = text.partition(":")
    if not (found and number.isdecimal()):
        raise ValueError(f"Expected --head NUMBER:HASH, as `fedlens ledger verify` prints it, got {text!r}.")
    return int(number), digest


def _one_of(kinds: Any, text: str) -> Any:
    if text not in list(kinds):
        raise ValueError(f"Expected one of {', '.join(kinds)}, got {text!r}.")
    return kinds(text)
