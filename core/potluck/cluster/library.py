"""The models of a node's user: what is on this computer, what the Hub has, and how each of them fits."""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from potluck.api.values.hub import (
    Deleted,
    DeleteRequest,
    Download,
    DownloadAction,
    DownloadRequest,
    Fit,
    FolderRequest,
    Found,
    HubAnswer,
    HubModel,
    HubUser,
)
from potluck.api.values.schema import ModelEntry
from potluck.cluster.chosen import Chosen
from potluck.cluster.computer import Computers
from potluck.cluster.master.fits import Fits
from potluck.cluster.master.master import Master
from potluck.cluster.processes.start import start_process
from potluck.errors import (
    ModelError,
    NotFoundError,
    OfflineError,
    PotluckError,
    UsageError,
)
from potluck.hub.catalogue import RECOMMENDED
from potluck.hub.contents import Contents
from potluck.hub.deleting import delete_model
from potluck.hub.downloads import ENVIRONMENT, MODULE, Downloads
from potluck.hub.found import (
    KnownModels,
    ModelFolder,
    Places,
    hub_cache,
    list_models,
    named,
)
from potluck.hub.orders import model_path
from potluck.hub.remote import Hub, Repository
from potluck.hub.token import TokenFile
from potluck.hub.variants import RemoteVariant, quantised_config
from potluck.ids import NodeId
from potluck.tasks import TaskSet

logger = logging.getLogger(__name__)

LIST_S = 3.0  # of work for the fits of one list; the rest come with the next
HUB_S = 45.0  # for the Hub to answer, over all requests of one question
_USABLE_TOKENS_PER_S = 4.0  # about as fast as people read; below it, a smaller variant is better


