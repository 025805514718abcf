"""What a release gives away, from first principles: cohorts enumerated, densities integrated, losses simulated."""

import collections
import dataclasses
import functools
import itertools
import math

import numpy as np
import pytest
import scipy.stats
import torch
import toys
from dp_accounting import NeighboringRelation
from dp_accounting.pld import privacy_loss_distribution
from dp_accounting.pld.pld_pmf import SparsePLDPmf
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from toys import Tight, vectors

from fedlens.core.randomness import Randomness
from fedlens.curators.contributions import one_by_one
from fedlens.curators.engine import Engine
from fedlens.data.population import Population
from fedlens.ledger import Ledger, guarantee
from fedlens.privacy import (
    Balanced,
    Everyone,
    FixedSize,
    L2Clip,
    Neighbours,
    Plan,
    Poisson,
    RowClip,
    TopKSign,
    Unit,
    UpdateAndBit,
    accounting,
    rdp,
)
from fedlens.privacy.losses import ExchangedGaussian, Gaussian, SampledGaussian

ADD_REMOVE, REPLACE_ONE = Neighbours.ADD_REMOVE, Neighbours.REPLACE_ONE
MESSAGE = {"m": torch.zeros(1)}
plan = functools.partial(toys.plan, releases=1, noise=1.0, expected=1.0)


def coarsely(promised, delta=1e-5):
    """The epsilon on a coarser grid, which is faster and never cheaper."""
    return accounting.epsilon([promised], delta, coarse=10)


def true_delta(epsilon, mu):
    """Of N(mu, 1) against N(0, 1), by integration."""
    x = np.linspace(-12, 12 + mu, 100_001)
    gap = scipy.stats.norm.pdf(x, mu) - math.exp(epsilon) * scipy.stats.norm.pdf(x)
    return np.trapezoid(np.maximum(gap, 0.0), x)


# Every cohort and every sum of a small population, written down from the definitions of the samplers


@functools.cache
def cohorts(sampling, units, release=0):
    """Every cohort that so many units can be drawn into, with its probability."""
    everyone = range(units)
    if isinstance(sampling, Everyone):
        return {tuple(everyone): 1.0}
    if isinstance(sampling, Balanced):
        return {tuple(unit for unit in everyone if (unit - release) % sampling.groups == 0): 1.0}
    if isinstance(sampling, FixedSize):
        found = list(itertools.combinations(everyone, min(sampling.size, units)))
        return dict.fromkeys(found, 1 / len(found))
    chances = collections.Counter()
    for joining in range(units + 1):
        chance = sampling.rate**joining * (1 - sampling.rate) ** (units - joining)
        for joins in itertools.combinations(everyone, joining):
            thinned = list(itertools.combinations(joins, min(sampling.cap, joining)))
            for cohort in thinned:
                chances[cohort] += chance / len(thinned)
    return chances


def density(x, sampling, sent, noise, release=0):
    """Of one noisy sum, where unit u sends sent[u]."""
    sums = collections.Counter()
    for cohort, chance in cohorts(sampling, len(sent), release).items():
        sums[sum(sent[unit] for unit in cohort)] += chance
    bells = sum(chance * np.exp(-((x - centre) ** 2) / (2 * noise**2)) for centre, chance in sums.items())
    return bells / math.sqrt(2 * math.pi * noise**2)


def neighbouring(sampling, neighbours, others, ours=1.0):
    """What is sent with us and without us (a slot stays empty), or with our data and with the very opposite."""
    if neighbours == REPLACE_ONE:
        return (ours, *others), (-ours, *others)
    return (ours, *others), ((0.0, *others) if isinstance(sampling, Balanced) else others)


def hockey_stick(left, right, cell, epsilon):
    """The larger delta of both directions."""
    ratio = math.exp(epsilon)
    return max(np.maximum(one - ratio * other, 0.0).sum() * cell for one, other in ((left, right), (right, left)))


