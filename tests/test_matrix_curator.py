"""Correlated noise from the curator: what it is, who takes part, what it costs, and what a resumed run may ask."""

import dataclasses
import datetime
import itertools
import json
import math
import shutil

import numpy as np
import pytest
import torch
from toys import vectors

from fedlens.core.randomness import Randomness
from fedlens.curators.engine import Engine
from fedlens.curators.protocol import PrivacySpentError
from fedlens.curators.together import Together
from fedlens.ledger import Account, Budget, Item, Ledger, Spending, guarantee, storage
from fedlens.privacy import Balanced, Everyone, L2Clip, MatrixPlan, Neighbours, Plan, Unit, accounting
from fedlens.privacy.matrix import Banded, BinaryTree, Identity, squared_sensitivity

DELTA = 1e-5
STRATEGIES = [Identity(), Banded(bands=2), Banded(bands=5), BinaryTree(restart=3)]
NAMES = ["independent", "two bands", "five bands", "tree"]


def plan(strategy=None, *, noise=2.0, releases=6, participations=6, separation=1, **options):
    """Six releases in which everyone takes part, unless told otherwise."""
    settings = {"bound": L2Clip(norm=0.5), "expected_contributors": 4.0} | options
    return MatrixPlan(
        strategy=strategy or Banded(bands=3),
        noise_multiplier=noise,
        releases=releases,
        participations=participations,
        separation=separation,
        **settings,
    )


def plain(releases=3, noise=4.0, **options):
    return Plan(
        sampling=Everyone(),
        bound=L2Clip(norm=1.0),
        noise_multiplier=noise,
        releases=releases,
        expected_contributors=4.0,
        **options,
    )


def strategy_matrix(promised):
    """C: the stream of the identity's rows is its inverse (compared with the papers' matrices in test_matrix)."""
    return np.linalg.inv(np.array(list(promised.correlated(np.eye(promised.releases)))))


def send(message, examples, memory):
    return {"update": examples["x"][0] * message["m"], "within": examples["x"][0, 0]}, memory


def send_less(message, examples, memory):
    return {"update": examples["x"][0] * message["m"]}, memory


def asked(value):
    return {"m": torch.tensor(float(value))}


def sums(curator, questions):
    """One row a release."""
    answers = [curator.noisy_mean(send, asked(question)) for question in questions]
    return torch.stack([torch.cat([answer["update"], answer["within"][None]]) for answer in answers]) * 4.0


def transcript(curator, start=0, stop=6):
    """What all releases say, a question of its own each."""
    return sums(curator, range(1 + start, 1 + stop))


def off_by(rows, expected):
    """The largest error in the covariance of Gaussian rows, in standard deviations of what chance does."""
    variances, count = np.diag(expected), rows.shape[1]
    deviations = np.sqrt((np.outer(variances, variances) + expected**2) / count)
    return (abs(rows @ rows.T / count - expected) / deviations).max()


SOME = vectors(np.random.default_rng(0).standard_normal((5, 3)))


# The noise


@pytest.mark.parametrize("strategy", STRATEGIES, ids=NAMES)
def test_running_sums_of_the_noise_have_the_covariance_of_the_factorization(curator_of, strategy):
    promised, count = plan(strategy), 20_000
    noise = transcript(curator_of(vectors(np.zeros((1, count))), promised)).double().numpy()
    factor = promised.stddev * np.tri(6) @ np.linalg.inv(strategy_matrix(promised))
    assert off_by(np.cumsum(noise, axis=0), factor @ factor.T) < 4.5


def test_noise_and_sums_lie_on_the_grid_of_a_plain_plan(curator_of):
    promised, people = plan(), vectors(np.random.default_rng(0).standard_normal((5, 400)))
    assert promised.grid == dataclasses.replace(plain(), bound=promised.bound).grid == 2.0**-25
    steps = transcript(curator_of(people, promised)).double() / promised.grid
    small = steps[steps.abs() < 2**24]  # answers are single precision: only small ones show their last step
    assert len(small) > 100
    assert torch.equal(small, small.round())


# Who takes part

TURNS = [  # participations, separation, slots, groups
    (6, 1, None, 1),
    (9, 1, None, 1),
    (4, 1, 5, 2),
    (3, 2, 5, 2),
    (2, 2, 5, 3),  # twice at most: turns come less often than the separation asks
    (6, 4, 5, 4),
    (1, 9, 6, 6),
]


