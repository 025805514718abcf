"""Who is selected: by one user's data and public models alone; and thresholds, learnt at a price that is paid first."""

import dataclasses
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from toys import PAIR

from fedlens.algorithms.histogram import AccuracyHistogram, quantiles
from fedlens.core import histograms
from fedlens.core.randomness import Randomness
from fedlens.curators.protocol import PrivacySpentError
from fedlens.curators.site import Site
from fedlens.data.population import DataError, Population
from fedlens.data.selection import accuracies, classified, of_classes, with_accuracy, with_attribute
from fedlens.ledger import Ledger
from fedlens.models.classifier import ConvClassifier, Primary
from fedlens.privacy import Neighbours
from fedlens.recipes.recipe import Recipe
from fedlens.recipes.tables import Selection
from fedlens.runs import preparation


@dataclasses.dataclass(frozen=True)
class FirstPixel:
    """A network that reads the class off the first pixel: 0, 1 or 2 for -1, 0 and 1."""

    kind = "toy"
    side, channels, classes = 2, 1, 3

    def probabilities(self, params, images):
        return torch.nn.functional.one_hot((images[:, 0, 0, 0] + 1).round().long(), 3).float()

    def digest(self, params):
        return "first pixel"


PRIMARY = Primary(FirstPixel())


def crowd(*users, **columns):
    """Each user as pairs of (what the primary model says, label)."""
    pairs = np.array([pair for user in users for pair in user], dtype=np.int64).reshape(-1, 2)
    x = np.zeros((len(pairs), 1, 2, 2), np.float32)
    x[:, 0, 0, 0] = pairs[:, 0] - 1
    numbered = {"x": x, "y": pairs[:, 1], "row": np.arange(len(pairs))}
    whole = {name: np.asarray(column) for name, column in columns.items()}
    return Population.from_arrays("crowd", numbered | whole, np.array([len(user) for user in users]))


def rows(population):
    """The rows each selected user is left with."""
    taken = population.take(np.arange(len(population)))
    return [found[mask.bool()].tolist() for found, mask in zip(taken["row"], taken["mask"], strict=True)]


RIGHT, WRONG = (1, 1), (1, 2)


def side(population):
    """What a recipe finds beside the data."""
    return Site(population, PRIMARY, accuracies(population, PRIMARY))


def selected(recipe, site, learnt=()):
    """The units that a model is trained on."""
    return site.asked(recipe.stage("train", "chosen"), dict(learnt))


def bare(population):
    return Site(population, None, None)


# One rule at a time


def test_users_are_selected_by_their_own_accuracy():
    users = crowd([RIGHT] * 3 + [WRONG], [WRONG], [], [RIGHT], [RIGHT, WRONG])
    assert rows(with_accuracy(users, "low", accuracies(users, PRIMARY), 0.0, 0.5)) == [[4]]
    assert rows(with_accuracy(users, "middle", accuracies(users, PRIMARY), 0.5, 1.0)) == [
        [0, 1, 2, 3],
        [6, 7],
    ]
    assert rows(with_accuracy(users, "high", accuracies(users, PRIMARY), 1.0, math.inf)) == [[5]]
    assert (
        len(with_accuracy(users, "all", accuracies(users, PRIMARY), 0.0, math.inf)) == 4
    )  # who holds nothing has no accuracy


def test_examples_are_selected_by_the_verdict_on_them():
    users = crowd([RIGHT, WRONG, RIGHT], [WRONG], [], [RIGHT])
    assert rows(classified(users, "right", PRIMARY, True, 1)) == [[0, 2], [4]]
    assert rows(classified(users, "right", PRIMARY, True, 2)) == [[0, 2]]
    assert rows(classified(users, "wrong", PRIMARY, False, 1)) == [[1], [3]]


def test_examples_are_selected_by_class():
    users = crowd([(0, 0), (0, 1), (0, 2)], [(0, 1)], [(0, 2), (1, 2)], [])
    assert rows(of_classes(users, "twos", (2,), 1)) == [[2], [4, 5]]
    assert rows(of_classes(users, "even", (0, 2), 2)) == [[0, 2], [4, 5]]
    assert rows(of_classes(users, "nines", (9,), 1)) == []


