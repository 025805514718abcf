"""The hash chain: whatever is edited, missing, moved or added is found; and surroundings that fail fail clearly."""

import concurrent.futures
import contextlib
import dataclasses
import itertools
import json
import pathlib
import resource
import sqlite3
import types

import hypothesis
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import strategies as st
from toys import (
    DATABASE_ERRORS,
    START,
    account,
    budget,
    days,
    edit,
    entries,
    forged,
    forked,
    insert,
    item,
    plan,
    problems,
    raw,
    rebuilt,
    rows,
    unguarded,
    without_privileges,
)

from fedlens.curators.protocol import PrivacySpentError
from fedlens.ledger import Entry, Ledger, LedgerError, NotApprovedError, is_remote, keys, storage

MODEL = "ab" * 32
FIELDS = [field.name for field in dataclasses.fields(Entry)]
NUMBERS = {"id", "release"}


@pytest.fixture
def made(address):
    """A ledger with entries of every kind, some of them signed; nothing keeps them from being changed."""
    key = Ed25519PrivateKey.generate()
    reviewer, modeler = Ledger(address, who="Ben", key=key), Ledger(address, who="Ada")
    modeler.set_budget(budget(9.0, review=True, reviewers=(keys.public(key),)), why="agreed")
    number = modeler.request("look", [item("look-1", plan=plan(3))], recipe="digest", why="to see")
    reviewer.review(number, approved=True, note="fine")
    modeler.reserve([item("look-1", plan=plan(3))], recipe="digest", why="to see")
    for release in range(2):
        modeler.charge(account("look-1"), "train", plan(3), release=release, query=f"question {release}")
    modeler.close("look-1", model=MODEL)
    reviewer.set_budget(budget(10.0, review=True, reviewers=(keys.public(key),)))
    unguarded(address)
    return types.SimpleNamespace(address=address, key=key, head=reviewer.head(), rows=rows(address), budget=number - 1)


# What is whole


def test_an_untouched_ledger_has_no_problems(made):
    assert [entry.kind for entry in made.rows] == [
        "budget",
        "request",
        "review",
        "reserve",
        "release",
        "release",
        "close",
        "budget",
    ]
    assert problems(made.address) == []
    assert problems(made.address, models={"look-1": MODEL}, written_down=[made.head]) == []


def test_an_empty_ledger_has_no_problems(address):
    assert Ledger(address).verify() == []
    assert Ledger(address).head() == (0, "")


def test_every_head_there_ever_was_still_fits(address):
    book = Ledger(address)
    heads = []
    for release in range(4):
        book.charge(account(), "train", plan(4), release=release, query="a")
        heads.append(book.head())
    assert [number for number, _ in heads] == [2, 3, 4, 5]
    assert book.verify(written_down=heads) == []


def test_names_of_every_alphabet_survive(address):
    book = Ledger(address, who="Zoë 雪 \U0001f512 'quoted' \"twice\" \\ %s ? \n")
    book.reserve([item("läuft/größte", population="人々")], why="weil ; -- drop table entries")
    assert Ledger(address).verify() == []
    (run,) = Ledger(address).runs()
    assert (run["run"], run["population"], run["why"]) == ("läuft/größte", "人々", "weil ; -- drop table entries")


def test_entries_name_everything_that_was_asked_of_them(made):
    """Population, selection, plan, recipe hash, model hash, who, when, why."""
    reserve, release, close = made.rows[3], made.rows[4], made.rows[6]
    assert (reserve.population, reserve.run, reserve.stage, reserve.who) == ("users", "look-1", "train", "Ada")
    facts = reserve.facts
    assert (facts["recipe"], facts["why"], facts["plan"]) == ("digest", "to see", plan(3).to_dict())
    assert (facts["partition"], facts["part"], facts["request"]) == ("all", "all", 2)
    assert (release.population, release.run, release.query) == ("users", "look-1", "question 0")
    assert close.facts == {"model": MODEL, "returned": {"train": 1}}
    assert all(entry.at.endswith("+00:00") for entry in made.rows if entry.kind not in ("release", "close"))
    assert all(len(entry.at) == 10 for entry in (release, close))  # the day alone
    assert all(entry.who in ("Ada", "Ben") for entry in made.rows)


