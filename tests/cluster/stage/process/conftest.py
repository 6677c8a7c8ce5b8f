"""Two computers whose stage processes run as long as a file's tests."""

import asyncio
from collections.abc import Iterator

import pytest
from stage_nodes import StageNode


@pytest.fixture(scope="module")
def nodes(
    runner: asyncio.Runner, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[StageNode, StageNode]]:
    """A master and a worker of its home, both with a running process."""
    folder = tmp_path_factory.mktemp("nodes")
    desk = StageNode("Desk", folder / "desk")
    laptop = StageNode("Laptop", folder / "laptop", desk.identity)

    async def start() -> None:
        await asyncio.gather(desk.handle.start(), laptop.handle.start())

    async def stop() -> None:
        await asyncio.gather(desk.handle.stop(), laptop.handle.stop())

    runner.run(start())
    yield desk, laptop
    runner.run(stop())
    assert desk.exits == laptop.exits == []  # none died of what the tests did


@pytest.fixture
def desk(nodes: tuple[StageNode, StageNode]) -> StageNode:
    nodes[0].failures.clear()
    return nodes[0]


@pytest.fixture
def laptop(nodes: tuple[StageNode, StageNode]) -> StageNode:
    nodes[1].failures.clear()
    return nodes[1]
