"""How good synthetic images are: classifiers, distances and the protocol, on digits that anybody may see."""

import functools
import json
import math
import subprocess
import sys

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from fedlens.core import trees
from fedlens.evaluation import classifiers, distances, exhibits, features, networks, suite
from fedlens.evaluation.classifiers import CLASSIFIERS
from fedlens.evaluation.networks import TrainingRule
from fedlens.evaluation.protocol import Evaluation, Protocol, Spread, dpimagebench_delta
from fedlens.evaluation.suite import Real
from fedlens.models.classifier import Primary

FAST = TrainingRule(epochs=6)
QUICK = Protocol(samples=600, seeds=2, epochs=3, feature_epochs=2, classifiers=("cnn", "mlp", "gaussian_nb"))


@functools.cache
def digits():
    bundle = load_digits()
    images = torch.tensor(bundle.images[:, None] / 8 - 1, dtype=torch.float32)
    return images, torch.tensor(bundle.target, dtype=torch.int64)


@functools.cache
def real():
    images, labels = digits()
    return Real.of(images[:600], labels[:600], images[1200:], labels[1200:])


def synthetic():
    """Other real digits, which are as good as synthetic ones can be."""
    images, labels = digits()
    return images[600:1200], labels[600:1200]


@functools.cache
def quick():
    return suite.evaluated(synthetic(), real(), QUICK)


# Classifiers


@pytest.mark.parametrize("name", CLASSIFIERS)
def test_each_of_the_13_classifiers_learns_digits(name):
    pytest.importorskip("xgboost" if name == "xgboost" else "sklearn")
    images, labels = digits()
    predictor = classifiers.trained(name, images[:600], labels[:600], training=FAST)
    assert classifiers.accuracy(predictor, images[600:], labels[600:]) > 0.6


def test_there_are_13_classifiers():
    assert len(CLASSIFIERS) == len(set(CLASSIFIERS)) == 13


@pytest.mark.parametrize("name", ["cnn", "mlp", "gaussian_nb", "decision_tree"])
def test_labels_dealt_at_random_teach_nothing(name):
    images, labels = digits()
    dealt = labels[torch.randperm(900, generator=torch.Generator().manual_seed(0))]
    predictor = classifiers.trained(name, images[:900], dealt, training=FAST)
    assert classifiers.accuracy(predictor, images[900:], labels[900:]) < 0.25


@pytest.mark.parametrize("name", ["cnn", "mlp", "random_forest"])
def test_one_seed_gives_one_classifier_and_another_another(name):
    images, labels = digits()

    def answers(seed):
        few = classifiers.trained(name, images[:100], labels[:100], seed=seed, training=TrainingRule(epochs=1))
        return few.predictions(images)

    assert torch.equal(answers(1), answers(1))
    assert not torch.equal(answers(1), answers(2))


def test_training_leaves_the_randomness_of_others_alone():
    images, labels = digits()
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    classifiers.trained("cnn", images[:100], labels[:100], training=TrainingRule(epochs=1))
    assert torch.equal(torch.rand(3), expected)


@pytest.mark.parametrize("name", ["cnn", "lda", "linear_svc", "gbm"])
def test_a_single_class_is_all_that_is_ever_named(name):
    images, _ = digits()
    predictor = classifiers.trained(name, images[:50], torch.full((50,), 3))
    assert predictor.predictions(images[:5]).tolist() == [3] * 5


def test_classes_need_not_be_counted_from_zero():
    pytest.importorskip("xgboost")
    images, labels = digits()
    rows = (labels == 2) | (labels == 7)
    for name in ("cnn", "xgboost", "lda"):
        predictor = classifiers.trained(name, images[rows], labels[rows], training=FAST)
        assert classifiers.accuracy(predictor, images[rows], labels[rows]) > 0.95


def test_where_nothing_can_be_learnt_the_commonest_class_is_named():
    labels = torch.tensor([4] * 30 + [5] * 20)
    predictor = classifiers.trained("lda", torch.zeros(50, 1, 8, 8), labels)
    assert predictor.predictions(torch.zeros(2, 1, 8, 8)).tolist() == [4, 4]


