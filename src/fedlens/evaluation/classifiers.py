"""The 13 classifiers of chen2020 (C.3): how each is trained, and how right it is.

The text of the paper asks for scikit-learn's defaults and its code for other settings; these are the code's, where
today's versions still have them. Neither scikit-learn nor xgboost is loaded before it is needed.
"""

import dataclasses
import functools
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import torch

from fedlens.evaluation import networks
from fedlens.evaluation.networks import NETWORKS, TrainingRule

Images = torch.Tensor | np.ndarray  # [n, channels, height, width], floats in [-1, 1]
Labels = torch.Tensor | np.ndarray


class Predictor(Protocol):
    """A trained classifier."""

    def predictions(self, images: torch.Tensor) -> torch.Tensor: ...


@dataclasses.dataclass(frozen=True)
class TrainedNetwork:
    """A network of ours."""

    module: torch.nn.Module
    classes: torch.Tensor  # what its outputs stand for

    def predictions(self, images: torch.Tensor) -> torch.Tensor:
        return self.classes[networks.predictions(self.module, images)]


@dataclasses.dataclass(frozen=True)
class Estimator:
    """One of scikit-learn's or xgboost's."""

    model: Any
    classes: torch.Tensor

    def predictions(self, images: torch.Tensor) -> torch.Tensor:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            return self.classes[torch.as_tensor(self.model.predict(flat(images)), dtype=torch.long)]


@dataclasses.dataclass(frozen=True)
class Constant:
    """Always the same answer: there was one class to learn, or nothing could be learnt."""

    label: int
    why: str

    def predictions(self, images: torch.Tensor) -> torch.Tensor:
        return torch.full((len(images),), self.label)


def _logistic_reg(seed: int) -> Any:
    from sklearn.linear_model import LogisticRegression

    return LogisticRegression(max_iter=5000, random_state=seed)


def _random_forest(seed: int) -> Any:
    from sklearn.ensemble import RandomForestClassifier

    return RandomForestClassifier(n_estimators=100, class_weight="balanced", random_state=seed)


def _gaussian_nb(seed: int) -> Any:
    from sklearn.naive_bayes import GaussianNB

    return GaussianNB()


def _bernoulli_nb(seed: int) -> Any:
    from sklearn.naive_bayes import BernoulliNB

    return BernoulliNB(binarize=0.5)


def _linear_svc(seed: int) -> Any:
    from sklearn.svm import LinearSVC

    return LinearSVC(loss="hinge", max_iter=10_000, random_state=seed)


def _decision_tree(seed: int) -> Any:
    from sklearn.tree import DecisionTreeClassifier

    return DecisionTreeClassifier(class_weight="balanced", criterion="gini", random_state=seed)


def _lda(seed: int) -> Any:
    from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

    return LinearDiscriminantAnalysis(solver="eigen", shrinkage=0.5)


def _adaboost(seed: int) -> Any:
    from sklearn.ensemble import AdaBoostClassifier

    return AdaBoostClassifier(n_estimators=100, random_state=seed)  # SAMME: its SAMME.R is gone from scikit-learn


def _bagging(seed: int) -> Any:
    from sklearn.ensemble import BaggingClassifier

    return BaggingClassifier(n_estimators=20, max_samples=0.1, random_state=seed)


def _gbm(seed: int) -> Any:
    from sklearn.ensemble import GradientBoostingClassifier

    return GradientBoostingClassifier(n_estimators=50, subsample=0.1, random_state=seed)


def _xgboost(seed: int) -> Any:
    try:
        from xgboost import XGBClassifier
    except ImportError:
        raise ValueError(
            "Expected xgboost for the classifier xgboost: install fedlens[evaluation], or name others (--classifiers)."
        ) from None
    return XGBClassifier(n_estimators=50, colsample_bytree=0.1, random_state=seed, n_jobs=1)


ESTIMATORS: dict[str, Callable[[int], Any]] = {
    "adaboost": _adaboost,
    "bagging": _bagging,
    "bernoulli_nb": _bernoulli_nb,
    "decision_tree": _decision_tree,
    "gaussian_nb": _gaussian_nb,
    "gbm": _gbm,
    "lda": _lda,
    "linear_svc": _linear_svc,
    "logistic_reg": _logistic_reg,
    "random_forest": _random_forest,
    "xgboost": _xgboost,
}
CLASSIFIERS = ("mlp", "cnn", *ESTIMATORS)
UNSEEDED = (
    "bernoulli_nb",
    "gaussian_nb",
    "lda",
    "logistic_reg",
)  # the same data give the same model, whatever the seed


