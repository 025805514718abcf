"""Correlated noise by recipe: what it plans and costs, that runs resume to the same end, and what is refused."""

import dataclasses
import json
import math

import numpy as np
import pytest
import torch
import toys
from toys import PAIR, TINY, assert_same, measured, quiet
from typer.testing import CliRunner

from fedlens.cli import app
from fedlens.core import files, tensorfiles
from fedlens.curators.protocol import PrivacySpentError
from fedlens.curators.simulated import SimulatedCurator
from fedlens.ledger import Budget, Ledger, guarantee
from fedlens.media.images.samples import Model
from fedlens.media.text import settings
from fedlens.media.text.samples import TextModel
from fedlens.privacy import Balanced, Everyone, MatrixPlan, Neighbours, Plan, accounting
from fedlens.privacy.matrix import Banded, BinaryTree, Identity, squared_sensitivity
from fedlens.recipes.recipe import Recipe
from fedlens.recipes.toml import RecipeError, to_toml
from fedlens.runs import planning
from fedlens.runs.run import Run

DELTA = 1e-5
BANDED = "privacy.correlated.bands=3"
TREE = "privacy.correlated.tree=true"
TURNS = 'privacy.sampling="balanced"', "privacy.groups=2", "privacy.population=30", "privacy.users=30"
steady = toys.steady(name="0")  # both shape secret noise


def recipe(*overrides, text=TINY):
    return Recipe.parsed(text, overrides)


def problems(*overrides):
    with pytest.raises(RecipeError) as error:
        recipe(*overrides)
    return str(error.value)


def exact(*mus):
    return accounting.gaussian_epsilon(math.sqrt(sum(mu**2 for mu in mus)), DELTA)


def mu(plan):
    """By the definition, and not by what a plan says of itself."""
    if isinstance(plan, Plan):
        return math.sqrt(plan.participations) / plan.noise_multiplier
    moved = squared_sensitivity(plan.strategy, plan.releases, plan.participations, plan.separation)
    return math.sqrt(moved) / plan.noise_multiplier


# What a recipe asks for


def test_everyone_in_every_round_with_bands():
    count, train = recipe(BANDED).plans.values()
    assert isinstance(count, Plan)
    assert isinstance(train, MatrixPlan)
    assert (train.strategy, train.sampling) == (Banded(bands=3), Everyone())
    assert (train.releases, train.participations, train.separation) == (4, 4, 1)
    assert (train.bound.norm, train.expected_contributors) == (0.1, 30.0)


def test_users_who_take_turns_with_a_tree():
    train = recipe(TREE, *TURNS, "privacy.rounds=5").plans["train"]
    assert (train.strategy, train.sampling) == (BinaryTree(restart=5), Balanced(groups=2, population=30))
    assert (train.participations, train.separation, train.expected_contributors) == (3, 2, 15.0)


@pytest.mark.parametrize("groups", range(1, 8))
@pytest.mark.parametrize("rounds", [7, 8, 9])
def test_the_schedule_is_the_one_of_the_recipe(groups, rounds):
    turns = *TURNS, f"privacy.groups={groups}", f"privacy.rounds={rounds}"
    plain, correlated = recipe(*turns).plans["train"], recipe(BANDED, *turns).plans["train"]
    for release in range(rounds):
        cohorts = [plan.sampling.draw(30, None, "", release) for plan in (plain, correlated)]
        assert np.array_equal(*cohorts)


@pytest.mark.parametrize("turns", [(), TURNS], ids=["everyone", "turns"])
@pytest.mark.parametrize("kind", [BANDED, TREE])
@pytest.mark.parametrize("neighbours", Neighbours)
def test_noise_is_calibrated_together_with_the_head_count(kind, turns, neighbours):
    found = recipe(kind, *turns, f'privacy.neighbours="{neighbours}"')
    twice = 2 if neighbours == Neighbours.REPLACE_ONE else 1
    whole = exact(*(twice * mu(plan) for plan in found.plans.values()))
    assert 7.99 < whole <= 8.0
    assert guarantee(found.spendings(), DELTA).epsilon == pytest.approx(whole, rel=1e-8)
    assert found.plans["train"].neighbours == neighbours


