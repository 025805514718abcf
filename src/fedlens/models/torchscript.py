"""TorchScript files, opened so that nothing in them runs before each of its operations is known to compute only.

Torch reads such files in C++, which runs no Python, yet it does run the `__setstate__` of any class inside, and makes
objects of torch's own classes. So files are looked at before torch opens them, and it is handed their program, weights
and constants in an archive of our own, and nothing else: no inputs, debug files or extra files.

The program is then inlined and frozen: weights and attributes become constants, and what evaluation never reaches is
gone. What is left is checked, all of it, and what was checked is what is run, with no optimizer that learns from calls.
"""

import io
import pickletools
import re
from collections.abc import Callable, Iterator
from typing import Any

import torch

from fedlens.models import archives, operations
from fedlens.models.archives import Members
from fedlens.models.operations import IMAGES, KEPT, Argument, Facts

_jit: Any = torch.jit  # it does not declare all that it exports
_NEEDED = re.compile(r"data\.pkl|constants\.pkl|data/\d+|constants/\d+|code/[\w/]+\.py|(\.data/)?version|byteorder")

_CODES = operations.named(
    """
    APPEND APPENDS BINFLOAT BINGET BININT BININT1 BININT2 BINPERSID BINPUT BINUNICODE BUILD EMPTY_DICT EMPTY_LIST
    EMPTY_TUPLE GLOBAL LONG1 LONG_BINGET LONG_BINPUT MARK NEWFALSE NEWOBJ NEWTRUE NONE PROTO REDUCE SETITEM SETITEMS
    STOP TUPLE TUPLE1 TUPLE2 TUPLE3
    """
)
_GLOBALS = re.compile(
    r"__torch__\.(?!torch\.classes\b)[\w.]+ \w+|__torch__ \w+|collections OrderedDict|torch \w+Storage|torch device"
    r"|torch\._utils _rebuild_tensor_v2"
    r"|torch\.jit\._pickle (build_\w+list|restore_type_tag)"
)

# Beside what tensors know (`operations`): what TorchScript does with numbers, texts, lists and choices.
_LISTS = operations.named("append extend insert _set_item")
_PLAIN = operations.named(
    """
    __and__ __contains__ __derive_index __getitem__ __not__ __or__ __range_length __xor__ copy ceil floordiv format list
    lower percentFormat reverse sorted str
    """
)
_TEXTS = operations.named("format percentFormat str")
_PRIM = operations.named(
    """
    abs ListUnpack max min NumToTensor RaiseException TupleIndex TupleUnpack unchecked_cast unchecked_unwrap_optional
    """
)
_TAKES_APART = operations.named(
    "__getitem__ ListUnpack TupleIndex TupleUnpack unchecked_cast unchecked_unwrap_optional"
)
_UNREACHED = operations.named("prim::SetAttr prim::Print aten::warn")  # freezing neither runs these nor keeps them
_NOT_FOLDED = operations.named(
    "aten::_upsample_bilinear2d_aa aten::_upsample_bicubic2d_aa aten::_upsample_lanczos2d_aa"
)
_KINDS = {"ScalarType": (*range(8), 11, 15), "Layout": (0,), "MemoryFormat": (0, 1, 2, 3)}  # as torch numbers them
_SCALARS = operations.named("IntType FloatType BoolType StringType NoneType NumberType DeviceObjType ComplexType")


def opened(held: Members, name: str) -> tuple[Callable[[torch.Tensor], Any], Callable[[], list[torch.Tensor]]]:
    """The program as a function that keeps nothing, and all the tensors it holds; `name` is for refusals."""
    needed = {member: content for member, content in held.items() if _NEEDED.fullmatch(member)}
    _check_pickles(needed, name)
    for member, content in needed.items():
        if member.startswith("code/") and b"__setstate__" in content:
            raise operations.refused(name, "__setstate__", "it would run while the file is opened")
    loaded = torch.jit.load(io.BytesIO(archives.archive(needed)), map_location="cpu").eval()
    _check_before_freezing(loaded.inlined_graph, name)
    frozen = torch.jit.freeze(loaded, optimize_numerics=False)
    graph = frozen.graph
    for node in list(_nodes(graph)):
        if node.kind() == "aten::warn":  # torch's own layers warn of how they are used; nobody is to read it here
            node.destroy()
    _check_block(graph, {value.debugName(): _given(value) for value in graph.inputs()}, name)
    forward = frozen._c._get_method("forward")  # not the module: its hooks are no part of what was checked

    def answer(images: torch.Tensor) -> Any:
        with _jit.optimized_execution(False):
            return forward(images.clone())

    return answer, lambda: [*_constants(graph), *frozen.state_dict().values()]


