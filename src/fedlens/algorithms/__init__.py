"""Published algorithms: settings, methods that run beside the data, and a `run` that never sees it."""

from fedlens.algorithms.fedavg_gan import AdaptiveClip, FedAvgGan, run_together
from fedlens.algorithms.optimizers import Adam, Sgd

__all__ = ["Adam", "AdaptiveClip", "FedAvgGan", "Sgd", "run_together"]
