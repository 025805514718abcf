"""One look at many units against a plain loop over them, side by side in one run; the generator's fit; peak memory.

    python benchmarks/looks.py [--device cuda] [--images 60000] [--features 20004] [--steps 2000]

- plain loop: what one would write first: psi of one unit after the other, clipped, added up. Timed on a few units.
- look:       `SimulatedCurator`: the engine is measured, and everything is drawn that is made once; then the charge,
              all units, bounds, exact sum, cryptographic noise.
- generator:  fitted to that look: a normal distribution (moments) or a network (embedding).

On a GPU the sizes are those of the targets: 60,000 images of 28 x 28 in 10 classes and 20,004 features (a multiple of
6), looked at in 10 s, fitted in 60. On a CPU they are smaller. Memory is that of a process of its own for every row,
on a CPU whatever the device, over a population folder that is mapped: a million units do not fit by being held.
"""

import fedlens  # noqa: F401, I001  before torch, whose threads then sleep while they wait

import argparse
import json
import pathlib
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from fedlens.algorithms import OneLook
from fedlens.core import trees
from fedlens.core.randomness import Randomness
from fedlens.core.trees import Tree
from fedlens.curators.simulated import SimulatedCurator
from fedlens.data.population import Population
from fedlens.ledger import Account, Ledger
from fedlens.models.gan import ConvGenerator
from fedlens.models.looks import embedding, fitting
from fedlens.models.looks.embedding import Embedding
from fedlens.models.looks.fitting import Fit, Release
from fedlens.models.looks.generators import Network
from fedlens.models.looks.moments import Moments
from fedlens.models.looks.psi import Psi
from fedlens.privacy import Everyone, L2Clip, Plan, Unit

CLASSES = 10
FREQUENCIES = 100
EACH = 8  # images of a user, in the rows of speed
FEW = 200  # units of the plain loop
ROWS_OF_MEMORY = (  # family, unit, units, images of each, side, features or frequencies
    ("moments", "example", 1_000, 1, 8, 16),
    ("moments", "example", 10_000, 1, 8, 16),
    ("moments", "example", 1_000_000, 1, 8, 16),
    ("moments", "user", 1_000, 4, 8, 16),
    ("moments", "user", 10_000, 4, 8, 16),
    ("moments", "user", 1_000_000, 4, 8, 16),
    ("embedding", "example", 300, 1, 8, 6_000),
    ("embedding", "example", 300, 1, 8, 60_000),
    ("embedding", "user", 100, 128, 8, 6_000),
    ("embedding", "user", 100, 128, 8, 60_000),
)


def asked(family: str, unit: str, side: int, size: int, each: int) -> Psi:
    body = Embedding(side=side, features=size) if family == "embedding" else Moments(side=side, frequencies=size)
    return Psi(body=body, classes=CLASSES, several=unit == "user", examples=each)


def population(folder: pathlib.Path, units: int, each: int, side: int) -> Population:
    """Of noise, in a folder that is mapped; the images after the first 20,000 are holes, and read as black."""
    folder.mkdir()
    rng, rows = np.random.default_rng(0), units * each
    images = np.lib.format.open_memmap(folder / "x.npy", "w+", np.uint8, (rows, 1, side, side))
    first = min(rows, 20_000)
    images[:first] = rng.integers(0, 256, (first, 1, side, side), np.uint8)
    images.flush()
    np.save(folder / "y.npy", rng.integers(0, CLASSES, rows))
    np.save(folder / "offsets.npy", np.arange(units + 1, dtype=np.int64) * each)
    (folder / "population.json").write_text('{"name": "noise", "version": 1, "columns": ["x", "y"]}')
    return Population.open(folder)


def curator(units: Population, psi: Psi, device: str) -> SimulatedCurator:
    plan = Plan(
        sampling=Everyone(),
        bound=L2Clip(norm=1.0),
        noise_multiplier=1.0,
        releases=1,
        expected_contributors=float(len(units)),
        unit=Unit.USER if psi.several else Unit.EXAMPLE,
    )
    return SimulatedCurator(
        units if psi.several else units.by_example(),
        plan,
        ledger=Ledger(),
        account=Account(run="bench", population="noise"),
        randomness=Randomness.secret(),
        examples_per_unit=psi.examples,
        device=device,
    )


def forget() -> None:
    """Whatever is made once: a look starts from nothing."""
    for kept in (embedding._projection, embedding._layers, embedding._typical):
        kept.cache_clear()


def seconds(work: Callable[[], Any], device: str) -> tuple[float, Any]:
    start = time.perf_counter()
    done = work()
    if device.startswith("cuda"):
        torch.cuda.synchronize()
    return time.perf_counter() - start, done


def plain(units: Population, psi: Psi, device: str) -> Tree:
    """Psi of the first few, one after the other."""
    total: Tree = {}
    with torch.no_grad():
        for unit in range(min(FEW, len(units))):
            examples = trees.moved(units.take(np.array([unit]), psi.examples), device)
            sent = trees.clipped(psi(trees.row(examples, 0)), 1.0)
            total = trees.add(total, sent) if total else sent
    return total


def fitted(release: Release, device: str, steps: int, batch: int) -> Tree:
    body = release.psi.body
    if isinstance(body, Moments):
        return fitting.gaussian(release, body)
    generator = ConvGenerator(side=body.side, latent=64, hidden=256, widths=(128, 64, 32), classes=CLASSES)
    return Fit(steps=steps, batch=batch)(release, Network(generator=generator), device=device)


