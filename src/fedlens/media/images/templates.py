"""The pieces of a recipe to start from that are about images."""

import json
import pathlib
from collections.abc import Mapping

from fedlens.media.protocol import Template

_SIDE = "side = {side}                     # images are side x side\n"
_NPZ = """\
images = "x"                  # names of the arrays in the file
labels = "y"
users = "user"
# attributes = ["version"]    # further arrays of whole numbers, to select by
"""
_BUG = """
# [data.bug]                  # a rehearsal: plant a bug and see whether it would be found
# kind = "inverted"           # or rotated-90, blurred, ... (a wrong name lists them); or package.module:function
# fraction = 0.5
# of = "users"                # or of each user's "examples"
# mark = "release"            # a column to select by: 1 for users with the bug, 0 for the others
"""
_PRIMARY = """
[primary]                     # the model whose mistakes are looked into; it must not have seen the private data
model = {model}
"""
_TAIL = """\
# rounds = 105                # this and all below is left open: it follows from epsilon and users
# clip = 0.1                  # or [privacy.adaptive_clip] with start = 0.1
# minimum_units = 20          # with fewer, by a noisy count, no model is trained
# threshold_noise = 4.0       # on every bin of the histogram that quantiles are learnt from, if any are

# [model]
# size = "small"              # noise grows with the number of weights; "paper" wants many thousands of users
# critic_widths = [24, 48]
# classes = 10                # a conditional model: samples come with labels

# [training]
# batch = 32
# local_steps = 2
# local_rate = 5e-3
# generator_steps = 8
# generator_batch = 128
# generator = { kind = "adam", rate = 1e-3, beta1 = 0.5, beta2 = 0.9 }
"""


def pieces(
    task: str,
    data: str,
    *,
    facts: Mapping[str, int],
    model: str = "cnn.safetensors",
    vocabulary: str = "",
    baseline: str = "",
) -> Template:
    if vocabulary or baseline:
        raise ValueError("Expected --vocab and --baseline with --task T3 only.")
    source = "npz" if pathlib.Path(data).suffix == ".npz" else "population"
    return Template(
        settings=_SIDE.format(side=facts.get("side", 28)),
        source=source,
        columns=_NPZ if source == "npz" else "",
        fault=_BUG,
        tables=_PRIMARY.format(model=json.dumps(model, ensure_ascii=False)) if task != "T1" else "",
        tail=_TAIL,
    )
