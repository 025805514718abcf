"""Distributions of losses, computed by arrays, against the library's loops and against transforms of more digits."""

import itertools
import math

import numpy as np
import pytest
from dp_accounting.pld import common, pld_pmf, privacy_loss_distribution
from hypothesis import given
from hypothesis import strategies as st
from scipy import fft

from fedlens.privacy import accounting
from fedlens.privacy.losses import ExchangedGaussian, Gaussian, SampledGaussian
from fedlens.privacy.pmfs import GridPmf, reach, truncated

LOSSES = {
    "strong noise": SampledGaussian(multiplier=4.0, rate=0.1),
    "weak noise": SampledGaussian(multiplier=0.5, rate=0.01),
    "seldom": SampledGaussian(multiplier=1.0, rate=1.7e-4),
    "everyone": SampledGaussian(multiplier=9.0, rate=1.0),
    "replaced": SampledGaussian(multiplier=2.0, rate=0.05, replaced=True),
    "capped": SampledGaussian(multiplier=1.0, rate=0.1, population=20, cap=3),
    "exchanged": ExchangedGaussian(multiplier=1.5, size=3, population=70),
    "Gaussian": Gaussian(multiplier=3.0),
}
DELTAS = (0.3, 1e-2, 1e-5, 1e-8)


def directions(loss, count, grid):
    """One distribution for each direction, or one for both."""
    pld = loss.pld(grid).self_compose(count)
    return [pld._pmf_remove] if pld._symmetric else [pld._pmf_remove, pld._pmf_add]


def in_the_library(pmf):
    """The same distribution. Its sparse form multiplies the grid; the dense one adds it up and drifts."""
    numbers = range(pmf._lower_loss, pmf._lower_loss + pmf.size)
    probabilities = dict(zip(numbers, pmf._probs.tolist(), strict=True))
    return pld_pmf.SparsePLDPmf(probabilities, pmf._discretization, pmf._infinity_mass, True)


# Epsilon at a delta


@pytest.mark.parametrize("count", [1, 2, 300])
@pytest.mark.parametrize("name", LOSSES)
def test_an_epsilon_is_the_librarys_to_the_last_digits(name, count):
    for pmf, delta in itertools.product(directions(LOSSES[name], count, 1e-3), DELTAS):
        ours, library = pmf.get_epsilon_for_delta(delta), in_the_library(pmf).get_epsilon_for_delta(delta)
        assert ours == pytest.approx(library, rel=1e-12, abs=1e-12)
        assert pmf.get_delta_for_epsilon(ours) <= delta * (1 + 1e-9) or ours == math.inf


@given(
    st.lists(st.floats(0, 1), min_size=1, max_size=30),
    st.integers(-40, 20),
    st.sampled_from([1e-3, 0.1, 2.0, 30.0]),
    st.sampled_from([0.0, 1e-9, 1e-2, 0.5]),
    st.floats(1e-12, 0.999),
)
def test_an_epsilon_is_the_least_that_delta_allows_whatever_the_distribution(masses, first, grid, infinite, delta):
    masses = np.array(masses) * (1 - infinite) / max(sum(masses), 1e-300)
    pmf = GridPmf(grid, first, masses, infinite)
    epsilon = pmf.get_epsilon_for_delta(delta)
    if epsilon == math.inf:
        assert infinite > delta
        return
    assert pmf.get_delta_for_epsilon(epsilon) <= delta + 1e-12
    if 0 < epsilon < 700:
        assert pmf.get_delta_for_epsilon(epsilon * (1 - 1e-9) - 1e-9) > delta - 1e-12
        assert epsilon >= in_the_library(pmf).get_epsilon_for_delta(delta) * (1 - 1e-12) - 1e-12


