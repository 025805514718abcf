"""Several models in one vectorised run: each gets what it would have got alone."""

import dataclasses
import itertools

import numpy as np
import pytest
import torch

from fedlens.algorithms import FedAvgGan, run_together
from fedlens.core import trees
from fedlens.core.randomness import Randomness
from fedlens.curators.engine import Engine
from fedlens.curators.protocol import PrivacySpentError
from fedlens.curators.simulated import SimulatedCurator
from fedlens.curators.together import Together
from fedlens.data.population import Population
from fedlens.ledger import Account, Ledger
from fedlens.privacy import Everyone, L2Clip, Plan

PLAN = Plan(sampling=Everyone(), bound=L2Clip(norm=0.05), noise_multiplier=0.5, releases=3, expected_contributors=4.0)


def groups(users):
    """The users and, as other groups, parts of them: of different size."""
    return [
        users,
        dataclasses.replace(users, starts=users.starts[2:], counts=users.counts[2:]),
        dataclasses.replace(users, starts=users.starts[:1], counts=users.counts[:1]),
    ]


def curators(populations, book, algorithm, noise=PLAN.noise_multiplier, device="cpu"):
    return [
        SimulatedCurator(
            population,
            dataclasses.replace(PLAN, noise_multiplier=noise),
            ledger=book,
            account=Account(run=f"run {place}", population="users", simulated=True),
            randomness=Randomness.seeded(place),
            engine=Engine(chunk=2, device=device),
            examples_per_unit=algorithm.examples_per_unit,
        )
        for place, population in enumerate(populations)
    ]


@pytest.fixture
def members(gan):
    one = FedAvgGan(gan=gan, batch=4, local_steps=3, local_rate=0.01, generator_batch=8)
    return [dataclasses.replace(one, seed=seed) for seed in (3, 4, 5)]


def rounds(members, populations, *, noise, chunk, book):
    together = Together(curators(populations, book, members[0], noise), chunk)
    return list(run_together(members, together, [member.start() for member in members]))


def alone(members, populations, *, noise):
    made = curators(populations, Ledger(), members[0], noise)
    return [list(member.run(curator, member.start())) for member, curator in zip(members, made, strict=True)]


@pytest.mark.parametrize("chunk", [2, 100])
def test_together_is_each_alone(users, members, chunk):
    """With noise in the first round, without it in all: the name of a question, and its noise, hang on every bit."""
    book = Ledger()
    for noise, compared in ((PLAN.noise_multiplier, 1), (0.0, PLAN.releases)):
        ours = rounds(members, groups(users), noise=noise, chunk=chunk, book=book if noise else Ledger())
        theirs = alone(members, groups(users), noise=noise)
        assert len(ours) == PLAN.releases
        for number, place in itertools.product(range(compared), range(3)):
            torch.testing.assert_close(ours[number][place], theirs[place][number], rtol=1e-3, atol=1e-4)
    assert [book.spent(f"run {place}", "train") for place in range(3)] == [PLAN.releases] * 3
    first, second, _ = (trees.part(state, "critic")["conv0.weight"] for state in ours[-1])
    assert not torch.allclose(first, second, atol=1e-3), "seeds must matter"


def test_the_bounds_hold_for_the_loud(members):
    """One unit a million times as loud as the others moves its own sum by the bound, and no other sum."""

    def vectors(rows):
        return Population.from_arrays("v", {"x": np.asarray(rows, np.float32)}, np.ones(len(rows), np.int64))

    quiet, loud = [[0.01, 0.0], [0.0, 0.01]], [[0.01, 0.0], [1e6, 0.0]]
    answers = []
    for first in (quiet, loud):
        made = curators([vectors(first), vectors(quiet)], Ledger(), members[0], noise=0.0)
        answers.append(Together(made, 4).noisy_means(send, [{"m": torch.zeros(1)}] * 2))
    moved = trees.norm(trees.add(answers[1][0], answers[0][0], -1.0)) * PLAN.expected_contributors
    assert PLAN.bound.norm * 0.9 < moved <= PLAN.bound.norm + 0.01 + 1e-6
    assert torch.equal(answers[0][1]["update"], answers[1][1]["update"])


