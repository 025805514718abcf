"""The public half of text: DP-trained language models and counts, and what is seen in what they write."""

import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import torch

from fedlens.algorithms import FedAvg, Ngrams, OneLook
from fedlens.algorithms.fedavg import warmed
from fedlens.algorithms.protocol import Algorithm
from fedlens.core import files, tensorfiles, trees
from fedlens.core.trees import Tree
from fedlens.ledger import Ledger, Spending
from fedlens.media.looks import problems as problems_of_looks
from fedlens.media.protocol import Medium, Rule, Template, Trained, Values
from fedlens.media.protocol import Samples as AnySamples
from fedlens.media.text import contrast, findings, looks, wordings
from fedlens.media.text.faults import FAULTS
from fedlens.media.text.looks import TextLook, tried_on
from fedlens.media.text.samples import NGRAMS, NgramModel, TextModel, Texts
from fedlens.media.text.settings import LOOK, NGRAM_NOISE_TO_SIGNAL, Text, looks_once, settled, text
from fedlens.models import words
from fedlens.models.looks.texts import TextPsi
from fedlens.models.lstm import LanguageModel
from fedlens.models.markov import SYMBOLS
from fedlens.privacy import Unit
from fedlens.recipes.tables import Settings
from fedlens.report.report import Report

STRANGE_WORDS = 0.1  # share of a vocabulary that no tokenizer gives: more than the odd abbreviation
TOP = 10  # of the likeliest words
PUBLIC = "the vocabulary, unless it says what it cost, and the words or sentences that the model started from"
OTHERWISE = "(in lower case, say), so that the words they stand for count as unknown"

NETWORK = "a network, not with ngrams"
TRAINED = "a model that is trained or counted, not with algorithm = 'look'"
OF_MODELS = "model width size embedding units projection layers order warm_steps baseline samples"
RULES: tuple[Rule, ...] = (
    (Text, OF_MODELS, lambda _, recipe: not looks_once(recipe), TRAINED),
    (Text, "examples", lambda _, recipe: looks_once(recipe), "algorithm = 'look'"),
    (Text, "size embedding units projection layers warm_steps", lambda own, _: not own.counts, NETWORK),
    (Text, "order", lambda own, recipe: own.counts or looks_once(recipe), "model = 'ngrams'"),
    (Text, "vocabulary_size", lambda own, _: not own.vocabulary, "public text in place of vocabulary"),
    (
        Text,
        "public",
        lambda own, recipe: not own.vocabulary or own.reads or looks_once(recipe),
        "model = 'words', or in place of vocabulary",
    ),
)


