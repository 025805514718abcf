"""Language models of words and spellings: CIFG-LSTMs (Greff et al. 2015) with recurrent projection (Sak et al. 2014).

The input gate is one minus the forget gate, so there are three gates and not four. The networks of Augenstein et al.
2020, appendix B.2, are `words` and `spelling`. A sequence is START, symbols, END and then -1 up to its width; whatever
is no symbol of the alphabet is padding.
"""

import dataclasses
import math
from typing import Any

import torch
import torch.nn.functional as F

from fedlens.core import files
from fedlens.core.trees import Tree
from fedlens.models.sizes import MOST_LAYERS, MOST_SIZE, check_sizes, fitting

State = tuple[torch.Tensor, torch.Tensor]  # cells [layers, rows, units], and what they show [layers, rows, shown]
_AT_ONCE = {"cpu": 2**20, "cuda": 2**27}  # scores held at a time: on a CPU they should stay in its cache


@dataclasses.dataclass(frozen=True, kw_only=True)
class LanguageModel:
    """The next symbol, given those before it. `projection=0`: none; `tied`: the output shares the embedding's weights.

    >>> LanguageModel.words(10_000).weights, LanguageModel.spelling().weights
    (1422541, 756738)
    """

    symbols: int
    start: int
    end: int
    embedding: int
    units: int
    projection: int
    layers: int = 1
    tied: bool = False

    def __post_init__(self) -> None:
        check_sizes(embedding=self.embedding, units=self.units, layers=self.layers)
        if not files.whole(self.projection, 0, MOST_SIZE):
            raise ValueError(f"Expected projection={self.projection} >= 0.")
        if not files.whole(self.symbols, 2, 4 * MOST_SIZE) or self.layers > MOST_LAYERS:
            raise ValueError(f"Expected 2..{4 * MOST_SIZE} symbols and at most {MOST_LAYERS} layers.")
        inside = all(files.whole(symbol, 0, self.symbols - 1) for symbol in (self.start, self.end))
        if self.start == self.end or not inside:
            raise ValueError(
                f"Expected start={self.start} and end={self.end} to be two of the symbols 0..{self.symbols - 1}."
            )
        if self.tied and self._shown != self.embedding:
            source = "projection" if self.projection else "units"
            raise ValueError(f"Expected {source}={self._shown} to equal embedding={self.embedding} for a tied output.")

    @classmethod
    def words(cls, vocabulary_size: int) -> "LanguageModel":
        """The word model of the paper, with 10,000 words there: 1.4 million weights."""
        return cls._of_words(vocabulary_size, units=670, embedding=96)

    @classmethod
    def small_words(cls, vocabulary_size: int) -> "LanguageModel":
        """For few users and small epsilons: noise grows with the number of weights."""
        return cls._of_words(vocabulary_size, units=128, embedding=32)

    @classmethod
    def spelling(cls) -> "LanguageModel":
        """The character model of the paper: 256 bytes, start and end."""
        return cls(symbols=258, start=256, end=257, embedding=128, units=256, projection=128, layers=3)

    @classmethod
    def small_spelling(cls) -> "LanguageModel":
        """For few users and small epsilons.

        >>> LanguageModel.small_spelling().weights
        81826
        """
        return cls(symbols=258, start=256, end=257, embedding=32, units=160, projection=64)

    @classmethod
    def _of_words(cls, size: int, *, units: int, embedding: int) -> "LanguageModel":
        """Words, then unknown, start and end."""
        shape = {"embedding": embedding, "units": units, "projection": embedding}
        return cls(symbols=size + 3, start=size + 1, end=size + 2, tied=True, **shape)

    @property
    def weights(self) -> int:
        return sum(math.prod(shape) for shape in self._shapes.values())

    def init(self, seed: int) -> Tree:
        """Matrices of Glorot's scale; biases of 0, but of 1 for the forget gates: to remember at first."""
        rng = torch.Generator().manual_seed(seed)
        params: Tree = {}
        embedding = 0.3 if self.tied else 1.0  # large ones learn sooner; tied ones are scores as well, and overshoot
        for name, shape in self._shapes.items():
            scale = embedding if name == "embedding" else math.sqrt(2 / sum(shape))
            params[name] = scale * torch.randn(shape, generator=rng) if len(shape) > 1 else torch.zeros(shape)
        for layer in range(self.layers):
            params[f"layer{layer}.bias"][: self.units] = 1.0
        return params

    def fits(self, params: Tree) -> bool:
        """Whether these are its weights; told from the shapes alone, which may be those of a hostile file."""
        return fitting(params, self._shapes)

    def loss(self, params: Tree, sequences: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """The mean cross-entropy of all targets in rows of mask 1; 0, with a gradient of 0, if there are none."""
        log_likelihoods, there = self._log_likelihoods(params, sequences)
        share = there * mask.to(log_likelihoods.dtype)
        return -(share * log_likelihoods).sum() / share.sum().clamp(min=1)

    def log_probability(self, params: Tree, sequences: torch.Tensor) -> torch.Tensor:
        """Of each whole row, END included (Equation 1 of the paper); without END, of what is there."""
        rows = []
        for piece in sequences.split(self._rows_at_once(sequences.shape[1], sequences.device)):
            log_likelihoods, there = self._log_likelihoods(params, piece)
            rows.append((there * log_likelihoods).sum(0))
        return torch.cat(rows)

    @torch.no_grad()
    def accuracy(self, params: Tree, sequences: torch.Tensor) -> float:
        """How many of all targets are what the model thinks likeliest; 0 if there are none."""
        right = total = 0
        for piece in sequences.split(self._rows_at_once(sequences.shape[1], sequences.device)):
            targets, there = self._targets(piece)
            right += int((there & (self._scores(params, piece).argmax(-1) == targets)).sum())
            total += int(there.sum())
        return right / max(total, 1)

    @torch.no_grad()
    def sampled(self, params: Tree, count: int, width: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Sequences [count, width] and their log-probabilities [count], on the device of the weights.

        Those without END by then are cut.
        """
        _check_finite(params)
        rng = torch.Generator(params["embedding"].device).manual_seed(seed)
        at_once = self._rows_at_once(2, rng.device)
        pieces = [min(at_once, count - done) for done in range(0, count, at_once)]
        drawn, totals = zip(*(self._drawn(params, rows, width, rng) for rows in pieces or [0]), strict=True)
        return torch.cat(drawn), torch.cat(totals)

    @torch.no_grad()
    def likeliest(self, params: Tree, width: int, beams: int, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Beam search: up to `count` sequences that end within the width and their log-probabilities, likeliest first.

        It stops early only where nothing it holds could still become likelier than what is finished.
        """
        _check_finite(params)
        state = self._fresh(params, 1)
        rows = self._started(params, 1, width)
        totals = state[0].new_zeros(1)
        finished, scores = rows[:0], totals[:0]
        for at in range(1, width):
            logits, state = self._stepped(params, rows[:, at - 1], state)
            joint = totals[:, None] + logits.log_softmax(-1)
            ended = rows.clone()
            ended[:, at] = self.end
            finished, scores = torch.cat([finished, ended]), torch.cat([scores, joint[:, self.end]])
            scores, places = scores.topk(min(count, len(scores)))
            finished = finished[places]
            joint[:, self.end] = -math.inf
            totals, places = joint.flatten().topk(min(beams, len(rows) * (self.symbols - 1)))
            parents = places // self.symbols
            rows, state = rows[parents], _rows_of(state, parents)
            rows[:, at] = places % self.symbols
            if len(scores) == count and scores[-1] >= totals[0]:
                break
        return finished, scores

    @property
    def _shown(self) -> int:
        """How much of its cells a layer shows to itself, to the next one and to the output."""
        return self.projection or self.units

    @property
    def _shapes(self) -> dict[str, tuple[int, ...]]:
        """The gates are, in this order: forget, output, candidate."""
        shapes: dict[str, tuple[int, ...]] = {"embedding": (self.symbols, self.embedding)}
        for layer in range(self.layers):
            shapes |= {
                f"layer{layer}.input": (3 * self.units, self._shown if layer else self.embedding),
                f"layer{layer}.recurrent": (3 * self.units, self._shown),
                f"layer{layer}.bias": (3 * self.units,),
            }
            if self.projection:
                shapes[f"layer{layer}.projection"] = (self.projection, self.units)
        if not self.tied:
            shapes["output.weight"] = (self.symbols, self._shown)
        return shapes | {"output.bias": (self.symbols,)}

    def _rows_at_once(self, width: int, device: torch.device) -> int:
        return max(1, _AT_ONCE[device.type] // (max(1, width - 1) * self.symbols))

    def _targets(self, sequences: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """What is to be predicted [steps, rows], and where there is something."""
        if sequences.dim() != 2 or sequences.shape[1] < 2:
            raise ValueError(f"Expected sequences [rows, at least 2 symbols], got {list(sequences.shape)}.")
        targets = sequences[:, 1:].T.long()
        there = (targets >= 0) & (targets < self.symbols)
        return torch.where(there, targets, 0), there

    def _log_likelihoods(self, params: Tree, sequences: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        targets, there = self._targets(sequences)
        logits = self._scores(params, sequences).flatten(0, 1)
        return -F.cross_entropy(logits, targets.flatten(), reduction="none").view(targets.shape), there

    def _scores(self, params: Tree, sequences: torch.Tensor) -> torch.Tensor:
        """Logits [steps, rows, symbols]. Only what depends on the step before is computed step by step."""
        given = sequences[:, :-1].T.long()
        x = F.embedding(given.clamp(0, self.symbols - 1).flatten(), params["embedding"])
        for layer in range(self.layers):
            entered = F.linear(x, params[f"layer{layer}.input"], params[f"layer{layer}.bias"])
            weights = (params[f"layer{layer}.recurrent"], params.get(f"layer{layer}.projection"))
            x = _shown_by(entered.unflatten(0, given.shape), *weights).flatten(0, 1)
        logits: torch.Tensor = self._read_out(params, x).unflatten(0, given.shape)
        return logits

    def _read_out(self, params: Tree, shown: torch.Tensor) -> torch.Tensor:
        return F.linear(shown, params["embedding" if self.tied else "output.weight"], params["output.bias"])

    def _fresh(self, params: Tree, rows: int) -> State:
        like = params["embedding"]
        return like.new_zeros(self.layers, rows, self.units), like.new_zeros(self.layers, rows, self._shown)

    def _started(self, params: Tree, rows: int, width: int) -> torch.Tensor:
        if width < 2:
            raise ValueError(f"Expected width={width} >= 2.")
        sequences = torch.full((rows, width), -1, device=params["embedding"].device)
        sequences[:, 0] = self.start
        return sequences

    def _stepped(self, params: Tree, symbols: torch.Tensor, state: State) -> tuple[torch.Tensor, State]:
        """Logits of the next symbol [rows, symbols], and the state after it."""
        cells, shown = [], []
        x = F.embedding(symbols, params["embedding"])
        for layer, (cell, last) in enumerate(zip(*state, strict=True)):
            entered = F.linear(x, params[f"layer{layer}.input"], params[f"layer{layer}.bias"])
            *_, output, cell = _cell(entered + last @ params[f"layer{layer}.recurrent"].T, cell)
            x = _projected(output * cell.tanh(), params.get(f"layer{layer}.projection"))
            cells.append(cell)
            shown.append(x)
        return self._read_out(params, x), (torch.stack(cells), torch.stack(shown))

    def _drawn(self, params: Tree, rows: int, width: int, rng: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
        drawn = self._started(params, rows, width)
        going, state = torch.arange(rows, device=drawn.device), self._fresh(params, rows)
        totals = state[0].new_zeros(rows)
        for at in range(1, width):
            if not len(going):
                break
            logits, state = self._stepped(params, drawn[going, at - 1], state)
            drawn[going, at], likely = _drawn_from(logits, rng)
            totals[going] += likely
            (on,) = (drawn[going, at] != self.end).nonzero(as_tuple=True)
            going, state = going[on], _rows_of(state, on)
        return drawn, totals


def _cell(gates: torch.Tensor, cell: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Forget gate, candidate, output gate, new cell."""
    units = cell.shape[-1]
    forget, output = gates[..., : 2 * units].sigmoid().chunk(2, -1)
    candidate = gates[..., 2 * units :].tanh()
    return forget, candidate, output, torch.lerp(candidate, cell, forget)


def _projected(x: torch.Tensor, projection: torch.Tensor | None) -> torch.Tensor:
    return x if projection is None else x @ projection.T


def _scanned(
    entered: torch.Tensor, recurrent: torch.Tensor, projection: torch.Tensor | None
) -> tuple[torch.Tensor, ...]:
    """What a layer shows at each step, its gates (forget, candidate, output) and its cells, all [steps, rows, ...]."""
    steps: list[tuple[torch.Tensor, ...]] = []
    cell = torch.zeros_like(entered[0, ..., : entered.shape[-1] // 3])
    for step, gates in enumerate(entered.unbind()):
        forget, candidate, output, cell = _cell(gates + steps[-1][0] @ recurrent.T if step else gates, cell)
        shown = _projected(output * cell.tanh(), projection)
        steps.append((shown, forget, candidate, output, cell))
    return tuple(torch.stack(kept) for kept in zip(*steps, strict=True))


class _Layer(torch.autograd.Function):
    """`_scanned` with its gradient written out.

    Differentiated step by step, every weight's gradient would be a sum over the steps of products as large as the
    weights, and every unit has weights of its own: memory traffic that dwarfs the arithmetic. Here only the two small
    products that must be are in the loop backwards, and the weights' gradients are one product each after it.
    """

    generate_vmap_rule = True
    forward = staticmethod(_scanned)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, ...]) -> None:
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*inputs[1:], *output)

    @staticmethod
    def backward(ctx: Any, pushes: torch.Tensor, *others: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        if any(other is not None for other in others):
            raise RuntimeError("Expected to be differentiated once: the gradient is written out.")
        recurrent, projection, shown, forget, candidate, output, cells = ctx.saved_tensors
        seen = cells.tanh()
        before = torch.cat([torch.zeros_like(cells[:1]), cells[:-1]])
        into_cell = output * (1 - seen * seen)
        slopes = (  # of the gates forget, output and candidate, as far as they are known before the loop
            (before - candidate) * forget * (1 - forget),
            seen * output * (1 - output),
            (1 - forget) * (1 - candidate * candidate),
        )
        slope = torch.cat(slopes, -1)
        later = torch.zeros_like(cells[0])  # what the steps after this one feel of its cell
        gradient_gates: list[torch.Tensor] = []
        gradient_shown: list[torch.Tensor] = []
        for step in reversed(range(len(cells))):
            gradient_shown.append(pushes[step] + gradient_gates[-1] @ recurrent if gradient_gates else pushes[step])
            gradient = gradient_shown[-1] if projection is None else gradient_shown[-1] @ projection
            gradient_cell = torch.addcmul(later, gradient, into_cell[step])
            gradient_gates.append(torch.cat([gradient_cell, gradient, gradient_cell], -1) * slope[step])
            later = gradient_cell * forget[step]
        gates = torch.stack(gradient_gates[::-1])
        by_recurrent = gates[1:].flatten(0, 1).T @ shown[:-1].flatten(0, 1)
        if projection is None:
            return gates, by_recurrent, None
        return gates, by_recurrent, torch.stack(gradient_shown[::-1]).flatten(0, 1).T @ (output * seen).flatten(0, 1)


def _shown_by(entered: torch.Tensor, recurrent: torch.Tensor, projection: torch.Tensor | None) -> torch.Tensor:
    """What a layer shows at each step. Compilers cannot see through a gradient written out, and need none."""
    scan = _scanned if torch.compiler.is_compiling() else _Layer.apply
    return scan(entered, recurrent, projection)[0]


def _drawn_from(logits: torch.Tensor, rng: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """One symbol for each row, and the logarithm of its chance.

    By a running sum on a CPU, ten times as fast there; a GPU's differ from run to run.
    """
    chances = logits.softmax(-1)
    if chances.is_cuda:
        drawn = torch.multinomial(chances, 1, generator=rng)
    else:
        sums = chances.cumsum(-1)
        aims = sums[:, -1:] * torch.rand(len(sums), 1, generator=rng, dtype=sums.dtype)
        drawn = torch.searchsorted(sums, aims, right=True).clamp(max=sums.shape[-1] - 1)
    return drawn.squeeze(-1), chances.gather(-1, drawn).log().squeeze(-1)


def _rows_of(state: State, rows: torch.Tensor) -> State:
    cells, shown = state
    return cells[:, rows], shown[:, rows]


def _check_finite(params: Tree) -> None:
    if not all(bool(leaf.isfinite().all()) for leaf in params.values()):
        raise ValueError("Expected finite weights: a model that has diverged draws nothing.")
