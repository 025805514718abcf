"""Image populations of other formats: what went in comes out, broken ones are refused whole, and nobody is quoted."""

import gzip
import io
import json
import shutil
import struct
import tracemalloc

import numpy as np
import pytest
from PIL import Image
from toys import without_library

from fedlens.data import readers
from fedlens.data.population import DataError, Population
from fedlens.media.images import reading as data

h5py = pytest.importorskip("h5py")
pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

SECRET = "writer987654321"  # a user id that no error may quote
LOUD = 7654321  # a label that no error may quote
SIDE = 5


@pytest.fixture
def rows():
    """Forty images of three users in no order; every image says in its first pixel which row it was."""
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (40, SIDE, SIDE), dtype=np.uint8)
    x[:, 0, 0] = np.arange(40)
    users = np.array(["a", SECRET, "c"])[rng.permutation(np.repeat([0, 1, 2], [20, 13, 7]))]
    return {"x": x, "y": rng.integers(0, 10, 40), "user": users}


def encoded(image, **more):
    stored = io.BytesIO()
    Image.fromarray(image, **more).save(stored, "PNG")
    return stored.getvalue()


def held(rows):
    """Each user's rows, whatever their order: users sorted, (label, pixels) sorted."""
    return [
        sorted(
            (int(y), x.tobytes())
            for x, y, user in zip(*(rows[key] for key in ("x", "y", "user")), strict=True)
            if user == one
        )
        for one in sorted(set(rows["user"].tolist()))
    ]


def held_by(population):
    x, y = population.columns["x"], population.columns["y"]
    return [
        sorted((int(y[row]), np.asarray(x[row]).tobytes()) for row in range(start, start + count))
        for start, count in zip(population.starts.tolist(), population.counts.tolist(), strict=True)
    ]


# Writers of generated data, one per format


def as_parquet(root, rows, images="bytes", user=None, **options):
    x = rows["x"]
    columns = {
        "bytes": lambda: pa.array([encoded(image) for image in x], pa.binary()),
        "struct": lambda: pa.array([{"bytes": encoded(image), "path": None} for image in x]),
        "ragged": lambda: pa.array([image.ravel().tolist() for image in x]),
        "floats": lambda: pa.array([(image.ravel() / 255).tolist() for image in x]),
        "nested": lambda: pa.array([image.tolist() for image in x]),
        "fixed": lambda: pa.FixedSizeListArray.from_arrays(pa.array(x.ravel()), SIDE * SIDE),
    }
    users = pa.array(rows["user"].tolist(), user)
    path = root / "rows.parquet"
    pq.write_table(pa.table({"user": users, "image": columns[images](), "label": pa.array(rows["y"])}), path, **options)
    return path, {}


def idx_bytes(array, code):
    return struct.pack(">HBB", 0, code, array.ndim) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def as_idx(root, rows, zipped=False, npy=True):
    pack, end = (gzip.compress, ".gz") if zipped else (bytes, "")
    paths = [root / f"{name}-ubyte{end}" for name in ("images-idx3", "labels-idx1", "users-idx1")]
    paths[0].write_bytes(pack(idx_bytes(rows["x"], 8)))
    paths[1].write_bytes(pack(idx_bytes(rows["y"].astype(np.uint8), 8)))
    if npy:
        paths[2] = root / "users.npy"
        np.save(paths[2], rows["user"])
    else:
        numbers = np.unique(rows["user"], return_inverse=True)[1]
        paths[2].write_bytes(pack(idx_bytes((numbers - 1).astype(">i4"), 12)))
    return paths[0], {"labels": paths[1], "users": paths[2]}


def as_leaf(root, rows, files=1):
    folder = root / "leaf"
    folder.mkdir()
    for number in range(files):
        part = {key: column[number::files] for key, column in rows.items()}
        users = {
            user: {
                "x": (part["x"][part["user"] == user].reshape(-1, SIDE * SIDE) / 255).tolist(),
                "y": part["y"][part["user"] == user].tolist(),
            }
            for user in part["user"].tolist()
        }
        about = {"users": list(users), "num_samples": [len(one["y"]) for one in users.values()], "user_data": users}
        (folder / f"part{number}.json").write_text(json.dumps(about))
    return (folder if files > 1 else folder / "part0.json"), {}


