"""Headers that were forged: held against the ledger, every epsilon is confirmed, refused or printed as unverified."""

import dataclasses
import gc
import json
import shutil

import pytest
import toy_texts
import toys
from command_line import answer, fedlens, written
from toys import raw, rebuilt, rows, unguarded

from fedlens.core import tensorfiles
from fedlens.ledger import Ledger
from fedlens.media import opening
from fedlens.privacy.guarantee import UNVERIFIED

PAIR = toys.SHORT_PAIR
KINDS = {"spelling": (), "words": (), "ngrams": ("privacy.rounds=1", "privacy.clip=1.0")}


steady = toys.steady(chunk=50)


@pytest.fixture(scope="module")
def honest(tmp_path_factory):
    """A finished run of two models beside its ledger."""
    folder = tmp_path_factory.mktemp("honest")
    assert fedlens("run", written(folder, PAIR), "--out", folder / "runs").code == 0
    gc.collect()  # the command's ledger is closed, so that its journal does not vanish while it is copied
    assert not list((folder / "runs").glob("ledger.sqlite-*"))
    return folder / "runs"


@pytest.fixture
def run(honest, tmp_path):
    """A copy of it, to be spoilt."""
    shutil.copytree(honest, tmp_path / "runs")
    (found,) = (tmp_path / "runs").glob("tiny-*")
    return found


def forged(path, **changes):
    """A header that promises more: a hundred times the noise."""
    model = opening.opened(path)
    plans = tuple(dataclasses.replace(plan, noise_multiplier=900.0) for plan in model.spending.plans)
    spending = dataclasses.replace(model.spending, plans=plans)
    dataclasses.replace(model, **{"spending": spending} | changes).save(path)


def commands(run, to):
    return {
        "compare": ["compare", run / "low", run / "high", "--to", to / "page"],
        "report": ["report", run / "low"],
        "sample": ["sample", run / "low", "--count", 4, "--to", to / "some.safetensors"],
    }


@pytest.mark.parametrize("command", ["compare", "report", "sample"])
def test_a_forged_header_is_refused_by_the_ledger_beside_it(run, tmp_path, command):
    forged(run / "low" / "model.safetensors")
    done = fedlens(*commands(run, tmp_path)[command])
    assert (done.code, done.out) == (2, "")
    assert "the header of the model says otherwise" in done.err
    assert not (tmp_path / "page").exists()


@pytest.mark.parametrize("command", ["compare", "report", "sample"])
def test_without_a_ledger_it_is_unverified_wherever_it_is_told(run, tmp_path, command, monkeypatch):
    monkeypatch.chdir(tmp_path)
    forged(run / "low" / "model.safetensors")
    for path in run.parent.glob("ledger.sqlite*"):
        path.unlink()
    told = answer(*commands(run, tmp_path)[command])
    assert told["guarantee"]["unverified"] == UNVERIFIED
    if command != "sample":
        page = (run / "low" if command == "report" else tmp_path / "page") / "report.html"
        assert UNVERIFIED in page.read_text()
        kept = json.loads(page.with_name("report.json").read_text())
        assert kept["guarantee"]["unverified"] == UNVERIFIED
        assert all(UNVERIFIED in side["guarantee"] for side in kept["runs"])
        for path in page.parent.glob("report.*"):
            path.unlink()
    assert UNVERIFIED in fedlens(*commands(run, tmp_path)[command]).out


@pytest.mark.parametrize("command", ["compare", "report", "sample"])
def test_a_ledger_that_does_not_know_the_run_confirms_nothing(run, tmp_path, command):
    Ledger(tmp_path / "other.sqlite")
    told = answer(*commands(run, tmp_path)[command], "--ledger", tmp_path / "other.sqlite")
    assert told["guarantee"]["unverified"] == UNVERIFIED


@pytest.mark.parametrize("command", ["compare", "report", "sample"])
def test_what_the_ledger_confirms_is_told_without_a_doubt(run, tmp_path, command):
    told = answer(*commands(run, tmp_path)[command])
    assert told["guarantee"]["unverified"] == ""
    assert "confirmed by the ledger at" in (told["ledger"] if command == "sample" else told["provenance"]["ledger"])
    assert UNVERIFIED not in fedlens(*commands(run, tmp_path)[command]).out


def test_whatever_was_changed_in_a_file_the_hash_in_the_ledger_tells(run, tmp_path):
    """The delta, say, which no plan names."""
    path = run / "low" / "model.safetensors"
    forged(path, delta=0.5, spending=opening.opened(path).spending)
    done = fedlens(*commands(run, tmp_path)["sample"])
    assert done.code == 2
    assert "of the ledger names; it was changed" in done.err


@pytest.mark.parametrize(
    "change",
    [{"population": "others"}, {"run": "tiny-000000/low"}, {"partition": "mine"}, {"part": "all"}, {"simulated": True}],
)
def test_an_account_that_is_not_the_booked_one_confirms_nothing(run, tmp_path, change):
    path = run / "low" / "model.safetensors"
    model = opening.opened(path)
    account = dataclasses.replace(model.spending.account, **change)
    forged(path, spending=dataclasses.replace(model.spending, account=account))
    done = fedlens(*commands(run, tmp_path)["sample"])
    assert done.code == 2 or UNVERIFIED in done.out


