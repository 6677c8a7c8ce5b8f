"""Two nodes as processes of their own: the second one takes the engine from the first, without the Internet."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import pytest
from tiny_wheels import lock_text, make_wheels
from wheel_server import WheelServer, serving

from potluck.api.values.engine import Engine, EngineRequest
from potluck.api.values.schema import ClusterState
from potluck.client import Client
from potluck.launch import find
from potluck.settings import Folders

pytestmark = [pytest.mark.net, pytest.mark.slow]

T = TypeVar("T")
PATIENCE_S = 60.0
# A node whose Python has no torch, though that of the tests has it.
_NODE = """\
import asyncio, sys
from pathlib import Path
from typing import TypeVar
from potluck.cluster.node import Node
from potluck.cluster.runtime.keeper import Release
from potluck.runtime.choice import read_locks
from potluck.settings import Folders

async def main():
    release = Release(locks=lambda: read_locks(Path(sys.argv[2])), has_torch=lambda: False)
    await Node(Folders.of(Path(sys.argv[1])), release=release).run()

asyncio.run(main())
"""


@contextmanager
def node(home: Path, locks: Path, index: str | None = None) -> Generator[Client]:
    """A node in a process, and a client of it."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    environment.pop("POTLUCK_ENGINE_INDEX", None)
    if index is not None:
        environment["POTLUCK_ENGINE_INDEX"] = index
    command = [sys.executable, "-c", _NODE, str(home), str(locks)]
    with subprocess.Popen(command, env=environment) as process:
        try:
            yield until(lambda: find(Folders.of(home)))
        finally:
            process.terminate()
            process.wait(PATIENCE_S)


def until(look: Callable[[], T | None]) -> T:
    ends_at = time.monotonic() + PATIENCE_S
    while time.monotonic() < ends_at:
        if found := look():
            return found
        time.sleep(0.05)
    raise AssertionError("it did not come to that")


def installed(client: Client) -> Engine:
    client.change_engine(EngineRequest(action="install"))

    def look() -> Engine | None:
        engine = client.state().engine
        assert engine is not None
        assert engine.phase != "failed", engine.message
        return engine if engine.phase == "ready" else None

    return until(look)


def test_the_second_computer_takes_the_engine_from_the_first(tmp_path: Path) -> None:
    paths = make_wheels(tmp_path / "made", filling=3_000_000)
    nbytes = sum(path.stat().st_size for path in paths)
    locks = tmp_path / "locks"
    locks.mkdir()
    for variant in ("cpu", "metal"):
        (locks / f"pylock.{variant}.toml").write_text(lock_text(paths, variant=variant))
    internet = WheelServer({f"/{path.name}": path.read_bytes() for path in paths})

    def is_helped(state: ClusterState) -> bool:
        return bool(state.node.lent_to)

    with serving(internet), node(tmp_path / "attic", locks, f"{internet.address}/simple") as attic:
        assert installed(attic).from_internet == nbytes
        asked = len(internet.asked)
        with node(tmp_path / "study", locks) as study:
            study.join(attic.invite().token)
            until(lambda: is_helped(study.state()))

            engine = installed(study)

            assert (engine.from_home, engine.from_internet) == (nbytes, 0)
            assert engine.version == "2.13.0"
            assert len(internet.asked) == asked
