"""One look at images: what is kept of it, and the model that is fitted to what was kept.

look.safetensors holds all that was ever released, with its noise and its guarantee. Whoever has it can fit another
generator, at any later time, for free.
"""

import dataclasses
import math
import pathlib
from typing import Any, ClassVar

from fedlens.algorithms.look import OneLook
from fedlens.algorithms.rebuilding import from_settings, settings
from fedlens.core import files, tensorfiles
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
from fedlens.media.protocol import Rule, check_fits
from fedlens.models.gan import ConvGenerator
from fedlens.models.looks import fitting
from fedlens.models.looks.embedding import Embedding
from fedlens.models.looks.fitting import Fit, Release
from fedlens.models.looks.generators import Gaussian, Network
from fedlens.models.looks.moments import Moments
from fedlens.models.looks.psi import Psi
from fedlens.models.sizes import fitting as fits
from fedlens.privacy import Unit
from fedlens.recipes.tables import Settings

FILE = "look.safetensors"
MOST_FREQUENCIES = 100  # more cost more than they show, whatever the noise
FEW, ENOUGH = 100, 400  # units for each unit of noise: with few, means are seen better than how much images vary
ALONE, COMPARED = 0.1, 0.6  # of the squared norm, for what people read of one group, or of two
NEAR, NEAREST, FARTHEST = 0.03, 0.15, 0.5  # radius: chosen on other people's digits and clothes, see docs/looks.md
RULES: tuple[Rule, ...] = (
    (LookSettings, "family examples readable radius public", lambda _, recipe: _looks(recipe), "algorithm = 'look'"),
    (LookSettings, "frequencies jitter", lambda look, recipe: _looks(recipe, "moments"), "look.family = 'moments'"),
    (
        LookSettings,
        "features steps batch rate",
        lambda look, recipe: _looks(recipe, "embedding"),
        "look.family = 'embedding'",
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


def problems(recipe: Settings) -> list[str]:
    """What a plan of one release that everybody is in says otherwise."""
    p = recipe.privacy
    wanted = {"rounds": (p.rounds, 1), "clip": (p.clip, 1.0), "sampling": (p.sampling, "everyone")}
    return [
        f"privacy.{name} is {given}: a look is one release that everybody is in, of norm 1; leave it out"
        for name, (given, expected) in wanted.items()
        if given != expected
    ]


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


def drawing(recipe: Settings) -> Network | Gaussian:
    """What is fitted to it."""
    body = psi(recipe).body
    if isinstance(body, Moments):
        return Gaussian(moments=body, known=networks(recipe).classes, jitter=look(recipe).jitter)
    return network(recipe)


def network(recipe: Settings) -> Network:
    """What is fitted where a GAN starts from a look: a generator of the kind that can be."""
    return Network(generator=gan(recipe).plain[0])


@dataclasses.dataclass(frozen=True, kw_only=True)
class Look(protocol.Trained):
    """The release, with its guarantee: the content of look.safetensors."""

    medium: ClassVar[str] = "images"
    file: ClassVar[str] = FILE
    release: Release

    def sampled(self, count: int, seed: int) -> Samples:
        raise ValueError("Expected a generator to draw from: a look is what one is fitted to (fedlens fit).")

    def save(self, path: pathlib.Path) -> None:
        about = {"psi": settings(self.release.psi), "noise": self.release.noise, "units": self.release.units}
        tensorfiles.write(path, self.release.blocks, self._header() | about)

    @classmethod
    def open(cls, path: pathlib.Path) -> "Look":
        blocks, about = tensorfiles.read(path)
        cls._check_header(about, path, ["psi", "noise", "units"])
        with damage_of(path):
            noise, units = about["noise"], about["units"]
            if not files.finite(noise) or noise < 0 or not files.finite(units) or units <= 0:
                raise ValueError
            asked: Psi = from_settings(Psi, about["psi"])
            release = Release(psi=asked, blocks=blocks, noise=float(noise), units=float(units))
            opened = cls(release=release, **cls._stated(about))
        if not fits(blocks, asked.shapes) or not all(leaf.isfinite().all() for leaf in blocks.values()):
            raise ValueError(f"Expected the blocks that its psi describes in {path.name}; some are of another size.")
        return opened


@dataclasses.dataclass(frozen=True, kw_only=True)
class Fitted(protocol.Trained):
    """A generator that was fitted to a look, with the look's guarantee: the content of model.safetensors."""

    medium: ClassVar[str] = "images"
    drawing: Network | Gaussian
    generator: Tree = dataclasses.field(repr=False)
    refitted: bool = False  # after its run: the ledger knows its price, and not its hash

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
            kind = {"Network": Network, "Gaussian": Gaussian}[values.pop("kind")]
            again = about.get("refitted") is True
            opened = cls(drawing=from_settings(kind, values), generator=generator, refitted=again, **cls._stated(about))
        check_fits(opened.drawing, generator, path)
        return opened


def kept(algorithm: OneLook, state: Tree, **about: Any) -> Look:
    """The release in a state, with the noise that its plan gave it."""
    if not about["rounds"]:  # what was charged, and not answered, would pass for one of zeros
        raise ValueError(
            f"Expected the answer to the look at {about['label']}: it is spent, and its checkpoint is gone or of"
            f" another machine. Where there is a {FILE}, it holds the answer (fedlens fit); else start a new run."
        )
    plan = about["spending"].plans[-1]
    units = plan.expected_contributors
    blocks = {name: leaf.float().cpu() for name, leaf in algorithm.result(state).items()}
    asked: Any = algorithm.psi  # of images, here
    return Look(release=Release(psi=asked, blocks=blocks, noise=plan.stddev / units, units=units), **about)


def fitted(recipe: Settings, release: Look, device: str) -> Fitted:
    """The model of a recipe."""
    return dataclasses.replace(refitted(release, drawing(recipe), _fit(recipe), device), refitted=False)


def start(recipe: Settings, release: Look, device: str) -> Tree:
    """The weights of a generator that a GAN goes on with."""
    params = _fit(recipe)(release.release, network(recipe), device=device)
    return {name: leaf for name, leaf in params.items() if name != "shares"}


def _fit(recipe: Settings) -> Fit:
    table = look(recipe)
    return Fit(steps=table.steps, batch=table.batch, rate=table.rate, seed=recipe.seed)


def refitted(release: Look, drawing: Network | Gaussian, fit: Fit, device: str = "cpu") -> Fitted:
    """A model of a look: free."""
    if isinstance(drawing, Gaussian):
        params = fitting.gaussian(release.release, drawing.moments)
    else:
        params = fit(release.release, drawing, device=device)
    stated = {name: getattr(release, name) for name in release.readers}
    return Fitted(drawing=drawing, generator=params, refitted=True, **stated)


def drawing_for(release: Look) -> Network | Gaussian:
    """What is fitted to images as those of a look, unless a recipe says otherwise."""
    asked = release.release.psi
    if isinstance(asked.body, Moments):
        return Gaussian(moments=asked.body, known=asked.classes, jitter=LookSettings().jitter)
    sizes = {"side": asked.body.side, "channels": asked.body.channels, "classes": asked.classes}
    usual = fitted_to(sizes)
    hidden, widths = usual["generator_hidden"], tuple(usual["generator_widths"])
    return Network(generator=ConvGenerator(latent=64, hidden=hidden, widths=widths, **sizes))
