"""What a comparison of two groups' samples comes to: found, different, nothing differs, or inconclusive."""

import pytest
import torch
from toy_samples import framed, letters, pair, samples, spelling, written

from fedlens.media.images import hypotheses
from fedlens.media.images.contrast import contrast
from fedlens.media.images.faults import FAULTS
from fedlens.media.text.contrast import contrast as contrast_of_text
from fedlens.report import comparison, ranking
from fedlens.report.comparison import FEWEST, Null
from fedlens.report.report import DIFFERENT, FOUND, INCONCLUSIVE, NOTHING

FAR, NEAR = Null(distances=(1e6,) * FEWEST), Null(distances=(1e-9,) * FEWEST)  # beyond and within what is seen here


def moved(seed):
    """A difference that is on no list: lower down."""
    return letters(300, seed).roll(2, 2)


def verdict(left, right, **about):
    made = contrast(*pair(left, right), **about).verdict
    return made.kind, made.summary


def noise(seed=0):
    return torch.rand(300, 1, 8, 8, generator=torch.Generator().manual_seed(seed)) * 2 - 1


# Of images


def test_a_fault_that_explains_the_difference_is_found():
    kind, told = verdict(-letters(300, 0), letters(300, 1))
    assert kind == FOUND
    assert told.startswith("inverted pixels, ")
    assert told.endswith("% of the difference")


@pytest.mark.parametrize("null", [None, FAR, NEAR])
def test_white_against_black_never_says_that_nothing_differs(null):
    """Both models learnt nothing but the ground: blank, or drawn over with noise. The right guess stands there."""
    grain = 0.3 * noise()
    blank = torch.full((300, 1, 8, 8), 0.99)
    for white, black in ((blank, -blank), ((0.7 + grain).clamp(-1, 1), (grain - 0.7).clamp(-1, 1))):
        kind, told = verdict(white, black, null=null)
        assert kind == INCONCLUSIVE
        assert "not claimed: inverted pixels, " in told
        assert "more users or a larger epsilon" in told


def test_a_guess_comes_with_the_next_one():
    kind, told = verdict(noise(), letters(300, 1))
    assert kind == INCONCLUSIVE
    first, second, *_ = [row for row in hypotheses.ranked(noise(), letters(300, 1)) if row["kind"] != ranking.NONE]
    assert f"not claimed: {first['summary']}, {first['score']:.0%}" in told
    assert second["score"] < 0.01 or f"next {second['summary']}, {second['score']:.0%}" in told
    assert "the model drew noise" in told


def test_what_diverged_makes_no_guess():
    broken = letters(300, 0)
    broken[7] = float("nan")
    report = contrast(*pair(broken, letters(300, 1)))
    assert report.verdict.kind == INCONCLUSIVE
    assert "diverged" in report.verdict.summary
    assert "claimed" not in report.verdict.summary
    assert report.hypotheses == ()  # of grey placeholders


def test_a_difference_beyond_the_null_is_different_and_within_it_nothing():
    kind, told = verdict(moved(0), letters(300, 1), null=NEAR)
    assert kind == DIFFERENT
    assert f"0 of {FEWEST} pairs of models of the same data are 67% as far apart, or farther" in told
    kind, told = verdict(moved(0), letters(300, 1), null=FAR)
    assert kind == NOTHING
    assert f"{FEWEST} of {FEWEST} pairs" in told
    assert "would likely be missed" in told


def test_without_a_null_what_is_not_alike_is_inconclusive_and_says_how_to_get_one():
    kind, told = verdict(moved(0), letters(300, 1))
    assert kind == INCONCLUSIVE
    assert f"--null {FEWEST}" in told


def test_samples_that_chance_parts_as_far_do_not_differ_and_it_is_said_what_would_be_missed():
    report = contrast(*pair(letters(300, 0), letters(300, 1)))
    assert report.verdict.kind == NOTHING
    assert report.missed in report.verdict.summary
    assert " ".join(report.text().split()).count(report.missed) == 1


def test_a_guess_that_comes_close_is_not_ruled_out_by_a_null():
    """Inverted in a share of the samples just below what is named."""
    (row,) = hypotheses.missed(letters(300, 0), letters(300, 1), ["inverted"])
    left = letters(300, 0)
    left[: round(3 * row["percent"] - 6)] *= -1
    best = hypotheses.ranked(left, letters(300, 1))[0]
    assert comparison.CLOSE * best["needed"] <= best["score"] < best["needed"]
    kind, told = verdict(left, letters(300, 1), null=FAR)
    assert kind == INCONCLUSIVE
    assert "not claimed: inverted pixels, 2" in told


