"""Newer versions of Potluck on this computer: whether there is one, and having it installed.

Nothing asks the Internet before this computer's owner has allowed it, or asked. What a server or a main computer says
of a release counts if the project's key has signed it. The program is replaced when nothing is answered.
"""

import asyncio
import logging
import os
import shutil
import threading
import time
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import msgspec

from potluck import __version__
from potluck.api.values.update import HomesVersion, Phase, Update, UpdateRequest
from potluck.cluster.runtime.fetching import Coming, WheelFetcher
from potluck.cluster.updating.here import Here
from potluck.cluster.updating.sentences import (
    BY_HAND,
    FOLLOWS,
    HEARD,
    NEWEST,
    NO_PACKAGE,
    NOTHING_BEFORE,
    SAYS,
    UNEXPECTED,
)
from potluck.errors import IntegrityError, OfflineError, PotluckError, StoreError, UsageError
from potluck.files import recall, remember, write_atomically
from potluck.ids import Digest
from potluck.reasons import reason
from potluck.runtime.lock import Wheel
from potluck.store.chunks import ChunkStore
from potluck.tasks import TaskSet
from potluck.update import archive, ways
from potluck.update.release import Release, is_newer, read_release
from potluck.update.versions import Versions

logger = logging.getLogger(__name__)

DAY_S: Final = 86_400.0  # between two looks by itself
UP_S: Final = 10.0  # a version that runs for so long has come up


class _Seen(msgspec.Struct, frozen=True):
    looked_at: float = 0.0  # Unix time
    wanted: str = ""  # the version that this computer's owner has asked for


