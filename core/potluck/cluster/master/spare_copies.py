"""Lays spare copies on the workers' disks while nothing else is to be done.

For the loss of each worker, the plan that a recovery would make then says which weights the others
would have to be sent. They are sent beforehand, while no answer and no load is under way: a request
ends the transfer at once, and it goes on from there when all is quiet again.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from potluck.cluster.computer import Computer, Computers
from potluck.cluster.master.deployment import Deployment
from potluck.cluster.master.packing import Packing
from potluck.cluster.master.planned import Planned
from potluck.cluster.master.planning import Planner
from potluck.cluster.master.sources import Sources
from potluck.cluster.master.stage_tensors import StageTensors
from potluck.errors import PotluckError
from potluck.ids import Digest, NodeId
from potluck.model.shares import Share as ModelShare
from potluck.model.shares import TensorSlice
from potluck.model.stored_slices import stage_slices
from potluck.plan.cost import UNKNOWN_LINK
from potluck.plan.spares import Share, spare_shares
from potluck.store.progress import TransferProgress
from potluck.tasks import TaskSet
from potluck.wire.shares import RankShare
from potluck.wire.spare_messages import Keep

logger = logging.getLogger(__name__)

AGAIN_S = 30.0  # after a worker could not take its copies; twice as long after each further failure
MOST_AGAIN_S = 900.0

Pays: TypeAlias = Callable[[int, float], bool]
"""Whether so many bytes at so many bytes per second are worth it."""


class _NotWorthItError(Exception):
    """A plan does not pay for the bytes to send."""


def _always(nbytes: int, rate: float) -> bool:
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class SpareCopy:
    """What a worker has on its disk in case another one is lost."""

    model: str
    layers: int
    nbytes: int  # of what it should have
    stored: int  # of what it has


class SpareCopies:
    """Keeps the workers' disks ready for the loss of any one worker."""

    def __init__(
        self,
        *,
        computers: Computers,
        planner: Planner,
        packing: Packing | None,
        sources: Sources,
        link_rate: Callable[[NodeId], float | None],
        changed: Callable[[], None],
        quiet_s: float,
    ) -> None:
        """Make one that has laid nothing.

        Args:
            computers: this computer and the connected workers.
            planner: makes the plans after a loss.
            packing: packs weights before they are sent; None: they are sent as the files have them.
            sources: told which worker has which tensors.
            link_rate: bytes per second of the link to a computer; None: unknown.
            changed: called when what clients are shown has changed.
            quiet_s: how long nothing may be asked for before something is sent.
        """
        self.copies: Mapping[NodeId, SpareCopy] = {}
        self._computers = computers
        self._planner = planner
        self._packing = packing
        self._sources = sources
        self._link_rate = link_rate
        self._changed = changed
        self._quiet_s = quiet_s
        self._quiet_since: float | None = None
        self._looked = float("-inf")  # seconds of the clock of `look`
        self._rests_until = float("-inf")  # after a failure
        self._again_s = AGAIN_S
        self._done_for: object = None  # the plan and the computers that all was done for
        self._laying: asyncio.Task[None] | None = None
        self._tasks = TaskSet()

    @property
    def is_sending(self) -> bool:
        """Whether spare copies are on the way: a link that is measured now would seem slow."""
        return self._laying is not None and not self._laying.done()

    def interrupt(self) -> None:
        """Stop at once, because something is asked for; what has arrived is kept."""
        self._quiet_since = self._done_for = None  # what was measured meanwhile may change plans
        if self._laying is not None:
            self._laying.cancel()

    def look(self, deployment: Deployment | None, now: float) -> None:
        """Begin if nothing was asked for some time, and something may be missing.

        Args:
            deployment: the plan in force; None: there is none, or it is used.
            now: seconds of any clock.
        """
        if deployment is None:
            self.interrupt()
            return
        self._looked = now
        if self._quiet_since is None:
            self._quiet_since = now
        here = frozenset(computer.node_id for computer in self._computers.available())
        situation = deployment.epoch, here
        is_quiet = now >= max(self._quiet_since + self._quiet_s, self._rests_until)
        is_due = is_quiet and situation != self._done_for
        if is_due and not self.is_sending:
            self._done_for = situation
            self._laying = self._tasks.spawn(self._lay(deployment.planned), name="spare copies")

    async def _lay(self, planned: Planned) -> None:
        workers = {computer.node_id: computer for computer in self._computers.available()}
        used = dict.fromkeys(stage.node for stage in planned.plan.stages)
        plans = [
            await self._planner.plan_without(node, planned) for node in used if node in workers
        ]
        shares = spare_shares(planned.plan.stages, (plan.stages for plan in plans if plan))
        self.copies = {node: copy for node, copy in self.copies.items() if node in shares}
        if await self._lay_all(planned, shares):
            self._again_s = AGAIN_S
            return
        self._rests_until = self._looked + self._again_s  # a full disk, or a link that broke
        self._again_s = min(2 * self._again_s, MOST_AGAIN_S)
        self._done_for = None

    async def send_for(self, planned: Planned, before: Planned, pays: Pays) -> bool:
        """Send computers of the plan in force what they lack for the next one, which takes it later.

        What cannot be sent now is sent when the next plan is put into force.

        Args:
            planned: the next plan.
            before: the plan in force.
            pays: whether so many bytes at so many bytes per second are worth it.

        Returns:
            Whether it pays. If not, no more is sent.
        """
        shares = spare_shares(before.plan.stages, (planned.plan.stages,))
        running = {stage.node for stage in before.plan.stages}
        mine = {node: share for node, share in shares.items() if node in running}
        try:
            await self._lay_all(planned, mine, pays)
        except _NotWorthItError:
            return False
        return True

    async def _lay_all(
        self, planned: Planned, shares: Mapping[NodeId, Share], pays: Pays = _always
    ) -> bool:
        """Lay spare copies on the workers among these computers. Return whether none of them failed."""
        workers = {computer.node_id: computer for computer in self._computers.available()}
        has_all = True
        for node, share in shares.items():
            if (computer := workers.get(node)) is None or planned.model.seed is not None:
                continue  # this computer has the model's files; random weights are made
            try:
                await self._lay_on(computer, planned, share, pays)
            except PotluckError as error:
                has_all = False
                logger.info("no spare copies on %s: %s", computer.name, error)
        return has_all

    async def _lay_on(self, computer: Computer, planned: Planned, share: Share, pays: Pays) -> None:
        """Have a worker keep a share of the model, and send what it lacks and has room for."""
        model, layers = planned.model, tuple(sorted(share.layers))
        expected = model.config.stage_tensors(layers, embedding=share.embedding, head=share.head)
        slices, rank = dict[str, TensorSlice](), None
        if share.part is not None:
            own = ModelShare(rank=share.part[0], parts=share.part[1])
            slices = stage_slices(model.config, layers, own, planned.scheme)
            rank = RankShare(rank=own.rank, shares=own.parts)
        tensors = StageTensors(model, planned.scheme, expected, self._packing, slices)
        rate = self._link_rate(computer.node_id)
        try:
            await tensors.prepare()
            if self._packing is not None and self._packing.pays(rate):
                await tensors.pack(lambda _: None, link_rate=rate)
            await tensors.cut()
            named = tensors.infos(is_local=False)  # several may have the same content
            infos = {Digest(info.digest): info for info in named}
            keeping = await computer.keep(
                Keep(
                    config=dict(model.manifest.config),
                    scheme=planned.scheme,
                    layers=layers,
                    embedding=share.embedding,
                    head=share.head,
                    tensors=named,
                    share=rank,
                )
            )
            total = sum(info.nbytes for info in infos.values())

            def has(nbytes: int) -> None:
                copy = SpareCopy(
                    model=model.name, layers=len(layers), nbytes=total, stored=min(nbytes, total)
                )
                self.copies = {**self.copies, computer.node_id: copy}
                self._changed()

            def sent(progress: TransferProgress) -> None:
                has(keeping.stored + progress.sent)

            has(keeping.stored)
            wanted = {Digest(tensor.digest) for tensor in keeping.tensors}
            if not pays(total - keeping.stored, rate or UNKNOWN_LINK.bytes_per_s):
                raise _NotWorthItError
            files = await tensors.sources(wanted)
            if wanted and files is not None:
                await computer.send_weights(keeping.tensors, files, sent)
                has(keeping.stored + sum(infos[digest].nbytes for digest in wanted))
            if self.copies[computer.node_id].stored == total:
                self._sources.stored(computer.node_id, infos)
        finally:
            tensors.release()
