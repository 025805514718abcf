"""A start from public rows is Adam on random batches of them, and nothing else, wherever it is computed."""

import numpy as np
import pytest
import torch
from toys import same

from fedlens.algorithms.fedavg import WARM_BATCH, WARM_STEP, warmed
from fedlens.models.lstm import LanguageModel
from fedlens.models.words import spelled

NETWORK = LanguageModel(symbols=258, start=256, end=257, embedding=4, units=8, projection=3)
FRESH = NETWORK.init(0)
ROWS = torch.tensor(np.stack([spelled(word, 9) for word in ("lattice", "orbit", "quarry", "incomprehensible")])).long()


def warm(steps, fresh=FRESH, seed=5, device="cpu"):
    return warmed(NETWORK, fresh, ROWS, steps=steps, seed=seed, device=device)


def loss(params):
    return float(NETWORK.loss(params, ROWS, torch.ones(len(ROWS))))


def test_it_is_a_plain_loop_to_the_last_bit():
    params, slots, rng = FRESH, WARM_STEP.init(FRESH), torch.Generator().manual_seed(5)
    for _ in range(6):
        leaves = {name: leaf.clone().requires_grad_() for name, leaf in params.items()}
        batch = ROWS[torch.randint(len(ROWS), (WARM_BATCH,), generator=rng)]
        NETWORK.loss(leaves, batch, torch.ones(WARM_BATCH)).backward()
        params, slots = WARM_STEP(params, {name: leaf.grad for name, leaf in leaves.items()}, slots)
    assert same(warm(6), params)


def test_a_seed_repeats_and_another_draws_other_batches():
    assert same(warm(3), warm(3))
    assert not same(warm(3), warm(3, seed=6))


def test_without_a_step_the_weights_stay_fresh():
    assert same(warm(0), NETWORK.init(0))


def test_it_learns_its_rows_and_leaves_the_weights_it_was_given():
    assert loss(warm(60)) < 0.6 * loss(FRESH)
    assert same(FRESH, NETWORK.init(0))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_a_gpu_learns_the_same():
    """In doubles: a GPU's floats may be rounded so far that Adam, of a slope near zero, steps to the other side."""
    doubles = {name: leaf.double() for name, leaf in FRESH.items()}
    here, there = (warm(20, fresh=doubles, device=device) for device in ("cpu", "cuda"))
    assert all(leaf.device.type == "cpu" for leaf in there.values())
    torch.testing.assert_close(there, here, rtol=0, atol=1e-5)
