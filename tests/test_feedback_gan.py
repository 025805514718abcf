"""Feedback GANs: critics that stay with their data, shards, votes, and what all of it costs."""

import dataclasses
import itertools
import json
import shutil
import types

import numpy as np
import pytest
import torch
from command_line import fedlens
from toy_feedback import ALGORITHM, PROJECTED, RECIPE, SHARDS, plan_of, written
from toys import same

from fedlens.algorithms.feedback_gan import FeedbackGan, _coins, votes
from fedlens.algorithms.optimizers import Adam, Sgd
from fedlens.core import trees
from fedlens.core.randomness import Randomness
from fedlens.curators import memory
from fedlens.curators.memory import Memory
from fedlens.curators.simulated import SimulatedCurator
from fedlens.data.population import Population
from fedlens.ledger import Account, Ledger
from fedlens.media import opening
from fedlens.media.images.samples import Model
from fedlens.models import convolutions, projection
from fedlens.models.gan import ConvCritic, ConvGenerator, Gan
from fedlens.models.projection import CriticLoss, ProjectionCritic, ResidualGenerator, turned
from fedlens.privacy import (
    Balanced,
    Everyone,
    FixedSize,
    L2Clip,
    Neighbours,
    Plan,
    RowClip,
    TopKSign,
    Unit,
)
from fedlens.recipes.recipe import Recipe, RecipeError
from fedlens.runs import folder


def digits(rows=40, seed=0):
    rng = np.random.default_rng(seed)
    columns = {"x": rng.integers(0, 256, (rows, 1, 8, 8), np.uint8), "y": rng.integers(0, 3, rows)}
    return Population.from_arrays("digits", columns, np.ones(rows, np.int64))


def without(population, row):
    columns = {name: np.delete(column, row, 0) for name, column in population.columns.items()}
    return Population.from_arrays(population.name, columns, np.ones(len(population) - 1, np.int64))


def curator_of(population, sampling, algorithm=ALGORITHM, ledger=None, **plan):
    return SimulatedCurator(
        population.by_example().dealt(SHARDS, key=0),
        plan_of(sampling, **plan),
        ledger=ledger or Ledger(),
        account=Account(run="run", population=population.name, simulated=True),
        randomness=Randomness.seeded(1),
        examples_per_unit=algorithm.examples_per_unit,
        memory=algorithm.memory(SHARDS),
    )


def rows_of(curator):
    return curator.memory.rows(np.arange(SHARDS))


# Shards


def contents(dealt, shard):
    return sorted(image.tobytes() for image in dealt.unit(shard)["x"].numpy())


def test_nobody_is_in_two_shards_and_everybody_is_in_one():
    population = digits().by_example()
    dealt = population.dealt(SHARDS, key=0)
    assert (len(dealt), dealt.shards, dealt.by_examples) == (SHARDS, SHARDS, True)
    assert sorted(np.concatenate([dealt._row_numbers(shard) for shard in range(SHARDS)])) == list(range(40))
    assert len({len(dealt.unit(shard)["x"]) for shard in range(SHARDS)}) > 1  # by chance, not evenly


def test_a_user_stays_whole():
    population = Population.from_arrays("users", digits(40).columns, np.full(10, 4))
    dealt = population.dealt(3, key=0)
    owners = [{int(row) // 4 for row in dealt._row_numbers(shard)} for shard in range(3)]
    assert sum(map(len, owners)) == 10
    assert set().union(*owners) == set(range(10))


def test_one_example_more_or_less_moves_nobody_else():
    population = digits()
    before = population.by_example().dealt(SHARDS, key=0)
    for row in range(0, 40, 5):
        after = without(population, row).by_example().dealt(SHARDS, key=0)
        changed = [shard for shard in range(SHARDS) if contents(before, shard) != contents(after, shard)]
        assert len(changed) == 1
        assert len(contents(before, changed[0])) == len(contents(after, changed[0])) + 1


def test_who_is_where_depends_on_no_label_and_on_the_key():
    population = digits()
    relabelled = dataclasses.replace(population, columns=population.columns | {"y": np.zeros(40, np.int64)})
    first, second, other = (
        one.by_example().dealt(SHARDS, key=key) for one, key in ((population, 0), (relabelled, 0), (population, 1))
    )
    assert np.array_equal(first.rows, second.rows)
    assert not np.array_equal(first.rows, other.rows)


def test_more_shards_than_examples_leave_some_empty():
    dealt = digits(3).by_example().dealt(SHARDS, key=0)
    assert len(dealt) == SHARDS
    assert sorted(dealt.counts)[:3] == [0, 0, 0]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"shards": SHARDS + 1}, "sampler of population=7"),
        ({"shards": 0}, "shards=0 >= 1"),
        ({"neighbours": Neighbours.REPLACE_ONE}, "may enter another shard"),
    ],
)
def test_plans_of_shards_that_promise_nothing_are_refused(change, expected):
    with pytest.raises(ValueError, match=expected):
        dataclasses.replace(plan_of(Balanced(groups=2, population=SHARDS)), **change)


