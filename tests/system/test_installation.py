"""Which installation this is, and how it is started."""

import json
from pathlib import Path

import pytest

from potluck.system.autostart import desktop_entry, own_command, service_unit
from potluck.system.installation import Package, package


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / "python").mkdir()
    (tmp_path / "potluck.json").write_text(json.dumps({"version": "1.2.3", "kind": "tar"}))
    return tmp_path


def test_a_package_is_known_by_the_file_beside_its_python(tree: Path) -> None:
    assert package(tree / "python") == Package(tree, "tar", "1.2.3")


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b'{"kind": "rpm", "version": "1"}', b"\xff"])
def test_without_it_or_with_a_damaged_one_there_is_no_package(tree: Path, data: bytes) -> None:
    assert package(tree) is None

    (tree / "potluck.json").write_bytes(data)

    assert package(tree / "python") is None


def test_a_package_starts_by_its_launchers(tree: Path) -> None:
    found = Package(tree, "deb", "1")
    home = tree / "home"

    window = own_command("window", None, installed=found)
    worker = own_command("worker", home, installed=found)

    assert window == [str(tree / "bin" / "potluck-window"), "--hidden"]
    assert worker == [str(tree / "bin" / "potluck"), "worker", "--home", str(home)]


def test_a_mac_starts_the_app_which_has_the_permissions(tmp_path: Path) -> None:
    tree = tmp_path / "Potluck.app" / "Contents" / "Resources" / "potluck"

    command = own_command("window", None, installed=Package(tree, "macos", "1"))

    app = tmp_path / "Potluck.app" / "Contents" / "MacOS" / "Potluck"
    assert command == [str(app), "--hidden"]


def test_a_window_that_opens_again_is_seen(tree: Path) -> None:
    command = own_command("window", None, installed=Package(tree, "deb", "1"), hidden=False)

    assert command == [str(tree / "bin" / "potluck-window")]
    assert own_command("window", None, hidden=False)[-1] == "potluck_app"


def test_windows_starts_its_python_without_a_console(tree: Path) -> None:
    assert Package(tree, "windows", "1").launcher("window") is None


def test_a_desktop_and_systemd_pass_over_a_program_that_was_removed() -> None:
    command = ["/opt/potluck/bin/potluck", "worker"]

    assert b"\nTryExec=/opt/potluck/bin/potluck\n" in desktop_entry(command)
    assert b"\nConditionPathExists=/opt/potluck/bin/potluck\n" in service_unit(command)
