"""The doctor's sentences in other languages."""

import json
import re
from pathlib import Path

import pytest

from potluck.doctor.sentences import TEMPLATES

FILES = sorted((Path(__file__).parents[2] / "assets" / "languages").glob("*.json"))
NUMBERS = {"free", "used", "limit"}  # a place that has a number with its unit is written {#}
SAID = {file.stem: json.loads(file.read_text(encoding="utf-8"))["texts"] for file in FILES}


def with_places(text: str) -> str:
    return re.sub(r"\{(\w+)\}", lambda name: "{#}" if name[1] in NUMBERS else "{}", text)


@pytest.mark.parametrize("language", SAID)
@pytest.mark.parametrize("code", TEMPLATES)
def test_each_sentence_and_action_is_in_every_language(code: str, language: str) -> None:
    template = TEMPLATES[code]

    for text in filter(None, (template.sentence, template.action)):
        places = re.findall(r"\{\w+\}", text)
        said = SAID[language][with_places(text)]
        assert said.format(*places).count("{") == len(places)
