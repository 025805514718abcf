"""Recipes as text: all settings of one as TOML, settings that are changed by name, and what is wrong, a line each."""

import json
import tomllib
import types
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any

from fedlens.core import files
from fedlens.recipes.tables import NUMBER, QUANTILE, Table

FORMER = {"users": "units", "minimum_users": "minimum_units"}  # names in [privacy] that spoke of users only


class RecipeError(ValueError):
    """Everything that is wrong with a recipe, one line each."""


def to_toml(whole: Table) -> str:
    """A resolved recipe as TOML, every setting spelled out; or what else is made of tables."""
    lines: list[str] = []

    def table(values: dict[str, Any], place: str) -> None:
        if place:
            lines.extend(["", f"[{place}]"])
        tables = {key: value for key, value in values.items() if isinstance(value, dict)}
        scalars = {key: json.dumps(value, ensure_ascii=False) for key, value in values.items() if key not in tables}
        lines.extend(f"{key} = {value}" for key, value in scalars.items())
        for key, value in tables.items():
            table(value, f"{place}.{key}" if place else key)

    values = whole.model_dump(mode="json", exclude_none=True)
    if "population" in (data := values.get("data", {})):  # of which it says nothing else
        values["data"] = {key: data[key] for key in ("population", "budget", "bug") if key in data}
    table(values, "")
    return "\n".join([*lines, ""])


def put(values: dict[str, Any], override: str) -> None:
    """Applies `a.b=c`; c is read as TOML, or as text where it is none."""
    path, equals, text = override.partition("=")
    if not equals:
        raise RecipeError(f"Expected --set a.b=value, got {override!r}.")
    *parents, last = path.strip().split(".")
    last = FORMER.get(last, last) if parents == ["privacy"] else last
    for name in parents:
        values = values.setdefault(name, {})
        if not isinstance(values, dict):
            raise RecipeError(f"Expected a table at {name!r} for --set {override!r}.")
    try:
        values[last] = files.parsed_toml(f"value = {text}", f"Expected a value for {last}.", RecipeError)["value"]
    except tomllib.TOMLDecodeError:
        values[last] = text


def line(problem: Mapping[str, Any], whole: type[Table]) -> str:
    """What pydantic says of one setting, in words of ours."""
    parts = [part for part in problem["loc"] if part not in (NUMBER, QUANTILE)]
    place = ".".join(map(str, parts)) or "recipe"
    if problem["type"] == "extra_forbidden":
        return f"{place}: unknown; allowed here: {', '.join(sorted(fields(whole, parts[:-1])))}"
    if problem["type"] == "missing":
        return f"{place}: missing"
    message = problem["msg"].removeprefix("Value error, ")
    return f"{place}: {message[:1].lower()}{message[1:]}"


def fields(whole: type[Table], place: Sequence[int | str]) -> Iterable[str]:
    """The names allowed in the table at `place`."""
    table: Any = whole
    for part in place:
        kind = table.model_fields[part].annotation if part in getattr(table, "model_fields", {}) else table
        table = next((arm for arm in _arms(kind) if isinstance(arm, type) and issubclass(arm, Table)), table)
    names: Iterable[str] = table.model_fields
    return names


def _arms(kind: Any) -> Iterator[Any]:
    if typing.get_origin(kind) in (typing.Union, types.UnionType, dict, Annotated):
        for argument in typing.get_args(kind):
            yield from _arms(argument)
    else:
        yield kind
