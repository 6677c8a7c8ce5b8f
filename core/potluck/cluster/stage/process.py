"""The stage process: it computes one stage on one device, and serves its activation connections.

It has these threads:
- asyncio handles the node's requests and the start of connections;
- the computing thread uses torch (the only one that does so for answers), and receives and sends steps itself;
- the relief receives and sends steps while the computing thread is busy for long;
- the disk thread reads and writes conversations' caches;
- another one measures what sums with other processes take, now and then (`sum_times.py`);
- the last one reads the node's messages from stdin, and answers those that ask whether it hangs.
When stdin ends, the node is gone, and this process ends too.
"""

import asyncio
import faulthandler
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, assert_never

import msgspec
import torch

from potluck.cluster.device_names import place_name
from potluck.cluster.processes.messages import (
    Answer,
    EndLinks,
    EndSums,
    FromStage,
    Health,
    HealthCheck,
    LoadStage,
    Memory,
    Quantise,
    Ready,
    StageLoaded,
    StageSettings,
    StageUnloaded,
    Start,
    ToStage,
    TrySums,
    UnloadStage,
    claim_stdout,
    decode_to_stage,
    encode,
    read_frame,
)
from potluck.cluster.stage.chain import StageChain
from potluck.cluster.stage.compute_thread import ComputeThread, end_process
from potluck.cluster.stage.disk_thread import DiskThread
from potluck.cluster.stage.in_force import StageInForce
from potluck.cluster.stage.joining import check_place
from potluck.cluster.stage.loading import StageLoader
from potluck.cluster.stage.packer import Packer
from potluck.cluster.stage.ranks import Ranks
from potluck.cluster.stage.scheduler import Scheduler
from potluck.cluster.stage.step_watch import StepWatch
from potluck.cluster.stage.sum_times import try_sums
from potluck.engine.accelerator import log_capabilities
from potluck.engine.device import computing_with, is_lost, is_wide, use
from potluck.engine.kernels import keep_compiled
from potluck.engine.lending import Lending
from potluck.engine.profile import LayerProfile, profile_layers
from potluck.errors import (
    BusyError,
    EngineError,
    IdentityError,
    PotluckError,
)
from potluck.ids import HomeId
from potluck.model.config import ModelConfig
from potluck.net.identity import Identity
from potluck.net.link import error_message
from potluck.net.link_kind import step_links
from potluck.net.peer_link import end_avoided, open_links
from potluck.net.transport import Listener, StepLink
from potluck.tasks import TaskSet
from potluck.wire.cache_messages import TakeSessions, TakingSessions
from potluck.wire.measuring_messages import (
    MeasureStage,
    Profile,
    Profiled,
    StageMeasured,
    SumsMeasured,
)
from potluck.wire.messages import DeviceInfo, Hop, Purpose

logger = logging.getLogger(__name__)

MEMORY_INTERVAL_S = 2.0
MEMORY_STEP = 0.02  # of the total; smaller changes of the free memory are not reported


