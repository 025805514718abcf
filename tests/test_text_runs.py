"""Text from recipe to report: one group with a baseline, two by attribute; interrupted, priced, compared, sampled."""

import dataclasses
import json
import shutil
import sqlite3
import tomllib

import pytest
import torch
import toys
from command_line import fedlens, interrupted, ran, run_folder
from toy_texts import KNOWN, PAIR, by_hand, learnt, price, written
from toys import TINY, assert_same

from fedlens.curators.simulated import SimulatedCurator
from fedlens.ledger import Ledger, guarantee
from fedlens.media import opening as inspection
from fedlens.media.images.samples import Model
from fedlens.media.text.medium import TextMedium
from fedlens.media.text.reading import TextReading
from fedlens.media.text.samples import TextModel, Texts
from fedlens.models import words
from fedlens.privacy import Neighbours, Unit, rounded
from fedlens.recipes.recipe import Recipe
from fedlens.recipes.toml import RecipeError
from fedlens.runs import planning
from fedlens.runs import reporting as run_reports
from fedlens.runs import run as runs
from fedlens.runs.run import Run

steady = toys.steady()


def finished(folder, *options, **parts):
    """A run of the toy recipe, through the command line."""
    done = ran(written(folder, **parts), "--simulate", 3, *options)
    assert done.code == 0, done.err
    return run_folder(folder)


def executed(folder, *overrides, seed=3, **parts):
    recipe = Recipe.open(written(folder, **parts) / "recipe.toml", overrides)
    run = Run.created(recipe, folder / "out", address=folder / "out" / "ledger.sqlite", seed=seed, device="cpu")
    return run, run.executed(lambda *facts: None)


def charges(folder):
    """How many releases the ledger holds, by model and stage."""
    with sqlite3.connect(folder / "out" / "ledger.sqlite") as book:
        rows = book.execute("select run, stage, count(*) from entries where kind = 'release' group by run, stage")
        return {(run.partition("/")[2], stage): count for run, stage, count in rows}


def opened(folder, *names):
    return [TextModel.open(folder / name / "model.safetensors") for name in names]


@pytest.fixture(scope="module")
def single(tmp_path_factory, steady):
    return finished(tmp_path_factory.mktemp("single"))


@pytest.fixture(scope="module")
def pair(tmp_path_factory, steady):
    return finished(tmp_path_factory.mktemp("pair"), selections=PAIR)


@pytest.fixture(scope="module")
def spoken(tmp_path_factory, steady):
    """A model of words: of whole sentences."""
    return finished(tmp_path_factory.mktemp("spoken"), text='model = "words"')


@pytest.fixture(scope="module")
def drawn(tmp_path_factory, steady):
    """A model of images."""
    folder = tmp_path_factory.mktemp("drawn")
    (folder / "recipe.toml").write_text(TINY.replace('"tiny"', '"toy"').replace("rounds = 4", "rounds = 1"))
    assert ran(folder, "--simulate", 0).code == 0
    return run_folder(folder) / "all"


# What a run leaves


def test_a_finished_folder_holds_everything_and_nothing_else(single):
    assert {str(path.relative_to(single)) for path in single.rglob("*") if path.is_file()} == {
        *("recipe.toml", "run.json", "plan.json", "statement.md", "data.json"),
        *("all/count.json", "all/metrics.jsonl", "all/model.safetensors"),
        *("samples/all.safetensors", "report.html", "report.json", "MANIFEST.json"),
    }


def test_the_recipe_of_a_run_is_whole(single):
    again = Recipe.open(single / "recipe.toml")
    assert again.digest == json.loads((single / "run.json").read_text())["recipe_sha256"]
    assert again.text.width == 10


STAGES = {"count": 1, "train": 2}


def test_everybody_is_counted_once_and_trained_on_in_every_round(single, pair):
    assert charges(single.parent.parent) == {("all", "count"): 1, ("all", "train"): 2}
    assert charges(pair.parent.parent) == {(name, stage): n for name in ("new", "old") for stage, n in STAGES.items()}


def test_samples_are_those_of_the_model_with_its_guarantee(single):
    (model,) = opened(single, "all")
    samples = Texts.open(single / "samples" / "all.safetensors")
    assert samples.sequences.shape == (200, 12)
    assert samples.vocabulary == KNOWN
    assert torch.equal(samples.sequences, model.sampled(200, seed=0).sequences)
    assert samples.guarantee == guarantee([model.spending], 1e-5)
    assert samples.guarantee.simulated


