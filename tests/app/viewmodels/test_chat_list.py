"""The list of conversations."""

from datetime import datetime

import pytest
from pytestqt.modeltest import ModelTester

from potluck_app.history import Summary
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

    model.search("chat d")
    model.remove("d")
    model.search("")


def test_a_search_looks_at_titles_in_any_case(model: ChatListModel) -> None:
    model.search(" CHAT d ")

    assert rows(model) == ["Last 7 days", "Chat d"]


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
