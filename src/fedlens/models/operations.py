"""Which operations a foreign model may be made of: those that only compute, and only from what they are handed.

A primary model sees every private image, and who brings it may want them. So a program is not searched for known
tricks: each operation in it must be known here, in both formats alike. Known to be harmless are

- arithmetic, layers and rearrangements of tensors, whose answers depend on their inputs alone;
- the same written in place (`relu_`), where what is written over was made in the same call. Written into a weight, a
  buffer, a constant or a list that the model keeps, one user's images would reach the verdict on another;
- layers that differ in training (dropout, batch normalization), where they are fixed to evaluation.

What is absent is refused: reading and writing files, printing, warning, random numbers, other devices, objects with
code of their own, and memory that nobody filled (`empty`), since it may hold what was computed for somebody else. So
is all that turns the VALUE of a pixel into a number that decides which operations run, how often, or on how much memory
(`item`, `nonzero`, a mask as an index): a model that never ends, or runs out of memory, where it meets one image would
tell that somebody has it. What a program does thus depends on the shape of its input only, and it is asked in shapes
that it was tried in before.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any


def named(words: str) -> frozenset[str]:
    return frozenset(words.split())


# These answer with memory of their own, so that writing over their answers changes nothing that anybody keeps.
MAKES = named(
    """
    abs add addbmm addcdiv addcmul addmm addmv all any arange argmax argmin atan atan2 avg_pool1d avg_pool2d avg_pool3d
    baddbmm batch_norm bitwise_and bitwise_not bitwise_or bitwise_xor bmm cat ceil celu clamp clamp_max clamp_min clone
    concat concatenate constant_pad_nd conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d
    _convolution convolution _convolution_mode cos cosh cumsum div divide elu eq erf erfc exp expm1 eye fill floor
    floor_divide fmod full full_like gather ge gelu glu greater greater_equal group_norm gt hardshrink hardsigmoid
    hardswish hardtanh hypot index_select instance_norm isfinite isinf isnan layer_norm le leaky_relu lerp less
    less_equal lift_fresh_copy linear linspace log log10 log1p log2 log_sigmoid _log_softmax log_softmax logaddexp
    logical_and logical_not logical_or logical_xor logsumexp lt masked_fill matmul max_pool1d max_pool2d max_pool3d
    maximum mean minimum mish mm mul multiply ne neg negative new_full new_ones new_zeros not_equal ones ones_like pow
    prelu prod reciprocal reflection_pad1d reflection_pad2d relu relu6 remainder repeat replication_pad1d
    replication_pad2d roll round rsqrt rsub scalar_tensor selu sigmoid sign silu sin sinh _softmax softmax softplus
    softshrink sqrt square stack std sub subtract sum tan tanh tensor threshold tril triu true_divide trunc
    upsample_bicubic2d upsample_bilinear2d upsample_linear1d upsample_nearest1d upsample_nearest2d upsample_nearest3d
    _upsample_nearest_exact1d _upsample_nearest_exact2d _upsample_nearest_exact3d upsample_trilinear3d var where xlogy
    zeros zeros_like
    """
)

# These may answer with a view of what they were handed, or with that itself.
SHOWS = named(
    """
    adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d adaptive_max_pool1d adaptive_max_pool2d
    adaptive_max_pool3d alias alpha_dropout amax amin broadcast_tensors broadcast_to channel_shuffle chunk contiguous
    cosine_similarity detach diagonal dropout einsum embedding expand expand_as feature_alpha_dropout feature_dropout
    flatten flip index lift_fresh linalg_norm linalg_vector_norm max max_pool2d_with_indices median meshgrid min
    moveaxis movedim narrow norm numpy_T pad permute pixel_shuffle pixel_unshuffle positive reshape
    scaled_dot_product_attention select slice sort split split_with_sizes squeeze std_mean swapaxes swapdims t tile to
    _to_copy topk transpose type_as unbind unflatten unsafe_chunk unsafe_split unsqueeze var_mean view view_as
    """
)

# Written in place: what they change must have been made in the same call.
WRITES = named(
    """
    abs_ add_ alpha_dropout_ celu_ clamp_ clamp_max_ clamp_min_ copy_ detach_ div_ dropout_ elu_ exp_ feature_dropout_
    fill_ floor_ hardsigmoid_ hardswish_ hardtanh_ leaky_relu_ log_ masked_fill_ mish_ mul_ neg_ pow_ reciprocal_ relu_
    relu6_ round_ rsqrt_ selu_ sigmoid_ silu_ sqrt_ squeeze_ sub_ tanh_ threshold_ unsqueeze_ zero_
    """
)

# They tell the shape or the type of a tensor, never its values.
SHAPES = named(
    """
    _assert_scalar _assert_tensor_metadata device dim dtype __is__ is_complex is_contiguous is_floating_point is_nested
    __isnot__ layout len numel size stride sym_constrain_range sym_constrain_range_for_size sym_numel sym_size
    sym_stride
    """
)

# They read values, and are known for tensors that were made without looking at a pixel (traces keep sizes as tensors).
READS = named("Bool Float FloatImplicit Int IntImplicit item ScalarImplicit")

PURE = MAKES | SHOWS | WRITES | SHAPES | READS

# The argument that must be fixed, and to what: in training these draw at random, or change what they keep.
EVALUATION: dict[str, tuple[str, Any]] = {
    **dict.fromkeys(("alpha_dropout", "alpha_dropout_", "dropout", "dropout_"), ("train", False)),
    **dict.fromkeys(("feature_alpha_dropout", "feature_dropout", "feature_dropout_"), ("train", False)),
    "batch_norm": ("training", False),
    "scaled_dot_product_attention": ("dropout_p", 0.0),
}

_TRAINING = "it behaves as in training; call .eval() before exporting"
_UNKNOWN = "fedlens does not know that this computes and does nothing else; export the layers alone, after .eval()"
KEEPS = (
    "it writes into what the model keeps, so that one user could change the verdict on the next; export it without, as"
    " by .eval() and inplace=False"
)
_MIXES = "it writes pixels over a tensor made without them; write `a + b` in place of `a += b`"
WRITES_DOWN = "it puts the values of pixels into a text, which a classifier has no use for"
_ENDS = "whole numbers so divided can end the process, which would tell of an image; divide floats, and round them"
DECIDES = "it decides by the values of pixels what to do next; choose between two answers by torch.where instead"
_HINTS = {
    **dict.fromkeys(("SetAttr", "set_", "resize_"), KEEPS),
    **dict.fromkeys(("nonzero", "masked_select", "unique", "bincount", "equal", "is_nonzero", "tolist"), DECIDES),
    **dict.fromkeys(("bernoulli", "bernoulli_", "native_dropout", "rrelu", "rand_like", "randn_like"), _TRAINING),
}

UNSET = object()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Facts:
    """What is known of a tensor or a list: made in this call; made without looking at the value of a pixel."""

    fresh: bool
    clean: bool


KEPT = Facts(fresh=False, clean=True)  # weights, buffers, constants
IMAGES = Facts(fresh=True, clean=False)  # a copy that the program may write over
NEVER = Facts(fresh=True, clean=True)  # stands where an error is raised: nobody reads it


@dataclasses.dataclass(frozen=True, kw_only=True)
class Argument:
    """`facts` is None for plain numbers and texts: they never depend on pixels, or the program was refused."""

    name: str
    facts: Facts | None
    listed: bool = False  # a list: what it holds may be older than itself
    plain: bool = False  # a list that holds no tensor
    written: bool = False
    value: Any = UNSET  # where it is fixed


def answered(file: str, operation: str, shown: str, arguments: Sequence[Argument], plain: bool) -> Facts:
    """What is known of the tensors that an operation answers with; refuses what does anything but compute.

    It is `shown` as it is written in the program, and `plain` if any of its answers is a number or a text.
    """
    if operation not in PURE:
        raise refused(file, shown, why(operation))
    if not _evaluates(operation, arguments):
        raise refused(file, shown, _TRAINING)
    if any(argument.name == "rounding_mode" and argument.value is not None for argument in arguments):
        raise refused(file, f"{shown} with a rounding_mode", _ENDS)
    held = [argument.facts for argument in arguments if argument.facts]
    clean = operation in SHAPES or all(facts.clean for facts in held)
    if not clean and (plain or operation in READS or _shape_depends_on_values(operation, arguments)):
        raise refused(file, shown, DECIDES)
    check_writes(file, shown, arguments)
    return Facts(fresh=operation in MAKES | SHAPES or _shows_fresh(arguments), clean=clean)


def _shows_fresh(arguments: Sequence[Argument]) -> bool:
    """A view is as fresh as what it may be a view of; one of pixels is not mistaken for one without."""
    shown = [argument for argument in arguments if argument.facts and not argument.plain]
    held = [argument.facts for argument in shown if argument.facts]
    return merged(held).fresh and not any(argument.listed for argument in shown)


def _evaluates(operation: str, arguments: Sequence[Argument]) -> bool:
    values = {argument.name: argument.value for argument in arguments}
    if operation == "instance_norm":  # it writes over averages that it is handed, unless it uses them
        return values.get("running_mean", UNSET) is None or values.get("use_input_stats", UNSET) is False
    name, wanted = EVALUATION.get(operation, ("", UNSET))
    given = values.get(name, UNSET)
    return wanted is UNSET or (type(given) is type(wanted) and given == wanted)


def _shape_depends_on_values(operation: str, arguments: Sequence[Argument]) -> bool:
    """A mask as an index, and `where` without a choice, answer with as many rows as there are hits."""
    if operation == "index":
        return not all(argument.facts.clean for argument in arguments[1:] if argument.facts)
    return operation == "where" and len(arguments) == 1


def check_writes(file: str, shown: str, arguments: Sequence[Argument]) -> None:
    """Refuses to write into what outlasts the call, and to hide pixels in what counts as made without any."""
    written = [argument for argument in arguments if argument.written and argument.facts]
    others = [argument.facts for argument in arguments if not argument.written and argument.facts]
    for argument in written:
        if argument.facts and not argument.facts.fresh:
            raise refused(file, shown, KEEPS)
        if argument.facts and argument.facts.clean and not all(facts.clean for facts in others):
            raise refused(file, shown, _MIXES)


def merged(several: Sequence[Facts]) -> Facts:
    """What is known of a tensor that may be any of these."""
    several = [facts for facts in several if facts is not NEVER] or [NEVER]
    alike = len({facts.clean for facts in several}) <= 1
    return Facts(fresh=alike and all(facts.fresh for facts in several), clean=all(facts.clean for facts in several))


def why(operation: str) -> str:
    """What is wrong with an operation that is not known."""
    return _HINTS.get(operation.partition("::")[2] or operation, _UNKNOWN)


class ProgramError(ValueError):
    """A program that might do anything but compute."""


def refused(file: str, operation: str, why: str = _UNKNOWN) -> ProgramError:
    """Names of operations are public: who brought the model wrote them."""
    return ProgramError(
        f"Expected a model in {file} that computes and does nothing else, for it sees private images;"
        f" it uses {operation}: {why}."
    )