def as_hdf5(root, rows, kind=np.float32):
    path = root / "rows.h5"
    with h5py.File(path, "w") as file:
        for user in set(rows["user"].tolist()):
            own = rows["user"] == user
            x = rows["x"][own]
            file[f"examples/{user}/pixels"] = x if kind is np.uint8 else (x / 255).astype(kind)
            file[f"examples/{user}/label"] = rows["y"][own].astype(np.int32)
    return path, {}


def as_png(root, rows, names="0123456789"):
    folder = root / "pictures"
    for number, (x, y, user) in enumerate(zip(*(rows[key] for key in ("x", "y", "user")), strict=True)):
        place = folder / user / names[y]
        place.mkdir(parents=True, exist_ok=True)
        (place / f"{number}.png").write_bytes(encoded(x))
    return folder, {}


FORMATS = {
    "parquet": as_parquet,
    "parquet, as Hugging Face writes it": lambda root, rows: as_parquet(root, rows, "struct"),
    "parquet, lists": lambda root, rows: as_parquet(root, rows, "ragged", row_group_size=7),
    "parquet, floats": lambda root, rows: as_parquet(root, rows, "floats"),
    "parquet, rows of rows": lambda root, rows: as_parquet(root, rows, "nested"),
    "parquet, fixed": lambda root, rows: as_parquet(root, rows, "fixed"),
    "parquet, ids in a dictionary": lambda root, rows: as_parquet(
        root, rows, user=pa.dictionary(pa.int32(), pa.string())
    ),
    "idx": as_idx,
    "idx, zipped": lambda root, rows: as_idx(root, rows, zipped=True),
    "idx, ids too": lambda root, rows: as_idx(root, rows, zipped=True, npy=False),
    "leaf": as_leaf,
    "leaf, users in several files": lambda root, rows: as_leaf(root, rows, files=3),
    "hdf5": as_hdf5,
    "hdf5, bytes": lambda root, rows: as_hdf5(root, rows, np.uint8),
    "png": as_png,
}
PLAIN = ["parquet", "idx", "leaf", "hdf5", "png"]


def refused(tmp_path, source, names=None, **options):
    """The text of the refusal, which quotes nobody and leaves nothing behind."""
    (tmp_path / "out").mkdir(exist_ok=True)
    with pytest.raises(DataError) as caught:
        readers.convert(source, tmp_path / "out" / "users", **(names or {}), **options)
    told = str(caught.value)
    assert SECRET not in told
    assert str(LOUD) not in told
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__ or caught.value.__context__ is None
    assert not list((tmp_path / "out").iterdir())
    return told


def changed(rows, key, row, value):
    column = rows[key].astype(np.int64) if key == "y" else rows[key].copy()
    column[row] = value
    return rows | {key: column}


def flipped(whole):
    """One bit of the pixels is another."""
    at = whole.index(b"IDAT") + 12
    return whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :]


# Round trips


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("step", [512, 3])
def test_what_went_in_comes_out(tmp_path, rows, form, step, monkeypatch):
    monkeypatch.setattr(readers.parts, "ROWS", step)
    source, names = FORMATS[form](tmp_path, rows)
    population = readers.convert(source, tmp_path / "out", **names)
    assert held_by(population) == held(rows)
    assert held_by(Population.open(tmp_path / "out")) == held(rows)
    assert population.columns["x"].shape == (40, 1, SIDE, SIDE)
    assert (population.columns["x"].dtype, population.columns["y"].dtype) == (np.uint8, np.int64)
    assert data.READING.checked(population) == []
    assert SECRET not in repr(population)
    kept = b"".join(path.read_bytes() for path in (tmp_path / "out").iterdir())
    assert SECRET.encode() not in kept


@pytest.mark.parametrize("form", PLAIN)
def test_the_order_of_rows_does_not_matter(tmp_path, rows, form):
    order = np.random.default_rng(1).permutation(40)
    for name, these in (("one", rows), ("two", {key: column[order] for key, column in rows.items()})):
        (tmp_path / name).mkdir()
        source, names = FORMATS[form](tmp_path / name, these)
        readers.convert(source, tmp_path / f"{name}.out", **names)
    assert held_by(Population.open(tmp_path / "one.out")) == held_by(Population.open(tmp_path / "two.out"))


def test_a_folder_of_parquet_files_is_one_population(tmp_path, rows):
    folder = tmp_path / "shards"
    folder.mkdir()
    for number in range(3):
        path, _ = as_parquet(tmp_path, {key: column[number::3] for key, column in rows.items()})
        path.rename(folder / f"{number}.parquet")
    assert held_by(readers.convert(folder, tmp_path / "out")) == held(rows)


