"""Ledgers of the version before: they open as they are, go on, and become newer ones with their next entry."""

import json
import pathlib
import types

import pytest
from command_line import answer, fedlens
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from toys import account, insert, item, plan, problems, raw, rows

from fedlens.curators.protocol import PrivacySpentError
from fedlens.ledger import Entry, Ledger, NotApprovedError, storage

KEPT = pathlib.Path(__file__).with_name("ledger_version_2.json")  # written by that version


@pytest.fixture
def old(address):
    """One closed run, one that was interrupted, and a request that waits."""
    storage.opened(address).close()
    kept = json.loads(KEPT.read_text())
    for row in kept["rows"]:
        insert(address, Entry(*row))
    raw(address, "update about set version = 2, entries = ?, head = ?", tuple(kept["head"]))
    key = Ed25519PrivateKey.from_private_bytes(bytes.fromhex(kept["key"]))
    return types.SimpleNamespace(address=address, key=key, head=tuple(kept["head"]))


def version(address):
    return raw(address, "select version from about")[0][0]


def test_reading_an_old_ledger_changes_nothing(old):
    before = rows(old.address)
    book = Ledger(old.address)
    assert book.verify(models={"look-1": "ab" * 32}, written_down=[old.head]) == []
    assert [run["told"] for run in book.runs()] == ["2 of 3 train releases, closed", "2 of 3 train releases, open"]
    assert (book.witness(), book.registrations()) == (None, [])
    assert [request["text"] for request in book.requests()] == [None] * 3
    assert answer("ledger", "show", "--ledger", old.address)["entries"] == len(before)
    assert (
        "was not kept: the request is of an older version"
        in fedlens("ledger", "review", before[-1].id, "--ledger", old.address).out
    )
    assert (version(old.address), rows(old.address)) == (2, before)


def test_an_interrupted_run_of_an_old_ledger_goes_on_as_it_began(old):
    book, mine = Ledger(old.address), [item("more-1", plan=plan(3))]
    with pytest.raises(ValueError, match="recipe that run 'more-1' was booked with"):
        book.reserve(mine, recipe="another")
    book.reserve(mine, recipe="digest of more", resumed=True)
    assert version(old.address) == 2
    assert not book.charge(account("more-1"), "train", plan(3), release=1, query="q1")
    assert book.charge(account("more-1"), "train", plan(3), release=2, query="q2")
    assert version(old.address) == 3
    with pytest.raises(PrivacySpentError):
        book.charge(account("more-1"), "train", plan(3), release=3, query="q3")
    assert problems(old.address, written_down=[old.head]) == []


def test_an_old_approval_is_for_what_it_was_for(old):
    book = Ledger(old.address)
    with pytest.raises(NotApprovedError, match="used by another run"):
        book.reserve([item("look-2", plan=plan(3))], recipe="digest of look")
    waiting = rows(old.address)[-1].id
    Ledger(old.address, key=old.key).review(waiting, approved=True)
    with pytest.raises(NotApprovedError):
        book.reserve([item("waits-1", plan=plan(4))], recipe="another")
    book.reserve([item("waits-1", plan=plan(3))], recipe="another")
    assert problems(old.address) == []


def test_an_old_ledger_may_have_a_witness_from_now_on(old, tmp_path):
    Ledger(old.address, key=old.key).name_witness(str(tmp_path / "witness.db"))
    Ledger(old.address).close("more-1")
    assert problems(old.address) == []
