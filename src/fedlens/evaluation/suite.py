"""Synthetic images against real ones, by the protocol: what 13 classifiers learn from them, and how far they lie.

Real images are public, or the evaluator's own: nothing here is charged, so nothing here may be private.
"""

import concurrent.futures
import concurrent.futures.process
import contextlib
import dataclasses
import functools
import multiprocessing
import pathlib
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
import torch

from fedlens.core import arrayfiles, trees
from fedlens.evaluation import classifiers, distances, features
from fedlens.evaluation.classifiers import UNSEEDED, Constant, Images, Labels, TrainedNetwork, as_images, as_labels
from fedlens.evaluation.networks import NETWORKS
from fedlens.evaluation.protocol import SCORES, Cost, Count, Evaluation, Learnt, Protocol, Score, Spread
from fedlens.models.classifier import Primary

Drawn = tuple[Images, Labels | None]
Supply = Callable[[int, int], Drawn] | Drawn  # images of a count and a seed, or images that are there already
Progress = Callable[[int, int, str], None]  # done, of how many, and what it was

REAL, TEST = "real", "test"
BEYOND = 1e-3  # by which a pixel may miss [-1, 1], for rounding
SLOWEST_FIRST = ("cnn", "adaboost", "gbm", "logistic_reg", "linear_svc", "xgboost", "random_forest", "mlp")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Real:
    """Real images that are public or the evaluator's own: some to train on, others to test with."""

    images: torch.Tensor = dataclasses.field(repr=False)
    labels: torch.Tensor = dataclasses.field(repr=False)
    test_images: torch.Tensor = dataclasses.field(repr=False)
    test_labels: torch.Tensor = dataclasses.field(repr=False)

    @classmethod
    def of(cls, images: Images, labels: Labels, test_images: Images, test_labels: Labels) -> "Real":
        train, test = checked((images, labels), "real training"), checked((test_images, test_labels), "real test")
        assert train[1] is not None
        assert test[1] is not None
        return cls(images=train[0], labels=train[1], test_images=test[0], test_labels=test[1])

    def __post_init__(self) -> None:
        if self.images.shape[1:] != self.test_images.shape[1:]:
            raise ValueError(f"Expected test images of {_size(self.images)}, got {_size(self.test_images)}.")
        if self.images.shape[2] != self.images.shape[3]:
            raise ValueError(f"Expected square images, got {_size(self.images)}.")
        if len(self.labels.unique()) < 2 or min(len(self.images), len(self.test_images)) < 2:
            raise ValueError("Expected real images of two classes, at least, to train on and to test with.")

    @property
    def classes(self) -> int:
        return int(max(self.labels.max(), self.test_labels.max())) + 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class Task:
    """One training: of a classifier, on a set of images, with a seed."""

    name: str
    trained_on: str
    seed: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Measured:
    """What came of it."""

    accuracy: float
    validation: float | None
    seconds: float
    device: str
    flop: float | None
    weights: str | None
    remark: str


class Sets:
    """Sets of images in a folder, as plain arrays: every process maps them into its memory and none copies them."""

    def __init__(self, folder: str) -> None:
        self.folder = pathlib.Path(folder)

    def write(self, name: str, images: torch.Tensor, labels: torch.Tensor | None) -> None:
        np.save(self.folder / f"{name}.images.npy", images.cpu().numpy(), allow_pickle=False)
        if labels is not None:
            np.save(self.folder / f"{name}.labels.npy", labels.cpu().numpy(), allow_pickle=False)

    def images(self, name: str) -> torch.Tensor:
        return torch.from_numpy(np.array(arrayfiles.mapped(self.folder / f"{name}.images.npy")))

    def labels(self, name: str) -> torch.Tensor:
        return torch.from_numpy(np.array(arrayfiles.mapped(self.folder / f"{name}.labels.npy")))


