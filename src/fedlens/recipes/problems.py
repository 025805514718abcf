"""What is wrong with a recipe as a whole: parts that are sound by themselves and do not go together."""

import pathlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from fedlens.media.images import faults as transforms
from fedlens.media.text import faults as misprints
from fedlens.privacy import Unit
from fedlens.recipes.tables import (
    TEXT,
    THRESHOLDS,
    Bug,
    Columns,
    Data,
    Networks,
    Optimizer,
    Primary,
    Privacy,
    Selection,
    Table,
    Text,
    Training,
)

if TYPE_CHECKING:
    from fedlens.recipes.recipe import Recipe

BY_EXAMPLE = "right", "wrong", "class"  # selections of some of a user's examples
# Options of a table; when a run uses them, by the table they stand in and the whole recipe; and what they go with.
Rule = tuple[type[Table], str, Callable[[Any, "Recipe"], object], str]
RULES: tuple[Rule, ...] = (
    (Data, "images labels", lambda data, _: data.source == "npz", "source = 'npz'"),
    (Data, "text", lambda data, _: data.source == "jsonl", "source = 'jsonl'"),
    (Data, "users", lambda data, _: data.source in ("npz", "jsonl"), "source = 'npz' or 'jsonl'"),
    (Data, "users", lambda data, _: not data.deal_to, "rows that have owners, not with deal_to"),
    (Bug, "share", lambda _, recipe: recipe.text, "[text]"),
    (Bug, "share", lambda bug, _: bug.of == "users", "of = 'users' (of examples, fraction says how many)"),
    (Bug, "classes", lambda bug, recipe: not recipe.text and _relabels(bug), "bugs that change the labels of images"),
    (Primary, "values channels_last", lambda primary, _: primary.model, "a model from a file"),
    (Primary, "widths", lambda primary, _: primary.network == "small", "network = 'small'"),
    (Columns, "users", lambda *_: False, "private data (nobody owns what is public)"),
    (Selection, "minimum_examples", lambda group, _: group.by in BY_EXAMPLE, "by = 'right', 'wrong' or 'class'"),
    (Privacy, "capped", lambda privacy, _: privacy.sampling == "poisson", "sampling = 'poisson'"),
    (Privacy, "size_is_public", lambda privacy, _: privacy.sampling == "fixed-size", "sampling = 'fixed-size'"),
    (Networks, " ".join(Networks.model_fields), lambda _, recipe: not recipe.text, "images"),
    (Training, "decay generator_steps generator_batch generator", lambda _, recipe: not recipe.text, "images"),
    (Training, "epochs", lambda _, recipe: recipe.text, "[text]"),
    (
        Training,
        "batch epochs local_steps local_rate server",
        lambda _, recipe: not _counts(recipe),
        "a network, not with ngrams",
    ),
    (Optimizer, "momentum nesterov", lambda optimizer, _: optimizer.kind == "sgd", "kind = 'sgd'"),
    (Optimizer, "nesterov", lambda optimizer, _: optimizer.momentum, "momentum"),
    (Optimizer, "beta1 beta2", lambda optimizer, _: optimizer.kind == "adam", "kind = 'adam'"),
    (
        Text,
        "size embedding units projection layers warm_steps",
        lambda _, recipe: not _counts(recipe),
        "a network, not with ngrams",
    ),
    (Text, "order", lambda _, recipe: _counts(recipe), "model = 'ngrams'"),
    (Text, "vocabulary_size", lambda text, _: not text.vocabulary, "public text in place of vocabulary"),
    (Text, "public", lambda text, _: not text.vocabulary or _reads(text), "model = 'words', or in place of vocabulary"),
)


def found_in(recipe: "Recipe") -> list[str]:
    """All of them, one line each."""
    problems = []
    if not 1 <= len(recipe.selections) <= 2:
        problems.append(f"expected one or two selections, got {len(recipe.selections)}")
    if THRESHOLDS in recipe.selections:
        problems.append(f"expected another name for the selection {THRESHOLDS}: it is taken")
    if recipe.data.bug and recipe.privacy.unit == Unit.EXAMPLE:
        problems.append("data.bug with unit = 'example': one example would decide what its user's others hold")
    if recipe.primary is None and recipe.asks_primary:
        problems.append("selections by accuracy, right or wrong need a [primary] model")
    if recipe.primary and not (recipe.primary.model or recipe.primary.public or recipe.data.source == "digits"):
        problems.append("[primary] needs model, or public data to train one on")
    for name, selection in recipe.selections.items():
        by_example = selection.by in BY_EXAMPLE and selection.minimum_examples == 1
        alone = selection.by == "everyone" or by_example
        if recipe.privacy.unit == Unit.EXAMPLE and not alone:
            problems.append(
                f"selection {name} with unit = 'example': one example would decide about its user's others; "
                "select by everyone, or by right, wrong or class with minimum_examples = 1"
            )
        if selection.attribute is not None and recipe.data.lacks(selection.attribute):
            problems.append(f"selection {name}: data.attributes does not name {selection.attribute!r}")
        if selection.by != "everyone" and recipe.privacy.sampling == "balanced":
            problems.append(f"selection {name} with a balanced schedule: its slots would depend on private data")
        if selection.by != "everyone" and recipe.privacy.size and not recipe.privacy.size_is_public:
            problems.append(
                f"selection {name} with samples of a fixed size: how many users are in it is private; "
                "use poisson, or declare size_is_public = true"
            )
    return problems + unused(recipe) + (_of_text(recipe, recipe.text) if recipe.text else _of_images(recipe))


