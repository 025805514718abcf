"""`fedlens evaluate`: what it takes, what it writes, and on which data it refuses to work."""

import json

import numpy as np
import pytest
import torch
import toy_texts
import toys
from command_line import answer, fedlens, process, written
from sklearn.datasets import load_digits

from fedlens.core import pins
from fedlens.media.images.samples import Samples

QUICK = ("--samples", 200, "--seeds", 1, "--epochs", 2, "--classifiers", "gaussian_nb,lda", "--cores", 1)


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    """No ledger of the person who runs the tests is looked at."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


@pytest.fixture
def real(tmp_path):
    bundle = load_digits()
    images, labels = (bundle.images * 255 / 16).round().astype(np.uint8), bundle.target
    np.savez(
        tmp_path / "real.npz", x_train=images[:600], y_train=labels[:600], x_test=images[1200:], y_test=labels[1200:]
    )
    np.savez(tmp_path / "made.npz", images=images[600:1200], labels=labels[600:1200])
    np.savez(tmp_path / "bare.npz", x=images[600:1200])
    return tmp_path / "real.npz"


def evaluated(samples, real, *options):
    return fedlens("evaluate", samples, "--real", real, *QUICK, *options)


def registered(folder, images, labels):
    """These images are private, by their owner's word, in a ledger of this folder."""
    np.savez("private.npz", x=images, y=labels, user=np.arange(len(images)) % 60)
    book = ("--ledger", folder / "ledger.sqlite")
    done = fedlens("data", "register", "crowd", "private.npz", "--population", 60, *book)
    assert done.code == 0, done.err
    return book


def refused(done, *words):
    assert done.code == 2, (done.code, done.err)
    assert all(word in done.err for word in words), done.err


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """A finished run of one model of 8 x 8 images."""
    folder = tmp_path_factory.mktemp("models")
    started = process("run", written(folder, toys.TINY), "--out", folder / "runs", "--simulate", 0, "--json")
    assert started.communicate(timeout=120)[0]
    (run,) = (folder / "runs").glob("tiny-*/*/model.safetensors")
    return run.parent


def test_images_of_an_archive_are_evaluated_and_reported(tmp_path, real):
    done = evaluated("made.npz", real, "--public", "--out", tmp_path / "page")
    assert done.code == 0, done.err
    assert "gaussian_nb, accuracy" in done.out
    assert "1/6 the feature network" in done.err
    kept = json.loads((tmp_path / "page" / "report.json").read_text())
    assert [row["name"] for row in kept["evaluation"]["learnt"]] == ["gaussian_nb", "lda"]
    assert {"report.html", "neighbours.png", "features.safetensors"} <= {p.name for p in (tmp_path / "page").iterdir()}


def test_json_is_all_that_is_printed(real):
    made = answer("evaluate", "made.npz", "--real", real, "--public", *QUICK)
    assert made["evaluation"]["average"]["calibrated"] > 0.8
    assert made["guarantee"]["epsilon"] == "infinity"  # nobody knows what these images cost


def test_images_that_the_evaluator_holds_are_not_shown(tmp_path, real):
    assert evaluated("made.npz", real, "--held", "--out", "page").code == 0
    assert not (tmp_path / "page" / "neighbours.png").exists()


def test_a_feature_network_of_before_can_be_used_again(tmp_path, real):
    first = answer("evaluate", "made.npz", "--real", real, "--held", *QUICK, "--out", "a")["evaluation"]
    again = ("--features", "a/features.safetensors", "--out", "b")
    second = answer("evaluate", "made.npz", "--real", real, "--held", *QUICK, *again)["evaluation"]
    assert second["features"] == first["features"]
    assert second["scores"] == first["scores"]


def test_images_without_labels_are_measured_by_distances_alone(real):
    made = answer("evaluate", "bare.npz", "--real", real, "--held", *QUICK)
    assert made["evaluation"]["learnt"] == []
    assert any("have no labels" in warning for warning in made["warnings"])


def test_a_model_draws_what_is_evaluated_and_its_guarantee_stands_beside(models, real):
    made = answer("evaluate", models, "--real", real, "--held", *QUICK, "--out", "page")
    assert made["guarantee"]["epsilon"] == pytest.approx(8, rel=0.01)
    assert made["guarantee"]["simulated"]
    same = answer("evaluate", models / "model.safetensors", "--real", real, "--held", *QUICK, "--out", "page")
    assert same["evaluation"]["scores"] == made["evaluation"]["scores"]


def test_a_model_of_text_is_not_measured(tmp_path, real):
    recipe = toy_texts.written(tmp_path, text='model = "ngrams"') / "recipe.toml"
    one_release = "--set", "privacy.rounds=1", "--set", "privacy.clip=1.0"
    answer("run", recipe, "--out", tmp_path / "runs", "--simulate", 0, *one_release)
    (model,) = (tmp_path / "runs").glob("toy-*/*/model.safetensors")
    refused(evaluated(model, real, "--held"), "Expected a model of images; this one is of text")


def test_samples_of_before_are_evaluated_with_their_guarantee(models, real):
    assert fedlens("sample", models, "--count", 50, "--to", "drawn.safetensors").code == 0
    made = answer("evaluate", "drawn.safetensors", "--real", real, "--held", *QUICK)
    assert made["guarantee"]["epsilon"] == pytest.approx(8, rel=0.01)
    assert "UNVERIFIED" in made["guarantee"]["unverified"]
    assert any("there are 50 synthetic images" in warning for warning in made["warnings"])


