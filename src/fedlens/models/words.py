"""Sentences as bytes, tokens, vocabularies that say where they come from, and rows of numbers for language models.

A row is START, symbols, END, then -1 up to its width; what does not fit is cut, and a cut row has no END.
"""

import collections
import dataclasses
import functools
import hashlib
import json
import pathlib
import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from typing import Any

import numpy as np

from fedlens.core import files, functions, pins

SPELLING_START, SPELLING_END, SPELLING_SYMBOLS = 256, 257, 258  # after the bytes 0..255
PADDING = -1
SENTENCE_BYTES = 256
ALIKE = 0.8  # share of words in common; lists of two texts about one thing reach 0.75

_MOST_PROBLEMS = 1000  # lines that one error names
_ACCENT = "\u0300"  # stands for every combining mark, which `re` does not count as a part of a word
_TOKEN = re.compile(rf"<\w+>|@\w+|[\w{_ACCENT}]+(?:['’-][\w{_ACCENT}]+)*|[^\w\s{_ACCENT}]{_ACCENT}*")


def tokens(sentence: str) -> list[str]:
    """Lower-case words, with their inner ' and -; placeholders; every other mark by itself.

    >>> tokens("Well, it's @user's well-known <URL>!")
    ['well', ',', "it's", '@user', "'", 's', 'well-known', '<url>', '!']
    """
    sentence = sentence.lower()
    if sentence.isascii():
        return _TOKEN.findall(sentence)
    outline = "".join(_ACCENT if unicodedata.category(letter)[0] == "M" else letter for letter in sentence)
    return [sentence[slice(*token.span())] for token in _TOKEN.finditer(outline)]


TOKENIZERS: dict[str, Callable[[str], list[str]]] = {"plain": tokens, "whitespace": str.split}


def tokenizer(kind: str) -> Callable[[str], list[str]]:
    """One of ours, or a function from a sentence to its tokens of somebody else's: `package.module:function`."""
    if kind in TOKENIZERS:
        return TOKENIZERS[kind]
    return functions.opened(kind, TOKENIZERS, "a sentence")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Vocabulary:
    """Known words, most frequent first. The `provenance` says what it cost: a public list, or a charged release.

    >>> small = Vocabulary(words=("the", "court"), provenance="public list")
    >>> small.numbered(["the", "motion"], width=6)
    array([ 3,  0,  2,  4, -1, -1], dtype=int32)
    """

    words: tuple[str, ...]
    provenance: str
    # What else is kept beside its file: of a charged release, what it cost.
    facts: Mapping[str, Any] = dataclasses.field(default_factory=dict, compare=False, repr=False)

    def __post_init__(self) -> None:
        _check(self.words)

    def __len__(self) -> int:
        return len(self.words)

    def __contains__(self, word: object) -> bool:
        return word in self._numbers

    @functools.cached_property
    def _numbers(self) -> dict[str, int]:
        return {word: number for number, word in enumerate(self.words)}

    @property
    def unknown(self) -> int:
        return len(self.words)

    @property
    def start(self) -> int:
        return len(self.words) + 1

    @property
    def end(self) -> int:
        return len(self.words) + 2

    def number(self, word: str) -> int:
        """Of a word; `unknown` if it is none of ours."""
        return self._numbers.get(word, self.unknown)

    def numbered(self, tokens: Sequence[str], width: int) -> np.ndarray:
        inner = [self.number(word) for word in tokens[:width]]
        return _framed(inner, len(tokens) <= width - 2, self.start, self.end, width, np.int32)

    def named(self, row: np.ndarray) -> list[str | None]:
        """The words of a row; None is one we do not know."""
        inner = _unframed(row, self.start, self.end)
        return [self.words[number] if number < self.unknown else None for number in inner]

    @property
    def digest(self) -> str:
        """SHA-256 of the file that `save` writes: of the words, whatever their provenance."""
        return hashlib.sha256(self._content).hexdigest()

    @property
    def _content(self) -> bytes:
        return "".join(f"{word}\n" for word in self.words).encode()

    @functools.cached_property
    def marks(self) -> frozenset[str]:
        """Short hashes of the words, however they are ordered and whatever their case: to recognise a list by."""
        plain = {unicodedata.normalize("NFKC", word).casefold() for word in self.words}
        return frozenset(hashlib.sha256(word.encode("utf-8", "surrogateescape")).hexdigest()[:8] for word in plain)

    def resembles(self, marks: Set[str], named: bool) -> bool:
        """Whether most of it was taken from the list with these marks.

        Short public lists hold the words that are frequent everywhere, which long ones that were learnt hold too. So a
        list that is `named`, which says where it comes from, is only taken for the other if both are nearly the same.
        """
        whole = self.marks | marks if named else self.marks
        return bool(marks) and len(self.marks & marks) >= ALIKE * len(whole)

    def save(self, path: pathlib.Path | str) -> None:
        """The words, and beside them what is known about them: first, lest a list that was paid for pass for free."""
        about = {**self.facts, "provenance": self.provenance, "words_sha256": self.digest}
        files.write(_facts_path(path), json.dumps(about, indent=1, allow_nan=False))
        files.write(pathlib.Path(path), self._content)

    @classmethod
    def open(cls, path: pathlib.Path | str, provenance: str = "public list") -> "Vocabulary":
        """One word a line, UTF-8; every faulty line is named in one error.

        What `save` wrote beside the list is its provenance, and what it cost; it must be about these very words.
        """
        content = files.content(pathlib.Path(path))
        pins.check_declared(content, pathlib.Path(path))
        facts = _facts_of(pathlib.Path(path), hashlib.sha256(content).hexdigest())
        lines = content.removeprefix(b"\xef\xbb\xbf").split(b"\n")
        lines = lines[:-1] if lines[-1] == b"" else lines
        if not lines:
            raise ValueError("Expected a vocabulary of at least one word.")
        words = tuple(line.removesuffix(b"\r").decode("utf-8", "surrogateescape") for line in lines)
        return cls(words=words, provenance=facts.get("provenance", provenance), facts=facts)


