"""PRIVATE. Lists of known words: counted in public text, or learnt from private text by a charged release.

Learning costs budget: the whole plan is set aside before any sentence is read, and a word is seen only if it came
through the curator. The noise is made from a secret that is never written down, so that an interrupted release cannot
be asked again: what it had charged is lost, the rest is returned.
"""

import dataclasses
import functools
import hashlib
import json
import math
import os
import pathlib
import secrets
from collections.abc import Callable
from typing import Any

import numpy as np

from fedlens.algorithms.heavy_words import HeavyWords
from fedlens.core import pins
from fedlens.core.randomness import Randomness
from fedlens.curators.engine import Engine
from fedlens.curators.site import Site
from fedlens.data.population import DataError, Population
from fedlens.ledger import Account, Item, Ledger, Spending, guarantee
from fedlens.ledger.provenance import provenance
from fedlens.media import opening, reading
from fedlens.media.text.public import sentences_of
from fedlens.media.text.reading import said
from fedlens.models import words
from fedlens.models.words import Vocabulary
from fedlens.owner.admission import Claims, resolved
from fedlens.owner.folder import Owner
from fedlens.owner.registration import refuse
from fedlens.privacy import Everyone, Guarantee, L2Clip, Plan, Unit
from fedlens.recipes.stages import Stage
from fedlens.recipes.tables import Data, Selection
from fedlens.runs.carrying_out import Asking, carried_out

STAGE = "words"
EVERYBODY = Selection(by="everyone")
# A word holds neither spaces nor control characters, and these bytes stand in no UTF-8.
ALPHABET = tuple(sorted({*range(0x21, 0xF5)} - {0x7F, 0xC0, 0xC1}))
CLEAR = 3.0  # standard deviations of noise that a prefix must exceed at the very least


