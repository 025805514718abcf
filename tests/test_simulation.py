"""The one curator: exact bounded sums, noise of the promised size, charged before anything is read."""

import dataclasses
import functools
import itertools
import math

import numpy as np
import pytest
import torch
import toys
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from toys import vectors

from fedlens.algorithms import AdaptiveClip, FedAvgGan
from fedlens.core import trees
from fedlens.core.randomness import Randomness
from fedlens.curators.contributions import Work, one_by_one
from fedlens.curators.engine import Engine
from fedlens.curators.protocol import PrivacySpentError
from fedlens.curators.simulated import Question, SimulatedCurator
from fedlens.data.population import Population
from fedlens.ledger import Account, Ledger
from fedlens.privacy import Everyone, L2Clip, Poisson, RowClip, TopKSign, Unit, UpdateAndBit

MESSAGE = {"m": torch.zeros(1)}
ENGINES = [Engine(run=one_by_one), Engine(chunk=3), Engine(chunk=100)]
ENGINE_NAMES = ["one by one", "chunks of 3", "one chunk"]
plan = functools.partial(toys.plan, releases=3, noise=0.0, expected=1.0)


def send(message, examples, memory):
    """A contribution that is just what the unit holds."""
    return {"update": examples["x"][0]}, memory


def send_with_bit(message, examples, memory):
    return {"update": examples["x"][0, :-1], "within": examples["x"][0, -1]}, memory


def in_rows(rows):
    def send_rows(message, examples, memory):
        return {"update": examples["x"][0].unflatten(0, (rows, -1))}, memory

    return send_rows


def bounded_sum(curator, contribute, message, cohort):
    work = Work(contribute=contribute, bound=curator._plan.bound, grid=curator._plan.grid)
    shape = curator._shape(work, message)
    question = Question(name="label", work=work, message=message, cohort=np.asarray(cohort), shape=shape)
    return trees.scaled(curator._bounded_sum(question), curator._plan.grid)


def entries(ledger):
    return ledger.spent("run", "train")


@pytest.fixture(params=["fixed clip", "adaptive clip"])
def algorithm(request, gan):
    adaptive = AdaptiveClip(start=0.05, bit=0.3) if request.param == "adaptive clip" else None
    return FedAvgGan(gan=gan, batch=3, local_steps=3, local_rate=0.01, adaptive=adaptive, generator_batch=8)


def bound_for(algorithm, norm=0.05):
    return UpdateAndBit(bit=algorithm.adaptive.bit) if algorithm.adaptive else L2Clip(norm=norm)


def first_message(algorithm):
    return algorithm.message(algorithm.start(), torch.Generator().manual_seed(0))


# Vectorised and one by one


@pytest.fixture
def population(request, users):
    return users.by_example() if request.param is Unit.EXAMPLE else users


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("chunk", [1, 3, 7, 100])
@pytest.mark.parametrize("population", [Unit.USER, Unit.EXAMPLE], indirect=True)
def test_vectorised_equals_one_by_one(curator_of, algorithm, population, chunk, workers):
    unit = Unit.EXAMPLE if population.name.endswith("examples") else Unit.USER
    promised = plan(bound=bound_for(algorithm), unit=unit)
    cohort = np.flatnonzero(np.random.default_rng(0).random(len(population)) < 0.7)
    message, sums = first_message(algorithm), []
    for engine in (Engine(run=one_by_one), Engine(chunk=chunk, workers=workers)):
        curator = curator_of(population, promised, engine=engine, examples_per_unit=algorithm.examples_per_unit)
        sums.append(bounded_sum(curator, algorithm.critic_update, message, cohort))
    torch.testing.assert_close(*sums, rtol=1e-4, atol=1e-6 * promised.bound.norm)
    assert trees.norm(sums[0]) > 0.1 * promised.bound.norm


