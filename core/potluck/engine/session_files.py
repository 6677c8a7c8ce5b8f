"""Sessions' caches as files: written when their memory is given back, and read when a prompt begins with their tokens.

A file is in the form of safetensors: the length of a JSON header, the header, then the rows of each layer. The
header names the stage that computed them, and the tokens: one digest for each `PREFIX_TOKENS` tokens from the
beginning on, so that no token id is on the disk. A digest covers everything, and is checked before the rows are
used: whatever is wrong with a file, the session's tokens are computed.

A name that begins with a dot is a file that is not whole yet.
"""

import hashlib
import logging
import os
import secrets
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path
from typing import BinaryIO

import msgspec
import torch
from torch import Tensor

from potluck.engine.kvcache import LayerCache, StateCache
from potluck.engine.session_cache import SessionCache
from potluck.model.caches import Held
from potluck.wire.activation_messages import PREFIX_BYTES, PREFIX_TOKENS

logger = logging.getLogger(__name__)

LEAST_TOKENS = 512  # fewer are computed again: that takes about as long as opening a file
LEAST_PART = 4  # a file is not read for less than this part of its tokens
RESERVE = 1 << 30  # bytes left free on the disk: a system stops working on a full disk
_MAX_HEADER = 4 << 20  # bytes
_MAX_FILES = 256  # that are looked at for one prompt
_SUFFIX = ".session"
_CHECKSUM_BYTES = 32
_BINARY = getattr(os, "O_BINARY", 0)  # Windows


class _Metadata(msgspec.Struct, frozen=True, kw_only=True):
    stage: str
    tokens: str
    prefix: str  # the digests of the tokens, in hex
    held: str  # what each layer holds, as JSON; see `CacheSpec`
    checksum: str


class _Rows(msgspec.Struct, frozen=True, kw_only=True):
    dtype: str
    shape: tuple[int, int, int, int]
    data_offsets: tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    """A file with tokens of a prompt."""

    path: Path
    tokens: int  # in the file
    prefix: bytes  # of these
    shared: int  # tokens that the prompt and the file begin with


