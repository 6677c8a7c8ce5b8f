"""The picker of the chat: which model answers, and a menu of those that can."""

import pytest
from fake_library import FIT, TOO_BIG
from PySide6.QtWidgets import QMenu
from scripted_window import ScriptedBackend, home, running_model

from potluck.api.values.schema import ModelEntry, ModelPhase, ServedModel
from potluck_app.streams import Load
from potluck_app.viewmodels.answering import answering
from potluck_app.views.main_window import MainWindow

pytestmark = pytest.mark.qt

LOADED = ModelEntry(name="Zephyr", path="/z", nbytes=1, parameters=1, current=True, fit=FIT)
SMALL = ModelEntry(name="org/Small & quick", path="/s", nbytes=1, parameters=1, fit=FIT)
BIG = ModelEntry(name="Big", path="/b", nbytes=1, parameters=1, fit=TOO_BIG)
GUIDE = ServedModel(name="guide", created=0, is_guide=True)
MINE = ServedModel(name="org/mine", created=0)


@pytest.fixture
def window(window: MainWindow, backend: ScriptedBackend) -> MainWindow:
    backend.say(home(model=running_model()))
    return window


def listed(menu: QMenu) -> list[str]:
    return [action.text() for action in menu.actions() if not action.isSeparator()]


def test_the_menu_lists_the_loaded_model_first_with_fits_and_speeds(
    window: MainWindow, backend: ScriptedBackend
) -> None:
    menu = window.chat.model.menu()
    assert listed(menu) == ["Looking for models…", "Get more models…"]

    backend.last("/cluster/models").call.done.emit((BIG, SMALL, LOADED))

    assert listed(menu) == [
        "Zephyr\tabout 11 tokens/s",
        "Small && quick\tabout 11 tokens/s",
        "Big\tneeds 8 GB more",
        "Get more models…",
    ]
    assert [action.isChecked() for action in menu.actions()][:3] == [True, False, False]
    assert [action.isEnabled() for action in menu.actions()][:3] == [True, True, False]


def test_choosing_loads_the_model_and_the_chat_stays(
    window: MainWindow, backend: ScriptedBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str | None] = []
    load = Load(backend)
    monkeypatch.setattr(backend, "load_model", lambda path: asked.append(path) or load)
    window.library._on_models((SMALL, LOADED))
    menu = window.chat.model.menu()

    menu.actions()[0].trigger()  # it is in use already
    menu.actions()[1].trigger()

    assert asked == ["/s"]
    assert window.pages.currentWidget() is window.chat


def test_more_models_are_on_the_page_of_the_models(window: MainWindow) -> None:
    menu = window.chat.model.menu()

    menu.actions()[-1].trigger()

    assert window.pages.currentWidget() is window.models
    assert window.models.tab_hub.isChecked()


@pytest.mark.parametrize(
    ("phase", "name", "served", "expected"),
    [
        ("none", None, (), ("Potluck guide", True)),
        ("none", None, (GUIDE,), ("Potluck guide", True)),
        ("none", None, (MINE,), ("mine", False)),
        ("ready", "guide", (GUIDE,), ("Potluck guide", True)),
        ("ready", "org/mine", (MINE,), ("mine", False)),
        ("loading", "org/mine", (GUIDE,), ("mine", False)),
    ],
)
def test_the_examples_of_the_guide_are_shown_only_with_it(
    window: MainWindow,
    backend: ScriptedBackend,
    phase: ModelPhase,
    name: str | None,
    served: tuple[ServedModel, ...],
    expected: tuple[str, bool],
) -> None:
    state = home(model=running_model(state=phase, name=name, plan=None), served=served)
    assert answering(state) == expected

    backend.say(state)

    assert window.chat.examples.isVisible() is expected[1]
    assert window.chat.model.text().startswith(expected[0])


def test_a_chosen_model_that_is_not_loaded_is_said_to_be_loaded_by_a_message(
    window: MainWindow, backend: ScriptedBackend
) -> None:
    backend.say(home(served=(MINE,)))

    assert window.chat._empty_line.text() == "mine is loaded with your first message."
    assert window.chat.model.text() == "mine"
    assert window.chat.model.accessibleName() == "Model: mine. Choose another"


def test_where_a_model_runs_is_not_said_while_no_node_does(
    window: MainWindow, backend: ScriptedBackend
) -> None:
    backend.say(home(model=running_model()))

    backend.lose()

    assert window.chat.pill.text() == "Starting"
    assert window.chat.model.text() == "Qwen3 8B"


def test_where_the_model_runs_is_said_whole_or_not_at_all(
    window: MainWindow, backend: ScriptedBackend
) -> None:
    backend.say(home(model=running_model()))
    top, seen = window.chat.top, set[str]()

    for width in range(400, 700):
        top.resize(width, 51)
        seen.add(window.chat.model.text())

    assert seen == {"Qwen3 8B", "Qwen3 8B · here and there"}