def test_one_by_one_equals_a_loop_over_users_without_padding(curator_of, algorithm, users):
    """The oracle's oracle: every user alone, with its own examples and nothing else."""
    promised, message = plan(bound=bound_for(algorithm), expected=5.0), first_message(algorithm)
    total = None
    for start, count in zip(users.starts, users.counts, strict=True):
        own = {"x": torch.from_numpy(users.columns["x"][start : start + count]), "mask": torch.ones(count)}
        bounded = promised.bound(algorithm.critic_update(message, own, {})[0])
        total = bounded if total is None else trees.add(total, bounded)
    answer = curator_of(users, promised, engine=Engine(run=one_by_one)).noisy_mean(algorithm.critic_update, message)
    torch.testing.assert_close(answer, trees.scaled(total, 1 / 5.0), rtol=1e-4, atol=1e-6 * promised.bound.norm)
    assert trees.norm(answer) > 0.1 * promised.bound.norm


def test_the_measured_engine_gives_the_same_answer(users, algorithm):
    promised, message = plan(bound=bound_for(algorithm), expected=5.0), first_message(algorithm)
    account = Account(run="run", population="users", simulated=True)
    surroundings = {"account": account, "randomness": Randomness.seeded(1)}
    measured = SimulatedCurator(users, promised, ledger=Ledger(), **surroundings)
    oracle = SimulatedCurator(users, promised, ledger=Ledger(), engine=Engine(run=one_by_one), **surroundings)
    answers = [curator.noisy_mean(algorithm.critic_update, message) for curator in (measured, oracle)]
    assert measured.engine is not None
    torch.testing.assert_close(*answers, rtol=1e-4, atol=1e-6 * promised.bound.norm)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("chunk", [1, 4, 100])
def test_a_gpu_gives_the_same_answer(curator_of, algorithm, users, chunk):
    promised, message = plan(bound=bound_for(algorithm), noise=0.5, expected=5.0), first_message(algorithm)
    oracle = curator_of(users, promised, engine=Engine(run=one_by_one)).noisy_mean(algorithm.critic_update, message)
    curator = curator_of(users, promised, engine=Engine(device="cuda", chunk=chunk))
    answer = trees.moved(curator.noisy_mean(algorithm.critic_update, message), "cpu")
    torch.testing.assert_close(answer, oracle, rtol=1e-3, atol=1e-4 * promised.bound.norm)


# Exact sums


@pytest.fixture(scope="module")
def rows():
    return np.random.default_rng(3).standard_normal((40, 7)) * np.logspace(-6, 3, 40)[:, None]


@pytest.mark.parametrize("norm", [0.05, 1.0, 1000.0])
def test_sums_are_exact_whatever_the_order_the_chunks_and_the_threads(curator_of, rows, norm):
    promised, people = plan(bound=L2Clip(norm=norm)), vectors(rows)
    steps = sum(
        torch.trunc(promised.bound({"update": row})["update"].double() / promised.grid)
        for row in torch.from_numpy(people.columns["x"])
    )
    order = np.random.default_rng(0).permutation(40)
    for cohort, (chunk, workers) in itertools.product(
        (np.arange(40), np.arange(40)[::-1], order), [(1, 1), (3, 1), (7, 2), (100, 1)]
    ):
        curator = curator_of(people, promised, engine=Engine(chunk=chunk, workers=workers))
        total = bounded_sum(curator, send, MESSAGE, cohort)["update"]
        assert total.dtype == torch.float64
        assert torch.equal(total, steps * promised.grid)


def test_the_grid_is_a_power_of_two_far_below_the_bound():
    for norm in (1e-3, 0.05, 1.0, 3.0, 1e4):
        grid = plan(bound=L2Clip(norm=norm)).grid
        assert math.frexp(grid)[0] == 0.5
        assert norm * 2**-25 < grid <= norm * 2**-24


