"""What runs ask for and have spent, and what it adds up to for the user who was in most of them."""

import collections
import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

from fedlens.ledger.chain import root
from fedlens.privacy import Guarantee, MatrixPlan, Neighbours, Plan, Promise, Unit, accounting, promised, rounded
from fedlens.privacy.guarantee import NOT_COVERED
from fedlens.privacy.losses import Gaussian, Loss

LOOKED = (
    "a later run whose plan was chosen by looking at an earlier run's answers: this epsilon is of runs that were"
    " planned beforehand; whatever was looked at, the budget of the population in the ledger holds, if it has one"
)
Kind = tuple[Unit, Neighbours]  # costs of different kinds do not add up


@dataclasses.dataclass(frozen=True, kw_only=True)
class Account:
    """Whose budget a run draws on. Parts of one partition share no unit, so their costs do not add up.

    `partition` names a rule that puts every *user* into at most one part; selections by example share users and must
    not claim one.
    """

    run: str
    population: str
    partition: str = "all"
    part: str = "all"
    simulated: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class Spending:
    """The releases of one run on its account: what a guarantee is computed from, alone or jointly with others."""

    account: Account
    plans: tuple[Promise, ...]  # as far as they were carried out: see `charged_as`

    @property
    def kind(self) -> Kind:
        ((unit, neighbours),) = {(plan.unit, plan.neighbours) for plan in self.plans}
        return unit, neighbours

    def to_dict(self) -> dict[str, Any]:
        return {"account": dataclasses.asdict(self.account), "plans": [plan.to_dict() for plan in self.plans]}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "Spending":
        """Of values from anybody's file: KeyError, TypeError or ValueError where they are none."""
        account, plans = Account(**values["account"]), tuple(map(promised, values["plans"]))
        names = dataclasses.asdict(account)
        simulated = names.pop("simulated")
        if not plans or type(simulated) is not bool or not all(type(name) is str for name in names.values()):
            raise ValueError("Expected an account of names and at least one plan.")
        return cls(account=account, plans=plans)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Item:
    """What a run asks for: so many releases of a plan, on an account."""

    account: Account
    stage: str
    plan: Promise

    @property
    def spending(self) -> Spending:
        """As if all of it were released."""
        return Spending(account=self.account, plans=(self.plan,))


def charged_as(plan: Promise, releases: int) -> Promise:
    """What so many releases of a plan, at least one, are charged as."""
    # A matrix plan is one mechanism, owed whole from its first release on: its price is how far a unit moves all rows
    # of C x together, for a C made for that many rows. A run that stops early, for whatever reason, has shown a part of
    # what this price covers; no smaller one was fixed before its data were seen.
    return plan if isinstance(plan, MatrixPlan) else dataclasses.replace(plan, releases=releases)


def owed(plan: Promise, releases: int) -> Promise:
    """What so many releases of a plan, at least one, take from a budget once answers were looked at.

    A plan that is no Gaussian is charged whole, by its price as a whole (`privacy.filters`): when it ends early, that
    may have been decided by its answers.
    """
    return charged_as(plan, releases) if is_gaussian(plan) else plan


def is_gaussian(plan: Promise) -> bool:
    """Whether nobody is sampled: such plans compose exactly, however they are chosen."""
    return isinstance(priced(plan).loss, Gaussian)


def priced(plan: Promise) -> Plan:
    return plan.priced_as if isinstance(plan, MatrixPlan) else plan


def guarantee(spendings: Sequence[Spending], delta: float, coarse: float = 1.0) -> Guarantee:
    """What these runs cost jointly, were they the only ones; a `coarse` grid is never cheaper.

    Populations are taken to share users, whatever they are called: last month's file may hold the same people.

    Formal guarantee: every unit lives in one part of each partition; its cost is what those parts add up to, and the
    epsilon is at least the largest such cost. That is parallel composition, and it needs add/remove neighbours: a user
    who is added or removed changes one part, while one who is replaced may leave a part and enter another.
    """
    plans = [plan for spending in spendings for plan in spending.plans]
    if not plans:
        raise ValueError("Expected at least one run to state a guarantee about.")
    unit, neighbours = kind_of(plans)
    runs = {root(spending.account.run) for spending in spendings}
    everybody = [dataclasses.replace(spending, account=_of_everybody(spending.account)) for spending in spendings]
    return Guarantee(
        epsilon=accounting.epsilon_of(suffered(everybody, ""), delta, coarse),
        delta=delta,
        unit=unit,
        neighbours=neighbours,
        sampling="; ".join(dict.fromkeys(plan.who for plan in plans)),
        accountant=accounting.accountant(map(priced, plans)),
        composition=composition(spendings, neighbours),
        not_covered=(*NOT_COVERED, *([LOOKED] if len(runs) > 1 else [])),
        simulated=any(spending.account.simulated for spending in spendings),
    )


