"""Times that tell nothing about cohorts; and clocks that are set forward."""

import datetime

import pytest
from toys import START, account, budget, days, item, plan, problems, raw, rows

from fedlens.curators.protocol import PrivacySpentError
from fedlens.ledger import Ledger, LedgerError, storage


def seconds(number):
    return datetime.timedelta(seconds=number)


def test_nothing_in_the_ledger_tells_how_long_a_release_took(address, tmp_path, clock):
    """Two runs whose releases took seconds or minutes, by the size of their cohorts: the same times are booked."""

    def times(run, sizes):
        clock.now = max(clock.now, START)
        book = Ledger(address)
        book.name_witness(str(tmp_path / "witness.db"))
        book.reserve([item(run, plan=plan(len(sizes)))])
        first = len(rows(address))
        for release, size in enumerate(sizes):
            clock.now += seconds(size)
            book.charge(account(run), "train", plan(len(sizes)), release=release, query="a")
        book.close(run)
        return [entry.at for entry in rows(address)[first:]]

    assert times("small", [3, 1, 2]) == times("large", [300, 700, 500]) == ["2030-01-01"] * 4
    assert problems(address) == []
    assert {name for (name,) in raw(tmp_path / "witness.db", "select name from pragma_table_info('witnessed')")} == {
        *("ledger", "number", "hash")
    }


def test_other_entries_keep_their_time_and_order_is_by_number(address, clock):
    book = Ledger(address)
    book.set_budget(budget(9.0))
    book.charge(account(), "train", plan(), release=0, query="a")
    clock.now += seconds(90)
    book.set_budget(budget(8.0))
    book.charge(account(), "train", plan(), release=1, query="a")
    clock.now += days(1)
    book.charge(account("next"), "train", plan(), release=0, query="a")
    assert [(entry.kind, entry.at[:19]) for entry in rows(address)] == [
        ("budget", "2030-01-01T12:00:00"),
        ("reserve", "2030-01-01T12:00:00"),
        ("release", "2030-01-01"),
        ("budget", "2030-01-01T12:01:30"),
        ("release", "2030-01-01"),
        ("reserve", "2030-01-02T12:01:30"),
        ("release", "2030-01-02"),
    ]
    assert problems(address) == []


@pytest.mark.parametrize("hours", [0.0, 11.9])  # noon, and shortly before midnight
def test_a_release_counts_until_its_whole_day_is_older_than_the_window(address, clock, hours):
    clock.now = START + datetime.timedelta(hours=hours)
    book = Ledger(address)
    book.set_budget(budget(window=30.0))
    for release in range(7):
        book.charge(account(), "train", plan(7), release=release, query="a")
    clock.now = START + days(30.5) - seconds(1)
    with pytest.raises(PrivacySpentError):
        book.reserve([item("next", plan=plan(1))])
    clock.now = START + days(30.5)
    book.reserve([item("next", plan=plan(7))])


def test_a_clock_that_goes_back_by_a_day_is_noticed_by_the_day_of_a_release(address, clock):
    book = Ledger(address)
    book.charge(account(), "train", plan(), release=0, query="a")
    clock.now -= days(1)
    with pytest.raises(LedgerError, match="clock that goes forward"):
        book.charge(account(), "train", plan(), release=1, query="a")


# A clock that is set forward


@pytest.fixture
def machine(monkeypatch, clock):
    """How long the machine has run, beside its clock."""
    hands = clock
    hands.boot, hands.running = "first", 1000.0
    monkeypatch.setattr(storage.Sqlite, "running", lambda self: (hands.boot, hands.running))

    def passed(found):
        hands.now += found
        hands.running += found.total_seconds()

    hands.passed = passed
    return hands


@pytest.fixture
def spent(machine, tmp_path):
    book = Ledger(tmp_path / "ledger.db")
    book.set_budget(budget(window=30.0))
    for release in range(7):
        book.charge(account(), "train", plan(7), release=release, query="a")
    return book


def test_a_clock_set_forward_does_not_forget_what_was_spent(spent, machine):
    machine.now += days(40)
    with pytest.raises(LedgerError, match="it was set forward"):
        spent.reserve([item("next", plan=plan(7))])
    spent.reserve([item("elsewhere", population="others")])  # where nothing is forgotten, it does not matter
    spent.request("next", [item("next", plan=plan(7))], recipe="digest")  # asking first does not make it right
    with pytest.raises(LedgerError, match="it was set forward"):
        spent.reserve([item("next", plan=plan(7))])


def test_time_that_passed_is_forgotten_as_it_was_promised(spent, machine):
    machine.passed(days(40))
    spent.reserve([item("next", plan=plan(7))])
    assert "next" in {run["run"] for run in spent.runs()}


def test_a_clock_that_is_a_little_fast_is_no_reason_to_stop(spent, machine):
    machine.passed(days(40))
    machine.now += seconds(50)
    spent.reserve([item("next", plan=plan(7))])
    assert "next" in {run["run"] for run in spent.runs()}


def test_an_owner_who_says_that_the_clock_is_right_is_believed(spent, machine):
    """A machine that slept without counting, say: setting the budget anew is the owner's word."""
    machine.now += days(40)
    spent.set_budget(budget(window=30.0))
    spent.reserve([item("next", plan=plan(7))])
    assert "next" in {run["run"] for run in spent.runs()}


def test_small_steps_do_not_add_up_to_a_jump(spent, machine):
    for number in range(9):
        machine.now += seconds(50)
        try:
            spent.reserve([item(f"free {number}", plan=plan(1), simulated=True)])
            spent.reserve([item(f"tiny {number}", plan=plan(1, noise=1e6))])
        except PrivacySpentError:
            continue
        except LedgerError:
            return
    machine.now += days(40)
    with pytest.raises(LedgerError, match="it was set forward"):
        spent.reserve([item("next", plan=plan(7))])


def test_what_a_machine_that_was_started_anew_says_cannot_be_compared(spent, machine):
    """What remains: whoever starts the machine with a wrong clock, or takes the file elsewhere. The text says so."""
    machine.boot, machine.running = "second", 5.0
    machine.now += days(40)
    spent.reserve([item("next", plan=plan(7))])
    assert "next" in {run["run"] for run in spent.runs()}


def test_the_clock_of_this_very_machine_can_be_read(tmp_path):
    book = Ledger(tmp_path / "ledger.db")
    book.set_budget(budget(window=30.0))
    book.reserve([item()])
    first, second = (entry.facts.get("clock") for entry in rows(tmp_path / "ledger.db"))
    assert (first is None) == (second is None)
    if first:
        assert first["boot"] == second["boot"]
        assert abs(first["ahead"] - second["ahead"]) < 60
