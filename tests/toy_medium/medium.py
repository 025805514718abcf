"""The public half of levels: how likely each is, and what differs."""

import dataclasses
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from fedlens.media.levels.faults import FAULTS

from fedlens.algorithms import FedAvg
from fedlens.core import tensorfiles, trees
from fedlens.ledger import guarantee
from fedlens.media.protocol import Medium, Samples, Template, Trained
from fedlens.recipes.tables import Settings, Table
from fedlens.report import comparison, ranking
from fedlens.report.charts import Chart
from fedlens.report.report import Report


class LevelSettings(Table):
    samples: int = 500


@dataclasses.dataclass(frozen=True, kw_only=True)
class Chances:
    """A network of ten weights: how likely each level is."""

    def init(self, seed: int) -> trees.Tree:
        return {"logits": torch.zeros(10)}

    def loss(self, params: trees.Tree, examples: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        loss = torch.nn.functional.cross_entropy(
            params["logits"].expand(len(examples), 10), examples.long(), reduction="none"
        )
        return (loss * mask).sum() / mask.sum().clamp(min=1.0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class LevelSamples(Samples):
    medium: ClassVar[str] = "levels"
    levels: torch.Tensor = dataclasses.field(repr=False)

    def __len__(self) -> int:
        return len(self.levels)

    def save(self, path: pathlib.Path) -> None:
        tensorfiles.write(path, {"levels": self.levels}, self._header())

    @property
    def shares(self) -> torch.Tensor:
        return torch.bincount(self.levels, minlength=10) / len(self.levels)


@dataclasses.dataclass(frozen=True, kw_only=True)
class LevelModel(Trained):
    medium: ClassVar[str] = "levels"
    logits: torch.Tensor = dataclasses.field(repr=False)

    def sampled(self, count: int, seed: int) -> LevelSamples:
        rng = torch.Generator().manual_seed(seed)
        levels = torch.multinomial(self.logits.softmax(0), count, replacement=True, generator=rng)
        return LevelSamples(levels=levels, **self._of_samples())

    def save(self, path: pathlib.Path) -> None:
        tensorfiles.write(path, {"logits": self.logits}, self._header() | {"levels": 10})


class LevelMedium(Medium):
    name = "levels"
    tables: ClassVar[Mapping[str, tuple[Any, Any]]] = {"levels": (LevelSettings | None, None)}
    faults = FAULTS
    drawn = 500
    tasks = ("T1",)
    algorithms = ("fedavg",)

    def claims(self, recipe: Settings) -> bool:
        return getattr(recipe, "levels", None) is not None

    def problems(self, recipe: Settings) -> list[str]:
        return []

    def settled(self, values: dict[str, Any], judged: Any) -> dict[str, Any]:
        return values

    def template(self, task: str, data: str, **given: Any) -> Template:
        return Template(source="population", tables="[levels]\n")

    def algorithm(self, recipe: Settings) -> str:
        return FedAvg.name

    def network(self, recipe: Settings) -> Chances:
        return Chances()

    def weights(self, recipe: Settings) -> int:
        return 10

    def blank(self, recipe: Settings, width: int) -> trees.Tree:
        return {"x": torch.zeros(width, dtype=torch.long), "mask": torch.ones(width)}

    def model(
        self, recipe: Settings, algorithm: Any, state: trees.Tree, *, device: str = "cpu", **about: Any
    ) -> LevelModel:
        return LevelModel(logits=algorithm.result(state)["logits"].cpu(), **about)

    def owns(self, header: Mapping[str, Any]) -> bool:
        return "levels" in header

    def opened(self, path: pathlib.Path) -> LevelModel:
        tree, about = tensorfiles.read(path)
        return LevelModel(logits=tree["logits"], **LevelModel._stated(about))

    def opened_samples(self, path: pathlib.Path) -> LevelSamples:
        tree, about = tensorfiles.read(path)
        return LevelSamples(levels=tree["levels"], **LevelSamples._stated(about))

    def samples(self, recipe: Any) -> int:
        return int(recipe.levels.samples)

    def shown(self, samples: Any) -> tuple[str, bytes]:
        return ".txt", " ".join(map(str, samples.levels.tolist())).encode()

    def contrast(self, groups: Sequence[Any], *, title: str, **about: Any) -> Report:
        rows = _hypotheses(groups) if len(groups) > 1 else ()
        return comparison.compared(
            groups,
            title=title,
            guarantee=guarantee([group.spending for group in groups], max(group.delta for group in groups)),
            findings=tuple(comparison.finding(row, "shares differ") for row in rows if row["named"]),
            hypotheses=rows,
            missed=tuple,
            failures=(),
            before=about.get("before", ()),
            exhibits=(),
            numbers=[comparison.number("mean", "level", [float(g.levels.float().mean()) for g in groups], digits=3)],
            charts=[
                Chart(
                    title="Levels",
                    categories=tuple(map(str, range(10))),
                    **comparison.by_place(tuple(group.shares.tolist()) for group in groups),
                )
            ],
            warnings=about.get("warnings", ()),
            provenance=about.get("provenance"),
        )


def _hypotheses(groups: Sequence[Any]) -> tuple[dict[str, Any], ...]:
    left, right = (group.shares for group in groups)
    nothing = float((left - right).abs().sum())
    rows = [ranking.none_of_these(nothing)]
    for kind, fault in FAULTS.known.items():
        changed = torch.bincount(fault.change(groups[1].levels), minlength=10) / len(groups[1])
        rows.append(ranking.hypothesis(kind, fault.summary, float((left - changed).abs().sum()), nothing))
    return ranking.in_order(rows, lambda row: row["score"] > 0.5)


MEDIUM = LevelMedium()
