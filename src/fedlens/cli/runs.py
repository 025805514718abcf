"""The commands of a modeler: demo, init, plan, run, compare, report, sample."""

import importlib.resources
import math
import pathlib
import shlex
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from fedlens.cli.data import owner_if_there
from fedlens.cli.options import (
    INTERRUPTED,
    Device,
    Json,
    LedgerPath,
    Out,
    RecipeFile,
    Sets,
    Simulate,
    Why,
    aside,
    modelers,
    say,
)
from fedlens.cli.progress import progress
from fedlens.core import files
from fedlens.runs.books import DEFAULT_BOOK, book_if_there, ledger_at

if TYPE_CHECKING:
    from fedlens.recipes.recipe import Recipe
    from fedlens.report.report import Report
    from fedlens.runs.run import Run

runs_app = typer.Typer()
DEMO_BUDGET = 10.0
PIXELS = "minus-one-to-one"  # what a primary model expects, unless told otherwise
Vouching = Annotated[
    str | None, Option(help=f"Must confirm what the models cost. Default: the one beside, or {DEFAULT_BOOK}, if there.")
]


@runs_app.command()
@modelers
def demo(
    what: Annotated[str, Argument(help="images or text")] = "images",
    bug: Annotated[bool, Option("--bug/--no-bug", help="Plant the bug, or leave the data as it is.")] = True,
    out: Out = pathlib.Path("runs"),
    ledger: LedgerPath = None,
    simulate: Simulate = None,
    device: Device = None,
    as_json: Json = False,
) -> None:
    """Find a planted bug on data that is already on this machine, in about a minute."""
    from fedlens.media import opening
    from fedlens.recipes.recipe import Recipe

    demos = {medium.name: medium.demo_without_fault for medium in opening.every() if medium.demo_without_fault}
    if what not in demos:
        raise ValueError(f"Expected one of {', '.join(demos)} to demonstrate, got {what!r}.")
    text = importlib.resources.files("fedlens.recipes").joinpath("files", f"demo_{what}.toml").read_text()
    recipe = Recipe.parsed(text, [] if bug else demos[what])
    _demo_budget(recipe, ledger_at(ledger, str(out / "ledger.sqlite")), simulate)
    execute(created(recipe, out, ledger, simulate, device), as_json)


@runs_app.command()
@modelers
def init(
    task: Annotated[str, Option(help="T1 sanity, T2 misclassified examples, T3 unknown words, T4 weak users.")] = "T1",
    data: Annotated[str, Option(help="A registered population; .npz, .jsonl or population folder.")] = "data.npz",
    model: Annotated[str, Option(help="T2, T4: the primary model, as a file written by fedlens.")] = "cnn.safetensors",
    vocabulary: Annotated[str, Option("--vocab", help="T3: known words, one a line.")] = "",
    baseline: Annotated[str, Option(help="T3: the folder of an earlier model, to compare with.")] = "",
    to: Annotated[pathlib.Path, Option(help="The recipe to write.")] = pathlib.Path("recipe.toml"),
    ledger: Annotated[str | None, Option(help="Where populations are registered.")] = None,
    as_json: Json = False,
) -> None:
    """Write a commented recipe to start from."""
    from fedlens.recipes import templates

    owner = owner_if_there(ledger)
    known = owner.known(data) if owner else None
    given: dict[str, Any] = {"model": model, "vocabulary": vocabulary, "baseline": baseline}
    if known:
        given |= {"registered": True, "population": known.population, "facts": known.facts}
    text = templates.recipe(task, data, shlex.quote(str(to)), **given)
    if to.exists():
        raise ValueError(f"Expected no file at {to}; it would be overwritten.")
    files.write(to, text)
    say({"recipe": str(to), "task": task}, f"Wrote {to}. Next: fedlens plan {to}", as_json)


@runs_app.command()
@modelers
def plan(
    recipe: RecipeFile,
    sets: Sets = None,
    ledger: Annotated[str | None, Option(help=f"Whose budget it draws on. Default: {DEFAULT_BOOK}, if there.")] = None,
    target_eps: Annotated[float | None, Option(help="Calibrate the noise to this epsilon instead.")] = None,
    sweep: Annotated[
        str | None, Option(metavar="A=1,2,B=3,4", help="The cost of all combinations of settings.")
    ] = None,
    published: Annotated[
        str | None, Option(metavar="PAPER", help="Also the epsilon this paper would print; NOT a guarantee.")
    ] = None,
    as_json: Json = False,
) -> None:
    """State what a recipe will cost and promise, without touching any data."""
    from fedlens.owner import admission
    from fedlens.recipes.recipe import Recipe
    from fedlens.runs import planning

    parsed = Recipe.open(recipe, sets or [])
    if target_eps is not None:
        parsed = parsed.changed([f"privacy.epsilon={target_eps}"])
    if sweep is not None:
        cells = planning.swept(parsed, sweep)
        say({"sweep": cells}, _table(cells), as_json)
        return
    forecast = planning.forecast(parsed, book_if_there(ledger))
    answer, text = forecast.to_dict(), forecast.text()
    owner = owner_if_there(ledger)
    refusals = admission.refusals(parsed, owner) if owner else []
    answer["refusals"] = refusals
    text += "".join(f"\nrefused: {refusal}" for refusal in refusals)
    if published is not None:
        figure = planning.published(published, parsed)
        answer["published"] = figure
        stated, true = (f"{float(figure[name]):.4g}" for name in ("epsilon", "valid_epsilon"))
        text += (
            f"\n{published} would print epsilon {stated} ({figure['method']}): NOT COMPLIANT, shown for comparison"
            f" only; the training alone truly costs {true}"
        )
    say(answer, text, as_json)


