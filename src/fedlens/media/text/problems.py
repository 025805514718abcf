"""What is wrong with a recipe of text: parts that are sound by themselves and do not go together."""

import pathlib

from fedlens.algorithms import Ngrams
from fedlens.media.protocol import Rule
from fedlens.media.text.settings import Text, text
from fedlens.privacy import Unit
from fedlens.recipes.tables import Settings

NETWORK = "a network, not with ngrams"
RULES: tuple[Rule, ...] = (
    (Text, "size embedding units projection layers warm_steps", lambda own, _: not own.counts, NETWORK),
    (Text, "order", lambda own, _: own.counts, "model = 'ngrams'"),
    (Text, "vocabulary_size", lambda own, _: not own.vocabulary, "public text in place of vocabulary"),
    (Text, "public", lambda own, _: not own.vocabulary or own.reads, "model = 'words', or in place of vocabulary"),
)


def problems(recipe: Settings) -> list[str]:
    own, p, problems = text(recipe), recipe.privacy, []
    if not (own.vocabulary or own.public or recipe.data.source == "docstrings"):
        problems.append("text.vocabulary is missing: a list of words, public or learnt at a price; or public text")
    if own.baseline and len(recipe.selections) > 1:
        problems.append("text.baseline goes with one selection: two are compared with each other")
    if own.counts and (p.rounds, p.clip, p.correlated) != (1, 1.0, None):
        problems.append("text.model = 'ngrams' is one release: rounds = 1, clip = 1.0, nothing correlated; or open")
    if recipe.algorithm and (recipe.algorithm == Ngrams.name) != own.counts:
        problems.append(f"algorithm = '{recipe.algorithm}' does not go with text.model = '{own.model}'")
    if p.unit == Unit.EXAMPLE:
        problems.append("[text] protects users: privacy.unit = 'example' is not for it")
    if own.public and not own.vocabulary and own.model == "words" and not pathlib.Path(own.public).exists():
        return [*problems, f"expected public text at text.public = {own.public!r}; there is nothing"]
    return problems + _of_words(recipe)


def _of_words(recipe: Settings) -> list[str]:
    """A list that cannot be opened, a network that cannot be built from it, or a price that does not add up."""
    own = text(recipe)
    try:
        if not own.counts:
            own.built()
        return _of_prices(recipe) if own.vocabulary else []
    except OSError:  # public text has errors of its own
        return [f"expected a list of words, a file, at text.vocabulary = {own.vocabulary!r}; there is none"]
    except ValueError as error:
        return [f"text: {error}"]


def _of_prices(recipe: Settings) -> list[str]:
    ours = recipe.privacy.unit, recipe.privacy.neighbours
    return [
        f"text.vocabulary was learnt per {unit} ({neighbours}), and the models are per {ours[0]} ({ours[1]}): such"
        " costs do not add up to one guarantee; take the same unit and neighbours, or a public list"
        for unit, neighbours in (paid.kind for paid in text(recipe).price)
        if (unit, neighbours) != ours
    ]
