"""The list of conversations."""

from datetime import datetime

import pytest
from PySide6.QtCore import Qt
from pytestqt.modeltest import ModelTester

from potluck_app.chats.values import Hit, Summary
from potluck_app.viewmodels.chat_list import ChatListModel, ChatListRole

pytestmark = pytest.mark.qt

NOW = datetime(2026, 3, 14, 12, 0).timestamp()  # noqa: DTZ001 - the calendar of where the person is
DAY = 86400.0


def summaries() -> list[Summary]:
    ages = {"a": 0.1, "b": 0.45, "c": 0.6, "d": 6.0, "e": 30.0}
    return [Summary(id=k, title=f"Chat {k}", updated=NOW - v * DAY) for k, v in ages.items()]


def rows(model: ChatListModel) -> list[str]:
    return [str(model.data(model.index(row))) for row in range(model.rowCount())]


@pytest.fixture
def model() -> ChatListModel:
    model = ChatListModel(now=lambda: NOW)
    model.reset(summaries())
    return model


def test_conversations_stand_below_their_age(model: ChatListModel) -> None:
    assert rows(model) == [
        *("Today", "Chat a", "Chat b"),
        *("Last 7 days", "Chat c", "Chat d"),
        *("Older", "Chat e"),
    ]


def test_it_keeps_the_promises_of_a_qt_model(
    model: ChatListModel, qtmodeltester: ModelTester
) -> None:
    qtmodeltester.check(model)

    model.show_hits([Hit(chat="d", title="Chat d")])
    model.remove("d")
    model.show_hits(None)


def test_what_was_found_stands_below_where_it_was_found(model: ChatListModel) -> None:
    found = Hit(chat="a", title="Chat a", message="m", excerpt="so d")
    model.show_hits([Hit(chat="d", title="Chat d"), found, Hit(chat="deleted", title="x")])

    assert rows(model) == ["Titles", "Chat d", "Messages", "Chat a"]
    hit = model.index(3)
    assert (hit.data(ChatListRole.MESSAGE), hit.data(ChatListRole.EXCERPT)) == ("m", "so d")


def test_pinned_conversations_stand_first(model: ChatListModel) -> None:
    model.put(Summary(id="e", title="Chat e", updated=NOW - 30 * DAY, pinned=True))

    assert rows(model)[:3] == ["Pinned", "Chat e", "Today"]
    assert model.index(1).data(ChatListRole.PINNED) is True
    assert model.index(1).data(Qt.ItemDataRole.AccessibleTextRole) == "Chat e, pinned"


def test_a_title_is_edited_in_its_row(model: ChatListModel) -> None:
    renamed: list[tuple[str, str]] = []
    model.renamed.connect(lambda *given: renamed.append(given))

    for title in ("  ", "Chat a", " Better\ntitle "):
        model.setData(model.index(1), title)

    assert renamed == [("a", "Better title")]
    assert not model.setData(model.index(0), "Heading")


def test_a_conversation_with_a_reply_under_way_says_so(model: ChatListModel) -> None:
    model.set_busy("a", True)
    assert model.index(1).data(ChatListRole.BUSY)
    assert "being written" in model.index(1).data(Qt.ItemDataRole.AccessibleTextRole)

    model.set_busy("a", False)

    assert not model.index(1).data(ChatListRole.BUSY)


def test_a_changed_conversation_moves_to_the_top(model: ChatListModel) -> None:
    model.put(Summary(id="e", title="Renamed", updated=NOW))

    assert rows(model)[:2] == ["Today", "Renamed"]
    assert "Older" not in rows(model)


def test_headings_cannot_be_chosen(model: ChatListModel) -> None:
    heading, chat = model.index(0), model.index(1)

    assert not heading.flags()
    assert chat.data(ChatListRole.ID) == "a"
    assert model.index_of("a") == chat
    assert not model.index_of("nobody").isValid()
