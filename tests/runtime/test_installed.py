"""An engine is switched to when it is whole and works, and the one before is gone back to."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tiny_wheels import TORCH, choice_of, make_wheels, zip_wheel

from potluck import runtime
from potluck.errors import EngineError, IntegrityError
from potluck.runtime import installed as module
from potluck.runtime.choice import Choice
from potluck.runtime.installed import Installed, has_own_torch


@pytest.fixture
def installed(tmp_path: Path) -> Installed:
    return Installed.below(tmp_path / "data")


def install(installed: Installed, paths: tuple[Path, ...]) -> Choice:
    choice = choice_of(paths)
    places = {wheel.digest: path for wheel, path in zip(choice.wheels, paths, strict=True)}
    installed.install(choice, places.__getitem__)
    return choice


def newer(tmp_path: Path, text: bytes = TORCH["torch/__init__.py"]) -> tuple[Path, ...]:
    path = tmp_path / "newer" / "torch-2.13.1-py3-none-any.whl"
    return (zip_wheel(path, {"torch/__init__.py": text}, version="2.13.1"),)


def test_an_installed_engine_is_found(tmp_path, installed, monkeypatch) -> None:
    assert installed.folder() is None

    choice = install(installed, make_wheels(tmp_path))

    folder = installed.folder()
    assert folder == installed.root / choice.digest[:16]
    assert (folder / "torch" / "__init__.py").exists()
    assert installed.is_current(choice)
    monkeypatch.setattr(module, "has_own_torch", lambda: False)
    assert runtime.find(tmp_path / "data") == folder


def test_an_own_torch_wins(tmp_path, installed) -> None:
    install(installed, make_wheels(tmp_path))

    assert has_own_torch()
    assert runtime.find(tmp_path / "data") is None


def test_an_engine_that_does_not_work_is_not_switched_to(tmp_path, installed) -> None:
    choice = install(installed, make_wheels(tmp_path))

    with pytest.raises(EngineError, match="does not work"):
        install(installed, newer(tmp_path, b"raise ImportError('libcudart.so.13')"))

    assert installed.is_current(choice)
    assert not (
        installed.root
        / choice_of(newer(tmp_path, b"raise ImportError('libcudart.so.13')")).digest[:16]
    ).exists()


def test_an_engine_that_multiplies_wrongly_does_not_work(tmp_path, installed) -> None:
    text = TORCH["torch/__init__.py"].replace(b"8.0", b"9.0")

    with pytest.raises(EngineError):
        install(installed, newer(tmp_path, text))

    assert installed.folder() is None


def test_the_one_before_stays_until_the_new_one_works(tmp_path, installed) -> None:
    first = install(installed, make_wheels(tmp_path))
    second = install(installed, newer(tmp_path))
    assert installed.is_current(second)
    assert (installed.root / first.digest[:16]).exists()

    installed.works()

    assert not (installed.root / first.digest[:16]).exists()
    assert not installed.go_back()


def test_the_one_before_is_gone_back_to(tmp_path, installed) -> None:
    first = install(installed, make_wheels(tmp_path))
    second = install(installed, newer(tmp_path))

    assert installed.go_back()

    assert installed.is_current(first)
    assert not (installed.root / second.digest[:16]).exists()


def test_going_back_deletes_nothing_while_another_one_is_tried(tmp_path, installed) -> None:
    first = install(installed, make_wheels(tmp_path))
    second = install(installed, newer(tmp_path))

    assert installed.go_back(is_busy=True)
    assert installed.is_current(first)
    assert (installed.root / second.digest[:16]).exists()

    installed.works()
    assert not (installed.root / second.digest[:16]).exists()


def anew(installed: Installed, paths: tuple[Path, ...]) -> Choice:
    choice = choice_of(paths)
    places = {wheel.digest: path for wheel, path in zip(choice.wheels, paths, strict=True)}
    installed.install(choice, places.__getitem__, anew=True)
    return choice


def test_an_engine_is_unpacked_anew_beside_itself_as_often_as_it_is_asked(
    tmp_path, installed
) -> None:
    paths = make_wheels(tmp_path)
    install(installed, paths)
    folders = [installed.folder()]
    for _ in range(2):
        (installed.folder() / "torch" / "__init__.py").write_bytes(b"damaged")
        choice = anew(installed, paths)
        folders.append(installed.folder())

        assert installed.is_current(choice)
        assert (installed.folder() / "torch" / "__init__.py").read_bytes() == TORCH[
            "torch/__init__.py"
        ]
    assert folders[0] == folders[2] != folders[1]
    install(installed, paths)  # finds it where it is
    assert installed.folder() == folders[2]
    installed.works()
    assert len(list(installed.root.glob("[0-9a-f]" * 16))) == 1


def test_an_engine_that_cannot_be_unpacked_anew_is_used_on(tmp_path, installed) -> None:
    paths = make_wheels(tmp_path)
    install(installed, paths)
    folder = installed.folder()
    refusing = Installed(installed.root, _refuse)

    with pytest.raises(EngineError):
        anew(refusing, paths)

    assert installed.folder() == folder
    assert [each.name for each in installed.root.glob("[0-9a-f]" * 16)] == [folder.name]


def _refuse(_folder: Path, _stopped: object) -> str:
    raise EngineError("It does not work here.")


def test_an_engine_of_another_python_is_none(tmp_path, installed, monkeypatch) -> None:
    install(installed, make_wheels(tmp_path))

    monkeypatch.setattr(module, "this_python", lambda: "cpython-399 linux-x86_64")

    assert installed.folder() is None


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{",
        b"[]",
        b'{"engine": {"folder": "../../etc", "variant": "", "version": "", "python": ""}}',
    ],
)
def test_a_damaged_pointer_is_as_if_nothing_was_installed(installed, text: bytes) -> None:
    installed.root.mkdir(parents=True)
    (installed.root / "current.json").write_bytes(text)

    assert installed.folder() is None


def test_a_removed_engine_is_gone(tmp_path, installed) -> None:
    install(installed, make_wheels(tmp_path))

    installed.remove()

    assert installed.folder() is None
    assert [path.name for path in installed.root.iterdir()] == []


def test_a_folder_that_is_half_deleted_is_no_engine_and_is_unpacked_again(
    tmp_path, installed
) -> None:
    paths = make_wheels(tmp_path)
    choice = install(installed, paths)
    folder = installed.folder()
    assert folder is not None
    (folder / ".whole").unlink()  # as `remove` begins
    (folder / "torch" / "__init__.py").unlink()

    assert installed.folder() is None
    assert not installed.is_current(choice)

    install(installed, paths)

    assert installed.folder() == folder
    assert (folder / "torch" / "__init__.py").exists()


def test_a_damaged_wheel_leaves_what_was_there(tmp_path, installed) -> None:
    first = install(installed, make_wheels(tmp_path))
    (path,) = newer(tmp_path)
    path.write_bytes(path.read_bytes()[:-40])

    with pytest.raises(IntegrityError):
        install(installed, (path,))

    assert installed.is_current(first)


_KILLED = """\
import os, signal, sys
from pathlib import Path
from potluck.runtime import wheel
from potluck.runtime.installed import Installed
from tiny_wheels import choice_of

