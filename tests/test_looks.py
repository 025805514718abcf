"""One look: what units send is bounded, what is fitted to it follows it, and the release outlives its generators."""

import dataclasses
import itertools
import json
import math
import shutil
import types

import numpy as np
import pytest
import torch
from command_line import answer, fedlens, written

from fedlens.algorithms import OneLook, rebuilt, settings
from fedlens.core import tensorfiles, trees
from fedlens.curators.engine import Engine
from fedlens.ledger import Ledger
from fedlens.media import opening
from fedlens.media.images import looks
from fedlens.models.gan import ConvGenerator
from fedlens.models.looks import fitting, shapes, statistics
from fedlens.models.looks.embedding import Embedding
from fedlens.models.looks.fitting import DivergedError, Fit, Release
from fedlens.models.looks.generators import LIKED, Gaussian, Network, Picked
from fedlens.models.looks.moments import Moments
from fedlens.models.looks.psi import BODY, LABELS, Psi
from fedlens.privacy.guarantee import UNVERIFIED
from fedlens.recipes.recipe import Recipe
from fedlens.recipes.toml import RecipeError

BODIES = [
    Embedding(side=8, features=42),
    Embedding(side=12, channels=3, features=42),
    Embedding(side=64, features=42),
    Moments(side=8, frequencies=10),
    Moments(side=12, channels=3, frequencies=6),
]
LOOK = """
name = "once"
task = "T1"
side = 8
algorithm = "look"
[data]
source = "digits"
deal_to = 40
[selections.all]
by = "everyone"
[privacy]
epsilon = 8.0
delta = 1e-5
units = 40
population = 40
[model]
classes = 10
"""
EMBEDDED = ["look.family=embedding", "look.features=198", "look.steps=3", "look.batch=40"]


def pictures(count, body, seed=0):
    """Some of every kind: noise, shapes, one colour, black and white at random."""
    rng = torch.Generator().manual_seed(seed)
    like = (count, body.channels, body.side, body.side)
    kinds = [
        2 * torch.rand(like, generator=rng) - 1,
        shapes.drawn(count, body.side, body.channels),
        torch.full(like, 1.0),
        torch.randint(2, like, generator=rng) * 2.0 - 1,
        torch.full(like, -0.3),
    ]
    return torch.stack([kinds[number % len(kinds)][number] for number in range(count)])


def unit(images, labels=None, mask=None):
    mask = torch.ones(len(images)) if mask is None else mask
    return {"x": images, "mask": mask} | ({} if labels is None else {"y": labels})


def norm(tree):
    return float(trees.norm(tree))


@pytest.mark.parametrize("body", BODIES, ids=str)
@pytest.mark.parametrize("several", [True, False])
@pytest.mark.parametrize("classes", [0, 3])
def test_no_unit_sends_more_than_norm_1(body, several, classes):
    psi = Psi(body=body, classes=classes, several=several, examples=7)
    assert sum(weight**2 for weight in psi.weights.values()) == pytest.approx(1)
    for count, seed in itertools.product([1, 7] if several else [1], range(4)):
        images = pictures(count, body, seed).roll(seed, 0)
        labels = torch.arange(count) % 4 if classes else None  # one of them is none of the classes
        sent = psi(unit(images, labels))
        assert norm(sent) <= 1 + 1e-5
        for name, block in sent.items():
            assert float(block.norm()) <= psi.weights[name] * (1 + 1e-5)
        assert {name: tuple(block.shape) for name, block in sent.items()} == psi.shapes


@pytest.mark.parametrize("name", statistics.READABLE)
def test_a_readable_block_of_any_image_has_norm_1_at_most(name):
    for body in (Embedding(side=8, features=42), Embedding(side=31, channels=3, features=42)):
        block = statistics.READABLE[name](pictures(20, body))
        assert float(block.norm(dim=1).max()) <= 1 + 1e-5
        assert block.isfinite().all()


@pytest.mark.parametrize("body", BODIES[::3], ids=str)
def test_who_holds_nothing_sends_nothing(body):
    psi = Psi(body=body, classes=3, examples=4)
    sent = psi(unit(torch.zeros(4, 1, 8, 8), torch.zeros(4, dtype=torch.long), torch.zeros(4)))
    assert norm(sent) == 0


@pytest.mark.parametrize("body", BODIES[::3], ids=str)
def test_images_that_are_masked_are_not_seen(body):
    psi, images = Psi(body=body, classes=3, examples=5), pictures(5, body)
    labels, mask = torch.tensor([0, 1, 2, 0, 1]), torch.tensor([1.0, 1.0, 1.0, 0.0, 0.0])
    once = psi(unit(images, labels, mask))
    other = torch.cat([images[:3], -images[3:]])
    for name, block in psi(unit(other, torch.tensor([0, 1, 2, 2, 2]), mask)).items():
        assert torch.equal(block, once[name])


