"""Long work on a thread that the person who began it can stop."""

import threading


class StoppedError(Exception):
    """The work was stopped by the person who had begun it."""


def go_on(stopped: threading.Event) -> None:
    """Called between two pieces of work.

    Raises:
        StoppedError: `stopped` was set.
    """
    if stopped.is_set():
        raise StoppedError
