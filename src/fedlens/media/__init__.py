"""What data can be of. A medium is a folder and one line in this table: nobody else asks which medium it is.

    media/<name>/__init__.py   the sources it is read from
    media/<name>/faults.py     what can be wrong with it: to be planted, or tried as an explanation
    media/<name>/medium.py     MEDIUM, its public half: settings, models, samples, contrasts (`protocol.Medium`)
    media/<name>/reading.py    READING, its private half: what is read beside the data (`reading.Reading`)

They are opened by name, each when it is needed: recipes are read without torch's help, and nothing that is public opens
what is private.
"""

import dataclasses
import functools
import importlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedlens.media.faults import Fault

MEDIA = {
    "images": "fedlens.media.images",
    "text": "fedlens.media.text",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Source:
    """A form in which data may lie, and the options of [data] that go with it."""

    options: frozenset[str] = frozenset()
    built_in: bool = False  # it is on every machine, and public: for demonstrations
    facts: Mapping[str, int] = dataclasses.field(default_factory=dict)  # what is known of it without reading it


FOLDER = "population"  # of canonical form, of any medium: see data.population


def part(name: str, module: str) -> Any:
    """A module of a medium's folder."""
    return importlib.import_module(f"{MEDIA[name]}.{module}")


def sources_of(name: str) -> dict[str, Source]:
    """Of one medium, by their names."""
    listed: dict[str, Source] = importlib.import_module(MEDIA[name]).SOURCES
    return listed


@functools.cache
def sources() -> dict[str, Source]:
    """Of all media, and the one that is of none."""
    folder = {FOLDER: Source(options=frozenset({"path", "attributes"}))}
    return {key: source for name in MEDIA for key, source in sources_of(name).items()} | folder


def built_in() -> tuple[str, ...]:
    return tuple(name for name, source in sources().items() if source.built_in)


def fault(kind: str) -> "Fault":
    """By its name, of whatever medium; or a function of one's own, `package.module:function`."""
    from fedlens.media.faults import Faults

    known = {key: fault for name in MEDIA for key, fault in part(name, "faults").FAULTS.known.items()}
    return Faults(known=known, of="examples").named(kind)
