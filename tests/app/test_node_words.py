"""What the node says, in each language of the window: all of it (`tests/support/node_words.py` has the rule)."""

import re
from pathlib import Path

import msgspec
import node_words
import pytest

from potluck_app.catalogue import Catalogue, File
from potluck_app.resources import asset

FILES = sorted(asset("languages").glob("*.json"))


class Heard(Catalogue):
    """Marks in what it says the parts that are not known."""

    def _left(self, text: str) -> str:
        return f"⟦{text}⟧"

    def says(self, text: str) -> bool:
        """Whether all words of a text are known. What is no sentence stands in a place of another text."""
        said = self.of(text, not text.endswith((".", "?")))
        return said is not None and not re.search(r"⟦[^⟧]*[A-Za-z]{2}", said)


def forms(text: str) -> list[str]:
    """How a text of the source may be looked up.

    Places side by side have a name and what is said of it, or nothing at all; a place beside a sentence has another
    sentence. What is said of something stands behind it, as a sentence or a part of one.
    """
    alone = re.sub(r"(?<=[.!?]) ?(\{\})+(?= |$)|^\{\} (?=[A-Z`])", "", text)
    without = re.sub(r"(?<=[a-z)])\{\}(?=[ ,.:])", "", alone)
    joined = (re.sub(r"\{\}(?: ?\{\})+", "{}", each) for each in (text, alone, without))
    filled = [re.sub(r"\{\w*\}", value, each) for each in joined for value in ("#7", "7")]
    behind = [f"#7 {each}{end}" for end in ("", ".") for each in filled]
    return list(dict.fromkeys(filled + behind))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_all_that_the_node_says_is_in_every_language(path: Path) -> None:
    file = msgspec.json.decode(path.read_bytes(), type=File)
    words, parts = Heard(file), re.sub(r"\{[#=]\}", "{}", "\n".join(file.texts))

    missing = [
        f"{where}: {text}"
        for text, where in node_words.texts()
        if text not in parts and not any(map(words.says, forms(text)))
    ]

    assert missing == []


def test_a_new_sentence_without_translation_is_found() -> None:
    source = 'raise UsageError(f"{name} sings at night. Close the door.")'
    words = Heard(File(name="Test", decimal=",", texts={"Close the door.": "Tür zu."}))

    ((text, line),) = node_words.read(source)

    assert (text, line) == ("{} sings at night. Close the door.", 1)
    assert not any(map(words.says, forms(text)))


@pytest.mark.parametrize(
    "source",
    [
        'logger.info("the door is open")',
        'def f() -> "str or None":\n    """Opens the door."""',
        'raise ValueError("the door is open")',
        'if "door is open" in text: pass',
        'assert is_open, "the door is open"',
        '_DOOR = re.compile("the door")',
    ],
)
def test_what_is_said_to_nobody_needs_no_translation(source: str) -> None:
    assert list(node_words.read(source)) == []