def test_a_plan_of_shards_is_asked_of_these_shards_only():
    population = digits().by_example()
    plan = plan_of(Everyone())
    about = {"ledger": Ledger(), "account": Account(run="run", population="digits", simulated=True)}
    for data in (population, population.dealt(SHARDS + 1, key=0)):
        with pytest.raises(ValueError, match="in the shards of the plan"):
            SimulatedCurator(data, plan, randomness=Randomness.seeded(1), **about)


def test_plans_of_before_keep_their_name_and_those_of_shards_come_back():
    plain = Plan(
        sampling=Everyone(), bound=L2Clip(norm=1.0), noise_multiplier=1.0, releases=2, expected_contributors=3.0
    )
    assert "shards" not in plain.to_dict()
    plan = plan_of(Balanced(groups=3, population=SHARDS))
    assert Plan.from_dict(json.loads(plan.canonical())) == plan


# What it costs: reference values of docs/papers.md and of ALGORITHMS' own


def of_papers(sampling, bound, noise, releases, shards):
    return Plan(
        sampling=sampling,
        bound=bound,
        noise_multiplier=noise / bound.norm,
        releases=releases,
        expected_contributors=1.0,
        unit=Unit.EXAMPLE,
        shards=shards,
    )


def test_gs_wgan_costs_what_it_costs():
    """sigma counts in sensitivities: 2 C an image. The paper's 1.07 is worth 380, where it prints 10."""

    def epsilon(sigma, rows=32):
        bound = RowClip(row_norm=1.0, rows=rows)
        return of_papers(Balanced(groups=1000, population=1000), bound, 2 * sigma, 20_000, 1000).epsilon(1e-5)

    assert epsilon(12.65) == pytest.approx(10, abs=0.01)
    assert epsilon(94.4) == pytest.approx(1, abs=0.01)
    assert 330 < epsilon(1.07) < 385
    assert epsilon(2.24, rows=1) == pytest.approx(10, abs=0.05)  # all images clipped as one


def test_a_hidden_shard_costs_less_and_two_hidden_things_are_two():
    bound = RowClip(row_norm=1.0, rows=32)
    hidden = of_papers(FixedSize(size=1, population=1000), bound, 2 * 2.87, 20_000, 1000)
    assert hidden.epsilon(1e-5) == pytest.approx(6.93, abs=0.01)  # 10 by Renyi orders, which are an upper bound
    one = RowClip(row_norm=1.0, rows=1)
    each = of_papers(FixedSize(size=1, population=1000), one, 2 * 2.87, 640_000, 1000)
    assert each.epsilon(1e-5) < hidden.epsilon(1e-5)


def test_datalens_costs_what_it_costs():
    for teachers, k, sigma, steps, expected in ((4000, 200, 5000, 86, 0.74), (4000, 300, 800, 109, 8.45)):
        plan = of_papers(Everyone(), TopKSign(k=k, rows=15), sigma, steps, teachers)
        assert plan.epsilon(1e-5) == pytest.approx(expected, abs=0.06)


def test_a_shard_that_changes_moves_twice_what_a_unit_that_leaves_does():
    plan = plan_of(Everyone(), noise=4.0)
    assert plan.sensitivity == 2 * plan.bound.norm
    assert dataclasses.replace(plan, shards=None).sensitivity == plan.bound.norm
    assert plan.epsilon(1e-5) == pytest.approx(
        dataclasses.replace(plan, shards=None, noise_multiplier=2.0).epsilon(1e-5)
    )
    assert plan.who.startswith("of 6 shards")


# Critics


