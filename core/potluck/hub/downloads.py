"""The downloads of this computer: one at a time, the others wait; they go on after a restart of the node."""

import asyncio
import logging
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol

import msgspec
from msgspec.structs import replace

from potluck.api.values.hub import Download, DownloadAction, DownloadState
from potluck.errors import (
    HubError,
    NotFoundError,
    OfflineError,
    PotluckError,
    UsageError,
    rebuild,
)
from potluck.files import recall, remember
from potluck.hub.kept import KeptDownload
from potluck.hub.orders import (
    Ended,
    Failed,
    Limit,
    Order,
    Progress,
    Report,
)
from potluck.hub.pace import MB
from potluck.hub.remote import Hub, require_known
from potluck.hub.variants import RemoteVariant
from potluck.reasons import reason
from potluck.store.progress import TransferMeter, TransferProgress

logger = logging.getLogger(__name__)

MODULE = "potluck.hub.process"
RETRY_S = 20.0  # after the Hub could not be reached
_MAX_KEPT = 100  # downloads in the list
ENVIRONMENT: Mapping[str, str] = {
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "HF_HUB_DISABLE_IMPLICIT_TOKEN": "1",
}


class Output(Protocol):
    """What the process writes."""

    async def readline(self) -> bytes: ...


class Input(Protocol):
    """What the process reads."""

    def write(self, data: bytes) -> None: ...
    async def drain(self) -> None: ...


class Process(Protocol):
    """What a download needs of an `asyncio.subprocess.Process`."""

    @property
    def stdin(self) -> Input | None: ...
    @property
    def stdout(self) -> Output | None: ...
    def kill(self) -> None: ...
    async def wait(self) -> int: ...


