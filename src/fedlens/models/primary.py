"""Primary models from anywhere: TorchScript files, torch.export programs and our own, asked in one way.

A foreign model is a program: open only what you trust, as with any model. Both formats keep parts of themselves
pickled, and torch reads them; fedlens never writes a pickle, it copies the file byte for byte.

The model is public, the images it sees may be private. So whatever it raises is dropped: its text may quote them.
"""

import dataclasses
import hashlib
import io
import pathlib
import warnings
import zipfile
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from fedlens import files
from fedlens.models.classifier import ConvClassifier, Primary, slice_rows
from fedlens.trees import Tree

Module = Callable[[torch.Tensor], Any]

OURS = "minus-one-to-one"
VALUES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    OURS: lambda x: x,
    "zero-to-one": lambda x: (x + 1) / 2,
    "bytes": lambda x: ((x + 1) * 127.5).round(),  # what were bytes comes back exactly
}


def open_primary(
    path: pathlib.Path,
    *,
    side: int,
    channels: int = 1,
    values: str = OURS,
    channels_last: bool = False,
    classes: int | None = None,
) -> Primary:
    """Opens any classifier, told apart by content, and tries it on made-up images before it sees others."""
    if values not in VALUES:
        raise ValueError(f"Expected values={values!r} to be one of {', '.join(VALUES)}.")
    content = _content(path)
    kind = _kind(content, path.name)
    takes = Input(side=side, channels=channels, values=values, channels_last=channels_last)
    if kind != ConvClassifier.kind:
        primary = Primary(_opened(path, content, kind, takes))
    elif values == OURS and not channels_last:
        primary = Primary.open(path)
    else:
        raise ValueError(f"Expected values={OURS!r} and channels first for {path.name}: it is a model of fedlens.")
    checked(primary, side=side, channels=channels, classes=classes)
    return _tried(primary, path.name)


def checked(
    primary: Primary, *, side: int | None = None, channels: int | None = None, classes: int | None = None
) -> Primary:
    """The model, if it is for such images and classes, all public numbers; None is not looked at."""
    for name, wanted in (("side", side), ("channels", channels), ("classes", classes)):
        got = getattr(primary, name)
        if wanted is not None and wanted != got:
            raise ValueError(f"Expected a primary model with {name}={wanted}, got one with {got}.")
    return primary


