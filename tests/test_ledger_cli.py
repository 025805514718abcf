"""Budgets on the command line: every `fedlens ledger` command, plans against a ledger, refusals that help."""

import json
import pathlib
import re
import shlex
import stat

import numpy as np
import pytest
from command_line import GUARANTEE, SECRET, answer, fedlens, interrupted, stopped_after_a_round, written
from toys import SHORT as TINY
from toys import SHORT_PAIR as PAIR
from toys import edit, raw, rows, unguarded

from fedlens.core import pins
from fedlens.ledger import Ledger, is_remote
from fedlens.recipes.recipe import Recipe
from fedlens.runs import run as runs

COMMANDS = ["init", "show", "request", "review", "approve", "reject", "close", "verify", "witness", "key"]
BUDGET = ["--population", "digits", "--epsilon", 10, "--delta", 1e-5]


@pytest.fixture
def recipe(tmp_path):
    return written(tmp_path, TINY)


@pytest.fixture
def out(tmp_path):
    return tmp_path / "runs"


@pytest.fixture
def book(address):
    """The address of a ledger with a budget of epsilon 10 for the digits: one run of the recipe fits, two do not."""
    answer("ledger", "init", *BUDGET, "--ledger", address, "--who", "Ada", "--why", "agreed")
    return address


@pytest.fixture
def paused(monkeypatch):
    """Runs that stop right after they were created, as if someone had pressed Ctrl-C: exit code 130."""

    def executed(self, watch):
        raise KeyboardInterrupt

    monkeypatch.setattr(runs.Run, "executed", executed)


def run(recipe, out, book, *options):
    return fedlens("run", recipe, "--out", out, "--ledger", book, *options)


def entries(address):
    return raw(address, "select count(*) from entries")[0][0]


def failed(code, told, *arguments):
    """A refusal: the code, one clear text on standard error, nothing on standard output."""
    done = fedlens(*arguments)
    assert (done.code, done.out) == (code, ""), done.err
    assert re.search(told, done.err), done.err
    assert "Traceback" not in done.err
    assert "Internal error" not in done.err
    return done.err


# Help


def test_the_help_names_every_command():
    done = fedlens("ledger", "--help")
    assert done.code == 0
    assert all(re.search(rf"\b{command}\b", done.out) for command in COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself_and_offers_json(command):
    done = fedlens("ledger", command, "--help")
    assert done.code == 0
    assert "--json" in done.out
    assert command == "key" or "--ledger" in done.out


def test_the_help_of_plan_names_what_it_can_be_asked():
    told = fedlens("plan", "--help").out
    assert all(option in told for option in ("--ledger", "--target-eps", "--sweep", "--published", "--json"))
    assert "NOT a guarantee" in re.sub(r"[\s│]+", " ", told)


# init


def test_init_makes_a_ledger_and_tells_the_budget(address):
    told = answer("ledger", "init", *BUDGET, "--size", 100, "--window", 30, "--ledger", address)
    assert told == {
        "population": "digits",
        "epsilon": 10.0,
        "delta": 1e-5,
        "size": 100,
        "unit": "user",
        "neighbours": "add/remove",
        "window": 30.0,
        "review": False,
        "reviewers": [],
    }
    done = fedlens("ledger", "init", *BUDGET, "--review", "--ledger", address)
    assert done.out == "digits: epsilon 10 at delta 1e-05 per user (add/remove), with review\n"
    assert done.err == ""
    assert Ledger(address).budget("digits").review


def test_a_delta_above_one_in_the_population_is_warned_about_and_kept(address):
    done = fedlens("ledger", "init", *BUDGET[:-1], 0.02, "--size", 100, "--ledger", address, "--json")
    assert done.code == 0
    assert "warning: delta 0.02 is above 1/100" in done.err
    assert json.loads(done.out)["delta"] == 0.02


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--delta", 1.0], "delta=1.0 < 1"),
        (["--delta", 7], "delta=7.0 < 1"),
        (["--delta", 0], "0 < delta"),
        (["--delta", "nan"], "delta=nan"),
        (["--epsilon", -1], "epsilon=-1.0 > 0"),
        (["--epsilon", "inf"], "finite"),
        (["--size", 0], "size=0"),
        (["--window", -1], "window"),
        (["--unit", "household"], "user, example, silo"),
        (["--neighbours", "any"], "add/remove, replace-one"),
        (["--reviewer", "nonsense"], "reviewer"),  # nobody could ever change it again
    ],
)
def test_a_budget_that_means_nothing_is_refused_and_no_ledger_is_made(tmp_path, options, told):
    path = tmp_path / "books" / "ledger.sqlite"
    failed(2, told, "ledger", "init", *BUDGET, *options, "--ledger", path)
    assert not path.parent.exists()


