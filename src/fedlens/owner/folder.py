"""PRIVATE. The owner's folder: what is registered, under which key, and whether data are still the registered ones.

Beside the ledger, readable by nobody else:

    .owner/key                   under which prints are made
    .owner/<name>.toml           the registration: see fedlens.owner.registration
    .owner/<name>.prints.npy     of a sample of its examples
    .owner/<name>.seen.json      sizes and times of its files, so that data which did not change are not read again

What the ledger keeps of it is the seal: the public facts, the keyed prints, and the hash of the registration.
"""

import contextlib
import dataclasses
import fcntl
import hashlib
import io
import json
import os
import pathlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pydantic

from fedlens import media
from fedlens.core import arrayfiles, files, pins
from fedlens.core.randomness import Randomness
from fedlens.data.population import DataError, Population
from fedlens.ledger import Ledger, is_remote
from fedlens.media import reading
from fedlens.owner import prints
from fedlens.owner.prints import Prints
from fedlens.owner.registration import Policy, Registration, sensible
from fedlens.recipes.tables import Data

ALIKE = 0.2  # of the examples of some data: so many in a registered population are no accident


@dataclasses.dataclass(frozen=True, kw_only=True)
class Bounds:
    """Public numbers that somebody says about data; None is left out."""

    population: int | None = None
    examples: int | None = None
    exact: bool = False
    examples_per_user: int | None = None
    classes: int | None = None


