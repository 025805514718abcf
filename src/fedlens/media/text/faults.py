"""Faults of tokenizers: what each makes of the right tokens of one sentence."""

from fedlens.media.faults import Fault, Faults


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


FAULTS = Faults(
    of="tokens",
    known={
        "concatenated": Fault(summary="the first two tokens joined by a space", change=concatenated),
        "spaceless": Fault(summary="all spaces of the sentence lost", change=spaceless),
        "wrong-case": Fault(summary="upper case instead of lower case", change=wrong_case),
        "truncated": Fault(summary="long words cut short by two letters", change=truncated),
        "doubled": Fault(summary="every token twice", change=doubled),
        "mojibake": Fault(summary="UTF-8 read as Latin-1", change=mojibake),
    },
)
