"""The digests of a model's tensors: computed once, in parallel, and cached on disk.

The cache has one small file per model file, named by the hash of its path. It is valid while the
size and the times of the model file do not change.
"""

import hashlib
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec

from potluck.errors import BrokenModelError
from potluck.files import recall, remember
from potluck.ids import Digest, is_digest
from potluck.model.manifest import TensorSpan
from potluck.store.part import pieces

Progress = Callable[[int, int], None]
"""Called with (bytes done, bytes in all) in the caller's thread. If it raises, hashing stops."""

SETTLED_NS = 2 * 10**9  # FAT rounds times to 2 s: a younger file may change unnoticed


class Stamp(msgspec.Struct, frozen=True):
    """Identifies a version of a file: an equal stamp means that the file has not changed."""

    size: int
    mtime_ns: int
    ctime_ns: int  # changes even if a tool sets mtime back (rsync -t); creation time on Windows

    @classmethod
    def of(cls, path: Path) -> "Stamp":
        status = path.stat()
        return cls(status.st_size, status.st_mtime_ns, status.st_ctime_ns)

    @property
    def is_settled(self) -> bool:
        """Whether a later change of the file would change its stamp."""
        return time.time_ns() - self.mtime_ns >= SETTLED_NS


class _Memory(msgspec.Struct, frozen=True):
    path: str
    stamp: Stamp
    digests: dict[str, str]  # keyed by tensor name


@dataclass(frozen=True, slots=True)
class ModelFile:
    """A model file, and those of its tensors that belong to the model."""

    path: Path
    stamp: Stamp  # taken before its header was read
    spans: Sequence[TensorSpan]


def digest_tensors(
    files: Sequence[ModelFile], *, cache_dir: Path, progress: Progress | None, threads: int
) -> dict[str, Digest]:
    """Compute the digest of every tensor, keyed by name.

    Raises:
        BrokenModelError: a file changed or shrank while it was being read.
    """
    digests: dict[str, Digest] = {}
    missing: list[tuple[ModelFile, TensorSpan]] = []
    for file in files:
        known = _recall(file, cache_dir)
        for span in file.spans:
            if span.name in known:
                digests[span.name] = known[span.name]
            else:
                missing.append((file, span))
    total = sum(span.nbytes for file in files for span in file.spans)
    done = total - sum(span.nbytes for _, span in missing)
    if progress:
        progress(done, total)
    with _hashing(missing, threads) as futures:
        for future in as_completed(futures):
            _, span = futures[future]
            digests[span.name] = future.result()
            done += span.nbytes
            if progress:
                progress(done, total)
    for file in {file.path: file for file, _ in missing}.values():
        if Stamp.of(file.path) != file.stamp:
            raise _changed(file.spans[0].file)
        _remember(file, digests, cache_dir)
    return digests


@contextmanager
def _hashing(
    tensors: Sequence[tuple[ModelFile, TensorSpan]], threads: int
) -> Generator[dict[Future[Digest], tuple[ModelFile, TensorSpan]]]:
    # In the order of the files, so that a rotating disk seeks little.
    ordered = sorted(tensors, key=lambda item: (item[0].path, item[1].offset))
    pool = ThreadPoolExecutor(max(1, threads), thread_name_prefix="digest")
    try:
        yield {pool.submit(_digest, file.path, span): (file, span) for file, span in ordered}
    finally:
        pool.shutdown(cancel_futures=True)


def _digest(path: Path, span: TensorSpan) -> Digest:
    sha, left = hashlib.sha256(), span.nbytes
    for piece in pieces(path, span.offset, span.nbytes):
        sha.update(piece)
        left -= len(piece)
    if left:
        raise _changed(span.file)
    return Digest(sha.hexdigest())


def _memory_path(path: Path, cache_dir: Path) -> Path:
    return cache_dir / "digests" / f"{hashlib.sha256(str(path).encode()).hexdigest()}.json"


def _recall(file: ModelFile, cache_dir: Path) -> Mapping[str, Digest]:
    memory = recall(_memory_path(file.path, cache_dir), _Memory)
    if memory is None or memory.path != str(file.path) or memory.stamp != file.stamp:
        return {}
    return {name: Digest(text) for name, text in memory.digests.items() if is_digest(text)}


def _remember(file: ModelFile, digests: Mapping[str, Digest], cache_dir: Path) -> None:
    if not file.stamp.is_settled:
        return
    names = {span.name: str(digests[span.name]) for span in file.spans}
    memory = _Memory(str(file.path), file.stamp, names)
    remember(_memory_path(file.path, cache_dir), memory)


def _changed(file: str) -> BrokenModelError:
    return BrokenModelError(
        f"{file} changed while it was read. Wait until its download has ended, then open"
        " the model again.",
        file=file,
    )
