"""The tensors of one stage as they are sent, or read by this computer's own stage process.

In a packed scheme a worker needs a quarter to a half of the bytes of the model's files. So matrices are
packed before they are sent, and the digest of each packed matrix is remembered: a second load packs
nothing, and a computer that has the packed bytes is sent nothing. Packing is only a saving: a matrix for
which the disk has no room is sent as the file has it, and the receiver packs it when it loads it.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from math import prod

import msgspec

from potluck.cluster.master.packing import Matrix, Packing
from potluck.cluster.processes.messages import TensorFile
from potluck.errors import BrokenModelError, DiskFullError, IntegrityError, StoreError
from potluck.ids import Digest
from potluck.model.config import Shape
from potluck.model.formats import PackedFormat
from potluck.model.manifest import TensorEntry
from potluck.model.schemes import Scheme, tensor_format
from potluck.model.stored import find_stored
from potluck.store.quantised import Packed, recall, remember
from potluck.store.registry import LocalModel, TensorSource
from potluck.wire.messages import TensorInfo

logger = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class _Tensor:
    """A tensor of the model."""

    name: str
    shape: Shape
    parts: tuple[TensorEntry, ...]  # that it is stored in
    matrix: Matrix | None  # None: it is not packed
    packed: Packed | None = None  # its packed form, if known; its file may be deleted meanwhile

    def infos(self, *, packed: bool) -> Iterable[TensorInfo]:
        if not packed or self.packed is None or self.matrix is None:
            return map(tensor_info, self.parts)
        info = TensorInfo(
            name=self.name,
            dtype=self.matrix.format.dtype,
            shape=self.shape,
            digest=self.packed.digest,
            nbytes=self.packed.nbytes,
        )
        return (info,)


class StageTensors:
    """The tensors of a stage, each in its packed form if it has one already."""

    def __init__(
        self,
        model: LocalModel,
        scheme: Scheme,
        expected: Mapping[str, Shape],
        packing: Packing | None,
    ) -> None:
        """Make the tensors of one stage. Call `prepare` before any other method.

        Args:
            model: whose tensors they are.
            scheme: how the stage holds its weights.
            expected: names and shapes of its tensors.
            packing: what packs; None: nothing is packed.
        """
        self._model, self._expected = model, expected
        self._scheme: Scheme = scheme
        self._packing = packing
        self._tensors: list[_Tensor] = []
        self._pinned: set[Digest] = set()
        self.problem: str | None = None
        """Why the rest is sent as it is, though it should have been packed."""

    async def prepare(self) -> None:
        """Look up which matrices were packed before."""
        self._tensors = await asyncio.to_thread(self._look_up)
        await self._recall()

    def _look_up(self) -> list[_Tensor]:
        model = self._model
        entries = {entry.name: entry for entry in model.manifest.tensors}
        stored = find_stored(model.config, self._expected, entries, where=str(model.folder))
        return [
            _Tensor(name, self._expected[name], parts, self._matrix(name, parts))
            for name, parts in stored.items()
        ]

    async def _recall(self) -> None:
        if (packing := self._packing) is None:
            return
        model_id = self._model.manifest.model_id
        known = await asyncio.to_thread(recall, packing.memory, model_id)
        for tensor in self._tensors:
            if tensor.matrix is not None and tensor.packed is None:
                tensor.packed = tensor.matrix.checked(known.get(tensor.matrix.key))
        self._pin(tensor.packed for tensor in self._tensors)

    def _matrix(self, name: str, parts: Iterable[TensorEntry]) -> Matrix | None:
        model, shape = self._model, self._expected[name]
        held = tensor_format(model.config, name, shape, self._scheme)
        if not isinstance(held, PackedFormat) or self._packing is None:
            return None
        matrix = Matrix(
            model=model.manifest.model_id,
            name=name,
            config=dict(model.manifest.config),
            shape=(shape[0], prod(shape[1:])),
            format=held,
            files=tuple(_tensor_file(part, model.sources[part.digest]) for part in parts),
        )
        # A matrix that the file has quantised may be as small as its packed form.
        return matrix if matrix.packed_bytes < matrix.nbytes else None

    @property
    def unpacked_bytes(self) -> int:
        """How many bytes of the files are read to pack the matrices that were never packed."""
        return sum(matrix.nbytes for matrix in self._unpacked)

    @property
    def _unpacked(self) -> list[Matrix]:
        return [t.matrix for t in self._tensors if t.matrix is not None and t.packed is None]

    async def pack(self, done: Callable[[int], None], *, link_rate: float | None = None) -> None:
        """Pack the matrices that were never packed, as long as it saves time.

        When the disk is full, `problem` says so and the rest is sent as the files have it.

        Args:
            done: told the bytes of each matrix that is packed.
            link_rate: bytes a second of the link that they are for; None: all are packed.

        Raises:
            BrokenModelError: the model's files are damaged.
            EngineError: the stage process is gone.
        """
        await self._recall()  # a stage before this one may have had the same matrix: a tied head
        await self._pack(self._unpacked, done, link_rate)

    async def _pack(
        self, matrices: list[Matrix], done: Callable[[int], None], link_rate: float | None = None
    ) -> None:
        packing = self._packing
        if packing is None or not matrices:
            return
        tensors = {tensor.name: tensor for tensor in self._tensors}

        def packed(matrix: Matrix, packed: Packed) -> None:
            tensors[matrix.name].packed = packed
            self._pin([packed])
            done(matrix.nbytes)

        try:
            await packing.pack(matrices, packed, link_rate=link_rate)
        except IntegrityError as error:
            raise BrokenModelError(
                f"The files of {self._model.name} are not what they were when they were opened:"
                " they have changed, or the disk is failing. Load the model again."
            ) from error
        except StoreError as error:
            logger.warning("sending originals: %s", error)
            self.problem = error.message
            if isinstance(
                error, DiskFullError
            ):  # its own message is meant for who receives weights
                self.problem = (
                    f"This computer's disk has no room for {self._model.name} in {self._scheme}."
                )
        finally:
            made = {m.key: p for m in matrices if (p := tensors[m.name].packed) is not None}
            await asyncio.to_thread(remember, packing.memory, self._model.manifest.model_id, made)

    def infos(self, *, is_local: bool) -> tuple[TensorInfo, ...]:
        """The tensors that a stage is assigned. This computer is assigned only what is on its disk now."""
        here_only = is_local or self.problem is not None
        return tuple(
            info
            for tensor in self._tensors
            for info in tensor.infos(packed=not here_only or self._is_here(tensor.packed))
        )

    def _is_here(self, packed: Packed | None) -> bool:
        store = self._packing.store if self._packing is not None else None
        if store is None or packed is None:
            return False
        return store.has(Digest(packed.digest), packed.nbytes)

    async def sources(self, digests: Collection[str]) -> Mapping[Digest, TensorSource] | None:
        """Where the tensors of these digests are on disk.

        A matrix whose packed file was deleted is packed again.

        Returns:
            None: the bytes came out otherwise, or could not be made: assign the stage again.
        """
        wanted = [t for t in self._tensors if t.packed is not None and t.packed.digest in digests]
        lost = [t.matrix for t in wanted if t.matrix is not None and not self._is_here(t.packed)]
        await self._pack(lost, lambda _: None)
        packed = {
            Digest(tensor.packed.digest): self._source(tensor.packed)
            for tensor in wanted
            if tensor.packed is not None and self._is_here(tensor.packed)
        }
        if self._packing is not None:
            await asyncio.to_thread(self._packing.store.use, packed)
        sources = {**self._model.sources, **packed}
        if not all(digest in sources for digest in digests):
            return None
        return {Digest(digest): sources[Digest(digest)] for digest in digests}

    def _source(self, packed: Packed) -> TensorSource:
        assert self._packing is not None
        path = self._packing.store.path(Digest(packed.digest))
        return TensorSource(path=path, offset=0, nbytes=packed.nbytes)

    def discard(self, digest: object) -> bool:
        """Delete a damaged tensor. Returns whether it was packed here, and so can be packed again."""
        packed = (tensor.packed for tensor in self._tensors if tensor.packed is not None)
        if self._packing is None or digest not in {one.digest for one in packed}:
            return False
        self._packing.store.discard(Digest(str(digest)))
        return True

    def _pin(self, packed: Iterable[Packed | None]) -> None:
        assert self._packing is not None
        fresh = {Digest(one.digest) for one in packed if one is not None} - self._pinned
        self._packing.store.pin(fresh)
        self._pinned |= fresh

    def release(self) -> None:
        """Sending is over: packed files may be deleted when the disk needs room."""
        if self._packing is not None:
            self._packing.store.unpin(self._pinned)
        self._pinned = set()


def tensor_info(entry: TensorEntry) -> TensorInfo:
    """A tensor of a manifest, as a message describes it."""
    return msgspec.convert(entry, TensorInfo, from_attributes=True)


def _tensor_file(entry: TensorEntry, source: TensorSource) -> TensorFile:
    return TensorFile(info=tensor_info(entry), path=str(source.path), offset=source.offset)
