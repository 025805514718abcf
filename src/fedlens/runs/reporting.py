"""What a run tells: its plan before, its epsilon and pictures on the way, its models, and at the end its report.

The report is made from what is in the run's folder: no private data is read, and nothing is charged.
"""

import dataclasses
import datetime
import functools
import itertools
import math
import pathlib
import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

import fedlens
from fedlens.algorithms import Ngrams
from fedlens.core import files, trees
from fedlens.core.trees import Tree
from fedlens.ledger import Head, Ledger, Spending
from fedlens.ledger.spending import carried_out
from fedlens.media.images.contrast import SHOWN, contrast
from fedlens.media.images.samples import Model, Samples
from fedlens.media.opening import Trained, opened
from fedlens.media.text.contrast import contrast_texts
from fedlens.media.text.samples import NgramModel, TextModel, Texts
from fedlens.models.classifier import Primary
from fedlens.models.words import Vocabulary
from fedlens.privacy import Guarantee, MatrixPlan, accounting
from fedlens.privacy.guarantee import UNVERIFIED
from fedlens.recipes.recipe import Recipe, to_toml
from fedlens.recipes.tables import Quantile, Text
from fedlens.report.report import Report

SAMPLED = 512
GLIMPSES = (0.05, 0.15, 0.3, 0.6)  # of the rounds
PUBLIC = "the vocabulary, unless it says what it cost, and the words or sentences that the model started from"


def plan_of(recipe: Recipe, promised: Guarantee) -> dict[str, Any]:
    (count, train), thresholds = recipe.plans, recipe.threshold_plan
    return {
        "guarantee": promised.to_dict(),
        "models": len(recipe.selections),
        "earlier": [found.to_dict() for found in recipe.earlier],
        "thresholds": thresholds.to_dict() if thresholds else None,
        "count": count.to_dict(),
        "train": train.to_dict(),
        "noise_to_signal": recipe.noise_to_signal,
    }