# What was edited


@pytest.mark.parametrize("field", FIELDS)
def test_an_edit_of_any_field_of_any_entry_is_found(made, field):
    for entry in made.rows:
        value = getattr(entry, field)
        edit(made.address, entry.id, **{field: value + 100 if field in NUMBERS else f"{value}x"})
        assert problems(made.address), (field, entry.id)
        edit(made.address, value + 100 if field == "id" else entry.id, **{field: value})
    assert problems(made.address) == []


@pytest.mark.parametrize("field", ["population", "run", "stage", "query", "body", "signer", "signature", "hash", "who"])
def test_a_field_that_was_emptied_is_found(made, field):
    for entry in made.rows:
        if value := getattr(entry, field):
            edit(made.address, entry.id, **{field: ""})
            assert problems(made.address), (field, entry.id)
            edit(made.address, entry.id, **{field: value})
    assert problems(made.address) == []


@hypothesis.given(data=st.data())
@hypothesis.settings(suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture], max_examples=60)
def test_random_edits_are_found(made, data):
    entry, field = data.draw(st.sampled_from(made.rows)), data.draw(st.sampled_from(FIELDS[1:]))
    letters = st.characters(exclude_characters="\0", exclude_categories=["Cs"])
    kind = st.integers(-(2**63), 2**63 - 1) if field in NUMBERS else st.text(letters, max_size=20)
    value, new = getattr(entry, field), data.draw(kind)
    hypothesis.assume(new != value)
    try:
        edit(made.address, entry.id, **{field: new})
    except DATABASE_ERRORS:  # the store itself saw it
        return
    try:
        assert problems(made.address)
    finally:
        edit(made.address, entry.id, **{field: value})
    assert problems(made.address) == []


def test_a_plan_made_cheaper_in_the_books_is_found(made):
    (reserve,) = [entry for entry in made.rows if entry.kind == "reserve"]
    facts = reserve.facts
    facts["plan"]["noise_multiplier"] = 500.0
    edit(made.address, reserve.id, body=json.dumps(facts, sort_keys=True))
    assert problems(made.address) == [f"entry {reserve.id} was edited, or is not in its place"]


@pytest.mark.parametrize("change", [str.upper, lambda text: f"{text[:2]} {text[2:]}", lambda text: f"{text} "])
def test_a_signature_that_was_only_written_differently_was_edited_too(made, change):
    review = made.rows[2]
    edit(made.address, review.id, signature=change(review.signature))
    assert problems(made.address)


def test_a_signature_that_was_taken_away_or_swapped_is_found(made):
    review, last = made.rows[2], made.rows[7]
    edit(made.address, review.id, signature="")
    assert problems(made.address) == [f"the signature of entry {review.id} does not fit"]
    edit(made.address, review.id, signature=last.signature)
    assert problems(made.address) == [f"the signature of entry {review.id} does not fit"]
    edit(made.address, review.id, signature=keys.signed(Ed25519PrivateKey.generate(), review.hash))
    assert problems(made.address) == [f"the signature of entry {review.id} does not fit"]


def test_a_signature_put_under_an_unsigned_entry_is_found(made):
    budget = made.rows[0]
    edit(made.address, budget.id, signature=keys.signed(made.key, budget.hash))
    assert problems(made.address)


@pytest.mark.parametrize("address", ["sqlite"], indirect=True)
@pytest.mark.parametrize("value", ["x'00ff'", "cast(x'ff' as text)", "3.5", "9e999", "'text'"])
def test_values_that_are_no_text_and_no_number_are_found_in_a_file(made, value):
    """SQLite keeps whatever it is given, in any column."""
    for field in FIELDS:
        try:
            raw(made.address, f"update entries set {field} = {value} where rowid = 5")
        except sqlite3.Error:
            continue  # the store itself saw it
        assert problems(made.address), field
        raw(made.address, f"update entries set {field} = ? where rowid = 5", (getattr(made.rows[4], field),))
    assert problems(made.address) == []


