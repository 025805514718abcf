"""The owner's side: what only they may say, and every way around it that was tried."""

import json
import os
import re
import shutil
import sqlite3

import numpy as np
import pytest
import torch
import toys
from command_line import fedlens, interrupted, run_folder
from toy_images import ALL, BOTH, EACH, EXAMPLES, ROWS, SECRET, SIDE, USERS, classifier, columns, written
from toy_texts import lines

from fedlens.core import pins
from fedlens.data.population import Population
from fedlens.ledger import Ledger
from fedlens.media.text.public import sentences_of
from fedlens.models.primary import open_primary
from fedlens.owner import prints
from fedlens.owner.folder import Bounds, Owner
from fedlens.owner.registration import Policy
from fedlens.recipes.recipe import Recipe
from fedlens.recipes.tables import Data
from fedlens.runs import preparation
from fedlens.runs.folder import FolderKeeper

NAMED = re.compile(r'source = .*\npath = .*\nname = "crowd"\n')


steady = toys.steady()


def ledger(folder):
    return "--ledger", folder / "out" / "ledger.sqlite"


def register(folder, *options, name="crowd", path="d.npz"):
    done = fedlens("data", "register", name, folder / path, "--population", 60, *options, *ledger(folder))
    assert done.code == 0, done.err
    return done


def run(folder, *sets, more=()):
    changes = [word for change in sets for word in ("--set", change)]
    return fedlens("run", folder / "recipe.toml", "--out", folder / "out", *changes, *more)


def spent(folder, name="crowd"):
    shown = json.loads(fedlens("ledger", "show", *ledger(folder), "--json").out)
    found = [row["spent"]["epsilon"] for row in shown["populations"] if row["population"] == name and row["spent"]]
    return found[0] if found else 0


def by_name(folder):
    """The recipe, which names its population and nothing else about it."""
    text = (folder / "recipe.toml").read_text()
    (folder / "recipe.toml").write_text(NAMED.sub('population = "crowd"\n', text))
    return folder


def refused(done, *told, code=2):
    assert done.code == code, (done.code, done.err)
    assert all(words in done.err for words in told), done.err
    assert SECRET not in done.err + done.out


# Registering


def test_a_recipe_names_a_population_and_its_owner_says_the_rest(tmp_path):
    by_name(written(tmp_path, BOTH))
    refused(run(tmp_path), "'crowd' is none here")
    register(tmp_path)
    assert run(tmp_path).code == 0
    kept = (run_folder(tmp_path) / "recipe.toml").read_text()
    assert "d.npz" not in kept
    assert 'population = "crowd"' in kept


@pytest.mark.parametrize("more", ['users = "user"', 'path = "x.npz"\nsource = "npz"', 'labels = "z"'])
def test_a_recipe_that_names_a_population_says_nothing_else_about_it(tmp_path, more):
    by_name(written(tmp_path, ALL, more=more))
    register(tmp_path)
    done = run(tmp_path)
    assert done.code == (0 if "user" in more else 2)  # to repeat a default does no harm
    assert done.code == 0 or "its owner has said" in done.err


def test_what_the_owner_says_is_for_the_owner_alone(tmp_path):
    register(written(tmp_path))
    folder = tmp_path / "out" / ".owner"
    assert folder.stat().st_mode & 0o777 == 0o700
    assert {path.name for path in folder.iterdir()} == {"key", "crowd.toml", "crowd.prints.npy", "crowd.seen.json"}
    assert all(path.stat().st_mode & 0o777 == 0o600 for path in folder.iterdir())
    sealed = Ledger(tmp_path / "out" / "ledger.sqlite").registrations()[0].body
    assert "d.npz" not in sealed  # nor where the data lie


def test_the_seal_holds_prints_that_nobody_can_guess_at(tmp_path):
    """The same data, another key: other prints."""
    users = Population.from_arrays("p", {"x": columns()["x"][:, None]}, np.full(USERS, EACH))
    one, other = (prints.of_population(users, key) for key in (bytes(32), bytes([1]) * 32))
    assert one.whole != other.whole
    assert one.shared_with(other) == 0
    assert one.shared_with(one) == 1


def test_a_registration_that_was_edited_is_refused(tmp_path):
    register(by_name(written(tmp_path)))
    file = tmp_path / "out" / ".owner" / "crowd.toml"
    file.write_text(file.read_text().replace("simulation = false", "simulation = true"))
    refused(run(tmp_path, more=("--simulate", 1)), "it was edited")


def test_newcomers_register_in_passing_with_a_sentence(tmp_path):
    done = run(written(tmp_path))
    assert done.code == 0
    assert "registered in passing" in done.err
    assert "at most 60 users" in done.err
    assert "registered in passing" not in run(tmp_path).err  # once


def test_the_owner_is_told_what_is_wrong_with_the_data(tmp_path):
    labels = columns()["y"]
    labels[17] = 12
    written(tmp_path, BOTH, y=labels)
    for options, told in (
        (("--population", 20), "more than population = 20"),
        (("--population", 30, "--exact"), "exact number"),
        (("--population", 60, "--classes", 10), "a label is not below 10"),
        (("--population", 60, "--examples-per-user", 3), "more than examples_per_user = 3"),
    ):
        refused(fedlens("data", "register", "crowd", tmp_path / "d.npz", *options, *ledger(tmp_path)), told)
    assert Ledger(tmp_path / "out" / "ledger.sqlite").registrations() == []


