"""Recipes: one TOML file, one model of what may stand in it, and the objects it describes. All errors at once."""

import dataclasses
import functools
import hashlib
import json
import math
import pathlib
import re
import tomllib
import types
import typing
from typing import Annotated, Any, Literal

import numpy as np
import pydantic
import torch
from pydantic import Field, NonNegativeInt

from fedlens.algorithms import AdaptiveClip, FedAvg, FedAvgGan, Ngrams
from fedlens.algorithms.warm_start import warmed
from fedlens.core import files, pins, trees
from fedlens.core.trees import Tree
from fedlens.data.readers import sentences_of
from fedlens.data.readers.docstrings import public_text
from fedlens.ledger import Account, Item, Spending
from fedlens.ledger.spending import composition, stated
from fedlens.media.images import faults as transforms
from fedlens.media.text import faults as misprints
from fedlens.models import words
from fedlens.models.gan import Gan
from fedlens.models.lstm import LanguageModel
from fedlens.models.markov import SYMBOLS
from fedlens.models.words import Vocabulary
from fedlens.privacy import (
    Everyone,
    Guarantee,
    L2Clip,
    MatrixPlan,
    Neighbours,
    Plan,
    Promise,
    UpdateAndBit,
)
from fedlens.privacy.matrix import Identity
from fedlens.recipes import defaults
from fedlens.recipes import problems as recipe_problems
from fedlens.recipes.tables import (
    BUILT_IN,
    NUMBER,
    QUANTILE,
    THRESHOLDS,
    Data,
    Name,
    Networks,
    Primary,
    Privacy,
    Selection,
    Table,
    Text,
    Training,
    sound,
)

STAGES = "count", "train"  # of a model: its group is counted, then it is trained
STRANGE_WORDS = 0.1  # share of a vocabulary that no tokenizer gives: more than the odd abbreviation


class RecipeError(ValueError):
    """Everything that is wrong with a recipe, one line each."""