@dataclass(slots=True, kw_only=True)
class SessionFiles:
    """The files of one stage, in a folder that other stages use as well.

    Methods block, and raise no errors of the disk: these are logged.

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

    def save(self, cache: SessionCache) -> None:
        """Write a cache whose tokens are known by their digests, if that is worth it and not done yet."""
        if len(cache.prefix) // PREFIX_BYTES * PREFIX_TOKENS < LEAST_TOKENS:
            return
        path = self.folder / f"{self._name}-{cache.prefix[-PREFIX_BYTES:].hex()}{_SUFFIX}"
        try:
            if path.exists():
                os.utime(path)
                return
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            nbytes = sum(rows.nbytes for _, rows in _contents(cache))
            if not self._make_room(nbytes):
                return
            self._write(path, cache)
            for older in self._files():
                if older.path != path and cache.prefix.startswith(older.prefix):
                    older.path.unlink(missing_ok=True)  # the beginning of this one
        except (OSError, RuntimeError) as error:  # torch's error when memory is short
            logger.warning("a conversation's cache is not kept on disk: %s", error)

    def _write(self, path: Path, cache: SessionCache) -> None:
        held: list[Held] = []
        entries: dict[str, _Rows] = {}
        offset = 0
        for index, (positions, rows) in enumerate(_contents(cache)):
            held.append(positions)
            span = (offset, offset + rows.nbytes)
            entries[str(index)] = _Rows(dtype="U8", shape=_shape(rows), data_offsets=span)
            offset = span[1]
        metadata = _Metadata(
            stage=self.stage,
            tokens=str(cache.length),
            prefix=cache.prefix.hex(),
            held=msgspec.json.encode(held).decode(),
            checksum="0" * (2 * _CHECKSUM_BYTES),
        )
        temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _BINARY, 0o600)
        try:
            with os.fdopen(descriptor, "wb") as file:
                checksum = _checksum(metadata)
                _put_header(file, metadata, entries)
                for _, rows in _contents(cache):
                    data = _bytes_of(rows)
                    checksum.update(data)
                    file.write(data)
                file.seek(0)
                whole = msgspec.structs.replace(metadata, checksum=checksum.hexdigest())
                _put_header(file, whole, entries)
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)

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

    def find(self, prefix: bytes, most: int) -> "_Found | None":
        """The file with the most of these tokens; None: there is none that pays.

        Args:
            prefix: the digests of a prompt's tokens.
            most: tokens that are of use.
        """
        found = max(
            (self._compared(each, prefix, most) for each in self._files()),
            key=lambda each: each.shared,
            default=None,
        )
        if found is None or found.shared < max(LEAST_TOKENS, found.tokens // LEAST_PART):
            return None
        return found

    def _compared(self, found: _Found, prefix: bytes, most: int) -> _Found:
        pairs = zip(_digests(found.prefix), _digests(prefix), strict=False)
        same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        shared = PREFIX_TOKENS * min(same, most // PREFIX_TOKENS)
        return _Found(path=found.path, tokens=found.tokens, prefix=found.prefix, shared=shared)

    def _files(self) -> Iterator[_Found]:
        paths = sorted(self.folder.glob(f"{self._name}-*{_SUFFIX}"))
        for path in paths[:_MAX_FILES]:
            try:
                with path.open("rb") as file:
                    metadata, _ = _header(file)
                if metadata.stage == self.stage:
                    prefix = bytes.fromhex(metadata.prefix)
                    yield _Found(path=path, tokens=int(metadata.tokens), prefix=prefix, shared=0)
            except (OSError, ValueError, RecursionError) as error:
                self._refuse(path, error)

    def read(self, found: _Found, cache: SessionCache) -> bool:
        """Read a file into an empty cache that has room for it.

        Returns:
            Whether the cache now holds the tokens that are shared, or fewer if a layer cannot go on from there. If
            not, it holds anything, and must be emptied.
        """
        try:
            with found.path.open("rb") as file:
                metadata, entries = _header(file)
                held = msgspec.json.decode(metadata.held, type=list[Held])
                checksum = _checksum(metadata)
                cache.length = found.tokens
                for index, positions in enumerate(held):
                    layer = cache.layers[index]
                    rows = _new_rows(layer, positions, found.tokens)
                    if entries[str(index)].shape != _shape(rows):
                        raise ValueError("it is of other layers")
                    data = _bytes_of(rows)
                    if file.readinto(data) != len(data):
                        raise ValueError("the file is too short")
                    checksum.update(data)
                    layer.held = positions
                    layer.both[:, :, : rows.shape[2]].copy_(rows)
            if int(metadata.tokens) != found.tokens or len(held) != len(cache.layers):
                raise ValueError("it is of another stage")
            if not secrets.compare_digest(checksum.hexdigest(), metadata.checksum):
                raise ValueError("its content does not match its digest")
            os.utime(found.path)
        except (OSError, ValueError, LookupError, RecursionError) as error:
            self._refuse(found.path, error)
            return False
        cache.name(found.prefix)
        cache.trim(found.shared)
        return True

    def _refuse(self, path: Path, error: Exception) -> None:
        logger.warning("a kept cache cannot be used, and is deleted file=%s: %s", path.name, error)
        try:
            path.unlink(missing_ok=True)
        except OSError:
            logger.warning("it cannot be deleted file=%s", path.name)


# --- bytes


def _digests(prefix: bytes) -> list[bytes]:
    return [prefix[at : at + PREFIX_BYTES] for at in range(0, len(prefix), PREFIX_BYTES)]


def _contents(cache: SessionCache) -> Iterator[tuple[Held, Tensor]]:
    """What each layer holds, and the rows of it in one piece, those that it shares with others before its own."""
    for layer in cache.layers:
        if isinstance(layer, StateCache):
            yield layer.held, layer.both
            continue
        own = layer.both[:, :, : cache.length - layer.first]
        if layer.shared is None:
            yield layer.held, own.contiguous()
        else:
            yield (0,), torch.cat([layer.shared, own], 2)


def _new_rows(layer: LayerCache, held: Held, length: int) -> Tensor:
    """Memory for the rows that a layer has when it holds this of so many tokens."""
    two, heads, rows, numbers = layer.both.shape
    used = rows if isinstance(layer, StateCache) else length - held[0]
    if len(held) != len(layer.held) or not 0 <= used <= rows:
        raise ValueError("it holds other tokens than it says")
    return layer.both.new_empty((two, heads, used, numbers))


def _shape(rows: Tensor) -> tuple[int, int, int, int]:
    """The shape in bytes."""
    two, heads, count, numbers = rows.shape
    return two, heads, count, numbers * rows.itemsize


def _bytes_of(rows: Tensor) -> memoryview:
    return rows.view(-1).view(torch.uint8).numpy().data


def _checksum(metadata: _Metadata) -> "hashlib.blake2b":
    fields = (metadata.stage, metadata.tokens, metadata.prefix, metadata.held)
    return hashlib.blake2b("\n".join(fields).encode(), digest_size=_CHECKSUM_BYTES)


def _put_header(file: BinaryIO, metadata: _Metadata, entries: dict[str, _Rows]) -> None:
    header = msgspec.json.encode({"__metadata__": metadata, **entries})
    file.write(len(header).to_bytes(8, "little") + header)


def _header(file: BinaryIO) -> tuple[_Metadata, dict[str, _Rows]]:
    """Read the header. The file is then at its first row.

    Raises:
        ValueError: it is not a header of these files.
    """
    length = int.from_bytes(file.read(8), "little")
    if length > _MAX_HEADER:
        raise ValueError("it has no header")
    raw = msgspec.json.decode(file.read(length), type=dict[str, msgspec.Raw])
    metadata = msgspec.json.decode(raw.pop("__metadata__", b"{}"), type=_Metadata)
    return metadata, {name: msgspec.json.decode(rows, type=_Rows) for name, rows in raw.items()}
