"""What many tests share: plans, people, engines, ledgers with what anyone can do behind their back, tiny recipes."""

import builtins
import contextlib
import dataclasses
import datetime
import errno
import os
import sqlite3
import types

import numpy as np
import pytest
import torch

from fedlens.core import files
from fedlens.curators.simulated import Engine
from fedlens.data.population import Population
from fedlens.ledger import Account, Budget, Entry, Item, Ledger, LedgerError, Spending, is_remote, storage
from fedlens.media.images import contrast
from fedlens.media.text import hypotheses
from fedlens.privacy import Everyone, L2Clip, Plan, Poisson
from fedlens.recipes.recipe import Recipe
from fedlens.runs import run as runs

try:
    import psycopg
except ImportError:
    DATABASE_ERRORS = (sqlite3.Error,)
else:
    DATABASE_ERRORS = (sqlite3.Error, psycopg.Error)

DELTA = 1e-5
START = datetime.datetime(2030, 1, 1, 12, tzinfo=datetime.UTC)

# Recipes that are carried out in a second: one model, and a pair
TINY = """
name = "tiny"
task = "T1"
side = 8
[data]
source = "digits"
deal_to = 30
[selections.all]
by = "everyone"
[privacy]
epsilon = 8.0
delta = 1e-5
rounds = 4
users = 30
population = 40
clip = 0.1
minimum_users = 5
[model]
critic_widths = [4, 6]
generator_latent = 4
generator_hidden = 12
generator_widths = [8, 4]
[training]
batch = 4
local_steps = 2
generator_steps = 1
generator_batch = 8
generator = { kind = "adam", rate = 1e-3 }
"""
PAIR = TINY.replace(
    '[selections.all]\nby = "everyone"',
    '[primary]\nepochs = 1\nwidths = [4]\n[selections.low]\nby = "wrong"\nminimum_examples = 1\n'
    '[selections.high]\nby = "right"\nminimum_examples = 1',
)
SHORT, SHORT_PAIR = (recipe.replace("rounds = 4", "rounds = 2") for recipe in (TINY, PAIR))


# Plans and people


def plan(releases=2, noise=5.0, expected=9.0, **options):
    """Everyone takes part, clipped to 1, unless told otherwise."""
    settings = {"sampling": Everyone(), "bound": L2Clip(norm=1.0), "expected_contributors": expected} | options
    return Plan(noise_multiplier=noise, releases=releases, **settings)


PLAN = plan()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tight(Poisson):
    """A cap that is often met, to see whether meeting it is paid for."""

    tight: int

    @property
    def cap(self):
        return self.tight


def vectors(rows):
    """Units that hold one vector each."""
    rows = np.asarray(rows, dtype=np.float32)
    return Population.from_arrays("vectors", {"x": rows}, np.ones(len(rows), np.int64))


def with_one(array, value, at=17):
    """A copy in which one number is another."""
    changed = array.copy()
    changed[at] = value
    return changed


def same(left, right):
    """Whether two trees have the same leaves, to the last bit."""
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


def assert_same(left, right):
    """The same leaves, to the last bit."""
    assert left.keys() == right.keys()
    for name in left:
        assert torch.equal(left[name], right[name]), name


# What goes wrong


def full_disk(patched, name, after=0):
    """There is no room for the file of that name; there was for the first few that were written."""
    write, tried = files.write, []

    def full(path, content):
        if path.name == name:
            tried.append(path)
            if len(tried) > after:
                raise OSError(errno.ENOSPC, "No space left on device")
        write(path, content)

    patched.setattr(files, "write", full)


def without_library(patched, name):
    """As if nobody had installed it."""
    really = builtins.__import__

    def without(module, *args):
        if module.split(".")[0] == name:
            raise ImportError(module)
        return really(module, *args)

    patched.setattr(builtins, "__import__", without)


# Runs that do not depend on the weather


def measured(patched, chunk):
    """The fastest engine is this one: which one it is shapes the rounding and the noise."""
    patched.setattr(Engine, "measured", classmethod(lambda cls, *given, **named: cls(chunk=chunk)))


def named(patched, digit):
    """Every run has the same name, which shapes the noise."""
    patched.setattr(runs, "secrets", types.SimpleNamespace(token_hex=lambda size: digit * 2 * size))


