"""The sending end of a weights connection, which has the model.

Two tasks: one reads and sends, the other receives answers. Tensors are sent in file order.
"""

import asyncio
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from potluck.errors import (
    BrokenModelError,
    IntegrityError,
    PeerTimeoutError,
    RemoteError,
    RemoteProtocolError,
)
from potluck.ids import Digest, short
from potluck.reasons import reason
from potluck.store.link import WeightsLink
from potluck.store.progress import Clock, OnProgress, TransferMeter
from potluck.store.source import TensorSource
from potluck.store.throttle import Throttle
from potluck.wire.messages import Chunk, Error, NeedTensor, Rejected, Stored


@dataclass(frozen=True, slots=True, kw_only=True)
class SendLimits:
    """How much is under way at once, and how long the peer may take.

    Attributes:
        chunk_bytes: the largest chunk. Each chunk also costs 0.12 ms of CPU at both ends: 4 % at
            700 MB/s. On a link of 20 Mbit/s, the default still gives one step of progress per
            second.
        window_tensors: tensors sent but not answered: a slow receiver is not overloaded.
        window_bytes: bytes of these tensors; 2 s at 1 Gbit/s cover any usual flush.
        send_s: for one chunk: links below 35 kB/s are not supported.
        answer_s: with nothing left to send: a memory card flushes slowly.
    """

    chunk_bytes: int = 2 << 20
    window_tensors: int = 256
    window_bytes: int = 256 << 20
    send_s: float = 60.0
    answer_s: float = 120.0


SEND_LIMITS: Final = SendLimits()


@dataclass(slots=True)
class _Sending:
    """A tensor that is being sent."""

    digest: Digest
    source: TensorSource
    offset: int  # of the next byte to send


