"""Real multicast DNS, on loopback alone."""

import asyncio
from dataclasses import replace

import pytest
from watched_discovery import LOOPBACK, A, B, C, Watched, watching
from zeroconf.asyncio import AsyncServiceBrowser, AsyncZeroconf

from potluck.errors import UnreachableError
from potluck.net import discovery as discovery_module
from potluck.net.addresses import Identified
from potluck.net.advert import Advert, Found, instance_name
from potluck.net.interfaces import Interface
from potluck.wire.messages import Address

pytestmark = pytest.mark.net


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
        async with watching(A, resolve_timeout_s=1.5) as a, watching(C):
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
        async with watching(A, resolve_timeout_s=1.5) as a, watching(C):
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


def test_a_search_that_is_asked_for_finds_who_was_missed(run) -> None:
    """A packet of multicast may be lost, above all on a Wi-Fi."""

    async def main() -> None:
        async with watching(A) as a, watching(B):
            await a.until_seen("b")
            del a.discovery._found[B]
            await asyncio.gather(a.discovery.search_again(), a.discovery.search_again())
            await a.until_seen("b")
            zeroconf = a.discovery._zeroconf
            assert zeroconf is not None
            listeners = zeroconf.zeroconf.record_manager.listeners
            browsers = [each for each in listeners if isinstance(each, AsyncServiceBrowser)]
            assert browsers == [a.discovery._browser]

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
