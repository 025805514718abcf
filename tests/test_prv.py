"""Privacy-loss distributions against an independent accountant: privacy random variables, Gopi, Lee, Wutschitz 2021."""

import functools
import math

import pytest
import toys
from prv_accountant import GaussianMechanism, PoissonSubsampledGaussianMechanism, PRVAccountant

from fedlens.privacy import Everyone, FixedSize, Poisson, accounting

SETTINGS = [  # rate, noise, releases, delta
    (0.01, 1.0, 1000, 1e-5),
    (0.004, 1.0, 1000, 4e-8),  # Augenstein et al. 2020, table 3a
    (0.001, 0.6, 3000, 1e-7),
    (0.05, 0.8, 1, 1e-4),
    (0.2, 2.0, 50, 1e-6),
    (0.5, 4.0, 200, 1e-3),
    (0.9, 6.0, 20, 1e-9),
    (1.0, 5.0, 10, 1e-5),
]
plan = functools.partial(toys.plan, expected=1.0)


def prv_interval(suffered, delta):
    """What the epsilon of (mechanism, how often) pairs is proven to lie between, about 2% apart."""
    mechanisms, counts = zip(*suffered, strict=True)

    def bounds(error):
        accountant = PRVAccountant(
            prvs=list(mechanisms), max_self_compositions=list(counts), eps_error=error, delta_error=1e-3 * delta
        )
        low, _, high = accountant.compute_epsilon(delta=delta, num_self_compositions=list(counts))
        return low, high

    low, _ = bounds(0.1)
    return bounds(min(0.1, max(0.002, 0.01 * low)))


def poisson(rate, noise):
    return PoissonSubsampledGaussianMechanism(sampling_probability=rate, noise_multiplier=noise)


@pytest.mark.parametrize(("rate", "noise", "releases", "delta"), SETTINGS)
def test_sampled_releases_cost_what_the_other_accountant_says(rate, noise, releases, delta):
    low, high = prv_interval([(poisson(rate, noise), releases)], delta)
    stated = plan(sampling=Poisson(rate=rate, population=10**6, capped=False), noise=noise, releases=releases).epsilon(
        delta
    )
    assert 0 < low <= stated <= 1.01 * high
    assert high - low < 0.05 * high  # or this would say little


@pytest.mark.parametrize(("rate", "noise", "releases", "delta"), SETTINGS[:1])
def test_the_other_accountant_would_notice_a_wrong_multiplier_rate_or_count(rate, noise, releases, delta):
    low, high = prv_interval([(poisson(rate, noise), releases)], delta)
    sampling = Poisson(rate=rate, population=10**6, capped=False)
    wrong = (
        plan(sampling=sampling, noise=1.05 * noise, releases=releases),
        plan(sampling=Poisson(rate=0.95 * rate, population=10**6, capped=False), noise=noise, releases=releases),
        plan(sampling=sampling, noise=noise, releases=round(0.9 * releases)),
    )
    assert all(other.epsilon(delta) < low for other in wrong)
    assert plan(sampling=sampling, noise=0.95 * noise, releases=releases).epsilon(delta) > 1.01 * high


def test_a_cap_of_six_deviations_costs_next_to_nothing():
    low, high = prv_interval([(poisson(0.004, 1.0), 1000)], 4e-8)
    assert (
        low
        <= plan(sampling=Poisson(rate=0.004, population=250_000), noise=1.0, releases=1000).epsilon(4e-8)
        <= 1.01 * high
    )


def test_samples_of_a_fixed_size_cost_what_poisson_samples_at_half_the_noise_do():
    """Whoever is drawn displaces another: twice the distance, or half the multiplier."""
    low, high = prv_interval([(poisson(0.05, 1.0), 40)], 1e-5)
    assert low <= plan(sampling=FixedSize(size=5, population=100), noise=2.0, releases=40).epsilon(1e-5) <= 1.01 * high


def test_several_kinds_of_releases_together_cost_what_the_other_accountant_says():
    mechanisms = [(poisson(0.05, 1.0), 40), (poisson(0.2, 3.0), 10), (GaussianMechanism(noise_multiplier=8.0), 5)]
    low, high = prv_interval(mechanisms, 1e-5)
    plans = [
        plan(sampling=Poisson(rate=0.05, population=100, capped=False), noise=1.0, releases=40),
        plan(sampling=Poisson(rate=0.2, population=100, capped=False), noise=3.0, releases=10),
        plan(sampling=Everyone(), noise=8.0, releases=5),
    ]
    assert low <= accounting.epsilon(plans, 1e-5) <= 1.01 * high
    assert accounting.epsilon(plans[:2], 1e-5) < low


@pytest.mark.parametrize(("noise", "releases", "delta"), [(5.0, 10, 1e-5), (1.0, 2, 1e-7)])
def test_gaussians_without_sampling_lie_where_both_accountants_say(noise, releases, delta):
    low, high = prv_interval([(GaussianMechanism(noise_multiplier=noise), releases)], delta)
    assert low <= accounting.gaussian_epsilon(math.sqrt(releases) / noise, delta) <= high