@pytest.mark.parametrize(
    ("images", "labels", "words"),
    [
        (torch.zeros(4, 8, 8), torch.zeros(4, dtype=torch.int64), "channels, height, width"),
        (torch.zeros(0, 1, 8, 8), torch.zeros(0, dtype=torch.int64), "channels, height, width"),
        (torch.zeros(4, 1, 8, 8, dtype=torch.uint8), torch.zeros(4, dtype=torch.int64), "floats"),
        (torch.full((4, 1, 8, 8), math.nan), torch.zeros(4, dtype=torch.int64), "finite pixels"),
        (torch.zeros(4, 1, 8, 8), torch.zeros(3, dtype=torch.int64), "each of 4 images"),
        (torch.zeros(4, 1, 8, 8), torch.zeros(4), "whole number"),
    ],
)
def test_what_cannot_be_trained_on_is_refused(images, labels, words):
    with pytest.raises(ValueError, match=words):
        classifiers.trained("cnn", images, labels)


def test_an_unknown_classifier_is_refused_with_the_known_ones():
    with pytest.raises(ValueError, match=r"Expected classifiers among mlp, cnn, .* got oracle"):
        Protocol(classifiers=("cnn", "oracle"))


def test_without_xgboost_one_is_told_what_to_do(monkeypatch):
    monkeypatch.setitem(sys.modules, "xgboost", None)
    with pytest.raises(ValueError, match=r"install fedlens\[evaluation\], or name others"):
        suite.evaluated(synthetic(), real(), Protocol())
    assert suite.evaluated((synthetic()[0], None), real(), QUICK).scores == quick().scores


