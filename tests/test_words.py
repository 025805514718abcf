import dataclasses
import doctest
import hashlib
import unicodedata

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedlens.models import words
from fedlens.models.words import (
    SPELLING_END,
    SPELLING_START,
    Vocabulary,
    as_row,
    as_sentence,
    spelled,
    tokens,
    unspelled,
)

# Any string at all, lone surrogates included, and what is likely to go wrong.
HARD = [
    "naïve",
    "e\u0301\u0323",
    "שלום",
    "مرحبا",
    "👩‍👩‍👧",
    "नमस्ते",
    "\ud800",
    "a\ud83d",
    "\0",
    "\u202eabc",
    "\ufeff",
    "𝔘",
]
texts = st.one_of(st.text(st.characters()), st.lists(st.sampled_from(HARD)).map("".join))
clean = st.text(st.characters(exclude_categories=["Cs"]))


def replaced(text: str) -> str:
    return text.encode("utf-8", "replace").decode()


def test_docstrings_tell_the_truth() -> None:
    assert doctest.testmod(words).failed == 0


@pytest.mark.parametrize(
    ("sentence", "expected"),
    [
        ("", []),
        ("  \t\n", []),
        ("The Court--it can't.", ["the", "court", "-", "-", "it", "can't", "."]),
        ("'tis 'quoted' well-", ["'", "tis", "'", "quoted", "'", "well", "-"]),
        ("l’état, c’est moi", ["l’état", ",", "c’est", "moi"]),
        ("see <URL> @User_1!?", ["see", "<url>", "@user_1", "!", "?"]),
        ("a < b > c", ["a", "<", "b", ">", "c"]),
        ("नमस्ते दुनिया", ["नमस्ते", "दुनिया"]),
        ("cafe\u0301 e\u0301-e\u0301", ["cafe\u0301", "e\u0301-e\u0301"]),
        ("❤\ufe0f❤\ufe0f", ["❤\ufe0f", "❤\ufe0f"]),
    ],
)
def test_the_plain_tokenizer(sentence: str, expected: list[str]) -> None:
    assert tokens(sentence) == expected


@given(texts)
def test_tokens_lose_nothing_but_spaces(sentence: str) -> None:
    found = tokens(sentence)
    assert "".join(found) == "".join(sentence.lower().split())
    assert all(found)
    assert not any(letter.isspace() for token in found for letter in token)


@given(st.text(st.sampled_from("ab\u0301\u093e'- ❤.")))
def test_a_combining_mark_stays_with_its_letter(sentence: str) -> None:
    glued = [token for token in tokens(sentence) if unicodedata.category(token[0])[0] == "M"]
    lone = [part for part in sentence.split() if unicodedata.category(part[0])[0] == "M"]
    assert len(glued) == len(lone)


def test_tokenizers_by_name() -> None:
    assert words.tokenizer("plain") is tokens
    assert words.tokenizer("whitespace")("Well, it's") == ["Well,", "it's"]
    assert words.tokenizer("fedlens.models.words:tokens") is tokens


@pytest.mark.parametrize(
    "kind", ["clever", "", ":", "no.such.module:f", "fedlens.models.words:gone", "fedlens.models.words:PADDING"]
)
def test_unknown_tokenizers_are_refused(kind: str) -> None:
    with pytest.raises(ValueError, match="Expected"):
        words.tokenizer(kind)


@given(texts)
def test_spelling_round_trip(word: str) -> None:
    width = len(replaced(word).encode()) + 2
    row = spelled(word, width)
    assert row.dtype == np.int16
    assert row[0] == SPELLING_START
    assert row[-1] == SPELLING_END
    assert unspelled(row) == replaced(word)
    assert np.array_equal(spelled(word, width + 3), [*row, -1, -1, -1])


@given(clean, st.integers(2, 12))
def test_a_word_that_does_not_fit_is_cut_between_characters(word: str, width: int) -> None:
    row = spelled(word, width)
    short = unspelled(row)
    assert len(row) == width
    assert word.startswith(short)
    fits = len(word.encode()) <= width - 2
    assert (SPELLING_END in row) == fits
    if not fits:
        assert len(word[: len(short) + 1].encode()) > width - 1 or word == short  # no further character would fit


def test_generated_rows_are_read_whatever_they_hold() -> None:
    assert unspelled(np.array([256, 195, 257, 97])) == "\ufffd"
    assert unspelled(np.array([97, 256, 98, -1, -1])) == "ab"
    assert unspelled(np.array([], dtype=np.int16)) == ""