def evaluated(
    source: Supply,
    real: Real,
    protocol: Protocol | None = None,
    *,
    device: str = "cpu",
    cores: int = 1,
    network: Primary | None = None,
    before: Evaluation | None = None,
    progress: Progress = lambda done, total, line: None,
) -> Evaluation:
    """All that the protocol asks for; without labels, the distances alone.

    With more than one core, classifiers are trained in processes of their own, which import the program that asks:
    it needs `if __name__ == "__main__":`. `network` is a feature network of before, to compare with its numbers; what
    was learnt from the same real images in an evaluation `before` is not learnt again.
    """
    start, protocol = time.monotonic(), protocol or Protocol()
    classifiers.check_installed(protocol.classifiers)
    with tempfile.TemporaryDirectory() as folder:
        sets = Sets(folder)
        names, labelled, warnings = _stored(source, real, protocol, sets)
        steps = _tasks(names, protocol, () if before else (REAL,)) if labelled else []
        count = _Counter(progress, len(steps) + len(names) + 1)
        network = network or feature_network(real, protocol, device)
        _check_fits(network, real)
        _check_same(before, protocol, network)
        right = _accuracy(network, real, device)
        count(f"the feature network names {right:.1%} of the test images")
        scores, counts = _scored(sets, names, labelled, real, network, protocol, device, count)
        measured = _carried_out(steps, folder, protocol, real, device, cores, count)
        learnt = tuple(_learnt(name, names, measured, before) for name in (protocol.classifiers if labelled else ()))
        sizes = {"synthetic": len(sets.images(names[0])), "train": len(real.images), "test": len(real.test_images)}
    return Evaluation(
        protocol=protocol,
        learnt=learnt,
        scores=scores,
        counts=counts,
        features=network.digest,
        feature_accuracy=right,
        sizes=sizes,
        warnings=(*warnings, *_remarks(learnt)),
        seconds=time.monotonic() - start,
    )


def drawn(source: Supply, count: int, seed: int, shuffled: bool = True) -> tuple[torch.Tensor, torch.Tensor | None]:
    """At most so many of the synthetic images; of images that are there already, some that the seed picks."""
    if callable(source):
        return checked(source(count, seed), "synthetic")
    images, labels = checked(source, "synthetic")
    if len(images) <= count and not shuffled:
        return images, labels
    rows = _order(len(images), seed)[:count]
    return images[rows], None if labels is None else labels[rows]


def checked(images_and_labels: Drawn, what: str) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Finite pixels in [-1, 1], and labels of 0 and above, if any."""
    try:
        images = as_images(images_and_labels[0])
        labels = None if images_and_labels[1] is None else as_labels(images_and_labels[1], len(images))
    except ValueError as error:
        raise ValueError(f"{error} These are the {what} images.") from None
    if float(images.abs().max()) > 1 + BEYOND:
        raise ValueError(f"Expected pixels in [-1, 1] in the {what} images.")
    if labels is not None and int(labels.min()) < 0:
        raise ValueError(f"Expected labels of 0 and above for the {what} images.")
    return images.clamp(-1, 1).cpu(), None if labels is None else labels.cpu()


# What is trained on, and how it is kept back


def _stored(source: Supply, real: Real, protocol: Protocol, sets: Sets) -> tuple[list[str], bool, list[str]]:
    """The names of the synthetic sets, seed by seed; whether they have labels; and what is odd about them."""
    rows = _order(len(real.images), 0)[: protocol.samples]
    sets.write(REAL, real.images[rows], real.labels[rows])
    sets.write(TEST, real.test_images, real.test_labels)
    fixed = not callable(source) and len(source[0]) <= protocol.samples
    names = [f"synthetic-{0 if fixed else seed}" for seed in range(protocol.seeds)]
    warnings: list[str] = []
    labelled = True
    for seed, name in enumerate(dict.fromkeys(names)):
        images, labels = drawn(source, protocol.samples, seed, shuffled=not fixed)
        if images.shape[1:] != real.images.shape[1:]:
            raise ValueError(f"Expected synthetic images of {_size(real.images)}, got {_size(images)}.")
        if len(images) < 2:
            raise ValueError("Expected two synthetic images, at least.")
        sets.write(name, images, labels)
        labelled = labelled and labels is not None
        warnings += _doubts(images, labels, real, protocol)
    return names, labelled, list(dict.fromkeys(warnings))


def _doubts(images: torch.Tensor, labels: torch.Tensor | None, real: Real, protocol: Protocol) -> Iterator[str]:
    if len(images) < protocol.samples:
        yield f"there are {len(images):,} synthetic images, fewer than the {protocol.samples:,} of the protocol"
    if bool((images == images[0]).all()):
        yield "all synthetic images are the same"
    if labels is None:
        yield "the synthetic images have no labels: no classifier learns from them, and distances are all there is"
        return
    known, held = set(real.labels.tolist()), set(labels.tolist())
    if missing := sorted(known - held):
        yield f"no synthetic image is of class {', '.join(map(str, missing))}, which real ones are of"
    if unknown := sorted(held - known):
        yield f"synthetic images are of class {', '.join(map(str, unknown[:10]))}, which no real one is of"


def _kept_back(count: int, share: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Which rows are trained on, and which are kept back."""
    order = _order(count, 0)
    held = min(int(share * count), count - 1)
    return order[held:], order[:held]


