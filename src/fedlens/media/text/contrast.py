"""Two sets of DP texts in, one report out: do they differ, how, and which known fault explains it?

Everything here reads samples only, so it costs no privacy.
"""

import collections
import functools
import itertools
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from fedlens.media.text import hypotheses, wordings
from fedlens.media.text.exhibits import Sentences, Words
from fedlens.media.text.faults import FAULTS
from fedlens.media.text.samples import COUNTED, Texts, Word, jointly
from fedlens.report import comparison, ranking
from fedlens.report.charts import Chart
from fedlens.report.comparison import Null, by_place
from fedlens.report.exhibits import Exhibit
from fedlens.report.report import Finding, Report
from fedlens.report.values import TableRow

SHOWN_WORDS = 20
TOP = 10  # words that a finding speaks of
POSITIONS = 12
DIGITS = 5
GARBAGE = 0.2  # share of letters that are no text; of bytes drawn at random it is most of them
ENDING = 0.5  # share of words that a trained model brings to an end
COMMON = 0.3  # share of words from the most frequent tenth of a vocabulary: drawn at random 0.1, in English 0.8
COLLAPSED = 0.5  # share of samples that are one and the same
_number = functools.partial(comparison.number, digits=DIGITS)


def contrast(
    left: Texts,
    right: Texts | None = None,
    *,
    kinds: Sequence[str] = (),
    warnings: tuple[str, ...] = (),
    null: Null | None = None,
    **about: Any,
) -> Report:
    """`left` is the suspicious group, `right` the healthy one; with one group alone, a sanity check (T1).

    `kinds` are further hypotheses (package.module:function). A `null` says how far apart two models are that differ by
    no cause. What else is known `about` the report, `comparison.compared` says.
    """
    groups: tuple[Texts, ...] = (left,) if right is None else (left, right)
    failures = comparison.failures_of(groups, _failure)
    diverged = any(map(_diverged, groups))
    shapes = None if right is None or diverged else hypotheses.Comparison.of(left, right, (*FAULTS.known, *kinds))
    rows = ranking.named_where(shapes.ranked(), lambda _: not failures) if shapes else ()
    leaves = _leaves(rows, null)
    if leaves is not None:
        rows = ranking.named_where(rows, lambda _: False)
    words = wordings.table(groups, SHOWN_WORDS) if left.kind == "spelling" else []
    shown: Exhibit = Words.of(groups, words) if left.kind == "spelling" else Sentences.of(groups)
    measured = _word_numbers if left.kind == "spelling" else _sentence_numbers
    return comparison.compared(
        groups,
        guarantee=jointly(groups),
        findings=tuple(_finding(row, rows, groups, words) for row in rows if row["named"]),
        hypotheses=rows,
        missed=shapes.missed if shapes else tuple,
        failures=failures,
        exhibits=(shown,),
        numbers=(*measured(groups), *([_apart(shapes)] if shapes else [])),
        charts=_charts(groups),
        warnings=(*warnings, *failures, *_collapsed(groups)),
        null=null,
        alike=shapes is not None and shapes.p_value > hypotheses.SIGNIFICANT,
        leaves=leaves,
        **about,
    )


# What explains it


def _leaves(rows: Sequence[TableRow], null: Null | None) -> float | None:
    """Which share of the difference the fault that would be named leaves, if that is too much: most of it."""
    best = next((row for row in rows if row["named"]), None)
    if best is None:
        return None
    nothing = next(row["distance"] for row in rows if row["kind"] == ranking.NONE)
    return None if comparison.small(best["distance"], best["score"], null, nothing / 2) else 1 - best["score"]


def _finding(
    best: TableRow, rows: Sequence[TableRow], groups: Sequence[Texts], words: Sequence[Sequence[TableRow]]
) -> Finding:
    seen = _seen_in_words(best["kind"], groups, words[0]) if words else _seen_in_sentences(best["kind"], groups)
    others = (row for row in rows if row is not best and row["kind"] != ranking.NONE)
    second = next((row for row in others if row["score"] >= 0.01), None)
    affected = f", about {_percent(best['affected'])} of the {'words' if words else 'sentences'} affected"
    return comparison.finding(best, seen, second, affected)


