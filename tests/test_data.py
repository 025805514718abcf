"""Private data: read as it is, refused where it is broken, and never quoted."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedlens import data
from fedlens.population import DataError, Population
from fedlens.transforms import TRANSFORMS

SECRET = 987654321  # a user id and a label that no error may quote
LOUD = 123.4567  # a pixel that no error may quote


@pytest.fixture
def columns():
    """Nine small images of three users in no order; every image says in its first pixel which row it was."""
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (9, 4, 4), dtype=np.uint8)
    x[:, 0, 0] = np.arange(9)
    return {"x": x, "y": np.arange(9, dtype=np.uint8), "user": np.array([7, SECRET, 7, 2, SECRET, 2, 2, 7, 2])}


@pytest.fixture
def read(tmp_path):
    def from_columns(columns, **names):
        path = tmp_path / "data.npz"
        np.savez(path, **columns)
        return data.from_npz(path, **{"images": "x", "labels": "y", "users": "user"} | names)

    return from_columns


def refused(read, columns, **names):
    """The text of the refusal, which quotes nobody."""
    with pytest.raises(DataError) as caught:
        read(columns, **names)
    told = str(caught.value)
    assert str(SECRET) not in told
    assert "123.4" not in told
    assert caught.value.__cause__ is None
    return told


def rows_of(population):
    """For every user, the rows of the file it holds."""
    return [
        population.columns["x"][start : start + count, 0, 0, 0].tolist()
        for start, count in zip(population.starts, population.counts, strict=True)
    ]


# Reading


def test_rows_in_any_order_are_grouped_by_user(read, columns):
    population = read(columns)
    assert sorted(rows_of(population)) == [[0, 2, 7], [1, 4], [3, 5, 6, 8]]
    assert population.columns["y"].tolist() == population.columns["x"][:, 0, 0, 0].tolist()
    assert population.columns["x"].shape == (9, 1, 4, 4)
    assert population.columns["x"].dtype == np.uint8


def test_ids_may_be_words(read, columns):
    words = np.array([f"user-{number}" for number in columns["user"]])
    assert sorted(rows_of(read(columns | {"user": words}))) == sorted(rows_of(read(columns)))


def test_arrays_may_have_other_names_and_labels_may_be_missing(read, columns):
    renamed = {"pictures": columns["x"], "who": columns["user"], "more": np.zeros(2)}
    population = read(renamed, images="pictures", labels=None, users="who")
    assert sorted(population.columns) == ["x"]
    assert len(population) == 3


def test_floats_are_taken_as_they_are(read, columns):
    x = np.linspace(-1, 1, 9 * 16).reshape(9, 1, 4, 4)
    population = read(columns | {"x": x, "user": np.zeros(9, int)})
    assert population.columns["x"].dtype == np.float32
    np.testing.assert_array_equal(population.columns["x"], x.astype(np.float32))


def test_what_was_read_names_neither_users_nor_their_number(read, columns):
    assert str(SECRET) not in repr(read(columns))


def test_public_images_come_with_their_labels(tmp_path, columns):
    np.savez(tmp_path / "public.npz", **columns)
    public = data.public_npz(tmp_path / "public.npz", images="x", labels="y")
    assert public.images.shape == (9, 1, 4, 4)
    assert public.labels.tolist() == list(range(9))


# Refusals


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(DataError, match=r"absent\.npz; it is missing"):
        data.from_npz(tmp_path / "absent.npz", images="x", labels="y", users="user")


def test_missing_arrays_are_named_beside_those_that_are_there(read, columns):
    told = refused(read, {"x": columns["x"], "writer": columns["user"]})
    assert "Expected y, user in data.npz; it holds x, writer." in told


@pytest.mark.parametrize("kept", [0.0, 0.3, 0.9, 0.999])
def test_a_file_cut_short_is_refused(tmp_path, columns, kept):
    path = tmp_path / "data.npz"
    np.savez(path, **columns)
    whole = path.read_bytes()
    path.write_bytes(whole[: int(kept * len(whole))])
    with pytest.raises(DataError, match=r"whole \.npz file in data\.npz; it is cut short or damaged"):
        data.from_npz(path, images="x", labels="y", users="user")


def test_a_file_with_a_flipped_byte_is_refused(tmp_path, columns):
    path = tmp_path / "data.npz"
    np.savez(path, **columns)
    broken = bytearray(path.read_bytes())
    at = broken.index(columns["x"].tobytes())
    broken[at + 20] ^= 255
    path.write_bytes(broken)
    with pytest.raises(DataError, match="cut short or damaged"):
        data.from_npz(path, images="x", labels="y", users="user")


def test_pickles_are_not_opened(read, columns):
    assert "damaged" in refused(read, columns | {"user": np.array([{"id": SECRET}] * 9, dtype=object)})


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_pixel_that_is_not_finite_is_named_by_its_row(read, columns, bad):
    x = np.full((9, 4, 4), 0.5)
    x[6, 1, 2] = bad
    x[8] = np.nan
    assert "row 6 holds NaN or infinity" in refused(read, columns | {"x": x})


@pytest.mark.parametrize("value", [LOUD, -LOUD])
def test_floats_out_of_range_are_refused(read, columns, value):
    x = np.zeros((9, 4, 4))
    x[3, 0, 0] = value
    assert "[-1, 1]" in refused(read, columns | {"x": x})


@pytest.mark.parametrize("kind", [np.int64, np.uint16, bool, "<U4", complex])
def test_images_of_another_type_are_refused(read, columns, kind):
    told = refused(read, columns | {"x": columns["x"].astype(kind)})
    assert "bytes (uint8) or floats in [-1, 1]" in told
    assert str(np.dtype(kind)) in told


@pytest.mark.parametrize("shape", [(9, 16), (9, 2, 8), (9, 2, 4, 4), (9, 1, 2, 8), (9, 1, 1, 4, 4), (9,)])
def test_images_of_another_shape_are_refused(read, columns, shape):
    told = refused(read, columns | {"x": np.zeros(shape, np.uint8)})
    assert f"got shape {shape[1:]} per row" in told


@pytest.mark.parametrize("name", ["x", "y", "user"])
def test_columns_of_another_length_are_refused(read, columns, name):
    assert "one length in data.npz" in refused(read, columns | {name: columns[name][:-1]})


@pytest.mark.parametrize(
    "labels",
    [np.full(9, f"label {SECRET}"), np.full(9, np.nan), np.full(9, 0.5), np.zeros((9, 2), int), np.array(3)],
    ids=["words", "NaN", "fractions", "two columns", "one number"],
)
@pytest.mark.filterwarnings("ignore:invalid value encountered in cast")
def test_labels_that_are_not_whole_numbers_are_refused(read, columns, labels):
    refused(read, columns | {"y": labels})


@pytest.mark.parametrize("ids", [np.full((9, 2), SECRET), np.array(SECRET)], ids=["two columns", "one number"])
def test_ids_that_are_not_one_per_row_are_refused(read, columns, ids):
    refused(read, columns | {"user": ids})


@pytest.mark.parametrize("bad", ["words", "another length"])
def test_public_labels_are_checked_as_well(tmp_path, columns, bad):
    labels = np.full(9, "cat") if bad == "words" else columns["y"][:-1]
    np.savez(tmp_path / "public.npz", x=columns["x"], y=labels)
    with pytest.raises(DataError):
        data.public_npz(tmp_path / "public.npz", images="x", labels="y")


# Digits


@pytest.mark.parametrize("users", [1, 30, 106])
def test_the_digits_are_dealt_fifteen_to_a_user_and_the_rest_is_public(users):
    population, public = data.digits(users)
    assert len(population) == users
    assert set(population.counts.tolist()) == {15}
    assert population.columns["x"].shape == (15 * users, 1, 8, 8)
    assert population.columns["x"].dtype == np.uint8
    assert population.columns["x"].max() == 255
    assert len(public.images) == len(public.labels) == 1797 - 15 * users
    assert data.checked(population) == []


@pytest.mark.parametrize("users", [0, -1, 107])
def test_more_or_fewer_users_than_there_are_digits_for_are_refused(users):
    with pytest.raises(DataError, match="1 <= users <= 106"):
        data.digits(users)


# Planted bugs


def crowd(dtype, users=12, seed=0):
    rng = np.random.default_rng(seed)
    counts = rng.integers(1, 5, users)
    shape = (counts.sum(), 1, 4, 4)
    x = (
        rng.integers(0, 256, shape, dtype=np.uint8)
        if dtype == np.uint8
        else rng.uniform(-1, 1, shape).astype(np.float32)
    )
    return Population.from_arrays("crowd", {"x": x, "y": np.arange(len(x))}, counts)


def touched(before, after):
    """For every user, whether each of their images has changed: all, none or "some"."""
    changed = (before.columns["x"] != after.columns["x"]).any((1, 2, 3))
    kinds = {(True,): True, (False,): False}
    return [
        kinds.get(tuple(sorted(set(changed[start : start + count].tolist()))), "some")
        for start, count in zip(before.starts, before.counts, strict=True)
    ]


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
@given(bug=st.sampled_from(sorted(TRANSFORMS)), fraction=st.floats(0, 1), seed=st.integers(0, 99))
def test_a_bug_hits_the_chosen_share_of_users_wholly_and_nobody_else(dtype, bug, fraction, seed):
    before, untouched = crowd(dtype), crowd(dtype)
    after = data.planted(before, bug, fraction, seed)
    hit = touched(before, after)
    assert hit.count(True) == round(fraction * len(before))
    assert hit.count(False) == len(before) - hit.count(True)
    assert after.columns["x"].dtype == dtype
    np.testing.assert_array_equal(after.columns["y"], before.columns["y"])
    np.testing.assert_array_equal(before.columns["x"], untouched.columns["x"])


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_inverted_pixels_are_exact(dtype):
    before = crowd(dtype).columns["x"]
    after = data.planted(crowd(dtype), "inverted", 1.0, 0).columns["x"]
    np.testing.assert_array_equal(after, 255 - before if dtype == np.uint8 else -before)


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
@pytest.mark.parametrize(
    ("bug", "expected"),
    [
        ("mirrored", lambda x: x[..., ::-1]),
        ("upside-down", lambda x: x[..., ::-1, :]),
        ("rotated-90", lambda x: np.rot90(x, 1, (2, 3))),
        ("rotated-180", lambda x: np.rot90(x, 2, (2, 3))),
        ("rotated-270", lambda x: np.rot90(x, 3, (2, 3))),
    ],
)
def test_moved_pixels_keep_their_values(dtype, bug, expected):
    before = crowd(dtype).columns["x"]
    np.testing.assert_array_equal(data.planted(crowd(dtype), bug, 1.0, 0).columns["x"], expected(before))


def test_another_seed_hits_other_users_and_the_same_seed_the_same():
    before = crowd(np.uint8, users=40)
    hits = [touched(before, data.planted(before, "inverted", 0.5, seed)) for seed in (1, 1, 2)]
    assert hits[0] == hits[1] != hits[2]


def test_a_bug_is_not_planted_on_a_selection():
    chosen = crowd(np.uint8).select("some", examples=lambda user: user["y"] >= 0)
    with pytest.raises(DataError, match="whole population"):
        data.planted(chosen, "inverted", 0.5, 0)


# Checks


def test_a_population_without_problems_has_none():
    assert data.checked(crowd(np.uint8)) == []
    assert data.checked(crowd(np.float32)) == []


def test_a_user_without_examples_is_named_by_its_place():
    x = np.zeros((3, 1, 4, 4), np.uint8)
    (problem,) = data.checked(Population.from_arrays("few", {"x": x}, np.array([1, 0, 2])))
    assert "user index 1 holds no example" in problem


def test_a_pixel_that_is_not_a_number_is_found_and_not_quoted():
    x = np.zeros((6, 1, 4, 4), np.float32)
    x[4, 0, 1, 1], x[5] = np.nan, LOUD
    (problem,) = data.checked(Population.from_arrays("few", {"x": x}, np.array([2, 4])))
    assert "row 4 holds NaN" in problem
    assert "123.4" not in problem


def test_a_bad_row_far_down_is_found_by_its_place_in_the_file():
    x = np.zeros((65536 + 10, 1, 1, 1), np.float32)
    x[65536 + 3] = np.nan
    (problem,) = data.checked(Population.from_arrays("many", {"x": x}, np.array([len(x)])))
    assert "rows from 65536" in problem
    assert "row 3 " in problem


def test_several_problems_are_all_listed():
    x = np.full((2, 1, 4, 4), LOUD, np.float32)
    problems = data.checked(Population.from_arrays("few", {"x": x}, np.array([0, 2])))
    assert len(problems) == 2


def test_overlapping_users_are_found():
    x = np.zeros((4, 1, 4, 4), np.uint8)
    population = Population("few", {"x": x}, np.array([2, 0]), np.array([2, 2]))
    assert any("overlap" in problem for problem in data.checked(population))


def test_a_population_without_images_is_found():
    (problem,) = data.checked(Population.from_arrays("words", {"text": np.zeros(3)}, np.array([1, 2])))
    assert "no image column 'x'; found text" in problem
