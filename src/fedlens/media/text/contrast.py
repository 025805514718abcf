"""Two sets of DP texts in, one report out: do they differ, how, and which known misprint explains it?

Everything here reads samples only, so it costs no privacy.
"""

import collections
import math
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from fedlens.media.text import hypotheses as text_hypotheses
from fedlens.media.text import wordings
from fedlens.media.text.faults import MISPRINTS
from fedlens.media.text.samples import COUNTED, Texts, Word, jointly
from fedlens.report.report import Chart, Finding, Report

SHOWN_WORDS = 20
TOP = 10  # words that a finding speaks of
SHOWN_SENTENCES = 10
POSITIONS = 12
GARBAGE = 0.2  # share of letters that are no text; of bytes drawn at random it is most of them
ENDING = 0.5  # share of words that a trained model brings to an end
COMMON = 0.3  # share of words from the most frequent tenth of a vocabulary: drawn at random 0.1, in English 0.8
COLLAPSED = 0.5  # share of samples that are one and the same
Row = dict[str, Any]


def contrast_texts(
    left: Texts,
    right: Texts | None = None,
    *,
    title: str = "fedlens report",
    kinds: Sequence[str] = (),
    before: Sequence[Finding] = (),
    warnings: tuple[str, ...] = (),
    provenance: dict[str, str] | None = None,
) -> Report:
    """`left` is the suspicious side, `right` the healthy one; with one side alone, a sanity check (T1).

    `kinds` are further hypotheses (package.module:function), `before` the findings of an earlier report: those that are
    gone are reported as resolved.
    """
    sides: tuple[Texts, ...] = (left,) if right is None else (left, right)
    failures = tuple(told for side in sides if (told := _failure(side)))
    compared = None if right is None else text_hypotheses.Comparison.of(left, right, (*MISPRINTS, *kinds))
    rows = tuple(row | {"named": row["named"] and not failures} for row in compared.ranked()) if compared else ()
    words = wordings.table(sides, SHOWN_WORDS) if left.kind == "spelling" else []
    found = tuple(_finding(row, rows, sides, words) for row in rows if row["named"])
    measured = _word_numbers if left.kind == "spelling" else _sentence_numbers
    return Report(
        title=title,
        findings=found,
        resolved=() if failures or not rows else tuple(f for f in before if f.kind not in {g.kind for g in found}),
        guarantee=jointly(sides),
        runs=tuple(_run(side) for side in sides),
        words=tuple({"label": side.label, "rows": rows} for side, rows in zip(sides, words, strict=False)),
        sentences=tuple(map(_examples, sides)) if left.kind == "words" else (),
        numbers=tuple({"right": None} | row for row in (*measured(sides), *_apart(compared))),
        charts=_charts(sides),
        hypotheses=rows,
        coverage=compared.missed() if compared and not (found or failures) else (),
        warnings=(*warnings, *failures, *_collapsed(sides), *_left_out(rows)),
        provenance=provenance or {},
    )


# What explains it


def _finding(best: Row, rows: Sequence[Row], sides: Sequence[Texts], words: Sequence[Sequence[Row]]) -> Finding:
    seen = _seen_in_words(best["kind"], sides, words[0]) if words else _seen_in_sentences(best["kind"], sides)
    second = next((row for row in rows if row is not best and row["kind"] != "none" and row["score"] >= 0.01), None)
    runner_up = f" (runner-up: {second['summary']}, {second['score']:.0%})" if second else ""
    explained = f"which explains {best['score']:.0%} of the difference"
    affected = f"about {_percent(best['affected'])} of the {'words' if words else 'sentences'} affected"
    return Finding(
        kind=best["kind"],
        summary=f"{seen}: looks like {best['summary']}, {explained}, {affected}{runner_up}",
        score=best["score"],
        severity="high" if best["score"] > 0.7 else "medium",
    )


def _seen_in_words(kind: str, sides: Sequence[Texts], likeliest: Sequence[Row]) -> str:
    told, bears = text_hypotheses.traced(kind, sides[0])
    top = likeliest[:TOP]
    hits = sum(bears((row["word"], True)) for row in top)
    left, right = (_share(*_counted(side.words, bears)) for side in sides)
    if hits > 1:
        return f"{hits} of the top {len(top)} words {told} ({_percent(left)} of all words, against {_percent(right)})"
    return f"{_percent(left)} of the words {told}, against {_percent(right)}"


def _seen_in_sentences(kind: str, sides: Sequence[Texts]) -> str:
    if kind == "doubled":
        left, right = map(wordings.repeated, sides)
        return f"{_percent(left)} of neighbours are the same word, against {_percent(right)}"
    place, (left, right) = _jump(sides)
    return f"{_percent(left)} of the words at position {place} are unknown, against {_percent(right)}"