def test_columns_may_have_other_names(tmp_path, rows):
    path, _ = as_parquet(tmp_path, rows)
    pq.write_table(pq.read_table(path).rename_columns(["who", "picture", "what"]), path)
    population = readers.convert(path, tmp_path / "out", users="who", images="picture", labels="what")
    assert held_by(population) == held(rows)


@pytest.mark.parametrize("form", ["leaf", "hdf5", "png"])
def test_inverted_swaps_black_and_white(tmp_path, rows, form):
    source, names = FORMATS[form](tmp_path, rows)
    population = readers.convert(source, tmp_path / "out", inverted=True, **names)
    assert held_by(population) == held(rows | {"x": 255 - rows["x"]})


def test_pixels_written_as_0_and_1_are_shares_in_leaf(tmp_path):
    about = {"users": ["a"], "user_data": {"a": {"x": [[0, 1, 1, 0]], "y": [3]}}}
    (tmp_path / "one.json").write_text(json.dumps(about))
    population = readers.convert(tmp_path / "one.json", tmp_path / "out")
    assert population.columns["x"].ravel().tolist() == [0, 255, 255, 0]


def test_names_of_classes_become_numbers_in_sorted_order(tmp_path, rows):
    source, _ = as_png(tmp_path, rows, names="zyxwvutsrq")
    population = readers.convert(source, tmp_path / "out")
    assert held_by(population) == held(rows | {"y": 9 - rows["y"]})
    classes = json.loads((tmp_path / "out" / "classes.json").read_text())
    assert classes == {name: number for number, name in enumerate("qrstuvwxyz")}


def test_numbers_as_names_of_classes_stay_the_numbers(tmp_path, rows):
    names = [str(number) for number in range(3, 13)]
    source, _ = as_png(tmp_path, rows, names=names)
    assert held_by(readers.convert(source, tmp_path / "out")) == held(rows | {"y": 3 + rows["y"]})


def test_a_user_without_images_stays_a_user(tmp_path, rows):
    source, _ = as_png(tmp_path, rows)
    (source / "b").mkdir()
    assert readers.convert(source, tmp_path / "out").counts.tolist() == [20, 0, 7, 13]


def test_a_bilevel_png_is_black_and_white(tmp_path):
    (tmp_path / "pictures/a/0").mkdir(parents=True)
    Image.fromarray(np.array([[True, False], [False, True]])).save(tmp_path / "pictures/a/0/one.png")
    population = readers.convert(tmp_path / "pictures", tmp_path / "out")
    assert population.columns["x"].ravel().tolist() == [255, 0, 0, 255]


# Memory


def test_memory_does_not_grow_with_the_number_of_images(tmp_path):
    side, group, groups = 16, 20_000, 10  # 51 MB of pixels in ten row groups, half of them one user's
    rng = np.random.default_rng(0)
    schema = pa.schema({"user": pa.int64(), "image": pa.list_(pa.uint8(), side * side), "label": pa.int64()})
    with pq.ParquetWriter(tmp_path / "many.parquet", schema, compression="none") as writer:
        for _ in range(groups):
            pixels = pa.array(rng.integers(0, 256, group * side * side, dtype=np.uint8))
            users = rng.integers(1, 1000, group) * rng.integers(0, 2, group)
            columns = [pa.array(users), pa.FixedSizeListArray.from_arrays(pixels, side * side), pa.array(users % 10)]
            writer.write_table(pa.Table.from_arrays(columns, schema=schema))
    del pixels, columns
    pool, before = pa.proxy_memory_pool(pa.default_memory_pool()), pa.default_memory_pool()
    pa.set_memory_pool(pool)
    tracemalloc.start()
    try:
        population = readers.convert(tmp_path / "many.parquet", tmp_path / "out")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
        pa.set_memory_pool(before)
    whole = group * groups * side * side
    assert population.columns["x"].nbytes == whole
    assert peak < whole / 5
    assert 0 < pool.max_memory() < whole / 3


# Refusals


@pytest.mark.parametrize("form", PLAIN)
def test_an_existing_folder_is_left_alone(tmp_path, rows, form):
    source, names = FORMATS[form](tmp_path, rows)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "note").write_text("keep")
    with pytest.raises(DataError, match="mine exists"):
        readers.convert(source, tmp_path / "mine", **names)
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["note"]


