"""The language models against a plain loop over rows and steps, finite differences and exhaustive enumeration."""

import itertools
import math

import pytest
import torch

from fedlens.core import trees
from fedlens.models import lstm
from fedlens.models.lstm import LanguageModel

TINY = LanguageModel(symbols=6, start=4, end=5, embedding=3, units=4, projection=2, layers=2)
KINDS = {
    "projected": TINY,
    "one layer": LanguageModel(symbols=6, start=4, end=5, embedding=3, units=4, projection=2),
    "unprojected": LanguageModel(symbols=6, start=4, end=5, embedding=3, units=4, projection=0, layers=2),
    "tied": LanguageModel(symbols=6, start=4, end=5, embedding=3, units=5, projection=3, layers=2, tied=True),
    "tied, unprojected": LanguageModel(symbols=6, start=4, end=5, embedding=4, units=4, projection=0, tied=True),
}
ROWS = torch.tensor([[4, 0, 2, 5, -1, -1], [4, 3, 3, 1, 0, 2], [4, 5, -1, -1, -1, -1], [4, 1, 2, 0, 1, 5]])
SPELLED = LanguageModel(symbols=4, start=2, end=3, embedding=3, units=5, projection=3)  # an alphabet of 0 and 1

every_kind = pytest.mark.parametrize("model", KINDS.values(), ids=KINDS.keys())


def weights_of(model, seed=0):
    """In double precision, and with biases that are not zero."""
    rng = torch.Generator().manual_seed(seed)
    params = {name: leaf.double() for name, leaf in model.init(seed).items()}
    return {name: leaf + 0.3 * torch.randn(leaf.shape, generator=rng).double() for name, leaf in params.items()}


# The twin: numbers, loops and formulas


def sigmoid(x):
    return 1 / (1 + torch.exp(-x))


def twin_log_probabilities(model, params, symbols):
    """The log-probabilities of the next symbol, after each of the given ones."""
    cells = [torch.zeros(model.units).double() for _ in range(model.layers)]
    shown = [torch.zeros(model.projection or model.units).double() for _ in range(model.layers)]
    answers = []
    for symbol in symbols:
        x = params["embedding"][symbol]
        for i in range(model.layers):
            gates = params[f"layer{i}.input"] @ x + params[f"layer{i}.recurrent"] @ shown[i] + params[f"layer{i}.bias"]
            forget = sigmoid(gates[: model.units])
            output = sigmoid(gates[model.units : 2 * model.units])
            candidate = torch.tanh(gates[2 * model.units :])
            cells[i] = forget * cells[i] + (1 - forget) * candidate
            shown[i] = output * torch.tanh(cells[i])
            if model.projection:
                shown[i] = params[f"layer{i}.projection"] @ shown[i]
            x = shown[i]
        logits = (params["embedding"] if model.tied else params["output.weight"]) @ x + params["output.bias"]
        answers.append(logits - torch.log(torch.exp(logits).sum()))
    return answers


def twin_log_probability(model, params, row):
    symbols = [symbol for symbol in row if symbol >= 0]
    answers = twin_log_probabilities(model, params, symbols[:-1])
    return sum(answer[symbol] for answer, symbol in zip(answers, symbols[1:], strict=True))


def twin_loss(model, params, sequences, mask):
    rows = [row for row, there in zip(sequences.tolist(), mask, strict=True) if there]
    total = sum(twin_log_probability(model, params, row) for row in rows)
    return -total / sum(len([symbol for symbol in row if symbol >= 0]) - 1 for row in rows)


@every_kind
def test_loss_and_probability_are_those_of_the_plain_loop(model):
    params = weights_of(model)
    expected = torch.stack([twin_log_probability(model, params, row) for row in ROWS.tolist()])
    torch.testing.assert_close(model.log_probability(params, ROWS), expected)
    mask = torch.tensor([1.0, 1.0, 0.0, 1.0])
    torch.testing.assert_close(model.loss(params, ROWS, mask), twin_loss(model, params, ROWS, mask))


@every_kind
def test_the_gradient_is_that_of_the_plain_loop(model):
    params, mask = weights_of(model), torch.tensor([1.0, 1.0, 0.0, 1.0])
    expected = torch.func.grad(lambda params: twin_loss(model, params, ROWS, mask))(params)
    torch.testing.assert_close(torch.func.grad(model.loss)(params, ROWS, mask), expected)


