"""The public half of images: DP-trained generators, and what is seen in what they draw."""

import dataclasses
import math
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Literal

import torch
from pydantic import NonNegativeInt

from fedlens.algorithms.feedback_gan import FeedbackGan
from fedlens.algorithms.look import OneLook
from fedlens.algorithms.protocol import Algorithm
from fedlens.core import tensorfiles, trees
from fedlens.core.trees import Tree
from fedlens.media.images import against_public, contrast, feedback, findings, looks, pictures, public
from fedlens.media.images.faults import FAULTS
from fedlens.media.images.looks import Fitted, Look
from fedlens.media.images.samples import Model, Samples
from fedlens.media.images.settings import (
    FEEDBACK,
    LOOK,
    LookSettings,
    Networks,
    channels,
    gan,
    look,
    networks,
    settled,
    side,
    starts_from_look,
)
from fedlens.media.looks import problems as problems_of_looks
from fedlens.media.protocol import First, Medium, Template, Trained, Values
from fedlens.media.protocol import Samples as AnySamples
from fedlens.models.classifier import Primary
from fedlens.models.gan import Gan
from fedlens.models.looks import room as looks_room
from fedlens.models.looks.fitting import Fit
from fedlens.models.looks.psi import PREDICTED, Psi
from fedlens.models.primary import open_primary
from fedlens.privacy import Unit
from fedlens.recipes.tables import BY_PRIMARY, Settings
from fedlens.report.report import Report

T6 = "T6"  # what do private users have that public data lack?
OTHERWISE = (
    "the two looks count other things, or in other units: the groups are compared by samples of what was fitted to"
    " them; looks with the same settings of [look] can be tested against each other"
)
CHOSEN = (
    "the model chose the groups, so that they differ by construction: in what it takes images for, and in classes that"
    " are hard for it. {} is compared with {}, and not with everybody"
)
EITHER = "users have images on both sides, which differ by what is hard to read: a fault that is named is a guess"
SHEET = 256  # images on one sheet, to look at