@pytest.mark.parametrize("form", ["parquet", "idx", "leaf", "hdf5"])
@pytest.mark.parametrize("kept", [0.0, 0.3, 0.9])
def test_a_file_cut_short_is_refused(tmp_path, rows, form, kept):
    source, names = FORMATS[form](tmp_path, rows)
    source.write_bytes(source.read_bytes()[: int(kept * source.stat().st_size)])
    told = refused(tmp_path, source, names)
    assert source.name in told
    assert "cut short or damaged" in told


def test_a_zipped_file_cut_short_is_refused(tmp_path, rows):
    source, names = as_idx(tmp_path, rows, zipped=True)
    source.write_bytes(source.read_bytes()[:-20])
    assert "cut short or damaged" in refused(tmp_path, source, names)


def test_idx_longer_than_its_header_is_refused(tmp_path, rows):
    source, names = as_idx(tmp_path, rows)
    source.write_bytes(source.read_bytes() + b"more")
    assert "it is longer" in refused(tmp_path, source, names)


@pytest.mark.parametrize("form", PLAIN)
def test_missing_sources_are_named(tmp_path, rows, form):
    source, names = FORMATS[form](tmp_path, rows)
    shutil.rmtree(source) if source.is_dir() else source.unlink()
    assert f"the file {source.name}; it is missing" in refused(tmp_path, source, names, kind=form)


@pytest.mark.parametrize("form", PLAIN)
def test_empty_sources_are_refused(tmp_path, rows, form):
    source, names = FORMATS[form](tmp_path, {key: column[:0] for key, column in rows.items()})
    if form == "png":
        source.mkdir()
    if form == "hdf5":
        with h5py.File(source, "w") as file:
            file.create_group("examples")
    assert "it is empty" in refused(tmp_path, source, names, kind=form)


@pytest.mark.parametrize("form", ["parquet", "leaf", "hdf5"])
@pytest.mark.parametrize("value", [-LOUD, LOUD])
def test_labels_out_of_range_are_named_by_their_place(tmp_path, rows, form, value):
    own = np.flatnonzero(rows["user"] == SECRET)
    source, names = FORMATS[form](tmp_path, changed(rows, "y", own[4], value))
    told = refused(tmp_path, source, names, classes=10)
    assert (f"row {own[4]} " if form == "parquet" else "user index 2, row 4 ") in told


@pytest.mark.parametrize("form", ["parquet", "leaf"])
def test_labels_that_are_not_whole_are_refused(tmp_path, rows, form):
    source, names = FORMATS[form](tmp_path, rows | {"y": rows["y"] + LOUD + 0.5})
    assert "whole number" in refused(tmp_path, source, names)


@pytest.mark.parametrize("form", ["parquet", "png"])
@pytest.mark.parametrize(
    "damage", [lambda whole: whole[:30], lambda whole: whole[:-20], lambda whole: whole[:-8], flipped]
)
def test_a_damaged_picture_is_named_by_its_place(tmp_path, rows, form, damage):
    if form == "png":
        source, _ = as_png(tmp_path, rows)
        picture = sorted((source / SECRET).glob("*/*.png"))[5]
        picture.write_bytes(damage(picture.read_bytes()))
        assert "pictures, user index 2, row 5 is cut short" in refused(tmp_path, source)
    else:
        pictures = [encoded(image) for image in rows["x"]]
        pictures[17] = damage(pictures[17])
        source, _ = as_parquet(tmp_path, rows)
        table = pq.read_table(source)
        pq.write_table(table.set_column(1, "image", pa.array(pictures)), source)
        assert "rows.parquet, row 17 is cut short" in refused(tmp_path, source)


@pytest.mark.parametrize(
    ("image", "told"),
    [
        (np.zeros((SIDE, SIDE, 3), np.uint8), "Expected grey images"),
        (np.zeros((SIDE, SIDE, 4), np.uint8), "Expected grey images"),
        (np.zeros((SIDE, SIDE), np.uint16), "Expected grey images of 8 bits"),
        (np.zeros((SIDE, SIDE + 1), np.uint8), "Expected square images"),
        (np.zeros((SIDE + 1, SIDE + 1), np.uint8), "Expected images of one size"),
        (np.zeros((1025, 1025), np.uint8), "at most 1024"),
    ],
)
@pytest.mark.parametrize("step", [512, 1])
def test_pictures_of_another_kind_are_refused(tmp_path, rows, image, told, step, monkeypatch):
    monkeypatch.setattr(readers.parts, "ROWS", step)
    source, _ = as_png(tmp_path, rows)
    sorted((source / SECRET).glob("*/*.png"))[5].write_bytes(encoded(image))
    text = refused(tmp_path, source)
    assert told in text
    assert "user index 2, row 5 " in text


