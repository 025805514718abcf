"""PRIVATE. Whether a run is let in: the population it means, its owner's word, and what it calls public.

Whoever can read the data needs no attack. Others may only hand in recipes, to a machine that its owner has pinned: they
are told what follows from a registration, and never anything that depends on the data. On a machine without a pin data
are registered in passing, so that who runs a recipe on data of their own need not say it all twice; there the prints
of the data catch honest mistakes: the same data under another name, or private ones that are called public.
"""

import dataclasses
import functools
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

from fedlens import media
from fedlens.core import files, pins
from fedlens.data.population import DataError, Population, SchemaError
from fedlens.media import reading
from fedlens.models.primary import is_foreign
from fedlens.owner import prints
from fedlens.owner.folder import ALIKE, Bounds, Owner, absolute, registration, selectable
from fedlens.owner.prints import Prints
from fedlens.owner.registration import EXACT, Policy, Registration, refuse
from fedlens.privacy import Unit
from fedlens.recipes.recipe import Recipe
from fedlens.recipes.tables import Data

PUBLIC_SHARE = 0.01  # of the examples of a file that is called public
IN_PASSING = "(in passing)"  # the name of an entry that belongs to no population
# Budgets of public data.
DEMONSTRATED = {name for source in media.built_in() for name in (source, f"{source}-without-bug")}
CLOSED = (
    "Expected data as the recipe says they are (how many units, which labels). What they are, their owner says (fedlens"
    " data register); until then this ledger takes no data in passing."
)
Say = Callable[[str], None]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Claims:
    """What a run says about the data it is to read."""

    data: Data
    unit: Unit
    units: int  # at most, it says
    exact: bool = False
    labels: bool = False  # whether it needs them
    classes: int | None = None

    @classmethod
    def by(cls, recipe: Recipe) -> "Claims":
        p = recipe.privacy
        return cls(
            data=recipe.data,
            unit=p.unit,
            units=p.population,
            exact=p.sampling in EXACT and not p.shards,
            labels=recipe.reads_labels,
            classes=recipe.medium.classes(recipe),
        )


def admitted(
    recipe: Recipe, owner: Owner, *, simulated: bool, say: Say = lambda line: None
) -> tuple[Recipe, Registration | None]:
    """The recipe as it will be carried out, by the name of its population, and what that is; None for built-in data.

    Formal guarantee: whether a recipe is admitted to a registered population follows from public facts.
    """
    if recipe.data.built_in:  # which is public, and on every machine
        if recipe.population in owner.names:
            raise ValueError(f"Expected another data.name than that of a registered population, {recipe.population!r}.")
        _check_public_files(recipe, owner)
        return recipe, None
    known = resolved(Claims.by(recipe), owner, say)
    if recipe.data.budget not in (None, known.budget):
        raise ValueError(f"Expected no data.budget: whose budget {known.name!r} draws on, its owner says.")
    problems = known.refusals(recipe, simulated=simulated, delta=owner.delta(known))
    refuse(known, problems)
    if recipe.primary and recipe.primary.model and is_foreign(pathlib.Path(recipe.primary.model)):
        known.check_programs()
    _check_public_files(recipe, owner)
    return known.on(recipe), known


def refusals(recipe: Recipe, owner: Owner) -> list[str]:
    """Why a recipe would be refused, as far as that is known without its data: for whoever plans."""
    known = owner.known(recipe.data.called) if not recipe.data.built_in else None
    return known.refusals(recipe, simulated=False, delta=owner.delta(known)) if known else []


def resolved(asked: Claims, owner: Owner, say: Say = lambda line: None) -> Registration:
    """The registered population that is meant; registered in passing, if need be and nobody said otherwise."""
    name = asked.data.population
    if name is None and (pin := pins.found()):
        raise ValueError(
            "Expected a recipe that names a registered population (data.population) and nothing else about it:"
            f" this machine is pinned ({pin.place})."
        )
    if name is None:
        known = _in_passing(asked, owner, say)
    elif registered := owner.registered(name):
        owner.unchanged(known := registered)
    else:
        raise ValueError(
            f"Expected a registered population, and {name!r} is none here (fedlens data register {name} PATH)."
        )
    if known.passing and (claimed := owner.claiming(known)):
        say(f"these are the data of {claimed.name!r}, and draw on its budget")
        owner.unchanged(claimed)
        return claimed
    if known.passing and pins.found():
        raise ValueError(f"Expected a population that its owner has registered; {known.name!r} was, in passing.")
    if known.passing and owner.budgeted(known):
        raise ValueError(
            f"Expected {known.name!r} to be registered by its owner, since it has a budget: a run registered it in"
            f" passing, with units {_units(known.data)} (fedlens data register {known.name} PATH --population N)."
        )
    return known


