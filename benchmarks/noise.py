"""What the noise costs: a whole round with the paper's networks, with the noise and with zeros in its place.

    python benchmarks/noise.py [--device cuda] [--users 10 100]

Both ways alternate within one run; the table shows medians. What is left out is the cipher stream, the Box-Muller
transform and the copy to the device; the rounding and the addition stay.
"""

import argparse
import dataclasses
import statistics
import time

import engine
import torch

from fedlens.core.randomness import Randomness


@dataclasses.dataclass(frozen=True)
class Silent(Randomness):
    """Draws cohorts and examples as ever, and zeros for noise."""

    def normal(self, label: str, count: int, device: torch.device | str = "cpu") -> torch.Tensor:
        return torch.zeros(count, dtype=torch.float64, device=device)


def measured(users: int, device: str, repeats: int) -> dict[str, float]:
    work = engine.Round(engine.NETWORKS["paper"], users, device)
    curator = work.engine()  # measures the engine, compiles where that pays
    secret = curator._randomness
    ways = {"with noise": secret, "without": Silent(secret.key, simulated=False)}
    times: dict[str, list[float]] = {name: [] for name in ways}
    for name in [*ways] * (repeats + 1):
        curator._randomness = ways[name]
        times[name].append(engine.seconds(work.engine, device))
    medians = {name: statistics.median(values[1:]) for name, values in times.items()}
    curator._randomness = secret
    weights = sum(leaf.numel() for leaf in work.algorithm.gan.critic.init(0).values())
    alone = [engine.seconds(lambda: secret.normal("bench", weights, device), device) for _ in range(5)]
    return medians | {"alone": statistics.median(alone)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--users", nargs="+", type=int, default=[10, 100])
    options = parser.parse_args()
    torch.set_float32_matmul_precision("high")
    machine = torch.cuda.get_device_name() if options.device == "cuda" else f"{torch.get_num_threads()} CPU cores"
    print(f"{time.strftime('%Y-%m-%d')}, {machine}, torch {torch.__version__}, 6.55 million weights\n")
    columns = ["users a round", "round with noise, s", "without, s", "the noise costs", "the noise alone, s"]
    print(f"| {' | '.join(columns)} |\n{'|---' * len(columns)}|")
    for users in options.users:
        few = options.device == "cpu" and users > 10
        row = measured(users, options.device, repeats=1 if few else 7 if options.device == "cuda" else 3)
        share = (row["with noise"] - row["without"]) / row["with noise"]
        print(
            f"| {users} | {row['with noise']:.3f} | {row['without']:.3f} | {share:.1%} | {row['alone']:.3f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
