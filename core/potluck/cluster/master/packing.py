"""Matrices in their packed form, made on this computer: by its stage process, into its store.

Each is made once at a time, and stays in the store under its digest until there is no room for it.
"""

import asyncio
import logging
import os
import secrets
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from potluck.cluster.processes.messages import Quantise, Quantised, TensorFile
from potluck.cluster.tasks import together
from potluck.ids import Digest, ModelId
from potluck.model.formats import PackedFormat
from potluck.store.chunks import ChunkStore
from potluck.store.quantised import Packed

logger = logging.getLogger(__name__)

CORE_RATE = 500e6  # bytes of bf16 a second: 500 to 800 were measured, digests of both ends included
AT_A_TIME = (os.cpu_count() or 1) + 1  # one more than are packed: it is flushed meanwhile
MEASURABLE = 500_000_000  # bytes; after less the kernels may just have been compiled
RATE_AGE_S = 900.0  # this computer may have been busy with something else


class Engine(Protocol):
    """What packs: the stage process of this computer."""

    async def quantise(self, matrix: Quantise) -> Quantised: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Matrix:
    """A matrix to be packed."""

    model: ModelId
    name: str
    config: dict[str, object]  # of the model
    shape: tuple[int, int]
    format: PackedFormat
    files: tuple[TensorFile, ...]  # where the tensors stand that it is stored in

    @property
    def key(self) -> str:
        """Which of the model's packed matrices it is."""
        return f"{self.format.dtype} {self.name}"

    @property
    def nbytes(self) -> int:
        """What is read."""
        return sum(file.info.nbytes for file in self.files)

    @property
    def packed_bytes(self) -> int:
        """What it takes when it is packed."""
        return self.format.nbytes(*self.shape)

    def checked(self, packed: Packed | None) -> Packed | None:
        """The remembered packed form, unless its size shows that it is not of this matrix."""
        return packed if packed is not None and packed.nbytes == self.packed_bytes else None


class Packing:
    """Packs matrices into the store, as many at a time as keep this computer busy."""

    def __init__(
        self,
        *,
        store: ChunkStore,
        memory: Path,
        engine: Callable[[], Awaitable[Engine]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Make a packing that has packed nothing yet.

        Args:
            store: where packed bytes are kept.
            memory: a folder where the digests of packed matrices are remembered.
            engine: the running stage process; waits while it starts.
            clock: seconds.
        """
        self.store, self.memory = store, memory
        self._engine = engine
        self._clock = clock
        self._measured: tuple[float, float] | None = None  # when, and bytes a second
        self._under_way: dict[tuple[ModelId, str], asyncio.Task[Packed]] = {}

    @property
    def rate(self) -> float:
        """Bytes of the files packed a second: as measured in the last minutes, or else a usual value."""
        if self._measured is not None and self._clock() - self._measured[0] < RATE_AGE_S:
            return self._measured[1]
        return CORE_RATE * (os.cpu_count() or 1)

    def pays(self, link_rate: float | None) -> bool:
        """Whether to pack before sending over a link of so many bytes a second, if that is known."""
        return link_rate is None or link_rate < self.rate

    async def pack(
        self,
        matrices: Sequence[Matrix],
        done: Callable[[Matrix, Packed], None],
        *,
        link_rate: float | None = None,
    ) -> None:
        """Pack matrices, in about this order, as long as it saves time.

        Args:
            matrices: to be packed.
            done: called with each matrix when it is in the store.
            link_rate: bytes a second of the link that they are sent over; None: all are packed.

        Raises:
            StoreError: the disk is full; if it is an IntegrityError, a file of the model is damaged.
            BrokenModelError: they are no weights.
            EngineError: the stage process is gone.
        """
        await asyncio.to_thread(self.store.free_for, sum(m.packed_bytes for m in matrices))
        waiting, started, nbytes = iter(matrices), self._clock(), 0

        async def work() -> None:
            nonlocal nbytes
            for matrix in waiting:
                # Shielded: what the stage process is writing is kept, though nobody waits any more.
                done(matrix, await asyncio.shield(self._task(matrix)))
                nbytes += matrix.nbytes
                self._measure(nbytes, self._clock() - started)
                if not self.pays(link_rate):
                    return

        await together(work() for _ in range(AT_A_TIME))
        logger.info("quantised bytes=%d seconds=%.2f", nbytes, self._clock() - started)

    def _measure(self, nbytes: int, seconds: float) -> None:
        if nbytes >= MEASURABLE and seconds > 0:
            self._measured = (self._clock(), nbytes / seconds)

    def _task(self, matrix: Matrix) -> "asyncio.Task[Packed]":
        key = (matrix.model, matrix.key)
        task = self._under_way.get(key)
        if task is None:
            task = asyncio.create_task(self._pack(matrix), name="quantise")
            self._under_way[key] = task
            task.add_done_callback(lambda task: self._ended(key, task))
        return task

    def _ended(self, key: tuple[ModelId, str], task: "asyncio.Task[Packed]") -> None:
        del self._under_way[key]
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.info("a matrix was not quantised: %s", error)

    async def _pack(self, matrix: Matrix) -> Packed:
        engine = await self._engine()
        path = self.store.workshop / secrets.token_hex(8)
        path.parent.mkdir(exist_ok=True)
        file = await engine.quantise(
            Quantise(
                request=0,
                config=matrix.config,
                shape=matrix.shape,
                dtype=matrix.format.dtype,
                parts=matrix.files,
                path=str(path),
            )
        )
        await asyncio.to_thread(self.store.adopt, path, Digest(file.digest))
        return Packed(file.digest, file.nbytes)

    async def stop(self) -> None:
        """End what is under way."""
        tasks = list(self._under_way.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