@dataclasses.dataclass(frozen=True, kw_only=True)
class Learning:
    """What is asked of private text, and what it may cost: public settings only.

    >>> asked = Learning(data="talk.jsonl", epsilon=8.0, delta=1e-6, population=1000, users=900)
    >>> asked.plan.releases, asked.name, asked.guarantee.headline
    (17, 'talk.jsonl', 'epsilon 8.00 at delta 1e-06 per user (add/remove)')
    """

    data: str  # a registered population; or a .jsonl(.gz) file, a folder of them, or a population folder
    epsilon: float
    delta: float
    population: int  # a public upper bound on all users
    users: int  # a public guess at how many there are: the divisor
    size: int = 10_000
    longest: int = 16  # bytes of a word; longer ones cannot be found
    tokenizer: str = "plain"
    user_key: str = "user"
    text_key: str = "text"
    population_name: str | None = None  # in the ledger; by default that of the file
    words_per_user: int = 512  # of more, a random choice

    def __post_init__(self) -> None:
        if not (1e-3 <= self.epsilon <= 1e4 and 0 < self.delta < 1):
            raise ValueError("Expected epsilon between 0.001 and 10000, and delta between 0 and 1.")
        if min(self.size, self.longest, self.users, self.words_per_user) < 1:
            raise ValueError("Expected size, longest, users and words_per_user >= 1.")
        if self.users > self.population:
            raise ValueError(f"Expected users={self.users} <= population={self.population}.")
        words.tokenizer(self.tokenizer)  # or it says which there are

    @property
    def name(self) -> str:
        """Whose budget it draws on: the same name as that of a recipe on these data."""
        return self.population_name or self.source.called

    @property
    def source(self) -> Data:
        """As a recipe would say it."""
        path = pathlib.Path(self.data)
        if pins.found() or not path.exists():
            if os.sep in self.data:
                raise DataError(
                    f"Expected the name of a registered population, or private data; {self.data} is neither."
                )
            return Data(population=self.data)
        if (path / "population.json").exists():
            return Data(source="population", path=self.data, name=self.population_name)
        return Data(source="jsonl", path=self.data, name=self.population_name, users=self.user_key, text=self.text_key)

    @functools.cached_property
    def plan(self) -> Plan:
        """One release for every byte of a word, and one for its end."""
        plan = Plan(
            sampling=Everyone(),
            bound=L2Clip(norm=1.0),
            noise_multiplier=1.0,
            releases=self.longest + 1,
            expected_contributors=float(self.users),
        )
        return plan.calibrated(self.epsilon, self.delta)

    @property
    def algorithm(self) -> HeavyWords:
        # A user's marks add up to at most the root of their number: more prefixes than this cannot all stand out.
        standing_out = math.sqrt(self.words_per_user) * self.population / (CLEAR * self.plan.stddev)
        return HeavyWords(
            noise=self.plan.stddev / self.plan.expected_contributors,
            width=self.longest + 2,
            most=max(1, min(self.size, math.ceil(standing_out))),
            alphabet=ALPHABET,
            examples_per_unit=self.words_per_user,
        )

    @property
    def digest(self) -> str:
        """SHA-256 of all settings: what a reviewer approves."""
        return hashlib.sha256(json.dumps(self.settings, sort_keys=True).encode()).hexdigest()

    @property
    def settings(self) -> dict[str, Any]:
        """All of them; of the data the name alone, since what that is their owner says."""
        other = {"data", "user_key", "text_key", "population_name"}
        public = {key: value for key, value in dataclasses.asdict(self).items() if key not in other}
        return public | {"data": self.name}

    @property
    def text(self) -> str:
        """The same, for a reviewer to read: one setting a line, as in a recipe."""
        settings = {"algorithm": "vocabulary", **self.settings}
        lines = [f"{name} = {json.dumps(value)}" for name, value in settings.items() if value is not None]
        return "\n".join([*lines, ""])

    def account(self, run: str, simulated: bool) -> Account:
        return Account(run=run, population=self.name, partition=run, simulated=simulated)

    def item(self, run: str = "vocabulary", simulated: bool = False) -> Item:
        """What it asks of the ledger."""
        return Item(account=self.account(run, simulated), stage=STAGE, plan=self.plan)

    def spending(self, run: str = "vocabulary", simulated: bool = False) -> Spending:
        """Of the whole plan. It may end early, which depends on the data: so the price that is told does not."""
        return Spending(account=self.account(run, simulated), plans=(self.plan,))

    @property
    def guarantee(self) -> Guarantee:
        return guarantee([self.spending()], self.delta)

    @property
    def warnings(self) -> tuple[str, ...]:
        if self.delta <= 1 / self.population:
            return ()
        excess = f"delta {self.delta:g} is above 1/{self.population}"
        return (f"{excess}: take delta well below 1 / population, or one whole record may be published",)


def counted(text: pathlib.Path, to: pathlib.Path, *, size: int, tokenizer: str = "plain") -> Vocabulary:
    """The most frequent words of PUBLIC text, written to a new file."""
    _check_new(to)
    if size < 1:
        raise ValueError(f"Expected size={size} >= 1.")
    name = pathlib.Path(os.path.abspath(text)).name  # of `.` too; a link goes by its own name
    made = words.counted(sentences_of(text), size, tokenizer, name)
    if not made.words:
        raise ValueError(f"Expected words in {name}; there are none.")
    made.save(to)
    return made


def learned(
    asked: Learning,
    to: pathlib.Path,
    *,
    address: str | pathlib.Path,
    seed: int | None = None,
    device: str = "cpu",
    why: str = "",
    say: Callable[[str], None] = lambda line: None,
) -> Vocabulary:
    """The frequent words of private text, written to a new file with what they cost; most frequent first.

    Formal guarantee: the list is post-processing of the releases of `asked.plan`, reserved before any data is read.
    """
    check(asked, to, seed)
    book = Ledger(address)
    asked, sentences = admitted(asked, Owner(str(address), book), simulated=seed is not None, say=say)
    run, randomness = f"vocabulary-{secrets.token_hex(3)}", Randomness.secret()
    if seed is not None:
        randomness = Randomness.seeded(seed)
    item = asked.item(run, randomness.simulated)
    book.reserve([item], recipe=asked.digest, why=why, text=asked.text, new=True)
    try:
        made = _released(asked, sentences, run, book, randomness, device)
        # So that its price can be computed again, alone and jointly with models.
        facts = provenance(asked.spending(run, randomness.simulated), asked.delta)
        facts |= {"settings": asked.settings, "ledger_head": book.pin()}
        made = dataclasses.replace(made, facts=facts)
        made.save(to)
        book.close(run, made.digest, words=made.marks)
    except BaseException:
        book.close(run)  # what was not charged is returned
        raise
    if pin := pins.found():  # it is a release, which recipes may use
        try:
            pins.declare(pin, [made.digest])  # of what was released, whatever lies there by now
        except OSError:
            say(f"the owner of this machine must declare {to.name} public before recipes can use it")
    return made


