"""Measure a link's round-trip time and bandwidth over the connection itself, in about 0.5 s.

Round trips are measured by pings, one after the other. Bandwidth is measured by blobs that double
in size until the time or the bytes are used up. Only the last blob counts, since by then TCP has
opened its window. Every link answers both by itself.
"""

import asyncio
import math
import statistics
from collections.abc import Callable, Sequence

from potluck.errors import PeerTimeoutError
from potluck.ids import HomeId, NodeId
from potluck.net.identity import Identity
from potluck.net.link import Link
from potluck.net.transport import dial
from potluck.wire.measuring_messages import Blob, LinkMeasured
from potluck.wire.messages import Address, NodeInfo, Ping

PINGS = 10
PING_BUDGET_S = 0.5  # a slow link gets fewer pings
MIN_PINGS = 3
BLOB_BUDGET_S = 0.3
MAX_BYTES = 8 << 20  # 7 ms at 10 Gbit/s; more would not improve the result
FIRST_BLOB = 64 << 10  # 0.1 s at 5 Mbit/s
ANSWER_TIMEOUT_S = 5.0  # for one ping or blob; a slower link is useless for tokens


async def measure_to(
    addresses: Sequence[Address],
    identity: Identity,
    *,
    home: HomeId,
    peer: NodeId,
    me: NodeInfo,
    dial_s: float,
    measure_s: float,
) -> LinkMeasured:
    """Dial a member of a home, and measure the link to it.

    Raises:
        PeerTimeoutError: the link is too slow to be useful, or took longer than `measure_s`.
        PeerError: the member cannot be reached, or the link ended.
    """
    link = await dial(
        addresses, identity, home=home, peer=peer, purpose="weights", me=me, timeout_s=dial_s
    )
    try:
        async with asyncio.timeout(measure_s):
            return await measure(link)
    except TimeoutError:
        raise PeerTimeoutError(
            f"{link.peer.name} does not answer fast enough to be measured."
        ) from None
    finally:
        link.close()


async def measure(link: Link, *, clock: Callable[[], float] | None = None) -> LinkMeasured:
    """Measure an open link from here to the peer. Nothing else should use the link meanwhile.

    Raises:
        PeerTimeoutError: the link is too slow to be useful.
        PeerLostError: the link ended.
    """
    now = clock or asyncio.get_running_loop().time
    rtts = await _ping(link, now)
    rtt_s = statistics.median(rtts)
    return LinkMeasured(
        rtt_ms=1000 * rtt_s,
        rtt_p95_ms=1000 * sorted(rtts)[math.ceil(0.95 * len(rtts)) - 1],
        bytes_per_s=await _stream(link, rtt_s, now),
        address=link.remote,
    )


async def _ping(link: Link, now: Callable[[], float]) -> list[float]:
    rtts: list[float] = []
    began = now()
    while len(rtts) < PINGS and (len(rtts) < MIN_PINGS or now() - began < PING_BUDGET_S):
        sent = now()
        await link.request(Ping(), timeout_s=ANSWER_TIMEOUT_S)
        rtts.append(now() - sent)
    return rtts


async def _stream(link: Link, rtt_s: float, now: Callable[[], float]) -> float:
    """Return the bytes per second of the largest blob that fits into the time."""
    size, sent_bytes, began = FIRST_BLOB, 0, now()
    while True:
        blob = memoryview(bytearray(size))
        sent = now()
        await link.request(Blob(), payload=blob, timeout_s=ANSWER_TIMEOUT_S)
        took = now() - sent
        # The first byte takes half a round trip to arrive, and the answer takes the other half. If
        # the blob took hardly longer than that, the difference would be mostly jitter: then the
        # whole time counts.
        rate = size / (took - rtt_s if took > 1.25 * rtt_s else took)
        sent_bytes += size
        size *= 2
        if sent_bytes + size > MAX_BYTES or now() - began + 2 * took > BLOB_BUDGET_S:
            return rate
