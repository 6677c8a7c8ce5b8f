"""The start from a checkout: what is decided, from the machine, the words and the files."""

import errno
import os
import sys
from pathlib import Path
from types import ModuleType

import pytest
from installer import load, machine, pytorch, terminal


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
        ("Windows", "ARM64", None, "cpu"),  # PyPI has none
        ("Darwin", "arm64", None, None),
    ],
)
def test_the_build_of_torch_follows_system_driver_and_card(
    system: str, processor: str, gpus: str | None, variant: str | None
) -> None:
    assert machine.torch_variant(system, processor, gpus) == variant


@pytest.mark.parametrize(
    ("system", "processor", "libc", "python", "qt"),
    [
        ("Linux", "x86_64", ("glibc", "2.31"), (3, 14), True),
        ("Linux", "aarch64", ("glibc", "2.36"), (3, 11), True),  # Debian 12, Raspberry Pi OS 12
        ("Linux", "aarch64", ("glibc", "2.36"), (3, 14, 1), False),
        ("Linux", "aarch64", ("glibc", "2.28"), (3, 11), False),
        ("Linux", "aarch64", ("glibc", "2.39"), (3, 14), True),
        ("Linux", "aarch64", ("", ""), (3, 12), False),  # musl
        ("Darwin", "arm64", ("", ""), (3, 14), True),
        ("Windows", "ARM64", ("", ""), (3, 14), True),
    ],
)
def test_only_an_older_linux_on_arm_lacks_qt(
    system: str, processor: str, libc: tuple[str, str], python: tuple[int, ...], qt: bool
) -> None:
    assert machine.has_qt(system, processor, libc, python) is qt


def test_where_there_is_no_qt_potluck_is_installed_without_the_window(
    run: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    installed: list[tuple[object, ...]] = []
    monkeypatch.setattr(run, "pip_install", lambda *words: installed.append(words))

    for qt in (True, False):
        run.needed_steps(["worker"], display=True, qt=qt)[-1].run()

    assert installed == [("--editable", f"{run.ROOT}[window]"), ("--editable", run.ROOT)]
    assert "without the window" in capsys.readouterr().err


def test_without_qt_a_display_shows_the_demo_and_says_why(
    run: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    names = [step.name for step in run.needed_steps([], display=True, x11=True, qt=False)]

    assert names == ["venv", "torch", "potluck"]
    assert run.commands_for([], display=True, qt=False)[0][-2:] == ["potluck", "demo"]
    assert "glibc 2.39" in capsys.readouterr().err
    with pytest.raises(run.SetupError, match="tests need the window"):
        run.needed_steps(["test"], display=False, qt=False)


def test_a_system_that_gets_qt_is_set_up_anew_with_the_window(run: ModuleType) -> None:
    """Such as a Raspberry Pi that went from Debian 12 to 13."""
    keys = {
        qt: {step.name: step.key for step in run.needed_steps([], display=False, qt=qt)}
        for qt in (True, False)
    }

    assert keys[True]["potluck"] != keys[False]["potluck"]


@pytest.mark.parametrize(
    ("processor", "built_for", "architecture"),
    [
        ("ARM64", "win-amd64", "AMD64"),  # Windows on Arm runs programs of x64
        ("ARM64", "win-arm64", "ARM64"),
        ("AMD64", "win-amd64", "AMD64"),
        ("aarch64", "linux-aarch64", "aarch64"),
    ],
)
def test_on_windows_python_counts_and_not_the_processor(
    processor: str, built_for: str, architecture: str
) -> None:
    assert machine.python_machine(processor, built_for) == architecture


@pytest.mark.parametrize(("answer", "words"), [("1\n", "Apple silicon"), ("0\n", "no longer made")])
def test_a_python_that_rosetta_translates_is_told_from_a_mac_of_intel(
    monkeypatch: pytest.MonkeyPatch, answer: str, words: str
) -> None:
    monkeypatch.setattr("platform.system", lambda: "Darwin")
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    monkeypatch.setattr(machine, "output_of", lambda _command: answer)

    with pytest.raises(terminal.SetupError, match=words):
        pytorch.install_torch("torch", Path("python"), lambda *_: pytest.fail("nothing suits it"))


def test_windows_on_arm_without_torch_is_told_of_x64(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_words: str) -> None:
        raise terminal.SetupError("No matching distribution found for torch")

    def unreachable(*_words: object, **_values: object) -> None:
        raise OSError

    monkeypatch.setattr("platform.system", lambda: "Windows")
    monkeypatch.setattr("platform.machine", lambda: "ARM64")
    monkeypatch.setattr("sysconfig.get_platform", lambda: "win-arm64")
    monkeypatch.setattr("urllib.request.urlopen", unreachable)

    with pytest.raises(terminal.SetupError, match=r"(?s)No matching.*Python for\s+x64"):
        pytorch.install_torch("torch", Path("python"), refuse)


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
