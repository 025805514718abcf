"""The Bayesian accountant: equal to Renyi DP where nothing is sampled, as published to the digit, and corrected."""

import dataclasses
import math
import warnings

import numpy as np
import pytest
import scipy.stats
from dp_accounting import dp_event
from dp_accounting.rdp import rdp_privacy_accountant
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize

from fedlens.privacy.bayesian import BayesianAccountant, log_moment

DENSE = tuple(range(1, 65))
# rate, noise, steps, delta, and the epsilon of Renyi DP with Mironov's conversion: 3 settings of earlier measurements
CONSTANT = [
    (0.01, 1.0, 1000, 1e-5, 2.538348),
    (64 / 60_000, 0.8, 20_000, 1e-5, 2.066947),
    (0.05, 2.0, 500, 1e-6, 3.513944),
]


def equal_cost(accountant, distance, stddev):
    """The cost of a step in which all pairs are equally far apart."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return accountant.cost([distance] * 3, stddev)


def moment(distance, order, rate):
    return log_moment(np.array([distance]), order, rate).item()


def summed(order, rate, distance):
    """The log moment, term by term and in plain numbers."""
    n, odds = order + 1, [math.comb(order + 1, k) * rate**k * (1 - rate) ** (order + 1 - k) for k in range(order + 2)]
    return math.log1p(math.fsum(odds[k] * math.expm1((k * k - k) * distance**2 / 2) for k in range(n + 1)))


# Equal distances: nothing is estimated


@pytest.mark.parametrize(("rate", "noise", "steps", "delta", "epsilon"), CONSTANT)
def test_equal_distances_cost_what_renyi_dp_says(rate, noise, steps, delta, epsilon):
    """(Verdict: the three epsilons agree with Renyi DP to all six digits.)"""
    renyi = rdp_privacy_accountant.RdpAccountant(orders=[order + 1 for order in DENSE])
    renyi.compose(dp_event.PoissonSampledDpEvent(rate, dp_event.GaussianDpEvent(noise)), steps)
    classic = min((order * rdp - math.log(delta)) / order for order, rdp in zip(DENSE, renyi.rdp, strict=True))
    accountant = BayesianAccountant(rate=rate, steps=steps, orders=DENSE)
    total = steps * equal_cost(accountant, 1.0, noise)
    np.testing.assert_allclose(total, np.array(DENSE) * renyi.rdp, rtol=1e-9)  # it loses digits of the smallest
    assert accountant.epsilon(total, delta).epsilon == pytest.approx(classic, abs=2e-7)  # delta pays for the failure
    assert round(accountant.epsilon(total, delta).epsilon, 6) == epsilon


@pytest.mark.parametrize("rate", [1e-3, 0.017, 0.3, 1.0])
@pytest.mark.parametrize("distance", [1e-3, 0.1, 1.0, 2.0])
def test_the_log_moment_keeps_its_digits_however_small(rate, distance):
    for order in (1, 2, 8):
        assert moment(distance, order, rate) == pytest.approx(summed(order, rate, distance), rel=1e-12)


@pytest.mark.parametrize(("rate", "noise"), [(0.05, 2.0), (0.3, 1.0), (0.1, 0.7)])
def test_one_step_of_renyi_dp_to_twelve_digits(rate, noise):
    renyi = rdp_privacy_accountant.RdpAccountant(orders=[3, 5, 9, 17, 33])
    renyi.compose(dp_event.PoissonSampledDpEvent(rate, dp_event.GaussianDpEvent(noise)))
    accountant = BayesianAccountant(rate=rate, steps=1)
    cost = equal_cost(accountant, 1.0, noise)
    np.testing.assert_allclose(cost, np.array(accountant.orders) * renyi.rdp, rtol=1e-12)


def test_equal_distances_drop_the_penalty_with_a_warning():
    with pytest.warns(UserWarning, match="Equal distances"):
        cost = BayesianAccountant(rate=0.1, steps=7, orders=(8,)).cost([0.5] * 4, 1.0)
    assert cost[0] == pytest.approx(moment(0.5, 8, 0.1), rel=1e-12)


@pytest.mark.parametrize(
    ("batch", "steps", "published"), [(64, 375_200, 0.2177), (256, 94_000, 0.1107), (1024, 23_600, 0.0554)]
)
def test_the_equal_distance_that_yields_epsilon_one_on_mnist(batch, steps, published):
    """The tabled distances were read on a grid with 48, and with 1 - 1e-16 as rounded to double precision."""
    orders = (2, 4, 8, 16, 32, 48, 64)
    accountant = BayesianAccountant(rate=batch / 60_000, steps=steps, orders=orders)

    def excess(distance):
        return accountant.epsilon(steps * equal_cost(accountant, distance, 1.0), 1e-10).epsilon - 1

    distance = optimize.brentq(excess, 0.01, 1.0, xtol=1e-9)
    assert round(distance, 4) == published
    # A worst-case distance of 1.0 is that many times larger, with deviations of 0.01 and 0.005.
    assert {64: 459, 1024: 3607}.get(batch) in (None, round(100 / distance), round(200 / distance))


# As published


def gaussian_pairs(m, seed=0):
    left, right = np.random.default_rng(seed).normal(size=(2, m, 50))
    return np.linalg.norm(left - right, axis=1)


def test_gaussian_gradients_meet_their_closed_form():
    """d^2 / 2 is chi-squared (50): E exp(u d^2) = (1 - 4 u)^-25. One step of order 4, rate 0.05, noise 15."""
    joins, noise = np.arange(6), 15.0
    growth = (1 - 2 * (joins**2 - joins) / noise**2) ** -25.0
    closed = math.log(scipy.stats.binom.pmf(joins, 5, 0.05) @ growth)
    assert round(closed, 8) == 0.01582528
    accountant = BayesianAccountant(rate=0.05, steps=1, orders=(4,))
    sampled = log_moment(gaussian_pairs(200_000) / noise, 4, 0.05)
    assert math.log(np.exp(sampled).mean()) == pytest.approx(closed, rel=3e-3)  # 4 standard errors
    bounds = [accountant.cost(gaussian_pairs(2000, seed), noise).item() for seed in range(20)]
    assert np.mean(bounds) == pytest.approx(0.01666906, abs=2e-4)  # that one spreads by 1.2e-4
    assert min(bounds) > closed


@pytest.mark.parametrize("steps", [1, 3])
def test_the_published_estimate_in_plain_numbers(steps):
    accountant = BayesianAccountant(rate=0.1, steps=steps, failure=1e-3)
    distances = np.array([0.1, 0.5, 0.2, 0.4, 0.9])
    for order, cost in zip(accountant.orders[:3], accountant.cost(distances * 3, 3.0)[:3], strict=True):
        values = np.exp([steps * summed(order, 0.1, distance) for distance in distances])
        bound = values.mean() + scipy.stats.t.isf(1e-3, 4) * values.std() / math.sqrt(4)
        assert cost == pytest.approx(math.log(bound) / steps, rel=1e-12)


def test_the_published_quantile_is_that_of_a_rounded_confidence():
    assert BayesianAccountant(rate=0.1, steps=1).failure == 1 - (1 - 1e-16)
    assert round(scipy.stats.t.isf(BayesianAccountant(rate=0.1, steps=1).failure, 27), 1) == 17.7


def two_point_costs(accountant, near, far, pairs):
    """The cost of a step at one order, by how many of its pairs are far apart: all that a two-point law can yield."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        mixed = [[far] * hits + [near] * (pairs - hits) for hits in range(pairs + 1)]
        return np.array([accountant.cost(distances, 1.0).item() for distances in mixed])


