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

The folder is public: everything in it came through the door. What must stay private while a run is unfinished (the
secret its noise is derived from) lies beside the ledger, readable by its owner only, and is deleted at the end.
"""

import contextlib
import dataclasses
import datetime
import fcntl
import functools
import json
import math
import os
import pathlib
import platform
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import torch

import fedlens
from fedlens import files, preparation, tensorfiles, trees
from fedlens.algorithms import Ngrams
from fedlens.curator import PrivacySpentError
from fedlens.inspection import (
    Model,
    NgramModel,
    Report,
    Samples,
    TextModel,
    Texts,
    Trained,
    contrast,
    contrast_texts,
    opened,
)
from fedlens.inspection.contrast import SHOWN
from fedlens.ledger import Head, Item, Ledger, RunClosedError, Spending, guarantee, is_remote
from fedlens.ledger.spending import carried_out
from fedlens.models.classifier import Primary
from fedlens.population import DataError, Population
from fedlens.preparation import Side, Thresholds
from fedlens.privacy import Guarantee, MatrixPlan, accounting
from fedlens.randomness import Randomness
from fedlens.recipe_tables import Quantile, Text
from fedlens.recipes import STAGES, THRESHOLDS, Recipe, to_toml
from fedlens.simulation import Engine, SimulatedCurator
from fedlens.trees import Tree

SAMPLED = 512
PUBLIC = "the vocabulary, unless it says what it cost, and the words or sentences that the model started from"
BESIDE = "beside"  # names the secret under which data are tagged
GLIMPSES = (0.05, 0.15, 0.3, 0.6)  # of the rounds
CHECKPOINT_SECONDS = 10.0


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
    ) -> "Run":
        """Sets aside what the recipe will spend and writes down the promise. No data is read."""
        source = recipe.data.path
        if source is not None and not pathlib.Path(source).exists():
            raise DataError(f"Expected private data at {source}; there is nothing.")
        _checked_device(device)
        if recipe.text and recipe.text.baseline:
            _baseline(recipe, recipe.text.baseline)  # better now than when all is spent
        _only_our_code(recipe, seed)
        if recipe.text:
            len(recipe.vocabulary)  # what is wrong with it is said before anything is set aside
        folder = out / f"{recipe.name}-{secrets.token_hex(3)}"
        address = str(address) if is_remote(str(address)) else str(pathlib.Path(address).resolve())
        run = cls(folder=folder, recipe=recipe, address=address, seed=seed, device=device)
        promise = run.promised()
        book = Ledger(address)
        refused = False
        try:
            try:
                book.reserve(run.items(), recipe=recipe.digest, why=why, new=True)
            except Exception:
                refused = True  # nothing was set aside, or under this name by another run
                raise
            folder.mkdir(parents=True)
            files.write(folder / "recipe.toml", to_toml(recipe))
            files.write(folder / "plan.json", json.dumps(run.plan(), indent=1))
            files.write(folder / "statement.md", f"# {recipe.name}\n\n{promise.statement()}")
            about = {"ledger": address, "seed": seed, "device": device, "recipe_sha256": recipe.digest}
            files.write(folder / "run.json", json.dumps(about, indent=1))
        except BaseException:
            if not refused:
                run.abandoned(book)
            raise
        return run

    def items(self) -> list[Item]:
        return self.recipe.items(self.name, self.seed is not None)

    def abandoned(self, book: Ledger) -> None:
        """Returns what is not spent."""
        known = book.reserved()  # it may have been stopped before anything was set aside
        for account in self._accounts():
            if account in known:
                book.close(account)

    def _accounts(self) -> list[str]:
        """The names that its releases are booked under."""
        return list(dict.fromkeys(item.account.run for item in self.items()))

    @classmethod
    def opened(cls, folder: pathlib.Path) -> "Run":
        try:
            about = json.loads((folder / "run.json").read_text())
            known = about["recipe_sha256"], about["ledger"], about["seed"], about["device"]
        except FileNotFoundError:
            raise ValueError(f"Expected a run folder, found no run.json in {folder}.") from None
        except (json.JSONDecodeError, KeyError, TypeError):
            raise ValueError(f"Expected a whole run.json in {folder}; it is damaged.") from None
        recipe = Recipe.open(folder / "recipe.toml")
        digest, address, seed, device = known
        if recipe.digest != digest:
            raise ValueError(
                f"Expected the recipe that {folder.name} was started with; it, or a public file it names, has changed."
            )
        return cls(
            folder=folder,
            recipe=recipe,
            address=address,
            seed=seed,
            device=device,
        )

    def promised(self) -> Guarantee:
        return self.recipe.guarantee(self.recipe.spendings(self.name, self.seed is not None))

    def plan(self) -> dict[str, Any]:
        (count, train), thresholds = self.recipe.plans, self.recipe.threshold_plan
        return {
            "guarantee": self.promised().to_dict(),
            "models": len(self.recipe.selections),
            "thresholds": thresholds.to_dict() if thresholds else None,
            "count": count.to_dict(),
            "train": train.to_dict(),
            "noise_to_signal": self.recipe.noise_to_signal,
        }

    def executed(self, watch: Watcher) -> Report:
        """Trains what is not trained yet, then reports. Safe to interrupt at any point and to call again."""
        if (self.folder / "MANIFEST.json").exists():
            forget_secrets(self.address, self.folder.parent, self.name)  # it may have been stopped just before
            raise ValueError(f"Expected an unfinished run; {self.name} is complete: fedlens report {self.folder}")
        with _alone(self.folder):
            return self._executed(watch)

    def _executed(self, watch: Watcher) -> Report:
        torch.set_float32_matmul_precision("high")  # TF32 on a GPU: bounds, sums and noise use no products
        _only_our_code(self.recipe, self.seed)
        book = Ledger(self.address)
        book.reserve(self.items(), recipe=self.recipe.digest)  # done when the run was created; a resumed run checks it
        side = self._usable_side(book)
        primary, thresholds = side.primary, self._thresholds(side, book)
        models: list[Trained] = []
        warnings = list(self.recipe.doubts)
        for selection in self.recipe.selections:
            chosen = functools.partial(preparation.selected, self.recipe, selection, side, thresholds)
            model = self._trained(selection, chosen, book, watch)
            if model is None:
                warnings.append(
                    f"{selection}: a noisy head count found fewer than {self.recipe.privacy.minimum_users} users; "
                    "no model was trained on so few, and there is nothing to compare"
                )
            else:
                models.append(model)
                warnings += self._lost_rounds(model)
        report = self._report(models, primary, thresholds, tuple(warnings), book)
        report.save(self.folder)
        self._close(book)
        return report

    def _lost_rounds(self, model: Trained) -> list[str]:
        lost = self.recipe.privacy.rounds - model.rounds
        told = f"{model.label}: {lost} of {self.recipe.privacy.rounds} rounds were charged but lost in an interruption"
        return [f"{told}; the model stopped early"] if lost else []

    def _usable_side(self, book: Ledger) -> Side:
        """The private side; if it cannot be used and nothing was released yet, what was set aside is returned."""
        try:
            side = Side.of(self.recipe, self.folder / "primary.safetensors")
        except Exception as error:  # a full disk or a lost connection may be mended, and the run resumed
            if not isinstance(error, OSError) and not any(book.spent(i.account.run, i.stage) for i in self.items()):
                self.abandoned(book)
            raise
        self._pin(side, book)
        return side

    def _pin(self, side: Side, book: Ledger) -> None:
        """A resumed run goes on with the same data and classifier: else a user may be in two groups, priced as one."""
        kept, tag = self.folder / "beside.json", self._randomness(BESIDE).tag(side.fingerprint())
        known = kept.read_text() if kept.exists() else None
        if known is None and not any(book.spent(item.account.run, item.stage) for item in self.items()):
            files.write(kept, json.dumps({"tag": tag}))
        elif known != json.dumps({"tag": tag}):
            for account in self._accounts():
                book.must_be_open(account)  # the secret of a closed run is gone, and its tags with it
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
        told = [{"quantile": quantile, "accuracy": accuracy} for quantile, accuracy in learnt.items()]
        files.write(self.folder / "thresholds.json", json.dumps(told, indent=1))
        return learnt

    def _trained(
        self, selection: str, chosen: Callable[[], Population], book: Ledger, watch: Watcher
    ) -> Trained | None:
        """The model of one selection; None if too few users are in it."""
        folder = self.folder / selection
        if (folder / "model.safetensors").exists():
            return opened(folder / "model.safetensors")
        folder.mkdir(exist_ok=True)
        randomness = self._randomness(selection)
        account = self.recipe.account(self.name, selection, randomness.simulated)
        door = functools.partial(SimulatedCurator, chosen(), ledger=book, account=account, randomness=randomness)
        count_plan, train_plan = self.recipe.plans
        counting, training = STAGES
        counter = door(plan=count_plan, stage=counting, engine=Engine(), examples_per_unit=1)
        head_count = counter.noisy_mean(present, {})
        files.write(folder / "count.json", json.dumps({"noisy_users": round(float(head_count["users"]), 1)}))
        if head_count["users"] < self.recipe.privacy.minimum_users:
            return None
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
        made = functools.partial(self._model, selection, book)
        states = self._glimpsed(algorithm.run(curator, trees.moved(state, self.device)), folder, made)
        state = self._rounds(states, state, curator, folder, watch)
        model = made(state)
        model.save(folder / "model.safetensors")
        (folder / "checkpoint.safetensors").unlink(missing_ok=True)
        return model

    def _model(self, selection: str, book: Ledger, state: Tree) -> Trained:
        return model_of(self.recipe, selection, state, self._spending(f"{self.name}/{selection}", book), book.head())

    def _glimpsed(
        self, states: Iterator[Tree], folder: pathlib.Path, made: Callable[[Tree], Trained]
    ) -> Iterator[Tree]:
        """Keeps what the model draws on the way, at some rounds: one sees it learn. Costs no privacy."""
        shares = () if self.recipe.text else GLIMPSES  # of words, the last ones say it all
        kept = {math.ceil(share * self.recipe.privacy.rounds) for share in shares}
        for state in states:
            if (number := int(state["round"])) in kept and number < self.recipe.privacy.rounds:
                made(state).sampled(SHOWN, self.recipe.seed).save(folder / "rounds" / f"{number:06d}.safetensors")
            yield state

    def _spending(self, account: str, book: Ledger) -> Spending:
        """What a model costs by itself: with the thresholds, if who trained it depends on them."""
        own, learning = book.spending(account), self.recipe.learning()
        return dataclasses.replace(own, plans=(*(plan for found in learning for plan in found.plans), *own.plans))

    def _rounds(
        self, states: Iterator[Tree], state: Tree, curator: SimulatedCurator, folder: pathlib.Path, watch: Watcher
    ) -> Tree:
        """Lets the algorithm run, saving as it goes; what was not saved when a run breaks off is done again, free."""
        saved_at, started, first = time.monotonic(), time.monotonic(), int(state["round"])
        _shortened(folder / "metrics.jsonl", first)
        try:
            for state in states:
                done = int(state["round"])
                facts = self._facts(done, curator.charged) | (
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

    def _facts(self, done: int, charged: int) -> dict[str, Any]:
        """The epsilon so far, of this model alone; where computing it takes long, only now and then.

        More may be charged than done: a crash can cost releases.
        """
        count, train = self.recipe.plans
        exact = isinstance(train, MatrixPlan) or accounting.accountant([train]) == accounting.EXACT
        every = 1 if exact else max(1, train.releases // 10)
        if done % every and done != train.releases:
            return {}
        before = [plan for found in self.recipe.learning() for plan in found.plans]
        model = dataclasses.replace(self.recipe.spendings()[0], plans=(*before, count, carried_out(train, charged)))
        cost = guarantee([model], self.recipe.privacy.delta).epsilon
        return {"epsilon_so_far": math.ceil(cost * 1e4) / 1e4 if cost < math.inf else "infinity"}

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
        return state, Engine(**about["engine"]) if about["engine"] else None

    def _randomness(self, selection: str) -> Randomness:
        if self.seed is not None:
            return Randomness.seeded(self.seed)
        folder = _secrets(self.address, self.folder.parent)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return Randomness.kept_in(folder / f"{self.name}.{selection}.key")

    def _report(
        self,
        models: list[Trained],
        primary: Primary | None,
        thresholds: Thresholds,
        warnings: tuple[str, ...],
        book: Ledger,
    ) -> Report:
        provenance = {
            "fedlens": fedlens.__version__,
            "torch": torch.__version__,
            "machine": f"{platform.machine()}, {self.device}",
            "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "run": self.name,
            "recipe": (self.folder / "recipe.toml").read_text(),
            "recipe sha256": self.recipe.digest,
        }
        if thresholds:
            provenance["thresholds learnt"] = learnt_text(self.recipe, thresholds)
        count = self.recipe.text.samples if self.recipe.text else SAMPLED
        samples = [model.sampled(count, self.recipe.seed) for model in models]
        for side in samples:
            side.save(self.folder / "samples" / f"{side.label}.safetensors")
        # The joint guarantee covers every group, also one whose model was not trained: it was counted.
        joint = self.recipe.guarantee([book.spending(account) for account in self._accounts()])
        if not samples:
            return Report(
                title=self.recipe.name, findings=(), guarantee=joint, warnings=warnings, provenance=provenance
            )
        if self.recipe.text:
            texts = [side for side in samples if isinstance(side, Texts)]
            return self._text_report(texts, self.recipe.text, joint, warnings, provenance)
        drawn = [side for side in samples if isinstance(side, Samples)]
        glimpses, damaged = self._glimpses(drawn)
        warnings += tuple(f"{path.parent.parent.name}: {path.name} is damaged and left out" for path in damaged)
        report = contrast(
            *drawn,
            title=self.recipe.name,
            primary=primary,
            kinds=self.recipe.hypotheses,
            earlier=glimpses,
            warnings=warnings,
            provenance=provenance,
        )
        return dataclasses.replace(report, guarantee=joint)

    def _text_report(
        self, sides: list[Texts], text: Text, joint: Guarantee, warnings: tuple[str, ...], provenance: dict[str, str]
    ) -> Report:
        """Two groups are compared with each other; one with the model of an earlier run, whose users pay for both."""
        compare = functools.partial(
            contrast_texts,
            title=self.recipe.name,
            kinds=self.recipe.hypotheses,
            warnings=warnings,
            provenance=provenance | {"vocabulary": self.recipe.vocabulary.provenance, "public by declaration": PUBLIC},
        )
        if text.baseline is None:
            return dataclasses.replace(compare(*sides), guarantee=joint)
        drawn = _baseline(self.recipe, text.baseline).sampled(text.samples, self.recipe.seed)
        return compare(sides[0], dataclasses.replace(drawn, label=f"{drawn.label}, before"))

    def _glimpses(self, sides: Sequence[Samples]) -> tuple[list[Samples], list[pathlib.Path]]:
        """What was kept on the way, and the files that cannot be read."""
        found, damaged = [], []
        for side in sides:
            for path in sorted((self.folder / side.label / "rounds").glob("[0-9]*.safetensors")):
                try:
                    found.append(Samples.open(path))
                except ValueError:
                    damaged.append(path)
        return found, damaged

    def _close(self, book: Ledger) -> None:
        hashes = {
            str(path.relative_to(self.folder)): files.sha256(path)
            for path in sorted(self.folder.rglob("*"))
            if path.is_file() and path.name != "MANIFEST.json"
        }
        for account in self._accounts():
            book.close(account, hashes.get(f"{account.removeprefix(f'{self.name}/')}/model.safetensors", ""))
        files.write(self.folder / "MANIFEST.json", json.dumps(hashes, indent=1))
        forget_secrets(self.address, self.folder.parent, self.name)


@contextlib.contextmanager
def _alone(folder: pathlib.Path) -> Iterator[None]:
    """Nobody else works on this run meanwhile; the system lets go of the lock when a process ends, however it ends."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(f"Expected nobody else at work on {folder.name}; another process is.") from None
        yield
    finally:
        os.close(handle)


