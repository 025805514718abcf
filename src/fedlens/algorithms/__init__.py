"""Published algorithms: settings, methods that run beside the data, and a `run` that never sees it."""

from fedlens.algorithms.clipping import AdaptiveClip
from fedlens.algorithms.fedavg import FedAvg
from fedlens.algorithms.fedavg_gan import FedAvgGan
from fedlens.algorithms.ngrams import Ngrams
from fedlens.algorithms.optimizers import Adam, Sgd
from fedlens.algorithms.together import run_together

__all__ = ["Adam", "AdaptiveClip", "FedAvg", "FedAvgGan", "Ngrams", "Sgd", "run_together"]