@every_kind
def test_the_gradient_is_that_of_finite_differences(model):
    params, mask, step = weights_of(model, 3), torch.ones(4), 1e-5
    gradient = torch.func.grad(model.loss)(params, ROWS, mask)
    for name, leaf in params.items():
        for place in range(0, leaf.numel(), 7):
            losses = []
            for sign in (1, -1):
                moved = leaf.clone()
                moved.view(-1)[place] += sign * step
                losses.append(model.loss(params | {name: moved}, ROWS, mask))
            slope = (losses[0] - losses[1]) / (2 * step)
            torch.testing.assert_close(gradient[name].view(-1)[place], slope, rtol=1e-5, atol=1e-9)


@every_kind
def test_a_compiler_would_see_the_same_function(model, monkeypatch):
    """Compilers differentiate the loop themselves."""
    params, mask = weights_of(model), torch.ones(4)
    written_out = torch.func.grad_and_value(model.loss)(params, ROWS, mask)
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    monkeypatch.setattr(lstm, "_Layer", None)
    torch.testing.assert_close(torch.func.grad_and_value(model.loss)(params, ROWS, mask), written_out)


def test_nobody_is_given_a_wrong_second_derivative():
    first = torch.func.grad(TINY.loss)
    with pytest.raises(RuntimeError, match="Expected to be differentiated once"):
        torch.func.grad(lambda params: trees.norm(first(params, ROWS, torch.ones(4))))(weights_of(TINY))


# Many users at once


@every_kind
@pytest.mark.parametrize("shared", [False, True], ids=["own weights", "shared weights"])
def test_all_users_at_once_are_each_alone(model, shared):
    """As the engine calls it: vectorised, with gradients switched off around it."""
    own = [weights_of(model, 0 if shared else seed) for seed in range(3)]
    users = torch.stack([ROWS, ROWS.flip(0), ROWS.roll(1, 0)])
    masks = torch.tensor([[1, 1, 1, 1], [0, 1, 0, 1], [0, 0, 0, 0]])
    gradient = torch.func.grad_and_value(model.loss)
    with torch.no_grad():
        stacked = own[0] if shared else trees.stacked(own)
        gradients, losses = torch.func.vmap(gradient, in_dims=(None if shared else 0, 0, 0))(stacked, users, masks)
    for user in range(3):
        alone, loss = gradient(own[user], users[user], masks[user])
        torch.testing.assert_close((trees.row(gradients, user), losses[user]), (alone, loss))


def test_local_steps_can_be_vectorised_as_a_whole():
    """Shared weights at the first step, own weights at the second."""

    def trained(params, sequences, mask):
        for _ in range(2):
            params = trees.add(params, torch.func.grad(TINY.loss)(params, sequences, mask), scale=-0.5)
        return params

    params, users = weights_of(TINY), torch.stack([ROWS, ROWS.flip(0)])
    both = torch.func.vmap(trained, in_dims=(None, 0, 0))(params, users, torch.tensor([[1, 1, 0, 0], [1, 0, 1, 1]]))
    torch.testing.assert_close(trees.row(both, 1), trained(params, users[1], torch.tensor([1, 0, 1, 1])))


# What is not there


@pytest.mark.parametrize("padding", [-1, -7, 6, 30_000])
def test_padding_says_nothing(padding):
    params, mask = weights_of(TINY), torch.ones(4)
    wide = torch.nn.functional.pad(ROWS, (0, 3), value=-1)
    expected = torch.func.grad_and_value(TINY.loss)(params, ROWS, mask)
    filled = torch.where(wide < 0, padding, wide).to(torch.int16)
    torch.testing.assert_close(torch.func.grad_and_value(TINY.loss)(params, filled, mask), expected)
    torch.testing.assert_close(TINY.log_probability(params, filled), TINY.log_probability(params, ROWS))
    assert TINY.accuracy(params, filled) == TINY.accuracy(params, ROWS)


def test_a_masked_row_says_nothing():
    params, mask = weights_of(TINY), torch.tensor([1, 0, 1, 0])
    other = ROWS.clone()
    other[1], other[3] = ROWS[3], ROWS[0]
    expected = torch.func.grad_and_value(TINY.loss)(params, ROWS, mask)
    torch.testing.assert_close(torch.func.grad_and_value(TINY.loss)(params, other, mask), expected, rtol=0, atol=0)
    alone = torch.func.grad_and_value(TINY.loss)(params, ROWS[[0, 2]], torch.ones(2))
    torch.testing.assert_close(alone, expected)