@pytest.mark.parametrize("dtype", [np.int64, np.int8, np.uint8, np.uint16, np.uint64])
def test_users_are_selected_by_an_attribute_that_all_their_examples_share(dtype):
    users = crowd([RIGHT] * 2, [RIGHT] * 2, [RIGHT] * 2, [], [RIGHT], hsf=np.array([0, 0, 0, 1, 4, 1, 4], dtype))
    assert rows(with_attribute(users, "zero", "hsf", (0,))) == [[0, 1]]
    assert rows(with_attribute(users, "others", "hsf", (1, 4))) == [[4, 5], [6]]
    assert rows(with_attribute(users, "nobody", "hsf", (7,))) == []


def test_a_missing_attribute_is_named_beside_the_columns_there_are():
    with pytest.raises(DataError, match="Expected a column 'hsf', found row, x, y"):
        with_attribute(crowd([RIGHT]), "zero", "hsf", (0,))


@pytest.mark.parametrize("column", [[0.5], ["a"], [[1, 2]]])
def test_an_attribute_of_another_kind_is_refused(column):
    with pytest.raises(DataError, match="one whole number per row in hsf"):
        with_attribute(crowd([RIGHT], hsf=column), "zero", "hsf", (0,))


# Nobody decides about anybody else

RULES = {
    "everyone": {"by": "everyone"},
    "low": {"by": "accuracy", "below": 0.5},
    "middle": {"by": "accuracy", "at_least": 0.4, "below": 0.8},
    "learnt": {"by": "accuracy", "at_least": {"quantile": 0.25}, "below": {"quantile": 0.75}},
    "right": {"by": "right", "minimum_examples": 2},
    "wrong": {"by": "wrong", "minimum_examples": 1},
    "class": {"by": "class", "classes": [0, 2], "minimum_examples": 2},
    "attribute": {"by": "attribute", "attribute": "hsf", "values": [0, 2]},
}
LEARNT = {0.25: 0.3, 0.75: 0.7}


def recipe(rule, **privacy):
    """One selection on a population folder, for images of 2 x 2."""
    values = {
        "name": "one",
        "task": "T1",
        "side": 8,
        "data": {"source": "population", "path": "somewhere"},
        "primary": {"model": "somewhere"},
        "selections": {"chosen": rule},
        "privacy": {"noise_multiplier": 5.0, "delta": 1e-5, "rounds": 1, "users": 9, "population": 99, "clip": 1.0},
    }
    return Recipe.validated(values | {"privacy": values["privacy"] | privacy}, [])


@st.composite
def pairs_of_crowds(draw):
    """Two crowds that have some users in common, at places of their own, and who those are in either."""
    example = st.tuples(st.integers(0, 2), st.integers(0, 2), st.sampled_from([0, 0, 0, 1]))
    user = st.lists(example, max_size=5)
    common = draw(st.lists(user, min_size=1, max_size=5))
    crowds, places = [], []
    for _ in range(2):
        mixed = [(place, held) for place, held in enumerate(common)]
        mixed += [(None, held) for held in draw(st.lists(user, max_size=5))]
        mixed = draw(st.permutations(mixed))
        crowds.append([held for _, held in mixed])
        places.append({place: at for at, (place, _) in enumerate(mixed) if place is not None})
    return crowds, places


def chosen_of(users, rule):
    """For every user, which of their examples are selected; None for users who are not."""
    flat = [example for user in users for example in user]
    pairs = [[example[:2] for example in user] for user in users]
    population = crowd(*pairs, hsf=np.array([example[2] for example in flat], dtype=np.int64))
    found = side(population)._chosen("chosen", recipe(rule).selections["chosen"], LEARNT, alone=False)
    starts = np.concatenate([[0], np.cumsum([len(user) for user in users])])
    kept = {}
    for held in rows(found):
        if held:
            user = int(np.searchsorted(starts, held[0], side="right")) - 1
            kept[user] = [row - int(starts[user]) for row in held]
    return [kept.get(user) for user in range(len(users))]


