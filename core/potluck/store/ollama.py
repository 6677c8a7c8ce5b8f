"""Models in Ollama's store: GGUF files without a name, which its manifests name. Nothing is altered there.

A store is a folder with `manifests/HOST/NAMESPACE/MODEL/TAG`, small JSON files, and `blobs/sha256-…`.
"""

import re
from collections.abc import Iterator
from pathlib import Path

import msgspec
from msgspec import Struct

_BLOB = re.compile(r"sha256-[0-9a-f]{64}")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_WEIGHTS = "application/vnd.ollama.image.model"
_ADAPTER = "application/vnd.ollama.image.adapter"
_PROJECTOR = "application/vnd.ollama.image.projector"
_MAX_MANIFEST = 1 << 20  # bytes; they have about a thousand
_HOST = "registry.ollama.ai"
_NAMESPACE = "library"
_LEVELS = 4  # host, namespace, model, tag


class _Layer(Struct):
    digest: str
    media_type: str = msgspec.field(name="mediaType")


class _Manifest(Struct):
    layers: list[_Layer] = []


def is_blob(path: Path) -> bool:
    """Whether the path is that of a file in an Ollama store; the file is not read."""
    return path.parent.name == "blobs" and _BLOB.fullmatch(path.name) is not None


def ollama_models(store: Path) -> dict[Path, str]:
    """The files with weights in a store, each with its model's name, such as `qwen3:8b`.

    Models in several files of weights, and those with adapters, are left out.
    """
    found: dict[Path, str] = {}
    for manifest in sorted((store / "manifests").glob("/".join("*" * _LEVELS))):
        for digest in _weights_of(manifest):
            found.setdefault(store / "blobs" / digest.replace(":", "-"), _name(manifest))
    return {blob: name for blob, name in found.items() if blob.is_file()}


def ollama_projectors(blob: Path) -> list[Path]:
    """The files with a vision tower that belong to the model whose weights this file has."""
    store = blob.parent.parent
    found: list[Path] = []
    for manifest in sorted((store / "manifests").glob("/".join("*" * _LEVELS))):
        layers = _layers_of(manifest)
        if any(_blob(store, layer) == blob for layer in layers if layer.media_type == _WEIGHTS):
            found += [
                path
                for layer in layers
                if layer.media_type == _PROJECTOR and (path := _blob(store, layer)) is not None
            ]
    return list(dict.fromkeys(found))


def _blob(store: Path, layer: _Layer) -> Path | None:
    if not _DIGEST.fullmatch(layer.digest):
        return None
    return store / "blobs" / layer.digest.replace(":", "-")


def blob_name(blob: Path) -> str:
    """The name of the model whose weights this file has; its file name if no manifest has it."""
    return ollama_models(blob.parent.parent).get(blob, blob.name)


def _layers_of(manifest: Path) -> list[_Layer]:
    try:
        if manifest.stat().st_size > _MAX_MANIFEST:
            return []
        return msgspec.json.decode(manifest.read_bytes(), type=_Manifest).layers
    except (OSError, ValueError):
        return []


def _weights_of(manifest: Path) -> Iterator[str]:
    layers = _layers_of(manifest)
    weights = [layer.digest for layer in layers if layer.media_type == _WEIGHTS]
    has_adapter = any(layer.media_type == _ADAPTER for layer in layers)
    if len(weights) == 1 and not has_adapter and _DIGEST.fullmatch(weights[0]):
        yield weights[0]


def _name(manifest: Path) -> str:
    """Ollama's own short name: without its usual host and namespace."""
    host, namespace, model, tag = manifest.parts[-_LEVELS:]
    parts = [model]
    if namespace != _NAMESPACE or host != _HOST:
        parts.insert(0, namespace)
    if host != _HOST:
        parts.insert(0, host)
    return f"{'/'.join(parts)}:{tag}"
