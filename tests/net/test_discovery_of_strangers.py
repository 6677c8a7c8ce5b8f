"""Announcements of strangers on loopback, who announce whatever they like and as much as they like."""

import asyncio
import secrets
from collections.abc import Awaitable

import pytest
from watched_discovery import LOOPBACK, A, B, C, D, Watched, watching
from zeroconf import ServiceStateChange
from zeroconf.asyncio import AsyncServiceInfo, AsyncZeroconf

from potluck.ids import NodeId
from potluck.net.addresses import Identified
from potluck.net.advert import MAX_PEERS, SERVICE, Advert, instance_name, properties
from potluck.net.discovery import Discovery
from potluck.net.listing import CROWD, MAX_PER_HOST
from potluck.wire.messages import Address

pytestmark = pytest.mark.net


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