def test_quiet_contributions_arrive_almost_unchanged(curator_of, rows):
    quiet = rows[:20]
    answer = curator_of(vectors(quiet), plan(bound=L2Clip(norm=100.0))).noisy_mean(send, MESSAGE)["update"]
    np.testing.assert_allclose(answer.numpy(), quiet.sum(0), rtol=1e-6, atol=20 * 100 * 2.0**-24)


# Nobody moves the sum by more than the bound

BOUNDS = [
    (L2Clip(norm=1.0), send),
    (L2Clip(norm=0.05), send),
    (L2Clip(norm=30.0), send),
    (UpdateAndBit(bit=0.1), send_with_bit),
    (UpdateAndBit(bit=1.0), send_with_bit),
    (UpdateAndBit(bit=10.1), send_with_bit),
    (RowClip(row_norm=0.3, rows=2), in_rows(2)),
    (RowClip(row_norm=7.0, rows=4), in_rows(4)),
    (TopKSign(k=1, rows=2), in_rows(2)),
    (TopKSign(k=3, rows=1), in_rows(1)),
    (TopKSign(k=9, rows=4), in_rows(4)),
]
LOUDNESS = st.floats(width=32, allow_nan=True, allow_infinity=True)


@pytest.mark.parametrize(("bound", "contribute"), BOUNDS, ids=[repr(bound) for bound, _ in BOUNDS])
@given(rows=arrays.arrays(np.float32, st.tuples(st.integers(1, 5), st.just(4)), elements=LOUDNESS))
def test_nobody_moves_the_sum_beyond_the_bound(bound, contribute, rows):
    promised, people = plan(bound=bound), vectors(rows)
    account = Account(run="run", population="vectors", simulated=True)
    curator = SimulatedCurator(
        people,
        promised,
        ledger=Ledger(),
        account=account,
        randomness=Randomness.seeded(0),
        engine=Engine(chunk=2),
    )
    whole = bounded_sum(curator, contribute, MESSAGE, np.arange(len(people)))
    for unit in range(len(people)):
        without = bounded_sum(curator, contribute, MESSAGE, np.delete(np.arange(len(people)), unit))
        moved = [whole[name] - without[name] for name in whole]  # exact: both are whole steps of the grid
        square = math.fsum(value**2 for leaf in moved for value in leaf.flatten().tolist())
        assert square <= promised.sensitivity**2


@pytest.mark.parametrize("bit", [0.1, 0.3, 1.0, 3.3, 10.1, 1000.1])
def test_the_loudest_update_and_bit_stay_within_their_joint_bound(bit):
    bound = UpdateAndBit(bit=bit)
    for update, within in itertools.product(([3e4, 4e4, 0.1], [0.6, 0.8, 0.0], [0.0] * 3), (bit, -bit, 1e9)):
        sent = bound({"update": torch.tensor(update), "within": torch.tensor(within)})
        square = math.fsum(v**2 for leaf in sent.values() for v in leaf.double().flatten().tolist())
        assert square <= 1 + bit**2


def test_a_bit_that_is_a_vector_is_bounded_all_the_same():
    sent = UpdateAndBit(bit=0.5)({"update": torch.ones(3), "within": torch.full((9,), 0.5)})
    assert trees.norm(sent) <= UpdateAndBit(bit=0.5).norm


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_contributions_of_any_precision_are_bounded(curator_of, dtype):
    def contribute(message, examples, memory):
        return {"update": examples["x"][0].to(dtype)}, memory

    rows = np.random.default_rng(0).uniform(1, 200, (12, 9))
    curator = curator_of(vectors(rows), plan(), engine=Engine(chunk=4))
    for unit in range(12):
        alone = bounded_sum(curator, contribute, MESSAGE, [unit])["update"]
        assert math.fsum(value**2 for value in alone.tolist()) <= 1.0
        assert alone.norm() > 0.9


