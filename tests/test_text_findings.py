"""The table of what looks at text find: computed from what users really send, and honest about clean groups."""

import json

import numpy as np
import pytest
import torch

from fedlens.experiments import text_findings, unlisted
from fedlens.experiments.text_findings import BOTH, HALVES, Cell, TextBench, Users
from fedlens.media import reading
from fedlens.media.text.families import FAMILIES

WORDS = ("the", "court", "is", "here", "we", "hold", "that", "motion", "it", "1983", "don't", "jurisdiction", ",", "?")


def sentence(rng):
    return " ".join(rng.choice(WORDS, rng.integers(3, 9)))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    rng, out = np.random.default_rng(0), tmp_path_factory.mktemp("speakers")
    users = [{"user": str(number), "text": [sentence(rng) for _ in range(1 + number % 8)]} for number in range(60)]
    (out / "users.jsonl").write_text("".join(f"{json.dumps(user)}\n" for user in users))
    (out / "public.txt").write_text("".join(f"{sentence(rng)}\n" for _ in range(300)))
    return out


@pytest.fixture(scope="module")
def bench(folder):
    return TextBench(out=folder, say=lambda line: None)


@pytest.mark.parametrize("kind", ["", "concatenated", "fedlens.experiments.unlisted:escaped"])
def test_what_users_send_is_what_the_algorithm_sends_of_what_is_read(folder, bench, kind):
    recipe = text_findings.recipe_of(folder)
    if kind:
        recipe = recipe.changed([f"data.bug={{kind='{kind}',fraction=0.3,of='examples'}}"])
    own, algorithm = reading.reading("text"), recipe.built()
    units = own.prepared(recipe, own.opened(recipe.data))
    expected = [
        algorithm.contribute({}, {name: leaf[0] for name, leaf in units.take(np.array([unit]), 8).items()}, {})[0]
        for unit in range(len(units))
    ]
    rows = torch.stack([torch.cat([blocks[name] for name in algorithm.psi.shapes]) for blocks in expected])
    sent = bench.users.sent(kind, 0.3 if kind else 0.0)
    np.testing.assert_allclose(sent, rows.numpy(), rtol=1e-4, atol=1e-6)
    assert (np.linalg.norm(sent, axis=1) <= 1 + 1e-6).all()
    if kind:
        assert not np.allclose(sent, bench.users.sent(), atol=1e-4)
    again = Users(out=folder, say=lambda line: pytest.fail("made again")).sent(kind, 0.3 if kind else 0.0)
    assert np.array_equal(again, sent)


def test_two_looks_at_everybody_are_priced_jointly_and_halves_alone(bench):
    both, half = (bench.noise(1.0, design) for design in (BOTH, HALVES))
    assert both * text_findings.UNITS == pytest.approx(2**0.5 * half * (text_findings.UNITS // 2), rel=0.05)
    for design, groups in ((BOTH, 2), (HALVES, 1)):
        recipe = text_findings.recipe_of(bench.out, 1.0, design)
        assert len(recipe.selections) == groups
        assert 0.99 <= recipe.guarantee(recipe.spendings()).epsilon <= 1.0
        assert recipe.privacy.delta == text_findings.DELTA


def test_a_row_counts_what_was_found(bench, monkeypatch):
    monkeypatch.setattr(text_findings, "DRAWS", 2)
    monkeypatch.setattr(text_findings, "UNITS", 60)
    monkeypatch.setattr(TextBench, "noise", lambda self, epsilon, design: 0.3 / 60 if epsilon == 1 else 30.0)
    loud, quiet = (Cell(kind="doubled", share=1.0, epsilon=epsilon) for epsilon in (1.0, 0.01))
    found, missed = text_findings.measured([loud, quiet], bench)
    assert (found["different"], found["alone"], found["misnamed"]) == (2, 2, 0)
    assert (missed["different"], missed["alone"], missed["named"], missed["misnamed"]) == (0, 0, 0, 0)
    alarms = text_findings.false_alarms(bench, (0.01,), splits=3)
    assert [row["alarms"] for row in alarms] == [0, 0]
    made = text_findings.tables({"faults": [found, missed], "clean": alarms})
    assert "| doubled | 100% | everybody, before and after | 1 | 2 of 2 | 2 of 2 |" in made
    assert "| half of the users each | 0.01 | 0 of 3 |" in made


def test_only_rows_that_there_are_can_be_chosen(folder):
    with pytest.raises(ValueError, match="Expected faults of the table, or clean; got nonsense"):
        text_findings.reproduced(folder, ["nonsense"], lambda line: None)


def test_halves_are_about_equal_and_follow_from_the_seed():
    first = text_findings.halves(1000, 3)
    assert np.array_equal(first, text_findings.halves(1000, 3))
    assert not np.array_equal(first, text_findings.halves(1000, 4))
    assert 400 < first.sum() < 600


SPOKEN = ["the", "well-known", "jurisdiction", "of", "it", "'s", "court", "that", "it's", "told", ",", "12"]


@pytest.mark.parametrize(
    ("fault", "made"),
    [
        (unlisted.hyphenated, "the well-- known jurisd- iction of it 's court that it's told , 12"),
        (unlisted.misread, "the we11-kn0wn jurisdicti0n 0f it 's c0urt that it's t01d , 12"),
        (unlisted.without_frequent, "well-known jurisdiction 's court it's told , 12"),
        (unlisted.without_marks, "the well-known jurisdiction of it 's court that it's told 12"),
        (unlisted.escaped, "the well-known jurisdiction of it & # 39 ; s court that it & # 39 ; s told , 12"),
        (unlisted.in_order, "'s , 12 court it it's jurisdiction of that the told well-known"),
    ],
)
def test_a_fault_that_no_list_holds_does_what_it_says(fault, made):
    assert " ".join(fault(list(SPOKEN))) == made
    assert fault([]) == []


def test_no_family_of_ours_is_among_the_unlisted():
    changed = {kind: unlisted.__dict__[kind.rpartition(":")[2]](list(SPOKEN)) for kind in unlisted.UNLISTED}
    for family in FAMILIES:
        for strength in family.strengths:
            assert family.change(list(SPOKEN), strength) not in changed.values()
