"""How small may epsilon be, and how rare a bug, for the bug to be named? Experiments on data that may be seen.

A row of the table is a recipe with some settings changed, tried with several seeds. The models of rows that share a
plan train together, in one vectorised run; two that would be trained on the very same users with the same seed are one.
"""

import dataclasses
import hashlib
import importlib.resources
import itertools
import json
import pathlib
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol, TypeVar

import torch

from fedlens.algorithms import run_together
from fedlens.core import files, trees
from fedlens.core.randomness import Randomness
from fedlens.core.trees import Tree
from fedlens.curators.engine import Engine
from fedlens.curators.site import Site
from fedlens.curators.together import Together
from fedlens.ledger import Account, Ledger
from fedlens.media.protocol import Medium
from fedlens.recipes.recipe import Recipe
from fedlens.recipes.stages import COUNT, TRAIN, Stage
from fedlens.recipes.tables import Selection
from fedlens.runs import preparation
from fedlens.runs.carrying_out import Asking, carried_out
from fedlens.runs.reporting import model_of

SUSPICIOUS, HEALTHY = "low", "high"  # the selections of every recipe here
LINES = 50  # rounds between two lines of progress


def unchanged(examples: Any) -> Any:
    """No change at all: a bug that marks users and does nothing to them."""
    return examples


CLEAN = f"{unchanged.__module__}:{unchanged.__name__}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
    """One line of the table. `kind` is what should be named; for rows without a bug nothing should be.

    `epsilon` is of both groups together: of whoever sees the report.
    The two groups are of different users; or, `apart`, all users with the bug and all users without it (text).
    """

    name: str
    kind: str
    fraction: float = 0.5
    epsilon: float
    sets: tuple[str, ...] = ()
    recipe: str = "writers_sensitivity.toml"
    how: str = "by accuracy"
    seeds: int = 5
    first_seed: int = 0
    wanted: str = "report"
    apart: bool = False

    @property
    def clean(self) -> bool:
        return self.kind == CLEAN or not self.fraction

    @property
    def groups(self) -> tuple[str, ...]:
        return (HEALTHY,) if self.apart and self.clean else (SUSPICIOUS, HEALTHY)

    def selection(self, group: str) -> str:
        return "all" if self.apart else group

    def overrides(self, seed: int, group: str = SUSPICIOUS) -> list[str]:
        kind, fraction = json.dumps(self.kind), 0.0 if self.apart and group == HEALTHY else self.fraction
        where = "seed=0,of='examples'" if self.apart else f"seed={seed},mark='release'"
        bug = f"data.bug={{kind={kind},fraction={fraction},{where}}}"
        return [bug, f"privacy.epsilon={self.epsilon}", f"seed={seed}", *self.sets]

    def opened(self, seed: int, group: str = SUSPICIOUS) -> Recipe:
        path = importlib.resources.files("fedlens.recipes").joinpath("files", self.recipe)
        return Recipe.parsed(path.read_text(), self.overrides(seed, group))


class Named(Protocol):
    @property
    def name(self) -> str: ...


Line = TypeVar("Line", bound=Named)


def chosen_rows(names: Iterable[str] | None, all_rows: Sequence[Line]) -> tuple[Line, ...]:
    known = {row.name: row for row in all_rows}
    if unknown := [name for name in names or () if name not in known]:
        raise ValueError(f"Expected rows of {', '.join(known)}; got {', '.join(unknown)}.")
    return tuple(known[name] for name in names) if names else tuple(all_rows)


# Training


@dataclasses.dataclass(frozen=True, kw_only=True)
class Trial:
    """One model to train: a row, a seed, a group."""

    row: Row
    seed: int
    group: str
    recipe: Recipe

    def file(self, out: pathlib.Path) -> pathlib.Path:
        return out / "samples" / self.row.name / f"{self.seed}-{self.group}.safetensors"

    def refused(self, out: pathlib.Path) -> pathlib.Path:
        return self.file(out).with_suffix(".refused")

    def model_file(self, out: pathlib.Path) -> pathlib.Path:
        return out / "models" / self.row.name / self.file(out).name


def trials(chosen: Sequence[Row]) -> list[Trial]:
    return [
        Trial(row=row, seed=seed, group=group, recipe=row.opened(seed, group))
        for row in chosen
        for seed in range(row.first_seed, row.first_seed + row.seeds)
        for group in row.groups
    ]


