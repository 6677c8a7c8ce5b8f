"""The weights on a worker's disk: what is damaged is dropped, and who may send what to whom.

A home's master may let one of its workers send tensors to another. Both are told. The receiver takes
from that worker only tensors that it was assigned and waits for; the sender passes on only tensors that
the same home has assigned to it before. The sender need not be trusted: the digest of each tensor is
checked as always, and what a worker does not send or sends altered comes from the master.
"""

import asyncio
import logging
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager

from potluck.cluster.worker.contents import Content
from potluck.cluster.worker.lease import Lease
from potluck.errors import IntegrityError, NotAllowedError, PeerLostError, StaleEpochError
from potluck.ids import Digest, HomeId, NodeId
from potluck.store.chunks import ChunkStore
from potluck.store.fetch import send_tensors
from potluck.store.link import WeightsLink
from potluck.store.source import TensorSource
from potluck.store.throttle import Throttle
from potluck.tasks import reschedule
from potluck.wire.messages import NeedTensor
from potluck.wire.passing_messages import Expect

logger = logging.getLogger(__name__)

MOST_ASSIGNED = 1 << 18  # tensors of a home that are remembered: two of the largest plans
MOST_SENDERS = 64  # workers of which tensors are expected; no home has more
REPORT_S = 1.0  # between two reports of a check; the master waits 60 s for one


class PeerWeights:
    """What other workers may send to this one, and what this one may send to others."""

    def __init__(self, store: ChunkStore, throttle: Throttle | None = None) -> None:
        self._store = store
        self._throttle = throttle
        # Since this node was started; None: it is a file of its own, if it is here.
        self._assigned: dict[HomeId, dict[Digest, Content | None]] = {}
        self._expected: dict[NodeId, frozenset[Digest]] = {}
        self._receiving: set[asyncio.Timeout] = set()

    def assigned(self, home: HomeId, tensors: Mapping[Digest, Content]) -> None:
        """Note that a home's master assigned these tensors. Nothing is expected of workers now."""
        self.may_pass_on(home, tensors)
        self._expected.clear()
        for receiving in self._receiving:
            reschedule(receiving, 0)

    def may_pass_on(self, home: HomeId, tensors: Mapping[Digest, Content]) -> None:
        """Note that a home's master gave these tensors to this computer."""
        assigned = self._assigned.setdefault(home, {})
        if len(assigned) > MOST_ASSIGNED:  # a master can name any number that it never sends
            for digest in assigned.keys() - self._store.inventory.sizes().keys():
                del assigned[digest]
        for digest, content in tensors.items():
            assigned[digest] = None if content.part is None else content

    def expect(self, home: HomeId, message: Expect, lease: Lease | None) -> None:
        """Expect tensors from a worker, as the master says.

        Raises:
            StaleEpochError: the plan is not in force.
            NotAllowedError: this computer does not wait for these tensors.
        """
        if lease is None or (lease.home, lease.epoch) != (home, message.epoch):
            raise StaleEpochError("This computer has no assignment of that plan.")
        digests = frozenset(Digest(tensor.digest) for tensor in message.tensors)
        if not digests <= lease.awaited().keys():
            raise NotAllowedError("This computer does not wait for these weights.")
        if len(self._expected) >= MOST_SENDERS:
            raise NotAllowedError("This computer waits for weights of too many others already.")
        self._expected[NodeId(message.node_id)] = digests

    def awaited_from(self, source: NodeId | None, lease: Lease) -> dict[Digest, int]:
        """Sizes of the awaited tensors that a worker sends; None: that the master sends."""
        others = frozenset[Digest]().union(*self._expected.values())
        theirs = self._expected.get(source, frozenset()) if source is not None else None
        return {
            digest: nbytes
            for digest, nbytes in lease.awaited().items()
            if (digest in theirs if theirs is not None else digest not in others)
        }

    @contextmanager
    def until_assigned(self) -> Generator[asyncio.Timeout]:
        """Make a deadline for a transfer from a worker: it ends when something else is assigned."""
        deadline = asyncio.timeout(None)
        self._receiving.add(deadline)
        try:
            yield deadline
        except TimeoutError:
            raise PeerLostError("The master has assigned something else meanwhile.") from None
        finally:
            self._receiving.discard(deadline)

    def sources(self, home: HomeId, tensors: Iterable[NeedTensor]) -> Mapping[Digest, TensorSource]:
        """Where those of these tensors are that this computer has.

        Raises:
            NotAllowedError: this home has not assigned one of them to this computer.
        """
        digests = {Digest(tensor.digest) for tensor in tensors}
        assigned = self._assigned.get(home, {})
        if not digests <= assigned.keys():
            raise NotAllowedError("This computer was not assigned these weights by that home.")
        found: dict[Digest, TensorSource] = {}
        for digest in digests:
            content = assigned[digest]
            if content is not None and (source := content.source(self._store)) is not None:
                found[digest] = source
            elif self._store.has(digest):
                path = self._store.path(digest)
                found[digest] = TensorSource(path=path, offset=0, nbytes=path.stat().st_size)
        return found

    async def pass_on(
        self,
        link: WeightsLink,
        tensors: Iterable[NeedTensor],
        sources: Mapping[Digest, TensorSource],
    ) -> int:
        """Send tensors to a worker that expects them. Returns how many bytes were sent.

        Raises:
            IntegrityError: a tensor is damaged here; it was deleted.
            PeerError: the worker is gone, or does not take them.
        """
        try:
            sent = await send_tensors(link, tensors, sources, throttle=self._throttle)
        except IntegrityError:
            files = {Digest(source.path.name) for source in sources.values()}  # also of what is cut
            await asyncio.to_thread(self._store.verify, files)
            raise
        logger.info("weights passed on bytes=%d", sent)
        return sent


async def drop_damaged(
    store: ChunkStore, digests: Iterable[Digest], going_on: Callable[[], None]
) -> None:
    """Read these tensors and drop those that are damaged.

    Args:
        store: where the tensors are.
        digests: which tensors.
        going_on: called about every second, so that the master keeps waiting.
    """
    loop = asyncio.get_running_loop()
    said = loop.time()
    for digest in digests:
        await asyncio.to_thread(store.verify, (digest,))
        if loop.time() - said >= REPORT_S:
            said = loop.time()
            going_on()
