"""The ledger: append-only, durable, never beyond the plan, and what its entries add up to."""

import dataclasses
import json
import multiprocessing
import os
import sqlite3

import pytest

from fedlens.curator import PrivacySpentError
from fedlens.ledger import Account, Ledger, LedgerError, Spending, guarantee
from fedlens.privacy import Everyone, L2Clip, Plan, Poisson, Unit

DELTA = 1e-5


def plan(releases=2, noise=5.0, **options):
    settings = {"sampling": Everyone(), "bound": L2Clip(norm=1.0), "expected_contributors": 9.0} | options
    return Plan(noise_multiplier=noise, releases=releases, **settings)


def account(run="run", **options):
    return Account(run=run, **{"population": "users"} | options)


def spent(run="run", *, releases=2, population="users", partition="all", part="all", simulated=False, **options):
    where = {"population": population, "partition": partition, "part": part, "simulated": simulated}
    return Spending(account=account(run, **where), plans=(plan(releases, **options),))


@pytest.fixture
def path(tmp_path):
    return tmp_path / "ledger.db"


def test_a_release_is_booked_once_and_a_repeated_question_is_free():
    ledger = Ledger()
    assert ledger.charge(account(), "train", plan(), release=0, query="a")
    assert not ledger.charge(account(), "train", plan(), release=0, query="a")
    assert ledger.spent("run", "train") == 1


def test_another_question_at_the_same_place_is_another_release():
    ledger = Ledger()
    assert ledger.charge(account(), "train", plan(), release=0, query="a")
    assert ledger.charge(account(), "train", plan(), release=0, query="b")
    assert ledger.spent("run", "train") == 2


def test_the_same_question_at_another_place_is_another_release():
    ledger = Ledger()
    assert ledger.charge(account(), "train", plan(), release=0, query="a")
    assert ledger.charge(account(), "train", plan(), release=1, query="a")
    assert ledger.spent("run", "train") == 2


def test_the_plan_is_the_limit_and_what_was_booked_can_still_be_repeated():
    ledger = Ledger()
    for release in range(2):
        ledger.charge(account(), "train", plan(), release=release, query="a")
    for release, query in ((2, "a"), (0, "b")):
        with pytest.raises(PrivacySpentError, match="All 2 releases"):
            ledger.charge(account(), "train", plan(), release=release, query=query)
    assert not ledger.charge(account(), "train", plan(), release=1, query="a")
    assert ledger.spent("run", "train") == 2


def test_runs_and_stages_have_limits_of_their_own():
    ledger = Ledger()
    for run, stage in (("run", "train"), ("run", "statistics"), ("other", "train")):
        assert ledger.charge(account(run), stage, plan(1), release=0, query="a")
    assert ledger.spent("run", "train") == ledger.spent("other", "train") == 1


@pytest.mark.parametrize(
    "change",
    [
        {"noise_multiplier": 4.9},
        {"releases": 3},
        {"bound": L2Clip(norm=2.0)},
        {"expected_contributors": 8.0},
        {"unit": Unit.EXAMPLE},
        {"sampling": Poisson(rate=0.1, population=10)},
    ],
)
def test_a_plan_that_changes_midway_is_refused(change):
    ledger = Ledger()
    ledger.charge(account(), "train", plan(), release=0, query="a")
    for release, query in ((1, "a"), (0, "a")):
        with pytest.raises(ValueError, match="'run' began with"):
            ledger.charge(account(), "train", dataclasses.replace(plan(), **change), release=release, query=query)
    assert ledger.spent("run", "train") == 1


@pytest.mark.parametrize("change", [{"population": "others"}, {"part": "low"}, {"simulated": True}])
def test_an_account_that_changes_midway_is_refused(change):
    """A name used twice must not open a second population for free."""
    ledger = Ledger()
    ledger.charge(account(), "train", plan(), release=0, query="a")
    for release, query in ((0, "a"), (1, "b")):
        with pytest.raises(ValueError, match="'run'"):
            ledger.charge(account(**change), "train", plan(), release=release, query=query)
    assert ledger.spent("run", "train") == 1


