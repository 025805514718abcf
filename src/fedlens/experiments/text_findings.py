"""Which faults of text does one look find, at which epsilon, and how often does it find one where there is none?

The speakers are split as in `experiments.text`: a tenth are public. What every user sends is computed once, for the
sentences as they are and with each fault planted; a draw adds fresh noise to the mean of it. Nothing is trained.
"""

import dataclasses
import functools
import pathlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from fedlens.core import arrayfiles
from fedlens.data.population import Population
from fedlens.experiments.drawing import markdown
from fedlens.experiments.unlisted import UNLISTED
from fedlens.media import reading
from fedlens.media.text import families
from fedlens.media.text.faults import FAULTS
from fedlens.media.text.looks import tried_on
from fedlens.media.text.reading import said
from fedlens.media.text.settings import Text, text
from fedlens.media.text.tracing import sizes_shown, text_directions, text_numbers, text_traces
from fedlens.models import words
from fedlens.models.looks.explaining import Trace, explained
from fedlens.models.looks.sentences import text_sizes
from fedlens.models.looks.texts import TextPsi, TextRelease
from fedlens.models.looks.two_sample import Directions, Tested, compared
from fedlens.recipes.recipe import Recipe
from fedlens.recipes.stages import TRAIN
from fedlens.recipes.tables import Bug

UNITS = 8300  # a public number, a little below that of the speakers
DELTA = 1e-6
DRAWS, SPLITS = 20, 1000
_TOGETHER = 256  # users at once
_PLACE = f"{families.__name__}:"
# Asked for, and on no list when they were: each is looked for without its own family as well.
ASKED = tuple(
    f"{_PLACE}{name}" for name in ("stemmed", "without_vowels", "swapped", "reversed_words", "without_digits", "cut")
)
# By the function that plants it: what its family is called.
FAMILY = {
    f"{_PLACE}{name}": kind
    for name, kind in {
        "stemmed": "stemmed",
        "without_vowels": "without-vowels",
        "swapped": "letters-swapped",
        "reversed_words": "reversed",
        "without_digits": "without-digits",
        "cut": "cut",
    }.items()
}
KNOWN = "concatenated", "spaceless", "wrong-case", "truncated", "doubled", "mojibake"
BOTH, HALVES = "everybody, before and after", "half of the users each"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cell:
    """A fault in a share of the sentences, at an epsilon; of two looks at everybody jointly, or of one at each half."""

    kind: str
    share: float
    epsilon: float
    design: str = BOTH

    @property
    def called(self) -> str:
        return self.kind.rpartition(":")[2]


CELLS = (
    *(Cell(kind="concatenated", share=0.01, epsilon=epsilon) for epsilon in (0.1, 0.25, 0.5, 1.0)),
    *(Cell(kind=kind, share=0.1, epsilon=epsilon) for kind in KNOWN for epsilon in (0.25, 0.5, 1.0)),
    *(Cell(kind=kind, share=0.1, epsilon=epsilon) for kind in ASKED for epsilon in (0.25, 0.5, 1.0)),
    *(Cell(kind=kind, share=0.1, epsilon=epsilon) for kind in UNLISTED for epsilon in (0.25, 0.5, 1.0)),
    Cell(kind="concatenated", share=0.01, epsilon=1.0, design=HALVES),
    *(Cell(kind=kind, share=0.1, epsilon=1.0, design=HALVES) for kind in (*KNOWN, *ASKED, *UNLISTED)),
)


def recipe_of(
    out: pathlib.Path, epsilon: float = 1.0, design: str = BOTH, kind: str = "", share: float = 0.0
) -> Recipe:
    """Two looks at everybody are priced jointly; halves share nobody, and each is priced alone."""
    groups = {"after": {"by": "everyone"}} | ({"before": {"by": "everyone"}} if design == BOTH else {})
    units = UNITS if design == BOTH else UNITS // 2
    values: dict[str, Any] = {
        "name": "speakers-look",
        "task": "T3",
        "algorithm": "look",
        "data": {"source": "jsonl", "path": str(out / "users.jsonl")},
        "text": {"public": str(out / "public.txt")},
        "selections": groups,
        "privacy": {"epsilon": epsilon, "delta": DELTA, "units": units, "population": UNITS + 1700},
    }
    return Recipe.validated(values, [])


