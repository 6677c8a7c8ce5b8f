"""Finding the node."""

import os
from pathlib import Path

import pytest
from fake_backend import TOKEN, Server

from potluck.settings import Folders, NodeFile, write_node_file
from potluck_app.http import Endpoint
from potluck_app.launcher import find_or_start

pytestmark = pytest.mark.net


def test_a_running_node_is_found_by_its_file(server: Server, tmp_path: Path) -> None:
    folders = Folders.of(tmp_path)
    here = NodeFile(pid=os.getpid(), port=server.port, token=TOKEN, version="0")
    write_node_file(folders, here)

    assert find_or_start(folders) == Endpoint(port=server.port, token=TOKEN)
