"""Computers without processes or sockets: they measure, hold stages, and fail if a test says so."""

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, TypeVar

from fake_chain import FakeChain

from potluck.cluster.computer import Capabilities
from potluck.errors import PotluckError
from potluck.ids import Digest, NodeId
from potluck.model.schemes import Cache
from potluck.plan.cost import LinkCost
from potluck.store.progress import TransferProgress
from potluck.store.source import TensorSource
from potluck.wire.cache_messages import TakeSessions
from potluck.wire.measuring_messages import (
    LinkMeasured,
    Profile,
    Profiled,
    StageTimes,
    SumsMeasured,
    SumTime,
)
from potluck.wire.messages import (
    Address,
    Assign,
    DeviceId,
    DeviceInfo,
    Hop,
    Load,
    Need,
    NeedTensor,
    RankPlace,
)
from potluck.wire.spare_messages import Keep, Keeping
from potluck.wire.versions import PROTOCOL_VERSIONS

_T = TypeVar("_T")


DEEP = 1256  # tokens in the cache while a computer measures what a layer takes longer: 1,000 more than for its other times
Run = Callable[[Coroutine[Any, Any, None]], None]  # the fixture, in a loop that tests share


def run(work: Coroutine[Any, Any, _T], *, timeout_s: float = 30.0) -> _T:
    """Run a test's coroutine; fail if it hangs."""
    return asyncio.run(within(timeout_s, work))


async def within(seconds: float, work: Coroutine[Any, Any, _T]) -> _T:
    async with asyncio.timeout(seconds):  # not wait_for: it makes a second task on Python 3.11
        return await work


async def until(condition: Callable[[], object]) -> None:
    """Let other tasks run until the condition is true. The deadline of the test limits the wait."""
    while not condition():  # noqa: ASYNC110, the code under test has no event for it
        await asyncio.sleep(0)


