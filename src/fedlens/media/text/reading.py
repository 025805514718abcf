"""PRIVATE. What a recipe of text needs beside the data: sentences, with a bug planted, as rows for a language model."""

import contextlib
import hashlib
from collections.abc import Callable, Iterator
from typing import TypeVar

import numpy as np

from fedlens.data.population import DataError, Population, SchemaError
from fedlens.media.images import reading as data
from fedlens.media.text import faults as misprints
from fedlens.models import words
from fedlens.models.words import PADDING, Vocabulary
from fedlens.recipes.recipe import Recipe
from fedlens.recipes.tables import Bug, Text

Tokens = list[str]
Given = TypeVar("Given")


def of_text(found: Population) -> Population:
    """The same, if it holds sentences."""
    column = found.columns.get("text")
    if column is None or column.dtype != np.uint8 or column.ndim != 2:
        raise SchemaError("Expected a population of text, with a column 'text' of bytes (fedlens data convert --text).")
    return found


def population(recipe: Recipe, sentences: Population) -> Population:
    """The users with their rows in the column x: unknown words, or whole sentences; and columns to select by.

    One user after the other, so that nobody decides about anybody else.
    """
    text, vocabulary, bug = recipe.text, recipe.vocabulary, recipe.data.bug
    of_text(sentences)
    if text is None:
        raise ValueError("Expected a table [text] in the recipe.")
    if bug and bug.mark in sentences.columns:
        raise SchemaError(f"Expected no column named {bug.mark!r} yet: it is to mark whom the bug hit.")
    attributes = _attributes(sentences, recipe)
    split, misprint = words.tokenizer(text.tokenizer), misprints.named(bug.kind).tokens if bug else None
    made, origins, marks = [_blank(text, vocabulary)], [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    for start, count in zip(sentences.starts, sentences.counts, strict=True):
        own = np.asarray(sentences.columns["text"][start : start + count])
        spoken = said(own, split)
        marked = False
        if bug and misprint:
            marked, wrong = _hit(own, bug)
            for place in np.flatnonzero(wrong):
                spoken[place] = _tokens(bug.kind, misprint, spoken[place])
        rows, origin = _numbered(spoken, text, vocabulary)
        made.append(rows)
        origins.append(start + origin)
        marks.append(np.full(len(rows), marked, np.int64))
    origin = np.concatenate(origins)
    columns = {name: column[origin] for name, column in attributes.items()}
    columns |= {"x": np.concatenate(made)} | ({bug.mark: np.concatenate(marks)} if bug and bug.mark else {})
    return Population.from_arrays(sentences.name, columns, np.array([len(rows) for rows in made[1:]], np.int64))


def _attributes(sentences: Population, recipe: Recipe) -> dict[str, np.ndarray]:
    """The columns that selections go by, as far as they are there: no others are needed."""
    asked = {selection.attribute or "" for selection in recipe.selections.values()} - {"x"}  # which is what we make
    found = sorted(asked & sentences.columns.keys())
    return {name: data.as_whole_numbers(sentences.columns[name], name) for name in found}


def said(rows: np.ndarray, split: Callable[[str], Tokens]) -> list[Tokens]:
    """The tokens of each of a user's sentences."""
    return [_tokens("the tokenizer", split, words.as_sentence(row)) for row in rows]


def _tokens(of: str, change: Callable[[Given], Tokens], given: Given) -> Tokens:
    """Somebody else's code is not trusted: what it prints, and what it complains of, may quote the data."""
    try:
        with contextlib.redirect_stdout(None), contextlib.redirect_stderr(None):
            found = change(given)
    except (Exception, SystemExit):
        raise DataError(f"Expected {of} to give back tokens; it failed.") from None
    if not isinstance(found, list) or not all(isinstance(token, str) for token in found):
        raise DataError(f"Expected {of} to give back a list of tokens; it gave something else.")
    return list(found)


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