def trained(
    network: ConvClassifier, images: torch.Tensor, labels: torch.Tensor, *, seed: int, epochs: int = 3
) -> tuple[Primary, float]:
    """A model of PUBLIC images, trained as the paper does, and its accuracy on a tenth it was not shown."""
    if len(images) < 10:
        raise ValueError("Expected ten public images or more: a tenth is held out.")
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(seed))
    held, shown = order[: len(order) // 10], order[len(order) // 10 :]
    params = network.fitted(images[shown], labels[shown], seed=seed, epochs=epochs, batch=32, rate=1e-3)
    primary = Primary(network, params)
    return primary, float((primary.predictions(images[held]) == labels[held]).float().mean())


@dataclasses.dataclass(frozen=True, kw_only=True)
class Input:
    """The images a foreign model was made for."""

    side: int
    channels: int = 1
    values: str = OURS
    channels_last: bool = False

    def of(self, images: torch.Tensor) -> torch.Tensor:
        """[n, channels, side, side] in [-1, 1], as the model wants them."""
        scaled = VALUES[self.values](images)
        return scaled.permute(0, 2, 3, 1).contiguous() if self.channels_last else scaled

    def __str__(self) -> str:
        edges = [self.side, self.side]
        shape = ["n", *edges, self.channels] if self.channels_last else ["n", self.channels, *edges]
        return f"[{', '.join(map(str, shape))}], {self.values}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Program:
    """A foreign model as a network; its parameters are its own, so those it is handed are none."""

    module: Module = dataclasses.field(repr=False)
    kind: str
    takes: Input
    classes: int
    least: int  # it takes so many images at once and no fewer: programs may be exported for batches of one size
    most: int
    gives_probabilities: bool = False
    path: pathlib.Path
    sha256: str

    @property
    def side(self) -> int:
        return self.takes.side

    @property
    def channels(self) -> int:
        return self.takes.channels

    def probabilities(self, params: Tree, images: torch.Tensor) -> torch.Tensor:
        outputs = self.features(params, images)
        return outputs if self.gives_probabilities else outputs.softmax(1)  # of log-probabilities: themselves

    def features(self, params: Tree, images: torch.Tensor) -> torch.Tensor:
        """Its outputs."""
        return torch.cat([self._outputs(piece) for piece in images.split(self.most)])

    def digest(self, params: Tree) -> str:
        return self.sha256

    def save(self, path: pathlib.Path, params: Tree) -> None:
        content = _content(self.path)
        if hashlib.sha256(content).hexdigest() != self.sha256:
            raise ValueError(f"Expected {self.path.name} as it was when it was opened; it has changed since.")
        files.write(path, content)

    def _outputs(self, images: torch.Tensor) -> torch.Tensor:
        wanted = max(self.least, len(images))
        padded = F.pad(images, (0, 0, 0, 0, 0, 0, 0, wanted - len(images)))
        answer = _answer(self.module, self.takes.of(padded))
        if answer is None or _classes(answer, wanted) != self.classes:
            return self._one_by_one(images)
        return answer[: len(images)].float()

    def _one_by_one(self, images: torch.Tensor) -> torch.Tensor:
        """Where it fails on a batch, it is asked again in parts. No error: that would speak about private images."""
        if len(images) == 1:
            return torch.full((1, self.classes), torch.nan)
        half = len(images) // 2
        return torch.cat([self._outputs(part) for part in (images[:half], images[half:])])


_TELLTALES = "prim::Print", "aten::save"


def _content(path: pathlib.Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise ValueError(f"Expected the file {path.name}; it is missing.") from None
    except IsADirectoryError:
        raise ValueError(f"Expected a file in {path.name}; it is a folder.") from None


def _kind(content: bytes, name: str) -> str:
    if content[8:9] == b"{":  # safetensors: the length of a JSON header, then the header
        if b'"classifier"' in content[8 : 8 + int.from_bytes(content[:8], "little")]:
            return ConvClassifier.kind
        raise ValueError(
            f"Expected a classifier written by fedlens in {name}: its header names no network, and weights alone are no"
            " model. Save yours by torch.export.save."
        )
    try:
        inside = [name.partition("/")[2] for name in zipfile.ZipFile(io.BytesIO(content)).namelist()]
    except zipfile.BadZipFile:
        inside = []
    if "models/model.json" in inside:
        return "torch.export"
    if "constants.pkl" in inside and any(name.startswith("code/") for name in inside):
        return "torchscript"
    hint = "; torch.save keeps no program that could be run" if "data.pkl" in inside else ""
    raise ValueError(
        f"Expected a whole classifier in {name}: a safetensors file of fedlens, TorchScript (torch.jit.save) or a"
        f" torch.export program (torch.export.save){hint}."
    )


def _opened(path: pathlib.Path, content: bytes, kind: str, takes: Input) -> Program:
    module, example = _loaded(content, kind, path.name)
    if kind == "torchscript" and any(told in str(getattr(module, "inlined_graph", "")) for told in _TELLTALES):
        raise ValueError(f"Expected a model in {path.name} that neither prints nor saves: it sees private images.")

    def answer(rows: int) -> Any:
        with torch.no_grad():
            return _answer(module, takes.of(torch.zeros(rows, takes.channels, takes.side, takes.side)))

    def fits(rows: int) -> bool:
        return _classes(answer(rows), rows) > 1

    limit = slice_rows(takes.side, takes.channels)
    sizes = [*(limit >> times for times in range(limit.bit_length())), *example]
    most = next(filter(fits, sizes), None)
    if most is None:
        raise ValueError(_refusal(answer(sizes[-1]), path.name, takes))
    least = next(filter(fits, sorted(sizes)))
    return Program(
        module=module,
        kind=kind,
        takes=takes,
        classes=_classes(answer(most), most),
        least=least if fits(least + 1) else most,
        most=most,
        path=path.resolve(),
        sha256=hashlib.sha256(content).hexdigest(),
    )


def _loaded(content: bytes, kind: str, name: str) -> tuple[Module, tuple[int, ...]]:
    """The module, and how many images it was exported with, where that is known."""
    try:
        if kind == "torchscript":
            return torch.jit.load(io.BytesIO(content), map_location="cpu").eval(), ()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch 2.11 warns of its own buffers
            program = torch.export.load(io.BytesIO(content))
        inputs = program.example_inputs[0] if program.example_inputs else ()
        return program.module(), tuple(len(tensor) for tensor in inputs[:1])
    except Exception:
        pass  # raised below, so that no traceback leads back to it
    raise ValueError(
        f"Expected a whole {kind} file in {name}, saved on a CPU, that torch {torch.__version__} can read."
    )


def _answer(module: Module, images: torch.Tensor) -> Any:
    """What the module returns; None if it raises, and not even a traceback keeps what it raised."""
    try:
        return module(images)
    except Exception:
        return None


def _classes(answer: Any, rows: int) -> int:
    """The width of [rows, classes]; 0 for anything else."""
    table = isinstance(answer, torch.Tensor) and answer.dim() == 2 and len(answer) == rows
    return answer.shape[1] if table else 0


def _refusal(answer: Any, name: str, takes: Input) -> str:
    if answer is None:
        return (
            f"Expected {name} to take images as {takes} on a CPU; it fails on blank ones. See side, channels, values."
        )
    got = list(answer.shape) if isinstance(answer, torch.Tensor) else type(answer).__name__
    return f"Expected [n, classes] from {name}, of two classes or more, for images as {takes}; got {got}."


def _tried(primary: Primary, name: str) -> Primary:
    """The model, if made-up images show that it is one: finite answers, each to its image alone, always the same."""
    rng = torch.Generator().manual_seed(0)
    shape = (primary.channels, primary.side, primary.side)
    blank = torch.tensor([-1.0, 0.0, 1.0])[:, None, None, None].expand(3, *shape)
    images = torch.cat([blank, torch.rand(5, *shape, generator=rng) * 2 - 1])
    network = primary.network
    with torch.no_grad():
        given = network.probabilities(primary.params, images)
        alone = torch.cat([network.probabilities(primary.params, image) for image in images.split(1)])
        outputs = network.features(primary.params, images)
    if not given.isfinite().all():
        raise ValueError(f"Expected finite answers from {name} to made-up images.")
    if not torch.allclose(given, alone, rtol=1e-3, atol=1e-4):
        raise ValueError(
            f"Expected {name} to judge each image by itself, always alike: was it exported in training mode?"
        )
    if isinstance(network, Program) and _are_probabilities(outputs):
        return Primary(dataclasses.replace(network, gives_probabilities=True))
    return primary


def _are_probabilities(rows: torch.Tensor) -> bool:
    return bool((rows >= 0).all() and ((rows.sum(1) - 1).abs() < 1e-3).all())
