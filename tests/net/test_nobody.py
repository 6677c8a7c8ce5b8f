"""A person whose other computers are not found is told what was tried and what to do."""

import asyncio
from pathlib import Path

import pytest

from potluck.ids import NodeId
from potluck.net.advert import Advert
from potluck.net.discovery import Discovery
from potluck.net.nobody import nobody_found
from potluck.wire.messages import Address

ADVERT = Advert(node_id=NodeId("1a" * 32), name="Desk", role="idle", port=47777, protocol=1)


def test_the_hint_says_where_was_asked_and_what_may_be_in_the_way() -> None:
    hint = nobody_found(["192.168.1.5"], ["192.168.1.7"], multicast=True)

    assert "asked by multicast on 192.168.1.5, and nobody answers at 192.168.1.7." in hint
    assert "UDP port 5353, TCP port 47777" in hint
    assert "`potluck pair ADDRESS`" in hint


def test_the_hint_says_that_multicast_did_not_work() -> None:
    hint = nobody_found(["192.168.1.5"], [], multicast=False)

    assert "could not use multicast on 192.168.1.5, and no address of another is known." in hint


def test_a_computer_without_a_network_hears_so() -> None:
    assert "in no network" in nobody_found([], ["192.168.1.7"], multicast=True)


@pytest.mark.net
def test_a_discovery_gives_the_hint_after_a_while_and_until_somebody_is_found(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        hinted = asyncio.Event()
        discovery = Discovery(on_change=hinted.set, interfaces=frozenset, hint_s=0.01)
        await discovery.start(ADVERT)
        try:
            assert discovery.hint() is None
            await asyncio.wait_for(hinted.wait(), timeout=10)
            assert discovery.hint() is not None
            hinted.clear()
            await discovery.search_again()  # a search has as long as the first one
            assert discovery.hint() is None
            while discovery.hint() is None:
                await asyncio.wait_for(hinted.wait(), timeout=10)
                hinted.clear()
            discovery.meet(NodeId("2b" * 32), "Laptop", Address(host="127.0.0.1", port=4000))
            assert discovery.hint() is None
        finally:
            await discovery.stop()

    asyncio.run(main())
