"""The weights on this computer's disk: check them, and delete those that nothing needs."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from pathlib import Path

from potluck.api.values.weights import (
    Pruned,
    Verified,
    VerifiedModel,
    VerifiedStore,
    VerifyProgress,
)
from potluck.cluster.master.models import reading
from potluck.errors import PotluckError
from potluck.files import remove
from potluck.ids import Digest, ModelId
from potluck.reasons import reason
from potluck.store.chunks import ChunkStore
from potluck.store.quantised import recall
from potluck.store.registry import LocalModel, model_name, open_model
from potluck.store.source import TensorSource

logger = logging.getLogger(__name__)


class Upkeep:
    """Checks and prunes models and the store.

    Args:
        store: weights of other computers' models, and packed weights of this computer's models.
        packed: folder where the digests of packed matrices are remembered.
        digests: folder where the digests of models are remembered.
        sessions: folder of conversations' caches.
        models: returns the folders and files of all known models. It may block.
        find: finds the model that a user names. It may block.
    """

    def __init__(
        self,
        *,
        store: ChunkStore,
        packed: Path,
        digests: Path,
        sessions: Path,
        models: Callable[[], Iterable[Path]],
        find: Callable[[str], Path],
    ) -> None:
        self._store = store
        self._packed = packed
        self._sessions = sessions
        self._models = models
        self._find = find
        self._digests = digests
        self._read = reading(digests)

    async def verify(self, model: str | None) -> AsyncGenerator[VerifyProgress, None]:
        """Compute digests again. What is damaged in the store is not here from then on, and is deleted.

        Args:
            model: only this one, with its packed matrices; None: all models and all of the store.

        Raises:
            UsageError: there is no such model.
        """
        paths: Sequence[Path]
        if model is not None:
            paths = [await asyncio.to_thread(self._find, model)]
        else:
            paths = list(await asyncio.to_thread(self._models))
        checked: list[VerifiedModel] = []
        packed: set[Digest] = set()
        for path in paths:
            yield VerifyProgress(state="checking", message=model_name(path))
            try:
                opened = await self._read(path, lambda done, total: None)
            except PotluckError as error:
                problem = error.message
                checked.append(
                    VerifiedModel(name=model_name(path), path=str(path), nbytes=0, problem=problem)
                )
                continue
            packed |= self._packed_forms(opened.manifest.model_id)
            damaged: list[Digest] = []
            for done, (digest, source) in enumerate(opened.sources.items()):
                yield _checking(opened.name, done, len(opened.sources))
                if not await asyncio.to_thread(_is_intact, digest, source):
                    damaged.append(digest)
            checked.append(_verified(opened, path, damaged))
        digests = self._store.inventory.sizes()
        wanted = [d for d in digests if model is None or d in packed]
        dropped: list[Digest] = []
        for done, digest in enumerate(wanted):
            yield _checking("stored weights", done, len(wanted))
            dropped += await asyncio.to_thread(self._store.verify, (digest,))
        nbytes = sum(digests[digest] for digest in wanted)
        store = VerifiedStore(tensors=len(wanted), nbytes=nbytes, dropped=tuple(dropped))
        yield VerifyProgress(
            state="ready", fraction=1.0, result=Verified(models=tuple(checked), store=store)
        )

    async def prune(self, *, dry_run: bool) -> Pruned:
        """Delete all caches of conversations, and from the store what no plan has and no known model became.

        Spare copies go as well: they only save time, and are sent again after the next answer.

        Returns:
            What was deleted or, with `dry_run`, would be.
        """
        needed: set[Digest] = set()
        for path in await asyncio.to_thread(self._models):
            model_id = await asyncio.to_thread(self._known_id, path)
            if model_id is not None:
                needed |= self._packed_forms(model_id)
        loose = {d: size for d, size in self._store.inventory.loose().items() if d not in needed}
        sessions = await asyncio.to_thread(_sizes, self._sessions)
        if not dry_run:
            loose, sessions = await asyncio.to_thread(self._discard, loose, sessions)
        return Pruned(
            tensors=len(loose),
            sessions=len(sessions),
            nbytes=sum(loose.values()) + sum(sessions.values()),
            deleted=not dry_run,
        )

    def _discard(
        self, tensors: Mapping[Digest, int], files: Mapping[Path, int]
    ) -> tuple[dict[Digest, int], dict[Path, int]]:
        """Delete them; returns which are gone. Windows keeps a file that somebody reads."""
        gone = {digest: size for digest, size in tensors.items() if self._store.discard(digest)}
        return gone, {file: size for file, size in files.items() if _is_removed(file)}

    def _known_id(self, path: Path) -> ModelId | None:
        """The id of a model whose digests are known; None: then nothing of it was ever packed."""

        def refuse_to_hash(done: int, total: int) -> None:
            if done < total:
                raise _NotKnownError

        try:
            model = open_model(path, cache_dir=self._digests, progress=refuse_to_hash)
        except (PotluckError, _NotKnownError):
            return None
        return model.manifest.model_id

    def _packed_forms(self, model: ModelId) -> set[Digest]:
        return {Digest(form.digest) for form in recall(self._packed, model).values()}


class _NotKnownError(Exception):
    """The digests of a model are not known."""


def _is_removed(file: Path) -> bool:
    try:
        remove(file)
    except OSError as error:
        logger.warning("not removed file=%s: %s", file, reason(error))
        return False
    return True


def _sizes(folder: Path) -> dict[Path, int]:
    """The bytes of each file in a folder; none if there is no such folder."""
    return {file: file.stat().st_size for file in folder.glob("*")}


def _is_intact(digest: Digest, source: TensorSource) -> bool:
    try:
        return source.digest() == digest
    except OSError:
        return False


def _verified(model: LocalModel, path: Path, damaged: Sequence[Digest]) -> VerifiedModel:
    names = (entry.name for entry in model.manifest.tensors if entry.digest in damaged)
    nbytes = sum(source.nbytes for source in model.sources.values())
    return VerifiedModel(name=model.name, path=str(path), nbytes=nbytes, damaged=tuple(names))


def _checking(what: str, done: int, total: int) -> VerifyProgress:
    return VerifyProgress(state="checking", fraction=done / total, message=what)