class FakeComputer:
    """A member of a home.

    Tests set `errors` (raised by the call of that name) and `gates` (which that call waits for).
    """

    def __init__(self, name: str, number: int, *, memory: int = 1 << 30, ms: float = 1.0) -> None:
        self.name = name
        self.node_id = NodeId(f"{number:064x}")
        self.addresses: tuple[Address, ...] = (Address(host="127.0.0.1", port=4000 + number),)
        self.least_rtt_s: float | None = None  # of its heartbeats
        self.best: dict[NodeId, Address] = {}  # its best address, from each computer
        self.link = LinkCost(rtt_ms=0.2, bytes_per_s=1e8)  # what it measures to every other one
        self.sum_ms = (0.3, 5.0)  # what it measures of sums, of a token and of a chunk
        self.devices: Sequence[DeviceInfo] = (
            DeviceInfo(kind="cpu", name=name, memory_total=2 * memory, memory_free=memory),
        )
        # Milliseconds that a layer takes longer after `DEEP` tokens, for a token and for a chunk; none: it does not say.
        self.longer_ms: tuple[float, float] | tuple[()] = ()
        self.machine = ""
        self.is_local = False
        self.on_wifi = False
        self.version = max(PROTOCOL_VERSIONS)  # of the protocol that it speaks
        self.pause: str | None = None  # why it is about to leave
        self.stores_weights = False  # True: it already has every tensor that it is assigned
        self.calls: list[str] = []
        self.measured: list[DeviceId | None] = []  # the device that each profile was requested for
        self.caches: list[Cache] = []  # the cache of each of these profiles
        self.errors: dict[str, list[BaseException]] = {}
        self.gates: dict[str, asyncio.Event] = {}
        self.moves_caches = False
        self.taken_over: list[TakeSessions] = []
        self.assigned: list[Assign] = []
        self.kept: list[Keep] = []
        self.expected: dict[NodeId, list[str]] = {}  # the digests expected of each worker
        self.passed: set[str] = set()  # the digests that other workers have sent
        self.sources: Mapping[Digest, TensorSource] = {}  # what it loaded from, if it is local
        self.next_hops: list[Hop | None] = []
        self.previous: list[str | None] = []
        self.ranks: list[RankPlace | None] = []
        self.chains: list[FakeChain] = []
        self.is_loaded = False
        self.kinds = 1  # kinds of layers that it measures
        self.cached_bytes = 0  # of each token in the cache of its stage
        self.is_wide = False  # whether it holds 32 bits in place of 16
        self.cache_tokens = 1 << 20  # tokens that one session can hold
        self.is_exact_in_chunks = False
        self._ms = ms
        self.layers_ms: float | None = None  # result of `measure`, for one token

    async def _do(self, call: str) -> None:
        self.calls.append(call)
        if (gate := self.gates.get(call)) is not None:
            await gate.wait()
        if errors := self.errors.get(call):
            raise errors.pop(0)

    async def look(self) -> None:
        if not self.devices:
            await self._do("look")

    async def profile(self, wanted: Profile) -> Profiled:
        self.measured.append(wanted.device)
        self.caches.append(wanted.cache)
        await self._do("profile")
        return Profiled(
            device=next(d for d in self.devices if wanted.device in (None, d.id)),
            decode_ms=(self._ms,) * self.kinds,
            prefill_ms=(2 * self._ms,) * self.kinds,
            deep_decode_ms=tuple(self._ms + ms for ms in self.longer_ms[:1]) * self.kinds,
            deep_prefill_ms=tuple(2 * self._ms + ms for ms in self.longer_ms[1:]) * self.kinds,
            deep=DEEP,
            head_ms=self._ms,
            is_wide=self.is_wide,
        )

    def addresses_from(self, source: NodeId) -> tuple[Address, ...]:
        best = self.best.get(source)
        return tuple(sorted(self.addresses, key=lambda address: address != best))

    def reached(self, source: NodeId, at: Address) -> None:
        self.best[source] = at

    async def measure_link_to(self, peer: NodeId, addresses: tuple[Address, ...]) -> LinkMeasured:
        await self._do("measure_link_to")
        link, best = self.link, addresses[-1]
        return LinkMeasured(
            rtt_ms=link.rtt_ms, rtt_p95_ms=link.rtt_ms, bytes_per_s=link.bytes_per_s, address=best
        )

    async def measure_sums(self, device: DeviceId | None, ranks: RankPlace | None) -> SumsMeasured:
        if ranks is None:
            return SumsMeasured(activation_port=5000)
        await self._do("measure_sums")
        assert ranks.hops[ranks.rank].node_id == self.node_id
        times = (
            SumTime(nbytes=nbytes, ms=ms)
            for nbytes, ms in zip((1 << 14, 1 << 21), self.sum_ms, strict=True)
        )
        return SumsMeasured(activation_port=5000, times=tuple(times))

    async def measure(self, epoch: int, position: int, device: DeviceId | None) -> StageTimes:
        await self._do("measure")
        return StageTimes(
            cache_bytes=self.cached_bytes * position,
            weight_bytes=1000,
            read_bytes_per_s=1e6,
            layers_ms=self._ms if self.layers_ms is None else self.layers_ms,
            head_ms=self._ms,
        )

    async def assign(self, assign: Assign) -> Need:
        await self._do("assign")
        self.assigned.append(assign)
        wanted = () if self.stores_weights else assign.tensors
        missing = [info for info in wanted if info.digest not in self.passed]
        tensors = tuple(NeedTensor(digest=info.digest, offset=0) for info in missing)
        return Need(epoch=assign.epoch, tensors=tensors, activation_port=5000)

    async def send_weights(
        self,
        tensors: Sequence[NeedTensor],
        sources: Mapping[Digest, TensorSource],
        progress: Callable[[TransferProgress], None],
    ) -> None:
        await self._do("send_weights")
        total = sum(sources[Digest(t.digest)].nbytes - t.offset for t in tensors)
        progress(TransferProgress(sent=total, total=total, bytes_per_s=1e6))
        self.stores_weights = True

    async def keep(self, message: Keep) -> Keeping:
        await self._do("keep")
        self.kept.append(message)
        tensors = () if self.stores_weights else message.tensors
        stored = sum(info.nbytes for info in message.tensors) if self.stores_weights else 0
        needed = tuple(NeedTensor(digest=info.digest, offset=0) for info in tensors)
        return Keeping(stored=stored, tensors=needed)

    async def expect(self, epoch: int, source: NodeId, tensors: Sequence[NeedTensor]) -> None:
        self.expected[source] = [tensor.digest for tensor in tensors]
        await self._do("expect")

    async def pass_on(self, target: Any, tensors: Sequence[NeedTensor], *, timeout_s: float) -> int:
        await self._do("pass_on")
        assert {tensor.digest for tensor in tensors} <= set(target.expected[self.node_id])
        sizes = {info.digest: info.nbytes for info in target.assigned[-1].tensors}
        target.passed.update(tensor.digest for tensor in tensors)
        return sum(sizes[tensor.digest] - tensor.offset for tensor in tensors)

    async def load(
        self,
        assign: Assign,
        sources: Mapping[Digest, TensorSource],
        load: Load,
        progress: Callable[[float], None],
    ) -> Capabilities:
        progress(0.5)
        await self._do("load")
        self.sources = sources
        self.next_hops.append(load.next_hop)
        self.previous.append(load.previous)
        self.ranks.append(load.ranks)
        self.is_loaded = True
        return Capabilities(
            cache_tokens=self.cache_tokens,
            is_exact_in_chunks=self.is_exact_in_chunks,
            moves_caches=self.moves_caches,
        )

    async def take_sessions(self, message: TakeSessions) -> None:
        await self._do("take_sessions")
        self.taken_over.append(message)

    async def is_needed(self) -> None:
        await self._do("is_needed")

    async def unload(self, epoch: int) -> None:
        await self._do("unload")
        self.is_loaded = False

    async def connect(self, port: int, reactor: object) -> FakeChain:
        await self._do("connect")
        self.chains.append(FakeChain())
        return self.chains[-1]