@pytest.mark.parametrize(
    ("sequences", "mask"),
    [
        (ROWS, torch.zeros(4)),
        (torch.full((2, 5), -1), torch.ones(2)),
        (torch.tensor([[4, -1]]), torch.ones(1, dtype=bool)),
    ],
    ids=["masked", "padding", "start alone"],
)
def test_nothing_at_all_is_zero(sequences, mask):
    params = TINY.init(0)
    gradient, loss = torch.func.grad_and_value(TINY.loss)(params, sequences, mask)
    assert loss.item() == 0
    assert all((leaf == 0).all() for leaf in gradient.values())
    assert TINY.log_probability(params, torch.full((2, 5), -1)).tolist() == [0, 0]
    assert TINY.log_probability(params, torch.full((0, 5), -1)).shape == (0,)
    assert TINY.accuracy(params, torch.full((2, 5), -1)) == 0


def test_accuracy_counts_the_targets_that_are_there():
    params = weights_of(TINY)
    right = []
    for row in ROWS.tolist():
        symbols = [symbol for symbol in row if symbol >= 0]
        answers = twin_log_probabilities(TINY, params, symbols[:-1])
        right += [int(answer.argmax()) == symbol for answer, symbol in zip(answers, symbols[1:], strict=True)]
    assert TINY.accuracy(params, ROWS) == pytest.approx(sum(right) / len(right))
    assert 0 < sum(right) < len(right)


def test_many_rows_are_asked_about_in_pieces(monkeypatch):
    params = weights_of(TINY)
    whole = TINY.log_probability(params, ROWS), TINY.accuracy(params, ROWS)
    monkeypatch.setattr(lstm, "_AT_ONCE", {"cpu": 2 * 5 * 6 + 1})  # two rows of five steps
    torch.testing.assert_close(TINY.log_probability(params, ROWS), whole[0])
    assert TINY.accuracy(params, ROWS) == whole[1]


# Whole sequences, all of them


def all_rows(width):
    """Every sequence over SPELLED's alphabet: ended within the width, and cut at it."""
    ended, cut = [], []
    for length in range(width):
        for middle in itertools.product((0, 1, SPELLED.start), repeat=length):
            row = [SPELLED.start, *middle]
            if length == width - 1:
                cut.append(row)
            else:
                ended.append([*row, SPELLED.end] + [-1] * (width - 2 - length))
    return torch.tensor(ended), torch.tensor(cut)


def test_the_probabilities_of_all_sequences_add_up_to_one():
    params = weights_of(SPELLED)
    ended, cut = all_rows(5)
    assert len(ended) == 1 + 3 + 9 + 27
    assert len(cut) == 81
    chances = SPELLED.log_probability(params, torch.cat([ended, cut])).exp()
    assert chances.sum().item() == pytest.approx(1, abs=1e-12)
    assert 0.1 < chances[: len(ended)].sum() < 0.99


@pytest.mark.parametrize("seed", range(3))
def test_enough_beams_find_the_likeliest_sequences(seed):
    params = weights_of(SPELLED, seed)
    rows, _ = all_rows(5)
    chances, order = SPELLED.log_probability(params, rows).sort(descending=True)
    found, scores = SPELLED.likeliest(params, width=5, beams=81, count=10)
    assert found.tolist() == rows[order[:10]].tolist()
    torch.testing.assert_close(scores, chances[:10])
    everything, _ = SPELLED.likeliest(params, width=5, beams=81, count=1000)
    assert everything.tolist() == rows[order].tolist()


def test_one_beam_is_greedy():
    params = weights_of(SPELLED)
    params["output.bias"][SPELLED.end] = -9.0  # so that nobody ends early
    row = [SPELLED.start]
    for _ in range(5):
        answer = twin_log_probabilities(SPELLED, params, row)[-1]
        answer[SPELLED.end] = -math.inf
        row.append(int(answer.argmax()))
    found, scores = SPELLED.likeliest(params, width=7, beams=1, count=100)
    assert len(found) == 6  # one for each length
    (longest,) = (one for one in found.tolist() if -1 not in one)
    assert longest == [*row, SPELLED.end]
    torch.testing.assert_close(scores, SPELLED.log_probability(params, found))


