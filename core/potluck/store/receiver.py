"""The receiving end of a weights connection, which stores tensors.

Three tasks form a pipeline with bounded queues. The first takes chunks from the link and checks
that they were requested. The second writes and hashes them. The third makes whole tensors durable
and answers. Each task takes all items of its queue at once, so that hundreds of norms of 2 KB cost
only a few calls of a thread.
"""

import asyncio
from typing import TypeAlias, TypeVar

from potluck.errors import (
    IntegrityError,
    PeerError,
    PeerTimeoutError,
    RemoteError,
    RemoteProtocolError,
    StoreError,
)
from potluck.ids import Digest, short
from potluck.store.chunks import ChunkStore, Missing
from potluck.store.link import WeightsLink
from potluck.store.progress import Clock, OnProgress, TransferMeter
from potluck.tasks import reschedule
from potluck.wire.messages import Chunk, Error, Rejected, Stored

CHUNK_TIMEOUT_S = 120.0  # the sender's disk may have to wake up first
SEND_TIMEOUT_S = 60.0
QUEUE_CHUNKS = 8  # received but not written: 16 MiB of usual chunks
QUEUE_TENSORS = 64  # written but not flushed
"""When `write` waits for the disk, the queue fills up and TCP slows the sender down."""

_Piece: TypeAlias = tuple[Chunk, memoryview, bool]  # the last: sent again after a rejection
_T = TypeVar("_T")


