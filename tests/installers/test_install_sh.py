"""install.sh and uninstall.sh, run with a small tree: what they put where, and what stays when a step fails."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from native.launchers import FILES
from native.pictures import SIZES

from potluck.system.autostart import entry_command

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="a script for Linux")

NAMES = ["potluck", "ein Ordner", "a&b|c", '50% "new" $HOME `x` \\o']


@pytest.fixture
def unpacked(tmp_path: Path) -> Path:
    """What is in a .tar.xz, with a program that only says its version."""
    folder = tmp_path / "unpacked"
    (folder / "tree/bin").mkdir(parents=True)
    (folder / "tree/share/icons").mkdir(parents=True)
    (folder / "tree/potluck.json").write_text("{}")
    for name in ("potluck", "potluck-window"):
        program = folder / "tree/bin" / name
        program.write_text("#!/bin/sh\necho 0.1.0\n")
        program.chmod(0o755)
    for size in SIZES:
        (folder / f"tree/share/icons/potluck-{size}.png").touch()
    for name in ("install.sh", "uninstall.sh", "potluck.desktop", "potluck-mime.xml"):
        shutil.copy(FILES / name, folder / name)
    return folder


def run(home: Path, script: Path, *words: str, path: str = "") -> subprocess.CompletedProcess[str]:
    environ = {"HOME": str(home / "home"), "PATH": path + os.environ["PATH"]}
    command = ["sh", str(script), *words]
    return subprocess.run(
        command, env=environ, cwd=home, capture_output=True, text=True, timeout=60
    )


@pytest.mark.parametrize("name", NAMES)
def test_the_desktop_entry_starts_the_program_whatever_its_folder_is_called(
    unpacked: Path, tmp_path: Path, name: str
) -> None:
    target = tmp_path / name

    done = run(tmp_path, unpacked / "install.sh", str(target))

    assert done.returncode == 0, done.stderr
    entry = tmp_path / "home/.local/share/applications/potluck.desktop"
    window = target / "tree/bin/potluck-window"
    assert entry_command(entry.read_bytes()) == [str(window), "%u"]
    (tried,) = [line for line in entry.read_text().splitlines() if line.startswith("TryExec=")]
    assert tried.removeprefix("TryExec=").replace("\\\\", "\\") == str(window)
    command = tmp_path / "home/.local/bin/potluck"
    assert command.readlink() == target / "tree/bin/potluck"
    assert (
        command.resolve() == target / "versions/0.1.0/bin/potluck"
    )  # beside which newer ones are put


@pytest.mark.parametrize("written", ["there/", "there//", "./there/"])
def test_a_slash_at_the_end_names_the_same_folder_also_a_second_time(
    unpacked: Path, tmp_path: Path, written: str
) -> None:
    for _ in range(2):
        done = run(tmp_path, unpacked / "install.sh", written)
        assert done.returncode == 0, done.stderr

    assert (tmp_path / "there/tree/potluck.json").is_file()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["home", "there", "unpacked"]


@pytest.mark.parametrize("written", ["/", "two\nlines"])
def test_a_folder_that_cannot_be_is_refused(unpacked: Path, tmp_path: Path, written: str) -> None:
    done = run(tmp_path, unpacked / "install.sh", written)

    assert done.returncode == 1
    assert "Name another folder" in done.stdout


def test_the_program_that_was_there_stays_if_the_new_one_cannot_take_its_place(
    unpacked: Path, tmp_path: Path
) -> None:
    target = tmp_path / "there"
    assert run(tmp_path, unpacked / "install.sh", str(target)).returncode == 0
    (target / "tree/potluck.json").write_text('{"old": true}')
    refusing = tmp_path / "refusing"
    refusing.mkdir()
    real = shutil.which("mv")
    (refusing / "mv").write_text(f'#!/bin/sh\ncase "$1" in *.new) exit 1 ;; esac\n{real} "$@"\n')
    (refusing / "mv").chmod(0o755)

    done = run(tmp_path, unpacked / "install.sh", str(target), path=f"{refusing}:")

    assert done.returncode == 1
    assert "is there again" in done.stdout
    assert (target / "tree/potluck.json").read_text() == '{"old": true}'


def test_what_was_installed_in_a_folder_with_a_space_is_removed(
    unpacked: Path, tmp_path: Path
) -> None:
    target = tmp_path / "ein Ordner"
    assert run(tmp_path, unpacked / "install.sh", str(target)).returncode == 0

    done = run(tmp_path, target / "uninstall.sh", "--keep")

    assert done.returncode == 0, done.stderr
    assert not target.exists()
    assert not list((tmp_path / "home").rglob("potluck*"))


@pytest.mark.parametrize("links", [True, False])
def test_the_tree_takes_no_second_room_where_links_can_be_made(
    unpacked: Path, tmp_path: Path, links: bool
) -> None:
    programs = tmp_path / "programs"
    programs.mkdir()
    if not links:  # as between two disks
        real = shutil.which("cp")
        refusing = f'#!/bin/sh\ncase "$1" in -Rl) exit 1 ;; esac\nexec {real} "$@"\n'
        (programs / "cp").write_text(refusing)
        (programs / "cp").chmod(0o755)

    done = run(tmp_path, unpacked / "install.sh", str(tmp_path / "there"), path=f"{programs}:")

    assert done.returncode == 0, done.stderr
    file = tmp_path / "there/tree/potluck.json"
    assert file.samefile(unpacked / "tree/potluck.json") is links
    shutil.rmtree(unpacked)
    assert file.read_text() == "{}"
