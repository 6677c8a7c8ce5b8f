"""A client that follows the stream of one answer, and notes when each token came."""

import http.client
import json
import socket
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from faults.host import NodeClient, TooLateError
from faults.judging import Answer
from potluck.errors import PotluckError

SILENCE_S = 30.0  # of the connection: the harness gives up earlier, by its own deadline
DATA, QUEUED = b"data: ", b": waiting"


class Stream(threading.Thread):
    """Asks `POST /v1/completions`, and reads to the end. `answer` may be read meanwhile.

    Args:
        client: the node that is asked.
        request: the body.
        again: returns the node that takes its place if it ends. That one is asked for the rest.
    """

    def __init__(
        self,
        client: NodeClient,
        request: Mapping[str, object],
        again: Callable[[], NodeClient] | None = None,
    ) -> None:
        super().__init__(daemon=True)
        self.answer = Answer(asked_at=time.monotonic())
        self._client, self._request, self._again = client, request, again
        self._connection = client._connection(SILENCE_S)
        self._socket: socket.socket | None = None
        self.start()

    def run(self) -> None:
        try:
            self._follow_to_its_end()
            while self._again is not None and self.answer.is_cut_off:
                self._client = self._again()
                self._request = {**self._request, "known_token_ids": list(self.answer.ids)}
                self._connection = self._client._connection(SILENCE_S)
                self._follow_to_its_end()
        except (PotluckError, TooLateError):
            pass  # nothing takes its place
        finally:
            self.answer.ended_at = time.monotonic()

    def _follow_to_its_end(self) -> None:
        try:
            self._follow()
        except (OSError, ValueError, http.client.HTTPException):
            pass  # the end of the connection: `judge` says what it means
        finally:
            self._connection.close()

    def _follow(self) -> None:
        self._connection.connect()
        self._socket = self._connection.sock  # the connection drops it when the response begins
        self._connection.request(
            "POST", "/v1/completions", json.dumps(self._request), self._client.headers
        )
        response = self._connection.getresponse()
        if response.status >= 400:
            self._take_error(json.loads(response.read()))
            return
        for line in response:
            if line.startswith(DATA):
                self._take(line.removeprefix(DATA).strip())
            elif line.startswith(QUEUED):
                self.answer.told.append(time.monotonic())

    def _take(self, data: bytes) -> None:
        if data == b"[DONE]":
            self.answer.done = True
            return
        event = json.loads(data)
        if "error" in event:
            self._take_error(event)
            return
        for choice in event["choices"]:
            self.answer.text += choice["text"]
            if ids := choice.get("token_ids"):
                self.answer.ids += ids
                self.answer.times.append(time.monotonic())

    def _take_error(self, event: Mapping[str, Any]) -> None:
        self.answer.error = str(event["error"]["message"])
        self.answer.code = event["error"]["code"]

    def give_up(self) -> None:
        """Close the connection because nothing has come for too long."""
        self.answer.given_up = True
        with suppress(OSError):  # it may have ended in the same moment
            if self._socket is not None:
                self._socket.shutdown(socket.SHUT_RDWR)
        self.join()
