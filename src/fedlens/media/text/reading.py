"""PRIVATE. The half of text that reads: sentences, with a fault planted, as rows for a language model."""

import pathlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from fedlens.data import readers
from fedlens.data.planting import Planting
from fedlens.data.population import DataError, Population, SchemaError
from fedlens.data.readers.docstrings import docstrings
from fedlens.media.reading import Given, Reading, as_whole_numbers, planting_of, untrusted
from fedlens.media.text.faults import FAULTS
from fedlens.media.text.public import sentences_of
from fedlens.media.text.settings import Text, looks_once, text
from fedlens.models import words
from fedlens.models.looks.sentences import WIDTH, as_symbols
from fedlens.models.words import PADDING, SENTENCE_BYTES, as_row
from fedlens.recipes.tables import Data, Settings

TELLING = 16  # bytes that a sentence must have: "thank you" is said everywhere
_SLICE = 4096  # sentences that are read together
Tokens = list[str]


def _prepared(recipe: Settings, sentences: Population) -> Population:
    """The users with their rows in the column x: unknown words, or whole sentences; and columns to select by.

    A look is shown every sentence, with its unknown words and its marks.

    One user after the other, so that nobody decides about anybody else.
    """
    own, bug = text(recipe), recipe.data.bug
    planting = planting_of(bug, sentences) if bug else Planting(fraction=0.0)
    attributes, split = _attributes(sentences, recipe), words.tokenizer(own.tokenizer)
    fault = FAULTS.named(bug.kind).change if bug else None
    looks = looks_once(recipe)
    made, origins, marks = [_blank(own, looks)], [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    for unit, wrong, marked in planting.hits(sentences, "text"):
        start, count = int(sentences.starts[unit]), int(sentences.counts[unit])
        spoken = said(np.asarray(sentences.columns["text"][start : start + count]), split)
        for place in wrong - start if bug and fault else ():
            spoken[place] = _tokens(bug.kind, fault, spoken[place])  # type: ignore[union-attr, arg-type]
        rows, origin = _numbered(spoken, own, looks)
        made.append(rows)
        origins.append(start + origin)
        marks.append(np.full(len(rows), marked, np.int64))
    origin = np.concatenate(origins)
    columns = {name: column[origin] for name, column in attributes.items()}
    columns |= {"x": np.concatenate(made)} | ({bug.mark: np.concatenate(marks)} if bug and bug.mark else {})
    return Population.from_arrays(sentences.name, columns, np.array([len(rows) for rows in made[1:]], np.int64))


def _attributes(sentences: Population, recipe: Settings) -> dict[str, np.ndarray]:
    """The columns that selections go by, as far as they are there: no others are needed."""
    asked = {selection.attribute or "" for selection in recipe.selections.values()} - {"x"}  # which is what we make
    there = sorted(asked & sentences.columns.keys())
    return {name: as_whole_numbers(sentences.columns[name], name) for name in there}


def said(rows: np.ndarray, split: Callable[[str], Tokens]) -> list[Tokens]:
    """The tokens of each of a user's sentences."""
    return [_tokens("the tokenizer", split, words.as_sentence(row)) for row in rows]


def _tokens(of: str, change: Callable[[Given], Tokens], given: Given) -> Tokens:
    """What a tokenizer or a fault makes of a sentence, if it is tokens."""
    tokens = untrusted(change, given, f"Expected {of} to give back tokens; it failed.")
    if not isinstance(tokens, list) or not all(isinstance(token, str) for token in tokens):
        raise DataError(f"Expected {of} to give back a list of tokens; it gave something else.")
    return list(tokens)


def _numbered(spoken: list[Tokens], own: Text, looks: bool) -> tuple[np.ndarray, np.ndarray]:
    """The rows a user trains on, and the sentence that each came from."""
    made = [(place, row) for place, tokens in enumerate(spoken) for row in _of_sentence(tokens, own, looks)]
    rows = np.stack([row for _, row in made]) if made else _blank(own, looks)
    return rows, np.array([place for place, _ in made], np.int64)


def _of_sentence(tokens: Tokens, own: Text, looks: bool) -> Iterator[np.ndarray]:
    """The words outside the vocabulary; or the sentence as a whole."""
    if looks:
        yield as_symbols(tokens, own.known)
        return
    if own.model == "words":
        if tokens:
            yield own.known.numbered(tokens, own.row)
        return
    for token in tokens:
        if token and token not in own.known:
            yield words.spelled(token, own.row)


def _blank(own: Text, looks: bool) -> np.ndarray:
    if looks:
        return np.zeros((0, WIDTH), np.uint8)
    row = own.known.numbered([], own.row) if own.model == "words" else words.spelled("", own.row)
    return np.full((0, own.row), PADDING, row.dtype)


class TextReading(Reading):
    name = "text"
    column = "text"
    formats = readers.TEXT_KINDS
    conversion = frozenset({"users", "sentences", "attributes", "split"})

    def converted(self, source: pathlib.Path, to: pathlib.Path, kind: str, **options: Any) -> Population:
        return readers.convert_text(source, to, kind=kind, **options)

    def source_at(self, path: pathlib.Path) -> str | None:
        return "jsonl" if ".jsonl" in path.suffixes or path.is_dir() else None

    def opened(self, source: Data) -> Population:
        if source.source == "docstrings":
            return docstrings()
        path = pathlib.Path(source.path or "")
        return readers.text(path, user=source.users, text=source.text, attributes=source.attributes)

    def sound(self, population: Population) -> Population:
        column = population.columns.get("text")
        if column is None or column.dtype != np.uint8 or column.ndim != 2:
            wanted = "a population of text, with a column 'text' of bytes"
            raise SchemaError(f"Expected {wanted} (fedlens data convert --text).")
        return population

    def prepared(self, recipe: Settings, units: Population) -> Population:
        return _prepared(recipe, self.sound(units))

    def checked(self, population: Population) -> list[str]:
        return readers.checked_text(population)

    def notes(self) -> list[str]:
        """Whether a sentence is longer is private."""
        return [f"of every sentence the first {SENTENCE_BYTES} bytes are used"]

    def contents(self, column: np.ndarray) -> Iterator[bytes]:
        for start in range(0, len(column), _SLICE):
            yield from (row.tobytes().rstrip(b"\0") for row in np.asarray(column[start : start + _SLICE]))

    def telling(self, content: bytes) -> bool:
        """Not a short sentence."""
        return len(content) >= TELLING

    def reads_public(self, path: pathlib.Path) -> bool:
        return path.suffix != ".npz"

    def public_contents(self, path: pathlib.Path, column: str | None = None, declared: bool = True) -> Iterator[bytes]:
        """As a population of text would hold them."""
        return (bytes(as_row(sentence)).rstrip(b"\0") for sentence in sentences_of(path, declared))

    def public_examples(self, recipe: Settings) -> list[tuple[pathlib.Path, str | None]]:
        """A list that was learnt comes with its price, and is no public text."""
        own = text(recipe)
        paths = [own.public, None if own.price else own.vocabulary]
        return [(pathlib.Path(path), None) for path in paths if path]


READING = TextReading()
