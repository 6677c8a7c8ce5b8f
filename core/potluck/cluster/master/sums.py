"""The sums of the processors of two computers that may compute layers together: measured where that may pay, and kept as links are.

Their stage processes sum as ranks do (`cluster/stage/sum_times.py`). What a sum takes is more than its link says: both
ends have just read weights, and a part is encrypted and decrypted.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from potluck.cluster.computer import LOOPBACK, Computer
from potluck.cluster.master.kept import KeptSum
from potluck.cluster.master.links import FAILED_AGE_S, LINK_AGE_S
from potluck.errors import EngineError, PotluckError, RemoteProtocolError
from potluck.ids import NodeId
from potluck.plan.cost import HopCost
from potluck.tasks import together
from potluck.wire.measuring_messages import SumTime
from potluck.wire.messages import Address, DeviceId, Hop, RankPlace

logger = logging.getLogger(__name__)

ALL_S = 6.0  # for all pairs of one plan, for which somebody waits
_Pair = tuple[NodeId, NodeId]


@dataclass(frozen=True, slots=True)
class _KnownSum:
    cost: HopCost
    when: float  # seconds of the clock; if it was measured by a node before, this node's start
    at: float  # when it was measured, in seconds since 1970


class Sums:
    """Measures the sums of pairs of computers, and remembers the results.

    Args:
        clock: its seconds count from any moment.
        date: the time of day, in seconds since 1970.
        changed: called when a sum was measured.
        limit_s: how long one `measure` takes at most.
    """

    def __init__(
        self,
        *,
        clock: Callable[[], float],
        date: Callable[[], float],
        changed: Callable[[], None],
        limit_s: float = ALL_S,
    ) -> None:
        self._clock, self._date, self._changed, self._limit_s = clock, date, changed, limit_s
        self._known: dict[_Pair, _KnownSum] = {}
        self._failed: dict[_Pair, float] = {}  # when
        self._measuring = asyncio.Lock()

    def recall(self, sums: Iterable[KeptSum]) -> None:
        """Take over what a node before has measured."""
        for kept in sums:
            known = _KnownSum(kept.cost, self._clock(), kept.at)
            self._known[kept.source, kept.target] = known

    def kept(self) -> Iterable[KeptSum]:
        """What the next node takes over."""
        return (
            KeptSum(source=source, target=target, cost=known.cost, at=known.at)
            for (source, target), known in self._known.items()
        )

    def known(self) -> Mapping[_Pair, HopCost]:
        """Each sum that was measured, however long ago. A pair is in one order only."""
        return {pair: known.cost for pair, known in self._known.items()}

    async def measure(
        self, pairs: Sequence[tuple[Computer, Computer]], *, anew: bool = False
    ) -> None:
        """Measure the sums of these pairs that are not known, are too old, or with `anew`.

        Both may be one computer, which has several devices. One pair after the other, so that no measurement takes another's
        bandwidth. What cannot be measured, or not in time, is left out, and tried again after a minute.
        """
        try:
            async with asyncio.timeout(self._limit_s), self._measuring:
                for first, second in pairs:
                    rank0, rank1 = sorted((first, second), key=lambda computer: computer.node_id)
                    key = rank0.node_id, rank1.node_id
                    if anew or not (self._is_recent(key) or self._has_failed(key)):
                        await self._measure(rank0, rank1)
        except TimeoutError:
            logger.warning("not all sums were measured within %.0f s", self._limit_s)

    def forget(self, node_id: NodeId) -> None:
        """Forget a computer's sums: it left, and may be in another place when it comes back."""
        self._known = {key: known for key, known in self._known.items() if node_id not in key}
        self._failed = {key: when for key, when in self._failed.items() if node_id not in key}

    def _is_recent(self, key: _Pair) -> bool:
        known = self._known.get(key)
        return known is not None and self._clock() - known.when < LINK_AGE_S

    def _has_failed(self, key: _Pair) -> bool:
        failed = self._failed.get(key)
        return failed is not None and self._clock() - failed < FAILED_AGE_S

    async def _measure(self, rank0: Computer, rank1: Computer) -> None:
        key = rank0.node_id, rank1.node_id
        self._failed[key] = self._clock()  # until it has not: the deadline may end this
        try:
            cost = await _measured(rank0, rank1)
        except PotluckError as error:
            logger.warning("no sums of %s and %s: %s", rank0.name, rank1.name, error)
            return
        self._failed.pop(key, None)
        self._known[key] = _KnownSum(cost, self._clock(), self._date())
        self._changed()


async def _measured(rank0: Computer, rank1: Computer) -> HopCost:
    """Have the stage processes of both sum with each other."""
    devices = _processors(rank0, rank1)
    computers = rank0, rank1
    ports = [
        (await computer.measure_sums(device, None)).activation_port
        for computer, device in zip(computers, devices, strict=True)
    ]
    is_same = rank0.node_id == rank1.node_id
    hosts = [
        LOOPBACK if is_same else computer.addresses_from(rank0.node_id) for computer in computers
    ]
    hops = tuple(
        Hop(
            node_id=computer.node_id,
            addresses=tuple(Address(host=host.host, port=port) for host in own),
        )
        for computer, own, port in zip(computers, hosts, ports, strict=True)
    )
    asked = (
        computer.measure_sums(device, RankPlace(rank=rank, hops=hops))
        for rank, (computer, device) in enumerate(zip(computers, devices, strict=True))
    )
    return cost_of([answer.times for answer in await together(asked)])


def _processors(rank0: Computer, rank1: Computer) -> Sequence[DeviceId]:
    """Whose stage processes sum: processors, and different ones of one computer."""
    first, second = (
        [device.id for device in computer.devices if device.kind == "cpu"]
        for computer in (rank0, rank1)
    )
    found = first[:2] if rank0.node_id == rank1.node_id else [*first[:1], *second[:1]]
    if len(found) < len((rank0, rank1)):
        raise EngineError("No two processors are there whose sums could be measured.")
    return found


def cost_of(times: Sequence[Sequence[SumTime]]) -> HopCost:
    """What a sum takes by its bytes, from what each rank has measured of the same sizes.

    The shorter time counts: the other rank has waited for this one as well, which is a time of computing.

    Raises:
        RemoteProtocolError: they have measured something else.
    """
    sizes = {tuple(each.nbytes for each in own) for own in times}
    if len(sizes) != 1 or len(next(iter(sizes))) < 2 or sizes != {tuple(sorted(set(*sizes)))}:
        raise RemoteProtocolError("Two computers have not measured the same sums.")
    (token, token_ms), *_, (chunk, chunk_ms) = (
        (same[0].nbytes, min(each.ms for each in same)) for same in zip(*times, strict=True)
    )
    ms_per_byte = max(0.0, (chunk_ms - token_ms) / (chunk - token))
    return HopCost(latency_ms=max(0.0, token_ms - token * ms_per_byte), ms_per_byte=ms_per_byte)
