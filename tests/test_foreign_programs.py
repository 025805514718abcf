"""Attacks by those who bring the primary model: it sees every private image, and its file is a program.

Each attack is performed: as a file that is opened, checked and asked about users whose images somebody wants.
"""

import contextlib
import copy
import dataclasses
import io
import itertools
import json
import pickle
import types
import warnings
import zipfile

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from command_line import fedlens
from torch import nn

from fedlens.curators.site import Site
from fedlens.data import selection
from fedlens.data.population import Population
from fedlens.models import operations
from fedlens.models.classifier import ConvClassifier, Primary
from fedlens.models.primary import Program, check_unchanged, open_primary
from fedlens.privacy import Unit
from fedlens.recipes.tables import Selection

pytestmark = [
    pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]

SIDE, USERS, EACH = 4, 6, 3


def crowd(users=range(USERS)):
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, (USERS, EACH, 1, SIDE, SIDE)).astype(np.float32)
    y = rng.integers(0, 3, (USERS, EACH))
    users = list(users)
    columns = {"x": x[users].reshape(-1, 1, SIDE, SIDE), "y": y[users].reshape(-1)}
    return Population.from_arrays("crowd", columns, np.full(len(users), EACH))


def scripted(model, path, **extra):
    torch.jit.save(torch.jit.script(model.eval()), path, **extra)
    return path


def traced(model, path, rows=4):
    torch.jit.save(torch.jit.trace(model, torch.zeros(rows, 1, SIDE, SIDE), check_trace=False), path)
    return path


def exported(model, path, rows=4):
    shapes = ({0: torch.export.Dim("batch")},)
    torch.export.save(torch.export.export(model, (torch.zeros(rows, 1, SIDE, SIDE),), dynamic_shapes=shapes), path)
    return path


def asked(path):
    """What a run does with a primary model: it is opened, tried, and asked about everybody."""
    model = open_primary(path, side=SIDE)
    return selection.accuracies(crowd(), model)


def assert_refused(path, operation):
    """By a run and on the command line, with the operation that is at fault."""
    with pytest.raises(ValueError, match=r"^Expected .*sees private images; it uses ") as told:
        asked(path)
    assert operation in str(told.value)
    done = fedlens("primary", "check", path, "--side", SIDE)
    assert done.code != 0
    assert operation in done.err
    return str(told.value)


# Images into files, onto the terminal, anywhere


class IntoFile(nn.Module):
    def __init__(self, path: str):
        super().__init__()
        self.path = path

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        flat = x.flatten()
        kept = torch.from_file(self.path, True, flat.numel(), dtype=torch.float32)
        return kept.copy_(flat).view(x.shape).flatten(1)[:, :3]  # used, else torch leaves it out


class Saving(nn.Module):
    def __init__(self, path: str):
        super().__init__()
        self.path = path

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        torch.save(x, self.path)
        return x.flatten(1)[:, :3]


@pytest.mark.parametrize(("kind", "operation"), [(IntoFile, "aten::from_file"), (Saving, "aten::save")])
def test_no_image_is_written_to_a_file(tmp_path, kind, operation):
    assert_refused(scripted(kind(str(tmp_path / "stolen")), tmp_path / "m.pt"), operation)
    assert not (tmp_path / "stolen").exists()


