"""Looks under careless hands: clear errors, nothing lost, nothing charged that was not released, nothing told."""

import json
import math

import numpy as np
import pytest
import torch
from command_line import fedlens
from toys import with_one

from fedlens.algorithms import OneLook, settings
from fedlens.core import tensorfiles
from fedlens.curators.engine import Engine
from fedlens.data.population import Population
from fedlens.ledger import Ledger
from fedlens.media import opening
from fedlens.models.gan import ConvGenerator
from fedlens.models.looks import room
from fedlens.models.looks.embedding import Embedding
from fedlens.models.looks.fitting import DivergedError, Fit, Release
from fedlens.models.looks.generators import Network
from fedlens.models.looks.moments import Moments
from fedlens.models.looks.psi import BODY, Psi
from fedlens.privacy import Everyone, L2Clip, Plan
from fedlens.runs import run as runs

ROWS, USERS, SIDE = 90, 45, 8
EMBEDDED = ["look.family=embedding", "look.features=198", "look.steps=3", "look.batch=40"]


def columns(**changes):
    rng = np.random.default_rng(0)
    made = {
        "x": rng.integers(0, 256, (ROWS, SIDE, SIDE), dtype=np.uint8),
        "y": rng.integers(0, 10, ROWS),
        "user": np.arange(ROWS) % USERS,
    }
    return made | changes


def written(folder, kind="npz", **changes):
    """Data, as a file or as a population folder."""
    made = columns(**changes)
    if kind == "npz":
        np.savez(folder / "d.npz", **made)
        return folder / "d.npz"
    each = len(made["x"]) // USERS
    held = {"x": made["x"][:, None], "y": made["y"]}
    Population.from_arrays("p", held, np.full(USERS, each)).save(folder / "people")
    return folder / "people"


def looked(folder, data, *sets, epsilon=50, classes=10):
    """`fedlens look`; with so large an epsilon a head count is hardly noisy."""
    given = [word for setting in sets for word in ("--set", setting)]
    known = ["--units", USERS, "--side", SIDE, "--classes", classes, "--epsilon", epsilon]
    return fedlens("look", data, *known, "--out", folder / "runs", *given)


def run_of(folder):
    (found,) = (folder / "runs").glob("look-*")
    return found


def assert_free(folder):
    """No run, and nothing spent or set aside."""
    assert not list((folder / "runs").glob("look-*"))
    if (folder / "runs" / "ledger.sqlite").exists():
        shown = fedlens("ledger", "show", "--ledger", folder / "runs" / "ledger.sqlite", "--json")
        for population in json.loads(shown.out)["populations"]:
            assert (population["spent_and_reserved"] or {"epsilon": 0})["epsilon"] == 0


def nan():
    images = (columns()["x"] / 127.5 - 1).astype(np.float32)
    images[17, 2, 2] = np.nan
    return images


# Data


@pytest.mark.parametrize("count", [0, 1])
@pytest.mark.parametrize("kind", ["npz", "folder"])
def test_almost_no_images_give_no_look_and_are_not_counted_aloud(tmp_path, count, kind):
    few = {name: column[:count] for name, column in columns().items()}
    if kind == "npz":
        data = written(tmp_path, **few)
    else:
        held = {"x": few["x"][:, None], "y": few["y"]}
        Population.from_arrays("p", held, np.array([count])).save(data := tmp_path / "people")
    done = looked(tmp_path, data, "privacy.count_noise=2")  # 1 is never taken for 20
    assert done.code == 0, done.err
    assert "noisy head count found fewer" in done.out
    assert [path.name for path in (run_of(tmp_path) / "all").iterdir()] == ["count.json"]


def test_users_without_an_image_are_nobody(tmp_path):
    data = written(tmp_path, "folder", **{name: column[:0] for name, column in columns().items()})
    assert looked(tmp_path, data, "privacy.count_noise=2").code == 0
    assert not (run_of(tmp_path) / "all" / "look.safetensors").exists()


@pytest.mark.parametrize("sets", [[], EMBEDDED], ids=["moments", "embedding"])
def test_a_class_that_nobody_has_is_no_error(tmp_path, sets):
    labels = columns()["y"]
    labels[labels == 3] = 4
    done = looked(tmp_path, written(tmp_path, y=labels), *sets)
    assert done.code == 0, done.err
    assert len(opening.opened(run_of(tmp_path) / "all" / "model.safetensors").sampled(20, 0)) == 20


@pytest.mark.parametrize("sets", [[], EMBEDDED], ids=["moments", "embedding"])
def test_images_that_are_all_equal_are_no_error(tmp_path, sets):
    done = looked(tmp_path, written(tmp_path, x=np.full((ROWS, SIDE, SIDE), 200, np.uint8)), *sets)
    assert done.code == 0, done.err
    assert (run_of(tmp_path) / "all" / "model.safetensors").exists()


