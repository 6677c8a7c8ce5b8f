"""A node without a cluster, behind the real HTTP server, for the tests of the API, client and CLI.

To its clients it behaves as a node does (states change, loads report progress, generations can be
cancelled), but it computes nothing: its answer to every prompt is its `script`.
"""

import asyncio
import os
import struct
import threading
from collections.abc import AsyncGenerator, Coroutine, Generator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any, TypeVar

import msgspec
from fake_bench import BENCH
from fake_library import FakeLibrary
from starlette.types import ASGIApp

from potluck.api import events, prompts
from potluck.api.backend import Holder
from potluck.api.server import HttpServer, local_app, public_app
from potluck.api.values import benching, doctor, engine, schema, weights
from potluck.api.values import update as updates
from potluck.api.values.gpus import GpuRequest
from potluck.api.values.network import NetworkRequest
from potluck.api.values.pairing import Invite, Joined, Pairing, PairingState
from potluck.api.values.timings import StageTiming, Timings
from potluck.errors import NotFoundError, PotluckError, UsageError

TOKEN = "the-node's-own-token"
MODEL_ID = "ab" * 32
_T = TypeVar("_T")

PLAN = schema.PlanView(
    model_id=MODEL_ID,
    model="guide",
    scheme="f32",
    context=2048,
    epoch=1,
    stages=(
        schema.StageView(
            node="here",
            node_id="1" * 64,
            device="cpu",
            layers=(0, 2),
            embedding=True,
            head=False,
            predicted_ms=1.5,
        ),
        schema.StageView(
            node="there",
            node_id="2" * 64,
            device="cuda:0",
            layers=(2, 6),
            embedding=False,
            head=True,
            predicted_ms=0.5,
        ),
    ),
    first_token_ms=900.0,
    predicted_tokens_per_s=120.0,
    alone={"here": 80.0, "there": None},
    explanation="Both computers together are faster than either alone.",
)
TIMINGS = Timings(
    time_to_first_token_s=0.25,
    tokens_per_s=50.0,
    prefill_tokens=3,
    stages=(StageTiming(node="here", compute_ms=1.0),),
    hop_ms=0.2,
)


def computer(name: str, digit: str, **changes: Any) -> schema.Computer:
    """Return a paired computer that is online; `changes` replace its fields."""
    device = schema.Device(
        kind="cpu", name="Some CPU", memory_total=16 * 10**9, memory_free=8 * 10**9
    )
    values: dict[str, Any] = {
        "node_id": digit * 64,
        "name": name,
        "address": f"10.0.0.{digit}:4711",
        "paired": True,
        "online": True,
        "state": "ready",
        "devices": (device,),
        "rtt_ms": 0.4,
        "bytes_per_s": 1.1e8,
    }
    return schema.Computer(**(values | changes))


