"""Python's garbage collection, in the GUI thread alone.

Python collects cycles in whatever thread happens to allocate. A cycle may hold Qt objects, and Qt
crashes when they are destroyed in another thread while the event loop uses them.
"""

import gc

from PySide6.QtCore import QObject, QTimer

INTERVAL_MS = 5000


class GarbageCollector(QObject):
    """Takes the place of Python's automatic collection, from when it is made until `close`.

    Make it in the GUI thread, before any other thread is started.
    """

    def __init__(self, parent: QObject, interval_ms: int = INTERVAL_MS) -> None:
        super().__init__(parent)
        gc.disable()
        timer = QTimer(self, interval=interval_ms)
        timer.timeout.connect(collect_due)
        timer.start()

    def close(self) -> None:
        """Let Python collect by itself again."""
        gc.enable()


def collect_due() -> None:
    """Collect the oldest generation whose count is above its threshold, as Python would."""
    counts, thresholds = gc.get_count(), gc.get_threshold()
    for generation in (2, 1, 0):
        if counts[generation] > thresholds[generation] > 0:
            gc.collect(generation)
            return