@pytest.mark.parametrize("norm", [1e-40, 1e-30, 1e-25, 1e-10, 1e10, 1e25, 1e38])
def test_extreme_bounds_are_refused_or_hold(curator_of, norm):
    try:
        promised = plan(bound=L2Clip(norm=norm))
    except ValueError:
        return
    for scale in (1e-2, 1e2, 1e4):
        loud = np.array([[3, 4, 5]]) * min(norm * scale, 1e37)
        total = bounded_sum(curator_of(vectors(loud), promised), send, MESSAGE, [0])["update"]
        assert math.hypot(*total.tolist()) <= norm


@pytest.mark.parametrize("loudness", [1e3, 1e6, 1e12, 1e20, 1e30, math.inf, math.nan])
@pytest.mark.parametrize("engine", ENGINES, ids=ENGINE_NAMES)
def test_nobody_however_loud_moves_a_round_of_training_beyond_the_bound(curator_of, algorithm, users, engine, loudness):
    promised, message = plan(bound=bound_for(algorithm)), first_message(algorithm)
    x = users.columns["x"].copy()
    with np.errstate(over="ignore"):
        x[: users.counts[0]] *= np.float32(loudness)
    loud = dataclasses.replace(users, columns={"x": x})
    everyone = np.arange(len(users))
    curator = curator_of(loud, promised, engine=engine)
    whole = bounded_sum(curator, algorithm.critic_update, message, everyone)
    without = bounded_sum(curator, algorithm.critic_update, message, everyone[1:])
    assert all(leaf.isfinite().all() for leaf in whole.values())
    assert trees.norm(trees.add(whole, without, -1.0)).item() <= promised.sensitivity


@pytest.mark.parametrize("chunk", [1, 3, 7, 100])
def test_a_unit_moves_the_sum_by_its_own_contribution_and_nothing_else(curator_of, algorithm, users, chunk):
    """Exactly: the others must not even round differently because somebody is missing from their chunk."""
    message, everyone = first_message(algorithm), np.arange(len(users))
    curator = curator_of(users, plan(bound=bound_for(algorithm)), engine=Engine(chunk=chunk))
    whole = bounded_sum(curator, algorithm.critic_update, message, everyone)
    for unit in (0, 5, 10):
        own = bounded_sum(curator, algorithm.critic_update, message, [unit])
        without = bounded_sum(curator, algorithm.critic_update, message, np.delete(everyone, unit))
        assert all(torch.equal(whole[name], without[name] + own[name]) for name in whole)


@pytest.mark.parametrize("engine", ENGINES, ids=ENGINE_NAMES)
def test_one_users_number_of_examples_does_not_change_what_others_send(curator_of, gan, users, engine):
    """Padding follows from the plan, not from whoever holds the most: with weight decay it would matter."""
    algorithm = FedAvgGan(gan=gan, batch=3, local_steps=3, local_rate=0.01, decay=0.1)
    message, few = first_message(algorithm), np.flatnonzero(users.counts <= 2)
    answers = []
    for people in (users, users.select("few", users=lambda user: len(user["x"]) <= 2)):
        curator = curator_of(
            people, plan(bound=L2Clip(norm=9.0)), engine=engine, examples_per_unit=algorithm.examples_per_unit
        )
        cohort = few if people is users else np.arange(len(few))
        answers.append(bounded_sum(curator, algorithm.critic_update, message, cohort))
    assert trees.norm(answers[0]) > 0.001
    torch.testing.assert_close(*answers, rtol=1e-5, atol=1e-7)


# Broken units


def shout(message, examples, memory):
    raise RuntimeError("broken")


def broken_if_negative(kind):
    def contribute(message, examples, memory):
        x = examples["x"][0]
        if x[0] < 0:  # data-dependent: vmap refuses it, so the chunk runs one by one
            return {
                "raises": lambda: 1 / 0,
                "shape": lambda: {"update": x[:1]},
                "names": lambda: {"other": x},
                "missing": lambda: {},
                "nothing": lambda: None,
            }[kind](), memory
        return {"update": x}, memory

    return contribute