SENSELESS = {
    "a unit": ("crowd", "--population", 60, "--unit", "person"),
    "a name": ("../crowd", "--population", 60),
    "no bound": ("crowd",),
    "a policy": ("crowd", "--population", 60, "--algorithms", "guessing"),
    "an allowance": ("crowd", "--population", 60, "--allow", "everything"),
    "half a budget": ("crowd", "--population", 60, "--epsilon", 3),
    "an epsilon": ("crowd", "--population", 60, "--largest-epsilon", -1),
}


@pytest.mark.parametrize("what", SENSELESS)
def test_what_makes_no_sense_is_not_registered(tmp_path, what):
    name, *options = SENSELESS[what]
    written(tmp_path)
    refused(fedlens("data", "register", name, tmp_path / "d.npz", *options, *ledger(tmp_path)), "Expected")
    assert Ledger(tmp_path / "out" / "ledger.sqlite").registrations() == []


def test_registering_sets_a_budget_in_the_same_breath(tmp_path):
    done = register(by_name(written(tmp_path)), "--epsilon", 10, "--delta", 1e-5)
    assert "budget epsilon 10" in done.err
    assert run(tmp_path).code == 0
    refused(run(tmp_path), "its budget is 10", code=3)


def test_a_second_file_of_the_same_people_draws_on_their_budget(tmp_path):
    register(by_name(written(tmp_path)), "--epsilon", 10, "--delta", 1e-5)
    assert run(tmp_path).code == 0
    other = np.random.default_rng(9).integers(0, 256, (ROWS, SIDE, SIDE)).astype(np.uint8)
    np.savez(tmp_path / "later.npz", **columns(x=other))
    register(tmp_path, "--budget", "crowd", name="later", path="later.npz")
    refused(run(tmp_path, "data.population=later"), "its budget is 10", code=3)


def test_a_policy_can_be_changed_and_is_shown(tmp_path):
    register(by_name(written(tmp_path)), "--largest-epsilon", 2)
    refused(run(tmp_path), "at most; this one costs 8.00")
    done = fedlens("data", "policy", "crowd", "--largest-epsilon", 9, *ledger(tmp_path))
    assert done.code == 0
    assert "epsilon at most 9 a run" in fedlens("data", "show", *ledger(tmp_path)).out
    assert run(tmp_path).code == 0


POLICIES = {
    "noise": (("--minimum-noise", 50), "noise multiplier of 50"),
    "algorithm": (("--algorithms", "fedavg"), "fedavg-gan is not allowed"),
    "epsilon": (("--largest-epsilon", 1), "at most; this one costs"),
}


@pytest.mark.parametrize("name", POLICIES)
def test_what_the_policy_does_not_allow_is_refused_before_anything_is_set_aside(tmp_path, name):
    options, told = POLICIES[name]
    register(by_name(written(tmp_path)), *options)
    refused(run(tmp_path), told)
    assert Ledger(tmp_path / "out" / "ledger.sqlite").runs() == []


# A budget is not escaped by another name, path, order or format


@pytest.fixture
def spent_out(tmp_path):
    """A population whose budget has room for one run, which was made."""
    written(tmp_path, rowid=np.arange(ROWS))
    register(tmp_path, "--epsilon", 8, "--delta", 1e-5)
    assert run(tmp_path).code == 0
    return tmp_path


def reordered(folder):
    order = np.random.default_rng(1).permutation(ROWS)
    np.savez(folder / "other.npz", **{name: column[order] for name, column in columns().items()})
    return folder / "other.npz"


def as_floats(folder):
    np.savez(folder / "other.npz", **columns(x=(columns()["x"] / 127.5 - 1).astype(np.float32)))
    return folder / "other.npz"


def linked(folder):
    (folder / "other.npz").symlink_to(folder / "d.npz")
    return folder / "other.npz"


def copied(folder):
    return shutil.copy(folder / "d.npz", folder / "other.npz")


def without_a_row(folder):
    np.savez(folder / "other.npz", **{name: column[1:] for name, column in columns().items()})
    return folder / "other.npz"


@pytest.mark.parametrize("other", [reordered, as_floats, linked, copied])
def test_the_same_data_under_another_name_pay_from_the_same_budget(spent_out, other):
    refused(run(spent_out, f"data.path={other(spent_out)}", "data.name=other"), "its budget is 8", code=3)


def test_the_same_file_under_another_name_pays_from_the_same_budget(spent_out):
    refused(run(spent_out, "data.name=other"), "its budget is 8", code=3)


def test_the_same_data_as_a_folder_pay_from_the_same_budget(spent_out):
    made = columns()
    folder = Population.from_arrays("p", {"x": made["x"][:, None], "y": made["y"]}, np.full(USERS, EACH))
    folder.save(spent_out / "people")
    changes = f"data.path={spent_out / 'people'}", "data.source=population", "data.name=other"
    refused(run(spent_out, *changes), "its budget is 8", code=3)


def test_data_with_a_row_less_are_not_new_data(spent_out):
    refused(run(spent_out, f"data.path={without_a_row(spent_out)}", "data.name=other"), "many examples of 'crowd'")


