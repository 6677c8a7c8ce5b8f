"""Measure a link's round-trip time and bandwidth over the connection itself, in about 0.5 s.

Round trips are measured by pings, one after the other. Bandwidth is measured by blobs that double
in size until the time or the bytes are used up. Only the last blob counts, since by then TCP has
opened its window. Every link answers both by itself.
"""

import asyncio
import logging
import math
import statistics
from collections.abc import Callable
from dataclasses import dataclass

from potluck.net.link import Link
from potluck.wire.measuring_messages import Blob
from potluck.wire.messages import (
    Ping,
)

logger = logging.getLogger(__name__)

PINGS = 10
PING_BUDGET_S = 0.5  # a slow link gets fewer pings
MIN_PINGS = 3
BLOB_BUDGET_S = 0.3
MAX_BYTES = 8 << 20  # 7 ms at 10 Gbit/s; more would not improve the result
FIRST_BLOB = 64 << 10  # 0.1 s at 5 Mbit/s
ANSWER_TIMEOUT_S = 5.0  # for one ping or blob; a slower link is useless for tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkQuality:
    """The measured speed of a link."""

    rtt_s: float  # median
    rtt_p95_s: float
    bytes_per_s: float


async def measure(link: Link, *, clock: Callable[[], float] | None = None) -> LinkQuality:
    """Measure an open link from here to the peer. Nothing else should use the link meanwhile.

    Raises:
        PeerTimeoutError: the link is too slow to be useful.
        PeerLostError: the link ended.
    """
    now = clock or asyncio.get_running_loop().time
    rtts = await _ping(link, now)
    rtt_s = statistics.median(rtts)
    return LinkQuality(
        rtt_s=rtt_s,
        rtt_p95_s=sorted(rtts)[math.ceil(0.95 * len(rtts)) - 1],
        bytes_per_s=await _stream(link, rtt_s, now),
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
