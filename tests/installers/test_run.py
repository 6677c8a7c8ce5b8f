"""The start from a checkout: what is decided, from the machine, the words and the files."""

import errno
import os
import sys
from pathlib import Path
from types import ModuleType

import pytest
from installer import load, machine, terminal


@pytest.mark.parametrize(
    ("system", "processor", "gpus", "variant"),
    [
        ("Linux", "x86_64", None, "cpu"),
        ("Linux", "aarch64", None, "cpu"),
        ("Linux", "x86_64", "580.65.06, 8.9\n", "cu130"),
        ("Linux", "x86_64", "580.65.06, 6.1\n", "cu126"),  # Pascal: CUDA 13 has dropped it
        ("Linux", "x86_64", "550.54.14, 8.6\n", "cu126"),
        ("Linux", "x86_64", "470.57.02, 7.5\n", "cpu"),  # too old for any build that is made
        ("Linux", "x86_64", "580.1, 9.0\n580.1, 6.1\n", "cu126"),  # the oldest card decides
        ("Linux", "x86_64", "No devices were found\n", "cpu"),
        ("Linux", "x86_64", "[N/A], [N/A]\n", "cpu"),
        ("Windows", "AMD64", None, None),
        ("Windows", "AMD64", "591.44, 12.0\n", "cu130"),
        ("Windows", "ARM64", None, None),
        ("Darwin", "arm64", None, None),
    ],
)
def test_the_build_of_torch_follows_system_driver_and_card(
    system: str, processor: str, gpus: str | None, variant: str | None
) -> None:
    assert machine.torch_variant(system, processor, gpus) == variant


@pytest.mark.parametrize(
    ("system", "environ", "display"),
    [
        ("Linux", {}, False),
        ("Linux", {"DISPLAY": ""}, False),
        ("Linux", {"DISPLAY": ":0"}, True),
        ("Linux", {"WAYLAND_DISPLAY": "wayland-0"}, True),
        ("Windows", {}, True),
        ("Darwin", {}, True),
    ],
)
def test_only_linux_may_lack_a_display(system: str, environ: dict[str, str], display: bool) -> None:
    assert machine.has_display(system, environ) is display


@pytest.mark.parametrize(
    ("environ", "x11"),
    [
        ({"DISPLAY": ":0"}, True),
        ({"DISPLAY": ":0", "WAYLAND_DISPLAY": "wayland-0"}, False),
        ({"WAYLAND_DISPLAY": "wayland-0"}, False),
        ({}, False),
    ],
)
def test_only_a_window_on_an_x_server_needs_its_libraries(
    environ: dict[str, str], x11: bool
) -> None:
    assert machine.draws_on_x11(environ) is x11


@pytest.mark.skipif(sys.platform != "linux", reason="system packages are Linux'")
def test_libraries_are_asked_for_where_windows_are(run: ModuleType) -> None:
    def names(*words: str, x11: bool) -> list[str]:
        return [step.name for step in run.needed_steps(words, display=True, x11=x11)][3:]

    assert names(x11=True) == ["qt", "x11"]
    assert names(x11=False) == ["qt"]
    assert names("test", x11=True) == ["test", "qt"]  # the tests draw on no screen


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (errno.EACCES, "cannot be written to"),
        (errno.EROFS, "cannot be written to"),
        (errno.ENOSPC, "disk is full"),
        (errno.EIO, "cannot go on"),
    ],
)
def test_an_error_of_the_file_system_is_a_sentence(number: int, words: str) -> None:
    assert words in terminal.explain(OSError(number, os.strerror(number), "/somewhere"))


def test_a_disk_that_fills_up_does_not_end_in_a_traceback(
    run: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fill_up() -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    step = run.Step("venv", "a Python environment", "1", fill_up)
    monkeypatch.setattr(run, "needed_steps", lambda *_words, **_display: [step])

    assert run.main([]) == 1
    assert "disk is full" in capsys.readouterr().err


def test_the_packages_of_missing_libraries_are_named() -> None:
    def load_all_but_egl(library: str) -> None:
        if library == "libEGL.so.1":
            raise OSError("libEGL.so.1: cannot open shared object file")

    assert machine.missing_libraries(machine.QT_LIBRARIES, load_all_but_egl) == {
        "libEGL.so.1": "libegl1"
    }


def test_a_group_includes_what_it_names(run: ModuleType) -> None:
    groups = {"test": ["pytest>=8"], "dev": ["ruff", {"include-group": "test"}]}

    assert run.group_requirements(groups, "dev") == ["ruff", "pytest>=8"]


@pytest.mark.parametrize(
    ("line", "fraction"),
    [
        ("Progress 1024 of 4096\n", 0.25),
        ("Progress 0 of 0\n", None),
        ("Progress of the year\n", None),
        ("Collecting torch\n", None),
    ],
)
def test_progress_is_read_from_what_pip_prints(line: str, fraction: float | None) -> None:
    assert terminal.download_fraction(line) == fraction


def test_without_words_and_display_the_demo_runs(run: ModuleType) -> None:
    assert run.commands_for([], display=False)[0][-2:] == ["potluck", "demo"]
    assert run.commands_for([], display=True)[0][-2:] == ["-m", "potluck"]


def test_words_for_potluck_ask_for_no_tools_of_tests(run: ModuleType) -> None:
    names = [step.name for step in run.needed_steps(["worker", "--help"], display=True)]

    assert names == ["venv", "torch", "potluck"]


def test_a_checkout_that_moved_is_installed_again(checkout: Path, run: ModuleType) -> None:
    before = {step.name: step.key for step in run.needed_steps(["devices"], display=False)}
    moved = checkout.rename(checkout.with_name("moved"))
    there = load("run", moved / "installers")
    after = {step.name: step.key for step in there.needed_steps(["devices"], display=False)}

    assert before["potluck"] != after["potluck"]
    assert before["torch"] == after["torch"]
