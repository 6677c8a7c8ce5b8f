"""Sessions' caches on disk: written when their memory may be given back, and read when a prompt begins with their tokens.

Whatever is wrong with a file (see `session_file`), the session's tokens are computed.
"""

import hashlib
import logging
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import takewhile
from pathlib import Path

from potluck.engine.caches.disk_work import DiskWork
from potluck.engine.caches.session_cache import SessionCache
from potluck.engine.caches.session_file import (
    Header,
    NewFile,
    header_of,
    pieces_of,
    read_header,
    read_rows,
    spans_for,
)
from potluck.wire.activation_messages import PREFIX_BYTES, PREFIX_TOKENS

logger = logging.getLogger(__name__)

LEAST_TOKENS = 512  # fewer are computed again: that takes about as long as opening a file
LEAST_PART = 4  # a file is not read for less than this part of its tokens
RESERVE = 1 << 30  # bytes left free on the disk: a system stops working on a full disk
_MAX_FILES = 256  # that are looked at for one prompt
_SUFFIX = ".session"


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A file with tokens of a prompt."""

    path: Path
    header: Header
    tokens: int  # in the file
    prefix: bytes  # of these
    shared: int = 0  # tokens that the prompt and the file begin with


@dataclass(slots=True, kw_only=True)
class SessionFiles:
    """The files of one stage, in a folder that other stages use as well.

    Only what is yielded as `DiskWork`, and `find`, use the disk. They raise no errors of the disk: these are logged.

    Args:
        folder: made when the first file is written; only its owner may read it.
        limit: bytes that all files in the folder may take. Those used least recently are deleted.
        stage: says what a cache's bits depend on beside the tokens: model, layers, numbers, program, processor.
        disk_free: returns the bytes that the disk has left; a parameter for tests.
    """

    folder: Path
    limit: int
    stage: str
    disk_free: Callable[[Path], int] = lambda folder: shutil.disk_usage(folder).free
    _name: str = field(init=False)

    def __post_init__(self) -> None:
        self._name = hashlib.blake2b(self.stage.encode(), digest_size=16).hexdigest()

    # --- writing

    def save(self, cache: SessionCache) -> DiskWork[bool]:
        """Write a cache whose tokens are known by their digests, if that is worth it.

        Its rows are copied piece by piece, on the thread that computes. If it changes meanwhile, there is no file.

        Returns:
            Whether it is on the disk now.
        """
        if not is_worth_a_file(cache):
            return False
        name = f"{self._name}-{cache.stretch}-{cache.prefix[-PREFIX_BYTES:].hex()}{_SUFFIX}"
        path = self.folder / name
        changes, prefix = cache.changes, cache.prefix
        if (yield partial(_is_there, path)):
            return True
        file: NewFile | None = yield partial(self._begin, path, header_of(cache, self.stage))
        if file is None:
            return False
        is_whole = False
        try:
            pieces = pieces_of(cache)
            while cache.changes == changes and (piece := next(pieces, None)) is not None:
                yield partial(file.write, piece)
            if cache.changes == changes:
                yield file.finish
                is_whole = True
        except (OSError, RuntimeError) as error:  # torch's error when memory is short
            _not_kept(error)
        stretch = cache.stretch
        yield partial(self._delete_beginnings, path, prefix, stretch) if is_whole else file.discard
        return is_whole

    def _begin(self, path: Path, header: Header) -> NewFile | None:
        """Begin a file; None: there is no room for it, or the disk refuses it."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            nbytes = max(rows.data_offsets[1] for rows in header.layers.values())
            return NewFile(path, header) if self._make_room(nbytes) else None
        except OSError as error:
            _not_kept(error)
            return None

    def _delete_beginnings(self, path: Path, prefix: bytes, stretch: int) -> None:
        """Delete the files whose tokens are the beginning of this one's."""
        for older in self._files(stretch):
            if older.path != path and prefix.startswith(older.prefix):
                _delete(older.path)

    def _make_room(self, nbytes: int) -> bool:
        """Delete what was used least recently, until there is room; return whether there is."""
        files = sorted(
            (info.st_mtime, info.st_size, path)
            for path in self.folder.iterdir()
            if (info := path.stat()).st_size
        )
        excess = sum(size for _, size, _ in files) + nbytes - self.limit
        excess = max(excess, nbytes + RESERVE - self.disk_free(self.folder))
        if excess > sum(size for _, size, _ in files):
            logger.info("no room on the disk for a conversation's cache bytes=%d", nbytes)
            return False
        for _, size, path in files:
            if excess <= 0:
                break
            path.unlink(missing_ok=True)
            excess -= size
        return True

    # --- reading

    def find(self, prefix: bytes, most: int, stretch: int = 0) -> Found | None:
        """The file with the most of these tokens; None: there is none that pays.

        Args:
            prefix: the digests of a prompt's tokens.
            most: tokens that are of use.
            stretch: which rotary frequencies the session has.
        """
        found = max(
            (_compared(each, prefix, most) for each in self._files(stretch)),
            key=lambda each: each.shared,
            default=None,
        )
        if found is None or found.shared < max(LEAST_TOKENS, found.tokens // LEAST_PART):
            return None
        return found

    def _files(self, stretch: int) -> Iterator[Found]:
        paths = sorted(self.folder.glob(f"{self._name}-{stretch}-*{_SUFFIX}"))
        for path in paths[:_MAX_FILES]:
            try:
                with path.open("rb") as file:
                    header = read_header(file)
                data = header.metadata
                if (data.stage, data.stretch) == (self.stage, str(stretch)):
                    prefix = bytes.fromhex(data.prefix)
                    tokens = int(data.tokens)
                    yield Found(path=path, header=header, tokens=tokens, prefix=prefix)
            except (OSError, ValueError, RecursionError) as error:
                _refuse(path, error)

    def read(self, found: Found, cache: SessionCache) -> DiskWork[bool]:
        """Read a file into an empty cache that has room for it.

        Returns:
            Whether the cache now holds the tokens that are shared, or fewer if a layer cannot go on from there. If
            not, nothing may be read of it any more, and it must be emptied.
        """
        try:
            targets = spans_for(cache, found.header)
        except (ValueError, LookupError, RecursionError) as error:
            yield partial(_refuse, found.path, error)
            return False
        changes = cache.changes
        spans = [span for _, layer in targets for span in layer]
        if not (yield partial(_read, found, spans)) or cache.changes != changes:
            return False
        for layer, (held, _) in zip(cache.parts, targets, strict=True):
            layer.held = held
        cache.length = found.tokens
        cache.name(found.prefix)
        cache.kept = found.prefix
        cache.trim(found.shared)
        return True


def is_worth_a_file(cache: SessionCache) -> bool:
    """Whether a cache is known by its digests, and long enough."""
    return len(cache.prefix) // PREFIX_BYTES * PREFIX_TOKENS >= LEAST_TOKENS


def _is_there(path: Path) -> bool:
    try:
        os.utime(path)
    except OSError:
        return False
    return True


def _compared(found: Found, prefix: bytes, most: int) -> Found:
    pairs = zip(_digests(found.prefix), _digests(prefix), strict=False)
    same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
    return replace(found, shared=PREFIX_TOKENS * min(same, most // PREFIX_TOKENS))


def _digests(prefix: bytes) -> list[bytes]:
    return [prefix[at : at + PREFIX_BYTES] for at in range(0, len(prefix), PREFIX_BYTES)]


def _read(found: Found, spans: list[memoryview]) -> bool:
    try:
        read_rows(found.path, found.header, spans)
        os.utime(found.path)
    except (OSError, ValueError, LookupError, RecursionError) as error:
        _refuse(found.path, error)
        return False
    return True


def _refuse(path: Path, error: Exception) -> None:
    logger.warning("a kept cache cannot be used, and is deleted file=%s: %s", path.name, error)
    _delete(path)


def _delete(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError:
        logger.warning("it cannot be deleted file=%s", path.name)


def _not_kept(error: Exception) -> None:
    logger.warning("a conversation's cache is not kept on disk: %s", error)
