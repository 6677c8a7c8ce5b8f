"""Where a node keeps its things on this computer, and what it remembers between starts.

    Folders      config, data, cache and state: the system's own places, or all below one `--home`
    Settings     what the user chose: name, memory, role; JSON, replaced as a whole
    NodeFile     how the window and the commands find the running node: process, port, token
    exclusive    at most one process at a time does this

Read by the node, the commands and the window; everything else gets parameters. The state folder is
private to its owner, since the node's token in it opens everything.
"""

import contextlib
import os
import platform
import time
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, TypeVar

import msgspec
from msgspec import Meta, Struct

from potluck.errors import UsageError
from potluck.files import PRIVATE, try_lock, write_atomically

HOME_VARIABLE = "POTLUCK_HOME"
CPUS_VARIABLE = "POTLUCK_CPUS"
MOST_CPUS = 8
LOCK_POLL_S = 0.05

_T = TypeVar("_T")


class SettingsError(UsageError):
    """A file that the user may have edited is not as it must be; it is left as it is."""

    code = "settings"


class AlreadyRunningError(UsageError):
    """Another process of this user does it already."""

    code = "already_running"


# --- folders


@dataclass(frozen=True, slots=True, kw_only=True)
class Folders:
    """The folders of one node. None of them is made before something is written."""

    home: Path | None  # what `--home` says; None: the system's places
    config: Path
    data: Path  # keys and certificates
    cache: Path  # weights of other computers' models, digests: can be deleted at any time
    state: Path  # the log, and what says where the running node is

    @classmethod
    def of(cls, home: Path | None = None, environ: Mapping[str, str] = os.environ) -> "Folders":
        """The folders below `home`, else below the environment's POTLUCK_HOME, else the system's."""
        if home is None and environ.get(HOME_VARIABLE):
            home = Path(environ[HOME_VARIABLE])
        if home is not None:
            home = home.expanduser().absolute()
            return cls(
                home=home,
                config=home / "config",
                data=home / "data",
                cache=home / "cache",
                state=home / "state",
            )
        import platformdirs  # only here: a command with --home need not wait for it

        places = platformdirs.PlatformDirs("potluck", appauthor=False)
        return cls(
            home=None,
            config=places.user_config_path,
            # Several of these are one folder on Windows and macOS.
            data=places.user_data_path / "data",
            cache=places.user_cache_path / "cache",
            state=places.user_state_path / "state",
        )

    @property
    def settings_file(self) -> Path:
        return self.config / "settings.json"

    @property
    def node_file(self) -> Path:
        # Not in the system's runtime folder: that is another one, or none, under ssh and cron, and
        # there is to be one node per user.
        return self.state / "node.json"

    @property
    def node_lock(self) -> Path:
        """Held by the running node as long as it lives."""
        return self.state / "node.lock"

    @property
    def start_lock(self) -> Path:
        """Held by whoever starts a node until it answers."""
        return self.state / "start.lock"

    @property
    def log_file(self) -> Path:
        """Written by the running node, which bounds it."""
        return self.state / "node.log"

    @property
    def output_file(self) -> Path:
        """What the node that was started last printed besides."""
        return self.state / "node.out"


def cpu_threads(environ: Mapping[str, str] = os.environ) -> tuple[int, ...]:
    """The threads of each of the devices that the CPU is offered as, from POTLUCK_CPUS.

    `8,8` for a computer with two NUMA nodes: `cpu:0` and `cpu:1`, which share the RAM equally. Empty:
    the CPU is one device, with all its cores.

    Raises:
        SettingsError: it is no list of numbers of threads.
    """
    words = environ.get(CPUS_VARIABLE, "").split(",")
    if words == [""]:
        return ()
    threads = tuple(int(word) if word.strip().isdecimal() else 0 for word in words)
    if len(threads) > MOST_CPUS or not all(0 < count <= 1024 for count in threads):
        raise SettingsError(
            f"{CPUS_VARIABLE} is {environ[CPUS_VARIABLE]!r}. It takes the threads of up to"
            f" {MOST_CPUS} devices that the CPU is offered as, such as 8,8."
        )
    return threads