def _order(count: int, seed: int) -> torch.Tensor:
    return torch.randperm(count, generator=torch.Generator().manual_seed(seed))


# Classifiers


def _tasks(names: Sequence[str], protocol: Protocol, references: Sequence[str]) -> list[Task]:
    """Each training once, the slowest first; where neither data nor seed make a difference, the first seed's."""
    wanted = [
        _task(name, trained_on, seed)
        for name in protocol.classifiers
        for seed, synthetic in enumerate(names)
        for trained_on in (synthetic, *references)
    ]
    places = {name: place for place, name in enumerate(SLOWEST_FIRST)}
    return sorted(dict.fromkeys(wanted), key=lambda task: places.get(task.name, len(places)))


def _task(name: str, trained_on: str, seed: int) -> Task:
    return Task(name=name, trained_on=trained_on, seed=0 if name in UNSEEDED else seed)


def measured(task: Task, folder: str, protocol: Protocol, classes: int, device: str) -> Measured:
    """Trains, and only then looks at the test images."""
    sets = Sets(folder)
    images, labels = sets.images(task.trained_on), sets.labels(task.trained_on)
    used, kept = _kept_back(len(images), protocol.validation)
    make = functools.partial(classifiers.trained, seed=task.seed, device=device, training=protocol.training)
    predictor, seconds = classifiers.timed(lambda: make(task.name, images[used], labels[used]), device)
    shape = tuple(images.shape[1:])
    return Measured(
        accuracy=classifiers.accuracy(predictor, sets.images(TEST), sets.labels(TEST)),
        validation=classifiers.accuracy(predictor, images[kept], labels[kept]) if len(kept) else None,
        seconds=seconds,
        device=device if task.name in NETWORKS else "cpu",
        flop=classifiers.flop(task.name, shape, classes, len(used), protocol.training),
        weights=trees.digest(predictor.module.state_dict()) if isinstance(predictor, TrainedNetwork) else None,
        remark=predictor.why if isinstance(predictor, Constant) else "",
    )


def _carried_out(
    tasks: Sequence[Task],
    folder: str,
    protocol: Protocol,
    real: Real,
    device: str,
    cores: int,
    count: Callable[[str], None],
) -> dict[Task, Measured]:
    """On a GPU the networks stay in this process, while others train the rest."""
    done: dict[Task, Measured] = {}
    run = functools.partial(measured, folder=folder, protocol=protocol, classes=real.classes)

    def note(task: Task, result: Measured) -> None:
        done[task] = result
        kind = "real" if task.trained_on == REAL else "synthetic"
        count(f"{task.name}, {kind}, seed {task.seed}: {result.accuracy:.1%} in {result.seconds:.1f} s")

    here = [task for task in tasks if cores == 1 or (task.name in NETWORKS and device != "cpu")]
    there = [task for task in tasks if task not in here]
    with _pool(min(cores, len(there))) as pool:
        waiting = {pool.submit(run, task, device="cpu"): task for task in there} if pool else {}
        for task in here:
            note(task, run(task, device=device))
        for future in concurrent.futures.as_completed(waiting):
            note(waiting[future], _result(future))
    return done


def _result(future: "concurrent.futures.Future[Measured]") -> Measured:
    try:
        return future.result()
    except concurrent.futures.process.BrokenProcessPool:
        raise ValueError("Expected enough memory for a classifier on each core; ask for fewer cores.") from None


@contextlib.contextmanager
def _pool(processes: int) -> Iterator[concurrent.futures.ProcessPoolExecutor | None]:
    """Fresh processes, one thread each; none if there is nothing to do. What waits is dropped when something fails."""
    if processes < 1:
        yield None
        return
    context = multiprocessing.get_context("spawn")  # a fork would inherit locks of this process's threads
    pool = concurrent.futures.ProcessPoolExecutor(processes, mp_context=context, initializer=_one_thread)
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)


def _one_thread() -> None:
    import threadpoolctl

    torch.set_num_threads(1)
    threadpoolctl.threadpool_limits(1)


def _learnt(name: str, names: Sequence[str], results: dict[Task, Measured], before: Evaluation | None = None) -> Learnt:
    made = [results[_task(name, trained_on, seed)] for seed, trained_on in enumerate(names)]
    reference = [] if before else [results[_task(name, REAL, seed)].accuracy for seed in range(len(names))]
    validation = [one.validation for one in made if one.validation is not None]
    seconds = sum(one.seconds for one in made) / len(made)
    return Learnt(
        name=name,
        accuracy=_spread(one.accuracy for one in made),
        validation=_spread(validation) if validation else None,
        real=before.classifier(name).real if before else _spread(reference),
        cost=Cost(seconds=seconds, device=made[0].device, flop=made[0].flop),
        weights=tuple(one.weights for one in made if one.weights),
        remarks=tuple(dict.fromkeys(one.remark for one in made if one.remark)),
    )


