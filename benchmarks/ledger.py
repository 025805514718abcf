"""What the ledger withstands and what it costs, on SQLite and, where it is installed, PostgreSQL.

    python benchmarks/ledger.py [--stores sqlite postgres] [--kills 200] [--run-kills 24] [--entries 100000]

- race:  16 processes ask for the last part of a budget at the same moment. Granted must be what fits, exactly.
- kills: processes that ask a curator, several at a time on one ledger, are killed with SIGKILL at
         random moments and started again, where their answers end or a little before. No answer may be missing in the
         books (undercounts), and a release that is asked for again must be answered the same.
- runs:  the same with whole runs, from the recipe to the report.
- price: what everything in a large ledger adds up to (the first time a process asks), and what one more entry takes.
"""

import argparse
import concurrent.futures
import contextlib
import dataclasses
import itertools
import json
import math
import multiprocessing
import os
import pathlib
import platform
import random
import sqlite3
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

from fedlens.core.randomness import Randomness
from fedlens.core.trees import Tree
from fedlens.curators.engine import Engine
from fedlens.curators.protocol import PrivacySpentError
from fedlens.curators.simulated import SimulatedCurator
from fedlens.data.population import Population
from fedlens.ledger import Account, Budget, Entry, Item, Ledger
from fedlens.ledger.storage import COLUMNS
from fedlens.privacy import Everyone, L2Clip, Neighbours, Plan, Poisson, Unit
from fedlens.recipes.recipe import Recipe
from fedlens.runs import run as runs

DELTA = 1e-5
KIND = Unit.USER, Neighbours.ADD_REMOVE
PRELOADED = ["numpy", "torch", "scipy.optimize", "scipy.special", "sklearn.datasets", "fedlens.runs.run", "psycopg"]
RECIPE = """
name = "victim"
task = "T1"
side = 8
[data]
source = "digits"
deal_to = 30
[selections.all]
by = "everyone"
[privacy]
noise_multiplier = 3.0
delta = 1e-5
rounds = 25
units = 30
population = 40
clip = 0.1
minimum_units = 5
[model]
critic_widths = [4]
generator_latent = 4
generator_hidden = 8
generator_widths = [4]
[training]
batch = 4
local_steps = 1
generator_steps = 1
generator_batch = 4
"""


def plan(releases: int, noise: float = 5.0, rate: float | None = None) -> Plan:
    return Plan(
        sampling=Everyone() if rate is None else Poisson(rate=rate, population=10_000),
        bound=L2Clip(norm=1.0),
        noise_multiplier=noise,
        releases=releases,
        expected_contributors=9.0,
    )


