"""Damaged and hostile files of every kind that fedlens opens, made from good ones by changes that know their structure.

`TARGETS` lists what is opened, and how; `tried` opens one input and says what escaped. The tests run a few inputs of
each; `benchmarks/fuzz.py` runs many. Everything follows from a seed.
"""

import base64
import contextlib
import dataclasses
import gzip
import io
import json
import pathlib
import random
import re
import shutil
import sqlite3
import struct
import time
import warnings
import zipfile
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from fedlens.core import files, tensorfiles
from fedlens.curators.memory import Memory
from fedlens.data import readers
from fedlens.data.population import Population
from fedlens.ledger import Account, Spending, guarantee, keys
from fedlens.media.images import reading as data
from fedlens.media.images.samples import Model, Samples
from fedlens.media.opening import opened
from fedlens.media.text.samples import NgramModel, TextModel, Texts
from fedlens.models.classifier import ConvClassifier, Primary
from fedlens.models.gan import ConvCritic, ConvGenerator, Gan
from fedlens.models.lstm import LanguageModel
from fedlens.models.markov import SYMBOLS, Markov
from fedlens.models.projection import ProjectionCritic, ResidualGenerator
from fedlens.models.words import Vocabulary
from fedlens.privacy import Everyone, FixedSize, L2Clip, MatrixPlan, Plan, Poisson, TopKSign
from fedlens.privacy.matrix import Banded

CANARY = "canary7391"  # stands in all private data; no message may quote it
DEEP = 5_000

# As JSON has them, and for the most part TOML.
NASTY = (
    *("null", "true", '""', "[]", "{}", '"a"', "-1", "0", "1", "2", "0.5", "-0.0", "1e300", "1e-300", "1e999", "NaN"),
    *(
        "Infinity",
        "-Infinity",
        str(2**31),
        str(2**31 - 1),
        str(2**32),
        str(2**53 + 1),
        str(2**63),
        str(-(2**63)),
        "1e18",
    ),
    *(
        "9" * 300,
        "9" * 5_000,
        "-" + "9" * 5_000,
        "0." + "9" * 5_000,
        '"' + "x" * 20_000 + '"',
        '"\\u0000"',
        '"\\ud800"',
    ),
    *("[" * DEEP + "]" * DEEP, '{"a":' * DEEP + "1" + "}" * DEEP, "[" * 90 + "]" * 90, "[" * DEEP, "[1e999]"),
    *('[{"a": null}]', '["a", 1, null]', '{"kind": "poisson"}', '"inf"', '"nan"', '"1"', "01", "+1", ".5", "'a'"),
)
Mutation = Callable[[bytes, random.Random], bytes]


# Changes that know nothing


def bytewise(content: bytes, rng: random.Random) -> bytes:
    """Flips, cuts, and pieces that are lost, doubled or overwritten."""
    held = bytearray(content)
    for _ in range(rng.choice((1, 1, 1, 2, 5, 20))):
        at = rng.randrange(len(held) + 1)
        many = min(len(held) - at, rng.choice((1, 2, 4, 8, 64, 1024)))
        match rng.randrange(8):
            case 0:
                held = held[:at]
            case 1:
                del held[at : at + many]
            case 2:
                held[at:at] = held[at : at + many]
            case 3:
                held[at : at + many] = rng.randbytes(many)
            case 4:
                held[at : at + many] = rng.choice((b"\0", b"\xff", b"\x7f", b"[")) * many
            case 5 if at + 8 <= len(held):
                number = rng.choice((0, 1, 2**31 - 1, 2**32 - 1, 2**63 - 1, 2**40, len(held), len(held) + 1))
                held[at : at + 8] = number.to_bytes(8, rng.choice(("little", "big")))
            case _ if at < len(held):
                held[at] ^= 1 << rng.randrange(8)
    return bytes(held)


# JSON and TOML


def jsonwise(content: bytes, rng: random.Random) -> bytes:
    """Values replaced by nasty ones, lost, doubled or renamed, anywhere in the tree."""
    return _text_of(_changed(json.loads(content), rng), rng).encode("utf-8", "surrogatepass")


def _changed(value: Any, rng: random.Random) -> Any:
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        places = list(_places(value))
        if not places:
            return "@raw@"
        inside, key = rng.choice(places)
        what = rng.randrange(10)
        if what == 0:
            del inside[key]
        elif what == 1 and isinstance(inside, dict):
            inside[rng.choice(("", "kind", "x" * 2_000, "strategy"))] = inside.pop(key)
        elif what == 2 and isinstance(inside, list):
            inside[key:key] = inside[key : key + 1] * rng.choice((1, 50))
        elif what == 3:
            other = rng.choice(places)
            inside[key] = json.loads(json.dumps(other[0][other[1]]))
        else:
            inside[key] = "@raw@"
    return value


def _places(value: Any) -> Any:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in list(items):
        yield value, key
        yield from _places(inner)


def _text_of(value: Any, rng: random.Random) -> str:
    return re.sub('"@raw@"', lambda _: rng.choice(NASTY), json.dumps(value))