@pytest.mark.parametrize("strategy", STRATEGIES, ids=NAMES)
@pytest.mark.parametrize(("participations", "separation", "slots", "groups"), TURNS)
def test_nobody_moves_the_whole_transcript_beyond_the_sensitivity(
    curator_of, strategy, participations, separation, slots, groups
):
    """A unit that vanishes leaves its slot empty; C (x - x') is then all that its data ever did."""
    promised = plan(strategy, noise=0.0, participations=participations, separation=separation, slots=slots)
    assert promised.sampling == (Everyone() if groups == 1 else Balanced(groups=groups, population=slots))
    rows = 1e3 * np.random.default_rng(1).standard_normal((slots or 5, 3))
    rows[0] = 1e3  # this one says nearly the same each time, which is the worst it can do
    whole, matrix, most = (
        transcript(curator_of(vectors(rows), promised)).double().numpy(),
        strategy_matrix(promised),
        0.0,
    )
    for unit in range(len(rows)):
        without = transcript(curator_of(vectors(np.where(np.arange(len(rows))[:, None] == unit, 0, rows)), promised))
        moved = whole - without.double().numpy()
        came = np.flatnonzero(np.abs(moved).sum(axis=1) > 1e-3)
        assert 1 <= len(came) <= participations
        assert (np.diff(came) >= separation).all()
        assert (np.linalg.norm(moved, axis=1) < 0.5).all()
        most = max(most, np.linalg.norm(matrix @ moved))
    assert most <= promised.sensitivity
    if groups == 1:
        assert most > 0.98 * promised.sensitivity


def test_data_that_do_not_fit_the_schedule_are_refused(curator_of):
    turns = plan(participations=3, separation=2, slots=6)
    with pytest.raises(ValueError, match="population=6"):
        curator_of(SOME, turns)
    chosen = dataclasses.replace(vectors(np.ones((6, 3))), selected=True)
    with pytest.raises(ValueError, match="slots depend on data"):
        curator_of(chosen, turns)
    assert curator_of(chosen, plan()).remaining == 6  # everyone always: whom a selection takes in moves nobody's turn


# What it costs


def exact(*mus, delta=DELTA):
    return accounting.gaussian_epsilon(math.sqrt(sum(mu**2 for mu in mus)), delta)


@pytest.mark.parametrize("neighbours", Neighbours)
def test_a_joint_guarantee_is_that_of_the_exact_gaussians(neighbours):
    kind = {"unit": Unit.SILO, "neighbours": neighbours}
    promised, other = plan(participations=3, separation=2, slots=9, **kind), plain(**kind)
    account = Account(run="r", population="p")
    joint = guarantee([Spending(account=account, plans=(promised, other))], DELTA)
    twice = 2 if neighbours == Neighbours.REPLACE_ONE else 1
    mus = twice * math.sqrt(squared_sensitivity(promised.strategy, 6, 3, 2)) / 2.0, twice * math.sqrt(3) / 4.0
    assert joint.epsilon == pytest.approx(exact(*mus), rel=1e-8)
    assert joint.epsilon > 1.05 * max(promised.epsilon(DELTA), other.epsilon(DELTA))
    assert promised.epsilon(DELTA) == pytest.approx(exact(mus[0]), rel=1e-8)
    assert joint.accountant == accounting.EXACT
    assert "9 slots in 2 groups" in joint.sampling
    assert (joint.unit, joint.neighbours) == ("silo", str(neighbours))


def test_a_spending_survives_being_written_down():
    plans = plan(participations=3, separation=2, slots=9), plain(), plan(BinaryTree(restart=3))
    spending = Spending(account=Account(run="r", population="p"), plans=plans)
    again = Spending.from_dict(json.loads(json.dumps(spending.to_dict())))
    assert again == spending
    assert [each.canonical() for each in again.plans] == [each.canonical() for each in plans]


def test_a_stopped_run_owes_the_whole(address):
    promised, account = plan(), Account(run="r", population="p")
    with_all = Spending(account=account, plans=(promised,))
    ledger = Ledger(address)
    ledger.reserve([Item(account=account, stage="train", plan=promised)])
    assert ledger.spendings("p") == []
    assert ledger.spendings("p", reserved=True) == [with_all]
    for release in range(2):
        assert ledger.charge(account, "train", promised, release=release, query=f"n/{release}")
        assert ledger.spending("r") == with_all
    ledger.close("r")
    assert ledger.spendings("p") == ledger.spendings("p", reserved=True) == [with_all]
    untouched = Account(run="other", population="p")
    ledger.reserve([Item(account=untouched, stage="train", plan=promised)])
    ledger.close("other")
    assert ledger.spendings("p", reserved=True) == [with_all]
    assert [entry.facts["returned"] for entry in ledger.entries() if entry.kind == "close"] == [
        {"train": 0},
        {"train": 6},
    ]
    assert ledger.verify() == []
    ledger.close_file()


