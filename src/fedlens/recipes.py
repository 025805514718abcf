"""Recipes: one TOML file, one model of what may stand in it, and the objects it describes. All errors at once."""

import dataclasses
import functools
import hashlib
import json
import os
import pathlib
import tomllib
import types
import typing
from typing import Annotated, Any, Literal

import pydantic
from pydantic import Field, PositiveFloat, PositiveInt

from fedlens.algorithms import Adam, AdaptiveClip, FedAvgGan, Sgd
from fedlens.ledger import Account, Item, Spending
from fedlens.models.gan import Gan
from fedlens.privacy import (
    Balanced,
    Everyone,
    FixedSize,
    L2Clip,
    Neighbours,
    Plan,
    Poisson,
    Unit,
    UpdateAndBit,
)
from fedlens.transforms import TRANSFORMS

STAGES = "count", "train"  # of a model: its group is counted, then it is trained
Share = Annotated[float, Field(ge=0, le=1)]
Path = Annotated[str, pydantic.AfterValidator(os.path.expandvars)]  # $NAME stands for an environment variable
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{0,40}$")]


class RecipeError(ValueError):
    """Everything that is wrong with a recipe, one line each."""


class _Table(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Bug(_Table):
    """A bug planted on purpose, to see whether it would be found."""

    kind: str
    fraction: Share = 0.5
    seed: int = 0

    @pydantic.field_validator("kind")
    @classmethod
    def _known(cls, kind: str) -> str:
        if kind not in TRANSFORMS:
            raise ValueError(f"expected one of {', '.join(TRANSFORMS)}")
        return kind


class Columns(_Table):
    """An .npz file and the names of its arrays."""

    path: Path
    images: str = "x"
    labels: str = "y"
    users: str | None = None


class Data(_Table):
    source: Literal["digits", "npz", "population"]
    path: Path | None = None
    name: Name | None = None  # of the population in the ledger; by default that of the file
    images: str = "x"
    labels: str | None = "y"
    users: str = "user"
    deal_to: PositiveInt = 100  # digits: how many users they are dealt to
    bug: Bug | None = None

    @pydantic.model_validator(mode="after")
    def _has_path(self) -> "Data":
        if (self.path is None) != (self.source == "digits"):
            raise ValueError("path goes with source npz or population, and with those only")
        return self


class Primary(_Table):
    """The model whose mistakes are looked into: a file, or one trained here on public data."""

    model: Path | None = None
    public: Columns | None = None  # digits bring their own
    widths: tuple[PositiveInt, ...] = (16, 32)
    epochs: PositiveInt = 40


class Selection(_Table):
    """Which users, or which of their examples, a model is trained on. Thresholds are public constants."""

    by: Literal["everyone", "accuracy", "right", "wrong"]
    at_least: Share | None = None
    below: Share | None = None
    minimum_examples: PositiveInt = 5

    @property
    def interval(self) -> tuple[float, float]:
        return self.at_least or 0.0, 2.0 if self.below is None else self.below

    @pydantic.model_validator(mode="after")
    def _thresholds(self) -> "Selection":
        given = self.at_least is not None or self.below is not None
        if given != (self.by == "accuracy"):
            raise ValueError("at_least and below go with by = 'accuracy', which needs one of them")
        if self.interval[0] >= self.interval[1]:
            raise ValueError(f"expected at_least={self.at_least} < below={self.below}")
        return self


class Adaptive(_Table):
    start: PositiveFloat
    quantile: Share = 0.5
    rate: PositiveFloat = 0.2
    bit: PositiveFloat = 0.2


class Privacy(_Table):
    delta: Annotated[float, Field(gt=0, lt=1)]
    epsilon: PositiveFloat | None = None
    noise_multiplier: Annotated[float, Field(ge=0)] | None = None
    rounds: PositiveInt
    users: PositiveInt  # a public guess at the users in a group: the divisor
    population: PositiveInt  # a public upper bound on all users
    sampling: Literal["everyone", "poisson", "fixed-size", "balanced"] = "everyone"
    rate: Annotated[float, Field(gt=0, le=1)] | None = None  # poisson
    capped: bool = True  # poisson: cohorts of at most m + 6 sqrt(m)
    size: PositiveInt | None = None  # fixed-size
    size_is_public: bool = False  # fixed-size: how many units a selection holds is declared public
    groups: PositiveInt | None = None  # balanced
    unit: Unit = Unit.USER
    neighbours: Neighbours = Neighbours.ADD_REMOVE
    clip: PositiveFloat | None = None
    adaptive_clip: Adaptive | None = None
    minimum_users: PositiveInt = 20  # below it, by a noisy count, no model is trained
    count_noise: PositiveFloat = 4.0

    @pydantic.model_validator(mode="after")
    def _consistent(self) -> "Privacy":
        problems = []
        if (self.epsilon is None) == (self.noise_multiplier is None):
            problems.append("give epsilon or noise_multiplier, one of them")
        if (self.clip is None) == (self.adaptive_clip is None):
            problems.append("give clip or [privacy.adaptive_clip], one of them")
        for name, sampling in {"rate": "poisson", "size": "fixed-size", "groups": "balanced"}.items():
            if (getattr(self, name) is None) == (self.sampling == sampling):
                problems.append(f"{name} goes with sampling = '{sampling}', which needs it")
        for name in ("users", "size", "groups"):
            if (getattr(self, name) or 0) > self.population:
                problems.append(f"{name}={getattr(self, name)} exceeds population={self.population}")
        if problems:
            raise ValueError("; ".join(problems))
        return self

    def sampler(self) -> Poisson | FixedSize | Balanced | Everyone:
        if self.rate is not None:
            return Poisson(rate=self.rate, population=self.population, capped=self.capped)
        if self.size is not None:
            return FixedSize(size=self.size, population=self.population, size_is_public=self.size_is_public)
        return Balanced(groups=self.groups, population=self.population) if self.groups else Everyone()

    @property
    def contributors(self) -> float:
        """The public divisor: how many are expected to take part in a round."""
        return float(self.size or self.users * (self.rate or 1.0) / (self.groups or 1))


class Optimizer(_Table):
    kind: Literal["sgd", "adam"] = "sgd"
    rate: PositiveFloat
    momentum: Share = 0.0
    nesterov: bool = False
    beta1: Share = 0.9
    beta2: Share = 0.999

    def built(self) -> Sgd | Adam:
        if self.kind == "adam":
            return Adam(rate=self.rate, beta1=self.beta1, beta2=self.beta2)
        return Sgd(rate=self.rate, momentum=self.momentum, nesterov=self.nesterov)


class Networks(_Table):
    """`size` gives a pair; the other names change parts of it."""

    size: Literal["paper", "small"] = "small"
    critic_widths: tuple[PositiveInt, ...] | None = None
    critic_hidden: Annotated[int, Field(ge=0)] | None = None  # 0 for no hidden layer
    generator_latent: PositiveInt | None = None
    generator_hidden: PositiveInt | None = None
    generator_widths: tuple[PositiveInt, ...] | None = None

    def built(self, side: int, channels: int) -> Gan:
        pair = Gan.paper(side, channels) if self.size == "paper" else Gan.small(side, channels)
        critic = {"widths": self.critic_widths, "hidden": self.critic_hidden}
        generator = {"latent": self.generator_latent, "hidden": self.generator_hidden, "widths": self.generator_widths}
        return dataclasses.replace(
            pair, critic=_changed(pair.critic, critic), generator=_changed(pair.generator, generator)
        )


class Training(_Table):
    batch: PositiveInt = 32
    local_steps: PositiveInt = 6
    local_rate: PositiveFloat = 5e-4
    decay: Annotated[float, Field(ge=0)] = 0.0
    server: Optimizer = Optimizer(rate=1.0)
    generator_steps: PositiveInt = 6
    generator_batch: PositiveInt = 32
    generator: Optimizer = Optimizer(rate=5e-3)


class Recipe(_Table):
    """
    >>> try:
    ...     Recipe.parsed("name = 'x'\\ncolour = 'blue'")
    ... except RecipeError as error:
    ...     print(error)
    6 problems in the recipe:
      task: missing
      side: missing
      data: missing
      selections: missing
      privacy: missing
      colour: unknown; allowed here: data, model, name, primary, privacy, seed, selections, side, task, training
    """

    name: Name
    task: Literal["T1", "T2", "T4"]
    seed: int = 0  # of everything public: initial weights, latents, samples
    side: PositiveInt  # images are side x side
    data: Data
    primary: Primary | None = None
    selections: dict[Name, Selection]
    privacy: Privacy
    model: Networks = Networks()
    training: Training = Training()

    @pydantic.model_validator(mode="after")
    def _whole(self) -> "Recipe":
        problems = []
        if not 1 <= len(self.selections) <= 2:
            problems.append(f"expected one or two selections, got {len(self.selections)}")
        if self.primary is None and any(selection.by != "everyone" for selection in self.selections.values()):
            problems.append("selections by accuracy, right or wrong need a [primary] model")
        if self.primary and not (self.primary.model or self.primary.public or self.data.source == "digits"):
            problems.append("[primary] needs model, or public data to train one on")
        for name, selection in self.selections.items():
            alone = selection.by == "everyone" or (selection.by != "accuracy" and selection.minimum_examples == 1)
            if self.privacy.unit == Unit.EXAMPLE and not alone:
                problems.append(
                    f"selection {name} with unit = 'example': one example would decide about its user's others; "
                    "select by everyone, or by right or wrong with minimum_examples = 1"
                )
            if selection.by != "everyone" and self.privacy.sampling == "balanced":
                problems.append(f"selection {name} with a balanced schedule: its slots would depend on private data")
            if selection.by != "everyone" and self.privacy.size and not self.privacy.size_is_public:
                problems.append(
                    f"selection {name} with samples of a fixed size: how many users are in it is private; "
                    "use poisson, or declare size_is_public = true"
                )
        try:
            self.gan()
        except ValueError as error:
            problems.append(str(error))
        if problems:
            raise ValueError("; ".join(problems))
        return self

    @classmethod
    def parsed(cls, text: str, overrides: typing.Sequence[str] = ()) -> "Recipe":
        try:
            values = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise RecipeError(f"Expected TOML: {error}.") from None
        return cls.validated(values, overrides)

    @classmethod
    def validated(cls, values: dict[str, Any], overrides: typing.Sequence[str]) -> "Recipe":
        for override in overrides:
            _set(values, override)
        try:
            return cls.model_validate(values)
        except pydantic.ValidationError as error:
            lines = [_line(problem) for problem in error.errors()]
            plural = "problem" if len(lines) == 1 else "problems"
            raise RecipeError("\n  ".join([f"{len(lines)} {plural} in the recipe:", *lines])) from None

    @classmethod
    def open(cls, path: pathlib.Path, overrides: typing.Sequence[str] = ()) -> "Recipe":
        try:
            return cls.parsed(path.read_text(), overrides)
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

    @property
    def warnings(self) -> tuple[str, ...]:
        p = self.privacy
        if p.delta > 1 / p.population:
            return (
                f"delta {p.delta:g} is above 1/{p.population}: a mechanism may publish one whole record with that "
                "probability and still keep the promise; take delta well below 1 / population",
            )
        return ()

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.model_dump_json().encode()).hexdigest()

    def gan(self) -> Gan:
        return self.model.built(self.side, 1)

    def algorithm(self) -> FedAvgGan:
        adaptive = self.privacy.adaptive_clip
        plain = self.training.model_dump(exclude={"server", "generator"})
        return FedAvgGan(
            gan=self.gan(),
            server=self.training.server.built(),
            generator=self.training.generator.built(),
            adaptive=AdaptiveClip(**adaptive.model_dump()) if adaptive else None,
            seed=self.seed,
            **plain,
        )

    @functools.cached_property
    def plans(self) -> tuple[Plan, Plan]:
        """The noisy head count, once, and the training rounds; calibrated together."""
        p = self.privacy
        bound = L2Clip(norm=p.clip) if p.clip else UpdateAndBit(bit=p.adaptive_clip.bit if p.adaptive_clip else 1.0)
        count = Plan(
            sampling=Everyone(),
            bound=L2Clip(norm=1.0),
            noise_multiplier=p.count_noise,
            releases=1,
            expected_contributors=1.0,
            unit=p.unit,
            neighbours=p.neighbours,
        )
        train = dataclasses.replace(
            count,
            sampling=p.sampler(),
            bound=bound,
            noise_multiplier=1.0 if p.noise_multiplier is None else p.noise_multiplier,
            releases=p.rounds,
            expected_contributors=p.contributors,
        )
        if p.epsilon is None:
            return count, train
        # A user lives through as many models as there are rules to be sorted by: their rounds add up. Where users are
        # replaced, one may leave a group and enter another, and lives through all.
        replaced = p.neighbours == Neighbours.REPLACE_ONE
        models = len(self.selections if replaced else {rule for rule, _ in self.partition().values()})
        whole = dataclasses.replace(train, releases=models * p.rounds).calibrated(p.epsilon, p.delta, (count,) * models)
        return count, dataclasses.replace(whole, releases=p.rounds)

    def partition(self) -> dict[str, tuple[str, str]]:
        """For each selection, the rule that sorts users into groups and the group it takes, within one run.

        Accuracy intervals that do not overlap put a user into one group at most. Any other pair of selections may
        share users, so each is a rule of its own, and costs add up.
        """
        chosen = self.selections
        if len(chosen) == 2 and all(selection.by == "accuracy" for selection in chosen.values()):
            low, high = sorted(selection.interval for selection in chosen.values())
            if low[1] <= high[0]:
                return {name: ("accuracy", name) for name in chosen}
        return {name: (name, name) for name in chosen}

    def spendings(self, run: str = "planned", simulated: bool = False) -> list[Spending]:
        """What the whole recipe will have spent when it is done."""
        return [Spending(account=self.account(run, name, simulated), plans=self.plans) for name in self.selections]

    def items(self, run: str, simulated: bool) -> list[Item]:
        """What the whole recipe asks of the ledger."""
        return [
            Item(account=self.account(run, name, simulated), stage=stage, plan=plan)
            for name in self.selections
            for stage, plan in zip(STAGES, self.plans, strict=True)
        ]

    @property
    def population(self) -> str:
        """Whose budget it draws on."""
        return self.data.name or pathlib.Path(self.data.path or self.data.source).name

    def account(self, run: str, selection: str, simulated: bool) -> Account:
        """Groups share no user within one run only: by the next, a user's data and the group may have changed."""
        partition, part = self.partition()[selection]
        return Account(
            run=f"{run}/{selection}",
            population=self.population,
            partition=f"{run}: {partition}",
            part=part,
            simulated=simulated,
        )