# show


def test_show_tells_what_was_spent_by_whom_on_what_and_what_is_left(book, recipe, out, paused):
    run(recipe, out, book, "--why", "to look")
    told = answer("ledger", "show", "--ledger", book)
    assert told.keys() == {"populations", "runs", "entries", "head", "witness"}
    (population,) = told["populations"]
    assert population.keys() == {"population", "budget", "spent", "spent_and_reserved", "runs", "filter"}
    assert (population["population"], population["spent"], population["runs"]) == ("digits", None, 1)
    assert population["budget"]["epsilon"] == 10
    assert population["spent_and_reserved"].keys() >= GUARANTEE
    assert 7.9 < population["spent_and_reserved"]["epsilon"] <= 8
    (found,) = told["runs"]
    assert (found["why"], found["population"], found["simulated"], found["closed"]) == (
        "to look",
        "digits",
        False,
        False,
    )
    assert found["recipe"] == Recipe.open(recipe).digest
    assert [stage["stage"] for stage in found["stages"]] == ["count", "train"]
    assert (told["entries"], told["head"]) == Ledger(book).head()
    text = fedlens("ledger", "show", "--ledger", book).out
    assert "digits: budget epsilon 10 at delta 1e-05 per user (add/remove)" in text
    assert "spent epsilon 0; with what is reserved 8.00; 1 run(s)" in text
    assert "0 of 1 count, 0 of 2 train releases, open; reserved by" in text
    assert ", to look" in text


def test_show_of_an_empty_ledger_says_so(address):
    Ledger(address)
    told = {"populations": [], "runs": [], "entries": 0, "head": "", "witness": None}
    assert answer("ledger", "show", "--ledger", address) == told
    assert fedlens("ledger", "show", "--ledger", address).out.startswith("0 entries")


def test_show_marks_simulated_runs_as_free(book, recipe, out, paused):
    run(recipe, out, book, "--simulate", 0)
    (population,) = answer("ledger", "show", "--ledger", book)["populations"]
    assert (population["spent_and_reserved"], population["runs"]) == (None, 0)
    assert "SIMULATED (free)" in fedlens("ledger", "show", "--ledger", book).out


def test_show_tells_runs_of_different_kinds_apart(address, recipe, out, paused):
    for sets in ([], ["--set", "privacy.unit=example"], ["--set", "privacy.neighbours=replace-one"]):
        assert run(recipe, out, address, *sets).code == 130
    told = answer("ledger", "show", "--ledger", address)["populations"]
    kinds = {(one["spent_and_reserved"]["unit"], one["spent_and_reserved"]["neighbours"]) for one in told}
    assert kinds == {("user", "add/remove"), ("example", "add/remove"), ("user", "replace-one")}
    assert fedlens("ledger", "show", "--ledger", address).code == 0


@pytest.mark.parametrize(
    "command",
    [["show"], ["review"], ["verify"], ["approve", "1"], ["reject", "1"], ["close", "run"], ["request", "{recipe}"]],
    ids=lambda words: words[0],
)
def test_a_ledger_that_is_not_there_is_not_made_by_accident(tmp_path, recipe, command):
    path = tmp_path / "absent" / "ledger.sqlite"
    words = [word.format(recipe=recipe) for word in command]
    failed(2, "fedlens ledger init makes one", "ledger", *words, "--ledger", path)
    failed(2, "fedlens ledger init makes one", "plan", recipe, "--ledger", path)
    assert not path.parent.exists()


# Over budget: exit code 3, and what would fit


def test_the_second_run_is_over_the_budget_and_leaves_nothing_behind(book, recipe, out):
    assert run(recipe, out, book).code == 0
    before, folders = entries(book), sorted(out.iterdir())
    done = run(recipe, out, book)
    assert (done.code, done.out) == (3, "")
    first, second, *alternatives = done.err.splitlines()
    assert re.match(r"This run would take 'digits' to epsilon 12\.\d\d at delta 1e-05; its budget is 10,", first)
    assert first.endswith("8.00 is spent or reserved.")
    assert second == "It would fit with"
    assert alternatives
    assert (entries(book), sorted(out.iterdir())) == (before, folders)
    assert answer("ledger", "verify", "--ledger", book, "--runs", out)["models"] == 1


RECIPES = {
    "by epsilon": (TINY, 10),
    "by noise": (TINY.replace("epsilon = 8.0", "noise_multiplier = 0.8"), 10),
    "two models": (PAIR, 10),
    "replace-one": (TINY.replace("clip = 0.1", "clip = 0.1\nneighbours = 'replace-one'"), 10),
    "many rounds": (TINY.replace("rounds = 2", "rounds = 200"), 9),
    "poisson": (
        TINY.replace("clip = 0.1", "clip = 0.1\nsampling = 'poisson'\nrate = 0.5\ncapped = false").replace(
            "rounds = 2", "rounds = 20"
        ),
        10,
    ),
    "taking turns": (
        TINY.replace("clip = 0.1", "clip = 0.1\nsampling = 'balanced'\ngroups = 4").replace(
            "rounds = 2", "rounds = 40"
        ),
        10,
    ),
    "almost nothing left": (TINY.replace("epsilon = 8.0", "epsilon = 9.9"), 10),
}