@dataclasses.dataclass(frozen=True, kw_only=True)
class Users:
    """What they say, and what each would send: as `OneLook.contribute` makes it of what `reading` prepares.

    A fault changes some sentences only, and a mean of numbers is a sum: what is not hit is looked at once.
    """

    out: pathlib.Path
    say: Callable[[str], None]

    @functools.cached_property
    def recipe(self) -> Recipe:
        return recipe_of(self.out)

    @functools.cached_property
    def own(self) -> Text:
        return text(self.recipe)

    @functools.cached_property
    def psi(self) -> TextPsi:
        asked: TextPsi = self.recipe.built().psi  # type: ignore[attr-defined]
        return asked

    @functools.cached_property
    def population(self) -> Population:
        return reading.reading("text").opened(self.recipe.data)

    def sent(self, kind: str = "", share: float = 0.0) -> np.ndarray:
        """[users, numbers]: what everybody sends, before noise; made once, and kept."""
        path = self.out / "sent" / f"{kind.rpartition(':')[2] or 'clean'}-{share:g}.npy"
        if not path.exists():
            self.say(f"{path.stem}: what the users send")
            path.parent.mkdir(parents=True, exist_ok=True)
            sums = self._sums + (self._moved(kind, share) if kind else 0.0)
            _save(path, self._bounded(sums))
        held: np.ndarray = arrayfiles.mapped(path)
        return held

    @functools.cached_property
    def _sums(self) -> np.ndarray:
        """[users, numbers]: of the numbers of their sentences, without a fault."""
        path = self.out / "sent" / "sums.npy"
        if not path.exists():
            every = [(unit, self._rows(unit)) for unit in range(len(self.population))]
            parts = (every[at : at + _TOGETHER] for at in range(0, len(every), _TOGETHER))
            _save(path, np.concatenate([self._added(part, None) for part in parts]))
        held: np.ndarray = arrayfiles.mapped(path)
        return held

    def _rows(self, unit: int) -> np.ndarray:
        rows: np.ndarray = self.population.starts[unit] + np.arange(self.population.counts[unit])
        return rows

    def _added(self, units: Sequence[tuple[int, np.ndarray]], change: Callable[[list[str]], list[str]] | None) -> Any:
        """[units, numbers]: the sums over these sentences of each."""
        split = words.tokenizer(self.own.tokenizer)
        spoken = [
            said(np.asarray(self.population.columns["text"][rows]), split) if len(rows) else [] for _, rows in units
        ]
        every = [tokens if change is None else change(tokens) for some in spoken for tokens in some]
        owners = torch.repeat_interleave(torch.arange(len(units)), torch.tensor([len(some) for some in spoken]))
        total = torch.zeros(len(units), sum(text_sizes().values()), dtype=torch.float64)
        return total.index_add(0, owners, text_numbers(every, self.own.known)).numpy() if every else total.numpy()

    def _moved(self, kind: str, share: float) -> np.ndarray:
        """By how much a fault moves the sums, planted as recipes plant it."""
        bug = Bug(kind=kind, fraction=share, of="examples")
        change = FAULTS.named(kind).change
        struck = [
            (unit, hit) for unit, hit, _ in reading.planting_of(bug, self.population).hits(self.population, "text")
        ]
        parts = [struck[at : at + _TOGETHER] for at in range(0, len(struck), _TOGETHER)]
        moved = [self._added(part, change) - self._added(part, None) for part in parts]
        return np.concatenate(moved)

    def _bounded(self, sums: np.ndarray) -> np.ndarray:
        counts = torch.from_numpy(self.population.counts)
        means = torch.from_numpy(sums / np.maximum(self.population.counts, 1)[:, None]).float()
        blocks = dict(zip(text_sizes(), means.split(list(text_sizes().values()), 1), strict=True))
        mask = (torch.arange(int(counts.max())) < counts[:, None]).float()
        sent = torch.func.vmap(self.psi.bounded)(blocks, mask)
        return torch.cat([sent[name] for name in self.psi.shapes], 1).numpy()


