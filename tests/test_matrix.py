"""Correlated noise and its price, against explicit matrices, every participation pattern and published values."""

import dataclasses
import functools
import itertools
import json
import math

import dp_accounting
import numpy as np
import pytest
import scipy.stats
import torch
from dp_accounting.rdp import rdp_privacy_accountant
from hypothesis import given
from hypothesis import strategies as st
from scipy import special

from fedlens.privacy import L2Clip, Neighbours, Unit, accounting
from fedlens.privacy.matrix import Banded, BinaryTree, Identity, MatrixPlan, squared_sensitivity

DELTA = 4e-8
SMALL = [Identity(), Banded(bands=1), Banded(bands=2), Banded(bands=3), Banded(bands=5), Banded(bands=40)]
SMALL += [BinaryTree(restart=restart) for restart in (1, 3, 4, 6, 40)]


def plan(strategy=None, noise=4.0, **options):
    """1000 releases, of which a unit takes part in 4, at least 250 apart."""
    settings = {"bound": L2Clip(norm=1.0), "releases": 1000, "participations": 4, "separation": 250, "slots": 1000}
    strategy = strategy or Banded(bands=250)
    return MatrixPlan(strategy=strategy, noise_multiplier=noise, expected_contributors=1000.0, **settings | options)


@functools.cache
def dense(strategy, releases):
    """C, entry by entry, from the definitions in the papers."""
    matrix = np.zeros((releases, releases))
    for i, j in itertools.product(range(releases), repeat=2):
        if isinstance(strategy, Identity):
            matrix[i, j] = i == j
        elif isinstance(strategy, Banded):
            matrix[i, j] = special.binom(2 * (i - j), i - j) / 4.0 ** (i - j) if 0 <= i - j < strategy.bands else 0
        else:
            end = i % strategy.restart + 1
            size = max(2**level for level in range(10) if end % 2**level == 0)
            matrix[i, j] = 0 <= i - j < size
    return matrix / np.linalg.norm(matrix, axis=0) if isinstance(strategy, Banded) else matrix


def patterns(releases, participations, separation):
    """Every way to take part, the fullest and the emptiest included."""
    for count in range(participations + 1):
        for pattern in itertools.combinations(range(releases), count):
            if all(later - earlier >= separation for earlier, later in itertools.pairwise(pattern)):
                yield list(pattern)


def brute_force(strategy, releases, participations, separation):
    """The farthest that C x moves for contributions of +-1, over all patterns and signs."""
    matrix = dense(strategy, releases)
    return max(
        np.linalg.norm(matrix[:, pattern] @ np.array(signs))
        for pattern in patterns(releases, participations, separation)
        for signs in itertools.product([1.0, -1.0], repeat=len(pattern))
    )


def refuted(claimed, strategy, releases, participations, separation):
    """Whether some unit that keeps to the rules moves C x farther than claimed."""
    return brute_force(strategy, releases, participations, separation) > claimed * (1 + 1e-9)


def rounded(values, digits=2):
    return [round(float(value), digits) for value in values]


# The matrices


def test_the_matrices_are_those_of_the_papers():
    nodes = np.array([[1, 0, 0, 0, 0], [1, 1, 0, 0, 0], [0, 0, 1, 0, 0], [1, 1, 1, 1, 0], [0, 0, 0, 0, 1]])
    assert np.array_equal(dense(BinaryTree(restart=4), 5), nodes)
    one, half = 1 / math.sqrt(1.25), 0.5 / math.sqrt(1.25)
    assert dense(Banded(bands=2), 3) == pytest.approx(np.array([[one, 0, 0], [half, one, 0], [0, half, 1]]))
    full = special.binom(2 * np.arange(7), np.arange(7)) / 4.0 ** np.arange(7)
    assert np.convolve(full, full)[:7] == pytest.approx(np.ones(7))  # the square root of the prefix sums


