"""What one rank of a group is sent of each tensor: the bytes of its slice, as contents of their own.

Nothing is written for it: a slice is sent out of the file that has the whole tensor, and only its digest is computed
beforehand, once for each share. Digests are remembered with those of packed matrices.
"""

import asyncio
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import msgspec

from potluck.errors import BrokenModelError, IntegrityError
from potluck.ids import Digest
from potluck.model.config import ModelConfig
from potluck.model.schemes import Scheme
from potluck.model.shares import Share, TensorSlice
from potluck.model.stored_slices import StoredSlice, stage_slices, stored_slice
from potluck.plan.stages import Plan, StagePlan
from potluck.reasons import reason
from potluck.store.quantised import Packed
from potluck.store.source import TensorSource
from potluck.tasks import together
from potluck.wire.messages import TensorInfo

THREADS = min(4, os.cpu_count() or 1)  # SHA-256 runs at 0.5 to 2 GB/s per core


@dataclass(frozen=True, slots=True)
class _Derived:
    """A slice of a tensor."""

    whole: TensorInfo
    one: StoredSlice

    @property
    def key(self) -> str:
        return self.one.runs.name(self.whole.digest)

    def source(self, whole: TensorSource) -> TensorSource:
        """Where its bytes are, if the tensor is there."""
        return replace(whole, nbytes=self.one.nbytes, runs=self.one.runs)


def sent_slices(
    config: ModelConfig, stage: StagePlan, plan: Plan, scheme: Scheme
) -> dict[str, TensorSlice]:
    """What a stage's computer is sent slices of: nothing, unless it has a part of the stage's group.

    A computer with all ranks of a group has the whole tensors, which the next plan may need.
    """
    group = [other for other in plan.stages if other.is_ranked and other.layers == stage.layers]
    if not stage.is_ranked or len({rank.node for rank in group}) == 1:
        return {}
    share = Share(rank=stage.rank, parts=stage.shares)
    return stage_slices(config, stage.layers, share, scheme)


class Checks:
    """The checks of whole tensors that are under way: ranks that are sent slices at the same time share them."""

    def __init__(self) -> None:
        self._under_way: dict[str, asyncio.Task[None]] = {}  # by digest

    async def check(self, whole: TensorInfo, source: TensorSource) -> None:
        """Check that a tensor has the bytes that its digest says.

        Raises:
            IntegrityError: it is damaged; `data["digest"]`.
            BrokenModelError: its file cannot be read.
        """
        task = self._under_way.get(whole.digest)
        if task is None:
            task = asyncio.create_task(asyncio.to_thread(_check, whole, source), name="check")
            self._under_way[whole.digest] = task
            task.add_done_callback(lambda ended: self._ended(whole.digest, ended))
        await asyncio.shield(task)  # another rank may wait for it, too

    def _ended(self, digest: str, task: "asyncio.Task[None]") -> None:
        del self._under_way[digest]
        if not task.cancelled():
            task.exception()  # who waited for it may have been cancelled