def admitted(
    asked: Learning, owner: Owner, *, simulated: bool, say: Callable[[str], None] = lambda line: None
) -> tuple[Learning, Data]:
    """The same, on the budget of the population that is meant, and where its text lies; or its owner's refusal."""
    known = resolved(Claims(data=asked.source, unit=Unit.USER, units=asked.population), owner, say)
    asked = dataclasses.replace(asked, population_name=known.budget or known.name)
    problems = [] if opening.medium(known.medium).worded else [f"it holds {known.medium}, which has no words"]
    if known.population != asked.population:
        problems.append(f"it has at most {known.population} users: expected --population {known.population}")
    problems += known.of_policy(
        algorithm="vocabulary",
        functions=[asked.tokenizer],
        plans=[asked.plan],
        epsilon=lambda: guarantee([asked.spending()], owner.delta(known) or asked.delta).epsilon,
        simulated=simulated,
    )
    refuse(known, problems)
    return asked, known.data


def check(asked: Learning, to: pathlib.Path, seed: int | None) -> None:
    """Refuses what cannot be learnt, or written, whatever it costs. No data is read."""
    _check_new(to)
    if seed is None and ":" in asked.tokenizer:
        raise ValueError("Expected --simulate with a tokenizer of one's own: its code sees every private sentence.")
    _ = asked.source  # whether it can be data at all


def _released(asked: Learning, source: Data, run: str, book: Ledger, randomness: Randomness, device: str) -> Vocabulary:
    stage = Stage(name=STAGE, group="all", who=EVERYBODY, plan=asked.plan, algorithm=asked.algorithm)
    # A seed promises the same list again, and chunks round differently: with one, the engine is not measured.
    engine = Engine.repeatable(device) if randomness.simulated else None
    account = asked.account(run, randomness.simulated)
    asking = Asking(book=book, account=account, randomness=randomness, device=device, engine=engine)
    state = carried_out(stage, Site(_rows(asked, source), None, None), asking)
    cost = guarantee([asked.spending(run, randomness.simulated)], asked.delta).headline
    learnt = asked.algorithm.vocabulary(state, f"{cost}, a part of what every model with it costs")
    if not learnt.words:
        raise ValueError(
            f"Expected words that stand out of the noise; none did. {book.spent(run, STAGE)} of {asked.plan.releases}"
            " releases are spent. Take a larger epsilon, more users or public text (fedlens vocabulary count)."
        )
    return dataclasses.replace(learnt, words=learnt.words[: asked.size])


def _rows(asked: Learning, source: Data) -> Population:
    """PRIVATE. The different tokens of every user, spelled; one user after the other."""
    sentences = reading.opened(source)
    split, width = words.tokenizer(asked.tokenizer), asked.longest + 2
    rows, counts = [words.spelled("", width)[None][:0]], []
    for start, count in zip(sentences.starts, sentences.counts, strict=True):
        spoken = said(np.asarray(sentences.columns["text"][start : start + count]), split)
        different = dict.fromkeys(token for tokens in spoken for token in tokens if token)
        rows += [words.spelled(token, width)[None] for token in different]
        counts.append(len(different))
    return Population.from_arrays(asked.name, {"x": np.concatenate(rows)}, np.array(counts, np.int64))


def _check_new(to: pathlib.Path) -> None:
    """Before anything is spent."""
    for path in (to, pathlib.Path(f"{to}.json")):
        if path.exists():
            raise ValueError(f"Expected no file at {path}; it would be overwritten.")
    if not to.absolute().parent.is_dir():
        raise ValueError(f"Expected a folder to write {to.name} to; {to.parent} is none.")
