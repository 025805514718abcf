"""`fedlens reproduce` and `fedlens account`: our results, from scratch; and what published guarantees are worth."""

import dataclasses
import json
import os
import pathlib
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from fedlens.cli.options import Device, Json, Sets, aside, modelers, say

if TYPE_CHECKING:
    from fedlens.experiments.generators import Bench
    from fedlens.experiments.trials import Row

reproduce_app = typer.Typer()
account_app = typer.Typer(no_args_is_help=True, help="What published guarantees are worth.")


@reproduce_app.command()
@modelers
def reproduce(
    what: Annotated[
        str,
        Argument(
            help="sensitivity, of MNIST by writer; text, of the speakers and the chat; generators, of looks;"
            " image-looks or text-looks: what two of them find."
        ),
    ],
    out: Annotated[pathlib.Path | None, Option(help="What is there is not made again. Default: runs/WHAT.")] = None,
    names: Annotated[list[str] | None, Option("--row", help="Only these rows; may be given again.")] = None,
    together: Annotated[int, Option(min=1, help="Models that train in one vectorised run.")] = 12,
    minutes: Annotated[float | None, Option(help="Begin nothing after so many minutes; the next call goes on.")] = None,
    train: Annotated[bool, Option("--train/--no-train", help="Train what is missing.")] = True,
    diagnose: Annotated[
        bool, Option("--diagnose/--no-diagnose", help="Contrast what is trained, or measure generators.")
    ] = True,
    classifiers: Annotated[str, Option(help="generators: some of the 13, as in cnn,mlp.")] = "",
    tune: Annotated[
        bool, Option("--tune", help="generators: on held-out training images, to choose settings on.")
    ] = False,
    sets: Sets = None,
    device: Device = None,
    as_json: Json = False,
) -> None:
    """Make the results of docs/results again, on data you may see: needs FEDLENS_DATA, and best a GPU."""
    from fedlens.core import files
    from fedlens.experiments import trials
    from fedlens.runs.run import default_device

    known = *_TABLES, _GENERATORS, _IMAGE_LOOKS, _TEXT_LOOKS
    if what not in known:
        raise ValueError(f"Expected {', '.join(known[:-1])} or {known[-1]} to reproduce, got {what!r}.")
    out = out or pathlib.Path("runs", what)
    until = time.time() + 60 * minutes if minutes else float("inf")
    where = device or default_device()
    if what == _GENERATORS:
        work = _work(out, where, tune, sets or [])
        results, tables = _of_generators(work, names, until, train, diagnose, classifiers)
        say(results, tables, as_json)
        return
    if what == _IMAGE_LOOKS:
        say(*_of_image_looks(out, names), as_json)
        return
    if what == _TEXT_LOOKS:
        say(*_of_text_looks(out, names), as_json)
        return
    if classifiers or tune or sets:
        raise ValueError("Expected --classifiers, --tune and --set with generators only.")
    rows_in, tables_of = _TABLES[what]
    chosen = trials.chosen_rows(names, rows_in(out))
    if train:
        trials.trained(chosen, out, device=where, together=together, until=until, say=aside)
    if diagnose:
        results = trials.diagnosed(chosen, out, aside)
        tables = tables_of(results, chosen, out)
        files.write(out / "results.json", json.dumps(results, indent=1))
        files.write(out / "table.md", tables)
        say(results, tables, as_json)


def _rows_of_images(out: pathlib.Path) -> "Sequence[Row]":
    from fedlens.experiments import images

    return images.ROWS


def _of_images(results: list[dict[str, Any]], chosen: "Sequence[Row]", out: pathlib.Path) -> str:
    """How small may epsilon be, and how rare a bug?"""
    from fedlens.core import files
    from fedlens.experiments import images

    files.write(out / "curve.svg", images.curve(results))
    return images.table(results)


def _rows_of_text(out: pathlib.Path) -> "Sequence[Row]":
    from fedlens.experiments import text

    _speakers(out)
    return text.rows(out)


