"""The one-shot baseline from recipe to report: one paid release, the same report, resumed for free, never mixed up."""

import json
import sqlite3

import pytest
import torch
import toy_texts
import toys
from command_line import answer, fedlens
from toy_texts import KNOWN, PAIR, UNKNOWN
from toys import quiet

from fedlens.algorithms import Ngrams
from fedlens.core import tensorfiles
from fedlens.curators.protocol import PrivacySpentError
from fedlens.ledger import Ledger, guarantee
from fedlens.media.opening import opened
from fedlens.media.text.samples import NgramModel, Texts
from fedlens.models.markov import SYMBOLS
from fedlens.models.words import unspelled
from fedlens.recipes.recipe import Recipe
from fedlens.recipes.toml import RecipeError
from fedlens.runs import reporting as run_reports
from fedlens.runs.run import Run

NETWORK, OPEN = 'model = "spelling"', 'model = "ngrams"'
CROWD = [line | {"user": f"patient-4711-{n}"} for n, line in enumerate(toy_texts.lines() * 10)]


steady = toys.steady()


def written(folder, found=None, *, text=OPEN, rounds="", population=60, **parts):
    """A recipe of n-grams that leaves rounds and clip open, unless told otherwise."""
    toy_texts.written(folder, found, text=text, **parts)
    recipe = (folder / "recipe.toml").read_text()
    recipe = recipe.replace("rounds = 2\nusers = 20\npopulation = 60\nclip = 0.5\n", f"{rounds}\nusers = 20\nUSERS\n")
    (folder / "recipe.toml").write_text(recipe.replace("USERS", f"population = {population}"))
    return folder / "recipe.toml"


def created(folder, *overrides, seed=3, **parts):
    recipe = Recipe.open(written(folder, **parts), overrides)
    return Run.created(recipe, folder / "out", address=folder / "ledger.sqlite", seed=seed, device="cpu")


def charges(run):
    with sqlite3.connect(run.address) as book:
        rows = book.execute("select run, stage, count(*) from entries where kind = 'release' group by run, stage")
        return {(name.partition("/")[2], stage): count for name, stage, count in rows}


def table(run, selection="all"):
    return NgramModel.open(run.folder / selection / "model.safetensors").model.table


@pytest.fixture(scope="module")
def run(tmp_path_factory, steady):
    """An uninterrupted run on many users, who all have a few unknown words."""
    run = created(tmp_path_factory.mktemp("ngrams"), "privacy.users=240", found=CROWD, population=400)
    run.executed(quiet)
    return run


# The recipe


def test_a_recipe_that_leaves_rounds_and_clip_open_asks_for_one_release_of_norm_one(tmp_path):
    recipe = Recipe.open(written(tmp_path))
    count, train = recipe.plans["count"], recipe.plans["train"]
    assert (recipe.privacy.rounds, recipe.privacy.clip) == (1, 1.0)
    assert (train.releases, train.bound.norm, train.expected_contributors) == (1, 1.0, 20)
    assert guarantee(recipe.spendings(), 1e-5).epsilon == pytest.approx(8.0, rel=1e-3)
    assert recipe.built() == Ngrams(noise=train.stddev / 20, order=recipe.text.order)
    assert count.releases == 1


@pytest.mark.parametrize("order", [2, 3])
def test_the_noise_of_the_whole_table_is_told(tmp_path, order):
    recipe = Recipe.open(written(tmp_path), [f"text.order={order}"])
    assert recipe.medium.weights(recipe) == SYMBOLS**order == recipe.built().start()["counts"].numel()
    assert recipe.noise_to_signal == pytest.approx(recipe.plans["train"].stddev * SYMBOLS ** (order / 2) / 20)


@pytest.mark.parametrize(
    "wrong", ["privacy.rounds=2", "privacy.clip=0.5", "privacy.adaptive_clip.start=1", "privacy.correlated.bands=1"]
)
def test_more_rounds_or_another_bound_are_refused(tmp_path, wrong):
    with pytest.raises(RecipeError, match=r"ngrams|clip"):
        Recipe.open(written(tmp_path), [wrong])
    Recipe.open(written(tmp_path), ["privacy.rounds=1", "privacy.clip=1.0"])


def test_the_forecast_of_a_release(tmp_path):
    told = answer("plan", written(tmp_path))
    assert told["guarantee"]["epsilon"] == pytest.approx(8.0, rel=1e-3)


# The run


def test_one_count_and_one_release_are_paid(run):
    assert charges(run) == {("all", "count"): 1, ("all", "train"): 1}
    report = json.loads((run.folder / "report.json").read_text())
    promised = json.loads((run.folder / "plan.json").read_text())["guarantee"]
    assert report["guarantee"] == promised
    assert report["provenance"]["vocabulary"] == "the list known.txt"
    assert (run.folder / "MANIFEST.json").exists()


