"""Commented recipes to start from."""

import json
from collections.abc import Mapping

from fedlens.media import opening
from fedlens.media.protocol import template_of

TASKS = ("T1", "T2", "T3", "T4")


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
    if task not in TASKS:
        raise ValueError(f"Expected a task of {', '.join(TASKS)}, got {task!r}.")
    if not file.isprintable():
        raise ValueError("Expected a name for the recipe that can be printed: it stands in the recipe.")
    medium = next(medium for medium in opening.every() if task in medium.tasks)
    bound, groups = population or 600, 1 if task in ("T1", "T3") else 2
    return template_of(__package__).render(
        file=file,
        task=task,
        registered=registered,
        data=json.dumps(data, ensure_ascii=False),
        pieces=medium.template(task, data, facts=facts or {}, **given),
        units=max(1, bound // groups) if registered else 250,
        population=bound,
    )