def test_a_bad_unit_is_silent(members):
    rows = np.asarray([[0.01, 0.0], [float("nan"), 1.0]], np.float32)
    good = Population.from_arrays("v", {"x": rows[:1]}, np.ones(1, np.int64))
    both = Population.from_arrays("v", {"x": rows}, np.ones(2, np.int64))
    for contribute in (send, moody):
        first = Together(curators([good], Ledger(), members[0]), 4).noisy_means(contribute, [{"m": torch.zeros(1)}])
        second = Together(curators([both], Ledger(), members[0]), 4).noisy_means(contribute, [{"m": torch.zeros(1)}])
        for answer in (first, second):
            assert answer[0]["update"].isfinite().all()


def test_a_spent_plan_answers_no_more(users, members):
    together = Together(curators([users], Ledger(), members[0]), 4)
    for _ in range(PLAN.releases):
        together.noisy_means(send_mean, [{"m": torch.zeros(1)}])
    assert together.remaining == 0
    with pytest.raises(PrivacySpentError):
        together.noisy_means(send_mean, [{"m": torch.zeros(1)}])


def test_members_that_differ_by_more_than_their_seed_are_refused(users, members):
    odd = [members[0], dataclasses.replace(members[1], local_rate=0.5)]
    with pytest.raises(ValueError, match="seed only"):
        next(run_together(odd, Together(curators([users, users], Ledger(), members[0]), 4), [m.start() for m in odd]))


def send(message, examples, memory):
    return {"update": examples["x"][0]}, memory


def send_mean(message, examples, memory):
    return {"update": examples["x"].float().mean()[None] / 255}, memory


def moody(message, examples, memory):
    """Cannot be vectorised: it looks at the numbers."""
    if examples["mask"].sum() and not examples["x"].isfinite().all():
        raise ValueError("quotes private data")
    return {"update": examples["x"][0]}, memory


def test_curators_with_bounds_of_their_own_are_refused(users, members):
    """One pass bounds all; were the loosest taken, the others' sensitivity would be exceeded."""
    first, second = curators([users, users], Ledger(), members[0])
    second._plan = dataclasses.replace(PLAN, bound=L2Clip(norm=1.0))
    with pytest.raises(ValueError, match="one bound"):
        Together([first, second], 4)


on_a_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@on_a_gpu
def test_a_gpu_gives_the_same_answers(users, members):
    answers = {}
    for device in ("cpu", "cuda"):
        made = curators(groups(users), Ledger(), members[0], noise=0.0, device=device)
        states = [trees.moved(member.start(), device) for member in members]
        (first, *_) = run_together(members, Together(made, 4), states)
        answers[device] = [trees.moved(trees.part(state, "critic"), "cpu") for state in first]
    torch.testing.assert_close(answers["cuda"], answers["cpu"], rtol=1e-3, atol=1e-4)


@on_a_gpu
def test_a_row_that_is_not_finite_reaches_nobody_elses_padding(members):
    """Places that are not taken point at row 0, whoever owns it."""
    x = np.full((5, 2), 0.01, np.float32)
    answers = []
    for first in (0.01, float("nan")):
        x[0] = first
        held = Population.from_arrays("v", {"x": x.copy()}, np.array([1, 4]))
        (curator,) = curators([held], Ledger(), members[0], noise=0.0, device="cuda")
        answers.append(curator.noisy_mean(send_sum, {"m": torch.zeros(1)})["update"].cpu())
    assert answers[1].isfinite().all()
    assert answers[1].abs().sum() > 0
    assert (answers[0] - answers[1]).norm() * PLAN.expected_contributors <= PLAN.bound.norm + 1e-6


def send_sum(message, examples, memory):
    return {"update": (examples["x"] * examples["mask"][:, None]).sum(0)}, memory