def _left_out(rows: Sequence[Row]) -> tuple[str, ...]:
    failed = (row["kind"] for row in rows if not math.isfinite(row["distance"]))
    return tuple(f"the hypothesis {kind} failed on the samples and was left out" for kind in failed)


def _percent(share: float) -> str:
    """
    >>> _percent(0.101), _percent(0.0123), _percent(0.00042), _percent(0)
    ('10%', '1.2%', '0.04%', '0%')
    """
    digits = 0 if share >= 0.0995 or not share else 1 if share >= 0.00995 else 2
    return f"{share:.{digits}%}"


# What differs


def _word_numbers(sides: Sequence[Texts]) -> list[Row]:
    counts = [side.words for side in sides]
    known = frozenset(sides[0].vocabulary)
    asked: dict[str, tuple[Callable[[Word], bool], str]] = {
        "words with a space": (lambda word: " " in word[0], "share of all words drawn"),
        "known words with a space between": (lambda word: "known words" in wordings.flags(word[0], known), "the same"),
        "words with capital letters": (lambda word: "upper case" in wordings.flags(word[0], known), "the same"),
        "words beyond ASCII": (lambda word: not word[0].isascii(), "the same"),
        "known words": (lambda word: word[0] in known, "known after all"),
        "words without an end": (lambda word: not word[1], "cut at the width"),
    }
    rows = [{"name": "different words", "note": f"among {COUNTED:,} at most"} | _each(counts, len)]
    rows += [_compared_share(name, note, [_counted(c, of) for c in counts]) for name, (of, note) in asked.items()]
    letters = _each(counts, lambda c: sum(len(word) * n for (word, _), n in c.items()) / c.total())
    return [*rows, {"name": "mean length", "note": "letters"} | letters]


def _sentence_numbers(sides: Sequence[Texts]) -> list[Row]:
    hits, totals = zip(*(wordings.unknown_by_position(side, POSITIONS) for side in sides), strict=True)
    rows = [{"name": "unknown words", "note": "share of all words drawn"} | _each(sides, wordings.unknown_rate)]
    first = [(int(h[0]), int(n[0])) for h, n in zip(hits, totals, strict=True)]
    rows.append(_compared_share("unknown at position 1", "share of first words", first))
    if len(sides) > 1:
        place, _ = _jump(sides)
        there = [(int(h[place - 1]), int(n[place - 1])) for h, n in zip(hits, totals, strict=True)]
        rows.append(_compared_share(f"largest jump: position {place}", "share unknown there", there))
    rows.append(
        {"name": "repeated neighbours", "note": "share of neighbours that are the same word"}
        | _each(sides, wordings.repeated)
    )
    rows.append({"name": "mean length", "note": "words"} | _each(sides, lambda side: wordings.lengths(side).mean()))
    return rows


def _jump(sides: Sequence[Texts]) -> tuple[int, tuple[float, float]]:
    """The position at which unknown words have become most surprisingly frequent, and their rate on both sides."""
    (left, n), (right, m) = (wordings.unknown_by_position(side, POSITIONS) for side in sides)
    n, m = np.maximum(n, 1), np.maximum(m, 1)
    both = (left + right) / (n + m)
    deviation = np.sqrt((both * (1 - both)).clip(1e-9) * (1 / n + 1 / m))
    place = int(np.argmax((left / n - right / m) / deviation))
    return place + 1, (float(left[place] / n[place]), float(right[place] / m[place]))


def _apart(compared: text_hypotheses.Comparison | None) -> list[Row]:
    if compared is None:
        return []
    note = f"total variation distance, 0 to 1; permutation p-value {compared.p_value:.3f}"
    return [{"name": "distance of shapes", "left": round(compared.apart, 4), "note": note}]


def _each(sides: Sequence[Any], of: Callable[[Any], float]) -> Row:
    return {key: round(of(side), 5) for key, side in zip(("left", "right"), sides, strict=False)}


def _compared_share(name: str, note: str, sides: Sequence[tuple[int, int]]) -> Row:
    p_value = f"; permutation p-value {wordings.share_test(sides[0], sides[1]):.3f}" if len(sides) > 1 else ""
    return {"name": name, "note": note + p_value} | _each(sides, lambda side: _share(*side))


def _counted(counts: Mapping[Word, int], of: Callable[[Word], bool]) -> tuple[int, int]:
    return sum(n for word, n in counts.items() if of(word)), sum(counts.values())


def _share(hits: int, total: int) -> float:
    return hits / max(1, total)


