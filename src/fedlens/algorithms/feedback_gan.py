"""Feedback GANs: units keep a critic of their own for good, and send no more than what it thinks of drawn images.

Chen, Orekondy, Fritz, "GS-WGAN", NeurIPS 2020: the slope of a critic at each image, clipped image by image (`RowClip`).
Wang et al., "DataLens", CCS 2021: the signs of the largest entries of these slopes, which thousands of teachers vote on
(`TopKSign`). What is not private, the generator's part of the chain rule, follows from the noisy answer for free.

Whose critics: of users, each their own; or of shards that units are dealt to (`Plan.shards`), one in turn or all.
Where it is hidden who was asked, critics must not remember that either: `all_learn` trains all of them in every round,
through `Curator.remember`, and who is asked keeps nothing of it.

Two changes, both public, beside the networks' own: fakes travel, and not the generator; and a critic holds each real
image against a fake of the same label, so that its shard's labels need not be even.
"""

import dataclasses
import functools
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import torch
import torch.nn.functional as F

from fedlens.algorithms.optimizers import Adam, Sgd
from fedlens.algorithms.protocol import Answered, Asked
from fedlens.core import trees
from fedlens.core.replay import Replayed
from fedlens.core.trees import Tree
from fedlens.curators.protocol import Contribute, Curator
from fedlens.models.gan import ConvGenerator, Gan, round_seed
from fedlens.models.projection import CriticLoss, ProjectionCritic
from fedlens.privacy import TopKSign

ADAM = Adam(rate=1e-4, beta1=0.5, beta2=0.9)  # the rate of GS-WGAN, for all of its networks


