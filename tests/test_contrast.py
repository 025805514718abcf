"""A contrast names the bug that explains a difference, and nothing where there is none."""

import dataclasses

import pytest
import torch
from toy_samples import framed, letters, pair, samples

from fedlens.core import tensorfiles
from fedlens.ledger import guarantee
from fedlens.media.images.contrast import contrast
from fedlens.media.images.faults import FAULTS
from fedlens.media.images.hypotheses import NAMED, ranked
from fedlens.media.images.samples import Samples
from fedlens.models.classifier import ConvClassifier, Primary
from fedlens.privacy import Everyone, L2Clip, Plan
from fedlens.report.report import Finding

OF_IMAGES = {kind: transform.change for kind, transform in FAULTS.known.items() if transform.change}


def swapped(labels):
    return FAULTS.known["swapped-labels"].labels(labels, 4)


class Brightness:
    """A primary model that reads the class off the brightness."""

    side, channels, classes = 8, 1, 4

    def predictions(self, images):
        return ((images.mean((1, 2, 3)) + 0.8) / 1.6 * 3).round().long().clamp(0, 3)

    def confidence(self, images):
        return torch.ones(len(images))


# Findings


@pytest.mark.parametrize("kind", OF_IMAGES)
def test_the_planted_transform_is_named(kind):
    report = contrast(*pair(OF_IMAGES[kind](letters(300, 0)), letters(300, 1)))
    (finding,) = report.findings
    assert finding.kind == kind
    assert FAULTS.known[kind].summary in finding.summary
    assert finding.score > 0.8
    assert finding.severity == "high"
    best, second = report.hypotheses[:2]
    assert (best["kind"], best["named"], second["named"]) == (kind, True, False)
    assert "runner-up" not in finding.summary or second["summary"] in finding.summary
    assert report.coverage == ()


@pytest.mark.parametrize("kind", ["inverted", "rotated-90", "rotated-180", "rotated-270", "mirrored", "upside-down"])
def test_a_bug_on_the_healthy_side_is_named_by_what_undoes_it(kind):
    """Undoing a quarter turn is a quarter turn the other way; all else undoes itself."""
    opposite = {"rotated-90": "rotated-270", "rotated-270": "rotated-90"}.get(kind, kind)
    report = contrast(*pair(letters(300, 0), OF_IMAGES[kind](letters(300, 1))))
    assert [finding.kind for finding in report.findings] == [opposite]


def test_somebody_elses_transform_is_a_hypothesis_too():
    report = contrast(*pair(framed(letters(300, 0)), letters(300, 1)), kinds=[f"{__name__}:framed"])
    (finding,) = report.findings
    assert finding.kind == f"{__name__}:framed"
    assert "A white frame" in finding.summary


def test_noise_is_not_taken_for_pictures():
    """Whatever the ranking says: a model that drew noise has learnt nothing that could be named."""
    noise = torch.rand(300, 1, 8, 8, generator=torch.Generator().manual_seed(0)) * 2 - 1
    for sides in (pair(noise, letters(300, 1)), pair(letters(300, 1), noise)):
        report = contrast(*sides)
        assert report.findings == ()
        assert any("drew noise" in warning for warning in report.warnings)
        assert not any(row["named"] for row in report.hypotheses)


def test_a_symmetric_population_is_not_called_mirrored():
    """Between sides that are alike, chance decides which is nearer: nothing of that may be named."""
    for seed in range(6):
        disks = [letters(400, 2 * seed + place) for place in (0, 1)]
        sides = [torch.maximum(x, x.flip(3)) for x in disks]
        assert contrast(*pair(*sides)).findings == ()


def test_what_is_gone_is_resolved():
    old = Finding(kind="inverted", summary="looked inverted", score=0.9, severity="high")
    fixed = contrast(*pair(letters(300, 0), letters(300, 1)), before=[old])
    assert (fixed.findings, fixed.resolved) == ((), (old,))
    noise = torch.rand(300, 1, 8, 8, generator=torch.Generator().manual_seed(0)) * 2 - 1
    assert contrast(*pair(noise, letters(300, 1)), before=[old]).resolved == ()  # nothing can be concluded
    assert contrast(samples(letters(300, 0)), before=[old]).resolved == ()
    still = contrast(*pair(-letters(300, 0), letters(300, 1)), before=[old])
    assert (len(still.findings), still.resolved) == (1, ())


