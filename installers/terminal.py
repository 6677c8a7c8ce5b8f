"""What the set-up prints at the terminal: its steps, the commands it runs, and errors.

Uses the standard library only. Everything goes to stderr: stdout belongs to the program to start.
"""

from __future__ import annotations  # an older Python must get as far as saying that it is too old

import errno
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TextIO


class SetupError(Exception):
    """The set-up cannot continue. The message says why and what to do."""


def say(text: str) -> None:
    """Print a line at the terminal."""
    print(text, file=sys.stderr, flush=True)


def explain(error: OSError) -> str:
    """Return what an error of the file system means for the set-up, and what to do."""
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return (
            f"This folder cannot be written to ({error.filename}). Potluck installs itself beside"
            " its own files: copy the checkout to a folder of yours and start it there."
        )
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return (
            "The disk is full, or your share of it. Potluck installs itself beside its own files, and"
            " needs 2 GB there, several times that with an NVIDIA card. Make room, then start again: the same"
            " command goes on where this one stopped."
        )
    return (
        f"The set-up cannot go on: {error}. When that is put right, the same command goes on where"
        " this one stopped."
    )


def run_logged(
    command: Sequence[str | Path], log_file: Path, environ: Mapping[str, str] | None = None
) -> None:
    """Run a command with its output in the log file and its latest line on the terminal.

    Raises:
        SetupError: the command failed; the message ends with the last lines of its output.
    """
    with log_file.open("a", encoding="utf-8") as log:
        log.write(f"\n$ {' '.join(map(str, command))}\n")
        start = log.tell()
        with subprocess.Popen(
            [str(word) for word in command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            errors="replace",
            env={**os.environ, "PYTHONUNBUFFERED": "1", **(environ or {})},
        ) as process:
            assert process.stdout is not None
            try:
                follow(process.stdout, log)
            except KeyboardInterrupt:
                process.wait()  # Ctrl-C reached the command too; let it clean up
                raise
    if process.returncode != 0:
        with log_file.open(encoding="utf-8") as log:
            log.seek(start)
            tail = log.read().splitlines()[-15:]
        raise SetupError(
            f"A step of the set-up failed: {Path(command[0]).name} ended with status"
            f" {process.returncode}. Its last words:\n\n"
            + "\n".join(f"    {line}" for line in tail)
            + f"\n\nAll of it is in {log_file}. If a download failed, check the internet connection."
            " The same command goes on where this one stopped."
        )


def follow(output: Iterable[str], log: TextIO) -> None:
    """Copy lines into the log. On a terminal, show the latest one in a single line."""
    live = sys.stderr.isatty()
    width = shutil.get_terminal_size().columns - 1
    current = ""
    for line in output:
        fraction = download_fraction(line)
        if fraction is None:
            log.write(line)
            log.flush()
            current = line.strip() or current
        if live:
            percent = "" if fraction is None else f" {fraction:.0%}"
            text = f"    {current[: width - 10]}{percent}"
            print(f"\r{text:<{width}}", end="", file=sys.stderr, flush=True)
    if live:
        print(f"\r{'':<{width}}\r", end="", file=sys.stderr, flush=True)


def download_fraction(line: str) -> float | None:
    """Return the progress of a download from pip's raw output, `Progress 1024 of 4096`."""
    words = line.split()
    if len(words) != 4 or words[0] != "Progress" or words[2] != "of":
        return None
    try:
        return int(words[1]) / int(words[3])
    except (ValueError, ZeroDivisionError):
        return None
