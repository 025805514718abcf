"""psi of texts: what one unit sends of its sentences, once. Readable blocks only, together of norm 1 at most."""

import dataclasses
import functools
import math
from collections.abc import Mapping

import numpy as np
import torch

from fedlens.core import files
from fedlens.core.trees import Tree
from fedlens.models.looks.psi import SIZE, SIZES, size_of
from fedlens.models.looks.sentences import TEXT_BLOCKS, numbers_of, text_sizes
from fedlens.models.looks.two_sample import COUNT, SPREAD
from fedlens.models.sizes import check_sizes

_COUNT, _SIZE, _SPREAD = 0.03, 0.005, 0.02  # of the squared norm
LEAST_SCALE = 0.01  # of any number
_TOGETHER = 1024  # public sentences that are looked at together


@dataclasses.dataclass(frozen=True, kw_only=True)
class TextPsi:
    """Numbers are counted from `centres`, in units of `scales`: their means and standard deviations over public
    sentences. Each block is cut to `radius` times the length that a sentence's would have on average: a unit of many
    sentences is far more like the public than each of them.

    What an unknown word is follows from the `words` and the `tokenizer`, which stand here by name, so that looks that
    count other things are not compared.
    """

    words: str = ""  # the digest of the list of known words
    tokenizer: str = "plain"
    examples: int = 128  # of a unit's sentences, that are shown, at most
    radius: float = 0.5
    centres: tuple[float, ...] = ()  # of all readable blocks, one after the other; by default 0
    scales: tuple[float, ...] = ()  # by default 1

    def __post_init__(self) -> None:
        check_sizes(examples=self.examples)
        if not 0 < self.radius <= 1:
            raise ValueError("Expected a radius above 0, and of 1 at most.")
        every = sum(text_sizes().values())
        if {len(self.centres), len(self.scales)} not in ({0}, {every}):
            raise ValueError("Expected centres and scales of all readable blocks, or neither.")
        if not all(map(files.finite, (*self.centres, *self.scales))) or min(self.scales, default=1.0) < LEAST_SCALE:
            raise ValueError(f"Expected finite centres, and scales of {LEAST_SCALE} at least.")

    @functools.cached_property
    def weights(self) -> dict[str, float]:
        """By their block: the norm that it has at most; the squares add up to 1."""
        squares = {SIZE: _SIZE, COUNT: _COUNT, SPREAD: _SPREAD}
        each = (1 - sum(squares.values())) / len(TEXT_BLOCKS)
        return {name: math.sqrt(share) for name, share in (dict.fromkeys(TEXT_BLOCKS, each) | squares).items()}

    def __call__(self, examples: Tree) -> Tree:
        """A unit's contribution, from its sentences `x`, [n, width] bytes, and the `mask` of those that are there."""
        mask = examples["mask"]
        share = mask / mask.sum().clamp(min=1.0)
        return self.bounded({name: share @ numbers for name, numbers in numbers_of(examples["x"]).items()}, mask)

    def bounded(self, means: Mapping[str, torch.Tensor], mask: torch.Tensor) -> Tree:
        """A unit's contribution, from the means of its sentences' numbers."""
        there = mask.sum().clamp(max=1.0)  # 0 for a unit that holds nothing
        blocks = {name: self.around(name, mean) * there for name, mean in means.items()}
        blocks[SPREAD] = torch.stack([block.square().sum() for block in blocks.values()]) / math.sqrt(len(blocks))
        blocks |= {SIZE: size_of(mask), COUNT: there[None]}
        return {name: block * self.weights[name] for name, block in blocks.items()}

    def around(self, name: str, mean: torch.Tensor) -> torch.Tensor:
        """How far the mean of a block's numbers is from its centre, along the last dimension; no longer than 1."""
        centre, unit = _units(self.centres, self.scales, self.radius, str(mean.device))[name]
        apart: torch.Tensor = (mean - centre) / unit
        within: torch.Tensor = apart / apart.norm(dim=-1, keepdim=True).clamp(min=1.0)
        return within

    def unit(self, name: str) -> np.ndarray:
        """What 1 stands for, by number of a block."""
        return _units(self.centres, self.scales, self.radius, "cpu")[name][1].double().numpy()

    def centre(self, name: str) -> np.ndarray:
        return _units(self.centres, self.scales, self.radius, "cpu")[name][0].double().numpy()

    @functools.cached_property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Of the blocks."""
        readable: dict[str, tuple[int, ...]] = {name: (size,) for name, size in text_sizes().items()}
        return readable | {SPREAD: (len(readable),), SIZE: (SIZES,), COUNT: (1,)}

    @property
    def varying(self) -> tuple[str, ...]:
        """The blocks whose mean squared norm stands in SPREAD, in this order."""
        return tuple(TEXT_BLOCKS)

    @property
    def views(self) -> dict[str, tuple[np.ndarray, ...]]:
        """The blocks that two looks are compared by; none need be looked at more coarsely."""
        return dict.fromkeys((*TEXT_BLOCKS, SIZE), ())

    @property
    def meaning(self) -> tuple[object, ...]:
        return self.words, self.tokenizer, self.radius, self.centres, self.scales


Units = Mapping[str, tuple[torch.Tensor, torch.Tensor]]


@functools.lru_cache(maxsize=8)
def _units(centres: tuple[float, ...], scales: tuple[float, ...], radius: float, device: str) -> Units:
    """By their block: the centre, and the length that is cut to, as a share of each number."""
    sizes = text_sizes()
    every = sum(sizes.values())
    whole = torch.tensor(centres or [0.0] * every, device=device), torch.tensor(scales or [1.0] * every, device=device)
    each = [numbers.split(list(sizes.values())) for numbers in whole]
    return {
        name: (centre, scale * radius * math.sqrt(len(scale))) for name, centre, scale in zip(sizes, *each, strict=True)
    }


def typical(rows: torch.Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Of public sentences, [n, width]: centres and scales."""
    parts = [torch.cat(list(numbers_of(part).values()), 1) for part in rows.split(_TOGETHER)]
    numbers = torch.cat(parts).double()
    least = [block.least for block in TEXT_BLOCKS.values() for _ in block.numbers]
    return _rounded(numbers.mean(0)), _rounded(numbers.std(0, correction=0).maximum(numbers.new_tensor(least)))


def _rounded(numbers: torch.Tensor) -> tuple[float, ...]:
    """So that machines that add otherwise agree."""
    return tuple(round(float(number), 5) for number in numbers)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TextRelease:
    """A noisy mean of psi, and how noisy it is."""

    psi: TextPsi
    blocks: Tree = dataclasses.field(repr=False)
    noise: float  # the standard deviation of the noise on every number
    units: float = 1.0  # the public number that the sum was divided by
