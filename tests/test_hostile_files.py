"""No file, however damaged or hostile, ends in anything but an error of ours, takes all memory, or is quoted."""

import dataclasses
import gzip
import io
import json
import os
import pathlib
import resource
import sqlite3
import struct
import zipfile
import zlib

import fuzzing
import h5py
import numpy as np
import pytest
import torch
from fuzzing import CANARY, DEEP, TARGETS, Fuzzer, escape

from fedlens.core import arrayfiles, files, tensorfiles
from fedlens.data import readers
from fedlens.data.population import DataError, Population
from fedlens.ledger import Spending, guarantee, keys
from fedlens.media.images import reading as data
from fedlens.media.images.samples import Model, Samples
from fedlens.media.text.samples import TextModel
from fedlens.models.classifier import ConvClassifier, Primary
from fedlens.models.gan import ConvGenerator
from fedlens.models.lstm import LanguageModel
from fedlens.models.words import Vocabulary
from fedlens.privacy import Everyone, L2Clip, MatrixPlan, Plan, Poisson
from fedlens.privacy.matrix import BinaryTree, Identity
from fedlens.recipes.recipe import Recipe
from fedlens.recipes.toml import RecipeError

INPUTS = 60


@pytest.mark.parametrize("name", TARGETS)
def test_the_good_file_of_every_kind_is_opened(tmp_path, name):
    outcome = Fuzzer(name, tmp_path).opened()
    assert (outcome.accepted, outcome.escaped) == (True, None)


@pytest.mark.parametrize("name", TARGETS)
def test_damaged_files_end_in_an_error_of_ours_that_quotes_nothing(tmp_path, name):
    fuzzer = Fuzzer(name, tmp_path)
    outcomes = {seed: fuzzer.tried(seed) for seed in range(INPUTS)}
    assert {seed: outcome.escaped for seed, outcome in outcomes.items() if outcome.escaped} == {}
    assert not all(outcome.accepted for outcome in outcomes.values())  # else nothing was damaged


def test_the_fuzzer_notices_an_escape_and_a_quotation():
    for error in (KeyError("a"), ValueError("of a library"), MemoryError(), RecursionError(), OSError("x")):
        assert escape(error) is not None
    assert escape(DataError("Expected a user id.")) is None
    assert escape(DataError(f"Expected a user id, got {CANARY}.")) is not None


def test_the_same_seed_damages_a_file_in_the_same_way(tmp_path):
    fuzzer = Fuzzer("npz", tmp_path)
    made = []
    for seed in (3, 4, 3):
        fuzzer.tried(seed)
        with zipfile.ZipFile(io.BytesIO(fuzzer.good)):
            made.append(zlib.crc32(fuzzer.path.read_bytes()))
    assert made[0] == made[2] != made[1]


# Memory: what a small file declares is refused before it is there. Each runs in a process that may have 1 GB more.


def opened_in_little_memory(read):
    """What is said of it, and how many MB the process grew, which may have 1 GB on top of what it has."""
    receive, send = os.pipe()
    child = os.fork()
    if not child:
        with os.fdopen(send, "w") as out:
            taken = int(pathlib.Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_AS, (taken + 10**9, taken + 10**9))
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            try:
                read()
                out.write("opened")
            except BaseException as error:
                out.write(f"{type(error).__name__} {error}")
            out.write(f"\n{(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024}")
        os._exit(0)
    os.close(send)
    with os.fdopen(receive) as said:
        told, _, grown = said.read().rpartition("\n")
    assert os.waitpid(child, 0)[1] == 0
    return told, int(grown)


def test_the_probe_sees_memory_that_is_taken_and_refused():
    assert opened_in_little_memory(lambda: np.ones(2**25))[1] > 200
    assert opened_in_little_memory(lambda: np.ones(2**28))[0].split()[0] in ("MemoryError", "_ArrayMemoryError")


def from_npz(folder):
    return data.from_npz(folder / "data.npz", images="x", labels=None, users=3)


def npy_header(shape, descr="|u1"):
    text = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text.encode()


