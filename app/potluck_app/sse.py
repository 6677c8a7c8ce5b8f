"""Parse server-sent events from bytes that arrive in pieces of any size. Pure.

https://html.spec.whatwg.org/multipage/server-sent-events.html, as far as the node uses it: `data` lines,
and comments, which keep the connection alive and may say what is waited for.
"""

_LONGEST_COMMENT = 1000  # bytes
MAX_EVENT = 16 << 20  # bytes; a ClusterState of 64 computers is far below 1 MB


class EventTooLargeError(ValueError):
    """An event is larger than any event that a node sends."""


class EventParser:
    """Collects bytes and returns the data of every complete event."""

    def __init__(self) -> None:
        self._rest = bytearray()
        self._data: list[bytes] = []
        self._size = 0
        self._comment = b""

    def take_comment(self) -> str:
        """Return the last comment that came since this was asked; nothing: there was none."""
        comment, self._comment = self._comment, b""
        return comment.decode("utf-8", "replace").strip()

    def feed(self, received: bytes) -> list[bytes]:
        """Add bytes. Return the data of the events that they complete, in order."""
        self._rest += received
        events: list[bytes] = []
        while (end := self._rest.find(b"\n")) >= 0:
            line = bytes(self._rest[:end]).removesuffix(b"\r")
            del self._rest[: end + 1]
            if not line:
                if self._data:
                    events.append(b"\n".join(self._data))
                self._data, self._size = [], 0
            elif line.startswith(b":"):
                self._comment = line[1 : 1 + _LONGEST_COMMENT]
            elif line.startswith(b"data:"):
                value = line[5:].removeprefix(b" ")
                self._data.append(value)
                self._size += len(value)
        if len(self._rest) + self._size > MAX_EVENT:
            raise EventTooLargeError(f"an event of more than {MAX_EVENT} bytes")
        return events
