"""Texts are told apart by their shapes, and the fault that explains a difference is named; otherwise none is."""

import dataclasses
import random

import numpy as np
import pytest
import torch
from toy_samples import STRANGE, VOCABULARY, WIDTH, of_words, spelling, texts, written

from fedlens.media.text import hypotheses as text_hypotheses
from fedlens.media.text import wordings
from fedlens.media.text.contrast import contrast
from fedlens.media.text.faults import FAULTS
from fedlens.report.report import Finding


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    monkeypatch.setattr(text_hypotheses, "MADE_UP", 400)
    monkeypatch.setattr(text_hypotheses, "TRIED", 1000)


def ranked(left, right, *kinds):
    return text_hypotheses.Comparison.of(left, right, *kinds).ranked()


def reversed_letters(tokens):
    """Words spelled backwards."""
    return [token[::-1] for token in tokens]


def broken(tokens):
    raise RuntimeError("private")


# Words


def test_words_are_ranked_once_each_by_probability_above_the_floor():
    left = of_words(["regex"] * 6 + ["well ,"] * 3 + ["xcode"])
    right = of_words(["regex"] * 3 + ["xcode"], "right")
    (one, other) = wordings.table([left, right], floor=0.2)
    assert [row["word"] for row in one] == ["regex", "well ,"]  # the floor hides xcode
    assert [row["word"] for row in other] == ["regex", "xcode"]
    assert one[0]["probability"] == pytest.approx(0.6)
    assert one[0]["lift"] == pytest.approx(0.6 / 0.75)
    assert [row["new"] for row in one] == [False, True]
    assert one[1]["lift"] == pytest.approx(0.3 / (3 / 4))  # at most so likely there, or it would have come
    assert one[1]["flags"] == ["space", "known words", "punctuation"]
    assert "lift" not in wordings.table([left])[0][0]


def test_a_word_that_was_cut_is_no_word():
    assert list(wordings.probable(of_words(["incomprehensibilities", "regex"]))) == ["regex"]


@pytest.mark.parametrize(
    ("word", "flags"),
    [
        ("regex", ()),
        ("it is", ("space", "known words")),
        ("it iz", ("space",)),
        ("c++", ("punctuation",)),
        ("COURT", ("upper case",)),
        ("café", ("non-ASCII",)),
        ("cafÃ©", ("punctuation", "upper case", "non-ASCII", "wrong encoding")),
        ("a\0", ("no text",)),
        ("\ufffd", ("punctuation", "non-ASCII", "no text")),
    ],
)
def test_odd_words_are_flagged(word, flags):
    assert wordings.flags(word, frozenset(VOCABULARY.words)) == flags


# Sentences


def test_unknown_words_are_counted_by_position_and_repetitions_by_neighbours():
    rows = [["regex", "the", "court"], ["the", "the"], ["regex", "sudo", "a", "a"], []]
    side = texts("words", [VOCABULARY.numbered(row, 8) for row in rows], "left")
    hits, totals = wordings.unknown_by_position(side, 5)
    assert hits.tolist() == [2, 1, 0, 0, 0]
    assert totals.tolist() == [3, 3, 2, 1, 0]
    assert wordings.unknown_rate(side) == pytest.approx(3 / 9)
    assert wordings.repeated(side) == pytest.approx(3 / 6)  # unknown words count as one
    assert wordings.lengths(side).tolist() == [3, 2, 4, 0]
    assert wordings.sentences(side, 1) == [[None, "the", "court"]]


def test_bands_hold_the_share_as_often_as_they_say():
    hits = np.random.default_rng(0).binomial(50, 0.05, 2000)
    low, high = wordings.wilson(hits, np.full(2000, 50))
    assert 0.92 < ((low <= 0.05) & (high >= 0.05)).mean() < 0.99
    assert [bound.tolist() for bound in wordings.wilson(np.array([0]), np.array([0]))] == [[0.0], [1.0]]


# Tests


def test_p_values_are_uniform_without_a_difference_and_small_with_one():
    rng = np.random.default_rng(1)
    chance = [wordings.share_test((h, 200), (k, 300), seed) for seed, (h, k) in enumerate(_pairs(rng, 0.3, 0.3))]
    assert np.mean(np.array(chance) <= 0.05) <= 0.09
    assert wordings.share_test((100, 200), (60, 300)) == 1 / (wordings.TESTED + 1)
    draws = [rng.multinomial(200, [0.5, 0.3, 0.2], 2) for _ in range(150)]
    shapes = [
        text_hypotheses.shape_test(*({(i,): int(n) for i, n in enumerate(side)} for side in pair))[1] for pair in draws
    ]
    assert np.mean(np.array(shapes) <= 0.05) <= 0.09
    apart, p_value = text_hypotheses.shape_test({(0,): 90, (1,): 10}, {(0,): 50, (2,): 50})
    assert (apart, p_value) == (pytest.approx(0.5), 1 / (wordings.TESTED + 1))


