"""The tensors of one stage, in the form in which they are sent or read by a local stage process.

In a packed scheme a worker needs a quarter to a half of the bytes of the model's files. So matrices
are packed before they are sent, and the digest of each packed matrix is remembered: a second load
packs nothing, and a computer that has the packed bytes is sent nothing. Packing only saves time: if
the disk has no room for a packed matrix, the matrix is sent as the file has it, and the receiver
packs it when it loads it.

A rank of a group on another computer is sent its slices alone (`slicing.py`), of what is packed or of the originals.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from math import prod

import msgspec

from potluck.cluster.master.packing import Matrix, Packing
from potluck.cluster.master.slicing import Checks, Slicing
from potluck.cluster.processes.messages import TensorFile
from potluck.errors import BrokenModelError, DiskFullError, IntegrityError, StoreError
from potluck.ids import Digest
from potluck.model.checkpoint.stored import find_stored
from potluck.model.config import Shape
from potluck.model.formats import PackedFormat
from potluck.model.manifest import TensorEntry
from potluck.model.schemes import Scheme
from potluck.model.shares import TensorSlice
from potluck.model.tensor_formats import tensor_format
from potluck.reasons import reason
from potluck.store.quantised import Packed
from potluck.store.registry import LocalModel
from potluck.store.source import TensorSource
from potluck.wire.messages import TensorInfo

logger = logging.getLogger(__name__)

_REPAIRS = 2
"""Of damaged packed files before slices are cut. Each finds all that is damaged by then."""


@dataclass(slots=True, eq=False)
class _Tensor:
    """A tensor of the stage."""

    name: str
    shape: Shape
    parts: tuple[TensorEntry, ...]  # the tensors of the model's files that it is made of
    matrix: Matrix | None  # what is packed; None: this tensor is never packed
    packed: Packed | None = None  # its packed form, if known; the store may have deleted the file

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
    """The tensors of a stage, each in its packed form if that is known."""

    def __init__(
        self,
        model: LocalModel,
        scheme: Scheme,
        expected: Mapping[str, Shape],
        packing: Packing | None,
        slices: Mapping[str, TensorSlice] | None = None,
        checks: Checks | None = None,
    ) -> None:
        """Make the tensors of one stage. Call `prepare` before any other method.

        Args:
            model: the model of the stage.
            scheme: the number format of the stage's weights in memory.
            expected: names and shapes of the stage's tensors.
            packing: packs matrices; None: nothing is packed.
            slices: what a rank on another computer has of them, by name; None: it is sent all as a whole.
            checks: of tensors that other stages have slices of, too.
        """
        self._model, self._expected = model, expected
        self._scheme: Scheme = scheme
        self._packing = packing
        self._slicing = Slicing(model.config, slices or {}, checks or Checks())
        self._tensors: list[_Tensor] = []
        self._pinned: set[Digest] = set()
        self.problem: str | None = None
        """Why matrices are sent as the files have them, though they should have been packed."""

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
        known = await packing.recall(self._model.manifest.model_id)
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
        # A matrix that is quantised in the file may be as small as its packed form.
        sent = self._slicing.nbytes(name, held.dtype, shape, matrix.packed_bytes)
        as_stored = sum(
            self._slicing.nbytes(part.name, part.dtype, tuple(part.shape), part.nbytes)
            for part in matrix.files
        )
        return matrix if sent < as_stored else None

    @property
    def unpacked_bytes(self) -> int:
        """How many bytes of the model's files are read to pack the matrices not packed yet."""
        return sum(matrix.nbytes for matrix in self._unpacked)

    @property
    def _unpacked(self) -> list[Matrix]:
        return [t.matrix for t in self._tensors if t.matrix is not None and t.packed is None]

    async def pack(self, done: Callable[[int], None], *, link_rate: float | None = None) -> None:
        """Pack the matrices that are not packed yet, as long as it saves time.

        When the disk is full, `problem` says so, and the other matrices are sent as the files have
        them.

        Args:
            done: called with the bytes of each matrix when it is packed.
            link_rate: bytes per second of the link that they are sent over; None: all are packed.

        Raises:
            BrokenModelError: the model's files are damaged.
            EngineError: the stage process is gone.
        """
        await self._recall()  # an earlier stage may have packed the same matrix: a tied head
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
            if isinstance(error, DiskFullError):
                # Its own message is written for a computer that receives weights.
                self.problem = (
                    f"This computer's disk has no room for {self._model.name} in {self._scheme}."
                )
        finally:
            made = {m.key: p for m in matrices if (p := tensors[m.name].packed) is not None}
            await packing.remember(self._model.manifest.model_id, made)

    async def cut(self) -> None:
        """Compute the digests of the slices that are sent, but those that are known.

        Raises:
            BrokenModelError: the model's files are damaged.
        """
        wholes = await asyncio.to_thread(self._wholes, is_local=False)
        if not await asyncio.to_thread(self._slicing.missing, wholes):
            return
        packing, model = self._packing, self._model.manifest.model_id
        if packing is not None:
            known = await packing.recall(model)
            await asyncio.to_thread(self._slicing.recall, wholes, known)
        began, made = time.monotonic(), dict[str, Packed]()
        try:
            await self._digest_slices(wholes, made)
        finally:
            nbytes = sum(one.nbytes for one in made.values())
            logger.info("slices digested bytes=%d seconds=%.2f", nbytes, time.monotonic() - began)
            if packing is not None:
                await packing.remember(model, made)

    async def _digest_slices(self, wholes: Collection[TensorInfo], made: dict[str, Packed]) -> None:
        """Compute the missing digests. What has other bytes again and again has none, and is sent as a whole."""
        for _ in range(_REPAIRS + 1):
            missing = await asyncio.to_thread(self._slicing.missing, wholes)
            sources = await self._sources({info.digest for info in missing})
            if sources is None:
                return
            try:
                await self._slicing.digest(missing, sources, made)
            except IntegrityError as error:
                logger.warning("repairing before slices are cut: %s", error)
                await self.repair(error.data["digest"])
            else:
                return

    def infos(self, *, is_local: bool) -> tuple[TensorInfo, ...]:
        """The tensors of the assignment.

        Args:
            is_local: the stage is on this computer. Its stage process reads the files itself, so
                only packed matrices that are on this disk now are listed in packed form.
        """
        return tuple(map(self._slicing.info, self._wholes(is_local=is_local)))

    def _wholes(self, *, is_local: bool) -> tuple[TensorInfo, ...]:
        """These tensors before they are cut."""
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
        """Find where the tensors with these digests are on disk.

        A matrix whose packed file was deleted is packed again.

        Returns:
            None if packing again gave other bytes or failed. The stage must then be assigned again.
        """
        wholes = {digest: self._slicing.whole(digest) for digest in digests}
        sources = await self._sources(set(wholes.values()))
        if sources is None:
            return None
        return {
            Digest(digest): self._slicing.source(Digest(digest), sources[Digest(whole)])
            for digest, whole in wholes.items()
        }

    async def _sources(self, digests: Collection[str]) -> Mapping[Digest, TensorSource] | None:
        """The same of what is not cut."""
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

    async def repair(self, digest: object) -> None:
        """Prepare for another attempt after bytes were not what their digest says.

        Packed files that are damaged are deleted, so that `sources` packs them again. Digests of slices are computed
        again, since the bytes may have been damaged then.

        Args:
            digest: of the tensor whose bytes were wrong, wherever that was found.

        Raises:
            BrokenModelError: a file of the model itself is damaged.
        """
        digest = self._slicing.whole(str(digest))
        self._slicing.forget(digest)
        packed = {Digest(t.packed.digest) for t in self._tensors if t.packed is not None}
        if self._packing is not None and digest in packed:
            store = self._packing.store
            await asyncio.to_thread(store.discard, Digest(digest))
            await asyncio.to_thread(store.verify, packed - {digest})
        elif (source := self._model.sources.get(Digest(digest))) is not None:
            await asyncio.to_thread(self._check, Digest(digest), source)

    def _check(self, digest: Digest, source: TensorSource) -> None:
        try:
            if source.digest() == digest:
                return  # the damage is on the way, or at the other end
            why = "is not what it was when it was opened: it has changed, or the disk is failing"
        except OSError as error:
            why = f"cannot be read ({reason(error)})"
        raise BrokenModelError(
            f"The file {source.path} of {self._model.name} {why}. Download the model again;"
            " `potluck models verify` names every damaged part of it.",
            file=str(source.path),
        )

    def _pin(self, packed: Iterable[Packed | None]) -> None:
        assert self._packing is not None
        fresh = {Digest(one.digest) for one in packed if one is not None} - self._pinned
        self._packing.store.inventory.pin(fresh)
        self._pinned |= fresh

    def release(self) -> None:
        """Allow the store to delete the packed files when it needs room. Call it after sending."""
        if self._packing is not None:
            self._packing.store.inventory.unpin(self._pinned)
        self._pinned = set()


def tensor_info(entry: TensorEntry) -> TensorInfo:
    """A tensor of a manifest, as a message describes it."""
    return msgspec.convert(entry, TensorInfo, from_attributes=True)


def _tensor_file(entry: TensorEntry, source: TensorSource) -> TensorFile:
    return TensorFile.of(tensor_info(entry), source.path, source.offset)
