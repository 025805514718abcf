"""The table of generators: every seed is a look of its own, and nothing that was measured once is measured again."""

import dataclasses
import json

import numpy as np
import pytest
import torch
from command_line import fedlens

from fedlens.evaluation import suite
from fedlens.evaluation.protocol import Protocol
from fedlens.experiments import generators
from fedlens.experiments.generators import Bench, Setup, Split

TINY = Protocol(samples=40, seeds=2, feature_epochs=1, compared=20, classifiers=("gaussian_nb", "decision_tree"))
ROWS = (
    Setup(name="some", data="mnist", unit="example", epsilon=50.0, family="moments", sets=("look.frequencies=9",)),
    Setup(name="others", data="mnist", unit="user", epsilon=50.0, family="moments", sets=("look.frequencies=9",)),
)


def written(path, writers=12):
    rng = np.random.default_rng(0)
    arrays = {}
    for part, count in (("train", 10 * writers), ("test", 40)):
        labels = np.arange(count) % 10
        images = rng.integers(0, 60, (count, 28, 28), dtype=np.uint8)
        for image, label in zip(images, labels, strict=True):
            image[:, 2 * label : 2 * label + 6] += 120
        arrays |= {f"x_{part}": images, f"y_{part}": labels.astype(np.uint8)}
    arrays["writer_train"] = np.repeat(np.arange(writers), 10)
    np.savez(path, **arrays)


@pytest.fixture
def work(tmp_path, monkeypatch):
    """On few images, with two seeds."""
    written(tmp_path / "mnist_by_writer.npz")
    monkeypatch.setattr(generators, "SEEDS", 2)
    return Bench(out=tmp_path / "out", folder=tmp_path, device="cpu", say=lambda line: None)


def test_every_seed_is_a_look_of_its_own_and_the_table_shows_their_spread(work):
    generators.trained(ROWS, work)
    first, second = (generators._drawn(work.model(ROWS[0], seed), 5, 0, "cpu")[0] for seed in (0, 1))
    assert not torch.equal(first, second)
    results = generators.measured(ROWS, work, TINY, cores=1)
    assert [result["units"] for result in results] == [120, 12]
    assert all(len(result["evaluation"]["learnt"][0]["accuracy"]["values"]) == 2 for result in results)
    lines = generators.table(results).splitlines()
    assert len(lines) == 2 + len(ROWS)
    assert "120 examples | 49.99 | moments" in lines[2]
    assert (work.out / "samples" / "some.png").exists()


def test_what_is_there_is_not_made_or_measured_again(work, monkeypatch):
    generators.trained(ROWS[:1], work)
    before = generators.measured(ROWS[:1], work, TINY, cores=1)
    monkeypatch.setattr(generators, "_train", lambda *given: pytest.fail("trained again"))
    monkeypatch.setattr(generators, "_measure", lambda *given: pytest.fail("measured again"))
    generators.trained(ROWS[:1], work)
    assert generators.measured(ROWS[:1], work, TINY, cores=1) == before


FIT = "look.features=198", "look.steps=2", "look.batch=40"
ROUNDS = "privacy.rounds=2", "model.critic_widths=[4]", "model.generator_widths=[16,8]", "training.generator_steps=1"
FEW = {"embedding": FIT, "moments": ("look.frequencies=9",), "gan": ROUNDS, "started": (*FIT, *ROUNDS)}
SMALL = "model.critic_widths=[3,4]", "model.generator_hidden=4", "training.batch=10", "training.local_steps=1"
WARM, SHARDS = "training.warm_steps=1", "privacy.shards=4"
FEW |= {
    "gs-wgan": (*SMALL, WARM, SHARDS, "privacy.groups=4", "privacy.rounds=4"),
    "gs-wgan-all": (*SMALL, WARM, SHARDS, "privacy.rounds=2"),
    "gs-wgan-users": (*SMALL, WARM, "privacy.rounds=2"),
    "datalens": (*SMALL, SHARDS, "model.generator_widths=[8,4]", "privacy.top_k=9", "privacy.rounds=2"),
}


@pytest.mark.parametrize("unit", ["example", "user"])
@pytest.mark.parametrize("family", FEW)
def test_a_row_of_every_kind_is_trained_drawn_from_and_measured(work, family, unit):
    row = Setup(name="tiny", data="mnist", unit=unit, epsilon=50.0, family=family, sets=FEW[family])
    (result,) = generators.reproduced([row], work, TINY, cores=1)
    assert result["family"] == family
    assert len(result["evaluation"]["scores"]) == 6
    assert result["epsilon"] == pytest.approx(50, rel=1e-3)
    assert (work.out / "table.md").read_text() == generators.table([result])


def test_when_time_is_up_whole_rows_are_there_and_the_next_call_goes_on(work, monkeypatch):
    now = iter([0.0, 0.0, 0.0, *[9.0] * 9])  # enough for two seeds of one row, and for measuring it
    with monkeypatch.context() as patched:
        patched.setattr(generators.time, "time", lambda: next(now))
        first = generators.reproduced(ROWS, work, TINY, cores=1, until=5.0)
    assert [result["name"] for result in first] == ["some"]
    kept = (work.out / "rows" / "some.json").read_bytes()
    assert not work.notes(ROWS[1], 0).exists()
    second = generators.reproduced(ROWS, work, TINY, cores=1)
    assert [result["name"] for result in second] == ["some", "others"]
    assert second[0] == first[0]
    assert (work.out / "rows" / "some.json").read_bytes() == kept


