"""What a recipe says about models of text, and the public words that it starts from.

What it leaves open follows from public numbers, never from private metrics.
"""

import dataclasses
import functools
import math
import pathlib
import re
from collections.abc import Callable
from typing import Annotated, Any, Literal

import pydantic
from pydantic import Field, NonNegativeInt, PositiveInt

from fedlens.algorithms.look import OneLook
from fedlens.ledger import Spending
from fedlens.media.protocol import Values
from fedlens.media.text.public import help_topics, sentences_of
from fedlens.media.text.samples import NGRAMS
from fedlens.models import words
from fedlens.models.lstm import LanguageModel
from fedlens.models.words import Vocabulary
from fedlens.privacy import MatrixPlan
from fedlens.recipes.tables import Path, Settings, Table, changed

LOOK = OneLook.name
# A weight may wander so far by noise alone, over all rounds: more would drown what it has learnt.
WANDERED, MOMENTUM, RATE, ROUNDS = 0.3, 0.9, 2.0, 100
NOISE_TO_SIGNAL = 2.5
TRAINING = {"batch": 16, "local_steps": 2, "local_rate": 0.5}
# Of one-shot counts. On Python's docstrings, 11 of 70 pairs without a bug were given one above this; at 0.09, 0 of 16.
ORDERS, NGRAM_NOISE_TO_SIGNAL = (3, 2), 0.2
LANGUAGES: tuple[dict[str, int], ...] = (
    {},
    {"embedding": 24, "units": 96, "projection": 48},
    {"embedding": 16, "units": 64, "projection": 32},
    {"embedding": 16, "units": 32, "projection": 24},
)


def _tokenizer(kind: str) -> str:
    words.tokenizer(kind)  # or it says which there are
    return kind


class Text(Table):
    """A language model in place of a GAN: of words outside a vocabulary, letter by letter, or of whole sentences."""

    model: Literal["spelling", "words", "ngrams"] = "spelling"  # ngrams: of words too, without a network, in one round
    vocabulary: Path | None = None  # a public list or a charged release, one word a line
    public: Path | None = None  # or sentences anybody may see (.txt, .jsonl), whose most frequent words are known
    vocabulary_size: PositiveInt = 10_000  # of those; docstrings bring a public text of their own
    tokenizer: Annotated[str, pydantic.AfterValidator(_tokenizer)] = "plain"
    # Bytes of a word, or words of a sentence; longer ones are cut, and no sentence is held with more bytes.
    width: Annotated[PositiveInt, Field(le=words.SENTENCE_BYTES)] = 16
    size: Literal["paper", "small"] = "small"
    embedding: PositiveInt | None = None
    units: PositiveInt | None = None
    projection: NonNegativeInt | None = None
    layers: PositiveInt | None = None
    order: Literal[2, 3] = 3  # ngrams: letters that are counted together
    warm_steps: NonNegativeInt = 300  # on the vocabulary's spellings, or on public sentences, before anything private
    baseline: Path | None = None  # the folder of an earlier model, to compare with
    samples: Annotated[int, Field(ge=100, le=1_000_000)] = 20_000
    examples: Annotated[int, Field(ge=1, le=4096)] = 128  # algorithm = "look": of a unit's sentences, at most

    @property
    def counts(self) -> bool:
        """Whether words are counted in one release, and no network is trained."""
        return self.model == NGRAMS

    @property
    def reads(self) -> bool:
        """Whether a model reads public sentences before anything private."""
        return self.model == "words" and self.warm_steps > 0

    @property
    def row(self) -> int:
        """Symbols of an example: with where it starts and ends."""
        return self.width + 2

    def built(self) -> LanguageModel:
        small, spelling = self.size == "small", self.model == "spelling"
        if spelling:
            network = LanguageModel.small_spelling() if small else LanguageModel.spelling()
        else:
            known = len(self.known)
            network = LanguageModel.small_words(known) if small else LanguageModel.words(known)
        sizes = self.model_dump(include={"embedding", "units", "projection", "layers"})
        built: LanguageModel = changed(network, sizes)
        return built

    @functools.cached_property
    def known(self) -> Vocabulary:
        """Public: a file, or the most frequent words of public text."""
        if self.vocabulary is None:
            source = pathlib.Path(self.public).name if self.public else "Python's help topics"
            return words.counted(self.sentences, self.vocabulary_size, self.tokenizer, source)
        return Vocabulary.open(self.vocabulary, provenance=f"the list {pathlib.Path(self.vocabulary).name}")

    @property
    def sentences(self) -> tuple[str, ...]:
        """Public ones; those that come with the docstrings, where there are neither others nor a list of words."""
        if self.public:
            return sentences_of(pathlib.Path(self.public))
        return () if self.vocabulary else help_topics()

    @functools.cached_property
    def price(self) -> tuple[Spending, ...]:
        """What was paid for a vocabulary that was learnt; nothing for others."""
        facts = self.known.facts if self.vocabulary else {}
        if "spending" not in facts:
            return ()
        try:
            paid = Spending.from_dict(facts["spending"])
            _ = paid.kind  # it has plans, and all are of one kind
            if not re.fullmatch(r"vocabulary-\w+", paid.account.run):
                raise ValueError
        except (KeyError, TypeError, ValueError):
            raise ValueError("Expected a whole price of the vocabulary in the file beside it; it is damaged.") from None
        # Whose users share nobody with whose is not for a file to say: every user may have been in it.
        account = dataclasses.replace(paid.account, partition=paid.account.run, part="all")
        return (dataclasses.replace(paid, account=account),)

    @property
    def strange_words(self) -> float:
        """The share of a given list that the tokenizer, if it is one of ours, does not leave as it is."""
        if self.vocabulary is None or self.tokenizer not in words.TOKENIZERS:
            return 0.0
        split = words.TOKENIZERS[self.tokenizer]
        return sum(split(word) != [word] for word in self.known.words) / len(self.known)


