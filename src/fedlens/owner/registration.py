"""What the owner of data says about them, and nobody else may: the file that a run is held to.

A recipe names a population. Where the data lie, whose rows are whose, which columns may be used, how many units there
are at most, which budget it draws on, and what may be asked of it at all: all that is a registration, sealed in the
ledger. Everything here is public but the path; whether a recipe is admitted follows from it and never from the data.
"""

import contextlib
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Annotated, Any, Literal

import pydantic
from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt

from fedlens import media
from fedlens.algorithms import ALGORITHMS
from fedlens.ledger import guarantee
from fedlens.privacy import MatrixPlan, Promise, Unit, rounded
from fedlens.recipes.recipe import Recipe
from fedlens.recipes.tables import Data, PopulationName, Table, sound
from fedlens.recipes.toml import to_toml

VOCABULARY = "vocabulary"  # learning one is an algorithm too, as far as an owner is concerned


EVERY = (*ALGORITHMS, VOCABULARY)
EXACT = "fixed-size", "balanced"  # samplers that must know how many units there are


def _one_of(known: Collection[str]) -> pydantic.AfterValidator:
    def checked(name: str) -> str:
        if name not in known:
            raise ValueError(f"expected one of {', '.join(known)}")
        return name

    return pydantic.AfterValidator(checked)


class Policy(Table):
    """What may be asked. By default little: whoever registers a population says more.

    Of one that a run registered in passing nobody has said anything yet, and it has no budget: there all may.
    """

    simulation: bool = False  # --simulate: seeded noise, which protects nobody
    programs: bool = False  # primary models that are programs: TorchScript, torch.export
    functions: bool = False  # bugs and tokenizers of one's own, package.module:function, with --simulate
    algorithms: tuple[Annotated[str, _one_of(EVERY)], ...] = EVERY
    minimum_noise: NonNegativeFloat = 0.0  # multiplier of every release
    largest_epsilon: PositiveFloat | None = None  # of one run

    @property
    def text(self) -> str:
        allowed = [name for name in ("simulation", "programs", "functions") if getattr(self, name)]
        rules = [f"allows {' and '.join(allowed)}" if allowed else "no simulation, programs or functions"]
        rules += [f"algorithms {', '.join(self.algorithms)}"] if self.algorithms != EVERY else []
        rules += [f"noise multiplier at least {self.minimum_noise:g}"] if self.minimum_noise else []
        rules += [f"epsilon at most {self.largest_epsilon:g} a run"] if self.largest_epsilon else []
        return "; ".join(rules)