def zip_of_zeros(path, gigabytes, declared):
    """An .npz whose x is so many GiB of zeros; written as what 16 MiB of them shrink to, again and again."""
    pack = zlib.compressobj(9, wbits=-15)
    start = pack.compress(npy_header((gigabytes * 2**20, 32, 32))) + pack.flush(zlib.Z_FULL_FLUSH)
    block = pack.compress(bytes(2**24)) + pack.flush(zlib.Z_FULL_FLUSH)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x.npy", start + block * 64 * gigabytes + pack.flush())
    held = bytearray(path.read_bytes())
    for at in (0, held.rfind(b"PK\x01\x02") + 2):  # the entry, and the same in the directory at the end
        held[at + 8 : at + 10] = struct.pack("<H", zipfile.ZIP_DEFLATED)
        held[at + 22 : at + 26] = struct.pack("<I", declared)
    path.write_bytes(held)


def test_a_small_zip_of_gigabytes_of_zeros_is_refused_unread(tmp_path):
    zip_of_zeros(tmp_path / "data.npz", 3, 3 * 2**30 + len(npy_header((3 * 2**20, 32, 32))))
    assert (tmp_path / "data.npz").stat().st_size < 2**22
    told, grown = opened_in_little_memory(lambda: from_npz(tmp_path))
    assert told.startswith("DataError Expected data.npz to hold at most")
    assert grown < 100


def test_a_zip_that_declares_less_than_it_holds_gives_no_more_than_it_declares(tmp_path):
    zip_of_zeros(tmp_path / "data.npz", 3, 2**20)
    told, grown = opened_in_little_memory(lambda: from_npz(tmp_path))
    assert told.startswith("DataError Expected a whole .npz file")
    assert grown < 100


def test_a_real_zip_of_blank_images_is_still_read(tmp_path):
    np.savez_compressed(tmp_path / "data.npz", x=np.zeros((60_000, 28, 28), np.uint8))
    assert len(data.from_npz(tmp_path / "data.npz", images="x", labels=None, users=3)) == 3


@pytest.mark.parametrize("shape", [(10**12,), (10**12, 28, 28), (10**12, 0), (0, 2**40), (-5, 28, 28), (2**62, 2**62)])
def test_a_declared_shape_is_held_against_the_file_before_anything_is_allocated(tmp_path, shape):
    (tmp_path / "x.npy").write_bytes(npy_header(shape) + bytes(1000))
    with pytest.raises(ValueError, match="Expected a whole"):
        arrayfiles.mapped(tmp_path / "x.npy")
    with zipfile.ZipFile(tmp_path / "data.npz", "w") as archive:
        archive.write(tmp_path / "x.npy", "x.npy")
    told, grown = opened_in_little_memory(lambda: from_npz(tmp_path))
    assert told.startswith("DataError Expected a whole .npz")
    assert grown < 100


@pytest.mark.parametrize("descr", ["<U0", "|V0", "|O", "<U1000000000"])
def test_rows_of_nothing_and_of_too_much_are_refused(tmp_path, descr):
    (tmp_path / "x.npy").write_bytes(npy_header((10**9,), descr))
    with pytest.raises(ValueError, match="Expected a whole"):
        arrayfiles.mapped(tmp_path / "x.npy")


def test_a_renamed_npy_is_no_npz(tmp_path):
    with (tmp_path / "data.npz").open("wb") as file:
        np.save(file, np.zeros((4, 8, 8), np.uint8))
    with pytest.raises(DataError, match=r"Expected a whole \.npz file"):
        data.from_npz(tmp_path / "data.npz", images="x", labels=None, users=2)


