"""The operations of `/cluster` and `/health`, which the window and the commands use."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, nullcontext
from typing import TypeVar

import msgspec

from potluck.api.backend import HOLDERS, Backend, Holder
from potluck.api.events import Failed, GenerationEvent, Tokens
from potluck.api.http.endpoint import RequestError, describe
from potluck.api.http.operations import Operation
from potluck.api.library_api import library_operations
from potluck.api.prompts import GenerationRequest, TokensRequest
from potluck.api.values import benching, schema, weights
from potluck.api.values.doctor import Diagnosis
from potluck.api.values.engine import Engine, EngineRequest
from potluck.api.values.gpus import GpuRequest
from potluck.api.values.network import NetworkRequest
from potluck.api.values.pairing import (
    Invite,
    Joined,
    JoinRequest,
    Pairing,
    PairingDecision,
    PairingRequest,
)
from potluck.api.values.update import Update, UpdateRequest

STATE_INTERVAL_S = 0.1  # at most ten states a second; people notice no more

_P = TypeVar("_P", schema.LoadProgress, benching.BenchProgress, weights.VerifyProgress)


def cluster_operations(backend: Backend) -> Sequence[Operation]:
    """All operations of the local API."""
    return [
        *library_operations(backend.library),
        *_looks(backend),
        *_computers(backend),
        *_models(backend),
        *_answers(backend),
    ]


def _looks(backend: Backend) -> Sequence[Operation]:
    """What is, and the end of the node."""
    return [
        Operation(
            method="GET",
            path="/health",
            does="Whether the node runs.",
            run=lambda _, __: backend.health(),
            gives=schema.Health,
            holder=None,
        ),
        Operation(
            method="GET",
            path="/cluster",
            does="The state of everything.",
            run=lambda _, __: backend.state(),
            gives=schema.ClusterState,
            holder=None,
        ),
        Operation(
            method="GET",
            path="/cluster/events",
            does="The state whenever it changes, at most ten times a second.",
            run=lambda _, at: _states(backend, _holder(at["holder"])),
            gives=schema.ClusterState,
            query={"holder": f"Who looks, and keeps the node from ending: {', '.join(HOLDERS)}."},
            is_stream=True,
            holder=None,
        ),
        Operation(
            method="POST",
            path="/cluster/doctor",
            does="Look for what keeps computers apart.",
            run=lambda _, __: backend.examine(),
            gives=Diagnosis,
        ),
        Operation(
            method="POST",
            path="/cluster/engine",
            does="Install, stop installing or remove the engine. The state has how far it is.",
            run=lambda asked, _: backend.change_engine(asked),
            takes=EngineRequest,
            gives=Engine,
        ),
        Operation(
            method="POST",
            path="/cluster/update",
            does="Look for a newer Potluck, install it, or go back. The state has how far it is.",
            run=lambda asked, _: backend.change_update(asked),
            takes=UpdateRequest,
            gives=Update,
        ),
        Operation(
            method="POST",
            path="/cluster/search",
            does="Look for computers once more, now.",
            run=lambda _, __: backend.search(),
        ),
        Operation(
            method="POST",
            path="/cluster/shutdown",
            does="End the node soon.",
            run=lambda _, __: backend.shutdown(),
            holder=None,
        ),
    ]


def _computers(backend: Backend) -> Sequence[Operation]:
    """Computers join, leave, and are changed."""
    return [
        Operation(
            method="POST",
            path="/cluster/pairings",
            does="Ask a computer to pair by sight.",
            run=lambda asked, _: backend.pair(asked.target),
            takes=PairingRequest,
            gives=Pairing,
        ),
        Operation(
            method="POST",
            path="/cluster/pairings/{pairing_id}",
            does="Say whether both screens show the same digits.",
            run=lambda asked, at: backend.decide_pairing(at["pairing_id"], asked.accept),
            takes=PairingDecision,
            gives=Pairing,
        ),
        Operation(
            method="POST",
            path="/cluster/invites",
            does="Make a token that lets one computer join.",
            run=lambda _, __: backend.invite(),
            gives=Invite,
        ),
        Operation(
            method="POST",
            path="/cluster/join",
            does="Join the home of a token.",
            run=lambda asked, _: backend.join(asked.token),
            takes=JoinRequest,
            gives=Joined,
        ),
        Operation(
            method="POST",
            path="/cluster/connect",
            does="Look for a computer at an address.",
            run=lambda asked, _: backend.connect(asked.address),
            takes=schema.ConnectRequest,
        ),
        Operation(
            method="POST",
            path="/cluster/computers/{node_id}",
            does="Rename, pause or limit a computer.",
            run=lambda asked, at: backend.change_computer(at["node_id"], asked),
            takes=schema.ComputerChange,
        ),
        Operation(
            method="DELETE",
            path="/cluster/computers/{node_id}",
            does="Let a computer in no longer.",
            run=lambda _, at: backend.forget(at["node_id"]),
        ),
        Operation(
            method="POST",
            path="/cluster/computers/{node_id}/link",
            does="Measure the link to a computer now.",
            run=lambda _, at: backend.test_link(at["node_id"]),
            gives=schema.LinkTest,
        ),
        Operation(
            method="POST",
            path="/cluster/computers/{node_id}/main",
            does="Make a computer the main one of the home: this one and the others help it then.",
            run=lambda asked, at: backend.make_main(at["node_id"], asked),
            takes=schema.MainRequest,
            gives=schema.HandedOver,
        ),
        Operation(
            method="POST",
            path="/cluster/role",
            does="Change what this computer does, and its settings.",
            run=lambda asked, _: backend.set_role(asked),
            takes=schema.RoleRequest,
        ),
        Operation(
            method="POST",
            path="/cluster/network",
            does="Choose the networks that Potluck uses, and its port.",
            run=lambda asked, _: backend.change_network(asked),
            takes=NetworkRequest,
        ),
        Operation(
            method="POST",
            path="/cluster/gpus",
            does="Use a GPU of this computer for models, or not any more.",
            run=lambda asked, _: backend.use_gpu(asked),
            takes=GpuRequest,
        ),
    ]


def _models(backend: Backend) -> Sequence[Operation]:
    """A model is planned, loaded, measured; weights are looked after."""
    return [
        Operation(
            method="POST",
            path="/cluster/plan",
            does="Say who would compute what, how fast, and why. Nothing is loaded.",
            run=lambda asked, _: backend.plan(asked),
            takes=schema.PlanRequest,
            gives=schema.PlanView,
        ),
        Operation(
            method="POST",
            path="/cluster/model",
            does="Load a model. The last event is `ready` or `failed`; who goes away before cancels.",
            run=lambda asked, _: _until_failed(
                backend.load(asked), schema.LoadProgress(state="waiting")
            ),
            takes=schema.PlanRequest,
            gives=schema.LoadProgress,
            is_stream=True,
        ),
        Operation(
            method="DELETE",
            path="/cluster/model",
            does="Unload the model.",
            run=lambda _, __: backend.unload(),
        ),
        Operation(
            method="POST",
            path="/cluster/models/verify",
            does="Compute the digests of the weights on this disk again.",
            run=lambda asked, _: _until_failed(
                backend.verify_models(asked), weights.VerifyProgress(state="checking")
            ),
            takes=weights.VerifyRequest,
            gives=weights.VerifyProgress,
            is_stream=True,
        ),
        Operation(
            method="POST",
            path="/cluster/models/prune",
            does="Delete stored weights that nothing needs.",
            run=lambda asked, _: backend.prune_models(asked),
            takes=weights.PruneRequest,
            gives=weights.Pruned,
        ),
        Operation(
            method="POST",
            path="/cluster/bench",
            does="Load a model, measure it and unload it.",
            run=lambda asked, _: _until_failed(
                backend.bench(asked), benching.BenchProgress(state="loading")
            ),
            takes=benching.BenchRequest,
            gives=benching.BenchProgress,
            is_stream=True,
        ),
    ]


def _answers(backend: Backend) -> Sequence[Operation]:
    """What `potluck serve` needs, and listeners for other programs."""
    return [
        Operation(
            method="POST",
            path="/cluster/answers",
            does="Answer a prompt. A stream that breaks off ends with `Failed`.",
            run=lambda asked, _: _answer_events(backend, asked),
            takes=GenerationRequest,
            gives=GenerationEvent | Failed,
            is_stream=True,
            last_words=_failed,
            holder="serve",
        ),
        Operation(
            method="POST",
            path="/cluster/tokens",
            does="The tokens of a prompt.",
            run=lambda asked, _: backend.tokens(asked),
            takes=TokensRequest,
            gives=Tokens,
        ),
        Operation(
            method="GET",
            path="/cluster/served",
            does="Every model that programs can ask for.",
            run=lambda _, __: backend.served_models(),
            gives=tuple[schema.ServedModel, ...],
        ),
        Operation(
            method="POST",
            path="/cluster/listeners",
            does="Open a port for other programs.",
            run=lambda asked, _: backend.listen(asked),
            takes=schema.ListenRequest,
            gives=schema.Listener,
        ),
        Operation(
            method="DELETE",
            path="/cluster/listeners/{port:int}",
            does="Close it.",
            run=lambda _, at: backend.close_listener(at["port"]),
        ),
    ]


def _holder(name: str) -> Holder | None:
    known: Holder | None = next((each for each in HOLDERS if each == name), None)
    if name and known is None:
        raise RequestError(400, f"holder: one of {', '.join(HOLDERS)}.", param="holder")
    return known


async def _states(backend: Backend, holder: Holder | None) -> AsyncGenerator[bytes, None]:
    with backend.hold(holder) if holder else nullcontext():
        revision = -1  # no state has this revision: the first state is sent at once
        while True:
            revision = await backend.changed(revision)
            yield msgspec.json.encode(backend.state())
            await asyncio.sleep(STATE_INTERVAL_S)


async def _answer_events(backend: Backend, asked: GenerationRequest) -> AsyncGenerator[bytes, None]:
    """Yield the events of an answer. An error before the first one is raised."""
    has_begun = False
    try:
        async with aclosing(backend.generate(asked)) as events:
            async for event in events:
                has_begun = True
                yield msgspec.json.encode(event)
    except Exception as error:
        if not has_begun:
            raise
        yield _failed(error)


def _failed(error: Exception) -> bytes:
    """Return the last event of an answer that broke off."""
    return msgspec.json.encode(Failed(error=describe(error)))


async def _until_failed(events: AsyncGenerator[_P, None], last: _P) -> AsyncGenerator[bytes, None]:
    """Yield the progress of work. After an error, the last event is `failed`.

    Args:
        events: the progress.
        last: the event that is taken for the last one if there is none.
    """
    try:
        async with aclosing(events):
            async for last in events:
                yield msgspec.json.encode(last)
    except Exception as error:  # noqa: BLE001 - the boundary of a request: `describe` logs it
        described = describe(error)
        failed = msgspec.structs.replace(
            last, state="failed", message=described.message, error=described
        )
        yield msgspec.json.encode(failed)
