"""torch.export programs, read and run without torch.export.load, which runs what a file says.

It unpickles weights, constants and sample inputs, evaluates the text of symbolic shapes and of guards, and looks up
what to call in all of torch. A program is a list of operations in JSON, though, and its weights are plain bytes beside
it. So both are read here: operations must be known to compute only (`operations`), everything else is never touched.
"""

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from fedlens.core import files
from fedlens.models import operations
from fedlens.models.archives import Members
from fedlens.models.operations import IMAGES, KEPT, Argument, Facts

_SCHEMA = 8  # of torch 2.11 to 2.13
_WHOLE, _FLOATING = ("uint8", "int8", "int16", "int32", "int64"), ("float16", "float32", "float64")
_DTYPES = {number: getattr(torch, name) for number, name in enumerate([*_WHOLE, *_FLOATING], 1)}
_DTYPES |= {12: torch.bool, 13: torch.bfloat16}
_FORMATS = {1: torch.contiguous_format, 2: torch.channels_last, 4: torch.preserve_format}
_STRIDED = 7
_SIZES: dict[str, Callable[..., Any]] = {
    f"_operator.{name}": getattr(operator, name)
    for name in sorted(operations.named("add sub mul floordiv truediv mod neg eq ne lt le gt ge and_ or_ not_"))
}
_KINDS: dict[str, type] = {
    "Device": torch.device,
    "Layout": torch.layout,
    "MemoryFormat": torch.memory_format,
    "ScalarType": torch.dtype,
}
_PLAIN: dict[str, type] = {"as_int": int, "as_bool": bool, "as_string": str}
_SYMBOL = re.compile(r"Symbol\('(\w+)'.*\)|(\w+)")

Values = dict[str, Any]
Step = Callable[[Values], None]


def opened(
    held: Members, name: str
) -> tuple[Callable[[torch.Tensor], Any], Callable[[], list[torch.Tensor]], tuple[int, ...]]:
    """The program as a function that keeps nothing, the tensors it holds, and how many images it was exported with."""
    program = _json(held, "models/model.json", name)
    if program["schema_version"]["major"] != _SCHEMA or held.get("byteorder", b"little") != b"little":
        raise operations.ProgramError(f"Expected a torch.export program in {name} saved by torch 2.11 to 2.13.")
    graph, signature = program["graph_module"]["graph"], program["graph_module"]["signature"]
    tensors = {
        "parameter": (weights := _tensors(held, "data/weights/model_weights_config.json", "weight", name)),
        "buffer": weights | (constants := _tensors(held, "data/constants/model_constants_config.json", "tensor", name)),
        "tensor_constant": constants,
    }
    kept, given = {}, []
    for spec in signature["input_specs"]:
        ((what, about),) = spec.items()
        if what == "user_input":
            given.append(about["arg"]["as_tensor"]["name"])
        elif what in tensors:
            kept[about["arg"]["name"]] = tensors[what][about[f"{what}_name"]]
        else:
            raise operations.refused(name, what)
    asked = signature["output_specs"]
    for spec in asked:
        if "user_output" not in spec:
            raise operations.refused(name, next(iter(spec)), operations.KEEPS)
    if len(given) != 1:
        raise operations.ProgramError(f"Expected a program in {name} that takes images and nothing else.")
    answers = [spec["user_output"]["arg"]["as_tensor"]["name"] for spec in asked]
    known: dict[str, Facts | None] = {**dict.fromkeys(kept, KEPT), given[0]: IMAGES}
    steps = [_step(node, known, name) for node in graph["nodes"]]
    drop = _last_uses(graph["nodes"], set(answers))
    fits = _fits(graph["tensor_values"][given[0]]["sizes"], program.get("range_constraints", {}))

    def run(images: torch.Tensor) -> Any:
        if not fits(images):
            return None
        values = {**kept, given[0]: images.clone()}
        for step, done in zip(steps, drop, strict=True):
            step(values)
            for each in done:
                values.pop(each, None)
        answered = tuple(values[answer] for answer in answers)
        return answered[0] if len(answered) == 1 else answered

    example = graph["tensor_values"][given[0]]["sizes"][0]
    rows = example.get("as_int") or (example["as_expr"].get("hint") or {}).get("as_int")
    return run, lambda: list(kept.values()), (rows,) if rows else ()


def _json(held: Members, member: str, name: str) -> Any:
    if member not in held:
        raise operations.ProgramError(
            f"Expected {member} in {name}: save the program once more, by torch 2.11 or later."
        )
    return files.parsed_json(held[member], f"Expected a whole {member} in {name}; it is damaged.")


