"""The environment that a start makes: step by step, each once, and again when it must."""

import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
from installer import lock, machine


def noted(done: list[str], name: str) -> Callable[[], None]:
    return lambda: done.append(name)


def test_a_finished_step_is_not_done_again(run: ModuleType) -> None:
    done: list[str] = []
    steps = [run.Step(name, name, "1", noted(done, name)) for name in ("one", "two")]

    run.set_up(steps)
    run.set_up(steps)

    assert done == ["one", "two"]


def test_a_step_whose_key_changed_is_done_again(run: ModuleType) -> None:
    done: list[str] = []

    run.set_up([run.Step("one", "one", "old", noted(done, "old"))])
    run.set_up([run.Step("one", "one", "new", noted(done, "new"))])

    assert done == ["old", "new"]


def test_after_a_failure_the_steps_before_it_stay_done(run: ModuleType) -> None:
    done: list[str] = []

    def fail() -> None:
        raise run.SetupError("no network")

    with pytest.raises(run.SetupError):
        run.set_up([run.Step("one", "", "1", noted(done, "one")), run.Step("two", "", "1", fail)])
    run.set_up([run.Step(name, "", "1", noted(done, f"{name} again")) for name in ("one", "two")])

    assert done == ["one", "two again"]


def test_a_broken_stamp_file_means_that_nothing_is_done(run: ModuleType) -> None:
    run.STAMPS.write_text('{"one": "1"')

    assert run.read_stamps() == {}


def test_stamps_of_an_environment_without_its_python_do_not_count(run: ModuleType) -> None:
    run.STAMPS.write_text('{"one": "1"}')
    run.venv_python().unlink()

    assert run.read_stamps() == {}


def test_stamps_of_an_environment_whose_python_was_replaced_do_not_count(
    checkout: Path, run: ModuleType
) -> None:
    run.STAMPS.write_text('{"one": "1"}')
    config = checkout / ".venv/pyvenv.cfg"
    version = "{}.{}".format(*sys.version_info[:2])

    before = run.read_stamps()
    config.write_text(config.read_text().replace(f"version = {version}", "version = 3.9"))

    assert before == {"one": "1"}
    assert run.read_stamps() == {}


def test_a_new_environment_means_that_every_step_is_done_again(run: ModuleType) -> None:
    done: list[str] = []
    first, second = (run.Step(name, "", "1", noted(done, name)) for name in ("venv", "torch"))

    run.set_up([first, second])
    run.set_up([run.Step("venv", "", "2", noted(done, "new venv")), second])

    assert done == ["venv", "torch", "new venv", "torch"]


def test_an_environment_without_pip_is_kept_and_gets_one(
    checkout: Path, run: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = run.site_packages()[0] / "own.py"
    own.touch()
    installer = checkout / "fake/ensurepip"  # the real one takes seconds
    installer.mkdir(parents=True)
    (installer / "__init__.py").touch()
    (installer / "__main__.py").write_text(
        "import pathlib, sysconfig\n"
        "pip = pathlib.Path(sysconfig.get_path('purelib')) / 'pip.py'\n"
        "pip.write_text('print(\"pip 26.1 from here\")')\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(installer.parent))

    run.make_venv()

    assert own.exists()
    assert machine.pip_version(run.venv_python()) == (26, 1)


@pytest.mark.slow  # makes an environment with pip: 3 s alone
def test_an_environment_whose_python_does_not_run_is_made_anew(
    run: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = run.site_packages()[0] / "own.py"
    own.touch()
    run.venv_python().unlink()
    # pip finds nothing to download, so that the one that came with Python must do.
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)

    run.make_venv()

    assert not own.exists()
    assert machine.venv_version(run.VENV, run.venv_python()) == sys.version_info[:2]
    assert machine.pip_version(run.venv_python()) is not None


def test_an_environment_of_an_older_python_is_left_alone(run: ModuleType) -> None:
    with pytest.raises(run.SetupError, match="Delete or rename"):
        run.make_venv(minimum=(3, 99))

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
    run: ModuleType, version: str, words: list[str]
) -> None:
    (run.site_packages()[0] / "pip.py").write_text(
        "import sys\n"
        f"print('pip {version} from here' if sys.argv[1:] == ['--version'] else sys.argv[1:])\n"
    )

    run.pip_install("torch")

    assert run.LOG.read_text().splitlines()[-1] == str(words)


def test_two_starts_at_once_take_turns_and_the_second_finds_all_done(run: ModuleType) -> None:
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


def test_a_half_installed_package_is_forgotten(run: ModuleType) -> None:
    packages = run.site_packages()[0]
    for name in ("whole-1.dist-info", "half-1.dist-info"):
        (packages / name).mkdir()
        (packages / name / "METADATA").touch()
    (packages / "whole-1.dist-info/INSTALLER").write_text("pip")

    run.drop_half_installed()

    assert [path.name for path in packages.glob("*.dist-info")] == ["whole-1.dist-info"]


def test_a_failed_command_shows_its_last_words_and_keeps_all_of_them(run: ModuleType) -> None:
    program = "for n in range(40): print('line', n)\nraise SystemExit(3)"

    with pytest.raises(run.SetupError) as caught:
        run.run_logged([sys.executable, "-c", program], run.LOG)

    assert "status 3" in str(caught.value)
    assert "line 39" in str(caught.value)
    assert "line 0\n" not in str(caught.value)
    assert "line 0\n" in run.LOG.read_text()


@pytest.mark.skipif(sys.platform != "linux", reason="system packages are Linux'")
def test_packages_that_cannot_be_installed_are_named(
    checkout: Path, run: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(checkout))  # no apt-get here

    with pytest.raises(run.SetupError, match=r"libEGL\.so\.1.*libegl1"):
        run.apt_install({"libEGL.so.1": "libegl1"})
