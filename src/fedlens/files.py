"""Files that are whole or absent: written beside their place, synced, then renamed into it."""

import contextlib
import hashlib
import os
import pathlib
import tempfile

_UMASK = os.umask(0)
os.umask(_UMASK)


def write(path: pathlib.Path, content: bytes | str) -> None:
    """Replaces `path` in one step; on a full disk the old file stays and the error says so."""
    data = content.encode() if isinstance(content, str) else content
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, 0o666 & ~_UMASK)  # as open() would have made it
        os.replace(name, path)
    except OSError as error:
        pathlib.Path(name).unlink(missing_ok=True)
        told = f"Could not save {path.name}, what was there before is untouched: {error.strerror}"
        raise OSError(error.errno, told) from None
    except BaseException:
        pathlib.Path(name).unlink(missing_ok=True)
        raise
    _sync(path.parent)


def _sync(folder: pathlib.Path) -> None:
    """Else a power cut may lose a new name: that of a model, say, whose account was closed since."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # some file systems cannot
            os.fsync(handle)
    finally:
        os.close(handle)


def append_line(path: pathlib.Path, line: str) -> None:
    with path.open("a") as file:
        file.write(line + "\n")


def sha256(path: pathlib.Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