@pytest.mark.parametrize("name", RECIPES)
def test_every_alternative_that_is_named_is_accepted_when_it_is_applied(tmp_path, out, paused, name):
    text, budget = RECIPES[name]
    path, address = written(tmp_path, text), tmp_path / "ledger.sqlite"
    kind = ["--neighbours", "replace-one"] if "replace-one" in text else []
    answer("ledger", "init", "--population", "digits", "--epsilon", budget, "--delta", 1e-5, *kind, "--ledger", address)
    assert run(path, out, address).code == 130
    refused = run(path, out, address)
    assert refused.code == 3
    lines = refused.err.splitlines()[1:]
    if name == "almost nothing left":
        assert lines in (["Nothing like it fits into what is left of the budget."], ["It would fit with", *lines[1:]])
    else:
        assert lines[0] == "It would fit with"
        assert len(lines) > 1
    forecast = answer("plan", path, "--ledger", address)
    assert forecast["fits"] is False
    printed = [shlex.split(line.partition(": --set ")[2].join(["--set ", ""])) for line in lines[1:]]
    assert printed == [
        [word for change in found["set"] for word in ("--set", change)] for found in forecast["alternatives"]
    ]
    for sets in printed:
        assert answer("plan", path, *sets, "--ledger", address)["fits"] is True
        done = run(path, out, address, *sets)
        assert done.code == 130, (sets, done.err)
        name = re.search(r"--resume \S*/([\w-]+)", done.err)[1]
        assert answer("ledger", "close", name, "--ledger", address)["closed"]
    assert answer("ledger", "verify", "--ledger", address, "--runs", out)["problems"] == []


def test_alternatives_are_as_large_as_they_may_be(book, recipe, out, paused):
    """A run with a little more than what was named does not fit."""
    run(recipe, out, book)
    for found in answer("plan", recipe, "--ledger", book)["alternatives"]:
        epsilon = float(next(change for change in found["set"] if "epsilon" in change).partition("=")[2])
        more = [change for change in found["set"] if "epsilon" not in change] + [f"privacy.epsilon={epsilon * 1.05}"]
        sets = [word for change in more for word in ("--set", change)]
        assert answer("plan", recipe, *sets, "--ledger", book)["fits"] is False


def test_a_run_that_returned_its_rest_makes_room_for_another(book, recipe, out, paused):
    done = run(recipe, out, book)
    name = pathlib.Path(done.err.partition("--resume ")[2].strip()).name
    assert run(recipe, out, book).code == 3
    assert answer("ledger", "close", name, "--ledger", book) == {"closed": [f"{name}/all"]}
    assert run(recipe, out, book).code == 130


def test_a_run_whose_recipe_counts_otherwise_than_the_budget_is_a_mistake_of_the_caller(book, recipe, out):
    before = entries(book)
    sets = ["--set", "privacy.unit=example"]
    failed(2, r"per user \(add/remove\)", "run", recipe, *sets, "--out", out, "--ledger", book)
    assert (entries(book), out.exists()) == (before, False)


def test_a_plan_that_would_be_refused_does_not_say_that_it_fits(book, recipe):
    done = fedlens("plan", recipe, "--set", "privacy.unit=example", "--ledger", book, "--json")
    assert done.code == 2 or json.loads(done.out)["fits"] is False


def test_a_simulated_run_is_never_over_budget(book, recipe, out, paused):
    for _ in range(3):
        assert run(recipe, out, book, "--simulate", 0).code == 130


# Reviews: exit code 4


@pytest.fixture
def guarded(address):
    answer("ledger", "init", *BUDGET, "--review", "--ledger", address)
    return address


def unapproved(told, recipe, out, book, *options):
    before = entries(book)
    failed(4, told, "run", recipe, "--out", out, "--ledger", book, *options)
    assert (entries(book), out.exists()) == (before, False)


