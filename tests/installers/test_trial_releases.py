"""The releases that a try of updates is made with are those of one package, with other versions."""

import json
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from native.trial_releases import TrialReleases

from potluck.errors import IntegrityError
from potluck.update.release import read_release

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the .tar.xz is for Linux")


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A .tar.xz whose Python is this one."""
    tree = tmp_path / "potluck-1.0.0" / "tree"
    cluster = tree / "python" / "lib" / "python3.11" / "site-packages" / "potluck" / "cluster"
    cluster.mkdir(parents=True)
    (cluster.parent / "__init__.py").write_text('__version__ = "1.0.0"\n', encoding="utf-8")
    (cluster / "serving.py").write_text("def run(folders):\n    return False\n", encoding="utf-8")
    (tree / "python" / "bin").mkdir()
    python = tree / "python" / "bin" / "python3"
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n', encoding="utf-8")
    python.chmod(0o755)
    (tree / "potluck.json").write_text('{"version": "1.0.0", "kind": "tar"}', encoding="utf-8")
    archive = tmp_path / "potluck-1.0.0.tar.xz"
    with tarfile.open(archive, "w:xz") as tar:
        tar.add(tree.parent, tree.parent.name)
    return archive


def unpacked(package: Path, folder: Path) -> Path:
    with tarfile.open(package) as tar:
        tar.extractall(folder, filter="data")
    return next(folder.glob("*/tree"))


def ran(tree: Path, code: str) -> subprocess.CompletedProcess[str]:
    site = next(tree.glob("python/lib/python3*/site-packages"))
    words = [sys.executable, "-S", "-c", f"import sys; sys.path.insert(0, {str(site)!r}); {code}"]
    return subprocess.run(words, capture_output=True, text=True)


def test_each_version_says_so_and_the_last_one_ends_when_it_is_started(
    package: Path, tmp_path: Path
) -> None:
    releases = TrialReleases(package, tmp_path / "server", "http://127.0.0.1:1")
    keys = json.loads((unpacked(releases.package, tmp_path / "own") / "potluck.json").read_text())
    assert keys["updates"]["index"] == "http://127.0.0.1:1/release.json"

    issued: list[int] = []
    for version, starts in ((releases.newer, True), (releases.broken, False)):
        releases.publish(version)
        envelope = (tmp_path / "server" / "release.json").read_bytes()
        release = read_release(envelope, keys["updates"]["keys"])
        issued.append(release.issued)
        (listed,) = release.packages
        assert release.version == version
        tree = unpacked(tmp_path / "server" / listed.name, tmp_path / version)
        assert ran(tree, "import potluck; print(potluck.__version__)").stdout.strip() == version
        started = ran(tree, "from potluck.cluster.serving import run; run(None)")
        assert (started.returncode == 0) is starts
    assert "made to fail" in started.stderr
    releases.take_back()
    again = read_release(
        (tmp_path / "server" / "release.json").read_bytes(), keys["updates"]["keys"]
    )
    assert again.version == releases.own == "1.0.0"
    assert issued[0] < issued[1] < again.issued


def test_no_other_package_believes_them(package: Path, tmp_path: Path) -> None:
    releases = TrialReleases(package, tmp_path / "server", "http://127.0.0.1:1")
    releases.publish(releases.newer)
    other = TrialReleases(package, tmp_path / "other", "http://127.0.0.1:1")
    keys = json.loads((unpacked(other.package, tmp_path / "own") / "potluck.json").read_text())

    with pytest.raises(IntegrityError, match="not signed"):
        read_release((tmp_path / "server" / "release.json").read_bytes(), keys["updates"]["keys"])
