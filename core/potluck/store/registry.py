"""Opens and checks models on this computer's disk: Hugging Face folders and GGUF files.

Every error in a folder is found here, before any byte is sent to a peer. All functions block: call
them in a thread. Files are never executed or unpickled.
"""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import TypeAlias, cast

from potluck.errors import BrokenModelError, InvalidConfigError, UsageError, format_bytes
from potluck.ids import Digest
from potluck.model.config import ModelConfig
from potluck.model.consolidated import config_of_params, hugging_face_names, in_this_order
from potluck.model.manifest import (
    LENGTH_SIZE,
    Manifest,
    TensorEntry,
    TensorSpan,
    header_length,
    make_manifest,
    parse_header,
)
from potluck.model.naming import BASE, EMBEDDING, decoder_names
from potluck.model.stacked import expert_slices
from potluck.model.stored import find_stored
from potluck.model.tokenizer_sources import find_tokenizer, no_tokenizer
from potluck.reasons import reason
from potluck.store.digests import ModelFile, Progress, Stamp, digest_tensors
from potluck.store.gguf_files import find_gguf, gguf_name, is_gguf

CONFIG, PARAMS = "config.json", "params.json"  # of Hugging Face and of Mistral
HF_QUANT_CONFIG = (
    "hf_quant_config.json"  # of NVIDIA's Model Optimizer, beside a config that says nothing
)
SUFFIX, INDEX_SUFFIX = ".safetensors", ".safetensors.index.json"
WEIGHTS, INDEX = "model" + SUFFIX, "model" + INDEX_SUFFIX
CONSOLIDATED = "consolidated"  # begins the names of Mistral's own files
MAX_JSON = 64 << 20  # bytes of config.json or the index; the largest known index has about 10 MB
_DIGITS = 18  # any number of 18 digits, with its sign, fits 64 bits
THREADS = min(8, os.cpu_count() or 1)  # SHA-256 runs at 0.5 to 2 GB/s per core, disks at 8 at most


_Spans: TypeAlias = Mapping[str, tuple[ModelFile, TensorSpan]]


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorSource:
    """The place of a tensor's bytes on this computer."""

    path: Path
    offset: int
    nbytes: int


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
    if (path := _gguf_of(folder)) is not None:
        # Imported here: importing `gguf` takes a tenth of a second, and only GGUF models need it.
        from potluck.store.gguf_model import open_gguf

        opened = open_gguf(path, cache_dir=cache_dir)
        folder, raw, config, words = path, opened.raw, opened.config, opened.words
        spans = opened.spans
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


def read_config(folder: Path) -> dict[str, object]:
    """The config of the model in a folder, in the form of Hugging Face.

    Raises:
        UsageError: the folder does not exist, or has no model.
        ModelError: the file is damaged, or of a model that Potluck cannot run in this layout.
        OSError: it cannot be read.
    """
    if not folder.is_dir():
        what = "file" if is_gguf(folder) else "folder"
        raise UsageError(f"There is no {what} {folder}.", folder=str(folder))
    path = config_file(folder)
    if not path.is_file():
        raise UsageError(
            f"{folder} is not a model's folder: it has no config.json. Choose the folder that"
            " holds the model's config.json, tokenizer and safetensors files, or a GGUF file.",
            folder=str(folder),
        )
    try:
        read = _read_json(path)
        beside = folder / HF_QUANT_CONFIG
        if path.name == CONFIG and "quantization_config" not in read and beside.is_file():
            given = _read_json(beside).get("quantization")
            if isinstance(given, dict):
                read["quantization_config"] = {"quant_method": "modelopt", **given}
        return config_of_params(read) if path.name == PARAMS else read
    except BrokenModelError as error:
        raise InvalidConfigError(error.message, **error.data) from error


def config_file(folder: Path) -> Path:
    """The file of a folder that says what its model is made of, which need not exist."""
    path = folder / CONFIG
    if path.is_file() or not (folder / PARAMS).is_file():
        return path
    # Other programs have files of that name too.
    return folder / PARAMS if any(folder.glob(f"{CONSOLIDATED}*{SUFFIX}")) else path


def _read_json(path: Path) -> dict[str, object]:
    size = path.stat().st_size
    if size > MAX_JSON:
        raise BrokenModelError(
            f"{path.name} has {format_bytes(size)}; no model's has more than"
            f" {format_bytes(MAX_JSON)}.",
            file=path.name,
        )
    try:
        value = json.loads(path.read_bytes(), parse_int=_number)
        json.dumps(value, ensure_ascii=False).encode()  # half a surrogate pair cannot be encoded
    except (ValueError, RecursionError) as error:
        raise BrokenModelError(
            f"{path.name} is damaged. Download the model again.", file=path.name
        ) from error
    if not isinstance(value, dict):
        raise BrokenModelError(f"{path.name} does not hold a JSON object.", file=path.name)
    return cast("dict[str, object]", value)


def _number(digits: str) -> int | float:
    """Read an integer. Beyond 64 bits, which no message can carry, return the nearest float."""
    return int(digits) if len(digits) <= _DIGITS else float(digits)


def _read_folder(folder: Path, raw: dict[str, object]) -> tuple[dict[str, object], _Spans]:
    """The config and the tensors under our names."""
    names = weight_files(folder)
    if not names:
        raise _no_weights(folder)
    spans = _read_spans(folder, names)
    if names[0].startswith(CONSOLIDATED):
        return in_this_order(raw), _renamed(spans, hugging_face_names(spans))
    if EMBEDDING.removeprefix(BASE) in spans:
        # Nothing but embeddings is to be computed with it, for which any head will do.
        raw = {**raw, "tie_word_embeddings": True}
    return raw, _renamed(spans, decoder_names(spans))