UNUSABLE = {
    "a class beyond the declared ones": ("npz", {"y": with_one(columns()["y"], 12)}),
    "a class beyond them, in a folder": ("folder", {"y": with_one(columns()["y"], 12)}),
    "a negative class": ("npz", {"y": with_one(columns()["y"], -1)}),
    "NaN": ("npz", {"x": nan()}),
    "NaN, in a folder": ("folder", {"x": nan()}),
    "another size": ("npz", {"x": np.zeros((ROWS, 12, 12), np.uint8)}),
    "colour": ("npz", {"x": np.zeros((ROWS, 3, SIDE, SIDE), np.uint8)}),
    "more users than declared": ("npz", {"user": np.arange(ROWS)}),
}


@pytest.mark.parametrize("name", UNUSABLE)
def test_data_that_cannot_be_looked_at_are_refused_at_no_price_and_without_a_row(tmp_path, name):
    kind, changes = UNUSABLE[name]
    done = looked(tmp_path, written(tmp_path, kind, **changes))
    assert done.code == 2
    assert done.err.strip().splitlines()[-1].startswith("Expected ")
    assert "row" not in done.err
    assert "17" not in done.err.replace(str(tmp_path), "")
    assert_free(tmp_path)


@pytest.mark.parametrize("body", [Moments(side=SIDE, frequencies=9), Embedding(side=SIDE, features=42)], ids=str)
@pytest.mark.parametrize("engine", [Engine(), Engine(chunk=4)], ids=["one by one", "chunks"])
@pytest.mark.parametrize("spoilt", [math.nan, math.inf])
def test_a_unit_whose_images_are_no_numbers_is_silent(curator_of, body, engine, spoilt):
    """Behind the curator nobody may be told: the answer is that without it."""
    rng = np.random.default_rng(0)
    images = rng.uniform(-1, 1, (9, 1, SIDE, SIDE)).astype(np.float32)
    psi = Psi(body=body, classes=2, examples=3)
    plan = Plan(
        sampling=Everyone(), bound=L2Clip(norm=1.0), noise_multiplier=1e-6, releases=1, expected_contributors=3.0
    )
    answers = []
    for hole in (spoilt, None):
        x, counts = images.copy(), np.array([3, 3, 3])
        if hole is None:
            x, counts = x[3:], np.array([0, 3, 3])
        else:
            x[1, 0, 2, 2] = hole
        population = Population.from_arrays("p", {"x": x, "y": np.arange(len(x)) % 2}, counts)
        if hole is None:
            population.columns["y"][:] = (np.arange(9) % 2)[3:]
        curator = curator_of(population, plan, engine=engine, examples_per_unit=3)
        answers.append(curator.noisy_mean(OneLook(psi=psi).contribute, {}))
    for name, leaf in answers[0].items():
        assert leaf.isfinite().all()
        assert torch.allclose(leaf, answers[1][name], atol=1e-4)


# Settings


@pytest.mark.parametrize("setting", ["privacy.clip=1e-9", "privacy.clip=0", "look.readable=0.95", "look.examples=0"])
def test_a_bound_that_cuts_everything_cannot_be_asked_for(tmp_path, setting):
    done = looked(tmp_path, written(tmp_path), setting)
    assert done.code == 2
    assert setting.partition("=")[0] in done.err
    assert_free(tmp_path)


MUCH = ["look.family=embedding", "look.features=60000"]


def test_more_features_than_memory_are_refused_with_what_fits_before_anything_is_charged(tmp_path, monkeypatch):
    data = written(tmp_path)
    monkeypatch.setattr(runs, "memory_of", lambda device: 10**8)
    done = looked(tmp_path, data, *MUCH, "look.batch=40", "look.steps=2")
    assert done.code == 2
    told = done.err.strip().splitlines()[-1]
    assert told.startswith("Expected look.features of at most ")
    assert "nothing is spent" in told
    assert_free(tmp_path)
    fits = told.split("at most ")[1].split(":")[0]
    assert int(fits) % 6 == 0
    again = looked(tmp_path, data, MUCH[0], f"look.features={fits}", "look.batch=40", "look.steps=2")
    assert again.code == 0, again.err


def test_more_frequencies_than_memory_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(runs, "memory_of", lambda device: 2**20)
    done = looked(tmp_path, written(tmp_path), "look.frequencies=64")
    assert done.code == 2
    assert "Expected look.frequencies of at most " in done.err
    assert_free(tmp_path)


