"""`potluck` without a command, and the hidden command `potluck node`."""

import argparse
import importlib.util
import os
import runpy
import sys

import msgspec

from potluck.errors import UsageError
from potluck.launch import find_or_start
from potluck.settings import HOME_VARIABLE, Folders, load_settings, save_settings
from potluck.system.terminals import has_screen


def window(options: argparse.Namespace) -> int:
    """Open the window in this process."""
    if options.home is not None:
        os.environ[HOME_VARIABLE] = str(Folders.of(options.home).home)
    _check_display()
    if importlib.util.find_spec(options.app) is None:
        raise UsageError("The window is not installed. The commands work: potluck --help")
    if importlib.util.find_spec("PySide6") is None:
        raise UsageError(
            "The window is not installed: it needs Qt, which `pip install 'potluck[window]'` adds. (On Linux on"
            " Arm that takes glibc 2.39, as in Debian 13 and Ubuntu 24.04, or a Python before 3.14.) The"
            " commands work: potluck --help"
        )
    sys.argv[1:] = []
    runpy.run_module(
        options.app, run_name="__main__", alter_sys=True
    )  # ends the process with its status
    return 0


def _check_display() -> None:
    if not has_screen(os.environ):
        raise UsageError(
            "There is no screen here to open the window on."
            " Try `potluck demo`, or `potluck --help` for what works in a terminal."
        )


def node(options: argparse.Namespace) -> int:
    """Run the node until it is asked to end or has been idle for long enough."""
    folders = Folders.of(options.home)
    if options.name is not None:
        settings = load_settings(folders.settings_file)
        save_settings(folders.settings_file, msgspec.structs.replace(settings, name=options.name))
    from potluck.cluster.serving import (
        run,  # imported here, since only the node needs an event loop
    )

    if run(folders):  # it has switched to another version
        find_or_start(folders)
    return 0
