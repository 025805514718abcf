"""Which known fault explains how two sets of texts differ?

A hypothesis is a fault. Every sample falls into a shape: how many parts a word has, whether they are known words,
its case, its encoding; where a sentence has unknown words, and whether words repeat. The suspicious group's shapes are
compared with a mixture of the healthy group's and of what the fault makes of them (maximum likelihood in the share).
Everything here reads samples only, so it costs no privacy.
"""

import collections
import dataclasses
import itertools
import math
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedlens.media.faults import Fault
from fedlens.media.text import wordings
from fedlens.media.text.faults import FAULTS
from fedlens.media.text.samples import COUNTED, Texts, Word
from fedlens.media.text.wordings import TESTED
from fedlens.models.words import SPELLING_END, Vocabulary, spelled, unspelled
from fedlens.report import ranking
from fedlens.report.values import TableRow

# What a finding needs. Two models of the same data differ by their noise, so that no test of equality can decide.
# Chosen on public text, the docstrings of Python's standard library. Of words: 42 ordered pairs of seven private models
# without a fault, the demo's, of which the best explained at most 36%, and 0.008 nats. Of sentences: 18 pairs of
# noisy n-gram models, 19% and 0.004 nats.
NAMED = 0.4  # share of the divergence that is explained
MATERIAL = {"spelling": 0.004, "words": 0.02}  # share of the samples that are faulty, and that can be seen to be
GAIN = {"spelling": 0.012, "words": 0.008}  # nats a sample
SIGNIFICANT = 0.05
SHARES = (0.005, 0.01, 0.02, 0.03, 0.05, 0.07, 0.1, 0.15, 0.2, 0.3, 0.5, 0.7, 1.0)  # on which faults are planted
STEPS = 500  # of expectation and maximisation
# Mass of the healthy group's shapes that is spread over all shapes: what noise may well make out of nothing.
NOISE = 2e-3

# The sentences on which faults of spelling are tried are made up from public numbers.
MADE_UP, LENGTH = 3_000, 10  # sentences, and words in each
UNKNOWN = 0.05  # share of words that are the healthy group's own unknown ones
FOREIGN = 0.005  # share of words that are not ASCII, or nothing would show what happens to those
ACCENTED = ("café", "naïve", "“", "”", "it’s", "don’t", "–", "résumé", "über", "señor", "façade", "…", "£", "déjà")
TRIED = 4_000  # faulty words
GARBLED = 5  # one letter in so many is wrong where a noisy model spells

