"""An old ledger that is put back: found by the models that were made since, and impossible with a witness."""

import contextlib
import json
import multiprocessing
import os
import pathlib
import signal
import sqlite3

import pytest
from command_line import answer, fedlens, written
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from toys import SHORT as TINY
from toys import account, budget, forged, item, plan, problems, raw, rebuilt, rows, unguarded

from fedlens.curators.protocol import PrivacySpentError
from fedlens.ledger import Ledger, LedgerError, NotApprovedError, PutBackError, is_remote, keys
from fedlens.ledger.entries import Entries


@pytest.fixture(params=["file", "postgres"])
def elsewhere(request, tmp_path):
    """Where a witness may be kept."""
    if request.param == "file":
        yield str(tmp_path / "other disk" / "witness.sqlite")
    else:
        with request.getfixturevalue("postgres").database() as address:
            yield address


def copied(path, to):
    """What a backup holds: everything that was committed."""
    with contextlib.closing(sqlite3.connect(path)) as old, contextlib.closing(sqlite3.connect(to)) as new:
        old.backup(new)


def put_back(backup, path):
    copied(backup, path)


def spent(book, run="run", releases=7):
    """Takes a whole budget of 2.2."""
    for release in range(releases):
        book.charge(account(run), "train", plan(releases), release=release, query="a")


@pytest.fixture
def rolled_back(tmp_path, elsewhere):
    """A ledger with a witness, as it was before its budget was spent."""
    path, backup = tmp_path / "ledger.db", tmp_path / "backup.db"
    book = Ledger(path)
    book.set_budget(budget())
    book.name_witness(elsewhere)
    copied(path, backup)
    spent(book)
    book.close_file()
    put_back(backup, path)
    return path


def test_a_budget_is_not_spent_twice_by_putting_an_old_ledger_back(rolled_back):
    before = rows(rolled_back)
    with pytest.raises(PutBackError, match="put back"):
        Ledger(rolled_back)
    book = Ledger(rolled_back, checked=False)
    for work in (lambda: spent(book, "again"), lambda: book.set_budget(budget(9.0)), lambda: book.close("run")):
        with pytest.raises(PutBackError, match="put back"):
            work()
    assert rows(rolled_back) == before
    assert [line for line in book.verify() if "written down elsewhere, is missing" in line]


def test_without_a_witness_it_is_spent_twice(tmp_path):
    """Why there are witnesses."""
    path, backup = tmp_path / "ledger.db", tmp_path / "backup.db"
    book = Ledger(path)
    book.set_budget(budget())
    copied(path, backup)
    spent(book)
    with pytest.raises(PrivacySpentError):
        spent(book, "again")
    book.close_file()
    put_back(backup, path)
    spent(Ledger(path), "again")
    assert problems(path) == []


def test_the_command_line_refuses_it_and_verify_tells(rolled_back):
    for command in ("show", "review"):
        done = fedlens("ledger", command, "--ledger", rolled_back)
        assert (done.code, done.out) == (1, "")
        assert "an old ledger was put back" in done.err
    done = fedlens("ledger", "verify", "--ledger", rolled_back)
    assert done.code == 1
    assert "entry 4, written down elsewhere, is missing" in done.out
    assert "4 more heads that were written down elsewhere, up to entry 10, are missing" in done.out


@pytest.mark.parametrize("way", ["option", "environment"])
def test_a_ledger_from_before_it_had_a_witness_is_refused_where_the_owner_says_which(
    tmp_path, elsewhere, monkeypatch, way
):
    path, backup = tmp_path / "ledger.db", tmp_path / "backup.db"
    book = Ledger(path)
    book.set_budget(budget())
    copied(path, backup)
    book.name_witness(elsewhere)
    spent(book)
    book.close_file()
    put_back(backup, path)
    if way == "environment":
        monkeypatch.setenv("FEDLENS_WITNESS", elsewhere)
        pinned, options = {}, []
    else:
        pinned, options = {"witness": elsewhere}, ["--witness", elsewhere]
    with pytest.raises(LedgerError, match="it names none: it was put back"):
        Ledger(path, **pinned)
    with pytest.raises(LedgerError, match="it names none: it was put back"):
        spent(Ledger(path, checked=False, **pinned), "again")
    done = fedlens("ledger", "verify", "--ledger", path, *options)
    assert done.code == 1
    assert "put back to a time before" in done.out