def _charts(sides: Sequence[Texts]) -> tuple[Chart, ...]:
    if sides[0].kind == "spelling":
        lengths = [_lengths_of_words(side) for side in sides]
        return (_length_chart(lengths, "letters"),)
    return (_unknown_chart(sides), _length_chart([wordings.lengths(side) for side in sides], "words"))


def _unknown_chart(sides: Sequence[Texts]) -> Chart:
    hits, totals = zip(*(wordings.unknown_by_position(side, POSITIONS) for side in sides), strict=True)
    used = max(1, *(int((n > 0).sum()) for n in totals))  # no sentence is longer
    rates = [tuple((h / np.maximum(n, 1))[:used].round(5).tolist()) for h, n in zip(hits, totals, strict=True)]
    bounds = [wordings.wilson(h[:used], n[:used]) for h, n in zip(hits, totals, strict=True)]
    told = ""
    if len(sides) > 1:
        place, (left, right) = _jump(sides)
        told = f" The largest jump is at position {place}: {_percent(left)} against {_percent(right)}."
    return Chart(
        title="Unknown words by position",
        lead=f"The share of words at each position that the vocabulary lacks, with 95% bands.{told}",
        axis="position in the sentence",
        categories=tuple(map(str, range(1, used + 1))),
        bands=tuple(tuple(zip(low.round(5).tolist(), high.round(5).tolist(), strict=True)) for low, high in bounds),
        **dict(zip(("left", "right"), rates, strict=False)),
    )


def _length_chart(lengths: Sequence[np.ndarray], unit: str) -> Chart:
    edges = np.arange(max(int(side.max()) for side in lengths) + 2)
    shares = [tuple((np.histogram(side, edges)[0] / len(side)).round(5).tolist()) for side in lengths]
    return Chart(
        title="Length",
        lead=f"The share of samples with each number of {unit}.",
        axis=unit,
        edges=tuple(edges.astype(float).tolist()),
        **dict(zip(("left", "right"), shares, strict=False)),
    )


def _lengths_of_words(side: Texts) -> np.ndarray:
    counts = side.words
    return np.repeat([len(word) for word, _ in counts], list(counts.values()))


def _examples(side: Texts) -> Row:
    some = wordings.sentences(side, SHOWN_SENTENCES)
    return {
        "label": side.label,
        "examples": [[{"text": word or "", "unknown": word is None} for word in words] for words in some],
    }


# What to mind


def _failure(side: Texts) -> str | None:
    """Why nothing can be concluded from these samples, if so."""
    if not side.log_probability.isfinite().all():
        return f"{side.label}: the model diverged; nothing can be concluded"
    told = _noise_in_words(side) if side.kind == "spelling" else _noise_in_sentences(side)
    return told and (
        f"{side.label}: {told}: with so few users, so small an epsilon or so simple a model, it has not learnt "
        "to write, and nothing can be concluded"
    )


def _noise_in_words(side: Texts) -> str | None:
    counts = side.words
    letters: collections.Counter[str] = collections.Counter()
    for (word, _), count in counts.items():
        for letter in word:
            letters[letter] += count
    garbage = sum(n for letter, n in letters.items() if letter == "\ufffd" or unicodedata.category(letter)[0] == "C")
    if garbage > GARBAGE * letters.total():
        return "most of what it wrote is no text"
    endless = {word: count for word, count in counts.items() if not word[1]}
    _, together = text_hypotheses.traced("spaceless", side)  # whole sentences without spaces have no end either
    if sum(endless.values()) > (1 - ENDING) * counts.total() and _share(*_counted(endless, together)) < 0.5:
        return "most words that it wrote never end, unless the spaces between them are lost"
    return None


def _noise_in_sentences(side: Texts) -> str | None:
    numbers = side.rows[wordings.places(side)]
    known = numbers[numbers < len(side.vocabulary)]
    common = (known < len(side.vocabulary) / 10).mean() if len(known) else 1.0
    return "it wrote rare words as often as common ones" if common < COMMON else None


def _collapsed(sides: Sequence[Texts]) -> tuple[str, ...]:
    most = [np.unique(side.rows, axis=0, return_counts=True)[1].max() / len(side.rows) for side in sides]
    return tuple(
        f"{side.label}: {share:.0%} of the samples are one and the same; the model has collapsed and would miss "
        "what is rare"
        for side, share in zip(sides, most, strict=True)
        if share > COLLAPSED and len(side.rows) > 1
    )


def _run(side: Texts) -> dict[str, object]:
    return {
        "run": side.spending.account.run,
        "label": side.label,
        "releases": sum(plan.releases for plan in side.spending.plans),
        "guarantee": side.guarantee.headline,
    }
