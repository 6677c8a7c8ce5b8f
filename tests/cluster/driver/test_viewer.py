"""A picture is read by another computer, or by the first stage if anything goes wrong there."""

import asyncio
import math
import struct
from collections.abc import Callable

import msgspec
import pytest
from fake_cluster import run

from potluck.cluster.driver.model_text import Picture, Rows
from potluck.cluster.driver.viewer import Viewer
from potluck.errors import (
    EngineError,
    OutOfMemoryError,
    PeerLostError,
    PeerTimeoutError,
    PotluckError,
)
from potluck.ids import SessionId
from potluck.wire.activation_messages import TensorHeader
from potluck.wire.messages import Error, Message, NodeInfo
from potluck.wire.picture_messages import NotRead, ReadPicture, RowsRead

NUMBERS = 3
PICTURE = Picture(
    name="ab" * 32,
    height=8,
    width=12,
    rows=2,
    columns=3,
    mean=(0.5, 0.5, 0.5),
    deviation=(0.5, 0.5, 0.5),
    pixels=bytes(8 * 12 * 3),
)
CHAT = SessionId("chat")


class FakeLink:
    """A connection to a stage that says what a test has it say."""

    def __init__(self) -> None:
        self.sent: list[Message] = []
        self.is_closed = False
        self._end = asyncio.Event()
        self._receiver: Callable[[Message, memoryview], None] | None = None

    @property
    def peer(self) -> NodeInfo:
        return NodeInfo(node_id="0" * 64, name="Gamer", version="0", os="Linux", arch="x")

    def send_nowait(self, message: Message, payload: bytes = b"") -> None:
        if self.is_closed:
            raise PeerLostError("It is gone.")
        self.sent.append(message)

    def deliver_to(self, receiver: Callable[[Message, memoryview], None]) -> None:
        self._receiver = receiver

    def say(self, message: Message, payload: bytes = b"") -> None:
        assert self._receiver is not None
        self._receiver(message, memoryview(payload))

    async def wait_closed(self) -> None:
        await self._end.wait()

    def close(self) -> None:
        self.is_closed = True
        self._end.set()


def rows(first: int, count: int, **changes: object) -> tuple[RowsRead, bytes]:
    header = TensorHeader(dtype="F32", shape=(count, NUMBERS))
    message = RowsRead(epoch=1, picture=PICTURE.name, first=first, total=6, tensor=header)
    return msgspec.structs.replace(message, **changes), bytes([first]) * (4 * NUMBERS * count)


class Bench:
    """A viewer, and its connection."""

    def __init__(self, limit_s: float = 10.0) -> None:
        self.link = FakeLink()
        self.viewer = Viewer(self.link, epoch=1, numbers=NUMBERS, name="Gamer", limit_s=limit_s)
        self._running = asyncio.create_task(self.viewer.run())

    def read(self, picture: Picture = PICTURE) -> "asyncio.Task[list[Rows]]":
        return asyncio.create_task(self._read(picture))

    async def _read(self, picture: Picture) -> list[Rows]:
        return list(await self.viewer._read(CHAT, picture))

    async def asked(self) -> None:
        while not self.link.sent:  # noqa: ASYNC110
            await asyncio.sleep(0)


def test_rows_come_in_parts_and_in_their_order() -> None:
    async def main() -> None:
        bench = Bench()
        reading, again = bench.read(), bench.read()
        await bench.asked()
        (asked,) = bench.link.sent  # it is read once for both
        assert isinstance(asked, ReadPicture)
        assert asked.tensor.shape == (8, 12, 3)
        bench.link.say(*rows(0, 4))
        bench.link.say(*rows(4, 2))
        found = await reading
        assert [some.tensor.shape for some in found] == [(4, 3), (2, 3)]
        assert [some.data for some in found] == [rows(0, 4)[1], rows(4, 2)[1]]
        assert await again == found
        assert bench.viewer.broken is None

    run(main())


