"""Vocabularies at a price: reserved before reading, refused for nothing, closed however it ends, and no raw word."""

import dataclasses
import gzip
import hashlib
import json
import re
import types

import numpy as np
import pytest
import toys
from command_line import answer, fedlens
from toy_texts import by_hand
from toys import rebuilt, rows, unguarded

from fedlens.algorithms.heavy_words import HeavyWords
from fedlens.core import files
from fedlens.curators.protocol import PrivacySpentError
from fedlens.data import readers
from fedlens.data.population import DataError, Population
from fedlens.data.readers.docstrings import docstrings
from fedlens.ledger import Budget, Ledger, NotApprovedError, Spending, guarantee
from fedlens.media.text.public import help_topics
from fedlens.models import words
from fedlens.models.words import Vocabulary, as_row
from fedlens.owner.folder import Bounds, Owner
from fedlens.owner.registration import Policy
from fedlens.recipes.recipe import Recipe
from fedlens.recipes.tables import Data
from fedlens.runs import vocabularies
from fedlens.runs.run import Run
from fedlens.runs.vocabularies import Learning, counted, learned

COMMON, RARE, USERS = ("the", "court", "über"), "motion", 200
SECRET = "xylophone"  # of one user
SAID = [f"The COURT über {SECRET if user == 7 else ''} {RARE if user % 2 else ''} the the" for user in range(USERS)]
FAST = {"size": 40, "longest": 9, "words_per_user": 8}


steady = toys.steady(chunk=50)


@pytest.fixture(scope="module")
def talk(tmp_path_factory):
    path = tmp_path_factory.mktemp("talk") / "talk.jsonl"
    path.write_text("".join(json.dumps({"user": f"id{n}", "text": [said]}) + "\n" for n, said in enumerate(SAID)))
    return path


@pytest.fixture
def asked(talk):
    return Learning(data=str(talk), epsilon=8.0, delta=1e-6, population=400, users=USERS, **FAST)


@pytest.fixture
def book(tmp_path):
    return tmp_path / "ledger.sqlite"


@pytest.fixture
def learn(asked, tmp_path, book):
    """Learns into vocab.txt, with a seed; settings and surroundings can be changed."""

    def done(seed=0, to="vocab.txt", **changes):
        return learned(dataclasses.replace(asked, **changes), tmp_path / to, address=book, seed=seed)

    return done


def releases(book):
    return sum(stage["released"] for run in Ledger(book).runs() for stage in run["stages"])


def closed(book):
    return [run["closed"] for run in Ledger(book).runs()]


def left_behind(folder):
    return sorted(path.name for path in folder.iterdir() if not path.name.startswith(("ledger.sqlite", ".owner")))


# What comes out


def test_frequent_words_come_out_and_those_of_one_user_do_not(learn, tmp_path, book):
    found = learn(seed=0)
    assert found.words[-1] == RARE
    assert set(found.words) == {*COMMON, RARE}
    assert left_behind(tmp_path) == ["vocab.txt", "vocab.txt.json"]
    for path in tmp_path.rglob("*"):
        assert path.is_dir() or SECRET.encode() not in path.read_bytes(), path.name
    (run,) = Ledger(book).runs()
    (stage,) = run["stages"]
    assert run["closed"]
    assert run["model"] == found.digest
    assert stage["released"] == 7  # one for each byte of "motion", and one for its end
    assert stage["plan"]["releases"] == 10


def test_a_list_says_what_it_cost_wherever_it_is_opened(learn, asked, tmp_path):
    found = learn(seed=None)
    told = "charged release of frequent words: epsilon 8.00 at delta 1e-06 per user (add/remove)"
    assert found.provenance.startswith(told)
    assert Vocabulary.open(tmp_path / "vocab.txt", provenance="the list vocab.txt") == found
    about = json.loads((tmp_path / "vocab.txt.json").read_text())
    again = guarantee([Spending.from_dict(about["spending"])], about["delta"])
    assert again.to_dict() == about["guarantee"]
    assert about["guarantee"]["epsilon"] == pytest.approx(8.0, rel=1e-3)
    assert about["settings"] == asked.settings
    assert str(asked.data) not in json.dumps(about)  # where the data lie is the owner's business
    recipe = Recipe.parsed(RECIPE.replace("VOCABULARY", str(tmp_path / "vocab.txt")))
    assert recipe.text.known.provenance == found.provenance
    assert recipe.population == asked.name  # one budget for the list and for the models