def test_a_window_forgets_a_run_only_when_its_last_release_is_old(address, monkeypatch):
    """One release within the window brings back the whole mechanism; releases are dated by the day."""
    promised, account = plan(), Account(run="r", population="p")
    ledger = Ledger(address)
    ledger.charge(account, "train", promised, release=0, query="n/0")
    ledger.close("r")
    budget, now = Budget(population="p", epsilon=1.0, delta=DELTA, window=1.0), datetime.datetime.now(datetime.UTC)
    for days, left in [(0, 1), (3, 0)]:
        for store in (storage.Sqlite, storage.Postgres):
            monkeypatch.setattr(store, "now", lambda self, days=days: now + datetime.timedelta(days=days))
        assert [len(found.plans) for found in ledger.spendings("p", budget=budget)] == [1] * left
    ledger.close_file()


def test_what_exceeds_the_budget_is_refused():
    promised, ledger = plan(), Ledger()
    one, two = promised.epsilon(DELTA), exact(*[promised.sensitivity / promised.stddev] * 2)
    ledger.set_budget(Budget(population="p", epsilon=(one + two) / 2, delta=DELTA))
    ledger.charge(Account(run="a", population="p"), "train", promised, release=0, query="n/0")
    ledger.close("a")
    with pytest.raises(PrivacySpentError, match="would take 'p' to epsilon"):
        ledger.reserve([Item(account=Account(run="b", population="p"), stage="train", plan=promised)])
    ledger.set_budget(Budget(population="p", epsilon=1.001 * two, delta=DELTA))  # a thousandth of delta is set aside
    ledger.reserve([Item(account=Account(run="b", population="p"), stage="train", plan=promised)])


# What a resumed run may ask


@pytest.fixture
def begun(curator_of):
    """A run of which four releases were made, and a way to open it again anywhere."""
    ledger, secret = Ledger(), Randomness.secret()

    def opened(position=0, population=SOME, randomness=secret, promised=None):
        return curator_of(population, promised or plan(), ledger=ledger, randomness=randomness, position=position)

    opened.made, opened.ledger = transcript(opened(), stop=4), ledger
    return opened


@pytest.mark.parametrize("strategy", STRATEGIES, ids=NAMES)
def test_a_run_that_is_resumed_anywhere_ends_the_same(curator_of, strategy):
    ledger, randomness = Ledger(), Randomness.secret()
    whole = transcript(curator_of(SOME, plan(strategy), ledger=ledger, randomness=randomness))
    for position in range(6):
        resumed = curator_of(SOME, plan(strategy), ledger=ledger, randomness=randomness, position=position)
        assert torch.equal(transcript(resumed, start=position), whole[position:])
    assert ledger.spent("run", "train") == 6


def test_a_run_that_was_killed_goes_on_where_it_was(begun):
    again = begun(position=2)
    rest = transcript(again, start=2)
    assert torch.equal(rest[:2], begun.made[2:])
    assert again.charged == 6
    assert torch.equal(transcript(begun()), torch.cat([begun.made[:2], rest]))
    with pytest.raises(PrivacySpentError, match="are spent"):
        again.noisy_mean(send, asked(7))


@pytest.mark.parametrize("position", range(4))
def test_another_question_at_a_release_that_was_made_is_refused(begun, position):
    """Its noise would be its own, but it would be one release more than was paid for."""
    curator = begun(position=position)
    for contribute, message in [(send, asked(9)), (send_less, asked(1 + position))]:
        with pytest.raises(PrivacySpentError, match="Expected release 4"):
            curator.noisy_mean(contribute, message)
    assert curator.charged == 4
    assert torch.equal(transcript(curator, start=position, stop=4), begun.made[position:])


def test_no_release_is_left_out(begun):
    with pytest.raises(PrivacySpentError, match="Expected release 4"):
        begun(position=5)
    assert begun.ledger.spent("run", "train") == 4


