"""What a plan costs, against explicit densities, simulated losses and published values; and who takes part."""

import dataclasses
import json
import math
import time

import numpy as np
import pytest
import scipy.stats
import toys
from dp_accounting import dp_event
from dp_accounting.pld import pld_privacy_accountant
from hypothesis import given, settings
from hypothesis import strategies as st
from toys import Tight

from fedlens.core.randomness import Randomness
from fedlens.privacy import (
    Balanced,
    Everyone,
    FixedSize,
    Guarantee,
    L2Clip,
    Neighbours,
    Plan,
    Poisson,
    RowClip,
    TopKSign,
    Unit,
    UpdateAndBit,
    accounting,
)

DELTA = 1e-5


def plan(noise=5.0, releases=1, sampling=None, **options):
    return toys.plan(releases, noise, 10.0, sampling=sampling or Everyone(), **options)


def poisson(noise=5.0, releases=1, rate=0.1, population=1000):
    return plan(noise, releases, Poisson(rate=rate, population=population))


def hockey_stick(left, right, x, epsilon):
    """The exact delta at epsilon of one density against another."""
    return np.trapezoid(np.maximum(left - math.exp(epsilon) * right, 0.0), x)


# Gaussians without sampling


@pytest.mark.parametrize(("noise", "releases"), [(7.0, 150), (15.0, 60), (1.0, 1), (0.5, 3), (40.0, 1000)])
@pytest.mark.parametrize("delta", [1e-3, 1e-5, 1e-8])
def test_the_exact_epsilon_is_where_the_densities_say(noise, releases, delta):
    """T Gaussians of multiplier z are one of z / sqrt(T): N(0, 1) against N(sqrt(T) / z, 1)."""
    shift = math.sqrt(releases) / noise
    x = np.linspace(-12, 12 + shift, 400_001)
    epsilon = plan(noise, releases).epsilon(delta)
    left, right = scipy.stats.norm.pdf(x, shift), scipy.stats.norm.pdf(x)
    assert hockey_stick(left, right, x, epsilon) == pytest.approx(delta, rel=1e-4)
    assert hockey_stick(left[::-1], right[::-1], x, epsilon) == pytest.approx(delta, rel=1e-4)


@pytest.mark.parametrize(("noise", "releases", "epsilon"), [(7.0, 150, 8.49), (15.0, 60, 2.07)])
def test_the_exact_epsilon_has_the_pinned_values(noise, releases, epsilon):
    assert round(plan(noise, releases).epsilon(DELTA), 2) == epsilon


def test_gaussians_of_several_sizes_compose_exactly():
    together = accounting.epsilon([plan(3.0, 2), plan(4.0, 5)], DELTA)
    assert together == pytest.approx(plan((2 / 9 + 5 / 16) ** -0.5).epsilon(DELTA), rel=1e-9)


def test_the_scale_of_the_bound_does_not_matter():
    scaled = plan(bound=L2Clip(norm=0.003)).epsilon(DELTA)
    assert scaled == pytest.approx(plan(bound=L2Clip(norm=70.0)).epsilon(DELTA))
    assert scaled == pytest.approx(plan(bound=UpdateAndBit(bit=2.0)).epsilon(DELTA))


def test_so_much_noise_that_delta_alone_suffices_costs_nothing():
    assert plan(1e6).epsilon(0.01) == 0.0
    assert plan(10.0).epsilon(0.01) > 0.0


@given(st.floats(0.3, 50), st.integers(1, 500), st.floats(1e-9, 1e-2), st.floats(1.01, 3))
def test_the_exact_epsilon_is_monotone(noise, releases, delta, factor):
    base = plan(noise, releases).epsilon(delta)
    assert plan(noise * factor, releases).epsilon(delta) <= base <= plan(noise / factor, releases).epsilon(delta)
    assert base <= plan(noise, releases + 1).epsilon(delta)
    assert base <= plan(noise, releases).epsilon(delta / factor)


