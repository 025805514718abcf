"""The table of detection against epsilon: rows, seeds, models shared where they are the same, and honest counts."""

import dataclasses
import json

import pytest
import torch

from fedlens.curators.simulated import SimulatedCurator
from fedlens.experiments import images as of_images
from fedlens.experiments import trials as experiments
from fedlens.experiments.trials import CLEAN, Row, Trial
from fedlens.media.images.samples import Samples

SMALL = (
    "data.deal_to=30",
    "privacy.users=15",
    "privacy.rounds=2",
    "privacy.minimum_users=2",
    "training.generator_steps=1",
    "primary.epochs=1",
    *of_images.SLICES,
)


def row(kind, name, **changes):
    return Row(
        **{"name": name, "kind": kind, "epsilon": 8, "recipe": "digits_gan.toml", "sets": SMALL, "seeds": 2} | changes
    )


ROWS = [row(CLEAN, "clean"), row("inverted", "one"), row("mirrored", "two")]


def counted(monkeypatch):
    """How many models were trained."""
    asked = []
    plain = SimulatedCurator._asked
    monkeypatch.setattr(
        SimulatedCurator, "_asked", lambda self, *a: asked.append((self._account.run, self._stage)) or plain(self, *a)
    )
    return lambda: len({run for run, stage in asked if stage == "train"})


@pytest.mark.parametrize("together", [3, 12])
def test_every_trial_gets_samples_and_equal_ones_are_trained_once(tmp_path, monkeypatch, together):
    models = counted(monkeypatch)
    experiments.trained(ROWS, tmp_path, device="cpu", together=together, say=lambda line: None)
    trials = experiments.trials(ROWS)
    assert len(trials) == 12
    made = {(t.row.name, t.seed, t.group): Samples.open(t.file(tmp_path)) for t in trials}
    assert all(samples.images.shape == (512, 1, 8, 8) for samples in made.values())
    assert all(samples.guarantee.epsilon <= 8.0 for samples in made.values())
    # The healthy users of a seed are the same in all three rows, and the marked users without a bug are others.
    for seed in (0, 1):
        healthy = [made[name, seed, "high"].images for name in ("clean", "one", "two")]
        assert torch.equal(healthy[0], healthy[1])
        assert torch.equal(healthy[0], healthy[2])
        assert not torch.equal(made["one", seed, "low"].images, made["two", seed, "low"].images)
    assert not torch.equal(made["clean", 0, "low"].images, made["clean", 1, "low"].images)
    assert models() == 8


def test_what_is_there_is_not_made_again(tmp_path, monkeypatch):
    experiments.trained(ROWS[:1], tmp_path, device="cpu", say=lambda line: None)
    models = counted(monkeypatch)
    experiments.trained(ROWS[:1], tmp_path, device="cpu", say=lambda line: None)
    assert models() == 0


def test_a_long_training_tells_how_far_it_is(tmp_path, monkeypatch):
    monkeypatch.setattr(experiments, "LINES", 2)
    said = []
    slow = row(CLEAN, "slow", seeds=1, sets=(*SMALL, "privacy.rounds=5"))
    experiments.trained([slow], tmp_path, device="cpu", say=said.append)
    assert [line.partition(" after")[0] for line in said[:-1]] == [
        f"2 models together: round {done}" for done in (2, 4)
    ]
    assert said[-1].startswith("2 models together in ")


def test_no_training_starts_after_the_deadline(tmp_path):
    said = []
    experiments.trained(ROWS[:1], tmp_path, device="cpu", until=0, say=said.append)
    assert said == ["out of time"]
    assert not list(tmp_path.rglob("*-low.safetensors"))


def test_a_group_that_is_too_small_is_refused_and_counted(tmp_path):
    few = row("inverted", "few", seeds=1, sets=(*SMALL, "privacy.minimum_users=500"))
    experiments.trained([few], tmp_path, device="cpu", say=lambda line: None)
    (summary,) = experiments.diagnosed([few], tmp_path, say=lambda line: None)
    assert (summary["refused"], summary["tried"], summary["named"]) == (2, 0, 0)


