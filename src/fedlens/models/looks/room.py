"""How much memory a look and its fit take, told from their sizes before anything is asked, and what would fit."""

import bisect
import dataclasses

from fedlens.models.looks.embedding import Embedding
from fedlens.models.looks.moments import Moments
from fedlens.models.looks.psi import TOGETHER, Psi

_NUMBER = 4  # bytes
_COPIES = 6  # of embedded images that are alive at once: phases, their cosines and sines, both together, slopes
_SUMS = 12  # of what a unit sends: by itself, bounded, cut, and as sums and noise in doubles
_PAIRS = 20  # bytes for each pair of coordinates: where it lies, and its weight


def needed(psi: Psi, batch: int) -> int:
    """Bytes, roughly: of one unit's work and of a step of the fit, whichever is more, beside what is kept for both."""
    sent = _SUMS * max(1, psi.classes) * psi.body.size
    if isinstance(psi.body, Moments):
        return _NUMBER * (sent + _COPIES * psi.body.size) + _PAIRS * psi.body.size
    shown = min(psi.examples, TOGETHER) if psi.several else 1
    work = max(sent + _COPIES * shown * psi.body.size, _COPIES * batch * psi.body.size)
    return _NUMBER * (psi.body.projection + work)


def check(psi: Psi, batch: int, room: int) -> None:
    """Refuses a look that a machine with so many bytes of memory cannot take, with the largest that it can."""
    if (wanted := needed(psi, batch)) <= room:
        return
    name, step, most = _choice(psi)

    def taken(number: int) -> int:
        return needed(_of(psi, number * step), batch)

    fits = step * (bisect.bisect_right(range(1, most // step), room, key=taken))
    least = f"{name} of at most {fits}" if fits else "more memory"
    raise ValueError(
        f"Expected {least}: {most} take about {wanted / 2**30:.1f} GiB, and this machine has {room / 2**30:.1f}."
        " Nothing was asked, and nothing is spent."
    )


def _choice(psi: Psi) -> tuple[str, int, int]:
    """What a recipe would make smaller, in which steps, and what it is."""
    if isinstance(psi.body, Moments):
        return "look.frequencies", 1, psi.body.frequencies
    return "look.features", 2 * len(psi.body.widths), psi.body.features


def _of(psi: Psi, number: int) -> Psi:
    if isinstance(psi.body, Embedding):
        return dataclasses.replace(psi, body=dataclasses.replace(psi.body, features=number))
    return dataclasses.replace(psi, body=dataclasses.replace(psi.body, frequencies=max(2, number)))