Shape = tuple[Any, ...]
Counts = collections.Counter[Shape]
# Shapes of both groups, those that each fault makes (several counts; None if it fails), and the excess of its trace.
View = tuple[Counts, Counts, dict[str, list[Counts] | None], dict[str, float]]


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Comparison:
    """The shapes of a suspicious group, of a healthy one, and of what each fault makes of the latter, as shares."""

    kind: str  # of the texts
    left: np.ndarray
    right: np.ndarray
    made: dict[str, list[np.ndarray] | None]  # None: it failed; nothing: no sample can show it
    summaries: dict[str, str]
    excess: dict[str, float]  # how much more of the left group bears a fault's trace, where it leaves one
    chance: float  # about what it makes of a divergence of so many samples: less than that explains nothing
    apart: float  # total variation distance
    p_value: float

    @classmethod
    def of(cls, left: Texts, right: Texts, kinds: Iterable[str] = tuple(FAULTS.known)) -> "Comparison":
        alike = [(texts.kind, texts.tokenizer, texts.vocabulary, texts.sequences.shape[1]) for texts in (left, right)]
        if alike[0] != alike[1]:
            raise ValueError("Expected texts of one kind, tokenizer and vocabulary, in rows of one width, to compare.")
        faults = {kind: FAULTS.named(kind) for kind in dict.fromkeys(kinds)}
        view = _spelling_view if left.kind == "spelling" else _sentence_view
        one, other, made, excess = view(left, right, faults)
        every = [one, other, *(part for parts in made.values() for part in parts or ())]
        shapes = sorted({shape for part in every for shape in part})
        apart, p_value = shape_test(one, other)
        return cls(
            kind=left.kind,
            left=_shares(one, shapes),
            right=_shares(other, shapes),
            made={kind: None if parts is None else [_shares(p, shapes) for p in parts] for kind, parts in made.items()},
            summaries={kind: fault.summary for kind, fault in faults.items()},
            excess=excess,
            chance=len({*one, *other}) / (2 * min(one.total(), other.total())),
            apart=apart,
            p_value=p_value,
        )

    def ranked(self) -> tuple[TableRow, ...]:
        """All hypotheses, the closest first; "none of these" competes like any other.

        A distance is the Kullback-Leibler divergence of shapes, with what chance makes of it added; a score the share
        of it that is explained; `affected` the share of samples that are faulty.
        """
        rows = [self._none(self.left), *(self._row(kind, self.left) for kind in self.made)]
        return ranking.in_order(rows, lambda row: self._enough(row, self.left) and self.p_value <= SIGNIFICANT)

    def missed(self) -> tuple[TableRow, ...]:
        """For each fault, the smallest share of the left group's samples that must carry it to be named, in percent.

        Planted on shapes, so that it costs nothing; None where no share suffices. Another fault may explain a rare
        one's trace still better, so this is the least that is needed.
        """
        rows = []
        for kind, parts in self.made.items():
            if parts is None:
                continue
            planted = ((share, (1 - share) * self.left + share * parts[0]) for share in SHARES if parts)
            least = next((share for share, left in planted if self._enough(self._row(kind, left), left, share)), None)
            rows.append({"kind": kind, "summary": self.summaries[kind], "percent": least and round(100 * least, 1)})
        return tuple(rows)

    def _none(self, left: np.ndarray) -> TableRow:
        return ranking.none_of_these(_mixture(left, self.right, [])[0] + self.chance, affected=0.0)

    def _row(self, kind: str, left: np.ndarray) -> TableRow:
        parts, nothing = self.made[kind], self._none(left)["distance"]
        far, affected = (math.inf, 0.0) if parts is None else _mixture(left, self.right, parts)
        summary, distance = self.summaries[kind], far + self.chance
        return ranking.hypothesis(kind, summary, distance, nothing, affected=round(affected, 5), needed=NAMED)

    def _enough(self, row: TableRow, left: np.ndarray, planted: float = 0.0) -> bool:
        """Misspelt faults look like any other misspelt words, so that some must be there that can be told apart."""
        return (
            row["score"] >= NAMED
            and row["affected"] >= MATERIAL[self.kind]
            and self.excess.get(row["kind"], math.inf) + planted >= MATERIAL[self.kind]
            and self._none(left)["distance"] - row["distance"] >= GAIN[self.kind]
        )


def _shares(counts: Mapping[Shape, int], shapes: Sequence[Shape]) -> np.ndarray:
    numbers = np.array([counts.get(shape, 0) for shape in shapes], float)
    shares: np.ndarray = numbers / numbers.sum()
    return shares


def _mixture(observed: np.ndarray, healthy: np.ndarray, made: Sequence[np.ndarray]) -> tuple[float, float]:
    """How far the best mixture of the healthy shapes and the faulty ones is, and the faulty ones' share in it.

    The likelihood is concave in the shares; expectation and maximisation climb it.
    """
    there = observed > 0
    goal = observed[there]
    parts = np.stack([(1 - NOISE) * healthy + NOISE / len(healthy), *made])[:, there]
    shares = np.full(len(parts), 1 / len(parts))
    for _ in range(STEPS if made else 0):
        shares *= parts @ (goal / (shares @ parts))
    far = goal @ np.log(goal / (shares @ parts))
    return max(0.0, float(far)), float(shares[1:].sum())


def _changed(fault: Fault, sentences: Sequence[list[str]]) -> list[list[str] | None]:
    """What the fault makes of a copy of each; None where it fails, or gives back what are no tokens."""
    change = fault.change
    if change is None:
        return [None] * len(sentences)
    # All in one attempt, which takes longer than most faults; one by one only if it fails somewhere.
    changed = ranking.attempted(lambda every: [change(list(tokens)) for tokens in every], sentences)
    if changed is None:
        changed = [ranking.attempted(change, list(tokens)) for tokens in sentences]
    return [tokens if _are_tokens(tokens) else None for tokens in changed]


def _are_tokens(changed: Any) -> bool:
    return isinstance(changed, list) and all(isinstance(token, str) for token in changed)


