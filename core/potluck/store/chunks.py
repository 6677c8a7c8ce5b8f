"""The weights of other computers' models on this one's disk, by content.

A tensor is the file `<root>/<first 2 hex>/<digest>`; while it arrives it is `<digest>.part`, whose
size is how much of it is here. A part becomes a tensor only after its SHA-256 was checked, its bytes
were flushed and it was renamed; so a crash at any moment leaves parts that go on and tensors that
are whole. What another process makes for the store it writes into `workshop`, and is adopted. Disks
still fail: who loads a tensor checks it again (`verify`).

Blocking, safe from several threads; one process at a time, which a locked file sees to. The time of
last use is the file's mtime, so that it outlives the process.
"""

import logging
import os
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import RLock

from potluck.errors import DiskFullError, IntegrityError, StoreError, format_bytes
from potluck.files import sync_folder
from potluck.ids import Digest, is_digest, short
from potluck.store.lock import FolderLock
from potluck.store.part import PART, Part, digest_file, flush

logger = logging.getLogger(__name__)

RESERVE = 1 << 30  # bytes left free on the disk: a system with a full disk stops working


@dataclass(slots=True)
class _Item:
    """A tensor or a part of one on disk."""

    size: int
    used: float  # seconds, of the wall clock


@dataclass(frozen=True, slots=True, kw_only=True)
class Missing:
    """A tensor that is not here, and how much of it is."""

    digest: Digest
    offset: int
    nbytes: int


def free_bytes(folder: Path) -> int:
    """What the disk has left for this user."""
    return shutil.disk_usage(folder).free