def unused(recipe: "Recipe") -> list[str]:
    """Options that the run would ignore. To give a default does no harm: resolved recipes spell everything out."""
    return [
        f"{place}{name} is not used here: it goes with {company}"
        for place, table in _tables(recipe)
        for kind, names, used, company in RULES
        if isinstance(table, kind) and not used(table, recipe)
        for name in names.split()
        if getattr(table, name) != kind.model_fields[name].default
    ]


def _tables(table: Table, place: str = "") -> Iterator[tuple[str, Table]]:
    """A table with all that stand in it, each with its place."""
    yield place, table
    for name, found in table:
        inner = {f"{name}.{key}": value for key, value in found.items()} if isinstance(found, dict) else {name: found}
        for key, value in inner.items():
            if isinstance(value, Table):
                yield from _tables(value, f"{place}{key}.")


def _counts(recipe: "Recipe") -> bool:
    return recipe.text is not None and recipe.text.model == "ngrams"


def _reads(text: Text) -> bool:
    """Whether a model reads public sentences before anything private."""
    return text.model == "words" and text.warm_steps > 0


def _relabels(bug: Bug) -> bool:
    return bug.kind not in misprints.MISPRINTS and transforms.named(bug.kind).labels is not None


def _of_images(recipe: "Recipe") -> list[str]:
    problems = [] if recipe.side else ["give side, of images, or a table [text]"]
    if recipe.task == "T3" or recipe.data.source in TEXT:
        problems.append("T3 and sources of text need a table [text]")
    kinds = (*recipe.hypotheses, *([recipe.data.bug.kind] if recipe.data.bug else []))
    problems += [f"{kind} is a bug of text, not of images" for kind in kinds if kind in misprints.MISPRINTS]
    try:
        recipe.model.built(recipe.side or 28, 1)
    except ValueError as error:
        problems.append(str(error))
    return problems


def _of_text(recipe: "Recipe", text: Text) -> list[str]:
    problems = ["[text] takes no side, which is of images"] if recipe.side else []
    if recipe.task in ("T2", "T4") or recipe.primary:
        problems.append("[text] goes with T1 and T3: there is no primary model of text")
    if recipe.data.source in ("digits", "npz"):
        problems.append(f"[text] goes with sources of text, not with {recipe.data.source}")
    kinds = (*recipe.hypotheses, *([recipe.data.bug.kind] if recipe.data.bug else []))
    problems += [f"{kind} is a bug of images, not of text" for kind in kinds if kind in transforms.TRANSFORMS]
    if any(selection.by not in ("everyone", "attribute") for selection in recipe.selections.values()):
        problems.append("[text] goes with selections by everyone or by attribute")
    if not (text.vocabulary or text.public or recipe.data.source == "docstrings"):
        problems.append("text.vocabulary is missing: a list of words, public or learnt at a price; or public text")
    if text.baseline and len(recipe.selections) > 1:
        problems.append("text.baseline goes with one selection: two are compared with each other")
    p = recipe.privacy
    if text.model == "ngrams" and (p.rounds, p.clip, p.correlated) != (1, 1.0, None):
        problems.append("text.model = 'ngrams' is one release: rounds = 1, clip = 1.0, nothing correlated; or open")
    if p.unit == Unit.EXAMPLE:
        problems.append("[text] protects users: privacy.unit = 'example' is not for it")
    for name in ("vocabulary", "public"):
        path = getattr(text, name)
        if path and recipe.data.path and _overlap(path, recipe.data.path):
            problems.append(f"text.{name} is the private data themselves: it must be public")
    if text.public and not text.vocabulary and text.model == "words" and not pathlib.Path(text.public).exists():
        return [*problems, f"expected public text at text.public = {text.public!r}; there is nothing"]
    try:
        recipe.weights()
        if text.vocabulary:
            problems += _of_prices(recipe)
    except OSError:  # public text has errors of its own
        problems.append(f"expected a list of words, a file, at text.vocabulary = {text.vocabulary!r}; there is none")
    except ValueError as error:
        problems.append(f"text: {error}")
    return problems


def _of_prices(recipe: "Recipe") -> list[str]:
    ours = recipe.privacy.unit, recipe.privacy.neighbours
    return [
        f"text.vocabulary was learnt per {unit} ({neighbours}), and the models are per {ours[0]} ({ours[1]}): such"
        " costs do not add up to one guarantee; take the same unit and neighbours, or a public list"
        for unit, neighbours in (found.kind for found in recipe.earlier)
        if (unit, neighbours) != ours
    ]


def _overlap(one: str, other: str) -> bool:
    """Whether two paths name the same file or folder, or one lies in the other."""
    left, right = (pathlib.Path(path).resolve() for path in (one, other))
    same = left.exists() and right.exists() and left.samefile(right)
    return same or left.is_relative_to(right) or right.is_relative_to(left)
