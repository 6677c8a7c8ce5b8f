"""The engine that is installed: a folder that is complete, a file that names it, and the one before.

engine/current.json      which folder is used, and which one was before
engine/<16 hex>/         an unpacked engine, by the digest of its wheels; without `.whole` in it, it counts for nothing
                         (unpacked anew beside itself, it has the digest of that digest)
engine/.new-<16 hex>/    one that is being unpacked; it gets its name when it is complete
engine/wheels/           wheels by their SHA-256, for this computer and the others of its homes
"""

import hashlib
import importlib.util
import logging
import shutil
import sys
import sysconfig
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Final

import msgspec

from potluck.errors import EngineError, StoreError
from potluck.files import recall, replace, sync_folder, write_atomically
from potluck.ids import Digest
from potluck.reasons import reason
from potluck.runtime.choice import Choice
from potluck.runtime.stopping import go_on
from potluck.runtime.trial import try_engine
from potluck.runtime.wheel import unpack
from potluck.system.paths import of_any_length

logger = logging.getLogger(__name__)

_NAME: Final = 16  # hex characters of a digest; whole ones make paths too long for Windows
_NEW: Final = ".new-"
_WHOLE: Final = ".whole"  # a file that is written last and deleted first

Unpacked = Callable[[int, int], None]
"""Called with (bytes of wheels that are unpacked, bytes of all)."""


class _Engine(msgspec.Struct, frozen=True):
    folder: str
    variant: str
    version: str
    python: str


class _Current(msgspec.Struct, frozen=True):
    engine: _Engine
    before: _Engine | None = None  # used again if this one does not work


def has_own_torch() -> bool:
    """Whether this Python finds torch by itself; it is not imported."""
    try:
        return importlib.util.find_spec("torch") is not None
    except (ImportError, ValueError):  # one that is half there
        return False


def is_installed(package: str) -> bool:
    """Whether Potluck's own environment has a package."""
    try:
        metadata.version(package)
    except metadata.PackageNotFoundError:
        return False
    return True


def this_python() -> str:
    """What an engine was unpacked for: `cpython-311 linux-x86_64`."""
    return f"{sys.implementation.cache_tag} {sysconfig.get_platform()}"


