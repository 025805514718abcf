"""An exhibit is one thing that a report shows of samples: what it is, only the medium that makes it knows."""

import abc
import dataclasses
import functools
import importlib.resources
import pathlib
from collections.abc import Sequence
from typing import Any, ClassVar


class Exhibit(abc.ABC):
    """A thing to look at, made by a medium: its data for report.json, its lines, its files, its piece of the page.

    A report without any of them holds none: an exhibit has something to show.
    """

    key: ClassVar[str]  # its name in report.json

    @property
    @abc.abstractmethod
    def piece(self) -> "Piece":
        """Its part of the page."""

    @abc.abstractmethod
    def content(self) -> Any:
        """What report.json holds under its key: plain values, and numbers that need not be finite."""

    def lines(self) -> Sequence[str]:
        """What a terminal says of it, if anything."""
        return ()

    def files(self) -> Sequence[tuple[str, bytes]]:
        """What is written beside the report: path inside its folder, content. Pairs, so that no name hides another."""
        return ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Piece:
    """A part of the page: a jinja2 template that sees `exhibit`, `groups`, `place` and `marked`, its style, its script.

    The template is filled in with the page's own escaping. Style and script stay as they are: nothing is filled in.
    """

    template: str
    style: str = ""
    script: str = ""

    @classmethod
    @functools.cache
    def of_package(cls, package: str, *, template: str, style: str = "", script: str = "") -> "Piece":
        """From files in the folder of `package`; an empty name is no file."""
        folder = importlib.resources.files(package)
        names = {"template": template, "style": style, "script": script}
        return cls(**{part: folder.joinpath(name).read_text("utf-8") if name else "" for part, name in names.items()})


def inside(file: str) -> str:
    """The plain form of a path that does not leave the report's folder."""
    path = pathlib.PurePosixPath(file)
    if not path.name or path.is_absolute() or ".." in path.parts or "\\" in file or "\0" in file:
        raise ValueError(f"Expected file={file!r} to name a file inside the folder of the report.")
    return str(path)
