import asyncio

import pytest
from transfers import run

from potluck.errors import PeerLostError
from potluck.store.link import Together


def test_first_error_ends_the_others_and_comes_out_as_itself():
    ended: list[str] = []

    async def waiting() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("waiting")

    async def failing() -> None:
        raise PeerLostError("gone")

    async def main() -> None:
        async with Together() as tasks:
            tasks.create_task(waiting())
            tasks.create_task(failing())

    with pytest.raises(PeerLostError, match="gone"):
        run(main())
    assert ended == ["waiting"]


def test_without_an_error_all_are_waited_for():
    async def main() -> list[int]:
        async with Together() as tasks:
            results = [tasks.create_task(asyncio.sleep(0, number)) for number in range(3)]
        return [task.result() for task in results]

    assert run(main()) == [0, 1, 2]
