"""What a report shows of synthetic text: the likeliest words, and some sentences."""

import dataclasses
from collections.abc import Sequence

from fedlens.media.text import wordings
from fedlens.media.text.samples import Texts
from fedlens.report.exhibits import Exhibit, Piece
from fedlens.report.values import TableRow, visible

SHOWN_SENTENCES = 10
WORDS_IN_A_LINE = 10  # of each group, in a terminal


@dataclasses.dataclass(frozen=True, kw_only=True)
class _OfGroups(Exhibit):
    groups: tuple[TableRow, ...]

    def content(self) -> tuple[TableRow, ...]:
        return self.groups


class Words(_OfGroups):
    """The likeliest words of each group: label, and rows of word, probability, lift, new, flags."""

    key = "words"

    @classmethod
    def of(cls, groups: Sequence[Texts], tables: Sequence[Sequence[TableRow]]) -> "Words":
        named = zip(groups, tables, strict=True)
        return cls(groups=tuple({"label": group.label, "rows": list(rows)} for group, rows in named))

    @property
    def piece(self) -> Piece:
        return Piece.of_package(__package__, template="words.html", style="exhibits.css")

    def lines(self) -> list[str]:
        return [f"likeliest words of {group['label']}: {_listed(group['rows'])}" for group in self.groups]


class Sentences(_OfGroups):
    """Some sentences of each group: label, and examples of pieces {"text", "unknown"}."""

    key = "sentences"

    @classmethod
    def of(cls, groups: Sequence[Texts]) -> "Sentences":
        return cls(groups=tuple({"label": group.label, "examples": _examples(group)} for group in groups))

    @property
    def piece(self) -> Piece:
        return Piece.of_package(__package__, template="sentences.html", style="exhibits.css")


def _listed(rows: Sequence[TableRow]) -> str:
    shown = (f'"{visible(row["word"])}" {row["probability"]:.2%}' for row in rows[:WORDS_IN_A_LINE])
    return ", ".join(shown) or "none likely enough"


def _examples(texts: Texts) -> list[list[TableRow]]:
    return [
        [{"text": word or "", "unknown": word is None} for word in words]
        for words in wordings.sentences(texts, SHOWN_SENTENCES)
    ]
