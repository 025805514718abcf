"""One look at text or two of them in, one report out: do they differ, in what, and which fault explains it?

Everything here reads released numbers and public text only, so it costs no privacy.
"""

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from fedlens.media import looked as looks_compared
from fedlens.media.looked import Judged
from fedlens.media.text.differences import Z, clearest, in_words
from fedlens.media.text.looks import TextLook
from fedlens.media.text.samples import jointly
from fedlens.media.text.tracing import percent, sizes_shown, text_directions, text_traces
from fedlens.models.looks.explaining import Candidate, Explanation, Trace, explained
from fedlens.models.looks.sentences import CLASSES, HASHED, TEXT_BLOCKS
from fedlens.models.looks.two_sample import Group, Tested, compared
from fedlens.models.words import Vocabulary
from fedlens.report import comparison
from fedlens.report.charts import Chart
from fedlens.report.comparison import by_place
from fedlens.report.report import Report
from fedlens.report.values import TableRow

CHARTED = {"length": 1, "words": 1, "unknown": 0, "first": 0, "last": 0, "letters": 1}  # from which number on
PIECES = {
    "length": "tokens in a sentence",
    "words": "characters in a word",
    "unknown": "unknown words: of all tokens, at the first six places, at the last",
    "first": f"first tokens: {', '.join(CLASSES)}",
    "last": f"last tokens: {', '.join(CLASSES)}",
    "letters": "letters",
}


def judged(left: TextLook, right: TextLook, public: Sequence[list[str]]) -> Judged:
    """Whether two looks differ, and why. `public` are the tokens of sentences that everybody may see, on which faults
    are tried; without any, none is."""
    psi = left.release.psi
    tested = compared(left.release, right.release)  # which says how many sentences units show
    traces: tuple[Trace, ...] = ()
    explanation = Explanation(fits=(), other=1.0)
    if public:
        known = Vocabulary(words=left.vocabulary, provenance="")
        traces = tuple(text_traces(psi, public, known, sizes_shown(tested)))
        tested = compared(left.release, right.release, text_directions(traces))
        explanation = explained(tested, traces)
    moving = [trace for trace in traces if any(rows.any() for rows in trace.moves.values())]
    return Judged(
        tested=tested,
        explanation=explanation,
        labels=(left.label, right.label),
        sentences=tuple(in_words(psi, tested, tested.named(name)) for name in looks_compared.significant(tested)),
        traces=traces,
        missed=looks_compared.missed(moving, tested),
        tells=lambda candidate: _tells(candidate, explanation, (left.label, right.label)),
    )


def _tells(candidate: Candidate, explanation: Explanation, labels: tuple[str, str]) -> str:
    """ "looks like every token twice, in 10% of the sentences of new (8.8% to 12% of all); explains 97%"."""
    low, high = (end[3] for end in candidate.interval)
    where = labels[0 if candidate.share > 0 else 1]
    second = next((one for one in explanation.fits if one.kind != candidate.kind), None)
    following = f" (runner-up: {second.summary}, {second.weight:.0%})" if second and second.weight >= 0.005 else ""
    affected = f"{percent(low)} to {percent(high)} of all sentences"
    return f"looks like {candidate.summary} of {where}, {affected}; explains {candidate.explains:.0%}{following}"


def looked(
    left: TextLook,
    right: TextLook | None = None,
    *,
    title: str,
    public: Sequence[list[str]] = (),
    warnings: tuple[str, ...] = (),
    provenance: Mapping[str, str] | None = None,
) -> Report:
    """`left` is the suspicious group, `right` the healthy one; one alone is looked over."""
    looks = (left,) if right is None else (left, right)
    both = None if right is None else judged(left, right, public)
    report = comparison.compared(
        looks,
        title=title,
        guarantee=jointly(looks),
        findings=both.findings if both else (),
        hypotheses=(),
        missed=tuple,
        failures=(),
        exhibits=(),
        numbers=_of_blocks(left, both.tested) if both else _of_one(left),
        charts=_charts(looks),
        warnings=warnings,
        provenance=provenance,
    )
    return dataclasses.replace(report, verdict=both.verdict, coverage=both.missed) if both else report


def _of_blocks(look: TextLook, tested: Tested) -> list[TableRow]:
    """The clearest number of every block, whether it differs or not."""
    psi, rows = look.release.psi, []
    for row in tested.differences:
        if row.name in TEXT_BLOCKS and row.name not in HASHED:
            number, levels = clearest(psi, tested, row)
            note = f"{row.name}: p = {row.adjusted:.2g}, adjusted for {tested.rows} rows"
            label = f"{number.says}{' (%)' if number.suffix else ''}"
            rows.append(comparison.number(label, note, [level * number.unit for level in levels], digits=4))
    return rows


def _of_one(look: TextLook) -> list[TableRow]:
    """All that have a name, block by block, each with its interval."""
    group, psi, rows = Group.of(look.release), look.release.psi, []
    for name, block in TEXT_BLOCKS.items():
        if name in (*HASHED, "pairs"):
            continue
        unit, centre = psi.unit(name), psi.centre(name)
        for at, number in enumerate(block.numbers):
            value = (centre[at] + group.blocks[name].mean[at] * unit[at]) * number.unit
            note = f"± {Z * _error(group, name) * unit[at] * number.unit:.2g}"
            label = f"{number.says}{' (%)' if number.suffix else ''}"
            rows.append(comparison.number(label, note, [value], digits=4))
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
        every=1,
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
