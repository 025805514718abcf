"""Attacks on feedback GANs, shards and what units remember that once worked: each is a test."""

import dataclasses
import itertools

import numpy as np
import pytest
import torch
from command_line import fedlens
from toy_feedback import ALGORITHM, RECIPE, SHARDS, plan_of, written
from toys import same

from fedlens.core import trees
from fedlens.core.randomness import Randomness
from fedlens.curators.engine import Engine
from fedlens.curators.simulated import SimulatedCurator
from fedlens.data.population import Population
from fedlens.ledger import Account, Ledger
from fedlens.media import opening
from fedlens.privacy import Balanced, Everyone, FixedSize, Poisson, RowClip, TopKSign, Unit
from fedlens.recipes.recipe import Recipe, RecipeError

# Cut short

KINDS = {
    "balanced": "",
    "hidden": 'sampling = "fixed-size"\nsize = 2\n',
    "voting": "top_k = 9\n",
}


def recipe_of(kind):
    text = RECIPE if kind == "balanced" else RECIPE.replace('sampling = "balanced"\ngroups = 5\n', KINDS[kind])
    return text + ("all_learn = true\nasks = 2\n" if kind == "hidden" else "")


def stopped_in(monkeypatch, place, at):
    """Ctrl-C, or a full disk, in the middle of a question or of what units remember, or once it is answered."""
    owner, name = {
        "in the middle": (Engine, "summed"),
        "before the noise": (SimulatedCurator, "_released"),
        "after the noise": (SimulatedCurator, "noisy_mean"),
        "remembering": (SimulatedCurator, "remember"),
    }[place]
    count, whole = itertools.count(), getattr(owner, name)

    def stopping(self, *given):
        if place == "after the noise":
            answer = whole(self, *given)
        if getattr(self, "_stage", "train") == "train" and next(count) == at:
            raise KeyboardInterrupt if at % 2 else OSError("the disk is full")
        return answer if place == "after the noise" else whole(self, *given)

    monkeypatch.setattr(owner, name, stopping)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The runs that nobody stops."""
    models = {}
    for kind in KINDS:
        folder = tmp_path_factory.mktemp(kind)
        done = fedlens("run", written(folder, recipe_of(kind)), "--simulate", "3", "--out", folder / "runs")
        assert done.code == 0, done.err
        (run,) = (folder / "runs").glob("gs-*")
        models[kind] = opening.opened(run / "all" / "model.safetensors").generator
    return models


STOPS = [
    (kind, *stop)
    for kind in KINDS
    for stop in [("in the middle", 13), ("before the noise", 5), ("after the noise", 6), ("remembering", 0)]
]


@pytest.mark.parametrize(("kind", "place", "at"), [*STOPS, ("hidden", "remembering", 3)])
def test_whoever_stops_a_run_anywhere_goes_on_with_it_and_pays_nothing_twice(
    tmp_path, monkeypatch, whole, kind, place, at
):
    """What units remembered was saved with the state before it, or torn: from there on nothing fitted any more."""
    with monkeypatch.context() as patched:
        stopped_in(patched, place, at)
        stopped = fedlens("run", written(tmp_path, recipe_of(kind)), "--simulate", "3", "--out", tmp_path / "runs")
    assert stopped.code
    (run,) = (tmp_path / "runs").glob("gs-*")
    done = fedlens("run", "--resume", run)
    assert done.code == 0, done.err
    assert Ledger(run.parent / "ledger.sqlite").spent(f"{run.name}/all", "train") == 8
    assert same(opening.opened(run / "all" / "model.safetensors").generator, whole[kind])


def test_units_are_not_dealt_anew_by_another_seed(tmp_path, monkeypatch):
    with monkeypatch.context() as patched:
        stopped_in(patched, "before the noise", 5)
        fedlens("run", written(tmp_path), "--out", tmp_path / "runs")
    (run,) = (tmp_path / "runs").glob("gs-*")
    kept = run / "recipe.toml"
    assert "seed = 0" in kept.read_text()
    kept.write_text(kept.read_text().replace("seed = 0", "seed = 7", 1))
    done = fedlens("run", "--resume", run)
    assert done.code == 2
    assert "Expected the recipe that" in done.err
    assert Ledger(run.parent / "ledger.sqlite").spent(f"{run.name}/all", "train") == 6


# Neighbours

SAMPLERS = {
    "everyone": Everyone(),
    "in turn": Balanced(groups=3, population=SHARDS),
    "hidden": FixedSize(size=2, population=SHARDS),
    "poisson": Poisson(rate=0.5, population=SHARDS, capped=False),
    "poisson, capped": Poisson(rate=0.03, population=SHARDS),
}
UNITS = {
    "users": np.array([5, 0, 3, 8, 0, 4, 1, 9, 6, 4]),  # two are empty
    "examples": np.ones(40, np.int64),
}


def odd_digits(counts, seed=0):
    """Some twice, some of classes that nobody declared, and pixels that are no numbers."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(40, 1, 8, 8)).astype(np.float32)
    x[7], x[30, 0, 3, 3], x[31, 0, 0, 0] = x[6], np.nan, np.inf
    y = rng.integers(0, 3, 40)
    y[:4] = 99, -7, 2**40, 3
    return Population.from_arrays("odd", {"x": x, "y": y}, counts)