@pytest.mark.parametrize("engine", ENGINES, ids=ENGINE_NAMES)
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_contribution_that_is_not_finite_counts_as_zero_and_the_others_still_count(curator_of, engine, bad):
    people = vectors([[0.1, 0.2], [0.3, bad], [0.1, -0.4], [bad, bad], [0.2, 0.0]])
    answer = curator_of(people, plan(), engine=engine).noisy_mean(send, MESSAGE)["update"]
    assert answer.tolist() == pytest.approx([0.4, -0.2], abs=1e-6)


@pytest.mark.parametrize("engine", ENGINES, ids=ENGINE_NAMES)
def test_a_bit_beside_an_update_that_is_not_finite_is_silenced_too(curator_of, engine):
    people = vectors([[0.1, 0.2, 0.5], [math.nan, 0.2, 0.5], [0.1, 0.2, math.nan]])
    answer = curator_of(people, plan(bound=UpdateAndBit(bit=0.5)), engine=engine).noisy_mean(send_with_bit, MESSAGE)
    assert answer["update"].tolist() == pytest.approx([0.1, 0.2], abs=1e-6)
    assert answer["within"].item() == pytest.approx(0.5, abs=1e-6)


@pytest.mark.parametrize("engine", ENGINES, ids=ENGINE_NAMES)
@pytest.mark.parametrize("kind", ["raises", "shape", "names", "missing", "nothing"])
def test_a_broken_contribution_counts_as_zero_and_the_others_still_count(curator_of, engine, kind):
    people = vectors([[-9.0, 0.2], [0.3, 0.1], [0.1, -0.4], [-1.0, 7.0], [0.2, 0.0]])
    answer = curator_of(people, plan(), engine=engine).noisy_mean(broken_if_negative(kind), MESSAGE)["update"]
    assert answer.tolist() == pytest.approx([0.6, -0.3], abs=1e-6)


def test_a_method_that_never_works_fails_openly_before_anything_is_charged(curator_of):
    ledger = Ledger()
    with pytest.raises(RuntimeError, match="broken"):
        curator_of(vectors([[1.0]]), plan(), ledger=ledger).noisy_mean(shout, MESSAGE)
    assert entries(ledger) == 0


def test_two_methods_that_send_different_shapes_are_both_heard(curator_of):
    """What one method sends must not be taken for what another one sends."""

    def first_few(count):
        def contribute(message, examples, memory):
            return {"update": examples["x"][0, :count]}, memory

        return contribute

    curator = curator_of(vectors([[0.3, 0.4, 0.5]]), plan(), engine=Engine(chunk=3))
    assert curator.noisy_mean(first_few(2), MESSAGE)["update"].tolist() == pytest.approx([0.3, 0.4], abs=1e-6)
    assert curator.noisy_mean(first_few(3), MESSAGE)["update"].tolist() == pytest.approx([0.3, 0.4, 0.5], abs=1e-6)


# Noise


def silence(message, examples, memory):
    """Nobody contributes anything: the answer is the noise."""
    return {"a": torch.zeros(150, 400), "b": torch.zeros(40_000)}, memory


NOBODY = vectors(np.zeros((0, 2)))
CROWDS = {
    "an empty population": (NOBODY, Everyone()),
    "an empty cohort": (vectors(np.ones((3, 2))), Poisson(rate=1e-9, population=3)),
    "a silent cohort": (vectors(np.ones((3, 2))), Everyone()),
}