def tomlwise(content: bytes, rng: random.Random) -> bytes:
    lines = content.decode().splitlines()
    for _ in range(rng.choice((1, 1, 2, 4))):
        at = rng.randrange(len(lines))
        key, equals, _ = lines[at].partition("=")
        match rng.randrange(6):
            case 0:
                lines[at:at] = [lines[rng.randrange(len(lines))]]
            case 1:
                lines[at] = ".".join(["a"] * DEEP) + " = 1"
            case 2:
                lines[at] = "[" + ".".join(["a"] * DEEP) + "]"
            case _ if equals:
                odd = ("inf", "nan", "1979-05-27", "2000-99-99", "{ a = 1 }", "0x" + "f" * 9_000, "{a=" * DEEP, "'''")
                lines[at] = f"{key}= {rng.choice((*NASTY, *odd))}"
            case _:
                del lines[at]
        lines = lines or [""]
    return "\n".join(lines).encode("utf-8", "surrogatepass")


def linewise(content: bytes, rng: random.Random) -> bytes:
    lines = content.splitlines()
    at = rng.randrange(len(lines))
    lines[at] = jsonwise(lines[at], rng)
    return b"\n".join(lines)


def zipped(inner: Mutation) -> Mutation:
    def mutated(content: bytes, rng: random.Random) -> bytes:
        if rng.random() < 0.3:
            return bytewise(content, rng)
        return gzip.compress(inner(gzip.decompress(content), rng), 1)

    return mutated


# Tensors and arrays


def tensorwise(content: bytes, rng: random.Random) -> bytes:
    """The header of a safetensors file: its tensors, or the JSON in its values."""
    (length,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + length])
    about = header["__metadata__"]
    if rng.random() < 0.8:
        for name in rng.sample(list(about), min(len(about), rng.choice((1, 1, 2)))):
            match rng.randrange(8):
                case 0:
                    about[name] = rng.choice(NASTY)
                case 1:
                    about.pop(name)
                    about["kind"] = rng.choice(('"words"', '"ngrams"', '"spelling"', "1"))
                case _:
                    about[name] = jsonwise(about[name].encode(), rng).decode("utf-8", "replace")
        text = json.dumps(header)
    else:
        for name in rng.sample(list(header), 1):
            header[name] = _changed(header[name], rng)
            if name != "__metadata__" and isinstance(header[name], dict) and rng.random() < 0.5:
                header[name] = {
                    "dtype": rng.choice(("F64", "I64", "F8_E4M3", "BOOL", "C64", "U8", "BF16")),
                    **header[name],
                }
        text = _text_of(header, rng)
    made = text.encode("utf-8", "surrogatepass")
    said = len(made) if rng.random() < 0.95 else rng.choice((0, 2**31, 2**63, 2**64 - 1, len(made) + 1))
    return struct.pack("<Q", said) + made + content[8 + length :]


def npywise(content: bytes, rng: random.Random) -> bytes:
    """Another header before the same values."""
    (length,) = struct.unpack("<H", content[8:10])
    text = content[10 : 10 + length].decode("latin1")
    shapes = (
        "(10**12,)",
        f"({10**12},)",
        "(-1,)",
        "(True,)",
        f"({10**12}, 0)",
        "()",
        "(3.0,)",
        "('a',)",
        "(1,)*9",
        "x",
    )
    shapes += (
        f"({'9' * 3_000},)",
        "(" * 900 + ")" * 900,
        "(2, 2, 2, 2)",
        f"(0, {2**40})",
        f"({2**62}, {2**62})",
        "(1,",
    )
    types = (
        "|O",
        "<U0",
        "<U1000000000",
        "<f8",
        "<i2",
        "|V0",
        "|S0",
        "<c16",
        "<M8[ns]",
        ">u4",
        "bogus",
        "|b1",
        "<f2",
        "",
    )
    match rng.randrange(5):
        case 0 | 1:
            text = re.sub(r"'shape': .*\), ", lambda _: f"'shape': {rng.choice(shapes)}, ", text)
        case 2:
            text = re.sub(r"'descr': '[^']*'", lambda _: f"'descr': '{rng.choice(types)}'", text)
        case 3:
            odd = ("[('a', '<f8')]", "[('a', 'O')]", "('<f4', (2,))", "None", "[" * 500, "{}", "1")
            text = re.sub(r"'descr': '[^']*'", lambda _: f"'descr': {rng.choice(odd)}", text)
        case _:
            text = bytewise(text.encode("latin1"), rng).decode("latin1")
    said = len(text) if rng.random() < 0.9 else rng.choice((0, 65_535, 7))
    version = b"\x01\x00" if rng.random() < 0.9 else rng.choice((b"\x02\x00", b"\x03\x00", b"\x09\x09"))
    return content[:6] + version + struct.pack("<H", min(said, 65_535)) + text.encode("latin1") + content[10 + length :]


