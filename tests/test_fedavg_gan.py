"""DP-FedAvg-GAN: gradients written out by hand, resumable states, optimizers, and whether it learns."""

import dataclasses
import inspect
import itertools
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from toys import same

from fedlens.algorithms import Adam, AdaptiveClip, FedAvgGan, Sgd
from fedlens.core import trees
from fedlens.curators.engine import Engine
from fedlens.curators.protocol import PrivacySpentError
from fedlens.data.population import Population
from fedlens.ledger import Ledger
from fedlens.models import convolutions
from fedlens.models import gan as networks
from fedlens.models.gan import ConvCritic, ConvGenerator, Gan
from fedlens.privacy import Everyone, L2Clip, Plan, Poisson, UpdateAndBit

# The critic's gradient

CRITICS = [
    ConvCritic(side=8, widths=(4,)),
    ConvCritic(side=8, widths=(4, 6)),
    ConvCritic(side=8, widths=(3, 5), hidden=7),
    ConvCritic(side=12, channels=3, widths=(3, 4), hidden=5),
    ConvCritic(side=16, channels=2, widths=(2, 3, 4)),
]
DEVICES = [
    "cpu",
    pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")),
]


def score(critic, params, images):
    """The critic in plain words: nothing shared with the code under test."""
    x = images
    for layer in range(len(critic.widths)):
        x = F.conv2d(x, params[f"conv{layer}.weight"], params[f"conv{layer}.bias"], stride=2, padding=1)
        x = F.leaky_relu(x, 0.01)
    x = x.flatten(1)
    if critic.hidden:
        x = F.leaky_relu(x @ params["hidden.weight"].T, 0.01)
    return (x @ params["score.weight"].T + params["score.bias"])[:, 0]


def wgan_loss(params, critic, real, fake, mixed, weight, penalty):
    slopes = torch.func.grad(lambda x: score(critic, params, x).sum())(mixed)
    size = (slopes.flatten(1).square().sum(1) + 1e-10).sqrt()
    terms = score(critic, params, fake) - score(critic, params, real) + penalty * (size - 1) ** 2
    return (weight * terms).sum()


def batch(critic, rows=5, seed=0, dtype=torch.float64):
    rng = torch.Generator().manual_seed(seed)
    shape = (rows, critic.channels, critic.side, critic.side)
    real, fake = (torch.randn(shape, generator=rng, dtype=dtype) for _ in range(2))
    share = torch.rand(rows, 1, 1, 1, generator=rng, dtype=dtype)
    weight = torch.rand(rows, generator=rng, dtype=dtype)
    return real, fake, real + share * (fake - real), weight


def parameters(critic, kind, dtype=torch.float64):
    rng = torch.Generator().manual_seed(1)
    params = {}
    for name, leaf in critic.init(0).items():
        noisy = leaf.to(dtype) + 0.2 * torch.randn(leaf.shape, generator=rng, dtype=dtype)
        if kind == "fresh":
            params[name] = leaf.to(dtype)
        elif kind == "sparse":
            params[name] = noisy * (torch.rand(leaf.shape, generator=rng) > 0.4)
        elif kind == "dead channel" and name.startswith("conv0"):
            params[name] = torch.cat([torch.zeros_like(noisy[:1]), noisy[1:]])
        elif kind == "no score" and name == "score.weight":
            params[name] = torch.zeros_like(noisy)
        else:
            params[name] = noisy
    return params


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind", ["fresh", "noisy", "sparse", "dead channel", "no score"])
@pytest.mark.parametrize("critic", CRITICS, ids=repr)
def test_the_critics_gradient_equals_double_backward(critic, kind, device):
    params = trees.moved(parameters(critic, kind), device)
    examples = [leaf.to(device) for leaf in batch(critic)]
    expected = torch.func.grad(wgan_loss)(params, critic, *examples, 10.0)
    found = critic.gradient(params, *examples, 10.0)
    assert found.keys() == params.keys()
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-11)
    assert trees.norm(found) > 1e-3