def test_a_chain_made_anew_is_refused_by_its_witness(address, elsewhere):
    book = Ledger(address)
    book.set_budget(budget())
    book.name_witness(elsewhere)
    spent(book)
    unguarded(address)
    rebuilt(address, rows(address)[:2])
    with pytest.raises(PutBackError):
        Ledger(address)
    rebuilt(address, rows(address)[1:])  # from its very first entry on: another ledger, by its first hash
    with pytest.raises(PutBackError):
        Ledger(address)
    assert any("knows nothing of this ledger" in line for line in Ledger(address, checked=False).verify())


def test_a_copy_that_goes_on_beside_the_ledger_is_refused(tmp_path, elsewhere):
    path, copy = tmp_path / "ledger.db", tmp_path / "copy.db"
    book = Ledger(path)
    book.set_budget(budget())
    book.name_witness(elsewhere)
    copied(path, copy)
    fork = Ledger(copy)
    spent(book)
    with pytest.raises(PutBackError):
        spent(fork, "again")
    assert {entry.kind for entry in rows(copy)} == {"budget", "witness"}


def test_of_two_copies_that_book_at_the_same_moment_one_releases(tmp_path, elsewhere, monkeypatch):
    """Both have asked the witness before either has told it."""
    path, copy = tmp_path / "ledger.db", tmp_path / "copy.db"
    book = Ledger(path)
    book.set_budget(budget())
    book.reserve([item()])
    book.name_witness(elsewhere)
    copied(path, copy)
    fork, append = Ledger(copy), Entries.append

    def meanwhile(self, kind, *given, **told):
        if self is fork._entries and kind == "release":
            for release in range(2):
                assert book.charge(account(), "train", plan(), release=release, query="a")
        return append(self, kind, *given, **told)

    monkeypatch.setattr(Entries, "append", meanwhile)
    with pytest.raises(PutBackError):
        fork.charge(account(), "train", plan(), release=0, query="another")


# The witness itself


def test_a_ledger_and_its_witness_go_on_together(address, elsewhere):
    book = Ledger(address)
    book.name_witness(elsewhere)  # an empty ledger can have one
    book.set_budget(budget())
    spent(Ledger(address))
    assert Ledger(address).witness() == (elsewhere if is_remote(elsewhere) else str(pathlib.Path(elsewhere).resolve()))
    assert problems(address) == []
    assert raw(elsewhere, "select max(number) from witnessed") == [(len(rows(address)),)]
    Ledger(address, witness=elsewhere).close("run")
    told = answer("ledger", "verify", "--ledger", address, "--witness", elsewhere)
    assert (told["problems"], told["witness"]) == ([], Ledger(address).witness())


def test_a_witness_serves_many_ledgers(tmp_path, elsewhere):
    for name in ("one", "two"):
        book = Ledger(tmp_path / f"{name}.db", who=name)
        book.set_budget(budget())
        book.name_witness(elsewhere)
        spent(book)
        assert problems(tmp_path / f"{name}.db") == []
    assert raw(elsewhere, "select count(distinct ledger) from witnessed") == [(2,)]


def test_what_a_witness_saw_cannot_be_changed(tmp_path, elsewhere):
    Ledger(tmp_path / "ledger.db").name_witness(elsewhere)
    for statement in ("update witnessed set number = 9", "delete from witnessed"):
        with pytest.raises(Exception, match="append-only"):
            raw(elsewhere, statement)


def test_a_missing_witness_refuses_bookings_and_lets_one_read(tmp_path):
    path, witness = tmp_path / "ledger.db", tmp_path / "witness.db"
    book = Ledger(path)
    book.set_budget(budget())
    book.name_witness(str(witness))
    witness.rename(tmp_path / "elsewhere.db")
    before = rows(path)
    book = Ledger(path)
    assert book.budget("users") == budget()
    with pytest.raises(LedgerError, match=r"it is missing\. Nothing is released"):
        spent(book)
    assert any("the witness cannot tell" in line for line in book.verify())
    assert rows(path) == before
    assert not witness.exists()
    (tmp_path / "elsewhere.db").rename(witness)
    spent(book)
    assert book.verify() == []


