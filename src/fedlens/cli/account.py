"""`fedlens account`: what published guarantees are worth."""

import typer

from fedlens.cli.options import Json, say

account_app = typer.Typer(no_args_is_help=True, help="What published guarantees are worth.")


@account_app.callback()
def account() -> None:
    """What published guarantees are worth."""


@account_app.command("papers")
def papers(as_json: Json = False) -> None:
    """Every epsilon the five papers print: how they got it, what is valid instead, and a verdict. About a minute."""
    from fedlens.privacy import papers

    rows = papers.rows()
    say([row.to_dict() for row in rows], "\n".join(line for row in rows for line in row.lines()), as_json)