def steady(chunk=8, name=None):
    """A fixture for all tests of a file: one engine, one name for all runs if there is one, and quick contrasts."""

    @pytest.fixture(autouse=True, scope="module")
    def fixed():
        with pytest.MonkeyPatch.context() as patched:
            measured(patched, chunk)
            patched.setattr(contrast, "COMPARED", 64)  # of 512 pictures, which make a report take a second
            patched.setattr(hypotheses, "MADE_UP", 200)  # of 3,000 sentences, which take as long
            if name:
                named(patched, name)
            yield

    return fixed


def quiet(selection, done, rounds, facts):
    """Watches a run and says nothing."""


def created(out, *overrides, recipe=TINY, seed=0, address=None):
    """A run that has not begun."""
    address = address or out / "ledger.sqlite"
    return runs.Run.created(Recipe.parsed(recipe, overrides), out, address=address, seed=seed, device="cpu")


# Ledgers


def account(run="run", **options):
    return Account(run=run, **{"population": "users"} | options)


def spent(run="run", *, releases=2, population="users", partition="all", part="all", simulated=False, **options):
    where = {"population": population, "partition": partition, "part": part, "simulated": simulated}
    return Spending(account=account(run, **where), plans=(plan(releases, **options),))


def budget(epsilon=2.2, **options):
    return Budget(**{"population": "users", "epsilon": epsilon, "delta": DELTA} | options)


def item(run="run", stage="train", plan=PLAN, **options):
    return Item(account=account(run, **options), stage=stage, plan=plan)


def days(number):
    return datetime.timedelta(days=number)


def raw(address, statement, values=()):
    """Runs a statement behind the ledger's back, as anyone can who holds the file or the database."""
    if is_remote(str(address)):
        with psycopg.connect(str(address)) as book:
            answer = book.execute(statement.replace("?", "%s"), values or None)
            return answer.fetchall() if answer.description else []
    with contextlib.closing(sqlite3.connect(address)) as book, book:
        return book.execute(statement, values).fetchall()


def unguarded(address):
    """Takes away what keeps entries from being changed."""
    if is_remote(str(address)):
        raw(address, "alter table entries disable trigger user")
    else:
        for verb in ("update", "delete"):
            raw(address, f"drop trigger if exists no_{verb}")


def without_privileges(work):
    """What `work` says, done by a user whom permissions bind: they do not bind the superuser."""

    def bound():
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)
        return work()

    return forked(bound) if not os.geteuid() else str(work())


def forked(work):
    """What `work` says, in a process whose limits are its own."""
    answer, question = os.pipe()
    if not (child := os.fork()):
        try:
            os.write(question, str(work()).encode())
        finally:
            os._exit(0)
    os.close(question)
    with os.fdopen(answer) as text:
        said = text.read()
    os.waitpid(child, 0)
    return said


def entries(address):
    return raw(address, "select count(*) from entries")[0][0]


def releases(address):
    return raw(address, "select count(*) from entries where kind = 'release'")[0][0]


def rows(address):
    return [Entry(*row) for row in raw(address, f"select {storage.COLUMNS} from entries order by id")]


def edit(address, number, **changes):
    for name, value in changes.items():
        raw(address, f"update entries set {name} = ? where id = ?", (value, number))


def insert(address, entry):
    marks = ", ".join("?" * len(dataclasses.fields(Entry)))
    raw(address, f"insert into entries ({storage.COLUMNS}) values ({marks})", dataclasses.astuple(entry))


def rebuilt(address, kept):
    """Replaces everything by these entries, chained anew without a flaw, as one who knows the code can."""
    raw(address, "delete from entries")
    previous = ""
    for number, entry in enumerate(kept, 1):
        entry = dataclasses.replace(entry, id=number)
        entry = dataclasses.replace(entry, hash=entry.hashed(previous))
        insert(address, entry)
        previous = entry.hash
    raw(address, "update about set entries = ?, head = ?", (len(kept), previous))


def forged(address, **changes):
    """Adds one entry at the end, chained without a flaw."""
    before = rows(address)
    blank = {"signer": "", "signature": "", "query": "", "stage": "", "release": -1, "body": "{}"}
    last = dataclasses.replace(before[-1], id=len(before) + 1, **blank | changes)
    last = dataclasses.replace(last, hash=last.hashed(before[-1].hash))
    insert(address, last)
    raw(address, "update about set entries = ?, head = ?", (last.id, last.hash))


def problems(address, **options):
    """What `verify` says, or the clear error with which the ledger does not open."""
    try:
        return Ledger(address).verify(**options)
    except LedgerError as error:
        return [str(error)]
    except ValueError as error:
        if not str(error).startswith("Expected "):
            raise
        return [str(error)]
