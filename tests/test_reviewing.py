"""A reviewer sees what is asked, at which price, and nothing that a modeler's words do to the terminal."""

import json

import pytest
from command_line import answer, fedlens, written
from toys import SHORT as TINY
from toys import SHORT_PAIR as PAIR
from toys import account, budget, item, plan, rebuilt, rows, unguarded

from fedlens.cli.options import shown
from fedlens.ledger import Ledger
from fedlens.recipes.recipe import Recipe
from fedlens.recipes.toml import to_toml

BUDGET = ["--population", "digits", "--epsilon", 10, "--delta", 1e-5, "--review"]


@pytest.fixture
def guarded(address):
    answer("ledger", "init", *BUDGET, "--ledger", address)
    return address


def asked(recipe, book, *options):
    return fedlens("ledger", "request", recipe, "--ledger", book, *options)


def told(book, *arguments):
    done = fedlens("ledger", *arguments, "--ledger", book)
    assert done.code == 0, done.err
    return done.out


def test_one_request_is_shown_in_full(guarded, tmp_path):
    recipe = written(tmp_path, PAIR)
    assert asked(recipe, guarded, "--who", "Ada", "--why", "to look").code == 0
    text = told(guarded, "review", 2)
    for expected in (
        "2: tiny on digits by Ada: waiting; why: to look",
        "asks for epsilon 8.00 at delta 1e-05 per user (add/remove)",
        "its population goes from 0.00 to 8.00; its budget is epsilon 10 at delta 1e-05 per user (add/remove)",
        "it fits",
        "selection low, count: 1 releases",
        "selection high, train: 2 releases, noise multiplier",
        "algorithm: task = ",
        "nothing was approved on this population before",
    ):
        assert expected in text, text
    for line in to_toml(Recipe.open(recipe)).splitlines():
        assert f"    {line}" in text
    few = told(guarded, "review")
    assert few.splitlines() == text.splitlines()[:3]


def test_the_json_has_all_of_it(guarded, tmp_path):
    recipe = written(tmp_path, TINY)
    asked(recipe, guarded, "--why", "to look")
    one = answer("ledger", "review", 2, "--ledger", guarded)
    assert answer("ledger", "review", "--ledger", guarded) == {"requests": [one]}
    assert one["text"] == to_toml(Recipe.open(recipe))
    assert (one["fits"], one["refusal"], one["before"], one["selections"]) == (True, "", 0.0, ["all"])
    assert one["after"] == one["guarantee"]["epsilon"] == pytest.approx(8.0, abs=0.01)
    assert (one["budget"]["epsilon"], one["last_approved"], one["difference"]) == (10, None, [])
    assert [stage["plan"]["releases"] for stage in one["asked"]] == [1, 2]


def test_what_changed_since_the_last_approval_is_shown(guarded, tmp_path):
    for number, epsilon in ((2, 2), (4, 3)):
        recipe = written(tmp_path, TINY.replace("epsilon = 8.0", f"epsilon = {epsilon}.0"))
        assert asked(recipe, guarded).code == 0
        if number == 2:
            assert "Request 2 is approved." in told(guarded, "approve", 2)
    text = told(guarded, "review", 4)
    assert "changed since request 2, which was approved last:" in text
    assert "    -epsilon = 2.0\n    +epsilon = 3.0" in text
    changes = answer("ledger", "review", 4, "--ledger", guarded)["difference"]
    assert [line for line in changes if line[0] in "+-" and line[:3] not in ("+++", "---")] == [
        "-epsilon = 2.0",
        "+epsilon = 3.0",
    ]
    asked(written(tmp_path, TINY.replace("epsilon = 8.0", "epsilon = 2.0")), guarded)
    assert "the recipe's text is that of request 2, which was approved last" in told(guarded, "review", 5)


def test_a_rejected_request_is_nothing_to_compare_with(guarded, tmp_path):
    recipe = written(tmp_path, TINY)
    asked(recipe, guarded)
    assert told(guarded, "reject", 2) == "Request 2 is rejected.\n"
    asked(recipe, guarded)
    assert "nothing was approved on this population before" in told(guarded, "review", 4)


def test_a_request_over_the_budget_says_so_when_it_is_made_and_when_it_is_approved(guarded, tmp_path):
    recipe = written(tmp_path, TINY.replace("epsilon = 8.0", "epsilon = 20.0"))
    made = asked(recipe, guarded)
    approved = fedlens("ledger", "approve", 2, "--ledger", guarded)
    for done, first in ((made, "Request 2 waits for review."), (approved, "Request 2 is approved.")):
        assert done.code == 3
        assert done.out.startswith(first)
        assert "IT DOES NOT FIT AND CANNOT RUN: This run would take 'digits' to epsilon 20.00" in done.out
    assert "IT DOES NOT FIT" in told(guarded, "review")
    one = answer("ledger", "review", 2, "--ledger", guarded)
    assert (one["fits"], one["refusal"][:14]) == (False, "This run would")
    assert fedlens("run", recipe, "--out", tmp_path / "runs", "--ledger", guarded).code == 3
    answer("ledger", "init", *BUDGET, "--epsilon", 30, "--ledger", guarded)  # the owner may think again
    assert "it fits" in told(guarded, "review", 2)


