"""Recipes of feedback GANs: what does not go together."""

from fedlens.media.images.settings import FEEDBACK, Networks, channels, networks, side
from fedlens.media.protocol import Rule
from fedlens.recipes.tables import Settings

RULES: tuple[Rule, ...] = (
    (Networks, "size", lambda model, recipe: not _of_feedback(model) or recipe.algorithm == FEEDBACK, FEEDBACK),
    (
        Networks,
        "generator_widths",
        lambda model, _: model.size != "gs-wgan",
        "another size: one width is for all layers",
    ),
)


def problems(recipe: Settings) -> list[str]:
    if recipe.algorithm != FEEDBACK:
        return []
    p, training, wrong = recipe.privacy, recipe.training, []
    if p.adaptive_clip or p.correlated:
        wrong.append(f"algorithm = '{FEEDBACK}' bounds each image by clip or top_k, under independent noise")
    if p.sampler().displaces and not training.all_learn:
        wrong.append(
            f"sampling = '{p.sampling}' hides who was asked: critics that learn when they are asked would remember it;"
            " give training.all_learn = true, or sampling = 'balanced'"
        )
    pixels = channels(recipe) * side(recipe) ** 2
    if p.top_k and p.top_k > pixels:
        wrong.append(f"top_k={p.top_k} exceeds the {pixels} pixels of an image")
    if training.batch % training.asks:
        wrong.append(f"training.batch={training.batch} in training.asks={training.asks} parts, which must be equal")
    if training.batch < networks(recipe).classes:
        wrong.append(f"training.batch={training.batch} holds less than one image of each class")
    if p.rounds % training.asks:
        wrong.append(f"rounds={p.rounds} ends in the middle of a step of asks={training.asks} releases")
    return wrong


def _of_feedback(model: Networks) -> bool:
    return model.size in ("gs-wgan", "datalens")