def crowds(sampling, neighbours):
    """How many others there may be: for Poisson some numbers up to the public one, otherwise just that."""
    if isinstance(sampling, Poisson):
        return sorted({0, sampling.population // 2, sampling.population - 1})
    if isinstance(sampling, FixedSize) and neighbours == ADD_REMOVE:
        return sampling.population - 1, sampling.population  # we are one of them, or come on top
    return (3 if isinstance(sampling, Everyone) else sampling.population - 1,)


SAMPLERS = {
    "everyone": Everyone(),
    "Poisson": Poisson(rate=0.3, population=5, capped=False),
    "Poisson, one unit": Poisson(rate=0.3, population=1),
    "Poisson of rate 1": Poisson(rate=1.0, population=3),
    "Poisson, cap of 4": Poisson(rate=0.05, population=6),
    "Poisson, cap of 1": Poisson(rate=0.004, population=5),
    "Poisson, cap often met": Tight(rate=0.5, population=5, tight=2),
    "1 of 5": FixedSize(size=1, population=5),
    "2 of 5": FixedSize(size=2, population=5),
    "4 of 5": FixedSize(size=4, population=5),
    "3 of 3": FixedSize(size=3, population=3),
    "1 of 1": FixedSize(size=1, population=1),
    "two groups": Balanced(groups=2, population=5),
    "one group": Balanced(groups=1, population=3),
    "a group each": Balanced(groups=4, population=4),
}
LOOSE = {  # who displaces whom under a cap is not known; where all of N take part, N of N + 1 and all of N - 1 are less
    *itertools.product(["Poisson, cap of 4", "Poisson, cap of 1", "Poisson, cap often met"], Neighbours),
    *itertools.product(["3 of 3", "1 of 1"], [ADD_REMOVE]),
}


def test_the_small_populations_meet_their_caps():
    caps = {name: sampling.cap for name, sampling in SAMPLERS.items() if isinstance(sampling, Poisson)}
    assert list(caps.values()) == [5, 1, 3, 4, 1, 2]


@pytest.mark.parametrize("neighbours", Neighbours)
@pytest.mark.parametrize("name", SAMPLERS)
def test_one_release_covers_every_crowd_and_is_no_looser_than_it_must_be(name, neighbours):
    sampling = SAMPLERS[name]
    for noise, delta in ((0.5, 1e-4), (3.0, 1e-6)):
        claimed = plan(sampling=sampling, noise=noise, neighbours=neighbours).epsilon(delta)
        x = np.linspace(-6 - 10 * noise, 6 + 10 * noise, 6001)
        worst = []
        for crowd in crowds(sampling, neighbours):
            for others in itertools.combinations_with_replacement((-1.0, 0.0, 1.0), crowd):
                worlds = neighbouring(sampling, neighbours, others)
                left, right = (density(x, sampling, sent, noise) for sent in worlds)
                assert hockey_stick(left, right, x[1] - x[0], claimed) <= delta * (1 + 1e-4)
                worst.append(hockey_stick(left, right, x[1] - x[0], 0.98 * claimed))
        assert (name, neighbours) in LOOSE or max(worst) > delta


class Profile:
    """The hockey-stick divergences of one density from another, at any ratios: sorted once, then looked up."""

    def __init__(self, left, right, cell):
        ratios = left / right
        order = np.argsort(-ratios)
        self.ratios = -ratios[order]
        self.left, self.right = (np.append(0.0, np.cumsum(side[order])) * cell for side in (left, right))

    def __call__(self, ratios):
        above = np.searchsorted(self.ratios, -ratios)
        return self.left[above] - ratios * self.right[above]


@pytest.mark.parametrize("neighbours", Neighbours)
@pytest.mark.parametrize("name", SAMPLERS)
def test_two_releases_are_covered_even_if_the_second_looks_at_the_first(name, neighbours):
    """Others, and our own sign, may change with the sign of the first answer: the second release is adaptive."""
    sampling, noise, delta = SAMPLERS[name], 3.0, 1e-5
    claimed = plan(sampling=sampling, noise=noise, releases=2, neighbours=neighbours).epsilon(delta)
    x, y = np.linspace(-30, 30, 801), np.linspace(-30, 30, 12_001)
    crowd, worst = getattr(sampling, "population", 4) - 1, 0.0

    def answer(at, sent, ours, release):
        worlds = neighbouring(sampling, neighbours, (sent,) * crowd, ours)
        return [density(at, sampling, world, noise, release) for world in worlds]

    for back in (False, True):  # the roles of both worlds exchanged
        seconds = {
            (sent, ours): Profile(*answer(y, sent, ours, 1)[:: -1 if back else 1], y[1] - y[0])
            for sent, ours in itertools.product((-1.0, 0.0, 1.0), (1.0, -1.0))
        }
        for first in (-1.0, 0.0, 1.0):
            left, right = answer(x, first, 1.0, 0)[:: -1 if back else 1]
            ratios = math.exp(claimed) * right / left
            costs = {key: left * profile(ratios) for key, profile in seconds.items()}
            low, high = (max(np.where(side, cost, 0.0).sum() for cost in costs.values()) for side in (x < 0, x >= 0))
            worst = max(worst, (low + high) * (x[1] - x[0]))
    assert worst <= delta * (1 + 1e-3)
    assert (name, neighbours) in LOOSE or worst > 0.2 * delta


def plane(noise):
    side = np.linspace(-1 - 6 * noise, 1 + 6 * noise, 301)
    x, y = np.meshgrid(side, side)

    def bell(where):
        square = (x - where[0]) ** 2 + (y - where[1]) ** 2
        return np.exp(-square / (2 * noise**2)) / (2 * math.pi * noise**2)

    return bell, (side[1] - side[0]) ** 2


def at_angle(angle, length=1.0):
    return length * math.cos(angle), length * math.sin(angle)


EPSILONS = (0.0, 0.3, 1.0, 3.0)
ANGLES = (0.0, math.pi / 3, math.pi / 2, 2 * math.pi / 3, math.pi)


@pytest.mark.parametrize(("rate", "noise"), [(0.05, 0.4), (0.5, 2.0), (0.95, 1.5)])
def test_no_replacement_in_the_plane_is_worse_than_the_very_opposite_under_poisson(rate, noise):
    """Three points in a plane are no image of three on a line, so the line must be shown to be the worst."""
    claimed = SampledGaussian(multiplier=noise, rate=rate, replaced=True).pld(1e-4)
    bell, cell = plane(noise)
    for angle, length, own in itertools.product(ANGLES, (0.0, 0.5, 1.0), (0.5, 1.0)):
        idle = (1 - rate) * bell((0, 0))
        left, right = idle + rate * bell((own, 0)), idle + rate * bell(at_angle(angle, length))
        for epsilon in EPSILONS:
            assert hockey_stick(left, right, cell, epsilon) <= 1.001 * claimed.get_delta_for_epsilon(epsilon) + 1e-8


@pytest.mark.parametrize(("size", "noise"), [(1, 0.8), (2, 2.0), (4, 1.0)])
def test_no_replacement_in_the_plane_is_worse_than_claimed_for_a_fixed_size(size, noise):
    loss = plan(sampling=FixedSize(size=size, population=5), noise=noise, neighbours=REPLACE_ONE).loss
    bell, cell = plane(noise)
    for ours, theirs in itertools.product(ANGLES, repeat=2):
        idle = (1 - loss.rate) * bell((-1, 0))  # the unit that we displace; the rest of the cohort does not move
        left, right = idle + loss.rate * bell(at_angle(ours)), idle + loss.rate * bell(at_angle(-theirs))
        for epsilon in EPSILONS:
            claimed = float(loss.delta(np.array(epsilon)))
            assert hockey_stick(left, right, cell, epsilon) <= 1.001 * claimed + 1e-8


@pytest.mark.parametrize("neighbours", Neighbours)
@pytest.mark.parametrize(("groups", "releases"), [(1, 4), (2, 5), (3, 5), (3, 6), (4, 3), (5, 1)])
def test_a_schedule_costs_what_its_busiest_slot_suffers(groups, releases, neighbours):
    sampling, noise, delta = Balanced(groups=groups, population=5), 1.5, 1e-4
    claimed = plan(sampling=sampling, noise=noise, releases=releases, neighbours=neighbours).epsilon(delta)
    randomness, distance = Randomness.seeded(0), 2 if neighbours == REPLACE_ONE else 1
    turns = np.zeros(5)
    for release in range(releases):
        turns[sampling.draw(5, randomness, "any", release)] += 1
    deltas = [true_delta(claimed, distance * math.sqrt(count) / noise) for count in turns if count]
    assert max(deltas) == pytest.approx(delta, rel=1e-3)


# Once wrong: fewer units than `population` meet the cap less often, so that we are kept with probability `rate` and
# not a little less. Near delta = rate that costs more than claimed (by 28% here, where the cap is 1; by 1e-5 and
# less where the mean cohort is 1 or more). `Poisson` says that `population` is only an upper bound.
@pytest.mark.parametrize(("delta", "rate"), [(0.7e-3, 1e-3), (0.9e-3, 1e-3), (0.7 * 0.013, 0.013)])
def test_fewer_units_than_the_public_number_cost_no_more_at_any_delta(delta, rate):
    sampling, noise = Poisson(rate=rate, population=math.floor(0.026 / rate)), 0.3
    assert sampling.cap == 1 < sampling.population
    claimed = plan(sampling=sampling, noise=noise).epsilon(delta)
    x = np.linspace(-4, 5, 40_001)
    without = scipy.stats.norm.pdf(x, 0, noise)
    alone = (1 - rate) * without + rate * scipy.stats.norm.pdf(x, 1, noise)
    assert hockey_stick(alone, without, x[1] - x[0], claimed) <= delta * (1 + 1e-6)


# Simulated attacks


ATTACKS = {
    "everyone": (Everyone(), 0.0),
    "Poisson": (Poisson(rate=0.5, population=4, capped=False), 0.0),
    "Poisson, cap of 4": (Tight(rate=0.4, population=5, tight=4), 0.0),
    "2 of 4": (FixedSize(size=2, population=4), -1.0),
    "two groups": (Balanced(groups=2, population=4), 0.0),
}


def attacked(sampling, worlds, noise, releases, runs):
    """The log-likelihood ratio of all answers, in runs of either world, with the cohorts that `draw` draws."""
    rng, randomness, ratios = np.random.default_rng(1), Randomness.seeded(1), []
    for world, sent in enumerate(worlds):
        fixed = isinstance(sampling, FixedSize)  # the other world has another public number
        drawn, ratio = dataclasses.replace(sampling, population=len(sent)) if fixed else sampling, np.zeros(runs)
        for release in range(releases):
            labels = (f"{world}/{run}/{release}" for run in range(runs))
            chosen = (drawn.draw(len(sent), randomness, label, release) for label in labels)
            answers = np.array([sum(sent[unit] for unit in cohort) for cohort in chosen])
            answers = answers + noise * rng.standard_normal(runs)
            left, right = (density(answers, sampling, other, noise, release) for other in worlds)
            ratio += np.log(left / right)
        ratios.append(ratio)
    return ratios


def proven_delta(ratios, epsilon):
    """A lower bound on delta at epsilon, wrong once in a thousand: Clopper and Pearson 1934, for the better attack."""
    ours, theirs = ratios
    bounds = []
    for hits, misses in ((ours > epsilon, theirs > epsilon), (theirs < -epsilon, ours < -epsilon)):
        low = scipy.stats.binomtest(int(hits.sum()), len(hits)).proportion_ci(0.999, "exact").low
        high = scipy.stats.binomtest(int(misses.sum()), len(misses)).proportion_ci(0.999, "exact").high
        bounds.append(low - math.exp(epsilon) * high)
    return max(bounds)


@pytest.mark.parametrize("neighbours", Neighbours)
@pytest.mark.parametrize("name", ATTACKS)
def test_no_attack_beats_the_claim_and_half_the_noise_is_caught(name, neighbours):
    (sampling, sent), noise, releases, delta = ATTACKS[name], 1.0, 3, 0.05
    worlds = neighbouring(sampling, neighbours, (sent,) * (getattr(sampling, "population", 4) - 1))
    ratios = attacked(sampling, worlds, noise, releases, 2000)
    claimed, misstated = (
        coarsely(plan(sampling=sampling, noise=noise * factor, releases=releases, neighbours=neighbours), delta)
        for factor in (1, 2)
    )
    assert proven_delta(ratios, claimed) <= delta < proven_delta(ratios, misstated)


# The cohorts that are drawn


DRAWN = {
    "2 of 5": (FixedSize(size=2, population=5), FixedSize(size=3, population=5)),
    "4 of 5": (FixedSize(size=4, population=5), FixedSize(size=2, population=5)),
    "Poisson": (Poisson(rate=0.4, population=4, capped=False), Poisson(rate=0.43, population=4, capped=False)),
    "Poisson, cap of 2": (Tight(rate=0.4, population=4, tight=2), Tight(rate=0.4, population=4, tight=3)),
    "Poisson, cap of 1": (Poisson(rate=0.004, population=5), Poisson(rate=0.008, population=5)),
}


def chance_of_counts(counted, sampling, units):
    """The p-value of what was drawn, under the distribution that the loss assumes; rare cohorts are pooled."""
    chances = cohorts(sampling, units)
    if set(counted) - set(chances):
        return 0.0
    draws = sum(counted.values())
    common = [cohort for cohort in chances if draws * chances[cohort] >= 5]
    seen, expected = [counted[cohort] for cohort in common], [draws * chances[cohort] for cohort in common]
    if draws - sum(expected) > 1e-6:
        seen, expected = [*seen, draws - sum(seen)], [*expected, draws - sum(expected)]
    return scipy.stats.chisquare(seen, expected).pvalue


@pytest.mark.parametrize("name", DRAWN)
def test_cohorts_are_drawn_as_the_loss_assumes_and_another_sampler_would_be_told_apart(name):
    (sampling, other), randomness = DRAWN[name], Randomness.seeded(2)
    units = sampling.population
    drawn = collections.Counter(
        tuple(sampling.draw(units, randomness, f"release {draw}", draw).tolist()) for draw in range(6000)
    )
    assert chance_of_counts(drawn, sampling, units) > 1e-3
    assert chance_of_counts(drawn, other, units) < 1e-3


@pytest.mark.parametrize("sampling", [FixedSize(size=2, population=4), Poisson(rate=0.5, population=4)])
def test_one_release_says_nothing_about_who_takes_part_in_the_next(sampling):
    randomness = Randomness.seeded(3)
    joined = np.zeros((3000, 4))
    for draw in range(3000):
        joined[draw, sampling.draw(4, randomness, f"release {draw}", draw)] = 1
    for ours, theirs in itertools.product(range(4), repeat=2):
        assert abs(np.corrcoef(joined[:-1, ours], joined[1:, theirs])[0, 1]) < 4.5 / math.sqrt(3000)


def test_whether_a_unit_joins_under_poisson_does_not_depend_on_who_else_is_there():
    few, many = (Poisson(rate=0.5, population=units, capped=False) for units in (6, 9))
    for draw in range(50):
        alone, together = (
            sampling.draw(sampling.population, Randomness.seeded(4), f"release {draw}", draw).tolist()
            for sampling in (few, many)
        )
        assert alone == [unit for unit in together if unit < 6]


@pytest.mark.parametrize(("groups", "population"), [(1, 1), (1, 7), (3, 7), (4, 8), (7, 7)])
@pytest.mark.parametrize("releases", [1, 3, 7, 10])
def test_turns_are_shared_out_evenly_and_known_beforehand(groups, population, releases):
    sampling = Balanced(groups=groups, population=population)
    turns = [sampling.draw(population, Randomness.seeded(release), "a", release) for release in range(releases)]
    assert all(
        np.array_equal(turn, sampling.draw(population, Randomness.seeded(99), "b", release))
        for release, turn in enumerate(turns)
    )
    counts = np.bincount(np.concatenate(turns), minlength=population)
    assert set(counts) <= {releases // groups, math.ceil(releases / groups)}
    assert sampling.participations(releases) == counts.max()
    one_cycle = np.concatenate([sampling.draw(population, Randomness.seeded(0), "a", group) for group in range(groups)])
    assert sorted(one_cycle) == list(range(population))  # disjoint groups that hold everyone
    assert np.array_equal(sampling.draw(population, Randomness.seeded(0), "a", groups), turns[0])


@pytest.mark.parametrize("sampling", [Everyone(), Poisson(rate=0.1, population=9), FixedSize(size=2, population=9)])
def test_the_busiest_unit_may_take_part_every_time_unless_a_schedule_forbids_it(sampling):
    assert sampling.participations(13) == 13


# Composition


LOSSES = {
    "Gaussian": Gaussian(multiplier=4.0),
    "Poisson": SampledGaussian(multiplier=2.0, rate=0.2),
    "Poisson, capped": SampledGaussian(multiplier=2.0, rate=0.1, population=20, cap=4),
    "Poisson, replace-one": SampledGaussian(multiplier=2.0, rate=0.2, replaced=True),
    "Poisson, capped, replace-one": SampledGaussian(multiplier=3.0, rate=0.1, replaced=True, population=20, cap=4),
    "fixed size, replace-one": ExchangedGaussian(multiplier=1.5, size=2, population=9),
}


def by_the_library(loss, grid):
    kind = NeighboringRelation.REPLACE_ONE if loss.replaced else NeighboringRelation.ADD_OR_REMOVE_ONE
    return privacy_loss_distribution.from_gaussian_mechanism(
        loss.multiplier, sampling_prob=loss.rate, value_discretization_interval=grid, neighboring_relation=kind
    )


def without_drift(pld):
    """The library's dense form adds the grid up, loss by loss, and is off by 1e-12 and more; its sparse one is not."""
    dense = [pmf.to_dense_pmf() for pmf in dict.fromkeys((pld._pmf_remove, pld._pmf_add))]
    numbered = (dict(enumerate(pmf._probs.tolist(), pmf._lower_loss)) for pmf in dense)
    pairs = zip(numbered, dense, strict=True)
    pmfs = [SparsePLDPmf(each, pmf._discretization, pmf._infinity_mass, True) for each, pmf in pairs]
    return privacy_loss_distribution.PrivacyLossDistribution(*pmfs)


@pytest.mark.parametrize("replaced", [False, True])
@pytest.mark.parametrize("rate", [1e-5, 1e-3, 0.05, 0.5, 0.99, 1.0])
@pytest.mark.parametrize("multiplier", [0.01, 0.5, 1.0, 8.0])
def test_profiles_computed_at_once_give_the_librarys_losses(multiplier, rate, replaced):
    """The library goes from loss to loss in Python, and is itself off by up to 2e-14 (`test_pmfs` asks for 1e-15)."""
    loss, grid = SampledGaussian(multiplier=multiplier, rate=rate, replaced=replaced), 1e-3 * max(1, multiplier**-2)
    ours, library = loss.pld(grid), by_the_library(loss, grid)
    epsilons = np.linspace(0, 8, 33)
    assert ours.get_delta_for_epsilon(epsilons) == pytest.approx(library.get_delta_for_epsilon(epsilons), abs=4e-14)
    exact = without_drift(library).get_epsilon_for_delta(1e-6)
    assert ours.get_epsilon_for_delta(1e-6) == pytest.approx(exact, rel=1e-10, abs=1e-13)
    costs = [each.self_compose(50).get_epsilon_for_delta(1e-5) for each in (ours, library)]
    assert costs[0] == pytest.approx(costs[1], rel=1e-9)


@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_suffered_many_times_equals_a_loop_of_compositions(name):
    one = loop = LOSSES[name].pld(1e-3)
    for _ in range(6):
        loop = loop.compose(one)
    looped = loop.get_epsilon_for_delta(1e-5)
    assert one.self_compose(7).get_epsilon_for_delta(1e-5) == pytest.approx(looped, rel=1e-6)
    assert accounting.epsilon_of({LOSSES[name]: 7}, 1e-5, coarse=10) == pytest.approx(looped, rel=2e-3)
    assert accounting.epsilon_of({LOSSES[name]: 8}, 1e-5, coarse=10) > looped


def test_the_order_in_which_losses_are_suffered_does_not_matter():
    costs = []
    for order in ((0, 1, 2, 3, 4, 5), (5, 4, 3, 2, 1, 0), (3, 0, 5, 1, 4, 2)):
        accounting._pld_epsilon.cache_clear()
        suffered = {list(LOSSES.values())[which]: 1 + which for which in order}
        costs.append(accounting.epsilon_of(suffered, 1e-5, coarse=20))
    assert costs == pytest.approx([costs[0]] * 3, rel=1e-6)
    loop = functools.reduce(
        lambda left, right: left.compose(right),
        (loss.pld(2e-3) for which, loss in enumerate(LOSSES.values()) for _ in range(1 + which)),
    )
    assert costs[0] == pytest.approx(loop.get_epsilon_for_delta(1e-5), rel=1e-3)
    assert costs[0] > max(accounting.epsilon_of({loss: 1}, 1e-5, coarse=20) for loss in LOSSES.values())


@pytest.mark.parametrize("name", [name for name in LOSSES if name != "Gaussian"])
def test_a_coarse_grid_is_never_cheaper(name):
    fine, coarse = (accounting.epsilon_of({LOSSES[name]: 5}, 1e-5, coarse) for coarse in (1, 20))
    assert fine * (1 - 1e-9) <= coarse < 1.05 * fine


@pytest.mark.parametrize("neighbours", Neighbours)
@pytest.mark.parametrize(
    "sampling", [FixedSize(size=2, population=5), Balanced(groups=3, population=5), Poisson(rate=0.2, population=9)]
)
def test_calibrated_noise_keeps_its_target_whoever_takes_part(sampling, neighbours):
    found = plan(sampling=sampling, releases=7, neighbours=neighbours).calibrated(2.0, 1e-5)
    assert 0.98 * 2.0 < found.epsilon(1e-5) <= 2.0
    assert (found.sampling, found.neighbours) == (sampling, neighbours)


# Once wrong: dp_accounting's self_compose raises an FFT to the power of the count; its rounding errors add up to
# about count * 1e-17 .. 1e-16 of delta, and nothing covers them. Near that delta the stated epsilon is too small.
def test_rounding_in_long_compositions_never_lowers_a_tiny_delta():
    """All of N take part, so the truth is known exactly: one Gaussian. Refusing such a delta would do."""
    noise, releases, delta = 300.0, 100_000, 1e-12
    try:
        promised = plan(
            sampling=FixedSize(size=5, population=5), noise=noise, releases=releases, neighbours=REPLACE_ONE
        )
        claimed = promised.epsilon(delta)
    except ValueError:
        return
    assert math.isinf(claimed) or accounting.gaussian_delta(2 * math.sqrt(releases) / noise, claimed) <= 1.01 * delta


@pytest.mark.parametrize(("noise", "releases", "delta"), [(5.0, 100, 1e-8), (50.0, 3000, 1e-9), (3.0, 10, 1e-10)])
def test_sampling_everyone_by_any_sampler_costs_what_everyone_costs(noise, releases, delta):
    one, two = (plan(noise=noise, releases=releases, neighbours=neighbours).epsilon(delta) for neighbours in Neighbours)
    costs = {
        (sampling, neighbours): plan(sampling=sampling, noise=noise, releases=releases, neighbours=neighbours).epsilon(
            delta
        )
        for sampling in (Poisson(rate=1.0, population=3), FixedSize(size=3, population=3))
        for neighbours in Neighbours
    }
    assert list(costs.values()) == pytest.approx([one, two, two, two], rel=1e-3)
    assert all(cost >= exact * (1 - 1e-5) for cost, exact in zip(costs.values(), (one, two, two, two), strict=True))


# More of what costs never costs less


@settings(max_examples=6)
@given(
    st.sampled_from([name for name in SAMPLERS if name not in ("Poisson of rate 1", "one group", "1 of 1")]),
    st.sampled_from(Neighbours),
    st.floats(1.0, 2.0),
    st.integers(1, 20),
    st.floats(1.05, 2),
    st.sampled_from([1e-3, 1e-5, 1e-7]),
)
def test_less_noise_more_releases_or_a_smaller_delta_never_cost_less(name, neighbours, noise, releases, factor, delta):
    base = plan(sampling=SAMPLERS[name], noise=noise, releases=releases, neighbours=neighbours)
    cost = coarsely(base, delta) * (1 - 1e-6)
    assert coarsely(dataclasses.replace(base, noise_multiplier=noise / factor), delta) >= cost
    assert coarsely(dataclasses.replace(base, releases=releases + 1), delta) >= cost
    assert coarsely(base, delta / factor) >= cost


# Once wrong: ExchangedGaussian.pld ends its grid at M + ln q, M = mu^2 / 2 + 10 mu, but the losses reach ln(1 + q
# (e^M - 1)). With strong noise and small samples everything lies beyond, so that more noise costs an infinite
# epsilon: safe, but useless, and `calibrated` then asks for far too much. The end should be M + ln(q + (1 - q)
# e^-M).
@pytest.mark.parametrize(("size", "population", "noise"), [(1, 10, 10.0), (10, 1000, 20.0), (1, 1000, 4.0)])
def test_more_noise_on_samples_of_a_fixed_size_never_costs_more(size, population, noise):
    sampling = FixedSize(size=size, population=population)
    weak, strong = (
        plan(sampling=sampling, noise=factor * noise, neighbours=REPLACE_ONE).epsilon(1e-6) for factor in (0.1, 1.0)
    )
    assert plan(sampling=sampling, noise=noise).epsilon(1e-6) * (1 - 1e-6) <= strong < weak < math.inf


@settings(max_examples=5)
@given(
    st.integers(1, 20),
    st.integers(20, 60),
    st.floats(1.0, 1.5),
    st.integers(1, 20),
    st.sampled_from(Neighbours),
)
def test_larger_samples_of_smaller_populations_never_cost_less(size, population, noise, releases, neighbours):
    def cost(size, population):
        sampling = FixedSize(size=size, population=population)
        return coarsely(plan(sampling=sampling, noise=noise, releases=releases, neighbours=neighbours))

    base = cost(size, population) * (1 - 1e-6)
    assert cost(size, population + 10) <= base / (1 - 1e-6) ** 2
    assert cost(min(size + 1, population), population) >= base


@settings(max_examples=5)
@given(st.floats(0.02, 0.8), st.floats(0.8, 1.5), st.integers(1, 20), st.floats(1.05, 1.2), st.sampled_from(Neighbours))
def test_a_higher_rate_never_costs_less(rate, noise, releases, factor, neighbours):
    samplers = (Poisson(rate=higher, population=30, capped=False) for higher in (rate, rate * factor))
    costs = [
        coarsely(plan(sampling=sampling, noise=noise, releases=releases, neighbours=neighbours))
        for sampling in samplers
    ]
    assert costs[0] <= costs[1] * (1 + 1e-6)


@given(st.integers(1, 30), st.integers(1, 50), st.floats(0.5, 5), st.sampled_from(Neighbours))
def test_more_groups_never_cost_more_and_one_group_costs_what_everyone_costs(groups, releases, noise, neighbours):
    def cost(sampling):
        return plan(sampling=sampling, noise=noise, releases=releases, neighbours=neighbours).epsilon(1e-5)

    assert cost(Balanced(groups=groups, population=31)) >= cost(Balanced(groups=groups + 1, population=31))
    assert cost(Balanced(groups=1, population=31)) == cost(Everyone())


@settings(max_examples=5)
@given(st.integers(1, 9), st.floats(1.0, 2.0), st.integers(1, 15), st.sampled_from([1e-3, 1e-6]))
def test_replacing_costs_no_less_than_removing_and_a_fixed_size_no_less_than_poisson(size, noise, releases, delta):
    fixed, poisson = FixedSize(size=size, population=10), Poisson(rate=size / 10, population=10, capped=False)
    costs = {
        (sampling, neighbours): coarsely(
            plan(sampling=sampling, noise=noise, releases=releases, neighbours=neighbours), delta
        )
        for sampling in (fixed, poisson)
        for neighbours in Neighbours
    }
    slack = 1 + 1e-6
    for sampling in (fixed, poisson):
        assert costs[sampling, REPLACE_ONE] * slack >= costs[sampling, ADD_REMOVE]
    for neighbours in Neighbours:
        assert costs[fixed, neighbours] * slack >= costs[poisson, neighbours]
    assert costs[fixed, ADD_REMOVE] > costs[poisson, ADD_REMOVE]


@pytest.mark.parametrize("rate", [0.01, 0.3])
@pytest.mark.parametrize("noise", [0.5, 2.0])
def test_replacing_gives_away_no_less_than_removing_at_any_epsilon(rate, noise):
    """Composition needs the whole profile, and a replaced unit may leave a selection: that is being removed."""
    replaced = SampledGaussian(multiplier=noise, rate=rate, replaced=True).pld(1e-3)
    removed = SampledGaussian(multiplier=noise, rate=rate).pld(1e-3)
    exchanged = ExchangedGaussian(multiplier=noise, size=round(100 * rate), population=100)
    epsilons = np.linspace(0, 12, 97)
    assert (removed.get_delta_for_epsilon(epsilons) <= replaced.get_delta_for_epsilon(epsilons) + 1e-9).all()
    assert (exchanged.delta(epsilons) <= replaced.get_delta_for_epsilon(epsilons) + 1e-9).all()
    assert (exchanged.delta(epsilons) >= removed.get_delta_for_epsilon(epsilons) - 1e-6).all()


# The profile of samples of a fixed size


@pytest.mark.parametrize("multiplier", [1e-3, 0.03, 0.3, 1.0, 5.0, 50.0])
@pytest.mark.parametrize(
    ("size", "population"), [(1, 10**7), (1, 1000), (1, 7), (99, 100), (1, 1), (5, 5)], ids=lambda value: f"{value}"
)
@pytest.mark.filterwarnings("ignore:overflow|invalid value:RuntimeWarning")  # the branch of np.where not taken
def test_the_profile_of_a_fixed_size_is_that_of_some_pair_of_distributions(multiplier, size, population):
    loss = ExchangedGaussian(multiplier=multiplier, size=size, population=population)
    ratios = np.logspace(-9, 9, 181)
    deltas, mirrored = loss.delta(np.log(ratios)), loss.delta(-np.log(ratios))
    assert np.isfinite(deltas).all()
    assert (deltas <= 1).all()
    assert (deltas >= np.maximum(0.0, 1 - ratios)).all()
    assert (np.diff(deltas) <= 0).all()
    between = loss.delta(np.log((ratios + ratios[:, None]) / 2))
    assert (between <= (deltas + deltas[:, None]) / 2 + 1e-15).all()  # convex in e^epsilon
    assert deltas - (1 - ratios) == pytest.approx(
        ratios * mirrored, abs=1e-14, rel=1e-6
    )  # either direction is the same
    assert loss.delta(np.array([-800.0, 1e7])).tolist() == [1.0, 0.0]
    shift = math.erf(1 / (multiplier * math.sqrt(8)))  # the total variation of N(1, z^2) from N(0, z^2)
    assert loss.delta(np.array([0.0]))[0] == pytest.approx(loss.rate * shift, rel=1e-9)


@pytest.mark.parametrize("multiplier", [1e-3, 0.1, 0.7, 3.0, 20.0])
@pytest.mark.parametrize(("size", "population"), [(1, 10**6), (1, 50), (3, 4), (1, 1)])
@pytest.mark.filterwarnings("ignore:overflow|invalid value:RuntimeWarning")
def test_the_discrete_profile_of_a_fixed_size_lies_above_the_exact_one(multiplier, size, population):
    loss = ExchangedGaussian(multiplier=multiplier, size=size, population=population)
    grid = 1e-3 * max(1.0, multiplier**-2)
    pmf = loss.pld(grid)._pmf_remove.to_dense_pmf()
    assert pmf._probs.min() >= 0
    assert pmf._probs.sum() + pmf._infinity_mass == pytest.approx(1.0, abs=1e-7)  # rounding leaves a little too much
    for delta in (1e-2, 1e-5, 1e-9):
        stated = pmf.get_epsilon_for_delta(delta)
        assert math.isinf(stated) or loss.delta(np.array([stated]))[0] <= delta * (1 + 1e-6)
    for between in np.linspace(0.5, 40.5, 41) * grid:
        assert pmf.get_delta_for_epsilon(between) >= loss.delta(np.array([between]))[0] * (1 - 1e-6) - 1e-12


def test_the_profile_of_a_fixed_size_is_that_of_explicit_densities():
    loss, noise = ExchangedGaussian(multiplier=0.8, size=2, population=7), 0.8
    x = np.linspace(-8, 9, 100_001)
    idle = scipy.stats.norm.pdf(x, 0, noise)
    ours = (1 - loss.rate) * idle + loss.rate * scipy.stats.norm.pdf(x, 1, noise)
    for epsilon in (0.0, 0.01, 0.3, 1.0, 2.5):
        gap = np.maximum(ours - math.exp(epsilon) * idle, 0.0)
        assert loss.delta(np.array([epsilon]))[0] == pytest.approx(np.trapezoid(gap, x), rel=1e-6)


# Renyi accounting


RENYI = [Gaussian(multiplier=3.0), SampledGaussian(multiplier=1.2, rate=0.1), LOSSES["fixed size, replace-one"]]


@pytest.mark.parametrize("loss", RENYI, ids=lambda loss: type(loss).__name__)
@pytest.mark.parametrize("count", [1, 60])
@pytest.mark.parametrize("delta", [1e-2, 1e-6])
def test_renyi_accounting_is_never_cheaper_and_the_classic_conversion_never_cheaper_still(loss, count, delta):
    exact = accounting.epsilon_of({loss: count}, delta, coarse=5)
    improved, classic = (rdp.epsilon({loss: count}, delta, conversion) for conversion in (rdp.improved, rdp.classic))
    assert exact <= improved * (1 + 1e-9)
    assert improved <= classic * (1 + 1e-12)
    assert rdp.epsilon({loss: count}, delta, orders=rdp.WHOLE_ORDERS) >= improved


def test_renyi_accounting_of_several_losses_is_never_cheaper():
    suffered = {loss: count for count, loss in enumerate(RENYI, 2)}
    assert accounting.epsilon_of(suffered, 1e-5, coarse=5) <= rdp.epsilon(suffered, 1e-5)
    assert rdp.epsilon(suffered, 1e-5) > max(rdp.epsilon({loss: 2}, 1e-5) for loss in suffered)


def test_renyi_accounting_refuses_what_it_has_no_bound_for():
    for name in ("Poisson, capped", "Poisson, replace-one", "Poisson, capped, replace-one"):
        with pytest.raises(ValueError, match="without a cap"):
            rdp.epsilon({LOSSES[name]: 1}, 1e-5)


# Sensitivity is derived


BOUNDS = [
    (L2Clip(norm=0.3), 0.3),
    (UpdateAndBit(bit=0.5), math.sqrt(1.25)),
    (RowClip(row_norm=0.5, rows=4), 1.0),
    (TopKSign(k=3, rows=12), 6.0),
]
DISTANCES = [
    (Everyone(), ADD_REMOVE, 1),
    (Everyone(), REPLACE_ONE, 2),
    (Balanced(groups=2, population=5), ADD_REMOVE, 1),
    (Balanced(groups=2, population=5), REPLACE_ONE, 2),
    (Poisson(rate=0.3, population=5), ADD_REMOVE, 1),
    (Poisson(rate=0.3, population=5), REPLACE_ONE, 2),
    (Poisson(rate=0.3, population=5, capped=False), ADD_REMOVE, 1),
    (Poisson(rate=0.3, population=5, capped=False), REPLACE_ONE, 2),
    (FixedSize(size=2, population=5), ADD_REMOVE, 2),
    (FixedSize(size=2, population=5), REPLACE_ONE, 2),
]


@pytest.mark.parametrize(("bound", "norm"), BOUNDS)
@pytest.mark.parametrize(("sampling", "neighbours", "distance"), DISTANCES)
def test_sensitivity_follows_from_sampler_neighbours_and_bound(sampling, neighbours, distance, bound, norm):
    promised = plan(sampling=sampling, neighbours=neighbours, bound=bound, noise=1.7)
    assert promised.sensitivity == pytest.approx(distance * norm, rel=1e-12)
    assert promised.sensitivity >= distance * norm
    assert promised.stddev == pytest.approx(1.7 * norm, rel=1e-12)
    # The price is that of the distance; under Poisson sampling the loss doubles it by itself.
    priced = promised.loss.multiplier / (2 if getattr(promised.loss, "replaced", False) else 1)
    assert priced == pytest.approx(promised.stddev / promised.sensitivity, rel=1e-12)


def test_nobody_can_set_a_sensitivity():
    promised = plan(sampling=FixedSize(size=2, population=5))
    with pytest.raises(TypeError, match="sensitivity"):
        dataclasses.replace(promised, sensitivity=0.1)
    with pytest.raises(TypeError, match="sensitivity"):
        Plan(**{field.name: getattr(promised, field.name) for field in dataclasses.fields(Plan)}, sensitivity=0.1)
    with pytest.raises(AttributeError):
        promised.sensitivity = 0.1
    assert Plan.from_dict(promised.to_dict() | {"sensitivity": 0.1}).sensitivity == 2.0
    for bound in (RowClip, TopKSign, UpdateAndBit):
        with pytest.raises(TypeError, match="norm"):
            bound(norm=0.1)


# What a plan refuses


def send(message, examples, memory):
    return {"update": examples["x"][0]}, memory


SELECTED = vectors(np.eye(7)).select("all", users=lambda user: True)
WRONG = {
    "Poisson, too many": (Poisson(rate=0.5, population=6), vectors(np.eye(7)), "at most population=6"),
    "fixed size, too many": (FixedSize(size=2, population=6), vectors(np.eye(7)), "population=6"),
    "fixed size, too few": (FixedSize(size=2, population=8), vectors(np.eye(7)), "population=8"),
    "balanced, too many": (Balanced(groups=2, population=6), vectors(np.eye(7)), "population=6"),
    "balanced, too few": (Balanced(groups=2, population=8), vectors(np.eye(7)), "population=8"),
    "fixed size, selected": (FixedSize(size=2, population=7), SELECTED, "size_is_public"),
    "fixed size, selected, too few": (FixedSize(size=2, population=9, size_is_public=True), SELECTED, "population=9"),
    "balanced, selected": (Balanced(groups=2, population=7), SELECTED, "whole population"),
}


@pytest.mark.parametrize("name", WRONG)
def test_data_that_a_sampler_does_not_fit_are_refused_before_anything_is_charged(curator_of, name):
    (sampling, people, told), ledger = WRONG[name], Ledger()
    with pytest.raises(ValueError, match=told) as caught:
        curator_of(people, plan(sampling=sampling), ledger=ledger).noisy_mean(send, MESSAGE)
    assert ledger.spent("run", "train") == 0
    assert not list(ledger.entries())
    assert "7" not in str(caught.value)


@pytest.mark.parametrize(
    ("sampling", "people"),
    [
        (FixedSize(size=2, population=7, size_is_public=True), SELECTED),
        (FixedSize(size=2, population=7), vectors(np.eye(7))),
        (Balanced(groups=2, population=7), vectors(np.eye(7))),
        (Poisson(rate=0.5, population=9), SELECTED),
        (Everyone(), SELECTED),
    ],
)
def test_data_that_a_sampler_fits_are_let_in_and_charged(curator_of, sampling, people):
    ledger = Ledger()
    curator_of(people, plan(sampling=sampling), ledger=ledger).noisy_mean(send, MESSAGE)
    assert ledger.spent("run", "train") == 1


def test_a_selection_of_a_selection_and_its_examples_are_selected_too():
    assert SELECTED.select("again", users=lambda user: True).selected
    assert SELECTED.by_example().selected
    assert not vectors(np.eye(3)).by_example().selected


def test_examples_have_no_slots():
    with pytest.raises(ValueError, match="balanced"):
        plan(sampling=Balanced(groups=2, population=5), unit=Unit.EXAMPLE)
    assert plan(sampling=Balanced(groups=2, population=5), unit=Unit.SILO).participations == 1


# Once wrong: a plan counts turns as ceil(releases / groups), as though release numbers were 0, 1, 2, ... But a
# release that is asked again after a crash, with another message, secret or engine, keeps its number and is charged
# anew: the same group answers again. The ledger then states the cost of fewer turns than were taken (here of 1
# instead of 4).
def test_a_group_that_is_asked_again_suffers_again(curator_of):
    people, ledger = vectors(np.eye(4)), Ledger()
    promised = plan(sampling=Balanced(groups=4, population=4), noise=5.0, releases=4)
    answered = 0
    for number in range(4):
        try:
            curator_of(people, promised, ledger=ledger, position=0).noisy_mean(
                send, {"m": torch.tensor([float(number)])}
            )
            answered += 1
        except (ValueError, RuntimeError):
            break
    assert answered >= 1
    stated = guarantee([ledger.spending("run")], 1e-5).epsilon
    assert true_delta(stated, math.sqrt(answered) / 5.0) <= 1e-5 * (1 + 1e-3)


def displaced(units, size, releases):
    """How many others were left out at least once, in so many releases of `size` = `units` - 1 units with us."""
    chances = np.zeros(units)
    chances[0] = 1.0
    for _ in range(releases):
        grown = np.zeros(units)
        for count, chance in enumerate(chances):
            grown[count] += chance * (count + 1) / units  # somebody again, or we
            if count + 1 < units:
                grown[count + 1] += chance * (size - count) / units
        chances = grown
    return chances


# Once wrong: units that remember whether they were asked carry what we displaced into later releases. Without us
# nobody is left out here; with us somebody is, each time, and in the last release all who ever were can say so at
# once. The price of a fixed size (and of a cap that is met) holds only where who was asked does not remember it.
def test_what_others_would_remember_of_our_displacing_them_is_not_paid_for_and_not_kept(curator_of):
    size, releases, noise, delta = 40, 10, 10.0, 1e-5
    promised = plan(sampling=FixedSize(size=size, population=size + 1), noise=noise, releases=releases)
    curator = curator_of(vectors(np.eye(size + 1)), promised, memory={"asked": torch.zeros(size + 1)})
    curator.noisy_mean(
        lambda message, examples, memory: ({"x": examples["x"].sum(0)}, {"asked": memory["asked"] + 1}), {}
    )
    assert not curator.memory.rows(np.arange(size + 1))["asked"].any()
    # Nine silent releases; then everyone sends 1 if asked every time, else -1 (we: -1): the sum is `size` without us.
    x = np.linspace(-size - 80, size + 80, 40_001)
    without, with_us = scipy.stats.norm.pdf(x, size, noise), np.zeros_like(x)
    for count, chance in enumerate(displaced(size + 1, size, releases - 1)):
        loyal = (size - count) / (size + 1)  # the chance that one of those who were always asked is left out now
        with_us += chance * loyal * scipy.stats.norm.pdf(x, size - 2 - 2 * count, noise)
        with_us += chance * (1 - loyal) * scipy.stats.norm.pdf(x, size - 2 * count, noise)
    assert np.trapezoid(with_us, x) == pytest.approx(1.0)
    assert hockey_stick(with_us, without, x[1] - x[0], promised.epsilon(delta)) > 1000 * delta


# Once wrong: nothing ties the unit of a plan to the units of the data. A plan per user on a population by example
# states a guarantee per user, while one user moves the sum by as many bounds as it has examples.
def test_a_promise_per_user_is_refused_on_data_by_example(curator_of):
    people = Population.from_arrays("people", {"x": np.ones((30, 1), np.float32)}, np.array([30]))
    assert len(people.by_example()) == 30
    with pytest.raises(ValueError, match="unit"):
        curator_of(people.by_example(), plan(unit=Unit.USER))


# Bounds


LOUDNESS = st.floats(width=32, allow_nan=True, allow_infinity=True)
TIES = st.sampled_from([0.0, -0.0, 1.0, -1.0, 2.0, math.nan, math.inf, -math.inf, 1e-45, 1e30, -3e38])
ROWS = arrays.arrays(np.float32, st.tuples(st.integers(1, 4), st.integers(1, 6)), elements=LOUDNESS | TIES)


def square_of(tree):
    return math.fsum(value**2 for leaf in tree.values() for value in leaf.double().flatten().tolist())


def in_two_leaves(rows):
    tensor = torch.from_numpy(rows)
    return {"a": tensor, "b": tensor.flip(0)[..., None]}


@given(ROWS, st.floats(1e-3, 1e3))
def test_rows_never_exceed_their_norm_one_by_one_or_together(rows, norm):
    bound = RowClip(row_norm=norm, rows=len(rows))
    sent = bound(in_two_leaves(rows))
    assert square_of(sent) <= bound.norm**2
    for row in range(len(rows)):
        alone = {name: leaf[row] for name, leaf in in_two_leaves(rows).items()}
        assert square_of({name: leaf[row] for name, leaf in sent.items()}) <= norm**2
        if square_of(alone) <= (norm * (1 - 1e-5)) ** 2:  # a quiet row is not touched by its loud neighbours
            assert all(torch.equal(sent[name][row], leaf) for name, leaf in alone.items())


@given(ROWS, st.integers(1, 14))
def test_signs_never_exceed_their_norm_and_are_of_the_largest_entries(rows, k):
    bound = TopKSign(k=k, rows=len(rows))
    given_in, sent = in_two_leaves(rows), bound(in_two_leaves(rows))
    assert square_of(sent) <= bound.norm**2 <= k * len(rows) * (1 + 1e-15)
    for row in range(len(rows)):
        before, after = (torch.cat([leaf[row].flatten() for leaf in tree.values()]) for tree in (given_in, sent))
        assert set(after.tolist()) <= {-1.0, 0.0, 1.0}
        assert after.count_nonzero() <= k
        if not before.isfinite().all():
            assert not after.any()
            continue
        chosen = after != 0
        assert torch.equal(after[chosen], before[chosen].sign())
        assert chosen.sum() == min(k, int(before.count_nonzero()))
        if chosen.any() and not chosen.all():
            assert before[chosen].abs().min() >= before[~chosen].abs().max()


@given(st.integers(1, 3), st.integers(1, 9), st.integers(0, 2**32 - 1))
def test_signs_that_are_sparse_already_stay_as_they_are(rows, k, seed):
    rng = np.random.default_rng(seed)
    signs = np.zeros((rows, 9), np.float32)
    for row in signs:
        row[rng.choice(9, rng.integers(0, k + 1), replace=False)] = 1
    signs *= rng.choice([-1, 1], signs.shape)
    tree = {"a": torch.from_numpy(signs)}
    once = TopKSign(k=k, rows=rows)(tree)
    assert torch.equal(once["a"], tree["a"])
    assert torch.equal(TopKSign(k=k, rows=rows)(once)["a"], once["a"])


@pytest.mark.parametrize("engine", [Engine(run=one_by_one), Engine(chunk=2), Engine(chunk=9)])
@pytest.mark.parametrize("bound", [RowClip(row_norm=3.0, rows=2), TopKSign(k=2, rows=2)])
def test_the_wrong_number_of_rows_counts_as_zero_and_nobody_is_told(curator_of, bound, engine):
    def contribute(message, examples, memory):
        rows = 3 if examples["x"][0, 0] < 0 else 2
        return {"update": examples["x"][0, :2].expand(rows, 2)}, memory

    people = vectors([[1.0, 1.0], [-1.0, 1.0], [1.0, -1.0]])
    answer = curator_of(people, plan(bound=bound, noise=0.0), engine=engine).noisy_mean(contribute, MESSAGE)["update"]
    assert answer.tolist() == [[2.0, 0.0], [2.0, 0.0]]


@pytest.mark.parametrize("bound", [RowClip(row_norm=1.0, rows=2), TopKSign(k=2, rows=2)])
@pytest.mark.parametrize("shape", [(3, 2), (1,), ()])
def test_the_wrong_number_of_rows_on_the_blank_fails_openly_before_anything_is_charged(curator_of, bound, shape):
    def contribute(message, examples, memory):
        return {"update": torch.zeros(shape)}, memory

    ledger = Ledger()
    with pytest.raises(ValueError, match="rows=2"):
        curator_of(vectors(np.eye(3)), plan(bound=bound), ledger=ledger).noisy_mean(contribute, MESSAGE)
    assert ledger.spent("run", "train") == 0


@pytest.mark.parametrize(
    ("kind", "values", "named"),
    [
        (RowClip, {"row_norm": math.nan, "rows": 2}, "row_norm=nan"),
        (RowClip, {"row_norm": 1.0, "rows": 0}, "rows=0"),
        (TopKSign, {"k": 0, "rows": 2}, "k=0"),
        (TopKSign, {"k": 2, "rows": -1}, "rows=-1"),
        (FixedSize, {"size": 0, "population": 5}, "size=0"),
        (FixedSize, {"size": 6, "population": 5}, "size=6"),
        (Balanced, {"groups": 0, "population": 5}, "groups=0"),
        (Balanced, {"groups": 6, "population": 5}, "groups=6"),
    ],
)
def test_a_bound_or_sampler_that_makes_no_sense_is_refused(kind, values, named):
    with pytest.raises(ValueError, match=named):
        kind(**values)