def test_request_review_approve_run(guarded, recipe, out):
    unapproved("no request for it", recipe, out, guarded)
    told = answer("ledger", "request", recipe, "--ledger", guarded, "--who", "Ada", "--why", "to look")
    assert (told["number"], told["recipe"], told["fits"]) == (2, Recipe.open(recipe).digest, True)
    unapproved("request 2 waits for review", recipe, out, guarded)
    (request,) = answer("ledger", "review", "--ledger", guarded)["requests"]
    assert (request["number"], request["name"], request["who"], request["why"]) == (2, "tiny", "Ada", "to look")
    assert (request["verdict"], request["population"]) == ("waiting", "digits")
    assert [asked["stage"] for asked in request["asked"]] == ["count", "train"]
    assert answer("ledger", "approve", 2, "--note", "go", "--who", "Ben", "--ledger", guarded) == {
        "number": 2,
        "approved": True,
        "fits": True,
    }
    listed = fedlens("ledger", "review", "--ledger", guarded).out
    assert listed.splitlines()[0] == "2: tiny on digits by Ada: approved by Ben (go); why: to look"
    assert run(recipe, out, guarded).code == 0
    assert answer("ledger", "verify", "--ledger", guarded, "--runs", out)["problems"] == []


def test_a_rejected_request_cannot_be_run_and_the_note_tells_why(guarded, recipe, out):
    answer("ledger", "request", recipe, "--ledger", guarded)
    told = answer("ledger", "reject", 2, "--note", "too dear", "--ledger", guarded)
    assert (told["number"], told["approved"]) == (2, False)
    unapproved("request 2 was rejected: too dear", recipe, out, guarded)
    failed(2, "reviewed already", "ledger", "approve", 2, "--ledger", guarded)


def test_a_recipe_that_was_edited_since_cannot_be_run(guarded, recipe, out):
    answer("ledger", "request", recipe, "--ledger", guarded)
    answer("ledger", "approve", 2, "--ledger", guarded)
    unapproved("request 2: it was edited since", recipe, out, guarded, "--set", "privacy.rounds=3")
    unapproved("request 2: it was edited since", recipe, out, guarded, "--set", "seed=7")


def test_an_approval_is_for_one_run(guarded, recipe, out, paused):
    answer("ledger", "request", recipe, "--set", "privacy.epsilon=4", "--ledger", guarded)
    answer("ledger", "approve", 2, "--ledger", guarded)
    assert run(recipe, out, guarded, "--set", "privacy.epsilon=4").code == 130
    before = entries(guarded)
    done = run(recipe, out, guarded, "--set", "privacy.epsilon=4")
    assert done.code == 4
    assert "used by another run" in done.err
    assert entries(guarded) == before


def test_an_approved_run_that_was_interrupted_is_resumed(guarded, recipe, out, monkeypatch):
    answer("ledger", "request", recipe, "--ledger", guarded)
    answer("ledger", "approve", 2, "--ledger", guarded)
    sentence = stopped_after_a_round(monkeypatch, "run", recipe, "--out", out, "--ledger", guarded)
    assert fedlens(*shlex.split(sentence)[1:]).code == 0
    assert raw(guarded, "select count(*) from entries where kind = 'release'") == [(3,)]


@pytest.mark.parametrize("number", [1, 99, 0, 10**30])
def test_a_number_that_is_no_request_is_a_mistake_of_the_caller(guarded, number):
    for verb in ("approve", "reject"):
        failed(2, "number of a request", "ledger", verb, number, "--ledger", guarded)
    assert entries(guarded) == 1


def test_no_requests_are_told_as_such(guarded):
    assert fedlens("ledger", "review", "--ledger", guarded).out == "No requests.\n"
    assert answer("ledger", "review", "--ledger", guarded) == {"requests": []}


# Keys


def test_a_key_is_made_for_its_owner_only_and_never_overwritten(tmp_path):
    path = tmp_path / "mine.pem"
    told = answer("ledger", "key", "--to", path)
    assert told["file"] == str(path)
    assert re.fullmatch("[0-9a-f]{64}", told["public"])
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    before = path.read_bytes()
    failed(2, "overwritten", "ledger", "key", "--to", path)
    assert path.read_bytes() == before
    assert re.fullmatch("[0-9a-f]{64}\n", fedlens("ledger", "key", "--to", tmp_path / "other.pem").out)


def test_a_budget_with_reviewers_is_theirs(address, tmp_path, recipe, out):
    mine, other = (answer("ledger", "key", "--to", tmp_path / f"{name}.pem") for name in ("mine", "other"))
    init = ["ledger", "init", *BUDGET, "--ledger", address]
    assert answer(*init, "--reviewer", mine["public"])["review"] is True
    answer("ledger", "request", recipe, "--ledger", address)
    before = entries(address)
    for key in ([], ["--key", other["file"]]):
        failed(4, "signed by one of the reviewers", *init, *key)
        failed(4, "signed by one of the reviewers", "ledger", "approve", 2, "--ledger", address, *key)
        failed(4, "signed by one of the reviewers", "ledger", "reject", 2, "--ledger", address, *key)
    assert entries(address) == before
    answer("ledger", "approve", 2, "--ledger", address, "--key", mine["file"])
    assert run(recipe, out, address).code == 0
    answer(*init, "--reviewer", mine["public"], "--key", mine["file"])
    assert answer("ledger", "verify", "--ledger", address, "--runs", out)["problems"] == []


