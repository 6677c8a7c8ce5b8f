"""The doctor's sentences in other languages."""

import json
import re
from pathlib import Path

import pytest

from potluck.doctor.sentences import TEMPLATES

LANGUAGES = Path(__file__).parents[2] / "assets" / "languages"
NUMBERS = {"free", "used", "limit"}  # a place that has a number with its unit is written {#}
GERMAN = {
    english: german
    for file in LANGUAGES.rglob("de*.json")
    for english, german in json.loads(file.read_text(encoding="utf-8"))["texts"].items()
}


def with_places(text: str) -> str:
    return re.sub(r"\{(\w+)\}", lambda name: "{#}" if name[1] in NUMBERS else "{}", text)


@pytest.mark.parametrize("code", TEMPLATES)
def test_each_sentence_and_action_has_a_german_one(code: str) -> None:
    template = TEMPLATES[code]

    for text in filter(None, (template.sentence, template.action)):
        places = re.findall(r"\{\w+\}", text)
        german = GERMAN[with_places(text)]
        assert german.format(*places).count("{") == len(places)
