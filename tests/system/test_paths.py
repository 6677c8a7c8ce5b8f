"""Long paths are written in the form that Windows takes, and nothing is changed elsewhere."""

from pathlib import Path, PureWindowsPath

import pytest

from potluck.system.paths import of_any_length, verbatim


@pytest.mark.parametrize(
    ("path", "written"),
    [
        (r"C:\Users\Ana\engine", r"\\?\C:\Users\Ana\engine"),
        (r"\\nas\ana\engine", r"\\?\UNC\nas\ana\engine"),
        (r"\\?\C:\Users\Ana", r"\\?\C:\Users\Ana"),
    ],
)
def test_a_path_is_written_so_that_its_length_does_not_count(path: str, written: str) -> None:
    assert verbatim(path) == written
    assert (PureWindowsPath(written) / "torch").name == "torch"


def test_other_systems_have_no_such_form() -> None:
    assert of_any_length(Path("engine"), system="linux") == Path("engine")
    assert str(of_any_length(Path("/engine"), system="win32")) == r"\\?\/engine"
