"""Primary models from anywhere: asked in one way, slice by slice, and silent about the images they see."""

import contextlib
import copy
import dataclasses
import hashlib
import io
import json
import zipfile

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from typer.testing import CliRunner

from fedlens.cli.primary import primary_app
from fedlens.core import trees
from fedlens.models import classifier
from fedlens.models.classifier import ConvClassifier, Primary
from fedlens.models.primary import checked, open_primary, trained

pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")

SIDE, CLASSES = 8, 3
SECRET = 0.8765  # a pixel that no error may quote


def net(classes=CLASSES, channels=1, end=None, middle=None):
    torch.manual_seed(0)
    layers = [nn.Conv2d(channels, 4, 3), middle or nn.ReLU(), nn.Flatten(), nn.Linear(4 * (SIDE - 2) ** 2, classes)]
    return nn.Sequential(*layers, *([end] if end else [])).eval()


class Scaled(nn.Module):
    """A net that wants its pixels in a range of its own, or its channels last."""

    def __init__(self, low: float, high: float, last: bool = False):
        super().__init__()
        self.net, self.low, self.high, self.last = net(), low, high, last

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.last:
            x = x.permute(0, 3, 1, 2)
        return self.net((x - self.low) / (self.high - self.low) * 2 - 1)


class Mean(nn.Module):
    """Its scores are the pixels' mean, times 0, 1, 2."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.flatten(1).mean(1, keepdim=True) * torch.arange(3)


class Touchy(nn.Module):
    """Where the first pixel is a certain one it fails, or its answer is not finite."""

    def __init__(self, fails: bool):
        super().__init__()
        self.fails = fails

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        peak = x.flatten(1)[:, 0]
        scores = x.flatten(1)[:, :3]
        if self.fails:  # there is no score with the number 8765
            return scores.gather(1, torch.arange(3) + (peak == 0.8765).long()[:, None] * 8765)
        return torch.where((peak == 0.8765)[:, None], torch.full_like(scores, float("nan")), scores)


class Returning(nn.Module):
    """Answers in a form that is no table of scores."""

    def __init__(self, form: str):
        super().__init__()
        self.form = form

    def forward(self, x: torch.Tensor):
        n = x.shape[0]
        table = x.reshape(n, -1)[:, :6]
        forms = {"vector": table[:, 0], "column": table[:, :1], "cube": table.reshape(n, 2, 3), "pair": (table, table)}
        return forms[self.form]


def torchscript(model, path):
    torch.jit.save(torch.jit.script(model), path)
    return path


def exported(model, path, *, rows=4, channels=1, last=False, batch=None):
    """A torch.export program; `batch` is the Dim of its first axis, None fixes it to `rows`."""
    shape = (rows, SIDE, SIDE, channels) if last else (rows, channels, SIDE, SIDE)
    shapes = ({0: batch},) if batch is not None else None
    torch.export.save(torch.export.export(model, (torch.zeros(shape),), dynamic_shapes=shapes), path)
    return path


def dynamic(model, path, **options):
    return exported(model, path, batch=torch.export.Dim("batch"), **options)


WRITERS = {"torchscript": torchscript, "torch.export": dynamic}


@pytest.fixture(params=WRITERS)
def kind(request):
    return request.param


def images(count, channels=1, seed=0):
    return torch.rand(count, channels, SIDE, SIDE, generator=torch.Generator().manual_seed(seed)) * 2 - 1


def opened(path, **options):
    return open_primary(path, **{"side": SIDE} | options)


# One interface


def test_a_foreign_model_is_asked_as_ours_is(tmp_path, kind):
    model, x = net(), images(10)
    path = WRITERS[kind](model, tmp_path / "model")  # no ending: content tells
    primary = opened(path, classes=CLASSES)
    expected = model(x).detach()
    assert (primary.kind, primary.side, primary.channels, primary.classes) == (kind, SIDE, 1, CLASSES)
    assert primary.digest == hashlib.sha256(path.read_bytes()).hexdigest()
    torch.testing.assert_close(primary.probabilities(x), expected.softmax(1))
    torch.testing.assert_close(primary.confidence(x), expected.softmax(1).max(1).values)
    torch.testing.assert_close(primary.features(x), expected)
    assert torch.equal(primary.predictions(x), expected.argmax(1))
    assert len(primary.predictions(x).unique()) > 1  # else agreeing would mean little
    assert not primary.features(x).requires_grad


def test_ours_are_asked_in_the_same_way(tmp_path):
    network = ConvClassifier(side=SIDE, classes=4, widths=(4,), hidden=5)
    ours, x = Primary(network, network.init(0)), images(10)
    ours.save(tmp_path / "cnn")
    again = opened(tmp_path / "cnn", classes=4)
    assert (again.kind, again.side, again.channels, again.classes) == ("fedlens", SIDE, 1, 4)
    assert again.digest == ours.digest == trees.digest(ours.params)
    torch.testing.assert_close(again.probabilities(x), network.scores(ours.params, x).softmax(1))
    assert again.features(x).shape == (10, 5)
    scores = again.features(x) @ ours.params["classes.weight"].T + ours.params["classes.bias"]
    torch.testing.assert_close(scores, network.scores(ours.params, x))


@pytest.mark.parametrize(("values", "low", "high"), [("zero-to-one", 0, 1), ("bytes", 0, 255)])
@pytest.mark.parametrize("last", [False, True])
def test_pixels_reach_a_foreign_model_in_its_own_range_and_order(tmp_path, kind, values, low, high, last):
    model = Scaled(low, high, last).eval()
    options = {"last": last} if kind == "torch.export" else {}
    path = WRITERS[kind](model, tmp_path / "model.pt", **options)
    primary = opened(path, values=values, channels_last=last)
    x = trees.pixels((images(6) * 127.5 + 127.5).to(torch.uint8))
    torch.testing.assert_close(primary.features(x), net()(x).detach(), rtol=1e-3, atol=1e-4)
    wrong = opened(path, channels_last=last)
    assert not torch.allclose(wrong.features(x), primary.features(x), atol=1e-2)


def test_bytes_come_back_exactly(tmp_path):
    every = torch.arange(256, dtype=torch.uint8).repeat(SIDE * SIDE, 1).T.reshape(256, 1, SIDE, SIDE)
    primary = opened(torchscript(nn.Flatten(), tmp_path / "m.pt"), values="bytes")
    assert torch.equal(primary.features(trees.pixels(every)), every.flatten(1).float())
    assert torch.equal(primary.features(every), every.flatten(1).float())  # and bytes may be handed in


def test_colour_images_are_asked_about_too(tmp_path, kind):
    model = net(channels=3)
    path = WRITERS[kind](model, tmp_path / "model.pt", **({"channels": 3} if kind == "torch.export" else {}))
    x = images(5, channels=3)
    torch.testing.assert_close(opened(path, channels=3).features(x), model(x).detach())


@pytest.mark.parametrize("end", [None, nn.Softmax(1), nn.LogSoftmax(1)])
def test_scores_probabilities_and_their_logarithms_give_the_same_probabilities(tmp_path, kind, end):
    primary, x = opened(WRITERS[kind](net(end=end), tmp_path / "model.pt")), images(20)
    torch.testing.assert_close(primary.probabilities(x), net()(x).softmax(1).detach())
    assert torch.equal(primary.predictions(x), net()(x).argmax(1))


def test_a_class_of_probability_zero_is_no_reason_to_be_silent(tmp_path):
    class Sure(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.tensor([0.0, 0.25, 0.75]).log().expand(x.shape[0], 3).contiguous()

    primary = opened(torchscript(Sure(), tmp_path / "model.pt"))
    torch.testing.assert_close(primary.probabilities(images(2)), torch.tensor([[0.0, 0.25, 0.75]] * 2))


def test_a_model_is_asked_in_evaluation_mode(tmp_path):
    model = net(middle=nn.Dropout(0.9)).train()
    x = images(5)
    primary = opened(torchscript(model, tmp_path / "model.pt"))
    torch.testing.assert_close(primary.features(x), copy.deepcopy(model).eval()(x).detach())


def test_no_image_has_no_answer(tmp_path, kind):
    for path in (WRITERS[kind](net(), tmp_path / "free"), exported(net(), tmp_path / "fixed")):
        primary = opened(path)
        assert primary.probabilities(images(0)).shape == (0, CLASSES)
        assert primary.predictions(images(0)).shape == (0,)
        assert primary.confidence(images(0)).shape == (0,)


# Files


def test_a_foreign_model_is_copied_byte_for_byte(tmp_path, kind):
    path, kept = WRITERS[kind](net(), tmp_path / "model.pt"), tmp_path / "run" / "primary.safetensors"
    primary = opened(path)
    primary.save(kept)
    assert kept.read_bytes() == path.read_bytes()
    again, x = opened(kept), images(5)  # whatever its name says
    assert again.digest == primary.digest
    assert torch.equal(again.probabilities(x), primary.probabilities(x))


def test_a_file_that_changed_after_it_was_opened_is_not_copied(tmp_path):
    path = torchscript(net(), tmp_path / "model.pt")
    primary = opened(path)
    torchscript(net(classes=5), path)
    with pytest.raises(ValueError, match=r"Expected model\.pt as it was"):
        primary.save(tmp_path / "copy")
    assert not (tmp_path / "copy").exists()


def test_files_of_earlier_versions_still_open(tmp_path):
    """Their header knows neither `pooled` nor `padded`: every convolution is padded, then halved."""
    torch.manual_seed(1)
    old = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2))
    old += nn.Sequential(nn.Conv2d(4, 6, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten())
    old += nn.Sequential(nn.Linear(6 * 4, 7), nn.ReLU(), nn.Linear(7, 3))
    names = {"conv0": old[0], "conv1": old[3], "hidden": old[7], "classes": old[9]}
    params = {f"{name}.{part}": leaf for name, layer in names.items() for part, leaf in layer.state_dict().items()}
    header = {"side": SIDE, "channels": 1, "classes": 3, "widths": [4, 6], "hidden": 7}
    save_file(params, tmp_path / "old.safetensors", {"classifier": json.dumps(header)})
    x = images(9)
    for primary in (Primary.open(tmp_path / "old.safetensors"), opened(tmp_path / "old.safetensors")):
        torch.testing.assert_close(primary.probabilities(x), old(x).softmax(1).detach())
        torch.testing.assert_close(primary.features(x), old[:9](x).detach())


# Any number of images


def test_a_million_images_are_asked_about_in_slices(tmp_path):
    primary = opened(torchscript(Mean(), tmp_path / "model.pt"))
    asked, plain = [], primary.network.module
    watched = dataclasses.replace(primary.network, module=lambda x: asked.append(len(x)) or plain(x))
    primary = Primary(watched)
    million = torch.linspace(-1, 1, 1000).repeat(1000)[:, None, None, None].expand(-1, 1, SIDE, SIDE)
    answers = primary.predictions(million)
    assert torch.equal(answers, torch.where(million[:, 0, 0, 0] > 0, 2, 0))
    assert max(asked) == 1024


def test_our_own_model_is_asked_in_slices_too(monkeypatch):
    network = ConvClassifier(side=SIDE, widths=(2,), hidden=3)
    primary, seen = Primary(network, network.init(0)), []
    plain = ConvClassifier.features
    monkeypatch.setattr(
        ConvClassifier, "features", lambda self, params, x: seen.append(len(x)) or plain(self, params, x)
    )
    assert len(primary.predictions(images(1).expand(2500, -1, -1, -1))) == 2500
    assert seen == [1024, 1024, 452]


def test_large_images_are_asked_about_in_smaller_slices():
    assert classifier.slice_rows(28, 1) == 1024
    assert [classifier.slice_rows(side, 3) for side in (224, 5000)] == [27, 1]


@pytest.mark.parametrize("rows", [1, 2, 5, 100])
@pytest.mark.parametrize("count", [1, 7, 103])
def test_a_program_for_batches_of_one_size_answers_any_number_of_images(tmp_path, rows, count):
    model, x = net(), images(count)
    primary = opened(exported(model, tmp_path / "model.pt2", rows=rows))
    torch.testing.assert_close(primary.features(x), model(x).detach())


def test_a_program_for_small_batches_gets_small_batches(tmp_path):
    model, x = net(), images(150)
    primary = opened(exported(model, tmp_path / "model.pt2", batch=torch.export.Dim("batch", max=40)))
    assert (primary.network.sizes[-1], primary.network.sizes[0]) == (1, 32)
    torch.testing.assert_close(primary.features(x), model(x).detach())


def test_a_program_that_wants_a_few_images_at_least_gets_no_more_than_these(tmp_path):
    model, x = net(), images(3)
    primary = opened(exported(model, tmp_path / "model.pt2", batch=torch.export.Dim("batch", min=4)))
    assert (primary.network.sizes[-1], primary.network.sizes[0]) == (4, 1024)
    torch.testing.assert_close(primary.features(x), model(x).detach())


def test_a_script_for_even_numbers_of_images_answers_odd_ones(tmp_path):
    class Paired(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = net()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.net(x).view(-1, 2, 3).flatten(0, 1)

    x = images(7)
    primary = opened(torchscript(Paired(), tmp_path / "model.pt"))
    torch.testing.assert_close(primary.features(x), net()(x).detach())


def test_a_script_for_one_image_at_a_time_answers_any_number(tmp_path):
    class One(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = net()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.net(x).view(1, 3)

    x = images(6)
    primary = opened(torchscript(One(), tmp_path / "model.pt"))
    torch.testing.assert_close(primary.features(x), net()(x).detach())


# What is refused


def test_another_number_of_classes_is_refused(tmp_path, kind):
    path = WRITERS[kind](net(), tmp_path / "model.pt")
    with pytest.raises(ValueError, match="Expected a primary model with classes=10, got one with 3"):
        opened(path, classes=10)
    primary = opened(path)
    assert checked(primary, side=SIDE, channels=1, classes=3) is primary
    with pytest.raises(ValueError, match="Expected a primary model with classes=4"):
        checked(primary, classes=4)


def test_our_own_model_for_other_images_is_refused(tmp_path):
    network = ConvClassifier(side=16, widths=(2,))
    Primary(network, network.init(0)).save(tmp_path / "cnn.safetensors")
    for options, match in (
        ({"side": 8}, "side=8, got one with 16"),
        ({"side": 16, "channels": 3}, "channels=3"),
        ({"side": 16, "classes": 62}, "classes=62"),
        ({"side": 16, "values": "bytes"}, "Expected values='minus-one-to-one'"),
        ({"side": 16, "channels_last": True}, "channels first"),
    ):
        with pytest.raises(ValueError, match=match) as told:
            open_primary(tmp_path / "cnn.safetensors", **options)
        assert str(told.value).startswith("Expected")


@pytest.mark.parametrize("options", [{"side": 9}, {"channels": 3}, {"channels_last": True}])
def test_a_model_for_images_of_another_shape_is_refused(tmp_path, kind, options):
    path = WRITERS[kind](net(), tmp_path / "model.pt")
    with pytest.raises(ValueError, match=r"^Expected model\.pt to take images as \[n, .*See side"):
        opened(path, **options)


@pytest.mark.parametrize(
    ("form", "got"), [("vector", r"\[4\]|\[1\]"), ("column", r", 1\]"), ("cube", r", 2, 3\]"), ("pair", "tuple")]
)
def test_answers_that_are_no_table_of_scores_are_refused(tmp_path, form, got):
    path = dynamic(Returning(form), tmp_path / "model.pt2")
    with pytest.raises(ValueError, match=rf"^Expected \[n, classes\] from model\.pt2.*got .*({got})"):
        opened(path)


def test_images_of_another_shape_are_refused_whoever_is_asked(tmp_path):
    network = ConvClassifier(side=SIDE)
    for primary in (opened(torchscript(net(), tmp_path / "m.pt")), Primary(network, network.init(0))):
        for wrong in (images(2, channels=3), torch.zeros(2, 1, 9, 9), torch.zeros(2, SIDE, SIDE)):
            for ask in (primary.probabilities, primary.predictions, primary.confidence, primary.features):
                with pytest.raises(ValueError, match=r"^Expected images of \(1, 8, 8\)"):
                    ask(wrong)


def test_unknown_values_are_refused_with_the_known_ones(tmp_path):
    with pytest.raises(ValueError, match=r"^Expected values='percent' to be one of minus-one-to-one, zero-to-one, byt"):
        opened(torchscript(net(), tmp_path / "model.pt"), values="percent")


def pickled_weights(path):
    torch.save(net().state_dict(), path)


def foreign_weights(path, about=None):
    save_file(net().state_dict(), path, about)


def cut(path):
    torchscript(net(), path)
    path.write_bytes(path.read_bytes()[:-200])


def damaged(path):
    """A whole archive whose program is nonsense."""
    dynamic(net(), path)
    with zipfile.ZipFile(path) as archive:
        content = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in content.items():
            archive.writestr(name, b"{}" if name.endswith("models/model.json") else data)


def misfit(path):
    network = ConvClassifier(side=SIDE, widths=(4,))
    dataclasses.replace(network, widths=(5,)).save(path, network.init(0))


def unknown_network(path):
    save_file({"a": torch.zeros(1)}, path, {"classifier": json.dumps({"side": 8, "depth": 9, "widths": [1]})})


def cut_ours(path):
    network = ConvClassifier(side=SIDE)
    network.save(path, network.init(0))
    path.write_bytes(path.read_bytes()[:-10])


@pytest.mark.parametrize(
    ("write", "match"),
    [
        (lambda path: None, "it is missing"),
        (lambda path: path.mkdir(), "it is a folder"),
        (lambda path: path.write_bytes(b""), "a whole classifier"),
        (lambda path: path.write_bytes(b"\x08onnx or anything else"), "a whole classifier"),
        (lambda path: np.savez(path.open("wb"), x=np.zeros(3)), "a whole classifier"),
        (pickled_weights, "torch.save keeps no program"),
        (foreign_weights, "names no network"),
        (lambda path: foreign_weights(path, {"format": "pt"}), "names no network"),
        (cut, "a whole classifier"),
        (cut_ours, "cut short or damaged"),
        (damaged, "a whole torch.export file in model.pt, saved on a CPU"),
        (misfit, "to fit the network of its header"),
        (unknown_network, "known to this version"),
    ],
)
def test_a_file_that_holds_no_classifier_is_refused(tmp_path, write, match):
    write(tmp_path / "model.pt")
    with pytest.raises(ValueError, match=match) as told:
        opened(tmp_path / "model.pt")
    assert str(told.value).startswith("Expected")
    assert "model.pt" in str(told.value)


def test_a_model_whose_answers_are_not_finite_is_refused(tmp_path, kind):
    model = net()
    model[-1].bias.data[1] = float("nan")
    with pytest.raises(ValueError, match=r"^Expected finite answers"):
        opened(WRITERS[kind](model, tmp_path / "model.pt"))


def test_our_own_model_whose_answers_are_not_finite_is_refused(tmp_path):
    network = ConvClassifier(side=SIDE)
    params = network.init(0) | {"classes.bias": torch.full((10,), float("nan"))}
    Primary(network, params).save(tmp_path / "cnn.safetensors")
    with pytest.raises(ValueError, match=r"^Expected finite answers"):
        opened(tmp_path / "cnn.safetensors")


@pytest.mark.parametrize("middle", [nn.BatchNorm2d(4), nn.Dropout(0.5)])
def test_a_program_exported_in_training_mode_is_refused(tmp_path, middle):
    path = dynamic(net(middle=middle).train(), tmp_path / "model.pt2")
    with pytest.raises(ValueError, match=r"^Expected a model in model\.pt2 that computes.*\.eval\(\)"):
        opened(path)


# Images are private


def secret_images():
    x = images(4)
    x[1, 0, 0, 0] = SECRET
    return x


def test_nothing_a_foreign_model_says_about_an_image_gets_out(tmp_path):
    primary, x = opened(torchscript(Touchy(fails=True), tmp_path / "model.pt")), secret_images()
    with pytest.raises(Exception, match=r"index 876\d is out of bounds"):
        primary.network.module(x)  # it would quote what it made of the image
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        found = primary.predictions(x)
    assert out.getvalue() + err.getvalue() == ""
    # An error would tell that somebody holds such an image; it is of no class, and the others are as they were.
    assert found[1] == -1
    assert (found[[0, 2, 3]] >= 0).all()


def test_an_image_without_a_finite_answer_is_no_error_and_never_right(tmp_path, kind):
    primary, x = opened(WRITERS[kind](Touchy(fails=False), tmp_path / "model.pt")), secret_images()
    others = [0, 2, 3]
    expected = x.flatten(1)[:, :3]
    assert primary.predictions(x)[1] == -1
    torch.testing.assert_close(primary.probabilities(x)[1], torch.full((3,), 1 / 3))
    torch.testing.assert_close(primary.confidence(x)[1], torch.tensor(1 / 3))
    assert torch.equal(primary.features(x)[1], torch.zeros(3))
    assert torch.equal(primary.predictions(x)[others], expected.argmax(1)[others])
    torch.testing.assert_close(primary.probabilities(x)[others], expected.softmax(1)[others])


def test_our_own_model_is_silent_about_an_image_that_is_not_finite():
    network = ConvClassifier(side=SIDE, classes=3)
    primary, x = Primary(network, network.init(0)), images(3)
    clean = primary.predictions(x)
    x[1] = float("nan")
    assert primary.predictions(x).tolist() == [clean[0], -1, clean[2]]
    torch.testing.assert_close(primary.probabilities(x)[1], torch.full((3,), 1 / 3))
    assert torch.equal(primary.features(x)[1], torch.zeros(network.hidden))


# The paper's network, and training


def test_the_network_of_the_paper_is_layer_by_layer_what_it_says():
    torch.manual_seed(2)
    layers = [nn.Conv2d(1, 32, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2)]
    layers += [nn.Conv2d(64, 64, 3), nn.ReLU(), nn.Flatten(), nn.Linear(576, 64), nn.ReLU(), nn.Linear(64, 36)]
    names = {"conv0": 0, "conv1": 3, "conv2": 6, "hidden": 9, "classes": 11}
    params = {f"{name}.{part}": leaf for name, at in names.items() for part, leaf in layers[at].state_dict().items()}
    network = ConvClassifier.paper(28, 36)
    assert network.fits(params)
    x = torch.rand(3, 1, 28, 28) * 2 - 1
    torch.testing.assert_close(network.scores(params, x), nn.Sequential(*layers)(x).detach())


def test_the_network_of_the_paper_is_kept_as_it_is(tmp_path):
    network = ConvClassifier.paper(20, 5)
    Primary(network, network.init(0)).save(tmp_path / "cnn.safetensors")
    assert Primary.open(tmp_path / "cnn.safetensors").network == network


def test_images_that_a_network_would_shrink_to_nothing_are_refused():
    assert ConvClassifier.paper(18).side == 18
    for refused in (lambda: ConvClassifier.paper(17), lambda: ConvClassifier(side=3)):
        with pytest.raises(ValueError, match=r"^Expected a larger side="):
            refused()


@pytest.fixture(scope="module")
def digits():
    from sklearn.datasets import load_digits

    bundle = load_digits()
    return (bundle.images * 255 / 16).round().astype(np.uint8), bundle.target


def test_training_learns_and_a_seed_says_which_model_comes_out(digits):
    x, y = trees.pixels(torch.from_numpy(digits[0])[:, None]), torch.from_numpy(digits[1])
    network = ConvClassifier(side=8)
    (first, accuracy), (again, _), (other, _) = (trained(network, x, y, seed=seed) for seed in (0, 0, 1))
    assert accuracy > 0.8
    assert first.digest == again.digest != other.digest


def test_accuracy_is_told_on_images_that_training_was_not_shown():
    """Labels at random can be learned by heart, never told."""
    rng = torch.Generator().manual_seed(0)
    x, y = images(200), torch.randint(2, (200,), generator=rng)
    primary, accuracy = trained(ConvClassifier(side=SIDE, classes=2), x, y, seed=0, epochs=60)
    assert float((primary.predictions(x) == y).float().mean()) > 0.9
    assert accuracy < 0.85


def test_training_needs_a_tenth_to_hold_out():
    with pytest.raises(ValueError, match=r"^Expected ten public images"):
        trained(ConvClassifier(side=SIDE), images(9), torch.zeros(9), seed=0)


# The command line


def told(*arguments):
    done = CliRunner().invoke(primary_app, [str(argument) for argument in arguments])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == 0, done.output
    return done.stdout


@pytest.fixture
def public(tmp_path, digits):
    path = tmp_path / "public.npz"
    np.savez(path, x_test=digits[0], y_test=digits[1], large=np.kron(digits[0], np.ones((3, 3), np.uint8)))
    return path


@pytest.mark.parametrize(("network", "column", "side"), [("small", "x_test", 8), ("paper", "large", 24)])
def test_a_model_is_trained_and_checked_on_the_command_line(tmp_path, public, network, column, side):
    to = tmp_path / "cnn.safetensors"
    columns = ("--images", column, "--labels", "y_test", "--network", network, "--epochs", 1 if side > 8 else 3)
    answer = json.loads(told("train", public, *columns, "--to", to, "--json"))
    assert answer["held_out_accuracy"] > 0.75
    assert (answer["side"], answer["classes"], answer["network"]) == (side, 10, network)
    primary = open_primary(to, side=side, classes=10)
    assert primary.digest == answer["digest"]
    expected = ConvClassifier.paper(side, 10) if network == "paper" else ConvClassifier(side=side)
    assert primary.network == expected
    assert answer["digest"] in told("check", to, "--side", side, "--classes", 10)


def test_the_command_line_says_held_out_accuracy_and_that_data_must_be_public(tmp_path, public):
    columns = ("--images", "x_test", "--labels", "y_test", "--network", "small", "--epochs", 1)
    assert "of the held-out tenth" in told("train", public, *columns, "--to", tmp_path / "cnn")
    assert "PUBLIC" in told("train", "--help")


def test_a_foreign_model_is_checked_on_the_command_line(tmp_path, kind):
    path = WRITERS[kind](Scaled(0, 1).eval(), tmp_path / "model.pt")
    answer = json.loads(told("check", path, "--side", SIDE, "--values", "zero-to-one", "--json"))
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    assert answer == {"kind": kind, "side": SIDE, "channels": 1, "classes": CLASSES, "digest": digest}
    with pytest.raises(ValueError, match="classes=10"):
        told("check", path, "--side", SIDE, "--classes", 10)


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        (("--images", "x_test", "--labels", "y_test", "--network", "huge"), "Expected --network huge to be one of"),
        (("--images", "x_test", "--labels", "y_test"), "Expected a larger side=8"),
        (("--images", "x_test", "--labels", "absent"), "Expected absent in public.npz"),
    ],
)
def test_training_that_cannot_be_is_refused_and_writes_nothing(tmp_path, public, arguments, match):
    with pytest.raises(ValueError, match=match):
        told("train", public, *arguments, "--to", tmp_path / "cnn.safetensors")
    assert not (tmp_path / "cnn.safetensors").exists()