@runs_app.command()
@modelers
def run(
    recipe: Annotated[pathlib.Path | None, Argument(help="A recipe (TOML).")] = None,
    resume: Annotated[pathlib.Path | None, Option(help="Go on with an interrupted run folder.")] = None,
    sets: Sets = None,
    out: Out = pathlib.Path("runs"),
    ledger: LedgerPath = None,
    simulate: Simulate = None,
    device: Device = None,
    why: Why = "",
    as_json: Json = False,
) -> None:
    """Train the models of a recipe and write the report. Ctrl-C is safe: go on later with --resume."""
    from fedlens.recipes.recipe import Recipe
    from fedlens.runs.run import Run

    if (recipe is None) == (resume is None):
        raise ValueError("Expected a recipe, or --resume with a run folder.")
    if resume is not None:
        if sets or ledger or simulate is not None or device:
            raise ValueError(
                "Expected --resume without --set, --ledger, --simulate or --device: a run goes on as it was started."
            )
        execute(Run.opened(resume), as_json)
    elif recipe is not None:
        execute(created(Recipe.open(recipe, sets or []), out, ledger, simulate, device, why), as_json)


@runs_app.command()
@modelers
def compare(
    left: Annotated[pathlib.Path, Argument(help="The suspicious group: a model folder, such as runs/x/low.")],
    right: Annotated[pathlib.Path, Argument(help="The healthy group, such as runs/x/high.")],
    to: Annotated[pathlib.Path | None, Option(help="Folder for the report. Default: <left>-vs-<right>.")] = None,
    before: Annotated[
        pathlib.Path | None,
        Option(help="Folder of an earlier report: its findings that are gone are told as resolved."),
    ] = None,
    model: Annotated[pathlib.Path | None, Option(help="A primary model, to tell classes apart.")] = None,
    values: Annotated[str, Option(help="The pixels that model expects, as in a recipe.")] = PIXELS,
    channels_last: Annotated[bool, Option("--channels-last", help="And in which order.")] = False,
    kinds: Annotated[
        list[str] | None, Option("--hypothesis", metavar="MODULE:FUNCTION", help="Another fault that could explain it.")
    ] = None,
    pairs: Annotated[
        int,
        Option("--null", metavar="PAIRS", help="Train so many pairs of models that differ by no cause, 19 or more."),
    ] = 0,
    device: Device = None,
    ledger: Vouching = None,
    as_json: Json = False,
) -> None:
    """Compare two trained models by their samples, and name what sets them apart. Costs no privacy."""
    from fedlens.report.comparison import FEWEST
    from fedlens.runs import comparing
    from fedlens.runs.run import chosen_device

    if model is None and (channels_last or values != PIXELS):
        raise ValueError("Expected --model with --values or --channels-last: they say what that model expects.")
    if pairs and pairs < FEWEST:
        raise ValueError(f"Expected --null of {FEWEST} pairs or more: fewer cannot tell a difference from chance.")
    if device and not pairs:
        raise ValueError("Expected --device with --null: it is where those models are trained.")
    expects: dict[str, Any] = {"values": values, "channels_last": channels_last}
    if pairs:
        expects |= {"pairs": pairs, "device": chosen_device(device), "say": aside}
    made = comparing.compared(left, right, ledger=ledger, before=before, kinds=kinds or (), primary=model, **expects)
    folder = to or left.parent / f"{left.name}-vs-{right.name}"
    comparing.saved(made, folder)
    _print(made, folder, as_json)


