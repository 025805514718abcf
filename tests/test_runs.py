"""Run folders: whole, honest, resumable to the same end, and silent about the people in the data."""

import dataclasses
import hashlib
import json
import math
import pathlib
import re
import shutil
import sqlite3
import stat
import types

import numpy as np
import pytest
import torch
import toys
from safetensors import safe_open
from toys import PAIR, TINY, assert_same, created, full_disk, measured, named, quiet

from fedlens.core import files, tensorfiles
from fedlens.curators import site
from fedlens.curators.protocol import PrivacySpentError
from fedlens.curators.simulated import Engine, SimulatedCurator
from fedlens.curators.site import Site
from fedlens.data.population import DataError
from fedlens.ledger import Budget, Ledger, RunClosedError, guarantee
from fedlens.media.images import reading as data
from fedlens.media.images.medium import Images
from fedlens.media.images.samples import Model, Samples
from fedlens.models.classifier import ConvClassifier, Primary
from fedlens.recipes.recipe import Recipe
from fedlens.recipes.toml import to_toml
from fedlens.runs import folder as run_folders
from fedlens.runs import preparation
from fedlens.runs import reporting as run_reports
from fedlens.runs import run as runs
from fedlens.runs.run import Run

steady = toys.steady(name="0")  # both shape the noise


def interrupting(after, selection=None):
    """A watcher that presses Ctrl-C after so many rounds."""

    def watch(name, done, rounds, facts):
        if done == after and selection in (None, name):
            raise KeyboardInterrupt

    return watch


def entries(run):
    """How many releases the ledger holds, by model and stage."""
    with sqlite3.connect(run.address) as book:
        return dict(
            book.execute(
                "select run || ' ' || stage, count(*) from entries where kind = 'release' group by run, stage"
            ).fetchall()
        )


def paid(run, rounds, selection="all"):
    return {f"{run.name}/{selection} count": 1, f"{run.name}/{selection} train": rounds}


def generator(run, selection="all"):
    return Model.open(run.folder / selection / "model.safetensors").generator


def header(path):
    with safe_open(path, "pt") as file:
        return {key: json.loads(value) for key, value in file.metadata().items()}


def names(folder):
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def finished(steady, tmp_path_factory):
    """An uninterrupted run of TINY with seed 0, for all to compare with."""
    run = created(tmp_path_factory.mktemp("finished"))
    report = run.executed(quiet)
    return types.SimpleNamespace(run=run, report=report, folder=run.folder)


# A finished run


def test_a_finished_folder_holds_everything_and_nothing_else(finished):
    assert names(finished.folder) == {
        "recipe.toml",
        "plan.json",
        "statement.md",
        "run.json",
        "report.html",
        "report.json",
        "MANIFEST.json",
        "data.json",
        "all/count.json",
        "all/metrics.jsonl",
        "all/model.safetensors",
        "samples/all.safetensors",
        "all/rounds/000001.safetensors",
        "all/rounds/000002.safetensors",
        "all/rounds/000003.safetensors",
        f"samples/{finished.run.name}-all-round-1.png",
        f"samples/{finished.run.name}-all-round-2.png",
        f"samples/{finished.run.name}-all-round-3.png",
        f"samples/{finished.run.name}-all-round-4.png",
        "samples/mean-left.png",
    }


def test_the_manifest_has_the_hash_of_every_file(finished):
    manifest = json.loads((finished.folder / "MANIFEST.json").read_text())
    assert set(manifest) == names(finished.folder) - {"MANIFEST.json"}
    for name, digest in manifest.items():
        assert hashlib.sha256((finished.folder / name).read_bytes()).hexdigest() == digest, name


def test_the_saved_recipe_is_the_one_that_ran(finished):
    saved = Recipe.open(finished.folder / "recipe.toml")
    assert saved == Recipe.parsed(TINY)
    assert json.loads((finished.folder / "run.json").read_text())["recipe_sha256"] == saved.digest


def test_the_plan_and_the_statement_promise_what_the_report_says_was_spent(finished):
    promised = json.loads((finished.folder / "plan.json").read_text())
    report = json.loads((finished.folder / "report.json").read_text())
    assert promised["guarantee"] == report["guarantee"]
    assert 7.9 < report["guarantee"]["epsilon"] <= 8.0
    assert promised["train"]["releases"] == 4
    statement = (finished.folder / "statement.md").read_text()
    assert finished.report.guarantee.headline in statement
    assert "Not covered" in statement


def test_the_model_carries_its_guarantee_and_its_recipe_in_its_header(finished):
    about = header(finished.folder / "all" / "model.safetensors")
    assert about["recipe_sha256"] == finished.run.recipe.digest
    assert about["guarantee"] == json.loads((finished.folder / "report.json").read_text())["guarantee"]
    assert about["guarantee"]["simulated"] is True
    assert [plan["releases"] for plan in about["spending"]["plans"]] == [1, 4]


def test_the_samples_carry_their_guarantee_and_say_that_they_are_synthetic(finished):
    path = finished.folder / "samples" / "all.safetensors"
    assert header(path)["synthetic"] is True
    samples = Samples.open(path)
    assert samples.guarantee == finished.report.guarantee
    assert samples.images.shape == (512, 1, 8, 8)


def test_the_ledger_holds_one_count_and_as_many_releases_as_rounds(finished):
    assert entries(finished.run) == paid(finished.run, 4)


def test_the_metrics_have_a_line_per_round_with_a_growing_epsilon(finished):
    lines = [json.loads(line) for line in (finished.folder / "all" / "metrics.jsonl").read_text().splitlines()]
    assert [line["round"] for line in lines] == [1, 2, 3, 4]
    spent = [line["epsilon_so_far"] for line in lines]
    assert spent == sorted(set(spent))
    assert spent[-1] == pytest.approx(finished.report.guarantee.epsilon, abs=1e-3)


def test_a_finished_run_is_not_run_again(finished):
    before = entries(finished.run)
    with pytest.raises(ValueError, match=f"{finished.run.name} is complete"):
        Run.opened(finished.folder).executed(quiet)
    assert entries(finished.run) == before


def test_the_pictures_of_the_report_are_in_the_folder(finished):
    images = json.loads((finished.folder / "report.json").read_text())["images"]
    assert [image["round"] for image in images] == [1, 2, 3, 4]
    for image in images:
        assert (finished.folder / image["file"]).read_bytes().startswith(b"\x89PNG")


