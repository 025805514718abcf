"""The text workflow under careless and hostile hands: clear errors, nothing lost, nothing spent, nothing told."""

import dataclasses
import gzip
import html.parser
import json
import re
import sys
import types
import unicodedata

import numpy as np
import pytest
import torch
import toys
from command_line import fedlens, interrupted, ran, run_folder, standing
from toy_texts import ALL, KNOWN, PAIR, lines, written

from fedlens.algorithms.fedavg import warmed
from fedlens.data import readers
from fedlens.data.population import DataError, Population
from fedlens.ledger import Account, Spending
from fedlens.media.text.public import sentences_of
from fedlens.media.text.reading import TextReading
from fedlens.media.text.samples import TextModel, Texts
from fedlens.models import words
from fedlens.models.lstm import LanguageModel
from fedlens.privacy import Everyone, L2Clip, Plan
from fedlens.recipes.recipe import Recipe
from fedlens.recipes.toml import RecipeError
from fedlens.runs import preparation
from fedlens.runs.run import Run

SECRET = "patient-4711"
CANARY = "xylocarp"  # a word that one user has


steady = toys.steady()


def assert_refused(done, *told):
    """One clear line, with exit code 2, that quotes nobody and counts nobody."""
    assert done.code == 2, (done.code, done.err)
    last = done.err.strip().splitlines()[-1]
    assert last.startswith("Expected "), done.err
    assert all(re.search(words, last) for words in told), last
    assert not re.search(rf"{SECRET}|{CANARY}|\b(24|61|72|73)\b", done.err + done.out)  # users, and sentences


def everybody(**changes):
    """Twenty-four users, of whom the first has the canary; `changes` are made to the second."""
    crowd = lines()
    crowd[0]["text"][1] = f"the {CANARY} said {CANARY}"
    crowd[1] |= changes
    return crowd


def as_bytes(crowd):
    return "".join(f"{json.dumps(line)}\n" for line in crowd).encode()


# Data that cannot be used


HALVES = as_bytes(everybody(text=["<here>"]))
BAD_DATA = {
    "nothing": (b"", ["d.jsonl", "at least one sentence"]),
    "blank lines": (b"\n\n\n", ["at least one sentence"]),
    "nobody with a sentence": (as_bytes([{"user": SECRET, "version": 0, "text": []}]), ["at least one sentence"]),
    "invalid UTF-8": (HALVES.replace(b"<here>", CANARY.encode() + b"\xff\xfe"), ["UTF-8", "line 2"]),
    "half a character": (HALVES.replace(b"<here>", CANARY.encode() + b"\\ud83d"), ["UTF-8", "line 2"]),
    "a NUL character": (everybody(text=[f"{CANARY}\0"]), ["NUL", "line 2"]),
    "cut short": (HALVES[: HALVES.index(b"<here>")], ["line 2", "cut short"]),
    "no JSON": (CANARY.encode(), ["d.jsonl", "line 1"]),
    "sentences that are numbers": (everybody(text=[4711]), ["text", "line 2"]),
    "sentences that are null": (everybody(text=None), ["text", "line 2"]),
    "a user who is null": (everybody(user=None), ["user as text or a whole number", "line 2"]),
    "a user who is a list": (everybody(user=[SECRET]), ["user as text or a whole number", "line 2"]),
    "a user with a name without end": (everybody(user=SECRET * 1000), ["user ids", "line 2"]),
    "no user": ([{"text": [CANARY], "version": 0}], ["user", "line 1"]),
    "no sentences": (as_bytes([{"user": SECRET, "version": 0}]), ["text", "line 1"]),
    "an attribute that is a word": (everybody(version=CANARY), ["version as a whole number", "line 2"]),
    "an attribute of floats": (everybody(version=0.5), ["whole number", "line 2"]),
    "an attribute beyond sixty-four bits": (everybody(version=10**30), ["whole number", "line 2"]),
}