class UpdateKeeper:
    """Knows the newest release that was told of, and replaces this version by it.

    Args:
        here: this computer.
        store: of packages, and of the engine's wheels.
        fetcher: brings them here.
        changed: called when the state has changed.
    """

    def __init__(
        self, here: Here, store: ChunkStore, *, fetcher: WheelFetcher, changed: Callable[[], None]
    ) -> None:
        self._here, self._store, self._fetcher, self._changed = here, store, fetcher, changed
        self._way, why = ways.way(here.installed)
        self._versions = Versions.of(here.installed)
        self._seen = recall(here.folder / "seen.json", _Seen) or _Seen()
        self.envelope = b""
        self._release: Release | None = None
        self._computers: Mapping[str, HomesVersion] = {}
        self._coming = Coming()
        self._working: asyncio.Task[None] | None = None
        self._tasks = TaskSet()
        phase: Phase = "manual" if self._way == "manual" else "quiet"
        self.state = Update(phase=phase, message=why or SAYS["quiet"], allowed=here.is_allowed())
        self._recall()

    # --- what is known

    @property
    def is_busy(self) -> bool:
        """Whether a newer version is being installed."""
        return self._working is not None and not self._working.done()

    @property
    def to_tell(self) -> bytes:
        """The envelope that the home is told of; empty: there is nothing to tell.

        That is a version that this computer runs, or that its owner has asked for.
        """
        release = self._release
        if release is None or release.version not in (__version__, self._seen.wanted):
            return b""
        return self.envelope

    def listed(self) -> Mapping[Digest, Wheel]:
        """The packages of that release, for all systems: others of the home may have them."""
        release = self._release
        if release is None:
            return {}
        files = (package.as_wheel(release.version) for package in release.packages)
        return {file.digest: file for file in files}

    def _recall(self) -> None:
        """Take up what was known before the node ended."""
        try:
            envelope = (self._here.folder / "release.json").read_bytes()
            release = self._read(envelope)
        except (OSError, PotluckError):
            pass  # nothing was known
        else:
            if not is_newer(__version__, release.version):  # else it was updated in another way
                self.envelope, self._release = envelope, release
        failed = self._versions.failed if self._versions is not None else None
        if self._way != "manual":
            self.state = self._as(self._at_rest)
        if failed is not None and failed.version != __version__:
            message = f"Potluck {failed.version} did not start on this computer, so {__version__} is used on. {failed.why}"
            self.state = msgspec.structs.replace(self.state, failed=True, message=message)

    def _read(self, envelope: bytes) -> Release:
        installed = self._here.installed
        if installed is None or self._way == "manual":
            raise UsageError(self.state.message)
        return read_release(envelope, installed.updates.keys)

    def _take(self, envelope: bytes) -> Release:
        """Know a release from now on, if it is newer than what is known and what runs."""
        release = self._read(envelope)
        known = self._release.version if self._release is not None else __version__
        if is_newer(release.version, known):
            try:
                write_atomically(self._here.folder / "release.json", envelope)
            except OSError as error:
                raise StoreError(f"Potluck cannot be updated: {reason(error)}.") from error
            self.envelope, self._release = envelope, release
        return release

    def _say(self, phase: Phase, *, message: str = "", nbytes: int = 0, done: int = 0) -> None:
        self.state = self._as(phase, message=message, nbytes=nbytes, done=done)
        self._changed()

    def _as(self, phase: Phase, *, message: str = "", nbytes: int = 0, done: int = 0) -> Update:
        release, versions = self._release, self._versions
        return Update(
            phase=phase,
            message=message or SAYS[phase],
            allowed=self._here.is_allowed(),
            version=release.version if release is not None else "",
            before=(versions.before or "") if versions is not None else "",
            nbytes=nbytes,
            done=done,
            source=self._coming.source if phase == "fetching" else "",
            from_home=self._coming.from_home,
            from_internet=self._coming.from_internet,
            computers=tuple(self._computers.values()),
        )

    @property
    def _at_rest(self) -> Phase:
        """What there is to say while nothing is done."""
        release = self._release
        return "offered" if release and is_newer(release.version, __version__) else "quiet"

    def _fail(self, message: str) -> None:
        state = self._as(self._at_rest, message=message)
        self.state = msgspec.structs.replace(state, failed=True)
        self._changed()

    def _remember(self, seen: _Seen) -> None:
        self._seen = seen
        remember(self._here.folder / "seen.json", seen)

    # --- by itself

    async def start(self) -> None:
        """Note that this version has come up, and look for a newer one each day, if that is allowed."""
        await asyncio.sleep(UP_S)
        if self._versions is not None:
            await asyncio.to_thread(self._versions.came_up)
        while True:
            due = self._here.clock() - self._seen.looked_at >= DAY_S
            if due and self._here.is_allowed() and self._way != "manual" and not self.is_busy:
                self._begin(self._look_by_itself())
            await asyncio.sleep(DAY_S / 24)

    # --- what a person asks for

    async def change(self, request: UpdateRequest) -> Update:
        """Do what a person asks for; returns the state, which then changes by itself.

        Raises:
            UsageError: it cannot be done here; the sentence says why.
        """
        if request.allowed is not None:
            self._here.allow(request.allowed)
            self.state = msgspec.structs.replace(self.state, allowed=request.allowed)
            self._changed()
        if request.action is not None:
            if self._way == "manual":
                raise UsageError(self.state.message)
            await self._do(request.action)
        return self.state

    async def _do(self, action: str) -> None:
        if action == "stop":
            await self._stop_working()
        elif self.is_busy:
            return
        elif action == "check":
            self._begin(self._look())
        elif action == "back":
            self._begin(self._go_back())
        else:
            self._begin(self._install_newest())

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        self._working = self._tasks.spawn(self._guarded(work), name="update")

    async def _guarded(self, work: Coroutine[Any, Any, None]) -> None:
        """What goes wrong is a state, and what is here is used on."""
        try:
            await work
        except PotluckError as error:
            logger.warning("no update: %s", error)
            self._fail(error.message)
        except OSError as error:
            logger.warning("no update: %s", error)
            self._fail(f"Potluck cannot be updated: {reason(error)}.")
        except asyncio.CancelledError:
            self._say(self._at_rest)
            raise
        except Exception:  # the last boundary: else it would count as being fetched for ever
            logger.exception("no update")
            self._fail(UNEXPECTED)

    async def _stop_working(self) -> None:
        if self._working is not None and not self._working.done():
            self._working.cancel()
            await asyncio.wait([self._working], timeout=3.0)

    # --- the work

    async def _look(self) -> None:
        installed = self._here.installed
        assert installed is not None  # `change` and `start` looked
        self._say("looking")
        envelope = await asyncio.to_thread(self._here.newest, installed.updates.index)
        release = self._take(envelope)
        self._remember(msgspec.structs.replace(self._seen, looked_at=self._here.clock()))
        if is_newer(release.version, __version__):
            self._say("offered")
        else:
            self._say("quiet", message=NEWEST)

    async def _look_by_itself(self) -> None:
        """Look, and say nothing of a server that does not answer: nobody has asked."""
        try:
            await self._look()
        except OfflineError as error:
            logger.info("no look for a newer version: %s", error)
            self._say(self._at_rest)

    async def _install_newest(self) -> None:
        if self._release is None or not is_newer(self._release.version, __version__):
            await self._look()
        release = self._release
        if release is None or not is_newer(release.version, __version__):
            return
        self._remember(msgspec.structs.replace(self._seen, wanted=release.version))
        await self._install(release)

    async def _install(self, release: Release) -> None:
        installed = self._here.installed
        assert installed is not None
        package = release.package(installed.kind, self._here.system, self._here.machine)
        if package is None:
            raise UsageError(NO_PACKAGE)
        file = package.as_wheel(release.version)
        self._coming = Coming(lambda: self._told(file))
        self._told(file)
        await self._fetcher.obtain([file], self._coming)
        path = self._store.path(file.digest)
        if self._way == "package":
            placed = await asyncio.to_thread(self._place, path, package.name)
            self._say("fetched", message=ways.how_to_install(installed.kind, placed))
            return
        self._say("trying", nbytes=file.nbytes, done=file.nbytes)
        await self._unpack(path, release.version)
        self._say("waiting", nbytes=file.nbytes, done=file.nbytes)
        await self._rest()
        assert self._versions is not None
        await asyncio.to_thread(self._versions.switch, release.version)
        self._say("switching")
        self._here.restart()

    def _told(self, file: Wheel) -> None:
        done = self._coming.here.get(file.digest, 0)
        self._say("fetching", nbytes=file.nbytes, done=min(done, file.nbytes))

    def _place(self, path: Path, name: str) -> Path:
        """Give a package its name, so that its owner can open it."""
        placed = self._here.folder / name
        placed.unlink(missing_ok=True)
        try:
            os.link(path, placed)
        except OSError:  # a disk without links
            shutil.copyfile(path, placed)
        return placed

    async def _unpack(self, path: Path, version: str) -> None:
        versions, stopped = self._versions, threading.Event()
        assert versions is not None

        def work() -> None:
            new = versions.new(version)
            archive.unpack(path, new, stopped)
            self._here.try_version(new, version, stopped)
            versions.add(version)

        working = asyncio.create_task(asyncio.to_thread(work))
        try:
            await asyncio.shield(working)
        except asyncio.CancelledError:
            stopped.set()
            await asyncio.wait([working])
            with suppress(BaseException):
                working.result()
            raise

    async def _rest(self) -> None:
        """Wait until nothing has been answered for a while."""
        since = time.monotonic()
        while True:
            if not self._here.is_at_rest():
                since = time.monotonic()
            elif time.monotonic() - since >= self._here.rest_s:
                return
            await asyncio.sleep(self._here.poll_s)

    async def _go_back(self) -> None:
        if self._versions is None or self._versions.before is None:
            raise UsageError(NOTHING_BEFORE)
        self._say("waiting")
        await self._rest()
        await asyncio.to_thread(self._versions.go_back, "Its owner went back.")
        self._remember(msgspec.structs.replace(self._seen, wanted=""))
        self._say("switching")
        self._here.restart()

    # --- the home

    def heard(self, envelope: bytes) -> str:
        """A main computer tells of a release. Returns what this computer does about it.

        Raises:
            IntegrityError: it is not signed by the project.
        """
        if self._way == "manual":
            return BY_HAND
        try:
            release = self._take(envelope)
        except IntegrityError as error:
            logger.warning("a main computer tells of a release that is none: %s", error)
            raise
        if not is_newer(release.version, __version__):
            return ""
        failed = self._versions.failed if self._versions is not None else None
        if self._way != "itself" or not self._here.is_allowed():
            if not self.is_busy:
                self._say("offered")
            return HEARD
        if failed is not None and failed.version == release.version:
            return self.state.message
        if not self.is_busy:
            self._begin(self._install(release))
        return FOLLOWS

    def tells(self, computers: Mapping[str, HomesVersion]) -> None:
        """What the computers of the home have answered."""
        if computers != self._computers:
            self._computers = dict(computers)
            self.state = msgspec.structs.replace(
                self.state, computers=tuple(self._computers.values())
            )
            self._changed()

    async def stop(self) -> None:
        """End what is under way; what is here is kept."""
        await self._tasks.stop()
