from pathlib import Path

import pytest
from fake_cluster import run, until
from fake_engine import DEVICE, assign
from worker_rig import Party, Rig, join

from potluck.api.values import network
from potluck.api.values import vitals as schema
from potluck.errors import (
    PeerLostError,
    PotluckError,
    RemoteError,
    UnreachableError,
    UntrustedPeerError,
)
from potluck.ids import NodeId
from potluck.net.measure import measure
from potluck.store.registry import LocalModel
from potluck.wire.cache_messages import TakeSessions
from potluck.wire.measuring_messages import MeasureLink, MeasureSums, Profile
from potluck.wire.messages import (
    Address,
    CacheHop,
    Hop,
    Load,
    Medium,
    PlanBefore,
    RankPlace,
    Revoked,
    Status,
    StepFailed,
    Unload,
    Unloaded,
    Vitals,
)

pytestmark = pytest.mark.net

PROFILE = Profile(config={}, scheme="f32", tokens=8)


def test_a_master_hears_at_once_what_is_lent_and_then_what_changes(tmp_path: Path) -> None:
    async def main() -> None:
        async with Rig(tmp_path) as rig:
            control = await rig.control()
            await until(lambda: control.statuses)
            assert control.statuses == [Status(devices=(DEVICE,))]
            assert rig.links.master_names() == ("Desk",)

            rig.links.announce()  # nothing changed: nothing is said
            rig.worker.is_paused = True
            rig.links.announce()
            await until(lambda: len(control.statuses) > 1)
            assert control.statuses[1:] == [Status(devices=(DEVICE,), paused=True, reason="owner")]
            rig.worker.is_paused, rig.devices = False, ()
            rig.links.announce()
            await until(lambda: len(control.statuses) > 2)
            assert control.statuses[2:] == [Status(devices=())]
            rig.worker.vitals = schema.Vitals(battery=0.5, heat_c=70.0)
            rig.links.announce()
            await until(lambda: len(control.statuses) > 3)
            assert control.statuses[3].vitals == Vitals(battery=0.5, heat_c=70.0)
            rig.medium = network.Medium(kind="cable", mbit=1000)
            rig.links.announce()
            await until(lambda: len(control.statuses) > 4)
            assert control.statuses[4].medium == Medium(kind="cable", mbit=1000)
            control.link.close()
            await until(lambda: not rig.links.master_names())

    run(main())


def test_another_home_hears_to_whom_it_is_lent(tmp_path: Path, model: LocalModel) -> None:
    async def main() -> None:
        async with Rig(tmp_path) as rig:
            control, ana = await rig.control(), await rig.another_home()
            await until(lambda: ana.statuses)
            await control.computer.assign(assign(model))
            await until(lambda: ana.statuses[-1].lent_to == "Desk")
            assert control.statuses[-1].lent_to is None
            with pytest.raises(RemoteError, match="lent to Desk"):
                await ana.link.request(PROFILE, timeout_s=10)

    run(main())


def test_a_request_is_answered_and_one_that_cannot_be_met_says_why(tmp_path: Path) -> None:
    async def main() -> None:
        async with Rig(tmp_path) as rig:
            control = await rig.control()
            assert await control.link.request(Unload(epoch=3), timeout_s=10) == Unloaded(
                epoch=3, re=1
            )
            rig.worker.is_lending = False
            with pytest.raises(RemoteError, match="does not lend"):
                await control.link.request(PROFILE, timeout_s=10)
            rig.worker.is_lending = True
            await control.link.request(PROFILE, timeout_s=10)  # the connection lives on

    run(main())


def test_a_worker_of_the_home_controls_nobody(tmp_path: Path) -> None:
    async def main() -> None:
        async with Rig(tmp_path) as rig:
            mac = Party("Mac", tmp_path)
            join(rig.desk, mac)
            link = await mac.dial(rig.laptop, rig.home)
            with pytest.raises(PeerLostError):
                await link.receive()
            assert rig.links.master_names() == ()

    run(main())


def test_activations_do_not_go_to_the_nodes_port(tmp_path: Path) -> None:
    async def main() -> None:
        async with Rig(tmp_path) as rig:
            link = await rig.desk.dial(rig.laptop, rig.home, "activations")
            with pytest.raises(PeerLostError):
                await link.receive()

    run(main())


def test_a_weights_link_with_nothing_to_send_measures(tmp_path: Path) -> None:
    async def main() -> None:
        async with Rig(tmp_path) as rig:
            link = await rig.desk.dial(rig.laptop, rig.home, "weights")
            quality = await measure(link)
            assert quality.bytes_per_s > 0
            link.close()

    run(main())


def test_a_weights_link_that_nobody_uses_is_closed(tmp_path: Path) -> None:
    async def main() -> None:
        async with Rig(tmp_path, idle_s=0.05) as rig:
            link = await rig.desk.dial(rig.laptop, rig.home, "weights")
            with pytest.raises(PeerLostError):
                await link.receive()

    run(main())


def test_one_that_was_removed_is_told_so(tmp_path: Path) -> None:
    async def main() -> None:
        async with Rig(tmp_path) as rig:
            control = await rig.control()
            await control.link.send(Revoked(node_ids=(rig.laptop.identity.node_id,)))
            await until(lambda: rig.removed)
            assert rig.removed == [rig.home]

    run(main())


