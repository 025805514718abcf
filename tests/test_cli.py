"""The command line: exit codes, clean JSON, errors that help and give nothing away."""

import errno
import io
import itertools
import json
import pathlib
import shlex
import sqlite3
import subprocess
import sys
import types

import numpy as np
import pytest
import warm_python
from command_line import GUARANTEE, SECRET, answer, fedlens, process, stopped_after_a_round, written
from PIL import Image
from toys import SHORT as TINY
from toys import SHORT_PAIR as PAIR
from toys import full_disk

from fedlens import cli
from fedlens.core import pins
from fedlens.curators.protocol import PrivacySpentError
from fedlens.data.population import Population
from fedlens.media.images.samples import Samples
from fedlens.recipes.recipe import Recipe
from fedlens.runs import planning
from fedlens.runs import run as runs


def entries(path):
    if not path.exists():
        return 0
    with sqlite3.connect(path) as book:
        return book.execute("select count(*) from entries where kind = 'release'").fetchone()[0]


@pytest.fixture
def recipe(tmp_path):
    return written(tmp_path, TINY)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A finished run of two models, made by a process of its own."""
    folder = tmp_path_factory.mktemp("made")
    started = process("run", written(folder, PAIR), "--out", folder / "runs", "--simulate", 0, "--json")
    out, err = started.communicate(timeout=120)
    (run,) = (folder / "runs").glob("tiny-*")
    return types.SimpleNamespace(code=started.returncode, out=out, err=err, run=run, out_folder=folder / "runs")


# Starting up


def test_help_comes_at_once_and_without_torch():
    script = """
import json, resource, sys
from fedlens import cli
sys.argv = ["fedlens", "--help"]
try:
    cli.main()
except SystemExit as left:
    code = left.code or 0
