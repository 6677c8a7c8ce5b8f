"""Measure a link's round-trip time and bandwidth over the connection itself, in about 0.5 s.

Round trips are measured by pings, one after the other. Bandwidth is measured by blobs that double
in size until the time or the bytes are used up. Only the last blob counts, since by then TCP has
opened its window. Every link answers both by itself.

A computer with Ethernet and Wi-Fi, or with a Thunderbolt cable, is reached at several addresses of
different speed. Each is measured, and the best one counts.
"""

import asyncio
import logging
import math
import statistics
import time
from collections.abc import Callable, Sequence

from potluck.errors import PeerTimeoutError, PotluckError
from potluck.ids import HomeId, NodeId
from potluck.net.identity import Identity
from potluck.net.interfaces import different_networks
from potluck.net.link import Link
from potluck.net.transport import dial, show
from potluck.wire.measuring_messages import Blob, LinkMeasured
from potluck.wire.messages import Address, NodeInfo, Ping

logger = logging.getLogger(__name__)

PINGS = 10
PING_BUDGET_S = 0.5  # a slow link gets fewer pings
MIN_PINGS = 3
BLOB_BUDGET_S = 0.3
MAX_BYTES = 8 << 20  # 7 ms at 10 Gbit/s; more would not improve the result
FIRST_BLOB = 64 << 10  # 0.1 s at 5 Mbit/s
ANSWER_TIMEOUT_S = 5.0  # for one ping or blob; a slower link is useless for tokens
OTHERS_S = 0.5  # for a handshake at the other addresses, after one has answered
TYPICAL_BYTES = 64 << 10  # hidden states of several tokens: addresses are compared by their time


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
    """Dial a member of a home, and measure the link to it at the best of its addresses.

    Args:
        addresses: of the member.
        identity: of this node.
        home: of both.
        peer: the member.
        me: describes this node to the member.
        dial_s: deadline for the first connection.
        measure_s: deadline for all measurements together.

    Raises:
        PeerTimeoutError: the link is too slow to be useful, or took longer than `measure_s`.
        PeerError: the member cannot be reached, or the link ended.
    """

    async def connect(some: Sequence[Address], timeout_s: float) -> Link:
        return await dial(
            some, identity, home=home, peer=peer, purpose="weights", me=me, timeout_s=timeout_s
        )

    async def connect_too(address: Address) -> Link | None:
        try:
            return await connect([address], OTHERS_S)
        except PotluckError as error:
            logger.debug("not measured address=%s: %s", show(address), error)
            return None

    first = await connect(addresses, dial_s)
    links = [first]
    try:
        others = [a for a in different_networks(addresses) if a != first.remote]
        too = await asyncio.gather(*map(connect_too, others))
        links += [link for link in too if link is not None]
        async with asyncio.timeout(measure_s):
            return await best_of(links)
    except TimeoutError:
        raise PeerTimeoutError(
            f"{first.peer.name} does not answer fast enough to be measured."
        ) from None
    finally:
        for link in links:
            link.close()


async def best_of(links: Sequence[Link]) -> LinkMeasured:
    """Measure links to one peer, one after the other, and return the measurement of the best.

    Raises:
        PeerError: no link could be measured; this is the error of the first.
    """
    measured: list[LinkMeasured] = []
    errors: list[PotluckError] = []
    for link in links:
        try:
            measured.append(await measure(link))
        except PotluckError as error:
            errors.append(error)
    if not measured:
        raise errors[0]
    return min(measured, key=delay_ms)


def delay_ms(link: LinkMeasured) -> float:
    """Milliseconds in which a typical message arrives."""
    return link.rtt_ms / 2 + 1000 * TYPICAL_BYTES / link.bytes_per_s


async def measure(link: Link, *, clock: Callable[[], float] | None = None) -> LinkMeasured:
    """Measure an open link from here to the peer. Nothing else should use the link meanwhile.

    Raises:
        PeerTimeoutError: the link is too slow to be useful.
        PeerLostError: the link ended.
    """
    now = clock or time.perf_counter  # `loop.time` moves by 16 ms on Windows before Python 3.13
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