@pytest.mark.parametrize("critic", CRITICS, ids=repr)
def test_the_critics_gradient_has_its_two_terms(critic):
    """Linear in the weight of every example, and without a penalty the plain difference of scores."""
    params, (real, fake, mixed, weight) = parameters(critic, "noisy"), batch(critic)
    plain = torch.func.grad(lambda p: (weight * (score(critic, p, fake) - score(critic, p, real))).sum())(params)
    torch.testing.assert_close(critic.gradient(params, real, fake, mixed, weight, 0.0), plain, rtol=1e-9, atol=1e-11)
    single = [critic.gradient(params, real[[i]], fake[[i]], mixed[[i]], weight[[i]], 10.0) for i in range(len(weight))]
    total = {name: sum(tree[name] for tree in single) for name in params}
    torch.testing.assert_close(critic.gradient(params, real, fake, mixed, weight, 10.0), total, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("device", DEVICES)
def test_the_critics_gradient_can_be_vectorised_over_users_with_critics_of_their_own(device):
    critic = CRITICS[2]
    params = trees.stacked([parameters(critic, kind) for kind in ("fresh", "noisy", "sparse")])
    examples = [torch.stack(leaves) for leaves in zip(*(batch(critic, seed=seed) for seed in range(3)), strict=True)]
    params, examples = trees.moved(params, device), [leaf.to(device) for leaf in examples]
    together = torch.func.vmap(lambda p, *e: critic.gradient(p, *e, 10.0))(params, *examples)
    for unit in range(3):
        alone = critic.gradient(trees.row(params, unit), *(leaf[unit] for leaf in examples), 10.0)
        torch.testing.assert_close(trees.row(together, unit), alone, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("critic", CRITICS, ids=repr)
def test_the_critics_score_is_the_plain_network(critic):
    params, (real, *_) = parameters(critic, "noisy"), batch(critic)
    torch.testing.assert_close(critic.score(params, real), score(critic, params, real), rtol=1e-9, atol=1e-11)


@pytest.fixture
def by_products(monkeypatch):
    """What a GPU would compute, on a CPU: matrix products in place of every convolution."""
    monkeypatch.setattr(networks, "Convolutions", networks.Products)
    monkeypatch.setattr(networks.F, "conv2d", lambda *_, **__: pytest.fail("a convolution instead of products"))


@pytest.mark.parametrize("shape", [(2, 3, 8, 8), (1, 1, 2, 2), (3, 2, 4, 12), (2, 5, 14, 6)])
def test_matrix_products_equal_convolutions(shape):
    rng = torch.Generator().manual_seed(0)
    x = torch.randn(shape, generator=rng, dtype=torch.float64)
    kernel = torch.randn(4, shape[1], 4, 4, generator=rng, dtype=torch.float64)
    bias = torch.randn(4, generator=rng, dtype=torch.float64)
    y = torch.randn(F.conv2d(x, kernel, stride=2, padding=1).shape, generator=rng, dtype=torch.float64)

    def everything(ops):
        entered, wanted = ops.entered(x), ops.entered(y)
        down, seen = ops.down(entered, kernel, bias)
        return {
            "down": ops.flat(down),
            "down without bias": ops.flat(ops.down(entered, kernel)[0]),
            "up": ops.flat(ops.up(wanted, kernel, entered)),
            "kernel": ops.kernel_gradient(seen, wanted, kernel),
            "channels": ops.channel_sum(wanted),
            "there and back": ops.flat(ops.unflat(ops.flat(wanted), wanted)),
        }

    expected = everything(convolutions.Convolutions())
    for products in (convolutions.Products(), convolutions.Patches()):
        torch.testing.assert_close(everything(products), expected, rtol=1e-10, atol=1e-11)


@pytest.mark.parametrize("critic", CRITICS, ids=repr)
def test_the_gradient_by_matrix_products_equals_the_one_by_convolutions(critic, request):
    params, examples = parameters(critic, "noisy"), batch(critic)
    convolved = critic.gradient(params, *examples, 10.0)
    request.getfixturevalue("by_products")
    torch.testing.assert_close(critic.gradient(params, *examples, 10.0), convolved, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("critic", CRITICS, ids=repr)
def test_the_gradient_by_matrix_products_can_be_vectorised(critic, by_products):
    params = trees.stacked([parameters(critic, kind) for kind in ("fresh", "noisy", "sparse")])
    examples = [torch.stack(leaves) for leaves in zip(*(batch(critic, seed=seed) for seed in range(3)), strict=True)]
    together = torch.func.vmap(lambda p, *e: critic.gradient(p, *e, 10.0))(params, *examples)
    for unit in range(3):
        alone = critic.gradient(trees.row(params, unit), *(leaf[unit] for leaf in examples), 10.0)
        torch.testing.assert_close(trees.row(together, unit), alone, rtol=1e-9, atol=1e-11)


# What a user sends


@pytest.fixture
def algorithm(gan):
    return FedAvgGan(gan=gan, batch=4, local_steps=3, local_rate=0.01, generator_batch=8, generator_steps=2)


@pytest.fixture
def message(algorithm):
    return algorithm.message(algorithm.start(), torch.Generator().manual_seed(0))


def images(count, seed=0):
    return torch.rand(count, 1, 8, 8, generator=torch.Generator().manual_seed(seed)) * 2 - 1


def test_an_update_is_plain_sgd_on_the_wgan_loss(algorithm, message):
    """Three batches of 4, 4 and 2 examples, each against as many of the fakes in the message."""
    x, critic = images(10), trees.part(message, "critic")
    params = dict(critic)
    for step, real in enumerate(x.split(4)):
        fake, share = message["fakes"][step, : len(real)], message["shares"][step, : len(real), None, None, None]
        weight = torch.full((len(real),), 1 / len(real))
        mixed = (1 - share) * real + share * fake
        slope = torch.func.grad(wgan_loss)(params, algorithm.gan.critic, real, fake, mixed, weight, 10.0)
        params = trees.add(params, slope, -algorithm.local_rate)
    update, memory = algorithm.critic_update(message, {"x": x, "mask": torch.ones(10)}, {})
    assert memory == {}
    torch.testing.assert_close(update, trees.add(params, critic, -1.0), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("junk", [0.0, 1.0, -77.0, 1e4])
@pytest.mark.parametrize("count", [1, 3, 4, 5, 11])
def test_masked_examples_change_nothing(algorithm, message, count, junk):
    x, mask = torch.full((12, 1, 8, 8), junk), torch.zeros(12)
    x[:count], mask[:count] = images(count), 1.0
    padded, _ = algorithm.critic_update(message, {"x": x, "mask": mask}, {})
    alone, _ = algorithm.critic_update(message, {"x": images(count), "mask": torch.ones(count)}, {})
    torch.testing.assert_close(padded, alone, rtol=1e-4, atol=1e-7)
    assert trees.norm(padded) > 1e-4


def test_a_user_without_examples_sends_exactly_zero(algorithm, message):
    update, _ = algorithm.critic_update(message, {"x": torch.zeros(12, 1, 8, 8), "mask": torch.zeros(12)}, {})
    assert all(leaf.count_nonzero() == 0 for leaf in update.values())
    assert update.keys() == trees.part(message, "critic").keys()


def test_a_batch_without_examples_moves_nothing_even_under_decay(algorithm, message):
    """Otherwise the width of the padding, which is about the other users, would matter."""
    decaying = dataclasses.replace(algorithm, decay=0.1)
    mask = (torch.arange(12) < 3).float()
    wide, _ = decaying.critic_update(message, {"x": images(12), "mask": mask}, {})
    narrow, _ = decaying.critic_update(message, {"x": images(12)[:4], "mask": mask[:4]}, {})
    torch.testing.assert_close(wide, narrow, rtol=1e-4, atol=1e-7)


def test_decay_pulls_the_critic_towards_zero(algorithm, message):
    examples = {"x": images(4), "mask": torch.ones(4)}
    plain, _ = algorithm.critic_update(message, examples, {})
    decayed, _ = dataclasses.replace(algorithm, decay=0.5).critic_update(message, examples, {})
    pulled = trees.scaled(trees.part(message, "critic"), -0.5 * algorithm.local_rate)
    torch.testing.assert_close(trees.add(decayed, plain, -1.0), pulled, rtol=1e-3, atol=1e-6)


def test_bytes_and_floats_are_the_same_pictures(algorithm, message):
    pixels = (torch.arange(4 * 64) % 256).to(torch.uint8).view(4, 1, 8, 8)
    mask = torch.ones(4)
    left, _ = algorithm.critic_update(message, {"x": pixels, "mask": mask}, {})
    right, _ = algorithm.critic_update(message, {"x": pixels / 127.5 - 1, "mask": mask}, {})
    torch.testing.assert_close(left, right, rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize(("clip", "sign"), [(1e-6, -1.0), (1e3, 1.0)])
def test_an_adaptive_update_comes_in_units_of_the_clip_and_says_whether_it_fits(algorithm, message, clip, sign):
    adaptive = dataclasses.replace(algorithm, adaptive=AdaptiveClip(start=1.0, bit=0.25))
    examples = {"x": images(4), "mask": torch.ones(4)}
    plain, _ = algorithm.critic_update(message, examples, {})
    scaled, _ = adaptive.critic_update(message | {"clip": torch.tensor(clip)}, examples, {})
    assert scaled.pop("within").item() == 0.25 * sign
    torch.testing.assert_close(trees.scaled(scaled, clip), plain, rtol=1e-4, atol=1e-9)


def test_everyone_gets_the_same_fakes_and_they_fit_the_batches(algorithm, message):
    assert message["fakes"].shape == (3, 4, 1, 8, 8)
    assert message["shares"].shape == (3, 4)
    assert message["fakes"].abs().max() <= 1
    again = algorithm.message(algorithm.start(), torch.Generator().manual_seed(0))
    assert trees.digest(again) == trees.digest(message)


# The generator


def test_normalised_activations_use_the_statistics_of_the_batch():
    rng = torch.Generator().manual_seed(0)
    for shape in ((50, 3), (7, 3, 4, 4)):
        x, shift = 5 + 3 * torch.randn(shape, generator=rng), torch.tensor([0.1, -0.2, 0.3])
        dims = [d for d in range(x.dim()) if d != 1]
        mean, variance = x.mean(dims, keepdim=True), x.var(dims, correction=0, keepdim=True)
        column = shift.view(1, 3, *[1] * (x.dim() - 2))
        expected = ((x - mean) / (variance + 1e-3).sqrt() + column).clamp(min=0)
        torch.testing.assert_close(networks._normalised(x, shift), expected, rtol=1e-4, atol=1e-5)


def test_images_depend_on_their_batch_and_not_on_the_scale_of_the_first_layer(gan):
    params = gan.generator.init(0)
    latents = gan.latents(64, rng=torch.Generator().manual_seed(0))
    made = gan.generator.images(params, latents)
    assert made.shape == (64, 1, 8, 8)
    assert made.abs().max() <= 1
    scaled = params | {"dense0.weight": 1e3 * params["dense0.weight"]}
    torch.testing.assert_close(gan.generator.images(scaled, latents), made, rtol=0, atol=0.02)
    assert not torch.allclose(gan.generator.images(params, latents[:8]), made[:8], atol=1e-3)


def test_samples_come_from_full_batches_whatever_their_number(gan):
    params = gan.generator.init(0)
    many, few = gan.drawn(params, 70, seed=3, batch=32)[0], gan.drawn(params, 5, seed=3, batch=32)[0]
    assert many.shape == (70, 1, 8, 8)
    assert torch.equal(many[:5], few)
    assert not torch.equal(many[:5], gan.drawn(params, 5, seed=4, batch=32)[0])


def test_the_papers_networks_have_the_papers_sizes():
    paper = Gan.paper()
    assert sum(leaf.numel() for leaf in paper.critic.init(0).values()) == pytest.approx(6.55e6, rel=0.01)
    made = paper.generator.images(paper.generator.init(0), paper.latents(2, rng=torch.Generator().manual_seed(0)))
    assert made.shape == (2, 1, 28, 28)
    small = Gan.small(side=8)
    assert small.drawn(small.generator.init(0), 3, seed=0, batch=4)[0].shape == (3, 1, 8, 8)


def test_a_side_the_critic_cannot_halve_is_refused_by_name():
    with pytest.raises(ValueError, match="side=10 divisible by 4"):
        ConvCritic(side=10, widths=(4, 4))


@pytest.mark.parametrize("side", [3, 9, 10, 28, 31])
def test_a_generator_draws_images_of_any_side(side):
    generator = ConvGenerator(side=side, latent=4, hidden=8, widths=(8, 4, 4))
    made = generator.images(generator.init(0), torch.randn(5, 4, generator=torch.Generator().manual_seed(0)))
    assert made.shape == (5, 1, side, side)
    assert made[..., -1].std() > 0  # to the edge


# Optimizers

PAIRS = [
    (Sgd(rate=0.02), lambda p: torch.optim.SGD(p, lr=0.02)),
    (Sgd(rate=0.02, momentum=0.9), lambda p: torch.optim.SGD(p, lr=0.02, momentum=0.9)),
    (Sgd(rate=0.02, momentum=0.9, nesterov=True), lambda p: torch.optim.SGD(p, 0.02, 0.9, nesterov=True)),
    (Adam(rate=0.05), lambda p: torch.optim.Adam(p, lr=0.05)),
    (Adam(rate=0.05, beta1=0.5, beta2=0.9), lambda p: torch.optim.Adam(p, lr=0.05, betas=(0.5, 0.9))),
]


@pytest.mark.parametrize(("ours", "theirs"), PAIRS, ids=[repr(ours) for ours, _ in PAIRS])
def test_optimizers_equal_the_well_known_ones(ours, theirs):
    def loss(params):
        return (params["a"] ** 2 * torch.tensor([1.0, 5.0])).sum() + (params["a"].sum() - params["b"]) ** 2

    start = {"a": torch.tensor([2.0, -1.0]), "b": torch.tensor(0.5)}
    params, slots = start, ours.init(start)
    reference = {name: leaf.clone().requires_grad_() for name, leaf in start.items()}
    optimizer = theirs(list(reference.values()))
    for _ in range(40):
        params, slots = ours(params, torch.func.grad(loss)(params), slots)
        optimizer.zero_grad()
        loss(reference).backward()
        optimizer.step()
        torch.testing.assert_close(params, {k: v.detach() for k, v in reference.items()}, rtol=1e-4, atol=1e-5)
    assert loss(params) < 0.3 * loss(start)


def test_optimizers_are_pure():
    for step in (Sgd(rate=0.1, momentum=0.9), Adam(rate=0.1)):
        params, gradient = {"w": torch.ones(2)}, {"w": torch.ones(2)}
        slots = step.init(params)
        before = {name: leaf.clone() for name, leaf in slots.items()}
        once, twice = step(params, gradient, slots), step(params, gradient, slots)
        assert trees.digest(once[0]) == trees.digest(twice[0])
        assert trees.digest(slots) == trees.digest(before)
        assert params["w"].tolist() == [1.0, 1.0]


# Resuming

ROUNDS = 4
SETTINGS = {
    "fixed clip": {},
    "momentum": {"server": Sgd(rate=1.0, momentum=0.9), "generator": Sgd(rate=0.01, momentum=0.5, nesterov=True)},
    "Adam": {"server": Adam(rate=0.01), "generator": Adam(rate=0.01, beta1=0.5)},
    "adaptive clip": {"adaptive": AdaptiveClip(start=0.05, bit=0.3), "server": Sgd(rate=1.0, momentum=0.9)},
}


@pytest.fixture(params=SETTINGS)
def training(request, curator_of, users, algorithm):
    """The algorithm and a way to open its curator at any position."""
    chosen = dataclasses.replace(algorithm, **SETTINGS[request.param])
    plan = Plan(
        sampling=Poisson(rate=0.6, population=len(users)),
        bound=UpdateAndBit(bit=0.3) if chosen.adaptive else L2Clip(norm=0.05),
        noise_multiplier=0.3,
        releases=ROUNDS,
        expected_contributors=6.0,
    )

    def opened(ledger, position=0):
        few = {"examples_per_unit": 5}  # so that subsets are drawn as well
        return curator_of(users, plan, ledger=ledger, position=position, engine=Engine(chunk=4), **few)

    return chosen, opened


@pytest.mark.parametrize("crash", range(ROUNDS + 1))
def test_a_run_resumed_from_any_state_ends_in_exactly_the_same_state(training, crash):
    chosen, opened = training
    whole = [chosen.start(), *chosen.run(opened(Ledger()), chosen.start())]
    ledger = Ledger()
    first = [chosen.start(), *itertools.islice(chosen.run(opened(ledger), chosen.start()), crash)]
    assert same(first[-1], whole[crash])
    assert ledger.spent("run", "train") == crash
    last = [first[-1], *chosen.run(opened(ledger, position=crash), first[-1])][-1]
    assert same(last, whole[-1])
    assert not same(whole[0], whole[-1])
    assert ledger.spent("run", "train") == ROUNDS


@pytest.mark.parametrize("crash", range(ROUNDS))
def test_a_run_that_lost_states_already_paid_for_repeats_them_for_free(training, crash):
    chosen, opened = training
    ledger = Ledger()
    states = [chosen.start(), *chosen.run(opened(ledger), chosen.start())]
    again = [states[crash], *chosen.run(opened(ledger, position=crash), states[crash])]
    assert len(again) == ROUNDS + 1 - crash
    assert all(same(left, right) for left, right in zip(again, states[crash:], strict=True))
    assert ledger.spent("run", "train") == ROUNDS


def test_a_crash_between_charge_and_release_costs_nothing_more(training, users, monkeypatch):
    chosen, opened = training
    whole = [chosen.start(), *chosen.run(opened(Ledger()), chosen.start())]
    ledger = Ledger()
    states = [chosen.start(), *itertools.islice(chosen.run(opened(ledger), chosen.start()), 1)]
    with monkeypatch.context() as broken:
        broken.setattr(Population, "take", lambda *_, **__: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            next(chosen.run(opened(ledger, position=1), states[1]))
    assert ledger.spent("run", "train") == 2
    assert same(list(chosen.run(opened(ledger, position=1), states[1]))[-1], whole[-1])
    assert ledger.spent("run", "train") == ROUNDS


def test_a_run_that_went_another_way_is_charged_for_it(training):
    """Two different second rounds are two releases, and the plan has no room for both and the rest."""
    chosen, opened = training
    ledger = Ledger()
    states = list(chosen.run(opened(ledger), chosen.start()))
    strayed = states[0] | {"critic/score.bias": states[0]["critic/score.bias"] + 1.0}
    with pytest.raises(PrivacySpentError):
        next(chosen.run(opened(ledger, position=1), strayed))


def test_states_count_their_rounds_and_hold_only_tensors(training):
    chosen, opened = training
    states = list(chosen.run(opened(Ledger()), chosen.start()))
    assert [int(state["round"]) for state in states] == [1, 2, 3, 4]
    assert all(isinstance(leaf, torch.Tensor) for leaf in states[-1].values())
    assert states[-1].keys() == chosen.start().keys()


def test_the_algorithm_never_sees_a_population(algorithm):
    assert set(inspect.signature(algorithm.run).parameters) == {"curator", "state"}


# Learning


def crowd(brightness, count=16, each=8):
    """Users whose pictures are all about as bright, with a stripe so that they are not flat."""
    rng = np.random.default_rng(0)
    x = brightness + 0.1 * rng.standard_normal((count * each, 1, 8, 8))
    return Population.from_arrays("crowd", {"x": x.astype(np.float32)}, np.full(count, each))


@pytest.mark.parametrize("brightness", [0.6, -0.6], ids=["bright users", "dark users"])
@pytest.mark.parametrize("adaptive", [False, True], ids=["fixed clip", "adaptive clip"])
def test_samples_take_on_the_brightness_of_the_users(curator_of, gan, brightness, adaptive):
    algorithm = FedAvgGan(
        gan=gan,
        batch=4,
        local_steps=2,
        local_rate=0.05,
        generator=Sgd(rate=0.02),
        generator_steps=1,
        generator_batch=16,
        adaptive=AdaptiveClip(start=0.1, bit=0.2) if adaptive else None,
    )
    bound = UpdateAndBit(bit=0.2) if adaptive else L2Clip(norm=1.0)
    plan = Plan(sampling=Everyone(), bound=bound, noise_multiplier=0.0, releases=70, expected_contributors=16.0)
    curator = curator_of(crowd(brightness), plan, engine=Engine(chunk=16))
    states = [algorithm.start(), *algorithm.run(curator, algorithm.start())]

    def mean(state):
        return gan.drawn(trees.part(state, "generator"), 64, seed=0)[0].mean().item()

    assert abs(mean(states[0]) - brightness) > 0.3
    assert np.mean([mean(state) for state in states[-20::4]]) == pytest.approx(brightness, abs=0.15)


@pytest.mark.parametrize("start", [0.002, 5.0])
@pytest.mark.parametrize("quantile", [0.3, 0.8])
def test_the_adaptive_clip_finds_the_quantile_of_update_norms(curator_of, algorithm, users, start, quantile):
    """Without noise and with the critic held still, so that the norms stay where they are."""
    still = dataclasses.replace(
        algorithm,
        server=Sgd(rate=0.0),
        generator_steps=0,
        adaptive=AdaptiveClip(start=start, bit=0.5, quantile=quantile, rate=0.5),
    )
    plan = Plan(
        sampling=Everyone(),
        bound=UpdateAndBit(bit=0.5),
        noise_multiplier=0.0,
        releases=60,
        expected_contributors=float(len(users)),
    )
    states = list(still.run(curator_of(users, plan, engine=Engine(chunk=11)), still.start()))
    clip = np.exp(np.mean([math.log(state["clip"]) for state in states[-10:]]))
    message = still.message(states[-1], torch.Generator().manual_seed(0))
    norms = []
    for unit in range(len(users)):
        update, _ = algorithm.critic_update(message, trees.row(users.take(np.array([unit])), 0), {})
        norms.append(float(trees.norm(update)))
    low, high = np.quantile(norms, [max(0.0, quantile - 0.2), min(1.0, quantile + 0.2)])
    assert low <= clip <= high
    assert abs(math.log(start / clip)) > 1  # it had a way to go


def test_the_clip_follows_the_share_of_updates_within():
    follow = AdaptiveClip(start=1.0, bit=0.5, quantile=0.5, rate=0.2)
    clip = torch.tensor(2.0)
    for mean_bit, expected in ((0.5, 2 * math.exp(-0.1)), (-0.5, 2 * math.exp(0.1)), (0.0, 2.0)):
        assert follow.followed(clip, torch.tensor(mean_bit)).item() == pytest.approx(expected, rel=1e-6)
    # Noise may push the mean bit anywhere; the clip then moves no faster than by unanimous bits.
    assert follow.followed(clip, torch.tensor(99.0)).item() == pytest.approx(2 * math.exp(-0.1), rel=1e-6)
