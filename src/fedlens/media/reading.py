"""PRIVATE. The half of a medium that reads data: what lies in a source, what is asked of it, how it is recognised."""

import abc
import contextlib
import pathlib
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, TypeVar

import numpy as np

from fedlens import media
from fedlens.data import readers
from fedlens.data.planting import Planting
from fedlens.data.population import DataError, Population, SchemaError
from fedlens.models.classifier import Primary
from fedlens.recipes.tables import Bug, Data, Settings

Given = TypeVar("Given")
Made = TypeVar("Made")


class Reading(abc.ABC):
    """One medium, as whoever holds the data sees it. One unit never decides about another."""

    name: ClassVar[str]
    column: ClassVar[str]  # of the examples themselves, in a population of it
    formats: ClassVar[tuple[str, ...]] = ()  # that can be converted into a population folder
    conversion: ClassVar[frozenset[str]] = frozenset()  # the options that go with it

    def source_at(self, path: pathlib.Path) -> str | None:
        """Which of its sources a path is, by its name; None if it is none."""
        return None

    def with_its_labels(self, source: Data) -> Data:
        """The same, which names labels only if they are there: for whom nobody needs them."""
        return source

    @abc.abstractmethod
    def opened(self, source: Data) -> Population:
        """All that one of its sources holds, as far as it is described."""

    def converted(self, source: pathlib.Path, to: pathlib.Path, kind: str, **options: Any) -> Population:
        """Written as a population folder, whole or not at all."""
        raise ValueError(f"Expected no {self.name} to convert.")

    def sound(self, population: Population) -> Population:
        """The same, of a population folder: what a run can use, in the types it works with."""
        return population

    @abc.abstractmethod
    def prepared(self, recipe: Settings, units: Population) -> Population:
        """What models are trained on, in the column `x`, with the fault planted; and columns to select by."""

    def check(self, recipe: Settings, units: Population) -> None:
        """Before anything is released: whether what is prepared fits the recipe's model."""
        return

    @abc.abstractmethod
    def checked(self, population: Population) -> list[str]:
        """For the owner: reads everything once and lists what a run would stumble over."""

    def notes(self) -> list[str]:
        """What is true of any such data, for the owner."""
        return []

    def facts(self, population: Population) -> dict[str, int]:
        """What is public of the examples' form."""
        return {}

    # How examples are recognised

    @abc.abstractmethod
    def contents(self, column: Any) -> Iterator[bytes]:
        """Of every example the bytes that are the same in whatever form it was kept."""

    def telling(self, content: bytes) -> bool:
        """Whether an example is hardly held by two people by chance."""
        return True

    def reads_public(self, path: pathlib.Path) -> bool:
        """Whether a file that is called public can be one of this medium's."""
        return False

    def public_contents(self, path: pathlib.Path, column: str | None = None, declared: bool = True) -> Iterator[bytes]:
        """The same as `contents`, of a file that is called public."""
        return iter(())

    def public_examples(self, recipe: Settings) -> list[tuple[pathlib.Path, str | None]]:
        """The files with examples that a recipe calls public, each with the column that is read."""
        return []

    # The primary model

    def fitted(self, recipe: Settings, seed: int) -> Primary:
        """A primary model, trained here on public examples."""
        raise ValueError(f"Expected no [primary]: there is no primary model of {self.name}.")


def reading(name: str) -> Reading:
    """The private half of a medium."""
    opened: Reading = media.part(name, "reading").READING
    return opened


def of_source(source: Data) -> Reading | None:
    """Whose source it is; None for a folder, which may hold any medium."""
    owners = (name for name in media.MEDIA if source.source in media.sources_of(name))
    return next((reading(name) for name in owners), None)


def of_population(population: Population) -> Reading:
    """Which medium it holds, by its columns."""
    for name in reversed(media.MEDIA):  # the first of the table keeps its examples in `x`, as what is prepared does
        if reading(name).column in population.columns:
            return reading(name)
    columns = {reading(name).column: name for name in media.MEDIA}
    wanted = " or ".join(f"{column!r} ({name})" for column, name in columns.items())
    raise SchemaError(f"Expected a column {wanted}, found {', '.join(sorted(population.columns))}.")


def opened(source: Data) -> Population:
    """All that a source holds, as far as it is described, whatever its medium."""
    if owner := of_source(source):
        return owner.opened(source)
    population = Population.open(pathlib.Path(source.path or ""))
    return of_population(population).sound(population)


def converted(source: pathlib.Path, to: pathlib.Path, kind: str | None, options: dict[str, Any]) -> Population:
    """A source as a population folder: of the medium whose flag is among the options, or the first of that format."""
    kind = kind or readers.detected(source)
    named = [name for name in media.MEDIA if options.get(name) is True]  # --images is no flag: it names a column
    having = [name for name in media.MEDIA if kind in reading(name).formats]
    own = reading(next(iter([*named, *having, *media.MEDIA])))
    given = {name: value for name, value in options.items() if name not in named}
    if needless := [f"--{name}" for name in given if name not in own.conversion]:
        raise ValueError(f"Expected no {', '.join(needless)} for {own.name}.")
    return own.converted(source, to, kind, **given)


def planting_of(bug: Bug, population: Population) -> Planting:
    """Whom a planted fault hits; a column that is to mark them must not be there yet."""
    if bug.mark in population.columns:
        raise SchemaError(f"Expected no column named {bug.mark!r} yet: it is to mark whom the bug hit.")
    return Planting(fraction=bug.fraction, by_unit=bug.of == "users", share=bug.share, seed=bug.seed)


def untrusted(change: Callable[[Given], Made], given: Given, message: str) -> Made:
    """Somebody else's function is not trusted: what it prints, and what it complains of, may quote the data."""
    try:
        with contextlib.redirect_stdout(None), contextlib.redirect_stderr(None):
            return change(given)
    except (Exception, SystemExit):
        raise DataError(message) from None


def as_whole_numbers(array: np.ndarray, name: str) -> np.ndarray:
    if array.ndim != 1 or not np.issubdtype(array.dtype, np.integer):
        raise SchemaError(f"Expected {name} as one whole number per row, got {array.dtype} {list(array.shape[1:])}.")
    return array.astype(np.int64)
