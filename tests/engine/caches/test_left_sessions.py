"""What is left of a plan's sessions, while another thread asks for its size."""

import torch

from potluck.engine.caches.left_sessions import LeftSessions
from potluck.engine.caches.session_cache import SessionCache, SharedRows
from potluck.ids import SessionId


class EvictedMeanwhile(SessionCache):
    """Its shared rows go while they are looked at."""

    __slots__ = ("looks",)

    def __init__(self) -> None:
        super().__init__((), torch.float32, torch.device("cpu"))
        self.looks = 0

    @property
    def shared(self) -> SharedRows | None:  # pyright: ignore[reportIncompatibleVariableOverride]
        self.looks += 1
        return SharedRows(nbytes=100) if self.looks == 1 else None

    @shared.setter
    def shared(self, rows: SharedRows | None) -> None:
        assert rows is None


def test_a_session_that_is_evicted_while_its_size_is_asked_for_is_no_error() -> None:
    caches = {SessionId("a"): EvictedMeanwhile()}
    assert LeftSessions(caches, (), (), is_in_force=False).nbytes == 100
