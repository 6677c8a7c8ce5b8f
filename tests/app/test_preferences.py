"""What the window remembers."""

from pathlib import Path

from potluck_app.preferences import Preferences, PreferencesFile


def test_what_was_chosen_comes_back(tmp_path: Path) -> None:
    file = tmp_path / "config" / "window.json"
    PreferencesFile(file).change(mode="worker", theme="dark")

    assert PreferencesFile(file).current == Preferences(mode="worker", theme="dark")


def test_a_broken_file_costs_the_memory_not_the_window(tmp_path: Path) -> None:
    file = tmp_path / "window.json"
    file.write_text('{"theme": "purple"}')

    preferences = PreferencesFile(file)
    assert preferences.current == Preferences()
    preferences.change(width=900)

    assert PreferencesFile(file).current.width == 900


def test_a_disk_that_refuses_costs_the_memory_not_the_window(tmp_path: Path) -> None:
    (tmp_path / "config").write_text("a file in the place of the folder")
    preferences = PreferencesFile(tmp_path / "config" / "window.json")

    preferences.change(mode="master")

    assert preferences.current.mode == "master"