def npzwise(content: bytes, rng: random.Random) -> bytes:
    """Members changed, renamed, stored otherwise, declared larger; or the zip itself."""
    if rng.random() < 0.3:
        return bytewise(content, rng)
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        held = {name: archive.read(name) for name in archive.namelist()}
    name = rng.choice(list(held))
    held[name] = rng.choice((npywise, npywise, bytewise))(held[name], rng)
    if rng.random() < 0.1:
        held[rng.choice(("x", "../x.npy", "x.npy.npy", "\x1b[31m.npy"))] = held.pop(name)
    room = io.BytesIO()
    kind = rng.choice(
        (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA)
    )
    with warnings.catch_warnings(), zipfile.ZipFile(room, "w", kind) as archive:
        warnings.simplefilter("ignore")
        for name, inner in held.items():
            archive.writestr(name, inner)
    made = bytearray(room.getvalue())
    if rng.random() < 0.3:  # a declared size, in the directory at the end
        at = made.rfind(b"PK\x01\x02") + rng.choice((20, 24))
        made[at : at + 4] = struct.pack("<I", rng.choice((0, 1, 2**31, 2**32 - 2, 2**20)))
    return bytes(made)


def idxwise(content: bytes, rng: random.Random) -> bytes:
    held = bytearray(content)
    match rng.randrange(4):
        case 0:
            held[:4] = bytes((0, 0, rng.choice((0, 8, 9, 11, 13, 14, 255)), rng.choice((0, 1, 2, 3, 4, 70, 255))))
        case 1 | 2:
            at = 4 + 4 * rng.randrange(max(1, held[3]))
            held[at : at + 4] = struct.pack(">I", rng.choice((0, 1, 2**31, 2**32 - 1, 25_000, 1_025)))
        case _:
            return bytewise(content, rng)
    return bytes(held)


# Pictures


def pngwise(content: bytes, rng: random.Random) -> bytes:
    chunks, at = [], 8
    while at < len(content):
        (length,) = struct.unpack(">I", content[at : at + 4])
        chunks.append((content[at + 4 : at + 8], content[at + 8 : at + 8 + length]))
        at += 12 + length
    match rng.randrange(7):
        case 0:
            sizes = struct.pack(">II", *(rng.choice((0, 1, 8, 1_025, 25_000, 2**31 - 1, 2**32 - 1)) for _ in "ab"))
            chunks[0] = (
                b"IHDR",
                sizes + bytes(rng.choice((chunks[0][1][8:], (16, 0, 0, 0, 0), (8, 2, 0, 0, 0), (8, 3, 0, 0, 1)))),
            )
        case 1:
            chunks[1:2] = [(b"IDAT", zlib.compress(bytes(rng.choice((0, 10, 10**6)))))]
        case 2:
            kind = rng.choice((b"zTXt", b"iTXt", b"iCCP", b"tEXt", b"acTL", b"tRNS", b"PLTE", b"eXIf", b"gAMA"))
            inner = CANARY.encode() + b"\0\0" + rng.choice((zlib.compress(bytes(10**6)), rng.randbytes(30), b""))
            chunks[1:1] = [(kind, inner)]
        case 3:
            rng.shuffle(chunks)
        case 4:
            del chunks[rng.randrange(len(chunks))]
        case 5:
            chunks[rng.randrange(len(chunks))] = (rng.randbytes(4), rng.randbytes(rng.randrange(40)))
        case _:
            return bytewise(content, rng)
    framed = (struct.pack(">I", len(d)) + k + d + struct.pack(">I", zlib.crc32(k + d)) for k, d in chunks)
    return content[:8] + b"".join(framed)


# Databases, columns


def sqlitewise(content: bytes, rng: random.Random) -> bytes:
    if rng.random() < 0.4:
        return bytewise(content, rng)
    good = _example(rng)
    made = rng.choice((_protowise(good, rng), _protowise(good, rng), bytewise(good, rng), None, "text", 7, b""))
    kinds = ("client_id text", "client_id", "client_id integer", "client_id blob")
    with contextlib.closing(sqlite3.connect(":memory:")) as database:
        database.execute("pragma page_size = 512")
        name = "examples" if rng.random() < 0.9 else rng.choice(("other", "Examples"))
        database.execute(f"create table {name} ({rng.choice(kinds)}, split_name, serialized_example_proto blob)")
        users = (CANARY, f"{CANARY}b", rng.choice((CANARY, 3, None, 2.5, b"b", "x" * 5_000)))
        for user in users:
            database.execute(f"insert into {name} values (?, 'train', ?)", (user, rng.choice((good, good, made))))
        if rng.random() < 0.05:
            database.execute("drop table " + name)
            query = "with recursive n(i) as (select 1 union all select i + 1 from n) select 'a' client_id"
            database.execute(f"create view examples as {query}, 'b' split_name, i serialized_example_proto from n")
        database.commit()
        return database.serialize()


def _protowise(message: bytes, rng: random.Random, depth: int = 0) -> bytes:
    """One field of the message changed: its number, its kind, its length or, further in, one of its own."""
    kind = rng.randrange(5)
    if depth < 4 and len(message) > 2 and kind < 2:
        return message[:2] + _protowise(message[2:], rng, depth + 1)
    odd = (
        b"\xff" * 11,
        b"\x08\x01",
        b"\x0b",
        b"\x0a\xff\xff\xff\xff\x0f",
        b"\x12\x00",
        b"\x0a\x00" * 200,
        b"\x0d\0\0\0\0",
    )
    at = rng.randrange(len(message) + 1)
    return message[:at] + rng.choice(odd) + message[at + rng.randrange(3) :]


