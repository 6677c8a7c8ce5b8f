"""The versions of Potluck beside each other, the link to the one in use, and whether it has come up.

ROOT/tree                    -> versions/0.3.0, replaced at once
ROOT/versions/0.3.0/         a tree; its name is its version, and it is complete
ROOT/versions/.new-0.3.0/    one that is being unpacked; it gets its name when it is complete and on the disk
ROOT/versions/state.json     which one is on trial, which was before it, and which one was left
ROOT/versions/.lock          held while one of the above is changed
ROOT/versions/.unpacking     held from when a version is unpacked until it has its name

A version on trial is one that was switched to and has not come up yet. Whoever starts it counts that first, so that one
that ends, hangs, or takes the computer with it is left after a few starts, whoever starts it then.

Nodes of other --home folders, windows and commands may run from the same folder: a tree that a process runs from stays.
"""

import logging
import os
import shutil
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

import msgspec

from potluck.errors import StoreError
from potluck.files import locked, recall, sync_folder, write_atomically
from potluck.reasons import reason
from potluck.system.durable import keep_all
from potluck.system.installation import CURRENT, VERSIONS, Package, package

logger = logging.getLogger(__name__)

_T = TypeVar("_T")
MOST_STARTS: Final = 3  # of a version that has never come up
LOCKED_S: Final = 20.0  # for another Potluck to switch or to delete a tree
UNPACKING_S: Final = 600.0  # for another one to unpack and try a version
_NEW: Final = ".new-"
_PROCESSES: Final = Path("/proc")


class Failed(msgspec.Struct, frozen=True):
    """A version that was left, and why."""

    version: str
    why: str
    by_owner: bool = False  # who went back from it; else it did not come up


class _State(msgspec.Struct, frozen=True):
    trying: str = ""
    before: str = ""  # used again if that one does not come up
    starts: int = 0  # of the one on trial
    failed: Failed | None = None


class Used(NamedTuple):
    """Which version is in use, and what is known of it."""

    version: str
    state: _State


