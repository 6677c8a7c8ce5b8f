"""A node as a process of the version that is in use, whoever starts it; one that does not come up is left."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from releases import make_root, make_tree

from potluck.client import Client
from potluck.settings import Folders, read_node_file
from potluck.update.versions import Versions

pytestmark = [
    pytest.mark.skipif(sys.platform == "win32", reason="the .tar.xz is for Linux"),
    pytest.mark.net,
]

_START = """\
import sys
from pathlib import Path
from potluck.launch import find_or_start
from potluck.settings import Folders
print(find_or_start(Folders.of(Path(sys.argv[1]))).health().version)
"""
# What does not come up with its owner's files, though all of it can be imported.
_ENDS = "if 'node' in sys.orig_argv: raise SystemExit('The settings cannot be read.')"


@pytest.fixture
def old(tmp_path: Path) -> Versions:
    return Versions(make_root(tmp_path / "potluck", "1.0.0"), "1.0.0")


@pytest.fixture
def start(tmp_path: Path) -> Callable[[Versions], str]:
    """Start a node as a program of the version that is running, and end it; returns the node's version."""

    def started(running: Versions) -> str:
        python = running.folder / running.own / "python" / "bin" / "python3"
        home = tmp_path / "home"
        done = subprocess.run(
            [python, "-c", _START, home], capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, done.stderr
        node = read_node_file(Folders.of(home))
        assert node is not None
        Client(node.port, node.token).shutdown()
        return done.stdout.strip()

    return started


def test_a_program_of_the_old_version_starts_the_node_of_the_new_one(
    old: Versions, start: Callable[[Versions], str]
) -> None:
    make_tree(old.new("2.0.0"), "2.0.0")
    old.add("2.0.0")
    old.switch("2.0.0")

    assert start(old) == "2.0.0"
    assert old.is_on_trial  # it has not run for long enough


def test_a_version_that_does_not_come_up_is_rolled_back_and_the_old_node_runs(
    old: Versions, start: Callable[[Versions], str]
) -> None:
    make_tree(old.new("2.0.0"), "2.0.0", code=_ENDS)
    old.add("2.0.0")
    old.switch("2.0.0")

    assert start(old) == "1.0.0"
    assert (old.root / "tree").readlink() == Path("versions/1.0.0")
    assert old.failed is not None
    assert old.failed.version == "2.0.0"
    assert "could not be started" in old.failed.why
