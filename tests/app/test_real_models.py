"""The window gets a model from a Hub on loopback by a real node, and goes on after the node is killed."""

import json
import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
import shared_kernels
from byte_model import make_byte_model
from hub_stand_in import HubStandIn, Repo, serving_hub
from pytestqt.qtbot import QtBot

from potluck import launch
from potluck.settings import Folders, read_node_file
from potluck_app.backend import Backend
from potluck_app.launcher import find_or_start
from potluck_app.viewmodels.library import Library

HANG_S = 600  # ends a hang; a busy machine is slow
WAIT_MS = 1000 * HANG_S // 2

pytestmark = [pytest.mark.qt, pytest.mark.net, pytest.mark.slow, pytest.mark.timeout(HANG_S)]

NAME = "anna/bytes"


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[HubStandIn]:
    model = make_byte_model(tmp_path / "bytes")
    with serving_hub() as hub:
        files = {path.name: path.read_bytes() for path in model.iterdir() if path.is_file()}
        info = {"config": json.loads(files["config.json"])}
        hub.add(Repo(NAME, files, info))
        yield hub


@pytest.fixture
def folders(tmp_path: Path, hub: HubStandIn, monkeypatch: pytest.MonkeyPatch) -> Iterator[Folders]:
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")  # of the node; the Hub is on loopback
    monkeypatch.setenv("HF_ENDPOINT", hub.address)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    shared_kernels.share_with(tmp_path / "home")
    folders = Folders.of(tmp_path / "home", {})
    yield folders
    if (client := launch.find(folders)) is not None:
        client.shutdown()


def kill(folders: Folders) -> None:
    """End the node as a power failure would, with all its processes."""
    node = read_node_file(folders)
    assert node is not None
    process = psutil.Process(node.pid)
    for each in (process, *process.children(recursive=True)):  # else it notes that they have failed
        with suppress(psutil.NoSuchProcess):
            each.kill()


def bytes_there(cache: Path) -> int:
    """Return how much there is of files that are not whole; a small one may be whole by now."""
    sizes: list[int] = []
    for path in cache.rglob("*.incomplete"):
        with suppress(FileNotFoundError):
            sizes.append(path.stat().st_size)
    return sum(sizes)


def test_a_download_goes_on_after_its_node_was_killed(
    folders: Folders, hub: HubStandIn, qtbot: QtBot, tmp_path: Path
) -> None:
    backend = Backend(lambda: find_or_start(folders))
    library = Library(backend)
    seen: list[str] = []
    backend.connection_changed.connect(lambda connection, _: seen.append(connection))

    try:
        with qtbot.waitSignal(backend.state_changed, timeout=WAIT_MS):
            backend.start()
        hub.held.clear()
        hub.hold_after = 1 << 19  # half of the weights
        library.download(NAME, "safetensors")
        qtbot.waitUntil(lambda: bytes_there(tmp_path / "hf") > 1 << 18, timeout=WAIT_MS)

        kill(folders)
        qtbot.waitUntil(lambda: "restarting" in seen, timeout=WAIT_MS)
        hub.held.set()
        qtbot.waitUntil(lambda: any(row.path for row in library.downloads), timeout=WAIT_MS)
        assert hub.ranges[0] is None
        assert hub.ranges[-1] is not None  # only the rest came
    finally:
        backend.close()