def test_the_model_has_learnt_the_words_that_the_vocabulary_lacks(run):
    model = opened(run.folder / "all" / "model.safetensors")
    assert set(UNKNOWN) & {word for word, _ in spellings(model.sampled(500, seed=0))}
    probability = model.model.log_probability([*UNKNOWN, "xylophone"]).exp().tolist()
    assert min(probability[:-1]) > 100 * probability[-1]


def test_samples_are_spelled_words_with_their_joint_probability_and_guarantee(run):
    model = opened(run.folder / "all" / "model.safetensors")
    texts = Texts.open(run.folder / "samples" / "all.safetensors")
    assert isinstance(model, NgramModel)
    assert (texts.kind, texts.vocabulary, texts.sequences.shape) == ("spelling", KNOWN, (200, 12))
    assert torch.equal(texts.sequences, model.sampled(200, run.recipe.seed).sequences)
    ended = [
        (word, logarithm) for (word, end), logarithm in zip(spellings(texts), texts.log_probability, strict=True) if end
    ]
    words, logarithms = zip(*ended, strict=True)
    assert torch.allclose(model.model.log_probability(words).float(), torch.stack(logarithms))
    assert texts.guarantee == model.sampled(5, 0).guarantee
    assert texts.guarantee.epsilon == pytest.approx(8.0, rel=1e-3)
    assert "SIMULATED" in texts.guarantee.headline


def spellings(texts):
    return [(unspelled(row), end) for row, end in zip(texts.rows, texts.ended.tolist(), strict=True)]


def test_the_table_is_that_of_the_one_release(run):
    about = tensorfiles.read(run.folder / "all" / "model.safetensors")[1]
    assert about["kind"] == "ngrams"
    assert about["guarantee"]["epsilon"] == pytest.approx(8.0, rel=1e-3)
    assert about["rounds"] == 1
    assert about["recipe_sha256"] == run.recipe.digest
    assert [plan["releases"] for plan in about["spending"]["plans"]] == [1, 1]
    assert Ledger(run.address).verify() == []


def test_damaged_models_are_refused(run, tmp_path):
    tree, about = tensorfiles.read(run.folder / "all" / "model.safetensors")
    path = tmp_path / "model.safetensors"
    for wrong in ({}, {"table": tree["table"][0, 0]}, {"table": -tree["table"]}, {"table": tree["table"] * torch.nan}):
        tensorfiles.write(path, wrong, about)
        with pytest.raises(ValueError, match="Expected a table of probabilities"):
            opened(path)
    tensorfiles.write(path, tree, {name: value for name, value in about.items() if name != "spending"})
    with pytest.raises(ValueError, match="its header lacks spending"):
        opened(path)
    tensorfiles.write(path, tree, about | {"spending": {}})
    with pytest.raises(ValueError, match="it is damaged"):
        opened(path)


def test_two_groups_are_compared_at_their_joint_price(tmp_path):
    run = created(tmp_path, selections=PAIR)
    report = run.executed(quiet)
    assert charges(run) == {(side, stage): 1 for side in ("new", "old") for stage in ("count", "train")}
    assert [told["label"] for told in report.runs] == ["new", "old"]
    assert report.hypotheses
    assert report.guarantee.epsilon == pytest.approx(8.0, rel=1e-3)


def test_no_user_and_no_rare_word_is_told(tmp_path, capfd):
    secret = "zyxwvut"
    found = [*CROWD, {"user": "patient-4711-x", "version": 0, "text": [secret]}]
    run = created(tmp_path, "privacy.users=240", "text.samples=5000", seed=None, found=found, population=400)
    said = run.executed(quiet).text() + "".join(capfd.readouterr())
    said += "".join(path.read_text() for path in run.folder.rglob("*") if path.suffix in (".json", ".html", ".jsonl"))
    assert secret not in said
    assert "patient" not in said


# Interrupted


def killed_after_its_release(folder, monkeypatch):
    """Paid for and not written down, with noise that nobody knows."""
    later = created(folder, seed=None)

    def killed(answer):
        raise SystemExit

    with monkeypatch.context() as patched:
        patched.setattr(Ngrams, "round", lambda self, state: (self.message(), killed))
        with pytest.raises(SystemExit):
            later.executed(quiet)
    return later


def test_an_interrupted_release_is_asked_again_for_free(tmp_path, monkeypatch):
    later = killed_after_its_release(tmp_path, monkeypatch)
    assert charges(later) == {("all", "count"): 1, ("all", "train"): 1}
    Run.opened(later.folder).executed(quiet)
    assert charges(later) == {("all", "count"): 1, ("all", "train"): 1}
    assert NgramModel.open(later.folder / "all" / "model.safetensors").rounds == 1


def test_a_run_that_was_interrupted_ends_as_if_it_had_not_been(tmp_path):
    folders = tmp_path / "whole", tmp_path / "broken"
    for folder in folders:
        folder.mkdir()
    whole, broken = map(created, folders)
    whole.executed(quiet)

    def interrupting(selection, done, rounds, facts):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        broken.executed(interrupting)
    Run.opened(broken.folder).executed(quiet)
    assert torch.equal(table(whole), table(broken))
    assert charges(broken) == {("all", "count"): 1, ("all", "train"): 1}


