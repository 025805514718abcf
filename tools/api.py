"""Writes docs/api.md, the public API on one page: `make api`. Signatures are those of the source, word by word."""

import ast
import dataclasses
import enum
import importlib
import inspect
import itertools
import pathlib
import textwrap
from typing import Any

import fedlens

PAGE = pathlib.Path(__file__).parents[1] / "docs" / "api.md"
WIDTH = 100
INTRODUCTION = """\
What `from fedlens import ...` offers, by the room it lives in. Whatever is not on this page may change without notice.
It is made by `make api` from the source and its docstrings; a test fails when it is stale."""


def page() -> str:
    """The whole page, as it should be in docs/api.md."""
    exports = sorted(((home.split(".")[0], name) for name, home in fedlens._HOMES.items()), key=_place)
    rooms = itertools.groupby(exports, key=lambda export: export[0])
    sections = (_section(room, [name for _, name in members]) for room, members in rooms)
    return "\n\n".join(["# The public API", _wrapped(INTRODUCTION), *sections]) + "\n"


def _place(export: tuple[str, str]) -> tuple[str, str]:
    """By room, and within it by name, whatever the case."""
    return export[0], export[1].lower()


def _section(room: str, names: list[str]) -> str:
    about = _first_paragraph(importlib.import_module(f"fedlens.{room}").__doc__ or "")
    return "\n\n".join([f"## {room}", _wrapped(about), *map(_entry, names)])


def _entry(name: str) -> str:
    thing = getattr(fedlens, name)
    node = _parsed(thing)
    if isinstance(thing, type):
        node.body += _inherited(thing, node)
    said = [f"### {name}", f"In `{thing.__module__}`.", _about(thing, node), _in_code(_signature(name, thing, node))]
    methods = "\n".join(_wrapped(_method(method), indent="  ") for method in _public_methods(node))
    return "\n\n".join(part for part in [*said, methods] if part)


def _parsed(thing: Any) -> Any:
    return ast.parse(textwrap.dedent(_written(thing))).body[0]


def _inherited(thing: type, node: ast.ClassDef) -> list[ast.stmt]:
    """The fields and methods of the dataclasses that it extends, but for those that it has itself."""
    bases = [_parsed(base) for base in thing.__mro__[1:] if dataclasses.is_dataclass(base)]
    lines = {_name(line): line for base in reversed(bases) for line in base.body if _name(line)}
    return [line for name, line in lines.items() if name not in set(map(_name, node.body))]


def _name(line: Any) -> str:
    return _source(line.target) if isinstance(line, ast.AnnAssign) else getattr(line, "name", "")


def _written(thing: Any) -> str:
    """Its source; of a class that is put together when it is imported, that of what it is made from."""
    try:
        return inspect.getsource(thing)
    except OSError:
        return inspect.getsource(thing.__bases__[0])


def _about(thing: Any, node: Any) -> str:
    """The first paragraph of the docstring, also where that is an example; the module's where there is none."""
    first = _first_paragraph(ast.get_docstring(node) or inspect.getmodule(thing).__doc__ or "")
    return _in_code(first) if first.startswith(">>>") else _wrapped(first)


def _signature(name: str, thing: Any, node: Any) -> str:
    """How it is called; of a class with fixed members those; nobody calls a protocol or an error."""
    if isinstance(node, ast.FunctionDef):
        return _call(name, _arguments(node.args), _answer(node))
    if getattr(thing, "_is_protocol", False) or issubclass(thing, Exception):
        return ""
    if issubclass(thing, enum.Enum):
        return "\n".join(f"{name}.{_source(line)}" for line in node.body if isinstance(line, ast.Assign))
    maker = next((line for line in node.body if getattr(line, "name", "") == "__init__"), None)
    return _call(name, _arguments(_without_self(maker.args)) if maker else _fields(thing, node))


def _fields(thing: Any, node: ast.ClassDef) -> list[str]:
    """The arguments of a class that is made of its fields."""
    lines = [line for line in node.body if isinstance(line, ast.AnnAssign) and not _hidden(_name(line))]
    fields = [_argument(_name(line), line.annotation, _default(line.value)) for line in lines if not _shared(line)]
    kinds = {parameter.kind for parameter in inspect.signature(thing).parameters.values()}
    return ["*", *fields] if kinds == {inspect.Parameter.KEYWORD_ONLY} else fields


