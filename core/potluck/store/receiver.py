"""The end of a weights connection that stores.

Three tasks in a row, with bounded queues between them: one takes chunks from the link and checks
that they were asked for, one writes and hashes, one makes whole tensors durable and answers. Each
takes all that waits for it at once, so that hundreds of norms of 2 KB cost a few turns of a thread.
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
from potluck.wire.messages import Chunk, Error, Rejected, Stored

CHUNK_TIMEOUT_S = 120.0  # the sender reads a disk that may have been asleep
SEND_TIMEOUT_S = 60.0
QUEUE_CHUNKS = 8  # received and not written: 16 MiB of usual chunks
QUEUE_TENSORS = 64  # written and not flushed
"""Then the writing waits for the disk, the queue fills, and TCP slows the sender down."""

_Piece: TypeAlias = tuple[Chunk, memoryview]
_T = TypeVar("_T")


class Receiver:
    """One transfer from one peer: `receive`, `write` and `commit` run together, once."""

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
        self._open = {tensor.digest for tensor in missing}  # of which bytes are to come
        self._written: set[Digest] = set()
        self._altered: set[Digest] = set()
        self._pieces: asyncio.Queue[_Piece | None] = asyncio.Queue(QUEUE_CHUNKS)
        self._whole: asyncio.Queue[Digest | None] = asyncio.Queue(QUEUE_TENSORS)
        self._changed = asyncio.Event()
        self._patience: asyncio.Timeout | None = None  # while a chunk is waited for
        self.lost: PeerError | None = None  # why the link ended, when it did
        total = sum(tensor.nbytes - tensor.offset for tensor in missing)
        self.meter = TransferMeter(total, clock, progress)

    async def receive(self) -> None:
        """Take chunks until all is stored or the peer is lost; what came is written either way."""
        try:
            while self._unstored:
                self._changed.clear()
                if self._open:
                    await self._take_chunk()
                else:  # all is here and has to be flushed, or sent again
                    await self._changed.wait()
        except PeerError as error:
            self.lost = error
        await self._pieces.put(None)

    async def write(self) -> None:
        """Write what was received, in its order."""
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
        """Make durable what is whole, and say so."""
        is_open = True
        while is_open:
            digests, is_open = await _take_all(self._whole)
            try:
                await asyncio.to_thread(self._store.commit, digests)
            except StoreError as error:
                for digest in digests:
                    await self._answer(_rejection(digest, error, final=True))
                raise
            self._unstored.difference_update(digests)
            self._open.difference_update(digests)
            self._changed.set()
            for digest in digests:
                await self._answer(Stored(digest=digest))
            if not self._unstored and self._patience is not None:
                self._patience.reschedule(0)  # the rest came from elsewhere: wait no longer

    def check(self) -> None:
        """Raise why the peer was lost, unless all was stored before."""
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
                    await self._pieces.put((message, payload))
            case Error():
                raise RemoteError(message.message, kind=message.kind)
            case _:
                raise RemoteProtocolError(
                    f"A peer that sends weights sent {type(message).__name__}."
                )

    def _admit(self, chunk: Chunk, length: int) -> bool:
        """Whether the chunk brings something; one that was not asked for ends the connection."""
        digest = Digest(chunk.digest)
        size = self._sizes.get(digest)
        if size is None:
            raise RemoteProtocolError(f"Tensor {short(digest)} was sent, but not asked for.")
        end, stop = self._ends[digest], chunk.offset + length
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
        for chunk, payload in pieces:
            digest = Digest(chunk.digest)
            try:
                whole = self._store.append(digest, chunk.offset, chunk.total, payload)
                outcomes.append((digest, whole))
            except StoreError as error:
                outcomes.append((digest, error))
        return outcomes

    async def _reject(self, digest: Digest, error: IntegrityError) -> None:
        """Ask for an altered tensor once more; a second time it is not the network's fault."""
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
    """All that waits, at least one item, and whether more may come: None is the last."""
    items = [await queue.get()]
    while not queue.empty():
        items.append(queue.get_nowait())
    return [item for item in items if item is not None], items[-1] is not None


def _rejection(digest: Digest, error: StoreError, *, final: bool) -> Rejected:
    return Rejected(digest=digest, kind=error.code, message=error.message, final=final)
