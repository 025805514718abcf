"""Sentences become rows of a user's own: whom a planted bug hits, what is kept, and whose code is not trusted."""

import json
import sys
import traceback
import types

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from toy_texts import KNOWN, PAIR, written

from fedlens.data import readers
from fedlens.data.population import DataError, Population
from fedlens.media.text import faults
from fedlens.models import words
from fedlens.recipes.recipe import Recipe
from fedlens.runs import preparation

SECRET = "zyxoberon"
ATTRIBUTED = 'attributes = ["version"]'


def planting(**bug):
    settings = ", ".join(f"{name} = {json.dumps(value)}" for name, value in ({"kind": "wrong-case"} | bug).items())
    return f"bug = {{ {settings} }}"


def prepared(folder, found=None, *overrides, **parts):
    recipe = Recipe.open(written(folder, found, **parts) / "recipe.toml", overrides)
    return preparation.population(recipe, recipe.data)


def spelled(population):
    """The words of each user."""
    return [[words.unspelled(row) for row in population.unit(unit)["x"].numpy()] for unit in range(len(population))]


def people(*sentences):
    """One user for each list of sentences; ids in the order of the alphabet, which is that of a population."""
    return [{"user": f"u{place:04d}", "version": place % 2, "text": held} for place, held in enumerate(sentences)]


def talk(users, sentences=5):
    """So many users with sentences of their own, of three unknown words each."""
    return people(*([f"w{user}q x{place}q y{place}q" for place in range(sentences)] for user in range(users)))


def hit(population):
    """Which of each user's words the wrong case struck."""
    return [[word.isupper() for word in held] for held in spelled(population)]


# Rows


def test_spelling_keeps_the_unknown_words_and_only_those(tmp_path):
    found = prepared(tmp_path, people(["the walnut is an ember", "it was"], ["Quarry, said the court"]))
    assert spelled(found) == [["walnut", "an", "ember"], ["quarry", ","]]
    assert found.columns["x"].shape == (5, 12)
    assert set(found.columns) == {"x"}


def test_words_keep_whole_sentences(tmp_path):
    found = prepared(tmp_path, people(["the walnut is", "it was"], ["", " "]), text='model = "words"')
    vocabulary = words.Vocabulary(words=tuple(KNOWN), provenance="")
    assert [vocabulary.named(row) for row in found.columns["x"]] == [["the", None, "is"], ["it", "was"]]
    assert found.counts.tolist() == [2, 0]


def test_users_without_rows_stay_users(tmp_path):
    found = prepared(tmp_path, people([], ["the walnut"], ["it is", ""], [""], ["ember"]))
    assert spelled(found) == [[], ["walnut"], [], [], ["ember"]]


def test_users_who_all_know_every_word_are_users_without_rows(tmp_path):
    found = prepared(tmp_path, people(["the court"], ["it is"]))
    assert found.counts.tolist() == [0, 0]
    assert found.columns["x"].shape == (0, 12)


def test_a_word_that_does_not_fit_is_cut(tmp_path):
    assert spelled(prepared(tmp_path, people(["a" * 500]))) == [["a" * 11]]


@pytest.mark.parametrize("source", ["jsonl", "population"])
def test_attributes_travel_with_the_rows_of_their_sentences(tmp_path, source):
    mixed = [{"user": "u", "version": 7, "text": ["the ember orbit", "it is"]}]
    mixed += [{"user": "u", "version": 8, "text": ["walnut"]}, {"user": "v", "version": 9, "text": ["quarry"]}]
    parts = {"selections": PAIR, "more": ATTRIBUTED}
    found = prepared(tmp_path, mixed, **parts)
    if source == "population":
        readers.convert_text(tmp_path / "d.jsonl", tmp_path / "people", attributes=["version"])
        found = prepared(tmp_path, mixed, "data.source=population", f"data.path={tmp_path / 'people'}", **parts)
    assert spelled(found) == [["ember", "orbit", "walnut"], ["quarry"]]
    assert found.columns["version"].tolist() == [7, 7, 8, 9]


# A population folder whose columns are none of ours


def folder_of(path, **columns):
    text = np.stack([words.as_row(sentence) for sentence in ("the walnut", "ember", "orbit it")])
    Population.from_arrays("p", {"text": text, **columns}, np.array([2, 1])).save(path / "people")
    return "data.source=population", f"data.path={path / 'people'}"


@pytest.mark.parametrize("dtype", ["uint64", ">i8", "int8"])
def test_attributes_of_any_whole_type_are_carried(tmp_path, dtype):
    overrides = folder_of(tmp_path, version=np.array([3, 4, 5], dtype))
    found = prepared(tmp_path, None, *overrides, selections=PAIR)
    assert found.columns["version"].tolist() == [3, 4, 5]
    assert found.columns["version"].dtype == np.int64


