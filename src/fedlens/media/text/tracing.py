"""What faults do to the numbers of a look at text: tried on sentences that everybody may see."""

import itertools
from collections.abc import Mapping, Sequence

import numpy as np
import torch

from fedlens.media.text.families import FAMILIES, TextFamily
from fedlens.models.looks.explaining import Trace
from fedlens.models.looks.psi import SIZE, SIZES
from fedlens.models.looks.sentences import as_symbols, numbers_of, text_sizes
from fedlens.models.looks.texts import TextPsi
from fedlens.models.looks.two_sample import Directions, Tested
from fedlens.models.words import Vocabulary

# A fault hits a share of everybody's sentences, or all sentences of a share of the units.
WITHIN = tuple(float(share) for share in np.geomspace(0.002, 1.0, 24).round(5))
AMONG = tuple(float(share) for share in np.geomspace(0.02, 1.0, 16).round(5))[:-1]
SHOWN = 0.1  # of the sentences, where a direction of the test is read off
_TOGETHER = 1024  # sentences that are looked at together
_TURNS = 6  # in which sentences are hit
_SEED = 3
_RARE = 0.02  # of the units: sizes that fewer have are left out
Amount = tuple[float, float, float, float]  # strength; of a unit's sentences; of the units; of all sentences


def text_traces(
    psi: TextPsi,
    sentences: Sequence[list[str]],
    known: Vocabulary,
    sizes: Mapping[int, float],
    families: Sequence[TextFamily] = FAMILIES,
) -> list[Trace]:
    """Of every family, tried on public sentences as if units had said so many of them each: shares of units by size."""
    plain = text_numbers(sentences, known)
    return [_trace(psi, family, sentences, known, plain, sizes) for family in families]


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
    sizes: Mapping[int, float],
) -> Trace:
    amounts: list[Amount] = []
    rows: list[np.ndarray] = []
    for strength in family.strengths:
        changed = text_numbers([family.change(list(tokens), strength) for tokens in sentences], known)
        moves = _moves(psi, plain, changed - plain, sizes)
        amounts += [(strength, share, 1.0, share) for share in WITHIN]
        rows += list(moves)
        amounts += [(strength, 1.0, share, share) for share in AMONG]
        rows += [share * moves[-1] for share in AMONG]
    blocks = np.split(np.stack(rows), np.cumsum(list(text_sizes().values()))[:-1], axis=1)
    return Trace(
        kind=family.kind,
        amounts=tuple(amounts),
        moves=dict(zip(text_sizes(), blocks, strict=True)),
        says=lambda amount: f"{family.says(amount[0])}, {_affected(amount)}",
        shares=(1.0,),
    )


def _moves(psi: TextPsi, plain: torch.Tensor, step: torch.Tensor, sizes: Mapping[int, float]) -> np.ndarray:
    """[shares, numbers]: by how much the mean over units moves, of all blocks.

    Where units hold few sentences, it matters that some are hit as a whole and others not: blocks are cut to a radius.
    So sentences are really hit, each in its turn.
    """
    total = np.zeros((len(WITHIN), plain.shape[1]))
    for size, weight in sizes.items():
        many = min(size, len(plain))
        units = len(plain) // many
        before, moved = (part[: units * many].view(units, many, -1).float() for part in (plain, step))
        start = before.mean(1)
        was = _bounded(psi, start)
        order = np.random.default_rng(_SEED).permutation(units * many)  # by chance, as many of one unit as it may
        turns = torch.from_numpy(order / (units * many)).float().view(units, many)
        for at, share in enumerate(WITHIN):
            for turn in range(_TURNS):
                hit = ((turns + turn / _TURNS) % 1.0 < share).float()
                after = start + torch.bmm(hit[:, None], moved)[:, 0] / many
                total[at] += weight * (_bounded(psi, after) - was).mean(0).double().numpy() / _TURNS
    return total


def _bounded(psi: TextPsi, means: torch.Tensor) -> torch.Tensor:
    sizes = text_sizes()
    parts = zip(sizes, means.split(list(sizes.values()), 1), strict=True)
    return torch.cat([psi.around(name, part) for name, part in parts], 1)


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


def sizes_shown(comparison: Tested) -> dict[int, float]:
    """How many sentences units show, as the looks say, and how many do; 16 where they say nothing but noise."""
    mean = sum(group.blocks[SIZE].mean for group in comparison.groups) / 2
    shown = np.where(mean > max(2 * comparison.noise(SIZE), _RARE), mean, 0.0)
    if not shown.any():
        return {16: 1.0}
    shares = shown / shown.sum()
    # Within a bin, most show few: 1, 2, 5, 10, 20, ...
    return {round(1.25 * 2**at): float(shares[at]) for at in range(SIZES) if shares[at]}