used = resource.getrusage(resource.RUSAGE_SELF)
heavy = [name for name in ("torch", "numpy", "scipy", "sklearn", "pydantic", "dp_accounting") if name in sys.modules]
print(json.dumps([code, used.ru_utime + used.ru_stime, heavy]), file=sys.stderr)
"""
    tries = []
    for _ in range(3):
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
        tries.append(json.loads(done.stderr.splitlines()[-1]))
    assert all(code == 0 and heavy == [] for code, _, heavy in tries)
    assert min(seconds for _, seconds, _ in tries) < 0.5
    assert all(name in done.stdout for name in ("demo", "init", "plan", "run", "compare", "report", "sample", "data"))


@pytest.mark.parametrize("command", ["demo", "init", "plan", "run", "compare", "report", "sample", "data check"])
def test_every_command_explains_itself_and_offers_json(command):
    done = fedlens(*command.split(), "--help")
    assert done.code == 0
    assert "--json" in done.out


# A run


def test_a_run_prints_its_report_as_json_and_nothing_else_to_standard_output(made):
    assert made.code == 0, made.err
    report = json.loads(made.out)
    assert report == json.loads((made.run / "report.json").read_text())
    assert isinstance(report["findings"], list)
    assert report["guarantee"].keys() >= GUARANTEE
    assert report["guarantee"]["epsilon"] <= 8.0
    assert [run["label"] for run in report["runs"]] == ["low", "high"]
    assert [(image["label"], image["round"]) for image in report["images"]] == [
        ("low", 1),
        ("high", 1),
        ("low", 2),
        ("high", 2),
    ]
    assert all((made.run / image["file"]).exists() for image in report["images"])


def test_a_run_tells_its_plan_and_its_progress_to_standard_error(made):
    assert f"{made.run.name}: planned epsilon 8.00 at delta 1e-05 per user (add/remove), SIMULATED" in made.err
    assert "low: round 2/2, epsilon so far" in made.err
    assert "high: round 2/2, epsilon so far" in made.err
    assert all(line.endswith(", SIMULATED") for line in made.err.splitlines() if ": round " in line)


def test_a_run_for_a_person_ends_with_the_page_to_open(tmp_path, recipe):
    done = fedlens("run", recipe, "--out", tmp_path / "runs", "--simulate", 0)
    assert done.code == 0
    assert "privacy: epsilon 8.00" in done.out
    page = pathlib.Path(done.out.splitlines()[-1])
    assert page.read_text().startswith("<!doctype html>")


def test_settings_can_be_changed_on_the_command_line(tmp_path, recipe):
    overrides = ["--set", "privacy.rounds=1", "--set", "name=renamed"]
    report = answer("run", recipe, *overrides, "--out", tmp_path / "runs", "--simulate", 0)
    assert report["title"] == "renamed"
    assert report["runs"][0]["releases"] == 2


def test_the_ledger_can_lie_elsewhere(tmp_path, recipe):
    answer("run", recipe, "--out", tmp_path / "runs", "--ledger", tmp_path / "books" / "all.sqlite", "--simulate", 0)
    assert entries(tmp_path / "books" / "all.sqlite") == 3
    assert not (tmp_path / "runs" / "ledger.sqlite").exists()


# Every other command


def test_init_writes_a_recipe_that_plan_accepts(tmp_path, monkeypatch):
    for task in ("T1", "T2", "T4"):
        path = tmp_path / f"{task}.toml"
        told = answer("init", "--task", task, "--data", "phones.npz", "--model", "cnn.safetensors", "--to", path)
        assert told == {"recipe": str(path), "task": task}
        told = answer("plan", path)
        assert told["guarantee"]["epsilon"] <= 8.0
        assert told["expected_seconds"] > 0
        monkeypatch.setattr(planning, "expected_seconds", lambda recipe: 60.0)  # takes seconds to measure


def test_init_names_its_own_file_in_the_commands_it_suggests(tmp_path):
    path = tmp_path / "mine.toml"
    done = fedlens("init", "--to", path)
    assert f"fedlens plan {path}" in done.out
    first = path.read_text().splitlines()[0]
    assert "mine.toml" in first


def test_init_overwrites_nothing(tmp_path):
    path = written(tmp_path, "precious")
    done = fedlens("init", "--to", path)
    assert done.code == 2
    assert "overwritten" in done.err
    assert path.read_text() == "precious"


def test_plan_states_the_guarantee_without_touching_data(tmp_path, recipe):
    absent = ["--set", "data.source=npz", "--set", f"data.path={tmp_path / 'absent.npz'}"]
    told = answer("plan", recipe, *absent)
    assert told["guarantee"].keys() >= GUARANTEE
    assert told["train"]["releases"] == 2
    assert told["noise_to_signal"] > 0
    assert told["epsilon_per_model"] == told["guarantee"]["epsilon"]
    done = fedlens("plan", recipe)
    assert "**epsilon 8.00 at delta 1e-05 per user (add/remove)**" in done.out
    assert "Not covered:" in done.out
    assert not list(tmp_path.glob("runs*"))


def test_plan_without_noise_admits_that_there_is_no_protection(tmp_path):
    path = written(tmp_path, TINY.replace("epsilon = 8.0", "noise_multiplier = 0.0"))
    assert answer("plan", path)["guarantee"]["epsilon"] == "infinity"
    assert "INFINITE (no protection)" in fedlens("plan", path).out


def test_compare_writes_and_prints_a_report(tmp_path, made):
    report = answer("compare", made.run / "low", made.run / "high", "--to", tmp_path / "page")
    assert [run["label"] for run in report["runs"]] == ["low", "high"]
    assert report["guarantee"].keys() >= GUARANTEE
    assert report == json.loads((tmp_path / "page" / "report.json").read_text())
    assert len(report["images"]) == 2
    assert all((tmp_path / "page" / image["file"]).exists() for image in report["images"])


def test_compare_costs_what_the_two_models_cost_jointly_and_nothing_more(tmp_path, made):
    before = entries(made.out_folder / "ledger.sqlite")
    joint = answer("compare", made.run / "low", made.run / "high", "--to", tmp_path / "page")["guarantee"]
    assert joint == json.loads((made.run / "report.json").read_text())["guarantee"]
    assert entries(made.out_folder / "ledger.sqlite") == before


def test_report_shows_a_finished_run_again(made):
    assert answer("report", made.run) == json.loads(made.out)
    done = fedlens("report", made.run)
    assert str(made.run / "report.html") in done.out


def test_report_of_one_model_is_made_on_the_spot(made):
    report = answer("report", made.run / "low")
    assert [run["label"] for run in report["runs"]] == ["low"]
    assert report["findings"] == []
    assert (made.run / "low" / "report.html").exists()


def test_sample_writes_images_that_carry_their_guarantee(tmp_path, made):
    told = answer("sample", made.run / "low", "--count", 20, "--seed", 3, "--to", tmp_path / "some.safetensors")
    samples = Samples.open(pathlib.Path(told["file"]))
    assert samples.images.shape == (20, 1, 8, 8)
    assert told["guarantee"].keys() >= GUARANTEE
    assert told["guarantee"]["epsilon"] == samples.guarantee.epsilon
    assert Image.open(told["shown"]).format == "PNG"


def test_samples_of_one_seed_are_the_same_and_of_another_are_not(tmp_path, made):
    images = []
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        path = tmp_path / f"{name}.safetensors"
        answer("sample", made.run / "low", "--count", 4, "--seed", seed, "--to", path)
        images.append(Samples.open(path).images)
    assert (images[0] == images[1]).all()
    assert not (images[0] == images[2]).all()


def test_the_picture_of_samples_does_not_overwrite_the_samples(tmp_path, made):
    done = fedlens("sample", made.run / "low", "--count", 4, "--to", tmp_path / "some.png", "--json")
    if done.code == 0:
        assert len(Samples.open(pathlib.Path(json.loads(done.out)["file"])).images) == 4
    else:
        assert (done.code, list(tmp_path.iterdir())) == (2, [])


def test_data_check_of_good_data_says_ok(tmp_path):
    columns = {"x": np.zeros((6, 8, 8), np.uint8), "y": np.zeros(6, int), "user": np.arange(6) // 2}
    np.savez(tmp_path / "good.npz", **columns)
    told = answer("data", "check", tmp_path / "good.npz")
    assert told == {"columns": {"x": "uint8 [1, 8, 8]", "y": "int64 []"}, "problems": [], "notes": []}
    Population.from_arrays("good", {"x": columns["x"][:, None]}, np.array([2, 4])).save(tmp_path / "good")
    done = fedlens("data", "check", tmp_path / "good")
    assert (done.code, done.out.splitlines()[-1]) == (0, "ok")


def test_data_check_of_bad_data_names_the_problem_and_fails(tmp_path):
    x = np.zeros((6, 1, 8, 8), np.float32)
    x[4] = np.nan
    Population.from_arrays("bad", {"x": x}, np.array([2, 0, 4])).save(tmp_path / "bad")
    done = fedlens("data", "check", tmp_path / "bad", "--json")
    assert done.code == 1
    problems = json.loads(done.out)["problems"]
    assert len(problems) == 2
    assert "user index 1" in problems[0]
    assert "row 4" in problems[1]


# Exit codes


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["run"], "a recipe, or --resume"),
        (["run", "{recipe}", "--resume", "{folder}"], "a recipe, or --resume"),
        (["run", "--resume", "{folder}"], "run.json"),
        (["run", "{folder}/absent.toml"], "there is no such file"),
        (["run", "{recipe}", "--set", "privacy.rounds=0", "--set", "side=none"], "2 problems in the recipe"),
        (["plan", "{recipe}", "--set", "privacy"], "--set a.b=value"),
        (["plan", "{recipe}", "--set", "privacy.epsilon=0.01"], "epsilon=0.01 above"),
        (["demo", "sounds"], "images"),
        (["init", "--task", "T7"], "T1, T2, T3, T4"),
        (["report", "{folder}"], "model.safetensors is missing"),
        (["sample", "{folder}"], "model.safetensors is missing"),
        (["compare", "{folder}", "{folder}"], "model.safetensors is missing"),
        (["data", "check", "{folder}/absent.npz"], "absent.npz; it is missing"),
        (["data", "check", "{folder}"], "population.json is missing"),
        (["frobnicate"], "No such command"),
        (["plan", "{recipe}", "--frobnicate"], "No such option"),
        (["sample", "{folder}", "--count", "0"], "--count"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_mistake_of_the_caller_is_explained_with_exit_code_2(tmp_path, recipe, monkeypatch, arguments, told):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    places = {"recipe": recipe, "folder": tmp_path / "empty"}
    done = fedlens(*(argument.format(**places) for argument in arguments))
    assert done.code == 2
    assert told in done.err
    assert done.out == ""
    assert "Traceback" not in done.err


def test_a_refused_run_leaves_nothing_behind(tmp_path, recipe):
    done = fedlens("run", recipe, "--set", "privacy.epsilon=0.01", "--out", tmp_path / "runs")
    assert done.code == 2
    assert not (tmp_path / "runs").exists()


def test_a_finished_run_is_not_resumed(made):
    done = fedlens("run", "--resume", made.run)
    assert done.code == 2
    assert "is complete" in done.err
    assert "fedlens report" in done.err


def test_a_spent_plan_ends_with_exit_code_3(tmp_path, recipe, monkeypatch):
    def spent(self, watch):
        raise PrivacySpentError("All 2 releases of the plan are spent.")

    monkeypatch.setattr(runs.Run, "executed", spent)
    done = fedlens("run", recipe, "--out", tmp_path / "runs")
    assert done.code == 3
    assert "All 2 releases of the plan are spent." in done.err


def test_data_changed_under_a_run_are_refused_without_a_further_charge(tmp_path, recipe, monkeypatch):
    rng = np.random.default_rng(0)
    columns = {
        "x": rng.integers(0, 256, (90, 8, 8), dtype=np.uint8),
        "y": np.zeros(90, int),
        "user": np.arange(90) // 3,
    }
    np.savez(tmp_path / "crowd.npz", **columns)
    sets = ["--set", "data.source=npz", "--set", f"data.path={tmp_path / 'crowd.npz'}"]
    sentence = stopped_after_a_round(monkeypatch, "run", recipe, *sets, "--out", tmp_path / "runs")
    before = entries(tmp_path / "runs" / "ledger.sqlite")
    np.savez(tmp_path / "crowd.npz", **columns | {"x": 255 - columns["x"]})
    done = fedlens(*shlex.split(sentence)[1:])
    assert done.code == 2
    assert "they have changed" in done.err
    assert entries(tmp_path / "runs" / "ledger.sqlite") == before == 2


def test_the_command_to_go_on_can_be_pasted_whatever_the_folder_is_called(tmp_path, recipe, monkeypatch):
    sentence = stopped_after_a_round(monkeypatch, "run", recipe, "--out", tmp_path / "my runs", "--simulate", 0)
    program, *arguments = shlex.split(sentence)
    assert program == "fedlens"
    assert fedlens(*arguments).code == 0
    assert entries(tmp_path / "my runs" / "ledger.sqlite") == 3


# As if somebody pressed it then: on a busy machine a signal from another process may come when all is done. And what a
# shell starts in the background ignores it, with all that it starts.
CTRL_C = """
import os, signal
signal.signal(signal.SIGINT, signal.default_int_handler)
from fedlens import cli
from fedlens.cli import progress
aside = progress.aside
def pressed(line):
    aside(line)
    if "round 4/" in line:
        os.kill(os.getpid(), signal.SIGINT)