@pytest.mark.parametrize("releases", [1, 2, 7, 13])
@pytest.mark.parametrize("strategy", SMALL)
def test_products_of_columns_and_errors_of_prefixes_are_those_of_the_matrix(strategy, releases):
    matrix = dense(strategy, releases)
    assert matrix.min() >= 0
    assert np.array_equal(matrix, np.tril(matrix))
    for gap in range(releases + 1):
        expected = [0.0] * min(gap, releases) + list(np.diagonal(matrix.T @ matrix, gap) if gap < releases else [])
        assert strategy.products(releases, gap) == pytest.approx(np.array(expected), abs=1e-14)
        assert gap < strategy.reach or not any(expected)
    errors = np.tri(releases) @ np.linalg.inv(matrix)
    assert strategy.prefix_variances(releases) == pytest.approx((errors**2).sum(axis=1))


@pytest.mark.parametrize("bands", [1, 2, 8, 1000])
def test_every_column_of_a_banded_matrix_has_norm_one(bands):
    assert Banded(bands=bands).products(1000, 0) == pytest.approx(np.ones(1000))


# The noise


@pytest.mark.parametrize("releases", [1, 5, 13, 37])
@pytest.mark.parametrize("strategy", SMALL)
def test_the_stream_is_the_dense_solution(strategy, releases):
    rows = np.random.default_rng(0).standard_normal((releases, 3))
    streamed = list(plan(strategy, releases=releases).correlated(iter(rows)))
    assert np.array(streamed) == pytest.approx(np.linalg.solve(dense(strategy, releases), rows), abs=1e-11)


@pytest.mark.parametrize(("strategy", "rows"), [(Identity(), 0), (Banded(bands=8), 7), (BinaryTree(restart=250), 8)])
def test_the_stream_remembers_few_rows_and_goes_on_from_any_of_them(strategy, rows):
    z, memory, resumed = np.random.default_rng(1).standard_normal(600), (), []
    for release in range(600):
        row, memory = strategy.step(tuple(memory), z[release], release, 600)
        resumed.append(row)
        assert len(memory) <= rows
    assert resumed == list(plan(strategy, releases=600).correlated(z))


def test_the_stream_takes_tensors_and_ends_with_the_plan():
    rows = torch.randn(9, 2, generator=torch.Generator().manual_seed(0))
    left = iter(rows)
    streamed = torch.stack(list(plan(Banded(bands=3), releases=7).correlated(left)))
    assert streamed.dtype == torch.float32
    assert streamed.numpy() == pytest.approx(np.linalg.solve(dense(Banded(bands=3), 7), rows[:7].numpy()), abs=1e-5)
    assert len(list(left)) == 2


@pytest.mark.parametrize("strategy", [Banded(bands=32), BinaryTree(restart=250)])
def test_long_streams_stay_stable(strategy):
    """The running sums of streamed noise have the variance that the matrix says, to the last release."""
    z = np.random.default_rng(2).standard_normal((1000, 400))
    sums = np.cumsum(list(plan(strategy).correlated(z)), axis=0)
    ratio = (sums**2).mean(axis=1) / strategy.prefix_variances(1000)
    assert abs(ratio - 1).max() < 7 * math.sqrt(2 / 400)


# The sensitivity


@pytest.mark.parametrize("releases", [1, 5, 8, 9])
@pytest.mark.parametrize("strategy", SMALL)
def test_the_sensitivity_is_what_the_worst_pattern_reaches(strategy, releases):
    for participations, separation in itertools.product([1, 2, 3, 4], [1, 2, 3, 4, releases + 1]):
        derived = math.sqrt(squared_sensitivity(strategy, releases, participations, separation))
        assert derived == pytest.approx(brute_force(strategy, releases, participations, separation), rel=1e-12)


@pytest.mark.parametrize(
    ("strategy", "releases", "participations", "separation"),
    [
        (Banded(bands=16), 16, 5, 1),
        (Banded(bands=7), 16, 4, 2),
        (Banded(bands=16), 20, 3, 4),
        (BinaryTree(restart=7), 16, 5, 1),
        (BinaryTree(restart=16), 16, 4, 3),
        (BinaryTree(restart=12), 20, 3, 2),
    ],
)
def test_where_many_participations_overlap_the_bound_holds_and_is_nearly_reached(
    strategy, releases, participations, separation
):
    derived = math.sqrt(squared_sensitivity(strategy, releases, participations, separation))
    assert not refuted(derived, strategy, releases, participations, separation)
    assert refuted(derived / 1.05, strategy, releases, participations, separation)


