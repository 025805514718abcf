"""PRIVATE. The embedded curator: contributions vectorised over units, exact sums, noise; the engine times itself."""

import concurrent.futures
import dataclasses
import hashlib
import json
import os
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

import numpy as np
import torch

from fedlens import trees
from fedlens.curator import Contribute, PrivacySpentError
from fedlens.ledger import Account, Ledger
from fedlens.population import Population
from fedlens.privacy import Plan
from fedlens.randomness import Randomness
from fedlens.trees import Tree

Run = Callable[[Contribute, Tree, Tree, Tree, Tree], tuple[Tree, Tree]]
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
class Engine:
    """How many units run at once (`chunk`; 1 is a plain loop) and in how many threads (`workers`), on which device."""

    device: str = "cpu"
    chunk: int = 1
    workers: int = 1
    run: Run | None = None  # the tests' way to force `one_by_one`

    def contributions(
        self, contribute: Contribute, message: Tree, examples: Tree, memory: Tree, shape: Tree
    ) -> tuple[Tree, Tree]:
        """Of one chunk; one bad unit neither stops the others nor is heard of."""
        examples, memory = trees.moved(examples, self.device), trees.moved(memory, self.device)
        run = self.run or (vectorised if len(examples["mask"]) > 1 else one_by_one)
        with torch.no_grad():
            try:
                answer = run(contribute, message, examples, memory, shape)
                if trees.same_shape(answer[0], _repeated(shape, len(examples["mask"]))):
                    return answer
            except Exception:  # whatever it says may quote private data
                pass
            return one_by_one(contribute, message, examples, memory, shape)

    def each(self, work: Callable[[Item], Result], chunks: Iterable[Item]) -> Iterator[Result]:
        """`map` in order: in this thread, or in several that compute with one core each, a few chunks ahead."""
        if self.workers == 1:
            yield from map(work, chunks)
            return
        cores = torch.get_num_threads()
        waiting: list[concurrent.futures.Future[Result]] = []
        try:
            with concurrent.futures.ThreadPoolExecutor(
                self.workers, initializer=torch.set_num_threads, initargs=(1,)
            ) as pool:
                for chunk in chunks:
                    waiting.append(pool.submit(work, chunk))
                    if len(waiting) > self.workers:
                        yield waiting.pop(0).result()
                for future in waiting:
                    yield future.result()
        finally:
            torch.set_num_threads(cores)

    @classmethod
    def measured(
        cls, contribute: Contribute, message: Tree, blank: Tree, memory: Tree, shape: Tree, *, device: str, units: int
    ) -> "Engine":
        """The fastest setting, found by timing made-up units of the right shape; a plain loop is always a candidate."""
        unit = {name: _made_up(leaf) for name, leaf in blank.items()}
        best, best_rate = cls(device=device), 0.0
        for workers in sorted({1, 1 if device != "cpu" else os.cpu_count() or 1}):
            previous = 0.0
            for chunk in (1, 4, 16, 64, 256, 1024):
                engine = cls(device=device, chunk=min(chunk, max(1, units)), workers=workers)
                rate = engine._rate(contribute, message, unit, memory, shape)
                if rate > best_rate:
                    best, best_rate = engine, rate
                if rate < 1.05 * previous or chunk >= units:  # larger chunks cost memory and must pay for it
                    break
                previous = rate
        return best

    def _rate(self, contribute: Contribute, message: Tree, unit: Tree, memory: Tree, shape: Tree) -> float:
        """Units a second, from the second of two goes; 0 where the device's memory does not suffice."""
        examples, memories = _repeated(unit, self.chunk), _repeated(memory, self.chunk)

        def work(_: int) -> float:
            contributions, _memory = self.contributions(contribute, message, examples, memories, shape)
            return float(trees.norm(contributions))  # waits for the device

        try:
            for _ in range(2):
                start = time.perf_counter()
                list(self.each(work, range(self.workers)))
            return self.chunk * self.workers / (time.perf_counter() - start)
        except torch.OutOfMemoryError:
            return 0.0


def _repeated(tree: Tree, times: int) -> Tree:
    return {name: leaf.expand(times, *leaf.shape) for name, leaf in tree.items()}


def _made_up(leaf: torch.Tensor) -> torch.Tensor:
    return torch.rand(leaf.shape).mul(200).to(leaf.dtype) if leaf.dim() > 1 else torch.ones_like(leaf)


