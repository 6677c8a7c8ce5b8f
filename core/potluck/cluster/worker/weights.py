"""The weights on a worker's disk: what is damaged is dropped, so that the master sends it again."""

import asyncio
from collections.abc import Callable, Iterable

from potluck.ids import Digest
from potluck.store.chunks import ChunkStore

REPORT_S = 1.0  # between two reports of a check; the master waits 60 s for one


async def drop_damaged(
    store: ChunkStore, digests: Iterable[Digest], going_on: Callable[[], None]
) -> None:
    """Read these tensors and drop those that are damaged.

    Args:
        store: where the tensors are.
        digests: which tensors.
        going_on: called about every second, so that the master keeps waiting.
    """
    loop = asyncio.get_running_loop()
    said = loop.time()
    for digest in digests:
        await asyncio.to_thread(store.verify, (digest,))
        if loop.time() - said >= REPORT_S:
            said = loop.time()
            going_on()