def test_a_pair_of_models_is_compared_at_their_joint_price(tmp_path):
    run = created(tmp_path, "privacy.rounds=2", recipe=PAIR)
    report = run.executed(quiet)
    assert {run["label"] for run in report.runs} == {"low", "high"}
    assert entries(run) == paid(run, 2, "low") | paid(run, 2, "high")
    assert report.guarantee.epsilon == run.promised().epsilon <= 8.0
    assert (
        report.guarantee.epsilon > Model.open(run.folder / "low" / "model.safetensors").sampled(1, 0).guarantee.epsilon
    )
    assert len(report.hypotheses) > 1


def test_a_seed_repeats_a_run_and_another_seed_does_not(tmp_path, finished):
    again, other = created(tmp_path / "again"), created(tmp_path / "other", seed=1)
    for run in (again, other):
        run.executed(quiet)
    assert_same(generator(again), generator(finished.run))
    assert not torch.equal(generator(other)["image.weight"], generator(finished.run)["image.weight"])


@pytest.mark.parametrize("chunk", [1, 3, 30])
def test_a_seed_repeats_a_run_whatever_its_name_and_the_fastest_engine(tmp_path, monkeypatch, finished, chunk):
    """`--simulate SEED` promises to be repeatable, and nobody chooses either. Rounding may differ, noise may not."""
    named(monkeypatch, "1")
    measured(monkeypatch, chunk=chunk)
    run = created(tmp_path)
    run.executed(quiet)
    torch.testing.assert_close(generator(run), generator(finished.run), rtol=1e-3, atol=1e-5)


