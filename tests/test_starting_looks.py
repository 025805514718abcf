"""GANs that start from a look: what is asked first is priced, asked once, and lost in no crash."""

import pytest
import torch
from command_line import answer, fedlens, written

from fedlens.core import tensorfiles, trees
from fedlens.ledger import Ledger
from fedlens.media import opening
from fedlens.media.images import looks
from fedlens.models.looks.fitting import DivergedError, Fit
from fedlens.privacy import accounting
from fedlens.recipes.recipe import Recipe
from fedlens.recipes.toml import RecipeError
from fedlens.runs.folder import FolderKeeper

STARTED = """
name = "started"
task = "T1"
side = 8
[data]
source = "digits"
deal_to = 40
[selections.all]
by = "everyone"
[privacy]
epsilon = 8.0
delta = 1e-5
units = 40
population = 40
rounds = 3
clip = 0.1
[model]
classes = 10
critic_widths = [8]
critic_hidden = 0
generator_widths = [16, 8]
generator_hidden = 32
start = "look"
[look]
family = "embedding"
features = 198
steps = 3
batch = 40
[training]
generator_steps = 1
"""
GROUPS = """
[selections.low]
by = "attribute"
attribute = "odd"
values = [1]
[selections.high]
by = "attribute"
attribute = "odd"
values = [0]
"""


def started(folder, *options):
    return fedlens("run", written(folder, STARTED), "--out", folder / "runs", *options)


def the_run(folder):
    (found,) = (folder / "runs").glob("started-*")
    return found


def spent(folder, stage):
    return Ledger(folder / "runs" / "ledger.sqlite").spent(f"{the_run(folder).name}/all", stage)


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    folder = tmp_path_factory.mktemp("started")
    assert started(folder).code == 0
    return folder


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_look_and_rounds_together_cost_what_the_recipe_says(share):
    recipe = Recipe.parsed(STARTED, [f"look.share={share}"])
    plans = recipe.plans
    assert accounting.epsilon([plans["first"]], 1e-5) == pytest.approx(8 * share, rel=1e-3)
    assert accounting.epsilon([plans[name] for name in ("count", "first", "train")], 1e-5) <= 8.0
    assert recipe.guarantee(recipe.spendings()).epsilon == pytest.approx(8.0, rel=1e-3)
    assert [stage.name for stage in recipe.stages] == ["count", "first", "train"]


def test_looks_of_groups_that_may_share_users_add_up():
    apart = STARTED.replace('[selections.all]\nby = "everyone"', GROUPS)
    groups = 'bug = { kind = "inverted", fraction = 0.5, mark = "odd" }'
    apart = apart.replace("deal_to = 40", f"deal_to = 40\n{groups}").replace('"T1"', '"T4"')
    one = Recipe.parsed(apart).plans["first"]
    both = Recipe.parsed(apart, ["privacy.neighbours=replace-one"])
    assert both.plans["first"].releases == 1
    twice = accounting.epsilon([both.plans["first"]] * 2, 1e-5)
    assert twice == pytest.approx(4.0, rel=1e-3)  # one who is replaced lives through both
    assert accounting.epsilon([one], 1e-5) == pytest.approx(4.0, rel=1e-3)


def test_a_run_books_the_look_and_the_rounds_and_states_them_together(done):
    assert (spent(done, "count"), spent(done, "first"), spent(done, "train")) == (1, 1, 3)
    folder = the_run(done) / "all"
    model, look = opening.opened(folder / "model.safetensors"), looks.Look.open(folder / "look.safetensors")
    assert model.guarantee.epsilon == pytest.approx(8.0, rel=1e-3)
    assert 4.0 < look.guarantee.epsilon < model.guarantee.epsilon  # with the head count, without the rounds
    plan = Recipe.open(the_run(done) / "recipe.toml").plans["first"]
    assert look.release.noise == pytest.approx(plan.noise_multiplier / 40)
    verified = fedlens("ledger", "verify", "--ledger", done / "runs" / "ledger.sqlite")
    assert verified.code == 0, verified.err


def test_the_plan_tells_of_the_look():
    recipe = Recipe.parsed(STARTED)
    assert recipe.medium.first(recipe).share == 0.5
    assert recipe.before[1] == recipe.plans["first"]


def test_a_plan_is_printed_with_its_look(tmp_path):
    path = written(tmp_path, STARTED)
    assert answer("plan", path)["first"]["releases"] == 1
    assert "that a model starts from is part of it" in fedlens("plan", path).out