def shape_test(left: Mapping[Shape, int], right: Mapping[Shape, int], seed: int = 0) -> tuple[float, float]:
    """Total variation distance of two counts of shapes, and how often relabelled samples are as far apart."""
    shapes = sorted({*left, *right})
    one, other = (np.array([counts.get(shape, 0) for shape in shapes]) for counts in (left, right))
    drawn = np.random.default_rng(seed).multivariate_hypergeometric(one + other, one.sum(), TESTED, method="marginals")
    lefts = np.vstack([one, drawn])
    apart = np.abs(lefts / one.sum() - (one + other - lefts) / other.sum()).sum(1) / 2
    return float(apart[0]), float((apart >= apart[0] - 1e-12).mean())


# Shapes of words


class _WordShape(NamedTuple):
    spaces: int
    parts: str
    known: bool
    joined: int
    case: str
    encoding: str
    marks: tuple[bool, ...]


_TRACES: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "concatenated": ("contain a space", lambda shape: shape.spaces > 0),
    "spaceless": ("are known words run together", lambda shape: shape.joined > 1),
    "wrong-case": ("hold capital letters", lambda shape: shape.case != "lower"),
    "mojibake": ("hold letters of a wrong encoding", lambda shape: shape.encoding == "misread"),
}


@dataclasses.dataclass(frozen=True, eq=False)
class _Spelling:
    """Tells the shape of a word, given what is known."""

    vocabulary: frozenset[str]
    width: int
    marks: tuple[frozenset[Word], ...]  # what each fault makes of single known words

    def shape(self, word: Word) -> _WordShape:
        text, _ = word  # not whether it ended: private models of the same words differ most in how long words get
        return _WordShape(
            spaces=min(3, text.count(" ")),
            parts=wordings.parts_known(text, self.vocabulary),
            known=text in self.vocabulary,
            joined=_joined(text, self.vocabulary),
            case=wordings.case(text),
            encoding=wordings.encoding(text),
            marks=tuple(word in mark for mark in self.marks),
        )

    def written(self, word: str) -> Word:
        """As a model sees it: cut at the width."""
        if word.isascii():
            return word[: self.width - 1], len(word) <= self.width - 2
        if len(word) <= (self.width - 2) // 4:
            return word, True
        row = spelled(word, self.width)
        return unspelled(row), bool((row == SPELLING_END).any())

    def shapes(self, words: Mapping[Word, int]) -> Counts:
        counts: Counts = collections.Counter()
        for word, count in words.items():
            counts[self.shape(word)] += count
        return counts


def _spelling_view(left: Texts, right: Texts, faults: dict[str, Fault]) -> View:
    vocabulary, width = frozenset(right.vocabulary), right.sequences.shape[1]
    plain = _Spelling(vocabulary, width, ())
    marks = tuple(_marks(fault, right.vocabulary, plain) for fault in faults.values())
    spelling = _Spelling(vocabulary, width, marks)
    healthy = right.words
    sentences = _made_up(right.vocabulary, healthy)

    def made(fault: Fault) -> list[Counts] | None:
        changed = _changed(fault, sentences)
        if any(tokens is None for tokens in changed):
            return None
        pairs = zip(sentences, changed, strict=True)
        words = (word for before, after in pairs for word in after or () if word not in before)
        new = list(itertools.islice((word for word in words if word not in vocabulary), TRIED))
        spellings = (new, _garbled(new)) if new else ()
        return [spelling.shapes(collections.Counter(map(spelling.written, words))) for words in spellings]

    shapes = spelling.shapes(left.words), spelling.shapes(healthy)
    excess = {}
    for place, kind in enumerate(faults):
        _, borne = _TRACES.get(kind, ("", lambda shape, place=place: shape.marks[place]))
        if kind in _TRACES or marks[place]:
            excess[kind] = _share(shapes[0], borne) - _share(shapes[1], borne)
    return *shapes, {kind: made(fault) for kind, fault in faults.items()}, excess


def _share(shapes: Counts, borne: Callable[[Any], bool]) -> float:
    return sum(count for shape, count in shapes.items() if borne(shape)) / max(1, shapes.total())


def _marks(fault: Fault, vocabulary: Sequence[str], plain: _Spelling) -> frozenset[Word]:
    """Words that are known ones no longer, because of the fault."""
    alone = [[known] for known in (*vocabulary, *ACCENTED)]
    changed = (word for words in _changed(fault, alone) for word in words or ())
    return frozenset(plain.written(word) for word in changed if word not in plain.vocabulary and word not in ACCENTED)


