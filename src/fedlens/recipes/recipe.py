"""Recipes: one TOML file, one model of what may stand in it, and what follows from it. All errors at once."""

import dataclasses
import functools
import hashlib
import json
import math
import pathlib
import tomllib
import typing
from typing import Any

import pydantic

from fedlens.algorithms import ALGORITHMS, AdaptiveClip
from fedlens.algorithms.head_count import HeadCount
from fedlens.algorithms.histogram import AccuracyHistogram
from fedlens.algorithms.protocol import Algorithm, Asked
from fedlens.core import files, pins
from fedlens.ledger import Account, Item, Spending
from fedlens.ledger.spending import composition, stated
from fedlens.media import opening
from fedlens.media.protocol import Medium
from fedlens.privacy import (
    Everyone,
    Guarantee,
    L2Clip,
    MatrixPlan,
    Neighbours,
    Plan,
    Promise,
    RowClip,
    TopKSign,
    UpdateAndBit,
)
from fedlens.privacy.matrix import Identity
from fedlens.recipes import defaults, problems, toml
from fedlens.recipes.stages import COUNT, FIRST, THRESHOLDS, TRAIN, Stage, once
from fedlens.recipes.tables import BY_PRIMARY, Data, Optimizer, Selection, Settings, sound
from fedlens.recipes.toml import FORMER, RecipeError

if typing.TYPE_CHECKING:
    Keyed = Settings
else:
    # With the keys of every medium: a new one is a folder, and needs no line here.
    _KEYS = {key: field for medium in opening.every() for key, field in medium.tables.items()}
    Keyed = pydantic.create_model("Keyed", __base__=Settings, **_KEYS)


