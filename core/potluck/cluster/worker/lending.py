"""What the owner of this computer lends: by the saved settings, or differently for a while.

"For a while" is as long as a program, such as `potluck worker`, holds the node as a "worker".
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path

import msgspec

from potluck.api.backend import Holder
from potluck.api.values.pausing import HOUR_S
from potluck.api.values.politeness import Facts, Rule, Withdrawal, withdrawal
from potluck.api.values.schema import RoleRequest
from potluck.cluster.activity import Activity
from potluck.cluster.events import Events, ThreadsChanged
from potluck.cluster.processes.devices import StageProcesses
from potluck.cluster.worker.leaving import LEAVE_S, Leaving
from potluck.cluster.worker.worker import Worker
from potluck.errors import NotHeldError, PotluckError
from potluck.settings import Settings, save_settings
from potluck.store.throttle import Throttle
from potluck.tasks import TaskSet

HAND_OVER_S = 1.0  # after a departure: a step takes less; the answer goes on elsewhere meanwhile


class LendingSettings:
    """Applies the settings in force to the worker and the stage processes.

    Args:
        saved: the settings in `file`; the stage processes were made with them.
        events: receives `Changed`, and `ThreadsChanged` when measured times are outdated.
        leave_s: longest time that masters have to do without this computer.
        clock: returns the Unix time.
    """

    def __init__(
        self,
        saved: Settings,
        file: Path,
        *,
        activity: Activity,
        worker: Worker,
        processes: StageProcesses,
        throttle: Throttle,
        events: Events,
        leave_s: float = LEAVE_S,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._clock = clock
        self._saved = self._without_past_pause(saved)
        self.settings = (
            self._saved
        )  # in force now; those of a program that holds the node are not saved
        self._file = file
        self._activity = activity
        self._worker = worker
        self._processes = processes
        self._throttle = throttle
        self._events = events
        self._giving_back: asyncio.Task[None] | None = None
        self._leaving = Leaving(worker, changed=events.changed, limit_s=leave_s)
        self._withdrawal: Withdrawal | None = None
        self._tasks = TaskSet()
        worker.is_lending, worker.is_paused = self._saved.worker, self._saved.paused

    @property
    def saved(self) -> Settings:
        """The settings that hold when no program lends this computer for a while."""
        return self._saved

    def set_role(self, request: RoleRequest) -> None:
        """Lend as the owner asks.

        Raises:
            NotHeldError: the request is for as long as the node is held, and no program holds it.
        """
        if request.while_held and not self._activity.is_held("worker"):
            raise NotHeldError(
                "Nobody holds this lease: there is no event stream with holder=worker."
            )
        now = self._clock()
        is_held = request.while_held or self.settings is not self._saved
        in_force = _changed(self.settings, request, now)
        if not request.while_held:
            saved = _changed(self._saved, request, now)
            save_settings(self._file, saved)
            self._saved = saved
        self._lend(in_force if is_held else self._saved, at_once=request.free_now)

    async def settled(self) -> None:
        """Wait until the stage processes have taken over the settings in force, but not for long."""
        await self._processes.settled()

    def look(self, facts: Facts, now_s: float) -> None:
        """Lend or not by what was seen of this computer, and by the time. Call it every few seconds.

        `now_s`: monotonic time.
        """
        self._end_past_pause()
        before = self._withdrawal if self.settings.worker else None
        self._withdrawal = withdrawal(before, facts, self.settings.rules, now_s)
        rule = self._withdrawal.rule if self._withdrawal is not None else None
        if rule == self._worker.withheld:
            return
        if rule is None or self._worker.withheld is None:
            self._stay_or_go(self.settings, rule)
        self._worker.withheld = rule
        self._events.changed()

    def _end_past_pause(self) -> None:
        before, self._saved = self._saved, self._without_past_pause(self._saved)
        in_force = self._saved
        if self.settings is not before:  # a program that holds the node lends it
            in_force = self._without_past_pause(self.settings)
        if in_force is not self.settings:
            self._lend(in_force)
        if self._saved is not before:
            save_settings(self._file, self._saved)

    def _without_past_pause(self, settings: Settings) -> Settings:
        until = settings.paused_until
        if until is None or self._clock() < until:
            return settings
        return msgspec.structs.replace(settings, paused=False, paused_until=None)

    def rename(self, name: str | None) -> str:
        """Store this computer's name; None: that of the host. Return the name."""
        self.keep(name=name)
        return self._saved.shown_name

    def allow_updates(self, on: bool) -> None:
        """Store whether Potluck may look for newer versions by itself."""
        self.keep(updates=on)

    def keep(self, **changes: object) -> None:
        """Store settings that change nothing of what is lent."""
        is_held = self.settings is not self._saved
        saved = msgspec.structs.replace(self._saved, **changes)
        save_settings(self._file, saved)
        self._saved = saved
        self.settings = msgspec.structs.replace(self.settings, **changes) if is_held else saved

    def let_go(self, holder: Holder) -> None:
        """Go back to the saved settings when the last program that held the node is gone."""
        if holder == "worker" and self.settings is not self._saved:
            self._lend(self._saved)

    @contextmanager
    def computing_with(self, threads: int | None) -> Generator[None, None, None]:
        """Compute with so many threads in a `with` block; then measured times are outdated."""
        if threads in (None, self.settings.threads):
            yield
            return
        try:
            self._processes.compute_with(threads)
            self._events.publish(ThreadsChanged())
            yield
        finally:
            self._processes.compute_with(self.settings.threads)
            self._events.publish(ThreadsChanged())

    @asynccontextmanager
    async def away(self) -> AsyncGenerator[None, None]:
        """Lend nothing in an `async with` block. The masters are told before it, and have their time."""
        await self._have_given_back()
        if not self._worker.is_away:
            self._leaving.begin()
        self._worker.is_renewing = True
        self._events.changed()
        try:
            with suppress(PotluckError):  # a process that has died holds nothing
                await self._give_back()
            yield
        finally:
            self._worker.is_renewing = False
            self._events.changed()

    async def _have_given_back(self) -> None:
        if self._giving_back is not None and not self._giving_back.done():
            await asyncio.wait([self._giving_back])

    async def stop(self) -> None:
        """Lend nothing any more, because the node ends. The masters are told, and have their time."""
        await self._have_given_back()
        self._leaving.begin()
        self._worker.is_lending = False
        await self._leaving.end()

    def go(self) -> None:
        """Do not wait for the masters any longer."""
        self._leaving.go()

    async def _give_back(self) -> None:
        """Free what is lent, when the masters do without it or have waited long enough."""
        await self._leaving.end()
        if self._worker.lease is not None:
            await asyncio.sleep(HAND_OVER_S)
        if self._worker.is_away:
            await self._worker.leasing.release(leaves_caches=True)

    def _lend(self, settings: Settings, *, at_once: bool = False) -> None:
        """Put these settings in force. `at_once`: what is lent is given back without a wait."""
        self.settings = settings
        self._stay_or_go(settings, self._worker.withheld, at_once=at_once)
        self._worker.is_lending = settings.worker
        self._worker.is_paused = settings.paused
        self._throttle.limit(settings.upload_limit_mbit)
        self._processes.lend(settings.memory_limit)
        self._processes.compute_with(settings.threads)
        self._activity.use()
        self._events.changed()

    def _stay_or_go(
        self, settings: Settings, withheld: Rule | None, *, at_once: bool = False
    ) -> None:
        """Give back what is lent if these settings allow no lending. The masters get time to do without it."""
        if self._worker.is_leaving:
            self._leaving.go()  # asked for twice, or back again
        elif settings.paused or withheld is not None or not settings.worker:
            if not at_once and not self._worker.is_away:
                self._leaving.begin()
            self._giving_back = self._tasks.spawn(self._give_back())


def _changed(before: Settings, request: RoleRequest, now: float) -> Settings:
    """The settings after a request, at this Unix time."""
    paused, until = _pause(before, request, now)
    upload, idle_s = request.upload_limit_mbit, request.idle_unload_s
    download = request.download_limit_mb
    return msgspec.structs.replace(
        before,
        worker=before.worker if request.worker is None else request.worker,
        memory_limit=before.memory_limit if request.memory is None else request.memory or None,
        threads=before.threads if request.threads is None else request.threads or None,
        paused=paused,
        paused_until=until,
        rules=before.rules if request.rules is None else request.rules,
        upload_limit_mbit=before.upload_limit_mbit if upload is None else upload or None,
        download_limit_mb=before.download_limit_mb if download is None else download or None,
        idle_unload_s=before.idle_unload_s if idle_s is None else idle_s or None,
    )


def _pause(before: Settings, request: RoleRequest, now: float) -> tuple[bool, float | None]:
    """Whether lending is paused after a request, and until when.

    Memory that is to be free now is not lent again before the owner resumes, or an hour is over.
    """
    if request.free_now and not before.paused:
        return True, now + HOUR_S
    if request.paused is None:
        return before.paused, before.paused_until
    return request.paused, request.paused_until if request.paused else None
