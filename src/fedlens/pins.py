"""The pin of an owner's machine: which ledger counts there, whatever a command line says.

Whoever may only hand in recipes cannot choose another ledger then, nor bring data that nobody registered. The file is
written by `fedlens data pin`; the machine's own comes before that of a user.
"""

import dataclasses
import json
import os
import pathlib
import tomllib

MACHINE = pathlib.Path("/etc/fedlens/pin.toml")
_MOST = 2**16  # bytes of a pin: it is a few lines


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pin:
    ledger: str  # its address: an absolute path, or postgresql://…
    functions: bool = False  # whether recipes may name functions of one's own: their modules are imported here
    place: pathlib.Path  # of the pin itself

    def text(self) -> str:
        return f"ledger = {json.dumps(self.ledger, ensure_ascii=False)}\nfunctions = {str(self.functions).lower()}\n"


def of_user() -> pathlib.Path:
    home = os.environ.get("XDG_CONFIG_HOME") or pathlib.Path.home() / ".config"
    return pathlib.Path(home) / "fedlens" / "pin.toml"


def found() -> Pin | None:
    """The pin that holds here. One that cannot be read is no leave to go on without it."""
    for place in (MACHINE, of_user()):
        try:
            with place.open("rb") as file:
                told = tomllib.loads(file.read(_MOST).decode())
                ledger, functions = told["ledger"], told.get("functions", False)
        except FileNotFoundError:
            continue
        except (OSError, KeyError, ValueError, RecursionError):
            raise ValueError(f'Expected a line ledger = "…" in the pin {place}; it cannot be read.') from None
        if not isinstance(ledger, str) or not ledger:
            raise ValueError(f'Expected a line ledger = "…" in the pin {place}.')
        return Pin(ledger=ledger, functions=functions is True, place=place)
    return None


def address(given: str | None, default: str) -> str:
    """The ledger that a command works with: the pinned one, or what was given."""
    pin = found()
    if pin is None:
        return given or default
    if given is not None and not same(given, pin.ledger):
        raise ValueError(f"Expected the ledger {pin.ledger}: this machine is pinned to it ({pin.place}).")
    return pin.ledger


def same(one: str, other: str) -> bool:
    """Whether two addresses name one ledger."""
    if "://" in one or "://" in other:
        return one == other
    return pathlib.Path(one).resolve() == pathlib.Path(other).resolve()