def test_a_body_of_several_images_has_the_same_norm_whatever_they_are():
    psi = Psi(body=BODIES[0], classes=3, examples=6)
    for labels in (torch.zeros(6, dtype=torch.long), torch.arange(6) % 3):
        body = psi(unit(pictures(6, psi.body), labels))[BODY]
        assert float(body.norm()) == pytest.approx(psi.weights[BODY])


def test_an_embedding_is_that_of_its_seed_and_of_no_other():
    images = pictures(4, BODIES[0])
    first = BODIES[0](images)
    assert torch.allclose(first, Embedding(side=8, features=42)(images))
    assert not torch.allclose(first, Embedding(side=8, features=42, seed=1)(images), atol=0.1)
    assert torch.allclose(first.norm(dim=1), torch.ones(4), atol=1e-5)


def test_moments_are_read_back_as_they_were_sent():
    moments, images = Moments(side=8, frequencies=10), pictures(30, BODIES[0])
    v = moments.points(images).double()
    counts, sums, products = moments.read(moments(images).double().mean(0, keepdim=True))
    assert counts.tolist() == pytest.approx([1.0])
    assert torch.allclose(sums[0], v.mean(0), atol=1e-6)
    assert torch.allclose(products[0], v.T @ v / 30, atol=1e-6)


def test_points_of_low_frequencies_are_images_again():
    moments = Moments(side=8, frequencies=64)
    images = shapes.drawn(40, 8, 1)
    contrasts = images.std((1, 2, 3), correction=0)
    images = images[(contrasts > 0.23) & (contrasts < 0.9)]
    assert len(images) > 9
    assert torch.allclose(moments.images(moments.points(images)), images, atol=1e-4)


def test_images_keep_their_contrast_whatever_the_length_of_their_form():
    moments = Moments(side=12, channels=3, frequencies=20)
    points = moments.points(shapes.drawn(20, 12, 3))
    paler = torch.cat([points[:, :3], 0.2 * points[:, 3:-1], points[:, -1:]], 1)
    assert torch.allclose(moments.images(paler), moments.images(points), atol=1e-5)


def test_what_is_nearly_even_has_no_form_of_rounding_errors():
    moments = Moments(side=8, frequencies=20)
    points = moments.points(torch.tensor([-1.0, 0.3, 0.7])[:, None, None, None].expand(3, 1, 8, 8))
    assert points[:, 1:-1].norm(dim=1).max() < 0.01


def test_a_look_can_be_rebuilt_from_its_settings():
    for body in BODIES:
        algorithm = OneLook(psi=Psi(body=body, classes=2, examples=3))
        assert rebuilt("look", json.loads(json.dumps(settings(algorithm)))) == algorithm


# Generators


def released(psi, images, labels, noise=0.0, seed=0):
    """A release of units that hold an image each, or all images."""
    if psi.several:
        mean = psi(unit(images, labels))
    else:
        sent = [psi(unit(images[i : i + 1], labels[i : i + 1])) for i in range(len(images))]
        mean = {name: torch.stack([one[name] for one in sent]).mean(0) for name in sent[0]}
    rng = torch.Generator().manual_seed(seed)
    noisy = {name: leaf + noise * torch.randn(leaf.shape, generator=rng) for name, leaf in mean.items()}
    return Release(psi=psi, blocks=noisy, noise=noise)


def bars(count, seed=0):
    """Two classes: a bright upper half, or a bright left half, of random brightness; the second twice as often."""
    rng = torch.Generator().manual_seed(seed)
    labels = (torch.arange(count) % 3 > 0).long()
    images = torch.full((count, 1, 8, 8), -1.0)
    level = torch.rand(count, generator=rng)
    for image, label, bright in zip(images, labels, level, strict=True):
        image[0, :4] += bright * (label == 0) + (label == 0)
        image[0, :, :4] += bright * (label == 1) + (label == 1)
    return images, labels


def test_a_normal_distribution_follows_the_classes_their_shares_and_their_spread():
    images, labels = bars(300)
    psi = Psi(body=Moments(side=8, frequencies=64), classes=2, several=False, examples=1)
    release = released(psi, images, labels)
    drawing = Gaussian(moments=psi.body, known=2, jitter=0.0)
    params = fitting.gaussian(release, psi.body)
    assert drawing.fits(params)
    drawn, classes = drawing.drawn(params, 600, 0)
    assert (classes == 1).float().mean().item() == pytest.approx(2 / 3, abs=0.01)
    for label in (0, 1):
        real, made = images[labels == label], drawn[classes == label]
        assert (real.mean(0) - made.mean(0)).abs().mean() < 0.08
        assert made.mean((1, 2, 3)).std() == pytest.approx(real.mean((1, 2, 3)).std().item(), rel=0.3)


