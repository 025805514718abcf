"""Commented recipes to start from."""

import json
from collections.abc import Mapping

from fedlens.media import opening

_HEAD = """\
# fedlens plan {file}     what it costs
# fedlens run  {file}     do it
name = "{name}"
task = "{task}"
{settings}
[data]
{data}
"""
_REGISTERED = "population = {data}           # its owner has said what it is: fedlens data show"
_SOURCE = 'source = "{source}"\npath = {data}'
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
units = {units}                   # a public guess at the users in a group: the divisor of every mean
population = {population}              # a public upper bound on all users
sampling = "everyone"         # hundreds of users: all, every round; many thousands: "poisson" with a rate
# correlated = {{ bands = 8 }}  # with sampling = "balanced" and groups = 8: noise that later rounds partly take back
"""


def recipe(
    task: str,
    data: str,
    file: str = "recipe.toml",
    *,
    registered: bool = False,
    population: int | None = None,
    facts: Mapping[str, int] | None = None,
    **given: str,
) -> str:
    """For data that lie at a path; or for a `registered` population, with what is publicly known of it."""
    if task not in _SELECTIONS:
        raise ValueError(f"Expected a task of {', '.join(_SELECTIONS)}, got {task!r}.")
    if not file.isprintable():
        raise ValueError("Expected a name for the recipe that can be printed: it stands in the recipe.")
    medium = next(medium for medium in opening.every() if task in medium.tasks)
    pieces = medium.template(task, data, facts=facts or {}, **given)
    place = _REGISTERED if registered else _SOURCE
    head = _HEAD.format(
        file=file,
        name=f"look-{task.lower()}",
        task=task,
        settings=pieces.settings,
        data=place.format(source=pieces.source, data=json.dumps(data, ensure_ascii=False)),
    )
    columns = "" if registered else pieces.columns
    return (
        head
        + columns
        + pieces.fault
        + pieces.tables
        + _SELECTIONS[task]
        + _privacy(task, registered, population)
        + pieces.tail
    )


def _privacy(task: str, registered: bool, bound: int | None) -> str:
    groups, population = 1 if task in ("T1", "T3") else 2, bound or 600
    return _PRIVACY.format(units=max(1, population // groups) if registered else 250, population=population)
