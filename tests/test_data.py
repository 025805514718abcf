"""Private data: read as it is, refused where it is broken, and never quoted."""

import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedlens.data.population import DataError, Population
from fedlens.media.images import reading as data
from fedlens.media.images.faults import FAULTS
from fedlens.recipes.tables import Bug

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


def test_attributes_are_read_beside_and_keep_to_their_rows(read, columns):
    extra = {"version": np.arange(9, dtype=np.uint8) + 40, "place": -np.arange(9)}
    population = read(columns | extra, attributes=("version", "place"))
    rows = population.columns["x"][:, 0, 0, 0].astype(int)
    assert population.columns["version"].tolist() == (rows + 40).tolist()
    assert population.columns["place"].tolist() == (-rows).tolist()


# Refusals


def test_a_missing_attribute_is_named_beside_those_that_are_there(read, columns):
    told = refused(read, columns, attributes=("version",))
    assert told == "Expected version in data.npz; it holds x, y, user."


@pytest.mark.parametrize("bad", [np.full(9, LOUD), np.full(9, f"v{SECRET}"), np.zeros((9, 2), int)])
def test_an_attribute_that_is_not_one_whole_number_per_row_is_refused(read, columns, bad):
    assert "version as one whole number per row" in refused(read, columns | {"version": bad}, attributes=("version",))


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
    with pytest.raises(DataError, match=r"whole \.npz file of plain arrays in data\.npz; it is cut short"):
        data.from_npz(path, images="x", labels="y", users="user")


def test_a_file_with_a_flipped_byte_is_refused(tmp_path, columns):
    path = tmp_path / "data.npz"
    np.savez(path, **columns)
    broken = bytearray(path.read_bytes())
    at = broken.index(columns["x"].tobytes())
    broken[at + 20] ^= 255
    path.write_bytes(broken)
    with pytest.raises(DataError, match="cut short, damaged"):
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
    assert data.READING.checked(population) == []


@pytest.mark.parametrize("users", [0, -1, 107])
def test_more_or_fewer_users_than_there_are_digits_for_are_refused(users):
    with pytest.raises(DataError, match="1 <= users <= 106"):
        data.digits(users)


# Planted bugs


IMAGE_BUGS = sorted(kind for kind, bug in FAULTS.known.items() if bug.change)


def crowd(dtype, users=12, seed=0):
    rng = np.random.default_rng(seed)
    counts = rng.integers(1, 5, users)
    shape = (counts.sum(), 1, 8, 8)
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
@given(bug=st.sampled_from(IMAGE_BUGS), fraction=st.floats(0, 1), seed=st.integers(0, 99))
def test_a_bug_hits_users_wholly_and_nobody_else(dtype, bug, fraction, seed):
    before, untouched = crowd(dtype), crowd(dtype)
    after = data.planted(before, Bug(kind=bug, fraction=fraction, seed=seed))
    hit = touched(before, after)
    assert hit.count(False) == len(before) - hit.count(True)
    assert hit.count(True) == {0.0: 0, 1.0: len(before)}.get(fraction, hit.count(True))
    assert after.columns["x"].dtype == dtype
    np.testing.assert_array_equal(after.columns["y"], before.columns["y"])
    np.testing.assert_array_equal(before.columns["x"], untouched.columns["x"])


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_inverted_pixels_are_exact(dtype):
    before = crowd(dtype).columns["x"]
    after = data.planted(crowd(dtype), Bug(kind="inverted", fraction=1.0, seed=0)).columns["x"]
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
    np.testing.assert_array_equal(
        data.planted(crowd(dtype), Bug(kind=bug, fraction=1.0, seed=0)).columns["x"], expected(before)
    )


@pytest.mark.parametrize("fraction", [0.1, 0.5, 0.8])
def test_a_bug_hits_about_the_chosen_share_of_users(fraction):
    before = crowd(np.uint8, users=400)
    share = touched(before, data.planted(before, Bug(kind="inverted", fraction=fraction, seed=0))).count(True) / 400
    assert abs(share - fraction) < 4 * (fraction * (1 - fraction) / 400) ** 0.5


def test_another_seed_hits_other_users_and_the_same_seed_the_same():
    before = crowd(np.uint8, users=40)
    hits = [touched(before, data.planted(before, Bug(kind="inverted", fraction=0.5, seed=seed))) for seed in (1, 1, 2)]
    assert hits[0] == hits[1] != hits[2]


