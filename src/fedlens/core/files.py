"""Files that are whole or absent: written beside their place, synced, then renamed into it.

And the one way in for whatever somebody else may have written: sizes are checked before anything is allocated, and
what a parser throws becomes an error of ours, which never quotes the file.
"""

import contextlib
import hashlib
import json
import math
import os
import pathlib
import re
import tempfile
import tomllib
from collections.abc import Iterator, Mapping
from typing import Any, TypeGuard

# Of a structured text: a vocabulary of a million words fits, and 16 MiB of nothing but brackets are 0.5 GB of lists.
MOST_TEXT = 2**24
MOST_TOML = 2**18  # its parser is slow, and nobody writes so much
MOST_DEPTH = 64  # of lists and tables in each other: ours have less than ten, and whoever walks them may recurse
MOST_DIGITS = 400  # of a number: the largest float has 309
# What a compressed file may declare: any file so much, a larger one a hundred times its own size. Images and text
# shrink tenfold; deflate makes 1 MiB of 1 GiB of zeros.
MOST_DECLARED = 2**28
MOST_RATIO = 100

_QUOTED = re.compile(r"\"[^\"\n]*\"|'[^'\n]*'")
# a.b.c and so on: what TOML's parser does with it takes the square of its length.
_LONG_KEY = re.compile(rf"(?<![\w-])(?:[\w-]++[ \t]*+\.[ \t]*+){{{MOST_DEPTH}}}")
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
        message = f"Could not save {path.name}, what was there before is untouched: {error.strerror}"
        raise OSError(error.errno, message) from None
    finally:
        pathlib.Path(name).unlink(missing_ok=True)
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
    """To this very file: a link that somebody put in its place is an error."""
    handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW, 0o666)
    with os.fdopen(handle, "a") as file:
        file.write(line + "\n")


def sha256(path: pathlib.Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def within(path: pathlib.Path, links: bool = False) -> list[pathlib.Path]:
    """The file, or all files of the folder; `links` in it are refused unless they are wanted: they lead elsewhere."""
    inside = list(path.rglob("*"))
    if not links and any(one.is_symlink() for one in inside):
        raise ValueError(f"Expected plain files in {path.name}; there are links.")
    return sorted(one for one in (path, *inside) if one.is_file())


@contextlib.contextmanager
def damage(message: str, error: type[ValueError] = ValueError) -> Iterator[None]:
    """Whatever is thrown in here is this error, without a word of what a library said: that may quote the file.

    Also a MemoryError: what a file asks for and cannot get is its fault. Errors of the kind `error` are ours already,
    unless it is ValueError itself, which everybody throws. That a file cannot be opened at all is for others to say.
    """
    try:
        yield
    except OSError:
        raise
    except Exception as thrown:
        if error is not ValueError and isinstance(thrown, error):
            raise
        raise error(message) from None


@contextlib.contextmanager
def readable(kind: str, path: pathlib.Path, error: type[ValueError] = ValueError) -> Iterator[None]:
    """As `damage`, of a file of this kind that must be there: one that cannot be opened is told of as well."""
    damaged = f"Expected a whole {kind} file in {path.name}; it is cut short or damaged."
    try:
        with damage(damaged, error):
            yield
    except FileNotFoundError:
        raise error(f"Expected the file {path.name}; it is missing.") from None
    except OSError:  # gzip says so of what it cannot read; and an empty file cannot be mapped
        raise error(damaged) from None


def content(path: pathlib.Path, most: int = MOST_TEXT, error: type[ValueError] = ValueError) -> bytes:
    """All of a file that may not be larger than `most` bytes."""
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        held = b"" if size > most else file.read() if size else file.read(most + 1)  # a pipe has no size
    if max(size, len(held)) > most:
        raise error(f"Expected at most {most:,} bytes in {path.name}; it is larger.")
    return held


def check_declared(declared: int, held: int, name: str, error: type[ValueError] = ValueError) -> None:
    """Refuses a file of `held` bytes that says it holds far more: nothing of it has been read yet."""
    most = max(MOST_DECLARED, MOST_RATIO * held)
    if declared > most:
        raise error(f"Expected {name} to hold at most {most:,} bytes, {MOST_RATIO} times its size; it declares more.")


def json_in(
    path: pathlib.Path,
    fields: Mapping[str, Any] | None = None,
    *,
    error: type[ValueError] = ValueError,
    message: str | None = None,
) -> Any:
    """The JSON of a small file: an object with these `fields`, if any are named; else an error with this `message`.

    `json_in(path, {"noisy_users": float})`: each field is of its type, and a whole number passes for a float. That the
    file is missing is for others to say.
    """
    message = message or f"Expected a whole {path.name} in {path.parent}; it is damaged."
    value = parsed_json(content(path, error=error), message, error)
    if fields and not (isinstance(value, dict) and all(_is(value.get(name, ...), fields[name]) for name in fields)):
        raise error(message)
    return value


def parsed_json(text: bytes | str, message: str, error: type[ValueError] = ValueError) -> Any:
    """JSON as its standard has it: of finite numbers, and not too deep; else an error with this `message`.

    >>> parsed_json('{"a": [1, 2.5]}', "Expected JSON.")
    {'a': [1, 2.5]}
    """
    if len(text) > MOST_TEXT:
        raise error(message)
    with damage(message, error):
        text = text.decode() if isinstance(text, bytes) else text
        value = json.loads(text, parse_constant=_finite, parse_float=_finite, parse_int=lambda text: int(_short(text)))
        _check_depth(value)
        return value


def parsed_toml(text: str, message: str, error: type[ValueError] = ValueError) -> dict[str, Any]:
    """Where TOML is merely written wrong, a TOMLDecodeError says where; `message` is for TOML that is damaged."""
    if len(text) > MOST_TOML or _LONG_KEY.search(_QUOTED.sub("q", text)):
        raise error(message)
    try:
        value = tomllib.loads(text, parse_float=lambda text: float(_short(text)))  # infinity is TOML
        _check_depth(value)
    except tomllib.TOMLDecodeError:
        raise
    except Exception:
        raise error(message) from None
    return value


def whole(value: object, least: int, most: int) -> TypeGuard[int]:
    """Whether a value from a file is a whole number in this range: neither true nor 1.0 is one."""
    return type(value) is int and least <= value <= most


def finite(value: object) -> TypeGuard[float]:
    """Whether a value from a file is a finite number; whole ones may be too long for a float."""
    if type(value) is int:
        return abs(value) < 2**1023
    return type(value) is float and math.isfinite(value)


def _is(value: object, kind: Any) -> bool:
    if kind is float:
        return finite(value)
    return isinstance(value, kind) and (not isinstance(value, bool) or kind is bool)


def _finite(text: str) -> float:
    if not math.isfinite(number := float(_short(text))):
        raise ValueError
    return number


def _short(text: str) -> str:
    if len(text) > MOST_DIGITS:
        raise ValueError
    return text


def _check_depth(value: object) -> None:
    """Level by level, since one that recurses would fall where it should catch."""
    level = [value]
    for _ in range(MOST_DEPTH):
        lists = [one.values() if isinstance(one, dict) else one for one in level if isinstance(one, dict | list)]
        level = [inner for one in lists for inner in one if isinstance(inner, dict | list)]
        if not level:
            return
    raise ValueError