def test_the_search_stops_where_nothing_likelier_can_come(monkeypatch):
    params = weights_of(SPELLED)
    params["output.bias"][SPELLED.end] = 9.0
    steps = []
    stepped = LanguageModel._stepped
    monkeypatch.setattr(LanguageModel, "_stepped", lambda *given: steps.append(1) or stepped(*given))
    found, _ = SPELLED.likeliest(params, width=30, beams=5, count=1)
    assert found.tolist() == [[SPELLED.start, SPELLED.end] + [-1] * 28]
    assert len(steps) == 1


DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA"))]


@pytest.mark.parametrize("device", DEVICES)
def test_samples_are_as_frequent_as_they_are_likely(device, monkeypatch):
    monkeypatch.setattr(lstm, "_AT_ONCE", {device: 40_000})  # several pieces
    count, params = 30_000, trees.moved(weights_of(SPELLED), device)
    rows = torch.cat([torch.nn.functional.pad(part, (0, 4 - part.shape[1]), value=-1) for part in all_rows(4)])
    expected = count * SPELLED.log_probability(params, rows.to(device)).exp().cpu()
    drawn, likely = SPELLED.sampled(params, count, 4, seed=1)
    torch.testing.assert_close(likely, SPELLED.log_probability(params, drawn), rtol=1e-4, atol=1e-4)
    assert drawn.shape == (count, 4)
    assert drawn.device.type == device
    numbers = {tuple(row): at for at, row in enumerate(rows.tolist())}
    seen = torch.bincount(torch.tensor([numbers[tuple(row)] for row in drawn.tolist()]), minlength=len(rows))
    squares = ((seen - expected).square() / expected)[expected > 5]
    assert len(squares) > 20
    assert squares.sum() < len(squares) + 4 * math.sqrt(2 * len(squares))