# Poisson sampling


@pytest.mark.parametrize("noise", [0.4, 3.0])
@pytest.mark.parametrize("rate", [0.02, 0.3])
def test_one_sampled_release_covers_its_explicit_densities(noise, rate):
    """The worst case without a cap: our unit sends the bound, the others nothing. Both directions, and not loosely."""
    epsilon = poisson(noise, rate=rate, population=2000).epsilon(DELTA)
    x = np.linspace(-14 * noise, 1 + 14 * noise, 400_001)
    without = scipy.stats.norm.pdf(x, 0, noise)
    with_us = (1 - rate) * without + rate * scipy.stats.norm.pdf(x, 1, noise)

    def worst(at):
        return max(hockey_stick(with_us, without, x, at), hockey_stick(without, with_us, x, at))

    assert worst(epsilon) <= DELTA * (1 + 1e-6)
    assert worst(0.98 * epsilon) > DELTA


def densities(x, noise, rate, units, cap, others):
    """One release where the others each send `others` and we send 1, without us and with us, under a cap."""
    joins = scipy.stats.binom.pmf(np.arange(units), units - 1, rate)
    without = sum(p * scipy.stats.norm.pdf(x, others * min(k, cap), noise) for k, p in enumerate(joins))
    with_us = (1 - rate) * without
    for k, p in enumerate(joins):
        kept = min(1.0, cap / (k + 1))
        us = scipy.stats.norm.pdf(x, others * min(k, cap - 1) + 1, noise)
        them = scipy.stats.norm.pdf(x, others * min(k, cap), noise)
        with_us = with_us + rate * p * (kept * us + (1 - kept) * them)
    return without, with_us


@pytest.mark.parametrize("others", [-1.0, 0.0, 1.0])
@pytest.mark.parametrize("units", [40, 25, 8, 2])
@pytest.mark.parametrize("delta", [1e-2, 1e-4])
def test_a_cohort_at_its_cap_is_paid_for(others, units, delta):
    """With the cap met, we displace another unit; the true number of units may lie below the public one."""
    noise, rate, cap = 0.5, 0.2, 4
    claimed = plan(noise, 1, Tight(rate=rate, population=40, tight=cap)).epsilon(delta)
    x = np.linspace(-cap - 12 * noise, cap + 1 + 12 * noise, 20_001)
    without, with_us = densities(x, noise, rate, units, cap, others)
    assert np.trapezoid(with_us, x) == pytest.approx(1.0, abs=1e-9)
    assert hockey_stick(with_us, without, x, claimed) <= delta
    assert hockey_stick(without, with_us, x, claimed) <= delta


def test_a_cap_that_is_often_met_costs_something():
    free = plan(5.0, 1, Poisson(rate=0.2, population=40)).epsilon(DELTA)
    assert plan(5.0, 1, Tight(rate=0.2, population=40, tight=8)).epsilon(DELTA) > 1.2 * free


@pytest.mark.parametrize("sampling", [Poisson(rate=0.1, population=100), Tight(rate=0.1, population=100, tight=9)])
def test_fewer_units_than_the_public_number_never_cost_more(sampling):
    """`population` is only an upper bound: what is true must be covered by what is claimed, at the same cap."""
    claimed = plan(5.0, 10, sampling).epsilon(DELTA)
    costs = []
    for units in (1, 12, 30, 60, 99, 100):
        loss = dataclasses.replace(plan(5.0, 1, sampling).loss, population=units)
        costs.append(accounting.epsilon_of({loss: 10}, DELTA))
    assert max(costs) <= claimed * (1 + 1e-9)
    assert np.diff(costs).min() >= -1e-8
    assert costs[-1] == pytest.approx(claimed, rel=1e-6)


