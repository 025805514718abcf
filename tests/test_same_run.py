"""A run stays what it was: recipe, accounts, stages, and whether it is simulated; one request speaks for all of it."""

import dataclasses
import json

import pytest
from command_line import fedlens, interrupted, written
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from toys import SHORT_PAIR as PAIR
from toys import account, budget, item, plan, problems, rebuilt, rows, unguarded

from fedlens.ledger import Ledger, NotApprovedError, keys
from fedlens.recipes.recipe import Recipe
from fedlens.recipes.toml import to_toml
from fedlens.runs import run as runs


def pair(run="look-1", names=("low", "high"), **options):
    settings = {"partition": f"{run}: accuracy"} | options
    return [item(f"{run}/{name}", part=name, **settings) for name in names]


@pytest.fixture
def begun(address):
    """A run of two groups that was stopped after the first."""
    book = Ledger(address)
    book.set_budget(budget(9.0))
    book.reserve(pair(), recipe="digest")
    for release in range(2):
        book.charge(pair()[0].account, "train", plan(), release=release, query="a")
    return book


OTHERWISE = {
    "another recipe": (pair(), "edited"),
    "another recipe for the rest": (pair(names=["high"]), "edited"),
    "everybody once more": (pair(names=["all"]), "digest"),
    "everybody once more by another recipe": (pair(names=["all"]), "edited"),
    "another stage": (pair(stage="more"), "digest"),
    "a part of a part": ([item("look-1/high/again", part="high")], "digest"),
    "the run itself": ([item("look-1")], "digest"),
    "without a recipe": (pair(names=["all"]), ""),
    "for nothing": (pair(names=["all"], simulated=True), "digest"),
    "the rest for nothing": (pair(names=["high"], simulated=True), "digest"),
}


@pytest.mark.parametrize("name", OTHERWISE)
def test_a_run_that_was_stopped_goes_on_as_it_began_or_not_at_all(begun, address, name):
    items, recipe = OTHERWISE[name]
    before = rows(address)
    with pytest.raises(ValueError, match=r"Expected .*look-1"):
        begun.reserve(items, recipe=recipe)
    assert rows(address) == before
    begun.reserve(pair(), recipe="digest", resumed=True)
    assert begun.charge(pair()[1].account, "train", plan(), release=0, query="a")
    assert problems(address) == []


@pytest.mark.parametrize("simulated", [False, True])
def test_a_charge_adds_nothing_to_a_run_that_was_booked_as_a_whole(begun, address, simulated):
    before = rows(address)
    with pytest.raises(ValueError, match="look-1"):
        begun.charge(account("look-1/all", simulated=simulated), "train", plan(), release=0, query="a")
    assert rows(address) == before


def test_a_new_run_takes_no_name_that_a_run_has(begun):
    with pytest.raises(ValueError, match="Expected a new run"):
        begun.reserve(pair(names=["others"]), recipe="digest", new=True)
    begun.reserve(pair("look-10"), recipe="edited", new=True)  # begins alike, and is another


def test_a_run_that_resumes_is_known(begun):
    with pytest.raises(ValueError, match="Expected a run of this ledger"):
        begun.reserve(pair("look-2"), recipe="digest", resumed=True)


def test_verify_finds_a_run_that_two_recipes_were_booked_for(begun, address):
    """By whoever writes to the file."""
    unguarded(address)
    found = rows(address)
    more = next(entry for entry in found if entry.kind == "reserve")
    body = json.dumps(more.facts | {"recipe": "edited"})
    rebuilt(address, [*found, dataclasses.replace(more, run="look-1/all", body=body, at=found[-1].at)])
    assert any("adds to a run that was booked with another recipe" in line for line in problems(address))


@pytest.fixture
def signed(address):
    """A budget with a reviewer, who approved one look at two groups."""
    key = Ed25519PrivateKey.generate()
    modeler, reviewer = Ledger(address, who="Ada"), Ledger(address, who="Ben", key=key)
    modeler.set_budget(budget(9.0, review=True, reviewers=(keys.public(key),)))
    reviewer.review(modeler.request("look", pair("look"), recipe="digest"), approved=True)
    modeler.reviewer = reviewer
    return modeler


WAYS_AROUND = {
    "a group twice": [*pair(names=["low"]), item("look-1/low again", part="low", partition="look-1: accuracy")],
    "groups of another kind": pair(partition="look-1: something else"),
    "one more release": pair(plan=plan(3)),
    "less noise": pair(plan=plan(noise=4.0)),
    "another stage": pair(stage="more"),
    "another group": pair(names=["low", "middle"]),
}


@pytest.mark.parametrize("name", WAYS_AROUND)
def test_an_approval_is_for_what_was_asked_and_nothing_else(signed, address, name):
    before = rows(address)
    with pytest.raises(NotApprovedError):
        signed.reserve(WAYS_AROUND[name], recipe="digest")
    assert rows(address) == before
    signed.reserve(pair(), recipe="digest")


def test_a_run_is_not_approved_by_halves_of_two_requests(signed, address):
    for name in ("low", "middle"):
        number = signed.request("look", pair("look", names=[name]), recipe="other")
        signed.reviewer.review(number, approved=True)
    with pytest.raises(NotApprovedError):
        signed.reserve(pair(names=["low", "middle"]), recipe="other")


def test_a_request_that_shows_another_text_than_the_one_that_is_run_approves_nothing(signed):
    """A reviewer reads the text; a digest says nothing to anybody."""
    number = signed.request("look", pair("look"), recipe="harmful", text="a harmless recipe")
    signed.reviewer.review(number, approved=True)
    for text in ("", "a harmful recipe"):
        with pytest.raises(NotApprovedError, match="it was edited since"):
            signed.reserve(pair(), recipe="harmful", text=text)
    signed.reserve(pair(), recipe="harmful", text="a harmless recipe")


def test_a_name_that_begins_alike_is_another_name(signed):
    with pytest.raises(NotApprovedError, match="there is no request for it"):
        signed.reserve(pair("looking-1"), recipe="edited")
    with pytest.raises(NotApprovedError, match="it was edited since"):
        signed.reserve(pair("look-1"), recipe="edited")


def test_an_edited_recipe_does_not_train_everybody_twice(tmp_path, monkeypatch):
    """Stopped after one group; recipe.toml and run.json are edited to agree with each other; --resume."""
    out = tmp_path / "runs"
    with monkeypatch.context() as patched:
        interrupted(patched, runs.Run, "_trained", when=lambda run, group, *others: group == "high")
        assert fedlens("run", written(tmp_path, PAIR), "--out", out).code == 130
    (folder,) = out.glob("tiny-*")
    text = (folder / "recipe.toml").read_text()
    edited = Recipe.parsed(text.replace("[selections.high]", "[selections.others]").replace('"right"', '"wrong"'))
    (folder / "recipe.toml").write_text(to_toml(edited))
    about = json.loads((folder / "run.json").read_text())
    for change in ({"recipe_sha256": edited.digest}, {"recipe_sha256": edited.digest, "seed": 3}):
        (folder / "run.json").write_text(json.dumps(about | change))
        before = rows(out / "ledger.sqlite")
        done = fedlens("run", "--resume", folder)
        assert done.code == 2, done.err
        assert rows(out / "ledger.sqlite") == before
    (folder / "recipe.toml").write_text(text)
    (folder / "run.json").write_text(json.dumps(about | {"seed": 3}))  # everything else as it was
    assert fedlens("run", "--resume", folder).code == 2
    (folder / "run.json").write_text(json.dumps(about))
    assert fedlens("run", "--resume", folder).code == 0