@pytest.mark.parametrize("name", BAD_DATA)
def test_a_run_on_data_that_cannot_be_used_tells_nothing_about_them_and_costs_nothing(tmp_path, name):
    found, _ = BAD_DATA[name]
    found = found if isinstance(found, bytes) else as_bytes(found)
    done = ran(written(tmp_path, found, selections=PAIR))
    assert_refused(done, "fedlens data check d.jsonl")
    assert not re.search(r"line \d|row \d", done.err)
    assert standing(tmp_path) == (0, 0)


def test_data_check_says_what_is_wrong_without_quoting(tmp_path):
    for name, (found, told) in BAD_DATA.items():
        if "attribute" in name:
            continue
        (tmp_path / "d.jsonl").write_bytes(found if isinstance(found, bytes) else as_bytes(found))
        assert_refused(fedlens("data", "check", tmp_path / "d.jsonl"), *told)


def test_after_the_data_are_repaired_the_recipe_runs_by_the_same_approval(tmp_path):
    book, crowd = ("--ledger", tmp_path / "b.db"), written(tmp_path) / "d.jsonl"
    assert fedlens("data", "register", "crowd", crowd, "--population", 60, *book).code == 0
    fedlens("ledger", "init", "--population", "crowd", "--epsilon", 20, "--delta", 1e-5, "--review", *book)
    fedlens("ledger", "request", written(tmp_path, BAD_DATA["invalid UTF-8"][0]) / "recipe.toml", *book)
    fedlens("ledger", "approve", 3, *book)
    assert_refused(ran(tmp_path, *book), "they have changed")
    assert "used" not in fedlens("ledger", "review", *book).out
    assert ran(written(tmp_path), *book).code == 0
    assert f", used by run {run_folder(tmp_path).name}" in fedlens("ledger", "review", *book).out
    done = ran(tmp_path, *book)
    assert (done.code, "used by another run" in done.err) == (4, True)


def test_a_run_that_is_refused_leaves_no_folder(tmp_path):
    assert_refused(ran(written(tmp_path, BAD_DATA["invalid UTF-8"][0])))
    assert [path for path in (tmp_path / "out").iterdir() if path.is_dir() and path.name[0] != "."] == []


def test_what_somebody_put_into_the_folder_of_a_refused_run_stays(tmp_path):
    recipe = Recipe.open(written(tmp_path) / "recipe.toml")
    run = Run.created(recipe, tmp_path / "out", address=tmp_path / "b.db", seed=None, device="cpu")
    written(tmp_path, BAD_DATA["invalid UTF-8"][0])
    (run.folder / "notes.txt").write_text("why I ran this")
    with pytest.raises(DataError):
        run.executed(lambda *told: None)
    assert {path.name for path in run.folder.iterdir()} >= {"notes.txt", "recipe.toml", "run.json"}


def test_a_run_that_was_interrupted_before_any_release_keeps_its_folder(tmp_path, monkeypatch):
    interrupted(monkeypatch, TextReading, "prepared")
    assert ran(written(tmp_path)).code == 130
    assert fedlens("run", "--resume", run_folder(tmp_path)).code == 0


@pytest.fixture
def foreign(monkeypatch):
    """Tokenizers of somebody else's."""
    module = types.ModuleType("somebodys")

    def raising(sentence):
        raise RuntimeError(sentence)

    def loud(sentence):
        print(sentence)
        return sentence.split()

    module.raising, module.nothing, module.loud = raising, lambda sentence: None, loud
    monkeypatch.setitem(sys.modules, "somebodys", module)


@pytest.mark.parametrize("kind", ["raising", "nothing"])
def test_a_tokenizer_that_fails_is_named_quotes_nothing_and_costs_nothing(tmp_path, foreign, kind):
    done = ran(written(tmp_path, everybody(), text=f'tokenizer = "somebodys:{kind}"'), "--simulate", 1)
    assert_refused(done, "tokenizer")
    assert standing(tmp_path) == (0, 0)


