"""Trees on disk as safetensors; what belongs to them travels in the header."""

import json
import pathlib
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from fedlens import files
from fedlens.trees import Tree


def write(path: pathlib.Path, tree: Tree, about: dict[str, Any]) -> None:
    header = {key: json.dumps(value, sort_keys=True) for key, value in about.items()}
    files.write(path, save({name: leaf.detach().cpu().contiguous() for name, leaf in tree.items()}, header))


def read(path: pathlib.Path) -> tuple[Tree, dict[str, Any]]:
    try:
        with safe_open(path, "pt") as file:
            header = file.metadata() or {}
            return {name: file.get_tensor(name) for name in file.keys()}, {k: json.loads(v) for k, v in header.items()}  # noqa: SIM118
    except FileNotFoundError:
        raise ValueError(f"Expected the file {path.name}; it is missing.") from None
    except (SafetensorError, json.JSONDecodeError):
        raise ValueError(f"Expected a whole safetensors file in {path.name}; it is cut short or damaged.") from None