# In passing


def _in_passing(asked: Claims, owner: Owner, say: Say) -> Registration:
    source, name = absolute(asked.data, asked.labels), asked.data.called
    known = _same(name, source, owner)
    if known is None or _renewed(known, owner):
        _may_pass(name, owner)
        users = _read(source)
        made = owner.printed(users)
        known = next((other for other in owner.everything() if other.whole == made.whole), None)
        if known is None:
            _unlike(name, made, owner)
            _of_no_other_ledger(users, owner)
            return _passed(name, source, users, made, asked, owner, say)
    if known.name != name:
        say(f"these are the data of {known.name!r}, and draw on its budget")
    return _widened(known, source, asked, owner)


def _same(name: str, source: Data, owner: Owner) -> Registration | None:
    """A registered population with this name, or with the very same file."""
    known = owner.registered(name)
    for candidate in [known] if known else owner.everything():
        if candidate.data.path and _one_file(candidate.data.path, source.path or ""):
            if not _renewed(candidate, owner):
                owner.unchanged(candidate)
            return candidate
    if known is None or owner.printed(_read(source)).whole == known.whole:
        return known
    raise ValueError(
        f"Expected the data that {name!r} is registered with, found others. Their owner registers them, under another"
        f" name or in its place (fedlens data register {name} PATH --update)."
    )


def _renewed(known: Registration, owner: Owner) -> bool:
    """Whether data that a run registered have changed before anything was asked of them: no word is broken then."""
    if not known.passing or owner.budgeted(known) or owner.book.spendings(known.name, reserved=True):
        return False
    try:
        owner.unchanged(known)
    except DataError:
        return True
    return False


def _unlike(name: str, made: Prints, owner: Owner) -> None:
    """New data may be old ones with a row more or less: then their owner must say whose budget they draw on."""
    for known in owner.everything():
        if known.name != name and owner.alike(made, known):
            raise ValueError(
                f"Expected data of their own, found many examples of {known.name!r} among them. Their owner says what"
                f" they are: fedlens data register NAME PATH, with --budget {known.name} if people are the same."
            )


def _of_no_other_ledger(users: Population, owner: Owner) -> None:
    """Another --out is another ledger: that their budget lies elsewhere is easily forgotten."""
    for address in pins.ledgers():
        if address != owner.address and pathlib.Path(address).exists():  # one that is remote says what it is by its pin
            other = Owner(address)
            made = other.printed(users)
            same = [known.name for known in other.everything() if other.alike(made, known)]
            if same:
                raise ValueError(f"Expected --ledger {address}: there these data are registered, as {same[0]!r}.")


def _may_pass(name: str, owner: Owner) -> None:
    """What is public in the ledger decides; no data are read."""
    book = owner.book
    budgeted = {population for population in book.populations() if book.budget(population)}
    waiting = budgeted - {*owner.names}
    if name in waiting:
        raise ValueError(
            f"Expected {name!r} to be registered, since it has a budget: its owner says what its units are"
            f" (fedlens data register {name} PATH --population N)."
        )
    if unseen := sorted(waiting - DEMONSTRATED):
        raise ValueError(
            f"Expected the owner to register {', '.join(unseen)} first (fedlens data register): the ledger keeps a"
            " budget for data that it has not seen, and these may be the same."
        )
    _check_open(owner)


def _check_open(owner: Owner) -> None:
    """After one refusal that depended on data nothing more passes, until an owner has said something."""
    entries = {entry.population: entry for entry in owner.book.registrations()}
    said = [e.id for e in entries.values() if "sha256" in e.facts and not e.facts["registration"]["passing"]]
    if IN_PASSING in entries and entries[IN_PASSING].id > max(said, default=0):
        raise ValueError(CLOSED)


def _passed(
    name: str, source: Data, users: Population, made: Prints, asked: Claims, owner: Owner, say: Say
) -> Registration:
    bounds, unit = _true_bounds(users, asked, owner), "silo" if asked.unit == Unit.SILO else "user"
    passed = registration(name, source, users, made, bounds, unit=unit, policy=Policy(), passing=True)
    summary = "; ".join(line.strip() for line in owner.seal(passed, made).lines()[:2])
    say(f"registered in passing, as the recipe says: {summary} (fedlens data register says more)")
    return passed


