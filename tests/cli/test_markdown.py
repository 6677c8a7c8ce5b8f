"""Markdown becomes styled text, whatever pieces it arrives in."""

from itertools import groupby

import pytest

from potluck.cli.markdown import BOLD, CODE, DIM, ITALIC, Markdown, Span

ANSWER = """\
<think>
Is it **two**? < no
</think>

## Title *x*
Text with **bold**, *emphasis*, `a*b` and 2 * 3, a*b*c, \\*stars\\*.
- one
  * two
**whole** line

```python
def f(x):
    return x ** 2 `#` not a heading
```
#hash and a stray *mark
~~~
plain
~~~
The *end"""


def rendered(pieces: list[str]) -> list[tuple[str, str]]:
    """Return the texts and their styles; neighbours of one style are joined."""
    markdown = Markdown()
    spans = [span for piece in pieces for span in markdown.feed(piece)] + markdown.end()
    styled = groupby(spans, key=lambda span: span.style)
    return [("".join(span.text for span in group), style) for style, group in styled]


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 7, 11, 64])
def test_an_answer_in_pieces_of_any_size_looks_as_in_one(size: int) -> None:
    pieces = [ANSWER[start : start + size] for start in range(0, len(ANSWER), size)]
    assert rendered(pieces) == rendered([ANSWER])


@pytest.mark.parametrize(
    ("text", "spans"),
    [
        ("a **b** c", [("a ", ""), ("b", BOLD), (" c", "")]),
        ("*a* `b`", [("a", ITALIC), (" ", ""), ("b", CODE)]),
        ("**a *b***", [("a ", BOLD), ("b", f"{BOLD};{ITALIC}")]),
        ("# A\nb", [("A", BOLD), ("\nb", "")]),
        ("- a\n  * b", [("• a\n  • b", "")]),
        ("2 * 3 = 6, a*b", [("2 * 3 = 6, a*b", "")]),
        ("`a * b` \\*c\\*", [("a * b", CODE), (" *c*", "")]),
        ("*a\nb", [("a", ITALIC), ("\nb", "")]),
        ("```py\n# x\n```\ny", [("│ py\n│ ", DIM), ("# x\n", ""), ("y", "")]),
        ("````\n```\n````", [("│ ", DIM), ("```\n", "")]),
        ("<think>a\n*b*</think>\nc", [("a\n*b*", DIM), ("\nc", "")]),
        ("#hash", [("#hash", "")]),
        ("a\\", [("a\\", "")]),
    ],
)
def test_marks_become_styles(text: str, spans: list[tuple[str, str]]) -> None:
    joined: list[tuple[str, str]] = []
    for shown, style in spans:
        if joined and joined[-1][1] == style:
            joined[-1] = (joined[-1][0] + shown, style)
        else:
            joined.append((shown, style))
    assert rendered([text]) == joined


def test_what_is_certain_is_shown_at_once() -> None:
    markdown = Markdown()

    assert markdown.feed("Hello") == [Span("Hello")]
    assert markdown.feed(" there *") == [Span(" there ")]
    assert markdown.feed("x") == [Span("x", ITALIC)]
