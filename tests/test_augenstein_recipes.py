"""The recipes that repeat the GAN experiments of Augenstein et al. 2020: the paper's settings, an honest epsilon."""

import json
import os
import pathlib
import re

import numpy as np
import pytest
import toys
from typer.testing import CliRunner

from fedlens.algorithms import Sgd
from fedlens.cli import app
from fedlens.models.gan import Gan
from fedlens.recipes import templates
from fedlens.recipes.recipe import Recipe
from fedlens.recipes.tables import Bug, Quantile
from fedlens.runs import planning
from fedlens.runs.planning import published
from fedlens.runs.run import Run

HERE = pathlib.Path(templates.__file__).with_name("files") / "augenstein2020"
FILES = {path.stem: path for path in sorted(HERE.glob("*.toml"))}
BY_USER = ["figure3_by_user_bug", "figure6_by_user_fixed"]
BY_EXAMPLE = ["figure7_by_example_bug", "figure8_by_example_fixed"]
EVERY = [*BY_USER, *BY_EXAMPLE]
PAPERS = pathlib.Path(__file__).parents[1] / "docs" / "papers.md"
# What a network of the paper's would take hours for on one core takes a second.
steady = toys.steady()
TINY = [
    "privacy.rounds=1",
    "privacy.minimum_users=1",
    "privacy.threshold_noise=0.5",
    "privacy.count_noise=0.5",  # of so few made-up writers, a noisier count would sometimes find nobody
    "model.critic_widths=[4, 6]",
    "model.critic_hidden=0",
    "model.generator_latent=4",
    "model.generator_hidden=12",
    "model.generator_widths=[8, 6, 4]",
]


@pytest.fixture(scope="module")
def planned(tmp_path_factory):
    """What `fedlens plan` says of a recipe, asked once, where there is neither data nor a ledger."""
    answers, nowhere = {}, tmp_path_factory.mktemp("nowhere")

    def plan(name):
        if name not in answers:
            command = ["plan", str(FILES[name]), "--published", "augenstein2020", "--json"]
            with pytest.MonkeyPatch.context() as patch:
                patch.chdir(nowhere)
                patch.setenv("FEDLENS_DATA", str(nowhere))
                if answers:  # how long such networks take is measured once
                    patch.setattr(planning, "expected_seconds", lambda recipe: 3600.0)
                answers[name] = json.loads(CliRunner().invoke(app, command, catch_exceptions=False).stdout)
        return answers[name]

    return plan


def readme_rows(columns):
    """The cells of every row of the README's tables that has so many columns."""
    lines = [line for line in (HERE / "README.md").read_text().splitlines() if line.startswith("| ")]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [row for row in rows if len(row) == columns]


# The paper's settings


def test_there_is_one_recipe_for_every_pair_of_the_paper():
    assert list(FILES) == EVERY


@pytest.mark.parametrize("name", EVERY)
def test_training_is_that_of_the_papers_table_9(name):
    recipe = Recipe.open(FILES[name])
    algorithm, train = recipe.built(), recipe.plans["train"]
    assert (algorithm.local_steps, algorithm.batch, algorithm.local_rate) == (6, 32, 0.0005)
    assert (algorithm.generator_steps, algorithm.generator_batch) == (6, 32)
    assert algorithm.generator == Sgd(rate=0.005)
    assert algorithm.server == Sgd(rate=1.0)
    assert algorithm.adaptive is None
    assert (train.noise_multiplier, train.bound.norm, train.releases) == (0.01, 0.1, 1000)
    assert train.stddev == pytest.approx(0.01 * 0.1)


@pytest.mark.parametrize("name", EVERY)
def test_networks_are_the_papers(name):
    recipe = Recipe.open(FILES[name])
    gan = recipe.medium.network(recipe)
    assert gan == Gan.paper(28)
    assert (gan.generator.latent, gan.penalty) == (128, 10.0)
    assert recipe.built().decay == 2.5e-5
    assert (recipe.primary.network, recipe.primary.epochs, recipe.primary.model) == ("paper", 3, None)


@pytest.mark.parametrize("name", EVERY)
def test_ten_users_are_expected_in_a_round_and_the_divisor_is_ten(name):
    recipe = Recipe.open(FILES[name])
    assert recipe.privacy.sampling == "poisson"
    assert recipe.plans["train"].expected_contributors == 10
    assert recipe.privacy.population == 600
    assert recipe.warnings == ()


