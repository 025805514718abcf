"""A look takes bounded memory: whatever the number of units, of their images, of features and of classes."""

import os
import pathlib

import numpy as np
import pytest
import torch

from fedlens.algorithms import OneLook
from fedlens.curators.contributions import one_by_one
from fedlens.curators.engine import Engine
from fedlens.data.population import Population
from fedlens.models.looks.embedding import Embedding
from fedlens.models.looks.moments import Moments
from fedlens.models.looks.psi import BODY, Psi
from fedlens.privacy import Everyone, L2Clip, Plan, Unit

CLEAR = pathlib.Path("/proc/self/clear_refs")
STATUS = pathlib.Path("/proc/self/status")
WIDE = Embedding(side=4, features=30_000)


def kibibytes(name):
    return int(dict(line.split(":", 1) for line in STATUS.read_text().splitlines())[name].split()[0])


def grown(work, body=None):
    """MB that the process grew by while it worked, at its peak."""
    if body is not None:
        body(torch.zeros(2, 1, body.side, body.side))  # makes what is kept
    CLEAR.write_text("5")  # forgets the peak
    before = kibibytes("VmRSS")
    work()
    return (kibibytes("VmHWM") - before) / 1024


def crowd(units, each, side):
    rng = np.random.default_rng(0)
    columns = {
        "x": rng.integers(0, 256, (units * each, 1, side, side), dtype=np.uint8),
        "y": rng.integers(0, 10, units * each),
    }
    return Population.from_arrays("crowd", columns, np.full(units, each))


def opened(curator_of, population, psi, engine):
    unit = Unit.USER if psi.several else Unit.EXAMPLE
    count = float(len(population))
    plan = Plan(
        sampling=Everyone(),
        bound=L2Clip(norm=1.0),
        noise_multiplier=1.0,
        releases=1,
        expected_contributors=count,
        unit=unit,
    )
    curator = curator_of(population, plan, engine=engine, examples_per_unit=psi.examples)
    if engine is None:  # the curator of the tests has one of its own
        curator.engine = None
    return curator


def looked(curator_of, population, psi, engine):
    curator = opened(curator_of, population, psi, engine)
    return curator.noisy_mean(OneLook(psi=psi).contribute, {}), curator


@pytest.fixture
def greedy(monkeypatch):
    """A machine on which larger chunks always seem to pay."""
    monkeypatch.setattr(Engine, "_rate", lambda self, *given: float(self.chunk**2 * self.workers))
    monkeypatch.setattr(os, "cpu_count", lambda: 2)


def test_the_probe_sees_memory_that_is_taken():
    assert grown(lambda: torch.ones(2**26)) > 200


@pytest.mark.parametrize("engine", [None, "repeatable"])
def test_memory_does_not_grow_with_features_times_users(curator_of, greedy, engine):
    """Measured, or the same on every machine: 32 or 16 users at once take 2.3 and 1.2 GB."""
    psi, population = Psi(body=WIDE, examples=128), crowd(64, 128, 4)
    chosen = Engine.repeatable("cpu") if engine else None
    assert grown(lambda: looked(curator_of, population, psi, chosen), WIDE) < 900


def test_memory_does_not_grow_with_classes_times_features_times_examples(curator_of, greedy):
    """Of an example one row is not zero, but all are there: 128 at once are 300 MB, again and again."""
    psi = Psi(body=Embedding(side=4, features=60_000), classes=10, several=False, examples=1)
    curator = opened(curator_of, crowd(257, 1, 4).by_example(), psi, None)
    curator.settle(OneLook(psi=psi).contribute, {})
    assert curator.engine.chunk * 10 * 60_000 * 4 <= 2**27
    assert curator.engine.chunk > 1


def test_memory_does_not_grow_with_units(curator_of):
    psi = Psi(body=Moments(side=8, frequencies=30), classes=10, several=False, examples=1)
    few, many = (
        grown(lambda count=count: looked(curator_of, crowd(count, 1, 8).by_example(), psi, Engine(chunk=64)), psi.body)
        for count in (500, 15_000)
    )
    assert many < few + 60  # contributions of all of them are 300 MB


def test_memory_does_not_grow_with_a_units_images():
    psi = Psi(body=WIDE, classes=2, examples=2000)
    examples = {"x": torch.zeros(2000, 1, 4, 4), "y": torch.arange(2000) % 2, "mask": torch.ones(2000)}
    with torch.no_grad():
        assert grown(lambda: psi(examples), WIDE) < 300  # all at once take 570 MB


def test_a_body_of_many_images_is_their_mean():
    rng = torch.Generator().manual_seed(0)
    images, labels = torch.rand(1200, 1, 4, 4, generator=rng) * 2 - 1, torch.arange(1200) % 3
    psi = Psi(body=Embedding(side=4, features=42), classes=3, examples=1200)
    body = psi({"x": images, "y": labels, "mask": torch.ones(1200)})[BODY]
    means = torch.stack([psi.body(images[labels == label]).mean(0) for label in range(3)])
    assert torch.allclose(body, psi.weights[BODY] * means / means.norm(), atol=1e-6)


def test_a_smaller_chunk_gives_the_answer_of_a_plain_loop(curator_of, monkeypatch):
    monkeypatch.setattr("fedlens.curators.engine._ROOM", 20_000)
    psi, population = Psi(body=Moments(side=8, frequencies=30), classes=10, examples=3), crowd(11, 3, 8)
    oracle, _ = looked(curator_of, population, psi, Engine(run=one_by_one))
    answer, curator = looked(curator_of, population, psi, Engine.repeatable("cpu"))
    assert curator.engine.chunk == 1
    monkeypatch.setattr("fedlens.curators.engine._ROOM", 80_000)
    several, curator = looked(curator_of, population, psi, Engine.repeatable("cpu"))
    assert 1 < curator.engine.chunk < 16
    for name, leaf in oracle.items():
        assert torch.equal(answer[name], leaf)
        torch.testing.assert_close(several[name], leaf, rtol=1e-4, atol=1e-6)