@pytest.mark.parametrize("device", DEVICES)
def test_the_same_seed_draws_the_same(device):
    params = trees.moved(TINY.init(0), device)
    first, again, other = (TINY.sampled(params, 50, 12, seed)[0] for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_a_sample_is_start_symbols_end_padding():
    params = TINY.init(0)
    for row in TINY.sampled(params, 200, 6, seed=0)[0].tolist():
        assert row[0] == TINY.start
        length = row.index(TINY.end) if TINY.end in row else 5
        assert min(row[: length + 1]) >= 0
        assert set(row[length + 1 :]) <= {-1}
    assert [leaf.shape for leaf in TINY.sampled(params, 0, 6, seed=0)] == [(0, 6), (0,)]


def test_sampling_stops_when_everybody_has_ended(monkeypatch):
    params = TINY.init(0)
    params["output.bias"][TINY.end] = 100.0
    steps = []
    stepped = LanguageModel._stepped
    monkeypatch.setattr(LanguageModel, "_stepped", lambda *given: steps.append(len(given[2])) or stepped(*given))
    drawn, _ = TINY.sampled(params, 7, 1000, seed=0)
    assert drawn[:, :2].tolist() == [[TINY.start, TINY.end]] * 7
    assert steps == [7]


def test_rare_symbols_are_drawn_as_often_as_they_should_be():
    """And impossible ones never, wherever in the alphabet they are."""
    chances = torch.tensor([0.0, 1e-3, 0.0, 0.9, 0.0, 0.099, 0.0])
    logits = chances.log().expand(200_000, 7)
    seen = torch.bincount(lstm._drawn_from(logits, torch.Generator().manual_seed(0))[0], minlength=7) / len(logits)
    assert (seen[chances == 0] == 0).all()
    torch.testing.assert_close(seen, chances, rtol=0.25, atol=5e-3)
    assert abs(seen[1] - 1e-3) < 4 * math.sqrt(1e-3 / len(logits))


@pytest.mark.parametrize(("number", "symbol"), [(0.0, 1), (1 - 2**-24, 5)])
def test_the_ends_of_the_random_numbers_are_symbols_too(number, symbol, monkeypatch):
    logits = torch.tensor([[0.0, 0.25, 0.0, 0.5, 0.0, 0.25, 0.0]]).log()
    monkeypatch.setattr(torch, "rand", lambda *shape, **_: torch.full(shape, number))
    drawn, likely = lstm._drawn_from(logits, torch.Generator())
    assert drawn.tolist() == [symbol]
    assert likely.tolist() == pytest.approx([math.log(0.25)])


# Shapes and settings


@every_kind
def test_the_weights_are_counted(model):
    assert model.weights == sum(leaf.numel() for leaf in model.init(0).values())


def test_the_networks_of_the_paper():
    """Augenstein et al. 2020, appendix B.2. With tied embeddings the word model has 1.4 million weights."""
    words, spelling = LanguageModel.words(10_000), LanguageModel.spelling()
    assert round(words.weights / 1e6, 1) == 1.4
    assert words.weights == 10_003 * 96 + 3 * 670 * (96 + 96 + 1) + 96 * 670 + 10_003
    assert (words.symbols, words.start, words.end) == (10_003, 10_001, 10_002)
    assert spelling.weights == 258 * 128 + 3 * (3 * 256 * (128 + 128 + 1) + 128 * 256) + 258 * 128 + 258
    assert (spelling.symbols, spelling.start, spelling.end) == (258, 256, 257)
    assert 60_000 < LanguageModel.small_spelling().weights < 130_000
    assert LanguageModel.small_words(2_000).weights < 130_000


def test_weights_start_as_they_should():
    params = TINY.init(0)
    for layer in range(2):
        forget, rest = params[f"layer{layer}.bias"].split([TINY.units, 2 * TINY.units])
        assert (forget == 1).all()
        assert (rest == 0).all()
    assert trees.digest(params) == trees.digest(TINY.init(0)) != trees.digest(TINY.init(1))


def test_it_learns():
    """Words of a kind: after a few steps the model knows what comes next."""
    model = LanguageModel(symbols=6, start=4, end=5, embedding=8, units=16, projection=8)
    rows = torch.tensor([[4, 0, 1, 2, 3, 5], [4, 0, 1, 2, 3, 5], [4, 2, 5, -1, -1, -1]])
    params = model.init(0)
    for _ in range(60):
        params = trees.add(params, torch.func.grad(model.loss)(params, rows, torch.ones(3)), scale=-1.0)
    found, scores = model.likeliest(params, width=6, beams=10, count=2)
    assert found.tolist() == [rows[0].tolist(), rows[2].tolist()]
    assert scores.exp().sum() > 0.8


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"units": 0}, "Expected units=0 >= 1"),
        ({"embedding": -1}, "Expected embedding=-1 >= 1"),
        ({"layers": 0}, "Expected layers=0 >= 1"),
        ({"projection": -2}, "Expected projection=-2 >= 0"),
        ({"end": 4}, "Expected start=4 and end=4 to be two of the symbols 0..5"),
        ({"end": 6}, "Expected start=4 and end=6 to be two of the symbols 0..5"),
        ({"start": -1}, "Expected start=-1 and end=5"),
        ({"tied": True}, "Expected projection=2 to equal embedding=3 for a tied output"),
        ({"tied": True, "projection": 0}, "Expected units=4 to equal embedding=3 for a tied output"),
    ],
)
def test_settings_that_make_no_model(change, message):
    settings = {"symbols": 6, "start": 4, "end": 5, "embedding": 3, "units": 4, "projection": 2}
    with pytest.raises(ValueError, match=message):
        LanguageModel(**settings | change)


def test_questions_that_make_no_sense():
    params = TINY.init(0)
    for shape in ([3, 1], [3], [2, 3, 4]):
        with pytest.raises(ValueError, match="Expected sequences"):
            TINY.loss(params, torch.zeros(shape), torch.ones(shape[0]))
    with pytest.raises(ValueError, match="Expected width=1 >= 2"):
        TINY.sampled(params, 5, 1, seed=0)
    with pytest.raises(ValueError, match="Expected width=0 >= 2"):
        TINY.likeliest(params, width=0, beams=2, count=2)
    broken = params | {"output.bias": torch.full((6,), math.nan)}
    with pytest.raises(ValueError, match="Expected finite weights"):
        TINY.sampled(broken, 5, 5, seed=0)
    with pytest.raises(ValueError, match="Expected finite weights"):
        TINY.likeliest(broken, width=5, beams=2, count=2)