@dataclass(frozen=True, slots=True)
class Versions:
    """What is installed below one folder. All methods block.

    Attributes:
        root: the folder.
        own: version that this process runs.
    """

    root: Path
    own: str

    @classmethod
    def of(cls, installed: Package | None) -> "Versions | None":
        """Those of a package; None: it is not one that Potluck replaces by itself."""
        if installed is None or installed.root is None:
            return None
        return cls(installed.root, installed.version)

    @classmethod
    def of_this(cls) -> "Versions | None":
        """Those of the package that this process runs from."""
        return cls.of(package())

    @property
    def folder(self) -> Path:
        """The folder of all versions."""
        return self.root / VERSIONS

    @property
    def current(self) -> str:
        """The version in use from the next start on."""
        try:
            return (self.root / CURRENT).readlink().name
        except OSError:
            return self.own

    @property
    def python(self) -> Path:
        """The Python of that version, not by the link: what runs must not find another version's modules later."""
        return self.folder / self.current / "python" / "bin" / "python3"

    @property
    def before(self) -> str | None:
        """The version that was used before, if it is still there; else the newest one there that is older."""
        before, current = self._state().before, self.current
        if before and before != current and (self.folder / before).is_dir():
            return before
        older = (f.name for f in self.folder.glob("*") if f.is_dir() and is_newer(current, f.name))
        return reduce(lambda one, other: one if is_newer(one, other) else other, older, "") or None

    @property
    def failed(self) -> Failed | None:
        """The version that was tried last and left again."""
        return self._state().failed

    @property
    def is_on_trial(self) -> bool:
        """Whether the version in use has never come up, and there is one to go back to."""
        return self._state().trying == self.current and self.before is not None

    def is_writable(self) -> bool:
        """Whether this user may change it."""
        return os.access(self.root, os.W_OK) and os.access(self.folder, os.W_OK)

    @contextmanager
    def unpacking(self, check: Callable[[], None] = lambda: None) -> Generator[None]:
        """Hold what `new` and `add` change. Another Potluck that has it is waited for.

        Args:
            check: called meanwhile; what it raises ends the waiting.

        Raises:
            StoreError: it takes too long, or the disk refuses it.
        """
        with self._holding(".unpacking", UNPACKING_S, check):
            yield

    def new(self, version: str) -> Path:
        """A path for a version that is being unpacked; what others have left there is deleted."""
        for left in self.folder.glob(f"{_NEW}*"):
            shutil.rmtree(left, ignore_errors=True)
        return self.folder / f"{_NEW}{version}"

    def add(self, version: str) -> None:
        """Give a version its name, now that it is complete.

        Raises:
            StoreError: the disk refuses it.
        """
        target = self.folder / version
        try:
            keep_all()  # a power cut must not leave a name without its files
            with self._holding():
                if version == self.current:
                    raise StoreError(f"Potluck {version} is in use already.")
                if version in self._running():
                    raise StoreError(
                        f"Potluck {version} still runs: close its window, end its commands, and try again."
                    )
                if target.exists():
                    shutil.rmtree(target)  # of an earlier try
                (self.folder / f"{_NEW}{version}").replace(target)
                sync_folder(self.folder)
        except OSError as error:
            raise StoreError(f"The new version cannot be installed: {reason(error)}.") from error

    def switch(self, version: str) -> None:
        """Use a version from the next start on; it is on trial until it has come up.

        Raises:
            StoreError: the disk refuses it.
        """
        with self._holding():
            before = self.current
            if version == before:
                return  # another node of this installation has
            if not (self.folder / version).is_dir():
                raise StoreError(f"Potluck {version} was deleted before it was used. Try again.")
            self._write(_State(trying=version, before=before))
            self._point(version)
        logger.info("switched to version %s, before %s", version, before)

    @property
    def used(self) -> Used:
        """What is in use now: `use` brings it back."""
        return Used(self.current, self._state())

    def use(self, used: Used) -> None:
        """Undo a switch.

        Raises:
            StoreError: the disk refuses it.
        """
        with self._holding():
            if self.current != used.version:
                self._point(used.version)
                self._write(used.state)

    def count_start(self) -> bool:
        """Note that the version on trial is being started. False: it was started often enough."""
        with self._holding():
            state = self._state()
            self._write(msgspec.structs.replace(state, starts=state.starts + 1))
        return state.starts < MOST_STARTS

    def came_up(self) -> None:
        """The version that this process runs has come up: it is on trial no more."""
        state = self._state()
        if state.trying != self.own or self.current != self.own:
            return
        logger.info("version %s has come up", self.own)
        with suppress(StoreError), self._holding():  # else it stays on trial until the next start
            self._write(_State(before=state.before))
            self._clean({self.own, state.before})

    def go_back(self, why: str, *, by_owner: bool = False) -> str | None:
        """Use the version before again. Returns which one; None: there is none.

        Raises:
            StoreError: the disk refuses it.
        """
        with self._holding():
            before, left = self.before, self.current
            if before is None:
                return None
            logger.warning("going back from version %s to %s: %s", left, before, why)
            self._point(before)
            self._write(_State(failed=Failed(left, why[:1000], by_owner)))
        return before

    def _point(self, version: str) -> None:
        link, new = self.root / CURRENT, self.root / f".{CURRENT}"
        try:
            new.unlink(missing_ok=True)
            new.symlink_to(Path(VERSIONS) / version, target_is_directory=True)
            new.replace(link)
            sync_folder(self.root)
        except OSError as error:
            raise StoreError(f"Potluck cannot switch to {version}: {reason(error)}.") from error

    def _clean(self, kept: set[str]) -> None:
        """Delete older versions that nobody runs. A newer one may be about to be switched to."""
        kept = kept | self._running()
        for folder in self.folder.iterdir():
            if folder.is_dir() and folder.name not in kept and is_newer(self.own, folder.name):
                shutil.rmtree(folder, ignore_errors=True)

    def _running(self) -> set[str]:
        """The versions that processes run from, as far as this user may see."""
        found: set[str] = set()
        folder = self.folder.resolve()
        for program in _PROCESSES.glob("[0-9]*/exe"):
            with suppress(OSError, ValueError):  # it has ended, or is another user's, or elsewhere
                found.add(program.readlink().relative_to(folder).parts[0])
        return found

    @contextmanager
    def _holding(
        self,
        name: str = ".lock",
        wait_s: float = LOCKED_S,
        check: Callable[[], None] = lambda: None,
    ) -> Generator[None]:
        with ExitStack() as stack:
            try:
                stack.enter_context(locked(self.folder / name, wait_s=wait_s, check=check))
            except TimeoutError:
                raise StoreError(
                    "Another Potluck changes this installation just now. Try again in a few minutes."
                ) from None
            except OSError as error:
                raise StoreError(f"{self.folder} cannot be used: {reason(error)}.") from error
            yield

    def _state(self) -> _State:
        return recall(self._file, _State) or _State()

    def _write(self, state: _State) -> None:
        try:
            write_atomically(self._file, msgspec.json.format(msgspec.json.encode(state)))
        except OSError as error:
            raise StoreError(f"{self._file} cannot be written: {reason(error)}.") from error

    @property
    def _file(self) -> Path:
        return self.folder / "state.json"


def is_newer(version: str, than: str) -> bool:
    """Whether a version comes after another one; what is no version comes after nothing."""
    # Imported here: each command loads this module.
    from packaging.version import InvalidVersion, Version

    try:
        return Version(version) > Version(than)
    except InvalidVersion:
        return False


def started(start: Callable[[], _T], versions: Versions | None, errors: type[Exception]) -> _T:
    """Start Potluck, and start the version before if the one on trial does not come up.

    Args:
        start: starts the version in use.
        versions: that are installed; None: there is nothing to go back to.
        errors: what `start` raises if it does not come up.
    """
    while versions is not None and versions.is_on_trial:
        if not versions.count_start():
            versions.go_back(f"It was started {MOST_STARTS} times and never came up.")
            break
        try:
            return start()
        except errors as error:
            versions.go_back(str(error))
    return start()
