"""What a recipe says about models of images; what it leaves open follows from public numbers, never private metrics."""

import dataclasses
from collections.abc import Callable
from typing import Annotated, Any, Literal

from pydantic import Field, NonNegativeInt, PositiveInt

from fedlens.algorithms.feedback_gan import FeedbackGan
from fedlens.algorithms.look import OneLook
from fedlens.media.protocol import Values
from fedlens.models.gan import ConvGenerator, Gan
from fedlens.models.projection import ResidualGenerator
from fedlens.recipes.tables import Columns, Settings, Table, changed

LOOK = OneLook.name
ROUNDS, GENERATOR_STEPS = (8, 105), (1, 20)
CRITICS = ([24, 48], [16, 32], [8, 16])
NOISE_TO_SIGNAL = 10.0
TRAINING = {
    "batch": 32,
    "local_steps": 2,
    "local_rate": 5e-3,
    "generator_batch": 128,
    "generator": {"kind": "adam", "rate": 1e-3, "beta1": 0.5, "beta2": 0.9},
}


PAIRS = {"paper": Gan.paper, "small": Gan.small, "gs-wgan": Gan.gs_wgan, "datalens": Gan.datalens}
FEEDBACK = FeedbackGan.name


class Networks(Table):
    """`size` gives a pair; the other names change parts of it."""

    size: Literal["paper", "small", "gs-wgan", "datalens"] = "small"  # the last two are for feedback-gan
    critic_widths: tuple[PositiveInt, ...] | None = None
    critic_hidden: Annotated[int, Field(ge=0)] | None = None  # 0 for no hidden layer
    generator_latent: PositiveInt | None = None
    generator_hidden: PositiveInt | None = None
    generator_widths: tuple[PositiveInt, ...] | None = None
    classes: NonNegativeInt = 0  # above 0: a conditional pair, which learns images with their labels
    start: Literal["fresh", "look"] = "fresh"  # look: a generator is fitted to one look first, and goes on from there

    def built(self, side: int, channels: int) -> Gan:
        pair = PAIRS[self.size](side, channels)
        critic = {"widths": self.critic_widths, "hidden": self.critic_hidden}
        of_generator = self._of_generator
        if isinstance(pair.generator, ResidualGenerator):  # one width for all of its layers
            of_generator = {"latent": self.generator_latent, "width": self.generator_hidden}
        generator = changed(pair.generator, of_generator)
        pair = dataclasses.replace(pair, critic=changed(pair.critic, critic), generator=generator)
        return pair.conditional(self.classes) if self.classes else pair

    def generator(self, side: int, channels: int) -> ConvGenerator:
        """That of the pair; alone it can draw images of any side."""
        if self.size not in ("paper", "small"):
            return self.built(side, channels).conv_generator
        make = ConvGenerator if self.size == "paper" else ConvGenerator.small
        given = self._of_generator | {"classes": self.classes}
        generator: ConvGenerator = changed(make(side=side, channels=channels), given)
        return generator

    @property
    def _of_generator(self) -> dict[str, Any]:
        return {"latent": self.generator_latent, "hidden": self.generator_hidden, "widths": self.generator_widths}


class LookSettings(Table):
    """How one look is taken, and what is fitted to it: `algorithm = "look"`, or `model.start = "look"`."""

    family: Literal["moments", "embedding"] = "moments"  # a GPU, or minutes, are needed for an embedding
    frequencies: PositiveInt | None = None  # moments: of each channel; by default from units, noise and side
    jitter: Annotated[float, Field(ge=0, le=1)] = 0.1  # moments: how far drawn images are turned, moved and scaled
    # Moments: how much is drawn of the variance whose directions noise hides. All teaches classifiers, none is legible.
    unseen: Annotated[float, Field(ge=0, le=1)] = 1.0
    features: PositiveInt = 21_000  # embedding: a multiple of 6
    steps: PositiveInt = 2000  # embedding: of the generator's fit, as the next two
    batch: PositiveInt = 1000
    rate: Annotated[float, Field(gt=0, le=1)] = 1e-3
    keep: Annotated[float, Field(gt=0, le=1)] = 1.0  # embedding: of what is drawn, what the release likes most
    examples: Annotated[int, Field(ge=1, le=4096)] = 128  # of a unit's images, at most
    # Of the squared norm, for what people read. By default a tenth; three fifths where two groups are compared.
    readable: Annotated[float, Field(ge=0, le=0.8)] | None = None
    radius: Annotated[float, Field(gt=0, le=1)] | None = None  # of what people read; by default from units and noise
    public: Columns | None = None  # images that look like the private ones: faults are tried on them
    share: Annotated[float, Field(gt=0, lt=1)] = 0.5  # model.start: the epsilon of the look alone, of the whole


def side(recipe: Settings) -> int:
    """Images are side x side; 0 where a recipe does not say."""
    value: Any = getattr(recipe, "side", 0)
    return int(value)


def networks(recipe: Settings) -> Networks:
    table: Networks = recipe.model  # type: ignore[attr-defined]  # a key of this medium: Medium.tables
    return table


def channels(recipe: Settings) -> int:
    value: int = recipe.channels  # type: ignore[attr-defined]
    return value


def look(recipe: Settings) -> LookSettings:
    table: LookSettings = recipe.look  # type: ignore[attr-defined]
    return table


def starts_from_look(recipe: Settings) -> bool:
    return networks(recipe).start == LOOK


def gan(recipe: Settings) -> Gan:
    return networks(recipe).built(side(recipe), channels(recipe))


def settled(values: Values, judged: Callable[[Values], Any]) -> Values:
    """More rounds the larger epsilon is, about as many generator steps in all, and the largest critic whose noise stays
    within ten times the signal."""
    privacy, model, training = values["privacy"], values.get("model", {}), values.get("training", {})
    if values.get("algorithm") == FEEDBACK:
        return values | {"privacy": ({} if "top_k" in privacy else {"clip": 1.0}) | privacy}
    if values.get("algorithm") == LOOK:
        return values | {"privacy": {"rounds": 1, "clip": 1.0} | privacy, "model": fitted(values) | model}
    rounds = privacy.get("rounds", _within(20 * privacy["epsilon"] ** 0.8, ROUNDS))
    clip = {} if "adaptive_clip" in privacy else {"clip": 0.1}
    steps = {"generator_steps": _within(840 / rounds, GENERATOR_STEPS)}
    for widths in CRITICS:
        chosen = {"size": "paper", "critic_hidden": 0, "critic_widths": widths} | _generator(values)
        whole = values | {
            "privacy": clip | privacy | {"rounds": rounds},
            "model": ({} if "size" in model else chosen) | model,
            "training": TRAINING | steps | training,
        }
        if judged(whole).noise_to_signal <= NOISE_TO_SIGNAL:
            break
    return whole


def fitted(values: Values) -> Values:
    """The generator of a look at images of a side."""
    return {"generator_hidden": 256, "generator_widths": [128, *_generator(values)["generator_widths"][1:]]}


def _generator(values: Values) -> Values:
    """The paper's starts from 7 x 7 for images of 28 x 28; larger images take more steps, not a larger start."""
    side, widths = values.get("side"), [256, 64, 32]
    while isinstance(side, int) and side >> (len(widths) - 1) > 8:
        widths.insert(1, 64)
    return {"generator_widths": widths}


def _within(value: float, limits: tuple[int, int]) -> int:
    return min(max(round(value), limits[0]), limits[1])