def _field(number: int, inner: bytes) -> bytes:
    size, said = len(inner), b""
    while size > 127:
        said, size = said + bytes([size & 127 | 128]), size >> 7
    return bytes([number << 3 | 2]) + said + bytes([size]) + inner


def _example(rng: random.Random) -> bytes:
    feature = _field(1, b"tokens") + _field(2, _field(1, _field(1, f"{CANARY} said {rng.randrange(9)}".encode())))
    return _field(1, _field(1, feature))


def hdf5wise(text: bool) -> Mutation:
    def mutated(content: bytes, rng: random.Random) -> bytes:
        if rng.random() < 0.5:
            return bytewise(content, rng)
        import h5py

        room = io.BytesIO()
        with h5py.File(room, "w") as file:
            for user in range(2):
                group = file.create_group(f"examples/{CANARY}{user}")
                for name, rows in (
                    ("snippets" if text else "pixels", _text_rows if text else _pixels),
                    ("label", _labels),
                ):
                    if rng.random() < 0.95:
                        _dataset(group, name, rows(), rng)
            if rng.random() < 0.2:
                file["examples/link"] = h5py.ExternalLink("/etc/hostname", "/")
                file["examples/soft"] = h5py.SoftLink("/examples")
        return room.getvalue()

    return mutated


def _text_rows() -> np.ndarray:
    return np.array([f"{CANARY} one".encode(), b"two"], "S32")


def _pixels() -> np.ndarray:
    return np.linspace(0, 1, 2 * 16).reshape(2, 4, 4).astype(np.float32)


def _labels() -> np.ndarray:
    return np.array([1, 0])


def _dataset(group: Any, name: str, rows: np.ndarray, rng: random.Random) -> None:
    import h5py

    shapes = (
        (25_000, 25_000),
        (2**40,),
        (2, 2**20, 2**20),
        (0,),
        (),
        (2, 0, 0),
        (2**31, 4, 4),
        (2, 1025, 1025),
        (2**24, 4, 4),
    )
    types: tuple[Any, ...] = ("f8", "S1000", "i1", "V8", h5py.string_dtype(), h5py.vlen_dtype(np.int64), "?", "c8")
    match rng.randrange(6):
        case 0:
            shape = rng.choice(shapes)
            chunks = tuple(min(size, 64) for size in shape) if 0 not in shape and shape else None
            options = {"compression": "gzip"} if rng.random() < 0.5 and chunks else {}
            group.create_dataset(name, shape, rng.choice(("u1", "f4", "f8", "i8")), chunks=chunks, **options)
        case 1:
            group.create_dataset(name, rows.shape, rng.choice(types))
        case 2:
            group.create_group(name)
        case 3:
            layout = h5py.VirtualLayout(rows.shape, rows.dtype)
            group.create_virtual_dataset(name, layout)
        case _:
            group.create_dataset(name, data=rows)


def parquetwise(text: bool) -> Mutation:
    def mutated(content: bytes, rng: random.Random) -> bytes:
        if rng.random() < 0.7:
            return bytewise(content, rng)
        import pyarrow as pa
        import pyarrow.parquet as pq

        users = rng.choice(([CANARY, "b"], [1, 2], [CANARY, None], [1.5, 2.0], [[1], [2]], [b"\xff", b"a"]))
        images = rng.choice(
            (
                [b"\x89PNG", b""],
                [[0] * 16] * 2,
                [[0.5] * 16, [1.0]],
                [[[0] * 4] * 4] * 2,
                [[], []],
                [None, 1],
                [[], None],
            )
        )
        labels = rng.choice(([1, 2], [2**63 - 1, -1], [1.5, 2.0], ["a", "b"], [None, 1], [True, False]))
        said = rng.choice(
            (
                [CANARY, "b"],
                [["a", CANARY], []],
                [b"\xff\xfe", b"\0"],
                [[["a"]], [[]]],
                [1, 2],
                [None, "a"],
                ["a" * 99_999] * 2,
            )
        )
        columns = {"user": users} | ({"text": said} if text else {"image": images, "label": labels})
        if rng.random() < 0.1:
            columns.pop(rng.choice(list(columns)))
        room = io.BytesIO()
        if columns:
            pq.write_table(pa.table(columns), room, compression=rng.choice(("none", "snappy", "gzip", "zstd")))
        return room.getvalue()

    return mutated


def pemwise(content: bytes, rng: random.Random) -> bytes:
    first, *lines, last = content.splitlines()
    der = bytewise(base64.b64decode(b"".join(lines)), rng)
    return b"\n".join([first, base64.b64encode(der), last])


def either(*mutations: Mutation) -> Mutation:
    return lambda content, rng: rng.choice(mutations)(content, rng)


# What is opened


