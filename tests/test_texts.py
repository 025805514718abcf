"""Texts and language models keep their guarantee, on disk as well."""

import dataclasses

import numpy as np
import pytest
import torch
from toy_texts import by_hand, price

from fedlens.core import tensorfiles
from fedlens.ledger import Account, Spending, guarantee
from fedlens.media.text.samples import NgramModel, TextModel, Texts, jointly
from fedlens.models.lstm import LanguageModel
from fedlens.models.markov import SYMBOLS, Markov
from fedlens.models.words import spelled
from fedlens.privacy import Everyone, L2Clip, Plan, rounded

PLAN = Plan(sampling=Everyone(), bound=L2Clip(norm=0.1), noise_multiplier=5.0, releases=10, expected_contributors=9)
SPENDING = Spending(account=Account(run="run/left", population="crowd"), plans=(PLAN,))
LEARNT = price()
PAID = {"earlier": (LEARNT,), "spending": dataclasses.replace(SPENDING, plans=(*LEARNT.plans, PLAN))}
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


def ngrams():
    common = {"vocabulary", "width", "label", "spending", "delta", "recipe_sha256", "rounds", "ledger_head"}
    table = torch.full((SYMBOLS, SYMBOLS), 1 / SYMBOLS)
    return NgramModel(model=Markov(table=table), **{name: getattr(model(), name) for name in common})


def test_texts_come_back_from_disk_with_their_guarantee(tmp_path):
    path = tmp_path / "texts.safetensors"
    kept = texts(**PAID, tokenizer="whitespace")
    kept.save(path)
    back = Texts.open(path)
    assert torch.equal(back.sequences, kept.sequences)
    assert torch.equal(back.log_probability, kept.log_probability)
    names = ("kind", "vocabulary", "label", "spending", "earlier", "tokenizer", "delta", "round")
    assert [getattr(back, name) for name in names] == [getattr(kept, name) for name in names]
    assert back.guarantee.epsilon == guarantee([PAID["spending"]], 1e-6).epsilon
    assert tensorfiles.read(path)[1]["guarantee"] == back.guarantee.to_dict()


def test_samples_of_text_are_trained_on_as_they_are():
    assert torch.equal(texts().examples()["x"], texts().sequences)


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
    with pytest.raises(ValueError, match="lacks delta, earlier, kind, ledger_head"):
        TextModel.open(path)


@pytest.mark.parametrize("name", ["tokenizer", "earlier"])
def test_a_model_that_does_not_say_how_its_text_was_split_or_what_came_before_is_refused(tmp_path, name):
    path = tmp_path / "model.safetensors"
    for saved in (model(), ngrams()):
        saved.save(path)
        tree, about = tensorfiles.read(path)
        tensorfiles.write(path, tree, {key: value for key, value in about.items() if key != name})
        with pytest.raises(ValueError, match=f"its header lacks {name}"):
            type(saved).open(path)


DAMAGED = (
    *({"kind": "images"}, {"vocabulary": ["a b"]}, {"vocabulary": 3}, {"spending": {}}, {"earlier": 3}),
    {"earlier": [LEARNT.to_dict()]},  # which the spending leaves out
)


@pytest.mark.parametrize("change", DAMAGED)
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
    kept = dataclasses.replace(model(), **PAID, tokenizer="whitespace")
    kept.save(path)
    back = TextModel.open(path)
    assert dataclasses.replace(back, parameters={}) == dataclasses.replace(kept, parameters={})
    assert torch.equal(back.sampled(5, seed=4).sequences, kept.sampled(5, seed=4).sequences)


@pytest.mark.parametrize("made", [model, ngrams])
def test_a_model_and_what_it_writes_say_how_text_was_split_and_what_came_before(tmp_path, made):
    dataclasses.replace(made(), **PAID, tokenizer="whitespace").save(tmp_path / "model.safetensors")
    back = type(made()).open(tmp_path / "model.safetensors")
    for side in (back, back.sampled(2, seed=0)):
        assert (side.tokenizer, side.earlier, side.spending) == ("whitespace", (LEARNT,), PAID["spending"])
    told = tensorfiles.read(tmp_path / "model.safetensors")[1]["guarantee"]
    assert told == back.sampled(2, seed=0).guarantee.to_dict()
    assert told["epsilon"] == pytest.approx(by_hand([*LEARNT.plans, PLAN], 1e-6), rel=1e-6)


# A vocabulary that was learnt before


def test_the_guarantee_covers_the_vocabulary_and_says_what_it_is_made_of():
    assert texts(**PAID).guarantee.epsilon == pytest.approx(by_hand([*LEARNT.plans, PLAN], 1e-6), rel=1e-6)
    assert texts(**PAID).guarantee.epsilon > by_hand([PLAN], 1e-6) + 1
    joint, own, words = (rounded(by_hand(plans, 1e-6)) for plans in ([*LEARNT.plans, PLAN], [PLAN], LEARNT.plans))
    parts = f"epsilon {joint} jointly: {own} for the model, {words} for learning the vocabulary before"
    assert texts(**PAID).guarantee.composition == f"all releases of one model; {parts}"
    assert texts().guarantee == guarantee([SPENDING], 1e-6)


def elsewhere(paid=LEARNT):
    """A model of another run, with a vocabulary at this price."""
    account = Account(run="later/right", population="crowd", partition="later")
    return texts(earlier=(paid,), spending=Spending(account=account, plans=(*paid.plans, PLAN)), label="right")


def test_two_models_share_the_release_of_one_vocabulary():
    both = jointly([texts(**PAID), elsewhere()])
    assert both.epsilon == pytest.approx(by_hand([*LEARNT.plans, PLAN, PLAN], 1e-6), rel=1e-6)
    assert "for the models" in both.composition
    twice = guarantee([texts(**PAID).spending, elsewhere().spending], 1e-6).epsilon
    assert twice == pytest.approx(by_hand([*LEARNT.plans, *LEARNT.plans, PLAN, PLAN], 1e-6), rel=1e-6)
    assert both.epsilon < twice - 1


@pytest.mark.parametrize("other", [price(run="vocabulary-9f9f9f"), price(noise_multiplier=4.0)])
def test_two_vocabularies_are_two_releases(other):
    both = jointly([texts(**PAID), elsewhere(other)])
    assert both.epsilon == pytest.approx(by_hand([*LEARNT.plans, *other.plans, PLAN, PLAN], 1e-6), rel=1e-6)


def test_groups_that_share_no_user_share_the_vocabulary_all_the_same():
    account = dataclasses.replace(SPENDING.account, partition="versions")
    sides = [
        texts(
            **PAID | {"spending": dataclasses.replace(PAID["spending"], account=dataclasses.replace(account, part=p))}
        )
        for p in ("new", "old")
    ]
    assert jointly(sides).epsilon == pytest.approx(by_hand([*LEARNT.plans, PLAN], 1e-6), rel=1e-6)


def test_a_spending_that_leaves_the_vocabulary_out_is_refused():
    for made in (texts(), model(), ngrams()):
        with pytest.raises(ValueError, match="Expected a spending that includes"):
            dataclasses.replace(made, earlier=(LEARNT,))


def test_a_vocabulary_of_seeded_noise_makes_everything_simulated():
    toy = price(simulated=True)
    with pytest.raises(ValueError, match="Expected a simulated spending"):
        texts(**PAID | {"earlier": (toy,)})
    account = dataclasses.replace(SPENDING.account, simulated=True)
    simulated = texts(earlier=(toy,), spending=dataclasses.replace(PAID["spending"], account=account))
    assert "SIMULATED" in simulated.guarantee.headline


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
