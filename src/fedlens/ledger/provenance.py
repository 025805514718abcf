"""What a file made from private data states about itself, and how its header is read back, whatever it holds."""

import contextlib
import pathlib
from typing import Any

from fedlens.core import files
from fedlens.ledger.chain import Head
from fedlens.ledger.spending import Spending, guarantee


def provenance(spending: Spending, delta: float) -> dict[str, Any]:
    """What every file made from private data says about itself; the guarantee can be recomputed from the spending."""
    return {"spending": spending.to_dict(), "delta": delta, "guarantee": guarantee([spending], delta).to_dict()}


def damage_of(path: pathlib.Path) -> contextlib.AbstractContextManager[None]:
    """Around the values of a header, each of which may be anything."""
    return files.damage(f"Expected a whole header in {path.name}; it is damaged.")


def as_label(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value


def as_number(value: object) -> int:
    if not files.whole(value, 0, 2**53):
        raise TypeError
    return value


def as_delta(value: object) -> float:
    if not files.finite(value) or not 0 < value < 1:
        raise ValueError
    return float(value)


def as_head(value: Any) -> Head:
    """The number and hash of an entry and, unless an older version wrote it, which ledger it is of."""
    number, digest, *ledger = value
    if len(ledger) > 1:
        raise ValueError
    return (as_number(number), as_label(digest), *map(as_label, ledger))  # type: ignore[return-value]