def test_a_forged_model_that_was_booked_as_forged_is_refused_by_the_plans(run, tmp_path):
    """Who may write to the ledger may close a run with any hash; what was reserved says what it cost."""
    from fedlens.core import files

    path, book = run / "low" / "model.safetensors", run.parent / "ledger.sqlite"
    forged(path)
    unguarded(book)
    found = [
        dataclasses.replace(entry, body=json.dumps(entry.facts | {"model": files.sha256(path)}))
        if entry.kind == "close"
        else entry
        for entry in rows(book)
    ]
    rebuilt(book, found)
    done = fedlens(*commands(run, tmp_path)["sample"])
    assert done.code == 2
    assert "plans that the ledger booked" in done.err


def test_a_run_that_was_not_finished_is_unverified(run, tmp_path):
    book = run.parent / "ledger.sqlite"
    unguarded(book)
    rebuilt(book, [entry for entry in rows(book) if entry.kind != "close"])
    assert answer(*commands(run, tmp_path)["sample"])["guarantee"]["unverified"] == UNVERIFIED


# Reports that were kept


def test_a_report_is_held_against_the_ledger_too(run):
    assert answer("report", run)["guarantee"]["unverified"] == ""
    kept = json.loads((run / "report.json").read_text())
    epsilon = kept["guarantee"]["epsilon"]
    (run / "report.json").write_text(json.dumps(kept | {"guarantee": kept["guarantee"] | {"epsilon": epsilon / 2}}))
    done = fedlens("report", run)
    assert (done.code, done.out) == (2, "")
    assert "no more than the ledger does" in done.err


def test_a_report_without_models_is_unverified(run, tmp_path):
    assert fedlens(*commands(run, tmp_path)["compare"]).code == 0
    assert answer("report", tmp_path / "page", "--ledger", run.parent / "ledger.sqlite")["guarantee"]["unverified"]
    assert UNVERIFIED in fedlens("report", tmp_path / "page").out


@pytest.mark.parametrize("damage", [{}, {"guarantee": 3}, {"guarantee": {"epsilon": 1}}])
def test_a_damaged_report_is_a_clear_error(run, damage):
    kept = json.loads((run / "report.json").read_text())
    del kept["guarantee"]
    (run / "report.json").write_text(json.dumps(kept | damage))
    done = fedlens("report", run)
    assert (done.code, done.out) == (2, "")
    assert "it is damaged" in done.err


# Models of text, and the words they were learnt with


@pytest.fixture(params=list(KINDS))
def spoken(request, tmp_path):
    """A finished run of a model of text."""
    path = toy_texts.written(tmp_path, text=f'model = "{request.param}"') / "recipe.toml"
    sets = [option for change in KINDS[request.param] for option in ("--set", change)]
    assert fedlens("run", path, *sets, "--out", tmp_path / "out").code == 0
    (found,) = (tmp_path / "out").glob("*/all")
    return found


def test_a_forged_header_of_a_model_of_text_is_refused(spoken, tmp_path):
    assert answer("sample", spoken, "--count", 4, "--to", tmp_path / "a.safetensors")["guarantee"]["unverified"] == ""
    tree, about = tensorfiles.read(spoken / "model.safetensors")
    about["spending"]["plans"][-1]["noise_multiplier"] = 900.0
    tensorfiles.write(spoken / "model.safetensors", tree, about)
    done = fedlens("sample", spoken, "--count", 4, "--to", tmp_path / "b.safetensors")
    assert (done.code, done.out) == (2, "")


def test_verify_reads_the_heads_of_models_of_text(spoken):
    """Once wrong: they could not be opened, and a ledger that was made anew passed."""
    book = spoken.parent.parent / "ledger.sqlite"
    assert answer("ledger", "verify", "--ledger", book)["models"] == 1
    unguarded(book)
    found = rows(book)
    rebuilt(book, [dataclasses.replace(entry, who="somebody else") for entry in found])
    done = fedlens("ledger", "verify", "--ledger", book)
    assert done.code == 1
    assert "is not the one that was written down elsewhere" in done.out
    raw(book, "delete from entries")
    rebuilt(book, found[:1])
    done = fedlens("ledger", "verify", "--ledger", book)
    assert done.code == 1
    assert "written down elsewhere, is missing" in done.out


@pytest.mark.parametrize("change", [{"unit": "silo"}, {"neighbours": "replace-one"}, {"simulated": True}])
def test_a_report_that_promises_something_else_is_refused(run, change):
    """Only epsilon was compared: what it protects, and whether it protects at all, was the file's word."""
    kept = json.loads((run / "report.json").read_text())
    (run / "report.json").write_text(json.dumps(kept | {"guarantee": kept["guarantee"] | change}))
    done = fedlens("report", run, "--ledger", run.parent / "ledger.sqlite")
    assert (done.code, "it was edited" in done.err) == (2, True)