def symmetric(size, noise, seed=0):
    entries = np.random.default_rng(seed).normal(size=(size, size)) * noise
    return torch.from_numpy((entries + entries.T) / math.sqrt(2))


def test_noise_alone_has_no_spread_left():
    signal = torch.zeros(40, 40, dtype=torch.float64)
    signal[0, 0] = 5.0
    values, rest = fitting._cleared(torch.linalg.eigvalsh(signal + symmetric(40, 0.1)), 0.1)
    assert values[-1] == pytest.approx(5.0, rel=0.1)
    assert values[-2] == rest
    assert rest < 0.1  # of a noise whose largest eigenvalue is above 1


def test_variance_of_which_no_direction_is_seen_is_drawn_as_far_as_is_asked_for():
    values = torch.tensor([0.1, 0.2, 0.3, 9.0], dtype=torch.float64)
    (whole, rest), (none, nothing) = (fitting._cleared(values, 0.1, unseen) for unseen in (1.0, 0.0))
    assert whole[:3].tolist() == [rest] * 3
    assert rest > 0.1
    assert nothing == 0.0
    assert not none[:3].any()
    assert none[3] == whole[3]


def levels(noise, seed, unseen=0.99):
    """Of drawn bars, class by class."""
    psi = Psi(body=Moments(side=8, frequencies=20), classes=2, several=False, examples=1)
    release = released(psi, *bars(300), noise, seed)
    drawing = Gaussian(moments=psi.body, known=2, jitter=0.0)
    drawn, classes = drawing.drawn(fitting.gaussian(release, psi.body, unseen), 900, 0)
    return [drawn[classes == label].mean((1, 2, 3)) for label in (0, 1)]


def test_levels_differ_and_vary_no_more_than_usual_where_noise_hides_how_much():
    """Their share of what is left for all coordinates made samples of few users black or white."""
    images, labels = bars(300)
    real = images[labels == 0].mean((1, 2, 3)).std()
    assert levels(0.0, 0)[0].std() == pytest.approx(real.item(), rel=0.3)  # no noise: as they are
    noisy = [levels(0.012, seed) for seed in range(8)]
    assert max(float(level.std()) for pair in noisy for level in pair) < 0.2  # 0.27 without
    assert np.mean([abs(float(one.mean() - other.mean())) for one, other in noisy]) < 0.15  # 0.33 without
    left = [levels(0.012, seed, unseen=1.0) for seed in range(8)]
    assert max(float(level.std()) for pair in left for level in pair) > 0.2  # by default nothing is held back


def test_a_class_differs_from_all_of_them_by_what_noise_does_not_explain():
    """Where spread is large, differences are large, and seen; where it is small, what is seen is noise."""
    spread = torch.cat([torch.full((5,), 4.0), torch.full((35,), 0.05)]).double()
    truly = symmetric(40, 0.4) * (spread[:, None] * spread).sqrt()
    noise = symmetric(40, 0.5, seed=1)
    told = fitting._filtered(spread, truly + noise, 0.5) - spread.diag()
    assert (told - truly).norm() < 0.6 * noise[:5, :5].norm() + 0.3 * truly.norm()
    assert told[5:, 5:].norm() < 0.01 * noise[5:, 5:].norm()
    assert (told - truly)[:5, :5].norm() < 0.5 * truly[:5, :5].norm()
    nothing = fitting._filtered(spread, noise, 0.5) - spread.diag()
    assert nothing.norm() < 0.2 * noise.norm()
    assert torch.equal(fitting._filtered(spread, truly, 0.0), spread.diag() + truly)


def test_a_covariance_below_0_has_a_root_of_what_is_left():
    root = fitting._root(torch.tensor([[1.0, 0.0], [0.0, -0.3]]), 0.1)
    assert torch.allclose(root @ root.T, torch.tensor([[1.1, 0.0], [0.0, 0.1]]))


def test_a_network_is_fitted_to_its_release_class_by_class():
    images, labels = bars(300)
    psi = Psi(body=Embedding(side=8, features=396), classes=2, examples=300)
    network = Network(generator=ConvGenerator(side=8, latent=8, hidden=32, widths=(32, 16), classes=2))
    params = Fit(steps=150, batch=100, rate=3e-3)(released(psi, images, labels), network)
    assert network.fits(params)
    drawn, classes = network.drawn(params, 300, 0)
    assert (classes == 1).float().mean().item() == pytest.approx(2 / 3, abs=0.04)
    for label in (0, 1):
        other = images[labels != label].mean(0)
        made = drawn[classes == label].mean(0)
        assert (images[labels == label].mean(0) - made).abs().mean() < (other - made).abs().mean() / 2


