"""What the owner of a node lends of the computer, and for how long."""

import time
from pathlib import Path

import pytest
from fake_cluster import Run, until
from whole_nodes import eventually, folders_of, running

from potluck.api.values.politeness import Facts, Rules
from potluck.api.values.schema import RoleRequest
from potluck.cluster.events import Changed
from potluck.cluster.node import Node
from potluck.errors import UsageError
from potluck.settings import Settings, load_settings, save_settings

pytestmark = [pytest.mark.slow, pytest.mark.net, pytest.mark.usefixtures("guide")]


def test_a_worker_computes_with_as_many_threads_as_its_owner_says(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        folders = folders_of(tmp_path, "Laptop")
        node = Node(folders)
        told: list[int | None] = []
        monkeypatch.setattr(node.processes, "compute_with", told.append)

        await node.backend.set_role(RoleRequest(worker=True, threads=3))
        await node.backend.set_role(RoleRequest(worker=True))
        assert load_settings(folders.settings_file).threads == 3
        with node.lending.computing_with(1):
            assert told[-1] == 1
        assert told[-1] == 3
        await node.backend.set_role(RoleRequest(worker=False, threads=0))

        assert told == [3, 3, 1, 3, None]
        assert load_settings(folders.settings_file).threads is None

    run(main())


def test_the_limit_of_sending_is_set_while_the_node_runs_and_leaves_the_rest_as_it_is(
    tmp_path: Path, run: Run
) -> None:
    async def main() -> None:
        folders = folders_of(tmp_path, "Desk")
        node = Node(folders)

        await node.backend.set_role(RoleRequest(upload_limit_mbit=80))
        assert node.throttle.rate(None) == 10_000_000
        assert node.backend.state().node.upload_limit_mbit == 80
        assert load_settings(folders.settings_file) == Settings(name="Desk", upload_limit_mbit=80)

        await node.backend.set_role(RoleRequest(worker=True))
        assert node.throttle.rate(None) == 10_000_000
        await node.backend.set_role(RoleRequest(upload_limit_mbit=0))
        assert node.throttle.rate(None) is None
        assert load_settings(folders.settings_file) == Settings(name="Desk", worker=True)

    run(main())


def test_a_master_that_needs_a_computer_never_hears_that_it_is_gone_before_it_has_left(
    tmp_path: Path, run: Run
) -> None:
    async def main() -> None:
        node = Node(folders_of(tmp_path, "Laptop"))
        await node.backend.set_role(RoleRequest(worker=True))
        node.worker.is_idle.clear()
        told: list[bool] = []
        node.events.on(Changed, lambda _: told.append(node.worker.is_gone))

        await node.backend.set_role(RoleRequest(paused=True))
        assert told
        assert not any(told)
        node.lending.go()
        await until(lambda: not node.worker.is_leaving)
        assert told[-1]

    run(main())


def test_a_loan_that_somebody_holds_ends_when_they_are_gone(tmp_path: Path, run: Run) -> None:
    """Also when the command was killed, or the computer was switched off."""

    async def main() -> None:
        folders = folders_of(tmp_path, "Laptop")
        node = Node(folders)
        lease = RoleRequest(worker=True, memory=5, while_held=True)

        with pytest.raises(UsageError):
            await node.backend.set_role(lease)
        with node.activity.hold("worker"), node.activity.hold("window"):
            await node.backend.set_role(lease)
            lent = node.backend.state().node
            assert (lent.role, lent.memory_limit) == ("worker", 5)
            assert load_settings(folders.settings_file) == Settings(name="Laptop")

        after = node.backend.state().node
        assert (after.role, after.memory_limit) == ("idle", None)

    run(main())


def test_what_is_set_for_good_during_a_loan_stays(tmp_path: Path, run: Run) -> None:
    async def main() -> None:
        folders = folders_of(tmp_path, "Laptop")
        node = Node(folders)

        with node.activity.hold("worker"):
            await node.backend.set_role(RoleRequest(worker=True, memory=5, while_held=True))
            await node.backend.set_role(RoleRequest(worker=True, paused=True))
            assert node.backend.state().node.memory_limit == 5

        assert node.backend.state().node.role == "worker"
        assert load_settings(folders.settings_file) == Settings(
            name="Laptop", worker=True, paused=True
        )

    run(main())


def test_a_pause_from_elsewhere_does_not_end_what_a_program_lends(tmp_path: Path, run: Run) -> None:
    """`potluck pause` and `resume`, while `potluck worker` runs in another terminal."""

    async def main() -> None:
        node = Node(folders_of(tmp_path, "Laptop"))
        with node.activity.hold("worker"):
            await node.backend.set_role(RoleRequest(worker=True, while_held=True))
            await node.backend.set_role(RoleRequest(paused=True))
            assert node.worker.is_paused
            await node.backend.set_role(RoleRequest(paused=False))

            assert not node.worker.is_away
        assert node.worker.is_away

    run(main())


@pytest.mark.usefixtures("no_engine")
def test_a_pause_is_kept_over_a_restart_of_the_node_and_ends_by_itself(
    tmp_path: Path, run: Run
) -> None:
    folders = folders_of(tmp_path, "Laptop")
    late = time.time() + 3600

    async def paused() -> None:
        async with running(folders) as laptop:
            await laptop.backend.set_role(RoleRequest(worker=True, paused=True, paused_until=late))

    async def restarted() -> None:
        async with running(folders) as laptop:
            told = laptop.backend.state().node
            assert (told.role, told.paused, told.paused_until) == ("worker", True, late)
            await laptop.backend.set_role(RoleRequest(paused=True, paused_until=time.time()))
            laptop.lending.look(Facts(), 0.0)
            told = laptop.backend.state().node
            assert (told.role, told.paused, told.paused_until) == ("worker", False, None)

    run(paused())
    run(restarted())
    assert load_settings(folders.settings_file) == Settings(name="Laptop", worker=True)


def test_a_pause_that_ended_while_the_node_was_away_is_over(tmp_path: Path, run: Run) -> None:
    async def main() -> None:
        folders = folders_of(tmp_path, "Laptop")
        past = Settings(name="Laptop", worker=True, paused=True, paused_until=1.0)
        save_settings(folders.settings_file, past)

        assert not Node(folders).worker.is_paused

    run(main())


def test_a_pause_that_ends_leaves_what_a_program_lends_for_itself_as_it_is(
    tmp_path: Path, run: Run
) -> None:
    async def main() -> None:
        node = Node(folders_of(tmp_path, "Laptop"))
        with node.activity.hold("worker"):
            await node.backend.set_role(RoleRequest(worker=True, memory=5, while_held=True))
            held = RoleRequest(paused=True, paused_until=1.0, while_held=True)
            await node.backend.set_role(held)
            node.lending.look(Facts(), 0.0)

            assert not node.worker.is_paused
            assert node.backend.state().node.memory_limit == 5

    run(main())


@pytest.mark.parametrize("paused_until", [None, 1 << 39])
def test_memory_that_is_freed_now_is_not_waited_for_and_not_lent_again_for_an_hour(
    tmp_path: Path, run: Run, paused_until: float | None
) -> None:
    """A pause that is there already stays as long as it is."""

    async def main() -> None:
        node = Node(folders_of(tmp_path, "Laptop"))
        await node.backend.set_role(RoleRequest(worker=True))
        node.worker.is_idle.clear()  # a master has a lease, and would be waited for
        if paused_until is not None:
            await node.backend.set_role(RoleRequest(paused=True, paused_until=paused_until))
            assert node.worker.is_leaving
        now = time.time()
        await node.backend.set_role(RoleRequest(free_now=True))

        await until(lambda: node.worker.is_gone)
        told = node.backend.state().node
        assert told.paused
        if paused_until is None:
            assert told.paused_until == pytest.approx(now + 3600, abs=60)
        else:
            assert told.paused_until == paused_until

    run(main())


def test_a_polite_worker_withdraws_with_its_reason_and_comes_back_by_itself(
    tmp_path: Path, run: Run
) -> None:
    async def main() -> None:
        folders = folders_of(tmp_path, "Laptop")
        node = Node(folders)
        await node.backend.set_role(RoleRequest(worker=True))
        node.worker.is_idle.clear()  # a master has a lease, and has its time
        node.lending.look(Facts(is_on_battery=True), 0.0)
        assert node.worker.is_leaving
        node.lending.look(Facts(is_full_screen=True), 10.0)  # does not hurry the departure
        assert node.worker.is_leaving
        node.lending.go()
        await until(lambda: node.worker.is_gone)
        told = node.backend.state().node
        assert (told.withheld, told.paused) == ("games", False)
        assert node.worker.reason == "games"

        await node.backend.set_role(RoleRequest(rules=Rules(games=False)))
        assert node.worker.is_gone  # by the next look
        node.lending.look(Facts(is_full_screen=True), 20.0)
        assert not node.worker.is_away
        assert load_settings(folders.settings_file).rules == Rules(games=False)

        node.lending.look(Facts(is_on_battery=True), 30.0)
        await node.backend.set_role(RoleRequest(worker=False))
        node.lending.look(Facts(), 31.0)
        assert node.worker.reason is None  # one that is no worker has nothing to withhold

    run(main())


def test_a_limit_that_is_set_while_the_engine_starts_holds(tmp_path: Path, run: Run) -> None:
    async def main() -> None:
        async with running(folders_of(tmp_path, "Small")) as small:
            assert not small.processes.devices
            await small.backend.set_role(RoleRequest(worker=True, memory=54_321))
            await eventually(
                small,
                lambda: (
                    small.processes.devices and small.processes.devices[0].memory_free == 54_321
                ),
            )

    run(main())
