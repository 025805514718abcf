"""The command line. Imports stay late: `fedlens --help` answers at once."""

import os
import pathlib
import sys
import traceback
from typing import Annotated

import typer

from fedlens.cli.data import data_app
from fedlens.cli.evaluate import evaluate_app
from fedlens.cli.ledger import ledger_app
from fedlens.cli.look import look_app
from fedlens.cli.options import FAILED, NOT_APPROVED, OVER_BUDGET, USAGE, shown
from fedlens.cli.primary import primary_app
from fedlens.cli.reproduce import account_app, reproduce_app
from fedlens.cli.runs import runs_app
from fedlens.cli.vocabulary import vocabulary_app
from fedlens.version import __version__

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,  # they print local variables, which may hold private data
    help="Look at private, decentralized data through differentially private generative models.",
)
app.add_typer(runs_app)
app.add_typer(look_app)
app.add_typer(evaluate_app)
app.add_typer(data_app, name="data")
app.add_typer(primary_app, name="primary")
app.add_typer(vocabulary_app, name="vocabulary")
app.add_typer(reproduce_app)
app.add_typer(ledger_app, name="ledger")
app.add_typer(account_app, name="account")


@app.callback(invoke_without_command=True)
def version(show: Annotated[bool, typer.Option("--version", help="Show the version and exit.")] = False) -> None:
    if show:
        print(__version__)
        raise typer.Exit()


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
    print("\n".join(map(shown, message.split("\n"))), file=sys.stderr)
    sys.exit(code)
