"""The public half of a medium: what a recipe may say, what is trained, what is drawn, and what is made of it.

`Medium` is what the rest of the house asks; most questions have an answer here that a medium need not repeat. What is
asked with a recipe is answered from the recipe alone: no private data decide.
"""

import abc
import dataclasses
import importlib.resources
import json
import pathlib
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar

from fedlens.algorithms.protocol import Algorithm
from fedlens.core.trees import Tree
from fedlens.ledger import Head, Ledger, Spending, guarantee
from fedlens.ledger.provenance import as_delta, as_head, as_label, as_number
from fedlens.media.faults import Faults
from fedlens.models.classifier import Primary
from fedlens.privacy import Guarantee
from fedlens.recipes.tables import Settings, Table
from fedlens.report.comparison import Null
from fedlens.report.report import Finding, Report

if typing.TYPE_CHECKING:
    import jinja2

Readers = dict[str, Callable[[Any], Any]]


class First(typing.NamedTuple):
    """What is asked once before a model is trained, and which share of epsilon it would cost alone."""

    algorithm: Algorithm
    share: float


Values = dict[str, Any]  # a recipe before it is checked
# Options of a table; when a run uses them, by the table they stand in and the whole recipe; and what they go with.
Rule = tuple[type[Table], str, Callable[[Any, Any], object], str]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Priced(abc.ABC):
    """What was made from private data never travels without what it cost: its file carries it.

    What `readers` names stands in the header of its file, and is read from it: it may be anything.
    """

    readers: ClassVar[Readers] = {"label": as_label, "spending": Spending.from_dict, "delta": as_delta}
    medium: ClassVar[str]
    label: str  # of the group
    spending: Spending
    delta: float

    @property
    def guarantee(self) -> Guarantee:
        return guarantee([self.spending], self.delta)

    def _header(self) -> dict[str, Any]:
        """The guarantee can be recomputed from the spending."""
        about = {name: getattr(self, name) for name in self.readers}
        return about | {"spending": self.spending.to_dict(), "guarantee": self.guarantee.to_dict()}

    @classmethod
    def _stated(cls, about: Mapping[str, Any]) -> dict[str, Any]:
        return {name: read(about.get(name)) for name, read in cls.readers.items()}

    @abc.abstractmethod
    def save(self, path: pathlib.Path) -> None: ...


@dataclasses.dataclass(frozen=True, kw_only=True)
class Samples(Priced):
    """What a model drew."""

    readers: ClassVar[Readers] = {**Priced.readers, "round": lambda value: None if value is None else as_number(value)}
    round: int | None = None  # after which the model drew them

    def _header(self) -> dict[str, Any]:
        return super()._header() | {"synthetic": True}

    @abc.abstractmethod
    def __len__(self) -> int: ...

    def examples(self) -> Tree:
        """As models are trained on them, by the column."""
        raise ValueError(f"Expected samples that models can be trained on; those of {self.medium} are not.")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Trained(Priced):
    """A trained model with its guarantee: the content of model.safetensors."""

    readers: ClassVar[Readers] = {
        **Priced.readers,
        "recipe_sha256": as_label,
        "rounds": as_number,
        "ledger_head": as_head,
    }
    file: ClassVar[str] = "model.safetensors"
    recipe_sha256: str
    rounds: int
    ledger_head: Head  # the last entry of the ledger when the model was made: it pins down all before it
    refitted: bool = False  # after its run, to what that kept: the ledger knows its price, and not its hash
    beside: str = ""  # SHA-256 of what was kept beside it, if anything: the ledger books the model, and so this with it

    @property
    def paid_before(self) -> tuple[Spending, ...]:
        """The price of what was released before its run and shapes what it shows."""
        return ()

    @property
    def words_digest(self) -> str:
        """Of the list of words it was made with, which may have been learnt; empty for none."""
        return ""

    @abc.abstractmethod
    def sampled(self, count: int, seed: int) -> Samples: ...

    def likeliest(self, count: int, beams: int) -> Samples:
        """By beam search: what samples may have missed."""
        raise ValueError("Expected a language model to search with --beams.")

    def _header(self) -> dict[str, Any]:
        return super()._header() | ({"beside": self.beside} if self.beside else {})

    @classmethod
    def _stated(cls, about: Mapping[str, Any]) -> dict[str, Any]:
        return super()._stated(about) | {"beside": as_label(about.get("beside", ""))}

    def _of_samples(self) -> dict[str, Any]:
        """What its samples are told with."""
        return {"label": self.label, "spending": self.spending, "delta": self.delta, "round": self.rounds}

    @classmethod
    def _check_header(cls, about: Mapping[str, Any], path: pathlib.Path, more: Iterable[str] = ()) -> None:
        if missing := {*cls.readers, *more} - about.keys():
            raise ValueError(
                f"Expected a model with its guarantee in {path.name}; its header lacks {', '.join(sorted(missing))}."
            )


