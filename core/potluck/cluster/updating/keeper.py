"""Newer versions of Potluck on this computer: whether there is one, and having it installed.

Nothing asks the Internet before this computer's owner has allowed it, or asked. What a server or a main computer says
of a release counts if the project's key has signed it. The program is replaced when nothing is answered.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from typing import Any, Final

import msgspec

from potluck import __version__
from potluck.api.values.update import HomesVersion, Phase, Update, UpdateRequest
from potluck.cluster.runtime.fetching import Coming, WheelFetcher
from potluck.cluster.updating.here import Here
from potluck.cluster.updating.known import KnownRelease
from potluck.cluster.updating.sentences import (
    BY_HAND,
    FOLLOWS,
    HEARD,
    NEWEST,
    NO_LIST,
    NO_PACKAGE,
    SAYS,
    UNEXPECTED,
    nothing_before,
    taken_back,
    why_left,
)
from potluck.cluster.updating.unpacking import unpack
from potluck.errors import (
    HubError,
    IntegrityError,
    OfflineError,
    PotluckError,
    UsageError,
)
from potluck.reasons import reason
from potluck.runtime.lock import Wheel
from potluck.store.chunks import ChunkStore
from potluck.tasks import TaskSet
from potluck.update import ways
from potluck.update.freshness import StaleListError
from potluck.update.release import Release
from potluck.update.versions import Failed, Versions, is_newer

logger = logging.getLogger(__name__)

DAY_S: Final = 86_400.0  # between two looks by itself
UP_S: Final = 10.0  # a version that runs for so long has come up


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
        keys = here.installed.updates.keys if here.installed and self._way != "manual" else ()
        self.known = KnownRelease(here.folder, keys, clock=here.clock)
        self._computers: Mapping[str, HomesVersion] = {}
        self._coming = Coming()
        self._working: asyncio.Task[None] | None = None
        self._is_unasked = False  # that work is a look by itself, which gives way
        self._tasks = TaskSet()
        phase: Phase = "manual" if self._way == "manual" else "quiet"
        self.state = Update(phase=phase, message=why or SAYS["quiet"], allowed=here.is_allowed())
        self.state = self._resting()

    # --- what is known

    @property
    def is_busy(self) -> bool:
        """Whether a newer version is being installed."""
        return self._working is not None and not self._working.done()

    @property
    def _failed(self) -> Failed | None:
        """The version that was tried last and left again."""
        failed = self._versions.failed if self._versions is not None else None
        return failed if failed is not None and failed.version != __version__ else None

    def _resting(self) -> Update:
        """The state while nothing is done, with what became of the last try if nothing newer is known."""
        state = self.state if self._way == "manual" else self._as(self._at_rest)
        failed = self._failed
        if failed is None or is_newer(state.version, failed.version):
            return state
        return msgspec.structs.replace(
            state, failed=not failed.by_owner, left=failed.by_owner, message=why_left(failed)
        )

    def _become(self, state: Update) -> None:
        if state != self.state:
            self.state = state
            self._changed()

    def _say(self, phase: Phase, *, message: str = "", nbytes: int = 0, done: int = 0) -> None:
        self._become(self._as(phase, message=message, nbytes=nbytes, done=done))

    def _as(self, phase: Phase, *, message: str = "", nbytes: int = 0, done: int = 0) -> Update:
        versions = self._versions
        before = (versions.before or "") if versions is not None else ""
        if phase == "quiet" and not message and self.known.is_taken_back:
            message = taken_back(self.known.newest, before)
        return Update(
            phase=phase,
            message=message or SAYS[phase],
            replaces=self._way == "itself",
            allowed=self._here.is_allowed(),
            version=self.known.version,
            before=before,
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
        return "offered" if self.known.is_newer else "quiet"

    def _fail(self, message: str) -> None:
        state = self._as(self._at_rest, message=message)
        self._become(msgspec.structs.replace(state, failed=True))

    # --- by itself

    async def start(self) -> None:
        """Note that this version has come up, and look for a newer one each day, if that is allowed."""
        await asyncio.sleep(UP_S)
        if self._versions is not None:
            await asyncio.to_thread(self._versions.came_up)
        while True:
            self.look_if_due()
            await asyncio.sleep(DAY_S / 24)

    def look_if_due(self) -> None:
        """Begin to look for a newer version, if that is allowed and the last look was a day ago."""
        since = self._here.clock() - self.known.looked_at
        due = not 0 <= since < DAY_S  # below 0: the clock was ahead when it looked
        if due and self._here.is_allowed() and self._way != "manual" and not self.is_busy:
            self._begin(self._look_by_itself())
            self._is_unasked = True

    # --- what a person asks for

    async def change(self, request: UpdateRequest) -> Update:
        """Do what a person asks for; returns the state, which then changes by itself.

        Raises:
            UsageError: it cannot be done here; the sentence says why.
        """
        if request.allowed is not None:
            self._here.allow(request.allowed)
            self._become(msgspec.structs.replace(self.state, allowed=request.allowed))
        if request.action is not None:
            if self._way == "manual":
                raise UsageError(self.state.message)
            await self._do(request.action)
        return self.state

    async def _do(self, action: str) -> None:
        if action == "stop" or self._is_unasked:
            await self._stop_working()
        if action == "stop" or self.is_busy:
            return
        if action == "check":
            self._begin(self._look())
        elif action == "back":
            self._begin(self._go_back())
        else:
            self._begin(self._install_newest())

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        self._working, self._is_unasked = (
            self._tasks.spawn(self._guarded(work), name="update"),
            False,
        )

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

    async def _ask(self) -> None:
        """Ask the server, and believe its list."""
        installed = self._here.installed
        assert installed is not None  # `change` and `start` looked
        envelope = await asyncio.to_thread(self._here.newest, installed.updates.index)
        self.known.looked(self._here.clock())  # also of a list that is refused now
        self.known.take(envelope)

    async def _look(self) -> None:
        self._say("looking")
        await self._ask()
        if self.known.is_newer:
            self._say("offered")
        else:
            self._say("quiet", message="" if self.known.is_taken_back else NEWEST)

    async def _look_by_itself(self) -> None:
        """Ask, and say nothing of the asking, nor of a server that does not answer: nobody waits for it.

        Unless that goes on for so long that the last list has ended: who keeps lists away would else never be seen.
        """
        try:
            await self._ask()
        except OfflineError as error:
            logger.info("no look for a newer version: %s", error)
            if self.known.ended:
                self._fail(NO_LIST.format(self.known.ended))
        except StaleListError as error:
            logger.info("no newer list of releases: %s", error)
            self._fail(error.message)
        else:
            self._become(self._resting())

    async def _install_newest(self) -> None:
        try:
            await self._look()
        except (HubError, IntegrityError):  # offline, or a page that a hotel shows in between
            if not self.known.is_newer:
                raise
        release = self.known.release
        if release is None or not self.known.is_newer:
            return
        try:
            await self._install(release, is_wanted=True)
        except BaseException:
            self.known.want("")
            raise

    async def _install(self, release: Release, *, is_wanted: bool = False) -> None:
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
            placed = await asyncio.to_thread(ways.place, path, self._here.folder, package.name)
            if is_wanted:
                self.known.want(release.version)
            self._say("fetched", message=ways.how_to_install(installed.kind, placed))
            return
        self._say("trying", nbytes=file.nbytes, done=file.nbytes)
        assert self._versions is not None
        await unpack(self._versions, path, release.version, self._here.try_version)
        self._say("waiting", nbytes=file.nbytes, done=file.nbytes)
        await self._switch(self._versions, partial(self._versions.switch, release.version))

    def _told(self, file: Wheel) -> None:
        done = self._coming.here.get(file.digest, 0)
        self._say("fetching", nbytes=file.nbytes, done=min(done, file.nbytes))

    async def _switch(self, versions: Versions, switch: Callable[[], object]) -> None:
        """Move the link while nothing is answered, and restart; the link is moved back if that is stopped before."""
        await self._rest(self._here.rest_s)
        before = versions.used
        switching = asyncio.create_task(asyncio.to_thread(switch))
        try:
            await asyncio.shield(switching)
            await self._rest(0.0)  # the disk takes a moment, and an answer may have begun meanwhile
        except asyncio.CancelledError:
            await asyncio.wait([switching])
            await asyncio.to_thread(versions.use, before)
            raise
        self._say("switching")
        self._here.restart()

    async def _rest(self, rest_s: float) -> None:
        """Wait until nothing has been answered for so long. Nothing else runs between the last look and the return."""
        since = time.monotonic()
        while True:
            if not self._here.is_at_rest():
                since = time.monotonic()
            elif time.monotonic() - since >= rest_s:
                return
            await asyncio.sleep(self._here.poll_s)

    async def _go_back(self) -> None:
        if self._versions is None or self._versions.before is None:
            raise UsageError(nothing_before(self._failed))
        self._say("waiting")
        go_back = partial(self._versions.go_back, "Its owner went back.", by_owner=True)
        await self._switch(self._versions, go_back)

    # --- the home

    def heard(self, envelope: bytes) -> str:
        """A main computer tells of a release. Returns what this computer does about it.

        Raises:
            IntegrityError: it is not signed by the project.
        """
        if self._way == "manual":
            return BY_HAND
        try:
            release, stale = self.known.read(envelope), self._believe(envelope)
        except IntegrityError as error:
            logger.warning("a main computer tells of a release that is none: %s", error)
            raise
        if not is_newer(release.version, __version__):
            if self.known.is_taken_back and not self.is_busy:
                self._become(self._resting())
            return ""
        if stale and not (self.known.is_newer and self.known.version == release.version):
            return stale
        failed = self._failed
        if self._way != "itself" or not self._here.is_allowed():
            if not self.is_busy and self.state.version != self.known.version:  # else it was said
                self._say("offered")
            return HEARD
        if failed is not None and failed.version == release.version:
            return why_left(failed)
        if not self.is_busy and (newest := self.known.release) is not None:
            self._begin(self._install(newest))  # not by an older list: its package may be replaced
        return FOLLOWS

    def _believe(self, envelope: bytes) -> str:
        """Take a list; returns why it is not the newest, if it is not."""
        try:
            self.known.take(envelope)
        except StaleListError as error:
            return error.message
        return ""

    def tells(self, computers: Mapping[str, HomesVersion]) -> None:
        """What the computers of the home have answered."""
        if computers != self._computers:
            self._computers = dict(computers)
            told = tuple(self._computers.values())
            self._become(msgspec.structs.replace(self.state, computers=told))

    async def stop(self) -> None:
        """End what is under way; what is here is kept."""
        await self._tasks.stop()
