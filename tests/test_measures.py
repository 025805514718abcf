"""Measures of sample sets: against slow oracles, under the null, where images turn, where everything is the same."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from scipy import stats
from sklearn.linear_model import Ridge
from sklearn.metrics import roc_auc_score

from fedlens.media.images import measures
from fedlens.media.images.measures import (
    classifier_test,
    distinct,
    intensity_histogram,
    mmd_test,
    orientation_spectrum,
    random_features,
    spread,
)

TESTS = [classifier_test, mmd_test]
images_of_any_kind = arrays.arrays(
    np.float32,
    st.tuples(st.integers(2, 6), st.sampled_from([1, 3]), st.just(8), st.just(8)),
    elements=st.floats(-1, 1, width=32),
).map(torch.from_numpy)


def drawn(count, seed, *, mean=0.0, channels=1, side=8):
    """Smooth blobs of noise around a mean."""
    rng = torch.Generator().manual_seed(seed)
    coarse = torch.randn(count, channels, side // 2, side // 2, generator=rng)
    return (mean + 0.3 * coarse.repeat_interleave(2, 2).repeat_interleave(2, 3)).clamp(-1, 1)


def stripes(angle, side=16, count=4):
    """Waves whose crests run at an angle, counter-clockwise from the horizontal."""
    y, x = torch.meshgrid(-torch.arange(side), torch.arange(side), indexing="ij")
    across = y * math.cos(math.radians(angle)) - x * math.sin(math.radians(angle))
    return torch.sin(0.8 * across).expand(count, 1, side, side)


# Two-sample tests


@pytest.mark.parametrize("features", [None, random_features])
@pytest.mark.parametrize("test", TESTS)
def test_p_values_are_valid_if_the_sides_are_alike(test, features):
    """Exact, so neither too small nor always large; sides of unequal size, a fresh seed each time."""
    trials = 200
    p_values = [
        test(drawn(12, 2 * seed), drawn(17, 2 * seed + 1), features=features, permutations=59, seed=seed).p_value
        for seed in range(trials)
    ]
    for level in (0.05, 0.2, 0.5):
        rejected = sum(p <= level for p in p_values)
        assert stats.binom.ppf(0.001, trials, level) <= rejected <= stats.binom.ppf(0.999, trials, level)


@pytest.mark.parametrize("test", TESTS)
def test_p_values_stay_valid_where_many_samples_are_equal(test):
    trials = 200
    p_values = []
    for seed in range(trials):
        kinds = torch.randint(3, (30,), generator=torch.Generator().manual_seed(seed))
        images = drawn(3, 0)[kinds]
        p_values.append(test(images[:15], images[15:], permutations=59, seed=seed).p_value)
    assert sum(p <= 0.05 for p in p_values) <= stats.binom.ppf(0.999, trials, 0.05)
    assert sum(p <= 0.5 for p in p_values) >= 0.1 * trials


@pytest.mark.parametrize("features", [None, random_features])
@pytest.mark.parametrize("test", TESTS)
def test_a_shift_is_found_and_the_p_value_is_as_small_as_chance_allows(test, features):
    found = test(drawn(60, 0), drawn(60, 1, mean=0.4), features=features, permutations=99)
    assert found.p_value == 1 / 100
    assert found.statistic > (0.95 if test is classifier_test else 0.05)


def test_features_find_what_pixels_do_not():
    """Stripes up or down the brightness at random: equal means, so no linear classifier on pixels tells them apart."""
    flips = (torch.arange(80) % 2 * 2 - 1).float().reshape(-1, 1, 1, 1)
    upright, lying = (stripes(angle, count=80) * flips + 0.1 * drawn(80, angle, side=16) for angle in (90, 0))
    assert classifier_test(upright, lying).statistic < 0.7
    assert classifier_test(upright, lying, features=random_features).statistic > 0.99
    assert mmd_test(upright, lying).p_value < 0.01


@given(st.integers(2, 9), st.integers(2, 9), st.integers(0, 1000))
def test_the_auc_is_that_of_refitting_for_every_fold(n, m, seed):
    left, right = drawn(n, 2 * seed), drawn(m, 2 * seed + 1, mean=0.1)
    found = classifier_test(left, right, permutations=3, seed=seed)
    rng = torch.Generator().manual_seed(seed)
    count = min(measures.FOLDS, n, m)
    folds = torch.cat([torch.randperm(size, generator=rng) % count for size in (n, m)]).numpy()
    x = torch.cat([left, right]).flatten(1).double().numpy()
    x -= x.mean(0)
    y = np.repeat([1.0, 0.0], [n, m])
    ridge = Ridge(alpha=(x**2).sum(1).mean() + 1e-6, fit_intercept=False)
    aucs = []
    for fold in range(count):
        fitted = ridge.fit(x[folds != fold], (y - y.mean())[folds != fold])
        aucs.append(roc_auc_score(y[folds == fold], fitted.predict(x[folds == fold]).round(6)))
    assert found.statistic == pytest.approx(np.mean(aucs), abs=1e-9)


def test_every_relabelling_keeps_the_shares_of_every_fold():
    folds = torch.tensor([0, 0, 0, 1, 1, 1, 1, 2, 2])
    is_left = torch.tensor([True, False, False, True, True, False, False, True, False])
    labels = measures._relabelled(is_left, folds, 500, torch.Generator().manual_seed(0))
    assert (labels[:, 0] == is_left).all()
    for fold in range(3):
        assert (labels[folds == fold].sum(0) == is_left[folds == fold].sum()).all()
    relabellings = labels.T.unique(dim=0)
    assert len(relabellings) == 3 * 6 * 2


def test_the_discrepancy_is_that_of_double_loops():
    left, right = drawn(4, 0), drawn(3, 1, mean=0.2)
    rows = [image.flatten().double().numpy() for image in torch.cat([left, right])]
    pairs = itertools.combinations(rows, 2)
    squares = sorted(float(((a - b) ** 2).sum()) for a, b in pairs)
    median = squares[len(squares) // 2]

    def kernel(a, b):
        square = float(((a - b) ** 2).sum())
        return sum(math.exp(-square / (2 * (width**2) * median)) for width in (0.5, 1, 2)) / 3

    def discrepancy(ours, theirs):
        within = [
            sum(kernel(a, b) for a, b in itertools.permutations(side, 2)) / (len(side) * (len(side) - 1))
            for side in (ours, theirs)
        ]
        between = sum(kernel(a, b) for a in ours for b in theirs) / (len(ours) * len(theirs))
        return sum(within) - 2 * between

    observed = discrepancy(rows[:4], rows[4:])
    found = mmd_test(left, right, permutations=4000)
    assert found.statistic == pytest.approx(observed, abs=1e-12)
    splits = [set(chosen) for chosen in itertools.combinations(range(7), 4)]
    chance = [
        discrepancy([rows[i] for i in chosen], [rows[i] for i in range(7) if i not in chosen]) for chosen in splits
    ]
    exact = sum(value >= observed - 1e-10 for value in chance) / len(splits)
    assert found.p_value == pytest.approx(exact, abs=4 * math.sqrt(exact * (1 - exact) / 4000) + 1 / 4000)


def test_the_discrepancy_is_unbiased():
    values = [mmd_test(drawn(8, 2 * seed), drawn(8, 2 * seed + 1), permutations=1).statistic for seed in range(300)]
    assert abs(np.mean(values)) < 3.5 * np.std(values) / math.sqrt(300)


@pytest.mark.parametrize("seed", range(10))
def test_relabellings_that_say_the_same_tie(seed):
    """Two and two can be parted in three ways, each under two names that only rounding tells apart."""
    assert mmd_test(drawn(2, seed), drawn(2, seed + 100), permutations=500).p_value > 1 / 3 - 0.08


def test_the_auc_of_sides_that_are_alike_is_a_half():
    """Folds drawn without regard to sides would fall below: what is left out is missing on the other side."""
    values = [
        classifier_test(drawn(8, 2 * seed), drawn(8, 2 * seed + 1), permutations=1).statistic for seed in range(300)
    ]
    assert abs(np.mean(values) - 0.5) < 3.5 * np.std(values) / math.sqrt(300)


def with_idle_columns(rows):
    """Two columns that say nothing: one constant, one that only rounding moves."""
    trembling = 0.3 + 1e-7 * torch.arange(len(rows)).remainder(2)
    return torch.cat([rows, torch.full((len(rows), 1), 7.0), trembling[:, None]], 1)


def test_constant_features_do_not_count():
    left, right = drawn(20, 0), drawn(20, 1, mean=0.3)
    plain = mmd_test(left, right, features=lambda x: x.flatten(1))
    padded = mmd_test(left, right, features=lambda x: with_idle_columns(x.flatten(1)))
    assert padded.statistic == pytest.approx(plain.statistic, abs=1e-9)


@pytest.mark.parametrize("measure", [classifier_test, mmd_test])
def test_sides_that_cannot_be_compared_are_refused(measure):
    with pytest.raises(ValueError, match="Expected at least two samples a group"):
        measure(drawn(1, 0), drawn(5, 1))
    with pytest.raises(ValueError, match="all of one shape"):
        measure(drawn(5, 0), drawn(5, 1, side=16))


# Features


@pytest.mark.parametrize(("channels", "side"), [(1, 8), (3, 8), (1, 28), (3, 33)])
def test_features_are_a_fixed_map_of_each_image(channels, side):
    images = drawn(200, 0, channels=channels, side=side + side % 2)[..., :side, :side]
    features = random_features(images, width=8)
    assert features.shape == (200, 144)
    assert torch.equal(features, random_features(images, width=8))
    torch.testing.assert_close(random_features(images[150:], width=8), features[150:])
    assert not torch.allclose(features, random_features(images, seed=1, width=8))
    assert (features.std(0) > 0).float().mean() > 0.8


# Orientation


@pytest.mark.parametrize("angle", range(0, 180, 15))
def test_the_spectrum_peaks_where_the_strokes_point(angle):
    spectrum = orientation_spectrum(stripes(angle), bins=12)
    assert int(spectrum.argmax()) == angle // 15
    around = [(angle // 15 + step) % 12 for step in (-1, 0, 1)]
    assert float(spectrum[around].sum()) > 0.8


@given(images_of_any_kind, st.sampled_from([2, 8, 18]))
def test_the_spectrum_turns_with_the_images(images, bins):
    spectrum = orientation_spectrum(images, bins)
    assert float(spectrum.sum()) == pytest.approx(1)
    assert float(spectrum.min()) >= 0

    def is_close(other, expected):
        torch.testing.assert_close(orientation_spectrum(other, bins), expected, rtol=0, atol=1e-9)

    is_close(images.rot90(1, (2, 3)), spectrum.roll(bins // 2))
    is_close(images.rot90(2, (2, 3)), spectrum)
    is_close(images.flip(3), spectrum.flip(0).roll(1))  # an angle a becomes -a; bin 0 stays
    is_close(-images / 2, spectrum)


@pytest.mark.parametrize("side", [1, 2, 3, 8])
def test_the_spectrum_of_a_constant_image_is_uniform(side):
    assert torch.equal(orientation_spectrum(torch.full((3, 1, side, side), 0.3), 4), torch.full((4,), 0.25).double())


# Plain numbers


@given(images_of_any_kind, st.integers(1, 40))
def test_histograms_count_every_pixel_once(images, bins):
    assert float(intensity_histogram(images, bins).sum()) == pytest.approx(1)
    # A value on an edge may fall on either side, by rounding.
    inner = images[(images.double().add(1) * bins / 2 % 1).sub(0.5).abs() < 0.49]
    torch.testing.assert_close(
        intensity_histogram(inner, bins) * inner.numel(),
        torch.from_numpy(np.histogram(inner.double().numpy(), bins, (-1, 1))[0]).double(),
    )


@given(images_of_any_kind)
def test_spread_is_the_mean_over_pairs(images):
    pairs = itertools.combinations(images.double(), 2)
    expected = np.mean([float((a - b).square().mean().sqrt()) for a, b in pairs])
    assert spread(images) == pytest.approx(expected, abs=1e-5)


# Distinct pictures


@pytest.mark.parametrize("count", [1, 2, 7, 30])
def test_as_many_pictures_are_distinct_as_there_are_clusters(count):
    rng = torch.Generator().manual_seed(0)
    centres = torch.randint(2, (count, 1, 16, 16), generator=rng) * 1.6 - 0.8
    copies = centres.repeat(10, 1, 1, 1)
    assert distinct(copies) == pytest.approx(count, rel=0.02)
    flicker = copies + 0.02 * torch.randn(copies.shape, generator=rng)
    assert distinct(flicker) == pytest.approx(count, rel=0.05)


def test_rare_pictures_count_less_than_frequent_ones():
    black, white = -torch.ones(1, 1, 8, 8), torch.ones(1, 1, 8, 8)
    images = torch.cat([black.expand(9, -1, -1, -1), white])
    assert distinct(images) == pytest.approx(math.exp(-0.9 * math.log(0.9) - 0.1 * math.log(0.1)), rel=0.01)


@given(images_of_any_kind)
def test_distinct_is_between_one_and_all_and_blind_to_order_and_size(images):
    count = distinct(images)
    assert 1 <= count <= len(images)
    assert distinct(images.flip(0)) == pytest.approx(count, abs=1e-6)
    assert distinct(torch.cat([images, images])) == pytest.approx(count, abs=1e-6)
    assert distinct(images.repeat_interleave(2, 2).repeat_interleave(2, 3)) == pytest.approx(count, abs=1e-6)


# Where everything is the same


def degenerate():
    same, other = drawn(1, 0), drawn(1, 1)
    yield "constant", torch.full((6, 1, 8, 8), 0.1), torch.full((6, 1, 8, 8), 0.1)
    yield "grey", torch.zeros(4, 3, 8, 8), torch.zeros(5, 3, 8, 8)
    yield "one image", same.expand(50, -1, -1, -1), same.expand(37, -1, -1, -1)
    yield "two of one", same.expand(2, -1, -1, -1), same.expand(2, -1, -1, -1)
    yield "an image a side", same.expand(20, -1, -1, -1), other.expand(20, -1, -1, -1)
    yield "two a side", drawn(2, 0), drawn(2, 1)
    yield "two and many", drawn(2, 0), drawn(300, 1)
    yield "large and colourful", drawn(3, 0, channels=3, side=64), drawn(3, 1, channels=3, side=64)


@pytest.mark.parametrize(("left", "right"), [pytest.param(*sides, id=name) for name, *sides in degenerate()])
@pytest.mark.parametrize("features", [None, random_features])
@pytest.mark.parametrize("test", TESTS)
def test_degenerate_sides_give_numbers(test, features, left, right):
    found = test(left, right, features=features)
    assert math.isfinite(found.statistic)
    assert 1 / 201 <= found.p_value <= 1
    for side in (left, right):
        assert random_features(side).isfinite().all()
        assert 1 <= distinct(side) <= len(side)
        assert math.isfinite(spread(side))


@pytest.mark.parametrize("count", [2, 5, 50, 301])
@pytest.mark.parametrize("features", [None, random_features])
@pytest.mark.parametrize("level", [0.1, 1 / 3, -1.0])
def test_one_image_on_both_sides_is_no_difference(level, features, count):
    """Rounding, which depends on where a row lies, must not look like a difference."""
    image = (level + drawn(1, 3, side=14)).clamp(-1, 1)
    left, right = image.expand(count, -1, -1, -1), image.expand(count + 3, -1, -1, -1)
    auc, mmd = classifier_test(left, right, features=features), mmd_test(left, right, features=features)
    assert (auc.statistic, auc.p_value) == (0.5, 1)
    assert mmd.statistic == pytest.approx(0, abs=1e-9)
    assert mmd.p_value == 1
    assert distinct(left) == pytest.approx(1)
    assert spread(left) == 0


@pytest.mark.parametrize("test", TESTS)
def test_a_seed_fixes_everything_and_leaves_the_global_generator_alone(test):
    left, right = drawn(20, 0), drawn(20, 1, mean=0.05)
    before = torch.get_rng_state()
    assert test(left, right, seed=3) == test(left, right, seed=3)
    assert len({test(left, right, seed=seed).p_value for seed in range(5)}) > 1
    assert torch.equal(torch.get_rng_state(), before)
