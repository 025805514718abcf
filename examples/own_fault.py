"""A fault of one's own as an explanation: a function of images, named by its module."""

import pathlib
import sys

import torch

import fedlens

sys.path.insert(0, str(pathlib.Path(__file__).parent))  # so that own_fault:rolled can be found


def rolled(images: torch.Tensor) -> torch.Tensor:
    """Rows read three lines too late, as if the camera lost its beginning."""
    return images.roll(3, dims=2)


def samples(images: torch.Tensor, label: str) -> fedlens.Samples:
    """As if a model had drawn them: samples never travel without what they cost."""
    plan = fedlens.Plan(
        sampling=fedlens.Everyone(),
        bound=fedlens.L2Clip(norm=0.1),
        noise_multiplier=5.0,
        releases=10,
        expected_contributors=100,
    )
    account = fedlens.Account(run=f"cameras/{label}", population="people", partition="cameras", part=label)
    return fedlens.Samples(
        images=images, label=label, spending=fedlens.Spending(account=account, plans=(plan,)), delta=1e-5
    )


if __name__ == "__main__":
    rng = torch.Generator().manual_seed(0)
    corner = torch.full((2, 400, 1, 8, 8), -0.9) + 0.1 * torch.randn(2, 400, 1, 8, 8, generator=rng)
    corner[..., :3, :4] += 1.6
    images = corner.clamp(-1, 1)
    report = fedlens.contrast(
        samples(rolled(images[0]), "new"), samples(images[1], "old"), kinds=["own_fault:rolled"], title="own fault"
    )
    print(report.text())
