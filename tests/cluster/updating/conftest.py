"""A computer with a package, and a newer one."""

from collections.abc import Generator
from pathlib import Path

import pytest
from releases import make_archive
from updated_computer import NEW, Computer
from wheel_server import WheelServer, serving


@pytest.fixture
def computer(tmp_path: Path) -> Generator[Computer]:
    with serving(WheelServer()) as server:
        computer = Computer(tmp_path, server)
        yield computer
        computer.store.close()


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    return make_archive(tmp_path / "made", NEW)
