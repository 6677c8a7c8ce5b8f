"""The words of one language: what the window says in English, and how it is said there. Pure.

The window is written in English, and the node says what it has to say in English too. So the words
are looked up where they are shown. A file in `assets/languages` has them: each English text with its
places, `{}` for any words, `{#}` for a number with its unit, and `{=}` for words that are a text of the
file themselves; and the same in the other language.
"""

import re
from collections.abc import Sequence
from functools import cached_property, lru_cache
from pathlib import Path

import msgspec
from msgspec import Struct

_UNITS = "B|kB|MB|GB|%|s|ms|min|h|Mbit/s|Gbit/s|MB/s|GB/s|kB/s"
_NUMBER = rf"(?!\d+\.\d+\.)\d+(?:,\d{{3}})*(?:\.\d+)?[kM]?(?: (?:{_UNITS}))?(?: \d+ min)?"
_NUMBERS = re.compile(_NUMBER)
_DATE = re.compile(r"(\d{4})-(\d\d)-(\d\d)(, \d\d:\d\d)?")
_PLACE = re.compile(r"(\{[#=]?\})")
_SEPARATORS = re.compile(r"(\n|\s+·\s+)")
_SENTENCES = re.compile(r"(?<=[.!?])( )")
_LONGEST = 1000  # characters; longer texts are not ours, and would take long
_NAME_WORDS = 3  # a name with more words is rare
_LETTERS = 5  # a template of several places with fewer letters says nothing: what stands in its places has to


class File(Struct, frozen=True, kw_only=True):
    """A file of `assets/languages`."""

    name: str  # of the language, in the language
    decimal: str  # the sign in decimal numbers
    thousands: str = "."  # the sign between thousands
    units: dict[str, str] = {}  # those that are written in another way, such as MB
    date: str = "{0}-{1}-{2}"  # of year, month and day
    texts: dict[str, str]


class _Template:
    """A text with places."""

    def __init__(self, parts: list[str], target: str) -> None:
        self._parts = parts  # what stands between the places, and at each odd index a place
        fixed = parts[::2]
        self.target = target
        self.length = sum(map(len, fixed))
        # To look for it is much quicker than to try the pattern, which most texts never need.
        self.longest = max(fixed, key=len)

    @cached_property
    def places(self) -> list[str]:
        return self._parts[1::2]

    @cached_property
    def is_weak(self) -> bool:
        letters = sum(map(str.isalpha, "".join(self._parts[::2])))
        return letters < _LETTERS

    @cached_property
    def has_sentences(self) -> bool:
        """Whether it has the end of one sentence and the beginning of another."""
        return any(_SENTENCES.search(fixed) for fixed in self._parts[::2])

    @cached_property
    def is_list(self) -> bool:
        return self.is_weak and len(self.places) > 1

    @cached_property
    def says_more(self) -> bool:
        """Whether a text is another one here though nothing in its places is known."""
        return self.target != "".join(self._parts)

    @cached_property
    def pattern(self) -> re.Pattern[str]:
        # Names come first, and are short; what comes last may be a whole sentence.
        places = {"{}": "(.+?)", "{=}": "(.+?)", "{#}": f"({_NUMBER})"}
        return re.compile("".join(places.get(p, re.escape(p)) for p in self._parts), re.DOTALL)


class Catalogue:
    """Finds texts in one language."""

    def __init__(self, file: File) -> None:
        self._file = file
        templates = [
            (key, _Template(parts, target))
            for key, target in file.texts.items()
            if len(parts := _PLACE.split(key)) > 1
        ]
        templates.sort(key=lambda each: (-each[1].length, each[0]))
        self._templates = [template for _, template in templates]
        self.of = lru_cache(maxsize=4096)(self._of)

    def _of(self, text: str, is_part: bool = False) -> str | None:
        """Return a text in this language; None if it is not known.

        Args:
            text: in English, with what stands in its places.
            is_part: it stands in a place of a known text.
        """
        known = self._file.texts.get(text)
        found = known or self._by_parts(text, _SEPARATORS, are_parts=True)
        # A place may have any words, also those of another sentence: sentences come first, but for those
        # that a text of the file has together.
        found = found or self._by_sentences(text, is_part)
        found = found or self._by_parts(text, _SENTENCES, is_whole=True)
        found = found or self._by_template(text, is_part)
        return found or self._by_parts(text, _SENTENCES)

    def _by_parts(
        self,
        text: str,
        separators: re.Pattern[str],
        *,
        are_parts: bool = False,
        is_whole: bool = False,
    ) -> str | None:
        """Translate the parts of a text that is made of several: those that are known, or all."""
        pieces = separators.split(text)
        parts = [self.of(piece, are_parts) for piece in pieces[::2]] if len(pieces) > 1 else []
        if not any(parts) or (is_whole and not all(parts)):
            return None
        pieces[::2] = [new or self._left(old) for new, old in zip(parts, pieces[::2], strict=True)]
        return "".join(pieces)

    def _by_sentences(self, text: str, is_part: bool) -> str | None:
        """Translate sentences that are one text of the file, with no other sentence in its places."""
        if _SENTENCES.search(text) is None:
            return None
        return self._by_template(text, is_part, has_sentences=True)

    def _is_text(self, value: str) -> bool:
        """Whether a value is a text of the file, and no list of other things."""
        return value in self._file.texts or bool(self._by_template(value, True, no_lists=True))

    def _by_template(
        self, text: str, is_part: bool, *, no_lists: bool = False, has_sentences: bool = False
    ) -> str | None:
        if len(text) > _LONGEST:
            return None
        for template in self._templates:
            if template.longest not in text or (no_lists and template.is_list):
                continue
            if has_sentences and not template.has_sentences:
                continue
            found = template.pattern.fullmatch(text)
            if found and has_sentences and any(map(_SENTENCES.search, found.groups())):
                continue
            said = self._filled(template, found.groups(), is_part) if found else None
            if said is not None:
                return said
        return None

    def _filled(self, template: _Template, values: Sequence[str], is_part: bool) -> str | None:
        """Return a template's text with these values; None if they are not for it."""
        pairs = zip(template.places, values, strict=True)
        if any(place == "{=}" and not self._is_text(value) for place, value in pairs):
            return None
        known = [self._plain(value) or self.of(value, True) for value in values]
        if template.is_weak and not any(known):
            are_names = all(value.count(" ") < _NAME_WORDS for value in values)
            if not (is_part and template.says_more and are_names):
                return None
        pairs = zip(known, values, strict=True)
        return template.target.format(*(new or self._left(old) for new, old in pairs))

    def _plain(self, value: str) -> str | None:
        """Return a number or a date as it is written in this language; None: it is neither."""
        if date := _DATE.fullmatch(value):
            return self._file.date.format(*date.groups()) + (date[4] or "")
        if not _NUMBERS.fullmatch(value):
            return None
        number, space, unit = value.partition(" ")
        if self._file.decimal != ".":
            swap = str.maketrans({".": self._file.decimal, ",": self._file.thousands})
            number = number.translate(swap)
        return f"{number}{space}{self._file.units.get(unit, unit)}"

    def _left(self, text: str) -> str:
        """Return what is said for a part that is not known: a name, or what others wrote."""
        return text


def read(path: Path) -> Catalogue:
    """Read the file of a language.

    Raises:
        OSError: it cannot be read.
        msgspec.MsgspecError: it is no such file.
    """
    return Catalogue(msgspec.json.decode(path.read_bytes(), type=File))