@pytest.mark.parametrize("width", [1, 0, -3])
def test_a_row_needs_room(width: int) -> None:
    with pytest.raises(ValueError, match="Expected width="):
        spelled("word", width)


@given(texts, st.integers(1, 24))
def test_sentences_are_cut_between_characters(sentence: str, width: int) -> None:
    row = as_row(sentence, width)
    wanted = replaced(sentence).replace("\0", "")
    short = as_sentence(row)
    assert row.shape == (width,)
    assert row.dtype == np.uint8
    assert "\ufffd" not in short or "\ufffd" in wanted
    assert wanted.startswith(short)
    assert short == wanted or len(wanted[: len(short) + 1].encode()) > width


def test_a_sentence_of_a_million_characters() -> None:
    assert as_sentence(as_row("\0é" * 1_000_000)) == "é" * 128


def test_foreign_bytes_are_replaced() -> None:
    assert as_sentence(np.array([0xC3, 0x28, 0, 0x61], dtype=np.uint8)) == "\ufffd(a"


WORDS = Vocabulary(words=("the", "court", "שלום"), provenance="public list")


def test_the_numbers_of_a_vocabulary() -> None:
    assert len(WORDS) == 3
    assert "court" in WORDS
    assert "motion" not in WORDS
    assert [WORDS.number(word) for word in ("the", "שלום", "motion")] == [0, 2, WORDS.unknown]
    assert (WORDS.unknown, WORDS.start, WORDS.end) == (3, 4, 5)


@given(st.lists(st.sampled_from([*WORDS.words, "motion", ""]), max_size=9), st.integers(2, 12))
def test_numbered_sentences_round_trip(sentence: list[str], width: int) -> None:
    row = WORDS.numbered(sentence, width)
    known = [word if word in WORDS else None for word in sentence]
    assert len(row) == width
    assert row[0] == WORDS.start
    assert (WORDS.end in row) == (len(sentence) <= width - 2)
    assert WORDS.named(row) == known[: width - 1]


lists = st.lists(clean.map(lambda word: "".join(word.split())).filter(bool), unique=True, min_size=1).map(tuple)


@given(lists.filter(lambda found: not any("\r" in word or "\n" in word for word in found)))
def test_files_round_trip(tmp_path_factory: pytest.TempPathFactory, found: tuple[str, ...]) -> None:
    path = tmp_path_factory.mktemp("words") / "list.txt"
    vocabulary = Vocabulary(words=found, provenance="a test")
    vocabulary.save(path)
    if not found[0].startswith("\ufeff"):  # the mark of an editor, at the start of a file
        assert Vocabulary.open(path, provenance="a test") == vocabulary
    assert vocabulary.digest == hashlib.sha256(path.read_bytes()).hexdigest()


def test_files_of_other_systems(tmp_path) -> None:
    path = tmp_path / "list.txt"
    path.write_bytes(b"\xef\xbb\xbfthe\r\ncourt")
    assert Vocabulary.open(path) == Vocabulary(words=("the", "court"), provenance="public list")


def test_all_problems_of_a_file_in_one_error(tmp_path) -> None:
    path = tmp_path / "list.txt"
    path.write_bytes(b"the\n\ntwo words\nthe\n" + b"\xff\xfe\n" + "\u00a0\n\nfine\nthe \n".encode())
    with pytest.raises(ValueError, match="Expected one word a line") as told:
        Vocabulary.open(path)
    problems = str(told.value).partition(": ")[2].rstrip(".").split("; ")
    assert problems == [
        "line 2 is empty",
        "line 3 contains a space",
        "line 4 repeats line 1",
        "line 5 is not UTF-8",
        "line 6 contains a space",
        "line 7 is empty",
        "line 9 contains a space",
    ]


def test_a_vocabulary_checks_itself_however_it_is_made(tmp_path) -> None:
    for faulty in [("a", "a"), ("",), ("a b",), ("\ud800",)]:
        with pytest.raises(ValueError, match="line"):
            Vocabulary(words=faulty, provenance="a test")
    (tmp_path / "empty.txt").write_bytes(b"")
    with pytest.raises(ValueError, match="at least one"):
        Vocabulary.open(tmp_path / "empty.txt")


def test_the_digest_is_of_the_words() -> None:
    assert WORDS.digest == dataclasses.replace(WORDS, provenance="a release").digest
    assert WORDS.digest != dataclasses.replace(WORDS, words=WORDS.words[::-1]).digest
