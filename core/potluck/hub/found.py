"""Models on this computer: in folders of the user, the Hugging Face cache, and other programs' stores.

`huggingface_hub` is imported inside the functions that use it: the import takes a third of a
second, and a node that only lends its devices does not need it. All functions block: call them in a
thread.
"""

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from potluck.api.values.hub import Format, Source
from potluck.errors import BrokenModelError, UsageError
from potluck.files import recall, remember
from potluck.store.gguf_files import gguf_files, gguf_parts, is_gguf, quantisations
from potluck.store.model_folder import config_file, weight_files
from potluck.store.ollama import ollama_models
from potluck.store.registry import model_name

GUIDE = "guide"  # the name of the model that comes with Potluck
MAX_RECENT = 20  # folders; more would make the list hard to read
MAX_DEPTH = 3  # of the folders that are searched below one that the user gave
MAX_SEARCHED = 2000  # folders; beyond that it is no folder of models

_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")  # org/name
_GGUF_MAGIC = b"GGUF"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFolder:
    """A model on this computer's disk, as an entry of a list."""

    name: str
    path: Path  # its folder, or its GGUF file
    nbytes: int  # of its weights
    source: Source = "folder"

    @property
    def format(self) -> Format:
        return "gguf" if is_gguf(self.path) else "safetensors"


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """Where programs keep models on this computer."""

    hub: Path | None = None  # None: the folder of `HF_HUB_CACHE`, `HF_HOME` or the default
    ollama: tuple[Path, ...] = ()
    lmstudio: tuple[Path, ...] = ()

    @classmethod
    def of(cls, home: Path | None = None, environ: Mapping[str, str] = os.environ) -> "Places":
        """The places of this user, as the programs' documentation names them."""
        home = home or Path.home()
        ollama = [home / ".ollama" / "models", Path("/usr/share/ollama/.ollama/models")]
        if chosen := environ.get("OLLAMA_MODELS"):
            ollama.insert(0, Path(chosen))
        lmstudio = [home / ".lmstudio" / "models", home / ".cache" / "lm-studio" / "models"]
        pointer = home / ".lmstudio-home-pointer"
        with suppress(OSError, ValueError):  # it is only there where the folder was moved
            lmstudio.insert(0, Path(pointer.read_text("utf-8").strip()) / "models")
        return cls(ollama=tuple(dict.fromkeys(ollama)), lmstudio=tuple(dict.fromkeys(lmstudio)))


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


class KnownModels:
    """The models on this computer: the guide, those that the user chose, and those of programs.

    Args:
        default: the guide, which is the model where no other is asked for.
        recent: what the user chose.
        places: where programs keep models; None: where this user's Hugging Face cache is.
    """

    def __init__(self, default: Path, recent: RecentFolders, places: Places | None = None) -> None:
        self.default = default
        self.recent = recent
        self.places = places or Places()

    def list(self) -> Sequence[ModelFolder]:
        """List them, each once. Blocks."""
        return list_models(self.recent.folders(), guide=self.default, places=self.places)

    def find(self, words: str | None) -> Path:
        """Find the one that a user names; see `find_model`. Blocks."""
        return find_model(
            words,
            default=self.default,
            recent=self.recent.folders(),
            guide=self.default,
            places=self.places,
        )


def hub_cache() -> Path:
    """The folder of the Hugging Face cache: that of `HF_HUB_CACHE`, `HF_HOME` or the default."""
    from huggingface_hub.constants import HF_HUB_CACHE

    return Path(HF_HUB_CACHE)


def list_models(
    recent: Iterable[Path] = (), *, guide: Path | None = None, places: Places | None = None
) -> Sequence[ModelFolder]:
    """List the models of this computer, each once: the guide, those of folders, then of programs.

    Args:
        recent: folders with a model or with folders of models, and GGUF files.
        guide: the folder of the model that comes with Potluck.
        places: where programs keep models; None: where this user's do.
    """
    places = places or Places()
    models: dict[Path, ModelFolder] = {}
    for source, path in _sources(recent, guide, places):
        if path not in models and (nbytes := _weights(path)):
            name = model_name(path)
            models[path] = ModelFolder(name=name, path=path, nbytes=nbytes, source=source)
    return list(models.values())


def _sources(
    recent: Iterable[Path], guide: Path | None, places: Places
) -> Iterator[tuple[Source, Path]]:
    """Each model's source and path. A model in a place of a program is that program's."""
    if guide is not None:
        yield "potluck", guide
    cached = _cached(places.hub)
    in_cache = set(cached)
    for folder in recent:
        for path in _search(folder.absolute()):
            yield ("hub" if path in in_cache else "folder"), path
    for path in cached:
        yield "hub", path
    for store in places.lmstudio:
        for path in _search(store):
            yield "lmstudio", path
    for store in places.ollama:
        for path in _blobs(store):
            yield "ollama", path


