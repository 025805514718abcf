"""A recipe, carried out: learn thresholds, select, count, train, sample, report; in a run folder that can be resumed.

    runs/<name>-<id>/
        recipe.toml                the resolved recipe
        run.json                   where the ledger is, whether the noise is simulated
        plan.json, statement.md    the promise, made before any data was read
        primary.safetensors        the public classifier, where there is one, in whatever form it came
        data.json                  a keyed tag of the data: a resumed run must find them as they were
        thresholds.json            learnt from a noisy histogram, where the recipe asks for quantiles
        <selection>/               count.json; checkpoint.safetensors while it trains; metrics.jsonl, model.safetensors
                                   (look.safetensors in its place, where a look is all that is made)
        <selection>/rounds/        what the model drew on the way
        samples/, report.html, report.json
        MANIFEST.json              SHA-256 of all of it

The folder is public: everything in it came through the curator. What must stay private while a run trains (the secret
its noise is derived from) lies beside the ledger, readable by its owner only, and is deleted when all models are there.
"""

import contextlib
import dataclasses
import functools
import hashlib
import json
import os
import pathlib
import resource
import secrets
import shutil
import tempfile
from collections.abc import Callable, Sequence

import torch

from fedlens.algorithms.histogram import quantiles
from fedlens.core import files, pins
from fedlens.core.randomness import Randomness
from fedlens.core.trees import Tree
from fedlens.curators.engine import Engine
from fedlens.curators.site import Site, Thresholds
from fedlens.data.population import DataError
from fedlens.ledger import Head, Item, Ledger, Spending, is_remote
from fedlens.media import opening
from fedlens.media.protocol import Trained
from fedlens.owner.admission import admitted
from fedlens.owner.folder import Owner
from fedlens.privacy import Guarantee
from fedlens.recipes.recipe import Recipe
from fedlens.recipes.stages import COUNT, FIRST, THRESHOLDS, TRAIN, Stage
from fedlens.recipes.toml import to_toml
from fedlens.report.report import Report
from fedlens.runs import preparation, reporting, safeguards
from fedlens.runs.carrying_out import Asking, carried_out
from fedlens.runs.folder import FolderKeeper, Watcher

