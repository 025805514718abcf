"""The protocol that every algorithm is measured by, and what comes out: plain values, which JSON keeps."""

import dataclasses
import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from fedlens.evaluation.classifiers import CLASSIFIERS, check_names
from fedlens.evaluation.networks import TrainingRule

SCORES = ("inception score", "frechet distance", "precision", "recall", "density", "coverage")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Protocol:
    """The same for all: nothing in it is chosen on the test images, and the last model of each classifier counts."""

    samples: int = 60_000
    seeds: int = 3
    validation: float = 0.1  # of the images that a classifier is trained on, kept back: never any of the test images
    augmentation: str = "none"  # of what the networks are trained on
    epochs: int = 20  # of the networks
    feature_epochs: int = 10
    classifiers: tuple[str, ...] = CLASSIFIERS
    near: int = 3  # neighbours, for precision and recall
    around: int = 5  # neighbours, for density and coverage
    compared: int = 10_000  # images of each kind, at most, between which neighbours are looked for

    def __post_init__(self) -> None:
        for name in ("samples", "seeds", "feature_epochs", "near", "around", "compared"):
            if getattr(self, name) < 1:
                raise ValueError(f"Expected {name}={getattr(self, name)} >= 1.")
        if not 0 <= self.validation < 1:
            raise ValueError(f"Expected validation={self.validation} >= 0 and < 1.")
        if len(set(self.classifiers)) < len(self.classifiers):
            raise ValueError("Expected each classifier once.")
        check_names(self.classifiers)
        assert self.training

    @property
    def training(self) -> TrainingRule:
        return TrainingRule(epochs=self.epochs, augmentation=self.augmentation)

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self) | {"classifiers": list(self.classifiers)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Protocol":
        return cls(**{**values, "classifiers": tuple(values["classifiers"])})


def dpimagebench_delta(examples: int) -> float:
    """DPImageBench's choice, 1 / (N ln N): smaller than 1e-5 from about 11,000 examples on.

    >>> f"{dpimagebench_delta(60_000):.3g}"
    '1.51e-06'
    """
    if examples < 3:
        raise ValueError(f"Expected examples={examples} >= 3.")
    return 1 / (examples * math.log(examples))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Spread:
    """A number per seed."""

    values: tuple[float, ...]

    @property
    def mean(self) -> float:
        return statistics.fmean(self.values)

    @property
    def deviation(self) -> float | None:
        """Over seeds; of one seed nobody knows."""
        return statistics.stdev(self.values) if len(self.values) > 1 else None

    def __str__(self) -> str:
        return f"{self.mean:.3f}" + ("" if self.deviation is None else f" ± {self.deviation:.3f}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cost:
    """Of one training; floating-point operations where they can be counted."""

    seconds: float
    device: str
    flop: float | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Learnt:
    """What one classifier learnt from synthetic images, and from real ones: shares of the real test images it names."""

    name: str
    accuracy: Spread
    validation: Spread | None  # on synthetic images that were kept back
    real: Spread  # trained on real images instead
    cost: Cost
    weights: tuple[str, ...] = ()  # hashes, of networks
    remarks: tuple[str, ...] = ()

    @property
    def calibrated(self) -> float | None:
        """Over the accuracy that real images give; nothing is divided by zero."""
        return self.accuracy.mean / self.real.mean if self.real.mean else None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Score:
    """One distance, or the like; `real` is what real training images score in their place."""

    name: str
    value: Spread
    real: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class Count:
    """How many images of a class there are, of the first seed; `seen` by the feature network."""

    label: int
    synthetic: int | None
    seen: int
    real: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Evaluation:
    """Everything that was measured; without labels there are scores alone."""

    protocol: Protocol
    learnt: tuple[Learnt, ...]
    scores: tuple[Score, ...]
    counts: tuple[Count, ...]
    features: str  # the feature network's hash: scores of another one are other numbers
    feature_accuracy: float  # on the test images
    sizes: dict[str, int]
    warnings: tuple[str, ...] = ()
    seconds: float = 0.0

    @property
    def average(self) -> tuple[float, float] | None:
        """Over the classifiers: accuracy, and the calibrated one."""
        calibrated = [one.calibrated for one in self.learnt if one.calibrated is not None]
        if not self.learnt or not calibrated:
            return None
        return statistics.fmean(one.accuracy.mean for one in self.learnt), statistics.fmean(calibrated)

    def score(self, name: str) -> Score:
        return next(score for score in self.scores if score.name == name)

    def classifier(self, name: str) -> Learnt:
        return next(one for one in self.learnt if one.name == name)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, with means and spreads beside the numbers they follow from."""
        learnt = [_plain(one) | {"calibrated": one.calibrated} for one in self.learnt]
        average = None if self.average is None else dict(zip(("accuracy", "calibrated"), self.average, strict=True))
        own = {
            field.name: getattr(self, field.name)
            for field in dataclasses.fields(self)
            if field.name in ("features", "feature_accuracy", "sizes", "seconds")
        }
        return own | {
            "protocol": self.protocol.to_dict(),
            "learnt": learnt,
            "average": average,
            "scores": [_plain(score) for score in self.scores],
            "counts": [_plain(count) for count in self.counts],
            "warnings": list(self.warnings),
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Evaluation":
        try:
            own = {name: values[name] for name in ("features", "feature_accuracy", "sizes", "seconds")}
            return cls(
                protocol=Protocol.from_dict(values["protocol"]),
                learnt=tuple(_learnt(row) for row in values["learnt"]),
                scores=tuple(
                    Score(name=row["name"], value=_spread(row["value"]), real=row["real"]) for row in values["scores"]
                ),
                counts=tuple(Count(**row) for row in values["counts"]),
                warnings=tuple(values["warnings"]),
                **own,
            )
        except (KeyError, TypeError, AttributeError):
            raise ValueError("Expected what an evaluation wrote; it is damaged.") from None


def _plain(row: Any) -> dict[str, Any]:
    named = {field.name: getattr(row, field.name) for field in dataclasses.fields(row)}
    return {name: _value(value) for name, value in named.items()}


def _value(value: Any) -> Any:
    if isinstance(value, Spread):
        return {"mean": value.mean, "deviation": value.deviation, "values": list(value.values)}
    if isinstance(value, Cost):
        return dataclasses.asdict(value)
    return list(value) if isinstance(value, tuple) else value


def _spread(values: Mapping[str, Any]) -> Spread:
    return Spread(values=tuple(values["values"]))


def _learnt(row: Mapping[str, Any]) -> Learnt:
    return Learnt(
        name=row["name"],
        accuracy=_spread(row["accuracy"]),
        validation=_spread(row["validation"]) if row["validation"] else None,
        real=_spread(row["real"]),
        cost=Cost(**row["cost"]),
        weights=_words(row["weights"]),
        remarks=_words(row["remarks"]),
    )


def _words(values: Sequence[str]) -> tuple[str, ...]:
    return tuple(values)