def test_samples_with_classes_teach_classifiers(tmp_path, models, real):
    assert fedlens("sample", models, "--count", 50, "--to", "drawn.safetensors").code == 0
    drawn = Samples.open(tmp_path / "drawn.safetensors")
    labelled = Samples(
        images=drawn.images, label="all", spending=drawn.spending, delta=drawn.delta, classes=torch.arange(50) % 10
    )
    labelled.save(tmp_path / "labelled.safetensors")
    made = answer("evaluate", "labelled.safetensors", "--real", real, "--held", *QUICK)
    assert len(made["evaluation"]["learnt"]) == 2


def test_the_guarantee_can_be_stated_at_another_delta(models, real):
    options = ("--real", real, "--held", *QUICK, "--out", "page")
    smaller = answer("evaluate", models, *options, "--delta", "dpimagebench:60000")["guarantee"]
    assert smaller["delta"] == pytest.approx(1.51e-6, rel=0.01)
    assert smaller["epsilon"] > 8.1
    for wrong in ("2", "dpimagebench:1", "many", "dpimagebench:x"):
        refused(evaluated(models, real, "--held", "--delta", wrong), "Expected --delta")


# Private data


def test_somebody_must_say_whose_the_real_images_are(real):
    refused(evaluated("made.npz", real), "Expected --public or --held", "would be a release")


@pytest.mark.parametrize("declared", ["--public", "--held"])
def test_registered_data_are_refused_whatever_they_are_called(tmp_path, real, declared):
    images, labels = np.load(real)["x_train"], np.load(real)["y_train"]
    book = registered(tmp_path / "out", images, labels)
    words = ("holds private data, of 'crowd'", "would be a release: it is not charged here")
    refused(evaluated("made.npz", real, declared, *book), *words)
    refused(evaluated("made.npz", real, declared), *words)  # the owner's ledger is known by then
    assert not (tmp_path / "made-evaluation").exists()


@pytest.mark.parametrize("declared", ["--public", "--held"])
def test_registered_data_do_not_pass_for_synthetic_ones(tmp_path, real, declared):
    """What is called synthetic is measured, and shown: that would be private rows."""
    book = registered(tmp_path / "out", np.load("made.npz")["images"], np.load("made.npz")["labels"])
    for samples in ("private.npz", "made.npz", "bare.npz"):
        refused(evaluated(samples, real, declared, *book), "holds private data, of 'crowd'", "would be a release")
        assert not list(tmp_path.glob("*-evaluation"))


def test_a_ledger_beside_the_models_knows_what_is_private(tmp_path, real, monkeypatch):
    registered(tmp_path / "runs", np.load(real)["x_test"], np.load(real)["y_test"])
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "another"))
    (tmp_path / "runs" / "a" / "b").mkdir(parents=True)
    (tmp_path / "made.npz").rename(tmp_path / "runs" / "a" / "b" / "made.npz")
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    refused(evaluated(tmp_path / "runs" / "a" / "b" / "made.npz", real, "--held"), "holds private data, of 'crowd'")


def test_other_data_of_the_same_kind_pass_beside_a_ledger(tmp_path, real):
    book = registered(tmp_path / "out", 255 - np.load("made.npz")["images"], np.load("made.npz")["labels"])
    assert evaluated("made.npz", real, "--held", *book).code == 0


def test_on_a_pinned_machine_real_images_are_declared_by_the_owner(tmp_path, real, monkeypatch):
    place = tmp_path / "config" / "fedlens" / "pin.toml"
    pins.Pin(ledger=str(tmp_path / "ledger.sqlite"), place=place).save()
    refused(evaluated("made.npz", real, "--public"), "declared public", "pinned")


# What cannot be done


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--classifiers", "oracle"), "Expected classifiers among"),
        (("--augmentation", "mirror"), "one of none, affine"),
        (("--names", "x,y"), "Expected --names of four arrays"),
        (("--names", "a,b,c,d"), "Expected a, b in real.npz"),
        (("--device", "tpu"), "Expected a device of this machine"),
        (("--features", "nowhere.safetensors"), "nowhere.safetensors"),
    ],
)
def test_a_mistake_is_explained(real, options, words):
    refused(evaluated("made.npz", real, "--held", *options), words)


def test_files_that_are_not_there_or_something_else_are_named(tmp_path, real):
    refused(evaluated("nowhere.npz", real, "--held"), "nowhere.npz")
    refused(evaluated("made.npz", tmp_path / "nowhere.npz", "--held"), "nowhere.npz")
    refused(evaluated("nowhere.safetensors", real, "--held"), "nowhere.safetensors")
    (tmp_path / "empty").mkdir()
    refused(evaluated("empty", real, "--held"), "Expected a trained model")
    (tmp_path / "torn.npz").write_bytes((tmp_path / "made.npz").read_bytes()[:1000])
    refused(evaluated("torn.npz", real, "--held"), "torn.npz")


def test_synthetic_images_that_are_not_numbers_are_refused(tmp_path, real):
    np.savez(tmp_path / "odd.npz", images=np.full((30, 8, 8), np.nan, np.float32), labels=np.arange(30) % 10)
    refused(evaluated("odd.npz", real, "--held"), "finite pixels")
    np.savez(tmp_path / "odd.npz", images=np.zeros((30, 9, 9), np.float32), labels=np.arange(30) % 10)
    refused(evaluated("odd.npz", real, "--held"), "synthetic images of 1 x 8 x 8, got 1 x 9 x 9")


def test_the_command_explains_itself_and_offers_json():
    done = fedlens("evaluate", "--help")
    assert done.code == 0
    assert "--json" in done.out
