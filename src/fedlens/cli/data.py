"""`fedlens data`: beside the data."""

import pathlib
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from fedlens.cli.options import FAILED, Book, Json, Key, Who, aside, say
from fedlens.runs.books import DEFAULT_BOOK, book_at, book_if_there, ledger_at

if TYPE_CHECKING:
    from fedlens.data.population import Population
    from fedlens.ledger import Ledger
    from fedlens.owner.folder import Owner
    from fedlens.owner.registration import Policy, Registration

data_app = typer.Typer(no_args_is_help=True, help="Of the owner: prepare, check and register private data.")
Classes = Annotated[int | None, Option(min=1, help="Labels lie below this.")]


@data_app.command("check")
def check(
    path: Annotated[pathlib.Path, Argument(help="A population folder, an .npz or a .jsonl(.gz) file.")],
    images: Annotated[str, Option(help="npz: the name of the images.")] = "x",
    labels: Annotated[str, Option(help="npz: the name of the labels; empty for none.")] = "y",
    users: Annotated[str, Option(help="npz, jsonl: the name of the user ids.")] = "user",
    sentences: Annotated[str, Option(help="jsonl: the name of the sentences.")] = "text",
    as_json: Json = False,
) -> None:
    """Read private data once, where it lies, and name what a run would stumble over. Prints no count and no content."""
    from fedlens.data.population import Population, SchemaError
    from fedlens.media import reading
    from fedlens.owner.folder import described

    if (path / "population.json").exists() or not path.suffixes:  # whatever the folder is called
        population = Population.open(path)
    else:
        names = {"users": users, "images": images, "labels": labels or None, "text": sentences}
        population = reading.opened(described(path, **names, attributes=(), deal_to=None))
    try:
        problems = reading.of_population(population).checked(population)
    except SchemaError as error:
        problems = [str(error)]
    columns, notes = _columns(population), _notes(population)
    lines = [f"{name}: {kind}" for name, kind in columns.items()] + (problems or ["ok"])
    answer = {"columns": columns, "problems": problems, "notes": notes}
    say(answer, "\n".join([*lines, *(f"note: {note}" for note in notes)]), as_json)
    if problems:
        raise typer.Exit(FAILED)


@data_app.command("convert")
def convert(
    source: Annotated[
        pathlib.Path, Argument(help="A .parquet, idx, LEAF .json, .h5, .jsonl or .sqlite file, or folder.")
    ],
    to: Annotated[pathlib.Path, Argument(help="The population folder to make.")],
    kind: Annotated[
        str | None, Option(help="parquet, idx, leaf, hdf5, png, jsonl or sqlite; else by its name.")
    ] = None,
    text: Annotated[bool, Option("--text", help="The source holds text; jsonl and sqlite always do.")] = False,
    users: Annotated[str | None, Option(help="Column of user ids; idx: the file of writer ids.")] = None,
    images: Annotated[str | None, Option(help="Column of images.")] = None,
    labels: Annotated[str | None, Option(help="Column of labels; idx: the file of labels.")] = None,
    sentences: Annotated[str | None, Option(help="Column of text.")] = None,
    attributes: Annotated[str, Option(help="Text: columns of whole numbers to keep, with commas.")] = "",
    split: Annotated[str | None, Option(help="sqlite: train, test, ...; by default all.")] = None,
    classes: Classes = None,
    inverted: Annotated[bool, Option("--inverted", help="Bright becomes dark, as for Federated EMNIST.")] = False,
    as_json: Json = False,
) -> None:
    """Bring images or text into the form a run reads: beside the data, bit by bit, however much. Prints no count."""
    from fedlens.media import reading

    columns = {"users": users, "images": images, "labels": labels, "sentences": sentences, "split": split}
    given: dict[str, Any] = columns | {"attributes": _names(attributes), "classes": classes, "inverted": inverted}
    given |= {"text": text}
    made = reading.converted(source, to, kind, {name: value for name, value in given.items() if value})
    notes = _notes(made)
    lines = [*(f"note: {note}" for note in notes), f"Wrote {to}. Next: fedlens data check {to}"]
    say({"population": str(to), "columns": _columns(made), "notes": notes}, "\n".join(lines), as_json)


Bound = Annotated[int | None, Option(min=1, help="A public upper bound on the users; recipes say the same.")]
Examples = Annotated[int | None, Option(min=1, help="A public upper bound on all examples.")]
Each = Annotated[int | None, Option(min=1, help="A public upper bound on the examples of a user.")]
Exact = Annotated[bool | None, Option("--exact/--not-exact", help="The bounds are the numbers themselves, and public.")]
Allow = Annotated[str | None, Option(help="Recipes may use: simulation, programs, functions; with commas, or none.")]
Algorithms = Annotated[str | None, Option(help="Those that may be run, with commas. Default: all.")]
Noise = Annotated[float | None, Option(min=0, help="The least noise multiplier of a release.")]
Largest = Annotated[float | None, Option(help="The most that one run may cost.")]
Bind = Annotated[str | None, Option(help="The population on whose budget it draws: the same people, say.")]


