"""PRIVATE. The embedded curator: charges, draws a cohort, sums what it sends, adds noise named by the question."""

import contextlib
import dataclasses
import functools
import hashlib
import json
import os
import platform
import secrets
from typing import Any

import numpy as np
import torch

from fedlens.core import trees
from fedlens.core.randomness import Randomness
from fedlens.core.trees import Tree
from fedlens.curators.contributions import Summed, Work
from fedlens.curators.engine import Engine, made_up
from fedlens.curators.memory import Memory
from fedlens.curators.protocol import Contribute, PrivacySpentError
from fedlens.data.population import Population
from fedlens.ledger import Account, Ledger
from fedlens.privacy import MatrixPlan, Promise, Unit
from fedlens.version import __version__

_FITS_ON_DEVICE = 2**31  # bytes of data that are kept on a GPU
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


@dataclasses.dataclass(frozen=True, kw_only=True)
class Question:
    """PRIVATE. One release that is paid for: who is asked what. Noise and examples are drawn under its name."""

    name: str
    work: Work
    message: Tree
    cohort: np.ndarray
    shape: Tree
    kept: bool = True  # whether units keep what comes of it


class SimulatedCurator:
    """The embedded curator. `position` is the number of releases an earlier, interrupted process already used."""

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
        memory: Memory | Tree | None = None,
        engine: Engine | None = None,
        device: str = "cpu",
        position: int = 0,
    ) -> None:
        if account.simulated != randomness.simulated:
            raise ValueError("Expected the account to say whether the randomness is simulated.")
        if (plan.unit == Unit.EXAMPLE) != population.by_examples:
            raise ValueError(f"Expected data with the units of the plan ({plan.unit}): see Population.by_example.")
        if plan.shards != population.shards:
            raise ValueError("Expected data in the shards of the plan: see Population.dealt.")
        self._memory = memory if isinstance(memory, Memory) else Memory(memory or {})
        if self._memory and len(self._memory) != len(population):
            raise ValueError("Expected a row of memory for every unit, and no others.")
        plan.sampling.check(len(population), population.selected)
        self._population, self._plan, self._ledger, self._account = population, plan, ledger, account
        self._randomness, self._stage = randomness, stage
        self._width = examples_per_unit or max(1, population.most_examples)
        self._position = position
        matrix = isinstance(plan, MatrixPlan)
        self._previous_queries = _queries_before(position, ledger, account.run, stage) if matrix else []
        self._drawn: tuple[int, tuple[torch.Tensor, ...]] = 0, ()  # how many rows of noise, and the strategy's memory
        self._fingerprint = population.fingerprint()
        self._shapes: dict[tuple[Contribute, str], Tree] = {}
        self._on_device: Tree | None = None
        self._device = engine.device if engine else device
        self.engine = engine

    @property
    def memory(self) -> Memory:
        """PRIVATE. To be saved beside the data, and given to the curator that resumes the run."""
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

    def remember(self, contribute: Contribute, message: Tree) -> None:
        """Every unit does this for itself and keeps what comes of it. Nothing is sent, so that nothing is charged.

        What `contribute` would send is dropped unseen, whatever it is.
        """
        if self.remaining <= 0:
            raise PrivacySpentError(f"All {self._plan.releases} releases of the plan are spent.")
        message = self._sent(message)
        work = Work(contribute=contribute, bound=_nothing, grid=self._plan.grid)
        *_, shape = self._tried(work, message)
        engine = Engine.of_all(self._device)
        everyone = np.arange(len(self._population))
        name = self._query(contribute, message, f" remembered by {engine}")
        self._bounded_sum(Question(name=name, work=work, message=message, cohort=everyone, shape=shape), engine)

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
        # Whom a cohort displaces would remember it in later releases, and so would the hidden index of who was drawn:
        # then units keep only what all of them are asked to `remember`.
        kept = not self._plan.sampling.displaces
        return Question(name=query, work=work, message=message, cohort=cohort, shape=shape, kept=kept)

    def _sent(self, message: Tree) -> Tree:
        return trees.moved({name: message[name] for name in sorted(message)}, self._device)

    def _work(self, contribute: Contribute) -> Work:
        return Work(contribute=contribute, bound=self._plan.bound, grid=self._plan.grid)

    def _shape(self, work: Work, message: Tree) -> Tree:
        """What a contribution looks like, learnt from a unit without data: a faulty method fails here, openly."""
        key = work.contribute, str({name: leaf.shape for name, leaf in message.items()})
        if key not in self._shapes:
            blank, memory, shape = self._tried(work, message)
            self._shapes[key] = shape
            if self.engine is None:
                unit = {name: made_up(leaf) for name, leaf in blank.items()}
                units = max(1, round(self._plan.expected_contributors))
                self.engine = Engine.measured(
                    work, message, unit, memory, shape, device=self._device, units=units, rounds=self.remaining
                )
            else:
                self.engine = self.engine.within(work, message, blank, memory)
        return self._shapes[key]

    def _tried(self, work: Work, message: Tree) -> tuple[Tree, Tree, Tree]:
        """A unit without data, what it keeps, and what its contribution looks like."""
        blank = trees.moved(self._population.blank(self._width), self._device)
        memory = self._memory.blank(self._device)
        with torch.no_grad():
            steps, kept = work.steps(message, blank, memory)
        if not trees.same_shape(kept, memory):
            raise ValueError("Expected units to keep what they were given to keep, and nothing else.")
        return blank, memory, trees.zeros(steps)

    @property
    def _named_account(self) -> dict[str, Any]:
        """A seed repeats a run, whatever its name."""
        return {"part": self._account.part} if self._randomness.simulated else dataclasses.asdict(self._account)

    def _query(self, contribute: Contribute, message: Tree, how: str) -> str:
        """Names the question: account, plan, release, data, memories, code, message. Noise and cohort follow from it.

        Asked again, a question meets the same noise, and must then meet the same data: everything that shapes the
        answer is in the name. The ledger keeps it, as a keyed tag against which no guess about the data can be tested.

        Under a matrix plan earlier noise shapes the answer too: each name holds the one before it, so two histories
        that differ anywhere share no later row, and cost together at most what two runs do, whatever a ledger forgot.
        """
        # Another chunk size, or machine, rounds differently; a seed repeats a run on any.
        engine = "" if self._randomness.simulated else f"{self.engine!r}{how} {_arithmetic(self._device)}"
        names = [
            self._named_account,
            engine,
            self._stage,
            self._position,
            self._plan.canonical(),
            self._width,
            self._fingerprint,
            self._memory.name,
            _named(contribute),
            trees.digest(message),
            __version__,
            *self._previous_queries[-1:],
        ]
        return self._randomness.tag(json.dumps(names))

    def _lasting(self, shape: Tree) -> str:
        """Names what all releases of a matrix plan have in common; the ledger holds a run to it.

        A release needs the rows of those before it. Under another secret or of another shape they could not be drawn
        again from the names that the ledger keeps, and nothing else would notice.
        """
        names = [
            self._named_account,
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

    def _bounded_sum(self, question: Question, engine: Engine | None = None) -> Tree:
        engine = engine or self.engine or Engine(device=self._device)

        def do(units: np.ndarray) -> Summed:
            examples, memory = self._examples(question, units), self._memory.rows(units)
            return engine.summed(question.work, question.message, examples, memory, question.shape)

        total = {name: torch.zeros_like(leaf, dtype=torch.float64) for name, leaf in question.shape.items()}
        chunks = [question.cohort[at : at + engine.chunk] for at in range(0, len(question.cohort), engine.chunk)]
        with self._memory.updated_by(question.name) if question.kept else contextlib.nullcontext():
            for units, (steps, memory) in zip(chunks, engine.each(do, chunks), strict=True):
                total = trees.add(total, steps)
                if question.kept:
                    self._memory.replace(units, memory)
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
        self._previous_queries.append(query)
        drawn, memory = self._drawn
        noise: torch.Tensor
        for release, name in enumerate(self._previous_queries[drawn:], drawn):  # a resumed run draws them again
            noise, memory = self._plan.strategy.step(memory, self._row(name, count), release, self._plan.releases)
        self._drawn = len(self._previous_queries), memory
        return noise

    def _row(self, query: str, count: int) -> torch.Tensor:
        """Named by the question: what never meets another needs no ledger to keep it from that."""
        return self._randomness.normal(f"{query}/noise", count, self._device)


def _nothing(contribution: Tree) -> Tree:
    """The bound of what is not sent."""
    return {}


def _queries_before(position: int, ledger: Ledger, run: str, stage: str) -> list[str]:
    """The names of the releases before `position`: their rows of noise are needed again."""
    names = ledger.queries(run, stage)
    if len(names) < position:
        raise PrivacySpentError(f"Expected release {len(names)} of {run!r} next: its ledger knows of no later one.")
    return names[:position]


def _arithmetic(device: str) -> str:
    """All that may round otherwise on another machine: the same noise on sums that differ would give both away."""
    kind = torch.cuda.get_device_name(device) if device.startswith("cuda") else _processor()
    chosen = {name: os.environ.get(name) for name in _ROUNDING if name in os.environ}
    settings = torch.get_float32_matmul_precision(), torch.backends.mkldnn.enabled, torch.get_num_threads(), chosen
    return f"{torch.__version__} {torch.version.cuda} {kind} {settings}"


@functools.lru_cache(maxsize=1)
def _processor() -> str:
    """Its name and what it can do: libraries choose their code by both."""
    lines: list[str] = []
    with contextlib.suppress(OSError), open("/proc/cpuinfo") as file:  # Linux only
        lines = sorted({line.strip() for line in file if line.startswith(("model name", "flags", "Features"))})
    whole = [platform.machine(), platform.processor(), torch.backends.cpu.get_cpu_capability(), *lines]
    return hashlib.sha256("\n".join(whole).encode()).hexdigest()


def _named(contribute: Contribute) -> str:
    """The code that runs beside the data, with its settings; what cannot be named for certain is new every time."""
    place, owner = f"{contribute.__module__}.{contribute.__qualname__}", getattr(contribute, "__self__", None)
    try:
        if dataclasses.is_dataclass(owner) and not isinstance(owner, type):
            return place + json.dumps(owner, default=_described, sort_keys=True)
        if owner is None and getattr(contribute, "__closure__", 1) is None and "<" not in place:
            return place
    except TypeError:
        pass  # settings that are not plain values
    return f"{place} {secrets.token_hex(16)}"


def _described(settings: Any) -> dict[str, Any]:
    """With their kind: two networks of the same sizes are two networks."""
    if not dataclasses.is_dataclass(settings) or isinstance(settings, type):
        raise TypeError  # not plain: cannot be named
    fields = {field.name: getattr(settings, field.name) for field in dataclasses.fields(settings)}
    return {"/kind": f"{type(settings).__module__}.{type(settings).__qualname__}"} | fields
