"""The one-shot baseline: exact counts without noise, bounded users, and a model of words worth looking at."""

import collections
import dataclasses
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedlens.algorithms.ngrams import Ngrams
from fedlens.core import trees
from fedlens.curators.contributions import one_by_one, vectorised
from fedlens.curators.engine import Engine
from fedlens.data.population import Population
from fedlens.models.markov import EDGE, SIGNS, SYMBOLS, Markov
from fedlens.models.words import SPELLING_END, spelled, unspelled
from fedlens.privacy import Everyone, L2Clip, Plan

WIDTH = 12
EXACT = Ngrams(noise=0.0)
texts = st.text("abzA7é #'", max_size=6)


def unit(words: list[str]) -> trees.Tree:
    x = np.array([spelled(word, WIDTH) for word in words], dtype=np.int16).reshape(-1, WIDTH)
    return {"x": torch.from_numpy(x), "mask": torch.ones(len(words))}


def shown(word: str) -> str:
    """What the alphabet shows of a word, in plain Python."""
    kinds = {"A": "A", "7": "0", "é": "\ufffd\ufffd", "#": "*"}
    return "".join(kinds.get(sign, sign) for sign in word)


def grams(words: list[str], order: int) -> collections.Counter:
    """The n-grams of whole words, in plain Python."""
    found: collections.Counter = collections.Counter()
    for word in words:
        signs = [EDGE] * (order - 1) + [SIGNS.index(sign) for sign in shown(word)][: WIDTH - 1]
        signs += [EDGE] if len(shown(word)) <= WIDTH - 2 else []
        found.update(tuple(signs[at : at + order]) for at in range(len(signs) - order + 1))
    return found


class Exact:
    """A curator without noise, in plain Python."""

    remaining = 1

    def __init__(self, users: list[list[str]]) -> None:
        self.users = users

    def noisy_mean(self, contribute, message):
        sent = [contribute(message, unit(own), {})[0]["counts"] for own in self.users]
        return {"counts": torch.stack(sent).mean(0)}


def sent(algorithm: Ngrams, examples: trees.Tree) -> torch.Tensor:
    """What a user sends when asked: the curator is a stand-in that lets one contribution through."""

    class Stub:
        remaining = 1

        def noisy_mean(self, contribute, message):
            return contribute(message, examples, {})[0]

    (state,) = algorithm.run(Stub(), algorithm.start())
    return state["counts"]


def learnt(users: list[list[str]], algorithm: Ngrams = EXACT) -> Markov:
    (state,) = algorithm.run(Exact(users), algorithm.start())
    return algorithm.result(state)


@pytest.mark.parametrize("order", [2, 3])
@given(words=st.lists(texts, max_size=5))
def test_a_user_sends_its_counts_at_norm_one(order: int, words: list[str]) -> None:
    counts, expected = sent(Ngrams(noise=0.0, order=order), unit(words)), grams(words, order)
    size = math.sqrt(sum(count**2 for count in expected.values())) or 1.0
    assert int((counts > 0).sum()) == len(expected)
    assert all(counts[gram].item() == pytest.approx(count / size, rel=1e-5) for gram, count in expected.items())


@pytest.mark.parametrize("words", [["a"] * 500, ["", "ab"], ["x" * 400] * 9, [chr(n) * 3 for n in range(1, 400)]])
def test_nobody_sends_more_than_the_bound(words: list[str]) -> None:
    assert trees.norm({"counts": sent(EXACT, unit(words))}).item() == pytest.approx(1.0)


@pytest.mark.parametrize("x", [-32768, -1, 0, 256, 258, 32767])
def test_rows_that_are_no_words_are_harmless(x: int) -> None:
    examples = {"x": torch.full((4, WIDTH), x, dtype=torch.int16), "mask": torch.full((4,), 1e9)}
    examples["x"][0, ::3] = -1
    counts = sent(EXACT, examples)
    assert trees.norm({"counts": counts}) <= 1 + 1e-6
    assert counts.isfinite().all()


def test_masked_words_are_not_counted() -> None:
    examples = unit(["ab", "zz"]) | {"mask": torch.tensor([1.0, 0.0])}
    assert torch.equal(sent(EXACT, examples), sent(EXACT, unit(["ab"])))
    assert sent(EXACT, unit(["ab"]) | {"mask": torch.zeros(1)}).sum() == 0


def test_vectorised_equals_one_by_one() -> None:
    examples = trees.stacked([unit(["a", "ab"]), unit(["it is", "é"]), unit(["", "zzz"])])
    message: trees.Tree = {}

    class Stub:
        remaining = 1

        def noisy_mean(self, contribute, asked):
            message.update(asked)
            return {"counts": torch.zeros(1)}

    next(EXACT.run(Stub(), EXACT.start()))
    shape = {"counts": torch.zeros([SYMBOLS] * 3)}
    fast, slow = (run(EXACT.contribute, message, examples, {}, shape)[0]["counts"] for run in (vectorised, one_by_one))
    assert torch.equal(fast, slow)
    assert (fast.flatten(1).sum(1) > 0).all()


