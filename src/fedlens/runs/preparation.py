"""PRIVATE. What a recipe needs beside the data: its population, the primary model, thresholds, selections."""

import dataclasses
import functools
import hashlib
import pathlib
from collections.abc import Mapping

import numpy as np
import torch

from fedlens.core import trees
from fedlens.curators.protocol import Curator
from fedlens.data import readers
from fedlens.data.population import DataError, Population, SchemaError
from fedlens.data.readers.docstrings import docstrings
from fedlens.data.selection import (
    AccuracyBetween,
    AccuracyHistogram,
    Classified,
    OfClasses,
    WithAttribute,
    accuracies,
    quantiles,
)
from fedlens.media.images import reading as data
from fedlens.media.text import reading as text_preparation
from fedlens.models.classifier import ConvClassifier, Primary
from fedlens.models.primary import open_primary
from fedlens.privacy import Unit
from fedlens.recipes.recipe import Recipe
from fedlens.recipes.tables import Data
from fedlens.recipes.tables import Primary as PrimaryTable

Thresholds = Mapping[float, float]  # accuracies, by the quantile that each was learnt as


def opened(source: Data) -> Population:
    """All that a source holds, as far as it is described: images with their labels, or text."""
    path = pathlib.Path(source.path or "")
    if source.source == "jsonl":
        return readers.text(path, user=source.users, text=source.text, attributes=source.attributes)
    if source.source == "population":
        found = Population.open(path)
        return text_preparation.of_text(found) if "text" in found.columns else _sound(found)
    users: str | int = source.deal_to or source.users
    return data.from_npz(path, images=source.images, labels=source.labels, users=users, attributes=source.attributes)


def population(recipe: Recipe, source: Data) -> tuple[Population, data.Public | None]:
    """The users with their examples, the bug planted; and the public examples that come with them, if any do."""
    if recipe.text:
        return text_preparation.population(
            recipe, docstrings() if source.source == "docstrings" else opened(source)
        ), None
    public = None
    if source.source == "digits":
        found, public = data.digits(source.deal_to or 100)
    else:
        found = opened(source if recipe.reads_labels else source.model_copy(update={"labels": None}))
    if "x" not in found.columns:
        raise SchemaError(f"Expected an image column 'x', found {', '.join(sorted(found.columns))}.")
    if found.columns["x"].shape[1:] != (1, recipe.side, recipe.side):
        shape = tuple(found.columns["x"].shape[1:])
        colour = len(shape) == 3 and shape[0] == 3
        why = "they are in colour, and grey ones are expected" if colour else "see `side`"
        raise SchemaError(f"Expected images of (1, {recipe.side}, {recipe.side}), got {shape}: {why}.")
    if bug := recipe.data.bug:
        found = data.planted(found, bug.kind, bug.fraction, bug.seed, of=bug.of, mark=bug.mark, classes=bug.classes)
    return found, public


def _sound(found: Population) -> Population:
    """Pixels that a run can use, and labels and attributes in the type it works with."""
    x = found.columns["x"]
    if x.dtype not in (np.uint8, np.float32, np.float64):
        raise DataError(f"Expected x as bytes (uint8) or floats in [-1, 1], got {x.dtype}.")
    if x.dtype != np.uint8:
        data.check_pixels(x)
    other = {name: column for name, column in found.columns.items() if name != "x" and column.dtype.kind in "iu"}
    columns = {**found.columns, **{name: column.astype(np.int64) for name, column in other.items()}}
    return dataclasses.replace(found, columns=columns)


def primary(recipe: Recipe, public: data.Public | None, kept: pathlib.Path, fresh: bool = False) -> Primary | None:
    """The model whose mistakes are looked into: as `kept`, so that a resumed run asks the very same classifier.

    A run that begins is `fresh`: what lies there is somebody else's, and is written over by what was opened or made.
    """
    wanted = recipe.primary
    if wanted is None:
        return None
    open_it = functools.partial(open_primary, side=recipe.side)
    if wanted.model is not None:  # a program of somebody else's says nothing about the images it expects
        open_it = functools.partial(open_it, values=wanted.values, channels_last=wanted.channels_last)
    if kept.exists() and not fresh:
        found = open_it(kept)
    else:
        found = open_it(pathlib.Path(wanted.model)) if wanted.model else _fitted(recipe, wanted, public)
        found.save(kept)
    if found.classes < 2:
        raise ValueError("Expected a primary model with at least two classes: with one, nothing can be wrong.")
    return found