def _save(path: pathlib.Path, numbers: np.ndarray) -> None:
    part = path.with_suffix(".part.npy")
    np.save(part, numbers, allow_pickle=False)
    part.rename(path)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TextBench:
    """What all cells share."""

    out: pathlib.Path
    say: Callable[[str], None]

    @functools.cached_property
    def users(self) -> Users:
        return Users(out=self.out, say=self.say)

    @functools.cached_property
    def clean(self) -> np.ndarray:
        return self.users.sent()

    @property
    def psi(self) -> TextPsi:
        return self.users.psi

    def noise(self, epsilon: float, design: str) -> float:
        """The standard deviation on every number of the mean."""
        plan = recipe_of(self.out, epsilon, design).plans[TRAIN]
        return plan.stddev / plan.expected_contributors

    def release(self, rows: np.ndarray, noise: float, units: float, rng: np.random.Generator) -> TextRelease:
        total = rows.sum(0, dtype=np.float64) / units
        noisy = torch.from_numpy(total + noise * rng.standard_normal(len(total))).float()
        shapes = self.psi.shapes
        blocks = noisy.split([size for (size,) in shapes.values()])
        return TextRelease(psi=self.psi, blocks=dict(zip(shapes, blocks, strict=True)), noise=noise, units=units)

    @functools.cached_property
    def traces(self) -> tuple[Trace, ...]:
        """On public sentences, in units as large as those that the clean look shows."""
        own = self.users.own
        quiet = self.release(self.clean, 0.0, UNITS, np.random.default_rng(0))
        return tuple(text_traces(self.psi, tried_on(own), own.known, sizes_shown(compared(quiet, quiet))))


def halves(users: int, seed: int) -> np.ndarray:
    """Who is in the first of two groups, by a hash of the number of each and of the seed."""
    first: np.ndarray = np.random.Generator(np.random.PCG64([seed, 77])).random(users) < 0.5
    return first


def measured(cells: Sequence[Cell], bench: TextBench) -> list[dict[str, Any]]:
    """By cell: in how many of the draws it differs, by blocks alone and with known directions, and is named rightly."""
    directions = text_directions(bench.traces)
    return [_measured(cell, bench, directions) for cell in cells]


def _measured(cell: Cell, bench: TextBench, directions: Directions) -> dict[str, Any]:
    faulty, noise = bench.users.sent(cell.kind, cell.share), bench.noise(cell.epsilon, cell.design)
    own = FAMILY.get(cell.kind, cell.kind)
    others = [trace for trace in bench.traces if trace.kind != own]
    tally = {"alone": 0, "different": 0, "named": 0, "misnamed": 0, "misnamed without its family": 0}
    affected: list[float] = []
    summaries: list[str] = []
    for draw in range(DRAWS):
        looks = _pair(bench, faulty, noise, cell.design, draw)
        blocks, known = compared(*looks), compared(*looks, directions)
        tally["alone"] += blocks.differ
        tally["different"] += known.differ
        if not known.differ:
            continue
        named = explained(known, bench.traces).named
        tally["named"] += named is not None and named.kind == own
        tally["misnamed"] += named is not None and named.kind != own
        left = explained(known, others).named if len(others) < len(bench.traces) else None
        tally["misnamed without its family"] += left is not None
        if named:
            affected.append(named.amount[3])
            summaries.append(named.kind)
    return {
        "kind": own.rpartition(":")[2],
        "share": cell.share,
        "epsilon": cell.epsilon,
        "design": cell.design,
        "noise": noise,
        **tally,
        "draws": DRAWS,
        "affected": affected,
        "kinds": summaries,
    }


