"""Pack without torch: the bytes have the right size and depend only on the input."""

import asyncio
import hashlib
from collections import Counter
from pathlib import Path
from typing import Any

from potluck.cluster.master.packing import Packing
from potluck.cluster.processes.messages import Quantise, Quantised
from potluck.errors import PotluckError
from potluck.model.formats import PACKED_DTYPES
from potluck.store.chunks import ChunkStore


class PackingEngine:
    """Packing waits for `gate`. `error` is raised once, and then nothing is written."""

    def __init__(self) -> None:
        self.packed: Counter[str] = Counter()  # how often each tensor was packed
        self.waiting: list[str] = []
        self.gate: asyncio.Event | None = None
        self.error: PotluckError | None = None
        self.salt = b""  # changes the bytes, as another version would

    async def quantise(self, matrix: Quantise) -> Quantised:
        name = matrix.parts[0].name
        self.waiting.append(name)
        if self.gate is not None:
            await self.gate.wait()
        if self.error is not None:
            error, self.error = self.error, None
            raise error
        made_of = "".join(file.digest for file in matrix.parts)
        seed = f"{made_of} {matrix.dtype}".encode() + self.salt
        nbytes = PACKED_DTYPES[matrix.dtype].nbytes(*matrix.shape)
        data = hashlib.shake_256(seed).digest(nbytes)
        await asyncio.to_thread(Path(matrix.path).write_bytes, data)
        self.packed[name] += 1
        digest = hashlib.sha256(data).hexdigest()
        return Quantised(digest=digest, nbytes=nbytes)


class Workplace:
    """The store, the memory and the stage process of one test."""

    def __init__(self, folder: Path, *, quota: int | None = None, **options: Any) -> None:
        """`options` are those of `Packing`."""
        self.engine = PackingEngine()
        self.store = ChunkStore(folder / "tensors", quota, reserve=0)
        self.packing = Packing(
            store=self.store,
            memory=folder / "packed",
            engine=self._handle,
            **options,
        )

    async def _handle(self) -> PackingEngine:
        return self.engine

    def __enter__(self) -> "Workplace":
        return self

    def __exit__(self, *_: object) -> None:
        self.store.close()
