"""Ledgers that were damaged or written by an enemy: every one ends in an answer or in a clear error of our own."""

import re

import fuzzing_ledger
import pytest
from command_line import fedlens
from toys import raw, unguarded

from fedlens.ledger import Ledger


def test_a_whole_ledger_stands_every_use(tmp_path):
    fuzzing_ledger.written(tmp_path / "ledger.db")
    assert Ledger(tmp_path / "ledger.db").verify() == []
    assert len(Ledger(tmp_path / "ledger.db").requests()) == 2
    fuzzing_ledger.used(tmp_path / "ledger.db")


def test_no_damaged_ledger_escapes(tmp_path):
    escaped = []
    for name, case in fuzzing_ledger.cases(tmp_path, count=60):
        try:
            case()
        except Exception as error:  # whatever it is
            escaped.append(f"{name}: {type(error).__name__}")
    assert escaped == []


def test_the_fuzz_would_notice(tmp_path, monkeypatch):
    monkeypatch.setattr(Ledger, "runs", lambda self: {}["nothing"])
    with pytest.raises(KeyError):
        next(case for _, case in fuzzing_ledger.cases(tmp_path, count=1))()


HURT = {
    "a version that is no number": ("update about set version = 'new'", 1, "version"),
    "an edited body": ("update entries set body = 'what nobody may quote' where id = 2", 1, "entry 2"),
    "a deep body": (f"update entries set body = '{'[' * 90_000}' where id = 2", 1, "entry 2"),
    "a body with a number that is none": ("update entries set body = '{\"plan\": NaN}' where id = 2", 1, "entry 2"),
    "bytes in place of text": ("update entries set body = cast(x'fffe00' as text) where id = 2", 1, "damaged|entry 2"),
}


@pytest.mark.parametrize("name", HURT)
@pytest.mark.parametrize("command", ["show", "verify", "review"])
def test_a_damaged_ledger_is_one_clear_line_that_says_where(tmp_path, name, command):
    statement, code, told = HURT[name]
    path = tmp_path / "ledger.db"
    book = Ledger(path)
    book.set_budget(fuzzing_ledger.Budget(population="users", epsilon=9.0, delta=1e-5))
    items = [fuzzing_ledger.Item(account=fuzzing_ledger.ACCOUNT, stage="train", plan=fuzzing_ledger.PLAN)]
    if command == "review":
        book.request("look", items, recipe="digest")
    else:
        book.reserve(items)
    book.close_file()
    unguarded(path)
    raw(path, statement)
    done = fedlens("ledger", command, "--ledger", path)
    assert done.code == code
    assert re.search(told, done.out + done.err)
    assert "Internal error" not in done.err
    assert "what nobody may quote" not in done.out + done.err