def measured(family: str, unit: str, options: argparse.Namespace, folder: pathlib.Path) -> list[str]:
    each = EACH if unit == "user" else 1
    images = options.images if family == "moments" else options.embedded
    size = FREQUENCIES if family == "moments" else options.features
    device, psi = options.device, asked(family, unit, 28, size, each)
    units = population(folder / f"{family} {unit}", images // each, each, 28)
    forget()

    def whole() -> tuple[SimulatedCurator, Tree]:
        opened = curator(units, psi, device)
        return opened, opened.noisy_mean(OneLook(psi=psi).contribute, {})

    took, (opened, answer) = seconds(whole, device)
    single = units if psi.several else units.by_example()
    plain(single, psi, device)
    loop, _ = seconds(lambda: plain(single, psi, device), device)
    rate = min(FEW, len(single)) / loop
    release = Release(psi=psi, blocks={name: leaf.cpu() for name, leaf in answer.items()}, noise=1.0 / len(single))
    fit, _ = seconds(lambda: fitted(release, device, options.steps, options.batch), device)
    chosen = opened.engine
    many = len(single)
    return [
        family,
        f"{many:,} {unit}s x {each}",
        f"{size:,}",
        f"{rate:.0f}",
        f"{many / rate:.1f}",
        f"{took:.1f}",
        f"{many / rate / took:.1f}x",
        f"{chosen.chunk} x {chosen.workers}{', compiled' * chosen.compiled}",
        f"{fit:.1f}",
    ]


def peak_of_process(row: tuple[Any, ...]) -> list[str]:
    """Of a process that does nothing else."""
    command = [sys.executable, __file__, "--memory-of", json.dumps(row)]
    made = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    family, unit, units, each, side, size = row
    cells = [family, f"{units:,} {unit}s x {each}, {side} x {side}", f"{size:,}", made["chosen"], f"{made['took']:.1f}"]
    return [*cells, f"{made['before']:.2f}", f"{made['peak']:.2f}"]


def memory_of(row: tuple[Any, ...]) -> dict[str, Any]:
    family, unit, count, each, side, size = row
    psi = asked(family, unit, side, size, each)
    with tempfile.TemporaryDirectory() as name:
        units = population(pathlib.Path(name) / "population", count, each, side)
        psi.body(torch.zeros(2, 1, side, side))  # with what is made once and kept, whatever the number of units
        before = gibibytes("VmHWM")
        opened = curator(units, psi, "cpu")
        took, _ = seconds(lambda: opened.noisy_mean(OneLook(psi=psi).contribute, {}), "cpu")
    assert opened.engine is not None
    chosen = f"{opened.engine.chunk} x {opened.engine.workers}"
    return {"took": took, "before": before, "peak": gibibytes("VmHWM"), "chosen": chosen}


def gibibytes(name: str) -> float:
    # Not getrusage: a child inherits the peak of the process that started it.
    status = dict(line.split(":", 1) for line in pathlib.Path("/proc/self/status").read_text().splitlines())
    return int(status[name].split()[0]) / 2**20


def show(rows: list[list[str]]) -> None:
    for row in rows:
        print(f"| {' | '.join(row)} |", flush=True)


def head(*columns: str) -> None:
    show([list(columns)])
    print("|---" * len(columns) + "|")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--images", type=int, default=60_000, help="of the rows of moments")
    parser.add_argument("--embedded", type=int, help="images of the rows of embeddings: 60,000 on a GPU, else 2,000")
    parser.add_argument("--features", type=int, help="20,004 on a GPU, else 2,004")
    parser.add_argument("--steps", type=int, help="of the network's fit: 2,000 on a GPU, else 20")
    parser.add_argument("--batch", type=int, help="of the network's fit: 1,000 on a GPU, else 200")
    parser.add_argument("--no-memory", action="store_true", help="only speed")
    parser.add_argument("--memory-of", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.memory_of:
        print(json.dumps(memory_of(tuple(json.loads(options.memory_of)))))
        return
    on_gpu = options.device.startswith("cuda")
    usual = {"embedded": (60_000, 2_000), "features": (20_004, 2_004), "steps": (2_000, 20), "batch": (1_000, 200)}
    for name, (large, small) in usual.items():
        if getattr(options, name) is None:
            setattr(options, name, large if on_gpu else small)
    torch.set_float32_matmul_precision("high")
    machine = torch.cuda.get_device_name() if on_gpu else f"{torch.get_num_threads()} CPU cores"
    print(f"{time.strftime('%Y-%m-%d')}, {machine}, {platform.machine()}, torch {torch.__version__}")
    print(f"28 x 28, {CLASSES} classes; networks: {options.steps} steps of {options.batch} images\n")
    head("family", "units", "size", "loop, units/s", "loop, s", "look, s", "look vs loop", "chunk x workers", "fit, s")
    with tempfile.TemporaryDirectory() as name:
        for family in ("moments", "embedding"):
            for unit in ("example", "user"):
                show([measured(family, unit, options, pathlib.Path(name))])
    if not options.no_memory:
        print()
        head("family", "units", "size", "chunk x workers", "look, s", "GiB before", "GiB at the peak")
        for row in ROWS_OF_MEMORY:
            show([peak_of_process(row)])


if __name__ == "__main__":
    main()
