"""How long a large population takes to open and how much memory drawing from it needs.

    python benchmarks/population.py [--users 1000000] [--rounds 100]

1,000,000 users x 20 examples of 28 x 28 bytes: a sparse file of 15.7 GB, so it takes no disk; reading a hole of a
sparse file fills pages as reading data does.
"""

import argparse
import pathlib
import resource
import tempfile
import time

import numpy as np

from fedlens.core.randomness import Randomness
from fedlens.data.population import Population
from fedlens.privacy import Poisson


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--users", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=100)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = sparse_population(pathlib.Path(name) / "population", options.users, examples=20)
        start = time.perf_counter()
        population = Population.open(folder)
        opened = time.perf_counter() - start
        randomness, sampling = Randomness.seeded(0), Poisson(rate=1000 / options.users, population=options.users)
        start = time.perf_counter()
        for number in range(options.rounds):
            cohort = sampling.draw(len(population), randomness, f"round {number}", number)
            population.take(cohort, 20, randomness, f"round {number}")
        each = (time.perf_counter() - start) / options.rounds
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print("| users | opened in | a round of 1,000 users | peak resident memory |")
    print("|---|---|---|---|")
    print(f"| {options.users:,} | {opened:.3f} s | {each * 1e3:.0f} ms | {peak:.2f} GiB |")


def sparse_population(folder: pathlib.Path, users: int, examples: int) -> pathlib.Path:
    folder.mkdir()
    np.lib.format.open_memmap(folder / "x.npy", "w+", np.uint8, (users * examples, 1, 28, 28)).flush()
    np.save(folder / "offsets.npy", np.arange(users + 1, dtype=np.int64) * examples)
    (folder / "population.json").write_text('{"name": "sparse", "version": 1, "columns": ["x"]}')
    return folder


if __name__ == "__main__":
    main()