def test_what_is_said_to_fit_is_the_largest_that_does():
    psi = Psi(body=Embedding(side=28, features=60_000), classes=10)
    for memory in (10**9, 10**8):
        with pytest.raises(ValueError, match="of at most") as error:
            room.check(psi, 100, memory)
        fits = int(str(error.value).split("at most ")[1].split(":")[0])
        for features, allowed in ((fits, True), (fits + 6, False)):
            body = Embedding(side=28, features=features)
            assert (room.needed(Psi(body=body, classes=10), 100) <= memory) == allowed
    with pytest.raises(ValueError, match="Expected more memory"):
        room.check(psi, 100, 1000)


@pytest.mark.parametrize("side", [4, 8, 12, 28, 64])
def test_the_projection_is_as_large_as_it_is_said_to_be(side):
    body = Embedding(side=side, features=12)
    assert body.projection == body.seen(torch.zeros(1, 1, side, side)).shape[1] * 6


def test_this_machine_has_some_memory():
    assert 2**28 < runs.memory_of("cpu") < 2**50


# Releases and fits


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """A finished look with an embedding."""
    folder = tmp_path_factory.mktemp("look")
    assert looked(folder, written(folder), *EMBEDDED).code == 0
    return run_of(folder)


def test_a_release_whose_generator_diverges_is_kept_and_fitted_again_for_free(tmp_path, monkeypatch):
    def diverged(params):
        raise DivergedError("Expected the generator to stay finite; the fit diverged. The release is kept.")

    with monkeypatch.context() as patched:
        patched.setattr(Fit, "_checked", staticmethod(diverged))
        told = looked(tmp_path, written(tmp_path), *EMBEDDED)
    assert told.code == 2
    assert "The release is kept" in told.err
    run, book = run_of(tmp_path), Ledger(tmp_path / "runs" / "ledger.sqlite")
    before = (run / "all" / "look.safetensors").read_bytes()
    entries = len(list(book.entries()))
    again = ["fit", run / "all" / "look.safetensors", "--to", tmp_path / "again", "--steps", 3, "--batch", 40]
    assert fedlens(*again).code == 0
    assert len(opening.opened(tmp_path / "again" / "model.safetensors").sampled(3, 0)) == 3
    assert (run / "all" / "look.safetensors").read_bytes() == before
    assert len(list(book.entries())) == entries


def test_a_rate_that_is_far_too_large_diverges_aloud():
    psi = Psi(body=Embedding(side=SIDE, features=42), examples=3)
    release = Release(psi=psi, blocks={name: torch.full(size, 0.1) for name, size in psi.shapes.items()}, noise=0.0)
    network = Network(generator=ConvGenerator(side=SIDE, latent=4, hidden=8, widths=(8,)))
    with pytest.raises(DivergedError, match="fit it again, for free"):
        Fit(steps=8, batch=8, rate=1e38)(release, network)


def test_a_fit_that_memory_is_too_small_for_is_refused(done, tmp_path, monkeypatch):
    monkeypatch.setattr(runs, "memory_of", lambda device: 10**6)
    told = fedlens("fit", done / "all" / "look.safetensors", "--to", tmp_path / "again")
    assert told.code == 2
    assert "Expected " in told.err
    assert not (tmp_path / "again").exists()


def another_size(blocks, about):
    blocks[BODY] = blocks[BODY][:, :-6].contiguous()


def another_side(blocks, about):
    about["psi"]["body"]["side"] = 400
    blocks["picture"] = blocks["picture"][:9].contiguous()


def another_family(blocks, about):
    about["psi"]["body"] = settings(Moments(side=SIDE, frequencies=9)) | {"kind": "Moments"}


def no_family(blocks, about):
    about["psi"]["body"]["kind"] = "Psi"


def without_psi(blocks, about):
    del about["psi"]


@pytest.mark.parametrize("change", [another_size, another_side, another_family, no_family, without_psi])
def test_a_look_of_another_size_or_psi_is_refused_by_name(done, tmp_path, change):
    blocks, about = tensorfiles.read(done / "all" / "look.safetensors")
    change(blocks, about)
    tensorfiles.write(tmp_path / "look.safetensors", blocks, about)
    told = fedlens("fit", tmp_path / "look.safetensors", "--to", tmp_path / "again")
    assert told.code == 2
    assert told.err.strip().splitlines()[-1].startswith("Expected ")
    assert "look.safetensors" in told.err
    assert not (tmp_path / "again").exists()


@pytest.mark.parametrize("file", ["a model", "nothing", "a folder", "text"])
def test_what_is_no_look_is_refused_by_name(done, tmp_path, file):
    path = {
        "a model": done / "all" / "model.safetensors",
        "nothing": tmp_path / "none.safetensors",
        "a folder": done,
        "text": done / "recipe.toml",
    }[file]
    told = fedlens("fit", path, "--to", tmp_path / "again")
    assert told.code == 2
    assert told.err.strip().splitlines()[-1].startswith("Expected ")
    assert path.name in told.err
    assert not (tmp_path / "again").exists()
