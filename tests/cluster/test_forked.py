"""Processes that are forked for tests: what a fork does not do is refused, not left out."""

import os
import subprocess
import sys
from typing import Any

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="they are started elsewhere")


@pytest.mark.parametrize(
    "asked",
    [
        {"start_new_session": True},
        {"preexec_fn": os.getpid},
        {"pass_fds": (0,)},
        {"umask": 0o077},
        {"process_group": 0},
    ],
)
def test_what_a_fork_does_not_do_is_refused(asked: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="does not have"):
        subprocess.Popen([sys.executable, "-m", "rank_process"], **asked)
