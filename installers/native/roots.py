"""A Debian of its own in a folder, to try packages in: entered by chroot, as a user without rights."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
from pathlib import Path

from native.project import BuildError

USER = "ann"
_MOUNTS = (("proc", "proc"), ("tmpfs", "dev/shm"), ("tmpfs", "tmp"))
_DEVICES = ("null", "zero", "full", "random", "urandom", "tty")


class Root:
    """One such folder. Leaving it ends what runs there, and unmounts.

    Args:
        folder: where it is.
        namespace: of the network, in which everything runs; None: that of this computer.
    """

    def __init__(self, folder: Path, namespace: str | None = None) -> None:
        self.folder, self.namespace = folder, namespace
        self._mounted: list[Path] = []

    def __enter__(self) -> Root:
        for kind, name in _MOUNTS:
            where = self.folder / name
            where.mkdir(parents=True, exist_ok=True)
            run("mount", "-t", kind, kind, str(where))
            self._mounted.append(where)
        for name in _DEVICES:
            where = self.folder / "dev" / name
            if not where.exists():
                where.touch()
            if not where.is_char_device():
                run("mount", "--bind", f"/dev/{name}", str(where))
                self._mounted.append(where)
        return self

    def __exit__(self, *_: object) -> None:
        self.end(signal.SIGKILL)
        for where in reversed(self._mounted):
            run("umount", "--lazy", str(where))
        self._mounted.clear()

    def bind(self, source: Path, name: str) -> Path:
        """Show a folder of this computer in the root, to read; returns where it is there."""
        where = self.folder / name
        where.mkdir(parents=True, exist_ok=True)
        run("mount", "--bind", "-o", "ro", str(source), str(where))
        self._mounted.append(where)
        return Path("/") / name

    def processes(self) -> list[int]:
        """Return the processes that run in it."""
        found: list[int] = []
        for entry in Path("/proc").iterdir():
            try:
                root = (entry / "root").readlink() if entry.name.isdigit() else None
            except OSError:
                continue  # it has ended
            if root == self.folder:
                found.append(int(entry.name))
        return found

    def end(self, by: signal.Signals) -> None:
        """Send a signal to all that runs in it."""
        for process in self.processes():
            with contextlib.suppress(ProcessLookupError):  # it has ended by itself
                os.kill(process, by)

    def command(self, *words: str, user: str | None = USER, **environ: str) -> list[str]:
        """Return the command that runs a command in it."""
        within = ["ip", "netns", "exec", self.namespace] if self.namespace else []
        who = ["--userspec", f"{user}:{user}"] if user else []
        home = f"/home/{user}" if user else "/root"
        path = f"{home}/.local/bin:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"
        values = {
            "HOME": home,
            "PATH": path,
            "LANG": "C.UTF-8",
            "DEBIAN_FRONTEND": "noninteractive",
        }
        given = [f"{name}={value}" for name, value in (values | environ).items()]
        return [*within, "chroot", *who, str(self.folder), "env", "-i", *given, *words]

    def run(
        self, *words: str, user: str | None = USER, limit_s: float = 300, **environ: str
    ) -> str:
        """Run a command to its end, and return what it prints.

        Raises:
            BuildError: it failed or took too long.
        """
        return run(*self.command(*words, user=user, **environ), limit_s=limit_s)

    def has(self, program: str) -> bool:
        """Return whether a program is there."""
        words = self.command("sh", "-c", f"command -v {program}")
        return subprocess.run(words, capture_output=True).returncode == 0


def make(suite: str, base: Path, target: Path) -> Path:
    """Make a root with a user, as a copy of one that is made once.

    Args:
        suite: a release of Debian, such as `bookworm`.
        base: the folder with what is made once.
        target: the root.
    """
    first = base / suite
    if not (first / "home" / USER).exists():
        shutil.rmtree(first, ignore_errors=True)
        base.mkdir(parents=True, exist_ok=True)
        run("debootstrap", "--variant=minbase", suite, str(first), limit_s=600)
        run("chroot", str(first), "useradd", "--create-home", USER)
    if target.exists():
        shutil.rmtree(target)
    run("cp", "-a", str(first), str(target))
    shutil.copy("/etc/resolv.conf", target / "etc" / "resolv.conf")
    return target


def run(*words: str, limit_s: float = 300) -> str:
    """Run a command and return what it prints.

    Raises:
        BuildError: it failed or took too long.
    """
    try:
        ended = subprocess.run(words, capture_output=True, text=True, timeout=limit_s)
    except FileNotFoundError:
        raise BuildError(f"{words[0]} is missing. Install it, then try again.") from None
    except subprocess.TimeoutExpired:
        raise BuildError(f"{' '.join(words[-6:])} took longer than {limit_s:.0f} s.") from None
    if ended.returncode:
        said = f"{ended.stderr[-2000:]}{ended.stdout[-1000:]}"  # a refusal is on stdout
        raise BuildError(f"{' '.join(words[-6:])} failed:\n{said.strip()}")
    return ended.stdout
