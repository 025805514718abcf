"""Families of faults of text: what a tokenizer, a keyboard or a clumsy cleaner may do to the tokens of a sentence.

A family is a function of tokens and of a strength, with the strengths that are tried. They are fitted to what two looks
differ by (`models.looks.explaining`). Each may also be planted: fedlens.media.text.families:stemmed.
"""

import dataclasses
import re
from collections.abc import Callable, Iterable

from fedlens.media.text.faults import FAULTS

Tokens = list[str]
_SUFFIXES = re.compile(r"(?<=\w{3})(?:ings?|edly|ed|ies|es|s|ly|ments?|ations?|ness|'s)$")
_VOWELS = str.maketrans("", "", "aeiouAEIOU")
_DIGITS = str.maketrans("", "", "0123456789")


@dataclasses.dataclass(frozen=True, kw_only=True)
class TextFamily:
    kind: str
    change: Callable[[Tokens, float], Tokens]
    says: Callable[[float], str]
    strengths: tuple[float, ...] = (1.0,)


def stemmed(tokens: Tokens) -> Tokens:
    """Words lose their endings"""
    return [_SUFFIXES.sub("", token) for token in tokens]


def without_vowels(tokens: Tokens) -> Tokens:
    """Words lose their vowels"""
    return _left(token.translate(_VOWELS) for token in tokens)


def swapped(tokens: Tokens) -> Tokens:
    """In words of four letters and more, the second and the third change places"""
    return [token[0] + token[2] + token[1] + token[3:] if len(token) >= 4 else token for token in tokens]


def reversed_words(tokens: Tokens) -> Tokens:
    """Words are written backwards"""
    return [token[::-1] for token in tokens]


def without_digits(tokens: Tokens) -> Tokens:
    """Digits are lost"""
    return _left(token.translate(_DIGITS) for token in tokens)


def cut(tokens: Tokens, share: float = 0.5) -> Tokens:
    """The second half of a sentence is lost"""
    return tokens[: max(1, round(share * len(tokens)))]


def words_swapped(tokens: Tokens) -> Tokens:
    """Neighbouring words change places"""
    pairs = (tokens[at : at + 2][::-1] for at in range(0, len(tokens), 2))
    return [token for pair in pairs for token in pair]


def shortened(tokens: Tokens, letters: float) -> Tokens:
    """As the fault `truncated`, which takes two letters away."""
    return [token[: -int(letters)] if len(token) >= 5 else token for token in tokens]


def first_lost(tokens: Tokens) -> Tokens:
    """The first token of a sentence is lost"""
    return tokens[1:]


def _left(tokens: Iterable[str]) -> Tokens:
    """Those of which something is left."""
    return [token for token in tokens if token]


def _always(change: Callable[[Tokens], Tokens], says: str, kind: str) -> TextFamily:
    return TextFamily(kind=kind, change=lambda tokens, _: change(tokens), says=lambda _: says)


def _known(kind: str) -> TextFamily:
    fault = FAULTS.known[kind]
    change: Callable[[Tokens], Tokens] = fault.change  # type: ignore[assignment]
    return _always(change, fault.summary, kind)


FAMILIES: tuple[TextFamily, ...] = (
    *map(_known, ("concatenated", "spaceless", "wrong-case", "doubled", "mojibake")),
    TextFamily(
        kind="truncated",
        change=shortened,
        says=lambda letters: f"long words cut short by {letters:g} letter{'s' if letters > 1 else ''}",
        strengths=(1.0, 2.0, 3.0),
    ),
    TextFamily(
        kind="cut",
        change=cut,
        says=lambda share: f"sentences cut to {100 * share:g}% of their tokens",
        strengths=(0.25, 0.5, 0.75),
    ),
    _always(stemmed, "words without their endings", "stemmed"),
    _always(without_vowels, "words without vowels", "without-vowels"),
    _always(swapped, "neighbouring letters swapped", "letters-swapped"),
    _always(words_swapped, "neighbouring words swapped", "words-swapped"),
    _always(reversed_words, "words written backwards", "reversed"),
    _always(without_digits, "digits lost", "without-digits"),
    _always(first_lost, "first tokens lost", "first-lost"),
)