class HalfRubbish:
    """In place of a network: bars, and an image of noise after each."""

    def __init__(self, classes):
        self.classes = classes

    def drawn(self, params, count, seed):
        images, labels = bars(count, seed)
        images[1::2] = 2 * torch.rand(images[1::2].shape, generator=torch.Generator().manual_seed(seed)) - 1
        return images, labels if self.classes else None


@pytest.mark.parametrize("classes", [0, 2])
def test_what_the_release_likes_least_is_left_out_of_each_class(classes):
    images, labels = bars(300)
    psi = Psi(body=Embedding(side=8, features=396), classes=classes, examples=300)
    release = Release(psi=psi, blocks=psi(unit(images, labels if classes else None)), noise=0.0)
    picked = Picked(network=HalfRubbish(classes), body=psi.body, keep=0.5)
    drawn, kinds = picked.drawn({LIKED: release.body}, 200, 1)
    assert len(drawn) == 200
    assert float((drawn.amin((1, 2, 3)) > -1).float().mean()) < 0.1  # half of what was drawn has no black
    if classes:
        assert (kinds == 1).float().mean().item() == pytest.approx(2 / 3, abs=0.04)
        upper = drawn[kinds == 0]
        assert (upper[:, :, :4].mean((1, 2, 3)) > upper[:, :, 4:].mean((1, 2, 3))).float().mean() > 0.9
    else:
        assert kinds is None


def test_images_without_labels_are_fitted_too():
    images, _ = bars(60)
    psi = Psi(body=Embedding(side=8, features=102), examples=60)
    network = Network(generator=ConvGenerator(side=8, latent=4, hidden=16, widths=(16, 8)))
    release = Release(psi=psi, blocks=psi(unit(images)), noise=0.0)
    drawn, classes = network.drawn(Fit(steps=3, batch=20)(release, network), 7, 0)
    assert drawn.shape == (7, 1, 8, 8)
    assert classes is None


def test_a_batch_that_repeats_itself_gains_nothing_by_its_size():
    """The part of |mean|^2 that comes from few images is taken off: else one image again and again would be best."""
    psi = Psi(body=Embedding(side=8, features=1998), several=False, examples=1)
    images, _ = bars(400)
    release = Release(psi=psi, blocks={BODY: psi.weights[BODY] * psi.body(images).mean(0)[None]}, noise=0.0)
    small, large = (
        torch.stack(
            [fitting._Target(release, size, "cpu").distance(images[torch.randperm(400)[:size]]) for _ in range(60)]
        ).mean()
        for size in (10, 200)
    )
    assert float(small) == pytest.approx(float(large), abs=0.2 * abs(float(large)))


def test_a_class_that_is_empty_is_not_drawn():
    images, labels = bars(90)
    psi = Psi(body=Moments(side=8, frequencies=20), classes=3, several=False, examples=1)
    release = released(psi, images, labels)
    assert release.shares.tolist() == pytest.approx([1 / 3, 2 / 3, 0], abs=1e-4)
    _, classes = Gaussian(moments=psi.body, known=3).drawn(fitting.gaussian(release, psi.body), 90, 0)
    assert set(classes.tolist()) == {0, 1}


def test_a_fit_that_diverges_says_so():
    psi = Psi(body=Embedding(side=8, features=42), examples=3)
    network = Network(generator=ConvGenerator(side=8, latent=4, hidden=8, widths=(8,)))
    blocks = {name: torch.full(shape, math.nan) for name, shape in psi.shapes.items()}
    with pytest.raises(DivergedError, match="The release is kept"):
        Fit(steps=2, batch=8)(Release(psi=psi, blocks=blocks, noise=1.0), network)


