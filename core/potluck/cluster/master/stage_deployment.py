"""The deployment of one stage: pack its weights if that saves time, assign, send, load."""

import asyncio
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from potluck.cluster.computer import Capabilities, Computer
from potluck.cluster.device_names import device_of
from potluck.cluster.master.sources import Sources
from potluck.cluster.master.stage_tensors import StageTensors
from potluck.errors import (
    BrokenModelError,
    EngineError,
    IntegrityError,
    PeerError,
    PeerLostError,
    PotluckError,
    RemoteError,
    RemoteProtocolError,
    StoreError,
    UnreachableError,
)
from potluck.ids import Digest, NodeId
from potluck.plan.stages import StagePlan
from potluck.store.progress import TransferProgress
from potluck.store.source import TensorSource
from potluck.tasks import together
from potluck.wire.messages import Assign, DeviceId, Load, Need, NeedTensor

logger = logging.getLogger(__name__)

PASS_S = 3.0  # of one worker's sending to another, after which it is asked for the next tensors
PASS_MOST_S = 30.0  # longer than its sending should take; then the master sends by itself
SLOWER = 5.0  # so many times as slow as measured a link may be


@dataclass(frozen=True, slots=True, kw_only=True)
class Retries:
    """How often the weights of one computer are sent again when something goes wrong."""

    attempts: int = 5  # a link that breaks more often is of no use
    repairs: int = 3  # of damaged files in one load; each repair finds all that is damaged by then
    pause_s: float = 0.2  # before the second attempt; twice as long before the third, and so on


@dataclass(slots=True, kw_only=True)
class StageProgress:
    """How far the deployment of one stage is."""

    node_id: NodeId
    name: str  # of the computer; with the device if the computer has several stages
    to_pack: int = 0  # bytes of the model's files that have to be packed before anything is sent
    packed: int = 0  # bytes of these that are packed
    is_assigned: bool = False  # True once it is known which weights the computer lacks
    sent: int = 0  # bytes
    total: int = 0  # bytes to send
    bytes_per_s: float | None = None
    loaded: float = 0.0  # from 0 to 1


