"""DP-FedAvg-GAN: users train the critic under differential privacy, the server trains the generator against it.

Augenstein et al., "Generative Models for Effective ML on Private, Decentralized Datasets", ICLR 2020, Algorithm 1.
Two changes, both public: the fakes a user needs come with the message, instead of the generator (0.6 MB and not 53 MB
for the paper's pair; the users of a round share them); and the server's step may be any optimizer on the noisy mean.
"""

import dataclasses
import hashlib
from collections.abc import Iterator

import torch

from fedlens import trees
from fedlens.algorithms.optimizers import Adam, Sgd
from fedlens.curator import Curator
from fedlens.models.gan import Gan
from fedlens.trees import Tree

PLAIN = Sgd(rate=1.0)  # the paper's server step and generator step
GENERATOR = Sgd(rate=5e-3)


@dataclasses.dataclass(frozen=True, kw_only=True)
class AdaptiveClip:
    """Follows the `quantile` of update norms (Andrew et al. 2021); pairs with the bound `UpdateAndBit(bit=...)`."""

    start: float
    bit: float
    quantile: float = 0.5
    rate: float = 0.2

    def followed(self, clip: torch.Tensor, mean_bit: torch.Tensor) -> torch.Tensor:
        within = ((mean_bit / self.bit + 1) / 2).clamp(0, 1)
        return clip * torch.exp(-self.rate * (within - self.quantile))


@dataclasses.dataclass(frozen=True, kw_only=True)
class FedAvgGan:
    gan: Gan
    batch: int = 32
    local_steps: int = 6
    local_rate: float = 5e-4
    decay: float = 0.0
    server: Sgd | Adam = PLAIN
    generator_steps: int = 6
    generator_batch: int = 32
    generator: Sgd | Adam = GENERATOR
    adaptive: AdaptiveClip | None = None
    seed: int = 0  # of everything public: initial weights, latents

    @property
    def examples_per_unit(self) -> int:
        return self.batch * self.local_steps

    def critic_update(self, message: Tree, examples: Tree, memory: Tree) -> tuple[Tree, Tree]:
        """Beside the data: one pass of SGD on the critic, at most `local_steps` batches, each against as many fakes."""
        start = critic = trees.part(message, "critic")
        images = trees.pixels(examples["x"])
        for step, (real, mask) in enumerate(
            zip(images.split(self.batch), examples["mask"].split(self.batch), strict=True)
        ):
            fake, share = message["fakes"][step, : len(real)], message["shares"][step, : len(real)]
            mixed = real + share[:, None, None, None] * (fake - real)
            weight = mask / mask.sum().clamp(min=1.0)  # a batch without examples moves nothing
            slope = self.gan.critic.gradient(critic, real, fake, mixed, weight, self.gan.penalty)
            if self.decay:
                slope = trees.add(slope, trees.scaled(critic, self.decay * (mask.sum() > 0)))
            critic = trees.add(critic, slope, -self.local_rate)
        update = trees.add(critic, start, -1.0)
        if self.adaptive is None:
            return update, memory
        within = torch.where(trees.norm(update) <= message["clip"], self.adaptive.bit, -self.adaptive.bit).float()
        return trees.scaled(update, 1 / message["clip"]) | {"within": within}, memory

    def start(self) -> Tree:
        """The public state before the first round: everything a resumed run needs."""
        critic, generator = self.gan.critic.init(self.seed), self.gan.generator.init(self.seed + 1)
        slots = {"server_slots": self.server.init(critic), "generator_slots": self.generator.init(generator)}
        state = trees.joined(critic=critic, generator=generator, round=torch.zeros((), dtype=torch.int64), **slots)
        return state | ({"clip": torch.tensor(self.adaptive.start)} if self.adaptive else {})

    def run(self, curator: Curator, state: Tree) -> Iterator[Tree]:
        """One state per round, until the plan is spent."""
        while curator.remaining:
            rng = torch.Generator().manual_seed(_round_seed(self.seed, int(state["round"])))
            mean = curator.noisy_mean(self.critic_update, self.message(state, rng))
            state = self._critic_step(state, mean)
            for _ in range(self.generator_steps):
                state = self._generator_step(state, rng)
            yield (state := state | {"round": state["round"] + 1})

    def message(self, state: Tree, rng: torch.Generator) -> Tree:
        """What travels to the users: the critic, fakes to hold against their examples, and the clip if it adapts."""
        generator = trees.part(state, "generator")
        device = generator["image.bias"].device
        with torch.no_grad():
            latents = self.gan.latents(self.local_steps * self.batch, rng=rng).to(device)
            fakes = self.gan.generator.images(generator, latents).unflatten(0, (self.local_steps, self.batch))
        shares = torch.rand(self.local_steps, self.batch, generator=rng).to(device)
        message = trees.joined(critic=trees.part(state, "critic"), fakes=fakes, shares=shares)
        return message | ({"clip": state["clip"]} if self.adaptive else {})

    def _critic_step(self, state: Tree, mean: Tree) -> Tree:
        state = dict(state)
        if self.adaptive is not None:
            clip = state["clip"]
            state["clip"] = self.adaptive.followed(clip, mean["within"])
            mean = {name: clip * leaf for name, leaf in mean.items() if name != "within"}
        gradient = trees.scaled(mean, -1.0)  # the mean update is the direction to go, an optimizer wants the way back
        critic, slots = self.server(trees.part(state, "critic"), gradient, trees.part(state, "server_slots"))
        return state | trees.joined(critic=critic, server_slots=slots)

    def _generator_step(self, state: Tree, rng: torch.Generator) -> Tree:
        params, critic = trees.part(state, "generator"), trees.part(state, "critic")
        latents = self.gan.latents(self.generator_batch, rng=rng).to(params["image.bias"].device)
        free = {name: leaf.detach().requires_grad_() for name, leaf in params.items()}
        slopes = torch.autograd.grad(self.gan.generator_loss(free, critic, latents), list(free.values()))
        slope = dict(zip(free, slopes, strict=True))
        slope = trees.add(slope, params, self.decay) if self.decay else slope
        params, slots = self.generator(params, slope, trees.part(state, "generator_slots"))
        return state | trees.joined(generator=params, generator_slots=slots)


def _round_seed(seed: int, round_number: int) -> int:
    return int.from_bytes(hashlib.sha256(f"round {seed} {round_number}".encode()).digest()[:7], "big")
