"""Text populations of other formats: what went in comes out, broken ones are refused whole, and nobody is quoted."""

import ast
import contextlib
import gzip
import io
import json
import pathlib
import sqlite3
import sys
import sysconfig
import tracemalloc

import command_line
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from toys import without_library

from fedlens.data import readers
from fedlens.data.population import DataError, Population
from fedlens.data.readers import json_pieces
from fedlens.data.readers.json_pieces import Json
from fedlens.media.text.public import help_topics
from fedlens.models.words import as_row, as_sentence

h5py = pytest.importorskip("h5py")
pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

SECRET = "nick987654321"  # a user id that no error may quote
PRIVATE = "mysecretword"  # a word that no error may quote
LOUD = 7654321  # a number that no error may quote
ODD = [
    'a "quoted" \\ line',
    "naïve 😀 file\nwith lines\ttoo",
    "שלום עולם",
    "e\u0301",
    "",
    "<script>",
    "日本" * 200,
    "x" * 700,
]


@pytest.fixture
def rows():
    """Forty sentences of three users in no order, some of them odd."""
    rng = np.random.default_rng(0)
    texts = [f"{PRIVATE} number {row}" for row in range(40 - len(ODD))] + ODD
    users = np.array(["a", SECRET, "c"])[rng.permutation(np.repeat([0, 1, 2], [20, 13, 7]))]
    return {"user": users.tolist(), "text": texts, "year": [-3, *range(1990, 2029)]}


def zipped(rows):
    return list(zip(rows["user"], rows["text"], rows["year"], strict=True))


def held(rows, years=False):
    """Each user's rows, whatever their order: users sorted, texts sorted."""
    return [
        sorted((as_row(text).tobytes(), year if years else 0) for user, text, year in zipped(rows) if user == one)
        for one in sorted(set(rows["user"]))
    ]


def held_by(population, years=False):
    column = np.asarray(population.columns["text"])
    numbers = population.columns["year"] if years else np.zeros(len(column), int)
    return [
        sorted((column[row].tobytes(), int(numbers[row])) for row in range(start, start + count))
        for start, count in zip(population.starts.tolist(), population.counts.tolist(), strict=True)
    ]


def by_user(rows):
    return {user: [text for own, text, _ in zipped(rows) if own == user] for user in rows["user"]}


# Writers of generated data, one per format


def as_lines(root, rows, packed=False, ascii_only=True):
    lines = [
        json.dumps(
            {"user": user, "more": [{"a": [1.5e3, None, True, "b"]}], "text": text, "year": year},
            ensure_ascii=ascii_only,
        )
        for user, text, year in zipped(rows)
    ]
    return written(root, "rows.jsonl", lines, packed)


def as_user_lines(root, rows, late=False, packed=False):
    """A user a line, in two lines each; where `late`, the user's id comes after the sentences."""
    lines = []
    for part in (0, 1):
        for user, texts in by_user(rows).items():
            line = {"user": user, "text": texts[part::2]}
            lines.append(json.dumps(dict(reversed(line.items())) if late else line))
    return written(root, "rows.jsonl", lines, packed)


def written(root, name, lines, packed=False):
    content = "".join(f"{line}\n" for line in lines).encode()
    path = root / (f"{name}.gz" if packed else name)
    path.write_bytes(gzip.compress(content) if packed else content)
    return path


def as_parquet(root, rows, kind=None, lists=False, **options):
    path = root / "rows.parquet"
    if lists:
        users = by_user(rows)
        table = pa.table({"user": list(users), "text": list(users.values())})
    else:
        text = pa.array([one.encode() for one in rows["text"]]).cast(kind) if kind else rows["text"]
        table = pa.table({"user": rows["user"], "text": text, "year": rows["year"]})
    pq.write_table(table, path, **options)
    return path


def as_leaf(root, rows, form=lambda text: text, files=1):
    folder = root / "leaf"
    folder.mkdir()
    for number in range(files):
        users = by_user({key: column[number::files] for key, column in rows.items()})
        data = {user: {"y": [{"score": 1}], "x": [form(text) for text in texts]} for user, texts in users.items()}
        about = {"users": list(users), "num_samples": [len(one["x"]) for one in data.values()], "user_data": data}
        (folder / f"part{number}.json").write_text(json.dumps(about))
    return folder if files > 1 else folder / "part0.json"


def field(number, content, kind=2):
    key = bytes([number << 3 | kind])
    return key + (varint(len(content)) + content if kind == 2 else content)


def varint(value):
    value &= 2**64 - 1
    low, rest = value & 127, value >> 7
    return bytes([low | 128]) + varint(rest) if rest else bytes([low])


def example(texts, year=0, name="tokens", packed=True):
    """A tf.train.Example as TensorFlow writes it."""
    number = field(1, varint(year)) if packed else field(1, varint(year), kind=0)
    features = {
        "creation_date": field(1, field(1, b"2010-01-01")),
        name: field(1, b"".join(field(1, text) for text in texts)),
        "year": field(3, number),
        "ratio": field(2, field(1, b"\0\0\x80\x3f")),
    }
    entries = (field(1, key.encode()) + field(2, value) for key, value in features.items())
    return field(1, b"".join(field(1, entry) for entry in entries))


def as_sqlite(root, rows, packed=True, examples=None, splits=("train",)):
    path = root / "rows.sqlite"
    with contextlib.closing(sqlite3.connect(path)) as database, database:
        database.execute(
            "CREATE TABLE examples (split_name TEXT NOT NULL, client_id TEXT NOT NULL, serialized_example_proto BLOB)"
        )
        database.execute("CREATE INDEX idx ON examples (client_id)")
        made = examples or [example([text.encode()], year, packed=packed) for _, text, year in zipped(rows)]
        for number, (user, one) in enumerate(zip(rows["user"], made, strict=True)):
            database.execute("INSERT INTO examples VALUES (?, ?, ?)", (splits[number % len(splits)], user, one))
    return path


