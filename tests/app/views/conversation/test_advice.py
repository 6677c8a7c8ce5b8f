"""A full context: the meter, and what the line above the composer offers."""

import msgspec
import pytest
from chat_page import STATS, ask, click
from fake_backend import PLAN
from pytestqt.qtbot import QtBot
from scripted_window import ScriptedBackend, home, running_model

from potluck_app.chats.values import Settings
from potluck_app.http import Problem
from potluck_app.streams import ReplyEnd
from potluck_app.viewmodels.chat import Chat
from potluck_app.views.main_window import MainWindow

pytestmark = pytest.mark.qt


def fill(window: MainWindow, backend: ScriptedBackend, context: int) -> None:
    backend.say(home(model=running_model(context=context)))
    ask(window, backend, "How?", "so")


def test_the_meter_is_always_there_and_warns(
    window: MainWindow, backend: ScriptedBackend, qtbot: QtBot
) -> None:
    assert window.chat.top.context_text.text() == "Context 0"
    tones: list[str] = []

    for context in (2048, 700, 640):
        backend.say(home(model=running_model(context=context)))
        if context == 2048:
            ask(window, backend, "How?")
        tones.append(window.chat.top.context_meter._tone)

    assert tones == ["accent", "warn", "err"]
    assert window.chat.top.context_text.text() == "Context 620 / 640"


def test_a_full_context_offers_a_longer_one_that_fits(
    window: MainWindow, backend: ScriptedBackend, qtbot: QtBot
) -> None:
    fill(window, backend, 640)
    assert "nearly full" in window.chat.advice.text

    click(window, "advice-longer", qtbot)
    asked = backend.last("/cluster/plan")
    assert asked.body.context == 2048
    stages = tuple(msgspec.structs.replace(stage, memory=10**9) for stage in PLAN.stages)
    asked.call.done.emit(msgspec.structs.replace(PLAN, stages=stages))
    assert "takes 2 GB more memory" in window.chat.advice.text
    assert "about 120 tokens/s" in window.chat.advice.text
    click(window, "advice-load", qtbot)
    backend.say(home(model=running_model(context=2048)))
    ask(window, backend, "And?")

    assert window.chat.advice.text == ""


def test_a_longer_context_has_room_for_the_message_that_was_too_long(
    window: MainWindow, backend: ScriptedBackend, qtbot: QtBot
) -> None:
    backend.say(home(model=running_model(context=640)))
    window.chat.composer.sent.emit("word " * 6000, ())
    backend.replies[-1].finished.emit(
        ReplyEnd(error="It is too long.", code="context_length_exceeded")
    )

    click(window, "advice-longer", qtbot)

    assert backend.last("/cluster/plan").body.context == 16384


@pytest.mark.parametrize(
    ("takes", "sentence"), [(1024, "A context of 1k tokens"), (640, "at most 640 tokens")]
)
def test_a_model_that_takes_less_is_offered_what_it_takes(
    window: MainWindow, backend: ScriptedBackend, qtbot: QtBot, takes: int, sentence: str
) -> None:
    fill(window, backend, 640)
    click(window, "advice-longer", qtbot)

    plan = msgspec.structs.replace(PLAN, context=takes)
    backend.last("/cluster/plan").call.done.emit(plan)

    assert sentence in window.chat.advice.text


def test_a_longer_context_that_does_not_fit_says_why_and_offers_the_rest(
    window: MainWindow, backend: ScriptedBackend, qtbot: QtBot
) -> None:
    fill(window, backend, 640)
    click(window, "advice-longer", qtbot)

    backend.last("/cluster/plan").call.failed.emit(Problem("It needs 2 GB more memory."))

    assert window.chat.advice.text == "It needs 2 GB more memory."
    assert [name for name, _ in window.chat.advice.actions] == ["summary", "new"]


def test_a_message_that_is_too_long_goes_on_in_a_new_chat_with_a_summary(
    window: MainWindow, backend: ScriptedBackend, chat: Chat, qtbot: QtBot
) -> None:
    ask(window, backend, "How?", "so")
    window.chat.composer.sent.emit("a whole book", ())
    backend.replies[-1].finished.emit(
        ReplyEnd(error="It is too long.", code="context_length_exceeded")
    )
    assert window.chat.advice.text == "What would you like to do?"  # the reply says the rest

    click(window, "advice-summary", qtbot)
    assert [m.text for m in backend.chats[-1][:2]] == ["How?", "so"]
    assert "Summarise" in backend.chats[-1][2].text
    backend.replies[-1].text.emit("They spoke of so.")
    backend.replies[-1].finished.emit(ReplyEnd(stats=STATS))

    assert chat.shown_id is None
    assert chat.settings.system.endswith("They spoke of so.")
    assert window.chat.composer.text.toPlainText() == "a whole book"


def test_the_advice_can_be_closed_and_a_new_chat_takes_the_options_along(
    window: MainWindow, backend: ScriptedBackend, chat: Chat, qtbot: QtBot
) -> None:
    chat.set_settings(Settings(temperature=0.5))
    fill(window, backend, 640)
    window.chat.advice.act("close")
    assert window.chat.advice.text == ""

    ask(window, backend, "And?")
    click(window, "advice-new", qtbot)

    assert chat.shown_id is None
    assert chat.settings == Settings(temperature=0.5)


def test_a_chat_without_figures_is_counted_by_its_letters_as_it_changes(
    window: MainWindow, backend: ScriptedBackend, chat: Chat
) -> None:
    def ask_without_figures(text: str, reply: str) -> None:
        window.chat.composer.sent.emit(text, ())
        backend.replies[-1].text.emit(reply)
        backend.replies[-1].finished.emit(ReplyEnd())

    ask_without_figures("a" * 400, "b" * 800)
    assert window.chat.advice.used == 100 + 200
    ask_without_figures("c" * 40, "d" * 400)
    assert window.chat.advice.used == 100 + 200 + 10 + 100
    first = chat.messages.at(0)
    chat.edit(first.id, "e" * 4000)
    backend.replies[-1].text.emit("f" * 8)

    assert window.chat.advice.used == 1000 + 2
