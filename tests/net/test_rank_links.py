"""Ranks that exchange parts of sums, over real sockets and real TLS."""

import asyncio
import threading
from contextlib import asynccontextmanager
from itertools import combinations

import pytest

from potluck.errors import (
    NeedReplayError,
    PeerLostError,
    PeerTimeoutError,
    PotluckError,
    RemoteProtocolError,
)
from potluck.net.link_kind import step_links
from potluck.net.rank_links import RankLinks
from potluck.net.reactor import Reactor
from potluck.net.transport import dial_steps
from potluck.wire.activation_messages import Forward, TensorHeader
from potluck.wire.rank_messages import JoinRanks, Partial

pytestmark = pytest.mark.net

REPLAY = NeedReplayError("Fewer tokens are cached here.", position=5)


@asynccontextmanager
async def group(house, world: int = 2, **options):
    """The ranks of a group; each is connected with each other one."""
    master, worker, home = house.pair()
    accepted: asyncio.Queue = asyncio.Queue()
    links: list[dict] = [{} for _ in range(world)]

    async def on_link(link) -> None:
        accepted.put_nowait(link)
        await link.wait_closed()

    reactor = Reactor()  # it reads none of them
    kind = step_links(reactor)
    async with worker.listening(on_link=on_link, on_pairing=None, kind=kind):
        for low, high in combinations(range(world), 2):
            links[low][high] = await dial_steps(
                [worker.address],
                master.identity,
                home=home,
                peer=worker.identity.node_id,
                me=master.me,
                reactor=reactor,
                purpose="ranks",
            )
            links[low][high].send_nowait(JoinRanks(epoch=1, rank=low))
            links[high][low] = await accepted.get()
            ((joined, _),) = await links[high][low].receive()
            assert joined == JoinRanks(epoch=1, rank=low)
        ranks = [RankLinks(rank, links[rank], **options) for rank in range(world)]
        yield ranks
        for rank in ranks:
            rank.close()
    reactor.close()


@asynccontextmanager
async def pair_of_steps(house):
    """Both ends of a connection on which steps go, and that no reactor serves."""
    master, worker, home = house.pair()
    accepted: asyncio.Queue = asyncio.Queue()

    async def on_link(link) -> None:
        accepted.put_nowait(link)
        await link.wait_closed()

    reactor = Reactor()
    kind = step_links(reactor)
    async with worker.listening(on_link=on_link, on_pairing=None, kind=kind):
        link = await dial_steps(
            [worker.address],
            master.identity,
            home=home,
            peer=worker.identity.node_id,
            me=master.me,
            reactor=reactor,
        )
        yield link, await accepted.get()
        link.close()
    reactor.close()


def part(rank: int, nbytes: int = 4096) -> memoryview:
    return memoryview(bytes([rank]) * nbytes)


def gather(ranks: RankLinks, step: int = 1, number: int = 0, nbytes: int = 4096):
    return asyncio.to_thread(ranks.gather, step, number, part(ranks.rank, nbytes))


@pytest.mark.parametrize(("world", "nbytes"), [(2, 8192), (3, 8192), (2, 4 << 20)])
def test_every_rank_gets_all_parts_in_the_order_of_the_ranks(house, run, world, nbytes) -> None:
    async def main() -> None:
        async with group(house, world) as ranks:
            for number in range(3):
                found = await asyncio.gather(*(gather(r, 1, number, nbytes) for r in ranks))
                for parts in found:
                    assert [bytes(p) for p in parts] == [
                        bytes(part(r, nbytes)) for r in range(world)
                    ]

    run(main())


def test_who_cannot_do_a_step_ends_it_for_all_and_the_next_one_is_done(house, run) -> None:
    async def main() -> None:
        async with group(house, 3) as (zero, one, two):
            waiting = [asyncio.create_task(gather(ranks)) for ranks in (zero, two)]
            one.abort(1, REPLAY)
            for each in waiting:
                with pytest.raises(NeedReplayError) as raised:
                    await each
                assert raised.value.data["position"] == 5

            # what was sent for the first step is still on its way to the others
            found = await asyncio.gather(*(gather(ranks, 2) for ranks in (zero, one, two)))
            assert all(parts == [part(0), part(1), part(2)] for parts in found)

    run(main())


def test_a_part_of_another_size_ends_the_group(house, run) -> None:
    async def main() -> None:
        async with group(house) as (zero, one):
            short = asyncio.create_task(gather(one, nbytes=8))
            with pytest.raises(RemoteProtocolError, match="8 bytes for sum 0, where 4096"):
                await gather(zero)
            with pytest.raises((PeerLostError, RemoteProtocolError)):
                await short
            with pytest.raises(PeerLostError):
                await gather(zero, 2)

    run(main())