@pytest.mark.parametrize("strategy", STRATEGIES, ids=NAMES)
@pytest.mark.parametrize("parted", [0, 3], ids=["two ledgers", "a ledger restored"])
def test_histories_that_part_share_no_later_noise(curator_of, tmp_path, strategy, parted):
    """One secret; a backup of the ledger takes the place of the ledger; one question differs, those after it do not.

    The sums are zero, so C times the answers is bare z. Had the histories one row of it in common, that row of
    C (answers - answers') would be that of C (sums - sums'), exactly.
    """
    secret, promised, count = Randomness(bytes(32), simulated=False), plan(strategy), 20_000
    quiet, kept, backup = vectors(np.zeros((1, count - 1))), tmp_path / "ledger.db", tmp_path / "backup.db"

    def told(questions, position):
        ledger = Ledger(kept)
        found = sums(curator_of(quiet, promised, ledger=ledger, randomness=secret, position=position), questions)
        ledger.close_file()
        return found.double().numpy()

    Ledger(kept).close_file()
    before = told(range(1, 1 + parted), 0) if parted else np.empty((0, count))  # nothing was asked yet
    shutil.copy(kept, backup)
    one = told([8, *range(2 + parted, 7)], parted)
    shutil.copy(backup, kept)
    other = told([9, *range(2 + parted, 7)], parted)
    matrix = strategy_matrix(promised)
    noise, other_noise = (matrix @ np.concatenate([before, after]) for after in (one, other))
    rows = np.concatenate([noise, other_noise[parted:]])
    assert len(rows) == 12 - parted
    assert off_by(rows, promised.stddev**2 * np.eye(len(rows))) < 4.5


def test_the_ledger_lists_what_a_stage_was_asked(address):
    ledger, account = Ledger(address), Account(run="r", population="p")
    for release, query in enumerate(["n/c", "n/a", "n/b"]):
        ledger.charge(account, "train", plan(), release=release, query=query)
        ledger.charge(account, "other", plan(), release=release, query=f"o/{query}")
        ledger.charge(Account(run="s", population="p"), "train", plan(), release=release, query=f"m/{query}")
    assert ledger.queries("r", "train") == ["n/c", "n/a", "n/b"]
    assert ledger.queries("r", "absent") == []
    ledger.close_file()


def test_a_run_goes_on_with_its_own_noise_only(begun):
    """Rows of another secret, of other data or of another shape would not cancel what was released."""
    other_data = vectors(SOME.columns["x"][::-1])
    for changed in [{"randomness": Randomness.secret()}, {"population": other_data}]:
        with pytest.raises(PrivacySpentError, match="Expected the noise"):
            begun(position=4, **changed).noisy_mean(send, asked(5))
    with pytest.raises(PrivacySpentError, match="Expected the noise"):
        begun(position=4).noisy_mean(send_less, asked(5))
    with pytest.raises(ValueError, match="account and plan"):
        begun(position=4, promised=plan(noise=3.0)).noisy_mean(send, asked(5))
    assert begun.ledger.spent("run", "train") == 4
    assert len(transcript(begun(position=4), start=4)) == 2


def test_the_ledger_keeps_releases_in_turn_and_to_one_noise(address):
    ledger, account = Ledger(address), Account(run="r", population="p")
    assert ledger.charge(account, "train", plan(), release=0, query="n/a")
    assert not ledger.charge(account, "train", plan(), release=0, query="n/a")
    for release, query in [(0, "n/b"), (0, "m/a"), (2, "n/c"), (1, "m/b"), (1, "nn/b")]:
        with pytest.raises(PrivacySpentError, match="Expected"):
            ledger.charge(account, "train", plan(), release=release, query=query)
    assert ledger.charge(account, "train", plan(), release=1, query="n/b")
    assert ledger.charge(account, "again", plan(), release=0, query="m/a")  # another stage has noise of its own
    ledger.close_file()


def test_no_two_runs_stages_parts_or_data_share_noise(curator_of):
    """With one secret and one question; what differs is whose noise it is."""
    secret, quiet = Randomness.secret(), vectors(np.zeros((5, 3)))
    longer = plan(releases=7, participations=7)
    curators = [
        curator_of(quiet, plan(), randomness=secret),
        curator_of(quiet, plan(), randomness=secret, run="other"),
        curator_of(quiet, plan(), randomness=secret, stage="other"),
        curator_of(vectors(np.zeros((6, 3))), plan(), randomness=secret),
        curator_of(quiet, longer, randomness=secret),
    ]
    noises = [transcript(curator) for curator in curators]
    rows = [tuple(row.tolist()) for noise in noises for row in noise]
    assert len(set(itertools.chain(*rows))) == len(rows) * 4
    again = transcript(curator_of(quiet, plan(), randomness=secret))
    assert torch.equal(again, noises[0])


def test_curators_that_are_asked_at_once_answer_as_each_alone(curator_of):
    plans = plan(), plan(BinaryTree(restart=3))
    alone = [transcript(curator_of(SOME, each, engine=Engine(chunk=5))) for each in plans]
    together = Together([curator_of(SOME, each, engine=Engine(chunk=5)) for each in plans], 5)
    for release in range(6):
        answers = together.noisy_means(send, [asked(1 + release)] * 2)
        for answer, rows in zip(answers, alone, strict=True):
            assert torch.equal(torch.cat([answer["update"], answer["within"][None]]) * 4.0, rows[release])
