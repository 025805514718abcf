"""The ledger: append-only, durable, never beyond the plan, and what its entries add up to; on SQLite and PostgreSQL."""

import concurrent.futures
import contextlib
import dataclasses
import json
import os

import conftest
import pytest
import warm_python
from toys import DATABASE_ERRORS, DELTA, account, plan, raw, releases, spent, without_privileges

from fedlens.curators.protocol import PrivacySpentError
from fedlens.ledger import Budget, Ledger, LedgerError, Spending, guarantee, is_remote, storage
from fedlens.privacy import Balanced, Everyone, L2Clip, Plan, Poisson, Unit

with contextlib.suppress(ImportError):
    import psycopg


@pytest.fixture
def ledger(address):
    return Ledger(address)


def test_a_release_is_booked_once_and_a_repeated_question_is_free(ledger):
    assert ledger.charge(account(), "train", plan(), release=0, query="a")
    assert not ledger.charge(account(), "train", plan(), release=0, query="a")
    assert ledger.spent("run", "train") == 1


def test_another_question_at_the_same_place_is_another_release(ledger):
    assert ledger.charge(account(), "train", plan(), release=0, query="a")
    assert ledger.charge(account(), "train", plan(), release=0, query="b")
    assert ledger.spent("run", "train") == 2


def test_the_same_question_at_another_place_is_another_release(ledger):
    assert ledger.charge(account(), "train", plan(), release=0, query="a")
    assert ledger.charge(account(), "train", plan(), release=1, query="a")
    assert ledger.spent("run", "train") == 2


def test_the_plan_is_the_limit_and_what_was_booked_can_still_be_repeated(ledger):
    for release in range(2):
        ledger.charge(account(), "train", plan(), release=release, query="a")
    for release, query in ((2, "a"), (0, "b")):
        with pytest.raises(PrivacySpentError, match="All 2 releases"):
            ledger.charge(account(), "train", plan(), release=release, query=query)
    assert not ledger.charge(account(), "train", plan(), release=1, query="a")
    assert ledger.spent("run", "train") == 2


def test_runs_and_stages_have_limits_of_their_own(ledger):
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
def test_a_plan_that_changes_midway_is_refused(ledger, change):
    ledger.charge(account(), "train", plan(), release=0, query="a")
    for release, query in ((1, "a"), (0, "a")):
        with pytest.raises(ValueError, match="'run' began with"):
            ledger.charge(account(), "train", dataclasses.replace(plan(), **change), release=release, query=query)
    assert ledger.spent("run", "train") == 1


@pytest.mark.parametrize("change", [{"population": "others"}, {"part": "low"}, {"simulated": True}])
def test_an_account_that_changes_midway_is_refused(ledger, change):
    """A name used twice must not open a second population for free."""
    ledger.charge(account(), "train", plan(), release=0, query="a")
    for release, query in ((0, "a"), (1, "b")):
        with pytest.raises(ValueError, match="'run'"):
            ledger.charge(account(**change), "train", plan(), release=release, query=query)
    assert ledger.spent("run", "train") == 1


@pytest.mark.parametrize(
    "change", [{"population": "others"}, {"partition": "p", "part": "low"}, {"part": "low"}, {"simulated": True}]
)
def test_an_account_that_changes_between_stages_is_refused(address, change):
    """All stages of a run are priced on one account: the first one's, whatever the later ones say."""
    ledger = Ledger(address)
    ledger.charge(account(), "count", plan(), release=0, query="a")
    with pytest.raises(ValueError, match="'run'"):
        ledger.charge(account(**change), "train", plan(), release=0, query="a")
    assert releases(address) == 1


def test_a_real_stage_of_a_simulated_run_is_not_free(ledger):
    ledger.set_budget(Budget(population="users", epsilon=1.0, delta=DELTA))
    ledger.charge(account(simulated=True), "toy", plan(), release=0, query="a")
    try:
        ledger.charge(account(), "real", plan(1), release=0, query="a")
    except ValueError:
        return  # refused: as good as paid
    assert ledger.spendings("users") == [spent(releases=1)]


@pytest.mark.parametrize("places", [(0, 0, 0, 0), (0, 4, 8, 12), (0, 1, 0, 1), (0, 1, 1, 2)])
def test_taking_turns_is_priced_by_the_turns_that_were_taken(ledger, places):
    """A new question at an old place is another turn of the same group."""
    turns = plan(4, sampling=Balanced(groups=4, population=8))
    taken = []
    for number, place in enumerate(places):
        with contextlib.suppress(PrivacySpentError):
            taken += [place % 4] * ledger.charge(account(), "train", turns, release=place, query=f"question {number}")
    busiest = max(taken.count(group) for group in taken)
    assert guarantee([ledger.spending("run")], DELTA).epsilon >= plan(busiest).epsilon(DELTA)
    assert busiest <= turns.participations