progress.aside = pressed
cli.main()
"""


def test_ctrl_c_is_safe_in_a_real_process_and_the_run_goes_on(tmp_path):
    path, rounds = written(tmp_path, TINY.replace("rounds = 2", "rounds = 10")), 10
    started = subprocess.run(
        [sys.executable, "-c", CTRL_C, "run", path, "--out", "runs"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (started.returncode, started.stdout) == (130, "")
    assert "Traceback" not in started.stderr
    sentence = started.stderr.partition("Go on with: ")[2].strip()
    assert sentence.startswith("fedlens run --resume runs/tiny-")
    assert entries(tmp_path / "runs" / "ledger.sqlite") == 5  # the head count, and four rounds
    resumed = warm_python.module("fedlens.cli", *sentence.split()[1:], "--json", folder=tmp_path)
    assert resumed.returncode == 0, resumed.stderr
    assert json.loads(resumed.stdout)["runs"][0]["releases"] == rounds + 1
    assert "round 4/" not in resumed.stderr
    assert entries(tmp_path / "runs" / "ledger.sqlite") == rounds + 1
    assert not list((tmp_path / "runs" / ".private").iterdir())


def test_a_full_disk_ends_with_exit_code_1_and_the_way_to_go_on(tmp_path, recipe, monkeypatch):
    with monkeypatch.context() as patched:
        full_disk(patched, "model.safetensors")
        done = fedlens("run", recipe, "--out", tmp_path / "runs", "--simulate", 0)
    assert (done.code, done.out) == (1, "")
    assert "No space left on device" in done.err
    resume = done.err.partition("Go on with: fedlens ")[2].splitlines()[0]
    assert fedlens(*shlex.split(resume)).code == 0
    assert entries(tmp_path / "runs" / "ledger.sqlite") == 3


def test_a_file_that_may_not_be_read_is_named(tmp_path, recipe, monkeypatch):
    def forbidden(self, *arguments, **options):
        raise PermissionError(errno.EACCES, "Permission denied", str(self))

    monkeypatch.setattr(pins, "found", lambda: None)  # which is read first, and may be read
    monkeypatch.setattr(pathlib.Path, "open", forbidden)
    done = fedlens("plan", recipe)
    assert done.code == 1
    assert "Permission denied" in done.err
    assert "recipe.toml" in done.err


# Errors that give nothing away


def broken(monkeypatch, error):
    def executed(self, watch):
        raise error

    monkeypatch.setattr(runs.Run, "executed", executed)


@pytest.mark.parametrize("error", [RuntimeError, KeyError, TypeError, IndexError, AssertionError])
def test_the_text_of_an_internal_error_is_withheld(tmp_path, recipe, monkeypatch, error):
    monkeypatch.delenv("FEDLENS_DEBUG", raising=False)
    broken(monkeypatch, error(f"user {SECRET} holds [0.25, 0.75]"))
    done = fedlens("run", recipe, "--out", tmp_path / "runs")
    assert (done.code, done.out) == (1, "")
    assert SECRET not in done.err
    assert "0.25" not in done.err
    assert f"Internal error: {error.__name__} at test_cli.py:" in done.err
    assert "FEDLENS_DEBUG" in done.err


def test_the_text_of_an_internal_error_is_shown_to_who_asks_for_it(tmp_path, recipe, monkeypatch):
    monkeypatch.setenv("FEDLENS_DEBUG", "1")
    broken(monkeypatch, RuntimeError(f"user {SECRET}"))
    monkeypatch.setattr(sys, "argv", ["fedlens", "run", str(recipe), "--out", str(tmp_path / "runs")])
    with pytest.raises(RuntimeError, match=SECRET):
        cli.main()


def test_labels_are_not_quoted_when_they_are_refused(tmp_path):
    labels = np.array([f"name {SECRET}"] * 6)
    np.savez(tmp_path / "odd.npz", x=np.zeros((6, 8, 8), np.uint8), y=labels, user=np.arange(6))
    done = fedlens("data", "check", tmp_path / "odd.npz")
    assert done.code in (1, 2)
    assert SECRET not in done.err + done.out


def test_data_check_prints_no_id_and_no_count(tmp_path):
    ids = np.repeat(int(SECRET) + np.arange(61), 7)
    np.savez(tmp_path / "crowd.npz", x=np.zeros((427, 8, 8), np.uint8), y=np.zeros(427, int), user=ids)
    done = fedlens("data", "check", tmp_path / "crowd.npz")
    assert done.code == 0
    assert not any(number in done.out + done.err for number in ("98765", "61", "427"))


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_run_on_a_terminal_shows_bars_and_keeps_standard_output_clean(tmp_path, recipe):
    done = fedlens("run", recipe, "--out", tmp_path / "runs", "--simulate", 0, "--json", err=Terminal())
    assert done.code == 0
    assert json.loads(done.out)["title"] == "tiny"
    assert "2/2" in done.err
    assert "epsilon so far" in done.err


def test_a_resumed_run_refuses_settings_it_would_ignore(tmp_path, recipe, monkeypatch):
    """A run goes on with what it began with; silence would let a caller believe otherwise."""
    sentence = stopped_after_a_round(monkeypatch, "run", recipe, "--out", tmp_path / "runs", "--simulate", 0)
    done = fedlens(*sentence.split()[1:], "--set", "privacy.rounds=9")
    assert done.code == 2
    assert "--set" in done.err
    assert Recipe.open(next((tmp_path / "runs").glob("tiny-*/recipe.toml"))).privacy.rounds == 2


def test_data_convert_makes_a_folder_that_data_check_accepts(tmp_path):
    rng = np.random.default_rng(0)
    for user, label in itertools.product(("ada", "ben"), (0, 1)):
        folder = tmp_path / "pictures" / user / str(label)
        folder.mkdir(parents=True)
        for number in range(3):
            Image.fromarray(rng.integers(0, 256, (8, 8), np.uint8)).save(folder / f"{number}.png")
    done = fedlens("data", "convert", tmp_path / "pictures", tmp_path / "people", "--json")
    assert (done.code, done.err) == (0, "")
    assert json.loads(done.out)["columns"] == {"x": "uint8 [1, 8, 8]", "y": "int64 []"}
    assert "ada" not in done.out
    assert fedlens("data", "check", tmp_path / "people").code == 0
    again = fedlens("data", "convert", tmp_path / "pictures", tmp_path / "people")
    assert (again.code, again.out) == (2, "")
    (tmp_path / "pictures" / "ben" / "1" / "0.png").write_bytes(b"no picture")
    broken = fedlens("data", "convert", tmp_path / "pictures", tmp_path / "others")
    assert broken.code == 2
    assert "ben" not in broken.err.replace(str(tmp_path), "")
    assert not (tmp_path / "others").exists()