def test_a_bug_is_not_planted_on_a_selection():
    chosen = crowd(np.uint8).select("some", examples=lambda user: user["y"] >= 0)
    with pytest.raises(DataError, match="whole population"):
        data.planted(chosen, Bug(kind="inverted", fraction=0.5, seed=0))


def hits_of(before, after):
    """For every user, which of their examples have changed."""
    changed = (before.columns["x"] != after.columns["x"]).any((1, 2, 3))
    return [changed[start : start + count].tolist() for start, count in zip(before.starts, before.counts, strict=True)]


@given(fraction=st.floats(0, 1), seed=st.integers(0, 99))
def test_a_bug_hits_the_chosen_share_of_each_users_examples(fraction, seed):
    """On average: each example is hit by what it holds itself."""
    before = crowd(np.uint8, users=30)
    hit = hits_of(before, data.planted(before, Bug(kind="inverted", fraction=fraction, seed=seed, of="examples")))
    examples = np.concatenate(hit)
    deviation = np.sqrt(fraction * (1 - fraction) / len(examples))
    assert abs(examples.mean() - fraction) <= 5 * deviation


def test_users_with_one_example_are_hit_as_often_as_others():
    x = np.random.default_rng(0).integers(0, 256, (2000, 1, 2, 2), np.uint8)
    before = Population.from_arrays("ones", {"x": x}, np.ones(2000, int))
    hit = hits_of(before, data.planted(before, Bug(kind="inverted", fraction=0.3, seed=0, of="examples")))
    assert np.mean(hit) == pytest.approx(0.3, abs=0.05)


@given(kept=st.integers(1, 11), seed=st.integers(0, 99))
def test_which_examples_are_hit_depends_on_no_other_user(kept, seed):
    whole, other = crowd(np.uint8), crowd(np.uint8, seed=1)
    rows = int(whole.starts[kept])
    columns = {name: np.concatenate([whole.columns[name][:rows], other.columns[name]]) for name in ("x", "y")}
    counts = np.concatenate([whole.counts[:kept], other.counts])
    changed = Population.from_arrays("others", columns, counts)
    hits = [
        hits_of(before, data.planted(before, Bug(kind="inverted", fraction=0.5, seed=seed, of="examples")))[:kept]
        for before in (whole, changed)
    ]
    assert hits[0] == hits[1]


@pytest.mark.parametrize("of", ["users", "examples"])
def test_a_mark_tells_the_users_with_the_bug_from_the_others(of):
    before = crowd(np.uint8, users=40)
    after = data.planted(before, Bug(kind="inverted", fraction=0.4, seed=3, of=of, mark="version"))
    for hit, start in zip(hits_of(before, after), before.starts, strict=True):
        marks = after.columns["version"][start : start + len(hit)].tolist()
        assert marks == [int(any(hit))] * len(hit)
    assert set(after.columns["version"].tolist()) == {0, 1}
    assert "version" not in before.columns


def test_a_mark_does_not_overwrite_a_column():
    marked = data.planted(crowd(np.uint8), Bug(kind="inverted", mark="release"))
    with pytest.raises(DataError, match="no column named 'release' yet"):
        data.planted(marked, Bug(kind="inverted", mark="release"))


@pytest.mark.parametrize("of", ["users", "examples"])
def test_swapped_labels_leave_the_images_alone(of):
    before = crowd(np.uint8, users=40)
    last = len(before.columns["y"]) - 1
    after = data.planted(
        before, Bug(kind="swapped-labels", fraction=0.5, seed=0, of=of, mark="version", classes=last + 1)
    )
    swapped = np.where((np.arange(last + 1) ^ 1) <= last, np.arange(last + 1) ^ 1, np.arange(last + 1))
    changed = after.columns["y"] != before.columns["y"]
    np.testing.assert_array_equal(after.columns["y"][changed], swapped[changed])
    assert 0.3 < changed.mean() < 0.7
    assert not changed[after.columns["version"] == 0].any()
    assert after.columns["x"] is before.columns["x"]
    np.testing.assert_array_equal(before.columns["y"], np.arange(last + 1))


def test_swapped_labels_need_labels():
    with pytest.raises(DataError, match="Expected a column 'y', found x"):
        data.planted(crowd(np.uint8).only("x"), Bug(kind="swapped-labels", classes=10))


FOREIGN = f"""
import torch
seen = []
def halved(x):
    "Half the contrast."
    seen.append(len(x))
    return x / 2
def in_place(x): return x.neg_()
def loud(x): return 7 * x
def doubled(x): return (x / 2).double()
def cropped(x): return x[..., 1:]
def fewer(x): return x[1:]
def whole(x): return (127 * x).int()
def array(x): return x.numpy()
def broken(x): return x / 0
def failing(x): raise RuntimeError("{LOUD} of {SECRET}")
"""