def to_toml(recipe: Recipe) -> str:
    """The resolved recipe as TOML, every setting spelled out."""
    lines: list[str] = []

    def table(values: dict[str, Any], place: str) -> None:
        if place:
            lines.extend(["", f"[{place}]"])
        tables = {key: value for key, value in values.items() if isinstance(value, dict)}
        scalars = {key: json.dumps(value, ensure_ascii=False) for key, value in values.items() if key not in tables}
        lines.extend(f"{key} = {value}" for key, value in scalars.items())
        for key, value in tables.items():
            table(value, f"{place}.{key}" if place else key)

    table(recipe.model_dump(mode="json", exclude_none=True), "")
    return "\n".join([*lines, ""])


def _changed(settings: Any, changes: dict[str, Any]) -> Any:
    return dataclasses.replace(settings, **{key: value for key, value in changes.items() if value is not None})


def _set(values: dict[str, Any], override: str) -> None:
    """Applies `a.b=c`; c is read as TOML, or as text where it is none."""
    path, found, text = override.partition("=")
    if not found:
        raise RecipeError(f"Expected --set a.b=value, got {override!r}.")
    *parents, last = path.strip().split(".")
    for name in parents:
        values = values.setdefault(name, {})
        if not isinstance(values, dict):
            raise RecipeError(f"Expected a table at {name!r} for --set {override!r}.")
    try:
        values[last] = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        values[last] = text


def _line(problem: typing.Mapping[str, Any]) -> str:
    place = ".".join(str(part) for part in problem["loc"]) or "recipe"
    if problem["type"] == "extra_forbidden":
        return f"{place}: unknown; allowed here: {', '.join(sorted(_fields(problem['loc'][:-1])))}"
    if problem["type"] == "missing":
        return f"{place}: missing"
    message = problem["msg"].removeprefix("Value error, ")
    return f"{place}: {message[:1].lower()}{message[1:]}"


def _fields(place: typing.Sequence[int | str]) -> typing.Iterable[str]:
    """The names allowed in the table at `place`."""
    table: Any = Recipe
    for part in place:
        kind = table.model_fields[part].annotation if part in getattr(table, "model_fields", {}) else table
        table = next((arm for arm in _arms(kind) if isinstance(arm, type) and issubclass(arm, _Table)), table)
    return table.model_fields


def _arms(kind: Any) -> typing.Iterator[Any]:
    if typing.get_origin(kind) in (typing.Union, types.UnionType, dict):
        for argument in typing.get_args(kind):
            yield from _arms(argument)
    else:
        yield kind
