"""One look at text or two of them in, one report out: do they differ, in what, and which fault explains it?

Everything here reads released numbers and public text only, so it costs no privacy.
"""

import dataclasses
import functools
from collections.abc import Mapping, Sequence

import numpy as np

from fedlens.media.text.differences import Z, in_words
from fedlens.media.text.looks import TextLook
from fedlens.media.text.samples import jointly
from fedlens.media.text.tracing import WITHIN, percent, sizes_shown, text_directions, text_traces
from fedlens.models.looks.explaining import Candidate, Explanation, Trace, explained
from fedlens.models.looks.sentences import CLASSES, HASHED, TEXT_BLOCKS
from fedlens.models.looks.two_sample import LEVEL, Group, Tested, compared, power
from fedlens.models.words import Vocabulary
from fedlens.report import comparison as groups_compared
from fedlens.report.charts import Chart
from fedlens.report.comparison import by_place
from fedlens.report.report import DIFFERENT, FOUND, INCONCLUSIVE, NOTHING, Finding, Report, Verdict
from fedlens.report.values import TableRow

TOLD = 3  # blocks in a headline
SURE = 0.95  # how likely what is not said to be missed is found
CHARTED = {"length": 1, "words": 1, "unknown": 0, "first": 0, "last": 0, "letters": 1}  # from which number on
PIECES = {
    "length": "tokens in a sentence",
    "words": "characters in a word",
    "unknown": "unknown words: of all tokens, at the first six places, at the last",
    "first": f"first tokens: {', '.join(CLASSES)}",
    "last": f"last tokens: {', '.join(CLASSES)}",
    "letters": "letters",
}
Sentences = Sequence[list[str]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Seen:
    """Two looks, and what explains their difference."""

    looks: tuple[TextLook, TextLook]
    comparison: Tested
    traces: tuple[Trace, ...]

    @classmethod
    def of(cls, left: TextLook, right: TextLook, public: Sentences) -> "Seen":
        """`public` are the tokens of sentences that everybody may see, on which faults are tried; none: none is."""
        alone = compared(left.release, right.release)  # which says how many sentences units show
        if not public:
            return cls(looks=(left, right), comparison=alone, traces=())
        known = Vocabulary(words=left.vocabulary, provenance="")
        traces = tuple(text_traces(left.release.psi, public, known, sizes_shown(alone)))
        comparison = compared(left.release, right.release, text_directions(traces))
        return cls(looks=(left, right), comparison=comparison, traces=traces)

    @functools.cached_property
    def explanation(self) -> Explanation:
        return explained(self.comparison, self.traces)

    @property
    def named(self) -> Candidate | None:
        """Only where the groups differ at all."""
        return self.explanation.named if self.comparison.differ else None

    @functools.cached_property
    def sentences(self) -> list[str]:
        """The blocks that differ, in words, the clearest first."""
        psi, rows = self.looks[0].release.psi, self.comparison.differences
        return [in_words(psi, self.comparison, row) for row in rows if row.adjusted <= LEVEL]

    @functools.cached_property
    def missed(self) -> tuple[TableRow, ...]:
        """For each fault, the smallest share of everybody's sentences that is found with 95% power; by formula."""
        return tuple(row for trace in self.traces for row in _missed(trace, self.comparison))

    @property
    def verdict(self) -> Verdict:
        if fit := self.named:
            return Verdict(kind=FOUND, summary=f"{self.in_group(fit)} ({_interval(fit)})")
        seen = "; ".join(self.sentences[:TOLD]) or "in the directions of known faults taken together"
        if self.comparison.differ:
            return Verdict(kind=DIFFERENT, summary=f"p = {self.comparison.p:.2g}. {seen}. {self._guess}".strip())
        blind = [row["summary"] for row in self.missed if row["percent"] is None]
        if blind or not self.traces:
            what = f"{len(blind)} of {len(self.missed)} faults would be missed in every sentence" if blind else ""
            what = what or "no public text says what would be missed"
            return Verdict(kind=INCONCLUSIVE, summary=f"{what}; {self._guess} More units or epsilon would settle it.")
        worst = max(self.missed, key=lambda row: row["percent"])
        text = f"a fault in {worst['percent']:.2g}% of the sentences would have been found, whichever we know"
        return Verdict(kind=NOTHING, summary=f"{text} (the hardest: {worst['summary']})")

    @property
    def _guess(self) -> str:
        if not self.traces:
            return "No fault was tried."
        best, *others = self.explanation.fits[:2]
        following = f", next {others[0].weight:.0%}" if others else ""
        return f"Not claimed: {best.summary}, {best.weight:.0%}{following}."

    def in_group(self, fit: Candidate) -> str:
        return f"{fit.summary}, of {self.looks[0 if fit.share > 0 else 1].label}"

    @property
    def findings(self) -> tuple[Finding, ...]:
        if not self.comparison.differ:
            return ()
        fit, seen = self.named, "; ".join(self.sentences[:TOLD])
        kind, told = (fit.kind, f"looks like {self.in_group(fit)}: ") if fit else ("different", "different: ")
        score = fit.explains if fit else 1 - self.comparison.p
        return (Finding(kind=kind, summary=told + seen, score=round(score, 4), severity="high" if fit else "medium"),)


def looked(
    left: TextLook,
    right: TextLook | None = None,
    *,
    title: str,
    public: Sentences = (),
    warnings: tuple[str, ...] = (),
    provenance: Mapping[str, str] | None = None,
) -> Report:
    """`left` is the suspicious group, `right` the healthy one; one alone is looked over."""
    looks = (left,) if right is None else (left, right)
    seen = None if right is None else Seen.of(left, right, public)
    report = groups_compared.compared(
        looks,
        title=title,
        guarantee=jointly(looks),
        findings=seen.findings if seen else (),
        hypotheses=(),
        missed=tuple,
        failures=(),
        exhibits=(),
        numbers=_numbers(looks),
        charts=_charts(looks),
        warnings=warnings,
        provenance=provenance,
    )
    return dataclasses.replace(report, verdict=seen.verdict, coverage=seen.missed) if seen else report


def _interval(fit: Candidate) -> str:
    low, high = (end[3] for end in fit.interval)
    return f"{percent(low)} to {percent(high)} of all sentences; explains {fit.explains:.0%} of the difference"


def _missed(trace: Trace, comparison: Tested) -> list[TableRow]:
    rows = []
    for strength in dict.fromkeys(amount[0] for amount in trace.amounts):
        every = [at for at, amount in enumerate(trace.amounts) if amount[0] == strength and amount[2] == 1.0]
        least = _least(trace, every, comparison)
        whole = trace.says(trace.amounts[every[-1]]).removesuffix(", in 100% of the sentences")
        share = None if least is None else round(100 * WITHIN[least], 3)
        rows.append({"kind": trace.kind, "summary": whole, "percent": share})
    return rows


def _least(trace: Trace, every: Sequence[int], comparison: Tested) -> int | None:
    """The first that is found; power grows with the share."""
    low, high = 0, len(every)
    while low < high:
        middle = (low + high) // 2
        change = {name: rows[every[middle]] for name, rows in trace.moves.items()}
        low, high = (low, middle) if power(change, 1.0, comparison) >= SURE else (middle + 1, high)
    return low if low < len(every) else None


def _numbers(looks: Sequence[TextLook]) -> list[TableRow]:
    """All that have a name, block by block, each with its interval."""
    groups = [Group.of(look.release) for look in looks]
    psi = looks[0].release.psi
    rows = []
    for name, block in TEXT_BLOCKS.items():
        if name in (*HASHED, "pairs"):
            continue
        unit, centre = psi.unit(name), psi.centre(name)
        for at, number in enumerate(block.numbers):
            values = [(centre[at] + group.blocks[name].mean[at] * unit[at]) * number.unit for group in groups]
            errors = [Z * _error(group, name) * unit[at] * number.unit for group in groups]
            note = ", ".join(f"± {error:.2g}" for error in errors)
            label = f"{number.says}{' (%)' if number.suffix else ''}"
            rows.append(groups_compared.number(label, note, values, digits=4))
    return rows


def _error(group: Group, name: str) -> float:
    """Of each number, at most."""
    block = group.blocks[name]
    return float(np.hypot(block.noise, block.spread**0.5))


def _charts(looks: Sequence[TextLook]) -> tuple[Chart, ...]:
    return tuple(_chart(looks, name) for name in CHARTED)


def _chart(looks: Sequence[TextLook], name: str) -> Chart:
    """Shares with their bands."""
    psi, start = looks[0].release.psi, CHARTED[name]
    unit, centre = psi.unit(name)[start:], psi.centre(name)[start:]
    values, bands = [], []
    for group in (Group.of(look.release) for look in looks):
        shares = np.clip(centre + group.blocks[name].mean[start:] * unit, 0.0, 1.0)
        reach = Z * _error(group, name) * unit
        values.append(tuple(shares.round(5).tolist()))
        ends = (np.clip(shares - reach, 0, 1).round(5).tolist(), np.clip(shares + reach, 0, 1).round(5).tolist())
        bands.append(tuple(zip(*ends, strict=True)))
    says = [number.says for number in TEXT_BLOCKS[name].numbers[start:]]
    return Chart(
        title=name.capitalize(),
        lead=f"Shares with 95% bands, for noise and for who the users are: {PIECES[name]}.",
        axis=PIECES[name].partition(":")[0],
        categories=tuple(_short(name, one) for one in says),
        bands=tuple(bands),
        **by_place(values),
    )


def _short(name: str, says: str) -> str:
    """
    >>> _short("length", "sentences of 3 to 6 tokens"), _short("letters", "e among the letters")
    ('3 to 6', 'e')
    """
    for word in ("sentences of ", "words of ", " tokens", " characters", " among the letters", "sentences that "):
        says = says.replace(word, "")
    says = says.removeprefix("begin with ").removeprefix("end with ").removeprefix("sentences whose ")
    return says.removesuffix(" token is an unknown word").removesuffix(" among the")
