"""A picture is read by another computer, or by the first stage if anything goes wrong there."""

import asyncio
import math
import struct
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from itertools import count

import msgspec
import pytest
from chain_answers import GREEDY, attached, expected
from fake_chain import FakeChain
from fake_cluster import run, until

from potluck.api.events import Reading
from potluck.cluster.driver.generation import Generator
from potluck.cluster.driver.model_text import Picture, Rows
from potluck.cluster.driver.pictures import Pictures
from potluck.cluster.driver.token import Token, Usage
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


def test_the_time_of_a_picture_begins_when_the_one_before_it_is_read() -> None:
    async def main() -> None:
        bench, other = Bench(limit_s=30.0), msgspec.structs.replace(PICTURE, name="cd" * 32)
        first = bench.read()
        await bench.asked()
        bench.viewer._since -= 31.0  # as if the first one had taken too long
        second = bench.read(other)
        await until(lambda: len(bench.link.sent) == 2)
        bench.viewer._take(
            *rows(0, 6)
        )  # at once, before the time of the second is found to be over
        for _ in range(9):
            await asyncio.sleep(0)
        assert first.done()
        assert not second.done()
        assert bench.viewer.broken is None
        bench.link.say(*rows(0, 6, picture=other.name))
        assert await second

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


class SeenPictures(Pictures):
    """Pictures by the position that shows them."""

    def __init__(self, **places: int) -> None:
        self.places, self.kept = places, list[str]()

    def to_show(self, begin: int, end: int) -> Sequence[Picture]:
        return [
            msgspec.structs.replace(PICTURE, name=name)
            for name, place in self.places.items()
            if begin <= place < end and name not in self.kept
        ]

    def keep_rows(self, name: str, rows: Sequence[Rows]) -> None:
        self.kept.append(name)


async def rest(events: AsyncGenerator[object, None]) -> list[int]:
    return [event.token_id async for event in events if isinstance(event, Token)]


def asked_for(link: FakeLink) -> list[str]:
    return [message.picture for message in link.sent if isinstance(message, ReadPicture)]


def test_the_pictures_of_a_step_are_read_while_those_before_it_are_computed() -> None:
    prompt, ticks = list(range(8)), count()
    one, two, last = "1a" * 32, "2b" * 32, "3c" * 32
    pictures = SeenPictures(**{one: 4, two: 5, last: 7})

    async def main() -> None:
        bench, chain = Bench(), FakeChain()
        generator = Generator(clock=lambda: float(next(ticks)))  # progress is told after each step
        async with (
            attached(generator, chain, chunk_tokens=2, is_exact_in_chunks=True) as pipeline,
            aclosing(
                generator.answer(prompt, GREEDY, limit=2, usage=Usage(), pictures=pictures)
            ) as events,
        ):
            generator.view_with(bench.viewer, pipeline)
            read = 0
            while read < 4:
                event = await anext(events)
                read = event.tokens if isinstance(event, Reading) else 0
            assert asked_for(bench.link) == [one, two]  # and nothing has come of them
            going_on = asyncio.create_task(rest(events))
            for name in (one, two, last):
                await until(lambda name=name: name in asked_for(bench.link))
                bench.link.say(*rows(0, 6, picture=name))
            answered = await going_on
        assert answered == expected(prompt, 2)
        assert pictures.kept == [one, two, last] == asked_for(bench.link)
        assert [forward.tensor.shape[0] for forward in chain.forwards][:4] == [2, 2, 2, 2]

    run(main())
