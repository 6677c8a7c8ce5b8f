"""What is published beside packages, and the look at packages before."""

import subprocess
import sys
import tarfile
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType

import pytest
from installer import load

from potluck import __version__

ROOT = Path(__file__).parents[2]


@pytest.fixture
def artifacts() -> ModuleType:
    load("release")
    return load("artifacts")


def test_sums_are_what_sha256sum_reads_and_tell_what_has_changed(
    tmp_path: Path, artifacts: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in (
        "b.deb",
        "a b.dmg",
        "release.json",
    ):  # the last is signed, and renewed in its place
        (tmp_path / name).write_text(name, encoding="utf-8")
    assert artifacts.main(["sums", str(tmp_path)]) == 0
    assert artifacts.main(["sums", str(tmp_path)]) == 0  # of itself it says nothing
    assert artifacts.main(["verify", str(tmp_path)]) == 0
    assert "2 files are as SHA256SUMS says" in capsys.readouterr().err
    if sys.platform == "linux":
        check = ["sha256sum", "--check", "--strict", "SHA256SUMS"]
        assert subprocess.run(check, cwd=tmp_path, capture_output=True).returncode == 0

    (tmp_path / "b.deb").write_text("other", encoding="utf-8")
    assert artifacts.main(["verify", str(tmp_path)]) == 1
    assert "b.deb is not what" in capsys.readouterr().err
    (tmp_path / "b.deb").unlink()
    (tmp_path / "c").touch()
    assert artifacts.main(["verify", str(tmp_path)]) == 1
    assert "differ in b.deb, c" in capsys.readouterr().err


def packed(folder: Path, command: str) -> Path:
    """A package for Linux whose program does this."""
    program = folder / "tree" / "bin" / "potluck"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\n{command}\n", encoding="utf-8")
    program.chmod(0o755)
    package = folder / "out" / "potluck-0-linux-x86_64.tar.xz"
    package.parent.mkdir()
    with tarfile.open(package, "w:xz") as archive:
        archive.add(folder / "tree", "potluck")
    return package.parent


@pytest.mark.slow
@pytest.mark.net
@pytest.mark.skipif(sys.platform != "linux", reason="a package for Linux")
def test_a_package_that_starts_passes(tmp_path: Path, artifacts: ModuleType) -> None:
    paths = f"{ROOT / 'core'}:{ROOT / 'app'}"
    folder = packed(tmp_path, f'PYTHONPATH={paths} exec "{sys.executable}" -m potluck "$@"')
    assert artifacts.main(["smoke", str(folder)]) == 0


@pytest.mark.skipif(sys.platform != "linux", reason="a package for Linux")
def test_an_appimage_unpacks_itself_also_one_that_was_downloaded(
    tmp_path: Path, artifacts: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    unpacked = "squashfs-root/package/tree/bin"
    package = tmp_path / "potluck-0-linux-x86_64.AppImage"
    package.write_text(
        f'#!/bin/sh\n[ "$1" = --appimage-extract ] && mkdir -p {unpacked} &&'
        f" printf '#!/bin/sh\\nexit 3\\n' >{unpacked}/potluck && chmod +x {unpacked}/potluck\n"
    )

    assert artifacts.main(["smoke", str(tmp_path)]) == 1
    assert f"{package.name} --version:" in capsys.readouterr().err


@pytest.mark.skipif(sys.platform != "linux", reason="packages for Linux")
@pytest.mark.parametrize(
    ("command", "why"),
    [
        ("echo Potluck 9.9", "says that it is 'Potluck 9.9', not"),
        ("exit 3", "potluck-0-linux-x86_64.tar.xz --version:"),
        (f"echo {__version__}", "doctor --json prints no JSON"),
    ],
)
def test_one_that_does_not_is_named(
    tmp_path: Path,
    artifacts: ModuleType,
    capsys: pytest.CaptureFixture[str],
    command: str,
    why: str,
) -> None:
    assert artifacts.main(["smoke", str(packed(tmp_path, command))]) == 1
    assert why in capsys.readouterr().err


def test_a_folder_without_packages_of_this_system_is_no_success(
    tmp_path: Path, artifacts: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "potluck.txt").touch()
    assert artifacts.main(["smoke", str(tmp_path)]) == 1
    assert "There is no package for" in capsys.readouterr().err


def test_a_release_of_which_nothing_is_said_is_not_published(
    tmp_path: Path, artifacts: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    assert artifacts.main(["publish", "v99.0.0", str(tmp_path)]) == 1
    assert "says nothing of 99.0.0" in capsys.readouterr().err


@pytest.fixture
def gh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A `gh` whose newest release is v2.0.0; what it was told to do, a line each."""
    said, program = tmp_path / "gh.txt", tmp_path / "bin" / "gh"
    program.parent.mkdir()
    program.write_text(
        f'#!/bin/sh\necho "$*" >>{said}\n[ "$2" != view ] || echo v2.0.0\n', encoding="utf-8"
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    monkeypatch.setenv("POTLUCK_RELEASE_KEYS", "a-key")
    return said


@pytest.mark.skipif(sys.platform == "win32", reason="a script of the shell")
def test_a_list_is_renewed_for_the_newest_release_alone_and_put_in_its_place(
    tmp_path: Path,
    artifacts: ModuleType,
    gh: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(artifacts, "locked_python", lambda lock: nullcontext(Path("/bin/echo")))

    assert artifacts.main(["renew", "v1.0.0", str(tmp_path)]) == 1
    assert "v2.0.0 is" in capsys.readouterr().err
    assert "upload" not in gh.read_text()

    assert artifacts.main(["renew", "v2.0.0", str(tmp_path)]) == 0
    done = [line.split()[1] for line in gh.read_text().splitlines()][1:]
    assert done == ["view", "download", "upload"]
    assert gh.read_text().splitlines()[-1].endswith(f"v2.0.0 {tmp_path}/release.json --clobber")


@pytest.mark.skipif(sys.platform == "win32", reason="a script of the shell")
def test_a_list_that_is_due_fails_the_look(
    tmp_path: Path, artifacts: ModuleType, gh: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for python, status in (("/bin/true", 0), ("/bin/false", 1)):
        monkeypatch.setattr(artifacts, "locked_python", lambda lock, p=python: nullcontext(Path(p)))
        assert artifacts.main(["due", str(tmp_path)]) == status
    assert "download v2.0.0 --pattern release.json" in gh.read_text()
