"""What a node asks of one of its stage processes.

The process computes and may crash or run out of memory; the node must not. Who starts and reads it is `stage_process.py`.
"""

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress

import msgspec

from potluck import errors
from potluck.cluster.processes.messages import (
    EndLinks,
    EndSums,
    LoadProgress,
    LoadStage,
    Quantise,
    Quantised,
    StageLoaded,
    StageSettings,
    StageUnloaded,
    TrySums,
    UnloadStage,
)
from potluck.cluster.processes.stage_process import StageProcess
from potluck.net.interfaces import Interface
from potluck.tasks import reschedule
from potluck.wire.cache_messages import TakeSessions, TakingSessions
from potluck.wire.measuring_messages import (
    MeasureStage,
    Profile,
    Profiled,
    StageMeasured,
    StageTimes,
    SumsMeasured,
)
from potluck.wire.messages import RankPlace


class StageHandle(StageProcess):
    """Starts and talks to one stage process.

    Callbacks run in the event loop: `on_step_failed` for a step that could not be done,
    `on_changed` when what it lends or holds has changed, `on_exit` once if the process ends without `stop`. `engine` is a
    folder with torch, where it was installed apart from this Python; `environment` has variables beside the usual ones.
    """

    def change(self, settings: StageSettings) -> None:
        """Have the process take over these settings, and read the identity's folder again."""
        self._settings = next(self._requests)
        self._send(msgspec.structs.replace(settings, id=self._settings))
        self._settled.clear()

    async def settled(self) -> None:
        """Wait until `devices` have what the process lends by the last settings; not for long, if it does not say so."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self._times.settle_s):
                await self._settled.wait()

    async def profile(self, wanted: Profile) -> Profiled:
        """Measure this process's device, whichever the message names."""
        return await self._ask(wanted, Profiled, self._times.profile_s)

    async def load(
        self, stage: LoadStage, on_progress: Callable[[LoadProgress], None]
    ) -> StageLoaded:
        """Load this stage and put it into force. The deadline moves with every report of progress.

        Raises:
            IntegrityError: a file does not match its digest, which is in `data["digest"]`.
            OutOfMemoryError, EngineError: the device could not load it. Then no stage is in force,
                and `held` says which layers are still in memory.
        """
        try:
            async with asyncio.timeout(self._times.load_silence_s) as deadline:

                def progressed(progress: LoadProgress) -> None:
                    reschedule(deadline, self._times.load_silence_s)
                    on_progress(progress)

                self._on_progress = progressed
                return await self._ask(stage, StageLoaded, None)
        except TimeoutError:
            self._give_up()
            raise errors.EngineError(
                "The compute process on this computer has read nothing for"
                f" {self._times.load_silence_s:.0f} seconds."
                f" Its log is {self._log_path}."
            ) from None
        except asyncio.CancelledError:
            self._give_up()
            raise
        finally:
            self._on_progress = lambda _: None  # a late report must not move a deadline

    def _give_up(self) -> None:
        """Have the process end the load under way, since nobody waits for it any more."""
        with suppress(errors.EngineError):
            self._send(UnloadStage(id=next(self._requests)))

    async def measure(self, epoch: int, position: int) -> StageTimes:
        """Time the parts of one token in the loaded stage once, with `position` tokens cached.

        Raises:
            StaleEpochError: the loaded stage is not of this plan.
            OutOfMemoryError, EngineError: it could not be measured; the stage stays in force.
        """
        message = MeasureStage(epoch=epoch, position=position)
        return (await self._ask(message, StageMeasured, self._times.measure_s)).times

    async def measure_sums(self, home: str, ranks: RankPlace | None) -> SumsMeasured:
        """Sum with the stage processes of other ranks, in a home. Without ranks, only say where this one listens.

        Raises:
            BusyError: a rank computes answers.
            PeerError: another rank cannot be reached, or does not answer in time.
            EngineError: this process cannot sum.
        """
        if ranks is None:
            return SumsMeasured(activation_port=self.activation_port)
        try:
            return await self._ask(
                TrySums(home=home, ranks=ranks), SumsMeasured, self._times.sums_s
            )
        except asyncio.CancelledError:
            with suppress(errors.EngineError):  # it has just ended
                self._send(EndSums())
            raise

    async def take_sessions(self, message: TakeSessions) -> None:
        """Have the stage in force go on with the sessions of another plan.

        Raises:
            StaleEpochError: another stage is in force.
            InvalidStepError: it is a rank of a group.
            UnreachableError: a stage of the other plan does not answer.
        """
        await self._ask(message, TakingSessions, self._times.take_sessions_s)

    def end_links(self, own: Iterable[Interface]) -> None:
        """Have it end its connections in networks of these that are not used."""
        with suppress(errors.EngineError):  # it has just ended, and its connections with it
            self._send(EndLinks(own=tuple(own)))

    async def unload(self, *, leaves_caches: bool = False) -> None:
        """Have it free its memory; if wanted, without the caches of its sessions, which stay for a moment."""
        message = UnloadStage(leaves_caches=leaves_caches)
        await self._ask(message, StageUnloaded, self._times.unload_s)

    async def quantise(self, matrix: Quantise) -> Quantised:
        """Write a matrix in its packed form. Cancelling the call does not end the writing.

        Raises:
            IntegrityError: a file does not match its digest, which is in `data["digest"]`.
            BrokenModelError: a file does not contain valid weights.
            DiskFullError: the packed file cannot be written.
        """
        return await self._ask(matrix, Quantised, self._times.quantise_s)