def test_a_run_whose_secret_is_lost_releases_nothing_more(tmp_path, monkeypatch):
    """The question is another one then, and the plan has no second release."""
    later = killed_after_its_release(tmp_path, monkeypatch)
    (tmp_path / ".private" / f"{later.name}.all.key").write_bytes(bytes(32))
    with pytest.raises(PrivacySpentError):
        Run.opened(later.folder).executed(quiet)
    assert charges(later) == {("all", "count"): 1, ("all", "train"): 1}


def test_over_budget_is_refused_and_nothing_is_read(tmp_path):
    recipe, book = written(tmp_path), tmp_path / "ledger.sqlite"
    budget = "--population", 60, "--epsilon", 7, "--delta", 1e-5
    answer("data", "register", "crowd", tmp_path / "d.jsonl", *budget, "--ledger", book)
    done = fedlens("run", recipe, "--out", tmp_path / "out", "--ledger", book)
    assert done.code == 3
    assert not (tmp_path / "out").exists()


# Beside other models


@pytest.fixture(scope="module")
def network(tmp_path_factory, steady):
    folder = tmp_path_factory.mktemp("network")
    toy_texts.written(folder, text=NETWORK)
    recipe = Recipe.open(folder / "recipe.toml")
    run = Run.created(recipe, folder / "out", address=folder / "ledger.sqlite", seed=0, device="cpu")
    run.executed(quiet)
    return run.folder / "all"


def test_an_earlier_model_of_its_kind_is_a_baseline(tmp_path, run):
    later = created(tmp_path, text=f'{OPEN}\nbaseline = "{run.folder / "all"}"')
    report = later.executed(quiet)
    assert len(report.runs) == 2
    assert report.hypotheses


def test_a_model_with_another_alphabet_is_no_baseline(tmp_path, run, network):
    with pytest.raises(ValueError, match=r"Expected text\.baseline with the recipe's own"):
        created(tmp_path, text=f'{OPEN}\nbaseline = "{network}"')
    with pytest.raises(ValueError, match=r"Expected text\.baseline with the recipe's own"):
        created(tmp_path, "privacy.rounds=2", text=f'{NETWORK}\nbaseline = "{run.folder / "all"}"')
    assert not (tmp_path / "ledger.sqlite").exists()


def test_models_are_compared_with_their_like_on_the_command_line(tmp_path, run, network):
    mine = run.folder / "all"
    assert len(answer("compare", mine, mine, "--to", tmp_path / "same")["runs"]) == 2
    done = fedlens("compare", mine, network, "--to", tmp_path / "mixed")
    assert (done.code, "two models of one kind" in done.err) == (2, True)


def test_a_model_is_reported_and_sampled_by_itself(tmp_path, run):
    assert answer("report", run.folder / "all")["runs"][0]["label"] == "all"
    told = answer("sample", run.folder / "all", "--count", 5, "--to", tmp_path / "some.safetensors")
    assert told["guarantee"]["epsilon"] == pytest.approx(8.0, rel=1e-3)
    assert Texts.open(tmp_path / "some.safetensors").kind == "spelling"


def test_what_a_state_is_worth(run):
    """A state without a release is a model that knows nothing, and says so."""
    recipe, book = run.recipe, Ledger(run.address)
    made = run_reports.model_of(recipe, "all", recipe.built().start(), book.spending(f"{run.name}/all"), book.head())
    assert made.rounds == 0
    assert len(made.sampled(50, 0).words) == 50


def test_the_longest_n_grams_that_stand_out_are_counted(tmp_path):
    few, many = (Recipe.open(written(tmp_path, population=10**6), [f"privacy.users={n}"]) for n in (300, 30_000))
    assert (few.text.order, many.text.order) == (2, 3)
    assert Recipe.open(written(tmp_path), ["text.order=3"]).text.order == 3


def test_so_much_noise_that_a_finding_is_a_hint_is_told_before_and_after(tmp_path):
    run = created(tmp_path)
    (told,) = (warning for warning in run.recipe.warnings if "noise to signal" in warning)
    assert told in run.executed(quiet).warnings
    calm = Recipe.open(written(tmp_path, population=400), ["privacy.users=300"])
    assert calm.doubts == ()


@pytest.mark.parametrize(("algorithm", "model"), [("fedavg", "ngrams"), ("ngrams", "spelling")])
def test_an_algorithm_that_does_not_train_the_model_is_refused(tmp_path, algorithm, model):
    with pytest.raises(RecipeError, match=f"'{algorithm}' does not go with text.model = '{model}'"):
        Recipe.open(written(tmp_path), [f"algorithm={algorithm}", f"text.model={model}"])
    assert Recipe.open(written(tmp_path), ["algorithm=ngrams"]).algorithm_name == "ngrams"
