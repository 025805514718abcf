"""The networks of DP-FedAvg-GAN (Augenstein et al. 2020, after the TF-GAN MNIST tutorial), in any width.

A critic here is piecewise linear: convolutions, dense layers, leaky ReLU. That makes the gradient of its WGAN-GP loss
(Gulrajani et al. 2017) a short chain of products that can be written out, penalty included, without differentiating
twice; see `ConvCritic.gradient`. The paper puts batch normalisation into the critic. We leave it out: it couples a
user's examples, it invalidates the per-example penalty (Gulrajani et al., section 4), and its moving averages, which
the paper clips and noises along with the weights, are never read.
"""

import dataclasses
import math

import torch
import torch.nn.functional as F

from fedlens.trees import Tree

LEAK = 0.01
_aten = torch.ops.aten
_SHAPE = ([2, 2], [1, 1], [1, 1], False, [0, 0], 1)  # stride, padding, dilation, transposed, output padding, groups


@dataclasses.dataclass(frozen=True, kw_only=True)
class ConvCritic:
    """Convolutions 4x4 of stride 2, then a dense layer if `hidden`, then one score.

    >>> sum(leaf.numel() for leaf in ConvCritic(side=28, widths=(32, 64)).init(0).values())
    36513
    """

    side: int
    channels: int = 1
    widths: tuple[int, ...] = (64, 128)
    hidden: int | None = None

    def __post_init__(self) -> None:
        _divisible(self.side, len(self.widths))

    def init(self, seed: int) -> Tree:
        rng = torch.Generator().manual_seed(seed)
        params: Tree = {}
        before = self.channels
        for layer, width in enumerate(self.widths):
            params |= {
                f"conv{layer}.weight": _glorot((width, before, 4, 4), rng),
                f"conv{layer}.bias": torch.zeros(width),
            }
            before = width
        features = before * (self.side >> len(self.widths)) ** 2
        if self.hidden:
            params["hidden.weight"] = _glorot((self.hidden, features), rng)
        return params | {"score.weight": _glorot((1, self.hidden or features), rng), "score.bias": torch.zeros(1)}

    def score(self, params: Tree, images: torch.Tensor) -> torch.Tensor:
        layers = self._layers(params, images)
        return (layers[-1] @ params["score.weight"].T + params["score.bias"]).squeeze(-1)

    def _layers(self, params: Tree, images: torch.Tensor) -> list[torch.Tensor]:
        """Images, the activations of every layer, and last what the score is read from."""
        layers = [images]
        for i in range(len(self.widths)):
            layers.append(F.leaky_relu(_down(layers[-1], params[f"conv{i}.weight"], params[f"conv{i}.bias"]), LEAK))
        if self.hidden:
            layers.append(F.leaky_relu(layers[-1].flatten(1) @ params["hidden.weight"].T, LEAK))
        return layers if self.hidden else [*layers, layers[-1].flatten(1)]

    def gradient(
        self,
        params: Tree,
        real: torch.Tensor,
        fake: torch.Tensor,
        mixed: torch.Tensor,
        weight: torch.Tensor,
        penalty: float,
    ) -> Tree:
        """d/d params of  sum_i weight_i [ D(fake_i) - D(real_i) + penalty (|dD/dx(mixed_i)| - 1)^2 ].

        With M the slopes of the leaky ReLUs, D is locally  score . M_n W_n ... M_1 W_1 x,  so "what the score feels at
        layer l" is a chain of transposed layers, the same for the score's own gradient and for dD/dx. The penalty's
        gradient sends dP/d(dD/dx) forward through the layers once more. Equal to double backward, at half its price.
        """
        ends = 2 * len(real)
        signed = torch.cat([-weight, weight])
        layers = self._layers(params, torch.cat([real, fake, mixed]))
        convs, top = layers[1 : len(self.widths) + 1], layers[-1]
        felt = felt_hidden = params["score.weight"].expand_as(top)
        if self.hidden:
            felt_hidden = _slope(felt, top)
            felt = felt_hidden @ params["hidden.weight"]
        felt = felt.unflatten(1, convs[-1].shape[1:])
        felts: list[torch.Tensor] = []
        for i in reversed(range(len(convs))):
            felts.insert(0, felt := _slope(felt, convs[i]))
            if i:
                felt = _up(felt, params[f"conv{i}.weight"], layers[i])
        push = _up(felt[ends:], params["conv0.weight"], layers[0][ends:])  # dD/dx at the mixed images
        size = (push.flatten(1).square().sum(1) + 1e-10).sqrt()
        push = push * _per_row(2 * penalty * weight * (size - 1) / size, push)
        out = {}
        for i, felt in enumerate(felts):
            kernel, pulled = params[f"conv{i}.weight"], felt[:ends] * _per_row(signed, felt)
            out[f"conv{i}.weight"] = _kernel_gradient(layers[i][:ends], pulled, kernel) + _kernel_gradient(
                push, felt[ends:], kernel
            )
            out[f"conv{i}.bias"] = pulled.sum((0, 2, 3))
            push = _slope(_down(push, kernel), convs[i][ends:])
        push = push.flatten(1)
        if self.hidden:
            flat = convs[-1].flatten(1)[:ends] * signed[:, None]
            out["hidden.weight"] = felt_hidden.T @ torch.cat([flat, push])
            push = _slope(push @ params["hidden.weight"].T, top[ends:])
        out["score.weight"] = (signed @ top[:ends] + push.sum(0))[None]
        return out | {"score.bias": signed.sum()[None]}


