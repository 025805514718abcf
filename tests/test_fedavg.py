"""DP-FedAvg: what a user sends, what the server makes of it, resumable states, many seeds at once, and learning."""

import dataclasses
import inspect
import itertools
import math

import numpy as np
import pytest
import torch
import toys
from toys import same

from fedlens.algorithms import Adam, AdaptiveClip, FedAvg, FedAvgGan, Sgd, run_together
from fedlens.core import trees
from fedlens.core.randomness import Randomness
from fedlens.curators.contributions import one_by_one
from fedlens.curators.engine import Engine
from fedlens.curators.together import Together
from fedlens.data.population import Population
from fedlens.ledger import Ledger
from fedlens.models.lstm import LanguageModel
from fedlens.privacy import L2Clip, Poisson, UpdateAndBit

# A toy language: words over a, b and c that only ever step from a letter to the next one or stop

A, B, C, START, END = range(5)
PLAIN = Sgd(rate=1.0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Bigram:
    """The simplest language model: a table of logits, one row for every symbol before."""

    symbols: int

    def init(self, seed):
        return {"table": 0.1 * torch.randn(self.symbols, self.symbols, generator=torch.Generator().manual_seed(seed))}

    def loss(self, params, sequences, mask):
        before, after = sequences[:, :-1].long(), sequences[:, 1:].long()
        there = (after >= 0) * mask[:, None]
        scores = params["table"].log_softmax(1)[before.clamp(min=0), after.clamp(min=0)]
        return -(there * scores).sum() / there.sum().clamp(min=1)


MODELS = {
    "bigram": Bigram(symbols=5),
    "lstm": LanguageModel(symbols=5, start=START, end=END, embedding=3, units=4, projection=2),
}
WORDS = [[A, B, C], [B, C], [C], [A, B], [A]]


def sequences(words, width=6):
    rows = np.full((len(words), width), -1, np.int16)
    for row, word in zip(rows, words, strict=True):
        row[: len(word) + 2] = [START, *word, END]
    return rows


def speakers(counts, seed=0, words=WORDS):
    """Users with so many words each; every user has favourites."""
    rng = np.random.default_rng(seed)
    said = [
        words[place]
        for count in counts
        for place in rng.choice(len(words), count, p=rng.dirichlet(np.full(len(words), 0.7)))
    ]
    return Population.from_arrays("speakers", {"x": sequences(said)}, np.array(counts))


@pytest.fixture(scope="session")
def crowd():
    """Eleven users, two of them without a word, some with more words than are ever used."""
    return speakers([3, 0, 9, 4, 2, 6, 1, 5, 14, 0, 3])


@pytest.fixture(params=MODELS)
def model(request):
    return MODELS[request.param]


@pytest.fixture(params=["fixed clip", "adaptive clip"])
def adaptive(request):
    return AdaptiveClip(start=0.2, bit=0.3) if request.param == "adaptive clip" else None


def plan(algorithm, *, norm=0.2, noise=0.0, releases=1, expected=5.0):
    bound = UpdateAndBit(bit=algorithm.adaptive.bit) if algorithm.adaptive else L2Clip(norm=norm)
    return toys.plan(releases, noise, expected, bound=bound)


def held(words, width=0):
    """One user's examples as a curator hands them out: padded with zeros, and a mask that says so."""
    rows = sequences(words)
    x = np.zeros((max(width, len(rows)), rows.shape[1]), rows.dtype)
    x[: len(rows)] = rows
    return {"x": torch.from_numpy(x), "mask": (torch.arange(len(x)) < len(rows)).float()}


def minimised(model, params, batches, rate):
    """Plain SGD by torch's own optimizer and backward pass: nothing shared with the code under test."""
    params = {name: leaf.clone().requires_grad_() for name, leaf in params.items()}
    optimizer = torch.optim.SGD(params.values(), lr=rate)
    for words in batches:
        optimizer.zero_grad()
        model.loss(params, torch.from_numpy(sequences(words)), torch.ones(len(words))).backward()
        optimizer.step()
    return {name: leaf.detach() for name, leaf in params.items()}


# What a user sends


@pytest.mark.parametrize("epochs", [1, 3])
@pytest.mark.parametrize("count", [1, 2, 3, 5, 6])
def test_an_update_is_plain_sgd_over_the_batches(model, count, epochs):
    algorithm = FedAvg(model=model, batch=2, local_steps=3, epochs=epochs, local_rate=0.3)
    words = (WORDS * 2)[:count]
    batches = [words[at : at + 2] for at in range(0, count, 2)] * epochs
    message = algorithm.message(algorithm.start())
    expected = trees.add(minimised(model, model.init(0), batches, 0.3), model.init(0), -1.0)
    for width in (0, 6):  # as it is, and filled up
        update, memory = algorithm.update(message, held(words, width), {})
        assert memory == {}
        torch.testing.assert_close(update, expected, rtol=1e-4, atol=1e-6)
    assert trees.norm(update) > 0.01


def test_of_more_examples_than_fit_the_first_are_used(model):
    algorithm = FedAvg(model=model, batch=2, local_steps=2)
    message = algorithm.message(algorithm.start())
    many, _ = algorithm.update(message, held(WORDS * 3), {})
    few, _ = algorithm.update(message, held(WORDS[:4]), {})
    torch.testing.assert_close(many, few, rtol=0, atol=0)


@pytest.mark.parametrize("junk", [0, 3, -1])
def test_masked_examples_change_nothing(model, junk):
    algorithm = FedAvg(model=model, batch=2, local_steps=3)
    message, examples = algorithm.message(algorithm.start()), held(WORDS[:3], 6)
    clean, _ = algorithm.update(message, held(WORDS[:3]), {})
    examples["x"][3:] = junk
    dirty, _ = algorithm.update(message, examples, {})
    torch.testing.assert_close(dirty, clean, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("words", [[], [[]]], ids=["nothing", "an empty word that is masked"])
def test_a_user_without_examples_sends_exactly_zero(model, adaptive, words):
    algorithm = FedAvg(model=model, batch=2, local_steps=3, epochs=2, adaptive=adaptive)
    examples = held(words, 6) | {"mask": torch.zeros(6)}
    update, _ = algorithm.update(algorithm.message(algorithm.start()), examples, {})
    assert update.keys() == model.init(0).keys() | ({"within"} if adaptive else set())
    assert all(leaf.count_nonzero() == 0 for name, leaf in update.items() if name != "within")


def test_users_without_examples_do_not_move_the_mean(curator_of, model, crowd):
    algorithm = FedAvg(model=model, batch=2, local_steps=3)
    speaking = crowd.select("speaking", users=lambda user: len(user["x"]) > 0)
    assert len(speaking) == len(crowd) - 2
    answers = [
        curator_of(people, plan(algorithm), engine=Engine(chunk=4), examples_per_unit=14).noisy_mean(
            algorithm.update, algorithm.message(algorithm.start())
        )
        for people in (crowd, speaking)
    ]
    torch.testing.assert_close(*answers, rtol=1e-5, atol=1e-7)
    silent = dataclasses.replace(crowd, starts=crowd.starts[[1, 9]], counts=crowd.counts[[1, 9]])
    nothing = curator_of(silent, plan(algorithm)).noisy_mean(algorithm.update, algorithm.message(algorithm.start()))
    assert trees.norm(nothing) == 0 < trees.norm(answers[0])


@pytest.mark.parametrize(("clip", "sign"), [(1e-6, -1.0), (1e3, 1.0)])
def test_an_adaptive_update_comes_in_units_of_the_clip_and_says_whether_it_fits(model, clip, sign):
    plain = FedAvg(model=model, batch=2)
    adaptive = dataclasses.replace(plain, adaptive=AdaptiveClip(start=clip, bit=0.25))
    update, _ = plain.update(plain.message(plain.start()), held(WORDS), {})
    scaled, _ = adaptive.update(adaptive.message(adaptive.start()), held(WORDS), {})
    assert scaled.pop("within").item() == 0.25 * sign
    torch.testing.assert_close(trees.scaled(scaled, clip), update, rtol=1e-4, atol=1e-9)


def test_the_message_holds_the_model_and_the_clip_and_nothing_else(model, adaptive):
    algorithm = FedAvg(model=model, adaptive=adaptive)
    expected = {f"model/{name}" for name in model.init(0)} | ({"clip"} if adaptive else set())
    assert algorithm.message(algorithm.start()).keys() == expected


# Through a curator


@pytest.mark.parametrize("engine", [Engine(chunk=3), Engine(chunk=100), Engine(chunk=4, workers=2)], ids=repr)
def test_vectorised_equals_one_by_one(curator_of, model, adaptive, crowd, engine):
    algorithm = FedAvg(model=model, batch=2, local_steps=3, epochs=2, adaptive=adaptive)
    message, width = algorithm.message(algorithm.start()), algorithm.examples_per_unit
    means = [
        curator_of(crowd, plan(algorithm), engine=kind, examples_per_unit=width).noisy_mean(algorithm.update, message)
        for kind in (Engine(run=one_by_one), engine)
    ]
    torch.testing.assert_close(*means, rtol=1e-4, atol=1e-6)
    assert trees.norm({name: leaf for name, leaf in means[0].items() if name != "within"}) > 0.01


def test_an_update_can_be_vectorised(model, adaptive, crowd):
    """Whatever cannot is quietly computed one by one, which the test above would not notice."""
    algorithm = FedAvg(model=model, batch=2, local_steps=3, epochs=2, adaptive=adaptive)
    message, examples = algorithm.message(algorithm.start()), crowd.take(np.arange(len(crowd)), 6)
    together, _ = torch.func.vmap(algorithm.update, in_dims=(None, 0, None))(message, examples, {})
    for unit in range(len(crowd)):
        alone, _ = algorithm.update(message, trees.row(examples, unit), {})
        torch.testing.assert_close(trees.row(together, unit), alone, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("loudness", [0.5, 1e3, 1e38])
def test_nobody_moves_the_mean_by_more_than_the_clip_over_the_divisor(curator_of, model, adaptive, crowd, loudness):
    algorithm = FedAvg(model=model, batch=2, local_steps=3, local_rate=loudness, adaptive=adaptive)
    promised, message = plan(algorithm, norm=0.05), algorithm.message(algorithm.start())
    whole = curator_of(crowd, promised, engine=Engine(chunk=4)).noisy_mean(algorithm.update, message)
    moves = []
    for absent in range(len(crowd)):
        kept = np.delete(np.arange(len(crowd)), absent)
        others = dataclasses.replace(crowd, starts=crowd.starts[kept], counts=crowd.counts[kept])
        options = {"engine": Engine(chunk=4), "examples_per_unit": crowd.most_examples}
        mean = curator_of(others, promised, **options).noisy_mean(algorithm.update, message)
        moves.append(float(trees.norm(trees.add(whole, mean, -1.0))))
    limit = promised.bound.norm / promised.expected_contributors
    assert max(moves) <= limit * (1 + 1e-5)
    assert max(moves) > 0.99 * limit or loudness == 1e38  # the bound is met, or all is silenced


def test_one_user_without_noise_is_centralised_sgd(curator_of, model):
    """One batch, a clip that nobody meets, the server's step 1: the model moves as if it were here."""
    rounds, words = 6, WORDS[:4]
    alone = Population.from_arrays("alone", {"x": sequences(words)}, np.array([len(words)]))
    algorithm = FedAvg(model=model, batch=4, local_steps=1, local_rate=0.4, server=PLAIN)
    curator = curator_of(alone, plan(algorithm, norm=1e3, releases=rounds, expected=1.0))
    states = list(algorithm.run(curator, algorithm.start()))
    for number, state in enumerate(states, 1):
        expected = minimised(model, model.init(0), [words] * number, 0.4)
        # The curator cuts to a grid of 2^-24 of the bound: of 1000, to 6e-5 a round.
        torch.testing.assert_close(trees.part(state, "model"), expected, rtol=1e-3, atol=1e-3)
    assert trees.norm(trees.add(expected, model.init(0), -1.0)) > 0.1


@pytest.mark.parametrize(
    ("server", "theirs"),
    [
        (Sgd(rate=0.7, momentum=0.9, nesterov=True), lambda p: torch.optim.SGD(p, 0.7, 0.9, nesterov=True)),
        (Sgd(rate=0.7, momentum=0.9), lambda p: torch.optim.SGD(p, 0.7, 0.9)),
        (Adam(rate=0.05), lambda p: torch.optim.Adam(p, lr=0.05)),
    ],
    ids=["Nesterov", "momentum", "Adam"],
)
def test_the_server_steps_along_the_mean_update(curator_of, crowd, adaptive, server, theirs):
    """Against torch's optimizers, fed with the answers of a curator of their own."""
    algorithm = FedAvg(model=MODELS["bigram"], batch=2, server=server, adaptive=adaptive)
    ours, theirs_curator = (curator_of(crowd, plan(algorithm, releases=4), engine=Engine(chunk=11)) for _ in range(2))
    reference = {name: leaf.clone().requires_grad_() for name, leaf in algorithm.model.init(0).items()}
    optimizer, clip = theirs(list(reference.values())), torch.tensor(0.2)
    for state in algorithm.run(ours, algorithm.start()):
        message = trees.joined(model={name: leaf.detach() for name, leaf in reference.items()}) | {"clip": clip}
        mean = theirs_curator.noisy_mean(algorithm.update, message)
        for name, leaf in reference.items():
            leaf.grad = -mean[name] * (clip if adaptive else 1.0)
        optimizer.step()
        clip = state.get("clip", clip)
        expected = {name: leaf.detach() for name, leaf in reference.items()}
        torch.testing.assert_close(trees.part(state, "model"), expected, rtol=1e-4, atol=1e-5)


# Resuming

ROUNDS = 3
SETTINGS = {
    "plain": {"server": PLAIN},
    "the paper's": {},
    "Adam": {"server": Adam(rate=0.01)},
    "adaptive clip": {"adaptive": AdaptiveClip(start=0.05, bit=0.3)},
}


@pytest.mark.parametrize("crash", range(ROUNDS + 1))
@pytest.mark.parametrize("settings", SETTINGS)
def test_a_run_resumed_from_any_state_ends_in_exactly_the_same_state(curator_of, model, crowd, settings, crash):
    algorithm = FedAvg(model=model, batch=2, **SETTINGS[settings])
    promised = dataclasses.replace(
        plan(algorithm, noise=0.3, releases=ROUNDS), sampling=Poisson(rate=0.6, population=len(crowd))
    )

    def opened(ledger, position=0):
        few = {"examples_per_unit": algorithm.examples_per_unit}  # so that subsets are drawn as well
        return curator_of(crowd, promised, ledger=ledger, position=position, engine=Engine(chunk=4), **few)

    whole = [algorithm.start(), *algorithm.run(opened(Ledger()), algorithm.start())]
    ledger = Ledger()
    first = [algorithm.start(), *itertools.islice(algorithm.run(opened(ledger), algorithm.start()), crash)]
    last = [first[-1], *algorithm.run(opened(ledger, crash), first[-1])][-1]
    assert same(first[-1], whole[crash])
    assert same(last, whole[-1])
    assert not same(whole[0], whole[-1])
    assert ledger.spent("run", "train") == ROUNDS
    assert [int(state["round"]) for state in whole] == list(range(ROUNDS + 1))
    assert last.keys() == algorithm.start().keys()


def test_the_algorithm_never_sees_a_population():
    assert set(inspect.signature(FedAvg.run).parameters) == {"self", "curator", "state"}


# Many seeds at once


@pytest.mark.parametrize("chunk", [2, 100])
def test_many_seeds_together_are_each_alone(curator_of, model, adaptive, chunk):
    """With noise in the first round, without it in all: the name of a question, and its noise, hang on every bit.

    So does a choice among a user's examples: here nobody has too many.
    """
    few = speakers([3, 0, 4, 2, 1, 4, 3])
    one = FedAvg(model=model, batch=2, server=Sgd(rate=1.0, momentum=0.5), adaptive=adaptive)
    members = [dataclasses.replace(one, seed=seed) for seed in (3, 4, 5)]
    groups = [few, *(dataclasses.replace(few, starts=few.starts[k:], counts=few.counts[k:]) for k in (4, 6))]

    def curators(noise):
        options = {"engine": Engine(chunk=2), "examples_per_unit": one.examples_per_unit}
        promised = plan(one, noise=noise, releases=3)
        return [
            curator_of(group, promised, run=f"run {n}", randomness=Randomness.seeded(n), **options)
            for n, group in enumerate(groups)
        ]

    for noise, compared in ((0.5, 1), (0.0, 3)):
        ours = list(run_together(members, Together(curators(noise), chunk), [member.start() for member in members]))
        theirs = [list(m.run(curator, m.start())) for m, curator in zip(members, curators(noise), strict=True)]
        assert len(ours) == 3
        for number, place in itertools.product(range(compared), range(3)):
            torch.testing.assert_close(ours[number][place], theirs[place][number], rtol=1e-3, atol=1e-4)
    assert not torch.allclose(*(next(iter(trees.part(state, "model").values())) for state in ours[-1][:2]), atol=1e-3)


def test_the_seed_decides_about_the_first_weights_and_not_about_what_is_asked(model):
    members = [FedAvg(model=model, seed=seed) for seed in (3, 3, 4)]
    first, again, other = (member.start() for member in members)
    assert same(first, again)
    assert not same(first, other)
    assert members[0].seedless == members[2].seedless


def test_members_of_different_kinds_are_refused(curator_of, gan, crowd):
    one = FedAvg(model=MODELS["bigram"], batch=2)
    for other in (dataclasses.replace(one, epochs=2), FedAvgGan(gan=gan)):
        together = Together([curator_of(crowd, plan(one)) for _ in range(2)], 4)
        with pytest.raises(ValueError, match="seed only"):
            next(run_together([one, other], together, [one.start(), other.start()]))


# Learning


def loss(model, state, words):
    params = trees.part(state, "model")
    with torch.no_grad():
        return model.loss(params, torch.from_numpy(sequences(words)), torch.ones(len(words))).item()


SERVERS = {
    "plain": Sgd(rate=2.0),
    "Nesterov": Sgd(rate=0.5, momentum=0.8, nesterov=True),
    "Adam": Adam(rate=0.1),
}


@pytest.mark.parametrize(("model", "server"), [*itertools.product(["bigram"], SERVERS), ("lstm", "Nesterov")])
def test_without_noise_the_language_is_learnt(curator_of, model, adaptive, server):
    """Down to what nobody can foresee: of five words, each as likely as the next, 1.61 nats a word."""
    settings = {"batch": 5, "local_steps": 1, "local_rate": 1.0, "server": SERVERS[server], "adaptive": adaptive}
    algorithm = FedAvg(model=MODELS[model], **settings)
    people = Population.from_arrays("people", {"x": sequences(WORDS * 6)}, np.full(6, 5))
    promised = plan(algorithm, norm=1.0, releases=120, expected=6.0)
    start = algorithm.start()
    *_, end = algorithm.run(curator_of(people, promised, engine=Engine(chunk=6)), start)
    targets = np.mean([len(word) + 1 for word in WORDS])
    floor = math.log(5) / targets
    assert loss(algorithm.model, start, WORDS) > 1.4
    assert floor - 1e-3 < loss(algorithm.model, end, WORDS) < floor + 0.12


@pytest.mark.parametrize("start", [0.002, 20.0])
@pytest.mark.parametrize("quantile", [0.3, 0.8])
def test_the_adaptive_clip_finds_the_quantile_of_update_norms(curator_of, start, quantile):
    """Without noise and with the model held still, so that the norms stay where they are."""
    people = speakers([1, 2, 3, 4, 5, 6, 7, 8, 1, 2], seed=1)
    follow = AdaptiveClip(start=start, bit=0.5, quantile=quantile, rate=0.5)
    still = FedAvg(model=MODELS["bigram"], batch=2, local_steps=4, server=Sgd(rate=0.0), adaptive=follow)
    promised = plan(still, releases=60, expected=float(len(people)))
    states = list(still.run(curator_of(people, promised, engine=Engine(chunk=10)), still.start()))
    clip = math.exp(np.mean([math.log(state["clip"]) for state in states[-10:]]))
    plain = dataclasses.replace(still, adaptive=None)
    everyone = people.take(np.arange(len(people)))
    updates = [plain.update(plain.message(states[-1]), trees.row(everyone, unit), {})[0] for unit in range(len(people))]
    low, high = np.quantile([float(trees.norm(update)) for update in updates], [quantile - 0.2, quantile + 0.2])
    assert low <= clip <= high
    assert abs(math.log(start / clip)) > 1  # it had a way to go


on_a_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@on_a_gpu
def test_a_gpu_gives_the_same_answers(curator_of, model, adaptive, crowd):
    algorithm = FedAvg(model=model, batch=2, adaptive=adaptive)
    ends = {}
    for device in ("cpu", "cuda"):
        curator = curator_of(crowd, plan(algorithm, releases=3), engine=Engine(chunk=4, device=device))
        *_, ends[device] = algorithm.run(curator, trees.moved(algorithm.start(), device))
    torch.testing.assert_close(trees.moved(ends["cuda"], "cpu"), ends["cpu"], rtol=1e-3, atol=1e-4)
