"""The words of one language: what the window says in English, and how it is said there. Pure.

The window is written in English, and the node says what it has to say in English too. So the words
are looked up where they are shown. A file in `assets/languages` has them: each English text with its
places, `{}` for any words and `{#}` for a number with its unit, and the same in the other language.
"""

import re
from functools import lru_cache
from pathlib import Path

import msgspec
from msgspec import Struct

_UNITS = "kB|MB|GB|%|s|ms|min|h|Mbit/s|Gbit/s|MB/s|GB/s|kB/s"
_NUMBER = rf"(?!\d+\.\d+\.)\d+(?:,\d{{3}})*(?:\.\d+)?k?(?: (?:{_UNITS}))?(?: \d+ min)?"
_PLACE = re.compile(r"\{#?\}")
_SEPARATORS = re.compile(r"(\n|\s+·\s+)")
_SENTENCES = re.compile(r"(?<=[.!?])( )")
_LONGEST = 400  # characters; longer texts are not ours, and would take long
_LETTERS = 4  # a template of several places with fewer letters is only for a part of a known text


class File(Struct, frozen=True, kw_only=True):
    """A file of `assets/languages`."""

    name: str  # of the language, in the language
    decimal: str  # the sign in decimal numbers
    texts: dict[str, str]


class Catalogue:
    """Finds texts in one language."""

    def __init__(self, file: File) -> None:
        self._file = file
        templates = [key for key in file.texts if _PLACE.search(key)]
        templates.sort(key=lambda key: (-len(_PLACE.sub("", key)), key))
        self._templates = [(_pattern(key), file.texts[key], _is_weak(key)) for key in templates]
        self.of = lru_cache(maxsize=4096)(self._of)

    def _of(self, text: str, is_part: bool = False) -> str | None:
        """Return a text in this language; None if it is not known.

        Args:
            text: in English, with what stands in its places.
            is_part: it stands in a place of a known text.
        """
        known = self._file.texts.get(text)
        found = known or self._by_parts(text, _SEPARATORS)
        # A place may have any words, also those of another sentence: sentences come first.
        found = found or self._by_parts(text, _SENTENCES, is_whole=True)
        found = found or self._by_template(text, is_part)
        return found or self._by_parts(text, _SENTENCES)

    def _by_parts(
        self, text: str, separators: re.Pattern[str], *, is_whole: bool = False
    ) -> str | None:
        """Translate the parts of a text that is made of several: those that are known, or all."""
        pieces = separators.split(text)
        parts = [self._of(piece, True) for piece in pieces[::2]] if len(pieces) > 1 else []
        if not any(parts) or (is_whole and not all(parts)):
            return None
        pieces[::2] = [new or old for new, old in zip(parts, pieces[::2], strict=True)]
        return "".join(pieces)

    def _by_template(self, text: str, is_part: bool) -> str | None:
        if len(text) > _LONGEST:
            return None
        for pattern, target, is_weak in self._templates:
            found = pattern.fullmatch(text) if is_part or not is_weak else None
            if found is not None:
                return target.format(*(self._filled(value) for value in found.groups()))
        return None

    def _filled(self, value: str) -> str:
        if re.fullmatch(_NUMBER, value):
            swap = str.maketrans({".": self._file.decimal, ",": "."})
            value = value.translate(swap) if self._file.decimal != "." else value
        else:
            value = self._of(value, True) or value
        return value


def read(path: Path) -> Catalogue:
    """Read the file of a language.

    Raises:
        OSError: it cannot be read.
        msgspec.MsgspecError: it is no such file.
    """
    return Catalogue(msgspec.json.decode(path.read_bytes(), type=File))


def _is_weak(key: str) -> bool:
    return key.count("{}") > 1 and sum(map(str.isalpha, key)) < _LETTERS


def _pattern(key: str) -> re.Pattern[str]:
    parts = re.split(r"(\{#?\})", key)
    places = {"{}": "(.+)", "{#}": f"({_NUMBER})"}
    return re.compile("".join(places.get(part, re.escape(part)) for part in parts), re.DOTALL)
