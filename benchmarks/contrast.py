"""How long one contrast takes: two GANs, 539 writers, 150 rounds, from the recipe to the report.

    FEDLENS_DATA=../shared/data python benchmarks/contrast.py               # small networks: what two cores can do
    FEDLENS_DATA=../shared/data python benchmarks/contrast.py --size auto   # what a recipe gets that leaves them open

Targets: under 60 s on an H200, under 15 minutes on two cores. One line of JSON.
"""

import fedlens  # noqa: F401, I001  before torch, whose threads then sleep while they wait

import argparse
import json
import os
import pathlib
import tempfile
import time
from typing import Any

import torch

from fedlens.recipes.recipe import Recipe
from fedlens.runs.run import Run, default_device

SMALL = (
    "model.size=small",
    "model.critic_widths=[8, 16]",
    "model.generator_widths=[64, 32, 16]",
    "training.generator_steps=6",
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=["small", "auto"], default="small")
    parser.add_argument("--rounds", type=int, default=150)
    parser.add_argument("--device", default=default_device())
    options = parser.parse_args()
    text = pathlib.Path(__file__).parents[1].joinpath("recipes", "writers_sensitivity.toml").read_text()
    settled = Recipe.parsed(text, SMALL if options.size == "small" else ())
    recipe = settled.changed([f"privacy.rounds={options.rounds}"])
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder)
        run = Run.created(recipe, out, address=out / "ledger.sqlite", seed=None, device=options.device)
        started = time.perf_counter()
        first: dict[str, float] = {}

        def watch(selection: str, done: int, rounds: int, facts: dict[str, Any]) -> None:
            first.setdefault(selection, time.perf_counter())
            first[f"{selection} done"] = time.perf_counter()

        report = run.executed(watch)
        whole = time.perf_counter() - started
    training = sum(first[f"{name} done"] - first[name] for name in recipe.selections)
    weights = recipe.medium.weights(recipe)
    print(
        json.dumps(
            {
                "size": options.size,
                "critic weights": weights,
                "rounds": options.rounds,
                "device": options.device,
                "cores": os.cpu_count(),
                "torch": torch.__version__,
                "seconds": round(whole, 1),
                "training alone": round(training, 1),
                "epsilon": round(report.guarantee.epsilon, 2),
                "named": [finding.kind for finding in report.findings],
            }
        )
    )


if __name__ == "__main__":
    main()
