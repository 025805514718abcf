"""How small may epsilon be, and how rare a bug, for the bug to be named? Experiments on data that may be seen.

A row of the table is a recipe with some settings changed, tried with several seeds. The models of rows that share a
plan train together, in one vectorised run; two that would be trained on the very same users with the same seed are one.
"""

import dataclasses
import functools
import hashlib
import importlib.resources
import itertools
import json
import math
import pathlib
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch

from fedlens.algorithms import run_together
from fedlens.core import files, trees
from fedlens.core.randomness import Randomness
from fedlens.curators.simulated import Engine, SimulatedCurator, Together
from fedlens.data.population import Population
from fedlens.ledger import Ledger
from fedlens.media.images.contrast import contrast
from fedlens.media.images.samples import Samples
from fedlens.media.text.contrast import contrast_texts
from fedlens.media.text.samples import TextModel, Texts
from fedlens.recipes.recipe import STAGES, Recipe
from fedlens.runs import preparation
from fedlens.runs.reporting import SAMPLED, model_of
from fedlens.runs.run import present

UNITS = 700  # of all models together, at once: 26 GB on a GPU with the largest critic, twice while it is recorded
TEXT_UNITS = {"spelling": 3000, "words": 300}  # 21 and 15 GB with the small language models
SUSPICIOUS, HEALTHY = "low", "high"  # the selections of every recipe here
TOP = 10
TOLD = 50  # rounds between two lines of progress
SLICES = tuple(
    f'selections.{name}={{by="attribute",attribute="release",values=[{value}]}}'
    for name, value in ((SUSPICIOUS, 1), (HEALTHY, 0))
)
BY_EXAMPLE = ("task=T2", f'selections.{SUSPICIOUS}={{by="wrong"}}', f'selections.{HEALTHY}={{by="right"}}')


def unchanged(images: torch.Tensor) -> torch.Tensor:
    """No change at all: a bug that marks users and does nothing to them."""
    return images


