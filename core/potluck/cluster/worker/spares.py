"""What a master has this computer keep on its disk without a stage, in case another one is lost."""

import asyncio
from collections.abc import Mapping

from potluck.cluster.worker.contents import Content
from potluck.ids import Digest, HomeId
from potluck.store.chunks import ChunkStore, Missing
from potluck.store.fetch import WeightsLink, receive_tensors
from potluck.store.spares import lacking
from potluck.wire.messages import NeedTensor
from potluck.wire.spare_messages import Keeping


class SpareTensors:
    """Takes the spare copies that masters send, as far as the disk has room."""

    def __init__(self, store: ChunkStore) -> None:
        self._store = store
        self._awaited: dict[HomeId, dict[Digest, int]] = {}  # bytes of what is still to be sent

    async def keep(self, home: HomeId, tensors: Mapping[Digest, Content]) -> Keeping:
        """Say which of these tensors are to be sent. They take the place of those asked for before."""
        missing = await asyncio.to_thread(self._missing, tensors)
        self._awaited[home] = {tensor.digest: tensor.nbytes for tensor in missing}
        return Keeping(
            stored=sum(one.nbytes for one in tensors.values() if one.file(self._store)),
            tensors=tuple(NeedTensor(digest=m.digest, offset=m.offset) for m in missing),
        )

    def _missing(self, tensors: Mapping[Digest, Content]) -> list[Missing]:
        """What is to be sent, and has room."""
        files = {digest: one.file(self._store) or digest for digest, one in tensors.items()}
        wanted = {file: tensors[digest].file_bytes(file) for digest, file in files.items()}
        return lacking(self._store, wanted)

    def awaits(self, home: HomeId) -> bool:
        """Whether a home's master may send something."""
        return bool(self._awaited.get(home))

    async def receive(self, home: HomeId, link: WeightsLink) -> None:
        """Receive what is awaited. What has arrived when the link breaks is kept.

        Raises:
            PeerError: the master is gone or silent.
            StoreError: the disk is full or fails, or a tensor arrived altered twice.
        """
        awaited = self._awaited[home]
        try:
            await receive_tensors(link, self._store, awaited)
        finally:
            arrived = [digest for digest, n in awaited.items() if self._store.has(digest, n)]
            await asyncio.to_thread(self._store.set_aside, arrived)
            for digest in arrived:
                awaited.pop(digest, None)