@pytest.mark.parametrize(
    "statement",
    [
        "update entries set body = '{}'",
        "update entries set release = 7 where run = 'run'",
        "delete from entries",
        "delete from entries where release = 0",
    ],
)
def test_entries_can_neither_be_changed_nor_deleted(path, statement):
    Ledger(path).charge(account(), "train", plan(), release=0, query="a")
    raw = sqlite3.connect(path)
    with pytest.raises(sqlite3.DatabaseError, match="append-only"):
        raw.execute(statement)
    raw.close()
    assert Ledger(path).spent("run", "train") == 1


def test_entries_are_unique_even_for_a_hand_written_insert(path):
    Ledger(path).charge(account(), "train", plan(), release=0, query="a")
    raw = sqlite3.connect(path)
    columns = "at, kind, who, population, run, stage, release, query, body, signer, signature, hash"
    with pytest.raises(sqlite3.IntegrityError, match="UNIQUE"):
        raw.execute(f"insert into entries (id, {columns}) select id + 10, {columns} from entries")
    raw.close()


def test_the_ledger_survives_being_reopened(path):
    Ledger(path).charge(account(), "train", plan(), release=0, query="a")
    again = Ledger(path)
    assert again.spent("run", "train") == 1
    assert not again.charge(account(), "train", plan(), release=0, query="a")
    assert again.spending("run") == spent(releases=1)


def test_two_ledgers_on_one_file_see_each_other(path):
    one, two = Ledger(path), Ledger(path)
    one.charge(account(), "train", plan(), release=0, query="a")
    two.charge(account(), "train", plan(), release=1, query="b")
    with pytest.raises(PrivacySpentError):
        one.charge(account(), "train", plan(), release=2, query="c")


def race(path, name, start, answers):
    """One of several processes that ask for more together than the plan allows; it dies without closing the file."""
    start.wait(60)
    ledger = Ledger(path)
    granted = 0
    for number in range(8):
        try:
            granted += ledger.charge(account(), "train", plan(9), release=number, query=name)
        except PrivacySpentError:
            continue
    answers.send(granted)
    os._exit(0)


def test_processes_that_race_for_the_last_releases_never_exceed_the_plan(path):
    spawn = multiprocessing.get_context("spawn")
    start = spawn.Barrier(2)
    ends = [spawn.Pipe(duplex=False) for _ in range(2)]
    racers = [
        spawn.Process(target=race, args=(path, f"racer {i}", start, answers)) for i, (_, answers) in enumerate(ends)
    ]
    for racer in racers:
        racer.start()
    granted = [answer.recv() if answer.poll(90) else None for answer, _ in ends]
    for racer in racers:
        racer.join(30)
    assert None not in granted
    assert sum(granted) == 9
    assert Ledger(path).spent("run", "train") == 9


def test_another_version_is_refused(path):
    Ledger(path)
    raw = sqlite3.connect(path)
    raw.execute("update about set version = 99")
    raw.commit()
    raw.close()
    with pytest.raises(ValueError, match=r"version 2, found 99.* newer"):
        Ledger(path)


def test_a_place_that_cannot_hold_a_ledger_is_refused(tmp_path):
    (tmp_path / "file").write_text("This is no database, and long enough to be read as the header of one." * 9)
    (tmp_path / "folder").mkdir()
    for bad in (tmp_path / "folder", tmp_path / "file"):
        with pytest.raises(LedgerError, match="Expected a writable ledger"):
            Ledger(bad)


