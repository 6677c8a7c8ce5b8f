"""The model of messages."""

import msgspec
import pytest
from pytestqt.modeltest import ModelTester
from pytestqt.qtbot import QtBot

from potluck_app.chats.tree import Tree
from potluck_app.chats.values import Message
from potluck_app.viewmodels.conversation import ConversationModel

pytestmark = pytest.mark.qt


def message(message_id: str, parent: str | None) -> Message:
    return Message(id=message_id, parent=parent, role="user", text=message_id)


def texts(model: ConversationModel) -> list[str]:
    return [str(model.data(model.index(row))) for row in range(model.rowCount())]


def test_it_keeps_the_promises_of_a_qt_model(qtmodeltester: ModelTester) -> None:
    model = ConversationModel()
    tree = Tree()
    model.reset(tree)
    qtmodeltester.check(model)

    for pair in (("a", None), ("b", "a"), ("c", "b"), ("b2", "a")):
        model.change_from(tree.add(message(*pair)))
    assert texts(model) == ["a", "b2"]
    assert model.versions(1) == (1, 2)

    model.change_from(tree.choose("b2", -1))
    assert texts(model) == ["a", "b", "c"]
    model.change_from(tree.show("c"))

    model.reset(Tree())
    assert (texts(model), model.last()) == ([], None)


def test_a_growing_reply_is_told_row_by_row(qtbot: QtBot) -> None:
    model = ConversationModel()
    tree = Tree([message("a", None)])
    model.reset(tree)
    tree.replace(msgspec.structs.replace(tree.at(0), text="Hello"))

    with qtbot.waitSignal(model.dataChanged):
        model.change(0)

    assert texts(model) == ["Hello"]