def test_one_example_changes_one_critic_its_optimizer_and_one_contribution():
    """Asked all at once, after a warm start: whatever else is kept or sent is the same to the last bit."""
    algorithm, population = dataclasses.replace(ALGORITHM, examples=40), digits()
    place = int(population.by_example().dealt(SHARDS, key=0)._row_numbers(2)[0])
    kept, sent = [], []
    for data in (population, without(population, place)):
        curator = curator_of(data, Everyone(), algorithm)
        curator.remember(algorithm.seedless.warmed, algorithm._warming(torch.device("cpu")))
        message, _ = algorithm.round(algorithm.start())
        mean = curator.noisy_mean(algorithm.contribute, message)
        kept.append(rows_of(curator))
        sent.append(mean["images"])
    changed = {
        shard
        for shard in range(SHARDS)
        for name in kept[0]
        if not torch.equal(kept[0][name][shard], kept[1][name][shard])
    }
    assert changed == {2}
    assert any(name.startswith("slots/") and not torch.equal(kept[0][name][2], kept[1][name][2]) for name in kept[0])
    moved = (sent[0] - sent[1]).double().flatten(1).norm(dim=1)
    assert (moved > 0).all()
    assert (moved <= 2.0).all()  # each image by two bounds


def test_what_units_remember_is_neither_answered_nor_charged():
    ledger = Ledger()
    curator = curator_of(digits(), Everyone(), ledger=ledger)
    before = rows_of(curator)
    message = ALGORITHM._lesson(ALGORITHM.start())
    assert curator.remember(ALGORITHM.seedless.learnt, message) is None
    assert ledger.spent("run", "train") == 0
    assert curator.remaining == 4
    after = rows_of(curator)
    assert all(
        not torch.equal(before["critic/conv0.weight"][s], after["critic/conv0.weight"][s]) for s in range(SHARDS)
    )


def test_who_remembers_sends_nothing_whatever_it_would():
    """Also a method that is broken, or that would send everything it holds."""
    curator = curator_of(digits(), Everyone())

    def shouting(message, examples, memory):
        return {"all": examples["x"].float()}, memory

    def broken(message, examples, memory):
        raise RuntimeError(str(examples["x"]))

    assert curator.remember(shouting, {}) is None
    with pytest.raises(RuntimeError):  # as every method: it fails openly on a unit without data
        curator.remember(broken, {})


def test_where_it_is_hidden_who_was_asked_nobody_remembers_it():
    """What the asked one keeps would tell in later answers; only what all are asked to remember is kept."""
    curator = curator_of(digits(), FixedSize(size=1, population=SHARDS))
    before = rows_of(curator)
    message, _ = ALGORITHM.round(ALGORITHM.start())
    curator.noisy_mean(ALGORITHM.contribute, message)
    assert same(rows_of(curator), before)
    curator.remember(ALGORITHM.seedless.learnt, message)
    assert not same(rows_of(curator), before)


def test_in_turn_only_the_one_that_is_asked_learns():
    curator = curator_of(digits(), Balanced(groups=SHARDS, population=SHARDS))
    before = rows_of(curator)
    message, _ = ALGORITHM.round(ALGORITHM.start())
    curator.noisy_mean(ALGORITHM.contribute, message)
    after = rows_of(curator)
    learnt = [
        s for s in range(SHARDS) if not torch.equal(before["critic/conv0.weight"][s], after["critic/conv0.weight"][s])
    ]
    assert learnt == [0]


def test_a_critic_that_breaks_stays_as_it_was():
    loud = dataclasses.replace(ALGORITHM, local=Sgd(rate=1e30))
    curator = curator_of(digits(), Everyone(), loud)
    for _ in range(2):
        curator.remember(loud.seedless.learnt, loud._lesson(loud.start()))
    assert all(leaf.isfinite().all() for leaf in rows_of(curator).values())


def test_a_step_of_many_asks_is_that_of_one():
    """The same critics judge the same images, part by part."""
    whole = dataclasses.replace(ALGORITHM, warm_steps=0, all_learn=True, local=Sgd(rate=0.0))
    parts = dataclasses.replace(whole, asks=3)
    ends = []
    for algorithm, rows in ((whole, 6), (parts, 2)):
        curator = curator_of(
            digits(), Everyone(), algorithm, bound=RowClip(row_norm=1.0, rows=rows), releases=algorithm.asks
        )
        *_, state = algorithm.run(curator, algorithm.start())
        ends.append(algorithm.result(state))
    torch.testing.assert_close(ends[0], ends[1], rtol=1e-3, atol=1e-5)