@pytest.mark.parametrize(
    ("broken", "strategy", "releases", "participations", "separation"),
    [
        (1.0, Banded(bands=2), 8, 2, 4),  # forgets that a unit takes part twice
        (math.sqrt(2), Banded(bands=5), 8, 2, 2),  # takes columns that overlap for orthogonal ones
        (math.sqrt(2), BinaryTree(restart=4), 8, 2, 4),  # forgets that a release is in several nodes
        (math.sqrt(2 * 2), BinaryTree(restart=4), 8, 2, 4),  # forgets one level of the tree
        (math.sqrt(2 * 3), BinaryTree(restart=8), 8, 2, 4),  # restarts later than a unit comes back
    ],
)
def test_a_broken_sensitivity_is_refuted(broken, strategy, releases, participations, separation):
    """The check itself: it lets the derived number pass and catches plausible mistakes."""
    assert refuted(broken, strategy, releases, participations, separation)
    derived = math.sqrt(squared_sensitivity(strategy, releases, participations, separation))
    assert not refuted(derived, strategy, releases, participations, separation)


@pytest.mark.parametrize("strategy", [Identity(), Banded(bands=6), BinaryTree(restart=8)])
def test_no_vectors_move_it_farther_than_equal_ones(strategy):
    """|sum c_i u_i|^2 = sum <c_i, c_j> <u_i, u_j> <= sum |<c_i, c_j>|, whatever the dimension."""
    rng, derived = np.random.default_rng(3), math.sqrt(squared_sensitivity(strategy, 8, 3, 2))
    for pattern in patterns(8, 3, 2):
        vectors = rng.standard_normal((20, len(pattern), 3))
        vectors /= np.linalg.norm(vectors, axis=-1, keepdims=True)
        moved = np.linalg.norm(dense(strategy, 8)[:, pattern] @ vectors, axis=(1, 2))
        assert moved.max(initial=0.0) <= derived * (1 + 1e-12)


@pytest.mark.parametrize("strategy", [Banded(bands=3), BinaryTree(restart=3)])
def test_replacing_moves_it_twice_as_far_and_no_farther(strategy):
    """One unit leaves with its pattern and another comes with any other pattern."""
    options = {"releases": 6, "participations": 2, "separation": 3, "bound": L2Clip(norm=0.5)}
    replaced = plan(strategy, neighbours=Neighbours.REPLACE_ONE, **options)
    matrix = 0.5 * dense(strategy, 6)
    moved = max(
        np.linalg.norm(matrix[:, left].sum(axis=1) + matrix[:, right].sum(axis=1))
        for left, right in itertools.product(patterns(6, 2, 3), repeat=2)
    )
    assert replaced.sensitivity == pytest.approx(moved)
    assert replaced.sensitivity == pytest.approx(2 * plan(strategy, **options).sensitivity)


def test_the_matrices_of_long_runs_are_priced_quickly():
    """Overlapping bands: the first column, and those at the separation after it, are the worst in the limit."""
    full = Banded(bands=1000)
    root = np.cumprod(np.concatenate([[1.0], 1 - 0.5 / np.arange(1.0, 1000)]))
    columns = np.stack([np.concatenate([np.zeros(start), root[: 1000 - start]]) for start in (0, 250, 500, 750)])
    unit = columns / np.linalg.norm(columns, axis=1, keepdims=True)
    derived = math.sqrt(squared_sensitivity(full, 1000, 4, 250))
    assert np.linalg.norm(unit.sum(axis=0)) <= derived <= 1.02 * np.linalg.norm(unit.sum(axis=0))


# What it costs


@pytest.mark.parametrize(
    "strategy", [Identity(), Banded(bands=3), Banded(bands=5), BinaryTree(restart=3), BinaryTree(restart=6)]
)
def test_the_densities_of_the_worst_neighbours_are_as_close_as_claimed(strategy):
    """What is published, the correlated rows, with a unit and without it: their log ratio, sample by sample."""
    own = plan(strategy, noise=1.5, releases=6, participations=2, separation=3, bound=L2Clip(norm=2.0))
    epsilon = own.epsilon(1e-2)
    noise = np.array(list(own.correlated(own.stddev * np.random.default_rng(4).standard_normal((6, 200_000)))))
    inverse = np.linalg.inv(dense(strategy, 6))
    world = scipy.stats.multivariate_normal(cov=own.stddev**2 * inverse @ inverse.T)
    shifts = [2.0 * np.isin(np.arange(6), pattern) for pattern in patterns(6, 2, 3)]
    worst = max(shifts, key=lambda shift: np.linalg.norm(dense(strategy, 6) @ shift))
    loss = world.logpdf(noise.T) - world.logpdf(noise.T + worst)
    assert np.maximum(-np.expm1(epsilon - loss), 0.0).mean() == pytest.approx(1e-2, rel=0.05)
    assert loss.mean() == pytest.approx((own.sensitivity / own.stddev) ** 2 / 2, rel=0.02)


