"""Named transforms of images: bugs to plant on private data, and hypotheses to explain a difference between samples."""

from collections.abc import Callable

import torch

Transform = Callable[[torch.Tensor], torch.Tensor]

# Images are [n, channels, side, side] in [-1, 1].
TRANSFORMS: dict[str, tuple[str, Transform]] = {
    "inverted": ("inverted pixels", torch.neg),
    "rotated-90": ("a rotation by 90 degrees", lambda x: x.rot90(1, (2, 3))),
    "rotated-180": ("a rotation by 180 degrees", lambda x: x.rot90(2, (2, 3))),
    "rotated-270": ("a rotation by 270 degrees", lambda x: x.rot90(3, (2, 3))),
    "mirrored": ("images mirrored left to right", lambda x: x.flip(3)),
    "upside-down": ("images flipped upside down", lambda x: x.flip(2)),
}
