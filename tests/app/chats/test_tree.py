"""A conversation as a tree: its path, its versions."""

import pytest

from potluck_app.chats.tree import Tree
from potluck_app.chats.values import Attachment, Message, prompt_text, title_of


def message(message_id: str, parent: str | None) -> Message:
    role = "user" if message_id.startswith("q") else "assistant"
    return Message(id=message_id, parent=parent, role=role, text=message_id)


def tree() -> Tree:
    """Two questions, of which the second was edited; the first version has two replies."""
    pairs = [("q1", None), ("r1", "q1"), ("q2", "r1"), ("r2", "q2"), ("r2b", "q2"), ("q2b", "r1")]
    return Tree([message(*pair) for pair in pairs])


def path(of: Tree) -> list[str]:
    return [m.id for m in of.path()]


def test_the_newest_message_ends_the_path() -> None:
    assert path(tree()) == ["q1", "r1", "q2b"]


def test_a_leaf_that_was_kept_ends_the_path() -> None:
    assert path(Tree(tree().messages, "r2")) == ["q1", "r1", "q2", "r2"]
    assert path(Tree(tree().messages, "nobody")) == ["q1", "r1", "q2b"]


def test_another_version_is_shown_with_the_newest_of_what_followed() -> None:
    shown = tree()

    first = shown.choose("q2b", -1)

    assert (first, path(shown)) == (2, ["q1", "r1", "q2", "r2b"])
    assert shown.choose("q2", -1) == 4  # there is none before: nothing has changed
    assert [shown.versions(m) for m in path(shown)] == [(0, 1), (0, 1), (0, 2), (1, 2)]


def test_a_message_is_added_at_the_end_or_as_a_version() -> None:
    shown = tree()

    assert shown.add(message("r3", "q2b")) == 3
    assert shown.add(message("q1b", None)) == 0

    assert path(shown) == ["q1b"]
    assert shown.versions("q1b") == (1, 2)


def test_a_message_in_the_middle_of_another_version_is_shown() -> None:
    shown = tree()

    shown.show("r2")

    assert path(shown) == ["q1", "r1", "q2", "r2"]
    assert (shown.row_of("r2"), shown.row_of("q2b")) == (3, None)


@pytest.mark.parametrize("wrong", [message("q1", None), message("x", "nobody")])
def test_what_is_no_tree_is_refused(wrong: Message) -> None:
    with pytest.raises(ValueError, match=wrong.id):
        Tree([*tree().messages, wrong])


@pytest.mark.parametrize(
    ("text", "title"),
    [
        ("Split a\n list", "Split a list"),
        ("word " * 30, ("word " * 12).strip() + "…"),
        ("x" * 100, "x" * 60 + "…"),
        (" \n ", "New chat"),
    ],
)
def test_the_title_is_the_beginning_of_the_first_message(text: str, title: str) -> None:
    assert title_of(text) == title


def test_a_fence_around_a_file_is_longer_than_any_in_it() -> None:
    file = Attachment(name="notes.md", text="a\n````\nb\n````\n")

    text = prompt_text(Message(role="user", text="Read this.", attachments=(file,)))

    assert text == "Read this.\n\nnotes.md:\n`````\na\n````\nb\n````\n`````"
