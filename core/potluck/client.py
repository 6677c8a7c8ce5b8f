"""Talk to this computer's node over its local API, as the commands do.

All functions block. The module is small and uses only the standard library and msgspec: `potluck
--version` must not wait for an event loop, and nothing here ever waits for torch. Every method is
one request of `potluck.api.values.schema`. An error of the node is raised here as the same `PotluckError`.
`potluck.launch` finds or starts the node.
"""

import http.client
import socket
import threading
from collections.abc import Callable, Generator
from contextlib import closing, contextmanager, suppress
from typing import Literal, TypeVar
from urllib.parse import quote, urlencode

import msgspec

from potluck.api.v1.answer_shapes import ChatChunk
from potluck.api.v1.request_shapes import ChatCompletionRequest, StreamOptions
from potluck.api.values import benching, doctor, engine, gpus, hub, network, schema, update, weights
from potluck.api.values.errors import ApiError, ApiErrorBody, Error, ErrorBody
from potluck.api.values.pairing import (
    Invite,
    Joined,
    JoinRequest,
    Pairing,
    PairingDecision,
    PairingRequest,
)
from potluck.errors import PotluckError, UsageError, rebuild

REQUEST_S = 30.0  # a plan may need measurements first; everything else answers at once
SILENCE_S = 35.0  # three missed heartbeats of an event stream
HAND_OVER_S = (
    180.0  # the model is freed, the other one answers, and helpers pair, each with a deadline
)
PAIRING_S = 90.0  # four exchanges of two programs, each with a deadline of its own
HUB_S = 100.0  # the node gives the Hub 45 seconds, twice
PREFILL_S = 600.0  # the first token of a very long prompt on slow computers

Holder = Literal["window", "worker", "serve", "request"]
_T = TypeVar("_T")
_P = TypeVar("_P", schema.LoadProgress, benching.BenchProgress, weights.VerifyProgress)


class NodeGoneError(PotluckError):
    """The node of this computer has ended or does not answer."""

    code = "node_gone"


class NodeSilentError(NodeGoneError):
    """The process of the node lives and does not answer: it is frozen, or has too much to do."""

    code = "node_silent"


