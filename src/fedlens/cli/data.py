"""`fedlens data`: beside the data."""

import pathlib
from typing import Annotated

import typer

from fedlens.cli.options import FAILED, Json, say

data_app = typer.Typer(no_args_is_help=True, help="Prepare and check private data, beside the data.")


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
    say({"columns": columns, "problems": problems}, "\n".join(lines), as_json)
    if problems:
        raise typer.Exit(FAILED)


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
    say({"population": str(to), "columns": columns}, f"Wrote {to}. Next: fedlens data check {to}", as_json)