def test_where_nothing_is_found_it_is_said_what_would_be_missed():
    report = contrast(*pair(letters(300, 0), letters(300, 1)))
    shares = {row["kind"]: row["percent"] for row in report.coverage}
    assert set(shares) == set(OF_IMAGES)
    assert 5 <= shares["inverted"] <= 60
    # Said is done: the bug on a little more than that share is named, on half of it is not.
    for share, expected in ((shares["inverted"] / 100 + 0.1, ["inverted"]), (shares["inverted"] / 200, [])):
        left = letters(300, 0)
        left[: round(300 * share)] *= -1
        assert [f.kind for f in contrast(*pair(left, letters(300, 1))).findings] == expected


def test_swapped_labels_are_named_by_what_the_primary_model_sees():
    """The images are alike on both sides: brightness is the class. Only the labels they were drawn with are not."""

    def drawn(seed, change):
        rng = torch.Generator().manual_seed(seed)
        labels = torch.randint(4, (300,), generator=rng)
        images = (labels / 3 * 1.6 - 0.8).view(-1, 1, 1, 1) + 0.05 * letters(300, seed)
        return dataclasses.replace(
            samples(images, "left" if change else "right"), classes=change(labels) if change else labels
        )

    report = contrast(drawn(0, swapped), drawn(1, None), primary=Brightness())
    assert [finding.kind for finding in report.findings] == ["swapped-labels"]
    by_name = {row["name"]: row for row in report.numbers}
    assert by_name["primary model's accuracy"]["left"] < 0.1 < 0.9 < by_name["primary model's accuracy"]["right"]
    assert contrast(drawn(0, lambda labels: labels), drawn(1, None), primary=Brightness()).findings == ()


@pytest.mark.parametrize("seed", range(5))
def test_two_samples_of_the_same_kind_give_no_finding(seed):
    report = contrast(*pair(letters(200, 2 * seed), letters(200, 2 * seed + 1)))
    assert report.findings == ()


@pytest.mark.parametrize(
    "change", [lambda x: 0.5 * x - 0.5, lambda x: x.roll(2, 2), torch.zeros_like], ids=["darker", "moved", "grey"]
)
def test_a_difference_that_no_transform_explains_is_not_blamed_on_one(change):
    report = contrast(*pair(change(letters(200, 0)), letters(200, 1)))
    assert report.findings == ()


def test_a_finding_says_what_was_measured():
    report = contrast(*pair(-letters(200, 0), letters(200, 1)))
    told = report.findings[0].summary
    numbers = {row["name"]: row for row in report.numbers}
    left, right = numbers["mean intensity"]["left"], numbers["mean intensity"]["right"]
    assert left > 0.7 > 0.3 > right
    assert left == pytest.approx(float((-letters(200, 0).mean() + 1) / 2), abs=1e-4)
    assert f"mean intensity {left:.2f} vs {right:.2f}" in told
    assert "histogram mirrored" in told
    assert "two-sample AUC 1.00" in told


def test_images_that_are_not_numbers_give_a_warning_instead_of_a_crash():
    """A generator may diverge; by then its budget is spent, and there must be a report."""
    broken = letters(200, 0)
    broken[7:] = float("nan")
    report = contrast(*pair(broken, letters(200, 1)))
    assert report.findings == ()
    assert any("left" in warning for warning in report.warnings)


# Hypotheses


def test_no_transform_competes_with_all_transforms():
    rows = ranked(letters(50, 0), letters(50, 1))
    assert {row["kind"] for row in rows} == {"none", *OF_IMAGES}
    assert rows[0]["kind"] == "none"
    assert not any(row["named"] for row in rows)
    assert max(row["score"] for row in rows if row["kind"] != "none") < NAMED
    assert [row["distance"] for row in rows] == sorted(row["distance"] for row in rows)


# One side alone