@pytest.mark.parametrize("content", [b"", b"no key", b"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"])
def test_a_file_that_is_no_key_is_refused(book, tmp_path, content):
    (tmp_path / "key.pem").write_bytes(content)
    before = entries(book)
    failed(2, "Ed25519", "ledger", "init", *BUDGET, "--ledger", book, "--key", tmp_path / "key.pem")
    assert entries(book) == before


def test_a_key_that_is_not_there_is_named(book, tmp_path):
    assert "absent.pem" in failed(
        1, "No such file", "ledger", "init", *BUDGET, "--ledger", book, "--key", tmp_path / "absent.pem"
    )


# close


def test_close_of_an_unknown_run_is_a_mistake_of_the_caller(book):
    failed(2, "'nobody'", "ledger", "close", "nobody", "--ledger", book)
    assert entries(book) == 1


def test_close_returns_all_parts_of_a_run(tmp_path, book, out, paused):
    done = run(written(tmp_path, PAIR), out, book)
    name = pathlib.Path(done.err.partition("--resume ")[2].strip()).name
    assert answer("ledger", "close", name, "--ledger", book)["closed"] == [f"{name}/low", f"{name}/high"]
    (population,) = answer("ledger", "show", "--ledger", book)["populations"]
    assert population["spent_and_reserved"] is None
    before = entries(book)
    assert fedlens("ledger", "close", name, "--ledger", book).out == f"Closed: {name}/low, {name}/high\n"
    assert entries(book) == before


def test_close_deletes_the_secret_wherever_the_ledger_is(book, recipe, out, monkeypatch):
    """Nobody will go on with the run, and whoever found it could take the noise away."""
    sentence = stopped_after_a_round(monkeypatch, "run", recipe, "--out", out, "--ledger", book)
    secrets = pins.folder_of(str(book)) / ".private"
    assert sorted({path.suffixes[-2] for path in secrets.iterdir()}) == ["._data", ".all"]
    answer("ledger", "close", pathlib.Path(shlex.split(sentence)[-1]).name, "--ledger", book, "--out", out)
    assert list(secrets.iterdir()) == []


def test_close_of_one_part_leaves_the_others(tmp_path, book, out, paused):
    done = run(written(tmp_path, PAIR), out, book)
    name = pathlib.Path(done.err.partition("--resume ")[2].strip()).name
    assert answer("ledger", "close", f"{name}/low", "--ledger", book)["closed"] == [f"{name}/low"]


def test_a_closed_run_is_not_resumed(book, recipe, out, monkeypatch):
    sentence = stopped_after_a_round(monkeypatch, "run", recipe, "--out", out, "--ledger", book)
    folder = pathlib.Path(shlex.split(sentence)[-1])
    answer("ledger", "close", folder.name, "--ledger", book)
    before = raw(book, "select count(*) from entries where kind = 'release'")
    done = fedlens(*shlex.split(sentence)[1:])
    assert raw(book, "select count(*) from entries where kind = 'release'") == before
    assert done.code == 3
    assert "is closed" in done.err


# verify: exit code 1


def test_verify_of_a_whole_ledger_prints_the_head_to_write_down(book, recipe, out):
    assert run(recipe, out, book).code == 0
    told = answer("ledger", "verify", "--ledger", book, "--runs", out)
    number, head = Ledger(book).head()
    known = {"problems": [], "entries": number, "head": head, "models": 1}
    assert told == known | {"of_other_ledgers": 0, "witness": None}
    text = fedlens("ledger", "verify", "--ledger", book, "--runs", out).out
    assert text == f"ok: {number} entries, 1 models, head {number}:{head}\n"
    written_down = text.rpartition(" ")[2].strip()
    assert answer("ledger", "verify", "--ledger", book, "--head", written_down)["problems"] == []


def test_verify_of_an_edited_ledger_fails_and_names_the_entry(book):
    unguarded(book)
    edit(book, 1, body=rows(book)[0].body.replace("10.0", "99.0"))
    done = fedlens("ledger", "verify", "--ledger", book)
    assert (done.code, done.out, done.err) == (1, "entry 1 was edited, or is not in its place\n", "")
    done = fedlens("ledger", "verify", "--ledger", book, "--json")
    assert (done.code, json.loads(done.out)["problems"]) == (1, ["entry 1 was edited, or is not in its place"])


