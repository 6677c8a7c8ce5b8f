"""What a doctor with a node says: two whole nodes, which look at no network but loopback."""

import time
from pathlib import Path

import pytest
from fake_cluster import Run
from whole_nodes import eventually, folders_of, running

from potluck.api.values.doctor import Finding
from potluck.api.values.schema import RoleRequest
from potluck.cluster.node import Node
from potluck.errors import RemoteError
from potluck.wire.messages import Address

pytestmark = [pytest.mark.slow, pytest.mark.net]


async def found(node: Node) -> dict[str, Finding]:
    return {f.code: f for f in (await node.backend.examine()).findings}


def test_paired_computers_try_each_others_ports_and_compare_their_clocks(
    desk: Node, laptop: Node, run: Run
) -> None:
    async def main() -> None:
        await eventually(laptop, lambda: laptop.links.masters())
        main_computer, helper = await found(desk), await found(laptop)

        assert main_computer["firewall_reached"].data["names"] == "Laptop"
        assert main_computer["computers_connected"].data["names"] == "Laptop"
        assert main_computer["clock_ok"].data["names"] == "Laptop"
        assert {"versions_ok", "disk_ok", "identity_ok"} <= main_computer.keys()
        assert helper["firewall_reached"].data["names"] == "Desk"
        assert helper["clock_ok"].data["names"] == "Desk"

    run(main())


def test_a_port_that_the_helper_cannot_reach_is_a_problem(
    desk: Node, laptop: Node, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    nowhere = (Address(host="127.0.0.1", port=1),)
    monkeypatch.setattr(desk.presence, "addresses", lambda: nowhere)

    async def main() -> None:
        finding = (await found(desk))["firewall_not_reached"]
        assert finding.data["names"] == "Laptop"

        await laptop.backend.set_role(RoleRequest(worker=False))
        (worker,) = desk.membership.connected()
        with pytest.raises(RemoteError):
            await worker.measure_link_to(desk.identity.node_id, nowhere)
        assert "firewall_not_reached" not in await found(desk)  # a paused helper tries nothing
        await laptop.backend.set_role(RoleRequest(worker=True))

    run(main())


def test_a_clock_that_was_changed_while_both_are_connected_is_noticed(
    desk: Node, laptop: Node, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    doctor_of_desk = desk.backend._parts.doctor
    monkeypatch.setattr(doctor_of_desk, "_now", lambda: time.time() + 7300)

    async def main() -> None:
        assert (await found(desk))["clock_differs"].data["difference"] == "2 hours"

    run(main())


@pytest.mark.usefixtures("desk")
def test_a_computer_that_is_only_found_is_asked_whether_it_answers(
    tmp_path: Path, run: Run
) -> None:
    async def main() -> None:
        async with running(folders_of(tmp_path, "Fresh")) as fresh:
            codes = await found(fresh)
        assert codes["computers_answer"].data["names"] == "Desk and Laptop"
        assert {"network_none", "firewall_unknown", "clock_alone"} <= codes.keys()

    run(main())
