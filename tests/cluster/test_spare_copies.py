"""Three whole nodes in one process: what a loss would need is on the others' disks already."""

from pathlib import Path

import pytest
from fake_cluster import Run
from whole_nodes import chat, eventually, folders_of, half_of, load, running, stages

from potluck.api.values.schema import PlanRequest, RoleRequest
from potluck.cluster.master.deadlines import PlanningDeadlines
from potluck.cluster.node import Node

pytestmark = [pytest.mark.slow, pytest.mark.net]

CONTEXT = 128
SPLIT = PlanRequest(
    layers=(("Desk", 2), ("Laptop", 2), ("Attic", 2)), context=CONTEXT, scheme="f32"
)


def stored(node: Node) -> dict[str, bool]:
    """Whether each computer with spare copies has all of them."""
    return {
        computer.name: computer.spare.stored == computer.spare.nbytes
        for computer in node.backend.state().computers
        if computer.spare is not None
    }


def test_the_loss_of_a_worker_sends_nothing(guide: Path, tmp_path: Path, run: Run) -> None:
    async def main() -> None:
        limit = half_of(guide, context=CONTEXT)
        quiet = PlanningDeadlines(settle_s=0.0, quiet_s=0.0, improve_s=0.0)
        desks, laptops, attics = (
            folders_of(tmp_path, name, memory_limit=limit) for name in ("Desk", "Laptop", "Attic")
        )
        async with running(desks, quiet) as desk, running(laptops) as laptop:
            async with running(attics) as attic:
                for worker in (laptop, attic):
                    await worker.backend.set_role(RoleRequest(worker=True))
                    invite = await desk.backend.invite()
                    await worker.backend.join(invite.token)
                await eventually(desk, lambda: len(desk.membership.available()) == 2)
                await eventually(desk, lambda: all(c.devices for c in desk.membership.connected()))
                await load(desk, SPLIT)
                answer = await chat(desk)
                await eventually(desk, lambda: stored(desk) == {"Laptop": True, "Attic": True})

            assert await chat(desk) == answer
            deployment = desk.master.deployment
            assert deployment is not None
            assert sorted(stages(desk)) == ["Desk", "Laptop"]
            assert sum(deployment.streamed_bytes.values()) == 0

    run(main())