def as_hdf5(root, rows, fixed=False):
    path = root / "rows.h5"
    with h5py.File(path, "w") as file:
        for user in set(rows["user"]):
            own = [(text.encode(), year) for one, text, year in zipped(rows) if one == user]
            texts = [text for text, _ in own]
            file[f"examples/{user}/snippets"] = np.array(texts) if fixed else np.array(texts, h5py.string_dtype())
            file[f"examples/{user}/year"] = np.array([year for _, year in own], np.int32)
    return path


FORMATS = {
    "jsonl": as_lines,
    "jsonl, zipped": lambda root, rows: as_lines(root, rows, packed=True),
    "jsonl, raw UTF-8": lambda root, rows: as_lines(root, rows, ascii_only=False),
    "jsonl, a user a line": as_user_lines,
    "jsonl, ids last": lambda root, rows: as_user_lines(root, rows, late=True, packed=True),
    "parquet": as_parquet,
    "parquet, a user a row": lambda root, rows: as_parquet(root, rows, lists=True),
    "parquet, bytes": lambda root, rows: as_parquet(root, rows, pa.binary(), row_group_size=7),
    "parquet, large": lambda root, rows: as_parquet(root, rows, pa.large_string()),
    "leaf": as_leaf,
    "leaf, users in several files": lambda root, rows: as_leaf(root, rows, files=3),
    "sqlite": as_sqlite,
    "hdf5": as_hdf5,
    "hdf5, strings of one length": lambda root, rows: as_hdf5(root, rows, fixed=True),
}
PLAIN = ["jsonl", "jsonl, zipped", "parquet", "leaf", "sqlite", "hdf5"]


def refused(tmp_path, source, **options):
    """The text of the refusal, which quotes nobody and leaves nothing behind."""
    (tmp_path / "out").mkdir(exist_ok=True)
    with pytest.raises(DataError) as caught:
        readers.convert_text(source, tmp_path / "out" / "users", **options)
    told = str(caught.value)
    assert all(str(secret) not in told for secret in (SECRET, PRIVATE, LOUD))
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__ or caught.value.__context__ is None
    assert not list((tmp_path / "out").iterdir())
    return told


# Round trips


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("step", [512, 3])
def test_what_went_in_comes_out(tmp_path, rows, form, step, monkeypatch):
    monkeypatch.setattr(readers.parts, "ROWS", step)
    population = readers.convert_text(FORMATS[form](tmp_path, rows), tmp_path / "out")
    assert held_by(population) == held(rows)
    assert population.columns["text"].shape == (40, 256)
    assert population.columns["text"].dtype == np.uint8
    assert readers.checked_text(population) == []
    kept = b"".join(path.read_bytes() for path in (tmp_path / "out").iterdir())
    assert SECRET.encode() not in kept


@pytest.mark.parametrize("form", ["jsonl", "parquet", "sqlite", "hdf5"])
def test_whole_numbers_are_kept_beside_the_sentences(tmp_path, rows, form):
    population = readers.convert_text(FORMATS[form](tmp_path, rows), tmp_path / "out", attributes=["year"])
    assert held_by(population, years=True) == held(rows, years=True)
    assert population.columns["year"].dtype == np.int64


def test_numbers_that_are_not_packed_are_read_as_well(tmp_path, rows):
    source = as_sqlite(tmp_path, rows, packed=False)
    population = readers.convert_text(source, tmp_path / "out", attributes=["year"])
    assert held_by(population, years=True) == held(rows, years=True)


@pytest.mark.parametrize("form", ["jsonl", "jsonl, ids last", "jsonl, zipped"])
def test_text_reads_into_memory_what_convert_writes(tmp_path, rows, form):
    source = FORMATS[form](tmp_path, rows)
    population = readers.text(source)
    assert held_by(population) == held(rows)
    assert population.name == "rows"
    assert not isinstance(population.columns["text"], np.memmap)
    assert np.array_equal(population.columns["text"], readers.convert_text(source, tmp_path / "out").columns["text"])


def test_keys_may_have_other_names(tmp_path, rows):
    lines = [json.dumps({"who": user, "said": text, "user": {}, "text": 3}) for user, text, _ in zipped(rows)]
    source = written(tmp_path, "rows.jsonl", lines)
    assert held_by(readers.text(source, user="who", text="said")) == held(rows)
    assert held_by(readers.convert_text(source, tmp_path / "out", users="who", sentences="said")) == held(rows)


def test_a_folder_of_lines_is_one_population(tmp_path, rows):
    (tmp_path / "shards").mkdir()
    for number, packed in enumerate((False, True, True)):
        path = as_lines(tmp_path, {key: column[number::3] for key, column in rows.items()}, packed)
        path.rename(tmp_path / "shards" / f"{number}{''.join(path.suffixes)}")
    assert held_by(readers.convert_text(tmp_path / "shards", tmp_path / "out")) == held(rows)


@pytest.mark.parametrize("form", ["jsonl", "leaf", "hdf5", "parquet"])
def test_a_user_without_sentences_stays_a_user(tmp_path, form):
    users = {"a": ["one", "two"], "b": [], "c": ["three"]}
    source = tmp_path / {"jsonl": "r.jsonl", "leaf": "r.json", "hdf5": "r.h5", "parquet": "r.parquet"}[form]
    if form == "jsonl":
        source.write_text("\n".join(json.dumps({"text": text, "user": user}) for user, text in users.items()))
    elif form == "leaf":
        data = {user: {"x": text} for user, text in users.items()}
        source.write_text(json.dumps({"user_data": data, "users": list(users)}))
    elif form == "parquet":
        pq.write_table(pa.table({"user": list(users), "text": list(users.values())}), source)
    else:
        with h5py.File(source, "w") as file:
            for user, text in users.items():
                file[f"examples/{user}/snippets"] = np.array(text, h5py.string_dtype())
    population = readers.convert_text(source, tmp_path / "out")
    assert population.counts.tolist() == [2, 0, 1]
    assert readers.checked_text(population) == ["user index 1 holds no sentence; it will contribute nothing"]


