"""Small, fast, reproducible surroundings for all tests; a private PostgreSQL server for those that keep a ledger."""

import contextlib
import copy
import functools
import itertools
import os
import pathlib
import pwd
import shutil
import subprocess
import tempfile
import types
import urllib.parse

# Before numpy and torch are loaded, here and in the processes that tests start: a thread for each of pytest's workers.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import hypothesis
import jinja2
import numpy as np
import pytest
import sklearn.datasets
import torch
import toys

from fedlens.core import pins
from fedlens.core.randomness import Randomness
from fedlens.curators.engine import Engine
from fedlens.curators.simulated import SimulatedCurator
from fedlens.data.population import Population
from fedlens.ledger import Account, Ledger, storage
from fedlens.models.gan import ConvCritic, ConvGenerator, Gan

collect_ignore = ["toy_medium"]  # a part of a package that is put together by test_house
hypothesis.settings.register_profile("fedlens", deadline=None, max_examples=40, derandomize=True, database=None)
hypothesis.settings.load_profile("fedlens")


@pytest.fixture(autouse=True, scope="session")
def one_core():
    torch.set_num_threads(1)


@pytest.fixture(autouse=True, scope="session")
def compiled_once():
    """A page is filled in a thousand times here: its templates are compiled once, the digits are read once."""
    compiled, load = {}, functools.cache(sklearn.datasets.load_digits)
    plain = jinja2.Environment.compile

    def compile_template(self, source, *rest, **options):
        settings = self.autoescape, self.trim_blocks, self.lstrip_blocks, self.undefined, *self.filters
        known = (source, settings, rest, *options.items())
        if known not in compiled:
            compiled[known] = plain(self, source, *rest, **options)
        return compiled[known]

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(jinja2.Environment, "compile", compile_template)
        patched.setattr(sklearn.datasets, "load_digits", lambda: copy.deepcopy(load()))
        yield


@pytest.fixture(scope="session")
def machines(tmp_path_factory):
    """Empty folders. Not pytest's own: to number the next one it reads the names of all before, for every test."""
    root = tmp_path_factory.mktemp("machines")
    return (root / str(number) for number in itertools.count())


@pytest.fixture(autouse=True)
def no_pin(monkeypatch, machines):
    """Whatever machine the tests run on, nobody has pinned it."""
    machine = next(machines)
    (machine / "config").mkdir(parents=True)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(machine / "config"))
    monkeypatch.setattr(pins, "MACHINE", machine / "pin.toml")


@pytest.fixture(scope="session")
def gan():
    """A pair of networks for 8 x 8 images that trains in milliseconds."""
    generator = ConvGenerator(side=8, latent=4, hidden=12, widths=(8, 4))
    return Gan(generator=generator, critic=ConvCritic(side=8, widths=(4, 6)))


@pytest.fixture(scope="session")
def users():
    """Eleven users with 1 to 9 images of 8 x 8 each, each user at a brightness of its own."""
    rng = np.random.default_rng(0)
    counts = np.array([3, 1, 9, 4, 2, 6, 1, 5, 7, 2, 3])
    brightness = np.repeat(np.linspace(-0.6, 0.6, len(counts)), counts)
    x = brightness[:, None, None, None] + 0.2 * rng.standard_normal((counts.sum(), 1, 8, 8))
    return Population.from_arrays("users", {"x": x.astype(np.float32)}, counts)


@pytest.fixture
def curator_of():
    """Opens a curator with seeded noise; every part of it can be replaced."""

    def opened(population, plan, *, ledger=None, run="run", randomness=None, engine=None, **options):
        randomness = randomness or Randomness.seeded(1)
        return SimulatedCurator(
            population,
            plan,
            ledger=ledger or Ledger(),
            account=Account(run=run, population=population.name, simulated=randomness.simulated),
            randomness=randomness,
            engine=engine or Engine(),
            **options,
        )

    return opened


@pytest.fixture
def clock(monkeypatch):
    """A clock that is set by hand, for both stores."""
    hands = types.SimpleNamespace(now=toys.START)
    for store in (storage.Sqlite, storage.Postgres):
        monkeypatch.setattr(store, "now", lambda self: hands.now)
        monkeypatch.setattr(store, "running", lambda self: None)
    return hands


