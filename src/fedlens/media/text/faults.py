"""Faults of tokenizers: what each makes of the right tokens of one sentence."""

from fedlens.media.faults import Fault, Faults


def truncated(tokens: list[str]) -> list[str]:
    return [token[:-2] if len(token) >= 5 else token for token in tokens]


def mojibake(tokens: list[str]) -> list[str]:
    """ASCII looks the same in both encodings."""
    return [token.encode("utf-8", "replace").decode("latin-1") for token in tokens]


FAULTS = Faults(
    of="tokens",
    known={
        "concatenated": Fault(  # the bug of Augenstein et al. 2020, section 5
            summary="the first two tokens joined by a space",
            change=lambda tokens: [" ".join(tokens[:2]), *tokens[2:]] if tokens else [],
        ),
        "spaceless": Fault(
            summary="all spaces of the sentence lost", change=lambda tokens: ["".join(tokens)] if tokens else []
        ),
        "wrong-case": Fault(
            summary="upper case instead of lower case", change=lambda tokens: [token.upper() for token in tokens]
        ),
        "truncated": Fault(summary="long words cut short by two letters", change=truncated),
        "doubled": Fault(
            summary="every token twice", change=lambda tokens: [token for token in tokens for _ in range(2)]
        ),
        "mojibake": Fault(summary="UTF-8 read as Latin-1", change=mojibake),
    },
)
