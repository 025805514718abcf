"""What is recorded on a GPU answers as the function does; elsewhere it is the function."""

import pytest
import torch

from fedlens.core.replay import Replayed

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA"))]


def step(params, given):
    slope = torch.func.grad(lambda p: ((p["w"] @ given["x"]) ** 2).sum())(params)
    return {"w": params["w"] - 0.1 * slope["w"], "loss": ((params["w"] @ given["x"]) ** 2).sum()}


@pytest.mark.parametrize("device", DEVICES)
def test_it_is_the_function(device):
    replayed = Replayed(step)
    for seed, size in ((0, 4), (1, 4), (2, 4), (3, 6), (4, 4)):  # other shapes are recorded anew
        rng = torch.Generator().manual_seed(seed)
        params = {"w": torch.randn(3, size, generator=rng).to(device)}
        given = {"x": torch.randn(size, 2, generator=rng).to(device)}
        torch.testing.assert_close(replayed(params, given), step(params, given), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("device", DEVICES)
def test_answers_are_not_overwritten_by_later_ones(device):
    replayed = Replayed(step)
    first = replayed({"w": torch.ones(2, 2, device=device)}, {"x": torch.ones(2, 1, device=device)})
    kept = first["w"].clone()
    replayed({"w": torch.zeros(2, 2, device=device)}, {"x": torch.ones(2, 1, device=device)})
    assert torch.equal(first["w"], kept)
