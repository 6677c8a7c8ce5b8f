"""Pack matrices on this computer: its stage process writes their packed form into the store.

No matrix is packed twice at the same time. Its packed form stays in the store under its digest
until the store needs the room.
"""

import asyncio
import logging
import os
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from potluck.cluster.processes.messages import Quantise, Quantised, TensorFile
from potluck.ids import Digest, ModelId
from potluck.model.formats import PackedFormat
from potluck.store.chunks import ChunkStore
from potluck.store.quantised import Packed, recall, remember
from potluck.store.throttle import Throttle
from potluck.tasks import together

logger = logging.getLogger(__name__)

CORE_RATE = 500e6  # bytes of bf16 per second; 500 to 800e6 were measured, with hashing in and out
AT_A_TIME = (os.cpu_count() or 1) + 1  # one for each core, and one that is flushed meanwhile
MEASURABLE = 500_000_000  # bytes; less is no measurement: it may be mostly compiling of kernels
RATE_AGE_S = 900.0  # an older rate is not used: this computer may have been busy then


class Engine(Protocol):
    """What packing needs of a stage process of this computer."""

    async def quantise(self, matrix: Quantise) -> Quantised: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Matrix:
    """A matrix to be packed."""

    model: ModelId
    name: str
    config: dict[str, object]  # the model's `config.json`
    shape: tuple[int, int]
    format: PackedFormat
    files: tuple[TensorFile, ...]  # the tensors of the model's files that the matrix is made of

    @property
    def key(self) -> str:
        """Name of the packed matrix, unique within its model."""
        return f"{self.format.dtype} {self.name}"

    @property
    def nbytes(self) -> int:
        """Bytes that are read from the model's files."""
        return sum(file.nbytes for file in self.files)

    @property
    def packed_bytes(self) -> int:
        """Bytes of the packed form."""
        return self.format.nbytes(*self.shape)

    def checked(self, packed: Packed | None) -> Packed | None:
        """The remembered packed form; None if its size shows that it belongs to another matrix."""
        return packed if packed is not None and packed.nbytes == self.packed_bytes else None


class Packing:
    """Packs matrices into the store, several at a time, so that all cores are busy."""

    def __init__(
        self,
        *,
        store: ChunkStore,
        memory: Path,
        engine: Callable[[], Awaitable[Engine]],
        core_rate: float = CORE_RATE,
        measurable: int = MEASURABLE,
        throttle: Throttle | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Make a packing that has packed nothing yet.

        Args:
            store: where packed bytes are kept.
            memory: folder where the digests of packed matrices are remembered.
            engine: returns the running stage process; waits while it starts.
            core_rate: bytes per second of a core, as long as nothing was measured.
            measurable: fewest bytes from which a rate is measured.
            throttle: limits how fast weights are sent; None: there is no limit.
            clock: time in seconds.
        """
        self.store, self.memory = store, memory
        self._engine = engine
        self._core_rate, self._measurable = core_rate, measurable
        self.throttle = throttle or Throttle()
        self._clock = clock
        self._measured: tuple[float, float] | None = None  # time, and bytes per second
        self._under_way: dict[tuple[ModelId, str], asyncio.Task[Packed]] = {}
        self._remembering = asyncio.Lock()

    async def recall(self, model: ModelId) -> dict[str, Packed]:
        """The digests that are remembered of this model: of packed matrices, and of slices of tensors."""
        return await asyncio.to_thread(recall, self.memory, model)

    async def remember(self, model: ModelId, made: Mapping[str, Packed]) -> None:
        """Remember further digests of this model."""
        async with self._remembering:
            await asyncio.to_thread(remember, self.memory, model, made)

    @property
    def rate(self) -> float:
        """Bytes of the files packed per second: measured a short time ago, else a usual value."""
        if self._measured is not None and self._clock() - self._measured[0] < RATE_AGE_S:
            return self._measured[1]
        return self._core_rate * (os.cpu_count() or 1)

    def pays(self, link_rate: float | None) -> bool:
        """Whether packing before sending saves time on a link of `link_rate` bytes per second.

        True if the rate is not known (None).
        """
        link_rate = self.throttle.rate(link_rate)
        return link_rate is None or link_rate < self.rate

    async def pack(
        self,
        matrices: Sequence[Matrix],
        done: Callable[[Matrix, Packed], None],
        *,
        link_rate: float | None = None,
    ) -> None:
        """Pack matrices in roughly this order, until sending one unpacked would be faster.

        Args:
            matrices: the matrices to pack.
            done: called with each matrix when it is in the store.
            link_rate: bytes per second of the link that they are sent over; None: all are packed.

        Raises:
            StoreError: the disk is full; if it is an IntegrityError, a file of the model is
                damaged.
            BrokenModelError: a file does not contain valid weights.
            EngineError: the stage process is gone.
        """
        await asyncio.to_thread(self.store.free_for, sum(m.packed_bytes for m in matrices))
        waiting, started, nbytes = iter(matrices), self._clock(), 0

        async def work() -> None:
            nonlocal nbytes
            for matrix in waiting:
                # Shielded, so that the matrix that is being written is kept if the caller is
                # cancelled.
                done(matrix, await asyncio.shield(self._task(matrix)))
                nbytes += matrix.nbytes
                self._measure(nbytes, self._clock() - started)
                if not self.pays(link_rate):
                    return

        await together(work() for _ in range(AT_A_TIME))
        logger.info("quantised bytes=%d seconds=%.2f", nbytes, self._clock() - started)

    def _measure(self, nbytes: int, seconds: float) -> None:
        if nbytes >= self._measurable and seconds > 0:
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
        """Cancel all packing that is under way."""
        tasks = list(self._under_way.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
