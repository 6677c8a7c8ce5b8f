"""Terminals, editors and screens as each system has them."""

import pytest

from potluck.system.terminals import editor, has_screen, shows_styles


@pytest.mark.parametrize(
    ("system", "environ", "shown"),
    [
        ("linux", {"TERM": "xterm"}, True),
        ("darwin", {}, True),
        ("linux", {"TERM": "dumb"}, False),
        ("linux", {"TERM": "xterm", "NO_COLOR": "1"}, False),
        ("win32", {}, False),  # an old console
        ("win32", {"WT_SESSION": "5f0c"}, True),  # Windows Terminal
        ("win32", {"TERM": "xterm"}, True),  # a shell of Unix
    ],
)
def test_styles_are_for_terminals_that_show_them(
    system: str, environ: dict[str, str], shown: bool
) -> None:
    assert shows_styles(environ, system=system) is shown


@pytest.mark.parametrize(
    ("system", "environ", "words"),
    [
        ("linux", {}, ["vi"]),
        ("win32", {}, ["notepad"]),
        ("linux", {"EDITOR": " "}, ["vi"]),
        ("linux", {"EDITOR": "nano", "VISUAL": "code --wait"}, ["code", "--wait"]),
        ("darwin", {"EDITOR": "'/my programs/edit' -n"}, ["/my programs/edit", "-n"]),
        ("win32", {"EDITOR": r"C:\edit.exe -n"}, [r"C:\edit.exe", "-n"]),
        ("win32", {"EDITOR": r'"C:\my programs\edit.exe" -n'}, [r"C:\my programs\edit.exe", "-n"]),
    ],
)
def test_the_editor_is_the_persons_or_the_systems(
    system: str, environ: dict[str, str], words: list[str]
) -> None:
    assert editor(environ, system=system) == words


@pytest.mark.parametrize(
    ("system", "environ", "is_there"),
    [
        ("linux", {}, False),
        ("linux", {"DISPLAY": ":0"}, True),
        ("linux", {"WAYLAND_DISPLAY": "wayland-0"}, True),
        ("linux", {"QT_QPA_PLATFORM": "offscreen"}, True),
        ("darwin", {}, True),
        ("win32", {}, True),
    ],
)
def test_only_linux_may_have_no_screen(
    system: str, environ: dict[str, str], is_there: bool
) -> None:
    assert has_screen(environ, system=system) is is_there