def _pairs(rng, left, right):
    return zip(rng.binomial(200, left, 150).tolist(), rng.binomial(300, right, 150).tolist(), strict=True)


# Hypotheses

SEEN_IN_WORDS = ("concatenated", "spaceless", "wrong-case", "truncated", "mojibake")
RARELY_SEEN_IN_WORDS = tuple((kind, 0.15) for kind in SEEN_IN_WORDS[:4])  # hardly a word here is not ASCII
SEEN_IN_SENTENCES = ("concatenated", "spaceless", "wrong-case", "truncated", "doubled")


@pytest.mark.parametrize(("kind", "share"), [*((kind, 1.0) for kind in SEEN_IN_WORDS), *RARELY_SEEN_IN_WORDS])
def test_the_planted_fault_is_named_from_words(kind, share):
    best = ranked(spelling(1, kind, share), spelling(2))[0]
    assert (best["kind"], best["named"]) == (kind, True)


@pytest.mark.parametrize("share", [0.15, 1.0])
@pytest.mark.parametrize("kind", SEEN_IN_SENTENCES)
def test_the_planted_fault_is_named_from_sentences(kind, share):
    best = ranked(written(1, kind, share), written(2))[0]
    assert (best["kind"], best["named"]) == (kind, True)
    assert best["affected"] == pytest.approx(share, abs=0.12)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("made", [spelling, written])
def test_nothing_is_named_between_models_of_the_same_data(made, seed):
    rows = ranked(made(2 * seed + 10), made(2 * seed + 11))
    assert not any(row["named"] for row in rows)
    assert {row["kind"] for row in rows} == {"none", *FAULTS.known}


@pytest.mark.parametrize("seed", range(3))
def test_a_model_that_spells_worse_is_no_fault_without_a_trace(seed):
    rng = random.Random(seed)
    healthy = [rng.choice(VOCABULARY.words if rng.random() < 0.3 else STRANGE.split()) for _ in range(700)]
    worse = ["".join(rng.choice("etaoinshr") for _ in range(rng.randint(3, 14))) for _ in range(700)]
    rows = ranked(of_words(worse), of_words(healthy, "right"))
    assert rows[0]["kind"] in ("spaceless", "truncated")  # which, misspelt, look just like that
    assert rows[0]["score"] > text_hypotheses.NAMED
    assert not rows[0]["named"]


def test_what_no_sample_can_show_explains_nothing():
    rows = {row["kind"]: row for row in ranked(spelling(1), spelling(2))}
    assert rows["doubled"]["score"] == rows["doubled"]["affected"] == 0.0
    rows = {row["kind"]: row for row in ranked(written(1), written(2))}
    assert rows["mojibake"]["score"] == 0.0


@pytest.mark.parametrize("made", [spelling, written])
def test_somebody_elses_fault_competes_and_a_broken_one_is_left_out(made):
    kinds = (*FAULTS.known, f"{__name__}:reversed_letters", f"{__name__}:broken")
    rows = ranked(made(1, kinds[-2], 0.5), made(2), kinds)
    if made is spelling:  # of sentences one only sees that all words are unknown
        assert (rows[0]["kind"], rows[0]["named"]) == (kinds[-2], True)
    assert rows[-1]["kind"] == kinds[-1]
    assert rows[-1]["distance"] == float("inf")
    assert not rows[-1]["named"]


def test_texts_of_different_kinds_tokenizers_or_vocabularies_are_not_compared():
    with pytest.raises(ValueError, match="one kind, tokenizer and vocabulary"):
        ranked(spelling(1), written(2))
    with pytest.raises(ValueError, match="one kind, tokenizer and vocabulary"):
        ranked(dataclasses.replace(spelling(1), tokenizer="whitespace"), spelling(2))
    with pytest.raises(ValueError, match="one kind, tokenizer and vocabulary"):
        ranked(spelling(1), dataclasses.replace(spelling(2), vocabulary=("the",)))


def test_coverage_is_the_share_at_which_a_fault_would_be_named():
    compared = text_hypotheses.Comparison.of(spelling(1), spelling(2))
    rows = {row["kind"]: row["percent"] for row in compared.missed()}
    assert rows["doubled"] is None
    assert 0 < rows["concatenated"] <= 5
    assert rows["truncated"] is not None


def test_the_table_lists_no_known_word_and_no_empty_one():
    known = VOCABULARY.words[0]
    written = of_words([known] * 6 + [""] * 3 + ["zorp"] * 2 + ["blick"])
    assert [row["word"] for row in wordings.table([written])[0]] == ["zorp", "blick"]


