"""Run folders, models, samples and a ledger of the version before: they open, compare and draw as they did."""

import json
import pathlib
import zipfile

import pytest
from command_line import answer, fedlens

from fedlens.ledger import Ledger
from fedlens.media import opening

KEPT = pathlib.Path(__file__).with_name("runs_version_2.zip")  # written by that version, on digits and made-up text
FINISHED = {"images": ("tiny-bc28c0", "low", "high"), "text": ("toy-e1e931", "new", "old")}


@pytest.fixture(scope="module")
def old(tmp_path_factory):
    folder = tmp_path_factory.mktemp("old") / "runs"
    with zipfile.ZipFile(KEPT) as kept:
        kept.extractall(folder)
    for path in [*folder.glob("*/run.json"), *folder.glob("*/recipe.toml")]:
        path.write_text(path.read_text().replace("@FOLDER@", str(folder.parent)))
    return folder


@pytest.mark.parametrize("medium", FINISHED)
def test_old_models_are_compared_at_the_price_that_was_promised(old, tmp_path, medium):
    run, left, right = FINISHED[medium]
    promised = json.loads((old / run / "report.json").read_text())["guarantee"]["epsilon"]
    compared = answer("compare", old / run / left, old / run / right, "--to", tmp_path / "compared")
    assert compared["guarantee"]["epsilon"] == pytest.approx(promised, rel=1e-6)
    assert compared["guarantee"].get("unverified", "") == ""  # its ledger lies beside and confirms it
    assert opening.opened(old / run / left / "model.safetensors").medium == medium


@pytest.mark.parametrize("medium", FINISHED)
def test_old_reports_are_shown_and_old_models_draw_what_they_drew(old, tmp_path, medium):
    run, left, _ = FINISHED[medium]
    assert answer("report", old / run)["runs"][0]["label"] == left
    model = opening.opened(old / run / left / "model.safetensors")
    before = opening.medium(model.medium).opened_samples(old / run / "samples" / f"{left}.safetensors")
    again = model.sampled(len(before), 0)
    again.save(tmp_path / "again.safetensors")
    fields = ("images",) if medium == "images" else ("sequences",)
    for field in fields:
        assert getattr(again, field).shape == getattr(before, field).shape
        assert (getattr(again, field) == getattr(before, field)).double().mean() > 0.99  # another processor may round


def test_an_old_model_of_counts_opens(old):
    model = opening.opened(old / "toy-ngrams-1d9c55" / "new" / "model.safetensors")
    assert (model.medium, model.rounds) == ("text", 1)
    assert len(model.sampled(20, 0)) == 20


def test_an_old_ledger_is_whole_and_knows_its_models(old):
    book = Ledger(old / "ledger.sqlite")
    assert book.verify() == []
    assert {run["run"].split("/")[0] for run in book.runs()} >= {"tiny-bc28c0", "toy-e1e931", "tiny-28d4fe"}
    assert answer("ledger", "verify", "--ledger", old / "ledger.sqlite", "--runs", old)["problems"] == []


def test_an_unfinished_run_is_refused_with_the_way_to_go_on(old):
    done = fedlens("run", "--resume", old / "tiny-28d4fe")
    assert done.code == 2
    assert "fedlens ledger close tiny-28d4fe" in done.err
    assert "run its recipe.toml anew" in done.err


def test_the_names_of_an_old_recipe_are_understood(old):
    """Where it spoke of users only."""
    plan = answer("plan", old / "tiny-bc28c0" / "recipe.toml")
    assert plan["guarantee"]["epsilon"] == pytest.approx(8.0, rel=1e-3)
