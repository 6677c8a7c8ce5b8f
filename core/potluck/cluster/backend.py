"""The node behind its HTTP server: it answers every request of the local API and of `/v1`."""

import asyncio
import os
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AbstractContextManager, aclosing, suppress
from dataclasses import dataclass

from potluck import __version__
from potluck.api.backend import Holder
from potluck.api.events import Finished, GenerationEvent, Tokens
from potluck.api.prompts import GenerationRequest, TokensRequest
from potluck.api.values import schema
from potluck.api.values.benching import BenchProgress, BenchRequest
from potluck.api.values.doctor import Diagnosis
from potluck.api.values.engine import Engine, EngineRequest
from potluck.api.values.gpus import GpuRequest
from potluck.api.values.network import NetworkRequest
from potluck.api.values.pairing import Invite, Joined, Pairing
from potluck.api.values.schema import LoadProgress, PlanRequest, PlanView
from potluck.api.values.update import Update, UpdateRequest
from potluck.api.values.weights import Pruned, PruneRequest, VerifyProgress, VerifyRequest
from potluck.cluster.activity import Activity
from potluck.cluster.at_hand import ModelsAtHand
from potluck.cluster.doctor import Doctor
from potluck.cluster.driver.completion import complete, tokens_of
from potluck.cluster.events import NoticeLevel
from potluck.cluster.library import NodeLibrary
from potluck.cluster.listeners import Listeners
from potluck.cluster.loads import bench, progress_of
from potluck.cluster.master.deployment import Deployment
from potluck.cluster.master.master import Master
from potluck.cluster.membership.handover import Handover
from potluck.cluster.membership.membership import Members
from potluck.cluster.membership.named import addresses_of, homes_addresses
from potluck.cluster.membership.pairing import Pairings
from potluck.cluster.notices import Notices
from potluck.cluster.own_gpus import OwnGpus
from potluck.cluster.own_network import OwnNetwork
from potluck.cluster.presence import Presence
from potluck.cluster.runtime.keeper import EngineKeeper
from potluck.cluster.updating.keeper import UpdateKeeper
from potluck.cluster.upkeep import Upkeep
from potluck.cluster.views import (
    ComputerViews,
    load_progress,
    loaded,
    model_state,
    plan_view,
)
from potluck.cluster.worker.lending import LendingSettings
from potluck.cluster.worker.worker import Worker
from potluck.errors import ModelError, NotFoundError, PotluckError, UsageError
from potluck.ids import NodeId
from potluck.net.discovery import Discovery
from potluck.net.transport import show
from potluck.program_keys import ProgramKeys
from potluck.store.registry import LocalModel
from potluck.wire import proofs
from potluck.wire.token import PairingToken


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """The parts of a node that the backend uses."""

    presence: Presence
    network: OwnNetwork
    gpus: OwnGpus
    masters: Callable[[], tuple[str, ...]]  # names of the masters that this computer helps now
    stop: Callable[[], None]
    activity: Activity
    discovery: Discovery
    membership: Members
    worker: Worker
    lending: LendingSettings
    master: Master
    pairings: Pairings
    handover: Handover
    upkeep: Upkeep
    library: NodeLibrary
    doctor: Doctor
    engine: EngineKeeper
    updates: UpdateKeeper
    at_hand: ModelsAtHand
    program_keys: ProgramKeys
    slower: Callable[[], Mapping[NodeId, float]]  # see `DeviceWatch.slower`


