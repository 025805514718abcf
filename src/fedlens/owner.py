"""PRIVATE. The owner's side: which populations are registered, and whether data are those they claim to be.

Beside the ledger, in a folder that only its owner can read:

    .owner/key                   under which prints are made
    .owner/<name>.toml           the registration: see fedlens.registration
    .owner/<name>.prints.npy     of a sample of its examples
    .owner/<name>.seen.json      sizes and times of its files, so that data which did not change are not read again

What the ledger keeps of it is the seal: the public facts, the keyed prints, and the hash of the file. Whoever can read
the data needs no attack. Others may only hand in recipes: they are told what follows from the registration, and never
anything that depends on the data.
"""

import dataclasses
import functools
import hashlib
import io
import json
import os
import pathlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pydantic

from fedlens import data, files, pins, preparation, prints, readers
from fedlens.ledger import Ledger, is_remote
from fedlens.population import DataError, Population, SchemaError
from fedlens.prints import Prints
from fedlens.privacy import Unit
from fedlens.randomness import Randomness
from fedlens.recipe_tables import BUILT_IN, Data
from fedlens.recipes import Recipe
from fedlens.registration import EXACT, Policy, Registration, refuse

ALIKE = 0.2  # of the examples of unknown data: so many in a registered population are no accident
PUBLIC_SHARE = 0.01  # of the examples of a file that is called public
IN_PASSING, DECLARED = "(in passing)", "(public files)"  # names of entries that belong to no population
CLOSED = (
    "Expected data as the recipe says they are (how many units, which labels). What they are, their owner says (fedlens"
    " data register); until then this ledger takes no data in passing."
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Bounds:
    """What an owner says when registering; None is left out."""

    population: int | None = None
    examples: int | None = None
    exact: bool = False
    examples_per_user: int | None = None
    classes: int | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Asked:
    """What a run says about the data it is to read."""

    data: Data
    unit: Unit
    units: int  # at most, it says
    exact: bool = False
    labels: bool = False  # whether it needs them
    classes: int | None = None

    @classmethod
    def by(cls, recipe: Recipe) -> "Asked":
        p = recipe.privacy
        return cls(
            data=recipe.data,
            unit=p.unit,
            units=p.population,
            exact=p.sampling in EXACT,
            labels=recipe.reads_labels,
            classes=recipe.model.classes or None,
        )


class Owner:
    """PRIVATE. Of the populations of one ledger."""

    def __init__(
        self, address: str, book: Ledger | None = None, say: Callable[[str], None] = lambda line: None
    ) -> None:
        self._address, self._say = address, say
        self._book = book or Ledger(address)
        beside = pins.of_user().parent / "owner" if is_remote(address) else pathlib.Path(address).parent / ".owner"
        self._folder = beside

    # What is registered

    def registered(self, name: str) -> Registration | None:
        """As its owner wrote it down, if the ledger's seal fits."""
        seals = {entry.population: entry.facts for entry in self._book.registrations()}
        return self._opened(name, seals[name]) if name in seals and "sha256" in seals[name] else None

    def everything(self) -> list[Registration]:
        """All that are registered here."""
        known = [entry.population for entry in self._book.registrations() if "sha256" in entry.facts]
        return [found for name in known if (found := self.registered(name))]

    def _opened(self, name: str, seal: dict[str, Any]) -> Registration:
        path = self._file(name, "toml")
        try:
            content = path.read_bytes()
        except OSError:
            raise ValueError(
                f"Expected the registration of {name!r} in {self._folder}: the ledger knows it, and the file is not"
                " there. Its owner registers it again (fedlens data register --update)."
            ) from None
        if hashlib.sha256(content).hexdigest() != seal["sha256"]:
            raise ValueError(
                f"Expected the registration of {name!r} as the ledger has sealed it; it was edited."
                " Its owner changes it by fedlens data policy, or registers again (fedlens data register --update)."
            )
        try:
            return Registration.from_toml(content.decode())
        except (pydantic.ValidationError, ValueError):
            raise ValueError(f"Expected a registration of this version of fedlens for {name!r}.") from None

    # Registering

    def register(
        self, name: str, source: Data, bounds: Bounds, *, policy: Policy, unit: str = "user", budget: str | None = None
    ) -> Registration:
        """By the owner, who may be told what is wrong with the data."""
        source = _absolute(source, labels=True)
        users = preparation.opened(source)
        if problems := _problems(users, bounds):
            raise DataError(f"Expected data that a run can use: {'; '.join(problems)}.")
        made = prints.of_population(users, self._key)
        return self._sealed(_registration(name, source, users, made, bounds, unit, policy, budget), made)

    def updated(self, known: Registration, path: pathlib.Path | None, bounds: Bounds) -> Registration:
        """The same population with other data, by its owner's word."""
        source = _absolute(known.data.model_copy(update={"path": str(path or known.data.path)}), labels=True)
        new = {name: value for name, value in dataclasses.asdict(bounds).items() if value}
        told = Bounds(**dataclasses.asdict(_bounds(known)) | new)
        return self.register(known.name, source, told, policy=known.policy, unit=known.unit, budget=known.budget)

    def changed(self, known: Registration, **changes: Any) -> Registration:
        """The same data under another policy or other bounds."""
        self.unchanged(known)
        drafted = Registration.model_validate(known.model_dump() | changes | {"passing": False})
        if problems := _problems(preparation.opened(drafted.data), _bounds(drafted)):
            raise DataError(f"Expected data that keep within the bounds: {'; '.join(problems)}.")
        return self._sealed(drafted, None)

    def _sealed(self, made: Registration, found: Prints | None) -> Registration:
        """Files first: a seal without them would refuse every run, files without a seal are no registration."""
        content = made.to_toml().encode()
        files.write(self._own(made.name, "toml"), content)
        if found is not None:
            held = io.BytesIO()
            np.save(held, found.sample, allow_pickle=False)
            files.write(self._own(made.name, "prints.npy"), held.getvalue())
            self._note(made)
        for path in self._folder.iterdir():
            path.chmod(0o600)
        seal = {"registration": made.public(), "sha256": hashlib.sha256(content).hexdigest()}
        self._book.register(made.name, seal)
        return made

    # A run

    def admitted(self, recipe: Recipe, *, simulated: bool) -> tuple[Recipe, Registration | None]:
        """The recipe as it will be carried out, by the name of its population, and what that is.

        Formal guarantee: whether a recipe is admitted to a registered population follows from public facts.
        """
        if recipe.data.source in BUILT_IN:  # which is public, and on every machine
            if self.is_sealed(recipe.population):
                raise ValueError(
                    f"Expected another data.name than that of a registered population, {recipe.population!r}."
                )
            self._check_public_files(recipe)
            return recipe, None
        known = self.resolved(Asked.by(recipe))
        if recipe.data.budget not in (None, known.budget):
            raise ValueError(f"Expected no data.budget: whose budget {known.name!r} draws on, its owner says.")
        refuse(known, known.refusals(recipe, simulated=simulated, budgeted=self.budgeted(known)))
        self._check_public_files(recipe)
        return known.on(recipe), known

    def budgeted(self, known: Registration) -> bool:
        return self._book.budget(known.budget or known.name) is not None

    def resolved(self, asked: Asked) -> Registration:
        """The registered population that is meant; registered in passing, if need be and nobody said otherwise."""
        name = asked.data.population
        if name is None and (pin := pins.found()):
            raise ValueError(
                "Expected a recipe that names a registered population (data.population) and nothing else about it:"
                f" this machine is pinned ({pin.place})."
            )
        if name is None:
            return self._in_passing(asked)
        known = self.registered(name)
        if known is None:
            raise ValueError(
                f"Expected a registered population, and {name!r} is none here (fedlens data register {name} PATH)."
            )
        self.unchanged(known)
        return known

    def unchanged(self, known: Registration) -> None:
        """Refuses data that are not the registered ones any more; reads them only if their files look different."""
        seen = _looks(pathlib.Path(known.data.path or ""))
        kept = self._file(known.name, "seen.json")
        if kept.exists() and kept.read_text() == seen:
            return
        if not _there(known.data.path):
            raise DataError(f"Expected the data of {known.name!r} where its owner registered them; they are gone.")
        try:
            found = prints.of_population(preparation.opened(known.data), self._key)
        except DataError:
            found = None
        if found is None or (found.whole, found.grouped) != (known.whole, known.grouped):
            raise DataError(
                f"Expected the data of {known.name!r} as they were registered; they have changed. Their owner says"
                f" is to be done: fedlens data register {known.name} --update."
            )
        files.write(kept, seen)

    # Registering in passing: whoever runs a recipe on data of their own need not say it all twice

    def _in_passing(self, asked: Asked) -> Registration:
        source = _absolute(asked.data, asked.labels)
        name = asked.data.called
        known = self._same(name, source)
        if known is None:
            self._may_pass(name)
            users = _read(source)
            made = prints.of_population(users, self._key)
            known = next((found for found in self.everything() if found.whole == made.whole), None)
            if known is None:
                self._unlike(made)
                return self._passed(name, source, users, made, asked)
        if known.name != name:
            self._say(f"these are the data of {known.name!r}, and draw on its budget")
        return self._widened(known, source, asked)

    def _same(self, name: str, source: Data) -> Registration | None:
        """A registered population with this name, or with the very same file."""
        known = self.registered(name)
        listed = [known] if known else self.everything()
        same = [found for found in listed if found.data.path and _one_file(found.data.path, source.path or "")]
        if same:
            self.unchanged(same[0])
            return same[0]
        if known is None:
            return None
        if _there(source.path) and prints.of_population(_read(source), self._key).whole == known.whole:
            return known
        raise ValueError(
            f"Expected the data that {name!r} is registered with, found others. Their owner registers them, under"
            f" another name or in its place (fedlens data register {name} PATH --update)."
        )

    def _unlike(self, made: Prints) -> None:
        """New data may be old ones with a row more or less: then their owner must say whose budget they draw on."""
        for known in self.everything():
            if made.shared_with(self._prints(known)) >= ALIKE:
                raise ValueError(
                    f"Expected data of their own, found many examples of {known.name!r} among them. Their owner says"
                    f" what they are: fedlens data register NAME PATH, --budget {known.name} if people are the same."
                )

    def _may_pass(self, name: str) -> None:
        """What is public in the ledger decides; no data are read."""
        kept = {entry.population for entry in self._book.registrations()}
        budgets = {found for found in self._book.populations() if self._book.budget(found)} - kept
        if name in budgets:
            raise ValueError(
                f"Expected {name!r} to be registered, since it has a budget: its owner says what its units are"
                f" (fedlens data register {name} PATH --population N)."
            )
        if waiting := sorted(budgets - {*BUILT_IN, *(f"{source}-without-bug" for source in BUILT_IN)}):
            raise ValueError(
                f"Expected the owner to register {', '.join(waiting)} first (fedlens data register): the ledger keeps a"
                " budget for data that it has not seen, and these may be the same."
            )
        if self._closed():
            raise ValueError(CLOSED)

    def _closed(self) -> bool:
        entries = {entry.population: entry for entry in self._book.registrations()}
        if IN_PASSING not in entries:
            return False
        said = [e.id for e in entries.values() if "sha256" in e.facts and not e.facts["registration"]["passing"]]
        return entries[IN_PASSING].id > max(said, default=0)

    def _passed(self, name: str, source: Data, users: Population, made: Prints, asked: Asked) -> Registration:
        bounds = self._true_bounds(users, asked)
        unit = "silo" if asked.unit == Unit.SILO else "user"
        drafted = _registration(name, source, users, made, bounds, unit, Policy(), None, passing=True)
        found = self._sealed(drafted, made)
        told = "; ".join(line.strip() for line in found.lines()[:2])
        self._say(f"registered in passing, as the recipe says: {told} (fedlens data policy {name} changes it)")
        return found

    def _true_bounds(self, users: Population, asked: Asked) -> Bounds:
        """What a recipe says about the data, if it is true. One refusal tells something: a second is not to be had."""
        count = int(users.counts.sum()) if asked.unit == Unit.EXAMPLE else len(users)
        beyond = asked.classes and "y" in users.columns and users.columns["y"].max(initial=0) >= asked.classes
        if count > asked.units or (asked.exact and count != asked.units) or beyond:
            self._book.register(IN_PASSING, {"closed": True})
            raise DataError(CLOSED)
        named = {"examples" if asked.unit == Unit.EXAMPLE else "population": asked.units}
        return Bounds(**named, exact=asked.exact, classes=asked.classes)

    def _widened(self, known: Registration, source: Data, asked: Asked) -> Registration:
        """With columns, or a bound, that earlier recipes did not need; what a unit is never changes in passing."""
        if _units(known.data) != _units(source) and known.data.source == source.source:
            raise ValueError(
                f"Expected the units that {known.name!r} is registered with, {_units(known.data)}; the recipe says"
                f" {_units(source)}. A recipe need only name it: data.population = '{known.name}'."
            )
        if not known.passing or self.budgeted(known):
            return known
        changes: dict[str, Any] = {}
        bound = known.bound(asked.unit)
        more_exact = asked.exact and not known.exact and bound == asked.units
        if bound is None or more_exact or (asked.classes and not known.classes):
            if self._closed():
                raise ValueError(CLOSED)
            true = dataclasses.asdict(self._true_bounds(_read(known.data), asked))
            changes |= {name: value for name, value in true.items() if value and not getattr(known, name)}
        new = tuple(name for name in source.attributes if name not in known.columns)
        if known.data.source == source.source and (new or (asked.labels and "y" not in known.columns)):
            names = {"attributes": (*known.data.attributes, *new), "labels": source.labels, "images": source.images}
            wider = known.data.model_copy(update=names)
            users = _read(wider)
            grouped = prints.of_population(users, self._key).grouped
            changes |= {"data": wider, "columns": _columns(users), "grouped": grouped}
        return self._sealed(known.model_copy(update=changes), None) if changes else known

    # What is called public

    def declare_public(self, paths: Sequence[pathlib.Path]) -> None:
        """By the owner: files that recipes may use as public on a pinned machine."""
        for path in paths:
            self._compare(path, functools.partial(_any_prints, path))
        hashes = [files.sha256(found) for path in paths for found in _files(path)]
        self._book.register(DECLARED, {"sha256s": sorted({*self._declared, *hashes})})

    @property
    def _declared(self) -> set[str]:
        return {
            sha256
            for entry in self._book.registrations()
            if entry.population == DECLARED
            for sha256 in entry.facts["sha256s"]
        }

    def _check_public_files(self, recipe: Recipe) -> None:
        primary, text = recipe.primary, recipe.text
        if primary and primary.public:
            self.check_public_images(pathlib.Path(primary.public.path), primary.public.images)
        if text and text.public:
            self.check_public_text(pathlib.Path(text.public))
        if text and text.vocabulary and not recipe.earlier:  # one that was learnt comes with its price
            self.check_public_text(pathlib.Path(text.vocabulary))

    def check_public_images(self, path: pathlib.Path, images: str) -> None:
        self._check_public(path, lambda key: prints.of_images(data.images_in(path, images), key))

    def check_public_text(self, path: pathlib.Path) -> None:
        self._check_public(path, lambda key: prints.of_sentences(readers.sentences_of(path), key))

    def _check_public(self, path: pathlib.Path, printed: Callable[[bytes], Prints]) -> None:
        """What is public there, the owner of a pinned machine has said: a comparison would tell what the data hold."""
        pin = pins.found()
        if pin is None:
            self._compare(path, printed)
        elif not {files.sha256(found) for found in _files(path)} <= self._declared:
            raise ValueError(
                f"Expected {path.name} among the files that the owner has declared public (fedlens data public): this"
                f" machine is pinned ({pin.place})."
            )

    def _compare(self, path: pathlib.Path, printed: Callable[[bytes], Prints]) -> None:
        """Refuses private data that are called public: by content, whatever the file is called."""
        private = self.everything()
        found = printed(self._key) if private else None
        for known in private:
            if found and (found.whole == known.whole or found.shared_with(self._prints(known)) >= PUBLIC_SHARE):
                raise ValueError(f"Expected public data in {path.name}; it holds private data, of {known.name!r}.")

    # Files

    @property
    def _key(self) -> bytes:
        return Randomness.kept_in(self._own("key")).key

    def _own(self, name: str, ending: str = "") -> pathlib.Path:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return self._file(name, ending)

    def _file(self, name: str, ending: str = "") -> pathlib.Path:
        return self._folder / (f"{name}.{ending}" if ending else name)

    def _note(self, made: Registration) -> None:
        files.write(self._own(made.name, "seen.json"), _looks(pathlib.Path(made.data.path or "")))

    def _prints(self, known: Registration) -> Prints:
        sample = np.load(self._file(known.name, "prints.npy"), allow_pickle=False)
        return Prints(known.whole, known.grouped, sample)

    def is_sealed(self, name: str) -> bool:
        return any(entry.population == name and "sha256" in entry.facts for entry in self._book.registrations())


def _registration(
    name: str,
    source: Data,
    users: Population,
    made: Prints,
    bounds: Bounds,
    unit: str,
    policy: Policy,
    budget: str | None,
    passing: bool = False,
) -> Registration:
    text = "text" in users.columns
    told = dataclasses.asdict(bounds)
    if not text and "x" not in users.columns:
        raise SchemaError(f"Expected an image column 'x', found {', '.join(sorted(users.columns))}.")
    return Registration.model_validate(
        told
        | {
            "name": name,
            "data": source,
            "medium": "text" if text else "images",
            "side": None if text else int(users.columns["x"].shape[-1]),
            "columns": _columns(users),
            "unit": unit,
            "budget": budget,
            "passing": passing,
            "policy": policy,
            "whole": made.whole,
            "grouped": made.grouped,
        }
    )


def _columns(users: Population) -> tuple[str, ...]:
    whole = [name for name, column in users.columns.items() if column.ndim == 1 and column.dtype.kind in "iu"]
    return tuple(sorted(name for name in whole if name not in ("x", "text")))


def _bounds(known: Registration) -> Bounds:
    return Bounds(**{field.name: getattr(known, field.name) for field in dataclasses.fields(Bounds)})


def _problems(users: Population, bounds: Bounds) -> list[str]:
    """For the owner: what a run would stumble over, and bounds that the data do not keep."""
    problems = readers.checked_text(users) if "text" in users.columns else data.checked(users)
    counts = {"population": len(users), "examples": int(users.counts.sum()), "examples_per_user": users.most_examples}
    for name, count in counts.items():
        bound = getattr(bounds, name)
        if bound is not None and count > bound:
            problems.append(f"there are more than {name} = {bound}")
        elif bounds.exact and bound is not None and name != "examples_per_user" and count != bound:
            problems.append(f"there are fewer than {name} = {bound}, which is to be their exact number")
    if bounds.classes and "y" in users.columns and users.columns["y"].max(initial=0) >= bounds.classes:
        problems.append(f"a label is not below {bounds.classes}")
    return [problem for problem in problems if "will contribute nothing" not in problem]


def _absolute(source: Data, labels: bool) -> Data:
    """Where data lie and what they hold. Labels are named if they are needed, or there anyway."""
    path = os.path.abspath(source.path or "")
    other = {"bug", "name", "population", "budget", "path"}
    given = source.model_dump(exclude=other, exclude_unset=True)
    if source.source == "npz" and not labels and source.labels not in data.names_in(pathlib.Path(path)):
        given["labels"] = None
    return Data(**given, path=path)


def described(path: pathlib.Path, **columns: Any) -> Data:
    """A source of private data, told by its name, with the names of the columns that go with it."""
    if (path / "population.json").exists():
        source, named = "population", {"attributes"}
    elif path.suffix == ".npz":
        source, named = "npz", {"images", "labels", "attributes", "deal_to" if columns["deal_to"] else "users"}
    elif ".jsonl" in path.suffixes or path.is_dir():
        source, named = "jsonl", {"users", "text", "attributes"}
    else:
        raise ValueError(f"Expected an .npz or .jsonl(.gz) file or a population folder, got {path.name}.")
    return Data.model_validate({"source": source, "path": str(path)} | {name: columns[name] for name in named})


def _units(source: Data) -> str:
    if source.deal_to:
        return f"rows dealt to {source.deal_to}"
    return "those of the folder" if source.source == "population" else f"by {source.users!r}"


def _read(source: Data) -> Population:
    """For a modeler: what is wrong with a row is not told."""
    try:
        return preparation.opened(source)
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


def _there(path: str | None) -> bool:
    return path is not None and pathlib.Path(path).exists()


def _looks(path: pathlib.Path) -> str:
    """Sizes and times of the files: data that look as they did are not read again."""
    told = {str(found): [(s := found.stat()).st_size, s.st_mtime_ns, s.st_ino] for found in _files(path)}
    return json.dumps(told, sort_keys=True)


def _files(path: pathlib.Path) -> Iterator[pathlib.Path]:
    return iter(sorted(found for found in (path, *path.rglob("*")) if found.is_file()))


def _any_prints(path: pathlib.Path, key: bytes) -> Prints:
    """Of all images in a file, or of its sentences: whatever recipes may take for public."""
    return (
        prints.of_images(data.images_in(path), key)
        if path.suffix == ".npz"
        else prints.of_sentences(readers.sentences_of(path), key)
    )