@data_app.command("register")
def register(
    name: Annotated[str, Argument(help="What recipes will call it.")],
    path: Annotated[pathlib.Path | None, Argument(help="An .npz or .jsonl(.gz) file, or a population folder.")] = None,
    population: Bound = None,
    examples: Examples = None,
    examples_per_user: Each = None,
    exact: Exact = None,
    classes: Classes = None,
    users: Annotated[str, Option(help="npz, jsonl: the name of the user ids.")] = "user",
    images: Annotated[str, Option(help="npz: the name of the images.")] = "x",
    labels: Annotated[str, Option(help="npz: the name of the labels; empty for none.")] = "y",
    sentences: Annotated[str, Option(help="jsonl: the name of the sentences.")] = "text",
    attributes: Annotated[str, Option(help="Columns of whole numbers to select by, with commas.")] = "",
    deal_to: Annotated[int | None, Option(min=1, help="npz without users: deal rows to so many.")] = None,
    unit: Annotated[str, Option(help="What such a user is: user or silo.")] = "user",
    epsilon: Annotated[float | None, Option(help="Its budget: what all runs together may spend.")] = None,
    delta: Annotated[float | None, Option(help="Of the budget: well below 1 / population.")] = None,
    budget: Bind = None,
    allow: Allow = None,
    algorithms: Algorithms = None,
    minimum_noise: Noise = None,
    largest_epsilon: Largest = None,
    update: Annotated[bool, Option("--update", help="The data of a registered population have changed.")] = False,
    pin: Annotated[bool, Option("--pin", help="And pin this machine to this ledger (fedlens data pin).")] = False,
    ledger: Book = DEFAULT_BOOK,
    key: Key = None,
    who: Who = None,
    as_json: Json = False,
) -> None:
    """By the owner of data: say what they are, whose rows are whose, and what may be asked of them. Reads them once."""
    from fedlens.owner.folder import Bounds, described

    book, owner = _owner(ledger, who, key)
    sealed, before = owner.known(name), owner.registered(name) if update else None
    if update and before is None:
        raise ValueError(f"Expected a registered population to update, and {name!r} is none.")
    if not update and sealed and not sealed.passing:
        raise ValueError(f"Expected a new name; {name!r} is registered (fedlens data policy, or register --update).")
    if path is None and before is None:
        raise ValueError("Expected the PATH of the data to register.")
    if (epsilon is None) != (delta is None):
        raise ValueError("Expected --epsilon and --delta together: they are its budget.")
    sizes = {"population": population, "examples": examples, "examples_per_user": examples_per_user}
    given = Bounds(**sizes, exact=exact or False, classes=classes)
    if before is None:
        columns = {"users": users, "images": images, "labels": labels or None, "text": sentences}
        source = described(path or pathlib.Path(), **columns, attributes=tuple(_names(attributes)), deal_to=deal_to)
        policy = _policy(None, allow, algorithms, minimum_noise, largest_epsilon)
        made = owner.register(name, source, given, policy=policy, unit=unit, budget=budget)
    else:
        made = owner.updated(before, path, given)
        aside(
            f"What was spent on {name!r} stays spent: who was in the data before and is in them now took part in all of"
            " it, and the budget counts both as one population."
        )
    if epsilon is not None and delta is not None:
        _set_budget(book, made, epsilon, delta)
    if pin:
        _pin(ledger, functions=False)
    say(made.public(), "\n".join(made.lines()), as_json)


@data_app.command("policy")
def policy(
    name: Annotated[str, Argument(help="A registered population.")],
    population: Bound = None,
    examples: Examples = None,
    examples_per_user: Each = None,
    exact: Exact = None,
    classes: Classes = None,
    budget: Bind = None,
    allow: Allow = None,
    algorithms: Algorithms = None,
    minimum_noise: Noise = None,
    largest_epsilon: Largest = None,
    ledger: Book = DEFAULT_BOOK,
    key: Key = None,
    who: Who = None,
    as_json: Json = False,
) -> None:
    """By the owner of data: change what may be asked of a population, or its bounds. Without options: show it."""
    _, owner = _owner(ledger, who, key, create=False)
    known = owner.registered(name)
    if known is None:
        raise ValueError(f"Expected a registered population, and {name!r} is none (fedlens data register).")
    sizes = {"population": population, "examples": examples, "examples_per_user": examples_per_user}
    given: dict[str, Any] = sizes | {"exact": exact, "classes": classes, "budget": budget}
    changes = {key: value for key, value in given.items() if value is not None}
    asked = _policy(known.policy, allow, algorithms, minimum_noise, largest_epsilon)
    if changes or asked != known.policy:
        known = owner.changed(known, **changes, policy=asked)
    say(known.public(), "\n".join(known.lines()), as_json)


