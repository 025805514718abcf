"""The noise as it leaves the curator: its size, its tails, its independence, and that it is never used twice."""

import math
import multiprocessing

import numpy as np
import pytest
import scipy.stats
import torch

from fedlens.core.randomness import Randomness
from fedlens.curators.engine import Engine
from fedlens.curators.simulated import SimulatedCurator
from fedlens.data.population import Population
from fedlens.ledger import Account, Ledger
from fedlens.privacy import Everyone, L2Clip, Plan

COORDINATES, RELEASES, NOISE, NORM = 40_000, 12, 3.0, 0.5


def silence(message, examples, memory):
    """Contributes nothing, so that what is released is noise and nothing else."""
    return {"a": torch.zeros(COORDINATES // 2), "b": torch.zeros(COORDINATES // 4, 2)}, memory


def curator_of(ledger=None, randomness=None, **options):
    plan = Plan(
        sampling=Everyone(),
        bound=L2Clip(norm=NORM),
        noise_multiplier=NOISE,
        releases=RELEASES,
        expected_contributors=1.0,
    )
    randomness = randomness or Randomness(bytes(range(32)), simulated=False)  # a secret that repeats, for the test
    account = Account(run="run", population="nobody", simulated=randomness.simulated)
    people = Population.from_arrays("nobody", {"x": np.zeros((3, 1), np.float32)}, np.ones(3, np.int64))
    return SimulatedCurator(
        people,
        plan,
        ledger=ledger or Ledger(),
        account=account,
        randomness=randomness,
        engine=Engine(),
        **options,
    )


def asked(curator, value=0.0):
    answer = curator.noisy_mean(silence, {"m": torch.tensor([value])})
    return torch.cat([answer[name].flatten() for name in sorted(answer)]).double().numpy() / (NOISE * NORM)


@pytest.fixture(scope="module")
def noise():
    """Twelve releases of pure noise, in units of the promised standard deviation."""
    curator = curator_of()
    return np.stack([asked(curator) for _ in range(RELEASES)])


def test_every_release_has_the_promised_variance(noise):
    spread = 4.5 * math.sqrt(2 / COORDINATES)
    assert noise.var(1) == pytest.approx(np.ones(RELEASES), abs=spread)
    assert noise.mean(1) == pytest.approx(np.zeros(RELEASES), abs=4.5 / math.sqrt(COORDINATES))


def test_the_noise_is_normal_all_through(noise):
    assert scipy.stats.kstest(noise.flatten(), "norm").pvalue > 1e-4
    assert scipy.stats.kurtosis(noise.flatten()) == pytest.approx(0.0, abs=4.5 * math.sqrt(24 / noise.size))


@pytest.mark.parametrize("threshold", [2.0, 3.0, 4.0, 4.5])
@pytest.mark.parametrize("sign", [-1, 1])
def test_the_tails_are_as_heavy_as_they_must_be(noise, threshold, sign):
    found, expected = (sign * noise > threshold).sum(), noise.size * scipy.stats.norm.sf(threshold)
    low, high = scipy.stats.poisson.ppf([1e-5, 1 - 1e-5], expected)
    assert low <= found <= high


def test_releases_are_independent_of_each_other(noise):
    for values in (noise, noise**2):  # squares tell of a shared size, where signs differ
        others = np.corrcoef(values) - np.eye(RELEASES)
        assert np.abs(others).max() < 5 / math.sqrt(COORDINATES)


@pytest.mark.parametrize("lag", [1, 2, COORDINATES // 4, COORDINATES // 2])
def test_coordinates_are_independent_of_each_other(noise, lag):
    """Half of all coordinates away lies the other number that was made of the same two uniforms."""
    for values in (noise, noise**2):
        left, right = values[:, :-lag].flatten(), values[:, lag:].flatten()
        assert abs(np.corrcoef(left, right)[0, 1]) < 5 / math.sqrt(left.size)


def test_the_released_sum_lies_on_the_promised_grid(noise):
    grid = curator_of()._plan.grid
    steps = noise * NOISE * NORM / grid
    small = np.abs(steps) < 2**24  # single precision, in which answers travel, holds these exactly
    assert small.mean() > 0.2
    np.testing.assert_array_equal(steps[small], np.round(steps[small]))
    assert math.log2(grid) == round(math.log2(grid))


def test_a_resumed_run_meets_its_old_noise_for_old_questions_and_fresh_noise_for_new_ones(noise):
    ledger = Ledger()
    first = asked(curator_of(ledger))
    again = curator_of(ledger)
    np.testing.assert_array_equal(asked(again), first)  # the same question: nothing new is told, nothing is charged
    assert ledger.spent("run", "train") == 1
    other = asked(curator_of(ledger), value=1.0)  # a changed message, at the same place
    assert abs(np.corrcoef(first, other)[0, 1]) < 5 / math.sqrt(COORDINATES)
    assert ledger.spent("run", "train") == 2
    later = asked(curator_of(ledger, position=1))
    np.testing.assert_array_equal(later, noise[1])


def ask_in_a_fork(curator, value, end):
    end.send(asked(curator, value))


def test_forked_processes_share_no_noise_unless_they_ask_the_same(tmp_path):
    """A generator with a state would repeat itself in the child; ours has none, only names."""
    torch.set_num_threads(1)
    fork, answers = multiprocessing.get_context("fork"), []
    for number, value in enumerate((0.0, 0.0, 1.0)):
        curator = curator_of(Ledger(tmp_path / f"{number}.db"))
        mine, theirs = fork.Pipe(duplex=False)
        child = fork.Process(target=ask_in_a_fork, args=(curator, value, theirs))
        child.start()
        answers.append(mine.recv() if mine.poll(60) else None)
        child.join(30)
    same, again, other = answers
    np.testing.assert_array_equal(same, again)
    assert abs(np.corrcoef(same, other)[0, 1]) < 5 / math.sqrt(COORDINATES)


def test_two_runs_never_meet_the_same_noise():
    one, two = (asked(curator_of(randomness=Randomness.secret())) for _ in range(2))
    assert abs(np.corrcoef(one, two)[0, 1]) < 5 / math.sqrt(COORDINATES)