@runs_app.command()
@modelers
def report(
    folder: Annotated[pathlib.Path, Argument(help="A finished run folder, or one model folder in it.")],
    ledger: Vouching = None,
    as_json: Json = False,
) -> None:
    """Show the report of a run again; of a single model, make one."""
    from fedlens.report.values import printable
    from fedlens.runs import comparing

    if (folder / "report.json").exists():
        listed = [f"[{finding.severity}] {printable(finding.summary)}" for finding in comparing.findings(folder)]
        answer, headline = comparing.confirmed(folder, ledger)
        said = [printable(first)] if (first := comparing.verdict(answer)) else []
        lines = [*said, *listed] or ["No finding."]
        say(answer, "\n".join([*lines, headline, str(folder / "report.html")]), as_json)
        return
    made = comparing.alone(folder, ledger)
    comparing.saved(made, folder)
    _print(made, folder, as_json)


@runs_app.command()
@modelers
def sample(
    folder: Annotated[pathlib.Path, Argument(help="A model folder, such as runs/x/low.")],
    count: Annotated[int, Option(min=1, max=1_000_000, help="How many images, words or sentences.")] = 64,
    seed: Annotated[int, Option(help="Of the public latents.")] = 0,
    beams: Annotated[
        int | None, Option(min=1, max=100_000, help="Text: search for the likeliest instead, with so many beams.")
    ] = None,
    to: Annotated[pathlib.Path | None, Option(help="Default: samples-<seed> or likeliest .safetensors there.")] = None,
    ledger: Vouching = None,
    as_json: Json = False,
) -> None:
    """Draw synthetic images or text from a model: a file that carries its guarantee, and one to look at. Free."""
    from fedlens.runs import comparing

    made = comparing.drawn(folder, count, seed=seed, beams=beams, to=to, ledger=ledger)
    answer = {
        "file": str(made.file),
        "shown": str(made.shown),
        "count": len(made.samples),
        "guarantee": made.guarantee.to_dict(),
        "ledger": made.voucher.statement,
    }
    where = f"{len(made.samples)} synthetic samples in {made.file}, to look at in {made.shown}"
    say(answer, f"{where}\n{made.guarantee.headline}", as_json)


def created(
    recipe: "Recipe", out: pathlib.Path, ledger: str | None, seed: int | None, device: str | None, why: str = ""
) -> "Run":
    from fedlens.curators.protocol import PrivacySpentError
    from fedlens.ledger import Ledger
    from fedlens.runs import planning
    from fedlens.runs.run import Run, default_device

    address = ledger_at(ledger, str(out / "ledger.sqlite"))
    for warning in recipe.warnings:
        aside(f"warning: {warning}")
    try:
        where = device or default_device()
        return Run.created(recipe, out, address=address, seed=seed, device=where, why=why, say=aside)
    except PrivacySpentError as error:
        fitting = planning.refusal(planning.alternatives(recipe, Ledger(address)))
        raise PrivacySpentError("\n".join([str(error), *fitting])) from None


def _demo_budget(recipe: "Recipe", address: str, seed: int | None) -> None:
    """The demonstration keeps a budget, as a real population would: a second run is over it."""
    from fedlens.ledger import Budget, Ledger

    book = Ledger(address)
    if seed is None and book.budget(recipe.population) is None:
        size, delta = recipe.privacy.population, recipe.privacy.delta
        budget = Budget(population=recipe.population, epsilon=DEMO_BUDGET, delta=delta, size=size)
        book.set_budget(budget, why="fedlens demo")
        aside(
            f"population {recipe.population!r} gets a budget of epsilon {DEMO_BUDGET:g} in {address};"
            " for another demonstration take another --out"
        )


def execute(started: "Run", as_json: bool) -> None:
    promise = started.promised()
    parts = f"; {promise.composition}" if started.recipe.released else ""
    aside(f"{started.name}: planned {promise.headline}{parts}")
    try:
        with progress() as watch:
            report = started.executed(watch)
    except (KeyboardInterrupt, OSError) as error:
        aside(f"Nothing is lost. Go on with: fedlens run --resume {shlex.quote(str(started.folder))}")
        if isinstance(error, KeyboardInterrupt):
            raise typer.Exit(INTERRUPTED) from None
        raise
    _print(report, started.folder, as_json)


def _print(report: "Report", folder: pathlib.Path, as_json: bool) -> None:
    say(report.to_dict(), f"{report.text()}\n\n{folder / 'report.html'}", as_json)


def _cell(name: str, value: Any) -> str:
    """Four digits; an epsilon is never rounded down."""
    if not isinstance(value, float):
        return str(value)
    if name != "epsilon" or float(f"{value:.4g}") >= value:
        return f"{value:.4g}"
    return f"{value + 10.0 ** (math.floor(math.log10(value)) - 3):.4g}"


def _table(cells: list[dict[str, Any]]) -> str:
    columns = list(cells[0])
    rows = [[_cell(name, cell[name]) for name in columns] for cell in cells]
    widths = [max(len(row[i]) for row in [columns, *rows]) for i in range(len(columns))]
    return "\n".join(
        "  ".join(text.rjust(width) for text, width in zip(row, widths, strict=True)) for row in [columns, *rows]
    )
