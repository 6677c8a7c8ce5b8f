"""Check real chat templates: which formats of calls are derived, and whether rendered calls are parsed back.

    python tests/every_template.py FOLDER

Reads each `*.jinja` below the folder. Collections of them come with the sources of llama.cpp (`models/templates`)
and with the models themselves. Each template renders a call, two calls, a call without arguments and a call after
text; each of these is parsed in pieces of several sizes. Prints a line for each template, and exits with 1 if one
has a call that is not read as it was written.
"""

import argparse
import json
import random
import sys
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from potluck.errors import PotluckError, PromptError
from potluck.model.answers.derive import derive_format
from potluck.model.answers.events import CallArguments, CallBegins
from potluck.model.answers.format import ABSENT, AnswerFormat
from potluck.model.answers.parser import AnswerParser
from potluck.model.answers.tags import common_prefix, outside_tag
from potluck.model.text.template import ChatTemplate

SCHEMA = {
    "type": "object",
    "properties": {
        "path": {"type": "string", "description": "A path."},
        "text": {"type": "string", "description": "A text."},
        "count": {"type": "integer", "description": "A number."},
        "flag": {"type": "boolean", "description": "Or not."},
    },
    "required": ["path"],
}
EMPTY = {"type": "object", "properties": {}}
SCHEMAS = {"write_file": SCHEMA, "now": EMPTY}
TOOLS = [
    {"type": "function", "function": {"name": name, "description": "A tool.", "parameters": schema}}
    for name, schema in SCHEMAS.items()
]
WRITE: Mapping[str, object] = {
    "path": "src/é 日本.py",
    "text": "def f(x):\n    return x + 1  # {}[] <b>\n",
    "count": -3,
    "flag": True,
}
Calls = Sequence[tuple[str, Mapping[str, object]]]
TALKS: Sequence[tuple[Calls, str | None]] = (
    ([("write_file", WRITE)], None),
    ([("write_file", WRITE), ("write_file", {"path": "b"})], None),
    ([("now", {})], None),
    ([("write_file", {"path": "b"})], "Let me see."),
)
QUESTION = {"role": "user", "content": "Q"}


class Checked:
    """One template."""

    def __init__(self, source: str) -> None:
        self._template = ChatTemplate(source, lambda: datetime(2026, 1, 2, tzinfo=UTC))
        self.form = derive_format(self._render, source)

    def _render(
        self,
        messages: Sequence[Mapping[str, object]],
        tools: Sequence[Mapping[str, object]] | None,
        is_prompt: bool,
    ) -> str:
        return self._template.render(
            {
                "bos_token": "<s>",
                "eos_token": "</s>",
                "messages": messages,
                "tools": tools,
                "documents": None,
                "add_generation_prompt": is_prompt,
            }
        )

    def answers(self) -> Iterator[tuple[Calls, str]]:
        """Calls, and what the template writes for them; without those that it refuses or drops."""
        prompt = self._render([QUESTION], TOOLS, True)
        for calls, content in TALKS:
            try:
                text = self._render([QUESTION, self._message(calls, content)], TOOLS, False)
            except PromptError:
                continue
            answer = text[outside_tag(text, len(common_prefix(prompt, text))) :]
            if all(answer.count(name) for name, _ in calls) and answer.count(calls[0][0]) >= len(
                calls
            ):
                yield calls, answer

    def _message(self, calls: Calls, content: str | None) -> Mapping[str, object]:
        history = self.form.history
        message: dict[str, object] = {
            "role": "assistant",
            "tool_calls": [
                {
                    "id": f"abcdefgh{number}",
                    "type": "function",
                    "function": {
                        "name": name,
                        "arguments": json.dumps(given) if history.arguments_as_text else given,
                    },
                }
                for number, (name, given) in enumerate(calls)
            ],
        }
        if content is not None or history.content != ABSENT:
            message["content"] = history.content if content is None else content
        return message


def parsed(form: AnswerFormat, text: str, sizes: Sequence[int]) -> list[tuple[str, str]]:
    """The calls of an answer that comes in pieces of these sizes, again and again."""
    parser, at, turn = AnswerParser(form, SCHEMAS), 0, 0
    parts = []
    while at < len(text):
        size = sizes[turn % len(sizes)]
        parts += parser.push(text[at : at + size])
        at, turn = at + size, turn + 1
    calls: list[tuple[str, str]] = []
    for part in [*parts, *parser.end()]:
        match part:
            case CallBegins(name):
                calls.append((name, ""))
            case CallArguments(more):
                calls[-1] = (calls[-1][0], calls[-1][1] + more)
            case _:
                pass
    return calls


def problem(checked: Checked) -> str | None:
    """What is read in another way than it was written; None: nothing is."""
    for calls, answer in checked.answers():
        ways = [[1], [2], [3], [7], [1 << 20], random.Random(answer).sample(range(1, 12), 9)]
        found = [parsed(checked.form, answer, sizes) for sizes in ways]
        if any(each != found[0] for each in found):
            return f"pieces of other sizes give other calls: {answer!r}"
        try:
            read = [(name, json.loads(arguments)) for name, arguments in found[0]]
        except ValueError:
            return f"arguments are no JSON: {found[0]}"
        if read != [(name, dict(arguments)) for name, arguments in calls]:
            return f"{answer!r} was read as {read}"
    return None


def main() -> int:
    """Check all templates of a folder."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    failed = 0
    for path in sorted(parser.parse_args().folder.rglob("*.jinja")):
        try:
            checked = Checked(path.read_text(encoding="utf-8"))
            wrong = problem(checked) if checked.form.shows_calls else None
        except PotluckError as error:
            print(f"refused   {path.stem}: {error}")
            continue
        form = checked.form
        shows = "derived" if form.shows_calls else "in words" if form.offers_tools else "our own"
        thinks = form.reasoning.opens if form.reasoning else "no reasoning"
        print(f"{'WRONG' if wrong else shows:<9} {form.calls.kind:<8} {path.stem} ({thinks})")
        if wrong:
            failed += 1
            print(f"          {wrong}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
