"""Published algorithms: settings, methods that run beside the data, and a `run` that never sees it."""

from fedlens.algorithms.fedavg_gan import AdaptiveClip, FedAvgGan
from fedlens.algorithms.optimizers import Adam, Sgd

__all__ = ["Adam", "AdaptiveClip", "FedAvgGan", "Sgd"]
