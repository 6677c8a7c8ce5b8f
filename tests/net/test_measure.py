"""Links measured over real connections."""

import asyncio

import pytest

from potluck.errors import PeerLostError
from potluck.net import measure as measure_module
from potluck.net.measure import (
    BLOB_BUDGET_S,
    FIRST_BLOB,
    MAX_BYTES,
    best_of,
    delay_ms,
    measure,
    measure_to,
)
from potluck.wire.measuring_messages import BlobReceived, LinkMeasured
from potluck.wire.messages import (
    Address,
    Ping,
    Pong,
)

pytestmark = pytest.mark.net


def test_a_link_is_measured_without_the_other_sides_help(house, run) -> None:
    async def main() -> None:
        master, worker, home = house.pair()
        async with worker.listening():
            link = await master.dial(worker, home, "weights")
            quality = await measure(link)

            assert 0 < quality.rtt_ms <= quality.rtt_p95_ms < 1000
            assert quality.bytes_per_s > 1e6
            link.close()
            await link.wait_closed()

    run(main())


class SlowLink:
    """A link with a round trip and a bandwidth, and a clock of its own."""

    def __init__(self, rtt_s: float, bytes_per_s: float) -> None:
        self.remote = Address(host="127.0.0.1", port=1)
        self.rtt_s, self.rate = rtt_s, bytes_per_s
        self.now = 0.0
        self.sent = 0

    def close(self) -> None:
        pass

    async def request(self, message, *, timeout_s: float, payload=b""):
        self.now += self.rtt_s + len(payload) / self.rate
        self.sent += len(payload)
        return Pong() if isinstance(message, Ping) else BlobReceived(nbytes=len(payload))


@pytest.mark.parametrize(
    ("rtt_s", "bytes_per_s"),
    [(0.0001, 1.25e9), (0.0002, 117e6), (0.002, 37e6), (0.03, 2.5e6), (0.2, 0.6e6)],
)
def test_what_is_measured_is_what_the_link_has_and_it_stays_quick(
    run, rtt_s: float, bytes_per_s: float
) -> None:
    link = SlowLink(rtt_s, bytes_per_s)

    quality = run(measure(link, clock=lambda: link.now))  # type: ignore[arg-type]

    assert quality.rtt_ms == pytest.approx(1000 * rtt_s)
    assert quality.bytes_per_s == pytest.approx(bytes_per_s, rel=0.01)
    assert link.sent <= MAX_BYTES
    # The first blob has to be sent whatever it takes.
    assert link.now <= 0.6 + 2 * BLOB_BUDGET_S + FIRST_BLOB / bytes_per_s + rtt_s


def test_the_median_stands_one_slow_ping(run) -> None:
    link = SlowLink(0.001, 1e9)

    async def request(message, *, timeout_s: float, payload=b""):
        slow.append(message)
        link.now += 0.1 if len(slow) == 2 else 0.0
        return await SlowLink.request(link, message, timeout_s=timeout_s, payload=payload)

    slow: list[object] = []
    link.request = request

    quality = run(measure(link, clock=lambda: link.now))  # type: ignore[arg-type]

    assert quality.rtt_ms == pytest.approx(1)
    assert quality.rtt_p95_ms == pytest.approx(101)


def test_of_several_addresses_the_one_is_best_where_a_message_arrives_first() -> None:
    def link(rtt_ms: float, bytes_per_s: float) -> float:
        address = Address(host="10.0.0.1", port=1)
        measured = LinkMeasured(
            rtt_ms=rtt_ms, rtt_p95_ms=rtt_ms, bytes_per_s=bytes_per_s, address=address
        )
        return delay_ms(measured)

    thunderbolt, ethernet, wifi = link(0.35, 1e9), link(0.25, 117e6), link(2.0, 40e6)
    assert thunderbolt < ethernet < wifi


def test_a_link_that_breaks_does_not_spoil_the_measurement_of_another(run) -> None:
    broken, works = SlowLink(0.001, 1e9), SlowLink(0.002, 1e8)

    async def request(message, *, timeout_s: float, payload=b""):
        raise PeerLostError("gone")

    async def slow(message, *, timeout_s: float, payload=b""):
        await asyncio.sleep(0.001)
        return await SlowLink.request(works, message, timeout_s=timeout_s, payload=payload)

    broken.request, works.request = request, slow

    assert run(best_of([broken, works])).rtt_ms > 0  # type: ignore[list-item]
    with pytest.raises(PeerLostError):
        run(best_of([broken]))  # type: ignore[list-item]


def test_every_address_that_answers_is_measured_and_a_silent_one_costs_little(
    house, run, monkeypatch
) -> None:
    monkeypatch.setattr(measure_module, "different_networks", tuple)  # loopback has one network
    monkeypatch.setattr(measure_module, "OTHERS_S", 0.1)

    async def main() -> None:
        master, worker, home = house.pair()
        async with worker.listening(host="0.0.0.0"):
            hosts = ("127.0.0.1", "127.0.0.2", "192.0.2.1")  # the last one is of no network
            measured = await measure_to(
                [Address(host=host, port=worker.port) for host in hosts],
                master.identity,
                home=home,
                peer=worker.identity.node_id,
                me=master.me,
                dial_s=5.0,
                measure_s=5.0,
            )
            assert measured.address.host in hosts[:2]
            assert worker.links.qsize() == 2

    run(main())


def test_a_peer_that_leaves_while_it_is_measured_is_lost(house, run) -> None:
    async def main() -> None:
        master, worker, home = house.pair()
        async with worker.listening():
            link = await master.dial(worker, home, "weights")
            theirs = await worker.links.get()
            theirs.close()
            with pytest.raises(PeerLostError):
                await measure(link)
            await link.wait_closed()

    run(main())