REFERENCE = {  # noise multiplier: the tree by Renyi DP, the tree exactly, and unit columns exactly
    1.0: (47.65, 45.66, 12.25),
    4.0: (8.63, 8.18, 2.58),
    7.0: (4.61, 4.36, 1.41),
}


@pytest.mark.parametrize("noise", REFERENCE)
def test_the_pinned_epsilons(noise):
    renyi = rdp_privacy_accountant.RdpAccountant(neighboring_relation=dp_accounting.NeighboringRelation.REPLACE_SPECIAL)
    renyi.compose(dp_accounting.SingleEpochTreeAggregationDpEvent(noise, [250]), 4)
    exact = [
        plan(strategy, noise).epsilon(DELTA) for strategy in (BinaryTree(restart=250), Banded(bands=250), Identity())
    ]
    assert rounded([renyi.get_epsilon(DELTA), *exact]) == [*REFERENCE[noise], REFERENCE[noise][-1]]


@pytest.mark.parametrize(
    ("strategy", "neighbours", "noise"),
    [
        (Identity(), Neighbours.ADD_REMOVE, 4.308),
        (Banded(bands=128), Neighbours.ADD_REMOVE, 4.308),
        (Banded(bands=128), Neighbours.REPLACE_ONE, 8.616),
        (BinaryTree(restart=250), Neighbours.ADD_REMOVE, 12.186),
    ],
)
def test_the_pinned_noise(strategy, neighbours, noise):
    calibrated = plan(strategy, neighbours=neighbours).calibrated(2.38, DELTA)
    assert round(calibrated.noise_multiplier, 3) == noise
    assert 2.38 * (1 - 1e-8) < calibrated.epsilon(DELTA) <= 2.38


def test_the_pinned_errors_of_running_sums():
    """The tree's 43.9 is the plain sum of the nodes that tile a prefix, not Honaker's weighted one."""
    others = [Identity(), BinaryTree(restart=250), *(Banded(bands=bands) for bands in (8, 32, 128, 250))]
    errors = [plan(strategy).calibrated(2.38, DELTA).prefix_error() for strategy in others]
    assert rounded(errors, 1) == [96.4, 43.9, 40.6, 23.6, 15.5, 13.8]
    assert round(plan(Identity(), 0.7882).prefix_error(), 1) == 17.6  # of independent noise under Poisson sampling


@pytest.mark.parametrize(("bands", "published"), [(8, 40.6), (32, 23.6), (128, 15.6), (250, 13.9)])
def test_the_published_errors_leave_the_last_columns_short(bands, published):
    """All columns divided by the norm of the first ones: a Toeplitz matrix, and slightly more noise than needed."""
    root = np.cumprod(np.concatenate([[1.0], 1 - 0.5 / np.arange(1.0, bands)]))
    inverse = [1.0]
    while len(inverse) < 1000:
        recent = inverse[:-bands:-1]
        inverse.append(-float(root[1 : len(recent) + 1] @ recent))
    variances = np.cumsum(np.cumsum(inverse) ** 2) * (root @ root)
    noise = plan().calibrated(2.38, DELTA).noise_multiplier
    toeplitz = noise * math.sqrt(variances.mean())
    assert round(toeplitz, 1) == published
    assert 0.99 * toeplitz < plan(Banded(bands=bands), noise).prefix_error() < toeplitz


def test_correlated_noise_without_sampling_beats_amplified_independent_noise_on_running_sums():
    assert plan(Banded(bands=128)).calibrated(2.38, DELTA).prefix_error() < plan(Identity(), 0.7882).prefix_error()


