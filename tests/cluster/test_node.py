"""One whole node with a real stage process; only discovery is without a network."""

import asyncio
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from fake_cluster import Run
from whole_nodes import chat, folders_of, running, stages

from potluck.api.values.schema import RoleRequest
from potluck.cluster import serving
from potluck.cluster.master.models import guide_folder
from potluck.cluster.node import Node
from potluck.cluster.node_parts import NodeDeadlines
from potluck.cluster.processes.handle import StageHandle
from potluck.cluster.processes.messages import StageSettings
from potluck.ids import NodeId
from potluck.settings import AlreadyRunningError, exclusive, read_node_file

pytestmark = [pytest.mark.slow, pytest.mark.net, pytest.mark.usefixtures("guide")]


def test_a_fresh_computer_alone_answers_with_the_guide(
    guide: Path, tmp_path: Path, run: Run
) -> None:
    async def main() -> None:
        async with running(folders_of(tmp_path, "Fresh")) as fresh:
            assert fresh.backend.state().node.role == "idle"
            assert [model.name for model in fresh.backend.state().served] == [guide.name]
            assert await chat(fresh)
            assert stages(fresh) == ["Fresh"]
            assert (await fresh.backend.library.models())[0].current
        assert read_node_file(folders_of(tmp_path, "Fresh")) is None

    run(main())


IMPATIENT = NodeDeadlines(idle_s=1e-9, idle_check_s=0.01)


@pytest.mark.usefixtures("no_engine")
def test_a_node_that_nobody_needs_ends_by_itself(tmp_path: Path, run: Run) -> None:
    async def main() -> None:
        folders = folders_of(tmp_path, "Idle")
        await Node(folders, deadlines=IMPATIENT).run()
        assert read_node_file(folders) is None

    run(main())


def test_the_model_is_given_back_before_the_node_ends(tmp_path: Path, run: Run) -> None:
    async def main() -> None:
        folders = folders_of(tmp_path, "Idle")
        node = Node(folders, deadlines=IMPATIENT)
        serving = asyncio.create_task(node.run())
        with node.activity.hold("window"):
            assert await chat(node)
            assert node.master.is_ready
        await serving
        assert node.master.deployment is None

    run(main())


PROMPT = NodeDeadlines(idle_check_s=0.01)


@pytest.mark.parametrize("is_answering", [False, True])
def test_a_window_that_is_closed_leaves_no_model_behind(
    tmp_path: Path, run: Run, *, is_answering: bool
) -> None:
    """Also when its last answer is noticed to be unwanted a moment later."""

    async def main() -> None:
        node = Node(folders_of(tmp_path, "Desk"), deadlines=PROMPT)
        serving = asyncio.create_task(node.run())
        with ExitStack() as answer:
            with node.activity.hold("window"):
                assert await chat(node)
                if is_answering:
                    answer.enter_context(node.activity.hold("request"))
            assert node.master.is_ready
        await serving
        assert node.master.deployment is None

    run(main())


def test_a_window_that_is_closed_leaves_the_model_to_who_else_uses_it(
    tmp_path: Path, run: Run
) -> None:
    async def main() -> None:
        async with running(folders_of(tmp_path, "Desk")) as node:
            with node.activity.hold("serve"):
                with node.activity.hold("window"):
                    assert await chat(node)
                await node._end_if_idle()
                assert node.master.is_ready

    run(main())


@pytest.mark.usefixtures("no_engine")
def test_a_node_ends_with_the_program_that_lent_it(tmp_path: Path, run: Run) -> None:
    async def main() -> None:
        node = Node(folders_of(tmp_path, "Lent"), deadlines=NodeDeadlines(idle_check_s=0.01))
        serving = asyncio.create_task(node.run())
        with node.activity.hold("worker"):
            await node.backend.set_role(RoleRequest(worker=True, while_held=True))
        await serving

    run(main())


@pytest.mark.usefixtures("no_engine")
def test_a_node_that_the_system_ends_can_be_started_again_by_those_who_use_it(
    tmp_path: Path, run: Run
) -> None:
    async def main() -> None:
        folders = folders_of(tmp_path, "Killed")
        async with running(folders) as node:
            node.interrupt()
        assert read_node_file(folders) is not None

    run(main())


def test_a_shutdown_that_is_asked_for_ends_it(tmp_path: Path, run: Run) -> None:
    async def main() -> None:
        folders = folders_of(tmp_path, "Short")
        async with running(folders) as node:
            node_file = read_node_file(folders)
            assert node_file is not None
            assert node_file.version == node.backend.health().version
            await node.backend.shutdown()

    run(main())


def test_the_engine_hears_of_whatever_changes_in_whom_this_computer_trusts(
    tmp_path: Path, run: Run
) -> None:
    """A stage process that went on trusting a removed computer would go on working with it."""

    async def main() -> None:
        node = Node(folders_of(tmp_path, "Desk"))
        told: list[StageSettings] = []
        handle = SimpleNamespace(devices=(), change=told.append)
        node.processes._best.running = cast("StageHandle", handle)

        node.identity.create_home("Desk")
        assert len(told) == 1
        node.identity.revoke(NodeId("1a" * 32))
        assert len(told) == 2

    run(main())


def test_a_user_has_one_node(tmp_path: Path) -> None:
    folders = folders_of(tmp_path, "One")
    with exclusive(folders.node_lock), pytest.raises(AlreadyRunningError):
        serving.run(folders, wait_s=0)


def test_the_model_that_comes_along_is_found() -> None:
    assert (guide_folder() / "config.json").is_file()
