"""Many critics that learn at once, against one after the other, side by side in one run; peak memory.

    python benchmarks/critics.py [--device cuda] [--critics 32] [--networks small paper] [--steps 2]

Every critic takes WGAN-GP steps on batches of 32 of its own images, as critics of feedback GANs do.
- plain loop: what one would write first: a network for each critic, the optimizer of torch, double backward.
- stacked:    `SimulatedCurator.remember` on shards that hold as many images.
Timings alternate; the table shows medians. Peak memory is that of a process of its own, where critics lie in files.
"""

import fedlens  # noqa: F401, I001  before torch, whose threads then sleep while they wait

import argparse
import pathlib
import resource
import statistics
import subprocess
import sys
import tempfile
import time

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.parametrizations import spectral_norm

from fedlens.algorithms import Adam, FeedbackGan
from fedlens.core.randomness import Randomness
from fedlens.curators.memory import Memory
from fedlens.curators.simulated import SimulatedCurator
from fedlens.data.population import Population
from fedlens.ledger import Account, Ledger
from fedlens.models.gan import ConvGenerator, Gan
from fedlens.models.projection import ProjectionCritic
from fedlens.privacy import Everyone, Plan, RowClip, Unit

WIDTHS = {"small": (16, 32, 64), "paper": (64, 128, 256)}
HELD, BATCH = 64, 32


class Critic(nn.Module):
    """As one would write it."""

    def __init__(self, widths: tuple[int, ...]) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for before, width in zip((1, *widths), widths, strict=False):
            layers += [spectral_norm(nn.Conv2d(before, width, 5, 2, 2)), nn.ReLU()]
        self.layers = nn.Sequential(*layers, nn.Flatten())
        self.score = spectral_norm(nn.Linear(16 * widths[-1], 1))
        self.label = spectral_norm(nn.Embedding(10, 16 * widths[-1]))

    def forward(self, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        seen = self.layers(images)
        score: torch.Tensor = self.score(seen)[:, 0] + (seen * self.label(labels)).sum(1)
        return score


def algorithm_of(network: str, steps: int) -> FeedbackGan:
    pair = Gan(
        generator=ConvGenerator(side=28, latent=16, hidden=64, widths=(32, 16), classes=10),
        critic=ProjectionCritic(side=28, widths=WIDTHS[network]),
    )
    return FeedbackGan(gan=pair, batch=BATCH, examples=HELD, local_steps=steps, local=Adam(rate=1e-4, beta1=0.5))


def curator_of(algorithm: FeedbackGan, critics: int, device: str, scratch: pathlib.Path | None) -> SimulatedCurator:
    rng = np.random.default_rng(0)
    rows = critics * HELD
    columns = {"x": rng.integers(0, 256, (rows, 1, 28, 28), np.uint8), "y": rng.integers(0, 10, rows)}
    images = Population.from_arrays("images", columns, np.ones(rows, np.int64)).by_example()
    plan = Plan(
        sampling=Everyone(),
        bound=RowClip(row_norm=1.0, rows=BATCH),
        noise_multiplier=1.0,
        releases=10**6,
        expected_contributors=float(critics),
        unit=Unit.EXAMPLE,
        shards=critics,
    )
    return SimulatedCurator(
        images.dealt(critics, key=0),
        plan,
        ledger=Ledger(),
        account=Account(run="run", population="images"),
        randomness=Randomness.secret(),
        examples_per_unit=HELD,
        memory=Memory(algorithm.memory(critics), scratch=scratch),
        device=device,
    )


def plain(network: str, steps: int, device: str) -> float:
    """Seconds of one critic."""
    critic = Critic(WIDTHS[network]).to(device)
    optimizer = torch.optim.Adam(critic.parameters(), lr=1e-4, betas=(0.5, 0.999))
    held = torch.randn(HELD, 1, 28, 28, device=device)
    names, drawn = torch.randint(10, (HELD,), device=device), torch.randn(HELD, 1, 28, 28, device=device)
    _wait(device)
    began = time.perf_counter()
    for _ in range(steps):
        pick = torch.randint(HELD, (BATCH,), device=device)
        real, fake, labels = held[pick], drawn[pick], names[pick]
        mixed = (real + torch.rand(BATCH, 1, 1, 1, device=device) * (fake - real)).requires_grad_()
        (slopes,) = torch.autograd.grad(critic(mixed, labels).sum(), mixed, create_graph=True)
        steep = slopes.flatten(1).norm(dim=1)
        liked = critic(real, labels)
        loss = critic(fake, labels) - liked + 10 * (steep - 1) ** 2 + 1e-3 * F.mse_loss(liked, 0 * liked)
        optimizer.zero_grad()
        loss.mean().backward()
        optimizer.step()
    _wait(device)
    return time.perf_counter() - began


def stacked(curator: SimulatedCurator, algorithm: FeedbackGan, critics: int) -> float:
    """Seconds of one critic among many."""
    message = algorithm._lesson({k: v.to(curator._device) for k, v in algorithm.start().items()})
    began = time.perf_counter()
    curator.remember(algorithm.seedless.learnt, message)
    return (time.perf_counter() - began) / critics


def _wait(device: str) -> None:
    if device != "cpu":
        torch.cuda.synchronize()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--critics", type=int, default=32)
    parser.add_argument("--networks", nargs="*", default=list(WIDTHS), choices=list(WIDTHS))
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--memory", action="store_true", help="peak memory of this many critics, in files")
    asked = parser.parse_args()
    if asked.memory:
        with tempfile.TemporaryDirectory() as folder:
            algorithm = algorithm_of(asked.networks[0], asked.steps)
            curator = curator_of(algorithm, asked.critics, asked.device, pathlib.Path(folder))
            stacked(curator, algorithm, asked.critics)
        print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
        return
    print(
        "| critics | network | plain loop, ms a critic | stacked, ms a critic | times as fast |\n|---|---|---|---|---|"
    )
    for network in asked.networks:
        algorithm = algorithm_of(network, asked.steps)
        curator = curator_of(algorithm, asked.critics, asked.device, None)
        stacked(curator, algorithm, asked.critics)
        pairs = [
            (plain(network, asked.steps, asked.device), stacked(curator, algorithm, asked.critics))
            for _ in range(asked.times)
        ]
        loop, many = (1000 * statistics.median(column) for column in zip(*pairs, strict=True))
        print(f"| {asked.critics} | {network} | {loop:.1f} | {many:.1f} | {loop / many:.2f} |", flush=True)
    print("\n| critics | network | peak memory, MiB |\n|---|---|---|")
    for critics in (asked.critics, 4 * asked.critics):
        command = [sys.executable, __file__, "--memory", "--critics", str(critics), "--networks", asked.networks[0]]
        peak = subprocess.run([*command, "--steps", "1"], check=True, capture_output=True, text=True).stdout.strip()
        print(f"| {critics} | {asked.networks[0]} | {peak} |", flush=True)


if __name__ == "__main__":
    main()