class Client:
    """The local API of one node."""

    def __init__(self, port: int, token: str) -> None:
        self.port = port
        self.headers = {
            "Authorization": f"Bearer {token}",
            "Content-Type": "application/json",
            "Connection": "close",
        }

    # --- the node

    def health(self, *, timeout_s: float = REQUEST_S) -> schema.Health:
        return self._get("/health", schema.Health, timeout_s=timeout_s)

    def state(self) -> schema.ClusterState:
        return self._get("/cluster", schema.ClusterState)

    def states(self, holder: Holder | None = None) -> Generator[schema.ClusterState, None, None]:
        """Yield the state now and at every change, without an end. Closing it releases the node."""
        path = f"/cluster/events?holder={holder}" if holder else "/cluster/events"
        with closing(self._events("GET", path, timeout_s=SILENCE_S)) as events:
            for data in events:
                yield msgspec.json.decode(data, type=schema.ClusterState)

    @contextmanager
    def hold(self, holder: Holder) -> Generator[None, None, None]:
        """Keep the node, and the model that it has loaded, while the context is open.

        Raises:
            NodeGoneError: there is no node. A node that ends later raises nothing here.
        """
        with closing(self._connection(SILENCE_S)) as connection:
            try:
                connection.connect()
                stream = connection.sock  # the connection drops its socket when the response begins
                response = self._ask(connection, "GET", f"/cluster/events?holder={holder}", None)
                response.readline()  # from its first event on, the node knows this holder
            except (OSError, http.client.HTTPException) as error:
                raise _gone(error) from None
            # Somebody has to read, or the node would block when it sends its next events.
            reader = threading.Thread(target=_read_on, args=[response], name="hold", daemon=True)
            reader.start()
            try:
                yield
            finally:
                with suppress(OSError):  # the node has closed it already
                    stream.shutdown(socket.SHUT_RDWR)
                reader.join()

    def shutdown(self) -> None:
        self._request("POST", "/cluster/shutdown")

    # --- computers

    def pair(self, target: str) -> Pairing:
        request = PairingRequest(target=target)
        return self._post("/cluster/pairings", request, Pairing, timeout_s=PAIRING_S)

    def decide_pairing(self, pairing_id: str, *, accept: bool) -> Pairing:
        decision = PairingDecision(accept=accept)
        return self._post(f"/cluster/pairings/{pairing_id}", decision, Pairing)

    def invite(self) -> Invite:
        return self._post("/cluster/invites", None, Invite)

    def join(self, token: str) -> Joined:
        request = JoinRequest(token=token)
        return self._post("/cluster/join", request, Joined, timeout_s=PAIRING_S)

    def connect(self, address: str) -> None:
        self._request("POST", "/cluster/connect", schema.ConnectRequest(address=address))

    def forget(self, node_id: str) -> None:
        self._request("DELETE", f"/cluster/computers/{node_id}")

    def change_computer(self, node_id: str, change: schema.ComputerChange) -> None:
        self._request("POST", f"/cluster/computers/{node_id}", change)

    def test_link(self, node_id: str) -> schema.LinkTest:
        path = f"/cluster/computers/{node_id}/link"
        return self._post(path, None, schema.LinkTest, timeout_s=PAIRING_S)

    def change_engine(self, request: engine.EngineRequest) -> engine.Engine:
        return self._post("/cluster/engine", request, engine.Engine)

    def change_update(self, request: update.UpdateRequest) -> update.Update:
        return self._post("/cluster/update", request, update.Update)

    def make_main(self, node_id: str, *, stop_answers: bool = False) -> schema.HandedOver:
        path = f"/cluster/computers/{node_id}/main"
        request = schema.MainRequest(stop_answers=stop_answers)
        return self._post(path, request, schema.HandedOver, timeout_s=HAND_OVER_S)

    def examine(self) -> doctor.Diagnosis:
        return self._post("/cluster/doctor", None, doctor.Diagnosis)

    def set_role(self, request: schema.RoleRequest) -> None:
        self._request("POST", "/cluster/role", request)

    def change_network(self, request: network.NetworkRequest) -> None:
        self._request("POST", "/cluster/network", request)

    def use_gpu(self, request: gpus.GpuRequest) -> None:
        self._request("POST", "/cluster/gpus", request)

    # --- models

    def plan(self, request: schema.PlanRequest) -> schema.PlanView:
        answer = self._request("POST", "/cluster/plan", request, timeout_s=PREFILL_S)
        return _decode(answer, schema.PlanView)

    def load(self, request: schema.PlanRequest) -> Generator[schema.LoadProgress, None, None]:
        """Load a model. The last progress is `ready`; closing the generator earlier cancels it.

        Raises:
            PotluckError: the load failed.
        """
        return self._follow("/cluster/model", request, schema.LoadProgress, "loaded the model")

    def bench(
        self, request: benching.BenchRequest
    ) -> Generator[benching.BenchProgress, None, None]:
        """Measure a model. The last progress has the result; closing the generator earlier ends it.

        Raises:
            PotluckError: the measurement failed.
        """
        return self._follow("/cluster/bench", request, benching.BenchProgress, "measured")

    def unload(self) -> None:
        self._request("DELETE", "/cluster/model")

    def models(self) -> list[schema.ModelEntry]:
        return self._get("/cluster/models", list[schema.ModelEntry])

    def recommended(self) -> hub.HubAnswer:
        return self._get("/cluster/hub/recommended", hub.HubAnswer)

    def search_hub(self, words: str) -> hub.HubAnswer:
        path = f"/cluster/hub/search?{urlencode({'query': words})}"
        return self._get(path, hub.HubAnswer, timeout_s=HUB_S)

    def hub_model(self, name: str) -> hub.HubModel:
        return self._get(f"/cluster/hub/models/{quote(name)}", hub.HubModel, timeout_s=HUB_S)

    def set_hub_token(self, token: str) -> hub.HubUser:
        answer = self._request("PUT", "/cluster/hub/token", hub.HubToken(token=token))
        return _decode(answer, hub.HubUser)

    def download(self, request: hub.DownloadRequest) -> hub.Download:
        return self._post("/cluster/downloads", request, hub.Download, timeout_s=HUB_S)

    def change_download(self, download_id: str, action: hub.DownloadAction) -> hub.Download:
        change = hub.DownloadChange(action=action)
        return self._post(f"/cluster/downloads/{download_id}", change, hub.Download)

    def delete_model(self, model: str) -> hub.Deleted:
        request = hub.DeleteRequest(model=model)
        return self._post("/cluster/models/delete", request, hub.Deleted, timeout_s=PREFILL_S)

    def add_folder(self, path: str) -> hub.Found:
        return self._post("/cluster/models/folders", hub.FolderRequest(path=path), hub.Found)

    def verify_models(
        self, request: weights.VerifyRequest
    ) -> Generator[weights.VerifyProgress, None, None]:
        """Check the weights on this computer's disk. The last progress has the result.

        Raises:
            PotluckError: the check failed.
        """
        return self._follow(
            "/cluster/models/verify", request, weights.VerifyProgress, "checked the weights"
        )

    def prune_models(self, request: weights.PruneRequest) -> weights.Pruned:
        answer = self._request("POST", "/cluster/models/prune", request, timeout_s=PREFILL_S)
        return _decode(answer, weights.Pruned)

    def chat(
        self,
        request: ChatCompletionRequest,
        *,
        waits: Callable[[str], None] = lambda _: None,
    ) -> Generator[ChatChunk, None, None]:
        """Stream an answer; closing the generator cancels it.

        Args:
            request: the messages, and how to answer.
            waits: told the place in the queue, as words, while other answers have to end first.
        """

        def comment(text: str) -> None:
            if text.startswith("waiting"):
                waits(text)

        asked = msgspec.structs.replace(
            request, stream=True, stream_options=StreamOptions(include_usage=True)
        )
        events = self._events(
            "POST", "/v1/chat/completions", asked, timeout_s=PREFILL_S, comment=comment
        )
        with closing(events):
            for data in events:
                if data == b"[DONE]":
                    return
                if data.startswith(b'{"error":'):
                    broken = msgspec.json.decode(data, type=ApiErrorBody)
                    raise _from_openai(broken.error, PotluckError)
                yield msgspec.json.decode(data, type=ChatChunk)
        raise NodeGoneError("The node ended in the middle of the answer.")

    # --- HTTP

    def _get(self, path: str, kind: type[_T], *, timeout_s: float = REQUEST_S) -> _T:
        return _decode(self._request("GET", path, timeout_s=timeout_s), kind)

    def _post(self, path: str, body: object, kind: type[_T], *, timeout_s: float = REQUEST_S) -> _T:
        return _decode(self._request("POST", path, body, timeout_s=timeout_s), kind)

    def _request(
        self, method: str, path: str, body: object = None, *, timeout_s: float = REQUEST_S
    ) -> bytes:
        with closing(self._connection(timeout_s)) as connection:
            try:
                return self._ask(connection, method, path, body).read()
            except (OSError, http.client.HTTPException) as error:
                raise _gone(error) from None

    def _events(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        timeout_s: float,
        comment: Callable[[str], None] = lambda _: None,
    ) -> Generator[bytes, None, None]:
        """Yield the `data` of server-sent events. Closing the generator closes the connection.

        Comments are handed to `comment`.
        """
        with closing(self._connection(timeout_s)) as connection:
            try:
                # Closed by itself, too: the connection has handed its socket over to the response.
                with self._ask(connection, method, path, body) as response:
                    for line in response:
                        if line.startswith(b"data: "):
                            yield line[len(b"data: ") :].strip()
                        elif line.startswith(b": "):
                            comment(line[len(b": ") :].decode(errors="replace").strip())
            except (OSError, http.client.HTTPException) as error:
                raise _gone(error) from None

    def _follow(
        self, path: str, body: object, kind: type[_P], what: str
    ) -> Generator[_P, None, None]:
        """Yield the progress of work that the node does, up to the one that is `ready`."""
        with closing(self._events("POST", path, body, timeout_s=SILENCE_S)) as events:
            for data in events:
                progress = msgspec.json.decode(data, type=kind)
                if progress.error is not None:
                    raise as_error(progress.error)
                yield progress
                if progress.state == "ready":
                    return
        raise NodeGoneError(f"The node ended while it {what}.")

    def _connection(self, timeout_s: float) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout_s)

    def _ask(
        self, connection: http.client.HTTPConnection, method: str, path: str, body: object
    ) -> http.client.HTTPResponse:
        data = None if body is None else msgspec.json.encode(body)
        connection.request(method, path, data, self.headers)
        response = connection.getresponse()
        if response.status >= 400:
            raise refusal(response.status, response.read())
        return response