def text(recipe: Settings) -> Text:
    table: Text = recipe.text  # type: ignore[attr-defined]  # a key of this medium: Medium.tables
    return table


def looks_once(recipe: Settings) -> bool:
    """Whether it takes one look, and trains nothing."""
    return recipe.algorithm == LOOK


def settled(values: Values, judged: Callable[[Values], Any]) -> Values:
    """The largest model whose noise stays near the signal, and a server step that lets no weight wander far."""
    privacy, text, training = values["privacy"], values["text"], values.get("training", {})
    if values.get("algorithm") == LOOK:
        return values | {"privacy": {"rounds": 1, "clip": 1.0} | privacy}
    if text.get("model") == NGRAMS:
        return _ngrams(values, judged)
    clip = {} if "adaptive_clip" in privacy else {"clip": 0.5}
    whole = values | {
        "privacy": clip | {"rounds": ROUNDS} | privacy,
        "training": TRAINING | {"server": _server(RATE)} | training,
    }
    tied = {"projection"} if text.get("model") == "words" else set()  # it follows from the embedding there
    for sizes in LANGUAGES if "size" not in text else ({},):
        smaller = {name: sizes["embedding"] if name in tied else size for name, size in sizes.items()}
        whole = whole | {"text": smaller | text}
        recipe = judged(whole)
        if recipe.noise_to_signal <= NOISE_TO_SIGNAL:
            break
    if "server" in training:
        return whole
    train = recipe.plans["train"]
    unit = recipe.privacy.clip or recipe.privacy.adaptive_clip.start
    step = unit * train.stddev / train.bound.norm / train.expected_contributors  # of every weight, by noise alone
    steps = train.strategy.prefix_variances(train.releases).max() if isinstance(train, MatrixPlan) else train.releases
    rate = min(RATE, WANDERED * (1 - MOMENTUM) / (step * math.sqrt(steps)))
    return whole | {"training": whole["training"] | {"server": _server(float(f"{rate:.2g}"))}}


def _ngrams(values: Values, judged: Callable[[Values], Any]) -> Values:
    """One release, of the longest n-grams that stand out of its noise."""
    for order in ORDERS:
        whole = values | {
            "privacy": {"rounds": 1, "clip": 1.0} | values["privacy"],
            "text": {"order": order} | values["text"],
        }
        if judged(whole).noise_to_signal <= NGRAM_NOISE_TO_SIGNAL:
            break
    return whole


def _server(rate: float) -> dict[str, Any]:
    return {"kind": "sgd", "rate": rate, "momentum": MOMENTUM}