def test_another_folder_for_runs_is_no_new_budget(spent_out):
    """Another --out has a ledger of its own, which knew nothing."""
    done = fedlens("run", spent_out / "recipe.toml", "--out", spent_out / "elsewhere")
    refused(done, "Expected --ledger", "registered, as 'crowd'")


def test_short_texts_with_a_row_less_are_not_new_data(tmp_path):
    short = [{"user": f"u{user}", "text": [f"ok {user}", f"no {user}"]} for user in range(24)]
    vocabulary = tmp_path / "known.txt"
    vocabulary.write_text("ok\nno\n")
    for name, held in (("d.jsonl", short), ("other.jsonl", short[1:])):
        (tmp_path / name).write_text("".join(f"{json.dumps(line)}\n" for line in held))
    register(tmp_path, "--epsilon", 8, "--delta", 1e-5, path="d.jsonl")
    options = "--epsilon", 1, "--delta", 1e-5, "--population", 60, "--to", tmp_path / "v.txt", *ledger(tmp_path)
    refused(fedlens("vocabulary", "learn", tmp_path / "other.jsonl", *options), "many examples of 'crowd'")


def test_no_words_are_learnt_of_images(tmp_path):
    register(written(tmp_path), "--epsilon", 8, "--delta", 1e-5)
    options = "--epsilon", 1, "--delta", 1e-5, "--population", 60, "--to", tmp_path / "v.txt", *ledger(tmp_path)
    refused(fedlens("vocabulary", "learn", "crowd", *options), "it holds images, which has no words")


def test_other_data_under_a_registered_name_are_refused(spent_out):
    np.savez(spent_out / "other.npz", **columns(x=255 - columns()["x"]))
    refused(run(spent_out, f"data.path={spent_out / 'other.npz'}"), "found others")


def test_a_name_that_a_run_gave_in_passing_is_no_way_around_what_its_owner_says(tmp_path):
    """The owner had tried a run once: by that name there was no budget, also on a pinned machine."""
    written(tmp_path)
    assert run(tmp_path, "data.name=tried").code == 0
    register(tmp_path, "--epsilon", 1, "--delta", 1e-5)
    for changes in ("data={population='tried'}", "data.name=tried"):
        refused(run(tmp_path, changes), "its budget is 1", code=3)
        refused(run(tmp_path, changes, more=("--simulate", 1)), "--simulate is not allowed")


