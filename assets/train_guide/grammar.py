"""A small grammar of questions: choices `{a|b|}` that nest, and macros `<name>` for words.

Questions can be drawn at random from a pattern. A pattern can also be turned into a regular
expression that matches all of its questions, to check that no held-out question is among them.
"""

import random
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

Macros: TypeAlias = Mapping[str, Sequence[str]]

# Questions for the meaning of a word: `define: x | y` in a text file means these, for x and y.
DEFINITIONS = (
    "{what|what exactly|and what} {is|are} {it} {|in potluck|here|for}",
    "{what's|whats|what is|explain|define|describe|tell me about} {it}",
    "what does {it} {mean|stand for|do} {|here|in potluck}",
    "what {is meant by|do you mean by|does one call|is the meaning of} {it}",
    "{what is|tell me|explain} {the meaning of|the word|the term|the concept of} {it}",
    "{can|could} you {explain|tell me|define} {it|what {it} is|what {it} means}",
    "i {don't|do not} {understand|know|get} {it|what {it} is|what {it} means|the word {it}}",
    "{it}",
    "{meaning of|definition of|explanation of} {it}",
    "{it}, {what is that|what does that mean|what is it}",
    "{the readme|the window|the app|somebody|the list} {says|mentions|shows} {it}, what is that",
)


def read_macros(lines: Sequence[str]) -> dict[str, list[str]]:
    """Lines `name = one | other`; a word that is listed twice is drawn twice as often."""
    macros: dict[str, list[str]] = {}
    for line in lines:
        name, found, words = line.partition(" = ")
        if found and not line.startswith("#"):
            macros[name.strip()] = [word.strip() for word in split_choice(words)]
    return macros


def define(words: str) -> list[str]:
    """The patterns that ask for the meaning of any of `words`, which are separated by `|`."""
    choice = "{" + words.replace(" | ", "|") + "}"
    return [pattern.replace("{it}", choice) for pattern in DEFINITIONS]


def split_choice(text: str) -> list[str]:
    """Split at the `|` that stand outside all braces."""
    parts, depth, start = [], 0, 0
    for index, char in enumerate(text):
        depth += (char == "{") - (char == "}")
        if char == "|" and depth == 0:
            parts.append(text[start:index])
            start = index + 1
    return [*parts, text[start:]]


def first_choice(text: str) -> tuple[int, int] | None:
    """The start and the end of the first outermost `{…}`; None: there is none."""
    start = text.find("{")
    if start < 0:
        return None
    depth = 0
    for index in range(start, len(text)):
        depth += (text[index] == "{") - (text[index] == "}")
        if depth == 0:
            return start, index + 1
    raise ValueError(f"a brace is not closed in: {text}")


def draw(pattern: str, macros: Macros, rng: random.Random) -> str:
    """One of the questions that a pattern stands for."""
    while (place := first_choice(pattern)) is not None:
        start, end = place
        chosen = rng.choice(split_choice(pattern[start + 1 : end - 1]))
        pattern = pattern[:start] + chosen + pattern[end:]
    words = re.sub(r"<(\w+)>", lambda name: draw_macro(name[1], macros, rng), pattern)
    return re.sub(r" ([,.?])", r"\1", " ".join(words.split()))


def draw_macro(name: str, macros: Macros, rng: random.Random) -> str:
    """One of the words of a macro; `<noise>` is an invented word, `<digits>` a number."""
    if name == "noise":
        return noise(rng)
    if name == "digits":
        return str(rng.randrange(10 ** rng.randint(1, 4)))
    return draw(rng.choice(macros[name]), macros, rng)


def noise(rng: random.Random) -> str:
    """An invented word that can be pronounced."""
    onsets = "b bl br c ch d dr f fl g gl gr h j k kl l m n p pl pr qu r s sh sk sl st t tr v w z"
    codas = "x n r l s t k m nd rt lp nk rk sh th ng p g"
    syllables = [
        rng.choice(onsets.split()) + rng.choice("aeiou") + rng.choice(["", *codas.split()])
        for _ in range(rng.choice((1, 2, 2, 3)))
    ]
    return "".join(syllables)


def expression(pattern: str, macros: Macros) -> str:
    """A regular expression for all questions that `draw` can make of a pattern, with any spaces.

    A pattern with an invented word matches nothing.
    """
    place = first_choice(pattern)
    if place is not None:
        start, end = place
        inner = "|".join(expression(c, macros) for c in split_choice(pattern[start + 1 : end - 1]))
        before = expression(pattern[:start], macros)
        return f"{before}(?:{inner}){expression(pattern[end:], macros)}"
    parts = []
    for part in re.split(r"(<\w+>)", pattern):
        if part == "<noise>":
            parts.append("(?!)")
        elif part == "<digits>":
            parts.append(r"[0-9]+\s*")
        elif part.startswith("<") and part.endswith(">"):
            words = sorted(set(macros[part[1:-1]]))
            parts.append(f"(?:{'|'.join(expression(word, macros) for word in words)})")
        else:
            parts.append("".join(f"{re.escape(word)}\\s*" for word in words_of(part)))
    return "".join(parts)


def words_of(text: str) -> list[str]:
    """The words of a question in lower case, without punctuation."""
    return [word for word in re.findall(r"[^\s,.?!]+", text.lower()) if word]


def normal(question: str) -> str:
    """A question in the form that `expression` matches."""
    return " ".join(words_of(question))


def read_lines(path: Path) -> list[str]:
    """The lines of a text file without comments and empty lines."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return [line for line in lines if line.strip() and not line.startswith("#")]
