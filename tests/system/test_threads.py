"""Threads that leave their core to others."""

import os
import sys
import threading

import pytest

from potluck.system.threads import go_after_others


@pytest.mark.skipif(sys.platform != "linux", reason="only there a thread has a priority of its own")
def test_a_thread_goes_after_others_and_the_others_stay_as_they_are() -> None:
    def priority() -> int:
        return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())

    seen: list[int] = []

    def go() -> None:
        go_after_others()
        seen.append(priority())

    before = priority()
    thread = threading.Thread(target=go)
    thread.start()
    thread.join(20)

    assert seen == [5]
    assert priority() == before


@pytest.mark.parametrize("system", ["darwin", "win32"])
def test_where_the_whole_process_would_have_it_nothing_is_asked(
    monkeypatch: pytest.MonkeyPatch, system: str
) -> None:
    monkeypatch.setattr(sys, "platform", system)
    monkeypatch.setattr(
        os, "setpriority", lambda *_: pytest.fail("it would be all threads'"), raising=False
    )

    go_after_others()