def test_beam_search_finds_nothing_less_likely_than_what_was_drawn(single, tmp_path):
    done = fedlens("sample", single / "all", "--count", 30, "--beams", 200, "--to", tmp_path / "found.safetensors")
    assert done.code == 0, done.err
    found, drawn = Texts.open(tmp_path / "found.safetensors"), opened(single, "all")[0].sampled(500, seed=1)
    assert found.guarantee == drawn.guarantee
    assert (found.log_probability.diff() <= 0).all()
    ended = drawn.log_probability[drawn.ended]
    assert found.log_probability[0] >= ended.max() - 1e-5
    assert (tmp_path / "found.txt").exists()


def test_a_list_that_the_tokenizer_never_writes_so_is_warned_about(tmp_path):
    upper, lower = tmp_path / "upper", tmp_path / "lower"
    for folder, known in ((upper, [word.upper() for word in KNOWN]), (lower, (*KNOWN, "e.g."))):
        folder.mkdir()
        written(folder, known=known)
    assert any("100% of the words in text.vocabulary" in warning for warning in warnings(upper))
    assert not any("text.vocabulary" in warning for warning in warnings(upper, 'text.tokenizer="whitespace"'))
    assert not any("text.vocabulary" in warning for warning in warnings(lower))


def warnings(folder, *overrides):
    return Recipe.open(folder / "recipe.toml", overrides).warnings


@pytest.mark.parametrize("option", [("--values", "bytes"), ("--channels-last",)])
def test_what_a_primary_model_expects_goes_with_one(single, option):
    done = fedlens("compare", single / "all", single / "all", *option)
    assert done.code == 2
    assert "Expected --model with --values" in done.err


def test_images_cannot_be_searched_for(drawn):
    done = fedlens("sample", drawn, "--beams", 10)
    assert done.code != 0
    assert "a language model to search with --beams" in done.err


def test_the_report_of_a_pair_has_the_words_of_both_and_where_the_vocabulary_is_from(pair):
    report = json.loads((pair / "report.json").read_text())
    assert [side["label"] for side in report["words"]] == ["new", "old"]
    assert [run["label"] for run in report["runs"]] == ["new", "old"]
    assert "known.txt" in report["provenance"]["vocabulary"]
    assert report["hypotheses"]
    assert report["sentences"] == []
    for side in report["words"]:
        for row in side["rows"]:
            assert row.keys() == {"word", "probability", "flags", "lift", "new"}
            assert row["probability"] >= 1e-4


def test_the_report_of_sentences_has_sentences(spoken):
    report = json.loads((spoken / "report.json").read_text())
    (side,) = report["sentences"]
    assert report["words"] == []
    shown = {piece["text"] for example in side["examples"] for piece in example}
    assert shown <= {*KNOWN, ""}
    assert "Unknown words by position" in [chart["title"] for chart in report["charts"]]


def test_the_guarantee_of_a_pair_covers_both_models(tmp_path):
    """Disjoint groups: the dearer of the two; and the plan is kept."""
    run, report = executed(tmp_path, selections=PAIR)
    models = opened(run.folder, "new", "old")
    assert report.guarantee == run.promised()
    assert report.guarantee == guarantee([model.spending for model in models], 1e-5)
    assert report.guarantee.epsilon == pytest.approx(8.0, abs=0.01)


OVERLAPPING = PAIR.replace("values = [0]", "values = [0, 1]")


def test_two_groups_that_may_share_users_cost_both(tmp_path):
    run, report = executed(tmp_path, selections=OVERLAPPING, more='attributes = ["version"]')
    models = opened(run.folder, "new", "old")
    assert report.guarantee.epsilon == pytest.approx(8.0, abs=0.01)
    assert report.guarantee.epsilon > max(guarantee([model.spending], 1e-5).epsilon for model in models) + 1


def test_a_group_of_too_few_gets_no_model_and_is_still_paid_for(tmp_path):
    done = ran(written(tmp_path, selections=PAIR), "--simulate", 3, "--set", "privacy.minimum_users=40")
    assert done.code == 0, done.err
    assert "fewer than 40" in done.out
    assert charges(tmp_path) == {("new", "count"): 1, ("old", "count"): 1}
    assert not list(run_folder(tmp_path).rglob("*.safetensors"))


def test_users_without_unknown_words_are_not_counted(tmp_path):
    """The head count is of who holds anything to learn from."""
    known = [{"user": f"u{user:02d}", "text": ["the court said"]} for user in range(59)]
    rest, more = [{"user": "v", "text": ["ember"]}], ("--set", "privacy.epsilon=100")
    done = ran(written(tmp_path, known + rest), "--simulate", 3, "--set", "privacy.count_noise=0.1", *more)
    assert done.code == 0, done.err
    counted = json.loads((run_folder(tmp_path) / "all" / "count.json").read_text())["noisy_units"]
    assert abs(counted - 1) < 1


