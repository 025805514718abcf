"""What a run tells: its plan before, its epsilon on the way, its models, and at the end its report.

The report is made from what is in the run's folder: no private data is read, and nothing is charged.
"""

import dataclasses
import datetime
import itertools
import math
import pathlib
import platform
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from fedlens.algorithms.protocol import Algorithm
from fedlens.core import files
from fedlens.core.trees import Tree
from fedlens.ledger import Head, Ledger, Spending
from fedlens.ledger.spending import charged_as
from fedlens.media import opening
from fedlens.media.protocol import Medium, Samples, Trained
from fedlens.models.classifier import Primary
from fedlens.privacy import Guarantee, MatrixPlan, accounting
from fedlens.privacy.guarantee import UNVERIFIED
from fedlens.recipes.recipe import Recipe
from fedlens.recipes.stages import COUNT, FIRST, THRESHOLDS, TRAIN
from fedlens.recipes.tables import Quantile
from fedlens.recipes.toml import to_toml
from fedlens.report.report import INCONCLUSIVE, Report, Verdict
from fedlens.version import __version__


def plan_of(recipe: Recipe, promised: Guarantee) -> dict[str, Any]:
    thresholds = recipe.plans.get(THRESHOLDS)
    return {
        "guarantee": promised.to_dict(),
        "models": len(recipe.selections),
        "earlier": [paid.to_dict() for paid in recipe.released],
        "thresholds": thresholds.to_dict() if thresholds else None,
        "count": recipe.plans[COUNT].to_dict(),
        "first": recipe.plans[FIRST].to_dict() if FIRST in recipe.plans else None,
        "train": recipe.plans[TRAIN].to_dict(),
        "noise_to_signal": recipe.noise_to_signal,
    }


