"""What units remember: named by its history, never torn unnoticed, saved whole, and hashed once."""

import contextlib
import hashlib
import os
import shutil
import types

import numpy as np
import pytest
import torch
import toys
from hypothesis import given
from hypothesis import strategies as st
from toys import same, vectors

from fedlens.core import files, trees
from fedlens.core.randomness import Randomness
from fedlens.curators import memory as memories
from fedlens.curators.engine import Engine
from fedlens.curators.memory import Memory
from fedlens.data.population import Population
from fedlens.ledger import Ledger
from fedlens.privacy import Everyone, Poisson

UNITS = 6
EVERYBODY = np.arange(UNITS)


def first(seed=0, units=UNITS):
    """A few leaves of several kinds: whole numbers, weights, one with a name that is no file's."""
    rng = torch.Generator().manual_seed(seed)
    weights = torch.randn(units, 3, 2, generator=rng)
    return {"asked": torch.arange(units), "critic/../w": weights, "half": weights[:, 0].half()}


def held(memory):
    return memory.rows(np.arange(len(memory)))


def answered(memory, question, units=EVERYBODY):
    """The rows after a question are a function of those before it and of the question; no two orders come out alike."""
    number = int.from_bytes(hashlib.sha256(question.encode()).digest()[:3], "big")
    with memory.updated_by(question):
        for chunk in np.array_split(units, 2):
            rows = memory.rows(chunk)
            memory.replace(chunk, rows | {"asked": rows["asked"] * 6364136223846793005 + number})


questions = st.lists(st.sampled_from(["a", "b", "c"]), max_size=5)


@given(left=questions, right=questions, seeds=st.tuples(st.integers(0, 1), st.integers(0, 1)))
def test_memories_of_one_name_hold_the_same_rows_and_others_do_not(left, right, seeds):
    both = [Memory(first(seed)) for seed in seeds]
    for memory, history in zip(both, (left, right), strict=True):
        for question in history:
            answered(memory, question)
    assert (both[0].name == both[1].name) == same(*map(held, both)) == ((left, seeds[0]) == (right, seeds[1]))


@pytest.mark.parametrize(
    "change",
    [
        lambda tree: tree | {"asked": tree["asked"] + 1},
        lambda tree: tree | {"asked": tree["asked"].int()},
        lambda tree: tree | {"half": tree["half"].unsqueeze(1)},
        lambda tree: {f"{name}2": leaf for name, leaf in tree.items()},
        lambda tree: {name: leaf[:-1] for name, leaf in tree.items()},
        lambda tree: {},
    ],
    ids=["a value", "a type", "a shape", "names", "a unit less", "nothing"],
)
def test_another_first_content_has_another_name(change):
    assert Memory(change(first())).name != Memory(first()).name
    assert Memory(dict(reversed(first().items()))).name == Memory(first()).name


def test_a_memory_of_nothing_stays_what_it_is():
    """Else a run whose units keep nothing could not be resumed without keeping that."""
    memory = Memory({})
    with memory.updated_by("a"):
        memory.replace(EVERYBODY, {})
    with pytest.raises(KeyboardInterrupt), memory.updated_by("b"):
        raise KeyboardInterrupt
    assert memory.name == Memory({}).name
    assert not memory
    assert len(memory) == 0


def test_nobody_else_writes_to_the_rows():
    given, memory = first(), Memory(first())
    owner = Memory(given)
    given["asked"] += 1
    held(owner)["asked"].add_(1)
    assert same(held(owner), held(memory))
    with pytest.raises(ValueError, match="Expected rows to be replaced while"):
        memory.replace(EVERYBODY, first(1))
    assert same(held(owner), held(memory))


@pytest.mark.parametrize(
    "tree",
    [
        {"a": torch.zeros(3), "b": torch.zeros(4)},
        {"a": torch.zeros(3, 0)},
        {"a": torch.zeros(3, dtype=torch.bfloat16)},
        {"a": torch.zeros(1).expand(2, 2**24 + 1)},
    ],
    ids=["two lengths", "empty rows", "no type of numpy's", "rows too long to be opened again"],
)
def test_what_could_not_be_kept_is_refused(tree):
    with pytest.raises(ValueError, match="Expected"):
        Memory(tree)


# Torn