def test_models_that_share_users_are_calibrated_jointly():
    found = recipe(BANDED, text=PAIR)
    count, train = found.plans["count"], found.plans["train"]
    assert 7.99 < exact(*[mu(count), mu(train)] * 2) <= 8.0
    assert guarantee(found.spendings(), DELTA).epsilon <= 8.0 < 1.01 * guarantee(found.spendings(), DELTA).epsilon


@pytest.mark.parametrize("kind", [(), (BANDED,)], ids=["independent", "correlated"])
def test_a_schedule_that_does_not_come_out_even_is_paid_in_every_model(kind):
    """Three rounds of two groups: the first group comes twice in each of the two models, four times in all."""
    twice = TINY.replace("[selections.all]", '[selections.other]\nby = "everyone"\n[selections.all]')
    found = recipe(*TURNS, "privacy.rounds=3", *kind, text=twice)
    assert 7.99 < guarantee(found.spendings(), DELTA).epsilon <= 8.0


def test_thresholds_are_part_of_the_price():
    found = recipe(BANDED, "selections.all={by = 'accuracy', below = {quantile = 0.5}}", "primary={epochs = 1}")
    assert "thresholds" in found.plans
    assert 7.99 < exact(*map(mu, found.plans.values())) <= 8.0
    assert guarantee(found.spendings(), DELTA).epsilon <= 8.0


def test_noise_may_be_given_by_itself():
    given = recipe(BANDED).changed(["privacy.noise_multiplier=6.5"])
    assert given.plans["train"].noise_multiplier == 6.5
    none = given.changed(["privacy.noise_multiplier=0"])
    assert guarantee(none.spendings(), DELTA).epsilon == math.inf
    assert none.error_ratio == given.error_ratio


def test_a_recipe_without_it_is_planned_as_ever():
    found = recipe()
    assert isinstance(found.plans["train"], Plan)
    assert found.error_ratio is None
    assert found.plans["train"] == dataclasses.replace(found.plans["train"]).calibrated(
        8.0, DELTA, (found.plans["count"],)
    )


def test_the_resolved_recipe_says_it_and_reads_back():
    for kind in (BANDED, TREE):
        found = recipe(kind, *TURNS)
        again = Recipe.parsed(to_toml(found))
        assert again == found
        assert again.digest == found.digest
        assert again.plans == found.plans
    assert "[privacy.correlated]\nbands = 3\n" in to_toml(recipe(BANDED))


# What does not go together


def test_all_that_does_not_go_with_it_is_told_at_once():
    told = problems(
        BANDED,
        'privacy.sampling="poisson"',
        "privacy.rate=0.5",
        "privacy.adaptive_clip={start = 0.1}",
        "privacy.users=90",
    )
    for words in (
        "'everyone' or 'balanced', not with 'poisson'",
        "a fixed clip",
        "units=90 exceeds",
        "give clip, top_k or",
    ):
        assert words in told


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ((BANDED, 'privacy.sampling="fixed-size"', "privacy.size=5"), "not with 'fixed-size'"),
        ((BANDED, *TURNS, "privacy.groups=5"), "groups=5 above rounds=4"),
        ((BANDED, TREE), "bands or tree = true, one of them"),
        (("privacy.correlated.tree=false",), "bands or tree = true, one of them"),
        (("privacy.correlated.bands=0",), "privacy.correlated.bands: input should be greater than 0"),
        (("privacy.correlated.band=3",), "privacy.correlated.band: unknown; allowed here: bands, tree"),
    ],
)
def test_what_makes_no_sense_is_a_problem_of_the_recipe(overrides, words):
    assert words in problems(*overrides)


def test_it_warns_where_independent_noise_is_better_and_only_there():
    paying, losing = recipe(BANDED, *TURNS, "privacy.groups=3"), recipe(BANDED)
    assert paying.error_ratio < 0.9
    assert paying.warnings == ()
    assert losing.error_ratio > 1
    assert "independent noise" in " ".join(losing.warnings)
    adam = paying.changed(["training.server={kind = 'adam', rate = 0.1}"])
    assert "adam" in " ".join(adam.warnings)
    assert recipe("privacy.correlated.bands=1").warnings == ()


def test_the_error_ratio_is_that_of_two_plans_with_one_epsilon():
    found = recipe(BANDED, *TURNS)
    correlated = found.plans["train"].calibrated(1.0, DELTA)
    independent = dataclasses.replace(correlated, strategy=Identity()).calibrated(1.0, DELTA)
    assert found.error_ratio == pytest.approx(correlated.prefix_error() / independent.prefix_error(), rel=1e-6)