class Slicing:
    """The slices of one stage. Its digests have to be computed before `info` describes any."""

    def __init__(
        self, config: ModelConfig, slices: Mapping[str, TensorSlice], checks: Checks
    ) -> None:
        """Cut these tensors of a stage, by name; the computer gets all others as a whole."""
        self._config, self._slices, self._checks = config, slices, checks
        self._digests: dict[str, Digest] = {}  # by the name of the bytes
        self._wholes: dict[Digest, _Derived] = {}  # by the slice's digest
        self._doubted: set[str] = set()  # what is not recalled

    def nbytes(self, name: str, dtype: str, shape: tuple[int, ...], whole: int) -> int:
        """How many bytes are sent of a tensor that is stored so."""
        one = self._slice(name, dtype, shape)
        return whole if one is None else one.nbytes

    def _slice(self, name: str, dtype: str, shape: tuple[int, ...]) -> StoredSlice | None:
        part = self._slices.get(name)
        return None if part is None else stored_slice(self._config, name, part, dtype, shape)

    def _derived(self, whole: TensorInfo) -> _Derived | None:
        one = self._slice(whole.name, whole.dtype, tuple(whole.shape))
        return None if one is None else _Derived(whole, one)

    def missing(self, wholes: Iterable[TensorInfo]) -> list[TensorInfo]:
        """Those of these tensors of whose slice the digest is not known."""
        derived = ((whole, self._derived(whole)) for whole in wholes)
        return [whole for whole, one in derived if one is not None and one.key not in self._digests]

    def recall(self, wholes: Iterable[TensorInfo], known: Mapping[str, Packed]) -> None:
        """Take the digests of the slices of these tensors from those that are remembered."""
        for whole in wholes:
            derived = self._derived(whole)
            if derived is None or derived.key in self._doubted:
                continue
            found = known.get(derived.key)
            if found is not None and found.nbytes == derived.one.nbytes:
                self._digests[derived.key] = Digest(found.digest)

    async def digest(
        self,
        wholes: Iterable[TensorInfo],
        sources: Mapping[Digest, TensorSource],
        made: dict[str, Packed],
    ) -> None:
        """Compute the digests of the slices of these tensors, which have to be what their own digests say.

        Args:
            wholes: the tensors.
            sources: where they are, by digest.
            made: gets what is to be remembered, also if not all can be computed.

        Raises:
            IntegrityError: a tensor is damaged; `data["digest"]`.
            BrokenModelError: a file cannot be read.
        """
        waiting = iter([one for whole in wholes if (one := self._derived(whole)) is not None])

        async def work() -> None:
            for derived in waiting:
                source = sources[Digest(derived.whole.digest)]
                await self._checks.check(derived.whole, source)
                digest = await asyncio.to_thread(_read, derived.source(source))
                self._digests[derived.key] = digest
                made[derived.key] = Packed(digest, derived.one.nbytes)

        await together(work() for _ in range(THREADS))

    def info(self, whole: TensorInfo) -> TensorInfo:
        """The tensor as the rank's computer is assigned it: its slice, if there is one with a known digest."""
        derived = self._derived(whole)
        digest = None if derived is None else self._digests.get(derived.key)
        if derived is None or digest is None:
            return whole
        self._wholes[digest] = derived
        return msgspec.structs.replace(
            whole,
            shape=derived.one.shape,
            digest=digest,
            nbytes=derived.one.nbytes,
            whole=whole.digest,
        )

    def whole(self, digest: str) -> str:
        """The digest of the tensor that is sliced; that of this tensor, if it is no slice."""
        derived = self._wholes.get(Digest(digest))
        return digest if derived is None else derived.whole.digest

    def source(self, digest: Digest, whole: TensorSource) -> TensorSource:
        """Where the bytes of this digest are, which are those of this tensor or a slice of it."""
        derived = self._wholes.get(digest)
        return whole if derived is None else derived.source(whole)

    def forget(self, whole: str) -> None:
        """Have the digests of the slices of this tensor computed again: its bytes may have been others."""
        for digest, derived in tuple(self._wholes.items()):
            if derived.whole.digest == whole:
                del self._wholes[digest]
                self._digests.pop(derived.key, None)
                self._doubted.add(derived.key)


def _check(whole: TensorInfo, source: TensorSource) -> None:
    """Check that a tensor is intact: whoever gets a slice of it cannot see that."""
    if _read(source) != whole.digest:
        raise IntegrityError(
            f"The stored bytes of {whole.name} are not what they were announced as: the file"
            f" {source.path.name} is damaged. They have to be fetched again.",
            digest=whole.digest,
        )


def _read(source: TensorSource) -> Digest:
    try:
        return source.digest()
    except OSError as error:
        raise BrokenModelError(f"{source.path} cannot be read: {reason(error)}.") from error