# Runs


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A finished look at the digits."""
    folder = tmp_path_factory.mktemp("look")
    assert fedlens("run", written(folder, LOOK), "--out", folder / "runs").code == 0
    (found,) = (folder / "runs").glob("once-*")
    return found


def test_a_look_is_one_release_and_costs_what_it_was_to_cost(run):
    recipe = Recipe.open(run / "recipe.toml")
    assert recipe.plans["train"].releases == 1
    model = opening.opened(run / "all" / "model.safetensors")
    assert model.guarantee.epsilon <= 8.0
    assert model.guarantee.epsilon == pytest.approx(8.0, abs=0.01)


def test_the_release_says_how_noisy_it_is(run):
    recipe, look = Recipe.open(run / "recipe.toml"), looks.Look.open(run / "all" / "look.safetensors")
    plan = recipe.plans["train"]
    assert look.release.noise == pytest.approx(plan.noise_multiplier * 1.0 / 40)
    assert look.release.psi == looks.psi(recipe)
    assert look.guarantee == opening.opened(run / "all" / "model.safetensors").guarantee


def test_the_noise_in_a_look_is_what_it_says(tmp_path):
    """Two looks at the same data differ by sqrt(2) times the noise, in every number."""
    first, second = (
        fedlens("run", written(tmp_path, LOOK), "--out", tmp_path / str(seed), "--simulate", seed) for seed in (1, 2)
    )
    assert (first.code, second.code) == (0, 0)
    one, other = (looks.Look.open(next(tmp_path.glob(f"{seed}/once-*/all/look.safetensors"))) for seed in (1, 2))
    apart = torch.cat(
        [(one.release.blocks[name] - other.release.blocks[name]).flatten() for name in one.release.blocks]
    )
    assert float(apart.std()) == pytest.approx(math.sqrt(2) * one.release.noise, rel=0.05)


def test_another_generator_is_fitted_for_free(run, tmp_path):
    told = answer("fit", run / "all" / "look.safetensors", "--to", tmp_path / "again")
    again, first = (opening.opened(path / "model.safetensors") for path in (tmp_path / "again", run / "all"))
    assert told["guarantee"]["epsilon"] == first.guarantee.to_dict()["epsilon"]
    assert told["guarantee"]["unverified"] == UNVERIFIED  # a header may say anything
    assert torch.equal(again.sampled(5, 0).images, first.sampled(5, 0).images)
    assert fedlens("fit", run / "all" / "look.safetensors", "--to", tmp_path / "again").code == 2  # not overwritten


def test_what_was_fitted_again_is_sampled_and_never_passes_for_the_model_of_its_run(run, tmp_path):
    """Its plans are held against the ledger, which does not know its hash."""
    assert fedlens("fit", run / "all" / "look.safetensors", "--to", tmp_path / "again").code == 0
    book = ("--ledger", run.parent / "ledger.sqlite")
    told = answer("sample", tmp_path / "again", "--count", 3, "--to", tmp_path / "some.safetensors", *book)
    assert told["guarantee"]["unverified"] == UNVERIFIED
    params, about = tensorfiles.read(tmp_path / "again" / "model.safetensors")
    tensorfiles.write(tmp_path / "again" / "model.safetensors", params, about | {"refitted": False})
    done = fedlens("sample", tmp_path / "again", "--count", 3, "--to", tmp_path / "other.safetensors", *book)
    assert (done.code, "it was changed" in done.err) == (2, True)


def test_a_forged_price_of_a_look_is_found_in_what_is_fitted_to_it(run, tmp_path):
    blocks, about = tensorfiles.read(run / "all" / "look.safetensors")
    about["spending"]["plans"][-1]["noise_multiplier"] = 1000.0
    tensorfiles.write(tmp_path / "look.safetensors", blocks, about)
    assert UNVERIFIED in fedlens("fit", tmp_path / "look.safetensors", "--to", tmp_path / "again").out
    for options in (("--ledger", run.parent / "ledger.sqlite"), ()):
        done = fedlens("sample", tmp_path / "again", "--count", 3, "--to", tmp_path / "s.safetensors", *options)
        assert "Expected the plans that the ledger booked" in done.err if options else UNVERIFIED in done.out


def test_a_device_that_is_not_there_is_named(run, tmp_path):
    done = fedlens("fit", run / "all" / "look.safetensors", "--to", tmp_path / "again", "--device", "tpu")
    assert done.code == 2
    assert "Expected a device of this machine" in done.err


@pytest.mark.parametrize("keep", [1.0, 0.7])
def test_an_embedding_makes_a_model_that_can_be_sampled_and_compared(tmp_path, keep):
    sets = [word for setting in (*EMBEDDED, f"look.keep={keep}") for word in ("--set", setting)]
    report = answer("run", written(tmp_path, LOOK), "--out", tmp_path / "runs", *sets)
    assert len(report["runs"]) == 1
    (found,) = (tmp_path / "runs").glob("once-*")
    told = answer("sample", found / "all", "--count", 12, "--to", tmp_path / "some.safetensors")
    assert told["guarantee"]["unverified"] == ""
    tree, _ = tensorfiles.read(tmp_path / "some.safetensors")
    assert tree["images"].shape == (12, 1, 8, 8)
    assert tree["classes"].shape == (12,)
    again = ("fit", found / "all" / "look.safetensors", "--steps", 3, "--batch", 40, "--keep", keep)
    answer(*again, "--to", tmp_path / "again")
    models = [opening.opened(path / "model.safetensors") for path in (found / "all", tmp_path / "again")]
    assert models[0].drawing == models[1].drawing
    assert isinstance(models[0].drawing, Picked if keep < 1 else Network)


def test_of_moments_nothing_is_left_out(run, tmp_path):
    done = fedlens("fit", run / "all" / "look.safetensors", "--to", tmp_path / "again", "--keep", 0.7)
    assert (done.code, "Expected to keep all" in done.err) == (2, True)


def test_a_release_whose_generator_fails_is_kept_and_the_run_goes_on(tmp_path, monkeypatch):
    failing = [*EMBEDDED, "look.rate=1.0"]
    sets = [word for setting in failing for word in ("--set", setting)]

    def diverged(*given, **named):
        raise DivergedError("Expected it to stay finite; the fit diverged.")

    with monkeypatch.context() as patched:
        patched.setattr(Fit, "__call__", diverged)
        done = fedlens("run", written(tmp_path, LOOK), "--out", tmp_path / "runs", *sets)
    assert done.code == 2
    assert "the fit diverged" in done.err
    (found,) = (tmp_path / "runs").glob("once-*")
    before = (found / "all" / "look.safetensors").read_bytes()
    spent = Ledger(tmp_path / "runs" / "ledger.sqlite").spent(f"{found.name}/all", "train")
    assert fedlens("run", "--resume", found).code == 0
    assert Ledger(tmp_path / "runs" / "ledger.sqlite").spent(f"{found.name}/all", "train") == spent == 1
    (tmp_path / "before.safetensors").write_bytes(before)
    blocks = (
        tensorfiles.read(path)[0] for path in (tmp_path / "before.safetensors", found / "all" / "look.safetensors")
    )
    first, second = blocks
    assert all(torch.equal(leaf, second[name]) for name, leaf in first.items())


def test_a_release_whose_checkpoint_is_gone_is_not_replaced_by_one_of_zeros(tmp_path, monkeypatch):
    """Asked by another engine it is another question, which is refused: all there is, is what was kept."""
    with monkeypatch.context() as patched:
        patched.setattr(looks, "fitted", lambda *given: (_ for _ in ()).throw(DivergedError("Expected it to fit.")))
        assert fedlens("run", written(tmp_path, LOOK), "--out", tmp_path / "runs").code != 0
    (found,) = (tmp_path / "runs").glob("once-*")
    before = (found / "all" / "look.safetensors").read_bytes()
    (found / "all" / "checkpoint.safetensors").unlink()
    monkeypatch.setattr(Engine, "measured", lambda *given, **named: Engine(chunk=39))
    done = fedlens("run", "--resume", found)
    assert done.code != 0
    assert "Expected the answer to the look at all" in done.err
    assert (found / "all" / "look.safetensors").read_bytes() == before
    assert not (found / "all" / "model.safetensors").exists()
    assert fedlens("fit", found / "all" / "look.safetensors", "--to", tmp_path / "again").code == 0


@pytest.mark.parametrize(
    ("override", "problem"),
    [
        ("privacy.rounds=2", "privacy.rounds is 2"),
        ("privacy.clip=0.5", "privacy.clip is 0.5"),
        ("look.frequencies=65", "Expected 2 to 64 frequencies"),
        ("look.features=20", "look.features is not used here"),
        ("look.keep=0.7", "look.keep is not used here"),
        ("look.unseen=1.5", "look.unseen"),
        ("model.critic_widths=[8]", "model.critic_widths is not used here"),
    ],
)
def test_what_does_not_go_with_a_look_is_named(override, problem):
    with pytest.raises(RecipeError) as error:
        Recipe.parsed(LOOK, [override])
    assert problem.lower() in str(error.value).lower()


def test_settings_of_a_look_do_not_go_with_another_algorithm():
    with pytest.raises(RecipeError, match=r"look\.jitter is not used here"):
        Recipe.parsed(LOOK.replace('algorithm = "look"\n', ""), ["look.jitter=0.2"])


@pytest.mark.parametrize("spoilt", ["another psi", "a block less", "no number", "another noise"])
def test_a_look_that_was_spoilt_is_refused(run, tmp_path, spoilt):
    path = tmp_path / "look.safetensors"
    shutil.copy(run / "all" / "look.safetensors", path)
    blocks, about = tensorfiles.read(path)
    if spoilt == "another psi":
        about["psi"]["classes"] = 7
    elif spoilt == "a block less":
        blocks.pop(LABELS)
    elif spoilt == "no number":
        blocks[BODY][0, 0] = math.nan
    else:
        about["noise"] = -1.0
    tensorfiles.write(path, blocks, about)
    done = fedlens("fit", path, "--to", tmp_path / "again")
    assert done.code == 2
    assert "look.safetensors" in done.err


def hostile(about, **changes):
    """The header of a look, or of a model, at images of another form."""
    about = json.loads(json.dumps(about))
    (about["psi"]["body"] if "psi" in about else about["drawing"]["moments"]).update(changes)
    return about


@pytest.mark.parametrize(
    "form",
    [{"side": 20_000}, {"side": 2**40}, {"side": -8}, {"channels": 10**6}, {"channels": 10**12}, {"channels": -1}],
    ids=str,
)
@pytest.mark.parametrize("file", ["look", "model"])
def test_a_header_that_tells_of_huge_images_fills_no_memory(run, tmp_path, monkeypatch, form, file):
    leaves, about = tensorfiles.read(run / "all" / f"{file}.safetensors")
    path = tmp_path / f"{file}.safetensors"
    tensorfiles.write(path, leaves, hostile(about, **form))
    for make in ("zeros", "full", "empty", "arange"):
        monkeypatch.setattr(torch, make, lambda *given, **named: pytest.fail("something was made"))
    with pytest.raises(ValueError, match="Expected"):
        looks.Look.open(path) if file == "look" else looks.Fitted.open(path)


def test_an_embedding_of_countless_features_is_refused_before_anything_is_made(run, tmp_path):
    blocks, about = tensorfiles.read(run / "all" / "look.safetensors")
    about["psi"]["body"] = settings(Embedding(side=8)) | {"kind": "Embedding", "features": 6 * 10**12}
    tensorfiles.write(tmp_path / "look.safetensors", blocks, about)
    assert fedlens("fit", tmp_path / "look.safetensors", "--to", tmp_path / "again").code == 2
    with pytest.raises(RecipeError, match="features"):
        Recipe.parsed(LOOK, ["look.family=embedding", f"look.features={6 * 10**12}"])


def test_images_too_small_for_its_convolutions_are_refused_before_anything_is_charged():
    small = ["look.family=embedding", "model.generator_widths=[8]", "side=3"]
    with pytest.raises(RecipeError, match="side 4 to"):
        Recipe.parsed(LOOK, small)


def test_the_largest_images_start_a_generator_from_few_pixels():
    psi = Psi(body=Embedding(side=shapes.MOST_SIDE, features=6))
    widths = looks.drawing_for(looks_of(psi)).generator.widths
    assert psi.body.side >> (len(widths) - 1) <= 8
    small = looks.drawing_for(looks_of(Psi(body=Embedding(side=28, features=6))))
    assert small.generator.widths == (128, 64, 32)


def looks_of(psi):
    """As far as one asks what may be fitted to it."""
    return types.SimpleNamespace(release=Release(psi=psi, blocks={}, noise=1.0))


# The command


def test_a_look_needs_no_recipe(tmp_path):
    told = answer("look", "digits", "--epsilon", 8, "--out", tmp_path / "runs")
    assert told["guarantee"]["epsilon"] == pytest.approx(8.0, abs=0.01)
    (found,) = (tmp_path / "runs").glob("look-*")
    assert opening.opened(found / "all" / "model.safetensors").sampled(5, 0).classes is not None


def test_what_is_not_known_of_data_is_asked_for(tmp_path):
    done = fedlens("look", tmp_path / "some.npz", "--out", tmp_path / "runs")
    assert done.code == 2
    assert "Expected --side and --units" in done.err


def colourful(path):
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (90, 3, 8, 8), dtype=np.uint8)
    np.savez(path, x=images, user=np.arange(90) % 45)  # more than a noisy count could take for too few


def test_colour_without_labels_is_looked_at(tmp_path):
    colourful(tmp_path / "some.npz")
    known = ["--units", 45, "--side", 8, "--channels", 3, "--epsilon", 50]
    assert fedlens("look", tmp_path / "some.npz", *known, "--out", tmp_path / "runs").code == 0
    (found,) = (tmp_path / "runs").glob("look-*")
    drawn = opening.opened(found / "all" / "model.safetensors").sampled(5, 0)
    assert drawn.images.shape == (5, 3, 8, 8)
    assert drawn.classes is None


@pytest.mark.parametrize(("side", "channels"), [(9, 3), (28, 1), (64, 1)])
@pytest.mark.parametrize("family", ["moments", "embedding"])
def test_images_of_8_to_64_pixels_a_side_are_looked_at(tmp_path, side, channels, family):
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (45, *([channels] if channels > 1 else []), side, side), dtype=np.uint8)
    np.savez(tmp_path / "some.npz", x=images, user=np.arange(45))
    known = ["--units", 45, "--side", side, "--channels", channels, "--epsilon", 50, "--family", family]
    small = ["look.features=12", "look.steps=2", "look.batch=4", "look.examples=1"]
    sets = small if family == "embedding" else ["look.frequencies=9"]
    known += [word for setting in sets for word in ("--set", setting)]
    assert fedlens("look", tmp_path / "some.npz", *known, "--out", tmp_path / "runs").code == 0
    (found,) = (tmp_path / "runs").glob("look-*")
    drawn = opening.opened(found / "all" / "model.safetensors").sampled(3, 0)
    assert drawn.images.shape == (3, channels, side, side)
    assert drawn.classes is None


def test_colour_where_grey_is_expected_costs_nothing(tmp_path):
    colourful(tmp_path / "some.npz")
    done = fedlens("look", tmp_path / "some.npz", "--units", 45, "--side", 8, "--out", tmp_path / "runs")
    assert done.code == 2
    assert "its images are of channels 3" in done.err
    assert not list((tmp_path / "runs").glob("look-*"))


@pytest.mark.parametrize(("unit", "units"), [("example", 90), ("silo", 45)])
def test_an_example_or_a_silo_is_protected_where_that_is_asked_for(tmp_path, unit, units):
    colourful(tmp_path / "some.npz")
    known = ["--units", units, "--side", 8, "--channels", 3, "--epsilon", 50, "--unit", unit]
    told = answer("look", tmp_path / "some.npz", *known, "--out", tmp_path / "runs")
    assert told["guarantee"]["unit"] == unit
    (found,) = (tmp_path / "runs").glob("look-*")
    look = looks.Look.open(found / "all" / "look.safetensors")
    assert look.release.psi.several == (unit == "silo")
    assert look.release.units == units


def test_a_user_alone_is_not_looked_at(tmp_path):
    """Nor with one image: a noisy count says that too few are there."""
    np.savez(tmp_path / "one.npz", x=np.zeros((1, 8, 8), np.uint8), user=np.zeros(1, np.int64))
    known = ["--units", 30, "--side", 8, "--epsilon", 50, "--set", "privacy.count_noise=2"]  # 1 is never taken for 20
    done = fedlens("look", tmp_path / "one.npz", *known, "--out", tmp_path / "runs")
    assert done.code == 0
    (found,) = (tmp_path / "runs").glob("look-*")
    assert not (found / "all" / "look.safetensors").exists()


def test_images_that_are_all_equal_are_drawn_alike(tmp_path):
    np.savez(tmp_path / "same.npz", x=np.full((200, 8, 8), 200, np.uint8), user=np.arange(200) % 100)
    known = ["--units", 100, "--side", 8, "--epsilon", 100]
    assert fedlens("look", tmp_path / "same.npz", *known, "--out", tmp_path / "runs").code == 0
    (found,) = (tmp_path / "runs").glob("look-*")
    drawn = opening.opened(found / "all" / "model.safetensors").sampled(50, 0).images
    assert float(drawn.mean()) == pytest.approx(200 / 127.5 - 1, abs=0.15)


def test_two_groups_are_compared_by_their_looks(tmp_path):
    """Seeded: under fresh noise, one run of 40 said that they differ and left the fault unnamed."""
    recipe = LOOK.replace("deal_to = 40", 'deal_to = 100\nbug = { kind = "inverted", fraction = 0.5, mark = "odd" }')
    recipe = recipe.replace(
        '[selections.all]\nby = "everyone"',
        '[selections.a]\nby = "attribute"\nattribute = "odd"\n'
        'values = [1]\n[selections.b]\nby = "attribute"\nattribute = "odd"\nvalues = [0]',
    )
    recipe = recipe.replace("units = 40", "units = 50").replace("population = 40", "population = 100")
    recipe = recipe.replace('task = "T1"', 'task = "T4"')
    report = answer("run", written(tmp_path, recipe), "--out", tmp_path / "runs", "--simulate", 0)
    assert report["findings"][0]["kind"] == "inverted"


def test_a_seed_gives_the_same_look_again(tmp_path):
    for out in ("a", "b"):
        assert fedlens("run", written(tmp_path, LOOK), "--out", tmp_path / out, "--simulate", 3).code == 0
    one, other = (looks.Look.open(next(tmp_path.glob(f"{out}/once-*/all/look.safetensors"))) for out in ("a", "b"))
    assert all(torch.equal(leaf, other.release.blocks[name]) for name, leaf in one.release.blocks.items())


def test_sizes_follow_from_public_numbers():
    sizes = [looks.psi(Recipe.parsed(LOOK, [f"privacy.epsilon={e}"])).body.frequencies for e in (0.5, 2, 8, 50)]
    assert sizes == sorted(sizes)
    assert sizes[0] < sizes[-1] <= 64
    assert dataclasses.replace(looks.psi(Recipe.parsed(LOOK)), examples=3).examples == 3