def facts(recipe: Recipe, selection: str, done: int, charged: int, *, simulated: bool) -> dict[str, Any]:
    """What the whole run has cost by now: the models before this one and it; where that takes long, now and then.

    Models before it count as promised, whether they were trained or of too few users: that depends on the data. More
    may be charged than done: a crash can cost releases.
    """
    mark = {"simulated": True} if simulated else {}
    train = recipe.plans[TRAIN]
    exact = isinstance(train, MatrixPlan) or accounting.accountant([train]) == accounting.EXACT
    every = 1 if exact else max(1, train.releases // 10)
    if done % every and done != train.releases:
        return mark
    named = dict(zip(recipe.selections, recipe.spendings(simulated=simulated), strict=False))
    before = [named[name] for name in itertools.takewhile(lambda name: name != selection, recipe.selections)]
    own = dataclasses.replace(named[selection], plans=(*recipe.before, charged_as(train, charged)))
    cost = recipe.guarantee([*before, own, *recipe.learning(simulated=simulated)]).epsilon
    return mark | {"epsilon_so_far": math.ceil(cost * 1e4) / 1e4 if cost < math.inf else "infinity"}


def model_of(recipe: Recipe, selection: str, state: Tree, own: Spending, head: Head, device: str = "cpu") -> Trained:
    """What a state is worth to a modeler, with its guarantee: of its own releases and of those it depends on."""
    algorithm, about = _stated(recipe, selection, state, own, head)
    return recipe.medium.model(recipe, algorithm, state, device=device, **about)


def kept_of(
    recipe: Recipe, selection: str, state: Tree, own: Spending, head: Head, stage: str = TRAIN
) -> Trained | None:
    """What is kept of a state beside the model, with the guarantee of all until then; nothing, as a rule."""
    algorithm, about = _stated(recipe, selection, state, own, head, stage)
    return recipe.medium.kept(recipe, algorithm, state, **about)


def _stated(
    recipe: Recipe, selection: str, state: Tree, own: Spending, head: Head, stage: str = TRAIN
) -> tuple[Algorithm, dict[str, Any]]:
    about = {
        "label": selection,
        "spending": recipe.owed(own),
        "delta": recipe.privacy.delta,
        "recipe_sha256": recipe.digest,
        "rounds": int(state["round"]),
        "ledger_head": head,
    }
    return recipe.stage(stage, selection).algorithm, about


def models_in(folder: pathlib.Path, recipe: Recipe) -> dict[str, Trained]:
    """By selection; one of too few users has none."""
    paths = {selection: opening.result_in(folder / selection) for selection in recipe.selections}
    return {selection: opening.opened(path) for selection, path in paths.items() if path.exists()}


def releases_in(medium: Medium, parts: Sequence[pathlib.Path]) -> tuple[Trained, ...]:
    """What was kept of every group beside its model; nothing, where one has none.

    Refuses what its model does not name: it may be another release, which cost more.
    """
    kept = tuple(medium.kept_in(part) for part in parts)
    if not all(kept):
        return ()
    for part, one in zip(parts, kept, strict=True):
        if one and files.sha256(part / one.file) != opening.opened(opening.result_in(part)).beside:
            raise ValueError(f"Expected the {one.file} that the model of {one.label!r} was made of; it was changed.")
    return tuple(one for one in kept if one)


def unconfirmed(book: Ledger, model: Trained, sha256: str, *, of_its_run: bool = False) -> str:
    """What is missing for the ledger to confirm what a model's header claims; refuses one that it contradicts.

    One that was fitted after its run is no model `of_its_run`, whatever it says.
    """
    again = not of_its_run and model.refitted
    held = _booked_model(book, model.spending.account.run) if again else ""
    doubt = book.confirms(model.spending, model.paid_before, model=held or sha256, vocabulary=model.words_digest)
    return doubt or ("it was fitted after its run, to whatever its maker had" if again else "")


def _booked_model(book: Ledger, run: str) -> str:
    """The hash of the model that a run ended with; empty if it kept none."""
    return next((str(known["model"] or "") for known in book.runs() if known["run"] == run and known["closed"]), "")


def unconfirmed_baseline(recipe: Recipe, book: Ledger) -> str:
    """The same, of the model that a recipe is compared with, if it is with any: its price is a part of what is told."""
    baseline = recipe.medium.baseline(recipe)
    path = recipe.medium.baseline_file(recipe)
    return unconfirmed(book, baseline, files.sha256(path)) if baseline and path else ""


def marked(report: Report, vouched: str, unverified: str = UNVERIFIED) -> Report:
    """What vouches for its price stands with a report; where nothing does, that stands wherever it tells one."""
    report = dataclasses.replace(report, provenance={**report.provenance, "ledger": vouched})
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
    """Draws from every model, keeps what was drawn in the folder, and compares. `joint` is of all that was released.

    Two groups are compared with each other; one with the model of an earlier run, whose users pay for both.
    """
    medium, count = recipe.medium, recipe.medium.samples(recipe)
    warnings, provenance = _warnings(recipe, models), _provenance(folder, recipe, device) | medium.provenance(recipe)
    about = {"title": recipe.name, "warnings": warnings, "provenance": provenance}
    if looked := medium.looked(list(models.values()), recipe=recipe, **about):  # type: ignore[arg-type]
        return dataclasses.replace(looked, guarantee=joint)
    groups = [model.sampled(count, recipe.seed) for model in models.values()]
    for selection, drawn in zip(models, groups, strict=True):
        drawn.save(folder / "samples" / f"{selection}.safetensors")
    if not groups:
        return Report(title=recipe.name, findings=(), guarantee=joint, warnings=warnings, provenance=provenance)
    glimpses, damaged = _glimpses(folder, recipe, groups)
    warnings += tuple(f"{path.parent.parent.name}: {path.name} is damaged and left out" for path in damaged)
    baseline = medium.baseline(recipe)
    if baseline:
        before = baseline.sampled(count, recipe.seed)
        groups = [groups[0], dataclasses.replace(before, label=f"{before.label}, before")]
    releases: Any = releases_in(medium, [folder / selection for selection in models])
    report = medium.contrast(
        groups,
        title=recipe.name,
        primary=primary,
        kinds=recipe.hypotheses,
        glimpses=glimpses,
        warnings=warnings,
        provenance=provenance,
        **({"releases": releases, "recipe": recipe} if releases else {}),
    )
    if len(groups) < len(recipe.selections):
        lacking = ", ".join(name for name in recipe.selections if name not in models)
        nobody = f"no model of {lacking}: too few {recipe.privacy.unit}s, by a noisy count; more would settle it"
        report = dataclasses.replace(report, verdict=Verdict(kind=INCONCLUSIVE, summary=nobody))
    return report if baseline else dataclasses.replace(report, guarantee=joint)


def _warnings(recipe: Recipe, models: Mapping[str, Trained]) -> tuple[str, ...]:
    warnings = list(recipe.doubts)
    for selection in recipe.selections:
        if selection not in models:
            warnings.append(
                f"{selection}: a noisy head count found fewer than {recipe.privacy.minimum_units} "
                f"{recipe.privacy.unit}s; "
                "no model was trained on so few, and there is nothing to compare. Its rounds were not released; the "
                "price that was promised stands, since whether they were depends on the data"
            )
        elif lost := recipe.privacy.rounds - models[selection].rounds:
            warnings.append(
                f"{selection}: {lost} of {recipe.privacy.rounds} rounds were charged but lost in an interruption; "
                "the model stopped early"
            )
    return tuple(warnings)


def _provenance(folder: pathlib.Path, recipe: Recipe, device: str) -> dict[str, str]:
    origin = {
        "fedlens": __version__,
        "torch": torch.__version__,
        "machine": f"{platform.machine()}, {device}",
        "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "run": folder.name,
        "recipe": to_toml(recipe),
        "recipe sha256": recipe.digest,
    }
    if THRESHOLDS in recipe.plans:
        with files.damage(f"Expected a whole thresholds.json in {folder}; it is damaged."):
            rows = files.json_in(folder / "thresholds.json")
            origin["thresholds learnt"] = _learnt_text(recipe, {row["quantile"]: row["accuracy"] for row in rows})
    return origin


def _learnt_text(recipe: Recipe, thresholds: Mapping[float, float]) -> str:
    learnt = [
        f"{name} {words} {thresholds[bound.quantile]:.4g}"
        for name, selection in recipe.selections.items()
        for words, bound in (("at least", selection.at_least), ("below", selection.below))
        if isinstance(bound, Quantile)
    ]
    return f"{', '.join(learnt)}, from a noisy histogram, part of the price"


def _glimpses(
    folder: pathlib.Path, recipe: Recipe, groups: Sequence[Samples]
) -> tuple[list[Samples], list[pathlib.Path]]:
    """What was kept on the way, and the files that cannot be read."""
    kept, damaged = [], []
    for group in groups if recipe.medium.shows_glimpses else ():
        for path in sorted((folder / group.label / "rounds").glob("[0-9]*.safetensors")):
            try:
                kept.append(recipe.medium.opened_samples(path))
            except ValueError:
                damaged.append(path)
    return kept, damaged