def test_a_number_far_away_does_not_keep_verify_from_coming_back(made, monkeypatch):
    """Going through all numbers up to the highest would take for ever."""
    edit(made.address, 8, id=2**62)
    book, asked = Ledger(made.address), itertools.count()
    look = book._store.rows

    def patient(*given):
        assert next(asked) < 500, "asks for ever"
        return look(*given)

    monkeypatch.setattr(book._store, "rows", patient)
    assert book.verify()


# What is missing


@pytest.mark.parametrize("numbers", [(1,), (2,), (4,), (5,), (8,), (7, 8), (1, 2, 3), tuple(range(1, 9))])
def test_entries_that_were_deleted_are_found(made, numbers):
    for number in numbers:
        raw(made.address, "delete from entries where id = ?", (number,))
    assert any("missing" in told for told in problems(made.address))


def test_entries_that_were_deleted_stay_found_when_the_ledger_goes_on(made):
    raw(made.address, "delete from entries where id = 8")
    with contextlib.suppress(LedgerError):  # it may refuse, too
        Ledger(made.address).reserve([item("simulated", simulated=True)])
    assert problems(made.address)


def test_a_chain_cut_off_and_sewn_up_is_found_by_a_head_that_was_written_down(made):
    rebuilt(made.address, made.rows[:-2])
    assert problems(made.address) == []  # nothing inside tells
    assert problems(made.address, written_down=[made.head]) == ["entry 8, written down elsewhere, is missing"]
    rebuilt(made.address, [])
    assert problems(made.address, written_down=[made.head])


def test_a_chain_made_anew_is_found_by_a_head_that_was_written_down(made):
    cheaper = dataclasses.replace(made.rows[4], query="another question")
    rebuilt(made.address, [*made.rows[:4], cheaper, *made.rows[5:]])
    assert any("written down" in told for told in problems(made.address, written_down=[made.head]))


def test_every_head_that_was_written_down_is_looked_at(made):
    number, digest = made.head
    for heads in ([(number, "f" * 64), (number, digest)], [(number, digest), (number, "f" * 64)]):
        assert problems(made.address, written_down=heads) == [
            f"entry {number} is not the one that was written down elsewhere"
        ]


@pytest.mark.parametrize(
    "statement",
    [
        "update about set entries = entries + 1",
        "update about set entries = entries - 1",
        "update about set entries = 0",
        "update about set entries = -1",
        "update about set head = ''",
        "update about set head = 'abc'",
        "update about set version = version + 1",
        "update about set version = 0",
        "delete from about",
        "insert into about select * from about",
        "drop table about",
    ],
)
def test_edits_of_what_is_said_about_the_ledger_are_found_and_nothing_is_released(made, statement):
    before = entries(made.address)
    raw(made.address, statement)
    assert problems(made.address)
    assert entries(made.address) == before


# What was moved


@hypothesis.given(order=st.permutations(range(8)))
@hypothesis.settings(suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture], max_examples=30)
def test_entries_in_another_order_are_found(made, order):
    hypothesis.assume(list(order) != sorted(order))
    raw(made.address, "delete from entries")
    for number, old in enumerate(order, 1):
        insert(made.address, dataclasses.replace(made.rows[old], id=number))
    try:
        assert problems(made.address)
    finally:
        raw(made.address, "delete from entries")
        for entry in made.rows:
            insert(made.address, entry)
    assert problems(made.address) == []


def test_a_chain_made_anew_with_a_clock_that_went_back_is_found(made):
    later = dataclasses.replace(made.rows[2], at=made.rows[5].at)
    early = dataclasses.replace(made.rows[5], at=made.rows[2].at)
    rebuilt(made.address, [*made.rows[:2], later, *made.rows[3:5], early, *made.rows[6:]])
    assert any("older than the one before" in told for told in problems(made.address))


# What was added


@pytest.mark.parametrize("number", [9, 10, 1000, 0, -1])
def test_an_entry_that_was_added_is_found(made, number):
    release = made.rows[5]
    insert(made.address, dataclasses.replace(release, id=number, query="added"))
    assert problems(made.address)


