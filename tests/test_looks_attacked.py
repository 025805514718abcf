"""Looks under attack by a modeler: recipes, models, public files and run folders of their own making."""

import json
import shutil

import numpy as np
import pytest
import torch
from command_line import fedlens

from fedlens.data import selection
from fedlens.data.population import Population
from fedlens.media.images import differences, tracing
from fedlens.models.classifier import ConvClassifier, Primary
from fedlens.models.looks.fitting import Release
from fedlens.models.looks.moments import Moments
from fedlens.models.looks.psi import LABELS, PREDICTED, Psi
from fedlens.models.looks.shapes import drawn
from fedlens.models.looks.statistics import READABLE
from fedlens.models.looks.two_sample import Block, Group, two_groups
from fedlens.models.primary import open_primary

SIDE = 8


def hair_trigger(path):
    """Weights of a modeler's own: two classes whose scores are the same sum in another order. Rounding decides."""
    network = ConvClassifier(side=SIDE, classes=2, hidden=512)
    params, half = network.init(3), 256
    rng = torch.Generator().manual_seed(1)
    order, weights = torch.randperm(half, generator=rng), torch.rand(half, generator=rng)
    params["hidden.weight"][half:] = params["hidden.weight"][:half][order]
    params["classes.weight"].zero_()
    params["classes.weight"][0, :half], params["classes.weight"][1, half:] = weights, weights[order]
    Primary(network, params).save(path)
    return open_primary(path, side=SIDE)


def crowd(images, users=1):
    columns = {"x": images.numpy(), "y": np.zeros(len(images), np.int64)}
    return Population.from_arrays("crowd", columns, np.full(users, len(images) // users))


@pytest.mark.parametrize("asked", ["predicted", "classified"])
def test_where_examples_are_protected_one_more_decides_about_no_other_by_rounding(tmp_path, asked):
    model, images = hair_trigger(tmp_path / "m.safetensors"), drawn(40, SIDE, 1)

    def judged(some):
        people = crowd(some)
        if asked == "predicted":
            return selection.predicted(people, model, alone=True)[:1].tolist()
        return selection.classified(people, "right", model, True, 0, alone=True)._all_rows()[:1].tolist()[:1] == [0]

    for image in images:
        others = torch.cat([image[None], images[:3]])
        assert [judged(others[:count]) for count in range(1, 5)] == [judged(others[:1])] * 4


def public_set(path, side=SIDE, **changes):
    images = ((drawn(400, side, 1)[:, 0].numpy() + 1) * 127.5).round().astype(np.uint8)
    rng = np.random.default_rng(0)
    made = {"x": images, "y": rng.integers(0, 10, len(images)), "user": np.arange(len(images)) % 50} | changes
    np.savez(path, **{name: array for name, array in made.items() if array is not None})
    return path


def against(folder, public, *more, epsilon=8):
    given = ["--public", public, "--public-users", "user", "--out", folder / "runs", "--epsilon", epsilon]
    return fedlens("look", "digits", *given, *more)


def run_of(folder):
    (found,) = (folder / "runs").glob("look-*")
    return found


def test_a_look_of_another_price_in_a_run_folder_is_not_reported_on(tmp_path):
    """Found by doing so: what cost epsilon 100 was told under a small one, and nothing called it unverified."""
    public = public_set(tmp_path / "public.npz")
    for folder, epsilon in (("cheap", 2), ("dear", 100)):
        (tmp_path / folder).mkdir()
        assert against(tmp_path / folder, public, epsilon=epsilon).code == 0
    cheap, dear = run_of(tmp_path / "cheap"), run_of(tmp_path / "dear")
    (cheap / "MANIFEST.json").unlink()
    shutil.copy(dear / "all" / "look.safetensors", cheap / "all" / "look.safetensors")
    done = fedlens("run", "--resume", cheap)
    assert done.code == 2
    assert "Expected the look.safetensors that the model of 'all' was made of; it was changed." in done.err


def test_a_report_whose_look_is_as_it_was_is_made_again(tmp_path):
    assert against(tmp_path, public_set(tmp_path / "public.npz")).code == 0
    found = run_of(tmp_path)
    before = json.loads((found / "report.json").read_text())
    (found / "MANIFEST.json").unlink()
    assert fedlens("run", "--resume", found).code == 0
    assert json.loads((found / "report.json").read_text())["differences"] == before["differences"]


def test_a_run_whose_public_file_was_exchanged_does_not_go_on(tmp_path):
    public = public_set(tmp_path / "public.npz")
    assert against(tmp_path, public).code == 0
    (run_of(tmp_path) / "MANIFEST.json").unlink()
    public_set(public, y=np.zeros(400, np.int64))
    done = fedlens("run", "--resume", run_of(tmp_path))
    assert done.code == 2
    assert "a public file it names, has changed" in done.err


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"y": None}, "Expected y in public.npz"),
        ({"user": None}, "Expected user in public.npz"),
        ({"y": np.arange(400)}, "Expected labels of look.public from 0 to 9"),
        ({"side": 9}, "Expected images of (1, 8, 8) in look.public"),
    ],
    ids=["no labels", "no owners", "labels beyond", "another side"],
)
def test_a_public_file_that_no_report_can_be_made_with_is_refused_before_anything_is_spent(tmp_path, changes, told):
    """The recipe is booked with its files: after the release neither could be mended."""
    done = against(tmp_path, public_set(tmp_path / "public.npz", **changes))
    assert done.code == 2
    assert told in done.err
    assert not list((tmp_path / "runs").glob("look-*"))


