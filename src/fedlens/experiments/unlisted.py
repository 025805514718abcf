"""Faults of text that no list of ours holds. Written down before a look at text was built, and never tuned on.

Each is a function of the right tokens of one sentence, for `data.bug.kind` (fedlens.experiments.unlisted:hyphenated).
"""

MARKS = ("&", "#", "39", ";")
FREQUENT = frozenset({"the", "a", "an", "of", "to", "and", "in", "that", "is", "it"})


def hyphenated(tokens: list[str]) -> list[str]:
    """Long words are broken in two, as at the end of a line"""
    broken = ((t[: len(t) // 2] + "-", t[len(t) // 2 :]) if len(t) >= 8 else (t,) for t in tokens)
    return [part for parts in broken for part in parts]


def misread(tokens: list[str]) -> list[str]:
    """The letters l and o are read as the digits 1 and 0"""
    return [token.replace("l", "1").replace("o", "0") for token in tokens]


def without_frequent(tokens: list[str]) -> list[str]:
    """The ten most frequent words are left out"""
    return [token for token in tokens if token not in FREQUENT]


def without_marks(tokens: list[str]) -> list[str]:
    """Punctuation is left out"""
    return [token for token in tokens if any(map(str.isalnum, token))]


def escaped(tokens: list[str]) -> list[str]:
    """An apostrophe is written as HTML does, and split up"""
    halves = (token.partition("'") for token in tokens)
    parts = ([before, *MARKS, after] if mark else [before] for before, mark, after in halves)
    return [part for some in parts for part in some if part]


def in_order(tokens: list[str]) -> list[str]:
    """The words of a sentence are sorted"""
    return sorted(tokens)


UNLISTED = tuple(
    f"{__name__}:{function.__name__}"
    for function in (hyphenated, misread, without_frequent, without_marks, escaped, in_order)
)
