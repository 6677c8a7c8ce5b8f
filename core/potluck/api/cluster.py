"""The endpoints `/cluster` and `/health`, which the window and the commands use."""

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing, nullcontext
from typing import TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from potluck.api import benching, schema, weights
from potluck.api.backend import HOLDERS, Backend, Failed, GenerationRequest, Holder, TokensRequest
from potluck.api.endpoint import (
    Endpoint,
    Handler,
    JsonResponse,
    RequestError,
    describe,
    read,
    refuse,
)
from potluck.api.library_api import LibraryApi
from potluck.api.streams import EventStream

logger = logging.getLogger(__name__)

STATE_INTERVAL_S = 0.1  # at most ten states a second; people notice no more

_P = TypeVar("_P", schema.LoadProgress, benching.BenchProgress)


class ClusterApi:
    """The endpoints of `/cluster`."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def routes(self) -> list[Route]:
        def route(
            method: str, path: str, handler: Handler, *, holder: Holder | None = "request"
        ) -> Route:
            hold = nullcontext if holder is None else (lambda: self._backend.hold(holder))
            return Route(path, Endpoint(handler, refuse, hold), methods=[method])

        library = LibraryApi(self._backend.library)
        return [
            *(route(method, path, handler) for method, path, handler in library.handlers()),
            route("GET", "/health", self._health, holder=None),
            route("GET", "/cluster", self._state, holder=None),
            route("GET", "/cluster/events", self._events, holder=None),
            route("POST", "/cluster/pairings", self._pair),
            route("POST", "/cluster/pairings/{id}", self._decide_pairing),
            route("POST", "/cluster/invites", self._invite),
            route("POST", "/cluster/join", self._join),
            route("POST", "/cluster/connect", self._connect),
            route("DELETE", "/cluster/computers/{node_id}", self._forget),
            route("POST", "/cluster/computers/{node_id}", self._change),
            route("POST", "/cluster/computers/{node_id}/link", self._test_link),
            route("POST", "/cluster/doctor", self._examine),
            route("POST", "/cluster/role", self._set_role),
            route("POST", "/cluster/plan", self._plan),
            route("POST", "/cluster/model", self._load),
            route("DELETE", "/cluster/model", self._unload),
            route("POST", "/cluster/models/verify", self._verify),
            route("POST", "/cluster/models/prune", self._prune),
            route("POST", "/cluster/bench", self._bench),
            route("POST", "/cluster/answers", self._answer, holder="serve"),
            route("POST", "/cluster/tokens", self._tokens),
            route("GET", "/cluster/served", self._served),
            route("POST", "/cluster/listeners", self._listen),
            route("DELETE", "/cluster/listeners/{port:int}", self._close_listener),
            route("POST", "/cluster/shutdown", self._shutdown, holder=None),
        ]

    async def _health(self, request: Request) -> Response:
        return JsonResponse(self._backend.health())

    async def _state(self, request: Request) -> Response:
        return JsonResponse(self._backend.state())

    async def _events(self, request: Request) -> Response:
        holder = request.query_params.get("holder")
        known: Holder | None = next((each for each in HOLDERS if each == holder), None)
        if holder is not None and known is None:
            raise RequestError(400, f"holder: one of {', '.join(HOLDERS)}.", param="holder")
        return EventStream(self._states(known), refuse)

    async def _states(self, holder: Holder | None) -> AsyncGenerator[bytes, None]:
        with self._backend.hold(holder) if holder else nullcontext():
            revision = -1  # no state has this revision: the first state is sent at once
            while True:
                revision = await self._backend.changed(revision)
                yield msgspec.json.encode(self._backend.state())
                await asyncio.sleep(STATE_INTERVAL_S)

    async def _pair(self, request: Request) -> Response:
        asked = await read(request, schema.PairingRequest)
        return JsonResponse(await self._backend.pair(asked.target))

    async def _decide_pairing(self, request: Request) -> Response:
        decision = await read(request, schema.PairingDecision)
        pairing_id: str = request.path_params["id"]
        return JsonResponse(await self._backend.decide_pairing(pairing_id, decision.accept))

    async def _invite(self, request: Request) -> Response:
        return JsonResponse(await self._backend.invite())

    async def _join(self, request: Request) -> Response:
        asked = await read(request, schema.JoinRequest)
        return JsonResponse(await self._backend.join(asked.token))

    async def _connect(self, request: Request) -> None:
        asked = await read(request, schema.ConnectRequest)
        await self._backend.connect(asked.address)

    async def _forget(self, request: Request) -> None:
        await self._backend.forget(request.path_params["node_id"])

    async def _change(self, request: Request) -> None:
        change = await read(request, schema.ComputerChange)
        await self._backend.change_computer(request.path_params["node_id"], change)

    async def _test_link(self, request: Request) -> Response:
        return JsonResponse(await self._backend.test_link(request.path_params["node_id"]))

    async def _examine(self, request: Request) -> Response:
        return JsonResponse(await self._backend.examine())

    async def _set_role(self, request: Request) -> None:
        await self._backend.set_role(await read(request, schema.RoleRequest))

    async def _plan(self, request: Request) -> Response:
        return JsonResponse(await self._backend.plan(await read(request, schema.PlanRequest)))

    async def _load(self, request: Request) -> Response:
        asked = await read(request, schema.PlanRequest)
        first = schema.LoadProgress(state="waiting")
        return EventStream(_until_failed(self._backend.load(asked), first), refuse)

    async def _bench(self, request: Request) -> Response:
        asked = await read(request, benching.BenchRequest)
        first = benching.BenchProgress(state="loading")
        return EventStream(_until_failed(self._backend.bench(asked), first), refuse)

    async def _unload(self, request: Request) -> None:
        await self._backend.unload()

    async def _verify(self, request: Request) -> Response:
        asked = await read(request, weights.VerifyRequest)
        return EventStream(self._verify_events(asked), refuse)

    async def _verify_events(self, asked: weights.VerifyRequest) -> AsyncGenerator[bytes, None]:
        """Yield the progress and result of a check. After an error, the last event is `failed`."""
        try:
            async with aclosing(self._backend.verify_models(asked)) as events:
                async for progress in events:
                    yield msgspec.json.encode(progress)
        except Exception as error:  # noqa: BLE001 - the boundary of a request: `describe` logs it
            described = describe(error)
            failed = weights.VerifyProgress(
                state="failed", message=described.message, error=described
            )
            yield msgspec.json.encode(failed)

    async def _prune(self, request: Request) -> Response:
        asked = await read(request, weights.PruneRequest)
        return JsonResponse(await self._backend.prune_models(asked))

    async def _answer(self, request: Request) -> Response:
        asked = await read(request, GenerationRequest)
        return EventStream(self._answer_events(asked), refuse, last_words=_failed)

    async def _answer_events(self, asked: GenerationRequest) -> AsyncGenerator[bytes, None]:
        """Yield the events of an answer. An error before the first one is raised."""
        has_begun = False
        try:
            async with aclosing(self._backend.generate(asked)) as events:
                async for event in events:
                    has_begun = True
                    yield msgspec.json.encode(event)
        except Exception as error:
            if not has_begun:
                raise
            yield _failed(error)

    async def _tokens(self, request: Request) -> Response:
        return JsonResponse(await self._backend.tokens(await read(request, TokensRequest)))

    async def _served(self, request: Request) -> Response:
        return JsonResponse(await self._backend.served_models())

    async def _listen(self, request: Request) -> Response:
        return JsonResponse(await self._backend.listen(await read(request, schema.ListenRequest)))

    async def _close_listener(self, request: Request) -> None:
        await self._backend.close_listener(request.path_params["port"])

    async def _shutdown(self, request: Request) -> None:
        await self._backend.shutdown()


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
