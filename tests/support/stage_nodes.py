"""Real stage processes of a home, and a driver that sends them steps."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import psutil
import shared_kernels

from potluck.cluster.driver.generation import Generator
from potluck.cluster.driver.pipeline import Pipeline
from potluck.cluster.driver.token import Token, Usage
from potluck.cluster.master.stage_tensors import tensor_info
from potluck.cluster.processes.handle import StageHandle
from potluck.cluster.processes.messages import (
    LoadProgress,
    LoadStage,
    StageLoaded,
    StageSettings,
    Start,
    TensorFile,
)
from potluck.cluster.processes.stage_process import HandleTimes
from potluck.errors import PotluckError
from potluck.ids import Digest, HomeId, SessionId
from potluck.net.identity import Identity
from potluck.net.reactor import Reactor, ReactorThread
from potluck.net.transport import Link, StepLink, dial, dial_steps
from potluck.store.registry import LocalModel
from potluck.wire.activation_messages import Result, Sampling
from potluck.wire.messages import Address, Hop, NodeInfo, Purpose, StepFailed

CHAT = SessionId("chat")
PROMPT = [3, 1, 4, 1, 5, 9, 2, 6]

KEY = "ab" * 32  # of all plans


class StageNode:
    """A computer of the home with its stage process."""

    def __init__(
        self,
        name: str,
        folder: Path,
        master: Identity | None = None,
        times: HandleTimes | None = None,
    ) -> None:
        self.name = name
        self.times = times
        self.identity = Identity.load_or_create(folder / "identity", name)
        self.log = folder / "engine.log"
        self.sessions = folder / "sessions"
        self.failures: list[StepFailed] = []
        self.exits: list[PotluckError] = []
        if master is None:
            self.home: HomeId = self.identity.create_home("home").home_id
        else:
            home = master.create_home("home")
            self.home = home.home_id
            self.identity.add_home(
                ca_pem=home.ca_pem,
                certificate_pem=master.issue(self.identity.certificate_der),
                name=home.name,
                master=master.node_id,
            )
        self.handle = self.new_handle()

    def new_handle(self) -> StageHandle:
        return StageHandle(
            Start(
                identity_folder=str(self.identity.folder),
                me=self.me,
                threads=1,
                sessions_folder=str(self.sessions),
                sessions_limit=1 << 30,
                kernels_folder=shared_kernels.name(),
            ),
            log_path=self.log,
            on_step_failed=self.failures.append,
            on_changed=lambda: None,
            on_exit=self.exits.append,
            times=self.times,
        )

    def lend(self, memory_limit: int | None) -> None:
        self.handle.change(StageSettings(memory_limit=memory_limit, threads=1))

    def trust_changed(self) -> None:
        self.lend(None)

    async def start(self) -> psutil.Process:
        """Start the stage process and return it."""
        await self.handle.start()
        process = self.handle._process  # pyright: ignore[reportPrivateUsage]
        assert process is not None
        return psutil.Process(process.pid)

    @property
    def me(self) -> NodeInfo:
        return NodeInfo(
            node_id=self.identity.node_id, name=self.name, version="0", os="Linux", arch="x"
        )

    @property
    def hop(self) -> Hop:
        return Hop(node_id=self.identity.node_id, addresses=(self.address,))

    @property
    def address(self) -> Address:
        return Address(host="127.0.0.1", port=self.handle.activation_port)

    def stage(
        self,
        model: LocalModel,
        layers: range,
        *,
        next_hop: Hop | None = None,
        epoch: int = 1,
        context: int = 64,
    ) -> LoadStage:
        """Describe a stage of these layers, with embedding or head at the ends of the model."""
        embedding, head = layers.start == 0, layers.stop == model.config.num_layers
        names = model.config.stage_tensors(layers, embedding=embedding, head=head)
        return LoadStage(
            home=self.home,
            epoch=epoch,
            model_id=model.manifest.model_id,
            config=dict(model.manifest.config),
            scheme="f32",
            layers=(layers.start, layers.stop),
            embedding=embedding,
            head=head,
            context=context,
            tensors=tuple(
                TensorFile.of(
                    tensor_info(entry),
                    model.sources[Digest(entry.digest)].path,
                    model.sources[Digest(entry.digest)].offset,
                )
                for entry in model.manifest.stage(names)
            ),
            next_hop=next_hop,
            key=KEY,
        )

    async def load(self, stage: LoadStage) -> tuple[StageLoaded, list[LoadProgress]]:
        progress: list[LoadProgress] = []
        return await self.handle.load(stage, progress.append), progress

    async def connect(self, to: "StageNode", purpose: Purpose = "activations") -> Link:
        """Open a connection from this node to another's stage process."""
        return await dial(
            [to.address],
            self.identity,
            home=self.home,
            peer=to.identity.node_id,
            purpose=purpose,
            me=self.me,
        )

    async def connect_steps(self, to: "StageNode", reactor: Reactor) -> StepLink:
        """Open the connection of a driver to a stage process."""
        return await dial_steps(
            [to.address],
            self.identity,
            home=self.home,
            peer=to.identity.node_id,
            me=self.me,
            reactor=reactor,
        )