@pytest.mark.parametrize("ours", [True, False], ids=["with us", "without us"])
def test_a_few_sampled_releases_agree_with_simulated_losses(ours):
    """Monte Carlo: the loss summed over releases, drawn from either world."""
    noise, rate, releases, delta, draws = 3.0, 0.3, 4, 1e-3, 400_000
    epsilon = poisson(noise, releases, rate).epsilon(delta)
    rng = np.random.default_rng(0)
    joined = (rng.random((draws, releases)) < rate) & ours
    x = joined + noise * rng.standard_normal((draws, releases))
    loss = np.log1p(rate * np.expm1((2 * x - 1) / (2 * noise**2))).sum(1) * (1 if ours else -1)

    def excess(at):
        return -np.expm1(np.minimum(at - loss, 0.0))

    spread = excess(epsilon).std() / math.sqrt(draws)
    assert excess(epsilon).mean() <= delta + 4 * spread
    if ours:  # the worse direction, so the claim must not be loose here
        assert excess(epsilon).mean() >= delta - 4 * spread


# Augenstein et al. 2020 publish 9.22, 2.38, 1.48 and 1.79 for fixed-size rounds, which is not a valid guarantee for
# them: a sampled user displaces another. With Poisson sampling the same noise costs what stands here.
PUBLISHED = {
    "section 5": (5000, 342_477, 2000, 2.92e-6, 4.2232),
    "table 3a": (1000, 250_000, 1000, 4e-8, 1.0325),
    "table 3b": (1000, 1_250_000, 1000, 8e-9, 0.2488),
    "table 6": (1000, 500_000, 1000, 2e-8, 0.5646),
}


@pytest.mark.parametrize("row", PUBLISHED)
def test_the_papers_settings_cost_the_pinned_values(row):
    cohort, population, releases, delta, pinned = PUBLISHED[row]
    assert poisson(1.0, releases, cohort / population, population).epsilon(delta) == pytest.approx(pinned, rel=1e-3)


@settings(max_examples=4)
@given(st.floats(5, 8), st.integers(1, 40), st.floats(0.05, 0.2), st.floats(1.1, 2))
def test_the_epsilon_of_sampled_releases_is_monotone(noise, releases, rate, factor):
    base = poisson(noise, releases, rate).epsilon(DELTA)
    assert poisson(noise * factor, releases, rate).epsilon(DELTA) < base
    assert poisson(noise, releases + 1, rate).epsilon(DELTA) > base
    assert poisson(noise, releases, min(1.0, rate * factor)).epsilon(DELTA) > base
    assert poisson(noise, releases, rate).epsilon(DELTA / factor) >= base


def test_sampling_never_costs_more_than_everyone():
    assert poisson(5.0, 10, rate=0.2).epsilon(DELTA) < 0.5 * plan(5.0, 10).epsilon(DELTA)
    assert poisson(5.0, 10, rate=1.0).epsilon(DELTA) == pytest.approx(plan(5.0, 10).epsilon(DELTA), rel=2e-3)
    assert poisson(5.0, 10, rate=1.0).epsilon(DELTA) >= plan(5.0, 10).epsilon(DELTA)


@pytest.mark.parametrize("make", [plan, poisson])
def test_counting_releases_equals_composing_them_one_by_one(make):
    counted = make(5.0, 6).epsilon(DELTA)
    one = loop = make(5.0).loss.pld(1e-4)
    for _ in range(5):
        loop = loop.compose(one)
    assert counted == pytest.approx(loop.get_epsilon_for_delta(DELTA), rel=1e-3)
    assert accounting.epsilon([make(5.0)] * 6, DELTA) == pytest.approx(counted, rel=1e-9)
    assert accounting.epsilon([make(5.0, 2), make(5.0, 4)], DELTA) == pytest.approx(counted, rel=1e-9)