def two_point_truth(accountant, near, far, p):
    (order,), steps = accountant.orders, accountant.steps
    low, high = (steps * moment(distance, order, accountant.rate) for distance in (near, far))
    return np.logaddexp(math.log1p(-p) + low, math.log(p) + high) / steps


@pytest.mark.parametrize(("p", "truth", "median"), [(1e-2, 1004.4, 242.1), (1e-3, 1002.1, 20.2), (1e-4, 999.8, 0.052)])
def test_the_published_estimate_misses_rare_outliers(p, truth, median):
    """Distances 0.005 and rarely 0.1, noise 0.1, rate 0.017: (verdict) it never once reaches what it should bound.

    The medians belong to 200 runs of 50 steps, scaled to 2000; with all 2000 steps they are no nearer to the truth.
    """
    accountant = BayesianAccountant(rate=0.017, steps=2000, orders=(8,))
    assert round(2000 * two_point_truth(accountant, 0.05, 1.0, p), 1) == truth
    costs = two_point_costs(accountant, 0.05, 1.0, 28)
    rng = np.random.default_rng(0)
    scaled = 40 * costs[rng.binomial(28, p, (200, 50))].sum(axis=1)
    assert np.median(scaled) == pytest.approx(median, abs=0.05 if median > 1 else 5e-4)
    full = costs[rng.binomial(28, p, (200, 2000))].sum(axis=1)
    assert max(scaled.max(), full.max()) < truth / 2


