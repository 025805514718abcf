"""One look at images: what is kept of it, and the model that is fitted to what was kept.

look.safetensors holds all that was ever released, with its noise and its guarantee. Whoever has it can fit another
generator, at any later time, for free.
"""

import dataclasses
import math
import pathlib
from typing import ClassVar

from fedlens.algorithms.rebuilding import from_settings, settings
from fedlens.core import tensorfiles
from fedlens.core.trees import Tree
from fedlens.ledger.provenance import damage_of
from fedlens.media import protocol
from fedlens.media.images.samples import Samples
from fedlens.media.images.settings import (
    LOOK,
    LookSettings,
    Networks,
    channels,
    gan,
    look,
    networks,
    side,
    starts_from_look,
)
from fedlens.media.images.settings import fitted as fitted_to
from fedlens.media.looks import KeptLook
from fedlens.media.protocol import Rule, check_fits
from fedlens.models.gan import ConvGenerator
from fedlens.models.looks import fitting
from fedlens.models.looks.embedding import Embedding
from fedlens.models.looks.fitting import Fit, Release
from fedlens.models.looks.generators import LIKED, Gaussian, Network, Picked
from fedlens.models.looks.moments import Moments
from fedlens.models.looks.psi import Psi
from fedlens.privacy import Unit
from fedlens.recipes.tables import Settings

MOST_FREQUENCIES = 100  # more cost more than they show, whatever the noise
FEW, ENOUGH = 120, 400  # units for each unit of noise: with few, means are seen better than how much images vary
ALONE, COMPARED = 0.1, 0.6  # of the squared norm, for what people read of one group, or of two
NEAR, NEAREST, FARTHEST = 0.03, 0.15, 0.5  # radius: chosen on other people's digits and clothes, see docs/looks.md
RULES: tuple[Rule, ...] = (
    (LookSettings, "family examples readable radius public", lambda _, recipe: _looks(recipe), "algorithm = 'look'"),
    (
        LookSettings,
        "frequencies jitter unseen",
        lambda look, recipe: _looks(recipe, "moments"),
        "look.family = 'moments'",
    ),
    (
        LookSettings,
        "features steps batch rate",
        lambda look, recipe: _looks(recipe, "embedding"),
        "look.family = 'embedding'",
    ),
    (
        LookSettings,
        "keep",
        lambda _, recipe: recipe.algorithm == LOOK and _looks(recipe, "embedding"),
        "algorithm = 'look' and look.family = 'embedding'",
    ),
    (LookSettings, "share", lambda _, recipe: starts_from_look(recipe), "model.start = 'look'"),
    (
        Networks,
        "critic_widths critic_hidden start",
        lambda _, recipe: recipe.algorithm != LOOK,
        "algorithm = 'fedavg-gan'",
    ),
)


def _looks(recipe: Settings, family: str = "") -> bool:
    """Whether it takes a look, of this family."""
    return (recipe.algorithm == LOOK or starts_from_look(recipe)) and family in ("", look(recipe).family)


def problems_of_start(recipe: Settings) -> list[str]:
    """What does not go with a GAN that starts from a look."""
    family = look(recipe).family == "embedding"
    given = recipe.privacy.epsilon is not None
    return [
        *([] if family else ["model.start = 'look' fits a network: it goes with look.family = 'embedding'"]),
        *([] if given else ["model.start = 'look' takes its share of privacy.epsilon: give that"]),
    ]


def psi(recipe: Settings) -> Psi:
    """What every unit sends; its sizes follow from public numbers."""
    table, several = look(recipe), recipe.privacy.unit != Unit.EXAMPLE
    body: Moments | Embedding = _moments(recipe)
    if table.family == "embedding":
        body = Embedding(side=side(recipe), channels=channels(recipe), features=table.features)
    return Psi(
        body=body,
        classes=networks(recipe).classes,
        judged=judged(recipe),
        several=several,
        examples=table.examples if several else 1,
        readable=readable(recipe),
        radius=table.radius or _radius(recipe),
    )


def readable(recipe: Settings) -> float:
    """Of the squared norm: where two groups are compared, what people read comes first; else the pictures."""
    given = look(recipe).readable
    compared = (len(recipe.selections) > 1 or recipe.task == "T6") and not starts_from_look(recipe)
    return given if given is not None else COMPARED if compared else ALONE


def _radius(recipe: Settings) -> float:
    """The smaller, the more noise there is: small differences are seen then, and sizes told where there is less."""
    return round(min(max(NEAR * math.sqrt(_signal(recipe)), NEAREST), FARTHEST), 2)


def _signal(recipe: Settings) -> float:
    """Units for each unit of noise, from public numbers."""
    p = recipe.privacy
    noise = p.noise_multiplier or 3.7 / (p.epsilon or 1.0)  # about that of one release
    return p.units / max(noise, 1e-3)


def judged(recipe: Settings) -> bool:
    """Whether it also counts what the primary model takes images for."""
    return recipe.primary is not None and networks(recipe).classes > 0