def _shared(line: ast.AnnAssign) -> bool:
    return "ClassVar" in _source(line.annotation)


def _default(value: ast.expr | None) -> ast.expr | None:
    """What a field is if it is not given, as far as `dataclasses.field` says so."""
    if not isinstance(value, ast.Call) or _source(value.func) not in ("field", "dataclasses.field"):
        return value
    options = {option.arg: option.value for option in value.keywords}
    made = options.get("default_factory")
    return options.get("default", ast.Call(func=made, args=[], keywords=[]) if made else None)


def _arguments(arguments: ast.arguments, types: bool = True) -> list[str]:
    """One text for each argument, stars included."""
    plain = [*arguments.posonlyargs, *arguments.args]
    defaults = [*[None] * (len(plain) - len(arguments.defaults)), *arguments.defaults]
    texts = [_argument(a.arg, a.annotation if types else None, d) for a, d in zip(plain, defaults, strict=True)]
    if arguments.vararg or arguments.kwonlyargs:
        texts.append(f"*{arguments.vararg.arg}" if arguments.vararg else "*")
    named = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    texts += [_argument(a.arg, a.annotation if types else None, d) for a, d in named]
    return [*texts, f"**{arguments.kwarg.arg}"] if arguments.kwarg else texts


def _argument(name: str, kind: ast.expr | None, default: ast.expr | None) -> str:
    if default is None:
        return f"{name}: {_kind(kind)}" if kind else name
    return f"{name}: {_kind(kind)} = {_source(default)}" if kind else f"{name}={_source(default)}"


def _kind(annotation: ast.expr) -> str:
    """A type as it is read; one that was written before its class existed stands in quotes in the source."""
    quoted = isinstance(annotation, ast.Constant) and annotation.value
    return str(quoted) if quoted else _source(annotation)


def _answer(function: ast.FunctionDef) -> str:
    return f" -> {_kind(function.returns)}" if function.returns else ""


def _call(name: str, arguments: list[str], answer: str = "") -> str:
    """One line if it fits, else a line for each argument."""
    line = f"{name}({', '.join(arguments)}){answer}"
    lines = [f"{name}(", *(f"    {text}," for text in arguments), f"){answer}"]
    return line if len(line) <= WIDTH else "\n".join(lines)


def _public_methods(node: Any) -> list[ast.FunctionDef]:
    lines = node.body if isinstance(node, ast.ClassDef) else []
    return [line for line in lines if isinstance(line, ast.FunctionDef) and not _hidden(line.name)]


def _method(method: ast.FunctionDef) -> str:
    """How it is called, what it answers, and the first line of what it says about itself, to the sentence's end."""
    marks = {_source(decorator).split(".")[-1] for decorator in method.decorator_list}
    arguments = method.args if "staticmethod" in marks else _without_self(method.args)
    brackets = "" if marks & {"property", "cached_property"} else f"({', '.join(_arguments(arguments, types=False))})"
    said = _first_lines(ast.get_docstring(method) or "")
    return f"- `{method.name}{brackets}{_answer(method)}`" + (f": {said}" if said and said[:3] != ">>>" else "")


def _without_self(arguments: ast.arguments) -> ast.arguments:
    arguments.args = arguments.args[1:]
    return arguments


def _source(node: ast.AST) -> str:
    """As it is written in this house: texts in double quotes."""
    text = ast.unparse(node)
    return text if '"' in text else text.replace("'", '"')


def _hidden(name: str) -> bool:
    return name.startswith("_")


def _first_paragraph(text: str) -> str:
    return inspect.cleandoc(text).split("\n\n")[0]


def _first_lines(text: str) -> str:
    """The first line, and of its paragraph as many more as its last sentence goes on for."""
    lines = _first_paragraph(text).split("\n")
    ends = (number for number, line in enumerate(lines, 1) if line.endswith((".", ":", "?", "!")))
    return " ".join(lines[: next(ends, len(lines))])


def _in_code(text: str) -> str:
    """Of no language: in blocks of Python a formatter of the documents would try its hand."""
    return f"```\n{text}\n```" if text else ""


def _wrapped(text: str, indent: str = "") -> str:
    words = " ".join(text.split())
    return textwrap.fill(words, WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