@pytest.mark.parametrize("kind", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_a_zip_that_unpacks_without_limit_is_refused(tmp_path, kind):
    room = io.BytesIO()
    np.save(room, np.zeros((4, 8, 8), np.uint8))
    with zipfile.ZipFile(tmp_path / "data.npz", "w", kind) as archive:
        archive.writestr("x.npy", room.getvalue())
    with pytest.raises(DataError, match=r"Expected a whole \.npz file"):
        data.from_npz(tmp_path / "data.npz", images="x", labels=None, users=2)


def test_an_index_whose_differences_wrap_around_is_refused(tmp_path):
    Population.from_arrays("toy", {"x": np.zeros((4, 1, 8, 8), np.uint8)}, np.array([2, 2])).save(tmp_path / "toy")
    far = 2**63 - 1
    np.save(tmp_path / "toy" / "offsets.npy", np.array([0, far, -2, 4], np.int64))
    with pytest.raises(DataError, match="as long as its index says"):
        Population.open(tmp_path / "toy")


def test_an_hdf5_file_that_declares_what_it_does_not_hold_is_refused_unread(tmp_path):
    for shape in ((25_000, 25_000), (2**24, 28, 28), (2**40, 1024, 1024)):
        with h5py.File(tmp_path / "data.h5", "w") as file:
            file.create_dataset(f"examples/{CANARY}/pixels", shape, "f4", chunks=tuple(min(64, size) for size in shape))
            file.create_dataset(f"examples/{CANARY}/label", shape[:1], "i1", chunks=(64,))
        assert (tmp_path / "data.h5").stat().st_size < 10_000
        told, grown = opened_in_little_memory(lambda: readers.convert(tmp_path / "data.h5", tmp_path / "out"))
        assert told.startswith("DataError Expected ")
        assert CANARY not in told
        assert grown < 100


def test_text_that_an_hdf5_file_only_declares_is_refused(tmp_path):
    with h5py.File(tmp_path / "data.h5", "w") as file:
        file.create_dataset("examples/a/snippets", (2**30,), h5py.string_dtype(), chunks=(1024,))
    with pytest.raises(DataError, match=r"Expected data\.h5 to hold at most"):
        readers.convert_text(tmp_path / "data.h5", tmp_path / "out")


def test_an_hdf5_file_leads_to_no_other_file(tmp_path):
    """A link to somebody else's data would be converted as this file's own."""
    with h5py.File(tmp_path / "other.h5", "w") as file:
        file["user/pixels"], file["user/label"] = np.zeros((2, 4, 4), np.uint8), np.zeros(2, int)
    with h5py.File(tmp_path / "data.h5", "w") as file:
        file.create_group("examples")["a"] = h5py.ExternalLink(str(tmp_path / "other.h5"), "/user")
    with h5py.File(tmp_path / "raw.h5", "w") as file:
        group = file.create_group("examples/a")
        group.create_dataset("pixels", (2, 4, 4), "u1", external=[(str(tmp_path / "other.h5"), 0, 32)])
        group["label"] = np.zeros(2, int)
    for name in ("data.h5", "raw.h5"):
        with pytest.raises(DataError, match="there is something else"):
            readers.convert(tmp_path / name, tmp_path / "out")


def test_a_large_blob_in_sqlite_is_refused_unread(tmp_path):
    with sqlite3.connect(tmp_path / "data.sqlite") as database:
        database.execute("create table examples (client_id text, split_name text, serialized_example_proto blob)")
        database.execute("insert into examples values (?, 'train', zeroblob(500000000))", (CANARY,))
    database.close()
    told, grown = opened_in_little_memory(lambda: readers.convert_text(tmp_path / "data.sqlite", tmp_path / "out"))
    os.truncate(tmp_path / "data.sqlite", 0)
    assert told.startswith("DataError Expected a whole SQLite file")
    assert grown < 100


def test_a_view_that_never_ends_is_no_table_of_examples(tmp_path):
    with sqlite3.connect(tmp_path / "data.sqlite") as database:
        query = "with recursive n(i) as (select 1 union all select i + 1 from n) select 'a' client_id, 'b' split_name"
        database.execute(f"create view examples as {query}, x'' serialized_example_proto from n")
    database.close()
    with pytest.raises(DataError, match="Expected a plain table examples"):
        readers.convert_text(tmp_path / "data.sqlite", tmp_path / "out")


def test_a_small_gzip_of_gigabytes_is_refused_on_the_way(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "MOST_DECLARED", 2**20)
    line = json.dumps({"user": CANARY, "text": ["a" * 300] * 1000}) + "\n"
    (tmp_path / "talk.jsonl.gz").write_bytes(gzip.compress(line.encode() * 40))
    with pytest.raises(DataError, match=r"Expected talk\.jsonl\.gz to hold at most"):
        readers.convert_text(tmp_path / "talk.jsonl.gz", tmp_path / "out")


def test_an_idx_file_with_billions_of_empty_rows_is_refused(tmp_path):
    for name in ("x.idx", "y.idx", "u.idx"):
        (tmp_path / name).write_bytes(struct.pack(">HBB2I", 0, 8, 2, 2**32 - 1, 0))
    with pytest.raises(DataError, match="Expected images of at most"):
        readers.convert(tmp_path / "x.idx", tmp_path / "out", users=tmp_path / "u.idx", labels=tmp_path / "y.idx")


# JSON and TOML

HOSTILE = {
    "deep lists": "[" * DEEP + "]" * DEEP,
    "deep objects": '{"a":' * DEEP + "1" + "}" * DEEP,
    "just too deep": "[" * 65 + "]" * 65,
    "a number of 5,000 digits": "9" * 5_000,
    "a fraction of 5,000 digits": "0." + "9" * 5_000,
    "not a number": "NaN",
    "infinity": "Infinity",
    "too large for a float": "1e999",
    "half a character": b"\xff\xfe",
    "nothing": "",
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_json_is_one_error_of_ours(tmp_path, kind):
    text = HOSTILE[kind]
    path = tmp_path / "some.json"
    path.write_bytes(text if isinstance(text, bytes) else f'{{"secret": "{CANARY}", "a": {text}}}'.encode())
    with pytest.raises(ValueError, match=r"^Expected a whole some\.json in .*; it is damaged\.$") as caught:
        files.json_in(path)
    assert CANARY not in str(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__


def test_good_json_is_read_as_it_is(tmp_path):
    held = {"a": [1, 2.5, -3e300, None, True, "x"], "deep": [[[[]]]]}
    (tmp_path / "some.json").write_text(json.dumps(held))
    assert files.json_in(tmp_path / "some.json", {"a": list}) == held


@pytest.mark.parametrize("held", [[], {}, {"n": "1"}, {"n": True}, {"n": None}, {"n": 10**320}])
def test_a_field_of_another_type_is_damage(tmp_path, held):
    (tmp_path / "some.json").write_text(json.dumps(held))
    with pytest.raises(ValueError, match="it is damaged"):
        files.json_in(tmp_path / "some.json", {"n": float})


def test_a_file_over_the_limit_is_not_read(tmp_path):
    with (tmp_path / "some.json").open("wb") as file:
        file.truncate(files.MOST_TEXT + 1)
    with pytest.raises(ValueError, match=r"Expected at most 16,777,216 bytes in some\.json"):
        files.json_in(tmp_path / "some.json")


@pytest.mark.parametrize("line", ["[" * DEEP, "x = " + "[" * DEEP, "x = " + "{a=" * DEEP, "x = " + "9" * 5_000])
def test_hostile_toml_is_no_internal_error(line):
    with pytest.raises(RecipeError):
        Recipe.parsed(line)


@pytest.mark.parametrize("key", [".".join(["a"] * DEEP), " . ".join(['"a b"'] * DEEP), f"[{'.'.join(['a'] * DEEP)}]"])
def test_a_key_of_thousands_of_parts_is_refused_before_it_is_parsed(key):
    with pytest.raises(RecipeError, match="it is damaged"):
        Recipe.parsed(key if key.startswith("[") else f"{key} = 1")


def test_deep_values_on_the_command_line_are_refused():
    with pytest.raises(RecipeError):
        Recipe.parsed(fuzzing.RECIPE, ["privacy.clip=" + "[" * DEEP])


def test_a_vocabulary_of_faulty_lines_is_told_in_few_words(tmp_path):
    (tmp_path / "words.txt").write_bytes(b"\n" * 100_000)
    with pytest.raises(ValueError, match="and more") as caught:
        Vocabulary.open(tmp_path / "words.txt")
    assert len(str(caught.value)) < 50_000


def test_a_key_of_an_unknown_kind_is_an_error_of_ours(tmp_path):
    """An algorithm that the library does not know is an exception of its own."""
    fuzzer = Fuzzer("key", tmp_path)
    fuzzer.path.write_bytes(fuzzer.good.replace(b"MC4CAQAwBQYDK2Vw", b"MC4CAQAwBQYDK2Vz"))
    with pytest.raises(ValueError, match="Expected an Ed25519 private key"):
        keys.opened(fuzzer.path)


# Headers


def with_header(tmp_path, name, **changes):
    """A good file of this kind whose header says something else."""
    fuzzer = Fuzzer(name, tmp_path)
    tree, about = tensorfiles.read(fuzzer.path)
    tensorfiles.write(fuzzer.path, {key: leaf.clone() for key, leaf in tree.items()}, about | changes)
    return fuzzer.path


def spending_with(**changes):
    plan = fuzzing._plan().to_dict() | changes
    return {"account": dataclasses.asdict(fuzzing._spending().account), "plans": [plan]}


@pytest.mark.parametrize(
    "changes",
    [
        {"noise_multiplier": 1e300},
        {"noise_multiplier": "2"},
        {"releases": 2**31},
        {"releases": 2.5},
        {"releases": True},
        {"expected_contributors": -1},
        {"sampling": {"kind": "poisson", "rate": 0.5, "population": 1e300}},
        {"bound": {"kind": "l2-clip", "norm": "1"}},
        {"bound": {"kind": ["l2-clip"], "norm": 1.0}},
    ],
)
def test_a_plan_in_a_header_is_held_to_what_plans_can_be(tmp_path, changes):
    with pytest.raises(ValueError, match="Expected a whole header"):
        Samples.open(with_header(tmp_path, "samples", spending=spending_with(**changes)))


@pytest.mark.parametrize("noise", [5e-324, 1e-300, 1e-160, 0.0])
def test_noise_whose_square_is_nothing_costs_an_infinite_epsilon(tmp_path, noise):
    path = with_header(tmp_path, "samples", spending=spending_with(noise_multiplier=noise))
    assert Samples.open(path).guarantee.epsilon == float("inf")


def test_a_number_that_json_does_not_know_is_refused_in_a_header(tmp_path):
    path = with_header(tmp_path, "samples", spending=spending_with(releases=float("nan")))
    with pytest.raises(ValueError, match="it is cut short or damaged"):
        Samples.open(path)


def test_samples_that_are_no_images_are_refused(tmp_path):
    path = with_header(tmp_path, "samples")
    _, about = tensorfiles.read(path)
    for images in (torch.zeros(2, 1, 4), torch.zeros(2, 1, 4, 5), torch.zeros(2, 1, 4, 4, dtype=torch.int8)):
        tensorfiles.write(path, {"images": images}, about)
        with pytest.raises(ValueError, match="Expected a whole header"):
            Samples.open(path)


@pytest.mark.parametrize(
    "change", [{"side": 2**31}, {"hidden": 2**31}, {"latent": -1}, {"widths": [2**31, 2]}, {"side": 4.0}]
)
def test_the_sizes_of_a_generator_are_checked_before_it_is_made(tmp_path, change):
    path = with_header(tmp_path, "model")
    _, about = tensorfiles.read(path)
    gan = about["gan"] | {"generator": about["gan"]["generator"] | change}
    path = with_header(tmp_path, "model", gan=gan)
    told, grown = opened_in_little_memory(lambda: Model.open(path))
    assert told.startswith("ValueError Expected a whole header")
    assert grown < 100


def test_weights_are_compared_by_shape_and_never_made_for_it(tmp_path):
    """Within what sizes may be, these would be a terabyte."""
    path = with_header(tmp_path, "model")
    _, about = tensorfiles.read(path)
    gan = about["gan"] | {"generator": about["gan"]["generator"] | {"hidden": 2**20, "latent": 2**18}}
    path = with_header(tmp_path, "model", gan=gan)
    told, grown = opened_in_little_memory(lambda: Model.open(path))
    assert told.startswith("ValueError Expected the weights of its network")
    assert grown < 100


@pytest.mark.parametrize("change", [{"symbols": 2**31}, {"layers": 2**31}, {"units": 2**31}, {"projection": 1.5}])
def test_the_sizes_of_a_language_model_are_checked_before_it_is_made(tmp_path, change):
    path = with_header(tmp_path, "text model")
    _, about = tensorfiles.read(path)
    path = with_header(tmp_path, "text model", model=about["model"] | change)
    told, grown = opened_in_little_memory(lambda: TextModel.open(path))
    assert told.startswith("ValueError Expected a whole header")
    assert grown < 100


@pytest.mark.parametrize(
    "change", [{"side": 2**31}, {"widths": [1] * 10**4}, {"pooled": -1}, {"hidden": "3"}, {"padded": 2}]
)
def test_the_sizes_of_a_classifier_are_checked(tmp_path, change):
    path = with_header(tmp_path, "classifier")
    _, about = tensorfiles.read(path)
    with pytest.raises(ValueError, match="Expected a network known to this version"):
        Primary.open(with_header(tmp_path, "classifier", classifier=about["classifier"] | change))


def test_networks_refuse_such_sizes_themselves():
    for make in (
        lambda: ConvGenerator(side=2**31, widths=(1,)),
        lambda: ConvClassifier(side=8, classes=2**31),
        lambda: LanguageModel(symbols=2**31, start=0, end=1, embedding=1, units=1, projection=0),
    ):
        with pytest.raises(ValueError, match="Expected"):
            make()


def test_weights_of_another_precision_are_refused(tmp_path):
    path = with_header(tmp_path, "model")
    tree, about = tensorfiles.read(path)
    tensorfiles.write(path, {name: leaf.half() for name, leaf in tree.items()}, about)
    with pytest.raises(ValueError, match="Expected the weights of its network"):
        Model.open(path)


def test_rows_of_a_text_model_have_a_width_that_can_be_written(tmp_path):
    with pytest.raises(ValueError, match="Expected a whole header"):
        TextModel.open(with_header(tmp_path, "text model", width=2**31))


@pytest.mark.parametrize(
    ("rate", "multiplier", "releases"), [(0.5, 1.0, 10**5), (0.5, 0.1, 10**6), (0.5, 0.001, 10**6), (0.9, 3.0, 10**6)]
)
def test_the_price_of_weak_noise_does_not_fill_the_memory(rate, multiplier, releases):
    plan = Plan(
        sampling=Poisson(rate=rate, population=1000),
        bound=L2Clip(norm=1.0),
        noise_multiplier=multiplier,
        releases=releases,
        expected_contributors=9.0,
    )
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert plan.epsilon(1e-5) > 400  # no protection, and never told to be less than it is
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024 < 700


def test_a_coarser_price_is_never_a_smaller_one(monkeypatch):
    from fedlens.privacy import accounting

    plan = dataclasses.replace(fuzzing._plan(), sampling=Poisson(rate=0.5, population=1000), releases=2000)
    fine = plan.epsilon(1e-5)
    monkeypatch.setattr(accounting, "_MOST_STEPS", 2**12)
    accounting._pld_epsilon.cache_clear()
    try:
        assert fine < plan.epsilon(1e-5) < 1.5 * fine
    finally:
        accounting._pld_epsilon.cache_clear()


@pytest.mark.parametrize(
    ("strategy", "releases", "participations", "separation"),
    [
        (Identity(), 2**20, 2**20, 1),
        (BinaryTree(restart=2**20), 2**20, 4, 1),
        (BinaryTree(restart=2**14), 2**14, 2**14, 1),
    ],
)
def test_a_matrix_plan_whose_price_would_take_too_long_is_refused(strategy, releases, participations, separation):
    with pytest.raises(ValueError, match="Expected fewer releases"):
        MatrixPlan(
            strategy=strategy,
            bound=L2Clip(norm=1.0),
            noise_multiplier=1.0,
            releases=releases,
            participations=participations,
            separation=separation,
            slots=2**21,
            expected_contributors=9.0,
        )


@pytest.mark.parametrize("change", [{"run": 3}, {"simulated": 1}, {"population": None}, {"part": ["a"]}])
def test_an_account_in_a_file_is_made_of_names(change):
    values = fuzzing._spending().to_dict()
    with pytest.raises(ValueError, match="Expected an account of names"):
        Spending.from_dict(values | {"account": values["account"] | change})


def test_a_price_without_plans_is_none():
    with pytest.raises(ValueError, match="at least one plan"):
        Spending.from_dict(fuzzing._spending().to_dict() | {"plans": []})


def test_what_is_opened_has_the_price_it_had(tmp_path):
    path = with_header(tmp_path, "samples")
    spending = fuzzing._spending(fuzzing._plan(), fuzzing._matrix())
    assert Samples.open(path).guarantee == guarantee([spending], 1e-5)
    assert isinstance(Samples.open(path).spending.plans[0].sampling, Everyone)


# Runs


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("count.json", '{"noisy_units": "many"}'),
        ("count.json", '{"noisy_units": NaN}'),
        ("count.json", "{}"),
        ("thresholds.json", '[{"quantile": 0.5}]'),
        ("thresholds.json", '[{"quantile": 0.5, "accuracy": "x"}]'),
        ("report.json", '{"findings": 3}'),
        ("report.json", "[" * DEEP),
        ("run.json", '{"recipe_sha256": 1, "ledger": "a", "seed": 1, "device": "cpu"}'),
    ],
)
def test_a_damaged_file_of_a_run_is_named(tmp_path, name, content):
    fuzzer = Fuzzer(name, tmp_path)
    fuzzer.path.write_text(content)
    with pytest.raises(ValueError, match=rf"Expected a whole {name} in .*; it is damaged"):
        fuzzer.target.read(tmp_path)


def test_a_checkpoint_without_its_state_is_refused(tmp_path):
    fuzzer = Fuzzer("checkpoint", tmp_path)
    state, about = tensorfiles.read(fuzzer.path)
    state = {name: leaf.clone() for name, leaf in state.items()}
    for name, changed in (("round", None), ("round", torch.zeros(3)), ("round", torch.tensor(-1))):
        kept = {key: leaf for key, leaf in state.items() if key != name}
        tensorfiles.write(fuzzer.path, kept if changed is None else kept | {name: changed}, about)
        with pytest.raises(ValueError, match="Expected the state of a run"):
            fuzzer.target.read(tmp_path)
    tensorfiles.write(fuzzer.path, state, about | {"engine": {"chunks": 3}})
    with pytest.raises(ValueError, match="Expected a whole header"):
        fuzzer.target.read(tmp_path)


def test_files_are_opened_where_their_sizes_are_checked():
    """Elsewhere, nobody would think of it: JSON, TOML and arrays of files are parsed in one place."""
    import fedlens

    root = pathlib.Path(fedlens.__file__).parent
    # Each of these parses what it has just written, or a text that the ledger has verified, or a piece of a string.
    allowed = {
        "core/files.py",
        "ledger/entries.py",
        "ledger/chain.py",
        "data/readers/json_pieces.py",
        "data/readers/leaf.py",
    }
    allowed |= {"experiments/text.py"}
    found = {
        str(path.relative_to(root))
        for path in root.rglob("*.py")
        if any(call in path.read_text() for call in ("json.loads(", "json.load(", "tomllib.load", "np.load("))
    }
    assert found <= allowed


@pytest.mark.parametrize("number", [46673, 47018])
def test_a_generator_without_layers_is_refused(tmp_path, number):
    """Two of 100,000 damaged models: IndexError."""
    assert not fuzzing.Fuzzer("model", tmp_path / "files").tried(number).escaped