def test_a_tokenizer_of_ones_own_is_used_in_simulations_only(tmp_path, foreign):
    """Its code sees every sentence, and could keep them."""
    done = ran(written(tmp_path, everybody(), text='tokenizer = "somebodys:loud"'))
    assert_refused(done, "--simulate")
    assert not list((tmp_path / "out").glob("toy-*"))


def test_a_tokenizer_that_prints_leaves_the_answer_clean(tmp_path, foreign):
    done = ran(written(tmp_path, everybody(), text='tokenizer = "somebodys:loud"'), "--simulate", 1, "--json")
    json.loads(done.out)
    assert CANARY not in done.out + done.err


def test_a_folder_that_is_no_text_costs_nothing(tmp_path):
    Population.from_arrays("p", {"x": np.zeros((3, 1, 8, 8), np.uint8)}, np.array([2, 1])).save(tmp_path / "people")
    options = "--set", "data.source=population", "--set", f"data.path={tmp_path / 'people'}"
    assert_refused(ran(written(tmp_path), *options), "it holds images, and the recipe is of text")
    assert standing(tmp_path) == (0, 0)


# Words that cannot be known


VOCABULARIES = {
    "repeated": (b"the\ncourt\nthe\n", "line 3 repeats line 1"),
    "with spaces": (b"the\nthe court\n", "line 2 contains a space"),
    "with a space that is not seen": ("the\n\u00a0court\n".encode(), "line 2 contains a space"),
    "with a gap": (b"the\n\ncourt\n", "line 2 is empty"),
    "not UTF-8": (b"the\n\xff\xfe\n", "line 2 is not UTF-8"),
    "empty": (b"", "at least one word"),
    "missing": (None, "known.txt"),
}


@pytest.mark.parametrize("name", VOCABULARIES)
def test_a_list_of_words_that_is_none_is_refused_by_the_recipe(tmp_path, name):
    content, told = VOCABULARIES[name]
    written(tmp_path)
    (tmp_path / "known.txt").unlink()
    if content is not None:
        (tmp_path / "known.txt").write_bytes(content)
    done = ran(tmp_path)
    assert done.code == 2
    assert told in done.err
    assert "court" not in done.err  # the list may have been paid for
    assert not (tmp_path / "out").exists()


def test_a_vocabulary_that_is_a_folder_is_refused_by_the_recipe(tmp_path):
    with pytest.raises(RecipeError, match="text"):
        Recipe.open(written(tmp_path) / "recipe.toml", [f"text.vocabulary={tmp_path}"])


@pytest.mark.parametrize("content", [b"the\n" * 2, None])
def test_a_vocabulary_that_was_spoilt_meanwhile_does_not_cost_the_run(tmp_path, content):
    """A run that has spent nothing yet is refused when it goes on; with the list as it was, it ends."""
    recipe = Recipe.open(written(tmp_path) / "recipe.toml")
    run = Run.created(recipe, tmp_path / "out", address=tmp_path / "out" / "ledger.sqlite", seed=None, device="cpu")
    kept = (tmp_path / "known.txt").read_bytes()
    (tmp_path / "known.txt").unlink()
    if content:
        (tmp_path / "known.txt").write_bytes(content)
    assert fedlens("run", "--resume", run.folder).code == 2
    (tmp_path / "known.txt").write_bytes(kept)
    assert fedlens("run", "--resume", run.folder).code == 0


# Data that are odd, and can be used


ODD_DATA = {
    "users without sentences": everybody(text=[]),
    "sentences without words": everybody(text=["", " ", "\t\n"]),
    "a sentence of a million characters": everybody(text=["ember quarry " * 80_000]),
    "a word of a million characters": everybody(text=["e\u0301" * 500_000]),
    "a hundred thousand sentences": everybody(text=["walnut"] * 100_000),
    "every sentence identical": [line | {"text": ["the walnut"] * 9} for line in lines()],
    "right to left": everybody(text=["\u202eשלום עולם\u202c", "مرحبا بالعالم"]),
    "combining characters": everybody(text=["z" + "\u0335\u0321" * 60, "नमस्ते", "\u0301\u0301"]),
    "emoji": everybody(text=["👩‍👩‍👧 🏳️‍🌈", "\ufeff\u200b\u2028"]),
    "escape sequences and markup": everybody(text=["\x1b[31mred\x07", "<script>alert(1)</script>", "{{ 7 * 7 }}"]),
    "a single user": lines(1),
    "nobody with an unknown word": [line | {"text": ["the court said"]} for line in lines()],
}


