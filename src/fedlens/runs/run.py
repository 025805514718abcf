"""A recipe, carried out: learn thresholds, select, count, train, sample, report; in a run folder that can be resumed.

    runs/<name>-<id>/
        recipe.toml                the resolved recipe
        run.json                   where the ledger is, whether the noise is simulated
        plan.json, statement.md    the promise, made before any data was read
        primary.safetensors        the public classifier, where there is one, in whatever form it came
        beside.json                a keyed tag of the data: a resumed run must find them as they were
        thresholds.json            learnt from a noisy histogram, where the recipe asks for quantiles
        <selection>/               count.json; checkpoint.safetensors while it trains; metrics.jsonl, model.safetensors
        <selection>/rounds/        what the model drew on the way
        samples/, report.html, report.json
        MANIFEST.json              SHA-256 of all of it

The folder is public: everything in it came through the door. What must stay private while a run trains (the secret its
noise is derived from) lies beside the ledger, readable by its owner only, and is deleted when all models are there.
"""

import dataclasses
import functools
import hashlib
import itertools
import json
import pathlib
import secrets
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import torch

from fedlens.core import files, pins, tensorfiles, trees
from fedlens.core.randomness import Randomness
from fedlens.core.trees import Tree
from fedlens.curators.protocol import PrivacySpentError
from fedlens.curators.simulated import Engine, SimulatedCurator
from fedlens.data.population import DataError, Population
from fedlens.ledger import Item, Ledger, RunClosedError, is_remote
from fedlens.media.opening import Trained
from fedlens.owner.admission import admitted
from fedlens.owner.folder import Owner
from fedlens.privacy import Guarantee
from fedlens.recipes.recipe import STAGES, Recipe, to_toml
from fedlens.recipes.tables import THRESHOLDS
from fedlens.report.report import Report
from fedlens.runs import preparation
from fedlens.runs import reporting as run_reports
from fedlens.runs.preparation import Side, Thresholds
from fedlens.runs.safeguards import (
    alone,
    check_plain,
    forget_secrets,
    kept_randomness,
    made,
    make_secrets,
    note_made,
    only_our_code,
)

VERSION = 2  # of run folders
BESIDE = "beside"  # names the secret under which data are tagged
CHECKPOINT_SECONDS = 10.0
_METRICS = {"round", "epsilon_so_far", "clip", "simulated"}  # of a line in metrics.jsonl: public numbers
MADE_WITHOUT_DATA = {"recipe.toml", "plan.json", "statement.md", "run.json", "primary.safetensors"}


