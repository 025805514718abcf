"""Populations: ragged, memory-mapped, and silent about what they hold."""

import json

import numpy as np
import pytest
import torch

from fedlens.core.randomness import Randomness
from fedlens.data.population import DataError, Population

SECRET = 77_177  # a value that must never show up in a message


@pytest.fixture
def toy():
    columns = {"x": np.arange(20, dtype=np.float32).reshape(10, 2), "y": np.arange(10, dtype=np.int64) + SECRET}
    return Population.from_arrays("toy", columns, np.array([3, 1, 0, 6]))


@pytest.fixture
def folder(toy, tmp_path):
    toy.save(tmp_path / "toy")
    return tmp_path / "toy"


def everyone(population):
    return population.take(np.arange(len(population)))


def held(population):
    """Every unit's values of y, without the padding."""
    taken = everyone(population)
    return [y[mask.bool()].sub(SECRET).tolist() for y, mask in zip(taken["y"], taken["mask"], strict=True)]


def test_ragged_users_are_padded_and_masked(toy):
    taken = everyone(toy)
    assert taken["x"].shape == (4, 6, 2)
    assert taken["mask"].tolist() == [[1.0] * n + [0.0] * (6 - n) for n in (3, 1, 0, 6)]
    assert taken["x"][taken["mask"] == 0].count_nonzero() == 0
    assert held(toy) == [[0, 1, 2], [3], [], [4, 5, 6, 7, 8, 9]]


def test_the_order_of_a_cohort_is_the_order_of_its_examples(toy):
    assert toy.take(np.array([3, 0]))["y"][:, 0].sub(SECRET).tolist() == [4, 0]


@pytest.mark.parametrize(("limit", "widths"), [(None, {6}), (2, {2}), (100, {6, 100})])
def test_the_width_is_the_same_for_every_cohort(toy, limit, widths):
    """So that shapes say nothing about who was drawn."""
    cohorts = [np.array(cohort, dtype=np.int64) for cohort in ([0], [1], [2], [3], [0, 1, 2, 3], [])]
    taken = [toy.take(cohort, limit) for cohort in cohorts]
    assert [len(tree["x"]) for tree in taken] == [1, 1, 1, 1, 4, 0]
    found = {tree[name].shape[1] for tree in taken for name in ("x", "y", "mask")}
    assert len(found) == 1
    assert found <= widths


def test_the_blank_unit_has_the_shapes_of_a_unit_and_no_examples(toy):
    blank, taken = toy.blank(6), everyone(toy)
    assert {key: (leaf.shape, leaf.dtype) for key, leaf in blank.items()} == {
        key: (leaf.shape[1:], leaf.dtype) for key, leaf in taken.items()
    }
    assert blank["mask"].sum() == 0


def test_of_many_examples_a_fresh_random_subset_is_drawn(toy):
    randomness = Randomness.seeded(0)
    draws = [tuple(toy.take(np.array([3]), 2, randomness, f"release {i}")["y"][0].tolist()) for i in range(300)]
    again = [tuple(toy.take(np.array([3]), 2, randomness, f"release {i}")["y"][0].tolist()) for i in range(300)]
    assert draws == again
    assert len(set(draws)) == 15  # all pairs of six
    counts = np.bincount(np.array(draws).flatten() - SECRET, minlength=10)
    assert counts[:4].sum() == 0
    assert counts[4:].min() > 60  # 100 expected, standard deviation 8


def test_units_draw_their_subsets_independently():
    twins = Population.from_arrays("twins", {"x": np.tile(np.arange(20), 2)}, np.array([20, 20]))
    taken = twins.take(np.array([0, 1]), 5, Randomness.seeded(0), "release 0")["x"]
    assert not torch.equal(taken[0], taken[1])


def test_a_subset_does_not_depend_on_who_else_was_drawn(toy):
    randomness = Randomness.seeded(0)
    alone = toy.take(np.array([3]), 2, randomness, "r")["y"][0]
    together = toy.take(np.array([0, 1, 3]), 2, randomness, "r")["y"][2]
    assert torch.equal(alone, together)


def test_select_by_users(toy):
    chosen = toy.select("many", users=lambda user: len(user["y"]) >= 3)
    assert held(chosen) == [[0, 1, 2], [4, 5, 6, 7, 8, 9]]
    assert chosen.name == "toy/many"


def test_select_by_examples(toy):
    assert held(toy.select("even", examples=lambda user: user["x"][:, 0] % 4 == 0)) == [[0, 2], [], [], [4, 6, 8]]