def test_different_samplers_compose():
    together = accounting.epsilon([plan(8.0, 2), poisson(5.0, 3)], DELTA)
    loop = pld_privacy_accountant.PLDAccountant()
    for _ in range(2):
        loop.compose(dp_event.GaussianDpEvent(8.0))
    for _ in range(3):
        loop.compose(dp_event.TruncatedSubsampledGaussianDpEvent(1000, 0.1, poisson().sampling.cap, 5.0))
    assert together == pytest.approx(loop.get_epsilon(DELTA), rel=1e-3)
    assert together > max(plan(8.0, 2).epsilon(DELTA), poisson(5.0, 3).epsilon(DELTA))


def test_each_plan_names_the_accountant_that_prices_it():
    assert "exact" in accounting.accountant([plan()])
    assert "PLD" in accounting.accountant([poisson()])
    assert "PLD" in accounting.accountant([plan(), poisson()])


# Edges


@pytest.mark.parametrize("make", [plan, poisson])
def test_no_noise_is_no_protection(make):
    assert make(0.0).epsilon(DELTA) == math.inf
    assert accounting.epsilon([make(5.0), make(0.0)], DELTA) == math.inf


@pytest.mark.parametrize("make", [plan, poisson])
@pytest.mark.parametrize("noise", [0.03, 0.01, 1e-3, 1e-6, 1e-12, 1e-200, 5e-324])
def test_tiny_noise_costs_a_huge_epsilon_at_once(make, noise):
    start = time.perf_counter()
    epsilon = make(noise, 10).epsilon(DELTA)
    assert epsilon > 0.4 / noise**2 if noise > 1e-100 else epsilon > 1e100
    assert time.perf_counter() - start < 5


def test_nothing_costs_nothing():
    assert accounting.epsilon([], DELTA) == 0.0


@pytest.mark.parametrize("delta", [0.0, 1.0, -1e-5, 2.0, math.nan])
def test_a_delta_outside_zero_and_one_is_refused(delta):
    with pytest.raises(ValueError, match="delta"):
        plan().epsilon(delta)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"noise_multiplier": -1.0}, "noise_multiplier=-1.0"),
        ({"noise_multiplier": math.nan}, "noise_multiplier=nan"),
        ({"noise_multiplier": math.inf}, "noise_multiplier=inf"),
        ({"releases": 0}, "releases=0"),
        ({"releases": -3}, "releases=-3"),
        ({"expected_contributors": 0.0}, "expected_contributors=0.0"),
        ({"expected_contributors": math.nan}, "expected_contributors=nan"),
    ],
)
def test_a_plan_that_makes_no_sense_is_refused_by_name(change, named):
    with pytest.raises(ValueError, match=named):
        dataclasses.replace(plan(), **change)


@pytest.mark.parametrize(("kind", "name"), [(L2Clip, "norm"), (UpdateAndBit, "bit")])
@pytest.mark.parametrize("value", [0.0, -1.0, math.inf, math.nan])
def test_a_bound_that_makes_no_sense_is_refused_by_name(kind, name, value):
    with pytest.raises(ValueError, match=f"{name}={value}"):
        kind(**{name: value})


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"rate": 0.0, "population": 9}, "rate=0.0"),
        ({"rate": 1.1, "population": 9}, "rate=1.1"),
        ({"rate": math.nan, "population": 9}, "rate=nan"),
        ({"rate": 0.5, "population": 0}, "population=0"),
    ],
)
def test_a_sampler_that_makes_no_sense_is_refused_by_name(values, named):
    with pytest.raises(ValueError, match=named):
        Poisson(**values)


def test_users_and_examples_do_not_compose():
    with pytest.raises(ValueError, match="one unit"):
        accounting.epsilon([plan(), plan(unit=Unit.EXAMPLE)], DELTA)


# Calibration


@pytest.mark.parametrize("target", [0.01, 0.5, 2.0, 10.0, 50.0])
@pytest.mark.parametrize("releases", [1, 150])
def test_calibrated_noise_meets_its_target_and_is_the_least(target, releases):
    found = plan(releases=releases).calibrated(target, DELTA)
    assert found.epsilon(DELTA) <= target
    assert dataclasses.replace(found, noise_multiplier=0.95 * found.noise_multiplier).epsilon(DELTA) > target
    assert dataclasses.replace(found, noise_multiplier=5.0) == plan(releases=releases)