class StageServer:
    """Serves its node over the pipe, and its peers over TLS."""

    def __init__(self, start: Start, write: Callable[[bytes], None], watch: StepWatch) -> None:
        self._write = write
        self._identity = Identity.load(Path(start.identity_folder))
        self._lending = Lending(start.device, cpus=start.cpus, limit=start.memory_limit)
        self._device = self._lending.torch_device
        devices = self._lending.all()
        self._me = msgspec.structs.replace(
            start.me, name=place_name(start.me.name, devices[0], devices)
        )
        threads = self._lending.threads or start.threads
        self._kernels = start.kernels_folder
        self._packer = Packer(threads)
        scheduler, ranks = Scheduler(), Ranks(watch.waiting)
        self._chain = StageChain(
            self._me.name,
            scheduler,
            self._tell,
            end_process,
            ranks=ranks,
            submit=lambda job: self._compute.submit_short(job),
        )
        self._compute = ComputeThread(scheduler, self._chain.run_group, watch=watch)
        self._loader = StageLoader(
            name=self._me.name,
            device=self._device,
            lending=self._lending,
            compute=self._compute,
            threads=threads,
            report=self._tell,
            sessions=None if start.sessions_folder is None else Path(start.sessions_folder),
            sessions_limit=start.sessions_limit,
            disk=DiskThread(self._compute.submit_short),
            ranks=ranks,
        )
        self._in_force = StageInForce(
            identity=self._identity,
            me=self._me,
            chain=self._chain,
            loader=self._loader,
            scheduler=scheduler,
            ranks=ranks,
            compute=self._compute,
            device=self._device,
            tell=self._tell,
            freed=self._tell_memory,
        )
        self._port = 0  # where other stages connect
        self._tasks = TaskSet()
        self._sums: asyncio.Task[None] | None = None  # measures these

    # --- the node

    async def run(self, messages: "asyncio.Queue[ToStage | None]") -> None:
        """Serve until the node is gone."""
        self._compute.start()
        use(self._device)
        self._compute.submit(lambda: use(self._device))
        if (folder := self._kernels) is not None:
            self._compute.submit(lambda: keep_compiled(Path(folder)))
        self._tasks.spawn(self._try_device())
        async with Listener(
            self._identity,
            me=lambda: self._me,
            on_link=self._chain.serve_link,
            kind=step_links(self._compute.reactor),
        ) as listener:
            self._port = listener.port
            self._tell(Ready(devices=self._all_lent(), activation_port=self._port))
            self._tasks.spawn(self._report_memory())
            while (message := await messages.get()) is not None:
                self._handle(message)
            await self._in_force.save_sessions()
            await self._in_force.stop()
            await self._tasks.stop()

    async def _try_device(self) -> None:
        """Write to the log what works on this device, and what had to be replaced."""
        await self._compute.call(lambda: log_capabilities(self._device))

    def _handle(self, message: ToStage) -> None:
        match message:
            case StageSettings():
                self._change(message)
            case Profile():
                self._tasks.spawn(self._answer(message.id, self._profile(message)))
            case LoadStage():
                self._loader.want(message.id)
                self._tasks.spawn(self._answer(message.id, self._load(message)))
            case UnloadStage():
                self._loader.want(message.id)
                self._tasks.spawn(self._answer(message.id, self._unload(message)))
            case TrySums():
                self._begin_sums(message)
            case EndSums():
                self._end_sums()
            case EndLinks():
                end_avoided(open_links(self._identity), message.own)
            case MeasureStage():
                self._tasks.spawn(self._answer(message.id, self._time(message)))
            case TakeSessions():
                self._tasks.spawn(self._answer(message.id, self._take_sessions(message)))
            case Quantise():
                self._tasks.spawn(self._answer(message.id, self._packer.answer(message)))
            case Start() | HealthCheck():  # a check is answered by the thread that reads it
                logger.warning("ignored op=%s", type(message).__name__)
            case _:
                assert_never(message)

    def _change(self, settings: StageSettings) -> None:
        self._lending.limit = settings.memory_limit
        self._loader.threads = self._lending.threads or settings.threads
        self._tell_memory(settings.id)
        try:
            self._identity.reload()
        except (IdentityError, OSError):  # the homes that were known before stay in force
            logger.exception("the homes of this computer cannot be read again")

    def _begin_sums(self, message: TrySums) -> None:
        if self._sums is not None and not self._sums.done():
            self._refuse(message.id, BusyError("Sums of this computer are measured already."))
        else:
            self._sums = self._tasks.spawn(self._answer(message.id, self._try_sums(message)))

    def _end_sums(self) -> None:
        """Nobody waits any more for what is measured."""
        if self._sums is not None:
            self._sums.cancel()
            self._sums = None

    def _tell(self, message: FromStage) -> None:
        self._write(encode(message))

    async def _answer(self, request: int | None, work: Coroutine[None, None, Answer]) -> None:
        try:
            self._tell(msgspec.structs.replace(await work, re=request))
        except PotluckError as error:
            self._refuse(request, error)
        except Exception:  # the boundary to torch: the process goes on
            logger.exception("request failed")
            self._refuse(
                request, EngineError("The compute process failed; its engine.log says why.")
            )
            if await self._compute.call(lambda: is_lost(self._device)):
                end_process()

    def _refuse(self, request: int | None, error: PotluckError) -> None:
        self._tell(msgspec.structs.replace(error_message(error), re=request))

    async def _profile(self, wanted: Profile) -> Profiled:
        config = ModelConfig.from_dict(wanted.config)

        def measure() -> LayerProfile:
            with computing_with(self._loader.threads_for(config)):  # a loaded stage keeps its own
                return profile_layers(
                    config,
                    self._device,
                    wanted.scheme,
                    chunk=wanted.tokens,
                    memory=self._lent().memory_free,
                    cache=wanted.cache,
                )

        profile = await self._compute.call(measure)
        return Profiled(
            device=self._lent(),
            decode_ms=tuple(times.decode_ms for times in profile.kinds.values()),
            prefill_ms=tuple(times.prefill_ms for times in profile.kinds.values()),
            deep_decode_ms=tuple(times.deep_decode_ms for times in profile.kinds.values()),
            deep_prefill_ms=tuple(times.deep_prefill_ms for times in profile.kinds.values()),
            deep=profile.deep,
            head_ms=profile.head_ms,
            picture_ms=profile.picture_ms,
            is_wide=self._device.type != "cpu"
            and is_wide(wanted.scheme, self._device, exceeds_f16=config.exceeds_f16),
        )

    # --- the stage in force

    async def _load(self, message: LoadStage) -> StageLoaded:
        loaded = await self._in_force.load(message)
        self._tell_memory()
        return loaded

    async def _unload(self, message: UnloadStage) -> StageUnloaded:
        await self._in_force.unload(leaves_caches=message.leaves_caches)
        self._tell_memory()
        return StageUnloaded()

    async def _time(self, message: MeasureStage) -> StageMeasured:
        times = await self._in_force.measure(message.epoch, message.position)
        return StageMeasured(epoch=message.epoch, times=times)

    async def _take_sessions(self, message: TakeSessions) -> TakingSessions:
        await self._in_force.take_sessions(message)
        return TakingSessions(epoch=message.epoch)

    async def _try_sums(self, message: TrySums) -> SumsMeasured:
        check_place(message.ranks, self._identity.node_id)
        home = HomeId(message.home)

        def dial(hop: Hop, purpose: Purpose) -> Coroutine[None, None, StepLink]:
            return self._in_force.dial(home, hop, purpose)

        await self._compute.call(lambda: None)  # a profile that is under way is not disturbed
        times = await try_sums(
            message.ranks, home, dial, self._chain.lobby, lambda: self._compute.is_answering
        )
        return SumsMeasured(activation_port=self._port, times=times)

    def _lent(self) -> DeviceInfo:
        """The device with the memory for a plan: the free memory and that of the loaded stage."""
        return self._lending.own(in_use=self._in_force.in_use)

    def _all_lent(self) -> tuple[DeviceInfo, ...]:
        return self._lending.all(in_use=self._in_force.in_use)

    def _tell_memory(self, request: int | None = None) -> None:
        self._tell(Memory(devices=self._all_lent(), re=request))

    async def _report_memory(self) -> None:
        last = self._all_lent()
        while True:
            await asyncio.sleep(MEMORY_INTERVAL_S)
            now = self._all_lent()
            if any(
                abs(new.memory_free - old.memory_free) > MEMORY_STEP * new.memory_total
                for new, old in zip(now, last, strict=True)
            ):
                last = now
                self._tell(Memory(devices=now))