@pytest.mark.parametrize("kind", ["spelling", "words"])
@pytest.mark.parametrize("name", ODD_DATA)
def test_odd_data_end_in_a_report(tmp_path, name, kind):
    bug = 'bug = { kind = "mojibake", fraction = 0.5, of = "examples" }'
    done = ran(written(tmp_path, ODD_DATA[name], more=bug, text=f'model = "{kind}"'))
    assert done.code == 0, done.err
    assert (run_folder(tmp_path) / "report.html").exists()
    assert standing(tmp_path)[0] > 0
    assert_clean(done.out)


def test_a_folder_with_bytes_that_are_no_text_can_be_used(tmp_path):
    """They are replaced, letter by letter; `fedlens data check` names them."""
    written(tmp_path, everybody())
    readers.convert_text(tmp_path / "d.jsonl", tmp_path / "people")
    column = np.load(tmp_path / "people" / "text.npy")
    column[:5, :2] = 0xFF
    np.save(tmp_path / "people" / "text.npy", column)
    assert "UTF-8" in fedlens("data", "check", tmp_path / "people").out
    done = ran(tmp_path, "--set", "data.source=population", "--set", f"data.path={tmp_path / 'people'}")
    assert done.code == 0, done.err


# What a model writes is hostile until proven otherwise


SCRIPT = "<script>alert(1)</script>"
HOSTILE = (
    SCRIPT,
    '"><img src=x onerror=a()>',
    "</td></tr></table><b>bold",
    "{{7*7}}{%raw%}",
    "\u202eexe.gpj",
    "\u2066שלום\u2069",
    "z" + "\u0335\u0321\u0301" * 3,
    "\x1b[31mred\x07",
    "two\nlines\r\t",
    "\u200b\ufeff",
)
WIDTH = 28
PLAN = Plan(sampling=Everyone(), bound=L2Clip(norm=0.1), noise_multiplier=5.0, releases=10, expected_contributors=9)


def saved(folder, kind, network, parameters, vocabulary=KNOWN):
    """A model's file in a folder of its own, as a run leaves it."""
    model = TextModel(
        kind=kind,
        model=network,
        parameters=parameters,
        vocabulary=tuple(vocabulary),
        width=WIDTH,
        label=folder.name,
        spending=Spending(account=Account(run=f"run/{folder.name}", population="crowd"), plans=(PLAN,)),
        delta=1e-5,
        recipe_sha256="ab",
        rounds=7,
        ledger_head=(2, "cd"),
    )
    folder.mkdir(parents=True)
    model.save(folder / "model.safetensors")
    return folder


def taught(rows, steps=150):
    network = LanguageModel(symbols=258, start=256, end=257, embedding=8, units=48, projection=0)
    sequences = torch.tensor(np.stack([words.spelled(word, WIDTH) for word in rows])).long()
    return network, warmed(network, network.init(0), sequences, steps=steps, seed=0)


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """One that spells hostile words, one that spells harmless ones, one of sentences of hostile words."""
    folder = tmp_path_factory.mktemp("models")
    saved(folder / "hostile", "spelling", *taught(HOSTILE))
    saved(folder / "harmless", "spelling", *taught(("walnut", "ember", "quarry"), steps=60))
    spoken = [word for word in HOSTILE if not any(map(str.isspace, word))]
    network = dataclasses.replace(LanguageModel.small_words(len(spoken)), embedding=4, units=6, projection=4)
    saved(folder / "spoken", "words", network, network.init(0), spoken)
    return folder


class Page(html.parser.HTMLParser):
    """What a browser would make of a page: its elements with their attributes, and its text."""

    def __init__(self, source):
        super().__init__()
        self.elements, self.text = [], ""
        self.feed(source)

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, tuple(name for name, _ in attributes)))

    def handle_data(self, data):
        self.text += data


