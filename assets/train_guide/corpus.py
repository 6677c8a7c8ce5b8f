"""The guide's text: what is asked, what is answered, and conversations drawn from both.

Everything is drawn with the random generator that is given, so that a seed fixes the corpus.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from grammar import Macros, define, draw, read_lines, read_macros

HERE = Path(__file__).parent
UNRELATED = "unrelated"
Turn: TypeAlias = tuple[str, str]  # question, answer

# Said around a question without changing its meaning. The many empty ones keep most questions bare.
BEFORE = (
    *[""] * 24,
    *(
        "hi, ",
        "hello, ",
        "hey, ",
        "hi! ",
        "hello! ",
        "good morning, ",
        "please ",
        "please, ",
        "sorry, ",
    ),
    *(
        "quick question: ",
        "question: ",
        "a question: ",
        "one more question: ",
        "another question: ",
    ),
    *("so ", "so, ", "and ", "ok, ", "ok, and ", "but ", "well, ", "now ", "also, ", "thanks, "),
    *("can you tell me: ", "could you tell me, ", "tell me, ", "i wonder: ", "i was wondering, "),
    *("i have a question, ", "just curious, ", "excuse me, ", "in potluck, ", "with potluck, "),
    *("hey guide, ", "dear guide, ", "in short, ", "i'd like to know, ", "i want to know, "),
    *("could you please explain, ", "can you help me, ", "help, ", "hm, ", "oh, ", "um, "),
)
AFTER = (
    *[""] * 24,
    *(" please", " please", ", please", " thanks", ", thank you", " in potluck", " with potluck"),
    *(" exactly", " actually", " here", " then", " now", " really", " in this app", " at all"),
    *(" for me", ", can you help", ", can you tell me", ", do you know", ", i wonder", " again"),
    *(", can you explain that", " in simple words", " in this version", " at home", " anyway"),
)
# Told before a question; the guide must not take it for the question.
CONTEXTS = (
    *(
        "i have a mac and a windows pc",
        "we are three people at home",
        "i am not good with computers",
    ),
    *("i installed it yesterday", "my wife has a laptop too", "i have two laptops here"),
    *("i am new to this", "i just tried it", "my son showed me this", "we have a fast network"),
    *("there are three computers in my flat", "i read the readme", "i am using linux"),
    *("i have a gaming pc", "it worked yesterday", "i tried everything", "i am in a hurry"),
    *("my laptop is quite old", "i am running windows 11", "my desktop stands in the kitchen"),
    *("i already asked my brother", "i don't know much about networks", "this is great so far"),
    *("i am using potluck at home", "we want to chat with a big model", "i opened the window"),
    *("i have one more question", "there is something i don't understand", "i looked everywhere"),
)
# Dropped into a question anywhere, or left out of it: the meaning stays.
FILLERS = (
    *("just", "also", "really", "maybe", "currently", "still", "again", "somehow", "now", "please"),
    *("actually", "exactly", "always", "even", "only", "simply", "the", "my", "a", "any", "some"),
    *("all", "then", "there", "here", "already", "ever", "perhaps", "right", "quickly", "usually"),
)
DROPPABLE = {
    *("a", "an", "the", "my", "i", "to", "is", "are", "do", "does", "it", "please", "of", "for"),
    *("on", "in", "with", "that", "this", "can", "could", "me", "you", "at", "and", "what", "how"),
}
MARKS = ("?", "?", "?", "?", "", "", "", "", ".", "!", "??", " ?", "...")
NEIGHBOURS = {  # keys beside each other, for typing errors
    "a": "qsz", "b": "vgn", "c": "xvd", "d": "sfe", "e": "wrd", "f": "dgr", "g": "fht",
    "h": "gjy", "i": "uok", "j": "hku", "k": "jli", "l": "ko", "m": "n", "n": "bm", "o": "ipl",
    "p": "o", "q": "wa", "r": "etf", "s": "adw", "t": "ryg", "u": "yij", "v": "cb", "w": "qes",
    "x": "zc", "y": "tuh", "z": "x",
}  # fmt: skip


@dataclass(frozen=True)
class Intent:
    """One thing that the guide knows: its answer, and the patterns of questions that ask for it."""

    name: str
    answer: str
    patterns: tuple[str, ...]


@dataclass(frozen=True)
class Corpus:
    """All of the guide's text."""

    intents: dict[str, Intent]
    follow_ups: dict[str, list[tuple[str, tuple[str, ...]]]]  # intent before -> (intent, patterns)
    macros: Macros

    @property
    def answers(self) -> dict[str, str]:
        """The answer of every intent."""
        return {name: intent.answer for name, intent in self.intents.items()}


