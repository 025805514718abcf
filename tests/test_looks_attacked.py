"""Looks under attack by a modeler: recipes, models, public files and run folders of their own making."""

import numpy as np
import pytest
import torch

from fedlens.data import selection
from fedlens.data.population import Population
from fedlens.models.classifier import ConvClassifier, Primary
from fedlens.models.looks.shapes import drawn
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