def test_rows_that_were_torn_pass_for_no_others():
    names = set()
    for _ in range(2):
        torn = Memory(first())
        with contextlib.suppress(KeyboardInterrupt), torn.updated_by("a"):
            torn.replace(EVERYBODY[:2], trees.row(first(1), slice(0, 2)))
            names.add(torn.name)
            raise KeyboardInterrupt
        names.add(torn.name)
        answered(torn, "a")
        names.add(torn.name)
    whole = Memory(first())
    names.add(whole.name)
    answered(whole, "a")
    assert len(names | {whole.name}) == 2 * 2 + 2  # torn, and answered on torn rows; whole before, and after


def plan(noise=1.0, releases=4, sampling=None):
    return toys.plan(releases, noise, 2.0, sampling=sampling or Everyone())


def contribute(message, examples, memory):
    """Everybody adds what it hears to what it keeps, and sends some of that."""
    kept = memory["kept"] + message["m"] * examples["x"][0]
    return {"update": 0.01 * kept}, {"kept": kept}


SECRET = Randomness(bytes(32), simulated=False)
CROWD = vectors(np.random.default_rng(0).standard_normal((8, 300)))
KEPT = {"kept": torch.zeros(8, 300)}


def message(value):
    return {"m": torch.tensor(float(value))}


def asked(curator_of, ledger, memory, position=0, population=CROWD, value=1):
    curator = curator_of(
        population,
        plan(),
        ledger=ledger,
        memory=memory,
        position=position,
        randomness=SECRET,
        engine=Engine(chunk=2),
    )
    return curator.noisy_mean(contribute, message(value))["update"]


class Interrupted(Population):
    """Whose third chunk is not read to the end."""

    reads = 0

    def take(self, *given, **options):
        type(self).reads += 1
        if self.reads == 3:
            raise KeyboardInterrupt
        return super().take(*given, **options)


def test_a_question_asked_again_of_torn_rows_is_another_one_under_other_noise(curator_of):
    Interrupted.reads = 0
    broken = Interrupted(CROWD.name, CROWD.columns, CROWD.starts, CROWD.counts)
    ledger, torn = Ledger(), Memory(KEPT)
    with pytest.raises(KeyboardInterrupt):
        asked(curator_of, ledger, torn, population=broken)
    assert 0 < (held(torn)["kept"].abs().sum(1) > 0).sum() < 8
    again = asked(curator_of, ledger, torn)
    assert ledger.spent("run", "train") == 2
    whole = asked(curator_of, ledger, Memory(KEPT))  # the very first question: paid for, and answered at last
    assert ledger.spent("run", "train") == 2
    assert abs(torch.corrcoef(torch.stack([again, whole]))[0, 1]) < 0.25


# Saved and opened


@pytest.fixture(params=["in memory", "on disk"])
def scratch(request, tmp_path):
    return tmp_path / "scratch" if request.param == "on disk" else None


def test_what_is_saved_comes_back_under_its_name(tmp_path, scratch):
    memory = Memory(first(), scratch=scratch)
    assert memory.name == Memory(first()).name
    for question in ("a", "b"):
        answered(memory, question, EVERYBODY[::2])
        memory.save(tmp_path / "kept")
        opened = Memory.open(tmp_path / "kept", scratch=scratch)
        assert opened.name == memory.name
        assert same(held(opened), held(memory))
    answered(opened, "c")
    answered(memory, "c")
    assert opened.name == memory.name
    assert same(held(opened), held(memory))
    assert len(list((tmp_path / "kept").iterdir())) == 2  # the index, and the rows it names


def test_torn_rows_are_saved_as_such(tmp_path):
    memory = Memory(first())
    with pytest.raises(KeyboardInterrupt), memory.updated_by("a"):
        raise KeyboardInterrupt
    memory.save(tmp_path / "kept")
    assert Memory.open(tmp_path / "kept").name == memory.name != Memory(first()).name


@pytest.mark.parametrize("units", [0, 1])
def test_hardly_anybody_is_saved_too(tmp_path, scratch, units):
    memory = Memory(first(units=units), scratch=scratch)
    memory.save(tmp_path / "kept")
    assert same(held(Memory.open(tmp_path / "kept", scratch=scratch)), held(memory))


def test_files_of_rows_have_no_name_and_the_saved_ones_are_private(tmp_path):
    memory = Memory(first(), scratch=tmp_path / "scratch")
    memory.save(tmp_path / "kept")
    assert list((tmp_path / "scratch").iterdir()) == []
    assert {path.stat().st_mode & 0o077 for path in (tmp_path / "scratch", tmp_path / "kept")} == {0}


