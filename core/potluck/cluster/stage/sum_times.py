"""How long sums take between this process and others that it may compute layers with.

The ranks meet as those of a group do, and sum in memory or over connections, as these would. Before each sum every rank
reads memory for as long as the others: so the sum finds the processor's caches as it does between two layers, and all
reach it at the same time, as ranks do whose shares are by their speed.
"""

import asyncio
import time
from collections.abc import Sequence
from statistics import median

import torch
from torch import Tensor

from potluck.cluster.stage.compute_thread import ComputeThread
from potluck.cluster.stage.joining import Dial, Lobby, dial_above, meet
from potluck.cluster.stage.ranks import Ranks
from potluck.errors import PeerTimeoutError
from potluck.ids import HomeId
from potluck.wire.measuring_messages import SumTime
from potluck.wire.messages import RankPlace

EPOCH = 0  # of the connections: no plan has it
DEADLINE_S = 20.0  # for meeting and measuring
SUMS = ((16 << 10, 32), (2 << 20, 4))  # bytes, as of a token and of a chunk; how often
READ_S = 0.0015  # before each sum, as half of a layer takes
_READ_BYTES = 64 << 20
_ITEM = 8


async def try_sums(
    place: RankPlace, home: HomeId, dial: Dial, lobby: Lobby, compute: ComputeThread
) -> tuple[SumTime, ...]:
    """Meet the other ranks, sum with them, and say how long that takes.

    Args:
        place: of this rank.
        home: of all.
        dial: connects with a rank above.
        lobby: where those below come.
        compute: the thread that sums.

    Raises:
        PeerTimeoutError: it took too long.
        PotluckError: a rank cannot be reached, or is gone.
    """
    links = None
    try:
        async with asyncio.timeout(DEADLINE_S):
            links = await meet(lobby, await dial_above(place, EPOCH, dial), place, home, EPOCH)
            ranks = Ranks()
            ranks.join(place.rank, links)
            return await compute.call(lambda: time_sums(ranks))
    except TimeoutError:
        raise PeerTimeoutError(
            f"The sums with another computer were not measured within {DEADLINE_S:.0f} seconds."
        ) from None
    finally:
        if links is not None:
            links.close()  # which also ends a sum that waits


def time_sums(ranks: Ranks, sums: Sequence[tuple[int, int]] = SUMS) -> tuple[SumTime, ...]:
    """The median times of sums of these sizes; all ranks call this at once, with the same sizes."""
    reading, step, found = _Reading(), 0, list[SumTime]()
    for nbytes, count in sums:
        rows, took = torch.zeros(1, nbytes // 4), list[float]()
        for _ in range(1 + count):
            step += 1
            reading.go_on()
            with ranks.step(step):
                began = time.perf_counter()
                ranks.sum(rows)
                took.append(1000 * (time.perf_counter() - began))
        found.append(SumTime(nbytes=nbytes, ms=median(took[1:])))
    return tuple(found)


class _Reading:
    """Reads memory that is not in the caches, for `READ_S` each time."""

    def __init__(self) -> None:
        self._memory = torch.ones(_READ_BYTES // _ITEM, dtype=torch.int64)
        began = time.perf_counter()
        self._memory.sum()
        per_s = len(self._memory) / (time.perf_counter() - began)
        self._parts: Sequence[Tensor] = self._memory.split(max(1, int(per_s * READ_S)))
        self._next = 0

    def go_on(self) -> None:
        self._parts[self._next % len(self._parts)].sum()
        self._next += 1