@pytest.mark.parametrize("name", EVERY)
def test_the_bug_inverts_half_of_the_users_where_there_is_one(name):
    inverted = Bug(kind="inverted", fraction=0.5, of="users")
    assert Recipe.open(FILES[name]).data.bug == (inverted if name.endswith("_bug") else None)


@pytest.mark.parametrize("name", BY_USER)
def test_users_are_told_apart_at_the_quartiles_of_their_accuracy(name):
    recipe = Recipe.open(FILES[name])
    low, high = recipe.selections["low"], recipe.selections["high"]
    assert recipe.task == "T4"
    assert {low.by, high.by} == {"accuracy"}
    assert (low.at_least, low.below) == (None, Quantile(quantile=0.25))
    assert (high.at_least, high.below) == (Quantile(quantile=0.75), None)


@pytest.mark.parametrize("name", BY_EXAMPLE)
def test_examples_are_told_apart_by_the_classifier_of_users_with_five_of_a_kind(name):
    recipe = Recipe.open(FILES[name])
    assert recipe.task == "T2"
    assert {label: (found.by, found.minimum_examples) for label, found in recipe.selections.items()} == {
        "wrong": ("wrong", 5),
        "right": ("right", 5),
    }


@pytest.mark.parametrize("pair", [BY_USER, BY_EXAMPLE], ids=["by user", "by example"])
def test_before_and_after_the_fix_only_the_bug_and_the_cohorts_differ(pair):
    with_bug, without = (Recipe.open(FILES[name]).model_dump(exclude={"name"}) for name in pair)
    with_bug["data"]["bug"] = None
    for recipe in (with_bug, without):
        del recipe["privacy"]["units"], recipe["privacy"]["rate"]
    assert with_bug == without


# What it costs


def without_sampling(name):
    """Of the training without any sampling: a Gaussian at distance sqrt(rounds) / z costs about half its square."""
    models = 2 if name in BY_EXAMPLE else 1  # groups by example share users
    return 1.01 * models * 1000 / 0.01**2 / 2


@pytest.mark.parametrize("name", EVERY)
def test_a_plan_tells_an_astronomical_epsilon_without_touching_data(name, planned):
    told = planned(name)
    assert 1e5 < float(told["guarantee"]["epsilon"]) < without_sampling(name)
    assert told["train"]["releases"] == 1000
    assert not told["warnings"]


@pytest.mark.parametrize("name", EVERY)
def test_the_papers_method_prints_what_the_paper_prints(name, planned):
    told = planned(name)["published"]
    assert float(told["epsilon"]) == pytest.approx(9.99e6, rel=1e-3)
    assert told["compliant"] is False
    assert float(told["valid_epsilon"]) <= float(planned(name)["guarantee"]["epsilon"])


@pytest.mark.parametrize(
    ("name", "population", "delta", "printed"),
    [
        ("figure3_by_user_bug", 250_000, 4e-8, 2.38),
        ("figure3_by_user_bug", 1_250_000, 8e-9, 1.48),
        ("figure6_by_user_fixed", 500_000, 2e-8, 1.79),
        ("figure7_by_example_bug", 1_708_824, 5.85e-9, 1.47),
        ("figure7_by_example_bug", 1_964_706, 5.09e-9, 1.40),
        ("figure8_by_example_fixed", 2_000_000, 5e-9, 1.39),
        ("figure8_by_example_fixed", 1_930_588, 5.18e-9, 1.40),
    ],
)
def test_scaled_up_the_papers_method_prints_the_papers_epsilon_and_the_truth_stands_beside(
    name, population, delta, printed
):
    scaled = {"noise_multiplier": 1.0, "population": population, "users": population, "delta": delta}
    sets = [f"privacy.{key}={value}" for key, value in (scaled | {"rate": 1000 / population}).items()]
    recipe = Recipe.open(FILES[name], sets)
    told = published("augenstein2020", recipe)
    assert round(told["epsilon"], 2) == printed
    # The noise in the mean is that of the simulation: this is why the paper expects the same pictures.
    assert recipe.plans["train"].stddev / recipe.plans["train"].expected_contributors == pytest.approx(1e-4)
    assert told["valid_epsilon"] < printed


# What is written beside them