class Owner:
    """PRIVATE. Of the populations of one ledger."""

    def __init__(self, address: str, book: Ledger | None = None) -> None:
        self.book = book or Ledger(address)
        self.address = address if is_remote(address) else str(pathlib.Path(address).resolve())
        self._folder = pins.folder_of(address) / ".owner"

    # What is registered

    def known(self, name: str) -> Registration | None:
        """What is public of a registration: as the ledger has it, without where the data lie."""
        return self._parsed(name, self._seals[name]["registration"]) if name in self._seals else None

    def registered(self, name: str) -> Registration | None:
        """As its owner wrote it down, if the ledger's seal fits."""
        return self._opened(name, self._seals[name]) if name in self._seals else None

    def everything(self) -> list[Registration]:
        return [known for name in self._seals if (known := self.registered(name))]

    @property
    def names(self) -> list[str]:
        return list(self._seals)

    @property
    def _seals(self) -> dict[str, dict[str, Any]]:
        latest = {entry.population: entry.facts for entry in self.book.registrations()}
        return {name: seal for name, seal in latest.items() if "sha256" in seal and "registration" in seal}

    def _opened(self, name: str, seal: dict[str, Any]) -> Registration:
        try:
            content = files.content(self._file(name, "toml"))
        except OSError:
            raise ValueError(
                f"Expected the registration of {name!r} in {self._folder}: the ledger knows it, and the file is not"
                " there. Its owner registers it again (fedlens data register)."
            ) from None
        if hashlib.sha256(content).hexdigest() != seal["sha256"]:
            raise ValueError(
                f"Expected the registration of {name!r} as the ledger has sealed it; it was edited."
                " Its owner changes it by fedlens data policy, or registers it again (fedlens data register)."
            )
        return self._parsed(name, files.parsed_toml(content.decode(), f"Expected a whole {name}.toml; it is damaged."))

    @staticmethod
    def _parsed(name: str, values: dict[str, Any]) -> Registration:
        try:
            return Registration.model_validate(values)
        except pydantic.ValidationError:
            raise ValueError(f"Expected a registration of {name!r} that this version of fedlens can read.") from None

    def budgeted(self, known: Registration) -> bool:
        return self.delta(known) is not None

    def delta(self, known: Registration) -> float | None:
        """Of the budget that it draws on: at a delta of the modeler's choice a run may cost next to nothing."""
        budget = self.book.budget(known.budget or known.name)
        return budget.delta if budget else None

    def claiming(self, known: Registration) -> Registration | None:
        """The population that an owner has registered with the same data, under another name."""
        return next(self._alike(known.name, self.prints_of(known)), None)

    def _alike(self, name: str, made: Prints) -> Iterator[Registration]:
        """What owners have registered under other names, with many of the same examples."""
        others = (other for other in self.everything() if other.name != name and not other.passing)
        return (other for other in others if self.alike(made, other))

    def _drawn_on(self, name: str, budget: str | None, made: Prints) -> str | None:
        """Whose budget data draw on: that of those who share their examples, if anybody registered such data before."""
        if budget is not None:
            bound = self.known(budget)
            budget = bound.budget or budget if bound else budget
            if self.book.budget(budget) is None:
                raise ValueError(f"Expected --budget of a population that has one; {budget!r} has none.")
        for other in self._alike(name, made):
            if (budget or name) != (other.budget or other.name):
                raise ValueError(
                    f"Expected --budget {other.budget or other.name}: these data, or many of them, are registered as"
                    f" {other.name!r}, and cannot be spent twice."
                )
        return budget

    # Registering

    def register(
        self, name: str, source: Data, bounds: Bounds, *, policy: Policy, unit: str = "user", budget: str | None = None
    ) -> Registration:
        """By the owner, who may be told what is wrong with the data."""
        users = reading.opened(source := absolute(source, labels=True))
        _keep_within(users, bounds)
        made = self.printed(users)
        bound = self._drawn_on(name, budget, made)
        return self.seal(registration(name, source, users, made, bounds, unit=unit, policy=policy, budget=bound), made)

    def updated(self, known: Registration, path: pathlib.Path | None, bounds: Bounds) -> Registration:
        """The same population with other data, by its owner's word."""
        source = known.data.model_copy(update={"path": str(path or known.data.path)})
        new = {name: value for name, value in dataclasses.asdict(bounds).items() if value}
        merged = Bounds(**dataclasses.asdict(_bounds(known)) | new)
        return self.register(known.name, source, merged, policy=known.policy, unit=known.unit, budget=known.budget)

    def changed(self, known: Registration, **changes: Any) -> Registration:
        """The same data under another policy or other bounds, by its owner's word."""
        self.unchanged(known)
        bound = self._drawn_on(known.name, changes.get("budget", known.budget), self.prints_of(known))
        changes |= {"budget": bound, "passing": False}
        with sensible():
            drafted = Registration.model_validate(known.model_dump() | changes)
        _keep_within(reading.opened(drafted.data), _bounds(drafted))
        return self.seal(drafted)

    def seal(self, made: Registration, printed: Prints | None = None) -> Registration:
        """Files first: a seal without them would refuse every run, files without a seal are no registration."""
        content = made.to_toml().encode()
        with self._alone():
            if printed is not None:
                held = io.BytesIO()
                np.save(held, printed.sample, allow_pickle=False)
                self._write(made.name, "prints.npy", held.getvalue())
                self._write(made.name, "seen.json", _looks(pathlib.Path(made.data.path or "")))
            self._write(made.name, "toml", content)
            seal = {"sha256": hashlib.sha256(content).hexdigest(), "registration": made.public()}
            self.book.register(made.name, seal)
        if not made.passing:
            pins.remember(self.address)
        return made

    def unchanged(self, known: Registration) -> None:
        """Refuses data that are not the registered ones any more; reads them only if their files look different."""
        seen, kept = _looks(pathlib.Path(known.data.path or "")), self._file(known.name, "seen.json")
        if kept.exists() and kept.read_text() == seen:
            return
        if not known.data.path or not pathlib.Path(known.data.path).exists():
            raise DataError(f"Expected the data of {known.name!r} where its owner registered them; they are gone.")
        try:
            now = self.printed(reading.opened(known.data))
        except DataError:
            now = None
        if now is None or (now.whole, now.grouped) != (known.whole, known.grouped):
            raise DataError(
                f"Expected the data of {known.name!r} as they were registered; they have changed. Their owner says"
                f" what is to be done: fedlens data register {known.name} --update."
            )
        self._write(known.name, "seen.json", seen)

    # Prints

    @property
    def key(self) -> bytes:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return Randomness.kept_in(self._file("key")).key

    def printed(self, users: Population) -> Prints:
        return prints.of_population(users, self.key)

    def prints_of(self, known: Registration) -> Prints:
        """Of a registered population, as they were made then."""
        return Prints(known.whole, known.grouped, np.asarray(arrayfiles.mapped(self._file(known.name, "prints.npy"))))

    def alike(self, made: Prints, known: Registration) -> bool:
        """Whether data and those of a registered population have many examples in common."""
        return prints.overlap(made, self.prints_of(known)) >= ALIKE

    # Files

    def _file(self, name: str, ending: str = "") -> pathlib.Path:
        return self._folder / (f"{name}.{ending}" if ending else name)

    def _write(self, name: str, ending: str, content: bytes | str) -> None:
        files.write(self._file(name, ending), content)
        self._file(name, ending).chmod(0o600)

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """One registration at a time: the latest seal must be that of the files."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle = os.open(self._folder, os.O_RDONLY)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield
        finally:
            os.close(handle)


def registration(
    name: str,
    source: Data,
    users: Population,
    made: Prints,
    bounds: Bounds,
    *,
    unit: str,
    policy: Policy,
    budget: str | None = None,
    passing: bool = False,
) -> Registration:
    """Of data that were read: what they are is public, how many are not."""
    medium = reading.of_population(users)
    read = {"medium": medium.name, "facts": medium.facts(users), "columns": selectable(users)}
    read |= {"whole": made.whole, "grouped": made.grouped}
    said = {"name": name, "data": source, "unit": unit, "policy": policy, "budget": budget, "passing": passing}
    with sensible():
        return Registration.model_validate(dataclasses.asdict(bounds) | read | said)


def selectable(users: Population) -> tuple[str, ...]:
    """The columns of whole numbers: labels, and attributes to select by."""
    whole = {name for name, column in users.columns.items() if column.ndim == 1 and column.dtype.kind in "iu"}
    return tuple(sorted(whole))


def absolute(source: Data, labels: bool) -> Data:
    """Where data lie and what they hold. Labels are named if they are needed, or there anyway."""
    path = os.path.abspath(source.path or "")
    other = {"bug", "name", "population", "budget", "path"}
    described = Data(**source.model_dump(exclude=other, exclude_unset=True), path=path)
    medium = reading.of_source(described)
    return medium.with_its_labels(described) if medium and not labels else described


def described(path: pathlib.Path, **columns: Any) -> Data:
    """A source of private data, told by its name, with the names of the columns that go with it."""
    kinds = (reading.reading(name).source_at(path) for name in media.MEDIA)
    folder = media.FOLDER if (path / "population.json").exists() else None
    source = folder or next(filter(None, kinds), None)
    if source is None:
        raise ValueError(f"Expected an .npz or .jsonl(.gz) file or a population folder, got {path.name}.")
    options = media.sources()[source].options & columns.keys()
    if columns["deal_to"] and "deal_to" not in options:
        raise ValueError(f"Expected no --deal-to: {path.name} has its users.")
    named = options - {"users" if columns["deal_to"] else "deal_to"}
    with sensible():
        return Data.model_validate({"source": source, "path": str(path)} | {name: columns[name] for name in named})


def _bounds(known: Registration) -> Bounds:
    return Bounds(**{field.name: getattr(known, field.name) for field in dataclasses.fields(Bounds)})


def _keep_within(users: Population, bounds: Bounds) -> None:
    """For the owner: refuses what a run would stumble over, and bounds that the data do not keep."""
    problems = reading.of_population(users).checked(users)
    problems = [problem for problem in problems if not problem.endswith("will contribute nothing")]
    counts = {"population": len(users), "examples": int(users.counts.sum()), "examples_per_user": users.most_examples}
    for name, count in counts.items():
        bound = getattr(bounds, name)
        if bound is not None and count > bound:
            problems.append(f"there are more than {name} = {bound}")
        elif bounds.exact and bound is not None and name != "examples_per_user" and count != bound:
            problems.append(f"there are fewer than {name} = {bound}, which is to be their exact number")
    if bounds.classes and "y" in users.columns and users.columns["y"].max(initial=0) >= bounds.classes:
        problems.append(f"a label is not below {bounds.classes}")
    if problems:
        raise DataError(f"Expected data that a run can use: {'; '.join(problems)}.")


def _looks(path: pathlib.Path) -> str:
    """Sizes and times of the files: data that look as they did are not read again."""
    seen = ((str(file), file.stat()) for file in files.within(path, links=True))
    return json.dumps({name: [s.st_size, s.st_mtime_ns, s.st_ino] for name, s in seen}, sort_keys=True)