class Registration(Table):
    version: Literal[1] = 1
    name: PopulationName
    data: Data  # where they lie and what they hold
    medium: Annotated[str, _one_of(media.MEDIA)]
    facts: dict[str, int] = Field(default_factory=dict)  # what is public of the examples' form: the side of images
    columns: tuple[str, ...] = ()  # what there is to select by, labels (y) among it
    unit: Literal["user", "silo"] = "user"  # whose rows the column of users puts together
    population: PositiveInt | None = None  # a public upper bound on such units
    examples: PositiveInt | None = None  # and on examples, for runs that protect those
    exact: bool = False  # the bounds are the numbers themselves, declared to be public
    examples_per_user: PositiveInt | None = None  # a public upper bound
    classes: PositiveInt | None = None  # labels lie below it
    budget: PopulationName | None = None  # whose budget it draws on, if not its own
    passing: bool = False  # registered by a run, and not by its owner's word
    policy: Policy = Policy()
    whole: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]  # keyed prints of the data: see fedlens.owner.prints
    grouped: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]

    @pydantic.model_validator(mode="before")
    @classmethod
    def _former(cls, values: Any) -> Any:
        """Registrations used to know images only, and to hold their side by itself."""
        if not isinstance(values, dict) or "side" not in values:
            return values
        others = {key: value for key, value in values.items() if key != "side"}
        return others if values["side"] is None else others | {"facts": {"side": values["side"]}}

    @pydantic.model_validator(mode="after")
    def _consistent(self) -> "Registration":
        problems = [] if self.population or self.examples else ["give population or examples, a public upper bound"]
        if self.data.population or self.data.bug or not self.data.path:
            problems.append("data: give source, path and columns, and nothing else")
        return sound(self, problems)

    def to_toml(self) -> str:
        """For the owner's folder."""
        return to_toml(self)

    def public(self) -> dict[str, Any]:
        """For the ledger, and for whoever asks: all but where the data lie."""
        hidden = self.data.model_copy(update={"path": "(kept by its owner)"})
        return self.model_copy(update={"data": hidden}).model_dump(mode="json", exclude_none=True)

    def lines(self) -> list[str]:
        """For a person."""
        bounds = {self.unit: self.population, "example": self.examples}
        least = "exactly" if self.exact else "at most"
        counted = " and ".join(f"{least} {bound:,} {unit}s" for unit, bound in bounds.items() if bound)
        form = "".join(f", {name} {value}" for name, value in self.facts.items())
        lines = [
            f"{self.name}: {self.medium}{form}, {counted}",
            f"  units by {self._unit_column}; columns {', '.join(self.columns) or 'none'}",
            f"  policy: {'as of a run, which registered it in passing' if self.passing else self.policy.text}",
        ]
        return [*lines, f"  budget of {self.budget}"] if self.budget else lines

    @property
    def _unit_column(self) -> str:
        if self.data.deal_to:
            return f"{self.data.deal_to} made-up {self.unit}s, who were dealt the rows"
        return f"the folder's own {self.unit}s" if self.data.source == "population" else repr(self.data.users)

    def bound(self, unit: Unit) -> int | None:
        return self.examples if unit == Unit.EXAMPLE else self.population

    def on(self, recipe: Recipe) -> Recipe:
        """The recipe as it is carried out: by the population's name, on the budget that its owner chose."""
        return recipe.on(self.name, self.budget)

    def refusals(self, recipe: Recipe, *, simulated: bool, delta: float | None = None) -> list[str]:
        """Why a recipe is not admitted, one line each; empty if it is. `delta` is that of the budget, if it has one."""
        problems = [*self._of_data(recipe), *self._of_units(recipe)]
        small = min(recipe.privacy.delta, 0.1 / (self.bound(recipe.privacy.unit) or 1))
        return problems + self._of_policy(recipe, simulated, delta or small)

    def _of_data(self, recipe: Recipe) -> list[str]:
        medium = recipe.medium
        if medium.name != self.medium:
            return [f"it holds {self.medium}, and the recipe is of {medium.name}"]
        problems = medium.refusals(recipe, self.facts)
        if recipe.reads_labels and "y" not in self.columns:
            problems.append("the recipe needs labels, and none are registered")
        marked = recipe.data.bug.mark if recipe.data.bug else None
        asked = {rule.attribute for rule in recipe.selections.values() if rule.attribute} - {marked}
        problems += [f"{name!r} is not registered to select by" for name in sorted(asked - {*self.columns})]
        if marked in self.columns:
            problems.append(f"data.bug.mark = {marked!r} is a column already")
        return problems + self._of_classes(medium.classes(recipe))

    def _of_classes(self, asked: int | None) -> list[str]:
        if not asked or (self.classes and asked >= self.classes):
            return []
        if self.classes is None:
            return [f"model.classes needs a bound on the labels (fedlens data policy {self.name} --classes N)"]
        return [f"labels lie below {self.classes}: expected model.classes of that, or more"]

    def _of_units(self, recipe: Recipe) -> list[str]:
        p = recipe.privacy
        if p.unit not in (self.unit, Unit.EXAMPLE):
            return [f"its units are {self.unit}s, and the recipe protects a {p.unit}"]
        bound = self.bound(p.unit)
        if bound is None:
            option = "examples" if p.unit == Unit.EXAMPLE else "population"
            return [f"no bound on its {p.unit}s is registered (fedlens data policy {self.name} --{option} N)"]
        problems = []
        if p.population != bound:
            problems.append(f"it has at most {bound} {p.unit}s: expected privacy.population = {bound}")
        if p.size_is_public and not self.passing:
            problems.append("how many are in a selection is not for a recipe to declare public (size_is_public)")
        if p.sampling in EXACT and not p.shards and not self.exact:
            problems.append(f"sampling = '{p.sampling}' needs the number of {p.unit}s, which its owner keeps private")
        return problems

    def _of_policy(self, recipe: Recipe, simulated: bool, delta: float) -> list[str]:
        spendings = recipe.spendings()
        return self.of_policy(
            algorithm=recipe.algorithm_name,
            functions=[recipe.data.bug.kind if recipe.data.bug else "", *recipe.medium.functions(recipe).values()],
            plans=[plan for spending in spendings for plan in spending.plans],
            epsilon=lambda: guarantee([*spendings, *recipe.released], delta).epsilon,
            simulated=simulated,
        )

    def check_programs(self) -> None:
        """Refuses somebody else's program, unless the owner allows such."""
        if not (self.policy.programs or self.passing):
            refuse(self, ["primary models that are programs are not allowed: they would see every image"])

    def of_policy(
        self,
        *,
        algorithm: str,
        functions: Sequence[str],
        plans: Sequence[Promise],
        epsilon: Callable[[], float],
        simulated: bool,
    ) -> list[str]:
        """What the owner has against a run: how it is made, how little noise it adds, what it costs."""
        policy, problems = self.policy, []
        if simulated and not (policy.simulation or self.passing):
            problems.append("--simulate is not allowed: seeded noise protects nobody")
        if any(":" in kind for kind in functions) and not (policy.functions or self.passing):
            problems.append("functions of one's own are not allowed: they would see every example")
        if algorithm not in policy.algorithms:
            problems.append(f"the algorithm {algorithm} is not allowed")
        least, most = policy.minimum_noise, policy.largest_epsilon
        noise = min((plan.priced_as if isinstance(plan, MatrixPlan) else plan).noise_multiplier for plan in plans)
        if noise < least:
            problems.append(f"every release needs a noise multiplier of {least:g} or more; one has {noise:.4g}")
        if most is not None and (cost := epsilon()) > most * (1 + 1e-9):
            problems.append(f"a run may cost epsilon {most:g} at most; this one costs {rounded(cost)}")
        return problems


@contextlib.contextmanager
def sensible() -> Iterator[None]:
    """What an owner says, taken down; what makes no sense is told in words of ours."""
    try:
        yield
    except pydantic.ValidationError as error:
        faults = [f"{'.'.join(map(str, problem['loc']))} {problem['msg']}".strip() for problem in error.errors()]
        raise ValueError(f"Expected a registration that makes sense: {'; '.join(faults)}.") from None


def refuse(registration: Registration, problems: list[str]) -> None:
    """If there are any."""
    if problems:
        raise ValueError(f"Expected a recipe that the owner of {registration.name!r} admits: {'; '.join(problems)}.")