class Watcher(Protocol):
    """Is told of progress: public facts only."""

    def __call__(self, selection: str, done: int, rounds: int, facts: dict[str, Any]) -> None: ...


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
        _checked_device(device)
        if recipe.text and recipe.text.baseline:
            run_reports.baseline(recipe, recipe.text.baseline)  # better now than when all is spent
        only_our_code(recipe, seed)
        if recipe.text:
            len(recipe.vocabulary)  # what is wrong with it is said before anything is set aside
        folder = out / f"{recipe.name}-{secrets.token_hex(3)}"
        address = str(address) if is_remote(str(address)) else str(pathlib.Path(address).resolve())
        recipe.spendings()  # an epsilon out of reach is told before anything is written
        book = Ledger(address)
        recipe, _ = admitted(recipe, Owner(address, book), simulated=seed is not None, say=say)
        run = cls(folder=folder, recipe=recipe, address=address, seed=seed, device=device)
        promise = run.promised()
        if recipe.text:
            _check_price(recipe, book)
            run_reports.unconfirmed_baseline(recipe, book)  # or the ledger contradicts it
        refused = False
        try:
            try:
                book.reserve(run.items(), recipe=recipe.digest, why=why, text=to_toml(recipe), new=True)
            except Exception:
                refused = True  # nothing was set aside, or under this name by another run
                raise
            folder.mkdir(parents=True)
            if seed is None:
                learning = [THRESHOLDS] if recipe.threshold_plan else []
                make_secrets(address, run.name, [BESIDE, *learning, *recipe.selections])
            files.write(folder / "recipe.toml", to_toml(recipe))
            files.write(folder / "plan.json", json.dumps(run_reports.plan_of(recipe, promise), indent=1))
            files.write(folder / "statement.md", f"# {recipe.name}\n\n{promise.statement()}")
            about = {
                "version": VERSION,
                "ledger": address,
                "seed": seed,
                "device": device,
                "recipe_sha256": recipe.digest,
            }
            files.write(folder / "run.json", json.dumps(about, indent=1))
        except BaseException:
            if not refused:
                run.abandoned(book)
            raise
        return run

    @property
    def _simulated(self) -> dict[str, bool]:
        """What stands with every number of a simulated run."""
        return {} if self.seed is None else {"simulated": True}

    def items(self) -> list[Item]:
        return self.recipe.items(self.name, self.seed is not None)

    def abandoned(self, book: Ledger) -> None:
        """Returns what is not spent."""
        known = book.reserved()  # it may have been stopped before anything was set aside
        self._close(book, [account for account in self._accounts() if account in known])

    def _close(self, book: Ledger, accounts: Sequence[str]) -> None:
        """Nothing more is released on these accounts, and the secret of what was is deleted."""
        for account in accounts:
            book.close(account, made(self.address, self.name, self._part(account).name))
        forget_secrets(self.address, self.name)

    def _accounts(self) -> list[str]:
        """The names that its releases are booked under."""
        return list(dict.fromkeys(item.account.run for item in self.items()))

    def _part(self, account: str) -> pathlib.Path:
        return self.folder / account.removeprefix(f"{self.name}/")

    @classmethod
    def opened(cls, folder: pathlib.Path) -> "Run":
        check_plain(folder)
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
        _checked_device(device)
        recipe = Recipe.open(folder / "recipe.toml")
        if recipe.digest != digest:
            raise ValueError(
                f"Expected the recipe that {folder.name} was started with; it, or a public file it names, has changed."
            )
        return cls(folder=folder, recipe=recipe, address=address, seed=seed, device=device)

    def promised(self) -> Guarantee:
        return self.recipe.guarantee(self.recipe.spendings(self.name, self.seed is not None))

    def executed(self, watch: Watcher) -> Report:
        """Trains what is not trained yet, then reports. Safe to interrupt at any point and to call again."""
        with alone(self.folder):
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
        models = run_reports.models_in(self.folder, self.recipe)
        self._close(book, self._accounts())
        for selection, model in models.items():  # or the ledger contradicts what it says
            run_reports.unconfirmed(book, model, files.sha256(self.folder / selection / "model.safetensors"))
        report = self._report(models, book)
        report.save(self.folder)
        self._seal()
        return report

    def _settled(self, part: pathlib.Path, book: Ledger) -> bool:
        """Whether it has its model, or was refused one: then nothing more is asked about it.

        A model counts by the hash that was noted when it was made or, once its account is closed, by what was booked.
        """
        model, account = part / "model.safetensors", f"{self.name}/{part.name}"
        booked = {run["run"]: run["model"] for run in book.runs() if run["closed"]}
        noted = booked.get(account) or made(self.address, self.name, part.name)
        if model.exists() and files.sha256(model) == noted:
            return True
        if account in booked and noted:
            raise ValueError(f"Expected the model of {account!r} that the ledger names; it was changed.")
        return self._of_too_few(part)

    def _of_too_few(self, part: pathlib.Path) -> bool:
        """As decided by what was written down, so that a resumed run decides the same without asking."""
        if not (part / "count.json").exists():
            return False
        counted: float = files.json_in(part / "count.json", {"noisy_users": float})["noisy_users"]
        return counted < self.recipe.privacy.minimum_users

    def _train(self, book: Ledger, watch: Watcher) -> None:
        """All that reads private data, and none of them for an account that may release nothing more."""
        for account in self._accounts():
            if not self._settled(self._part(account), book):
                book.must_be_open(account)
        only_our_code(self.recipe, self.seed)
        if self.recipe.text:
            _check_price(self.recipe, book)
        book.reserve(self.items(), recipe=self.recipe.digest, resumed=True)  # done when it was created: checked
        side = self._usable_side(book)
        thresholds = self._thresholds(side, book)
        for selection in self.recipe.selections:
            chosen = functools.partial(preparation.selected, self.recipe, selection, side, thresholds)
            self._trained(selection, chosen, book, watch)

    def _report(self, models: dict[str, Trained], book: Ledger) -> Report:
        found = run_reports.report_of(
            self.folder,
            self.recipe,
            models,
            # As promised, also where a model was not trained on too few users: a lower price would tell about the data.
            joint=self.promised(),
            primary=preparation.primary(self.recipe, None, self.folder / "primary.safetensors"),
            device=self.device,
        )
        doubt = run_reports.unconfirmed_baseline(self.recipe, book)
        return run_reports.marked(found, f"the baseline: {doubt}") if doubt else found

    def _seal(self) -> None:
        check_plain(self.folder)  # hashes of what lies elsewhere would tell guesses apart
        paths = [path for path in sorted(self.folder.rglob("*")) if path.is_file()]
        hashes = {str(path.relative_to(self.folder)): files.sha256(path) for path in paths}
        files.write(self.folder / "MANIFEST.json", json.dumps(hashes, indent=1))

    def _usable_side(self, book: Ledger) -> Side:
        """The private side; if it cannot be used and nothing was released yet, what was set aside is returned."""
        try:
            recipe, known = admitted(self.recipe, Owner(self.address, book), simulated=self.seed is not None)
            fresh = not any(book.spent(item.account.run, item.stage) for item in self.items())
            source = known.data if known else recipe.data
            side = Side.of(recipe, self.folder / "primary.safetensors", source, fresh)
            if known and side.primary and side.primary.foreign:
                known.check_programs()  # once more: of what was opened, whatever lay there before
        except Exception as error:  # a full disk or a lost connection may be mended, and the run resumed
            if not isinstance(error, OSError) and not any(book.spent(i.account.run, i.stage) for i in self.items()):
                self.abandoned(book)
                self._leave_no_folder()
            raise
        self._pin(side, book)
        return side

    def _leave_no_folder(self) -> None:
        """Of a run that ended before it released anything, unless somebody put something else there."""
        if {path.name for path in self.folder.iterdir()} <= MADE_WITHOUT_DATA:
            shutil.rmtree(self.folder, ignore_errors=True)

    def _pin(self, side: Side, book: Ledger) -> None:
        """A resumed run goes on with the same data and classifier: else a user may be in two groups, priced as one."""
        kept, tag = self.folder / "beside.json", self._randomness(BESIDE).tag(side.fingerprint())
        known = files.content(kept).decode(errors="replace") if kept.exists() else None
        if known is None and not any(book.spent(item.account.run, item.stage) for item in self.items()):
            files.write(kept, json.dumps({"tag": tag}))
        elif known != json.dumps({"tag": tag}):
            raise DataError("Expected the data and the primary model that this run started with; they have changed.")

    def _thresholds(self, side: Side, book: Ledger) -> Thresholds:
        """Learnt at a price where the recipe asks for quantiles; a resumed run asks again, and is told the same."""
        plan = self.recipe.threshold_plan
        if plan is None or side.accuracies is None:
            return {}
        randomness = self._randomness(THRESHOLDS)
        door = SimulatedCurator(
            side.judged(),
            plan,
            ledger=book,
            account=self.recipe.account(self.name, THRESHOLDS, randomness.simulated),
            randomness=randomness,
            stage=THRESHOLDS,
            engine=Engine(),
        )
        learnt = preparation.thresholds(self.recipe, door)
        told = [{"quantile": level, "accuracy": accuracy} | self._simulated for level, accuracy in learnt.items()]
        files.write(self.folder / "thresholds.json", json.dumps(told, indent=1))
        return learnt

    def _trained(self, selection: str, chosen: Callable[[], Population], book: Ledger, watch: Watcher) -> None:
        """Saves the model of one selection, unless too few users are in it."""
        folder = self.folder / selection
        if self._settled(folder, book):
            return
        folder.mkdir(exist_ok=True)
        randomness = self._randomness(selection)
        account = self.recipe.account(self.name, selection, randomness.simulated)
        door = functools.partial(SimulatedCurator, chosen(), ledger=book, account=account, randomness=randomness)
        count_plan, train_plan = self.recipe.plans
        counting, training = STAGES
        counter = door(plan=count_plan, stage=counting, engine=Engine(), examples_per_unit=1)
        head_count = counter.noisy_mean(present, {})
        counted = {"noisy_users": round(float(head_count["users"]), 1)} | self._simulated
        files.write(folder / "count.json", json.dumps(counted))
        if self._of_too_few(folder):
            return
        algorithm = self.recipe.algorithm()
        # A seed promises the same run again, and chunks round differently: with one, the engine is not measured.
        fixed = Engine.repeatable(self.device) if randomness.simulated else None
        state, engine = self._resumed(folder) or (self.recipe.start(self.device), fixed)
        curator = door(
            plan=train_plan,
            stage=training,
            examples_per_unit=algorithm.examples_per_unit,
            engine=engine,
            device=self.device,
            position=int(state["round"]),
        )

        if curator.engine is None:
            # Killed in its first round, it must be able to ask the same again: another engine's is another question.
            curator.settle(algorithm.beside.contribute, algorithm.round(trees.moved(state, self.device))[0])
            self._checkpoint(folder, state, curator)
        make = functools.partial(self._model, selection, book)
        states = algorithm.run(curator, trees.moved(state, self.device))
        states = run_reports.glimpsed(states, make, folder, self.recipe)
        state = self._rounds(states, state, curator, folder, watch)
        self._keep(make(state), folder)
        (folder / "checkpoint.safetensors").unlink(missing_ok=True)

    def _keep(self, model: Trained, folder: pathlib.Path) -> None:
        """Saved where nobody else writes, and noted, before it lies in the folder."""
        with tempfile.TemporaryDirectory() as apart:
            model.save(pathlib.Path(apart) / "model.safetensors")
            content = (pathlib.Path(apart) / "model.safetensors").read_bytes()
        note_made(self.address, self.name, folder.name, hashlib.sha256(content).hexdigest())
        files.write(folder / "model.safetensors", content)

    def _model(self, selection: str, book: Ledger, state: Tree) -> Trained:
        own = book.spending(f"{self.name}/{selection}")
        return run_reports.model_of(self.recipe, selection, state, own, book.pin())

    def _rounds(
        self, states: Iterator[Tree], state: Tree, curator: SimulatedCurator, folder: pathlib.Path, watch: Watcher
    ) -> Tree:
        """Lets the algorithm run, saving as it goes; what was not saved when a run breaks off is done again, free."""
        saved_at, started, first = time.monotonic(), time.monotonic(), int(state["round"])
        _shortened(folder / "metrics.jsonl", first)
        try:
            for state in states:
                done = int(state["round"])
                facts = self._facts(folder.name, done, curator.charged) | (
                    {"clip": round(float(state["clip"]), 6)} if "clip" in state else {}
                )
                files.append_line(folder / "metrics.jsonl", json.dumps({"round": done} | facts))
                pace = (time.monotonic() - started) / (done - first)
                watch(folder.name, done, self.recipe.privacy.rounds, facts | {"seconds_a_round": pace})
                due = self.recipe.plans[1].in_turn or time.monotonic() - saved_at > CHECKPOINT_SECONDS
                if done == first + 1 or due:
                    self._checkpoint(folder, state, curator)
                    saved_at = time.monotonic()
        except RunClosedError:
            raise  # somebody gave it up
        except PrivacySpentError as refusal:
            if curator.charged < self.recipe.privacy.rounds:  # not spent, but refused: it would pass for a short model
                told = f"{folder.name} was refused what comes after round {int(state['round'])}"
                raise PrivacySpentError(f"{told} of {self.recipe.privacy.rounds}. {refusal}") from None
            # Rounds lost in a crash were charged and cannot be had again; the model ends a little earlier.
        except (KeyboardInterrupt, OSError):
            self._checkpoint(folder, state, curator)
            raise
        self._checkpoint(folder, state, curator)
        return state

    def _facts(self, selection: str, done: int, charged: int) -> dict[str, Any]:
        return run_reports.facts(self.recipe, selection, done, charged, simulated=self.seed is not None)

    def _checkpoint(self, folder: pathlib.Path, state: Tree, curator: SimulatedCurator) -> None:
        engine = dataclasses.asdict(curator.engine) if curator.engine else None
        about = {"recipe_sha256": self.recipe.digest, "engine": engine}
        tensorfiles.write(folder / "checkpoint.safetensors", state, about)

    def _resumed(self, folder: pathlib.Path) -> tuple[Tree, Engine | None] | None:
        if not (folder / "checkpoint.safetensors").exists():
            return None
        state, about = tensorfiles.read(folder / "checkpoint.safetensors")
        if about.get("recipe_sha256") != self.recipe.digest:
            raise ValueError(f"Expected a checkpoint of this recipe in {folder.name}; it belongs to another one.")
        with files.damage(f"Expected a whole header in {folder.name}/checkpoint.safetensors; it is damaged."):
            engine = Engine(**about["engine"]) if about["engine"] else None
        _check_state(state, self.recipe.start("cpu"), folder)
        return state, engine

    def _randomness(self, selection: str) -> Randomness:
        if self.seed is not None:
            return Randomness.seeded(self.seed)
        return kept_randomness(self.address, self.name, selection)