class TextMedium(Medium):
    name = "text"
    tables: ClassVar[Mapping[str, tuple[Any, Any]]] = {"text": (Text | None, None)}
    faults = FAULTS
    demo_without_fault: ClassVar[list[str]] = ["data.bug.share=0", "data.name=docstrings-without-bug"]
    drawn = 20_000
    rules = RULES
    tasks = ("T1", "T3")
    worded = True

    # A recipe

    def problems(self, recipe: Settings) -> list[str]:
        return _problems(recipe)

    def settled(self, values: Values, judged: Callable[[Values], Any]) -> Values:
        return settled(values, judged)

    def warnings(self, recipe: Settings) -> list[str]:
        share = text(recipe).strange_words
        if share <= STRANGE_WORDS:
            return []
        return [
            f"{share:.0%} of the words in text.vocabulary can never be met: the tokenizer writes them otherwise"
            f" {OTHERWISE}"
        ]

    def doubts(self, recipe: Settings, noise_to_signal: float) -> tuple[str, ...]:
        limit = NGRAM_NOISE_TO_SIGNAL
        if not text(recipe).counts or looks_once(recipe) or noise_to_signal <= limit:
            return ()
        why = f"noise to signal {noise_to_signal:.2f} is above {limit:g}: two tables of the same words may differ"
        return (f"{why} by chance as if by a bug, and what is named is a hint; it takes more users or epsilon",)

    def public_files(self, recipe: Settings) -> dict[str, str]:
        own = text(recipe)
        named = {
            "text.vocabulary": own.vocabulary,
            "text.vocabulary, its price": f"{own.vocabulary}.json" if own.vocabulary else None,
            "text.public": own.public,
            "text.baseline": f"{own.baseline}/model.safetensors" if own.baseline else None,
        }
        return {place: path for place, path in named.items() if path}

    def functions(self, recipe: Settings) -> dict[str, str]:
        return {"tokenizer": text(recipe).tokenizer}

    def template(self, task: str, data: str, *, vocabulary: str = "", baseline: str = "", **_others: Any) -> Template:
        source = "jsonl" if ".jsonl" in pathlib.Path(data).suffixes else "population"
        known = vocabulary or "vocabulary.txt"
        return Template.of_package(__package__, source, vocabulary=known, baseline=baseline)

    # What is trained

    def algorithm(self, recipe: Settings) -> str:
        return Ngrams.name if text(recipe).counts else FedAvg.name

    def network(self, recipe: Settings) -> LanguageModel | TextPsi | dict[str, int]:
        own = text(recipe)
        if looks_once(recipe):
            return looks.text_psi(own)
        return {"order": own.order} if own.counts else own.built()

    def weights(self, recipe: Settings) -> int:
        own = text(recipe)
        if looks_once(recipe):
            return looks.NUMBERS
        return SYMBOLS**own.order if own.counts else own.built().weights

    def blank(self, recipe: Settings, width: int) -> Tree:
        row = looks.ROW if looks_once(recipe) else text(recipe).row
        return {"x": torch.zeros(width, row, dtype=torch.uint8), "mask": torch.ones(width)}

    def warmed(self, recipe: Settings, algorithm: Algorithm, state: Tree, device: str) -> Tree:
        """A language model has read what is public, if there is anything."""
        rows = _public_rows(text(recipe)) if isinstance(algorithm, FedAvg) else []
        if not isinstance(algorithm, FedAvg) or not len(rows):
            return state
        steps, sequences = text(recipe).warm_steps, torch.from_numpy(np.stack(rows)).long()
        fresh = trees.part(state, "model")
        weights = warmed(algorithm.model, fresh, sequences, steps=steps, seed=recipe.seed, device=device)
        return state | trees.joined(model=weights)

    def chunk(self, recipe: Settings, models: int) -> int:
        """21 and 15 GB on a GPU with the small language models."""
        if looks_once(recipe):
            return max(1, 256 // models)  # 10 MB each, several times
        return max(1, (300 if text(recipe).model == "words" else 3000) // models)

    def released(self, recipe: Settings) -> tuple[Spending, ...]:
        """Its vocabulary, where that was learnt."""
        return text(recipe).price

    def check_prices(self, recipe: Settings, book: Ledger) -> None:
        """A list that this ledger knows as learnt comes with the price that it was booked at."""
        own, booked = text(recipe), book.runs()
        inside = files.within(pathlib.Path(own.public)) if own.public else []
        if {files.sha256(one) for one in inside} & {run["model"] for run in booked}:
            raise ValueError("Expected a learnt list of words as text.vocabulary, with its price; not as public text.")
        named = bool(own.known.facts) or own.vocabulary is None  # counted in public text just now
        prices = [
            (run["run"], run["simulated"], [stage["plan"] for stage in run["stages"]])
            for run in booked
            if run["model"] == own.known.digest or own.known.resembles(book.learnt(run["run"]), named)
        ]
        claimed = [(e.account.run, e.account.simulated, [plan.to_dict() for plan in e.plans]) for e in own.price]
        if prices and not any(price in prices for price in claimed):
            runs = " or ".join(run for run, _, _ in prices)
            raise ValueError(
                "Expected the price of the vocabulary beside it, as the ledger knows it: the list was learnt by"
                f" {runs}. (Most of its words are words of that list. Of public text, fedlens vocabulary count makes a"
                " list that says where it comes from.)"
            )

    # Models and samples

    def model(
        self, recipe: Settings, algorithm: Algorithm, state: Tree, *, device: str = "cpu", **about: Any
    ) -> TextModel | NgramModel | TextLook:
        own = text(recipe)
        about |= {"vocabulary": own.known.words, "earlier": own.price, "tokenizer": own.tokenizer}
        if isinstance(algorithm, OneLook):
            return TextLook.of_state(algorithm, state, **about)
        about |= {"width": own.row}
        if own.counts:
            return NgramModel(model=algorithm.result(state), **about)
        weights = trees.moved(algorithm.result(state), "cpu")
        return TextModel(kind=own.model, model=own.built(), parameters=weights, **about)

    def owns(self, header: Mapping[str, Any]) -> bool:
        return "kind" in header

    def opened(self, path: pathlib.Path) -> TextModel | NgramModel | TextLook:
        """Of whichever kind it says it is."""
        header = tensorfiles.header(path)
        if header.get("kind") == LOOK:
            return TextLook.open(path)
        return NgramModel.open(path) if header.get("kind") == NGRAMS else TextModel.open(path)

    def drawn_on(self, model: Any, count: int, device: str) -> Texts:
        """A GPU writes other words for the same seed, and many more of them."""
        return model.sampled(count, 0, device) if isinstance(model, TextModel) else model.sampled(count, 0)

    def opened_samples(self, path: pathlib.Path) -> Texts:
        return Texts.open(path)

    def samples(self, recipe: Settings) -> int:
        return text(recipe).samples

    def shown(self, samples: AnySamples) -> tuple[str, bytes]:
        return ".txt", wordings.listed(_texts(samples)).encode(errors="replace")

    # What is found

    def baseline(self, recipe: Settings) -> TextModel | NgramModel | None:
        """Of another kind, its words would differ whatever the data."""
        own, path = text(recipe), self.baseline_file(recipe)
        if path is None:
            return None
        if not path.exists():
            raise ValueError(f"Expected a model folder of an earlier run as text.baseline; {own.baseline} holds none.")
        if not self.owns(tensorfiles.header(path)):
            raise ValueError("Expected a model of text as text.baseline.")
        model = self.opened(path)
        if isinstance(model, TextLook):
            raise ValueError("Expected a model of text as text.baseline, and not a look.")
        kind = model.kind if isinstance(model, TextModel) else NGRAMS
        ours = own.model, own.tokenizer, own.known.words, own.row
        if (kind, model.tokenizer, model.vocabulary, model.width) != ours:
            settings = "text.model, tokenizer, vocabulary and width"
            raise ValueError(f"Expected text.baseline with the recipe's own {settings}; they differ.")
        return model

    def baseline_file(self, recipe: Settings) -> pathlib.Path | None:
        folder = text(recipe).baseline
        return pathlib.Path(folder) / "model.safetensors" if folder else None

    def contrast(self, groups: Sequence[AnySamples], *, title: str, **about: Any) -> Report:
        own = {
            name: value
            for name, value in about.items()
            if name not in ("primary", "glimpses", "coverage", "releases", "recipe")
        }
        return contrast.contrast(*map(_texts, groups), title=title, **own)

    def looked(
        self,
        looks: Sequence[Trained],
        *,
        recipe: Settings | None,
        title: str,
        warnings: tuple[str, ...] = (),
        provenance: dict[str, str] | None = None,
    ) -> Report | None:
        taken = [look for look in looks if isinstance(look, TextLook)]
        if not taken or len(taken) < len(looks):
            return None
        public = tried_on(text(recipe)) if recipe else ()
        return findings.looked(*taken, title=title, public=public, warnings=warnings, provenance=provenance)

    def in_table(self, report: Report) -> dict[str, Any]:
        """Which of the likeliest words hold a space."""
        words = report.to_dict()["words"]
        return {"top": [" " in row["word"] for row in words[0]["rows"][:TOP]]} if words else {}

    def provenance(self, recipe: Settings) -> dict[str, str]:
        return {"vocabulary": text(recipe).known.provenance, "public by declaration": PUBLIC}


def _public_rows(own: Text) -> list[np.ndarray]:
    """The vocabulary's spellings, or public sentences: none of it comes from a user."""
    if not own.warm_steps:
        return []
    if own.model == "spelling":
        return [words.spelled(word, own.row) for word in own.known.words]
    split = words.tokenizer(own.tokenizer)
    return [own.known.numbered(tokens, own.row) for sentence in own.sentences if (tokens := split(sentence))]


def _texts(samples: AnySamples) -> Texts:
    if not isinstance(samples, Texts):
        raise ValueError("Expected samples of text to compare with each other.")
    return samples


def _problems(recipe: Settings) -> list[str]:
    own, p, problems = text(recipe), recipe.privacy, []
    if not (own.vocabulary or own.public or recipe.data.source == "docstrings"):
        problems.append("text.vocabulary is missing: a list of words, public or learnt at a price; or public text")
    if own.baseline and len(recipe.selections) > 1:
        problems.append("text.baseline goes with one selection: two are compared with each other")
    if looks_once(recipe):
        problems += problems_of_looks(recipe)
    if own.counts and not looks_once(recipe) and (p.rounds, p.clip, p.correlated) != (1, 1.0, None):
        problems.append("text.model = 'ngrams' is one release: rounds = 1, clip = 1.0, nothing correlated; or open")
    if recipe.algorithm and not looks_once(recipe) and (recipe.algorithm == Ngrams.name) != own.counts:
        problems.append(f"algorithm = '{recipe.algorithm}' does not go with text.model = '{own.model}'")
    if p.unit == Unit.EXAMPLE:
        problems.append("[text] protects users: privacy.unit = 'example' is not for it")
    reads = own.model == "words" or looks_once(recipe)
    if own.public and not own.vocabulary and reads and not pathlib.Path(own.public).exists():
        return [*problems, f"expected public text at text.public = {own.public!r}; there is nothing"]
    return problems + _of_words(recipe)


def _of_words(recipe: Settings) -> list[str]:
    """A list that cannot be opened, a network that cannot be built from it, or a price that does not add up."""
    own = text(recipe)
    try:
        if not own.counts and not looks_once(recipe):
            own.built()
        return _of_prices(recipe) if own.vocabulary else []
    except OSError:  # public text has errors of its own
        return [f"expected a list of words, a file, at text.vocabulary = {own.vocabulary!r}; there is none"]
    except ValueError as error:
        return [f"text: {error}"]


def _of_prices(recipe: Settings) -> list[str]:
    ours = recipe.privacy.unit, recipe.privacy.neighbours
    return [
        f"text.vocabulary was learnt per {unit} ({neighbours}), and the models are per {ours[0]} ({ours[1]}): such"
        " costs do not add up to one guarantee; take the same unit and neighbours, or a public list"
        for unit, neighbours in (paid.kind for paid in text(recipe).price)
        if (unit, neighbours) != ours
    ]


MEDIUM = TextMedium()