def _seen_in_words(kind: str, groups: Sequence[Texts], likeliest: Sequence[TableRow]) -> str:
    trace, bears = hypotheses.traced(kind, groups[0])
    top = likeliest[:TOP]
    hits = sum(bears((row["word"], True)) for row in top)
    left, right = (_share(*_counted(group.words, bears)) for group in groups)
    if hits > 1:
        return f"{hits} of the top {len(top)} words {trace} ({_percent(left)} of all words, against {_percent(right)})"
    return f"{_percent(left)} of the words {trace}, against {_percent(right)}"


def _seen_in_sentences(kind: str, groups: Sequence[Texts]) -> str:
    if kind == "doubled":
        left, right = map(wordings.repeated, groups)
        return f"{_percent(left)} of neighbours are the same word, against {_percent(right)}"
    place, (left, right) = _jump(groups)
    return f"{_percent(left)} of the words at position {place} are unknown, against {_percent(right)}"


def _percent(share: float) -> str:
    """
    >>> _percent(0.101), _percent(0.0123), _percent(0.00042), _percent(0)
    ('10%', '1.2%', '0.04%', '0%')
    """
    digits = 0 if share >= 0.0995 or not share else 1 if share >= 0.00995 else 2
    return f"{share:.{digits}%}"


# What differs


def _word_numbers(groups: Sequence[Texts]) -> list[TableRow]:
    counts = [group.words for group in groups]
    known = frozenset(groups[0].vocabulary)
    asked: dict[str, tuple[Callable[[Word], bool], str]] = {
        "words with a space": (lambda word: " " in word[0], "share of all words drawn"),
        "known words with a space between": (lambda word: "known words" in wordings.flags(word[0], known), "the same"),
        "words with capital letters": (lambda word: "upper case" in wordings.flags(word[0], known), "the same"),
        "words beyond ASCII": (lambda word: not word[0].isascii(), "the same"),
        "known words": (lambda word: word[0] in known, "known after all"),
        "words without an end": (lambda word: not word[1], "cut at the width"),
    }
    rows = [_number("different words", f"among {COUNTED:,} at most", map(len, counts))]
    rows += [_compared_share(name, note, [_counted(c, of) for c in counts]) for name, (of, note) in asked.items()]
    letters = (sum(len(word) * n for (word, _), n in c.items()) / c.total() for c in counts)
    return [*rows, _number("mean length", "letters", letters)]


def _sentence_numbers(groups: Sequence[Texts]) -> list[TableRow]:
    hits, totals = zip(*(wordings.unknown_by_position(group, POSITIONS) for group in groups), strict=True)
    rows = [_number("unknown words", "share of all words drawn", map(wordings.unknown_rate, groups))]
    first = [(int(h[0]), int(n[0])) for h, n in zip(hits, totals, strict=True)]
    rows.append(_compared_share("unknown at position 1", "share of first words", first))
    if len(groups) > 1:
        place, _ = _jump(groups)
        there = [(int(h[place - 1]), int(n[place - 1])) for h, n in zip(hits, totals, strict=True)]
        rows.append(_compared_share(f"largest jump: position {place}", "share unknown there", there))
    repeated = map(wordings.repeated, groups)
    rows.append(_number("repeated neighbours", "share of neighbours that are the same word", repeated))
    rows.append(_number("mean length", "words", (wordings.lengths(group).mean() for group in groups)))
    return rows


def _jump(groups: Sequence[Texts]) -> tuple[int, tuple[float, float]]:
    """The position at which unknown words have become most surprisingly frequent, and their rate in both groups."""
    (left, n), (right, m) = (wordings.unknown_by_position(group, POSITIONS) for group in groups)
    n, m = np.maximum(n, 1), np.maximum(m, 1)
    both = (left + right) / (n + m)
    deviation = np.sqrt((both * (1 - both)).clip(1e-9) * (1 / n + 1 / m))
    place = int(np.argmax((left / n - right / m) / deviation))
    return place + 1, (float(left[place] / n[place]), float(right[place] / m[place]))


def _apart(shapes: hypotheses.Comparison) -> TableRow:
    note = f"total variation distance, 0 to 1; permutation p-value {shapes.p_value:.3f}"
    return {"name": "distance of shapes", "left": round(shapes.apart, 4), "note": note}


def _compared_share(name: str, note: str, groups: Sequence[tuple[int, int]]) -> TableRow:
    p_value = f"; permutation p-value {wordings.share_test(groups[0], groups[1]):.3f}" if len(groups) > 1 else ""
    return _number(name, note + p_value, itertools.starmap(_share, groups))


