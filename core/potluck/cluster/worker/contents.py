"""Tensors that a master assigns, and which file of the store has the bytes of each.

A rank's slice of a tensor is a file of its own, or it is read out of the whole tensor if an earlier plan, or a spare
copy, has brought that here.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from potluck.ids import Digest
from potluck.model.stored_slices import StoredSlice
from potluck.store.chunks import ChunkStore
from potluck.store.source import TensorSource
from potluck.wire.messages import TensorInfo


@dataclass(frozen=True, slots=True)
class Content:
    """A tensor of an assignment, which may be a rank's slice of one."""

    info: TensorInfo
    part: StoredSlice | None = None  # None: it is a whole tensor

    @property
    def nbytes(self) -> int:
        return self.info.nbytes

    @property
    def digest(self) -> Digest:
        return Digest(self.info.digest)

    def file(self, store: ChunkStore) -> Digest | None:
        """The file of the store that has its bytes: its own, or that of the whole tensor. None: they are not here."""
        if store.has(self.digest, self.nbytes):
            return self.digest
        whole = self.info.whole
        if (
            whole is None
            or self.part is None
            or not store.has(Digest(whole), self.part.whole_bytes)
        ):
            return None
        return Digest(whole)

    def file_bytes(self, file: Digest) -> int:
        """The size of the file that has its bytes."""
        return self.nbytes if self.part is None or file == self.digest else self.part.whole_bytes

    def source(self, store: ChunkStore) -> TensorSource | None:
        """Where its bytes are in the store; None: they are not here."""
        if (file := self.file(store)) is None:
            return None
        runs = self.part.runs if self.part is not None and file != self.digest else None
        return TensorSource(path=store.path(file), offset=0, nbytes=self.nbytes, runs=runs)


def files_read(store: ChunkStore, contents: Mapping[Digest, Content]) -> set[Digest]:
    """The files of the store that have, or will have, the bytes of these tensors."""
    return {*contents, *(file for one in contents.values() if (file := one.file(store)))}