def test_a_larger_distance_may_lower_the_published_estimate_but_not_the_corrected_one():
    published = BayesianAccountant(rate=0.1, steps=1, orders=(8,), failure=1e-9)
    corrected = dataclasses.replace(published, largest=1.0)
    less, more = [0.0, 0.5, 0.5, 0.5, 0.6], [0.4, 0.5, 0.5, 0.5, 0.6]
    assert published.cost(more, 1.0) < published.cost(less, 1.0)
    assert corrected.cost(more, 1.0) > corrected.cost(less, 1.0)


# Corrected


def missed(accountant, costs, near, far, p):
    """The exact probability that a step is underestimated."""
    below = costs < two_point_truth(accountant, near, far, p)
    return scipy.stats.binom.pmf(np.arange(len(costs)), len(costs) - 1, p) @ below


@pytest.mark.parametrize(("near", "far"), [(0.0, 1.0), (0.05, 1.0), (0.3, 0.9), (0.9, 1.0)])
@pytest.mark.parametrize("steps", [1, 40, 2000])
def test_the_corrected_cost_fails_as_rarely_as_it_says_on_every_two_point_law(near, far, steps):
    accountant = BayesianAccountant(rate=0.1, steps=steps, orders=(8,), failure=0.05, largest=1.0)
    costs = two_point_costs(accountant, near, far, 28)
    assert max(missed(accountant, costs, near, far, p) for p in np.linspace(1e-3, 0.999, 500)) <= 0.05


def test_the_corrected_cost_is_sharp_where_the_published_one_fails_most_of_the_time():
    corrected = BayesianAccountant(rate=0.017, steps=2000, orders=(8,), failure=0.05, largest=1.0)
    published = dataclasses.replace(corrected, largest=None)
    rare = 1.001 * (1 - 0.05 ** (1 / 28))
    costs = two_point_costs(corrected, 0.05, 1.0, 28)
    assert 0.045 < missed(corrected, costs, 0.05, 1.0, rare) <= 0.05
    assert missed(published, two_point_costs(published, 0.05, 1.0, 28), 0.05, 1.0, 0.02) > 0.5


def test_the_corrected_cost_covers_a_smooth_law_at_all_orders_at_once():
    accountant = BayesianAccountant(rate=0.2, steps=20, failure=0.05, largest=1.0)
    rng = np.random.default_rng(0)
    grid = (np.arange(100_000) + 0.5) / 100_000  # quantiles of a uniform distance
    logs = [20 * log_moment(grid, order, 0.2) for order in accountant.orders]
    truth = np.array([np.logaddexp.reduce(log) - math.log(len(log)) for log in logs]) / 20
    failures = sum((accountant.cost(rng.uniform(size=40), 1.0) < truth).any() for _ in range(300))
    assert failures <= scipy.stats.binom.ppf(1 - 1e-6, 300, 0.05)


@pytest.mark.parametrize("steps", [1, 2000, 375_200])
def test_without_a_large_distance_in_sight_the_corrected_cost_is_the_best_there_is(steps):
    accountant = BayesianAccountant(rate=0.017, steps=steps, orders=(8,), failure=1e-6, largest=1.0)
    worst = moment(1.0, 8, 0.017)
    cost = accountant.cost([0.0] * 28, 1.0).item()
    weight = -math.expm1(math.log(1e-6) / 28)  # at the far end, it is missed by all 28 once in a million times
    best = np.logaddexp(math.log1p(-weight), math.log(weight) + steps * worst) / steps
    assert cost == pytest.approx(best, rel=1e-8)
    assert best < cost < worst  # rounded up, never down