def test_other_files_among_the_pictures_are_refused(tmp_path, rows):
    source, _ = as_png(tmp_path, rows)
    (source / SECRET / "0").mkdir(exist_ok=True)
    (source / SECRET / "0" / f"{SECRET}.jpg").write_bytes(b"")
    assert "Expected .png files only in pictures, user index 2." in refused(tmp_path, source)


@pytest.mark.parametrize("shape", [(3, 5, 5), (5, 5, 3), (75,), (5, 6), (30,), (0,), ()])
def test_numbers_in_another_shape_are_refused(tmp_path, shape):
    with h5py.File(tmp_path / "rows.h5", "w") as file:
        file[f"examples/{SECRET}/pixels"] = np.zeros((2, *shape), np.float32)
        file[f"examples/{SECRET}/label"] = np.zeros(2, np.int32)
    told = refused(tmp_path, tmp_path / "rows.h5")
    assert "rows.h5, user index 0, row 0 " in told
    assert ("colour" in told) == (len(shape) == 3)


@pytest.mark.parametrize("value", [-0.5, 7654321.0, np.nan, np.inf])
@pytest.mark.parametrize("form", ["leaf", "hdf5", "parquet, floats"])
def test_pixels_out_of_range_are_refused(tmp_path, rows, form, value):
    own = np.flatnonzero(rows["user"] == SECRET)
    x = rows["x"].astype(float)
    x[own[4], 1, 1] = value * 255
    source, names = FORMATS[form](tmp_path, rows | {"x": x})
    place = f"row {own[4]} " if form.startswith("parquet") else "user index 2, row 4 "
    assert f"{place}holds others" in refused(tmp_path, source, names)


def test_lists_of_mixed_lengths_are_refused(tmp_path, rows):
    lists = [image.ravel().tolist() for image in rows["x"]]
    for row, bad, told in (
        (9, lists[9] * 4, "one size; rows.parquet, row 9 "),
        (9, [], "row 9 "),
        (9, None, "row 9 has none"),
    ):
        table = pa.table({"user": rows["user"], "label": rows["y"], "image": [*lists[:row], bad, *lists[row + 1 :]]})
        pq.write_table(table, tmp_path / "rows.parquet")
        assert told in refused(tmp_path, tmp_path / "rows.parquet")
    table = pa.table({"user": rows["user"], "label": rows["y"], "image": [[]] * 40})
    pq.write_table(table, tmp_path / "rows.parquet")
    assert refused(tmp_path, tmp_path / "rows.parquet")


def test_a_pixel_that_is_missing_is_named_by_its_row(tmp_path, rows):
    lists = [image.tolist() for image in rows["x"]]
    lists[9][2][3] = None
    table = pa.table({"user": rows["user"], "label": rows["y"], "image": lists})
    pq.write_table(table, tmp_path / "rows.parquet")
    assert "row 9 lacks one" in refused(tmp_path, tmp_path / "rows.parquet")


@pytest.mark.parametrize("column", ["user", "label"])
def test_empty_cells_are_named_by_their_row(tmp_path, rows, column):
    cells = {"user": rows["user"].tolist(), "image": [image.ravel().tolist() for image in rows["x"]], "label": [1] * 40}
    cells[column][23] = None
    pq.write_table(pa.table(cells), tmp_path / "rows.parquet")
    assert "row 23 has none" in refused(tmp_path, tmp_path / "rows.parquet")


def test_missing_columns_are_named_beside_those_that_are_there(tmp_path, rows):
    source, _ = as_parquet(tmp_path, rows)
    told = refused(tmp_path, source, users="writer", labels="class")
    assert "Expected writer, class in rows.parquet; it holds user, image, label." in told


def test_ids_of_two_types_are_refused(tmp_path, rows):
    folder = tmp_path / "shards"
    folder.mkdir()
    for number, users in enumerate((rows["user"], np.arange(40))):
        as_parquet(tmp_path, rows | {"user": users})[0].rename(folder / f"{number}.parquet")
    assert "ids of one type" in refused(tmp_path, folder)


