"""The guide's text: questions, answers, and conversations drawn from both.

Everything is drawn with the given random generator, so that a seed fixes the corpus.
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

# Put around a question without changing its meaning. Many are empty, so most questions stay bare.
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
# Statements before a question; the guide must not take them for the question.
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
    *("it is late", "i have some time now", "we moved here last week", "i work at home"),
    *(
        "my <who> has a <pc> too",
        "i bought a new <pc>",
        "my <who> told me about it",
        "we have <pc> and <pc>",
    ),
    *("i own a <pc> and a <pc>", "we've got two <pcs> here", "my <who> uses a <pc>", "ok, it runs"),
    *(
        "that is done",
        "i have read that",
        "that did not help",
        "this is my first time",
        "i am confused",
    ),
    *(
        "there is a <pc> in the <place>",
        "i have an old <pc> in the <place>",
        "we live in a small flat",
    ),
    *("my <who> wants to know", "i don't own much", "i know <tool>", "i also use <tool>"),
    *("i have one more question", "there is something i don't understand", "i looked everywhere"),
)
# Words that can be put anywhere into a question, or left out, without changing its meaning.
FILLERS = (
    *("just", "also", "really", "maybe", "currently", "still", "again", "somehow", "now", "please"),
    *("actually", "exactly", "always", "even", "only", "simply", "the", "my", "a", "any", "some"),
    *("all", "then", "there", "here", "already", "ever", "perhaps", "right", "quickly", "usually"),
)
DROPPABLE = {
    *("a", "an", "the", "my", "i", "to", "is", "are", "do", "does", "it", "please", "of", "for"),
    *("on", "in", "with", "that", "this", "can", "could", "me", "you", "at", "and", "what", "how"),
}
# Words that may stand for one another in a question about Potluck.
SYNONYMS = {
    word: words.split("|")
    for word, words in (
        ("want", "wish|need|would like|intend"),
        ("big", "large|huge"),
        ("bigger", "larger|stronger"),
        ("fast", "quick"),
        ("faster", "quicker|speedier"),
        ("start", "launch|begin|run"),
        ("stop", "end|halt"),
        ("see", "notice|spot"),
        ("find", "detect|discover"),
        ("found", "detected|discovered|noticed"),
        ("problem", "trouble|issue"),
        ("answer", "reply|response"),
        ("answers", "replies|responses"),
        ("question", "request|query"),
        ("explain", "describe|clarify"),
        ("use", "work with|employ|utilise|take"),
        ("used", "employed|in use"),
        ("need", "require|want"),
        ("buy", "purchase|get"),
        ("several", "multiple|many|a few"),
        ("two", "both|2|a couple of"),
        ("possible", "feasible|doable|an option"),
        ("work", "function|run"),
        ("works", "functions|runs"),
        ("home", "house|flat|place"),
        ("happens", "occurs|goes on"),
        ("why", "how come|for what reason|what is the reason"),
        ("now", "at the moment|right now|today"),
        ("allowed", "permitted|able"),
        ("safe", "secure|protected"),
        ("download", "fetch|get"),
        ("remove", "delete|take out"),
        ("choose", "pick|select"),
        ("wrong", "incorrect|false"),
        ("missing", "absent|not there"),
        ("computer", "pc|laptop|machine|mac|desktop|one"),
        ("computers", "pcs|laptops|machines|ones"),
        ("laptop", "computer|pc|notebook|mac"),
        ("pc", "computer|laptop|desktop"),
        ("model", "llm|ai model|language model"),
        ("network", "lan|home network|wifi"),
        ("memory", "ram"),
        ("ram", "memory"),
        ("internet", "web|net|internet connection"),
        ("folder", "directory"),
        ("speed", "pace|performance"),
        ("chat", "conversation|talk"),
        ("share", "lend|offer"),
        ("close", "shut"),
        ("show", "display|list"),
        ("shows", "displays|lists"),
        ("says", "reports|shows|states"),
        ("list", "overview|window"),
        ("different", "unequal|not the same"),
        ("same", "equal|identical"),
        ("get", "obtain|receive"),
        ("add", "connect|include|attach"),
        ("my", "our|the|my new|my old|my second|my wife's|my brother's|my friend's|this|that"),
        ("i", "we|one|you"),
        ("what's", "what is"),
        ("what", "which|what exactly"),
        ("how", "in what way|how exactly"),
        ("can", "could|may|would"),
        ("do", "must|should|shall"),
        ("long", "lengthy"),
        ("another", "a different|a further|some other"),
        ("good", "fine|ok|suitable"),
        ("must", "should|have to"),
        ("if", "when|in case"),
        ("when", "if|while|once"),
        ("potluck", "the app|it|the program|this app|this"),
    )
}
MARKS = ("?", "?", "?", "?", "", "", "", "", ".", "!", "??", " ?", "...")
NEIGHBOURS = {  # keys beside each other on a keyboard, for typing errors
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
    """Read the questions that may follow an answer, by the intent of that answer."""
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
    if rng.random() < 0.35:
        question = exchange(question, rng)
    if rng.random() < 0.3:
        question = reword(question, rng)
    if len(question) > 12 and rng.random() < 0.1:
        context = draw(rng.choice(CONTEXTS), corpus.macros, rng)
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


def exchange(question: str, rng: random.Random) -> str:
    """Replace some words by synonyms."""
    words = question.split()
    for index, word in enumerate(words):
        bare = word.rstrip(",.?!")
        if bare in SYNONYMS and rng.random() < 0.3:
            words[index] = rng.choice(SYNONYMS[bare]) + word[len(bare) :]
    return " ".join(words)


def reword(question: str, rng: random.Random) -> str:
    """Remove a small word, or add one."""
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
    """Make one or two typing errors."""
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
    """An intent, and one question and answer of it."""
    if rng.random() < 0.28:
        intent = corpus.intents[UNRELATED]
    else:
        names, weights = zip(
            *((name, len(i.patterns) ** 0.5) for name, i in corpus.intents.items()), strict=True
        )
        intent = corpus.intents[rng.choices(names, weights)[0]]
    return intent.name, (ask(intent.patterns, corpus, rng), intent.answer)


def draw_conversation(corpus: Corpus, rng: random.Random, turns: int) -> list[Turn]:
    """A conversation of so many turns: follow-up questions, where there are any, and new ones."""
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