@dataclasses.dataclass(frozen=True, kw_only=True)
class Target:
    """One way to open a file: `seed` writes a good source into a folder, whose `file` is changed and then read."""

    file: str
    seed: Callable[[pathlib.Path], Any]
    mutation: Mutation
    read: Callable[[pathlib.Path], Any]


def _image_rows() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    x = np.random.default_rng(0).integers(0, 256, (6, 8, 8), dtype=np.uint8)
    return x, np.array([0, 1, 2, 0, 1, 2]), np.array([f"{CANARY}{user}" for user in (0, 0, 1, 1, 2, 2)])


def _npz(folder: pathlib.Path) -> None:
    x, y, user = _image_rows()
    np.savez_compressed(folder / "data.npz", x=x, y=y, user=user)


def _population(folder: pathlib.Path) -> None:
    x, y, _ = _image_rows()
    Population.from_arrays("toy", {"x": x[:, None], "y": y}, np.array([2, 2, 2])).save(folder / "toy")


def _use(folder: pathlib.Path) -> None:
    population = Population.open(folder / "toy")
    data.READING.checked(population)
    if len(population):
        population.take(np.arange(min(2, len(population))), limit=2)


def _idx(folder: pathlib.Path) -> None:
    x, y, _ = _image_rows()
    for name, code, array in (("x.idx", 8, x), ("y.idx", 12, y.astype(">i4")), ("u.idx", 12, (y % 2).astype(">i4"))):
        head = struct.pack(f">HBB{array.ndim}I", 0, code, array.ndim, *array.shape)
        (folder / name).write_bytes(head + array.tobytes())
    (folder / "x.idx.gz").write_bytes(gzip.compress((folder / "x.idx").read_bytes()))
    np.save(folder / "u.npy", np.array([f"{CANARY}{user}" for user in y % 2]))


def _converted(source: str, **options: Any) -> Callable[[pathlib.Path], Any]:
    def read(folder: pathlib.Path) -> None:
        shutil.rmtree(folder / "out", ignore_errors=True)
        named = {key: folder / value if key in ("users", "labels") else value for key, value in options.items()}
        readers.convert(folder / source, folder / "out", **named)

    return read


def _text(source: str) -> Callable[[pathlib.Path], Any]:
    def read(folder: pathlib.Path) -> None:
        shutil.rmtree(folder / "out", ignore_errors=True)
        readers.convert_text(folder / source, folder / "out")

    return read


def _jsonl(folder: pathlib.Path) -> None:
    lines = [json.dumps({"user": f"{CANARY}{n % 2}", "text": [f"{CANARY} said", "yes"], "year": n}) for n in range(4)]
    (folder / "talk.jsonl").write_text("\n".join(lines))
    (folder / "talk.jsonl.gz").write_bytes(gzip.compress("\n".join(lines).encode()))


def _leaf(folder: pathlib.Path) -> None:
    held = {f"{CANARY}{n}": {"x": [[0.5] * 16] * 2, "y": [1, 0]} for n in range(2)}
    (folder / "leaf.json").write_text(json.dumps({"users": list(held), "num_samples": [2, 2], "user_data": held}))


def _leaf_text(folder: pathlib.Path) -> None:
    held = {f"{CANARY}{n}": {"x": [f"{CANARY} said", ["two", CANARY]], "y": ["a", "b"]} for n in range(2)}
    (folder / "leaf.json").write_text(json.dumps({"users": list(held), "user_data": held}))


def _png(folder: pathlib.Path) -> None:
    from PIL import Image

    (folder / "source" / CANARY / "1").mkdir(parents=True)
    Image.fromarray(_image_rows()[0][0]).save(folder / "source" / CANARY / "1" / "a.png")


def _sqlite(folder: pathlib.Path) -> None:
    with contextlib.closing(sqlite3.connect(folder / "data.sqlite")) as database:
        database.execute("pragma page_size = 512")
        database.execute("create table examples (client_id text, split_name text, serialized_example_proto blob)")
        rows = [(f"{CANARY}{n % 2}", "train", _example(random.Random(n))) for n in range(4)]
        database.executemany("insert into examples values (?, ?, ?)", rows)
        database.commit()


def _hdf5(text: bool) -> Callable[[pathlib.Path], Any]:
    def seed(folder: pathlib.Path) -> None:
        import h5py

        with h5py.File(folder / "data.h5", "w") as file:
            for user in range(2):
                group = file.create_group(f"examples/{CANARY}{user}")
                group["snippets" if text else "pixels"] = _text_rows() if text else _pixels()
                group["label"] = _labels()

    return seed


def _parquet(text: bool) -> Callable[[pathlib.Path], Any]:
    def seed(folder: pathlib.Path) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        held = {"text": [f"{CANARY} said", "b"]} if text else {"image": [[0] * 16, [255] * 16], "label": [1, 0]}
        pq.write_table(pa.table({"user": [CANARY, "b"]} | held), folder / "data.parquet")

    return seed


def _spending(*plans: Any) -> Spending:
    return Spending(account=Account(run="r", population="p"), plans=plans or (_plan(),))