def test_a_server_that_is_gone_refuses_bookings(tmp_path, postgres):
    path = tmp_path / "ledger.db"
    with postgres.database() as address:
        book = Ledger(path)
        book.set_budget(budget())
        book.name_witness(address)
        book.reserve([item()])
    for found in (book, Ledger(path)):
        with pytest.raises(LedgerError, match=r"cannot be read or written\. Nothing is released"):
            found.charge(account(), "train", plan(), release=0, query="a")
    assert raw(path, "select count(*) from entries where kind = 'release'") == [(0,)]


def test_an_emptied_witness_is_not_taken_for_a_new_one(tmp_path):
    path, witness = tmp_path / "ledger.db", tmp_path / "witness.db"
    book = Ledger(path)
    book.set_budget(budget())
    book.name_witness(str(witness))
    other = Ledger(tmp_path / "other.db")
    other.name_witness(str(tmp_path / "empty.db"))
    put_back(tmp_path / "empty.db", witness)
    with pytest.raises(PutBackError):
        Ledger(path)
    with pytest.raises(PutBackError):
        Ledger(path, checked=False).name_witness(str(witness))
    Ledger(path, checked=False).name_witness(str(tmp_path / "new.db"), lost=True)  # the owner's word, written down
    assert rows(path)[-1].facts == {"to": str(tmp_path / "new.db"), "lost": True}
    spent(Ledger(path))
    assert problems(path) == []


@pytest.mark.parametrize("kind", ["file", "postgres"])
def test_a_ledger_that_names_what_is_no_witness_makes_none_of_it(tmp_path, request, kind):
    """Whoever sends a ledger must not have something written elsewhere by its reader."""
    if kind == "file":
        address = str(tmp_path / "empty")
        pathlib.Path(address).touch()
    else:
        address = request.getfixturevalue("postgres").empty()
    book = Ledger(tmp_path / "ledger.db")
    book.set_budget(budget())
    unguarded(tmp_path / "ledger.db")
    forged(tmp_path / "ledger.db", kind="witness", population="", body=json.dumps({"to": address, "lost": False}))
    reader = Ledger(tmp_path / "ledger.db")
    assert any("the witness cannot tell" in line for line in reader.verify())
    with pytest.raises(LedgerError, match="Nothing is released"):
        reader.reserve([item()])
    if kind == "file":
        assert pathlib.Path(address).read_bytes() == b""
    else:
        assert raw(address, "select to_regclass('witnessed')") == [(None,)]


def test_a_ledger_is_not_its_own_witness(tmp_path):
    book = Ledger(tmp_path / "ledger.db")
    book.set_budget(budget())
    with pytest.raises(LedgerError, match="witness"):
        book.name_witness(str(tmp_path / "ledger.db"))
    assert book.witness() is None


def test_where_there_are_reviewers_one_of_them_chooses_the_witness(address, tmp_path):
    key = Ed25519PrivateKey.generate()
    book = Ledger(address)
    book.set_budget(budget(reviewers=(keys.public(key),)))
    with pytest.raises(NotApprovedError, match="witness"):
        book.name_witness(str(tmp_path / "mine.db"))
    Ledger(address, key=key).name_witness(str(tmp_path / "theirs.db"))
    with pytest.raises(NotApprovedError, match="witness"):
        book.name_witness(str(tmp_path / "mine.db"), lost=True)
    assert problems(address) == []
    unguarded(address)
    forged(address, kind="witness", population="", body='{"to": "/tmp/mine", "lost": false}')
    assert "entry 3, a witness, is not signed by a reviewer" in Ledger(address, checked=False).verify()


def test_the_command_names_a_witness_and_tells_which_it_is(address, tmp_path):
    answer("ledger", "init", "--population", "users", "--epsilon", 2, "--delta", 1e-5, "--ledger", address)
    assert answer("ledger", "witness", "--ledger", address) == {"witness": None}
    told = answer("ledger", "witness", "--to", tmp_path / "witness.db", "--ledger", address)
    assert told == {"witness": str(tmp_path / "witness.db")}
    assert answer("ledger", "show", "--ledger", address)["witness"] == told["witness"]
    assert "seen by the witness" in fedlens("ledger", "show", "--ledger", address).out


# Killed at any moment, it goes on; and the rest of what was written is no room for a roll-back


MOMENTS = "before the commit", "before the witness", "after the witness"


