"""The process of a node: what it allows others, and itself."""

import logging
import os
import stat
import sys
from pathlib import Path

import pytest

from potluck.cluster import serving
from potluck.settings import Folders

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="POSIX's permissions and limits")


def test_what_a_node_writes_is_its_users_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also files of tensors, which are written without a mode of their own."""
    folders = Folders.of(tmp_path / "home", {})

    async def work(_: Folders) -> None:
        (tmp_path / "tensors").mkdir()
        (tmp_path / "tensors" / "one").write_bytes(b"weights")

    monkeypatch.setattr(serving, "_run", work)
    monkeypatch.setattr(serving, "_log_to", lambda _: None)
    before = os.umask(0o022)
    try:
        serving.run(folders)
    finally:
        os.umask(before)

    modes = [stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "tensors").rglob("*")]
    assert modes == [0o600]
    assert stat.S_IMODE((tmp_path / "tensors").stat().st_mode) == 0o700


def test_a_pulled_cable_is_a_line_in_the_log_and_a_bug_a_traceback(tmp_path: Path) -> None:
    serving._log_to(tmp_path / "log")
    handler = logging.getLogger().handlers[-1]
    try:
        for error in (OSError("Network is unreachable"), KeyError("a bug")):
            logging.getLogger("zeroconf").warning("It failed: %s", error, exc_info=error)
    finally:
        logging.getLogger().removeHandler(handler)
        handler.close()

    first, second, *rest = (tmp_path / "log").read_text().splitlines()
    assert first.endswith("It failed: Network is unreachable")
    assert second.endswith("It failed: 'a bug'")
    assert rest == ["KeyError: 'a bug'"]