def test_a_model_that_is_gone_is_made_again_unless_it_was_measured(work, monkeypatch):
    generators.trained(ROWS[:1], work)
    work.model(ROWS[0], 1).unlink()
    generators.trained(ROWS[:1], work)
    assert work.model(ROWS[0], 1).exists()
    results = generators.measured(ROWS[:1], work, TINY, cores=1)
    for seed in (0, 1):
        work.model(ROWS[0], seed).unlink()
    monkeypatch.setattr(generators, "_train", lambda *given: pytest.fail("trained again"))
    assert generators.reproduced(ROWS[:1], work, TINY, cores=1) == results


def test_results_of_other_settings_are_not_mixed_in(work):
    generators.trained(ROWS[:1], work)
    with pytest.raises(ValueError, match="take another --out"):
        generators.trained(ROWS[:1], dataclasses.replace(work, sets=("look.jitter=0.2",)))


def test_what_real_images_teach_is_learnt_once_for_all_rows(work, monkeypatch):
    generators.trained(ROWS, work)
    tasks, measured = [], suite.measured
    monkeypatch.setattr(suite, "measured", lambda task, *a, **k: tasks.append(task) or measured(task, *a, **k))
    one, other = generators.measured(ROWS, work, TINY, cores=1)
    on_real = [task for task in tasks if task.trained_on == suite.REAL]
    assert len(on_real) == len(set(on_real)) > 0
    assert [row["real"] for row in one["evaluation"]["learnt"]] == [
        row["real"] for row in other["evaluation"]["learnt"]
    ]


def test_an_evaluation_of_other_images_is_no_reference(work):
    """Its feature network tells."""
    data = Split.prepared("mnist", work.out, work.folder, tuning=False)
    real, synthetic = data.real(), (torch.rand(60, 1, 28, 28) * 2 - 1, torch.arange(60) % 10)
    before = suite.evaluated(synthetic, real, TINY)
    other = suite.Real.of(-real.images, real.labels, -real.test_images, real.test_labels)
    with pytest.raises(ValueError, match="on the same real images"):
        suite.evaluated(synthetic, other, TINY, before=before)


def test_settings_are_chosen_on_every_sixth_writer_whom_no_result_is_tested_on(work):
    tuning, results = (Split.prepared("mnist", work.out, work.folder, tuning=tuning) for tuning in (True, False))
    with np.load(tuning.path) as held, np.load(results.path) as all_of_them:
        assert len(held["y_train"]) + len(held["y_test"]) == len(all_of_them["y_train"])
        assert set(held["user"]) == set(range(12)) - {5, 11}
        assert not any((image == all_of_them["x_test"]).all((1, 2)).any() for image in held["x_test"])
    assert (tuning.owners, results.owners) == (10, 12)


@pytest.mark.parametrize("row", generators.ROWS, ids=lambda row: row.name)
def test_every_row_is_a_recipe_whose_price_is_its_epsilon(row, tmp_path):
    written(tmp_path / "mnist_by_writer.npz")
    with np.load(tmp_path / "mnist_by_writer.npz") as held:
        np.savez(tmp_path / "fashion_mnist.npz", **{name: held[name] for name in generators.ARRAYS})
    sets = ["privacy.shards=20"] if any("shards" in one for one in row.settings) else []
    sets += ["privacy.groups=20"] if any("groups" in one for one in row.settings) else []
    recipe = Bench(out=tmp_path / "out", folder=tmp_path, device="cpu", sets=tuple(sets)).recipe(row, 1)
    assert recipe.guarantee(recipe.spendings()).epsilon == pytest.approx(row.epsilon, rel=1e-3)
    assert str(recipe.privacy.unit) == row.unit
    trained = dict.fromkeys(("gan", "started"), "fedavg-gan") | dict.fromkeys(generators.FEEDBACK, "feedback-gan")
    assert recipe.algorithm_name == trained.get(row.family, "look")
    assert ("first" in recipe.plans) == (row.family == "started")


def test_a_row_is_made_and_measured_from_the_command_line(tmp_path, monkeypatch):
    written(tmp_path / "mnist_by_writer.npz")
    monkeypatch.setenv("FEDLENS_DATA", str(tmp_path))
    monkeypatch.setattr(generators, "ROWS", ROWS)
    monkeypatch.setattr(generators, "SEEDS", 1)
    few = dataclasses.replace(TINY, seeds=1)
    monkeypatch.setattr(generators, "protocol", lambda named: dataclasses.replace(few, classifiers=named))
    asked = ["--row", "some", "--out", tmp_path / "out", "--tune", "--set", "privacy.epsilon=60"]
    asked += ["--classifiers", "gaussian_nb", "--device", "cpu"]
    done = fedlens("reproduce", "generators", *asked, "--json")
    assert done.code == 0, done.err
    (result,) = json.loads(done.out)
    assert result["epsilon"] == pytest.approx(60, rel=1e-3)
    assert (tmp_path / "out" / "tuning" / "table.md").exists()


def test_options_of_generators_do_not_go_with_other_results(tmp_path):
    done = fedlens("reproduce", "sensitivity", "--tune", "--out", tmp_path)
    assert (done.code, "with generators only" in done.err) == (2, True)
