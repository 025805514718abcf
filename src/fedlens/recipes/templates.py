"""Commented recipes to start from."""

import json
import pathlib

from fedlens.owner.registration import Registration

_HEAD = """\
# fedlens plan {file}     what it costs
# fedlens run  {file}     do it
name = "{name}"
task = "{task}"
{side}
[data]
{data}
"""
_REGISTERED = "population = {data}           # its owner has said what it is: fedlens data show"
_SOURCE = 'source = "{source}"\npath = {data}'
_SIDE = "side = {side}                     # images are side x side\n"
_NPZ = """\
images = "x"                  # names of the arrays in the file
labels = "y"
users = "user"
# attributes = ["version"]    # further arrays of whole numbers, to select by
"""
_JSONL = """\
users = "user"                # keys of a line: {"user": "...", "text": ["...", "..."]}
text = "text"
# attributes = ["version"]    # further keys with whole numbers, to select by
"""
_MISPRINT = """
# [data.bug]                  # a rehearsal: plant a bug of a tokenizer and see whether it would be found
# kind = "concatenated"       # or spaceless, wrong-case, truncated, doubled, mojibake; or package.module:function
# fraction = 0.1
# of = "examples"             # of each user's sentences; or of the "users"
"""
_TEXT = """
[text]
model = "spelling"            # the words outside the vocabulary, letter by letter; or "words": whole sentences
vocabulary = {vocabulary}
{baseline}
# tokenizer = "plain"         # or whitespace, or package.module:function
# width = 16                  # bytes of a word, or words of a sentence
# samples = 20000
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
_SELECTIONS = {
    "T1": """
[selections.all]              # a sanity check of everything
by = "everyone"

# [selections.new]            # or two slices: users all of whose examples carry one of the values; nobody is in both
# by = "attribute"
# attribute = "version"
# values = [1]

# [selections.old]
# by = "attribute"
# attribute = "version"
# values = [0]
""",
    "T2": """
[selections.wrong]            # examples the primary model gets wrong, of users with at least so many of them
by = "wrong"
minimum_examples = 5

[selections.right]            # the two share users, so their costs add up
by = "right"
minimum_examples = 5

# [selections.ones]           # or the examples with certain labels
# by = "class"
# classes = [1]
# minimum_examples = 5
""",
    "T3": """
[selections.all]              # everybody; or two slices by an attribute, as for T1
by = "everyone"
""",
    "T4": """
[selections.low]              # users for whom the primary model works badly
by = "accuracy"
below = 0.88                  # a public constant; or { quantile = 0.25 }, learnt from all users as part of the price

[selections.high]             # users for whom it works well; no user is in both, so the dearer group counts
by = "accuracy"
at_least = 0.94               # or { quantile = 0.75 }
""",
}
_PRIVACY = """
[privacy]
epsilon = 8.0                 # the noise follows from it; or give noise_multiplier instead
delta = 1e-5                  # well below 1 / users
users = {users}                   # a public guess at the users in a group: the divisor of every mean
population = {population}              # a public upper bound on all users
sampling = "everyone"         # hundreds of users: all, every round; many thousands: "poisson" with a rate
# correlated = {{ bands = 8 }}  # with sampling = "balanced" and groups = 8: noise that later rounds partly take back
"""
_TAIL = """\
# rounds = 105                # this and all below is left open: it follows from epsilon and users
# clip = 0.1                  # or [privacy.adaptive_clip] with start = 0.1
# minimum_users = 20          # with fewer, by a noisy count, no model is trained
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


_TEXT_TAIL = """\
# rounds = 100                # this and all below is left open
# clip = 0.5                  # or [privacy.adaptive_clip] with start = 0.5
# minimum_users = 20          # with fewer, by a noisy count, no model is trained

# [training]
# batch = 16
# local_steps = 2
# local_rate = 0.5
# server = { kind = "sgd", rate = 2.0, momentum = 0.9 }
"""


def recipe(
    task: str,
    data: str,
    model: str,
    file: str = "recipe.toml",
    *,
    vocabulary: str = "",
    baseline: str = "",
    registered: Registration | None = None,
) -> str:
    """For a registered population, with what is publicly known of it; or for data that lie at a path."""
    if task not in _SELECTIONS:
        raise ValueError(f"Expected a task of {', '.join(_SELECTIONS)}, got {task!r}.")
    text = task == "T3"
    if (vocabulary or baseline) and not text:
        raise ValueError("Expected --vocab and --baseline with --task T3 only.")
    source = _source(data, text)
    place = _REGISTERED if registered else _SOURCE
    if not file.isprintable():
        raise ValueError("Expected a name for the recipe that can be printed: it stands in the recipe.")
    head = _HEAD.format(
        file=file,
        name=f"look-{task.lower()}",
        task=task,
        side="" if text else _SIDE.format(side=(registered and registered.side) or 28),
        data=place.format(source=source, data=_quoted(data)),
    )
    columns = "" if registered else {"npz": _NPZ, "jsonl": _JSONL}.get(source, "")
    population = (registered and registered.population) or 600
    guessed = 250 if registered is None else max(1, population // (1 if task in ("T1", "T3") else 2))
    privacy = _PRIVACY.format(users=guessed, population=population)
    if text:
        earlier = (
            f"baseline = {_quoted(baseline)}" if baseline else '# baseline = "runs/october/all"  # to compare with'
        )
        middle = _TEXT.format(vocabulary=_quoted(vocabulary or "vocabulary.txt"), baseline=earlier)
        return head + columns + _MISPRINT + middle + _SELECTIONS[task] + privacy + _TEXT_TAIL
    primary = _PRIMARY.format(model=_quoted(model)) if task != "T1" else ""
    return head + columns + _BUG + primary + _SELECTIONS[task] + privacy + _TAIL


def _source(data: str, text: bool) -> str:
    suffixes = pathlib.Path(data).suffixes
    if text:
        return "jsonl" if ".jsonl" in suffixes else "population"
    return "npz" if suffixes[-1:] == [".npz"] else "population"


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
