"""The pin of an owner's machine: which ledger counts there, and which files are public, whatever a recipe says.

Whoever may only hand in recipes cannot choose another ledger then, nor bring data that nobody registered, nor have a
file opened as public that is not. `fedlens data pin` and `fedlens data public` write it; the machine's own comes before
that of a user.
"""

import contextlib
import dataclasses
import hashlib
import json
import os
import pathlib
import shutil
import tempfile
import tomllib
from collections.abc import Iterable, Iterator

from fedlens.core import files

MACHINE = pathlib.Path("/etc/fedlens/pin.toml")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pin:
    ledger: str  # its address: an absolute path, or postgresql://…
    witness: str = ""  # of that ledger: a file or an address, as `fedlens ledger witness` takes it
    functions: bool = False  # whether recipes may name functions of one's own: their modules are imported here
    public: frozenset[str] = frozenset()  # SHA-256 of the files that are declared public
    place: pathlib.Path  # of the pin itself

    def save(self) -> None:
        values = dataclasses.asdict(self) | {"public": sorted(self.public)}
        del values["place"]
        files.write(self.place, "".join(f"{name} = {json.dumps(value)}\n" for name, value in values.items()))


def of_user() -> pathlib.Path:
    home = os.environ.get("XDG_CONFIG_HOME") or pathlib.Path.home() / ".config"
    return pathlib.Path(home) / "fedlens" / "pin.toml"


def found() -> Pin | None:
    """The pin that holds here. One that cannot be read is no leave to go on without it."""
    for place in (MACHINE, of_user()):
        damaged = f'Expected a line ledger = "…" in the pin {place}; it cannot be read.'
        try:
            with files.damage(damaged):
                values = files.parsed_toml(files.content(place).decode(), damaged)
                ledger, witness, public = values["ledger"], values.get("witness", ""), values.get("public", [])
                if not ledger or not all(isinstance(text, str) for text in (ledger, witness, *public)):
                    raise ValueError
        except FileNotFoundError:
            continue
        except (OSError, tomllib.TOMLDecodeError):
            raise ValueError(damaged) from None
        functions = values.get("functions") is True
        return Pin(ledger=ledger, witness=witness, functions=functions, public=frozenset(public), place=place)
    return None


def check_below(path: pathlib.Path | str) -> None:
    """On a pinned machine those who hand in recipes name files below the working folder, and none that are hidden.

    Whether a file is there at all, what its hash is and what becomes of it would otherwise be theirs to ask or to say.
    """
    pin = found()
    if pin is None:
        return
    here, there = pathlib.Path.cwd().resolve(), pathlib.Path(path).resolve()
    if not there.is_relative_to(here) or any(part.startswith(".") for part in there.relative_to(here).parts):
        raise ValueError(
            f"Expected files below the folder that the command is started in, none of them hidden: this machine is"
            f" pinned ({pin.place})."
        )


def expanded(path: str) -> str:
    """$NAME stands for an environment variable; not on a pinned machine, whose environment is its owner's."""
    return path if found() else os.path.expandvars(path)


def check_public(path: pathlib.Path) -> None:
    """Refuses a file or folder that is not declared public, on a pinned machine: before anything is told about it."""
    with opened_public(path):
        pass


@contextlib.contextmanager
def opened_public(path: pathlib.Path) -> Iterator[pathlib.Path]:
    """The file or folder, to be read as public. On a pinned machine it is a copy, of which the owner has declared every
    file: what lies at a path may be another file by the time it is opened.
    """
    pin = found()
    if pin is None:
        yield path
        return
    with tempfile.TemporaryDirectory() as folder:
        copy = pathlib.Path(folder) / f"public{''.join(path.suffixes[-2:])}"
        try:
            shutil.copytree(path, copy, symlinks=True) if path.is_dir() else shutil.copyfile(path, copy)
            held = {files.sha256(one) for one in files.within(copy)}
        except (OSError, ValueError):  # whether it is there, and links, are not spoken of
            held = set()
        if not held or not held <= pin.public:
            raise _undeclared(path, pin)
        yield copy


def check_declared(content: bytes, path: pathlib.Path) -> None:
    """The same, of content that was read already."""
    pin = found()
    if pin is not None and hashlib.sha256(content).hexdigest() not in pin.public:
        raise _undeclared(path, pin)


def _undeclared(path: pathlib.Path, pin: Pin) -> ValueError:
    return ValueError(
        f"Expected {path.name} among the files that the owner has declared public (fedlens data public): this"
        f" machine is pinned ({pin.place})."
    )


def declare(pin: Pin, sha256s: Iterable[str]) -> None:
    dataclasses.replace(pin, public=pin.public | set(sha256s)).save()


def address(given: str | None, default: str) -> str:
    """The ledger that a command works with: the pinned one, or what was given."""
    pin = found()
    if pin is None:
        return default if given is None else given
    if given is not None and not same(given, pin.ledger):
        raise ValueError(f"Expected the ledger {pin.ledger}: this machine is pinned to it ({pin.place}).")
    return pin.ledger


def folder_of(ledger: str) -> pathlib.Path:
    """The folder of a ledger: what belongs to it lies there; of one that is remote, in a folder of the user's own."""
    if "://" in ledger:
        return of_user().parent / "ledgers" / hashlib.sha256(ledger.encode()).hexdigest()[:16]
    return pathlib.Path(ledger).parent


def same(one: str, other: str) -> bool:
    """Whether two addresses name one ledger."""
    if "://" in one or "://" in other:
        return one == other
    return pathlib.Path(one).resolve() == pathlib.Path(other).resolve()


def ledgers() -> list[str]:
    """Those in which owners on this account have registered populations."""
    try:
        return files.content(_index()).decode().splitlines()
    except (OSError, ValueError):
        return []


def remember(ledger: str) -> None:
    """So that data which are registered there are recognised elsewhere; where nothing can be kept, they are not."""
    if ledger not in (known := ledgers()):
        with contextlib.suppress(OSError):
            files.write(_index(), "".join(f"{one}\n" for one in [*known, ledger]))


def _index() -> pathlib.Path:
    return of_user().with_name("ledgers.txt")
