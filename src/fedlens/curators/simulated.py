"""PRIVATE. The embedded curator: contributions vectorised over units, exact sums, noise; the engine times itself."""

import collections
import concurrent.futures
import contextlib
import dataclasses
import functools
import hashlib
import json
import math
import os
import platform
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

import numpy as np
import torch

from fedlens.core import trees
from fedlens.core.randomness import Randomness
from fedlens.core.replay import Replayed
from fedlens.core.trees import Tree
from fedlens.curators.protocol import Contribute, PrivacySpentError
from fedlens.data.population import Population
from fedlens.ledger import Account, Ledger
from fedlens.privacy import Bound, MatrixPlan, Promise, Unit
from fedlens.version import __version__

Run = Callable[[Contribute, Tree, Tree, Tree, Tree], tuple[Tree, Tree]]
Summed = tuple[Tree, Tree]
_FITS_ON_DEVICE = 2**31  # bytes of data that are kept on a GPU
_WORTH_COMPILING = 120.0  # seconds of work ahead; compiling takes about one minute
_ROUNDING = (  # variables by which libraries choose other code
    "ATEN_CPU_CAPABILITY",
    "DNNL_MAX_CPU_ISA",
    "ONEDNN_MAX_CPU_ISA",
    "MKL_CBWR",
    "MKL_ENABLE_INSTRUCTIONS",
    "MKL_NUM_THREADS",
    "OMP_NUM_THREADS",
    "OPENBLAS_CORETYPE",
)
Result = TypeVar("Result")
Item = TypeVar("Item")


def vectorised(contribute: Contribute, message: Tree, examples: Tree, memory: Tree, shape: Tree) -> tuple[Tree, Tree]:
    return torch.func.vmap(contribute, in_dims=(None, 0, 0))(message, examples, memory)


def one_by_one(contribute: Contribute, message: Tree, examples: Tree, memory: Tree, shape: Tree) -> tuple[Tree, Tree]:
    """The same answer in plain Python: the oracle of `vectorised`, and what a chunk of one unit runs as.

    A unit whose contribution fails or is not of the expected `shape` sends zeros and keeps its memory; nobody is told.
    """
    results = []
    for unit in range(len(examples["mask"])):
        kept = trees.row(memory, unit)
        try:
            contribution, new = contribute(message, trees.row(examples, unit), kept)
            fits = trees.same_shape(contribution, shape) and trees.same_shape(new, kept)
        except Exception:
            fits = False
        results.append((contribution, new) if fits else (trees.zeros(shape), kept))
    contributions = trees.stacked([contribution for contribution, _ in results])
    return contributions, trees.stacked([new for _, new in results]) if memory else {}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Work:
    """What a round asks of every unit: contribute, be bounded, be cut to the grid, be added up."""

    contribute: Contribute
    bound: Bound
    grid: float

    def steps(self, message: Tree, examples: Tree, memory: Tree) -> tuple[Tree, Tree]:
        """One unit's bounded contribution, cut towards zero to whole steps of the grid, and its new memory."""
        contribution, memory = self.contribute(message, examples, memory)
        bounded = self.bound({name: leaf.float() for name, leaf in contribution.items()})
        return {name: torch.trunc(leaf * (1 / self.grid)) for name, leaf in bounded.items()}, memory

    def summed(self, run: Run, message: Tree, examples: Tree, memory: Tree, shape: Tree, real: torch.Tensor) -> Summed:
        """The sum of a chunk in whole steps of the grid, and the new memories; rows that are not `real` count for zero.

        Doubles add up to 2^53 whole steps exactly. So the sum does not depend on the order, and one unit moves it by
        its own bounded contribution and nothing else.
        """
        steps, memory = run(self.steps, message, examples, memory, shape)
        rows = {name: leaf * real.view(-1, *[1] * (leaf.dim() - 1)) for name, leaf in steps.items()}
        return {name: leaf.sum(0, dtype=torch.float64) for name, leaf in rows.items()}, memory