def test_select_at_least_counts_the_examples_that_are_left(toy):
    even = {"examples": lambda user: user["x"][:, 0] % 4 == 0}
    assert held(toy.select("even", **even, at_least=1)) == [[0, 2], [4, 6, 8]]
    assert held(toy.select("even", **even, at_least=3)) == [[4, 6, 8]]
    assert held(toy.select("busy", at_least=2)) == [[0, 1, 2], [4, 5, 6, 7, 8, 9]]


def test_select_by_both_and_again(toy):
    first = toy.select("even", examples=lambda user: user["x"][:, 0] % 4 == 0)
    second = first.select("far", users=lambda user: len(user["y"]) > 2, examples=lambda user: user["x"][:, 0] > 8)
    assert held(second) == [[6, 8]]
    assert held(second.select("none", users=lambda user: False)) == []
    assert second.name == "toy/even/far"


def test_a_selection_of_nobody_is_an_empty_population(toy):
    for none in (toy.select("none", users=lambda user: False), toy.select("none", at_least=100)):
        assert len(none) == 0
        assert none.take(np.zeros(0, np.int64))["x"].shape[0] == 0
        assert len(none.by_example()) == 0


def test_a_verdict_sees_one_user_only(toy):
    seen = []
    toy.select("all", users=lambda user: seen.append(user["y"].sub(SECRET).tolist()) or True)
    assert seen == [[0, 1, 2], [3], [], [4, 5, 6, 7, 8, 9]]


def test_one_users_verdict_does_not_depend_on_the_others(toy):
    def verdict(user):
        return user["x"].sum() > 20

    alone = Population.from_arrays("one", {key: column[4:] for key, column in toy.columns.items()}, np.array([6]))
    assert held(alone.select("v", users=verdict))[0] in held(toy.select("v", users=verdict))


def test_by_example_makes_every_example_a_unit(toy):
    assert held(toy.by_example()) == [[i] for i in range(10)]
    chosen = toy.select("even", examples=lambda user: user["x"][:, 0] % 4 == 0, at_least=1).by_example()
    assert held(chosen) == [[0], [2], [4], [6], [8]]
    assert held(toy.select("many", users=lambda user: len(user["y"]) == 6).by_example()) == [[i] for i in range(4, 10)]


def test_save_and_open_give_the_same_population_without_reading_it(toy, folder):
    again = Population.open(folder)
    assert again.name == "toy"
    assert held(again) == held(toy)
    assert all(isinstance(column, np.memmap) for column in again.columns.values())
    assert not any(column.flags.writeable for column in again.columns.values())
    assert again.columns["x"].dtype == np.float32


def test_an_empty_population_can_be_saved_and_opened(tmp_path):
    Population.from_arrays("none", {"x": np.zeros((0, 3))}, np.zeros(0, np.int64)).save(tmp_path / "none")
    assert len(Population.open(tmp_path / "none")) == 0


def test_save_does_not_overwrite(toy, folder):
    with pytest.raises(FileExistsError):
        toy.save(folder)


@pytest.mark.parametrize(
    "chosen",
    [
        {"examples": lambda user: user["x"][:, 0] >= 2},
        {"users": lambda user: len(user["y"]) == 6},
        {"users": lambda user: len(user["y"]) != 1},
        {"at_least": 2},
    ],
)
def test_a_selection_is_saved_rightly_or_not_at_all(toy, tmp_path, chosen):
    """Nobody may wake up with another user's examples."""
    selection = toy.select("chosen", **chosen)
    try:
        selection.save(tmp_path / "chosen")
    except DataError:
        assert not (tmp_path / "chosen").exists()
    else:
        assert held(Population.open(tmp_path / "chosen")) == held(selection)


def test_a_column_named_like_the_index_is_refused_or_kept(tmp_path):
    try:
        population = Population.from_arrays("odd", {"offsets": np.array([5, 6, 7])}, np.array([1, 2]))
        population.save(tmp_path / "odd")
    except DataError:
        return
    assert everyone(Population.open(tmp_path / "odd"))["offsets"].tolist() == [[5, 0], [6, 7]]


def cut(path):
    path.write_bytes(path.read_bytes()[:-8])