VERSION = 3  # of run folders
BESIDE = ".beside"  # notes what is kept beside the model of a selection; none is called so
DATA = "_data"  # names the secret under which data are tagged; no selection is called so
ONE_NUMBER = Engine(chunk=256)  # of each unit: not worth measuring, and a plain loop over a million takes minutes
MADE_WITHOUT_DATA = {"recipe.toml", "plan.json", "statement.md", "run.json", "primary.safetensors"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Run:
    """One run folder and what it was started with."""

    folder: pathlib.Path
    recipe: Recipe
    address: str  # of the ledger
    seed: int | None  # of simulated noise; None means cryptographic noise
    device: str

    @property
    def name(self) -> str:
        return self.folder.name

    @classmethod
    def created(
        cls,
        recipe: Recipe,
        out: pathlib.Path,
        *,
        address: str | pathlib.Path,
        seed: int | None,
        device: str,
        why: str = "",
        say: Callable[[str], None] = lambda line: None,
    ) -> "Run":
        """Sets aside what the recipe will spend and writes down the promise.

        Data are read only to recognise them, and only if they are not registered yet; the owner's word decides.
        """
        source = None if pins.found() else recipe.data.path  # where it is refused, whether it is there or not
        if source is not None and not pathlib.Path(source).exists():
            raise DataError(f"Expected private data at {source}; there is nothing.")
        check_device(device)
        recipe.medium.check_room(recipe, memory_of(device))
        recipe.medium.baseline(recipe)  # what is wrong with it is better said now than when all is spent
        safeguards.only_our_code(recipe, seed)
        folder = out / f"{recipe.name}-{secrets.token_hex(3)}"
        address = str(address) if is_remote(str(address)) else str(pathlib.Path(address).resolve())
        recipe.spendings()  # an epsilon out of reach is told before anything is written
        safeguards.check_disk(address, recipe.remembered)
        book = Ledger(address)
        recipe, _ = admitted(recipe, Owner(address, book), simulated=seed is not None, say=say)
        recipe.medium.check_public(recipe)  # as above
        run = cls(folder=folder, recipe=recipe, address=address, seed=seed, device=device)
        promise = run.promised()
        recipe.medium.check_prices(recipe, book)
        reporting.unconfirmed_baseline(recipe, book)  # or the ledger contradicts it
        refused = False
        try:
            try:
                book.reserve(run.items(), recipe=recipe.digest, why=why, text=to_toml(recipe), new=True)
            except Exception:
                refused = True  # nothing was set aside, or under this name by another run
                raise
            folder.mkdir(parents=True)
            if seed is None:
                safeguards.make_secrets(
                    address, run.name, [DATA, *dict.fromkeys(stage.group for stage in recipe.stages)]
                )
            files.write(folder / "recipe.toml", to_toml(recipe))
            files.write(folder / "plan.json", json.dumps(reporting.plan_of(recipe, promise), indent=1))
            files.write(folder / "statement.md", f"# {recipe.name}\n\n{promise.statement()}")
            about = {"version": VERSION, "ledger": address, "seed": seed, "device": device}
            about |= {"recipe_sha256": recipe.digest}
            files.write(folder / "run.json", json.dumps(about, indent=1))
        except BaseException:
            if not refused:
                run.abandoned(book)
            raise
        return run

    @property
    def simulated(self) -> bool:
        return self.seed is not None

    @property
    def _mark(self) -> dict[str, bool]:
        """What stands with every number of a simulated run."""
        return {"simulated": True} if self.simulated else {}

    def items(self) -> list[Item]:
        return self.recipe.items(self.name, self.simulated)

    def abandoned(self, book: Ledger) -> None:
        """Returns what is not spent."""
        known = book.reserved()  # it may have been stopped before anything was set aside
        self._close(book, [account for account in self._accounts() if account in known])

    def _close(self, book: Ledger, accounts: Sequence[str]) -> None:
        """Nothing more is released on these accounts, and the secret of what was is deleted."""
        for account in accounts:
            book.close(account, safeguards.made(self.address, self.name, self._part(account).name))
        safeguards.forget_secrets(self.address, self.name)

    def _accounts(self) -> list[str]:
        """The names that its releases are booked under."""
        return list(dict.fromkeys(item.account.run for item in self.items()))

    def _part(self, account: str) -> pathlib.Path:
        return self.folder / account.removeprefix(f"{self.name}/")

    @classmethod
    def opened(cls, folder: pathlib.Path) -> "Run":
        safeguards.check_plain(folder)
        try:
            fields = {"recipe_sha256": str, "ledger": str, "seed": int | None, "device": str}
            about = files.json_in(folder / "run.json", fields)
            known = tuple(about.get(name) for name in fields)
        except FileNotFoundError:
            raise ValueError(f"Expected a run folder, found no run.json in {folder}.") from None
        digest, address, seed, device = known
        if about.get("version", 1) != VERSION:
            raise ValueError(
                f"Expected a run that this version of fedlens began; {folder.name} is another's. What it has not spent"
                f" is returned by fedlens ledger close {folder.name} --ledger {address}; then run its recipe.toml anew."
            )
        pins.address(address, address)  # on a pinned machine no folder may choose its ledger
        check_device(device)
        recipe = Recipe.open(folder / "recipe.toml")
        if recipe.digest != digest:
            raise ValueError(
                f"Expected the recipe that {folder.name} was started with; it, or a public file it names, has changed."
            )
        return cls(folder=folder, recipe=recipe, address=address, seed=seed, device=device)

    def promised(self) -> Guarantee:
        return self.recipe.guarantee(self.recipe.spendings(self.name, self.simulated))

    def executed(self, watch: Watcher) -> Report:
        """Trains what is not trained yet, then reports. Safe to interrupt at any point and to call again."""
        with safeguards.alone(self.folder):
            if (self.folder / "MANIFEST.json").exists():
                raise ValueError(f"Expected an unfinished run; {self.name} is complete: fedlens report {self.folder}")
            return self._executed(watch)

    def _executed(self, watch: Watcher) -> Report:
        """Trains, closes, reports, seals. After a crash between any two steps a resumed run does what is left."""
        # Why in this order:
        # - Every model is on disk, and can be opened, before the accounts are closed: a closed one answers no more, an
        #   open one its old questions again, for free.
        # - The accounts are closed before the secret is deleted: an open one without its secret would take old
        #   questions for new ones, and pay twice. A closed one refuses whatever it was not asked before, also when the
        #   secret is still there: nothing that was returned can be released.
        # - The report comes after both, for it may fail: it is made from the folder, at no price, as often as it takes.
        # - The manifest comes last: what has one is finished.
        torch.set_float32_matmul_precision("high")  # TF32 on a GPU: bounds, sums and noise use no products
        book = Ledger(self.address)
        if not all(self._settled(self.folder / selection, book) for selection in self.recipe.selections):
            self._train(book, watch)
        models = reporting.models_in(self.folder, self.recipe)
        self._close(book, self._accounts())
        for selection, model in models.items():  # or the ledger contradicts what it says
            sha256 = files.sha256(opening.result_in(self.folder / selection))
            reporting.unconfirmed(book, model, sha256, of_its_run=True)
        report = self._report(models, book)
        report.save(self.folder)
        self._seal()
        return report

    def _settled(self, part: pathlib.Path, book: Ledger) -> bool:
        """Whether it has its model, or was refused one: then nothing more is asked about it.

        A model counts by the hash that was noted when it was made or, once its account is closed, by what was booked.
        """
        model, account = opening.result_in(part), f"{self.name}/{part.name}"
        booked = {run["run"]: run["model"] for run in book.runs() if run["closed"]}
        noted = booked.get(account) or safeguards.made(self.address, self.name, part.name)
        if model.exists() and files.sha256(model) == noted:
            return True
        if account in booked and noted:
            raise ValueError(f"Expected the model of {account!r} that the ledger names; it was changed.")
        return self._of_too_few(part)

    def _of_too_few(self, part: pathlib.Path) -> bool:
        """As decided by what was written down, so that a resumed run decides the same without asking."""
        if not (part / "count.json").exists():
            return False
        counted: float = files.json_in(part / "count.json", {"noisy_units": float})["noisy_units"]
        return counted < self.recipe.privacy.minimum_units

    def _train(self, book: Ledger, watch: Watcher) -> None:
        """All that reads private data, and none of them for an account that may release nothing more."""
        for account in self._accounts():
            if not self._settled(self._part(account), book):
                book.must_be_open(account)
        safeguards.only_our_code(self.recipe, self.seed)
        self.recipe.medium.check_room(self.recipe, memory_of(self.device))
        self.recipe.medium.check_prices(self.recipe, book)
        book.reserve(self.items(), recipe=self.recipe.digest, resumed=True)  # done when it was created: checked
        site = self._usable_site(book)
        thresholds = self._thresholds(site, book)
        for selection in self.recipe.selections:
            self._trained(selection, site, thresholds, book, watch)

    def _report(self, models: dict[str, Trained], book: Ledger) -> Report:
        report = reporting.report_of(
            self.folder,
            self.recipe,
            models,
            # As promised, also where a model was not trained on too few users: a lower price would tell about the data.
            joint=self.promised(),
            primary=preparation.primary(self.recipe, self.folder / "primary.safetensors"),
            device=self.device,
        )
        doubt = reporting.unconfirmed_baseline(self.recipe, book)
        return reporting.marked(report, f"the baseline: {doubt}") if doubt else report

    def _seal(self) -> None:
        safeguards.check_plain(self.folder)  # hashes of what lies elsewhere would tell guesses apart
        paths = [path for path in sorted(self.folder.rglob("*")) if path.is_file()]
        hashes = {str(path.relative_to(self.folder)): files.sha256(path) for path in paths}
        files.write(self.folder / "MANIFEST.json", json.dumps(hashes, indent=1))

    def _usable_site(self, book: Ledger) -> Site:
        """Where the data lie; if they cannot be used and nothing was released yet, what was set aside is returned."""
        try:
            recipe, known = admitted(self.recipe, Owner(self.address, book), simulated=self.simulated)
            fresh = self._released_nothing(book)
            source = known.data if known else recipe.data
            site = preparation.site(recipe, self.folder / "primary.safetensors", source, fresh)
            if known and site.primary and site.primary.foreign:
                known.check_programs()  # once more: of what was opened, whatever lay there before
        except Exception as error:  # a full disk or a lost connection may be mended, and the run resumed
            if not isinstance(error, OSError) and self._released_nothing(book):
                self.abandoned(book)
                self._leave_no_folder()
            raise
        self._pin(site, book)
        return site

    def _released_nothing(self, book: Ledger) -> bool:
        return not any(book.spent(item.account.run, item.stage) for item in self.items())

    def _leave_no_folder(self) -> None:
        """Of a run that ended before it released anything, unless somebody put something else there."""
        if {path.name for path in self.folder.iterdir()} <= MADE_WITHOUT_DATA:
            shutil.rmtree(self.folder, ignore_errors=True)

    def _pin(self, site: Site, book: Ledger) -> None:
        """A resumed run goes on with the same data and classifier: else a user may be in two groups, priced as one."""
        kept, tag = self.folder / "data.json", self._randomness(DATA).tag(site.fingerprint())
        known = files.content(kept).decode(errors="replace") if kept.exists() else None
        if known is None and self._released_nothing(book):
            files.write(kept, json.dumps({"tag": tag}))
        elif known != json.dumps({"tag": tag}):
            raise DataError("Expected the data and the primary model that this run started with; they have changed.")

    def _asking(self, group: str, book: Ledger, engine: Engine | None, device: str = "cpu") -> Asking:
        randomness = self._randomness(group)
        account = self.recipe.account(self.name, group, randomness.simulated)
        return Asking(book=book, account=account, randomness=randomness, device=device, engine=engine)

    def _thresholds(self, site: Site, book: Ledger) -> Thresholds:
        """Learnt at a price where the recipe asks for quantiles; a resumed run asks again, and is told the same."""
        if THRESHOLDS not in self.recipe.plans or site.accuracies is None:
            return {}
        stage = self.recipe.stage(THRESHOLDS, THRESHOLDS)
        state = carried_out(stage, site, self._asking(THRESHOLDS, book, ONE_NUMBER))
        learnt = quantiles(stage.algorithm.result(state), self.recipe.quantiles)
        rows = [{"quantile": level, "accuracy": accuracy} | self._mark for level, accuracy in learnt.items()]
        files.write(self.folder / "thresholds.json", json.dumps(rows, indent=1))
        return learnt

    def _trained(self, selection: str, site: Site, thresholds: Thresholds, book: Ledger, watch: Watcher) -> None:
        """Saves the model of one selection, unless too few units are in it."""
        folder = self.folder / selection
        if self._settled(folder, book):
            return
        folder.mkdir(exist_ok=True)
        counting, training = self.recipe.stage(COUNT, selection), self._training(selection, site, thresholds, book)
        state = carried_out(counting, site, self._asking(selection, book, ONE_NUMBER), thresholds)
        counted = {"noisy_units": round(float(counting.algorithm.result(state)), 1)} | self._mark
        files.write(folder / "count.json", json.dumps(counted))
        if self._of_too_few(folder):
            return
        # A seed promises the same run again, and chunks round differently: with one, the engine is not measured.
        engine = Engine.repeatable(self.device) if self.simulated else None
        make = functools.partial(self._model, selection, book)
        private = safeguards.private_place(self.address, self.name, selection)
        keeper = FolderKeeper(folder, self.recipe, private=private, model=make, watch=watch, simulated=self.simulated)
        state = carried_out(training, site, self._asking(selection, book, engine, self.device), thresholds, keeper)
        if release := reporting.kept_of(self.recipe, selection, state, *self._price(selection, book)):
            self._keep(release, folder, BESIDE)  # before anything is fitted to it, which may fail
        model, beside = make(state), safeguards.made(self.address, self.name, f"{selection}{BESIDE}")
        self._keep(dataclasses.replace(model, beside=beside) if beside else model, folder)
        (folder / "checkpoint.safetensors").unlink(missing_ok=True)

    def _training(self, selection: str, site: Site, thresholds: Thresholds, book: Ledger) -> Stage:
        """The stage that trains; with what it starts from, which is asked for only if it has not begun."""
        training = self.recipe.stage(TRAIN, selection)
        if not training.waits:
            return training
        return dataclasses.replace(
            training, warmed=functools.partial(self._started, selection, site, thresholds, book), waits=False
        )

    def _started(
        self, selection: str, site: Site, thresholds: Thresholds, book: Ledger, state: Tree, device: str
    ) -> Tree:
        """The first state of a model that starts from an answer. Safe to call again: an old question is free.

        The engine is not measured: after a crash another one would be another question, and that is not paid for.
        """
        asking = self._asking(selection, book, Engine.repeatable(device), device)
        answer = carried_out(self.recipe.stage(FIRST, selection), site, asking, thresholds)
        kept = reporting.kept_of(self.recipe, selection, answer, *self._price(selection, book), FIRST)
        if kept:
            self._keep(kept, self.folder / selection, BESIDE)
        return self.recipe.medium.started(self.recipe, state, kept, device)

    def _keep(self, model: Trained, folder: pathlib.Path, noted_as: str = "") -> None:
        """Saved where nobody else writes, and noted, before it lies in the folder."""
        with tempfile.TemporaryDirectory() as apart:
            model.save(pathlib.Path(apart) / model.file)
            content = (pathlib.Path(apart) / model.file).read_bytes()
        name = f"{folder.name}{noted_as}"
        safeguards.note_made(self.address, self.name, name, hashlib.sha256(content).hexdigest())
        files.write(folder / model.file, content)

    def _model(self, selection: str, book: Ledger, state: Tree) -> Trained:
        return reporting.model_of(self.recipe, selection, state, *self._price(selection, book), self.device)

    def _price(self, selection: str, book: Ledger) -> tuple[Spending, Head]:
        """What a model of it says about its price."""
        return book.spending(f"{self.name}/{selection}"), book.pin()

    def _randomness(self, selection: str) -> Randomness:
        if self.seed is not None:
            return Randomness.seeded(self.seed)
        return safeguards.kept_randomness(self.address, self.name, selection)


def check_device(device: str) -> None:
    kind, _, number = device.partition(":")
    there = torch.cuda.device_count() if kind == "cuda" else 1
    if kind not in ("cpu", "cuda") or not (number or "0").isdecimal() or int(number or 0) >= there:
        raise ValueError(f"Expected a device of this machine (cpu, or cuda where there is one), got {device!r}.")


def memory_of(device: str) -> int:
    """Bytes, all in all: what does not fit in there fits at no time."""
    if device.startswith("cuda"):
        return int(torch.cuda.get_device_properties(device).total_memory)
    limits = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), resource.getrlimit(resource.RLIMIT_AS)[0]]
    with contextlib.suppress(OSError, ValueError):  # of a container, where there is one
        limits.append(int(pathlib.Path("/sys/fs/cgroup/memory.max").read_text()))
    return min(limit for limit in limits if limit > 0)


def default_device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


def chosen_device(named: str | None) -> str:
    """The one that is named, if this machine has it, or the usual one."""
    where = named or default_device()
    check_device(where)
    return where
