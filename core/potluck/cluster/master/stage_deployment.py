"""The deployment of one stage: pack its weights if that saves time, assign, send, load."""

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import msgspec

from potluck.cluster.computer import Capabilities, Computer
from potluck.cluster.master.stage_tensors import StageTensors
from potluck.errors import (
    EngineError,
    IntegrityError,
    PeerLostError,
    RemoteError,
    RemoteProtocolError,
)
from potluck.ids import Digest, NodeId
from potluck.plan.placement import StagePlan
from potluck.store.progress import TransferProgress
from potluck.store.registry import TensorSource
from potluck.wire.messages import Assign, Load, Need

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Retries:
    """How often the weights of one computer are sent again when the link breaks."""

    attempts: int = 5  # a link that breaks more often is of no use
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

    `changed` is called when progress is made.
    """

    stage: StagePlan
    computer: Computer
    assign: Assign
    tensors: StageTensors
    progress: StageProgress
    changed: Callable[[], None]
    retries: Retries = Retries()

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
            need = await self._assign()
            if not need.tensors:
                return need.activation_port
            try:
                sources = await self.tensors.sources({tensor.digest for tensor in need.tensors})
                if sources is None:
                    continue
                sending()
                await self._send(need, sources)
            except PeerLostError:
                if attempt == self.retries.attempts:
                    raise
                logger.info("weights link broke, going on name=%s", self.progress.name)
                await asyncio.sleep(self.retries.pause_s * attempt)
            except IntegrityError as error:
                if attempt == self.retries.attempts or not self.tensors.discard(
                    error.data.get("digest")
                ):
                    raise  # only a tensor that was packed here can be packed again
            else:
                return need.activation_port
        raise EngineError(
            f"The weights for {self.progress.name} were packed {self.retries.attempts} times, and were never"
            " the same: this computer's memory or disk may be faulty, or something deletes Potluck's"
            " packed files. Restart Potluck; if it happens again, test the memory, or"
            " take --scheme bf16, for which nothing is packed."
        )

    async def _assign(self) -> Need:
        infos = self.tensors.infos(is_local=self.computer.is_local)
        self.assign = msgspec.structs.replace(self.assign, tensors=infos)
        need = await self.computer.assign(self.assign)
        self.progress.is_assigned = True
        if need.tensors:
            self.progress.total = self.progress.sent + _missing(self.assign, need)
        self.changed()
        return need

    async def _send(self, need: Need, sources: Mapping[Digest, TensorSource]) -> None:
        before = self.progress.sent

        def sent(progress: TransferProgress) -> None:
            self.progress.sent = before + progress.sent
            self.progress.bytes_per_s = progress.bytes_per_s
            self.changed()

        await self.computer.send_weights(need, sources, sent)

    async def load(self, message: Load) -> Capabilities:
        """Load the stage."""
        try:
            loaded = await self._load(message)
        except (IntegrityError, RemoteError) as error:
            if error.code != "integrity" and error.data.get("kind") != "integrity":
                raise
            # The computer has deleted a damaged file from its store: send it again.
            if self.computer.is_local:
                self.tensors.discard(error.data.get("digest"))
            await self.give(lambda: None)
            loaded = await self._load(message)
        self._loaded(1.0)
        return loaded

    async def _load(self, message: Load) -> Capabilities:
        sources: Mapping[Digest, TensorSource] = {}
        if self.computer.is_local:
            digests = {info.digest for info in self.assign.tensors}
            sources = await self.tensors.sources(digests) or {}
        return await self.computer.load(self.assign, sources, message, self._loaded)

    def _loaded(self, fraction: float) -> None:
        self.progress.loaded = fraction
        self.changed()


def _missing(assign: Assign, need: Need) -> int:
    """How many bytes of its assignment a computer says that it lacks.

    Raises:
        RemoteProtocolError: it asks for bytes that it was not assigned.
    """
    sizes = {info.digest: info.nbytes for info in assign.tensors}
    if any(tensor.offset > sizes.get(tensor.digest, -1) for tensor in need.tensors):
        raise RemoteProtocolError("It asks for weights that it was not assigned.")
    return sum(sizes[tensor.digest] - tensor.offset for tensor in need.tensors)
