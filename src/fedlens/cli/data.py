"""`fedlens data`: beside the data."""

import pathlib
from typing import TYPE_CHECKING, Annotated

import typer

from fedlens.cli.options import FAILED, Json, say

if TYPE_CHECKING:
    from fedlens.population import Population

data_app = typer.Typer(no_args_is_help=True, help="Prepare and check private data, beside the data.")


@data_app.command("check")
def check(
    path: Annotated[pathlib.Path, typer.Argument(help="A population folder, an .npz or a .jsonl(.gz) file.")],
    images: Annotated[str, typer.Option(help="npz: the name of the images.")] = "x",
    labels: Annotated[str, typer.Option(help="npz: the name of the labels; empty for none.")] = "y",
    users: Annotated[str, typer.Option(help="npz, jsonl: the name of the user ids.")] = "user",
    sentences: Annotated[str, typer.Option(help="jsonl: the name of the sentences.")] = "text",
    as_json: Json = False,
) -> None:
    """Read private data once, where it lies, and name what a run would stumble over. Prints no count and no content."""
    from fedlens import data, readers
    from fedlens.population import Population

    if (path / "population.json").exists():  # whatever the folder is called
        population = Population.open(path)
    elif path.suffix == ".npz":
        population = data.from_npz(path, images=images, labels=labels or None, users=users)
    elif path.name.endswith((".jsonl", ".jsonl.gz")):
        population = readers.text(path, user=users, text=sentences)
    else:
        population = Population.open(path)
    problems = readers.checked_text(population) if "text" in population.columns else data.checked(population)
    columns, notes = _columns(population), _notes(population)
    lines = [f"{name}: {kind}" for name, kind in columns.items()] + (problems or ["ok"])
    answer = {"columns": columns, "problems": problems, "notes": notes}
    say(answer, "\n".join([*lines, *(f"note: {note}" for note in notes)]), as_json)
    if problems:
        raise typer.Exit(FAILED)


@data_app.command("convert")
def convert(
    source: Annotated[
        pathlib.Path,
        typer.Argument(help="A .parquet, idx, LEAF .json, .h5, .jsonl or .sqlite file, or folders of them."),
    ],
    to: Annotated[pathlib.Path, typer.Argument(help="The population folder to make.")],
    kind: Annotated[
        str | None,
        typer.Option(help="parquet, idx, leaf, hdf5, png, jsonl or sqlite; by default from the name."),
    ] = None,
    text: Annotated[bool, typer.Option("--text", help="The source holds text; jsonl and sqlite always do.")] = False,
    users: Annotated[str | None, typer.Option(help="Column of user ids; idx: the file of writer ids.")] = None,
    images: Annotated[str | None, typer.Option(help="Column of images.")] = None,
    labels: Annotated[str | None, typer.Option(help="Column of labels; idx: the file of labels.")] = None,
    sentences: Annotated[str | None, typer.Option(help="Column of text.")] = None,
    attributes: Annotated[str, typer.Option(help="Text: columns of whole numbers to keep, with commas.")] = "",
    split: Annotated[str | None, typer.Option(help="sqlite: train, test, ...; by default all.")] = None,
    classes: Annotated[int | None, typer.Option(help="Labels must be below this.")] = None,
    inverted: Annotated[bool, typer.Option("--inverted", help="Bright becomes dark, as for Federated EMNIST.")] = False,
    as_json: Json = False,
) -> None:
    """Bring images or text into the form a run reads: beside the data, bit by bit, however much. Prints no count."""
    from fedlens import readers

    kind = kind or readers.detected(source)
    if text or kind in ("jsonl", "sqlite"):
        _check_none("text", images=images, labels=labels, classes=classes, inverted=inverted or None)
        kept = [name for name in attributes.split(",") if name]
        made = readers.convert_text(
            source, to, kind=kind, users=users, sentences=sentences, attributes=kept, split=split
        )
    else:
        _check_none("images", sentences=sentences, attributes=attributes or None, split=split)
        made = readers.convert(
            source, to, kind=kind, users=users, images=images, labels=labels, classes=classes, inverted=inverted
        )
    notes = _notes(made)
    lines = [*(f"note: {note}" for note in notes), f"Wrote {to}. Next: fedlens data check {to}"]
    say({"population": str(to), "columns": _columns(made), "notes": notes}, "\n".join(lines), as_json)


def _columns(population: "Population") -> dict[str, str]:
    return {name: f"{column.dtype} {list(column.shape[1:])}" for name, column in population.columns.items()}


def _notes(population: "Population") -> list[str]:
    """What is true of any such data: whether a sentence is longer is private."""
    from fedlens.words import SENTENCE_BYTES

    return [f"of every sentence the first {SENTENCE_BYTES} bytes are used"] if "text" in population.columns else []


def _check_none(kind: str, **given: object) -> None:
    if needless := [f"--{name}" for name, value in given.items() if value is not None]:
        raise ValueError(f"Expected no {', '.join(needless)} for {kind}.")
