"""Users per second of the engine against plain per-user loops, side by side in one run, and peak memory.

    python benchmarks/engine.py [--device cuda] [--networks paper small] [--users 10 100 500]

All do DP-FedAvg-GAN's local work for every user of a round: critic SGD on WGAN-GP batches of 32, clip, sum.
- plain loop: what one would write first: nn.Module, double backward, fakes made per user as the paper has it.
- lean loop:  the gradient penalty as a first-order chain (no double backward), fakes shared by the round.
- engine:     `SimulatedCurator`, with the chunk and workers it measured for itself.
Loops cost the same for every user, so they are timed on a few and compared by rate; the engine does whole rounds.
Timings alternate between the three; the table shows medians. Peak memory is that of a process of its own on a CPU
(for the paper's networks with at most 30 users: it does not grow with them), of the round on a GPU.
"""

import fedlens  # noqa: F401, I001  before torch, whose threads then sleep while they wait

import argparse
import json
import pathlib
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from fedlens.algorithms import FedAvgGan
from fedlens.core import trees
from fedlens.core.randomness import Randomness
from fedlens.core.trees import Tree
from fedlens.curators.simulated import SimulatedCurator
from fedlens.data.population import Population
from fedlens.ledger import Account, Ledger
from fedlens.models.convolutions import LEAK
from fedlens.models.gan import Gan
from fedlens.privacy import Everyone, L2Clip, Plan

NETWORKS = {
    "paper": FedAvgGan(gan=Gan.paper(), batch=32, local_steps=6),
    "small": FedAvgGan(gan=Gan.small(), batch=32, local_steps=3),
}
CLIP = 0.1


class Critic(nn.Module):
    def __init__(self, algorithm: FedAvgGan) -> None:
        super().__init__()
        critic, layers, before = algorithm.gan.critic, [], 1
        for width in critic.widths:
            layers += [nn.Conv2d(before, width, 4, 2, 1), nn.LeakyReLU(LEAK)]
            before = width
        features = before * (critic.side >> len(critic.widths)) ** 2
        layers.append(nn.Flatten())
        if critic.hidden:
            layers += [nn.Linear(features, critic.hidden, bias=False), nn.LeakyReLU(LEAK)]
        self.layers = nn.Sequential(*layers, nn.Linear(critic.hidden or features, 1))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.layers(images).squeeze(1)
        return scores


class Round:
    """One round's work, done three ways."""

    def __init__(self, algorithm: FedAvgGan, users: int, device: str) -> None:
        self.algorithm, self.users, self.device = algorithm, users, device
        rows = algorithm.examples_per_unit
        images = np.random.default_rng(0).integers(0, 256, (users * rows, 1, 28, 28), np.uint8)
        self.population = Population.from_arrays("noise", {"x": images}, np.full(users, rows))
        self.state = trees.moved(algorithm.start(), device)
        self.critic = Critic(algorithm).to(device)
        self.start = {name: leaf.clone() for name, leaf in self.critic.state_dict().items()}
        self.curator: SimulatedCurator | None = None

    def message(self) -> Tree:
        return self.algorithm.message(self.state, torch.Generator().manual_seed(0))

    def images_of(self, unit: int) -> torch.Tensor:
        return trees.pixels(self.population.take(np.array([unit]))["x"][0].to(self.device))

    def plain(self, users: int) -> None:
        total: Tree = {}
        for unit in range(users):
            self.critic.load_state_dict(self.start)
            optimizer = torch.optim.SGD(self.critic.parameters(), lr=self.algorithm.local_rate)
            for real in self.images_of(unit).split(self.algorithm.batch):
                optimizer.zero_grad()
                self.plain_loss(real).backward()
                optimizer.step()
            total = accumulated(total, {k: v.detach() - self.start[k] for k, v in self.critic.state_dict().items()})

    def plain_loss(self, real: torch.Tensor) -> torch.Tensor:
        gan = self.algorithm.gan
        with torch.no_grad():
            latents = torch.randn(len(real), gan.generator.latent, device=self.device)
            fake = gan.generator.images(trees.part(self.state, "generator"), latents)
        mixed = (real + torch.rand(len(real), 1, 1, 1, device=self.device) * (fake - real)).requires_grad_()
        (slope,) = torch.autograd.grad(self.critic(mixed).sum(), mixed, create_graph=True)
        loss: torch.Tensor = self.critic(fake).mean() - self.critic(real).mean() + penalty(slope)
        return loss

    def lean(self, users: int) -> None:
        total: Tree = {}
        message = self.message()
        start = trees.part(message, "critic")
        for unit in range(users):
            params = {name: leaf.clone().requires_grad_() for name, leaf in start.items()}
            for step, real in enumerate(self.images_of(unit).split(self.algorithm.batch)):
                loss = self.lean_loss(params, real, message["fakes"][step], message["shares"][step])
                slopes = torch.autograd.grad(loss, list(params.values()))
                with torch.no_grad():
                    for leaf, slope in zip(params.values(), slopes, strict=True):
                        leaf -= self.algorithm.local_rate * slope
            total = accumulated(total, {name: leaf.detach() - start[name] for name, leaf in params.items()})

    def lean_loss(self, params: Tree, real: torch.Tensor, fake: torch.Tensor, share: torch.Tensor) -> torch.Tensor:
        x = torch.cat([real, fake, real + share[:, None, None, None] * (fake - real)])
        kept, convs = len(real), len(self.algorithm.gan.critic.widths)
        masks = []
        for layer in range(convs):
            x = F.leaky_relu(F.conv2d(x, params[f"conv{layer}.weight"], params[f"conv{layer}.bias"], 2, 1), LEAK)
            masks.append(torch.where(x[2 * kept :].detach() > 0, 1.0, LEAK))
        gradient = params["score.weight"].expand(kept, -1)
        top = x.flatten(1)
        if "hidden.weight" in params:
            top = F.leaky_relu(top @ params["hidden.weight"].T, LEAK)
            gradient = (gradient * torch.where(top[2 * kept :].detach() > 0, 1.0, LEAK)) @ params["hidden.weight"]
        gradient = gradient.reshape(masks[-1].shape)
        for layer in reversed(range(convs)):
            gradient = F.conv_transpose2d(gradient * masks[layer], params[f"conv{layer}.weight"], stride=2, padding=1)
        scores = top @ params["score.weight"].T + params["score.bias"]
        return scores[kept : 2 * kept].mean() - scores[:kept].mean() + penalty(gradient)

    def engine(self) -> SimulatedCurator:
        """A whole round through the curator: charge, local work, bounds, exact sum, noise."""
        if self.curator is None:
            plan = Plan(
                sampling=Everyone(),
                bound=L2Clip(norm=CLIP),
                noise_multiplier=1.0,
                releases=2000,  # enough to make compiling worth while where it helps
                expected_contributors=float(self.users),
            )
            self.curator = SimulatedCurator(
                self.population,
                plan,
                ledger=Ledger(),
                account=Account(run="bench", population="noise"),
                randomness=Randomness.secret(),
                device=self.device,
            )
        self.curator.noisy_mean(self.algorithm.critic_update, self.message())
        return self.curator


