"""Weights on their way from one computer to another: both ends of a `weights` connection.

The sender streams what the receiver said it lacks, without waiting for one tensor's answer before it
sends the next; the receiver writes in order, answers `stored` when a tensor is durable and `rejected`
when its bytes are wrong. Disk, network and hash work at the same time, and none runs far ahead of
the others: reads are one batch ahead, the receiver's queue is bounded (what does not fit waits in
TCP), and so is what was sent and not answered.

Either end may vanish at any moment: what has arrived is on disk, and the next call begins there.
"""

import asyncio
import time
from collections.abc import Iterable, Mapping

from potluck.ids import Digest
from potluck.store.chunks import ChunkStore
from potluck.store.link import Together, WeightsLink
from potluck.store.progress import Clock, OnProgress
from potluck.store.receiver import CHUNK_TIMEOUT_S, Receiver
from potluck.store.registry import TensorSource
from potluck.store.sender import ANSWER_TIMEOUT_S, SEND_TIMEOUT_S, Sender
from potluck.wire.messages import NeedTensor


async def send_tensors(
    link: WeightsLink,
    needed: Iterable[NeedTensor],
    sources: Mapping[Digest, TensorSource],
    *,
    progress: OnProgress | None = None,
    clock: Clock = time.monotonic,
    send_timeout_s: float = SEND_TIMEOUT_S,
    answer_timeout_s: float = ANSWER_TIMEOUT_S,
) -> int:
    """Send what a peer needs until it has stored all of it.

    What it says it needs is checked against `sources`, which is all that it may have. The deadlines
    are for one chunk to be taken, and for an answer when there is nothing else to send.

    Returns:
        The bytes that were sent.

    Raises:
        PeerError: the peer is gone, slow beyond the deadlines, or cannot store. Call again with
            what it needs then: what has arrived there is not sent again.
        IntegrityError: a tensor arrived altered twice: this computer's file is not what it was.
        BrokenModelError: a file of the model cannot be read any more.
        RemoteProtocolError: the peer asks for or answers what it should not.
    """
    sender = Sender(
        link,
        needed,
        sources,
        progress=progress,
        clock=clock,
        send_timeout_s=send_timeout_s,
        answer_timeout_s=answer_timeout_s,
    )
    async with Together() as tasks:
        tasks.create_task(sender.receive())
        tasks.create_task(sender.send())
    return sender.meter.sent


async def receive_tensors(
    link: WeightsLink,
    store: ChunkStore,
    expected: Mapping[Digest, int],
    *,
    progress: OnProgress | None = None,
    clock: Clock = time.monotonic,
    send_timeout_s: float = SEND_TIMEOUT_S,
    chunk_timeout_s: float = CHUNK_TIMEOUT_S,
) -> int:
    """Take what the store lacks of the expected tensors, and nothing else, until it lacks nothing.

    `expected` has the size of each digest; what is stored already is not waited for. The deadlines
    are for one answer to be taken, and for the next chunk.

    Returns:
        The bytes that were received.

    Raises:
        PeerError: the peer is gone or silent. What had arrived is on disk.
        StoreError: the disk is full or fails, or a tensor arrived altered twice; the peer was told.
        RemoteProtocolError: the peer sent what was not asked for.
    """
    missing = await asyncio.to_thread(store.missing, expected.items())
    receiver = Receiver(
        link,
        store,
        missing,
        progress=progress,
        clock=clock,
        send_timeout_s=send_timeout_s,
        chunk_timeout_s=chunk_timeout_s,
    )
    async with Together() as tasks:
        tasks.create_task(receiver.receive())
        tasks.create_task(receiver.write())
        tasks.create_task(receiver.commit())
    receiver.check()
    return receiver.meter.sent