@dataclass(slots=True, kw_only=True, eq=False)
class StageDeployment:
    """Deploys one stage: call `prepare`, `pack`, `give` and `load` in this order.

    `changed` is called when progress is made. `culprit` is the computer whose fault an error is.
    """

    stage: StagePlan
    computer: Computer
    assign: Assign
    tensors: StageTensors
    progress: StageProgress
    changed: Callable[[], None]
    retries: Retries = Retries()
    sources: Sources | None = None  # None: all weights come from the master
    workers: Mapping[NodeId, Computer] = field(default_factory=dict[NodeId, Computer])
    culprit: NodeId = field(init=False)

    def __post_init__(self) -> None:
        self.culprit = self.computer.node_id

    @property
    def place(self) -> tuple[NodeId, DeviceId]:
        """The device that the stage is on."""
        return self.stage.node, device_of(self.stage.device)

    async def prepare(self, *, is_packed_first: bool) -> None:
        """Look up which tensors are packed already, and how many bytes have to be packed."""
        await self.tensors.prepare()
        if is_packed_first and not self.computer.is_local:
            self.progress.to_pack = self.tensors.unpacked_bytes

    async def pack(self, link_rate: float | None) -> None:
        """Pack the matrices that are to be packed first. `link_rate` is in bytes per second."""

        def packed(nbytes: int) -> None:
            self.progress.packed += nbytes
            self.changed()

        if self.progress.to_pack:
            await self.tensors.pack(packed, link_rate=link_rate)
            self.progress.packed = self.progress.to_pack  # also when packing was given up
            self.changed()

    async def give(self, sending: Callable[[], None]) -> int:
        """Assign the stage and send the weights that the computer lacks.

        A connection that breaks is made again, and sending goes on with the bytes that the store
        lacks.

        Args:
            sending: called before weights are sent.

        Returns:
            The port at which the stage process listens for activations.
        """
        for attempt in range(1, self.retries.attempts + 1):
            need = await self.ask()
            if not need.tensors:
                return need.activation_port
            try:
                sources = await self.tensors.sources({tensor.digest for tensor in need.tensors})
                if sources is None:
                    continue
                sending()
                if await self._fetch(need, sources):
                    continue  # assign again: another worker may not have sent everything
            except PeerLostError:
                if attempt == self.retries.attempts:
                    raise
                logger.info("weights link broke, going on name=%s", self.progress.name)
                await asyncio.sleep(self.retries.pause_s * attempt)
            except (IntegrityError, BrokenModelError) as error:
                if attempt == self.retries.attempts or "digest" not in error.data:
                    raise
                await self.tensors.repair(error.data["digest"])
            else:
                return need.activation_port
        raise EngineError(
            f"The weights for {self.progress.name} were packed {self.retries.attempts} times, and were never"
            " the same: this computer's memory or disk may be faulty, or something deletes Potluck's"
            " packed files. Restart Potluck; if it happens again, test the memory, or"
            " take --scheme bf16, for which nothing is packed."
        )

    async def load_ahead(self) -> None:
        """Have the computer load the layers now, outside of any chain: `load` then finds them in memory.

        All answers wait for a load, and a process that was just started compiles its kernels in it.
        """
        await self.load(
            Load(epoch=self.assign.epoch, next_hop=None, previous=None, device=self.assign.device)
        )

    async def ask(self) -> Need:
        """Assign the stage. The answer says which weights the computer lacks."""
        await self.tensors.cut()
        infos = self.tensors.infos(is_local=self.computer.is_local)
        self.assign = msgspec.structs.replace(self.assign, tensors=infos)
        need = await self.computer.assign(self.assign)
        self.progress.is_assigned = True
        if need.tensors:
            self.progress.total = self.progress.sent + _missing(self.assign, need)
        if self.sources is not None and not self.computer.is_local:
            lacking = {tensor.digest for tensor in need.tensors}
            here = (Digest(info.digest) for info in infos if info.digest not in lacking)
            self.sources.stored(self.computer.node_id, here)
        self.changed()
        return need

    async def _fetch(self, need: Need, files: Mapping[Digest, TensorSource]) -> bool:
        """Let the computer get what it lacks. Returns whether workers were asked to send some."""
        if self.sources is None:
            await self._send(need, files)
            return False
        target = self.computer.node_id
        sizes = {info.digest: info.nbytes for info in self.assign.tensors}
        self.sources.receive(target, more=True)
        try:
            shares = self.sources.share_out(target, need.tensors, sizes)
            mine = msgspec.structs.replace(need, tensors=tuple(shares.pop(self.sources.local, ())))
            passing = [self._pass_on(self.workers[node], share) for node, share in shares.items()]
            sending = [self._send(mine, files, alone=not shares)] if mine.tensors else []
            await together([*passing, *sending])
        finally:
            self.sources.receive(target, more=False)
        if not shares:
            self.sources.stored(target, map(Digest, sizes))
        return bool(shares)

    async def _pass_on(self, source: Computer, share: Sequence[NeedTensor]) -> None:
        """Have another worker send tensors. Whatever it does not send comes from the master."""
        assert self.sources is not None
        sizes = {info.digest: info.nbytes for info in self.assign.tensors}
        rate = self.sources.link_rate(source.node_id, self.computer.node_id) or 1e6
        try:
            await self.computer.expect(self.assign.epoch, source.node_id, share)
            for batch in _batches(share, sizes, rate * PASS_S):
                nbytes = sum(sizes[tensor.digest] - tensor.offset for tensor in batch)
                patience_s = PASS_MOST_S + SLOWER * nbytes / rate
                began = time.monotonic()
                sent = await source.pass_on(self.computer, batch, timeout_s=patience_s)
                seconds = time.monotonic() - began
                self.sources.sent(source.node_id, self.computer.node_id, sent, seconds, alone=False)
                self.progress.sent += sent
                self.changed()
                if sent < nbytes:
                    raise StoreError(f"{source.name} does not have these weights any more.")
        except PotluckError as error:
            logger.info("%s sent no weights to %s: %s", source.name, self.progress.name, error)
            self.sources.doubt(source.node_id)

    async def _send(
        self, need: Need, files: Mapping[Digest, TensorSource], *, alone: bool = False
    ) -> None:
        before = 0
        times: list[tuple[float, int]] = []  # of the first progress and of the last one

        def sent(progress: TransferProgress) -> None:
            nonlocal before
            times[1:] = [(time.monotonic(), progress.sent)]
            self.progress.sent += progress.sent - before
            before = progress.sent
            self.progress.bytes_per_s = progress.bytes_per_s
            self.changed()

        await self.computer.send_weights(need.tensors, files, sent)
        if self.sources is not None and len(times) > 1:
            (began, first), (ended, last) = times
            ends = self.sources.local, self.computer.node_id
            self.sources.sent(*ends, last - first, ended - began, alone=alone)

    async def load(self, message: Load) -> Capabilities:
        """Load the stage.

        What a computer finds damaged or deleted on its disk is sent again, a few times.
        """
        for _ in range(self.retries.repairs + 1):
            try:
                loaded = await self._load(message)
            except (IntegrityError, RemoteError) as error:
                if IntegrityError.code not in (error.code, error.data.get("kind")):
                    raise
                logger.info("repairing the weights of %s: %s", self.progress.name, error)
                if self.computer.is_local:
                    await self.tensors.repair(error.data.get("digest"))
                await self.give(lambda: None)
            else:
                self._loaded(1.0)
                return loaded
        raise IntegrityError(
            f"The weights on {self.progress.name} were damaged or deleted {self.retries.repairs + 1}"
            " times in one load, though they were sent again each time. A program that cleans up"
            " may delete Potluck's cache there, or the disk or memory is failing: run"
            " `potluck models verify` on that computer, then load the model again."
        )

    async def _load(self, message: Load) -> Capabilities:
        sources: Mapping[Digest, TensorSource] = {}
        if self.computer.is_local:
            digests = {info.digest for info in self.assign.tensors}
            found = await self.tensors.sources(digests)
            if found is None:
                raise IntegrityError("Packing again gave other bytes.")  # `load` assigns anew
            sources = found
        try:
            return await self.computer.load(self.assign, sources, message, self._loaded)
        except PeerError as error:
            is_unreachable = UnreachableError.code in (error.code, error.data.get("kind"))
            if is_unreachable:
                self.culprit = _not_reached(message, error) or self.culprit
            raise

    def _loaded(self, fraction: float) -> None:
        self.progress.loaded = fraction
        self.changed()


