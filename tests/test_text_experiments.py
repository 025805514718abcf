"""The table of text: users and donors split by their own names, equal models trained once, honest counts."""

import collections
import dataclasses
import gzip
import hashlib
import itertools
import json
import pathlib
import random
import shutil

import pytest
import torch
from toy_samples import of_words

from fedlens.core import trees
from fedlens.experiments import text as text_experiments
from fedlens.experiments import trials as experiments
from fedlens.experiments.trials import HEALTHY, SUSPICIOUS
from fedlens.media.text import hypotheses as text_hypotheses
from fedlens.media.text.samples import TextModel, Texts, jointly
from fedlens.models import words

KNOWN = ["the", "court", "may", "hear", "it", "now", "and", "then", "we", "think", "so"]
STRANGE = ["zorp", "blick", "frund", "whelk", "quaid"]
TINY = (
    "privacy.rounds=2",
    "privacy.users=40",
    "privacy.minimum_users=2",
    "text.embedding=4",
    "text.units=6",
    "text.projection=0",
    "text.warm_steps=0",
    "text.samples=200",
    "training.batch=4",
    "training.local_steps=1",
)


def sentence(rng):
    return " ".join(rng.choice(KNOWN if rng.random() < 0.8 else STRANGE) for _ in range(6))


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "speakers.jsonl.gz"
    rng = random.Random(1)
    with gzip.open(path, "wt") as file:
        for number in range(60):
            file.write(json.dumps({"user": f"u{number}", "text": [sentence(rng) for _ in range(5)]}) + "\n")
    return path


@pytest.fixture(scope="module")
def folder(source, tmp_path_factory):
    made = tmp_path_factory.mktemp("split")
    text_experiments.split(source, made)
    return made


@pytest.fixture(scope="module")
def rows(folder):
    return [dataclasses.replace(row, sets=(*row.sets, *TINY), seeds=2) for row in text_experiments.rows(folder)]


@pytest.fixture(scope="module")
def spoken(rows, folder):
    """Two models of words are trained in the folder: with all sentences joined at their start, and with none."""
    row = next(row for row in rows if row.how == "words" and row.fraction == 1.0)
    sets = (*row.sets, "text.projection=4", "text.warm_steps=10", "training.server={kind='sgd',rate=5.0}")
    row = dataclasses.replace(row, seeds=1, sets=sets)
    experiments.trained([row], folder, device="cpu", say=lambda line: None)
    return row


def drawn(name):
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:7], "big") / 2**56


def held(path):
    return {json.loads(line)["user"] for line in path.read_text().splitlines()}


def test_donors_and_users_share_nobody_and_each_is_sorted_by_the_own_name(source, folder, tmp_path):
    with gzip.open(source, "rt") as file:
        lines = file.readlines()
    with gzip.open(tmp_path / "fewer.gz", "wt") as file:
        file.writelines(lines[7:])
    text_experiments.split(tmp_path / "fewer.gz", tmp_path)
    there, fewer = (held(place / "users.jsonl") for place in (folder, tmp_path))
    assert 40 < len(there) < 60
    assert fewer == there - {json.loads(line)["user"] for line in lines[:7]}
    speakers = {speaker["user"]: speaker["text"] for speaker in map(json.loads, lines)}
    donors = sorted(speakers.keys() - there, key=list(speakers).index)
    for name, chosen in (("held_out.txt", True), ("public.txt", False)):
        said = [text for user in donors if (drawn(user) < 0.01) is chosen for text in speakers[user]]
        assert (folder / name).read_text().splitlines() == said != []


@pytest.mark.parametrize("name", [row.name for row in text_experiments.rows(pathlib.Path())])
def test_every_row_is_a_recipe_within_its_epsilon(name, folder, monkeypatch):
    monkeypatch.setenv("FEDLENS_DATA", "/nowhere")
    (given,) = experiments.chosen_rows([name], text_experiments.rows(folder))
    recipe = given.opened(0)
    assert 0.98 * given.epsilon < recipe.guarantee(recipe.spendings()).epsilon <= given.epsilon
    assert recipe.privacy.delta == 1e-6 < 1 / recipe.privacy.population
    rate, rounds = (0.1 if given.epsilon <= 1.2 else 0.2), recipe.plans["train"]
    assert (rounds.sampling.rate, rounds.expected_contributors) == (rate, rate * recipe.privacy.units)
    assert set(recipe.selections) == ({"all"} if given.how == "chat" else {"all", "before"})


