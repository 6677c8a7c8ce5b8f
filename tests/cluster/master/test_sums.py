"""What sums of two computers take is measured where it decides, and known for as long as that holds."""

import asyncio
from pathlib import Path

import pytest
from fake_cluster import FakeComputer, devices, failing, run

from potluck.cluster.master.kept import KeptMeasurements
from potluck.cluster.master.links import FAILED_AGE_S, LINK_AGE_S
from potluck.cluster.master.measurements import Measurements
from potluck.cluster.master.sums import Sums, cost_of
from potluck.errors import PeerLostError, RemoteProtocolError
from potluck.plan.cost import HopCost
from potluck.wire.measuring_messages import SumTime


def test_both_computers_sum_and_the_one_that_waits_less_counts_at_each_size() -> None:
    async def main() -> None:
        measurements = Measurements()
        desk, laptop = FakeComputer("Desk", 1), FakeComputer("Laptop", 2)
        desk.sum_ms, laptop.sum_ms = (0.2, 21.0), (0.4, 20.0)

        await measurements.sums.measure([(laptop, desk), (desk, laptop)])

        assert desk.calls == laptop.calls == ["measure_sums"]
        ((pair, cost),) = measurements.sums.known().items()
        assert pair == (desk.node_id, laptop.node_id)
        assert [cost.ms(1 << 14), cost.ms(1 << 21)] == pytest.approx([0.2, 20.0])

    run(main())


def test_sums_are_measured_again_when_they_are_old_or_wanted_anew_or_a_computer_came_back() -> None:
    now = 0.0

    async def main() -> None:
        nonlocal now
        measurements = Measurements(clock=lambda: now)
        desk, laptop = FakeComputer("Desk", 1), FakeComputer("Laptop", 2)
        pairs = [(desk, laptop)]
        for measured in range(1, 3):
            for _ in range(2):
                await measurements.sums.measure(pairs)
                assert len(desk.calls) == measured
            now += LINK_AGE_S
        now -= LINK_AGE_S
        await measurements.sums.measure(pairs, anew=True)
        assert len(desk.calls) == 3
        measurements.lost(laptop.node_id)
        assert measurements.sums.known() == {}
        await measurements.sums.measure(pairs)
        assert len(desk.calls) == 4

    run(main())


def test_sums_that_cannot_be_measured_are_left_out_and_tried_after_a_while() -> None:
    now = 0.0

    async def main() -> None:
        nonlocal now
        measurements = Measurements(clock=lambda: now)
        desk, laptop, gpu = (FakeComputer(n, i) for i, n in enumerate(("Desk", "Laptop", "GPU")))
        gpu.devices = devices("cuda")
        laptop.errors["measure_sums"] = failing(PeerLostError("gone"))
        pairs = [(desk, laptop), (desk, gpu)]

        for _ in range(2):
            await measurements.sums.measure(pairs)
            assert measurements.sums.known() == {}
            assert laptop.calls == ["measure_sums"]
        now += FAILED_AGE_S
        await measurements.sums.measure(pairs)
        assert set(measurements.sums.known()) == {(desk.node_id, laptop.node_id)}

    run(main())


def test_no_plan_waits_long_for_sums_and_the_pair_that_takes_so_long_is_left_for_a_while() -> None:
    async def main() -> None:
        sums = Sums(clock=lambda: 0.0, date=lambda: 0.0, changed=lambda: None, limit_s=0.05)
        desk, laptop, mac = (FakeComputer(n, i) for i, n in enumerate(("Desk", "Laptop", "Mac")))
        laptop.gates["measure_sums"] = asyncio.Event()  # it stands still
        pairs = [(desk, laptop), (desk, mac)]
        async with asyncio.timeout(10):
            await sums.measure(pairs)
        assert sums.known() == {}
        await sums.measure(pairs)
        assert laptop.calls == ["measure_sums"]
        assert set(sums.known()) == {(desk.node_id, mac.node_id)}

    run(main())


def test_a_master_that_was_started_again_knows_the_sums(tmp_path: Path) -> None:
    async def main() -> None:
        desk = FakeComputer("Desk", 1)
        desk.devices = devices("cpu", "cpu")  # which sum in memory
        before, after = (
            Measurements(kept=KeptMeasurements(tmp_path / "measurements.json")) for _ in range(2)
        )
        await before.sums.measure([(desk, desk)])
        assert desk.calls == ["measure_sums"] * 2
        after = Measurements(kept=KeptMeasurements(tmp_path / "measurements.json"))
        assert after.sums.known() == before.sums.known() != {}

    run(main())


def test_the_time_of_a_sum_is_a_latency_and_a_time_for_each_byte() -> None:
    def times(*each: tuple[int, float]) -> list[SumTime]:
        return [SumTime(nbytes=nbytes, ms=ms) for nbytes, ms in each]

    cost = cost_of([times((100, 1.0), (1100, 2.0))] * 2)
    assert (cost.latency_ms, cost.ms_per_byte) == pytest.approx((0.9, 0.001))
    flat = cost_of([times((100, 2.0), (1100, 1.0))])
    assert flat == HopCost(latency_ms=2.0, ms_per_byte=0.0)
    for wrong in (
        [[], []],
        [times((100, 1.0))],
        [times((100, 1.0), (200, 1.0)), times((100, 1.0), (300, 1.0))],
        [times((200, 1.0), (100, 1.0))],
        [times((100, 1.0), (100, 1.0))],
    ):
        with pytest.raises(RemoteProtocolError):
            cost_of(wrong)
