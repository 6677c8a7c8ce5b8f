r"""Formulas of TeX as a line of Unicode, as far as that can show them. Pure.

`\frac{-b \pm \sqrt{b^2 - 4ac}}{2a}` is `(−b ± √(b² − 4ac))/(2a)`. What has a command that is not known
here, such as a matrix, stays TeX: half of a formula would say something else.
"""
# ruff: noqa: RUF001, RUF002, S105 - signs of mathematics look like letters, and tokens are those of TeX

import re
from collections.abc import Mapping
from typing import Final

from potluck_app.viewmodels import tex_symbols as symbols

_LONGEST: Final = 2000  # characters
_DEEPEST: Final = 30  # groups and arguments within each other
_TOKEN: Final = re.compile(
    r"(?P<line>\\\\\*?(?:\[\s*[-+]?(?:[\d.]+\s*[a-z]{2}|[\d.]*\\[a-z]+)\s*\])?)"
    r"|\\[A-Za-z]+\*?|\\.|\s+|.",
    re.DOTALL,
)
"""A new `line` may say how far below it is: `\\\\[6pt]`."""
_LONG_WORD: Final = 2  # letters; a longer index is easier to read on the line
_OPERATORS: Final = frozenset(" =+−±∓·×÷<>≤≥≠≈≡∼∝,;:|/→⇒∈\n([⟨{")
_NAMES: Final = symbols.FUNCTIONS | {"\\operatorname", "\\operatorname*"}
_AFTER_NAMES: Final = frozenset(("\\left", "\\,", "\\!", "\\right", "\\\\", "\\limits"))
_DIVIDES: Final = frozenset("/÷:")
_ENDS_FACTOR: Final = frozenset(")]}⟩!′")  # beside letters and digits
_WHITE: Final = re.compile(r"[^\S\n]+")


class _NotKnownError(Exception):
    """The formula has something that is not known here, or does not end."""


def readable(formula: str) -> str | None:
    r"""Return a formula in Unicode, of several lines if it has `\\`; None: it stays as it is."""
    if len(formula) > _LONGEST:
        return None
    try:
        text = _Reader(formula).read()
    except _NotKnownError:
        return None
    lines = (_WHITE.sub(" ", line).strip() for line in text.splitlines())
    return "\n".join(line for line in lines if line) or None


