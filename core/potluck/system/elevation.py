"""How the system itself asks for an administrator, who adds the rules of a firewall.

What another process says is never run: a command is, only if it is word for word one of `firewall_rules`.
"""

import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Final, Literal, TypeAlias

from potluck.system.firewall_rules import FIREWALLS, WINDOWS, lines, open_ports
from potluck.system.starting import hidden

WAIT_S: Final = 180.0  # for a person who looks for the password
_REFUSED: Final = (126, 127)  # pkexec: the person went away from the question, or may not

Outcome: TypeAlias = Literal[
    "done",
    "refused",  # nobody allowed it
    "failed",  # it was allowed, and the program did not do it
]
Run: TypeAlias = Callable[..., "subprocess.CompletedProcess[bytes]"]


def asking(command: str, *, system: str = sys.platform) -> Sequence[str] | None:
    """The words of the program that asks for an administrator and runs this command as one.

    None: it is none of these, or this system has nothing that asks.
    """
    found = (
        (firewall, port)
        for firewall in FIREWALLS
        for port in map(int, re.findall(r"\d{1,5}", command))
        if command == open_ports(firewall, port)
    )
    firewall, port = next(found, ("", 0))
    if not firewall or (firewall == WINDOWS) != (system == "win32"):
        return None
    if system == "win32":
        return _by_uac(lines(firewall, port)[0])
    if system != "linux" or (pkexec := shutil.which("pkexec")) is None:
        return None
    return [pkexec, "/bin/sh", "-c", " && ".join(lines(firewall, port))]


def _by_uac(line: str) -> Sequence[str]:
    program, _, words = line.partition(" ")
    script = (
        f"$p = Start-Process {program} -ArgumentList '{words}' -Verb RunAs -WindowStyle Hidden -Wait -PassThru;"
        " exit $p.ExitCode"
    )
    return [
        "powershell",
        "-NoProfile",
        "-Command",
        f"try {{ {script} }} catch {{ exit {_REFUSED[0]} }}",
    ]


def shown(words: Sequence[str]) -> str:
    """What is run, as text."""
    return shlex.join(words) if words[0] != "powershell" else " ".join(words)


def run(words: Sequence[str], *, start: Run = subprocess.run) -> Outcome:
    """Run what `asking` returned, and wait for the person. It blocks."""
    try:
        done = start(
            list(words),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=WAIT_S,
            check=False,
            creationflags=hidden(),
        )
    except subprocess.TimeoutExpired:
        return "refused"
    except OSError:
        return "failed"
    if done.returncode == 0:
        return "done"
    return "refused" if done.returncode in _REFUSED else "failed"
