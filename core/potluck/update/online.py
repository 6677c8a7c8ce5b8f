"""Asks the server of releases for the newest one: one small file, over HTTPS. Blocking, on a thread."""

import time
from collections.abc import Callable
from typing import Final

import httpx

from potluck.errors import HubError, OfflineError
from potluck.runtime.download import open_client
from potluck.runtime.lock import checked_address
from potluck.update.envelope import MOST_BYTES

ANSWER_S: Final = 20.0  # without a byte
WHOLE_S: Final = 30.0  # for all of it: a server may send a byte now and then for ever
_HOW: Final = "Check the Internet connection and try again later."


def newest(index: str, *, clock: Callable[[], float] = time.monotonic) -> bytes:
    """What the server has at this address, unread.

    Raises:
        OfflineError: nothing answers, or not in time.
        HubError: it answers with something else.
    """
    ends_at = clock() + WHOLE_S

    def go_on(_: object) -> None:
        if clock() > ends_at:
            raise OfflineError(f"The server of releases is too slow. {_HOW}")

    try:
        client = open_client(ANSWER_S)
        client.event_hooks = {"response": [go_on]}  # also where it is sent on to another address
        with client, client.stream("GET", checked_address(index)) as answer:
            if answer.status_code != httpx.codes.OK:
                raise HubError(
                    f"The server of releases answers with status {answer.status_code}. Try again later."
                )
            return _read(answer, go_on)
    except httpx.TransportError as error:
        raise OfflineError(f"The server of releases does not answer. {_HOW}") from error
    except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
        raise HubError(f"The server of releases answers with something else. {_HOW}") from error


def _read(answer: httpx.Response, go_on: Callable[[object], None]) -> bytes:
    data = bytearray()
    for piece in answer.iter_bytes():
        go_on(piece)
        data += piece
        if len(data) > MOST_BYTES:
            raise HubError(f"The server of releases answers with something else. {_HOW}")
    return bytes(data)