@pytest.mark.parametrize(
    "statement",
    [
        "update entries set body = '{}'",
        "update entries set release = 7 where run = 'run'",
        "delete from entries",
        "delete from entries where release = 0",
        "truncate entries",
    ],
)
def test_entries_can_neither_be_changed_nor_deleted(address, statement):
    if statement.startswith("truncate") and not is_remote(address):
        statement = "delete from entries where true"  # SQLite has no other word for it
    Ledger(address).charge(account(), "train", plan(), release=0, query="a")
    with pytest.raises(DATABASE_ERRORS, match="append-only"):
        raw(address, statement)
    assert Ledger(address).spent("run", "train") == 1


@pytest.mark.parametrize("kind", ["reserve", "release"])
def test_entries_are_unique_even_for_a_hand_written_insert(address, kind):
    Ledger(address).charge(account(), "train", plan(), release=0, query="a")
    columns = "at, kind, who, population, run, stage, release, query, body, signer, signature, hash"
    statement = f"insert into entries (id, {columns}) select id + 10, {columns} from entries where kind = '{kind}'"
    with pytest.raises(DATABASE_ERRORS, match=r"(?i)unique"):
        raw(address, statement)


def test_the_ledger_survives_being_reopened(address):
    Ledger(address).charge(account(), "train", plan(), release=0, query="a")
    again = Ledger(address)
    assert again.spent("run", "train") == 1
    assert not again.charge(account(), "train", plan(), release=0, query="a")
    assert again.spending("run") == spent(releases=1)


def test_two_ledgers_on_one_store_see_each_other(address):
    one, two = Ledger(address), Ledger(address)
    one.charge(account(), "train", plan(), release=0, query="a")
    two.charge(account(), "train", plan(), release=1, query="b")
    with pytest.raises(PrivacySpentError):
        one.charge(account(), "train", plan(), release=2, query="c")


def test_threads_that_share_a_ledger_take_turns(ledger):
    with concurrent.futures.ThreadPoolExecutor(4) as threads:
        booked = [
            threads.submit(ledger.charge, account(), "train", plan(9), release=number, query="a") for number in range(9)
        ]
        assert all(made.result(60) for made in booked)
    assert ledger.spent("run", "train") == 9
    assert ledger.verify() == []


def race(address, name, start, answers):
    """One of several processes that ask for more together than the plan allows; it dies without closing the file."""
    start.wait(60)
    ledger = Ledger(address)
    granted = 0
    for number in range(8):
        try:
            granted += ledger.charge(account(), "train", plan(9), release=number, query=name)
        except PrivacySpentError:
            continue
    answers.send(granted)
    os._exit(0)


def test_processes_that_race_for_the_last_releases_never_exceed_the_plan(address):
    new = warm_python.context()
    start = new.Barrier(2)
    ends = [new.Pipe(duplex=False) for _ in range(2)]
    racers = [
        new.Process(target=race, args=(address, f"racer {i}", start, answers)) for i, (_, answers) in enumerate(ends)
    ]
    for racer in racers:
        racer.start()
    granted = [answer.recv() if answer.poll(90) else None for answer, _ in ends]
    for racer in racers:
        racer.join(30)
    assert None not in granted
    assert sum(granted) == 9
    assert Ledger(address).spent("run", "train") == 9


def test_another_version_is_refused(address):
    Ledger(address)
    raw(address, "update about set version = 99")
    with pytest.raises(ValueError, match=r"version 3, found 99.* newer"):
        Ledger(address)


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


def test_a_read_only_folder_is_refused(open_folder):
    open_folder.chmod(0o555)

    def work():
        with pytest.raises(LedgerError) as refused:
            Ledger(open_folder / "ledger.db")
        return refused.value

    assert "Expected a writable ledger" in without_privileges(work)
    assert list(open_folder.iterdir()) == []


# PostgreSQL, and what teams do with it


@pytest.mark.parametrize(
    "address",
    [
        "postgresql://bob:swordfish@nowhere.invalid/books",
        "postgresql://nowhere.invalid/books?user=bob&password=swordfish",
        "postgresql://nowhere.invalid/books?sslpassword=swordfish",
    ],
)
def test_a_password_in_the_address_is_refused_and_not_repeated(address):
    """The address is kept in the run folder, which is public."""
    with pytest.raises(ValueError, match="no password") as refused:
        Ledger(address)
    assert "swordfish" not in str(refused.value)


def test_a_server_that_is_not_there_is_a_clear_error(tmp_path):
    conftest.needed(conftest.obstacle())
    with pytest.raises(LedgerError, match="Expected a writable ledger in PostgreSQL") as refused:
        Ledger(f"postgresql:///books?host={tmp_path}")
    assert "\n" not in str(refused.value)


def test_a_database_without_a_declared_encoding_holds_a_ledger(postgres):
    """As initdb makes them where no locale is set; text comes back as bytes from there, unless one asks."""
    with postgres.database("encoding 'SQL_ASCII' locale 'C'") as address:
        Ledger(address, who="Żółw").charge(account(), "train", plan(), release=0, query="a")
        assert Ledger(address).spent("run", "train") == 1
        assert Ledger(address).verify() == []
        assert [run["who"] for run in Ledger(address).runs()] == ["Żółw"]