def test_calibrated_noise_under_sampling_meets_its_target_and_is_the_least():
    found = poisson(releases=3, rate=0.05, population=200).calibrated(0.03, DELTA)
    assert found.epsilon(DELTA) <= 0.03
    assert dataclasses.replace(found, noise_multiplier=0.95 * found.noise_multiplier).epsilon(DELTA) > 0.03


def test_calibrated_noise_makes_room_for_what_else_is_released():
    beside = (plan(20.0, 1), plan(30.0, 2))
    found = plan(releases=10).calibrated(2.0, DELTA, beside)
    assert accounting.epsilon([found, *beside], DELTA) <= 2.0
    assert found.noise_multiplier > plan(releases=10).calibrated(2.0, DELTA).noise_multiplier


@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_a_cohort_under_strong_noise_is_priced_without_a_word_of_overflow():
    assert (
        0
        < accounting.epsilon([plan(noise=23.73, releases=200, sampling=Poisson(rate=0.1, population=10_000))], 1e-6)
        < 0.25
    )


def test_a_target_out_of_reach_is_refused_by_name():
    with pytest.raises(ValueError, match=r"epsilon=0\.2 above"):
        plan().calibrated(0.2, DELTA, (plan(2.0),))
    with pytest.raises(ValueError, match="epsilon=1e-12 within reach"):
        plan().calibrated(1e-12, 1e-12)
    for target in (0.0, -1.0, math.nan):
        with pytest.raises(ValueError, match=f"epsilon={target}"):
            plan().calibrated(target, DELTA)


# Adaptive clipping


@pytest.mark.parametrize(("bit_noise", "inflation"), [(1.0, 0.1547), (2.5, 0.0206), (5.0, 0.0050)])
def test_update_and_bit_is_the_mechanism_of_andrew_et_al(bit_noise, inflation):
    """z^-2 = z_update^-2 + (2 z_bit)^-2, with the bit in {0, 1} and z_bit its noise; pinned at z = 1."""
    bit = 1 / math.sqrt(4 * bit_noise**2 - 1)
    promised = plan(1.0, bound=UpdateAndBit(bit=bit))
    update_noise = promised.stddev / 1.0  # the update is bounded by 1
    assert promised.stddev / (2 * bit) == pytest.approx(bit_noise)  # from +-bit to {0, 1}
    assert update_noise**-2 + (2 * bit_noise) ** -2 == pytest.approx(1.0)
    assert update_noise - 1 == pytest.approx(inflation, abs=6e-5)


@given(st.floats(0.01, 100), st.floats(0.01, 100))
def test_the_bit_is_inside_the_promised_multiplier(bit, noise):
    promised = plan(noise, bound=UpdateAndBit(bit=bit))
    update_noise, bit_noise = promised.stddev, promised.stddev / (2 * bit)
    assert update_noise**-2 + (2 * bit_noise) ** -2 == pytest.approx(noise**-2)


# Who takes part


def test_everyone_is_everyone():
    assert Everyone().draw(5, Randomness.seeded(0), "a", 0).tolist() == [0, 1, 2, 3, 4]


def test_poisson_draws_every_unit_at_the_promised_rate_and_independently():
    sampling, randomness = Poisson(rate=0.3, population=50), Randomness.seeded(0)
    joined = np.zeros((4000, 50))
    for draw in range(4000):
        cohort = sampling.draw(50, randomness, f"release {draw}", draw)
        assert len(np.unique(cohort)) == len(cohort) <= sampling.cap
        joined[draw, cohort] = 1
    assert joined.mean(0) == pytest.approx(np.full(50, 0.3), abs=4.5 * math.sqrt(0.21 / 4000))
    assert joined.sum(1).var() == pytest.approx(50 * 0.21, rel=0.15)  # a fixed size would not vary
    together = np.corrcoef(joined.T) - np.eye(50)
    assert np.abs(together).max() < 5 / math.sqrt(4000)


