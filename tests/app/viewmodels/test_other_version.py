"""What is started again where window and node are of two versions."""

import msgspec
import pytest
from scripted_window import home

from potluck import __version__
from potluck_app.viewmodels.other_version import to_start_again


@pytest.mark.parametrize(
    ("runs", "started", "again"),
    [
        (__version__, __version__, ""),
        ("99.0", "99.0", "window"),
        ("99.0", __version__, "window"),
        ("0.0.1", __version__, "node"),
        ("0.0.1", "0.0.1", "window"),  # its owner went back: another window is of that version
        ("no version", __version__, ""),
    ],
)
def test_what_is_not_of_the_version_that_starts_now_is_started_again(
    runs: str, started: str, again: str
) -> None:
    state = home()
    state = msgspec.structs.replace(state, node=msgspec.structs.replace(state.node, version=runs))

    assert to_start_again(state, lambda: started) == again