def computer_name() -> str:
    """What this computer is called, without its domain."""
    return platform.node().partition(".")[0].strip()[:128] or "Computer"


# --- what the user chose


class Settings(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Fields that this version does not know are ignored, and lost when it writes."""

    name: Annotated[str, Meta(min_length=1, max_length=128)] | None = None  # None: the computer's
    memory_limit: Annotated[int, Meta(ge=0, lt=1 << 50)] | None = None  # bytes that are lent
    threads: Annotated[int, Meta(ge=1, le=1024)] | None = None  # that compute; None: one per core
    store_limit: Annotated[int, Meta(ge=0, lt=1 << 50)] | None = None
    """Bytes of the disk that other computers' models may take; None: half of the disk."""
    worker: bool = False  # the role that it had when it last ended
    paused: bool = False

    @property
    def shown_name(self) -> str:
        return self.name or computer_name()


def load_settings(file: Path) -> Settings:
    """What is stored, or the defaults where nothing is.

    Raises:
        SettingsError: the file is there and cannot be used; it says why.
    """
    return _load(file, Settings) or Settings()


def save_settings(file: Path, settings: Settings) -> None:
    """Replace the file as a whole."""
    _write(file, msgspec.json.format(msgspec.json.encode(settings), indent=2) + b"\n")


# --- the running node


class NodeFile(Struct, frozen=True, kw_only=True):
    """How to reach the node of this user. The token opens everything: the file is private."""

    pid: int
    port: Annotated[int, Meta(ge=1, le=65535)]
    token: Annotated[str, Meta(min_length=1)]
    version: str


def write_node_file(folders: Folders, node: NodeFile) -> None:
    """Tell where the node is, once it answers."""
    make_private(folders.state)
    _write(folders.node_file, msgspec.json.encode(node))


def read_node_file(folders: Folders) -> NodeFile | None:
    """Where the node says that it is; None: there is none. Whether it lives is another question."""
    try:
        return _load(folders.node_file, NodeFile)
    except SettingsError:  # half-made by no version of ours: not worth a question to the user
        return None


def remove_node_file(folders: Folders, node: NodeFile) -> None:
    """Remove the file if it still speaks of that node."""
    if read_node_file(folders) == node:
        folders.node_file.unlink(missing_ok=True)


# --- one at a time


@contextlib.contextmanager
def exclusive(file: Path, *, wait_s: float = 0.0) -> Generator[None, None, None]:
    """Hold this lock; the system drops it when the process ends, however it ends.

    Raises:
        AlreadyRunningError: another process has it, and still has it after `wait_s` seconds.
    """
    make_private(file.parent)
    descriptor = os.open(file, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        deadline = time.monotonic() + wait_s
        while not try_lock(descriptor):
            if time.monotonic() >= deadline:
                raise AlreadyRunningError("Potluck is already running, or just being started.")
            time.sleep(LOCK_POLL_S)
        yield
    finally:
        os.close(descriptor)  # drops the lock


# --- files


def make_private(folder: Path) -> None:
    """Make the folder, for its owner alone where the system has such a thing."""
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if os.name == "posix":
            folder.chmod(0o700)
    except OSError as error:
        raise SettingsError(
            f"The folder {folder} cannot be used: {error.strerror}. Choose another with --home."
        ) from None


def _load(file: Path, kind: type[_T]) -> _T | None:
    try:
        return msgspec.json.decode(file.read_bytes(), type=kind)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise SettingsError(f"{file} cannot be read: {error.strerror}.") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise SettingsError(
            f"{file} is not as it must be: {error}. Correct it, or delete it to start afresh."
        ) from None


def _write(file: Path, data: bytes) -> None:
    try:
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_atomically(file, data, mode=PRIVATE)
    except OSError as error:
        raise SettingsError(f"{file} cannot be written: {error.strerror}.") from None