def test_classifiers_and_distances_load_nothing_that_a_gpu_machine_may_lack():
    script = (
        "import sys\nfrom fedlens.evaluation import classifiers, distances, features, protocol, suite\n"
        "print([m for m in ('xgboost', 'pydantic', 'dp_accounting', 'sklearn') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.strip() == "[]"


def test_augmented_images_are_others_of_the_same_size_and_range():
    images, _ = digits()
    rng = torch.Generator().manual_seed(0)
    assert torch.equal(networks.augmented(images[:8], "none", rng), images[:8])
    moved = networks.augmented(images[:8], "affine", rng)
    assert moved.shape == images[:8].shape
    assert not torch.equal(moved, images[:8])
    assert moved.abs().max() <= 1 + 1e-6
    assert (moved - images[:8]).abs().mean() < (images[8:16] - images[:8]).abs().mean()


def test_an_augmented_network_learns_too():
    images, labels = digits()
    training = TrainingRule(epochs=6, augmentation="affine")
    predictor = classifiers.trained("cnn", images[:600], labels[:600], training=training)
    assert classifiers.accuracy(predictor, images[600:], labels[600:]) > 0.7


def test_operations_are_counted_for_networks_alone():
    counted = classifiers.flop("mlp", (1, 8, 8), 10, 3200, TrainingRule(epochs=2))
    # Forward and twice backward, but nothing flows back to the images: 64 x 100 twice, 100 x 10 three times.
    assert counted == 2 * 2 * 3200 * (2 * 64 * 100 + 3 * 100 * 10)
    assert classifiers.flop("lda", (1, 8, 8), 10, 3200, TrainingRule()) is None


@pytest.mark.parametrize(("changes", "words"), [({"epochs": 0}, "epochs=0"), ({"augmentation": "all"}, "one of none")])
def test_a_training_that_makes_no_sense_is_refused(changes, words):
    with pytest.raises(ValueError, match=words):
        TrainingRule(**changes)


# Distances


def test_equal_sets_have_no_frechet_distance():
    rows = torch.randn(500, 16, generator=torch.Generator().manual_seed(0))
    assert distances.frechet(rows, rows) == pytest.approx(0, abs=1e-9)
    assert distances.frechet(torch.ones(9, 4), torch.ones(9, 4)) == 0


def test_the_frechet_distance_of_normals_is_the_closed_form():
    """Of covariances that commute: the mean apart, and each deviation apart."""
    rng = torch.Generator().manual_seed(1)
    turned = torch.linalg.qr(torch.randn(6, 6, generator=rng, dtype=torch.float64)).Q
    one, other = torch.rand(6, generator=rng).double() * 3, torch.rand(6, generator=rng).double()
    apart = torch.arange(6).double()
    spreads = [turned @ torch.diag(deviation**2) @ turned.T for deviation in (one, other)]
    expected = float(apart.square().sum() + (one - other).square().sum())
    measured = distances.frechet_of(torch.zeros(6), spreads[0], apart, spreads[1])
    assert measured == pytest.approx(expected, rel=1e-10)


def test_the_frechet_distance_of_covariances_that_do_not_commute_is_that_of_scipy():
    linalg = pytest.importorskip("scipy.linalg")
    rng = np.random.default_rng(0)
    a, b = (m @ m.T for m in rng.normal(size=(2, 5, 5)))
    expected = np.trace(a + b - 2 * linalg.sqrtm(a @ b).real)
    zero = torch.zeros(5)
    assert distances.frechet_of(zero, torch.tensor(a), zero, torch.tensor(b)) == pytest.approx(expected, rel=1e-9)


def test_the_frechet_distance_of_fewer_images_than_features_is_a_number():
    rng = torch.Generator().manual_seed(2)
    few, many = torch.randn(5, 40, generator=rng), torch.randn(300, 40, generator=rng)
    assert 0 < distances.frechet(few, many) < math.inf
    assert distances.frechet(few, few) == pytest.approx(0, abs=1e-9)


def test_the_same_images_are_precise_and_cover_everything():
    rows = torch.randn(200, 4, generator=torch.Generator().manual_seed(0))
    same = distances.manifolds(rows, rows)
    assert same[:2] == (1, 1)
    assert same.coverage == 1


def test_images_far_away_are_neither_precise_nor_cover_anything():
    rows = torch.randn(200, 4, generator=torch.Generator().manual_seed(0))
    assert distances.manifolds(rows, rows + 1000) == (0, 0, 0, 0)


def test_one_mode_of_two_is_precise_and_covers_half():
    rng = torch.Generator().manual_seed(3)
    both = torch.cat([torch.randn(100, 3, generator=rng), 100 + torch.randn(100, 3, generator=rng)])
    alone = distances.manifolds(both, both[:100])
    assert (alone.precision, alone.recall, alone.coverage) == (1, 0.5, 0.5)
    other_way = distances.manifolds(both[:100], both)
    assert (other_way.precision, other_way.recall, other_way.coverage) == (0.5, 1, 1)


def test_density_counts_how_many_balls_hold_an_image():
    """Five real images on a line, one apart: the ball of each reaches its second neighbour."""
    line = torch.arange(5.0)[:, None]
    counted = distances.manifolds(line, torch.tensor([[2.0], [2.0]]), near=1, around=1)
    assert counted.density == 3  # within one of 2: the balls of 1, 2 and 3
    assert counted.coverage == 3 / 5


def test_images_that_are_all_the_same_are_no_error():
    assert distances.manifolds(torch.ones(10, 3), torch.ones(10, 3)) == (1, 1, 2, 1)


def test_pieces_make_no_difference(monkeypatch):
    rng = torch.Generator().manual_seed(4)
    left, right = torch.randn(70, 5, generator=rng), torch.randn(50, 5, generator=rng) + 0.5
    whole = distances.manifolds(left, right)
    monkeypatch.setattr(distances, "PIECE", 7)
    assert distances.manifolds(left, right) == whole


def test_a_single_image_has_no_neighbours():
    with pytest.raises(ValueError, match="Expected two images of each kind"):
        distances.manifolds(torch.ones(1, 3), torch.ones(10, 3))


def test_the_nearest_image_of_a_copy_is_the_original():
    images, _ = digits()
    rows, apart = distances.nearest(images[40:44], images[:100], 2)
    assert rows[:, 0].tolist() == [40, 41, 42, 43]
    assert apart[:, 0].tolist() == [0, 0, 0, 0]
    assert bool((apart[:, 1] > 0).all())


def test_the_feature_network_is_kept_with_its_hash(tmp_path):
    images, labels = digits()
    network = features.trained(images[:300], labels[:300], classes=10, epochs=3)
    network.save(tmp_path / "features.safetensors")
    opened = Primary.open(tmp_path / "features.safetensors")
    assert opened.digest == network.digest
    for one, other in zip(features.answers(network, images[:9]), features.answers(opened, images[:9]), strict=True):
        assert torch.equal(one, other)
    assert features.answers(network, images[:9])[0].shape == (9, features.FEATURES)


# The protocol


def test_real_digits_in_place_of_synthetic_ones_are_worth_about_what_real_ones_are():
    evaluation = quick()
    assert [one.name for one in evaluation.learnt] == list(QUICK.classifiers)
    assert all(0.85 < one.calibrated < 1.15 for one in evaluation.learnt)
    frechet = evaluation.score("frechet distance")
    assert frechet.value.mean == pytest.approx(frechet.real, rel=0.5)
    assert evaluation.sizes == {"synthetic": 600, "train": 600, "test": 597}


def test_labels_dealt_at_random_are_worth_chance():
    images, labels = synthetic()
    dealt = labels[torch.randperm(600, generator=torch.Generator().manual_seed(0))]
    evaluation = suite.evaluated((images, dealt), real(), QUICK)
    assert all(one.accuracy.mean < 0.3 for one in evaluation.learnt)
    assert evaluation.scores == quick().scores  # which do not look at labels


def test_noise_lies_further_away_than_digits():
    images, labels = synthetic()
    noise = 2 * torch.rand(images.shape, generator=torch.Generator().manual_seed(0)) - 1
    evaluation = suite.evaluated((noise, labels), real(), QUICK)
    frechet = evaluation.score("frechet distance")
    assert frechet.value.mean > 10 * frechet.real
    assert evaluation.score("coverage").value.mean < 0.5 < quick().score("coverage").value.mean


def test_the_same_seed_gives_the_same_evaluation():
    again = suite.evaluated(synthetic(), real(), QUICK)
    assert [(one.accuracy, one.real, one.weights) for one in again.learnt] == [
        (one.accuracy, one.real, one.weights) for one in quick().learnt
    ]
    assert (again.scores, again.counts, again.features) == (quick().scores, quick().counts, quick().features)


def test_processes_of_their_own_measure_the_same():
    again = suite.evaluated(synthetic(), real(), QUICK, cores=2)
    assert [(one.accuracy, one.real) for one in again.learnt] == [(one.accuracy, one.real) for one in quick().learnt]


def test_the_test_images_decide_about_nothing():
    """Other labels of the test images change accuracies, and neither a weight nor what was kept back."""
    held = real()
    dealt = held.test_labels[torch.randperm(597, generator=torch.Generator().manual_seed(0))]
    other = Real(images=held.images, labels=held.labels, test_images=held.test_images, test_labels=dealt)
    blind = suite.evaluated(synthetic(), other, QUICK)
    assert all(one.accuracy.mean < 0.3 for one in blind.learnt)
    assert [one.weights for one in blind.learnt] == [one.weights for one in quick().learnt]
    assert all(len(one.weights) == 2 for one in blind.learnt[:2])
    assert [one.validation for one in blind.learnt] == [one.validation for one in quick().learnt]
    assert (blind.features, blind.scores) == (quick().features, quick().scores)


def test_fewer_test_images_change_no_weight_either():
    held = real()
    fewer = Real(
        images=held.images, labels=held.labels, test_images=-held.test_images[:50], test_labels=held.labels[:50]
    )
    blind = suite.evaluated(synthetic(), fewer, QUICK)
    assert [one.weights for one in blind.learnt] == [one.weights for one in quick().learnt]


def test_what_is_kept_back_is_synthetic_and_not_trained_on():
    used, kept = suite._kept_back(100, 0.1)
    assert (len(used), len(kept)) == (90, 10)
    assert sorted([*used.tolist(), *kept.tolist()]) == list(range(100))
    assert len(suite._kept_back(1, 0.9)[0]) == 1


def test_without_validation_nothing_is_kept_back():
    protocol = Protocol(samples=100, seeds=1, validation=0, classifiers=("gaussian_nb",), feature_epochs=1)
    (learnt,) = suite.evaluated(synthetic(), real(), protocol).learnt
    assert learnt.validation is None
    assert learnt.accuracy.deviation is None


def test_a_source_draws_anew_for_each_seed():
    images, labels = synthetic()
    asked = []

    def draw(count, seed):
        asked.append((count, seed))
        return images[seed * 50 : seed * 50 + count], labels[seed * 50 : seed * 50 + count]

    protocol = Protocol(samples=200, seeds=3, classifiers=("gaussian_nb",), feature_epochs=1)
    evaluation = suite.evaluated(draw, real(), protocol)
    assert asked == [(200, 0), (200, 1), (200, 2)]
    assert len(set(evaluation.learnt[0].accuracy.values)) > 1
    assert evaluation.warnings == ()


def test_images_without_labels_are_measured_by_distances_alone():
    evaluation = suite.evaluated((synthetic()[0], None), real(), QUICK)
    assert evaluation.learnt == ()
    assert evaluation.average is None
    assert evaluation.scores == quick().scores
    assert all(count.synthetic is None for count in evaluation.counts)
    assert "have no labels" in evaluation.warnings[0]
    assert "Frechet distance" in exhibits.summary(evaluation).summary


def test_a_feature_network_of_before_gives_the_numbers_of_before():
    network = suite.feature_network(real(), QUICK)
    again = suite.evaluated((synthetic()[0], None), real(), QUICK, network=network)
    assert (again.features, again.scores) == (quick().features, quick().scores)
    small = features.trained(real().images[:, :, :4, :4], real().labels, classes=10, epochs=1)
    with pytest.raises(ValueError, match="Expected a feature network for 1 x 8 x 8"):
        suite.evaluated(synthetic(), real(), QUICK, network=small)


def test_progress_is_told_step_by_step():
    lines = []
    suite.evaluated((synthetic()[0], None), real(), QUICK, progress=lambda *step: lines.append(step))
    assert [line[:2] for line in lines] == [(1, 3), (2, 3), (3, 3)]


def test_an_evaluation_is_the_same_after_json():
    kept = json.loads(json.dumps(quick().to_dict(), allow_nan=False))
    assert Evaluation.from_dict(kept) == quick()
    with pytest.raises(ValueError, match="it is damaged"):
        Evaluation.from_dict({**kept, "scores": [{}]})


def test_means_and_deviations_are_those_of_the_seeds():
    spread = Spread(values=(0.9, 0.8, 1.0))
    assert (spread.mean, spread.deviation) == (pytest.approx(0.9), pytest.approx(0.1))
    assert str(Spread(values=(0.5,))) == "0.500"


def test_dpimagebench_chooses_a_delta_by_the_number_of_examples():
    assert dpimagebench_delta(60_000) == pytest.approx(1 / (60_000 * math.log(60_000)))
    with pytest.raises(ValueError, match="examples=1 >= 3"):
        dpimagebench_delta(1)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"samples": 0}, "samples=0"),
        ({"seeds": 0}, "seeds=0"),
        ({"validation": 1.0}, "validation=1.0"),
        ({"epochs": 0}, "epochs=0"),
        ({"augmentation": "mirror"}, "one of none, affine"),
        ({"classifiers": ("cnn", "cnn")}, "each classifier once"),
    ],
)
def test_a_protocol_that_makes_no_sense_is_refused(changes, words):
    with pytest.raises(ValueError, match=words):
        Protocol(**{"classifiers": ("cnn",)} | changes)


