"""What two sets of pictures are measured by: pure functions of samples, the same for the same seed.

Images are [n, 1 or 3, side, side] in [-1, 1] and finite. The tests and distances take any rows [n, ...], features too.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F

Features = Callable[[torch.Tensor], torch.Tensor]  # images -> [n, d], fixed before the samples were drawn

FOLDS = 5
BANDWIDTHS = (0.5, 1.0, 2.0)  # in medians: finer and coarser differences than the typical distance
# The width of `distinct`'s kernel, as a root mean square per pixel: far above the flicker of one picture drawn again,
# half the 0.7 between two handwritten digits. 512 MNIST digits then count as 200, 512 of Fashion-MNIST as 150.
DIFFERENT = 0.35


@dataclasses.dataclass(frozen=True, kw_only=True)
class TwoSample:
    """How far two sets differ, and how often chance alone would part them as far or farther."""

    statistic: float
    p_value: float


def classifier_test(
    left: torch.Tensor,
    right: torch.Tensor,
    *,
    features: Features | None = None,
    permutations: int = 200,
    seed: int = 0,
) -> TwoSample:
    """The cross-validated AUC of a linear classifier between the groups (Lopez-Paz and Oquab, ICLR 2017).

    0.5 tells nothing apart and 1 everything. Ridge regression, held out in folds with equal shares of either group.
    The p-value is valid for any number of samples drawn independently: labels change places within folds only, so if
    the groups are alike, every relabelling is as likely as the true one, and all else is blind to labels.
    """
    rows = _rows(left, right, features)
    rng = torch.Generator().manual_seed(seed)
    count = min(FOLDS, len(left), len(right))
    dealt = torch.cat([torch.randperm(len(group), generator=rng) % count for group in (left, right)])
    folds, order = dealt.sort(stable=True)
    labels = _relabelled(order < len(left), folds, permutations, rng)
    members = torch.arange(len(folds)).split(folds.bincount().tolist())
    scores = _held_out(rows[order], labels, members)
    aucs = [_auc(scores[fold], labels[fold]) for fold in members]
    return _tested(torch.stack(aucs).mean(0))


def mmd_test(
    left: torch.Tensor,
    right: torch.Tensor,
    *,
    features: Features | None = None,
    permutations: int = 200,
    seed: int = 0,
) -> TwoSample:
    """The unbiased squared maximum mean discrepancy (Gretton et al., JMLR 2012), by mean of three Gaussian kernels.

    0 on average, so sometimes below, for groups that are alike. The p-value is valid for any number of samples.
    """
    kernel = _kernel(_squared_distances(_rows(left, right, features)))
    is_left = torch.arange(len(kernel)) < len(left)
    rng = torch.Generator().manual_seed(seed)
    labels = _relabelled(is_left, torch.zeros(len(kernel)), permutations, rng)
    both_left = (labels * (kernel @ labels)).sum(0)
    one_left = kernel.sum(1) @ labels - both_left
    both_right = kernel.sum() - 2 * one_left - both_left
    n, m = len(left), len(right)
    return _tested(both_left / (n * (n - 1)) + both_right / (m * (m - 1)) - 2 * one_left / (n * m))


def random_features(images: torch.Tensor, seed: int = 0, width: int = 32) -> torch.Tensor:
    """Features for want of a primary model: random filters, learned from nothing, so the same for whatever is compared.

    5 x 5 convolutions and ReLU on the image and on its half size, averaged over 3 x 3 places (random kitchen sinks,
    Rahimi and Recht 2008): strokes and textures without their exact position. [n, 18 * width], not standardised.
    """
    rng = torch.Generator().manual_seed(seed)
    channels, scales = images.shape[1], []
    for scale in (1, 2):
        filters = torch.randn(width, channels, 5, 5, generator=rng) / math.sqrt(25 * channels)
        offsets = torch.randn(width, generator=rng) / 2
        chunks = images.float().split(128)  # what the filters answer to all images at once would not fit a laptop
        scales.append(torch.cat([_answers(F.avg_pool2d(chunk, scale), filters, offsets) for chunk in chunks]))
    return torch.cat(scales, 1)


def _answers(images: torch.Tensor, filters: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    padded = F.pad(images, (2, 2, 2, 2), mode="replicate")
    return F.adaptive_avg_pool2d(F.relu(F.conv2d(padded, filters, offsets)), 3).flatten(1)


def orientation_spectrum(images: torch.Tensor, bins: int = 18) -> torch.Tensor:
    """The share of gradient energy by the direction of strokes: bin k is around 180 k / bins degrees, [bins].

    0 is a horizontal stroke, and angles grow counter-clockwise. Energy is shared between the two nearest bins, as in
    histograms of oriented gradients (Dalal and Triggs, CVPR 2005), and smoothed once more.
    """
    x = images.double()
    across = x[..., 1:-1, 2:] - x[..., 1:-1, :-2]
    up = x[..., :-2, 1:-1] - x[..., 2:, 1:-1]
    energy = (across.square() + up.square()).flatten()
    if not energy.sum() > 0:
        return torch.full((bins,), 1 / bins, dtype=torch.float64)
    place = (torch.atan2(up, across).flatten() / math.pi + 0.5) * bins  # strokes run across the gradient
    lower = place.floor()
    rest, lower = place - lower, lower.long()
    votes = torch.zeros(bins, dtype=torch.float64)
    votes.index_add_(0, lower % bins, energy * (1 - rest)).index_add_(0, (lower + 1) % bins, energy * rest)
    return (votes.roll(-1) + 2 * votes + votes.roll(1)) / (4 * energy.sum())


def intensity_histogram(images: torch.Tensor, bins: int = 32) -> torch.Tensor:
    """The share of pixels in each of `bins` equal steps from -1 to 1; what lies beyond counts as the end it passed.

    >>> intensity_histogram(torch.tensor([-1.0, -0.9, 0.1, 7.0]), bins=4)
    tensor([0.5000, 0.0000, 0.2500, 0.2500], dtype=torch.float64)
    """
    return images.double().clamp(-1, 1).histc(bins, -1, 1) / max(1, images.numel())


def spread(images: torch.Tensor) -> float:
    """The mean distance between two samples, per pixel (root mean square).

    >>> spread(torch.tensor([0.0, 1.0]).reshape(2, 1, 1, 1).expand(2, 3, 8, 8))
    1.0
    """
    rows = images.flatten(1).double()
    pairs = max(1, len(rows) * (len(rows) - 1))
    return float(_squared_distances(rows).sqrt().sum()) / pairs / math.sqrt(rows.shape[1])


def distinct(images: torch.Tensor) -> float:
    """How many different pictures there are in effect: from 1 for one again and again to n for n unlike any other.

    The Vendi score (Friedman and Dieng, TMLR 2023): the exponential of the entropy of a kernel's eigenvalues. The
    kernel's width is a constant, so that numbers of different models can be compared.
    """
    rows = images.flatten(1).double()
    kernel = torch.exp(-_squared_distances(rows) / rows.shape[1] / (2 * DIFFERENT**2))
    shares = torch.linalg.eigvalsh(kernel / len(rows)).clamp(0, 1)
    return min(max(1.0, math.exp(torch.special.entr(shares).sum())), float(len(rows)))


# Rows, labels and ranks


def _rows(left: torch.Tensor, right: torch.Tensor, features: Features | None) -> torch.Tensor:
    """Both groups below each other; features are standardised jointly, which tells nothing about who is who."""
    if left.shape[1:] != right.shape[1:] or min(len(left), len(right)) < 2:
        raise ValueError("Expected at least two samples a group, all of one shape.")
    both = torch.cat([left, right])
    if features is None:
        return both.flatten(1).double()
    rows = features(both).flatten(1).double()
    deviation, mean = torch.std_mean(rows, 0)
    varies = deviation > 1e-5 * (mean.abs() + deviation)  # what rounding alone moves must not be blown up
    return torch.where(varies, (rows - mean) / deviation, 0.0)


def _squared_distances(rows: torch.Tensor) -> torch.Tensor:
    """Between all pairs; exactly 0 for equal rows, which rounding would part."""
    norms = rows.square().sum(1)
    sums = norms[:, None] + norms
    distances = (sums - 2 * rows @ rows.T).fill_diagonal_(0)
    return distances.where(distances > 1e-12 * sums, 0.0)


def _kernel(distances: torch.Tensor) -> torch.Tensor:
    """The mean of Gaussian kernels around the median distance of all that differ; a pair of one sample counts 0."""
    different = distances[distances > 0]
    median = different.median() if len(different) else 1.0
    kernels = [torch.exp(-distances / (2 * width**2 * median)) for width in BANDWIDTHS]
    return torch.stack(kernels).mean(0).fill_diagonal_(0)


def _relabelled(is_left: torch.Tensor, folds: torch.Tensor, permutations: int, rng: torch.Generator) -> torch.Tensor:
    """The labels, then as many random relabellings within each of the folds, which lie one after the other."""
    keys = folds + torch.rand(permutations, len(folds), generator=rng, dtype=torch.float64)
    return torch.cat([is_left[None], is_left[keys.argsort(1)]]).double().T


def _held_out(rows: torch.Tensor, labels: torch.Tensor, folds: Sequence[torch.Tensor]) -> torch.Tensor:
    """Each fold's predictions by ridge regression on the other folds, for all columns of labels at once.

    With A the inverse of the kernel matrix plus the ridge, fold F is missed by inv(A[F, F]) (A y)[F], if left out.
    """
    centred = rows - rows.mean(0)
    kernel = centred @ centred.T
    # As strong as one sample is long: directions that a single sample could have made are not trusted.
    ridge = kernel.diagonal().mean() + 1e-6
    inverse = torch.linalg.inv(kernel + torch.diag(ridge.expand(len(rows))))
    targets = labels - labels.mean(0)
    solved = inverse @ targets
    missed = [torch.linalg.solve(inverse[fold][:, fold], solved[fold]) for fold in folds]
    return targets - torch.cat(missed)


def _auc(scores: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Of each column: how often a left sample scores above a right one; ties count half."""
    columns = scores.T.round(decimals=6).contiguous()  # equal samples must tie, whatever rounding does
    ordered = columns.sort(1).values
    below, not_above = (torch.searchsorted(ordered, columns, right=right) for right in (False, True))
    lefts = labels.sum(0)
    won = ((below + not_above + 1) / 2 * labels.T).sum(1) - lefts * (lefts + 1) / 2
    return won / (lefts * (len(labels) - lefts))


def _tested(statistics: torch.Tensor) -> TwoSample:
    """The first is observed, the others are by chance; it counts as one of them, or p-values would be too small."""
    as_far = statistics >= statistics[0] - 1e-10  # rounding must not break ties in favour of the observed
    return TwoSample(statistic=float(statistics[0]), p_value=float(as_far.double().mean()))