def _made_up(vocabulary: Sequence[str], unknown: Mapping[Word, int], seed: int = 0) -> list[list[str]]:
    """Sentences of known words as often as their rank says (Zipf), with some of the unknown ones."""
    rng = np.random.default_rng(seed)
    size = MADE_UP * LENGTH
    whole = {word: count for (word, ended), count in unknown.items() if ended} or {ACCENTED[0]: 1}
    pools = (
        (vocabulary, 1 / np.arange(3.0, len(vocabulary) + 3)),
        (list(whole), np.array(list(whole.values()), float)),
        (ACCENTED, np.ones(len(ACCENTED))),
    )
    drawn = [np.array(pool, object)[rng.choice(len(pool), size, p=odds / odds.sum())] for pool, odds in pools]
    which = rng.choice(3, size, p=(1 - UNKNOWN - FOREIGN, UNKNOWN, FOREIGN))
    return np.choose(which, drawn).reshape(MADE_UP, LENGTH).tolist()


def _garbled(words: Sequence[str], seed: int = 0) -> list[str]:
    """As a noisy model spells them: some letters are wrong."""
    rng = random.Random(seed)
    letters = "".join(words).replace(" ", "")

    def garbled(word: str) -> str:
        wrong = {rng.randrange(len(word)) for _ in range(math.ceil(len(word) / GARBLED))}
        return "".join(rng.choice(letters) if i in wrong and c != " " else c for i, c in enumerate(word))

    return [garbled(word) if word.strip(" ") else word for word in words]


def _joined(word: str, vocabulary: frozenset[str]) -> int:
    """How many known words of three letters or more lie side by side and make up most of it: 0, 2 or 3 (or more)."""
    if " " in word or len(word) < 6:
        return 0
    best = [(0, 0)] * (len(word) + 1)  # (letters covered, minus words) up to each letter
    for end in range(1, len(word) + 1):
        best[end] = best[end - 1]
        for start in range(max(0, end - 14), end - 2):
            if word[start:end] in vocabulary:
                best[end] = max(best[end], (best[start][0] + end - start, best[start][1] - 1))
    covered, parts = best[-1][0], -best[-1][1]
    return min(3, parts) if parts > 1 and covered >= 0.75 * len(word) else 0


def traced(kind: str, texts: Texts) -> tuple[str, Callable[[Word], bool]]:
    """How the trace of a fault reads in a sentence, and which words bear it."""
    plain = _Spelling(frozenset(texts.vocabulary), texts.sequences.shape[1], ())
    if kind in _TRACES:
        trace, borne = _TRACES[kind]
        return trace, lambda word: borne(plain.shape(word))
    trace = "are known words without their last letters" if kind == "truncated" else "are what it makes of known words"
    return trace, _marks(FAULTS.named(kind), texts.vocabulary, plain).__contains__


# Shapes of sentences


def _sentence_view(left: Texts, right: Texts, faults: dict[str, Fault]) -> View:
    vocabulary = Vocabulary(words=right.vocabulary, provenance="")
    width, unknown = right.sequences.shape[1], vocabulary.unknown
    healthy = _numbers(right)
    stranger = "\ue000" * 6  # stays unknown, whatever is done to it
    names = (*right.vocabulary, stranger)

    def made(fault: Fault) -> list[Counts] | None:
        changed = _changed(fault, [[names[number] for number in row] for row in healthy])
        if any(tokens is None for tokens in changed):
            return None
        rows = [[vocabulary.number(token) for token in tokens or ()][: width - 1] for tokens in changed]
        return [] if rows == healthy else [collections.Counter(sentence_shape(row, unknown) for row in rows)]

    one, other = (
        collections.Counter(sentence_shape(row, unknown) for row in rows) for rows in (_numbers(left), healthy)
    )
    return one, other, {kind: made(fault) for kind, fault in faults.items()}, {}


def _numbers(texts: Texts) -> list[list[int]]:
    rows = texts.rows[:COUNTED]
    return [row[there].tolist() for row, there in zip(rows, wordings.places(texts)[:COUNTED], strict=True)]


def sentence_shape(row: Sequence[int], unknown: int) -> Shape:
    """Unknown at the first and the second position, how much of the rest is, how much repeats; very short ones."""
    strange = [number == unknown for number in row]
    rest = sum(strange[2:]) / max(1, len(row) - 2)
    again = sum(one == other for one, other in itertools.pairwise(row)) / max(1, len(row) - 1)
    return (
        any(strange[:1]),
        any(strange[1:2]),
        int(rest > 0) + int(rest > 0.25) + int(rest > 0.6),
        int(again > 0) + int(again > 0.3),
        min(3, len(row)),
    )
