"""Arithmetic on trees: flat dicts of tensors, such as the parameters of a model."""

import concurrent.futures
import hashlib
from collections.abc import Mapping

import torch

Tree = dict[str, torch.Tensor]
_PIECE = 2**21  # bytes hashed at a time


def add(left: Tree, right: Tree, scale: float = 1.0) -> Tree:
    return {name: torch.add(leaf, right[name], alpha=scale) for name, leaf in left.items()}


def scaled(tree: Tree, factor: float | torch.Tensor) -> Tree:
    return {name: factor * leaf for name, leaf in tree.items()}


def zeros(like: Tree) -> Tree:
    return {name: torch.zeros_like(leaf) for name, leaf in like.items()}


def norm(tree: Tree) -> torch.Tensor:
    """The joint L2 norm, summed in double precision: clipping must not lose to rounding.

    >>> norm({"a": torch.tensor([3.0]), "b": torch.tensor([4.0])}).item()
    5.0
    """
    if not tree:
        return torch.zeros((), dtype=torch.float64)
    return torch.stack([leaf.square().sum(dtype=torch.float64) for leaf in tree.values()]).sum().sqrt()


def clipped(tree: Tree, max_norm: float) -> Tree:
    """Scales the tree down to at most `max_norm`; a tree that is not finite becomes all zeros.

    The factor is a millionth smaller than the quotient, so that rounding cannot push the result over the bound.

    >>> clipped({"a": torch.tensor([3.0, 4.0])}, 1.0)["a"]
    tensor([0.6000, 0.8000])
    >>> clipped({"a": torch.tensor([3.0, float("nan")])}, 1.0)["a"]
    tensor([0., 0.])
    """
    size = norm(tree)
    factor = ((1 - 1e-6) * max_norm / size.clamp(min=1e-30)).clamp(max=1.0)
    return {name: torch.where(size.isfinite(), factor.to(leaf.dtype) * leaf, 0.0) for name, leaf in tree.items()}


def joined(**parts: Tree | torch.Tensor) -> Tree:
    """Packs named trees into one flat tree; `part` takes one out again.

    >>> tree = joined(critic={"bias": torch.zeros(2)}, clip=torch.tensor(1.0))
    >>> sorted(tree)
    ['clip', 'critic/bias']
    >>> sorted(part(tree, "critic"))
    ['bias']
    """
    flat: Tree = {}
    for name, value in parts.items():
        flat |= (
            {name: value} if isinstance(value, torch.Tensor) else {f"{name}/{key}": leaf for key, leaf in value.items()}
        )
    return flat


def part(tree: Tree, name: str) -> Tree:
    return {key.removeprefix(f"{name}/"): leaf for key, leaf in tree.items() if key.startswith(f"{name}/")}


def moved(tree: Tree, device: torch.device | str) -> Tree:
    return {name: leaf.to(device) for name, leaf in tree.items()}


def row(tree: Tree, index: int) -> Tree:
    return {name: leaf[index] for name, leaf in tree.items()}


def stacked(trees: list[Tree]) -> Tree:
    return {name: torch.stack([tree[name] for tree in trees]) for name in trees[0]}


def same_shape(left: Mapping[str, torch.Tensor], right: Mapping[str, torch.Tensor]) -> bool:
    return left.keys() == right.keys() and all(left[name].shape == right[name].shape for name in left)


def digest(tree: Tree) -> str:
    """A SHA-256 over names, types, shapes and bytes: of pieces first, side by side, then of their digests."""
    total = hashlib.sha256()
    with concurrent.futures.ThreadPoolExecutor() as pool:
        for name in sorted(tree):
            leaf = _on_host(tree[name].detach())
            total.update(f"{name} {leaf.dtype} {tuple(leaf.shape)};".encode())
            data = memoryview(leaf.reshape(-1).view(torch.uint8).numpy().data) if leaf.numel() else memoryview(b"")
            pieces = (data[at : at + _PIECE] for at in range(0, len(data), _PIECE))
            for piece in pool.map(lambda piece: hashlib.sha256(piece).digest(), pieces):
                total.update(piece)
    return total.hexdigest()


def _on_host(leaf: torch.Tensor) -> torch.Tensor:
    """In plain memory, through pinned memory from a GPU: several times as fast."""
    if leaf.is_cuda:
        leaf = torch.empty(leaf.shape, dtype=leaf.dtype, pin_memory=True).copy_(leaf)
    return leaf.cpu().contiguous()


def pixels(images: torch.Tensor) -> torch.Tensor:
    """Bytes 0..255 become -1..1; floats are taken as they are."""
    return images.float() / 127.5 - 1 if images.dtype == torch.uint8 else images.float()