# Odd images


def odd(changed, labels=None, **changes):
    protocol = Protocol(**{"samples": 300, "seeds": 1, "epochs": 1, "feature_epochs": 1} | changes)
    return suite.evaluated((changed, synthetic()[1][: len(changed)] if labels is None else labels), real(), protocol)


def test_a_class_that_is_missing_is_told_and_the_rest_is_measured():
    images, labels = synthetic()
    evaluation = odd(images[labels != 3], labels[labels != 3], classifiers=("gaussian_nb", "cnn"))
    assert "no synthetic image is of class 3, which real ones are of" in evaluation.warnings
    assert 0.4 < evaluation.classifier("gaussian_nb").accuracy.mean < 0.95
    assert next(count for count in evaluation.counts if count.label == 3).synthetic == 0


def test_a_class_that_nobody_knows_is_told():
    images, labels = synthetic()
    evaluation = odd(images, labels + 5, classifiers=("gaussian_nb",))
    assert any("class 10, 11" in warning for warning in evaluation.warnings)


def test_fewer_images_than_asked_for_are_told():
    evaluation = odd(synthetic()[0][:100], classifiers=("gaussian_nb",))
    assert "there are 100 synthetic images, fewer than the 300 of the protocol" in evaluation.warnings


def test_images_that_are_all_the_same_get_an_answer_and_a_warning():
    names = ("cnn", "lda", "gaussian_nb", "decision_tree")
    evaluation = odd(torch.zeros(300, 1, 8, 8), classifiers=names)
    assert "all synthetic images are the same" in evaluation.warnings
    assert any("lda always gives one answer" in warning for warning in evaluation.warnings)
    assert all(one.accuracy.mean < 0.3 for one in evaluation.learnt)
    assert all(math.isfinite(score.value.mean) for score in evaluation.scores)


