"""Any medium by its name, and any model by its file: whoever asks need not know which it is."""

import pathlib
from collections.abc import Callable
from typing import Any

from fedlens import media
from fedlens.core import tensorfiles
from fedlens.media.protocol import Medium, Samples, Trained
from fedlens.report.report import Report

RESULTS = "model.safetensors", "look.safetensors"


def medium(name: str) -> Medium:
    """Its public half."""
    opened: Medium = media.part(name, "medium").MEDIUM
    return opened


def every() -> list[Medium]:
    return [medium(name) for name in media.MEDIA]


def chosen(claims: Callable[[Medium], bool]) -> Medium:
    """The one that claims something; if none does, the first of the table."""
    first, *others = every()
    return next((medium for medium in others if claims(medium)), first)


def result_in(folder: pathlib.Path) -> pathlib.Path:
    """The file that a run left of one group: its model; or a look, where that is all that is made.

    Where there is neither, that of a model. A look that a generator is fitted to is no result: nobody owns it.
    """
    model, look = (folder / name for name in RESULTS)
    if model.exists() or not look.exists():
        return model
    try:
        header = tensorfiles.header(look)
    except ValueError:  # damaged
        return model
    return look if any(medium.owns(header) for medium in every()) else model


def opened(path: pathlib.Path) -> Trained:
    """Any model of a run folder, whatever it was trained on."""
    return _owner(path).opened(path)


def refitted(path: pathlib.Path, device: str, room: int, **fit: Any) -> Trained:
    """Another model of what was kept beside one."""
    return _owner(path).refitted(path, device, room, **fit)


def _owner(path: pathlib.Path) -> Medium:
    """Whose model, or look, a file is: its header says so."""
    header = tensorfiles.header(path)
    return chosen(lambda medium: medium.owns(header))


def contrast(*groups: Samples, title: str = "fedlens report", **about: Any) -> Report:
    """What sets two groups of samples apart, of whatever medium: the suspicious one first. One alone is looked over.

    `kinds` are further faults that could explain it (package.module:function), `before` the findings of an earlier
    report, `primary` a classifier of images.
    """
    media_of = {group.medium for group in groups}
    if len(media_of) != 1 or len(groups) > 2:
        raise ValueError("Expected one or two groups of samples, of one medium.")
    return medium(media_of.pop()).contrast(groups, title=title, **about)