class Sender:
    """One transfer to one peer: run `send` and `receive` concurrently, once.

    Raises:
        RemoteProtocolError: the peer needs a tensor that is not offered.
    """

    def __init__(
        self,
        link: WeightsLink,
        needed: Iterable[NeedTensor],
        sources: Mapping[Digest, TensorSource],
        *,
        progress: OnProgress | None,
        clock: Clock,
        limits: SendLimits,
        throttle: Throttle,
    ) -> None:
        self._link = link
        self._limits = limits
        self._throttle = throttle
        self._tensors = {
            Digest(need.digest): _sending(need, sources) for need in needed
        }  # not stored yet
        self._todo = deque(
            sorted(self._tensors.values(), key=lambda t: (t.source.path, t.source.offset))
        )
        self._unanswered: dict[Digest, int] = {}  # digest -> bytes
        self._repeated: set[Digest] = set()
        self._answered = asyncio.Event()
        total = sum(tensor.source.nbytes - tensor.offset for tensor in self._todo)
        self.meter = TransferMeter(total, clock, progress)

    async def send(self) -> None:
        """Read one batch while the previous one is sent, until all is stored."""
        ahead: asyncio.Task[list[tuple[Chunk, bytes]]] | None = None
        try:
            while self._tensors:
                self._answered.clear()
                batch = self._next_batch()
                ready, ahead = ahead, None
                if batch:
                    ahead = asyncio.create_task(asyncio.to_thread(_read, batch))
                if ready is not None:
                    await self._send_chunks(await ready)
                elif ahead is None:
                    await self._wait()
        finally:
            if ahead is not None:
                ahead.cancel()

    async def receive(self) -> None:
        """Receive answers until all is stored."""
        while self._tensors:
            message, _ = await self._link.receive()
            match message:
                case Stored():
                    self._forget(Digest(message.digest))
                case Rejected():
                    self._rejected(Digest(message.digest), message)
                case Error():
                    raise RemoteError(message.message, kind=message.kind)
                case _:
                    raise RemoteProtocolError(
                        f"A peer that receives weights sent {type(message).__name__}."
                    )
            self._answered.set()

    def _next_batch(self) -> list[tuple[TensorSource, Chunk, int]]:
        """Up to about one chunk of bytes to read, within the window: (source, chunk, length) each.

        Many small tensors form one batch, since a call of a thread costs more than reading a norm.
        """
        batch: list[tuple[TensorSource, Chunk, int]] = []
        taken = 0
        most = self._throttle.chunk(self._limits.chunk_bytes)
        while self._todo and taken < most:
            tensor = self._todo[0]
            if tensor.digest not in self._unanswered:
                if self._is_window_full():
                    break
                self._unanswered[tensor.digest] = tensor.source.nbytes
            length = min(most - taken, tensor.source.nbytes - tensor.offset)
            chunk = Chunk(digest=tensor.digest, offset=tensor.offset, total=tensor.source.nbytes)
            batch.append((tensor.source, chunk, length))
            taken += length
            tensor.offset += length
            if tensor.offset == tensor.source.nbytes:
                self._todo.popleft()
        return batch

    def _is_window_full(self) -> bool:
        return (
            len(self._unanswered) >= self._limits.window_tensors
            or sum(self._unanswered.values()) >= self._limits.window_bytes
        )

    async def _send_chunks(self, chunks: list[tuple[Chunk, bytes]]) -> None:
        for chunk, data in chunks:
            if chunk.digest not in self._tensors:  # stored meanwhile, from another sender
                self.meter.total -= len(data)
                continue
            await self._throttle.take(len(data))
            try:
                async with asyncio.timeout(self._limits.send_s):
                    await self._link.send(chunk, data)
            except TimeoutError:
                raise _silent("takes no more weights", self._limits.send_s) from None
            self.meter.add(len(data))

    async def _wait(self) -> None:
        try:
            async with asyncio.timeout(self._limits.answer_s):
                await self._answered.wait()
        except TimeoutError:
            raise _silent("does not say that it stored weights", self._limits.answer_s) from None

    def _forget(self, digest: Digest) -> None:
        self._check_unanswered(digest)
        del self._unanswered[digest]
        tensor = self._tensors.pop(digest)
        if self._todo and self._todo[0] is tensor:
            self.meter.total -= tensor.source.nbytes - tensor.offset
            self._todo.popleft()

    def _rejected(self, digest: Digest, answer: Rejected) -> None:
        self._check_unanswered(digest)
        if answer.final and answer.kind != IntegrityError.code:
            raise RemoteError(answer.message, kind=answer.kind, digest=digest)
        if answer.final or digest in self._repeated:
            raise IntegrityError(
                f"A tensor ({short(digest)}) arrived altered twice. Its file on this computer has"
                " changed, or its disk or memory is failing. Open the model again.",
                digest=digest,
            )
        self._repeated.add(digest)
        del self._unanswered[digest]
        tensor = self._tensors[digest]
        if self._todo and self._todo[0] is tensor:
            self._todo.popleft()
        self.meter.total += tensor.offset
        tensor.offset = 0
        self._todo.append(tensor)

    def _check_unanswered(self, digest: Digest) -> None:
        if digest not in self._unanswered:
            raise RemoteProtocolError(
                f"The peer answers for {short(digest)}, which it was not sent."
            )


def _sending(need: NeedTensor, sources: Mapping[Digest, TensorSource]) -> _Sending:
    digest = Digest(need.digest)
    source = sources.get(digest)
    if source is None or need.offset > source.nbytes:
        raise RemoteProtocolError(
            f"The peer asks for tensor {short(digest)} from byte {need.offset};"
            f" {source.nbytes if source else 'none'} are offered.",
        )
    return _Sending(digest, source, need.offset)


def _read(batch: list[tuple[TensorSource, Chunk, int]]) -> list[tuple[Chunk, bytes]]:
    chunks: list[tuple[Chunk, bytes]] = []
    for source, chunk, length in batch:
        try:
            data = source.read(chunk.offset, length)
        except OSError as error:
            raise BrokenModelError(
                f"{source.path} cannot be read: {reason(error)}.", digest=chunk.digest
            ) from error
        if len(data) != length:
            raise BrokenModelError(
                f"{source.path} was cut off while it was sent. Open the model again.",
                file=str(source.path),
                digest=chunk.digest,
            )
        chunks.append((chunk, data))
    return chunks


def _silent(what: str, seconds: float) -> PeerTimeoutError:
    return PeerTimeoutError(
        f"The peer is connected but {what} ({seconds:.0f} s). Its disk or the network is stuck.",
        seconds=seconds,
    )