def _moments(recipe: Settings) -> Moments:
    """As many frequencies as the noise leaves to be seen: a covariance has about the square of their number."""
    table, signal = look(recipe), _signal(recipe)
    most = min(MOST_FREQUENCIES, side(recipe) ** 2)
    factor, spread = (4, 0.7) if signal > FEW else (2, 0.3)
    count, spread = (0.03, 0.8) if signal > ENOUGH else (0.05, spread)
    number = table.frequencies or min(max(round(factor * math.sqrt(signal)), 16), most)
    return Moments(side=side(recipe), channels=channels(recipe), frequencies=number, count=count, spread=spread)


def drawing(recipe: Settings) -> Network | Picked | Gaussian:
    """What is fitted to it."""
    body, table = psi(recipe).body, look(recipe)
    if isinstance(body, Moments):
        return Gaussian(moments=body, known=networks(recipe).classes, jitter=table.jitter)
    return _picked(networks(recipe).generator(side(recipe), channels(recipe)), body, table.keep)


def _picked(generator: ConvGenerator, body: Embedding, keep: float) -> Network | Picked:
    network = Network(generator=generator)
    return Picked(network=network, body=body, keep=keep) if keep < 1 else network


@dataclasses.dataclass(frozen=True, kw_only=True)
class Look(KeptLook):
    """The release, with its guarantee: the content of look.safetensors."""

    medium: ClassVar[str] = "images"
    sent, answer = Psi, Release
    release: Release

    def sampled(self, count: int, seed: int) -> Samples:
        raise ValueError("Expected a generator to draw from: a look is what one is fitted to (fedlens fit).")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Fitted(protocol.Trained):
    """A generator that was fitted to a look, with the look's guarantee: the content of model.safetensors."""

    medium: ClassVar[str] = "images"
    drawing: Network | Picked | Gaussian
    generator: Tree = dataclasses.field(repr=False)

    def sampled(self, count: int, seed: int) -> Samples:
        images, classes = self.drawing.drawn(self.generator, count, seed)
        return Samples(images=images, classes=classes, **self._of_samples())

    def save(self, path: pathlib.Path) -> None:
        kind = {"kind": type(self.drawing).__name__}
        about = {"drawing": kind | settings(self.drawing), "refitted": self.refitted}
        tensorfiles.write(path, self.generator, self._header() | about)

    @classmethod
    def open(cls, path: pathlib.Path) -> "Fitted":
        generator, about = tensorfiles.read(path)
        cls._check_header(about, path, ["drawing"])
        with damage_of(path):
            values = dict(about["drawing"])
            kind = {"Network": Network, "Picked": Picked, "Gaussian": Gaussian}[values.pop("kind")]
            again = about.get("refitted") is True
            opened = cls(drawing=from_settings(kind, values), generator=generator, refitted=again, **cls._stated(about))
        check_fits(opened.drawing, generator, path)
        return opened


def fitted(recipe: Settings, release: Look, device: str) -> Fitted:
    """The model of a recipe."""
    return dataclasses.replace(refitted(release, drawing(recipe), _fit(recipe), device), refitted=False)


def start(recipe: Settings, release: Look, device: str) -> Tree:
    """The weights of a generator that a GAN goes on with."""
    params = _fit(recipe)(release.release, Network(generator=gan(recipe).conv_generator), device=device)
    return {name: leaf for name, leaf in params.items() if name != "shares"}


def _fit(recipe: Settings) -> Fit:
    table = look(recipe)
    return Fit(steps=table.steps, batch=table.batch, rate=table.rate, seed=recipe.seed, unseen=table.unseen)


def refitted(release: Look, drawing: Network | Picked | Gaussian, fit: Fit, device: str = "cpu") -> Fitted:
    """A model of a look: free."""
    if isinstance(drawing, Gaussian):
        params = fitting.gaussian(release.release, drawing.moments, fit.unseen)
    elif isinstance(drawing, Picked):
        params = fit(release.release, drawing.network, device=device) | {LIKED: release.release.body}
    else:
        params = fit(release.release, drawing, device=device)
    stated = {name: getattr(release, name) for name in release.readers}
    return Fitted(drawing=drawing, generator=params, refitted=True, **stated)


def drawing_for(release: Look, keep: float = 1.0) -> Network | Picked | Gaussian:
    """What is fitted to images as those of a look, unless a recipe says otherwise."""
    asked = release.release.psi
    if isinstance(asked.body, Moments):
        if keep < 1:
            raise ValueError("Expected to keep all where moments make the images: nothing tells which are liked least.")
        return Gaussian(moments=asked.body, known=asked.classes, jitter=LookSettings().jitter)
    sizes = {"side": asked.body.side, "channels": asked.body.channels, "classes": asked.classes}
    usual = fitted_to(sizes)
    hidden, widths = usual["generator_hidden"], tuple(usual["generator_widths"])
    return _picked(ConvGenerator(latent=64, hidden=hidden, widths=widths, **sizes), asked.body, keep)
