"""What a desktop opens with Potluck."""

from pathlib import Path

import pytest
from fake_backend import Server
from PySide6.QtCore import QUrl
from pytestqt.qtbot import QtBot
from started import Make, click, connect

from potluck.api.schema import RoleRequest
from potluck_app.application import Application
from potluck_app.opening import CannotOpenError, Invitation, ModelFile, Opener, read
from potluck_app.views.dialogs import Confirmation

pytestmark = [
    pytest.mark.qt,
    pytest.mark.net,
    pytest.mark.qt_log_ignore(r"does not support raise\(\)"),
]

TOKEN = "potluck-" + "abcdefgh234567" * 4
HERE = Path("/")


@pytest.mark.parametrize(
    "link",
    [
        f"potluck://join/{TOKEN}",
        f"potluck:join/{TOKEN}",
        f"potluck://join/{TOKEN}/",  # as Windows hands it over
        f"POTLUCK://JOIN/{TOKEN.upper()}\n",
    ],
)
def test_an_invitation_has_a_token(link: str) -> None:
    assert read(link, HERE) == Invitation(TOKEN)


def test_a_model_is_a_path_or_an_address_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "ein Modell.GGUF"
    file.touch()

    assert read(str(file), HERE) == ModelFile(file)
    assert read(file.name, tmp_path) == ModelFile(file)
    assert read(QUrl.fromLocalFile(str(file)).toString(), HERE) == ModelFile(file)


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("potluck://join/", "no invitation"),
        ("potluck://join/other-token", "no invitation"),
        (f"potluck://join/{TOKEN}?then=format", "no invitation"),
        ("potluck://delete/everything", "no invitation"),
        ("potluck:" + "a" * 100_000, "too long"),
        ("notes.txt", "GGUF"),
        ("gone.gguf", "not there"),
        ("file:///gone.gguf", "not there"),
        ("--hidden", "GGUF"),
    ],
)
def test_anything_else_is_refused_with_a_reason(word: str, says: str, tmp_path: Path) -> None:
    with pytest.raises(CannotOpenError, match=says):
        read(word, tmp_path)


@pytest.fixture
def application(make: Make, qtbot: QtBot) -> Application:
    application = make()
    application.start()
    connect(application, qtbot)
    return application


def asked(application: Application) -> Confirmation:
    window = application.main or application.worker
    assert window is not None
    found = window.findChild(Confirmation)
    assert found is not None
    return found


def test_an_invitation_joins_and_lends_after_a_click(
    application: Application, server: Server, qtbot: QtBot
) -> None:
    Opener(application).open(f"potluck://join/{TOKEN}", HERE)
    assert server.backend.joined == []

    click(asked(application), "confirmation-yes", qtbot)

    qtbot.waitUntil(lambda: server.backend.joined == [TOKEN])
    qtbot.waitUntil(lambda: server.backend.roles == [RoleRequest(worker=True)])
    assert application.worker is not None
    assert application.preferences.current.mode == "worker"


def test_an_invitation_that_is_declined_changes_nothing(
    application: Application, server: Server, qtbot: QtBot
) -> None:
    Opener(application).open(f"potluck://join/{TOKEN}", HERE)

    click(asked(application), "confirmation-no", qtbot)

    assert application.main is not None
    assert server.backend.joined == server.backend.roles == []


def test_a_model_is_used_also_before_a_role_was_chosen(
    application: Application, tmp_path: Path, qtbot: QtBot
) -> None:
    (tmp_path / "a.gguf").touch()
    assert application.main is not None

    with qtbot.waitSignal(application.main.library.used):
        Opener(application).open("a.gguf", tmp_path)

    assert application.main.chat.isVisible()
    assert application.preferences.current.mode == "master"


def test_a_computer_that_lends_asks_before_it_uses_a_model(
    application: Application, tmp_path: Path, qtbot: QtBot
) -> None:
    (tmp_path / "a.gguf").touch()
    application.share()

    Opener(application).open("a.gguf", tmp_path)
    assert application.main is None
    click(asked(application), "confirmation-yes", qtbot)

    assert application.main is not None
    assert application.main.chat.isVisible()


def test_what_is_wrong_is_said_in_the_window(application: Application, qtbot: QtBot) -> None:
    with qtbot.waitSignal(application.backend.problem) as said:
        Opener(application).open("potluck://join/nonsense", HERE)

    assert said.args == ["The link is no invitation, or was not copied whole. Ask for a new one."]
