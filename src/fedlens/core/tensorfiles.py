"""Trees on disk as safetensors; what belongs to them travels in the header."""

import json
import pathlib
from typing import Any

from safetensors import safe_open
from safetensors.torch import save

from fedlens.core import files
from fedlens.core.trees import Tree


def write(path: pathlib.Path, tree: Tree, about: dict[str, Any]) -> None:
    files.write(path, content(tree, about))


def content(tree: Tree, about: dict[str, Any]) -> bytes:
    """What `write` writes."""
    header = {key: json.dumps(value, sort_keys=True) for key, value in about.items()}
    return save({name: leaf.detach().cpu().contiguous() for name, leaf in tree.items()}, header)


def header(path: pathlib.Path) -> dict[str, Any]:
    """What a file says about itself; no tensor is read."""
    return _read(path, tensors=False)[1]


def read(path: pathlib.Path) -> tuple[Tree, dict[str, Any]]:
    """The library holds the shapes in the header against the size of the file before it reads a value."""
    return _read(path, tensors=True)


def _read(path: pathlib.Path, tensors: bool) -> tuple[Tree, dict[str, Any]]:
    with files.readable("safetensors", path), safe_open(path, "pt") as file:
        header = file.metadata() or {}
        if sum(map(len, header.values())) > files.MOST_TEXT:
            raise ValueError
        about = {key: files.parsed_json(value, "Expected JSON.") for key, value in header.items()}
        return {name: file.get_tensor(name) for name in file.keys() if tensors}, about  # noqa: SIM118
