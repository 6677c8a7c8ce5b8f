"""What a store has on its disk, known without reading the disk, and what of it must stay."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from threading import Lock

from potluck.ids import Digest


@dataclass(slots=True)
class _Item:
    size: int
    used: float


class Inventory:
    """The bytes on disk and the time of last use of each tensor, and pins.

    A tensor counts with the part of it that has arrived. Times are seconds of the wall clock; 0 says
    that a tensor was never used. Several threads may call the methods.
    """

    def __init__(self) -> None:
        self._items: dict[Digest, _Item] = {}
        self._pins: Counter[Digest] = Counter()
        self._nbytes = 0
        self._mutex = Lock()

    @property
    def nbytes(self) -> int:
        """The bytes of all."""
        return self._nbytes

    def note(self, digest: Digest, size: int, used: float) -> None:
        """Note how many bytes of a tensor are on the disk now."""
        with self._mutex:
            self._remove(digest)
            self._items[digest] = _Item(size, used)
            self._nbytes += size

    def add(self, digest: Digest, size: int, used: float) -> None:
        """Note another file of a tensor: its part may be on the disk beside it."""
        with self._mutex:
            item = self._items.setdefault(digest, _Item(0, 0.0))
            item.size += size
            item.used = max(item.used, used)
            self._nbytes += size

    def remove(self, digest: Digest) -> None:
        """Note that nothing of a tensor is on the disk any more."""
        with self._mutex:
            self._remove(digest)

    def clear(self) -> None:
        """Note that the disk holds nothing. Pins stay."""
        with self._mutex:
            self._items.clear()
            self._nbytes = 0

    def use(self, digest: Digest, used: float) -> None:
        """Note when a tensor was used last."""
        with self._mutex:
            item = self._items.get(digest)
            if item is not None:
                item.used = used

    def size(self, digest: Digest) -> int:
        """The bytes on disk of a tensor; 0 if it is not here."""
        with self._mutex:
            item = self._items.get(digest)
            return item.size if item is not None else 0

    def sizes(self) -> dict[Digest, int]:
        """The bytes on disk of each tensor."""
        with self._mutex:
            return {digest: item.size for digest, item in self._items.items()}

    def pin(self, digests: Iterable[Digest]) -> None:
        """These tensors must stay until they are unpinned as often; they may arrive later."""
        with self._mutex:
            self._pins.update(set(digests))

    def unpin(self, digests: Iterable[Digest]) -> None:
        """Undo one `pin` of each tensor: without further pins it may be removed."""
        with self._mutex:
            self._pins = +(self._pins - Counter(set(digests)))

    def pinned(self) -> frozenset[Digest]:
        """The tensors that must stay."""
        with self._mutex:
            return frozenset(self._pins)

    def loose(self) -> dict[Digest, int]:
        """The bytes on disk of each tensor that is not pinned, least recently used first."""
        with self._mutex:
            items = sorted(self._items.items(), key=lambda pair: pair[1].used)
            return {digest: item.size for digest, item in items if digest not in self._pins}

    def unused(self) -> list[Digest]:
        """The tensors that are not pinned and were never used."""
        with self._mutex:
            items = self._items.items()
            return [d for d, item in items if d not in self._pins and item.used == 0.0]

    def _remove(self, digest: Digest) -> None:
        item = self._items.pop(digest, None)
        if item is not None:
            self._nbytes -= item.size