def test_tokens_of_leaf_are_put_apart_by_spaces_and_its_frame_is_left_out(tmp_path):
    whole = ["<BOS>", "it", "is", "so", "<EOS>", "<PAD>"]
    for number, form in enumerate((whole, [whole[:4], whole[4:]], "it is so")):
        about = {"users": ["a"], "user_data": {"a": {"x": [form], "y": [0]}}}
        (tmp_path / "one.json").write_text(json.dumps(about))
        population = readers.convert_text(tmp_path / "one.json", tmp_path / str(number))
        assert as_sentence(population.columns["text"][0]) == "it is so"


def test_tokens_of_an_example_are_put_apart_by_spaces(tmp_path):
    source = as_sqlite(tmp_path, {"user": ["a"]}, examples=[example([b"it", b"is", b"so"], name="words")])
    population = readers.convert_text(source, tmp_path / "out", sentences="words")
    assert as_sentence(population.columns["text"][0]) == "it is so"


def test_one_split_can_be_chosen(tmp_path, rows):
    source = as_sqlite(tmp_path, rows, splits=("train", "test"))
    population = readers.convert_text(source, tmp_path / "trained", split="train")
    assert held_by(population) == held({key: column[::2] for key, column in rows.items()})
    assert "split heldout in rows.sqlite; there are none" in refused(tmp_path, source, split="heldout")


