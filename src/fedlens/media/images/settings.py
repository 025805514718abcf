"""What a recipe says about models of images."""

import dataclasses
from typing import Annotated, Any, Literal

from pydantic import Field, NonNegativeInt, PositiveInt

from fedlens.models.gan import Gan
from fedlens.recipes.tables import Settings, Table, changed


class Networks(Table):
    """`size` gives a pair; the other names change parts of it."""

    size: Literal["paper", "small"] = "small"
    critic_widths: tuple[PositiveInt, ...] | None = None
    critic_hidden: Annotated[int, Field(ge=0)] | None = None  # 0 for no hidden layer
    generator_latent: PositiveInt | None = None
    generator_hidden: PositiveInt | None = None
    generator_widths: tuple[PositiveInt, ...] | None = None
    classes: NonNegativeInt = 0  # above 0: a conditional pair, which learns images with their labels

    def built(self, side: int, channels: int) -> Gan:
        pair = Gan.paper(side, channels) if self.size == "paper" else Gan.small(side, channels)
        critic = {"widths": self.critic_widths, "hidden": self.critic_hidden}
        generator = {"latent": self.generator_latent, "hidden": self.generator_hidden, "widths": self.generator_widths}
        pair = dataclasses.replace(
            pair, critic=changed(pair.critic, critic), generator=changed(pair.generator, generator)
        )
        return pair.conditional(self.classes) if self.classes else pair


def side(recipe: Settings) -> int:
    """Images are side x side; 0 where a recipe does not say."""
    value: Any = getattr(recipe, "side", 0)
    return int(value)


def networks(recipe: Settings) -> Networks:
    table: Networks = recipe.model  # type: ignore[attr-defined]  # a key of this medium: Medium.tables
    return table


def gan(recipe: Settings) -> Gan:
    return networks(recipe).built(side(recipe), 1)