def test_noise_to_signal_compares_with_independent_noise():
    plain, same = recipe(*TURNS), recipe("privacy.correlated.bands=1", *TURNS)
    assert same.noise_to_signal == pytest.approx(plain.noise_to_signal, rel=1e-3)
    other = recipe(BANDED, *TURNS)
    assert other.noise_to_signal == pytest.approx(other.error_ratio * plain.noise_to_signal, rel=1e-3)


# What is planned


def test_the_forecast_states_it_without_what_does_not_apply():
    ledger, found = Ledger(), recipe(BANDED)
    ledger.set_budget(Budget(population="digits", epsilon=4.0, delta=DELTA))
    told = planning.forecast(found, ledger)
    plain = json.loads(json.dumps(told.to_dict()))
    assert plain["train"]["strategy"] == {"kind": "banded", "bands": 3}
    assert plain["error_ratio"] == found.error_ratio
    assert plain["readings"]["exact Gaussian"] == pytest.approx(exact(*map(mu, found.plans.values())), rel=1e-8)
    assert (plain["fits"], plain["runs_left"]) == (False, 0)
    assert [alternative["text"].split()[0] for alternative in plain["alternatives"]] == ["noise"]
    assert planning.forecast(found.changed(told.alternatives[0].sets), ledger).fits
    assert "correlated across rounds (banded, 3)" in told.text()
    assert "moves all correlated rounds together by at most" in told.text()


def test_runs_left_are_whole_runs():
    ledger, found = Ledger(), recipe(BANDED)
    count, train = map(mu, found.plans.values())
    for runs_left in (1, 2, 5):
        room = exact(count, math.sqrt(runs_left + 0.5) * train)
        ledger.set_budget(Budget(population="digits", epsilon=room, delta=DELTA))
        assert planning.forecast(found, ledger).runs_left == runs_left


def test_bands_can_be_swept():
    cells = planning.swept(recipe(BANDED), "correlated.bands=1,2,4")
    assert [cell["correlated.bands"] for cell in cells] == [1, 2, 4]
    noises = [cell["noise_multiplier"] for cell in cells]
    assert noises == sorted(set(noises))
    assert all(7.99 < cell["epsilon"] <= 8.0 for cell in cells)


def test_no_papers_method_is_claimed_for_it():
    with pytest.raises(ValueError, match="without"):
        planning.published("wang2021", recipe(BANDED))


def test_the_server_step_of_text_follows_the_noise_in_running_sums(monkeypatch):
    """Left open, it keeps a weight from wandering; with correlated noise it wanders less, and may go faster."""
    monkeypatch.setattr(settings, "RATE", 1e9)
    open_text = """
        name = "open"
        task = "T3"
        data = {source = "docstrings"}
        text = {embedding = 4, units = 6, projection = 4}
        selections.all.by = "everyone"
        [privacy]
        epsilon = 8.0
        delta = 1e-5
        rounds = 40
        users = 80
        population = 80
        sampling = "balanced"
        groups = 8
    """
    plain, correlated = (Recipe.parsed(open_text, sets) for sets in ([], ["privacy.correlated.bands=8"]))
    train = correlated.plans["train"]
    last = train.noise_multiplier * math.sqrt(train.strategy.prefix_variances(40).max())
    expected = plain.plans["train"].noise_multiplier * math.sqrt(40) / last
    assert expected > 1.5
    assert correlated.training.server.rate == pytest.approx(expected * plain.training.server.rate, rel=0.1)


def test_the_command_line_plans_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "recipe.toml").write_text(TINY)
    arguments = ["plan", str(tmp_path / "recipe.toml"), "--set", TREE, "--json"]
    answer = json.loads(CliRunner().invoke(app, arguments).stdout)
    assert answer["train"]["strategy"] == {"kind": "tree", "restart": 4}
    assert "independent noise" in answer["warnings"][0]


# What is carried out


def created(out, *overrides, text=TINY, seed=0):
    return Run.created(recipe(*overrides, text=text), out, address=out / "ledger.sqlite", seed=seed, device="cpu")


def stopping(after, error=KeyboardInterrupt):
    def watch(selection, done, rounds, facts):
        if done == after:
            raise error

    return watch