def load_corpus() -> Corpus:
    """Read the text files beside this one."""
    macros = read_macros((HERE / "macros.txt").read_text(encoding="utf-8").splitlines())
    intents: dict[str, Intent] = {}
    name, answer, patterns = "", "", []
    for line in [*read_lines(HERE / "intents.txt"), "= "]:
        if line.startswith("= "):
            if name:
                intents[name] = Intent(name, answer, tuple(patterns))
            name, answer, patterns = line[2:].strip(), "", []
        elif line.startswith("> "):
            answer = line[2:]
        elif line.startswith("define: "):
            patterns += define(line.removeprefix("define: "))
        else:
            patterns.append(line)
    lines = read_lines(HERE / "unrelated.txt")
    macros |= read_macros(lines)
    answer = next(line[2:] for line in lines if line.startswith("> "))
    patterns = [line for line in lines if " = " not in line[:12] and not line.startswith("> ")]
    intents[UNRELATED] = Intent(UNRELATED, answer, tuple(patterns))
    return Corpus(intents, load_follow_ups(intents), macros)


def load_follow_ups(
    intents: dict[str, Intent],
) -> dict[str, list[tuple[str, tuple[str, ...]]]]:
    """Read what is asked after an answer, by the intent of that answer."""
    found: dict[str, list[tuple[str, tuple[str, ...]]]] = {}
    before = after = ""
    for line in read_lines(HERE / "follow_ups.txt"):
        if line.startswith("= "):
            before, after = line[2:].split(" -> ")
            if before not in intents or after not in intents:
                raise ValueError(f"no such intent: {line}")
            found.setdefault(before, []).append((after, ()))
        else:
            name, patterns = found[before][-1]
            found[before][-1] = (name, (*patterns, line))
    return found


def ask(patterns: Sequence[str], corpus: Corpus, rng: random.Random) -> str:
    """One question, as a person might type it."""
    question = draw(rng.choice(patterns), corpus.macros, rng)
    if rng.random() < 0.5 and len(question) > 12:
        question = rng.choice(BEFORE) + question
    if rng.random() < 0.3 and len(question) > 12:
        question += rng.choice(AFTER)
    question += rng.choice(MARKS)
    if rng.random() < 0.3:
        question = reword(question, rng)
    if len(question) > 12 and rng.random() < 0.06:
        context = rng.choice(CONTEXTS)
        question = rng.choice(
            (f"{context}. {question}", f"{context}, {question}", f"{question} {context}")
        )
    if rng.random() < 0.25:
        question = mistype(question, rng)
    case = rng.random()
    if case < 0.5:
        question = question[:1].upper() + question[1:]
    elif case < 0.53:
        question = question.upper()
    elif case < 0.56:
        question = question.title()
    if rng.random() < 0.3:
        question = question.replace("potluck", "Potluck").replace(" i ", " I ")
    return question.strip()


def reword(question: str, rng: random.Random) -> str:
    """Drop a small word, or put one in."""
    words = question.split()
    if len(words) < 4:
        return question
    small = [index for index, word in enumerate(words) if word in DROPPABLE]
    if small and rng.random() < 0.5:
        del words[rng.choice(small)]
    else:
        words.insert(rng.randrange(1, len(words)), rng.choice(FILLERS))
    return " ".join(words)


def mistype(text: str, rng: random.Random) -> str:
    """Make one or two of the errors that hurried fingers make."""
    for _ in range(rng.choice((1, 1, 2))):
        places = [i for i in range(1, len(text) - 1) if text[i].isalpha()]
        if len(places) < 4:
            return text
        i = rng.choice(places)
        match rng.randrange(5):
            case 0:
                text = text[:i] + text[i + 1 :]
            case 1:
                text = text[:i] + text[i] + text[i:]
            case 2:
                text = text[:i] + text[i + 1] + text[i] + text[i + 2 :]
            case 3:
                text = text[:i] + rng.choice(NEIGHBOURS.get(text[i], "e")) + text[i + 1 :]
            case _:
                text = text.replace("'", "", 1)
    return text


def draw_turn(corpus: Corpus, rng: random.Random) -> tuple[str, Turn]:
    """One question with its answer, and the intent of both."""
    if rng.random() < 0.26:
        intent = corpus.intents[UNRELATED]
    else:
        names, weights = zip(
            *((name, len(i.patterns) ** 0.5) for name, i in corpus.intents.items()), strict=True
        )
        intent = corpus.intents[rng.choices(names, weights)[0]]
    return intent.name, (ask(intent.patterns, corpus, rng), intent.answer)


def draw_conversation(corpus: Corpus, rng: random.Random, turns: int) -> list[Turn]:
    """A conversation of so many turns: follow-ups where there are some, else a new question."""
    conversation: list[Turn] = []
    name = ""
    for _ in range(turns):
        known = corpus.follow_ups.get(name, [])
        if known and rng.random() < 0.5:
            name, patterns = rng.choice(known)
            question = ask(patterns, corpus, rng)
            conversation.append((question, corpus.intents[name].answer))
        else:
            name, turn = draw_turn(corpus, rng)
            conversation.append(turn)
    return conversation
