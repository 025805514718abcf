"""`fedlens reproduce`: the results in docs/results, from scratch."""

import json
import pathlib
import sys
import time
from typing import Annotated

import typer

from fedlens.cli.options import Device, Json, say

reproduce_app = typer.Typer(no_args_is_help=True, help="Make the results of docs/results again, on data you may see.")


@reproduce_app.command("sensitivity")
def sensitivity(
    out: Annotated[pathlib.Path, typer.Option(help="What is there already is not made again.")] = pathlib.Path(
        "runs/sensitivity"
    ),
    names: Annotated[list[str] | None, typer.Option("--row", help="Only these rows; may be given again.")] = None,
    together: Annotated[int, typer.Option(min=1, help="Models that train in one vectorised run.")] = 12,
    minutes: Annotated[float | None, typer.Option(help="Start no further training after so many minutes.")] = None,
    train: Annotated[bool, typer.Option("--train/--no-train", help="Train what is missing.")] = True,
    diagnose: Annotated[bool, typer.Option("--diagnose/--no-diagnose", help="Contrast what is trained.")] = True,
    device: Device = None,
    as_json: Json = False,
) -> None:
    """How small may epsilon be, and how rare a bug? Needs FEDLENS_DATA with MNIST by writer, and best a GPU."""
    from fedlens import experiments, files
    from fedlens.runs import default_device

    def progress(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    chosen = experiments.rows(names)
    if train:
        until = time.time() + 60 * minutes if minutes else float("inf")
        experiments.trained(
            chosen, out, device=device or default_device(), together=together, until=until, say=progress
        )
    if diagnose:
        results = experiments.diagnosed(chosen, out, progress)
        files.write(out / "results.json", json.dumps(results, indent=1))
        files.write(out / "table.md", experiments.table(results))
        files.write(out / "curve.svg", experiments.curve(results))
        say(results, experiments.table(results), as_json)
