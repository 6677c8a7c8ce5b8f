"""What a master measured is there when it is started again."""

from pathlib import Path

import pytest
from fake_cluster import FakeComputer, run
from measured import measured, observe

from potluck.cluster.master.kept import MAX_AGE_S, KeptMeasurements
from potluck.cluster.master.measurements import Measurements


class Desk:
    """A master that is started again and again, and a worker that stays."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "cache" / "measurements.json"
        self.now = 1e9
        self.desk, self.laptop = FakeComputer("Desk", 1), FakeComputer("Laptop", 2)

    def started(self, measured_as: str = "1.0") -> Measurements:
        kept = KeptMeasurements(self.file, measured_as=measured_as, now=lambda: self.now)
        return Measurements(kept=kept, clock=lambda: self.now)

    async def measure(self, measurements: Measurements) -> list[str]:
        """What the computers are asked for a plan."""
        self.desk.calls, self.laptop.calls = [], []
        await measured(measurements, self.desk, self.laptop)
        await measurements.links.measure(self.desk, [self.laptop])
        return self.desk.calls + self.laptop.calls


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


ALL = ["profile", "measure_link_to", "profile"]


def test_a_master_that_was_started_again_measures_nothing_anew(desk: Desk) -> None:
    async def main() -> None:
        assert await desk.measure(desk.started()) == ALL
        desk.now += 3600  # longer than a running master takes a link for known
        again = desk.started()
        assert await desk.measure(again) == []
        assert again.links.between(desk.laptop.node_id, desk.desk.node_id) is not None

    run(main())


def test_a_correction_is_forgotten_and_the_profile_kept_as_it_was_measured(desk: Desk) -> None:
    async def main() -> None:
        before = desk.started()
        await desk.measure(before)
        observe(before, desk.laptop, 1000.0)
        _, laptop = await measured(desk.started(), desk.desk, desk.laptop)
        assert laptop.decode_ms == (1.0,)

    run(main())


@pytest.mark.parametrize("change", ["old", "back", "program", "damaged", "missing", "other form"])
def test_what_may_not_be_true_any_more_is_measured_again(desk: Desk, change: str) -> None:
    async def main() -> None:
        await desk.measure(desk.started())
        match change:
            case "old":
                desk.now += MAX_AGE_S
            case "back":
                desk.now -= 1
            case "damaged":
                desk.file.write_bytes(desk.file.read_bytes()[:-9])
            case "missing":
                desk.file.unlink()
            case "other form":
                desk.file.write_bytes(b'{"profiles": 3}')
            case _:
                pass
        measured_as = "2.0" if change == "program" else "1.0"
        assert await desk.measure(desk.started(measured_as)) == ALL

    run(main())


def test_profiles_at_another_speed_are_not_kept(desk: Desk) -> None:
    async def main() -> None:
        before = desk.started()
        await desk.measure(before)
        before.forget_profiles(desk.desk.node_id)
        assert await desk.measure(desk.started()) == ["profile"]

    run(main())


def test_a_disk_that_is_full_keeps_nobody_from_measuring(desk: Desk) -> None:
    async def main() -> None:
        desk.file.mkdir(parents=True)  # no file can be written there
        assert await desk.measure(desk.started()) == ALL

    run(main())
