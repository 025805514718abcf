"""How a run shows that it gets on: a live table on a terminal, a line now and then elsewhere."""

import contextlib
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from fedlens.cli.options import aside

if TYPE_CHECKING:
    from fedlens.runs.folder import Watcher


@contextlib.contextmanager
def progress() -> Iterator["Watcher"]:
    """A live table on a terminal, a line now and then elsewhere; on standard error, so that --json stays clean."""
    if sys.stderr.isatty():
        with _live() as watch:
            yield watch
        return

    def lines(selection: str, done: int, rounds: int, facts: dict[str, Any]) -> None:
        if done == rounds or done % max(1, rounds // 5) == 0:
            aside(f"{selection}: round {done}/{rounds}{_text(facts)}")

    yield lines


def _text(facts: dict[str, Any]) -> str:
    epsilon, clip = facts.get("epsilon_so_far"), facts.get("clip")
    shown = [f"epsilon so far {epsilon}"] if epsilon is not None else []
    shown += [f"clip {clip:g}"] if clip is not None else []
    shown += ["SIMULATED"] if facts.get("simulated") else []
    return "".join(f", {fact}" for fact in shown)


@contextlib.contextmanager
def _live() -> Iterator["Watcher"]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[facts]}"),
    )
    with Progress(*columns, console=Console(stderr=True)) as bars:
        tasks: dict[str, Any] = {}

        def watch(selection: str, done: int, rounds: int, facts: dict[str, Any]) -> None:
            if selection not in tasks:
                tasks[selection] = bars.add_task(selection, total=rounds, facts="")
            bars.update(tasks[selection], completed=done)
            if "epsilon_so_far" in facts:
                bars.update(tasks[selection], facts=_text(facts).removeprefix(", "))

        yield watch