@pytest.mark.parametrize(
    "wrong",
    [
        rows(1, 2),
        rows(0, 4, total=7),
        rows(0, 4, tensor=TensorHeader(dtype="F32", shape=(4, 2))),
        rows(0, 7),
        (rows(0, 4)[0], struct.pack("<f", math.nan) * 12),
        (rows(0, 4)[0], struct.pack("<f", math.inf) + bytes(44)),
    ],
)
def test_rows_that_are_not_those_of_the_picture_end_it(wrong: tuple[RowsRead, bytes]) -> None:
    async def main() -> None:
        bench = Bench()
        reading = bench.read()
        await bench.asked()
        bench.link.say(*wrong)
        with pytest.raises(EngineError, match="not those of the picture"):
            await reading
        assert bench.link.is_closed
        with pytest.raises(EngineError, match="not those of the picture"):
            await bench.read()

    run(main())


def test_what_was_not_asked_for_is_passed_over() -> None:
    async def main() -> None:
        bench = Bench()
        reading = bench.read()
        await bench.asked()
        bench.link.say(*rows(0, 6, picture="cd" * 32))
        bench.link.say(*rows(0, 6, epoch=2))
        bench.link.say(*rows(0, 6))
        assert len(await reading) == 1
        bench.link.say(*rows(0, 6))
        assert bench.viewer.broken is None

    run(main())


def test_a_picture_that_cannot_be_read_there_ends_nothing_else() -> None:
    async def main() -> None:
        bench = Bench()
        reading = bench.read()
        await bench.asked()
        bench.link.say(NotRead(epoch=1, picture=PICTURE.name, kind="out_of_memory", message="No."))
        with pytest.raises(OutOfMemoryError):
            await reading
        assert bench.viewer.broken is None
        other = bench.read(msgspec.structs.replace(PICTURE, name="cd" * 32))
        while len(bench.link.sent) < 2:  # noqa: ASYNC110
            await asyncio.sleep(0)
        bench.link.say(*rows(0, 6, picture="cd" * 32))
        assert await other

    run(main())


def test_one_that_refuses_two_pictures_in_a_row_is_asked_for_no_more() -> None:
    async def main() -> None:
        bench = Bench()
        for is_read in (False, True, False, False):
            assert bench.viewer.broken is None
            bench.link.sent.clear()
            reading = bench.read()
            await bench.asked()
            if is_read:
                bench.link.say(*rows(0, 6))
                assert await reading
                continue
            no = NotRead(epoch=1, picture=PICTURE.name, kind="out_of_memory", message="No.")
            bench.link.say(no)
            with pytest.raises(OutOfMemoryError):
                await reading
        assert isinstance(bench.viewer.broken, OutOfMemoryError)
        assert bench.link.is_closed

    run(main())


@pytest.mark.parametrize("end", ["closed", "error", "silent"])
def test_nobody_waits_for_a_computer_that_is_lost_or_silent(end: str) -> None:
    kinds: dict[str, type[PotluckError]] = {
        "closed": PeerLostError,
        "error": EngineError,
        "silent": PeerTimeoutError,
    }

    async def main() -> None:
        bench = Bench(limit_s=0.01 if end == "silent" else 10.0)
        reading = bench.read()
        await bench.asked()
        if end == "closed":
            bench.link.close()
        elif end == "error":
            bench.link.say(Error(kind="engine", message="Broken."))
        with pytest.raises(kinds[end]):
            await reading
        assert bench.viewer.broken is not None
        assert bench.link.is_closed
        with pytest.raises(kinds[end]):
            await bench.read()

    run(main())


def test_who_gives_up_a_picture_leaves_it_to_the_others() -> None:
    async def main() -> None:
        bench = Bench()
        first, second = bench.read(), bench.read()
        await bench.asked()
        first.cancel()
        await asyncio.wait([first])
        bench.link.say(*rows(0, 6))
        assert await second

    run(main())
