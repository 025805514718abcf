"""The networks of GS-WGAN (Chen et al. 2020), in any width: a critic that projects labels, and a residual generator.

Spectral normalisation (Miyato et al. 2018) divides a weight by its largest singular value, as far as a vector that
turns with it knows that. The vectors stand among the weights, as `NAME.u`; they get no gradient, so that optimizers
leave them alone, and `turned` brings them on after a step. Nothing here looks at a batch: an image's score, and its
gradient, follow from that image, and a drawn image from its own latent.
"""

import abc
import dataclasses
import math
from collections.abc import Mapping

import torch
import torch.nn.functional as F

from fedlens.core.trees import Tree
from fedlens.models.convolutions import Convolutions, Patches, slope
from fedlens.models.sizes import check_sizes, fitting

MOST_BLOCKS = 10  # of a generator: images of 4096 a side


@dataclasses.dataclass(frozen=True, kw_only=True)
class CriticLoss:
    """Wasserstein's, with a penalty on slopes that are not 1 and on large scores; or a classifier's cross entropy."""

    penalty: float
    drift: float
    entropy: bool

    def slopes(self, liked: torch.Tensor, drawn: torch.Tensor) -> torch.Tensor:
        """By the scores of real images and of drawn ones; what is left out is the penalty on slopes."""
        if self.entropy:
            return torch.cat([-torch.sigmoid(-liked), torch.sigmoid(drawn)]) / len(liked)
        return torch.cat([2 * self.drift * liked - 1, torch.ones_like(drawn)]) / len(liked)


