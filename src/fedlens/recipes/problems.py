"""What is wrong with a recipe as a whole: parts that are sound by themselves and do not go together."""

import functools
import pathlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from fedlens import media
from fedlens.algorithms import ALGORITHMS
from fedlens.media import opening
from fedlens.media.protocol import Medium, Rule
from fedlens.privacy import Unit
from fedlens.recipes.stages import THRESHOLDS
from fedlens.recipes.tables import (
    CHECKED,
    Bug,
    Columns,
    Data,
    Optimizer,
    PrimarySettings,
    Privacy,
    Selection,
    Table,
    Training,
)

if TYPE_CHECKING:
    from fedlens.recipes.recipe import Recipe


def _with(name: str) -> str:
    """The sources that have a column of such a name to be told; [data] itself says what its other options go with."""
    having = [f"'{source}'" for source, about in media.sources().items() if name in about.options - CHECKED]
    return f"source = {' or '.join(having)}" if having else ""


def _goes(name: str, data: Data, recipe: "Recipe") -> bool:
    return name in data.own_options


BY_EXAMPLE = "right", "wrong", "class"  # selections of some of a user's examples
RULES: tuple[Rule, ...] = (
    *((Data, name, functools.partial(_goes, name), _with(name)) for name in Data.model_fields if _with(name)),
    (Data, "users", lambda data, _: not data.deal_to, "rows that have owners, not with deal_to"),
    (Bug, "share", lambda bug, _: bug.of == "users", "of = 'users' (of examples, fraction says how many)"),
    (Bug, "classes", lambda bug, _: bug.relabels, "bugs that change labels"),
    (PrimarySettings, "values channels_last", lambda primary, _: primary.model, "a model from a file"),
    (PrimarySettings, "widths", lambda primary, _: primary.network == "small", "network = 'small'"),
    (
        Columns,
        "users",
        lambda _, recipe: recipe.task == "T6",
        "private data, and public ones that they are held against",
    ),
    (Selection, "minimum_examples", lambda group, _: group.by in BY_EXAMPLE, "by = 'right', 'wrong' or 'class'"),
    (Privacy, "capped", lambda privacy, _: privacy.sampling == "poisson", "sampling = 'poisson'"),
    (Privacy, "size_is_public", lambda privacy, _: privacy.sampling == "fixed-size", "sampling = 'fixed-size'"),
    (Optimizer, "momentum nesterov", lambda optimizer, _: optimizer.kind == "sgd", "kind = 'sgd'"),
    (Optimizer, "nesterov", lambda optimizer, _: optimizer.momentum, "momentum"),
    (Optimizer, "beta1 beta2", lambda optimizer, _: optimizer.kind == "adam", "kind = 'adam'"),
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
    if recipe.primary and not (recipe.primary.model or recipe.primary.public or recipe.data.built_in):
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
    return problems + unused(recipe) + _of_media(recipe, recipe.medium) + recipe.medium.problems(recipe)


def _of_media(recipe: "Recipe", own: Medium) -> list[str]:
    """What belongs to another medium than the recipe's."""
    others = [medium for medium in opening.every() if medium is not own]
    problems = []
    for other in others:
        if recipe.data.source in media.sources_of(other.name):
            problems.append(f"source = '{recipe.data.source}' holds {other.name}, and the recipe is of {own.name}")
        foreign = [kind for kind in recipe.fault_kinds if kind in other.faults.known]
        problems += [f"{kind} is a bug of {other.name}, not of {own.name}" for kind in foreign]
    if recipe.task not in own.tasks:
        problems.append(f"task = '{recipe.task}' is not one of {own.name}: {', '.join(own.tasks)}")
    if recipe.primary and not own.judged:
        problems.append(f"[primary] goes with other media: there is no primary model of {own.name}")
    if any(selection.by not in own.selects for selection in recipe.selections.values()):
        problems.append(f"{own.name} is selected by {' or '.join(own.selects)}")
    if own.name not in ALGORITHMS[recipe.algorithm_name].media and recipe.algorithm_name not in own.algorithms:
        problems.append(f"algorithm = '{recipe.algorithm_name}' is not for {own.name}")
    for place, path in own.public_files(recipe).items():
        if recipe.data.path and _overlap(path, recipe.data.path):
            problems.append(f"{place} is the private data themselves: it must be public")
    return problems


def unused(recipe: "Recipe") -> list[str]:
    """Options that the run would ignore. To give a default does no harm: resolved recipes spell everything out."""
    used = ALGORITHMS[recipe.algorithm_name].options
    others = [medium for medium in opening.every() if medium is not recipe.medium]
    foreign = [
        f"{place} is not used here: it goes with {other.name}" for other in others for place in _given(recipe, other)
    ]
    needless = " ".join(name for name in Training.model_fields if name not in used)
    training: Rule = (Training, needless, lambda *_: False, f"another algorithm than {recipe.algorithm_name}")
    return foreign + [
        f"{place}{name} is not used here: it goes with {company}"
        for place, table in _tables(recipe)
        for kind, names, goes, company in (*RULES, training, *recipe.medium.rules)
        if isinstance(table, kind) and not goes(table, recipe)
        for name in names.split()
        if getattr(table, name) != kind.model_fields[name].default
    ]


def _given(recipe: "Recipe", medium: Medium) -> Iterator[str]:
    """The options of a medium that a recipe gives, other than by default."""
    for key, (_, default) in medium.tables.items():
        value = getattr(recipe, key)
        if value == default:
            continue
        inner = type(value).model_fields if isinstance(value, Table) else {}
        changed = [f"{key}.{name}" for name, field in inner.items() if getattr(value, name) != field.default]
        yield from changed or [key]


def _tables(table: Table, place: str = "") -> Iterator[tuple[str, Table]]:
    """A table with all that stand in it, each with its place."""
    yield place, table
    for name, entry in table:
        inner = {f"{name}.{key}": value for key, value in entry.items()} if isinstance(entry, dict) else {name: entry}
        for key, value in inner.items():
            if isinstance(value, Table):
                yield from _tables(value, f"{place}{key}.")


def _overlap(one: str, other: str) -> bool:
    """Whether two paths name the same file or folder, or one lies in the other."""
    left, right = (pathlib.Path(path).resolve() for path in (one, other))
    same = left.exists() and right.exists() and left.samefile(right)
    return same or left.is_relative_to(right) or right.is_relative_to(left)
