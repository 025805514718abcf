"""PRIVATE. What a recipe of text needs beside the data: sentences, with a bug planted, as rows for a language model."""

import hashlib
import pathlib
from collections.abc import Callable, Iterator

import numpy as np

from fedlens import misprints, readers, words
from fedlens.population import DataError, Population
from fedlens.readers.docstrings import docstrings
from fedlens.recipe_tables import Bug, Text
from fedlens.recipes import Recipe
from fedlens.words import PADDING, Vocabulary

Tokens = list[str]


def population(recipe: Recipe) -> Population:
    """The users with their rows in the column x: unknown words, or whole sentences; and columns to select by."""
    found = _read(recipe)
    if len(found) > recipe.privacy.population:
        declared = recipe.privacy.population
        raise DataError(f"Expected at most population={declared} users, as the recipe declares; the data hold more.")
    return _rows(found, recipe)


def _read(recipe: Recipe) -> Population:
    source = recipe.data
    if source.source == "docstrings":
        return docstrings()
    path = pathlib.Path(source.path or "")
    if source.source == "jsonl":
        return readers.text(path, user=source.users, text=source.text, attributes=source.attributes)
    found = Population.open(path)
    column = found.columns.get("text")
    if column is None or column.dtype != np.uint8 or column.ndim != 2:
        raise DataError("Expected a population of text, with a column 'text' of bytes (fedlens data convert --text).")
    return found


def _rows(sentences: Population, recipe: Recipe) -> Population:
    """One user after the other, so that nobody decides about anybody else."""
    text, vocabulary, bug = recipe.text, recipe.vocabulary, recipe.data.bug
    if text is None:
        raise ValueError("Expected a table [text] in the recipe.")
    attributes = [name for name in sentences.columns if name != "text"]
    made: list[np.ndarray] = []
    carried: dict[str, list[np.ndarray]] = {name: [] for name in attributes}
    marks, counts = [], np.zeros(len(sentences), np.int64)
    split = words.tokenizer(text.tokenizer)
    for unit in range(len(sentences)):
        own = sentences.unit(unit)
        spoken = [_split(split, words.as_sentence(row)) for row in own["text"].numpy()]
        marked, wrong = _hit(own["text"].numpy(), bug) if bug else (False, np.zeros(len(spoken), bool))
        if bug:
            spoken = [_misprinted(found, bug.kind) if hit else found for found, hit in zip(spoken, wrong, strict=True)]
        rows, origin = _numbered(spoken, text, vocabulary)
        made.append(rows)
        counts[unit] = len(rows)
        marks.append(np.full(len(rows), int(marked), np.int64))
        for name in attributes:
            carried[name].append(own[name].numpy()[origin])
    columns = {"x": np.concatenate([_blank(text, vocabulary), *made])}
    columns |= {
        name: np.concatenate([np.zeros(0, np.int64), *parts]).astype(np.int64) for name, parts in carried.items()
    }
    if bug and bug.mark:
        columns[bug.mark] = np.concatenate([np.zeros(0, np.int64), *marks])
    return Population.from_arrays(sentences.name, columns, counts)


def _split(split: Callable[[str], Tokens], sentence: str) -> Tokens:
    """Somebody else's tokenizer is not trusted, and what it complains of may quote the data."""
    try:
        found = split(sentence)
    except Exception as error:
        raise DataError(f"Expected the tokenizer to split sentences; it failed with {type(error).__name__}.") from None
    if not isinstance(found, list) or not all(isinstance(token, str) for token in found):
        raise DataError("Expected the tokenizer to give back a list of tokens.")
    return found


def _misprinted(tokens: Tokens, kind: str) -> Tokens:
    return _split(lambda _: misprints.named(kind).tokens(list(tokens)), "")


def _hit(rows: np.ndarray, bug: Bug) -> tuple[bool, np.ndarray]:
    """Whether the bug hits a user, and in which sentences; by their own bytes and a public seed.

    As for images: were it a share of all users, one who left would change what others hold.
    """
    user = bug.of == "examples" or _drawn(rows, f"{bug.seed} user") < bug.fraction
    share = bug.fraction if bug.of == "examples" else bug.share
    wrong = [user and _drawn(row, f"{bug.seed} sentence") < share for row in rows]
    return user if bug.of == "users" else any(wrong), np.array(wrong, bool)


def _drawn(held: np.ndarray, label: str) -> float:
    """A number in [0, 1) that looks random."""
    digest = hashlib.sha256(label.encode() + np.ascontiguousarray(held).tobytes()).digest()
    return int.from_bytes(digest[:7], "big") / 2**56


def _numbered(spoken: list[Tokens], text: Text, vocabulary: Vocabulary) -> tuple[np.ndarray, np.ndarray]:
    """The rows a user trains on, and the sentence that each came from."""
    made = [(place, row) for place, tokens in enumerate(spoken) for row in _of_sentence(tokens, text, vocabulary)]
    rows = np.stack([row for _, row in made]) if made else _blank(text, vocabulary)
    return rows, np.array([place for place, _ in made], np.int64)


def _of_sentence(tokens: Tokens, text: Text, vocabulary: Vocabulary) -> Iterator[np.ndarray]:
    """The words outside the vocabulary; or the sentence as a whole."""
    if text.model == "words":
        if tokens:
            yield vocabulary.numbered(tokens, text.width + 2)
        return
    for token in tokens:
        if token and token not in vocabulary:
            yield words.spelled(token, text.width + 2)


def _blank(text: Text, vocabulary: Vocabulary) -> np.ndarray:
    row = vocabulary.numbered([], text.width + 2) if text.model == "words" else words.spelled("", text.width + 2)
    return np.full((0, text.width + 2), PADDING, row.dtype)