def _read_on(response: http.client.HTTPResponse) -> None:
    """Read and discard until the connection ends."""
    with suppress(OSError, http.client.HTTPException, ValueError), response:
        for _ in response:
            pass


def _decode(body: bytes, kind: type[_T]) -> _T:
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.DecodeError:
        raise NodeGoneError(
            "The node of this computer speaks another version. Restart Potluck."
        ) from None


def _gone(error: Exception) -> NodeGoneError:
    if isinstance(error, TimeoutError):
        return NodeGoneError("The node of this computer does not answer. Restart Potluck.")
    return NodeGoneError("The node of this computer ended. Try again: it will be started anew.")


def refusal(status: int, body: bytes) -> PotluckError:
    """Return the error of an answer with this status."""
    # Errors of the HTTP layer alone (a wrong field, an unknown path) have no class of their own
    # here.
    default = UsageError if status < 500 else PotluckError
    try:
        return as_error(msgspec.json.decode(body, type=ErrorBody).error, default)
    except msgspec.DecodeError:
        pass
    try:
        return _from_openai(msgspec.json.decode(body, type=ApiErrorBody).error, default)
    except msgspec.DecodeError:
        return NodeGoneError(f"The node of this computer answered with status {status}.")


def _from_openai(error: ApiError, default: type[PotluckError]) -> PotluckError:
    return as_error(Error(code=error.code or "", message=error.message), default)


def as_error(error: Error, default: type[PotluckError] = PotluckError) -> PotluckError:
    """Return the error that the node raised: its class is found by the code."""
    return rebuild(error.code, error.message, error.data, default=default)
