"""PRIVATE. How contributions are computed: how many at once, in how many threads, on which device; it times itself."""

import collections
import concurrent.futures
import dataclasses
import functools
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import torch
from torch.overrides import TorchFunctionMode

from fedlens.core import trees
from fedlens.core.trees import Tree
from fedlens.curators.contributions import Run, Summed, Work, filled, one_by_one, vectorised

_WORTH_COMPILING = 120.0  # seconds of work ahead; compiling takes about one minute
_TOGETHER = 64  # units at once on a GPU
_ROOM = 2**27  # bytes of a chunk's largest tensor on a CPU, in each thread: a handful of such are alive at once
Result = TypeVar("Result")
Item = TypeVar("Item")


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
        examples, memory = (filled(trees.moved(tree, self.device), rows) for tree in (examples, memory))
        run = self.run or (vectorised if rows > 1 else one_by_one)
        with torch.no_grad():
            try:
                summed = _compiled(work) if self.compiled else functools.partial(work.summed, run)
                steps, new = summed(message, examples, memory, shape, real)
                fits = trees.same_shape(steps, shape) and trees.same_shape(new, memory)
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

    def within(self, work: Work, message: Tree, blank: Tree, memory: Tree) -> "Engine":
        """With no more units at once than there is room for.

        Told from shapes alone, and of no machine: a seed that is used elsewhere meets the same chunks.
        """
        if self.chunk == 1:
            return self
        return dataclasses.replace(self, chunk=min(self.chunk, _most(self.device, work, message, blank, memory)))

    @classmethod
    def repeatable(cls, device: str) -> "Engine":
        """For seeds, which promise the same again on any machine: nothing is measured, and every core works alone."""
        return cls(device=device, chunk=16, workers=os.cpu_count() or 1 if device == "cpu" else 1)

    @classmethod
    def of_all(cls, device: str) -> "Engine":
        """For what every unit does for itself, also where few are asked at a time.

        On a CPU every core works alone: kernels of many units at once gain nothing there (docs/benchmarks.md).
        """
        return cls(workers=os.cpu_count() or 1) if device == "cpu" else cls(device=device, chunk=_TOGETHER)

    @classmethod
    def measured(
        cls, work: Work, message: Tree, unit: Tree, memory: Tree, shape: Tree, *, device: str, units: int, rounds: int
    ) -> "Engine":
        """The fastest setting, found by timing a made-up `unit`; a plain loop is always a candidate."""

        def rate(engine: Engine) -> float:
            return engine._rate(work, message, unit, memory, shape)

        best, best_rate = cls(device=device), 0.0
        most = _most(device, work, message, trees.zeros(unit), memory)
        for workers in sorted({1, 1 if device != "cpu" else os.cpu_count() or 1}):
            previous = 0.0
            halves = {math.ceil(units / 2), math.ceil(units / 4)} if units < 1024 else set()
            sizes = {1, *halves, *(size for size in (4, 16, 64, 256) if size < units)}
            for chunk in sorted(size for size in sizes if size <= most):
                engine = cls(device=device, chunk=chunk, workers=workers)
                paid = rate(engine) * units / (math.ceil(units / chunk) * chunk)  # a last chunk is filled up
                if paid > best_rate:
                    best, best_rate = engine, paid
                if paid < 1.05 * previous:  # larger chunks cost memory and must pay for it
                    break
                previous = paid
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


def _most(device: str, work: Work, message: Tree, blank: Tree, memory: Tree) -> int:
    """Units at once that there is room for. A GPU is tried out instead: it says itself when its memory runs out."""
    if device != "cpu":
        return 2**62
    with torch.no_grad(), _Largest() as seen:
        work.steps(message, blank, memory)
    room: int = max(1, _ROOM // seen.bytes)
    return room


class _Largest(TorchFunctionMode):
    """Watches how many bytes functions make at once; a view of what is there is nothing new."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes: int = 1

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        for leaf in made if isinstance(made, tuple | list) else [made]:
            if isinstance(leaf, torch.Tensor) and not leaf._is_view():
                self.bytes = max(self.bytes, leaf.nbytes)
        return made


@functools.lru_cache(maxsize=8)
def _compiled(work: Work) -> Callable[..., Summed]:
    return torch.compile(functools.partial(work.summed, vectorised), dynamic=False)


def _repeated(tree: Tree, times: int) -> Tree:
    return {name: leaf.expand(times, *leaf.shape) for name, leaf in tree.items()}


def made_up(leaf: torch.Tensor) -> torch.Tensor:
    """Something of the same kind, to be timed with: no data are read for that."""
    return torch.rand(leaf.shape).mul(200).to(leaf.dtype) if leaf.dim() > 1 else torch.ones_like(leaf)