async def _serve(pipe: BinaryIO) -> None:
    loop = asyncio.get_running_loop()
    messages: asyncio.Queue[ToStage | None] = asyncio.Queue()
    first = await asyncio.to_thread(read_frame, sys.stdin.buffer)
    if first is None:
        return
    start = decode_to_stage(first)
    assert isinstance(start, Start)

    watch, writing = StepWatch(), threading.Lock()

    def read() -> None:
        while (frame := read_frame(sys.stdin.buffer)) is not None:
            message = decode_to_stage(frame)
            if isinstance(message, HealthCheck):
                write(encode(Health(is_stuck=watch.is_stuck, steps=watch.steps)))
            else:
                loop.call_soon_threadsafe(messages.put_nowait, message)
        loop.call_soon_threadsafe(messages.put_nowait, None)

    def write(frame: bytes) -> None:
        with writing:
            pipe.write(frame)
            pipe.flush()

    server = StageServer(start, write, watch)
    threading.Thread(target=read, name="stdin", daemon=True).start()
    with suppress(NotImplementedError):  # Windows: the process ends with its node
        loop.add_signal_handler(signal.SIGTERM, messages.put_nowait, None)
    await server.run(messages)


def main() -> None:
    """Serve one node until it is gone."""
    faulthandler.enable()  # if a kernel crashes, the log has the place in the code
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    pipe = claim_stdout()
    torch.set_grad_enabled(False)
    asyncio.run(_serve(pipe))
    os._exit(0)  # no regular end: daemon threads may be inside torch, and could crash in it