def _plan() -> Plan:
    return Plan(
        sampling=Everyone(), bound=L2Clip(norm=1.0), noise_multiplier=2.0, releases=3, expected_contributors=9.0
    )


def _of_shards() -> Plan:
    asked = {"sampling": FixedSize(size=1, population=4), "bound": TopKSign(k=3, rows=2)}
    return Plan(**asked, noise_multiplier=4.0, releases=3, expected_contributors=1.0, shards=4)


def _matrix() -> MatrixPlan:
    return MatrixPlan(
        strategy=Banded(bands=4),
        bound=L2Clip(norm=1.0),
        noise_multiplier=4.0,
        releases=16,
        participations=4,
        separation=4,
        slots=16,
        expected_contributors=4.0,
    )


def _origin(**more: Any) -> dict[str, Any]:
    return {"label": "low", "spending": _spending(_plan(), _matrix()), "delta": 1e-5} | more


_TRAINED = {"recipe_sha256": "a" * 64, "rounds": 3, "ledger_head": (7, "b" * 64)}


def _samples(folder: pathlib.Path) -> None:
    Samples(images=torch.zeros(2, 1, 4, 4), classes=torch.tensor([0, 1]), round=3, **_origin()).save(
        folder / "made.safetensors"
    )


def _model(folder: pathlib.Path) -> None:
    generator = ConvGenerator(side=4, latent=2, hidden=3, widths=(3, 2))
    gan = Gan(generator=generator, critic=ConvCritic(side=4, widths=(2,)))
    Model(gan=gan, generator=generator.init(0), **_origin(), **_TRAINED).save(folder / "made.safetensors")


def _feedback_model(folder: pathlib.Path) -> None:
    generator = ResidualGenerator(side=4, latent=2, width=2, classes=2)
    gan = Gan(generator=generator, critic=ProjectionCritic(side=4, widths=(2,), classes=2))
    about = _origin(spending=_spending(_of_shards()))
    Model(gan=gan, generator=generator.init(0), **about, **_TRAINED).save(folder / "made.safetensors")


def _texts(folder: pathlib.Path) -> None:
    rows, likely = torch.tensor([[3, 0, 1, 4], [3, 4, -1, -1]]), torch.tensor([-1.0, -2.0])
    said = Texts(kind="words", sequences=rows, log_probability=likely, vocabulary=("the", "court"), **_origin())
    said.save(folder / "made.safetensors")


def _text_model(folder: pathlib.Path) -> None:
    network = LanguageModel(symbols=5, start=3, end=4, embedding=2, units=3, projection=2, tied=True)
    about = {"vocabulary": ("the", "court"), "width": 6} | _origin() | _TRAINED
    TextModel(kind="words", model=network, parameters=network.init(0), **about).save(folder / "made.safetensors")


def _ngrams(folder: pathlib.Path) -> None:
    table = torch.full((SYMBOLS, SYMBOLS), 1 / SYMBOLS)
    about = {"vocabulary": ("the", "court"), "width": 6} | _origin() | _TRAINED
    NgramModel(model=Markov(table=table), **about).save(folder / "made.safetensors")


def _classifier(folder: pathlib.Path) -> None:
    network = ConvClassifier(side=8, classes=2, widths=(2,), hidden=3)
    Primary(network, network.init(0)).save(folder / "made.safetensors")


def _any_model(folder: pathlib.Path) -> None:
    model = opened(folder / "made.safetensors")
    guarantee([model.spending], model.delta)
    model.sampled(2, seed=0)


def _said(kind: Any) -> Callable[[pathlib.Path], Any]:
    return lambda folder: kind.open(folder / "made.safetensors").guarantee


def _ask(folder: pathlib.Path) -> None:
    primary = Primary.open(folder / "made.safetensors")
    if primary.side <= 64 and primary.channels <= 4:
        primary.probabilities(torch.zeros(1, primary.channels, primary.side, primary.side))


def _price(folder: pathlib.Path) -> None:
    """A sampled plan, whose price is a long computation."""
    with files.damage("Expected a whole price."):
        found = Spending.from_dict(files.json_in(folder / "price.json"))
    if len({(plan.unit, plan.neighbours) for plan in found.plans}) == 1:
        guarantee([found], 1e-5)


def _price_seed(folder: pathlib.Path) -> None:
    plan = dataclasses.replace(_plan(), sampling=Poisson(rate=0.01, population=1000))
    (folder / "price.json").write_text(json.dumps(_spending(plan).to_dict()))


def _vocabulary(folder: pathlib.Path) -> None:
    facts = {"spending": _spending().to_dict(), "delta": 1e-5}
    Vocabulary(words=("the", "court"), provenance="learnt", facts=facts).save(folder / "words.txt")


def _price_of_words(folder: pathlib.Path) -> None:
    told = Vocabulary.open(folder / "words.txt").facts
    if "spending" in told:
        with files.damage("Expected a whole price of the vocabulary in the file beside it; it is damaged."):
            Spending.from_dict(told["spending"])


