"""The table of text: users and donors split by their own names, equal models trained once, honest counts."""

import collections
import dataclasses
import gzip
import hashlib
import json
import pathlib
import random

import pytest
import test_wordings

from fedlens import experiments, text_experiments, words
from fedlens.experiments import HEALTHY, SUSPICIOUS
from fedlens.inspection import Texts

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


@pytest.fixture
def rows(source, tmp_path):
    text_experiments.split(source, tmp_path)
    made = text_experiments.rows(tmp_path)
    return [dataclasses.replace(row, sets=(*row.sets, *TINY), seeds=2) for row in made]


def drawn(name):
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:7], "big") / 2**56


def held(path):
    return {json.loads(line)["user"] for line in path.read_text().splitlines()}


def test_donors_and_users_share_nobody_and_each_is_sorted_by_the_own_name(source, tmp_path):
    text_experiments.split(source, tmp_path / "all")
    with gzip.open(source, "rt") as file:
        lines = file.readlines()
    with gzip.open(tmp_path / "fewer.gz", "wt") as file:
        file.writelines(lines[7:])
    text_experiments.split(tmp_path / "fewer.gz", tmp_path / "fewer")
    everybody = {json.loads(line)["user"] for line in lines}
    there, fewer = (held(tmp_path / name / "users.jsonl") for name in ("all", "fewer"))
    assert 40 < len(there) < 60
    assert fewer == there - {json.loads(line)["user"] for line in lines[:7]}
    said = {name: (tmp_path / "all" / name).read_text().splitlines() for name in ("public.txt", "held_out.txt")}
    assert sum(map(len, said.values())) == 5 * len(everybody - there)
    assert len(said["held_out.txt"]) == 5 * sum(drawn(name) < text_experiments.HELD_OUT_SHARE for name in everybody) > 0


def test_the_sides_are_the_same_users_with_and_without_the_bug(rows):
    row = rows[0]
    bug, plain = (row.opened(3, side) for side in (SUSPICIOUS, HEALTHY))
    assert (bug.data.bug.fraction, plain.data.bug.fraction) == (0.1, 0.0)
    assert bug.seed == plain.seed == 3
    assert bug.plans == plain.plans


def test_clean_models_are_trained_once_and_every_row_is_told(rows, tmp_path, monkeypatch):
    trained = []
    plain = experiments._train
    monkeypatch.setattr(experiments, "_train", lambda batch, *rest: trained.extend(batch) or plain(batch, *rest))
    chosen = [row for row in rows if row.epsilon == 1.2]
    experiments.trained(chosen, tmp_path, device="cpu", say=lambda line: None)
    assert len(trained) == 8  # three shares of the bug and none, with two seeds each
    made = [Texts.open(trial.file(tmp_path)) for trial in experiments.trials(chosen)]
    assert len(made) == 14
    assert all(texts.guarantee.epsilon <= 1.2 and texts.kind == "spelling" for texts in made)
    results = experiments.diagnosed(chosen, tmp_path, say=lambda line: None)
    assert [result["tried"] for result in results] == [2, 2, 2, 1]
    table = text_experiments.table(results)
    assert len(table.splitlines()) == 6
    assert "of 1 pairs" in table.splitlines()[-1]


def test_unknown_words_by_position_are_those_of_the_samples(rows, tmp_path):
    row = next(row for row in rows if row.how == "words" and row.fraction == 1.0)
    row = dataclasses.replace(row, seeds=1, sets=(*row.sets, "text.projection=4"))
    experiments.trained([row], tmp_path, device="cpu", say=lambda line: None)
    lines = text_experiments.by_position([row], tmp_path).splitlines()
    assert [line.split("|")[1].strip() for line in lines[2:]] == ["0%", "100%"]
    texts = Texts.open(tmp_path / "samples" / row.name / "0-low.safetensors")
    first = texts.sequences[:, 1]
    rate = float((first == len(texts.vocabulary)).float().sum() / (first < len(texts.vocabulary) + 1).float().sum())
    assert f"{rate:.1%}"[:-2] in lines[3]


def test_precision_and_recall_count_words_and_not_samples():
    true = collections.Counter({"zorp": 9, "blick": 5, "frund": 1})
    written = ["zorp"] * 6 + ["whelk"] * 3 + ["frund"]
    assert text_experiments.precision_and_recall(test_wordings.of_words(written), true, 2) == (0.5, 0.5)


def test_true_unknown_words_are_cut_as_the_model_sees_them(tmp_path):
    path = pathlib.Path(tmp_path / "some.jsonl")
    path.write_text(json.dumps({"user": "a", "text": ["the zorpzorpzorp zorp", "zorp"]}) + "\n")
    vocabulary = words.Vocabulary(words=("the",), provenance="public list")
    assert text_experiments.unknown_words(path, vocabulary, 8) == {"zorpzor": 1, "zorp": 2}
