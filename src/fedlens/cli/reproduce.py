"""`fedlens reproduce`: the results in docs/results, from scratch."""

import json
import os
import pathlib
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedlens.cli.options import Device, Json, aside, modelers, say

if TYPE_CHECKING:
    from fedlens.experiments.trials import Row

reproduce_app = typer.Typer(no_args_is_help=True, help="Make the results of docs/results again, on data you may see.")


Names = Annotated[list[str] | None, typer.Option("--row", help="Only these rows; may be given again.")]
TogetherCount = Annotated[int, typer.Option(min=1, help="Models that train in one vectorised run.")]
Minutes = Annotated[float | None, typer.Option(help="Start no further training after so many minutes.")]
Train = Annotated[bool, typer.Option("--train/--no-train", help="Train what is missing.")]
Diagnose = Annotated[bool, typer.Option("--diagnose/--no-diagnose", help="Contrast what is trained.")]
Folder = Annotated[pathlib.Path, typer.Option(help="What is there already is not made again.")]


@reproduce_app.command("sensitivity")
@modelers
def sensitivity(
    out: Folder = pathlib.Path("runs/sensitivity"),
    names: Names = None,
    together: TogetherCount = 12,
    minutes: Minutes = None,
    train: Train = True,
    diagnose: Diagnose = True,
    device: Device = None,
    as_json: Json = False,
) -> None:
    """How small may epsilon be, and how rare a bug? Needs FEDLENS_DATA with MNIST by writer, and best a GPU."""
    from fedlens.core import files
    from fedlens.experiments import images, trials

    chosen = trials.chosen_rows(names, images.ROWS)
    if train:
        _train(chosen, out, together, minutes, device)
    if diagnose:
        results = trials.diagnosed(chosen, out, aside)
        files.write(out / "curve.svg", images.curve(results))
        _tell(results, images.table(results), out, as_json)


@reproduce_app.command("text")
@modelers
def text(
    out: Folder = pathlib.Path("runs/text"),
    names: Names = None,
    together: TogetherCount = 12,
    minutes: Minutes = None,
    train: Train = True,
    diagnose: Diagnose = True,
    device: Device = None,
    as_json: Json = False,
) -> None:
    """How rare may a bug of the tokenizer be? Needs FEDLENS_DATA with the speakers and the chat, best a GPU."""
    from fedlens.core import files
    from fedlens.experiments import text as text_experiments
    from fedlens.experiments import trials

    data = pathlib.Path(os.path.expandvars("$FEDLENS_DATA")) / text_experiments.SPEAKERS
    if not data.exists():
        raise ValueError(f"Expected {data.name} in the folder that FEDLENS_DATA names.")
    text_experiments.split(data, out)
    chosen = trials.chosen_rows(names, text_experiments.rows(out))
    if train:
        _train(chosen, out, together, minutes, device)
    if diagnose:
        results = trials.diagnosed(chosen, out, aside)
        made = [
            of(chosen, out)
            for of in (
                text_experiments.searched,
                text_experiments.by_position,
                text_experiments.found_words,
                text_experiments.next_word_accuracy,
            )
        ]
        filled = [table for table in made if len(table.splitlines()) > 2]
        tables = "\n".join([text_experiments.table(results), *filled])
        files.write(out / "positions.svg", text_experiments.picture(chosen, out))
        _tell(results, tables, out, as_json)


def _train(
    chosen: "Sequence[Row]", out: pathlib.Path, together: int, minutes: float | None, device: str | None
) -> None:
    from fedlens.experiments import trials
    from fedlens.runs.run import default_device

    until = time.time() + 60 * minutes if minutes else float("inf")
    where = device or default_device()
    trials.trained(chosen, out, device=where, together=together, until=until, say=aside)


def _tell(results: list[dict[str, Any]], tables: str, out: pathlib.Path, as_json: bool) -> None:
    from fedlens.core import files

    files.write(out / "results.json", json.dumps(results, indent=1))
    files.write(out / "table.md", tables)
    say(results, tables, as_json)
