"""How good are the images that one look makes, at which epsilon? On data that may be seen, with seeded noise.

A row is a recipe with some settings changed; each of its seeds is a look with noise of its own, and a generator fitted
to it. What the generators draw is measured on real test images by the protocol that holds for every algorithm.
"""

import dataclasses
import functools
import importlib.resources
import json
import math
import pathlib
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import torch

from fedlens.core import arrayfiles, files, trees
from fedlens.core.randomness import Randomness
from fedlens.curators.site import Site
from fedlens.evaluation.protocol import Evaluation, Protocol
from fedlens.evaluation.suite import Real, evaluated, feature_network
from fedlens.experiments.drawing import markdown
from fedlens.ledger import Ledger
from fedlens.media import opening
from fedlens.media.images import pictures
from fedlens.models.primary import open_primary
from fedlens.recipes.recipe import Recipe
from fedlens.recipes.stages import FIRST, TRAIN
from fedlens.runs import preparation
from fedlens.runs.carrying_out import Asking, carried_out
from fedlens.runs.reporting import kept_of, model_of

GROUP = "all"
SEEDS = 3
TUNING = 6  # every sixth of the training writers, or images, is held out to choose settings on
SHOWN = 80  # samples in a picture: the first ones, not picked
ARRAYS = "x_train", "y_train", "x_test", "y_test"
SOURCES = {"mnist": "mnist_by_writer.npz", "fashion": "fashion_mnist.npz"}


