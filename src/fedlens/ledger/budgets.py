"""How much may be spent on a population, and how it stands."""

import dataclasses
import math
import re
from typing import Any

from fedlens.privacy import Guarantee, Neighbours, Promise, Unit, plain, rounded


@dataclasses.dataclass(frozen=True, kw_only=True)
class Budget:
    """What may be spent on a population, by whose leave.

    With a `window`, what is older than so many days no longer counts: a promise per period, for data that renew
    themselves. With `review`, a run needs an approved request; with `reviewers` (public keys), a signed one.
    """

    population: str
    epsilon: float
    delta: float
    size: int | None = None  # the public number of units, or an upper bound on it
    unit: Unit = Unit.USER
    neighbours: Neighbours = Neighbours.ADD_REMOVE
    window: float | None = None  # days
    review: bool = False
    reviewers: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.population:
            raise ValueError("Expected the name of a population, got none.")
        if not (self.epsilon > 0 and math.isfinite(self.epsilon)):
            raise ValueError(f"Expected epsilon={self.epsilon} > 0 and finite.")
        if not 0 < self.delta < 1:
            raise ValueError(f"Expected 0 < delta={self.delta} < 1.")
        if self.size is not None and self.size < 1:
            raise ValueError(f"Expected size={self.size} >= 1.")
        if self.window is not None and not 0 < self.window < 36_525:
            raise ValueError(f"Expected 0 < window={self.window} < 36525 days.")
        object.__setattr__(self, "reviewers", tuple(key.lower() for key in self.reviewers))
        if not all(re.fullmatch("[0-9a-f]{64}", key) for key in self.reviewers):
            raise ValueError("Expected public keys of reviewers as 64 hexadecimal digits (fedlens ledger key).")

    @property
    def text(self) -> str:
        period = f", renewed over {self.window:g} days" if self.window else ""
        leave = ", with review" if self.review else ""
        return f"epsilon {self.epsilon:g} at delta {self.delta:g} per {self.unit} ({self.neighbours}){period}{leave}"

    def covers(self, plan: Promise) -> None:
        """Refuses a plan that protects something else than the budget counts."""
        if (plan.unit, plan.neighbours) != (self.unit, self.neighbours):
            raise ValueError(
                f"Expected a plan per {self.unit} ({self.neighbours}), as the budget of {self.population!r} counts;"
                f" this one is per {plan.unit} ({plan.neighbours})."
            )
        planned = getattr(plan.sampling, "population", None)
        if self.size is not None and planned is not None and planned > self.size:
            raise ValueError(
                f"Expected a plan for at most {self.size} units, as the budget of {self.population!r} declares;"
                f" it says population={planned}."
            )

    def to_dict(self) -> dict[str, Any]:
        values = dataclasses.asdict(self) | {"unit": str(self.unit), "neighbours": str(self.neighbours)}
        return values | {"reviewers": list(self.reviewers)}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "Budget":
        kinds = {"unit": Unit(values["unit"]), "neighbours": Neighbours(values["neighbours"])}
        return cls(**values | kinds | {"reviewers": tuple(values["reviewers"])})


@dataclasses.dataclass(frozen=True, kw_only=True)
class Standing:
    """A population, its budget, and what was spent or is reserved; None where nothing was."""

    population: str
    budget: Budget | None
    spent: Guarantee | None
    promised: Guarantee | None  # spent and reserved together
    runs: int
    rule: str | None = None  # by which runs are admitted, where there is a budget
    counted: float | None = None  # the epsilon of what is spent and reserved, were plans chosen after looking
    in_words: str = ""  # where it makes a difference

    def lines(self) -> list[str]:
        """For a person."""
        spent = rounded(self.spent.epsilon) if self.spent else "0"
        promised = rounded(self.promised.epsilon) if self.promised else "0"
        budget = self.budget.text if self.budget else "none: nothing is refused"
        return [
            f"{self.population}: budget {budget}",
            f"  spent epsilon {spent}; with what is reserved {promised}; {self.runs} run(s)",
            *([f"  {self.in_words}"] if self.in_words else []),
        ]

    def to_dict(self) -> dict[str, Any]:
        return {
            "population": self.population,
            "budget": self.budget.to_dict() if self.budget else None,
            "spent": self.spent.to_dict() if self.spent else None,
            "spent_and_reserved": self.promised.to_dict() if self.promised else None,
            "runs": self.runs,
            "filter": None
            if self.counted is None
            else {"rule": self.rule, "epsilon": plain(self.counted), "text": self.in_words},
        }


def over(budget: Budget, epsilon: float) -> bool:
    return epsilon > budget.epsilon * (1 + 1e-9)
