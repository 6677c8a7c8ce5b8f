"""Put a plan into force: assign, stream what each computer lacks, load, connect the driver.

All computers at once in each step, and a step begins when the one before is done everywhere. What
breaks on the way breaks the deployment, and leaves every store with what it has received.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias, TypeVar

import msgspec

from potluck.cluster.pipeline import ActivationLink, Pipeline, Room
from potluck.cluster.survey import PROFILE_TOKENS, shape_of
from potluck.errors import (
    IntegrityError,
    PeerLostError,
    PotluckError,
    RemoteError,
    RemoteProtocolError,
)
from potluck.ids import NodeId
from potluck.model.manifest import TensorEntry
from potluck.model.schemes import Scheme
from potluck.plan.placement import Plan, Stage
from potluck.plan.prefill import best_chunk
from potluck.store.progress import TransferProgress
from potluck.store.registry import LocalModel
from potluck.wire.messages import Address, Assign, Hop, Need, TensorInfo

logger = logging.getLogger(__name__)

STREAM_ATTEMPTS = 5  # of one computer's weights; a link that breaks more often is no link
STREAM_PAUSE_S = 0.2  # before the second attempt, and so much longer before each further one
_STREAM_SHARE = 0.8  # of the progress bar; loading is the rest

_T = TypeVar("_T")
Phase: TypeAlias = Literal["streaming", "loading"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Neighbours:
    """Between whom a stage stands: None is the driver."""

    previous: NodeId | None
    next_hop: Hop | None


class Member(Protocol):
    """A computer that can hold a stage: this one or a connected worker."""

    @property
    def node_id(self) -> NodeId: ...
    @property
    def name(self) -> str: ...
    @property
    def addresses(self) -> tuple[Address, ...]: ...
    async def assign(self, assign: Assign) -> Need: ...
    async def send_weights(
        self, need: Need, model: LocalModel, progress: Callable[[TransferProgress], None]
    ) -> None: ...
    async def load(
        self,
        assign: Assign,
        model: LocalModel,
        neighbours: Neighbours,
        progress: Callable[[float], None],
    ) -> int: ...  # tokens that one session can hold there
    async def unload(self, epoch: int) -> None: ...
    async def connect(self, port: int) -> ActivationLink: ...


@dataclass(slots=True, kw_only=True)
class StageProgress:
    """How far one computer is."""

    node_id: NodeId
    name: str
    is_assigned: bool = False  # what it lacks is known
    sent: int = 0
    total: int = 0
    bytes_per_s: float | None = None
    eta_s: float | None = None
    loaded: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """A plan, and what it is a plan of."""

    model: LocalModel
    scheme: Scheme
    note: str  # why this scheme, where it was chosen for its size; else empty
    context: int  # tokens
    plan: Plan
    names: Mapping[NodeId, str]  # of every computer that was considered

    def chunk_tokens(self, prompt_tokens: int) -> int:
        """How many tokens of a prompt are sent at once."""
        shape = shape_of(self.model.config, self.scheme, context=self.context)
        return best_chunk(
            shape, self.plan, prompt_tokens=prompt_tokens, measured_tokens=PROFILE_TOKENS
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One stage on its way to a computer."""

    stage: Stage
    member: Member
    assign: Assign
    progress: StageProgress


