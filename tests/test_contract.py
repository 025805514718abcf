"""What every algorithm promises, checked on every one of them, and on toys of what is to come.

A check is a function of a case; at the end, algorithms that are broken on purpose show that each of them can fail.
"""

import dataclasses
import json
import math
from collections.abc import Iterator
from typing import ClassVar

import numpy as np
import pytest
import torch
from toys import same

from fedlens.algorithms import (
    ALGORITHMS,
    QUESTIONS,
    AccuracyHistogram,
    Adam,
    AdaptiveClip,
    Asked,
    FedAvg,
    FedAvgGan,
    HeadCount,
    HeavyWords,
    Ngrams,
    OneLook,
    Sgd,
    rebuilt,
    settings,
)
from fedlens.algorithms.protocol import Algorithm, Answered, Forgetful, ManyReleases, OneRelease
from fedlens.algorithms.rebuilding import from_settings
from fedlens.core import trees
from fedlens.core.randomness import Randomness
from fedlens.core.trees import Tree
from fedlens.curators.contributions import Work, one_by_one
from fedlens.curators.engine import Engine
from fedlens.curators.memory import Memory
from fedlens.curators.protocol import Contribute, Curator, PrivacySpentError
from fedlens.curators.simulated import Question, SimulatedCurator, _named
from fedlens.data.population import Population
from fedlens.ledger import Account, Ledger, guarantee
from fedlens.media import MEDIA
from fedlens.models.gan import ConvCritic, ConvGenerator, Gan
from fedlens.models.looks.embedding import Embedding
from fedlens.models.looks.moments import Moments
from fedlens.models.looks.psi import Psi
from fedlens.models.looks.sentences import as_symbols
from fedlens.models.looks.texts import TextPsi
from fedlens.models.lstm import LanguageModel
from fedlens.models.words import Vocabulary, spelled
from fedlens.privacy import Balanced, Everyone, L2Clip, Plan, Poisson, RowClip, TopKSign, Unit, UpdateAndBit

# Toys of what is to come

