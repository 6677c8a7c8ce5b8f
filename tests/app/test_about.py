"""What the program says about itself, and what it keeps back in a report."""

import platform
import re
from pathlib import Path

import pytest
from PySide6.QtGui import QGuiApplication
from PySide6.QtWidgets import QLabel, QPushButton
from pytestqt.qtbot import QtBot
from scripted_window import home

from potluck import __version__
from potluck_app import about
from potluck_app.views.options.about import AboutCard

LOG = """\
2026-11-23 10:00:00,001 INFO potluck.cluster.node node is up node=1111 port=47777
2026-11-23 10:00:01,001 WARNING potluck.hub refused token=hf_abcdefghijklmnop Authorization: Bearer s3cret
2026-11-23 10:00:02,001 ERROR potluck.api key 0123456789abcdef0123456789abcdef of {home}/.local
Traceback (most recent call last):
  "tell me about my illness"
"""


@pytest.fixture
def log(tmp_path: Path) -> Path:
    file = tmp_path / "node.log"
    file.write_text(LOG.format(home=Path.home()))
    return file


def test_every_package_that_is_used_has_its_licence() -> None:
    found = {package.name.lower(): package for package in about.packages()}

    assert {"potluck", "torch", "starlette", "anyio", "pyside6_essentials"} <= set(found)
    assert "pytest" not in found
    assert "Apache" in found["potluck"].license
    assert all(package.license and package.version for package in found.values())


def test_a_report_has_versions_devices_and_the_log(log: Path) -> None:
    text = about.report(home(), "6.11", log)

    version = re.escape(__version__)  # of the window; the node in the background has another
    assert re.search(rf"^Potluck {version}, in the background 0\.1$", text, re.MULTILINE)
    assert "Some CPU · 16 GB memory" in text
    assert "node is up node=1111 port=47777" in text


DEBIAN = {"NAME": "Debian GNU/Linux", "VERSION_ID": "13", "PRETTY_NAME": "Debian GNU/Linux 13"}


@pytest.mark.parametrize(
    ("seen", "release", "mac", "line"),
    [
        (("Linux", "6.12.41+deb13-amd64", "#1 SMP", "x86_64"), DEBIAN, "", "Debian 13, Linux 6.12, 64-bit x86"),
        (("Linux", "6.17.1-arch1-1", "#1", "x86_64"), {"NAME": "Arch Linux"}, "", "Arch Linux, Linux 6.17, 64-bit x86"),
        (("Linux", "6.1.0-rpi7", "#1", "aarch64"), {}, "", "Linux 6.1, 64-bit ARM"),
        (("Linux", "6.12.0", "#1", "riscv64"), DEBIAN, "", "Debian 13, Linux 6.12, riscv64"),
        (("Darwin", "24.1.0", "Darwin Kernel", "arm64"), {}, "15.1", "macOS 15.1, Apple silicon"),
        (("Darwin", "22.6.0", "Darwin Kernel", "x86_64"), {}, "13.5", "macOS 13.5, Intel"),
        (("Windows", "10", "10.0.26100", "AMD64"), {}, "", "Windows 11, build 26100, 64-bit x86"),
        (("Windows", "10", "10.0.19045", "AMD64"), {}, "", "Windows 10, build 19045, 64-bit x86"),
        (("Windows", "11", "10.0.22631", "ARM64"), {}, "", "Windows 11, build 22631, 64-bit ARM"),
        (("Windows", "2025Server", "10.0.26100", "AMD64"), {}, "", "Windows Server 2025, build 26100, 64-bit x86"),
        (("Windows", "2022Server", "10.0.26100", "AMD64"), {}, "", "Windows Server 2025, build 26100, 64-bit x86"),
        (("Windows", "2022Server", "10.0.20348", "AMD64"), {}, "", "Windows Server 2022, build 20348, 64-bit x86"),
        (("Windows", "2012ServerR2", "6.3.9600", "AMD64"), {}, "", "Windows Server 2012R2, build 9600, 64-bit x86"),
    ],
)  # fmt: skip
def test_the_system_is_said_as_people_name_it(
    seen: tuple[str, str, str, str], release: dict[str, str], mac: str, line: str
) -> None:
    system, version, build, machine = seen
    uname = platform.uname_result(system, "desk", version, build, machine)

    assert about.system_line(uname, release, mac) == line


def test_a_report_has_the_whole_version_of_the_system(log: Path) -> None:
    assert platform.platform() in about.report(home(), "6.11", log)


@pytest.mark.parametrize(
    ("version", "line"),
    [
        ("2.13.0+cpu", "PyTorch 2.13.0, for processors (cpu)"),
        ("2.13.0+cu126", "PyTorch 2.13.0, for NVIDIA graphics cards (cu126)"),
        ("2.13.0+rocm6.4", "PyTorch 2.13.0, for AMD graphics cards (rocm6.4)"),
        ("2.13.0", "PyTorch 2.13.0, as published"),
    ],
)
def test_the_engine_is_told_with_what_it_was_made_for(
    monkeypatch: pytest.MonkeyPatch, version: str, line: str
) -> None:
    monkeypatch.setattr(about.metadata, "version", lambda name: version)

    assert about.engine_line.__wrapped__() == line


def test_the_engine_of_this_installation_is_in_the_report(log: Path) -> None:
    assert about.engine_line() in about.report(home(), "6.11", log)
    assert about.engine_line().startswith("PyTorch")


def test_a_report_has_no_token_no_key_no_traceback_and_no_name_of_the_user(log: Path) -> None:
    text = about.report(home(), "6.11", log)

    for secret in ("hf_", "s3cret", "0123456789abcdef", "illness", str(Path.home())):
        assert secret not in text


def test_a_report_of_a_long_log_has_its_end(tmp_path: Path) -> None:
    file = tmp_path / "node.log"
    file.write_text("".join(f"2026-11-23 10:00:00 INFO x record {n}\n" for n in range(100_000)))

    text = about.report(None, "6.11", file)

    assert text.endswith("record 99999")
    assert len(text.splitlines()) < 100


def test_without_a_log_the_report_says_so(tmp_path: Path) -> None:
    assert about.report(None, "6.11", tmp_path / "none.log").endswith("There is no log.")


@pytest.mark.qt
def test_a_report_is_copied_and_licences_are_shown(log: Path, qtbot: QtBot) -> None:
    card = AboutCard(log)
    qtbot.addWidget(card)
    card.show()
    copy = card.findChild(QPushButton, "about-report")
    assert copy is not None

    copy.click()
    assert "node is up" in QGuiApplication.clipboard().text()
    assert card.said.isVisible()
    dialog = card.show_licences()

    assert any(each.text().startswith("torch ") for each in dialog.findChildren(QLabel))
    assert dialog.height() <= 800  # the list scrolls
