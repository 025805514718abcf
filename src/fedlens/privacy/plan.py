"""The promise about one kind of release, made before any data is touched.

A `Plan` fixes who may take part, how much each may contribute, how much noise hides it and how many releases there
are. The code that adds the noise and the code that prices it read the same frozen plan, so they cannot disagree.
"""

import dataclasses
import enum
import json
import math
from collections.abc import Callable
from typing import Any

from fedlens.core import files
from fedlens.privacy.bounds import L2Clip, RowClip, TopKSign, UpdateAndBit, at_least_one
from fedlens.privacy.losses import Loss
from fedlens.privacy.sampling import Balanced, Everyone, FixedSize, Poisson

MOST_NOISE = 1e12  # beyond, squares of it leave no digit of anything else
MOST_RELEASES = 2**20  # a plan's price is computed for all of them


class Unit(enum.StrEnum):
    """What the guarantee protects."""

    USER = "user"
    EXAMPLE = "example"
    SILO = "silo"


class Neighbours(enum.StrEnum):
    """Which two worlds must look alike: with and without a unit, or with one unit's data changed."""

    ADD_REMOVE = "add/remove"
    REPLACE_ONE = "replace-one"


Kinds = dict[str, Any]  # classes, by the names they are written down under
SAMPLERS: Kinds = {"poisson": Poisson, "fixed-size": FixedSize, "balanced": Balanced, "everyone": Everyone}
BOUNDS: Kinds = {"l2-clip": L2Clip, "update-and-bit": UpdateAndBit, "row-clip": RowClip, "top-k-sign": TopKSign}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """
    >>> plan = Plan(sampling=Everyone(), bound=L2Clip(norm=0.05), noise_multiplier=7.0, releases=150,
    ...             expected_contributors=255.0)
    >>> round(plan.epsilon(1e-5), 2)
    8.49
    >>> plan.calibrated(2.0, 1e-5).epsilon(1e-5) <= 2.0
    True
    """

    sampling: Poisson | FixedSize | Balanced | Everyone
    bound: L2Clip | UpdateAndBit | RowClip | TopKSign
    noise_multiplier: float  # standard deviation / bound.norm, on the SUM
    releases: int
    expected_contributors: float  # the public divisor, never the realised cohort
    unit: Unit = Unit.USER
    neighbours: Neighbours = Neighbours.ADD_REMOVE
    # Contributors are so many shards, to which units are dealt, each by what it holds itself (see Population.dealt):
    # the teachers of DataLens, the critics of GS-WGAN. A unit that comes or goes changes what one shard sends.
    shards: int | None = None

    def __post_init__(self) -> None:
        check_promise(self.noise_multiplier, self.releases, self.expected_contributors)
        if self.shards is not None:
            at_least_one("shards", self.shards)
            if getattr(self.sampling, "population", self.shards) != self.shards:
                raise ValueError(f"Expected a sampler of population={self.shards}, the number of shards.")
            if self.neighbours == Neighbours.REPLACE_ONE:
                raise ValueError("Expected add/remove neighbours of shards: who is replaced may enter another shard.")
        elif isinstance(self.sampling, Balanced) and self.unit == Unit.EXAMPLE:
            raise ValueError(
                "Expected a balanced schedule over users, silos or shards: examples have no slots of their own."
            )

    @property
    def sensitivity(self) -> float:
        """How far the sum moves between neighbours, if the unit in question takes part; derived, never set.

        A unit that comes or goes moves it by one bound, and by two where it displaces another (samples of a fixed size)
        or where its data change. (A Poisson cohort over its cap displaces too; that rare case is in its `loss`.)
        """
        twice = self._changes_data or isinstance(self.sampling, FixedSize)
        return 2 * self.bound.norm if twice else self.bound.norm

    @property
    def _changes_data(self) -> bool:
        """Whether neighbours differ by what a contributor holds, and not by whether it is there: shards always are."""
        return self.shards is not None or self.neighbours == Neighbours.REPLACE_ONE

    @property
    def stddev(self) -> float:
        """The noise on the sum."""
        return self.noise_multiplier * self.bound.norm

    @property
    def grid(self) -> float:
        """A power of two, 2^-24 of the bound: contributions are cut to it towards zero, so that sums are exact."""
        return 2.0 ** (math.floor(math.log2(self.bound.norm)) - 24)

    @property
    def loss(self) -> Loss:
        """What one release in which a unit may take part gives away about it."""
        return self.sampling.loss(self.noise_multiplier, self._changes_data)

    @property
    def who(self) -> str:
        """Who takes part, in words."""
        dealt = (
            f"of {self.shards:,} shards, to which units are dealt by what each holds itself: " if self.shards else ""
        )
        return dealt + self.sampling.text

    @property
    def in_turn(self) -> bool:
        """Whether releases must come one after the other, each once."""
        return self.sampling.in_turn

    @property
    def participations(self) -> int:
        return self.sampling.participations(self.releases)

    def epsilon(self, delta: float) -> float:
        from fedlens.privacy import accounting

        return accounting.epsilon([self], delta)

    def calibrated(self, epsilon: float, delta: float, others: tuple["Plan", ...] = ()) -> "Plan":
        """The plan with the least noise that keeps it, together with the `others`, within (epsilon, delta)."""
        from fedlens.privacy import accounting

        return accounting.calibrated(self, epsilon, delta, others)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for the ledger, the run folder and the wire; `from_dict` reads them back."""
        values = written(self, sampling=SAMPLERS, bound=BOUNDS)
        if self.shards is None:
            del values["shards"]  # plans are named by these values, also those from before there were shards
        return values

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "Plan":
        return cls(**read_back(cls, values, sampling=SAMPLERS, bound=BOUNDS))

    def canonical(self) -> str:
        return json.dumps(self.to_dict(), sort_keys=True)


def check_promise(noise_multiplier: float, releases: int, expected_contributors: float) -> None:
    """What every plan promises must make sense, whatever its noise looks like."""
    if not (noise_multiplier >= 0 and math.isfinite(noise_multiplier)):
        raise ValueError(f"Expected noise_multiplier={noise_multiplier} >= 0 and finite.")
    if noise_multiplier > MOST_NOISE:
        raise ValueError(f"Expected noise_multiplier={noise_multiplier} <= {MOST_NOISE:g}.")
    if not releases >= 1:
        raise ValueError(f"Expected releases={releases} >= 1.")
    if not files.whole(releases, 1, MOST_RELEASES):
        raise ValueError(f"Expected releases={releases} as a whole number <= {MOST_RELEASES}.")
    if not (expected_contributors > 0 and math.isfinite(expected_contributors)):
        raise ValueError(f"Expected expected_contributors={expected_contributors} > 0 and finite.")


def written(plan: Any, **kinds: Kinds) -> dict[str, Any]:
    """The plain values of a plan; its parts are those of these kinds, by their names."""
    plain = {field.name: getattr(plan, field.name) for field in dataclasses.fields(plan)}
    for name, known in kinds.items():
        kind = next(kind for kind, cls in known.items() if isinstance(plain[name], cls))
        plain[name] = {"kind": kind} | dataclasses.asdict(plain[name])
    return plain | {"unit": str(plan.unit), "neighbours": str(plan.neighbours)}


def read_back(cls: Any, values: dict[str, Any], **kinds: Kinds) -> dict[str, Any]:
    """What `written` wrote, as a plan of this class takes it."""
    own = {field.name: values[field.name] for field in dataclasses.fields(cls) if field.name in values}
    parts = {name: _part(known, values[name]) for name, known in kinds.items()}
    return own | parts | {"unit": Unit(values["unit"]), "neighbours": Neighbours(values["neighbours"])}


def _part(kinds: Kinds, values: dict[str, Any]) -> Any:
    """One of the kinds from its plain values, which may come from anybody's file: each of the type it should have."""
    given = dict(values)
    kind = kinds[given.pop("kind")]
    tests: dict[Any, Callable[[object], bool]] = {
        int: lambda value: files.whole(value, 0, 2**53),
        float: files.finite,
        bool: lambda value: type(value) is bool,
    }
    for field in dataclasses.fields(kind):
        if field.name in given and not tests[field.type](given[field.name]):
            raise ValueError(f"Expected {field.name} as another kind of value in a plan.")
    return kind(**given)
