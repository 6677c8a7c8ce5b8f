"""What a desktop opens with Potluck."""

from ipaddress import ip_address
from pathlib import Path

import pytest
from fake_backend import Server
from PySide6.QtCore import QUrl
from PySide6.QtWidgets import QLabel
from pytestqt.qtbot import QtBot
from started import Make, click, connect

from potluck import invitation
from potluck.api.values.schema import RoleRequest
from potluck_app.application import Application
from potluck_app.opening import CannotOpenError, Invitation, ModelFile, Opener, is_at_home, read
from potluck_app.views.widgets.dialogs import Confirmation

pytestmark = [
    pytest.mark.qt,
    pytest.mark.net,
    pytest.mark.qt_log_ignore(r"does not support raise\(\)"),
]

HOSTS = ("192.168.7.20", "fd00:7::20")


def token(*hosts: str) -> str:
    addresses = tuple((host, 47777) for host in hosts)
    return invitation.write(
        invitation.Contents(home=bytes(16), secret=bytes(16), addresses=addresses)
    )


TOKEN = token(*HOSTS)
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
    assert read(link, HERE) == Invitation(TOKEN, HOSTS)


@pytest.mark.parametrize(
    "host",
    ["8.8.8.8", "2001:4860:4860::8888", "::ffff:8.8.8.8", "64:ff9b::808:808", "2002:808:808::1"],
)
def test_an_invitation_into_the_internet_is_refused_also_beside_one_at_home(host: str) -> None:
    for hosts in ((host,), (*HOSTS, host)):
        with pytest.raises(CannotOpenError, match="in the Internet"):
            read(f"potluck://join/{token(*hosts)}", HERE)


def test_a_public_address_of_ipv6_is_at_home_in_this_computers_own_network() -> None:
    own = [ip_address("192.168.7.2"), ip_address("2001:4860:1:2::9")]

    assert is_at_home(ip_address("2001:4860:1:2:a::1"), own)
    assert not is_at_home(ip_address("2001:4860:1:3::1"), own)
    assert not is_at_home(ip_address("8.8.8.8"), [ip_address("8.8.8.9")])


def test_an_invitation_without_addresses_is_one_too() -> None:
    assert read(f"potluck://join/{token()}", HERE) == Invitation(token(), ())


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
        (f"potluck://join/{TOKEN[:-9]}", "not copied whole"),
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


def test_the_question_names_the_addresses_and_what_stops(
    application: Application, qtbot: QtBot
) -> None:
    Opener(application).open(f"potluck://join/{TOKEN}", HERE)

    texts = " ".join(label.text() for label in asked(application).findChildren(QLabel))
    assert all(host in texts for host in HOSTS)
    assert "you cannot chat" in texts


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