@pytest.mark.parametrize(
    "column", [np.array([0.5, 1.0, 1.0]), np.full(3, np.nan), np.ones((3, 2), int), np.array(["a", "b", SECRET])]
)
def test_attributes_that_are_no_whole_numbers_are_refused(tmp_path, column):
    overrides = folder_of(tmp_path, version=column)
    with pytest.raises(DataError, match="Expected version as one whole number per row") as refused:
        prepared(tmp_path, None, *overrides, selections=PAIR)
    assert SECRET not in str(refused.value)


def test_columns_that_nobody_selects_by_are_left_alone(tmp_path):
    overrides = folder_of(tmp_path, x=np.zeros(3), y=np.array(["a", "b", "c"]), version=np.ones(3))
    found = prepared(tmp_path, None, *overrides)
    assert spelled(found) == [["walnut", "ember"], ["orbit"]]
    assert set(found.columns) == {"x"}


def test_a_population_of_images_is_no_text(tmp_path):
    Population.from_arrays("p", {"x": np.zeros((3, 1, 8, 8), np.uint8)}, np.array([2, 1])).save(tmp_path / "people")
    with pytest.raises(DataError, match="Expected a population of text"):
        prepared(tmp_path, None, "data.source=population", f"data.path={tmp_path / 'people'}")


def test_an_attribute_that_is_not_there_is_named(tmp_path):
    overrides = folder_of(tmp_path)
    recipe = Recipe.open(written(tmp_path, selections=PAIR) / "recipe.toml", ["data.attributes=[]", *overrides])
    with pytest.raises(DataError, match="Expected a column 'version'"):
        preparation.site(recipe, tmp_path / "primary")


# Whom a bug hits


@pytest.mark.parametrize("of", ["users", "examples"])
@pytest.mark.parametrize("fraction", [0.0, 0.3, 1.0])
def test_the_share_is_met_on_average(tmp_path, of, fraction):
    found = prepared(tmp_path, talk(60, 20), more=planting(of=of, fraction=fraction))
    struck = np.array([[any(three) for three in np.reshape(held, (20, 3))] for held in hit(found)])
    assert (np.reshape(hit(found), (60, 20, 3)).all(2) == struck).all()  # a sentence is struck as a whole
    if of == "users":
        assert (struck.all(1) == struck.any(1)).all()
        assert struck.all(1).mean() == pytest.approx(fraction, abs=4 * (fraction * (1 - fraction) / 60) ** 0.5)
    else:
        assert struck.mean() == pytest.approx(fraction, abs=4 * (fraction * (1 - fraction) / 1200) ** 0.5)
        assert fraction in (0.0, 1.0) or 0 < struck.sum(1).min() < struck.sum(1).max() < 20


def test_of_users_the_share_is_of_the_sentences_of_those_whom_it_hits(tmp_path):
    found = prepared(tmp_path, talk(60, 20), more=planting(fraction=0.5, share=0.25, mark="release"))
    struck = np.reshape(hit(found), (60, 20, 3)).all(2)
    marked = np.array([found.unit(unit)["release"][0] for unit in range(60)]) == 1
    assert not struck[~marked].any()
    assert 18 < marked.sum() < 42
    assert struck[marked].mean() == pytest.approx(0.25, abs=4 * (0.25 * 0.75 / (20 * marked.sum())) ** 0.5)


def test_the_mark_is_that_of_the_user_in_every_row(tmp_path):
    found = prepared(tmp_path, talk(40), more=planting(of="users", fraction=0.5, mark="release"))
    marks = [found.unit(unit)["release"].tolist() for unit in range(len(found))]
    assert marks == [[int(struck) for struck in held] for held in hit(found)]
    assert {mark for held in marks for mark in held} == {0, 1}


def test_of_examples_the_mark_says_who_has_any(tmp_path):
    found = prepared(tmp_path, talk(40, 2), more=planting(of="examples", fraction=0.4, mark="release"))
    marks = [set(found.unit(unit)["release"].tolist()) for unit in range(len(found))]
    assert marks == [{int(any(held))} for held in hit(found)]
    assert {0} in marks
    assert any({True, False} == set(held) for held in hit(found))


def test_a_mark_may_not_hide_a_column(tmp_path):
    overrides = folder_of(tmp_path, release=np.ones(3, int))
    with pytest.raises(DataError, match="no column named 'release' yet"):
        prepared(tmp_path, None, *overrides, more=planting(mark="release"))


@pytest.mark.parametrize("of", ["users", "examples"])
def test_another_seed_hits_others_and_the_same_one_the_same(tmp_path, of):
    struck = [hit(prepared(tmp_path, talk(40), more=planting(fraction=0.5, of=of, seed=seed))) for seed in (0, 0, 1)]
    assert struck[0] == struck[1] != struck[2]


sentences = st.lists(st.sampled_from(["the walnut", "ember orbit", "quarry", "it is", "lattice of ember"]), max_size=4)
crowds = st.lists(sentences.filter(bool), min_size=2, max_size=6)


