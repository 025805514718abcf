"""Sixteen processes at once, and hundreds of kill -9: nothing is overspent, lost or undercounted."""

import contextlib
import importlib
import os
import pathlib
import signal

import pytest
import warm_python
from command_line import fedlens
from toys import TINY

from fedlens.core.randomness import Randomness
from fedlens.ledger import Account, Budget, Item, Ledger
from fedlens.recipes.recipe import Recipe
from fedlens.runs.run import Run

BENCHMARKS = pathlib.Path(__file__).parents[1] / "benchmarks"


@pytest.fixture(scope="module")
def stress():
    """The benchmark, by the name under which its processes find it again."""
    with pytest.MonkeyPatch.context() as patched:
        patched.syspath_prepend(str(BENCHMARKS))
        found = importlib.import_module("ledger")
        patched.setattr(found, "spawner", lambda: warm_python.context(*found.PRELOADED, "pytest", "ledger"))
        yield found


def test_sixteen_processes_that_race_for_the_last_part_of_a_budget_get_what_fits_and_no_more(stress, address):
    found = stress.race(address, processes=16, tries=2, left=7)
    assert found["errors"] == []
    assert (found["granted"], found["asked"]) == (7, 32)
    assert found["epsilon"] <= found["budget"]
    assert found["problems"] == []
    promised = Ledger(address).spendings("users", reserved=True)
    assert sum(plan.releases for spending in promised for plan in spending.plans) == 20 + 7


def test_two_hundred_kills_lose_no_entry_and_change_no_answer(stress, address, tmp_path):
    toll = stress.survived(address, tmp_path, kills=200)
    assert toll.kills >= 200
    assert toll.errors == []
    assert toll.undercounts == 0
    assert toll.differing == 0
    assert toll.problems == []
    # Every run came to its end: all its answers were seen, each was paid for, and none twice.
    assert toll.answers == toll.booked == 12 * toll.finished
    assert toll.repeated > 0, "nothing was asked again: the kills came too early or too late to tell anything"


def test_whole_runs_survive_being_killed(stress, address, tmp_path):
    toll = stress.runs_survived(address, tmp_path, kills=8)
    assert toll.kills >= 8
    assert toll.errors == []
    assert toll.undercounts == 0
    assert toll.problems == []
    assert toll.finished >= 2
    assert toll.booked == 26 * toll.finished


def killed(work):
    """Does it in a process of its own, which does not live to see the end of it."""
    if not (child := os.fork()):
        with contextlib.suppress(BaseException):
            work()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL, "it came to its end"


def dying(*given):
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_run_killed_while_its_secret_is_made_goes_on(tmp_path):
    path = tmp_path / "run.key"

    def work():
        os.urandom = dying
        Randomness.kept_in(path)

    killed(work)
    secret = Randomness.kept_in(path)
    assert len(secret.key) == 32
    assert Randomness.kept_in(path) == secret


# Once wrong (randomness.py, kept_in): killed between link and unlink, a second copy of the secret stayed for ever.
@pytest.mark.parametrize("moment", ["before it has its name", "after it has its name"])
def test_a_run_killed_while_its_secret_is_made_leaves_no_copy_of_it(tmp_path, moment):
    """Who finds the secret of a finished run can take the noise away."""
    book, link = tmp_path / "ledger.sqlite", os.link

    def linked(*given):
        if moment.startswith("after"):
            link(*given)
        dying()

    def work():
        os.link = linked
        Run.created(Recipe.parsed(TINY), tmp_path, address=book, seed=None, device="cpu")

    killed(work)
    assert list((tmp_path / ".private").iterdir()) != []
    (run,) = {account.split("/")[0] for account in Ledger(book).reserved()}
    assert fedlens("ledger", "close", run, "--ledger", book).code == 0  # what was set aside is returned
    assert list((tmp_path / ".private").iterdir()) == []


def test_the_books_of_the_stress_would_show_an_undercount(stress, address, tmp_path):
    """An answer without an entry is counted as one; without that, all of the above would mean nothing."""
    account = Account(run="lane 0, run 0", population="users")
    book = Ledger(address)
    book.set_budget(Budget(population="users", epsilon=9.0, delta=1e-5))
    book.reserve([Item(account=account, stage="train", plan=stress.plan(3))])
    book.charge(account, "train", stress.plan(3), release=0, query="a")
    (tmp_path / "lane 0, run 0.answers").write_text("0 0x1p0\n1 0x1p0\n1 0x1p1\n")
    assert stress.compared(address, tmp_path) == (1, 2, 1)
    assert stress.answers(tmp_path / "lane 0, run 0.answers") == {0: ["0x1p0"], 1: ["0x1p0", "0x1p1"]}
