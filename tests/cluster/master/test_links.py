"""Every pair of computers is measured, and known for as long as that holds."""

from dataclasses import replace

import pytest
from fake_cluster import FakeComputer, failing, run

from potluck.cluster.master.links import FAILED_AGE_S, LINK_AGE_S
from potluck.cluster.master.measurements import Measurements
from potluck.errors import PeerLostError
from potluck.plan.correction import MAX_AGE_S
from potluck.plan.cost import LinkCost
from potluck.wire.messages import Address


def test_every_pair_is_measured_and_again_when_it_is_old() -> None:
    now = 0.0

    async def main() -> None:
        nonlocal now
        measurements = Measurements(clock=lambda: now)
        desk, laptop, mac = (FakeComputer(n, i) for i, n in enumerate(("Desk", "Laptop", "Mac")))

        links = await measurements.links.measure(desk, [laptop, mac])
        assert set(links) == {
            (desk.node_id, laptop.node_id),
            (desk.node_id, mac.node_id),
            (laptop.node_id, mac.node_id),
        }
        now += LINK_AGE_S / 2
        await measurements.links.measure(desk, [laptop, mac])
        assert desk.calls == ["measure_link_to"] * 2
        now += LINK_AGE_S
        await measurements.links.measure(desk, [laptop, mac])
        assert desk.calls == ["measure_link_to"] * 4

    run(main())


def test_a_plan_measures_again_what_was_measured_while_a_computer_started() -> None:
    async def main() -> None:
        measurements, desk, laptop = (
            Measurements(),
            FakeComputer("Desk", 1),
            FakeComputer("Laptop", 2),
        )

        assert await measurements.links.measure_in_passing(desk, laptop)
        assert measurements.links.between(desk.node_id, laptop.node_id) is not None
        assert await measurements.links.measure_in_passing(desk, laptop)
        assert desk.calls.count("measure_link_to") == 1
        for _ in range(2):
            assert len(await measurements.links.measure(desk, [laptop])) == 1
            assert desk.calls.count("measure_link_to") == 2
        assert await measurements.links.measure_in_passing(desk, laptop)
        assert desk.calls.count("measure_link_to") == 2

    run(main())


def test_a_link_that_cannot_be_measured_in_passing_is_not_known() -> None:
    async def main() -> None:
        measurements, desk, laptop = (
            Measurements(),
            FakeComputer("Desk", 1),
            FakeComputer("Laptop", 2),
        )
        desk.errors["measure_link_to"] = failing(PeerLostError("gone"))

        assert not await measurements.links.measure_in_passing(desk, laptop)

    run(main())


def test_a_way_that_cannot_be_measured_is_left_out_and_tried_again() -> None:
    async def main() -> None:
        now = 1000.0
        measurements = Measurements(clock=lambda: now)
        desk, laptop = FakeComputer("Desk", 1), FakeComputer("Laptop", 2)
        desk.errors["measure_link_to"] = failing(PeerLostError("gone"))

        assert await measurements.links.measure(desk, [laptop]) == {}
        assert await measurements.links.measure(desk, [laptop]) == {}
        assert desk.calls.count("measure_link_to") == 1  # it cost seconds, and would again
        now += FAILED_AGE_S
        assert len(await measurements.links.measure(desk, [laptop])) == 1

    run(main())


def test_a_link_is_known_in_both_directions_until_an_end_leaves() -> None:
    async def main() -> None:
        measurements, desk, laptop = (
            Measurements(),
            FakeComputer("Desk", 1),
            FakeComputer("Laptop", 2),
        )
        await measurements.links.measure(desk, [laptop])

        link = measurements.links.between(desk.node_id, laptop.node_id)
        assert link is not None
        assert measurements.links.between(laptop.node_id, desk.node_id) == link
        measurements.links.forget(laptop.node_id)
        assert measurements.links.between(desk.node_id, laptop.node_id) is None

    run(main())


def test_links_are_measured_anew_where_that_is_asked_for() -> None:
    async def main() -> None:
        measurements, desk, laptop = (
            Measurements(),
            FakeComputer("Desk", 1),
            FakeComputer("Laptop", 2),
        )

        for anew in (False, False, True):
            await measurements.links.measure(desk, [laptop], anew=anew)

        assert desk.calls == ["measure_link_to"] * 2

    run(main())