def test_the_generator_goes_where_critics_point():
    """Told that brighter is better, image by image, it draws brighter images."""
    algorithm = dataclasses.replace(ALGORITHM, generator=Adam(rate=1e-2), averaged=0.0)
    state = algorithm.start()
    latents, _ = algorithm._latents(0, torch.device("cpu"))
    before = PROJECTED.generator.images(trees.part(state, "generator"), latents).mean()
    for _ in range(10):
        _, answered = algorithm.round(state)
        state = answered({"images": torch.ones(6, 1, 8, 8)})
    assert PROJECTED.generator.images(trees.part(state, "generator"), latents).mean() > before + 0.2
    voting = dataclasses.replace(algorithm, top=5, agreement=0.5)
    _, answered = voting.round(voting.start())
    still = answered({"images": torch.full((6, 1, 8, 8), 0.4)})  # too few agree
    first = trees.part(voting.start(), "generator")
    assert all(
        torch.equal(leaf, first[name]) for name, leaf in trees.part(still, "generator").items() if ".u" not in name
    )


# Votes


def test_votes_are_signs_of_the_largest_and_right_on_average():
    slopes = torch.tensor([[3.0, -1.0, 0.1, -6.0]])
    drawn = torch.stack([votes(slopes, torch.rand(1, 4), top=3, clip=None) for _ in range(4000)])
    assert set(drawn.unique().tolist()) == {-1.0, 0.0, 1.0}
    assert (drawn.abs().sum(2) == 3).all()
    torch.testing.assert_close(drawn.mean(0), torch.tensor([[0.5, -1 / 6, 0.0, -1.0]]), atol=0.06, rtol=0)
    sure = votes(slopes, torch.full((1, 4), 0.6), top=3, clip=1e-5)
    assert sure.tolist() == [[1.0, -1.0, 0.0, -1.0]]


def test_coins_are_the_teachers_own_and_follow_from_what_it_holds():
    shown = {"x": torch.rand(3, 1, 8, 8), "mask": torch.tensor([1.0, 1.0, 0.0])}
    shape = torch.Size([4, 1, 8, 8])
    first = _coins(shown, torch.tensor(5), shape)
    assert torch.equal(
        first, _coins(shown | {"x": torch.cat([shown["x"][:2], torch.ones(1, 1, 8, 8)])}, torch.tensor(5), shape)
    )
    assert not torch.equal(first, _coins(shown, torch.tensor(6), shape))
    other = _coins(shown | {"x": shown["x"].flip(0)}, torch.tensor(5), shape)
    assert abs(np.corrcoef(first.flatten(), other.flatten())[0, 1]) < 0.2
    assert 0 <= first.min() < 0.02
    assert 0.98 < first.max() < 1
    assert first.mean() == pytest.approx(0.5, abs=0.06)


# Networks


@pytest.mark.parametrize("side", [8, 20, 28, 32, 64])
@pytest.mark.parametrize("channels", [1, 3])
def test_networks_of_every_size_fit_together(side, channels):
    for pair in (Gan.gs_wgan(side, channels), Gan.datalens(side if side % 4 == 0 else 28, channels)):
        small = dataclasses.replace(pair, critic=dataclasses.replace(pair.critic, widths=(2, 3)))
        if isinstance(pair.generator, ResidualGenerator):
            small = dataclasses.replace(small, generator=dataclasses.replace(pair.generator, width=2))
        small = small.conditional(4)
        images, labels = small.drawn(small.generator.init(0), 3, seed=0, batch=4)
        assert images.shape == (3, *small.shape)
        assert small.score(small.critic.init(0), images, labels).shape == (3,)


def test_no_image_is_scored_or_drawn_by_what_others_are():
    critic, generator = PROJECTED.critic, PROJECTED.generator
    params, weights = critic.init(0), generator.init(0)
    images, labels = torch.randn(5, 1, 8, 8), torch.tensor([0, 1, 2, 0, 1])
    together = critic.score(params, images, labels)
    alone = torch.cat([critic.score(params, images[i : i + 1], labels[i : i + 1]) for i in range(5)])
    torch.testing.assert_close(together, alone)
    latents = PROJECTED.latents(5, rng=torch.Generator().manual_seed(0))
    drawn = generator.images(weights, latents)
    torch.testing.assert_close(drawn[2:3], generator.images(weights, latents[2:3]))


