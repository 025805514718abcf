"""DP-FedAvg-GAN: users train the critic under differential privacy, the server trains the generator against it.

Augenstein et al., "Generative Models for Effective ML on Private, Decentralized Datasets", ICLR 2020, Algorithm 1.
Two changes, both public: the fakes a user needs come with the message, instead of the generator (0.6 MB and not 53 MB
for the paper's pair; the users of a round share them); and the server's step may be any optimizer on the noisy mean.
"""

import dataclasses
import functools
from typing import ClassVar

import torch

from fedlens.algorithms.clipping import AdaptiveClip
from fedlens.algorithms.optimizers import Adam, Sgd
from fedlens.algorithms.protocol import Answered, Asked, ManyReleases
from fedlens.core import trees
from fedlens.core.replay import Replayed
from fedlens.core.trees import Tree
from fedlens.curators.protocol import Contribute
from fedlens.models.gan import Gan, round_seed

PLAIN = Sgd(rate=1.0)  # the paper's server step and generator step
GENERATOR = Sgd(rate=5e-3)


@dataclasses.dataclass(frozen=True, kw_only=True)
class FedAvgGan(ManyReleases):
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

    name: ClassVar[str] = "fedavg-gan"
    media: ClassVar[tuple[str, ...]] = ("images",)
    options: ClassVar[frozenset[str]] = frozenset(
        ["batch", "local_steps", "local_rate", "decay", "server", "generator_steps", "generator_batch", "generator"]
    )

    repeated: ClassVar[str] = "generator_steps"  # a round of the server's is so many steps, all alike

    @classmethod
    def configured(cls, asked: Asked) -> "FedAvgGan":
        return cls(gan=asked.network, adaptive=asked.adaptive, seed=asked.seed, **asked.options(cls.options))

    @property
    def examples_per_unit(self) -> int:
        return self.batch * self.local_steps

    def critic_update(self, message: Tree, examples: Tree, memory: Tree) -> tuple[Tree, Tree]:
        """Beside the data: one pass of SGD on the critic, at most `local_steps` batches, each against as many fakes."""
        start = critic = trees.part(message, "critic")
        images = self.gan.shown(trees.pixels(examples["x"]), examples.get("y"))
        for step, (real, mask) in enumerate(
            zip(images.split(self.batch), examples["mask"].split(self.batch), strict=True)
        ):
            fake, share = message["fakes"][step, : len(real)], message["shares"][step, : len(real)]
            mixed = real + share[:, None, None, None] * (fake - real)
            weight = mask / mask.sum().clamp(min=1.0)  # a batch without examples moves nothing
            slope = self.gan.conv_critic.gradient(critic, real, fake, mixed, weight, self.gan.penalty)
            if self.decay:
                slope = trees.add(slope, trees.scaled(critic, self.decay * (mask.sum() > 0)))
            critic = trees.add(critic, slope, -self.local_rate)
        update = trees.add(critic, start, -1.0)
        return self.adaptive.sent(update, message["clip"]) if self.adaptive else update, memory

    def start(self) -> Tree:
        """The public state before the first round: everything a resumed run needs."""
        critic, generator = self.gan.critic.init(self.seed), self.gan.generator.init(self.seed + 1)
        slots = {"server_slots": self.server.init(critic), "generator_slots": self.generator.init(generator)}
        state = trees.joined(critic=critic, generator=generator, round=torch.zeros((), dtype=torch.int64), **slots)
        return state | ({"clip": torch.tensor(self.adaptive.start)} if self.adaptive else {})

    @property
    def seedless(self) -> "FedAvgGan":
        return dataclasses.replace(self, seed=0)

    @property
    def contribute(self) -> Contribute:
        return self.seedless.critic_update

    def round(self, state: Tree) -> tuple[Tree, Answered]:
        """One round: the message, and what follows from its answer; both draw from the round's public randomness."""
        rng = torch.Generator().manual_seed(round_seed(self.seed, int(state["round"])))
        return self.message(state, rng), lambda mean: self._advanced(state, mean, rng)

    def _advanced(self, state: Tree, mean: Tree, rng: torch.Generator) -> Tree:
        """The server's part of a round."""
        state = self._critic_step(state, mean)
        latents = self.gan.latents(self.generator_steps, self.generator_batch, rng=rng).to(state["round"].device)
        return self._generator_trained(state, latents) | {"round": state["round"] + 1}

    def message(self, state: Tree, rng: torch.Generator) -> Tree:
        """What travels to the users: the critic, fakes to hold against their examples, and the clip if it adapts."""
        generator = trees.part(state, "generator")
        device = generator["image.bias"].device
        with torch.no_grad():
            latents = self.gan.latents(self.local_steps * self.batch, rng=rng).to(device)
            fakes = self.gan.generator.images(generator, latents)
            fakes = self.gan.shown(fakes, self.gan.labels(latents) if self.gan.classes else None)
        shares = torch.rand(self.local_steps, self.batch, generator=rng).to(device)
        fakes = fakes.unflatten(0, (self.local_steps, self.batch))
        message = trees.joined(critic=trees.part(state, "critic"), fakes=fakes, shares=shares)
        return message | ({"clip": state["clip"]} if self.adaptive else {})

    def result(self, state: Tree) -> Tree:
        """The generator's weights."""
        return trees.part(state, "generator")

    def _critic_step(self, state: Tree, mean: Tree) -> Tree:
        state = dict(state)
        if self.adaptive is not None:
            mean, state["clip"] = self.adaptive.received(mean, state["clip"])
        gradient = trees.scaled(mean, -1.0)  # the mean update is the direction to go, an optimizer wants the way back
        critic, slots = self.server(trees.part(state, "critic"), gradient, trees.part(state, "server_slots"))
        return state | trees.joined(critic=critic, server_slots=slots)

    def _generator_trained(self, state: Tree, latents: torch.Tensor) -> Tree:
        """The generator after a step against the new critic for each batch of latents."""
        parts = trees.part(state, "generator"), trees.part(state, "generator_slots"), trees.part(state, "critic")
        return state | _generator_steps(self.seedless)(*parts, {"latents": latents})


@functools.lru_cache(maxsize=4)
def _generator_steps(algorithm: FedAvgGan) -> Replayed:
    """A round's generator steps as one pure function of generator, slots, critic and latents."""

    def steps(params: Tree, slots: Tree, critic: Tree, given: Tree) -> Tree:
        for latents in given["latents"]:
            slope = torch.func.grad(algorithm.gan.generator_loss)(params, critic, latents)
            slope = trees.add(slope, params, algorithm.decay) if algorithm.decay else slope
            params, slots = algorithm.generator(params, slope, slots)
        return trees.joined(generator=params, generator_slots=slots)

    return Replayed(steps)
