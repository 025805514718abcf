"""PUBLIC text, and never private one: files that recipes name, and what is on every machine."""

import contextlib
import functools
import gzip
import io
import pathlib
import zlib
from collections.abc import Iterator

from fedlens.core import files, pins
from fedlens.models.words import as_row, as_sentence

MOST = 2**31  # bytes of public text, which is read whole


def sentences_of(path: pathlib.Path, declared: bool = True) -> tuple[str, ...]:
    """JSONL, whoever the users, or a plain file with a sentence a line."""
    with pins.opened_public(path) if declared else contextlib.nullcontext(path) as own:
        if not own.exists():
            raise ValueError(f"Expected public text at {path}; there is nothing.")
        looks = ((str(file), file.stat()) for file in files.within(own, links=True))
        return _read(own, tuple((name, s.st_size, s.st_mtime_ns, s.st_ino) for name, s in looks))


@functools.lru_cache(maxsize=2)
def _read(own: pathlib.Path, looks: tuple[tuple[str | int, ...], ...]) -> tuple[str, ...]:
    """As long as the files look the same: what changed is read again."""
    if ".jsonl" in own.suffixes or own.is_dir():
        listed = [file for file in files.within(own, links=True) if ".jsonl" in file.suffixes]
        return tuple(sentence for file in listed for sentence in _of_lines(file))
    return tuple(files.content(own, MOST).decode("utf-8", "replace").splitlines())


def _of_lines(path: pathlib.Path) -> Iterator[str]:
    """As a population would hold them, so that the same text gives the same sentences."""
    damaged = f"Expected lines of JSON with sentences in {path.name}; it is damaged."
    most = max(files.MOST_DECLARED, files.MOST_RATIO * path.stat().st_size)
    with files.damage(damaged), gzip.open(path) if path.suffix == ".gz" else path.open("rb") as lines:
        read = 0
        while line := _line(lines):
            read += len(line)
            if read > most:
                raise ValueError
            if line.strip():
                said = files.parsed_json(line, damaged)["text"]
                said = [said] if isinstance(said, str) else said
                if not isinstance(said, list):
                    raise TypeError
                yield from (as_sentence(as_row(sentence)) for sentence in said)


def _line(lines: gzip.GzipFile | io.BufferedReader) -> bytes:
    """What is no gzip is an OSError, and quotes its first bytes."""
    try:
        return lines.readline(files.MOST_TEXT)
    except (gzip.BadGzipFile, EOFError, zlib.error):
        raise ValueError from None


@functools.lru_cache(maxsize=1)
def help_topics() -> tuple[str, ...]:
    """The text that `help("topics")` shows: about Python, by its authors, and no docstring."""
    try:
        from pydoc_data.topics import topics
    except ImportError:
        raise ValueError("Expected the module pydoc_data.topics of Python's standard library.") from None
    return tuple("\n\n".join(topics[name] for name in sorted(topics)).splitlines())