def _speakers(out: pathlib.Path) -> None:
    """Their sentences, split into public ones and users."""
    from fedlens.experiments import text

    data = pathlib.Path(os.path.expandvars("$FEDLENS_DATA")) / text.SPEAKERS
    if not data.exists():
        raise ValueError(f"Expected {data.name} in the folder that FEDLENS_DATA names.")
    text.split(data, out)


def _of_text_looks(out: pathlib.Path, names: "Sequence[str] | None") -> tuple[dict[str, Any], str]:
    """Which faults of text does one look find? Nothing is trained."""
    from fedlens.core import files
    from fedlens.experiments import text_findings

    _speakers(out)
    results = text_findings.reproduced(out, names, aside)
    tables = text_findings.tables(results)
    files.write(out / "results.json", json.dumps(results, indent=1))
    files.write(out / "table.md", tables)
    return results, tables


def _of_text(results: list[dict[str, Any]], chosen: "Sequence[Row]", out: pathlib.Path) -> str:
    """How rare may a bug of the tokenizer be?"""
    from fedlens.core import files
    from fedlens.experiments import text

    measures = text.searched, text.by_position, text.found_words, text.next_word_accuracy
    filled = [made for measure in measures if len((made := measure(chosen, out)).splitlines()) > 2]
    files.write(out / "positions.svg", text.picture(chosen, out))
    return "\n".join([text.table(results), *filled])


def _data_folder() -> pathlib.Path:
    folder = pathlib.Path(os.path.expandvars("$FEDLENS_DATA"))
    if not folder.is_dir():
        raise ValueError("Expected FEDLENS_DATA to name the folder of the data.")
    return folder


def _work(out: pathlib.Path, device: str, tune: bool, sets: "Sequence[str]") -> "Bench":
    from fedlens.experiments import generators

    folder = _data_folder()
    place = out / "tuning" if tune else out
    return generators.Bench(out=place, folder=folder, device=device, tuning=tune, sets=tuple(sets), say=aside)


def _of_generators(
    work: "Bench", names: "Sequence[str] | None", until: float, train: bool, diagnose: bool, classifiers: str
) -> tuple[list[dict[str, Any]], str]:
    """How good is what one look draws?"""
    from fedlens.experiments import generators, trials

    chosen = trials.chosen_rows(names, generators.ROWS)
    if train and not diagnose:
        generators.trained(chosen, work, until)
    if not diagnose:
        return [], ""
    protocol = generators.protocol(tuple(name.strip() for name in classifiers.split(",") if name.strip()))
    results = generators.reproduced(chosen, work, protocol, os.cpu_count() or 1, until, train=train)
    return results, generators.table(results)


def _of_image_looks(out: pathlib.Path, names: "Sequence[str] | None") -> tuple[list[dict[str, Any]], str]:
    """Which faults do two looks at images find, and name?"""
    from fedlens.core import files
    from fedlens.experiments import findings

    if unknown := set(names or ()) - set(findings.PARTS):
        raise ValueError(f"Expected --row of {', '.join(findings.PARTS)}; got {', '.join(sorted(unknown))}.")
    bench = findings.ImageBench(folder=_data_folder(), out=out, say=aside)
    parts = {part: bench.kept(part) for part in names or findings.PARTS}
    tables = "\n".join(f"{part}\n\n{findings.table(lines)}" for part, lines in parts.items())
    files.write(out / "table.md", tables)
    return [dataclasses.asdict(line) | {"part": part} for part, lines in parts.items() for line in lines], tables


_GENERATORS, _IMAGE_LOOKS, _TEXT_LOOKS = "generators", "image-looks", "text-looks"
# By what is reproduced: its rows, and the tables that are made of what came out.
_TABLES = {"sensitivity": (_rows_of_images, _of_images), "text": (_rows_of_text, _of_text)}


@account_app.callback()
def account() -> None:
    """What published guarantees are worth."""


@account_app.command("papers")
def papers(as_json: Json = False) -> None:
    """Every epsilon the five papers print: how they got it, what is valid instead, and a verdict. About a minute."""
    from fedlens.privacy import papers

    rows = papers.rows()
    say([row.to_dict() for row in rows], "\n".join(line for row in rows for line in row.lines()), as_json)
