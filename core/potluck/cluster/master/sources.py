"""From which computer a worker gets which of the tensors that it lacks.

A worker that was assigned a tensor before has it on its disk. If the master cannot fill the link to the
receiver by itself, since it sends to several computers at once or has the slower link, tensors are shared
out between it and those workers, so that all would be done at the same time by the measured rates.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from potluck.cluster.master.links import Links
from potluck.ids import Digest, NodeId
from potluck.wire.messages import NeedTensor

GAIN = 1.1  # a worker is asked only if the best link is so many times as fast as the master's share

LinkRate = Callable[[NodeId, NodeId], float | None]
"""Bytes per second from one computer to another, as measured; None: not measured."""

OBSERVED_S = 1.0  # a shorter transfer says little: TCP begins slowly


@dataclass(slots=True, kw_only=True)
class Sources:
    """What the master knows of the workers' disks and links. It outlives deployments.

    Attributes:
        local: the master.
        link_rate: see `LinkRate`; an upload limit of the master counts as a slow link.
        present: returns the workers that are connected.
        links: learn the rates of transfers; None: nobody does.
    """

    local: NodeId
    link_rate: LinkRate
    present: Callable[[], Iterable[NodeId]]
    links: Links | None = None
    _stored: dict[NodeId, set[Digest]] = field(default_factory=dict[NodeId, set[Digest]])
    _receiving: set[NodeId] = field(default_factory=set[NodeId])
    _crowded: set[NodeId] = field(default_factory=set[NodeId])  # that did not receive alone

    def stored(self, node: NodeId, digests: Iterable[Digest]) -> None:
        """Note that a worker has these tensors on its disk."""
        self._stored.setdefault(node, set()).update(digests)

    def doubt(self, node: NodeId) -> None:
        """Forget what a worker has: it did not send what it was asked for."""
        self._stored.pop(node, None)

    def receive(self, node: NodeId, *, more: bool) -> None:
        """Note that the master sends to this computer from now on, or not any more."""
        (self._receiving.add if more else self._receiving.discard)(node)
        self._crowded &= self._receiving
        if len(self._receiving) > 1:
            self._crowded |= self._receiving

    def sent(
        self, source: NodeId, target: NodeId, nbytes: int, seconds: float, *, alone: bool
    ) -> None:
        """Note how long a transfer took.

        Args:
            source: who sent.
            target: who received.
            nbytes: that were sent.
            seconds: between the first and the last of them.
            alone: whether nobody else sent to this computer meanwhile.
        """
        known = self.links.between(source, target) if self.links is not None else None
        if self.links is None or known is None or seconds < OBSERVED_S:
            return
        limit = self.link_rate(source, target)
        is_limited = limit is not None and limit < known.bytes_per_s
        alone = alone and target not in self._crowded and not is_limited
        self.links.observe(source, target, nbytes / seconds, alone=alone)

    def share_out(
        self, target: NodeId, needed: Sequence[NeedTensor], sizes: Mapping[str, int]
    ) -> dict[NodeId, list[NeedTensor]]:
        """Say which computer sends which tensors.

        Args:
            target: who needs them.
            needed: the tensors.
            sizes: bytes of each tensor, by digest.

        Returns:
            The tensors of each source. The master has those that nobody else has.
        """
        holders = {
            node: self._stored[node]
            for node in self.present()
            if node != target and node in self._stored
        }
        rates = {
            node: rate for node in holders if (rate := self.link_rate(node, target)) is not None
        }
        mine = self._own_rate(target)
        if mine is None or max(rates.values(), default=0.0) < GAIN * mine:
            return {self.local: list(needed)}
        rates[self.local] = mine
        return _balance(needed, sizes, rates, holders, self.local)

    def _own_rate(self, target: NodeId) -> float | None:
        """The master's rate to a computer while it also sends to the others that need weights."""
        measured = (self.link_rate(self.local, node) for node in {*self.present(), target})
        uplink = max((rate for rate in measured if rate is not None), default=0.0)
        rate = self.link_rate(self.local, target)
        return min(rate, uplink / max(1, len(self._receiving))) if rate is not None else None


def _balance(
    needed: Sequence[NeedTensor],
    sizes: Mapping[str, int],
    rates: Mapping[NodeId, float],
    holders: Mapping[NodeId, set[Digest]],
    local: NodeId,
) -> dict[NodeId, list[NeedTensor]]:
    """Give each tensor, the largest first, to the source that would be done with it first."""
    shares: dict[NodeId, list[NeedTensor]] = {}
    done = dict.fromkeys(rates, 0.0)  # seconds

    def nbytes(tensor: NeedTensor) -> int:
        return sizes[tensor.digest] - tensor.offset

    def choices(tensor: NeedTensor) -> list[NodeId]:
        digest = Digest(tensor.digest)
        return [node for node in rates if node == local or digest in holders[node]]

    # Those that only the master has come first: they are its work in any case.
    for tensor in sorted(needed, key=lambda t: (len(choices(t)) > 1, -nbytes(t))):
        ends = {node: done[node] + nbytes(tensor) / rates[node] for node in choices(tensor)}
        source = min(ends, key=ends.__getitem__)
        done[source] = ends[source]
        shares.setdefault(source, []).append(tensor)
    return shares