def test_planted_users_are_told_apart_by_their_mark(tmp_path):
    bug = 'bug = { kind = "concatenated", fraction = 0.5, mark = "version" }'
    folder = finished(tmp_path, selections=PAIR, more=bug)
    assert {path.name for path in (folder / "samples").iterdir()} == {"new.safetensors", "old.safetensors"}


@pytest.mark.parametrize("text", ["", 'model = "words"'])
def test_a_model_that_diverged_still_ends_in_a_report(tmp_path, text):
    wild = "training.server.rate=1e38", "privacy.rounds=12"
    run, report = executed(tmp_path, *wild, selections=PAIR, text=text)
    assert report.findings == ()
    told = [warning for warning in report.warnings if "diverged" in warning]
    assert {warning.partition(":")[0] for warning in told} == {"new", "old"}
    assert not any(group["rows"] for group in report.to_dict()["words"])
    json.loads((run.folder / "report.json").read_text(), parse_constant=pytest.fail)


def test_a_model_of_weights_that_are_no_numbers_writes_nothing(single, tmp_path):
    (model,) = opened(single, "all")
    broken = dataclasses.replace(model, parameters=model.parameters | {"output.bias": torch.full((258,), torch.nan)})
    assert broken.sampled(5, seed=0).words == {("", True): 5}
    (tmp_path / "broken").mkdir()
    broken.save(tmp_path / "broken" / "model.safetensors")
    done = fedlens("report", tmp_path / "broken")
    assert done.code == 0, done.err
    assert "diverged" in done.out
    (side,) = json.loads((tmp_path / "broken" / "report.json").read_text())["words"]
    assert side["rows"] == []


# The same end, whatever happens on the way


def asked_for(stage, run=""):
    return lambda curator, question: curator._stage == stage and curator._account.run.endswith(run)


MOMENTS = {
    "reading": (TextReading, "prepared", lambda *given: True, True),
    "counting": (SimulatedCurator, "_bounded_sum", asked_for("count"), False),
    "warming": (TextMedium, "warmed", lambda *given: True, False),
    "training": (SimulatedCurator, "_bounded_sum", asked_for("train"), False),
    "training, answered": (SimulatedCurator, "_bounded_sum", asked_for("train"), True),
    "counting the second": (SimulatedCurator, "_bounded_sum", asked_for("count", "/old"), False),
    "training the second": (SimulatedCurator, "_bounded_sum", asked_for("train", "/old"), False),
    "saving a model": (TextModel, "save", lambda *given: True, True),
    "before closing": (Ledger, "close", lambda *given: True, False),
    "closing": (Ledger, "close", lambda *given: True, True),
    "closing the second": (Ledger, "close", lambda book, run, model: run.endswith("/old"), True),
    "before the secrets are deleted": (runs.safeguards, "forget_secrets", lambda *given: True, False),
    "closing, then the report fails": (run_reports, "report_of", lambda *given, **named: True, False),
    "sampling": (TextModel, "sampled", lambda *given: True, True),
    "comparing": (TextMedium, "contrast", lambda *groups, **options: True, False),
    "before the report is saved": (runs.Report, "save", lambda *given: True, False),
    "after the report": (runs.Report, "save", lambda *given: True, True),
}
TRAINED = list(MOMENTS)[list(MOMENTS).index("before closing") :]  # from here on, nobody's data are needed


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_run_interrupted_at_any_moment_ends_the_same_and_pays_once(tmp_path, monkeypatch, pair, moment):
    owner, name, when, after = MOMENTS[moment]
    interrupted(monkeypatch, owner, name, when, after)
    first = ran(written(tmp_path, selections=PAIR), "--simulate", 3)
    assert first.code == 130, first.err
    assert "--resume" in first.err
    if moment in TRAINED:
        (tmp_path / "d.jsonl").unlink()
    done = fedlens("run", "--resume", run_folder(tmp_path), "--json")
    assert done.code == 0, done.err
    assert charges(tmp_path) == charges(pair.parent.parent)
    assert all(told["closed"] for told in Ledger(tmp_path / "out" / "ledger.sqlite").runs())
    for mine, theirs in zip(opened(run_folder(tmp_path), "new", "old"), opened(pair, "new", "old"), strict=True):
        assert_same(mine.parameters, theirs.parameters)
    same = ("words", "numbers", "charts", "hypotheses", "findings", "warnings", "guarantee")
    whole = json.loads((pair / "report.json").read_text())
    assert {key: json.loads(done.out)[key] for key in same} == {key: whole[key] for key in same}