@pytest.mark.parametrize("short", ["x", "y", "user"])
def test_files_of_different_lengths_are_refused(tmp_path, rows, short):
    source, names = as_idx(tmp_path, rows | {short: rows[short][:-1]})
    assert "as many rows in each of images-idx3-ubyte, labels-idx1-ubyte, users.npy" in refused(tmp_path, source, names)


@pytest.mark.parametrize("form", ["leaf", "hdf5"])
def test_a_user_with_more_images_than_labels_is_named_by_index(tmp_path, rows, form):
    source, _ = FORMATS[form](tmp_path, rows)
    if form == "leaf":
        about = json.loads(source.read_text())
        about["user_data"][SECRET]["y"].pop()
        source.write_text(json.dumps(about))
    else:
        with h5py.File(source, "r+") as file:
            del file[f"examples/{SECRET}/label"]
            file[f"examples/{SECRET}/label"] = np.zeros(3, np.int32)
    assert f"a label for every image in {source.name}, user index 2." in refused(tmp_path, source)


@pytest.mark.parametrize(
    "about",
    [
        [],
        {"users": [SECRET]},
        {"users": [SECRET], "user_data": {}},
        {"users": [[]], "user_data": {SECRET: {"x": [], "y": []}}},
        {"users": [SECRET], "user_data": {SECRET: {"x": [[0.5]]}}},
        {"users": [SECRET], "user_data": {SECRET: {"x": [["0.5"]], "y": [1]}}},
        {"users": [SECRET], "user_data": {SECRET: {"x": [[0.5], [0.5] * 4], "y": [1, 2]}}},
        {"users": [SECRET], "user_data": {SECRET: {"x": [[10**400]], "y": [1]}}},
        {"users": [SECRET], "user_data": {SECRET: {"x": [[0.5]], "y": [True]}}},
        {"users": [SECRET], "user_data": {SECRET: {"x": [[0.5]], "y": [10**30]}}},
        {"users": [SECRET], "user_data": {SECRET: {"x": [[]], "y": [1]}}},
        {"users": [SECRET], "user_data": {SECRET: {"x": [0.5], "y": [1]}}},
    ],
)
def test_json_that_is_not_leaf_is_refused(tmp_path, about):
    (tmp_path / "one.json").write_text(json.dumps(about))
    assert "one.json" in refused(tmp_path, tmp_path / "one.json")


def test_hdf5_without_the_groups_is_refused(tmp_path, rows):
    source, _ = as_hdf5(tmp_path, rows)
    assert "the group people in rows.h5" in refused(tmp_path, source, users="people")
    assert "columns image and label in rows.h5, user index 0" in refused(tmp_path, source, images="image")


def test_a_disk_that_fails_leaves_nothing(tmp_path, rows, monkeypatch):
    source, _ = as_parquet(tmp_path, rows)

    def full(*_):
        raise OSError("no space")

    monkeypatch.setattr(readers.os, "posix_fallocate", full)
    before = sorted(tmp_path.iterdir())
    with pytest.raises(OSError, match="no space"):
        readers.convert(source, tmp_path / "users")
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize(("name", "form"), [("pyarrow", "parquet"), ("h5py", "hdf5")])
def test_a_missing_library_is_named_with_its_cure(tmp_path, rows, name, form, monkeypatch):
    source, _ = FORMATS[form](tmp_path, rows)
    without_library(monkeypatch, name)
    with pytest.raises(ValueError, match=rf"Expected {name} to read \w+: pip install 'fedlens\[readers\]'\."):
        readers.convert(source, tmp_path / "out")


def test_unknown_kinds_and_needless_names_are_refused(tmp_path, rows):
    source, _ = as_leaf(tmp_path, rows)
    with pytest.raises(ValueError, match="among parquet, idx, leaf, hdf5, png"):
        readers.convert(source, tmp_path / "out", kind="csv")
    with pytest.raises(ValueError, match="no name of users for leaf"):
        readers.convert(source, tmp_path / "out", users="who")
    with pytest.raises(ValueError, match="files of labels and users"):
        readers.convert(source, tmp_path / "out", kind="idx")
    (tmp_path / "notes.txt").write_text("")
    assert "notes.txt as one of parquet" in refused(tmp_path, tmp_path / "notes.txt")
