"""Stores weights of other computers' models on this computer's disk, addressed by content.

A tensor is the file `<root>/<first 2 hex>/<digest>`. While it arrives it is `<digest>.part`, and
the size of that file says how many bytes are here. A part becomes a tensor only after its SHA-256
was checked, its bytes were flushed and the file was renamed. A crash at any moment therefore leaves
whole tensors, and parts that can be continued. Another process that makes a tensor for the store
writes it into `workshop`, and the store adopts the file. Disks can still fail, and people delete
caches: the loader computes the digest of a tensor again, `verify` drops what is damaged, and a
folder that was deleted is made again. Windows keeps a file that somebody reads: a tensor that is to be
removed is not here from then on, and its file goes later.

All methods block, and several threads may call them. A locked file ensures that only one process
uses the folder. The time of last use is the file's mtime, so that it is kept when the process ends.
"""

import logging
import os
import shutil
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import RLock

from potluck.errors import DiskFullError, IntegrityError, StoreError
from potluck.files import make_folder, remove, replace, sync_folder
from potluck.ids import Digest, is_digest, short
from potluck.reasons import reason
from potluck.store.inventory import Inventory
from potluck.store.lock import FolderLock
from potluck.store.part import PART, Part, digest_of, disk_errors, flush
from potluck.store.room import free_bytes, too_little

logger = logging.getLogger(__name__)

RESERVE = 1 << 30  # bytes left free on the disk: a system stops working on a full disk


@dataclass(frozen=True, slots=True, kw_only=True)
class Missing:
    """A tensor that is not here as a whole, and how many bytes of it are (`offset`)."""

    digest: Digest
    offset: int
    nbytes: int


