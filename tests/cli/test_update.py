"""`update`: what it asks the node for, and what it prints."""

import json
from collections.abc import Callable

import pytest
from fake_backend import Server

from potluck.api.values.update import HomesVersion, Update, UpdateRequest

pytestmark = pytest.mark.net

Potluck = Callable[..., int]
Output = pytest.CaptureFixture[str]
OFFERED = Update(phase="offered", message="There is a newer version.", version="2.0.0")


def test_it_says_that_nobody_was_asked(server: Server, potluck: Potluck, capsys: Output) -> None:
    server.backend.update_state = Update(phase="quiet", message="Nothing newer is known.")

    assert potluck("update") == 0

    out = capsys.readouterr().out
    assert "Nothing newer is known." in out
    assert "potluck update --automatic on" in out
    assert server.backend.update_requests == []


def test_a_look_names_the_newer_version_and_how_to_get_it(
    server: Server, potluck: Potluck, capsys: Output
) -> None:
    server.backend.update_state = OFFERED

    assert potluck("update", "check") == 0

    assert server.backend.update_requests == [UpdateRequest(action="check")]
    assert "It is 2.0.0: potluck update install" in capsys.readouterr().out


def test_what_failed_is_a_failure_with_its_sentence(
    server: Server, potluck: Potluck, capsys: Output
) -> None:
    server.backend.update_state = Update(phase="quiet", message="It is damaged.", failed=True)

    assert potluck("update", "install") == 1

    assert "It is damaged." in capsys.readouterr().out


def test_going_back_is_no_failure(server: Server, potluck: Potluck, capsys: Output) -> None:
    server.backend.update_state = Update(
        phase="offered", message="You went back.", version="2.0.0", left=True
    )

    assert potluck("update", "back") == 0

    assert "You went back. To install it again: potluck update install" in capsys.readouterr().out


def test_it_may_look_by_itself_from_now_on(server: Server, potluck: Potluck) -> None:
    server.backend.update_state = OFFERED

    assert potluck("update", "--automatic", "on") == 0

    assert server.backend.update_requests == [UpdateRequest(allowed=True)]


def test_the_other_computers_and_the_way_back_are_shown(
    server: Server, potluck: Potluck, capsys: Output
) -> None:
    others = (HomesVersion(name="attic", version="1.0.0", message="It asks its owner."),)
    server.backend.update_state = Update(
        phase="quiet", message="Newest.", before="0.9.0", from_home=5_000_000, computers=others
    )

    assert potluck("update", "--json") == 0
    assert json.loads(capsys.readouterr().out)["before"] == "0.9.0"
    assert potluck("update") == 0
    out = capsys.readouterr().out
    assert "potluck update back" in out
    assert "5 MB from your home" in out
    assert "It asks its owner." in out