def test_whoever_else_was_removed_is_trusted_no_more(tmp_path: Path) -> None:
    other = NodeId("ab" * 32)

    async def main() -> None:
        async with Rig(tmp_path) as rig:
            control = await rig.control()
            await control.link.send(Revoked(node_ids=(other,)))
            await until(lambda: rig.laptop.identity.homes[rig.home].revoked)
            assert other in rig.laptop.identity.homes[rig.home].revoked
            assert rig.removed == []

    run(main())


def test_what_a_master_has_no_business_saying_harms_nobody(tmp_path: Path) -> None:
    async def main() -> None:
        async with Rig(tmp_path) as rig:
            control = await rig.control()
            await control.link.send(Status(devices=()))
            await control.link.send(
                StepFailed(epoch=1, session="s", step=1, kind="engine", message="No.")
            )
            assert await control.link.request(Unload(epoch=3), timeout_s=10)

    run(main())


ELSEWHERE = Address(host="192.168.0.9", port=47777)  # where the master is, in these tests


@pytest.mark.parametrize("host", ["router.home", "localhost", "127.0.0.1", "::1"])
def test_a_master_has_no_worker_dial_names_or_its_own_services(
    tmp_path: Path, model: LocalModel, host: str
) -> None:
    """Neither by measuring nor by loading, and the sentence is the one of an address without answer."""

    async def main() -> None:
        async with Rig(tmp_path) as rig:
            control = await rig.control()
            await control.computer.assign(assign(model))
            (link,) = rig.links._masters
            link.remote = ELSEWHERE
            hop = Hop(node_id="9" * 64, addresses=(Address(host=host, port=22),))
            had = CacheHop(node_id=hop.node_id, addresses=hop.addresses, layers=(0, 1))
            scans = (
                Load(epoch=1, next_hop=hop),
                Load(epoch=1, next_hop=None, ranks=RankPlace(rank=0, hops=(hop, hop))),
                Load(epoch=1, next_hop=None, cache_hops=(had,)),
                Load(epoch=1, next_hop=None, before=PlanBefore(epoch=0, hops=(had,))),
                TakeSessions(epoch=1, before=PlanBefore(epoch=1, hops=(had,))),
                MeasureLink(node_id=hop.node_id, addresses=hop.addresses),
                MeasureSums(ranks=RankPlace(rank=0, hops=(hop, hop))),
            )
            for scan in scans:
                with pytest.raises(RemoteError) as refused:
                    await control.link.request(scan, timeout_s=10)
                assert refused.value.message == "That computer cannot be reached from here."
            assert rig.engine.loaded is None

    run(main())


def test_nobody_is_dialled_in_a_network_that_is_not_used(tmp_path: Path, model: LocalModel) -> None:
    async def main() -> None:
        async with Rig(tmp_path) as rig:
            rig.links._avoids = lambda host: host.startswith("10.8.")
            control = await rig.control()
            await control.computer.assign(assign(model))
            used = Address(host="192.168.7.77", port=22)
            both = (Address(host="10.8.0.9", port=22), used)
            hop = Hop(node_id="9" * 64, addresses=both)
            had = CacheHop(node_id=hop.node_id, addresses=both, layers=(0, 1))
            ranks = RankPlace(rank=0, hops=(hop, hop))
            before = PlanBefore(epoch=0, hops=(had,))
            load = Load(epoch=1, next_hop=hop, ranks=ranks, cache_hops=(had,), before=before)
            await control.link.request(load, timeout_s=10)
            await control.link.request(MeasureSums(ranks=ranks), timeout_s=10)
            await control.link.request(TakeSessions(epoch=1, before=before), timeout_s=10)

            assert rig.engine.loaded is not None
            assert rig.engine.loaded.next_hop is not None
            dialled = (
                rig.engine.loaded.next_hop,
                *rig.engine.loaded.cache_hops,
                *(rig.engine.loaded.before or before).hops,
                *(rig.engine.loaded.ranks or ranks).above,
                *(rig.engine.summed or ranks).above,
                *rig.engine.taken_over[-1].before.hops,
            )
            assert [each.addresses for each in dialled] == [(used,)] * 6

    run(main())


@pytest.mark.parametrize(
    "found",
    [
        UnreachableError("192.168.0.1:22: what answers there is not Potluck."),
        UnreachableError("192.168.0.1:23: Connection refused."),
        UntrustedPeerError("Another computer answers at 192.168.0.1:47777: Attic."),
    ],
)
def test_a_master_does_not_hear_what_its_worker_found_at_an_address(
    tmp_path: Path, model: LocalModel, found: PotluckError
) -> None:
    async def main() -> None:
        async with Rig(tmp_path) as rig:
            control = await rig.control()
            await control.computer.assign(assign(model))
            rig.engine.error = found
            hop = Hop(node_id="9" * 64, addresses=(Address(host="192.168.0.1", port=22),))
            with pytest.raises(RemoteError) as refused:
                await control.link.request(Load(epoch=1, next_hop=hop), timeout_s=10)
            assert refused.value.message == "That computer cannot be reached from here."

    run(main())