class Deployment:
    """One plan in force, or on its way. `pipeline` is there once `start` returned."""

    def __init__(
        self,
        *,
        planned: Planned,
        epoch: int,
        members: Mapping[NodeId, Member],
        changed: Callable[[], None],
    ) -> None:
        self.planned = planned
        self.epoch = epoch
        self.phase: Phase = "streaming"
        self.tasks = [self._task(stage, members[stage.node]) for stage in planned.plan.stages]
        self.pipeline: Pipeline | None = None
        self.room: Room | None = None  # of the computer that has the least
        self._changed = changed
        self._running: asyncio.Task[None] | None = None
        self._starting: asyncio.Task[object] | None = None
        self._failure: PotluckError | None = None

    def _task(self, stage: Stage, member: Member) -> Task:
        planned, model = self.planned, self.planned.model
        names = model.config.stage_tensors(stage.layers, embedding=stage.embedding, head=stage.head)
        assign = Assign(
            epoch=self.epoch,
            model_id=model.manifest.model_id,
            config=dict(model.manifest.config),
            scheme=planned.scheme,
            layers=(stage.layers.start, stage.layers.stop),
            embedding=stage.embedding,
            head=stage.head,
            context=planned.context,
            tensors=tuple(map(tensor_info, model.manifest.stage(names))),
        )
        progress = StageProgress(node_id=stage.node, name=stage.name)
        return Task(stage=stage, member=member, assign=assign, progress=progress)

    @property
    def fraction(self) -> float:
        """How much of the way to a loaded model is done."""
        total = sum(task.progress.total for task in self.tasks)
        sent = sum(task.progress.sent for task in self.tasks)
        streamed = sent / total if total else 1.0
        if not all(task.progress.is_assigned for task in self.tasks):
            return 0.0  # else the bar would go back with every computer that says what it lacks
        loaded = sum(task.progress.loaded for task in self.tasks) / len(self.tasks)
        share = _STREAM_SHARE if total else 0.0
        return share * streamed + (1 - share) * loaded

    @property
    def streamed_bytes(self) -> dict[str, int]:
        """What each computer was sent for this deployment, by name."""
        return {task.progress.name: task.progress.sent for task in self.tasks}

    def uses(self, node_id: NodeId) -> bool:
        return any(task.stage.node == node_id for task in self.tasks)

    async def start(self) -> Pipeline:
        """Bring every stage up and connect the driver to both ends.

        Raises:
            PotluckError: the first thing that went wrong; the name of the computer is in it.
        """
        task = self._starting = asyncio.current_task()
        assert task is not None
        try:
            return await self._start()
        except asyncio.CancelledError:
            if self._failure is None or task.uncancel() > 0:
                raise  # somebody else cancelled us
            raise self._failure from None
        finally:
            self._starting = None

    async def _start(self) -> Pipeline:
        ports = await _together(_named(task, self._give(task)) for task in self.tasks)
        self.phase = "loading"
        self._changed()
        tokens = await _together(
            _named(task, self._load(task, self._neighbours(index, ports)))
            for index, task in enumerate(self.tasks)
        )
        names = [task.progress.name for task in self.tasks]
        self.room = min(map(Room, tokens, names), key=lambda room: room.tokens)
        first, last = await self._connect(ports)
        self.pipeline = Pipeline(epoch=self.epoch, first=first, last=last, stages=len(self.tasks))
        self._running = asyncio.create_task(self.pipeline.run(), name="pipeline")
        return self.pipeline

    def _neighbours(self, index: int, ports: Sequence[int]) -> Neighbours:
        previous = self.tasks[index - 1].member.node_id if index else None
        if index + 1 == len(self.tasks):
            return Neighbours(previous=previous, next_hop=None)
        member = self.tasks[index + 1].member
        addresses = _at_port(member.addresses, ports[index + 1])
        return Neighbours(
            previous=previous, next_hop=Hop(node_id=member.node_id, addresses=addresses)
        )

    async def _connect(self, ports: Sequence[int]) -> tuple[ActivationLink, ActivationLink]:
        """The driver's links to the first stage and to the last; one where these are the same."""
        first = await self.tasks[0].member.connect(ports[0])
        last = first
        try:
            if len(self.tasks) > 1:
                last = await self.tasks[-1].member.connect(ports[-1])
            if self._failure is not None:
                raise self._failure
        except BaseException:
            first.close()
            last.close()
            raise
        return first, last

    def fail(self, error: PotluckError) -> None:
        """A computer of the plan is gone: what runs or is on its way ends with this error."""
        self._failure = self._failure or error
        if self.pipeline is not None:
            self.pipeline.fail(error)
        elif self._starting is not None:
            self._starting.cancel()

    async def _give(self, task: Task) -> int:
        """Assign a stage and send what is missing; the port where it listens.

        A connection that breaks under way is made again, and goes on where the store stands.
        """
        for attempt in range(1, STREAM_ATTEMPTS + 1):
            need = await task.member.assign(task.assign)
            before = task.progress.sent
            task.progress.is_assigned = True
            if need.tensors:
                task.progress.total = before + _missing(task.assign, need)
            self._changed()

            def sent(progress: TransferProgress, before: int = before) -> None:
                task.progress.sent = before + progress.sent
                task.progress.bytes_per_s = progress.bytes_per_s
                task.progress.eta_s = progress.eta_s
                self._changed()

            try:
                if need.tensors:
                    await task.member.send_weights(need, self.planned.model, sent)
            except PeerLostError:
                if attempt == STREAM_ATTEMPTS:
                    raise
                logger.info("weights link broke, going on name=%s", task.progress.name)
                await asyncio.sleep(STREAM_PAUSE_S * attempt)
            else:
                return need.activation_port
        raise AssertionError("the loop ends by returning or raising")

    async def _load(self, task: Task, neighbours: Neighbours) -> int:
        def loaded(fraction: float) -> None:
            task.progress.loaded = fraction
            self._changed()

        try:
            tokens = await task.member.load(task.assign, self.planned.model, neighbours, loaded)
        except (IntegrityError, RemoteError) as error:
            if error.code != "integrity" and error.data.get("kind") != "integrity":
                raise
            # A file in its store was damaged: it threw it away, and gets it again.
            await self._give(task)
            tokens = await task.member.load(task.assign, self.planned.model, neighbours, loaded)
        loaded(1.0)
        return tokens

    async def stop(self, *, unload: bool = True) -> None:
        """Take the plan out of force; members that are gone are not waited for."""
        if self.pipeline is not None and self._running is not None:
            self.pipeline.shut()
            self._running.cancel()
            await asyncio.wait([self._running])
        if unload:
            results = await asyncio.gather(
                *(task.member.unload(self.epoch) for task in self.tasks), return_exceptions=True
            )
            for task, result in zip(self.tasks, results, strict=True):
                if isinstance(result, PotluckError):
                    logger.info("unload of %s: %s", task.progress.name, result)
                elif isinstance(result, BaseException):
                    raise result


