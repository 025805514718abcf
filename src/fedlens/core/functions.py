"""Functions that users name in recipes, `package.module:function`: the only code of somebody else's that is opened."""

import importlib
from collections.abc import Callable, Iterable
from typing import Any

from fedlens.core import pins


def opened(kind: str, known: Iterable[str], of: str) -> Callable[..., Any]:
    """The function of `of` that is named so; the error lists the names that are `known` without a module."""
    module, colon, function = kind.partition(":")
    if not (colon and module and function):
        raise ValueError(f"Expected one of {', '.join(known)}, or package.module:function; got {kind!r}.")
    if (pin := pins.found()) and not pin.functions:  # to import a module is to run it
        raise ValueError(f"Expected no function of one's own: this machine is pinned ({pin.place}).")
    try:
        chosen: object = getattr(importlib.import_module(module), function)
    except Exception:  # an import runs code, which may fail in any way
        raise ValueError(f"Expected a function {function!r} in a module {module!r} that can be imported.") from None
    if not callable(chosen):
        raise ValueError(f"Expected {kind!r} to be a function of {of}.")
    return chosen


def summary(function: Callable[..., Any]) -> str:
    """What it says about itself, in one line."""
    text = (function.__doc__ or "").strip() or getattr(function, "__name__", "a function")
    return text.splitlines()[0].rstrip(".")