@dataclasses.dataclass(frozen=True, kw_only=True)
class ConvGenerator:
    """Two dense layers, then transposed convolutions up to `side`; batch statistics always, also when sampling."""

    side: int
    channels: int = 1
    latent: int = 128
    hidden: int = 1024
    widths: tuple[int, ...] = (256, 64, 32)

    def __post_init__(self) -> None:
        _divisible(self.side, len(self.widths) - 1)

    @property
    def _base(self) -> int:
        return self.side >> (len(self.widths) - 1)

    def init(self, seed: int) -> Tree:
        rng = torch.Generator().manual_seed(seed)
        features = self.widths[0] * self._base**2
        params = {
            "dense0.weight": _glorot((self.hidden, self.latent), rng),
            "dense0.shift": torch.zeros(self.hidden),
            "dense1.weight": _glorot((features, self.hidden), rng),
            "dense1.shift": torch.zeros(features),
        }
        for layer, (before, width) in enumerate(zip(self.widths, self.widths[1:], strict=False)):
            params |= {f"up{layer}.weight": _glorot((before, width, 4, 4), rng), f"up{layer}.shift": torch.zeros(width)}
        return params | {
            "image.weight": _glorot((self.channels, self.widths[-1], 4, 4), rng),
            "image.bias": torch.zeros(self.channels),
        }

    def images(self, params: Tree, latents: torch.Tensor) -> torch.Tensor:
        x = _normalised(latents @ params["dense0.weight"].T, params["dense0.shift"])
        x = _normalised(x @ params["dense1.weight"].T, params["dense1.shift"]).unflatten(
            1, (self.widths[0], self._base, self._base)
        )
        for layer in range(len(self.widths) - 1):
            x = _normalised(
                F.conv_transpose2d(x, params[f"up{layer}.weight"], stride=2, padding=1), params[f"up{layer}.shift"]
            )
        return F.conv2d(F.pad(x, (1, 2, 1, 2)), params["image.weight"], params["image.bias"]).tanh()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Gan:
    """A generator and a critic that fit together; images lie in [-1, 1]."""

    generator: ConvGenerator
    critic: ConvCritic
    penalty: float = 10.0

    @classmethod
    def paper(cls, side: int = 28, channels: int = 1) -> "Gan":
        """The paper's pair: 6.55 million critic weights at 28 x 28."""
        generator = ConvGenerator(side=side, channels=channels)
        return cls(generator=generator, critic=ConvCritic(side=side, channels=channels, widths=(64, 128), hidden=1024))

    @classmethod
    def small(cls, side: int = 28, channels: int = 1) -> "Gan":
        """A pair for few users and small epsilons: noise grows with the number of weights, about 3,000 at 28 x 28."""
        generator = ConvGenerator(side=side, channels=channels, latent=64, hidden=256, widths=(64, 32, 16))
        return cls(generator=generator, critic=ConvCritic(side=side, channels=channels, widths=(8, 16)))

    def latents(self, *shape: int, rng: torch.Generator) -> torch.Tensor:
        return torch.randn(*shape, self.generator.latent, generator=rng)

    def generator_loss(self, generator: Tree, critic: Tree, latents: torch.Tensor) -> torch.Tensor:
        return -self.critic.score(critic, self.generator.images(generator, latents)).mean()

    def samples(self, generator: Tree, count: int, seed: int, batch: int = 256) -> torch.Tensor:
        """Images made in full batches, since every image leans on the statistics of its batch."""
        rng = torch.Generator().manual_seed(seed)
        device = generator["image.bias"].device
        with torch.no_grad():
            batches = [
                self.generator.images(generator, self.latents(batch, rng=rng).to(device)).cpu()
                for _ in range(-(-count // batch))
            ]
        return torch.cat(batches)[:count]


def _down(x: torch.Tensor, kernel: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """Convolution 4x4, stride 2, padding 1; on a GPU as matrix products, since kernels differ from unit to unit."""
    if not x.is_cuda:
        return F.conv2d(x, kernel, bias, stride=2, padding=1)
    y = _patches(x) @ kernel.flatten(1).T
    return (y if bias is None else y + bias).transpose(1, 2).unflatten(2, (x.shape[2] // 2, x.shape[3] // 2))


def _up(y: torch.Tensor, kernel: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """The transpose of `_down`; `like` has the shape of the result."""
    if not y.is_cuda:
        return _aten.convolution_backward(y, like, kernel, None, *_SHAPE, [True, False, False])[0]
    rows, _, high, wide = y.shape
    taps = (y.flatten(2).transpose(1, 2) @ kernel.flatten(1)).reshape(rows, high, wide, kernel.shape[1], 2, 2, 2, 2)
    taps = taps.permute(4, 6, 0, 3, 1, 5, 2, 7)  # [shift y, shift x, rows, channels, high, phase y, wide, phase x]
    total = torch.stack([F.pad(taps[v, h], (0, 0, h, 1 - h, 0, 0, v, 1 - v)) for v in (0, 1) for h in (0, 1)]).sum(0)
    return total.reshape(rows, kernel.shape[1], 2 * high + 2, 2 * wide + 2)[:, :, 1:-1, 1:-1]


def _kernel_gradient(x: torch.Tensor, y: torch.Tensor, kernel: torch.Tensor) -> torch.Tensor:
    """d/d kernel of sum(y * _down(x, kernel))."""
    if not x.is_cuda:
        return _aten.convolution_backward(y, x, kernel, None, *_SHAPE, [False, True, False])[1]
    return (y.flatten(2).transpose(1, 2).flatten(0, 1).T @ _patches(x).flatten(0, 1)).reshape(kernel.shape)


def _patches(x: torch.Tensor) -> torch.Tensor:
    """[rows, channels, h, w] -> [rows, h/2 * w/2, channels * 16]"""
    windows = F.pad(x, (1, 1, 1, 1)).unfold(2, 4, 2).unfold(3, 4, 2)
    return windows.permute(0, 2, 3, 1, 4, 5).reshape(len(x), -1, 16 * x.shape[1])


def _slope(felt: torch.Tensor, activation: torch.Tensor) -> torch.Tensor:
    """`felt`, times the slope of the leaky ReLU that made `activation`."""
    return _aten.leaky_relu_backward(felt, activation, LEAK, False)


def _per_row(values: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    return values.view(-1, *[1] * (like.dim() - 1))


def _normalised(x: torch.Tensor, shift: torch.Tensor) -> torch.Tensor:
    """Batch normalisation by the batch's own statistics, without scale, then ReLU."""
    return F.relu(F.batch_norm(x, None, None, None, shift, training=True, eps=1e-3))


def _glorot(shape: tuple[int, ...], rng: torch.Generator) -> torch.Tensor:
    field = math.prod(shape[2:])
    limit = math.sqrt(6 / ((shape[0] + shape[1]) * field))
    return torch.rand(shape, generator=rng).mul_(2 * limit).sub_(limit)


def _divisible(side: int, halvings: int) -> None:
    if side % 2**halvings or side < 2**halvings:
        raise ValueError(f"Expected side={side} divisible by {2**halvings}: the network halves it {halvings} times.")
