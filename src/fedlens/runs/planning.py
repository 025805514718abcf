"""What a recipe will cost, promise and take, before any data is touched; and what would fit where it does not."""

import dataclasses
import itertools
import math
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch

from fedlens.core import trees
from fedlens.core.trees import Tree
from fedlens.curators.protocol import Contribute
from fedlens.ledger import Ledger, Spending, Standing, guarantee
from fedlens.ledger.allowance import Allowance
from fedlens.ledger.spending import suffered
from fedlens.privacy import (
    Guarantee,
    MatrixPlan,
    Plan,
    Poisson,
    Promise,
    RowClip,
    accounting,
    papers,
    plain,
    rdp,
    rounded,
)
from fedlens.privacy.losses import ExchangedGaussian, Gaussian
from fedlens.recipes.recipe import Recipe
from fedlens.recipes.stages import COUNT, FIRST, THRESHOLDS, TRAIN

Result = TypeVar("Result")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Alternative:
    """A change of the recipe with which it would fit."""

    text: str
    sets: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.text}: {' '.join(f'--set {change}' for change in self.sets)}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Forecast:
    recipe: Recipe
    alone: Guarantee
    joint: Guarantee
    readings: dict[str, float]
    seconds: float
    standing: Standing | None  # of the population, before the run
    after: Guarantee | None
    runs_left: float | None  # like this one, before it
    alternatives: tuple[Alternative, ...]
    fits: bool = True
    counted: float | None = None  # the epsilon after it as a filter counts it, where there is a budget
    rule: str = ""  # by which it fits or does not, in words

    def to_dict(self) -> dict[str, Any]:
        plans = self.recipe.plans
        count, train, thresholds = plans[COUNT], plans[TRAIN], plans.get(THRESHOLDS)
        return {
            "guarantee": self.joint.to_dict(),
            "epsilon_per_model": self.alone.to_dict()["epsilon"],
            "readings": {name: plain(value) for name, value in self.readings.items()},
            "thresholds": thresholds.to_dict() if thresholds else None,
            "count": count.to_dict(),
            "first": plans[FIRST].to_dict() if FIRST in plans else None,
            "train": train.to_dict(),
            "noise_to_signal": self.recipe.noise_to_signal,
            "error_ratio": self.recipe.error_ratio,
            "expected_seconds": round(self.seconds, 1),
            "warnings": list(self.recipe.warnings),
            "ledger": self.standing.to_dict() if self.standing else None,
            "after": self.after.to_dict() if self.after else None,
            "filter": None if self.counted is None else {"epsilon": plain(self.counted), "text": self.rule},
            "fits": self.fits,
            "runs_left": self.runs_left,
            "alternatives": [{"text": other.text, "set": list(other.sets)} for other in self.alternatives],
        }

    def text(self) -> str:
        plans = self.recipe.plans
        count, train, thresholds = plans[COUNT], plans[TRAIN], plans.get(THRESHOLDS)
        readings = ", ".join(f"{name} {rounded(value)}" for name, value in self.readings.items())
        moved = "all correlated rounds together" if isinstance(train, MatrixPlan) else "a sum"
        lines = [
            self.joint.statement(),
            f"{len(self.recipe.selections)} model(s), each: {self.alone.headline}",
            f"{train.releases} rounds, noise multiplier {train.noise_multiplier:.4g} on the sum, {train.bound.text}",
            f"one {train.unit} moves {moved} by at most {train.sensitivity:g} ({train.neighbours}); by {readings}",
            f"a noisy head count (standard deviation {count.stddev:g} {count.unit}s) is part of it",
            *([_learning(thresholds)] if thresholds else []),
            *([_starting(self.recipe)] if FIRST in plans else []),
            *([_correlation(train, self.recipe.error_ratio)] if isinstance(train, MatrixPlan) else []),
            f"noise to signal in one round: {self.recipe.noise_to_signal:.2f} (norm of the noise over the largest"
            " possible mean update)",
            f"expected time on this machine: {duration(self.seconds)}, plus the reading of the data",
            *(f"warning: {warning}" for warning in self.recipe.warnings),
            *self._ledger_lines(),
        ]
        return "\n".join(lines)

    def _ledger_lines(self) -> list[str]:
        name, standing = self.recipe.population, self.standing
        if standing is None or self.after is None:
            return [f"ledger: none yet; population {name!r} would be at epsilon {rounded(self.joint.epsilon)} after it"]
        before = rounded(standing.promised.epsilon) if standing.promised else "0"
        now = f"population {name!r} is at epsilon {before} and would be at {rounded(self.after.epsilon)}"
        if standing.budget is None:
            return [f"ledger: {now}; it has no budget (fedlens data register, ledger init)"]
        lines = [f"ledger: {now}; budget {standing.budget.text}", *([self.rule] if self.rule else [])]
        lines += [f"{self.runs_left:.1f} of a run like this is left"] if self.runs_left is not None else []
        return lines if self.fits else [*lines, *refusal(self.alternatives)]