class NodeLibrary:
    """Implements `potluck.api.library.Library`.

    Args:
        hub: is asked for models.
        downloads: into the Hugging Face cache.
        token: of the user.
        fits: says how models fit.
        master: tells which model is loaded.
        chosen: is told when the chosen model is deleted.
        known: the models on this computer.
        cache: folder of the Hugging Face cache.
        changed: called when speeds were measured, so that fits are others.
    """

    def __init__(
        self,
        *,
        hub: Hub,
        downloads: Downloads,
        token: TokenFile,
        fits: Fits,
        master: Master,
        chosen: Chosen,
        known: KnownModels,
        cache: Path,
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        self._hub = hub
        self.downloads = downloads
        self._token = token
        self._fits = fits
        self._master = master
        self.chosen = chosen
        self.known = known
        self._cache = cache
        self.contents = Contents()
        self._changed = changed
        self._measuring = False
        self._measured: frozenset[NodeId] = frozenset()  # the computers that it was tried for
        self._tasks = TaskSet()

    # --- models on this computer

    async def models(self) -> Sequence[ModelEntry]:
        await self._fits.look()
        models = await asyncio.to_thread(self.known.list)
        ends_at = time.monotonic() + LIST_S
        return [await self._entry(model, ends_at) for model in models]

    async def _entry(self, model: ModelFolder, ends_at: float) -> ModelEntry:
        fit, parameters, problem = None, None, None
        if time.monotonic() < ends_at:
            try:
                content = await asyncio.to_thread(self.contents.read, model.path)
                parameters = content.parameters
                fit = await self._fit(content.config)
            except PotluckError as error:
                problem = error.message
        return ModelEntry(
            name=model.name,
            path=str(model.path),
            nbytes=model.nbytes,
            current=model.path == self._loaded,
            chosen=model.path == self.chosen.path,
            format=model.format,
            source=model.source,
            parameters=parameters,
            can_be_deleted=model.source == "hub" and model.path != self._loaded,
            held=held_by(self._master) if model.path == self._loaded else {},
            fit=fit,
            problem=problem,
        )

    @property
    def _loaded(self) -> Path | None:
        deployment = self._master.deployment
        folder = deployment.planned.model.folder if deployment is not None else None
        return folder.absolute() if folder is not None else None

    async def delete(self, request: DeleteRequest) -> Deleted:
        models = await asyncio.to_thread(self.known.list)
        wanted = next((m for m in models if str(m.path) == request.model), None)
        model = wanted or named(request.model, models)
        if model is None:
            raise NotFoundError(f"There is no model {request.model[:200]!r} on this computer.")
        if model.path == self._loaded:
            raise UsageError(f"{model.name} is loaded. Unload it, or load another one, first.")
        if self.downloads.is_wanted("/".join(model.name.split("/")[:2])):
            raise UsageError(f"{model.name} is being downloaded. Cancel that first.")
        nbytes = await asyncio.to_thread(delete_model, model, models, self._cache)
        self.chosen.forget(model.path)
        self.downloads.forget(model.path)
        return Deleted(name=model.name, nbytes=nbytes)

    async def add_folder(self, request: FolderRequest) -> Found:
        return await asyncio.to_thread(self._add_folder, request.path)

    def _add_folder(self, path: str) -> Found:
        folder = Path(path)
        if not folder.is_dir():
            raise UsageError(f"There is no folder {folder}.", folder=path)
        models = list_models([folder], places=Places(hub=folder))
        if not models:
            raise UsageError(
                f"{folder} has no models, nor have the folders in it. A model is a folder with"
                " config.json and safetensors files, or a GGUF file.",
                folder=path,
            )
        self.known.recent.add(folder)
        return Found(models=tuple(model.name for model in models))

    # --- the Hub

    async def recommended(self) -> HubAnswer:
        await self._fits.look()
        models: list[HubModel] = []
        for entry in RECOMMENDED:
            variants = tuple(
                [
                    replace(v, fit=await self._fit(quantised_config(entry.config, v.name)))
                    for v in entry.model.variants
                ]
            )
            models.append(replace(entry.model, variants=variants, fit=variants[0].fit))
        is_unknown = any(
            m.fit is not None and m.fit.fits is not False and m.fit.speed is None for m in models
        )
        models.sort(key=_usefulness)
        return HubAnswer(models=tuple(models), measuring=is_unknown and self._measure())

    def _measure(self) -> bool:
        """Begin to measure how fast the computers are, unless a model is at work or it was tried before.

        Returns:
            Whether they are being measured.
        """
        here = self._fits.here()
        if self._master.is_at_rest and not here <= self._measured and not self._measuring:
            self._measured |= here
            self._measuring = True
            self._tasks.spawn(self._measure_speeds(), name="measure")
        return self._measuring

    async def _measure_speeds(self) -> None:
        try:
            await self._fits.measure()
        except PotluckError as error:
            logger.info("the speed of the computers was not measured: %s", error)
        finally:
            self._measuring = False
            self._changed()

    async def close(self) -> None:
        """End what is under way, because the node ends."""
        await self._tasks.stop()

    async def search(self, words: str) -> HubAnswer:
        try:
            found = await self._ask(lambda: self._hub.search(words))
        except OfflineError as error:
            return HubAnswer(offline=True, message=error.message)
        message = None if found else f"The Hub has no model for “{words}”."
        return HubAnswer(models=tuple(found), message=message)

    async def look(self, name: str) -> HubModel:
        repository = await self._ask(lambda: self._hub.look(name))
        await self._fits.look()
        here = {str(model.path) for model in await asyncio.to_thread(self.known.list)}
        variants = [
            replace(
                shown,
                fit=await self._fit(repository.config_of(variant)),
                path=place if (place := self._place(repository, variant)) in here else None,
            )
            for shown, variant in zip(repository.model.variants, repository.variants, strict=True)
        ]
        best = best_variant([(variant.name, variant.fit) for variant in variants])
        fit = next((variant.fit for variant in variants if variant.name == best), None)
        return replace(repository.model, variants=tuple(variants), best=best, fit=fit)

    def _place(self, repository: Repository, variant: RemoteVariant) -> str:
        """Where a variant is on this computer, once it is downloaded."""
        name, revision = repository.model.name, repository.revision
        return str(model_path(self._cache, name, revision, variant.format, variant.files))

    async def download(self, request: DownloadRequest) -> Download:
        wanted = request.variant
        if wanted is None:
            wanted = (await self.look(request.model)).best

        def choose(variants: Sequence[RemoteVariant]) -> str | None:
            return wanted

        try:
            async with asyncio.timeout(HUB_S):
                return await self.downloads.add(request.model, choose)
        except TimeoutError:
            raise _silent() from None

    async def change_download(self, download_id: str, action: DownloadAction) -> Download:
        return await self.downloads.change(download_id, action)

    async def set_token(self, token: str) -> HubUser:
        name = await self._ask(lambda: self._hub.user(token)) if token else None
        await asyncio.to_thread(self._token.write, token)
        return HubUser(has_token=bool(token), name=name)

    async def token(self) -> HubUser:
        return HubUser(has_token=await asyncio.to_thread(self._token.read) is not None)

    async def _ask(self, work: Callable[[], Any]) -> Any:
        """Ask the Hub in a thread.

        Raises:
            OfflineError: it did not answer in time.
        """
        try:
            async with asyncio.timeout(HUB_S):
                return await asyncio.to_thread(work)
        except TimeoutError:
            raise _silent() from None

    async def _fit(self, config: Mapping[str, object] | None) -> Fit | None:
        if config is None:
            return None
        try:
            return await self._fits.of(config)
        except ModelError:
            return None


def open_library(
    *,
    config: Path,
    log: Path,
    master: Master,
    computers: Computers,
    absent: Callable[[], Mapping[NodeId, str]],
    known: KnownModels,
    changed: Callable[[], None],
) -> NodeLibrary:
    """Put together what a node knows of models.

    Args:
        config: the folder of what the user chose.
        log: the file that takes what the process of a download has to say.
        master: of this node.
        computers: this computer and the workers.
        absent: returns the names of paired computers that are not connected.
        known: the models on this computer.
        changed: called when what clients see of downloads or fits has changed.
    """
    token, cache = TokenFile(config / "hub_token"), known.places.hub or hub_cache()
    hub = Hub(token.read)
    downloads = Downloads(
        hub=hub,
        cache=cache,
        file=config / "downloads.json",
        start=lambda: start_process(MODULE, log, ENVIRONMENT),
        token=token.read,
        changed=changed,
    )
    return NodeLibrary(
        hub=hub,
        downloads=downloads,
        token=token,
        fits=Fits(computers, master.measurements, absent),
        master=master,
        chosen=Chosen(config / "chosen.json", known.default),
        known=known,
        cache=cache,
        changed=changed,
    )


def held_by(master: Master) -> dict[str, int]:
    """Bytes that other computers have on their disks for the loaded model, by their names."""
    held: dict[str, int] = {}
    deployment = master.deployment
    for task in deployment.tasks if deployment is not None else ():
        nbytes = sum(tensor.nbytes for tensor in task.assign.tensors)
        if nbytes:
            held[task.stage.name] = held.get(task.stage.name, 0) + nbytes
    return held


def _usefulness(model: HubModel) -> tuple[int, int]:
    """Sorts models: the largest that is fast enough first, then what fits, then what does not."""
    fit, size = model.fit, model.parameters or 0
    if _is_usable(fit):
        return 0, -size
    return (1 if fit is not None and fit.fits else 2), size


def _is_usable(fit: Fit | None) -> bool:
    """Whether a model fits and is known to be fast enough."""
    if fit is None or not fit.fits or fit.speed is None:
        return False
    return fit.speed.low >= _USABLE_TOKENS_PER_S


def _silent() -> OfflineError:
    return OfflineError("The Hugging Face Hub does not answer. Try again later.")


def best_variant(variants: Sequence[tuple[str, Fit | None]]) -> str | None:
    """The best quality that fits and is usable; else the fastest that fits; else the smallest.

    Args:
        variants: name and fit of each, the best quality first.
    """
    fitting = [(name, fit) for name, fit in variants if fit is not None and fit.fits]
    for name, fit in fitting:
        if _is_usable(fit):
            return name
    if fitting:
        unknown = next((name for name, fit in fitting if "Q4_K_M" in name), None)
        return unknown or fitting[-1][0]
    return variants[-1][0] if variants else None
