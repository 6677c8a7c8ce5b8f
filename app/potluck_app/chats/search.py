"""What a person types into the search, as a query of SQLite's full-text search. Pure."""

import re

_WORD = re.compile(r"\w+")
_EXCERPT = 90  # characters
_BEFORE = 30  # characters of an excerpt before its first word


def words_of(text: str) -> list[str]:
    """Return the words that are searched for."""
    return _WORD.findall(text)


def query_of(text: str) -> str:
    """Return a query for messages with all these words; a word may go on. Empty: no word."""
    return " AND ".join(f'"{word}"*' for word in words_of(text))


def pattern_of(text: str) -> re.Pattern[str] | None:
    """Return what finds these words at the beginnings of words, to highlight them."""
    words = sorted(words_of(text), key=len, reverse=True)
    if not words:
        return None
    return re.compile(r"\b(?:" + "|".join(map(re.escape, words)) + ")", re.IGNORECASE)


def excerpt(text: str, searched: str) -> str:
    """Return one line of a text around the first word that was searched for."""
    line = " ".join(text.split())
    pattern = pattern_of(searched)
    found = pattern.search(line) if pattern is not None else None
    begin = max(found.start() - _BEFORE, 0) if found else 0
    if begin:
        begin = line.find(" ", begin) + 1 or begin
    end = min(begin + _EXCERPT, len(line))
    return ("…" if begin else "") + line[begin:end] + ("…" if end < len(line) else "")