def generator(run):
    return Model.open(run.folder / "all" / "model.safetensors").generator


def metrics(run):
    return [json.loads(line) for line in (run.folder / "all" / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("sets", [(BANDED,), (TREE,), (BANDED, *TURNS)], ids=["bands", "tree", "turns"])
@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemError], ids=["stopped", "killed"])
def test_a_run_that_was_interrupted_ends_as_if_it_had_not_been(tmp_path, sets, error):
    whole, broken = created(tmp_path / "whole", *sets), created(tmp_path / "broken", *sets)
    report = whole.executed(quiet)
    assert report.guarantee.epsilon == whole.promised().epsilon <= 8.0
    assert report.guarantee.accountant == accounting.EXACT
    for after in (1, 3):
        with pytest.raises(error):
            Run.opened(broken.folder).executed(stopping(after, error))
    Run.opened(broken.folder).executed(quiet)
    assert_same(generator(broken), generator(whole))
    assert metrics(broken) == metrics(whole)
    assert Ledger(broken.address).spent(f"{broken.name}/all", "train") == 4


def test_the_noise_is_correlated(tmp_path):
    """Same seed, same recipe but for the strategy: another model comes out."""
    correlated, other = created(tmp_path / "3", BANDED), created(tmp_path / "1", "privacy.correlated.bands=1")
    for run in (correlated, other):
        run.executed(quiet)
    assert not torch.equal(generator(correlated)["image.weight"], generator(other)["image.weight"])


def test_the_ledger_knows_the_exact_price_before_and_after(tmp_path):
    run = created(tmp_path, BANDED, seed=None)
    book, kind = Ledger(run.address), (run.recipe.privacy.unit, run.recipe.privacy.neighbours)
    whole = pytest.approx(exact(*map(mu, run.recipe.plans.values())), rel=1e-8)
    before = book.standing("digits", kind)
    assert before.spent is None
    assert before.promised.epsilon == whole
    run.executed(quiet)
    after = book.standing("digits", kind)
    assert after.spent.epsilon == after.promised.epsilon == whole
    assert json.loads((run.folder / "plan.json").read_text())["guarantee"]["epsilon"] == whole
    header = Model.open(run.folder / "all" / "model.safetensors")
    assert header.spending.plans == tuple(run.recipe.plans.values())


def test_it_is_owed_whole_from_the_first_round(tmp_path):
    run = created(tmp_path, BANDED)
    run.executed(quiet)
    assert [line["round"] for line in metrics(run)] == [1, 2, 3, 4]
    assert {line["epsilon_so_far"] for line in metrics(run)} == {
        math.ceil(exact(*map(mu, run.recipe.plans.values())) * 1e4) / 1e4
    }


def test_a_run_that_is_given_up_owes_the_whole_after_its_first_release(tmp_path):
    run = created(tmp_path, BANDED, seed=None)
    with pytest.raises(KeyboardInterrupt):
        run.executed(stopping(1))
    book = Ledger(run.address)
    run.abandoned(book)
    assert guarantee(book.spendings("digits", reserved=True), DELTA).epsilon == pytest.approx(run.promised().epsilon)
    with pytest.raises(PrivacySpentError, match="closed"):
        Run.opened(run.folder).executed(quiet)


def test_a_run_that_is_given_up_before_its_first_release_owes_nothing(tmp_path):
    run = created(tmp_path, BANDED, seed=None)
    run.abandoned(Ledger(run.address))
    assert Ledger(run.address).spendings("digits", reserved=True) == []


def test_what_exceeds_the_budget_is_refused_before_anything_is_read(tmp_path):
    Ledger(tmp_path / "ledger.sqlite").set_budget(Budget(population="digits", epsilon=10.0, delta=DELTA))
    created(tmp_path, BANDED, seed=None).executed(quiet)
    with pytest.raises(PrivacySpentError, match="would take 'digits' to epsilon"):
        created(tmp_path, BANDED, "name='second'", seed=None)
    assert not list(tmp_path.glob("second*"))