def test_ids_may_be_whole_numbers_lines_empty_and_marks_of_other_systems_there(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(
        b'\xef\xbb\xbf{"user": 10, "text": "b"}\r\n\r\n  \n{"user": 9, "text": ["a"] } \r\n{"user":10,"text":"c"}'
    )
    population = readers.text(tmp_path / "a.jsonl")
    assert [as_sentence(row) for row in population.columns["text"]] == ["a", "b", "c"]
    assert population.counts.tolist() == [1, 2]


def test_long_sentences_are_cut_between_characters(tmp_path):
    text = "x" + "é" * 300 + "\0"  # the NUL is behind the cut
    (tmp_path / "a.jsonl").write_text(json.dumps({"user": "a", "text": [text, "😀" * 70]}))
    kept = [as_sentence(row) for row in readers.text(tmp_path / "a.jsonl").columns["text"]]
    assert kept == ["x" + "é" * 127, "😀" * 64]


# JSON, piece by piece


def everything(read):
    """The next value as Python has it."""
    mark = read.peek()
    if mark == '"':
        return read.string(10**9)
    if mark == "{":
        return {key: everything(read) for key in read.members()}
    if mark == "[":
        return [everything(read) for _ in read.items()]
    if mark and mark in "-0123456789":
        return read.whole()
    read.skip()
    return None


VALUES = st.recursive(
    st.none() | st.integers(-(2**63), 2**63 - 1) | st.text(max_size=30),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=20,
)


@settings(max_examples=150, deadline=None)
@given(VALUES, st.booleans(), st.sampled_from([None, 1, 40]), st.integers(1, 40))
def test_pieces_of_any_size_read_the_same(value, ascii_only, indent, chunk):
    content = json.dumps(value, ensure_ascii=ascii_only, indent=indent).encode("utf-8", "replace")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(json_pieces, "_CHUNK", chunk)
        patched.setattr(json_pieces, "_AHEAD", 24)
        read = Json(io.BytesIO(content), "x")
        assert everything(read) == json.loads(content)
        assert read.peek() == ""


@settings(max_examples=300, deadline=None)
@given(st.text(alphabet='{}[]:,"\\ud8a0e+-.1trfalsn \n\x01é', max_size=12) | VALUES.map(json.dumps), st.data())
def test_what_is_no_json_is_never_taken_for_it(content, data):
    at = data.draw(st.integers(0, len(content)))
    content = content[:at] + content[at + 1 :]
    try:
        meant, good = json.loads(content), True
    except ValueError:
        meant, good = None, False
    assume("\\ud" not in json.dumps(meant).lower())  # half a character, which Python takes for a whole one
    read = Json(io.BytesIO(content.encode()), "x")
    try:
        read.skip()
        accepted = read.peek() == ""
    except DataError:
        accepted = False
    assert accepted == good


@pytest.mark.parametrize("chunk", [3, *range(256, 276)])
def test_a_character_in_two_halves_may_lie_where_the_file_or_the_string_is_cut(chunk, monkeypatch):
    monkeypatch.setattr(json_pieces, "_CHUNK", chunk)
    monkeypatch.setattr(json_pieces, "_AHEAD", 16)
    content = json.dumps("a" * 255 + "😀" + "b" * 600).encode()
    assert Json(io.BytesIO(content), "x").string(256) in ("a" * 255, "a" * 255 + "😀")
    assert Json(io.BytesIO(content), "x").string(300) == "a" * 255 + "😀" + "b" * 44


# Memory


@pytest.fixture
def small(monkeypatch):
    """Parts so small that a test need not be large."""
    monkeypatch.setattr(readers.parts, "ROWS", 32)
    monkeypatch.setattr(json_pieces, "_CHUNK", 4096)


def peak(call):
    tracemalloc.start()
    try:
        result = call()
        return result, tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("form", ["jsonl", "leaf"])
def test_memory_does_not_grow_with_the_sentences_of_one_user(tmp_path, small, form, late):
    count = 5_000  # half a MB of JSON in one line, more than one as rows
    sentences = ", ".join(f'"{number:090d}"' for number in range(count))
    name = tmp_path / ("a.json" if form == "leaf" else "a.jsonl")
    if form == "leaf":
        x = f'{{"x": [{sentences}], "y": []}}'
        told = ['"users": ["a"]', f'"user_data": {{"a": {x}}}']
    else:
        told = ['"user": "a"', f'"text": [{sentences}]']
    name.write_text("{" + ", ".join(reversed(told) if late else told) + "}")
    del sentences, told
    population, most = peak(lambda: readers.convert_text(name, tmp_path / "out"))
    assert population.counts.tolist() == [count]
    assert as_sentence(population.columns["text"][-1]) == f"{count - 1:090d}"
    assert most < 2e5


@pytest.mark.parametrize("form", ["jsonl", "leaf", "sqlite", "hdf5", "parquet"])
def test_memory_does_not_grow_with_the_length_of_sentences(tmp_path, small, form):
    texts = [f"{number} " + "né " * 40_000 for number in range(100)]
    rows = {"user": ["a"] * 100, "text": texts, "year": [0] * 100}
    pages = {"write_batch_size": 1, "use_dictionary": False} if form == "parquet" else {}  # a page is read at once
    source = FORMATS[form](tmp_path, rows, **pages)
    expected = held(rows)
    del rows, texts
    pool, before = pa.proxy_memory_pool(pa.default_memory_pool()), pa.default_memory_pool()
    pa.set_memory_pool(pool)
    try:
        population, most = peak(lambda: readers.convert_text(source, tmp_path / "out"))
    finally:
        pa.set_memory_pool(before)
    assert held_by(population) == expected
    assert most < {"jsonl": 4e5, "leaf": 4e5, "sqlite": 3e6, "hdf5": 8e6, "parquet": 3e6}[form]  # of 16 MB
    assert pool.max_memory() < 8e6


@pytest.mark.parametrize("key", ["text", "more", "user"])
def test_memory_does_not_grow_with_a_string_of_a_million_characters(tmp_path, small, key):
    line = {"user": "a", "text": "b", "more": "c"} | {key: "\\n😀é" * 400_000}
    (tmp_path / "a.jsonl").write_text(json.dumps(line))
    del line

    def read():
        with contextlib.suppress(DataError):  # of an id so long
            return readers.text(tmp_path / "a.jsonl")

    population, most = peak(read)
    assert (population is None) == (key == "user")
    assert most < 2e5


def test_memory_does_not_grow_with_the_number_of_lines(tmp_path, small):
    with (tmp_path / "a.jsonl").open("w") as file:
        for number in range(2_000):
            file.write(f'{{"user": {number % 7}, "text": "{number}", "more": "{"x" * 200}"}}\n')
    population, most = peak(lambda: readers.convert_text(tmp_path / "a.jsonl", tmp_path / "out"))
    assert len(population) == 7
    assert most < 2e5


# Refusals


@pytest.mark.parametrize("form", PLAIN)
def test_an_existing_folder_is_left_alone(tmp_path, rows, form):
    source = FORMATS[form](tmp_path, rows)
    (tmp_path / "mine").mkdir()
    with pytest.raises(DataError, match="mine exists"):
        readers.convert_text(source, tmp_path / "mine")
    assert not list((tmp_path / "mine").iterdir())


@pytest.mark.parametrize("form", [*PLAIN, "jsonl, a user a line", "jsonl, ids last"])
@pytest.mark.parametrize("kept", [0.1, 0.3, 0.7, 0.98])
def test_a_file_cut_short_is_refused(tmp_path, rows, form, kept):
    source = FORMATS[form](tmp_path, rows)
    source.write_bytes(source.read_bytes()[: int(kept * source.stat().st_size)])
    told = refused(tmp_path, source)
    assert source.name in told
    assert "cut short or damaged" in told


def test_a_database_cut_at_any_page_or_byte_is_refused(tmp_path, rows):
    source = as_sqlite(tmp_path, rows)
    content = source.read_bytes()
    for size in (*range(4096, len(content), 4096), len(content) - 1, len(content) - 3000):
        source.write_bytes(content[:size])
        assert "cut short or damaged" in refused(tmp_path, source)


@pytest.mark.parametrize("at", [0, 12, 200, -6, -2])
def test_a_zipped_file_with_a_bit_flipped_is_refused(tmp_path, rows, at):
    source = as_lines(tmp_path, rows, packed=True)
    content = bytearray(source.read_bytes())
    content[at] ^= 0x40
    source.write_bytes(content)
    assert "rows.jsonl.gz" in refused(tmp_path, source)


def test_a_zipped_file_with_more_behind_it_is_refused(tmp_path, rows):
    source = as_lines(tmp_path, rows, packed=True)
    source.write_bytes(source.read_bytes() + b"more")
    assert "cut short or damaged" in refused(tmp_path, source)


@pytest.mark.parametrize("form", PLAIN)
def test_missing_sources_are_named(tmp_path, rows, form):
    source = FORMATS[form](tmp_path, rows)
    source.unlink()
    assert f"the file {source.name}; it is missing" in refused(tmp_path, source, kind=form.split(",")[0])


@pytest.mark.parametrize("form", [*PLAIN, "jsonl, a user a line"])
def test_empty_sources_are_refused(tmp_path, rows, form):
    source = FORMATS[form](tmp_path, {key: column[:0] for key, column in rows.items()})
    if form == "parquet":
        pq.write_table(pa.table({"user": pa.array([], pa.string()), "text": pa.array([], pa.string())}), source)
    if form == "hdf5":
        with h5py.File(source, "w") as file:
            file.create_group("examples")
    assert "it is empty" in refused(tmp_path, source)


@pytest.mark.parametrize(
    ("line", "told"),
    [
        (b"{", "whole JSON in rows.jsonl, line 2; it is cut short or damaged"),
        (b"%s", "an object in rows.jsonl, line 2"),
        (b'"%s"', "an object in rows.jsonl, line 2"),
        (b"[]", "an object in rows.jsonl, line 2"),
        (b"3", "an object in rows.jsonl, line 2"),
        (b'{"user": "%s", "text": "%s"} more', "whole JSON in rows.jsonl, line 2"),
        (b'{"user": "%s", "text": "%s"} {}', "whole JSON in rows.jsonl, line 2"),
        (b'{"user": "%s", "text": "%s",}', "rows.jsonl, line 2"),
        (b'{"user": "%s" "text": "%s"}', "whole JSON in rows.jsonl, line 2"),
        (b'{"user": "%s",\n"text": "%s"}', "rows.jsonl, line 2"),
        (b'{"user": "%s", "text": ["%s", ]}', "rows.jsonl, line 2"),
        (b'{"user": "%s", "text": "%s\\x"}', "whole JSON in rows.jsonl, line 2"),
        (b'{"user": "%s", "text": "%s\\u12g4"}', "whole JSON in rows.jsonl, line 2"),
        (b'{"user": "%s", "text": "%s\t"}', "whole JSON in rows.jsonl, line 2"),
        (b'{"user": "%s", "text": "%s\xff"}', "valid UTF-8 in rows.jsonl, line 2"),
        (b'{"user": "%s", "text": "%s\xc3"}', "valid UTF-8 in rows.jsonl, line 2"),
        (b'{"user": "%s", "text": "%s\xed\xa0\x80"}', "valid UTF-8 in rows.jsonl, line 2"),
        (b'{"user": "%s", "text": "%s", "more": "\xff"}', "valid UTF-8 in rows.jsonl, line 2"),
        (b'{"user": "%s", "text": "%s\\ud83d"}', "valid UTF-8 in rows.jsonl, line 2"),
        (b'{"user": "%s", "text": "%s\\ude00\\ud83d"}', "valid UTF-8 in rows.jsonl, line 2"),
        (b'{"user": "%s\\ud83d", "text": "%s"}', "valid UTF-8 in rows.jsonl, line 2"),
        (b'{"user": "%s", "text": "%s\\u0000"}', "no NUL character in rows.jsonl, line 2"),
        (b'{"user": "%s", "text": ["a", "\\u0000%s"]}', "no NUL character in rows.jsonl, line 2"),
        (b'{"user": "%s", "text": "\0%s"}', "whole JSON in rows.jsonl, line 2"),
        (b'{"user": "%s", "text": 7654321}', "text in rows.jsonl, line 2"),
        (b'{"user": "%s", "text": null}', "text in rows.jsonl, line 2"),
        (b'{"user": "%s", "text": {"%s": 1}}', "text in rows.jsonl, line 2"),
        (b'{"user": "%s", "text": ["a", ["%s"]]}', "text in rows.jsonl, line 2"),
        (b'{"user": "%s", "text": ["a", 7654321]}', "text in rows.jsonl, line 2"),
        (b'{"user": "%s", "text": [null]}', "text in rows.jsonl, line 2"),
        (b'{"user": null, "text": "%s"}', "a whole number in rows.jsonl, line 2"),
        (b'{"user": 7654321.0, "text": "%s"}', "a whole number in rows.jsonl, line 2"),
        (b'{"user": true, "text": "%s"}', "a whole number in rows.jsonl, line 2"),
        (b'{"user": ["%s"], "text": "%s"}', "a whole number in rows.jsonl, line 2"),
        (b'{"user": 7654321, "text": "%s"}', "user ids of one type in all of rows.jsonl"),
        (b'{"user": "%s"}', "text in rows.jsonl, line 2; it has none"),
        (b'{"text": "%s"}', "user in rows.jsonl, line 2; it has none"),
        (b'{"user": "%s", "text": "%s", "text": "%s"}', "text once in rows.jsonl, line 2"),
        (b'{"user": "%s", "user": "a", "text": "%s"}', "user once in rows.jsonl, line 2"),
        (b'{"user": "%s", "text": "a", "more": ' + b"[" * 5000 + b"]" * 5000 + b"}", "rows.jsonl, line 2"),
        (b'{"user": "%s", "text": "a", "more": tru}', "whole JSON in rows.jsonl, line 2"),
        (b'{"user": "%s' + b"x" * 1000 + b'", "text": "a"}', "user ids of at most 1000 characters"),
    ],
)
def test_a_bad_line_is_named_by_its_number(tmp_path, line, told):
    hidden = line.replace(b"%s", SECRET.encode(), 1).replace(b"%s", PRIVATE.encode())
    content = b'{"user": "a", "text": "good"}\n' + hidden + b'\n{"user": "a", "text": "good"}\n'
    for name, bytes_ in (("rows.jsonl", content), ("rows.jsonl.gz", gzip.compress(content))):
        (tmp_path / name).write_bytes(bytes_)
        assert told.replace("rows.jsonl", name) in refused(tmp_path, tmp_path / name)
        with pytest.raises(DataError, match=r"rows\.jsonl"):
            readers.text(tmp_path / name)


@pytest.mark.parametrize("value", ['"7654321"', "7654321.5", "true", "null", "9223372036854775808", "[1]", "1e3"])
def test_attributes_that_are_not_whole_are_refused(tmp_path, value):
    path = written(tmp_path, "rows.jsonl", [f'{{"user": "{SECRET}", "text": "{PRIVATE}", "year": {value}}}'])
    assert "a whole number in rows.jsonl, line 1" in refused(tmp_path, path, attributes=["year"])
    assert readers.text(path).counts.tolist() == [1]  # who does not ask for it does not mind
    assert "month in rows.jsonl, line 1; it has none" in refused(tmp_path, path, attributes=["month"])


@pytest.mark.parametrize(
    "names", [["text"], ["x"], ["mask"], ["offsets"], ["../up"], ["a", "a"], ["user"], [""], ["é"]]
)
@pytest.mark.parametrize("form", ["jsonl", "parquet", "sqlite", "hdf5"])
def test_attributes_must_make_good_columns(tmp_path, rows, form, names):
    if names == ["user"] and form in ("sqlite", "hdf5"):
        pytest.skip("there it is no name of a key")
    source = FORMATS[form](tmp_path, rows)
    with pytest.raises(ValueError, match="distinct names of letters, digits and _"):
        readers.convert_text(source, tmp_path / "out", attributes=names)


ARROW = {
    "text": (pa.array([PRIVATE, None]), "row 1 has none"),
    "number": (pa.array([LOUD, 1]), "text or lists of it in rows.parquet, got int64"),
    "lists": (pa.array([[1], [2]]), "text or lists of it"),
    "null inside": (pa.array([[PRIVATE], [PRIVATE, None]]), "text in rows.parquet, row 1"),
    "NUL": (pa.array(["a", f"{PRIVATE}\0"]), "no NUL character in rows.parquet, row 1"),
    "bad bytes": (pa.array([b"a", PRIVATE.encode() + b"\xff"]), "valid UTF-8 in rows.parquet, row 1"),
    "bad text": (pa.array([b"a", b"\xff"]).view(pa.string()), "valid UTF-8 in rows.parquet, row 1"),
}


@pytest.mark.parametrize("case", ARROW)
def test_parquet_without_text_is_refused(tmp_path, case):
    column, told = ARROW[case]
    pq.write_table(pa.table({"user": [SECRET, "b"], "text": column}), tmp_path / "rows.parquet")
    assert told in refused(tmp_path, tmp_path / "rows.parquet")


def test_parquet_names_what_is_missing(tmp_path, rows):
    source = as_parquet(tmp_path, rows)
    assert "Expected said in rows.parquet; it holds user, text, year." in refused(tmp_path, source, sentences="said")
    table = pa.table({"user": [SECRET], "text": ["a"], "year": pa.array([2**64 - 1], pa.uint64())})
    pq.write_table(table, source)
    assert "whole numbers in rows.parquet, row 0" in refused(tmp_path, source, attributes=["year"])


@pytest.mark.parametrize(
    "about",
    [
        [],
        {"users": [SECRET]},
        {"user_data": {SECRET: {"x": [PRIVATE]}}},
        {"users": [SECRET], "user_data": {}},
        {"users": [SECRET, SECRET], "user_data": {SECRET: {"x": [PRIVATE]}}},
        {"users": ["b"], "user_data": {SECRET: {"x": [PRIVATE]}}},
        {"users": [LOUD], "user_data": {SECRET: {"x": [PRIVATE]}}},
        {"users": [SECRET], "user_data": {SECRET: {"y": [1]}}},
        {"users": [SECRET], "user_data": {SECRET: {"x": PRIVATE}}},
        {"users": [SECRET], "user_data": {SECRET: [PRIVATE]}},
        {"users": [SECRET], "user_data": {SECRET: {"x": [LOUD]}}},
        {"users": [SECRET], "user_data": {SECRET: {"x": [[PRIVATE, LOUD]]}}},
        {"users": [SECRET], "user_data": {SECRET: {"x": [[[[PRIVATE]]]]}}},
        {"users": [SECRET], "user_data": {SECRET: {"x": [f"{PRIVATE}\0"]}}},
        {"users": [SECRET], "user_data": {SECRET: {"x": ["\ud83d"]}}},
    ],
)
def test_json_that_is_not_leaf_is_refused(tmp_path, about):
    (tmp_path / "one.json").write_text(json.dumps(about))
    assert "one.json" in refused(tmp_path, tmp_path / "one.json")


def test_a_user_who_is_in_a_leaf_file_twice_is_refused(tmp_path):
    user = f'"{SECRET}": {{"x": ["{PRIVATE}"]}}'
    (tmp_path / "one.json").write_text(f'{{"users": ["{SECRET}", "b"], "user_data": {{{user}, {user}}}}}')
    assert "one.json, entry 1 of user_data" in refused(tmp_path, tmp_path / "one.json")
    (tmp_path / "one.json").write_text(f'{{"users": ["{SECRET}"], "user_data": {{{user}}}}} {{}}')
    assert "cut short or damaged" in refused(tmp_path, tmp_path / "one.json")


GOOD = example([PRIVATE.encode()], LOUD)
EXAMPLES = {
    "bytes missing": (GOOD[:-3], "whole tf.train.Example in rows.sqlite, row 1"),
    "more bytes": (GOOD + b"\x0a", "whole tf.train.Example"),
    "a group": (GOOD + b"\x0b", "whole tf.train.Example"),
    "an endless number": (b"\x08" + b"\xff" * 20, "whole tf.train.Example"),
    "a number for a message": (b"\x08\x01", "whole tf.train.Example"),
    "nothing": (b"", "the features tokens in rows.sqlite, row 1"),
    "other names": (example([b"a"], name="title"), "the features tokens in rows.sqlite, row 1"),
    "no example": (PRIVATE, "an example in rows.sqlite, row 1"),
    "null": (None, "an example in rows.sqlite, row 1"),
    "bad bytes": (example([b"\xff"]), "valid UTF-8 in rows.sqlite, row 1"),
    "NUL": (example([b"\0"]), "no NUL character in rows.sqlite, row 1"),
}


@pytest.mark.parametrize("case", EXAMPLES)
def test_a_bad_example_is_named_by_its_row(tmp_path, case):
    bad, told = EXAMPLES[case]
    source = as_sqlite(tmp_path, {"user": ["a", SECRET]}, examples=[GOOD, bad])
    assert told in refused(tmp_path, source)


def test_features_of_another_kind_are_refused(tmp_path):
    source = as_sqlite(tmp_path, {"user": [SECRET]}, examples=[GOOD])
    assert "Expected text in the features of rows.sqlite, row 0" in refused(tmp_path, source, sentences="year")
    told = refused(tmp_path, source, attributes=["ratio"])
    assert "Expected whole numbers in the features of rows.sqlite, row 0" in told


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_no_damage_to_an_example_is_anything_but_a_refusal(data):
    content = bytearray(GOOD)
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(DataError):
        text, year = sys.modules["fedlens.data.readers.sqlite"]._example(bytes(content), "tokens", ["year"], "here")
        assert isinstance(text, bytes)
        assert -(2**63) <= year < 2**63


def test_other_databases_are_refused(tmp_path):
    with contextlib.closing(sqlite3.connect(tmp_path / "a.db")) as database, database:
        database.execute("CREATE TABLE examples (client_id TEXT)")
    told = refused(tmp_path, tmp_path / "a.db")
    assert "Expected split_name, serialized_example_proto in the table examples of a.db." in told
    (tmp_path / "a.db").write_bytes(PRIVATE.encode() * 1000)
    assert "cut short or damaged" in refused(tmp_path, tmp_path / "a.db")


def test_hdf5_without_text_is_refused(tmp_path, rows):
    source = as_hdf5(tmp_path, rows)
    assert "the group people in rows.h5" in refused(tmp_path, source, users="people")
    assert "columns words in rows.h5, user index 0" in refused(tmp_path, source, sentences="words")
    assert "text in rows.h5, user index 0, row 0" in refused(tmp_path, source, sentences="year")
    told = refused(tmp_path, source, attributes=["snippets"], sentences="year")
    assert "rows.h5, user index 0, row 0" in told
    with h5py.File(source, "r+") as file:
        file[f"examples/{SECRET}/snippets"][4] = PRIVATE.encode() + b"\xff"
    assert "valid UTF-8 in rows.h5, user index 2, row 4" in refused(tmp_path, source)
    with h5py.File(source, "r+") as file:
        del file[f"examples/{SECRET}/year"]
        file[f"examples/{SECRET}/year"] = np.zeros(3, int)
    assert "one length in rows.h5, user index 2" in refused(tmp_path, source, attributes=["year"])


def test_a_disk_that_fails_leaves_nothing(tmp_path, rows, monkeypatch):
    source = as_lines(tmp_path, rows)

    def full(*_):
        raise OSError("no space")

    monkeypatch.setattr(readers.os, "posix_fallocate", full)
    before = sorted(tmp_path.iterdir())
    with pytest.raises(OSError, match="no space"):
        readers.convert_text(source, tmp_path / "users")
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("swap", [(SECRET, "b"), (f'"{PRIVATE} number 3", ', ""), ("[", '["more", ')])
def test_a_file_that_changes_while_it_is_read_is_refused(tmp_path, rows, swap, late, monkeypatch):
    source = as_user_lines(tmp_path, rows, late=late)
    really = readers.OF_TEXT["jsonl"]

    def meddled(*args, **names):
        found = really(*args, **names)
        before = source.read_text()
        source.write_text(before.replace(*swap))
        assert source.read_text() != before
        return found

    monkeypatch.setitem(readers.OF_TEXT, "jsonl", meddled)
    assert "to stay as it is while it is read" in refused(tmp_path, source)


@pytest.mark.parametrize(("name", "form"), [("pyarrow", "parquet"), ("h5py", "hdf5")])
def test_a_missing_library_is_named_with_its_cure(tmp_path, rows, name, form, monkeypatch):
    source = FORMATS[form](tmp_path, rows)
    without_library(monkeypatch, name)
    with pytest.raises(ValueError, match=rf"Expected {name} to read \w+: pip install 'fedlens\[readers\]'\."):
        readers.convert_text(source, tmp_path / "out")


def test_unknown_kinds_and_needless_names_are_refused(tmp_path, rows):
    source = as_leaf(tmp_path, rows)
    with pytest.raises(ValueError, match="of sentences among jsonl, parquet, leaf, sqlite, hdf5"):
        readers.convert_text(source, tmp_path / "out", kind="idx")
    with pytest.raises(ValueError, match="no name of attributes, users for leaf"):
        readers.convert_text(source, tmp_path / "out", users="who", attributes=["year"])
    with pytest.raises(ValueError, match="no name of split for jsonl"):
        readers.convert_text(as_lines(tmp_path, rows), tmp_path / "out", split="train")
    (tmp_path / "notes.txt").write_text("")
    assert "notes.txt as one of" in refused(tmp_path, tmp_path / "notes.txt")


# Checks of the canonical form


def whole(*texts):
    return Population.from_arrays("a", {"text": np.stack([as_row(text) for text in texts])}, np.array([len(texts)]))


def test_a_check_finds_the_first_bad_row():
    good = whole("one", "", "é" * 128, "two")
    assert readers.checked_text(good) == []
    for place, value, told in (
        ((1, 5), 97, "text, row 1 has zeros before its end"),
        ((3, 2), 0xFF, "text, row 3 is not valid UTF-8"),
        ((2, 255), 0xC3, "text, row 2 is not valid UTF-8"),
    ):
        column = good.columns["text"].copy()
        column[place] = value
        assert readers.checked_text(Population.from_arrays("a", {"text": column}, np.array([4]))) == [told]


def test_a_character_across_two_rows_is_no_character():
    column = np.full((2, 256), 97, np.uint8)
    column[0, 255], column[1, 0] = "é".encode()
    assert readers.checked_text(Population.from_arrays("a", {"text": column}, np.array([2]))) == [
        "text, row 0 is not valid UTF-8"
    ]


@pytest.mark.parametrize("column", [np.zeros((2, 256), np.int16), np.zeros((2, 80), np.uint8), np.zeros(2, np.uint8)])
def test_a_check_names_other_shapes(column):
    (told,) = readers.checked_text(Population.from_arrays("a", {"text": column}, np.array([2])))
    assert told.endswith("not uint8 [256]")


# The command line


def fedlens(*arguments):
    done = command_line.fedlens(*arguments)
    return done.code, done.out, done.err


@pytest.mark.parametrize("form", PLAIN)
def test_convert_makes_a_folder_that_check_accepts(tmp_path, rows, form):
    told = [] if form.startswith(("jsonl", "sqlite")) else ["--text"]
    code, out, err = fedlens("data", "convert", FORMATS[form](tmp_path, rows), tmp_path / "people", *told, "--json")
    assert (code, err) == (0, "")
    assert json.loads(out)["columns"] == {"text": "uint8 [256]"}
    assert held_by(Population.open(tmp_path / "people")) == held(rows)
    code, out, _ = fedlens("data", "check", tmp_path / "people")
    assert (code, out.splitlines()[:2]) == (0, ["text: uint8 [256]", "ok"])


def test_a_folder_may_be_called_like_a_file(tmp_path, rows):
    for name in ("people.jsonl", "people.npz"):
        code, out, _ = fedlens("data", "convert", as_lines(tmp_path, rows), tmp_path / name)
        assert (code, out.splitlines()[-1]) == (
            0,
            f"Wrote {tmp_path / name}. Next: fedlens data check {tmp_path / name}",
        )
        code, out, _ = fedlens(*out.split("Next: fedlens ")[1].split())
        assert (code, out.splitlines()[:2]) == (0, ["text: uint8 [256]", "ok"])


@pytest.mark.parametrize("sentence", ["one", "é" * 150, "x" * 300])
def test_that_sentences_are_cut_is_told_alike_whether_any_is(tmp_path, sentence):
    source = written(tmp_path, "some.jsonl", [json.dumps({"user": "a", "text": ["two", sentence]})])
    note = "of every sentence the first 256 bytes are used"
    code, out, _ = fedlens("data", "convert", source, tmp_path / "people")
    assert (code, out.splitlines()[0]) == (0, f"note: {note}")
    for path in (source, tmp_path / "people"):
        code, out, _ = fedlens("data", "check", path)
        assert (code, out.splitlines()) == (0, ["text: uint8 [256]", "ok", f"note: {note}"])
        assert json.loads(fedlens("data", "check", path, "--json")[1])["notes"] == [note]


def test_options_reach_the_readers(tmp_path, rows):
    source = as_lines(tmp_path, rows)
    renamed = [line.replace('"user"', '"who"').replace('"text"', '"said"') for line in source.read_text().splitlines()]
    written(tmp_path, "rows.jsonl", [line.replace('"year"', '"year": 1, "month"') for line in renamed])
    named = ("--users", "who", "--sentences", "said")
    code, *_ = fedlens("data", "convert", source, tmp_path / "people", *named, "--attributes", "year,month")
    assert code == 0
    assert set(Population.open(tmp_path / "people").columns) == {"text", "year", "month"}
    assert fedlens("data", "check", source, *named)[0] == 0
    assert fedlens("data", "check", source)[0] == 2


@pytest.mark.parametrize("option", [("--images", "x"), ("--labels", "y"), ("--classes", "3"), ("--inverted",)])
def test_options_of_images_are_none_of_text(tmp_path, rows, option):
    code, out, err = fedlens("data", "convert", as_lines(tmp_path, rows), tmp_path / "people", *option)
    assert (code, out) == (2, "")
    assert f"Expected no {option[0]} for text." in err


def test_options_of_text_are_none_of_images(tmp_path, rows):
    code, _, err = fedlens("data", "convert", as_leaf(tmp_path, rows), tmp_path / "people", "--split", "train")
    assert (code, err) == (2, "Expected no --split for images.\n")


def test_the_command_line_quotes_nobody(tmp_path):
    content = f'{{"user": "{SECRET}", "text": "{PRIVATE}\\u0000"}}\n'
    (tmp_path / "a.jsonl").write_text(content)
    for sentence in (("convert", tmp_path / "a.jsonl", tmp_path / "people"), ("check", tmp_path / "a.jsonl")):
        code, out, err = fedlens("data", *sentence)
        assert (code, out, err) == (2, "", "Expected no NUL character in a.jsonl, line 1; it holds one.\n")
    assert [path.name for path in tmp_path.iterdir()] == ["a.jsonl"]


def test_check_fails_on_rows_that_are_no_text(tmp_path):
    population = whole("one", "two")
    column = population.columns["text"].copy()
    column[1, 1] = 0
    Population.from_arrays("a", {"text": column}, np.array([2])).save(tmp_path / "people")
    code, out, _ = fedlens("data", "check", tmp_path / "people")
    assert code == 1
    assert "text, row 1 has zeros before its end" in out


# The docstrings of Python


@pytest.fixture
def library(tmp_path, monkeypatch):
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path / name))
    root = tmp_path / "stdlib"
    root.mkdir()
    return root


