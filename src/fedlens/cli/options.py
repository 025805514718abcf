"""What commands share: exit codes, options, and how an answer is printed."""

import functools
import json
import pathlib
import sys
from collections.abc import Callable
from typing import Annotated, Any

from typer import Argument, Option

FAILED, USAGE, OVER_BUDGET, NOT_APPROVED, INTERRUPTED = 1, 2, 3, 4, 130

Json = Annotated[bool, Option("--json", help="Print the answer as JSON, and nothing else, to standard output.")]
Sets = Annotated[list[str] | None, Option("--set", metavar="A.B=C", help="Change a setting of the recipe; repeatable.")]
Out = Annotated[pathlib.Path, Option(help="Where run folders are made.")]
LedgerPath = Annotated[
    str | None,
    Option(
        help="The ledger of what was released: a file, or postgresql://… for teams. Default: ledger.sqlite in --out."
    ),
]
Book = Annotated[str, Option(help="A file, or postgresql://… for teams.")]
Who = Annotated[str | None, Option(help="In whose name; by default the login name.")]
Why = Annotated[str, Option(help="Kept in the ledger.")]
Key = Annotated[pathlib.Path | None, Option(help="Sign with this key (fedlens ledger key).")]
Simulate = Annotated[int | None, Option(metavar="SEED", help="Noise and cohorts from a seed: repeatable, NOT private.")]
Device = Annotated[str | None, Option(help="cpu or cuda. Default: cuda where there is one.")]
RecipeFile = Annotated[pathlib.Path, Argument(help="A recipe (TOML); `fedlens init` writes one.")]


def modelers(command: Callable[..., None]) -> Callable[..., None]:
    """A command that others may have run on a pinned machine: every path they name lies below the working folder."""

    @functools.wraps(command)
    def held(*given: Any, **named: Any) -> None:
        from fedlens.core import pins

        if pins.found():
            from fedlens.runs import safeguards

            for path in (value for value in (*given, *named.values()) if isinstance(value, pathlib.Path)):
                pins.check_below(path)
                safeguards.check_plain(path)
        command(*given, **named)

    return held


def aside(line: str) -> None:
    """What a person should know, and no program asked for."""
    print(line, file=sys.stderr)


def shown(line: str) -> str:
    """One line of what others wrote: what a terminal would obey, or not show, is made visible.

    >>> shown("fine" + chr(27) + "[2J" + chr(10) + chr(0x202E))
    'fine␛[2J␊‹U+202E›'
    """
    return "".join(letter if letter.isprintable() else _visible(ord(letter)) for letter in line)


def _visible(code: int) -> str:
    return chr(0x2400 + code) if code < 32 else f"‹U+{code:04X}›"


def say(values: Any, text: str, as_json: bool) -> None:
    print(json.dumps(values, indent=1, allow_nan=False) if as_json else text)