def trained(
    chosen: Sequence[Row],
    out: pathlib.Path,
    *,
    device: str,
    together: int = 12,
    until: float = float("inf"),
    say: Callable[[str], None] = print,
) -> None:
    """Trains what is not there yet, `together` models at a time; stops for good at the time `until`."""
    torch.set_float32_matmul_precision("high")
    missing = [t for t in trials(chosen) if not t.file(out).exists() and not t.refused(out).exists()]

    def plan(trial: Trial) -> str:
        return f"{trial.recipe.data.path} {trial.recipe.plans} {trial.recipe.built().seedless}"

    for _, sharing in itertools.groupby(missing, key=plan):
        known: dict[str, pathlib.Path] = {}
        for batch in _batched(_jobs(list(sharing), out), together, known, out):
            if time.time() > until:
                say("out of time")
                return
            _train(batch, out, device, say)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Job:
    """The users of a trial, by themselves; `key` names all that the model will depend on."""

    trial: Trial
    site: Site
    key: str

    def stage(self, name: str) -> Stage:
        """Of everybody here: the site holds those that were selected, and no others."""
        stage = self.trial.recipe.stage(name, self.trial.row.selection(self.trial.group))
        return dataclasses.replace(stage, who=Selection(by="everyone"))

    @property
    def account(self) -> Account:
        row, trial = self.trial.row, self.trial
        account = trial.recipe.account("trial", row.selection(trial.group), True)
        return dataclasses.replace(account, run=f"{row.name}/{trial.seed}/{trial.group}")

    def asking(self, book: Ledger, device: str, engine: Engine) -> Asking:
        randomness = Randomness.seeded(self.trial.seed)
        return Asking(book=book, account=self.account, randomness=randomness, device=device, engine=engine)


def _jobs(wanted: Sequence[Trial], out: pathlib.Path) -> Iterator[_Job]:
    kept: dict[str, Site] = {}  # the last ones: reading them may take longer than training
    for trial in wanted:
        stage = trial.recipe.stage(TRAIN, trial.row.selection(trial.group))
        own = {"data", "primary", "selections", *trial.recipe.medium.tables}
        prepared = trial.recipe.model_dump_json(include=own)
        if prepared not in kept:
            kept = dict([*kept.items()][-1:])
            kept[prepared] = preparation.site(trial.recipe, _primary(trial.recipe, out))
        users = kept[prepared].asked(stage, {}).only("x").compact()
        yield _Job(trial=trial, site=Site(users, None, None), key=f"{users.fingerprint()} {trial.seed} {stage.group}")


def _primary(recipe: Recipe, out: pathlib.Path) -> pathlib.Path:
    """Where the classifier is kept: trained once, by the first who asks, with the seed 0."""
    if recipe.primary is None:
        return out
    settings = recipe.primary.model_dump_json(exclude={"public": {"path"}})  # data may move
    kept = out / f"primary-{hashlib.sha256(settings.encode()).hexdigest()[:8]}.safetensors"
    if not kept.exists():
        preparation.primary(recipe.changed(["seed=0"]), kept)
    return kept


def _batched(
    jobs: Iterable[_Job], size: int, known: dict[str, pathlib.Path], out: pathlib.Path
) -> Iterator[dict[str, list[_Job]]]:
    """Jobs by key, `size` different ones at a time; a model that is `known` from an earlier batch is copied."""
    batch: dict[str, list[_Job]] = {}
    for job in jobs:
        if job.key in known:
            made = known[job.key]
            files.write(job.trial.file(out), made.read_bytes()) if made.exists() else _refuse(job.trial, out)
            continue
        if len(batch) == size and job.key not in batch:
            yield batch
            known |= {key: listed[0].trial.file(out) for key, listed in batch.items()}
            batch = {}
        batch.setdefault(job.key, []).append(job)
    if batch:
        yield batch


def _refuse(trial: Trial, out: pathlib.Path) -> None:
    files.write(trial.refused(out), "too few users, by a noisy count")


def _train(batch: dict[str, list[_Job]], out: pathlib.Path, device: str, say: Callable[[str], None]) -> None:
    """One model for each key, together; written down for every trial that asked for it."""
    started, book = time.perf_counter(), Ledger()
    members = [jobs for jobs in batch.values() if _counted(jobs, book, out)]
    if not members:
        return
    stages = [jobs[0].stage(TRAIN) for jobs in members]
    engine = Engine(device=device, chunk=16)
    curators = [
        jobs[0].asking(book, device, engine).curator(jobs[0].site, stage, {})
        for jobs, stage in zip(members, stages, strict=True)
    ]
    states = [trees.moved(stage.start(device), device) for stage in stages]
    recipe = members[0][0].trial.recipe
    chunk = recipe.medium.chunk(recipe, len(curators))
    rounds = run_together([stage.algorithm for stage in stages], Together(curators, chunk), states)
    for states in rounds:  # only the last ones are kept: those of all rounds would fill a GPU
        if (done := int(states[0]["round"])) % LINES == 0:
            say(f"{len(curators)} models together: round {done} after {time.perf_counter() - started:.1f} s")
    for jobs, state in zip(members, states, strict=True):
        _draw(jobs, state, book, out, device)
    names = sorted({job.trial.row.name for jobs in members for job in jobs})
    say(f"{len(curators)} models together in {time.perf_counter() - started:.1f} s: {', '.join(names)}")


