"""Spare copies: tensors that a computer has on its disk in case another one is lost.

A spare copy is a tensor of the store that was never used, which its time of use says. So it is the
first to be evicted, and a plan that needs it turns it into a tensor as any other. It takes only room
that is left, and evicts nothing but other spare copies.
"""

from collections.abc import Mapping

from potluck.ids import Digest
from potluck.store.chunks import ChunkStore, Missing

ROOM_SHARE = 0.5  # of the room that is left: its owner wants some as well


def lacking(store: ChunkStore, wanted: Mapping[Digest, int]) -> list[Missing]:
    """Which of these tensors (digest: bytes) are missing and have room, in the given order.

    Spare copies of tensors that are not wanted any more are deleted if their room is needed.
    """
    missing = [
        Missing(digest=digest, offset=_offset(store, digest, nbytes), nbytes=nbytes)
        for digest, nbytes in wanted.items()
        if not store.has(digest, nbytes)
    ]
    needed = sum(tensor.nbytes - tensor.offset for tensor in missing)
    for digest in store.inventory.unused():
        if needed <= ROOM_SHARE * store.room():
            break
        if digest not in wanted:
            store.discard(digest)
    room = ROOM_SHARE * store.room()
    fitting: list[Missing] = []
    for tensor in missing:
        nbytes = tensor.nbytes - tensor.offset
        if nbytes <= room:
            fitting.append(tensor)
            room -= nbytes
    return fitting


def _offset(store: ChunkStore, digest: Digest, nbytes: int) -> int:
    offset = store.offset(digest)
    if offset < nbytes:
        return offset
    store.discard(digest)  # whole, and not checked: the program ended just then
    return 0