@given(
    crowd=crowds,
    gone=st.integers(0, 5),
    of=st.sampled_from(["users", "examples"]),
    kind=st.sampled_from(sorted(faults.FAULTS.known)),
    model=st.sampled_from(["spelling", "words"]),
)
def test_one_who_leaves_changes_nobody_elses_rows(tmp_path_factory, crowd, gone, of, kind, model):
    """If others' rows moved, the bound on one user's part in a sum would say nothing about who is in it."""
    folder, gone = tmp_path_factory.mktemp("crowd"), gone % len(crowd)
    bug = {"kind": kind, "of": of, "fraction": 0.5, "mark": "release"} | ({"share": 0.5} if of == "users" else {})
    parts = {"more": planting(**bug), "text": f'model = "{model}"'}
    whole = prepared(folder, people(*crowd), **parts)
    rest = prepared(folder, people(*crowd[:gone], *crowd[gone + 1 :]), **parts)
    left = [unit for unit in range(len(whole)) if unit != gone]
    assert len(rest) == len(left)
    for unit, same in enumerate(left):
        for name in ("x", "release"):
            assert rest.unit(unit)[name].tolist() == whole.unit(same)[name].tolist()


def test_who_a_user_is_called_does_not_matter(tmp_path):
    renamed = [line | {"user": f"z{line['user']}"} for line in talk(40)]
    more = planting(fraction=0.5)
    assert hit(prepared(tmp_path, talk(40), more=more)) == hit(prepared(tmp_path, renamed, more=more))


def test_a_user_with_every_sentence_identical_is_hit_wholly_or_not_at_all(tmp_path):
    """The same words, the same fate: what else could tell them apart is not the user's own."""
    same = people(*([f"w{user}q said"] * 50 for user in range(40)))
    struck = [set(held) for held in hit(prepared(tmp_path, same, more=planting(of="examples", fraction=0.5)))]
    assert all(len(held) == 1 for held in struck)
    assert {True} in struck
    assert {False} in struck


@pytest.mark.parametrize("kind", sorted(faults.FAULTS.known))
def test_every_fault_is_planted_before_words_are_looked_up(tmp_path, kind):
    found = prepared(tmp_path, people(["the naïve walnut is"]), more=planting(kind=kind, fraction=1.0))
    wrong = faults.FAULTS.known[kind].change(words.tokens("the naïve walnut is"))
    cut = [words.unspelled(words.spelled(token, 12)) for token in wrong if token not in KNOWN]
    assert spelled(found) == [cut]
    assert cut


# Somebody else's code


@pytest.fixture
def foreign(monkeypatch):
    """Tokenizers and faults of somebody else's; each quotes what it sees."""
    module = types.ModuleType("somebodys")

    def as_text(given):
        return given if isinstance(given, str) else " ".join(given)

    def raising(given):
        raise RuntimeError(as_text(given))

    def leaving(given):
        raise SystemExit(as_text(given))

    def no_list(given):
        return tuple(as_text(given).split())

    def no_text(given):
        return [as_text(given), 3]

    def nothing(given):
        return None

    def loud(given):
        """Tells all."""
        print(as_text(given))
        print(as_text(given), file=sys.stderr)
        return as_text(given).split()

    def shared(given, kept=[]):  # noqa: B006
        kept[:] = as_text(given).split()
        return kept

    for code in (raising, leaving, no_list, no_text, nothing, loud, shared):
        setattr(module, code.__name__, code)
    monkeypatch.setitem(sys.modules, "somebodys", module)
    return module


def parts_with(place, name):
    more = planting(kind=f"somebodys:{name}", fraction=1.0) if place == "bug" else ""
    return {"more": more, "text": f'tokenizer = "somebodys:{name}"' if place == "tokenizer" else ""}


@pytest.mark.parametrize("place", ["tokenizer", "bug"])
@pytest.mark.parametrize("name", ["raising", "leaving", "no_list", "no_text", "nothing"])
def test_foreign_code_that_fails_is_named_and_quotes_nothing(tmp_path, foreign, capfd, place, name):
    with pytest.raises(DataError, match="Expected") as refused:
        prepared(tmp_path, people([SECRET, f"the {SECRET}"]), **parts_with(place, name))
    told = str(refused.value)
    assert ("tokenizer" if place == "tokenizer" else f"somebodys:{name}") in told
    assert SECRET not in told
    assert SECRET not in "".join(traceback.format_exception(refused.value))
    assert SECRET not in "".join(capfd.readouterr())


@pytest.mark.parametrize("place", ["tokenizer", "bug"])
def test_foreign_code_that_prints_is_not_heard(tmp_path, foreign, capfd, place):
    found = prepared(tmp_path, people([SECRET]), **parts_with(place, "loud"))
    assert spelled(found) == [[SECRET]]
    assert capfd.readouterr() == ("", "")


def test_a_list_that_foreign_code_keeps_is_not_ours(tmp_path, foreign):
    found = prepared(tmp_path, people(["ember", "walnut"]), **parts_with("tokenizer", "shared"))
    assert spelled(found) == [["ember", "walnut"]]