def present(message: Tree, examples: Tree, memory: Tree) -> tuple[Tree, Tree]:
    """Contributes 1 for a unit that holds any example: the head count."""
    return {"users": (examples["mask"].sum() > 0).float()}, memory


def _check_price(recipe: Recipe, book: Ledger) -> None:
    """A list that this ledger knows as learnt comes with the price that it was booked at."""
    words, public = recipe.vocabulary, recipe.text.public if recipe.text else None
    if public and {files.sha256(one) for one in files.within(pathlib.Path(public))} & {r["model"] for r in book.runs()}:
        raise ValueError("Expected a learnt list of words as text.vocabulary, with its price; not as public text.")
    named = bool(words.facts) or bool(recipe.text and recipe.text.vocabulary is None)  # counted in public text just now
    booked = [
        (told["run"], told["simulated"], [stage["plan"] for stage in told["stages"]])
        for told in book.runs()
        if told["model"] == words.digest or words.resembles(book.learnt(told["run"]), named)
    ]
    told = [(e.account.run, e.account.simulated, [plan.to_dict() for plan in e.plans]) for e in recipe.earlier]
    if booked and not any(price in booked for price in told):
        runs = " or ".join(run for run, _, _ in booked)
        raise ValueError(
            f"Expected the price of the vocabulary beside it, as the ledger knows it: the list was learnt by {runs}."
            " (Most of its words are words of that list. Of public text, fedlens vocabulary count makes a list that"
            " says where it comes from.)"
        )


