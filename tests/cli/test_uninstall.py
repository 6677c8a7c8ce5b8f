"""`uninstall`: what it ends, deletes, leaves and says."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from potluck.settings import Folders, exclusive
from potluck.system import autostart

pytestmark = pytest.mark.net

Potluck = Callable[..., int]
Output = pytest.CaptureFixture[str]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home with a file in each place, and a user's folder whose start with the computer is known."""
    user = tmp_path / "user"
    user.mkdir()
    monkeypatch.setattr(Path, "home", lambda: user)
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    home = tmp_path / "kept"
    for name in (
        "config/settings.json",
        "data/chats.sqlite",
        "data/engine/x/torch",
        "cache/a",
        "state/l",
    ):
        file = home / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("{}")
    return home


def test_models_chats_and_settings_stay_if_they_shall(
    home: Path, potluck: Potluck, capsys: Output
) -> None:
    assert potluck("uninstall", "--keep", "--home", str(home)) == 0

    left = sorted(p.relative_to(home).as_posix() for p in home.rglob("*") if p.is_file())
    assert left == ["cache/a", "config/settings.json", "data/chats.sqlite"]
    assert f"These folders stay: {home / 'cache'}" in capsys.readouterr().err


def test_nothing_stays_if_nothing_shall(home: Path, potluck: Potluck, capsys: Output) -> None:
    assert potluck("uninstall", "--delete", "--home", str(home)) == 0

    assert [p for p in home.rglob("*") if p.is_file()] == []
    assert "Nothing of Potluck is left" in capsys.readouterr().err


def test_it_does_not_start_with_the_computer_any_more(home: Path, potluck: Potluck) -> None:
    programs = [autostart.autostart("window", home), autostart.autostart("worker", home)]
    for program in programs:
        program.set(True)

    assert potluck("uninstall", "--keep", "--home", str(home)) == 0

    assert [program.is_on for program in programs] == [False, False]


def test_nobody_is_asked_where_there_is_no_terminal(
    home: Path, potluck: Potluck, capsys: Output
) -> None:
    assert potluck("uninstall", "--home", str(home)) == 2

    assert "--keep or --delete" in capsys.readouterr().err
    assert (home / "data" / "engine").exists()


def test_what_still_runs_keeps_its_files(
    home: Path, potluck: Potluck, capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("potluck.cli.uninstall._END_S", 0.0)

    with exclusive(Folders.of(home).node_lock):
        assert potluck("uninstall", "--delete", "--home", str(home)) == 2

    assert "still running" in capsys.readouterr().err
    assert (home / "data" / "chats.sqlite").exists()


@pytest.mark.skipif(os.name != "posix", reason="needs links")
def test_a_folder_that_is_a_link_loses_the_link_alone(
    home: Path, potluck: Potluck, tmp_path: Path
) -> None:
    disk = tmp_path / "disk"
    (home / "cache").rename(disk)
    (home / "cache").symlink_to(disk, target_is_directory=True)

    assert potluck("uninstall", "--delete", "--home", str(home)) == 0

    assert (disk / "a").exists()
    assert not (home / "cache").exists()