def test_an_entry_that_was_squeezed_in_is_found(made):
    for number in range(8, 5, -1):
        raw(made.address, "update entries set id = id + 1 where id = ?", (number,))
    insert(made.address, dataclasses.replace(made.rows[4], id=6, query="squeezed in"))
    raw(made.address, "update about set entries = 9")
    assert problems(made.address)


@pytest.mark.parametrize("kind", ["close", "budget", "release"])
def test_an_entry_without_a_number_is_found(address, kind):
    book = Ledger(address)
    book.set_budget(budget())
    book.reserve([item(plan=plan(7))])
    unguarded(address)
    body = json.dumps({"budget": budget(1000.0).to_dict()}) if kind == "budget" else "{}"
    reserve = rows(address)[1]
    with contextlib.suppress(*DATABASE_ERRORS):
        insert(address, dataclasses.replace(reserve, id=None, kind=kind, body=body))
        assert problems(address)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"kind": "release", "run": "look-1", "stage": "train", "query": "one", "release": 2}, "closed before"),
        ({"kind": "release", "run": "look-2", "stage": "train", "query": "one", "release": 0}, "never reserved"),
    ],
)
def test_a_forged_release_beyond_what_was_reserved_is_found(made, change, told):
    forged(made.address, **change)
    assert any(told in problem for problem in problems(made.address))


def test_a_forged_change_of_a_guarded_budget_is_found(made):
    forged(made.address, kind="budget", body=json.dumps({"budget": budget(1000.0).to_dict(), "why": ""}))
    assert any("sign" in told for told in problems(made.address))


def test_a_forged_change_of_a_guarded_budget_is_not_believed(made):
    forged(made.address, kind="budget", body=json.dumps({"budget": budget(1000.0).to_dict(), "why": ""}))
    book = Ledger(made.address)
    with pytest.raises((NotApprovedError, PrivacySpentError, LedgerError, ValueError)):
        book.reserve([item("look-2", plan=plan(400))], recipe="digest")


@pytest.mark.parametrize("signature", ["", "00" * 64])
def test_a_forged_approval_is_not_believed(made, signature):
    book = Ledger(made.address, who="Eve")
    number = book.request("more", [item("more-1", plan=plan(3))], recipe="another")
    body = json.dumps({"approved": True, "note": ""})
    forged(
        made.address,
        kind="review",
        run="more",
        release=number,
        body=body,
        signer=keys.public(made.key),
        signature=signature,
    )
    before = entries(made.address)
    with pytest.raises((NotApprovedError, LedgerError)):
        book.reserve([item("more-1", plan=plan(3))], recipe="another")
    assert entries(made.address) == before
    assert any("signature" in told for told in problems(made.address))


def test_a_forged_approval_without_a_signer_is_found(made):
    number = Ledger(made.address).request("more", [item("more-1")], recipe="another")
    forged(made.address, kind="review", run="more", release=number, body=json.dumps({"approved": True, "note": ""}))
    assert any("sign" in told for told in problems(made.address))


# Models


def test_a_model_that_is_not_the_one_that_was_booked_is_found(made):
    assert problems(made.address, models={"look-1": MODEL}) == []
    assert problems(made.address, models={"look-1": "cd" * 32}) == [
        "the model of 'look-1' is not the one that entry 7 names"
    ]


def test_a_booked_model_hash_that_was_edited_is_found_though_the_model_was_too(made):
    facts = made.rows[6].facts | {"model": "cd" * 32}
    edit(made.address, 7, body=json.dumps(facts, sort_keys=True))
    assert problems(made.address, models={"look-1": "cd" * 32}) == ["entry 7 was edited, or is not in its place"]


# Others write meanwhile


def test_a_ledger_is_whole_while_others_write_to_it(address, monkeypatch):
    book, other = Ledger(address), Ledger(address)
    other.charge(account(), "train", plan(9), release=0, query="a")
    head = book.head
    with concurrent.futures.ThreadPoolExecutor() as threads:
        writing = []

        def read():
            found = head()
            writing.append(threads.submit(other.charge, account(), "train", plan(9), release=1, query="a"))
            concurrent.futures.wait(writing, timeout=1)  # it may have to wait until verify is done
            return found

        monkeypatch.setattr(book, "head", read)
        assert book.verify() == []
    assert all(booked.result() for booked in writing)
    monkeypatch.undo()
    assert book.verify() == []