STRATEGIES = st.one_of(
    st.just(Identity()),
    st.integers(1, 30).map(lambda bands: Banded(bands=bands)),
    st.integers(1, 30).map(lambda restart: BinaryTree(restart=restart)),
)


@given(
    strategy=STRATEGIES,
    releases=st.integers(1, 40),
    participations=st.integers(1, 6),
    separation=st.integers(1, 12),
    noise=st.floats(0.3, 30.0),
)
def test_more_noise_costs_less_and_more_of_anything_else_costs_more(
    strategy, releases, participations, separation, noise
):
    own = plan(strategy, noise, releases=releases, participations=participations, separation=separation)
    cost, changed = own.epsilon(DELTA), functools.partial(dataclasses.replace, own)
    assert changed(noise_multiplier=noise * 1.1).epsilon(DELTA) < cost
    assert own.epsilon(DELTA * 2) < cost
    assert changed(neighbours=Neighbours.REPLACE_ONE).epsilon(DELTA) > cost
    for dearer in ({"participations": participations + 1}, {"releases": releases + 1}):
        assert changed(**dearer).epsilon(DELTA) >= cost * (1 - 1e-9)
    assert changed(separation=separation + 1).epsilon(DELTA) <= cost * (1 + 1e-9)
    assert changed(bound=L2Clip(norm=0.003)).epsilon(DELTA) == pytest.approx(cost)


@given(bands=st.integers(1, 30), participations=st.integers(1, 6), separation=st.integers(1, 12))
def test_more_bands_are_free_up_to_the_separation_and_cost_more_beyond(bands, participations, separation):
    fewer, more = (squared_sensitivity(Banded(bands=n), 30, participations, separation) for n in (bands, bands + 1))
    overlapping = bands >= separation and min(participations, 1 + 29 // separation) > 1
    assert more > fewer if overlapping and bands < 30 else more == pytest.approx(fewer)


@given(strategy=STRATEGIES, epsilon=st.floats(0.01, 60.0), delta=st.sampled_from([1e-9, 1e-5, 0.1]))
def test_calibration_spends_all_of_the_budget_and_no_more(strategy, epsilon, delta):
    calibrated = plan(strategy, releases=40, separation=10).calibrated(epsilon, delta)
    assert epsilon * (1 - 1e-6) < calibrated.epsilon(delta) <= epsilon


def test_independent_noise_costs_what_as_many_plain_releases_do():
    assert plan(Identity()).epsilon(DELTA) == pytest.approx(accounting.gaussian_epsilon(math.sqrt(4) / 4.0, DELTA))
    assert plan(Identity(), separation=400).epsilon(DELTA) == plan(Identity(), participations=3).epsilon(DELTA)
    assert plan(noise=0.0).epsilon(DELTA) == math.inf


# The plan


@pytest.mark.parametrize("strategy", [Identity(), Banded(bands=8), BinaryTree(restart=250)])
def test_a_plan_survives_being_written_down(strategy):
    own = plan(strategy, unit=Unit.SILO, neighbours=Neighbours.REPLACE_ONE, bound=L2Clip(norm=0.05))
    own = own.calibrated(2.0, DELTA)
    again = MatrixPlan.from_dict(json.loads(own.canonical()))
    assert again == own
    assert again.canonical() == own.canonical()
    assert again.strategy == strategy


@pytest.mark.parametrize(
    "wrong",
    [
        {"noise": -1.0},
        {"noise": math.nan},
        {"noise": math.inf},
        {"releases": 0},
        {"participations": 0},
        {"separation": 0},
        {"slots": None},
        {"slots": 249},
        {"unit": Unit.EXAMPLE},
    ],
)
def test_a_plan_that_promises_nonsense_is_refused(wrong):
    with pytest.raises(ValueError, match="Expected"):
        plan(**wrong)


@pytest.mark.parametrize("made", [lambda: Banded(bands=0), lambda: BinaryTree(restart=0)])
def test_a_strategy_of_nothing_is_refused(made):
    with pytest.raises(ValueError, match="Expected"):
        made()


def test_budgets_out_of_reach_are_refused():
    for epsilon, delta in [(0.0, DELTA), (math.inf, DELTA), (1.0, 0.0), (1.0, 1.0), (1e-9, 1e-15)]:
        with pytest.raises(ValueError, match="Expected"):
            plan().calibrated(epsilon, delta)
