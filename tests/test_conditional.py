"""Conditional pairs: labels as planes of pixels, from the users' examples to the samples in a report."""

import dataclasses
import json

import numpy as np
import pytest
import torch

from fedlens.algorithms import Adam, FedAvgGan
from fedlens.core import trees
from fedlens.curators.contributions import one_by_one
from fedlens.curators.engine import Engine
from fedlens.data.population import DataError, Population
from fedlens.media.images.samples import Model, Samples
from fedlens.models.gan import Gan
from fedlens.privacy import Everyone, L2Clip, Plan
from fedlens.recipes.recipe import Recipe
from fedlens.runs import planning
from fedlens.runs.run import Run

CLASSES = 3


@pytest.fixture
def pair(gan):
    return gan.conditional(CLASSES)


@pytest.fixture
def labelled(users):
    """The users of conftest, each example with a label."""
    labels = np.arange(len(users.columns["x"])) % CLASSES
    return dataclasses.replace(users, columns={**users.columns, "y": labels.astype(np.int64)})


def test_a_pair_must_have_a_plane_for_every_class(gan, pair):
    assert pair.classes == CLASSES
    assert pair.critic.channels == 1 + CLASSES
    with pytest.raises(ValueError, match="plane for each channel and each class"):
        dataclasses.replace(gan, generator=pair.generator)


def test_labels_are_planes_and_unknown_labels_are_none(pair):
    images = torch.rand(4, 1, 8, 8)
    shown = pair.shown(images, torch.tensor([0, 2, 3, -1]))
    assert torch.equal(shown[:, :1], images)
    planes = shown[:, 1:].mean((2, 3))
    assert planes.tolist() == [[1, 0, 0], [0, 0, 1], [0, 0, 0], [0, 0, 0]]


def test_latents_ask_for_classes_equally_often(pair):
    latents = pair.latents(3000, rng=torch.Generator().manual_seed(0))
    assert latents.shape == (3000, pair.generator.latent + CLASSES)
    assert (pair.labels(latents).bincount() / 3000 - 1 / 3).abs().max() < 0.04
    assert torch.equal(latents[:, -CLASSES:].sum(1), torch.ones(3000))


def test_a_generator_that_is_asked_for_another_class_draws_another_picture(pair):
    params = pair.generator.init(0)
    latents = pair.latents(64, rng=torch.Generator().manual_seed(0))
    other = latents.clone()
    other[:, -CLASSES:] = other[:, -CLASSES:].roll(1, -1)
    assert (pair.generator.images(params, latents) - pair.generator.images(params, other)).abs().mean() > 0.01


@pytest.mark.parametrize("chunk", [1, 3, 100])
def test_vectorised_equals_one_by_one(curator_of, pair, labelled, chunk):
    algorithm = FedAvgGan(gan=pair, batch=3, local_steps=3, local_rate=0.01, generator_batch=8)
    message = algorithm.message(algorithm.start(), torch.Generator().manual_seed(0))
    plan = Plan(sampling=Everyone(), bound=L2Clip(norm=0.05), noise_multiplier=0.0, releases=1, expected_contributors=1)
    answers = [
        curator_of(labelled, plan, engine=engine, examples_per_unit=9).noisy_mean(algorithm.critic_update, message)
        for engine in (Engine(run=one_by_one), Engine(chunk=chunk))
    ]
    torch.testing.assert_close(*answers, rtol=1e-4, atol=1e-7)
    assert trees.norm(answers[0]) > 0.05


def test_labels_move_the_update(curator_of, pair, labelled):
    """Else it would be no conditional model."""
    algorithm = FedAvgGan(gan=pair, batch=9, local_steps=1, local_rate=0.01)
    message = algorithm.message(algorithm.start(), torch.Generator().manual_seed(0))
    example = {"x": torch.rand(9, 1, 8, 8), "y": torch.arange(9) % CLASSES, "mask": torch.ones(9)}
    first, _ = algorithm.critic_update(message, example, {})
    second, _ = algorithm.critic_update(message, example | {"y": (example["y"] + 1) % CLASSES}, {})
    assert trees.norm(trees.add(first, second, -1.0)) > 0.1 * trees.norm(first)


def test_it_learns_which_label_is_bright(curator_of):
    """Class 0 is dark and class 1 bright; without noise the samples must follow the label they were asked for."""
    rng = np.random.default_rng(0)
    y = np.arange(400) % 2
    x = np.where(y == 1, 0.7, -0.7)[:, None, None, None] + 0.1 * rng.standard_normal((400, 1, 8, 8))
    users = Population.from_arrays("u", {"x": x.clip(-1, 1).astype(np.float32), "y": y}, np.full(20, 20))
    algorithm = FedAvgGan(
        gan=Gan.small(8).conditional(2),
        batch=20,
        local_steps=1,
        local_rate=0.05,
        generator_steps=4,
        generator_batch=64,
        generator=Adam(rate=5e-3, beta1=0.5, beta2=0.9),
    )
    plan = Plan(
        sampling=Everyone(), bound=L2Clip(norm=5.0), noise_multiplier=0.0, releases=60, expected_contributors=20
    )
    *_, state = algorithm.run(curator_of(users, plan, engine=Engine(chunk=20)), algorithm.start())
    images, labels = algorithm.gan.drawn(trees.part(state, "generator"), 256, seed=0)
    dark, bright = (float(images[labels == label].mean()) for label in (0, 1))
    assert dark < -0.3 < 0.3 < bright


RECIPE = """
name = "conditional"
task = "T1"
side = 8
[data]
source = "digits"
deal_to = 30
[primary]
epochs = 1
[selections.all]
by = "everyone"
[privacy]
epsilon = 8.0
delta = 1e-5
rounds = 2
users = 30
population = 40
clip = 0.1
[model]
classes = 10
generator_latent = 4
generator_hidden = 12
generator_widths = [8, 4]
[training]
batch = 8
local_steps = 2
"""


def test_a_run_keeps_the_labels_of_its_samples(tmp_path):
    run = Run.created(Recipe.parsed(RECIPE), tmp_path, address=tmp_path / "book.sqlite", seed=1, device="cpu")
    report = run.executed(lambda *facts: None)
    drawn = Samples.open(run.folder / "samples" / "all.safetensors")
    assert sorted(set(drawn.classes.tolist())) == list(range(10))
    grids, _ = report.exhibits
    assert grids.pictures[-1].classes == tuple(drawn.classes[:64].tolist())
    assert "primary model's accuracy" in {row["name"] for row in report.numbers}
    again = Model.open(run.folder / "all" / "model.safetensors").sampled(512, 0)
    assert torch.equal(again.images, drawn.images)
    assert torch.equal(again.classes, drawn.classes)
    assert json.loads((run.folder / "report.json").read_text())["findings"] == []


def test_a_conditional_recipe_can_be_planned():
    """Its made-up users hold labels too."""
    forecast = planning.forecast(Recipe.parsed(RECIPE), None)
    assert forecast.seconds > 0
    assert forecast.joint.epsilon <= 8.0


def test_labels_beyond_the_classes_are_refused_before_anything_is_spent(tmp_path):
    recipe = Recipe.parsed(RECIPE, ["model.classes=9"])
    run = Run.created(recipe, tmp_path, address=tmp_path / "book.sqlite", seed=1, device="cpu")
    with pytest.raises(DataError, match=r"labels below model\.classes = 9"):
        run.executed(lambda *facts: None)
