"""One download as it is kept over restarts, and its files on the disk."""

import shutil
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from potluck.api.values.hub import DownloadState
from potluck.errors import DiskFullError, format_bytes
from potluck.hub.orders import blob_of, model_path, part_of, pointer_of, repository_folder
from potluck.hub.variants import RemoteFile

RESERVE = 1 << 30  # bytes of the disk that a download leaves free


class KeptDownload(Struct, frozen=True, kw_only=True):
    """A download in the list on disk. `cache` of its methods is the folder of the Hugging Face cache."""

    id: str
    model: str
    variant: str
    format: str
    revision: str
    files: tuple[RemoteFile, ...]
    there: tuple[str, ...] = ()  # names of files that were there before
    state: DownloadState = "queued"
    message: str | None = None

    @property
    def total(self) -> int:
        """Bytes of all files."""
        return sum(file.nbytes for file in self.files)

    def path(self, cache: Path) -> Path:
        """The model on this computer: a folder, or the first GGUF file."""
        return model_path(cache, self.model, self.revision, self.format, self.files)

    def noting_what_is_there(self, cache: Path) -> "KeptDownload":
        """The same, with the names of the files that are there already: they are not deleted with it."""
        return replace(self, there=tuple(f.name for f in self.files if self._is_whole(cache, f)))

    def bytes_there(self, cache: Path) -> int:
        """How many bytes of its files are on the disk."""
        there = 0
        for file in self.files:
            part = part_of(cache, self.model, file)
            if self._is_whole(cache, file):
                there += file.nbytes
            elif part.exists():
                there += min(part.stat().st_size, file.nbytes)
        return there

    def _is_whole(self, cache: Path, file: RemoteFile) -> bool:
        """Whether a file is there, be it of another revision."""
        return (
            pointer_of(cache, self.model, self.revision, file).exists()
            or blob_of(cache, self.model, file).exists()
        )

    def require_room(self, cache: Path, done: int) -> None:
        """Refuse a download that does not fit on the disk; `done` bytes of it are there.

        Raises:
            DiskFullError: with the bytes that are missing.
        """
        folder = next(p for p in (cache, *cache.parents) if p.exists())
        free, needed = shutil.disk_usage(folder).free, self.total - done
        if needed and (missing := needed + RESERVE - free) > 0:
            raise DiskFullError(
                f"{self.model} ({self.variant}) needs {format_bytes(needed)} more on the disk of {folder}, of"
                f" which {format_bytes(free)} are free: {format_bytes(missing)} are missing, with"
                f" {format_bytes(RESERVE)} left for others. Delete models or other files, and try again.",
                needed=needed,
                free=free,
                missing=missing,
            )

    def delete(self, cache: Path) -> None:
        """Delete what it has fetched, because it was cancelled."""
        for file in self.files:
            if file.name in self.there:
                continue
            for path in (
                pointer_of(cache, self.model, self.revision, file),
                blob_of(cache, self.model, file),
                part_of(cache, self.model, file),
            ):
                path.unlink(missing_ok=True)
        folder = repository_folder(cache, self.model)
        if not any(path.is_file() for path in (folder / "blobs").glob("*")):
            shutil.rmtree(folder, ignore_errors=True)