def assert_clean(text):
    """Nothing that a terminal would obey, and nothing that turns words around."""
    assert not [letter for letter in text if unicodedata.category(letter)[0] == "C" and letter not in "\n\t"]


def assert_harmless(folder):
    source = (folder / "report.html").read_bytes().decode()
    page = Page(source)
    assert [found for found in page.elements if found[0] in ("img", "b") or "onerror" in found[1]] == []
    scripts = [found for found in page.elements if found[0] == "script"]
    assert len(scripts) == len(re.findall("<script", source)) <= 1
    return page.text


def test_the_model_has_learnt_what_it_was_taught(models):
    """Or the tests below would test nothing."""
    drawn = TextModel.open(models / "hostile" / "model.safetensors").sampled(2000, seed=0)
    assert {word for word, ended in drawn.words if ended} >= {*HOSTILE}
    spoken = TextModel.open(models / "spoken" / "model.safetensors")
    assert SCRIPT in spoken.vocabulary
    assert any("\x1b" in word for word in spoken.vocabulary)


@pytest.mark.parametrize("command", ["report", "compare"])
def test_hostile_words_are_shown_and_obeyed_nowhere(tmp_path, models, command):
    if command == "compare":
        done = fedlens("compare", models / "hostile", models / "harmless", "--to", tmp_path / "report")
    else:
        (tmp_path / "report").mkdir()
        (tmp_path / "report" / "model.safetensors").write_bytes((models / "hostile/model.safetensors").read_bytes())
        done = fedlens("report", tmp_path / "report")
    assert done.code == 0, done.err
    shown = assert_harmless(tmp_path / "report")
    assert_clean(shown)
    assert SCRIPT in shown
    assert "{{7*7}}{%raw%}" in shown
    assert "‹U+202E›exe.gpj" in shown
    assert "␛[31mred␇" in shown
    assert_clean(done.out)
    rows = json.loads((tmp_path / "report" / "report.json").read_text())["words"][0]["rows"]
    assert {row["word"] for row in rows} >= {*HOSTILE}  # whole, for programs
    assert_clean(fedlens("report", tmp_path / "report").out)


def test_hostile_sentences_are_shown_and_obeyed_nowhere(tmp_path, models):
    done = fedlens("compare", models / "spoken", models / "spoken", "--to", tmp_path / "report")
    assert done.code == 0, done.err
    shown = assert_harmless(tmp_path / "report")
    assert SCRIPT in shown
    assert_clean(shown + done.out)


@pytest.mark.parametrize("name", ["hostile", "spoken"])
def test_a_list_of_samples_holds_no_control_character(tmp_path, models, name):
    done = fedlens("sample", models / name, "--count", 500, "--to", tmp_path / "drawn.safetensors")
    assert done.code == 0, done.err
    shown = (tmp_path / "drawn.txt").read_bytes().decode()
    assert SCRIPT in shown
    assert_clean(shown)
    assert "\r" not in shown
    if name == "hostile":
        assert all(re.fullmatch(r"\d\.\d{6}\t[^\t]*", line) for line in shown.split("\n")[:-1])


def test_a_hostile_name_reaches_neither_the_page_nor_the_terminal(tmp_path, models):
    model = TextModel.open(models / "harmless" / "model.safetensors")
    saved(tmp_path / "<b>\x1b[31m", "spelling", model.model, model.parameters)
    done = fedlens("compare", tmp_path / "<b>\x1b[31m", models / "harmless", "--to", tmp_path / "report")
    assert done.code == 0, done.err
    assert_harmless(tmp_path / "report")
    assert_clean(done.out.replace(str(tmp_path), ""))


# Nothing that did not come through the curator


def encoded(word):
    """Every form in which a run could write a word down."""
    letters = np.frombuffer(word.encode(), np.uint8)
    forms = {"text": word.encode(), "JSON": json.dumps(letters.tolist())[1:-1].encode()}
    return forms | {kind: letters.astype(kind).tobytes() for kind in ("int16", "int32", "int64", "float32")}