def test_a_place_below_a_file_is_refused_too(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(LedgerError, match="Expected a writable ledger"):
        Ledger(tmp_path / "file" / "ledger.db")


@pytest.mark.skipif(os.geteuid() == 0, reason="permissions do not bind the superuser")
def test_a_read_only_folder_is_refused(tmp_path):
    (tmp_path / "locked").mkdir(mode=0o500)
    with pytest.raises(LedgerError, match="Expected a writable ledger"):
        Ledger(tmp_path / "locked" / "ledger.db")


def test_spending_counts_what_was_released_not_what_was_planned():
    ledger = Ledger()
    for release in range(3):
        ledger.charge(account(), "train", plan(10), release=release, query="a")
    ledger.charge(account(), "statistics", plan(1, noise=50.0), release=0, query="a")
    assert ledger.spending("run").plans == (plan(3), plan(1, noise=50.0))
    assert ledger.spending("run").account == account()


def test_spending_of_an_unknown_run_is_refused():
    with pytest.raises(ValueError, match="'nobody'"):
        Ledger().spending("nobody")


def test_spending_survives_json():
    spending = spent(part="low", partition="accuracy", simulated=True, sampling=Poisson(rate=0.1, population=50))
    assert Spending.from_dict(json.loads(json.dumps(spending.to_dict()))) == spending


def test_releases_of_one_run_add_up():
    one = guarantee([spent(releases=1)], DELTA).epsilon
    many = guarantee([spent(releases=10)], DELTA)
    assert many.epsilon > 2 * one
    assert many.epsilon == pytest.approx(plan(10).epsilon(DELTA))
    assert (many.unit, many.neighbours, many.delta) == ("user", "add/remove", DELTA)


def test_parts_of_one_partition_cost_the_maximum():
    low, high = (spent(part, partition="accuracy", part=part, noise=z) for part, z in (("low", 3.0), ("high", 5.0)))
    assert guarantee([low, high], DELTA).epsilon == guarantee([low], DELTA).epsilon
    assert guarantee([low], DELTA).epsilon > guarantee([high], DELTA).epsilon


def test_the_same_part_adds_up():
    one, two = (spent(run, partition="accuracy", part="low") for run in "ab")
    assert guarantee([one, two], DELTA).epsilon == pytest.approx(plan(4).epsilon(DELTA))


def test_different_partitions_add_up():
    """A user is in one part of each: low accuracy and old phone."""
    low = spent("a", partition="accuracy", part="low", noise=3.0)
    high = spent("b", partition="accuracy", part="high", noise=5.0)
    old = spent("c", partition="phone", part="old", noise=4.0)
    joint = Plan(
        sampling=Everyone(),
        bound=L2Clip(norm=1.0),
        noise_multiplier=(1 / 9 + 1 / 16) ** -0.5,
        releases=2,
        expected_contributors=9.0,
    )
    assert guarantee([low, high, old], DELTA).epsilon == pytest.approx(joint.epsilon(DELTA), rel=1e-6)


def test_a_run_on_everyone_adds_to_every_part():
    low = spent("a", partition="accuracy", part="low", noise=3.0)
    whole = spent("b", noise=5.0)
    assert guarantee([low, whole], DELTA).epsilon > guarantee([low], DELTA).epsilon


def test_units_and_kinds_that_do_not_compose_are_refused():
    with pytest.raises(ValueError, match="one unit"):
        guarantee([spent("a"), spent("b", unit=Unit.EXAMPLE)], DELTA)


def test_units_that_do_not_compare_are_refused_across_parts_too():
    """An epsilon per example says nothing about users, so the larger of the two is no guarantee for either."""
    low = spent("a", partition="accuracy", part="low", noise=5.0)
    high = spent("b", partition="accuracy", part="high", noise=3.0, unit=Unit.EXAMPLE)
    with pytest.raises(ValueError, match="one unit"):
        guarantee([low, high], DELTA)


def test_one_simulated_run_makes_the_joint_guarantee_simulated():
    honest, toy = spent("a", part="low", partition="p"), spent("b", part="high", partition="p", simulated=True)
    assert guarantee([honest, toy], DELTA).simulated
    assert "SIMULATED" in guarantee([honest, toy], DELTA).headline
    assert not guarantee([honest], DELTA).simulated


def test_the_simulated_flag_goes_through_the_file(path):
    Ledger(path).charge(account(simulated=True), "train", plan(), release=0, query="a")
    assert guarantee([Ledger(path).spending("run")], DELTA).simulated


def test_a_guarantee_about_nothing_is_refused():
    with pytest.raises(ValueError, match="at least one"):
        guarantee([], DELTA)