class FakeBackend:
    """Its public attributes are set by tests beforehand, or read by them afterwards."""

    def __init__(self) -> None:
        self._servers: dict[int, HttpServer] = {}
        self.library = FakeLibrary(self.update)
        self.reset()

    def reset(self) -> None:
        """Go back to the initial attributes."""
        self.script: Sequence[str] = ("Hello", ", ", "world", ".")
        self.fails_before: PotluckError | Exception | None = None
        self.fails_after: PotluckError | None = None  # raised after the first piece
        self.load_error: PotluckError | None = None
        self.plan_error: PotluckError | None = None
        self.pairing_answer: PairingState = "paired"
        self.endless = False
        self.generated: list[prompts.GenerationRequest] = []
        self.waits: tuple[events.Progress, ...] = ()  # before each answer
        self.benched: list[benching.BenchRequest] = []
        self.loaded = PLAN  # what `load` ends with
        self.planned: list[schema.PlanRequest] = []
        self.roles: list[schema.RoleRequest] = []
        self.networks: list[NetworkRequest] = []
        self.gpus: list[GpuRequest] = []
        self.role_errors: list[PotluckError] = []  # for the next requests, the last one first
        self.verified = weights.Verified(
            models=(weights.VerifiedModel(name="guide", path="/models/guide", nbytes=8_000_000),),
            store=weights.VerifiedStore(tensors=2, nbytes=3_000_000),
        )
        self.prunes: list[weights.PruneRequest] = []
        self.pruned = weights.Pruned(tensors=4, nbytes=5_000_000, deleted=False)
        self.joined: list[str] = []
        self.engine: engine.Engine | None = None  # as `current` says if it is None
        self.engine_requests: list[engine.EngineRequest] = []
        self.update_state: updates.Update | None = None
        self.update_requests: list[updates.UpdateRequest] = []
        self.diagnosis = doctor.Diagnosis(findings=())
        self.connected: list[str] = []
        self.changes: list[tuple[str, schema.ComputerChange]] = []
        self.pieces: list[events.Piece] = []  # of every answer, in place of `script`
        self.embedding: tuple[float, ...] = ()  # of every prompt
        self.tested: list[str] = []
        self.made_main: list[tuple[str, schema.MainRequest]] = []
        self.searches = 0
        self.listened: list[schema.ListenRequest] = []
        self.forgotten: list[str] = []
        self.held: list[str] = []
        self.cancelled = threading.Event()
        self.released = threading.Event()  # a holder other than a request has ended
        self.let_go: dict[str, object] = {"role": "idle"}  # of the node, when `worker` has ended
        self.stopped = threading.Event()
        here = computer("here", "1", is_self=True, rtt_ms=None, bytes_per_s=None, address=None)
        self.current = schema.ClusterState(
            node=schema.Node(node_id="1" * 64, name="here", version="0.0.test"),
            computers=(here,),
            served=(schema.ServedModel(name="guide", created=1700000000, aliases=(MODEL_ID,)),),
        )
        self.library.reset()
        self._revision = 0
        self._wake = asyncio.Event()

    def update(self, **changes: Any) -> None:
        """Change the state. Call it in the server's loop, as `Server.update` does."""
        self.current = msgspec.structs.replace(self.current, **changes)
        self._revision += 1
        self._wake.set()
        self._wake = asyncio.Event()

    # --- the interface to the server

    def health(self) -> schema.Health:
        return schema.Health(pid=os.getpid(), version="0.0.test")

    def state(self) -> schema.ClusterState:
        return msgspec.structs.replace(
            self.current,
            engine=self.engine or self.current.engine,
            update=self.update_state or self.current.update,
        )

    async def changed(self, since: int) -> int:
        while self._revision == since:
            await self._wake.wait()
        return self._revision

    @contextmanager
    def hold(self, holder: Holder) -> Generator[None, None, None]:
        self.held.append(holder)
        try:
            yield
        finally:
            if holder != "request":
                if holder == "worker":
                    self.update(node=msgspec.structs.replace(self.current.node, **self.let_go))
                self.released.set()

    async def pair(self, target: str) -> Pairing:
        found = next((c for c in self.current.computers if target in (c.name, c.node_id)), None)
        if found is None:
            raise NotFoundError(f"There is no computer “{target}” here.")
        pairing = Pairing(
            id="p1", node_id=found.node_id, name=found.name, role="master", state="asking"
        )
        self.update(pairings=(pairing,))
        self.update(pairings=(msgspec.structs.replace(pairing, state="confirm", code="123456"),))
        return pairing

    async def decide_pairing(self, pairing_id: str, accept: bool) -> Pairing:
        for pairing in self.current.pairings:
            if pairing.id == pairing_id:
                state = self.pairing_answer if accept else "refused"
                decided = msgspec.structs.replace(pairing, state=state)
                self.update(pairings=(decided,))
                return decided
        raise NotFoundError("That request to pair is over.")

    async def search(self) -> None:
        self.searches += 1

    async def change_engine(self, request: engine.EngineRequest) -> engine.Engine:
        self.engine_requests.append(request)
        return self.engine or engine.Engine(phase="own", message="PyTorch is there.")

    async def change_update(self, request: updates.UpdateRequest) -> updates.Update:
        self.update_requests.append(request)
        return self.update_state or updates.Update(phase="quiet", message="Nothing newer is known.")

    async def examine(self) -> doctor.Diagnosis:
        return self.diagnosis

    async def invite(self) -> Invite:
        return Invite(token="POT-LUCK", expires_s=600.0)

    async def join(self, token: str) -> Joined:
        self.joined.append(token)
        return Joined(home_id="c" * 64, name="main")

    async def connect(self, address: str) -> None:
        self.connected.append(address)

    async def forget(self, node_id: str) -> None:
        self.forgotten.append(node_id)

    async def change_computer(self, node_id: str, change: schema.ComputerChange) -> None:
        self.changes.append((node_id, change))

    async def test_link(self, node_id: str) -> schema.LinkTest:
        self.tested.append(node_id)
        return schema.LinkTest(rtt_ms=0.5, bytes_per_s=1.1e8)

    async def make_main(self, node_id: str, request: schema.MainRequest) -> schema.HandedOver:
        self.made_main.append((node_id, request))
        return schema.HandedOver(name="laptop", to_follow=("attic",))

    async def set_role(self, request: schema.RoleRequest) -> None:
        if self.role_errors:
            raise self.role_errors.pop()
        self.roles.append(request)
        role = "worker" if request.worker else "idle"
        self.update(node=msgspec.structs.replace(self.current.node, role=role))

    async def change_network(self, request: NetworkRequest) -> None:
        self.networks.append(request)

    async def use_gpu(self, request: GpuRequest) -> None:
        self.gpus.append(request)

    async def plan(self, request: schema.PlanRequest) -> schema.PlanView:
        self.planned.append(request)
        if self.plan_error is not None:
            raise self.plan_error
        return PLAN

    async def load(self, request: schema.PlanRequest) -> AsyncGenerator[schema.LoadProgress, None]:
        self.planned.append(request)
        yield schema.LoadProgress(state="planning", fraction=0.1, message="Planning")
        if self.load_error is not None:
            raise self.load_error
        for sent in (400, 1000):
            transfer = schema.Transfer(
                node_id="2" * 64, name="there", sent=sent, total=1000, bytes_per_s=1e6, eta_s=0.1
            )
            yield schema.LoadProgress(
                state="streaming", fraction=sent / 2000, message="Sending", nodes=(transfer,)
            )
        yield schema.LoadProgress(
            state="ready", fraction=1.0, message="Ready", nodes=(transfer,), plan=self.loaded
        )
        self.update(
            model=schema.ModelState(
                name="guide", model_id=MODEL_ID, state="ready", plan=PLAN, context=2048
            )
        )

    async def bench(
        self, request: benching.BenchRequest
    ) -> AsyncGenerator[benching.BenchProgress, None]:
        self.benched.append(request)
        load = schema.LoadProgress(
            state="streaming", fraction=0.5, message="Making random weights of llama-1b"
        )
        yield benching.BenchProgress(state="loading", fraction=0.5, load=load)
        yield benching.BenchProgress(state="measuring", message="Decoding")
        if self.load_error is not None:
            raise self.load_error
        yield benching.BenchProgress(state="ready", fraction=1.0, result=BENCH)

    async def unload(self) -> None:
        self.update(model=schema.ModelState())

    async def verify_models(
        self, request: weights.VerifyRequest
    ) -> AsyncGenerator[weights.VerifyProgress, None]:
        if request.model == "absent":
            raise UsageError("There is no model 'absent' on this computer.")
        yield weights.VerifyProgress(state="checking", fraction=0.5, message="guide")
        yield weights.VerifyProgress(state="ready", fraction=1.0, result=self.verified)

    async def prune_models(self, request: weights.PruneRequest) -> weights.Pruned:
        self.prunes.append(request)
        return msgspec.structs.replace(self.pruned, deleted=not request.dry_run)

    async def served_models(self) -> Sequence[schema.ServedModel]:
        return self.current.served

    async def generate(
        self, request: prompts.GenerationRequest
    ) -> AsyncGenerator[events.GenerationEvent, None]:
        self.generated.append(request)
        try:
            async for event in self._generate(request):
                yield event
        except (GeneratorExit, asyncio.CancelledError):
            self.cancelled.set()
            raise

    async def _generate(
        self, request: prompts.GenerationRequest
    ) -> AsyncGenerator[events.GenerationEvent, None]:
        for waiting in self.waits:
            yield waiting
        if self.fails_before is not None:
            raise self.fails_before
        given = request.prompt
        ids = given.token_ids if isinstance(given, prompts.TokenPrompt) else (1, 2, 3)
        echo = None
        if request.echo:
            token = events.Candidate(token_id=2, token=b"B", logprob=-0.25)
            scored = (events.ChosenToken(chosen=token, best=(token,)),)
            has_logprobs = request.sampling.logprobs is not None
            echo = events.Echo(text="AB", first=b"A", logprobs=scored if has_logprobs else ())
        embedding = struct.pack(f"<{len(self.embedding)}f", *self.embedding)
        yield events.Started(
            prompt_token_ids=ids,
            cached_tokens=1,
            echo=echo,
            embedding=embedding if request.embeds else b"",
        )
        for piece in self.pieces:
            yield piece
        if self.pieces:
            end = "tool_calls" if any(piece.calls for piece in self.pieces) else "stop"
            yield events.Finished(reason=end, completion_tokens=len(self.pieces), timings=TIMINGS)
            return
        script = self.script if request.max_tokens is None else self.script[: request.max_tokens]
        for number, text in enumerate(script):
            token_id = 100 + number
            chosen = events.Candidate(token_id=token_id, token=text.encode(), logprob=-0.5)
            other = events.Candidate(token_id=7, token=b"\xf0\x9f", logprob=-1.5)
            wanted = request.sampling.logprobs
            probs = (
                ()
                if wanted is None
                else (events.ChosenToken(chosen=chosen, best=(chosen, other)[:wanted]),)
            )
            yield events.Piece(text=text, token_ids=(token_id,), logprobs=probs)
            if self.fails_after is not None:
                raise self.fails_after
        if self.endless:
            await asyncio.Event().wait()
        reason = "stop" if len(script) == len(self.script) else "length"
        yield events.Finished(reason=reason, completion_tokens=len(script), timings=TIMINGS)

    async def tokens(self, request: prompts.TokensRequest) -> events.Tokens:
        """Each byte of a text is a token; 2 is the one for its beginning."""
        match request.prompt:
            case prompts.ChatPrompt(turns):
                raw = "".join(turn.content for turn in turns).encode()
            case prompts.TextPrompt(text, special):
                raw = (b"\x02" if special else b"") + text.encode()
            case prompts.TokenPrompt(ids):
                raw = bytes(ids)
        pieces = tuple(bytes([byte]) for byte in raw)
        text = raw.decode(errors="replace")
        return events.Tokens(token_ids=tuple(raw), pieces=pieces, text=text, context=2048)

    async def listen(self, request: schema.ListenRequest) -> schema.Listener:
        self.listened.append(request)
        app = public_app(self, host=request.host, key=request.key, origins=request.origins)
        server = HttpServer()
        port = await server.start(app, request.host, request.port)
        self._servers[port] = server
        listener = schema.Listener(host=request.host, port=port)
        self.update(listeners=(*self.current.listeners, listener))
        return listener

    async def close_listener(self, port: int) -> None:
        server = self._servers.pop(port, None)
        if server is None:
            raise NotFoundError(f"There is no listener on port {port}.")
        await server.stop()
        self.update(listeners=tuple(x for x in self.current.listeners if x.port != port))

    async def close(self) -> None:
        for server in self._servers.values():
            await server.stop()

    async def shutdown(self) -> None:
        self.stopped.set()


class Server:
    """The fake backend behind the real server, in its own thread."""

    def __init__(self, app: ASGIApp | None = None) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self.backend = self.run(self._make())
        self._http = HttpServer()
        chosen = app or local_app(self.backend, TOKEN)
        self.port: int = self.run(self._http.start(chosen, "127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.port}"

    async def _make(self) -> FakeBackend:
        return FakeBackend()

    def run(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Run a coroutine in the server's loop."""
        future: Future[_T] = asyncio.run_coroutine_threadsafe(work, self._loop)
        return future.result(30)

    def update(self, **changes: Any) -> None:
        async def change() -> None:
            self.backend.update(**changes)

        self.run(change())

    def reset(self) -> None:
        async def forget() -> None:
            self.backend.reset()

        self.run(forget())

    def close(self) -> None:
        self.run(self._http.stop())
        self.run(self.backend.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()


@contextmanager
def serving() -> Generator[Server, None, None]:
    server = Server()
    try:
        yield server
    finally:
        server.close()
