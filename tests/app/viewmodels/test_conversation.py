"""The model of messages."""

import pytest
from pytestqt.modeltest import ModelTester
from pytestqt.qtbot import QtBot

from potluck_app.history import Conversation, Message
from potluck_app.viewmodels.conversation import ConversationModel

pytestmark = pytest.mark.qt


def test_it_keeps_the_promises_of_a_qt_model(qtmodeltester: ModelTester) -> None:
    model = ConversationModel()
    qtmodeltester.check(model)

    model.append(Message(role="user", text="Hi"))
    model.append(Message(role="assistant", text=""))
    model.extend_last("Hello")
    model.remove_last()
    model.reset(Conversation(id="a", title="t", updated=1.0, messages=model.messages))

    assert [message.text for message in model.messages] == ["Hi"]


def test_a_growing_reply_is_told_row_by_row(qtbot: QtBot) -> None:
    model = ConversationModel()
    model.append(Message(role="assistant", text="He"))

    with qtbot.waitSignal(model.dataChanged):
        model.extend_last("llo")

    assert model.data(model.index(0)) == "Hello"
    assert model.messages == (Message(role="assistant", text="Hello"),)
