"""The settings of an algorithm as plain values, and back: by the types its dataclass declares, and by nothing else.

A real node is sent a name and settings, never code. Values may come from anybody: each must be of the type that is
declared for it, and a dataclass is named by its `kind` among those that may stand in its place.
"""

import dataclasses
import functools
import types
import typing
from collections.abc import Mapping
from typing import Annotated, Any, Union

from fedlens.core import files

_LARGEST = 2**63 - 1


def settings(algorithm: Any) -> dict[str, Any]:
    """Plain values of JSON; `from_settings` reads them back.

    >>> from fedlens.algorithms.optimizers import Sgd
    >>> settings(Sgd(rate=0.5))
    {'rate': 0.5, 'momentum': 0.0, 'nesterov': False}
    """
    return {field.name: _plain(getattr(algorithm, field.name)) for field in dataclasses.fields(algorithm)}


def described(value: Any) -> dict[str, Any]:
    """The settings of what may be one of several kinds."""
    return {"kind": type(value).__name__} | settings(value)


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return described(value)
    if isinstance(value, tuple):
        return [_plain(one) for one in value]
    if value is None or type(value) in (bool, int, str):
        return value
    if isinstance(value, float):
        return float(value)  # of numpy's kind as well
    raise ValueError(f"Expected plain settings, got a {type(value).__name__}.")


def from_settings(kind: Any, values: Mapping[str, Any]) -> Any:
    """One of this kind with these settings: all of them, and no others."""
    declared = _declared(kind)
    if not isinstance(values, Mapping) or values.keys() != declared.keys():
        raise ValueError(f"Expected the settings {', '.join(declared)} of {kind.__name__}.")
    return kind(**{name: _value(declared[name], values[name], f"{kind.__name__}.{name}") for name in declared})


@functools.cache
def _declared(kind: Any) -> dict[str, Any]:
    hints = typing.get_type_hints(kind, include_extras=True)
    return {field.name: hints[field.name] for field in dataclasses.fields(kind)}


def _value(declared: Any, value: Any, place: str) -> Any:
    """The value that is meant, if it is of one of the types that are declared in this place."""
    for kind in _kinds(declared):
        if dataclasses.is_dataclass(kind):
            if isinstance(value, Mapping) and value.get("kind") == getattr(kind, "__name__", ""):
                return from_settings(kind, {name: one for name, one in value.items() if name != "kind"})
        elif typing.get_args(kind)[1:] == (...,):  # a tuple of any length
            if isinstance(value, list | tuple):
                return tuple(_value(typing.get_args(kind)[0], one, place) for one in value)
        elif _is(kind, value):
            return value
    raise ValueError(f"Expected another kind of value for {place}.")


def _kinds(declared: Any) -> tuple[Any, ...]:
    """Those of a union; and for a protocol those that it is annotated with."""
    if typing.get_origin(declared) is Annotated:
        return tuple(typing.get_args(declared)[1:])
    return typing.get_args(declared) if typing.get_origin(declared) in (Union, types.UnionType) else (declared,)


def _is(kind: Any, value: object) -> bool:
    if kind is float:
        return files.finite(value)  # a whole number stays one, so that it is written as it was
    if kind is int:
        return files.whole(value, -_LARGEST, _LARGEST)
    return kind in (bool, str, type(None)) and type(value) is kind