def forecast(recipe: Recipe, ledger: Ledger | None) -> Forecast:
    spendings = recipe.spendings()
    if ledger and (counted := ledger.budget(recipe.population)):
        for spending in spendings:
            for plan in spending.plans:
                counted.covers(plan)  # else it would be refused
    kind = recipe.privacy.unit, recipe.privacy.neighbours
    standing = ledger.standing(recipe.population, kind, recipe.privacy.delta) if ledger else None
    state, before = (ledger.allowance(recipe.population), _before(recipe, ledger)) if ledger else (None, [])
    delta = state.budget.delta if state else recipe.privacy.delta
    fits = state is None or state.fits(spendings)
    return Forecast(
        recipe=recipe,
        alone=recipe.guarantee(spendings[:1] + recipe.learning()),
        joint=recipe.guarantee(spendings),
        readings=readings(suffered([*spendings, *_released(recipe)], recipe.population), recipe.privacy.delta),
        seconds=expected_seconds(recipe),
        standing=standing,
        after=guarantee([*before, *spendings], delta) if standing else None,
        runs_left=_runs_left(recipe, state) if state else None,
        alternatives=() if fits or state is None else tuple(_alternatives(recipe, state)),
        fits=fits,
        counted=state.counted(spendings) if state else None,
        rule=state.in_words(spendings) if state else "",
    )


def _learning(plan: Promise) -> str:
    spread = f"standard deviation {plan.stddev:g} {plan.unit}s in a bin"
    return f"a noisy histogram of accuracies ({spread}), from which thresholds are learnt, is part of it"


def _starting(recipe: Recipe) -> str:
    noise = recipe.plans[FIRST].noise_multiplier
    return f"a look (noise multiplier {noise:.4g}) that a model starts from is part of it, for each model"


def _correlation(plan: MatrixPlan, ratio: float | None) -> str:
    kind, size = plan.to_dict()["strategy"].values()
    error = f"{ratio:.3g} times the error in running sums that independent noise would at this price"
    return f"noise is correlated across rounds ({kind}, {size}) and leaves {error}; it is owed whole from the first"


def alternatives(recipe: Recipe, ledger: Ledger) -> list[Alternative]:
    """What would fit into what is left."""
    state = ledger.allowance(recipe.population)
    return _alternatives(recipe, state) if state else []


def refusal(fitting: Sequence[Alternative]) -> list[str]:
    """How a refused run ends."""
    if not fitting:
        return ["Nothing like it fits into what is left of the budget."]
    return ["It would fit with", *(f"  {alternative}" for alternative in fitting)]


def _released(recipe: Recipe) -> list[Spending]:
    """What was paid for the vocabulary, by the users of this recipe: those it was learnt from may be the same."""
    return [
        dataclasses.replace(paid, account=dataclasses.replace(paid.account, population=recipe.population))
        for paid in recipe.released
    ]


