"""What keeps a run from harm: nobody else works on it, nobody else's code sees its data, its secrets lie apart."""

import contextlib
import fcntl
import os
import pathlib
import shutil
import stat
from collections.abc import Iterable, Iterator

from fedlens.core import files, pins
from fedlens.core.randomness import Randomness
from fedlens.recipes.recipe import Recipe

COPIES = 3  # of what units remember, on disk: what they work on, the last checkpoint, and the next


@contextlib.contextmanager
def alone(folder: pathlib.Path) -> Iterator[None]:
    """Nobody else works on this run meanwhile; the system lets go of the lock when a process ends, however it ends."""
    check_plain(folder)
    handle = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(f"Expected nobody else at work on {folder.name}; another process is.") from None
        yield
    finally:
        os.close(handle)


def check_plain(folder: pathlib.Path) -> None:
    """Refuses a run folder that leads elsewhere: by a link, whoever edits it could have any file read or written to."""
    if not os.path.lexists(folder):
        return
    inside = [folder, *(pathlib.Path(root) / name for root, dirs, names in os.walk(folder) for name in (*dirs, *names))]
    for path in inside:
        status = path.lstat()
        if not (stat.S_ISDIR(status.st_mode) or (stat.S_ISREG(status.st_mode) and status.st_nlink == 1)):
            raise ValueError(f"Expected plain files and folders in {folder.name}; {path.name} leads elsewhere.")


def only_our_code(recipe: Recipe, seed: int | None) -> None:
    """Code of somebody else's would see every private example: it may keep what it saw, and tell it anywhere."""
    if seed is not None:
        return
    bug = recipe.data.bug
    if bug and ":" in bug.kind:
        raise ValueError("Expected --simulate with a bug of one's own: its code sees every private example.")
    for place, kind in recipe.medium.functions(recipe).items():
        if ":" in kind:
            raise ValueError(
                f"Expected --simulate with a {place} of one's own: its code sees every private example. Prepare the"
                " data beforehand, and take one of ours."
            )


def make_secrets(address: str, run: str, uses: Iterable[str]) -> None:
    """All at once, when a run is created: one that is made later could be somebody else's by then."""
    folder = _secrets(address)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for use in uses:
        if (folder / f"{run}.{use}.key").exists():
            raise ValueError(f"Expected no secret of a run that is new: {run}.")
        Randomness.kept_in(folder / f"{run}.{use}.key")


def kept_randomness(address: str, run: str, use: str) -> Randomness:
    """The same whenever an unfinished run asks again."""
    return Randomness.opened(_secrets(address) / f"{run}.{use}.key")


def note_made(address: str, run: str, part: str, sha256: str) -> None:
    """The hash of a model that was made here: what lies in its place later may be somebody else's."""
    files.write(_secrets(address) / f"{run}.{part}.made", sha256)


def made(address: str, run: str, part: str) -> str:
    """The hash of the model of an unfinished run; empty while there is none."""
    kept = _secrets(address) / f"{run}.{part}.made"
    return files.content(kept).decode() if kept.exists() else ""


def forget_secrets(address: str, run: str) -> None:
    """Deletes what the noise of a run was made from, with what a crash may have left of it: it could be taken away."""
    folder = _secrets(address)
    for secret in folder.iterdir() if folder.exists() else ():
        if secret.name.startswith(f"{run}."):
            shutil.rmtree(secret) if secret.is_dir() else secret.unlink()


def check_disk(address: str, remembered: int) -> None:
    """Refuses a run whose units remember more than there is room for beside the data."""
    folder = next(place for place in (_secrets(address), *_secrets(address).parents) if place.exists())
    needed, free = COPIES * remembered, shutil.disk_usage(folder).free
    if needed > free:
        raise ValueError(
            f"Expected {needed / 2**30:.1f} GiB of free disk beside the ledger, for what units remember and its"
            f" checkpoints; there are {free / 2**30:.1f}. Nothing was asked, and nothing is spent."
        )


def private_place(address: str, run: str, part: str) -> pathlib.Path:
    """How the names begin of all that a part keeps beside the data while it trains."""
    folder = _secrets(address)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder.chmod(0o700)
    return folder / f"{run}.{part}"


def _secrets(address: str) -> pathlib.Path:
    """Where the secrets of unfinished runs lie: beside the ledger or, if that is elsewhere, with the owner's files."""
    return pins.folder_of(address) / ".private"