RECIPE = """
name = "words"
task = "T3"
data = { source = "jsonl", path = "talk.jsonl" }
text = { vocabulary = "VOCABULARY" }
selections = { all = { by = "everyone" } }
privacy = { epsilon = 8, delta = 1e-6, users = 200, population = 400 }
"""


SMALL = (
    *("text.width=8", "text.embedding=4", "text.units=6", "text.projection=4", "text.warm_steps=2", "text.samples=100"),
    *("privacy.rounds=2", "privacy.clip=0.5", "privacy.minimum_users=1", "privacy.count_noise=2.0"),
)


def recipe_of(talk, vocabulary):
    text = RECIPE.replace("talk.jsonl", str(talk)).replace("VOCABULARY", str(vocabulary))
    return Recipe.parsed(text, SMALL)


def test_a_list_and_the_models_made_with_it_have_one_price(learn, asked, talk, tmp_path, book):
    """Told jointly wherever it is told, and booked once."""
    learn(seed=None, size=1)  # all users hold words that it lacks
    recipe = recipe_of(talk, tmp_path / "vocab.txt")
    run = Run.created(recipe, tmp_path / "out", address=book, seed=None, device="cpu")
    report = run.executed(lambda *facts: None)
    joint = by_hand([asked.plan, *recipe.plans.values()], 1e-6)
    assert joint > by_hand(recipe.plans.values(), 1e-6) + 2
    assert report.guarantee.epsilon == pytest.approx(joint, rel=1e-6)
    assert run.promised().epsilon == pytest.approx(joint, rel=1e-6)
    words, models = Ledger(book).spendings("talk.jsonl", reserved=True)
    assert [plan.noise_multiplier for plan in words.plans] == [asked.plan.noise_multiplier]
    assert models.plans == tuple(recipe.plans.values())
    assert guarantee([words, models], 1e-6).epsilon <= joint * (1 + 1e-6)  # it may have ended early


def test_a_list_learnt_in_simulation_gives_simulated_guarantees(learn, talk, tmp_path):
    learn(seed=3)
    recipe = recipe_of(talk, tmp_path / "vocab.txt")
    assert "SIMULATED" in recipe.guarantee(recipe.spendings()).headline


EDITS = {
    "removed": lambda told: {},
    "left out": lambda told: {name: value for name, value in told.items() if name != "spending"},
    "cheaper": lambda told: told | {"spending": told["spending"] | {"plans": [cheap(told["spending"]["plans"][0])]}},
    "renamed": lambda told: (
        told | {"spending": told["spending"] | {"account": told["spending"]["account"] | {"run": "vocabulary-x"}}}
    ),
}


def cheap(plan):
    return plan | {"noise_multiplier": 100 * plan["noise_multiplier"]}


@pytest.mark.parametrize("edit", EDITS)
def test_a_list_that_the_ledger_knows_as_learnt_does_not_pass_at_another_price(learn, talk, tmp_path, book, edit):
    learn(seed=None)
    beside = tmp_path / "vocab.txt.json"
    told = json.loads(beside.read_text())
    beside.unlink()
    if edited := EDITS[edit](told):
        beside.write_text(json.dumps(edited))
    before = Ledger(book).runs()
    with pytest.raises(ValueError, match=r"as the ledger knows it: the list was learnt by vocabulary-\w{6}\."):
        Run.created(recipe_of(talk, tmp_path / "vocab.txt"), tmp_path / "out", address=book, seed=None, device="cpu")
    assert Ledger(book).runs() == before
    assert not (tmp_path / "out").exists()
    beside.write_text(json.dumps(told))
    Run.created(recipe_of(talk, tmp_path / "vocab.txt"), tmp_path / "out", address=book, seed=None, device="cpu")


