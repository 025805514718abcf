"""Strided convolutions, their transposes and the gradients of their kernels: what a written-out gradient needs.

Either way gives the same numbers: by the library's own kernels, which are fastest on a CPU, or as products of matrices,
which are fastest on a GPU where every unit has kernels of its own.
"""

import dataclasses

import torch
import torch.nn.functional as F

LEAK = 0.01
_aten = torch.ops.aten
Gradients = tuple[torch.Tensor, ...]  # by the input, the kernel and the bias


@dataclasses.dataclass(frozen=True)
class Convolutions:
    """Of stride 2, by the library's kernels."""

    padding: int = 1

    @property
    def _shape(self) -> tuple[list[int], list[int], list[int], bool, list[int], int]:
        """Stride, padding, dilation, transposed, output padding, groups."""
        return [2, 2], [self.padding, self.padding], [1, 1], False, [0, 0], 1

    @staticmethod
    def entered(images: torch.Tensor) -> torch.Tensor:
        return images

    @staticmethod
    def flat(x: torch.Tensor) -> torch.Tensor:
        return x.flatten(1)

    @staticmethod
    def unflat(flat: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
        images: torch.Tensor = flat.unflatten(1, like.shape[1:])
        return images

    @staticmethod
    def channel_sum(x: torch.Tensor) -> torch.Tensor:
        return x.sum((0, 2, 3))

    def down(
        self, x: torch.Tensor, kernel: torch.Tensor, bias: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The convolution, and what `kernel_gradient` wants to see of x."""
        return F.conv2d(x, kernel, bias, stride=2, padding=self.padding), x

    def up(self, y: torch.Tensor, kernel: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
        """The transpose of `down`; `like` has the shape of the result."""
        gradients: Gradients = _aten.convolution_backward(y, like, kernel, None, *self._shape, [True, False, False])
        return gradients[0]

    def kernel_gradient(self, seen: torch.Tensor, y: torch.Tensor, kernel: torch.Tensor) -> torch.Tensor:
        """d/d kernel of sum(y * down(x))."""
        gradients: Gradients = _aten.convolution_backward(y, seen, kernel, None, *self._shape, [False, True, False])
        return gradients[1]


class Patches(Convolutions):
    """The same as products of matrices."""

    def down(
        self, x: torch.Tensor, kernel: torch.Tensor, bias: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """As above; what is kept are the patches."""
        size = kernel.shape[-2:]
        patches = F.unfold(x, size, padding=self.padding, stride=2)  # [rows, channels x size, places]
        y = kernel.flatten(1) @ patches
        sides = [(side + 2 * self.padding - one) // 2 + 1 for side, one in zip(x.shape[-2:], size, strict=True)]
        return (y if bias is None else y + bias[:, None]).unflatten(2, sides), patches

    def up(self, y: torch.Tensor, kernel: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
        taps = kernel.flatten(1).T @ y.flatten(2)
        return F.fold(taps, like.shape[-2:], kernel.shape[-2:], padding=self.padding, stride=2)

    def kernel_gradient(self, seen: torch.Tensor, y: torch.Tensor, kernel: torch.Tensor) -> torch.Tensor:
        return (y.flatten(2) @ seen.transpose(1, 2)).sum(0).view_as(kernel)


class Products:
    """The same as products of matrices, channels last, for kernels of 4x4."""

    @staticmethod
    def entered(images: torch.Tensor) -> torch.Tensor:
        return images.permute(0, 2, 3, 1)

    @staticmethod
    def flat(x: torch.Tensor) -> torch.Tensor:
        return x.permute(0, 3, 1, 2).flatten(1)

    @staticmethod
    def unflat(flat: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
        high, wide, channels = like.shape[1:]
        images: torch.Tensor = flat.unflatten(1, (channels, high, wide))
        return images.permute(0, 2, 3, 1)

    @staticmethod
    def channel_sum(x: torch.Tensor) -> torch.Tensor:
        return x.sum((0, 1, 2))

    @staticmethod
    def down(
        x: torch.Tensor, kernel: torch.Tensor, bias: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        rows, high, wide, _ = x.shape
        windows = F.pad(x, (0, 0, 1, 1, 1, 1)).unfold(1, 4, 2).unfold(2, 4, 2)  # [rows, h/2, w/2, channels, 4, 4]
        patches = windows.permute(0, 1, 2, 4, 5, 3).reshape(rows * high * wide // 4, -1)
        y = patches @ _as_matrix(kernel)
        return (y if bias is None else y + bias).view(rows, high // 2, wide // 2, -1), patches

    @staticmethod
    def up(y: torch.Tensor, kernel: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
        rows, high, wide, width = y.shape
        taps = (y.reshape(-1, width) @ _as_matrix(kernel).T).view(rows, high, wide, 2, 2, 2, 2, -1)
        total = taps.new_zeros(rows, high + 1, 2, wide + 1, 2, taps.shape[-1])
        for v in (0, 1):  # of the four rows of a kernel, two fall on either of two neighbouring pairs of pixels
            for h in (0, 1):
                total[:, v : v + high, :, h : h + wide] += taps[:, :, :, v, :, h].permute(0, 1, 3, 2, 4, 5)
        return total.reshape(rows, 2 * high + 2, 2 * wide + 2, -1)[:, 1:-1, 1:-1]

    @staticmethod
    def kernel_gradient(seen: torch.Tensor, y: torch.Tensor, kernel: torch.Tensor) -> torch.Tensor:
        matrix = seen.T @ y.reshape(len(seen), -1)
        return matrix.view(4, 4, kernel.shape[1], kernel.shape[0]).permute(3, 2, 0, 1)


def _as_matrix(kernel: torch.Tensor) -> torch.Tensor:
    return kernel.permute(2, 3, 1, 0).reshape(-1, len(kernel))


def slope(gradient: torch.Tensor, activation: torch.Tensor, leak: float = LEAK) -> torch.Tensor:
    """`gradient`, times the slope of the leaky ReLU that made `activation`."""
    slope: torch.Tensor = _aten.leaky_relu_backward(gradient, activation, leak, False)
    return slope
