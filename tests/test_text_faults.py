import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedlens.media.text import faults
from fedlens.media.text.faults import FAULTS

SENTENCE = ["well", ",", "the", "court", "of", "appeals", "naïve"]
EXPECTED = {
    "concatenated": ["well ,", "the", "court", "of", "appeals", "naïve"],
    "spaceless": ["well,thecourtofappealsnaïve"],
    "wrong-case": ["WELL", ",", "THE", "COURT", "OF", "APPEALS", "NAÏVE"],
    "truncated": ["well", ",", "the", "cou", "of", "appea", "naï"],
    "doubled": [token for token in SENTENCE for _ in "12"],
    "mojibake": ["well", ",", "the", "court", "of", "appeals", "naÃ¯ve"],
}


def test_what_each_fault_does() -> None:
    assert {kind: fault.change(list(SENTENCE)) for kind, fault in FAULTS.known.items()} == EXPECTED


@pytest.mark.parametrize("kind", FAULTS.known)
@given(st.lists(st.text(st.characters())))
def test_any_tokens_at_all(kind: str, tokens: list[str]) -> None:
    before = list(tokens)
    after = FAULTS.known[kind].change(tokens)
    assert tokens == before  # the right tokens are left as they were
    assert bool(after) == bool(tokens)


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]))))
def test_mojibake_can_be_undone(tokens: list[str]) -> None:
    assert [token.encode("latin-1").decode() for token in FAULTS.known["mojibake"].change(tokens)] == tokens


def test_a_sentence_of_one_token_cannot_be_concatenated() -> None:
    assert FAULTS.known["concatenated"].change(["yes"]) == ["yes"]


def reversed_words(tokens: list[str]) -> list[str]:
    """Words read from right to left.

    Further lines are not shown."""
    return [token[::-1] for token in tokens]


def test_somebody_elses_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(faults, "reversed_words", reversed_words, raising=False)
    found = FAULTS.named("fedlens.media.text.faults:reversed_words")
    assert found.summary == "Words read from right to left"
    assert found.change(["ab", "c"]) == ["ba", "c"]


def test_ours_by_name() -> None:
    assert all(FAULTS.named(kind) is fault for kind, fault in FAULTS.known.items())


@pytest.mark.parametrize(
    "kind",
    ["clever", "", ":", "a:", "no.such:f", "fedlens.media.text.faults:gone", "fedlens.media.text.faults:FAULTS"],
)
def test_unknown_faults_are_refused(kind: str) -> None:
    with pytest.raises(ValueError, match="Expected"):
        FAULTS.named(kind)