_CRITICS = ("model.size=gs-wgan", "privacy.clip=1.0", "training.batch=32", "training.local_steps=5")
_STEP = 'training.{part}={{kind="adam",rate={rate},beta1=0.5}}'.format
# Settings of feedback GANs: those of the papers, and two that ask all critics in every round, for few rounds.
FEEDBACK: dict[str, tuple[str, ...]] = {
    "gs-wgan": (
        *(*_CRITICS, _STEP(part="generator", rate=1e-4), "training.warm_steps=200"),  # the paper takes 2,000
        *("privacy.shards=1000", "privacy.sampling=balanced", "privacy.groups=1000", "privacy.rounds=20000"),
    ),
    "gs-wgan-all": (
        *(*_CRITICS, _STEP(part="generator", rate=1e-3), "training.warm_steps=50"),
        *("privacy.shards=1000", "privacy.rounds=200"),
    ),
    "gs-wgan-users": (
        *(*_CRITICS, _STEP(part="generator", rate=1e-3), "training.warm_steps=50"),
        "privacy.rounds=200",
    ),
    "datalens": (
        *("model.size=datalens", "training.entropy=true", "privacy.shards=4000"),
        *("training.batch=15", "training.examples=32", "training.local_steps=2"),
        *(_STEP(part="local", rate=1e-3), _STEP(part="generator", rate=1e-3)),
    ),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Setup:
    """One line of the table."""

    name: str
    data: str  # of SOURCES
    unit: str  # example; user: the writers of MNIST, or 600 made-up ones
    epsilon: float
    family: str = "embedding"  # or moments; gan, for DP-FedAvg-GAN, or started, from a look; or one of FEEDBACK
    sets: tuple[str, ...] = ()
    wanted: str = "report"

    @property
    def deals(self) -> bool:
        return self.data == "fashion"

    def overrides(self, source: pathlib.Path, units: int, seed: int) -> list[str]:
        owners = "deal_to=600" if self.deals else 'users="user"'
        data = f'data={{source="npz",path={json.dumps(str(source))},images="x_train",labels="y_train",{owners}}}'
        privacy = {"unit": self.unit, "epsilon": self.epsilon, "units": units, "population": units}
        return [data, f"seed={seed}", *(f"privacy.{key}={value}" for key, value in privacy.items()), *self.settings]

    @property
    def settings(self) -> list[str]:
        """How it is trained."""
        if self.family in FEEDBACK:
            return ["algorithm=feedback-gan", *FEEDBACK[self.family], *self.sets]
        trains = self.family in ("gan", "started")
        how = ["algorithm=fedavg-gan"] if trains else [f"look.family={self.family}"]
        how += ["model.start=look", "look.family=embedding"] if self.family == "started" else []
        return [*how, *self.sets]


def _rows(data: str, unit: str, family: str, wanted: dict[float, str], *sets: str) -> list[Setup]:
    named = {"example": f"{data}-example", "user": "writers" if data == "mnist" else f"{data}-600"}[unit]
    ending = "" if family == "embedding" else f"-{family}"
    common: dict[str, Any] = {"data": data, "unit": unit, "family": family, "sets": sets}
    return [
        Setup(name=f"{named}-{epsilon:g}{ending}", epsilon=epsilon, wanted=reach, **common)
        for epsilon, reach in wanted.items()
    ]


AGREED = "training.agreement=0.7"  # of the votes, where noise is large: the paper's
TURNED = "look.jitter=0.2"  # digits are read at any angle, clothes are not: chosen on held-out training images
# In the order in which they are made: a machine that is lent for half an hour may see no more than the first of them.
ROWS: tuple[Setup, ...] = (
    *_rows("mnist", "example", "embedding", {1: "98.3"}),
    *_rows("fashion", "example", "embedding", {1: "86"}),
    *_rows("mnist", "user", "embedding", {8: "96", 1: "86"}),
    *_rows("mnist", "user", "gan", {8: "report"}),
    *_rows("mnist", "user", "started", {8: "report"}),
    *_rows("mnist", "example", "embedding", {0.2: "96", 10: "98.5"}),
    *_rows("fashion", "example", "embedding", {0.2: "81", 10: "88"}),
    *_rows("mnist", "user", "embedding", {2: "91", 0.5: "75"}),
    *_rows("fashion", "user", "embedding", {8: "report", 1: "report"}),
    *_rows("mnist", "user", "gan", {1: "report"}),
    *_rows("mnist", "user", "started", {1: "report"}),
    # The paper's noise, whatever it prints, is worth 379; its claims are those of epsilon 10.
    *_rows("mnist", "example", "gs-wgan", {379.43: "80", 10: "report", 1: "report"}),
    *_rows("fashion", "example", "gs-wgan", {379.43: "64", 10: "report"}),
    *_rows("mnist", "example", "gs-wgan-all", {10: "report", 1: "report"}),
    *_rows("fashion", "example", "gs-wgan-all", {10: "report", 1: "report"}),
    *_rows("mnist", "user", "gs-wgan-users", {8: "report"}),
    *_rows("mnist", "example", "datalens", {8.45: "80.7"}, "privacy.top_k=300", "privacy.rounds=109"),
    *_rows("mnist", "example", "datalens", {0.74: "71.2"}, *("privacy.top_k=200", "privacy.rounds=86", AGREED)),
    *_rows("fashion", "example", "datalens", {8.3: "70.6"}, "privacy.top_k=350", "privacy.rounds=146"),
    *_rows("fashion", "example", "datalens", {0.74: "64.8"}, *("privacy.top_k=200", "privacy.rounds=86", AGREED)),
    *_rows("mnist", "example", "moments", {1: "96 within a minute of two cores", 0.2: "report"}, TURNED),
    *_rows("fashion", "example", "moments", {1: "report", 0.2: "report"}, "look.jitter=0.05"),
    *_rows("mnist", "user", "moments", {8: "report", 1: "report"}, TURNED),
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Split:
    """One source, as arrays of the same names, split for results or for choosing settings."""

    path: pathlib.Path
    images: int
    owners: int  # of writers; made-up users are 600

    @classmethod
    def prepared(cls, name: str, out: pathlib.Path, folder: pathlib.Path, tuning: bool) -> "Split":
        """In one file: what is looked at (x_train, y_train, user) and what is tested on (x_test, y_test)."""
        path = out / "data" / f"{name}{'-tuning' if tuning else ''}.npz"
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            arrays: Any = _split(folder / SOURCES[name], tuning)
            np.savez(path, **arrays)
        held = _arrays(path, ["y_train", "user"])
        return cls(path=path, images=len(held["y_train"]), owners=len(np.unique(held["user"])))

    def units(self, row: Setup) -> int:
        return self.images if row.unit == "example" else (600 if row.deals else self.owners)

    def real(self) -> Real:
        arrays = _arrays(self.path, ARRAYS)
        pixels = {name: trees.pixels(torch.from_numpy(arrays[name]))[:, None] for name in ("x_train", "x_test")}
        labels = {name: torch.from_numpy(arrays[name]) for name in ("y_train", "y_test")}
        return Real.of(pixels["x_train"], labels["y_train"], pixels["x_test"], labels["y_test"])


def _split(path: pathlib.Path, tuning: bool) -> dict[str, np.ndarray]:
    arrays = _arrays(path, [*ARRAYS, "writer_train"]) if "writer" in path.name else _arrays(path, ARRAYS)
    images, labels = arrays["x_train"].reshape(-1, 28, 28), arrays["y_train"].astype(np.int64)
    owners = arrays.get("writer_train", np.arange(len(images))).astype(np.int64)
    if not tuning:
        test = {"x_test": arrays["x_test"].reshape(-1, 28, 28), "y_test": arrays["y_test"].astype(np.int64)}
        return {"x_train": images, "y_train": labels, "user": owners, **test}
    known = np.unique(owners)
    held = np.isin(owners, known[TUNING - 1 :: TUNING])  # not the last: those of MNIST are all high-school students
    return {
        "x_train": images[~held],
        "y_train": labels[~held],
        "user": owners[~held],
        "x_test": images[held],
        "y_test": labels[held],
    }


def _arrays(path: pathlib.Path, names: Iterable[str]) -> dict[str, np.ndarray]:
    return arrayfiles.archived(path, list(names), f"Expected a whole .npz file in {path.name}.", ValueError)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Bench:
    """Where results are put together, and how."""

    out: pathlib.Path
    folder: pathlib.Path  # of the sources
    device: str
    tuning: bool = False
    sets: tuple[str, ...] = ()  # of every row: to try settings out
    say: Callable[[str], None] = print

    def data(self, row: Setup) -> Split:
        return Split.prepared(row.data, self.out, self.folder, self.tuning)

    def recipe(self, row: Setup, seed: int) -> Recipe:
        data = self.data(row)
        text = importlib.resources.files("fedlens.recipes").joinpath("files", "generators.toml").read_text()
        return Recipe.parsed(text, [*row.overrides(data.path, data.units(row), seed), *self.sets])

    def model(self, row: Setup, seed: int) -> pathlib.Path:
        return self.out / "models" / row.name / f"{seed}.safetensors"

    def notes(self, row: Setup, seed: int) -> pathlib.Path:
        return self.model(row, seed).with_suffix(".json")


def reproduced(
    rows: Sequence[Setup],
    work: Bench,
    protocol: Protocol,
    cores: int,
    until: float = math.inf,
    *,
    train: bool = True,
) -> list[dict[str, Any]]:
    """Row after row is trained and measured, so that whatever ends it, what is there are whole rows."""
    results: list[dict[str, Any]] = []
    for row in rows:
        if train:
            trained([row], work, until)
        results += measured([row], work, protocol, cores, until)
        files.write(work.out / "table.md", table(results))
    return results


# Looks and generators


def trained(rows: Sequence[Setup], work: Bench, until: float = math.inf) -> None:
    """Looks, and fits generators, where that was not done yet; none is begun after `until`."""
    torch.set_float32_matmul_precision("high")
    for row in rows:
        for seed in range(SEEDS):
            if not _is_there(row, seed, work):
                if time.time() > until:
                    work.say(f"{row.name}: out of time")
                    return
                _train(row, seed, work)


def _is_there(row: Setup, seed: int, work: Bench) -> bool:
    """With the settings that are asked for now: results of two are not put into one table.

    A model that was measured may be gone: what is brought back from a machine are numbers.
    """
    measured = (work.out / "rows" / f"{row.name}.json").exists()
    if not (notes := work.notes(row, seed)).exists() or not (measured or work.model(row, seed).exists()):
        return False
    if files.json_in(notes)["recipe"] != _settings(work.recipe(row, seed)):
        raise ValueError(f"Expected the settings that {row.name} was made with in {work.out}; take another --out.")
    return True


def _settings(recipe: Recipe) -> dict[str, Any]:
    kept: dict[str, Any] = recipe.model_dump(
        mode="json", exclude_none=True, include={"look", "model", "privacy", "seed", "training"}
    )
    return kept


def _train(row: Setup, seed: int, work: Bench) -> None:
    recipe, book = work.recipe(row, seed), Ledger()
    site, started = preparation.site(recipe, work.out / "unused"), time.monotonic()
    account = dataclasses.replace(recipe.account(row.name, GROUP, True), run=f"{row.name}/{seed}")
    asking = Asking(book=book, account=account, randomness=Randomness.seeded(seed), device=work.device)
    training = recipe.stage(TRAIN, GROUP)
    if training.waits:
        training = dataclasses.replace(training, warmed=functools.partial(_started, recipe, site, asking), waits=False)
    state = carried_out(training, site, asking)
    looked = time.monotonic()
    model = model_of(recipe, GROUP, state, book.spending(account.run), book.pin(), work.device)
    fitted = time.monotonic()
    work.model(row, seed).parent.mkdir(parents=True, exist_ok=True)
    model.save(work.model(row, seed))
    about = {
        "epsilon": recipe.guarantee(recipe.spendings()).to_dict()["epsilon"],  # with the head count of a run
        "asking": round(looked - started, 1),
        "fitting": round(fitted - looked, 1),
        "device": _hardware(work.device),
        "recipe": _settings(recipe),
    }
    files.write(work.notes(row, seed), json.dumps(about, indent=1))
    work.say(f"{row.name}, seed {seed}: asked in {about['asking']} s, fitted in {about['fitting']} s")


def _started(recipe: Recipe, site: Site, asking: Asking, state: trees.Tree, device: str) -> trees.Tree:
    """The first state of a GAN that starts from a look."""
    answer = carried_out(recipe.stage(FIRST, GROUP), site, asking)
    book = asking.book
    kept = kept_of(recipe, GROUP, answer, book.spending(asking.account.run), book.pin(), FIRST)
    return recipe.medium.started(recipe, state, kept, device)


def _hardware(device: str) -> str:
    return torch.cuda.get_device_name(device) if device.startswith("cuda") else f"{torch.get_num_threads()} CPU cores"


def _drawn(path: pathlib.Path, count: int, seed: int, device: str) -> tuple[torch.Tensor, torch.Tensor | None]:
    model: Any = opening.opened(path)
    there = dataclasses.replace(model, generator=trees.moved(model.generator, device))
    samples = there.sampled(count, seed)
    return samples.images, samples.classes


# Measurement


def protocol(classifiers: tuple[str, ...] = ()) -> Protocol:
    """That of every algorithm, perhaps with some of the classifiers only."""
    return Protocol(seeds=SEEDS, classifiers=classifiers or Protocol().classifiers)


def measured(
    rows: Sequence[Setup], work: Bench, protocol: Protocol, cores: int, until: float = math.inf
) -> list[dict[str, Any]]:
    """What the protocol says of the rows whose generators are there; what was measured before is not again."""
    results = []
    for row in rows:
        if not all(work.notes(row, seed).exists() for seed in range(protocol.seeds)):
            continue
        kept = work.out / "rows" / f"{row.name}.json"
        known = files.json_in(kept) if kept.exists() else {}
        if not known or Evaluation.from_dict(known["evaluation"]).protocol != protocol:
            if time.time() > until:
                continue
            known = _measure(row, work, protocol, cores)
            files.write(kept, json.dumps(known, indent=1))
            _picture(row, work)
        results.append(known)
    return results


def _measure(row: Setup, work: Bench, protocol: Protocol, cores: int) -> dict[str, Any]:
    real = work.data(row).real()
    network = work.out / "features" / f"{row.data}.safetensors"
    if not network.exists():
        network.parent.mkdir(parents=True, exist_ok=True)
        feature_network(real, protocol, work.device).save(network)
    before = _before(work.out / "rows", row, protocol)
    evaluation = evaluated(
        lambda count, seed: _drawn(work.model(row, seed), count, seed, work.device),
        real,
        protocol,
        device=work.device,
        cores=cores,
        network=open_primary(network, side=real.images.shape[2], channels=1),
        before=before,
        progress=lambda done, total, line: work.say(f"{row.name}, {done} of {total}: {line}"),
    )
    made = [files.json_in(work.notes(row, seed)) for seed in range(protocol.seeds)]
    about = {name: getattr(row, name) for name in ("name", "data", "unit", "family", "wanted")}
    about |= {"epsilon": made[0]["epsilon"], "units": work.data(row).units(row), "device": made[0]["device"]}
    about |= {key: statistics.fmean(one[key] for one in made) for key in ("asking", "fitting")}
    return about | {"recipes": [one["recipe"] for one in made], "evaluation": evaluation.to_dict()}


def _before(folder: pathlib.Path, row: Setup, protocol: Protocol) -> Evaluation | None:
    """One on the same real images by the same protocol, if there is any."""
    for path in sorted(folder.glob("*.json")):
        known = files.json_in(path)
        evaluation = Evaluation.from_dict(known["evaluation"])
        if known["data"] == row.data and evaluation.protocol == protocol:
            return evaluation
    return None


def _picture(row: Setup, work: Bench) -> None:
    images, labels = _drawn(work.model(row, 0), 20 * SHOWN, 0, work.device)
    order = torch.arange(len(images)) if labels is None else labels.argsort(stable=True)
    ranks = order if labels is None else torch.cat([(labels == label).nonzero()[:8, 0] for label in labels.unique()])
    files.write(work.out / "samples" / f"{row.name}.png", pictures.png_bytes(images[ranks[:SHOWN]], columns=8))


def table(results: Sequence[dict[str, Any]]) -> str:
    """As Markdown: accuracies in percent, with the deviation over seeds."""
    columns = "data", "unit", "epsilon", "generator", "CNN", "of real", "MLP", "average", "Frechet", "seconds", "wanted"
    return markdown(columns, [_cells(result) for result in results])


def _cells(result: dict[str, Any]) -> list[str]:
    evaluation = Evaluation.from_dict(result["evaluation"])
    by_name = {one.name: one for one in evaluation.learnt}
    whole = evaluation.average if len(by_name) == len(Protocol().classifiers) else None
    frechet = evaluation.score("frechet distance")

    def percent(name: str) -> str:
        one = by_name.get(name)
        spread = one.accuracy.deviation if one else None
        return "–" if one is None else f"{one.accuracy.mean:.1%}" + (f" ± {spread:.1%}" if spread is not None else "")

    cnn = by_name.get("cnn")
    return [
        {"mnist": "MNIST", "fashion": "Fashion-MNIST"}[result["data"]],
        f"{result['units']:,} {result['unit']}s",
        f"{result['epsilon']:.2f}",
        result["family"],
        percent("cnn"),
        f"{cnn.calibrated:.1%}" if cnn and cnn.calibrated else "–",
        percent("mlp"),
        f"{whole[0]:.1%}" if whole else "–",
        f"{frechet.value} ({frechet.real:.2f} for real images)",
        f"{result['asking']:.0f} + {result['fitting']:.0f}, {result['device']}",
        result["wanted"],
    ]