# Surroundings that fail: a clear error, nothing written, nothing released


def ones(message, examples, memory):
    """What a unit contributes in these tests."""
    return {"ones": examples["mask"].sum()[None] * message["scale"]}, memory


def answers(curator, number=1):
    """As many answers as there come; the error that ended it, if one did."""
    import torch

    found = []
    for _ in range(number):
        try:
            found.append(curator.noisy_mean(ones, {"scale": torch.ones(1)}))
        except (LedgerError, ValueError) as error:
            return found, error
    return found, None


@pytest.fixture
def running(address, curator_of, users):
    """A run of nine releases, of which three are made."""
    book = Ledger(address)
    curator = curator_of(users, plan(9), ledger=book)
    found, error = answers(curator, 3)
    assert (len(found), error) == (3, None)
    return types.SimpleNamespace(address=address, book=book, curator=curator)


def booked(address):
    return raw(address, "select count(*) from entries where kind = 'release'")[0][0]


def assert_stopped_and_going_on(running, told):
    """No answer, no entry, no place used up; `told` is in the error. Afterwards the run can go on."""
    found, error = answers(running.curator)
    assert found == []
    assert told in str(error)
    assert "\n" not in str(error)
    assert booked(running.address) == 3
    assert running.curator.remaining == 6


def test_a_clock_that_goes_back_stops_a_run_until_it_is_right_again(running, monkeypatch):
    with monkeypatch.context() as patched:
        for store in (storage.Sqlite, storage.Postgres):
            patched.setattr(store, "now", lambda self: START - days(36500))
        assert_stopped_and_going_on(running, "clock that goes forward")
    assert answers(running.curator, 6)[1] is None
    assert booked(running.address) == 9
    assert running.book.verify() == []


def test_a_ledger_that_was_upgraded_stops_the_runs_of_older_versions(running):
    raw(running.address, "update about set version = 99")
    assert_stopped_and_going_on(running, "version")


def test_a_newer_ledger_is_not_opened_and_not_changed(made):
    raw(made.address, "update about set version = 4")
    before = rows(made.address)
    with pytest.raises(ValueError, match=r"Expected ledger version 3, found 4.*newer fedlens.*Nothing was changed"):
        Ledger(made.address)
    assert rows(made.address) == before


VERSION_1 = """
create table about (version integer not null);
create table entries (
    id integer primary key, at text not null, run text not null, stage text not null, release integer not null,
    query text not null, population text not null, partition_name text not null, part text not null,
    plan text not null, simulated integer not null, unique (run, stage, release, query)
);
create trigger never_changed before update on entries begin select raise(abort, 'append-only'); end;
create trigger never_deleted before delete on entries begin select raise(abort, 'append-only'); end;
insert into about values (1);
insert into entries values (1, '2026-01-01T00:00:00+00:00', 'run', 'train', 0, 'q', 'users', 'all', 'all', '{}', 0);
"""


def test_a_ledger_of_the_first_version_is_not_opened_and_not_changed(tmp_path):
    path = tmp_path / "ledger.db"
    with contextlib.closing(sqlite3.connect(path)) as book:
        book.execute("pragma journal_mode = wal")
        book.executescript(VERSION_1)
    before = path.read_bytes()
    with pytest.raises(ValueError, match=r"Expected ledger version 3, found 1\. Nothing was changed"):
        Ledger(path)
    assert path.read_bytes() == before


def test_somebody_elses_file_is_left_alone(tmp_path):
    raw(tmp_path / "customers.db", "create table customers (name text)")
    with pytest.raises((LedgerError, ValueError), match="Expected"):
        Ledger(tmp_path / "customers.db")
    assert raw(tmp_path / "customers.db", "select name from sqlite_master") == [("customers",)]