@pytest.mark.parametrize("crowd", CROWDS)
@pytest.mark.parametrize(
    ("bound", "noise"), [(L2Clip(norm=0.05), 2.0), (L2Clip(norm=3.0), 0.7), (UpdateAndBit(bit=2.0), 1.5)]
)
def test_the_noise_on_the_sum_is_the_multiplier_times_the_bound(curator_of, crowd, bound, noise):
    def contribute(message, examples, memory):
        extra = {"within": torch.zeros(())} if isinstance(bound, UpdateAndBit) else {}
        return silence(message, examples, memory)[0] | extra, memory

    people, sampling = CROWDS[crowd]
    promised = plan(bound=bound, noise=noise, expected=7.0, sampling=sampling)
    answer = curator_of(people, promised).noisy_mean(contribute, MESSAGE)
    drawn = 7.0 * torch.cat([answer["a"].flatten(), answer["b"]]).double()
    scale, count = noise * bound.norm, len(drawn)
    assert count == 100_000
    assert drawn.std().item() == pytest.approx(scale, rel=4 / math.sqrt(2 * count))
    assert abs(drawn.mean().item()) < 4 * scale / math.sqrt(count)
    assert ((drawn / scale) ** 4).mean().item() == pytest.approx(3.0, abs=4 * math.sqrt(96 / count))
    for leaf in answer.values():
        assert leaf.dim() == 0 or leaf.std().item() * 7.0 == pytest.approx(scale, rel=0.02)


def test_noise_lies_on_the_grid_of_the_contributions(curator_of):
    """A sum and its noise that lie on different grids can be told apart by their low bits (Mironov 2012)."""
    promised = plan(bound=L2Clip(norm=1.0), noise=0.1)
    answer = curator_of(NOBODY, promised).noisy_mean(silence, MESSAGE)["b"].double()
    steps = answer[answer.abs() < 0.5] / promised.grid  # such answers lose nothing to single precision
    assert len(steps) > 39_000
    assert torch.equal(steps, steps.round())


def test_rounds_and_leaves_have_noise_of_their_own(curator_of):
    curator = curator_of(NOBODY, plan(noise=1.0))
    first, second = (curator.noisy_mean(silence, MESSAGE) for _ in range(2))
    pairs = [(first["b"], second["b"]), (first["a"].flatten()[:40_000], first["b"])]
    for left, right in pairs:
        assert abs(torch.corrcoef(torch.stack([left, right]))[0, 1]) < 4 / math.sqrt(40_000)


def test_without_noise_there_is_none(curator_of):
    answer = curator_of(NOBODY, plan(noise=0.0)).noisy_mean(silence, MESSAGE)
    assert all(leaf.count_nonzero() == 0 for leaf in answer.values())


@pytest.mark.parametrize("crowd", [1, 2, 10])
def test_the_divisor_is_the_promised_constant_not_the_cohort(curator_of, crowd):
    people = vectors(np.full((crowd, 1), 0.5))
    answer = curator_of(people, plan(expected=4.0)).noisy_mean(send, MESSAGE)["update"]
    assert answer.item() == pytest.approx(crowd * 0.5 / 4.0)


def test_the_divisor_does_not_follow_a_poisson_cohort(curator_of):
    people = vectors(np.eye(64))
    promised = plan(sampling=Poisson(rate=0.5, population=64), expected=32.0, releases=8)
    curator = curator_of(people, promised)
    answers = [curator.noisy_mean(send, MESSAGE)["update"] for _ in range(8)]
    shares = {round(share, 4) for answer in answers for share in answer[answer > 0].tolist()}
    assert shares == {round(1 / 32, 4)}
    assert len({int((answer > 0).sum()) for answer in answers}) > 2  # cohorts of several sizes


# Memory


def test_memory_changes_only_for_units_drawn_and_stays_with_its_unit(curator_of):
    """Everyone announces itself and what it remembers: how often it was asked before."""

    def contribute(message, examples, memory):
        return {"who": examples["x"][0], "asked": examples["x"][0] * memory["asked"]}, {"asked": memory["asked"] + 1}

    promised = plan(bound=L2Clip(norm=100.0), sampling=Poisson(rate=0.4, population=12), releases=6)
    for engine in (Engine(run=one_by_one), Engine(chunk=1), Engine(chunk=5), Engine(chunk=3, workers=2)):
        curator = curator_of(vectors(np.eye(12)), promised, memory={"asked": torch.zeros(12)}, engine=engine)
        asked = torch.zeros(12)
        for _ in range(6):
            answer = curator.noisy_mean(contribute, MESSAGE)
            drawn = answer["who"].round()
            assert torch.equal(answer["asked"].round(), drawn * asked)
            asked += drawn
            assert torch.equal(curator.memory.rows(np.arange(12))["asked"], asked)
        assert asked.min() < asked.max()


