"""Requests, answers and notices on a control link, over real sockets and real TLS."""

import asyncio

import pytest
from net_links import DIGEST, linked

from potluck.errors import (
    LocalProtocolError,
    NotEnoughMemoryError,
    PeerLostError,
    PeerTimeoutError,
    RemoteError,
)
from potluck.net.control_link import serve_control
from potluck.wire.measuring_messages import Profile
from potluck.wire.messages import (
    Error,
    Ping,
    Pong,
    Revoked,
    StepFailed,
    Unload,
    Unloaded,
)

pytestmark = pytest.mark.net


FAILED = StepFailed(epoch=1, session="s", step=1, kind="engine", message="text")


async def serve(link, handler) -> None:
    with pytest.raises(PeerLostError):
        await serve_control(link, handler)


def test_a_request_gets_its_own_answer(house, run) -> None:
    async def handler(message):
        await released[message.epoch].wait()
        return Unloaded(epoch=message.epoch)

    released = {1: asyncio.Event(), 2: asyncio.Event()}

    async def main() -> None:
        async with linked(house) as (ours, theirs), asyncio.TaskGroup() as tasks:
            serving = tasks.create_task(serve(theirs, handler))
            first = tasks.create_task(ours.request(Unload(epoch=1), timeout_s=30))
            second = tasks.create_task(ours.request(Unload(epoch=2), timeout_s=30))
            released[2].set()
            assert (await second).epoch == 2
            released[1].set()
            assert (await first).epoch == 1
            ours.close()
            await serving

    run(main())


@pytest.mark.parametrize(
    ("raised", "kind"),
    [(NotEnoughMemoryError(2, 1), "not_enough_memory"), (KeyError("secret"), "internal")],
)
def test_a_handlers_error_is_the_answer_and_the_link_lives(house, run, raised, kind) -> None:
    async def handler(message):
        if message.epoch == 1:
            raise raised
        return Unloaded(epoch=message.epoch)

    async def main() -> None:
        async with linked(house) as (ours, theirs), asyncio.TaskGroup() as tasks:
            serving = tasks.create_task(serve(theirs, handler))
            with pytest.raises(RemoteError) as caught:
                await ours.request(Unload(epoch=1), timeout_s=30)
            assert caught.value.data["kind"] == kind
            assert "secret" not in caught.value.message
            assert (await ours.request(Unload(epoch=2), timeout_s=30)).epoch == 2
            ours.close()
            await serving

    run(main())


def test_a_hostile_errors_data_is_only_data(house, run) -> None:
    async def main() -> None:
        async with linked(house) as (ours, theirs):
            asking = asyncio.create_task(ours.request(Unload(epoch=1), timeout_s=30))
            message, _ = await theirs.receive()
            data: dict[str, str | int | float | bool | None] = {"message": "x", "self": 1}
            theirs.send_nowait(Error(re=message.id, kind="k", message="m", data=data))
            with pytest.raises(RemoteError) as caught:
                await asking
            assert caught.value.data == {"message": "x", "self": 1, "kind": "k"}

    run(main())


def test_a_request_that_nobody_handles_is_answered_so(house, run) -> None:
    async def handler(message):
        return None

    async def main() -> None:
        async with linked(house) as (ours, theirs), asyncio.TaskGroup() as tasks:
            serving = tasks.create_task(serve(theirs, handler))
            with pytest.raises(RemoteError, match="not answered"):
                await ours.request(Unload(epoch=1), timeout_s=30)
            ours.close()
            await serving

    run(main())


def test_notices_are_handled_in_order_and_before_later_requests(house, run) -> None:
    handled: list[int] = []

    async def handler(message):
        await asyncio.sleep(0)
        match message:
            case Revoked(node_ids=node_ids):
                handled.append(len(node_ids))
            case Unload(epoch=epoch):
                handled.append(-epoch)
                return Unloaded(epoch=epoch)
        return None

    async def main() -> None:
        async with linked(house) as (ours, theirs), asyncio.TaskGroup() as tasks:
            serving = tasks.create_task(serve(theirs, handler))
            for count in range(5):
                ours.send_nowait(Revoked(node_ids=(DIGEST,) * count))
            await ours.request(Unload(epoch=7), timeout_s=30)
            ours.close()
            await serving

    run(main())

    assert handled == [0, 1, 2, 3, 4, -7]


def test_a_request_without_an_answer_ends_and_the_late_answer_is_dropped(house, run) -> None:
    async def main() -> None:
        async with linked(house) as (ours, theirs):
            with pytest.raises(PeerTimeoutError, match="worker has not answered"):
                await ours.request(Unload(epoch=1), timeout_s=0.02)
            message, _ = await theirs.receive()
            theirs.send_nowait(Unloaded(re=message.id, epoch=1))

            assert isinstance(await theirs.request(Ping(), timeout_s=30), Pong)
            assert not ours.is_closed

    run(main())


def test_what_is_not_for_the_peers_role_is_unknown_to_it(house, run) -> None:
    async def main() -> None:
        async with linked(house) as (ours, theirs):
            with pytest.raises(RemoteError) as caught:
                await theirs.request(
                    Profile(config={}, scheme="f32", tokens=1), timeout_s=5
                )  # a worker asks its master
            assert caught.value.data["kind"] == "unknown_op"
            assert not ours.is_closed

    run(main())


def test_our_own_mistake_is_ours_and_ends_nothing(house, run) -> None:
    async def main() -> None:
        async with linked(house) as (ours, _):
            with pytest.raises(LocalProtocolError):
                await ours.request(FAILED, timeout_s=1)
            assert not ours.is_closed

    run(main())