@pytest.mark.parametrize("name", RULES)
@given(crowds=pairs_of_crowds())
def test_the_verdict_on_a_user_depends_on_no_other_user(name, crowds):
    (first, second), (here, there) = crowds
    one, other = chosen_of(first, RULES[name]), chosen_of(second, RULES[name])
    for user in here:
        assert one[here[user]] == other[there[user]]


@given(crowds=pairs_of_crowds(), low=st.floats(0, 1), high=st.floats(0, 1))
def test_groups_on_either_side_of_learnt_thresholds_share_nobody(crowds, low, high):
    users = crowds[0][0]
    learnt = {0.25: min(low, high), 0.75: max(low, high)}
    flat = [[example[:2] for example in user] for user in users]
    sides = {"low": {"by": "accuracy", "below": {"quantile": 0.25}}}
    sides |= {"high": {"by": "accuracy", "at_least": {"quantile": 0.75}}}
    found = [
        {
            row
            for held in rows(side(crowd(*flat))._chosen("chosen", Selection(**rule), learnt, alone=False))
            for row in held
        }
        for rule in sides.values()
    ]
    assert not found[0] & found[1]


# What a run is handed


@pytest.mark.parametrize("name", RULES)
def test_a_model_is_handed_images_and_labels_and_nothing_else(name):
    population = crowd([RIGHT] * 6 + [(0, 0)], [WRONG] * 6, hsf=[0] * 7 + [1] * 6)
    found = selected(recipe(RULES[name]), side(population), LEARNT)
    assert list(found.columns) == ["x", "y"]
    assert found.selected == (name != "everyone")
    assert not found.by_examples


def test_a_look_at_everything_without_labels_is_handed_images():
    found = selected(recipe(RULES["everyone"]), bare(crowd([RIGHT]).only("x", "row")))
    assert list(found.columns) == ["x"]


def test_examples_become_units_where_the_guarantee_is_about_examples():
    rule = {"by": "class", "classes": [1], "minimum_examples": 1}
    found = selected(recipe(rule, unit="example"), bare(crowd([RIGHT, WRONG, RIGHT])))
    assert found.by_examples
    assert len(found) == 2


def test_a_silo_stays_one_unit():
    found = selected(recipe(RULES["everyone"], unit="silo"), bare(crowd([RIGHT, WRONG])))
    assert not found.by_examples
    assert len(found) == 1


def test_a_user_with_very_many_images_is_judged_bit_by_bit():
    seen = []

    class Watched(FirstPixel):
        def probabilities(self, params, images):
            seen.append(len(images))
            return super().probabilities(params, images)

    population, primary = crowd([RIGHT], [RIGHT, WRONG] * 50_000), Primary(Watched())
    assert len(with_accuracy(population, "half", accuracies(population, primary), 0.5, 0.6)) == 1
    assert sum(seen) == 1 + 100_000
    assert max(seen) <= 1024


# Columns that cannot be used are named before anything is released


@pytest.mark.parametrize("name", ["low", "learnt", "right", "wrong"])
def test_a_label_that_the_primary_model_does_not_know_is_no_error(name):
    """Whether anybody has one is private: it is a label that the model gets wrong."""
    preparation.check(recipe(RULES[name]), crowd([RIGHT, RIGHT], [(1, 987), (1, 654)]), PRIMARY)
    assert accuracies(crowd([RIGHT, RIGHT], [(1, 987), RIGHT]), PRIMARY).tolist() == [1.0, 0.5]


@pytest.mark.parametrize("name", ["everyone", "class", "attribute"])
def test_labels_that_no_primary_model_judges_may_be_any(name):
    assert preparation.check(recipe(RULES[name]), crowd([(1, 987)], hsf=[0]), PRIMARY) is None


@pytest.mark.parametrize("name", ["low", "learnt", "right", "wrong", "class"])
def test_selections_by_label_need_labels(name):
    with pytest.raises(DataError, match="Expected labels"):
        preparation.check(recipe(RULES[name]), crowd([RIGHT]).only("x"), PRIMARY)


