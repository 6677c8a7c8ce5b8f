"""What is left of a plan's sessions, while another thread asks for its size."""

from typing import Any, cast

from potluck.engine.caches.left_sessions import LeftSessions
from potluck.engine.caches.session_cache import SharedRows


class EvictedMeanwhile:
    """A cache whose shared rows go while they are looked at."""

    own_bytes = 0

    def __init__(self) -> None:
        self.looks = 0

    @property
    def shared(self) -> SharedRows | None:
        self.looks += 1
        return SharedRows(nbytes=100) if self.looks == 1 else None


def test_a_session_that_is_evicted_while_its_size_is_asked_for_is_no_error() -> None:
    caches = cast("Any", {"a": EvictedMeanwhile()})
    assert LeftSessions(caches, (), (), is_in_force=False).nbytes == 100