@pytest.mark.parametrize("name", EVERY)
def test_a_recipe_opens_with_its_own_launch_command_and_names_its_figure(name):
    first, *rest = FILES[name].read_text().splitlines()
    command = re.fullmatch(r"# FEDLENS_DATA=\S+ fedlens run recipes/augenstein2020/(\w+)\.toml --out \S+", first)
    assert command is not None
    assert command[1] == name
    figure = re.match(r"figure(\d)", name)
    assert f"Augenstein et al. 2020, figure {figure[1]}" in "\n".join(rest)


@pytest.mark.parametrize("name", EVERY)
def test_the_readme_tells_the_epsilon_of_every_recipe(name, planned):
    (row,) = [row for row in readme_rows(4) if row[0] == f"`{name}.toml`"]
    epsilon, alone, printed = (float(cell.replace(",", "")) for cell in row[1:])
    assert epsilon == pytest.approx(float(planned(name)["guarantee"]["epsilon"]), rel=1e-4)
    assert alone == pytest.approx(float(planned(name)["epsilon_per_model"]), rel=1e-4)
    assert printed == pytest.approx(float(planned(name)["published"]["epsilon"]), rel=1e-3)


def test_the_readmes_epsilons_of_the_paper_are_those_of_the_papers_page():
    """That page is compared with what is computed by its own test."""
    known = {}
    for line in PAPERS.read_text().splitlines():
        if line.startswith("| table "):
            row, told, reproduced, valid = (cell.strip() for cell in line.strip("|").split("|"))
            readings = dict(reading.rsplit(" ", 1) for reading in valid.split("; "))
            known[row] = [told, reproduced, readings["fixed-size-pld"], readings["truncated-poisson-pld"]]
    rows = {row[0]: row[1:] for row in readme_rows(5) if row[0].startswith("table ")}
    assert len(known) == 14
    assert rows == known


# They run


def make_writers(path, users=40, held=20):
    """Made-up digits of 28 x 28: a bright square whose place is the class, one label in three wrong."""
    rng = np.random.default_rng(0)

    def drawn(count, wrong):
        y = rng.integers(0, 10, count)
        x = rng.integers(0, 40, (count, 28, 28), dtype=np.uint8)
        for image, digit in zip(x, y, strict=True):
            row, column = 2 + 14 * (digit // 5), 2 + 5 * (digit % 5)
            image[row : row + 10, column : column + 4] = 250
        return x, np.where(rng.random(count) < wrong, rng.integers(0, 10, count), y)

    x_test, y_test = drawn(300, wrong=0.0)
    x_train, y_train = drawn(users * held, wrong=1 / 3)
    writers = np.repeat(np.arange(users), held)
    np.savez(path, x_train=x_train, y_train=y_train, writer_train=writers, x_test=x_test, y_test=y_test)


def finished(recipe, folder):
    run = Run.created(recipe, folder, address=folder / "ledger.sqlite", seed=0, device="cpu")
    return run.executed(lambda *facts: None), run.folder


@pytest.mark.parametrize("name", EVERY)
def test_every_recipe_runs_to_a_report_on_made_up_writers(name, tmp_path, monkeypatch):
    make_writers(tmp_path / "mnist_by_writer.npz")
    monkeypatch.setenv("FEDLENS_DATA", str(tmp_path))
    recipe = Recipe.open(FILES[name], TINY)
    report, folder = finished(recipe, tmp_path)
    assert [run["label"] for run in report.runs] == list(recipe.selections)
    assert report.guarantee.epsilon > 1000  # one round alone
    assert report.guarantee.simulated
    assert (folder / "report.html").exists()
    assert all((folder / label / "count.json").exists() for label in recipe.selections)
    assert (folder / "thresholds.json").exists() == (name in BY_USER)


def test_a_recipe_runs_a_round_on_the_real_writers(tmp_path):
    folder = os.environ.get("FEDLENS_DATA")
    if folder is None or not (pathlib.Path(folder) / "mnist_by_writer.npz").exists():
        pytest.skip("needs FEDLENS_DATA, the folder of mnist_by_writer.npz")
    quick = ["primary.network=small", "primary.widths=[4]", "primary.epochs=1"]
    report, out = finished(Recipe.open(FILES["figure3_by_user_bug"], [*TINY, *quick]), tmp_path)
    assert [run["label"] for run in report.runs] == ["low", "high"]
    learnt = {row["quantile"]: row["accuracy"] for row in json.loads((out / "thresholds.json").read_text())}
    # Half of the writers are inverted, which the classifier cannot read; the best quarter it reads well.
    assert learnt[0.25] < 0.5 < learnt[0.75]
