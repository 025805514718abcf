"""When an entry was written: times never go back, and a clock that was set forward is noticed."""

import datetime
from collections.abc import Iterable, Mapping
from typing import Any

from fedlens.ledger.chain import BY_DAY, KINDS
from fedlens.ledger.storage import LedgerError, Storage

_BACKWARDS = datetime.timedelta(seconds=5)  # clocks are set right by less
_AHEAD = 60.0  # seconds that a clock may gain on the machine's own running time: it drifts, and is set right


def of_new_entry(store: Storage, kind: str, last: str) -> str:
    """To the microsecond, or the day alone; `last` is the time of the entry before."""
    now = store.now()
    if kind not in BY_DAY:  # the last one may tell the day only
        marks = ", ".join(f"'{known}'" for known in KINDS if known not in BY_DAY)
        last = max(last, store.rows(f"select max(at) from entries where kind in ({marks})")[0][0] or "")
    if last and now < _parsed(last) - _BACKWARDS:
        raise LedgerError(f"Expected a clock that goes forward: the last entry is of {last}. Nothing was booked.")
    return max(last[:10], _written(now)[:10]) if kind in BY_DAY else max(last, _written(now))


def first_day(store: Storage, window: float | None) -> str:
    """The first day of a window of so many days; empty, before all days, for none.

    Releases are dated by the day: one counts until the last moment of its day is older than the window.
    """
    return "" if window is None else _written(store.now() - datetime.timedelta(days=window))[:10]


def fact(store: Storage) -> dict[str, Any]:
    """How far the clock is ahead of the machine's own running time: it stays the same until the clock is set."""
    running = store.running()
    if running is None:
        return {}
    boot, seconds = running
    return {"clock": {"boot": boot, "ahead": round(store.now().timestamp() - seconds, 1)}}


def was_set_forward(now: Mapping[str, Any], clocks: Iterable[Mapping[str, Any] | None]) -> bool:
    """Since these were written down. A machine that was started anew, and another one, cannot be compared."""
    same = [clock["ahead"] for clock in clocks if clock and clock["boot"] == now["boot"]]
    return any(now["ahead"] > ahead + _AHEAD for ahead in same)


def _written(time: datetime.datetime) -> str:
    """So that later times are later in the alphabet too."""
    return time.isoformat(timespec="microseconds")


def _parsed(text: str) -> datetime.datetime:
    """A day is its first moment."""
    try:
        time = datetime.datetime.fromisoformat(text)
    except ValueError:
        raise LedgerError("Expected times in the ledger: it was edited (fedlens ledger verify).") from None
    return time if time.tzinfo else time.replace(tzinfo=datetime.UTC)