@data_app.command("show")
def show(ledger: Book = DEFAULT_BOOK, as_json: Json = False) -> None:
    """All registered populations: what recipes may say about them, and what may be asked. Reads no data."""
    _, owner = _owner(ledger, None, None, create=False)
    every = [known for name in owner.names if (known := owner.known(name))]
    text = "\n".join(line for known in every for line in known.lines()) or "Nothing is registered."
    say({"populations": [known.public() for known in every]}, text, as_json)


@data_app.command("public")
def public(
    paths: Annotated[list[pathlib.Path], Argument(help="Images (.npz), text or lists of words.")],
    ledger: Book = DEFAULT_BOOK,
    key: Key = None,
    who: Who = None,
    as_json: Json = False,
) -> None:
    """By the owner of a pinned machine: declare files public, so that recipes may use them. Refuses private data."""
    from fedlens.owner.admission import declare_public

    _, owner = _owner(ledger, who, key, create=False)
    declare_public(paths, owner)
    say({"public": [str(path) for path in paths]}, f"Declared public: {', '.join(map(str, paths))}", as_json)


@data_app.command("pin")
def pin(
    ledger: Book = DEFAULT_BOOK,
    functions: Annotated[bool, Option("--functions", help="Recipes may name own functions: imported here.")] = False,
    witness: Annotated[str, Option(help="The ledger's witness (fedlens ledger witness): asked for from now on.")] = "",
    machine: Annotated[bool, Option("--machine", help="For all users of this machine, in /etc.")] = False,
    as_json: Json = False,
) -> None:
    """By the owner of a machine: from now on this ledger counts, and unregistered data are refused. Undo it by hand."""
    place = _pin(ledger, functions, machine, witness)
    say({"pin": str(place)}, f"Pinned to {ledger} by {place}.", as_json)


def _pin(ledger: str, functions: bool, machine: bool = False, witness: str = "") -> pathlib.Path:
    from fedlens.core import pins
    from fedlens.ledger import is_remote

    address = ledger if is_remote(ledger) else str(pathlib.Path(ledger).resolve())
    before = pins.found()
    place = pins.MACHINE if machine else pins.of_user()
    public = before.public if before else frozenset()
    seen = witness or (before.witness if before else "")
    pins.Pin(ledger=address, witness=seen, functions=functions, public=public, place=place).save()
    return place


def _owner(ledger: str, who: str | None, key: pathlib.Path | None, create: bool = True) -> "tuple[Ledger, Owner]":
    from fedlens.owner.folder import Owner

    address = ledger_at(ledger)
    book = book_at(address, who, key, create=create)
    return book, Owner(address, book)


def owner_if_there(ledger: str | None) -> "Owner | None":
    """Of the populations that a ledger knows; without one nothing is registered."""
    from fedlens.owner.folder import Owner

    book = book_if_there(None if ledger == DEFAULT_BOOK else ledger)
    return Owner(ledger_at(ledger), book) if book else None


def _policy(
    known: "Policy | None", allow: str | None, algorithms: str | None, noise: float | None, largest: float | None
) -> "Policy":
    from fedlens.owner.registration import Policy, sensible

    changes: dict[str, Any] = {}
    if allow is not None:
        allowed, kinds = {word for word in allow.split(",") if word != "none"}, ("simulation", "programs", "functions")
        if unknown := sorted(allowed - {*kinds}):
            raise ValueError(f"Expected --allow of {', '.join(kinds)} or none, got {', '.join(unknown)}.")
        changes |= {kind: kind in allowed for kind in kinds}
    if algorithms is not None:
        changes["algorithms"] = _names(algorithms)
    changes |= {"minimum_noise": noise} if noise is not None else {}
    changes |= {"largest_epsilon": largest} if largest is not None else {}
    with sensible():
        return Policy.model_validate((known.model_dump() if known else {}) | changes)


def _set_budget(book: "Ledger", made: "Registration", epsilon: float, delta: float) -> None:
    from fedlens.ledger import Budget
    from fedlens.privacy import Unit

    name, size, unit = made.budget or made.name, made.population, Unit(made.unit)
    budget = Budget(population=name, epsilon=epsilon, delta=delta, size=size, unit=unit)
    book.set_budget(budget, why="fedlens data register")
    aside(f"{name}: budget {budget.text}")


def _names(text: str) -> list[str]:
    """Of an option that takes several, with commas."""
    return [name for name in text.split(",") if name]


def _columns(population: "Population") -> dict[str, str]:
    return {name: f"{column.dtype} {list(column.shape[1:])}" for name, column in population.columns.items()}


def _notes(population: "Population") -> list[str]:
    from fedlens.data.population import SchemaError
    from fedlens.media import reading

    try:
        return reading.of_population(population).notes()
    except SchemaError:
        return []