@pytest.fixture
def open_folder():
    """A folder that every user of the machine can read."""
    folder = pathlib.Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    yield folder
    folder.chmod(0o755)
    shutil.rmtree(folder)


# Where ledgers are kept: the same tests run on both stores


class Postgres:
    """A server in a folder of its own, reached through a socket there."""

    _numbers = itertools.count()

    def __init__(self, folder: pathlib.Path) -> None:
        self._folder = folder
        self.execute("create database recycled template template0")

    def address(self, database: str) -> str:
        return f"postgresql://fedlens@/{database}?host={urllib.parse.quote(str(self._folder), safe='')}"

    def execute(self, statement: str, database: str = "postgres") -> None:
        import psycopg

        with psycopg.connect(self.address(database), autocommit=True) as connection:
            connection.execute(statement)

    def empty(self) -> str:
        """The address of an empty database: the same every time, emptied, since making one takes long."""
        here = "datname = 'recycled' and pid <> pg_backend_pid()"
        self.execute(f"select pg_terminate_backend(pid) from pg_stat_activity where {here}", "recycled")
        self.execute("drop schema public cascade; create schema public", "recycled")
        return self.address("recycled")

    @contextlib.contextmanager
    def database(self, options: str = ""):
        """The address of a database of its own, which is dropped afterwards, whoever still talks to it."""
        name = f"ledger{next(self._numbers)}"
        self.execute(f"create database {name} template template0 {options}")
        try:
            yield self.address(name)
        finally:
            self.execute(f"drop database {name} with (force)")


def programs() -> pathlib.Path | None:
    """The folder of PostgreSQL's own programs, which is often not on the path."""
    found = shutil.which("initdb")
    folders = [pathlib.Path(found).resolve().parent] if found else []
    folders += sorted(pathlib.Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    return next((folder for folder in folders if (folder / "initdb").exists() and (folder / "pg_ctl").exists()), None)


def obstacle() -> str | None:
    """Why no server can be started here; None if one can."""
    try:
        import psycopg  # noqa: F401
    except ImportError:
        return "psycopg is not installed (pip install 'fedlens[postgres]')"
    return None if programs() else "PostgreSQL is not installed (initdb, pg_ctl)"


@contextlib.contextmanager
def server():
    """Starts PostgreSQL as a user without privileges, which is all it accepts; stops and deletes it at the end."""
    folder, binaries = pathlib.Path(tempfile.mkdtemp(prefix="fedlens-")), programs()
    owner = {}
    if os.geteuid() == 0:
        known = {entry.pw_name: entry for entry in pwd.getpwall()}
        user = known.get("postgres") or known["nobody"]
        os.chown(folder, user.pw_uid, user.pw_gid)
        owner = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}

    def call(program: str, *arguments: str) -> None:
        command = [str(binaries / program), "-D", str(folder / "data"), *arguments]
        # Not into a pipe: the server would hold its other end open for as long as it lives.
        with (folder / "said").open("ab") as said:
            done = subprocess.run(command, cwd=folder, stdout=said, stderr=said, timeout=120, **owner)
        if done.returncode:
            raise RuntimeError(f"{program} failed:\n{(folder / 'said').read_text()}")

    settings = f"-c listen_addresses='' -c unix_socket_directories='{folder}' -c fsync=off -c max_connections=200"
    try:
        call("initdb", "--username=fedlens", "--auth=trust", "--encoding=UTF8", "--locale=C", "--no-sync")
        call("pg_ctl", "start", "--wait", "--log", str(folder / "log"), "--options", settings)
        try:
            yield Postgres(folder)
        finally:
            call("pg_ctl", "stop", "--mode", "immediate", "--wait")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def needed(reason: str | None) -> None:
    """Where nobody looks (CI), what is missing must not pass for tested."""
    if reason is not None and os.environ.get("CI"):
        pytest.fail(f"CI must test PostgreSQL too: {reason}", pytrace=False)
    if reason is not None:
        pytest.skip(reason)


@pytest.fixture(scope="session")
def postgres():
    """Started when the first test asks for it."""
    needed(obstacle())
    with server() as started:
        yield started


@pytest.fixture(params=["sqlite", "postgres"])
def address(request, tmp_path):
    """Where a ledger may be made: an absent file, an empty database."""
    if request.param == "sqlite":
        return str(tmp_path / "ledger.db")
    return request.getfixturevalue("postgres").empty()
