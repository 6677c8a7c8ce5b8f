"""`engine`: what it asks the node for, and what it prints."""

import json
from collections.abc import Callable

import msgspec
import pytest
from fake_backend import Server

from potluck.api.values.engine import Engine, EngineRequest

pytestmark = pytest.mark.net

Potluck = Callable[..., int]
Output = pytest.CaptureFixture[str]
READY = Engine(
    phase="ready",
    message="The engine is installed.",
    version="2.13.0",
    variant="cpu",
    from_home=200_000_000,
)


def test_it_says_what_is_there(server: Server, potluck: Potluck, capsys: Output) -> None:
    server.backend.engine = READY

    assert potluck("engine") == 0

    out = capsys.readouterr().out
    assert "Engine: installed (PyTorch 2.13.0, cpu)" in out
    assert "It came: 200 MB from your home." in out


def test_a_missing_one_is_a_failure_with_what_to_do(
    server: Server, potluck: Potluck, capsys: Output
) -> None:
    server.backend.engine = Engine(phase="missing", message="Install it.", nbytes=200_000_000)

    assert potluck("engine", "status") == 1

    assert "Install it. It takes 200 MB to fetch." in capsys.readouterr().out


def test_it_is_installed_from_a_folder(
    server: Server, potluck: Potluck, capsys: Output, tmp_path
) -> None:
    server.backend.engine = READY

    assert potluck("engine", "install", "--from", str(tmp_path), "--json") == 0

    assert server.backend.engine_requests == [EngineRequest(action="install", folder=str(tmp_path))]
    assert json.loads(capsys.readouterr().out)["phase"] == "ready"


def test_what_cannot_be_installed_is_said(server: Server, potluck: Potluck, capsys: Output) -> None:
    server.backend.engine = Engine(phase="failed", message="The disk is full.")

    assert potluck("engine", "install") == 1

    assert "The disk is full." in capsys.readouterr().out


def test_another_one_that_is_not_installed_is_a_failure_too(
    server: Server, potluck: Potluck
) -> None:
    server.backend.engine = msgspec.structs.replace(READY, failed=True, message="It is damaged.")

    assert potluck("engine", "install") == 1
    assert potluck("engine") == 0


def test_it_is_stopped_and_removed(server: Server, potluck: Potluck) -> None:
    server.backend.engine = Engine(phase="missing", message="It is not installed.")

    assert potluck("engine", "remove") == 0
    assert potluck("engine", "stop") == 1

    actions = [request.action for request in server.backend.engine_requests]
    assert actions == ["remove", "stop"]
