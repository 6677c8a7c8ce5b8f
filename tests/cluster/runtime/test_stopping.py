"""An install that is stopped, at a moment that the test chooses."""

import asyncio
from pathlib import Path

import pytest
from kept_engine import INSTALL, KeptEngine, done
from tiny_wheels import TORCH, zip_wheel

from potluck.api.values.engine import EngineRequest

pytestmark = pytest.mark.net


class Trial:
    """Hears of a trial: its torch connects when it is imported, and goes on when it is told so."""

    def __init__(self) -> None:
        self.tried: asyncio.Queue[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = (
            asyncio.Queue()
        )

    async def listen(self, folder: Path) -> tuple[asyncio.Server, Path]:
        """Returns what listens, and the wheel of that torch."""

        async def connected(reader, writer) -> None:
            await self.tried.put((reader, writer))

        server = await asyncio.start_server(connected, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        waits = f"import socket\nsocket.create_connection(('127.0.0.1', {port})).recv(1)\n"
        text = waits.encode() + TORCH["torch/__init__.py"]
        wheel = zip_wheel(folder / "torch-2.13.0-py3-none-any.whl", {"torch/__init__.py": text})
        return server, wheel


def test_an_install_that_is_stopped_while_it_is_tried_ends_and_can_be_begun_again(
    engine: KeptEngine, tmp_path: Path
) -> None:
    async def install() -> None:
        trial = Trial()
        server, wheel = await trial.listen(tmp_path)
        engine.publish(wheel)
        async with server, asyncio.timeout(60):
            its = engine.keeper([wheel])
            await its.look()
            await its.change(INSTALL)
            reader, writer = await trial.tried.get()

            state = await its.change(EngineRequest(action="stop"))

            await done(its)
            assert await reader.read() == b""  # the process is gone
            writer.close()
            assert state.phase == its.state.phase == "missing"
            assert not its.is_there
            assert its.folder() is None

            await its.change(INSTALL)
            _, writer = await trial.tried.get()
            writer.write(b"1")
            await its.wait()
            writer.close()
            assert its.state.phase == "ready"

    asyncio.run(install())


def test_stopping_while_the_one_before_is_used_leaves_that_one(
    engine: KeptEngine, tmp_path: Path
) -> None:
    async def install() -> None:
        first = await engine.installed()
        folder = first.folder()

        trial = Trial()
        server, wheel = await trial.listen(tmp_path)
        engine.publish(wheel)
        async with server, asyncio.timeout(60):
            second = engine.keeper([wheel])
            await second.look()
            await second.change(INSTALL)
            _, writer = await trial.tried.get()
            await second.change(EngineRequest(action="stop"))
            await done(second)
            writer.close()

        assert second.is_there
        assert second.state.phase == "ready"
        assert second.folder() == folder

    asyncio.run(install())