def test_a_fault_that_leaves_much_is_not_named():
    """White frames: inverting makes a white ground of a black one, which is nearer and far from right."""
    left, right = framed(letters(300, 0)), letters(300, 1)
    first = hypotheses.ranked(left, right)[0]
    assert first["kind"] == "inverted"
    assert hypotheses.NAMED <= first["score"] < comparison.MOST
    report = contrast(*pair(left, right))
    assert report.findings == ()
    assert not any(row["named"] for row in report.hypotheses)
    assert report.verdict.kind == DIFFERENT
    assert "not claimed: inverted pixels" in report.verdict.summary
    assert "leaves" in report.verdict.summary
    # A null in which what is left is nothing unusual lets it pass, one in which it is does not.
    assert [f.kind for f in contrast(*pair(left, right), null=FAR).findings] == ["inverted"]
    assert verdict(left, right, null=NEAR)[0] == DIFFERENT


# By example: both groups hold faulty samples


def mixed(seed, share, change=torch.neg):
    images = letters(400, seed)
    hit = round(400 * share)
    return torch.cat([change(images[:hit]), images[hit:]])


def test_a_fault_that_both_groups_hold_is_found():
    """Of one group 80%, of the other 55%: no transform of the one gives the other."""
    left, right = mixed(0, 0.8), mixed(1, 0.55)
    plain = {row["kind"]: row["score"] for row in hypotheses.ranked(left, right)}
    assert plain["inverted"] < 0.25
    report = contrast(*pair(left, right))
    (finding,) = report.findings
    assert finding.kind == "inverted"
    assert "both groups hold it" in finding.summary
    assert report.verdict.kind == FOUND
    assert "in both groups" in report.verdict.summary
    assert report.hypotheses[0]["undone"] == pytest.approx(0.25 / 0.6, abs=0.11)


def test_what_merely_blurs_is_not_taken_for_a_fault_of_both_groups():
    """Mixing a group with its mirror images blurs it, but so does every other change."""
    right = 0.5 * (letters(400, 1) + letters(400, 2).flip(3)) + 0.2
    assert hypotheses.undone(letters(400, 0), right) is None
    assert hypotheses.undone(letters(300, 0), letters(300, 1)) is None


def test_only_faults_that_lose_nothing_are_undone():
    images = letters(20, 0)
    for fault in FAULTS.known.values():
        if fault.undo:
            torch.testing.assert_close(fault.undo(fault.change(images)), images)


# Of text


def of_text(left, right, **about):
    made = contrast_of_text(left, right, **about).verdict
    return made.kind, made.summary


def test_words_that_a_fault_explains_are_found():
    kind, told = of_text(written(1, "concatenated", 0.3), written(2, label="right"))
    assert kind == FOUND
    assert "%" in told


def test_words_alike_do_not_differ():
    kind, _ = of_text(spelling(3), spelling(4, label="right"))
    assert kind == NOTHING


def test_a_diverged_language_model_makes_no_guess():
    odd = spelling(1)
    odd.log_probability[:] = float("nan")
    kind, told = of_text(odd, spelling(2, label="right"))
    assert kind == INCONCLUSIVE
    assert "diverged" in told


def test_a_null_decides_about_words_too():
    sides = written(1, "concatenated", 0.03), written(2, label="right")
    plain = contrast_of_text(*sides)
    if plain.findings:
        pytest.fail("Expected too few of them to be named.")
    assert of_text(*sides, null=NEAR)[0] == DIFFERENT
    assert of_text(*sides, null=FAR)[0] in (NOTHING, INCONCLUSIVE)


# The null


def test_a_null_of_few_pairs_is_refused_since_it_could_not_tell():
    with pytest.raises(ValueError, match="at least 19 pairs"):
        Null(distances=(1.0,) * (FEWEST - 1))


def test_a_p_value_counts_ties_and_the_pair_itself():
    null = Null(distances=tuple(float(n) for n in range(FEWEST)))
    far = comparison.MARGIN * (FEWEST - 1)
    assert null.p_value(1.01 * far) == pytest.approx(0.05)
    assert null.p_value(far) == pytest.approx(0.1)
    assert null.p_value(-1.0) == 1.0


def test_one_group_alone_has_no_verdict():
    assert contrast(samples(letters(50, 0))).verdict is None