def readings(losses: accounting.Losses, delta: float) -> dict[str, float]:
    """All valid readings of the same releases, the tightest first; a Renyi bound exists for some samplers only."""
    exact = all(isinstance(loss, Gaussian) for loss in losses)
    epsilons = {"exact Gaussian" if exact else "PLD": accounting.epsilon_of(losses, delta)}
    if all(loss.multiplier > 0 for loss in losses):
        try:
            epsilons["RDP, improved conversion"] = rdp.epsilon(losses, delta, rdp.improved)
            epsilons["RDP, classic conversion"] = rdp.epsilon(losses, delta, rdp.classic)
        except ValueError:
            pass  # capped cohorts and replaced units: PLD only
    return epsilons


def expected_seconds(recipe: Recipe) -> float:
    """From what made-up users take here and now, one alone or, where that is quick, sixteen side by side."""
    algorithm = recipe.built()
    (abridged, times), warm = _abridged(algorithm, "repeated"), 0
    if getattr(algorithm, getattr(algorithm, "beforehand", ""), 0):
        abridged, warm = _abridged(abridged, "beforehand")
    clock, cores = _Stopwatch(recipe, bool(warm)), torch.get_num_threads()
    torch.set_num_threads(1)  # as the engine does: every core has users of its own
    try:
        for _ in abridged.run(clock, abridged.start()):
            pass
        rounds = clock.seconds_a_round(cores, times) * recipe.privacy.rounds
        return (clock.seconds_beforehand(cores, warm) + rounds) * len(recipe.selections)
    finally:
        torch.set_num_threads(cores)


def _abridged(algorithm: Any, kind: str) -> tuple[Any, int]:
    """With one of the steps that are all alike, as the algorithm says; and how many it takes."""
    name = getattr(algorithm, kind, None)
    return (dataclasses.replace(algorithm, **{name: 1}), getattr(algorithm, name)) if name else (algorithm, 1)


class _Stopwatch:
    """Stands in for a curator for two rounds, measures made-up users, and answers with zeros."""

    def __init__(self, recipe: Recipe, warm: bool) -> None:
        """`warm`: what units are asked to remember first is done once, and not in every round."""
        self._recipe, self._warm, self._unit_seconds = recipe, warm, math.inf
        self._opened: list[float] = []
        self._remembered: list[float] = []
        self.remaining = 2

    def noisy_mean(self, contribute: Contribute, message: Tree) -> Tree:
        seconds, update = self._unit(contribute, message)
        self._unit_seconds = min(self._unit_seconds, seconds)
        self.remaining -= 1
        self._opened.append(time.perf_counter())
        return trees.zeros(update)

    def remember(self, contribute: Contribute, message: Tree) -> None:
        self._remembered.append(self._unit(contribute, message)[0])

    def _unit(self, contribute: Contribute, message: Tree) -> tuple[float, Tree]:
        """What one takes, and what it sends."""
        algorithm = self._recipe.built()
        unit = self._recipe.medium.blank(self._recipe, algorithm.examples_per_unit)
        kept = trees.row(algorithm.memory(1), 0)
        with torch.no_grad():
            seconds, (update, _) = _timed(lambda: contribute(message, unit, kept))
            if seconds < 0.03:
                many, memories = (
                    {name: leaf.expand(16, *leaf.shape) for name, leaf in tree.items()} for tree in (unit, kept)
                )
                together, _ = _timed(lambda: torch.func.vmap(contribute, (None, 0, 0))(message, many, memories))
                seconds = min(seconds, together / 16)
        return seconds, update

    def seconds_a_round(self, cores: int, times: int) -> float:
        """The users' part, and the server's, so many times: it lies between the last answer and now."""
        server = time.perf_counter() - self._opened[-1]
        asked = self._unit_seconds * self._recipe.plans[TRAIN].expected_contributors
        remembered = min(self._remembered[self._warm :], default=0.0) * self._everyone
        return (asked + remembered) / cores + server * times

    def seconds_beforehand(self, cores: int, times: int) -> float:
        """What all units do before the first round."""
        return self._remembered[0] * self._everyone * times / cores if self._warm else 0.0

    @property
    def _everyone(self) -> int:
        return self._recipe.privacy.shards or self._recipe.privacy.units


