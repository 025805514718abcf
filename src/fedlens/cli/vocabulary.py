"""`fedlens vocabulary`: lists of known words, from public text or at a price."""

import pathlib
from typing import Annotated

import typer
from typer import Argument, Option

from fedlens.cli.ledger import say_request
from fedlens.cli.options import INTERRUPTED, Book, Device, Json, Simulate, Why, aside, modelers, say
from fedlens.runs.books import DEFAULT_BOOK, ledger_at

vocabulary_app = typer.Typer(
    no_args_is_help=True, help="Lists of known words: counted in public text, or learnt from private text at a price."
)
Size = Annotated[int, Option(min=1, help="How many words, at most.")]
To = Annotated[pathlib.Path, Option(help="The list to write, one word a line; its origin goes beside it.")]
Tokenizer = Annotated[str, Option(help="plain, whitespace, or package.module:function; as in the recipe.")]


@vocabulary_app.command("count")
@modelers
def count(
    text: Annotated[pathlib.Path, Argument(help="PUBLIC text: a plain file with a sentence a line, or .jsonl(.gz).")],
    size: Size = 10_000,
    to: To = pathlib.Path("vocab.txt"),
    tokenizer: Tokenizer = "plain",
    ledger: Book = DEFAULT_BOOK,
    as_json: Json = False,
) -> None:
    """List the most frequent words of PUBLIC text. Nothing protects what is counted: use learn for private text."""
    from fedlens.cli.data import owner_if_there
    from fedlens.owner.admission import check_public
    from fedlens.runs import vocabularies

    if owner := owner_if_there(ledger):
        check_public(text, "text", owner)
    made = vocabularies.counted(text, to, size=size, tokenizer=tokenizer)
    answer = {"vocabulary": str(to), "words": len(made), "provenance": made.provenance}
    say(answer, f"Wrote {to}: {made.provenance}.", as_json)


@vocabulary_app.command("learn")
@modelers
def learn(
    data: Annotated[str, Argument(help="A registered population, .jsonl(.gz), a folder of it or a population folder.")],
    epsilon: Annotated[float, Option(help="What it may cost.")],
    delta: Annotated[float, Option(help="Well below 1 / population.")],
    population: Annotated[int, Option(min=1, help="A public upper bound on all users.")],
    users: Annotated[int | None, Option(min=1, help="A public guess at how many there are; else --population.")] = None,
    size: Size = 10_000,
    to: To = pathlib.Path("vocab.txt"),
    longest: Annotated[int, Option(min=1, max=64, help="Bytes of a word; longer ones cannot be found.")] = 16,
    tokenizer: Tokenizer = "plain",
    user_key: Annotated[str, Option(help="jsonl: the name of the user ids.")] = "user",
    text_key: Annotated[str, Option(help="jsonl: the name of the sentences.")] = "text",
    name: Annotated[str | None, Option(help="Of the population in the ledger. Default: that of DATA.")] = None,
    ledger: Book = DEFAULT_BOOK,
    simulate: Simulate = None,
    device: Device = None,
    request: Annotated[bool, Option("--request", help="Only ask for leave, where the budget wants a review.")] = False,
    why: Why = "",
    as_json: Json = False,
) -> None:
    """Learn the frequent words of private text by a charged release. Nothing is written but what was released.

    An interruption costs what was charged by then, and gives no list.
    """
    from fedlens.ledger import Ledger
    from fedlens.owner.folder import Owner
    from fedlens.runs import run as runs
    from fedlens.runs import vocabularies

    asked = vocabularies.Learning(
        data=data,
        epsilon=epsilon,
        delta=delta,
        population=population,
        users=users or population,
        size=size,
        longest=longest,
        tokenizer=tokenizer,
        user_key=user_key,
        text_key=text_key,
        population_name=name,
    )
    ledger = ledger_at(ledger)
    if request:
        book = Ledger(ledger)
        asked, _ = vocabularies.admitted(asked, Owner(ledger, book), simulated=False, say=aside)
        items = [asked.item()]
        number = book.request("vocabulary", items, recipe=asked.digest, why=why, text=asked.text, delta=asked.delta)
        say_request(book, number, as_json)
        return
    vocabularies.check(asked, to, simulate)
    for warning in asked.warnings:
        aside(f"warning: {warning}")
    aside(f"planned {asked.guarantee.headline}")
    try:
        made = vocabularies.learned(
            asked, to, address=ledger, seed=simulate, device=device or runs.default_device(), why=why, say=aside
        )
    except KeyboardInterrupt:
        aside("Interrupted: there is no list; what was not charged yet is returned.")
        raise typer.Exit(INTERRUPTED) from None
    answer = {"vocabulary": str(to), "words": len(made), "provenance": made.provenance}
    say(answer, f"Wrote {len(made)} words to {to}: {made.provenance}.", as_json)