def _pair(
    bench: TextBench, faulty: np.ndarray, noise: float, design: str, draw: int
) -> tuple[TextRelease, TextRelease]:
    """With the fault, and without it."""
    rng = np.random.default_rng([draw, 5])
    if design == BOTH:
        return bench.release(faulty, noise, UNITS, rng), bench.release(bench.clean, noise, UNITS, rng)
    first = halves(len(faulty), draw)
    half = UNITS / 2
    return bench.release(faulty[first], noise, half, rng), bench.release(bench.clean[~first], noise, half, rng)


def false_alarms(
    bench: TextBench, epsilons: Iterable[float] = (0.25, 1.0, 8.0), splits: int = SPLITS
) -> list[dict[str, Any]]:
    """Of clean halves, with fresh noise each; and of everybody twice."""
    directions = text_directions(bench.traces)
    results = []
    for design in (HALVES, BOTH):
        for epsilon in epsilons:
            noise = bench.noise(epsilon, design)
            pairs = (_pair(bench, bench.clean, noise, design, 1000 + draw) for draw in range(splits))
            tested = [compared(*pair, directions) for pair in pairs]
            named = [explained(one, bench.traces).named is not None for one in tested if one.differ]
            results.append(
                {"design": design, "epsilon": epsilon, "splits": splits}
                | {"alarms": sum(one.differ for one in tested), "named": sum(named)}
                | {"smallest": min(one.p for one in tested)}
            )
            bench.say(f"{design}, epsilon {epsilon:g}: {results[-1]['alarms']} alarms in {splits}")
    return results


def reproduced(out: pathlib.Path, names: Sequence[str] | None, say: Callable[[str], None]) -> dict[str, Any]:
    """All cells, or those of some faults; "clean" for the false alarms."""
    wanted = set(names or ())
    if strange := wanted - {"clean", *(cell.called for cell in CELLS)}:
        raise ValueError(f"Expected faults of the table, or clean; got {', '.join(sorted(strange))}.")
    bench = TextBench(out=out, say=say)
    chosen = [cell for cell in CELLS if not wanted or cell.called in wanted]
    return {
        "faults": measured(chosen, bench),
        "clean": false_alarms(bench) if not wanted or "clean" in wanted else [],
    }


def tables(results: Mapping[str, Any]) -> str:
    """As Markdown."""
    return "\n".join([_table(results["faults"]), _table_of_alarms(results["clean"])])


def _table(results: Sequence[Mapping[str, Any]]) -> str:
    columns = (
        "fault",
        "sentences",
        "groups",
        "epsilon",
        "different",
        "by blocks alone",
        "named",
        "misnamed",
        "share fitted",
    )
    return markdown(
        columns,
        [
            [
                r["kind"],
                f"{100 * r['share']:g}%",
                r["design"],
                f"{r['epsilon']:g}",
                *(f"{r[name]} of {r['draws']}" for name in ("different", "alone", "named", "misnamed")),
                _spread(r["affected"]),
            ]
            for r in results
        ],
    )


def _spread(shares: Sequence[float]) -> str:
    """
    >>> _spread([0.01, 0.012]), _spread([])
    ('1% to 1.2%', '-')
    """
    return f"{100 * min(shares):.2g}% to {100 * max(shares):.2g}%" if shares else "-"


def _table_of_alarms(alarms: Sequence[Mapping[str, Any]]) -> str:
    rows = [
        [r["design"], f"{r['epsilon']:g}", f"{r['alarms']} of {r['splits']}", r["named"], f"{r['smallest']:.2g}"]
        for r in alarms
    ]
    return markdown(("groups without a fault", "epsilon", "said to differ", "named", "smallest p"), rows)


def drawn(bench: TextBench, cell: Cell, draw: int = 0) -> Tested:
    """One draw of a cell, to be put in words."""
    faulty, noise = bench.users.sent(cell.kind, cell.share), bench.noise(cell.epsilon, cell.design)
    return compared(*_pair(bench, faulty, noise, cell.design, draw), text_directions(bench.traces))
