"""Which stages of a plan connect with which others: what each is told as it is loaded."""

import secrets
from collections.abc import Iterator, Sequence

from potluck.cluster.computer import LOOPBACK
from potluck.cluster.master.stage_deployment import StageDeployment
from potluck.ids import NodeId
from potluck.wire.messages import Address, CacheHop, Hop, Load, PlanBefore, RankPlace
from potluck.wire.versions import READERS_SINCE


class Wiring:
    """The connections of one deployment's stages.

    Args:
        epoch: of the deployment.
        tasks: its stages in their order.
        answering: the one to which these send the caches of prompts that they read; None: they answer.
        before: the one from whose stages these may get the caches of conversations; None: there is none.

    Attributes:
        ports: where each stage listens, once it was assigned.
        freed: computers that have nothing of it any more.
    """

    def __init__(
        self,
        epoch: int,
        tasks: Sequence[StageDeployment],
        *,
        answering: "Wiring | None" = None,
        before: "Wiring | None" = None,
    ) -> None:
        moves = before is not None and before.moves_conversations
        self._epoch, self._tasks, self._answering = epoch, tasks, answering
        self._key = secrets.token_hex(32)  # for stages that fetch caches from these
        self.ports: Sequence[int] = ()
        self.freed: frozenset[NodeId] = frozenset()
        self.before = before if moves and self.moves_conversations else None

    def load_of(self, index: int) -> Load:
        """What the stage with this number is loaded with."""
        task = self._tasks[index]
        first = self.first_rank(index)
        ranks = range(first, first + len(task.stage.shares))
        previous = first  # rank 0 passes steps on
        if index == first:
            previous = self.first_rank(first - 1) if first else None
        leads_on = index == first and ranks.stop < len(self._tasks)
        hops = tuple(self._hop(task, rank) for rank in ranks)
        return Load(
            epoch=self._epoch,
            next_hop=self._hop(task, ranks.stop) if leads_on else None,
            previous=None if previous is None else self._tasks[previous].computer.node_id,
            device=task.assign.device,
            ranks=RankPlace(rank=index - first, hops=hops) if len(hops) > 1 else None,
            cache_hops=() if self._answering is None else self._answering.cache_hops(task),
            before=None if self.before is None else self.before.left_to(task, self._tasks),
            key=self._key if self.moves_conversations else None,  # else caches stay for nobody
        )

    @property
    def moves_conversations(self) -> bool:
        """Whether its stages may get the caches of conversations from another plan, or give them to it."""
        return all(task.computer.version >= READERS_SINCE for task in self._tasks)

    def left_to(self, source: StageDeployment, planned: Sequence[StageDeployment]) -> PlanBefore:
        """Where a stage of the next plan finds its layers' caches, which its own process does not have.

        Only what has not been freed is named. A computer that has a stage of the next plan frees its devices that have none as it loads.

        Args:
            source: the stage of the next plan.
            planned: all of them.
        """
        nodes, places = {task.stage.node for task in planned}, {task.place for task in planned}
        freed = {task.place for task in self._tasks if task.stage.node in nodes} - places
        hops = tuple(
            hop
            for task, hop in self._hops_with(source)
            if task.place not in (*freed, source.place) and task.stage.node not in self.freed
        )
        return PlanBefore(epoch=self._epoch, hops=hops, key=self._key)

    def first_rank(self, index: int) -> int:
        """The task of rank 0 of this task's group. A stage that is in none is its own."""
        return index - self._tasks[index].stage.rank

    def _hop(self, source: StageDeployment, index: int) -> Hop:
        """Where a stage dials another one."""
        computer = self._tasks[index].computer
        is_same = computer.node_id == source.computer.node_id
        hosts = LOOPBACK if is_same else computer.addresses_from(source.computer.node_id)
        return Hop(node_id=computer.node_id, addresses=_at_port(hosts, self.ports[index]))

    def cache_hops(self, source: StageDeployment) -> tuple[CacheHop, ...]:
        """The stages that have layers of this one of readers, and how it reaches them."""
        return tuple(hop for _, hop in self._hops_with(source))

    def _hops_with(self, source: StageDeployment) -> Iterator[tuple[StageDeployment, CacheHop]]:
        for index, task in enumerate(self._tasks):
            both = _in_both(task.stage.layers, source.stage.layers)
            if both:
                hop = self._hop(source, index)
                yield (
                    task,
                    CacheHop(
                        node_id=hop.node_id,
                        addresses=hop.addresses,
                        layers=(both.start, both.stop),
                        share=task.assign.share,
                    ),
                )


def _in_both(some: range, others: range) -> range:
    return range(max(some.start, others.start), min(some.stop, others.stop))


def _at_port(addresses: Sequence[Address], port: int) -> tuple[Address, ...]:
    return tuple(Address(host=address.host, port=port) for address in addresses)