def without_unit(population, unit):
    rows = np.arange(population.starts[unit], population.starts[unit] + population.counts[unit])
    columns = {name: np.delete(column, rows, 0) for name, column in population.columns.items()}
    return Population.from_arrays(population.name, columns, np.delete(population.counts, unit))


def sums_and_critics(population, sampling, bound, by_example, monkeypatch):
    """Exact sums of four releases, with what critics remember after each: cohorts and examples drawn alike.

    The same messages, since releases are compared one by one, given those before them.
    """
    unit = Unit.EXAMPLE if by_example else Unit.USER
    algorithm = dataclasses.replace(ALGORITHM, examples=6, all_learn=sampling.displaces, top=getattr(bound, "k", None))
    plan = dataclasses.replace(plan_of(sampling, bound), unit=unit)
    units = population.by_example() if by_example else population
    curator = SimulatedCurator(
        units.dealt(SHARDS, key=0),
        plan,
        ledger=Ledger(),
        account=Account(run="run", population="odd", simulated=True),
        randomness=Randomness.seeded(1),
        examples_per_unit=algorithm.examples_per_unit,
        memory=algorithm.memory(SHARDS),
        engine=Engine(chunk=4),
    )
    with monkeypatch.context() as patched:
        patched.setattr(SimulatedCurator, "_query", lambda self, *question: f"question {self._position}")
        state, sums, critics = algorithm.start(), [], []
        curator.remember(algorithm.seedless.warmed, algorithm._warming(torch.device("cpu")))
        for release in range(plan.releases):
            state["round"] = torch.tensor(release)
            if algorithm.all_learn:
                curator.remember(algorithm.seedless.learnt, algorithm._lesson(state))
            message, _ = algorithm.round(state)
            sums.append(curator.noisy_mean(algorithm.contribute, message)["images"].double())
            critics.append(curator.memory.rows(np.arange(SHARDS)))
    return plan, sums, critics


@pytest.mark.parametrize("kind", UNITS)
@pytest.mark.parametrize("bound", [RowClip(row_norm=1.0, rows=6), TopKSign(k=4, rows=6)], ids=["clipped", "voted"])
@pytest.mark.parametrize("name", SAMPLERS)
def test_a_unit_that_leaves_moves_no_sum_by_more_than_is_paid_for_and_one_critic(name, bound, kind, monkeypatch):
    """More examples than a critic is shown; identical ones, empty users, classes and pixels that should not be."""
    population, sampling = odd_digits(UNITS[kind]), SAMPLERS[name]
    asked = sampling, bound, kind == "examples", monkeypatch
    plan, sums, critics = sums_and_critics(population, *asked)
    for unit in (1, 3) if kind == "users" else (7, 30):
        _, others, changed = sums_and_critics(without_unit(population, unit), *asked)
        moved = [float((one - other).norm()) for one, other in zip(sums, others, strict=True)]
        assert max(moved) <= plan.sensitivity
        assert sum(far > 0 for far in moved) <= plan.participations
        assert name != "everyone" or unit not in (3, 7) or all(moved)  # else nothing was tried
        for before, after in zip(critics, changed, strict=True):
            assert sum(not same(trees.row(before, shard), trees.row(after, shard)) for shard in range(SHARDS)) <= 1