def test_an_attribute_that_is_not_there_is_named_beside_the_columns_there_are():
    with pytest.raises(DataError, match="Expected a column 'hsf', found row, x, y"):
        preparation.check(recipe(RULES["attribute"]), crowd([RIGHT]), None)


def test_an_attribute_that_is_no_whole_number_is_refused():
    with pytest.raises(DataError, match="hsf as one whole number per row"):
        preparation.check(recipe(RULES["attribute"]), crowd([RIGHT], hsf=[0.5]), None)


def test_a_primary_model_of_one_class_is_refused(tmp_path):
    network = ConvClassifier(side=8, classes=1, widths=(2,), hidden=2)
    Primary(network, network.init(0)).save(tmp_path / "kept.safetensors")
    with pytest.raises(ValueError, match="at least two classes"):
        preparation.primary(recipe(RULES["right"]), tmp_path / "kept.safetensors")


# Thresholds

LEARNING = Recipe.parsed(
    PAIR.replace('by = "wrong"\nminimum_examples = 1', 'by = "accuracy"\nbelow = { quantile = 0.25 }').replace(
        'by = "right"\nminimum_examples = 1', 'by = "accuracy"\nat_least = { quantile = 0.75 }'
    )
)


def spread(users, seed=0):
    """Users of 40 examples each, whose accuracies are spread about 0.8."""
    rng = np.random.default_rng(seed)
    right = rng.binomial(40, rng.beta(16, 4, users))
    return crowd(*([RIGHT] * hits + [WRONG] * (40 - hits) for hits in right)), right / 40


def verdicts(population):
    """What thresholds are learnt from."""
    return side(population).asked(LEARNING.stage("thresholds", "thresholds"), {})


def learnt(curator_of, population, noise=4.0, seed=0, **options):
    stage = LEARNING.stage("thresholds", "thresholds")
    plan = dataclasses.replace(stage.plan, noise_multiplier=noise)
    curator = curator_of(verdicts(population), plan, randomness=Randomness.seeded(seed), stage=stage.name, **options)
    (state,) = stage.algorithm.run(curator, stage.start())
    return quantiles(stage.algorithm.result(state), LEARNING.quantiles)


def test_learnt_thresholds_are_close_to_the_true_quantiles(curator_of):
    population, accuracies = spread(400)
    true = {level: np.quantile(accuracies, level) for level in (0.25, 0.75)}
    for seed in range(8):
        found = learnt(curator_of, population.only("x", "y"), seed=seed)
        assert list(found) == [0.25, 0.75]
        assert all(abs(found[level] - true[level]) < 0.06 for level in true), (found, true)
        assert not any(found[level] == true[level] for level in true)


def test_without_noise_they_are_right_within_a_bin(curator_of):
    population, accuracies = spread(300)
    found = learnt(curator_of, population.only("x", "y"), noise=0.0)
    assert all(abs(found[level] - np.quantile(accuracies, level)) <= 1 / 25 for level in found)


def test_a_hundred_users_in_a_corner_are_not_outweighed_by_the_noise_of_empty_bins():
    """Were negative bins cut to zero, the noise left in twenty empty ones would outweigh a quarter of the users."""
    errors = []
    for seed in range(40):
        histogram = torch.zeros(25)
        histogram[21:24] = torch.tensor([20.0, 50.0, 30.0])
        noise = torch.randn(25, generator=torch.Generator().manual_seed(seed))
        errors.append(abs(quantiles(histogram + 4 * noise, [0.25])[0.25] - 0.884))
    assert np.mean(errors) < 0.06


@given(
    histogram=st.lists(st.floats(-50, 50, width=32), min_size=1, max_size=30),
    levels=st.lists(st.floats(0.001, 0.999), min_size=1, max_size=5),
)
def test_quantiles_never_cross_and_stay_in_range(histogram, levels):
    found = quantiles(torch.tensor(histogram), levels)
    assert list(found) == sorted(set(levels))
    assert all(0 <= value <= 1 for value in found.values())
    assert list(found.values()) == sorted(found.values())