@functools.lru_cache(maxsize=8)
def _compiled(work: Work) -> Callable[..., Summed]:
    return torch.compile(functools.partial(work.summed, vectorised), dynamic=False)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Engine:
    """How many units run at once (`chunk`; 1 is a plain loop), in how many threads (`workers`), on which device."""

    device: str = "cpu"
    chunk: int = 1
    workers: int = 1
    compiled: bool = False
    run: Run | None = None  # the tests' way to force `one_by_one`

    def summed(self, work: Work, message: Tree, examples: Tree, memory: Tree, shape: Tree) -> Summed:
        """Of one chunk; one bad unit neither stops the others nor is heard of."""
        units, rows = len(examples["mask"]), max(self.chunk, len(examples["mask"]))
        real = (torch.arange(rows) < units).float().to(self.device)
        # A short last chunk is filled up: libraries round differently for other sizes, and the number of users in a
        # round must not be seen in anybody's contribution.
        examples, memory = (_filled(trees.moved(tree, self.device), rows) for tree in (examples, memory))
        run = self.run or (vectorised if rows > 1 else one_by_one)
        with torch.no_grad():
            try:
                summed = _compiled(work) if self.compiled else functools.partial(work.summed, run)
                steps, new = summed(message, examples, memory, shape, real)
                fits = trees.same_shape(steps, shape)
            except Exception:  # whatever it says may quote private data
                fits = False
            if not fits:
                steps, new = work.summed(one_by_one, message, examples, memory, shape, real)
        return steps, {name: leaf[:units] for name, leaf in new.items()}

    def each(self, do: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
        """`map` in order: in this thread, or in several that compute with one core each, a few items ahead."""
        if self.workers == 1:
            yield from map(do, items)
            return
        cores = torch.get_num_threads()
        waiting: collections.deque[concurrent.futures.Future[Result]] = collections.deque()
        try:
            with concurrent.futures.ThreadPoolExecutor(self.workers, "unit", torch.set_num_threads, (1,)) as pool:
                for item in items:
                    waiting.append(pool.submit(do, item))
                    if len(waiting) > self.workers:
                        yield waiting.popleft().result()
                while waiting:
                    yield waiting.popleft().result()
        finally:
            torch.set_num_threads(cores)

    @classmethod
    def repeatable(cls, device: str) -> "Engine":
        """For seeds, which promise the same again on any machine: nothing is measured, and every core works alone."""
        return cls(device=device, chunk=16, workers=os.cpu_count() or 1 if device == "cpu" else 1)

    @classmethod
    def measured(
        cls, work: Work, message: Tree, unit: Tree, memory: Tree, shape: Tree, *, device: str, units: int, rounds: int
    ) -> "Engine":
        """The fastest setting, found by timing a made-up `unit`; a plain loop is always a candidate."""

        def rate(engine: Engine) -> float:
            return engine._rate(work, message, unit, memory, shape)

        best, best_rate = cls(device=device), 0.0
        for workers in sorted({1, 1 if device != "cpu" else os.cpu_count() or 1}):
            previous = 0.0
            halves = {math.ceil(units / 2), math.ceil(units / 4)} if units < 1024 else set()
            for chunk in sorted({1, *halves, *(size for size in (4, 16, 64, 256) if size < units)}):
                engine = cls(device=device, chunk=chunk, workers=workers)
                found = rate(engine) * units / (math.ceil(units / chunk) * chunk)  # a last chunk is filled up
                if found > best_rate:
                    best, best_rate = engine, found
                if found < 1.05 * previous:  # larger chunks cost memory and must pay for it
                    break
                previous = found
        if device != "cpu" and units * rounds / best_rate > _WORTH_COMPILING:
            compiled = dataclasses.replace(best, compiled=True)
            best = compiled if rate(compiled) > best_rate else best
        return best

    def _rate(self, work: Work, message: Tree, unit: Tree, memory: Tree, shape: Tree) -> float:
        """Units a second, from the second of two goes; 0 where the device's memory does not suffice."""
        examples, memories = _repeated(unit, self.chunk), _repeated(memory, self.chunk)

        def do(_: int) -> float:
            steps, _new = self.summed(work, message, examples, memories, shape)
            return float(trees.norm(steps))  # waits for the device

        try:
            for _ in range(2):
                start = time.perf_counter()
                list(self.each(do, range(self.workers)))
            return self.chunk * self.workers / (time.perf_counter() - start)
        except torch.OutOfMemoryError:
            return 0.0


def _filled(tree: Tree, rows: int) -> Tree:
    return {
        name: torch.cat([leaf, leaf.new_zeros(rows - len(leaf), *leaf.shape[1:])]) if len(leaf) < rows else leaf
        for name, leaf in tree.items()
    }


def _repeated(tree: Tree, times: int) -> Tree:
    return {name: leaf.expand(times, *leaf.shape) for name, leaf in tree.items()}


def _made_up(leaf: torch.Tensor) -> torch.Tensor:
    return torch.rand(leaf.shape).mul(200).to(leaf.dtype) if leaf.dim() > 1 else torch.ones_like(leaf)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Question:
    """PRIVATE. One release that is paid for: who is asked what. Noise and examples are drawn under its name."""

    name: str
    work: Work
    message: Tree
    cohort: np.ndarray
    shape: Tree


class SimulatedCurator:
    """The embedded door. `position` is the number of releases an earlier, interrupted process already used."""

    def __init__(
        self,
        population: Population,
        plan: Promise,
        *,
        ledger: Ledger,
        account: Account,
        randomness: Randomness,
        stage: str = "train",
        examples_per_unit: int | None = None,
        memory: Tree | None = None,
        engine: Engine | None = None,
        device: str = "cpu",
        position: int = 0,
    ) -> None:
        if account.simulated != randomness.simulated:
            raise ValueError("Expected the account to say whether the randomness is simulated.")
        if (plan.unit == Unit.EXAMPLE) != population.by_examples:
            raise ValueError(
                f"Expected data whose units are those of the plan ({plan.unit}): see Population.by_example."
            )
        if memory and plan.sampling.displaces:
            raise ValueError(
                "Expected no memory under a sampler that displaces units: whom we push out would remember it in later"
                " releases. Take everyone, a balanced schedule, or Poisson without a cap."
            )
        plan.sampling.check(len(population), population.selected)
        self._population, self._plan, self._ledger, self._account = population, plan, ledger, account
        self._randomness, self._stage = randomness, stage
        self._width = examples_per_unit or max(1, population.most_examples)
        self._position = position
        self._memory = memory or {}
        self._earlier = _earlier(ledger, account.run, stage, position) if isinstance(plan, MatrixPlan) else []
        self._drawn: tuple[int, tuple[torch.Tensor, ...]] = 0, ()  # how many rows of noise, and the strategy's memory
        self._fingerprint = population.fingerprint()
        self._shapes: dict[tuple[Contribute, str], Tree] = {}
        self._on_device: Tree | None = None
        self._device = engine.device if engine else device
        self.engine = engine

    @property
    def memory(self) -> Tree:
        """PRIVATE, one row per unit: to be kept beside the data, and given to the curator that resumes the run."""
        return self._memory

    @property
    def remaining(self) -> int:
        return self._plan.releases - self._position

    @property
    def charged(self) -> int:
        """How many releases are booked: at least as many as were made."""
        return self._ledger.spent(self._account.run, self._stage)

    def settle(self, contribute: Contribute, message: Tree) -> None:
        """Finds the engine without asking anything: a question's name depends on it, and may have to be found again."""
        self._shape(self._work(contribute), self._sent(message))

    def noisy_mean(self, contribute: Contribute, message: Tree) -> Tree:
        question = self._asked(contribute, message)
        return self._released(self._bounded_sum(question), question.name)

    def _asked(self, contribute: Contribute, message: Tree, how: str = "") -> Question:
        """Charges for one release and draws its cohort: from here on it is spent, whatever happens."""
        if self.remaining <= 0:
            raise PrivacySpentError(f"All {self._plan.releases} releases of the plan are spent.")
        message, work = self._sent(message), self._work(contribute)
        shape = self._shape(work, message)
        query = self._query(contribute, message, how)
        if isinstance(self._plan, MatrixPlan):
            query = f"{self._lasting(shape)}/{query}"
        self._ledger.charge(self._account, self._stage, self._plan, release=self._position, query=query)
        cohort = self._plan.sampling.draw(len(self._population), self._randomness, f"{query}/cohort", self._position)
        return Question(name=query, work=work, message=message, cohort=cohort, shape=shape)

    def _sent(self, message: Tree) -> Tree:
        return trees.moved({name: message[name] for name in sorted(message)}, self._device)

    def _work(self, contribute: Contribute) -> Work:
        return Work(contribute=contribute, bound=self._plan.bound, grid=self._plan.grid)

    def _shape(self, work: Work, message: Tree) -> Tree:
        """What a contribution looks like, learnt from a unit without data: a faulty method fails here, openly."""
        key = work.contribute, str({name: leaf.shape for name, leaf in message.items()})
        if key not in self._shapes:
            blank = trees.moved(self._population.blank(self._width), self._device)
            memory = {name: torch.zeros_like(leaf[0], device=self._device) for name, leaf in self._memory.items()}
            with torch.no_grad():
                steps, _ = work.steps(message, blank, memory)
            self._shapes[key] = shape = trees.zeros(steps)
            if self.engine is None:
                unit = {name: _made_up(leaf) for name, leaf in blank.items()}
                units = max(1, round(self._plan.expected_contributors))
                self.engine = Engine.measured(
                    work, message, unit, memory, shape, device=self._device, units=units, rounds=self.remaining
                )
        return self._shapes[key]

    def _query(self, contribute: Contribute, message: Tree, how: str) -> str:
        """Names the question: account, plan, release, data, memories, code, message. Noise and cohort follow from it.

        Asked again, a question meets the same noise, and must then meet the same data: everything that shapes the
        answer is in the name. The ledger keeps it, as a keyed tag against which no guess about the data can be tested.

        Under a matrix plan earlier noise shapes the answer too: each name holds the one before it, so two histories
        that differ anywhere share no later row, and cost together at most what two runs do, whatever a ledger forgot.
        """
        account = dataclasses.asdict(self._account)
        engine = (
            f"{self.engine!r}{how} {_arithmetic(self._device)}"  # another chunk size, or machine, rounds differently
        )
        if self._randomness.simulated:
            account, engine = {"part": self._account.part}, ""  # a seed repeats a run, whatever its name and machine
        names = [
            account,
            engine,
            self._stage,
            self._position,
            self._plan.canonical(),
            self._width,
            self._fingerprint,
            trees.digest(self._memory),
            _named(contribute),
            trees.digest(message),
            __version__,
            *self._earlier[-1:],
        ]
        return self._randomness.tag(json.dumps(names))

    def _lasting(self, shape: Tree) -> str:
        """Names what all releases of a matrix plan have in common; the ledger holds a run to it.

        A release needs the rows of those before it. Under another secret or of another shape they could not be drawn
        again from the names that the ledger keeps, and nothing else would notice.
        """
        names = [
            {"part": self._account.part} if self._randomness.simulated else dataclasses.asdict(self._account),
            self._stage,
            self._plan.canonical(),
            self._fingerprint,  # other data may give a unit another slot, and with it more turns than were promised
            {name: list(leaf.shape) for name, leaf in shape.items()},
            __version__,
        ]
        return self._randomness.tag(json.dumps(names, sort_keys=True))

    def _examples(self, question: Question, units: np.ndarray) -> Tree:
        """The units' examples; from a copy on the GPU where the data fit there, so that only row numbers travel."""
        if not self._device.startswith("cuda") or self._population.nbytes > _FITS_ON_DEVICE:
            return self._population.take(units, self._width, self._randomness, f"{question.name}/examples")
        if self._on_device is None:
            columns = self._population.columns.items()
            self._on_device = {name: torch.from_numpy(np.array(column)).to(self._device) for name, column in columns}
        rows, mask = self._population.places(units, self._width, self._randomness, f"{question.name}/examples")
        place, taken = (torch.from_numpy(array).to(self._device) for array in (rows, mask))
        examples = {"mask": taken.float()}
        for name, column in self._on_device.items():
            picked = column[place] if len(column) else column.new_zeros(*place.shape, *column.shape[1:])
            # Not multiplied: a place that is not taken shows somebody's row, and NaN times zero would be NaN.
            examples[name] = picked.masked_fill(~taken.view(*taken.shape, *[1] * (picked.dim() - 2)), 0)
        return examples

    def _bounded_sum(self, question: Question) -> Tree:
        engine = self.engine or Engine(device=self._device)

        def do(units: np.ndarray) -> Summed:
            memory = {name: leaf[units] for name, leaf in self._memory.items()}
            examples = self._examples(question, units)
            return engine.summed(question.work, question.message, examples, memory, question.shape)

        total = {name: torch.zeros_like(leaf, dtype=torch.float64) for name, leaf in question.shape.items()}
        chunks = [question.cohort[at : at + engine.chunk] for at in range(0, len(question.cohort), engine.chunk)]
        for units, (steps, memory) in zip(chunks, engine.each(do, chunks), strict=True):
            total = trees.add(total, steps)
            for name, leaf in memory.items():
                self._memory[name][units] = leaf.to(self._memory[name].device)
        return total

    def _released(self, steps: Tree, query: str) -> Tree:
        """Noise on the sum, both on one power-of-two grid; then the public divisor."""
        total = trees.scaled(steps, self._plan.grid)
        self._position += 1
        noise = self._noise(query, sum(leaf.numel() for leaf in total.values()))
        grid, answer, at = self._plan.grid, {}, 0
        for name in sorted(total):  # not in the order of a dict: the same question must meet the same noise everywhere
            leaf = total[name]
            piece = noise[at : at + leaf.numel()].view_as(leaf)
            at += leaf.numel()
            noisy = leaf + torch.round(self._plan.stddev * piece / grid) * grid
            answer[name] = (noisy / self._plan.expected_contributors).float()
        return answer

    def _noise(self, query: str, count: int) -> torch.Tensor:
        """Of the latest release: independent of all others, or the next row of C^-1 z."""
        if not isinstance(self._plan, MatrixPlan):
            return self._row(query, count)
        self._earlier.append(query)
        drawn, memory = self._drawn
        for release, name in enumerate(self._earlier[drawn:], drawn):  # a resumed run draws the earlier rows again
            noise, memory = self._plan.strategy.step(memory, self._row(name, count), release, self._plan.releases)
        self._drawn = len(self._earlier), memory
        return noise

    def _row(self, query: str, count: int) -> torch.Tensor:
        """Named by the question: what never meets another needs no ledger to keep it from that."""
        return self._randomness.normal(f"{query}/noise", count, self._device)


def _earlier(ledger: Ledger, run: str, stage: str, position: int) -> list[str]:
    """The names of the releases before `position`: their rows of noise are needed again."""
    names = ledger.queries(run, stage)
    if len(names) < position:
        raise PrivacySpentError(f"Expected release {len(names)} of {run!r} next: its ledger knows of no later one.")
    return names[:position]


def _arithmetic(device: str) -> str:
    """All that may round otherwise on another machine: the same noise on sums that differ would give both away."""
    kind = torch.cuda.get_device_name(device) if device.startswith("cuda") else _processor()
    told = {name: os.environ.get(name) for name in _ROUNDING if name in os.environ}
    settings = torch.get_float32_matmul_precision(), torch.backends.mkldnn.enabled, torch.get_num_threads(), told
    return f"{torch.__version__} {torch.version.cuda} {kind} {settings}"


@functools.lru_cache(maxsize=1)
def _processor() -> str:
    """Its name and what it can do: libraries choose their code by both."""
    told = []
    with contextlib.suppress(OSError), open("/proc/cpuinfo") as lines:  # Linux only
        told = sorted({line.strip() for line in lines if line.startswith(("model name", "flags", "Features"))})
    whole = [platform.machine(), platform.processor(), torch.backends.cpu.get_cpu_capability(), *told]
    return hashlib.sha256("\n".join(whole).encode()).hexdigest()


def _named(contribute: Contribute) -> str:
    """The code that runs beside the data, with its settings; what cannot be named for certain is new every time."""
    place, owner = f"{contribute.__module__}.{contribute.__qualname__}", getattr(contribute, "__self__", None)
    try:
        if dataclasses.is_dataclass(owner) and not isinstance(owner, type):
            return place + json.dumps(dataclasses.asdict(owner), sort_keys=True)
        if owner is None and getattr(contribute, "__closure__", 1) is None and "<" not in place:
            return place
    except TypeError:
        pass  # settings that are not plain values
    return f"{place} {secrets.token_hex(16)}"


class Together:
    """Several doors asked at once, in one vectorised pass: many seeds of one experiment for little more than one.

    Every door keeps its own data, plan, ledger, cohort and noise; a sum of one never meets a unit of another.
    """

    def __init__(self, doors: Sequence[SimulatedCurator], chunk: int) -> None:
        if any(door.memory for door in doors):
            raise ValueError("Expected doors whose units keep nothing: memories are not stacked.")
        if len({(door._plan.bound, door._plan.grid, door._device) for door in doors}) > 1:
            raise ValueError("Expected doors with one bound, on one device: their units are bounded in one pass.")
        self._doors, self._chunk = doors, chunk
        self._passes: dict[Work, Replayed] = {}  # the last kind of pass, recorded

    @property
    def remaining(self) -> int:
        return min(door.remaining for door in self._doors)

    def noisy_means(self, contribute: Contribute, messages: Sequence[Tree]) -> list[Tree]:
        """One answer from each door."""
        how = f" together {len(self._doors)} x {self._chunk}"
        doors = zip(self._doors, messages, strict=True)
        asked = [door._asked(contribute, message, how) for door, message in doors]
        try:
            sums = self._stacked_sums(asked)
        except torch.OutOfMemoryError:
            raise  # of shapes, not of data; the other way would take hours without a word
        except Exception:  # whatever it says may quote private data; each door has its own way with a bad unit
            sums = [door._bounded_sum(question) for door, question in zip(self._doors, asked, strict=True)]
        return [door._released(steps, q.name) for door, steps, q in zip(self._doors, sums, asked, strict=True)]

    def _stacked_sums(self, asked: Sequence[Question]) -> list[Tree]:
        messages = trees.stacked([question.message for question in asked])
        device = next(iter(messages.values())).device
        totals = trees.stacked([{k: v.double() for k, v in trees.zeros(question.shape).items()} for question in asked])
        if asked[0].work not in self._passes:
            self._passes = {asked[0].work: Replayed(functools.partial(_stacked_pass, asked[0].work))}
        run = self._passes[asked[0].work]
        for at in range(0, max(len(question.cohort) for question in asked), self._chunk):
            cohorts = [question.cohort[at : at + self._chunk] for question in asked]
            taken = [door._examples(q, units) for door, q, units in zip(self._doors, asked, cohorts, strict=True)]
            examples = trees.stacked([_filled(tree, self._chunk) for tree in taken])
            real = torch.stack([torch.arange(self._chunk) < len(units) for units in cohorts])
            totals = trees.add(totals, run(messages, trees.moved(examples | {"/real": real}, device)))
        return [trees.row(totals, place) for place in range(len(asked))]


def _stacked_pass(work: Work, messages: Tree, examples: Tree) -> Tree:
    """The contributions of [doors, units] in one go, summed over the units that are real."""

    def steps(message: Tree, units: Tree) -> Tree:
        return torch.func.vmap(lambda unit: work.steps(message, unit, {})[0])(units)

    real = examples["/real"]
    with torch.no_grad():
        rows = torch.func.vmap(steps)(messages, {k: v for k, v in examples.items() if k != "/real"})
        kept = {name: leaf * real.view(*real.shape, *[1] * (leaf.dim() - 2)) for name, leaf in rows.items()}
        return {name: leaf.sum(1, dtype=torch.float64) for name, leaf in kept.items()}
