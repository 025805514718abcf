"""The tests themselves: each of them claims something, and none claims it of nothing."""

import ast
import collections
import functools
import pathlib

import pytest

HERE = pathlib.Path(__file__).parent
CLAIMS = {"raises", "warns", "deprecated_call", "fail"}


@functools.cache
def functions(module):
    """The functions of a file by name; those within others count for the one around them."""
    tree = ast.parse((HERE / f"{module}.py").read_text())
    bodies = [tree, *(part for part in tree.body if isinstance(part, ast.ClassDef))]
    return {part.name: part for body in bodies for part in body.body if isinstance(part, ast.FunctionDef)}


@functools.cache
def imported(module):
    """Where a name in a file comes from, for names from other files of the tests: (file, name there)."""
    tree, sources = ast.parse((HERE / f"{module}.py").read_text()), {}
    for part in ast.walk(tree):
        if isinstance(part, ast.ImportFrom) and part.module and (HERE / f"{part.module}.py").exists():
            sources |= {alias.asname or alias.name: (part.module, alias.name) for alias in part.names}
        if isinstance(part, ast.Import):
            sources |= {alias.asname or alias.name: (alias.name, None) for alias in part.names}
    return {name: source for name, source in sources.items() if (HERE / f"{source[0]}.py").exists()}


def called(module, call):
    """The (file, function) that a call means, if it is one of the tests' own."""
    function = call.func
    if isinstance(function, ast.Name):
        return imported(module).get(function.id, (module, function.id))
    if isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name):
        return imported(module).get(function.value.id, (module, None))[0], function.attr
    return module, None


def claims(module, name, above=()):
    """Whether a function asserts something, by itself or through one that it calls."""
    function = functions(module).get(name)
    if function is None or (module, name) in above:
        return False
    return any(_claims(module, part, (*above, (module, name))) for part in ast.walk(function))


def _claims(module, part, above):
    if isinstance(part, ast.Assert):
        return True
    if not isinstance(part, ast.Call):
        return False
    known = isinstance(part.func, ast.Attribute) and (part.func.attr in CLAIMS or part.func.attr.startswith("assert_"))
    return known or claims(*called(module, part), above)


MODULES = sorted(path.stem for path in HERE.glob("*.py"))
LENDING = {"test_report"}  # its own examples, to the one that opens them in a browser


@pytest.mark.parametrize("module", [name for name in MODULES if name.startswith("test_")])
def test_every_test_asserts_something(module):
    tests = [name for name in functions(module) if name.startswith("test_")]
    assert tests
    assert [name for name in tests if not claims(module, name)] == []


def test_nothing_is_asserted_that_is_always_true():
    for module in MODULES:
        for part in ast.walk(ast.parse((HERE / f"{module}.py").read_text())):
            if isinstance(part, ast.Assert):
                assert not isinstance(part.test, ast.Constant | ast.Tuple | ast.JoinedStr), (module, part.lineno)


def bodies(source):
    """What its functions do, in three lines or more."""
    functions = [part for part in ast.walk(ast.parse(source)) if isinstance(part, ast.FunctionDef)]
    texts = (ast.unparse(part.body[1:] if ast.get_docstring(part) else part.body) for part in functions)
    return {text for text in texts if text.count("\n") >= 2}


def test_what_tests_share_is_typed_once():
    typed = collections.Counter(text for module in MODULES for text in bodies((HERE / f"{module}.py").read_text()))
    assert [text for text, files in typed.items() if files > 1] == []
    one, other = (f"def {name}(x):\n    'So.'\n    x += 1\n    y = 2\n    return x * y" for name in "fg")
    assert bodies(one) == bodies(other) == {"x += 1\ny = 2\nreturn x * y"}


def test_what_tests_share_is_in_no_test():
    for module in MODULES:
        borrowed = [source for source, _ in imported(module).values() if source.startswith("test_")]
        borrowed = sorted({*borrowed} - LENDING)
        assert borrowed == [], f"Expected what {module} shares with {borrowed} in toys.py or a file like it."