def _counted(jobs: Sequence[_Job], book: Ledger, out: pathlib.Path) -> bool:
    """Whether a group has its model, by a noisy head count."""
    job, stage = jobs[0], jobs[0].stage(COUNT)
    state = carried_out(stage, job.site, job.asking(book, "cpu", Engine()))
    enough = float(stage.algorithm.result(state)) >= job.trial.recipe.privacy.minimum_units
    for refused in jobs if not enough else ():
        _refuse(refused.trial, out)
    return enough


def _draw(jobs: Sequence[_Job], state: Tree, book: Ledger, out: pathlib.Path, device: str) -> None:
    trial, recipe = jobs[0].trial, jobs[0].trial.recipe
    own = book.spending(jobs[0].account.run)
    model = model_of(recipe, trial.row.selection(trial.group), state, own, book.pin())
    model.save(trial.model_file(out))
    drawn = recipe.medium.drawn_on(model, recipe.medium.samples(recipe), device)
    for job in jobs:
        dataclasses.replace(drawn, label=job.trial.group).save(job.trial.file(out))


# Diagnosis


def diagnosed(chosen: Sequence[Row], out: pathlib.Path, say: Callable[[str], None] = print) -> list[dict[str, Any]]:
    """What the contrast of every pair says; for a row without a bug, of all pairs of its models."""
    results = []
    for row in chosen:
        verdicts = [_verdict(*pair, row.opened(0).medium) for pair in _pairs(row, out)]
        refused = sum(trial.refused(out).exists() for trial in trials([row]))
        results.append(_summary(row, verdicts, refused))
        say(json.dumps({key: value for key, value in results[-1].items() if key != "pairs"}))
    return results


def _pairs(row: Row, out: pathlib.Path) -> list[tuple[pathlib.Path, pathlib.Path]]:
    listed = trials([row])
    if row.clean:
        return list(itertools.combinations([t.file(out) for t in listed if t.file(out).exists()], 2))
    both = [[t.file(out) for t in listed if t.seed == seed] for seed in sorted({t.seed for t in listed})]
    return [(left, right) for left, right in both if left.exists() and right.exists()]


def _verdict(left: pathlib.Path, right: pathlib.Path, medium: Medium) -> dict[str, Any]:
    groups = [medium.opened_samples(path) for path in (left, right)]
    report = medium.contrast(groups, title="trial", coverage=False)
    best, second = report.hypotheses[:2] if report.hypotheses else ({"kind": None, "score": 0.0}, {"kind": None})
    return {
        "left": f"{left.parent.name}/{left.stem}",
        "right": f"{right.parent.name}/{right.stem}",
        "named": report.findings[0].kind if report.findings else None,
        "first": best["kind"],
        "score": best["score"],
        "runner_up": second["kind"],
        "verdict": report.verdict.kind if report.verdict else None,
        "noise": any("drew noise" in warning for warning in report.warnings),
    } | medium.in_table(report)


def _summary(row: Row, pairs: list[dict[str, Any]], refused: int) -> dict[str, Any]:
    recipe = row.opened(0)
    clean = row.clean
    return {
        "row": row.name,
        "bug": "none" if clean else row.kind,
        "affected": 0.0 if clean else row.fraction,
        "split": row.how,
        "epsilon": recipe.guarantee(recipe.spendings()).to_dict()["epsilon"],
        "rounds": recipe.privacy.rounds,
        "weights": recipe.medium.weights(recipe),
        "noise_multiplier": round(recipe.plans[TRAIN].noise_multiplier, 2),
        "pairs": pairs,
        "tried": len(pairs),
        "named": sum(pair["named"] == row.kind and not clean for pair in pairs),
        "first": sum(pair["first"] == row.kind and not clean for pair in pairs),
        "named_otherwise": sum(pair["named"] is not None and (clean or pair["named"] != row.kind) for pair in pairs),
        "refused": refused,
        "wanted": row.wanted,
        "overrides": row.overrides(0),
        "recipe": row.recipe,
    } | recipe.medium.summary(recipe)