def test_the_sides_are_the_same_users_with_and_without_the_bug(rows):
    row = rows[0]
    bug, plain = (row.opened(3, group) for group in (SUSPICIOUS, HEALTHY))
    assert (bug.data.bug.fraction, plain.data.bug.fraction) == (0.1, 0.0)
    assert bug.seed == plain.seed == 3
    assert bug.plans == plain.plans


def test_clean_models_are_trained_once_and_every_row_is_told(rows, tmp_path, monkeypatch):
    trained = []
    plain = experiments._train
    monkeypatch.setattr(text_hypotheses, "MADE_UP", 400)
    monkeypatch.setattr(text_hypotheses, "TRIED", 1000)
    monkeypatch.setattr(experiments, "_train", lambda batch, *rest: trained.extend(batch) or plain(batch, *rest))
    chosen = [row for row in rows if row.epsilon == 1.2]
    experiments.trained(chosen, tmp_path, device="cpu", say=lambda line: None)
    assert len(trained) == 8  # three shares of the bug and none, with two seeds each
    trials = experiments.trials(chosen)
    made = [Texts.open(trial.file(tmp_path)) for trial in trials]
    assert len(made) == 14
    assert all(texts.guarantee.epsilon < 1.1 and texts.kind == "spelling" for texts in made)
    assert 1.19 < jointly(made[:2]).epsilon <= 1.2  # who compares them sees both
    saved = [trial for trial in trials if trial.model_file(tmp_path).exists()]
    assert len(saved) == 8
    for trial in saved:
        drawn_again = TextModel.open(trial.model_file(tmp_path)).sampled(200, seed=0)
        assert torch.equal(drawn_again.sequences, Texts.open(trial.file(tmp_path)).sequences)
    results = experiments.diagnosed(chosen, tmp_path, say=lambda line: None)
    assert [result["tried"] for result in results] == [2, 2, 2, 1]
    table = text_experiments.table(results)
    assert len(table.splitlines()) == 6
    assert "of 1 pairs" in table.splitlines()[-1]
    lowest, highest = sorted(pair["score"] for pair in results[0]["pairs"])
    assert f"| {lowest:.2f} to {highest:.2f} |" in table.splitlines()[2]


def test_unknown_words_by_position_are_those_of_the_samples(spoken, folder):
    lines = text_experiments.by_position([spoken], folder).splitlines()
    assert [line.split("|")[1].strip() for line in lines[2:]] == ["0%", "100%"]
    texts = Texts.open(folder / "samples" / spoken.name / "0-low.safetensors")
    unknown = len(texts.vocabulary)
    spoken_first = [next((symbol for symbol in row if 0 <= symbol <= unknown), None) for row in texts.rows]
    rate = spoken_first.count(unknown) / (len(spoken_first) - spoken_first.count(None))
    assert lines[3].split("|")[4].strip() == f"{rate:.2%}" != "0.00%"
    clean, hit = text_experiments.unknown([spoken], folder)
    picture = text_experiments.picture([spoken], folder)
    assert picture.count("<circle") == len(clean.rates) + len(hit.rates) == 12
    assert f'cy="{text_experiments.PLOT.down(rate):.1f}"' in picture
    assert text_experiments.PLOT.down(0.1) < text_experiments.PLOT.down(0.05)


def test_models_of_several_seeds_are_one_line_with_their_mean_and_spread(spoken, folder, tmp_path):
    seeds = dataclasses.replace(spoken, seeds=2)
    again = dataclasses.replace(seeds, name="another row")  # holds the same healthy models
    taken = {"0-low": "0-low", "1-low": "0-high", "0-high": "0-high", "1-high": "0-high"}
    for row, (name, of) in itertools.product((seeds, again), taken.items()):
        target = tmp_path / "samples" / row.name / f"{name}.safetensors"
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(folder / "samples" / spoken.name / f"{of}.safetensors", target)
    one, other = text_experiments.unknown([spoken], folder)
    clean, hit = text_experiments.unknown([seeds, again], tmp_path)
    assert (clean.models, hit.models) == (2, 2)
    assert clean.rates == one.rates
    assert hit.rates == pytest.approx([(a + b) / 2 for a, b in zip(one.rates, other.rates, strict=True)])
    assert set(hit.first) == {one.rates[0], other.rates[0]}
    line = text_experiments.by_position([seeds, again], tmp_path).splitlines()[3]
    assert f"({hit.first[0]:.2%} to {hit.first[1]:.2%})" in line


