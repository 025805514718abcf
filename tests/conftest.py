"""Small, fast, reproducible surroundings for all tests."""

import hypothesis
import numpy as np
import pytest
import torch

from fedlens.ledger import Account, Ledger
from fedlens.models.gan import ConvCritic, ConvGenerator, Gan
from fedlens.population import Population
from fedlens.randomness import Randomness
from fedlens.simulation import Engine, SimulatedCurator

hypothesis.settings.register_profile("fedlens", deadline=None, max_examples=40, derandomize=True, database=None)
hypothesis.settings.load_profile("fedlens")


@pytest.fixture(autouse=True, scope="session")
def one_core():
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def gan():
    """A pair of networks for 8 x 8 images that trains in milliseconds."""
    generator = ConvGenerator(side=8, latent=4, hidden=12, widths=(8, 4))
    return Gan(generator=generator, critic=ConvCritic(side=8, widths=(4, 6)))


@pytest.fixture(scope="session")
def users():
    """Eleven users with 1 to 9 images of 8 x 8 each, each user at a brightness of its own."""
    rng = np.random.default_rng(0)
    counts = np.array([3, 1, 9, 4, 2, 6, 1, 5, 7, 2, 3])
    brightness = np.repeat(np.linspace(-0.6, 0.6, len(counts)), counts)
    x = brightness[:, None, None, None] + 0.2 * rng.standard_normal((counts.sum(), 1, 8, 8))
    return Population.from_arrays("users", {"x": x.astype(np.float32)}, counts)


@pytest.fixture
def door():
    """Opens a curator with seeded noise; every part of it can be replaced."""

    def opened(population, plan, *, ledger=None, run="run", randomness=None, engine=None, **options):
        randomness = randomness or Randomness.seeded(1)
        return SimulatedCurator(
            population,
            plan,
            ledger=ledger or Ledger(),
            account=Account(run=run, population=population.name, simulated=randomness.simulated),
            randomness=randomness,
            engine=engine or Engine(),
            **options,
        )

    return opened