RECIPE = """name = "tiny"
task = "T4"
side = 8
[data]
source = "digits"
deal_to = 30
[primary]
epochs = 1
[selections.low]
by = "accuracy"
below = { quantile = 0.5 }
[privacy]
noise_multiplier = 2.0
delta = 1e-5
rounds = 3
users = 15
population = 40
clip = 0.1
[model]
critic_widths = [4, 8]
"""


def _recipe(folder: pathlib.Path) -> None:
    (folder / "recipe.toml").write_text(RECIPE)


def _open_recipe(folder: pathlib.Path) -> None:
    from fedlens.recipes.recipe import Recipe

    Recipe.open(folder / "recipe.toml")


def _run(folder: pathlib.Path) -> None:
    from fedlens.recipes.recipe import Recipe

    _recipe(folder)
    recipe = Recipe.open(folder / "recipe.toml")
    about = {"version": 3, "ledger": "book.db", "seed": 1, "device": "cpu", "recipe_sha256": recipe.digest}
    (folder / "run.json").write_text(json.dumps(about))
    (folder / "count.json").write_text(json.dumps({"noisy_units": 12.5}))
    (folder / "thresholds.json").write_text(json.dumps([{"quantile": 0.5, "accuracy": 0.7}]))
    findings = [{"kind": "k", "summary": "s", "score": 0.5, "severity": "high"}]
    (folder / "report.json").write_text(json.dumps({"title": "t", "findings": findings}))
    header = {"recipe_sha256": recipe.digest, "engine": {"device": "cpu", "chunk": 2}, "memory": None}
    tensorfiles.write(folder / "checkpoint.safetensors", recipe.built().start(), header)


def _opened_run(folder: pathlib.Path) -> Any:
    from fedlens.runs.run import Run

    return Run.opened(folder)


_KNOWN: dict[str, Any] = {}


def _known_run(folder: pathlib.Path) -> Any:
    """Of this folder, whose run.json and recipe are good; opened once."""
    if "run" not in _KNOWN:
        _KNOWN["run"] = _opened_run(folder)
    return dataclasses.replace(_KNOWN["run"], folder=folder)


def _resumed(folder: pathlib.Path) -> Any:
    from fedlens.runs.folder import FolderKeeper

    recipe = _known_run(folder).recipe
    nothing = {"model": lambda state: None, "watch": lambda *facts: None}
    noted = folder / "private.checkpoint"  # as if this run had written it: else it would not be read at all
    noted.write_text(files.sha256(folder / "checkpoint.safetensors"))
    keeper = FolderKeeper(folder, recipe, private=folder / "private", simulated=True, **nothing)
    return keeper.resumed(recipe.stages[-1])


def _memory(folder: pathlib.Path) -> None:
    Memory({"critic": torch.rand(3, 4), "steps": torch.zeros(3)}).save(folder / "kept")
    (rows,) = (inner for inner in (folder / "kept").iterdir() if inner.is_dir())
    index = folder / "kept" / "memory.json"
    index.write_text(index.read_text().replace(rows.name, "0" * 16))  # where it is known to lie
    rows.rename(folder / "kept" / ("0" * 16))


def _remembered(folder: pathlib.Path) -> Any:
    return Memory.open(folder / "kept").rows(np.arange(3))


def _thresholds(folder: pathlib.Path) -> None:
    from fedlens.runs import reporting as run_reports

    run_reports._provenance(folder, _known_run(folder).recipe, "cpu")


def _report(folder: pathlib.Path) -> None:
    from fedlens.runs.comparing import findings

    findings(folder)
    json.dumps(files.json_in(folder / "report.json"), indent=1)


