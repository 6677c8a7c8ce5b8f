"""Start Potluck with the computer, on its owner's wish, in the way of each system.

The system alone remembers it, and its own settings may turn it off: what holds is read there each
time. A `Place` is where one system keeps such a command.

    Linux      the window: an XDG autostart entry; the worker: a systemd unit of the user
    macOS      a launch agent
    Windows    a value below the Run key of the user
"""

import contextlib
import os
import plistlib
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, Protocol, TypeAlias

from potluck.errors import UsageError
from potluck.files import write_atomically
from potluck.reasons import reason
from potluck.system.installation import Package, package

Program: TypeAlias = Literal["window", "worker"]

_MODULES: Final[dict[Program, tuple[str, ...]]] = {
    "window": ("potluck_app",),
    "worker": ("potluck", "worker"),
}
_RUN: Final = r"Software\Microsoft\Windows\CurrentVersion\Run"
_APPROVED: Final = (
    r"Software\Microsoft\Windows\CurrentVersion\Explorer\StartupApproved\Run"  # the Task Manager's
)


class Place(Protocol):
    """Where a system keeps the command that it starts with the computer."""

    def read(self) -> list[str] | None:
        """Return the command; None: there is none, or it is turned off."""
        ...

    def write(self, command: Sequence[str]) -> None: ...
    def remove(self) -> None: ...


class Autostart:
    """Whether a program starts with the computer."""

    def __init__(self, place: Place, command: Sequence[str]) -> None:
        self._place, self._command = place, list(command)

    @property
    def is_on(self) -> bool:
        try:
            return self._place.read() is not None
        except OSError:
            return False

    def set(self, on: bool) -> None:
        """Start the program with the computer from now on, or do not.

        Raises:
            UsageError: the system does not allow it.
        """
        try:
            if on:
                self._place.write(self._command)
            else:
                self._place.remove()
        except OSError as error:
            raise UsageError(
                f"The start with the computer cannot be changed: {reason(error)}."
            ) from None

    def repair(self) -> None:
        """Write the command anew if its program is not there any more, as after an update."""
        with contextlib.suppress(OSError, UsageError):
            found = self._place.read()
            if found and shutil.which(found[0]) is None:
                self.set(True)


def autostart(
    program: Program, home: Path | None, *, system: str = sys.platform, base: Path | None = None
) -> Autostart:
    """Return the autostart of a program.

    Args:
        program: the window, which starts hidden in the tray, or the command `worker`.
        home: the folder that the node keeps everything in; None: the system's folders.
        system: as in `sys.platform`.
        base: the user's folder; None: the one of this user.
    """
    command = own_command(program, home, system=system)
    return Autostart(_place(program, system, base or Path.home()), command)


def own_command(
    program: Program,
    home: Path | None,
    *,
    system: str = sys.platform,
    installed: Package | None = None,
    hidden: bool = True,
) -> list[str]:
    """Return the command that starts a program of this installation.

    Args:
        program: which one.
        home: the folder that the node keeps everything in; None: the system's folders.
        system: as in `sys.platform`.
        installed: the native package; None: the one that this process runs from, if it does.
        hidden: the window begins in the tray.
    """
    at = [] if home is None else ["--home", str(home)]
    found = installed or package()
    if found is not None and (launcher := found.launcher(program, hidden=hidden)) is not None:
        return [*launcher, *at]
    python = Path(sys.executable)
    if system == "win32" and (quiet := python.with_name("pythonw.exe")).exists():
        python = quiet  # without a console
    there = ["--hidden"] if hidden and program == "window" else []
    return [str(python), "-m", *_MODULES[program], *there, *at]


def _place(program: Program, system: str, base: Path) -> Place:
    name = "potluck" if program == "window" else "potluck-worker"
    if system == "win32":
        import winreg  # exists on Windows alone

        return RunKey(winreg, name)
    if system == "darwin":
        label = f"org.{name}"
        file = base / "Library" / "LaunchAgents" / f"{label}.plist"
        return FilePlace(file, lambda command: launch_agent(label, command), agent_command)
    config = Path(os.environ.get("XDG_CONFIG_HOME") or base / ".config")
    if program == "window":
        file = config / "autostart" / f"{name}.desktop"
        return FilePlace(file, desktop_entry, entry_command)
    units = config / "systemd" / "user"
    wanted = units / "default.target.wants" / f"{name}.service"
    return FilePlace(units / f"{name}.service", service_unit, unit_command, wanted=wanted)


# --- files


@dataclass(frozen=True, slots=True)
class FilePlace:
    """A file with the command.

    Args:
        file: the file.
        make: its contents, for a command.
        parse: the command in such contents; None: it is turned off there, or cannot be read.
        wanted: a link to the file, without which the system does not start it.
    """

    file: Path
    make: Callable[[Sequence[str]], bytes]
    parse: Callable[[bytes], list[str] | None]
    wanted: Path | None = None

    def read(self) -> list[str] | None:
        if self.wanted is not None and not self.wanted.exists():
            return None
        try:
            return self.parse(self.file.read_bytes())
        except FileNotFoundError:
            return None

    def write(self, command: Sequence[str]) -> None:
        self.file.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(self.file, self.make(command))
        if self.wanted is not None:
            self.wanted.parent.mkdir(parents=True, exist_ok=True)
            self.wanted.unlink(missing_ok=True)
            self.wanted.symlink_to(self.file)

    def remove(self) -> None:
        if self.wanted is not None:
            self.wanted.unlink(missing_ok=True)
        self.file.unlink(missing_ok=True)


