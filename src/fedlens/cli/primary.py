"""`fedlens primary`: the model whose mistakes are looked into."""

import pathlib
from collections.abc import Callable
from typing import Annotated

import typer
from typer import Argument, Option

from fedlens.cli.options import Book, Json, modelers, say
from fedlens.runs.books import DEFAULT_BOOK

primary_app = typer.Typer(no_args_is_help=True, help="Train or check the model whose mistakes are looked into.")


@primary_app.command("train")
@modelers
def train(
    path: Annotated[pathlib.Path, Argument(help="An .npz file of PUBLIC images and labels.")],
    to: Annotated[pathlib.Path, Option(help="The file to write, such as cnn.safetensors.")],
    images: Annotated[str, Option(help="The name of the images.")] = "x",
    labels: Annotated[str, Option(help="The name of the labels.")] = "y",
    network: Annotated[str, Option(help="paper (Augenstein et al. 2020; side 18 or more) or small.")] = "paper",
    epochs: Annotated[int, Option(min=1, help="Passes over the images.")] = 3,
    seed: Annotated[int, Option(min=0, help="The same seed gives the same model.")] = 0,
    ledger: Book = DEFAULT_BOOK,
    as_json: Json = False,
) -> None:
    """Train a classifier on PUBLIC data only: nothing here is private. A tenth is held out to tell its accuracy."""
    import torch

    from fedlens.cli.data import owner_if_there
    from fedlens.core import trees
    from fedlens.media.images import reading as data
    from fedlens.models import primary
    from fedlens.models.classifier import ConvClassifier
    from fedlens.owner.admission import check_public

    networks: dict[str, Callable[..., ConvClassifier]] = {"paper": ConvClassifier.paper, "small": ConvClassifier}
    if network not in networks:
        raise ValueError(f"Expected --network {network} to be one of {', '.join(networks)}.")
    if owner := owner_if_there(ledger):
        check_public(path, "images", owner, images)
    public = data.public_npz(path, images=images, labels=labels)
    classes = int(public.labels.max(initial=0)) + 1
    if classes < 2:
        raise ValueError(f"Expected labels of two classes or more in {labels}.")
    chosen = networks[network](side=public.images.shape[2], channels=public.images.shape[1], classes=classes)
    x, y = trees.pixels(torch.from_numpy(public.images)), torch.from_numpy(public.labels)
    model, accuracy = primary.trained(chosen, x, y, seed=seed, epochs=epochs)
    model.save(to)
    about = {"model": str(to), "network": network, "side": model.side, "channels": model.channels, "classes": classes}
    text = f"Wrote {to}: {classes} classes, right on {accuracy:.1%} of the held-out tenth. sha256 {model.digest}"
    say(about | {"held_out_accuracy": accuracy, "digest": model.digest}, text, as_json)


@primary_app.command("check")
@modelers
def check(
    path: Annotated[pathlib.Path, Argument(help="A classifier: TorchScript, torch.export or our safetensors.")],
    side: Annotated[int, Option(min=1, help="Pixels per side of its images.")],
    channels: Annotated[int, Option(min=1, help="1 for grey, 3 for colour.")] = 1,
    classes: Annotated[int | None, Option(help="How many classes it must have.")] = None,
    values: Annotated[
        str, Option(help="Pixels as it wants them: minus-one-to-one, zero-to-one or bytes (0 to 255).")
    ] = "minus-one-to-one",
    channels_last: Annotated[bool, Option("--channels-last", help="It takes [n, side, side, channels].")] = False,
    as_json: Json = False,
) -> None:
    """Open a model, ask it about made-up images, and say what it is. A program must compute and do nothing else."""
    from fedlens.models.primary import open_primary

    model = open_primary(
        path, side=side, channels=channels, values=values, channels_last=channels_last, classes=classes
    )
    about = {"kind": model.kind, "side": model.side, "channels": model.channels, "classes": model.classes}
    text = f"ok: {model.kind}, {model.classes} classes, {channels} x {side} x {side}. sha256 {model.digest}"
    say(about | {"digest": model.digest}, text, as_json)