def test_one_class_alone_gets_an_answer_and_a_warning():
    evaluation = odd(synthetic()[0], torch.full((600,), 4), classifiers=("cnn", "gaussian_nb"))
    assert all(0 < one.accuracy.mean < 0.2 for one in evaluation.learnt)
    assert any("there is one class to learn" in warning for warning in evaluation.warnings)


@pytest.mark.parametrize(
    ("images", "words"),
    [
        (torch.zeros(50, 1, 9, 9), "synthetic images of 1 x 8 x 8, got 1 x 9 x 9"),
        (torch.zeros(50, 3, 8, 8), "synthetic images of 1 x 8 x 8, got 3 x 8 x 8"),
        (torch.full((50, 1, 8, 8), math.nan), "finite pixels.*synthetic"),
        (torch.full((50, 1, 8, 8), 255.0), r"pixels in \[-1, 1\] in the synthetic"),
        (torch.zeros(1, 1, 8, 8), "two synthetic images"),
        (torch.zeros(0, 1, 8, 8), "synthetic"),
    ],
)
def test_images_that_cannot_be_compared_are_refused(images, words):
    with pytest.raises(ValueError, match=words):
        odd(images, classifiers=("gaussian_nb",))


def test_labels_below_zero_are_refused():
    with pytest.raises(ValueError, match="labels of 0 and above for the synthetic"):
        odd(synthetic()[0], -synthetic()[1], classifiers=("gaussian_nb",))


