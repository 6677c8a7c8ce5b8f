"""Two connections wired together, and helpers for a single connection."""

from typing import Any

from frames import feed, fill

from potluck.errors import PotluckError
from potluck.wire.connection import Connection
from potluck.wire.events import Event
from potluck.wire.frame import Buffer, Frame, FrameDecoder, encode
from potluck.wire.lifecycle import Side, State
from potluck.wire.messages import Message, NodeInfo, Purpose


def node(letter: str, version: str = "0.1.0") -> NodeInfo:
    return NodeInfo(
        node_id=letter * 64, name=f"Computer {letter}", version=version, os="Linux", arch="x86_64"
    )


def receive(connection: Connection, data: Buffer, now: float) -> None:
    """Give a connection all of these bytes."""
    fill(connection.get_buffer, lambda count: connection.buffer_updated(count, now), data)


class Pair:
    """Two connections, their events and errors, and a clock."""

    def __init__(
        self,
        purpose: Purpose = "control",
        *,
        dialler: dict[str, Any] | None = None,
        listener: dict[str, Any] | None = None,
    ) -> None:
        self.now = 100.0
        self.a = Connection(
            Side.DIALLER, node("a"), now=self.now, purpose=purpose, **(dialler or {})
        )
        self.b = Connection(Side.LISTENER, node("b"), now=self.now, **(listener or {}))
        self.events: dict[Connection, list[Event]] = {self.a: [], self.b: []}
        self.errors: dict[Connection, PotluckError] = {}

    def open(self) -> "Pair":
        self.a.start()
        self.carry()
        assert self.a.state is self.b.state is State.OPEN
        for events in self.events.values():
            events.clear()
        return self

    def carry(self, *, piece: int | None = None) -> None:
        """Carry bytes in both directions until neither side has any more to send."""
        while self._carry(self.a, self.b, piece) | self._carry(self.b, self.a, piece):
            pass

    def _carry(self, sender: Connection, to: Connection, piece: int | None) -> bool:
        data = b"".join(bytes(buffer) for buffer in sender.data_to_send())
        step = piece or max(1, len(data))
        for start in range(0, len(data), step):
            receive(to, data[start : start + step], self.now)
            self.drain(to)
        return bool(data)

    def drain(self, connection: Connection) -> None:
        try:
            while (event := connection.next_event()) is not None:
                self.events[connection].append(event)
        except PotluckError as error:
            self.errors[connection] = error


def bytes_of(*messages: Message) -> bytes:
    return b"".join(encode(message)[0] for message in messages)


def sent_by(connection: Connection) -> list[Message]:
    decoder = FrameDecoder(1 << 26)
    for buffer in connection.data_to_send():
        feed(decoder, bytes(buffer))
    messages: list[Message] = []
    while (event := decoder.next_event()) is not None:
        assert isinstance(event, Frame)
        messages.append(event.message)
    return messages


def silent_for(connection: Connection, start: float, seconds: float) -> list[Event]:
    """Let time pass. `tick` returns when to call it next, and is called then, as by a real shell."""
    events: list[Event] = []
    when = connection.tick(start)
    while when is not None and when <= start + seconds:
        when = connection.tick(when)
        while (event := connection.next_event()) is not None:
            events.append(event)
    return events