@dataclass(slots=True)
class ChunkStore:
    """The store in one folder, which is made where it is missing.

    Args:
        root: the folder; nobody else writes there.
        quota: bytes that the store may take in all; None: whatever the disk has.
        reserve: bytes of the disk that are never taken.
        disk_free: what the disk has left; a parameter for tests.
        clock: seconds since the epoch, for the times of use.

    Raises:
        StoreError: another Potluck has the folder, or it cannot be written.
    """

    root: Path
    quota: int | None = None
    reserve: int = RESERVE
    disk_free: Callable[[Path], int] = free_bytes
    clock: Callable[[], float] = time.time
    _items: dict[Digest, _Item] = field(init=False, default_factory=dict[Digest, _Item])
    _parts: dict[Digest, Part] = field(init=False, default_factory=dict[Digest, Part])
    _pins: Counter[Digest] = field(init=False, default_factory=Counter[Digest])
    _mutex: RLock = field(init=False, default_factory=RLock)  # of the three above
    _lock: FolderLock = field(init=False)

    def __post_init__(self) -> None:
        self._lock = FolderLock(self.root)
        shutil.rmtree(self.workshop, ignore_errors=True)  # of a program that ended at work
        self._scan()

    def __enter__(self) -> "ChunkStore":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Give the folder back. Parts stay and go on another time."""
        self._lock.release()

    @property
    def nbytes(self) -> int:
        """What the store takes, parts included."""
        with self._mutex:
            return sum(item.size for item in self._items.values())

    @property
    def workshop(self) -> Path:
        """A folder on the same disk for files that are to be adopted; it is not there at first."""
        return self.root / "workshop"

    def path(self, digest: Digest) -> Path:
        """Where the tensor is once it is whole."""
        if not is_digest(digest):
            raise StoreError(f"{digest[:80]!r} is not a digest.")
        return self.root / digest[:2] / digest

    def has(self, digest: Digest, nbytes: int | None = None) -> bool:
        """Whether the tensor is here and, where `nbytes` is given, of this size."""
        try:
            size = self.path(digest).stat().st_size
        except FileNotFoundError:
            return False
        return nbytes is None or size == nbytes

    def offset(self, digest: Digest) -> int:
        """How many bytes of a tensor that is not whole are here."""
        try:
            return self._part_path(digest).stat().st_size
        except FileNotFoundError:
            return 0

    def missing(self, tensors: Iterable[tuple[Digest, int]]) -> list[Missing]:
        """What has to be fetched of these (digest, size), each digest once, in their order.

        Marks the others as used. A part that is complete, since the program ended between its last
        byte and its name, is checked and finished here.
        """
        wanted: list[Missing] = []
        for digest, nbytes in dict(tensors).items():
            if self.has(digest, nbytes):
                self._touch(digest)
                continue
            offset = self.offset(digest)
            if offset >= nbytes:
                try:
                    if self.write(digest, offset, nbytes, b""):
                        continue
                except StoreError:  # altered on disk: begin again
                    self.discard(digest)
                offset = 0
            wanted.append(Missing(digest=digest, offset=offset, nbytes=nbytes))
        return wanted

    def write(self, digest: Digest, offset: int, total: int, data: memoryview | bytes) -> bool:
        """`append`, and `commit` if that made the tensor whole. True: it is on disk for good."""
        whole = self.append(digest, offset, total, data)
        if whole:
            self.commit((digest,))
        return whole

    def append(self, digest: Digest, offset: int, total: int, data: memoryview | bytes) -> bool:
        """Add a chunk. What is here already is passed over, so a repeated chunk is harmless.

        Returns:
            Whether the tensor is whole and has its digest; it still has to be committed.

        Raises:
            IntegrityError: the bytes have another digest; the part is gone.
            DiskFullError: the part stays as it is.
            StoreError: the chunk leaves a gap or reaches beyond the tensor; nothing was written.
        """
        if offset < 0 or offset + len(data) > total:
            raise StoreError(
                f"A chunk of tensor {short(digest)} reaches beyond its {total} bytes.", total=total
            )
        if self.has(digest, total):
            return True
        part = self._part(digest)
        with part.lock:
            if self.has(digest, total):  # committed by another writer meanwhile
                return True
            try:
                whole = part.append(offset, total, data)
            except IntegrityError:
                self.discard(digest)
                raise
            with self._mutex:
                self._items[digest] = _Item(part.size, self.clock())
            return whole

    def commit(self, digests: Iterable[Digest]) -> None:
        """Make whole tensors durable and give them their names.

        Many at once cost little more than one: a journal's commit takes all that came before it.
        """
        folders: set[Path] = set()
        for digest in digests:
            path = self.path(digest)
            if self._finish(digest, path):
                folders |= {path.parent, self.root}  # the root, where the folder is new
            elif not path.exists():
                raise StoreError(f"Tensor {short(digest)} vanished before it was named.")
        for folder in folders:
            sync_folder(folder)

    def adopt(self, file: Path, digest: Digest) -> None:
        """Take in a file of the workshop that was digested while it was written; it moves.

        Raises:
            StoreError: the disk does not take it; the file is gone.
        """
        path = self.path(digest)
        try:
            path.parent.mkdir(exist_ok=True)
            flush(file)
            with self._mutex:
                file.replace(path)
                self._items[digest] = _Item(path.stat().st_size, self.clock())
        except OSError as error:
            raise StoreError(f"A tensor cannot be stored: {error}.") from error
        finally:
            file.unlink(missing_ok=True)
        sync_folder(path.parent)

    def verify(self, digest: Digest) -> bool:
        """Read the whole tensor; one that is missing or altered is discarded."""
        try:
            intact = digest_file(self.path(digest)) == digest
        except FileNotFoundError:
            intact = False
        if not intact:
            logger.warning("tensor damaged on disk digest=%s", short(digest))
            self.discard(digest)
        return intact

    def discard(self, digest: Digest) -> None:
        """Remove the tensor and any part of it."""
        with self._mutex:
            self._parts.pop(digest, None)
            self.path(digest).unlink(missing_ok=True)
            self._part_path(digest).unlink(missing_ok=True)
            self._items.pop(digest, None)

    def pin(self, digests: Iterable[Digest]) -> None:
        """Keep these tensors, here or to come, until they are unpinned as often."""
        with self._mutex:
            self._pins.update(set(digests))

    def unpin(self, digests: Iterable[Digest]) -> None:
        """Let go of what was pinned: from now on it may be evicted."""
        with self._mutex:
            self._pins = +(self._pins - Counter(set(digests)))

    def use(self, digests: Iterable[Digest]) -> None:
        """Mark these as used now: others are evicted before them."""
        for digest in digests:
            self._touch(digest)

    def free_for(self, nbytes: int) -> None:
        """Make room for this many more bytes, removing what was unused longest and is not pinned.

        Raises:
            DiskFullError: there is no such room; then nothing was removed.
        """
        with self._mutex:
            loose = sorted(
                (item for item in self._items.items() if item[0] not in self._pins),
                key=lambda item: item[1].used,
            )
            lacking = nbytes - self._room()
            removable = sum(item.size for _, item in loose)
            if lacking > removable:
                raise self._full(nbytes, self._room() + removable)
            for digest, item in loose:
                if lacking <= 0:
                    break
                logger.info("tensor evicted digest=%s bytes=%d", short(digest), item.size)
                self.discard(digest)
                lacking -= item.size

    def _room(self) -> int:
        """Bytes that may be written without removing any."""
        room = self.disk_free(self.root) - self.reserve
        return room if self.quota is None else min(room, self.quota - self.nbytes)

    def _full(self, needed: int, available: int) -> DiskFullError:
        available = max(0, available)
        limit = "" if self.quota is None else f" of the {format_bytes(self.quota)} it may use"
        return DiskFullError(
            f"This computer's share of the model takes {format_bytes(needed)} on its disk, and"
            f" Potluck has {format_bytes(available)} left{limit}. Free space on the disk, or lend"
            " less memory so that it gets fewer layers.",
            needed=needed,
            available=available,
        )

    def _touch(self, digest: Digest) -> None:
        now = self.clock()
        with self._mutex:
            item = self._items.get(digest)
            if item is not None:
                item.used = now
        with suppress(OSError):  # a read-only file is still a good one
            os.utime(self.path(digest), (now, now))

    def _part_path(self, digest: Digest) -> Path:
        return self.path(digest).with_name(digest + PART)

    def _finish(self, digest: Digest, path: Path) -> bool:
        """Whether this made the tensor whole; another writer may have done it before."""
        with self._mutex:
            part = self._parts.get(digest)
        if part is None:
            return False
        with part.lock:
            if not part.is_whole:
                return False
            part.finish(path)
        with self._mutex:
            self._parts.pop(digest, None)
        self._touch(digest)
        return True

    def _part(self, digest: Digest) -> Part:
        with self._mutex:
            part = self._parts.get(digest)
            if part is None:
                path = self._part_path(digest)
                path.parent.mkdir(exist_ok=True)
                part = self._parts[digest] = Part(path, digest)
            return part

    def _scan(self) -> None:
        for path in self.root.glob("[0-9a-f][0-9a-f]/*"):
            digest = path.name.removesuffix(PART)
            if not is_digest(digest) or path.parent.name != digest[:2]:
                continue  # not ours: neither counted nor touched
            status = path.stat()
            item = self._items.setdefault(Digest(digest), _Item(0, 0))
            item.size += status.st_size
            item.used = max(item.used, status.st_mtime)
