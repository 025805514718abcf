"""The networks of DP-FedAvg-GAN (Augenstein et al. 2020, after the TF-GAN MNIST tutorial), in any width.

A critic here is piecewise linear: convolutions, dense layers, leaky ReLU. That makes the gradient of its WGAN-GP loss
(Gulrajani et al. 2017) a short chain of products that can be written out, penalty included, without differentiating
twice; see `ConvCritic.gradient`. The paper puts batch normalisation into the critic. We leave it out: it couples a
user's examples, it invalidates the per-example penalty (Gulrajani et al., section 4), and its moving averages, which
the paper clips and noises along with the weights, are never read.
"""

import dataclasses
import hashlib

import torch
import torch.nn.functional as F

from fedlens.core.trees import Tree
from fedlens.models.convolutions import LEAK, Convolutions, Products, slope
from fedlens.models.projection import ProjectionCritic, ResidualGenerator, glorot, one_hot, turned
from fedlens.models.sizes import check_sizes, fitting


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
        sizes = {"side": self.side, "channels": self.channels, "hidden": 1 if self.hidden in (None, 0) else self.hidden}
        check_sizes(self.widths, **sizes)
        _divisible(self.side, len(self.widths))

    def init(self, seed: int) -> Tree:
        return _initialised(self._shapes, seed)

    @property
    def _shapes(self) -> dict[str, tuple[int, ...]]:
        before, shapes = (self.channels, *self.widths), {}  # type: tuple[int, ...], dict[str, tuple[int, ...]]
        for layer, width in enumerate(self.widths):
            shapes |= {f"conv{layer}.weight": (width, before[layer], 4, 4), f"conv{layer}.bias": (width,)}
        features = before[-1] * (self.side >> len(self.widths)) ** 2
        if self.hidden:
            shapes["hidden.weight"] = (self.hidden, features)
        return shapes | {"score.weight": (1, self.hidden or features), "score.bias": (1,)}

    def score(self, params: Tree, images: torch.Tensor) -> torch.Tensor:
        x = images
        for i in range(len(self.widths)):
            x = F.leaky_relu(F.conv2d(x, params[f"conv{i}.weight"], params[f"conv{i}.bias"], stride=2, padding=1), LEAK)
        x = x.flatten(1)
        if self.hidden:
            x = F.leaky_relu(x @ params["hidden.weight"].T, LEAK)
        return (x @ params["score.weight"].T + params["score.bias"]).squeeze(-1)

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
        gradient sends dP/d(dD/dx) forward through the layers once more. Equal to double backward.
        """
        ops = Products() if real.is_cuda else Convolutions()
        ends = 2 * len(real)  # rows up to here are real and fake, and the score's gradient; the rest is the penalty's
        signed = torch.cat([-weight, weight])
        kernels = [params[f"conv{i}.weight"] for i in range(len(self.widths))]

        layers, seen = [ops.entered(torch.cat([real, fake, mixed]))], []
        for i, kernel in enumerate(kernels):
            y, kept = ops.down(layers[-1], kernel, params[f"conv{i}.bias"])
            layers.append(F.leaky_relu(y, LEAK))
            seen.append(kept)
        flat = top = ops.flat(layers[-1])
        if self.hidden:
            top = F.leaky_relu(flat @ params["hidden.weight"].T, LEAK)

        gradient = gradient_hidden = torch.cat([signed, torch.ones_like(weight)])[:, None] * params["score.weight"]
        if self.hidden:
            gradient_hidden = slope(gradient, top)
            gradient = gradient_hidden @ params["hidden.weight"]
        gradient = ops.unflat(gradient, layers[-1])
        gradients: list[torch.Tensor] = []
        for i in reversed(range(len(kernels))):
            gradients.insert(0, gradient := slope(gradient, layers[i + 1]))
            if i:
                gradient = ops.up(gradient, kernels[i], layers[i])
        push = ops.up(gradient[ends:], kernels[0], layers[0][ends:])  # dD/dx at the mixed images
        size = (push.flatten(1).square().sum(1) + 1e-10).sqrt()
        push = push * (2 * penalty * weight * (size - 1) / size)[:, None, None, None]

        out = {}
        for i, kernel in enumerate(kernels):
            y, kept = ops.down(push, kernel)
            score_part = ops.kernel_gradient(seen[i][: len(seen[i]) // 3 * 2], gradients[i][:ends], kernel)
            out[f"conv{i}.weight"] = score_part + ops.kernel_gradient(kept, gradients[i][ends:], kernel)
            out[f"conv{i}.bias"] = ops.channel_sum(gradients[i][:ends])
            push = slope(y, layers[i + 1][ends:])
        push = ops.flat(push)
        if self.hidden:
            out["hidden.weight"] = gradient_hidden.T @ torch.cat([flat[:ends], push])
            push = slope(push @ params["hidden.weight"].T, top[ends:])
        out["score.weight"] = (signed @ top[:ends] + push.sum(0))[None]
        return out | {"score.bias": signed.sum()[None]}


@dataclasses.dataclass(frozen=True, kw_only=True)
class ConvGenerator:
    """Two dense layers, then transposed convolutions up to `side`; batch statistics always, also when sampling.

    Where doubling does not lead to `side`, what goes beyond it is cut off before the last layer.
    """

    side: int
    channels: int = 1
    latent: int = 128
    hidden: int = 1024
    widths: tuple[int, ...] = (256, 64, 32)
    classes: int = 0  # a conditional generator is also told which class to draw

    def __post_init__(self) -> None:
        sizes = {"side": self.side, "channels": self.channels, "latent": self.latent, "hidden": self.hidden}
        check_sizes(self.widths, **sizes, classes=self.classes + 1)  # 0 is none
        if not self.widths:
            raise ValueError("Expected widths of at least one layer in a generator.")

    @property
    def _base(self) -> int:
        return -(-self.side >> (len(self.widths) - 1))

    @classmethod
    def small(cls, side: int = 28, channels: int = 1) -> "ConvGenerator":
        return cls(side=side, channels=channels, latent=64, hidden=256, widths=(64, 32, 16))

    def init(self, seed: int) -> Tree:
        return _initialised(self._shapes, seed)

    def fits(self, params: Tree) -> bool:
        """Whether these are its weights; told from the shapes alone, which may be those of a hostile file."""
        return fitting(params, self._shapes)

    @property
    def _shapes(self) -> dict[str, tuple[int, ...]]:
        features = self.widths[0] * self._base**2
        shapes: dict[str, tuple[int, ...]] = {
            "dense0.weight": (self.hidden, self.latent + self.classes),
            "dense0.shift": (self.hidden,),
            "dense1.weight": (features, self.hidden),
            "dense1.shift": (features,),
        }
        for layer, (before, width) in enumerate(zip(self.widths, self.widths[1:], strict=False)):
            shapes |= {f"up{layer}.weight": (before, width, 4, 4), f"up{layer}.shift": (width,)}
        return shapes | {"image.weight": (self.channels, self.widths[-1], 4, 4), "image.bias": (self.channels,)}

    def latents(self, *shape: int, rng: torch.Generator) -> torch.Tensor:
        """What it draws from, without the class."""
        return torch.randn(*shape, self.latent, generator=rng)

    def images(self, params: Tree, latents: torch.Tensor) -> torch.Tensor:
        x = _normalised(latents @ params["dense0.weight"].T, params["dense0.shift"])
        x = _normalised(x @ params["dense1.weight"].T, params["dense1.shift"]).unflatten(
            1, (self.widths[0], self._base, self._base)
        )
        for layer in range(len(self.widths) - 1):
            x = _normalised(
                F.conv_transpose2d(x, params[f"up{layer}.weight"], stride=2, padding=1), params[f"up{layer}.shift"]
            )
        x = x[..., : self.side, : self.side]
        return F.conv2d(F.pad(x, (1, 2, 1, 2)), params["image.weight"], params["image.bias"]).tanh()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Gan:
    """A generator and a critic that fit together; images lie in [-1, 1].

    A conditional pair (`classes` > 0) shares a joint distribution of images and labels: the critic sees a label as one
    more plane of pixels per class, white for the class it is.
    """

    generator: ConvGenerator | ResidualGenerator
    critic: ConvCritic | ProjectionCritic
    penalty: float = 10.0

    def __post_init__(self) -> None:
        planes = self.classes if isinstance(self.critic, ConvCritic) else 0
        if self.critic.channels != self.generator.channels + planes:
            raise ValueError("Expected a critic with a plane for each channel and each class.")
        if isinstance(self.critic, ProjectionCritic) and self.critic.classes != self.classes:
            raise ValueError("Expected a critic and a generator of the same classes.")

    @property
    def classes(self) -> int:
        return self.generator.classes

    def conditional(self, classes: int) -> "Gan":
        """The same pair, for images with labels below `classes`."""
        generator = dataclasses.replace(self.generator, classes=classes)
        critic: ConvCritic | ProjectionCritic
        if isinstance(self.critic, ConvCritic):
            critic = dataclasses.replace(self.critic, channels=generator.channels + classes)
        else:
            critic = dataclasses.replace(self.critic, classes=classes)
        return dataclasses.replace(self, generator=generator, critic=critic)

    @property
    def conv_generator(self) -> ConvGenerator:
        """Where it is of the kind that is fitted to looks."""
        if not isinstance(self.generator, ConvGenerator):
            raise ValueError("Expected another model.size than 'gs-wgan': its generator is fitted to no look.")
        return self.generator

    @property
    def conv_critic(self) -> ConvCritic:
        """Where it is of the kind that users can send."""
        if not isinstance(self.critic, ConvCritic):
            raise ValueError("Expected model.size = 'paper' or 'small': other critics stay where they are.")
        return self.critic

    @property
    def shape(self) -> tuple[int, int, int]:
        """Of an image."""
        return self.generator.channels, self.generator.side, self.generator.side

    @classmethod
    def paper(cls, side: int = 28, channels: int = 1) -> "Gan":
        """The paper's pair: 6.55 million critic weights at 28 x 28."""
        generator = ConvGenerator(side=side, channels=channels)
        return cls(generator=generator, critic=ConvCritic(side=side, channels=channels, widths=(64, 128), hidden=1024))

    @classmethod
    def small(cls, side: int = 28, channels: int = 1) -> "Gan":
        """A pair for few users and small epsilons: noise grows with the number of weights, about 3,000 at 28 x 28."""
        generator = ConvGenerator.small(side, channels)
        return cls(generator=generator, critic=ConvCritic(side=side, channels=channels, widths=(8, 16)))

    @classmethod
    def gs_wgan(cls, side: int = 28, channels: int = 1) -> "Gan":
        """The pair of Chen et al. 2020: 1.07 million critic weights at 28 x 28 with ten classes."""
        generator = ResidualGenerator(side=side, channels=channels, classes=0)
        return cls(generator=generator, critic=ProjectionCritic(side=side, channels=channels, classes=0))

    @classmethod
    def datalens(cls, side: int = 28, channels: int = 1) -> "Gan":
        """The pair of Wang et al. 2021, as far as it looks at no batch of private images."""
        generator = ConvGenerator(side=side, channels=channels, latent=50, widths=(128, 128, 64))
        critic = ProjectionCritic(
            side=side, channels=channels, classes=0, widths=(11, 42), hidden=256, spectral=False, leak=0.2
        )
        return cls(generator=generator, critic=critic)

    def latents(self, *shape: int, rng: torch.Generator) -> torch.Tensor:
        """What a generator draws from: normal numbers and, if it is conditional, a class, each equally often."""
        latents = self.generator.latents(*shape, rng=rng)
        if not self.classes:
            return latents
        labels = torch.randint(self.classes, shape, generator=rng)
        return torch.cat([latents, one_hot(labels, self.classes)], -1)

    def latents_of(self, labels: torch.Tensor, rng: torch.Generator) -> torch.Tensor:
        """The same, of these classes, if there are any."""
        latents = self.generator.latents(*labels.shape, rng=rng)
        return torch.cat([latents, one_hot(labels, self.classes)], -1) if self.classes else latents

    def labels(self, latents: torch.Tensor) -> torch.Tensor:
        """The classes that conditional latents ask for."""
        return latents[..., self.generator.latent :].argmax(-1)

    def shown(self, images: torch.Tensor, labels: torch.Tensor | None) -> torch.Tensor:
        """What the critic sees; a label that is none of the classes is no plane at all."""
        if not self.classes or labels is None:
            return images
        planes = one_hot(labels, self.classes)[..., None, None].expand(*labels.shape, -1, *images.shape[-2:])
        return torch.cat([images, planes], -3)

    def score(self, critic: Tree, images: torch.Tensor, labels: torch.Tensor | None) -> torch.Tensor:
        """What the critic, of either kind, thinks of images with labels."""
        if isinstance(self.critic, ConvCritic):
            return self.critic.score(critic, self.shown(images, labels))
        return self.critic.score(critic, images, labels)

    @staticmethod
    def turned(params: Tree) -> Tree:
        """What else a step does to the weights of either: nothing, unless they are spectrally normalised."""
        return turned(params)

    def generator_loss(self, generator: Tree, critic: Tree, latents: torch.Tensor) -> torch.Tensor:
        labels = self.labels(latents) if self.classes else None
        return -self.score(critic, self.generator.images(generator, latents), labels).mean()

    def drawn(
        self, generator: Tree, count: int, seed: int, batch: int = 256
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Images, and labels if conditional; in full batches, since an image leans on the statistics of its batch."""
        rng = torch.Generator().manual_seed(seed)
        device = generator["image.bias"].device
        latents = [self.latents(batch, rng=rng) for _ in range(-(-count // batch))]
        with torch.no_grad():
            images = torch.cat([self.generator.images(generator, part.to(device)).cpu() for part in latents])[:count]
        return images, self.labels(torch.cat(latents)[:count]) if self.classes else None


def _normalised(x: torch.Tensor, shift: torch.Tensor) -> torch.Tensor:
    """Batch normalisation by the batch's own statistics, without scale, then ReLU."""
    over = (0, *range(2, x.dim()))
    variance, mean = torch.var_mean(x, over, correction=0, keepdim=True)
    return F.relu((x - mean) * (variance + 1e-3).rsqrt() + shift.view(-1, *[1] * (x.dim() - 2)))


def _initialised(shapes: dict[str, tuple[int, ...]], seed: int) -> Tree:
    """Matrices of Glorot's scale, in the order of the shapes; everything else is zero."""
    rng = torch.Generator().manual_seed(seed)
    return {name: glorot(shape, rng) if len(shape) > 1 else torch.zeros(shape) for name, shape in shapes.items()}


def round_seed(seed: int, round_number: int) -> int:
    """Of what is drawn in a round, and public."""
    return int.from_bytes(hashlib.sha256(f"round {seed} {round_number}".encode()).digest()[:7], "big")


def _divisible(side: int, halvings: int) -> None:
    if side % 2**halvings or side < 2**halvings:
        raise ValueError(f"Expected side={side} divisible by {2**halvings}: the network halves it {halvings} times.")
