"""Markdown cut into blocks while it streams."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from potluck_app.viewmodels.blocks import Block, BlockSplitter, Code, Prose, split, split_thinking

REPLY = """Use a **slice**:

```python
def f(x):

    return x
```

1. first

2. second
   ```sh
   ls
   ```
3. third

The end has ~~two~~ lines
of text.

~~~
```
~~~
"""


def test_prose_and_code_alternate() -> None:
    assert split(REPLY) == [
        Prose("Use a **slice**:"),
        Code("python", "def f(x):\n\n    return x", closed=True),
        Prose("1. first\n\n2. second"),
        Code("sh", "ls", closed=True),
        Prose("3. third"),
        Prose("The end has ~~two~~ lines\nof text."),
        Code("", "```", closed=True),
    ]


def test_a_list_stays_whole_so_that_its_numbers_go_on() -> None:
    assert split("1. a\n\n2. b\n\n- c\n\n  more of c\n") == [
        Prose("1. a\n\n2. b\n\n- c\n\n  more of c")
    ]


def test_paragraphs_are_blocks_of_their_own() -> None:
    assert split("one\n\ntwo\nstill two\n\n# three") == [
        Prose("one"),
        Prose("two\nstill two"),
        Prose("# three"),
    ]


def test_code_without_its_end_is_code_already() -> None:
    assert split("```rust\nfn main() {\n") == [Code("rust", "fn main() {", closed=False)]


def test_a_longer_fence_holds_a_shorter_one() -> None:
    assert split("````md\n```\nx\n```\n````\n") == [Code("md", "```\nx\n```", closed=True)]


def test_code_of_a_list_item_loses_its_indentation() -> None:
    assert split("- do\n  ```py\n  if x:\n      y\n  ```\n")[1] == Code(
        "py", "if x:\n    y", closed=True
    )


def test_blank_lines_alone_are_no_block() -> None:
    assert split("\n\n") == []
    assert split("\n\ntext\n\n\n") == [Prose("text")]


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("Just an answer with <think> in it", ("", "Just an answer with <think> in it", True)),
        ("<think>\nHm.\n", ("Hm.", "", False)),
        ("\n<think>\nHm.\n</think>\n\nYes.", ("Hm.", "Yes.", True)),
        ("Hm.</think>Yes.", ("Hm.", "Yes.", True)),
        ("<thi", ("", "", True)),
        ("<thing>", ("", "<thing>", True)),
    ],
)
def test_thoughts_are_told_apart_from_the_answer(text: str, parts: tuple[str, str, bool]) -> None:
    assert split_thinking(text) == parts


@given(st.lists(st.integers(0, len(REPLY)), max_size=30))
def test_pieces_of_any_size_give_the_blocks_of_the_whole(cuts: list[int]) -> None:
    splitter = BlockSplitter()
    edges = [0, *sorted(cuts), len(REPLY)]

    for begin, end in itertools.pairwise(edges):
        splitter.feed(REPLY[begin:end])

    assert splitter.blocks == split(REPLY)


@given(st.text(alphabet="`~-1. \nab", max_size=60), st.integers(1, 5))
def test_any_text_gives_the_same_blocks_streamed_and_whole(text: str, step: int) -> None:
    splitter = BlockSplitter()

    for begin in range(0, len(text), step):
        splitter.feed(text[begin : begin + step])

    assert splitter.blocks == split(text)


@given(st.text(alphabet="`~-1. \nab", max_size=60))
def test_only_what_is_reported_as_changed_changes(text: str) -> None:
    splitter = BlockSplitter()
    shown: list[Block] = []

    for character in text:
        first = splitter.feed(character)
        shown[first:] = splitter.blocks[first:]

    assert shown == splitter.blocks


def bullets(count: int) -> str:
    return "".join(f"- point {n}\n" for n in range(count))


def numbers(*written: int) -> str:
    return "".join(f"{number}. point\n" for number in written)


def test_a_long_list_is_cut_between_its_items() -> None:
    blocks = split("Many:\n" + bullets(40) + "\nThe end.")

    assert "\n".join(block.text for block in blocks) == ("Many:\n" + bullets(40) + "The end.")
    assert [isinstance(b, Prose) and b.goes_on for b in blocks] == [False, True, True, False]


def test_what_is_inside_an_item_stays_with_it() -> None:
    item = "- point\n\n  more of it\n  - inside\n  - inside too\n"

    blocks = split(item * 20)

    assert len(blocks) == 2
    assert all(block.text.startswith("- point") for block in blocks)
    assert all(block.text.endswith("inside too") for block in blocks)


def test_a_numbered_list_is_cut_where_its_numbers_are_as_they_are_written() -> None:
    assert len(split(numbers(*range(1, 41)))) == 3
    assert len(split(numbers(*range(7, 47)))) == 3


def test_a_list_whose_numbers_are_all_one_stays_whole() -> None:
    assert len(split(numbers(*[1] * 40))) == 1


def test_a_long_list_gives_the_same_blocks_streamed_and_whole() -> None:
    text = bullets(40) + "\n" + numbers(*range(1, 60)) + "\n* * *\n"
    splitter = BlockSplitter()

    for character in text:
        splitter.feed(character)

    assert splitter.blocks == split(text)