def test_real_images_of_two_sizes_or_one_class_are_refused():
    held = real()
    with pytest.raises(ValueError, match="Expected test images of 1 x 8 x 8, got 1 x 4 x 4"):
        Real.of(held.images, held.labels, held.test_images[:, :, :4, :4], held.test_labels)
    with pytest.raises(ValueError, match="square images, got 1 x 8 x 4"):
        Real.of(held.images[..., :4], held.labels, held.test_images[..., :4], held.test_labels)
    with pytest.raises(ValueError, match="real images of two classes"):
        Real.of(held.images, 0 * held.labels, held.test_images, held.test_labels)


def test_colour_is_as_good_as_grey():
    images, labels = synthetic()
    held, three = real(), (1, 3, 1, 1)
    coloured = Real.of(held.images.repeat(three), held.labels, held.test_images.repeat(three), held.test_labels)
    protocol = Protocol(samples=600, seeds=1, epochs=3, feature_epochs=2, classifiers=("cnn", "gaussian_nb"))
    evaluation = suite.evaluated((images.repeat(three), labels), coloured, protocol)
    assert all(0.85 < one.calibrated < 1.15 for one in evaluation.learnt)


# The report


def test_a_report_shows_tables_charts_and_a_picture_that_is_no_evidence(tmp_path):
    neighbours = exhibits.NearestImages.of(synthetic()[0], real().images)
    report = exhibits.reported(quick(), title="digits", neighbours=neighbours)
    report.save(tmp_path)
    page, kept = (tmp_path / "report.html").read_text(), json.loads((tmp_path / "report.json").read_text())
    assert all(words in page for words in ("A picture, and no evidence", quick().features, "gaussian_nb", "calibrated"))
    assert Evaluation.from_dict(kept["evaluation"]) == quick()
    assert kept["neighbours"]["evidence"] is False
    assert (tmp_path / "neighbours.png").read_bytes()[:4] == b"\x89PNG"
    assert [chart["title"] for chart in kept["charts"]] == ["Accuracy on real test images", "Classes"]
    assert "calibrated" in report.text()
    assert "INFINITE" in report.text()  # of images that carry no guarantee


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_learns_as_well_and_the_same_twice():
    images, labels = digits()
    made = [classifiers.trained("cnn", images[:900], labels[:900], device="cuda", training=FAST) for _ in range(2)]
    assert classifiers.accuracy(made[0], images[900:], labels[900:]) > 0.8
    assert trees.digest(made[0].module.state_dict()) == trees.digest(made[1].module.state_dict())