def _remarks(learnt: Iterable[Learnt]) -> list[str]:
    return [f"{one.name} always gives one answer: {remark}" for one in learnt for remark in one.remarks]


# Distances


def feature_network(real: Real, protocol: Protocol, device: str = "cpu") -> Primary:
    """A new one, from the real training images."""
    images, labels = real.images.to(device), real.labels.to(device)
    return features.trained(images, labels, classes=real.classes, epochs=protocol.feature_epochs)


def _check_fits(network: Primary, real: Real) -> None:
    if (network.channels, network.side) != tuple(real.images.shape[1:3]) or network.classes < real.classes:
        raise ValueError(f"Expected a feature network for {_size(real.images)} and {real.classes} classes.")


def _check_same(before: Evaluation | None, protocol: Protocol, network: Primary) -> None:
    """The feature network is a function of the real training images, and so tells them apart."""
    if before and (before.protocol, before.features) != (protocol, network.digest):
        raise ValueError("Expected an evaluation of before by the same protocol, on the same real images.")


def _accuracy(network: Primary, real: Real, device: str) -> float:
    probabilities = features.answers(network, real.test_images, device)[1]
    return float((probabilities.argmax(1) == real.test_labels).double().mean())


def _scored(
    sets: Sets,
    names: Sequence[str],
    labelled: bool,
    real: Real,
    network: Primary,
    protocol: Protocol,
    device: str,
    count: Callable[[str], None],
) -> tuple[tuple[Score, ...], tuple[Count, ...]]:
    """Against the test images, which no generator has seen; beside it, what real training images score there."""
    reference = features.answers(network, real.test_images, device)[0]
    score = functools.partial(_scores, reference=reference, network=network, protocol=protocol, device=device)
    floor, rows = score(sets.images(REAL), 0)[0], []
    for seed, name in enumerate(names):
        values, seen = score(sets.images(name), seed)
        rows.append(values)
        if seed == 0:
            counts = _counts(seen, sets.labels(name) if labelled else None, real)
        count(f"distances, seed {seed}: Frechet {values[1]:.3g}, real images {floor[1]:.3g}")
    scores = zip(SCORES, zip(*rows, strict=True), floor, strict=True)
    return tuple(Score(name=name, value=_spread(values), real=held) for name, values, held in scores), counts


def _scores(
    images: torch.Tensor, seed: int, *, reference: torch.Tensor, network: Primary, protocol: Protocol, device: str
) -> tuple[tuple[float, ...], torch.Tensor]:
    """In the order of SCORES; and the classes that the feature network sees."""
    made, probabilities = features.answers(network, images, device)
    near = distances.manifolds(
        _some(reference, protocol.compared, seed).to(device),
        _some(made, protocol.compared, seed).to(device),
        near=protocol.near,
        around=protocol.around,
    )
    return (distances.inception_score(probabilities), distances.frechet(made, reference), *near), probabilities.argmax(
        1
    )


def _some(rows: torch.Tensor, count: int, seed: int) -> torch.Tensor:
    return rows if len(rows) <= count else rows[_order(len(rows), seed)[:count]]


def _counts(seen: torch.Tensor, labels: torch.Tensor | None, real: Real) -> tuple[Count, ...]:
    highest = max(int(seen.max()), real.classes - 1, -1 if labels is None else int(labels.max())) + 1
    counted = [torch.bincount(one, minlength=highest).tolist() for one in (seen, real.labels)]
    own = [None] * highest if labels is None else torch.bincount(labels, minlength=highest).tolist()
    columns = zip(range(highest), own, *counted, strict=True)
    return tuple(
        Count(label=label, synthetic=synthetic, seen=taken, real=there)
        for label, synthetic, taken, there in columns
        if synthetic or taken or there
    )


class _Counter:
    """Tells how far one is, one line a step."""

    def __init__(self, progress: Progress, total: int) -> None:
        self.progress, self.total, self.done = progress, total, 0

    def __call__(self, line: str) -> None:
        self.done += 1
        self.progress(self.done, self.total, line)


def _spread(values: Iterable[float]) -> Spread:
    return Spread(values=tuple(float(value) for value in values))


def _size(images: torch.Tensor) -> str:
    return " x ".join(map(str, images.shape[1:]))
