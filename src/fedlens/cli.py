"""The command line. Imports stay late: `fedlens --help` answers at once."""

import contextlib
import importlib.resources
import json
import os
import pathlib
import shlex
import sys
import traceback
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

import fedlens

if TYPE_CHECKING:
    from fedlens.inspection import Model, Report
    from fedlens.ledger import Ledger
    from fedlens.recipes import Recipe
    from fedlens.runs import Run, Watcher

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,  # they print local variables, which may hold private data
    help="Look at private, decentralized data through differentially private generative models.",
)
data_app = typer.Typer(no_args_is_help=True, help="Prepare and check private data, beside the data.")
app.add_typer(data_app, name="data")
ledger_app = typer.Typer(no_args_is_help=True, help="Budgets: what was spent, by whom, on what; and what may be.")
app.add_typer(ledger_app, name="ledger")
account_app = typer.Typer(no_args_is_help=True, help="What published guarantees are worth.")
app.add_typer(account_app, name="account")

FAILED, USAGE, OVER_BUDGET, NOT_APPROVED, INTERRUPTED = 1, 2, 3, 4, 130
DEMO_BUDGET = 10.0

Json = Annotated[bool, typer.Option("--json", help="Print the answer as JSON, and nothing else, to standard output.")]
Sets = Annotated[
    list[str] | None, typer.Option("--set", metavar="A.B=C", help="Change one setting of the recipe; repeatable.")
]
Out = Annotated[pathlib.Path, typer.Option("--out", help="Where run folders are made.")]
LedgerPath = Annotated[
    str | None,
    typer.Option(
        "--ledger",
        help="The ledger of what was released: a file, or postgresql://… for teams. Default: ledger.sqlite in --out.",
    ),
]
Book = Annotated[str, typer.Option("--ledger", help="A file, or postgresql://… for teams.")]
Who = Annotated[str | None, typer.Option("--who", help="In whose name; by default the login name.")]
Why = Annotated[str, typer.Option("--why", help="Kept in the ledger.")]
Key = Annotated[pathlib.Path | None, typer.Option("--key", help="Sign with this key (fedlens ledger key).")]
DEFAULT_BOOK = "runs/ledger.sqlite"
Simulate = Annotated[
    int | None,
    typer.Option(
        "--simulate", metavar="SEED", help="Derive noise and cohorts from a seed. Repeatable, and NOT private."
    ),
]
Device = Annotated[str | None, typer.Option("--device", help="cpu or cuda. Default: cuda where there is one.")]
RecipeFile = Annotated[pathlib.Path, typer.Argument(help="A recipe (TOML); `fedlens init` writes one.")]


@app.callback(invoke_without_command=True)
def version(show: Annotated[bool, typer.Option("--version", help="Show the version and exit.")] = False) -> None:
    if show:
        print(fedlens.__version__)
        raise typer.Exit()


@app.command()
def demo(
    what: Annotated[str, typer.Argument(help="images")] = "images",
    bug: Annotated[bool, typer.Option("--bug/--no-bug", help="Plant the bug, or leave the data as it is.")] = True,
    out: Out = pathlib.Path("runs"),
    ledger: LedgerPath = None,
    simulate: Simulate = None,
    device: Device = None,
    as_json: Json = False,
) -> None:
    """Find a planted bug on data that is already on this machine, in about a minute."""
    from fedlens.recipes import Recipe

    recipes = {"images": "demo_images.toml"}
    if what not in recipes:
        raise ValueError(f"Expected one of {', '.join(recipes)} to demonstrate, got {what!r}.")
    text = importlib.resources.files("fedlens").joinpath("recipe_files", recipes[what]).read_text()
    # Without the bug it is another demonstration, with a budget of its own: the digits are public.
    recipe = Recipe.parsed(text, [] if bug else ["data.bug.fraction=0", "data.name=digits-without-bug"])
    _demo_budget(recipe, ledger or str(out / "ledger.sqlite"), simulate)
    _execute(_created(recipe, out, ledger, simulate, device), as_json)