@pytest.fixture
def foreign(tmp_path, monkeypatch):
    """Somebody else's transforms, in a module of their own."""
    (tmp_path / "foreign_bugs.py").write_text(FOREIGN)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(__import__("sys").modules, "foreign_bugs", raising=False)
    return lambda name, before, **options: data.planted(
        before, Bug(kind=f"foreign_bugs:{name}", fraction=1.0, **options)
    )


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("halved", lambda x: x / 2),
        ("doubled", lambda x: x / 2),
        ("in_place", lambda x: -x),
        ("loud", lambda x: np.clip(7 * x, -1, 1)),
    ],
)
def test_somebody_elses_transform_is_planted_within_the_range_of_pixels(foreign, dtype, name, expected):
    before, untouched = crowd(dtype), crowd(dtype)
    after = foreign(name, before).columns["x"]
    wanted = expected(untouched.columns["x"] / 127.5 - 1 if dtype == np.uint8 else untouched.columns["x"])
    wanted = (wanted + 1) * 127.5 if dtype == np.uint8 else wanted
    np.testing.assert_allclose(after, wanted, atol=0.51 if dtype == np.uint8 else 1e-6)
    np.testing.assert_array_equal(before.columns["x"], untouched.columns["x"])


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("cropped", "same shape"),
        ("fewer", "same shape"),
        ("whole", "tensor of floats"),
        ("array", "tensor of floats"),
        ("broken", "finite pixels"),
        ("failing", "it failed"),
    ],
)
def test_a_transform_that_breaks_the_images_is_named_and_nothing_is_quoted(foreign, name, told):
    with pytest.raises(DataError, match=f"Expected foreign_bugs:{name} .*{told}") as caught:
        foreign(name, crowd(np.float32))
    assert str(SECRET) not in str(caught.value)
    assert "123.4" not in str(caught.value)
    assert caught.value.__cause__ is None


def test_a_user_with_very_many_images_is_changed_bit_by_bit(foreign):
    import foreign_bugs

    x = np.zeros((300_000, 1, 4, 4), np.float32)
    before = Population.from_arrays("one", {"x": x}, np.array([len(x)]))
    tracemalloc.start()
    after = foreign("halved", before)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert after.columns["x"].shape == x.shape
    assert sum(foreign_bugs.seen) == len(x)
    assert max(foreign_bugs.seen) <= 4096
    assert most < 1.5 * x.nbytes


# Checks


def test_a_population_without_problems_has_none():
    assert data.READING.checked(crowd(np.uint8)) == []
    assert data.READING.checked(crowd(np.float32)) == []


def test_a_user_without_examples_is_named_by_its_place():
    x = np.zeros((3, 1, 4, 4), np.uint8)
    (problem,) = data.READING.checked(Population.from_arrays("few", {"x": x}, np.array([1, 0, 2])))
    assert "user index 1 holds no example" in problem


def test_a_pixel_that_is_not_a_number_is_found_and_not_quoted():
    x = np.zeros((6, 1, 4, 4), np.float32)
    x[4, 0, 1, 1], x[5] = np.nan, LOUD
    (problem,) = data.READING.checked(Population.from_arrays("few", {"x": x}, np.array([2, 4])))
    assert "row 4 holds NaN" in problem
    assert "123.4" not in problem


def test_a_bad_row_far_down_is_found_by_its_place_in_the_file():
    x = np.zeros((65536 + 10, 1, 1, 1), np.float32)
    x[65536 + 3] = np.nan
    (problem,) = data.READING.checked(Population.from_arrays("many", {"x": x}, np.array([len(x)])))
    assert "rows from 65536" in problem
    assert "row 3 " in problem


def test_several_problems_are_all_listed():
    x = np.full((2, 1, 4, 4), LOUD, np.float32)
    problems = data.READING.checked(Population.from_arrays("few", {"x": x}, np.array([0, 2])))
    assert len(problems) == 2


def test_overlapping_users_are_found():
    x = np.zeros((4, 1, 4, 4), np.uint8)
    population = Population("few", {"x": x}, np.array([2, 0]), np.array([2, 2]))
    assert any("overlap" in problem for problem in data.READING.checked(population))


def test_a_population_without_images_is_found():
    (problem,) = data.READING.checked(Population.from_arrays("words", {"text": np.zeros(3)}, np.array([1, 2])))
    assert "no image column 'x'; found text" in problem
