"""Models that the user has: those of the Hugging Face cache, and recent folders.

`huggingface_hub` is imported inside the functions that use it: the import takes a third of a
second, and a node that only lends its devices does not need it. All functions block: call them in a
thread.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from potluck.errors import BrokenModelError, UsageError
from potluck.files import recall, remember
from potluck.store.gguf_files import gguf_files, gguf_parts, is_gguf
from potluck.store.registry import model_name

MAX_RECENT = 20  # folders; more would make the list hard to read

_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")  # org/name


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFolder:
    """A model on this computer's disk, as an entry of a list."""

    name: str
    path: Path  # its folder, or its GGUF file
    nbytes: int  # of its weights


class RecentFolders:
    """The existing folders and GGUF files that the user chose, latest first, in a small file."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def folders(self) -> list[Path]:
        names = recall(self._file, list[str]) or []
        return [path for path in map(Path, names) if path.is_dir() or _is_gguf_file(path)]

    def add(self, folder: Path) -> None:
        folder = folder.absolute()
        others = [path for path in self.folders() if path != folder]
        remember(self._file, [str(path) for path in (folder, *others)][:MAX_RECENT])


def list_models(
    recent: Iterable[Path] = (), *, hub_cache: Path | None = None
) -> Sequence[ModelFolder]:
    """List the models of these folders, then those of the Hub cache, each once.

    Args:
        recent: folders in the Hugging Face layout or with GGUF files, and GGUF files.
        hub_cache: the Hub cache; None: the folder of `HF_HUB_CACHE`, `HF_HOME` or the default.
    """
    chosen = (path.absolute() for path in (*recent, *_cached(hub_cache)))
    paths = dict.fromkeys(model for path in chosen for model in _models_in(path))
    models = [
        ModelFolder(name=model_name(path), path=path, nbytes=_weights(path)) for path in paths
    ]
    return [model for model in models if model.nbytes]


class KnownModels:
    """The models on this computer: the default one, those that the user chose, and the Hub cache's.

    Args:
        default: the model where no other is asked for.
        recent: what the user chose.
    """

    def __init__(self, default: Path, recent: RecentFolders) -> None:
        self.default = default
        self.recent = recent

    def list(self) -> Sequence[ModelFolder]:
        """List them, each once. Blocks."""
        return list_models([self.default, *self.recent.folders()])

    def find(self, words: str | None) -> Path:
        """Find the one that a user names; see `find_model`. Blocks."""
        return find_model(words, default=self.default, recent=self.recent.folders())


_SHOWN = 200  # characters of a name in an error


def find_model(
    words: str | None,
    *,
    default: Path,
    recent: Iterable[Path] = (),
    hub_cache: Path | None = None,
) -> Path:
    """Find the model that a user names by a path or a name of `list_models`; None: the default.

    Raises:
        UsageError: there is no such model; the message lists those that exist.
    """
    if words is None or not words.strip():
        return default
    words = words.strip()
    if (folder := _at_path(words)) is not None:
        return folder
    models = list_models(recent, hub_cache=hub_cache)
    wanted = words.lower()
    for name_of in (str.lower, _last_part):  # first the whole name, then only `name` of `org/name`
        found = [model.path for model in models if name_of(model.name) == wanted]
        if found:
            return found[0]
    if _REPOSITORY.fullmatch(words):
        hint = " Download it first, or give the folder that holds it."
    else:
        hint = " Give the folder that holds config.json and the safetensors files, or a GGUF file."
    known = ", ".join(model.name for model in models[:5])
    there = f" On this computer are: {known}." if known else ""
    shown = words if len(words) <= _SHOWN else f"{words[:_SHOWN]}…"
    raise UsageError(f"There is no model {shown!r} on this computer.{hint}{there}", model=words)


def _at_path(words: str) -> Path | None:
    """The model at this path; None: there is none, or the words are no path on this system."""
    try:
        path = Path(words).expanduser()
        return path if path.is_dir() or _is_gguf_file(path) else None
    except (OSError, RuntimeError):  # too long a name; the home of a user who is not there
        return None


def _last_part(name: str) -> str:
    return name.rpartition("/")[2].lower()


def _cached(hub_cache: Path | None) -> list[Path]:
    """The newest snapshot of every model in the Hub cache, sorted by name."""
    from huggingface_hub import scan_cache_dir
    from huggingface_hub.errors import CacheNotFound

    try:
        found = scan_cache_dir(hub_cache)
    except (CacheNotFound, ValueError, OSError):
        return []
    newest = {
        repo.repo_id: max(repo.revisions, key=lambda revision: revision.last_modified)
        for repo in found.repos
        if repo.repo_type == "model" and repo.revisions
    }
    return [newest[name].snapshot_path for name in sorted(newest, key=str.lower)]


def _models_in(path: Path) -> list[Path]:
    if is_gguf(path):
        return [path]
    models = [path] if (path / "config.json").is_file() else []
    return models + gguf_files(path)


def _is_gguf_file(path: Path) -> bool:
    return is_gguf(path) and path.is_file()


def _weights(path: Path) -> int:
    try:
        files = gguf_parts(path) if is_gguf(path) else path.glob("*.safetensors")
        return sum(file.stat().st_size for file in files)
    except (OSError, BrokenModelError):  # a blob or a part of the model is missing
        return 0