@app.command()
def init(
    task: Annotated[str, typer.Option(help="T1 sanity check, T2 misclassified examples, T4 weak users.")] = "T1",
    data: Annotated[str, typer.Option(help="An .npz file or a population folder.")] = "data.npz",
    model: Annotated[
        str, typer.Option(help="T2, T4: the primary model, as a file written by fedlens.")
    ] = "cnn.safetensors",
    to: Annotated[pathlib.Path, typer.Option("--to", help="The recipe to write.")] = pathlib.Path("recipe.toml"),
    as_json: Json = False,
) -> None:
    """Write a commented recipe to start from."""
    from fedlens import files, templates

    text = templates.recipe(task, data, model, shlex.quote(str(to)))
    if to.exists():
        raise ValueError(f"Expected no file at {to}; it would be overwritten.")
    files.write(to, text)
    _answer({"recipe": str(to), "task": task}, f"Wrote {to}. Next: fedlens plan {to}", as_json)


@app.command()
def plan(
    recipe: RecipeFile,
    sets: Sets = None,
    ledger: Annotated[
        str | None, typer.Option("--ledger", help=f"Whose budget it would draw on. Default: {DEFAULT_BOOK}, if there.")
    ] = None,
    target_eps: Annotated[
        float | None, typer.Option("--target-eps", help="Calibrate the noise to this epsilon instead.")
    ] = None,
    sweep: Annotated[
        str | None,
        typer.Option("--sweep", metavar="A=1,2,B=3,4", help="The cost of every combination of privacy settings."),
    ] = None,
    published: Annotated[
        str | None,
        typer.Option("--published", metavar="PAPER", help="Also the epsilon this paper would print; NOT a guarantee."),
    ] = None,
    as_json: Json = False,
) -> None:
    """State what a recipe will cost and promise, without touching any data."""
    from fedlens import planning
    from fedlens.recipes import Recipe

    parsed = Recipe.open(recipe, sets or [])
    if target_eps is not None:
        parsed = parsed.changed([f"privacy.epsilon={target_eps}"])
    if sweep is not None:
        cells = planning.swept(parsed, sweep)
        _answer({"sweep": cells}, _table(cells), as_json)
        return
    forecast = planning.forecast(parsed, _book_if_there(ledger))
    answer, text = forecast.to_dict(), forecast.text()
    if published is not None:
        figure = planning.published(published, parsed)
        answer["published"] = figure
        told, true = (f"{float(figure[name]):.4g}" for name in ("epsilon", "valid_epsilon"))
        text += (
            f"\n{published} would print epsilon {told} ({figure['method']}): NOT COMPLIANT, shown for comparison only;"
            f" the training alone truly costs {true}"
        )
    _answer(answer, text, as_json)


@app.command()
def run(
    recipe: Annotated[pathlib.Path | None, typer.Argument(help="A recipe (TOML).")] = None,
    resume: Annotated[
        pathlib.Path | None, typer.Option("--resume", help="Go on with an interrupted run folder.")
    ] = None,
    sets: Sets = None,
    out: Out = pathlib.Path("runs"),
    ledger: LedgerPath = None,
    simulate: Simulate = None,
    device: Device = None,
    why: Why = "",
    as_json: Json = False,
) -> None:
    """Train the models of a recipe and write the report. Ctrl-C is safe: go on later with --resume."""
    from fedlens.recipes import Recipe
    from fedlens.runs import Run

    if (recipe is None) == (resume is None):
        raise ValueError("Expected a recipe, or --resume with a run folder.")
    if resume is not None:
        if sets or ledger or simulate is not None or device:
            raise ValueError(
                "Expected --resume without --set, --ledger, --simulate or --device: a run goes on as it was started."
            )
        _execute(Run.opened(resume), as_json)
    elif recipe is not None:
        _execute(_created(Recipe.open(recipe, sets or []), out, ledger, simulate, device, why), as_json)


