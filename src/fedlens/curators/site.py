"""PRIVATE. Where data lie: one place that holds the units, selects among them, and opens curators on them.

Whoever carries out stages holds a site and never a unit: a rule goes in, which is public, and a curator comes out. So a
site on a real node can select where its data are.
"""

import dataclasses
import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from fedlens.curators.memory import Memory
from fedlens.curators.simulated import SimulatedCurator
from fedlens.data import selection
from fedlens.data.population import DataError, Population
from fedlens.models.classifier import Primary
from fedlens.models.looks.psi import PREDICTED
from fedlens.privacy import Unit
from fedlens.recipes.stages import Stage
from fedlens.recipes.tables import Selection

Thresholds = Mapping[float, float]  # accuracies, by the quantile that each was learnt as


@dataclasses.dataclass(frozen=True, eq=False)
class Site:
    """PRIVATE. The units, the primary model, and what it makes of each of them where groups are sorted by that."""

    units: Population
    primary: Primary | None
    accuracies: np.ndarray | None
    _latest: dict[object, Population] = dataclasses.field(default_factory=dict, init=False, repr=False)

    def curator(self, stage: Stage, thresholds: Thresholds, **options: Any) -> SimulatedCurator:
        """On the units that a stage asks; the `options` are those of a curator, and in which folder what units remember
        lies, if not in memory."""
        units = self.asked(stage, thresholds)
        scratch = options.pop("scratch", None)
        options["memory"] = options.get("memory") or Memory(stage.algorithm.memory(len(units)), scratch=scratch)
        width = stage.algorithm.examples_per_unit
        return SimulatedCurator(units, stage.plan, stage=stage.name, examples_per_unit=width, **options)

    def asked(self, stage: Stage, thresholds: Thresholds) -> Population:
        """PRIVATE. The units that a stage asks, with what it is shown and no more: examples, labels, predictions."""
        if stage.who is None:
            return self._verdicts()
        key = stage.group, stage.who, stage.plan.unit, stage.plan.shards, tuple(thresholds.items())
        if key not in self._latest:  # a group is counted and trained on: selected once, the latest is kept
            self._latest.clear()
            self._latest[key] = self._selected(stage, stage.who, thresholds)
        return self._latest[key]

    def _selected(self, stage: Stage, rule: Selection, thresholds: Thresholds) -> Population:
        chosen = self._chosen(stage.group, rule, thresholds, alone=stage.plan.unit == Unit.EXAMPLE)
        chosen = chosen.only(*(column for column in ("x", "y", PREDICTED) if column in chosen.columns))
        chosen = chosen.by_example() if stage.plan.unit == Unit.EXAMPLE else chosen
        return chosen.dealt(stage.plan.shards, stage.seed) if stage.plan.shards else chosen

    def _verdicts(self) -> Population:
        """Nothing but the verdict on each: what thresholds are learnt from."""
        shares = np.zeros(0) if self.accuracies is None else self.accuracies
        return Population.from_arrays(self.units.name, {"accuracy": shares}, np.ones(len(shares), np.int64))

    def _chosen(self, name: str, rule: Selection, thresholds: Thresholds, alone: bool) -> Population:
        units, primary = self.units, self.primary
        if rule.by == "everyone":
            return units
        if rule.by == "class":
            return selection.of_classes(units, name, rule.classes or (), rule.minimum_examples)
        if rule.by == "attribute":
            return selection.with_attribute(units, name, rule.attribute or "", rule.values or ())
        if primary is None or "y" not in units.columns:
            raise DataError(f"Expected labels and a primary model to select by {rule.by}.")
        if rule.by == "accuracy" and self.accuracies is not None:
            return selection.with_accuracy(units, name, self.accuracies, *rule.interval(thresholds))
        return selection.classified(units, name, primary, rule.by == "right", rule.minimum_examples, alone)

    def fingerprint(self) -> str:
        """Changes with anything that groups and contributions depend on; for use under a secret key only."""
        asked = self.primary.digest if self.primary else ""
        judged = "" if self.accuracies is None else hashlib.sha256(self.accuracies.tobytes()).hexdigest()
        return f"{self.units.fingerprint()} {asked} {judged}"