def test_the_best_address_is_dialled_first_from_the_computer_that_measured_it() -> None:
    async def main() -> None:
        measurements = Measurements()
        desk, laptop, mac = (FakeComputer(n, i) for i, n in enumerate(("Desk", "Laptop", "Mac")))
        wifi, cable = (Address(host=host, port=4000) for host in ("10.0.0.2", "169.254.0.2"))
        mac.addresses = (wifi, cable)

        await measurements.links.measure(laptop, [mac])  # the fakes find the last address best

        assert mac.addresses_from(laptop.node_id) == (cable, wifi)
        assert mac.addresses_from(desk.node_id) == (wifi, cable)

    run(main())


def test_a_pair_is_measured_again_when_one_of_them_has_another_address() -> None:
    async def main() -> None:
        measurements, desk, laptop = (
            Measurements(),
            FakeComputer("Desk", 1),
            FakeComputer("Laptop", 2),
        )
        for computer in (desk, laptop):
            await measurements.links.measure(desk, [laptop])
            computer.addresses = (*computer.addresses, Address(host="169.254.0.2", port=4000))
            assert not measurements.links.is_recent(desk, laptop)
            await measurements.links.measure(desk, [laptop])
            assert measurements.links.is_recent(desk, laptop)

        assert desk.calls == ["measure_link_to"] * 3

    run(main())


def test_a_pair_that_cannot_be_measured_again_keeps_its_cost() -> None:
    async def main() -> None:
        measurements, desk, laptop = (
            Measurements(),
            FakeComputer("Desk", 1),
            FakeComputer("Laptop", 2),
        )
        await measurements.links.measure(desk, [laptop])
        desk.errors["measure_link_to"] = failing(PeerLostError("gone"))

        assert not await measurements.links.again(desk, laptop)
        assert measurements.links.between(desk.node_id, laptop.node_id) is not None

    run(main())


@pytest.mark.parametrize(("transfer", "learnt"), [(8e7, 8e7), (1.0, 5e7), (1e12, 4e8)])
def test_transfers_correct_a_link_within_bounds_and_never_run_away(
    transfer: float, learnt: float
) -> None:
    async def main() -> None:
        links, desk, laptop = (
            Measurements().links,
            FakeComputer("Desk", 1),
            FakeComputer("Laptop", 2),
        )
        desk.link = LinkCost(rtt_ms=0.4, bytes_per_s=1e8)
        await links.measure(desk, [laptop])
        for _ in range(20):
            links.observe(laptop.node_id, desk.node_id, transfer, alone=True)

        link = links.between(desk.node_id, laptop.node_id)
        assert link is not None
        assert link.rtt_ms == 0.4
        assert link.bytes_per_s == pytest.approx(learnt)

    run(main())


def test_a_transfer_beside_others_only_shows_that_a_link_is_faster() -> None:
    async def main() -> None:
        links, desk, laptop = (
            Measurements().links,
            FakeComputer("Desk", 1),
            FakeComputer("Laptop", 2),
        )
        ends = (desk.node_id, laptop.node_id)
        desk.link = LinkCost(rtt_ms=0.4, bytes_per_s=1e8)
        await links.measure(desk, [laptop])
        links.observe(*ends, 5e7, alone=False)
        assert links.between(*ends) == desk.link
        links.observe(*ends, 2e8, alone=False)
        assert links.between(*ends) == replace(desk.link, bytes_per_s=1.5e8)

    run(main())


def test_what_transfers_taught_is_forgotten_with_time_and_with_the_measurement() -> None:
    async def main() -> None:
        now = 0.0
        links = Measurements(clock=lambda: now).links
        desk, laptop = FakeComputer("Desk", 1), FakeComputer("Laptop", 2)
        ends = (desk.node_id, laptop.node_id)
        desk.link = LinkCost(rtt_ms=0.4, bytes_per_s=1e8)
        await links.measure(desk, [laptop])
        for forget in ("age", "measure"):
            for _ in range(2):
                links.observe(*ends, 5e7, alone=True)
            assert links.doubted() == [ends]
            if forget == "age":
                now += MAX_AGE_S
            else:
                assert not await links.again(desk, laptop)  # it is as it was
            assert links.between(*ends) == desk.link
            assert links.doubted() == []

    run(main())