@app.command()
def compare(
    left: Annotated[pathlib.Path, typer.Argument(help="The suspicious side: a model folder, such as runs/x/low.")],
    right: Annotated[pathlib.Path, typer.Argument(help="The healthy side, such as runs/x/high.")],
    to: Annotated[
        pathlib.Path | None, typer.Option("--to", help="Folder for the report. Default: <left>-vs-<right>.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Compare two trained models by their samples, and name what sets them apart. Costs no privacy."""
    from fedlens.inspection import contrast

    sides = [_model(folder).sampled(512, seed=0) for folder in (left, right)]
    report = contrast(sides[0], sides[1], title=f"{left.name} vs {right.name}")
    _show(report, to or left.parent / f"{left.name}-vs-{right.name}", as_json)


@app.command()
def report(
    folder: Annotated[pathlib.Path, typer.Argument(help="A finished run folder, or one model folder in it.")],
    as_json: Json = False,
) -> None:
    """Show the report of a run again; of a single model, make one."""
    from fedlens.inspection import contrast

    if (folder / "report.json").exists():
        answer = json.loads((folder / "report.json").read_text())
        findings = "\n".join(f"[{f['severity']}] {f['summary']}" for f in answer["findings"]) or "No finding."
        _answer(answer, f"{findings}\n{folder / 'report.html'}", as_json)
    else:
        _show(contrast(_model(folder).sampled(512, seed=0), title=folder.name), folder, as_json)


@app.command()
def sample(
    folder: Annotated[pathlib.Path, typer.Argument(help="A model folder, such as runs/x/low.")],
    count: Annotated[int, typer.Option(min=1, max=1_000_000, help="How many images.")] = 64,
    seed: Annotated[int, typer.Option(help="Of the public latents.")] = 0,
    to: Annotated[
        pathlib.Path | None, typer.Option("--to", help="Default: samples-<seed>.safetensors in the folder.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Draw synthetic images from a model: a file that carries its guarantee, and a picture. Costs no privacy."""
    from fedlens import files
    from fedlens.inspection import pictures

    samples = _model(folder).sampled(count, seed)
    path = to or folder / f"samples-{seed}.safetensors"
    if path.suffix == ".png":
        raise ValueError("Expected --to with another ending than .png: the picture is written beside the samples.")
    samples.save(path)
    files.write(path.with_suffix(".png"), pictures.png_bytes(samples.images[:256]))
    answer = {
        "file": str(path),
        "picture": str(path.with_suffix(".png")),
        "count": count,
        "guarantee": samples.guarantee.to_dict(),
    }
    _answer(answer, f"{count} synthetic images in {path}\n{samples.guarantee.headline}", as_json)


@data_app.command("check")
def check(
    path: Annotated[pathlib.Path, typer.Argument(help="A population folder or an .npz file.")],
    images: Annotated[str, typer.Option(help="npz: the name of the images.")] = "x",
    labels: Annotated[str, typer.Option(help="npz: the name of the labels; empty for none.")] = "y",
    users: Annotated[str, typer.Option(help="npz: the name of the user ids.")] = "user",
    as_json: Json = False,
) -> None:
    """Read private data once, where it lies, and name what a run would stumble over. Prints no count and no content."""
    from fedlens import data
    from fedlens.population import Population

    if path.suffix == ".npz":
        population = data.from_npz(path, images=images, labels=labels or None, users=users)
    else:
        population = Population.open(path)
    problems = data.checked(population)
    columns = {name: f"{column.dtype} {list(column.shape[1:])}" for name, column in population.columns.items()}
    lines = [f"{name}: {kind}" for name, kind in columns.items()] + (problems or ["ok"])
    _answer({"columns": columns, "problems": problems}, "\n".join(lines), as_json)
    if problems:
        raise typer.Exit(FAILED)


@account_app.command("papers")
def papers(as_json: Json = False) -> None:
    """Every epsilon the five papers print: how they got it, what is valid instead, and a verdict. About a minute."""
    from fedlens.privacy import papers

    rows = papers.rows()
    _answer([row.to_dict() for row in rows], "\n".join(line for row in rows for line in row.lines()), as_json)


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
    _book(ledger, who, key, create=True).set_budget(budget, why)
    _answer(budget.to_dict(), f"{population}: {budget.text}", as_json)


@ledger_app.command("show")
def ledger_show(ledger: Book = DEFAULT_BOOK, as_json: Json = False) -> None:
    """What was spent, by whom, on what; and what is left."""
    book = _book(ledger)
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
    _answer(answer, "\n".join([*lines, f"{number} entries, head {head[:16]}"]), as_json)


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
    number = _book(ledger, who, key).request(parsed.name, items, recipe=parsed.digest, why=why)
    _answer({"number": number, "recipe": parsed.digest}, f"Request {number} waits for review.", as_json)


@ledger_app.command("review")
def ledger_review(ledger: Book = DEFAULT_BOOK, as_json: Json = False) -> None:
    """All requests, and what became of them."""
    requests = _book(ledger).requests()
    lines = [
        f"{r['number']}: {r['name']} on {r['population']} by {r['who']}: {r['verdict']}"
        + (f"; why: {r['why']}" if r["why"] else "")
        for r in requests
    ]
    _answer({"requests": requests}, "\n".join(lines) or "No requests.", as_json)


Number = Annotated[int, typer.Argument(help="The number of the request (fedlens ledger review).")]
Note = Annotated[str, typer.Option("--note", help="For the one who asked.")]


@ledger_app.command("approve")
def ledger_approve(
    number: Number,
    note: Note = "",
    ledger: Book = DEFAULT_BOOK,
    key: Key = None,
    who: Who = None,
    as_json: Json = False,
) -> None:
    """Let a request be run, once, as it was asked."""
    _book(ledger, who, key).review(number, approved=True, note=note)
    _answer({"number": number, "approved": True}, f"Request {number} is approved.", as_json)


@ledger_app.command("reject")
def ledger_reject(
    number: Number,
    note: Note = "",
    ledger: Book = DEFAULT_BOOK,
    key: Key = None,
    who: Who = None,
    as_json: Json = False,
) -> None:
    """Refuse a request."""
    _book(ledger, who, key).review(number, approved=False, note=note)
    _answer({"number": number, "approved": False}, f"Request {number} is rejected.", as_json)


@ledger_app.command("close")
def ledger_close(
    run: Annotated[str, typer.Argument(help="A run that will not be resumed, such as look-t1-3fa2c1.")],
    ledger: Book = DEFAULT_BOOK,
    key: Key = None,
    who: Who = None,
    as_json: Json = False,
) -> None:
    """Return what an abandoned run has reserved and not spent. It cannot be resumed then."""
    book = _book(ledger, who, key)
    parts = [found["run"] for found in book.runs() if run in (found["run"], found["run"].split("/")[0])]
    if not parts:
        raise ValueError(f"Expected a run of this ledger, found none named {run!r}.")
    for part in parts:
        book.close(part)
        name, _, selection = part.partition("/")
        for secret in (pathlib.Path(ledger).parent / ".private").glob(f"{name}.{selection}.key*"):
            secret.unlink()  # nobody needs it any more, and with it noise could be taken away
    _answer({"closed": parts}, f"Closed: {', '.join(parts)}", as_json)


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

    book = _book(ledger)
    if runs is not None and not runs.is_dir():
        raise ValueError(f"Expected run folders in {runs}; there is no such folder.")
    folder = runs or pathlib.Path(DEFAULT_BOOK if ledgers.is_remote(ledger) else ledger).parent
    models, heads = _models_in(folder, {run["run"] for run in book.runs()})
    problems = book.verify(models, [*heads, *([_head(head)] if head else [])])
    number, last = book.head()
    answer = {"problems": problems, "entries": number, "head": last, "models": len(models)}
    text = "\n".join(problems) or f"ok: {number} entries, {len(models)} models, head {number}:{last}"
    _answer(answer, text, as_json)
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
    _answer({"file": str(to), "public": public}, public, as_json)


@data_app.command("convert")
def convert(
    source: Annotated[
        pathlib.Path, typer.Argument(help="A .parquet, idx, LEAF .json or .h5 file, or folders of them.")
    ],
    to: Annotated[pathlib.Path, typer.Argument(help="The population folder to make.")],
    kind: Annotated[str | None, typer.Option(help="parquet, idx, leaf, hdf5 or png; by default from the name.")] = None,
    users: Annotated[str | None, typer.Option(help="Column of user ids; idx: the file of writer ids.")] = None,
    images: Annotated[str | None, typer.Option(help="Column of images.")] = None,
    labels: Annotated[str | None, typer.Option(help="Column of labels; idx: the file of labels.")] = None,
    classes: Annotated[int | None, typer.Option(help="Labels must be below this.")] = None,
    inverted: Annotated[bool, typer.Option("--inverted", help="Bright becomes dark, as for Federated EMNIST.")] = False,
    as_json: Json = False,
) -> None:
    """Bring images into the form a run reads: beside the data, bit by bit, whatever their number. Prints no count."""
    from fedlens import readers

    made = readers.convert(
        source, to, kind=kind, users=users, images=images, labels=labels, classes=classes, inverted=inverted
    )
    columns = {name: f"{column.dtype} {list(column.shape[1:])}" for name, column in made.columns.items()}
    _answer({"population": str(to), "columns": columns}, f"Wrote {to}. Next: fedlens data check {to}", as_json)


def main() -> None:
    """Runs the command line; errors become one clear line and an exit code."""
    try:
        app()
    except OSError as error:
        _fail(": ".join(str(part) for part in (error.filename, error.strerror or error) if part), FAILED)
    except Exception as error:
        kind, text = type(error).__name__, str(error)
        if any(base.__name__ == "PrivacySpentError" for base in type(error).__mro__):
            _fail(text, OVER_BUDGET)
        if kind == "NotApprovedError":
            _fail(text, NOT_APPROVED)
        if isinstance(error, ValueError) and (kind == "RecipeError" or text.startswith("Expected ")):
            _fail(text, USAGE)  # one of ours; a library's may quote data
        if os.environ.get("FEDLENS_DEBUG"):
            raise
        where = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{type(error).__name__} at {pathlib.Path(where.filename).name}:{where.lineno}"
        _fail(
            f"Internal error: {place}. Its text is withheld, since it may quote private data; set FEDLENS_DEBUG=1"
            " beside the data to see it.",
            FAILED,
        )


def _fail(message: str, code: int) -> None:
    print(message, file=sys.stderr)
    sys.exit(code)


def _created(
    recipe: "Recipe", out: pathlib.Path, ledger: str | None, seed: int | None, device: str | None, why: str = ""
) -> "Run":
    from fedlens import planning
    from fedlens.curator import PrivacySpentError
    from fedlens.ledger import Ledger
    from fedlens.runs import Run, default_device

    address = ledger or str(out / "ledger.sqlite")
    for warning in recipe.warnings:
        print(f"warning: {warning}", file=sys.stderr)
    try:
        return Run.created(recipe, out, address=address, seed=seed, device=device or default_device(), why=why)
    except PrivacySpentError as error:
        fitting = planning.refusal(planning.alternatives(recipe, Ledger(address)))
        raise PrivacySpentError("\n".join([str(error), *fitting])) from None


def _demo_budget(recipe: "Recipe", address: str, seed: int | None) -> None:
    """The demonstration keeps a budget, as a real population would: a second run is over it."""
    from fedlens.ledger import Budget, Ledger

    book = Ledger(address)
    if seed is None and book.budget(recipe.population) is None:
        size, delta = recipe.privacy.population, recipe.privacy.delta
        book.set_budget(
            Budget(population=recipe.population, epsilon=DEMO_BUDGET, delta=delta, size=size), why="fedlens demo"
        )
        print(
            f"population {recipe.population!r} gets a budget of epsilon {DEMO_BUDGET:g} in {address};"
            " for another demonstration take another --out",
            file=sys.stderr,
        )


def _book(address: str, who: str | None = None, key: pathlib.Path | None = None, create: bool = False) -> "Ledger":
    from fedlens.ledger import Ledger, is_remote, keys

    if address and not create and not is_remote(address) and not pathlib.Path(address).exists():
        raise ValueError(f"Expected a ledger at {address}; there is none (fedlens ledger init makes one).")
    return Ledger(address, who=who, key=keys.opened(key) if key else None)


def _book_if_there(address: str | None) -> "Ledger | None":
    return None if address is None and not pathlib.Path(DEFAULT_BOOK).exists() else _book(address or DEFAULT_BOOK)


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


def _table(cells: list[dict[str, Any]]) -> str:
    columns = list(cells[0])
    rows = [
        [f"{cell[name]:.4g}" if isinstance(cell[name], float) else str(cell[name]) for name in columns]
        for cell in cells
    ]
    widths = [max(len(row[i]) for row in [columns, *rows]) for i in range(len(columns))]
    return "\n".join(
        "  ".join(text.rjust(width) for text, width in zip(row, widths, strict=True)) for row in [columns, *rows]
    )


def _execute(started: "Run", as_json: bool) -> None:
    print(f"{started.name}: planned {started.promised().headline}", file=sys.stderr)
    try:
        with _progress() as watch:
            report = started.executed(watch)
    except (KeyboardInterrupt, OSError) as error:
        print(f"Nothing is lost. Go on with: fedlens run --resume {shlex.quote(str(started.folder))}", file=sys.stderr)
        if isinstance(error, KeyboardInterrupt):
            raise typer.Exit(INTERRUPTED) from None
        raise
    _print(report, started.folder, as_json)


def _show(report: "Report", folder: pathlib.Path, as_json: bool) -> None:
    report.save(folder)
    _print(report, folder, as_json)


def _print(report: "Report", folder: pathlib.Path, as_json: bool) -> None:
    _answer(report.to_dict(), f"{report.text()}\n\n{folder / 'report.html'}", as_json)


def _answer(values: Any, text: str, as_json: bool) -> None:
    print(json.dumps(values, indent=1, allow_nan=False) if as_json else text)


def _model(folder: pathlib.Path) -> "Model":
    from fedlens.inspection import Model

    if not (folder / "model.safetensors").exists():
        hint = f"; is the run finished? fedlens run --resume {folder}" if (folder / "run.json").exists() else ""
        raise ValueError(f"Expected a trained model in {folder}: model.safetensors is missing{hint}.")
    return Model.open(folder / "model.safetensors")


@contextlib.contextmanager
def _progress() -> Iterator["Watcher"]:
    """A live table on a terminal, a line now and then elsewhere; on standard error, so that --json stays clean."""
    if sys.stderr.isatty():
        with _live() as watch:
            yield watch
        return

    def lines(selection: str, done: int, rounds: int, facts: dict[str, Any]) -> None:
        if done == rounds or done % max(1, rounds // 5) == 0:
            print(f"{selection}: round {done}/{rounds}{_told(facts)}", file=sys.stderr)

    yield lines


def _told(facts: dict[str, Any]) -> str:
    epsilon, clip = facts.get("epsilon_so_far"), facts.get("clip")
    return (f", epsilon so far {epsilon}" if epsilon is not None else "") + (
        f", clip {clip:g}" if clip is not None else ""
    )


@contextlib.contextmanager
def _live() -> Iterator["Watcher"]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[told]}"),
    )
    with Progress(*columns, console=Console(stderr=True)) as bars:
        tasks: dict[str, Any] = {}

        def watch(selection: str, done: int, rounds: int, facts: dict[str, Any]) -> None:
            if selection not in tasks:
                tasks[selection] = bars.add_task(selection, total=rounds, told="")
            bars.update(tasks[selection], completed=done)
            if "epsilon_so_far" in facts:
                bars.update(tasks[selection], told=_told(facts).removeprefix(", "))

        yield watch


if __name__ == "__main__":
    main()