CLEAN = f"{unchanged.__module__}:{unchanged.__name__}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
    """One line of the table. `kind` is what should be named; for rows without a bug nothing should be.

    `epsilon` is of both sides together: of whoever sees the report.
    The two sides are two groups of users; or, `apart`, all users with the bug and all users without it (text).
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
    def sides(self) -> tuple[str, ...]:
        return (HEALTHY,) if self.apart and self.clean else (SUSPICIOUS, HEALTHY)

    def selection(self, side: str) -> str:
        return "all" if self.apart else side

    def overrides(self, seed: int, side: str = SUSPICIOUS) -> list[str]:
        kind, fraction = json.dumps(self.kind), 0.0 if self.apart and side == HEALTHY else self.fraction
        where = "seed=0,of='examples'" if self.apart else f"seed={seed},mark='release'"
        bug = f"data.bug={{kind={kind},fraction={fraction},{where}}}"
        return [bug, f"privacy.epsilon={self.epsilon}", f"seed={seed}", *self.sets]

    def opened(self, seed: int, side: str = SUSPICIOUS) -> Recipe:
        path = importlib.resources.files("fedlens.recipes").joinpath("files", self.recipe)
        return Recipe.parsed(path.read_text(), self.overrides(seed, side))


def _sliced(kind: str, epsilon: float = 8.0, **changes: Any) -> Row:
    name = f"{kind.rpartition(':')[2]}-{epsilon:g}"
    return Row(name=name, kind=kind, epsilon=epsilon, sets=SLICES, how="by release", **changes)


# Cheap rows first, then those that matter most; rows that share a plan side by side, so that they share models.
ROWS: tuple[Row, ...] = (
    Row(name="inverted-1", kind="inverted", epsilon=1, wanted="4 of 5"),
    _sliced(CLEAN, 1.0, seeds=6, wanted="at most 5%"),
    Row(name="inverted-0.5", kind="inverted", epsilon=0.5),
    Row(name="inverted-0.25", kind="inverted", epsilon=0.25),
    Row(name="inverted-2", kind="inverted", epsilon=2, wanted="5 of 5"),
    Row(name="rotated-90-3", kind="rotated-90", epsilon=3),
    Row(name="inverted-8", kind="inverted", epsilon=8, wanted="5 of 5"),
    Row(name="rotated-90-8", kind="rotated-90", epsilon=8, wanted="4 of 5"),
    _sliced(CLEAN, seeds=6, wanted="at most 5%"),
    dataclasses.replace(_sliced(CLEAN, seeds=6, wanted="at most 5%"), name="unchanged-8-again", first_seed=6),
    *(
        _sliced(kind)
        for kind in ("mirrored", "upside-down", "shifted", "blurred", "low-contrast", "dead-band", "noisy")
    ),
    Row(name="inverted-20%-8", kind="inverted", fraction=0.2, epsilon=8),
    Row(name="inverted-10%-8", kind="inverted", fraction=0.1, epsilon=8),
    Row(name="inverted-by-example-8", kind="inverted", epsilon=8, sets=BY_EXAMPLE, how="by example", seeds=3),
    *(
        dataclasses.replace(
            _sliced(kind, seeds=3),
            name=f"fashion-{name}-8",
            recipe="fashion_sensitivity.toml",
            how="by release, Fashion-MNIST",
        )
        for kind, name in ((CLEAN, "unchanged"), ("inverted", "inverted"), ("rotated-90", "rotated-90"))
    ),
)


def rows(names: Iterable[str] | None = None, all_rows: Sequence[Row] = ROWS) -> tuple[Row, ...]:
    known = {row.name: row for row in all_rows}
    if unknown := [name for name in names or () if name not in known]:
        raise ValueError(f"Expected rows of {', '.join(known)}; got {', '.join(unknown)}.")
    return tuple(known[name] for name in names) if names else tuple(all_rows)


# Training


@dataclasses.dataclass(frozen=True, kw_only=True)
class Trial:
    """One model to train: a row, a seed, a side."""

    row: Row
    seed: int
    side: str
    recipe: Recipe

    def file(self, out: pathlib.Path) -> pathlib.Path:
        return out / "samples" / self.row.name / f"{self.seed}-{self.side}.safetensors"

    def refused(self, out: pathlib.Path) -> pathlib.Path:
        return self.file(out).with_suffix(".refused")

    def model_file(self, out: pathlib.Path) -> pathlib.Path:
        return out / "models" / self.row.name / self.file(out).name


def trials(chosen: Sequence[Row]) -> list[Trial]:
    return [
        Trial(row=row, seed=seed, side=side, recipe=row.opened(seed, side))
        for row in chosen
        for seed in range(row.first_seed, row.first_seed + row.seeds)
        for side in row.sides
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
        return f"{trial.recipe.data.path} {trial.recipe.plans} {trial.recipe.algorithm().beside}"

    for _, group in itertools.groupby(missing, key=plan):
        known: dict[str, pathlib.Path] = {}
        for batch in _batched(_jobs(list(group), out), together, known, out):
            if time.time() > until:
                say("out of time")
                return
            _train(batch, out, device, say)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Job:
    """The users of a trial, by themselves; `key` names all that the model will depend on."""

    trial: Trial
    users: Population
    key: str


def _jobs(group: Sequence[Trial], out: pathlib.Path) -> Iterator[_Job]:
    kept: dict[str, preparation.Side] = {}  # the last ones: reading them may take longer than training
    for trial in group:
        selection = trial.row.selection(trial.side)
        prepared = trial.recipe.model_dump_json(include={"side", "data", "primary", "text", "selections"})
        if prepared not in kept:
            kept = dict([*kept.items()][-1:])
            kept[prepared] = preparation.Side.of(trial.recipe, _primary(trial.recipe, out))
        users = preparation.selected(trial.recipe, selection, kept[prepared], {}).only("x").compact()
        yield _Job(trial=trial, users=users, key=f"{users.fingerprint()} {trial.seed} {selection}")


def _primary(recipe: Recipe, out: pathlib.Path) -> pathlib.Path:
    """Where the classifier is kept: trained once, by the first who asks, with the seed 0."""
    if recipe.primary is None:
        return out
    settings = recipe.primary.model_dump_json(exclude={"public": {"path"}})  # data may move
    kept = out / f"primary-{hashlib.sha256(settings.encode()).hexdigest()[:8]}.safetensors"
    if not kept.exists():
        first = recipe.changed(["seed=0"])
        preparation.primary(first, preparation.population(first, first.data)[1], kept)
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
    doors, members, asked = [], [], []
    for jobs in batch.values():
        recipe, job = jobs[0].trial.recipe, jobs[0]
        account = recipe.account("trial", job.trial.row.selection(job.trial.side), True)
        account = dataclasses.replace(account, run=f"{job.trial.row.name}/{job.trial.seed}/{job.trial.side}")
        door = functools.partial(
            SimulatedCurator, job.users, ledger=book, account=account, randomness=Randomness.seeded(job.trial.seed)
        )
        counting, training = STAGES
        count_plan, train_plan = recipe.plans
        counter = door(plan=count_plan, stage=counting, engine=Engine(), examples_per_unit=1)
        counted = counter.noisy_mean(present, {})
        if counted["users"] < recipe.privacy.minimum_users:
            for refused in jobs:
                _refuse(refused.trial, out)
            continue
        algorithm = recipe.algorithm()
        engine, width = Engine(device=device, chunk=16), algorithm.examples_per_unit
        doors.append(door(plan=train_plan, stage=training, examples_per_unit=width, engine=engine))
        members.append(algorithm)
        asked.append((jobs, account.run))
    if not doors:
        return
    states = [trees.moved(jobs[0].trial.recipe.start(device), device) for jobs, _ in asked]
    chunk = max(1, TEXT_UNITS[recipe.text.model] // len(doors) if recipe.text else min(135, UNITS // len(doors)))
    rounds = run_together(members, Together(doors, chunk), states)
    for states in rounds:  # only the last ones are kept: those of all rounds would fill a GPU
        if (done := int(states[0]["round"])) % TOLD == 0:
            say(f"{len(doors)} models together: round {done} after {time.perf_counter() - started:.1f} s")
    for (jobs, run), state in zip(asked, states, strict=True):
        recipe = jobs[0].trial.recipe
        model = model_of(recipe, jobs[0].trial.side, state, book.spending(run), book.pin())
        drawn: Samples | Texts
        if isinstance(model, TextModel) and recipe.text:
            model.save(jobs[0].trial.model_file(out))
            drawn = model.sampled(recipe.text.samples, seed=0, device=device)
        else:
            drawn = model.sampled(SAMPLED, seed=0)
        for job in jobs:
            dataclasses.replace(drawn, label=job.trial.side).save(job.trial.file(out))
    names = sorted({job.trial.row.name for jobs, _ in asked for job in jobs})
    say(f"{len(doors)} models together in {time.perf_counter() - started:.1f} s: {', '.join(names)}")


# Diagnosis


def diagnosed(chosen: Sequence[Row], out: pathlib.Path, say: Callable[[str], None] = print) -> list[dict[str, Any]]:
    """What the contrast of every pair says; for a row without a bug, of all pairs of its models."""
    results = []
    for row in chosen:
        found = [_verdict(*pair, of_text=row.apart) for pair in _pairs(row, out)]
        refused = sum(trial.refused(out).exists() for trial in trials([row]))
        results.append(_summary(row, found, refused))
        say(json.dumps({key: value for key, value in results[-1].items() if key != "pairs"}))
    return results


def _pairs(row: Row, out: pathlib.Path) -> list[tuple[pathlib.Path, pathlib.Path]]:
    listed = trials([row])
    if row.clean:
        return list(itertools.combinations([t.file(out) for t in listed if t.file(out).exists()], 2))
    both = [[t.file(out) for t in listed if t.seed == seed] for seed in sorted({t.seed for t in listed})]
    return [(left, right) for left, right in both if left.exists() and right.exists()]


def _verdict(left: pathlib.Path, right: pathlib.Path, of_text: bool) -> dict[str, Any]:
    report = (
        contrast_texts(Texts.open(left), Texts.open(right))
        if of_text
        else contrast(Samples.open(left), Samples.open(right), coverage=False)
    )
    best = report.hypotheses[0]
    told = {"top": [" " in row["word"] for row in report.words[0]["rows"][:TOP]]} if report.words else {}
    return {
        "left": f"{left.parent.name}/{left.stem}",
        "right": f"{right.parent.name}/{right.stem}",
        "named": report.findings[0].kind if report.findings else None,
        "first": best["kind"],
        "score": best["score"],
        "runner_up": report.hypotheses[1]["kind"],
        "noise": any("drew noise" in warning for warning in report.warnings),
    } | told


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
        "critic": list(recipe.model.critic_widths or ()),
        "weights": recipe.weights(),
        "noise_multiplier": round(recipe.plans[1].noise_multiplier, 2),
        "pairs": pairs,
        "tried": len(pairs),
        "named": sum(pair["named"] == row.kind and not clean for pair in pairs),
        "first": sum(pair["first"] == row.kind and not clean for pair in pairs),
        "named_otherwise": sum(pair["named"] is not None and (clean or pair["named"] != row.kind) for pair in pairs),
        "refused": refused,
        "wanted": row.wanted,
        "overrides": row.overrides(0),
        "recipe": row.recipe,
    }


def table(results: Sequence[dict[str, Any]]) -> str:
    """As Markdown."""
    lines = [
        "| bug | devices affected | groups | epsilon | rounds, critic | named | first | named otherwise | wanted |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for r in results:
        score = [pair["score"] for pair in r["pairs"] if pair["first"] == r["bug"]]
        spread = f" (scores {min(score):.2f} to {max(score):.2f})" if score else ""
        named = f"{r['named']} of {r['tried']}" if r["bug"] != "none" else "-"
        first = f"{r['first']} of {r['tried']}{spread}" if r["bug"] != "none" else "-"
        otherwise = f"{r['named_otherwise']} of {r['tried']}" + (" pairs" if r["bug"] == "none" else "")
        lines.append(
            f"| {r['bug']} | {r['affected']:.0%} | {r['split']} | {r['epsilon']:.2f} | {r['rounds']}, "
            f"{'-'.join(map(str, r['critic']))} | {named} | {first} | {otherwise} | {r['wanted']} |"
        )
    return "\n".join([*lines, ""])


def curve(results: Sequence[dict[str, Any]]) -> str:
    """Detection against epsilon, as an SVG picture: the bugs that were tried at several epsilons, half the devices."""
    points: dict[str, list[tuple[float, float]]] = {}
    for r in results:
        if r["affected"] == 0.5 and r["split"] == "by accuracy" and r["tried"]:
            points.setdefault(r["bug"], []).append((float(r["epsilon"]), r["named"] / r["tried"]))
    lines = [_line(place, bug, sorted(listed)) for place, (bug, listed) in enumerate(points.items()) if len(listed) > 1]
    ticks = "".join(
        f'<text x="{_across(e):.1f}" y="232" text-anchor="middle">{e:g}</text>' for e in (0.25, 0.5, 1, 2, 4, 8)
    ) + "".join(f'<text x="52" y="{_down(s) + 4:.1f}" text-anchor="end">{s:.0%}</text>' for s in (0, 0.5, 1))
    grid = "".join(f'<path d="M60 {_down(s)}H560" stroke="#ddd"/>' for s in (0, 0.5, 1))
    return (
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 600 270" font-family="sans-serif" font-size="13">'
        f'<rect width="600" height="270" fill="#fff"/>{grid}{ticks}{"".join(lines)}'
        '<text x="310" y="258" text-anchor="middle">user-level epsilon (delta 1e-5)</text>'
        '<text x="60" y="16">share of seeds in which the planted bug is named</text></svg>\n'
    )


def _across(epsilon: float) -> float:
    return 60 + 500 * (math.log2(epsilon) + 2) / 5


def _down(share: float) -> float:
    return 210 - 170 * share


def _line(place: int, bug: str, points: Sequence[tuple[float, float]]) -> str:
    colour, dash = ("#0b5d8f", "") if place == 0 else ("#b4550a", ' stroke-dasharray="7 4"')
    path = "L".join(f"{_across(e):.1f} {_down(s):.1f}" for e, s in points)
    dots = "".join(f'<circle cx="{_across(e):.1f}" cy="{_down(s):.1f}" r="4" fill="{colour}"/>' for e, s in points)
    across, down = _across(points[-1][0]), _down(points[-1][1]) + 22 + 18 * place  # below its end, one under the other
    aside = 'text-anchor="end" paint-order="stroke" stroke="#fff" stroke-width="5"'  # a line may run behind it
    label = f'<text x="{across:.1f}" y="{down:.1f}" {aside} fill="{colour}">{bug}</text>'
    return f'<path d="M{path}" fill="none" stroke="{colour}" stroke-width="2.5"{dash}/>{dots}{label}'
