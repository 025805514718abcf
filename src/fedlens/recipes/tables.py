"""The tables of a recipe: what may stand in each, and what must hold for it."""

import dataclasses
import pathlib
import re
import typing
from typing import Annotated, Any, Literal, TypeVar

import pydantic
from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt

from fedlens import media
from fedlens.algorithms import ALGORITHMS, Adam, Sgd
from fedlens.core import pins
from fedlens.privacy import Balanced, Everyone, FixedSize, Neighbours, Poisson, Unit
from fedlens.privacy.matrix import Banded, BinaryTree

Share = Annotated[float, Field(ge=0, le=1)]
Kept = Annotated[float, Field(ge=0, lt=1)]  # of an optimizer's memory, at every step: Adam divides by what is not
Path = Annotated[str, pydantic.AfterValidator(pins.expanded)]  # $NAME stands for an environment variable
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{0,40}$")]
PopulationName = Annotated[str, Field(pattern=r"^[^/\\.(\p{C}][^/\\\p{C}]{0,59}$")]  # that of a file, or one given
Checked = TypeVar("Checked")


def _free(name: str) -> str:
    if not re.fullmatch(r"\w{1,64}", name, re.ASCII) or name in ("x", "y", "mask", "offsets"):
        raise ValueError("expected a column's name of letters, digits and _, other than x, y, mask and offsets")
    return name


def _source(name: str) -> str:
    if name not in media.sources():
        raise ValueError(f"expected one of {', '.join(sorted(media.sources()))}")
    return name


def _algorithm(name: str) -> str:
    if name not in ALGORITHMS:
        raise ValueError(f"expected one of {', '.join(ALGORITHMS)}")
    return name


def _fault(kind: str) -> str:
    media.fault(kind)  # or it says which names there are
    return kind


FaultKind = Annotated[str, pydantic.AfterValidator(_fault)]
Column = Annotated[str, pydantic.AfterValidator(_free)]


