"""A guarantee is never a bare number: what is protected, against whom, how it was computed, what it leaves out."""

import dataclasses
import math
from typing import Any

TRUST = "a trusted curator next to the data adds the noise; everyone who sees the outputs is untrusted"
NOT_COVERED = (
    "facts about many units together (that is what the tool shows)",
    "one person who appears as several units",
    "settings that were chosen by looking at the private data",
    "running time and memory use",
)


UNVERIFIED = "UNVERIFIED: no ledger confirms this"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Guarantee:
    """
    >>> g = Guarantee(epsilon=1.0, delta=1e-5, unit="user", neighbours="add/remove", sampling="everyone",
    ...               accountant="exact", simulated=True)
    >>> print(g.headline)
    epsilon 1.00 at delta 1e-05 per user (add/remove), SIMULATED: seeded noise protects nobody
    """

    epsilon: float
    delta: float
    unit: str
    neighbours: str
    sampling: str
    accountant: str
    trust: str = TRUST
    not_covered: tuple[str, ...] = NOT_COVERED
    composition: str = "one population, all its releases"
    simulated: bool = False
    unverified: str = ""  # why nobody vouches for it, where it was read from a file: UNVERIFIED, or nothing

    @property
    def headline(self) -> str:
        warning = ", SIMULATED: seeded noise protects nobody" if self.simulated else ""
        doubt = f", {self.unverified}" if self.unverified else ""
        kind = f"per {self.unit} ({self.neighbours})"
        return f"epsilon {rounded(self.epsilon)} at delta {self.delta:g} {kind}{warning}{doubt}"

    def to_dict(self) -> dict[str, Any]:
        values = dataclasses.asdict(self) | {"not_covered": list(self.not_covered)}
        return values | {"epsilon": plain(self.epsilon)}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "Guarantee":
        epsilon = math.inf if values["epsilon"] == "infinity" else values["epsilon"]
        return cls(**values | {"epsilon": epsilon, "not_covered": tuple(values["not_covered"])})

    def statement(self) -> str:
        """Markdown for a person who has to sign it."""
        rows = [
            ("protected unit", self.unit),
            ("neighbours", self.neighbours),
            ("sampling", self.sampling),
            ("accountant", self.accountant),
            ("composition", self.composition),
            ("trust model", self.trust),
        ]
        lines = [f"**{self.headline}**", "", "| | |", "|---|---|", *(f"| {name} | {text} |" for name, text in rows)]
        return "\n".join([*lines, "", "Not covered:", *(f"- {text}" for text in self.not_covered), ""])


def rounded(epsilon: float) -> str:
    """Two decimals, never rounded down.

    >>> rounded(1.001), rounded(8.0), rounded(math.inf)
    ('1.01', '8.00', 'INFINITE (no protection)')
    """
    return f"{math.ceil(epsilon * 100 - 1e-9) / 100:.2f}" if math.isfinite(epsilon) else "INFINITE (no protection)"


def plain(epsilon: float) -> float | str:
    """JSON knows no infinity: an infinite epsilon is the string "infinity"."""
    return epsilon if math.isfinite(epsilon) else "infinity"
