"""Made-up users with pictures, an untrained classifier and a recipe for them that is carried out in a second."""

import numpy as np
import torch

from fedlens.data.population import Population
from fedlens.models.classifier import ConvClassifier, Primary

USERS, EACH, SIDE = 24, 4, 8
ROWS = USERS * EACH
RECIPE = """
name = "bad"
task = "T1"
side = 8
[data]
source = "{source}"
path = "{path}"
name = "crowd"
{data}
{selections}
[privacy]
epsilon = 8.0
delta = 1e-5
rounds = {rounds}
users = 20
population = 60
clip = 0.1
minimum_users = 1
count_noise = 1.0
threshold_noise = 2.0
{privacy}
[model]
critic_widths = [4, 6]
generator_latent = 4
generator_hidden = 12
generator_widths = [8, 4]
{model}
[training]
batch = 4
local_steps = 2
generator_steps = 1
generator_batch = 8
generator = {{ kind = "adam", rate = 1e-3 }}
"""
ALL = '[selections.all]\nby = "everyone"'
BOTH = """
[primary]
model = "{model}"
[selections.low]
by = "accuracy"
below = 0.5
[selections.high]
by = "accuracy"
at_least = 0.5
"""
EXAMPLES = """
[primary]
model = "{model}"
[selections.low]
by = "wrong"
minimum_examples = 1
[selections.high]
by = "right"
minimum_examples = 1
"""
SECRET = "patient-4711"


def columns(**changes):
    rng = np.random.default_rng(0)
    made = {
        "x": rng.integers(0, 256, (ROWS, SIDE, SIDE)).astype(np.uint8),
        "y": rng.integers(0, 10, ROWS),
        "user": np.repeat([f"{SECRET}-{user:03d}" for user in range(USERS)], EACH),
    }
    return made | changes


def classifier(path, *, favourite=None, side=SIDE, classes=10):
    """An untrained primary model, or one that sees its favourite class everywhere."""
    network = ConvClassifier(side=side, classes=classes, widths=(4,), hidden=8)
    params = network.init(0)
    if favourite is not None:
        params = {name: torch.zeros_like(leaf) for name, leaf in params.items()}
        params["classes.bias"][favourite] = 5.0
    Primary(network, params).save(path)
    return path


def written(folder, selections=ALL, *, more="", privacy="", model="", rounds=2, source="npz", head="", **changes):
    """Data and a recipe for them in `folder`."""
    if source == "npz":
        np.savez(folder / "d.npz", **columns(**changes))
        path = folder / "d.npz"
    else:
        path = folder / "people"
        made = columns()
        Population.from_arrays("p", {"x": made["x"][:, None], "y": made["y"]}, np.full(USERS, EACH)).save(path)
        for name, column in changes.items():
            np.save(path / f"{name}.npy", column)
    if "{model}" in selections:
        if not (folder / "m.pt").exists():
            classifier(folder / "m.pt")
        selections = selections.format(model=folder / "m.pt")
    text = RECIPE.format(
        source=source, path=path, data=more, selections=selections, privacy=privacy, model=model, rounds=rounds
    )
    (folder / "recipe.toml").write_text(text.replace("side = 8", f"side = 8\n{head}"))
    return folder
