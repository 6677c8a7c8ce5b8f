"""Where the bytes of a tensor, or of a rank's slice of one, are on this computer."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from potluck.files import open_to_read, read_places
from potluck.ids import Digest
from potluck.model.byte_runs import ByteRuns, places
from potluck.store.part import BUFFER_SIZE


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorSource:
    """The place of a tensor's bytes on this computer."""

    path: Path
    offset: int
    nbytes: int
    runs: ByteRuns | None = None  # of a slice: its bytes among those from `offset` on

    def read(self, offset: int, nbytes: int) -> bytes:
        """So many bytes of the tensor; fewer if the file ends before.

        Raises:
            OSError: the file cannot be read.
        """
        if self.runs is None:
            with self.path.open("rb", buffering=0) as file:
                file.seek(self.offset + offset)
                return file.read(nbytes)
        return b"".join(self._pieces(offset, nbytes, nbytes))

    def digest(self) -> Digest:
        """The SHA-256 of the tensor's bytes; of fewer if the file ends before.

        Raises:
            OSError: the file cannot be read.
        """
        sha = hashlib.sha256()
        for piece in self._pieces(0, self.nbytes, BUFFER_SIZE):
            sha.update(piece)
        return Digest(sha.hexdigest())

    def _pieces(self, offset: int, nbytes: int, most: int) -> Iterator[memoryview]:
        buffer = memoryview(bytearray(min(nbytes, most)))
        stop = offset + nbytes
        with open_to_read(self.path, in_pieces=self.runs is not None) as file:
            while offset < stop:
                piece = buffer[: stop - offset]
                count = read_places(file, places(self.offset, self.runs, offset, len(piece)), piece)
                yield piece[:count]
                if count < len(piece):
                    return
                offset += count
