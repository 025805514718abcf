"""How far apart are two models that differ by no cause? Pairs trained on what both models drew tell."""

import dataclasses
import itertools
import json

import pytest
import torch
import toy_images
from command_line import fedlens

from fedlens.ledger import Ledger
from fedlens.media import opening
from fedlens.report.comparison import FEWEST
from fedlens.report.report import VERDICTS
from fedlens.runs import comparing, null

SLICES = """
[selections.low]
by = "class"
classes = [0, 1, 2, 3, 4]
minimum_examples = 1
[selections.high]
by = "class"
classes = [5, 6, 7, 8, 9]
minimum_examples = 1
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Two tiny models of one run."""
    folder = toy_images.written(tmp_path_factory.mktemp("null"), SLICES)
    done = fedlens("run", folder / "recipe.toml", "--out", folder / "runs", "--simulate", "0", "--json")
    assert done.code == 0, done.err
    (made,) = (folder / "runs").glob("bad-*")
    return made


def first(run, pairs):
    """The first distances of a null."""
    folders = [run / "low", run / "high"]
    models = [comparing.opened(folder) for folder in folders]
    return list(itertools.islice(null.distances(folders, models, opening.medium("images")), pairs))


def test_a_comparison_with_a_null_ends_in_a_verdict_by_it(run, tmp_path):
    before = sorted(path.name for path in run.parent.iterdir())
    entries = len(Ledger(run.parent / "ledger.sqlite").runs())
    done = fedlens("compare", run / "low", run / "high", "--null", str(FEWEST), "--to", tmp_path / "made", "--json")
    assert done.code == 0, done.err
    report = json.loads(done.out)
    assert report["verdict"]["kind"] in VERDICTS
    assert f"of {FEWEST} pairs" in report["verdict"]["summary"] or "noise" in report["verdict"]["summary"]
    assert done.err.count("pairs of models, distance") == FEWEST
    # It costs nothing: the ledger is as it was, and no file is left.
    assert len(Ledger(run.parent / "ledger.sqlite").runs()) == entries
    assert sorted(path.name for path in run.parent.iterdir()) == before
    shown = fedlens("report", tmp_path / "made")
    assert shown.out.startswith(report["verdict"]["kind"])


def test_pairs_differ_from_each_other_and_come_again_with_the_same_models(run):
    once, again = (first(run, 2) for _ in range(2))
    assert once == again
    assert once[0] != once[1]
    assert min(once) > 0


def test_made_up_units_are_as_many_as_the_recipe_says_and_of_both_models(run):
    models = [comparing.opened(run / name) for name in ("low", "high")]
    recipe = null._recipe(run / "low", models[0])
    marked = [_Marked(images) for images in (-0.5, 0.5)]
    units = null._units(recipe, marked, seed=0)
    assert len(units) == recipe.privacy.units
    assert set(units.counts) == {recipe.built().examples_per_unit}
    values, counts = torch.from_numpy(units.columns["x"][:, 0, 0, 0]).unique(return_counts=True)
    assert values.tolist() == [-0.5, 0.5]
    assert abs(int(counts[0] - counts[1])) <= 1


@dataclasses.dataclass(frozen=True)
class _Marked:
    """A model that draws one shade."""

    shade: float

    count: int = 0

    def sampled(self, count, seed):
        return dataclasses.replace(self, count=count)

    def examples(self):
        return {"x": torch.full((self.count, 1, 8, 8), self.shade)}


def test_a_model_without_its_recipe_has_no_null(run, tmp_path):
    model = comparing.opened(run / "low")
    with pytest.raises(ValueError, match=r"beside recipe.toml"):
        null._recipe(tmp_path / "low", model)
    text = (run / "recipe.toml").read_text()
    (tmp_path / "recipe.toml").write_text(text.replace("local_steps = 2", "local_steps = 3"))
    with pytest.raises(ValueError, match="Expected the recipe that low was trained by"):
        null._recipe(tmp_path / "low", model)


def test_too_few_pairs_and_options_without_a_null_are_refused_before_anything_is_trained(run):
    done = fedlens("compare", run / "low", run / "high", "--null", "18")
    assert done.code == 2
    assert "Expected --null of 19 pairs or more" in done.err
    done = fedlens("compare", run / "low", run / "high", "--device", "cpu")
    assert done.code == 2
    assert "Expected --device with --null" in done.err