def _check_before_freezing(graph: Any, name: str) -> None:
    """Freezing runs what depends on constants only: that must be known already. Some of the rest it leaves out."""
    seen = {value.debugName() for value in graph.inputs() if value.type().kind() == "TensorType"}
    _follow(graph, seen)
    for node in _nodes(graph):
        waits = node.kind() in _NOT_FOLDED and any(value.debugName() in seen for value in node.inputs())
        if node.kind() not in _UNREACHED and not waits:
            _check_known(node, name)


def _follow(block: Any, seen: set[str]) -> None:
    """Adds to `seen` the values that depend on the images whatever is chosen; others may turn out as constants."""
    for node in block.nodes():
        branches = list(node.blocks())
        for inner in branches:
            _follow(inner, seen)
        outputs = [value.debugName() for value in node.outputs()]
        if not branches and any(value.debugName() in seen for value in node.inputs()):
            seen.update(outputs)
        elif node.kind() == "prim::If":
            answers = zip(*([value.debugName() for value in inner.outputs()] for inner in branches), strict=True)
            seen.update(output for output, answer in zip(outputs, answers, strict=True) if set(answer) <= seen)


def _check_pickles(needed: Members, name: str) -> None:
    """They may make plain values, tensors and the classes of the program: the same as torch's own writer writes."""
    for member in ("data.pkl", "constants.pkl"):
        try:
            for code, argument, _ in pickletools.genops(needed[member]):
                if code.name not in _CODES or (code.name == "GLOBAL" and not _GLOBALS.fullmatch(str(argument))):
                    raise operations.refused(
                        name, f"{code.name} {argument or ''}".strip(), "it is no part of a network"
                    )
        except (KeyError, IndexError, UnicodeDecodeError):
            raise operations.ProgramError(f"Expected a whole torchscript file in {name}.") from None


def _nodes(block: Any) -> Iterator[Any]:
    for node in block.nodes():
        yield node
        for inner in node.blocks():
            yield from _nodes(inner)


def _constants(graph: Any) -> Iterator[torch.Tensor]:
    for node in _nodes(graph):
        if node.kind() == "prim::Constant" and node.output().type().kind() == "TensorType":
            yield node.t("value")


def _check_known(node: Any, name: str) -> None:
    space, _, operation = node.kind().partition("::")
    shaped = {"Constant", "GetAttr", "If", "ListConstruct", "Loop", "TupleConstruct", "Uninitialized", *_PRIM}
    if space == "prim" and (operation in shaped or operation in operations.SHAPES):
        return
    if space == "aten" and (operation in operations.PURE or operation in _LISTS or operation in _PLAIN):
        return
    raise operations.refused(name, node.kind(), operations.why(node.kind()))


Known = dict[str, Facts | None]
_HELD = {"prim::Constant": KEPT, "prim::GetAttr": KEPT, "prim::Uninitialized": operations.NEVER}


def _check_block(block: Any, known: Known, name: str) -> list[Facts | None]:
    """Walks every operation in order, with what is known of the values so far; what is known of its answers."""
    for node in block.nodes():
        _check_known(node, name)
        for value, facts in zip(node.outputs(), _answers(node, known, name), strict=True):
            known[value.debugName()] = facts
    return [known[value.debugName()] for value in block.outputs()]


def _answers(node: Any, known: Known, name: str) -> list[Facts | None]:
    outputs, kind = list(node.outputs()), node.kind()
    held = [known[value.debugName()] for value in node.inputs()]
    if kind == "prim::Constant":
        _check_device(node, name)
    if kind in _HELD:
        return [_unless_scalar(value, _HELD[kind]) for value in outputs]
    if kind in ("prim::ListConstruct", "prim::TupleConstruct"):
        clean = all(facts.clean for facts in held if facts) and (bool(held) or not _holds_tensors(outputs[0].type()))
        return [Facts(fresh=True, clean=clean)]
    if kind == "prim::If":
        branches = [_check_block(inner, dict(known), name) for inner in node.blocks()]
        return [
            operations.merged([facts for facts in several if facts]) if any(several) else None
            for several in zip(*branches, strict=True)
        ]
    if kind == "prim::Loop":
        return _looped(node, known, name)
    _check_kinds(node, name)
    arguments = _arguments(node, known)
    plain = any(not _holds_tensors(value.type()) for value in outputs)
    operation = kind.partition("::")[2]
    facts = _called(operation, kind, arguments, plain, name)
    return [_unless_scalar(value, facts) for value in outputs]