def test_weights_are_divided_by_their_largest_singular_value():
    critic = ProjectionCritic(side=8, widths=(4, 6), classes=3)
    params = critic.init(0)
    for _ in range(100):
        params = turned(params)
    rows = params["conv1.weight"].flatten(1)
    images, labels = torch.randn(4, 1, 8, 8), torch.tensor([0, 1, 2, 0])
    scaled = dict(params) | {"conv1.weight": 7 * params["conv1.weight"]}
    torch.testing.assert_close(critic.score(params, images, labels), critic.score(scaled, images, labels))
    u = params["conv1.u"]
    assert float((u @ rows).norm()) == pytest.approx(float(torch.linalg.matrix_norm(rows, 2)), rel=1e-3)


@pytest.mark.parametrize("spectral", [True, False])
@pytest.mark.parametrize("hidden", [0, 5])
@pytest.mark.parametrize("classes", [0, 3])
@pytest.mark.parametrize("entropy", [True, False])
def test_the_gradient_that_is_written_out_is_that_of_the_loss(spectral, hidden, classes, entropy):
    """In double precision, against double backward; as patches, as on a GPU, too; and many at once."""
    critic = ProjectionCritic(
        side=7, channels=2, classes=classes, widths=(3, 4), hidden=hidden, spectral=spectral, leak=0.1
    )
    generator = ConvGenerator(side=8, channels=2, classes=classes)
    gan = Gan(generator=generator, critic=critic)
    algorithm = dataclasses.replace(ALGORITHM, gan=gan, entropy=entropy)
    rng = torch.Generator().manual_seed(0)
    params = {name: leaf.double() for name, leaf in critic.init(0).items()}
    params |= {n: torch.randn(p.shape, generator=rng).double() for n, p in params.items() if n.endswith("bias")}
    real, fake, mixed = (torch.randn(5, 2, 7, 7, generator=rng).double() for _ in range(3))
    labels = torch.tensor([0, 1, 2, 0, 1]) if classes else torch.zeros(5, dtype=torch.long)
    expected = torch.func.grad(algorithm._critic_loss)(params, real, fake, mixed, labels)
    loss = CriticLoss(penalty=gan.penalty, drift=algorithm.drift, entropy=entropy)
    for ops in (convolutions.Convolutions, convolutions.Patches):
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(projection, "Convolutions", ops)
            torch.testing.assert_close(critic.gradient(params, real, fake, mixed, labels, loss), expected)
            stacked = {name: torch.stack([leaf, 2 * leaf]) for name, leaf in params.items()}
            many = torch.func.vmap(lambda p: critic.gradient(p, real, fake, mixed, labels, loss))(stacked)
        torch.testing.assert_close(trees.row(many, 0), expected)


def test_a_label_changes_the_score_and_none_is_needed():
    critic = PROJECTED.critic
    params, images = critic.init(0), torch.randn(2, 1, 8, 8)
    first, second = (critic.score(params, images, torch.full((2,), label)) for label in (0, 1))
    assert not torch.equal(first, second)
    plain = dataclasses.replace(critic, classes=0)
    assert plain.score(plain.init(0), images, torch.zeros(2, dtype=torch.long)).shape == (2,)


def test_pairs_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="same classes"):
        Gan(generator=ConvGenerator(side=8, classes=2), critic=ProjectionCritic(side=8, classes=3))
    with pytest.raises(ValueError, match="leak"):
        ProjectionCritic(side=8, leak=2.0)
    with pytest.raises(ValueError, match="side"):
        ResidualGenerator(side=2**14)


@pytest.mark.parametrize(
    "gan", [PROJECTED, Gan(generator=ConvGenerator(side=8, widths=(4, 2)), critic=ConvCritic(side=8))]
)
def test_a_model_of_either_kind_comes_back_from_disk(tmp_path, gan):
    from toy_samples import samples

    about = samples(torch.zeros(1, 1, 8, 8))
    model = Model(
        gan=gan,
        generator=gan.generator.init(0),
        label="left",
        spending=about.spending,
        delta=1e-5,
        recipe_sha256="ab",
        rounds=3,
        ledger_head=(2, "cd"),
    )
    model.save(tmp_path / "model.safetensors")
    again = opening.opened(tmp_path / "model.safetensors")
    assert again.gan == gan
    assert torch.equal(again.sampled(3, 0).images, model.sampled(3, 0).images)