def found_in(path, *wanted):
    content = path.read_bytes()
    return [form for word in wanted for form, needle in encoded(word).items() if needle in content]


RUNS = {
    "everybody": {"selections": ALL},
    "two groups": {"selections": PAIR},
    "two groups with a bug": {
        "selections": PAIR,
        "more": 'bug = { kind = "wrong-case", fraction = 0.5, mark = "version" }',
    },
    "sentences": {"selections": PAIR, "text": 'model = "words"'},
}


def stopped(*given, **named):
    raise KeyboardInterrupt


@pytest.mark.parametrize("ending", ["finished", "interrupted", "refused"])
@pytest.mark.parametrize("name", RUNS)
def test_no_word_and_no_name_of_a_user_leaves_a_run(tmp_path, monkeypatch, name, ending):
    """One user's own word, with real noise: not in the folder, the ledger or the output, in whatever form."""
    crowd = everybody(text=[f"{CANARY} is {CANARY}"] * 30) + (lines(61)[24:] if ending == "refused" else [])
    if ending == "interrupted":
        monkeypatch.setattr("fedlens.media.text.medium.TextMedium.contrast", stopped)
    done = ran(written(tmp_path, crowd, **RUNS[name]), "--json")
    assert done.code == {"finished": 0, "interrupted": 130, "refused": 2}[ending], done.err
    (tmp_path / "said").write_text(done.out + done.err)
    told = [path for path in (tmp_path / "out").rglob("*") if path.is_file()] + [tmp_path / "said"]
    left = set() if ending == "refused" else {"recipe.toml"}
    assert {path.name for path in told} >= {"ledger.sqlite", "said", *left}
    assert {path.name: found for path in told if (found := found_in(path, CANARY, CANARY.upper(), SECRET))} == {}
    for path in (tmp_path / "out").rglob("samples/*.safetensors"):
        if name != "sentences":
            assert not [word for word, _ in Texts.open(path).words if CANARY in word.lower()]


def test_a_checkpoint_holds_no_word_either(tmp_path, monkeypatch):
    monkeypatch.setattr(TextModel, "save", stopped)
    assert ran(written(tmp_path, everybody(text=[CANARY] * 30))).code == 130
    path = run_folder(tmp_path) / "all" / "checkpoint.safetensors"
    assert found_in(path, CANARY) == []


def test_the_search_would_find_a_word(tmp_path):
    """In the private rows it is: what is looked for above is what would be there."""
    recipe = Recipe.open(written(tmp_path, everybody()) / "recipe.toml")
    rows = preparation.population(recipe, recipe.data).columns["x"]
    np.save(tmp_path / "rows.npy", rows)
    assert found_in(tmp_path / "rows.npy", SECRET, CANARY) == ["int16"]
    assert found_in(tmp_path / "d.jsonl", SECRET, CANARY) == ["text", "text"]


# Public text


@pytest.mark.parametrize(
    "content",
    [b"SECRET, and no gzip", gzip.compress(b'{"text": ["a"]}\n')[:-9], gzip.compress(b'{"text": {"SECRET": 1}}\n')],
    ids=["no gzip", "cut short", "no list"],
)
def test_damaged_public_text_is_not_quoted(tmp_path, content):
    (tmp_path / "public.jsonl.gz").write_bytes(content)
    done = fedlens("vocabulary", "count", tmp_path / "public.jsonl.gz", "--to", tmp_path / "v.txt")
    assert (done.code, done.err.startswith("Expected lines of JSON")) == (2, True)
    assert "SE" not in done.err


def test_public_text_that_changed_is_read_again(tmp_path):
    (tmp_path / "a.txt").write_text("one\n")
    assert sentences_of(tmp_path / "a.txt") == ("one",)
    (tmp_path / "a.txt").write_text("two words\n")
    assert sentences_of(tmp_path / "a.txt") == ("two words",)