def _called(operation: str, kind: str, arguments: list[Argument], plain: bool, name: str) -> Facts:
    space = kind.partition("::")[0]
    if (space == "aten" and operation in operations.PURE) or operation in operations.SHAPES:
        return operations.answered(name, operation, kind, arguments, plain)
    held = [argument.facts for argument in arguments if argument.facts]
    clean = all(facts.clean for facts in held)
    if operation == "RaiseException":  # what is raised is dropped
        return KEPT
    if plain and not clean and operation not in _TAKES_APART:
        raise operations.refused(name, kind, operations.WRITES_DOWN if operation in _TEXTS else operations.DECIDES)
    operations.check_writes(name, kind, arguments)
    casts = operation in ("unchecked_cast", "unchecked_unwrap_optional")
    return Facts(fresh=operation == "NumToTensor" or (casts and all(facts.fresh for facts in held)), clean=clean)


_FOR_EVER = 2**31  # turns: what TorchScript makes of `while` has 2^63


def _looped(node: Any, known: Known, name: str) -> list[Facts | None]:
    """What is carried from one turn to the next is known to be nothing: neither fresh nor free of pixels."""
    turns = next(iter(node.inputs())).node()
    if turns.kind() == "prim::Constant" and turns.i("value") >= _FOR_EVER:
        raise operations.refused(name, "while", "it may never end; loop over a range instead")
    (body,) = node.blocks()
    inside = dict(known)
    for value in body.inputs():
        inside[value.debugName()] = _unless_scalar(value, _unknown(value))
    _check_block(body, inside, name)
    return [_unless_scalar(value, _unknown(value)) for value in node.outputs()]


def _unknown(value: Any) -> Facts:
    return Facts(fresh=False, clean=not _holds_tensors(value.type()))


def _given(value: Any) -> Facts | None:
    return KEPT if value.type().kind() == "ClassType" else IMAGES  # the model itself; images, whatever type they have


def _parameters(node: Any) -> list[Any]:
    schema = node.schema()
    return list(torch._C.parse_schema(schema).arguments) if schema and schema != "(no schema)" else []


def _check_kinds(node: Any, name: str) -> None:
    """Types of numbers and the like are plain numbers here, and torch does not look whether there is such a type."""
    for parameter, value in zip(_parameters(node), node.inputs(), strict=False):
        kind = str(parameter.real_type).removeprefix("Optional[").removesuffix("]")
        if kind in _KINDS and value.node().kind() not in ("prim::dtype", "prim::layout"):
            fixed = value.toIValue() if _fixed(value) else operations.UNSET
            if fixed is not None and fixed not in _KINDS[kind]:
                raise operations.refused(
                    name, f"{node.kind()} with {parameter.name}", "it is not a fixed one of torch's"
                )


def _arguments(node: Any, known: Known) -> list[Argument]:
    parameters = _parameters(node)
    arguments = []
    for place, value in enumerate(node.inputs()):
        parameter = parameters[place] if place < len(parameters) else None
        kind = value.type().kind()
        arguments.append(
            Argument(
                name=parameter.name if parameter else "",
                facts=known[value.debugName()],
                listed=kind not in _SCALARS | {"TensorType"},
                plain=not _holds_tensors(value.type()),
                written=bool(parameter and parameter.alias_info and parameter.alias_info.is_write),
                value=value.toIValue() if _fixed(value) else operations.UNSET,
            )
        )
    return arguments


def _fixed(value: Any) -> bool:
    return value.node().kind() == "prim::Constant" and value.type().kind() in _SCALARS


def _check_device(node: Any, name: str) -> None:
    value = node.output()
    if value.type().kind() == "DeviceObjType" and str(value.toIValue()) != "cpu":
        raise operations.refused(name, "another device", "export it on a CPU")


def _holds_tensors(kind: Any) -> bool:
    """Whatever is not known to be plain may."""
    if kind.kind() in ("ListType", "TupleType", "OptionalType"):
        return any(map(_holds_tensors, kind.containedTypes()))
    return kind.kind() not in _SCALARS


def _unless_scalar(value: Any, facts: Facts) -> Facts | None:
    return None if value.type().kind() in _SCALARS else facts
