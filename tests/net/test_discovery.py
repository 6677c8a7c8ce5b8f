"""Real multicast DNS, on loopback alone."""

import asyncio
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from zeroconf import ServiceStateChange
from zeroconf.asyncio import AsyncServiceInfo, AsyncZeroconf

from potluck.errors import UnreachableError
from potluck.ids import NodeId
from potluck.net import discovery as discovery_module
from potluck.net.addresses import Identified
from potluck.net.advert import MAX_PEERS, SERVICE, Advert, Found, instance_name, properties
from potluck.net.discovery import Discovery
from potluck.net.interfaces import Interface
from potluck.net.listing import CROWD, MAX_PER_HOST
from potluck.wire.messages import Address

pytestmark = pytest.mark.net

LOOPBACK = frozenset({Interface("127.0.0.1", 8, 1, is_virtual=False)})
# Other nodes may run on this computer, and are found too: the tests look at their own alone.
A, B, C, D = (NodeId(secrets.token_hex(32)) for _ in range(4))
NAMES = {A: "a", B: "b", C: "c", D: "d"}


class Watched:
    """A discovery, and a way to wait until it says something."""

    def __init__(self, node_id: NodeId, **options: Any) -> None:
        self._event = asyncio.Event()
        options = {"interfaces": lambda: LOOPBACK} | options
        self.discovery = Discovery(on_change=self._event.set, **options)
        self.advert = Advert(
            node_id=node_id, name=f"node {NAMES[node_id]}", role="worker", port=4000, protocol=1
        )

    def found(self) -> list[Found]:
        return [found for found in self.discovery.peers() if found.node_id in NAMES]

    def seen(self) -> list[str]:
        return [NAMES[found.node_id] for found in self.found()]

    async def until(self, fact: Callable[[list[Found]], bool]) -> list[Found]:
        async with asyncio.timeout(20):
            while not fact(self.found()):
                self._event.clear()
                await self._event.wait()
        return self.found()

    async def until_seen(self, *names: str) -> list[Found]:
        return await self.until(lambda found: [NAMES[f.node_id] for f in found] == list(names))

    async def answered(self, node_id: NodeId) -> None:
        """Wait until the node was asked, and answered or did not."""
        while (asking := self.discovery._resolving.get(node_id)) is not None:
            await asking


@asynccontextmanager
async def watching(node_id: NodeId, **options) -> AsyncIterator[Watched]:
    watched = Watched(node_id, **options)
    await watched.discovery.start(watched.advert)
    try:
        yield watched
    finally:
        await watched.discovery.stop()


async def crash(watched: Watched) -> None:
    """End without a goodbye."""
    zeroconf = watched.discovery._zeroconf
    assert zeroconf is not None
    registry = zeroconf.zeroconf.registry
    registry.async_remove(registry.async_get_service_infos())
    await watched.discovery.stop()


@pytest.mark.slow
def test_nodes_on_one_computer_find_each_other_and_not_themselves(run) -> None:
    async def main() -> None:
        async with watching(A) as a, watching(B) as b, watching(C) as c:
            found = await a.until_seen("b", "c")
            await b.until_seen("a", "c")
            await c.until_seen("a", "b")

            assert found[0] == Found(
                node_id=B,
                name="node b",
                role="worker",
                addresses=(Address(host="127.0.0.1", port=4000),),
                home=None,
                joinable=False,
                devices="",
                protocol=1,
            )

    run(main())


@pytest.mark.slow
def test_a_change_is_seen_while_running(run) -> None:
    async def main() -> None:
        async with watching(A) as a, watching(B) as b:
            await a.until_seen("b")
            changed = Advert(
                node_id=B, name="renamed", role="master", port=4001, joinable=True, protocol=2
            )
            await b.discovery.announce(changed)

            def is_changed(found: list[Found]) -> bool:
                return found[0].name == "renamed" and found[0].addresses[0].port == 4001

            (found,) = await a.until(is_changed)
            assert (found.role, found.joinable, found.protocol) == ("master", True, 2)

    run(main())


@pytest.mark.slow
def test_of_changes_in_a_row_the_last_one_stays(run) -> None:
    """Records less than a second apart do not replace each other at who hears them."""

    async def main() -> None:
        async with watching(A) as a, watching(B) as b:
            await a.until_seen("b")
            advert = Advert(node_id=B, name="b", role="idle", port=4001, protocol=1)
            for role, joinable in (("idle", False), ("worker", False), ("worker", True)):
                await b.discovery.announce(replace(advert, role=role, joinable=joinable))

            await a.until(lambda found: found[0].joinable)
            await a.discovery.refresh()
            (found,) = a.found()
            assert (found.role, found.joinable) == ("worker", True)

    run(main())