def test_verify_finds_a_model_that_was_exchanged(book, recipe, out):
    assert run(recipe, out, book).code == 0
    (model,) = out.glob("*/all/model.safetensors")
    content = model.read_bytes()
    model.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    done = fedlens("ledger", "verify", "--ledger", book, "--runs", out)
    assert done.code == 1
    assert re.search(r"the model of 'tiny-\w+/all' is not the one that entry \d+ names", done.out)
    model.write_bytes(b"nothing like a model")
    assert fedlens("ledger", "verify", "--ledger", book, "--runs", out).code == 1


def test_verify_looks_beside_a_file_for_models(tmp_path, recipe):
    assert fedlens("run", recipe, "--out", tmp_path / "runs").code == 0
    assert answer("ledger", "verify", "--ledger", tmp_path / "runs" / "ledger.sqlite")["models"] == 1


def test_verify_looks_for_models_in_the_usual_place_when_the_ledger_is_a_database(
    postgres, tmp_path, recipe, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    address = postgres.empty()
    assert fedlens("run", recipe, "--ledger", address).code == 0
    assert answer("ledger", "verify", "--ledger", address)["models"] == 1


# Once wrong (cli.py, ledger_verify): a folder that is not there holds no models, and all is well.
def test_models_that_should_be_checked_must_be_there(book, tmp_path):
    failed(2, "absent", "ledger", "verify", "--ledger", book, "--runs", tmp_path / "absent")


def test_models_of_another_ledger_are_no_problem_of_this_one(tmp_path, recipe, out):
    assert run(recipe, out, tmp_path / "others.sqlite").code == 0
    assert fedlens("run", recipe, "--out", out).code == 0
    told = answer("ledger", "verify", "--ledger", out / "ledger.sqlite")
    assert (told["problems"], told["models"]) == ([], 1)


def test_a_ledger_cut_off_behind_a_model_is_found_by_the_head_in_the_model(book, recipe, out):
    assert run(recipe, out, book).code == 0
    found = rows(book)
    unguarded(book)
    kept = [entry for entry in found if entry.kind != "close"]
    raw(book, "delete from entries where id >= ?", (len(kept),))
    raw(book, "update about set entries = ?, head = ?", (len(kept) - 1, kept[-2].hash))
    done = fedlens("ledger", "verify", "--ledger", book, "--runs", out)
    assert done.code == 1
    assert "written down elsewhere" in done.out


def test_a_head_that_does_not_fit_fails_and_one_that_is_none_is_a_mistake(book):
    done = fedlens("ledger", "verify", "--ledger", book, "--head", f"1:{'0' * 64}")
    assert (done.code, done.out) == (1, "entry 1 is not the one that was written down elsewhere\n")
    done = fedlens("ledger", "verify", "--ledger", book, "--head", f"7:{'0' * 64}")
    assert (done.code, done.out) == (1, "entry 7, written down elsewhere, is missing\n")
    for bad in ("abc", "1", "x:abc", ":", "-1:abc"):
        failed(2, "NUMBER:HASH", "ledger", "verify", "--ledger", book, "--head", bad)


def test_closing_a_run_that_was_given_up_is_no_reason_for_an_alarm(tmp_path, book, out, monkeypatch):
    interrupted(monkeypatch, runs.Run, "_trained", when=lambda run, group, *others: group == "high")
    done = run(written(tmp_path, PAIR), out, book)
    assert done.code == 130
    assert list(out.glob("*/low/model.safetensors"))
    answer("ledger", "close", next(out.glob("tiny-*")).name, "--ledger", book)
    assert fedlens("ledger", "verify", "--ledger", book, "--runs", out).out.startswith("ok")


# Ledgers that cannot be used: exit code 1 or 2, one line, nothing written


def test_a_file_that_is_no_ledger_is_a_clear_error(tmp_path, recipe, out):
    path = tmp_path / "ledger.sqlite"
    path.write_text("This is no database, and long enough to be read as the header of one." * 9)
    before = path.read_bytes()
    for command in (["ledger", "show"], ["ledger", "init", *BUDGET], ["plan", recipe], ["run", recipe, "--out", out]):
        failed(1, "Expected a writable ledger", *command, "--ledger", path)
    assert path.read_bytes() == before
    assert not out.exists()


# Once wrong (storage.py, opened): an empty address (--ledger "$UNSET") was memory: all is well, nothing is kept.
@pytest.mark.parametrize("command", ["show", "init", "verify", "review"])
def test_an_empty_address_is_a_mistake_of_the_caller(tmp_path, monkeypatch, command):
    monkeypatch.chdir(tmp_path)
    failed(2, "ledger", "ledger", command, *(BUDGET if command == "init" else []), "--ledger", "")


def test_a_ledger_of_a_newer_version_is_a_clear_error(book, recipe, out):
    raw(book, "update about set version = 9")
    before = entries(book)
    for command in (["ledger", "show"], ["ledger", "init", *BUDGET], ["plan", recipe], ["run", recipe, "--out", out]):
        failed(2, "version 3, found 9.*newer", *command, "--ledger", book)
    assert (entries(book), out.exists()) == (before, False)


@pytest.mark.parametrize(
    "address", ["postgresql://ada:swordfish@nowhere.invalid/x", "postgresql://nowhere.invalid/x?password=swordfish"]
)
def test_a_password_in_the_address_is_refused_and_not_repeated(recipe, out, address):
    for command in (["ledger", "show"], ["plan", recipe], ["run", recipe, "--out", out]):
        assert "swordfish" not in failed(2, "no password", *command, "--ledger", address)
    assert not out.exists()


# plan


def test_plan_tells_how_it_stands_before_and_after(book, recipe, out, paused):
    told = answer("plan", recipe, "--ledger", book)
    assert told["guarantee"].keys() >= GUARANTEE
    assert (told["fits"], told["alternatives"]) == (True, [])
    assert told["ledger"]["population"] == "digits"
    assert told["ledger"]["spent_and_reserved"] is None
    assert told["after"]["epsilon"] == pytest.approx(told["guarantee"]["epsilon"], rel=1e-3)
    assert 1 <= told["runs_left"] < 2
    text = fedlens("plan", recipe, "--ledger", book).out
    assert "population 'digits' is at epsilon 0 and would be at 8.00; budget epsilon 10" in text
    assert re.search(r"^1\.\d of a run like this is left$", text, re.MULTILINE)
    run(recipe, out, book)
    told = answer("plan", recipe, "--ledger", book)
    assert (told["fits"], told["ledger"]["runs"]) == (False, 1)
    assert told["runs_left"] < 1
    assert told["alternatives"][0].keys() == {"text", "set"}
    text = fedlens("plan", recipe, "--ledger", book).out
    assert "is at epsilon 8.00 and would be at 12." in text
    assert "It would fit with" in text
    assert "0." in re.search(r"^(\S+) of a run like this is left$", text, re.MULTILINE)[1]


def test_plan_changes_nothing(book, recipe):
    before = rows(book)
    fedlens("plan", recipe, "--ledger", book)
    assert rows(book) == before


def test_plan_finds_the_usual_ledger_by_itself(tmp_path, recipe, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert answer("plan", recipe)["ledger"] is None
    assert not (tmp_path / "runs").exists()
    answer("ledger", "init", *BUDGET)
    assert answer("plan", recipe)["ledger"]["budget"]["epsilon"] == 10


def test_plan_of_a_population_without_a_budget_says_so(address, recipe):
    Ledger(address)
    told = answer("plan", recipe, "--ledger", address)
    assert (told["fits"], told["runs_left"], told["ledger"]["budget"]) == (True, None, None)
    assert "it has no budget (fedlens data register, ledger init)" in fedlens("plan", recipe, "--ledger", address).out


def test_plan_is_calibrated_to_a_target(tmp_path):
    for text in (TINY, TINY.replace("epsilon = 8.0", "noise_multiplier = 1.0")):
        told = answer("plan", written(tmp_path, text), "--target-eps", 3.0)
        assert 2.9 < told["guarantee"]["epsilon"] <= 3.0
        assert told["train"]["noise_multiplier"] > 1.0


@pytest.mark.parametrize("target", ["0", "-1", "nan", "inf", "0.001", "much"])
def test_a_target_out_of_reach_is_a_mistake_of_the_caller(recipe, target):
    failed(2, "(?i)epsilon|--target-eps", "plan", recipe, "--target-eps", target)


def test_a_sweep_prices_every_combination(tmp_path):
    path = written(tmp_path, TINY.replace("epsilon = 8.0", "noise_multiplier = 2.0"))
    cells = answer("plan", path, "--sweep", "rounds=2,8,noise_multiplier=1.0,3.0")["sweep"]
    assert [(cell["rounds"], cell["noise_multiplier"]) for cell in cells] == [(2, 1.0), (2, 3.0), (8, 1.0), (8, 3.0)]
    prices = {(cell["rounds"], cell["noise_multiplier"]): cell["epsilon"] for cell in cells}
    for (rounds, noise), price in prices.items():
        sets = ["--set", f"privacy.rounds={rounds}", "--set", f"privacy.noise_multiplier={noise}"]
        assert answer("plan", path, *sets)["guarantee"]["epsilon"] == pytest.approx(price)
    assert prices[2, 3.0] < prices[8, 3.0] < prices[8, 1.0]
    lines = fedlens("plan", path, "--sweep", "rounds=2,8").out.splitlines()
    assert lines[0].split() == ["rounds", "epsilon", "noise_multiplier", "noise_to_signal"]
    assert [line.split()[0] for line in lines[1:]] == ["2", "8"]


def test_a_sweep_over_epsilon_tells_the_noise_it_takes(recipe):
    cells = answer("plan", recipe, "--sweep", "epsilon=2,8")["sweep"]
    assert [cell["epsilon"] <= wanted for cell, wanted in zip(cells, (2, 8), strict=True)] == [True, True]
    assert cells[0]["noise_multiplier"] > cells[1]["noise_multiplier"]


def test_a_sweep_never_rounds_an_epsilon_down(tmp_path):
    path, axes = written(tmp_path, TINY.replace("epsilon = 8.0", "noise_multiplier = 2.0")), "rounds=2,3,5,8,13,21,34"
    exact = [cell["epsilon"] for cell in answer("plan", path, "--sweep", axes)["sweep"]]
    printed = [float(line.split()[1]) for line in fedlens("plan", path, "--sweep", axes).out.splitlines()[1:]]
    assert all(0 <= told - true < 2e-3 * true for told, true in zip(printed, exact, strict=True))


@pytest.mark.parametrize("axes", ["rounds", "", "rounds=", "=3", "rounds=2,,3", "rounds=two", "nonsense=1", "rounds=0"])
def test_a_sweep_that_means_nothing_is_a_mistake_of_the_caller(recipe, axes):
    failed(2, "(?i)--sweep|problem", "plan", recipe, "--sweep", axes)


@pytest.mark.parametrize("paper", ["augenstein2020", "wang2021"])
def test_a_published_epsilon_is_shown_beside_what_is_valid_and_unlocks_nothing(book, recipe, out, paused, paper):
    plain = answer("plan", recipe, "--ledger", book)
    told = answer("plan", recipe, "--ledger", book, "--published", paper)
    figure = told["published"]
    assert figure.keys() == {"paper", "epsilon", "delta", "method", "compliant", "valid_epsilon"}
    assert (figure["paper"], figure["compliant"]) == (paper, False)
    assert {key: told[key] for key in ("guarantee", "after", "fits")} == {
        key: plain[key] for key in ("guarantee", "after", "fits")
    }
    assert "NOT COMPLIANT" in fedlens("plan", recipe, "--published", paper).out


# Once wrong (planning.py, published): JSON knows no infinity, and this one is an internal error.
@pytest.mark.parametrize("paper", ["augenstein2020", "wang2021"])
def test_a_published_epsilon_may_be_infinite(tmp_path, paper):
    path = written(tmp_path, TINY.replace("epsilon = 8.0", "noise_multiplier = 0.0"))
    figure = answer("plan", path, "--published", paper)["published"]
    assert (figure["epsilon"], figure["valid_epsilon"]) == ("infinity", "infinity")


def test_an_unknown_paper_is_a_mistake_of_the_caller(recipe):
    failed(2, "augenstein2020", "plan", recipe, "--published", "nobody1999")


# Nothing about the people in the data, and nothing about the machine


def test_neither_the_ledger_nor_what_is_said_about_it_holds_an_id_a_count_or_a_path(address, tmp_path, out):
    rng = np.random.default_rng(0)
    users = np.repeat(int(SECRET) + np.arange(61), 7)
    np.savez(
        tmp_path / "crowd.npz",
        x=rng.integers(0, 256, (427, 8, 8), dtype=np.uint8),
        y=np.zeros(427, int),
        user=users,
    )
    text = TINY.replace('source = "digits"\ndeal_to = 30', f'source = "npz"\npath = "{tmp_path}/crowd.npz"')
    text = text.replace("population = 40", "population = 90")
    path = written(tmp_path, text)
    said = []
    for command in (
        ["data", "register", "crowd.npz", tmp_path / "crowd.npz", "--population", 90],
        ["ledger", "init", "--population", "crowd.npz", "--epsilon", 10, "--delta", 1e-5, "--review"],
        ["ledger", "request", path],
        ["ledger", "approve", 3],
        ["run", path, "--out", out],
        ["run", path, "--out", out],
        ["ledger", "show"],
        ["ledger", "show", "--json"],
        ["ledger", "review", "--json"],
        ["ledger", "verify", "--runs", out, "--json"],
        ["plan", path],
    ):
        done = fedlens(*command, "--ledger", address)
        said.append(done.err + ("" if command[0] == "run" else done.out))
        assert done.code in (0, 3, 4), done.err
    held = " ".join(str(entry) for entry in rows(address))
    numbers = re.compile(r"(?<![\w.:-])(61|427)(?![\w.:+-])")
    for where in (held, " ".join(said)):
        assert SECRET[:6] not in where
        assert str(tmp_path) not in where
        assert not numbers.search(where)
    if not is_remote(address):
        assert SECRET[:6].encode() not in pathlib.Path(address).read_bytes()
