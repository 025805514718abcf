"""Texts and language models keep their guarantee, on disk as well."""

import dataclasses

import numpy as np
import pytest
import torch

from fedlens import tensorfiles
from fedlens.inspection.texts import TextModel, Texts
from fedlens.ledger import Account, Spending, guarantee
from fedlens.models.lstm import LanguageModel
from fedlens.privacy import Everyone, L2Clip, Plan
from fedlens.words import spelled

PLAN = Plan(sampling=Everyone(), bound=L2Clip(norm=0.1), noise_multiplier=5.0, releases=10, expected_contributors=9)
SPENDING = Spending(account=Account(run="run/left", population="crowd"), plans=(PLAN,))
TINY = LanguageModel(symbols=258, start=256, end=257, embedding=3, units=4, projection=2)


def texts(words=("regex", "well ,", "regex"), width=8, **changes):
    rows = torch.tensor(np.stack([spelled(word, width) for word in words]))
    plain = Texts(
        kind="spelling",
        sequences=rows,
        log_probability=torch.full((len(rows),), -2.0),
        vocabulary=("the", "café"),
        label="left",
        spending=SPENDING,
        delta=1e-6,
        round=3,
    )
    return dataclasses.replace(plain, **changes)


def model():
    return TextModel(
        kind="spelling",
        model=TINY,
        parameters=TINY.init(1),
        vocabulary=("the", "café"),
        width=6,
        label="left",
        spending=SPENDING,
        delta=1e-6,
        recipe_sha256="ab",
        rounds=7,
        ledger_head=(2, "cd"),
    )


def test_texts_come_back_from_disk_with_their_guarantee(tmp_path):
    path = tmp_path / "texts.safetensors"
    texts().save(path)
    back = Texts.open(path)
    assert torch.equal(back.sequences, texts().sequences)
    assert torch.equal(back.log_probability, texts().log_probability)
    names = ("kind", "vocabulary", "label", "spending", "delta", "round")
    assert [getattr(back, name) for name in names] == [getattr(texts(), name) for name in names]
    assert back.guarantee == guarantee([SPENDING], 1e-6)
    assert tensorfiles.read(path)[1]["guarantee"] == back.guarantee.to_dict()


def test_words_are_counted_with_those_that_were_cut():
    assert texts(("regex", "regex", "incomprehensible")).words == {("regex", True): 2, ("incompr", False): 1}
    assert texts(("regex", "incomprehensible")).ended.tolist() == [True, False]


def test_sentences_end_with_the_last_symbol_of_their_vocabulary():
    rows = torch.tensor([[3, 0, 4, -1], [3, 0, 2, 1]])
    assert texts(kind="words", sequences=rows, log_probability=torch.zeros(2)).ended.tolist() == [True, False]


@pytest.mark.parametrize(
    "changes",
    [
        {"kind": "images"},
        {"sequences": torch.full((3, 8), 258)},
        {"sequences": torch.full((3, 8), -2)},
        {"sequences": torch.zeros(3, 8)},
        {"sequences": torch.zeros(0, 8, dtype=torch.int16), "log_probability": torch.zeros(0)},
        {"log_probability": torch.zeros(2)},
        {"kind": "words"},  # whose vocabulary has no number 256
    ],
)
def test_texts_that_cannot_be_are_refused(changes):
    with pytest.raises(ValueError, match="Expected"):
        texts(**changes)


def test_a_file_without_a_guarantee_is_refused(tmp_path):
    path = tmp_path / "bare.safetensors"
    tensorfiles.write(path, {"sequences": torch.zeros(1, 4, dtype=torch.int16)}, {"label": "left"})
    with pytest.raises(ValueError, match="Expected texts with their guarantee in bare"):
        Texts.open(path)
    with pytest.raises(ValueError, match="lacks delta, kind, ledger_head"):
        TextModel.open(path)


@pytest.mark.parametrize("change", [{"kind": "images"}, {"vocabulary": ["a b"]}, {"vocabulary": 3}, {"spending": {}}])
def test_a_damaged_header_is_refused(tmp_path, change):
    path = tmp_path / "texts.safetensors"
    for saved, kind in ((texts(), Texts), (model(), TextModel)):
        saved.save(path)
        tree, about = tensorfiles.read(path)
        tensorfiles.write(path, tree, about | change)
        with pytest.raises(ValueError, match="damaged"):
            kind.open(path)


def test_a_model_comes_back_from_disk_and_writes_the_same(tmp_path):
    path = tmp_path / "model.safetensors"
    model().save(path)
    back = TextModel.open(path)
    assert dataclasses.replace(back, parameters={}) == dataclasses.replace(model(), parameters={})
    assert torch.equal(back.sampled(5, seed=4).sequences, model().sampled(5, seed=4).sequences)


def test_a_model_with_other_weights_is_refused(tmp_path):
    path = tmp_path / "model.safetensors"
    dataclasses.replace(model(), parameters={"odd": torch.zeros(2)}).save(path)
    with pytest.raises(ValueError, match="some are missing or misshapen"):
        TextModel.open(path)


def test_what_a_model_writes_carries_its_guarantee_and_its_probability():
    drawn = model().sampled(40, seed=2)
    assert drawn.sequences.shape == (40, 6)
    assert (drawn.spending, drawn.delta, drawn.label, drawn.round) == (SPENDING, 1e-6, "left", 7)
    expected = TINY.log_probability(model().parameters, drawn.sequences)
    assert torch.allclose(drawn.log_probability, expected, atol=1e-5)
    assert drawn.log_probability.std() > 0