def test_a_store_that_becomes_read_only_stops_a_run_until_it_is_writable_again(running):
    writable, forbidden = (
        ("set default_transaction_read_only = off", "set default_transaction_read_only = on")
        if is_remote(running.address)
        else ("pragma query_only = off", "pragma query_only = on")
    )
    running.book._store.rows(forbidden)
    assert_stopped_and_going_on(running, "Nothing was booked")
    running.book._store.rows(writable)
    assert answers(running.curator, 6)[1] is None
    assert booked(running.address) == 9
    assert running.book.verify() == []


def test_a_disk_that_fills_up_stops_a_run_and_what_was_released_is_booked(tmp_path, curator_of, users):
    """The kernel itself says no: files of this process may not grow any more."""
    path = tmp_path / "ledger.db"
    Ledger(path).close_file()

    def released():
        curator = curator_of(users, plan(500), ledger=Ledger(path))
        resource.setrlimit(resource.RLIMIT_FSIZE, (2**16, 2**16))
        found, error = answers(curator, 500)
        return json.dumps([len(found), curator.remaining, str(error)])

    number, remaining, error = json.loads(forked(released))
    assert 0 < number < 500
    assert remaining == 500 - number
    assert "Nothing was booked" in error
    assert booked(path) == number
    assert Ledger(path).verify() == []
    going_on = curator_of(users, plan(500), ledger=Ledger(path), position=number)
    assert answers(going_on, 5)[1] is None
    assert Ledger(path).verify() == []


def refusal(path):
    """The error with which a ledger does not open. Nobody waits for a disk that will not change."""

    def impatient(seconds):
        raise AssertionError("waits")

    storage.time.sleep = impatient  # in a process of its own
    try:
        Ledger(path)
    except LedgerError as error:
        return str(error)
    except AssertionError as error:
        return str(error)
    return "opened"


def test_a_read_only_file_is_refused_at_once_and_not_changed(open_folder):
    path = open_folder / "ledger.db"
    book = Ledger(path)
    book.charge(account(), "train", plan(), release=0, query="a")
    book.close_file()
    path.chmod(0o444)
    before = path.read_bytes()
    assert "Expected a writable ledger" in without_privileges(lambda: refusal(path))
    assert path.read_bytes() == before
    assert [found.name for found in open_folder.iterdir()] == ["ledger.db"]


@pytest.mark.parametrize("room", [0, 5000])
def test_a_full_disk_is_refused_at_once(tmp_path, room):
    def work():
        resource.setrlimit(resource.RLIMIT_FSIZE, (room, room))
        return refusal(tmp_path / "ledger.db")

    told = forked(work)
    assert told.startswith("Expected a writable ledger")
    assert told.count("Expected") == 1


@hypothesis.given(place=st.floats(0, 1), size=st.integers(1, 300), seed=st.integers(0, 255))
@hypothesis.settings(suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture], max_examples=80)
def test_a_damaged_file_is_found_or_a_clear_error(whole, place, size, seed):
    """Never a wrong answer: bytes that held entries are missed, and others do not matter."""
    content = bytearray(whole.content)
    at = int(place * (len(content) - size))
    content[at : at + size] = bytes((byte + seed + 1) % 256 for byte in content[at : at + size])
    whole.path.write_bytes(bytes(content))
    for beside in ("-wal", "-shm"):
        pathlib.Path(f"{whole.path}{beside}").unlink(missing_ok=True)
    try:
        same = [*raw(whole.path, f"select {storage.COLUMNS} from entries not indexed order by +id")] == whole.rows
    except (sqlite3.Error, UnicodeDecodeError):
        same = False
    assert same or problems(whole.path)


@pytest.fixture
def whole(tmp_path):
    """A file with a hundred entries, as it lies on the disk."""
    path = tmp_path / "ledger.db"
    book = Ledger(path)
    book.reserve([item(plan=plan(98))])
    for release in range(30):
        book.charge(account(), "train", plan(98), release=release, query="a")
    book.close_file()
    found = raw(path, f"select {storage.COLUMNS} from entries order by id")
    return types.SimpleNamespace(path=path, content=path.read_bytes(), rows=found)
