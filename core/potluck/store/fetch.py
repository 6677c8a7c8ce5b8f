"""Transfers weights from one computer to another: both ends of a `weights` connection.

The sender streams the tensors that the receiver needs, and does not wait for one tensor's answer
before it sends the next. The receiver writes in order. It answers `stored` when a tensor is durable
and `rejected` when its bytes are wrong. Disk, network and hash work at the same time, and none runs
far ahead of the others: the sender reads one batch ahead, the receiver's queue is bounded (further
chunks wait in TCP), and the tensors sent but not answered are bounded.

Either end may vanish at any moment: received bytes are on disk, and the next call continues there.
"""

import asyncio
import time
from collections.abc import Iterable, Mapping

from potluck.ids import Digest
from potluck.store.chunks import ChunkStore
from potluck.store.link import WeightsLink
from potluck.store.progress import Clock, OnProgress
from potluck.store.receiver import CHUNK_TIMEOUT_S, SEND_TIMEOUT_S, Receiver
from potluck.store.sender import SEND_LIMITS, Sender, SendLimits
from potluck.store.source import TensorSource
from potluck.store.throttle import Throttle
from potluck.tasks import together
from potluck.wire.messages import NeedTensor


async def send_tensors(
    link: WeightsLink,
    needed: Iterable[NeedTensor],
    sources: Mapping[Digest, TensorSource],
    *,
    progress: OnProgress | None = None,
    clock: Clock = time.monotonic,
    limits: SendLimits = SEND_LIMITS,
    throttle: Throttle | None = None,
) -> int:
    """Send the tensors that a peer needs until it has stored all of them.

    The request is checked against `sources`, the only tensors that the peer may have. `throttle`
    limits the speed; None: there is no limit.

    Returns:
        The number of bytes sent.

    Raises:
        PeerError: the peer is gone, missed a deadline, or cannot store. Call again with the peer's
            new need: bytes that it has received are not sent again.
        IntegrityError: a tensor arrived altered twice: this computer's file has changed.
        BrokenModelError: a file of the model can no longer be read.
        RemoteProtocolError: the peer sent a request or an answer that is not allowed.
    """
    sender = Sender(
        link,
        needed,
        sources,
        progress=progress,
        clock=clock,
        limits=limits,
        throttle=throttle or Throttle(),
    )
    await together((sender.receive(), sender.send()))
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
    """Receive those expected tensors that the store lacks, and no others, until it has them all.

    `expected` has the size of each digest. Tensors that are already stored are not waited for. One
    deadline is for sending one answer, the other for the next chunk.

    Returns:
        The number of bytes received.

    Raises:
        PeerError: the peer is gone or silent. The bytes received before are on disk.
        StoreError: the disk is full or fails, or a tensor arrived altered twice; the peer was told.
        RemoteProtocolError: the peer sent something that was not requested.
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
    await together((receiver.receive(), receiver.write(), receiver.commit()))
    receiver.check()
    return receiver.meter.sent
