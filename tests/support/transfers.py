"""Both ends of a transfer over a link in memory, and its results."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from memory_links import MemoryLink

from potluck.ids import Digest
from potluck.store.chunks import ChunkStore
from potluck.store.fetch import receive_tensors, send_tensors
from potluck.store.registry import LocalModel
from potluck.store.sender import SendLimits
from potluck.wire.messages import Chunk, Message, NeedTensor

T = TypeVar("T")
SMALL_CHUNKS = SendLimits(chunk_bytes=1000)


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end; fail after 30 s."""

    async def limited() -> T:
        async with asyncio.timeout(30):
            return await work

    return asyncio.run(limited())


def expected_of(model: LocalModel) -> dict[Digest, int]:
    return {entry.digest: entry.nbytes for entry in model.manifest.tensors}


def needs(store: ChunkStore, model: LocalModel) -> list[NeedTensor]:
    missing = store.missing(expected_of(model).items())
    return [NeedTensor(digest=one.digest, offset=one.offset) for one in missing]


def lacking(store: ChunkStore, model: LocalModel) -> int:
    """Return how many bytes the store lacks."""
    return sum(one.nbytes - one.offset for one in store.missing(expected_of(model).items()))


def is_complete(store: ChunkStore, model: LocalModel) -> bool:
    return all(
        store.path(digest).read_bytes() == bytes_of(model, digest) for digest in model.sources
    )


def bytes_of(model: LocalModel, digest: Digest) -> bytes:
    source = model.sources[digest]
    return source.path.read_bytes()[source.offset :][: source.nbytes]


async def transfer(
    store: ChunkStore,
    model: LocalModel,
    here: MemoryLink,
    there: MemoryLink,
    limits: SendLimits = SMALL_CHUNKS,
) -> list[Any]:
    """Run both ends. Return the bytes sent and received, or the error of each end."""
    results = await asyncio.gather(
        send_tensors(here, needs(store, model), model.sources, limits=limits),
        receive_tensors(there, store, expected_of(model)),
        return_exceptions=True,
    )
    return list(results)


class Altering:
    """Changes a byte in the first `times` chunks of a tensor."""

    def __init__(self, digest: Digest, times: int) -> None:
        self.digest, self.times = digest, times

    def __call__(self, message: Message, payload: bytes) -> bytes:
        if isinstance(message, Chunk) and message.digest == self.digest and self.times:
            self.times -= 1
            return bytes([payload[0] ^ 1]) + payload[1:]
        return payload