def test_one_side_alone_is_described_without_a_comparison():
    report = contrast(samples(letters(100, 0), "all"), title="look")
    assert (report.title, report.findings, report.hypotheses) == ("look", (), ())
    assert [run["label"] for run in report.runs] == ["all"]
    assert [image["label"] for image in report.to_dict()["images"]] == ["all"]
    assert [chart.right for chart in report.charts] == [None, None]
    assert sum(report.charts[0].left) == pytest.approx(1, abs=1e-3)
    assert {row["right"] for row in report.numbers} == {None}
    assert "two-sample AUC" not in {row["name"] for row in report.numbers}


def test_samples_that_hardly_differ_are_warned_about():
    same = letters(1, 0).expand(100, -1, -1, -1)
    (warning,) = contrast(samples(same, "all")).warnings
    assert warning.startswith("all: ")
    assert "collapsed" in warning
    assert contrast(samples(letters(100, 0), "all")).warnings == ()


def test_warnings_of_the_caller_come_along():
    assert contrast(samples(letters(100, 0)), warnings=("beware",)).warnings == ("beware",)


def test_the_confidence_of_the_primary_model_is_asked_where_its_images_have_this_size():
    names = []
    for side in (8, 16):
        network = ConvClassifier(side=side, widths=(4,), hidden=8)
        report = contrast(samples(letters(50, 0)), primary=Primary(network, network.init(0)))
        names.append({row["name"] for row in report.numbers})
    assert "primary model's confidence" in names[0]
    assert "primary model's confidence" not in names[1]


# What it cost


def test_groups_that_share_no_user_cost_as_much_as_the_dearer_one():
    cheap = Plan(
        sampling=Everyone(), bound=L2Clip(norm=0.1), noise_multiplier=9.0, releases=10, expected_contributors=9
    )
    left = samples(letters(50, 0), "left", partition="accuracy")
    right = samples(letters(50, 1), "right", partition="accuracy", plan=cheap)
    report = contrast(left, right)
    assert report.guarantee.epsilon == left.guarantee.epsilon > right.guarantee.epsilon
    assert "share no user" in report.guarantee.composition


def test_groups_that_may_share_users_cost_more_than_either():
    left = samples(letters(50, 0), "left", partition="left")
    right = samples(letters(50, 1), "right", partition="right")
    report = contrast(left, right)
    assert report.guarantee.epsilon > 1.3 * left.guarantee.epsilon
    assert report.guarantee == guarantee([left.spending, right.spending], 1e-5)
    assert "may share users" in report.guarantee.composition


def test_a_report_with_one_simulated_side_says_so():
    left, right = samples(letters(50, 0), "left", simulated=True), samples(letters(50, 1), "right")
    assert contrast(left, right).guarantee.simulated
    assert not contrast(right).guarantee.simulated


def test_every_side_keeps_the_name_and_price_of_its_run():
    left, right = pair(letters(50, 0), letters(50, 1))
    report = contrast(left, right)
    assert [run["run"] for run in report.runs] == ["run/left", "run/right"]
    assert [run["releases"] for run in report.runs] == [10, 10]
    assert report.runs[0]["guarantee"] == left.guarantee.headline


def test_images_of_different_sizes_are_not_compared():
    with pytest.raises(ValueError, match="samples of one size"):
        contrast(*pair(letters(10, 0), letters(10, 0, side=12)))


# On disk


def test_samples_travel_with_their_spending(tmp_path):
    before = samples(letters(20, 0), "low", simulated=True)
    before.save(tmp_path / "low.safetensors")
    after = Samples.open(tmp_path / "low.safetensors")
    torch.testing.assert_close(after.images, before.images, rtol=0, atol=0)
    assert (after.label, after.spending, after.delta) == (before.label, before.spending, before.delta)
    assert after.guarantee == before.guarantee


def test_images_without_a_spending_are_not_samples(tmp_path):
    tensorfiles.write(tmp_path / "bare.safetensors", {"images": letters(2, 0)}, {"label": "low"})
    with pytest.raises(ValueError, match="guarantee"):
        Samples.open(tmp_path / "bare.safetensors")