class Receiver:
    """One transfer from one peer: run `receive`, `write` and `commit` concurrently, once."""

    def __init__(
        self,
        link: WeightsLink,
        store: ChunkStore,
        missing: list[Missing],
        *,
        progress: OnProgress | None,
        clock: Clock,
        send_timeout_s: float,
        chunk_timeout_s: float,
    ) -> None:
        self._link, self._store = link, store
        self._send_timeout_s, self._chunk_timeout_s = send_timeout_s, chunk_timeout_s
        self._sizes = {tensor.digest: tensor.nbytes for tensor in missing}
        self._ends = {tensor.digest: tensor.offset for tensor in missing}  # received so far
        self._unstored = set(self._sizes)
        self._open = {tensor.digest for tensor in missing}  # tensors with bytes still to come
        self._written: set[Digest] = set()
        self._altered: set[Digest] = set()
        self._pieces: asyncio.Queue[_Piece | None] = asyncio.Queue(QUEUE_CHUNKS)
        self._whole: asyncio.Queue[Digest | None] = asyncio.Queue(QUEUE_TENSORS)
        self._changed = asyncio.Event()
        self._patience: asyncio.Timeout | None = None  # set while waiting for a chunk
        self.lost: PeerError | None = None  # why the link ended, if it did
        total = sum(tensor.nbytes - tensor.offset for tensor in missing)
        self.meter = TransferMeter(total, clock, progress)

    async def receive(self) -> None:
        """Receive chunks until all is stored or the peer is lost; keep those received."""
        try:
            while self._unstored:
                self._changed.clear()
                if self._open:
                    await self._take_chunk()
                else:  # everything is here; it must be flushed or sent again
                    await self._changed.wait()
        except PeerError as error:
            self.lost = error
        await self._pieces.put(None)

    async def write(self) -> None:
        """Write the received chunks in their order."""
        is_open = True
        while is_open:
            pieces, is_open = await _take_all(self._pieces)
            for digest, outcome in await asyncio.to_thread(self._append, pieces):
                if isinstance(outcome, IntegrityError):
                    await self._reject(digest, outcome)
                elif isinstance(outcome, StoreError):
                    await self._answer(_rejection(digest, outcome, final=True))
                    raise outcome
                elif outcome and digest not in self._written:
                    self._written.add(digest)
                    await self._whole.put(digest)
        await self._whole.put(None)

    async def commit(self) -> None:
        """Make whole tensors durable, and tell the sender."""
        is_open = True
        while is_open:
            digests, is_open = await _take_all(self._whole)
            try:
                lost = await asyncio.to_thread(self._store.commit, digests)
            except StoreError as error:
                for digest in digests:
                    await self._answer(_rejection(digest, error, final=True))
                raise
            stored = [digest for digest in digests if digest not in lost]
            self._unstored.difference_update(stored)
            self._open.difference_update(stored)
            self._changed.set()
            for digest in stored:
                await self._answer(Stored(digest=digest))
            for digest, error in lost.items():
                await self._reject(digest, error)
            if not self._unstored and self._patience is not None:
                reschedule(self._patience, 0)  # the rest came from elsewhere: stop waiting

    def check(self) -> None:
        """Raise the error that ended the link, unless everything was stored before."""
        if self.lost is not None and self._unstored:
            raise self.lost

    async def _take_chunk(self) -> None:
        try:
            async with asyncio.timeout(self._chunk_timeout_s) as self._patience:
                message, payload = await self._link.receive()
        except TimeoutError:
            if not self._unstored:
                return
            raise PeerTimeoutError(
                f"No weights arrived for {self._chunk_timeout_s:.0f} s, though the sender is"
                " connected. What had arrived is kept.",
                seconds=self._chunk_timeout_s,
            ) from None
        finally:
            self._patience = None
        match message:
            case Chunk():
                if self._admit(message, len(payload)):
                    self.meter.add(len(payload))
                    is_again = message.digest in self._altered
                    await self._pieces.put((message, payload, is_again))
            case Error():
                raise RemoteError(message.message, kind=message.kind)
            case _:
                raise RemoteProtocolError(
                    f"A peer that sends weights sent {type(message).__name__}."
                )

    def _admit(self, chunk: Chunk, length: int) -> bool:
        """Whether the chunk has new bytes; a chunk that was not requested ends the connection."""
        digest = Digest(chunk.digest)
        size = self._sizes.get(digest)
        if size is None:
            raise RemoteProtocolError(f"Tensor {short(digest)} was sent, but not asked for.")
        end, stop = self._ends[digest], chunk.offset + length
        if chunk.offset > end == 0 and digest in self._altered:
            return False  # it was under way when the tensor was asked for again
        if chunk.total != size or stop > size or chunk.offset > end or length == 0 < size - stop:
            raise RemoteProtocolError(
                f"A chunk of tensor {short(digest)} has bytes {chunk.offset} to {stop} of"
                f" {chunk.total}; {end} of {size} are here."
            )
        if digest not in self._open:
            return False
        self._ends[digest] = max(end, stop)
        if self._ends[digest] == size:
            self._open.discard(digest)
        return True

    def _append(self, pieces: list[_Piece]) -> list[tuple[Digest, bool | StoreError]]:
        outcomes: list[tuple[Digest, bool | StoreError]] = []
        failed: set[Digest] = set()
        for chunk, payload, is_again in pieces:
            digest = Digest(chunk.digest)
            if digest in failed or is_again != (digest in self._altered):
                continue  # the rest of what was rejected
            try:
                whole = self._store.append(digest, chunk.offset, chunk.total, payload)
                outcomes.append((digest, whole))
            except StoreError as error:
                failed.add(digest)
                outcomes.append((digest, error))
        return outcomes

    async def _reject(self, digest: Digest, error: IntegrityError) -> None:
        """Request an altered tensor once more; the second time, the network is not the cause."""
        self._written.discard(digest)
        is_final = digest in self._altered
        if not is_final:
            self._altered.add(digest)
            self._ends[digest] = 0
            self._open.add(digest)
            self.meter.total += self._sizes[digest]
            self._changed.set()
        await self._answer(_rejection(digest, error, final=is_final))
        if is_final:
            raise error

    async def _answer(self, message: Stored | Rejected) -> None:
        if self.lost is not None:
            return
        try:
            async with asyncio.timeout(self._send_timeout_s):
                await self._link.send(message)
        except TimeoutError:
            self.lost = PeerTimeoutError(
                f"The sender of weights took no answer for {self._send_timeout_s:.0f} s.",
                seconds=self._send_timeout_s,
            )
        except PeerError as error:
            self.lost = error


async def _take_all(queue: "asyncio.Queue[_T | None]") -> tuple[list[_T], bool]:
    """Take all queued items, waiting for at least one. Returns them, and whether more may come."""
    items = [await queue.get()]
    while not queue.empty():
        items.append(queue.get_nowait())
    return [item for item in items if item is not None], items[-1] is not None


def _rejection(digest: Digest, error: StoreError, *, final: bool) -> Rejected:
    return Rejected(digest=digest, kind=error.code, message=error.message, final=final)
