"""Connections in memory between both ends of a transfer."""

from collections import deque
from collections.abc import Callable
from typing import Any

from chain_bench import FakeLink

from potluck.wire.messages import Message

NOTHING = memoryview(b"")


class UnderWay:
    """What was sent and has not come."""

    def __init__(self) -> None:
        self.under_way: deque[tuple[Wire, Message, memoryview]] = deque()

    def pass_on(self, most: int = 1 << 30) -> list[type[Message]]:
        """Deliver what is under way, and what is said to it; return what that was."""
        passed: list[type[Message]] = []
        while self.under_way and len(passed) < most:
            link, message, payload = self.under_way.popleft()
            passed.append(type(message))
            link.receive(link, message, payload)
        return passed


class Wire(FakeLink):
    """One end of a connection in memory: what is sent waits until `pass_on`."""

    def __init__(self, ends: UnderWay) -> None:
        super().__init__(role="worker")
        self._ends = ends
        self.other: Wire
        self.receive: Callable[[Any, Message, memoryview], None]

    def send_nowait(self, message: Message, payload: bytes | memoryview = NOTHING) -> None:
        super().send_nowait(message, payload)
        self._ends.under_way.append((self.other, message, memoryview(bytearray(payload))))

    def close(self) -> None:
        self.is_closed = True
