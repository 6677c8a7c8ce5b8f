"""The weights that this process holds, and how a load changes them.

A load keeps the parts that it needs and that have the same content, drops the others, and only then
allocates what is missing: a plan that moves a boundary by one layer loads one layer. After a failed
load the kept parts are still held, and the next load can use them.
"""

import asyncio
import math
import platform
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypedDict

import torch

import potluck
from potluck.cluster.processes.messages import Held, LoadProgress, LoadStage
from potluck.cluster.stage.compute_thread import ComputeThread
from potluck.cluster.stage.loaded import LoadedStage
from potluck.cluster.stage.packer import stored_tensor
from potluck.cluster.stage.ranks import Ranks
from potluck.engine.caches.disk_work import Disk, at_once
from potluck.engine.caches.left_sessions import LeftSessions
from potluck.engine.caches.session_files import SessionFiles
from potluck.engine.device import is_wide, set_threads
from potluck.engine.lending import Lending
from potluck.engine.loading.stage_weights import StageWeights
from potluck.engine.loading.weights import load_weights, random_weights
from potluck.engine.memory import release
from potluck.engine.stage import Stage, alone
from potluck.errors import EngineError, OutOfMemoryError
from potluck.model.cache_shares import CacheShares
from potluck.model.config import ModelConfig
from potluck.model.footprint import stage_footprint, usable_memory, working_bytes
from potluck.model.schemes import PACKING_VERSION, Cache, Scheme
from potluck.model.shares import Share, rank_config
from potluck.model.tensor_formats import in_memory
from potluck.wire.messages import HeldStage
from potluck.wire.shares import RankShare

PROGRESS_INTERVAL_S = 0.1
SMALL_LAYER = 2_000_000  # parameters; one thread computes such a layer before a second one wakes


@dataclass(frozen=True, slots=True, kw_only=True)
class _Content:
    """The content of loaded layers: if it is equal, layers of the same number are equal."""

    home: str  # the model id comes from this home's master
    model_id: str
    seed: int | None
    config: dict[str, object]
    scheme: Scheme
    cache: Cache
    threads: int | None  # how many threads share a matrix product
    share: RankShare | None


