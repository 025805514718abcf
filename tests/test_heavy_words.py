"""Frequent words through the one curator: exact without noise, bounded however loud, and silent about single users."""

import collections
import dataclasses

import numpy as np
import pytest
import torch
import toys
from hypothesis import given
from hypothesis import strategies as st

from fedlens.algorithms.heavy_words import HeavyWords
from fedlens.core import trees
from fedlens.core.randomness import Randomness
from fedlens.curators.contributions import one_by_one, vectorised
from fedlens.curators.engine import Engine
from fedlens.data.population import Population
from fedlens.ledger import Ledger
from fedlens.models.words import spelled
from fedlens.privacy import Plan

WIDTH = 10
SMALL = HeavyWords(noise=0.0, width=WIDTH, most=40, examples_per_unit=6)
LETTERS = tuple(b"abcdefghijklmnopqrstuvwxyz ")


def rows(words: list[str], width: int = WIDTH) -> np.ndarray:
    return np.array([spelled(word, width) for word in words], dtype=np.int16).reshape(-1, width)


def speakers(users: list[list[str]]) -> Population:
    words = [word for own in users for word in own]
    return Population.from_arrays("speakers", {"x": rows(words)}, np.array([len(own) for own in users]))


def unit(words: list[str]) -> trees.Tree:
    return {"x": torch.from_numpy(rows(words)), "mask": torch.ones(len(words))}


@dataclasses.dataclass
class Exact:
    """A curator without noise, in plain Python."""

    users: list[list[str]]
    remaining: int = WIDTH

    def noisy_mean(self, contribute, message):
        self.remaining -= 1
        sent = [contribute(message, unit(own), {})[0] for own in self.users]
        return {name: sum(tree[name] for tree in sent) / len(sent) for name in sent[0]}


def last(algorithm: HeavyWords, curator) -> trees.Tree:
    return [algorithm.start(), *algorithm.run(curator, algorithm.start())][-1]


words = st.text("abé ", min_size=1, max_size=4)


@given(st.lists(words, min_size=1, max_size=12))
def test_without_noise_the_shares_are_exact(said: list[str]) -> None:
    """Every user has one word, so that nobody is loud."""
    algorithm = dataclasses.replace(SMALL, first_marks=1.0)
    found = algorithm.result(last(algorithm, Exact([[word] for word in said])))
    exact = {word: count / len(said) for word, count in collections.Counter(said).items()}
    assert dict(found) == pytest.approx(exact, rel=1e-4)
    assert [exact[word] for word, _ in found] == sorted(exact.values(), reverse=True)


@given(st.lists(st.lists(words, min_size=1, max_size=6), min_size=1, max_size=6))
def test_without_noise_every_word_comes_out_once(users: list[list[str]]) -> None:
    found = [word for word, _ in SMALL.result(last(SMALL, Exact(users)))]
    assert len(found) == len(set(found))
    assert set(found) == {word for own in users for word in own}


def test_only_the_most_frequent_prefixes_are_followed() -> None:
    users = [["aa"]] * 3 + [["bb"]] * 2 + [["cc"]]
    narrow = dataclasses.replace(SMALL, most=2, first_marks=1.0)
    assert [word for word, _ in narrow.result(last(narrow, Exact(users)))] == ["aa", "bb"]


def test_what_cannot_come_out() -> None:
    """Bytes outside of the alphabet, words that are cut, and words deeper than the plan has releases."""
    users = [["fine"], ["naïve"], ["A"], ["abcdefghijklm"], ["abcdefgh"], ["a b"]]
    plain = dataclasses.replace(SMALL, alphabet=LETTERS)
    assert {word for word, _ in plain.result(last(plain, Exact(users)))} == {"fine", "abcdefgh", "a b"}
    assert {word for word, _ in plain.result(last(plain, Exact(users, remaining=5)))} == {"fine", "a b"}


LOUD = [
    ["a"] * 6,
    [chr(97 + n) for n in range(26)],
    [chr(97 + n) + chr(97 + m) for n in range(26) for m in range(8)],
    ["abcdefghijkl"] * 3,
    [""],
]


@pytest.mark.parametrize("own", LOUD, ids=len)
def test_nobody_sends_more_than_the_bound(own: list[str]) -> None:
    people = [["a", "b"], ["ab"], own]
    algorithm = dataclasses.replace(SMALL, most=300, first_marks=1.0)
    states = [algorithm.start(), *algorithm.run(Exact(people), algorithm.start())]
    norms = [
        trees.norm(algorithm.contribute(algorithm.message(state), unit(own), {})[0]).item() for state in states[:-1]
    ]
    assert max(norms) <= 1 + 1e-6
    assert norms[0] == pytest.approx(1.0)  # also a word that is empty or too long counts in full


@pytest.mark.parametrize("x", [-32768, -2, 256, 258, 32767])
def test_rows_that_are_no_words_are_harmless(x: int) -> None:
    hostile = {"x": torch.full((6, WIDTH), x, dtype=torch.int16), "mask": torch.full((6,), 1e9)}
    hostile["x"][:3, 0] = 256
    sent, _ = SMALL.contribute(SMALL.message(SMALL.start()), hostile, {})
    assert trees.norm(sent) <= 1
    assert sent["marks"].isfinite().all()


def test_users_without_words_send_nothing() -> None:
    blank = speakers([["a"]]).blank(6)
    assert trees.norm(SMALL.contribute(SMALL.message(SMALL.start()), blank, {})[0]) == 0
    masked = {"x": torch.from_numpy(rows(["a", "b"])), "mask": torch.tensor([1.0, 0.0])}
    assert int((SMALL.contribute(SMALL.message(SMALL.start()), masked, {})[0]["marks"] > 0).sum()) == 1