def spawner() -> Any:
    """Children that start at once: they are forked from a process that has imported everything already."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    return context


# A race for the last part of a budget


def racer(address: str, name: str, tries: int, start: Any, answer: Any) -> None:
    start.wait(120)
    granted, errors, ledger = 0, [], Ledger(address)
    for number in range(tries):
        item = Item(account=Account(run=f"{name}/{number}", population="users"), stage="train", plan=plan(1))
        try:
            ledger.reserve([item])
            granted += 1
        except PrivacySpentError:
            continue
        except Exception as error:
            errors.append(f"{type(error).__name__}: {error}")
    answer.send((granted, errors))


def race(address: str, processes: int = 16, tries: int = 3, left: int = 7) -> dict[str, Any]:
    """Each asks for `tries` releases where `left` fit: how many were granted, and what the books say."""
    spent, context = 20, spawner()
    ledger = Ledger(address)
    budget = (plan(spent + left).epsilon(DELTA) + plan(spent + left + 1).epsilon(DELTA)) / 2
    ledger.set_budget(Budget(population="users", epsilon=budget, delta=DELTA))
    ledger.reserve([Item(account=Account(run="before", population="users"), stage="train", plan=plan(spent))])
    start, ends = context.Barrier(processes), [context.Pipe(duplex=False) for _ in range(processes)]
    racers = [
        context.Process(target=racer, args=(address, f"racer {number}", tries, start, answer))
        for number, (_, answer) in enumerate(ends)
    ]
    for process in racers:
        process.start()
    outcomes = [answer.recv() if answer.poll(180) else (0, ["no answer"]) for answer, _ in ends]
    for process in racers:
        process.join(60)
    promised = ledger.standing("users", KIND).promised
    return {
        "granted": sum(granted for granted, _ in outcomes),
        "allowed": left,
        "asked": processes * tries,
        "errors": [error for _, errors in outcomes for error in errors],
        "epsilon": promised.epsilon if promised else 0.0,
        "budget": budget,
        "problems": ledger.verify(),
    }


# kill -9


@dataclasses.dataclass
class Toll:
    """What was seen outside, against what is in the books."""

    kills: int = 0
    finished: int = 0  # runs
    answers: int = 0  # releases whose answer was seen outside
    repeated: int = 0  # releases that were answered more than once
    differing: int = 0  # of those, answered differently
    booked: int = 0  # releases in the books
    undercounts: int = 0  # answers that are not
    errors: list[str] = dataclasses.field(default_factory=list)
    verified: int = 0
    problems: list[str] = dataclasses.field(default_factory=list)


def weighed(message: Tree, examples: Tree, memory: Tree) -> tuple[Tree, Tree]:
    return {"sum": examples["x"].sum()[None] * message["state"].cos()}, memory


def population() -> Population:
    return Population.from_arrays("users", {"x": np.linspace(-1, 1, 12, dtype=np.float32)}, np.full(6, 2))


def victim(address: str, folder: pathlib.Path, run: str, releases: int) -> None:
    """Asks again and again; what it asks depends on the last answer, as in training. Every answer goes to a file."""
    torch.set_num_threads(1)
    path, given = folder / f"{run}.answers", answers(folder / f"{run}.answers")
    done = max(given, default=-1) + 1
    # Where a checkpoint may lie: at the last answer or a little before. From there all questions are the same again.
    position = max(0, done - random.randrange(4))
    state = torch.tensor([float.fromhex(given[position - 1][0]) if position else 0.0])
    account = Account(run=run, population="users")
    ledger = Ledger(address)
    ledger.reserve([Item(account=account, stage="train", plan=plan(releases))])
    curator = SimulatedCurator(
        population(),
        plan(releases),
        ledger=ledger,
        account=account,
        randomness=Randomness.kept_in(folder / f"{run}.key"),
        engine=Engine(),
        position=position,
    )
    file = os.open(path, os.O_CREAT | os.O_APPEND | os.O_WRONLY)
    while curator.remaining:
        release = releases - curator.remaining
        state = curator.noisy_mean(weighed, {"state": state})["sum"]
        os.write(file, f"{release} {float(state).hex()}\n".encode())  # one call: it is there, or it is not
    ledger.close(run)


def answers(path: pathlib.Path) -> dict[int, list[str]]:
    """All answers that were seen outside, by release."""
    by_release: dict[int, list[str]] = {}
    for line in path.read_text().splitlines() if path.exists() else []:
        release, answer = line.split()
        by_release.setdefault(int(release), []).append(answer)
    return by_release


def guarded(target: Callable[..., None], errors: str, *arguments: Any) -> None:
    """What goes wrong in a child is told in a file, and only there."""
    try:
        target(*arguments)
    except BaseException as error:
        pathlib.Path(errors).write_text(f"{type(error).__name__}: {error}")
        os._exit(1)


class Killer:
    """Starts a process again and again, and kills it after a random while, until it has killed often enough.

    Who is killed lives a little longer the next time, who came to an end less long: on a slow machine as on a fast
    one, most kills come while there is work to lose.
    """

    def __init__(self, folder: pathlib.Path, seed: int, seconds: float) -> None:
        self._folder, self._random, self._seconds = folder, random.Random(seed), seconds
        self._context, self._numbers = spawner(), itertools.count()
        self.kills, self.finished = 0, 0
        self.errors: list[str] = []

    def once(self, target: Callable[..., None], *arguments: Any, spare: bool = False) -> bool:
        """Whether it came to its end, unkilled."""
        errors = self._folder / f"{id(self)}-{next(self._numbers)}.error"
        process = self._context.Process(target=guarded, args=(target, str(errors), *arguments))
        process.start()
        process.join(120 if spare else self._random.uniform(0, self._seconds))
        if process.is_alive():
            process.kill()
            self.kills += 1
            self._seconds *= 1.1
            process.join()
            return False
        if errors.exists():
            self.errors.append(errors.read_text())
        self._seconds *= 0.7
        ended = bool(process.exitcode == 0)
        self.finished += ended
        return ended


def survived(address: str, folder: pathlib.Path, kills: int = 200, lanes: int = 4, batch: int = 50) -> Toll:
    """Kills in several lanes at once, on one ledger; after every batch, all runs are compared with the books."""
    Ledger(address).set_budget(Budget(population="users", epsilon=1e6, delta=DELTA))
    toll, names = Toll(), [f"lane {lane}, run {number}" for lane in range(lanes) for number in range(10_000)]
    waiting = {lane: iter(names[lane * 10_000 : (lane + 1) * 10_000]) for lane in range(lanes)}
    current = {lane: next(names) for lane, names in waiting.items()}
    killers = {lane: Killer(folder, lane, seconds=0.3) for lane in range(lanes)}

    def lane_of(lane: int, until: int) -> None:
        while killers[lane].kills < until:
            failures = len(killers[lane].errors)
            ended = killers[lane].once(victim, address, folder, current[lane], 12)
            if ended or len(killers[lane].errors) > failures:
                current[lane] = next(waiting[lane])

    for stop in range(batch, kills + batch, batch):
        with concurrent.futures.ThreadPoolExecutor(lanes) as threads:
            list(threads.map(lane_of, range(lanes), [math.ceil(min(stop, kills) / lanes)] * lanes))
        toll.verified += 1
        toll.problems += Ledger(address).verify()
        toll.undercounts += compared(address, folder)[0]
    for lane in range(lanes):  # and in the end all of them come to theirs
        killers[lane].once(victim, address, folder, current[lane], 12, spare=True)
    toll.kills = sum(killer.kills for killer in killers.values())
    toll.finished = sum(killer.finished for killer in killers.values())
    toll.errors = [error for killer in killers.values() for error in killer.errors]
    undercounts, toll.answers, toll.booked = compared(address, folder)
    toll.undercounts += undercounts
    for path in folder.glob("*.answers"):
        for given in answers(path).values():
            toll.repeated += len(given) > 1
            toll.differing += len(set(given)) > 1
    toll.verified += 1
    toll.problems += Ledger(address).verify()
    return toll


def compared(address: str, folder: pathlib.Path) -> tuple[int, int, int]:
    """Answers that are not in the books, answers, entries in the books; of all runs together."""
    ledger, missing, seen, booked = Ledger(address), 0, 0, 0
    for path in sorted(folder.glob("*.answers")):
        given, entered = len(answers(path)), ledger.spent(path.stem, "train")
        missing, seen, booked = missing + max(0, given - entered), seen + given, booked + entered
    return missing, seen, booked


# kill -9 of whole runs


def whole_run(address: str, out: pathlib.Path) -> None:
    """A run of a recipe: the unfinished one, if there is one, or a new one."""
    torch.set_num_threads(1)
    started = [path.parent for path in out.glob("*/run.json") if not (path.parent / "MANIFEST.json").exists()]
    if started:
        run = runs.Run.opened(started[0])
    else:
        run = runs.Run.created(Recipe.parsed(RECIPE), out, address=address, seed=None, device="cpu")
    run.executed(lambda *progress: None)


def runs_survived(address: str, folder: pathlib.Path, kills: int = 24, lanes: int = 2) -> Toll:
    Ledger(address).set_budget(Budget(population="digits", epsilon=1e6, delta=DELTA))
    toll, killers = Toll(), [Killer(folder, lane, seconds=1.2) for lane in range(lanes)]

    def lane_of(lane: int) -> None:
        out, killer = folder / f"lane{lane}", killers[lane]
        while killer.kills < math.ceil(kills / lanes) and len(killer.errors) < 5:
            killer.once(whole_run, address, out)
        killer.once(whole_run, address, out, spare=True)

    with concurrent.futures.ThreadPoolExecutor(lanes) as threads:
        list(threads.map(lane_of, range(lanes)))
    ledger, models = Ledger(address), {}
    for path in sorted(folder.glob("lane*/*/run.json")):
        run = f"{path.parent.name}/all"
        lines = path.parent / "all" / "metrics.jsonl"
        seen = len(lines.read_text().splitlines()) if lines.exists() else 0
        seen += (path.parent / "all" / "count.json").exists()
        entered = ledger.spent(run, "train") + ledger.spent(run, "count")
        toll.answers, toll.booked = toll.answers + seen, toll.booked + entered
        toll.undercounts += max(0, seen - entered)
        if (path.parent / "MANIFEST.json").exists():
            toll.finished += 1
            models[run] = json.loads((path.parent / "MANIFEST.json").read_text())["all/model.safetensors"]
    toll.kills, toll.errors = sum(killer.kills for killer in killers), [e for k in killers for e in k.errors]
    toll.verified, toll.problems = 1, ledger.verify(models)
    return toll


# Prices


def filled(address: str, entries: int, plans: list[Plan], parts: int = 2) -> None:
    """Writes entries by the thousand, chained as the ledger would: runs on two groups, each with all its releases."""
    ledger = Ledger(address)
    numbers, previous, rows, at = itertools.count(1), "", [], "2026-01-01T00:00:00.000000+00:00"

    def add(kind: str, run: str, release: int = -1, body: dict[str, Any] | None = None) -> None:
        nonlocal previous
        stage = "train" if kind != "close" else ""
        place: dict[str, Any] = {"run": run, "stage": stage, "release": release, "query": f"{release}"}
        text = json.dumps(body or {}, sort_keys=True)
        entry = Entry(
            id=next(numbers), at=at, kind=kind, who="bench", population="users", **place, body=text, signer="",
            signature="", hash="",
        )  # fmt: skip
        entry = dataclasses.replace(entry, hash=(previous := entry.hashed(previous)))
        rows.append(dataclasses.astuple(entry))

    releases = plans[0].releases
    for run in range(math.ceil(entries / releases)):
        name, held = f"run {run // parts}/{run % parts}", plans[run % len(plans)]
        facts = {"plan": held.to_dict(), "partition": f"run {run // parts}", "part": f"{run % parts}"}
        add("reserve", name, body=facts | {"simulated": False, "recipe": "", "why": "", "request": None})
        for release in range(releases):
            add("release", name, release)
        add("close", name, body={"model": "", "returned": {"train": 0}})
    mark = f"({', '.join('?' * 13)})"
    with ledger._store.transaction():
        for start in range(0, len(rows), 500):
            some = rows[start : start + 500]
            values = [value for row in some for value in row]
            ledger._store.rows(f"insert into entries ({COLUMNS}) values {', '.join([mark] * len(some))}", values)
        ledger._store.rows("update about set entries = ?, head = ?", (len(rows), previous))


def seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def charged(address: str, run: str, number: int) -> float:
    """Seconds for one of so many releases."""
    ledger, account = Ledger(address), Account(run=run, population="a small one")
    ledger.reserve([Item(account=account, stage="train", plan=plan(number))])

    def work() -> None:
        for release in range(number):
            ledger.charge(account, "train", plan(number), release=release, query="a")

    return seconds(work) / number


def priced(address: str, entries: int, plans: list[Plan]) -> dict[str, Any]:
    """What a ledger of so many entries costs."""
    filled(address, entries, plans)
    ledger = Ledger(address)
    number, standings = ledger.head()[0], []
    price = seconds(lambda: standings.append(ledger.standing("users", KIND)))
    promised, problems = standings[-1].promised, list[str]()
    verify = seconds(lambda: problems.extend(ledger.verify()))
    return {
        "entries": number,
        "epsilon": promised.epsilon if promised else 0.0,
        "price": price,
        "verify": verify,
        "problems": problems,
        "charge": charged(address, "another run", 200),
    }


LEDGERS = {
    "1,000 noises, everyone": [plan(100, 30 + run / 100) for run in range(1000)],
    "1 sampled plan": [plan(100, 2.0, rate=0.01)],
    "10 sampled plans": [plan(100, 2.0 + number / 10, rate=0.01) for number in range(10)],
}


# The table


@contextlib.contextmanager
def stores(names: list[str]) -> Iterator[dict[str, Callable[[], str]]]:
    """For each store that is there, what makes an empty place for a ledger."""
    sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "tests"))
    import conftest  # the tests' own server

    with contextlib.ExitStack() as stack:
        places: dict[str, Callable[[], str]] = {}
        if "sqlite" in names:
            folder, numbers = stack.enter_context(tempfile.TemporaryDirectory()), itertools.count()
            places["SQLite"] = lambda: f"{folder}/{next(numbers)}.sqlite"
        if "postgres" in names and (obstacle := conftest.obstacle()):
            print(f"{obstacle}\n")
        elif "postgres" in names:
            places["PostgreSQL"] = stack.enter_context(conftest.server()).empty
        yield places


def in_a_folder(work: Callable[..., Toll], address: str, kills: int) -> Toll:
    with tempfile.TemporaryDirectory() as folder:
        return work(address, pathlib.Path(folder), kills)


def apart(work: Callable[..., Any], *arguments: Any) -> Any:
    """In a process of its own, which remembers no price."""
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=spawner()) as process:
        return process.submit(work, *arguments).result()


def row(*cells: object) -> None:
    print(f"| {' | '.join(map(str, cells))} |", flush=True)


def head(*cells: str) -> None:
    print()
    row(*cells)
    print("|---" * len(cells) + "|", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stores", nargs="+", choices=["sqlite", "postgres"], default=["sqlite", "postgres"])
    parser.add_argument("--races", type=int, default=5)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--run-kills", type=int, default=24)
    parser.add_argument("--entries", type=int, default=100_000)
    options = parser.parse_args()
    with stores(options.stores) as fresh:
        about = f"SQLite {sqlite3.sqlite_version}, Python {platform.python_version()}"
        print(f"{time.strftime('%Y-%m-%d')}, {os.cpu_count()} CPU cores, {platform.machine()}, {about}")
        head("store", "16 processes race", "granted", "fit", "errors", "do not verify")
        for store, empty in fresh.items():
            races = [race(empty()) for _ in range(options.races)]
            granted, allowed = ([one[key] for one in races] for key in ("granted", "allowed"))
            errors, broken = (sum(bool(one[key]) for one in races) for key in ("errors", "problems"))
            row(store, f"{len(races)} races", sum(granted), sum(allowed), errors, broken)
        columns = ["store", "what is killed", "kills", "runs finished", "releases seen", "booked", "undercounts"]
        head(*columns, "asked again", "answered differently", "errors", "do not verify")
        for store, empty in fresh.items():
            for name, work, kills in (
                ("questions to a curator", survived, options.kills),
                ("whole runs", runs_survived, options.run_kills),
            ):
                toll = in_a_folder(work, empty(), kills)
                cells = [toll.kills, toll.finished, toll.answers, toll.booked, toll.undercounts, toll.repeated]
                row(store, name, *cells, toll.differing, len(toll.errors), f"{len(toll.problems)} of {toll.verified}")
                for line in [*toll.errors, *toll.problems]:
                    print(line)
        head("store", "ledger", "entries", "priced in", "verified in", "one more release", "in an empty ledger")
        for store, empty in fresh.items():
            alone = charged(empty(), "run", 200)
            for name, plans in LEDGERS.items():
                costs = apart(priced, empty(), options.entries, plans)
                times = f"{costs['price']:.2f} s", f"{costs['verify']:.2f} s", f"{1e3 * costs['charge']:.1f} ms"
                row(store, name, f"{costs['entries']:,}", *times, f"{1e3 * alone:.1f} ms")


if __name__ == "__main__":
    main()
