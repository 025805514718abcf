"""From arrays in memory to a report: two groups of users, one model each, and what sets them apart.

Seeded noise, to be repeatable: it protects nobody, and every guarantee says so.
"""

import dataclasses
import pathlib
import sys

import numpy as np
from sklearn.datasets import load_digits

import fedlens

out = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else "arrays-report")
ledger = fedlens.Ledger()
small = fedlens.Gan.small(8, 1)
gan = dataclasses.replace(small, generator=dataclasses.replace(small.generator, latent=16, hidden=64, widths=(32, 16)))
algorithm = fedlens.FedAvgGan(
    gan=gan,
    batch=8,
    local_steps=2,
    local_rate=0.02,
    generator_steps=3,
    generator_batch=64,
    generator=fedlens.Adam(rate=2e-3, beta1=0.5, beta2=0.9),
)


def model(label: str, images: np.ndarray, users: int) -> fedlens.Model:
    """Trained on `users` users who hold the images between them, at a price that the ledger keeps."""
    population = fedlens.Population.from_arrays(label, {"x": images}, np.full(users, len(images) // users))
    plan = fedlens.Plan(
        sampling=fedlens.Everyone(),
        bound=fedlens.L2Clip(norm=0.1),
        noise_multiplier=1.0,
        releases=80,
        expected_contributors=users,
    ).calibrated(8.0, 1e-5)
    randomness = fedlens.Randomness.seeded(1)
    account = fedlens.Account(run=f"arrays/{label}", population="people", part=label, simulated=randomness.simulated)
    curator = fedlens.SimulatedCurator(population, plan, ledger=ledger, account=account, randomness=randomness)
    *_, state = algorithm.run(curator, algorithm.start())
    return fedlens.Model(
        gan=gan,
        generator=algorithm.result(state),
        label=label,
        spending=ledger.spending(account.run),
        delta=1e-5,
        recipe_sha256="",
        rounds=plan.releases,
        ledger_head=ledger.pin(),
    )


digits = load_digits().images[:, None].astype(np.float32) / 8 - 1  # [n, 1, 8, 8] in [-1, 1]
half = len(digits) // 2 // 15 * 15
healthy, suspicious = (
    model("healthy", digits[:half], half // 15),
    model("suspicious", -digits[half : 2 * half], half // 15),
)
report = fedlens.contrast(suspicious.sampled(256, seed=0), healthy.sampled(256, seed=0), title="two cameras")
report.save(out)
print(report.text())
