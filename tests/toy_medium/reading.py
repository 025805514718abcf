"""PRIVATE. The half of levels that reads."""

import dataclasses
import pathlib
from collections.abc import Iterator
from typing import Any

import numpy as np
from fedlens.media.levels.faults import FAULTS

from fedlens.data.planting import Planting
from fedlens.data.population import Population
from fedlens.media.reading import Reading
from fedlens.recipes.tables import Data, Settings


class LevelReading(Reading):
    name = "levels"
    column = "level"

    def source_at(self, path: pathlib.Path) -> str | None:
        return "tally" if path.suffix == ".tally" else None

    def opened(self, source: Data) -> Population:
        users, levels = np.loadtxt(source.path or "", dtype=np.int64, unpack=True)
        _, counts = np.unique(users, return_counts=True)
        return Population.from_arrays("tally", {"level": levels[users.argsort(kind="stable")]}, counts)

    def prepared(self, recipe: Settings, units: Population) -> Population:
        levels, bug = units.columns["level"].copy(), recipe.data.bug
        columns = {key: column for key, column in units.columns.items() if key != "level"}
        if bug:
            planting = Planting(fraction=bug.fraction, by_unit=bug.of == "users", share=bug.share, seed=bug.seed)
            for _, rows, _ in planting.hits(units, "level"):
                levels[rows] = FAULTS.named(bug.kind).change(levels[rows])
        return dataclasses.replace(units, columns=columns | {"x": levels})

    def checked(self, population: Population) -> list[str]:
        return []

    def contents(self, column: Any) -> Iterator[bytes]:
        return (bytes([int(level)]) for level in column)


READING = LevelReading()