def trained(
    name: str,
    images: Images,
    labels: Labels,
    *,
    seed: int = 0,
    device: str = "cpu",
    training: TrainingRule = TrainingRule(),  # noqa: B008
) -> Predictor:
    """A classifier by its name, trained on these images; the networks on the device, the others always on the CPU.

    >>> rng = np.random.default_rng(0)
    >>> labels = np.arange(200) % 2
    >>> images = (2 * labels - 1)[:, None, None, None] * rng.uniform(0.1, 1, (200, 1, 8, 8)).astype(np.float32)
    >>> accuracy(trained("gaussian_nb", images, labels), images, labels)
    1.0
    """
    check_names([name])
    pixels, wanted = as_images(images), as_labels(labels, len(images))
    classes, indices = wanted.cpu().unique(return_inverse=True)
    if len(classes) < 2:
        return Constant(int(classes[0]), "there is one class to learn")
    if name in NETWORKS:
        make = functools.partial(NETWORKS[name], tuple(pixels.shape[1:]), len(classes))
        module = networks.trained(make, pixels.to(device), indices.to(device), training, seed)
        return TrainedNetwork(module, classes)
    return _fitted(ESTIMATORS[name](seed), flat(pixels), indices.numpy(), classes)


def accuracy(predictor: Predictor, images: Images, labels: Labels) -> float:
    """The share of images whose label it names."""
    wanted = as_labels(labels, len(images))
    return float((predictor.predictions(as_images(images)) == wanted.cpu()).double().mean())


def timed(make: Callable[[], Predictor], device: str) -> tuple[Predictor, float]:
    """A classifier, and the seconds it took; a GPU has finished by then."""
    start = time.perf_counter()
    made = make()
    if device.startswith("cuda"):
        torch.cuda.synchronize()
    return made, time.perf_counter() - start


def flop(name: str, shape: tuple[int, ...], classes: int, count: int, training: TrainingRule) -> float | None:
    """What training costs, of networks; nobody counts what the others compute."""
    if name not in NETWORKS:
        return None
    return networks.flop(functools.partial(NETWORKS[name], shape, classes), shape, count, training)


def check_names(names: Sequence[str]) -> None:
    if unknown := [name for name in names if name not in CLASSIFIERS]:
        raise ValueError(f"Expected classifiers among {', '.join(CLASSIFIERS)}; got {', '.join(unknown)}.")


def check_installed(names: Sequence[str]) -> None:
    """Before hours of work, and not after."""
    if "xgboost" in names:
        _xgboost(0)


def as_images(images: Images) -> torch.Tensor:
    shaped = torch.as_tensor(images)
    if shaped.dim() != 4 or 0 in shaped.shape or not shaped.is_floating_point():
        raise ValueError(f"Expected images [n, channels, height, width] of floats, got {list(shaped.shape)}.")
    if not shaped.isfinite().all():
        raise ValueError("Expected finite pixels; some are NaN or infinite.")
    return shaped.float()


def as_labels(labels: Labels, count: int) -> torch.Tensor:
    wanted = torch.as_tensor(labels)
    if wanted.shape != (count,) or wanted.is_floating_point() or wanted.dtype == torch.bool:
        raise ValueError(f"Expected one whole number as the label of each of {count} images.")
    return wanted.long()


def flat(images: torch.Tensor) -> np.ndarray:
    """Rows of pixels in [0, 1], as the paper's code hands them to scikit-learn."""
    rows: np.ndarray = ((images.cpu().flatten(1) + 1) / 2).numpy()
    return rows


def _fitted(model: Any, rows: np.ndarray, indices: np.ndarray, classes: torch.Tensor) -> Predictor:
    """Where arithmetic fails, as on images that are all the same, the commonest class is all that was learnt."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return Estimator(model.fit(rows, indices), classes)
    except (ValueError, ArithmeticError, np.linalg.LinAlgError):
        return Constant(int(classes[np.bincount(indices).argmax()]), "it could not be trained")