def dying(moment, address, release):
    """Charges, and is killed on the way."""
    from fedlens.ledger import witness

    def killed(*given):
        os.kill(os.getpid(), signal.SIGKILL)

    ledger, append = Ledger(address), Entries.append
    if moment == "before the commit":
        Entries.append = lambda self, *given, **told: (append(self, *given, **told), killed())
    elif moment == "before the witness":
        witness.Witness.keep = killed
    ledger.charge(account(), "train", plan(7), release=release, query="a")
    killed()


@pytest.mark.parametrize("moment", MOMENTS)
def test_whenever_it_is_killed_it_goes_on_and_nothing_is_lost(address, elsewhere, moment):
    book = Ledger(address)
    book.set_budget(budget())
    book.name_witness(elsewhere)
    book.reserve([item(plan=plan(7))])
    for release in range(7):
        child = multiprocessing.get_context("fork").Process(target=dying, args=(moment, address, release))
        child.start()
        child.join(60)
        assert child.exitcode == -signal.SIGKILL
        found = Ledger(address)
        again = found.charge(account(), "train", plan(7), release=release, query="a")
        assert again == (moment == "before the commit")  # else it was booked
        assert found.verify() == []
    assert raw(address, "select count(*) from entries where kind = 'release'") == [(7,)]
    with pytest.raises(PrivacySpentError):
        spent(Ledger(address), "again")


def test_what_was_released_after_a_kill_cannot_be_taken_back(tmp_path, elsewhere):
    """An entry that no witness saw may be taken back, for nothing was released by it; once it was, no longer."""
    path, backup = tmp_path / "ledger.db", tmp_path / "backup.db"
    book = Ledger(path)
    book.set_budget(budget())
    book.name_witness(elsewhere)
    book.reserve([item(plan=plan(7))])
    copied(path, backup)
    child = multiprocessing.get_context("fork").Process(target=dying, args=("before the witness", str(path), 0))
    child.start()
    child.join(60)
    assert len(rows(path)) == len(rows(backup)) + 1
    assert not Ledger(path).charge(account(), "train", plan(7), release=0, query="a")  # free, and released now
    put_back(backup, path)
    with pytest.raises(PutBackError):
        Ledger(path)


def test_it_is_released_only_when_the_witness_has_seen_it(tmp_path, monkeypatch):
    from fedlens.ledger import witness

    book = Ledger(tmp_path / "ledger.db")
    book.name_witness(str(tmp_path / "witness.db"))
    book.reserve([item()])
    with monkeypatch.context() as patched:
        patched.setattr(witness.Witness, "keep", lambda self, ledger, head: (_ for _ in ()).throw(LedgerError("full")))
        with pytest.raises(LedgerError, match="full"):
            book.charge(account(), "train", plan(), release=0, query="a")
        with pytest.raises(LedgerError, match="full"):  # asked again it is booked, and still not seen
            book.charge(account(), "train", plan(), release=0, query="a")
    assert not book.charge(account(), "train", plan(), release=0, query="a")
    assert book.verify() == []


# Without a witness: what models and lists of words say


@pytest.fixture
def finished(tmp_path):
    """Two runs of one recipe, the second of which is taken back."""
    recipe = written(tmp_path, TINY.replace("epsilon = 8.0", "epsilon = 4.0"))
    out = tmp_path / "runs"
    answer(
        "ledger", "init", "--population", "digits", "--epsilon", 9, "--delta", 1e-5, "--ledger", out / "ledger.sqlite"
    )
    assert fedlens("run", recipe, "--out", out).code == 0
    copied(out / "ledger.sqlite", tmp_path / "backup.db")
    assert fedlens("run", recipe, "--out", out).code == 0
    put_back(tmp_path / "backup.db", out / "ledger.sqlite")
    return out


def test_verify_names_models_of_this_ledger_that_it_does_not_know(finished):
    done = fedlens("ledger", "verify", "--ledger", finished / "ledger.sqlite")
    assert done.code == 1
    assert "names this ledger, which does not know it: entries were taken back" in done.out
    assert "written down elsewhere, is missing" in done.out


def test_a_run_folder_that_was_renamed_is_still_looked_at(finished):
    for number, folder in enumerate(finished.glob("tiny-*")):
        folder.rename(finished / f"holiday {number}")
    done = fedlens("ledger", "verify", "--ledger", finished / "ledger.sqlite")
    assert done.code == 1
    assert "entries were taken back" in done.out