def test_the_first_state_is_what_was_fitted_to_the_look(done):
    """And trains on from there: not what a seed would give."""
    recipe = Recipe.open(the_run(done) / "recipe.toml")
    look = looks.Look.open(the_run(done) / "all" / "look.safetensors")
    stage = recipe.stage("train", "all")
    state = recipe.medium.started(recipe, stage.algorithm.start(), look, "cpu")
    fitted = looks.start(recipe, look, "cpu")
    generator = trees.part(state, "generator")
    assert generator.keys() == fitted.keys() == trees.part(stage.algorithm.start(), "generator").keys()
    assert all(torch.equal(leaf, fitted[name]) for name, leaf in generator.items())
    assert any(not torch.equal(leaf, fitted[name]) for name, leaf in stage.algorithm.gan.generator.init(1).items())


def test_nobody_trains_without_the_answer_that_was_paid_for():
    with pytest.raises(ValueError, match="Expected the answer that this stage starts from"):
        Recipe.parsed(STARTED).stage("train", "all").start()


def test_a_fit_that_fails_loses_nothing_and_the_run_goes_on(tmp_path, monkeypatch):
    """The look is booked and kept; asked again it is the same one, and free."""

    def diverged(*given, **named):
        raise DivergedError("Expected it to stay finite; the fit diverged.")

    with monkeypatch.context() as patched:
        patched.setattr(Fit, "__call__", diverged)
        done = started(tmp_path)
    assert (done.code, "the fit diverged" in done.err) == (2, True)
    kept = the_run(tmp_path) / "all" / "look.safetensors"
    before, _ = tensorfiles.read(kept)
    assert (spent(tmp_path, "first"), spent(tmp_path, "train")) == (1, 0)
    assert fedlens("run", "--resume", the_run(tmp_path)).code == 0
    after, _ = tensorfiles.read(kept)
    assert (spent(tmp_path, "first"), spent(tmp_path, "train")) == (1, 3)
    assert before.keys() == after.keys()
    assert all(torch.equal(leaf, after[name]) for name, leaf in before.items())


def test_a_look_that_somebody_put_in_its_place_is_not_started_from(tmp_path, monkeypatch):
    """The file is public, and anybody may write there: the answer is asked again instead."""
    with monkeypatch.context() as patched:
        patched.setattr(Fit, "__call__", lambda *given, **named: (_ for _ in ()).throw(KeyboardInterrupt))
        assert started(tmp_path).code == 130
    kept = the_run(tmp_path) / "all" / "look.safetensors"
    blocks, about = tensorfiles.read(kept)
    tensorfiles.write(kept, {name: leaf + 5 for name, leaf in blocks.items()}, about)
    assert fedlens("run", "--resume", the_run(tmp_path)).code == 0
    again, _ = tensorfiles.read(kept)
    assert all(torch.equal(leaf, again[name]) for name, leaf in blocks.items())


def test_an_interrupted_run_ends_like_one_that_was_not(tmp_path, monkeypatch):
    plain, broken = tmp_path / "plain", tmp_path / "broken"
    for folder in (plain, broken):
        folder.mkdir()
    assert started(plain, "--simulate", 1).code == 0
    went_on = FolderKeeper.went_on

    def pressed(self, state, curator):
        went_on(self, state, curator)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(FolderKeeper, "went_on", pressed)
        assert started(broken, "--simulate", 1).code == 130
    assert fedlens("run", "--resume", the_run(broken)).code == 0
    one, other = (opening.opened(the_run(folder) / "all" / "model.safetensors").generator for folder in (plain, broken))
    assert all(torch.equal(leaf, other[name]) for name, leaf in one.items())


@pytest.mark.parametrize(
    ("overrides", "problem"),
    [
        (["look.family=moments", "look.features=21000", "look.steps=2000", "look.batch=1000"], "fits a network"),
        (["model.start=fresh"], "look.features is not used here"),
        (["algorithm=look", "privacy.rounds=1", "privacy.clip=1.0"], "model.start is not used here"),
        (["look.features=20"], "Expected a multiple of 6 features"),
        (["look.keep=0.7"], "look.keep is not used here"),
        (["look.share=1.0"], "look.share: input should be less than 1"),
    ],
)
def test_what_does_not_go_with_a_start_is_named(overrides, problem):
    with pytest.raises(RecipeError) as error:
        Recipe.parsed(STARTED, overrides)
    assert problem.lower() in str(error.value).lower()


def test_a_start_takes_its_share_of_an_epsilon():
    with pytest.raises(RecipeError, match=r"takes its share of privacy\.epsilon"):
        Recipe.parsed(STARTED.replace("epsilon = 8.0", "noise_multiplier = 1.0"))


def test_a_share_without_a_start_is_named():
    with pytest.raises(RecipeError, match=r"look\.share is not used here"):
        Recipe.parsed(STARTED.split("[look]")[0].replace('start = "look"', ""), ["look.share=0.2"])
