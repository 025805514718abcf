"""PRIVATE. JSON read piece by piece: memory does not grow with the length of its lists, objects and strings."""

import codecs
import json
import re
from collections.abc import Iterator
from typing import BinaryIO

from fedlens.data.population import DataError

_CHUNK = 2**16  # bytes read at a time
_AHEAD = 2**10  # characters in view, at least: any piece but a string is shorter
_DEPTH = 100  # of values that are passed over
_RUN = re.compile(r'(?:[^"\\\x00-\x1f\ud800-\udfff]+|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*+')
_WHOLE = re.compile(r"-?(?:0|[1-9][0-9]{0,18})(?![0-9.eE])")
_OTHER = re.compile(r"true|false|null|NaN|-?Infinity|-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?(?![\w.])")
_HALF = re.compile("[\ud800-\udfff]")


class Json:
    """The values of a file, one after the other: whoever asks says what should come next.

    `where` is what errors call the place; it may be changed on the way. What stands there is never quoted.

    >>> import io
    >>> read = Json(io.BytesIO(b'{"a": [1, 2], "b": "three"}'), "toy.json")
    >>> [read.string(80) if key == "b" else [read.whole() for _ in read.items()] for key in read.members()]
    [[1, 2], 'three']
    """

    def __init__(self, file: BinaryIO, where: str, spaces: str = " \t\r\n") -> None:
        self.where = where
        self._file, self._ended = file, False
        self._decoder = codecs.getincrementaldecoder("utf-8-sig")("surrogateescape")  # bad bytes stay recognisable
        self._text, self._at = "", 0
        self._spaces = re.compile(f"[{spaces}]*")

    def peek(self) -> str:
        """The first character of what comes next; nothing at the end."""
        self._fill()
        self._at = self._spaces.match(self._text, self._at).end()  # type: ignore[union-attr]
        while len(self._text) - self._at < _AHEAD and not self._ended:  # behind many spaces
            self._fill()
            self._at = self._spaces.match(self._text, self._at).end()  # type: ignore[union-attr]
        return self._text[self._at : self._at + 1]

    def take(self, mark: str) -> None:
        if self.peek() != mark:
            raise self.damaged()
        self._at += len(mark)

    def items(self) -> Iterator[None]:
        """Stops before every item of a list; whoever asks reads it."""
        return self._between("[", "]")

    def members(self) -> Iterator[str]:
        """Stops before every value of an object; whoever asks reads it."""
        for _ in self._between("{", "}"):
            key = self.string(_AHEAD)
            self.take(":")
            yield key

    def string(self, most: int) -> str:
        """The next string, or as many of its first characters."""
        if (mark := self.peek()) != '"':
            raise self.other("text") if mark in "{[-0123456789tfnNI" and mark else self.damaged()
        self._at += 1
        kept: list[str] = []
        length = 0
        while True:
            self._fill()
            run = _RUN.match(self._text, self._at).group()  # type: ignore[union-attr]
            self._at += len(run)
            if length < most:
                kept.append(json.loads(f'"{run}"') if "\\" in run else run)
                length += len(kept[-1])
            mark = self._text[self._at : self._at + 1]
            if mark == '"':
                self._at += 1
                return self._paired("".join(kept), cut=length >= most)[:most]
            if not run:
                raise self.not_utf8() if _HALF.match(mark) else self.damaged()

    def whole(self, what: str = "a whole number") -> int:
        """The next value, a whole number of 64 bits; errors say that `what` was expected."""
        mark = self.peek()
        number = _WHOLE.match(self._text, self._at)
        if not number or not -(2**63) <= int(number.group()) < 2**63:
            raise self.other(what) if mark else self.damaged()
        self._at = number.end()
        return int(number.group())

    def skip(self, depth: int = 0) -> None:
        """Passes over the next value, whatever it is."""
        mark = self.peek()
        if depth > _DEPTH:
            raise self.damaged()
        if mark == '"':
            self.string(0)
        elif mark == "{":
            for _ in self.members():
                self.skip(depth + 1)
        elif mark == "[":
            for _ in self.items():
                self.skip(depth + 1)
        elif other := _OTHER.match(self._text, self._at):
            self._at = other.end()
        else:
            raise self.damaged()

    def damaged(self) -> DataError:
        return DataError(f"Expected whole JSON in {self.where}; it is cut short or damaged.")

    def not_utf8(self) -> DataError:
        return DataError(f"Expected valid UTF-8 in {self.where}; it holds something else.")

    def other(self, what: str) -> DataError:
        return DataError(f"Expected {what} in {self.where}; it holds something else.")

    def _between(self, opening: str, closing: str) -> Iterator[None]:
        if self.peek() != opening:
            raise self.other("a list" if opening == "[" else "an object") if self.peek() else self.damaged()
        self._at += 1
        if self.peek() != closing:
            yield
            while self.peek() == ",":
                self._at += 1
                yield
        self.take(closing)

    def _fill(self) -> None:
        while len(self._text) - self._at < _AHEAD and not self._ended:
            chunk = self._file.read(_CHUNK)
            self._ended = not chunk
            self._text = self._text[self._at :] + self._decoder.decode(chunk, not chunk)
            self._at = 0

    def _paired(self, text: str, cut: bool) -> str:
        """Escaped halves of one character, as JSON writes those beyond 16 bits, become that character."""
        if not _HALF.search(text):
            return text
        whole = text[:-1] if cut and _HALF.match(text[-1]) else text
        try:
            return whole.encode("utf-16", "surrogatepass").decode("utf-16")
        except UnicodeDecodeError:
            raise self.not_utf8() from None