@pytest.mark.parametrize("engine", ENGINES, ids=ENGINE_NAMES)
def test_a_broken_unit_keeps_its_memory(curator_of, engine):
    def contribute(message, examples, memory):
        if examples["x"][0, 0] < 0:
            raise RuntimeError("broken")
        return {"update": examples["x"][0]}, {"asked": memory["asked"] + 1}

    memory = {"asked": torch.tensor([5.0, 6.0, 7.0])}
    curator = curator_of(vectors([[0.1], [-0.1], [0.2]]), plan(), memory=memory, engine=engine)
    curator.noisy_mean(contribute, MESSAGE)
    assert curator.memory.rows(np.arange(3))["asked"].tolist() == [6.0, 6.0, 8.0]


# Charging


class Closed(Population):
    """Data that cannot be read."""

    def take(self, *_, **__):
        raise PermissionError("read")


def test_a_release_is_charged_before_data_is_read(curator_of):
    people, ledger = vectors(np.ones((3, 2))), Ledger()
    closed = Closed(people.name, people.columns, people.starts, people.counts)
    with pytest.raises(PermissionError, match="read"):
        curator_of(closed, plan(noise=1.0), ledger=ledger).noisy_mean(send, MESSAGE)
    assert entries(ledger) == 1


def test_a_release_that_cannot_be_charged_reads_nothing(curator_of):
    people, ledger = vectors(np.ones((3, 2))), Ledger()
    closed = Closed(people.name, people.columns, people.starts, people.counts)
    promised = plan(noise=1.0, releases=1)
    curator_of(people, promised, ledger=ledger).noisy_mean(send, MESSAGE)
    with pytest.raises(PrivacySpentError):
        curator_of(closed, promised, ledger=ledger).noisy_mean(send, {"m": torch.ones(1)})


def test_the_curator_stops_at_the_plan(curator_of):
    ledger, promised = Ledger(), plan(noise=1.0, releases=2)
    curator = curator_of(NOBODY, promised, ledger=ledger)
    seen = []
    for _ in range(2):
        seen.append(curator.remaining)
        curator.noisy_mean(send, MESSAGE)
    assert [*seen, curator.remaining] == [2, 1, 0]
    with pytest.raises(PrivacySpentError, match="All 2 releases"):
        curator.noisy_mean(send, MESSAGE)
    assert entries(ledger) == 2


def test_a_fresh_curator_cannot_go_beyond_the_plan_either(curator_of):
    ledger, promised = Ledger(), plan(noise=1.0, releases=2)
    for number in range(2):
        curator_of(NOBODY, promised, ledger=ledger).noisy_mean(send, {"m": torch.tensor([float(number)])})
    with pytest.raises(PrivacySpentError):
        curator_of(NOBODY, promised, ledger=ledger).noisy_mean(send, {"m": torch.tensor([2.0])})


# The same question again


@pytest.fixture
def crowd():
    return vectors(np.random.default_rng(0).standard_normal((20, 500)))


@pytest.fixture
def sampled():
    return plan(noise=0.5, sampling=Poisson(rate=0.5, population=20), releases=5)


def test_the_same_question_gives_the_same_answer_and_is_charged_once(curator_of, crowd, sampled):
    ledger = Ledger()
    answers = []
    for _ in range(3):
        curator = curator_of(crowd, sampled, ledger=ledger, position=1)
        answers.append(curator.noisy_mean(send, MESSAGE)["update"])
    assert torch.equal(answers[0], answers[1])
    assert torch.equal(answers[0], answers[2])
    assert entries(ledger) == 1


def send_twice(message, examples, memory):
    return {"update": 2 * examples["x"][0]}, memory