class Images(Medium):
    name = "images"
    tables: ClassVar[Mapping[str, tuple[Any, Any]]] = {
        "side": (NonNegativeInt, 0),
        "channels": (Literal[1, 3], 1),
        "model": (Networks, Networks()),
        "look": (LookSettings, LookSettings()),
    }
    rules = (*looks.RULES, *feedback.RULES)
    faults = FAULTS
    drawn = contrast.COMPARED
    demo_without_fault: ClassVar[list[str]] = ["data.bug.fraction=0", "data.name=digits-without-bug"]
    shows_glimpses = True
    tasks = ("T1", "T2", "T4", T6)
    selects = ("everyone", "accuracy", "right", "wrong", "class", "attribute")
    judged = True
    measured = True

    # A recipe

    def problems(self, recipe: Settings) -> list[str]:
        problems = [] if side(recipe) > 0 else ["give side, of images, or the table of another medium, such as [text]"]
        try:
            self.network(recipe)
            if self._one_look(recipe):
                looks.drawing(recipe)
            if starts_from_look(recipe):
                looks.psi(recipe)
                _ = gan(recipe).conv_generator  # and not when the look is paid
        except ValueError as error:
            problems.append(str(error))
        problems += feedback.problems(recipe)
        of_look = problems_of_looks(recipe) if self._one_look(recipe) else []
        if recipe.task == T6:
            problems += self._problems_of_t6(recipe)
        return problems + of_look + (looks.problems_of_start(recipe) if starts_from_look(recipe) else [])

    def _problems_of_t6(self, recipe: Settings) -> list[str]:
        named, unit = look(recipe).public, recipe.privacy.unit
        if not (self._one_look(recipe) and named and len(recipe.selections) == 1):
            return ["task = 'T6' holds one look (algorithm = 'look') against look.public: one selection"]
        if not looks.readable(recipe):
            return ["task = 'T6' compares what people read: look.readable must be above 0"]
        # Dealt by chance, images of all would make units that are more alike than any are: they differ from everybody.
        if unit != Unit.EXAMPLE and not named.users:
            return [f"task = 'T6' holds {unit}s against those of look.public: give look.public.users, whose each is"]
        return []

    def _one_look(self, recipe: Settings) -> bool:
        return (recipe.algorithm or self.algorithm(recipe)) == LOOK

    def settled(self, values: Values, judged: Callable[[Values], Any]) -> Values:
        return settled(values, judged)

    def reads_labels(self, recipe: Settings) -> bool:
        bug = recipe.data.bug
        return bool(networks(recipe).classes or (bug and bug.relabels))

    def shows_predictions(self, recipe: Settings) -> bool:
        return looks.judged(recipe) and (self._one_look(recipe) or starts_from_look(recipe))

    def classes(self, recipe: Settings) -> int | None:
        return networks(recipe).classes or None

    def public_files(self, recipe: Settings) -> dict[str, str]:
        named = look(recipe).public
        return {"look.public": named.path} if named else {}

    def refusals(self, recipe: Settings, facts: Mapping[str, int]) -> list[str]:
        given = {"side": side(recipe), "channels": channels(recipe)}
        known = {"channels": 1, **facts}  # as registered before there was colour
        return [
            f"its images are of {name} {known.get(name)}, and the recipe says {name} = {value}"
            for name, value in given.items()
            if value != known.get(name)
        ]

    def template(self, task: str, data: str, *, model: str = "cnn.safetensors", **given: Any) -> Template:
        if given.get("vocabulary") or given.get("baseline"):
            raise ValueError("Expected --vocab and --baseline with --task T3 only.")
        source = "npz" if pathlib.Path(data).suffix == ".npz" else "population"
        side, primary = given["facts"].get("side", 28), model if task != "T1" else ""
        return Template.of_package(__package__, source, side=side, primary=primary)

    # What is trained

    def algorithm(self, recipe: Settings) -> str:
        return "fedavg-gan"

    def network(self, recipe: Settings) -> Gan | Psi:
        return looks.psi(recipe) if self._one_look(recipe) else gan(recipe)

    def weights(self, recipe: Settings) -> int:
        if self._one_look(recipe):
            return sum(math.prod(shape) for shape in looks.psi(recipe).shapes.values())
        if recipe.algorithm == FEEDBACK:
            return math.prod(gan(recipe).shape) * FeedbackGan.rows(recipe.training.model_dump())
        return sum(leaf.numel() for leaf in gan(recipe).critic.init(0).values())

    def blank(self, recipe: Settings, width: int) -> Tree:
        images = torch.zeros(width, channels(recipe), side(recipe), side(recipe), dtype=torch.uint8)
        labels = {"y": torch.zeros(width, dtype=torch.long)} if networks(recipe).classes else {}
        judged = {PREDICTED: torch.zeros(width, dtype=torch.long)} if self.shows_predictions(recipe) else {}
        return {"x": images, "mask": torch.ones(width), **labels, **judged}

    def first(self, recipe: Settings) -> First | None:
        if not starts_from_look(recipe) or self._one_look(recipe):
            return None
        return First(OneLook(psi=looks.psi(recipe)), look(recipe).share)

    def started(self, recipe: Settings, state: Tree, kept: Look, device: str) -> Tree:
        """With a generator that draws what the look saw; the critic is to learn, and knows nothing yet."""
        generator = looks.start(recipe, kept, device)
        averages = {"averaged": dict(generator)} if trees.part(state, "averaged") else {}
        return state | trees.joined(generator=generator, **averages)

    def chunk(self, recipe: Settings, models: int) -> int:
        """26 GB on a GPU with the largest critic, twice while it is recorded."""
        return min(135, max(1, 700 // models))

    def summary(self, recipe: Settings) -> dict[str, Any]:
        return {"critic": list(networks(recipe).critic_widths or ())}

    def check_public(self, recipe: Settings) -> None:
        if look(recipe).public:
            public.whole(recipe) if recipe.task == T6 else public.examples(recipe)

    def check_room(self, recipe: Settings, room: int) -> None:
        if self._one_look(recipe) or starts_from_look(recipe):
            looks_room.check(looks.psi(recipe), look(recipe).batch, room)

    # Models and samples

    def kept(self, recipe: Settings, algorithm: Algorithm, state: Tree, **about: Any) -> Look | None:
        return Look.of_state(algorithm, state, **about) if isinstance(algorithm, OneLook) else None

    def model(
        self, recipe: Settings, algorithm: Algorithm, state: Tree, *, device: str = "cpu", **about: Any
    ) -> Model | Fitted:
        if isinstance(algorithm, OneLook):
            return looks.fitted(recipe, Look.of_state(algorithm, state, **about), device)
        return Model(gan=gan(recipe), generator=trees.moved(algorithm.result(state), "cpu"), **about)

    def owns(self, header: Mapping[str, Any]) -> bool:
        return "gan" in header or "drawing" in header

    def opened(self, path: pathlib.Path) -> Model | Fitted:
        return Fitted.open(path) if "drawing" in tensorfiles.header(path) else Model.open(path)

    def kept_in(self, folder: pathlib.Path) -> Look | None:
        path = folder / Look.file
        return Look.open(path) if path.exists() else None

    def refitted(self, path: pathlib.Path, device: str, room: int, keep: float = 1.0, **fit: Any) -> Fitted:
        kept, settings = Look.open(path), Fit(**fit)
        looks_room.check(kept.release.psi, settings.batch, room)
        return looks.refitted(kept, looks.drawing_for(kept, keep), settings, device)

    def opened_samples(self, path: pathlib.Path) -> Samples:
        return Samples.open(path)

    def shown(self, samples: AnySamples) -> tuple[str, bytes]:
        return ".png", pictures.png_bytes(_images(samples).images[:SHEET])

    # What is found

    def primary_form(self, recipe: Settings) -> dict[str, int]:
        return {"side": side(recipe)}

    def primary(self, path: pathlib.Path, like: AnySamples, **expects: Any) -> Primary:
        _, channels, size, _ = _images(like).images.shape
        return open_primary(path, side=size, channels=channels, **expects)

    def contrast(
        self,
        groups: Sequence[AnySamples],
        *,
        releases: Sequence[Trained] = (),
        recipe: Settings | None = None,
        **about: Any,
    ) -> Report:
        """By their looks, where both have one of the same kind; else by what was drawn."""
        samples, kept = list(map(_images, groups)), [one for one in releases if isinstance(one, Look)]
        if recipe and recipe.task == T6 and len(samples) == len(kept) == 1:
            return against_public.report_of(kept[0], samples[0], public.whole(recipe), **about)
        if len(samples) == len(kept) == 2:
            one, other = (look.release.psi for look in kept)
            if one.readable and one.meaning == other.meaning:
                labels = [sample.label for sample in samples]
                kept = [dataclasses.replace(look, label=label) for look, label in zip(kept, labels, strict=True)]
                by = {chosen.by for chosen in recipe.selections.values()} if recipe else set()
                chosen = (CHOSEN.format(*labels),) if by & {*BY_PRIMARY} else ()
                doubt = (EITHER,) if by & {"right", "wrong"} else ()
                about["warnings"] = (*about.get("warnings", ()), *chosen, *doubt)
                return findings.report_of(kept, samples, public=public.examples(recipe), **about)
            about["warnings"] = (*about.get("warnings", ()), OTHERWISE)
        return contrast.contrast(*samples, **about)


def _images(samples: AnySamples) -> Samples:
    if not isinstance(samples, Samples):
        raise ValueError("Expected samples of images to compare with each other.")
    return samples


MEDIUM = Images()