class NodeBackend:
    """Implements `potluck.api.backend.Backend` over the parts of a node."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._views = ComputerViews(
            local=parts.membership.local,
            membership=parts.membership,
            master=parts.master,
            pairings=parts.pairings,
            slower=parts.slower,
            medium=parts.network.medium,
        )
        self._listeners = Listeners(self, parts.program_keys)
        self._notices = Notices(parts.activity.touch)
        self._measured: tuple[Deployment, float] | None = None  # tokens/s of the last answer

    # --- state

    def health(self) -> schema.Health:
        return schema.Health(pid=os.getpid(), version=__version__)

    def state(self) -> schema.ClusterState:
        parts, local = self._parts, self._parts.membership.local
        computers = self._views.all(parts.discovery.peers(), parts.worker)
        lease = parts.worker.lease
        lent_model, lent_of = lease.model if lease is not None else ("", 0)
        lent_layers, lent_as = lease.held if lease is not None else (0, "layers")
        return schema.ClusterState(
            node=schema.Node(
                node_id=local.node_id,
                name=local.name,
                version=__version__,
                addresses=tuple(map(show, parts.presence.addresses())),
                role=self.role(),
                home_id=parts.membership.home_id,
                paused=parts.worker.is_paused,
                paused_until=parts.lending.settings.paused_until,
                withheld=parts.worker.withheld,
                rules=parts.lending.settings.rules,
                leaving=parts.worker.is_leaving,
                handed_over=parts.handover.news,
                member_of=parts.presence.others_homes(),
                lent_to=parts.masters(),
                lent_model=lent_model,
                lent_of=lent_of,
                lent_layers=lent_layers,
                lent_as=lent_as,
                memory_limit=parts.lending.settings.memory_limit,
                download_limit_mb=parts.lending.settings.download_limit_mb,
                upload_limit_mbit=parts.lending.settings.upload_limit_mbit,
                idle_unload_s=parts.lending.settings.idle_unload_s,
                network=parts.network.view(),
                gpus=parts.gpus.view(),
            ),
            computers=computers,
            model=model_state(parts.master, self._tokens_per_s()),
            transfers=load_progress(parts.master).nodes,
            pairings=parts.pairings.views(),
            listeners=self._listeners.views(),
            notices=self._notices.all({each.name for each in computers if each.online}),
            hint=parts.discovery.hint() if not parts.membership.connected() else None,
            served=(parts.at_hand.first(),),
            downloads=parts.library.downloads.views(),
            engine=parts.engine.state,
            update=parts.updates.state,
        )

    def role(self) -> schema.Role:
        if self._parts.worker.is_lending:
            return "worker"
        return "master" if self._parts.membership.home_id is not None else "idle"

    async def changed(self, since: int) -> int:
        return await self._parts.activity.changed(since)

    def hold(self, holder: Holder) -> AbstractContextManager[None]:
        return self._parts.activity.hold(holder)

    def notice(self, level: NoticeLevel, text: str) -> None:
        """Show one line to the person at this computer."""
        computers = self._views.all(self._parts.discovery.peers(), self._parts.worker)
        self._notices.add(level, text, frozenset(c.name for c in computers if not c.online))

    def _tokens_per_s(self) -> float | None:
        """How fast the plan in force gave its last answer; None: it has not answered yet."""
        if self._measured is None or self._measured[0] is not self._parts.master.deployment:
            return None
        return self._measured[1]

    # --- computers

    async def pair(self, target: str) -> Pairing:
        addresses = addresses_of(target, self._parts.discovery.peers())
        return await self._parts.pairings.ask(addresses)

    async def decide_pairing(self, pairing_id: str, accept: bool) -> Pairing:
        return await self._parts.pairings.decide(pairing_id, accept)

    async def invite(self) -> Invite:
        token, expires_s = self._parts.pairings.invite(self._parts.presence.addresses())
        self._parts.activity.use()
        return Invite(token=token, expires_s=expires_s)

    async def join(self, token: str) -> Joined:
        parsed = PairingToken.parse(token)
        addresses = homes_addresses(parsed, self._parts.discovery.peers())
        member = await self._parts.pairings.join(parsed, addresses)
        authority = proofs.home_id(member.membership.authority)
        return Joined(home_id=authority, name=member.master_name)

    async def connect(self, address: str) -> None:
        await self._parts.discovery.add_address(address)

    async def forget(self, node_id: str) -> None:
        if not await self._parts.membership.forget(NodeId(node_id)):
            raise NotFoundError("That computer is not one of this home.")
        self._parts.activity.touch()

    async def change_computer(self, node_id: str, change: schema.ComputerChange) -> None:
        parts = self._parts
        if node_id == parts.membership.local.node_id:
            if change.name is not None:
                parts.presence.rename(parts.lending.rename(change.name.strip() or None))
            if change.paused is not None or change.memory is not None:
                request = schema.RoleRequest(paused=change.paused, memory=change.memory)
                parts.lending.set_role(request)
        elif not parts.membership.change(
            NodeId(node_id),
            alias=None if change.name is None else change.name.strip(),
            paused=change.paused,
            memory=change.memory,
        ):
            raise NotFoundError("That computer is not one of this home.")
        parts.activity.touch()

    async def test_link(self, node_id: str) -> schema.LinkTest:
        local, links = self._parts.membership.local, self._parts.master.measurements.links
        connected = self._parts.membership.connected()
        computer = next((c for c in connected if c.node_id == node_id), None)
        if computer is None:
            raise NotFoundError("That computer is not connected, so its link cannot be tested.")
        measured = await links.test(local, computer)
        self._parts.activity.touch()
        return schema.LinkTest(rtt_ms=measured.rtt_ms, bytes_per_s=measured.bytes_per_s)

    async def search(self) -> None:
        await self._parts.discovery.search_again()

    async def examine(self) -> Diagnosis:
        return await self._parts.doctor.examine()

    async def change_engine(self, request: EngineRequest) -> Engine:
        return await self._parts.engine.change(request)

    async def change_update(self, request: UpdateRequest) -> Update:
        return await self._parts.updates.change(request)

    async def set_role(self, request: schema.RoleRequest) -> None:
        self._parts.lending.set_role(request)
        self._parts.library.downloads.limit(self._parts.lending.settings.download_limit_mb)
        if request.worker is not None and not request.while_held:
            self._parts.handover.chosen(worker=request.worker)
        # A prompt that comes next goes another way to a process, and might overtake them.
        await self._parts.lending.settled()

    async def change_network(self, request: NetworkRequest) -> None:
        await self._parts.network.change(request)

    async def use_gpu(self, request: GpuRequest) -> None:
        self._parts.gpus.use(request)

    async def make_main(self, node_id: str, request: schema.MainRequest) -> schema.HandedOver:
        if self._parts.activity.is_held("serve"):
            raise UsageError(
                "`potluck serve` answers programs on this computer. End it before another computer"
                " becomes the main one."
            )
        handover = self._parts.handover
        try:
            return await handover.make_main(NodeId(node_id), stop_answers=request.stop_answers)
        finally:
            if handover.is_helper:  # also if something failed after that
                await self._listeners.close_all()  # a request would load a model here again
            self._parts.activity.touch()

    # --- the model

    async def plan(self, request: PlanRequest) -> PlanView:
        request = self._parts.library.chosen.completed(request)
        return plan_view(await self._parts.master.plan(request), epoch=0)

    async def load(self, request: PlanRequest) -> AsyncGenerator[LoadProgress, None]:
        master = self._parts.master
        request = self._parts.library.chosen.completed(request)
        before = master.deployment
        loading = asyncio.create_task(master.load(request))
        async with aclosing(progress_of(loading, master, self._parts.activity)) as events:
            async for progress in events:
                yield progress
        try:
            deployment = await loading
        except (ModelError, UsageError):
            raise  # it will never be loaded
        except PotluckError:
            await self._want(request)
            raise
        await self._parts.at_hand.words.of(
            deployment.planned.model
        )  # a broken tokenizer is an error of the load
        await self._remember(request, deployment.planned.model)
        # The view is of this deployment: the master may have begun the next one already.
        yield loaded(deployment, was_there=deployment is before)

    async def _want(self, request: PlanRequest) -> None:
        """Keep which model was chosen, though it could not be loaded: the guide does not answer for it."""
        if request.model is None:
            return
        with suppress(UsageError):
            path = await asyncio.to_thread(self._parts.library.known.find, request.model)
            self._parts.library.chosen.want(request, path)
            self._parts.activity.touch()

    async def _remember(self, request: PlanRequest, model: LocalModel) -> None:
        """Keep which model was chosen and, if it would not be found without, where it is."""
        if request.model is None or model.folder is None:
            return
        library = self._parts.library
        library.chosen.note(request, model)
        found = await asyncio.to_thread(library.known.list)
        if model.folder.absolute() not in {other.path for other in found}:
            library.known.recent.add(model.folder)
        self._parts.activity.touch()

    async def bench(self, request: BenchRequest) -> AsyncGenerator[BenchProgress, None]:
        with self._parts.lending.computing_with(request.threads):
            members, activity = self._parts.membership, self._parts.activity
            async with aclosing(bench(self._parts.master, members, activity, request)) as events:
                async for progress in events:
                    yield progress

    async def unload(self) -> None:
        await self._parts.master.unload()

    @property
    def library(self) -> NodeLibrary:
        return self._parts.library

    async def verify_models(self, request: VerifyRequest) -> AsyncGenerator[VerifyProgress, None]:
        async with aclosing(self._parts.upkeep.verify(request.model)) as events:
            async for progress in events:
                yield progress

    async def prune_models(self, request: PruneRequest) -> Pruned:
        return await self._parts.upkeep.prune(dry_run=request.dry_run)

    async def served_models(self) -> Sequence[schema.ServedModel]:
        return await self._parts.at_hand.list()

    # --- answers

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[GenerationEvent, None]:
        activity, at_hand = self._parts.activity, self._parts.at_hand
        with activity.hold("request"), at_hand.turn(request.model) as turn:
            async with aclosing(at_hand.loading(turn)) as progress:
                async for step in progress:
                    yield step
            deployment, loaded = await at_hand.loaded(turn)
            async with aclosing(complete(loaded, request)) as events:
                async for event in events:
                    if isinstance(event, Finished) and event.timings.tokens_per_s:
                        self._measured = (deployment, event.timings.tokens_per_s)
                        activity.touch()
                    yield event

    async def tokens(self, request: TokensRequest) -> Tokens:
        at_hand = self._parts.at_hand
        with self._parts.activity.hold("request"), at_hand.turn(request.model) as turn:
            async with aclosing(at_hand.loading(turn)) as progress:
                async for _ in progress:
                    pass
            _, loaded = await at_hand.loaded(turn)
            return await tokens_of(loaded, request.prompt)

    # --- listeners

    async def listen(self, request: schema.ListenRequest) -> schema.Listener:
        opened = await self._listeners.listen(request)
        self._parts.activity.touch()
        return opened

    async def close_listener(self, port: int) -> None:
        await self._listeners.close(port)
        self._parts.activity.touch()

    async def close(self) -> None:
        """Close all listeners and the process for the model's words, because the node ends."""
        await self._listeners.close_all()
        await self._parts.at_hand.words.close()
        await self._parts.library.close()

    async def shutdown(self) -> None:
        self._parts.stop()