def desktop_entry(command: Sequence[str]) -> bytes:
    """Return an XDG autostart entry (Desktop Entry Specification 1.5)."""
    words = " ".join(_quoted(word, '"`$\\') for word in command)
    line = words.replace("%", "%%").replace("\\", "\\\\")  # strings of entries have escapes, too
    # A desktop passes over the entry when the program was removed.
    tried = f"TryExec={command[0]}\n" if _is_plain(command[0]) else ""
    return (
        "[Desktop Entry]\nType=Application\nName=Potluck\nComment=Lends this computer to your others\n"
        f"Icon=potluck\nTerminal=false\n{tried}Exec={line}\n"
    ).encode()


def entry_command(data: bytes) -> list[str] | None:
    """Return the command of an autostart entry, unless the desktop's settings turned it off."""
    fields = _fields(data)
    off = fields.get("Hidden") == "true" or fields.get("X-GNOME-Autostart-enabled") == "false"
    line = fields.get("Exec", "").replace("\\\\", "\\").replace("%%", "%")
    return None if off else _words(line) or None


def service_unit(command: Sequence[str]) -> bytes:
    """Return a unit of the user's systemd (systemd.service(5))."""
    line = " ".join(_quoted(word, '"\\') for word in command)
    line = line.replace("%", "%%").replace("$", "$$")
    # The unit is passed over when the program was removed.
    there = f"ConditionPathExists={command[0]}\n" if _is_plain(command[0]) else ""
    return (
        f"[Unit]\nDescription=Potluck lends this computer\n{there}\n"
        f"[Service]\nExecStart={line}\nRestart=on-failure\n\n[Install]\nWantedBy=default.target\n"
    ).encode()


def unit_command(data: bytes) -> list[str] | None:
    """Return the command of a unit."""
    line = _fields(data).get("ExecStart", "").replace("$$", "$").replace("%%", "%")
    return _words(line) or None


def launch_agent(label: str, command: Sequence[str]) -> bytes:
    """Return a property list of a launch agent (launchd.plist(5))."""
    return plistlib.dumps({"Label": label, "ProgramArguments": list(command), "RunAtLoad": True})


def agent_command(data: bytes) -> list[str] | None:
    """Return the command of a launch agent, unless it is disabled."""
    try:
        agent = plistlib.loads(data)
        command = [str(word) for word in agent["ProgramArguments"]]
    except (plistlib.InvalidFileException, KeyError, TypeError, ValueError):
        return None
    return None if agent.get("Disabled") else command or None


def _is_plain(word: str) -> bool:
    return re.fullmatch(r"[\w./:=@+,-]+", word, re.ASCII) is not None


def _quoted(word: str, special: str) -> str:
    """Quote a word where it needs it; these characters are escaped in quotes."""
    if _is_plain(word):
        return word
    return '"' + re.sub(f"([{re.escape(special)}])", r"\\\1", word) + '"'


def _words(line: str) -> list[str]:
    """Split a line into words, some of which are in quotes, with escapes."""
    found = re.findall(r'"((?:[^"\\]|\\.)*)"|(\S+)', line)
    return [re.sub(r"\\(.)", r"\1", quoted) or plain for quoted, plain in found]


def _fields(data: bytes) -> dict[str, str]:
    lines = data.decode(errors="replace").splitlines()
    pairs = (line.partition("=") for line in lines if "=" in line)
    return {name.strip(): value.strip() for name, _, value in pairs}


# --- Windows


class RunKey:
    """A value below the Run key of the user.

    Args:
        registry: the module `winreg`.
        name: of the value.
    """

    def __init__(self, registry: Any, name: str) -> None:
        self._registry, self._name = registry, name

    def read(self) -> list[str] | None:
        line, approved = self._value(_RUN), self._value(_APPROVED)
        if not isinstance(line, str) or (approved and approved[0] % 2):  # odd: turned off there
            return None
        return _words(line.replace("\\", "\\\\")) or None

    def _value(self, key: str) -> Any:
        registry = self._registry
        try:
            with registry.OpenKey(registry.HKEY_CURRENT_USER, key) as opened:
                return registry.QueryValueEx(opened, self._name)[0]
        except FileNotFoundError:
            return None

    def write(self, command: Sequence[str]) -> None:
        registry = self._registry
        line = subprocess.list2cmdline(command)
        with registry.CreateKey(registry.HKEY_CURRENT_USER, _RUN) as key:
            registry.SetValueEx(key, self._name, 0, registry.REG_SZ, line)
        self._delete(_APPROVED)  # else what was turned off there stays off

    def remove(self) -> None:
        self._delete(_RUN)

    def _delete(self, key: str) -> None:
        registry = self._registry
        with (
            contextlib.suppress(FileNotFoundError),
            registry.OpenKey(registry.HKEY_CURRENT_USER, key, 0, registry.KEY_SET_VALUE) as opened,
        ):
            registry.DeleteValue(opened, self._name)
