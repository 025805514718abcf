"""Which ledger is worked with: the one that was named, the usual one, or the pinned one."""

import pathlib
from typing import TYPE_CHECKING

from fedlens.core import pins

if TYPE_CHECKING:
    from fedlens.ledger import Ledger

DEFAULT_BOOK = "runs/ledger.sqlite"


def ledger_at(given: str | None, default: str = DEFAULT_BOOK) -> str:
    """The ledger that a command works with: on a pinned machine the pinned one, and no other."""
    return pins.address(None if given in (None, default) else given, default)


def book_at(
    address: str,
    who: str | None = None,
    key: pathlib.Path | None = None,
    create: bool = False,
    witness: str | None = None,
    checked: bool = True,
) -> "Ledger":
    from fedlens.ledger import Ledger, is_remote, keys

    address = ledger_at(address)
    if address and not create and not is_remote(address) and not pathlib.Path(address).exists():
        raise ValueError(f"Expected a ledger at {address}; there is none (fedlens ledger init makes one).")
    return Ledger(address, who=who, key=keys.opened(key) if key else None, witness=witness, checked=checked)


def book_if_there(address: str | None) -> "Ledger | None":
    place = ledger_at(address)
    return None if address is None and not pathlib.Path(place).exists() and "://" not in place else book_at(place)
