"""Which of the lines that the node tells the person is shown."""

from typing import Final

from potluck.api.values.schema import ClusterState, Notice

_RANKS: Final = {"info": 0, "warning": 1, "error": 2}


class Notices:
    """Picks the most severe line that the person has not dismissed, and of these the newest."""

    def __init__(self) -> None:
        self._dismissed: set[int] = set()  # ids
        self._newest = 0  # highest id

    def worst(self, state: ClusterState | None) -> Notice | None:
        """Return the line to show; None: there is none."""
        notices = state.notices if state else ()
        newest = max((notice.id for notice in notices), default=0)
        if newest < self._newest:
            self._dismissed.clear()  # a restarted node counts from one again
        self._newest = newest
        fresh = (notice for notice in notices if notice.id not in self._dismissed)
        return max(fresh, key=lambda notice: (_RANKS[notice.level], notice.id), default=None)

    def dismiss(self, notice: Notice) -> None:
        self._dismissed.add(notice.id)