def _fitted(recipe: Recipe, wanted: PrimaryTable, public: data.Public | None) -> Primary:
    """Trained here, on public images."""
    if wanted.public is not None:
        columns = wanted.public
        public = data.public_npz(pathlib.Path(columns.path), images=columns.images, labels=columns.labels)
    if public is None:
        raise ValueError("Expected primary.model or [primary.public] in the recipe: there is no classifier to ask.")
    classes = int(public.labels.max()) + 1
    small = ConvClassifier(side=recipe.side, classes=classes, widths=wanted.widths)
    network = ConvClassifier.paper(recipe.side, classes) if wanted.network == "paper" else small
    images, labels = trees.pixels(torch.from_numpy(public.images)), torch.from_numpy(public.labels)
    return Primary(network, network.fitted(images, labels, seed=recipe.seed, epochs=wanted.epochs))


def check(recipe: Recipe, population: Population, primary: Primary | None) -> None:
    """Before anything is released: the columns that selections go by must be there. Labels that the primary model does
    not know are labels that it gets wrong: to refuse them would tell about them.
    """
    if any(selection.by == "everyone" for selection in recipe.selections.values()):
        units = population.by_example() if recipe.privacy.unit == Unit.EXAMPLE else population
        try:
            recipe.privacy.sampler().check(len(units), selected=False)
        except ValueError as error:
            raise DataError(str(error)) from None
    if recipe.model.classes:
        labels = population.columns.get("y")
        if labels is None:
            raise SchemaError("Expected labels for a conditional model (model.classes).")
        if labels.max(initial=0) >= recipe.model.classes:  # of a registered population it is known that none is
            raise DataError(f"Expected labels below model.classes = {recipe.model.classes}; the data hold others.")
    for selection in recipe.selections.values():
        by_primary = selection.by in ("accuracy", "right", "wrong")
        if by_primary and (primary is None or "y" not in population.columns):
            raise SchemaError(f"Expected labels and a primary model to select by {selection.by}.")
        if selection.by == "class" and "y" not in population.columns:
            raise SchemaError("Expected labels to select by class.")
        if selection.attribute:
            column = population.only(selection.attribute).columns[selection.attribute]
            data.as_whole_numbers(column, selection.attribute)


def thresholds(recipe: Recipe, curator: Curator) -> Thresholds:
    """Learnt through the door in one release: a noisy histogram of the accuracies of all users."""
    return quantiles(curator.noisy_mean(AccuracyHistogram().contribution, {})["users"], recipe.quantiles)


@dataclasses.dataclass(frozen=True, eq=False)
class Side:
    """PRIVATE. The users, the primary model, and what it makes of each of them where groups are sorted by that."""

    population: Population
    primary: Primary | None
    accuracies: np.ndarray | None

    @classmethod
    def of(cls, recipe: Recipe, kept: pathlib.Path, source: Data | None = None, fresh: bool = False) -> "Side":
        """All that a recipe needs beside the data, which lie where they are registered or where the recipe says."""
        users, public = population(recipe, source or recipe.data)
        model = primary(recipe, public, kept, fresh)
        check(recipe, users, model)
        by_accuracy = any(selection.by == "accuracy" for selection in recipe.selections.values())
        return cls(users, model, accuracies(users, model) if by_accuracy and model else None)

    def judged(self) -> Population:
        """The users with nothing but the verdict on each: what thresholds are learnt from."""
        shares = np.zeros(0) if self.accuracies is None else self.accuracies
        return Population.from_arrays(self.population.name, {"accuracy": shares}, np.ones(len(shares), np.int64))

    def fingerprint(self) -> str:
        """Changes with anything that groups and contributions depend on; for use under a secret key only."""
        asked = self.primary.digest if self.primary else ""
        judged = "" if self.accuracies is None else hashlib.sha256(self.accuracies.tobytes()).hexdigest()
        return f"{self.population.fingerprint()} {asked} {judged}"


def selected(recipe: Recipe, name: str, side: Side, thresholds: Thresholds) -> Population:
    """The units that a model is trained on, with nothing but what it is trained on: images and, if known, labels."""
    chosen = _chosen(recipe, name, side, thresholds)
    chosen = chosen.only(*(column for column in ("x", "y") if column in chosen.columns))
    return chosen.by_example() if recipe.privacy.unit == Unit.EXAMPLE else chosen


def _chosen(recipe: Recipe, name: str, side: Side, thresholds: Thresholds) -> Population:
    rule, population, primary = recipe.selections[name], side.population, side.primary
    if rule.by == "everyone":
        return population
    if rule.by == "class":
        return OfClasses(classes=rule.classes or (), minimum=rule.minimum_examples)(population, name)
    if rule.by == "attribute":
        return WithAttribute(attribute=rule.attribute or "", values=rule.values or ())(population, name)
    if primary is None or "y" not in population.columns:
        raise DataError(f"Expected labels and a primary model to select by {rule.by}.")
    if rule.by == "accuracy" and side.accuracies is not None:
        at_least, below = rule.interval(thresholds)
        return AccuracyBetween(at_least=at_least, below=below)(population, name, side.accuracies)
    return Classified(right=rule.by == "right", minimum=rule.minimum_examples)(population, name, primary)
