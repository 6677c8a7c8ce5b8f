"""How the system itself asks for an administrator, who adds the rules of a firewall.

What another process says is never run: a command is, only if it is word for word one of `firewall_rules`.
"""

import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from typing import Final, Literal, TypeAlias

from potluck.system.firewall_rules import FIREWALLS, WINDOWS, lines, open_ports
from potluck.system.starting import hidden

WAIT_S: Final = 180.0  # for a person who looks for the password
_REFUSED: Final = (126, 127)  # pkexec: the person went away from the question, or may not
_NOBODY_ASKS: Final = (
    b"No authentication agent"  # pkexec, with 127: no program of the desktop shows the question
)
_MOST_BYTES: Final = 1 << 16

Outcome: TypeAlias = Literal[
    "done",
    "refused",  # nobody allowed it
    "unasked",  # this system has no way to ask
    "failed",  # it was allowed, and the program did not do it
    "unknown",  # it has not ended in time
]
Start: TypeAlias = Callable[..., "subprocess.Popen[bytes]"]


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
    # Its own agent would ask at the terminal that the window was started from, where nobody looks. What the shell
    # says of a program that is not there, 127, must not be taken for pkexec's.
    script = " && ".join(lines(firewall, port)) + " || exit 1"
    return [pkexec, "--disable-internal-agent", "/bin/sh", "-c", script]


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


def run(
    words: Sequence[str], *, start: Start = subprocess.Popen, wait_s: float = WAIT_S
) -> Outcome:
    """Run what `asking` returned, and wait for the person, for at most `wait_s`. It blocks.

    What has not ended then is left alone: it may be root's, which nobody else can end.
    """
    with tempfile.TemporaryFile() as said:  # no pipe, whose end would end what goes on
        try:
            asked = start(
                list(words),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=said,
                creationflags=hidden(),
            )
            status = asked.wait(wait_s)
        except subprocess.TimeoutExpired:
            return "unknown"
        except OSError:
            return "failed"
        said.seek(0)
        if status in _REFUSED:
            return "unasked" if _NOBODY_ASKS in said.read(_MOST_BYTES) else "refused"
        return "done" if status == 0 else "failed"
