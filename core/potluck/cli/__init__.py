"""The command `potluck`: a client of this computer's node, as the window is.

Nothing is imported before it is known what was asked for: `potluck --version` answers at once, and
no command waits for torch. Answers go to stdout, everything else (progress, questions, errors) to
stderr, so that `--json` and `potluck invite` can be read by scripts.

Exit status: 0 done, 1 failed, 2 asked for wrongly, 3 the model's files, 4 no plan, 5 another
computer, 6 the disk, 7 computing, 130 stopped by Ctrl-C.
"""

import importlib
import io
import os
import signal
import sys
from collections.abc import Callable, Sequence
from types import FrameType
from typing import NoReturn

from potluck.cli.parser import make_parser
from potluck.errors import PotluckError

STOPPED = 130  # as shells report a program that SIGINT ended


def main(words: Sequence[str] | None = None) -> int:
    """Run one command line; the exit status."""
    _speak_utf8()
    options = make_parser().parse_args(words)
    module, _, name = options.run.partition(":")
    command: Callable[..., int] = getattr(importlib.import_module(module), name)
    try:
        for number in ("SIGTERM", "SIGHUP", "SIGBREAK"):  # each where the system has it
            if hasattr(signal, number):
                signal.signal(getattr(signal, number), _terminate)
        return command(options)
    except KeyboardInterrupt:
        return STOPPED
    except BrokenPipeError:
        # The reader of our output went away (`potluck models | head -1`): nobody to tell. What is
        # still buffered goes nowhere, else the interpreter would complain about it at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except PotluckError as error:
        print(f"potluck: {error.message}", file=sys.stderr)
        return error.exit_status


def _speak_utf8() -> None:
    """Pipes and files are UTF-8 on every system, and no character ever ends a command."""
    for stream in (sys.stdin, sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            encoding = stream.encoding if stream.isatty() else "utf-8"
            stream.reconfigure(encoding=encoding, errors="replace")


def _terminate(number: int, frame: FrameType | None) -> NoReturn:
    from potluck.cli.terminal import Terminated

    raise Terminated  # what a command undoes on Ctrl-C, it undoes when it is ended too