STEP, EVERYONE = Adam(rate=0.1), Everyone()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Critics:
    """GS-WGAN in small: every unit trains a critic of its own, which it keeps, and sends its slope at each fake."""

    size: int = 4
    fakes: int = 3
    rate: float = 0.3
    generator: Sgd | Adam = STEP
    seed: int = 0

    name: ClassVar[str] = "critics"
    examples_per_unit: ClassVar[int] = 2

    @property
    def seedless(self) -> "Critics":
        return dataclasses.replace(self, seed=0)

    @property
    def contribute(self) -> Contribute:
        return self.seedless.slopes

    def slopes(self, message: Tree, examples: Tree, memory: Tree) -> tuple[Tree, Tree]:
        there = examples["mask"].sum()
        real = (examples["x"] * examples["mask"][:, None]).sum(0) / there.clamp(min=1.0)
        towards = (there > 0) * (real - message["fakes"].mean(0))
        critic = memory["critic"] + self.rate * towards
        slopes = torch.tanh(message["fakes"] * critic) * critic
        return {"slopes": slopes}, {"critic": critic, "steps": memory["steps"] + 1}

    def memory(self, units: int) -> Tree:
        fresh = torch.linspace(-1, 1, self.size).expand(units, self.size)  # all alike: one row
        return {"critic": fresh, "steps": torch.zeros(1, dtype=torch.int64).expand(units)}

    def start(self) -> Tree:
        centre = {"w": torch.randn(self.size, generator=torch.Generator().manual_seed(self.seed))}
        return trees.joined(centre=centre, slots=self.generator.init(centre), round=torch.tensor(0))

    def round(self, state: Tree) -> tuple[Tree, Answered]:
        rng = torch.Generator().manual_seed(1000 * self.seed + int(state["round"]))
        fakes = trees.part(state, "centre")["w"] + 0.1 * torch.randn(self.fakes, self.size, generator=rng)
        return {"fakes": fakes}, lambda mean: self._stepped(state, mean)

    def _stepped(self, state: Tree, mean: Tree) -> Tree:
        centre, slots = trees.part(state, "centre"), trees.part(state, "slots")
        centre, slots = self.generator(centre, {"w": -mean["slopes"].mean(0)}, slots)
        return trees.joined(centre=centre, slots=slots, round=state["round"] + 1)

    def run(self, curator: Curator, state: Tree) -> Iterator[Tree]:
        contribute = self.contribute
        while curator.remaining:
            message, answered = self.round(state)
            yield (state := answered(curator.noisy_mean(contribute, message)))

    def result(self, state: Tree) -> Tree:
        return trees.part(state, "centre")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Votes(Forgetful):
    """DataLens in small: the signs of a slope's largest entries, rounded by coins that come with the message."""

    size: int = 4
    fakes: int = 3
    step: float = 0.1
    seed: int = 0

    name: ClassVar[str] = "votes"
    examples_per_unit: ClassVar[int] = 3

    @property
    def seedless(self) -> "Votes":
        return dataclasses.replace(self, seed=0)

    @property
    def contribute(self) -> Contribute:
        return self.seedless.votes

    def votes(self, message: Tree, examples: Tree, memory: Tree) -> tuple[Tree, Tree]:
        there = examples["mask"].sum()
        real = (examples["x"] * examples["mask"][:, None]).sum(0) / there.clamp(min=1.0)
        towards = torch.tanh(real - message["fakes"]) * (there > 0)
        heads = torch.where(message["coins"] < (1 + towards) / 2, 1.0, -1.0)
        return {"votes": heads * towards.abs()}, memory

    def start(self) -> Tree:
        return {"fakes": torch.zeros(self.fakes, self.size), "round": torch.tensor(0)}

    def round(self, state: Tree) -> tuple[Tree, Answered]:
        rng = torch.Generator().manual_seed(1000 * self.seed + int(state["round"]))
        coins = torch.rand(self.fakes, self.size, generator=rng)
        return {"fakes": state["fakes"], "coins": coins}, lambda mean: {
            "fakes": state["fakes"] + self.step * mean["votes"].sign(),
            "round": state["round"] + 1,
        }

    def run(self, curator: Curator, state: Tree) -> Iterator[Tree]:
        contribute = self.contribute
        while curator.remaining:
            message, answered = self.round(state)
            yield (state := answered(curator.noisy_mean(contribute, message)))

    def result(self, state: Tree) -> torch.Tensor:
        return state["fakes"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Look(OneRelease):
    """One look in small: the mean, over what a silo holds, of a public embedding; once."""

    features: int = 5
    examples_per_unit: int = 6

    name: ClassVar[str] = "look"

    def contribute(self, message: Tree, examples: Tree, memory: Tree) -> tuple[Tree, Tree]:
        weight = examples["mask"] / examples["mask"].sum().clamp(min=1.0)
        shown = torch.cos(examples["x"] @ message["directions"])
        return {"embedding": (weight[:, None] * shown).sum(0) / math.sqrt(self.features)}, memory

    def start(self) -> Tree:
        return {"embedding": torch.zeros(self.features), "round": torch.tensor(0)}

    def round(self, state: Tree) -> tuple[Tree, Answered]:
        directions = torch.randn(4, self.features, generator=torch.Generator().manual_seed(5))
        return {"directions": directions}, lambda mean: mean | {"round": state["round"] + 1}

    def result(self, state: Tree) -> torch.Tensor:
        return state["embedding"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class CriticSteps(ManyReleases):
    """DP-SGD on a critic in small (private FL-GAN): an example sends the gradient of its own loss, penalty included."""

    size: int = 4
    fakes: int = 3
    steps: int = 2  # of the critic, for one of the generator
    critic: Sgd | Adam = STEP
    generator: Sgd | Adam = STEP
    seed: int = 0

    name: ClassVar[str] = "critic-steps"
    examples_per_unit: ClassVar[int] = 1

    @property
    def seedless(self) -> "CriticSteps":
        return dataclasses.replace(self, seed=0)

    @property
    def contribute(self) -> Contribute:
        return self.seedless.gradient

    def gradient(self, message: Tree, examples: Tree, memory: Tree) -> tuple[Tree, Tree]:
        real, there = examples["x"][0], examples["mask"][0] > 0
        fakes, shares = message["fakes"], message["shares"]
        mixed = fakes + shares[:, None] * (real - fakes)
        slopes = torch.func.grad(_penalized)(trees.part(message, "critic"), real, fakes, mixed)
        return {name: torch.where(there, leaf, 0.0) for name, leaf in slopes.items()}, memory

    def start(self) -> Tree:
        rng = torch.Generator().manual_seed(self.seed)
        critic = {
            "hidden": torch.randn(self.size, 3, generator=rng),
            "score": torch.randn(3, generator=rng),
        }
        generator = {"w": torch.randn(self.size, generator=rng)}
        slots = {"critic_slots": self.critic.init(critic), "generator_slots": self.generator.init(generator)}
        return trees.joined(critic=critic, generator=generator, **slots, round=torch.tensor(0))

    def round(self, state: Tree) -> tuple[Tree, Answered]:
        rng = torch.Generator().manual_seed(1000 * self.seed + int(state["round"]))
        noise, shares = torch.randn(self.fakes, self.size, generator=rng), torch.rand(self.fakes, generator=rng)
        critic, generator = trees.part(state, "critic"), trees.part(state, "generator")
        message = trees.joined(critic=critic, fakes=generator["w"] + 0.1 * noise, shares=shares)
        return message, lambda mean: self._stepped(state, mean, noise)

    def _stepped(self, state: Tree, mean: Tree, noise: torch.Tensor) -> Tree:
        critic, critic_slots = self.critic(trees.part(state, "critic"), mean, trees.part(state, "critic_slots"))
        generator, slots = trees.part(state, "generator"), trees.part(state, "generator_slots")
        done = state["round"] + 1
        if done % self.steps == 0:
            slope = torch.func.grad(lambda made: -_score(critic, made["w"] + 0.1 * noise).mean())(generator)
            generator, slots = self.generator(generator, slope, slots)
        both = {"critic": critic, "critic_slots": critic_slots, "generator": generator, "generator_slots": slots}
        return trees.joined(**both, round=done)

    def result(self, state: Tree) -> Tree:
        return trees.part(state, "generator")


def _score(critic: Tree, x: torch.Tensor) -> torch.Tensor:
    return torch.tanh(x @ critic["hidden"]) @ critic["score"]


def _penalized(critic: Tree, real: torch.Tensor, fakes: torch.Tensor, mixed: torch.Tensor) -> torch.Tensor:
    """WGAN-GP's loss of one example."""
    slopes = torch.func.vmap(torch.func.grad(lambda x: _score(critic, x)))(mixed)
    return _score(critic, fakes).mean() - _score(critic, real) + (slopes.norm(dim=1) - 1).square().mean()


# Cases


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
    algorithm: Algorithm
    population: Population
    bound: L2Clip | UpdateAndBit | RowClip | TopKSign
    sampling: Everyone | Poisson | Balanced = EVERYONE
    unit: Unit = Unit.USER
    releases: int = 3
    exact: bool = False  # whether vectorised is one by one to the last bit

    def plan(self, noise: float = 0.0) -> Plan:
        return Plan(
            sampling=self.sampling,
            bound=self.bound,
            noise_multiplier=noise,
            releases=self.releases,
            expected_contributors=3.0,
            unit=self.unit,
        )

    def memory(self) -> Memory:
        return Memory(self.algorithm.memory(len(self.population)))

    def curator(
        self, *, noise=0.0, engine=None, memory=None, ledger=None, position=0, account=None
    ) -> SimulatedCurator:
        return SimulatedCurator(
            self.population,
            self.plan(noise),
            ledger=ledger or Ledger(),
            account=account or Account(run="run", population=self.population.name, simulated=True),
            randomness=Randomness.seeded(1),
            engine=engine or Engine(chunk=4),
            examples_per_unit=self.algorithm.examples_per_unit,
            memory=self.memory() if memory is None else memory,
            position=position,
        )

    def message(self) -> Tree:
        return self.algorithm.round(self.algorithm.start())[0]


COUNTS = np.array([3, 1, 0, 4, 2, 6, 1])


def vectors(counts=COUNTS):
    x = np.random.default_rng(0).standard_normal((counts.sum(), 4)).astype(np.float32)
    return Population.from_arrays("vectors", {"x": x}, counts)


def pictures():
    x = 0.3 * np.random.default_rng(0).standard_normal((COUNTS.sum(), 1, 8, 8))
    return Population.from_arrays("pictures", {"x": x.astype(np.float32)}, COUNTS)


def labelled():
    """One label is none of two classes."""
    named = pictures()
    return dataclasses.replace(named, columns=named.columns | {"y": np.arange(COUNTS.sum(), dtype=np.int64) % 3})


def speakers(width=8):
    words = (["the", "cat", "a", "it is", "cats"] * 5)[: COUNTS.sum()]
    x = np.array([spelled(word, width) for word in words], np.int16)
    return Population.from_arrays("speakers", {"x": x}, COUNTS)


def sentences():
    known = Vocabulary(words=("the", "cat", "is"), provenance="")
    spoken = (["the cat is", "a cat , a cat", "it is 10", "the the", ""] * 5)[: COUNTS.sum()]
    x = np.stack([as_symbols(sentence.split(), known, width=24) for sentence in spoken])
    return Population.from_arrays("sentences", {"x": x}, COUNTS)


def judged():
    accuracy = np.array([0.2, 0.9, -1.0, 1.0, 0.0, 0.55, 0.5])
    return Population.from_arrays("judged", {"accuracy": accuracy}, np.array([1, 1, 1, 1, 1, 1, 1]))


GAN = Gan(generator=ConvGenerator(side=8, latent=4, hidden=12, widths=(8, 4)), critic=ConvCritic(side=8, widths=(4, 6)))
LANGUAGE = LanguageModel(symbols=259, start=256, end=257, embedding=3, units=4, projection=2)
TRAINING = {"batch": 2, "local_steps": 2, "local_rate": 0.05}
ADAPTIVE = AdaptiveClip(start=0.05, bit=0.3)


def asked(network, clip=None, **training):
    """As a recipe would ask: with more than any one algorithm uses."""
    everything = {"epochs": 1, "decay": 0.01, "generator_steps": 2, "generator_batch": 4} | TRAINING
    everything |= {"server": Sgd(rate=1.0, momentum=0.5), "generator": Adam(rate=0.01)}
    plan = Plan(
        sampling=Everyone(), bound=L2Clip(norm=1.0), noise_multiplier=2.0, releases=1, expected_contributors=50.0
    )
    return Asked(network=network, plan=plan, training=everything | training, adaptive=clip, seed=3)


CASES = {
    "fedavg-gan": lambda: Case(
        algorithm=FedAvgGan.configured(asked(GAN)), population=pictures(), bound=L2Clip(norm=0.05)
    ),
    "fedavg-gan, adaptive clip, examples": lambda: Case(
        algorithm=FedAvgGan.configured(asked(GAN, ADAPTIVE)),
        population=pictures().by_example(),
        bound=UpdateAndBit(bit=0.3),
        sampling=Poisson(rate=0.5, population=17),
        unit=Unit.EXAMPLE,
    ),
    "fedavg": lambda: Case(
        algorithm=FedAvg.configured(asked(LANGUAGE, epochs=2)), population=speakers(), bound=L2Clip(norm=0.1)
    ),
    "ngrams": lambda: Case(
        algorithm=Ngrams.configured(asked({"order": 2})),
        population=speakers(),
        bound=L2Clip(norm=1.0),
        releases=1,
        exact=True,
    ),
    "look": lambda: Case(
        algorithm=OneLook.configured(asked(Psi(body=Moments(side=8, frequencies=6), classes=2, examples=3))),
        population=labelled(),
        bound=L2Clip(norm=1.0),
        releases=1,
    ),
    "look, embedding, examples": lambda: Case(
        algorithm=OneLook.configured(asked(Psi(body=Embedding(side=8, features=18), several=False, examples=1))),
        population=pictures().by_example(),
        bound=L2Clip(norm=1.0),
        unit=Unit.EXAMPLE,
        releases=1,
    ),
    "look, text": lambda: Case(
        algorithm=OneLook.configured(asked(TextPsi(examples=3))),
        population=sentences(),
        bound=L2Clip(norm=1.0),
        releases=1,
    ),
    "head-count": lambda: Case(
        algorithm=HeadCount(), population=pictures(), bound=L2Clip(norm=1.0), releases=1, exact=True
    ),
    "accuracy-histogram": lambda: Case(
        algorithm=AccuracyHistogram(bins=5), population=judged(), bound=L2Clip(norm=1.0), releases=1, exact=True
    ),
    "heavy-words": lambda: Case(
        algorithm=HeavyWords(noise=0.05, width=8, most=12, alphabet=tuple(b"acehist "), examples_per_unit=4),
        population=speakers(),
        bound=L2Clip(norm=1.0),
        releases=5,
        exact=True,
    ),
    "a critic of every example": lambda: Case(
        algorithm=Critics(seed=2),
        population=vectors().by_example(),
        bound=RowClip(row_norm=0.2, rows=3),
        sampling=Poisson(rate=0.6, population=17, capped=False),
        unit=Unit.EXAMPLE,
    ),
    "votes in turn": lambda: Case(
        algorithm=Votes(seed=2),
        population=vectors(),
        bound=TopKSign(k=2, rows=3),
        sampling=Balanced(groups=2, population=7),
        exact=True,
    ),
    "one look at silos": lambda: Case(
        algorithm=Look(), population=vectors(), bound=L2Clip(norm=0.7), unit=Unit.SILO, releases=1
    ),
    "critic steps, a batch of examples each": lambda: Case(
        algorithm=CriticSteps(seed=2),
        population=vectors().by_example(),
        bound=L2Clip(norm=0.5),
        sampling=Poisson(rate=0.6, population=17, capped=False),
        unit=Unit.EXAMPLE,
    ),
}


@pytest.fixture(params=CASES)
def case(request):
    return CASES[request.param]()


def test_every_algorithm_has_a_case():
    assert {made().algorithm.name for made in CASES.values()} >= QUESTIONS.keys() >= ALGORITHMS.keys()


# Checks


def everything(case):
    return np.arange(len(case.population))


def all_rows(memory):
    return memory.rows(np.arange(len(memory)))


def total(case, population, cohort, engine):
    """The exact sum over a cohort, without noise, and what everybody keeps after it."""
    curator = dataclasses.replace(case, population=population).curator(engine=engine)
    work = Work(contribute=case.algorithm.contribute, bound=case.bound, grid=case.plan().grid)
    message = case.message()
    shape = curator._shape(work, message)
    question = Question(name="label", work=work, message=message, cohort=np.asarray(cohort), shape=shape)
    return trees.scaled(curator._bounded_sum(question), case.plan().grid), all_rows(curator.memory)


def alone(case, unit):
    """What one unit sends, before it is bounded, and what it keeps."""
    shown = trees.row(case.population.take(np.array([unit]), case.algorithm.examples_per_unit), 0)
    return case.algorithm.contribute(case.message(), shown, trees.row(all_rows(case.memory()), unit))


def check_vectorised_is_one_by_one(case, folder):
    oracle, kept = total(case, case.population, everything(case), Engine(run=one_by_one))
    assert trees.norm(oracle) > 0.1 * case.bound.norm
    for engine in (Engine(chunk=1), Engine(chunk=3), Engine(chunk=100), Engine(chunk=3, workers=2)):
        summed, memory = total(case, case.population, everything(case), engine)
        if case.exact:
            assert same(summed, oracle), "not to the last bit"
            assert same(memory, kept), "not to the last bit"
        torch.testing.assert_close(summed, oracle, rtol=1e-4, atol=1e-6 * case.bound.norm)
        torch.testing.assert_close(memory, kept, rtol=1e-4, atol=1e-6)


def check_a_resumed_run_ends_the_same(case, folder):
    ledger, algorithm = Ledger(), case.algorithm
    curator, states = case.curator(noise=0.1, ledger=ledger), [algorithm.start()]
    curator.memory.save(folder / "0")
    for state in algorithm.run(curator, states[0]):
        curator.memory.save(folder / str(len(states)))
        states.append(state)
    charged = ledger.spent("run", "train")
    assert charged == len(states) - 1
    for position, state in enumerate(states):
        opened = Memory.open(folder / str(position))
        resumed = case.curator(noise=0.1, ledger=ledger, memory=opened, position=position)
        later = list(algorithm.run(resumed, state))
        assert len(later) == len(states) - 1 - position
        assert all(map(same, later, states[position + 1 :])), "another end"
        assert resumed.memory.name == curator.memory.name
    assert ledger.spent("run", "train") == charged


def check_rounds_are_counted_and_end_with_the_plan(case, folder):
    algorithm, curator = case.algorithm, case.curator(noise=0.1)
    states = [algorithm.start(), *algorithm.run(curator, algorithm.start())]
    for number, state in enumerate(states):
        assert state["round"].dtype == torch.int64
        assert state["round"].shape == ()
        assert int(state["round"]) == number, "miscounted"
    assert 1 < len(states) <= case.releases + 1
    assert curator.remaining == case.releases + 1 - len(states), "asked more or less than it yielded"
    assert list(algorithm.run(case.curator(position=case.releases), algorithm.start())) == []
    assert algorithm.result(states[-1]) is not None


LOUD = [1e30, math.inf, math.nan]


def hostile(case, unit, loudness):
    """The same population, but for one unit whose values are as bad as their type allows."""
    columns = {name: column.copy() for name, column in case.population.columns.items()}
    for column in columns.values():
        whole = column.dtype.kind in "iu"
        worst = np.iinfo(column.dtype).max if whole else loudness
        column[case.population._row_numbers(unit)] = worst
    return dataclasses.replace(case.population, columns=columns)


def check_nobody_however_loud_moves_the_sum_or_anybody_elses_memory(case, folder):
    unit = 3
    others = np.delete(everything(case), unit)
    for engine in (Engine(run=one_by_one), Engine(chunk=3)):
        for loudness in LOUD:
            loud = hostile(case, unit, loudness)
            whole, kept = total(case, loud, everything(case), engine)
            without, kept_without = total(case, loud, others, engine)
            moved = [leaf - without[name] for name, leaf in whole.items()]  # exact: whole steps of the grid
            square = math.fsum(value**2 for leaf in moved for value in leaf.flatten().tolist())
            assert square <= case.plan().sensitivity ** 2, "beyond the bound"
            at = torch.from_numpy(others)
            assert all(torch.equal(leaf[at], kept_without[name][at]) for name, leaf in kept.items())


def check_memory_is_fresh_for_every_unit_and_comes_back(case, folder):
    assert Memory(case.algorithm.memory(5)).name == Memory(case.algorithm.memory(5)).name, "not the same twice"
    memory = case.memory()
    assert len(memory) == (len(case.population) if memory else 0), "not a row each"
    curator = case.curator(memory=memory)
    next(case.algorithm.run(curator, case.algorithm.start()))
    memory.save(folder / "kept")
    for scratch in (None, folder / "scratch"):
        opened = Memory.open(folder / "kept", scratch=scratch)
        assert opened.name == memory.name
        assert same(all_rows(opened), all_rows(memory))
    if memory:
        assert memory.name != case.memory().name
        assert not same(all_rows(memory), all_rows(case.memory())), "nothing was kept"


def check_a_question_is_rebuilt_from_plain_settings(case, folder):
    algorithm = case.algorithm
    values = json.loads(json.dumps(settings(algorithm), allow_nan=False))
    kind = type(algorithm)
    again = rebuilt(algorithm.name, values) if kind in QUESTIONS.values() else from_settings(kind, values)
    assert again == algorithm
    assert type(again) is kind
    assert _named(algorithm.contribute) == _named(algorithm.contribute), "cannot be named"
    assert _named(again.contribute) == _named(algorithm.contribute)


def check_who_holds_nothing_sends_what_a_blank_unit_sends(case, folder):
    """And whatever lies in a place that is not taken is not looked at."""
    blank = case.population.blank(case.algorithm.examples_per_unit)
    kept = trees.row(all_rows(case.memory()), 0)
    message = case.message()
    expected, remembered = case.algorithm.contribute(message, blank, kept)
    for junk in (1, 7):
        filled = {name: torch.full_like(leaf, junk) for name, leaf in blank.items()} | {"mask": blank["mask"]}
        sent, new = case.algorithm.contribute(message, filled, kept)
        torch.testing.assert_close(sent, expected, rtol=0, atol=0)
        torch.testing.assert_close(new, remembered, rtol=0, atol=0)
    for unit in np.flatnonzero(case.population.counts == 0):
        sent, new = alone(case, unit)
        torch.testing.assert_close(sent, expected, rtol=0, atol=0)
        torch.testing.assert_close(new, remembered, rtol=0, atol=0)


def check_contributions_follow_from_their_arguments_and_no_seed(case, folder):
    algorithm, message = case.algorithm, case.message()
    shown = trees.row(case.population.take(np.array([3]), algorithm.examples_per_unit), 0)
    kept = trees.row(all_rows(case.memory()), 3)
    others = [algorithm, algorithm, algorithm.seedless]
    if "seed" in {field.name for field in dataclasses.fields(algorithm)}:
        others.append(dataclasses.replace(algorithm, seed=algorithm.seed + 7))
    first = algorithm.contribute(message, shown, kept)
    for other in others:
        given = {"message": dict(message), "shown": dict(shown), "kept": dict(kept)}
        before = trees.digest(trees.joined(**given))
        sent, new = other.contribute(*given.values())
        assert trees.digest(trees.joined(**given)) == before, "it changed what it was given"
        assert same(sent, first[0]), "not the same twice"
        assert same(new, first[1]), "not the same twice"
        assert _named(other.contribute) == _named(algorithm.contribute), "another question"
        assert other.seedless == algorithm.seedless
        assert hash(other.seedless) == hash(algorithm.seedless)


CHECKS = {name.removeprefix("check_"): check for name, check in globals().items() if name.startswith("check_")}


@pytest.mark.parametrize("check", CHECKS)
def test_an_algorithm_keeps_its_contract(case, check, tmp_path):
    """The checks assert; that each of them can is shown below."""
    assert CHECKS[check](case, tmp_path) is None


def test_silos_are_visited_one_after_the_other_and_the_price_is_that_of_the_dearest():
    """Each trains on what the one before left, on its own account, with batches of its own examples."""
    first, ledger = CASES["critic steps, a batch of examples each"](), Ledger()
    dear = dataclasses.replace(first, population=vectors(COUNTS[::-1]).by_example(), releases=4)
    state, left = first.algorithm.start(), []
    for name, silo in (("one", first), ("two", dear)):
        account = Account(run=f"run/{name}", population="silos", partition="silos", part=name, simulated=True)
        curator = silo.curator(noise=1.0, ledger=ledger, account=account)
        *_, state = silo.algorithm.run(curator, state | {"round": torch.tensor(0)})
        left.append(state)
    assert not same(*(first.algorithm.result(state) for state in left))
    spendings = [ledger.spending(f"run/{name}") for name in ("one", "two")]
    alone = [guarantee([spending], 1e-5).epsilon for spending in spendings]
    assert alone[0] < alone[1]
    assert guarantee(spendings, 1e-5).epsilon == alone[1]


# Each check can fail

HEARD: list[torch.Tensor] = []


def unheard_of(self, state):
    """Draws from what no state holds."""
    HEARD.append(torch.zeros(()))
    message, answered = Critics.round(self, state)
    return message | {"fakes": message["fakes"] + len(HEARD)}, answered


def never_counted(self, state):
    message, answered = Critics.round(self, state)
    return message, lambda mean: answered(mean) | {"round": state["round"]}


def counting_calls(self, message, examples, memory):
    """Under vmap it is called once for all."""
    message["fakes"] += 0.1
    return Critics.slopes(self, message, examples, memory)


def passing_on(self, message, examples, memory):
    """Sends what it heard before, so that one unit speaks through another."""
    HEARD.append(examples["x"].sum())
    before = HEARD[-2] if len(HEARD) > 1 else torch.zeros(())
    sent, memory = Critics.slopes(self, message, examples, memory)
    return {"slopes": sent["slopes"] + torch.nan_to_num(before, 1e3)}, memory


def ignoring_the_mask(self, message, examples, memory):
    return Critics.slopes(self, message, examples | {"mask": torch.ones_like(examples["mask"])}, memory)


def drawing(self, message, examples, memory):
    sent, memory = Critics.slopes(self, message, examples, memory)
    return {"slopes": sent["slopes"] + torch.randn(self.fakes, self.size)}, memory


def drawn_afresh(self, units):
    return Critics.memory(self, units) | {"critic": torch.randn(units, self.size)}


def broken(**changes):
    """The critics, with something else in place of a part of them."""
    kind = dataclasses.dataclass(frozen=True, kw_only=True)(type("Broken", (Critics,), changes))
    return dataclasses.replace(CASES["a critic of every example"](), algorithm=kind(seed=2))


class Named:
    """A setting that is no plain value."""


# For every check, algorithms that must not pass it, and what is then said.
BROKEN = {
    "vectorised_is_one_by_one": [(lambda: broken(slopes=counting_calls), "not close")],
    "a_resumed_run_ends_the_same": [(lambda: broken(round=unheard_of), "All 3 releases of the plan are spent")],
    "rounds_are_counted_and_end_with_the_plan": [
        (lambda: broken(round=never_counted), "miscounted"),
        (lambda: broken(run=lambda self, curator, state: iter([state])), "miscounted"),
        (lambda: broken(run=lambda self, *given: [*Critics.run(self, *given)][:1]), "asked more or less"),
    ],
    "nobody_however_loud_moves_the_sum_or_anybody_elses_memory": [
        (lambda: broken(slopes=passing_on), "beyond the bound"),
    ],
    "memory_is_fresh_for_every_unit_and_comes_back": [
        (lambda: broken(memory=lambda self, units: Critics.memory(self, units - 1)), "not a row each"),
        (lambda: broken(memory=drawn_afresh), "not the same twice"),
        (lambda: broken(slopes=lambda self, *given: (Critics.slopes(self, *given)[0], given[2])), "nothing was kept"),
    ],
    "a_question_is_rebuilt_from_plain_settings": [
        (lambda: broken(rate=Named(), __annotations__={"rate": Named}), "Expected plain settings"),
        (lambda: broken(rates=(0.1, 0.2), __annotations__={"rates": tuple[float, float]}), "Expected another kind"),
        (lambda: broken(contribute=property(lambda self: lambda *given: self.slopes(*given))), "cannot be named"),
    ],
    "who_holds_nothing_sends_what_a_blank_unit_sends": [(lambda: broken(slopes=ignoring_the_mask), "not equal")],
    "contributions_follow_from_their_arguments_and_no_seed": [
        (lambda: broken(slopes=drawing), "not the same twice"),
        (lambda: broken(slopes=counting_calls), "changed what it was given"),
        (lambda: broken(contribute=property(lambda self: self.slopes)), "another question"),
    ],
}


@pytest.mark.parametrize(("check", "number"), [(name, at) for name, made in BROKEN.items() for at in range(len(made))])
def test_a_broken_algorithm_is_noticed(check, number, tmp_path):
    HEARD.clear()
    made, reason = BROKEN[check][number]
    with pytest.raises((AssertionError, ValueError, PrivacySpentError), match=reason):
        CHECKS[check](made(), tmp_path)


def test_every_check_is_seen_to_fail():
    assert BROKEN.keys() == CHECKS.keys()


# Rebuilt from what may have come from anywhere


def gan_settings(**changes):
    return settings(FedAvgGan.configured(asked(GAN))) | changes


REFUSED = {
    "an unknown name": ("os.system", {}, "Expected one of the algorithms fedavg-gan, fedavg, ngrams"),
    "a setting too many": ("head-count", {"seed": 1}, "Expected the settings"),
    "a setting too few": ("ngrams", {"noise": 1.0}, "Expected the settings noise, order"),
    "no settings": ("ngrams", [], "Expected the settings"),
    "a text for a number": (
        "fedavg-gan",
        gan_settings(batch="32"),
        "Expected another kind of value for FedAvgGan.batch",
    ),
    "true for a number": ("fedavg-gan", gan_settings(batch=True), "FedAvgGan.batch"),
    "a fraction for a whole number": ("fedavg-gan", gan_settings(batch=1.5), "FedAvgGan.batch"),
    "a number that is none": ("fedavg-gan", gan_settings(decay=math.nan), "FedAvgGan.decay"),
    "a number too large": ("fedavg-gan", gan_settings(seed=2**70), "FedAvgGan.seed"),
    "an optimizer of no kind": ("fedavg-gan", gan_settings(server={"rate": 1.0}), "FedAvgGan.server"),
    "an optimizer of another kind": ("fedavg-gan", gan_settings(server={"kind": "Path"}), "FedAvgGan.server"),
    "a network in place of an optimizer": (
        "fedavg-gan",
        gan_settings(server=gan_settings()["gan"]),
        "FedAvgGan.server",
    ),
    "a list of texts": (
        "heavy-words",
        settings(HeavyWords(noise=1.0)) | {"alphabet": ["a"]},
        "HeavyWords.alphabet",
    ),
    "settings that make no sense": ("ngrams", settings(Ngrams(noise=1.0)) | {"order": 9}, "Expected order=9"),
}


@pytest.mark.parametrize("wrong", REFUSED)
def test_settings_that_are_not_ours_are_refused(wrong):
    name, values, expected = REFUSED[wrong]
    with pytest.raises(ValueError, match=expected):
        rebuilt(name, values)


def test_either_optimizer_comes_back_as_itself():
    for server in (Sgd(rate=1), Sgd(rate=0.5, momentum=0.9, nesterov=True), Adam(rate=0.1)):
        algorithm = FedAvg.configured(asked(LANGUAGE, server=server))
        again = rebuilt("fedavg", json.loads(json.dumps(settings(algorithm))))
        assert again.server == server
        assert type(again.server) is type(server)
        assert _named(again.contribute) == _named(algorithm.contribute)


# What a recipe can name


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_trainable_algorithm_says_what_it_needs(name):
    kind = ALGORITHMS[name]
    assert kind.name == name
    assert kind.media
    assert set(kind.media) <= MEDIA.keys()
    assert kind.options <= {field.name for field in dataclasses.fields(kind)}


def test_algorithms_take_from_a_recipe_what_they_use_and_nothing_else():
    gan, text, grams = (
        ALGORITHMS[name].configured(asked(network, ADAPTIVE, local_rate=0.125))
        for name, network in (("fedavg-gan", GAN), ("fedavg", LANGUAGE), ("ngrams", {"order": 2}))
    )
    shared = {"batch": 2, "local_steps": 2, "local_rate": 0.125, "server": Sgd(rate=1.0, momentum=0.5)}
    shared |= {"adaptive": ADAPTIVE, "seed": 3}
    alone = {"decay": 0.01, "generator_steps": 2, "generator_batch": 4, "generator": Adam(rate=0.01)}
    assert gan == FedAvgGan(gan=GAN, **alone, **shared)
    assert text == FedAvg(model=LANGUAGE, epochs=1, **shared)
    assert grams == Ngrams(noise=2.0 / 50.0, order=2)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Twin(LanguageModel):
    """Of the same sizes, and another network all the same."""


def test_two_networks_of_the_same_sizes_are_two_questions():
    twin = Twin(**dataclasses.asdict(LANGUAGE))
    names = [_named(FedAvg.configured(asked(network)).contribute) for network in (LANGUAGE, twin)]
    assert names[0] != names[1]
