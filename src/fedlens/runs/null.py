"""How far apart are two models that differ by no cause? Pairs of models of one and the same data tell. Free.

Both models that are compared are public, and so is what they draw. Taken together, it is dealt to as many made-up units
as a group has, by its recipe's guess, and models are trained on it by the same recipes: whatever parts the two models
of a pair is noise, and chance. Two things are not as in the data: made-up units do not differ as people do, and what is
drawn is less varied than what it was learnt from.
"""

import dataclasses
import itertools
import pathlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch

from fedlens.core.randomness import Randomness
from fedlens.core.trees import Tree
from fedlens.curators.engine import Engine
from fedlens.curators.site import Site
from fedlens.data.population import Population
from fedlens.ledger import Ledger
from fedlens.media.protocol import Medium, Samples, Trained
from fedlens.privacy import Unit
from fedlens.recipes.recipe import Recipe
from fedlens.recipes.stages import FIRST, TRAIN, Stage
from fedlens.recipes.tables import Selection
from fedlens.report import ranking
from fedlens.report.comparison import Null
from fedlens.runs.carrying_out import Asking, carried_out
from fedlens.runs.reporting import kept_of, model_of


def null(
    folders: Sequence[pathlib.Path],
    models: Sequence[Trained],
    medium: Medium,
    pairs: int,
    *,
    say: Callable[[str], None] = lambda line: None,
    **how: Any,
) -> Null:
    """Of two model folders, with their models; `how` as for `distances`."""
    far: list[float] = []
    for distance in itertools.islice(distances(folders, models, medium, **how), pairs):
        far.append(distance)
        say(f"null: {len(far)} of {pairs} pairs of models, distance {distance:.3g}")
    return Null(distances=tuple(far))


def distances(
    folders: Sequence[pathlib.Path],
    models: Sequence[Trained],
    medium: Medium,
    *,
    kinds: Sequence[str] = (),
    device: str = "cpu",
) -> Iterator[float]:
    """One pair after the other, each with seeds and noise of its own; they do not end."""
    recipes = [_recipe(folder, model) for folder, model in zip(folders, models, strict=True)]
    for number in itertools.count(1):
        drawn = [_drawn(recipe, models, medium, number, device, place) for place, recipe in enumerate(recipes)]
        yield _distance(drawn, medium, kinds)


def _recipe(folder: pathlib.Path, model: Trained) -> Recipe:
    """That the model was trained by; it says how the noise and the steps were, and how many units to make up."""
    path = folder.resolve().parent / "recipe.toml"
    if not path.exists():
        raise ValueError(f"Expected {folder.name} in its run folder, beside recipe.toml, which says how to train more.")
    recipe = Recipe.open(path)
    if recipe.digest != model.recipe_sha256:
        raise ValueError(
            f"Expected the recipe that {folder.name} was trained by beside it; it, or a public file that"
            " it names, has changed."
        )
    return recipe


def _drawn(recipe: Recipe, models: Sequence[Trained], medium: Medium, number: int, device: str, place: int) -> Samples:
    """What one more model draws, trained on what all these models draw."""
    # Seeds as far apart as those of the recipes: two groups of one run begin with the same weights.
    recipe = recipe.changed([f"seed={recipe.seed + number}"])
    site = Site(_units(recipe, models, 2 * number + place), None, None)
    group = next(iter(recipe.selections))
    asking = Asking(
        book=Ledger(),
        account=recipe.account("null", group, True),
        randomness=Randomness.seeded(2 * number + place),
        device=device,
        engine=Engine.repeatable(device),
    )
    state = carried_out(_training(recipe, group, site, asking), site, asking)
    model = model_of(recipe, group, state, asking.book.spending(asking.account.run), asking.book.pin(), device)
    drawn: Samples = model.sampled(medium.drawn, 0)
    return drawn


def _training(recipe: Recipe, group: str, site: Site, asking: Asking) -> Stage:
    """Of all units here; with what it starts from, if it waits for that."""
    everyone = Selection(by="everyone")
    training = dataclasses.replace(recipe.stage(TRAIN, group), who=everyone)
    if not training.waits:
        return training

    def started(state: Tree, device: str) -> Tree:
        answer = carried_out(dataclasses.replace(recipe.stage(FIRST, group), who=everyone), site, asking)
        own = asking.book.spending(asking.account.run)
        kept = kept_of(recipe, group, answer, own, asking.book.pin(), FIRST)
        return recipe.medium.started(recipe, state, kept, device)

    return dataclasses.replace(training, warmed=started, waits=False)


def _units(recipe: Recipe, models: Sequence[Trained], seed: int) -> Population:
    """Made-up units, each with as many examples as count of it: half of what is dealt is from either model."""
    each = 1 if recipe.privacy.unit == Unit.EXAMPLE else recipe.built().examples_per_unit
    wanted = recipe.privacy.units * each
    parts = [model.sampled(-(-wanted // len(models)), seed).examples() for model in models]
    rng = torch.Generator().manual_seed(seed)
    order = torch.randperm(sum(len(part["x"]) for part in parts), generator=rng)[:wanted]
    columns = {name: torch.cat([part[name] for part in parts])[order].numpy() for name in parts[0]}
    return Population.from_arrays("made up", columns, np.full(recipe.privacy.units, each))


def _distance(groups: Sequence[Samples], medium: Medium, kinds: Sequence[str]) -> float:
    """As the report of a comparison has it."""
    report = medium.contrast(groups, title="null", kinds=kinds, coverage=False)
    return next(float(row["distance"]) for row in report.hypotheses if row["kind"] == ranking.NONE)