def check_fits(network: Any, weights: Tree, path: pathlib.Path) -> None:
    if not network.fits(weights):
        raise ValueError(f"Expected the weights of its network in {path.name}; some are missing or misshapen.")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Template:
    """The pieces of a commented recipe that depend on the medium; recipes.templates has the rest."""

    settings: str = ""  # before the first table
    source: str  # in which form data at a path lie
    columns: str = ""  # of such data
    fault: str = ""  # a rehearsal
    tables: str = ""  # of the medium's own, after the data
    tail: str = ""  # what is left open, with its defaults

    @classmethod
    def of_package(cls, package: str, source: str, **values: Any) -> "Template":
        """From the blocks of template.toml in the folder of `package`, filled in; texts are quoted as TOML wants."""
        template = template_of(package)
        quoted = {key: json.dumps(value, ensure_ascii=False) if value else "" for key, value in values.items()}
        context = template.new_context({"source": source, **quoted})
        return cls(source=source, **{name: "".join(block(context)) for name, block in template.blocks.items()})


def template_of(package: str) -> "jinja2.Template":
    import jinja2

    text = importlib.resources.files(package).joinpath("template.toml").read_text("utf-8")
    rules = jinja2.Environment(undefined=jinja2.StrictUndefined, trim_blocks=True, keep_trailing_newline=True)
    return rules.from_string(text)