def _secrets(address: str, out: pathlib.Path) -> pathlib.Path:
    """Where the secrets of unfinished runs lie: beside the ledger, or beside the run folders if that is elsewhere."""
    return (out if is_remote(address) else pathlib.Path(address).parent) / ".private"


def forget_secrets(address: str, out: pathlib.Path, run: str) -> None:
    """Deletes what the noise of a run was made from, with what a crash may have left of it: it could be taken away."""
    for secret in _secrets(address, out).glob(f"{run}.*"):
        secret.unlink()


def learnt_text(recipe: Recipe, thresholds: Thresholds) -> str:
    """In words, for the report."""
    told = [
        f"{name} {words} {thresholds[found.quantile]:.4g}"
        for name, selection in recipe.selections.items()
        for words, found in (("at least", selection.at_least), ("below", selection.below))
        if isinstance(found, Quantile)
    ]
    return f"{', '.join(told)}, from a noisy histogram, part of the price"


def _baseline(recipe: Recipe, folder: str) -> TextModel | NgramModel:
    """The model of an earlier run to compare with: of another kind, its words would differ whatever the data."""
    found, text = opened(pathlib.Path(folder) / "model.safetensors"), recipe.text
    if isinstance(found, Model) or text is None:
        raise ValueError("Expected a model of text as text.baseline.")
    kind = "ngrams" if isinstance(found, NgramModel) else found.kind
    if (kind, found.vocabulary, found.width) != (text.model, recipe.vocabulary.words, text.width + 2):
        raise ValueError("Expected text.baseline with the recipe's own text.model, vocabulary and width; they differ.")
    return found