def _check_state(state: Tree, start: Tree, folder: pathlib.Path) -> None:
    """A checkpoint holds what the first state holds, or lists that grew from it."""
    same = state.keys() == start.keys() and all(
        (state[name].dtype, state[name].dim()) == (leaf.dtype, leaf.dim()) for name, leaf in start.items()
    )
    if not same or not int(state["round"]) >= 0:
        raise ValueError(f"Expected the state of a run in {folder.name}/checkpoint.safetensors; it is damaged.")


def _shortened(metrics: pathlib.Path, lines: int) -> None:
    """Drops the lines of rounds that will be done again: one line a round, from the first.

    What is kept is written anew, number by number: somebody may have put other content in its place.
    """
    if metrics.exists():
        kept = itertools.takewhile(_of_numbers, map(_parsed, files.content(metrics).splitlines()[:lines]))
        files.write(metrics, "".join(f"{json.dumps(line)}\n" for line in kept))


def _parsed(line: bytes) -> Any:
    try:
        return files.parsed_json(line, "")
    except ValueError:
        return None  # cut short when the power went


def _of_numbers(line: Any) -> bool:
    told = line.items() if isinstance(line, dict) else [("", "")]
    return all(key in _METRICS and (isinstance(value, int | float) or value == "infinity") for key, value in told)


def _checked_device(device: str) -> None:
    kind, _, number = device.partition(":")
    there = torch.cuda.device_count() if kind == "cuda" else 1
    if kind not in ("cpu", "cuda") or not (number or "0").isdecimal() or int(number or 0) >= there:
        raise ValueError(f"Expected a device of this machine (cpu, or cuda where there is one), got {device!r}.")


def default_device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"
