"""Three whole nodes in one process: layers that move to another worker come from the worker that had them."""

import logging
from pathlib import Path

import pytest
from fake_cluster import Run
from whole_nodes import chat, eventually, folders_of, load, running

from potluck.api.values.schema import PlanRequest, RoleRequest

pytestmark = [pytest.mark.slow, pytest.mark.net, pytest.mark.usefixtures("guide")]

BEFORE = PlanRequest(layers=(("Desk", 2), ("Laptop", 4)), context=128)
AFTER = PlanRequest(layers=(("Desk", 2), ("Laptop", 2), ("Attic", 2)), context=128)


def test_layers_that_move_are_sent_by_the_worker_that_had_them_if_its_link_is_faster(
    tmp_path: Path, run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "potluck.cluster.worker.weights")

    async def main() -> None:
        async with (
            running(folders_of(tmp_path, "Desk")) as desk,
            running(folders_of(tmp_path, "Laptop")) as laptop,
            running(folders_of(tmp_path, "Attic")) as attic,
        ):
            for worker in (laptop, attic):
                await worker.backend.set_role(RoleRequest(worker=True))
                invite = await desk.backend.invite()
                await worker.backend.join(invite.token)
            await eventually(desk, lambda: len(desk.membership.available()) == 2)
            await eventually(desk, lambda: all(c.devices for c in desk.membership.connected()))
            await load(desk, BEFORE)
            answer = await chat(desk)

            await desk.backend.set_role(RoleRequest(upload_limit_mbit=8))  # the slower link
            sent = await load(desk, AFTER)

            assert sent["Attic"] > 0
            assert "weights passed on" in caplog.text
            assert await chat(desk) == answer

    run(main())
