"""Attacks on feedback GANs, shards and what units remember that once worked: each is a test."""

import itertools

import pytest
from command_line import fedlens
from test_feedback_gan import RECIPE, written
from toys import same

from fedlens.curators.engine import Engine
from fedlens.curators.simulated import SimulatedCurator
from fedlens.ledger import Ledger
from fedlens.media import opening

# Cut short

KINDS = {
    "balanced": "",
    "hidden": 'sampling = "fixed-size"\nsize = 2\n',
    "voting": "top_k = 9\n",
}


def recipe_of(kind):
    text = RECIPE if kind == "balanced" else RECIPE.replace('sampling = "balanced"\ngroups = 5\n', KINDS[kind])
    return text + ("all_learn = true\nasks = 2\n" if kind == "hidden" else "")


def stopped_in(monkeypatch, place, at):
    """Ctrl-C, or a full disk, in the middle of a question or of what units remember, or once it is answered."""
    owner, name = {
        "in the middle": (Engine, "summed"),
        "before the noise": (SimulatedCurator, "_released"),
        "after the noise": (SimulatedCurator, "noisy_mean"),
        "remembering": (SimulatedCurator, "remember"),
    }[place]
    count, whole = itertools.count(), getattr(owner, name)

    def stopping(self, *given):
        if place == "after the noise":
            answer = whole(self, *given)
        if getattr(self, "_stage", "train") == "train" and next(count) == at:
            raise KeyboardInterrupt if at % 2 else OSError("the disk is full")
        return answer if place == "after the noise" else whole(self, *given)

    monkeypatch.setattr(owner, name, stopping)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The runs that nobody stops."""
    models = {}
    for kind in KINDS:
        folder = tmp_path_factory.mktemp(kind)
        done = fedlens("run", written(folder, recipe_of(kind)), "--simulate", "3", "--out", folder / "runs")
        assert done.code == 0, done.err
        (run,) = (folder / "runs").glob("gs-*")
        models[kind] = opening.opened(run / "all" / "model.safetensors").generator
    return models


STOPS = [
    (kind, *stop)
    for kind in KINDS
    for stop in [("in the middle", 13), ("before the noise", 5), ("after the noise", 6), ("remembering", 0)]
]


@pytest.mark.parametrize(("kind", "place", "at"), [*STOPS, ("hidden", "remembering", 3)])
def test_whoever_stops_a_run_anywhere_goes_on_with_it_and_pays_nothing_twice(
    tmp_path, monkeypatch, whole, kind, place, at
):
    """What units remembered was saved with the state before it, or torn: from there on nothing fitted any more."""
    with monkeypatch.context() as patched:
        stopped_in(patched, place, at)
        stopped = fedlens("run", written(tmp_path, recipe_of(kind)), "--simulate", "3", "--out", tmp_path / "runs")
    assert stopped.code
    (run,) = (tmp_path / "runs").glob("gs-*")
    done = fedlens("run", "--resume", run)
    assert done.code == 0, done.err
    assert Ledger(run.parent / "ledger.sqlite").spent(f"{run.name}/all", "train") == 8
    assert same(opening.opened(run / "all" / "model.safetensors").generator, whole[kind])
