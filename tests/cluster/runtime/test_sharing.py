"""Files of the engine travel between paired computers: by hash, and only what locks list."""

import pytest

from potluck.errors import PeerError, RemoteError, RemoteProtocolError, UntrustedPeerError
from potluck.ids import Digest
from potluck.net.transport import dial
from potluck.store.fetch import receive_tensors
from potluck.wire.messages import Load, NeedTensor
from potluck.wire.wheel_messages import SendWheels

pytestmark = pytest.mark.net


def test_files_come_from_a_computer_that_has_them(home, paths) -> None:
    study = home.add("study")
    wheels = study.list(*paths)
    home.master.list(*paths)
    home.master.put(paths[0])
    told: list[int] = []

    async def take() -> int:
        source = home.master.source(home.id)
        return await study.client.take(source, wheels, lambda p: told.append(p.sent))

    assert home.run(take) == wheels[0].nbytes
    assert study.store.path(wheels[0].digest).read_bytes() == paths[0].read_bytes()
    assert not study.store.has(wheels[1].digest)


def test_what_came_before_is_not_sent_again(home, paths) -> None:
    study = home.add("study")
    wheels = study.list(*paths)
    home.master.list(*paths)
    home.master.put(paths[0])
    study.store.append(wheels[0].digest, 0, wheels[0].nbytes, paths[0].read_bytes()[:4_000_000])

    async def take() -> int:
        return await study.client.take(home.master.source(home.id), wheels, lambda _: None)

    assert home.run(take) == wheels[0].nbytes - 4_000_000


def test_a_master_takes_from_its_worker(home, paths) -> None:
    study = home.add("study")
    study.list(*paths)
    study.put(paths[0])
    wheels = home.master.list(*paths)

    async def take() -> int:
        return await home.master.client.take(study.source(home.id), wheels, lambda _: None)

    assert home.run(take) == wheels[0].nbytes


def test_a_computer_of_another_home_gets_nothing(home, paths, tmp_path) -> None:
    (tmp_path / "b").mkdir()
    stranger = type(home)(tmp_path / "b").master
    home.master.list(*paths)
    home.master.put(paths[0])

    async def ask() -> None:
        await stranger.client.ask(home.master.source(home.id), stranger.list(*paths))

    with pytest.raises((UntrustedPeerError, KeyError, PeerError)):
        home.run(ask)
    stranger.store.close()


def test_a_file_that_no_lock_lists_is_not_given_out(home, paths) -> None:
    study = home.add("study")
    wheels = study.list(*paths)
    home.master.put(paths[0])  # here, and not listed

    async def ask_and_take() -> tuple[object, ...]:
        source = home.master.source(home.id)
        offer = await study.client.ask(source, wheels, fetch=True)
        link = await dial(
            source.addresses,
            study.identity,
            home=home.id,
            peer=source.node_id,
            purpose="wheels",
            me=study.me(),
        )
        needs = (NeedTensor(digest=wheels[0].digest, offset=0),)
        await link.send(SendWheels(wheels=needs))
        with pytest.raises((RemoteError, PeerError)):
            await receive_tensors(link, study.store, {wheels[0].digest: wheels[0].nbytes})
        link.close()
        return offer.whole, offer.nbytes

    assert home.run(ask_and_take) == (frozenset(), 0)
    assert home.master.asked_to_fetch == []
    assert study.store.nbytes == 0


def test_a_computer_that_is_asked_fetches_what_is_listed(home, paths) -> None:
    study = home.add("study")
    wheels = study.list(*paths)
    home.master.list(*paths)
    home.master.put(paths[0])
    home.master.why_not = ""

    async def ask() -> tuple[bool, frozenset[Digest]]:
        offer = await study.client.ask(home.master.source(home.id), wheels, fetch=True)
        return offer.is_fetching, offer.whole

    assert home.run(ask) == (True, {wheels[0].digest})
    assert [wheel.name for wheel in home.master.asked_to_fetch] == ["sympy"]


def test_a_message_of_another_connection_is_refused(home) -> None:
    study = home.add("study")

    async def say() -> None:
        source = home.master.source(home.id)
        link = await dial(
            source.addresses,
            study.identity,
            home=home.id,
            peer=source.node_id,
            purpose="wheels",
            me=study.me(),
        )
        try:
            await link.request(Load(epoch=1, next_hop=None), timeout_s=30)
        finally:
            link.close()

    with pytest.raises((RemoteError, RemoteProtocolError)):
        home.run(say)