class Recipe(Table):
    """
    >>> try:
    ...     Recipe.parsed("name = 'x'\\ntask = 'T9'\\nside = 28")
    ... except RecipeError as error:
    ...     print(error)
    4 problems in the recipe:
      task: input should be 'T1', 'T2', 'T3' or 'T4'
      data: missing
      selections: missing
      privacy: missing
    """

    name: Name
    task: Literal["T1", "T2", "T3", "T4"]
    seed: Annotated[int, Field(ge=-(2**62), le=2**62)] = 0  # of everything public: initial weights, latents, samples
    side: NonNegativeInt = 0  # images are side x side
    data: Data
    primary: Primary | None = None
    selections: dict[Name, Selection]
    privacy: Privacy
    model: Networks = Networks()  # of images
    text: Text | None = None  # in place of images
    training: Training = Training()
    hypotheses: tuple[str, ...] = ()  # what else could explain a difference: package.module:function

    @pydantic.field_validator("hypotheses")
    @classmethod
    def _known(cls, kinds: tuple[str, ...]) -> tuple[str, ...]:
        for kind in kinds:
            if kind not in misprints.MISPRINTS:
                transforms.named(kind)  # or it says what is wrong
        return kinds

    @pydantic.model_validator(mode="after")
    def _whole(self) -> "Recipe":
        for path in self.public_files.values():
            pins.check_below(path)  # before anything is opened
        return sound(self, recipe_problems.found_in(self))

    @classmethod
    def parsed(cls, text: str, overrides: typing.Sequence[str] = ()) -> "Recipe":
        try:
            values = files.parsed_toml(text, "Expected a recipe that can be read; it is damaged.", RecipeError)
        except tomllib.TOMLDecodeError as error:
            raise RecipeError(f"Expected TOML: {error}.") from None
        return cls.validated(values, overrides)

    @classmethod
    def validated(cls, values: dict[str, Any], overrides: typing.Sequence[str]) -> "Recipe":
        for override in overrides:
            _set(values, override)
        try:
            return cls.model_validate(defaults.settled(values, cls.model_validate))
        except pydantic.ValidationError as error:
            lines = [_line(problem) for problem in error.errors()]
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
        if self.error_ratio is not None and self.error_ratio > 1:
            found.append(
                f"correlated noise leaves {self.error_ratio:.3g} times the error in running sums that independent noise"
                " would at this price: it pays where users take turns (sampling = 'balanced'), with up to as many bands"
                " as groups"
            )
        if p.correlated and self.training.server.kind == "adam":
            found.append("correlated noise cancels in sums of the rounds; the server's adam rescales every round")
        if (strange := self._strange_words) > STRANGE_WORDS:
            found.append(
                f"{strange:.0%} of the words in text.vocabulary can never be met: the tokenizer writes them otherwise"
                " (in lower case, say), so that the words they stand for count as unknown"
            )
        return (*found, *self.doubts)

    @property
    def _strange_words(self) -> float:
        """The share of a given list that the tokenizer, if it is one of ours, does not leave as it is."""
        if self.text is None or self.text.vocabulary is None or self.text.tokenizer not in words.TOKENIZERS:
            return 0.0
        split = words.TOKENIZERS[self.text.tokenizer]
        return sum(split(word) != [word] for word in self.vocabulary.words) / len(self.vocabulary)

    @property
    def doubts(self) -> tuple[str, ...]:
        """Why what this recipe finds would be a hint only, if so: for whoever reads the report."""
        limit, counts = defaults.NGRAM_NOISE_TO_SIGNAL, self.text is not None and self.text.model == "ngrams"
        if not counts or self.noise_to_signal <= limit:
            return ()
        told = f"noise to signal {self.noise_to_signal:.2f} is above {limit:g}: two tables of the same words may differ"
        return (f"{told} by chance as if by a bug, and what is named is a hint; it takes more users or epsilon",)

    @functools.cached_property
    def digest(self) -> str:
        """Of the settings and of every file they name: whoever approved a run approved those as well.

        Of the data it holds the population's name alone: what that is, its owner says, and not the recipe.
        """
        settings = self.named
        inside = (
            (place, found) for place, path in self.public_files.items() for found in files.within(pathlib.Path(path))
        )
        held = [(place, found.name, files.sha256(found)) for place, found in inside]
        return hashlib.sha256(json.dumps([settings.model_dump_json(), held]).encode()).hexdigest()

    @property
    def public_files(self) -> dict[str, str]:
        """By the setting that names them: the files beside the data that a run depends on."""
        text, primary = self.text, self.primary
        named = {
            "text.vocabulary": text.vocabulary if text else None,
            "text.vocabulary, its price": f"{text.vocabulary}.json" if text and text.vocabulary else None,
            "text.public": text.public if text else None,
            "text.baseline": f"{text.baseline}/model.safetensors" if text and text.baseline else None,
            "primary.model": primary.model if primary else None,
            "primary.public": primary.public.path if primary and primary.public else None,
        }
        return {place: path for place, path in named.items() if path}

    def gan(self) -> Gan:
        return self.model.built(self.side, 1)

    @property
    def noise_to_signal(self) -> float:
        """The norm of the noise in one round's mean, over the largest norm the mean can have.

        Correlated noise counts as the independent noise with the same error in running sums.
        """
        train = self.plans[1]
        multiplier = train.noise_multiplier
        if isinstance(train, MatrixPlan):
            multiplier = train.prefix_error() / math.sqrt((train.releases + 1) / 2)
        return multiplier * self.weights() ** 0.5 / train.expected_contributors

    @property
    def error_ratio(self) -> float | None:
        """The error of running sums over that of independent noise at the same price; None if it is independent."""
        train = self.plans[1]
        if not isinstance(train, MatrixPlan):
            return None
        one = dataclasses.replace(train, noise_multiplier=1.0)
        plain = dataclasses.replace(one, strategy=Identity())
        return one.prefix_error() * one.sensitivity / (plain.prefix_error() * plain.sensitivity)

    @functools.cached_property
    def vocabulary(self) -> Vocabulary:
        """Public: a file, or the words of the public text that comes with the docstrings."""
        if self.text is None:
            raise ValueError("Expected a table [text]: images have no vocabulary.")
        if self.text.vocabulary is None:
            source = pathlib.Path(self.text.public).name if self.text.public else "Python's help topics"
            return words.counted(self._public_sentences(), self.text.vocabulary_size, self.text.tokenizer, source)
        return Vocabulary.open(self.text.vocabulary, provenance=f"the list {pathlib.Path(self.text.vocabulary).name}")

    @functools.cached_property
    def earlier(self) -> tuple[Spending, ...]:
        """What was released before this run and shapes all that it shows: its vocabulary, where that was learnt.

        It is booked in the ledger already, so that no run reserves it again; but every guarantee includes it.
        """
        told = self.vocabulary.facts if self.text and self.text.vocabulary else {}
        if "spending" not in told:
            return ()
        try:
            found = Spending.from_dict(told["spending"])
            _ = found.kind  # it has plans, and all are of one kind
            if not re.fullmatch(r"vocabulary-\w+", found.account.run):
                raise ValueError
        except (KeyError, TypeError, ValueError):
            raise ValueError("Expected a whole price of the vocabulary in the file beside it; it is damaged.") from None
        # Whose users share nobody with whose is not for a file to say: every user may have been in it.
        account = dataclasses.replace(found.account, partition=found.account.run, part="all")
        return (dataclasses.replace(found, account=account),)

    def owed(self, own: Spending) -> Spending:
        """What a model costs whoever sees it: with what its words, and who trained it, were decided by."""
        before = (*self.earlier, *self.learning())
        simulated = any(found.account.simulated for found in (own, *before))
        return Spending(
            account=dataclasses.replace(own.account, simulated=simulated),
            plans=(*(plan for found in before for plan in found.plans), *own.plans),
        )

    def language(self) -> LanguageModel:
        if self.text is None:
            raise ValueError("Expected a table [text]: images have no language model.")
        return self.text.built(len(self.vocabulary) if self.text.model == "words" else 0)  # letters need none

    def weights(self) -> int:
        """How many numbers a user's contribution holds."""
        if self.text and self.text.model == "ngrams":
            return SYMBOLS**self.text.order
        init = self.language().init(0) if self.text else self.gan().critic.init(0)
        return sum(leaf.numel() for leaf in init.values())

    def start(self, device: str = "cpu") -> Tree:
        """The public state before the first round; a language model has read what is public, if there is anything."""
        algorithm = self.algorithm()
        state = algorithm.start()
        if not isinstance(algorithm, FedAvg) or self.text is None or not len(rows := self._public_rows()):
            return state
        steps, sequences = self.text.warm_steps, torch.from_numpy(rows).long()
        fresh = trees.part(state, "model")
        warm = warmed(algorithm.model, fresh, sequences, steps=steps, seed=self.seed, device=device)
        return state | trees.joined(model=warm)

    def _public_rows(self) -> np.ndarray:
        """The vocabulary's spellings, or public sentences: none of it comes from a user."""
        if self.text is None or not self.text.warm_steps:
            return np.zeros((0, 2))
        width = self.text.width + 2
        if self.text.model == "spelling":
            return np.stack([words.spelled(word, width) for word in self.vocabulary.words])
        split = words.tokenizer(self.text.tokenizer)
        spoken = [tokens for sentence in self._public_sentences() if (tokens := split(sentence))]
        return np.stack([self.vocabulary.numbered(tokens, width) for tokens in spoken]) if spoken else np.zeros((0, 2))

    def _public_sentences(self) -> list[str]:
        if self.text and self.text.public:
            return sentences_of(pathlib.Path(self.text.public))
        return public_text().splitlines() if self.data.source == "docstrings" else []

    @property
    def algorithm_name(self) -> str:
        if self.text is None:
            return "fedavg-gan"
        return "ngrams" if self.text.model == "ngrams" else "fedavg"

    def algorithm(self) -> FedAvgGan | FedAvg | Ngrams:
        if self.text and self.text.model == "ngrams":
            train = self.plans[1]
            return Ngrams(noise=train.stddev / train.expected_contributors, order=self.text.order)
        server, adaptive = self.training.server.built(), self.privacy.adaptive_clip
        shared = {
            "server": server,
            "adaptive": AdaptiveClip(**adaptive.model_dump()) if adaptive else None,
            "seed": self.seed,
            **self.training.model_dump(include={"batch", "local_steps", "local_rate"}),
        }
        if self.text:
            return FedAvg(model=self.language(), epochs=self.training.epochs, **shared)
        alone = self.training.model_dump(include={"decay", "generator_steps", "generator_batch"})
        return FedAvgGan(gan=self.gan(), generator=self.training.generator.built(), **shared, **alone)

    @functools.cached_property
    def plans(self) -> tuple[Plan, Promise]:
        """The noisy head count, once, and the training rounds; calibrated together."""
        p = self.privacy
        count, train = self._once(p.count_noise), self._rounds()
        if p.epsilon is None:
            return count, train
        # A user lives through as many models as there are rules to be sorted by: their rounds add up. Where users are
        # replaced, one may leave a group and enter another, and lives through all. All live through the thresholds.
        replaced = p.neighbours == Neighbours.REPLACE_ONE
        models = len(self.selections if replaced else {rule for rule, _ in self.partition().values()})
        beside = (count,) * models + ((self.threshold_plan,) if self.threshold_plan else ())
        one = _multipliable(train)
        whole = dataclasses.replace(one, releases=models * one.releases).calibrated(p.epsilon, p.delta, beside)
        noise = train.noise_multiplier * whole.noise_multiplier / one.noise_multiplier
        return count, dataclasses.replace(train, noise_multiplier=noise)

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
            bound=L2Clip(norm=p.clip) if p.clip else UpdateAndBit(bit=p.adaptive_clip.bit if p.adaptive_clip else 1.0),
            releases=p.rounds,
            expected_contributors=p.contributors,
        )

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
        bug = self.data.bug and not self.text and transforms.named(self.data.bug.kind)
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

    def spendings(self, run: str = "planned", simulated: bool = False, train: Promise | None = None) -> list[Spending]:
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
        """Of these spendings of the recipe, jointly with what was paid earlier; thresholds are called by their name."""
        joint = stated(spendings, self.earlier, self.privacy.delta)
        models = [spending for spending in spendings if not spending.account.run.endswith(f"/{THRESHOLDS}")]
        if len(models) == len(spendings):
            return joint
        told = composition(models, self.privacy.neighbours)
        return dataclasses.replace(joint, composition=f"{told}; and one release of thresholds, which every user is in")

    @property
    def population(self) -> str:
        """Whose budget it draws on."""
        return self.data.budget or self.data.called

    @property
    def named(self) -> "Recipe":
        """As it is approved: by the name of its population, and by nothing else about it."""
        return self if self.data.source in BUILT_IN else self.on(self.data.called)

    def on(self, population: str, budget: str | None = None) -> "Recipe":
        """The same recipe, which names its population and says nothing else about it."""
        data = Data(population=population, budget=budget, bug=self.data.bug)
        named = self.model_copy(update={"data": data})
        named.__dict__.pop("digest", None)  # which was copied, and holds the name
        return named

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