@pytest.mark.parametrize("change", ["data", "vocabulary"])
def test_a_run_whose_data_or_known_words_changed_does_not_go_on(tmp_path, monkeypatch, change):
    interrupted(monkeypatch, SimulatedCurator, "_bounded_sum", asked_for("train"))
    assert ran(written(tmp_path), "--simulate", 3).code == 130
    before = charges(tmp_path)
    name, old, new = {"data": ("d.jsonl", "ember", "timber"), "vocabulary": ("known.txt", "court", "ember")}[change]
    (tmp_path / name).write_text((tmp_path / name).read_text().replace(old, new))
    done = fedlens("run", "--resume", run_folder(tmp_path))
    assert done.code == 2
    assert "changed" in done.err
    assert charges(tmp_path) == before


# A baseline


def with_baseline(folder):
    return f'baseline = "{folder}"'


def test_one_group_is_compared_with_an_earlier_model_and_both_are_paid_for(tmp_path, single):
    run, report = executed(tmp_path, text=with_baseline(single / "all"), seed=4)
    (mine,), (theirs,) = opened(run.folder, "all"), opened(single, "all")
    assert [told["run"] for told in report.runs] == [f"{run.name}/all", f"{single.name}/all"]
    assert report.guarantee.unverified  # the ledger of this run does not know the other
    joint = guarantee([mine.spending, theirs.spending], 1e-5)
    assert dataclasses.replace(report.guarantee, unverified="") == joint
    assert report.guarantee.epsilon > run.promised().epsilon + 1
    assert report.hypotheses
    assert [group["label"] for group in report.to_dict()["words"]] == ["all", "all, before"]


def test_a_model_compared_with_itself_shows_no_finding(tmp_path, single):
    done = ran(written(tmp_path, text=with_baseline(single / "all")), "--simulate", 3, "--json")
    assert done.code == 0, done.err
    report = json.loads(done.out)
    assert report["findings"] == []
    (distance,) = [row["left"] for row in report["numbers"] if row["name"] == "distance of shapes"]
    assert distance == 0


@pytest.fixture
def baselines(tmp_path, single, spoken, drawn):
    """Folders that no model of this recipe could be compared with."""
    odd = tmp_path / "baselines"
    for name in ("nothing", "damaged", "narrow", "other words", "other tokenizer"):
        (odd / name).mkdir(parents=True)
    (odd / "damaged" / "model.safetensors").write_bytes(b"half")
    (model,) = opened(single, "all")
    dataclasses.replace(model, width=9).save(odd / "narrow" / "model.safetensors")
    dataclasses.replace(model, vocabulary=KNOWN[::-1]).save(odd / "other words" / "model.safetensors")
    dataclasses.replace(model, tokenizer="whitespace").save(odd / "other tokenizer" / "model.safetensors")
    missing = {"missing": odd / "missing", "images": drawn, "words": spoken / "all", "a run": single}
    return missing | {path.name: path for path in odd.iterdir()}


ODD = ("missing", "nothing", "damaged", "a run", "images", "words", "other words", "other tokenizer", "narrow")


@pytest.mark.parametrize("name", ODD)
def test_a_baseline_that_cannot_be_compared_is_refused_before_anything_is_set_aside(tmp_path, baselines, name):
    done = ran(written(tmp_path, text=with_baseline(baselines[name])))
    assert done.code == 2, done.err
    assert done.err.splitlines()[-1].startswith("Expected ")
    assert "text.baseline" in done.err or name == "damaged"
    assert not list((tmp_path / "out").glob("toy-*"))
    assert not (tmp_path / "out" / "ledger.sqlite").exists() or Ledger(tmp_path / "out" / "ledger.sqlite").runs() == []


def test_a_baseline_goes_with_one_group(tmp_path, single):
    with pytest.raises(RecipeError, match="baseline goes with one selection"):
        Recipe.open(written(tmp_path, selections=PAIR, text=with_baseline(single / "all")) / "recipe.toml")


def test_a_group_of_too_few_has_nothing_to_compare_with_its_baseline(tmp_path, single):
    written(tmp_path, text=with_baseline(single / "all"))
    done = ran(tmp_path, "--simulate", 3, "--set", "privacy.minimum_users=40")
    assert done.code == 0, done.err
    assert "fewer than 40" in done.out


# The other commands


def test_two_models_of_text_are_compared_for_free(tmp_path, pair):
    before = charges(pair.parent.parent)
    done = fedlens("compare", pair / "new", pair / "old", "--to", tmp_path / "report", "--json")
    assert done.code == 0, done.err
    report = json.loads(done.out)
    assert [side["label"] for side in report["words"]] == ["new", "old"]
    assert report["guarantee"]["epsilon"] == json.loads((pair / "report.json").read_text())["guarantee"]["epsilon"]
    assert (tmp_path / "report" / "report.html").exists()
    assert charges(pair.parent.parent) == before


