"""Primary models from anywhere: TorchScript files, torch.export programs and our own, asked in one way.

A foreign model is a program that sees every private image, and who brings it may want them. So it is opened without
running anything in it (`torchscript`, `exported`), and runs only where each of its operations is known to compute and
to do nothing else (`operations`): what it answers about one user depends on that user's images and on its file alone.
Beside that, whatever it raises or warns of is dropped, since the text may quote images; it is asked in batches of sizes
that it was tried in, so that all it does was done before; and `check_unchanged` compares what it holds with its file.

fedlens never writes a pickle: it copies the file byte for byte.
"""

import dataclasses
import hashlib
import pathlib
import warnings
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from fedlens.core import files
from fedlens.core.trees import Tree
from fedlens.models import archives, exported, torchscript
from fedlens.models.archives import Members
from fedlens.models.classifier import ConvClassifier, Primary, slice_rows
from fedlens.models.operations import ProgramError

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
    held = archives.members(content)
    kind = _kind(content, held, path.name)
    takes = Input(side=side, channels=channels, values=values, channels_last=channels_last)
    if kind != ConvClassifier.kind:
        primary = Primary(_opened(path, content, held, kind, takes))
    elif values == OURS and not channels_last:
        primary = Primary.open(path)
    else:
        raise ValueError(f"Expected values={OURS!r} and channels first for {path.name}: it is a model of fedlens.")
    checked(primary, side=side, channels=channels, classes=classes)
    return _tried(primary, path.name)


