"""What faults do to the numbers of a look at text: tried on sentences that everybody may see."""

import itertools
from collections.abc import Sequence

import numpy as np
import torch

from fedlens.media.text.families import FAMILIES, TextFamily
from fedlens.models.looks.explaining import Trace
from fedlens.models.looks.psi import SIZE, SIZES
from fedlens.models.looks.sentences import as_symbols, numbers_of, text_sizes
from fedlens.models.looks.texts import TextPsi
from fedlens.models.looks.two_sample import Comparison, Directions
from fedlens.models.words import Vocabulary

# A fault hits a share of everybody's sentences, or all sentences of a share of the units.
WITHIN = tuple(float(share) for share in np.geomspace(0.002, 1.0, 32).round(5))
AMONG = tuple(float(share) for share in np.geomspace(0.02, 1.0, 16).round(5))[:-1]
SHOWN = 0.1  # of the sentences, where a direction of the test is read off
_TOGETHER = 1024  # sentences that are looked at together
Amount = tuple[float, float, float, float]  # strength; of a unit's sentences; of the units; of all sentences


def text_traces(
    psi: TextPsi,
    sentences: Sequence[list[str]],
    known: Vocabulary,
    together: int,
    families: Sequence[TextFamily] = FAMILIES,
) -> list[Trace]:
    """Of every family, tried on public sentences as if units had said so many of them each."""
    plain = text_numbers(sentences, known)
    owners = torch.arange(len(plain)) // max(1, min(together, len(plain)))
    return [_trace(psi, family, sentences, known, plain, owners) for family in families]


def text_numbers(sentences: Sequence[list[str]], known: Vocabulary) -> torch.Tensor:
    """[n, numbers]: of all blocks, one after the other."""
    rows = torch.from_numpy(np.stack([as_symbols(tokens, known) for tokens in sentences]))
    return torch.cat([torch.cat(list(numbers_of(part).values()), 1) for part in rows.split(_TOGETHER)]).double()


def _trace(
    psi: TextPsi,
    family: TextFamily,
    sentences: Sequence[list[str]],
    known: Vocabulary,
    plain: torch.Tensor,
    owners: torch.Tensor,
) -> Trace:
    """Which of a unit's sentences are hit is averaged over: the mean of its numbers moves by so much."""
    amounts: list[Amount] = []
    rows: list[np.ndarray] = []
    before = _by_unit(plain, owners)
    for strength in family.strengths:
        changed = text_numbers([family.change(list(tokens), strength) for tokens in sentences], known)
        step = _by_unit(changed - plain, owners)
        moves = {share: _moved(psi, before, share * step) for share in WITHIN}
        amounts += [(strength, share, 1.0, share) for share in WITHIN]
        rows += [moves[share] for share in WITHIN]
        amounts += [(strength, 1.0, share, share) for share in AMONG]
        rows += [share * moves[1.0] for share in AMONG]
    blocks = np.split(np.stack(rows), np.cumsum(list(text_sizes().values()))[:-1], axis=1)
    return Trace(
        kind=family.kind,
        amounts=tuple(amounts),
        moves=dict(zip(text_sizes(), blocks, strict=True)),
        says=lambda amount: f"{family.says(amount[0])}, {_affected(amount)}",
        shares=(1.0,),
    )


def _by_unit(numbers: torch.Tensor, owners: torch.Tensor) -> torch.Tensor:
    counts = owners.bincount()[:, None]
    return numbers.new_zeros(len(counts), numbers.shape[1]).index_add(0, owners, numbers) / counts


def _moved(psi: TextPsi, before: torch.Tensor, step: torch.Tensor) -> np.ndarray:
    """The mean over units, of all blocks."""
    sizes = text_sizes()
    parts = zip(sizes, *(numbers.split(list(sizes.values()), 1) for numbers in (before, before + step)), strict=True)
    moved = [(psi.around(name, after) - psi.around(name, was)).mean(0) for name, was, after in parts]
    return torch.cat(moved).numpy()


def _affected(amount: Sequence[float]) -> str:
    _, within, among, _ = amount
    return f"in {percent(within)} of the sentences" if among == 1.0 else f"in all sentences of {percent(among)}"


def percent(share: float) -> str:
    """
    >>> percent(0.0123), percent(1.0)
    ('1.2%', '100%')
    """
    return f"{100 * share:.2g}%" if share < 0.995 else "100%"


def text_directions(traces: Sequence[Trace]) -> Directions:
    """One for each family and strength: where a difference is looked for."""
    blocks = traces[0].moves if traces else {}
    rows = [(trace, at) for trace in traces for at in _shown(trace)]
    made = {name: np.stack([trace.moves[name][at] for trace, at in rows]) for name in blocks} if rows else {}
    moves = np.any([np.any(block != 0, axis=1) for block in made.values()], axis=0) if made else np.zeros(0, bool)
    return {name: block[moves] for name, block in made.items()}


def _shown(trace: Trace) -> list[int]:
    """Where the share of sentences is closest to the one that is shown, for each strength."""
    within = [(at, amount) for at, amount in enumerate(trace.amounts) if amount[2] == 1.0]
    by_strength = itertools.groupby(within, key=lambda pair: pair[1][0])
    return [min(some, key=lambda pair: abs(pair[1][1] - SHOWN))[0] for _, some in by_strength]


def shown_together(comparison: Comparison) -> int:
    """How many sentences units show, as the looks say; 16 where they say nothing but noise."""
    mean = sum(group.blocks[SIZE].mean for group in comparison.groups) / 2
    noise = comparison.noise(SIZE)
    shares = np.where(mean > 2 * noise, mean, 0.0)
    if not shares.any():
        return 16
    return max(1, round(2 ** float(shares @ (np.arange(SIZES) + 0.5) / shares.sum())))
