"""What is wrong with a recipe as a whole: parts that are sound by themselves and do not go together."""

import pathlib
from typing import TYPE_CHECKING

from fedlens import misprints, transforms
from fedlens.privacy import Unit
from fedlens.recipe_tables import TEXT, THRESHOLDS, Text

if TYPE_CHECKING:
    from fedlens.recipes import Recipe


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
        by_example = selection.by in ("right", "wrong", "class") and selection.minimum_examples == 1
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
    return problems + (_of_text(recipe, recipe.text) if recipe.text else _of_images(recipe))


def _of_images(recipe: "Recipe") -> list[str]:
    problems = [] if recipe.side else ["give side, of images, or a table [text]"]
    if recipe.task == "T3" or recipe.data.source in TEXT:
        problems.append("T3 and sources of text need a table [text]")
    kinds = (*recipe.hypotheses, *([recipe.data.bug.kind] if recipe.data.bug else []))
    problems += [f"{kind} is a bug of text, not of images" for kind in kinds if kind in misprints.MISPRINTS]
    if recipe.training.epochs > 1 or (recipe.data.bug and recipe.data.bug.share < 1):
        problems.append("training.epochs and data.bug.share go with [text]")
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
    try:
        recipe.weights()
        if text.vocabulary:
            problems += _of_prices(recipe)
    except (ValueError, OSError) as error:
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
