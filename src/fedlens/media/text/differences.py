"""What two looks at text differ by, in words: "characters in a word: 4.9 instead of 4.1, by 0.8 plus or minus 0.1"."""

import numpy as np

from fedlens.models.looks.psi import SIZE
from fedlens.models.looks.sentences import HASHED, TEXT_BLOCKS, BlockNumber
from fedlens.models.looks.texts import TextPsi
from fedlens.models.looks.two_sample import Difference, Tested

Z = 1.96  # standard errors of an interval: 95%
SHOWN = 3  # numbers of a block


def in_words(psi: TextPsi, comparison: Tested, difference: Difference) -> str:
    """One block: its clearest numbers, each with its interval; the first group's first.

    Units that differ more than the radius are cut, so that the truth may differ by more, and not by less.
    """
    name = difference.name
    if name == SIZE:
        return _of_sizes(difference)
    if name in HASHED:
        what = "letters" if name == "n-grams" else "words"
        error = Z * difference.error
        return f"{what}, hashed: apart by {difference.size:.3f} plus or minus {error:.3f} of what a unit may differ"
    largest = [at for at in np.argsort(-np.abs(difference.numbers), kind="stable")[:SHOWN] if difference.clear[at]]
    if not largest:
        return f"{name}: no number by itself stands out of the noise"
    return "; ".join(_number(psi, comparison, difference, int(at)) for at in largest)


def _number(psi: TextPsi, comparison: Tested, difference: Difference, at: int) -> str:
    number = TEXT_BLOCKS[difference.name].numbers[at]
    unit, levels = psi.unit(difference.name)[at], _levels(psi, comparison, difference.name, at)
    apart, error = difference.numbers[at] * unit, Z * difference.error * unit
    more = "more" if apart > 0 else "fewer" if number.suffix else "less"
    one, other = (f"{_figure(max(0.0, level), number)}" for level in levels)
    by, give = (_figure(value, number).removesuffix("%") for value in (abs(apart), error))
    points = " points" if number.suffix else ""
    return f"{number.says}: {one} instead of {other}, {by}{points} {more}, plus or minus {give}"


def _levels(psi: TextPsi, comparison: Tested, name: str, at: int) -> list[float]:
    """Of both groups."""
    unit, centre = psi.unit(name)[at], psi.centre(name)[at]
    return [float(centre + group.blocks[name].mean[at] * unit) for group in comparison.groups]


def clearest(psi: TextPsi, comparison: Tested, difference: Difference) -> tuple[BlockNumber, list[float]]:
    """The number of a block that differs most, and what it is in both groups."""
    at = int(np.argmax(np.abs(difference.numbers)))
    return TEXT_BLOCKS[difference.name].numbers[at], _levels(psi, comparison, difference.name, at)


def _figure(value: float, number: BlockNumber) -> str:
    """
    >>> _figure(0.0161, BlockNumber(says="unknown words"))
    '1.61%'
    >>> _figure(0.15, BlockNumber(says="words", unit=32.0, suffix=""))
    '4.80'
    """
    figure = value * number.unit
    return f"{figure:.{0 if abs(figure) >= 100 else 1 if abs(figure) >= 10 else 2}f}{number.suffix}"


def _of_sizes(difference: Difference) -> str:
    at = int(np.argmax(np.abs(difference.numbers)))
    low, high = 2**at, 2 ** (at + 1) - 1
    span = f"{low} or more" if at == len(difference.numbers) - 1 else f"{low} to {high}" if high > low else f"{low}"
    apart, error = 100 * difference.numbers[at], 100 * Z * difference.error
    more = "more" if apart > 0 else "fewer"
    return f"units that show {span} sentences: {abs(apart):.1f}% of all {more}, plus or minus {error:.1f}%"
