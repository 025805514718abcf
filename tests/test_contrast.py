"""A contrast names the bug that explains a difference, and nothing where there is none."""

import pytest
import torch

from fedlens import tensorfiles
from fedlens.inspection import Samples, contrast
from fedlens.inspection.contrast import energy_distance, ranked, two_sample_auc
from fedlens.ledger import Account, Spending, guarantee
from fedlens.models.classifier import ConvClassifier, Primary
from fedlens.privacy import Everyone, L2Clip, Plan
from fedlens.transforms import TRANSFORMS

PLAN = Plan(sampling=Everyone(), bound=L2Clip(norm=0.1), noise_multiplier=5.0, releases=10, expected_contributors=9)


def letters(count, seed, side=8):
    """Bright, trembling letters F on a dark ground: no transform leaves an F as it is."""
    rng = torch.Generator().manual_seed(seed)
    letter = torch.zeros(side, side)
    letter[1:7, 2] = letter[1, 2:6] = letter[3, 2:5] = 1.0
    shifts = torch.randint(-1, 2, (count,), generator=rng).tolist()
    strokes = torch.stack([letter.roll(shift, 1) for shift in shifts])
    brightness = 0.7 + 0.3 * torch.rand(count, 1, 1, generator=rng)
    noise = 0.1 * torch.randn(count, side, side, generator=rng)
    return (2 * brightness * strokes - 1 + noise).clamp(-1, 1)[:, None]


def samples(images, label="left", *, partition="all", plan=PLAN, population="crowd", simulated=False):
    account = Account(run=f"run/{label}", population=population, partition=partition, part=label, simulated=simulated)
    return Samples(images=images, label=label, spending=Spending(account=account, plans=(plan,)), delta=1e-5)


def pair(left, right, **changes):
    return samples(left, "left", **changes), samples(right, "right", **changes)


# Findings


@pytest.mark.parametrize("kind", TRANSFORMS)
def test_the_planted_transform_is_named(kind):
    summary, transform = TRANSFORMS[kind]
    report = contrast(*pair(transform(letters(300, 0)), letters(300, 1)))
    (finding,) = report.findings
    assert finding.kind == kind
    assert summary in finding.summary
    assert finding.score > 0.9
    assert finding.severity == "high"
    assert report.hypotheses[0]["kind"] == kind


@pytest.mark.parametrize("kind", TRANSFORMS)
def test_a_bug_on_the_healthy_side_is_named_by_what_undoes_it(kind):
    """Undoing a quarter turn is a quarter turn the other way; all else undoes itself."""
    opposite = {"rotated-90": "rotated-270", "rotated-270": "rotated-90"}.get(kind, kind)
    report = contrast(*pair(letters(300, 0), TRANSFORMS[kind][1](letters(300, 1))))
    assert [finding.kind for finding in report.findings] == [opposite]


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
    assert {row["kind"] for row in rows} == {"none", *TRANSFORMS}
    assert rows[0]["kind"] == "none"
    assert [row["distance"] for row in rows] == sorted(row["distance"] for row in rows)


def test_the_energy_distance_is_near_zero_for_equals_and_grows_with_the_difference():
    left, right = letters(300, 0), letters(300, 1)
    near, far = energy_distance(left, right), energy_distance(left, right + 0.5)
    assert 0 <= near < 0.01
    assert far > 20 * max(near, 1e-3)
    assert energy_distance(left, right + 1.0) > far
    assert far == pytest.approx(energy_distance(right + 0.5, left))


def test_a_linear_classifier_tells_apart_what_differs_and_guesses_otherwise():
    assert two_sample_auc(letters(400, 0), letters(400, 1)) == pytest.approx(0.5, abs=0.1)
    assert two_sample_auc(-letters(100, 0), letters(100, 1)) > 0.99


# One side alone


def test_one_side_alone_is_described_without_a_comparison():
    report = contrast(samples(letters(100, 0), "all"), title="look")
    assert (report.title, report.findings, report.hypotheses) == ("look", (), ())
    assert [run["label"] for run in report.runs] == ["all"]
    assert [picture.label for picture in report.pictures] == ["all"]
    assert report.histogram["right"] is None
    assert sum(report.histogram["left"]) == pytest.approx(1, abs=1e-3)
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
