"""PRIVATE. English that lies on every machine: the docstrings of Python's standard library."""

import ast
import pathlib
import re
import sysconfig
import warnings
from collections.abc import Iterator

import numpy as np

from fedlens.data.population import DataError, Population
from fedlens.models.words import as_row

_SKIPPED = {"site-packages", "dist-packages", "test", "tests", "idle_test", "pydoc_data", "__pycache__"}
_CODE = re.compile(r"^\s*(>>>|\.\.\.( |$)).*$", re.MULTILINE)
_END = re.compile(r"""(?:(?<=[.!?])|(?<=[.!?]["')]))\s+(?=["'(]*[A-Z])""")


def docstrings() -> Population:
    """One module = one user; modules in the order of their paths, sentences in the order of the file.

    Files are parsed and never imported. Examples at the prompt are left out.
    """
    root = pathlib.Path(sysconfig.get_path("stdlib"))
    paths = sorted(path for path in root.rglob("*.py") if not _SKIPPED & {*path.relative_to(root).parts})
    users = [held for held in ([*_sentences(path)] for path in paths) if held]
    if not users:
        raise DataError("Expected the source files of Python's standard library; there are none.")
    rows = np.stack([as_row(sentence) for held in users for sentence in held])
    return Population.from_arrays("docstrings", {"text": rows}, np.array([len(held) for held in users]))


def _sentences(path: pathlib.Path) -> Iterator[str]:
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the library's own escapes
        try:
            tree = ast.parse(path.read_bytes())
        except (SyntaxError, ValueError):  # written for another Python
            return
    nodes = [node for node in ast.walk(tree) if isinstance(node, documented)]
    for node in sorted(nodes, key=lambda node: getattr(node, "lineno", 0)):
        yield from _split(ast.get_docstring(node) or "")


def _split(docstring: str) -> Iterator[str]:
    for paragraph in re.split(r"\n\s*\n", _CODE.sub("", docstring)):
        for sentence in _END.split(paragraph):
            sentence = " ".join(sentence.replace("\0", "").split())
            if re.search("[a-zA-Z]{2}", sentence):
                yield sentence
