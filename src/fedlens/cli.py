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
    from fedlens.runs import Run, Watcher

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,  # they print local variables, which may hold private data
    help="Look at private, decentralized data through differentially private generative models.",
)
data_app = typer.Typer(no_args_is_help=True, help="Prepare and check private data, beside the data.")
app.add_typer(data_app, name="data")

FAILED, USAGE, OVER_BUDGET, INTERRUPTED = 1, 2, 3, 130

Json = Annotated[bool, typer.Option("--json", help="Print the answer as JSON, and nothing else, to standard output.")]
Sets = Annotated[
    list[str] | None, typer.Option("--set", metavar="A.B=C", help="Change one setting of the recipe; repeatable.")
]
Out = Annotated[pathlib.Path, typer.Option("--out", help="Where run folders are made.")]
LedgerPath = Annotated[
    pathlib.Path | None,
    typer.Option("--ledger", help="The ledger of what was released. Default: ledger.sqlite in --out."),
]
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
    recipe = Recipe.parsed(text, [] if bug else ["data.bug.fraction=0"])
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
def plan(recipe: RecipeFile, sets: Sets = None, as_json: Json = False) -> None:
    """State what a recipe will cost and promise, without touching any data."""
    from fedlens import ledger
    from fedlens.recipes import Recipe
    from fedlens.runs import noise_to_signal

    parsed = Recipe.open(recipe, sets or [])
    count, train = parsed.plans
    spendings = parsed.spendings()
    joint = ledger.guarantee(spendings, parsed.privacy.delta)
    alone = ledger.guarantee(spendings[:1], parsed.privacy.delta)
    ratio = noise_to_signal(parsed, train)
    answer = {
        "guarantee": joint.to_dict(),
        "epsilon_per_model": alone.to_dict()["epsilon"],
        "count": count.to_dict(),
        "train": train.to_dict(),
        "noise_to_signal": ratio,
    }
    lines = [
        joint.statement(),
        f"{len(spendings)} model(s), each: {alone.headline}",
        f"{train.releases} rounds, noise multiplier {train.noise_multiplier:.4g} on the sum, {train.bound.text}",
        f"a noisy head count (standard deviation {count.stddev:g} users) is part of it",
        f"noise to signal in one round: {ratio:.2f} (norm of the noise over the largest possible mean update)",
    ]
    _answer(answer, "\n".join(lines), as_json)


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
        _execute(_created(Recipe.open(recipe, sets or []), out, ledger, simulate, device), as_json)


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


def main() -> None:
    """Runs the command line; errors become one clear line and an exit code."""
    try:
        app()
    except OSError as error:
        _fail(": ".join(str(part) for part in (error.filename, error.strerror or error) if part), FAILED)
    except Exception as error:
        kind, text = type(error).__name__, str(error)
        if kind == "PrivacySpentError":
            _fail(text, OVER_BUDGET)
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
    recipe: Any, out: pathlib.Path, ledger: pathlib.Path | None, seed: int | None, device: str | None
) -> "Run":
    from fedlens.runs import Run, default_device

    path = ledger or out / "ledger.sqlite"
    return Run.created(recipe, out, address=path, seed=seed, device=device or default_device())


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


def _answer(values: dict[str, Any], text: str, as_json: bool) -> None:
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