def test_a_model_of_text_is_not_compared_with_one_of_images(tmp_path, pair, drawn):
    for sides in ([pair / "new", drawn], [drawn, pair / "new"]):
        done = fedlens("compare", *sides, "--to", tmp_path / "report")
        assert done.code == 2
        assert "Expected two models of one kind" in done.err
    assert not (tmp_path / "report").exists()


@pytest.mark.parametrize("name", ["words", "other words", "narrow"])
def test_models_that_speak_of_different_things_are_not_compared(tmp_path, single, baselines, name):
    Ledger(tmp_path / "b.db").close_file()  # which knows none of them, and contradicts nobody
    done = fedlens(
        "compare", single / "all", baselines[name], "--to", tmp_path / "report", "--ledger", tmp_path / "b.db"
    )
    assert done.code == 2
    assert "Expected texts of one kind" in done.err


def test_models_of_two_runs_are_called_by_their_runs(tmp_path, single):
    shutil.copytree(single / "all", tmp_path / "october" / "all")
    done = fedlens("compare", single / "all", tmp_path / "october" / "all", "--to", tmp_path / "report", "--json")
    told = json.loads(done.out)
    assert [run["label"] for run in told["runs"]] == [f"all, {single.name}", "all, october"]
    assert told["title"] == f"all, {single.name} vs all, october"


def test_models_of_two_tokenizers_are_not_compared(tmp_path, single, baselines):
    """Else their difference would be taken for a bug of the data."""
    Ledger(tmp_path / "b.db").close_file()  # which knows none of them, and contradicts nobody
    sides = single / "all", baselines["other tokenizer"]
    done = fedlens("compare", *sides, "--to", tmp_path / "report", "--ledger", tmp_path / "b.db")
    assert done.code == 2
    assert "Expected texts of one kind, tokenizer and vocabulary" in done.err
    assert not (tmp_path / "report").exists()


@pytest.mark.parametrize("text", ["", 'model = "words"', 'model = "ngrams"'])
def test_a_model_says_which_tokenizer_it_was_trained_with(tmp_path, text):
    one = ("privacy.rounds=1", "privacy.clip=1.0") if "ngrams" in text else ()
    run, _ = executed(tmp_path, "text.tokenizer='whitespace'", *one, text=text)
    assert inspection.opened(run.folder / "all" / "model.safetensors").tokenizer == "whitespace"
    assert Texts.open(run.folder / "samples" / "all.safetensors").tokenizer == "whitespace"


def test_there_is_no_primary_model_of_text(tmp_path, pair):
    done = fedlens("compare", pair / "new", pair / "old", "--model", pair / "new", "--to", tmp_path / "report")
    assert done.code == 2
    assert "no primary model of text" in done.err


def test_a_report_is_shown_again_and_one_of_a_single_model_made(single, pair):
    assert fedlens("report", pair).code == 0
    done = fedlens("report", single / "all", "--json")
    assert done.code == 0, done.err
    (side,) = json.loads(done.out)["words"]
    assert side["label"] == "all"
    for path in (single / "all").glob("report.*"):
        path.unlink()


@pytest.mark.parametrize("kind", ["spelling", "words"])
def test_samples_are_drawn_with_their_guarantee_and_listed_to_look_at(tmp_path, single, spoken, kind):
    model = (single if kind == "spelling" else spoken) / "all"
    done = fedlens("sample", model, "--count", 300, "--seed", 5, "--to", tmp_path / "drawn.safetensors", "--json")
    assert done.code == 0, done.err
    samples = Texts.open(tmp_path / "drawn.safetensors")
    assert samples.kind == kind
    assert len(samples.sequences) == 300
    assert json.loads(done.out)["guarantee"] == samples.guarantee.to_dict()
    shown = (tmp_path / "drawn.txt").read_text().splitlines()
    if kind == "words":
        assert {word for line in shown for word in line.split()} <= {*KNOWN, "<unknown>"}
    else:
        assert all(float(line.split("\t")[0]) >= 1e-4 for line in shown)


def test_samples_are_not_written_over_their_list(single, tmp_path):
    done = fedlens("sample", single / "all", "--to", tmp_path / "drawn.txt")
    assert done.code == 2
    assert not (tmp_path / "drawn.txt").exists()


def test_an_image_model_is_still_opened_as_one(drawn):
    assert isinstance(inspection.opened(drawn / "model.safetensors"), Model)


# Plan and init


def test_a_plan_reads_no_data(tmp_path):
    written(tmp_path)
    (tmp_path / "d.jsonl").unlink()
    done = fedlens("plan", tmp_path / "recipe.toml", "--json")
    assert done.code == 0, done.err
    assert json.loads(done.out)["guarantee"]["epsilon"] == pytest.approx(8.0, abs=0.01)


