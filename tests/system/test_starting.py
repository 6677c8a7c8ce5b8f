"""Processes that nobody is to see."""

import subprocess
import sys

import pytest

from potluck.system.starting import NEW_PROCESS_GROUP, NO_WINDOW, hidden


def test_only_windows_has_flags_and_those_of_its_own_group_are_two() -> None:
    assert hidden(system="win32") == NO_WINDOW
    assert hidden(alone=True, system="win32") == NO_WINDOW | NEW_PROCESS_GROUP
    assert hidden(alone=True, system="linux") == hidden(system="darwin") == 0


@pytest.mark.skipif(sys.platform != "win32", reason="Python has the names on Windows alone")
def test_the_flags_are_those_of_windows() -> None:
    assert getattr(subprocess, "CREATE_NO_WINDOW") == NO_WINDOW  # noqa: B009
    assert getattr(subprocess, "CREATE_NEW_PROCESS_GROUP") == NEW_PROCESS_GROUP  # noqa: B009