CHANGES = {
    "one word less": lambda words: words[:-1],
    "a fifth more": lambda words: [*words, *(f"new{number}" for number in range(len(words) // 5))],
    "in another order": lambda words: words[::-1],
    "one half": lambda words: words[: len(words) // 2],
    "the other half": lambda words: words[len(words) // 2 :],
    "in capitals": lambda words: [word.upper() for word in words],
}


def test_whose_users_a_list_was_learnt_of_is_not_for_its_file_to_say(learn, talk, tmp_path):
    """By a partition of the model's name both counted as groups that share nobody: 16.00 for 25.20."""
    learn(seed=None)
    beside = tmp_path / "vocab.txt.json"
    honest = recipe_of(talk, tmp_path / "vocab.txt")
    told = json.loads(beside.read_text())
    told["spending"]["account"] |= {"partition": "planned: all", "part": "x"}
    beside.write_text(json.dumps(told))
    forged = recipe_of(talk, tmp_path / "vocab.txt")
    assert forged.guarantee(forged.spendings()) == honest.guarantee(honest.spendings())
    told["spending"]["account"] |= {"run": "planned: all"}
    beside.write_text(json.dumps(told))
    with pytest.raises(ValueError, match="price of the vocabulary"):
        recipe_of(talk, tmp_path / "vocab.txt")


def test_a_learnt_list_does_not_pass_for_public_text(learn, talk, tmp_path, book):
    """Half of its words, counted as if in a text, came without their price."""
    learn(seed=None)
    recipe = recipe_of(talk, tmp_path / "vocab.txt")
    recipe = recipe.changed([f"text={{public='{tmp_path / 'vocab.txt'}',vocabulary_size=2}}"])
    with pytest.raises(ValueError, match=r"learnt list of words as text\.vocabulary"):
        Run.created(recipe, tmp_path / "out", address=book, seed=None, device="cpu")


@pytest.mark.parametrize("change", CHANGES)
def test_a_list_made_of_a_learnt_one_does_not_pass_for_free(learn, tmp_path, book, change):
    talk, taken = tmp_path / "long.jsonl", tmp_path / "taken.txt"
    said = " ".join(f"{first}{second}" for first in "abcde" for second in "vwxyz")
    talk.write_text("".join(json.dumps({"user": f"id{n}", "text": [said]}) + "\n" for n in range(USERS)))
    found = learn(seed=None, data=str(talk), epsilon=60.0, words_per_user=25).words
    assert len(found) == 25
    taken.write_text("".join(f"{word}\n" for word in CHANGES[change](list(found))))

    def create():
        return Run.created(recipe_of(talk, taken), tmp_path / "out", address=book, seed=None, device="cpu")

    with pytest.raises(ValueError, match=r"the list was learnt by vocabulary-\w{6}\."):
        create()
    told = json.loads((tmp_path / "vocab.txt.json").read_text())
    digest = hashlib.sha256(taken.read_bytes()).hexdigest()
    beside = tmp_path / "taken.txt.json"
    if change in ("one word less", "a fifth more", "in another order", "in capitals"):
        beside.write_text(json.dumps({"provenance": "public, I say", "words_sha256": digest}))
        with pytest.raises(ValueError, match=r"the list was learnt by vocabulary-\w{6}\."):
            create()
    beside.write_text(json.dumps(told | {"words_sha256": digest}))
    assert create().recipe.released  # with the price it may be used


def test_an_ordinary_public_list_is_not_taken_for_a_learnt_one(learn, talk, tmp_path, book):
    """Frequent words are frequent everywhere: docstrings and the help of Python have most of theirs in common."""
    learn(seed=None)
    sentences = [words.as_sentence(row) for row in docstrings().columns["text"]]
    for size in (100, 1000, 5000):
        found = words.counted(sentences, size, "plain", "docstrings")
        public = words.counted(help_topics(), size, "plain", "help")
        assert not public.resembles(found.marks, named=True)
        assert not public.resembles(found.marks, named=False)
        assert found.resembles(found.marks, named=True)
    short = words.counted(sentences, 50, "plain", "docstrings")
    assert short.resembles(found.marks, named=False)  # says not where it comes from
    assert not short.resembles(found.marks, named=True)
    assert not short.resembles(frozenset(), named=False)
    taken = tmp_path / "public.txt"
    vocabularies.counted(talk, taken, size=3)  # declared to be public, and kept so with the list
    Run.created(recipe_of(talk, taken), tmp_path / "out", address=book, seed=None, device="cpu")


def test_the_price_is_that_of_the_whole_plan_though_it_may_end_early(learn, tmp_path, book):
    """When it ends depends on the data; what is unused is returned to the budget all the same."""
    learn(seed=None, longest=30)
    about = json.loads((tmp_path / "vocab.txt.json").read_text())
    assert about["spending"]["plans"][0]["releases"] == 31
    assert about["guarantee"]["epsilon"] == pytest.approx(8.0, rel=1e-3)
    assert releases(book) < 31
    (spent,) = Ledger(book).spendings("talk.jsonl", reserved=True)
    assert guarantee([spent], 1e-6).epsilon < 7


def test_a_seed_repeats_a_list_and_says_so(learn, tmp_path, book):
    first, again = learn(seed=3), learn(seed=3, to="again.txt")
    assert first == again
    assert "SIMULATED" in first.provenance
    assert Ledger(book).spendings("talk.jsonl") == []


def test_at_most_size_words(learn):
    assert len(learn(size=2).words) == 2


def test_population_folders_and_zipped_lines_hold_the_same_words(asked, talk, tmp_path, book):
    zipped = tmp_path / "talk.jsonl.gz"
    zipped.write_bytes(gzip.compress(talk.read_bytes()))
    readers.convert_text(talk, tmp_path / "folder")
    for number, data in enumerate((zipped, tmp_path / "folder")):
        found = learned(dataclasses.replace(asked, data=str(data)), tmp_path / f"{number}.txt", address=book, seed=0)
        assert set(found.words) == {*COMMON, RARE}
    assert Ledger(book).populations() == ["talk.jsonl.gz"]  # the same people, in whatever form


def test_a_user_counts_once_for_a_word_and_users_without_words_stay(asked, tmp_path):
    rows = np.stack([as_row(text) for text in ("a a a B", "b c", "")])
    Population.from_arrays("few", {"text": rows}, np.array([2, 0, 1])).save(tmp_path / "few")
    found = vocabularies._rows(asked, Data(source="population", path=str(tmp_path / "few")))
    assert found.counts.tolist() == [3, 0, 0]
    assert found.columns["x"][:, 1].tolist() == [ord("a"), ord("b"), ord("c")]


def test_more_prefixes_than_can_stand_out_are_not_followed(asked):
    few = dataclasses.replace(asked, size=10**6, words_per_user=512)
    assert 1 <= few.algorithm.most < few.population * 23
    assert dataclasses.replace(few, size=5).algorithm.most == 5


# Before anything is read


def unread(patched):
    def refuse(asked, source):
        raise AssertionError("the data were read")

    patched.setattr(vocabularies, "_rows", refuse)


@pytest.fixture
def budget(book, talk):
    """Registers the data, as their owner would, and sets a budget."""

    def registered(epsilon, **options):
        known = Owner(str(book)).registered("talk.jsonl")
        if known is None or known.passing:
            source = Data(source="jsonl", path=str(talk))
            Owner(str(book)).register("talk.jsonl", source, Bounds(population=400), policy=Policy())
        Ledger(book).set_budget(Budget(population="talk.jsonl", epsilon=epsilon, delta=1e-6, **options))

    return registered


def test_the_whole_plan_is_reserved_before_anything_is_read(learn, book, monkeypatch):
    seen = []

    def reading(asked, source):
        seen.append(Ledger(book).spendings("talk.jsonl", reserved=True)[0].plans)
        raise DataError("Expected to come this far.")

    monkeypatch.setattr(vocabularies, "_rows", reading)
    with pytest.raises(DataError, match="this far"):
        learn(seed=None)
    assert [plan.releases for plan in seen[0]] == [10]
    assert (releases(book), closed(book)) == (0, [True])
    assert Ledger(book).spendings("talk.jsonl", reserved=True) == []


def test_over_budget_is_refused_unread_and_unspent(learn, book, tmp_path, monkeypatch, budget):
    unread(monkeypatch)
    budget(7.9)
    with pytest.raises(PrivacySpentError, match=r"'talk\.jsonl'"):
        learn(seed=None)
    assert (releases(book), closed(book), left_behind(tmp_path)) == (0, [], [])


def test_a_second_list_on_the_same_data_adds_up(learn, budget):
    budget(8.5)
    learn(seed=None)
    with pytest.raises(PrivacySpentError):
        learn(seed=None, to="again.txt")


@pytest.mark.parametrize("there", ["vocab.txt", "vocab.txt.json"])
def test_nothing_is_spent_where_a_file_would_be_overwritten(learn, book, tmp_path, there):
    (tmp_path / there).write_text("mine")
    with pytest.raises(ValueError, match="Expected no file at"):
        learn(seed=None)
    assert not book.exists()
    assert (tmp_path / there).read_text() == "mine"


@pytest.mark.parametrize(
    "wrong",
    [
        {"epsilon": 0.0},
        {"epsilon": float("nan")},
        {"delta": 0.0},
        {"delta": 1.0},
        {"size": 0},
        {"longest": 0},
        {"users": 0},
        {"users": 401},
        {"words_per_user": 0},
        {"tokenizer": "none"},
    ],
)
def test_settings_that_make_no_sense_are_refused(asked, wrong):
    with pytest.raises(ValueError, match="Expected"):
        dataclasses.replace(asked, **wrong)


def test_nothing_is_spent_where_there_is_nothing_or_no_place(learn, book, tmp_path):
    with pytest.raises(DataError, match="is neither"):
        learn(data=str(tmp_path / "absent.jsonl"))
    with pytest.raises(ValueError, match="Expected a folder"):
        learn(to="absent/vocab.txt")
    assert not book.exists()


def test_no_price_is_told_of_what_cannot_be_learnt(asked, book, tmp_path):
    nowhere = dataclasses.replace(asked, data=str(tmp_path / "absent.jsonl"))
    for wanted, to in ((nowhere, "vocab.txt"), (asked, "absent/vocab.txt")):
        done = told_by(wanted, "--ledger", book, "--to", tmp_path / to)
        assert (done.code, len(done.text.splitlines())) == (2, 1)
        assert done.text.startswith("Expected ")
    assert not book.exists()


# However it ends


def test_more_users_than_declared_cost_nothing(learn, book, tmp_path):
    with pytest.raises(DataError, match="their owner says"):
        learn(seed=None, population=150, users=150)
    assert (releases(book), closed(book), left_behind(tmp_path)) == (0, [], [])


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError("disk"), RuntimeError("bug")])
def test_an_interruption_costs_what_was_charged_and_no_more(learn, book, tmp_path, monkeypatch, error):
    grown = HeavyWords._grown

    def stopping(self, state, mean):
        if int(state["round"]) == 2:
            raise error
        return grown(self, state, mean)

    monkeypatch.setattr(HeavyWords, "_grown", stopping)
    with pytest.raises(error if isinstance(error, type) else type(error)):
        learn(seed=None)
    assert (releases(book), closed(book), left_behind(tmp_path)) == (3, [True], [])
    (spent,) = Ledger(book).spendings("talk.jsonl", reserved=True)
    assert [plan.releases for plan in spent.plans] == [3]


def test_a_process_that_dies_leaves_its_reservation_and_no_secret(learn, book, tmp_path, monkeypatch, budget):
    """Nobody can ask again with the same noise: it was made from a secret in memory."""

    def died(self, run, model=""):
        raise SystemError

    def killed(self, path):
        raise SystemError

    with monkeypatch.context() as patched:
        patched.setattr(Ledger, "close", died)
        patched.setattr(Vocabulary, "save", killed)
        with pytest.raises(SystemError):
            learn(seed=None)
    assert closed(book) == [False]
    assert left_behind(tmp_path) == []
    (held,) = Ledger(book).spendings("talk.jsonl", reserved=True)
    assert [plan.releases for plan in held.plans] == [10]
    budget(8.5)
    with pytest.raises(PrivacySpentError):
        learn(seed=None)


def test_a_list_never_stands_without_its_price(learn, tmp_path, monkeypatch):
    """On a disk that is full after the first file, there is a price without a list, and not the other way round."""
    write, done = files.write, []

    def full(path, content):
        if done:
            raise OSError(28, "No space left")
        write(path, content)
        done.extend([path] if path.parent == tmp_path else [])

    monkeypatch.setattr(files, "write", full)
    with pytest.raises(OSError, match="No space"):
        learn(seed=None)
    assert left_behind(tmp_path) == ["vocab.txt.json"]


def test_where_no_word_stands_out_there_is_no_list(learn, book, tmp_path):
    with pytest.raises(ValueError, match=r"none did\. 1 of 10 releases are spent"):
        learn(epsilon=0.01)
    assert (closed(book), left_behind(tmp_path)) == ([True], [])


def test_a_list_that_was_edited_or_whose_price_is_damaged_is_refused(learn, tmp_path):
    learn()
    path, beside = tmp_path / "vocab.txt", tmp_path / "vocab.txt.json"
    kept = path.read_bytes()
    path.write_bytes(kept + b"more\n")
    with pytest.raises(ValueError, match=r"Expected the words that vocab.txt.json tells about"):
        Vocabulary.open(path)
    path.write_bytes(kept)
    for damaged in ("", "[]", "{}", '{"provenance": 1, "words_sha256": ""}', "\ufffd"):
        beside.write_text(damaged)
        with pytest.raises(ValueError, match="it is damaged"):
            Vocabulary.open(path)


# Nothing raw is ever seen


def told_by(asked, *options):
    done = fedlens(
        *("vocabulary", "learn", asked.data, "--epsilon", 8, "--delta", 1e-6, "--population", 400),
        *("--users", USERS, "--longest", 9, "--size", 40, *options),
    )
    return types.SimpleNamespace(code=done.code, text=done.out + done.err)


def loud(sentence):
    print(sentence)
    raise ValueError(f"Expected no {sentence}")


@pytest.mark.parametrize("tokenizer", ["plain", "test_vocabularies:loud", "builtins:int"])
def test_no_error_quotes_a_word(asked, tmp_path, book, tokenizer):
    done = told_by(asked, "--tokenizer", tokenizer, "--to", tmp_path / "vocab.txt", "--ledger", book)
    assert done.code == (0 if tokenizer == "plain" else 2), done.text
    assert not any(word in done.text for word in (SECRET, "court", RARE, "id7"))


def test_damaged_lines_are_named_and_not_quoted(asked, talk, tmp_path, book):
    broken = tmp_path / "broken.jsonl"
    broken.write_text(talk.read_text() + '{"user": "id7", "text": ["' + SECRET)
    done = told_by(dataclasses.replace(asked, data=str(broken)), "--to", tmp_path / "v.txt", "--ledger", book)
    assert done.code == 2
    assert SECRET not in done.text
    assert (releases(book), closed(book)) == (0, [])


# The command line


def test_learning_on_the_command_line(asked, tmp_path, book, budget):
    to = tmp_path / "vocab.txt"
    done = told_by(asked, "--to", to, "--ledger", book, "--why", "a first look")
    assert done.code == 0
    assert "planned epsilon 8.00 at delta 1e-06" in done.text
    assert re.search(r"Wrote \d words to .*vocab\.txt: charged release", done.text)
    assert "the" in to.read_text().split()
    assert Ledger(book).runs()[0]["why"] == "a first look"
    budget(8.5)
    refused = told_by(asked, "--to", tmp_path / "again.txt", "--ledger", book)
    assert refused.code == 3
    assert "its budget is 8.5" in refused.text
    assert not (tmp_path / "again.txt").exists()


def test_a_delta_that_is_too_large_is_warned_of(asked, tmp_path, book):
    done = told_by(asked, "--delta", 0.01, "--to", tmp_path / "v.txt", "--ledger", book)
    assert "warning: delta 0.01 is above 1/400" in done.text


def test_ctrl_c_tells_that_there_is_no_list(asked, tmp_path, book, monkeypatch):
    def interrupted(asked, source):
        raise KeyboardInterrupt

    monkeypatch.setattr(vocabularies, "_rows", interrupted)
    done = told_by(asked, "--to", tmp_path / "v.txt", "--ledger", book)
    assert done.code == 130
    assert closed(book) == [True]


def test_a_budget_with_review_wants_an_approved_request(asked, learn, tmp_path, book, budget):
    budget(10, review=True)
    with pytest.raises(NotApprovedError):
        learn(seed=None)
    assert told_by(asked, "--ledger", book, "--to", tmp_path / "v.txt").code == 4
    assert "waits for review" in told_by(asked, "--ledger", book, "--request").text
    Ledger(book).review(Ledger(book).requests()[0]["number"], approved=True)
    edited = told_by(asked, "--ledger", book, "--to", tmp_path / "v.txt", "--size", 41)
    assert (edited.code, "edited since" in edited.text) == (4, True)
    assert told_by(asked, "--ledger", book, "--to", tmp_path / "v.txt").code == 0


def test_counting_public_text(tmp_path):
    text = tmp_path / "play.txt"
    text.write_text("To be, or not to be\nto sleep\n")
    told = answer("vocabulary", "count", text, "--size", 2, "--to", tmp_path / "vocab.txt")
    assert told["provenance"] == "the 2 most frequent words of play.txt, declared to be public"
    assert (tmp_path / "vocab.txt").read_text() == "to\nbe\n"
    assert Vocabulary.open(tmp_path / "vocab.txt").provenance == told["provenance"]
    assert fedlens("vocabulary", "count", text, "--to", tmp_path / "vocab.txt").code == 2


@pytest.mark.parametrize("name", [".", "../plays", "link"])
def test_counted_text_is_called_by_the_name_of_its_folder(tmp_path, monkeypatch, name):
    folder = tmp_path / "plays"
    folder.mkdir()
    (folder / "one.jsonl").write_text('{"user": "a", "text": "to be"}\n')
    (folder / "link").symlink_to(folder)
    monkeypatch.chdir(folder)
    told = answer("vocabulary", "count", name, "--to", tmp_path / "vocab.txt")
    called = "link" if name == "link" else "plays"
    assert told["provenance"] == f"the 2 most frequent words of {called}, declared to be public"


def test_counting_lines_of_json(talk, tmp_path):
    assert counted(talk, tmp_path / "vocab.txt", size=3).words == ("the", "court", "über")


def test_the_help_says_that_counted_text_must_be_public():
    assert "PUBLIC" in fedlens("vocabulary", "count", "--help").out


def test_counting_nothing_is_refused(tmp_path):
    (tmp_path / "empty.txt").write_text("\n")
    with pytest.raises(ValueError, match=r"Expected words in empty\.txt"):
        counted(tmp_path / "empty.txt", tmp_path / "vocab.txt", size=3)
    with pytest.raises(ValueError, match="Expected public text"):
        counted(tmp_path / "absent.txt", tmp_path / "vocab.txt", size=3)


# What a list says about its ledger


def test_verify_looks_at_lists_of_words_as_well(learn, tmp_path, book):
    learn(seed=None)
    told = answer("ledger", "verify", "--ledger", book)
    assert (told["problems"], told["models"]) == ([], 1)
    unguarded(book)
    rebuilt(book, [dataclasses.replace(entry, who="somebody else") for entry in rows(book)])
    done = fedlens("ledger", "verify", "--ledger", book)
    assert (done.code, "written down elsewhere" in done.out) == (1, True)


def test_verify_finds_a_list_whose_price_was_taken_back(learn, tmp_path, book, budget):
    budget(10)
    before = rows(book)
    learn(seed=None)
    unguarded(book)
    rebuilt(book, before)
    (tmp_path / "vocab.txt").rename(tmp_path / "words")
    (tmp_path / "vocab.txt.json").rename(tmp_path / "words.json")
    for options in ([], ["--runs", tmp_path / "..", "--vocabulary", tmp_path / "words"]):
        done = fedlens("ledger", "verify", "--ledger", book, *options)
        assert done.code == 1
        assert "names this ledger, which does not know it" in done.out
    done = fedlens("ledger", "verify", "--ledger", book, "--vocabulary", tmp_path / "absent")
    assert (done.code, "absent" in done.err) == (1, True)


def test_a_request_to_learn_tells_the_reviewer_what_is_asked(asked, tmp_path, book, budget):
    budget(10, review=True)
    assert told_by(asked, "--ledger", book, "--request").code == 0
    told = fedlens("ledger", "review", 3, "--ledger", book).out
    for expected in ("asks for epsilon 8.00 at delta 1e-06", "it fits", 'algorithm = "vocabulary"', "longest = 9"):
        assert expected in told