def test_a_plan_chooses_what_is_left_open(tmp_path):
    written(tmp_path)
    text = (tmp_path / "recipe.toml").read_text()
    (tmp_path / "recipe.toml").write_text(text.replace("rounds = 2\n", "").replace("clip = 0.5\n", ""))
    recipe = Recipe.open(tmp_path / "recipe.toml")
    assert recipe.guarantee(recipe.spendings()).epsilon == pytest.approx(8.0, abs=0.01)
    assert fedlens("plan", tmp_path / "recipe.toml").code == 0


@pytest.mark.parametrize("data", ["d.jsonl", "d.jsonl.gz", "people"])
@pytest.mark.parametrize("baseline", [False, True])
def test_init_writes_a_recipe_of_text_that_plan_accepts(tmp_path, single, monkeypatch, data, baseline):
    monkeypatch.chdir(tmp_path)
    words.Vocabulary(words=KNOWN, provenance="public list").save("my words.txt")
    options = ["--baseline", single / "all"] if baseline else []
    done = fedlens("init", "--task", "T3", "--data", data, "--vocab", "my words.txt", "--to", "t.toml", *options)
    assert done.code == 0, done.err
    values = tomllib.loads((tmp_path / "t.toml").read_text())
    assert values["data"]["source"] == ("population" if data == "people" else "jsonl")
    assert values["text"].get("baseline") == (str(single / "all") if baseline else None)
    done = fedlens("plan", "t.toml")
    assert done.code == 0, done.err


def uncommented(template):
    """The template with every setting that it suggests: lines such as `# width = 16`."""
    lines = template.splitlines()
    return "\n".join(line[2:] if line.startswith("# ") and " = " in line else line for line in lines)


def problems(text):
    try:
        Recipe.parsed(text)
    except RecipeError as error:
        return str(error)
    return ""


