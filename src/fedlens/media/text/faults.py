"""Named bugs of tokenizers: to plant on private sentences, and hypotheses to explain a difference.

A misprint is a function of the tokens of one sentence. Somebody else's is named `package.module:function`.
"""

import dataclasses
from collections.abc import Callable

from fedlens.core import functions


@dataclasses.dataclass(frozen=True, kw_only=True)
class Misprint:
    """What a faulty tokenizer makes of the right tokens of one sentence."""

    summary: str
    tokens: Callable[[list[str]], list[str]]


def concatenated(tokens: list[str]) -> list[str]:
    """The bug of Augenstein et al. 2020, section 5."""
    return [" ".join(tokens[:2]), *tokens[2:]] if tokens else []


def spaceless(tokens: list[str]) -> list[str]:
    return ["".join(tokens)] if tokens else []


def wrong_case(tokens: list[str]) -> list[str]:
    return [token.upper() for token in tokens]


def truncated(tokens: list[str]) -> list[str]:
    return [token[:-2] if len(token) >= 5 else token for token in tokens]


def doubled(tokens: list[str]) -> list[str]:
    return [token for token in tokens for _ in range(2)]


def mojibake(tokens: list[str]) -> list[str]:
    """ASCII looks the same in both encodings."""
    return [token.encode("utf-8", "replace").decode("latin-1") for token in tokens]


MISPRINTS: dict[str, Misprint] = {
    "concatenated": Misprint(summary="the first two tokens joined by a space", tokens=concatenated),
    "spaceless": Misprint(summary="all spaces of the sentence lost", tokens=spaceless),
    "wrong-case": Misprint(summary="upper case instead of lower case", tokens=wrong_case),
    "truncated": Misprint(summary="long words cut short by two letters", tokens=truncated),
    "doubled": Misprint(summary="every token twice", tokens=doubled),
    "mojibake": Misprint(summary="UTF-8 read as Latin-1", tokens=mojibake),
}


def named(kind: str) -> Misprint:
    """One of ours, or a function of tokens of somebody else's: `package.module:function`."""
    if kind in MISPRINTS:
        return MISPRINTS[kind]
    found = functions.opened(kind, MISPRINTS, "tokens")
    return Misprint(summary=functions.summary(found), tokens=found)