@dataclass(frozen=True, slots=True)
class Installed:
    """What is installed in one folder. All methods block."""

    root: Path
    try_engine: Callable[[Path, threading.Event], str] = try_engine

    @classmethod
    def below(cls, data: Path) -> "Installed":
        """That of a data folder of Potluck."""
        return cls(data / "engine")

    @property
    def wheels(self) -> Path:
        """Where wheels are kept."""
        return self.root / "wheels"

    def engine(self) -> _Engine | None:
        """The engine in use; None: there is none for this Python."""
        current = self._current()
        return current.engine if current is not None and self._is_there(current.engine) else None

    def folder(self) -> Path | None:
        """The folder of the engine in use."""
        engine = self.engine()
        return None if engine is None else self.root / engine.folder

    def is_current(self, choice: Choice) -> bool:
        """Whether this very engine is in use."""
        engine = self.engine()
        return engine is not None and engine.folder in _names(choice.digest)

    def install(
        self,
        choice: Choice,
        path: Callable[[Digest], Path],
        unpacked: Unpacked = lambda *_: None,
        *,
        stopped: threading.Event | None = None,
        anew: bool = False,
    ) -> None:
        """Unpack an engine, try it, and use it from now on. What an earlier call has done is not done again.

        Args:
            choice: which wheels.
            path: where each of them is.
            unpacked: told after each wheel.
            stopped: ends it when it is set; what is unpacked stays for the next call.
            anew: unpack it beside itself if it is in use already, since its files may be damaged.

        Raises:
            StoppedError: `stopped` was set; the engine is not switched to.
            EngineError: it does not work here; the one before is used on.
            StoreError: a wheel or the disk is not as it should be.
        """
        stopped = stopped or threading.Event()
        name = self._name_for(choice, anew=anew)
        folder, new = self.root / name, self.root / (_NEW + name)
        for other in self.root.glob(f"{_NEW}*"):
            if other != new:  # of a release that was never installed to its end
                _delete(other)
        try:
            if not self._is_used(name) and anew:
                _delete(folder)
            if not _is_whole(folder):
                if folder.exists():
                    shutil.rmtree(of_any_length(folder))  # what is left of one that was deleted
                done = 0
                for wheel in choice.wheels:
                    unpacked(done, choice.nbytes)
                    unpack(path(wheel.digest), new, wheel.digest, stopped)
                    done += wheel.nbytes
                unpacked(done, choice.nbytes)
                (new / _WHOLE).touch()
                sync_folder(new)  # the files are on the disk: `unpack` has seen to it
                replace(new, folder)
                sync_folder(self.root)
            self.try_engine(folder, stopped)
        except EngineError:
            if not self._is_used(name):  # else it worked before, and its trial was disturbed
                _delete(folder)
            raise
        except OSError as error:
            raise StoreError(f"The engine cannot be unpacked: {reason(error)}.") from error
        go_on(stopped)
        self._switch(_Engine(name, choice.variant, choice.version, this_python()))

    def _name_for(self, choice: Choice, *, anew: bool) -> str:
        """The folder that it is in, or is to be unpacked into."""
        first, second = _names(choice.digest)
        return second if self._is_used(first if anew else second) else first

    def _is_used(self, name: str) -> bool:
        engine = self.engine()
        return engine is not None and engine.folder == name

    def _switch(self, engine: _Engine) -> None:
        before = self.engine()
        if before is not None and before.folder != engine.folder:
            self._write(_Current(engine, before))
        else:
            self._write(_Current(engine))

    def works(self) -> None:
        """The engine in use has computed: the one before is not needed any more, nor anything else here."""
        current = self._current()
        if current is not None and current.before is not None:
            self._write(_Current(current.engine))
        self.clean()

    def go_back(self, *, is_busy: bool = False) -> bool:
        """Use the engine before again, since this one does not work. False: there is none.

        Args:
            is_busy: another one is being unpacked or tried, so that nothing is deleted now; `works` does it later.
        """
        current = self._current()
        if current is None or current.before is None or not self._is_there(current.before):
            return False
        logger.warning("going back to engine %s", current.before.version)
        self._write(_Current(current.before))
        if not is_busy:
            self.clean()
        return True

    def clean(self) -> None:
        """Delete folders that are not used. One that is half unpacked stays: it is gone on with."""
        current = self._current()
        used = set[str]()
        if current is not None:
            used = {engine.folder for engine in (current.engine, current.before) if engine}
        for folder in self.root.glob("[0-9a-f]" * _NAME):
            if folder.name not in used:
                _delete(folder)

    def remove(self) -> None:
        """Delete every engine, also a half one. Wheels stay.

        Raises:
            StoreError: the disk refuses it.
        """
        try:
            self._file.unlink(missing_ok=True)
        except OSError as error:
            raise StoreError(f"The engine cannot be removed: {reason(error)}.") from error
        for folder in (*self.root.glob("[0-9a-f]" * _NAME), *self.root.glob(f"{_NEW}*")):
            _delete(folder)

    @property
    def _file(self) -> Path:
        return self.root / "current.json"

    def _current(self) -> _Current | None:
        current = recall(self._file, _Current)
        if current is None or not all(map(_is_named, (current.engine, current.before))):
            return None
        return current

    def _write(self, current: _Current) -> None:
        write_atomically(self._file, msgspec.json.format(msgspec.json.encode(current)))

    def _is_there(self, engine: _Engine) -> bool:
        return engine.python == this_python() and _is_whole(self.root / engine.folder)


def _is_whole(folder: Path) -> bool:
    return (folder / _WHOLE).is_file()


def _delete(folder: Path) -> None:
    """Delete as much as goes: Windows keeps files that are in use. What is left is no engine."""
    with suppress(OSError):
        (folder / _WHOLE).unlink(missing_ok=True)
    shutil.rmtree(of_any_length(folder), ignore_errors=True)


def _names(digest: Digest) -> tuple[str, str]:
    """The two folders that an engine may be in: while one is in use, it is unpacked anew into the other."""
    return digest[:_NAME], hashlib.sha256(digest.encode()).hexdigest()[:_NAME]


def _is_named(engine: _Engine | None) -> bool:
    """Whether a folder has the name of one of ours; the file may be damaged."""
    return engine is None or (
        len(engine.folder) == _NAME and set(engine.folder) <= set("0123456789abcdef")
    )
