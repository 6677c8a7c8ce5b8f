"""Where a node keeps its files on this computer, and what it remembers between starts.

    Folders      config, data, cache and state: the system's folders, or all in one `--home`
    Settings     what the user chose: name, memory, role; JSON, replaced as a whole
    NodeFile     how the window and the commands find the running node: process, port, token
    exclusive    a lock that at most one process holds

The node, the commands and the window read these files; all other code gets parameters. The state
folder is private to its owner, since it holds the node's token, which gives access to everything.
"""

import contextlib
import os
import platform
import re
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import Annotated, Literal, TypeVar

import msgspec
from msgspec import Meta, Struct

from potluck.api.values.gpus import GpusOff
from potluck.api.values.network import LOWEST_PORT, ChosenInterfaces
from potluck.api.values.politeness import Rules
from potluck.errors import UsageError
from potluck.files import locked, write_atomically
from potluck.reasons import reason

HOME_VARIABLE = "POTLUCK_HOME"
CPUS_VARIABLE = "POTLUCK_CPUS"
INDEX_VARIABLE = "POTLUCK_ENGINE_INDEX"
LOCKS_VARIABLE = "POTLUCK_ENGINE_LOCKS"
MOST_CPUS = 8

_T = TypeVar("_T")
_ENTRY = re.compile(r"`\$\.?([^`]+)`")  # as msgspec names the place of a value


class SettingsError(UsageError):
    """A file that the user may have edited is invalid. It is not changed."""

    code = "settings"


class AlreadyRunningError(UsageError):
    """Another process of this user holds the lock."""

    code = "already_running"


# --- folders


class Folders(Struct, frozen=True, kw_only=True):
    """The folders of one node. A folder is created only when something is written to it."""

    home: Path | None  # the value of `--home`; None: the system's folders
    config: Path
    data: Path  # keys and certificates
    cache: Path  # weights of other computers' models, digests; may be deleted at any time
    state: Path  # logs, compiled kernels, and the file that tells how to reach the running node

    @classmethod
    def of(cls, home: Path | None = None, environ: Mapping[str, str] = os.environ) -> "Folders":
        """Return the folders in `home`, else in the variable POTLUCK_HOME, else the system's."""
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
        import platformdirs  # imported here: a command with --home need not wait for it

        places = platformdirs.PlatformDirs("potluck", appauthor=False)
        return cls(
            home=None,
            config=places.user_config_path,
            # The subfolders are needed: on Windows and macOS, several of these paths are equal.
            data=places.user_data_path / "data",
            cache=places.user_cache_path / "cache",
            state=places.user_state_path / "state",
        )

    @classmethod
    def usual(cls) -> "Folders":
        """Return the system's folders of this user, whatever the variable says."""
        return cls.of(environ={})

    @property
    def settings_file(self) -> Path:
        return self.config / "settings.json"

    @property
    def program_keys(self) -> Path:
        """What is kept of the keys of programs."""
        return self.config / "program-keys.json"

    @property
    def program_key_uses(self) -> Path:
        """When each of them was used last."""
        return self.state / "program-key-uses.json"

    @property
    def sessions(self) -> Path:
        """Caches of conversations, which contain what was said."""
        return self.cache / "sessions"

    @property
    def identity(self) -> Path:
        """The private keys."""
        return self.data / "identity"

    @property
    def by_content(self) -> dict[Literal["settings", "identity", "weights", "logs"], Path]:
        """The folders that are written to, by what they hold."""
        return {
            "settings": self.config,
            "identity": self.identity,
            "weights": self.cache,
            "logs": self.state,
        }

    @property
    def node_file(self) -> Path:
        # Not in the system's runtime folder: under ssh and cron, that folder differs or is missing,
        # and there must be one node per user.
        return self.state / "node.json"

    @property
    def node_lock(self) -> Path:
        """The file that the running node keeps locked."""
        return self.state / "node.lock"

    @property
    def start_lock(self) -> Path:
        """The file that a process keeps locked from starting a node until the node answers."""
        return self.state / "start.lock"

    @property
    def log_file(self) -> Path:
        """The log, which the running node writes and keeps below a maximum size."""
        return self.state / "node.log"

    @property
    def output_file(self) -> Path:
        """What the node printed beside its log since its last start."""
        return self.state / "node.out"