def kind_of(plans: Sequence[Promise]) -> tuple[str, str]:
    """The unit and the neighbours that all of these plans have in common."""
    kinds = {(str(plan.unit), str(plan.neighbours)) for plan in plans}
    if len(kinds) > 1:
        raise ValueError(f"Expected one unit and one kind of neighbours in a joint guarantee, got {sorted(kinds)}.")
    ((unit, neighbours),) = kinds
    return unit, neighbours


def kind_of_plan(plan: Promise) -> Kind:
    return plan.unit, plan.neighbours


def stated(spendings: Sequence[Spending], earlier: Sequence[Spending], delta: float) -> Guarantee:
    """The joint guarantee of models and of what was released earlier for their vocabulary, told apart in words."""
    joint = guarantee([*spendings, *earlier], delta)
    if not earlier:
        return joint
    models, learning = (rounded(guarantee(part, delta).epsilon) for part in (spendings, earlier))
    parts = f"{models} for the model{'s' * (len(spendings) > 1)}, {learning} for learning the vocabulary before"
    together = f"{composition(spendings, joint.neighbours)}; epsilon {rounded(joint.epsilon)} jointly: {parts}"
    return dataclasses.replace(joint, composition=together)


def _of_everybody(account: Account) -> Account:
    """Groups of one partition share nobody within a population; those of two populations may."""
    return dataclasses.replace(account, population="", partition=repr((account.population, account.partition)))


def suffered(spendings: Iterable[Spending], population: str) -> accounting.Losses:
    """What the unluckiest unit of a population lives through: of every partition its dearest part.

    Parts that cannot be compared are covered by a part that holds the most of either: dearer than both, never cheaper.
    """
    partitions: dict[str, dict[str, list[Promise]]] = {}
    for spending in spendings:
        if spending.account.population == population:
            parts = partitions.setdefault(spending.account.partition, {})
            parts.setdefault(part_of(spending), []).extend(spending.plans)
    total: collections.Counter[Loss] = collections.Counter()
    for parts in partitions.values():
        total.update(_dearest([_merged(plans) for plans in parts.values()]))
    return total


def part_of(spending: Spending) -> str:
    """The part of its partition; who is replaced may leave one part and enter another: all parts are then one."""
    replaced = any(plan.neighbours == Neighbours.REPLACE_ONE for plan in spending.plans)
    return "all" if replaced else spending.account.part


def _merged(plans: Sequence[Promise]) -> "collections.Counter[Loss]":
    """The losses of one part; its Gaussians as one, so that parts can be compared."""
    losses = accounting.losses(map(priced, plans))
    squares = sum(count / loss.multiplier**2 for loss, count in losses.items() if _noisy_gaussian(loss))
    rest = collections.Counter({loss: count for loss, count in losses.items() if not _noisy_gaussian(loss)})
    return rest + collections.Counter({Gaussian(multiplier=squares**-0.5): 1} if squares else {})


def _dearest(parts: "Sequence[collections.Counter[Loss]]") -> "collections.Counter[Loss]":
    most: collections.Counter[Loss] = collections.Counter()
    strongest: list[Loss] = []
    for part in parts:
        strongest += [loss for loss in part if _noisy_gaussian(loss)]
        most |= collections.Counter({loss: count for loss, count in part.items() if not _noisy_gaussian(loss)})
    return most + collections.Counter({min(strongest, key=lambda loss: loss.multiplier): 1} if strongest else {})


def _noisy_gaussian(loss: Loss) -> bool:
    return isinstance(loss, Gaussian) and loss.multiplier > 1e-150  # one is divided by its square


def composition(spendings: Sequence[Spending], neighbours: str) -> str:
    if len(spendings) == 1:
        return "all releases of one model"
    groups = {(spending.account.partition, spending.account.part) for spending in spendings}
    if len(groups) == len({partition for partition, _ in groups}):
        return f"all releases of {len(spendings)} models together: they may share users"
    if neighbours == Neighbours.REPLACE_ONE:
        return (
            f"{len(spendings)} models on groups that share no user, added up all the same: a user whose data are "
            "replaced can leave one group and enter another"
        )
    return (
        f"{len(spendings)} models on groups that share no user: the most expensive group counts,"
        " because adding or removing a user changes one group only"
    )