@pytest.mark.parametrize("order", [2, 3])
def test_without_noise_probabilities_are_relative_frequencies(order: int) -> None:
    model = learnt([["ab", "ab", "ac", "b"]], Ngrams(noise=0.0, order=order))
    expected = {"ab": 0.5, "ac": 0.25, "b": 0.25}
    found = model.log_probability(list(expected)).exp().tolist()
    assert found == pytest.approx(list(expected.values()), rel=1e-6)


def test_every_row_is_a_distribution() -> None:
    noisy = Ngrams(noise=0.01)
    state = noisy.start() | {"counts": 0.01 * torch.randn([SYMBOLS] * 3, generator=torch.Generator().manual_seed(0))}
    table = noisy.result(state).table
    assert (table >= 0).all()
    assert torch.allclose(table.sum(-1), torch.ones_like(table[..., 0]))
    assert table[EDGE, EDGE, EDGE] == 0
    flat = noisy.result(noisy.start()).table  # of nothing at all: every sign is as likely as every other
    assert flat[0, 0].tolist() == pytest.approx([1 / SYMBOLS] * SYMBOLS)


USERS = [["the", "the", "court", "it is"], ["then", "a", "court"], ["don't", "the"]]


def test_samples_follow_the_model() -> None:
    model = learnt(USERS)
    rows = model.sampled(4000, 14, seed=0)
    drawn = [unspelled(row) for row in rows.numpy()]
    for word, count in collections.Counter(drawn).most_common(5):
        assert count / len(drawn) == pytest.approx(math.exp(model.log_probability([word])), abs=0.03)
    assert torch.equal(rows, model.sampled(4000, 14, seed=0))
    assert not torch.equal(rows, model.sampled(4000, 14, seed=1))
    assert torch.allclose(model.scored(rows), model.log_probability(drawn))  # all of them came to an end


def test_rows_are_as_spelled_ones_and_what_does_not_fit_is_cut() -> None:
    model = learnt([["the", "court", "it is", "né"]])
    for row in model.sampled(300, 5, seed=0):
        word, ended = unspelled(row.numpy()), bool((row == SPELLING_END).any())
        assert len(word) <= 3 if ended else len(word) == 4
        if word.isascii():
            whole = spelled(word if ended else word + "...", 5)
            assert row.tolist() == whole.tolist()
    assert "n\ufffd\ufffd" in {unspelled(row.numpy()) for row in model.sampled(300, 9, seed=0)}


@pytest.mark.parametrize("table", [torch.ones(3, 3), torch.ones(SYMBOLS), torch.ones(SYMBOLS, SYMBOLS), torch.ones(())])
def test_a_table_that_is_none_is_refused(table) -> None:
    with pytest.raises(ValueError, match="Expected"):
        Markov(table=table)


@given(st.lists(texts, max_size=4))
def test_a_word_is_as_likely_as_what_the_alphabet_shows_of_it(words: list[str]) -> None:
    model = learnt(USERS)
    assert torch.equal(model.log_probability(words), model.log_probability(list(map(shown, words))))


# At real noise


def test_one_release_for_everyone(curator_of) -> None:
    users = [["the", "court", "it is"]] * 150 + [["the", "court", "zyx"]]
    columns = {"x": np.concatenate([unit(own)["x"].numpy() for own in users])}
    people = Population.from_arrays("people", columns, np.array([3] * len(users)))
    blank = Plan(sampling=Everyone(), bound=L2Clip(norm=1.0), noise_multiplier=1, releases=1, expected_contributors=150)
    promised = blank.calibrated(4.0, 1e-6)
    algorithm = Ngrams(noise=promised.stddev / promised.expected_contributors, examples_per_unit=3, deviations=4.5)
    curator = curator_of(people, promised, engine=Engine(chunk=32), examples_per_unit=3)
    (state,) = algorithm.run(curator, algorithm.start())
    assert curator.remaining == 0
    assert list(algorithm.run(curator, state)) == []
    model = algorithm.result(state)
    drawn = collections.Counter(unspelled(row) for row in model.sampled(500, 14, seed=0).numpy())
    assert {word for word, _ in drawn.most_common(3)} == {"the", "court", "it is"}
    plain, secret = model.log_probability(["court", "zyx"]).exp().tolist()
    assert plain > 0.1
    assert secret < 1e-3


@pytest.mark.parametrize(
    "wrong", [{"order": 1}, {"order": 4}, {"noise": -0.1}, {"noise": math.inf}, {"deviations": -1}]
)
def test_settings_that_make_no_sense_are_refused(wrong) -> None:
    with pytest.raises(ValueError, match="Expected"):
        dataclasses.replace(EXACT, **wrong)
