"""What the owner of a node lends of the computer, and for how long."""

from pathlib import Path

import pytest
from fake_cluster import Run, until
from whole_nodes import eventually, folders_of, running

from potluck.api.schema import RoleRequest
from potluck.cluster.events import Changed
from potluck.cluster.node import Node
from potluck.errors import UsageError
from potluck.settings import Settings, load_settings

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

        assert node.backend.state().node.role == "worker"
        assert load_settings(folders.settings_file) == Settings(
            name="Laptop", worker=True, paused=True
        )

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