def duration(seconds: float) -> str:
    for unit, size in (("days", 86400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * size:
            return f"about {seconds / size:.0f} {unit}"
    return f"about {max(1, round(seconds))} seconds"


def swept(recipe: Recipe, axes: str) -> list[dict[str, Any]]:
    """The cost of every combination; `axes` reads rounds=20,50,units=100,200 with names of [privacy].

    >>> _axes("rounds=20,50,users=100")
    {'rounds': ['20', '50'], 'users': ['100']}
    """
    named = _axes(axes)
    cells = []
    for values in itertools.product(*named.values()):
        point = dict(zip(named, values, strict=True))
        variant = recipe.changed([f"privacy.{name}={value}" for name, value in point.items()])
        train = variant.plans[TRAIN]
        cost = {"epsilon": variant.guarantee(variant.spendings()).to_dict()["epsilon"]}
        noise = {"noise_multiplier": train.noise_multiplier, "noise_to_signal": variant.noise_to_signal}
        cells.append({name: _number(value) for name, value in point.items()} | cost | noise)
    return cells


def published(paper: str, recipe: Recipe) -> dict[str, Any]:
    """The epsilon a paper's own method would print for this recipe's training. NOT a guarantee of anything."""
    methods: dict[str, tuple[str, Callable[[Plan, float], float]]] = {
        "augenstein2020": ("Wang et al. 2019 for samples of a fixed size, with half the true sensitivity", _fixed_size),
        "chen2020": ("each image amplified by one secret shard a step, where all share a draw, if any", _each_image),
        "wang2021": ("Renyi bound of Gaussians without sampling, classic conversion", _plain_gaussian),
    }
    if paper not in methods:
        raise ValueError(f"Expected one of {', '.join(methods)} to reproduce, got {paper!r}.")
    train, (method, value) = recipe.plans[TRAIN], methods[paper]
    if isinstance(train, MatrixPlan):
        raise ValueError("Expected a recipe without [privacy.correlated]: no paper's own method prices such noise.")
    return {
        "paper": paper,
        "epsilon": plain(value(train, recipe.privacy.delta) if train.noise_multiplier else math.inf),
        "delta": recipe.privacy.delta,
        "method": method,
        "compliant": False,
        "valid_epsilon": plain(accounting.epsilon([train], recipe.privacy.delta)),
    }


def _fixed_size(train: Plan, delta: float) -> float:
    size = round(train.expected_contributors)
    population = getattr(train.sampling, "population", size)
    loss = ExchangedGaussian(multiplier=train.noise_multiplier, size=size, population=population)
    return rdp.epsilon({loss: train.releases}, delta, rdp.classic, rdp.WHOLE_ORDERS)


def _each_image(train: Plan, delta: float) -> float:
    if not isinstance(train.bound, RowClip) or train.shards is None:
        raise ValueError("Expected shards that send clipped images: no others are priced by chen2020.")
    rows = train.bound.rows
    sigma = train.noise_multiplier * math.sqrt(rows) / 2  # in units of what a record moves an image by
    return papers.each_image_amplified(
        papers.Critics(critics=train.shards, releases=train.releases, delta=delta, batch=rows, noise=sigma)
    )


def _plain_gaussian(train: Plan, delta: float) -> float:
    loss = Gaussian(multiplier=train.noise_multiplier / 2)
    return rdp.epsilon({loss: train.releases}, delta, rdp.classic, rdp.WHOLE_ORDERS)


def _before(recipe: Recipe, ledger: Ledger) -> list[Spending]:
    spendings = ledger.spendings(recipe.population, reserved=True, budget=ledger.budget(recipe.population))
    return [spending for spending in spendings if spending.kind == (recipe.privacy.unit, recipe.privacy.neighbours)]


def _fits(recipe: Recipe, train: Promise, state: Allowance) -> bool:
    return state.fits(recipe.spendings(train=train), quick=True)


def _runs_left(recipe: Recipe, state: Allowance) -> float:
    """How many runs like this would still fit; whole ones where rounds are not paid for one by one."""
    train = recipe.plans[TRAIN]
    one = train.priced_as if isinstance(train, MatrixPlan) else train
    return _rounds_left(recipe, one, state) / one.releases


def _rounds_left(recipe: Recipe, train: Plan, state: Allowance) -> int:
    """How many rounds like these would still fit, over as many runs as they need."""
    most = 100 * train.releases
    return _last(lambda rounds: _fits(recipe, dataclasses.replace(train, releases=rounds), state), most)


def _alternatives(recipe: Recipe, state: Allowance) -> list[Alternative]:
    train = recipe.plans[TRAIN]
    candidates: list[tuple[str, Promise, list[str]]] = []
    if isinstance(train, Plan) and (rounds := min(train.releases - 1, _rounds_left(recipe, train, state))):
        fewer = dataclasses.replace(train, releases=rounds)
        candidates.append((f"{rounds} rounds instead of {train.releases}, same noise", fewer, [f"rounds={rounds}"]))
    if percent := _last(lambda p: _fits(recipe, _noisier(train, 100 / p), state), 100):
        noisier = _noisier(train, 100 / percent)
        text = f"noise multiplier {noisier.noise_multiplier:.4g} instead of {train.noise_multiplier:.4g}"
        candidates.append((f"{text}, same rounds", noisier, []))
    if isinstance(train, Plan) and isinstance(sampling := train.sampling, Poisson):
        share = _last(lambda p: _fits(recipe, _thinner(train, sampling, p / 100), state), 99)
        if share:
            thinner = _thinner(train, sampling, share / 100)
            text = f"{thinner.expected_contributors:.0f} users a round instead of {train.expected_contributors:.0f}"
            candidates.append((f"{text}, same noise", thinner, [f"rate={sampling.rate * share / 100:.6g}"]))
    worded = [_worded(recipe, *candidate) for candidate in candidates]
    return [alternative for alternative in worded if _holds(recipe, alternative, state)]


def _worded(recipe: Recipe, text: str, train: Promise, sets: list[str]) -> Alternative:
    """Says the noise as the recipe does: by the epsilon it is calibrated to (rounded down), or by itself."""
    cost = guarantee(recipe.spendings(train=train), recipe.privacy.delta).epsilon
    noise = f"noise_multiplier={train.noise_multiplier:.6g}"
    if recipe.privacy.epsilon is not None:
        noise = f"epsilon={math.floor(cost * 1000) / 1000:g}"
    text = f"{text} (epsilon {rounded(cost)})"
    return Alternative(text=text, sets=tuple(f"privacy.{change}" for change in [*sets, noise]))


def _holds(recipe: Recipe, alternative: Alternative, state: Allowance) -> bool:
    """Whether the recipe changed like this really fits; rounding, or the head count's own cost, may be in the way."""
    try:
        variant = recipe.changed(alternative.sets)
        return state.fits(variant.spendings())
    except ValueError:
        return False


def _noisier(train: Promise, factor: float) -> Promise:
    return dataclasses.replace(train, noise_multiplier=train.noise_multiplier * factor)


def _thinner(train: Plan, sampling: Poisson, share: float) -> Plan:
    return dataclasses.replace(
        train,
        sampling=dataclasses.replace(sampling, rate=sampling.rate * share),
        expected_contributors=train.expected_contributors * share,
    )


def _last(holds: Callable[[int], bool], high: int) -> int:
    """The largest number up to `high` for which it still holds; 0 for none. What holds for one holds for less."""
    low = 0
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if holds(middle) else (low, middle - 1)
    return low


def _axes(text: str) -> dict[str, list[str]]:
    named: dict[str, list[str]] = {}
    for piece in text.split(","):
        name, equals, value = piece.rpartition("=")
        if equals:
            named[name.strip()] = []
        if not named or not value.strip():
            raise ValueError(f"Expected --sweep rounds=20,50,users=100,200, got {text!r}.")
        named[list(named)[-1]].append(value.strip())
    return named


def _number(text: str) -> float | str:
    try:
        return float(text) if not text.isdecimal() else int(text)
    except ValueError:
        return text


def _timed(work: Callable[[], Result]) -> tuple[float, Result]:
    start = time.perf_counter()
    result = work()
    return time.perf_counter() - start, result