# Recipes


def test_a_recipe_says_who_is_asked_and_what_it_costs():
    recipe = Recipe.parsed(RECIPE)
    train = recipe.plans["train"]
    assert train.bound == RowClip(row_norm=1.0, rows=10)
    assert (train.shards, train.expected_contributors, train.participations) == (5, 1.0, 2)
    assert recipe.plans["count"].shards is None  # units are counted, and not shards
    assert isinstance(recipe.built(), FeedbackGan)
    voting = Recipe.parsed(
        RECIPE.replace('sampling = "balanced"\ngroups = 5\n', "top_k = 9\n"),
        ["training.entropy=true", "model.size=datalens"],
    )
    assert voting.plans["train"].bound == TopKSign(k=9, rows=10)
    assert (voting.plans["train"].expected_contributors, voting.built().top) == (5.0, 9)


WRONG = {
    "more teachers than records": (
        ["privacy.shards=2000", "privacy.groups=2000"],
        "shards=2000 exceeds population=1797",
    ),
    "more entries than an image has": (["privacy.top_k=65"], "top_k=65 exceeds the 64 pixels"),
    "both bounds": (["privacy.top_k=5", "privacy.clip=1.0"], "give clip, top_k or"),
    "a hidden index that critics remember": (
        ["privacy.sampling=fixed-size", "privacy.size=1"],
        "training.all_learn = true",
    ),
    "parts that are not equal": (["training.asks=3"], "must be equal"),
    "a round within a step": (["training.asks=5", "privacy.rounds=7"], "in the middle of a step"),
    "a batch without every class": (["training.batch=9"], "less than one image of each class"),
    "neighbours that move between shards": (["privacy.neighbours=replace-one"], "goes with neighbours = 'add/remove'"),
    "shards of another algorithm": (
        ["algorithm=fedavg-gan", "model.size=small"],
        "goes with algorithm = 'feedback-gan'",
    ),
    "another algorithm's option": (["training.server={rate=1.0}", "training.decay=0.1"], "decay is not used here"),
}


@pytest.mark.parametrize("name", WRONG)
def test_recipes_that_do_not_go_together_are_refused(name):
    changes, expected = WRONG[name]
    with pytest.raises(RecipeError, match=expected):
        Recipe.parsed(RECIPE.replace("groups = 5\n", "" if "fixed-size" in str(changes) else "groups = 5\n"), changes)


def test_examples_take_turns_in_shards_only():
    with pytest.raises(RecipeError, match="examples have no turns of their own"):
        Recipe.parsed(RECIPE.replace("shards = 5\n", ""))


def test_a_run_ends_in_a_model_and_says_who_was_asked(tmp_path):
    done = fedlens("run", written(tmp_path), "--out", tmp_path / "runs", "--json")
    assert done.code == 0, done.err
    guarantee = json.loads(done.out)["guarantee"]
    assert guarantee["unit"] == "example"
    assert "of 5 shards, to which units are dealt by what each holds itself" in guarantee["sampling"]
    (run,) = (tmp_path / "runs").glob("gs-*")
    model = opening.opened(run / "all" / "model.safetensors")
    assert (model.rounds, model.gan.generator.width) == (8, 6)
    assert model.sampled(4, 0).images.shape == (4, 1, 8, 8)
    assert not list((tmp_path / "runs" / ".private").iterdir())  # no critic is left lying about


def test_a_run_that_is_cut_short_ends_with_the_same_model_and_pays_nothing_twice(tmp_path, monkeypatch):
    """Also where critics were last saved some rounds before: the rounds since are asked again for free."""
    ends = []
    for place, crash in (("whole", None), ("cut", 6)):
        (tmp_path / place).mkdir()
        asked = itertools.count()

        def noisy_mean(self, *question, ask=SimulatedCurator.noisy_mean, count=asked, after=crash):
            if self._stage == "train" and next(count) == after:
                raise OSError("the disk is full")
            return ask(self, *question)

        with monkeypatch.context() as patched:
            patched.setattr(SimulatedCurator, "noisy_mean", noisy_mean)
            patched.setattr(folder.FolderKeeper, "save", _once_in_a_while(folder.FolderKeeper.save))
            done = fedlens("run", written(tmp_path / place), "--simulate", "3", "--out", tmp_path / place / "runs")
        (run,) = (tmp_path / place / "runs").glob("gs-*")
        if crash:
            assert done.code == 1
            (kept,) = (tmp_path / place / "runs" / ".private").glob("*.memory")
            done = fedlens("run", "--resume", run)
            assert not kept.exists()
        assert done.code == 0, done.err
        assert Ledger(run.parent / "ledger.sqlite").spent(f"{run.name}/all", "train") == 8
        ends.append(opening.opened(run / "all" / "model.safetensors").generator)
    assert same(*ends)


