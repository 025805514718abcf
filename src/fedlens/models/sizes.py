"""How large a network may be, and whether weights are its own: a file's header may say anything.

Both are told from plain numbers, before a weight is made.
"""

from collections.abc import Mapping, Sequence

import torch

from fedlens.core import files
from fedlens.core.trees import Tree

MOST_SIZE = 2**20  # of a layer, of an alphabet, of an image's side: none here comes near it
MOST_LAYERS = 64


def check_sizes(widths: Sequence[object] = (), **sizes: object) -> None:
    """All of them whole numbers that a network can have: from 1, and not so large that its shapes alone fill memory."""
    if not isinstance(widths, tuple) or len(widths) > MOST_LAYERS or not all(map(_size, widths)):
        raise ValueError(f"Expected at most {MOST_LAYERS} widths of 1..{MOST_SIZE}.")
    for name, size in sizes.items():
        if not _size(size):
            shown = size if files.finite(size) else "something else"
            raise ValueError(f"Expected {name}={shown} >= 1 and <= {MOST_SIZE}, a whole number.")


def fitting(params: Tree, shapes: Mapping[str, tuple[int, ...]]) -> bool:
    """Whether the weights have these names and shapes, in single precision."""
    held = {name: tuple(leaf.shape) for name, leaf in params.items()}
    return held == dict(shapes) and all(leaf.dtype == torch.float32 for leaf in params.values())


def _size(value: object) -> bool:
    return files.whole(value, 1, MOST_SIZE)