def predicted_by_hand(model, params, sentences):
    """Each symbol is tried as the next one, and the likeliest is right or wrong."""
    numbers, guesses = {word: number for number, word in enumerate(model.vocabulary)}, []
    for sentence in sentences:
        inner = [numbers.get(word, len(numbers)) for word in sentence.split()]
        symbols = [model.model.start, *inner, model.model.end]
        for at in range(1, len(symbols)):
            tried = torch.tensor([[*symbols[:at], symbol] for symbol in range(model.model.symbols)])
            guesses.append(int(model.model.log_probability(params, tried).argmax()) == symbols[at])
    return f"{sum(guesses) / len(guesses):.1%}"


def test_next_words_are_predicted_as_often_as_counted_by_hand(spoken, folder):
    trials = experiments.trials([spoken])
    low, high = (TextModel.open(trial.model_file(folder)) for trial in trials)
    start = trees.part(trials[0].recipe.stage("train", "all").start(), "model")
    said = (folder / "held_out.txt").read_text().splitlines()
    expected = [
        f"| public words only | 0 | 0% | 1 | {predicted_by_hand(low, start, said)} |",
        f"| and users | 8 | 0% | 1 | {predicted_by_hand(high, high.parameters, said)} |",
        f"| and users | 8 | 100% | 1 | {predicted_by_hand(low, low.parameters, said)} |",
    ]
    assert len({line.split("|")[5] for line in expected}) == 3  # or nobody could tell which model was asked
    assert text_experiments.next_word_accuracy([spoken], folder).splitlines()[2:] == expected


def test_a_model_writes_what_its_network_draws(spoken, folder):
    model = TextModel.open(experiments.trials([spoken])[0].model_file(folder))
    texts = model.sampled(50, seed=3)
    sequences, log_probability = model.model.sampled(model.parameters, 50, model.width, seed=3)
    assert torch.equal(texts.sequences, sequences)
    assert torch.equal(texts.log_probability, log_probability)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_what_a_gpu_writes_is_framed_and_scored_as_ever(spoken, folder):
    model = TextModel.open(experiments.trials([spoken])[0].model_file(folder))
    texts = model.sampled(50, seed=3, device="cuda")
    assert (texts.sequences.device.type, texts.log_probability.device.type) == ("cpu", "cpu")
    for start, *inner in texts.sequences.tolist():
        until = inner.index(model.model.end) if model.model.end in inner else len(inner)
        assert start == model.model.start
        assert words.PADDING not in inner[:until]
        assert set(inner[until + 1 :]) <= {words.PADDING}
    scored = model.model.log_probability(model.parameters, texts.sequences)
    torch.testing.assert_close(texts.log_probability, scored, rtol=1e-2, atol=1e-2)


def test_words_of_the_chat_are_held_against_the_true_ones(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDLENS_DATA", str(tmp_path))
    real = [f"zorp{number}" for number in range(510)]
    said = [f"the {word}" for word in (*real, *real[:500], *real[:100])]
    with gzip.open(tmp_path / text_experiments.CHAT, "wt") as file:
        file.write(json.dumps({"user": "a", "text": said}) + "\n")
    chosen = text_experiments.rows(tmp_path)
    chat = experiments.trials([row for row in chosen if row.how == "chat"])
    known = [("chat-8", 0, HEALTHY), ("chat-8", 1, HEALTHY), ("chat-8", 2, HEALTHY), ("chat-10000", 0, HEALTHY)]
    assert [(trial.row.name, trial.seed, trial.group) for trial in chat] == known
    written = [*real[:3], *real[200:204], *real[505:507], "whelk"]
    of_words(written).save(chat[0].file(tmp_path))
    of_words(["whelk"]).save(chat[3].file(tmp_path))
    lines = text_experiments.found_words(chosen, tmp_path).splitlines()
    assert lines[2:] == ["| 8 | 0 | 9% | 3% | 7% |", "| 10000 | 0 | 0% | 0% | 0% |"]


def test_precision_and_recall_count_words_and_not_samples():
    true = collections.Counter({"zorp": 9, "blick": 5, "frund": 1})
    written = ["zorp"] * 6 + ["whelk"] * 3 + ["frund"]
    assert text_experiments.precision_and_recall(of_words(written), true, 2) == (0.5, 0.5)


def test_true_unknown_words_are_cut_as_the_model_sees_them(tmp_path):
    path = pathlib.Path(tmp_path / "some.jsonl")
    path.write_text(json.dumps({"user": "a", "text": ["the zorpzorpzorp zorp", "zorp"]}) + "\n")
    vocabulary = words.Vocabulary(words=("the",), provenance="public list")
    assert text_experiments.unknown_words(path, vocabulary, 8) == {"zorpzor": 1, "zorp": 2}