class SimulatedCurator:
    """The embedded door. `position` is the number of releases an earlier, interrupted process already used."""

    def __init__(
        self,
        population: Population,
        plan: Plan,
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
        self._population, self._plan, self._ledger, self._account = population, plan, ledger, account
        self._randomness, self._stage, self._examples_per_unit = randomness, stage, examples_per_unit
        self._position = position
        self._memory = memory or {}  # PRIVATE: one row per unit
        self._shapes: dict[str, Tree] = {}
        self._device = engine.device if engine else device
        self.engine = engine

    @property
    def remaining(self) -> int:
        return self._plan.releases - self._position

    def noisy_mean(self, contribute: Contribute, message: Tree) -> Tree:
        if self.remaining <= 0:
            raise PrivacySpentError(f"All {self._plan.releases} releases of the plan are spent.")
        message = trees.moved(message, self._device)
        shape = self._shape(contribute, message)
        query = self._query(contribute, message)
        self._ledger.charge(self._account, self._stage, self._plan, release=self._position, query=query)
        cohort = self._plan.sampling.draw(len(self._population), self._randomness, f"{query}/cohort")
        total = self._bounded_sum(contribute, message, cohort, shape, query)
        self._position += 1
        return self._released(total, query)

    def _shape(self, contribute: Contribute, message: Tree) -> Tree:
        """What a contribution looks like, learnt from a unit without data: a faulty method fails here, openly."""
        key = contribute.__qualname__ + str({name: leaf.shape for name, leaf in message.items()})
        if key not in self._shapes:
            blank = trees.moved(self._population.blank(self._width), self._device)
            memory = {name: torch.zeros_like(leaf[0], device=self._device) for name, leaf in self._memory.items()}
            with torch.no_grad():
                shape, _ = contribute(message, blank, memory)
            self._shapes[key] = {name: torch.zeros_like(leaf) for name, leaf in shape.items()}
            if self.engine is None:
                units = max(1, int(self._plan.expected_contributors))
                self.engine = Engine.measured(
                    contribute, message, blank, memory, shape, device=self._device, units=units
                )
        return self._shapes[key]

    @property
    def _width(self) -> int:
        most = self._population.most_examples
        return max(1, min(most, self._examples_per_unit or most))

    def _query(self, contribute: Contribute, message: Tree) -> str:
        """Names the question: plan, release, code and message. The noise is a function of this name."""
        settings = repr(getattr(contribute, "__self__", "")) + contribute.__qualname__
        names = [
            self._account.run,
            self._stage,
            str(self._position),
            self._plan.canonical(),
            settings,
            trees.digest(message),
        ]
        return hashlib.sha256(json.dumps(names).encode()).hexdigest()

    def _bounded_sum(self, contribute: Contribute, message: Tree, cohort: np.ndarray, shape: Tree, label: str) -> Tree:
        """The exact sum of bounded contributions.

        Every contribution is cut towards zero to whole steps of the plan's grid, and doubles add up to 2^53 steps
        exactly; so the sum does not depend on the order, and one unit moves it by its own bounded contribution and
        nothing else.
        """
        engine, grid = self.engine or Engine(device=self._device), self._plan.grid

        def work(units: np.ndarray) -> tuple[Tree, Tree]:
            examples = self._population.take(units, self._width, self._randomness, f"{label}/examples")
            memory = {name: leaf[units] for name, leaf in self._memory.items()}
            contributions, memory = engine.contributions(contribute, message, examples, memory, shape)
            bounded = torch.func.vmap(self._plan.bound)(contributions)
            steps = {name: torch.trunc(leaf * (1 / grid)).sum(0, dtype=torch.float64) for name, leaf in bounded.items()}
            return steps, memory

        total = {name: torch.zeros_like(leaf, dtype=torch.float64) for name, leaf in shape.items()}
        chunks = [cohort[at : at + engine.chunk] for at in range(0, len(cohort), engine.chunk)]
        for units, (steps, memory) in zip(chunks, engine.each(work, chunks), strict=True):
            total = trees.add(total, steps)
            for name, leaf in memory.items():
                self._memory[name][units] = leaf.to(self._memory[name].device)
        return trees.scaled(total, grid)

    def _released(self, total: Tree, query: str) -> Tree:
        """Noise on the sum, both on one power-of-two grid; then the public divisor."""
        noise = self._randomness.normal(f"{query}/noise", sum(leaf.numel() for leaf in total.values()), self._device)
        grid, answer, at = self._plan.grid, {}, 0
        for name, leaf in total.items():
            piece = noise[at : at + leaf.numel()].view_as(leaf)
            at += leaf.numel()
            noisy = leaf + torch.round(self._plan.stddev * piece / grid) * grid
            answer[name] = (noisy / self._plan.expected_contributors).float()
        return answer
