"""The start from a checkout: what is decided, what is remembered, what reaches the started program."""

import errno
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

INSTALLERS = Path(__file__).parents[2] / "installers"


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, INSTALLERS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = (
        module  # run.py imports the others by their names, dataclasses look theirs up
    )
    spec.loader.exec_module(module)
    return module


machine = load("machine")
terminal = load("terminal")
lock = load("lock")
run = load("run")


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout in a folder of its own, with an environment that can run but holds nothing."""
    shutil.copytree(INSTALLERS, tmp_path / "installers", ignore=shutil.ignore_patterns("__*"))
    shutil.copy(INSTALLERS.parent / "pyproject.toml", tmp_path)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / ".venv"], check=True)
    for name, path in {
        "ROOT": tmp_path,
        "VENV": tmp_path / ".venv",
        "LOG": tmp_path / ".venv/setup.log",
        "STAMPS": tmp_path / ".venv/potluck-setup.json",
        "LOCK": tmp_path / ".venv.lock",
    }.items():
        monkeypatch.setattr(run, name, path)
    return tmp_path


def stamp_as_done(*command_lines: list[str]) -> None:
    """Say in the stamp file that all that these words need is installed."""
    done = {
        step.name: step.key
        for words in command_lines
        for step in run.needed_steps(words, display=False)
    }
    run.STAMPS.write_text(json.dumps(done))


def started(checkout: Path, program: str, *words: str) -> subprocess.CompletedProcess[str]:
    """Start run.py in a real process, with `program` in the place of the command `potluck`."""
    (checkout / "potluck.py").write_text(program)
    command = [sys.executable, checkout / "installers/run.py", *words]
    environ = {k: v for k, v in os.environ.items() if k not in ("DISPLAY", "WAYLAND_DISPLAY")}
    return subprocess.run(command, cwd=checkout, env=environ, capture_output=True, text=True)


# --- decisions ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("system", "machine", "gpus", "variant"),
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
    system: str, machine: str, gpus: str | None, variant: str | None
) -> None:
    assert run.torch_variant(system, machine, gpus) == variant


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
    assert run.has_display(system, environ) is display


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
    assert run.draws_on_x11(environ) is x11


@pytest.mark.skipif(sys.platform != "linux", reason="system packages are Linux'")
def test_libraries_are_asked_for_where_windows_are(checkout: Path) -> None:
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
    assert words in run.explain(OSError(number, os.strerror(number), "/somewhere"))


def test_a_disk_that_fills_up_does_not_end_in_a_traceback(
    checkout: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
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

    assert run.missing_libraries(run.QT_LIBRARIES, load_all_but_egl) == {"libEGL.so.1": "libegl1"}


def test_a_group_includes_what_it_names() -> None:
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


def test_without_words_and_display_the_demo_runs() -> None:
    assert run.commands_for([], display=False)[0][-2:] == ["potluck", "demo"]
    assert run.commands_for([], display=True)[0][-2:] == ["-m", "potluck"]


def test_words_for_potluck_ask_for_no_tools_of_tests(checkout: Path) -> None:
    names = [step.name for step in run.needed_steps(["worker", "--help"], display=True)]

    assert names == ["venv", "torch", "potluck"]


def test_a_checkout_that_moved_is_installed_again(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = {step.name: step.key for step in run.needed_steps(["devices"], display=False)}
    moved = checkout.rename(checkout.with_name("moved"))
    monkeypatch.setattr(run, "ROOT", moved)
    after = {step.name: step.key for step in run.needed_steps(["devices"], display=False)}

    assert before["potluck"] != after["potluck"]
    assert before["torch"] == after["torch"]


# --- steps and stamps -----------------------------------------------------------------------------


def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave pip no place to look, so that the pip that came with Python must do."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)


def noted(done: list[str], name: str) -> Callable[[], None]:
    return lambda: done.append(name)


def test_a_finished_step_is_not_done_again(checkout: Path) -> None:
    done: list[str] = []
    steps = [run.Step(name, name, "1", noted(done, name)) for name in ("one", "two")]

    run.set_up(steps)
    run.set_up(steps)

    assert done == ["one", "two"]


def test_a_step_whose_key_changed_is_done_again(checkout: Path) -> None:
    done: list[str] = []

    run.set_up([run.Step("one", "one", "old", noted(done, "old"))])
    run.set_up([run.Step("one", "one", "new", noted(done, "new"))])

    assert done == ["old", "new"]


def test_after_a_failure_the_steps_before_it_stay_done(checkout: Path) -> None:
    done: list[str] = []

    def fail() -> None:
        raise run.SetupError("no network")

    with pytest.raises(run.SetupError):
        run.set_up([run.Step("one", "", "1", noted(done, "one")), run.Step("two", "", "1", fail)])
    run.set_up([run.Step(name, "", "1", noted(done, f"{name} again")) for name in ("one", "two")])

    assert done == ["one", "two again"]


def test_a_broken_stamp_file_means_that_nothing_is_done(checkout: Path) -> None:
    run.STAMPS.write_text('{"one": "1"')

    assert run.read_stamps() == {}


def test_stamps_of_an_environment_without_its_python_do_not_count(checkout: Path) -> None:
    run.STAMPS.write_text('{"one": "1"}')
    run.venv_python().unlink()

    assert run.read_stamps() == {}


def test_stamps_of_an_environment_whose_python_was_replaced_do_not_count(checkout: Path) -> None:
    run.STAMPS.write_text('{"one": "1"}')
    config = checkout / ".venv/pyvenv.cfg"
    version = "{}.{}".format(*sys.version_info[:2])

    before = run.read_stamps()
    config.write_text(config.read_text().replace(f"version = {version}", "version = 3.9"))

    assert before == {"one": "1"}
    assert run.read_stamps() == {}


def test_a_new_environment_means_that_every_step_is_done_again(checkout: Path) -> None:
    done: list[str] = []
    first, second = (run.Step(name, "", "1", noted(done, name)) for name in ("venv", "torch"))

    run.set_up([first, second])
    run.set_up([run.Step("venv", "", "2", noted(done, "new venv")), second])

    assert done == ["venv", "torch", "new venv", "torch"]


@pytest.mark.slow  # makes an environment with pip: 3 s alone
def test_an_environment_without_pip_is_kept_and_gets_one(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = run.site_packages()[0] / "own.py"
    own.touch()
    offline(monkeypatch)

    run.make_venv()

    assert own.exists()
    assert machine.pip_version(run.venv_python()) is not None


@pytest.mark.slow  # makes an environment with pip: 3 s alone
def test_an_environment_whose_python_does_not_run_is_made_anew(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = run.site_packages()[0] / "own.py"
    own.touch()
    run.venv_python().unlink()
    offline(monkeypatch)

    run.make_venv()

    assert not own.exists()
    assert machine.venv_version(run.VENV, run.venv_python()) == sys.version_info[:2]


def test_an_environment_of_an_older_python_is_left_alone(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "MINIMUM_PYTHON", (3, 99))

    with pytest.raises(run.SetupError, match="Delete or rename"):
        run.make_venv()

    assert run.venv_python().exists()


@pytest.mark.parametrize(
    ("version", "words"),
    [
        ("23.2.1", ["install", "torch"]),
        ("24.0", ["install", "torch"]),
        ("24.1b1", ["install", "--progress-bar", "raw", "torch"]),
        ("26.1", ["install", "--progress-bar", "raw", "torch"]),
    ],
)
def test_only_a_pip_that_can_is_asked_for_raw_progress(
    checkout: Path, version: str, words: list[str]
) -> None:
    (run.site_packages()[0] / "pip.py").write_text(
        "import sys\n"
        f"print('pip {version} from here' if sys.argv[1:] == ['--version'] else sys.argv[1:])\n"
    )

    run.pip_install("torch")

    assert run.LOG.read_text().splitlines()[-1] == str(words)


def test_two_starts_at_once_take_turns_and_the_second_finds_all_done(checkout: Path) -> None:
    waiting, done = threading.Event(), []
    steps = [run.Step("venv", "", "1", noted(done, "venv"))]

    def other_start() -> None:
        with lock.exclusive(run.LOCK, waiting.set):
            done.append(run.undone(steps))

    other = threading.Thread(target=other_start)
    with lock.exclusive(run.LOCK, lambda: pytest.fail("nobody else has it")):
        other.start()
        assert waiting.wait(20)
        assert done == []
        run.do(run.undone(steps))
    other.join(20)

    assert done == ["venv", []]


def test_a_half_installed_package_is_forgotten(checkout: Path) -> None:
    packages = run.site_packages()[0]
    for name in ("whole-1.dist-info", "half-1.dist-info"):
        (packages / name).mkdir()
        (packages / name / "METADATA").touch()
    (packages / "whole-1.dist-info/INSTALLER").write_text("pip")

    run.drop_half_installed()

    assert [path.name for path in packages.glob("*.dist-info")] == ["whole-1.dist-info"]


def test_a_failed_command_shows_its_last_words_and_keeps_all_of_them(checkout: Path) -> None:
    program = "for n in range(40): print('line', n)\nraise SystemExit(3)"

    with pytest.raises(run.SetupError) as caught:
        run.run_logged([sys.executable, "-c", program], run.LOG)

    assert "status 3" in str(caught.value)
    assert "line 39" in str(caught.value)
    assert "line 0\n" not in str(caught.value)
    assert "line 0\n" in run.LOG.read_text()


@pytest.mark.skipif(sys.platform != "linux", reason="system packages are Linux'")
def test_packages_that_cannot_be_installed_are_named(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(checkout))  # no apt-get here

    with pytest.raises(run.SetupError, match=r"libEGL\.so\.1.*libegl1"):
        run.apt_install({"libEGL.so.1": "libegl1"})


# --- started as a process -------------------------------------------------------------------------


def test_words_and_exit_status_pass_through_and_stdout_is_the_programs_own(checkout: Path) -> None:
    stamp_as_done(["invite"])
    program = "import sys; print(*sys.argv[1:]); sys.exit(7)"

    result = started(checkout, program, "invite", "--json")

    assert (result.returncode, result.stdout, result.stderr) == (7, "invite --json\n", "")


@pytest.mark.skipif(os.name != "posix", reason="the last check is a shell script here")
def test_all_checks_run_and_the_first_failure_is_the_status(checkout: Path) -> None:
    stamp_as_done(["lint"])
    packages = run.site_packages()[0]
    for name, status in {"ruff": 3, "basedpyright": 5}.items():
        (packages / f"{name}.py").write_text(f"print('{name}', flush=True); exit({status})")
    contracts = run.venv_python().with_name("lint-imports")
    contracts.write_text("#!/bin/sh\necho lint-imports\n")
    contracts.chmod(0o755)

    result = started(checkout, "", "lint")

    assert result.stdout.split() == ["ruff", "ruff", "basedpyright", "lint-imports"]
    assert result.returncode == 3


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux may lack a display")
def test_without_a_display_it_says_so_and_runs_the_demo(checkout: Path) -> None:
    stamp_as_done([])

    result = started(checkout, "import sys; print(sys.argv[1:])")

    assert result.stdout == "['demo']\n"
    assert "no display" in result.stderr


@pytest.mark.skipif(os.name != "posix", reason="POSIX signals")
def test_an_interrupt_reaches_the_program_and_nothing_else_is_said(checkout: Path) -> None:
    stamp_as_done(["worker"])
    (checkout / "potluck.py").write_text(
        "import signal\n"
        "signal.signal(signal.SIGINT, lambda *_: exit(130))\n"
        "print('ready', flush=True)\n"
        "signal.pause()\n"
    )
    command = [sys.executable, checkout / "installers/run.py", "worker"]
    with subprocess.Popen(
        command, cwd=checkout, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGINT)

        assert process.wait(timeout=20) == 130
        assert process.stderr.read() == ""


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_cannot_be_written_to_is_a_sentence(checkout: Path) -> None:
    shutil.rmtree(checkout / ".venv")
    checkout.chmod(0o500)

    result = started(checkout, "", "devices")

    checkout.chmod(0o700)
    assert result.returncode == 1
    assert "cannot be written to" in result.stderr