paths = [Path(p) for p in sys.argv[3:]]
write, left = wheel._write, [int(sys.argv[2])]

def dies(archive, member, stopped):
    left[0] -= 1
    if left[0] < 0:
        member.to.parent.mkdir(parents=True, exist_ok=True)
        member.to.write_bytes(b"half")
        os.kill(os.getpid(), signal.SIGKILL)
    write(archive, member, stopped)

wheel._write = dies
choice = choice_of(paths)
places = {w.digest: p for w, p in zip(choice.wheels, paths)}
Installed(Path(sys.argv[1])).install(choice, places.__getitem__)
"""


@pytest.mark.skipif(os.name != "posix", reason="Windows has no SIGKILL")
@pytest.mark.parametrize("after", [0, 2, 5])
def test_a_process_that_is_killed_while_unpacking_is_gone_on_with(
    tmp_path, installed, after
) -> None:
    paths = make_wheels(tmp_path)
    command = [sys.executable, "-c", _KILLED, str(installed.root), str(after), *map(str, paths)]
    ended = subprocess.run(command, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})
    assert ended.returncode == -signal.SIGKILL
    assert installed.folder() is None

    choice = install(installed, paths)

    assert installed.is_current(choice)
    folder = installed.folder()
    assert folder is not None
    assert (folder / "torch" / "__init__.py").read_bytes() == TORCH["torch/__init__.py"]
    assert not list(installed.root.glob(".new-*"))