_HEADERS = either(tensorwise, tensorwise, bytewise)
_JSON = either(jsonwise, jsonwise, bytewise)
TARGETS: dict[str, Target] = {
    "npz": Target(
        file="data.npz",
        seed=_npz,
        mutation=npzwise,
        read=lambda folder: data.from_npz(folder / "data.npz", images="x", labels="y", users="user"),
    ),
    "population.json": Target(file="toy/population.json", seed=_population, mutation=_JSON, read=_use),
    "population x.npy": Target(file="toy/x.npy", seed=_population, mutation=either(npywise, bytewise), read=_use),
    "population offsets.npy": Target(
        file="toy/offsets.npy", seed=_population, mutation=either(npywise, bytewise), read=_use
    ),
    "idx": Target(file="x.idx", seed=_idx, mutation=idxwise, read=_converted("x.idx", users="u.idx", labels="y.idx")),
    "idx.gz": Target(
        file="x.idx.gz", seed=_idx, mutation=zipped(idxwise), read=_converted("x.idx.gz", users="u.idx", labels="y.idx")
    ),
    "idx ids": Target(
        file="u.npy",
        seed=_idx,
        mutation=either(npywise, bytewise),
        read=_converted("x.idx", users="u.npy", labels="y.idx"),
    ),
    "png": Target(file=f"source/{CANARY}/1/a.png", seed=_png, mutation=pngwise, read=_converted("source", kind="png")),
    "leaf": Target(file="leaf.json", seed=_leaf, mutation=_JSON, read=_converted("leaf.json")),
    "hdf5": Target(file="data.h5", seed=_hdf5(False), mutation=hdf5wise(False), read=_converted("data.h5")),
    "parquet": Target(
        file="data.parquet", seed=_parquet(False), mutation=parquetwise(False), read=_converted("data.parquet")
    ),
    "jsonl": Target(
        file="talk.jsonl", seed=_jsonl, mutation=either(linewise, linewise, bytewise), read=_text("talk.jsonl")
    ),
    "jsonl.gz": Target(file="talk.jsonl.gz", seed=_jsonl, mutation=zipped(linewise), read=_text("talk.jsonl.gz")),
    "leaf text": Target(file="leaf.json", seed=_leaf_text, mutation=_JSON, read=_text("leaf.json")),
    "hdf5 text": Target(file="data.h5", seed=_hdf5(True), mutation=hdf5wise(True), read=_text("data.h5")),
    "parquet text": Target(
        file="data.parquet", seed=_parquet(True), mutation=parquetwise(True), read=_text("data.parquet")
    ),
    "sqlite": Target(
        file="data.sqlite",
        seed=_sqlite,
        mutation=sqlitewise,
        read=_text("data.sqlite"),
    ),
    "samples": Target(file="made.safetensors", seed=_samples, mutation=_HEADERS, read=_said(Samples)),
    "texts": Target(file="made.safetensors", seed=_texts, mutation=_HEADERS, read=_said(Texts)),
    "model": Target(file="made.safetensors", seed=_model, mutation=_HEADERS, read=_any_model),
    "feedback model": Target(file="made.safetensors", seed=_feedback_model, mutation=_HEADERS, read=_any_model),
    "text model": Target(file="made.safetensors", seed=_text_model, mutation=_HEADERS, read=_any_model),
    "ngram model": Target(file="made.safetensors", seed=_ngrams, mutation=_HEADERS, read=_any_model),
    "classifier": Target(file="made.safetensors", seed=_classifier, mutation=_HEADERS, read=_ask),
    "price": Target(file="price.json", seed=_price_seed, mutation=_JSON, read=_price),
    "vocabulary": Target(
        file="words.txt", seed=_vocabulary, mutation=bytewise, read=lambda folder: Vocabulary.open(folder / "words.txt")
    ),
    "vocabulary's price": Target(file="words.txt.json", seed=_vocabulary, mutation=_JSON, read=_price_of_words),
    "recipe": Target(
        file="recipe.toml", seed=_recipe, mutation=either(tomlwise, tomlwise, bytewise), read=_open_recipe
    ),
    "run.json": Target(file="run.json", seed=_run, mutation=_JSON, read=_opened_run),
    "count.json": Target(
        file="count.json", seed=_run, mutation=_JSON, read=lambda folder: _known_run(folder)._of_too_few(folder)
    ),
    "thresholds.json": Target(file="thresholds.json", seed=_run, mutation=_JSON, read=_thresholds),
    "report.json": Target(file="report.json", seed=_run, mutation=_JSON, read=_report),
    "checkpoint": Target(
        file="checkpoint.safetensors",
        seed=_run,
        mutation=_HEADERS,
        read=lambda folder: _resumed(folder),
    ),
    "memory": Target(file="kept/memory.json", seed=_memory, mutation=_JSON, read=_remembered),
    "memory rows": Target(
        file="kept/0000000000000000/0.npy", seed=_memory, mutation=either(npywise, bytewise), read=_remembered
    ),
    "key": Target(
        file="key.pem",
        seed=lambda folder: keys.created(folder / "key.pem"),
        mutation=either(pemwise, bytewise),
        read=lambda folder: keys.opened(folder / "key.pem"),
    ),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outcome:
    escaped: str | None  # what was thrown that is no error of ours, or quoted private data
    accepted: bool
    seconds: float


class Fuzzer:
    """Opens inputs of one target, one after the other, in a folder of its own."""

    def __init__(self, name: str, folder: pathlib.Path) -> None:
        self.target, self.folder = TARGETS[name], folder
        self.target.seed(folder)
        self.path = folder / self.target.file
        self.good = self.path.read_bytes()

    def tried(self, seed: int) -> Outcome:
        self.path.write_bytes(self.target.mutation(self.good, random.Random(seed)))
        return self.opened()

    def opened(self) -> Outcome:
        """The file as it is now."""
        started = time.perf_counter()
        escaped, accepted = None, False
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                self.target.read(self.folder)
                accepted = True
            except Exception as error:
                escaped = escape(error)
        return Outcome(escaped=escaped, accepted=accepted, seconds=time.perf_counter() - started)


def escape(error: BaseException) -> str | None:
    """Why this is no error of ours; None if it is one."""
    frame = error.__traceback__
    while frame is not None and frame.tb_next is not None:
        frame = frame.tb_next
    where = f"{pathlib.Path(frame.tb_frame.f_code.co_filename).name}:{frame.tb_lineno}" if frame else "?"
    ours = isinstance(error, ValueError) and (
        type(error).__name__ == "RecipeError" or str(error).startswith("Expected ")
    )
    if not ours:
        return f"{type(error).__name__} at {where}"
    return f"quotes private data at {where}" if CANARY in str(error) else None