class Table(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Bug(Table):
    """A bug planted on purpose, to see whether it would be found."""

    kind: FaultKind
    fraction: Share = 0.5
    of: Literal["users", "examples"] = "users"  # of each user's examples, that is
    share: Share = 1.0  # of the examples of a user whom it hits
    seed: NonNegativeInt = 0
    classes: PositiveInt | None = None  # of labels, for bugs that change them: a public number
    mark: Column | None = None  # a column to add: 1 in the rows of a user whom it hit (the faulty release), else 0

    @property
    def relabels(self) -> bool:
        return media.fault(self.kind).labels is not None

    @pydantic.model_validator(mode="after")
    def _consistent(self) -> "Bug":
        lacking = self.relabels and not self.classes
        return sound(self, [f"{self.kind} needs classes, the public number of them"] if lacking else [])


class Columns(Table):
    """An .npz file and the names of its arrays."""

    path: Path
    images: str = "x"
    labels: str = "y"
    users: str | None = None


CHECKED = frozenset({"path", "deal_to", "attributes"})  # options whose source [data] checks itself


class Data(Table):
    """A registered population, by its name; or where data lie and what they hold, to be registered in passing."""

    population: PopulationName | None = None
    budget: PopulationName | None = None  # whose budget it draws on, if not its own: by its owner's word
    source: Annotated[str, pydantic.AfterValidator(_source)] | None = None
    path: Path | None = None
    name: PopulationName | None = None  # of the population in the ledger; by default that of the file
    images: str = "x"
    labels: str | None = "y"
    text: str = "text"  # jsonl: the key of a user's sentences
    users: str = "user"
    attributes: tuple[Column, ...] = ()  # npz, jsonl: further columns of whole numbers, to select by
    deal_to: PositiveInt | None = None  # rows without an owner are dealt to so many made-up users, one after the other
    bug: Bug | None = None

    @pydantic.model_validator(mode="after")
    def _consistent(self) -> "Data":
        if self.population:
            given = {key for key, field in Data.model_fields.items() if getattr(self, key) != field.default}
            given -= {"population", "budget", "bug"}
            needless = f"what '{self.population}' is, its owner has said; leave out {', '.join(sorted(given))}"
            return sound(self, [needless] if given else [])
        problems = [] if self.source else ["give population, the name of a registered one, or source and path"]
        if self.budget:
            problems.append("budget goes with population: its owner says whose budget it draws on")
        own = self.own_options
        if self.source and (self.path is not None) != ("path" in own):
            problems.append(f"path goes with source {_with('path')}, and with those only")
        if self.deal_to and "deal_to" not in own:
            problems.append(f"deal_to goes with source {_with('deal_to')}: a source of {self.source} has its users")
        if self.attributes and "attributes" not in own:
            problems.append(f"attributes goes with source {_with('attributes')}: {self.source} has none")
        if len(set(self.attributes)) < len(self.attributes):
            problems.append("attributes names a column twice")
        if self.bug and self.bug.mark in self.attributes:
            problems.append(f"bug.mark={self.bug.mark!r} is one of the attributes already")
        return sound(self, problems)

    @property
    def own_options(self) -> frozenset[str]:
        """Those that go with its source."""
        return media.sources()[self.source].options if self.source else frozenset()

    @property
    def built_in(self) -> bool:
        return self.source in media.built_in()

    @property
    def called(self) -> str:
        """What the ledger knows the population as: by default after its file, as far as that can be printed."""
        file = pathlib.Path(self.path or self.source or "").name
        printable = "".join(letter if letter.isprintable() and letter != "\\" else "_" for letter in file)
        return self.population or self.name or re.sub(r"^[.(]", "_", printable)[:60]

    def lacks(self, attribute: str) -> bool:
        """Whether there is surely no such column; what a folder, or a registered population, holds is seen later."""
        marked = self.bug is not None and attribute == self.bug.mark
        known = self.source not in ("population", None)
        return known and not marked and attribute not in self.attributes


def _with(option: str) -> str:
    """The sources that an option goes with, as a list for a sentence."""
    *some, last = [name for name, source in media.sources().items() if option in source.options]
    return f"{', '.join(some)} or {last}" if some else last


class PrimarySettings(Table):
    """The model whose mistakes are looked into: a file, or one trained here on public data."""

    model: Path | None = None  # safetensors of ours, TorchScript or torch.export
    values: Literal["minus-one-to-one", "zero-to-one", "bytes"] = "minus-one-to-one"  # the pixels that model expects
    channels_last: bool = False  # and in which order
    public: Columns | None = None  # digits bring their own
    network: Literal["small", "paper"] = "small"  # to be trained here
    widths: tuple[PositiveInt, ...] = (16, 32)  # of the small one
    epochs: PositiveInt = 40


class Quantile(Table):
    """A threshold that so many of the users lie below: learnt from a noisy histogram of all, at a price."""

    quantile: Annotated[float, Field(gt=0, lt=1)]

    def __str__(self) -> str:
        return f"quantile {self.quantile:g}"


NUMBER, QUANTILE = "<number>", "<quantile>"
# Only the arm that was meant is checked, so that one mistake is one line.
Threshold = Annotated[
    Annotated[Share, pydantic.Tag(NUMBER)] | Annotated[Quantile, pydantic.Tag(QUANTILE)],
    pydantic.Discriminator(lambda given: QUANTILE if isinstance(given, dict | Quantile) else NUMBER),
]


BY_PRIMARY = "accuracy", "right", "wrong"  # selections that the primary model makes


class Selection(Table):
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
        return {threshold.quantile for threshold in (self.at_least, self.below) if isinstance(threshold, Quantile)}

    def interval(self, learnt: typing.Mapping[float, float]) -> tuple[float, float]:
        """The accuracies it takes, [at least, below), with what was learnt in place of quantiles."""

        def value(threshold: float | Quantile) -> float:
            return learnt[threshold.quantile] if isinstance(threshold, Quantile) else threshold

        return value(self.at_least or 0.0), 2.0 if self.below is None else value(self.below)

    def apart(self, other: "Selection") -> bool:
        """Whether no user can be in both, whatever the data."""
        if self.by == other.by == "attribute":
            return self.attribute == other.attribute and not set(self.values or ()) & set(other.values or ())
        return under(self.below, other.at_least) or under(other.below, self.at_least)

    @pydantic.model_validator(mode="after")
    def _consistent(self) -> "Selection":
        problems = []
        if (self.at_least is not None or self.below is not None) != (self.by == "accuracy"):
            problems.append("at_least and below go with by = 'accuracy', which needs one of them")
        if under(self.below, self.at_least or 0.0):
            problems.append(f"expected at_least={self.at_least} < below={self.below}")
        if (self.classes is None) == (self.by == "class"):
            problems.append("classes goes with by = 'class', which needs it")
        if {self.attribute is None, self.values is None} != {self.by != "attribute"}:
            problems.append("attribute and values go with by = 'attribute', which needs both")
        return sound(self, problems)


class Adaptive(Table):
    start: PositiveFloat
    quantile: Share = 0.5
    rate: PositiveFloat = 0.2
    bit: PositiveFloat = 0.2


class Correlated(Table):
    """Noise that later rounds partly take back, in place of independent noise; for users who take turns."""

    bands: PositiveInt | None = None  # over so many rounds; as many as there are groups is a good choice
    tree: bool = False  # DP-FTRL: a binary tree over all rounds

    @pydantic.model_validator(mode="after")
    def _consistent(self) -> "Correlated":
        return sound(self, ["give bands or tree = true, one of them"] if (self.bands is None) != self.tree else [])

    def strategy(self, rounds: int) -> Banded | BinaryTree:
        return Banded(bands=self.bands) if self.bands else BinaryTree(restart=rounds)


class Privacy(Table):
    delta: Annotated[float, Field(gt=0, lt=1)]
    epsilon: Annotated[float, Field(ge=1e-3, le=1e4)] | None = None
    noise_multiplier: Annotated[float, Field(ge=0)] | None = None
    rounds: PositiveInt
    units: PositiveInt  # a public guess at the units (users, silos, examples) in a group: the divisor
    population: PositiveInt  # a public upper bound on all units
    sampling: Literal["everyone", "poisson", "fixed-size", "balanced"] = "everyone"
    rate: Annotated[float, Field(gt=0, le=1)] | None = None  # poisson
    capped: bool = True  # poisson: cohorts of at most m + 6 sqrt(m)
    size: PositiveInt | None = None  # fixed-size
    size_is_public: bool = False  # fixed-size: how many units a selection holds is declared public
    groups: PositiveInt | None = None  # balanced
    shards: PositiveInt | None = None  # to which units are dealt: each keeps a critic, and is asked as a unit would be
    unit: Unit = Unit.USER
    neighbours: Neighbours = Neighbours.ADD_REMOVE
    clip: PositiveFloat | None = None
    top_k: PositiveInt | None = None  # in place of a clip: signs of so many entries of each image
    adaptive_clip: Adaptive | None = None
    correlated: Correlated | None = None  # everyone, balanced
    minimum_units: PositiveInt = 20  # below it, by a noisy count, no model is trained
    count_noise: PositiveFloat = 4.0
    threshold_noise: PositiveFloat = 4.0  # units, in every bin of the histogram that thresholds are learnt from

    @pydantic.model_validator(mode="after")
    def _consistent(self) -> "Privacy":
        problems = []
        if (self.epsilon is None) == (self.noise_multiplier is None):
            problems.append("give epsilon or noise_multiplier, one of them")
        if sum(given is not None for given in (self.clip, self.adaptive_clip, self.top_k)) != 1:
            problems.append("give clip, top_k or [privacy.adaptive_clip], one of them")
        for name, sampling in {"rate": "poisson", "size": "fixed-size", "groups": "balanced"}.items():
            if (getattr(self, name) is None) == (self.sampling == sampling):
                problems.append(f"{name} goes with sampling = '{sampling}', which needs it")
        for name in ("units", "shards"):
            if (getattr(self, name) or 0) > self.population:
                problems.append(f"{name}={getattr(self, name)} exceeds population={self.population}")
        for name in ("size", "groups"):
            if (getattr(self, name) or 0) > self._asked:
                limit = "shards" if self.shards else "population"
                problems.append(f"{name}={getattr(self, name)} exceeds {limit}={self._asked}")
        if self.sampling == "balanced" and self.unit == Unit.EXAMPLE and not self.shards:
            problems.append("sampling = 'balanced' of examples needs shards: examples have no turns of their own")
        if self.shards and self.neighbours != Neighbours.ADD_REMOVE:
            problems.append("shards goes with neighbours = 'add/remove': who is replaced may enter another shard")
        return sound(self, problems + (self._correlated_problems() if self.correlated else []))

    def _correlated_problems(self) -> list[str]:
        problems = []
        if self.sampling not in ("everyone", "balanced"):
            problems.append(f"correlated goes with sampling = 'everyone' or 'balanced', not with '{self.sampling}'")
        if self.adaptive_clip:
            problems.append("correlated goes with a fixed clip: noise of rounds clipped otherwise would not cancel")
        if (self.groups or 0) > self.rounds:
            problems.append(f"correlated with groups={self.groups} above rounds={self.rounds}: some would never come")
        return problems

    @property
    def _asked(self) -> int:
        """How many there are to be asked: shards, or units."""
        return self.shards or self.population

    def sampler(self) -> Poisson | FixedSize | Balanced | Everyone:
        if self.rate is not None:
            return Poisson(rate=self.rate, population=self._asked, capped=self.capped)
        if self.size is not None:
            return FixedSize(size=self.size, population=self._asked, size_is_public=self.size_is_public)
        return Balanced(groups=self.groups, population=self._asked) if self.groups else Everyone()

    @property
    def contributors(self) -> float:
        """The public divisor: how many are expected to take part in a round."""
        return float(self.size or (self.shards or self.units) * (self.rate or 1.0) / (self.groups or 1))


class Optimizer(Table):
    kind: Literal["sgd", "adam"] = "sgd"
    rate: PositiveFloat
    momentum: Kept = 0.0
    nesterov: bool = False
    beta1: Kept = 0.9
    beta2: Kept = 0.999

    def built(self) -> Sgd | Adam:
        if self.kind == "adam":
            return Adam(rate=self.rate, beta1=self.beta1, beta2=self.beta2)
        return Sgd(rate=self.rate, momentum=self.momentum, nesterov=self.nesterov)


class Training(Table):
    batch: PositiveInt = 32
    epochs: PositiveInt = 1  # passes over a user's batches
    local_steps: PositiveInt = 6
    local_rate: PositiveFloat = 5e-4
    decay: Annotated[float, Field(ge=0)] = 0.0
    examples: PositiveInt = 96  # of a critic's own, in a round: this and what follows is of feedback GANs
    local: Optimizer = Optimizer(kind="adam", rate=1e-4, beta1=0.5, beta2=0.9)  # of the critics
    entropy: bool = False  # critics classify, as DataLens has it; else they are Wasserstein's
    warm_steps: NonNegativeInt = 0  # of a generator that each critic trains against before the first round
    all_learn: bool = False  # all critics learn in every round, and not those that are asked alone
    asks: PositiveInt = 1  # releases for one step of the generator
    vote_clip: PositiveFloat | None = 1e-5  # top_k: slopes beyond it count as this much
    agreement: Share = 0.2  # top_k: of all votes, below which an entry of an image stays as it is
    server: Optimizer = Optimizer(rate=1.0)
    generator_steps: PositiveInt = 6
    generator_batch: PositiveInt = 32
    generator: Optimizer = Optimizer(rate=5e-3)


class Settings(Table):
    """What every recipe says, whatever the medium of its data, whose own tables stand beside these."""

    name: Name
    task: Literal["T1", "T2", "T3", "T4", "T6"]
    algorithm: Annotated[str, pydantic.AfterValidator(_algorithm)] | None = None  # by default what goes with the model
    seed: Annotated[int, Field(ge=-(2**62), le=2**62)] = 0  # of everything public: initial weights, latents, samples
    data: Data
    primary: PrimarySettings | None = None
    selections: dict[Name, Selection]
    privacy: Privacy
    training: Training = Training()
    hypotheses: tuple[FaultKind, ...] = ()  # what else could explain a difference: package.module:function

    @property
    def fault_kinds(self) -> tuple[str, ...]:
        """All that it names: planted, or to be tried."""
        return (*self.hypotheses, *([self.data.bug.kind] if self.data.bug else []))


def sound(table: Checked, problems: typing.Sequence[str]) -> Checked:
    if problems:
        raise ValueError("; ".join(problems))
    return table


def under(below: float | Quantile | None, at_least: float | Quantile | None) -> bool:
    """Whether what is below the one surely misses the other; a number and a quantile do not compare."""
    if isinstance(below, Quantile) and isinstance(at_least, Quantile):
        return below.quantile <= at_least.quantile
    return isinstance(below, float) and isinstance(at_least, float) and below <= at_least


def changed(settings: Any, changes: dict[str, Any]) -> Any:
    """With those that are given."""
    return dataclasses.replace(settings, **{key: value for key, value in changes.items() if value is not None})
