"""Put a plan into force: pack, assign, stream missing weights, load, and connect the driver.

Each step is done on all computers at once. Loading begins when every computer has all its weights.
An error in any step ends the deployment; the stores keep the weights that they have received.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Container, Coroutine, Mapping, Sequence
from typing import Literal, TypeAlias, TypeVar

from potluck.cluster.computer import Computer
from potluck.cluster.device_names import device_of
from potluck.cluster.driver.attached import Room
from potluck.cluster.driver.chain_ends import ActivationLink
from potluck.cluster.driver.pipeline import Pipeline
from potluck.cluster.loss import lost_while_loading
from potluck.cluster.master.ages import check_ages
from potluck.cluster.master.packing import Packing
from potluck.cluster.master.planned import Planned
from potluck.cluster.master.slicing import Checks, sent_slices
from potluck.cluster.master.sources import Sources
from potluck.cluster.master.stage_deployment import Retries, StageDeployment, StageProgress
from potluck.cluster.master.stage_tensors import StageTensors
from potluck.cluster.master.wiring import Wiring
from potluck.errors import PeerLostError, PotluckError, format_bytes
from potluck.ids import NodeId
from potluck.net.reactor import ReactorThread
from potluck.plan.cost import UNKNOWN_LINK
from potluck.plan.stages import StagePlan
from potluck.tasks import end, together
from potluck.wire.fields import line
from potluck.wire.messages import Assign, DeviceId
from potluck.wire.shares import RankShare

logger = logging.getLogger(__name__)

_PACK_SHARE = 0.3  # of the progress bar, if there is something to pack
_STREAM_SHARE = 0.8  # of the rest of the bar, if there is something to send; loading comes last

WITHDRAW_S, MOST_WITHDRAW_S = 0.8, 3.0  # for the steps under way, when layers are given back

_T = TypeVar("_T")
Phase: TypeAlias = Literal["quantising", "streaming", "loading"]


class Deployment:
    """A plan that is in force or being put into force. `pipeline` is None until `start` returns."""

    def __init__(
        self,
        *,
        planned: Planned,
        epoch: int,
        computers: Mapping[NodeId, Computer],
        changed: Callable[[], None],
        packing: Packing | None = None,
        link_rate: Callable[[NodeId], float | None] = lambda node: None,
        retries: Retries | None = None,
        sources: Sources | None = None,
        answering: "Deployment | None" = None,
        before: "Deployment | None" = None,
    ) -> None:
        """Make a deployment that has not begun.

        Args:
            planned: the plan to put into force.
            epoch: number of this deployment.
            computers: the computers of the plan; others are ignored.
            changed: called when the progress changed.
            packing: packs weights before they are sent; None: they are sent as the files have them.
            link_rate: bytes per second of the link to a computer; None: unknown.
            retries: how often weights are sent again when a link breaks.
            sources: says which weights workers send to each other; None: none.
            answering: the deployment to which this one sends the caches of prompts that it reads.
            before: the one from whose stages this one may get the caches of conversations.
        """
        self.planned = planned
        self.epoch = epoch
        self.phase: Phase = "streaming"
        self._packing = packing
        self._link_rate = link_rate
        self._retries = retries if retries is not None else Retries()
        self._sources = sources
        self._answering = answering
        self.moves_caches = False  # whether all stages send and take caches
        self._computers = computers
        self._packing_turn, self._checks = asyncio.Lock(), Checks()
        self._changed = changed
        self.tasks = [
            self._task(stage, computers[stage.node], name)
            for stage, name in zip(planned.plan.stages, planned.stage_names, strict=True)
        ]
        self.wiring = Wiring(
            epoch,
            self.tasks,
            answering=None if answering is None else answering.wiring,
            before=None if before is None else before.wiring,
        )
        self.before = before if self.wiring.before is not None else None
        self.pipeline: Pipeline | None = None
        self.room: Room | None = None  # of the computer with the least memory for a conversation
        self._driver: ReactorThread | None = None  # receives the messages of the last stage
        self._running: asyncio.Task[None] | None = None
        self._starting: asyncio.Task[object] | None = None
        self._failure: PotluckError | None = None
        self.culprit: NodeId | None = None  # the computer whose error ended the start

    def _task(self, stage: StagePlan, computer: Computer, name: str) -> StageDeployment:
        planned, model = self.planned, self.planned.model
        expected = model.config.stage_tensors(
            stage.layers, embedding=stage.embedding, head=stage.head, tower=stage.tower
        )
        if model.seed is not None:
            expected = {}  # every computer makes its own random weights
        sent = sent_slices(model.config, stage, planned.plan, planned.scheme)
        slices = {} if computer.is_local else sent
        tensors = StageTensors(model, planned.scheme, expected, self._packing, slices, self._checks)
        assign = Assign(
            epoch=self.epoch,
            model_id=model.manifest.model_id,
            config=dict(model.manifest.config),
            scheme=planned.scheme,
            cache=planned.cache,
            layers=(stage.layers.start, stage.layers.stop),
            embedding=stage.embedding,
            head=stage.head,
            context=planned.context,
            tensors=(),  # filled in when the stage is assigned
            seed=model.seed,
            device=device_of(stage.device),
            share=RankShare(rank=stage.rank, shares=stage.shares) if stage.is_ranked else None,
            model=line(model.name),
            tower=stage.tower,
        )
        return StageDeployment(
            stage=stage,
            computer=computer,
            assign=assign,
            tensors=tensors,
            progress=StageProgress(node_id=stage.node, name=name),
            changed=self._changed,
            retries=self._retries,
            sources=self._sources,
            workers=self._computers,
        )

    @property
    def fraction(self) -> float:
        """Progress from 0 to 1, for the progress bar."""
        to_pack = sum(task.progress.to_pack for task in self.tasks)
        packed = sum(task.progress.packed for task in self.tasks) / to_pack if to_pack else 1.0
        share = _PACK_SHARE if to_pack else 0.0
        return share * packed + (1 - share) * self._fraction_after_packing

    @property
    def _fraction_after_packing(self) -> float:
        total = sum(task.progress.total for task in self.tasks)
        sent = sum(task.progress.sent for task in self.tasks)
        streamed = sent / total if total else 1.0
        if not all(task.progress.is_assigned for task in self.tasks):
            return 0.0  # the total still grows: the bar would have to move back later
        loaded = sum(task.progress.loaded for task in self.tasks) / len(self.tasks)
        share = _STREAM_SHARE if total else 0.0
        return share * streamed + (1 - share) * loaded

    @property
    def message(self) -> str:
        """The current step, as text for people."""
        model = self.planned.model.name
        if self.planned.model.seed is not None:
            return f"Making random weights of {model}"
        match self.phase:
            case "quantising":
                return f"Quantising {model} to {self.planned.scheme}"
            case "streaming":
                total = sum(task.progress.total for task in self.tasks)
                return f"Sending {model}, {format_bytes(total)}" if total else f"Sending {model}"
            case "loading":
                return f"Loading {model}"

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences for people: which steps took a slower way than planned, and why."""
        problems = {task.tensors.problem for task in self.tasks} - {None}
        return tuple(f"Weights are sent as they are, which takes longer: {why}" for why in problems)

    @property
    def streamed_bytes(self) -> dict[str, int]:
        """How many bytes each computer was sent for this deployment, by its name."""
        sent: Counter[str] = Counter()
        for task in self.tasks:
            sent[task.stage.name] += task.progress.sent
        return dict(sent)

    def uses(self, node_id: NodeId, device: DeviceId | None = None) -> bool:
        """Whether a computer has a stage; with `device`, whether that device of it has one."""
        stages = (task.stage for task in self.tasks if task.stage.node == node_id)
        return any(device in (None, device_of(stage.device)) for stage in stages)

    async def start(self) -> Pipeline:
        """Bring every stage up and connect the driver to both ends.

        Raises:
            PotluckError: the first error of any computer; its message names the computer.
        """
        if self._failure is not None:  # a computer was lost before this began
            raise self._failure
        task = self._starting = asyncio.current_task()
        assert task is not None
        try:
            return await self._start()
        except asyncio.CancelledError:
            if self._failure is None or task.uncancel() > 0:
                raise  # cancelled from outside, not by `fail`
            raise self._failure from None
        finally:
            self._starting = None
            for task in self.tasks:
                task.tensors.release()

    async def _start(self) -> Pipeline:
        self._check_ages()
        await together(self._named(task, self._prepare(task)) for task in self.tasks)
        is_packing = any(task.progress.to_pack for task in self.tasks)
        self._enter("quantising" if is_packing else "streaming")
        self.wiring.ports = await together(self._give(task) for task in self.tasks)
        self._enter("loading")
        loaded = await together(
            self._named(task, task.load(self.wiring.load_of(index)))
            for index, task in enumerate(self.tasks)
        )
        names = [task.progress.name for task in self.tasks]
        rooms = map(Room, (stage.cache_tokens for stage in loaded), names)
        self.room = min(rooms, key=lambda room: room.tokens)
        self.moves_caches = all(stage.moves_caches for stage in loaded)
        first, last = await self._connect()
        self.pipeline = Pipeline(
            epoch=self.epoch,
            first=first,
            last=last,
            stages=len(self.planned.plan.pipeline),
            is_exact_in_chunks=all(stage.is_exact_in_chunks for stage in loaded),
            keeps_sessions=all(stage.keeps_sessions for stage in loaded),
            takes_drafts=all(stage.takes_drafts for stage in loaded),
            stretches=self.planned.model.config.stretches,
        )
        self._running = asyncio.create_task(self.pipeline.run(), name="pipeline")
        return self.pipeline

    async def send_ahead(
        self, runs: Callable[[NodeId], bool], pays: Callable[[int, float], bool]
    ) -> bool:
        """Have the computers that join load their stages, while another plan is in force.

        Args:
            runs: whether a computer has a stage of the plan in force. It is left alone.
            pays: whether so many bytes at so many bytes per second are worth it.

        Returns:
            Whether it pays. If not, and after an error, these computers are free again.
        """
        self._check_ages()
        joining = [task for task in self.tasks if not runs(task.stage.node)]
        try:
            for task in joining:
                await self._prepare(task)
                await task.pack(self._link_rate(task.stage.node))
                await self._named(task, task.ask())
            unknown = UNKNOWN_LINK.bytes_per_s
            sent = [task for task in joining if task.progress.total]
            rates = [self._link_rate(task.stage.node) or unknown for task in sent]
            nbytes = sum(task.progress.total for task in joining)
            is_worth_it = pays(nbytes, min(rates, default=unknown))
            if is_worth_it:
                await together(self._give(task) for task in joining)
                await together(self._named(task, task.load_ahead()) for task in joining)
        except BaseException:
            await self._free(joining)
            raise
        finally:
            for task in self.tasks:
                task.tensors.release()
        if not is_worth_it:
            await self._free(joining)
        return is_worth_it

    def _check_ages(self) -> None:
        answering = () if self._answering is None else self._answering.tasks
        check_ages(self.tasks, self.planned.model.config, self.planned.scheme, answering)

    async def _free(self, tasks: Sequence[StageDeployment]) -> None:
        computers = {task.stage.node: task.computer for task in tasks}
        self.wiring.freed = self.wiring.freed.union(computers)
        await together(unload(computer, self.epoch) for computer in computers.values())

    async def _prepare(self, task: StageDeployment) -> None:
        packing, rate = self._packing, self._link_rate(task.stage.node)
        pays = packing is not None and packing.pays(rate)
        await task.prepare(is_packed_first=pays)

    async def _give(self, task: StageDeployment) -> int:
        # Stages are packed one after the other: the first one is sent while the next one is packed.
        async with self._packing_turn:
            await task.pack(self._link_rate(task.stage.node))
        return await self._named(task, task.give(lambda: self._enter("streaming")))

    def _enter(self, phase: Phase) -> None:
        self.phase = phase
        self._changed()

    async def _connect(self) -> tuple[ActivationLink, ActivationLink]:
        """The driver's links to the first and the last stage; one link if these are the same."""
        driver = ReactorThread("driver")
        links: list[ActivationLink] = []
        try:
            for index in sorted({0, self.wiring.first_rank(len(self.tasks) - 1)}):
                task = self.tasks[index]
                connecting = task.computer.connect(self.wiring.ports[index], driver.reactor)
                links.append(await self._named(task, connecting))
            if self._failure is not None:
                raise self._failure
        except BaseException:
            for link in links:
                link.close()
            driver.reactor.close()
            raise
        driver.start()
        self._driver = driver
        return links[0], links[-1]

    async def reach(self, index: int) -> ActivationLink:
        """A further connection of the driver to a stage, after the start."""
        assert self._driver is not None
        task = self.tasks[index]
        return await self._named(
            task, task.computer.connect(self.wiring.ports[index], self._driver.reactor)
        )

    async def _named(self, task: StageDeployment, step: Coroutine[None, None, _T]) -> _T:
        """Await a step of one stage, and put the stage's name into the message of its error."""
        name = task.progress.name
        try:
            return await step
        except PeerLostError as error:
            self.culprit = self.culprit or task.culprit
            raise lost_while_loading(name, "closed its connection") from error
        except PotluckError as error:
            self.culprit = self.culprit or task.culprit
            if name not in error.message:
                error.message = f"{name}: {error.message}"
                error.args = (error.message,)
            raise

    def fail(self, error: PotluckError) -> None:
        """End the pipeline, or the start that is under way, with this error."""
        self._failure = self._failure or error
        if self.pipeline is not None:
            self.pipeline.fail(error)
        elif self._starting is not None:
            self._starting.cancel()

    async def withdraw(self, error: PotluckError) -> None:
        """End it as `fail` does, after the steps under way: a computer gives its layers back in a moment."""
        if self.pipeline is not None:
            limit_s = max(WITHDRAW_S, 1.5 * self.pipeline.times.last_s)
            await self.pipeline.drain(min(MOST_WITHDRAW_S, limit_s))
        self.fail(error)

    def take_before(self) -> "Deployment | None":
        """The deployment from whose stages this one may get the caches of conversations; it is forgotten here."""
        before, self.before, self.wiring.before = self.before, None, None
        return before

    async def wait_broken(self) -> None:
        """Wait until the pipeline cannot compute any more."""
        assert self.pipeline is not None
        await self.pipeline.wait_broken()

    async def stop(self, *, keep: Container[NodeId] = ()) -> None:
        """Take the plan out of force. Computers that are gone are not waited for.

        Computers in `keep` are not unloaded: they get a stage of the next plan, and the layers that
        it needs stay in memory.
        """
        if self.pipeline is not None and self._running is not None:
            self.pipeline.shut()
            await end(self._running)
        if self._driver is not None:
            self._driver.stop()
        await self._free([task for task in self.tasks if task.stage.node not in keep])


async def unload(computer: Computer, epoch: int) -> None:
    """Have a computer free the layers of a plan. One that does not answer frees them by itself."""
    try:
        await computer.unload(epoch)
    except PotluckError as error:
        logger.info("unload of %s: %s", computer.name, error)