class Downloads:
    """The list of downloads.

    Args:
        hub: is asked what a repository has.
        cache: folder of the Hugging Face cache.
        file: keeps the list over restarts.
        start: starts the process `MODULE` with the environment `ENVIRONMENT`.
        token: returns the user's token.
        changed: called when something of the list has changed; up to four times a second.
        endpoint: of the Hub; None: the usual one.
        retry_s: seconds after which an offline download is tried again.
    """

    def __init__(
        self,
        *,
        hub: Hub,
        cache: Path,
        file: Path,
        start: Callable[[], Awaitable[Process]],
        token: Callable[[], str | None],
        changed: Callable[[], None],
        endpoint: str | None = None,
        retry_s: float = RETRY_S,
    ) -> None:
        self._hub = hub
        self._cache = cache
        self._file = file
        self._start = start
        self._token = token
        self._changed = changed
        self._endpoint = endpoint
        self._retry_s = retry_s
        self._wake = asyncio.Event()
        self._kept: dict[str, KeptDownload] = {}
        self._done: dict[str, int] = {}  # bytes on the disk
        self._retry_at: dict[str, float] = {}
        self._progress: TransferProgress | None = None  # of the one that runs
        self._running: tuple[str, Process | None] | None = None
        self._limit_mb: float | None = None
        self._stopped = asyncio.Condition()  # notified when none runs any more
        for kept in recall(file, list[KeptDownload]) or []:
            state = "queued" if kept.state in ("running", "offline") else kept.state
            self._kept[kept.id] = replace(kept, state=state)
            self._done[kept.id] = kept.bytes_there(self._cache)

    # --- what clients see

    def views(self) -> tuple[Download, ...]:
        """All downloads, in the order in which they were asked for."""
        queue = [kept.id for kept in self._kept.values() if kept.state == "queued"]
        places = {download_id: place for place, download_id in enumerate(queue, 1)}
        return tuple(
            replace(self._view(kept), place=places.get(kept.id)) for kept in self._kept.values()
        )

    @property
    def is_busy(self) -> bool:
        """Whether something is being downloaded, or will be without being asked for again."""
        return any(kept.state in ("queued", "running") for kept in self._kept.values())

    def is_wanted(self, model: str) -> bool:
        """Whether files of this repository are still to come."""
        return any(
            k.model == model and k.state not in ("done", "failed") for k in self._kept.values()
        )

    def _view(self, kept: KeptDownload) -> Download:
        progress = self._progress if kept.state == "running" else None
        done = self._done.get(kept.id, 0)
        rate = progress.bytes_per_s if progress is not None else None
        return Download(
            id=kept.id,
            model=kept.model,
            variant=kept.variant,
            state=kept.state,
            done=done,
            total=kept.total,
            bytes_per_s=rate,
            eta_s=(kept.total - done) / rate if rate else None,
            message=kept.message,
            path=str(kept.path(self._cache)) if kept.state == "done" else None,
        )

    # --- what clients ask for

    def limit(self, mb: float | None) -> None:
        """Take so many MB/s at most from now on; None: as fast as it goes."""
        if mb == self._limit_mb:
            return
        self._limit_mb = mb
        process = self._running[1] if self._running is not None else None
        if process is not None and process.stdin is not None:
            with suppress(OSError, RuntimeError):  # it ends just now
                process.stdin.write(msgspec.json.encode(Limit(bytes_per_s=self._rate)) + b"\n")

    @property
    def _rate(self) -> float | None:
        return None if self._limit_mb is None else self._limit_mb * MB

    async def add(
        self, model: str, choose: Callable[[Sequence[RemoteVariant]], str | None]
    ) -> Download:
        """Download a model.

        Args:
            model: `org/name` of its repository.
            choose: returns the name of the variant; None: the first one.

        Raises:
            DiskFullError: it does not fit on the disk.
            GatedModelError, NotFoundError, OfflineError, HubError: the Hub does not give it.
            ModelError, UsageError: Potluck could not run it, or there is no such variant.
        """
        repository = await asyncio.to_thread(self._hub.look, model)
        if not repository.variants:
            raise UsageError(repository.model.problem or f"{model} has no model.", model=model)
        name = choose(repository.variants) or repository.variants[0].name
        variant = next((v for v in repository.variants if v.name.lower() == name.lower()), None)
        if variant is None:
            there = ", ".join(v.name for v in repository.variants)
            raise NotFoundError(f"{model} has no variant {name}. It has: {there}.", variant=name)
        require_known(model, repository, variant)
        for kept in self._kept.values():
            if (kept.model, kept.variant) == (model, variant.name) and kept.state != "done":
                return await self.change(kept.id, "resume")
        if repository.model.gated:
            weights = variant.files[-1].name
            access = (model, repository.revision, weights)
            await asyncio.to_thread(self._hub.require_access, *access)
        kept = KeptDownload(
            id=secrets.token_hex(4),
            model=repository.model.name,
            variant=variant.name,
            format=variant.format,
            revision=repository.revision,
            files=variant.files,
        ).noting_what_is_there(self._cache)
        done = kept.bytes_there(self._cache)
        kept.require_room(self._cache, done)
        self._put(kept, state="done" if done == kept.total else "queued", done=done)
        return self._view(self._kept[kept.id])

    async def change(self, download_id: str, action: DownloadAction) -> Download:
        """Pause, resume or cancel a download. What a cancelled one has fetched is deleted.

        Raises:
            NotFoundError: there is no such download.
            DiskFullError: it does not fit on the disk any more.
        """
        kept = self._kept.get(download_id)
        if kept is None:
            raise NotFoundError("That download is not in the list any more.")
        match action:
            case "pause" if kept.state in ("queued", "running", "offline"):
                self._put(kept, state="paused")
                await self._end_process(download_id)
            case "resume" if kept.state in ("paused", "failed", "offline"):
                kept.require_room(self._cache, kept.bytes_there(self._cache))
                self._put(kept, state="queued")
            case "cancel":
                view = self._view(kept)
                del self._kept[download_id]
                await self._end_process(download_id)
                if kept.state != "done":
                    await asyncio.to_thread(kept.delete, self._cache)
                self._save()
                return view
            case _:
                pass  # it is so already
        return self._view(self._kept[download_id])

    def forget(self, path: Path) -> None:
        """A model on this computer was deleted: it is no longer one that was downloaded."""
        gone = [
            k.id for k in self._kept.values() if k.state == "done" and k.path(self._cache) == path
        ]
        for download_id in gone:
            del self._kept[download_id]
        if gone:
            self._save()

    # --- the work

    async def run(self) -> None:
        """Download what is in the list, until cancelled."""
        try:
            while True:
                kept = self._next()
                if kept is not None:
                    await self._download(kept)
                    continue
                self._wake.clear()
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._retry_s if self._retry_at else None):
                        await self._wake.wait()
        finally:
            if self._running is not None and (process := self._running[1]) is not None:
                process.kill()

    def _next(self) -> KeptDownload | None:
        now = time.monotonic()
        for kept in self._kept.values():
            is_due = kept.state == "offline" and self._retry_at.get(kept.id, 0.0) <= now
            if kept.state == "queued" or is_due:
                return kept
        return None

    async def _download(self, kept: KeptDownload) -> None:
        self._running = (kept.id, None)
        self._put(kept, state="running")
        try:
            await self._follow(kept)
        except PotluckError as error:
            self._ended(kept.id, error)
        except (OSError, msgspec.MsgspecError) as error:
            self._ended(
                kept.id, HubError(f"The download's process does not work: {reason(error)}.")
            )
        else:
            self._ended(kept.id, None)
        finally:
            self._running = self._progress = None
            async with self._stopped:
                self._stopped.notify_all()

    async def _follow(self, kept: KeptDownload) -> None:
        """Start the process of a download, and take its reports until it ends.

        Raises:
            PotluckError: it failed.
        """
        process = await self._start()
        self._running = (kept.id, process)
        try:
            if self._kept.get(kept.id, kept).state != "running":
                return  # paused or cancelled meanwhile
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(msgspec.json.encode(self._order(kept)) + b"\n")
            await process.stdin.drain()
            kept.require_room(self._cache, kept.bytes_there(self._cache))
            meter = TransferMeter(kept.total, time.monotonic, self._note)
            while line := await process.stdout.readline():
                match msgspec.json.decode(line, type=Report):
                    case Progress(done=done):
                        meter.add(max(0, done - self._done[kept.id]))
                        self._done[kept.id] = done
                        self._changed()
                    case Ended():
                        return
                    case Failed(code=code, message=message, data=data):
                        raise rebuild(code, message, data, default=HubError)
            raise HubError("The download's process ended without a word. Try again.")
        except ConnectionError:
            raise HubError("The download's process ended without a word. Try again.") from None
        finally:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()

    def _note(self, progress: TransferProgress) -> None:
        self._progress = progress

    def _ended(self, download_id: str, error: PotluckError | None) -> None:
        """Note how a download ended, unless it was paused or cancelled meanwhile."""
        kept = self._kept.get(download_id)
        if kept is None:
            return
        done = kept.bytes_there(self._cache)
        if kept.state != "running":
            self._put(kept, state=kept.state, done=done)
        elif error is None:
            self._put(kept, state="done", done=done)
        elif isinstance(error, OfflineError):
            self._retry_at[kept.id] = time.monotonic() + self._retry_s
            self._put(kept, state="offline", done=done, message=error.message)
        else:
            logger.warning("download failed model=%s: %s", kept.model, error)
            self._put(kept, state="failed", done=done, message=error.message)

    async def _end_process(self, download_id: str) -> None:
        """End the process of a download, if it runs, and wait until it is gone."""
        if self._running is None or self._running[0] != download_id:
            return
        if (process := self._running[1]) is not None:
            with suppress(ProcessLookupError):
                process.kill()
        async with self._stopped:
            await self._stopped.wait_for(
                lambda: self._running is None or self._running[0] != download_id
            )

    def _order(self, kept: KeptDownload) -> Order:
        return Order(
            model=kept.model,
            revision=kept.revision,
            files=kept.files,
            cache=str(self._cache),
            token=self._token(),
            endpoint=self._endpoint,
            bytes_per_s=self._rate,
        )

    # --- the list

    def _put(
        self,
        kept: KeptDownload,
        *,
        state: DownloadState,
        done: int | None = None,
        message: str | None = None,
    ) -> None:
        self._kept[kept.id] = replace(kept, state=state, message=message)
        if done is not None:
            self._done[kept.id] = done
        if state != "offline":
            self._retry_at.pop(kept.id, None)
        self._save()

    def _save(self) -> None:
        remember(self._file, list(self._kept.values())[-_MAX_KEPT:])
        self._wake.set()
        self._changed()