def _tensors(held: Members, config: str, prefix: str, name: str) -> dict[str, torch.Tensor]:
    """Weights that are bytes; those that must be unpickled are refused, since that may run anything."""
    folder, tensors = config.rpartition("/")[0], {}
    for key, about in _json(held, config, name)["config"].items():
        member, meta = about["path_name"], about["tensor_meta"]
        if about["use_pickle"] or meta is None or not re.fullmatch(rf"{prefix}_\d+", member):
            raise operations.refused(name, f"the pickled {member}", "opening it may run anything")
        if meta["device"]["type"] != "cpu" or meta["layout"] != _STRIDED:
            raise operations.refused(name, "another device", "export it on a CPU")
        content = bytearray(held[f"{folder}/{member}"])
        kind = _DTYPES[meta["dtype"]]
        flat = torch.frombuffer(content, dtype=kind).clone() if content else torch.zeros(0, dtype=kind)
        size, stride = ([part["as_int"] for part in meta[axis]] for axis in ("sizes", "strides"))
        tensors[key] = flat.as_strided(size, stride, meta["storage_offset"]["as_int"])
    return tensors


def _fits(sizes: list[Any], ranges: Mapping[str, Any]) -> Callable[[torch.Tensor], bool]:
    """Whether images have the shape that the program was exported for."""

    def bounds(size: Any) -> tuple[float, float]:
        if "as_int" in size:
            return size["as_int"], size["as_int"]
        symbol = _SYMBOL.fullmatch(size["as_expr"]["expr_str"])
        limits = ranges.get(symbol[1] or symbol[2], {}) if symbol else {}
        least, most = limits.get("min_val"), limits.get("max_val")
        return (0 if least is None else least), (float("inf") if most is None else most)

    wanted = [bounds(size) for size in sizes]

    def fits(images: torch.Tensor) -> bool:
        return images.dim() == len(wanted) and all(
            least <= size <= most for size, (least, most) in zip(images.shape, wanted, strict=True)
        )

    return fits


def _step(node: Mapping[str, Any], known: dict[str, Facts | None], name: str) -> Step:
    """One operation, checked, and ready to be run."""
    target = node["target"]
    called, arguments, facts = _checked(node, known, name)
    outputs = [_names(output, name, target) for output in node["outputs"]]
    for output in outputs:
        for each, is_tensor in output if isinstance(output, list) else [output]:
            known[each] = facts if is_tensor else None

    def run(values: Values) -> None:
        positional = [read(values) for by_name, read in arguments if by_name is None]
        answers = called(*positional, **{by_name: read(values) for by_name, read in arguments if by_name is not None})
        several = answers if len(outputs) > 1 else [answers] * len(outputs)
        for output, answer in zip(outputs, several, strict=True):
            if isinstance(output, list):
                values.update((each, part) for (each, _), part in zip(output, answer, strict=True))
            else:
                values[output[0]] = answer

    return run


def _of_its_kind(wanted: str, value: Any) -> bool:
    """A text may name a device, and any number may stand for a type: only what was read as one is one."""
    kinds = [kind for kind in _KINDS if kind in wanted]
    return not kinds or value is None or isinstance(value, _KINDS[kinds[0]])


Read = Callable[[Values], Any]


def _checked(
    node: Mapping[str, Any], known: Mapping[str, Facts | None], name: str
) -> tuple[Callable[..., Any], list[tuple[str | None, Read]], Facts]:
    target = node["target"]
    inputs = [(each["name"], each.get("kind"), *_argument(each["arg"], known, name, target)) for each in node["inputs"]]
    reads: list[tuple[str | None, Read]] = [(key if kind == 2 else None, read) for key, kind, read, _, _, _ in inputs]
    if target in _SIZES:
        if any(facts for _, _, _, facts, _, _ in inputs):
            raise operations.refused(name, target)
        return _SIZES[target], reads, KEPT
    operation, _, overload = target.removeprefix("torch.ops.aten.").partition(".")
    known_here = target.startswith("torch.ops.aten.") and operation in operations.PURE
    packet = getattr(torch.ops.aten, operation, None) if known_here else None
    if packet is None or overload not in packet.overloads():
        raise operations.refused(name, target, operations.why(operation))
    called = getattr(packet, overload)
    parameters = {each.name: each for each in called._schema.arguments}
    for key, *_, value in inputs:
        if key not in parameters or not _of_its_kind(str(parameters[key].real_type), value):
            raise operations.refused(name, target)
    handed = {
        key: Argument(
            name=key,
            facts=facts,
            listed=listed,
            written=bool(parameters[key].alias_info and parameters[key].alias_info.is_write),
            value=value,
        )
        for key, _, _, facts, listed, value in inputs
    }
    for key, parameter in parameters.items():
        if key not in handed and parameter.has_default_value():
            handed[key] = Argument(name=key, facts=None, value=parameter.default_value)
    plain = any("as_tensor" not in output and "as_tensors" not in output for output in node["outputs"])
    ordered = [handed[key] for key in parameters if key in handed]
    return called, reads, operations.answered(name, operation, target, ordered, plain)