class Medium(abc.ABC):
    """One medium, as the rest of the house sees it."""

    name: ClassVar[str]
    tables: ClassVar[Mapping[str, tuple[Any, Any]]]  # its keys of a recipe: what may stand there, and the default
    faults: ClassVar[Faults]
    drawn: ClassVar[int]  # samples that a contrast looks at
    # What takes the fault out of its demonstration (recipes/files/demo_<name>.toml), if it has one: then the data are
    # another population, with a budget of its own. They are public.
    demo_without_fault: ClassVar[list[str]] = []
    shows_glimpses: ClassVar[bool] = False  # whether what a model draws on the way is worth a picture
    rules: ClassVar[tuple[Rule, ...]] = ()
    tasks: ClassVar[tuple[str, ...]]
    algorithms: ClassVar[tuple[str, ...]] = ()  # that train its networks, beside those that name this medium themselves
    selects: ClassVar[tuple[str, ...]] = ("everyone", "attribute")  # what groups may be selected by
    judged: ClassVar[bool] = False  # whether a primary model may be asked about it
    worded: ClassVar[bool] = False  # whether lists of words may be learnt of it
    measured: ClassVar[bool] = False  # whether what its models draw may be held against real examples

    # A recipe

    @property
    def table_keys(self) -> list[str]:
        """Those of its keys that are tables."""
        kinds = {key: (kind, *typing.get_args(kind)) for key, (kind, _) in self.tables.items()}
        return [key for key, arms in kinds.items() if any(isinstance(a, type) and issubclass(a, Table) for a in arms)]

    def claims(self, recipe: Settings) -> bool:
        """Whether it is about this medium: its own keys say so."""
        return any(getattr(recipe, key) != default for key, (_, default) in self.tables.items())

    @abc.abstractmethod
    def problems(self, recipe: Settings) -> list[str]:
        """What does not go together, one line each."""

    @abc.abstractmethod
    def settled(self, values: Values, judged: Callable[[Values], Any]) -> Values:
        """With what works without tuning where rounds or clip are left open; `judged` makes a recipe of settings."""

    def warnings(self, recipe: Settings) -> list[str]:
        return []

    def doubts(self, recipe: Settings, noise_to_signal: float) -> tuple[str, ...]:
        """Why what it finds would be a hint only, if so: for whoever reads the report."""
        return ()

    def public_files(self, recipe: Settings) -> dict[str, str]:
        """By the setting that names them: the files beside the data that a run depends on."""
        return {}

    def functions(self, recipe: Settings) -> dict[str, str]:
        """By what they are: functions, perhaps of one's own, that see private examples, beside a planted fault."""
        return {}

    def reads_labels(self, recipe: Settings) -> bool:
        return False

    def shows_predictions(self, recipe: Settings) -> bool:
        """Whether units are shown, beside their examples, what the primary model takes them for."""
        return False

    def classes(self, recipe: Settings) -> int | None:
        """How many labels a conditional model knows; None if it is none."""
        return None

    def refusals(self, recipe: Settings, facts: Mapping[str, int]) -> list[str]:
        """Why it does not fit data that are registered with these facts (see `Reading.facts`)."""
        return []

    @abc.abstractmethod
    def template(self, task: str, data: str, **given: Any) -> Template:
        """The pieces of a recipe to start from."""

    # What is trained

    @abc.abstractmethod
    def algorithm(self, recipe: Settings) -> str:
        """The name of the one that trains its models, unless the recipe names another."""

    @abc.abstractmethod
    def network(self, recipe: Settings) -> Any:
        """What the algorithm trains."""

    @abc.abstractmethod
    def weights(self, recipe: Settings) -> int:
        """How many numbers a unit's contribution holds."""

    @abc.abstractmethod
    def blank(self, recipe: Settings, width: int) -> Tree:
        """A made-up unit with so many examples, all zero: to measure with."""

    def warmed(self, recipe: Settings, algorithm: Algorithm, state: Tree, device: str) -> Tree:
        """The first state, after it has learnt what is public."""
        return state

    def first(self, recipe: Settings) -> First | None:
        """What a model starts from, where that is asked of the data."""
        return None

    def started(self, recipe: Settings, state: Tree, kept: Any, device: str) -> Tree:
        """The first state, after it has learnt what was `kept` of the answer to what is asked first."""
        return state

    def chunk(self, recipe: Settings, models: int) -> int:
        """Units of each of so many models that train side by side, at once: what fits on a GPU."""
        return max(1, 700 // models)

    def summary(self, recipe: Settings) -> dict[str, Any]:
        """What a table of experiments says about the network."""
        return {}

    def released(self, recipe: Settings) -> tuple[Spending, ...]:
        """What was released before this run and shapes all that it shows.

        It is booked in the ledger already, so that no run reserves it again; but every guarantee includes it.
        """
        return ()

    def check_prices(self, recipe: Settings, book: Ledger) -> None:
        """Refuses a recipe that tells another price of what was released before than the ledger does."""
        return

    def check_public(self, recipe: Settings) -> None:
        """Refuses a recipe whose public files its report could not be made with; they are public by now."""
        return

    def check_room(self, recipe: Settings, room: int) -> None:
        """Refuses a recipe that so many bytes of memory are too few for, where that can be told beforehand."""
        return

    # Models and samples

    def kept(self, recipe: Settings, algorithm: Algorithm, state: Tree, **about: Any) -> Trained | None:
        """What is kept of a state beside the model, if anything: a release that more than one can be made of.

        It says in which `file`.
        """
        return None

    @abc.abstractmethod
    def model(
        self, recipe: Settings, algorithm: Algorithm, state: Tree, *, device: str = "cpu", **about: Any
    ) -> Trained:
        """What a state is worth to a modeler, with its guarantee."""

    @abc.abstractmethod
    def owns(self, header: Mapping[str, Any]) -> bool:
        """Whether a file with this header holds a model of this medium."""

    @abc.abstractmethod
    def opened(self, path: pathlib.Path) -> Trained: ...

    def kept_in(self, folder: pathlib.Path) -> Trained | None:
        """What was kept beside the model in its folder, if anything was."""
        return None

    def refitted(self, path: pathlib.Path, device: str, room: int, **fit: Any) -> Trained:
        """Another model of what was kept beside one: free. Refused where so many bytes of memory are too few."""
        raise ValueError(f"Expected a look that generators are fitted to; none is fitted to one at {self.name}.")

    @abc.abstractmethod
    def opened_samples(self, path: pathlib.Path) -> Samples: ...

    def drawn_on(self, model: Any, count: int, device: str) -> Samples:
        """What a model draws with the seed 0, on a device if that pays."""
        drawn: Samples = model.sampled(count, 0)
        return drawn

    def samples(self, recipe: Settings) -> int:
        """How many a report is made from."""
        return self.drawn

    @abc.abstractmethod
    def shown(self, samples: Samples) -> tuple[str, bytes]:
        """Some of them to look at: the ending of a file, and its content."""

    # What is found

    def baseline(self, recipe: Settings) -> Trained | None:
        """The model of an earlier run that it is compared with, if any."""
        return None

    def baseline_file(self, recipe: Settings) -> pathlib.Path | None:
        """Where it lies."""
        return None

    def primary_form(self, recipe: Settings) -> dict[str, int]:
        """What a primary model must know about the form of examples, to be opened."""
        return {}

    def primary(self, path: pathlib.Path, like: Samples, **expects: Any) -> Primary:
        """A primary model from a file, for samples like these."""
        raise ValueError(f"Expected no --model: there is no primary model of {self.name}.")

    @abc.abstractmethod
    def contrast(
        self,
        groups: Sequence[Samples],
        *,
        title: str,
        kinds: Sequence[str] = (),
        primary: Primary | None = None,
        glimpses: Sequence[Samples] = (),
        before: Sequence[Finding] = (),
        warnings: tuple[str, ...] = (),
        provenance: dict[str, str] | None = None,
        coverage: bool = True,
        null: Null | None = None,
        releases: Sequence[Trained] = (),
        recipe: Settings | None = None,
    ) -> Report:
        """One group alone is a sanity check; of two, the first is the suspicious one.

        `releases` are what was kept of each group beside its model; `recipe` that of the run, if it is one's.
        """

    def looked(
        self,
        looks: Sequence[Trained],
        *,
        recipe: Settings | None,
        title: str,
        warnings: tuple[str, ...] = (),
        provenance: dict[str, str] | None = None,
    ) -> Report | None:
        """What looks say that nothing is drawn from, one or two, the suspicious one first; None: they are drawn from.

        The recipe says which public examples faults are tried on; without one, none are.
        """
        return None

    def in_table(self, report: Report) -> dict[str, Any]:
        """What a table of experiments says about a contrast, beside what it says of all."""
        return {}

    def provenance(self, recipe: Settings) -> dict[str, str]:
        """What its report says about where things come from, beside what every report does."""
        return {}