def _true_bounds(users: Population, asked: Claims, owner: Owner) -> Bounds:
    """What a recipe says about the data, if it is true. One refusal tells something: a second is not to be had."""
    count = int(users.counts.sum()) if asked.unit == Unit.EXAMPLE else len(users)
    beyond = asked.classes and "y" in users.columns and users.columns["y"].max(initial=0) >= asked.classes
    if count > asked.units or (asked.exact and count != asked.units) or beyond:
        owner.book.register(IN_PASSING, {"closed": True})
        raise DataError(CLOSED)
    named = {"examples" if asked.unit == Unit.EXAMPLE else "population": asked.units}
    return Bounds(**named, exact=asked.exact, classes=asked.classes)


def _widened(known: Registration, source: Data, asked: Claims, owner: Owner) -> Registration:
    """With columns, or a bound, that earlier recipes did not need; what a unit is never changes in passing."""
    alike = known.data.source == source.source
    if alike and _units(known.data) != _units(source):
        raise ValueError(
            f"Expected the units that {known.name!r} is registered with, {_units(known.data)}; the recipe says"
            f" {_units(source)}. A recipe need only name it: data.population = '{known.name}'."
        )
    if not known.passing or owner.budgeted(known):
        return known
    changes: dict[str, Any] = {}
    bound = known.bound(asked.unit)
    more_exact = asked.exact and not known.exact and bound == asked.units
    if bound is None or more_exact or (asked.classes and not known.classes):
        _check_open(owner)
        true = dataclasses.asdict(_true_bounds(_read(known.data), asked, owner))
        changes |= {name: value for name, value in true.items() if value and not getattr(known, name)}
    new = tuple(name for name in source.attributes if name not in known.columns)
    if alike and (new or (asked.labels and "y" not in known.columns)):
        names = {"attributes": (*known.data.attributes, *new), "labels": source.labels, "images": source.images}
        wider = known.data.model_copy(update=names)
        users = _read(wider)
        changes |= {"data": wider, "columns": selectable(users), "grouped": owner.printed(users).grouped}
    return owner.seal(known.model_copy(update=changes)) if changes else known


def _units(source: Data) -> str:
    if source.deal_to:
        return f"of rows dealt to {source.deal_to}"
    return "of the folder" if source.source == "population" else f"by {source.users!r}"


def _read(source: Data) -> Population:
    """For a modeler: what is wrong with a row is not told."""
    try:
        return reading.opened(source)
    except SchemaError:
        raise
    except DataError:
        name = pathlib.Path(source.path or "").name
        raise DataError(
            f"Expected data that a run can use in {name}; they are missing, damaged or not what the recipe says."
            f" Whoever may see them is told why by: fedlens data check {name}"
        ) from None


def _one_file(one: str, other: str) -> bool:
    left, right = pathlib.Path(one), pathlib.Path(other)
    return left.resolve() == right.resolve() or (left.exists() and right.exists() and left.samefile(right))


# What is called public


def declare_public(paths: Sequence[pathlib.Path], owner: Owner) -> None:
    """By the owner: files that recipes may use as public on a pinned machine."""
    pin = pins.found()
    if pin is None:
        raise ValueError("Expected a pinned machine (fedlens data pin): on others nothing needs to be declared public.")
    hashes = [files.sha256(one) for path in paths for one in files.within(path)]
    for path in paths:
        _compare(path, functools.partial(_any_prints, path), owner)
    pins.declare(pin, hashes)


def check_public(path: pathlib.Path, medium: str, owner: Owner, column: str | None = None) -> None:
    """A file that is called public, before it is read as such.

    What is public on a pinned machine, its owner has said: a comparison would tell what the data hold.
    """
    if pins.found():
        pins.check_public(path)
    else:
        _compare(path, functools.partial(prints.of_public, path, reading.reading(medium), column=column), owner)


def _check_public_files(recipe: Recipe, owner: Owner) -> None:
    medium = recipe.medium.name
    for path, column in reading.reading(medium).public_examples(recipe):
        check_public(path, medium, owner, column)


def _compare(path: pathlib.Path, printed: Callable[[bytes], Prints], owner: Owner) -> None:
    """Refuses private data that are called public: by content, whatever the file is called."""
    private = owner.everything()
    public = printed(owner.key) if private else None
    for known in private:
        if public and (public.whole == known.whole or _much_of(public, owner.prints_of(known))):
            raise ValueError(f"Expected public data in {path.name}; it holds private data, of {known.name!r}.")


def _much_of(public: Prints, private: Prints) -> bool:
    return public.shared_with(private, telling=True) >= PUBLIC_SHARE or prints.overlap(public, private) >= ALIKE


def _any_prints(path: pathlib.Path, key: bytes) -> Prints:
    """Of whatever recipes may take for public examples in a file."""
    readers = (reading.reading(name) for name in media.MEDIA)
    medium = next(one for one in readers if one.reads_public(path))
    return prints.of_public(path, medium, key, declared=False)