def test_one_module_is_one_user(library, monkeypatch):
    really = pathlib.Path.rglob
    monkeypatch.setattr(pathlib.Path, "rglob", lambda self, what: sorted(really(self, what), reverse=True))
    (library / "b.py").write_text(
        '"""First. Second (of two.) Third!\n\n    >>> code(1)\n    Out\n"""\nraise SystemExit\n'
        'class A:\n    """Of a\n    class."""\n    def f(self): "Inner \\\\d"\nasync def g():\n    "Last"\n'
    )
    (library / "a.py").write_text('def f():\n    """Read \\d"""\n')
    (library / "empty.py").write_text("x = 1\n")
    (library / "broken.py").write_text('"""Old"""\nprint "two"\n')
    for name in ("test", "site-packages", "dist-packages", "pydoc_data", "idlelib/idle_test"):
        (library / name).mkdir(parents=True)
        (library / name / "a.py").write_text('"""Not this one."""\n')
    population = readers.docstrings()
    said = [as_sentence(row) for row in population.columns["text"]]
    assert said == ["Read \\d", "First.", "Second (of two.)", "Third!", "Out", "Of a class.", "Inner \\d", "Last"]
    assert population.counts.tolist() == [1, 7]
    assert readers.checked_text(population) == []


def test_a_python_without_sources_is_refused(library):
    with pytest.raises(DataError, match="source files of Python's standard library"):
        readers.docstrings()


def test_the_real_library_reads_the_same_every_time(monkeypatch):
    """A part of it, to be quick: the names that begin with b."""
    root, really = pathlib.Path(sysconfig.get_path("stdlib")), pathlib.Path.rglob
    monkeypatch.setattr(pathlib.Path, "rglob", lambda self, what: [*really(self, f"[b]{what}")][::-1])
    population, again = readers.docstrings(), readers.docstrings()
    assert len(population) >= 5
    assert readers.checked_text(population) == []
    assert np.array_equal(population.columns["text"], again.columns["text"])
    assert np.array_equal(population.counts, again.counts)
    said = {as_sentence(row) for row in population.columns["text"]}
    assert ast.get_docstring(ast.parse((root / "bisect.py").read_text())) in said


def test_the_public_text_is_english_and_no_docstring():
    said = "\n".join(help_topics())
    assert said == "\n".join(help_topics())
    assert len(said) > 100_000
    assert "statement" in said