@dataclasses.dataclass(frozen=True)
class Scaled:
    factor: float

    def send(self, message, examples, memory):
        return {"update": self.factor * examples["x"][0]}, memory


def closure(factor):
    def contribute(message, examples, memory):
        return {"update": factor * examples["x"][0]}, memory

    return contribute


def asked(curator_of, ledger, *, population=NOBODY, promised, contribute=send, message=MESSAGE, **options):
    return curator_of(population, promised, ledger=ledger, **options).noisy_mean(contribute, message)["update"]


CHANGES = {
    "another message": {"message": {"m": torch.tensor([1e-30])}},
    "another position": {"position": 1},
    "another method": {"contribute": send_twice},
    "other settings": {"contribute": Scaled(2.0).send},
    "a method that remembers": {"contribute": closure(3.0)},
    "another secret": {"randomness": Randomness(bytes(31) + b"2", simulated=False)},
    "other examples per unit": {"examples_per_unit": 2},
    "another run": {"run": "other"},
    "another stage": {"stage": "other"},
    "another chunk size": {"engine": Engine(chunk=3)},
}


@pytest.mark.parametrize("change", CHANGES)
def test_another_question_meets_other_noise_and_is_charged(curator_of, change):
    people = vectors(np.zeros((0, 500)))
    ledger, promised = Ledger(), plan(noise=1.0, releases=5)
    base = {"population": people, "promised": promised, "randomness": Randomness(bytes(32), simulated=False)}
    if change == "other settings":
        base["contribute"] = Scaled(1.0).send
    if change == "a method that remembers":
        base["contribute"] = closure(1.0)
    first = asked(curator_of, ledger, **base)
    other = asked(curator_of, ledger, **base | CHANGES[change])
    assert abs(torch.corrcoef(torch.stack([first, other]))[0, 1]) < 0.2
    assert entries(ledger) + ledger.spent("other", "train") + ledger.spent("run", "other") == 2


def test_units_that_remember_something_else_are_asked_another_question(curator_of):
    """A resumed run whose memories are newer than its checkpoint must not meet the old noise."""
    people, promised, ledger = vectors(np.zeros((4, 300))), plan(noise=1.0, releases=5), Ledger()
    secret = Randomness(bytes(32), simulated=False)
    first, same, other = (
        asked(
            curator_of,
            ledger,
            population=people,
            promised=promised,
            randomness=secret,
            memory={"kept": torch.full((4, 1), kept)},
        )
        for kept in (0.0, 0.0, 1.0)
    )
    assert torch.equal(first, same)
    assert abs(torch.corrcoef(torch.stack([first, other]))[0, 1]) < 0.2
    assert entries(ledger) == 2


def test_another_message_draws_another_cohort(curator_of):
    people, promised = vectors(np.eye(200)), plan(sampling=Poisson(rate=0.5, population=200))
    base = {"population": people, "promised": promised}
    messages = ({"m": torch.zeros(1)}, {"m": torch.ones(1)})
    cohorts = [asked(curator_of, Ledger(), **base, message=message) > 0.5 for message in messages]
    together = (cohorts[0] == cohorts[1]).float().mean().item()
    assert 0.35 < together < 0.65


@pytest.mark.parametrize("simulated", [True, False])
def test_the_account_says_whether_the_noise_is_simulated(simulated):
    randomness = Randomness.secret() if simulated else Randomness.seeded(0)
    account = Account(run="run", population="vectors", simulated=simulated)
    with pytest.raises(ValueError, match="simulated"):
        SimulatedCurator(NOBODY, plan(), ledger=Ledger(), account=account, randomness=randomness)


def test_real_noise_differs_from_run_to_run(curator_of, crowd, sampled):
    one, two = (
        curator_of(crowd, sampled, randomness=Randomness.secret()).noisy_mean(send, MESSAGE)["update"] for _ in range(2)
    )
    assert not torch.equal(one, two)
