"""A window that lacks a library of the system says which package has it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import potluck
from potluck.system.qt_libraries import QT_LIBRARIES, explain

ROOT = Path(potluck.__file__).parents[2]
linux = pytest.mark.skipif(sys.platform != "linux", reason="Qt brings its libraries elsewhere")


def all_but(*names: str):
    def load(name: str) -> None:
        if name in names:
            raise OSError(f"{name}: cannot open shared object file")

    return load


@linux
def test_all_that_is_missing_is_named_at_once() -> None:
    error = ImportError("libEGL.so.1: cannot open shared object file: No such file or directory")

    said = explain(error, all_but("libEGL.so.1", "libGL.so.1"))

    assert said is not None
    assert "libGL.so.1, libEGL.so.1" in said
    assert "sudo apt install libgl1 libegl1" in said


@linux
def test_a_library_without_a_known_package_is_named() -> None:
    error = ImportError("libnew.so.7: cannot open shared object file: No such file or directory")

    said = explain(error, all_but())

    assert said is not None
    assert "libnew.so.7" in said


def test_an_import_that_fails_for_another_reason_is_not_explained() -> None:
    assert explain(ImportError("cannot import name 'x'"), all_but()) is None


@linux
@pytest.mark.parametrize("module", ["potluck_app", "potluck"])
def test_the_window_ends_with_the_sentence(tmp_path: Path, module: str) -> None:
    for name in QT_LIBRARIES:  # the loader looks here first, and finds no library in the file
        (tmp_path / name).write_bytes(b"")
    environ = os.environ | {
        "LD_LIBRARY_PATH": str(tmp_path),
        "PATH": str(tmp_path),  # no desktop shows it while this is tested
        "POTLUCK_HOME": str(tmp_path / "home"),
        "PYTHONPATH": os.pathsep.join([str(ROOT / "core"), str(ROOT / "app")]),
        "QT_QPA_PLATFORM": "offscreen",
    }

    ended = subprocess.run(
        [sys.executable, "-m", module], env=environ, capture_output=True, text=True, timeout=60
    )

    assert ended.returncode == 1
    assert "sudo apt install libgl1 libegl1" in ended.stderr
    assert "Traceback" not in ended.stderr