class Recipe(Keyed):
    """One TOML file: what is asked of which data, at what price; all else follows from it.

    >>> try:
    ...     Recipe.parsed("name = 'x'\\ntask = 'T9'\\nside = 28")
    ... except RecipeError as error:
    ...     print(error)
    4 problems in the recipe:
      task: input should be 'T1', 'T2', 'T3', 'T4' or 'T6'
      data: missing
      selections: missing
      privacy: missing
    """

    @pydantic.model_validator(mode="after")
    def _whole(self) -> "Recipe":
        for path in self.public_files.values():
            pins.check_below(path)  # before anything is opened
        return sound(self, problems.found_in(self))

    @classmethod
    def parsed(cls, text: str, overrides: typing.Sequence[str] = ()) -> "Recipe":
        try:
            values = files.parsed_toml(text, "Expected a recipe that can be read; it is damaged.", RecipeError)
        except tomllib.TOMLDecodeError as error:
            raise RecipeError(f"Expected TOML: {error}.") from None
        return cls.validated(values, overrides)

    @classmethod
    def validated(cls, values: dict[str, Any], overrides: typing.Sequence[str]) -> "Recipe":
        if isinstance(privacy := values.get("privacy"), dict):
            if twice := [name for name, now in FORMER.items() if name in privacy and now in privacy]:
                raise RecipeError(f"Expected privacy.{FORMER[twice[0]]} once; it is also given as {twice[0]}.")
            values = values | {"privacy": {FORMER.get(key, key): value for key, value in privacy.items()}}
        for override in overrides:
            toml.put(values, override)
        try:
            return cls.model_validate(defaults.settled(values, cls.model_validate))
        except pydantic.ValidationError as error:
            lines = [toml.line(problem, cls) for problem in error.errors()]
            plural = "problem" if len(lines) == 1 else "problems"
            raise RecipeError("\n  ".join([f"{len(lines)} {plural} in the recipe:", *lines])) from None

    @classmethod
    def open(cls, path: pathlib.Path, overrides: typing.Sequence[str] = ()) -> "Recipe":
        try:
            return cls.parsed(files.content(path, error=RecipeError).decode(), overrides)
        except (FileNotFoundError, IsADirectoryError):
            raise RecipeError(f"Expected a recipe at {path}; there is no such file.") from None
        except UnicodeDecodeError:
            raise RecipeError(f"Expected a TOML text file at {path}.") from None

    def changed(self, overrides: typing.Sequence[str]) -> "Recipe":
        """The recipe with some settings changed; epsilon and noise_multiplier take each other's place."""
        given = {override.partition("=")[0].strip() for override in overrides}
        swapped = {"epsilon", "noise_multiplier"} & {name.removeprefix("privacy.") for name in given}
        dropped = {"epsilon", "noise_multiplier"} - swapped if len(swapped) == 1 else set()
        privacy = self.privacy.model_dump(mode="json", exclude_none=True, exclude=dropped)
        values = self.model_dump(mode="json", exclude_none=True, exclude={"privacy"}) | {"privacy": privacy}
        return Recipe.validated(values, overrides)

    # What it says

    @functools.cached_property
    def medium(self) -> Medium:
        return opening.chosen(lambda medium: medium.claims(self))

    @property
    def algorithm_name(self) -> str:
        return self.algorithm or self.medium.algorithm(self)

    @property
    def warnings(self) -> tuple[str, ...]:
        p, warnings = self.privacy, []
        if p.delta > 1 / p.population:
            warnings.append(
                f"delta {p.delta:g} is above 1/{p.population}: a mechanism may publish one whole record with that "
                "probability and still keep the promise; take delta well below 1 / population"
            )
        if p.minimum_units > p.units:
            warnings.append(
                f"minimum_units={p.minimum_units} exceeds units={p.units}: most likely no model will be trained"
            )
        if self.data.deal_to and not self.data.built_in:
            warnings.append("deal_to makes users up: the guarantee is about shares of the rows, not about people")
        if self.error_ratio is not None and self.error_ratio > 1:
            warnings.append(
                f"correlated noise leaves {self.error_ratio:.3g} times the error in running sums that independent noise"
                " would at this price: it pays where users take turns (sampling = 'balanced'), with up to as many bands"
                " as groups"
            )
        if p.correlated and self.training.server.kind == "adam":
            warnings.append("correlated noise cancels in sums of the rounds; the server's adam rescales every round")
        return (*warnings, *self.medium.warnings(self), *self.doubts)

    @property
    def doubts(self) -> tuple[str, ...]:
        """Why what this recipe finds would be a hint only, if so: for whoever reads the report."""
        return self.medium.doubts(self, self.noise_to_signal)

    @functools.cached_property
    def digest(self) -> str:
        """Of the settings and of every file they name: whoever approved a run approved those as well.

        Of the data it holds the population's name alone: what that is, its owner says, and not the recipe.
        """
        settings = self.named
        inside = (
            (place, file) for place, path in self.public_files.items() for file in files.within(pathlib.Path(path))
        )
        held = [(place, file.name, files.sha256(file)) for place, file in inside]
        return hashlib.sha256(json.dumps([settings.model_dump_json(), held]).encode()).hexdigest()

    @property
    def public_files(self) -> dict[str, str]:
        """By the setting that names them: the files beside the data that a run depends on."""
        primary = self.primary
        named = {
            "primary.model": primary.model if primary else None,
            "primary.public": primary.public.path if primary and primary.public else None,
        }
        return self.medium.public_files(self) | {place: path for place, path in named.items() if path}

    @property
    def asks_primary(self) -> bool:
        """Whether the primary model decides who is selected."""
        return any(selection.by in BY_PRIMARY for selection in self.selections.values())

    @property
    def reads_labels(self) -> bool:
        """A look at everything needs none."""
        by_class = any(selection.by == "class" for selection in self.selections.values())
        return bool(self.primary or by_class or self.medium.reads_labels(self))

    @property
    def population(self) -> str:
        """Whose budget it draws on."""
        return self.data.budget or self.data.called

    @property
    def named(self) -> "Recipe":
        """As it is approved: by the name of its population, and by nothing else about it."""
        return self if self.data.built_in else self.on(self.data.called)

    def on(self, population: str, budget: str | None = None) -> "Recipe":
        """The same recipe, which names its population and says nothing else about it."""
        data = Data(population=population, budget=budget, bug=self.data.bug)
        named = self.model_copy(update={"data": data})
        for kept in ("digest", "stages", "plans"):  # which were copied, and hold the name
            named.__dict__.pop(kept, None)
        return named

    # Its stages

    @functools.cached_property
    def stages(self) -> tuple[Stage, ...]:
        """What is asked, in this order: thresholds of all, then for every group whether it is there, what its model
        starts from, and the model."""
        learning = [self._stage(THRESHOLDS, THRESHOLDS, None, AccuracyHistogram())] if self.quantiles else []
        first = self.medium.first(self)
        before = {COUNT: HeadCount(), FIRST: first.algorithm} if first else {COUNT: HeadCount()}
        asked: dict[str, Algorithm] = before | {TRAIN: self.built()}
        groups = [
            self._stage(name, group, rule, algorithm)
            for group, rule in self.selections.items()
            for name, algorithm in asked.items()
        ]
        return (*learning, *groups)

    def stage(self, name: str, group: str) -> Stage:
        return next(stage for stage in self.stages if (stage.name, stage.group) == (name, group))

    def _stage(self, name: str, group: str, who: Selection | None, algorithm: Algorithm) -> Stage:
        warmed = functools.partial(self.medium.warmed, self, algorithm) if name == TRAIN else None
        waits, plan = name == TRAIN and FIRST in self.plans, self.plans[name]
        return Stage(
            name=name, group=group, who=who, plan=plan, algorithm=algorithm, warmed=warmed, waits=waits, seed=self.seed
        )

    def built(self) -> Algorithm:
        """The algorithm that trains its models."""
        adaptive = self.privacy.adaptive_clip
        training = {name: getattr(self.training, name) for name in type(self.training).model_fields}
        asked = Asked(
            network=self.medium.network(self),
            plan=self.plans[TRAIN],
            training={k: v.built() if isinstance(v, Optimizer) else v for k, v in training.items()},
            adaptive=AdaptiveClip(**adaptive.model_dump()) if adaptive else None,
            seed=self.seed,
        )
        algorithm: Algorithm = ALGORITHMS[self.algorithm_name].configured(asked)
        return algorithm

    @property
    def remembered(self) -> int:
        """Bytes that the units of a group keep to themselves, at most."""
        row = self.built().memory(1)
        return (self.privacy.shards or self.privacy.population) * sum(leaf.nbytes for leaf in row.values())

    # Its plans

    @functools.cached_property
    def plans(self) -> dict[str, Promise]:
        """By their stage: the head count, once, and the training rounds, calibrated together; thresholds, if any.

        What a model starts from would cost, alone, the share of epsilon that the recipe gives it.
        """
        p = self.privacy
        count, train = self._once(p.count_noise), self._rounds()
        learning: dict[str, Plan] = {THRESHOLDS: self._once(p.threshold_noise)} if self.quantiles else {}
        if p.epsilon is None:
            return {COUNT: count, TRAIN: train, **learning}
        # A user lives through as many models as there are rules to be sorted by: their rounds add up. Where users are
        # replaced, one may leave a group and enter another, and lives through all. All live through the thresholds.
        replaced = p.neighbours == Neighbours.REPLACE_ONE
        models = len(self.selections if replaced else {rule for rule, _ in self.partition().values()})
        before: dict[str, Plan] = {COUNT: count}
        if first := self.medium.first(self):
            all_of_them = dataclasses.replace(self._once(1.0), releases=models, expected_contributors=float(p.units))
            before[FIRST] = dataclasses.replace(all_of_them.calibrated(first.share * p.epsilon, p.delta), releases=1)
        others = tuple(before.values()) * models + tuple(learning.values())
        one = _multipliable(train)
        whole = dataclasses.replace(one, releases=models * one.releases).calibrated(p.epsilon, p.delta, others)
        noise = train.noise_multiplier * whole.noise_multiplier / one.noise_multiplier
        return {**before, TRAIN: dataclasses.replace(train, noise_multiplier=noise), **learning}

    @property
    def before(self) -> tuple[Plan, ...]:
        """What every model costs before it is trained: the head count, and what it starts from."""
        named = (self.plans.get(name) for name in (COUNT, FIRST))
        return tuple(plan for plan in named if isinstance(plan, Plan))

    def _once(self, noise_multiplier: float) -> Plan:
        return once(noise_multiplier, unit=self.privacy.unit, neighbours=self.privacy.neighbours)

    def _rounds(self) -> Promise:
        """The training rounds, with the noise that the recipe gives, or 1 where it is yet to be found."""
        p = self.privacy
        noise = 1.0 if p.noise_multiplier is None else p.noise_multiplier
        if p.correlated and p.clip:
            return MatrixPlan(
                strategy=p.correlated.strategy(p.rounds),
                bound=L2Clip(norm=p.clip),
                noise_multiplier=noise,
                releases=p.rounds,
                participations=p.sampler().participations(p.rounds),
                separation=p.groups or 1,
                slots=p.population if p.groups else None,
                expected_contributors=p.contributors,
                unit=p.unit,
                neighbours=p.neighbours,
            )
        return dataclasses.replace(
            self._once(noise),
            sampling=p.sampler(),
            bound=self._bound(),
            releases=p.rounds,
            expected_contributors=p.contributors,
            shards=p.shards,
        )

    def _bound(self) -> L2Clip | UpdateAndBit | RowClip | TopKSign:
        """Of what a unit, or a shard, sends in a round."""
        p, rows = self.privacy, ALGORITHMS[self.algorithm_name].rows(self.training.model_dump())
        if rows and p.top_k:
            return TopKSign(k=p.top_k, rows=rows)
        if rows and p.clip:
            return RowClip(row_norm=p.clip, rows=rows)
        return L2Clip(norm=p.clip) if p.clip else UpdateAndBit(bit=p.adaptive_clip.bit if p.adaptive_clip else 1.0)

    @property
    def quantiles(self) -> list[float]:
        """Of the users' accuracies, those that must be learnt."""
        return sorted(set().union(*(selection.quantiles for selection in self.selections.values())))

    @property
    def noise_to_signal(self) -> float:
        """The norm of the noise in one round's mean, over the largest norm the mean can have.

        Correlated noise counts as the independent noise with the same error in running sums.
        """
        train = self.plans[TRAIN]
        multiplier = train.noise_multiplier
        if isinstance(train, MatrixPlan):
            multiplier = train.prefix_error() / math.sqrt((train.releases + 1) / 2)
        root: float = self.medium.weights(self) ** 0.5
        return multiplier * root / train.expected_contributors

    @property
    def error_ratio(self) -> float | None:
        """The error of running sums over that of independent noise at the same price; None if it is independent."""
        train = self.plans[TRAIN]
        if not isinstance(train, MatrixPlan):
            return None
        one = dataclasses.replace(train, noise_multiplier=1.0)
        plain = dataclasses.replace(one, strategy=Identity())
        return one.prefix_error() * one.sensitivity / (plain.prefix_error() * plain.sensitivity)

    # Its price

    @property
    def released(self) -> tuple[Spending, ...]:
        """What was released before this run and shapes all that it shows."""
        return self.medium.released(self)

    def owed(self, own: Spending) -> Spending:
        """What a model costs whoever sees it: with what its words, and who trained it, were decided by."""
        before = (*self.released, *self.learning())
        simulated = any(paid.account.simulated for paid in (own, *before))
        return Spending(
            account=dataclasses.replace(own.account, simulated=simulated),
            plans=(*(plan for paid in before for plan in paid.plans), *own.plans),
        )

    def partition(self) -> dict[str, tuple[str, str]]:
        """For each selection, the rule that sorts users into groups and the group it takes, within one run.

        Accuracy intervals that do not overlap, and values of one attribute, put a user into one group at most. Any
        other pair of selections may share users, so each is a rule of its own, and costs add up.
        """
        chosen = self.selections
        if len(chosen) == 2 and Selection.apart(*chosen.values()):
            return {name: (selection.by, name) for name, selection in chosen.items()}
        return {name: (name, name) for name in chosen}

    def spendings(self, run: str = "planned", simulated: bool = False, train: Promise | None = None) -> list[Spending]:
        """What the whole recipe will have spent when it is done, perhaps with another plan to `train` by."""
        plans = *self.before, train or self.plans[TRAIN]
        models = [Spending(account=self.account(run, name, simulated), plans=plans) for name in self.selections]
        return models + self.learning(run, simulated)

    def learning(self, run: str = "planned", simulated: bool = False) -> list[Spending]:
        """What the thresholds cost, if any are learnt: one release that every user is in."""
        plan = self.plans.get(THRESHOLDS)
        return [Spending(account=self.account(run, THRESHOLDS, simulated), plans=(plan,))] if plan else []

    def items(self, run: str, simulated: bool) -> list[Item]:
        """What the whole recipe asks of the ledger."""
        return [
            Item(account=self.account(run, stage.group, simulated), stage=stage.name, plan=stage.plan)
            for stage in self.stages
        ]

    def guarantee(self, spendings: typing.Sequence[Spending]) -> Guarantee:
        """Of these spendings of the recipe, jointly with what was paid earlier; thresholds are called by their name."""
        joint = stated(spendings, self.released, self.privacy.delta)
        models = [spending for spending in spendings if not spending.account.run.endswith(f"/{THRESHOLDS}")]
        if len(models) == len(spendings):
            return joint
        alone = composition(models, self.privacy.neighbours)
        return dataclasses.replace(joint, composition=f"{alone}; and one release of thresholds, which every user is in")

    def account(self, run: str, selection: str, simulated: bool) -> Account:
        """Groups share no user within one run only: by the next, a user's data and the group may have changed."""
        partition, part = (self.partition() | {THRESHOLDS: (THRESHOLDS, THRESHOLDS)})[selection]
        return Account(
            run=f"{run}/{selection}",
            population=self.population,
            partition=f"{run}: {partition}",
            part=part,
            simulated=simulated,
        )


def _multipliable(train: Promise) -> Plan:
    """A plan of the same price, twice whose releases cost as much as two of it: schedules round up in each."""
    if isinstance(train, MatrixPlan):
        return train.priced_as
    return dataclasses.replace(train, sampling=Everyone(), releases=train.participations) if train.in_turn else train