def _counted(counts: Mapping[Word, int], of: Callable[[Word], bool]) -> tuple[int, int]:
    return sum(n for word, n in counts.items() if of(word)), sum(counts.values())


def _share(hits: int, total: int) -> float:
    return hits / max(1, total)


def _charts(groups: Sequence[Texts]) -> tuple[Chart, ...]:
    if groups[0].kind == "spelling":
        counts = [group.words for group in groups]
        letters = [np.repeat([len(word) for word, _ in words], list(words.values())) for words in counts]
        return (_length_chart(letters, "letters"),)
    return (_unknown_chart(groups), _length_chart([wordings.lengths(group) for group in groups], "words"))


def _unknown_chart(groups: Sequence[Texts]) -> Chart:
    hits, totals = zip(*(wordings.unknown_by_position(group, POSITIONS) for group in groups), strict=True)
    used = max(1, *(int((n > 0).sum()) for n in totals))  # no sentence is longer
    rates = [tuple((h / np.maximum(n, 1))[:used].round(5).tolist()) for h, n in zip(hits, totals, strict=True)]
    bounds = [wordings.wilson(h[:used], n[:used]) for h, n in zip(hits, totals, strict=True)]
    jump = ""
    if len(groups) > 1:
        place, (left, right) = _jump(groups)
        jump = f" The largest jump is at position {place}: {_percent(left)} against {_percent(right)}."
    return Chart(
        title="Unknown words by position",
        lead=f"The share of words at each position that the vocabulary lacks, with 95% bands.{jump}",
        axis="position in the sentence",
        categories=tuple(map(str, range(1, used + 1))),
        bands=tuple(tuple(zip(low.round(5).tolist(), high.round(5).tolist(), strict=True)) for low, high in bounds),
        every=1,
        **by_place(rates),
    )


def _length_chart(lengths: Sequence[np.ndarray], unit: str) -> Chart:
    edges = np.arange(max(int(group.max()) for group in lengths) + 2)
    shares = [tuple((np.histogram(group, edges)[0] / len(group)).round(5).tolist()) for group in lengths]
    return Chart(
        title="Length",
        lead=f"The share of samples with each number of {unit}.",
        axis=unit,
        edges=tuple(edges.astype(float).tolist()),
        every=1,
        **by_place(shares),
    )


# What to mind


def _diverged(group: Texts) -> bool:
    return not bool(group.log_probability.isfinite().all())


def _failure(group: Texts) -> str | None:
    """Why nothing can be concluded from these samples, if so."""
    if _diverged(group):
        return f"{group.label}: the model diverged; nothing can be concluded"
    noise = _noise_in_words(group) if group.kind == "spelling" else _noise_in_sentences(group)
    return noise and (
        f"{group.label}: {noise}: with so few users, so small an epsilon or so simple a model, it has not learnt "
        "to write, and nothing can be concluded"
    )


def _noise_in_words(group: Texts) -> str | None:
    counts = group.words
    letters: collections.Counter[str] = collections.Counter()
    for (word, _), count in counts.items():
        for letter in word:
            letters[letter] += count
    garbage = sum(n for letter, n in letters.items() if letter == "\ufffd" or unicodedata.category(letter)[0] == "C")
    if garbage > GARBAGE * letters.total():
        return "most of what it wrote is no text"
    endless = {word: count for word, count in counts.items() if not word[1]}
    _, together = hypotheses.traced("spaceless", group)  # whole sentences without spaces have no end either
    if sum(endless.values()) > (1 - ENDING) * counts.total() and _share(*_counted(endless, together)) < 0.5:
        return "most words that it wrote never end, unless the spaces between them are lost"
    return None


def _noise_in_sentences(group: Texts) -> str | None:
    numbers = group.rows[wordings.places(group)]
    known = numbers[numbers < len(group.vocabulary)]
    common = (known < len(group.vocabulary) / 10).mean() if len(known) else 1.0
    return "it wrote rare words as often as common ones" if common < COMMON else None


def _collapsed(groups: Sequence[Texts]) -> tuple[str, ...]:
    most = [np.unique(group.rows, axis=0, return_counts=True)[1].max() / len(group.rows) for group in groups]
    return tuple(
        f"{group.label}: {share:.0%} of the samples are one and the same; the model has collapsed and would miss "
        "what is rare"
        for group, share in zip(groups, most, strict=True)
        if share > COLLAPSED and len(group.rows) > 1
    )
