"""What the system lets a process have."""

import subprocess
import sys
from pathlib import Path

import pytest

from potluck.system import limits
from potluck.system.limits import allow_files, end_after, limit_memory

CORE = Path(__file__).parents[2] / "core"
ON_POSIX = pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such limits")


@ON_POSIX
def test_more_descriptors_are_asked_for_than_were_given() -> None:
    import resource  # exists on POSIX alone

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = min(soft, 512)
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted - 1, hard))
    try:
        allow_files(wanted)
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == wanted
        allow_files(wanted - 10)  # never fewer
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == wanted
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.skipif(sys.platform != "linux", reason="macOS does not keep to this limit")
def test_memory_beyond_the_limit_is_refused() -> None:
    program = (
        "from potluck.system.limits import limit_memory\n"
        "limit_memory(1 << 28)\n"
        "try:\n    bytearray(1 << 30)\nexcept MemoryError:\n    print('refused')\n"
    )

    done = subprocess.run(
        [sys.executable, "-c", program],
        env={"PYTHONPATH": str(CORE)},
        capture_output=True,
        text=True,
    )

    assert done.stdout == "refused\n"


def test_where_there_are_no_limits_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "resource", None)
    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.setattr("signal.setitimer", lambda *_: pytest.fail("there is none"), raising=False)

    limit_memory(1)
    allow_files(1 << 20)
    end_after(0.0)