def _missing(assign: Assign, need: Need) -> int:
    """The bytes that a computer says it lacks of what it was assigned.

    Raises:
        RemoteProtocolError: it asks for what is not its.
    """
    sizes = {info.digest: info.nbytes for info in assign.tensors}
    if any(tensor.offset > sizes.get(tensor.digest, -1) for tensor in need.tensors):
        raise RemoteProtocolError("It asks for weights that it was not assigned.")
    return sum(sizes[tensor.digest] - tensor.offset for tensor in need.tensors)


async def _named(task: Task, step: Coroutine[None, None, _T]) -> _T:
    """An error of one of several computers says which one it is about."""
    try:
        return await step
    except PotluckError as error:
        name = task.progress.name
        if name not in error.message:
            error.message = f"{name}: {error.message}"
            error.args = (error.message,)
        raise


async def _together(steps: Iterable[Coroutine[None, None, _T]]) -> list[_T]:
    """Run all at once; the first that fails ends the others, and its error is ours."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(step) for step in steps]
    except ExceptionGroup as failed:
        raise failed.exceptions[0] from None
    return [task.result() for task in tasks]


def _at_port(addresses: Sequence[Address], port: int) -> tuple[Address, ...]:
    return tuple(Address(host=address.host, port=port) for address in addresses)


def tensor_info(entry: TensorEntry) -> TensorInfo:
    """A tensor of a manifest as the wire names it."""
    return msgspec.convert(entry, TensorInfo, from_attributes=True)