class _Reader:
    """Reads the tokens of a formula from left to right."""

    def __init__(self, formula: str) -> None:
        self._tokens = ["\\\\" if t["line"] else t[0] for t in _TOKEN.finditer(formula)]
        self._at = self._depth = 0

    def read(self) -> str:
        text = self._sequence(until=None)
        if self._at < len(self._tokens):
            raise _NotKnownError
        return text

    def _peek(self) -> str | None:
        return self._tokens[self._at] if self._at < len(self._tokens) else None

    def _next(self) -> str:
        token = self._peek()
        if token is None:
            raise _NotKnownError
        self._at += 1
        return token

    def _sequence(self, until: str | None) -> str:
        """Read up to this token, or to the end."""
        said = ""
        while (token := self._peek()) != until:
            if token is None or token == "}":
                raise _NotKnownError
            if token in symbols.FRACTIONS:
                said += self._fraction(said)
                continue
            if token in _NAMES and _is_factor(said):
                said += " "
            part = self._part()
            is_apart = token != "{" or "/" not in part or self._stands_alone(said)
            said += part if is_apart or _BRACKETS.fullmatch(part) else f"({part})"
        if until is not None:
            self._next()
        return said

    def _fraction(self, before: str) -> str:
        """A fraction, in brackets where something is multiplied by it."""
        self._next()
        over, under = _bracketed(self._argument(), is_over=True), _bracketed(self._argument())
        return f"{over}/{under}" if self._stands_alone(before) else f"({over}/{under})"

    def _stands_alone(self, before: str) -> bool:
        """Whether what was read is multiplied by nothing, divides nothing and has no power."""
        follows = before.rstrip(" ")[-1:] in ("", *_OPERATORS - _DIVIDES)
        return follows and self._ends_here()

    def _ends_here(self) -> bool:
        """Whether no factor and no power comes next."""
        ahead = next((t for t in self._tokens[self._at :] if not t.isspace()), "")
        if ahead in ("", "}", ")", "]", "&", "\\\\", "\\right", "."):
            return True
        return symbols.SIGNS.get(ahead, ahead) in _OPERATORS - {"(", "[", "{", "⟨"}

    def _part(self) -> str:
        """Read the next token with its arguments."""
        self._depth += 1
        if self._depth > _DEEPEST:
            raise _NotKnownError
        try:
            return self._read_part()
        finally:
            self._depth -= 1

    def _read_part(self) -> str:
        token = self._next()
        if token == "{":
            return self._sequence("}")
        if token in "^_":
            return self._script(token)
        if not token.startswith("\\"):
            return symbols.CHARACTERS.get(token, token)
        return self._command(token)

    def _command(self, token: str) -> str:
        if token in symbols.SIGNS:
            return symbols.SIGNS[token]
        if token in _NAMES:
            name = token[1:] if token in symbols.FUNCTIONS else self._verbatim()
            follows = self._peek() or ""
            is_close = follows[:1].isalnum() or follows.startswith("\\")
            return f"{name} " if is_close and follows not in _AFTER_NAMES else name
        if token in symbols.PLAIN:
            return self._argument()
        if token in symbols.TEXTS:
            return self._verbatim()
        if token in symbols.SIZES:
            return "" if self._peek() != "." else self._skip()
        if token == "\\sqrt":
            return self._root()
        if token in symbols.MARKS:
            letter = self._argument()
            if len(letter) == 1:
                return letter + symbols.MARKS[token]
        if token in ("\\mathbb", "\\mathds"):
            letters = self._argument()
            if all(letter in symbols.DOUBLE for letter in letters):
                return "".join(symbols.DOUBLE[letter] for letter in letters)
        if token in ("\\begin", "\\end") and self._verbatim() in symbols.ROWS:
            return ""
        raise _NotKnownError

    def _skip(self) -> str:
        self._next()
        return ""

    def _argument(self) -> str:
        """Read a group, or the one token that stands in its place."""
        while (self._peek() or "").isspace():
            self._next()
        return self._part()

    def _verbatim(self) -> str:
        """Read a group of words, with their spaces."""
        if self._next() != "{":
            raise _NotKnownError
        words = ""
        while (token := self._next()) != "}":
            if token.startswith("\\") or token == "{":
                raise _NotKnownError
            words += token
        return words

    def _root(self) -> str:
        degree = ""
        if self._peek() == "[":
            self._next()
            degree = _raised(self._sequence("]"), symbols.SUPERSCRIPTS) or ""
            if not degree:
                raise _NotKnownError
        inside = _bracketed(self._argument())
        follows = self._peek() or " "
        if (
            follows.isalnum() or symbols.SIGNS.get(follows, " ").isalpha()
        ):  # a factor beside the root
            inside = inside if inside.startswith("(") else f"({inside})"
        return f"{degree}√{inside}"

    def _script(self, token: str) -> str:
        """A power or an index: small letters where there are some."""
        text = self._argument().strip()
        if token == "^" and text in ("∘", "′", "°"):
            return "°" if text != "′" else text
        small = symbols.SUPERSCRIPTS if token == "^" else symbols.SUBSCRIPTS
        is_word = text.isalpha() and text.isascii() and len(text) > _LONG_WORD
        raised = None if is_word else _raised(text, small)
        if raised is not None:
            return raised
        return token + (text if len(text) == 1 or is_word else f"({text})")


def _is_factor(said: str) -> bool:
    """Whether a text ends with what a name behind it would be read together with."""
    return said[-1:].isalnum() or said[-1:] in _ENDS_FACTOR


def _raised(text: str, small: Mapping[str, str]) -> str | None:
    letters = text.replace(" ", "")
    if not letters or any(letter not in small for letter in letters):
        return None
    return "".join(small[letter] for letter in letters)


def _bracketed(text: str, *, is_over: bool = False) -> str:
    """Put a part of a fraction or a root in brackets, unless it is one value, or above a product."""
    text = _DERIVED.sub(r"\1\2", text.strip())
    is_one = _PRODUCT.fullmatch(text) if is_over else _VALUE.fullmatch(text)
    return text if is_one or _BRACKETS.fullmatch(text) else f"({text})"


_SMALL: Final = "".join({*symbols.SUBSCRIPTS.values(), *symbols.SUPERSCRIPTS.values()} - {","})
# A number; a word; a letter, perhaps with a root, a mark, an index and a power; d and a letter; or f(x).
_VALUE: Final = re.compile(
    rf"√?(?:[\d.]+|[^\W\d_]{{4,}}|[d∂Δ][^\W\d_]|[^\W\d_][\u0300-\u036f\u20d7′]?(?:_\w+)?(?:\([^()]*\))?|\W)"
    rf"[{re.escape(_SMALL)}]*"
)
_PRODUCT: Final = re.compile(rf"√?[\w.!′∂{re.escape(_SMALL)}]+(?:\([^()]*\))?")
_BRACKETS: Final = re.compile(r"\([^()]*\)")
_DERIVED: Final = re.compile(r"([∂Δ]) (\w)")