@pytest.mark.parametrize("steps", [1, 30])
def test_the_corrected_cost_shrinks_to_the_truth_as_pairs_become_many(steps):
    accountant = BayesianAccountant(rate=0.1, steps=steps, orders=(8,), failure=1e-6, largest=1.0)
    truth = two_point_truth(accountant, 0.1, 1.0, 0.1)
    costs = [accountant.cost([1.0] * (m // 10) + [0.1] * (m - m // 10), 1.0).item() for m in (10, 100, 10**4, 10**6)]
    assert costs == sorted(costs, reverse=True)
    assert moment(1.0, 8, 0.1) >= costs[0]
    assert truth < costs[-1] < truth * 1.02


def test_the_corrected_cost_of_the_largest_distances_is_the_worst_case():
    accountant = BayesianAccountant(rate=0.1, steps=50, largest=2.0)
    cost = accountant.cost([2.0] * 5, 4.0)
    np.testing.assert_allclose(cost, [moment(0.5, order, 0.1) for order in accountant.orders], rtol=1e-12)


def test_a_norm_that_rounding_left_over_the_clip_counts_as_the_clip():
    accountant = BayesianAccountant(rate=0.1, steps=50, largest=2.0)
    over, at = ([distance, 0.1, 0.1, 0.1] for distance in (2.0 * (1 + 1e-7), 2.0))
    assert (accountant.cost(over, 1.0) == accountant.cost(at, 1.0)).all()


def test_all_orders_share_the_failure_because_the_best_is_chosen_after_looking():
    both = BayesianAccountant(rate=0.1, steps=5, orders=(4, 8), failure=0.04, largest=1.0)
    alone = dataclasses.replace(both, orders=(8,), failure=0.02)
    assert both.cost([0.1, 0.2, 0.3], 1.0)[1] == alone.cost([0.1, 0.2, 0.3], 1.0)[0]


# Epsilon and delta


def test_the_corrected_delta_pays_for_the_failure_in_both_directions():
    accountant = BayesianAccountant(rate=0.01, steps=100, failure=5e-8, largest=1.0)
    costs = np.tile(accountant.cost([0.1, 0.2, 0.3], 1.0), (100, 1))
    there = accountant.epsilon(costs, 1e-5)
    back = accountant.delta(costs, there.epsilon)
    assert accountant.charge == pytest.approx(5e-6)
    assert (back.delta, back.order, back.method) == (pytest.approx(1e-5), there.order, "corrected")
    by_hand = (costs.sum(axis=0) - math.log(1e-5 - 5e-6)) / np.array(accountant.orders)
    assert there.epsilon == pytest.approx(by_hand.min())
    assert accountant.delta(costs, 1e6).delta == pytest.approx(5e-6)


def test_the_published_delta_forgets_the_failure_one_way():
    accountant = BayesianAccountant(rate=0.01, steps=100, failure=5e-8)
    costs = np.tile(accountant.cost([0.1, 0.2, 0.3], 1.0), (100, 1))
    there = accountant.epsilon(costs, 1e-5)
    assert there.method == "as published"
    assert accountant.delta(costs, there.epsilon).delta == pytest.approx(1e-5 - accountant.charge)


@pytest.mark.parametrize("largest", [None, 1.0])
def test_a_failure_above_delta_leaves_no_finite_epsilon(largest):
    accountant = BayesianAccountant(rate=0.01, steps=100, failure=1e-6, largest=largest)
    estimate = accountant.epsilon(accountant.cost([0.1, 0.2, 0.3], 1.0), 1e-5)
    assert estimate.epsilon == math.inf
    assert "INFINITE" in estimate.headline


@pytest.mark.parametrize("largest", [None, 1.0])
def test_every_reading_says_that_it_is_an_estimate(largest):
    accountant = BayesianAccountant(rate=0.01, steps=10, largest=largest)
    costs = [accountant.cost([0.1, 0.2, 0.3], 1.0)] * 10
    for estimate in (accountant.epsilon(costs, 1e-5), accountant.delta(costs, 2.0)):
        assert "estimate" in estimate.headline
        assert "not a privacy guarantee" in estimate.headline
        assert accountant.method in estimate.headline
        assert accountant.orders[0] <= estimate.order <= accountant.orders[-1]
    assert accountant.delta(costs, 0.0).delta == 1.0


# Properties

distances = st.lists(st.floats(0.0, 1.0), min_size=3, max_size=12)
small = settings(max_examples=40, deadline=None, derandomize=True)


def quiet(accountant, sampled):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return accountant.cost(sampled, 1.0)


@small
@given(distances, st.floats(1.0, 3.0), st.floats(1e-3, 1.0), st.sampled_from([1, 50, 375_200]))
def test_costs_grow_with_all_distances_and_stay_finite(sampled, factor, rate, steps):
    published = BayesianAccountant(rate=rate, steps=steps)
    corrected = dataclasses.replace(published, largest=3.0)
    for accountant in (published, corrected):
        less, more = quiet(accountant, sampled), quiet(accountant, np.array(sampled) * factor)
        assert np.isfinite(more).all()
        assert (less <= more * (1 + 1e-9) + 1e-15).all()


@small
@given(distances, st.integers(0, 2), st.floats(0.0, 1.0), st.floats(1e-3, 1.0), st.sampled_from([1, 50, 2000]))
def test_corrected_costs_grow_with_each_distance_and_end_at_the_worst_case(sampled, which, other, rate, steps):
    accountant = BayesianAccountant(rate=rate, steps=steps, failure=1e-3, largest=1.0)
    raised = [max(d, other) if place == which else d for place, d in enumerate(sampled)]
    less, more = accountant.cost(sampled, 1.0), accountant.cost(raised, 1.0)
    assert (less <= more * (1 + 1e-9)).all()
    assert (more <= [moment(1.0, order, rate) for order in accountant.orders]).all()


@small
@given(st.floats(0.01, 3.0), st.floats(1e-4, 1.0), st.floats(1e-4, 1.0), st.integers(1, 40))
def test_the_log_moment_grows_with_the_rate_and_the_order(distance, left, right, order):
    low, high = sorted((left, right))
    assert moment(distance, order, low) <= moment(distance, order, high) * (1 + 1e-12)
    assert moment(distance, order, low) <= moment(distance, order + 1, low)


@pytest.mark.parametrize("largest", [None, 200.0])
def test_nothing_overflows_in_long_runs_with_far_outliers(largest):
    accountant = BayesianAccountant(rate=64 / 60_000, steps=375_200, largest=largest)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        cost = accountant.cost([0.0] * 27 + [200.0], 1.0)
    worst = np.array([moment(200.0, order, accountant.rate) for order in accountant.orders])
    np.testing.assert_allclose(cost, worst, atol=math.log(28) / 375_200, rtol=0)
    assert math.isfinite(accountant.epsilon(375_200 * cost, 1e-10).epsilon)
    assert accountant.delta(375_200 * cost, 1.0).delta == 1.0


@pytest.mark.parametrize(
    "wrong",
    [
        {"rate": 0.0},
        {"rate": 1.1},
        {"steps": 0},
        {"orders": ()},
        {"orders": (0,)},
        {"orders": (2.5,)},
        {"failure": 0.0},
        {"failure": 0.5},
        {"largest": 0.0},
        {"largest": math.inf},
    ],
)
def test_settings_that_mean_nothing_are_refused(wrong):
    with pytest.raises(ValueError, match=f"Expected .*{next(iter(wrong))}="):
        BayesianAccountant(**{"rate": 0.1, "steps": 1} | wrong)


@pytest.mark.parametrize("wrong", [[0.1, 0.2], [0.1, 0.2, math.nan], [0.1, 0.2, -0.1], [0.1, 0.2, 1.1], [[0.1] * 3]])
def test_distances_that_mean_nothing_are_refused(wrong):
    with pytest.raises(ValueError, match=r"Expected .*distances"):
        BayesianAccountant(rate=0.1, steps=1, largest=1.0).cost(wrong, 1.0)


def test_readings_that_mean_nothing_are_refused():
    accountant = BayesianAccountant(rate=0.1, steps=2)
    row = accountant.cost([0.1, 0.2, 0.3], 1.0)
    with pytest.raises(ValueError, match=r"Expected stddev=0.0 > 0"):
        accountant.cost([0.1, 0.2, 0.3], 0.0)
    with pytest.raises(ValueError, match="Expected at most 2 rows of 5 costs"):
        accountant.epsilon([row] * 3, 1e-5)  # Hoelder's exponent was 2
    for costs in (row[:-1], -row, row * math.nan):
        with pytest.raises(ValueError, match="Expected at most 2 rows"):
            accountant.delta(costs, 1.0)
    with pytest.raises(ValueError, match=r"Expected 0 < delta=0.0 < 1"):
        accountant.epsilon(row, 0.0)
    with pytest.raises(ValueError, match=r"Expected epsilon=-1.0 >= 0"):
        accountant.delta(row, -1.0)
