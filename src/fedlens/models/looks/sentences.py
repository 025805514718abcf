"""The readable blocks of a look at text: numbers of one sentence that a person can read, each in [-1, 1].

A sentence is a row of bytes. Bytes that no UTF-8 holds end its tokens, and say how frequent each is in a list of words
that everybody knows; zeros fill it up. Every row of bytes means something: the bounds hold for hostile ones.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterable

import numpy as np
import torch

from fedlens.models.words import Vocabulary

WIDTH = 320  # bytes of a row: of a sentence, and one more for each token
_TOKENS = 64  # of a sentence, that are looked at
_END = 0xF8  # the first of the bytes that end a token, and tell its rank
_RANKS = 10, 100, 1000  # among the words of the list; then those known at all, then all others
_UNKNOWN = len(_RANKS) + 1
CLASSES = (
    *("one of the 10 most frequent words", "one of the 100 most frequent words", "one of the 1000 most frequent words"),
    *("a rarer word", "an unknown word", "a punctuation mark", "a number"),
)
_MARK, _NUMBER = 5, 6  # among the classes
_PLACES = 6  # from the first token on, at which unknown ones are counted
_HASHED = 64  # cells that n-grams are hashed to
_BIG = 32.0  # tokens of a sentence that count as 1, and
_LONG = 16.0  # letters of a word: means are told in these units
_FINAL = "sdgetnry"  # letters that words end in
_LEADS = {  # first bytes of characters beyond ASCII, by what they write
    "of Latin-1 beyond letters": (0xC2, 0xC2),
    "accented Latin letters": (0xC3, 0xC3),
    "other Latin letters": (0xC4, 0xCC),
    "Greek letters": (0xCD, 0xCF),
    "Cyrillic letters": (0xD0, 0xD4),
    "Hebrew or Arabic letters": (0xD5, 0xDF),
    "letters of South Asia and Africa": (0xE0, 0xE1),
    "typographic marks and symbols": (0xE2, 0xE2),
    "Chinese or Japanese characters": (0xE3, 0xE9),
    "Korean syllables": (0xEA, 0xED),
    "characters for private use or of presentation": (0xEE, 0xEF),
    "emoji and other rare characters": (0xF0, 0xF7),
}
_SIGNS = {"a full stop": ".", "a question or exclamation mark": "?!", "a comma": ",", "an apostrophe": "'", "-": "-"}


def as_symbols(tokens: Iterable[str], known: Vocabulary, width: int = WIDTH) -> np.ndarray:
    """The row of a sentence; a token that does not fit as a whole is left out, and all after it.

    >>> as_symbols(["the", "né"], Vocabulary(words=("the",), provenance=""), width=9).tolist()
    [116, 104, 101, 248, 110, 195, 169, 252, 0]
    """
    row = bytearray()
    for token in tokens:
        letters = token.replace("\0", "").encode("utf-8", "replace")
        if len(row) + len(letters) >= width:
            break
        if letters:
            row += letters + bytes([_END + _rank(known.number(token), known.unknown)])
    return np.frombuffer(row.ljust(width, b"\0"), dtype=np.uint8).copy()


def _rank(number: int, unknown: int) -> int:
    return _UNKNOWN if number >= unknown else sum(number >= rank for rank in _RANKS)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TakenApart:
    """Rows of bytes, [n, width], taken apart into tokens, [n, tokens]."""

    symbols: torch.Tensor
    inside: torch.Tensor  # of a token: what is neither padding nor the end of one
    place: torch.Tensor  # which token a symbol belongs to; all beyond those that are looked at to one more
    there: torch.Tensor  # tokens, as 1.0 and 0.0
    kinds: torch.Tensor  # [n, tokens, classes], one of them 1.0 where there is a token
    counts: torch.Tensor  # [n, tokens, kinds]: how many characters of each
    names: torch.Tensor  # hashes of tokens

    @classmethod
    def of(cls, rows: torch.Tensor) -> "TakenApart":
        x = rows.long()
        ends = x >= _END
        inside = (x > 0) & ~ends
        place = (ends.long().cumsum(1) - ends.long()).clamp(max=_TOKENS)
        tables = _tables(str(x.device))
        within = _within(ends)
        kinds = torch.where(inside[..., None], tables.characters[x], 0.0)
        kinds = torch.cat([kinds, kinds[..., [_UPPER]] * (within == 0)[..., None]], 2)
        counts = _by_token(place, kinds)
        rank = _by_token(place, torch.where(ends, x - _END + 1.0, 0.0)[..., None])[..., 0]
        there = (rank > 0).float()
        word = (counts[..., _LOWER] + counts[..., _UPPER] + counts[..., _FOREIGN]) > 0
        number = ~word & (counts[..., _DIGIT] > 0)
        mark = ~word & ~number & (counts[..., _SIGN] > 0)
        kind = (rank - 1).clamp(min=0, max=_UNKNOWN)
        kind = torch.where(number, float(_NUMBER), torch.where(mark, float(_MARK), kind))
        every = torch.arange(len(CLASSES), device=x.device)
        hashed = torch.where(inside, tables.letters[x, within], 0)
        names = _by_token(place, hashed[..., None])[..., 0]
        kinds = (kind[..., None] == every) * there[..., None]
        return cls(symbols=x, inside=inside, place=place, there=there, kinds=kinds, counts=counts, names=names)

    @functools.cached_property
    def number(self) -> torch.Tensor:
        """[n, 1]: of tokens, at least 1."""
        return self.there.sum(1, keepdim=True).clamp(min=1.0)

    @functools.cached_property
    def words(self) -> torch.Tensor:
        """Which tokens are neither marks nor numbers."""
        return self.kinds[..., :_MARK].sum(2)

    @functools.cached_property
    def lengths(self) -> torch.Tensor:
        """Characters of each token."""
        return self.counts[..., _ANY]

    @functools.cached_property
    def unknown(self) -> torch.Tensor:
        return self.kinds[..., _UNKNOWN]

    def share(self, tokens: torch.Tensor, of: torch.Tensor | None = None) -> torch.Tensor:
        """[n, 1]: of its tokens, or of some of them."""
        whole = self.number if of is None else of.sum(1, keepdim=True).clamp(min=1.0)
        return tokens.sum(1, keepdim=True) / whole

    @functools.cached_property
    def following(self) -> torch.Tensor:
        """[n, tokens - 1]: where there is a token with another after it."""
        return self.there[:, :-1] * self.there[:, 1:]

    @functools.cached_property
    def last(self) -> torch.Tensor:
        """[n, tokens]: the last one."""
        return self.there - torch.nn.functional.pad(self.following, (0, 1))

    @functools.cached_property
    def histogram(self) -> torch.Tensor:
        """[n, 256]: how often each byte stands in its tokens."""
        zero = torch.zeros_like(self.symbols[:, :1], dtype=torch.float32).expand(-1, 256)
        return zero.scatter_add(1, self.symbols, self.inside.float())


_ANY, _LOWER, _UPPER, _DIGIT, _SIGN, _SPACE, _FOREIGN, _CAPITAL = range(8)  # kinds of characters


def _by_token(place: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
    """Sums over the symbols of each token."""
    many = numbers.shape[-1]
    zero = torch.zeros_like(numbers[:, :1]).expand(-1, _TOKENS + 1, -1)
    return zero.scatter_add(1, place[..., None].expand(-1, -1, many), numbers)[:, :_TOKENS]


def _within(ends: torch.Tensor) -> torch.Tensor:
    """How many symbols of its token stand before each, up to 15."""
    at = torch.arange(ends.shape[1], device=ends.device)
    after = torch.where(ends, at + 1, 0).cummax(1).values
    return (at - torch.nn.functional.pad(after[:, :-1], (1, 0))).clamp(max=_POSITIONS - 1)


# The blocks: [n, numbers]


def length(s: TakenApart) -> torch.Tensor:
    many = s.there.sum(1)
    bins = [(many >= low) & (many <= high) for low, high in _SPANS]
    return torch.stack([(many / _BIG).clamp(max=1.0), *(one.float() for one in bins)], 1)


def words(s: TakenApart) -> torch.Tensor:
    """How long they are."""
    mean = s.share((s.lengths / _LONG).clamp(max=1.0) * s.words, s.words)
    bins = [(s.lengths >= low) & (s.lengths <= high) for low, high in _LETTERS]
    return torch.cat([mean, *(s.share(one * s.words, s.words) for one in bins)], 1)


def unknown(s: TakenApart) -> torch.Tensor:
    return torch.cat([s.share(s.unknown), s.unknown[:, :_PLACES], (s.unknown * s.last).sum(1, keepdim=True)], 1)


def ranks(s: TakenApart) -> torch.Tensor:
    return s.kinds.sum(1) / s.number


def first(s: TakenApart) -> torch.Tensor:
    return s.kinds[:, 0]


def last(s: TakenApart) -> torch.Tensor:
    return (s.kinds * s.last[..., None]).sum(1)


def digits(s: TakenApart) -> torch.Tensor:
    held = (s.counts[..., _DIGIT] > 0) * s.there
    every = s.counts[..., _ANY].sum(1, keepdim=True).clamp(min=1.0)
    return torch.cat([held.amax(1, keepdim=True), s.share(held), s.counts[..., _DIGIT].sum(1, keepdim=True) / every], 1)


def marks(s: TakenApart) -> torch.Tensor:
    signs = s.histogram @ _tables(str(s.symbols.device)).signs
    ending = (s.kinds[..., _MARK] * s.last).sum(1, keepdim=True)
    return torch.cat([s.share(s.kinds[..., _MARK]), ending, (signs > 0).float()], 1)


def spaces(s: TakenApart) -> torch.Tensor:
    held = (s.counts[..., _SPACE] > 0) * s.there
    return torch.cat([held[:, :1], held.amax(1, keepdim=True), s.share(held)], 1)


def case(s: TakenApart) -> torch.Tensor:
    low, up, capital = s.counts[..., _LOWER] > 0, s.counts[..., _UPPER], s.counts[..., _CAPITAL] > 0
    small, loud = low & (up == 0), ~low & (up > 1)
    titled = capital & low & (up == 1)
    mixed = low & (up > 0) & ~titled
    shares = [s.share(one * s.words, s.words) for one in (small, loud, titled, mixed)]
    return torch.cat([*shares, ((up > 0) * s.there)[:, :1]], 1)


def scripts(s: TakenApart) -> torch.Tensor:
    return (s.histogram @ _tables(str(s.symbols.device)).leads > 0).float()


def repeats(s: TakenApart) -> torch.Tensor:
    again = (s.names[:, 1:] == s.names[:, :-1]) * s.following
    later = (s.names[:, 2:] == s.names[:, :-2]) * s.there[:, 2:]
    inside = s.inside[:, 1:] & s.inside[:, :-1]
    double = ((s.symbols[:, 1:] == s.symbols[:, :-1]) & inside).float().sum(1, keepdim=True)
    every = inside.float().sum(1, keepdim=True).clamp(min=1.0)
    return torch.cat([again[:, :1], s.share(again), s.share(later), double / every], 1)


def letters(s: TakenApart) -> torch.Tensor:
    """Of the letters, the share of vowels, and of each."""
    counts = s.histogram @ _tables(str(s.symbols.device)).latin
    shares = counts / counts.sum(1, keepdim=True).clamp(min=1.0)
    vowels = shares[:, [ord(letter) - ord("a") for letter in "aeiou"]].sum(1, keepdim=True)
    return torch.cat([vowels, shares], 1)


def endings(s: TakenApart) -> torch.Tensor:
    """Of the words of three letters and more, what they end in."""
    final = torch.nn.functional.pad((s.inside[:, :-1] & (s.symbols[:, 1:] >= _END)).float(), (0, 1))
    made = _by_token(s.place, _tables(str(s.symbols.device)).final[s.symbols] * final[..., None])
    long = s.words * (s.lengths >= 3)
    return (made * long[..., None]).sum(1) / long.sum(1, keepdim=True).clamp(min=1.0)


def pairs(s: TakenApart) -> torch.Tensor:
    """Which class of token follows which."""
    counts = torch.einsum("nta,ntb->nab", s.kinds[:, :-1], s.kinds[:, 1:])
    return counts.flatten(1) / s.following.sum(1)[:, None].clamp(min=1.0)


def ngrams(s: TakenApart) -> torch.Tensor:
    """Three symbols after each other, hashed: the end of a token is one as well."""
    stream, grams = s.symbols.clamp(max=_END), _tables(str(s.symbols.device)).grams
    there = (s.symbols > 0).float()
    one, two, three = (stream[:, at : stream.shape[1] - 2 + at] for at in range(3))
    hashed = grams[0][one] ^ grams[1][two] ^ grams[2][three]
    return _hashed(hashed, there[:, :-2] * there[:, 1:-1] * there[:, 2:])


def vocabulary(s: TakenApart) -> torch.Tensor:
    """Tokens, hashed."""
    return _hashed(s.names, s.there)


def _hashed(names: torch.Tensor, there: torch.Tensor) -> torch.Tensor:
    """[n, cells]: shares of what is there, each with the sign of its hash."""
    sign = (names >> 16 & 1) * 2.0 - 1.0
    zero = torch.zeros_like(there[:, :1]).expand(-1, _HASHED)
    return zero.scatter_add(1, names % _HASHED, sign * there) / there.sum(1, keepdim=True).clamp(min=1.0)


_SPANS = (0, 2), (3, 6), (7, 12), (13, 24), (25, _TOKENS)
_LETTERS = (1, 1), (2, 2), (3, 3), (4, 4), (5, 5), (6, 7), (8, 10), (11, WIDTH)


@dataclasses.dataclass(frozen=True, kw_only=True)
class BlockNumber:
    """What one number of a block is called; `unit` is what 1 stands for, in plain numbers or in percent."""

    says: str
    unit: float = 100.0
    suffix: str = "%"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Described:
    """A block: how it is made of sentences, and what its numbers are called."""

    made: Callable[[TakenApart], torch.Tensor]
    numbers: tuple[BlockNumber, ...]
    # The least that a number is said to vary: of the sentences, what is new in 1 of 400 is so large; of parts, it is
    # less, since many make up a sentence.
    least: float = 0.05


def _named(made: Callable[[TakenApart], torch.Tensor], *says: str | BlockNumber, least: float = 0.05) -> Described:
    numbers = tuple(one if isinstance(one, BlockNumber) else BlockNumber(says=one) for one in says)
    return Described(made=made, numbers=numbers, least=least)


def _between(spans: Iterable[tuple[int, int]], most: int) -> list[str]:
    """
    >>> _between([(1, 1), (2, 4), (5, 9)], 9)
    ['1', '2 to 4', '5 or more']
    """
    return [
        f"{low} or more" if high == most else f"{low}" if low == high else f"{low} to {high}" for low, high in spans
    ]


_OF_PARTS = 0.01
_ORDINALS = "first", "second", "third", "fourth", "fifth", "sixth"
TEXT_BLOCKS: dict[str, Described] = {
    "length": _named(
        length,
        BlockNumber(says="tokens in a sentence", unit=_BIG, suffix=""),
        *(f"sentences of {span} tokens" for span in _between(_SPANS, _TOKENS)),
    ),
    "words": _named(
        words,
        BlockNumber(says="characters in a word", unit=_LONG, suffix=""),
        *(f"words of {span} characters" for span in _between(_LETTERS, WIDTH)),
    ),
    "unknown": _named(
        unknown,
        "unknown words among the tokens",
        *(f"sentences whose {place} token is an unknown word" for place in _ORDINALS),
        "sentences whose last token is an unknown word",
    ),
    "ranks": _named(ranks, *(f"tokens that are {kind}" for kind in CLASSES)),
    "first": _named(first, *(f"sentences that begin with {kind}" for kind in CLASSES)),
    "last": _named(last, *(f"sentences that end with {kind}" for kind in CLASSES)),
    "digits": _named(digits, "sentences with a digit", "tokens with a digit", "digits among the characters"),
    "marks": _named(
        marks,
        "punctuation marks among the tokens",
        "sentences that end with a mark",
        *(f"sentences with {sign}" for sign in _SIGNS),
        "sentences with another mark",
    ),
    "spaces": _named(
        spaces,
        "sentences whose first token holds a space",
        "sentences with a token that holds a space",
        "tokens that hold a space",
    ),
    "case": _named(
        case,
        *(f"words in {kind}" for kind in ("lower case", "upper case", "title case", "mixed case")),
        "sentences whose first token holds a capital",
    ),
    "scripts": _named(scripts, *(f"sentences with {kind}" for kind in _LEADS), "sentences with control characters"),
    "repeats": _named(
        repeats,
        "sentences that begin with the same token twice",
        "tokens that repeat the one before",
        "tokens that repeat the last but one",
        "letters that repeat the one before",
    ),
    "letters": _named(
        letters, "vowels among the letters", *(f"{chr(97 + at)} among the letters" for at in range(26)), least=_OF_PARTS
    ),
    "endings": _named(
        endings,
        *(f"words that end in {letter}" for letter in _FINAL),
        "words that end in another letter or sign",
    ),
    "pairs": _named(pairs, *(f"{one} before {other}" for one in CLASSES for other in CLASSES), least=_OF_PARTS),
    "n-grams": _named(ngrams, *("hashed letters" for _ in range(_HASHED)), least=_OF_PARTS),
    "vocabulary": _named(vocabulary, *("hashed words" for _ in range(_HASHED)), least=_OF_PARTS),
}
HASHED = "n-grams", "vocabulary"  # whose numbers have no names


def numbers_of(rows: torch.Tensor) -> dict[str, torch.Tensor]:
    """By their block: [n, numbers] of sentences, [n, width]."""
    taken_apart = TakenApart.of(rows)
    return {name: block.made(taken_apart) for name, block in TEXT_BLOCKS.items()}


def text_sizes() -> dict[str, int]:
    """By their block: how many numbers it has."""
    return {name: len(block.numbers) for name, block in TEXT_BLOCKS.items()}


# Tables by the byte


_POSITIONS = 16  # of a token, at which letters hash otherwise


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Tables:
    characters: torch.Tensor  # [256, kinds]: of characters, but for first capitals
    leads: torch.Tensor  # [256, scripts]
    signs: torch.Tensor  # [256, marks]
    latin: torch.Tensor  # [256, 26]
    final: torch.Tensor  # [256, endings]
    letters: torch.Tensor  # [256, positions]: hashes
    grams: torch.Tensor  # [3, 256]: hashes


@functools.lru_cache(maxsize=4)
def _tables(device: str) -> _Tables:
    byte = np.arange(256)
    lower, upper = (byte >= 97) & (byte <= 122), (byte >= 65) & (byte <= 90)
    digit, space = (byte >= 48) & (byte <= 57), (byte == 32) | ((byte >= 9) & (byte <= 13))
    foreign = (byte >= 0xC2) & (byte < _END)
    control = ((byte < 32) & ~space & (byte > 0)) | (byte == 127)
    sign = (byte > 32) & (byte < 127) & ~lower & ~upper & ~digit
    characters = ((byte > 0) & (byte < 128)) | foreign
    kinds = np.stack([characters, lower, upper, digit, sign, space, foreign], 1)
    leads = [(byte >= low) & (byte <= high) for low, high in _LEADS.values()]
    signs = [np.isin(byte, list(map(ord, one))) for one in _SIGNS.values()]
    others = sign & ~np.any(signs, axis=0)
    latin = np.stack([(byte == 97 + at) | (byte == 65 + at) for at in range(26)], 1)
    final = [latin[:, ord(letter) - 97] for letter in _FINAL]
    rest = ~np.any(final, axis=0)

    def numbers(columns: Iterable[np.ndarray]) -> torch.Tensor:
        return torch.from_numpy(np.stack(list(columns), 1)).float().to(device)

    return _Tables(
        characters=torch.from_numpy(kinds).float().to(device),
        leads=numbers([*leads, control]),
        signs=numbers([*signs, others]),
        latin=torch.from_numpy(latin).float().to(device),
        final=numbers([*final, rest]),
        letters=torch.from_numpy(_random(256 * _POSITIONS).reshape(256, _POSITIONS)).to(device),
        grams=torch.from_numpy(_random(3 * 256, start=2**20).reshape(3, 256)).to(device),
    )


def _random(count: int, start: int = 0) -> np.ndarray:
    """Numbers of 31 bits that look random (splitmix64, Steele et al. 2014), the same ones wherever they are made."""
    with np.errstate(over="ignore"):
        z = (np.arange(1, count + 1, dtype=np.uint64) + np.uint64(start)) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return ((z ^ (z >> np.uint64(31))) >> np.uint64(33)).astype(np.int64)