def _not_reached(message: Load, error: PeerError) -> NodeId | None:
    """The computer that a stage could not reach: its process may have ended. None: nobody knows which one."""
    required = {hop.node_id for hop in message.required}
    named = error.data.get("node")
    if named in required:
        return NodeId(str(named))
    return NodeId(required.pop()) if len(required) == 1 else None


def _missing(assign: Assign, need: Need) -> int:
    """How many bytes of its assignment a computer says that it lacks.

    Raises:
        RemoteProtocolError: it asks for bytes that it was not assigned.
    """
    sizes = {info.digest: info.nbytes for info in assign.tensors}
    if any(tensor.offset > sizes.get(tensor.digest, -1) for tensor in need.tensors):
        raise RemoteProtocolError("It asks for weights that it was not assigned.")
    return sum(sizes[tensor.digest] - tensor.offset for tensor in need.tensors)


def _batches(
    tensors: Sequence[NeedTensor], sizes: Mapping[str, int], most: float
) -> Iterator[list[NeedTensor]]:
    """Split tensors into batches of about so many bytes, at least one tensor each."""
    batch: list[NeedTensor] = []
    nbytes = 0
    for tensor in tensors:
        batch.append(tensor)
        nbytes += sizes[tensor.digest] - tensor.offset
        if nbytes >= most:
            yield batch
            batch, nbytes = [], 0
    if batch:
        yield batch