def samples_for(tmp_path, given, images):
    """Writes down what a model drew, without training one."""
    for trial in experiments.trials([given]):
        spending = trial.recipe.spendings()[0]
        made = Samples(images=images(trial), label=trial.group, spending=spending, delta=1e-5)
        made.save(trial.file(tmp_path))


def letters(trial: Trial):
    rng = torch.Generator().manual_seed(10 * trial.seed + (trial.group == "low"))
    letter = torch.full((1, 8, 8), -1.0)
    letter[:, 1:7, 2] = letter[:, 1, 2:6] = letter[:, 3, 2:5] = 0.9
    return (letter + 0.1 * torch.randn(100, 1, 8, 8, generator=rng)).clamp(-1, 1)


def test_the_summary_counts_what_was_named(tmp_path):
    """Of two seeds, which need not begin at 0, one shows the planted bug and one shows another."""
    given = row("inverted", "half", first_seed=3)

    def drawn(trial):
        change = {3: torch.neg, 4: lambda x: x.rot90(1, (2, 3))}[trial.seed]
        return change(letters(trial)) if trial.group == "low" else letters(trial)

    samples_for(tmp_path, given, drawn)
    (summary,) = experiments.diagnosed([given], tmp_path, say=lambda line: None)
    assert (summary["tried"], summary["named"], summary["first"], summary["named_otherwise"]) == (2, 1, 1, 1)
    told = [(pair["left"], pair["right"], pair["named"]) for pair in summary["pairs"]]
    assert told == [("half/3-low", "half/3-high", "inverted"), ("half/4-low", "half/4-high", "rotated-90")]
    assert "| 1 of 2 | 1 of 2 (scores" in of_images.table([summary])


def test_a_row_without_a_bug_is_all_pairs_of_its_models(tmp_path):
    given = dataclasses.replace(row(CLEAN, "clean"), seeds=3)
    samples_for(tmp_path, given, letters)
    (summary,) = experiments.diagnosed([given], tmp_path, say=lambda line: None)
    assert (summary["tried"], summary["named_otherwise"], summary["bug"], summary["affected"]) == (15, 0, "none", 0.0)
    json.dumps(summary)


def test_the_curve_shows_what_the_results_say():
    results = [
        {"bug": "inverted", "affected": 0.5, "split": "by accuracy", "epsilon": e, "named": n, "tried": 5}
        for e, n in ((8.0, 5), (0.25, 0))
    ]
    picture = of_images.curve(results)
    assert picture.count("<circle") == 2
    assert 'cx="560.0" cy="40.0"' in picture
    assert 'cx="60.0" cy="210.0"' in picture


@pytest.mark.parametrize("given", of_images.ROWS, ids=lambda given: given.name)
def test_every_row_is_a_recipe_within_its_epsilon(given, monkeypatch):
    monkeypatch.setenv("FEDLENS_DATA", "/nowhere")
    recipe = given.opened(0)
    assert 0.98 * given.epsilon < recipe.guarantee(recipe.spendings()).epsilon <= given.epsilon
    assert recipe.privacy.delta == 1e-5
    assert set(recipe.selections) == {experiments.SUSPICIOUS, experiments.HEALTHY}
    assert recipe.data.bug.seed == recipe.seed == 0
    assert given.opened(3).data.bug.seed == 3


def test_the_second_look_at_no_bug_is_the_first_with_seeds_of_its_own(monkeypatch):
    monkeypatch.setenv("FEDLENS_DATA", "/nowhere")
    first, again = experiments.chosen_rows(["unchanged-8", "unchanged-8-again"], of_images.ROWS)
    assert dataclasses.replace(again, name=first.name, first_seed=0) == first
    tried = experiments.trials([first, again])
    seeds = [[trial.recipe.seed for trial in tried if trial.row is given] for given in (first, again)]
    assert [sorted(set(listed)) for listed in seeds] == [[0, 1, 2, 3, 4, 5], [6, 7, 8, 9, 10, 11]]
    assert all(trial.seed == trial.recipe.seed == trial.recipe.data.bug.seed for trial in tried)


def test_unknown_rows_are_told():
    with pytest.raises(ValueError, match="inverted-8"):
        experiments.chosen_rows(["purple-8"], of_images.ROWS)