def name_of(address):
    return address.partition("@/")[2].partition("?")[0]


def granted(postgres, address, role, rights):
    """The address for another role, which may do so much with the ledger and owns nothing."""
    with contextlib.suppress(psycopg.errors.DuplicateObject):
        postgres.execute(f"create role {role} login")
    postgres.execute(f"grant {rights} on all tables in schema public to {role}", name_of(address))
    return address.replace("fedlens@", f"{role}@")


def test_a_colleague_who_does_not_own_the_tables_can_work_with_them(postgres):
    with postgres.database() as address:
        Ledger(address).charge(account(), "train", plan(), release=0, query="a")
        theirs = granted(postgres, address, "colleague", "select, insert, update")
        assert Ledger(theirs).charge(account(), "train", plan(), release=1, query="b")
        with pytest.raises(psycopg.Error, match="append-only"):
            raw(theirs, "update entries set body = '{}'")
        assert Ledger(address).spent("run", "train") == 2


def test_an_auditor_who_may_only_read_can_verify(postgres):
    with postgres.database() as address:
        Ledger(address).charge(account(), "train", plan(), release=0, query="a")
        theirs = granted(postgres, address, "auditor", "select")
        assert Ledger(theirs).verify() == []
        with pytest.raises(LedgerError, match="permission denied"):
            Ledger(theirs).charge(account(), "train", plan(), release=1, query="b")


def test_a_stricter_isolation_by_default_does_not_turn_writers_away(postgres):
    """Under it, what a writer sees is older than the lock it waited for."""
    with postgres.database() as address:
        Ledger(address)
        postgres.execute(f"alter database {name_of(address)} set default_transaction_isolation = 'repeatable read'")
        ledgers = {run: Ledger(address) for run in ("one", "two")}
        with psycopg.connect(address) as holder, concurrent.futures.ThreadPoolExecutor() as threads:
            holder.execute("select pg_advisory_xact_lock(%s)", (storage.Postgres._LOCK,))
            waiting = [
                threads.submit(ledger.charge, account(run), "train", plan(), release=0, query="a")
                for run, ledger in ledgers.items()
            ]
            concurrent.futures.wait(waiting, timeout=0.5)
            holder.commit()
            assert [found.result(30) for found in waiting] == [True, True]
        assert Ledger(address).verify() == []


def test_what_is_booked_is_on_disk_whatever_the_server_has_by_default(postgres):
    """Else a crash of the server could lose an entry whose release has left."""
    with postgres.database() as address:
        postgres.execute(f"alter database {name_of(address)} set synchronous_commit = off")
        ledger = Ledger(address)
        with ledger._store.transaction():
            assert ledger._store.rows("show synchronous_commit") != [("off",)]


def test_a_lost_connection_is_a_clear_error_and_nothing_is_booked(postgres):
    with postgres.database() as address:
        ledger, book = Ledger(address), Ledger(address)
        ledger.charge(account(), "train", plan(), release=0, query="a")
        (pid,) = ledger._store.rows("select pg_backend_pid()")[0]
        postgres.execute(f"select pg_terminate_backend({pid})")
        for _ in range(2):
            with pytest.raises(LedgerError, match="Nothing was booked"):
                ledger.charge(account(), "train", plan(), release=1, query="a")
        with pytest.raises(LedgerError):
            ledger.head()
        assert book.spent("run", "train") == 1


@pytest.mark.parametrize("in_ci", [True, False])
def test_a_missing_postgresql_is_a_reason_to_skip_at_a_desk_and_to_fail_in_ci(monkeypatch, in_ci):
    monkeypatch.setenv("CI", "true") if in_ci else monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.fail.Exception if in_ci else pytest.skip.Exception, match="initdb"):
        conftest.needed("PostgreSQL is not installed (initdb)")
    conftest.needed(None)


# What entries add up to


def test_spending_counts_what_was_released_not_what_was_planned(ledger):
    for release in range(3):
        ledger.charge(account(), "train", plan(10), release=release, query="a")
    ledger.charge(account(), "statistics", plan(1, noise=50.0), release=0, query="a")
    assert ledger.spending("run").plans == (plan(3), plan(1, noise=50.0))
    assert ledger.spending("run").account == account()


def test_spending_of_an_unknown_run_is_refused(ledger):
    with pytest.raises(ValueError, match="'nobody'"):
        ledger.spending("nobody")


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


def test_the_simulated_flag_goes_through_the_file(address):
    Ledger(address).charge(account(simulated=True), "train", plan(), release=0, query="a")
    assert guarantee([Ledger(address).spending("run")], DELTA).simulated


def test_a_guarantee_about_nothing_is_refused():
    with pytest.raises(ValueError, match="at least one"):
        guarantee([], DELTA)