class StageLoader:
    """Owns the weights. Its coroutines must be called one after the other, never two at a time.

    Attributes:
        threads: number of threads for what is loaded next; None: one for each core.

    Args:
        name: of this computer, for errors.
        device: the device of the stage.
        lending: how much of the device may be used.
        compute: the only thread that uses torch.
        threads: see the attribute.
        report: called with the progress of a load, in the event loop.
        sessions: folder where conversations' caches are kept; None: they are not.
        sessions_limit: bytes that they may take.
        disk: has work done that waits for the disk.
        ranks: the group that stages with a share of each layer compute with.
    """

    def __init__(
        self,
        *,
        name: str,
        device: torch.device,
        lending: Lending,
        compute: ComputeThread,
        threads: int | None,
        report: Callable[[LoadProgress], None],
        sessions: Path | None = None,
        sessions_limit: int = 0,
        disk: Disk = at_once,
        ranks: Ranks | None = None,
    ) -> None:
        self.threads = threads
        self._name = name
        self._device = device
        self._lending = lending
        self._compute = compute
        self._report = report
        self._sessions, self._sessions_limit = sessions, sessions_limit
        self._disk = disk
        self._ranks = ranks if ranks is not None else Ranks()
        self._loop = asyncio.get_running_loop()
        self._weights: StageWeights | None = None
        self._content: _Content | None = None
        self._wanted: int | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of the weights that are held."""
        return 0 if self._weights is None else self._weights.nbytes

    def want(self, request: int | None) -> None:
        """Give up every load except that of this request."""
        self._wanted = request

    async def drop(self) -> None:
        """Free all memory. No stage may be in force."""
        self._weights = self._content = None
        await self._release()

    def has_model_of(self, message: LoadStage) -> bool:
        """Whether what is held is of the same model, in the same form, whatever share of each layer it is."""
        content = self._content
        return content is not None and replace(content, share=message.share) == self._content_of(
            message
        )

    async def prepare(self, message: LoadStage, left: LeftSessions | None = None) -> int:
        """Drop the weights that the load does not need, and check that there is room for the rest.

        The stage that was in force must not be used any more. What is `left` of its sessions is given back if there is
        no room beside it.

        Returns:
            How many layers are kept.

        Raises:
            OutOfMemoryError: there is not enough room; nothing was allocated.
            EngineError: the load was given up.
        """
        content = self._content_of(message)
        if self._weights is not None:
            kept = self._weights
            if content != self._content:
                kept = None
            elif not kept.has_all(range(*message.layers), **_ends(message)):
                kept = kept.keep(range(*message.layers), **_ends(message))
            self._weights = kept if kept is not None and kept.nbytes else None
            del kept
        self._content = content
        # This also frees what a failed load has left: torch keeps a GPU's memory until it is told
        # to release it, and without that memory this load would be refused.
        await self._release()
        self._check_wanted(message)
        try:
            self._check_room(message)
        except OutOfMemoryError:
            if left is None or not left.nbytes:
                raise
            await self._compute.call(left.clear)
            await self._release()
            self._check_room(message)
        return 0 if self._weights is None else len(self._weights.layers)

    async def load(self, message: LoadStage, left: LeftSessions | None = None) -> Stage:
        """Load what is missing after `prepare`, and make the stage, which may soon have the memory of what is `left`.

        Raises:
            IntegrityError: a file does not match its digest.
            OutOfMemoryError: the device has too little memory.
            EngineError: the load was given up.
        """
        stage = await self._compute.call(lambda: self._build(message, left))
        self._weights = stage.weights
        return stage

    def held(self, loaded: LoadedStage | None) -> Held | None:
        """Describe the held weights to the node; None: nothing is held.

        Args:
            loaded: the stage in force; None: there is none.
        """
        weights, content = self._weights, self._content
        if weights is None or content is None:
            return None
        stage = HeldStage(
            device=self._lending.own().id,
            model_id=content.model_id,
            seed=content.seed,
            scheme=content.scheme,
            cache=content.cache,
            layers=(weights.layers[0], weights.layers[-1] + 1) if weights.layers else (0, 0),
            embedding=weights.embedding is not None,
            head=weights.lm_head is not None,
            share=content.share,
            epoch=loaded.epoch if loaded is not None else None,
            context=loaded.stage.context if loaded is not None else None,
        )
        return Held(home=content.home, stage=stage)

    def threads_for(self, config: ModelConfig) -> int | None:
        """How many threads compute this model. Set it on the computing thread: it is per thread."""
        return 1 if has_small_layers(config) else self.threads

    def _content_of(self, message: LoadStage) -> _Content:
        return _Content(
            home=message.home,
            model_id=message.model_id,
            seed=message.seed,
            config=message.config,
            scheme=message.scheme,
            cache=message.cache,
            threads=self.threads_for(ModelConfig.from_dict(message.config)),
            share=message.share,
        )

    async def _release(self) -> None:
        """After the steps under way, free the memory that torch or the C library keeps."""
        await self._compute.call(lambda: release(self._device))

    def _check_wanted(self, message: LoadStage) -> None:
        if self._wanted != message.id:
            raise EngineError("This load was given up.")

    def _check_room(self, message: LoadStage) -> None:
        """Refuse a stage that would not fit before anything is allocated: plans are not trusted."""
        whole = ModelConfig.from_dict(message.config)
        config = rank_config(whole, _share(message), message.scheme)
        footprint = stage_footprint(
            config,
            range(*message.layers),
            **_ends(message),
            scheme=message.scheme,
            context=message.context,
            cache=message.cache if self._device.type == "cpu" else "full",
            is_wide=is_wide(
                message.scheme, self._device, message.cache, exceeds_f16=config.exceeds_f16
            ),
        )
        lent = self._lending.own(in_use=self.nbytes).memory_free  # includes the kept weights
        free = usable_memory(lent, self._device.type, message.scheme)
        footprint.check(free, self._name, message.context)

    # --- on the computing thread

    def _build(self, message: LoadStage, left: LeftSessions | None) -> Stage:
        config = ModelConfig.from_dict(message.config)
        own = rank_config(config, _share(message), message.scheme)
        set_threads(self.threads_for(config))
        weights = self._weights
        if weights is None or not weights.has_all(range(*message.layers), **_ends(message)):
            weights = self._load_missing(message, config)
            release(self._device)  # the memory that reading and compiling took
        reads = message.embedding or message.tower
        used = weights.nbytes + working_bytes(own, message.context, embedding=reads)

        def to_come() -> int:
            return 0 if left is None else left.nbytes

        def budget(cached: int) -> int:
            before = to_come()  # lent as well, until it is given back
            lent = self._lending.own(in_use=weights.nbytes + cached + before).memory_free
            return lent - used - before

        ranks = self._ranks if message.share is not None else None
        return Stage(
            weights,
            exchange=ranks,
            together=alone if ranks is None else ranks.lead,
            context=message.context,
            cache_budget=max(0, budget(0) + to_come()),
            budget_now=budget,
            epoch=message.epoch,
            files=self._session_files(message),
            disk=self._disk,
            shares=CacheShares(config=config, scheme=message.scheme, share=_share(message)),
        )

    def _session_files(self, message: LoadStage) -> SessionFiles | None:
        """Where the caches of this stage are kept: only another one that has the same bits finds them."""
        if self._sessions is None:
            return None
        program = (potluck.__version__, PACKING_VERSION, torch.__version__, platform.machine())
        weights = (message.home, message.model_id, message.seed, message.scheme, message.cache)
        layers = (*message.layers, message.embedding, message.head, message.context)
        share = () if message.share is None else (message.share.rank, *message.share.shares)
        stage = " ".join(map(str, (*program, *weights, *layers, *share)))
        return SessionFiles(folder=self._sessions, limit=self._sessions_limit, stage=stage)

    def _load_missing(self, message: LoadStage, config: ModelConfig) -> StageWeights:
        """Read, check and convert the weights that are not held yet, or make random ones."""
        last_report = 0.0

        def progress(done: int, total: int) -> None:
            self._check_wanted(message)
            nonlocal last_report
            now = time.monotonic()
            if now - last_report >= PROGRESS_INTERVAL_S or done == total:
                last_report = now
                report = LoadProgress(epoch=message.epoch, done=done, total=total)
                self._loop.call_soon_threadsafe(self._report, report)

        if message.seed is not None:
            return random_weights(
                rank_config(config, _share(message), message.scheme),
                range(*message.layers),
                **_ends(message),
                scheme=message.scheme,
                cache=message.cache,
                device=self._device,
                seed=message.seed,
                progress=progress,
                kept=self._weights,
            )
        return load_weights(
            config,
            range(*message.layers),
            **_ends(message),
            tensors=map(stored_tensor, message.tensors),
            scheme=message.scheme,
            cache=message.cache,
            device=self._device,
            progress=progress,
            threads=self.threads,
            kept=self._weights,
            share=_share(message),
        )


def has_small_layers(config: ModelConfig) -> bool:
    """Whether one thread computes a layer of this model before a second one wakes."""
    parameters = sum(math.prod(shape) for shape in in_memory(config.layer_tensors(0)).values())
    return parameters < SMALL_LAYER


class _Ends(TypedDict):
    embedding: bool
    head: bool
    tower: bool


def _share(message: LoadStage) -> Share | None:
    if message.share is None:
        return None
    return message.share.share


def _ends(message: LoadStage) -> _Ends:
    return {"embedding": message.embedding, "head": message.head, "tower": message.tower}