# Reports


def test_a_contrast_of_words_says_what_it_saw():
    joined = ["well ,", "it is", "i think", "that is", "no ,", "the court", "if the", "what is"]
    left = of_words([*(word for word in joined for _ in range(12)), *STRANGE.split() * 8])
    report = contrast(left, spelling(2, label="right"), title="words")
    (finding,) = report.findings
    assert finding.kind == "concatenated"
    assert finding.summary.startswith("8 of the top 10 words contain a space (29% of all words")
    assert "looks like the first two tokens joined by a space, which explains" in finding.summary
    assert [group["label"] for group in report.to_dict()["words"]] == ["left", "right"]
    assert report.groups == ("left", "right")
    assert report.to_dict()["sentences"] == []
    assert not report.coverage
    assert "likeliest words of left" in report.text()
    page = report.html()
    assert '<section id="words">' in page
    assert finding.summary.split(" (")[0] in page


def test_a_contrast_of_sentences_calls_out_the_jump():
    report = contrast(written(1, "concatenated", 0.3), written(2, label="right"))
    assert "of the words at position 1 are unknown, against" in report.findings[0].summary
    chart = report.charts[0]
    assert chart.left[0] > chart.bands[1][0][1] > chart.right[0]
    assert "largest jump is at position 1" in chart.lead
    assert any(row["name"] == "largest jump: position 1" and "p-value 0.005" in row["note"] for row in report.numbers)
    assert len(report.to_dict()["sentences"][0]["examples"]) == 10
    assert '<span class="unknown">unknown</span>' in report.html()


def test_a_clean_contrast_says_what_would_be_missed_and_what_is_resolved():
    before = Finding(kind="concatenated", summary="joined", score=0.9, severity="high")
    report = contrast(spelling(3), spelling(4, label="right"), before=(before,))
    assert report.findings == ()
    assert report.resolved == (before,)
    assert {row["kind"] for row in report.coverage} == {*FAULTS.known}


@pytest.mark.parametrize("made", [spelling, written])
def test_one_side_alone_is_shown_without_hypotheses(made):
    report = contrast(made(1))
    assert (report.findings, report.hypotheses, report.resolved) == ((), (), ())
    assert "p-value" not in report.text()
    assert report.html()


def noise_in_words(rng):
    return texts("spelling", [[256, *rng.integers(0, 256, WIDTH - 1)] for _ in range(300)], "left")


def endless_words(rng):
    return texts("spelling", [[256, *rng.integers(97, 123, WIDTH - 1)] for _ in range(300)], "left")


def noise_in_sentences(rng):
    rows = [[VOCABULARY.start, *rng.integers(0, len(VOCABULARY), 12), VOCABULARY.end] for _ in range(300)]
    return texts("words", rows, "left")


@pytest.mark.parametrize(
    ("made", "healthy", "told"),
    [
        (noise_in_words, spelling, "no text"),
        (endless_words, spelling, "never end"),
        (noise_in_sentences, written, "rare words as often as common ones"),
    ],
)
def test_of_noise_nothing_is_concluded(made, healthy, told):
    before = Finding(kind="concatenated", summary="joined", score=0.9, severity="high")
    noise = made(np.random.default_rng(0))
    for sides in ((noise, healthy(2, label="right")), (healthy(2, label="right"), noise)):
        report = contrast(*sides, before=(before,))
        assert report.findings == report.resolved == report.coverage == ()
        assert any(told in warning and warning.startswith("left: ") for warning in report.warnings)
    assert not any(told in warning for warning in contrast(healthy(3)).warnings)


def test_a_model_that_diverged_or_collapsed_is_said_to():
    same = of_words(["regex"] * 90 + ["xcode"] * 10)
    assert any("90% of the samples are one and the same" in warning for warning in contrast(same).warnings)
    odd = dataclasses.replace(same, log_probability=torch.full((100,), torch.nan))
    report = contrast(odd, spelling(2, label="right"))
    assert any("left: the model diverged" in warning for warning in report.warnings)
    assert report.findings == ()


def test_hostile_words_stay_text():
    hostile = ["<script>", "<b>bold</b>", "\u202eevil", "a\u0301\u0301\u0301", "\0nul", "ab\x1b[2J", "w" * 14, "שלום"]
    report = contrast(of_words(hostile * 20), of_words(hostile * 20, "right"))
    page = report.html()
    assert "<script>" not in page.split("</style>")[1]
    assert "&lt;script&gt;" in page
    assert "‹U+202E›evil" in page
    assert "␀nul" in page
    assert "\u202e" not in page + report.text()
    assert "\x1b" not in page + report.text()