@dataclasses.dataclass(frozen=True, kw_only=True)
class FeedbackGan:
    gan: Gan
    batch: int = 32  # images in a step of the generator, and of a critic
    examples: int = 96  # of a unit, that its critic learns from in a round
    local_steps: int = 5
    local: Sgd | Adam = ADAM
    entropy: bool = False  # the loss of a classifier (DataLens) instead of Wasserstein's
    drift: float = 1e-3
    warm_steps: int = 0  # of a generator that each critic has to itself, before the first round, and throws away
    all_learn: bool = False  # all critics in every round, and not those that are asked
    asks: int = 1  # releases for one step of the generator: each is about as many of its images
    generator: Sgd | Adam = ADAM
    averaged: float = 0.999  # of the generator's weights, how much is kept in a step
    top: int | None = None  # entries of an image that are voted on; None: slopes are sent as they are
    vote_clip: float | None = 1e-5  # of a slope that is voted on: larger ones count as this; None: as the largest
    agreement: float = 0.2  # the share of all votes below which an entry stays as it is
    seed: int = 0  # of everything public: initial weights, latents, coins

    name: ClassVar[str] = "feedback-gan"
    beforehand: ClassVar[str] = "warm_steps"  # steps before the first round, all alike
    media: ClassVar[tuple[str, ...]] = ("images",)
    options: ClassVar[frozenset[str]] = frozenset(
        ["batch", "examples", "local_steps", "local", "entropy", "warm_steps", "all_learn", "asks", "generator"]
    ).union(["vote_clip", "agreement"])

    def __post_init__(self) -> None:
        if self.batch % self.asks:
            raise ValueError(f"Expected training.batch={self.batch} in asks={self.asks} equal parts.")
        if self.batch < self.kinds:
            raise ValueError(f"Expected training.batch={self.batch} of at least one image of each class.")

    @classmethod
    def rows(cls, training: Mapping[str, Any]) -> int:
        """One for each image."""
        return int(training["batch"]) // int(training["asks"])

    @classmethod
    def configured(cls, asked: Asked) -> "FeedbackGan":
        top = asked.plan.bound.k if isinstance(asked.plan.bound, TopKSign) else None
        return cls(gan=asked.network, top=top, seed=asked.seed, **asked.options(cls.options))

    @property
    def kinds(self) -> int:
        return max(1, self.gan.classes)

    @property
    def examples_per_unit(self) -> int:
        return self.examples

    @property
    def seedless(self) -> "FeedbackGan":
        return dataclasses.replace(self, seed=0)

    # Beside the data

    @property
    def contribute(self) -> Contribute:
        return self.seedless.judged if self.all_learn else self.seedless.learnt_and_judged

    def learnt_and_judged(self, message: Tree, examples: Tree, memory: Tree) -> tuple[Tree, Tree]:
        """A critic learns from its own examples, and says which way each image should change."""
        return self.judged(message, examples, self.learnt(message, examples, memory)[1])

    def judged(self, message: Tree, examples: Tree, memory: Tree) -> tuple[Tree, Tree]:
        """Which way each image should change; the critic stays as it is."""
        critic, labels = trees.part(memory, "critic"), message["labels"]

        def liked(images: torch.Tensor) -> torch.Tensor:
            score = self.gan.score(critic, images, labels)
            return (F.logsigmoid(score) if self.entropy else score).sum()

        slopes = torch.func.grad(liked)(message["images"])
        if self.top:
            slopes = votes(slopes, _coins(examples, message["salt"], slopes.shape), self.top, self.vote_clip)
        return {"images": slopes * (examples["mask"].sum() > 0)}, memory

    def learnt(self, message: Tree, examples: Tree, memory: Tree) -> tuple[Tree, Tree]:
        """The critic after some steps, each on some of its own examples and as many fakes with the same labels."""
        critic, slots = trees.part(memory, "critic"), trees.part(memory, "slots")
        for step in range(self.local_steps):
            drawn = {name: message[name][step] for name in ("picks", "fakes", "shares")}
            critic, slots = self._critic_step(critic, slots, examples, message["pool"], drawn)
        return {}, _unless_broken(memory, trees.joined(critic=critic, slots=slots), examples)

    def warmed(self, message: Tree, examples: Tree, memory: Tree) -> tuple[Tree, Tree]:
        """The critic after it was trained against a generator of its own, which nobody else ever sees."""
        critic, slots = trees.part(memory, "critic"), trees.part(memory, "slots")
        decoy, decoy_slots = trees.part(message, "decoy"), self.generator.init(trees.part(message, "decoy"))
        network = _decoy(self.gan)
        for turn in range(self.warm_steps):
            latents = message["latents"][turn]
            with torch.no_grad():
                pool = network.images(decoy, latents)
            for step in range(self.local_steps):
                drawn = {name: message[name][turn, step] for name in ("picks", "fakes", "shares")}
                critic, slots = self._critic_step(critic, slots, examples, pool, drawn)
            slope = torch.func.grad(self._disliked)(decoy, critic, latents[: self.batch])
            decoy, decoy_slots = self.generator(decoy, slope, decoy_slots)
        return {}, _unless_broken(memory, trees.joined(critic=critic, slots=slots), examples)

    def _critic_step(
        self, critic: Tree, slots: Tree, examples: Tree, pool: torch.Tensor, drawn: Tree
    ) -> tuple[Tree, Tree]:
        held = examples["mask"].sum()
        pick = torch.minimum(drawn["picks"] * held, held - 1).clamp(min=0).long()  # taken places come first
        real = trees.pixels(examples["x"])[pick]
        labels = examples["y"][pick].clamp(0, self.kinds - 1) if "y" in examples else torch.zeros_like(pick)
        fake = pool[labels + self.kinds * (drawn["fakes"] * (len(pool) // self.kinds)).long()]
        mixed = real + drawn["shares"][:, None, None, None] * (fake - real)
        network, loss = self.gan.critic, CriticLoss(penalty=self.gan.penalty, drift=self.drift, entropy=self.entropy)
        if isinstance(network, ProjectionCritic):
            slope = network.gradient(critic, real, fake, mixed, labels, loss)
        else:
            slope = torch.func.grad(self._critic_loss)(critic, real, fake, mixed, labels)
        critic, slots = self.local(critic, slope, slots)
        return self.gan.turned(critic), slots

    def _critic_loss(
        self, critic: Tree, real: torch.Tensor, fake: torch.Tensor, mixed: torch.Tensor, labels: torch.Tensor
    ) -> torch.Tensor:
        scores = self.gan.score(critic, torch.cat([real, fake]), torch.cat([labels, labels]))
        liked, drawn = scores[: len(real)], scores[len(real) :]
        if self.entropy:
            return (F.softplus(-liked) + F.softplus(drawn)).mean()
        slopes = torch.func.grad(lambda x: self.gan.score(critic, x, labels).sum())(mixed)
        steep = (slopes.flatten(1).square().sum(1) + 1e-12).sqrt()
        tamed: torch.Tensor = self.gan.penalty * (steep - 1).square() + self.drift * liked.square()
        return (drawn - liked + tamed).mean()

    def _disliked(self, decoy: Tree, critic: Tree, latents: torch.Tensor) -> torch.Tensor:
        images = _decoy(self.gan).images(decoy, latents)
        return -self.gan.score(critic, images, torch.arange(len(latents), device=latents.device) % self.kinds).mean()

    def memory(self, units: int) -> Tree:
        """A critic each, all alike, and what its optimizer keeps."""
        critic = self.gan.critic.init(self.seed)
        kept = trees.joined(critic=critic, slots=self.local.init(critic))
        return {name: leaf.expand(units, *leaf.shape) for name, leaf in kept.items()}

    # The server

    def start(self) -> Tree:
        generator, averaged = (self.gan.generator.init(self.seed + 1) for _ in range(2))
        parts = {"generator": generator, "averaged": averaged, "slots": self.generator.init(generator)}
        answers = {"answers": torch.zeros(self.batch, *self.gan.shape)} if self.asks > 1 else {}
        return trees.joined(round=torch.zeros((), dtype=torch.int64), **parts, **answers)

    def run(self, curator: Curator, state: Tree) -> Iterator[Tree]:
        """One state per release, until the plan is spent."""
        if self.warm_steps and not int(state["round"]) and curator.remaining:
            curator.remember(self.seedless.warmed, self._warming(state["round"].device))
        while curator.remaining:
            if self.all_learn and int(state["round"]) % self.asks == 0:
                curator.remember(self.seedless.learnt, self._lesson(state))
            message, answered = self.round(state)
            yield (state := answered(curator.noisy_mean(self.contribute, message)))

    def round(self, state: Tree) -> tuple[Tree, Answered]:
        """One release: some images to judge, and what follows from the answer."""
        step, part = divmod(int(state["round"]), self.asks)
        latents, labels = self._latents(step, state["round"].device)
        rows = slice(part * self.batch // self.asks, (part + 1) * self.batch // self.asks)
        images = self._drawn(state, latents)
        message = {"images": images[rows], "labels": labels[rows]}
        if self.top:
            message["salt"] = torch.tensor(round_seed(self.seed, int(state["round"])), device=images.device)
        if not self.all_learn:
            message |= self._lesson(state)
        return message, lambda mean: self._answered(state, mean["images"], rows, latents)

    def _answered(self, state: Tree, mean: torch.Tensor, rows: slice, latents: torch.Tensor) -> Tree:
        after = {"round": state["round"] + 1}
        if self.asks > 1:
            after["answers"] = state["answers"].clone()
            after["answers"][rows] = mean
            mean = after["answers"]
        return state | after | (self._stepped(state, mean, latents) if rows.stop == self.batch else {})

    def _stepped(self, state: Tree, towards: torch.Tensor, latents: torch.Tensor) -> Tree:
        """The generator after a step that moves its images the way that was said."""
        if self.top:  # where enough agree, which way
            towards = towards.sign() * (towards.abs() >= self.agreement)
        steps = int(state["round"]) // self.asks
        fresh = torch.tensor(max(1 / (steps + 1), 1 - self.averaged), device=towards.device)
        parts = (trees.part(state, name) for name in ("generator", "slots", "averaged"))
        return _server_step(self.seedless)(*parts, {"latents": latents, "towards": towards, "fresh": fresh})

    def _drawn(self, state: Tree, latents: torch.Tensor) -> torch.Tensor:
        return _drawing(self.gan, len(latents))(trees.part(state, "generator"), {"latents": latents})["images"]

    def result(self, state: Tree) -> Tree:
        """The generator's weights, averaged over the steps."""
        return trees.part(state, "averaged")

    def _latents(self, step: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
        """What a step of the generator is about: each class equally often, as far as that goes."""
        rng = torch.Generator().manual_seed(round_seed(self.seed, step))
        labels = torch.arange(self.batch) % self.kinds
        return self.gan.latents_of(labels, rng).to(device), labels.to(device)

    def _lesson(self, state: Tree) -> Tree:
        """What critics need to learn in a step: fakes, class by class in turn, and what is drawn by chance."""
        step, device = int(state["round"]) // self.asks, state["round"].device
        rng = torch.Generator().manual_seed(round_seed(self.seed + 1, step))
        pool = self._drawn(state, self.gan.latents_of(self._pooled(), rng).to(device))
        return trees.moved(self._chances(rng), device) | {"pool": pool}

    def _warming(self, device: torch.device) -> Tree:
        rng = torch.Generator().manual_seed(round_seed(self.seed + 2, 0))
        decoy, labels = _decoy(self.gan), self._pooled()
        pair = dataclasses.replace(self.gan, generator=decoy)
        latents = torch.stack([pair.latents_of(labels, rng) for _ in range(self.warm_steps)])
        message = {"latents": latents} | self._chances(rng, self.warm_steps)
        return trees.moved(trees.joined(decoy=decoy.init(self.seed + 2), **message), device)

    def _pooled(self) -> torch.Tensor:
        """The labels of the fakes that critics learn from."""
        return torch.arange(max(self.local_steps, 1) * self.batch // self.kinds * self.kinds) % self.kinds

    def _chances(self, rng: torch.Generator, *turns: int) -> Tree:
        shape = *turns, self.local_steps, self.batch
        return {name: torch.rand(*shape, generator=rng) for name in ("picks", "fakes", "shares")}


@functools.lru_cache(maxsize=4)
def _server_step(algorithm: FeedbackGan) -> Replayed:
    """A step of the generator and of its average, as one pure function."""
    gan = algorithm.gan

    def step(generator: Tree, slots: Tree, averaged: Tree, given: Tree) -> Tree:
        def loss(params: Tree) -> torch.Tensor:
            return -(gan.generator.images(params, given["latents"]) * given["towards"]).sum() / algorithm.batch

        generator, slots = algorithm.generator(generator, torch.func.grad(loss)(generator), slots)
        generator = gan.turned(generator)
        averaged = {
            name: old if name.endswith(".u") else old.lerp(generator[name], given["fresh"])
            for name, old in averaged.items()
        }
        return trees.joined(generator=generator, slots=slots, averaged=gan.turned(averaged))

    return Replayed(step)


@functools.lru_cache(maxsize=4)
def _drawing(gan: Gan, rows: int) -> Replayed:
    """Of so many images: as many recordings as there are numbers of them."""

    def drawn(generator: Tree, given: Tree) -> Tree:
        with torch.no_grad():
            return {"images": gan.generator.images(generator, given["latents"])}

    return Replayed(drawn)


def votes(slopes: torch.Tensor, coins: torch.Tensor, top: int, clip: float | None) -> torch.Tensor:
    """The signs of the largest entries of each row, drawn such that they are right on average; all others zero.

    >>> votes(torch.tensor([[0.5, -2.0, 1.0]]), torch.tensor([[0.1, 0.1, 0.9]]), top=2, clip=None)
    tensor([[ 0., -1., -1.]])
    """
    rows = slopes.flatten(1)
    largest = rows.abs().topk(min(top, rows.shape[1]), 1)
    most = largest.values[:, :1].clamp(min=1e-30, max=clip)
    share = rows / most  # beyond 1 the coin has but one side
    signs = torch.where(coins.flatten(1) < (1 + share) / 2, 1.0, -1.0)
    return torch.zeros_like(rows).scatter(1, largest.indices, signs.gather(1, largest.indices)).view_as(slopes)


def _decoy(gan: Gan) -> ConvGenerator:
    """A small generator: it trains a critic, and nobody looks at what it draws."""
    return ConvGenerator(
        side=gan.shape[-1], channels=gan.shape[0], latent=16, hidden=64, widths=(32, 16), classes=gan.classes
    )


def _unless_broken(before: Tree, after: Tree, examples: Tree) -> Tree:
    """A unit without examples learns nothing, and what is no number is not kept."""
    sound = torch.stack([leaf.isfinite().all() for leaf in after.values()]).all() & (examples["mask"].sum() > 0)
    return {name: torch.where(sound, after[name], leaf) for name, leaf in before.items()}


def _coins(examples: Tree, salt: torch.Tensor, shape: torch.Size) -> torch.Tensor:
    """Uniform numbers that follow from what a unit holds and from the message.

    Were they the message's alone, all teachers would round the same way, and the sum of their votes would be as coarse
    as one of them. They need not be secret: whatever coins show, the bound and the noise hold.
    """
    taken = examples["mask"].view(-1, *[1] * (examples["x"].dim() - 1)) > 0
    bits = torch.where(taken, examples["x"].float(), 0.0).view(torch.int32).long().flatten()
    places = torch.arange(bits.numel(), device=bits.device)
    own = _mixed(bits + _mixed(places)).sum() + salt
    numbers = _mixed(torch.arange(shape.numel(), device=bits.device) + _mixed(own))
    return ((numbers >> 40) & 0xFFFFFF).view(shape).float() / 2**24


def _mixed(numbers: torch.Tensor) -> torch.Tensor:
    """Whole numbers that look random (splitmix64, Steele et al. 2014); 64 bits that wrap around, exactly."""
    z = numbers + -7046029254386353131
    z = (z ^ ((z >> 30) & (2**34 - 1))) * -4658895280553007687
    z = (z ^ ((z >> 27) & (2**37 - 1))) * -7723592293110705685
    return z ^ ((z >> 31) & (2**33 - 1))