def is_foreign(path: pathlib.Path) -> bool:
    """Whether it is somebody else's program; nothing in it is opened."""
    content = _content(path)
    return _kind(content, archives.members(content), path.name) != ConvClassifier.kind


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
    sizes: tuple[int, ...]  # it was tried with so many images at once, most first, and is asked with no other number
    held: Callable[[], Iterable[torch.Tensor]] = dataclasses.field(repr=False)
    state: str  # a digest of what it holds
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
        return torch.cat([self._outputs(piece) for piece in images.split(self._pieces(len(images)))])

    def digest(self, params: Tree) -> str:
        return self.sha256

    def save(self, path: pathlib.Path, params: Tree) -> None:
        content = _content(self.path)
        if hashlib.sha256(content).hexdigest() != self.sha256:
            raise ValueError(f"Expected {self.path.name} as it was when it was opened; it has changed since.")
        files.write(path, content)

    def unchanged(self) -> bool:
        """Whether it holds, bit for bit, what it held when it was opened."""
        return _state(self.held()) == self.state

    def _pieces(self, count: int) -> list[int]:
        """So many images as pieces of the sizes it was tried in; the last may be shorter, and is padded.

        What it does depends on the number of images only: a number that it never saw could be one that it waits for.
        """
        pieces = []
        for size in self.sizes:
            pieces += [size] * (count // size)
            count %= size
        return [*pieces, count] if count or not pieces else pieces

    def _outputs(self, images: torch.Tensor) -> torch.Tensor:
        wanted = max(self.sizes[-1], len(images))
        padded = F.pad(images, (0, 0, 0, 0, 0, 0, 0, wanted - len(images)))
        answer = _answer(self.module, self.takes.of(padded))
        if answer is None or _classes(answer, wanted) != self.classes:
            return self._one_by_one(images)
        features: torch.Tensor = answer[: len(images)].float()
        return features

    def _one_by_one(self, images: torch.Tensor) -> torch.Tensor:
        """Where it fails on a batch, it is asked again in parts. No error: that would speak about private images."""
        if len(images) == 1:
            return torch.full((1, self.classes), torch.nan)
        half = len(images) // 2
        return torch.cat([self.features({}, part) for part in (images[:half], images[half:])])


def check_unchanged(primary: Primary) -> None:
    """Refuses, before anything is released, a program that holds anything but what its file says.

    No operation that is allowed writes there, so this fails where one of them was judged wrongly.
    """
    if isinstance(primary.network, Program) and not primary.network.unchanged():
        raise ValueError("Expected a primary model that keeps nothing: it changed while it was asked.")


def _state(tensors: Iterable[torch.Tensor]) -> str:
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(f"{tensor.dtype} {tuple(tensor.shape)} ".encode())
        digest.update(tensor.detach().contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _content(path: pathlib.Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise ValueError(f"Expected the file {path.name}; it is missing.") from None
    except IsADirectoryError:
        raise ValueError(f"Expected a file in {path.name}; it is a folder.") from None


def _kind(content: bytes, held: Members, name: str) -> str:
    if content[8:9] == b"{":  # safetensors: the length of a JSON header, then the header
        if b'"classifier"' in content[8 : 8 + int.from_bytes(content[:8], "little")]:
            return ConvClassifier.kind
        raise ValueError(
            f"Expected a classifier written by fedlens in {name}: its header names no network, and weights alone are no"
            " model. Save yours by torch.export.save."
        )
    if "models/model.json" in held:
        return "torch.export"
    if "constants.pkl" in held and any(member.startswith("code/") for member in held):
        return "torchscript"
    hint = "; torch.save keeps no program that could be run" if "data.pkl" in held else ""
    raise ValueError(
        f"Expected a whole classifier in {name}: a safetensors file of fedlens, TorchScript (torch.jit.save) or a"
        f" torch.export program (torch.export.save){hint}."
    )


def _opened(path: pathlib.Path, content: bytes, held: Members, kind: str, takes: Input) -> Program:
    module, tensors, example = _loaded(held, kind, path.name)

    def answer(rows: int) -> Any:
        with torch.no_grad():
            return _answer(module, takes.of(torch.zeros(rows, takes.channels, takes.side, takes.side)))

    limit = slice_rows(takes.side, takes.channels)
    tried = sorted({*(limit >> times for times in range(limit.bit_length())), *example}, reverse=True)
    answered = {rows: classes for rows in tried if (classes := _classes(answer(rows), rows)) > 1}
    if not answered:
        raise ValueError(_refusal(answer((*example, 1)[0]), path.name, takes))
    return Program(
        module=module,
        kind=kind,
        takes=takes,
        classes=answered[max(answered)],
        sizes=tuple(rows for rows in answered if answered[rows] == answered[max(answered)]),
        held=tensors,
        state=_state(tensors()),
        path=path.resolve(),
        sha256=hashlib.sha256(content).hexdigest(),
    )


Opened = tuple[Module, Callable[[], Iterable[torch.Tensor]], tuple[int, ...]]


def _loaded(held: Members, kind: str, name: str) -> Opened:
    """The program, the tensors it holds, and how many images it was exported with, where that is known."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return exported.opened(held, name) if kind == "torch.export" else (*torchscript.opened(held, name), ())
    except ProgramError as error:
        message = str(error)
    except Exception:
        message = f"Expected a whole {kind} file in {name}, saved on a CPU, that torch {torch.__version__} can read."
    raise ValueError(message)  # here, so that no traceback leads back to what was raised


def _answer(module: Module, images: torch.Tensor) -> Any:
    """What the module returns; None if it raises, and not even a traceback keeps what it raised or warned of."""
    try:
        with warnings.catch_warnings(), sdpa_kernel(SDPBackend.MATH):  # other kernels read beyond what they are handed
            warnings.simplefilter("ignore")  # torch's own warnings tell shapes: how many images a user has
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
    for rows in network.sizes if isinstance(network, Program) else ():
        with torch.no_grad():
            many = network.features(primary.params, images.repeat(-(-rows // len(images)), 1, 1, 1)[:rows])
        if not torch.allclose(many[: len(images)], outputs[:rows], rtol=1e-3, atol=1e-4):
            raise ValueError(f"Expected {name} to answer alike whether it is asked about {rows} images or fewer.")
    shares = bool((outputs >= 0).all() and ((outputs.sum(1) - 1).abs() < 1e-3).all())
    if isinstance(network, Program) and shares:
        return Primary(dataclasses.replace(network, gives_probabilities=True))
    return primary