def _argument(
    argument: Mapping[str, Any], known: Mapping[str, Facts | None], name: str, target: str
) -> tuple[Read, Facts | None, bool, Any]:
    """How it is read as the program runs, what is known of it, whether it is a list of tensors, its fixed value."""
    ((what, about),) = argument.items()
    if what in ("as_tensor", "as_optional_tensor", "as_tensors", "as_optional_tensors"):
        listed = what.endswith("s")
        parts = [_tensor_name(part) for part in (about if listed else [about])]
        facts = [known[part] for part in parts if part is not None]
        if any(fact is None for fact in facts):
            raise operations.refused(name, target)
        together = operations.merged([fact for fact in facts if fact]) if facts else None
        return _reader(parts, listed), together, listed, operations.UNSET
    if what in ("as_sym_int", "as_sym_bool", "as_sym_float", "as_sym_ints"):
        sizes = [_size(part) for part in (about if what == "as_sym_ints" else [about])]
        for size in sizes:
            if isinstance(size, str) and known[size] is not None:
                raise operations.refused(name, target)
        return _reader(sizes, what == "as_sym_ints"), None, False, operations.UNSET
    fixed = _fixed(what, about, name, target)
    return lambda values: fixed, None, False, fixed


def _reader(parts: Sequence[Any], listed: bool) -> Read:
    """Reads values by their names; what has none is itself."""

    def read(values: Values) -> Any:
        held = [values[part] if isinstance(part, str) else part for part in parts]
        return held if listed else held[0]

    return read


def _tensor_name(part: Mapping[str, Any]) -> str | None:
    if "as_none" in part:
        return None
    name: str = part["as_tensor"]["name"] if "as_tensor" in part else part["name"]
    return name


def _size(part: Mapping[str, Any]) -> str | int | float | bool:
    """The name of a number, or itself."""
    ((_, value),) = part.items()
    if not isinstance(value, str | int | float):
        raise TypeError
    return value


def _fixed(what: str, about: Any, name: str, target: str) -> Any:
    if what == "as_none":
        return None
    if what == "as_float":
        return float(about)  # which JSON keeps as "NaN" and "Infinity"
    if what in _PLAIN and isinstance(about, _PLAIN[what]):
        return about
    if what.endswith("s") and what[:-1] in {*_PLAIN, "as_float"} and isinstance(about, list):
        return [_fixed(what[:-1], part, name, target) for part in about]
    if what == "as_scalar_type":
        return _DTYPES[about]
    if what == "as_memory_format":
        return _FORMATS[about]
    if what == "as_layout" and about == _STRIDED:
        return torch.strided
    if what == "as_device" and about["type"] == "cpu":
        return torch.device("cpu")
    raise operations.refused(name, f"{target} with {what}")


def _names(output: Mapping[str, Any], name: str, target: str) -> Any:
    """(name, whether it is a tensor), or a list of these."""
    ((what, about),) = output.items()
    if what == "as_tensor":
        return about["name"], True
    if what == "as_tensors":
        return [(part["name"], True) for part in about]
    if what in ("as_sym_int", "as_sym_bool", "as_sym_float"):
        return str(about["as_name"]), False
    if what == "as_none":
        return "", False
    raise operations.refused(name, f"{target} with {what}")


def _last_uses(nodes: list[Any], kept: set[str]) -> list[list[str]]:
    """The tensors that nobody asks for after each operation: a large network would not fit into memory with all."""
    last: dict[str, int] = {}
    for place, node in enumerate(nodes):
        for each in node["inputs"]:
            for used in _used(each["arg"]):
                last[used] = place
    done: list[list[str]] = [[] for _ in nodes]
    for used, place in last.items():
        if used not in kept:
            done[place].append(used)
    return done


def _used(argument: Any) -> list[str]:
    if isinstance(argument, list):
        return [name for part in argument for name in _used(part)]
    if not isinstance(argument, dict):
        return []
    own = [argument[key] for key in ("name", "as_name") if isinstance(argument.get(key), str)]
    return own + [name for part in argument.values() for name in _used(part)]