def test_what_was_registered_in_passing_is_not_for_a_pinned_machine(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run(written(tmp_path), "data.name=tried").code == 0
    assert fedlens("data", "pin", *ledger(tmp_path)).code == 0
    refused(run(tmp_path, "data={population='tried'}"), "that its owner has registered")


def test_the_same_data_are_not_registered_with_two_budgets(spent_out):
    again = "data", "register", "again", spent_out / "d.npz", "--population", 60, *ledger(spent_out)
    refused(fedlens(*again, "--epsilon", 8, "--delta", 1e-5), "Expected --budget crowd")
    assert fedlens(*again, "--budget", "crowd").code == 0
    refused(run(by_name(spent_out), "data.population=again"), "its budget is 8", code=3)


def test_a_budget_is_drawn_on_through_others_and_must_be_there(spent_out):
    """october draws on people, november on october: november had no budget at all."""
    for name, seed in (("october", 1), ("november", 2)):
        images = np.random.default_rng(seed).integers(0, 256, (ROWS, SIDE, SIDE)).astype(np.uint8)
        np.savez(spent_out / f"{name}.npz", **columns(x=images))
    register(spent_out, "--budget", "crowd", name="october", path="october.npz")
    register(spent_out, "--budget", "october", name="november", path="november.npz")
    refused(run(by_name(spent_out), "data.population=november"), "its budget is 8", code=3)
    policy = "data", "policy", "november", "--budget", "nobody", *ledger(spent_out)
    refused(fedlens(*policy), "'nobody' has none")


def test_the_largest_epsilon_is_that_of_the_owners_delta(tmp_path):
    """At a delta of 0.3 epsilon 1.00 was admitted, which is 6.77 at the budget's."""
    register(by_name(written(tmp_path)), "--epsilon", 10, "--delta", 1e-5, "--largest-epsilon", 1)
    refused(run(tmp_path, "privacy.epsilon=1.0", "privacy.delta=0.3"), "a run may cost epsilon 1 at most")


def test_a_column_of_rows_does_not_pass_for_users(spent_out):
    """By rows, epsilon 4 was printed where the real users' was 81."""
    refused(run(spent_out, "data.users=rowid"), "Expected the units", "'rowid'")
    refused(run(spent_out, "data.users=rowid", "data.name=other"), "Expected the units")


def test_a_column_of_rows_does_not_pass_for_users_on_a_fresh_budget(tmp_path):
    written(tmp_path, rowid=np.arange(ROWS))
    fedlens("ledger", "init", "--population", "crowd", "--epsilon", 8, "--delta", 1e-5, *ledger(tmp_path))
    refused(run(tmp_path, "data.users=rowid", "privacy.population=100"), "since it has a budget")
    refused(run(tmp_path, "data.name=other"), "Expected the owner to register crowd first")


def test_a_built_in_population_does_not_take_a_registered_name(spent_out):
    changes = "data={source='digits',name='crowd'}", "privacy.population=200"
    refused(run(spent_out, *changes), "another data.name")


def test_a_changed_file_needs_the_owners_word(tmp_path):
    register(by_name(written(tmp_path)), "--epsilon", 20, "--delta", 1e-5)
    assert run(tmp_path).code == 0
    np.savez(tmp_path / "d.npz", **columns(x=255 - columns()["x"]))
    refused(run(tmp_path), "they have changed", "fedlens data register crowd --update")
    done = fedlens("data", "register", "crowd", "--update", *ledger(tmp_path))
    assert done.code == 0
    assert "stays spent" in done.err
    assert run(tmp_path).code == 0
    assert spent(tmp_path) > 8.5


def test_a_file_that_was_only_touched_or_reordered_is_the_same(tmp_path):
    register(by_name(written(tmp_path)))
    reordered(tmp_path).rename(tmp_path / "d.npz")
    assert run(tmp_path).code == 0


def test_other_owners_of_the_same_rows_are_a_change(tmp_path):
    register(by_name(written(tmp_path)))
    np.savez(tmp_path / "d.npz", **columns(user=np.roll(columns()["user"], 1)))
    refused(run(tmp_path), "they have changed")


# What is called public is compared by content


PUBLIC = BOTH.replace('model = "{model}"', 'widths = [4]\nepochs = 1\npublic = {{ path = "{path}" }}')


@pytest.mark.parametrize("other", [reordered, as_floats, linked, copied, without_a_row])
def test_private_images_do_not_pass_for_public_ones(tmp_path, other):
    written(tmp_path)
    path = other(tmp_path)
    written(tmp_path, PUBLIC.format(path=path).replace("{{", "{").replace("}}", "}"))
    refused(run(tmp_path), "it holds private data")
    assert Ledger(tmp_path / "out" / "ledger.sqlite").runs() == []


def test_the_private_file_itself_does_not_pass_for_public(tmp_path):
    written(tmp_path, PUBLIC.format(path=tmp_path / "d.npz"))
    refused(run(tmp_path), "it holds private data")


def test_public_images_with_private_ones_among_them_are_refused(tmp_path):
    mixed = np.random.default_rng(3).integers(0, 256, (200, SIDE, SIDE)).astype(np.uint8)
    mixed[:5] = columns()["x"][:5]
    np.savez(tmp_path / "mixed.npz", x=mixed, y=np.arange(200) % 10)
    written(tmp_path, PUBLIC.format(path=tmp_path / "mixed.npz"))
    refused(run(tmp_path), "it holds private data")


def test_public_images_pass(tmp_path):
    images = np.random.default_rng(3).integers(0, 256, (200, SIDE, SIDE)).astype(np.uint8)
    images[0] = 0  # blank, as one of the users' may be
    np.savez(tmp_path / "public.npz", x=images, y=np.arange(200) % 10)
    written(tmp_path, PUBLIC.format(path=tmp_path / "public.npz"))
    assert run(tmp_path).code == 0


def test_no_classifier_is_trained_on_registered_data(tmp_path):
    register(written(tmp_path))
    to = "--to", tmp_path / "cnn.safetensors"
    done = fedlens("primary", "train", copied(tmp_path), "--network", "small", *to, *ledger(tmp_path))
    refused(done, "it holds private data")
    assert not (tmp_path / "cnn.safetensors").exists()


@pytest.fixture
def talk(tmp_path):
    long = [line | {"text": [f"{text} and so on, said {line['user']}" for text in line["text"]]} for line in lines()]
    (tmp_path / "d.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in long))
    register(tmp_path, name="talk", path="d.jsonl")
    return tmp_path


@pytest.mark.parametrize("form", ["d.jsonl", "copy.jsonl", "plain.txt"])
def test_registered_text_is_not_counted_in_clear(talk, form):
    if form == "copy.jsonl":
        shutil.copy(talk / "d.jsonl", talk / form)
    if form == "plain.txt":
        (talk / form).write_text("\n".join(reversed(sentences_of(talk / "d.jsonl"))))
    done = fedlens("vocabulary", "count", talk / form, "--to", talk / "words.txt", *ledger(talk))
    refused(done, "it holds private data")
    assert not (talk / "words.txt").exists()


def test_public_text_is_counted(talk):
    (talk / "public.txt").write_text("Anybody may read this sentence.\n" * 3)
    done = fedlens("vocabulary", "count", talk / "public.txt", "--to", talk / "words.txt", *ledger(talk))
    assert done.code == 0


# A pinned machine


@pytest.fixture
def pinned(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    register(by_name(written(tmp_path)), "--epsilon", 8, "--delta", 1e-5, "--pin")
    assert pins.found() is not None
    return tmp_path


def test_on_a_pinned_machine_no_other_ledger_counts(pinned):
    assert run(pinned).code == 0
    elsewhere = "run", pinned / "recipe.toml", "--out", pinned / "elsewhere"
    refused(fedlens(*elsewhere), "its budget is 8", code=3)
    refused(fedlens(*elsewhere, "--ledger", pinned / "mine.sqlite"), "pinned")
    refused(
        fedlens("ledger", "init", "--population", "crowd", "--epsilon", 99, "--delta", 1e-5, "--ledger", "x.db"),
        "pinned",
    )
    assert not (pinned / "mine.sqlite").exists()


def test_on_a_pinned_machine_unregistered_data_are_refused_unread(pinned):
    written(pinned)
    (pinned / "d.npz").write_bytes(b"not even data")
    refused(run(pinned, "data.name=other"), "this machine is pinned")


def test_on_a_pinned_machine_no_run_folder_chooses_its_ledger(pinned, monkeypatch):
    monkeypatch.setattr("fedlens.runs.run.Run.executed", lambda *told: (_ for _ in ()).throw(KeyboardInterrupt))
    assert run(pinned).code == 130
    file = run_folder(pinned) / "run.json"
    about = json.loads(file.read_text())
    file.write_text(json.dumps(about | {"ledger": str(pinned / "mine.sqlite")}))
    refused(fedlens("run", "--resume", file.parent), "this machine is pinned")


def test_on_a_pinned_machine_public_is_what_its_owner_declared(pinned):
    """A comparison would tell whether the data hold what is in the file; this tells nothing."""
    images = np.random.default_rng(3).integers(0, 256, (200, SIDE, SIDE)).astype(np.uint8)
    np.savez(pinned / "public.npz", x=images, y=np.arange(200) % 10)
    np.savez(pinned / "guess.npz", x=columns()["x"][:1], y=np.zeros(1, int))
    by_name(written(pinned, PUBLIC.format(path=pinned / "public.npz")))
    told = [run(pinned, f"primary.public.path={pinned / name}").err for name in ("public.npz", "guess.npz")]
    assert told[0].replace("public.npz", "guess.npz") == told[1]
    assert fedlens("data", "public", pinned / "public.npz", *ledger(pinned)).code == 0
    refused(fedlens("data", "public", pinned / "guess.npz", *ledger(pinned)), "it holds private data")
    assert run(pinned).code == 0


def test_on_a_pinned_machine_no_other_file_is_opened_as_public(talk, monkeypatch):
    """Which lines of a file repeat, and how many there are, was told of any file that a recipe named."""
    monkeypatch.chdir(talk)
    assert fedlens("data", "pin", *ledger(talk)).code == 0
    text = "[text]\nvocabulary = '{path}'\n[selections.all]\nby = 'everyone'\n[privacy]\nepsilon = 8.0\ndelta = 1e-5\n"
    head = "name = 'look'\ntask = 'T3'\n[data]\npopulation = 'talk'\n" + text + "users = 20\npopulation = 60\n"
    answers = []
    for content in ("a\na\n", "one two\n", "fine\nwords\n"):
        (talk / "other.txt").write_text(content)
        (talk / "recipe.toml").write_text(head.format(path=talk / "other.txt"))
        answers += [fedlens(verb, talk / "recipe.toml", *ledger(talk)).err for verb in ("plan", "run")]
    assert len(set(answers)) == 1
    assert "declared public" in answers[0]
    done = fedlens("vocabulary", "count", talk / "other.txt", "--to", talk / "words.txt", *ledger(talk))
    refused(done, "declared public")


def test_on_a_pinned_machine_words_are_learnt_of_a_population_by_its_name(talk, monkeypatch):
    monkeypatch.chdir(talk)
    assert fedlens("data", "pin", *ledger(talk)).code == 0
    options = "--epsilon", 8, "--delta", 1e-5, "--to", talk / "words.txt", "--size", 5, "--longest", 4
    told = [
        fedlens("vocabulary", "learn", talk / name, "--population", 60, *options) for name in ("d.jsonl", "no.jsonl")
    ]
    refused(told[0], "registered population")
    assert told[0].err.replace("d.jsonl", "no.jsonl") == told[1].err  # not even whether it is there
    refused(fedlens("vocabulary", "learn", "talk", "--population", 50, *options), "expected --population 60")
    done = fedlens("vocabulary", "learn", "talk", "--population", 60, *options)
    assert done.code == 0, done.err
    assert "talk" in Ledger(talk / "out" / "ledger.sqlite").populations()
    pins.check_public(talk / "words.txt")  # recipes may use it now


def test_on_a_pinned_machine_no_function_of_ones_own_is_imported(pinned):
    for change in ("hypotheses=['antigravity:fly']", "data.bug={kind='antigravity:fly'}"):
        refused(run(pinned, change), "this machine is pinned")


PLACES = {
    "a recipe": ("plan", "{there}/recipe.toml"),
    "a model": ("run", "recipe.toml", "--set", "primary.model={there}/m.pt", "--set", "selections.all.by='wrong'"),
    "a baseline": ("compare", "{there}/low", "{there}/high"),
    "a file to write": ("init", "--to", "{there}/recipe.toml"),
    "a hidden file to write": ("vocabulary", "count", "words.txt", "--to", "out/.private/run.all.key"),
    "a folder to write to": ("run", "recipe.toml", "--out", "{there}"),
    "a folder to resume": ("run", "--resume", "{there}/run"),
    "a file to hash": ("ledger", "request", "recipe.toml", "--set", "primary.public.path={there}/d.npz"),
}


@pytest.mark.parametrize("place", PLACES)
def test_on_a_pinned_machine_files_lie_below_the_working_folder(pinned, tmp_path_factory, place):
    """Else any file of the machine could be asked for, hashed, overwritten, or made: a run's secret, say."""
    there = tmp_path_factory.mktemp("elsewhere")
    (pinned / "words.txt").write_text("words\n")
    refused(fedlens(*(word.format(there=there) for word in PLACES[place])), "below the folder")
    assert list(there.iterdir()) == []


def test_on_a_pinned_machine_what_was_declared_is_what_is_read(pinned, monkeypatch):
    """A file that was exchanged between check and use had private words counted in clear."""
    good, bad = pinned / "good.txt", pinned / "bad.txt"
    good.write_text("declared words\n")
    bad.write_text(f"{SECRET}\n")
    assert fedlens("data", "public", good, *ledger(pinned)).code == 0
    shutil.copy(good, pinned / "flips.txt")
    copyfile = shutil.copyfile

    def flipped(source, to):
        bad.replace(pinned / "flips.txt")
        return copyfile(source, to)

    monkeypatch.setattr(shutil, "copyfile", flipped)
    done = fedlens("vocabulary", "count", "flips.txt", "--to", "words.txt", *ledger(pinned))
    refused(done, "declared public")
    assert not (pinned / "words.txt").exists()


def test_on_a_pinned_machine_no_variable_of_its_environment_is_told(pinned, monkeypatch):
    monkeypatch.setenv("TOKEN", SECRET)
    done = run(pinned, "primary.model=$TOKEN/m.pt", "selections.all.by=wrong")
    assert SECRET not in done.err + done.out


def test_a_run_folder_of_ones_own_making_is_not_resumed(tmp_path, monkeypatch):
    """With a secret that was planted, its noise was known."""
    found = stopped(tmp_path, monkeypatch)
    shutil.copytree(found, found.with_name("bad-000000"))
    refused(fedlens("run", "--resume", found.with_name("bad-000000")), "Expected")
    assert fedlens("run", "--resume", found).code == 0


def test_the_secrets_of_a_run_are_all_made_when_it_begins(tmp_path, monkeypatch):
    """One that is made later could be somebody else's by then."""
    written(tmp_path, BOTH)
    interrupted(monkeypatch, FolderKeeper, "save", after=True)
    assert run(tmp_path).code == 130
    monkeypatch.undo()
    kept = sorted(path.name.split(".", 1)[1] for path in (tmp_path / "out" / ".private").glob("*.key"))
    assert kept == ["_data.key", "high.key", "low.key"]
    next((tmp_path / "out" / ".private").glob("*.high.key")).unlink()
    refused(fedlens("run", "--resume", run_folder(tmp_path)), "secret")


def test_a_run_of_an_earlier_version_is_refused_with_the_way_to_go_on(tmp_path, monkeypatch):
    found = stopped(tmp_path, monkeypatch)
    about = json.loads((found / "run.json").read_text())
    del about["version"]
    (found / "run.json").write_text(json.dumps(about))
    refused(fedlens("run", "--resume", found), f"fedlens ledger close {found.name}", "run its recipe.toml anew")
    assert fedlens("ledger", "close", found.name, *ledger(tmp_path)).code == 0
    assert fedlens("run", found / "recipe.toml", "--out", tmp_path / "out").code == 0


def test_a_folder_called_like_a_pattern_takes_no_secrets_along(tmp_path, monkeypatch):
    found = stopped(tmp_path, monkeypatch)
    secrets = sorted((tmp_path / "out" / ".private").iterdir())
    shutil.copytree(found, found.with_name("*"))
    assert fedlens("run", "--resume", found.with_name("*")).code == 2
    assert sorted((tmp_path / "out" / ".private").iterdir()) == secrets


def test_a_model_that_was_put_into_the_folder_is_not_vouched_for(tmp_path, monkeypatch):
    """Its hash was booked, and a model that had cost 60 was confirmed at 0.44."""
    found = stopped(tmp_path, monkeypatch)
    assert run(tmp_path).code == 0
    (other,) = (path for path in (tmp_path / "out").glob("bad-*/all/model.safetensors"))
    shutil.copy(other, found / "all" / "model.safetensors")
    assert fedlens("run", "--resume", found).code == 0
    assert (found / "all" / "model.safetensors").read_bytes() != other.read_bytes()
    assert fedlens("ledger", "verify", *ledger(tmp_path)).code == 0


def test_a_model_that_was_exchanged_after_its_run_was_closed_is_noticed(tmp_path):
    for _ in range(2):
        assert run(written(tmp_path)).code == 0
    one, other = (path for path in (tmp_path / "out").glob("bad-*/all/model.safetensors"))
    shutil.copy(other, one)
    (one.parent.parent / "MANIFEST.json").unlink()
    refused(fedlens("run", "--resume", one.parent.parent), "it was changed")


def test_a_month_in_its_year_is_not_new_data(spent_out):
    many = np.random.default_rng(4).integers(0, 256, (8 * ROWS, SIDE, SIDE)).astype(np.uint8)
    year = {"x": np.concatenate([columns()["x"], many]), "y": np.zeros(9 * ROWS, int)}
    np.savez(spent_out / "year.npz", **year, user=np.repeat(np.arange(9 * USERS), EACH))
    changes = f"data.path={spent_out / 'year.npz'}", "data.name=year", "privacy.population=300"
    refused(run(spent_out, *changes), "many examples of 'crowd'")


def test_on_a_pinned_machine_the_data_lie_elsewhere(tmp_path_factory, monkeypatch):
    work, data = tmp_path_factory.mktemp("work"), tmp_path_factory.mktemp("srv")
    register(by_name(written(data)), "--epsilon", 8, "--delta", 1e-5, "--pin")
    shutil.copy(data / "recipe.toml", work / "recipe.toml")
    monkeypatch.chdir(work)
    assert fedlens("run", "recipe.toml", "--out", "runs").code == 0
    (model,) = (work / "runs").glob("*/all")
    refused(fedlens("sample", model, "--to", data / "out" / "ledger.sqlite"), "below the folder")
    (model.parent / "low-vs-high").symlink_to(data)
    refused(fedlens("report", model.parent), "leads elsewhere")


def test_the_largest_epsilon_without_a_budget_is_not_that_of_a_large_delta(tmp_path):
    register(by_name(written(tmp_path)), "--largest-epsilon", 1)
    refused(run(tmp_path, "privacy.epsilon=1.0", "privacy.delta=0.3"), "a run may cost epsilon 1 at most")


def test_a_primary_model_that_was_put_into_the_folder_is_not_asked(tmp_path, monkeypatch):
    """Nothing vouched for it before the first release: neither an approval nor the owner's policy."""
    written(tmp_path, BOTH)
    classifier(tmp_path / "other.pt", favourite=3)
    interrupted(monkeypatch, preparation, "site")
    assert run(tmp_path).code == 130
    monkeypatch.undo()
    kept = run_folder(tmp_path) / "primary.safetensors"
    shutil.copy(tmp_path / "other.pt", kept)
    assert fedlens("run", "--resume", run_folder(tmp_path)).code == 0
    assert open_primary(kept, side=SIDE).digest == open_primary(tmp_path / "m.pt", side=SIDE).digest


def test_how_many_are_in_a_selection_is_not_for_a_recipe_to_declare(tmp_path):
    """A refusal told whether everybody is in it."""
    more = 'sampling = "fixed-size"\nsize = 4\nsize_is_public = true'
    selection = '[selections.all]\nby = "attribute"\nattribute = "version"\nvalues = [1]'
    by_name(written(tmp_path, selection, privacy=more, version=np.ones(ROWS, int)))
    register(tmp_path, "--attributes", "version")
    refused(run(tmp_path), "size_is_public")


def test_a_pinned_witness_is_asked_for_also_by_a_ledger_that_knows_of_none(pinned):
    """A ledger from before it had a witness, put back: only the pin still knows."""
    book = pinned / "out" / "ledger.sqlite"
    with sqlite3.connect(book) as old, sqlite3.connect(pinned / "backup") as kept:
        old.backup(kept)
    witness = pinned / "elsewhere" / "witness"
    assert fedlens("ledger", "witness", "--to", witness, "--ledger", book).code == 0
    assert fedlens("data", "pin", "--witness", witness, "--ledger", book).code == 0
    assert run(pinned).code == 0
    with sqlite3.connect(pinned / "backup") as kept, sqlite3.connect(book) as new:
        kept.backup(new)
    refused(run(pinned), "put back", code=1)


def test_a_pin_that_cannot_be_read_is_no_leave(pinned):
    pins.of_user().write_text("ledger = [")
    refused(run(pinned), "it cannot be read")


# Simulation and foreign programs


def test_a_budgeted_population_is_not_simulated_unless_its_owner_allows_it(tmp_path):
    register(by_name(written(tmp_path)), "--epsilon", 8, "--delta", 1e-5)
    refused(run(tmp_path, more=("--simulate", 1)), "--simulate is not allowed")
    assert Ledger(tmp_path / "out" / "ledger.sqlite").runs() == []
    fedlens("data", "policy", "crowd", "--allow", "simulation", *ledger(tmp_path))
    assert run(tmp_path, more=("--simulate", 1)).code == 0


def test_a_budget_ends_what_was_free_in_passing(tmp_path):
    assert run(written(tmp_path), more=("--simulate", 1)).code == 0
    fedlens("ledger", "init", "--population", "crowd", "--epsilon", 8, "--delta", 1e-5, *ledger(tmp_path))
    refused(run(tmp_path, more=("--simulate", 1)), "to be registered by its owner, since it has a budget")
    refused(run(tmp_path), "with units by 'user'")
    register(tmp_path)
    refused(run(tmp_path, more=("--simulate", 1)), "--simulate is not allowed")
    assert run(tmp_path).code == 0


# Refusals tell nothing about the data


def test_the_number_of_users_is_not_to_be_had_by_refusals(tmp_path):
    """Ten refused runs told it exactly, by halving."""
    written(tmp_path)
    answers = []
    for guess in (20, 40, 30, 25, 23, 24):
        done = run(tmp_path, f"privacy.population={guess}", "privacy.users=5", f"data.name=x{guess}")
        answers.append(done.err.splitlines()[-1])
    assert len(set(answers)) == 1
    assert "24" not in answers[0]


def test_the_number_of_users_of_a_registered_population_is_not_to_be_had_by_refusals(tmp_path):
    register(by_name(written(tmp_path)))
    answers = {run(tmp_path, f"privacy.population={guess}", "privacy.users=5").err for guess in (20, 23, 24, 25, 59)}
    assert len(answers) == 1


def test_which_labels_there_are_is_not_to_be_had_by_refusals(tmp_path):
    """The first row whose label reaches k was named."""
    register(by_name(written(tmp_path)), "--classes", 10)
    for classes in range(1, 10):
        refused(run(tmp_path, f"model.classes={classes}"), "labels lie below 10")
    assert run(tmp_path, "model.classes=10").code == 0


def test_whether_the_number_is_exact_is_not_to_be_had_by_refusals(tmp_path):
    written(tmp_path, privacy='sampling = "balanced"\ngroups = 3')
    register(by_name(tmp_path))
    refused(run(tmp_path), "which its owner keeps private")


# Run folders that lead elsewhere


def stopped(folder, monkeypatch):
    """A run that was interrupted after its first round."""
    written(folder)
    interrupted(
        monkeypatch, FolderKeeper, "save", when=lambda keeper, state, curator: int(state["round"]) == 1, after=True
    )
    assert run(folder).code == 130
    monkeypatch.undo()
    return run_folder(folder)


@pytest.mark.parametrize("link", [os.symlink, os.link])
def test_no_file_is_copied_into_a_run_folder_through_a_link(tmp_path, monkeypatch, link):
    """Lines of a private file stood in metrics.jsonl."""
    found = stopped(tmp_path, monkeypatch)
    (tmp_path / "private.jsonl").write_text(f'{{"user": "{SECRET}"}}\n' * 3)
    (found / "all" / "metrics.jsonl").unlink()
    link(tmp_path / "private.jsonl", found / "all" / "metrics.jsonl")
    refused(fedlens("run", "--resume", found), "leads elsewhere")


def test_no_folder_of_a_run_leads_elsewhere(tmp_path, monkeypatch):
    found = stopped(tmp_path, monkeypatch)
    shutil.move(found / "all", tmp_path / "moved")
    (found / "all").symlink_to(tmp_path / "moved")
    refused(fedlens("run", "--resume", found), "leads elsewhere")


def test_what_is_no_number_is_not_kept_in_metrics(tmp_path, monkeypatch):
    found = stopped(tmp_path, monkeypatch)
    (found / "all" / "metrics.jsonl").write_text(f'{{"round": "{SECRET}"}}\n{SECRET}\n')
    assert fedlens("run", "--resume", found).code == 0
    assert SECRET not in (found / "all" / "metrics.jsonl").read_text()


# The digest


@pytest.mark.parametrize("place", ["model", "public"])
def test_every_file_that_a_recipe_depends_on_is_in_its_digest(tmp_path, place):
    if place == "model":
        file = tmp_path / "m.pt"
        written(tmp_path, EXAMPLES)
    else:
        file = tmp_path / "public.npz"
        np.savez(file, x=columns()["x"], y=columns()["y"])
        written(tmp_path, PUBLIC.format(path=file))
    before = Recipe.open(tmp_path / "recipe.toml").digest
    file.write_bytes(file.read_bytes() + b"!")
    assert Recipe.open(tmp_path / "recipe.toml").digest != before


def test_no_file_is_hashed_through_a_link_in_a_folder(tmp_path):
    """The digest of a request told whether a guess at a private file was right."""
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "link").symlink_to(written(tmp_path, EXAMPLES) / "d.npz")
    with pytest.raises(ValueError, match="there are links"):
        _ = Recipe.open(tmp_path / "recipe.toml", [f"primary.model={tmp_path / 'folder'}"]).digest


def test_a_recipe_is_the_same_by_name_and_in_full(tmp_path):
    full = Recipe.open(written(tmp_path) / "recipe.toml").digest
    assert Recipe.open(by_name(tmp_path) / "recipe.toml").digest == full


# The question's name


def test_another_processor_asks_another_question(monkeypatch):
    """With 256 bits at a time sums round otherwise: the same noise on both would give the difference away."""
    from fedlens.curators import simulated as simulation

    before = simulation._arithmetic("cpu")
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "another")
    simulation._processor.cache_clear()
    assert simulation._arithmetic("cpu") != before
    monkeypatch.undo()
    simulation._processor.cache_clear()
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")
    assert simulation._arithmetic("cpu") != before


def test_two_registrations_of_the_same_key_agree(tmp_path):
    """What was registered is found again by another process: the key is kept."""
    written(tmp_path)
    source = Data(source="npz", path=str(tmp_path / "d.npz"))
    made = Owner(str(tmp_path / "b.db")).register("crowd", source, Bounds(population=60), policy=Policy())
    assert Owner(str(tmp_path / "b.db")).registered("crowd") == made


def test_rows_that_have_owners_are_not_dealt(tmp_path):
    """Silently to go by another column would be another unit."""
    (tmp_path / "d.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines()))
    done = fedlens(
        "data",
        "register",
        "talk",
        tmp_path / "d.jsonl",
        "--deal-to",
        5,
        "--population",
        30,
        "--ledger",
        tmp_path / "l.db",
    )
    assert (done.code, "Expected no --deal-to" in done.err) == (2, True)
