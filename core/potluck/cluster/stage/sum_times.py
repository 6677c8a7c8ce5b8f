"""How long sums take between this process and others that it may compute layers with.

The ranks meet as those of a group do, and sum in memory or over connections, as these would. Before each sum every rank
reads memory for as long as the others: so the sum finds the processor's caches as it does between two layers, and all
reach it at the same time, as ranks do whose shares are by their speed.

A thread of its own measures, so that no answer waits for it, or for another computer that stands still; and it gives up
when one comes, which would be slower beside it, and make the times wrong.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from statistics import median

import torch
from torch import Tensor

from potluck.cluster.stage.joining import Dial, Lobby, dial_above, meet
from potluck.cluster.stage.ranks import Ranks
from potluck.errors import BusyError, PeerTimeoutError
from potluck.ids import HomeId
from potluck.wire.measuring_messages import SumTime
from potluck.wire.messages import RankPlace

EPOCH = 0  # of the connections: no plan has it
DEADLINE_S = 5.0  # for meeting and measuring
SUM_S = 1.0  # for one sum: over a link where it takes longer, no group pays
SUMS = ((16 << 10, 32), (2 << 20, 4))  # bytes, as of a token and of a chunk; how often
READ_S = 0.0015  # before each sum, as half of a layer takes
_READ_BYTES = 64 << 20
_ITEM = 8


async def try_sums(
    place: RankPlace, home: HomeId, dial: Dial, lobby: Lobby, is_answering: Callable[[], bool]
) -> tuple[SumTime, ...]:
    """Meet the other ranks, sum with them, and say how long that takes. If this is cancelled, the sums end, too.

    Args:
        place: of this rank.
        home: of all.
        dial: connects with a rank above.
        lobby: where those below come.
        is_answering: whether this process computes steps of answers; any thread may ask.

    Raises:
        BusyError: a process of the group computes answers.
        PeerTimeoutError: it took too long.
        PotluckError: a rank cannot be reached, or is gone.
    """
    links = None
    thread = ThreadPoolExecutor(1, thread_name_prefix="sums")
    try:
        async with asyncio.timeout(DEADLINE_S):
            _check_free(is_answering)
            links = await meet(lobby, await dial_above(place, EPOCH, dial), place, home, EPOCH)
            ranks = Ranks(patience_s=SUM_S)

            def measure() -> tuple[SumTime, ...]:
                ranks.join(place.rank, links)
                return time_sums(ranks, is_answering)

            return await asyncio.get_running_loop().run_in_executor(thread, measure)
    except TimeoutError:
        raise PeerTimeoutError(
            f"The sums with another computer were not measured within {DEADLINE_S:.0f} seconds."
        ) from None
    finally:
        if links is not None:
            links.close()  # which also ends a sum that waits
        thread.shutdown(wait=False)


def time_sums(
    ranks: Ranks, is_answering: Callable[[], bool], sums: Sequence[tuple[int, int]] = SUMS
) -> tuple[SumTime, ...]:
    """The median times of sums of these sizes; all ranks call this at once, with the same sizes.

    Raises:
        BusyError: a process of the group computes answers.
        PotluckError: as `Ranks.sum`.
    """
    reading, step, found = _Reading(), 0, list[SumTime]()
    for nbytes, count in sums:
        rows, took = torch.zeros(1, nbytes // 4), list[float]()
        for _ in range(1 + count):
            step += 1
            with ranks.step(step):  # the other ranks hear why it is given up
                _check_free(is_answering)
                reading.go_on()
                began = time.perf_counter()
                ranks.sum(rows)
                took.append(1000 * (time.perf_counter() - began))
        found.append(SumTime(nbytes=nbytes, ms=median(took[1:])))
    return tuple(found)


def _check_free(is_answering: Callable[[], bool]) -> None:
    if is_answering():
        raise BusyError("Sums are not measured while one of their computers computes answers.")


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