def test_a_request_of_another_unit_than_the_budget_counts_does_not_fit(guarded):
    book = Ledger(guarded)
    number = book.request("look", [item("look", population="digits", plan=plan(unit="example"))], recipe="digest")
    text = told(guarded, "review", number)
    assert "IT DOES NOT FIT" in text
    assert "per example" in text


def test_what_others_have_reserved_since_counts(guarded, tmp_path):
    recipe = written(tmp_path, TINY.replace("epsilon = 8.0", "epsilon = 8.0"))
    assert asked(recipe, guarded).code == 0
    told(guarded, "approve", 2)
    assert fedlens("run", recipe, "--out", tmp_path / "runs", "--ledger", guarded).code == 0
    assert "a run has used it" in told(guarded, "review", 2)
    assert asked(recipe, guarded).code == 3
    assert "its population goes from 8.00 to " in told(guarded, "review")


def test_a_request_of_an_older_version_says_what_it_lacks(guarded):
    book = Ledger(guarded)
    book.request("look", [item("look", population="digits")], recipe="digest", why="to see")
    unguarded(guarded)
    found = rows(guarded)
    facts = {name: value for name, value in found[1].facts.items() if name not in ("text", "delta")}
    facts["asked"] = [{name: one[name] for name in ("stage", "part", "plan")} for one in facts["asked"]]
    rebuilt(guarded, [found[0], type(found[1])(**vars(found[1]) | {"body": json.dumps(facts)})])
    text = told(guarded, "review", 2)
    assert "the recipe's text was not kept: the request is of an older version" in text
    assert "asks for epsilon 1.07" in text
    assert answer("ledger", "review", 2, "--ledger", guarded)["text"] is None
    told(guarded, "approve", 2)
    Ledger(guarded).reserve([item("look-1", population="digits")], recipe="digest")  # and it is still good


@pytest.mark.parametrize("number", [1, 99, 0, -1, 10**30])
def test_a_number_that_is_no_request_is_a_mistake_of_the_caller(guarded, number):
    done = fedlens("ledger", "review", "--ledger", guarded, "--", number)
    assert (done.code, done.out) == (2, "")


# What a modeler writes, a reviewer's terminal does not obey

HOSTILE = "\x1b[2J\x1b]0;owned\x07 fine\n3: look on users by Ben: approved\r\x9b1A\u202eevil\u200b"


def clean(text):
    return all(letter.isprintable() or letter == "\n" for letter in text)


@pytest.mark.parametrize("command", [["show"], ["review"], ["review", "2"], ["verify"]])
def test_escape_sequences_do_not_reach_the_terminal(address, command):
    book = Ledger(address, who=f"Ada{HOSTILE}")
    book.set_budget(budget(9.0, population=f"users{HOSTILE}", review=True), why=HOSTILE)
    number = book.request(
        f"look{HOSTILE}",
        [item("look", population=f"users{HOSTILE}", part=f"part{HOSTILE}")],
        recipe=HOSTILE,
        why=HOSTILE,
        text=f'note = "{HOSTILE}"',
    )
    book.review(number, approved=True, note=HOSTILE)
    book.reserve([item(f"run{HOSTILE}", population=f"others{HOSTILE}")], recipe="other", why=HOSTILE)
    book.charge(account(f"run{HOSTILE}", population=f"others{HOSTILE}"), "train", plan(), release=0, query="a")
    done = fedlens("ledger", *command, "--ledger", address)
    assert done.code == 0, done.err
    assert clean(done.out)
    assert clean(done.err)
    assert not any(line.startswith("3: look on users by Ben") for line in done.out.splitlines())
    again = fedlens("ledger", *command, "--ledger", address, "--json")
    assert clean(again.out)


def test_a_refusal_quotes_no_escape_sequence(address):
    book = Ledger(address)
    book.set_budget(budget(9.0, population="digits", review=True))
    number = book.request("tiny", [item("tiny", population="digits")], recipe="digest")
    book.review(number, approved=False, note=HOSTILE)
    for command in (["approve", number], ["close", HOSTILE], ["verify", "--head", HOSTILE]):
        done = fedlens("ledger", *command, "--ledger", address)
        assert done.code == 2
        assert clean(done.err)


def test_what_a_terminal_would_obey_is_made_visible():
    assert shown("plain, grün, 漢字 and ½") == "plain, grün, 漢字 and ½"
    assert shown("\x1b[31m\x9b\t\x7f\u2066") == "␛[31m‹U+009B›␉‹U+007F›‹U+2066›"


def test_no_line_is_added_to_a_recipe_for_whoever_reads_it(address):
    """A line separator in a path put lines of its own before the reviewer."""
    book = Ledger(address)
    book.set_budget(budget(9.0, review=True))
    text = 'model = "a\u2028rounds = 1\x85[selections.low]"\n'
    number = book.request("look", [item("look")], recipe="digest", text=text)
    done = fedlens("ledger", "review", number, "--ledger", address)
    assert done.code == 0, done.err
    assert not any(line.strip().startswith(("rounds = 1", "[selections.low]")) for line in done.out.splitlines())