def _facts_path(path: pathlib.Path | str) -> pathlib.Path:
    """vocab.txt.json, beside vocab.txt."""
    return pathlib.Path(f"{path}.json")


def _facts_of(path: pathlib.Path, digest: str) -> dict[str, Any]:
    """The provenance that a list came with and all that was told with it; empty where there is none."""
    held = _facts_path(path)
    damaged = f"Expected a whole {held.name} beside {path.name}; it is damaged."
    try:
        facts: dict[str, Any] = files.json_in(held, {"provenance": str, "words_sha256": str}, message=damaged)
    except FileNotFoundError:
        return {}
    if facts["words_sha256"] != digest:
        raise ValueError(f"Expected the words that {held.name} tells about; {path.name} was changed since.")
    return facts


def counted(sentences: Iterable[str], size: int, tokenizer_kind: str, source: str) -> Vocabulary:
    """The most frequent tokens of PUBLIC text; equally frequent ones in the order of the alphabet.

    >>> counted(["to be or not", "to be"], 2, "plain", "a play").words
    ('be', 'to')
    """
    split = tokenizer(tokenizer_kind)
    counts = collections.Counter(token for sentence in sentences for token in split(sentence))
    first = sorted(counts, key=lambda token: (-counts[token], token))[:size]
    return Vocabulary(
        words=tuple(first), provenance=f"the {len(first)} most frequent words of {source}, declared to be public"
    )


def _check(words: Sequence[str]) -> None:
    """All problems at once, by line: a list of words may be secret, so that none of them is quoted."""
    first: dict[str, int] = {}
    problems = []
    for line, word in enumerate(words, start=1):
        if first.setdefault(word, line) != line and word:
            problems.append(f"line {line} repeats line {first[word]}")
        if not word:
            problems.append(f"line {line} is empty")
        if any(letter.isspace() for letter in word):
            problems.append(f"line {line} contains a space")
        if any("\ud800" <= letter <= "\udfff" for letter in word):
            problems.append(f"line {line} is not UTF-8")
        if len(problems) > _MOST_PROBLEMS:
            problems[_MOST_PROBLEMS:] = ["and more"]
            break
    if problems:
        raise ValueError(f"Expected one word a line, UTF-8, without spaces, each once: {'; '.join(problems)}.")


def spelled(word: str, width: int) -> np.ndarray:
    """The UTF-8 bytes of a word as a row; a character that does not fit as a whole is left out.

    >>> spelled("né", width=6)
    array([256, 110, 195, 169, 257,  -1], dtype=int16)
    """
    whole = word[:width].encode("utf-8", "replace")
    ends = len(word) <= width and len(whole) <= width - 2
    return _framed(_cut(whole, width - 1), ends, SPELLING_START, SPELLING_END, width, np.int16)


def unspelled(row: np.ndarray) -> str:
    """The word of a row, whoever wrote it: what is no UTF-8 is replaced."""
    return bytes(_unframed(row, SPELLING_START, SPELLING_END)).decode("utf-8", "replace")


def as_row(sentence: str, width: int = SENTENCE_BYTES) -> np.ndarray:
    """UTF-8, cut between two characters, padded with zeros; NUL characters are dropped."""
    content = _cut(sentence.replace("\0", "")[:width].encode("utf-8", "replace"), width)
    return np.frombuffer(content.ljust(width, b"\0"), dtype=np.uint8)


def as_sentence(row: np.ndarray) -> str:
    return np.asarray(row, dtype=np.uint8).tobytes().replace(b"\0", b"").decode("utf-8", "replace")


def _cut(content: bytes, most: int) -> bytes:
    """At most so many bytes of UTF-8, without the first bytes of a character whose last ones are gone."""
    return content if len(content) <= most else content[: max(most, 0)].decode("utf-8", "ignore").encode()


def _framed(inner: Sequence[int], ends: bool, start: int, end: int, width: int, dtype: type) -> np.ndarray:
    if width < 2:
        raise ValueError(f"Expected width={width} >= 2.")
    row: np.ndarray = np.full(width, PADDING, dtype=dtype)
    written = [start, *inner, *([end] if ends else [])][:width]
    row[: len(written)] = written
    return row


def _unframed(row: np.ndarray, start: int, end: int) -> list[int]:
    """What stands before the first END, without padding and START."""
    symbols = [int(symbol) for symbol in row]
    until = symbols.index(end) if end in symbols else len(symbols)
    return [symbol for symbol in symbols[:until] if symbol not in (PADDING, start)]