def facts(recipe: Recipe, selection: str, done: int, charged: int, *, simulated: bool) -> dict[str, Any]:
    """What the whole run has cost by now: the models before this one and it; where that takes long, now and then.

    Models before it count as promised, whether they were trained or of too few users: that depends on the data. More
    may be charged than done: a crash can cost releases.
    """
    told = {"simulated": True} if simulated else {}
    count, train = recipe.plans
    exact = isinstance(train, MatrixPlan) or accounting.accountant([train]) == accounting.EXACT
    every = 1 if exact else max(1, train.releases // 10)
    if done % every and done != train.releases:
        return told
    named = dict(zip(recipe.selections, recipe.spendings(simulated=simulated), strict=False))
    before = [named[name] for name in itertools.takewhile(lambda name: name != selection, recipe.selections)]
    own = dataclasses.replace(named[selection], plans=(count, carried_out(train, charged)))
    cost = recipe.guarantee([*before, own, *recipe.learning(simulated=simulated)]).epsilon
    return told | {"epsilon_so_far": math.ceil(cost * 1e4) / 1e4 if cost < math.inf else "infinity"}


def glimpsed(
    states: Iterator[Tree], made: Callable[[Tree], Trained], folder: pathlib.Path, recipe: Recipe
) -> Iterator[Tree]:
    """Keeps what the model draws on the way, at some rounds: one sees it learn. Costs no privacy."""
    shares = () if recipe.text else GLIMPSES  # of words, the last ones say it all
    kept = {math.ceil(share * recipe.privacy.rounds) for share in shares}
    for state in states:
        if (number := int(state["round"])) in kept and number < recipe.privacy.rounds:
            made(state).sampled(SHOWN, recipe.seed).save(folder / "rounds" / f"{number:06d}.safetensors")
        yield state


def model_of(recipe: Recipe, selection: str, state: Tree, own: Spending, head: Head) -> Trained:
    """What a state is worth to a modeler, with its guarantee: of its own releases and of those it depends on."""
    told: dict[str, Any] = {
        "label": selection,
        "spending": recipe.owed(own),
        "delta": recipe.privacy.delta,
        "recipe_sha256": recipe.digest,
        "rounds": int(state["round"]),
        "ledger_head": head,
    }
    if recipe.text is None:
        return Model(gan=recipe.gan(), generator=trees.moved(trees.part(state, "generator"), "cpu"), **told)
    told |= {
        "vocabulary": recipe.vocabulary.words,
        "earlier": recipe.earlier,
        "tokenizer": recipe.text.tokenizer,
        "width": recipe.text.width + 2,
    }
    algorithm = recipe.algorithm()
    if isinstance(algorithm, Ngrams):
        return NgramModel(model=algorithm.model(state), **told)
    return TextModel(
        kind=recipe.text.model,
        model=recipe.language(),
        parameters=trees.moved(trees.part(state, "model"), "cpu"),
        **told,
    )


def models_in(folder: pathlib.Path, recipe: Recipe) -> dict[str, Trained]:
    """By selection; one of too few users has none."""
    paths = {selection: folder / selection / "model.safetensors" for selection in recipe.selections}
    return {selection: opened(path) for selection, path in paths.items() if path.exists()}


def baseline(recipe: Recipe, folder: str) -> TextModel | NgramModel:
    """The model of an earlier run to compare with: of another kind, its words would differ whatever the data."""
    path, text = pathlib.Path(folder) / "model.safetensors", recipe.text
    if not path.exists():
        raise ValueError(f"Expected a model folder of an earlier run as text.baseline; {folder} holds no model.")
    found = opened(path)
    if isinstance(found, Model) or text is None:
        raise ValueError("Expected a model of text as text.baseline.")
    kind = "ngrams" if isinstance(found, NgramModel) else found.kind
    ours = text.model, text.tokenizer, recipe.vocabulary.words, text.width + 2
    if (kind, found.tokenizer, found.vocabulary, found.width) != ours:
        told = "text.model, tokenizer, vocabulary and width"
        raise ValueError(f"Expected text.baseline with the recipe's own {told}; they differ.")
    return found


def unconfirmed(book: Ledger, model: Trained, sha256: str) -> str:
    """What is missing for the ledger to confirm what a model's header claims; refuses one that it contradicts."""
    words = getattr(model, "vocabulary", ())
    digest = Vocabulary(words=words, provenance="").digest if words else ""
    return book.confirms(model.spending, getattr(model, "earlier", ()), model=sha256, vocabulary=digest)


def unconfirmed_baseline(recipe: Recipe, book: Ledger) -> str:
    """The same, of the model that a recipe is compared with, if it is with any: its price is a part of what is told."""
    if recipe.text is None or recipe.text.baseline is None:
        return ""
    path = pathlib.Path(recipe.text.baseline) / "model.safetensors"
    return unconfirmed(book, baseline(recipe, recipe.text.baseline), files.sha256(path))


def marked(report: Report, told: str, unverified: str = UNVERIFIED) -> Report:
    """What vouches for its price stands with a report; where nothing does, that stands wherever it tells one."""
    report = dataclasses.replace(report, provenance={**report.provenance, "ledger": told})
    if not unverified:
        return report
    return dataclasses.replace(
        report,
        guarantee=dataclasses.replace(report.guarantee, unverified=unverified),
        runs=tuple(run | {"guarantee": f"{run['guarantee']}, {unverified}"} for run in report.runs),
    )


def report_of(
    folder: pathlib.Path,
    recipe: Recipe,
    models: Mapping[str, Trained],
    *,
    joint: Guarantee,
    primary: Primary | None,
    device: str,
) -> Report:
    """Draws from every model, keeps what was drawn in the folder, and compares. `joint` is of all that was released."""
    warnings, provenance = _warnings(recipe, models), _provenance(folder, recipe, device)
    count = recipe.text.samples if recipe.text else SAMPLED
    samples = [model.sampled(count, recipe.seed) for model in models.values()]
    for selection, side in zip(models, samples, strict=True):
        side.save(folder / "samples" / f"{selection}.safetensors")
    if not samples:
        return Report(title=recipe.name, findings=(), guarantee=joint, warnings=warnings, provenance=provenance)
    if recipe.text:
        texts = [side for side in samples if isinstance(side, Texts)]
        return _text_report(recipe, recipe.text, texts, joint, warnings, provenance)
    drawn = [side for side in samples if isinstance(side, Samples)]
    glimpses, damaged = _glimpses(folder, drawn)
    warnings += tuple(f"{path.parent.parent.name}: {path.name} is damaged and left out" for path in damaged)
    report = contrast(
        *drawn,
        title=recipe.name,
        primary=primary,
        kinds=recipe.hypotheses,
        earlier=glimpses,
        warnings=warnings,
        provenance=provenance,
    )
    return dataclasses.replace(report, guarantee=joint)


def _text_report(
    recipe: Recipe,
    text: Text,
    sides: list[Texts],
    joint: Guarantee,
    warnings: tuple[str, ...],
    provenance: dict[str, str],
) -> Report:
    """Two groups are compared with each other; one with the model of an earlier run, whose users pay for both."""
    compare = functools.partial(
        contrast_texts,
        title=recipe.name,
        kinds=recipe.hypotheses,
        warnings=warnings,
        provenance=provenance | {"vocabulary": recipe.vocabulary.provenance, "public by declaration": PUBLIC},
    )
    if text.baseline is None:
        return dataclasses.replace(compare(*sides), guarantee=joint)
    drawn = baseline(recipe, text.baseline).sampled(text.samples, recipe.seed)
    return compare(sides[0], dataclasses.replace(drawn, label=f"{drawn.label}, before"))


def _warnings(recipe: Recipe, models: Mapping[str, Trained]) -> tuple[str, ...]:
    told = list(recipe.doubts)
    for selection in recipe.selections:
        if selection not in models:
            told.append(
                f"{selection}: a noisy head count found fewer than {recipe.privacy.minimum_users} users; "
                "no model was trained on so few, and there is nothing to compare. Its rounds were not released; the "
                "price that was promised stands, since whether they were depends on the data"
            )
        elif lost := recipe.privacy.rounds - models[selection].rounds:
            told.append(
                f"{selection}: {lost} of {recipe.privacy.rounds} rounds were charged but lost in an interruption; "
                "the model stopped early"
            )
    return tuple(told)


def _provenance(folder: pathlib.Path, recipe: Recipe, device: str) -> dict[str, str]:
    told = {
        "fedlens": fedlens.__version__,
        "torch": torch.__version__,
        "machine": f"{platform.machine()}, {device}",
        "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "run": folder.name,
        "recipe": to_toml(recipe),
        "recipe sha256": recipe.digest,
    }
    if recipe.threshold_plan:
        with files.damage(f"Expected a whole thresholds.json in {folder}; it is damaged."):
            rows = files.json_in(folder / "thresholds.json")
            told["thresholds learnt"] = _learnt_text(recipe, {row["quantile"]: row["accuracy"] for row in rows})
    return told


def _learnt_text(recipe: Recipe, thresholds: Mapping[float, float]) -> str:
    told = [
        f"{name} {words} {thresholds[found.quantile]:.4g}"
        for name, selection in recipe.selections.items()
        for words, found in (("at least", selection.at_least), ("below", selection.below))
        if isinstance(found, Quantile)
    ]
    return f"{', '.join(told)}, from a noisy histogram, part of the price"


def _glimpses(folder: pathlib.Path, sides: Sequence[Samples]) -> tuple[list[Samples], list[pathlib.Path]]:
    """What was kept on the way, and the files that cannot be read."""
    found, damaged = [], []
    for side in sides:
        for path in sorted((folder / side.label / "rounds").glob("[0-9]*.safetensors")):
            try:
                found.append(Samples.open(path))
            except ValueError:
                damaged.append(path)
    return found, damaged