@asynccontextmanager
async def chatting(desk: StageNode, model: LocalModel) -> AsyncGenerator[Pipeline, None]:
    """Yield the pipeline of a stage with the whole model, and an open session; unload it after."""
    await desk.load(desk.stage(model, range(model.config.num_layers)))
    async with Driver(desk, desk) as pipeline:
        pipeline.open(CHAT)
        yield pipeline
    await desk.handle.unload()


class Driver:
    """A running pipeline over real connections to loaded stages."""

    def __init__(
        self,
        master: StageNode,
        *stages: StageNode,
        epoch: int = 1,
        is_exact: bool = False,
        keeps_sessions: bool = False,
    ) -> None:
        self._master = master
        self._stages = stages
        self._epoch = epoch
        self._is_exact = is_exact or keeps_sessions
        self._keeps_sessions = keeps_sessions

    async def __aenter__(self) -> Pipeline:
        self._thread = ReactorThread("driver")
        self._thread.start()
        first = await self._master.connect_steps(self._stages[0], self._thread.reactor)
        last = first
        if len(self._stages) > 1:
            last = await self._master.connect_steps(self._stages[-1], self._thread.reactor)
        self.pipeline = Pipeline(
            epoch=self._epoch,
            first=first,
            last=last,
            stages=len(self._stages),
            is_exact_in_chunks=self._is_exact,
            keeps_sessions=self._keeps_sessions,
        )
        self._running = asyncio.create_task(self.pipeline.run())
        return self.pipeline

    async def __aexit__(self, *_: object) -> None:
        self.pipeline.shut()
        self._running.cancel()
        await asyncio.wait([self._running])
        self._thread.stop()


async def answer(
    pipeline: Pipeline, node: StageNode | None = None, *, sampling: Sampling | None = None
) -> list[Token]:
    """Return six tokens after the prompt, which is prefilled in two chunks."""
    generator = Generator()
    generator.attach(pipeline, context=64, chunk_tokens=lambda _: 5)
    stream = generator.tokens(PROMPT, sampling or Sampling(), limit=6, usage=Usage())
    return [token async for token in stream]


async def step(pipeline: Pipeline, position: int, tokens: list[int], number: int = 1) -> Result:
    future = pipeline.start_step(
        CHAT, step=number, position=position, tokens=tokens, sampling=Sampling()
    )
    return (await future.future).result


async def reported(node: StageNode, pipeline: Pipeline) -> None:
    """Pass on the failures that a stage process reports, as its node does."""
    async with asyncio.timeout(10):
        await until_soon(lambda: node.failures)
    for failure in node.failures:
        pipeline.step_failed(failure)


async def until_soon(condition: Callable[[], object]) -> None:
    """Wait for a condition that depends on another process."""
    while not condition():  # noqa: ASYNC110
        await asyncio.sleep(0.005)
