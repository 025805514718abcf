"""What a stage keeps in a run's folder while it trains: checkpoints, metrics, and what the model draws on the way."""

import dataclasses
import hashlib
import itertools
import json
import math
import pathlib
import re
import secrets
import shutil
import time
from collections.abc import Callable
from typing import Any, Protocol

from fedlens.core import files, tensorfiles
from fedlens.core.trees import Tree
from fedlens.curators.engine import Engine
from fedlens.curators.memory import Memory
from fedlens.curators.protocol import PrivacySpentError
from fedlens.curators.simulated import SimulatedCurator
from fedlens.media.protocol import Trained
from fedlens.recipes.recipe import Recipe
from fedlens.recipes.stages import TRAIN, Stage
from fedlens.runs.carrying_out import Keeper, Kept
from fedlens.runs.reporting import facts

CHECKPOINT_SECONDS = 10.0
IN_MEMORY = 2**32  # bytes that units remember; more lie in files
SAVING = 20.0  # times as long as a checkpoint took, until the next
NOTED = 100  # checkpoints that may be gone back to
GLIMPSES = (0.05, 0.15, 0.3, 0.6)  # of the rounds
SHOWN = 64  # samples that are kept on the way
_METRICS = {"round", "epsilon_so_far", "clip", "simulated"}  # of a line in metrics.jsonl: public numbers


class Watcher(Protocol):
    """Is told of progress: public facts only."""

    def __call__(self, selection: str, done: int, rounds: int, facts: dict[str, Any]) -> None: ...


class FolderKeeper(Keeper):
    """Keeps what a training stage must not lose; what was not saved when it breaks off is done again, free."""

    def __init__(
        self,
        folder: pathlib.Path,
        recipe: Recipe,
        *,
        private: pathlib.Path,
        model: Callable[[Tree], Trained],
        watch: Watcher,
        simulated: bool,
    ) -> None:
        """The `folder` is public. Names that begin with `private` lie beside the data: what units remember, and the
        hashes of the checkpoints that were written here, since what lies in their place may be somebody else's."""
        self._folder, self._recipe, self._model, self._watch = folder, recipe, model, watch
        self._memories, self._note = (private.with_name(f"{private.name}.{use}") for use in ("memory", "checkpoint"))
        self.scratch = self._memories if recipe.remembered > IN_MEMORY else None
        self._simulated = simulated
        self._rounds, self._in_turn = recipe.privacy.rounds, recipe.plans[TRAIN].in_turn
        self._first, self._started = 0, time.monotonic()
        self._saved_at, self._save_took = self._started, 0.0
        shares = GLIMPSES if recipe.medium.shows_glimpses else ()
        self._glimpses = {math.ceil(share * self._rounds) for share in shares}

    def resumed(self, stage: Stage) -> Kept | None:
        kept = self._folder / "checkpoint.safetensors"
        if not kept.exists():
            _shorten(self._folder / "metrics.jsonl", 0)
            return None
        if files.sha256(kept) not in self._noted():
            raise ValueError(f"Expected the checkpoint that this run wrote in {self._folder.name}; it was changed.")
        state, about = tensorfiles.read(kept)
        if about.get("recipe_sha256") != self._recipe.digest:
            raise ValueError(f"Expected a checkpoint of this recipe in {self._folder.name}; it belongs to another one.")
        with files.damage(f"Expected a whole header in {self._folder.name}/checkpoint.safetensors; it is damaged."):
            engine = Engine(**about["engine"]) if about["engine"] else None
            remembered = about["memory"]
        _check_state(state, stage.algorithm.start(), self._folder)
        self._first = int(state["round"])
        _shorten(self._folder / "metrics.jsonl", self._first)
        return Kept(state, engine, self._memory(remembered) if remembered else None)

    def _memory(self, token: object) -> Memory:
        """PRIVATE. The one that goes with a checkpoint, and no other."""
        if not isinstance(token, str) or not re.fullmatch("[0-9a-f]{16}", token):
            raise ValueError(f"Expected a whole header in {self._folder.name}/checkpoint.safetensors; it is damaged.")
        return Memory.open(self._memories / token, scratch=self.scratch)

    def _noted(self) -> list[str]:
        return files.content(self._note).decode().split() if self._note.exists() else []

    def save(self, state: Tree, curator: SimulatedCurator) -> None:
        """What units remember comes first, and the state that goes with it says where it lies.

        Under a random token: the memory's own name is a hash of private rows, against which guesses could be tested.
        """
        began = time.monotonic()
        engine, memory = dataclasses.asdict(curator.engine) if curator.engine else None, curator.memory
        token = secrets.token_hex(8) if memory else None
        if token:
            self._memories.mkdir(mode=0o700, exist_ok=True)
            memory.save(self._memories / token)
        about = {"recipe_sha256": self._recipe.digest, "engine": engine, "memory": token}
        content = tensorfiles.content(state, about)
        # First, and synced, with those before it: a crash may come between the two writes.
        files.write(self._note, "\n".join([*self._noted()[-NOTED:], hashlib.sha256(content).hexdigest()]))
        files.write(self._folder / "checkpoint.safetensors", content)
        for other in self._memories.iterdir() if token else ():
            if other.name != token:
                shutil.rmtree(other, ignore_errors=True)
        self._saved_at = time.monotonic()
        self._save_took = self._saved_at - began

    def went_on(self, state: Tree, curator: SimulatedCurator) -> None:
        done = int(state["round"])
        clip = {"clip": round(float(state["clip"]), 6)} if "clip" in state else {}
        public = facts(self._recipe, self._folder.name, done, curator.charged, simulated=self._simulated) | clip
        if done in self._glimpses and done < self._rounds:
            drawn = self._model(state).sampled(SHOWN, self._recipe.seed)  # one sees it learn; costs no privacy
            drawn.save(self._folder / "rounds" / f"{done:06d}.safetensors")
        files.append_line(self._folder / "metrics.jsonl", json.dumps({"round": done} | public))
        pace = (time.monotonic() - self._started) / (done - self._first)
        self._watch(self._folder.name, done, self._rounds, public | {"seconds_a_round": pace})
        # What units remember may be gigabytes: then a crash costs more rounds, which are asked again for free.
        often = self._in_turn and not curator.memory
        due = often or time.monotonic() - self._saved_at > max(CHECKPOINT_SECONDS, SAVING * self._save_took)
        if done == self._first + 1 or due:
            self.save(state, curator)

    def ended_early(self, state: Tree, curator: SimulatedCurator, refusal: PrivacySpentError) -> None:
        """Rounds lost in a crash were charged and cannot be had again: the model ends a little earlier."""
        if curator.charged < self._rounds:  # not spent, but refused: it would pass for a short model
            refused = f"{self._folder.name} was refused what comes after round {int(state['round'])}"
            raise PrivacySpentError(f"{refused} of {self._rounds}. {refusal}") from None


def _check_state(state: Tree, start: Tree, folder: pathlib.Path) -> None:
    """A checkpoint holds what the first state holds, or lists that grew from it."""
    same = state.keys() == start.keys() and all(
        (state[name].dtype, state[name].dim()) == (leaf.dtype, leaf.dim()) for name, leaf in start.items()
    )
    if not same or not int(state["round"]) >= 0:
        raise ValueError(f"Expected the state of a run in {folder.name}/checkpoint.safetensors; it is damaged.")


def _shorten(metrics: pathlib.Path, lines: int) -> None:
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
    entries = line.items() if isinstance(line, dict) else [("", "")]
    return all(key in _METRICS and (isinstance(value, int | float) or value == "infinity") for key, value in entries)