class FakeComputers:
    """The computers of a home. A test adds and removes workers."""

    def __init__(self, local: FakeComputer, *workers: FakeComputer) -> None:
        self.local = local
        local.is_local = True
        self.workers = list(workers)
        self.going: list[FakeComputer] = []  # workers that are about to leave
        self.reasons: dict[str, str] = {}  # why connected workers lend nothing
        self.absent = 0  # paired computers that may still appear
        self.changed = asyncio.Condition()

    def available(self) -> Sequence[FakeComputer]:
        return list(self.workers)

    def leaving(self) -> Sequence[FakeComputer]:
        return list(self.going)

    def withheld(self) -> Mapping[str, str]:
        return self.reasons

    def expected(self) -> int:
        return self.absent

    async def come(self, *workers: FakeComputer) -> None:
        self.workers.extend(workers)
        async with self.changed:
            self.changed.notify_all()


def devices(*kinds: str, memory: int = 1 << 30) -> tuple[DeviceInfo, ...]:
    """Return the devices of one computer, such as `cuda`, `cuda`, `cpu`; each has its own name."""
    found: list[DeviceInfo] = []
    for kind in kinds:
        info = DeviceInfo(
            kind=kind,  # type: ignore[arg-type]
            index=sum(other.kind == kind for other in found),
            name=f"{kind} {len(found)}",
            memory_total=2 * memory,
            memory_free=memory,
        )
        found.append(info)
    return tuple(found)


def failing(error: PotluckError, times: int = 1) -> list[BaseException]:
    """Return errors for the next `times` calls."""
    return [error] * times