def to_toml(whole: Table) -> str:
    """A resolved recipe as TOML, every setting spelled out; or what else is made of tables."""
    lines: list[str] = []

    def table(values: dict[str, Any], place: str) -> None:
        if place:
            lines.extend(["", f"[{place}]"])
        tables = {key: value for key, value in values.items() if isinstance(value, dict)}
        scalars = {key: json.dumps(value, ensure_ascii=False) for key, value in values.items() if key not in tables}
        lines.extend(f"{key} = {value}" for key, value in scalars.items())
        for key, value in tables.items():
            table(value, f"{place}.{key}" if place else key)

    values = whole.model_dump(mode="json", exclude_none=True)
    if "population" in (data := values.get("data", {})):  # of which it says nothing else
        values["data"] = {key: data[key] for key in ("population", "budget", "bug") if key in data}
    table(values, "")
    return "\n".join([*lines, ""])


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
        values[last] = files.parsed_toml(f"value = {text}", f"Expected a value for {last}.", RecipeError)["value"]
    except tomllib.TOMLDecodeError:
        values[last] = text


def _line(problem: typing.Mapping[str, Any]) -> str:
    parts = [part for part in problem["loc"] if part not in (NUMBER, QUANTILE)]
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
        table = next((arm for arm in _arms(kind) if isinstance(arm, type) and issubclass(arm, Table)), table)
    return table.model_fields


def _arms(kind: Any) -> typing.Iterator[Any]:
    if typing.get_origin(kind) in (typing.Union, types.UnionType, dict, Annotated):
        for argument in typing.get_args(kind):
            yield from _arms(argument)
    else:
        yield kind
