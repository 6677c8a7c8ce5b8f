"""Asks the server of releases for the newest one: one small file, over HTTPS. Blocking, on a thread."""

from typing import Final

import httpx

from potluck.errors import HubError, OfflineError
from potluck.runtime.download import open_client
from potluck.runtime.lock import checked_address
from potluck.update.envelope import MOST_BYTES

ANSWER_S: Final = 20.0
_HOW: Final = "Check the Internet connection and try again later."


def newest(index: str) -> bytes:
    """What the server has at this address, unread.

    Raises:
        OfflineError: nothing answers.
        HubError: it answers with something else.
    """
    try:
        with (
            open_client(ANSWER_S) as client,
            client.stream("GET", checked_address(index)) as answer,
        ):
            if answer.status_code != httpx.codes.OK:
                raise HubError(
                    f"The server of releases answers with status {answer.status_code}. Try again later."
                )
            return _read(answer)
    except httpx.TransportError as error:
        raise OfflineError(f"The server of releases does not answer. {_HOW}") from error
    except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
        raise HubError(f"The server of releases answers with something else. {_HOW}") from error


def _read(answer: httpx.Response) -> bytes:
    data = bytearray()
    for piece in answer.iter_bytes():
        data += piece
        if len(data) > MOST_BYTES:
            raise HubError(f"The server of releases answers with something else. {_HOW}")
    return bytes(data)
