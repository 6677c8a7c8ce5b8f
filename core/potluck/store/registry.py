"""Opens and checks models on this computer's disk: Hugging Face folders and GGUF files.

Every error in a folder is found here, before any byte is sent to a peer. All functions block: call
them in a thread. Files are never executed or unpickled.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from potluck.errors import BrokenModelError
from potluck.ids import Digest
from potluck.model.checkpoint.consolidated import hugging_face_names, in_this_order
from potluck.model.checkpoint.stacked import stack_slices
from potluck.model.checkpoint.stored import find_stored
from potluck.model.config import ModelConfig
from potluck.model.manifest import (
    Manifest,
    TensorEntry,
    TensorSpan,
    make_manifest,
)
from potluck.model.names import BASE
from potluck.model.naming import EMBEDDING, decoder_names
from potluck.model.text.tokenizer_sources import find_tokenizer, no_tokenizer
from potluck.model.vision.families import missing_tower
from potluck.model.vision.spec import is_of_tower
from potluck.reasons import reason
from potluck.store.digests import ModelFile, Progress, digest_tensors
from potluck.store.gguf_files import find_gguf, gguf_name, is_gguf
from potluck.store.model_folder import (
    CONSOLIDATED,
    Spans,
    config_file,
    read_config,
    read_spans,
    weight_files,
)
from potluck.store.no_model import no_weights
from potluck.store.source import TensorSource

THREADS = min(8, os.cpu_count() or 1)  # SHA-256 runs at 0.5 to 2 GB/s per core, disks at 8 at most


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalModel:
    """A model on this computer. Its files were whole and consistent when it was opened."""

    folder: Path | None  # or the (first) GGUF file; None: there are no files
    words: Path | None  # the folder with its tokenizer and template
    name: str  # for people: the folder's name, or `org/name` in the Hub cache
    manifest: Manifest
    config: ModelConfig
    sources: Mapping[Digest, TensorSource]
    seed: int | None = None  # of random weights, which every computer makes itself
    blind: str | None = None  # why it reads no pictures, although its files have a vision tower


def random_model(name: str, config: Mapping[str, object], *, seed: int = 0) -> LocalModel:
    """Make a model with random weights, for measuring: it has no files, and no weights are sent."""
    return LocalModel(
        folder=None,
        words=None,
        name=name,
        manifest=make_manifest(config, ()),
        config=ModelConfig.from_dict(config),
        sources={},
        seed=seed,
    )


def open_model(
    folder: Path, *, cache_dir: Path, progress: Progress | None = None, threads: int = THREADS
) -> LocalModel:
    """Read and check a model's folder, and digest its tensors unless their digests are cached.

    The model may also be a GGUF file, or a folder with a single GGUF model.

    Raises:
        UsageError: the folder does not exist, or has no model.
        ModelError: the model is broken, or of a family that the engine does not know.
    """
    try:
        return _open_model(folder, cache_dir, progress, threads)
    except OSError as error:
        raise BrokenModelError(
            f"{folder} cannot be read: {reason(error)}.", folder=str(folder)
        ) from error


def model_name(folder: Path) -> str:
    """The name that people use for the model in this folder or GGUF file."""
    folder = folder.absolute()
    if is_gguf(folder):
        repository = model_name(folder.parent)
        return f"{repository}/{gguf_name(folder)}" if "/" in repository else gguf_name(folder)
    # The Hub cache keeps org/name as models--org--name/snapshots/<revision>.
    if folder.parent.name == "snapshots" and folder.parent.parent.name.startswith("models--"):
        return folder.parent.parent.name.removeprefix("models--").replace("--", "/")
    return folder.name


def _open_model(
    folder: Path, cache_dir: Path, progress: Progress | None, threads: int
) -> LocalModel:
    blind: str | None = None
    if (path := _gguf_of(folder)) is not None:
        # Imported here: importing `gguf` takes a tenth of a second, and only GGUF models need it.
        from potluck.store.gguf_model import open_gguf

        opened = open_gguf(path, cache_dir=cache_dir)
        folder, raw, config, words = path, opened.raw, opened.config, opened.words
        spans, blind = opened.spans, opened.blind
    else:
        raw, words = read_config(folder), folder
        ModelConfig.from_dict(
            raw
        )  # a model that cannot be run is said to be one, whatever it lacks
        if find_tokenizer(folder) is None:
            raise no_tokenizer(folder)
        raw, spans = _read_folder(folder, raw)
        config = ModelConfig.from_dict(raw)
        spans = _cut(config, spans)
        if config.tower is None:
            blind = missing_tower(raw, config.architecture)
    everything = config.stage_tensors(range(config.num_layers), embedding=True, head=True)
    found = {name: span for name, (_, span) in spans.items()}
    stored = find_stored(config, everything, found, where=str(folder))
    files = _by_file({span.name: spans[span.name] for parts in stored.values() for span in parts})
    digests = digest_tensors(files, cache_dir=cache_dir, progress=progress, threads=threads)
    spans_of_files = [(file, span) for file in files for span in file.spans]
    return LocalModel(
        folder=folder,
        words=words,
        name=model_name(folder),
        manifest=make_manifest(raw, [_entry(span, digests) for _, span in spans_of_files]),
        config=config,
        sources={
            digests[span.name]: TensorSource(path=file.path, offset=span.offset, nbytes=span.nbytes)
            for file, span in spans_of_files
        },
        blind=blind,
    )


def _gguf_of(folder: Path) -> Path | None:
    """The GGUF file to open; None: use the Hugging Face layout. Some folders have both."""
    has_config = config_file(folder).is_file()
    return None if has_config and any(folder.glob("*.safetensors")) else find_gguf(folder)


def _entry(span: TensorSpan, digests: Mapping[str, Digest]) -> TensorEntry:
    return TensorEntry(
        name=span.name,
        dtype=span.dtype,
        shape=span.shape,
        digest=digests[span.name],
        nbytes=span.nbytes,
    )


def _read_folder(folder: Path, raw: dict[str, object]) -> tuple[dict[str, object], Spans]:
    """The config and the tensors under our names."""
    names = weight_files(folder)
    if not names:
        raise no_weights(folder)
    spans = read_spans(folder, names)
    if names[0].startswith(CONSOLIDATED):
        return in_this_order(raw), _renamed(spans, hugging_face_names(spans))
    if EMBEDDING.removeprefix(BASE) in spans:
        # Nothing but embeddings is to be computed with it, for which any head will do.
        raw = {**raw, "tie_word_embeddings": True}
    spans = _renamed(spans, decoder_names(spans))
    if not any(map(is_of_tower, spans)):  # saved for text alone
        raw = {name: value for name, value in raw.items() if name != "vision_config"}
    return raw, spans


def _renamed(spans: Spans, names: Mapping[str, str]) -> Spans:
    """The tensors that have other names, under these."""
    return {
        ours: (spans[name][0], replace(spans[name][1], name=ours)) for name, ours in names.items()
    }


def _cut(config: ModelConfig, spans: Spans) -> Spans:
    """The tensors, with those that hold all experts of a layer cut into experts."""
    found: dict[str, tuple[ModelFile, TensorSpan]] = {}
    for name, (file, span) in spans.items():
        found[name] = file, span
        for part in stack_slices(config, name, span.shape, span.nbytes):
            offset = span.offset + part.offset
            one = replace(span, name=part.name, shape=part.shape, offset=offset, nbytes=part.nbytes)
            found[part.name] = file, one
    return found


def _by_file(spans: Mapping[str, tuple[ModelFile, TensorSpan]]) -> Sequence[ModelFile]:
    """Group these tensors by their files."""
    chosen: dict[Path, tuple[ModelFile, list[TensorSpan]]] = {}
    for file, span in spans.values():
        chosen.setdefault(file.path, (file, []))[1].append(span)
    return [ModelFile(file.path, file.stamp, some) for file, some in chosen.values()]