# Shards


def test_shards_are_neither_dealt_to_shards_nor_taken_for_users():
    """What a unit holds would decide where all of its shard go: two shards would change, for the price of one."""
    dealt = odd_digits(UNITS["users"]).dealt(SHARDS, key=0)
    with pytest.raises(ValueError, match="Expected units, and not shards"):
        dealt.dealt(3, key=0)
    with pytest.raises(ValueError, match="Expected units, and not shards"):
        dealt.by_example()  # from there on nobody would know that they were selected


def test_shards_stay_shards_in_columns_of_their_own():
    """Else they would pass for units, which move a sum half as far."""
    dealt = odd_digits(UNITS["examples"]).by_example().dealt(SHARDS, key=0)
    kept = dealt.compact()
    assert kept.shards == SHARDS
    assert all(torch.equal(kept.unit(s)["y"], dealt.unit(s)["y"]) for s in range(SHARDS))
    plan = dataclasses.replace(plan_of(Everyone()), shards=None)
    with pytest.raises(ValueError, match="in the shards of the plan"):
        curator_of_plan(kept, plan)


def curator_of_plan(population, plan, randomness=None):
    randomness = randomness or Randomness.seeded(1)
    return SimulatedCurator(
        population,
        plan,
        ledger=Ledger(),
        account=Account(run="run", population="odd", simulated=randomness.simulated),
        randomness=randomness,
        examples_per_unit=ALGORITHM.examples_per_unit,
        memory=ALGORITHM.memory(len(population)),
        engine=Engine(),
    )


# Names


def test_what_units_remember_is_named_by_the_arithmetic_that_made_it(monkeypatch):
    """One core computes with as many threads as it likes, and each of several with one: rows that were rounded
    otherwise went by one name, and would have met the same noise."""
    secret, names = Randomness.secret(), []
    for cores in (1, 2):
        monkeypatch.setattr("os.cpu_count", lambda cores=cores: cores)
        population = odd_digits(UNITS["examples"]).by_example().dealt(SHARDS, key=0)
        curator = curator_of_plan(population, plan_of(Everyone(), noise=1.0), secret)
        curator.remember(ALGORITHM.seedless.learnt, ALGORITHM._lesson(ALGORITHM.start()))
        names.append(curator.memory.name)
    assert names[0] != names[1]


# Recipes


def test_shards_of_other_media_are_refused():
    """They were priced, and the run ended in an error once its head count was paid."""
    text = """
name = "talk"
task = "T3"
[data]
source = "jsonl"
path = "talk.jsonl"
[selections.all]
by = "everyone"
[privacy]
epsilon = 4.0
delta = 1e-6
rounds = 4
units = 100
population = 200
[text]
model = "spelling"
public = "public.jsonl"
"""
    Recipe.parsed(text)
    with pytest.raises(RecipeError, match="shards is not used here: it goes with algorithm = 'feedback-gan'"):
        Recipe.parsed(text, ["privacy.shards=5"])


def test_a_start_that_a_pair_cannot_make_is_refused_before_the_look_is_paid():
    with pytest.raises(RecipeError, match="fitted to no look"):
        Recipe.parsed(RECIPE, ["model.start=look", "look.family=embedding", "model.size=gs-wgan"])


@pytest.mark.parametrize(
    ("option", "company"),
    [
        ("training.agreement=0.5", "top_k"),
        ("training.vote_clip=0.5", "top_k"),
        ("model.generator_widths=[3, 4]", "another size"),
    ],
)
def test_options_that_a_feedback_gan_would_ignore_are_refused(option, company):
    with pytest.raises(RecipeError, match=f"is not used here: it goes with {company}"):
        Recipe.parsed(RECIPE, [option])


def test_a_side_that_cannot_be_drawn_is_told_with_all_other_problems():
    with pytest.raises(RecipeError) as refused:
        Recipe.parsed(RECIPE, ["side=5000", "training.asks=3"])
    assert "asks=3 parts" in str(refused.value)
    assert str(refused.value).count("side=5000 of at most 4096") == 1
