"""Noise is normal, cohorts are uniform, labels are independent, secrets stay secret."""

import math
import os
import stat

import numpy as np
import pytest
import scipy.stats
import torch

from fedlens.core.randomness import Randomness

COUNT = 200_001  # odd: the last pair of Box-Muller is cut


@pytest.fixture(scope="module")
def normal():
    return Randomness.seeded(5).normal("noise", COUNT).numpy()


@pytest.fixture(scope="module")
def uniform():
    return Randomness.seeded(5).uniform("cohort", COUNT)


def test_normal_has_the_moments_of_a_standard_normal(normal):
    assert normal.shape == (COUNT,)
    assert abs(normal.mean()) < 4 / math.sqrt(COUNT)
    assert normal.var() == pytest.approx(1.0, abs=4 * math.sqrt(2 / COUNT))
    assert scipy.stats.skew(normal) == pytest.approx(0.0, abs=4 * math.sqrt(6 / COUNT))
    assert scipy.stats.kurtosis(normal) == pytest.approx(0.0, abs=4 * math.sqrt(24 / COUNT))


def test_normal_passes_a_kolmogorov_smirnov_test(normal):
    assert scipy.stats.kstest(normal, "norm").pvalue > 0.01


@pytest.mark.parametrize("threshold", [2.0, 3.0, 3.5])
def test_normal_has_both_tails(normal, threshold):
    expected = COUNT * scipy.stats.norm.sf(threshold)
    for tail in (normal > threshold, normal < -threshold):
        assert tail.sum() == pytest.approx(expected, abs=4 * math.sqrt(expected))


def test_uniform_fills_the_open_interval_evenly(uniform):
    assert 0 < uniform.min() < 1e-4
    assert 1 - 1e-4 < uniform.max() < 1
    assert scipy.stats.kstest(uniform, "uniform").pvalue > 0.01
    assert len(np.unique(uniform)) == COUNT


@pytest.mark.parametrize("lag", [1, 2, (COUNT + 1) // 2])
def test_coordinates_are_independent_of_their_neighbours(normal, lag):
    """Also of their partners in Box-Muller, half the vector away, and also in size."""
    left, right = normal[:-lag], normal[lag:]
    for a, b in ((left, right), (left**2, right**2), (np.abs(left), right)):
        assert abs(np.corrcoef(a, b)[0, 1]) < 4 / math.sqrt(len(a))


def test_labels_and_seeds_never_meet_the_same_noise(normal):
    others = [Randomness.seeded(5).normal("noise2", COUNT), Randomness.seeded(6).normal("noise", COUNT)]
    for other in others:
        assert abs(np.corrcoef(normal, other.numpy())[0, 1]) < 4 / math.sqrt(COUNT)
        assert not np.isin(normal[:1000], other.numpy()).any()


def test_uniforms_of_two_labels_are_uncorrelated(uniform):
    other = Randomness.seeded(5).uniform("cohort/2", COUNT)
    assert abs(np.corrcoef(uniform, other)[0, 1]) < 4 / math.sqrt(COUNT)


def test_a_seed_gives_the_same_draws_again():
    assert torch.equal(Randomness.seeded(3).normal("a", 9), Randomness.seeded(3).normal("a", 9))
    assert np.array_equal(Randomness.seeded(3).uniform("a", 9), Randomness.seeded(3).uniform("a", 9))


def test_nothing_can_be_drawn_and_a_single_number_too():
    assert Randomness.seeded(3).normal("a", 0).shape == (0,)
    assert Randomness.seeded(3).uniform("a", 0).shape == (0,)
    assert Randomness.seeded(3).normal("a", 1).isfinite().all()


def test_secrets_differ_and_are_not_simulated():
    one, two = Randomness.secret(), Randomness.secret()
    assert one.key != two.key
    assert len(one.key) == 32
    assert not torch.equal(one.normal("a", 9), two.normal("a", 9))
    assert not one.simulated
    assert Randomness.seeded(1).simulated


def test_the_key_is_not_printed():
    randomness = Randomness.secret()
    for text in (repr(randomness), str(randomness), f"{randomness}"):
        assert "key" not in text
        assert randomness.key.hex() not in text
        assert repr(randomness.key) not in text


def test_a_kept_secret_is_for_its_owner_only_and_comes_back(tmp_path):
    old = os.umask(0)
    try:
        first = Randomness.kept_in(tmp_path / "secret")
    finally:
        os.umask(old)
    assert stat.S_IMODE((tmp_path / "secret").stat().st_mode) == 0o600
    again = Randomness.kept_in(tmp_path / "secret")
    assert again.key == first.key
    assert not first.simulated
    assert not again.simulated
    assert Randomness.kept_in(tmp_path / "other").key != first.key


def test_a_damaged_secret_is_refused_without_showing_it(tmp_path):
    (tmp_path / "secret").write_bytes(b"short and telling")
    with pytest.raises(ValueError, match="Expected 32 bytes") as caught:
        Randomness.kept_in(tmp_path / "secret")
    assert "telling" not in str(caught.value)