def model_of(recipe: Recipe, selection: str, state: Tree, spending: Spending, head: Head) -> Trained:
    """What a state is worth to a modeler, with its guarantee."""
    told: dict[str, Any] = {
        "label": selection,
        "spending": spending,
        "delta": recipe.privacy.delta,
        "recipe_sha256": recipe.digest,
        "rounds": int(state["round"]),
        "ledger_head": head,
    }
    if recipe.text is None:
        return Model(gan=recipe.gan(), generator=trees.moved(trees.part(state, "generator"), "cpu"), **told)
    told |= {"vocabulary": recipe.vocabulary.words, "width": recipe.text.width + 2}
    algorithm = recipe.algorithm()
    if isinstance(algorithm, Ngrams):
        return NgramModel(model=algorithm.model(state), **told)
    return TextModel(
        kind=recipe.text.model,
        model=recipe.language(),
        parameters=trees.moved(trees.part(state, "model"), "cpu"),
        **told,
    )


def present(message: Tree, examples: Tree, memory: Tree) -> tuple[Tree, Tree]:
    """Contributes 1 for a unit that holds any example: the head count."""
    return {"users": (examples["mask"].sum() > 0).float()}, memory


def _shortened(metrics: pathlib.Path, lines: int) -> None:
    """Drops the lines of rounds that will be done again: one line a round, from the first."""
    if metrics.exists():
        files.write(metrics, "".join(metrics.read_text().splitlines(keepends=True)[:lines]))


def _only_our_code(recipe: Recipe, seed: int | None) -> None:
    """Code of somebody else's would see every private example: it may keep what it saw, and tell it anywhere."""
    bug, tokenizer = recipe.data.bug, recipe.text.tokenizer if recipe.text else ""
    if seed is None and bug and ":" in bug.kind:
        raise ValueError("Expected --simulate with a bug of one's own: its code sees every private example.")
    if seed is None and ":" in tokenizer:
        raise ValueError(
            "Expected --simulate with a tokenizer of one's own: its code sees every private sentence. Split the text "
            "beforehand, and take tokenizer = 'whitespace'."
        )


def _checked_device(device: str) -> None:
    kind, _, number = device.partition(":")
    there = torch.cuda.device_count() if kind == "cuda" else 1
    if kind not in ("cpu", "cuda") or not (number or "0").isdecimal() or int(number or 0) >= there:
        raise ValueError(f"Expected a device of this machine (cpu, or cuda where there is one), got {device!r}.")


def default_device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"