@dataclass(slots=True)
class ChunkStore:
    """The store in one folder. The folder is made if it is missing.

    Args:
        root: the folder; nothing else may write there.
        quota: bytes that the store may take in all; None: only the disk is the limit.
        reserve: bytes of the disk that the store leaves free.
        disk_free: returns the bytes that the disk has left; a parameter for tests.
        clock: returns seconds since the epoch, for the times of use.

    Raises:
        StoreError: another Potluck process has the folder, or it cannot be written.
    """

    root: Path
    quota: int | None = None
    reserve: int = RESERVE
    disk_free: Callable[[Path], int] = free_bytes
    clock: Callable[[], float] = time.time
    inventory: Inventory = field(init=False, default_factory=Inventory)
    _parts: dict[Digest, Part] = field(init=False, default_factory=dict[Digest, Part])
    _kept: set[Digest] = field(init=False, default_factory=set[Digest])  # by the system; to remove
    _mutex: RLock = field(
        init=False, default_factory=RLock
    )  # guards the parts, and what is removed and gets its name; nobody waits for a file with it
    _lock: FolderLock = field(init=False)

    def __post_init__(self) -> None:
        self._lock = FolderLock(self.root)
        shutil.rmtree(self.workshop, ignore_errors=True)  # left by a program that crashed
        self._scan()

    def __enter__(self) -> "ChunkStore":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Release the folder. Parts stay, and can be continued later."""
        self._lock.release()

    @property
    def nbytes(self) -> int:
        """The bytes that the store takes, parts included."""
        return self.inventory.nbytes

    @property
    def workshop(self) -> Path:
        """A folder on the same disk for files to adopt. The caller makes it if it is missing."""
        return self.root / "workshop"

    def path(self, digest: Digest) -> Path:
        """The path of the tensor once it is whole."""
        if not is_digest(digest):
            raise StoreError(f"{digest[:80]!r} is not a digest.")
        return self.root / digest[:2] / digest

    def has(self, digest: Digest, nbytes: int | None = None) -> bool:
        """Whether the tensor is here and, if `nbytes` is given, has this size."""
        if digest in self._kept:
            return False
        try:
            size = self.path(digest).stat().st_size
        except FileNotFoundError:
            return False
        return nbytes is None or size == nbytes

    def offset(self, digest: Digest) -> int:
        """The number of bytes that are here of a tensor that is not whole yet."""
        try:
            return self._part_path(digest).stat().st_size
        except FileNotFoundError:
            return 0

    def missing(self, tensors: Iterable[tuple[Digest, int]]) -> list[Missing]:
        """Which of these (digest, size) must be fetched: each digest once, in the given order.

        Marks the others as used. If the program ended after it wrote the last byte of a part but
        before it renamed it, the part is checked and finished here.
        """
        self._restore()
        self._remove_kept()
        wanted: list[Missing] = []
        for digest, nbytes in dict(tensors).items():
            if self.has(digest, nbytes):
                self._touch(digest, self.clock())
                continue
            offset = self.offset(digest)
            if offset >= nbytes:
                try:
                    if self.write(digest, offset, nbytes, b""):
                        continue
                except StoreError:  # altered on disk: start again at 0
                    self.discard(digest)
                offset = 0
            wanted.append(Missing(digest=digest, offset=offset, nbytes=nbytes))
        return wanted

    def write(self, digest: Digest, offset: int, total: int, data: memoryview | bytes) -> bool:
        """`append`, then `commit` if the tensor is whole. Returns whether it was committed."""
        return self.append(digest, offset, total, data) and not self.commit((digest,))

    def append(self, digest: Digest, offset: int, total: int, data: memoryview | bytes) -> bool:
        """Add a chunk. Bytes that are here already are skipped, so a repeated chunk is harmless.

        Returns:
            Whether the tensor is whole and has its digest; it still has to be committed.

        Raises:
            IntegrityError: the bytes have another digest, or those before them are gone; the part
                was removed.
            DiskFullError: the disk or the quota has no room; the part stays as it is.
            StoreError: the chunk reaches beyond the tensor; nothing was written.
        """
        if offset < 0 or offset + len(data) > total:
            raise StoreError(
                f"A chunk of tensor {short(digest)} reaches beyond its {total} bytes.", total=total
            )
        if self.has(digest, total):
            return True
        part = self._part(digest)
        with part.lock:
            if self.has(digest, total):  # another writer has committed it meanwhile
                return True
            self._check_room(digest, offset + len(data))
            try:
                whole = part.append(offset, total, data)
            except IntegrityError:
                self.discard(digest)
                raise
            self.inventory.note(digest, part.size, self.clock())
            return whole

    def commit(self, digests: Iterable[Digest]) -> dict[Digest, IntegrityError]:
        """Make whole tensors durable, and rename them to their digests.

        Many at once cost little more than one, since one commit of the file system's journal covers
        everything before it.

        Returns:
            Those whose files were deleted meanwhile, with the reason: they must be fetched again.
        """
        folders: set[Path] = set()
        lost: dict[Digest, IntegrityError] = {}
        for digest in digests:
            path = self.path(digest)
            try:
                if self._finish(digest, path):
                    folders |= {path.parent, self.root}  # the root, in case the folder is new
                elif not path.exists():
                    lost[digest] = IntegrityError(f"Tensor {short(digest)} is not whole any more.")
            except IntegrityError as error:
                self.discard(digest)
                lost[digest] = error
        for folder in folders:
            with disk_errors(), suppress(FileNotFoundError):  # deleted: the loader will miss it
                sync_folder(folder)
        return lost

    def adopt(self, file: Path, digest: Digest) -> None:
        """Move a file from the workshop into the store; `digest` was computed while writing it.

        Raises:
            StoreError: the disk cannot store the file; it was removed.
        """
        path = self.path(digest)
        try:
            make_folder(path.parent)
            flush(file)
            replace(file, path, move=lambda old, new: self._name(digest, old, new))
            self.inventory.note(digest, path.stat().st_size, self.clock())
        except OSError as error:
            raise StoreError(f"A tensor cannot be stored: {reason(error)}.") from error
        finally:
            file.unlink(missing_ok=True)
        sync_folder(path.parent)

    def discard(self, digest: Digest) -> bool:
        """Remove the tensor and any part of it: it is not here from now on. Returns whether its files are gone.

        Windows keeps a file that somebody reads. If that takes longer than a moment, it is removed later.
        """
        with self._mutex:
            self._parts.pop(digest, None)
            self._kept.add(digest)
        try:
            remove(self._part_path(digest))
            remove(self.path(digest), unlink=lambda _: self._unlink(digest))
        except OSError as error:
            logger.warning("tensor not removed yet digest=%s: %s", short(digest), reason(error))
            return False
        return True

    def verify(self, digests: Iterable[Digest]) -> list[Digest]:
        """Read tensors and compute their digests again. Those that are damaged are not here from then on.

        Returns:
            The damaged ones. Tensors that are not here are not among them.
        """
        damaged: list[Digest] = []
        for digest in digests:
            if digest in self._kept:
                continue
            try:
                path = self.path(digest)
                is_intact = digest_of(path, 0, path.stat().st_size) == digest
            except FileNotFoundError:
                continue
            except OSError as error:
                logger.warning("tensor unreadable digest=%s error=%s", short(digest), error)
                is_intact = False
            if not is_intact:
                logger.warning("tensor damaged digest=%s", short(digest))
                self.discard(digest)
                damaged.append(digest)
        return damaged

    def use(self, digests: Iterable[Digest]) -> None:
        """Mark these tensors as used now: others are evicted before them."""
        for digest in digests:
            self._touch(digest, self.clock())

    def set_aside(self, digests: Iterable[Digest]) -> None:
        """Mark tensors that are not pinned as never used: they are evicted before all others."""
        for digest in self.inventory.loose().keys() & set(digests):
            self._touch(digest, 0.0)

    def free_for(self, nbytes: int) -> None:
        """Make room for this many bytes: evict unpinned tensors, least recently used first.

        Raises:
            DiskFullError: not enough can be removed; nothing was removed.
        """
        self._restore()
        self._remove_kept()
        with self._mutex:
            loose = {d: n for d, n in self.inventory.loose().items() if d not in self._kept}
            lacking, removable = nbytes - self.room(), sum(loose.values())
        if lacking > removable:
            raise too_little(nbytes, self.room() + removable, self.quota)
        for digest in loose:
            if lacking <= 0:
                break
            logger.info("tensor evicted digest=%s bytes=%d", short(digest), loose[digest])
            lacking -= loose[digest] if self.discard(digest) else 0

    def room(self, *, reserve: int | None = None) -> int:
        """The bytes that may be written without removing anything, if so much is left free."""
        room = self.disk_free(self.root) - (self.reserve if reserve is None else reserve)
        return room if self.quota is None else min(room, self.quota - self.inventory.nbytes)

    def _check_room(self, digest: Digest, size: int) -> None:
        """Check that a tensor or its part may grow to this size.

        Room is made before weights are sent, but two masters, or a plan and spare copies, may have
        been told of the same room. Half of the reserve is for what a file takes beyond its bytes.

        Raises:
            DiskFullError: it may not.
        """
        room = self.room(reserve=self.reserve // 2)
        if size - self.inventory.size(digest) > max(0, room):
            raise DiskFullError(
                "The disk has no room left for the weights that arrive: it was taken since they were"
                " announced. Free some space and try again; what is here is kept."
            )

    def _touch(self, digest: Digest, used: float) -> None:
        self.inventory.use(digest, used)
        with suppress(OSError):  # a read-only file can still be used
            os.utime(self.path(digest), (used, used))

    def _part_path(self, digest: Digest) -> Path:
        return self.path(digest).with_name(digest + PART)

    def _finish(self, digest: Digest, path: Path) -> bool:
        """Finish a whole part. False: it is not whole, or another writer has finished it before."""
        with self._mutex:
            part = self._parts.get(digest)
        if part is None:
            return False
        with part.lock:
            if not part.is_whole:
                return False
            part.finish(path, move=lambda old, new: self._name(digest, old, new))
        self._touch(digest, self.clock())
        return True

    def _name(self, digest: Digest, file: Path, path: Path) -> None:
        """Give a whole tensor its name, in the place of one that is to be removed."""
        with self._mutex:
            file.replace(path)
            self._kept.discard(digest)
            self._parts.pop(digest, None)

    def _unlink(self, digest: Digest) -> None:
        """Remove a tensor's file, unless an intact one has taken its place meanwhile."""
        with self._mutex:
            if digest in self._kept:
                self.path(digest).unlink(missing_ok=True)
                self._kept.remove(digest)
                if digest not in self._parts:  # else it arrives again
                    self.inventory.remove(digest)

    def _remove_kept(self) -> None:
        """Remove the files that were kept when they were to be removed, if nobody reads them any more."""
        for digest in tuple(self._kept):
            with suppress(OSError):
                self._unlink(digest)

    def _part(self, digest: Digest) -> Part:
        with self._mutex:
            part = self._parts.get(digest)
            if part is None:
                part = self._parts[digest] = Part(self._part_path(digest), digest)
        with disk_errors():
            make_folder(part.path.parent)
        return part

    def _restore(self) -> None:
        """Make the folder and its lock again if somebody deleted them while the store was open.

        Raises:
            StoreError: another Potluck process has the folder by now, or it cannot be made.
        """
        with self._mutex:
            if self._lock.is_in_place:
                return
            logger.warning("the folder for weights was deleted, and is made again: %s", self.root)
            self._lock.release()
            self._lock = FolderLock(self.root)
            self.inventory.clear()
            self._parts.clear()
            self._kept.clear()
            self._scan()

    def _scan(self) -> None:
        for path in self.root.glob("[0-9a-f][0-9a-f]/*"):
            digest = path.name.removesuffix(PART)
            if not is_digest(digest) or path.parent.name != digest[:2]:
                continue  # not a file of the store: not counted, not touched
            try:
                status = path.stat()
            except FileNotFoundError:  # somebody deletes the folder at this moment
                continue
            self.inventory.add(Digest(digest), status.st_size, status.st_mtime)
