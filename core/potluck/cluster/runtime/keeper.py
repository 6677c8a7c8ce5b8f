"""The engine of this computer: whether there is one, and having it installed, with consent alone.

The stage processes wait for it here, and get its folder. Nothing is fetched before a person asks for it on this
computer, or a paired computer asks for files that it cannot get by itself.
"""

import asyncio
import logging
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from potluck.api.values.engine import Engine, EngineRequest, Phase
from potluck.cluster.runtime import sentences
from potluck.cluster.runtime.fetching import Coming, WheelFetcher, copy_in
from potluck.doctor.facts import EngineSeen
from potluck.errors import BusyError, EngineError, PotluckError, UsageError
from potluck.ids import Digest
from potluck.reasons import reason
from potluck.runtime.choice import Choice, Machine, choose, read_locks
from potluck.runtime.installed import Installed, has_own_torch, is_installed
from potluck.runtime.lock import EngineLock, Wheel
from potluck.runtime.offered import OWN, choose_in
from potluck.runtime.wheel import no_room
from potluck.store.chunks import ChunkStore
from potluck.tasks import TaskSet, in_thread

logger = logging.getLogger(__name__)

_AT_ONCE: Final = 3  # fetches for others: computers of different systems may ask
STOP_S: Final = 3.0  # what takes longer ends by itself
_UNPACKED: Final = (
    2  # times as large as its wheels an engine is about; what it is exactly, unpacking checks
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """What this release lists, and what this computer is. Each is looked up on a thread."""

    locks: Callable[[], dict[str, EngineLock]]
    machine: Callable[[], Machine] = Machine.of_this
    has_torch: Callable[[], bool] = has_own_torch

    @classmethod
    def in_folder(cls, folder: Path) -> "Release":
        """The locks of a folder."""
        return cls(locks=lambda: read_locks(folder))


class EngineKeeper:
    """Knows the engine of this computer, and has it installed.

    Args:
        store: of wheels.
        installed: what is unpacked.
        fetcher: brings wheels here.
        release: the locks, and this computer.
        shared: what this user has installed for the usual folders; a node in other folders (`--home`, the demo) uses
            it as long as it has none of its own.
        also: other files in the store that are kept.
        changed: called when the state has changed.
    """

    def __init__(
        self,
        store: ChunkStore,
        installed: Installed,
        *,
        fetcher: WheelFetcher,
        release: Release,
        shared: Installed | None = None,
        also: Callable[[], Collection[Digest]] = tuple,
        changed: Callable[[], None],
    ) -> None:
        self._shared, self._also = shared, also
        self._store, self._installed, self._fetcher = store, installed, fetcher
        self._release, self._changed = release, changed
        self._choice: Choice | None = None  # of what this release lists
        self._shown: Choice | None = None  # that one, or the owner's own wheels
        self._listed: dict[Digest, Wheel] = {}
        self._locks: dict[str, EngineLock] = {}
        self._is_own = release.has_torch()
        engine = None if self._is_own else self._used().engine()
        phase: Phase = "own" if self._is_own else "missing" if engine is None else "ready"
        self.state = Engine(phase=phase, message=sentences.SAYS[phase])
        if engine is not None:
            self.state = msgspec.structs.replace(
                self.state, variant=engine.variant, version=engine.version
            )
        self._coming = Coming()
        self._working: asyncio.Task[None] | None = None
        self._for_others: list[frozenset[Digest]] = []  # what each fetch for others brings
        self._problem = ""  # why the last fetch for others did not go on
        self._there = asyncio.Event()
        if phase in ("own", "ready"):
            self._there.set()
        self._looked = asyncio.Event()
        self._tasks = TaskSet()

    # --- for the stage processes

    @property
    def is_there(self) -> bool:
        """Whether stage processes can be started."""
        return self._there.is_set()

    @property
    def is_busy(self) -> bool:
        """Whether something is fetched or unpacked, for this computer or another one."""
        return bool(self._for_others) or (self._working is not None and not self._working.done())

    async def wait(self) -> None:
        """Wait until stage processes can be started."""
        await self._there.wait()

    def folder(self) -> Path | None:
        """What a stage process needs in its PYTHONPATH; None: nothing."""
        return None if self._is_own else self._used().folder()

    def _used(self) -> Installed:
        if self._shared is not None and self._installed.engine() is None:
            return self._shared
        return self._installed

    def lacking(self) -> EngineError:
        """Why nothing can be computed, while there is no engine."""
        return EngineError(self.state.message)

    def works(self) -> None:
        """A stage process has started: what was before is not needed any more."""
        if not self._is_own and not self.is_busy:
            self._installed.works()

    def does_not_work(self) -> bool:
        """Stage processes do not start with it. Returns whether there was another one to go back to."""
        return not self._is_own and self._installed.go_back(is_busy=self.is_busy)

    # --- the state

    async def look(self) -> None:
        """Read the locks and look at this computer, once, which takes a moment."""
        try:
            self._locks = await asyncio.to_thread(self._release.locks)
            self._listed = {w.digest: w for lock in self._locks.values() for w in lock.wheels()}
            if not self._is_own:
                machine = await asyncio.to_thread(self._release.machine)
                self._choice = self._shown = choose(self._locks, machine)
                self._tell_choice(self._choice)
        except (PotluckError, OSError) as error:
            logger.warning("no engine is listed for this computer: %s", error)
            if self.state.phase == "missing":
                message = error.message if isinstance(error, PotluckError) else sentences.MISSING
                self._say("none", message=message)
        finally:
            self._looked.set()

    def _tell_choice(self, choice: Choice) -> None:
        """Say what could be installed, or that it is another one than what is."""
        engine = self._used().engine()
        if engine is None:
            self._say("missing", nbytes=choice.nbytes)
        elif engine.variant != OWN and not self._used().is_current(choice):
            self.state = msgspec.structs.replace(self.state, message=sentences.NEWER)
            self._changed()

    def listed(self) -> Mapping[Digest, Wheel]:
        """Every file that the locks of this release name."""
        return self._listed

    def _say(self, phase: Phase, *, message: str = "", nbytes: int = 0, done: int = 0) -> None:
        choice = self._shown
        self.state = Engine(
            phase=phase,
            message=message
            or " ".join(filter(None, (sentences.SAYS[phase], choice.note if choice else ""))),
            variant=choice.variant if choice else self.state.variant,
            version=choice.version if choice else self.state.version,
            nbytes=nbytes,
            done=done,
            source=self._coming.source if phase == "fetching" else "",
            from_home=self._coming.from_home,
            from_internet=self._coming.from_internet,
        )
        self._changed()

    def seen(self) -> EngineSeen:
        """What the doctor says of it."""
        if self.is_there:
            return "there"
        if self.state.phase == "none":
            return "none"
        return "comes" if self.state.is_working else "missing"

    # --- what a person asks for

    async def change(self, request: EngineRequest) -> Engine:
        """Do what a person asks for; returns the state, which then changes by itself.

        Raises:
            UsageError: there is nothing to do it with.
            BusyError: it is being installed.
        """
        await self._looked.wait()
        match request.action:
            case "install":
                self._install(None if request.folder is None else Path(request.folder))
            case "repair":
                self._repair()
            case "stop":
                await self._stop_working()
            case "remove":
                await self._remove()
        return self.state

    def _install(self, folder: Path | None) -> None:
        if self._is_own:
            return
        if self._working is not None and not self._working.done():
            if self._working.cancelling():
                raise BusyError("The engine is still being stopped. Try again in a moment.")
            return
        is_there = self._choice is not None and self._installed.is_current(self._choice)
        if folder is None and is_there:
            return
        if folder is None and self._choice is None:
            raise UsageError(self.state.message)
        if folder is not None and not folder.is_absolute():
            raise UsageError(f"{folder} is no whole path of a folder.")
        self._working = self._tasks.spawn(self._work(folder), name="engine")

    def _repair(self) -> None:
        """Fetch and unpack the engine in use anew, beside itself: it is used on until the new one works."""
        if self._working is not None and not self._working.done():
            raise BusyError(sentences.BUSY)
        engine = None if self._is_own else self._used().engine()
        if self._choice is None or engine is None or engine.variant == OWN:
            raise UsageError(sentences.NOT_FETCHED if self.is_there else self.state.message)
        self._working = self._tasks.spawn(self._work(None, anew=True), name="engine")

    async def _work(self, folder: Path | None, *, anew: bool = False) -> None:
        """Fetch, unpack and try. What goes wrong is a state, and what is here is kept."""
        try:
            if folder is None:
                choice, places = await self._fetch(verified=anew), self._store.path
            else:
                self._say("unpacking")  # from now on: to read and hash the wheels takes seconds
                choice, places = await self._take_from(folder)
            self._say("unpacking", nbytes=choice.nbytes)
            await self._unpack(choice, places, anew=anew)
        except PotluckError as error:
            logger.warning("the engine is not installed: %s", error)
            self._failed(error.message)
        except OSError as error:  # a folder of the owner that is gone meanwhile
            logger.warning("the engine is not installed: %s", error)
            self._failed(f"The engine cannot be installed: {reason(error)}.")
        except Exception:  # the last boundary: else it would count as being fetched for ever
            logger.exception("the engine is not installed")
            self._failed(sentences.UNEXPECTED)
        except asyncio.CancelledError:
            engine = self._used().engine()
            self._say("ready" if engine else "missing")
            if engine:  # also one that was switched to before the thread heard of it
                self._there.set()
            raise
        else:
            logger.info("engine installed version=%s variant=%s", choice.version, choice.variant)
            message = sentences.LATER if self.is_there else ""
            self._say("ready", message=message, nbytes=choice.nbytes, done=choice.nbytes)
            self._there.set()

    def _failed(self, message: str) -> None:
        self._say("ready" if self._used().engine() else "failed", message=message)
        self.state = msgspec.structs.replace(self.state, failed=True)

    async def _fetch(self, *, verified: bool) -> Choice:
        choice = self._choice
        assert choice is not None  # `_install` looked
        self._shown = choice
        self._coming = Coming(lambda: self._told(choice), "", {}, *self._came())
        self._told(choice)
        if verified:  # what the disk has altered is fetched again
            await asyncio.to_thread(self._store.verify, [wheel.digest for wheel in choice.wheels])
        await asyncio.to_thread(self._check_disk, choice)
        await self._fetcher.obtain(choice.wheels, self._coming)
        return choice

    def _check_disk(self, choice: Choice) -> None:
        here = sum(wheel.nbytes for wheel in choice.wheels if self._store.has(wheel.digest))
        needed = (1 + _UNPACKED) * choice.nbytes - here
        if needed > (free := self._store.disk_free(self._store.root)):
            raise no_room(needed, free)

    def _came(self) -> tuple[int, int]:
        return self._coming.from_home, self._coming.from_internet

    def _told(self, choice: Choice) -> None:
        done = sum(self._coming.here.values())
        self._say("fetching", nbytes=choice.nbytes, done=min(done, choice.nbytes))

    async def _take_from(self, folder: Path) -> tuple[Choice, Callable[[Digest], Path]]:
        """Choose among the owner's own wheels; they are read where they are, and copied for others if listed."""
        machine = await asyncio.to_thread(self._release.machine)
        choice, paths = await asyncio.to_thread(
            choose_in, folder, machine.environment, is_installed
        )
        self._shown = choice
        listed = [wheel for wheel in choice.wheels if wheel.digest in self._listed]
        await asyncio.to_thread(copy_in, self._store, listed, paths)
        return choice, paths.__getitem__

    async def _unpack(self, choice: Choice, path: Callable[[Digest], Path], *, anew: bool) -> None:
        """Unpack and try. Whoever stops it waits for the thread: two of them must not write the same folder."""
        stopped = threading.Event()
        unpacking = asyncio.create_task(
            in_thread(
                lambda report: self._installed.install(
                    choice, path, report, stopped=stopped, anew=anew
                ),
                lambda done, total: self._say("unpacking", nbytes=total, done=done),
            )
        )
        try:
            await asyncio.shield(unpacking)
        except asyncio.CancelledError:
            stopped.set()
            await asyncio.wait([unpacking])
            if not unpacking.cancelled() and (error := unpacking.exception()) is not None:
                logger.info("unpacking was stopped: %r", error)
            raise

    async def _stop_working(self) -> None:
        """Stop what is under way. What is being written to the disk comes to its end first."""
        if self._working is not None and not self._working.done():
            if not self._working.cancelling():  # a second time would leave the thread alone
                self._working.cancel()
            await asyncio.wait([self._working], timeout=STOP_S)

    async def _remove(self) -> None:
        """Remove the engine and the wheels. Stage processes that run keep what they have loaded until they end."""
        if self._working is not None and not self._working.done():
            raise BusyError(sentences.BUSY)
        if self._is_own:
            raise UsageError(
                "PyTorch is part of Potluck's own Python. It goes when Potluck is uninstalled."
            )
        await asyncio.to_thread(self._installed.remove)
        await asyncio.to_thread(self._drop, set[Digest]())
        if self._used().engine() is None:
            self._there.clear()
        self._shown = self._choice
        nbytes = self._choice.nbytes if self._choice else 0
        self._say("ready" if self.is_there else "missing", nbytes=nbytes)

    def _drop(self, kept: set[Digest]) -> None:
        """Delete wheels except these, and those that are fetched just now."""
        for digest in self._store.inventory.loose():
            if digest not in kept:
                self._store.discard(digest)

    # --- what others ask for

    def fetch_for_others(self, wheels: Sequence[Wheel]) -> str:
        """Begin to fetch files for another computer of the home. Returns why not, or an empty text."""
        coming = frozenset[Digest]().union(*self._for_others)
        new = [wheel for wheel in wheels if wheel.digest not in coming]
        if not new:
            return ""
        if len(self._for_others) >= _AT_ONCE:
            return sentences.TOO_MANY
        problem, self._problem = self._problem, ""
        if not problem:
            digests = frozenset(wheel.digest for wheel in new)
            self._for_others.append(digests)
            self._tasks.spawn(self._obtain(new), name="wheels for others").add_done_callback(
                lambda _: self._for_others.remove(digests)
            )
        return problem

    async def _obtain(self, wheels: Sequence[Wheel]) -> None:
        try:
            await self._fetcher.obtain(wheels, Coming(), may_ask=False)
        except PotluckError as error:
            logger.info("wheels for another computer: %s", error)
            self._problem = error.message

    async def clean(self) -> None:
        """Delete files that no lock of this release names, which others of this home may not have needed yet."""
        await self._looked.wait()
        if self._locks:
            await asyncio.to_thread(self._drop, {*self._listed, *self._also()})

    async def stop(self) -> None:
        """End what is under way; what is here is kept."""
        await self._tasks.stop()
