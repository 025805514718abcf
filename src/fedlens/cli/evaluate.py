"""`fedlens evaluate`: how good synthetic images are, on real images that are public or the evaluator's own."""

import os
import pathlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from fedlens.cli.options import Device, Json, aside, modelers, say

if TYPE_CHECKING:
    import torch

    from fedlens.evaluation.protocol import Protocol
    from fedlens.evaluation.suite import Real, Supply
    from fedlens.privacy import Guarantee

NAMES = "x_train,y_train,x_test,y_test"
REFUSAL = "Evaluation on private data would be a release: it is not charged here."

evaluate_app = typer.Typer()


class Synthetic(NamedTuple):
    """What is evaluated, and what is known about its price."""

    source: "Supply"
    guarantee: "Guarantee | None"
    provenance: dict[str, str]


@evaluate_app.command()
@modelers
def evaluate(
    samples: Annotated[
        pathlib.Path,
        typer.Argument(help="A model folder or file, what `fedlens sample` wrote, or an .npz of images and labels."),
    ],
    real: Annotated[pathlib.Path, typer.Option("--real", help=f"An .npz with {NAMES}.")],
    public: Annotated[
        bool | None,
        typer.Option("--public/--held", help="Declare --real: anybody may see it, or it is the evaluator's own."),
    ] = None,
    names: Annotated[str, typer.Option(help="Of the four arrays in --real.")] = NAMES,
    count: Annotated[int, typer.Option("--samples", min=2, help="Synthetic images of each seed.")] = 60_000,
    seeds: Annotated[int, typer.Option(min=1, help="The protocol asks for three, at least.")] = 3,
    classifiers: Annotated[str, typer.Option(help="Some of the 13, as in cnn,mlp,xgboost; or none.")] = "",
    epochs: Annotated[int, typer.Option(min=1, help="Passes of the two networks over the images.")] = 20,
    augmentation: Annotated[
        str, typer.Option(help="none or affine: of what the two networks are trained on.")
    ] = "none",
    features: Annotated[
        pathlib.Path | None,
        typer.Option(help="A feature network of an earlier evaluation; distances compare with its numbers alone."),
    ] = None,
    delta: Annotated[
        str, typer.Option(help="State the guarantee at this delta; dpimagebench:N is 1 / (N ln N) of N examples.")
    ] = "",
    device: Device = None,
    cores: Annotated[int, typer.Option(min=0, help="Classifiers trained at once; 0 is all cores.")] = 0,
    out: Annotated[pathlib.Path | None, typer.Option("--out", help="Default: SAMPLES-evaluation beside it.")] = None,
    ledger: Annotated[
        str | None, typer.Option("--ledger", help="Must confirm the price, and knows what is private.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Train classifiers on synthetic images, test them on real ones, and measure how far apart both are."""
    from fedlens.evaluation import exhibits, suite
    from fedlens.runs import comparing
    from fedlens.runs.run import chosen_device

    _check_declared(public)
    protocol = _protocol(count, seeds, classifiers, epochs, augmentation)
    for given in (real, *([samples] if samples.suffix == ".npz" else [])):
        _check_not_private(given, samples, ledger)
    made = _synthetic(samples, ledger, delta)
    held = _real(real, names)
    where = chosen_device(device)
    if features is None:
        aside(f"training the feature network on {len(held.images):,} real images")
    network = _network(features) or suite.feature_network(held, protocol, where)
    evaluation = suite.evaluated(
        made.source,
        held,
        protocol,
        device=where,
        cores=cores or len(os.sched_getaffinity(0)),
        network=network,
        progress=lambda done, total, line: aside(f"{done}/{total} {line}"),
    )
    shown = suite.drawn(made.source, exhibits.ROWS, 0)[0]
    report = exhibits.reported(
        evaluation,
        title=f"{samples.name} against {real.name}",
        guarantee=made.guarantee,
        neighbours=exhibits.NearestImages.of(shown, held.images) if public else None,
        provenance=made.provenance | {"real images": f"{real.name}, {'public' if public else 'held by the evaluator'}"},
    )
    folder = out or samples.parent / f"{samples.stem}-evaluation"
    comparing.saved(report, folder)
    network.save(folder / "features.safetensors")
    say(report.to_dict(), f"{report.text()}\n\n{folder / 'report.html'}", as_json)


def _check_declared(public: bool | None) -> None:
    if public is None:
        raise ValueError(
            "Expected --public or --held: real images are public, or the evaluator's own, and somebody has to say so."
            f" {REFUSAL}"
        )


def _protocol(count: int, seeds: int, classifiers: str, epochs: int, augmentation: str) -> "Protocol":
    from fedlens.evaluation.classifiers import CLASSIFIERS
    from fedlens.evaluation.protocol import Protocol

    named = tuple(name.strip() for name in classifiers.split(",") if name.strip())
    chosen = CLASSIFIERS if not named else () if named == ("none",) else named
    return Protocol(samples=count, seeds=seeds, classifiers=chosen, epochs=epochs, augmentation=augmentation)


# Synthetic images


def _synthetic(path: pathlib.Path, ledger: str | None, delta: str) -> Synthetic:
    if path.suffix == ".npz":
        return Synthetic(_archived(path), None, {"synthetic images": path.name})
    if path.is_dir():
        return _sampled(path, ledger, delta)
    from fedlens.core import tensorfiles

    header = tensorfiles.header(path)
    if header.get("synthetic") is True:
        return _kept(path, delta)
    if path.name != "model.safetensors":
        raise ValueError(f"Expected a model folder, its model.safetensors, samples or an .npz; got {path.name}.")
    return _sampled(path.parent, ledger, delta)


def _sampled(folder: pathlib.Path, ledger: str | None, delta: str) -> Synthetic:
    """A model, which draws anew for every seed."""
    from fedlens.runs import comparing
    from fedlens.runs.vouching import vouched

    model: Any = comparing.opened(folder)
    _check_measured(model)
    voucher = vouched(ledger, [folder])

    def draw(count: int, seed: int) -> "tuple[torch.Tensor, torch.Tensor | None]":
        drawn = model.sampled(count, seed)
        return drawn.images, drawn.classes

    return Synthetic(draw, _guarantee(model, delta, voucher.unverified), {"ledger": voucher.statement})


def _kept(path: pathlib.Path, delta: str) -> Synthetic:
    """Samples that were drawn before."""
    from fedlens.media import opening
    from fedlens.privacy.guarantee import UNVERIFIED

    samples: Any = opening.medium("images").opened_samples(path)
    _check_measured(samples)
    source = (samples.images, samples.classes)
    return Synthetic(source, _guarantee(samples, delta, UNVERIFIED), {"synthetic images": path.name})


def _check_measured(made: Any) -> None:
    from fedlens.media import opening

    if not opening.medium(made.medium).measured:
        raise ValueError(f"Expected a model of images; this one is of {made.medium}.")


def _guarantee(made: Any, delta: str, unverified: str) -> "Guarantee":
    import dataclasses

    from fedlens.ledger import guarantee

    promise = guarantee([made.spending], _delta(delta) or made.delta)
    return dataclasses.replace(promise, unverified=unverified)


def _delta(text: str) -> float | None:
    from fedlens.evaluation.protocol import dpimagebench_delta

    kind, _, number = text.rpartition(":")
    try:
        value = dpimagebench_delta(int(number)) if kind == "dpimagebench" else float(text) if text else None
    except ValueError:
        value = -1.0
    if value is not None and not 0 < value < 1:
        raise ValueError(f"Expected --delta {text} to be a number between 0 and 1, or dpimagebench:N with N >= 3.")
    return value


def _archived(path: pathlib.Path) -> "Supply":
    """Of an .npz: images (or x), and labels (or y) if it has them."""
    from fedlens.core import arrayfiles
    from fedlens.media.images import reading

    there = arrayfiles.names_in(path)
    images = next((name for name in ("images", "x") if name in there), "images")
    labels = next((name for name in ("labels", "y") if name in there), None)
    if labels is None:
        return _pixels(reading.images_in(path, images)[0]), None
    held = reading.public_npz(path, images=images, labels=labels)
    return _pixels(held.images), held.labels


# Real images


def _real(path: pathlib.Path, names: str) -> "Real":
    from fedlens.evaluation.suite import Real
    from fedlens.media.images import reading

    parts = [name.strip() for name in names.split(",")]
    if len(parts) != 4:
        raise ValueError(f"Expected --names of four arrays, as in {NAMES}.")
    train = reading.public_npz(path, images=parts[0], labels=parts[1])
    test = reading.public_npz(path, images=parts[2], labels=parts[3])
    return Real.of(_pixels(train.images), train.labels, _pixels(test.images), test.labels)


def _check_not_private(path: pathlib.Path, samples: pathlib.Path, ledger: str | None) -> None:
    """By content, in every ledger that is near: the one named, the usual one, those beside the files.

    What is called synthetic is held to it as well: it is measured and shown, and an archive says nothing about itself.
    """
    from fedlens.data.population import DataError
    from fedlens.owner.admission import check_public
    from fedlens.owner.folder import Owner

    try:
        for address, book in _books(path, samples, ledger):
            check_public(path, "images", Owner(address, book))
    except DataError:  # it cannot be read at all
        raise
    except ValueError as error:
        raise ValueError(f"{error} {REFUSAL}") from None


def _books(path: pathlib.Path, samples: pathlib.Path, ledger: str | None) -> Iterator[tuple[str, Any]]:
    from fedlens.core import pins
    from fedlens.runs.books import book_at, book_if_there, ledger_at

    first = ledger_at(ledger)
    if (book := book_if_there(ledger)) is not None:
        yield first, book
    folders = {path.resolve().parent, *list(samples.resolve().parents)[:3]}
    beside = [str(folder / "ledger.sqlite") for folder in sorted(folders)]
    for address in dict.fromkeys([*beside, *pins.ledgers()]):
        if not pins.found() and not pins.same(address, first) and pathlib.Path(address).is_file():
            yield address, book_at(address)


def _network(path: pathlib.Path | None) -> Any:
    from fedlens.models.classifier import Primary

    return Primary.open(path) if path else None


def _pixels(images: Any) -> "torch.Tensor":
    import torch

    from fedlens.core import trees

    return trees.pixels(torch.from_numpy(images))
