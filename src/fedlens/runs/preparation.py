"""PRIVATE. What a recipe needs where the data lie: a site, with the units prepared and the primary model asked."""

import dataclasses
import pathlib
from typing import Any

from fedlens.curators.site import Site
from fedlens.data.population import DataError, Population, SchemaError
from fedlens.data.selection import accuracies, predicted
from fedlens.media import reading
from fedlens.media.reading import as_whole_numbers
from fedlens.models.classifier import Primary
from fedlens.models.looks.psi import PREDICTED
from fedlens.models.primary import open_primary
from fedlens.privacy import Unit
from fedlens.recipes.recipe import Recipe
from fedlens.recipes.tables import BY_PRIMARY, Data


def site(recipe: Recipe, kept: pathlib.Path, source: Data | None = None, fresh: bool = False) -> Site:
    """Of the data where they are registered, or where the recipe says; `kept` is where the primary model lies."""
    units = population(recipe, source or recipe.data)
    model = primary(recipe, kept, fresh)
    check(recipe, units, model)
    if recipe.medium.shows_predictions(recipe) and model:
        units = with_predictions(units, model, alone=recipe.privacy.unit == Unit.EXAMPLE)
    by_accuracy = any(selection.by == "accuracy" for selection in recipe.selections.values())
    return Site(units, model, accuracies(units, model) if by_accuracy and model else None)


def with_predictions(units: Population, model: Primary, alone: bool) -> Population:
    """With a column more: what the primary model takes each example for."""
    if PREDICTED in units.columns:
        raise SchemaError(f"Expected no column called {PREDICTED}: it is where predictions stand.")
    columns = {**units.columns, PREDICTED: predicted(units, model, alone)}
    return dataclasses.replace(units, columns=columns)


def population(recipe: Recipe, source: Data) -> Population:
    """The units with their examples, as models are trained on them."""
    wanted = source if recipe.reads_labels else source.model_copy(update={"labels": None})
    return reading.reading(recipe.medium.name).prepared(recipe, reading.opened(wanted))


def primary(recipe: Recipe, kept: pathlib.Path, fresh: bool = False) -> Primary | None:
    """The model whose mistakes are looked into: as `kept`, so that a resumed run asks the very same classifier.

    A run that begins is `fresh`: what lies there is somebody else's, and is written over by what was opened or made.
    """
    wanted, medium = recipe.primary, recipe.medium
    if wanted is None:
        return None
    expects: dict[str, Any] = dict(medium.primary_form(recipe))
    if wanted.model is not None:  # a program of somebody else's says nothing about the examples it expects
        expects |= {"values": wanted.values, "channels_last": wanted.channels_last}
    if kept.exists() and not fresh:
        model = open_primary(kept, **expects)
    else:
        model = (
            open_primary(pathlib.Path(wanted.model), **expects)
            if wanted.model
            else reading.reading(medium.name).fitted(recipe, recipe.seed)
        )
        model.save(kept)
    if model.classes < 2:
        raise ValueError("Expected a primary model with at least two classes: with one, nothing can be wrong.")
    return model


def check(recipe: Recipe, units: Population, primary: Primary | None) -> None:
    """Before anything is released: the columns that selections go by must be there. Labels that the primary model does
    not know are labels that it gets wrong: to refuse them would tell about them.
    """
    # How many shards there are does not depend on the data.
    if not recipe.privacy.shards and any(selection.by == "everyone" for selection in recipe.selections.values()):
        counted = units.by_example() if recipe.privacy.unit == Unit.EXAMPLE else units
        try:
            recipe.privacy.sampler().check(len(counted), selected=False)
        except ValueError as error:
            raise DataError(str(error)) from None
    reading.reading(recipe.medium.name).check(recipe, units)
    for selection in recipe.selections.values():
        if selection.by in BY_PRIMARY and (primary is None or "y" not in units.columns):
            raise SchemaError(f"Expected labels and a primary model to select by {selection.by}.")
        if selection.by == "class" and "y" not in units.columns:
            raise SchemaError("Expected labels to select by class.")
        if selection.attribute:
            as_whole_numbers(units.only(selection.attribute).columns[selection.attribute], selection.attribute)
