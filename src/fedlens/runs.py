"""A recipe, carried out: select, count, train, sample, report; in a run folder that can be resumed.

    runs/<name>-<id>/
        recipe.toml                the resolved recipe
        run.json                   where the ledger is, whether the noise is simulated
        plan.json, statement.md    the promise, made before any data was read
        primary.safetensors        the public classifier, where there is one
        <selection>/               checkpoint.safetensors while it trains; metrics.jsonl, model.safetensors
        samples/, report.html, report.json
        MANIFEST.json              SHA-256 of all of it

The folder is public: everything in it came through the door. What must stay private while a run is unfinished (the
secret its noise is derived from) lies beside the ledger, readable by its owner only, and is deleted at the end.
"""

import dataclasses
import datetime
import functools
import json
import math
import pathlib
import platform
import secrets
import time
from collections.abc import Iterator
from typing import Any, Protocol

import torch

import fedlens
from fedlens import data, files, ledger, tensorfiles, trees
from fedlens.curator import PrivacySpentError
from fedlens.inspection import Model, Report, contrast
from fedlens.ledger import Item, Ledger, RunClosedError, is_remote
from fedlens.models.classifier import ConvClassifier, Primary
from fedlens.planning import noise_to_signal
from fedlens.population import DataError, Population
from fedlens.privacy import Guarantee, accounting
from fedlens.randomness import Randomness
from fedlens.recipes import STAGES, Recipe, to_toml
from fedlens.selection import AccuracyBetween, Classified
from fedlens.simulation import Engine, SimulatedCurator
from fedlens.trees import Tree