def test_nothing_readable_is_not_held_against_a_public_set(tmp_path):
    done = against(tmp_path, public_set(tmp_path / "public.npz"), "--set", "look.readable=0")
    assert done.code == 2
    assert "look.readable must be above 0" in done.err


def test_units_of_several_images_are_held_against_public_ones_whose_owners_are_known(tmp_path):
    """Dealt by chance, the images of the same people differed from them in 83 to 100 of 100 draws at epsilon 8."""
    done = fedlens("look", "digits", "--public", public_set(tmp_path / "public.npz"), "--out", tmp_path / "runs")
    assert done.code == 2
    assert "give look.public.users, whose each is" in done.err


def test_examples_are_held_against_a_public_set_without_owners(tmp_path):
    public = public_set(tmp_path / "public.npz")
    units = ["--unit", "example", "--units", 1500, "--epsilon", 8]
    done = fedlens("look", "digits", "--public", public, *units, "--out", tmp_path / "runs")
    assert done.code == 0
    assert json.loads((run_of(tmp_path) / "report.json").read_text())["differences"]


@pytest.mark.parametrize("units", [1, 2, 3])
def test_a_few_public_units_do_not_tell_how_much_all_vary(units):
    """One was told apart from its likes in 100 of 100 draws, two in 9."""
    rng = np.random.default_rng(0)
    drawn_alike = 0.05 * rng.standard_normal((60, 1)) * np.ones(9)  # brighter or darker, each as a whole
    alike = 0
    for start in range(0, 60, units):
        few, others = Group.seen({"a": drawn_alike[start : start + units]}), Group.seen({"a": drawn_alike})
        alike += two_groups((few, others), {"a": ()}).differ
    assert alike == 0


@pytest.mark.parametrize(("classes", "judged"), [(200, True), (3000, False)])
def test_very_many_classes_do_not_fill_the_memory_of_who_reports(classes, judged):
    """200 classes with predictions took 12 GB, after all was spent; and a small file may say any number of them."""
    psi = Psi(body=Moments(side=SIDE, frequencies=4), classes=classes, judged=judged)
    blocks = {name: torch.full(shape, 0.01) for name, shape in psi.shapes.items()}
    group = Group.of(Release(psi=psi, blocks=blocks, noise=0.001, units=100.0))
    traces = tracing.of_labels(psi, [group, group])
    assert traces
    assert sum(rows.size for trace in traces for rows in trace.moves.values()) <= 2 * tracing.MOST_NUMBERS


def test_what_is_told_of_predictions_fills_no_memory_either():
    """Of 200 classes 13 GB."""
    psi = Psi(body=Moments(side=SIDE, frequencies=4), classes=60, judged=True)
    told = differences.numbers(psi, PREDICTED)
    assert [int(one.weights.argmax()) for one in told[::599]] == list(range(0, 3600, 599))
    assert all(one.weights.sum() == 1 for one in told)
    assert len({id(one.weights.base) for one in told}) == 1


@pytest.mark.parametrize("name", READABLE)
def test_pixels_that_are_no_numbers_raise_nothing(name):
    """An error would have a whole chunk asked again, one by one, which rounds otherwise: a unit would move others."""
    images = drawn(3, SIDE, 1).clone()
    images[1, 0, 2, 2] = torch.nan
    block = READABLE[name](images)
    assert block.isfinite().all(1).tolist() == [True, False, True]


@pytest.mark.parametrize("noises", [(0.02, 0.2), (0.2, 0.02)])
def test_the_noise_of_a_group_is_not_looked_for_in_its_own_direction(noises):
    """Of 300 users against 30, in 40 classes, 34 of 400 draws were said to differ at a level of 1%, for no cause."""
    psi, rng = Psi(body=Moments(side=SIDE, frequencies=4), classes=40), np.random.default_rng(0)
    alike = np.full(40, 40**-0.5)

    def group(noise):
        released = Block(mean=alike + noise * rng.standard_normal(40), noise=noise, spread=0.0)
        return Group(blocks={LABELS: released}, count=100.0, count_error=0.0)

    alarms = 0
    for _ in range(100):
        groups = group(noises[0]), group(noises[1])
        along = {LABELS: tracing.directions(tracing.of_labels(psi, groups))[LABELS]}
        alarms += two_groups(groups, {LABELS: ()}, along).differ
    assert alarms <= 4