def penalty(slope: torch.Tensor) -> torch.Tensor:
    return 10 * ((slope.flatten(1).square().sum(1) + 1e-10).sqrt() - 1).square().mean()


def accumulated(total: Tree, update: Tree) -> Tree:
    bounded = trees.clipped(update, CLIP)
    return trees.add(total, bounded) if total else bounded


def seconds(work: Callable[[], object], device: str) -> float:
    start = time.perf_counter()
    work()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start


def measured(network: str, users: int, device: str, repeats: int) -> dict[str, Any]:
    work = Round(NETWORKS[network], users, device)
    few = min(users, (10 if network == "paper" else 50) if device == "cpu" else 20)
    ways: dict[str, tuple[Callable[[], object], int]] = {
        "plain": (lambda: work.plain(few), few),
        "lean": (lambda: work.lean(few), few),
        "engine": (work.engine, users),
    }
    rates: dict[str, list[float]] = {name: [] for name in ways}
    memory = {}
    for name, (way, _) in ways.items():
        way()  # warm up; the engine measures itself
        memory[name] = peak_on_gpu(way) if device == "cuda" else peak_of_process(network, users, name)
    for _ in range(repeats):
        for name, (way, count) in ways.items():
            rates[name].append(count / seconds(way, device))
    medians = {name: statistics.median(values) for name, values in rates.items()}
    assert work.curator is not None
    return {"network": network, "users": users, **medians, "memory": memory, "engine chosen": work.curator.engine}


def peak_on_gpu(way: Callable[[], object]) -> float:
    torch.cuda.reset_peak_memory_stats()
    way()
    return torch.cuda.max_memory_allocated() / 2**30


def peak_of_process(network: str, users: int, way: str) -> float:
    """GiB resident, of a process that does nothing else."""
    command = [sys.executable, __file__, "--networks", network, "--users", str(users), "--memory-of", way]
    return float(json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout))


def memory_of(network: str, users: int, way: str) -> float:
    work = Round(NETWORKS[network], min(users, 30 if network == "paper" else users), "cpu")
    {"plain": lambda: work.plain(3), "lean": lambda: work.lean(3), "engine": work.engine}[way]()
    # Not getrusage: a child inherits the peak of the process that started it.
    status = dict(line.split(":", 1) for line in pathlib.Path("/proc/self/status").read_text().splitlines())
    return int(status["VmHWM"].split()[0]) / 2**20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=list(NETWORKS))
    parser.add_argument("--users", nargs="+", type=int, default=[10, 100, 500])
    parser.add_argument("--memory-of", choices=["plain", "lean", "engine"], help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_float32_matmul_precision("high")
    if options.memory_of:
        print(json.dumps(memory_of(options.networks[0], options.users[0], options.memory_of)))
        return
    machine = torch.cuda.get_device_name() if options.device == "cuda" else f"{torch.get_num_threads()} CPU cores"
    print(f"{time.strftime('%Y-%m-%d')}, {machine}, {platform.machine()}, torch {torch.__version__}\n")
    columns = ["networks", "users a round", "plain loop, users/s", "lean loop, users/s", "engine, users/s", "vs plain"]
    columns += ["vs lean", "chunk x workers", "peak GiB plain / lean / engine"]
    print(f"| {' | '.join(columns)} |\n{'|---' * len(columns)}|")
    for network in options.networks:
        for users in options.users:
            long = options.device == "cpu" and network == "paper" and users > 10
            row = measured(network, users, options.device, repeats=1 if long else 3)
            plain, lean, engine, chosen = (row[key] for key in ("plain", "lean", "engine", "engine chosen"))
            cells = [network, users, f"{plain:.1f}", f"{lean:.1f}", f"{engine:.1f}", f"{engine / plain:.1f}x"]
            cells += [f"{engine / lean:.1f}x", f"{chosen.chunk} x {chosen.workers}{', compiled' * chosen.compiled}"]
            cells.append(" / ".join(f"{gib:.2f}" for gib in row["memory"].values()))
            print(f"| {' | '.join(map(str, cells))} |", flush=True)


if __name__ == "__main__":
    main()
