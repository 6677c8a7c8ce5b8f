"""Read a text that comes in pieces of any size, as if it were there as a whole.

A reader's methods are generators: they yield when they need more text, and are resumed when there is
more, or when the text has ended. So who reads can be written as for a whole text (`yield from`).
"""

from collections.abc import Callable, Generator, Sequence
from typing import TypeAlias, TypeVar

_T = TypeVar("_T")

Steps: TypeAlias = Generator[None, None, _T]
"""What reads, and its result at the end. It yields nothing: only that it needs more text."""

SPACE = " \t\r\n"


class UnreadableError(Exception):
    """The text is not what was to be read."""


class Reader:
    """The text that came and was not read yet."""

    def __init__(self) -> None:
        self.rest = ""
        self.is_ended = False
        self.taken: list[str] | None = None  # what was read since `record`

    def more(self) -> Steps[bool]:
        """Wait for more text; False: there is none."""
        if self.is_ended:
            return False
        yield
        return True

    def take(self, count: int) -> str:
        """Read so many characters that are there."""
        text, self.rest = self.rest[:count], self.rest[count:]
        if self.taken is not None:
            self.taken.append(text)
        return text

    def put_back(self, text: str) -> None:
        """Have a text that was just read come again."""
        self.rest = text + self.rest
        if self.taken is not None:
            self.taken[:] = ["".join(self.taken).removesuffix(text)]

    def space(self) -> Steps[str]:
        """Read white space, and return it."""
        found = ""
        while True:
            inner = self.rest.lstrip(SPACE)
            found += self.take(len(self.rest) - len(inner))
            if inner or not (yield from self.more()):
                return found

    def peek(self) -> Steps[str]:
        """The next character; empty at the end."""
        while not self.rest:
            if not (yield from self.more()):
                return ""
        return self.rest[0]

    def starts(self, expected: str) -> Steps[bool]:
        """Whether a text comes next."""
        while len(self.rest) < len(expected) and expected.startswith(self.rest):
            if not (yield from self.more()):
                return False
        return self.rest.startswith(expected)

    def skip(self, expected: str, *, or_end: bool = False) -> Steps[bool]:
        """Read a text if it comes next. Where it has white space, there may be any.

        Args:
            expected: the text.
            or_end: its beginning is enough where all text ends.
        """
        for part in expected.split():
            yield from self.space()
            is_there = yield from self.starts(part)
            if not is_there and not (or_end and self.is_ended and part.startswith(self.rest)):
                return False
            self.take(len(part))
        return True

    def expect(self, expected: str) -> Steps[None]:
        """Read a text.

        Raises:
            UnreadableError: it does not come next.
        """
        if not (yield from self.skip(expected)):
            raise UnreadableError

    def until(self, ends: Sequence[str], emit: Callable[[str], None]) -> Steps[str]:
        """Read to the first of several texts, and read that as well.

        What may be the beginning of one is held back.

        Returns:
            The text that came; empty: the text is over.
        """
        while True:
            place, found = len(self.rest), ""
            for end in ends:
                at = self.rest.find(end)
                at = at if at >= 0 else len(self.rest) - overlap(self.rest, end)
                if at < place or (at == place and len(end) > len(found) and at < len(self.rest)):
                    place, found = at, end
            emit(self.take(place))
            if found and self.rest.startswith(found):
                return self.take(len(found))
            if (yield from self.more()):
                continue
            # What was held back for a text that did not come may begin with a shorter one.
            shorter = [end for end in ends if self.rest.startswith(end)]
            if shorter:
                return self.take(len(max(shorter, key=len)))
            emit(self.take(1))
            if not self.rest:
                return ""

    def text_until(self, end: str) -> Steps[str]:
        """Read to a text, and read that as well; return what is before it.

        Raises:
            UnreadableError: the text is over before.
        """
        parts: list[str] = []
        if not (yield from self.until((end,), parts.append)):
            raise UnreadableError
        return "".join(parts)


def overlap(text: str, end: str) -> int:
    """How many characters at the end of a text are the beginning of another, and not all of it."""
    for size in range(min(len(text), len(end) - 1), 0, -1):
        if text.endswith(end[:size]):
            return size
    return 0


def json_value(reader: Reader, emit: Callable[[str], None]) -> Steps[None]:
    """Read one JSON value, and pass its text on as it comes.

    Raises:
        UnreadableError: no value begins here, or the text is over before its end.
    """
    yield from reader.space()
    first = yield from reader.peek()
    if first not in '{["' and not (first and first in "-0123456789tfn"):
        raise UnreadableError
    depth, in_string, is_escaped = 0, False, False
    is_word = first not in '{["'
    while True:
        for count, char in enumerate(reader.rest):
            if in_string:
                is_closing = char == '"' and not is_escaped
                is_escaped = char == "\\" and not is_escaped
                in_string = not is_closing
            elif is_word:
                if char in SPACE + ",}]<[":
                    emit(reader.take(count))
                    return
                continue
            elif char == '"':
                in_string = True
            elif char in "{[":
                depth += 1
            elif char in "}]":
                depth -= 1
            if not in_string and not is_word and depth == 0:
                emit(reader.take(count + 1))
                return
        emit(reader.take(len(reader.rest)))
        if not (yield from reader.more()):
            if is_word:
                return
            raise UnreadableError