def _once_in_a_while(save):
    """After the first round, and not when it is cut short."""

    def saved(self, state, curator):
        if int(state["round"]) in (0, 1, 8):
            save(self, state, curator)

    return saved


def test_a_feedback_gan_may_start_from_a_look(tmp_path):
    """At half of the epsilon, and at its price."""
    start = ["model.start=look", "model.size=datalens", "model.generator_widths=[8,4]", "look.family=embedding"]
    start += ["look.steps=2", "look.features=60", "look.batch=20", "training.entropy=true"]
    sets = [word for one in start for word in ("--set", one)]
    done = fedlens("run", written(tmp_path), *sets, "--simulate", "1", "--out", tmp_path / "runs", "--json")
    assert done.code == 0, done.err
    (run,) = (tmp_path / "runs").glob("gs-*")
    assert (run / "all" / "look.safetensors").exists()
    assert json.loads(done.out)["guarantee"]["epsilon"] == pytest.approx(50, rel=1e-3)
    text = RECIPE.replace('size = "gs-wgan"', 'size = "gs-wgan"\nstart = "look"')
    with pytest.raises(RecipeError, match="fitted to no look"):
        Recipe.parsed(text, ["look.family=embedding"])


def test_critics_that_are_damaged_are_not_gone_on_with(tmp_path, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr(SimulatedCurator, "_released", _full_disk(after=2))
        assert fedlens("run", written(tmp_path), "--simulate", "3", "--out", tmp_path / "runs").code == 1
    (run,) = (tmp_path / "runs").glob("gs-*")
    kept = sorted((tmp_path / "runs" / ".private").glob("*.memory/*/*/*.npy"))
    kept[0].write_bytes(kept[0].read_bytes()[:-8])
    done = fedlens("run", "--resume", run)
    assert done.code == 2
    assert "damaged" in done.err


def _full_disk(after):
    def released(self, steps, query, release=SimulatedCurator._released):
        if self._stage == "train" and self._position == after:
            raise OSError("the disk is full")
        return release(self, steps, query)

    return released


def test_critics_that_no_disk_holds_are_refused_before_anything_is_asked(tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: types.SimpleNamespace(free=10_000))
    done = fedlens("run", written(tmp_path), "--out", tmp_path / "runs")
    assert done.code == 2
    assert "of free disk beside the ledger" in done.err
    assert "nothing is spent" in done.err
    assert not list((tmp_path / "runs").glob("gs-*"))


def test_critics_may_lie_in_files(tmp_path, monkeypatch):
    """Which have no name, so that nothing is left of them; the model is the same."""
    ends, made = [], []
    mapped = memory._mapped
    monkeypatch.setattr(memory, "_mapped", lambda leaf, scratch: made.append(leaf.shape) or mapped(leaf, scratch))
    for most in (2**32, 0):
        assert made == []
        monkeypatch.setattr(folder, "IN_MEMORY", most)
        done = fedlens("run", written(tmp_path), "--simulate", "3", "--out", tmp_path / str(most), "--json")
        assert done.code == 0, done.err
        (run,) = (tmp_path / str(most)).glob("gs-*")
        ends.append(opening.opened(run / "all" / "model.safetensors").generator)
        assert not list((tmp_path / str(most) / ".private").iterdir())
    assert same(*ends)
    assert {shape[0] for shape in made} == {5}


def test_memory_that_was_saved_for_other_shards_is_refused():
    fewer = Memory(ALGORITHM.memory(SHARDS - 1))
    with pytest.raises(ValueError, match="a row of memory for every unit"):
        SimulatedCurator(
            digits().by_example().dealt(SHARDS, key=0),
            plan_of(Everyone()),
            ledger=Ledger(),
            account=Account(run="run", population="digits", simulated=True),
            randomness=Randomness.seeded(1),
            memory=fewer,
        )