SAMPLED = 512
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
        folder = out / f"{recipe.name}-{secrets.token_hex(3)}"
        address = str(address) if is_remote(str(address)) else str(pathlib.Path(address).resolve())
        run = cls(folder=folder, recipe=recipe, address=address, seed=seed, device=device)
        promise = run.promised()
        book = Ledger(address)
        book.reserve(run.items(), recipe=recipe.digest, why=why, new=True)
        try:
            folder.mkdir(parents=True)
            files.write(folder / "recipe.toml", to_toml(recipe))
            files.write(folder / "plan.json", json.dumps(run.plan(), indent=1))
            files.write(folder / "statement.md", f"# {recipe.name}\n\n{promise.statement()}")
            about = {"ledger": address, "seed": seed, "device": device, "recipe_sha256": recipe.digest}
            files.write(folder / "run.json", json.dumps(about, indent=1))
        except BaseException:
            run.abandoned(book)
            raise
        return run

    def items(self) -> list[Item]:
        return self.recipe.items(self.name, self.seed is not None)

    def abandoned(self, book: Ledger) -> None:
        """Returns what is not spent."""
        for account in dict.fromkeys(item.account.run for item in self.items()):
            book.close(account)

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
            raise ValueError(f"Expected the recipe that {folder.name} was started with; recipe.toml has changed.")
        return cls(
            folder=folder,
            recipe=recipe,
            address=address,
            seed=seed,
            device=device,
        )

    def promised(self) -> Guarantee:
        return ledger.guarantee(self.recipe.spendings(self.name, self.seed is not None), self.recipe.privacy.delta)

    def plan(self) -> dict[str, Any]:
        count, train = self.recipe.plans
        return {
            "guarantee": self.promised().to_dict(),
            "models": len(self.recipe.selections),
            "count": count.to_dict(),
            "train": train.to_dict(),
            "noise_to_signal": noise_to_signal(self.recipe, train),
        }

    def executed(self, watch: Watcher) -> Report:
        """Trains what is not trained yet, then reports. Safe to interrupt at any point and to call again."""
        if (self.folder / "MANIFEST.json").exists():
            raise ValueError(f"Expected an unfinished run; {self.name} is complete: fedlens report {self.folder}")
        torch.set_float32_matmul_precision("high")  # TF32 on a GPU: bounds, sums and noise use no products
        book = Ledger(self.address)
        book.reserve(self.items(), recipe=self.recipe.digest)  # done when the run was created; a resumed run checks it
        population, primary = self._usable_side(book)
        models: list[Model] = []
        warnings: list[str] = []
        for selection in self.recipe.selections:
            model = self._trained(selection, population, primary, book, watch)
            if model is None:
                warnings.append(
                    f"{selection}: a noisy head count found fewer than {self.recipe.privacy.minimum_users} users; "
                    "no model was trained on so few, and there is nothing to compare"
                )
            else:
                models.append(model)
                warnings += self._lost_rounds(model)
        report = self._report(models, primary, tuple(warnings), book)
        report.save(self.folder)
        self._close(book)
        return report

    def _lost_rounds(self, model: Model) -> list[str]:
        lost = self.recipe.privacy.rounds - model.rounds
        told = f"{model.label}: {lost} of {self.recipe.privacy.rounds} rounds were charged but lost in an interruption"
        return [f"{told}; the model stopped early"] if lost else []

    def _usable_side(self, book: Ledger) -> tuple[Population, Primary | None]:
        """The private side; if the data cannot be used and nothing was released yet, what was set aside is returned."""
        try:
            return self._private_side()
        except DataError:
            if not any(book.spent(item.account.run, item.stage) for item in self.items()):
                self.abandoned(book)
            raise

    def _private_side(self) -> tuple[Population, Primary | None]:
        source = self.recipe.data
        public: data.Public | None = None
        if source.source == "digits":
            population, public = data.digits(source.deal_to)
        elif source.source == "npz":
            path = pathlib.Path(source.path or "")
            labels = source.labels if self.recipe.primary else None  # a look at everything needs none
            population = data.from_npz(path, images=source.images, labels=labels, users=source.users)
        else:
            population = Population.open(source.path or "")
        if "x" not in population.columns:
            raise DataError(f"Expected an image column 'x', found {', '.join(sorted(population.columns))}.")
        if population.columns["x"].shape[1:] != (1, self.recipe.side, self.recipe.side):
            shape = tuple(population.columns["x"].shape[1:])
            raise DataError(f"Expected images of (1, {self.recipe.side}, {self.recipe.side}), got {shape}: see `side`.")
        if len(population) > self.recipe.privacy.population:
            declared = self.recipe.privacy.population
            raise DataError(
                f"Expected at most population={declared} users, as the recipe declares; the data hold more."
            )
        if source.bug is not None:
            population = data.planted(population, source.bug.kind, source.bug.fraction, source.bug.seed)
        return population, self._primary(public)

    def _primary(self, public: data.Public | None) -> Primary | None:
        wanted, kept = self.recipe.primary, self.folder / "primary.safetensors"
        if wanted is None:
            return None
        if wanted.model is not None and not kept.exists():
            Primary.open(pathlib.Path(wanted.model)).save(kept)
        if not kept.exists():
            if wanted.public is not None:
                columns = wanted.public
                public = data.public_npz(pathlib.Path(columns.path), images=columns.images, labels=columns.labels)
            if public is None:
                raise ValueError(
                    "Expected primary.model or [primary.public] in the recipe: there is no classifier to ask."
                )
            classes = int(public.labels.max()) + 1
            network = ConvClassifier(side=self.recipe.side, classes=classes, widths=wanted.widths)
            images, labels = trees.pixels(torch.from_numpy(public.images)), torch.from_numpy(public.labels)
            params = network.fitted(images, labels, seed=self.recipe.seed, epochs=wanted.epochs)
            Primary(network, params).save(kept)
        primary = Primary.open(kept)  # as saved, so that a resumed run asks the very same classifier
        if primary.network.side != self.recipe.side:
            raise ValueError(
                f"Expected a primary model for side={self.recipe.side}, got one for {primary.network.side}."
            )
        return primary

    def _selected(self, selection: str, population: Population, primary: Primary | None) -> Population:
        rule = self.recipe.selections[selection]
        if rule.by == "everyone":
            chosen = population
        elif primary is None or "y" not in population.columns:
            raise DataError(f"Expected labels and a primary model to select by {rule.by}.")
        elif rule.by == "accuracy":
            at_least, below = rule.interval
            chosen = AccuracyBetween(at_least=at_least, below=below)(population, selection, primary)
        else:
            chosen = Classified(right=rule.by == "right", minimum=rule.minimum_examples)(population, selection, primary)
        return chosen if self.recipe.privacy.unit == "user" else chosen.by_example()

    def _trained(
        self, selection: str, population: Population, primary: Primary | None, book: Ledger, watch: Watcher
    ) -> Model | None:
        """The model of one selection; None if too few users are in it."""
        folder = self.folder / selection
        if (folder / "model.safetensors").exists():
            return Model.open(folder / "model.safetensors")
        folder.mkdir(exist_ok=True)
        chosen = self._selected(selection, population, primary)
        randomness = self._randomness(selection)
        account = self.recipe.account(self.name, selection, randomness.simulated)
        door = functools.partial(SimulatedCurator, chosen, ledger=book, account=account, randomness=randomness)
        count_plan, train_plan = self.recipe.plans
        counting, training = STAGES
        head_count = door(plan=count_plan, stage=counting, engine=Engine()).noisy_mean(present, {})
        files.write(folder / "count.json", json.dumps({"noisy_users": round(float(head_count["users"]), 1)}))
        if head_count["users"] < self.recipe.privacy.minimum_users:
            return None
        algorithm = self.recipe.algorithm()
        # A seed promises the same run again, and chunks round differently: with one, the engine is not measured.
        fixed = Engine(device=self.device, chunk=16) if randomness.simulated else None
        state, engine = self._resumed(folder) or (algorithm.start(), fixed)
        curator = door(
            plan=train_plan,
            stage=training,
            examples_per_unit=algorithm.examples_per_unit,
            engine=engine,
            device=self.device,
            position=int(state["round"]),
        )
        state = self._rounds(algorithm.run(curator, trees.moved(state, self.device)), state, curator, folder, watch)
        model = Model(
            gan=algorithm.gan,
            generator=trees.moved(trees.part(state, "generator"), "cpu"),
            label=selection,
            spending=book.spending(account.run),
            delta=self.recipe.privacy.delta,
            recipe_sha256=self.recipe.digest,
            rounds=int(state["round"]),
            ledger_head=book.head(),
        )
        model.save(folder / "model.safetensors")
        (folder / "checkpoint.safetensors").unlink(missing_ok=True)
        return model

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
                if done == first + 1 or time.monotonic() - saved_at > CHECKPOINT_SECONDS:
                    self._checkpoint(folder, state, curator)
                    saved_at = time.monotonic()
        except RunClosedError:
            raise  # somebody gave it up
        except PrivacySpentError:
            pass  # rounds lost in a crash were charged and cannot be had again; the model ends a little earlier
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
        every = 1 if accounting.accountant([train]) == accounting.EXACT else max(1, train.releases // 10)
        if done % every and done != train.releases:
            return {}
        cost = accounting.epsilon([count, dataclasses.replace(train, releases=charged)], self.recipe.privacy.delta)
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

    def _report(self, models: list[Model], primary: Primary | None, warnings: tuple[str, ...], book: Ledger) -> Report:
        provenance = {
            "fedlens": fedlens.__version__,
            "torch": torch.__version__,
            "machine": f"{platform.machine()}, {self.device}",
            "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "run": self.name,
            "recipe": (self.folder / "recipe.toml").read_text(),
            "recipe sha256": self.recipe.digest,
        }
        samples = [model.sampled(SAMPLED, self.recipe.seed) for model in models]
        for side in samples:
            side.save(self.folder / "samples" / f"{side.label}.safetensors")
        # The joint guarantee covers every group, also one whose model was not trained: it was counted.
        spendings = [book.spending(f"{self.name}/{selection}") for selection in self.recipe.selections]
        joint = ledger.guarantee(spendings, self.recipe.privacy.delta)
        if not samples:
            return Report(
                title=self.recipe.name, findings=(), guarantee=joint, warnings=warnings, provenance=provenance
            )
        report = contrast(*samples, title=self.recipe.name, primary=primary, warnings=warnings, provenance=provenance)
        return dataclasses.replace(report, guarantee=joint)

    def _close(self, book: Ledger) -> None:
        hashes = {
            str(path.relative_to(self.folder)): files.sha256(path)
            for path in sorted(self.folder.rglob("*"))
            if path.is_file() and path.name != "MANIFEST.json"
        }
        for selection in self.recipe.selections:
            book.close(f"{self.name}/{selection}", hashes.get(f"{selection}/model.safetensors", ""))
        files.write(self.folder / "MANIFEST.json", json.dumps(hashes, indent=1))
        forget_secrets(self.address, self.folder.parent, self.name)


def _secrets(address: str, out: pathlib.Path) -> pathlib.Path:
    """Where the secrets of unfinished runs lie: beside the ledger, or beside the run folders if that is elsewhere."""
    return (out if is_remote(address) else pathlib.Path(address).parent) / ".private"


def forget_secrets(address: str, out: pathlib.Path, run: str) -> None:
    """Deletes what the noise of a run was made from, with what a crash may have left of it: it could be taken away."""
    for secret in _secrets(address, out).glob(f"{run}.*"):
        secret.unlink()


def present(message: Tree, examples: Tree, memory: Tree) -> tuple[Tree, Tree]:
    """Contributes 1 for a unit that holds any example: the head count."""
    return {"users": (examples["mask"].sum() > 0).float()}, memory


def _shortened(metrics: pathlib.Path, lines: int) -> None:
    """Drops the lines of rounds that will be done again: one line a round, from the first."""
    if metrics.exists():
        files.write(metrics, "".join(metrics.read_text().splitlines(keepends=True)[:lines]))


def _checked_device(device: str) -> None:
    kind, _, number = device.partition(":")
    there = torch.cuda.device_count() if kind == "cuda" else 1
    if kind not in ("cpu", "cuda") or not (number or "0").isdecimal() or int(number or 0) >= there:
        raise ValueError(f"Expected a device of this machine (cpu, or cuda where there is one), got {device!r}.")


def default_device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"