def test_a_look_at_everything_needs_no_labels(tmp_path):
    images = np.random.default_rng(0).integers(0, 256, (60, 8, 8), np.uint8)
    np.savez(tmp_path / "bare.npz", x=images, user=np.arange(60) // 3)
    source = f"data={{source = 'npz', path = '{tmp_path / 'bare.npz'}'}}"
    run = created(tmp_path, source, "privacy.rounds=1", "privacy.minimum_users=1")
    assert run.executed(quiet).to_dict()["images"]


# Interrupted and resumed


@pytest.mark.parametrize("after", [1, 2, 4])
def test_a_run_that_was_interrupted_ends_as_if_it_had_not_been(tmp_path, finished, after):
    run = created(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        run.executed(interrupting(after))
    assert entries(run) == paid(run, after)
    assert not (run.folder / "MANIFEST.json").exists()
    assert (run.folder / "all" / "checkpoint.safetensors").exists()
    Run.opened(run.folder).executed(quiet)
    assert_same(generator(run), generator(finished.run))
    assert entries(run) == paid(run, 4)
    assert not (run.folder / "all" / "checkpoint.safetensors").exists()


def test_a_run_may_be_interrupted_again_and_again(tmp_path, finished):
    run = created(tmp_path)
    for after in (1, 2, 3):
        with pytest.raises(KeyboardInterrupt):
            Run.opened(run.folder).executed(interrupting(after))
    Run.opened(run.folder).executed(quiet)
    assert_same(generator(run), generator(finished.run))
    assert entries(run) == paid(run, 4)
    lines = [json.loads(line)["round"] for line in (run.folder / "all" / "metrics.jsonl").read_text().splitlines()]
    assert lines == [1, 2, 3, 4]


@pytest.mark.parametrize("failing", [1, 2, 3])
def test_a_full_disk_during_a_checkpoint_costs_nothing(tmp_path, monkeypatch, finished, failing):
    run = created(tmp_path)
    monkeypatch.setattr(run_folders, "CHECKPOINT_SECONDS", 0.0)
    monkeypatch.setattr(run_folders, "SAVING", 0.0)
    with monkeypatch.context() as patched:
        full_disk(patched, "checkpoint.safetensors", after=failing - 1)
        with pytest.raises(OSError, match="No space left"):
            run.executed(quiet)
    assert entries(run) == paid(run, failing)
    Run.opened(run.folder).executed(quiet)
    assert_same(generator(run), generator(finished.run))
    assert entries(run) == paid(run, 4)


def test_a_disk_that_is_full_when_the_model_is_saved_costs_nothing(tmp_path, monkeypatch, finished):
    run = created(tmp_path)
    with monkeypatch.context() as patched:
        full_disk(patched, "model.safetensors")
        with pytest.raises(OSError, match="No space left"):
            run.executed(quiet)
    Run.opened(run.folder).executed(quiet)
    assert_same(generator(run), generator(finished.run))
    assert entries(run) == paid(run, 4)


def test_a_process_that_dies_without_a_word_costs_nothing_after_its_first_round(tmp_path, finished):
    """A crash leaves the checkpoint of the first round; the rounds after it are asked again, at no price."""
    run = created(tmp_path)

    def dying(name, done, rounds, facts):
        if done == 3:
            raise SystemError("killed")

    with pytest.raises(SystemError):
        run.executed(dying)
    assert int(tensorfiles.read(run.folder / "all" / "checkpoint.safetensors")[0]["round"]) == 1
    Run.opened(run.folder).executed(quiet)
    assert_same(generator(run), generator(finished.run))
    assert entries(run) == paid(run, 4)
    lines = [json.loads(line)["round"] for line in (run.folder / "all" / "metrics.jsonl").read_text().splitlines()]
    assert lines == [1, 2, 3, 4]  # rounds done again do not appear twice


def test_the_same_question_meets_the_same_noise_whatever_the_order_of_its_names(curator_of):
    """A checkpoint gives a message back in the order of the alphabet. Two answers would cost one and cancel noise."""
    recipe, book = Recipe.parsed(TINY), Ledger()
    algorithm, (population, _) = recipe.built(), data.digits(30)
    message = algorithm.message(algorithm.start(), torch.Generator().manual_seed(0))
    answers = []
    for names in (list(message), sorted(message), list(message)[::-1]):
        curator = curator_of(
            population, recipe.plans["train"], ledger=book, engine=Engine(chunk=8), examples_per_unit=8
        )
        answers.append(curator.noisy_mean(algorithm.critic_update, {name: message[name] for name in names}))
    assert book.spent("run", "train") == 1
    assert_same(answers[0], answers[1])
    assert_same(answers[0], answers[2])


def test_a_checkpoint_keeps_every_setting_of_the_engine(tmp_path, monkeypatch):
    engine = Engine(chunk=5, workers=2)
    monkeypatch.setattr(Engine, "measured", classmethod(lambda cls, *found, **told: engine))
    run = created(tmp_path, seed=None)
    with pytest.raises(KeyboardInterrupt):
        run.executed(interrupting(1))
    about = tensorfiles.read(run.folder / "all" / "checkpoint.safetensors")[1]["engine"]
    assert about.keys() == {field.name for field in dataclasses.fields(Engine)}
    assert Engine(**about) == engine


def test_a_resumed_run_keeps_the_engine_it_began_with(tmp_path, monkeypatch, finished):
    run = created(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        run.executed(interrupting(2))
    measured(monkeypatch, chunk=3)
    Run.opened(run.folder).executed(quiet)
    assert_same(generator(run), generator(finished.run))


def test_rounds_lost_for_good_are_admitted_in_the_report(tmp_path, monkeypatch):
    """The checkpoint is gone and the machine has changed: no question can be asked again, the budget is spent."""
    run = created(tmp_path, seed=None)
    with pytest.raises(KeyboardInterrupt):
        run.executed(interrupting(4))
    (run.folder / "all" / "checkpoint.safetensors").unlink()
    measured(monkeypatch, chunk=3)
    report = Run.opened(run.folder).executed(quiet)
    assert entries(run) == paid(run, 4)
    assert report.guarantee.epsilon <= 8.0
    assert any("all" in warning and "round" in warning for warning in report.warnings)


def test_an_interrupted_pair_trains_each_model_once(tmp_path):
    whole = created(tmp_path / "whole", "privacy.rounds=2", recipe=PAIR)
    whole.executed(quiet)
    run = created(tmp_path / "broken", "privacy.rounds=2", recipe=PAIR)
    with pytest.raises(KeyboardInterrupt):
        run.executed(interrupting(1, "high"))
    Run.opened(run.folder).executed(quiet)
    assert entries(run) == paid(run, 2, "low") | paid(run, 2, "high")
    for selection in ("low", "high"):
        assert_same(generator(run, selection), generator(whole, selection))


def test_an_adaptive_clip_is_resumed_where_it_stood(tmp_path):
    adaptive = TINY.replace("clip = 0.1", "adaptive_clip = { start = 0.1 }")
    whole, run = created(tmp_path / "whole", recipe=adaptive), created(tmp_path / "broken", recipe=adaptive)
    whole.executed(quiet)
    with pytest.raises(KeyboardInterrupt):
        run.executed(interrupting(2))
    Run.opened(run.folder).executed(quiet)
    assert_same(generator(run), generator(whole))
    metrics = [(each.folder / "all" / "metrics.jsonl").read_text() for each in (whole, run)]
    assert metrics[0] == metrics[1]
    assert len({json.loads(line)["clip"] for line in metrics[0].splitlines()}) == 4


def test_secret_noise_is_kept_for_an_interrupted_run_and_forgotten_afterwards(tmp_path):
    run = created(tmp_path, seed=None)
    key = tmp_path / ".private" / f"{run.name}.all.key"
    with pytest.raises(KeyboardInterrupt):
        run.executed(interrupting(2))
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    assert stat.S_IMODE(key.parent.stat().st_mode) == 0o700
    assert len(key.read_bytes()) == 32
    assert not any(key.read_bytes() in path.read_bytes() for path in run.folder.rglob("*") if path.is_file())
    report = Run.opened(run.folder).executed(quiet)
    assert entries(run) == paid(run, 4)
    assert not list(key.parent.iterdir())
    assert not report.guarantee.simulated


def test_secret_noise_is_another_one_each_time(tmp_path):
    models = []
    for name in ("first", "second"):
        run = created(tmp_path / name, "privacy.rounds=1", seed=None)
        run.executed(quiet)
        models.append(generator(run))
        assert not list((tmp_path / name / ".private").iterdir())
    assert not torch.equal(models[0]["image.weight"], models[1]["image.weight"])


def test_a_run_whose_secret_was_lost_gets_nothing_more(tmp_path):
    run = created(tmp_path, seed=None)
    with pytest.raises(KeyboardInterrupt):
        run.executed(interrupting(2))
    (tmp_path / ".private" / f"{run.name}.all.key").unlink()
    with pytest.raises(ValueError, match="secret"):
        Run.opened(run.folder).executed(quiet)
    assert entries(run) == paid(run, 2)


# Closed before it is reported


def failing(*given, **named):
    raise ZeroDivisionError


def unreported(monkeypatch, run):
    """Carries out a run whose report fails, as often as it is tried."""
    with monkeypatch.context() as patched:
        patched.setattr(Images, "contrast", failing)
        patched.setattr(run_reports, "Report", failing)
        with pytest.raises(ZeroDivisionError):
            run.executed(quiet)
    assert not (run.folder / "MANIFEST.json").exists()


def booked(run):
    """How many entries there are, of whatever kind."""
    return Ledger(run.address).head()[0]


@pytest.fixture
def unreadable(monkeypatch):
    """From now on nobody's data can be read, by calling this."""

    def forbid():
        monkeypatch.setattr(preparation, "population", lambda recipe: pytest.fail("private data were read"))

    return forbid


def test_a_run_whose_report_failed_owes_nothing_and_finishes_without_its_data(tmp_path, monkeypatch, unreadable):
    run = created(tmp_path, seed=None)
    unreported(monkeypatch, run)
    book, before = Ledger(run.address), booked(run)
    assert all(told["closed"] for told in book.runs())
    assert [told["model"] for told in book.runs()] == [files.sha256(run.folder / "all" / "model.safetensors")]
    assert not list((tmp_path / ".private").iterdir())
    unreadable()
    report = Run.opened(run.folder).executed(quiet)
    assert report.to_dict()["images"]
    assert report.guarantee.epsilon == run.promised().epsilon
    assert (entries(run), booked(run)) == (paid(run, 4), before)
    assert not list((tmp_path / ".private").iterdir())
    with pytest.raises(ValueError, match="is complete"):
        Run.opened(run.folder).executed(quiet)


@pytest.mark.parametrize(("minimum", "shown"), [(1, ["low", "high"]), (10, ["low"]), (100, [])])
def test_a_report_made_later_says_the_same(tmp_path, monkeypatch, unreadable, minimum, shown):
    """With a primary model, thresholds that were learnt, and groups of too few."""
    settings = "privacy.rounds=2", "privacy.count_noise=1.0", f"privacy.minimum_users={minimum}"
    unequal = QUANTILES.replace("minimum_users = 1\n", "").replace("quantile = 0.5", "quantile = 0.8")
    whole, later = (created(tmp_path / name, *settings, recipe=unequal) for name in ("whole", "later"))
    first = whole.executed(quiet)
    unreported(monkeypatch, later)
    unreadable()
    second = Run.opened(later.folder).executed(quiet)
    assert [side["label"] for side in first.runs] == shown
    refused = [warning.partition(":")[0] for warning in first.warnings if "noisy head count" in warning]
    assert refused == [side for side in ("low", "high") if side not in shown]
    assert any(row["name"] == "primary model's confidence" for row in second.numbers) == bool(shown)
    told, again = (found.to_dict() for found in (first, second))
    for each in (told, again):
        del each["created"], each["provenance"]["created"]
    assert told == again
    assert names(whole.folder) == names(later.folder)


def test_the_accounts_are_closed_before_the_secret_goes_and_after_the_models_are_there(tmp_path, monkeypatch):
    happened = []

    def told(owner, name, see):
        plain = getattr(owner, name)

        def call(*given, **named):
            happened.append((name, see(*given)))
            return plain(*given, **named)

        monkeypatch.setattr(owner, name, call)

    run = created(tmp_path, "privacy.rounds=1", "privacy.minimum_users=1", recipe=PAIR, seed=None)
    told(Ledger, "close", lambda *given: len(list(run.folder.rglob("model.safetensors"))))
    told(runs.safeguards, "forget_secrets", lambda *given: [found["closed"] for found in Ledger(run.address).runs()])
    told(run_reports, "report_of", lambda *given: list((tmp_path / ".private").iterdir()))
    run.executed(quiet)
    assert happened == [("close", 2), ("close", 2), ("forget_secrets", [True, True]), ("report_of", [])]


def test_what_was_returned_is_not_released_again(tmp_path, monkeypatch, unreadable):
    """A group of too few leaves its rounds unspent; without its head count it would be counted and trained."""
    run = created(tmp_path, "privacy.minimum_users=100", seed=None)
    reserved = Ledger(run.address).spendings("digits", reserved=True)
    unreported(monkeypatch, run)
    book = Ledger(run.address)
    assert book.spendings("digits", reserved=True) == book.spendings("digits") != reserved
    before = booked(run)
    (run.folder / "all" / "count.json").rename(tmp_path / "count.json")
    unreadable()
    with pytest.raises(RunClosedError):
        Run.opened(run.folder).executed(quiet)
    assert not list((tmp_path / ".private").iterdir())
    (tmp_path / "count.json").rename(run.folder / "all" / "count.json")
    (warning,) = Run.opened(run.folder).executed(quiet).warnings
    assert "fewer than 100 users" in warning
    assert booked(run) == before


@pytest.mark.parametrize("part", ["low", "high"])
def test_a_run_that_somebody_gave_up_is_refused_before_its_data_are_read(tmp_path, unreadable, part):
    run = created(tmp_path, "privacy.rounds=2", "privacy.minimum_users=1", recipe=PAIR, seed=None)
    with pytest.raises(KeyboardInterrupt):
        run.executed(interrupting(1, "low"))
    Ledger(run.address).close(f"{run.name}/{part}")
    before = booked(run)
    unreadable()
    with pytest.raises(RunClosedError, match=f"{part}' is closed"):
        Run.opened(run.folder).executed(quiet)
    assert booked(run) == before


def test_a_group_that_has_its_model_may_be_closed_while_the_other_goes_on(tmp_path):
    run = created(tmp_path, "privacy.rounds=2", "privacy.minimum_users=1", recipe=PAIR)
    with pytest.raises(KeyboardInterrupt):
        run.executed(interrupting(1, "high"))
    Ledger(run.address).close(f"{run.name}/low")
    report = Run.opened(run.folder).executed(quiet)
    assert [side["label"] for side in report.runs] == ["low", "high"]
    assert entries(run) == paid(run, 2, "low") | paid(run, 2, "high")


def test_a_model_that_is_not_the_one_that_was_made_is_made_again(tmp_path, monkeypatch, finished):
    """Damaged, or somebody else's: its hash was noted when it was made, and old questions are free."""
    run = created(tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(Ledger, "close", failing)
        with pytest.raises(ZeroDivisionError):
            run.executed(quiet)
    path = run.folder / "all" / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-9])
    Run.opened(run.folder).executed(quiet)
    assert_same(generator(run), generator(finished.run))
    assert entries(run) == paid(run, 4)


@pytest.mark.parametrize("counted", [29.94, 29.96])
def test_a_group_is_of_too_few_by_the_count_that_was_written_down(tmp_path, monkeypatch, unreadable, counted):
    """A resumed run knows no other: were it decided by more digits, 29.96 would be fewer than 30, and 30.0 not."""

    class Rigged(SimulatedCurator):
        def noisy_mean(self, contribute, message):
            answer = super().noisy_mean(contribute, message)
            return {"units": torch.tensor(counted)} if "units" in answer else answer

    monkeypatch.setattr(site, "SimulatedCurator", Rigged)
    run = created(tmp_path, "privacy.rounds=1", "privacy.minimum_users=30")
    unreported(monkeypatch, run)
    unreadable()
    assert len(Run.opened(run.folder).executed(quiet).runs) == (counted > 29.95)


# Refusals


def test_an_edited_recipe_is_not_resumed(tmp_path):
    run = created(tmp_path)
    path = run.folder / "recipe.toml"
    path.write_text(path.read_text().replace("rounds = 4", "rounds = 5"))
    with pytest.raises(ValueError, match=r"has changed"):
        Run.opened(run.folder)


def test_a_recipe_written_otherwise_with_the_same_settings_is_resumed(tmp_path):
    run = created(tmp_path)
    path = run.folder / "recipe.toml"
    path.write_text("# a remark\n" + path.read_text())
    assert Run.opened(run.folder).recipe == run.recipe


def test_a_checkpoint_of_another_recipe_is_refused(tmp_path):
    run, other = created(tmp_path / "one"), created(tmp_path / "two", "training.local_rate=0.1")
    for each in (run, other):
        with pytest.raises(KeyboardInterrupt):
            each.executed(interrupting(2))
    shutil.copy(other.folder / "all" / "checkpoint.safetensors", run.folder / "all" / "checkpoint.safetensors")
    with pytest.raises(ValueError, match="that this run wrote in all; it was changed"):
        Run.opened(run.folder).executed(quiet)
    assert entries(run) == paid(run, 2)


@pytest.mark.parametrize("kept", [0.0, 0.5, 0.99])
def test_a_damaged_checkpoint_is_named(tmp_path, kept):
    run = created(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        run.executed(interrupting(2))
    path = run.folder / "all" / "checkpoint.safetensors"
    path.write_bytes(path.read_bytes()[: int(kept * path.stat().st_size)])
    with pytest.raises(ValueError, match="checkpoint that this run wrote in all; it was changed"):
        Run.opened(run.folder).executed(quiet)
    assert entries(run) == paid(run, 2)


@pytest.mark.parametrize("content", [None, "", "[]", "{}", '{"ledger": 1'])
def test_a_folder_that_is_no_run_is_refused(tmp_path, content):
    run = created(tmp_path)
    (run.folder / "run.json").unlink()
    if content is not None:
        (run.folder / "run.json").write_text(content)
    with pytest.raises(ValueError, match=r"run\.json"):
        Run.opened(run.folder)


def test_an_epsilon_out_of_reach_is_refused_before_anything_is_written(tmp_path):
    with pytest.raises(ValueError, match=r"epsilon=0\.01"):
        created(tmp_path / "out", "privacy.epsilon=0.01")
    assert not list(tmp_path.rglob("*"))


def test_missing_data_is_refused_before_anything_is_written(tmp_path):
    with pytest.raises(DataError, match=r"absent\.npz; there is nothing"):
        created(tmp_path / "out", "data.source=npz", f"data.path={tmp_path / 'absent.npz'}")
    assert not list(tmp_path.rglob("*"))


@pytest.mark.parametrize("device", ["banana", "cuda:77"])
def test_a_device_that_is_not_there_is_refused_before_anything_is_charged(tmp_path, device):
    with pytest.raises(ValueError, match=device):
        Run.created(Recipe.parsed(TINY), tmp_path, address=tmp_path / "ledger.sqlite", seed=0, device=device).executed(
            quiet
        )
    assert not (tmp_path / "ledger.sqlite").exists()


def test_images_of_another_size_are_refused_before_anything_is_charged(tmp_path):
    run = created(tmp_path, "side=16")
    with pytest.raises(DataError, match=r"Expected images of \(1, 16, 16\), got \(1, 8, 8\)"):
        run.executed(quiet)
    assert entries(run) == {}


def test_a_primary_model_for_images_of_another_size_is_refused_before_anything_is_charged(tmp_path):
    network = ConvClassifier(side=16, widths=(4,), hidden=8)
    Primary(network, network.init(0)).save(tmp_path / "cnn.safetensors")
    run = created(tmp_path, f"primary.model={tmp_path / 'cnn.safetensors'}", recipe=PAIR)
    with pytest.raises(ValueError, match="16"):
        run.executed(quiet)
    assert entries(run) == {}


def test_a_missing_primary_model_is_named_before_anything_is_charged(tmp_path):
    run = created(tmp_path, "primary.model=absent.safetensors", recipe=PAIR)
    with pytest.raises(ValueError, match=r"absent\.safetensors; it is missing"):
        run.executed(quiet)
    assert entries(run) == {}


# Thresholds that are learnt

QUANTILES = (
    PAIR.replace('by = "wrong"\nminimum_examples = 1', 'by = "accuracy"\nbelow = { quantile = 0.5 }')
    .replace('by = "right"\nminimum_examples = 1', 'by = "accuracy"\nat_least = { quantile = 0.5 }')
    .replace("minimum_users = 5", "minimum_users = 1\nthreshold_noise = 2.0")
)


def learnt(run):
    return json.loads((run.folder / "thresholds.json").read_text())


def test_learnt_thresholds_are_charged_told_and_part_of_the_price(tmp_path):
    run = created(tmp_path, "privacy.rounds=2", recipe=QUANTILES)
    report = run.executed(quiet)
    assert entries(run) == {f"{run.name}/thresholds thresholds": 1} | paid(run, 2, "low") | paid(run, 2, "high")
    (threshold,) = learnt(run)
    assert threshold["quantile"] == 0.5
    told = f"{threshold['accuracy']:.4g}"
    assert report.provenance["thresholds learnt"] == (
        f"low below {told}, high at least {told}, from a noisy histogram, part of the price"
    )
    plan, page = (json.loads((run.folder / name).read_text()) for name in ("plan.json", "report.json"))
    assert plan["guarantee"] == page["guarantee"]
    assert plan["thresholds"]["noise_multiplier"] == 2.0
    assert 7.9 < report.guarantee.epsilon <= 8.0
    assert "one release of thresholds" in report.guarantee.composition
    assert all(told["closed"] for told in Ledger(run.address).runs())


def test_a_model_by_itself_carries_the_price_of_the_thresholds_that_chose_its_users(tmp_path):
    run = created(tmp_path, "privacy.rounds=2", recipe=QUANTILES)
    report = run.executed(quiet)
    models = [Model.open(run.folder / side / "model.safetensors").sampled(1, 0) for side in ("low", "high")]
    assert [side.guarantee.epsilon for side in models] == pytest.approx([report.guarantee.epsilon] * 2, rel=1e-9)
    together = guarantee([side.spending for side in models], 1e-5)
    assert together.epsilon == pytest.approx(report.guarantee.epsilon, rel=1e-9)
    lines = (run.folder / "low" / "metrics.jsonl").read_text().splitlines()
    assert json.loads(lines[-1])["epsilon_so_far"] == pytest.approx(report.guarantee.epsilon, abs=1e-3)


def test_the_groups_lie_on_either_side_of_what_was_learnt(tmp_path, monkeypatch):
    asked, plain = {}, Site.asked

    def watched(place, stage, thresholds):
        if stage.who:
            asked[stage.group] = stage.who.interval(thresholds)
        return plain(place, stage, thresholds)

    monkeypatch.setattr(Site, "asked", watched)
    run = created(tmp_path, "privacy.rounds=1", recipe=QUANTILES)
    run.executed(quiet)
    (threshold,) = learnt(run)
    assert asked == {"low": (0.0, threshold["accuracy"]), "high": (threshold["accuracy"], 2.0)}


@pytest.mark.parametrize("seed", [0, None], ids=["simulated", "secret"])
def test_a_crash_between_thresholds_and_training_changes_nothing_and_costs_nothing(tmp_path, monkeypatch, seed):
    run = created(tmp_path, "privacy.rounds=2", recipe=QUANTILES, seed=seed)
    with monkeypatch.context() as patched:
        patched.setattr(Site, "_chosen", lambda *given, **named: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            run.executed(quiet)
    before = learnt(run)
    assert entries(run) == {f"{run.name}/thresholds thresholds": 1}
    (run.folder / "thresholds.json").unlink()  # they are asked for again, and told again
    report = Run.opened(run.folder).executed(quiet)
    assert learnt(run) == before
    trained = {found["label"] for found in report.runs}
    assert trained == {"low", "high"} or seed is None  # fresh noise may count too few in a group of this size
    booked = {f"{run.name}/thresholds thresholds": 1}
    for group in ("low", "high"):
        booked |= paid(run, 2, group) if group in trained else {f"{run.name}/{group} count": 1}
    assert entries(run) == booked
    assert report.guarantee.epsilon <= 8.0
    assert not list((tmp_path / ".private").glob("*"))


def test_an_interrupted_pair_with_learnt_thresholds_ends_as_if_it_had_not_been(tmp_path):
    whole = created(tmp_path / "whole", "privacy.rounds=2", recipe=QUANTILES)
    whole.executed(quiet)
    run = created(tmp_path / "broken", "privacy.rounds=2", recipe=QUANTILES)
    with pytest.raises(KeyboardInterrupt):
        run.executed(interrupting(1, "high"))
    Run.opened(run.folder).executed(quiet)
    assert learnt(run) == learnt(whole)
    for selection in ("low", "high"):
        assert_same(generator(run, selection), generator(whole, selection))


def test_thresholds_whose_secret_was_lost_are_not_learnt_twice(tmp_path):
    run = created(tmp_path, "privacy.rounds=2", recipe=QUANTILES, seed=None)
    with pytest.raises(KeyboardInterrupt):
        run.executed(interrupting(1))
    (tmp_path / ".private" / f"{run.name}.thresholds.key").unlink()
    with pytest.raises(ValueError, match="secret"):
        Run.opened(run.folder).executed(quiet)
    assert entries(run)[f"{run.name}/thresholds thresholds"] == 1


def test_a_budget_that_would_do_for_the_models_alone_refuses_the_thresholds(tmp_path):
    settings = ["privacy.rounds=1"]
    noisy = QUANTILES.replace("epsilon = 8.0", "noise_multiplier = 9.0")
    constant = noisy.replace("{ quantile = 0.5 }", "0.5")
    book = Ledger(tmp_path / "ledger.sqlite")
    limit = guarantee(Recipe.parsed(constant, settings).spendings(), 1e-5).epsilon + 0.01
    book.set_budget(Budget(population="digits", epsilon=limit, delta=1e-5))
    with pytest.raises(PrivacySpentError, match="This run would take 'digits'"):
        created(tmp_path, *settings, recipe=noisy, seed=None)
    assert book.spendings("digits", reserved=True) == []
    assert not list(tmp_path.glob("tiny-*"))
    created(tmp_path, *settings, recipe=constant, seed=None)


def test_an_abandoned_run_returns_the_thresholds_too(tmp_path):
    run = created(tmp_path, "privacy.rounds=1", recipe=QUANTILES, seed=None)
    book = Ledger(run.address)
    assert len(book.spendings("digits", reserved=True)) == 3
    run.abandoned(book)
    assert book.spendings("digits", reserved=True) == []


def test_labels_that_the_primary_model_does_not_know_are_labels_it_gets_wrong(tmp_path, crowd):
    """A refusal would tell whether anybody has such a label."""
    network = ConvClassifier(side=8, classes=2, widths=(4,), hidden=8)
    Primary(network, network.init(0)).save(tmp_path / "cnn.safetensors")
    settings = ["data.source=npz", f"data.path={crowd}", "privacy.population=100"]
    settings += [f"primary.model={tmp_path / 'cnn.safetensors'}"]
    run = created(tmp_path / "out", *settings, recipe=QUANTILES, seed=None)
    run.executed(quiet)
    assert (run.folder / "report.html").exists()


# Slices by attribute and by class

SLICES = TINY.replace(
    'deal_to = 30\n[selections.all]\nby = "everyone"',
    'deal_to = 30\nbug = { kind = "inverted", mark = "version" }\n'
    '[selections.new]\nby = "attribute"\nattribute = "version"\nvalues = [1]\n'
    '[selections.old]\nby = "attribute"\nattribute = "version"\nvalues = [0]',
)


def test_the_two_releases_of_an_app_are_compared_at_the_price_of_one(tmp_path, monkeypatch):
    trained = {}

    class Overheard(SimulatedCurator):
        def __init__(self, population, plan, **options):
            trained[options["account"].part] = population
            super().__init__(population, plan, **options)

    monkeypatch.setattr(site, "SimulatedCurator", Overheard)
    run = created(tmp_path, "privacy.rounds=1", recipe=SLICES)
    report = run.executed(quiet)
    assert {side["label"] for side in report.runs} == {"new", "old"}
    assert entries(run) == paid(run, 1, "new") | paid(run, 1, "old")
    alone = Model.open(run.folder / "new" / "model.safetensors").sampled(1, 0).guarantee.epsilon
    assert report.guarantee.epsilon == pytest.approx(alone, rel=1e-9)
    sizes = {name: len(population) for name, population in trained.items()}
    assert sum(sizes.values()) == 30
    assert min(sizes.values()) >= 5
    assert all(list(population.columns) == ["x", "y"] for population in trained.values())
    brightness = {name: p.take(np.arange(sizes[name]))["x"].float().mean() for name, p in trained.items()}
    assert brightness["new"] > brightness["old"] + 30


def test_slices_of_real_attributes_are_read_from_the_file(tmp_path, crowd):
    with np.load(crowd) as whole:
        columns = dict(whole)
    versions = (columns["user"] - ID) % 2
    versions[:7:2] = 1  # the first user holds both values, and is in neither group
    np.savez(crowd, **columns, hsf=versions)
    sides = SLICES.replace('"version"', '"hsf"').replace('bug = { kind = "inverted", mark = "hsf" }\n', "")
    settings = ["data.source=npz", f"data.path={crowd}", "data.attributes=['hsf']", "privacy.population=100"]
    settings += ["privacy.rounds=1", "privacy.count_noise=0.01"]
    sides = sides.replace("deal_to = 30\n", "").replace("epsilon = 8.0", "noise_multiplier = 1.0")
    run = created(tmp_path / "out", *settings, recipe=sides)
    run.executed(quiet)
    counts = [json.loads((run.folder / side / "count.json").read_text())["noisy_units"] for side in ("new", "old")]
    assert counts == pytest.approx([30, 30], abs=0.2)


NOBODY = {
    "attribute": 'by = "attribute"\nattribute = "version"\nvalues = [7]',
    "class": 'by = "class"\nclasses = [77]',
    "learnt": 'by = "accuracy"\nat_least = { quantile = 0.999 }\nbelow = 0.001',
}


@pytest.mark.parametrize("name", NOBODY)
def test_a_selection_of_nobody_gets_no_model(tmp_path, name):
    chosen = re.sub(r"\[selections.new\][^[]*\[1\]", f"[selections.new]\n{NOBODY[name]}\n", SLICES)
    settings = ["privacy.rounds=1", "privacy.count_noise=1.0", "primary.epochs=1", "primary.widths=[4]"]
    run = created(tmp_path, *settings, recipe=chosen)
    report = run.executed(quiet)
    assert [side["label"] for side in report.runs] == ["old"]
    assert any(warning.startswith("new: a noisy head count") for warning in report.warnings)
    assert report.findings == ()


def test_a_missing_attribute_is_found_before_anything_is_set_aside(tmp_path):
    population, _ = data.digits(30)
    population.save(tmp_path / "folder")
    sides = SLICES.replace('bug = { kind = "inverted", mark = "version" }\n', "").replace("deal_to = 30\n", "")
    with pytest.raises(ValueError, match="'version' is not registered to select by"):
        created(tmp_path, "data.source=population", f"data.path={tmp_path / 'folder'}", recipe=sides, seed=None)
    assert Ledger(tmp_path / "ledger.sqlite").runs() == []


# Few users, no noise


def test_a_group_with_too_few_users_gets_no_model_and_no_finding(tmp_path):
    run = created(tmp_path, "privacy.minimum_users=100")
    report = run.executed(quiet)
    assert (report.findings, report.runs, report.exhibits) == ((), (), ())
    (warning,) = report.warnings
    assert warning.startswith("all: a noisy head count found fewer than 100 users")
    assert entries(run) == {f"{run.name}/all count": 1}
    assert "the price that was promised stands" in warning
    assert report.guarantee == run.promised()  # a lower price would tell that a noisy count was small
    assert not list(run.folder.rglob("model.safetensors"))
    assert (run.folder / "report.html").exists()
    assert (run.folder / "MANIFEST.json").exists()


def test_of_two_groups_the_one_with_enough_users_is_shown_alone(tmp_path):
    by_example = 'by = "{}"\nminimum_examples = 1'
    nobody = PAIR.replace(by_example.format("wrong"), 'by = "accuracy"\nbelow = 0.001').replace(
        by_example.format("right"), 'by = "accuracy"\nat_least = 0.001'
    )
    run = created(tmp_path, "privacy.rounds=1", "privacy.count_noise=1.0", recipe=nobody)
    report = run.executed(quiet)
    assert [each["label"] for each in report.runs] == ["high"]
    assert report.findings == ()
    assert any(warning.startswith("low: ") for warning in report.warnings)
    assert entries(run) == {f"{run.name}/low count": 1} | paid(run, 1, "high")
    assert "score" not in report.text()


@pytest.mark.parametrize("minimum", [1, 100])
def test_the_price_in_the_report_does_not_tell_whether_a_group_was_too_small(tmp_path, minimum):
    run = created(tmp_path, "privacy.rounds=1", f"privacy.minimum_users={minimum}", recipe=PAIR)
    report = run.executed(quiet)
    assert len(report.runs) == (2 if minimum == 1 else 0)
    assert report.guarantee == run.promised()
    told = json.loads((run.folder / "report.json").read_text())["guarantee"]
    assert told["epsilon"] == json.loads((run.folder / "plan.json").read_text())["guarantee"]["epsilon"]


@pytest.mark.parametrize("apart", [True, False])
def test_epsilon_so_far_is_that_of_the_whole_run(tmp_path, apart):
    """Of the second model it holds the first: what both released, or the dearer of two groups that share nobody."""
    recipe = PAIR
    if apart:
        recipe = recipe.replace('by = "wrong"\nminimum_examples = 1', 'by = "accuracy"\nbelow = 0.5')
        recipe = recipe.replace('by = "right"\nminimum_examples = 1', 'by = "accuracy"\nat_least = 0.5')
    run, told = created(tmp_path, "privacy.rounds=2", "privacy.minimum_users=1", recipe=recipe), []
    report = run.executed(lambda name, done, rounds, facts: told.append((name, done, facts)))
    rounds = {(name, done): facts["epsilon_so_far"] for name, done, facts in told}
    first, second = run.recipe.selections
    if (second, 2) in rounds:
        assert rounds[second, 2] == pytest.approx(report.guarantee.epsilon, abs=1e-3)
        assert (rounds[second, 1] == rounds[first, 2]) == apart
        assert rounds[second, 1] >= rounds[first, 2] > rounds[first, 1]
    assert rounds[first, 2] == pytest.approx(run.recipe.guarantee(run.recipe.spendings()[:1]).epsilon, abs=1e-3)
    assert all(facts["simulated"] is True for _, _, facts in told)
    for path in run.folder.glob("*/metrics.jsonl"):
        assert all(json.loads(line)["simulated"] is True for line in path.read_text().splitlines())


def test_metrics_of_real_noise_are_not_called_simulated(tmp_path):
    run = created(tmp_path, "privacy.rounds=1", "privacy.minimum_users=1", seed=None)
    run.executed(quiet)
    assert "simulated" not in (run.folder / "all" / "metrics.jsonl").read_text()


def test_without_noise_every_epsilon_is_infinite(tmp_path):
    silent = TINY.replace("epsilon = 8.0", "noise_multiplier = 0.0")
    run = created(tmp_path, "privacy.rounds=2", recipe=silent)
    told = []
    report = run.executed(lambda name, done, rounds, facts: told.append(facts["epsilon_so_far"]))
    assert report.guarantee.epsilon == math.inf
    assert told == ["infinity", "infinity"]
    for name in ("plan.json", "report.json"):
        assert json.loads((run.folder / name).read_text())["guarantee"]["epsilon"] == "infinity"
    for path in (run.folder / "all" / "model.safetensors", run.folder / "samples" / "all.safetensors"):
        assert header(path)["guarantee"]["epsilon"] == "infinity"
    for name in ("statement.md", "report.html"):
        assert "INFINITE" in (run.folder / name).read_text()
    assert "INFINITE" in report.text()
    for path in run.folder.rglob("*"):
        if path.suffix in (".json", ".jsonl", ".md", ".html", ".toml"):
            assert not re.search(r'epsilon(_so_far)?[\s":=*]*[\d.]', path.read_text()), path.name


def test_a_model_that_diverged_still_ends_in_a_report(tmp_path):
    wild = PAIR.replace('generator = { kind = "adam", rate = 1e-3 }', "generator = { rate = 1e30 }")
    run = created(tmp_path, "privacy.rounds=2", "privacy.minimum_users=1", recipe=wild)
    report = run.executed(quiet)
    assert report.findings == ()
    assert {warning.partition(":")[0] for warning in report.warnings} == {"low", "high"}


# Silence


USERS = 61
ID = 987654321


@pytest.fixture
def crowd(tmp_path):
    """61 users with ids nobody could guess, and 7 images each: 427 in all."""
    rng = np.random.default_rng(0)
    ids = np.repeat(ID + np.arange(USERS), 7)
    path = tmp_path / "crowd.npz"
    np.savez(path, x=rng.integers(0, 256, (len(ids), 8, 8), dtype=np.uint8), y=rng.integers(0, 10, len(ids)), user=ids)
    return path


def test_nothing_that_leaves_a_run_tells_a_user_or_how_many_there_are(tmp_path, crowd, monkeypatch, capfd):
    released = []

    class Overheard(SimulatedCurator):
        def noisy_mean(self, contribute, message):
            answer = super().noisy_mean(contribute, message)
            released.append(answer)
            return answer

    monkeypatch.setattr(site, "SimulatedCurator", Overheard)
    settings = ["data.source=npz", f"data.path={crowd}", "privacy.population=100", "privacy.rounds=2"]
    run = created(
        tmp_path / "out", *settings, recipe=TINY.replace("deal_to = 30\n", "").replace("users = 30", "users = 50")
    )
    told = []
    report = run.executed(lambda *facts: told.append(repr(facts)))
    noisy = round(float(released[0]["units"]), 1)
    assert json.loads((run.folder / "all" / "count.json").read_text()) == {"noisy_units": noisy, "simulated": True}
    assert noisy != USERS
    assert abs(noisy - USERS) < 6 * 4
    said = {"watcher": "".join(told), "report": report.text(), "output": "".join(capfd.readouterr())}
    for path in run.folder.rglob("*"):
        if path.suffix in (".json", ".jsonl", ".md", ".html", ".toml"):
            said[path.name] = path.read_text()
        elif path.suffix == ".safetensors":
            said[path.name] = json.dumps(header(path))
    with sqlite3.connect(run.address) as book:
        said["ledger"] = "\n".join(map(str, book.execute("select * from entries").fetchall()))
    assert len(said) > 10
    for name, text in said.items():
        text = re.sub(r"data:image/png;base64,[\w+/=]+", "", text)
        assert "98765" not in text, name
        for secret in (USERS, 7 * USERS):
            assert not re.search(rf"(?<![\w.,#-]){secret}(?![\w.%])", text), (name, secret)


def test_a_checkpoint_tells_no_user_and_no_count(tmp_path, crowd):
    run = created(tmp_path / "out", "data.source=npz", f"data.path={crowd}", "privacy.population=100")
    with pytest.raises(KeyboardInterrupt):
        run.executed(interrupting(2))
    state, about = tensorfiles.read(run.folder / "all" / "checkpoint.safetensors")
    assert set(about) == {"recipe_sha256", "engine", "memory"}
    assert about["memory"] is None  # nothing is remembered
    assert all(USERS not in leaf.shape for leaf in state.values())
    assert str(ID) not in json.dumps(about)


def test_data_that_changed_under_an_interrupted_run_gets_no_second_answer(tmp_path, crowd):
    run = created(tmp_path / "out", "data.source=npz", f"data.path={crowd}", "privacy.population=100")
    with pytest.raises(KeyboardInterrupt):
        run.executed(interrupting(2))
    with np.load(crowd) as whole:
        columns = dict(whole)
    columns["x"][0] = 255 - columns["x"][0]
    np.savez(crowd, **columns)
    with pytest.raises(DataError, match="they have changed"):
        Run.opened(run.folder).executed(quiet)
    assert entries(run) == paid(run, 2)
    columns["x"][0] = 255 - columns["x"][0]
    np.savez(crowd, **columns)
    Run.opened(run.folder).executed(quiet)
    assert entries(run) == paid(run, run.recipe.privacy.rounds)


def test_a_run_that_lost_the_tag_of_its_data_does_not_go_on(tmp_path):
    run = created(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        run.executed(interrupting(2))
    (run.folder / "data.json").unlink()
    with pytest.raises(DataError, match="they have changed"):
        Run.opened(run.folder).executed(quiet)


def test_example_level_privacy_counts_examples(tmp_path):
    run = created(tmp_path, "privacy.rounds=1", "privacy.unit=example", "privacy.users=450", "privacy.population=600")
    report = run.executed(quiet)
    assert report.guarantee.unit == "example"
    counted = json.loads((run.folder / "all" / "count.json").read_text())["noisy_units"]
    assert counted == pytest.approx(450, abs=6 * 4)


def test_a_run_is_resumed_from_another_folder(tmp_path, monkeypatch, finished):
    """Paths of the ledger are kept whole."""
    monkeypatch.chdir(tmp_path)
    out = pathlib.Path("out")
    run = Run.created(Recipe.parsed(TINY), out, address=out / "ledger.sqlite", seed=0, device="cpu")
    with pytest.raises(KeyboardInterrupt):
        run.executed(interrupting(1))
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    resumed = Run.opened(tmp_path / "out" / run.name)
    resumed.executed(quiet)
    assert_same(generator(resumed), generator(finished.run))
    assert entries(resumed) == paid(run, 4)


def test_the_resolved_recipe_can_be_run_again_by_itself(finished, tmp_path):
    again = created(tmp_path, recipe=(finished.folder / "recipe.toml").read_text())
    assert to_toml(again.recipe) == (finished.folder / "recipe.toml").read_text()


def test_more_users_than_the_recipe_says_cost_nothing_and_are_not_counted(tmp_path, crowd):
    told = ["data.source=npz", f"data.path={crowd}", "privacy.population=30", "privacy.users=20"]
    with pytest.raises(DataError, match="their owner says") as caught:
        created(tmp_path / "out", *told, recipe=TINY.replace("deal_to = 30\n", ""), seed=None)
    assert str(USERS) not in str(caught.value)
    assert Ledger(tmp_path / "out" / "ledger.sqlite").runs() == []


def test_every_number_of_a_simulated_run_says_so(tmp_path):
    run = created(tmp_path, "privacy.rounds=1", "privacy.count_noise=1.0", recipe=QUANTILES, seed=1)
    run.executed(quiet)
    found = [
        path for path in run.folder.rglob("*.json*") if path.name in ("count.json", "thresholds.json", "metrics.jsonl")
    ]
    assert len(found) == 5  # one of the thresholds, two of each group
    assert all('"simulated": true' in path.read_text() for path in found)
    assert all(
        json.loads((run.folder / name).read_text())["guarantee"]["simulated"] for name in ("plan.json", "report.json")
    )


def test_a_checkpoint_that_somebody_else_wrote_is_not_gone_on_with(tmp_path):
    """Else any weights would come out as a model that the ledger vouches for."""
    run = created(tmp_path, seed=None)
    with pytest.raises(KeyboardInterrupt):
        run.executed(interrupting(1))
    path = run.folder / "all" / "checkpoint.safetensors"
    kept, (state, about) = path.read_bytes(), tensorfiles.read(path)
    tensorfiles.write(path, state | {"round": torch.tensor(4)}, about)
    with pytest.raises(ValueError, match="that this run wrote in all; it was changed"):
        Run.opened(run.folder).executed(quiet)
    path.write_bytes(kept)
    Run.opened(run.folder).executed(quiet)
    assert list((tmp_path / ".private").iterdir()) == []