def test_a_rank_that_is_gone_ends_the_wait_of_the_others(house, run) -> None:
    async def main() -> None:
        async with group(house, 3) as (zero, one, two):
            waiting = [asyncio.create_task(gather(ranks)) for ranks in (zero, two)]
            one.close()
            for each in waiting:
                with pytest.raises(PeerLostError):
                    await each

    run(main())


def test_a_rank_that_gives_its_part_back_does_not_wait_any_longer(house, run) -> None:
    async def main() -> None:
        async with group(house) as (zero, _):
            waiting = asyncio.create_task(gather(zero))
            await asyncio.sleep(0)
            zero.close()
            with pytest.raises(PeerLostError):
                await waiting

    run(main())


def test_a_silent_rank_is_waited_for_as_long_as_it_is_allowed(house, run) -> None:
    waits: list[str] = []

    class Waiting:
        def __enter__(self) -> None:
            waits.append("began")

        def __exit__(self, *_: object) -> None:
            waits.append("ended")

    async def main() -> None:
        async with group(house, patience_s=0.2, waiting=Waiting) as (zero, _):
            with pytest.raises(PeerTimeoutError, match="hangs"):
                await gather(zero)
            with pytest.raises(PotluckError):
                await gather(zero, 2)
        assert waits == ["began", "ended"]

    run(main())


def test_a_rank_that_goes_without_reading_its_part_does_not_hold_up_the_sum(
    house, run, monkeypatch
) -> None:
    """Its own part is here, and the rest of what it was to get never leaves."""
    nbytes, find, has_arrived = 32 << 20, RankLinks._part, threading.Event()

    def part_of(*arguments) -> memoryview | None:
        if (found := find(*arguments)) is not None:
            has_arrived.set()
        return found

    async def main() -> None:
        monkeypatch.setattr(RankLinks, "_part", part_of)
        async with group(house, patience_s=60) as (zero, one):
            waiting = asyncio.create_task(gather(zero, nbytes=nbytes))
            link = one._links[0]
            link.send_nowait(Partial(rank_step=1, number=0), part(1, nbytes))
            async with asyncio.timeout(30):
                while not has_arrived.is_set():
                    link.send_backlog()
                    await asyncio.sleep(0)
                one.close()
                assert [len(each) for each in await waiting] == [nbytes, nbytes]
                with pytest.raises(PeerLostError):
                    await gather(zero, 2)

    run(main())


def test_a_silent_rank_is_not_waited_for_longer_because_another_one_is_gone(house, run) -> None:
    async def main() -> None:
        async with group(house, 3, patience_s=0.3) as (zero, one, _):
            one._links[0].send_nowait(Partial(rank_step=1, number=0), part(1))
            one.close()
            async with asyncio.timeout(30):
                with pytest.raises(PeerTimeoutError):
                    await gather(zero)

    run(main())


def test_what_a_rank_does_not_take_at_once_of_a_step_leaves_while_its_part_is_waited_for(
    house, run
) -> None:
    """It computes its part only when it has all."""
    tensor = TensorHeader(dtype="F32", shape=(8192, 1024))
    step = Forward(epoch=1, session="s", step=1, position=0, tensor=tensor, rank_step=1)

    async def main() -> None:
        async with pair_of_steps(house) as (here, there), group(house) as (zero, one):
            leader = RankLinks(0, zero._links, steps=[here], patience_s=20)
            here.send_nowait(step, bytes(32 << 20))
            assert here.has_backlog
            waiting = asyncio.create_task(gather(leader))
            async with asyncio.timeout(30):
                ((received, _),) = await there.receive()
                assert received == step
                await asyncio.gather(waiting, gather(one))

    run(main())


def test_a_rank_that_sends_more_than_is_due_is_not_read_on(house, run) -> None:
    """Otherwise it fills the memory of those that wait for a slow one."""
    nbytes, count = 8 << 20, 6

    async def main() -> None:
        async with group(house, 3, patience_s=1.5) as (zero, one, _):
            link = one._links[0]
            for number in range(count):
                link.send_nowait(Partial(rank_step=9, number=number), bytes(nbytes))
            waiting = asyncio.create_task(gather(zero))
            while not waiting.done():
                link.send_backlog()
                await asyncio.sleep(0)
            with pytest.raises(PeerTimeoutError):
                await waiting
            arrived = [len(payload) for _, payload in zero._arrived[1]]
            assert 0 < len(arrived) < count - 1

    run(main())
