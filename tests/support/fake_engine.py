"""A stage process that computes nothing, and assignments for it."""

import asyncio
from collections.abc import Callable
from typing import Any

from potluck.cluster.master.stage_tensors import tensor_info
from potluck.cluster.processes.messages import (
    Held,
    LoadProgress,
    LoadStage,
    StageLoaded,
)
from potluck.store.registry import LocalModel
from potluck.wire.cache_messages import TakeSessions
from potluck.wire.measuring_messages import Profile, Profiled, StageTimes, SumsMeasured
from potluck.wire.messages import Assign, DeviceInfo, HeldStage, RankPlace

DEVICE = DeviceInfo(kind="cpu", memory_total=10, memory_free=5)
OTHER = DeviceInfo(kind="cpu", index=1, memory_total=10, memory_free=5)


class FakeEngine:
    """The stage process of a device. A load waits for `gate`; `error` makes the next load fail."""

    activation_port = 4711

    def __init__(self, device: DeviceInfo = DEVICE) -> None:
        self.devices = (device,)
        self.loaded: LoadStage | None = None
        self.summed: RankPlace | None = None  # the place of the last sums that were asked for
        self.gate: asyncio.Event | None = None
        self.error: Exception | None = None
        self.unloads = 0
        self.leaves_caches = False  # the last time
        self.profiled: list[str] = []  # the cache of each profile
        self.taken_over: list[TakeSessions] = []

    async def take_sessions(self, message: TakeSessions) -> None:
        self.taken_over.append(message)

    async def profile(self, wanted: Profile) -> Profiled:
        self.profiled.append(wanted.cache)
        return Profiled(device=DEVICE, decode_ms=(1.0,), prefill_ms=(2.0,), head_ms=3.0)

    async def load(
        self, stage: LoadStage, on_progress: Callable[[LoadProgress], None]
    ) -> StageLoaded:
        on_progress(LoadProgress(epoch=stage.epoch, done=1, total=2))
        if self.gate is not None:
            await self.gate.wait()
        if self.error is not None:
            error, self.error = self.error, None
            raise error
        self.loaded = stage
        return StageLoaded(
            seconds=0.5,
            memory_bytes=99,
            cache_tokens=64,
            layers_kept=0,
            layers_loaded=stage.layers[1] - stage.layers[0],
        )

    @property
    def held(self) -> Held | None:
        stage = self.loaded
        if stage is None:
            return None
        held = HeldStage(
            device=self.devices[0].id,
            model_id=stage.model_id,
            seed=stage.seed,
            scheme=stage.scheme,
            cache=stage.cache,
            layers=stage.layers,
            embedding=stage.embedding,
            head=stage.head,
            epoch=stage.epoch,
            context=stage.context,
        )
        return Held(home=stage.home, stage=held)

    async def measure_sums(self, home: str, ranks: RankPlace | None) -> SumsMeasured:
        self.summed = ranks
        return SumsMeasured(activation_port=self.activation_port)

    async def measure(self, epoch: int, position: int) -> StageTimes:
        return StageTimes(
            weight_bytes=epoch,
            read_bytes_per_s=1e9,
            layers_ms=position or 1.0,
            head_ms=0.0,
        )

    async def unload(self, *, leaves_caches: bool = False) -> None:
        self.leaves_caches = leaves_caches
        self.unloads += 1
        self.loaded = None


def assign(
    model: LocalModel, start: int = 0, stop: int | None = None, *, epoch: int = 1, **changes: Any
) -> Assign:
    """Assign these layers, with the embedding and the head if the model begins or ends there."""
    stop = model.config.num_layers if stop is None else stop
    embedding, head = start == 0, stop == model.config.num_layers
    names = model.config.stage_tensors(range(start, stop), embedding=embedding, head=head)
    fields: dict[str, Any] = {
        "epoch": epoch,
        "model_id": model.manifest.model_id,
        "config": dict(model.manifest.config),
        "scheme": "f32",
        "layers": (start, stop),
        "embedding": embedding,
        "head": head,
        "context": 64,
        "tensors": tuple(map(tensor_info, model.manifest.stage(names))),
    }
    return Assign(**(fields | changes))
