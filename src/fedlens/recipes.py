"""Recipes: one TOML file, one model of what may stand in it, and the objects it describes. All errors at once."""

import dataclasses
import functools
import hashlib
import json
import os
import pathlib
import re
import tomllib
import types
import typing
from typing import Annotated, Any, Literal, TypeVar

import pydantic
from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt

from fedlens import defaults, transforms
from fedlens.algorithms import Adam, AdaptiveClip, FedAvgGan, Sgd
from fedlens.ledger import Account, Item, Spending, guarantee
from fedlens.ledger.spending import composition
from fedlens.models.gan import Gan
from fedlens.privacy import (
    Balanced,
    Everyone,
    FixedSize,
    Guarantee,
    L2Clip,
    Neighbours,
    Plan,
    Poisson,
    Unit,
    UpdateAndBit,
)

STAGES = "count", "train"  # of a model: its group is counted, then it is trained
THRESHOLDS = "thresholds"  # the account, the stage and the secret of the release they are learnt from
Share = Annotated[float, Field(ge=0, le=1)]
Path = Annotated[str, pydantic.AfterValidator(os.path.expandvars)]  # $NAME stands for an environment variable
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{0,40}$")]
Checked = TypeVar("Checked")


class RecipeError(ValueError):
    """Everything that is wrong with a recipe, one line each."""


def _free(name: str) -> str:
    if not re.fullmatch(r"\w{1,64}", name, re.ASCII) or name in ("x", "y", "mask", "offsets"):
        raise ValueError("expected a column's name of letters, digits and _, other than x, y, mask and offsets")
    return name


Column = Annotated[str, pydantic.AfterValidator(_free)]