def test_a_cohort_over_the_cap_is_thinned_evenly():
    sampling, randomness = Tight(rate=0.8, population=10, tight=3), Randomness.seeded(0)
    cohorts = [sampling.draw(10, randomness, f"release {draw}", draw) for draw in range(2000)]
    assert max(map(len, cohorts)) == 3
    counts = np.bincount(np.concatenate(cohorts), minlength=10)
    assert counts == pytest.approx(np.full(10, counts.mean()), rel=0.2)


def test_the_cap_is_six_deviations_above_the_mean_and_never_above_the_population():
    assert Poisson(rate=1000 / 250_000, population=250_000).cap == math.ceil(1000 + 6 * math.sqrt(1000))
    assert Poisson(rate=0.9, population=20).cap == 20


def test_the_price_follows_from_the_cohorts_that_are_drawn():
    sampling = Poisson(rate=0.1, population=100)
    loss = plan(2.5, 7, sampling, bound=L2Clip(norm=0.4)).loss
    assert (loss.population, loss.rate, loss.cap) == (100, 0.1, sampling.cap)
    assert loss.multiplier == pytest.approx(2.5)


def test_more_units_than_the_public_number_are_refused_without_a_count():
    with pytest.raises(ValueError, match="population=10") as caught:
        Poisson(rate=0.5, population=10).draw(77, Randomness.seeded(0), "a", 0)
    assert "77" not in str(caught.value)


# In writing


@pytest.mark.parametrize(
    "original",
    [
        plan(2.5, 7),
        plan(0.1, 1, Poisson(rate=1 / 3, population=77), unit=Unit.EXAMPLE),
        plan(bound=UpdateAndBit(bit=0.1)),
        plan(sampling=FixedSize(size=3, population=9, size_is_public=True), neighbours=Neighbours.REPLACE_ONE),
        plan(sampling=Balanced(groups=3, population=9), bound=RowClip(row_norm=0.5, rows=4), unit=Unit.SILO),
        plan(sampling=Poisson(rate=0.5, population=9, capped=False), bound=TopKSign(k=3, rows=2)),
    ],
)
def test_a_plan_survives_json(original):
    again = Plan.from_dict(json.loads(json.dumps(original.to_dict())))
    assert again == original
    assert again.canonical() == original.canonical()
    assert again.unit is original.unit
    assert again.neighbours is original.neighbours


def test_plans_that_differ_are_written_differently():
    changes = [{}, {"noise_multiplier": math.nextafter(5.0, 6)}, {"releases": 2}, {"unit": Unit.EXAMPLE}]
    changes += [{"bound": L2Clip(norm=2.0)}, {"bound": UpdateAndBit(bit=1.0)}, {"expected_contributors": 11.0}]
    changes += [{"sampling": Poisson(rate=0.5, population=9)}, {"sampling": Poisson(rate=0.5, population=10)}]
    assert len({dataclasses.replace(plan(), **change).canonical() for change in changes}) == len(changes)


@pytest.mark.parametrize("epsilon", [1.25, math.inf])
def test_a_guarantee_survives_json_and_says_what_it_means(epsilon):
    original = Guarantee(
        epsilon=epsilon,
        delta=DELTA,
        unit="user",
        neighbours="add/remove",
        sampling="everyone",
        accountant="exact",
        simulated=True,
    )
    assert Guarantee.from_dict(json.loads(json.dumps(original.to_dict(), allow_nan=False))) == original
    statement = original.statement()
    for fact in ("user", "add/remove", "everyone", "exact", "trusted curator", "SIMULATED", *original.not_covered):
        assert fact in statement
    assert ("INFINITE" in original.headline) == math.isinf(epsilon)