_SHOWN = 200  # characters of a name in an error


def find_model(
    words: str | None,
    *,
    default: Path,
    recent: Iterable[Path] = (),
    guide: Path | None = None,
    places: Places | None = None,
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
    if guide is not None and words.lower() == GUIDE:
        return guide
    models = list_models(recent, guide=guide, places=places)
    if (found := named(words, models)) is not None:
        return found.path
    if (folder := _of_quantisations(words, models)) is not None:
        return folder
    if _REPOSITORY.fullmatch(words):
        hint = " Download it first, or give the folder that holds it."
    else:
        hint = " Give the folder that holds config.json and the safetensors files, or a GGUF file."
    known = ", ".join(model.name for model in models[:5])
    there = f" On this computer are: {known}." if known else ""
    shown = words if len(words) <= _SHOWN else f"{words[:_SHOWN]}…"
    raise UsageError(f"There is no model {shown!r} on this computer.{hint}{there}", model=words)


def named(words: str, models: Sequence[ModelFolder]) -> ModelFolder | None:
    """The first model with this name; else the first whose name ends with it after a slash."""
    wanted = words.lower()
    for name_of in (str.lower, _last_part):
        for model in models:
            if name_of(model.name) == wanted:
                return model
    return None


def _of_quantisations(words: str, models: Sequence[ModelFolder]) -> Path | None:
    """The folder of this name that holds one model in several quantisations, each of which has a name of its own."""
    folders = {model.path.parent for model in models if is_gguf(model.path)}
    for folder in sorted(folders):
        name = model_name(folder).lower()
        if words.lower() in (name, name.rpartition("/")[2]) and quantisations(folder):
            return folder
    return None


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
    """The newest copy of every model in the Hub cache, sorted by the repository's name."""
    from huggingface_hub import scan_cache_dir
    from huggingface_hub.errors import CacheNotFound

    try:
        found = scan_cache_dir(hub_cache)
    except (CacheNotFound, ValueError, OSError):
        return []
    repositories = [repo for repo in found.repos if repo.repo_type == "model"]
    models: list[Path] = []
    for repo in sorted(repositories, key=lambda repo: repo.repo_id.lower()):
        # Two variants of a repository may have come from two revisions.
        newest = sorted(repo.revisions, key=lambda revision: revision.last_modified, reverse=True)
        by_name: dict[str, Path] = {}
        for path in (path for revision in newest for path in _search(revision.snapshot_path)):
            if _weights(path):
                by_name.setdefault(model_name(path), path)
        models += by_name.values()
    return models


def _search(folder: Path) -> list[Path]:
    """The models in a folder, or, if it has none itself, in the folders below it."""
    found: list[Path] = []
    level, searched = [folder], 0
    for _ in range(1 + MAX_DEPTH):
        below: list[Path] = []
        for path in level:
            searched += 1
            models = _models_in(path)
            found += models
            if not models and searched < MAX_SEARCHED:
                below += _folders_in(path)
        level = below
    return found


def _folders_in(path: Path) -> list[Path]:
    try:
        return sorted(p for p in path.iterdir() if p.is_dir() and not p.name.startswith("."))
    except OSError:
        return []


def _models_in(path: Path) -> list[Path]:
    if is_gguf(path):
        return [path]
    try:
        models = [path] if config_file(path).is_file() else []
        return models + gguf_files(path)
    except OSError:
        return []


def _blobs(store: Path) -> list[Path]:
    """The GGUF files of an Ollama store. It may also hold models in forms of its own."""

    def has_magic(blob: Path) -> bool:
        try:
            with blob.open("rb") as file:
                return file.read(len(_GGUF_MAGIC)) == _GGUF_MAGIC
        except OSError:
            return False

    try:
        return [blob for blob in ollama_models(store) if has_magic(blob)]
    except OSError:
        return []


def _is_gguf_file(path: Path) -> bool:
    return is_gguf(path) and path.is_file()


def _weights(path: Path) -> int:
    """Bytes of a model's weights; 0 if some are missing."""
    try:
        files = gguf_parts(path) if is_gguf(path) else [path / name for name in weight_files(path)]
        return sum(file.stat().st_size for file in files)
    except (OSError, BrokenModelError):  # a blob or a part of the model is missing
        return 0