def test_mass_that_is_infinitely_far_is_never_forgotten():
    pmf = GridPmf(0.1, -5, np.full(10, 0.0999), 1e-3)
    assert pmf.get_epsilon_for_delta(0.9e-3) == math.inf
    assert pmf.get_epsilon_for_delta(1.1e-3) < 0.5
    assert pmf.get_delta_for_epsilon([0.4, 5.0, 1e4, math.inf]) == pytest.approx(1e-3, rel=1e-12)
    assert pmf.self_compose(3).get_epsilon_for_delta(2.9e-3) == math.inf
    assert pmf.compose(pmf).get_epsilon_for_delta(1.9e-3) == math.inf
    assert GridPmf(0.1, 3, np.zeros(2), 1.0).self_compose(4).get_epsilon_for_delta(0.9) == math.inf


@pytest.mark.parametrize("far", [600.0, 720.0, 800.0, 5000.0])
def test_losses_that_no_exponential_can_hold_are_paid_for(far):
    pmf = GridPmf(1.0, int(far), np.array([0.5, 0.25, 0.25]), 0.0)
    for delta in (0.6, 0.1, 1e-9):
        epsilon = pmf.get_epsilon_for_delta(delta)
        assert far - 2 < epsilon <= far + 2
        assert pmf.get_delta_for_epsilon(epsilon) <= delta * (1 + 1e-9)
        assert pmf.get_delta_for_epsilon([epsilon])[0] == pytest.approx(pmf.get_delta_for_epsilon(epsilon), abs=1e-12)


# Delta at many epsilons


@pytest.mark.parametrize("name", LOSSES)
def test_deltas_at_many_epsilons_are_the_librarys_and_never_below(name):
    epsilons = np.linspace(0, 6, 100)
    for pmf in directions(LOSSES[name], 30, 1e-3):
        ours = pmf.get_delta_for_epsilon(epsilons)
        assert ours == pytest.approx(in_the_library(pmf).get_delta_for_epsilon(epsilons), rel=1e-9, abs=1e-14)
        one_by_one = np.array([pmf.get_delta_for_epsilon(epsilon) for epsilon in epsilons])
        assert (ours >= one_by_one * (1 - 1e-12) - 1e-15).all()
        assert pmf.get_delta_for_epsilon(epsilons[::-1]) == pytest.approx(ours[::-1], rel=0, abs=0)


# Many releases


@pytest.mark.parametrize("count", [2, 7, 1000])
@pytest.mark.parametrize("name", LOSSES)
def test_many_releases_reach_at_least_as_far_as_the_library_says_and_cost_the_same(name, count):
    for pmf in directions(LOSSES[name], 1, 2e-3):
        low, high = common.compute_self_convolve_bounds(pmf._probs, count, 1e-15)
        ours = reach(pmf._probs, count, 1e-15)
        assert low - 2 <= ours[0] <= low
        assert high <= ours[1] <= high + 2
        library = pld_pmf.DensePLDPmf(2e-3, pmf._lower_loss, pmf._probs, pmf._infinity_mass, True).self_compose(count)
        composed = pmf.self_compose(count)
        assert composed._infinity_mass == library._infinity_mass
        for epsilon in (0.0, 0.5, 3.0):
            same = pytest.approx(library.get_delta_for_epsilon(epsilon), rel=1e-12, abs=1e-15 * count)
            assert composed.get_delta_for_epsilon(epsilon) == same


@pytest.mark.parametrize("count", [10, 2000])
@pytest.mark.parametrize("loss", [*LOSSES.values(), SampledGaussian(multiplier=0.5, rate=1e-5)], ids=str)
def test_what_transforms_round_off_is_taken_off_delta(loss, count):
    """Against transforms of 64 bits' mantissas."""
    for pmf in directions(loss, 1, accounting.grid(loss.multiplier, 20.0)):
        composed, wide = pmf.self_compose(count), pmf._probs.astype(np.longdouble)
        low, _ = reach(pmf._probs, count, 1e-15)
        size = fft.next_fast_len(max(composed.size, pmf.size), real=True)
        powers = fft.irfft(np.exp(count * np.log(fft.rfft(wide, size))), size)
        missing = np.roll(powers, -low)[: composed.size] - composed._probs
        losses = (composed._lower_loss + np.arange(composed.size)) * composed._discretization
        for epsilon in np.linspace(0, max(losses[-1], 0), 50):
            above = losses > epsilon
            assert -(missing[above] * np.expm1(epsilon - losses[above])).sum() <= accounting.ROUNDING * count