def test_text_takes_it_too(tmp_path):
    rng = np.random.default_rng(0)
    lines = [{"user": f"u{n}", "text": [" ".join(rng.choice(["the", "cat", "lattice"], 5))]} for n in range(12)]
    (tmp_path / "said.jsonl").write_text("\n".join(map(json.dumps, lines)))
    (tmp_path / "known.txt").write_text("the\ncat\n")
    text = f"""
        name = "words"
        task = "T3"
        data = {{source = "jsonl", path = "{tmp_path / "said.jsonl"}"}}
        selections.all.by = "everyone"
        training = {{batch = 4, local_steps = 1, local_rate = 0.5}}
        [text]
        vocabulary = "{tmp_path / "known.txt"}"
        width = 8
        embedding = 4
        units = 6
        projection = 4
        warm_steps = 2
        samples = 100
        [privacy]
        epsilon = 8.0
        delta = 1e-5
        rounds = 4
        users = 12
        population = 12
        sampling = "balanced"
        groups = 2
        clip = 0.5
        minimum_users = 1
        correlated = {{bands = 2}}
    """
    whole, broken = (created(tmp_path / name, text=text) for name in ("whole", "broken"))
    assert whole.executed(quiet).guarantee.epsilon == whole.promised().epsilon <= 8.0
    with pytest.raises(KeyboardInterrupt):
        broken.executed(stopping(2))
    Run.opened(broken.folder).executed(quiet)
    models = [TextModel.open(run.folder / "all" / "model.safetensors") for run in (whole, broken)]
    assert_same(models[0].parameters, models[1].parameters)
    assert isinstance(models[0].spending.plans[1], MatrixPlan)


# What a resumed run is refused


def lost(report):
    return [warning for warning in report.warnings if "lost" in warning]


@pytest.mark.parametrize("sets", [(BANDED,), TURNS], ids=["bands", "turns without correlation"])
def test_a_refused_question_does_not_pass_for_a_short_model(tmp_path, monkeypatch, sets):
    """The checkpoint is gone and the engine is another: the first question has another name."""
    run = created(tmp_path, *sets, seed=None)
    with pytest.raises(KeyboardInterrupt):
        run.executed(stopping(2))
    checkpoint = run.folder / "all" / "checkpoint.safetensors"
    kept = checkpoint.read_bytes()
    checkpoint.unlink()
    measured(monkeypatch, chunk=3)
    with pytest.raises(PrivacySpentError, match=r"all was refused .* after round 0 of 4\. Expected release 2"):
        Run.opened(run.folder).executed(quiet)
    assert not (run.folder / "all" / "model.safetensors").exists()
    files.write(checkpoint, kept)  # what was refused can be mended
    assert lost(Run.opened(run.folder).executed(quiet)) == []
    assert Ledger(run.address).spent(f"{run.name}/all", "train") == 4


def test_rounds_lost_when_all_is_spent_are_admitted(tmp_path, monkeypatch):
    run = created(tmp_path, BANDED, seed=None)
    with pytest.raises(KeyboardInterrupt):
        run.executed(stopping(4))
    (run.folder / "all" / "checkpoint.safetensors").unlink()
    measured(monkeypatch, chunk=3)
    (told,) = lost(Run.opened(run.folder).executed(quiet))
    assert "4 of 4 rounds were charged but lost" in told


def test_a_run_that_is_killed_in_its_first_round_goes_on(tmp_path, monkeypatch):
    """The release is booked, nothing came back, and the machine would measure another engine now."""
    run = created(tmp_path, BANDED, seed=None)
    with monkeypatch.context() as patched:
        patched.setattr(SimulatedCurator, "_bounded_sum", killed_if_training)
        with pytest.raises(SystemError):
            run.executed(quiet)
    assert Ledger(run.address).spent(f"{run.name}/all", "train") == 1
    measured(monkeypatch, chunk=3)
    assert lost(Run.opened(run.folder).executed(quiet)) == []
    assert Ledger(run.address).spent(f"{run.name}/all", "train") == 4


def killed_if_training(curator, question):
    if isinstance(curator._plan, MatrixPlan):
        raise SystemError("killed")
    return {name: leaf + 30 / curator._plan.grid for name, leaf in question.shape.items()}


def test_every_round_is_kept(tmp_path):
    """Done again on a GPU, a round may round otherwise, and what follows it would be another question."""
    run = created(tmp_path, BANDED)

    def kept(selection, done, rounds, facts):
        if done > 1:
            state, _ = tensorfiles.read(run.folder / "all" / "checkpoint.safetensors")
            assert int(state["round"]) == done - 1

    run.executed(kept)