def cpu_threads(environ: Mapping[str, str] = os.environ) -> tuple[int, ...]:
    """Read from POTLUCK_CPUS into how many devices the CPU is split, and the threads of each.

    `8,8` suits a computer with two NUMA nodes: `cpu:0` and `cpu:1`, which share the RAM equally.
    Empty: the CPU is one device with all its cores.

    Raises:
        SettingsError: the variable is not a list of thread counts.
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


def engine_index(settings: "Settings", environ: Mapping[str, str] = os.environ) -> str | None:
    """The package index that the engine is fetched from: of POTLUCK_ENGINE_INDEX, else of the settings.

    Raises:
        SettingsError: it is no address of a web server.
    """
    index = environ.get(INDEX_VARIABLE) or settings.engine_index
    if index is not None and not re.match(r"https?://[^/\s]", index):
        raise SettingsError(
            f"{INDEX_VARIABLE} or engine_index is {index[:200]!r}. It takes the address of a package index, such as"
            " https://pypi.org/simple."
        )
    return index


def engine_locks(environ: Mapping[str, str] = os.environ) -> Path | None:
    """A folder of locks (`pylock.*.toml`) in place of those that came with Potluck, for who builds torch."""
    folder = environ.get(LOCKS_VARIABLE)
    return Path(folder) if folder else None


def computer_name() -> str:
    """Return the host name of this computer without its domain."""
    return platform.node().partition(".")[0].strip()[:128] or "Computer"


# --- what the user chose


class Settings(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the user chose. Unknown fields are ignored, and lost when the file is written."""

    name: Annotated[str, Meta(min_length=1, max_length=128)] | None = None  # None: the host name
    memory_limit: Annotated[int, Meta(ge=0, lt=1 << 50)] | None = None  # bytes that are lent
    threads: Annotated[int, Meta(ge=1, le=1024)] | None = None  # for computing; None: one per core
    store_limit: Annotated[int, Meta(ge=0, lt=1 << 50)] | None = None
    """Bytes of the disk that other computers' models and conversations may take; None: half of the disk."""
    upload_limit_mbit: Annotated[int, Meta(ge=1, le=1_000_000)] | None = None
    """Mbit/s at which weights are sent to other computers at most; None: as fast as it goes."""
    download_limit_mb: Annotated[int, Meta(ge=1, le=1_000_000)] | None = None
    """MB/s at which models are downloaded at most; None: as fast as it goes."""
    idle_unload_s: Annotated[float, Meta(gt=0, lt=1 << 40)] | None = 1800.0
    """A model that answers nobody for so many seconds is unloaded; None: never. Half an hour is longer than the pauses
    of a conversation: to load means that every computer reads its weights again, which takes up to minutes. It is
    shorter than an evening: the memory is that of computers that others want to use."""
    keep_conversations: bool = True
    """Whether caches of conversations are kept on disk, so that a long one goes on quickly after a restart."""
    engine_index: Annotated[str, Meta(min_length=1, max_length=2048)] | None = None
    """A package index (PEP 503) that the engine is fetched from, such as a mirror; None: where this release says."""
    gpus_off: GpusOff = ()
    """Ids of the GPUs that models do not use. One that is not in the computer now keeps its place here."""
    interfaces: ChosenInterfaces = ()
    """Names of the network interfaces that are used; none: all of them."""
    port: Annotated[int, Meta(ge=LOWEST_PORT, le=65535)] | None = None
    """At which other computers reach this one; None: 47777 if it is free, else any."""
    updates: bool = False
    """Whether Potluck asks the Internet each day for a newer version, and follows its main computer to one."""
    worker: bool = False  # the role when the node last ended
    paused: bool = False
    rules: Rules = Rules()
    """When it is not lent by itself."""
    paused_until: float | None = None  # Unix time at which the pause ends; None: its owner ends it

    @property
    def shown_name(self) -> str:
        return self.name or computer_name()


def load_settings(file: Path) -> Settings:
    """Return the stored settings, or the defaults if there are none.

    Raises:
        SettingsError: the file exists and cannot be used; the message says why.
    """
    return _load(file, Settings) or Settings()


def save_settings(file: Path, settings: Settings) -> None:
    """Replace the file as a whole."""
    _write(file, msgspec.json.format(msgspec.json.encode(settings), indent=2) + b"\n")


# --- the running node


class NodeFile(Struct, frozen=True, kw_only=True):
    """How to reach the node of this user. The token gives access to everything: keep it private."""

    pid: int
    port: Annotated[int, Meta(ge=1, le=65535)]
    token: Annotated[str, Meta(min_length=1)]
    version: str


def write_node_file(folders: Folders, node: NodeFile) -> None:
    """Write how to reach the node. Call it once the node answers."""
    make_private(folders.state)
    _write(folders.node_file, msgspec.json.encode(node))


def read_node_file(folders: Folders) -> NodeFile | None:
    """Return how to reach the node; None: there is none. The node may have ended since."""
    try:
        return _load(folders.node_file, NodeFile)
    except SettingsError:  # not written by us: no question to the user
        return None


def remove_node_file(folders: Folders, node: NodeFile) -> None:
    """Remove the file if it still describes that node."""
    if read_node_file(folders) == node:
        folders.node_file.unlink(missing_ok=True)


# --- one at a time


@contextlib.contextmanager
def exclusive(file: Path, *, wait_s: float = 0.0) -> Generator[None, None, None]:
    """Hold the lock on this file. The system releases it when the process ends for any reason.

    Raises:
        AlreadyRunningError: another process still holds the lock after `wait_s` seconds.
    """
    make_private(file.parent)
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(locked(file, wait_s=wait_s))
        except TimeoutError:
            raise AlreadyRunningError(
                "Potluck is already running, or just being started."
            ) from None
        yield


# --- files


def make_private(folder: Path) -> None:
    """Make the folder, accessible only to its owner where the system supports that."""
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        folder.chmod(0o700)
    except OSError as error:
        raise SettingsError(
            f"The folder {folder} cannot be used: {reason(error)}. Choose another with --home."
        ) from None


def _fault(error: Exception) -> str:
    """Say what is wrong with a file of settings, and at which entry."""
    place = _ENTRY.search(str(error))
    return f"is not as it must be at {place[1]}" if place else "is damaged: it is no JSON"


def _load(file: Path, kind: type[_T]) -> _T | None:
    try:
        return msgspec.json.decode(file.read_bytes(), type=kind)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise SettingsError(f"{file} cannot be read: {reason(error)}.") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise SettingsError(
            f"{file} {_fault(error)}. Correct it, or delete it to start afresh."
        ) from None


def _write(file: Path, data: bytes) -> None:
    try:
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_atomically(file, data)
    except OSError as error:
        raise SettingsError(f"{file} cannot be written: {reason(error)}.") from None
