"""What samples of text look like: their words, their sentences, and how often what is seen in them.

Everything here reads samples only, so it costs no privacy.
"""

import collections
import itertools
import unicodedata
from collections.abc import Sequence

import numpy as np

from fedlens.media.text.samples import Texts
from fedlens.models.words import PADDING, SPELLING_END, Vocabulary, unspelled
from fedlens.report.values import TableRow

FLOOR = 1e-4  # words that the model thinks less likely than this are not shown
TESTED = 199  # relabellings of a permutation test
Z = 1.96  # two-sided, 95%


# Words


def probable(texts: Texts) -> dict[str, float]:
    """Every word that came to an end, with its joint probability under the model, the likeliest first."""
    rows, places = np.unique(texts.rows, axis=0, return_index=True)
    chance = texts.log_probability.double().exp().cpu().numpy()[places]
    words: dict[str, float] = collections.defaultdict(float)
    for place in np.flatnonzero((rows == SPELLING_END).any(1)):
        words[unspelled(rows[place])] += float(chance[place])  # bytes that are no text may look the same
    return dict(sorted(words.items(), key=lambda pair: -pair[1]))


def flags(word: str, vocabulary: frozenset[str]) -> tuple[str, ...]:
    """What is odd about a word, in words."""
    seen = {
        "space": " " in word,
        "known words": parts_known(word, vocabulary) == "all",
        "punctuation": any(unicodedata.category(letter)[0] in "PS" for letter in word),
        "upper case": case(word) != "lower",
        "non-ASCII": not word.isascii(),
        "wrong encoding": encoding(word) == "misread",
        "no text": "\ufffd" in word or any(unicodedata.category(letter)[0] == "C" for letter in word),
    }
    return tuple(flag for flag, holds in seen.items() if holds)


def parts_known(word: str, vocabulary: frozenset[str]) -> str:
    """Whether the parts of a word that holds spaces are known: all, some or none of them; none if it has no space."""
    parts = [part in vocabulary for part in word.split(" ")]
    return "none" if len(parts) == 1 or not any(parts) else "all" if all(parts) else "some"


def case(word: str) -> str:
    upper = sum(map(str.isupper, word))
    return "lower" if not upper else "mixed" if any(map(str.islower, word)) else "upper"


def encoding(word: str) -> str:
    if word.isascii():
        return "ascii"
    try:
        return "misread" if word.encode("latin-1").decode() != word else "other"
    except UnicodeError:
        return "other"


def table(groups: Sequence[Texts], count: int = 20, floor: float = FLOOR) -> list[list[TableRow]]:
    """The likeliest words of each group, with probability, lift over the other group and flags.

    A word that the other group never wrote is new there: its probability is then below 3 / samples (95%), which makes
    the lift a lower bound.
    """
    words = [probable(group) for group in groups]
    tables = []
    for group, own, other, other_group in zip(groups, words, reversed(words), reversed(groups), strict=True):
        vocabulary = frozenset(group.vocabulary)
        rows = []
        # Known words, which a model may write as well, say nothing.
        unknown = ((word, chance) for word, chance in own.items() if word and word not in vocabulary)
        for word, chance in itertools.islice(unknown, count):
            if not chance >= floor:  # nor one that is no number
                break
            row: TableRow = {"word": word, "probability": chance, "flags": list(flags(word, vocabulary))}
            if len(groups) > 1:
                row["lift"] = chance / other.get(word, 3 / len(other_group.sequences))
                row["new"] = word not in other
            rows.append(row)
        tables.append(rows)
    return tables


def listed(texts: Texts, count: int = 1000, floor: float = FLOOR) -> str:
    """As a text file: the likeliest words with their probabilities, or sentences with their gaps."""
    if texts.kind == "spelling":
        rows = table([texts], count, floor)[0]
        return "".join(f"{row['probability']:.6f}\t{_written(row['word'])}\n" for row in rows)
    return "".join(
        " ".join(_written(word or "<unknown>") for word in spoken) + "\n" for spoken in sentences(texts, count)
    )


def _written(word: str) -> str:
    """Generated words may hold line ends and control characters, which would break a line of the list."""
    return "".join(letter if letter.isprintable() else "\ufffd" for letter in word)


# Sentences


def places(texts: Texts) -> np.ndarray:
    """Which symbols are words, known or not, [n, width]: neither START nor END nor anything after it."""
    rows, words = texts.rows, len(texts.vocabulary)
    spoken: np.ndarray = (rows != PADDING) & (rows <= words) & ~np.logical_or.accumulate(rows == words + 2, 1)
    return spoken


def sentences(texts: Texts, count: int) -> list[list[str | None]]:
    """The first of them, word by word; None is an unknown one."""
    vocabulary = Vocabulary(words=texts.vocabulary, provenance="")
    return [vocabulary.named(row) for row in texts.rows[:count]]


def lengths(texts: Texts) -> np.ndarray:
    words: np.ndarray = places(texts).sum(1)
    return words


def unknown_by_position(texts: Texts, positions: int) -> tuple[np.ndarray, np.ndarray]:
    """How many sentences have an unknown word at each position, and how many have a word there."""
    words = places(texts)
    unknown = words & (texts.rows == len(texts.vocabulary))
    position = np.cumsum(words, 1)
    at = [words & (position == place) for place in range(1, positions + 1)]
    return np.array([(unknown & here).sum() for here in at]), np.array([here.sum() for here in at])


def unknown_rate(texts: Texts) -> float:
    words = places(texts)
    return float((words & (texts.rows == len(texts.vocabulary))).sum() / max(1, words.sum()))


def repeated(texts: Texts) -> float:
    """The share of neighbours in a sentence that are the same word."""
    words, rows = places(texts), texts.rows
    pairs = words[:, 1:] & words[:, :-1]
    return float((pairs & (rows[:, 1:] == rows[:, :-1])).sum() / max(1, pairs.sum()))


def wilson(hits: np.ndarray, totals: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The band of a share that holds it in 95 of 100 cases (Wilson 1927).

    >>> [bound.round(3).tolist() for bound in wilson(np.array([0, 5]), np.array([10, 10]))]
    [[0.0, 0.237], [0.278, 0.763]]
    """
    n = np.maximum(totals, 1)
    share = hits / n
    centre, reach = share + Z**2 / (2 * n), Z * np.sqrt(share * (1 - share) / n + Z**2 / (4 * n**2))
    low, high = (centre - reach) / (1 + Z**2 / n), (centre + reach) / (1 + Z**2 / n)
    return np.where(totals, low.clip(0), 0.0), np.where(totals, high.clip(0, 1), 1.0)


# Tests


def share_test(left: tuple[int, int], right: tuple[int, int], seed: int = 0) -> float:
    """The p-value of two shares, (hits, of so many) each: how often relabelled samples differ as much."""
    (hits, n), (other, m) = left, right
    if not (n and m):
        return 1.0
    drawn = np.random.default_rng(seed).hypergeometric(hits + other, n + m - hits - other, n, TESTED)
    apart = np.abs(np.append(hits, drawn) / n - (hits + other - np.append(hits, drawn)) / m)
    return float((apart >= apart[0] - 1e-12).mean())