def test_a_node_that_says_goodbye_is_gone(run) -> None:
    async def main() -> None:
        async with watching(A) as a:
            async with watching(B):
                await a.until_seen("b")
            await a.until_seen()

    run(main())


def test_a_node_that_crashed_and_starts_again_is_one_entry(run) -> None:
    async def main() -> None:
        async with watching(A) as a:
            async with watching(B) as b:
                await a.until_seen("b")
                await crash(b)
            assert a.seen() == ["b"]
            again = Watched(B)
            again.advert = Advert(node_id=B, name="again", role="worker", port=4002, protocol=1)
            await again.discovery.start(again.advert)
            (found,) = await a.until(lambda found: found[0].name == "again")
            assert [address.port for address in found.addresses] == [4002]
            await again.discovery.stop()

    run(main())


@pytest.mark.slow
def test_a_forgotten_node_that_lives_comes_back_and_a_dead_one_does_not(run) -> None:
    async def main() -> None:
        async with watching(A, resolve_timeout_s=0.3) as a, watching(C):
            async with watching(B) as b:
                await a.until_seen("b", "c")
                await crash(b)
            a.discovery.forget(B)
            a.discovery.forget(C)
            assert a.seen() == []
            await a.until_seen("c")
            await a.answered(B)
            assert a.seen() == ["c"]

    run(main())


@pytest.mark.slow
def test_a_node_whose_records_ran_out_is_asked_once_more_and_then_gone(run) -> None:
    async def main() -> None:
        async with watching(A, resolve_timeout_s=0.3) as a, watching(C):
            async with watching(B) as b:
                await a.until_seen("b", "c")
                await crash(b)
            assert a.discovery._zeroconf is not None
            cache = a.discovery._zeroconf.zeroconf.cache
            for node_id in (B, C):
                cache.async_remove_records(cache.entries_with_name(instance_name(node_id)))
            await a.discovery.refresh()
            await a.until_seen("c")
            assert a.seen() == ["c"]

    run(main())


@pytest.mark.slow
def test_a_network_that_comes_later_is_used(run) -> None:
    async def main() -> None:
        own: frozenset[Interface] = frozenset()
        async with watching(A, interfaces=lambda: own) as a, watching(B) as b:
            own = LOOPBACK
            await a.discovery.refresh()
            await a.until_seen("b")
            await b.until_seen("a")

    run(main())


def test_after_a_change_of_networks_computers_are_asked_for_again(run) -> None:
    """A cable may have been unplugged for so long that every record has run out."""

    async def main() -> None:
        own = LOOPBACK
        async with watching(A, interfaces=lambda: own) as a:
            asking = a.discovery._browser
            await a.discovery.refresh()
            assert a.discovery._browser is asking
            own = frozenset({*own, Interface("127.0.0.1", 16, 1, is_virtual=False)})
            await a.discovery.refresh()
            assert a.discovery._browser is not asking

    run(main())


def test_without_multicast_addresses_still_work_and_it_is_logged(run, monkeypatch, caplog) -> None:
    class Broken(AsyncZeroconf):
        def __init__(self, **options) -> None:
            raise OSError("Address already in use")

    async def probe(address: Address) -> Identified:
        return Identified(node_id=B, name="by address")

    async def main() -> None:
        with monkeypatch.context() as patch:
            patch.setattr(discovery_module, "AsyncZeroconf", Broken)
            a = Watched(A, probe=probe)
            await a.discovery.start(a.advert)
            assert "Address already in use" in caplog.text
            found = await a.discovery.add_address("10.0.0.5")
            assert [found] == a.found()
        async with watching(C):
            await a.discovery.refresh()  # it works again
            await a.until_seen("b", "c")
        await a.discovery.stop()

    run(main())


def test_a_node_found_both_ways_is_one_entry_with_all_addresses(run) -> None:
    async def probe(address: Address) -> Identified:
        return Identified(node_id=B, name="by address")

    async def main() -> None:
        async with watching(A, probe=probe) as a, watching(B):
            await a.until_seen("b")
            await a.discovery.add_address("10.0.0.5:7")
            (found,) = a.found()
            assert found.name == "node b"
            assert [x.host for x in found.addresses] == ["127.0.0.1", "10.0.0.5"]

    run(main())


def test_remembered_peers_are_probed_until_multicast_finds_them(run, tmp_path) -> None:
    asked: list[str] = []

    async def probe(address: Address) -> Identified:
        asked.append(address.host)
        raise UnreachableError("nobody")

    async def main() -> None:
        async with watching(A, probe=probe, remembered=tmp_path / "book.json") as a:
            a.discovery.remember(B, "node b", (Address(host="10.0.0.5", port=1),))
            await a.discovery.probe()
            assert asked == ["10.0.0.5"]
            async with watching(B):
                await a.until_seen("b")
                await a.discovery.probe()
            assert asked == ["10.0.0.5"]
            a.discovery.drop(B)
            await a.until_seen()
            await a.discovery.probe()
            assert asked == ["10.0.0.5"]

    run(main())