def weight_files(folder: Path) -> list[str]:
    """The safetensors files of the folder's model by its index, or the only one; some may be missing.

    A folder may have a model in two layouts. That of Hugging Face counts, unless none of its weights are there.

    Raises:
        BrokenModelError: an index is damaged.
        OSError: it cannot be read.
    """
    found: list[str] = []
    for whole, index in ((WEIGHTS, INDEX), (CONSOLIDATED + SUFFIX, CONSOLIDATED + INDEX_SUFFIX)):
        if (folder / whole).is_file():
            return [whole]
        if (folder / index).is_file():
            names = sorted(set(_weight_map(folder / index).values()))
            if any((folder / name).is_file() for name in names):
                return names
            found = found or names
    return found


def _read_spans(folder: Path, names: Sequence[str]) -> _Spans:
    """Every tensor in these files of the folder, with its file."""
    index = folder / (CONSOLIDATED + INDEX_SUFFIX if names[0].startswith(CONSOLIDATED) else INDEX)
    if names[0] in (WEIGHTS, CONSOLIDATED + SUFFIX):
        file = _read_header(folder / names[0])
        return {span.name: (file, span) for span in file.spans}
    weight_map = _weight_map(index)
    missing = sorted({name for name in weight_map.values() if not (folder / name).is_file()})
    if missing:
        raise BrokenModelError(
            f"{folder} lacks {', '.join(missing[:3])}{' and more' if len(missing) > 3 else ''}:"
            f" {len(missing)} of {len(set(weight_map.values()))} files with weights are missing."
            " The download is not complete; start it again.",
            file=missing[0],
        )
    files = {name: _read_header(folder / name) for name in sorted(set(weight_map.values()))}
    by_shard = {name: {span.name: span for span in file.spans} for name, file in files.items()}
    for tensor, shard in weight_map.items():
        if tensor not in by_shard[shard]:
            raise BrokenModelError(
                f"{index.name} expects tensor {tensor} in {shard}, which holds {len(by_shard[shard])}"
                " others. The files do not belong together; download the model again.",
                tensor=tensor,
                file=shard,
            )
    return {tensor: (files[shard], by_shard[shard][tensor]) for tensor, shard in weight_map.items()}


def _renamed(spans: _Spans, names: Mapping[str, str]) -> _Spans:
    """The tensors that have other names, under these."""
    return {
        ours: (spans[name][0], replace(spans[name][1], name=ours)) for name, ours in names.items()
    }


def _cut(config: ModelConfig, spans: _Spans) -> _Spans:
    """The tensors, with those that hold all experts of a layer cut into experts."""
    found: dict[str, tuple[ModelFile, TensorSpan]] = {}
    for name, (file, span) in spans.items():
        found[name] = file, span
        for part in expert_slices(config, name, span.shape, span.nbytes):
            offset = span.offset + part.offset
            one = replace(span, name=part.name, shape=part.shape, offset=offset, nbytes=part.nbytes)
            found[part.name] = file, one
    return found


def _weight_map(index: Path) -> dict[str, str]:
    """Read which file of the folder has which tensor."""
    weight_map = _read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise BrokenModelError(f"{index.name} has no weight_map.", file=index.name)
    for shard in cast("dict[str, object]", weight_map).values():
        if not isinstance(shard, str) or not _is_plain_name(shard):
            raise BrokenModelError(
                f"{index.name} names the file {str(shard)[:80]!r}, which is not a safetensors"
                " file in the model's own folder. Do not trust this model.",
                file=index.name,
            )
    return cast("dict[str, str]", weight_map)


def _is_plain_name(name: str) -> bool:
    """Whether the name is a plain file name on every system, so that it cannot leave its folder."""
    plain = PurePosixPath(name).name == name and PureWindowsPath(name).name == name
    return plain and name.endswith(".safetensors") and name.isprintable()


def _read_header(path: Path) -> ModelFile:
    stamp = Stamp.of(path)
    with path.open("rb") as file:
        length = header_length(file.read(LENGTH_SIZE), stamp.size, path.name)
        header = file.read(length)
    spans = parse_header(header, stamp.size, path.name)
    # The path is resolved: the Hub cache links to a blob, which several revisions may share.
    return ModelFile(path.resolve(), stamp, tuple(spans.values()))


def _by_file(spans: Mapping[str, tuple[ModelFile, TensorSpan]]) -> Sequence[ModelFile]:
    """Group these tensors by their files."""
    chosen: dict[Path, tuple[ModelFile, list[TensorSpan]]] = {}
    for file, span in spans.values():
        chosen.setdefault(file.path, (file, []))[1].append(span)
    return [ModelFile(file.path, file.stamp, some) for file, some in chosen.values()]


def _no_weights(folder: Path) -> BrokenModelError:
    names = {path.name for path in folder.iterdir()}
    if any(name.endswith(".safetensors") for name in names):
        why = f"has safetensors files but neither {WEIGHTS} nor {INDEX}: the download is incomplete"
    elif any(name.endswith((".bin", ".pt", ".pth")) for name in names):
        why = "has its weights as pickle files only, which can run code when they are opened"
    else:
        why = "has no weights"
    return BrokenModelError(
        f"{folder} {why}. Potluck reads safetensors and GGUF: download the model in that form.",
        file=WEIGHTS,
    )