class Warning(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        warnings.warn("pixels: " + str(x))  # noqa: B028
        return x.flatten(1)[:, :3]


class Formatting(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        warnings.warn("pixels: {}".format(x))  # noqa: B028, UP032
        return x.flatten(1)[:, :3]


class Printing(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        print("pixels:", x)
        return x.flatten(1)[:, :3]


class PrintingOnce(nn.Module):
    """On one image only, which no probe has."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if bool((x[:, 0, 0, 0] > 0.3).any()):
            print("pixels:", x)
        return x.flatten(1)[:, :3]


@pytest.mark.parametrize(
    ("kind", "operation"),
    [(Warning, "aten::str"), (Formatting, "aten::format"), (Printing, "prim::Print"), (PrintingOnce, "aten::Bool")],
)
def test_no_image_reaches_the_terminal(tmp_path, capfd, kind, operation):
    path = scripted(kind(), tmp_path / "m.pt")
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        assert_refused(path, operation)
    out, err = capfd.readouterr()
    assert "pixels" not in out + err


class Fixed(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.size(0) == 2:
            warnings.warn("two images")  # noqa: B028
        return x.flatten(1)[:, :3]


def test_not_even_how_many_images_somebody_has_is_warned_of(tmp_path, capfd):
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        model = open_primary(scripted(Fixed(), tmp_path / "m.pt"), side=SIDE)
        assert model.features(torch.zeros(2, 1, SIDE, SIDE)).shape == (2, 3)
    assert not any("two images" in str(each.message) for each in said)
    out, err = capfd.readouterr()
    assert "two images" not in out + err


# One user in the verdict on another


class Counting(nn.Module):
    """The finding: whoever comes after a marked image is judged wrong."""

    def __init__(self):
        super().__init__()
        self.seen = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen = self.seen + x.size(0)
        return x.flatten(1)[:, :3] + float(self.seen)


class Remembering(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("last", torch.zeros(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        answer = x.flatten(1)[:, :3] + self.last
        self.last.copy_(x.flatten(1)[0, :3])
        return answer


class ThroughAView(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(2, 3), requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        row = self.weight.view(3, 2).transpose(0, 1).select(0, 1)
        answer = x.flatten(1)[:, :3] + row
        F.relu_(row.add_(x.mean()))
        return answer


class ThroughDropout(nn.Module):
    """In evaluation, dropout hands back the very tensor it was handed."""

    def __init__(self):
        super().__init__()
        self.register_buffer("last", torch.zeros(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        answer = x.flatten(1)[:, :3] + self.last
        return answer + F.dropout(self.last, 0.5, False).add_(x.mean()) * 0.0


class Into(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("last", torch.zeros(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        answer = x.flatten(1)[:, :3] + self.last
        torch.add(answer[0], 1.0, out=self.last)
        return answer


class IntoList(nn.Module):
    def __init__(self):
        super().__init__()
        self.kept: list[torch.Tensor] = [torch.zeros(3)]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        answer = x.flatten(1)[:, :3] + self.kept[-1]
        self.kept.append(answer[0])
        return answer


class IntoNumbers(nn.Module):
    def __init__(self):
        super().__init__()
        self.kept: list[int] = [1]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.kept.append(x.size(0))
        return x.flatten(1)[:, :3] + float(len(self.kept))


class IntoDict(nn.Module):
    def __init__(self):
        super().__init__()
        self.kept: dict[str, torch.Tensor] = {"a": torch.zeros(3)}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        answer = x.flatten(1)[:, :3] + self.kept["a"]
        self.kept["a"] = answer[0]
        return answer


class OutOfList(nn.Module):
    """Two lists added are a new list, of the same old tensors."""

    def __init__(self):
        super().__init__()
        self.register_buffer("last", torch.zeros(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        held = [self.last] + [x]  # noqa: RUF005
        answer = x.flatten(1)[:, :3] + held[0]
        held[0].add_(x.mean())
        return answer


class Swapping(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("last", torch.zeros(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        answer = x.flatten(1)[:, :3] + self.last
        self.last.set_(answer[0].clone())
        return answer


class Either(nn.Module):
    """What is written is either new or kept, as the number of images says."""

    def __init__(self):
        super().__init__()
        self.register_buffer("last", torch.zeros(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        answer = x.flatten(1)[:, :3] + self.last
        into = self.last if x.size(0) == 3 else torch.relu(answer[0])
        into.add_(answer[0])
        return answer


class Carried(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("last", torch.zeros(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        answer = x.flatten(1)[:, :3] + self.last
        into, total = torch.relu(answer[0]), answer * 0.0
        for _ in range(x.size(0)):
            total = total + into.add_(answer[0])
            into = self.last
        return answer + total * 0.0


class Part(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("last", torch.zeros(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        answer = x + self.last
        self.last.copy_(x[0])
        return answer


class Nested(nn.Module):
    def __init__(self):
        super().__init__()
        self.part = Part()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.part(x.flatten(1)[:, :3])


MEMORIES = {
    Counting: "prim::SetAttr",
    Remembering: "aten::copy_",
    ThroughAView: "aten::add_",
    ThroughDropout: "aten::add_",
    Into: "aten::add",
    IntoList: "aten::append",
    IntoNumbers: "aten::append",
    IntoDict: "aten::_set_item",
    OutOfList: "aten::add_",
    Swapping: "aten::set_",
    Either: "aten::add_",
    Carried: "aten::add_",
    Nested: "aten::copy_",
}


@pytest.mark.parametrize("kind", MEMORIES)
def test_a_model_that_remembers_is_refused(tmp_path, kind):
    assert "verdict on the next" in assert_refused(scripted(kind(), tmp_path / "m.pt"), MEMORIES[kind])


@pytest.mark.parametrize("kind", [Remembering, ThroughAView, ThroughDropout, Into, Nested])
def test_a_program_that_remembers_is_refused(tmp_path, kind):
    told = assert_refused(exported(kind().eval(), tmp_path / "m.pt2"), "torch.ops.aten.")
    assert "verdict on the next" in told


@pytest.mark.parametrize("kind", [Remembering, Nested])
def test_a_trace_that_remembers_is_refused(tmp_path, kind):
    assert "verdict on the next" in assert_refused(traced(kind().eval(), tmp_path / "m.pt"), "aten::copy_")


class Overwriting(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.mul_(-2.0).flatten(1)[:, :3]


@pytest.mark.parametrize("write", [scripted, exported])
def test_a_model_that_writes_over_its_input_writes_over_a_copy(tmp_path, write):
    model = open_primary(write(Overwriting(), tmp_path / "m.pt"), side=SIDE)
    users = crowd()
    before = users.columns["x"].copy()
    shares = selection.accuracies(users, model)
    assert np.array_equal(users.columns["x"], before)
    for gone in range(USERS):
        stay = [user for user in range(USERS) if user != gone]
        assert np.array_equal(selection.accuracies(crowd(stay), model), shares[stay])
    assert 0 < shares.mean() < 1


def test_a_model_that_changed_all_the_same_is_noticed_before_anything_is_released(tmp_path):
    model = open_primary(traced(Layers().eval(), tmp_path / "m.pt"), side=SIDE)
    selection.accuracies(crowd(), model)
    held = next(iter(model.network.held()))
    plain = model.network.module

    def changing(images):
        held.add_(1e-7)
        return plain(images)

    changed = dataclasses.replace(model, network=dataclasses.replace(model.network, module=changing))
    for judge in (
        lambda: selection.accuracies(crowd(), changed),
        lambda: selection.classified(crowd(), "right", changed, True, 5),
    ):
        with pytest.raises(ValueError, match="Expected a primary model that keeps nothing"):
            judge()


# Answers that depend on more than the images


class Noisy(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.flatten(1)[:, :3] + torch.rand(3) * 1e-6


class Dropping(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.dropout(x.flatten(1)[:, :3], 1e-6, True)


class Seeding(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        torch.manual_seed(0)
        return x.flatten(1)[:, :3]


class Unfilled(nn.Module):
    """Memory that was freed by others."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.flatten(1)[:, :3] + torch.empty(x.size(0), 3) * 0.0


class Beside(nn.Module):
    """The images of all users lie beside each other in memory."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.as_strided(x, [x.size(0), 3], [3, 1], 0)


class Normalizing(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(3))
        self.register_buffer("var", torch.ones(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.batch_norm(x.flatten(1)[:, :3], self.mean, self.var, training=True)


class Elsewhere(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.to("meta").flatten(1)[:, :3]


IMPURE = {
    Noisy: "aten::rand",
    Dropping: "aten::dropout",
    Seeding: "aten::manual_seed",
    Unfilled: "aten::empty",
    Beside: "aten::as_strided",
    Normalizing: "aten::batch_norm",
    Elsewhere: "another device",
}


@pytest.mark.parametrize("kind", IMPURE)
def test_a_model_whose_answers_depend_on_more_than_its_images_is_refused(tmp_path, kind):
    assert_refused(scripted(kind(), tmp_path / "m.pt"), IMPURE[kind])


@pytest.mark.parametrize("kind", [Noisy, Dropping, Unfilled, Beside, Normalizing])
def test_a_program_whose_answers_depend_on_more_than_its_images_is_refused(tmp_path, kind):
    assert_refused(exported(kind(), tmp_path / "m.pt2"), IMPURE[kind].replace("::", "."))


class BeyondTheEnd(nn.Module):
    """Fast kernels of attention trust that there are as many values as keys, and read on behind the last."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        few = x.flatten(1)[:, None, :4, None].repeat(1, 1, 1, 8)
        many = few.repeat(1, 1, 1000, 1)
        return F.scaled_dot_product_attention(few, many, few)[:, 0, 0, :3]


@pytest.mark.parametrize("write", [scripted, exported])
def test_nothing_reads_beyond_what_it_is_handed(tmp_path, write, monkeypatch):
    if write is exported:  # torch.export would notice; a hand that writes the file would not
        monkeypatch.setattr(F, "scaled_dot_product_attention", lambda q, k, v: q + 0 * k.sum() + 0 * v.sum())
    path = write(BeyondTheEnd(), tmp_path / "m")
    if write is exported:

        def change(about):
            nodes = about["graph_module"]["graph"]["nodes"]
            q, k = (node["outputs"][0] for node in nodes if "repeat" in node["target"])
            called = {"target": "torch.ops.aten.scaled_dot_product_attention.default", "metadata": {}, "name": "beyond"}
            handed = [("query", q), ("key", k), ("value", q)]
            called["inputs"] = [{"name": name, "arg": arg, "kind": 1} for name, arg in handed]
            called["outputs"] = [{"as_tensor": {"name": "beyond"}}]
            nodes.append(called)

        rewritten(path, models_model_json=in_json(change))
    with pytest.raises(ValueError, match="it fails on blank ones"):
        asked(path)


class NoSuchType(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.flatten(1)[:, :3].to(torch.float32, False, True, x.size(0) * 99)


def test_a_type_that_torch_does_not_have_is_refused(tmp_path):
    """With such a number torch looks up things where there are none."""
    assert_refused(scripted(NoSuchType(), tmp_path / "m.pt"), "memory_format")


class Neighbouring(nn.Module):
    """One image decides about all of its batch, where it is one that no probe has."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hit = (x[:, 0, 0, 0] == 0.8765).float().max()
        return x.flatten(1)[:, :3] * (1.0 - 2.0 * hit)


@pytest.mark.parametrize("write", [scripted, exported])
def test_an_image_that_decides_about_others_decides_about_those_of_its_user_only(tmp_path, write):
    model = open_primary(write(Neighbouring(), tmp_path / "m"), side=SIDE)
    users = crowd()
    plain = selection.accuracies(users, model)
    users.columns["x"][EACH * 2, 0, 0, 0] = 0.8765
    marked = selection.accuracies(users, model)
    assert np.flatnonzero(plain != marked).tolist() == [2]


@pytest.mark.parametrize("unit", list(Unit))
@pytest.mark.parametrize("write", [scripted, exported])
def test_where_examples_are_protected_an_image_decides_about_itself_only(tmp_path, write, unit):
    model, users, marked = open_primary(write(Neighbouring(), tmp_path / "m"), side=SIDE), crowd(), EACH * 2
    users.columns["y"][:] = model.predictions(torch.from_numpy(users.columns["x"])).numpy()
    rule, plan = Selection(by="right", minimum_examples=1), types.SimpleNamespace(unit=unit, shards=None)
    stage = types.SimpleNamespace(group="right", who=rule, plan=plan)

    def selected():
        """Which rows of the crowd are in the group."""
        return set(Site(users, model, None).asked(stage, {})._all_rows().tolist())

    assert selected() == set(range(USERS * EACH))
    users.columns["x"][marked, 0, 0, 0] = 0.8765
    gone = set(range(USERS * EACH)) - selected()
    assert gone <= set(range(marked, marked + EACH))
    assert (gone == {marked}) == (unit == Unit.EXAMPLE)


SHAPES = [(2, 4, 4, 4), (4, 4), (2, 4, 4), (4,), (), (1, 4, 6, 6, 6)]


def values(parameter, shape, kind):
    """Some that an operation may take for one of its arguments."""
    wanted = str(parameter.type)
    if "List[Tensor]" in wanted:
        return [[made(shape, kind), made(shape, kind)]]
    if "Tensor" in wanted:
        return [made(shape, kind)]
    if parameter.has_default_value():
        return [parameter.default_value]
    if "List[int]" in wanted:
        return [[1] * count for count in (1, 2, 3, 4)] + [[4, 4], [4], list(shape)]
    plain = {"int": [1, 0, 2], "float": [0.5], "number": [0.5, 1], "bool": [False], "str": ["trunc", "constant"]}
    return plain.get(wanted, [[2.0, 2.0], [2.0]] if "List[float]" in wanted else [None])


def made(shape, kind):
    return torch.rand(shape, generator=torch.Generator().manual_seed(0)).mul(3).to(kind)


def tensors(held):
    found = [held] if isinstance(held, torch.Tensor) else held if isinstance(held, list | tuple) else []
    return [tensor for tensor in found if isinstance(tensor, torch.Tensor)]


def answered(operation):
    """(arguments, what they were, the answers) for all overloads of an operation that can be had by trying."""
    packet = getattr(torch.ops.aten, operation, None)
    overloads = [getattr(packet, name) for name in packet.overloads()] if packet else []
    for overload in overloads:
        parameters = overload._schema.arguments
        if any(each.is_out or "Dimname" in str(each.type) for each in parameters):
            continue
        for shape, kind in itertools.product(SHAPES, (torch.float32, torch.bool, torch.int64)):
            for chosen in itertools.islice(itertools.product(*(values(each, shape, kind) for each in parameters)), 30):
                handed = copy.deepcopy(chosen)
                named = {each.name: value for each, value in zip(parameters, handed, strict=True) if each.kwarg_only}
                with contextlib.suppress(Exception):
                    yield handed, chosen, overload(*handed[: len(handed) - len(named)], **named)
                    break


def test_what_counts_as_making_memory_does_and_nothing_writes_over_what_it_is_handed():
    seen = set()
    for operation in sorted((operations.MAKES | operations.SHOWS) - operations.EVALUATION.keys()):
        for handed, before, answers in answered(operation):
            seen.add(operation)
            own = {tensor.untyped_storage().data_ptr() for each in handed for tensor in tensors(each) if tensor.numel()}
            new = {tensor.untyped_storage().data_ptr() for tensor in tensors(answers) if tensor.numel()}
            assert not (operation in operations.MAKES and own & new), operation
            for tensor, old in zip(
                *(itertools.chain.from_iterable(map(tensors, each)) for each in (handed, before)), strict=True
            ):
                assert torch.equal(tensor, old), operation
    assert len(seen) > 0.85 * len(operations.MAKES | operations.SHOWS)


# What a model does must not tell which images it meets: it could wait, or fail, for one of them


class Waiting(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        while bool((x[:, 0, 0, 0] == 0.8765).any()):
            x = x * 1.0
        return x.flatten(1)[:, :3]


class Greedy(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        much = int((x[:, 0, 0, 0] == 0.8765).sum()) * 10000000000000
        return x.flatten(1)[:, :3] + torch.zeros(much + 1).sum()


class Masking(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hits = x[x > 0.8765]
        return x.flatten(1)[:, :3] + torch.zeros(hits.size(0) * 1000000000 + 1).sum()


class Finding(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.flatten(1)[:, :3] + float(torch.where(x == 0.8765)[0].size(0))


class Laundering(nn.Module):
    """A tensor made without pixels, into which they are written later."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        plain = torch.zeros(1)
        plain.add_(x.max())
        if float(plain) > 0.8765:
            x = x * 2
        return x.flatten(1)[:, :3]


class LaunderingByShape(nn.Module):
    """A view that takes its shape from the images, of a tensor made without them."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        plain = torch.zeros(1)
        plain.expand_as(x.max().view(1)).add_(x.max())
        if float(plain) > 0.8765:
            x = x * 2
        return x.flatten(1)[:, :3]


class Optionally(nn.Module):
    def forward(self, x: torch.Tensor | None) -> torch.Tensor:
        assert x is not None
        if float(x.max()) == 0.8765:
            x = x * 2
        return x.flatten(1)[:, :3]


class Comparing(nn.Module):
    """Lists of tensors are compared by their values."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if [x[0, 0, 0, 0]] == [torch.tensor(0.8765)]:
            x = x * 2
        return x.flatten(1)[:, :3]


DECIDING = {
    Waiting: "aten::Bool",
    Greedy: "aten::Int",
    Masking: "aten::index",
    Finding: "aten::where",
    Laundering: "aten::add_",
    LaunderingByShape: "aten::add_",
    Optionally: "aten::Float",
    Comparing: "aten::eq",
}


@pytest.mark.parametrize("kind", DECIDING)
def test_a_model_that_decides_by_pixels_what_to_do_is_refused(tmp_path, kind):
    assert_refused(scripted(kind(), tmp_path / "m.pt"), DECIDING[kind])


class Dividing(nn.Module):
    """Ends the process where the image is the one it waits for: -2^63 by -1 is more than a whole number holds."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hit = (x.flatten(1)[:, :3] > 2).long()
        return torch.div(-(2**62) * (1 + hit), 1 - 2 * hit, rounding_mode="trunc").float()


def test_a_model_that_can_end_the_process_is_refused(tmp_path):
    assert_refused(scripted(Dividing(), tmp_path / "m.pt"), "rounding_mode")
    assert_refused(exported(Dividing(), tmp_path / "m.pt2"), "rounding_mode")


class Endless(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        while x.size(0) > 0:
            x = x + 1
        return x.flatten(1)[:, :3]


def test_a_model_that_may_never_end_is_not_begun(tmp_path):
    assert_refused(scripted(Endless(), tmp_path / "m.pt"), "while")


class Sized(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.size(0) == 7:
            raise ValueError("seven")
        return x.flatten(1)[:, :3]


def test_a_model_is_asked_in_batches_that_it_was_tried_in(tmp_path):
    """Else one that fails, or waits, for seven images would tell that somebody has seven."""
    model = open_primary(scripted(Sized(), tmp_path / "m.pt"), side=SIDE)
    seen, plain = [], model.network.module

    def watched(images):
        seen.append(len(images))
        return plain(images)

    watching = dataclasses.replace(model, network=dataclasses.replace(model.network, module=watched))
    for count in (0, 1, 7, 137, 1023, 2055):
        x = torch.rand(count, 1, SIDE, SIDE)
        assert torch.equal(watching.features(x), x.flatten(1)[:, :3])
    assert set(seen) <= set(model.network.sizes)
    assert 7 not in seen
    assert sum(seen) == 7 + 1 + 137 + 1023 + 2055 + 1  # none was asked about twice; no image is asked about as one


# Programs hidden from whoever reads `forward`


@torch.jit.interface
class Answers(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        pass


class Quiet(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x


class ByInterface(nn.Module):
    part: Answers

    def __init__(self):
        super().__init__()
        self.part = Part()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.part.forward(x.flatten(1)[:, :3])


class Hooked(nn.Module):
    def __init__(self):
        super().__init__()
        self.part = Quiet()

        def hook(self, inputs: tuple[torch.Tensor], answer: torch.Tensor):
            print("pixels", answer)
            return answer

        self.part.register_forward_hook(hook)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.part(x.flatten(1)[:, :3])


class HookedAbove(nn.Module):
    def __init__(self):
        super().__init__()

        def hook(self, inputs: tuple[torch.Tensor], answer: torch.Tensor):
            print("pixels", answer)
            return answer

        self.register_forward_hook(hook)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.flatten(1)[:, :3]


def aside(x: torch.Tensor) -> torch.Tensor:
    return x * torch.rand(1)


class Forking(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.jit.wait(torch.jit.fork(aside, x.flatten(1)[:, :3]))


@pytest.mark.parametrize(
    ("kind", "operation"),
    [(ByInterface, "prim::CallMethod"), (Hooked, "prim::Print"), (Forking, "prim::fork")],
)
def test_what_is_called_by_detours_is_found(tmp_path, kind, operation):
    assert_refused(scripted(kind(), tmp_path / "m.pt"), operation)


def test_hooks_of_the_whole_model_are_not_run(tmp_path, capfd):
    shares = asked(scripted(HookedAbove(), tmp_path / "m.pt"))
    assert len(shares) == USERS
    out, err = capfd.readouterr()
    assert "pixels" not in out + err


# Files that act as they are opened


class Waking(nn.Module):
    def __init__(self, path: str):
        super().__init__()
        self.path = path

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.flatten(1)[:, :3]

    @torch.jit.export
    def __getstate__(self):
        return (self.path, self.training)

    @torch.jit.export
    def __setstate__(self, state: tuple[str, bool]) -> None:
        self.path = state[0]
        self.training = state[1]
        torch.save(torch.zeros(1), self.path)


def test_opening_a_script_runs_nothing(tmp_path):
    ran = tmp_path / "ran"
    path = scripted(Waking(str(ran)), tmp_path / "m.pt")
    torch.jit.load(path)
    assert ran.exists()  # so torch runs it
    ran.unlink()
    assert "while the file is opened" in assert_refused(path, "__setstate__")
    assert not ran.exists()


class Touch:
    """Unpickled, it makes a file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


def rewritten(path, **changes):
    """The archive with some members changed: by name, with underscores for slashes and dots."""
    with zipfile.ZipFile(path) as archive:
        held = {name: archive.read(name) for name in archive.namelist()}
    folder = next(iter(held)).partition("/")[0]
    for name, change in changes.items():
        found = [member for member in held if member.partition("/")[2].replace("/", "_").replace(".", "_") == name]
        for member in found:
            held[member] = change(held[member])
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in held.items():
            archive.writestr(name, content)
    return path, folder


def added(path, name, content):
    with zipfile.ZipFile(path, "a") as archive:
        folder = archive.namelist()[0].partition("/")[0]
        archive.writestr(f"{folder}/{name}", content)


class Layers(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.norm, self.end = nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Linear(16, 3)
        self.register_buffer("shift", torch.tensor([0.0, 0.1, 0.0]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.end(F.relu(self.norm(self.conv(x)), inplace=True).flatten(1)) + self.shift


def pickled(thing):
    held = io.BytesIO()
    torch.save(thing, held)
    return held.getvalue()


def in_json(change):
    def changed(content):
        about = json.loads(content)
        change(about)
        return json.dumps(about).encode()

    return changed


def pickle_weights(path, ran):
    def change(about):
        one = about["config"]["shift"]
        one["use_pickle"] = True

    with zipfile.ZipFile(path) as archive:
        config = next(name for name in archive.namelist() if name.endswith("weights_config.json"))
        member = json.loads(archive.read(config))["config"]["shift"]["path_name"]
    name = f"data_weights_{member}"
    rewritten(path, data_weights_model_weights_config_json=in_json(change), **{name: lambda _: pickled(Touch(ran))})


def pickle_constants(path, ran):
    def change(about):
        about["config"]["more"] = {
            "path_name": "opaque_obj_0",
            "is_param": False,
            "use_pickle": True,
            "tensor_meta": None,
        }

    rewritten(path, data_constants_model_constants_config_json=in_json(change))
    added(path, "data/constants/opaque_obj_0", pickle.dumps(Touch(ran)))


def pickle_inputs(path, ran):
    rewritten(path, data_sample_inputs_model_pt=lambda _: pickled(Touch(ran)))


def symbols(path, ran):
    def change(about):
        sizes = about["graph_module"]["graph"]["tensor_values"]["x"]["sizes"]
        sizes[0]["as_expr"]["expr_str"] = f"__import__('pathlib').Path({str(ran)!r}).touch() or 1"

    rewritten(path, models_model_json=in_json(change))


ACTING = {
    "pickled weights": pickle_weights,
    "pickled constants": pickle_constants,
    "pickled inputs": pickle_inputs,
    "symbolic shapes": symbols,
}


@pytest.mark.parametrize("name", ACTING)
def test_opening_a_program_runs_nothing(tmp_path, name):
    path, ran = exported(Layers().eval(), tmp_path / "m.pt2"), tmp_path / "ran"
    ACTING[name](path, ran)
    with contextlib.suppress(Exception):
        torch.export.load(path)
    assert ran.exists()  # so torch runs it
    ran.unlink()
    with contextlib.suppress(ValueError):
        assert len(asked(path)) == USERS  # where nobody needs what would act, it is not opened
    assert not ran.exists()


@pytest.mark.parametrize(
    "target",
    [
        "torch.ops.aten.from_file.default",
        "torch.os.system",
        "torch.save",
        "_operator.attrgetter",
        "torch.ops.aten.relu_.out",
        "torch.ops.higher_order.cond",
        "torch.ops.prims.rand",
        "math.factorial",
        "torch.ops.aten.__class__.default",
        "#elsewhere:relu",
    ],
)
def test_a_program_calls_nothing_but_what_is_known(tmp_path, target):
    path = exported(Layers().eval(), tmp_path / "m.pt2")

    def change(about):
        for node in about["graph_module"]["graph"]["nodes"]:
            if node["target"].startswith("torch.ops.aten.relu"):
                node["target"] = target

    rewritten(path, models_model_json=in_json(change))
    assert_refused(path, target)


def test_a_program_is_not_moved_to_another_device_by_a_text(tmp_path):
    path = exported(Layers().eval(), tmp_path / "m.pt2")

    def change(about):
        nodes = about["graph_module"]["graph"]["nodes"]
        one = copy.deepcopy(next(node for node in nodes if "flatten" in node["target"]))
        one["target"], one["outputs"] = "torch.ops.aten.zeros_like.default", [{"as_tensor": {"name": "moved"}}]
        device = {"name": "device", "arg": {"as_string": "meta"}, "kind": 2}
        one["inputs"] = [one["inputs"][0], device]
        nodes.append(one)

    rewritten(path, models_model_json=in_json(change))
    assert_refused(path, "zeros_like")


def test_scripts_that_make_objects_of_other_classes_are_refused(tmp_path):
    path = scripted(Layers(), tmp_path / "m.pt")

    def change(content):
        return content.replace(b"collections\nOrderedDict", b"os\nsystem", 1)

    rewritten(path, data_pkl=change)
    assert_refused(path, "os system")


def test_an_archive_that_two_readers_may_understand_differently_is_refused(tmp_path):
    path = scripted(Layers(), tmp_path / "m.pt")
    with zipfile.ZipFile(path) as archive:
        folder = archive.namelist()[0].partition("/")[0]
        program = archive.read(f"{folder}/data.pkl")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        added(path, "data.pkl", program)
    with pytest.raises(ValueError, match="Expected a whole classifier"):
        asked(path)


def test_an_archive_that_unpacks_to_more_than_a_program_is_refused(tmp_path):
    path = scripted(Layers(), tmp_path / "m.pt")
    with zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(f"{archive.namelist()[0].partition('/')[0]}/code/bomb.py", b"#" * (2**26 + 1))
    with pytest.raises(ValueError, match="Expected a whole classifier"):
        asked(path)


def test_what_comes_along_with_a_script_is_not_opened(tmp_path):
    path = scripted(Layers(), tmp_path / "m.pt", _extra_files={"note.txt": "hello"})
    added(path, "bytecode.pkl", b"nonsense")
    assert len(asked(path)) == USERS


# Honest models pass


class Residual(nn.Module):
    def __init__(self, before: int, after: int, stride: int = 1):
        super().__init__()
        self.first = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.norm, self.again = nn.BatchNorm2d(after), nn.BatchNorm2d(after)
        self.second, self.relu = nn.Conv2d(after, after, 3, 1, 1, bias=False), nn.ReLU(inplace=True)
        self.short = nn.Conv2d(before, after, 1, stride) if before != after else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.again(self.second(self.relu(self.norm(self.first(x)))))
        y += x if self.short is None else self.short(x)
        return self.relu(y)


class ResNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(Residual(1, 4), Residual(4, 4), nn.MaxPool2d(2), Residual(4, 8, 2))
        self.pool, self.drop, self.end = nn.AdaptiveAvgPool2d((1, 1)), nn.Dropout(0.5, inplace=True), nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.end(self.drop(torch.flatten(self.pool(self.body(x)), 1)))


class Transformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.cut, self.norm, self.asks = nn.Conv2d(1, 8, 2, 2), nn.LayerNorm(8), nn.Linear(8, 24)
        self.first = nn.Parameter(torch.zeros(1, 1, 8))
        self.more = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Dropout(0.1), nn.Linear(16, 8), nn.SiLU())
        self.end = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        n = x.shape[0]
        x = torch.cat([self.first.expand(n, -1, -1), self.cut(x).flatten(2).transpose(1, 2)], dim=1)
        q, k, v = self.asks(self.norm(x)).reshape(n, 5, 3, 2, 4).permute(2, 0, 3, 1, 4).unbind(0)
        x = x + F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(n, 5, 8)
        x = x + (torch.matmul(q, k.transpose(-2, -1)) / 2).softmax(-1).matmul(v).transpose(1, 2).reshape(n, 5, 8)
        return F.log_softmax(self.end((x + self.more(x))[:, 0]), dim=1)


class Growing(nn.Module):
    """Lists of its own, loops, choices by shape, errors, views by size, tables, upsampling."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Conv2d(1 + 2 * i, 2, 3, padding=1) for i in range(3)])
        self.end, self.norm = nn.Linear(7 * 16, 3), nn.GroupNorm(1, 7)
        self.register_buffer("turned", torch.arange(15, -1, -1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.dim() != 4:
            raise ValueError("Four dimensions are wanted, not " + str(x.dim()))
        found: list[torch.Tensor] = [x]
        for layer in self.layers:
            found.append(torch.sigmoid(layer(torch.cat(found, 1))))
        x = self.norm(torch.cat(found, 1))
        x = F.avg_pool2d(F.interpolate(x, scale_factor=2.0, mode="bilinear", align_corners=False), 2)
        x = x.view(x.size(0), 7, -1)[:, :, self.turned]
        return self.end(x.reshape(x.size(0), -1))


@pytest.mark.parametrize("write", [scripted, traced, exported])
@pytest.mark.parametrize("kind", [Layers, ResNet, Transformer, Growing])
def test_models_as_people_make_them_are_opened_and_asked(tmp_path, kind, write):
    torch.manual_seed(0)
    model = kind().eval()
    primary = open_primary(write(model, tmp_path / "m"), side=SIDE)
    x = torch.rand(13, 1, SIDE, SIDE) * 2 - 1
    torch.testing.assert_close(primary.features(x), model(x).detach(), rtol=1e-4, atol=1e-5)
    check_unchanged(primary)
    assert primary.foreign


def test_an_owner_can_tell_whose_program_a_primary_model_is(tmp_path):
    network = ConvClassifier(side=SIDE, widths=(2,))
    assert not Primary(network, network.init(0)).foreign
    assert isinstance(open_primary(scripted(Layers(), tmp_path / "m.pt"), side=SIDE).network, Program)