def test_every_setting_that_the_template_suggests_is_one(tmp_path, monkeypatch):
    """Alternatives exclude each other; but none may be unknown."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "known.txt").write_text("the\n")
    fedlens("init", "--task", "T3", "--data", "d.jsonl", "--vocab", "known.txt", "--to", "t.toml")
    text = (tmp_path / "t.toml").read_text().replace("# [", "[")
    assert "unknown" not in problems(uncommented(text))
    assert "unknown" in problems(uncommented(text).replace("width =", "breadth ="))


def test_init_takes_words_with_text_only(tmp_path):
    done = fedlens("init", "--task", "T1", "--vocab", "known.txt", "--to", tmp_path / "t.toml")
    assert done.code == 2
    assert not (tmp_path / "t.toml").exists()


# A vocabulary that was learnt before


LEARNT = price()


def with_price(folder, paid=LEARNT, **parts):
    written(folder, **parts)
    learnt(folder / "known.txt", paid)
    return folder


def carried_out(folder, *overrides, seed=None):
    recipe = Recipe.open(folder / "recipe.toml", overrides)
    run = Run.created(recipe, folder / "out", address=folder / "out" / "ledger.sqlite", seed=seed, device="cpu")
    return run, run.executed(lambda *facts: None)


@pytest.fixture(scope="module")
def costly(tmp_path_factory, steady):
    return carried_out(with_price(tmp_path_factory.mktemp("costly")))


def test_everything_that_is_stated_covers_the_vocabulary(costly):
    run, report = costly
    joint = by_hand([*LEARNT.plans, *run.recipe.plans.values()], 1e-5)
    assert joint > by_hand(run.recipe.plans.values(), 1e-5) + 1
    (model,) = opened(run.folder, "all")
    samples = Texts.open(run.folder / "samples" / "all.safetensors")
    kept = [json.loads((run.folder / f"{name}.json").read_text())["guarantee"] for name in ("plan", "report")]
    last = json.loads((run.folder / "all" / "metrics.jsonl").read_text().splitlines()[-1])
    plan = fedlens("plan", run.folder / "recipe.toml", "--json")
    planned = json.loads(plan.out)
    stated = {
        "promise": run.promised().epsilon,
        "report": report.guarantee.epsilon,
        "model": guarantee([model.spending], model.delta).epsilon,
        "samples": samples.guarantee.epsilon,
        "plan.json": kept[0]["epsilon"],
        "report.json": kept[1]["epsilon"],
        "fedlens plan": planned["guarantee"]["epsilon"],
        "fedlens plan, a model": planned["epsilon_per_model"],
        "fedlens plan, read exactly": planned["readings"]["exact Gaussian"],
        "fedlens plan --sweep": planning.swept(run.recipe, f"rounds={run.recipe.privacy.rounds}")[0]["epsilon"],
    }
    assert stated == {name: pytest.approx(joint, rel=1e-6) for name in stated}
    assert joint <= last["epsilon_so_far"] <= joint + 1e-4
    told = f"epsilon {rounded(joint)} at delta 1e-05"
    (row,) = report.runs
    assert all(told in text for text in ((run.folder / "statement.md").read_text(), report.text(), row["guarantee"]))


def test_the_statement_says_in_words_what_the_guarantee_is_made_of(costly):
    run, report = costly
    own, words = (rounded(by_hand(plans, 1e-5)) for plans in (run.recipe.plans.values(), LEARNT.plans))
    parts = f"jointly: {own} for the model, {words} for learning the vocabulary before"
    assert own == "8.00"
    for told in ((run.folder / "statement.md").read_text(), report.guarantee.composition):
        assert parts in told
    assert parts in fedlens("plan", run.folder / "recipe.toml").out


def test_the_ledger_is_asked_for_the_models_only(costly):
    """The vocabulary is booked there already, by the run that learnt it."""
    run, _ = costly
    (booked,) = Ledger(run.address).spendings("crowd", reserved=True)
    assert booked.plans == tuple(run.recipe.plans.values())
    assert guarantee([booked], 1e-5).epsilon == pytest.approx(8.0, abs=0.01)


def test_a_pair_pays_for_its_vocabulary_once(tmp_path):
    run, report = carried_out(with_price(tmp_path, selections=PAIR))
    joint = by_hand([*LEARNT.plans, *run.recipe.plans.values()], 1e-5)
    assert report.guarantee.epsilon == pytest.approx(joint, rel=1e-6)
    compared = fedlens("compare", run.folder / "new", run.folder / "old", "--to", tmp_path / "report", "--json")
    assert compared.code == 0, compared.err
    assert json.loads(compared.out)["guarantee"]["epsilon"] == pytest.approx(joint, rel=1e-6)


def test_a_baseline_with_the_same_vocabulary_pays_for_it_once(tmp_path, costly):
    before, _ = costly
    run, report = carried_out(with_price(tmp_path, text=with_baseline(before.folder / "all")))
    joint = by_hand([*LEARNT.plans, *run.recipe.plans.values(), *before.recipe.plans.values()], 1e-5)
    assert report.guarantee.epsilon == pytest.approx(joint, rel=1e-6)
    compared = fedlens("compare", run.folder / "all", before.folder / "all", "--to", tmp_path / "report", "--json")
    assert json.loads(compared.out)["guarantee"]["epsilon"] == pytest.approx(joint, rel=1e-6)


def test_a_report_and_samples_of_one_model_cover_the_vocabulary(tmp_path, costly):
    run, _ = costly
    (tmp_path / "all").mkdir()
    model = tmp_path / "all" / "model.safetensors"
    model.write_bytes((run.folder / "all" / "model.safetensors").read_bytes())
    for command in ("report", "sample"):
        told = json.loads(fedlens(command, model.parent, "--json").out)["guarantee"]
        assert told.pop("unverified").startswith("UNVERIFIED")  # it lies by itself, and no ledger confirms it
        assert told == {key: value for key, value in run.promised().to_dict().items() if key != "unverified"}


@pytest.mark.parametrize("learnt_from", ["simulation", "people"])
def test_a_vocabulary_of_seeded_noise_makes_every_guarantee_a_simulated_one(tmp_path, learnt_from):
    simulated = learnt_from == "simulation"
    run, report = carried_out(with_price(tmp_path, price(simulated=simulated)))
    (model,) = opened(run.folder, "all")
    samples = Texts.open(run.folder / "samples" / "all.safetensors")
    stated = (run.promised(), report.guarantee, guarantee([model.spending], 1e-5), samples.guarantee)
    assert [told.simulated for told in stated] == [simulated] * 4
    assert ("SIMULATED" in (run.folder / "statement.md").read_text()) == simulated
    assert len(Ledger(run.address).spendings("crowd")) == 1  # its own noise is real, and so is its price


OTHER_KINDS = {
    "neighbours": ({"neighbours": "replace-one"}, "per user (replace-one), and the models are per user (add/remove)"),
    "unit": ({"unit": "silo"}, "per silo (add/remove), and the models are per user (add/remove)"),
}


@pytest.mark.parametrize("kind", OTHER_KINDS)
def test_a_vocabulary_of_another_kind_is_refused_before_anything_is_set_aside(tmp_path, kind):
    change, told = OTHER_KINDS[kind]
    enums = {"neighbours": Neighbours, "unit": Unit}
    done = ran(with_price(tmp_path, price(**{name: enums[name](value) for name, value in change.items()})))
    assert done.code == 2
    assert told in done.err
    assert not (tmp_path / "out").exists()
    agreed = [f'privacy.{name}="{value}"' for name, value in change.items()]
    assert Recipe.open(tmp_path / "recipe.toml", agreed).released  # both of this kind: fine


DAMAGE = {
    "no plans": lambda told: told | {"plans": []},
    "no account": lambda told: {"plans": told["plans"]},
    "not even a table": lambda told: "free",
    "nothing": lambda told: None,
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_price_that_cannot_be_read_is_not_taken_for_none(tmp_path, damage):
    beside = with_price(tmp_path) / "known.txt.json"
    about = json.loads(beside.read_text())
    beside.write_text(json.dumps(about | {"spending": DAMAGE[damage](about["spending"])}))
    with pytest.raises(RecipeError, match="Expected a whole price of the vocabulary"):
        Recipe.open(tmp_path / "recipe.toml")


@pytest.mark.parametrize("edit", ["cheaper", "removed"])
def test_the_price_is_part_of_what_was_approved(tmp_path, edit):
    recipe = Recipe.open(with_price(tmp_path) / "recipe.toml")
    before = recipe.digest
    run = Run.created(recipe, tmp_path / "out", address=tmp_path / "out" / "ledger.sqlite", seed=None, device="cpu")
    if edit == "removed":
        (tmp_path / "known.txt.json").unlink()
    else:
        learnt(tmp_path / "known.txt", price(noise_multiplier=300.0))
    assert Recipe.open(tmp_path / "recipe.toml").digest != before
    with pytest.raises(ValueError, match="public file it names, has changed"):
        Run.opened(run.folder)


def test_a_public_list_costs_nothing(tmp_path):
    recipe = Recipe.open(written(tmp_path) / "recipe.toml")
    assert recipe.released == ()
    assert recipe.guarantee(recipe.spendings()) == guarantee(recipe.spendings(), 1e-5)
    words.Vocabulary(words=KNOWN, provenance="public list").save(tmp_path / "known.txt")
    assert Recipe.open(tmp_path / "recipe.toml").released == ()


# What must not pass for public


@pytest.mark.parametrize("setting", ["text.public", "text.vocabulary"])
def test_private_text_is_not_taken_for_public(tmp_path, setting):
    written(tmp_path)
    with pytest.raises(RecipeError, match="private data themselves"):
        Recipe.open(tmp_path / "recipe.toml", [f"{setting}={tmp_path / 'd.jsonl'}"])
    (tmp_path / "link.jsonl").symlink_to(tmp_path / "d.jsonl")
    with pytest.raises(RecipeError, match="private data themselves"):
        Recipe.open(tmp_path / "recipe.toml", [f"{setting}={tmp_path / 'link.jsonl'}"])


@pytest.mark.parametrize("word", ["ember", "nobody-says-this"])
def test_a_vocabulary_swapped_before_a_resume_is_refused_whatever_the_private_words(tmp_path, word):
    """Were it refused only where rows change, one could ask which words the private text holds, for nothing."""
    recipe = Recipe.open(written(tmp_path) / "recipe.toml")
    run = Run.created(recipe, tmp_path / "out", address=tmp_path / "out" / "ledger.sqlite", seed=None, device="cpu")
    with (tmp_path / "known.txt").open("a") as known:
        known.write(f"{word}\n")
    with pytest.raises(ValueError, match="public file it names, has changed"):
        Run.opened(run.folder)


@pytest.mark.parametrize("folder", [False, True], ids=["file", "folder"])
def test_public_text_is_part_of_what_was_approved(tmp_path, folder):
    written(tmp_path)
    public = tmp_path / "public" / "a.jsonl" if folder else tmp_path / "public.txt"
    public.parent.mkdir(exist_ok=True)
    named = public.parent if folder else public
    digests = []
    for word in ("the", "ember"):
        public.write_text(json.dumps({"user": "donor", "text": [word]}) + "\n" if folder else f"{word}\n")
        values = tomllib.loads((tmp_path / "recipe.toml").read_text())
        del values["text"]["vocabulary"]
        digests.append(Recipe.validated(values, [f"text.public={named}"]).digest)
    assert digests[0] != digests[1]


def test_a_joint_guarantee_does_not_believe_that_two_files_hold_two_crowds(tmp_path):
    account = Recipe.open(written(tmp_path) / "recipe.toml").spendings()[0]
    renamed = dataclasses.replace(account, account=dataclasses.replace(account.account, run="june", population="june"))
    same = dataclasses.replace(account, account=dataclasses.replace(account.account, run="june", partition="june"))
    assert guarantee([account, renamed], 1e-5).epsilon == guarantee([account, same], 1e-5).epsilon
    assert guarantee([account, renamed], 1e-5).epsilon > 1.2 * guarantee([account], 1e-5).epsilon
