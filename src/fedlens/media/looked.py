"""What two looks come to, whatever they are looks at: one of four verdicts, and what is found."""

import dataclasses
import math
from collections.abc import Callable, Sequence

import numpy as np

from fedlens.models.looks.explaining import Candidate, Explanation, Trace
from fedlens.models.looks.two_sample import LEVEL, Tested, power
from fedlens.report.report import DIFFERENT, FOUND, INCONCLUSIVE, NOTHING, Finding, Verdict
from fedlens.report.values import TableRow

IN_HEADLINE = 3  # blocks in a headline
SURE = 0.95  # how likely what is not said to be missed is found
DOUBT = 0.1  # p-values below it leave room for doubt
BLIND = 0.5  # of the faults: where more of them would be missed in every unit, nothing can be said
SHARES = (0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
TIMES = (2, 4, 8, 16, 32, 64)  # as many units might settle it
LEAST = 1e-12  # p-values below it are all alike
KIND = "different"  # a finding that no fault explains


@dataclasses.dataclass(frozen=True, kw_only=True)
class Judged:
    """Two groups, tested; which faults explain what they differ by; and which would be missed."""

    tested: Tested
    explanation: Explanation
    labels: tuple[str, str]
    sentences: tuple[str, ...]  # the blocks that differ, in words, the clearest first
    traces: tuple[Trace, ...] = ()
    missed: tuple[TableRow, ...] = ()
    tells: Callable[[Candidate], str]  # a fault, in words, with what is known about it

    @property
    def named(self) -> Candidate | None:
        """Only where the groups differ at all."""
        return self.explanation.named if self.tested.differ else None

    @property
    def verdict(self) -> Verdict:
        if best := self.named:
            summary = f"{self.tells(best)}; explains {best.explains:.0%} of the difference, {self._chance}"
            return Verdict(kind=FOUND, summary=summary)
        if self.tested.differ:
            return Verdict(kind=DIFFERENT, summary=f"{self._chance}: {self._seen}. {self._guess}")
        blind = [row for row in self.missed if row["percent"] is None]
        if len(blind) > BLIND * len(self.missed) or self.tested.p <= DOUBT or not self.missed:
            return Verdict(kind=INCONCLUSIVE, summary=f"{self._doubt(len(blind))}. {self._guess}{self._settled}")
        return Verdict(kind=NOTHING, summary=self._nothing(len(blind)))

    @property
    def _chance(self) -> str:
        return f"p = {self.tested.p:.2g}" if self.tested.p > LEAST else f"p < {LEAST:g}"

    def _doubt(self, blind: int) -> str:
        if not self.missed:
            return "no public examples say which faults would have been seen"
        if blind > BLIND * len(self.missed):
            return (
                f"{blind} of {len(self.missed)} kinds of faults would be missed even in every unit; it takes more units"
                " or a larger epsilon"
            )
        return f"p = {self.tested.p:.2g} leaves it open; more units or a larger epsilon would settle it"

    def _nothing(self, blind: int) -> str:
        seen = sorted(row["percent"] for row in self.missed if row["percent"] is not None)
        middle = seen[len(seen) // 2]
        text = (
            f"p = {self.tested.p:.2g}; half of the kinds of faults would have been found in {middle:.2g}% of the units"
        )
        return f"{text}, {blind} of {len(self.missed)} not even in all of them" if blind else text

    @property
    def _seen(self) -> str:
        return "; ".join(self.sentences[:IN_HEADLINE]) or "in directions of known faults, and in no block by itself"

    @property
    def _guess(self) -> str:
        if not self.explanation.fits:
            return "No fault explains any of it." if self.traces else "No fault was tried."
        best, *others = self.explanation.fits[:2]
        following = f", next {others[0].weight:.0%}" if others else ""
        return f"Not claimed: {best.summary}, {best.weight:.0%}{following}."

    @property
    def _settled(self) -> str:
        """How many times the units would show the best guess, if that is right."""
        best = self.explanation.fits[0] if self.explanation.fits else None
        trace = next((trace for trace in self.traces if best and trace.kind == best.kind), None)
        if best is None or trace is None:
            return ""
        away = [math.dist(amount, best.amount) for amount in trace.amounts]
        change = {name: rows[away.index(min(away))] for name, rows in trace.moves.items()}
        times = next((k for k in TIMES if power(change, abs(best.share), self.tested, k) >= SURE), None)
        return f" If it is that, about {times} times the units, or the epsilon, would show it." if times else ""

    @property
    def findings(self) -> tuple[Finding, ...]:
        if not self.tested.differ:
            return ()
        best = self.named
        seen = self.sentences[0] if self.sentences else self._seen
        summary = f"{self.tells(best)}; {seen}" if best else f"{self.labels[0]} differs: {seen}"
        score = best.explains if best else 1 - self.tested.p
        kind, severity = (best.kind, "high") if best else (KIND, "medium")
        return (Finding(kind=kind, summary=summary, score=round(score, 4), severity=severity),)


def significant(tested: Tested) -> list[str]:
    """The names of the blocks that differ, the clearest first."""
    return [row.name for row in tested.differences if row.adjusted <= LEVEL]


def missed(traces: Sequence[Trace], tested: Tested) -> tuple[TableRow, ...]:
    """For each fault at its strongest: the smallest share of the units, in percent, that is found with 95% power; and
    the weakest that is found in all of them.

    By formula. None where even all units, or the strongest, would not do.
    """
    return tuple(_missed(trace, tested) for trace in traces)


def _missed(trace: Trace, tested: Tested) -> TableRow:
    sizes = sum((rows**2).sum(1) for rows in trace.moves.values())
    strongest = int(sizes.argmax())

    def likely(at: int, share: float) -> bool:
        return power({name: rows[at] for name, rows in trace.moves.items()}, share, tested) >= SURE

    least = next((share for share in SHARES if likely(strongest, share)), None)
    weak = np.abs(np.arange(sizes.size) - sizes.argmin()) if trace.ordered else sizes  # by what changes nothing
    order = weak.argsort(kind="stable") if least is not None and sizes.size > 1 else []
    weakest = next((at for at in order if likely(at, 1.0)), None)
    return {
        "kind": trace.kind,
        "summary": trace.says(trace.amounts[strongest]),
        "percent": None if least is None else round(100 * least, 1),
        "weakest": None if weakest is None else trace.says(trace.amounts[weakest]),
    }
