"""The command `potluck`: a client of this computer's node, like the window.

A module is imported only when the command line needs it: `potluck --version` answers at once, the
window opens without the parser of the commands, and no command waits for torch. Answers go to stdout. Everything else (progress, questions, errors) goes
to stderr, so scripts can read the output of `--json` and of `potluck invite`.

Exit status: 0 done, 1 failed, 2 wrong usage, 3 the model's files, 4 no plan, 5 another computer,
6 the disk, 7 computing, 130 stopped by Ctrl-C.
"""

import argparse
import importlib
import io
import os
import signal
import sys
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Final, NoReturn

from potluck.errors import PotluckError

STOPPED = 130  # what shells report for a program that SIGINT ended
WINDOW: Final = {
    "run": "potluck.cli.window:window",
    "home": None,
    "app": "potluck_app",  # a name and no import: core does not depend on the window
}
"""The options of `potluck` without a command."""


def main(words: Sequence[str] | None = None, **values: object) -> int:
    """Run one command line and return its exit status; `values` replace those of the parser."""
    _speak_utf8()
    options = _parsed(sys.argv[1:] if words is None else words)
    vars(options).update(values)
    module, _, name = options.run.partition(":")
    command: Callable[..., int] = getattr(importlib.import_module(module), name)
    try:
        for number in ("SIGTERM", "SIGHUP", "SIGBREAK"):  # not every system has all of them
            if hasattr(signal, number):
                signal.signal(getattr(signal, number), _terminate)
        return command(options)
    except KeyboardInterrupt:
        return STOPPED
    except BrokenPipeError:
        # The reader of our output has gone (`potluck models | head -1`), so nobody can be told. The
        # rest of the buffer goes to the null device, else the interpreter would complain about it
        # when it exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except PotluckError as error:
        from potluck.cli.printing import say

        say(f"potluck: {error.message}")
        return error.exit_status


def _parsed(words: Sequence[str]) -> argparse.Namespace:
    if not words:
        return argparse.Namespace(**WINDOW)
    from potluck.cli.parser import make_parser  # a tenth of the time to the window

    return make_parser().parse_args(words)


def _speak_utf8() -> None:
    """Use UTF-8 for pipes and files on every system, and let no character end a command."""
    for stream in (sys.stdin, sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            encoding = stream.encoding if stream.isatty() else "utf-8"
            stream.reconfigure(encoding=encoding, errors="replace")


def _terminate(number: int, frame: FrameType | None) -> NoReturn:
    from potluck.cli.terminal import Terminated

    raise Terminated  # SIGTERM undoes what Ctrl-C would undo