def test_the_nearest_histogram_keeps_its_total_and_has_no_negative_bin():
    rng = np.random.default_rng(0)
    for _ in range(50):
        noisy = rng.normal(1, 4, 25)
        found = histograms.nearest(noisy, max(noisy.sum(), 0.0))
        assert found.min() >= 0
        assert found.sum() == pytest.approx(max(noisy.sum(), 0), abs=1e-9)
        for _ in range(20):  # no other one is nearer
            other = rng.dirichlet(np.ones(25)) * found.sum()
            assert np.linalg.norm(found - noisy) <= np.linalg.norm(other - noisy) + 1e-9


@given(
    users=st.lists(st.lists(st.sampled_from([RIGHT, WRONG]), max_size=4), max_size=6),
    extra=st.lists(st.sampled_from([RIGHT, WRONG]), max_size=4),
)
def test_one_user_moves_the_histogram_by_at_most_one(users, extra):
    def total(held):
        population, ask = verdicts(crowd(*held)), AccuracyHistogram().contribute
        taken = population.take(np.arange(len(population)))
        each = [
            ask({}, {name: leaf[i] for name, leaf in taken.items()}, {})[0]["users"] for i in range(len(population))
        ]
        return torch.stack([torch.zeros(25), *each]).sum(0)

    moved = (total([*users, extra]) - total(users)).norm()
    assert moved == (1.0 if extra else 0.0)


def test_who_holds_nothing_and_what_is_padded_count_for_nothing():
    ask = AccuracyHistogram(bins=4).contribute
    for share, mask, expected in (
        (0.0, 0.0, [0, 0, 0, 0]),
        (-1.0, 1.0, [0, 0, 0, 0]),
        (0.0, 1.0, [1, 0, 0, 0]),
        (0.5, 1.0, [0, 0, 1, 0]),
        (1.0, 1.0, [0, 0, 0, 1]),
    ):
        examples = {"accuracy": torch.tensor([share]), "mask": torch.tensor([mask])}
        assert ask({}, examples, {})[0]["users"].tolist() == expected


def test_the_plan_prices_users_who_come_go_or_change():
    plan = LEARNING.plans["thresholds"]
    assert (plan.releases, plan.noise_multiplier, plan.sensitivity) == (1, 4.0, 1.0)
    replaced = dataclasses.replace(plan, neighbours=Neighbours.REPLACE_ONE)
    assert LEARNING.changed(["privacy.neighbours=replace-one"]).plans["thresholds"] == replaced
    one, other = (AccuracyHistogram().contribute({}, user, {})[0]["users"] for user in two_users())
    assert float((one - other).norm()) == pytest.approx(math.sqrt(2))
    assert replaced.sensitivity == 2.0
    assert replaced.loss.multiplier == 2.0
    assert replaced.epsilon(1e-5) > plan.epsilon(1e-5)


def two_users():
    taken = verdicts(crowd([RIGHT], [WRONG])).take(np.arange(2))
    return [{name: leaf[user] for name, leaf in taken.items()} for user in range(2)]


def test_the_release_is_charged_before_a_user_is_read(curator_of, monkeypatch):
    book, read = Ledger(), []
    take = Population.take

    def watched(self, *given, **options):
        read.append(book.spent("run", "thresholds"))
        return take(self, *given, **options)

    monkeypatch.setattr(Population, "take", watched)
    learnt(curator_of, spread(5)[0].only("x", "y"), ledger=book)
    assert read == [1] * 5


def test_the_same_question_is_answered_alike_and_other_verdicts_are_another_question(curator_of):
    book, population = Ledger(), spread(30)[0].only("x", "y")
    assert learnt(curator_of, population, ledger=book) == learnt(curator_of, population, ledger=book)
    assert book.spent("run", "thresholds") == 1
    with pytest.raises(PrivacySpentError):
        learnt(curator_of, spread(30, seed=1)[0].only("x", "y"), ledger=book)