def test_vectorised_equals_one_by_one() -> None:
    users = [["a", "ab", "abc"], ["b", "", "é"], ["ab", "ab", "zz"]]
    examples, shape = trees.stacked([unit(own) for own in users]), {"marks": torch.zeros(SMALL.most, SMALL.columns)}
    for state in [SMALL.start(), *SMALL.run(Exact(users), SMALL.start())][:-1]:
        fast, slow = (
            run(SMALL.contribute, SMALL.message(state), examples, {}, shape) for run in (vectorised, one_by_one)
        )
        assert torch.equal(fast[0]["marks"], slow[0]["marks"])
        assert fast[0]["marks"].sum() > 0


def test_every_depth_asks_with_the_same_shapes() -> None:
    states = [SMALL.start(), *SMALL.run(Exact([["abc", "abd"], ["b"]]), SMALL.start())]
    shapes = [{name: (leaf.shape, leaf.dtype) for name, leaf in SMALL.message(state).items()} for state in states]
    assert len(states) == 5
    assert all(shape == shapes[0] for shape in shapes)


# At real noise

COMMON, USERS = ["the", "court", "it is"], 300


def plan(epsilon: float = 8.0) -> Plan:
    return toys.plan(8, 1.0, USERS).calibrated(epsilon, 1e-6)


def private(promised: Plan, **changes) -> HeavyWords:
    noise = promised.stddev / promised.expected_contributors
    return dataclasses.replace(SMALL, noise=noise, alphabet=LETTERS, first_marks=4.0, **changes)


@pytest.fixture(scope="module")
def people() -> Population:
    """Everybody has the common words, every fourth a rarer one, and each a secret of its own."""
    rng = np.random.default_rng(0)
    secrets = ["".join(rng.choice(list("abcdefghij"), 6)) for _ in range(USERS)]
    return speakers([[*COMMON, secret, *(["motion"] if n % 4 == 0 else [])] for n, secret in enumerate(secrets)])


def test_frequent_words_come_out_and_single_ones_do_not(curator_of, people) -> None:
    algorithm, ledger = private(plan()), Ledger()
    curator = curator_of(people, plan(), ledger=ledger, engine=Engine(chunk=64), examples_per_unit=6)
    state = last(algorithm, curator)
    found = dict(algorithm.result(state))
    assert found.keys() == {*COMMON, "motion"}
    assert all(found[word] == pytest.approx(1.0, abs=0.15) for word in COMMON)
    assert found["motion"] == pytest.approx(0.25, abs=0.1)
    assert curator.charged == int(state["round"]) == 7  # one for each byte of "motion", and one for its END
    vocabulary = algorithm.vocabulary(state, "epsilon 8 at delta 1e-06")
    assert set(vocabulary.words) == {"the", "court", "motion"}  # a vocabulary holds no spaces
    assert vocabulary.words[-1] == "motion"
    assert vocabulary.provenance == "charged release of frequent words: epsilon 8 at delta 1e-06"


def test_a_word_of_one_user_stays_with_that_user(curator_of, people) -> None:
    """At most one cell in ten releases is expected to come through by noise alone, and no secret is one cell."""
    promised, came_out = plan(), []
    truth = {*COMMON, "motion"}
    for seed in range(10):
        curator = curator_of(
            people, promised, randomness=Randomness.seeded(seed), engine=Engine(chunk=64), examples_per_unit=6
        )
        found = private(promised).result(last(private(promised), curator))
        came_out += [word for word, _ in found if word not in truth]
    assert len(came_out) <= 10
    assert not any(len(word) == 6 for word in came_out)


def test_noise_alone_gives_no_words(curator_of) -> None:
    nobody, promised = speakers([[]] * USERS), plan()
    curator = curator_of(nobody, promised, examples_per_unit=6)
    assert private(promised).result(last(private(promised), curator)) == []
    assert curator.remaining > 0  # what is not needed is not spent


def test_a_run_resumes_from_every_state(curator_of, people) -> None:
    algorithm, options = private(plan()), {"engine": Engine(chunk=64), "examples_per_unit": 6}
    states = [algorithm.start(), *algorithm.run(curator_of(people, plan(), **options), algorithm.start())]
    for position, state in enumerate(states[:-1]):
        *_, end = algorithm.run(curator_of(people, plan(), position=position, **options), state)
        assert all(torch.equal(end[name], states[-1][name]) for name in end)


def test_generated_bytes_that_are_no_text_are_left_out_of_a_vocabulary() -> None:
    state = SMALL.start()
    state["words"] = torch.from_numpy(np.array([[256, 195, *[-1] * 8], [256, 97, *[-1] * 8], [256, *[-1] * 9]]))
    state["shares"] = torch.tensor([0.3, 0.2, 0.1])
    assert SMALL.vocabulary(state, "a test").words == ("a",)


@pytest.mark.parametrize(
    "wrong",
    [
        {"noise": -1.0},
        {"noise": float("nan")},
        {"width": 2},
        {"most": 0},
        {"first_marks": 0.5},
        {"spurious": 0.0},
        {"spurious": 1.0},
        {"alphabet": ()},
        {"alphabet": (97, 97)},
        {"alphabet": (256,)},
    ],
)
def test_settings_that_make_no_sense_are_refused(wrong) -> None:
    with pytest.raises(ValueError, match="Expected"):
        dataclasses.replace(SMALL, **wrong)