def test_a_row_that_is_repeated_is_never_held_in_full(tmp_path):
    """Critics that start alike, by the thousand, are one row until they are written."""
    repeated = torch.zeros(1, 2**20).expand(4, 2**20)
    assert max(piece.stop - piece.start for piece in memories._pieces(repeated)) * 2**22 <= memories._PIECE
    assert Memory({"w": repeated}, scratch=tmp_path).name == Memory({"w": repeated.clone()}).name


class CrashError(BaseException):
    """The power went."""


def crashing(monkeypatch, at):
    """Breaks off at the so-manieth step that touches the disk; counts them."""
    steps = [0]

    def stepwise(module, name):
        real = getattr(module, name)

        def step(*given, **options):
            steps[0] += 1
            if steps[0] == at:
                raise CrashError
            return real(*given, **options)

        monkeypatch.setattr(module, name, step)

    for module, name in ((os, "fsync"), (os, "replace"), (shutil, "rmtree"), (memories, "_write"), (files, "_sync")):
        stepwise(module, name)
    return steps


def test_a_crash_while_saving_leaves_what_was_saved_before_or_all_of_the_new(tmp_path, monkeypatch):
    old, new = Memory(first()), Memory(first(1))
    outcomes = []
    for at in range(1, 100):
        folder = tmp_path / str(at)
        old.save(folder)
        with monkeypatch.context() as patched:
            crashing(patched, at)
            try:
                new.save(folder)
                break
            except CrashError:
                pass
        opened = Memory.open(folder)
        outcomes.append(opened.name == new.name)
        assert same(held(opened), held(new if outcomes[-1] else old))
        assert opened.name == (new if outcomes[-1] else old).name
        old.save(folder)  # and it can be saved to again
        assert Memory.open(folder).name == old.name
        assert len(list(folder.iterdir())) == 2
    assert outcomes == sorted(outcomes)
    assert 5 < sum(not outcome for outcome in outcomes) < len(outcomes)


def test_a_crash_before_anything_was_saved_leaves_nothing_to_open(tmp_path, monkeypatch):
    with monkeypatch.context() as patched:
        crashing(patched, 2)
        with pytest.raises(CrashError):
            Memory(first()).save(tmp_path / "kept")
    with pytest.raises(ValueError, match="Expected a saved memory in kept"):
        Memory.open(tmp_path / "kept")


def flipped(path):
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def changed(index, old, new):
    assert old in index.read_text()
    index.write_text(index.read_text().replace(old, new))


