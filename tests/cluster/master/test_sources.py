"""Which computer sends which tensors to a worker."""

from collections.abc import Mapping

from fake_cluster import FakeComputer, run

from potluck.cluster.master.measurements import Measurements
from potluck.cluster.master.sources import Sources
from potluck.ids import Digest, NodeId
from potluck.plan.cost import LinkCost
from potluck.wire.messages import NeedTensor

DESK, LAPTOP, MAC, ATTIC = (NodeId(name * 32) for name in ("aa", "bb", "cc", "dd"))
A, B, C, D = (Digest(name * 32) for name in ("0a", "0b", "0c", "0d"))
ALL = (A, B, C, D)
SIZES: Mapping[str, int] = dict.fromkeys(ALL, 100)
NEEDED = [NeedTensor(digest=digest, offset=0) for digest in ALL]

Rates = Mapping[tuple[NodeId, NodeId], float]


def sources(rates: Rates) -> Sources:
    return Sources(
        local=DESK,
        link_rate=lambda source, target: rates.get((source, target)),
        present=lambda: (LAPTOP, MAC, ATTIC),
    )


def shares(known: Sources, needed: list[NeedTensor] = NEEDED) -> dict[NodeId, set[str]]:
    found = known.share_out(MAC, needed, SIZES)
    return {node: {tensor.digest for tensor in tensors} for node, tensors in found.items()}


def test_the_master_sends_everything_while_nobody_else_has_it() -> None:
    assert shares(sources({(DESK, MAC): 10.0, (LAPTOP, MAC): 99.0})) == {DESK: set(ALL)}


def test_a_master_with_the_fastest_link_sends_everything_by_itself() -> None:
    known = sources({(DESK, MAC): 10.0, (LAPTOP, MAC): 10.0})
    known.stored(LAPTOP, ALL)
    assert shares(known) == {DESK: set(ALL)}


def test_tensors_are_shared_out_by_the_rates_of_the_links() -> None:
    known = sources({(DESK, MAC): 10.0, (LAPTOP, MAC): 30.0})
    known.stored(LAPTOP, ALL)
    found = shares(known)
    assert {node: len(digests) for node, digests in found.items()} == {DESK: 1, LAPTOP: 3}


def test_what_only_the_master_has_comes_from_the_master() -> None:
    known = sources({(DESK, MAC): 10.0, (LAPTOP, MAC): 30.0})
    known.stored(LAPTOP, (B, C))
    assert shares(known) == {DESK: {A, D}, LAPTOP: {B, C}}


def test_a_master_that_sends_to_several_has_a_share_of_its_uplink_for_each() -> None:
    known = sources({(DESK, MAC): 10.0, (DESK, LAPTOP): 10.0, (LAPTOP, MAC): 10.0})
    known.stored(LAPTOP, ALL)
    for node in (MAC, ATTIC):
        known.receive(node, more=True)
    found = shares(known)
    assert len(found[LAPTOP]) > len(found[DESK])

    known.receive(ATTIC, more=False)
    assert shares(known) == {DESK: set(ALL)}


def test_several_workers_share_in_the_sending() -> None:
    known = sources({(DESK, MAC): 1.0, (LAPTOP, MAC): 100.0, (ATTIC, MAC): 100.0})
    known.stored(LAPTOP, ALL)
    known.stored(ATTIC, ALL)
    found = shares(known)
    assert {node: len(digests) for node, digests in found.items()} == {LAPTOP: 2, ATTIC: 2}


def test_a_worker_whose_link_is_unknown_or_that_failed_is_not_asked() -> None:
    known = sources({(DESK, MAC): 10.0, (LAPTOP, MAC): 99.0})
    known.stored(ATTIC, ALL)
    known.stored(MAC, ALL)  # itself: it says that it lacks them all the same
    assert shares(known) == {DESK: set(ALL)}

    known.stored(LAPTOP, ALL)
    assert LAPTOP in shares(known)
    known.doubt(LAPTOP)
    assert shares(known) == {DESK: set(ALL)}


def test_without_a_rate_of_its_own_the_master_sends_by_itself() -> None:
    known = sources({(LAPTOP, MAC): 99.0})
    known.stored(LAPTOP, ALL)
    assert shares(known) == {DESK: set(ALL)}


def test_bytes_that_are_there_already_do_not_count() -> None:
    known = sources({(DESK, MAC): 10.0, (LAPTOP, MAC): 20.0})
    known.stored(LAPTOP, ALL)
    needed = [NeedTensor(digest=A, offset=99), NeedTensor(digest=B, offset=0)]
    assert shares(known, needed) == {LAPTOP: {B}, DESK: {A}}


def test_only_a_transfer_without_others_shows_that_a_link_is_slower() -> None:
    async def main() -> None:
        links = Measurements().links
        desk, mac = FakeComputer("Desk", 1), FakeComputer("Mac", 2)
        ends = (desk.node_id, mac.node_id)
        desk.link = LinkCost(rtt_ms=0.4, bytes_per_s=100.0)
        await links.measure(desk, [mac])
        limit = 100.0
        known = Sources(
            local=desk.node_id,
            link_rate=lambda source, target: limit,
            present=lambda: ends[1:],
            links=links,
        )

        known.receive(mac.node_id, more=True)
        known.receive(LAPTOP, more=True)
        known.receive(LAPTOP, more=False)
        known.sent(*ends, 60 * 10, 10.0, alone=True)  # beside the laptop's for a while
        known.receive(mac.node_id, more=False)
        known.receive(mac.node_id, more=True)
        known.sent(*ends, 6, 0.1, alone=True)  # too short to tell
        known.sent(*ends, 60 * 10, 10.0, alone=False)
        limit = 60.0
        known.sent(*ends, 60 * 10, 10.0, alone=True)
        assert links.between(*ends) == desk.link
        limit = 100.0
        known.sent(*ends, 60 * 10, 10.0, alone=True)
        assert links.between(*ends) == LinkCost(rtt_ms=0.4, bytes_per_s=80.0)

    run(main())