class _Table(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Bug(_Table):
    """A bug planted on purpose, to see whether it would be found."""

    kind: str
    fraction: Share = 0.5
    of: Literal["users", "examples"] = "users"  # of each user's examples, that is
    seed: NonNegativeInt = 0
    classes: PositiveInt | None = None  # of labels, for bugs that change them: a public number
    mark: Column | None = None  # a column to add: 1 in the rows of a user whom it hit (the faulty release), else 0

    @pydantic.field_validator("kind")
    @classmethod
    def _known(cls, kind: str) -> str:
        transforms.named(kind)  # or it says which names there are
        return kind

    @pydantic.model_validator(mode="after")
    def _consistent(self) -> "Bug":
        lacking = transforms.named(self.kind).labels is not None and not self.classes
        return _sound(self, [f"{self.kind} needs classes, the public number of them"] if lacking else [])


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
    attributes: tuple[Column, ...] = ()  # npz: further arrays of whole numbers, to select by
    deal_to: PositiveInt | None = None  # rows without an owner are dealt to so many made-up users, one after the other
    bug: Bug | None = None

    @pydantic.model_validator(mode="after")
    def _consistent(self) -> "Data":
        problems = []
        if (self.path is None) != (self.source == "digits"):
            problems.append("path goes with source npz or population, and with those only")
        if self.deal_to and self.source == "population":
            problems.append("deal_to goes with source digits or npz: a population has its users")
        if self.attributes and self.source == "digits":
            problems.append("attributes goes with source npz or population: the digits have none")
        if len(set(self.attributes)) < len(self.attributes):
            problems.append("attributes names a column twice")
        if self.bug and self.bug.mark in self.attributes:
            problems.append(f"bug.mark={self.bug.mark!r} is one of the attributes already")
        return _sound(self, problems)

    def lacks(self, attribute: str) -> bool:
        """Whether there is surely no such column; what a population folder holds is seen when it is opened."""
        marked = self.bug is not None and attribute == self.bug.mark
        return self.source != "population" and not marked and attribute not in self.attributes


class Primary(_Table):
    """The model whose mistakes are looked into: a file, or one trained here on public data."""

    model: Path | None = None  # safetensors of ours, TorchScript or torch.export
    values: Literal["minus-one-to-one", "zero-to-one", "bytes"] = "minus-one-to-one"  # the pixels that model expects
    channels_last: bool = False  # and in which order
    public: Columns | None = None  # digits bring their own
    network: Literal["small", "paper"] = "small"  # to be trained here
    widths: tuple[PositiveInt, ...] = (16, 32)  # of the small one
    epochs: PositiveInt = 40


class Quantile(_Table):
    """A threshold that so many of the users lie below: learnt from a noisy histogram of all, at a price."""

    quantile: Annotated[float, Field(gt=0, lt=1)]

    def __str__(self) -> str:
        return f"quantile {self.quantile:g}"


_NUMBER, _QUANTILE = "<number>", "<quantile>"
# Only the arm that was meant is checked, so that one mistake is one line.
Threshold = Annotated[
    Annotated[Share, pydantic.Tag(_NUMBER)] | Annotated[Quantile, pydantic.Tag(_QUANTILE)],
    pydantic.Discriminator(lambda found: _QUANTILE if isinstance(found, dict | Quantile) else _NUMBER),
]


class Selection(_Table):
    """Which users, or which of their examples, a model is trained on. Thresholds are public, or learnt at a price."""

    by: Literal["everyone", "accuracy", "right", "wrong", "class", "attribute"]
    at_least: Threshold | None = None
    below: Threshold | None = None
    classes: Annotated[tuple[Annotated[int, Field(ge=0, lt=2**31)], ...], Field(min_length=1)] | None = None
    attribute: str | None = None
    values: Annotated[tuple[Annotated[int, Field(ge=-(2**62), le=2**62)], ...], Field(min_length=1)] | None = None
    minimum_examples: PositiveInt = 5

    @property
    def quantiles(self) -> set[float]:
        """Those that must be learnt."""
        return {found.quantile for found in (self.at_least, self.below) if isinstance(found, Quantile)}

    def interval(self, learnt: typing.Mapping[float, float]) -> tuple[float, float]:
        """The accuracies it takes, [at least, below), with what was learnt in place of quantiles."""

        def value(threshold: float | Quantile) -> float:
            return learnt[threshold.quantile] if isinstance(threshold, Quantile) else threshold

        return value(self.at_least or 0.0), 2.0 if self.below is None else value(self.below)

    def apart(self, other: "Selection") -> bool:
        """Whether no user can be in both, whatever the data."""
        if self.by == other.by == "attribute":
            return self.attribute == other.attribute and not set(self.values or ()) & set(other.values or ())
        return _under(self.below, other.at_least) or _under(other.below, self.at_least)

    @pydantic.model_validator(mode="after")
    def _consistent(self) -> "Selection":
        problems = []
        if (self.at_least is not None or self.below is not None) != (self.by == "accuracy"):
            problems.append("at_least and below go with by = 'accuracy', which needs one of them")
        if _under(self.below, self.at_least or 0.0):
            problems.append(f"expected at_least={self.at_least} < below={self.below}")
        if (self.classes is None) == (self.by == "class"):
            problems.append("classes goes with by = 'class', which needs it")
        if {self.attribute is None, self.values is None} != {self.by != "attribute"}:
            problems.append("attribute and values go with by = 'attribute', which needs both")
        return _sound(self, problems)


class Adaptive(_Table):
    start: PositiveFloat
    quantile: Share = 0.5
    rate: PositiveFloat = 0.2
    bit: PositiveFloat = 0.2


class Privacy(_Table):
    delta: Annotated[float, Field(gt=0, lt=1)]
    epsilon: Annotated[float, Field(ge=1e-3, le=1e4)] | None = None
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
    threshold_noise: PositiveFloat = 4.0  # users, in every bin of the histogram that thresholds are learnt from

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
        return _sound(self, problems)

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
    classes: NonNegativeInt = 0  # above 0: a conditional pair, which learns images with their labels

    def built(self, side: int, channels: int) -> Gan:
        pair = Gan.paper(side, channels) if self.size == "paper" else Gan.small(side, channels)
        critic = {"widths": self.critic_widths, "hidden": self.critic_hidden}
        generator = {"latent": self.generator_latent, "hidden": self.generator_hidden, "widths": self.generator_widths}
        pair = dataclasses.replace(
            pair, critic=_changed(pair.critic, critic), generator=_changed(pair.generator, generator)
        )
        return pair.conditional(self.classes) if self.classes else pair


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
    ...     Recipe.parsed("name = 'x'\\ntask = 'T9'\\nside = 28")
    ... except RecipeError as error:
    ...     print(error)
    4 problems in the recipe:
      task: input should be 'T1', 'T2' or 'T4'
      data: missing
      selections: missing
      privacy: missing
    """

    name: Name
    task: Literal["T1", "T2", "T4"]
    seed: Annotated[int, Field(ge=-(2**62), le=2**62)] = 0  # of everything public: initial weights, latents, samples
    side: PositiveInt  # images are side x side
    data: Data
    primary: Primary | None = None
    selections: dict[Name, Selection]
    privacy: Privacy
    model: Networks = Networks()
    training: Training = Training()
    hypotheses: tuple[str, ...] = ()  # what else could explain a difference: package.module:function

    @pydantic.field_validator("hypotheses")
    @classmethod
    def _known(cls, kinds: tuple[str, ...]) -> tuple[str, ...]:
        for kind in kinds:
            transforms.named(kind)  # or it says what is wrong
        return kinds

    @pydantic.model_validator(mode="after")
    def _whole(self) -> "Recipe":
        problems = []
        if not 1 <= len(self.selections) <= 2:
            problems.append(f"expected one or two selections, got {len(self.selections)}")
        if THRESHOLDS in self.selections:
            problems.append(f"expected another name for the selection {THRESHOLDS}: it is taken")
        if self.data.bug and self.privacy.unit == Unit.EXAMPLE:
            problems.append("data.bug with unit = 'example': one example would decide what its user's others hold")
        if self.primary is None and self.asks_primary:
            problems.append("selections by accuracy, right or wrong need a [primary] model")
        if self.primary and not (self.primary.model or self.primary.public or self.data.source == "digits"):
            problems.append("[primary] needs model, or public data to train one on")
        for name, selection in self.selections.items():
            by_example = selection.by in ("right", "wrong", "class") and selection.minimum_examples == 1
            alone = selection.by == "everyone" or by_example
            if self.privacy.unit == Unit.EXAMPLE and not alone:
                problems.append(
                    f"selection {name} with unit = 'example': one example would decide about its user's others; "
                    "select by everyone, or by right, wrong or class with minimum_examples = 1"
                )
            if selection.attribute is not None and self.data.lacks(selection.attribute):
                problems.append(f"selection {name}: data.attributes does not name {selection.attribute!r}")
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
        return _sound(self, problems)

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
            return cls.model_validate(defaults.settled(values, lambda v: cls.model_validate(v).noise_to_signal))
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
        p, found = self.privacy, []
        if p.delta > 1 / p.population:
            found.append(
                f"delta {p.delta:g} is above 1/{p.population}: a mechanism may publish one whole record with that "
                "probability and still keep the promise; take delta well below 1 / population"
            )
        if p.minimum_users > p.users:
            found.append(
                f"minimum_users={p.minimum_users} exceeds users={p.users}: most likely no model will be trained"
            )
        if self.data.deal_to and self.data.source == "npz":
            found.append("deal_to makes users up: the guarantee is about shares of the rows, not about people")
        return tuple(found)

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.model_dump_json().encode()).hexdigest()

    def gan(self) -> Gan:
        return self.model.built(self.side, 1)

    @property
    def noise_to_signal(self) -> float:
        """The norm of the noise in one round's mean, over the largest norm the mean can have."""
        weights = sum(leaf.numel() for leaf in self.gan().critic.init(0).values())
        train = self.plans[1]
        return train.stddev * weights**0.5 / (train.expected_contributors * train.bound.norm)

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
        count = self._once(p.count_noise)
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
        # replaced, one may leave a group and enter another, and lives through all. All live through the thresholds.
        replaced = p.neighbours == Neighbours.REPLACE_ONE
        models = len(self.selections if replaced else {rule for rule, _ in self.partition().values()})
        beside = (count,) * models + ((self.threshold_plan,) if self.threshold_plan else ())
        whole = dataclasses.replace(train, releases=models * p.rounds).calibrated(p.epsilon, p.delta, beside)
        return count, dataclasses.replace(whole, releases=p.rounds)

    @property
    def quantiles(self) -> list[float]:
        """Of the users' accuracies, those that must be learnt."""
        return sorted(set().union(*(selection.quantiles for selection in self.selections.values())))

    @property
    def threshold_plan(self) -> Plan | None:
        """One noisy histogram of the accuracies of all users, each in one bin; None where no threshold is learnt."""
        return self._once(self.privacy.threshold_noise) if self.quantiles else None

    def _once(self, noise_multiplier: float) -> Plan:
        """One release that every unit is in, each with a contribution of at most 1."""
        return Plan(
            sampling=Everyone(),
            bound=L2Clip(norm=1.0),
            noise_multiplier=noise_multiplier,
            releases=1,
            expected_contributors=1.0,
            unit=self.privacy.unit,
            neighbours=self.privacy.neighbours,
        )

    @property
    def asks_primary(self) -> bool:
        """Whether the primary model decides who is selected."""
        return any(selection.by in ("accuracy", "right", "wrong") for selection in self.selections.values())

    @property
    def reads_labels(self) -> bool:
        """A look at everything needs none."""
        by_class = self.model.classes or any(selection.by == "class" for selection in self.selections.values())
        bug = self.data.bug and transforms.named(self.data.bug.kind)
        return bool(self.primary or by_class or (bug and bug.labels))

    def partition(self) -> dict[str, tuple[str, str]]:
        """For each selection, the rule that sorts users into groups and the group it takes, within one run.

        Accuracy intervals that do not overlap, and values of one attribute, put a user into one group at most. Any
        other pair of selections may share users, so each is a rule of its own, and costs add up.
        """
        chosen = self.selections
        if len(chosen) == 2 and Selection.apart(*chosen.values()):
            return {name: (selection.by, name) for name, selection in chosen.items()}
        return {name: (name, name) for name in chosen}

    def spendings(self, run: str = "planned", simulated: bool = False, train: Plan | None = None) -> list[Spending]:
        """What the whole recipe will have spent when it is done, perhaps with another plan to `train` by."""
        plans = self.plans[0], train or self.plans[1]
        models = [Spending(account=self.account(run, name, simulated), plans=plans) for name in self.selections]
        return models + self.learning(run, simulated)

    def learning(self, run: str = "planned", simulated: bool = False) -> list[Spending]:
        """What the thresholds cost, if any are learnt: one release that every user is in."""
        plan = self.threshold_plan
        return [Spending(account=self.account(run, THRESHOLDS, simulated), plans=(plan,))] if plan else []

    def items(self, run: str, simulated: bool) -> list[Item]:
        """What the whole recipe asks of the ledger."""
        models = [
            Item(account=self.account(run, name, simulated), stage=stage, plan=plan)
            for name in self.selections
            for stage, plan in zip(STAGES, self.plans, strict=True)
        ]
        learning = self.learning(run, simulated)
        return models + [Item(account=found.account, stage=THRESHOLDS, plan=found.plans[0]) for found in learning]

    def guarantee(self, spendings: typing.Sequence[Spending]) -> Guarantee:
        """Of these spendings of the recipe, jointly; that of the thresholds is called by its name."""
        joint = guarantee(spendings, self.privacy.delta)
        models = [spending for spending in spendings if not spending.account.run.endswith(f"/{THRESHOLDS}")]
        if len(models) == len(spendings):
            return joint
        told = composition(models, self.privacy.neighbours)
        return dataclasses.replace(joint, composition=f"{told}; and one release of thresholds, which every user is in")

    @property
    def population(self) -> str:
        """Whose budget it draws on."""
        return self.data.name or pathlib.Path(self.data.path or self.data.source).name

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


def _sound(table: Checked, problems: typing.Sequence[str]) -> Checked:
    if problems:
        raise ValueError("; ".join(problems))
    return table


def _under(below: float | Quantile | None, at_least: float | Quantile | None) -> bool:
    """Whether what is below the one surely misses the other; a number and a quantile do not compare."""
    if isinstance(below, Quantile) and isinstance(at_least, Quantile):
        return below.quantile <= at_least.quantile
    return isinstance(below, float) and isinstance(at_least, float) and below <= at_least


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
    parts = [part for part in problem["loc"] if part not in (_NUMBER, _QUANTILE)]
    place = ".".join(map(str, parts)) or "recipe"
    if problem["type"] == "extra_forbidden":
        return f"{place}: unknown; allowed here: {', '.join(sorted(_fields(parts[:-1])))}"
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
    if typing.get_origin(kind) in (typing.Union, types.UnionType, dict, Annotated):
        for argument in typing.get_args(kind):
            yield from _arms(argument)
    else:
        yield kind
