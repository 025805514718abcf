"""Faults: what goes wrong with data. Planted to rehearse, or tried as an explanation of a difference."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from fedlens.core import functions


@dataclasses.dataclass(frozen=True, kw_only=True)
class Fault:
    """What it does to examples (images, or the tokens of one sentence) or to their labels; None leaves them alone."""

    summary: str
    change: Callable[[Any], Any] | None = None
    labels: Callable[[Any, int], Any] | None = None  # (labels, number of classes)
    undo: Callable[[Any], Any] | None = None  # takes the change back, where nothing was lost


@dataclasses.dataclass(frozen=True, kw_only=True)
class Faults:
    """Those of one medium, by their names."""

    known: Mapping[str, Fault]
    of: str  # what a function of one's own is given

    def named(self, kind: str) -> Fault:
        """One of ours, or a function of somebody else's: `package.module:function`."""
        if kind in self.known:
            return self.known[kind]
        change = functions.opened(kind, self.known, self.of)
        return Fault(summary=functions.summary(change), change=change)