@pytest.mark.slow
def test_lies_of_strangers_are_no_nodes(run) -> None:
    """Wrong names, somebody else's id, our own name: none of it is in the list."""

    async def main() -> None:
        honest = properties(Advert(node_id=B, name="x", role="worker", port=1, protocol=1))
        lies = [
            (f"laptop.{SERVICE}", honest),
            (instance_name(C), honest),
            (instance_name(A), honest),
            (instance_name(D), {}),
        ]
        async with watching(A) as a, watching(B):
            liar = AsyncZeroconf(interfaces=["127.0.0.1"])
            announcing: list[Awaitable[None]] = []
            for name, txt in lies:
                lie = AsyncServiceInfo(
                    SERVICE,
                    name,
                    port=1,
                    properties=txt,
                    server=f"{secrets.token_hex(8)}.local.",
                    parsed_addresses=["127.0.0.1"],
                )
                announcing.append(
                    await liar.async_register_service(lie, cooperating_responders=True)
                )
            await asyncio.gather(*announcing)
            await a.until_seen("b")
            for node_id in (C, D):
                await a.answered(node_id)
            assert a.seen() == ["b"]
            await liar.async_close()

    run(main())


def announce(discovery: Discovery, node_id: NodeId) -> None:
    """As if a name had been announced without the records that belong to it."""
    discovery._changed(None, SERVICE, instance_name(node_id), ServiceStateChange.Added)  # type: ignore[arg-type]


def strangers(count: int) -> list[NodeId]:
    return [NodeId(secrets.token_hex(32)) for _ in range(count)]


def test_a_new_node_is_found_while_strangers_announce_names_that_do_not_answer(run) -> None:
    async def main() -> None:
        async with watching(A, resolve_timeout_s=60.0) as a:
            flood = strangers(100)
            for node_id in flood:
                announce(a.discovery, node_id)
            assert len(a.discovery._resolving) <= 32
            announce(a.discovery, C)
            assert C in a.discovery._resolving
            async with watching(B):
                await a.until_seen("b")

    run(main())


def test_a_paired_node_is_not_given_up_for_strangers(run) -> None:
    async def main() -> None:
        async with watching(A, resolve_timeout_s=60.0) as a:
            a.discovery.remember(D, "d", ())
            announce(a.discovery, D)
            for node_id in strangers(100):
                announce(a.discovery, node_id)
            assert D in a.discovery._resolving

    run(main())


def described(node_id: NodeId, host: str) -> AsyncServiceInfo:
    advert = Advert(node_id=node_id, name="x", role="idle", port=4000, protocol=1)
    return AsyncServiceInfo(
        SERVICE,
        instance_name(node_id),
        port=4000,
        properties=properties(advert),
        parsed_addresses=[host],
    )


def test_one_address_fills_the_list_neither_for_other_addresses_nor_for_paired_nodes() -> None:
    discovery = Discovery(on_change=lambda: None, interfaces=lambda: LOOPBACK)
    discovery.remember(D, "d", ())
    for node_id in strangers(300):
        discovery._note(node_id, described(node_id, "192.168.0.66"))
    assert len(discovery._found) == MAX_PER_HOST

    discovery._note(B, described(B, "192.168.0.7"))
    assert B in discovery._found
    for number, node_id in enumerate(strangers(300)):
        discovery._note(node_id, described(node_id, f"10.0.{number // 250}.{number % 250}"))
    assert len(discovery._found) == MAX_PEERS

    discovery._note(D, described(D, "192.168.0.66"))
    assert D in discovery._found


def test_who_forges_addresses_does_not_keep_a_new_node_out_of_the_list(run) -> None:
    async def identify(address: Address) -> Identified:
        if address.host != "192.168.0.7":
            await asyncio.Event().wait()  # nobody is there
        return Identified(node_id=B, name="b")

    async def main() -> None:
        watched = Watched(A, probe=identify)
        discovery = watched.discovery
        discovery._advert = watched.advert
        for number, node_id in enumerate(strangers(300)):
            discovery._note(node_id, described(node_id, f"10.0.{number // 250}.{number % 250}"))
            await asyncio.sleep(0)
        assert len(discovery._found) == CROWD

        discovery._note(C, described(C, "192.168.0.7"))  # where another one answers
        discovery._note(B, described(B, "192.168.0.7"))
        await watched.until_seen("b")
        await discovery.stop()

    run(main())