class _Shaped(abc.ABC):
    """A network that is known by the shapes of its weights."""

    @property
    @abc.abstractmethod
    def _shapes(self) -> dict[str, tuple[int, ...]]: ...

    def init(self, seed: int) -> Tree:
        return _drawn(self._shapes, seed)

    def fits(self, params: Tree) -> bool:
        """Whether these are its weights; told from the shapes alone, which may be those of a hostile file."""
        return fitting(params, self._shapes)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ProjectionCritic(_Shaped):
    """Convolutions 5x5 of stride 2; then a score of what they see, and how well that goes with the label.

    With classes = 0 there are no labels. The teachers of DataLens are of this kind, without spectral normalisation and
    with a `hidden` layer: theirs stick the label to every layer, and normalise by batches, which we leave out.

    >>> sum(leaf.numel() for name, leaf in ProjectionCritic(side=28).init(0).items() if not name.endswith(".u"))
    1071105
    """

    side: int
    channels: int = 1
    classes: int = 10
    widths: tuple[int, ...] = (64, 128, 256)
    hidden: int = 0
    spectral: bool = True
    leak: float = 0.0

    def __post_init__(self) -> None:
        sizes = {"side": self.side, "channels": self.channels, "classes": self.classes + 1, "hidden": self.hidden + 1}
        check_sizes(self.widths, **sizes)
        if not self.widths or not 0 <= self.leak < 1:
            raise ValueError(f"Expected at least one layer, and 0 <= leak={self.leak} < 1.")

    @property
    def _shapes(self) -> dict[str, tuple[int, ...]]:
        matrices: dict[str, tuple[int, ...]] = {}
        before, side = self.channels, self.side
        for layer, width in enumerate(self.widths):
            matrices[f"conv{layer}"] = (width, before, 5, 5)
            before, side = width, -(-side // 2)
        features = before * side**2
        if self.hidden:
            matrices["hidden"] = (self.hidden, features)
            features = self.hidden
        matrices["score"] = (1, features)
        bias = {f"{name}.bias": shape[:1] for name, shape in matrices.items()}
        if self.classes:
            matrices["label"] = (self.classes, features)
        return _with_vectors(matrices, self.spectral) | bias

    def score(self, params: Tree, images: torch.Tensor, labels: torch.Tensor | None = None) -> torch.Tensor:
        x = images
        for layer in range(len(self.widths)):
            y = F.conv2d(x, _weight(params, f"conv{layer}"), params[f"conv{layer}.bias"], stride=2, padding=2)
            x = F.leaky_relu(y, self.leak)
        x = x.flatten(1)
        if self.hidden:
            x = F.leaky_relu(x @ _weight(params, "hidden").T + params["hidden.bias"], self.leak)
        wanted = _weight(params, "score")
        if self.classes and labels is not None:
            wanted = wanted + one_hot(labels, self.classes).to(x.dtype) @ _weight(params, "label")
        score: torch.Tensor = (x * wanted).sum(1) + params["score.bias"]
        return score

    def gradient(
        self,
        params: Tree,
        real: torch.Tensor,
        fake: torch.Tensor,
        mixed: torch.Tensor,
        labels: torch.Tensor,
        losses: CriticLoss,
    ) -> Tree:
        """d/d params of the mean of Wasserstein's loss with penalties, or of a classifier's, without double backward.

        As `ConvCritic.gradient`, with what labels want beside the score, and with spectral norms: of V = W / s, with
        s = u W v, dW = (dV - <dV, V> u v^T) / s.
        """
        ops = Patches(padding=2) if real.is_cuda else Convolutions(padding=2)
        mixed = mixed[:0] if losses.entropy else mixed
        count, ends = len(real), 2 * len(real)  # rows up to the end are real and fake; the rest is the penalty's
        convolutions = [f"conv{layer}" for layer in range(len(self.widths))]
        scaled = {name: _weight(params, name) for name in _matrices(params)}

        layers, seen = [torch.cat([real, fake, mixed])], []
        for name in convolutions:
            y, kept = ops.down(layers[-1], scaled[name], params[f"{name}.bias"])
            layers.append(F.leaky_relu(y, self.leak))
            seen.append(kept)
        flat = top = layers[-1].flatten(1)
        if self.hidden:
            top = F.leaky_relu(flat @ scaled["hidden"].T + params["hidden.bias"], self.leak)
        kinds = one_hot(torch.cat([labels, labels, labels[: len(mixed)]]), self.classes).to(top.dtype)
        wanted = scaled["score"] + kinds @ scaled["label"] if self.classes else scaled["score"].expand_as(top)
        scores = (top * wanted).sum(1) + params["score.bias"]

        signed = losses.slopes(scores[:count], scores[count:ends])
        gradient = gradient_hidden = torch.cat([signed, torch.ones_like(scores[ends:])])[:, None] * wanted
        if self.hidden:
            gradient_hidden = slope(gradient, top, self.leak)
            gradient = gradient_hidden @ scaled["hidden"]
        gradient = gradient.view_as(layers[-1])
        gradients: list[torch.Tensor] = []
        for i in reversed(range(len(convolutions))):
            gradients.insert(0, gradient := slope(gradient, layers[i + 1], self.leak))
            if i:
                gradient = ops.up(gradient, scaled[convolutions[i]], layers[i])
        push = ops.up(gradient[ends:], scaled[convolutions[0]], mixed)  # d score / d image at the mixed images
        size = (push.flatten(1).square().sum(1) + 1e-12).sqrt()
        push = push * (2 * losses.penalty / count * (size - 1) / size)[:, None, None, None]

        out = {}
        for i, name in enumerate(convolutions):
            y, kept = ops.down(push, scaled[name])
            whole = torch.cat([seen[i][:ends], kept])
            out[f"{name}.weight"] = ops.kernel_gradient(whole, gradients[i], scaled[name])
            out[f"{name}.bias"] = ops.channel_sum(gradients[i][:ends])
            push = slope(y, layers[i + 1][ends:], self.leak)
        push = push.flatten(1)
        if self.hidden:
            out["hidden.weight"] = gradient_hidden.T @ torch.cat([flat[:ends], push])
            out["hidden.bias"] = gradient_hidden[:ends].sum(0)
            push = slope(push @ scaled["hidden"].T, top[ends:], self.leak)
        rows = torch.cat([signed[:, None] * top[:ends], push])
        out |= {"score.weight": rows.sum(0)[None], "score.bias": signed.sum()[None]}
        if self.classes:
            out["label.weight"] = kinds.T @ rows
        return _unscaled(params, scaled, out)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ResidualGenerator(_Shaped):
    """A dense layer to 4 x 4, then residual blocks that double the side, then a convolution; cropped to the `side`.

    Latents are coins, as in the paper, or normal numbers; pixels are normalised over their channels, never over a
    batch.
    """

    side: int
    channels: int = 1
    latent: int = 10
    width: int = 256
    classes: int = 10
    coins: bool = True

    def __post_init__(self) -> None:
        sizes = {"side": self.side, "channels": self.channels, "latent": self.latent, "width": self.width}
        check_sizes((), **sizes, classes=self.classes + 1)
        if self._blocks > MOST_BLOCKS:
            raise ValueError(f"Expected side={self.side} of at most {4 << MOST_BLOCKS}.")

    @property
    def _blocks(self) -> int:
        return max(0, math.ceil(math.log2((self.side + 2) / 4)))  # the last convolution takes a pixel from each edge

    @property
    def _shapes(self) -> dict[str, tuple[int, ...]]:
        matrices: dict[str, tuple[int, ...]] = {"dense": (16 * self.width, self.latent + self.classes)}
        for block in range(self._blocks):
            for name, size in {"first": 3, "second": 3, "skip": 1}.items():
                matrices[f"{name}{block}"] = (self.width, self.width, size, size)
        matrices["image"] = (self.channels, self.width, 3, 3)
        return _with_vectors(matrices, True) | {f"{name}.bias": shape[:1] for name, shape in matrices.items()}

    def images(self, params: Tree, latents: torch.Tensor) -> torch.Tensor:
        x = (latents @ _weight(params, "dense").T + params["dense.bias"]).unflatten(1, (self.width, 4, 4))
        x = _normalised(F.relu(x))
        for block in range(self._blocks):
            y = _convolved(params, f"first{block}", F.interpolate(_normalised(x), scale_factor=2), padding=1)
            y = _convolved(params, f"second{block}", F.relu(_normalised(y)), padding=1)
            x = y + _convolved(params, f"skip{block}", F.interpolate(x, scale_factor=2))
        return _convolved(params, "image", x).tanh()[..., : self.side, : self.side]

    def latents(self, *shape: int, rng: torch.Generator) -> torch.Tensor:
        """What it draws from, without the class."""
        drawn = torch.randn(*shape, self.latent, generator=rng)
        return (drawn > 0).float() if self.coins else drawn


def _matrices(params: Tree) -> list[str]:
    return [name.removesuffix(".weight") for name in params if name.endswith(".weight")]


def _weight(params: Tree, name: str) -> torch.Tensor:
    """Over its largest singular value, where there is a vector that knows it."""
    weight = params[f"{name}.weight"]
    if f"{name}.u" not in params:
        return weight
    left, right = _vectors(params, name)
    return weight / (left @ weight.flatten(1) @ right)


def _vectors(params: Tree, name: str) -> tuple[torch.Tensor, torch.Tensor]:
    left = params[f"{name}.u"].detach()
    return left, _unit(left @ params[f"{name}.weight"].detach().flatten(1))


def _unscaled(params: Tree, scaled: Tree, gradients: Tree) -> Tree:
    """By the weights themselves, from gradients by the weights over their singular values; vectors have none."""
    out = dict(gradients)
    for name in _matrices(params):
        if f"{name}.u" not in params:
            continue
        left, right = _vectors(params, name)
        gradient = gradients[f"{name}.weight"]
        norm = left @ params[f"{name}.weight"].flatten(1) @ right
        along = (gradient * scaled[name]).sum() * torch.outer(left, right).view_as(gradient)
        out |= {f"{name}.weight": (gradient - along) / norm, f"{name}.u": torch.zeros_like(left)}
    return out


def turned(params: Tree) -> Tree:
    """After a step: the vectors that know the largest singular values, brought on by one power iteration."""
    after = dict(params)
    for name in params:
        if name.endswith(".u"):
            rows = params[f"{name.removesuffix('.u')}.weight"].flatten(1)
            after[name] = _unit(rows @ _unit(params[name] @ rows))
    return after


def _unit(vector: torch.Tensor) -> torch.Tensor:
    unit: torch.Tensor = vector / (vector.norm() + 1e-12)
    return unit


def _convolved(params: Tree, name: str, x: torch.Tensor, padding: int = 0) -> torch.Tensor:
    return F.conv2d(x, _weight(params, name), params[f"{name}.bias"], padding=padding)


def _normalised(x: torch.Tensor) -> torch.Tensor:
    """Every pixel's channels have a mean square of 1."""
    return x * (x.square().mean(1, keepdim=True) + 1e-8).rsqrt()


def one_hot(labels: torch.Tensor, classes: int) -> torch.Tensor:
    return (labels[..., None] == torch.arange(classes, device=labels.device)).float()


def glorot(shape: tuple[int, ...], rng: torch.Generator) -> torch.Tensor:
    """A matrix, or a kernel, of Glorot's scale."""
    limit = math.sqrt(6 / ((shape[0] + shape[1]) * math.prod(shape[2:])))
    return torch.rand(shape, generator=rng).mul_(2 * limit).sub_(limit)


def _with_vectors(matrices: Mapping[str, tuple[int, ...]], spectral: bool) -> dict[str, tuple[int, ...]]:
    weights = {f"{name}.weight": shape for name, shape in matrices.items()}
    return weights | ({f"{name}.u": shape[:1] for name, shape in matrices.items()} if spectral else {})


def _drawn(shapes: Mapping[str, tuple[int, ...]], seed: int) -> Tree:
    """Weights of Glorot's scale, in the order of the shapes; vectors that have turned a few times; no biases."""
    rng = torch.Generator().manual_seed(seed)
    params: Tree = {}
    for name, shape in shapes.items():
        if name.endswith(".weight"):
            params[name] = glorot(shape, rng)
        elif name.endswith(".u"):
            params[name] = _unit(torch.randn(shape, generator=rng))
        else:
            params[name] = torch.zeros(shape)
    for _ in range(10):
        params = turned(params)
    return params
