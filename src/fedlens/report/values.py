"""Values as others can read them: a person, a terminal that obeys escape sequences, and strict JSON."""

import math
import unicodedata
from collections.abc import Mapping
from typing import Any

TableRow = dict[str, Any]  # of any table in report.json: a run, a number, a hypothesis, a word
SHOWN_LETTERS = 80  # of one word


def figure(value: Any) -> str:
    """A number as a person reads it; words stay words."""
    value = value.tolist() if hasattr(value, "tolist") else value
    if value is None:
        return "–"
    if isinstance(value, float):
        if not math.isfinite(value):
            return "nan" if math.isnan(value) else "infinity" if value > 0 else "-infinity"
        plain = value == 0 or 1e-3 <= abs(value) < 1e6
        return f"{value:,.{3 if abs(value) < 100 else 1}f}" if plain else f"{value:.3g}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def strict(value: Any) -> Any:
    """Arrays become lists; what JSON has no number for becomes a word, as an infinite epsilon does."""
    if hasattr(value, "tolist"):
        return strict(value.tolist())
    if isinstance(value, Mapping):
        return {str(key): strict(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [strict(item) for item in value]
    return figure(value) if isinstance(value, float) and not math.isfinite(value) else value


def printable(text: str) -> str:
    """Generated words may hold escape sequences, which a terminal would obey."""
    return "".join(letter if letter.isprintable() else " " for letter in text)


def visible(text: str) -> str:
    """Generated words may hold what no screen shows, or what turns the words around it: such letters by their number.

    >>> visible("well" + chr(0) + chr(0x202E))
    'well␀‹U+202E›'
    """
    shown, marks = [], 2  # a mark with no letter to stand on is one too many
    for letter in text[:SHOWN_LETTERS]:
        kind, code = unicodedata.category(letter), ord(letter)
        marks = marks + 1 if kind[0] == "M" else 0
        hidden = kind[0] == "C" or (kind[0] == "Z" and letter != " ") or marks > 2
        shown.append(letter if not hidden else chr(0x2400 + code) if code < 32 else f"‹U+{code:04X}›")
    return "".join(shown) + ("…" if len(text) > SHOWN_LETTERS else "")


def aligned(rows: list[list[str]]) -> str:
    """Columns for a terminal: the first and the last begin at the left, the others end at the right."""
    cells = [[printable(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    padded = ([c[0].ljust(widths[0]), *map(str.rjust, c[1:-1], widths[1:]), c[-1]] for c in cells)
    return "\n".join("  ".join(row).rstrip() for row in padded)


def rarity(percent: float | None) -> str:
    return "any share" if percent is None else f"fewer than {percent:.3g}%"
