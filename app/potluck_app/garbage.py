"""Python's garbage collection, in the GUI thread alone.

Python collects cycles in whatever thread happens to allocate. A cycle may hold Qt objects, and Qt
crashes when they are destroyed in another thread while the event loop uses them.
"""

import gc

from PySide6.QtCore import QObject, QTimer

INTERVAL_MS = 5000


def collect_in_this_thread(parent: QObject, interval_ms: int = INTERVAL_MS) -> None:
    """Take the place of Python's automatic collection, as long as `parent` lives.

    Call it in the GUI thread, before any other thread is started.
    """
    gc.disable()
    timer = QTimer(parent, interval=interval_ms)
    timer.timeout.connect(_collect_due)
    timer.start()


def _collect_due() -> None:
    """Collect the oldest generation whose count is above its threshold, as Python would."""
    counts, thresholds = gc.get_count(), gc.get_threshold()
    for generation in (2, 1, 0):
        if counts[generation] > thresholds[generation] > 0:
            gc.collect(generation)
            return