def test_an_infinitely_rare_loss_is_truncated_to_the_safe_side():
    masses = np.array([1e-17, 2e-17, 0.4, 0.0, 0.6 - 4e-17, 1e-17])
    left, stays, right = truncated(masses, 5e-17)
    assert (left, right) == (2, 1e-17)
    assert stays.tolist() == [0.4 + 3e-17, 0.0, 0.6 - 4e-17]
    assert truncated(masses, 0.0)[1] is masses
    left, stays, right = truncated(masses, 2.0)
    assert stays.sum() + right == pytest.approx(1)


def test_two_kinds_of_releases_cost_what_the_library_says():
    one, other = (directions(LOSSES[name], 5, 1e-3)[0] for name in ("strong noise", "exchanged"))
    plain = [pld_pmf.DensePLDPmf(1e-3, pmf._lower_loss, pmf._probs, pmf._infinity_mass, True) for pmf in (one, other)]
    ours, library = one.compose(other, 1e-15), plain[0].compose(plain[1], 1e-15)
    assert ours._lower_loss == library._lower_loss
    assert ours._infinity_mass == pytest.approx(library._infinity_mass, rel=1e-12)
    assert ours._probs == pytest.approx(library._probs, abs=1e-18)


# Where they come from


@pytest.mark.parametrize("multiplier", [0.3, 1.0, 20.0])
def test_a_gaussian_without_sampling_is_the_librarys(multiplier):
    ours = Gaussian(multiplier=multiplier).pld(1e-3)
    library = privacy_loss_distribution.from_gaussian_mechanism(multiplier, value_discretization_interval=1e-3)
    epsilons = np.linspace(0, 8, 33)
    assert ours.get_delta_for_epsilon(epsilons) == pytest.approx(library.get_delta_for_epsilon(epsilons), abs=1e-13)
    assert ours._symmetric


def test_dots_are_connected_as_in_the_library():
    deltas = np.array([0.7, 0.5, 0.5, 0.2, 0.05])
    ours = GridPmf.connected(0.1, -2, deltas)
    library = pld_pmf.create_pmf_pessimistic_connect_dots_fixed_gap(0.1, -2, 2, deltas).to_dense_pmf()
    assert ours._probs == pytest.approx(library._probs, rel=1e-12)
    assert (ours._lower_loss, ours._infinity_mass) == (library._lower_loss, library._infinity_mass)
    assert GridPmf.connected(0.1, 4, np.array([0.25]))._probs == pytest.approx([0.75])


@pytest.mark.parametrize("grid", [1e-4, 1e-3, 0.3])
@pytest.mark.parametrize("name", ["strong noise", "weak noise", "replaced", "exchanged", "Gaussian"])
def test_dots_are_met_from_above_to_the_last_digit(name, grid, monkeypatch):
    dots, connected = [], GridPmf.connected
    monkeypatch.setattr(GridPmf, "connected", lambda *values: dots.append(values) or connected(*values))
    for pmf, (_, first, deltas) in zip(directions(LOSSES[name], 1, grid), dots, strict=True):
        for index in range(max(0, -first), len(deltas), 1 + len(deltas) // 50):
            met = pmf.get_delta_for_epsilon((first + index) * grid)
            assert deltas[index] - 1e-15 <= met <= deltas[index] * (1 + 1e-11) + 1e-15


@pytest.mark.parametrize("deltas", [[0.1, 0.2], [1.1, 0.2], [0.5, -0.1], [math.nan, 0.1]])
def test_a_profile_that_makes_no_sense_is_refused(deltas):
    with pytest.raises(ValueError, match="Expected deltas"):
        GridPmf.connected(0.1, 0, np.array(deltas))


def test_no_release_is_no_composition():
    with pytest.raises(ValueError, match="num_times=0"):
        GridPmf(0.1, 0, np.ones(1), 0.0).self_compose(0)