DAMAGES = {
    "a bit": lambda rows, index: flipped(rows / "1.npy"),
    "a file less": lambda rows, index: (rows / "2.npy").unlink(),
    "files swapped": lambda rows, index: (rows / "0.npy").write_bytes((rows / "1.npy").read_bytes()),
    "cut short": lambda rows, index: (rows / "0.npy").write_bytes((rows / "0.npy").read_bytes()[:-8]),
    "no rows": lambda rows, index: shutil.rmtree(rows),
    "another index": lambda rows, index: index.write_text("[]"),
    "a version to come": lambda rows, index: changed(index, '"version": 1', '"version": 2'),
    "another place": lambda rows, index: changed(index, rows.name, f"../{rows.name}"),
    "numbers for names": lambda rows, index: changed(index, '"asked"', "1"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_what_was_damaged_is_refused(tmp_path, damage):
    Memory(first()).save(tmp_path / "kept")
    (rows,) = (path for path in (tmp_path / "kept").iterdir() if path.is_dir())
    DAMAGES[damage](rows, tmp_path / "kept" / "memory.json")
    with pytest.raises(ValueError, match="Expected a whole memory in kept; it is damaged"):
        Memory.open(tmp_path / "kept")


# Beside the data


@pytest.mark.parametrize("engine", [Engine(), Engine(chunk=3), Engine(chunk=3, workers=2)], ids=repr)
def test_a_resumed_run_asks_the_same_questions_and_gets_the_same_answers(curator_of, tmp_path, scratch, engine):
    ledger, promised = Ledger(), plan(sampling=Poisson(rate=0.5, population=8, capped=False))

    def opened(memory, position):
        options = {"randomness": SECRET, "engine": engine, "ledger": ledger}
        return curator_of(CROWD, promised, memory=memory, position=position, **options)

    curator, answers = opened(Memory(KEPT, scratch=scratch), 0), []
    for position in range(4):
        curator.memory.save(tmp_path / str(position))
        answers.append(curator.noisy_mean(contribute, message(position)))
    for position in range(4):
        resumed = opened(Memory.open(tmp_path / str(position), scratch=scratch), position)
        for later in range(position, 4):
            assert same(resumed.noisy_mean(contribute, message(later)), answers[later])
        assert resumed.memory.name == curator.memory.name
    assert ledger.spent("run", "train") == 4
    assert len(set(ledger.queries("run", "train"))) == 4


def test_a_question_is_another_one_after_another_history(curator_of):
    """Rows that came out alike are enough to be safe, but not to be free: nobody compares them."""
    ledger = Ledger()
    for history in ([], [2], [3]):
        memory = Memory(KEPT)
        for value in history:
            with memory.updated_by(f"before {value}"):
                pass
        asked(curator_of, ledger, memory, position=1)
    assert ledger.spent("run", "train") == 3
    assert len(set(ledger.queries("run", "train"))) == 3


class Counted:
    """Stands in for hashlib, and adds up what is hashed."""

    def __init__(self):
        self.bytes = 0

    def sha256(self, content=b""):
        real, counter = hashlib.sha256(content), self
        counter.bytes += len(content)

        def update(piece):
            counter.bytes += memoryview(piece).nbytes
            real.update(piece)

        return types.SimpleNamespace(update=update, digest=real.digest, hexdigest=real.hexdigest)


def test_rows_are_hashed_once_however_many_and_whatever_is_asked(curator_of, monkeypatch):
    counted = Counted()
    monkeypatch.setattr(memories, "hashlib", counted)
    monkeypatch.setattr(trees, "hashlib", counted)
    grown = {}
    for width in (10, 100_000):

        def noting(message, examples, memory):
            return {"update": examples["x"][0] * message["m"]}, {"kept": memory["kept"] + 1}

        counted.bytes = 0
        memory = Memory({"kept": torch.zeros(8, width)})
        assert 8 * 4 * width < counted.bytes < 8 * 4 * width + 100
        curator = curator_of(CROWD, plan(), memory=memory, engine=Engine(chunk=4))
        counted.bytes = 0
        for value in range(4):
            curator.noisy_mean(noting, message(value))
        grown[width] = counted.bytes
    assert grown[10] == grown[100_000] < 4 * 1000


def test_a_row_for_every_unit_or_none(curator_of):
    for units in (7, 9):
        with pytest.raises(ValueError, match="Expected a row of memory for every unit"):
            curator_of(CROWD, plan(), memory={"kept": torch.zeros(units, 300)})


def test_who_keeps_what_nobody_gave_is_told_before_anything_is_charged(curator_of):
    def inventing(message, examples, memory):
        return {"update": examples["x"][0]}, {"new": torch.zeros(1)}

    ledger = Ledger()
    with pytest.raises(ValueError, match="Expected units to keep what they were given"):
        curator_of(CROWD, plan(), ledger=ledger).noisy_mean(inventing, message(0))
    assert ledger.spent("run", "train") == 0


@pytest.mark.parametrize("engine", [Engine(), Engine(chunk=3)], ids=repr)
def test_a_unit_that_keeps_something_of_another_shape_is_silent_and_keeps_what_it_had(curator_of, engine):
    def moody(message, examples, memory):
        shape = (2,) if len(examples["x"].shape) and float(examples["x"][0, 0]) > 0 else ()
        return {"update": examples["x"][0]}, {"kept": (memory["kept"] + 1).expand(shape)}

    people = vectors([[-0.1], [0.5], [-0.2]])
    curator = curator_of(people, plan(noise=0.0), memory={"kept": torch.zeros(3)}, engine=engine)
    assert curator.noisy_mean(moody, message(0))["update"].item() == pytest.approx(-0.15, abs=1e-6)
    assert held(curator.memory)["kept"].tolist() == [1.0, 0.0, 1.0]


def test_all_units_that_keep_something_of_another_shape_are_silent_in_one_pass_as_well(curator_of):
    def growing(message, examples, memory):
        there = examples["mask"].sum()
        return {"update": examples["x"][0]}, {"kept": memory["kept"] + there} if message["m"] == 0 else {}

    curator = curator_of(
        vectors([[0.5], [0.2]]), plan(noise=0.0), memory={"kept": torch.zeros(2)}, engine=Engine(chunk=2)
    )
    curator.settle(growing, message(0))
    assert curator.noisy_mean(growing, message(1))["update"].item() == 0
    assert held(curator.memory)["kept"].tolist() == [0.0, 0.0]
