"""What a node and the process of a download tell each other: one JSON object a line."""

from collections.abc import Sequence
from pathlib import Path
from typing import TypeAlias

from msgspec import Struct

from potluck.hub.variants import RemoteFile

PART = ".potluck.incomplete"  # the end of the name of a file that is not whole yet


class Order(Struct, frozen=True, kw_only=True):
    """The first line that the process reads. When its input ends after that, it ends, too."""

    model: str  # org/name
    revision: str  # the commit
    files: tuple[RemoteFile, ...]
    cache: str  # folder of the Hugging Face cache
    token: str | None = None
    endpoint: str | None = None  # of the Hub; None: the usual one
    bytes_per_s: float | None = None  # at most, until a `Limit` comes; None: there is no limit


class Limit(Struct, frozen=True, kw_only=True):
    """Each later line: how fast the process takes bytes from now on."""

    bytes_per_s: float | None


class Progress(Struct, frozen=True, tag=True):
    """How many bytes of the files are on the disk now."""

    done: int


class Ended(Struct, frozen=True, tag=True):
    """The last line: all files are there, and have the bytes that the Hub promised."""


class Failed(Struct, frozen=True, kw_only=True, tag=True):
    """The last line: an error of `potluck.errors`."""

    code: str
    message: str
    data: dict[str, str | int | float | bool | None] = {}


Report: TypeAlias = Progress | Ended | Failed


def repository_folder(cache: Path, model: str) -> Path:
    """Where the Hugging Face cache has a repository."""
    return cache / f"models--{model.replace('/', '--')}"


def pointer_of(cache: Path, model: str, revision: str, file: RemoteFile) -> Path:
    """The place of a file in the cache, where programs look for it. It is there once it is whole."""
    return repository_folder(cache, model) / "snapshots" / revision / file.name


def model_path(
    cache: Path, model: str, revision: str, form: str, files: Sequence[RemoteFile]
) -> Path:
    """A downloaded model on this computer: its folder, or its first GGUF file."""
    first = pointer_of(cache, model, revision, files[0])
    return first if form == "gguf" else first.parent


def blob_of(cache: Path, model: str, file: RemoteFile) -> Path:
    """The place of a file's bytes in the cache, to which all revisions that have it are linked."""
    return repository_folder(cache, model) / "blobs" / file.digest


def part_of(cache: Path, model: str, file: RemoteFile) -> Path:
    """The place of a file that is not whole yet."""
    blob = blob_of(cache, model, file)
    return blob.with_name(f"{blob.name}{PART}")
