"""What a person types into the search, as a query of SQLite's full-text search. Pure."""

import re

_WORD = re.compile(r"\w+")
# Thai, Lao, Chinese and Japanese are written without spaces: a word may begin anywhere in them.
_UNSPACED = r"[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u2e80-\u9fff\uf900-\ufaff]"
_EXCERPT = 90  # characters
_BEFORE = 30  # characters of an excerpt before its first word


def words_of(text: str) -> list[str]:
    """Return the words that are searched for."""
    return _WORD.findall(text)


def query_of(text: str) -> str:
    """Return a query for messages with all these words; a word may go on. Empty: no word."""
    return " AND ".join(f'"{word}"*' for word in words_of(text))


def is_unspaced(text: str) -> bool:
    """Return whether the index cannot find this text, since it knows whole runs of letters only."""
    return re.search(_UNSPACED, text) is not None


def pattern_of(text: str) -> re.Pattern[str] | None:
    """Return what finds these words where the search finds them, to highlight them."""
    words = sorted(words_of(text), key=len, reverse=True)
    if not words:
        return None
    places = (("" if is_unspaced(word) else r"\b") + re.escape(word) for word in words)
    return re.compile("|".join(places), re.IGNORECASE)


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