DAMAGES = {
    "a column cut short": lambda folder: cut(folder / "x.npy"),
    "the index cut short": lambda folder: cut(folder / "offsets.npy"),
    "a column emptied": lambda folder: (folder / "y.npy").write_bytes(b""),
    "a column of noise": lambda folder: (folder / "y.npy").write_bytes(f"{SECRET}".encode()),
    "a column missing": lambda folder: (folder / "y.npy").unlink(),
    "the index missing": lambda folder: (folder / "offsets.npy").unlink(),
    "a column too long": lambda folder: np.save(folder / "y.npy", np.arange(11) + SECRET),
    "an index of two dimensions": lambda folder: np.save(folder / "offsets.npy", np.full((2, 2), 10)),
    "an empty index": lambda folder: np.save(folder / "offsets.npy", np.zeros(0, np.int64)),
    "an index that runs backwards": lambda folder: np.save(folder / "offsets.npy", np.array([0, 9, 3, 3, 10])),
    "an index that begins late": lambda folder: np.save(folder / "offsets.npy", np.array([2, 3, 4, 4, 10])),
    "an index of fractions": lambda folder: np.save(folder / "offsets.npy", np.array([0, 2.5, 4, 4, 10])),
    "an index of text": lambda folder: np.save(folder / "offsets.npy", np.array(["0", f"{SECRET}"])),
    "no description": lambda folder: (folder / "population.json").unlink(),
    "a description that is not JSON": lambda folder: (folder / "population.json").write_text(f'{{"{SECRET}'),
    "a description that is not text": lambda folder: (folder / "population.json").write_bytes(b"\xff\xfe\x00"),
    "a description that is a list": lambda folder: (folder / "population.json").write_text(f"[{SECRET}]"),
    "a description without columns": lambda folder: (folder / "population.json").write_text('{"version": 1}'),
    "another version": lambda folder: (folder / "population.json").write_text(
        json.dumps({"name": "toy", "version": 99, "columns": ["x", "y"]})
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_folder_is_refused_without_showing_data(folder, damage):
    DAMAGES[damage](folder)
    with pytest.raises(DataError, match="Expected") as caught:
        Population.open(folder)
    assert str(SECRET) not in str(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


def test_pickled_columns_are_never_unpickled(folder):
    np.save(folder / "y.npy", np.array([object()] * 10), allow_pickle=True)
    with pytest.raises(DataError, match=r"y\.npy"):
        Population.open(folder)


def test_a_folder_cut_short_while_saving_does_not_open(toy, tmp_path, monkeypatch):
    """The description comes last."""
    monkeypatch.setattr(json, "dumps", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        toy.save(tmp_path / "half")
    with pytest.raises(DataError, match="missing"):
        Population.open(tmp_path / "half")


@pytest.mark.parametrize(
    ("columns", "counts"),
    [
        ({"x": np.arange(SECRET % 100)}, [1, 2]),
        ({"x": np.arange(3), "y": np.arange(4)}, [1, 2]),
        ({"x": np.arange(3), "mask": np.arange(3)}, [1, 2]),
        ({"x": np.arange(3)}, [5, -2]),
        ({}, []),
    ],
)
def test_arrays_that_do_not_fit_are_refused(columns, counts):
    with pytest.raises(DataError, match="Expected"):
        Population.from_arrays("bad", columns, np.array(counts))


def test_repr_reveals_names_and_nothing_else(toy):
    """Head counts and example counts are private too."""
    bigger = Population.from_arrays(
        "toy", {"x": np.zeros((50, 2), np.float32), "y": np.zeros(50)}, np.array([13, 13, 24])
    )
    assert repr(toy) == repr(bigger) == str(bigger)
    assert not any(character.isdigit() for character in repr(toy))


# Columns


def test_only_some_columns_are_kept_and_the_units_stay_the_same(toy):
    only = toy.only("y")
    assert sorted(only.columns) == ["y"]
    assert held(only) == held(toy)
    assert sorted(toy.columns) == ["x", "y"]


def test_a_column_that_is_not_there_is_named_beside_those_that_are(toy):
    with pytest.raises(DataError, match="Expected a column 'hue', found x, y") as caught:
        toy.only("x", "hue")
    assert str(SECRET) not in str(caught.value)


def test_a_verdict_sees_the_columns_it_is_shown_and_the_others_are_kept(toy):
    seen = []

    def verdict(user):
        seen.append(sorted(user))
        return len(user["y"]) > 1

    chosen = toy.select("some", users=verdict, shown=("y",))
    assert set(map(tuple, seen)) == {("y",)}
    assert sorted(chosen.columns) == ["x", "y"]
    assert held(chosen) == [[0, 1, 2], [4, 5, 6, 7, 8, 9]]


@pytest.mark.filterwarnings("error")
def test_verdicts_on_mapped_files_get_tensors_of_their_own(folder, toy):
    """A verdict that writes into what it sees must neither fail nor reach the file."""
    chosen = Population.open(folder).select("all", users=lambda user: bool(user["y"].zero_().sum() == 0))
    assert held(chosen) == held(toy)
